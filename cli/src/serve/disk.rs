//! How much the disk under a media folder can hold: what hosts are told as the device's capacity, since media files are sparse and
//! their nominal length says nothing.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an answer is good: hosts that ask again and again do not make the disk work.
const KEPT: Duration = Duration::from_secs(1);
/// Bytes of the unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// The disk under a folder.
pub struct Disk {
    folder: PathBuf,
    known: Cell<Option<(Instant, Option<u64>)>>,
}

impl Disk {
    /// The one under this folder.
    pub fn of(folder: &Path) -> Self {
        Disk { folder: folder.to_owned(), known: Cell::new(None) }
    }

    /// Bytes that the folder's files can have at most: what they have, and what is free. `None` where the disk does not tell.
    pub fn room_bytes(&self) -> Option<u64> {
        if let Some((at, known)) = self.known.get()
            && at.elapsed() < KEPT
        {
            return known;
        }
        let room = self.ask().inspect_err(|error| {
            tracing::warn!("{}: the disk does not tell its free space: {error}", self.folder.display());
        });
        let room = room.ok();
        self.known.set(Some((Instant::now(), room)));
        room
    }

    fn ask(&self) -> std::io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.folder)?;
        let mut room = disk.f_bavail.saturating_mul(disk.f_frsize);
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                if metadata.is_dir() {
                    folders.push(entry.path());
                } else {
                    room = room.saturating_add(metadata.blocks().saturating_mul(BLOCK_BYTES));
                }
            }
        }
        Ok(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_is_free_and_what_the_files_have() {
        let folder = std::env::temp_dir().join(format!("willow-disk-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("blobs")).unwrap();
        std::fs::write(folder.join("blobs/one"), vec![7; 1 << 20]).unwrap();
        std::fs::File::create(folder.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let disk = rustix::fs::statvfs(&folder).unwrap();
        let whole = disk.f_blocks * disk.f_frsize;
        let room = Disk::of(&folder).room_bytes();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(room.is_some_and(|room| room >= 1 << 20 && room <= whole), "{room:?} of {whole}");
        assert_eq!(Disk::of(&folder).room_bytes(), None, "a folder that is gone tells nothing");
    }
}
