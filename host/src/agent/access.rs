//! Who may have a file released that others have directly: whoever could change it if nobody had. The kernel cannot be asked, since it looks
//! at the attribute first.
//!
//! What always holds: a user who could neither write a file nor take its name away has it released by nobody; in doubt it is not.

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use willow_shm::socket::Peer;

const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const STICKY: u32 = 0o1000;
/// Tags of an access control list's entries (linux/posix_acl.h), and what an entry takes.
const USER: u16 = 0x02;
const OWNERS_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const ENTRY_BYTES: usize = 8;
const VERSION_BYTES: usize = 4;
/// Longest list that is looked at: the longest attribute that Linux has.
const LIST_BYTES_MAX: usize = 65536;

/// One entry: tag, rights, user or group.
type Entry = (u16, u32, u32);

/// Who asks.
struct Asking {
    user: u32,
    groups: Vec<u32>,
}

impl Asking {
    fn new(peer: &Peer) -> Asking {
        let status = std::fs::read_to_string(format!("/proc/{}/status", peer.pid)).unwrap_or_default();
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        let mut groups = numbers("Groups:");
        // Real, effective, saved, and that for files.
        groups.extend(numbers("Gid:").get(3));
        if peer.pid <= 0 || peer.has_ended() {
            // The number may be another process' by now.
            groups = vec![peer.gid];
        }
        Asking { user: peer.uid, groups }
    }

    /// True where the mode, or the list, gives these rights to somebody who is not root.
    fn has(&self, stat: &Stat, list: &[Entry], wanted: u32) -> bool {
        let gives = |rights: u32| rights & wanted == wanted;
        if self.user == stat.st_uid {
            return gives(stat.st_mode >> 6);
        }
        let is_in = |group: &u32| self.groups.contains(group);
        let Some(mask) = list.iter().find(|entry| entry.0 == MASK).map(|entry| entry.1) else {
            return gives(if is_in(&stat.st_gid) { stat.st_mode >> 3 } else { stat.st_mode });
        };
        if let Some((_, rights, _)) = list.iter().find(|entry| entry.0 == USER && entry.2 == self.user) {
            return gives(rights & mask);
        }
        let of_groups = |(tag, _, group): &&Entry| match *tag {
            OWNERS_GROUP => is_in(&stat.st_gid),
            GROUP => is_in(group),
            _ => false,
        };
        let mut those = list.iter().filter(of_groups).peekable();
        match those.peek() {
            Some(_) => those.any(|(_, rights, _)| gives(rights & mask)),
            None => list.iter().any(|(tag, rights, _)| *tag == OTHERS && gives(*rights)),
        }
    }
}

/// The access control list of a file; empty where it has none.
fn list_of(path: &Path) -> Vec<Entry> {
    let mut bytes = vec![0; LIST_BYTES_MAX];
    let length = rustix::fs::getxattr(path, "system.posix_acl_access", &mut bytes[..]).unwrap_or(0);
    let entries = bytes.get(VERSION_BYTES..length).unwrap_or_default().chunks_exact(ENTRY_BYTES);
    let short = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let group = |entry: &[u8]| u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    entries.map(|entry| (short(entry, 0), u32::from(short(entry, 2)), group(entry))).collect()
}

/// True where this process could write the file, or take the name away that it opened the file by.
pub(super) fn may_change(peer: &Peer, file: BorrowedFd<'_>, stat: &Stat) -> bool {
    if peer.uid == 0 || peer.uid == stat.st_uid {
        return true;
    }
    let (asking, named) = (Asking::new(peer), format!("/proc/self/fd/{}", file.as_raw_fd()));
    if asking.has(stat, &list_of(Path::new(&named)), WRITE) {
        return true;
    }
    std::fs::read_link(&named).is_ok_and(|path| may_unlink(&asking, &path, stat))
}

