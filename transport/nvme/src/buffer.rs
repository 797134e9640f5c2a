//! Buffers for the data of commands: kept for the next command instead of being freed, never zeroed on the way.
//!
//! What always holds:
//! - a buffer has room for a transport's header in front of the data ([`HEADROOM_BYTES`]) and for a completion behind it
//!   ([`TAILROOM_BYTES`]), so that data and its framing leave in one piece;
//! - who may have how many is not its affair: [`crate::account`] says so before one is taken;
//! - a buffer's bytes are whatever a command before left there: who sends bytes of it to a host has written them first.

/// Room in front of the data: the longest offset of data in a PDU (NVMe/TCP 3.6.2.1: HPDA is at most 128 bytes).
pub const HEADROOM_BYTES: usize = 128;
/// Room behind the data: data digest, response capsule and its digest.
pub const TAILROOM_BYTES: usize = 64;
/// Smallest and largest size class, as powers of two.
const CLASS_MIN_BITS: u32 = 9;
const CLASS_MAX_BITS: u32 = 22;
const CLASSES: usize = (CLASS_MAX_BITS - CLASS_MIN_BITS + 1) as usize;
/// Most bytes that lie in the pool unused, a size class.
const IDLE_BYTES_A_CLASS_MAX: usize = 4 << 20;

/// The pool.
pub struct BufferPool {
    free: [Vec<Vec<u8>>; CLASSES],
    taken_bytes: usize,
}

fn class_of(data_bytes: usize) -> usize {
    (data_bytes.next_power_of_two().trailing_zeros().max(CLASS_MIN_BITS) - CLASS_MIN_BITS) as usize
}

fn class_bytes(class: usize) -> usize {
    (1 << (class as u32 + CLASS_MIN_BITS)) + HEADROOM_BYTES + TAILROOM_BYTES
}

#[allow(clippy::new_without_default)]
impl BufferPool {
    /// An empty pool.
    pub fn new() -> Self {
        BufferPool { free: Default::default(), taken_bytes: 0 }
    }

    /// A buffer for `data_bytes` of data, at most 4 MiB, at [`HEADROOM_BYTES`].
    #[inline]
    pub fn take(&mut self, data_bytes: usize) -> Vec<u8> {
        let class = class_of(data_bytes);
        assert!(class < CLASSES, "no command has {data_bytes} bytes of data");
        self.taken_bytes += class_bytes(class);
        self.free[class].pop().unwrap_or_else(|| vec![0; class_bytes(class)])
    }

    /// Takes back a buffer that [`BufferPool::take`] gave; its whole length, 0 where it is empty, as commands without data have it.
    #[inline]
    pub fn give(&mut self, buffer: Vec<u8>) -> usize {
        let bytes = buffer.len();
        if bytes <= HEADROOM_BYTES + TAILROOM_BYTES {
            return 0;
        }
        let class = class_of(bytes - HEADROOM_BYTES - TAILROOM_BYTES);
        if class >= CLASSES || class_bytes(class) != bytes {
            debug_assert!(false, "a buffer of {bytes} bytes is none of the pool's");
            return 0;
        }
        debug_assert!(self.taken_bytes >= bytes);
        self.taken_bytes = self.taken_bytes.saturating_sub(bytes);
        if (self.free[class].len() + 1) * bytes <= IDLE_BYTES_A_CLASS_MAX || self.free[class].is_empty() {
            self.free[class].push(buffer);
        }
        bytes
    }

    /// Whole size of the buffer that [`BufferPool::take`] gives for `data_bytes`.
    pub fn whole_bytes(data_bytes: usize) -> usize {
        class_bytes(class_of(data_bytes))
    }

    /// Bytes handed out now.
    pub fn taken_bytes(&self) -> usize {
        self.taken_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_are_counted() {
        let mut pool = BufferPool::new();
        let buffers: Vec<_> = (0..3).map(|_| pool.take(4096)).collect();
        assert_eq!(pool.taken_bytes(), 3 * BufferPool::whole_bytes(4096));
        let pointer = buffers[2].as_ptr();
        for buffer in buffers {
            assert_eq!(pool.give(buffer), BufferPool::whole_bytes(4096));
        }
        assert_eq!((pool.give(Vec::new()), pool.taken_bytes()), (0, 0));
        let again = pool.take(4000);
        assert_eq!(again.as_ptr(), pointer, "the hottest buffer is used first");
    }
}
