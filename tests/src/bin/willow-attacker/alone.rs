//! What a way does to a file that is not direct: the control that shows that it is one.

use super::{BYTES, World};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};
use willow_tests::space;
use willow_tests::stage::WAIT_MAX;

/// All that a way could change of a file: as its descriptor shows it, and its path.
pub struct State {
    at_path: Option<u64>,
    links: u64,
    attributes: ([u64; 5], [u32; 7], Vec<u8>),
    /// Of the device, by block of the file.
    blocks: BTreeMap<u64, u64>,
    is_shared: bool,
    bytes: Vec<u8>,
}

impl State {
    pub fn of(world: &World, file: &File) -> Result<State> {
        file.sync_all()?;
        let stat = file.metadata()?;
        let extents = space::of_file(file)?;
        let mut blocks = BTreeMap::new();
        for extent in &extents {
            let each = (0..extent.bytes / 4096).map(|it| (extent.logical / 4096 + it, extent.physical / 4096 + it));
            blocks.extend(each);
        }
        let mut extended = [0u32; 7];
        // SAFETY: FS_IOC_FSGETXATTR fills 28 bytes. Where it fails they stay.
        unsafe { libc::ioctl(file.as_raw_fd(), 0x801c_581f, extended.as_mut_ptr()) };
        // Number of extents: said by the blocks.
        extended[2] = 0;
        let mut names = vec![0; 256];
        let listed = rustix::fs::flistxattr(file, &mut names[..]).unwrap_or(0);
        names.truncate(listed);
        let mut bytes = vec![0; stat.len() as usize];
        // By a descriptor of its own: this one may not read.
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.read_exact_at(&mut bytes, 0)?;
        Ok(State {
            at_path: std::fs::symlink_metadata(&world.path).ok().map(|stat| stat.ino()),
            links: stat.nlink(),
            attributes: (
                [stat.mode().into(), stat.len(), stat.uid().into(), stat.gid().into(), stat.mtime() as u64],
                extended,
                names,
            ),
            blocks,
            is_shared: extents.iter().any(|extent| extent.flags & space::SHARED != 0),
            bytes,
        })
    }

    /// What has become of it, most harmful first.
    pub fn outcome(&self, after: &State) -> &'static str {
        let is_same = |(at, place): (&u64, &u64)| after.blocks.get(at) == Some(place);
        if !self.blocks.iter().all(is_same) {
            "moves"
        } else if after.is_shared && !self.is_shared {
            "shares"
        } else if self.blocks != after.blocks {
            "allocates"
        } else if self.bytes != after.bytes && self.bytes.len() == after.bytes.len() {
            "writes"
        } else if self.at_path != after.at_path || self.links != after.links {
            "renames"
        } else if self.attributes != after.attributes {
            "changes"
        } else {
            "nothing"
        }
    }
}

/// A new file in the place of the old one, which nobody has directly; in as many extents as that gives.
pub fn fresh(world: &World, in_pieces: bool) -> Result<File> {
    let begun = Instant::now();
    for name in [".away", ".link", ".spare"] {
        let _ = std::fs::remove_file(world.beside(name));
    }
    loop {
        match std::fs::remove_file(&world.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                // It thaws when what was done with it has ended.
                if begun.elapsed() > WAIT_MAX {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => break,
        }
    }
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&world.path)?;
    if world.by_block_map {
        // The flag for extents is taken off while nothing is there.
        super::ioctl(file.as_raw_fd(), 0x4008_6602, &mut [0])?;
    }
    if in_pieces {
        // Backwards, each beside a block of another file.
        let spare = world.spare()?;
        for at in (0..BYTES as u64 / 4096).rev().map(|block| block * 4096) {
            file.write_all_at(&[5; 4096], at)?;
            file.sync_all()?;
            spare.write_all_at(&[9; 4096], BYTES as u64 + at)?;
            spare.sync_all()?;
        }
        return old(file);
    }
    file.write_all(&[5; BYTES])?;
    file.rewind()?;
    file.sync_all()?;
    old(file)
}

/// Makes a file seem modified long ago: what modifies it now is seen by that.
fn old(file: File) -> Result<File> {
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
    file.set_modified(long_ago)?;
    file.sync_all()?;
    Ok(file)
}

/// Prints what came of a way.
pub fn told(name: &str, done: &Result<()>, before: &State, after: &State) {
    let outcome = before.outcome(after);
    let said = match done {
        Err(error) if outcome == "nothing" => name_of(error),
        _ => outcome.to_owned(),
    };
    println!("alone\t{name}\t{said}\t-");
}

/// As errno(3) has it.
pub fn name_of(error: &Error) -> String {
    let known = [
        (1, "EPERM"),
        (2, "ENOENT"),
        (5, "EIO"),
        (9, "EBADF"),
        (11, "EAGAIN"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (16, "EBUSY"),
        (17, "EEXIST"),
        (18, "EXDEV"),
        (19, "ENODEV"),
        (22, "EINVAL"),
        (25, "ENOTTY"),
        (26, "ETXTBSY"),
        (27, "EFBIG"),
        (28, "ENOSPC"),
        (30, "EROFS"),
        (38, "ENOSYS"),
        (95, "EOPNOTSUPP"),
    ];
    let found = known.iter().find(|(number, _)| error.raw_os_error() == Some(*number));
    found.map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}
