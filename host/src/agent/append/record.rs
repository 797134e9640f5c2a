//! What the agent notes of a file whose length the device has, so that the next agent gives the file its length where this one was killed: a small
//! file for each, in a folder beside the journal.
//!
//! What always holds: a record is durable before the file is made immutable and before the device is told of it; it goes when the device has
//! forgotten the file. It is written anew as a whole: a reader finds the old one or the new one.

use super::super::handle::Handle;
use super::super::journal::beside;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Error, Result, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Most bytes of a record.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// A file whose length the device has, or may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// The file's number in the device.
    pub number: u64,
    /// Number of its file system's device, when this was written.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Where it was.
    pub path: PathBuf,
    /// What finds it.
    pub handle: Handle,
    /// Its namespace, and where in it the file system begins.
    pub place: (u32, u64),
    /// Number of the spool.
    pub spool: u32,
    /// Where that lies in the namespace: start and bytes.
    pub extents: Vec<(u64, u64)>,
    /// Its length when it was delegated: the spool holds what was appended since.
    pub base: u64,
    /// Where in the file that belongs: at `base`, unless others have appended while no agent was there.
    pub at: u64,
    /// The file has its new length, and what was appended may not all be there.
    pub has_length: bool,
}

/// The folder of the records.
pub(super) struct Records(PathBuf);

impl Records {
    /// Beside the agent's journal.
    pub fn beside(journal: &Path) -> Records {
        Records(beside(journal, ".append"))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.0.join(format!("{number:016x}.json"))
    }

    /// Writes a record, durably.
    pub fn write(&self, record: &Record) -> Result<()> {
        if !self.0.exists() {
            // Where files lie and how long they are is root's alone.
            std::fs::DirBuilder::new().mode(0o700).create(&self.0)?;
            let parent = self.0.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent)?.sync_all()?;
        }
        let bytes = serde_json::to_vec(record).map_err(Error::other)?;
        let new = self.path(record.number).with_extension("new");
        let written = File::create(&new).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, self.path(record.number))) {
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
        File::open(&self.0)?.sync_all()
    }

    /// The device has forgotten the file. Not durable at once: the next agent finds the same.
    pub fn remove(&self, number: u64) -> Result<()> {
        std::fs::remove_file(self.path(number))
    }

    /// All that are there, with the reasons why others cannot be read.
    pub fn all(&self) -> Result<(Vec<Record>, Vec<String>)> {
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
            entries => entries?,
        };
        let (mut records, mut damaged) = (Vec::new(), Vec::new());
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_none_or(|it| it != "json") {
                continue;
            }
            match read(&path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(Error::other)) {
                Ok(record) => records.push(record),
                Err(error) => damaged.push(format!("{}: {error}", path.display())),
            }
        }
        Ok((records, damaged))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    File::open(path)?.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn records_are_found_again_and_damage_is_said() {
        let folder = std::env::temp_dir().join(format!("willow-append-records-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let records = Records::beside(&folder.join("journal"));
        assert_eq!(records.all().unwrap(), (vec![], vec![]));
        let Some(handle) = Handle::of_file(File::open(&folder).unwrap().as_fd()) else {
            // Some file systems have none.
            return std::fs::remove_dir_all(folder).unwrap();
        };
        let record = Record {
            number: 1 << 32 | 12,
            device: 7,
            inode: 12,
            path: "/a\nfile".into(),
            handle,
            place: (1, 4096),
            spool: 3,
            extents: vec![(8192, 4096)],
            base: 5,
            at: 5,
            has_length: false,
        };
        records.write(&record).unwrap();
        let changed = Record { has_length: true, ..record.clone() };
        records.write(&changed).unwrap();
        assert_eq!(records.all().unwrap(), (vec![changed], vec![]));
        std::fs::write(records.0.join("00.json"), b"{}").unwrap();
        let (found, damaged) = records.all().unwrap();
        assert_eq!((found.len(), damaged.len()), (1, 1));
        assert!(damaged[0].contains("00.json"), "{damaged:?}");
        records.remove(record.number).unwrap();
        assert!(records.all().unwrap().0.is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
