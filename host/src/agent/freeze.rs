//! Freezing: while a process has direct access to a file, the file has the attribute "immutable", so that the file system itself
//! refuses whatever would move, free or share its blocks: write, truncate, punch hole, fallocate, swap of extents, unlink, rename.
//! Leases and fanotify would tell of such changes when they have happened; this keeps them from happening.
//!
//! What always holds: a file that the agent froze is in the state file before it is frozen, and until it is thawed; an agent that
//! starts thaws what it finds there. A file that was immutable before stays so.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
const FS_IOC_SETFLAGS: libc::c_ulong = 0x4008_6602;
const FICLONE: libc::c_ulong = 0x4004_9409;
/// Attributes of linux/fs.h.
const IMMUTABLE: u32 = 0x10;
const COMPRESSED: u32 = 0x4;
const ENCRYPTED: u32 = 0x800;
const JOURNALED_DATA: u32 = 0x4000;
const VERITY: u32 = 0x10_0000;

fn flags(file: BorrowedFd<'_>) -> std::io::Result<u32> {
    let mut flags: libc::c_ulong = 0;
    // SAFETY: the kernel writes one integer, of at most the size of a long.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS as _, &raw mut flags) } {
        0 => Ok(flags as u32),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn set_flags(file: BorrowedFd<'_>, flags: u32) -> std::io::Result<()> {
    let flags = libc::c_ulong::from(flags);
    // SAFETY: the kernel reads one integer.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SETFLAGS as _, &raw const flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// True where an open file is immutable now, by an agent or otherwise; false where its file system has no attributes.
pub fn is_immutable(file: BorrowedFd<'_>) -> bool {
    flags(file).is_ok_and(|flags| flags & IMMUTABLE != 0)
}

/// True where the file system can let another file share this one's blocks, which the attribute does not prevent.
pub fn can_share_blocks(file: BorrowedFd<'_>) -> bool {
    // A clone onto itself: what cannot clone says so, what can says that this makes no sense. What is cloned has to be readable.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(readable) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else { return true };
    // SAFETY: a call with two descriptors and no memory.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FICLONE as _, readable.as_raw_fd()) };
    let error = std::io::Error::last_os_error().raw_os_error();
    done == 0 || !matches!(error, Some(libc::EOPNOTSUPP | libc::ENOTTY))
}

struct Held {
    path: PathBuf,
    holders: usize,
    was_immutable: bool,
}

/// The files that are frozen, by device and inode.
pub struct Frozen {
    held: BTreeMap<(u64, u64), Held>,
    state: PathBuf,
}

impl Frozen {
    /// Begins with nothing frozen: thaws what the state file lists.
    pub fn open(state: PathBuf) -> Result<Self, String> {
        let text = match std::fs::read_to_string(&state) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("cannot read {}: {error}", state.display())),
        };
        let listed: Vec<(u64, u64, PathBuf)> = if text.is_empty() {
            Vec::new()
        } else {
            serde_json::from_str(&text).map_err(|error| format!("cannot read {}: {error}", state.display()))?
        };
        for (device, inode, path) in listed {
            if let Err(error) = thaw_path(&path, (device, inode)) {
                tracing::warn!("{} may still be immutable (chattr -i): {error}", path.display());
            }
        }
        let frozen = Frozen { held: BTreeMap::new(), state };
        frozen.save()?;
        Ok(frozen)
    }

    fn save(&self) -> Result<(), String> {
        let listed: Vec<(u64, u64, &Path)> = self
            .held
            .iter()
            .filter(|(_, held)| !held.was_immutable)
            .map(|((device, inode), held)| (*device, *inode, held.path.as_path()))
            .collect();
        let text = serde_json::to_vec(&listed).map_err(|error| error.to_string())?;
        let new = self.state.with_extension("new");
        let saved = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.state));
        saved.map_err(|error| format!("cannot write {}: {error}", self.state.display()))
    }

    /// Freezes an open file, once more where it is frozen already. The error is a sentence about the file.
    pub fn freeze(&mut self, file: BorrowedFd<'_>, key: (u64, u64)) -> Result<(), String> {
        if let Some(held) = self.held.get_mut(&key) {
            held.holders += 1;
            return Ok(());
        }
        let now = flags(file).map_err(|error| format!("its file system has no attributes ({error})"))?;
        for (flag, why) in [
            (COMPRESSED, "it is compressed by the file system (chattr +c)"),
            (ENCRYPTED, "it is encrypted by the file system"),
            (JOURNALED_DATA, "its data go through the journal (chattr +j, or data=journal)"),
            (VERITY, "it is sealed by fs-verity"),
        ] {
            if now & flag != 0 {
                return Err(why.to_owned());
            }
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = path.map_err(|error| format!("its path cannot be found out ({error})"))?;
        let was_immutable = now & IMMUTABLE != 0;
        self.held.insert(key, Held { path, holders: 1, was_immutable });
        let frozen = self.save().and_then(|()| {
            set_flags(file, now | IMMUTABLE)
                .map_err(|error| format!("it cannot be kept as it is while it is accessed directly ({error})"))
        });
        if frozen.is_err() {
            self.held.remove(&key);
            let _ = self.save();
        }
        frozen
    }

    /// Thaws a file, where nobody else holds it.
    pub fn thaw(&mut self, file: BorrowedFd<'_>, key: (u64, u64)) {
        let Some(held) = self.held.get_mut(&key) else { return };
        held.holders -= 1;
        if held.holders > 0 {
            return;
        }
        if !held.was_immutable
            && let Err(error) = flags(file).and_then(|now| set_flags(file, now & !IMMUTABLE))
        {
            tracing::error!("{} is still immutable (chattr -i): {error}", held.path.display());
            return;
        }
        self.held.remove(&key);
        if let Err(why) = self.save() {
            tracing::error!("{why}");
        }
    }

    /// True where this file is frozen.
    pub fn holds(&self, key: (u64, u64)) -> bool {
        self.held.contains_key(&key)
    }

    /// Number of files frozen.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True where there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

fn thaw_path(path: &Path, key: (u64, u64)) -> std::io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsFd;
    let file =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if (stat.st_dev, stat.st_ino) != key {
        return Err(std::io::Error::other("another file is there now"));
    }
    let now = flags(file.as_fd())?;
    set_flags(file.as_fd(), now & !IMMUTABLE)
}
