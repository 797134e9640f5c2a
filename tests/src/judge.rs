//! Whether what the device permits is the file system's word: every permission in the device's own tables against where the files lie and
//! what is free.
//!
//! Invariant: the device is asked for what is in its tables, never the agent, and the file system for all of its files.

use crate::space;
use crate::stage::Stage;
use direct_io_host::bank_ranges;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;
use willow_host::{ControlClient, ShmHre, ShmOptions};

/// Bytes that are compared as one: a block of the file systems.
const BLOCK_BYTES: u64 = 4096;

/// A block of a bank: SPU and number.
pub type Block = (u16, u64);

/// Who compares, by an endpoint of the kernel's.
pub struct Judge {
    control: ControlClient,
    runtime: Runtime,
    geometry: base_io_host::Geometry,
    files: PathBuf,
}

impl Judge {
    /// Of a stage's file system, which is on all of namespace 1.
    pub fn new(stage: &Stage) -> Judge {
        let device = ShmHre::open(Path::new(&stage.path("device")), ShmOptions::default()).expect("an endpoint");
        let control = ControlClient::new(Arc::new(device));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (spus, stripe_bytes) = runtime.block_on(control.stripes()).expect("stripes");
        let namespaces = runtime.block_on(control.namespaces()).expect("namespaces");
        let base = namespaces.iter().find(|it| it.nsid == 1).expect("namespace 1").base;
        let geometry = base_io_host::Geometry { spus, stripe_bytes, base };
        Judge { control, runtime, geometry, files: PathBuf::from(stage.path("files")) }
    }

    /// All that the device permits to a user's processes (or to anybody's), block by block, with the rights.
    pub fn permitted(&self, user: Option<u32>) -> BTreeMap<Block, u32> {
        let mut all = BTreeMap::new();
        for process in self.runtime.block_on(self.control.processes()).expect("processes") {
            if user.is_some_and(|user| user != process.user) {
                continue;
            }
            // One that has ended since has none.
            for it in self.runtime.block_on(self.control.permissions(process.process)).unwrap_or_default() {
                for block in it.start / BLOCK_BYTES..(it.start + it.bytes).div_ceil(BLOCK_BYTES) {
                    *all.entry((it.spu, block)).or_default() |= it.rights;
                }
            }
        }
        all
    }

    fn blocks(&self, physical: u64, bytes: u64) -> BTreeSet<Block> {
        let mut blocks = BTreeSet::new();
        bank_ranges(&self.geometry, physical, bytes, |spu, start, bytes| {
            blocks.extend((start / BLOCK_BYTES..(start + bytes).div_ceil(BLOCK_BYTES)).map(|block| (spu, block)));
        });
        blocks
    }

    /// The blocks of an open file.
    pub fn blocks_of(&self, file: &File) -> BTreeSet<Block> {
        let extents = space::of_file(file).expect("where it lies");
        extents.iter().flat_map(|extent| self.blocks(extent.physical, extent.bytes)).collect()
    }

    /// How many blocks of these extents the device permits to anybody.
    pub fn permitted_of(&self, extents: &[direct_io_host::FileExtent]) -> usize {
        let permitted = self.permitted(None);
        let blocks = extents.iter().flat_map(|extent| self.blocks(extent.namespace_offset, extent.bytes));
        blocks.filter(|block| permitted.contains_key(block)).count()
    }

    /// The blocks of every file of the file system, by inode.
    fn files(&self) -> BTreeMap<u64, BTreeSet<Block>> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![self.files.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry")) {
                let kind = entry.file_type().expect("a kind");
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    // One that has gone since has no blocks.
                    let Ok(file) = File::open(entry.path()) else { continue };
                    found.insert(file.metadata().expect("its inode").ino(), self.blocks_of(&file));
                }
            }
        }
        found
    }

    /// Checks that everything which the device permits, to anybody, is a block of this file, of no other that could be written by it, and
    /// not free; how many blocks that are. The error says which is not.
    pub fn all_is_of(&self, file: &Path) -> Result<usize, String> {
        let inode = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.ino();
        let permitted = self.permitted(None);
        let files = self.files();
        let own = files.get(&inode).ok_or_else(|| format!("{} is not found", file.display()))?;
        for (block, rights) in &permitted {
            let others: Vec<u64> = files
                .iter()
                .filter(|(other, blocks)| **other != inode && blocks.contains(block))
                .map(|(it, _)| *it)
                .collect();
            if !own.contains(block) {
                return Err(format!(
                    "the device permits {block:?}, which is not the file's; those of {others:?} have it"
                ));
            }
            if rights & 2 != 0 && !others.is_empty() {
                return Err(format!("the device permits to write {block:?}, which {others:?} share"));
            }
        }
        let on_it = File::open(&self.files).expect("the file system");
        for (physical, bytes) in space::free(&on_it).expect("what is free") {
            if let Some(block) = self.blocks(physical, bytes).iter().find(|block| permitted.contains_key(block)) {
                return Err(format!("the device permits {block:?}, which the file system says is free"));
            }
        }
        Ok(permitted.len())
    }
}
