//! Calls that have begun and do not come to an end until they are told to: nothing but the call itself keeps the file.

use super::{BYTES, check, ioctl};
use std::fs::File;
use std::io::{Error, Result, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use willow_tests::stage::WAIT_MAX;

const PAGE_BYTES: usize = 4096;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const MODE_MISSING: u64 = 1;

/// A page of memory that is not there yet: who reads it, the kernel too, waits until it is (userfaultfd).
struct Page {
    faults: OwnedFd,
    at: usize,
}

impl Page {
    fn new() -> Result<Page> {
        // SAFETY: a call without memory.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        check(number)?;
        // SAFETY: made above, nobody else's.
        let faults = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
        ioctl(faults.as_raw_fd(), UFFDIO_API, &mut [0xaa, 0, 0])?;
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, rights, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let at = at as usize;
        ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, &mut [at as u64, PAGE_BYTES as u64, MODE_MISSING, 0])?;
        Ok(Page { faults, at })
    }

    /// Waits until somebody waits for it.
    fn awaited(&self) -> Result<()> {
        // An event has 32 bytes.
        rustix::io::read(&self.faults, &mut [0u8; 32])?;
        Ok(())
    }

    /// It is there now, with these words at its beginning.
    fn fill(&self, words: &[u64]) -> Result<()> {
        let mut page = [0u64; PAGE_BYTES / 8];
        page[..words.len()].copy_from_slice(words);
        let mut copy = [self.at as u64, page.as_ptr() as u64, PAGE_BYTES as u64, 0, 0];
        ioctl(self.faults.as_raw_fd(), UFFDIO_COPY, &mut copy)
    }
}

/// What ends a call that has begun; with what it came to.
pub type Ends = Box<dyn FnOnce() -> Result<()> + Send>;

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().map_err(|_| Error::other("the thread has panicked"))?
}

/// An ioctl on a file that waits for its own structure; then it is these words. The process has the file no longer when this returns.
pub fn in_ioctl(file: File, request: u64, words: Vec<u64>, keeps: File) -> Result<Ends> {
    let page = Page::new()?;
    let (number, at) = (file.as_raw_fd(), page.at);
    let thread = std::thread::spawn(move || {
        // SAFETY: a page, which is larger than the structure.
        check(i64::from(unsafe { libc::ioctl(number, request as _, at as *mut u8) }))
    });
    page.awaited()?;
    drop(file);
    Ok(Box::new(move || {
        page.fill(&words)?;
        let done = join(thread);
        drop(keeps);
        done
    }))
}

/// Whether a file can be sealed by fs-verity, and is not.
pub fn can_be_sealed(file: &File) -> bool {
    const FS_IOC_MEASURE_VERITY: u64 = 0xc004_6686;
    ioctl(file.as_raw_fd(), FS_IOC_MEASURE_VERITY, &mut [0; 16])
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENODATA))
}

/// The sealing of a file (FS_IOC_ENABLE_VERITY) that waits for its salt: nobody else may write the file meanwhile, and nobody has it open
/// for writing.
pub fn in_sealing(reader: File) -> Result<Ends> {
    const FS_IOC_ENABLE_VERITY: u64 = 0x4080_6685;
    const SALT_BYTES: u64 = 32;
    let page = Page::new()?;
    let number = reader.as_raw_fd();
    // struct fsverity_enable_arg: version 1, SHA-256, blocks of 4096 bytes, the salt and where it is.
    let mut words = [0u64; 16];
    words[..3].copy_from_slice(&[1 | 1 << 32, 4096 | SALT_BYTES << 32, page.at as u64]);
    let thread = std::thread::spawn(move || ioctl(number, FS_IOC_ENABLE_VERITY, &mut words));
    page.awaited()?;
    drop(reader);
    Ok(Box::new(move || {
        page.fill(&[7; 8])?;
        join(thread)
    }))
}

/// A `pwrite` of a page that is not there; filled by [`Ends`].
pub fn in_write(file: File) -> Result<Ends> {
    let page = Page::new()?;
    let (number, at) = (file.as_raw_fd(), page.at);
    let thread = std::thread::spawn(move || {
        // SAFETY: a page of memory, which comes later.
        check(unsafe { libc::pwrite(number, at as *const _, PAGE_BYTES, 0) } as i64)
    });
    page.awaited()?;
    drop(file);
    Ok(Box::new(move || {
        page.fill(&[7; 8])?;
        join(thread)
    }))
}

/// A `splice` from a pipe that is empty.
pub fn in_splice(file: File) -> Result<Ends> {
    let (reader, mut writer) = std::io::pipe()?;
    let into = file.as_raw_fd();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: a call without arguments.
        let _ = begun.send(unsafe { libc::gettid() });
        let nothing = std::ptr::null_mut();
        // SAFETY: two descriptors, no memory.
        check(unsafe { libc::splice(reader.as_raw_fd(), nothing, into, nothing, BYTES, 0) } as i64)
    });
    let number = has_begun.recv().map_err(Error::other)?;
    let since = Instant::now();
    // It has the file when it sleeps there.
    let call = format!("/proc/self/task/{number}/syscall");
    while !std::fs::read_to_string(&call)?.starts_with(&format!("{} ", libc::SYS_splice)) {
        if since.elapsed() > WAIT_MAX {
            return Err(Error::other("the call does not begin"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(file);
    Ok(Box::new(move || {
        writer.write_all(&[1; PAGE_BYTES])?;
        drop(writer);
        join(thread)
    }))
}

/// A read past the page cache that waits for its own memory, and has the inode's lock meanwhile, as others have who read.
pub fn in_read(file: File) -> Result<Ends> {
    let page = Page::new()?;
    let at = page.at;
    let thread = std::thread::spawn(move || {
        // SAFETY: a page, into which as much is read.
        check(unsafe { libc::pread(file.as_raw_fd(), at as *mut libc::c_void, PAGE_BYTES, 0) } as i64)
    });
    page.awaited()?;
    Ok(Box::new(move || {
        page.fill(&[])?;
        join(thread)
    }))
}

/// A listing of a folder that waits for its own memory, and has the folder's lock meanwhile.
pub fn in_listing(folder: File) -> Result<Ends> {
    let page = Page::new()?;
    let at = page.at;
    let thread = std::thread::spawn(move || {
        // SAFETY: a page, into which as much is written.
        check(unsafe { libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), at, PAGE_BYTES) })
    });
    page.awaited()?;
    Ok(Box::new(move || {
        page.fill(&[])?;
        join(thread)
    }))
}
