//! SQLite's locks (its "File Locking and Concurrency"), on a file beside the base: who exchanges the base's descriptors loses locks on it.
//!
//! What always holds:
//! - the locks are those of an open file description: connections of one process exclude each other as those of several do;
//! - while a base is open here, a SQLite that knows nothing of this cannot write it: a lock on the base itself, by a descriptor that only
//!   reads, keeps what that would need.

use crate::sqlite;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, OwnedFd};

/// What a lock file's name ends with.
pub const SUFFIX: &str = "-willow";
/// SQLite's bytes (os.h: PENDING_BYTE and what follows).
const PENDING: i64 = 0x4000_0000;
const RESERVED: i64 = PENDING + 1;
const SHARED: i64 = PENDING + 2;
const SHARED_BYTES: i64 = 510;

/// The locks of one connection.
pub struct Locks {
    file: OwnedFd,
    /// The base, to keep others from it.
    base: OwnedFd,
    keeps_others_out: bool,
    /// SQLite's level.
    pub level: c_int,
}

fn lock(file: &OwnedFd, kind: c_int, start: i64, bytes: i64) -> Result<(), Errno> {
    let what =
        libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: bytes, l_pid: 0 };
    // SAFETY: an open descriptor, and a structure that lives meanwhile.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &what) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Whether somebody else has the byte that who is about to write locks.
fn is_reserved_by_others(file: &OwnedFd) -> Result<bool, c_int> {
    let mut what = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: RESERVED,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: an open descriptor, and a structure that lives meanwhile.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut what) } {
        0 => Ok(what.l_type != libc::F_UNLCK as i16),
        _ => Err(sqlite::IOERR),
    }
}

fn code(error: Errno) -> c_int {
    match error {
        Errno::AGAIN | Errno::ACCESS | Errno::INTR | Errno::NOLCK => sqlite::BUSY,
        // A lock file that may only be read.
        Errno::BADF => sqlite::READONLY,
        _ => sqlite::IOERR_LOCK,
    }
}

impl Locks {
    /// Of the base at this path, whose file has this mode and owner.
    pub fn open(path: &CStr, stat: &rustix::fs::Stat) -> Result<Locks, Errno> {
        let name = CString::new([path.to_bytes(), SUFFIX.as_bytes()].concat()).map_err(|_| Errno::INVAL)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o666);
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |flags| rustix::fs::open(&name, flags, mode);
        let file = match open(flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            Ok(file) => {
                // As its base, whatever the process' mask says; root gives it away as well.
                rustix::fs::fchmod(&file, mode)?;
                if rustix::process::geteuid().is_root() {
                    let (user, group) = (stat.st_uid, stat.st_gid);
                    let _ = rustix::fs::fchown(
                        &file,
                        Some(rustix::fs::Uid::from_raw(user)),
                        Some(rustix::fs::Gid::from_raw(group)),
                    );
                }
                file
            }
            Err(Errno::EXIST) => match open(flags | OFlags::RDWR) {
                Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => open(flags | OFlags::RDONLY)?,
                opened => opened?,
            },
            Err(error) => return Err(error),
        };
        let base = rustix::fs::open(path, OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())?;
        Ok(Locks { file, base, keeps_others_out: false, level: sqlite::LOCK_NONE })
    }

    /// Raises the level.
    pub fn raise(&mut self, level: c_int) -> Result<(), c_int> {
        if level <= self.level {
            return Ok(());
        }
        if self.level == sqlite::LOCK_NONE {
            self.share()?;
        }
        match level {
            sqlite::LOCK_RESERVED => {
                if is_reserved_by_others(&self.base)? {
                    return Err(sqlite::BUSY);
                }
                lock(&self.file, libc::F_WRLCK, RESERVED, 1).map_err(code)?;
            }
            sqlite::LOCK_EXCLUSIVE => {
                if self.level < sqlite::LOCK_PENDING {
                    lock(&self.file, libc::F_WRLCK, PENDING, 1).map_err(code)?;
                    self.level = sqlite::LOCK_PENDING;
                }
                lock(&self.file, libc::F_WRLCK, SHARED, SHARED_BYTES).map_err(code)?;
            }
            _ => {}
        }
        self.level = level;
        Ok(())
    }

    fn share(&mut self) -> Result<(), c_int> {
        if !self.keeps_others_out {
            lock(&self.base, libc::F_RDLCK, SHARED, SHARED_BYTES).map_err(code)?;
            self.keeps_others_out = true;
        }
        lock(&self.file, libc::F_RDLCK, PENDING, 1).map_err(code)?;
        let shared = lock(&self.file, libc::F_RDLCK, SHARED, SHARED_BYTES);
        let released = lock(&self.file, libc::F_UNLCK, PENDING, 1);
        shared.map_err(code)?;
        released.map_err(|_| sqlite::IOERR_UNLOCK)?;
        self.level = sqlite::LOCK_SHARED;
        Ok(())
    }

    /// Lowers the level to shared or none.
    pub fn lower(&mut self, level: c_int) -> Result<(), c_int> {
        if level >= self.level {
            return Ok(());
        }
        let lowered = match level {
            sqlite::LOCK_SHARED => lock(&self.file, libc::F_RDLCK, SHARED, SHARED_BYTES)
                .and_then(|()| lock(&self.file, libc::F_UNLCK, PENDING, 2)),
            _ => lock(&self.file, libc::F_UNLCK, PENDING, 2 + SHARED_BYTES),
        };
        lowered.map_err(|_| sqlite::IOERR_UNLOCK)?;
        self.level = level;
        Ok(())
    }

    /// Whether anybody is about to write: by this library, or a SQLite that knows nothing of it, whose journal is not a hot one then.
    pub fn is_reserved(&self) -> Result<bool, c_int> {
        Ok(self.level >= sqlite::LOCK_RESERVED
            || is_reserved_by_others(&self.file)?
            || is_reserved_by_others(&self.base)?)
    }
}
