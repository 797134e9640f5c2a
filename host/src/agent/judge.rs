//! What descriptors allow, and whether the file behind them can be opened directly at all: from the host's kernel.

use super::freeze::{self, EXT4, XFS};
use super::serving::{READ, WRITE};
use rustix::fs::{FileType, OFlags};
use std::os::fd::{AsFd, OwnedFd};

/// Why a file without a name is refused: were the agent killed, its blocks would be free at once, and the device might not know yet.
pub(super) const NAMELESS: &str =
    "it has no name (it was deleted, or made with O_TMPFILE): nothing would keep its blocks if the agent were killed";

/// Why a file of somebody else is refused.
pub(super) const ANOTHERS: &str =
    "it belongs to another user, for whom it would be frozen meanwhile: only its owner may open it directly";

/// A file that can be opened directly, as far as its descriptors tell.
pub(super) struct Judged {
    /// Rights that the descriptors have together.
    pub rights: u32,
    /// Device and inode.
    pub key: (u64, u64),
}

/// Of the descriptors of one file, which a process of this user has sent; `allow_xfs`: whether files on xfs may be opened, `forgets`: a
/// planted fault; `known`: the rights that it proved to have before. The error is a sentence about the file.
pub(super) fn judge(
    descriptors: &[OwnedFd],
    user: u32,
    (allow_xfs, forgets): (bool, bool),
    known: impl FnOnce((u64, u64)) -> u32,
) -> Result<Judged, String> {
    let Some(first) = descriptors.first() else {
        return Err("a descriptor comes with the request to open a file".to_owned());
    };
    let stat = rustix::fs::fstat(first).map_err(|error| error.to_string())?;
    let key = (stat.st_dev, stat.st_ino);
    let mut rights = 0;
    for descriptor in descriptors {
        let flags = rustix::fs::fcntl_getfl(descriptor).map_err(|error| error.to_string())?;
        rights |= match flags & OFlags::RWMODE {
            _ if flags.contains(OFlags::PATH) => return Err("its descriptor is a mere path (O_PATH)".to_owned()),
            OFlags::RDONLY => READ,
            _ if flags.contains(OFlags::APPEND) => {
                return Err("it is open for appending, and direct writes do not append".to_owned());
            }
            OFlags::WRONLY => WRITE,
            OFlags::RDWR => READ | WRITE,
            _ => return Err("its descriptor has no access mode".to_owned()),
        };
        let other = rustix::fs::fstat(descriptor).map_err(|error| error.to_string())?;
        if (other.st_dev, other.st_ino) != key {
            return Err("its descriptors are those of several files".to_owned());
        }
    }
    let system = check(first, &stat, user)?;
    if system == XFS && !allow_xfs && !forgets {
        let why = "it is on xfs, where a user who can mount overlayfs could free blocks that the device still permits: where users \
                   cannot, start the agent with --allow-xfs";
        return Err(why.to_owned());
    }
    rights |= known(key);
    if rights & WRITE != 0 && !forgets && freeze::can_share_blocks(first.as_fd(), system) {
        let why = "its file system can share its blocks with clones (xfs: mkfs -m reflink=0), which writes would reach";
        return Err(why.to_owned());
    }
    Ok(Judged { rights, key })
}

/// Whether a file may be a process' of this user to be reached past the file system; the type of its file system. The error is a sentence about
/// the file.
pub(super) fn check(file: &OwnedFd, stat: &rustix::fs::Stat, user: u32) -> Result<u64, String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is no regular file".to_owned());
    }
    if user != 0 && stat.st_uid != user {
        return Err(ANOTHERS.to_owned());
    }
    if stat.st_nlink == 0 {
        return Err(NAMELESS.to_owned());
    }
    let system = rustix::fs::fstatfs(file).map_err(|error| error.to_string())?.f_type as u64;
    if !matches!(system, EXT4 | XFS) {
        return Err(format!(
            "its file system (type {system:#x}) is neither ext4 nor xfs: for others nobody has shown that a block stays the file's"
        ));
    }
    Ok(system)
}

/// What there is to be said against a file system by how it is mounted; by its device.
pub(super) fn against_mount(device: u64, mounts: &str) -> Option<&'static str> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // proc(5): id, parent, device, ..., " - ", type, source, options of the file system.
    let of_it = mounts.lines().filter(|line| line.split(' ').nth(2) == Some(&number));
    let options = of_it.filter_map(|line| line.split_once(" - ")?.1.split(' ').nth(2));
    let has = |name: &str| options.clone().any(|all| all.split(',').any(|option| option == name));
    if has("data=journal") {
        return Some("its file system writes data by way of its journal (data=journal)");
    }
    (has("dax") || has("dax=always")).then_some("it is in directly accessed memory (DAX)")
}

/// Where a file system is mounted, by its device.
pub(super) fn places(device: u64, mounts: &str) -> Vec<String> {
    let number = number(device);
    mounts.lines().filter(|line| line.split(' ').nth(2) == Some(&number)).filter_map(place).collect()
}

/// Where file systems that files can be direct on are mounted with other numbers than this one: number and place of each mount.
pub(super) fn other_places(device: u64, mounts: &str) -> Vec<(String, String)> {
    let own = number(device);
    let of_kind = |line: &&str| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        matches!(kind, Some("ext4" | "xfs"))
    };
    let numbered = |line: &str| Some((line.split(' ').nth(2)?.to_owned(), place(line)?));
    mounts.lines().filter(of_kind).filter_map(numbered).filter(|(number, _)| *number != own).collect()
}

/// As the kernel's list of mounts has it.
fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// Where a line of the kernel's list of mounts says that one is. Blanks and the like are written as octal numbers there.
fn place(line: &str) -> Option<String> {
    let mut parts = line.split(' ').nth(4)?.split('\\');
    let first = parts.next().unwrap_or_default().to_owned();
    let place = parts.fold(first, |all, part| match part.get(..3).and_then(|it| u8::from_str_radix(it, 8).ok()) {
        Some(byte) => all + &char::from(byte).to_string() + &part[3..],
        None => all + "\\" + part,
    });
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_judged_by_the_options_of_its_own_file_system() {
        let mounts = "36 35 7:1 / /mnt/a rw,noatime shared:1 - ext4 /dev/loop1 rw,data=journal\n\
                      37 35 7:2 / /mnt/data=journal rw - ext4 /dev/loop2 rw,errors=remount-ro\n\
                      38 35 7:3 / /mnt/c rw - xfs /dev/loop3 rw,dax=always,noquota\n";
        let against = |minor| against_mount(rustix::fs::makedev(7, minor), mounts).is_some();
        assert_eq!([1, 2, 3, 4].map(against), [true, false, true, false]);
        let mounts = "36 35 7:1 / /mnt/a\\040b rw - ext4 /dev/loop1 rw\n37 35 7:1 / /c rw - ext4 /dev/loop1 rw\n";
        assert_eq!(places(rustix::fs::makedev(7, 1), mounts), ["/mnt/a b", "/c"]);
        let mounts =
            format!("{mounts}38 35 0:9 / /f rw - fuse.x x rw\n39 35 7:3 / /d rw shared:1 - xfs /dev/loop3 rw\n");
        let others = other_places(rustix::fs::makedev(7, 1), &mounts);
        assert_eq!(others, [("7:3".to_owned(), "/d".to_owned())]);
    }
}
