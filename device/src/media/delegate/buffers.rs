//! Buffers of operations that have ended, for the next reads.
//!
//! What always holds: a buffer that is handed out is zeroes; at most [`IDLE_MAX`] wait, none larger than [`IDLE_BYTES_MAX`].

/// Most buffers that wait.
const IDLE_MAX: usize = 64;
/// Largest of them: what is larger goes back to the system.
const IDLE_BYTES_MAX: usize = 64 << 10;

/// Buffers that wait to be used again.
#[derive(Default)]
pub(super) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// So many zeroes.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        match self.0.pop() {
            Some(mut buffer) if bytes <= IDLE_BYTES_MAX => {
                buffer.clear();
                buffer.resize(bytes, 0);
                buffer
            }
            _ => vec![0; bytes],
        }
    }

    /// What nobody needs any more.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if self.0.len() < IDLE_MAX && (1..=IDLE_BYTES_MAX).contains(&buffer.capacity()) {
            self.0.push(buffer);
        }
    }
}

impl super::DelegatingStore {
    /// Takes back the bytes of a read that has ended.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.buffers.give(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroes_and_those_that_wait_are_bounded() {
        let mut buffers = Buffers::default();
        (0..2 * IDLE_MAX).for_each(|_| buffers.give(vec![7; 4096]));
        buffers.give(vec![7; IDLE_BYTES_MAX + 1]);
        assert_eq!(buffers.0.len(), IDLE_MAX);
        for bytes in [4096, 100, 8192, 0, 2 * IDLE_BYTES_MAX] {
            assert_eq!(buffers.take(bytes), vec![0; bytes]);
        }
        buffers.give(Vec::new());
        assert_eq!(buffers.0.len(), IDLE_MAX - 5, "one that holds nothing is of no use");
    }
}
