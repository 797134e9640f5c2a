//! A mount on which the files of one user are another's (mount_setattr(2), MOUNT_ATTR_IDMAP).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

const OPEN_TREE_CLONE: libc::c_uint = 1;
const IDMAP: u64 = 0x0010_0000;
const MOVE_FROM_DESCRIPTOR: libc::c_uint = 4;

fn text(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

fn check(done: i64) -> Result<i64> {
    if done < 0 { Err(Error::last_os_error()) } else { Ok(done) }
}

/// A copy of the mount of a folder, from there on, that is mounted nowhere.
pub fn copy_of(folder: &Path) -> Result<OwnedFd> {
    let (name, flags) = (text(folder)?, OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint);
    // SAFETY: the name lives; the descriptor is a new one.
    unsafe {
        let tree = check(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, name.as_ptr(), flags))?;
        Ok(OwnedFd::from_raw_fd(tree as RawFd))
    }
}

/// Has a mount that is mounted nowhere show users as this user namespace has them.
pub fn map_by(tree: &OwnedFd, namespace: &File) -> Result<()> {
    // What is set, what is cleared, how it propagates, the user namespace.
    let attributes = [IDMAP, 0, 0, namespace.as_raw_fd() as u64];
    // SAFETY: the structure has four words.
    let done = unsafe {
        let (nothing, size) = (c"".as_ptr(), size_of_val(&attributes));
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            nothing,
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size,
        )
    };
    check(done).map(drop)
}

/// Such a mount.
pub struct Idmapped {
    /// Where it is.
    pub place: PathBuf,
    keeper: Child,
}

impl Drop for Idmapped {
    fn drop(&mut self) {
        let _ = crate::stage::tool("umount", &["-l", &self.place.display().to_string()]);
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Idmapped {
    /// Of a folder, at this place, which is made; one user's files are the other's there.
    pub fn new(folder: &Path, place: &Path, (from, to): (u32, u32)) -> Result<Idmapped> {
        fs::create_dir_all(place)?;
        // A namespace with these users, as long as a process is in it.
        let keeper = Command::new("unshare").args(["--user", "sleep", "600"]).spawn()?;
        let keeper = Idmapped { place: place.to_owned(), keeper };
        let process = PathBuf::from(format!("/proc/{}", keeper.keeper.id()));
        let own = fs::read_link("/proc/self/ns/user")?;
        crate::stage::within_seconds("it has a namespace", || {
            fs::read_link(process.join("ns/user")).is_ok_and(|of_it| of_it != own)
        });
        for map in ["uid_map", "gid_map"] {
            fs::write(process.join(map), format!("{from} {to} 1"))?;
        }
        let tree = copy_of(folder)?;
        map_by(&tree, &File::open(process.join("ns/user"))?)?;
        let name = text(place)?;
        // SAFETY: the names live.
        let done = unsafe {
            let (from, flags) = (tree.as_raw_fd(), MOVE_FROM_DESCRIPTOR);
            libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), libc::AT_FDCWD, name.as_ptr(), flags)
        };
        check(done)?;
        Ok(keeper)
    }
}
