//! Handles of files (name_to_handle_at(2)): what finds a file of a file system wherever its path is now, and no other file that has its
//! number later.

use super::digits;
use rustix::fs::{Mode, OFlags};
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

/// Room for a file system's UUID (`struct fsuuid2`): its length, and its bytes.
#[repr(C)]
struct RawUuid {
    bytes: u8,
    uuid: [u8; 16],
}

/// FS_IOC_GETFSUUID of `linux/fs.h` (Linux 6.9): `_IOR(0x15, 0, struct fsuuid2)`.
const FS_IOC_GETFSUUID: u32 = 0x8011_1500;

/// The UUID of an open file's file system, in hexadecimal digits; `None` where the kernel does not say, or it has none.
fn uuid(file: BorrowedFd<'_>) -> Option<String> {
    let mut raw = RawUuid { bytes: 0, uuid: [0; 16] };
    // SAFETY: the kernel writes at most one such structure.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFSUUID as _, &raw mut raw) };
    let bytes = raw.uuid.get(..usize::from(raw.bytes)).filter(|bytes| done == 0 && !bytes.is_empty())?;
    Some(digits::of_bytes(bytes))
}

/// A file's handle, and its file system's id (statvfs(3)), which may have the disk's number in it (xfs), and UUID, which has not.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle {
    system: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
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
        let handle = digits::of_bytes(bytes);
        let system = rustix::fs::fstatvfs(file).ok()?.f_fsid;
        Some(Handle { system, uuid: uuid(file), kind: raw.kind, handle })
    }

    /// What tells the file from all others of its file system, also those that have its number later.
    pub fn which(&self) -> String {
        format!("{}:{}", self.kind, self.handle)
    }

    /// True where it is this open file's, whatever number its disk has now.
    pub fn is_of(&self, file: BorrowedFd<'_>) -> bool {
        self.is_of_same(file) && self.is_within(file)
    }

    /// True where an open file of its file system, which may have another id now, is it.
    pub fn is_of_same(&self, file: BorrowedFd<'_>) -> bool {
        Handle::of_file(file).is_some_and(|own| (own.kind, &own.handle) == (self.kind, &self.handle))
    }

    /// True where an open file is in its file system.
    fn is_within(&self, file: BorrowedFd<'_>) -> bool {
        match (&self.uuid, uuid(file)) {
            (Some(listed), Some(own)) => *listed == own,
            _ => rustix::fs::fstatvfs(file).is_ok_and(|system| system.f_fsid == self.system),
        }
    }

    /// Opens the file in this access mode, by the mount of a file system at this place; `None` where another one is there. Never waits for a
    /// lease.
    pub fn open_at(&self, place: &str, mode: OFlags) -> std::io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = rustix::fs::open(place, flags, Mode::empty())?;
        if !self.is_within(mount.as_fd()) {
            return Ok(None);
        }
        let bytes = digits::to_bytes(&self.handle).filter(|bytes| bytes.len() <= HANDLE_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| std::io::Error::other("its handle in the journal is none"))?;
        let mut raw = Raw { bytes: bytes.len() as u32, kind: self.kind, handle: [0; HANDLE_BYTES_MAX] };
        raw.handle[..bytes.len()].copy_from_slice(&bytes);
        let flags = (mode | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW).bits();
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

/// Opens a file in this access mode by one of these places, at which its file system is mounted for the agent: what a user does to a mount of his own
/// has no part in it.
pub(super) fn open_by_own_mount(
    file: BorrowedFd<'_>,
    key: (u64, u64),
    places: &[String],
    mode: OFlags,
) -> Result<OwnedFd, String> {
    let handle = Handle::of_file(file).ok_or("its file system has no handles for files")?;
    let mut why = "its file system is not mounted for the agent".to_owned();
    for place in places {
        let opened = match handle.open_at(place, mode) {
            Ok(Some(opened)) => opened,
            Ok(None) => continue,
            Err(error) => {
                why = format!("the agent cannot open it at {place} ({error})");
                continue;
            }
        };
        let stat = rustix::fs::fstat(&opened).map_err(|error| error.to_string())?;
        let mount = rustix::fs::fstatvfs(&opened).map_err(|error| error.to_string())?;
        if (stat.st_dev, stat.st_ino) != key {
            continue;
        }
        if mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            why = format!("{place} is mounted read-only");
            continue;
        }
        return Ok(opened);
    }
    Err(why)
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
        match handle.open_at(place, OFlags::RDONLY) {
            Ok(found) => {
                let found = std::fs::File::from(found.expect("the same file system"));
                assert_eq!(std::io::read_to_string(&found).unwrap(), "this one");
                assert!(handle.is_of(found.as_fd()));
                let another = std::fs::File::open(folder.join("file")).unwrap();
                assert!(!handle.is_of(another.as_fd()));
                let digits = |digits: &str| digits.replace(|digit: char| digit != '0', "0") + "1";
                let uuid = handle.uuid.as_deref().map(digits);
                let other = Handle { system: handle.system ^ 1, uuid, ..handle.clone() };
                assert!(other.open_at(place, OFlags::RDONLY).unwrap().is_none() && !other.is_of(found.as_fd()));
                // A line of an earlier agent has none.
                assert!(Handle { uuid: None, ..handle.clone() }.is_of(found.as_fd()));
                drop(found);
                std::fs::remove_file(folder.join("b/file")).unwrap();
                assert!(handle.open_at(place, OFlags::RDONLY).is_err());
            }
            // Who is not root may not.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