/// True where somebody could take this name away from a file, if it is the file's name. The text is what the process calls the file where
/// it has mounted it, which may be elsewhere: only a folder in which the agent finds the file by that name counts.
fn may_unlink(asking: &Asking, path: &Path, file: &Stat) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let links = ResolveFlags::NO_SYMLINKS;
    let Ok(folder) = rustix::fs::openat2(rustix::fs::CWD, folder, flags, Mode::empty(), links) else { return false };
    let found = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
    if !found.is_ok_and(|found| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)) {
        return false;
    }
    // The same folder as the name was found in, whatever is at that path by now.
    let list = list_of(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())));
    rustix::fs::fstat(&folder).is_ok_and(|stat| {
        let is_others = stat.st_mode & STICKY != 0 && stat.st_uid != asking.user;
        !is_others && asking.has(&stat, &list, WRITE | SEARCH)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u16 = 0x01;

    /// A file of user 1 and group 10.
    fn of_mode(mode: u32) -> Stat {
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_uid, stat.st_gid, stat.st_mode) = (1, 10, mode);
        stat
    }

    fn may(user: u32, groups: &[u32], mode: u32, list: &[Entry]) -> bool {
        Asking { user, groups: groups.to_vec() }.has(&of_mode(mode), list, WRITE)
    }

    #[test]
    fn who_may_write_is_told_as_the_kernel_tells_it() {
        assert!(may(1, &[], 0o200, &[]) && !may(1, &[10], 0o077, &[]));
        assert!(may(2, &[5, 10], 0o020, &[]) && !may(2, &[10], 0o702, &[]));
        assert!(may(2, &[5], 0o002, &[]) && !may(2, &[5], 0o770, &[]));
        // With a list, of which the mode's middle is the mask.
        let list = |mask| {
            [
                (OWNER, 6, 0),
                (USER, 6, 2),
                (USER, 4, 3),
                (OWNERS_GROUP, 4, 0),
                (GROUP, 6, 20),
                (MASK, mask, 0),
                (OTHERS, 6, 0),
            ]
        };
        assert!(may(2, &[], 0o666, &list(6)) && !may(2, &[], 0o666, &list(4)));
        // One who is named gets no more from a group, nor from all others; nor does who is in a group that is named.
        assert!(!may(3, &[20], 0o666, &list(6)) && !may(4, &[10], 0o666, &list(6)));
        assert!(may(4, &[10, 20], 0o666, &list(6)) && may(4, &[30], 0o646, &list(4)));
    }

    #[test]
    fn a_name_is_taken_away_where_the_file_has_it_and_nowhere_else() {
        let root = std::env::temp_dir().join(format!("willow-names-{}", std::process::id()));
        let folder = |name: &str, mode: u32| {
            let path = root.join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let (hers, open, others) = (folder("hers", 0o755), folder("open", 0o777), folder("others", 0o777));
        std::fs::write(hers.join("table"), b"hers").unwrap();
        std::fs::write(others.join("table"), b"another").unwrap();
        std::os::unix::fs::symlink(hers.join("table"), open.join("link")).unwrap();
        std::os::unix::fs::symlink(&others, open.join("folder")).unwrap();
        let file = rustix::fs::stat(hers.join("table")).unwrap();
        let asking = Asking { user: 1, groups: vec![1] };
        let may = |path: std::path::PathBuf| may_unlink(&asking, &path, &file);
        assert!(!may(hers.join("table")), "its folder is not theirs");
        assert!(!may(open.join("table")) && !may(others.join("table")), "they call it so, and it is another or none");
        assert!(!may(open.join("link")) && !may(open.join("folder/table")), "a link is not its name");
        std::fs::hard_link(hers.join("table"), open.join("table")).unwrap();
        assert!(may(open.join("table")));
        folder("open", 0o1777);
        assert!(!may(open.join("table")), "others' names stay");
        std::fs::remove_dir_all(root).unwrap();
    }
}
