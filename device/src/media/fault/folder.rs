//! A folder that loses at a power cut what was not synced: for the protocols that change small records.
//!
//! The model: a file is a durable image plus, since its last sync, versions of each unit of 512 bytes and of its length;
//! names are durable as of the last sync of the folder, plus a list of changes since. At a cut each unit and each length
//! is its durable or any later version, and any subset of the changes of names has happened, in order. A sync makes
//! durable what it was asked for and nothing else. All this is harsher than any journaling file system.
//!
//! An operation that changes something counts; with [`FaultFolder::cut_after`] later ones fail and do nothing.

use super::{CUT_ERROR, Choices, UNIT_BYTES};
use crate::media::file::folder::Folder;
use crate::media::store::INPUT_OUTPUT_ERROR;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const UNIT: usize = UNIT_BYTES as usize;

#[derive(Clone, Default)]
struct FaultFile {
    /// Contents as they are read now.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// For each unit that was written since it was last made durable, what it has been.
    versions: BTreeMap<usize, Vec<[u8; UNIT]>>,
    /// Those of them that a failed sync has left clean: later syncs pass over them until they are written again.
    stuck: BTreeSet<usize>,
    /// Lengths since the last sync.
    lengths: Vec<usize>,
}

impl FaultFile {
    fn write(&mut self, bytes: &[u8]) {
        if bytes.len() > self.bytes.len() {
            self.bytes.resize(bytes.len(), 0);
            self.lengths.push(bytes.len());
        }
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        for index in 0..bytes.len().div_ceil(UNIT) {
            let mut unit = [0; UNIT];
            let end = self.bytes.len().min((index + 1) * UNIT);
            unit[..end - index * UNIT].copy_from_slice(&self.bytes[index * UNIT..end]);
            self.versions.entry(index).or_default().push(unit);
            self.stuck.remove(&index);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.bytes.len(), 0);
        let stuck = &self.stuck;
        for index in self.versions.keys().filter(|index| !stuck.contains(index)) {
            let range = index * UNIT..self.bytes.len().min((index + 1) * UNIT);
            self.durable[range.clone()].copy_from_slice(&self.bytes[range]);
        }
        self.versions.retain(|index, _| stuck.contains(index));
        self.lengths.clear();
    }

    fn fail_sync(&mut self) {
        self.stuck.extend(self.versions.keys());
    }

    fn power_cut(&self, choices: &mut Choices) -> FaultFile {
        let length = match self.lengths.is_empty() {
            true => self.durable.len(),
            false => match choices.choose(self.lengths.len() + 1) {
                0 => self.durable.len(),
                later => self.lengths[later - 1],
            },
        };
        let mut bytes = self.durable.clone();
        bytes.resize(length, 0);
        for (index, versions) in &self.versions {
            let start = index * UNIT;
            if start >= length {
                continue;
            }
            let survivor = choices.choose(versions.len() + 1);
            if survivor > 0 {
                let end = length.min(start + UNIT);
                bytes[start..end].copy_from_slice(&versions[survivor - 1][..end - start]);
            }
        }
        FaultFile { durable: bytes.clone(), bytes, ..FaultFile::default() }
    }
}

#[derive(Clone)]
enum NameChange {
    Link { name: String, file: usize },
    Rename { from: String, to: String, file: usize },
    Remove { name: String },
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Link { name, file } => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename { from, to, file } => {
            // The source may be a later file of that name, where an earlier change did not survive.
            if names.get(from) == Some(file) {
                names.remove(from);
            }
            names.insert(to.clone(), *file);
        }
        NameChange::Remove { name } => {
            names.remove(name);
        }
    }
}

/// The folder.
#[derive(Clone, Default)]
pub struct FaultFolder {
    files: Vec<FaultFile>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    changes: Vec<NameChange>,
    operations: u64,
    cut_after: Option<u64>,
    failing_syncs: u64,
}

impl FaultFolder {
    /// An empty folder.
    pub fn new() -> FaultFolder {
        FaultFolder::default()
    }

    /// Operations that have changed something.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Has the power go after that many operations, counted from the making of this folder.
    pub fn cut_after(&mut self, operations: u64) {
        self.cut_after = Some(operations);
    }

    /// Has the next syncs of files fail as they do on Linux: the data stays readable, and no later sync makes it durable
    /// unless it is written again.
    pub fn fail_syncs(&mut self, syncs: u64) {
        self.failing_syncs = syncs;
    }

    /// The folder as a power cut at this moment leaves it.
    pub fn power_cut(&self, choices: &mut Choices) -> FaultFolder {
        let mut names = self.durable_names.clone();
        for change in &self.changes {
            if choices.choose(2) == 1 {
                apply(&mut names, change);
            }
        }
        // Only files that still have a name: the others are gone, whatever was in them.
        let mut after = FaultFolder::default();
        for (name, file) in names {
            after.files.push(self.files[file].power_cut(choices));
            after.names.insert(name, after.files.len() - 1);
        }
        after.durable_names.clone_from(&after.names);
        after
    }

    fn count(&mut self) -> io::Result<()> {
        if self.cut_after.is_some_and(|limit| self.operations >= limit) {
            return Err(io::Error::from_raw_os_error(CUT_ERROR));
        }
        self.operations += 1;
        Ok(())
    }

    fn file(&mut self, name: &str) -> io::Result<&mut FaultFile> {
        match self.names.get(name) {
            Some(file) => Ok(&mut self.files[*file]),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }
}

impl Folder for FaultFolder {
    fn read(&mut self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        match self.names.get(name) {
            Some(file) if self.files[*file].bytes.len() as u64 > bytes_max => Err(io::ErrorKind::InvalidData.into()),
            Some(file) => Ok(Some(self.files[*file].bytes.clone())),
            None => Ok(None),
        }
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.remove(name)?;
        self.count()?;
        let mut file = FaultFile::default();
        file.write(bytes);
        self.files.push(file);
        self.change(NameChange::Link { name: name.to_owned(), file: self.files.len() - 1 });
        Ok(())
    }

    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?;
        self.count()?;
        self.file(name)?.write(bytes);
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?;
        self.count()?;
        if self.failing_syncs > 0 {
            self.failing_syncs -= 1;
            self.file(name)?.fail_sync();
            return Err(io::Error::from_raw_os_error(INPUT_OUTPUT_ERROR));
        }
        self.file(name)?.sync();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let Some(file) = self.names.get(from).copied() else { return Err(io::ErrorKind::NotFound.into()) };
        self.count()?;
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if self.names.contains_key(name) {
            self.count()?;
            self.change(NameChange::Remove { name: name.to_owned() });
        }
        Ok(())
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.count()?;
        self.durable_names.clone_from(&self.names);
        self.changes.clear();
        Ok(())
    }
}
