//! The few file operations that the protocols for small records need, as a trait, so that the same protocol code runs on
//! the disk ([`DiskFolder`]) and on a model of it that loses what was not synced ([`crate::media::fault::FaultFolder`]).
//!
//! What an implementation promises:
//! - After `sync` of a file, its contents and length at that moment survive a power cut (if its name does).
//! - After `sync_folder`, all `create`, `rename` and `remove` before it survive a power cut.
//! - `rename` is atomic: after a cut the target is the old or the new file as a whole, never absent if it existed.
//! - What was not synced survives a cut in any combination of 512-byte units, lengths and names.
//!
//! The keeper of the file store calls it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A folder of small files.
pub trait Folder {
    /// The file's contents, or `None` where there is no such file. An error where it is longer than `bytes_max`.
    fn read(&mut self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>>;
    /// Makes a new file with these contents, in place of one of this name.
    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Overwrites the start of a file that exists; the file gets longer where needed, never shorter.
    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file's contents and length durable.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Gives a file another name, in place of what had that name.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; no error where there is none.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes names durable.
    fn sync_folder(&mut self) -> io::Result<()>;
}

/// A folder on the disk.
pub struct DiskFolder {
    path: PathBuf,
    handle: File,
}

impl DiskFolder {
    /// Opens a folder that exists.
    pub fn open(path: &Path) -> io::Result<DiskFolder> {
        Ok(DiskFolder { path: path.to_owned(), handle: File::open(path)? })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Folder for DiskFolder {
    fn read(&mut self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.file(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("longer than {bytes_max} bytes")));
        }
        Ok(Some(bytes))
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.remove(name)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.file(name))?;
        file.write_all(bytes)
    }

    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.file(name))?;
        file.write_all_at(bytes, 0)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        File::open(self.file(name))?.sync_all()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.file(from), self.file(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.file(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.handle.sync_all()
    }
}
