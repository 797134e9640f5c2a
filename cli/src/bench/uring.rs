//! A file driven by io_uring, the quickest way to a file that the kernel has: one ring, one thread, O_DIRECT, file and buffers
//! registered, one system call for all that a turn hands in and waits for.
//!
//! Invariants: each slot has a registered buffer of its own; a buffer is the kernel's until its operation has ended, also when the
//! ring is dropped; an operation that moves fewer bytes than were asked for ends the benchmark.

use super::engine::{Driver, Ended, Operation};
use super::mount::Buffer;
use crate::failure::{Context, Outcome, fail};
use io_uring::{IoUring, opcode, types};
use std::os::fd::{AsRawFd, OwnedFd};

/// The file's place among those that are registered.
const FILE: types::Fixed = types::Fixed(0);

/// A file and a ring.
pub struct Ring {
    ring: IoUring,
    buffers: Vec<Buffer>,
    /// Bytes of the operation under way, for each slot.
    under_way: Vec<Option<u32>>,
    /// Registered; kept open for as long.
    _file: OwnedFd,
}

impl Ring {
    /// A ring for `slots` operations of at most `bytes` bytes on a file that was opened with O_DIRECT.
    pub fn new(file: OwnedFd, slots: usize, bytes: usize) -> Outcome<Ring> {
        let entries = slots.next_power_of_two() as u32;
        // One thread hands in and takes: newer kernels (6.1) then work off completions in its own calls.
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = ring.or_else(|_| IoUring::new(entries)).context(|| "this kernel gives no io_uring".to_owned())?;
        let mut buffers: Vec<_> = (0..slots).map(|slot| Buffer::new(bytes, slot as u64 + 1)).collect();
        let ranges: Vec<_> = (buffers.iter_mut())
            .map(|buffer| libc::iovec { iov_base: buffer.slice().as_mut_ptr().cast(), iov_len: bytes })
            .collect();
        let submitter = ring.submitter();
        // SAFETY: the ranges are the buffers', whose memory stays in place until `Ring` is dropped, which waits for what is under way.
        unsafe { submitter.register_buffers(&ranges) }
            .context(|| "cannot register buffers with io_uring".to_owned())?;
        submitter.register_files(&[file.as_raw_fd()]).context(|| "cannot register a file with io_uring".to_owned())?;
        Ok(Ring { ring, buffers, under_way: vec![None; slots], _file: file })
    }

    /// Hands in what was begun, and waits for an end.
    fn wait(&mut self) -> Outcome<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => fail!("io_uring: {error}"),
            }
        }
    }
}

impl Driver for Ring {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers[slot].slice()
    }

    fn begin(&mut self, slot: usize, operation: Operation) -> Outcome<()> {
        let index = slot as u16;
        let address = self.buffers[slot].slice().as_mut_ptr();
        let entry = match operation {
            Operation::Read { offset, bytes } => {
                opcode::ReadFixed::new(FILE, address, bytes, index).offset(offset).build()
            }
            Operation::Write { offset, bytes } => {
                opcode::WriteFixed::new(FILE, address, bytes, index).offset(offset).build()
            }
            _ => fail!("{operation:?} is nothing that a file does"),
        };
        let bytes = operation.bytes();
        if bytes as usize > self.buffers[slot].slice().len() || self.under_way[slot].is_some() {
            fail!("{operation:?} does not fit slot {slot}");
        }
        // SAFETY: the buffer is as long as the operation (looked at above), in place while it is under way, and nobody else's: the
        // slot is not used before its operation has ended, and `drop` waits.
        if unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }.is_err() {
            fail!("the io_uring has no room for slot {slot}");
        }
        self.under_way[slot] = Some(bytes);
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Outcome<()> {
        self.wait()?;
        for end in self.ring.completion() {
            let slot = end.user_data() as usize;
            let Some(bytes) = self.under_way.get_mut(slot).and_then(Option::take) else {
                fail!("io_uring ended slot {slot}, which was not under way")
            };
            match u32::try_from(end.result()) {
                Ok(count) if count == bytes => ended.push(Ended { slot, result: Some(count) }),
                Ok(count) => fail!("{count} bytes of {bytes} moved"),
                Err(_) => fail!("{}", std::io::Error::from_raw_os_error(-end.result())),
            }
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.under_way.iter().any(Option::is_some) {
            if self.wait().is_err() {
                // Nobody knows what the kernel still does with them: they stay where they are.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
            for end in self.ring.completion() {
                if let Some(slot) = self.under_way.get_mut(end.user_data() as usize) {
                    *slot = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::run_all;
    use super::*;
    use rustix::fs::{Mode, OFlags};

    const BLOCK: usize = 4096;

    /// An empty file beside the test's program: a real file system, as O_DIRECT wants.
    fn file(blocks: usize) -> (std::path::PathBuf, OwnedFd) {
        let path = std::env::current_exe().unwrap().with_extension(format!("uring-{}", std::process::id()));
        std::fs::write(&path, vec![0; blocks * BLOCK]).unwrap();
        let opened = rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap();
        (path, opened)
    }

    #[test]
    fn what_is_written_is_read_and_what_ends_early_is_an_error() {
        if let Err(error) = IoUring::new(1) {
            return willow_skip::skip("io_uring", &error.to_string());
        }
        let (path, opened) = file(64);
        let mut ring = Ring::new(opened.try_clone().unwrap(), 8, BLOCK).unwrap();
        let written: Vec<_> = (0..8).map(|slot| ring.buffer(slot).to_vec()).collect();
        let block = |slot: u64| Operation::Write { offset: slot * 4096, bytes: 4096 };
        run_all(&mut ring, 8, (0..8).map(block), |_| ()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[..8 * BLOCK], written.concat());
        ring.buffer(3).fill(0);
        let read = [7, 6, 5, 4].map(|slot| Operation::Read { offset: slot * 4096, bytes: 4096 });
        run_all(&mut ring, 4, read.into_iter(), |_| ()).unwrap();
        assert!(ring.buffer(3) == written[4]);
        // Past the end of the file, and of what a slot takes.
        let outside = Operation::Read { offset: 64 * 4096, bytes: 4096 };
        assert!(run_all(&mut ring, 1, [outside].into_iter(), |_| ()).is_err());
        assert!(ring.begin(1, Operation::Read { offset: 0, bytes: 8192 }).is_err());
        assert!(ring.begin(1, Operation::Delete { key: 1 }).is_err());
        // Dropped with operations under way.
        let mut ring = Ring::new(opened, 8, BLOCK).unwrap();
        (0..8).for_each(|slot| ring.begin(slot, block(slot as u64)).unwrap());
        drop(ring);
        std::fs::remove_file(&path).unwrap();
    }
}
