//! Handles of files (name_to_handle_at(2)): what finds a file of a file system wherever its path is now, and no other file that has its
//! number later.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes that a handle may have (MAX_HANDLE_SZ).
const HANDLE_BYTES_MAX: usize = 128;

/// `struct file_handle`.
#[repr(C)]
struct Raw {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// A file's handle, and its file system's id (statvfs(3)).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle {
    system: u64,
    kind: i32,
    /// In hexadecimal digits.
    handle: String,
}

impl Handle {
    /// Of an open file; `None` where its file system has none.
    pub fn of_file(file: BorrowedFd<'_>) -> Option<Handle> {
        let mut raw = Raw { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        let mut mount: libc::c_int = 0;
        let (number, flags) = (libc::SYS_name_to_handle_at, libc::AT_EMPTY_PATH);
        let (at, empty) = (file.as_raw_fd(), c"".as_ptr());
        // SAFETY: an empty path; the kernel writes at most as many bytes as the structure says that it has, and one integer.
        let done = unsafe { libc::syscall(number, at, empty, &raw mut raw, &raw mut mount, flags) };
        let bytes = raw.handle.get(..raw.bytes as usize).filter(|_| done == 0)?;
        let handle = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let system = rustix::fs::fstatvfs(file).ok()?.f_fsid;
        Some(Handle { system, kind: raw.kind, handle })
    }

    /// Opens the file for reading, by the mount of a file system at this place; `None` where another one is there.
    pub fn open_at(&self, place: &str) -> std::io::Result<Option<OwnedFd>> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = rustix::fs::open(place, flags, Mode::empty())?;
        if rustix::fs::fstatvfs(&mount)?.f_fsid != self.system {
            return Ok(None);
        }
        let digits = |at: usize| self.handle.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let bytes: Option<Vec<u8>> = (0..self.handle.len()).step_by(2).map(digits).collect();
        let bytes = bytes.filter(|bytes| bytes.len() <= HANDLE_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| std::io::Error::other("its handle in the journal is none"))?;
        let mut raw = Raw { bytes: bytes.len() as u32, kind: self.kind, handle: [0; HANDLE_BYTES_MAX] };
        raw.handle[..bytes.len()].copy_from_slice(&bytes);
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        // SAFETY: the kernel reads as many bytes of the structure as that says that there are, which it has.
        let opened =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw const raw, flags) };
        if opened < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: opened above, and nobody else's.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(opened as i32) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_finds_a_file_wherever_it_is_now() {
        let folder = std::env::temp_dir().join(format!("willow-handle-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::write(folder.join("a/file"), b"this one").unwrap();
        let file = std::fs::File::open(folder.join("a/file")).unwrap();
        let Some(handle) = Handle::of_file(file.as_fd()) else {
            // Some file systems have none.
            return std::fs::remove_dir_all(folder).unwrap();
        };
        drop(file);
        std::fs::rename(folder.join("a"), folder.join("b")).unwrap();
        std::fs::write(folder.join("file"), b"another").unwrap();
        let place = folder.to_str().unwrap();
        match handle.open_at(place) {
            Ok(found) => {
                let found = std::fs::File::from(found.expect("the same file system"));
                assert_eq!(std::io::read_to_string(found).unwrap(), "this one");
                let other = Handle { system: handle.system ^ 1, ..handle.clone() };
                assert!(other.open_at(place).unwrap().is_none());
                std::fs::remove_file(folder.join("b/file")).unwrap();
                assert!(handle.open_at(place).is_err());
            }
            // Who is not root may not.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
