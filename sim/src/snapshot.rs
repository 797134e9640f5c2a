//! Snapshots: a device with flash as it was left, in one file, to measure from the same state again and again, or to serve it
//! (docs/media-format.md, section 10).
//!
//! What always holds:
//! - A device that starts from a snapshot has what the one that was saved had: its namespaces, its apps, all that was written, and the wear of each block. It
//!   starts as after a regular end: nothing was under way.
//! - What a file says is believed only behind a good checksum and within its bounds; a damaged, truncated, foreign or newer file, and one of other flash than the
//!   preset's, is refused with what is wrong.
//!
//! Who may call it: `willow snapshot`, `willow simulate`, and programs that embed the simulator.

use crate::flash::{Contents, FlashChoice};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use willow_device::media::file::{FileShape, FileStore};
use willow_device::media::flash::Geometry;
use willow_device::media::flash::snapshot::{FrameReader, FrameWriter, SnapshotError};
use willow_device::media::{BLOB_BYTES_MAX, BLOBS_MAX, METADATA_BYTES_MAX};
use willow_device::region::REGION_ALIGNMENT_BYTES;
use willow_device::{Progress, Store, StoreError, Ticket};

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"WILLOWsn";
/// The format that this code writes, and the newest that it reads.
const VERSION: u32 = 1;
/// Most bytes of the head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotHead {
    /// The preset's name.
    pub preset: String,
    /// The FTL.
    pub ftl: String,
    /// Seed of the device: what goes wrong in its flash follows from it.
    pub seed: u64,
    /// Bytes of the block namespace.
    pub namespace_bytes: u64,
    /// Its block size.
    pub block_bytes: u32,
    /// Bytes, from the namespace's beginning, that were written.
    pub range_bytes: u64,
    /// Whether payload is in it; else it is zeroes.
    pub contents: bool,
    /// Banks.
    pub banks: u16,
    /// Bytes that the FTL offers, a bank.
    pub bank_bytes: u64,
    /// Bytes that the FTL maps as one.
    pub unit_bytes: u64,
    /// How the flash of a bank is arranged.
    pub geometry: Geometry,
}

/// Why there is no snapshot, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFileError {
    /// The file.
    #[error("snapshot {}: {what}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The folder that it is restored to.
    #[error("{}: {what}", path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is not of this preset.
    #[error("snapshot {}: it is of preset {}, whose {what} than that of preset {preset}", path.display(), head.preset)]
    OtherFlash {
        /// Its path.
        path: PathBuf,
        /// What it is of.
        head: Box<SnapshotHead>,
        /// What is another.
        what: &'static str,
        /// The preset that was asked for.
        preset: String,
    },
}

fn wrong(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> SnapshotFileError + '_ {
    move |what| SnapshotFileError::File { path: path.to_owned(), what: what.to_string() }
}

/// The file that a snapshot is written to before it takes the place of the old one.
fn partial(path: &Path) -> Result<PathBuf, SnapshotFileError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err(wrong(path)(&"it has no name"));
    }
    // Of this process: another that saves there has a file of its own.
    name.push(format!(".{}.partial", std::process::id()));
    Ok(path.with_file_name(name))
}

/// Whether a snapshot can be written there, before the work that goes into it.
pub fn check_place(path: &Path) -> Result<(), SnapshotFileError> {
    let partial = partial(path)?;
    let tried = File::create_new(&partial).and_then(|_| std::fs::remove_file(&partial));
    tried.map_err(|error| wrong(path)(&error))
}

/// Writes a snapshot of a device that is at rest; `path` has the old one or the new one whatever happens meanwhile.
pub(crate) fn write(path: &Path, head: &SnapshotHead, store: &mut dyn Store) -> Result<(), SnapshotFileError> {
    let (wrong, partial) = (wrong(path), partial(path)?);
    let file = File::create_new(&partial).map_err(|error| wrong(&error))?;
    let written = write_to(file, head, store).and_then(|()| Ok(std::fs::rename(&partial, path)?));
    if let Err(error) = &written {
        let _ = std::fs::remove_file(&partial);
        return Err(wrong(error));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| wrong(&error))
}

fn put(bytes: &[u8], into: &mut dyn Write) -> io::Result<()> {
    into.write_all(&(bytes.len() as u32).to_le_bytes())?;
    into.write_all(bytes)
}

fn write_to(file: File, head: &SnapshotHead, store: &mut dyn Store) -> Result<(), SnapshotError> {
    let broken = |error: StoreError| SnapshotError::Unfit(format!("the device's metadata: {error}"));
    let mut file = BufWriter::new(file);
    file.write_all(MAGIC)?;
    file.write_all(&VERSION.to_le_bytes())?;
    let mut frames = FrameWriter::new(file);
    put(&serde_json::to_vec(head).map_err(io::Error::from)?, &mut frames)?;
    put(&store.load_metadata().map_err(broken)?.unwrap_or_default(), &mut frames)?;
    let names = store.list_blobs().map_err(broken)?;
    frames.write_all(&(names.len() as u32).to_le_bytes())?;
    for name in names {
        put(name.as_bytes(), &mut frames)?;
        put(&store.load_blob(&name).map_err(broken)?.unwrap_or_default(), &mut frames)?;
    }
    for bank in 0..usize::from(head.banks) {
        let port = store.delegating().and_then(|store| store.bank_port(bank));
        port.ok_or_else(|| SnapshotError::Unfit("it has no flash".into()))?.flash.save(&mut frames)?;
    }
    let file = frames.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(file.sync_all()?)
}

/// A snapshot that is being read: its head has been, its flash has not.
pub struct Snapshot {
    path: PathBuf,
    /// What it is of.
    pub head: SnapshotHead,
    metadata: Vec<u8>,
    blobs: Vec<(String, Vec<u8>)>,
    frames: FrameReader<BufReader<File>>,
}

fn get(from: &mut dyn Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        let what = format!("it is damaged: {length} bytes where at most {bytes_max} can be");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut bytes = Vec::new();
    // As much memory as there are bytes, whatever the length says.
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it is damaged: it ends too early"));
    }
    Ok(bytes)
}

impl Snapshot {
    /// Opens a file, and reads what it is of.
    pub fn open(path: &Path) -> Result<Snapshot, SnapshotFileError> {
        let wrong = wrong(path);
        let io = |error: io::Error| wrong(&error);
        let mut file = BufReader::new(File::open(path).map_err(io)?);
        let (mut magic, mut version) = ([0; 8], [0; 4]);
        if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            return Err(wrong(&"it is no snapshot (it does not begin with WILLOWsn)"));
        }
        file.read_exact(&mut version).map_err(|_| wrong(&"it is truncated"))?;
        let version = u32::from_le_bytes(version);
        if version > VERSION {
            let what = format!(
                "its format has version {version}, this program knows versions up to {VERSION}: use a newer one"
            );
            return Err(wrong(&what));
        }
        let mut frames = FrameReader::new(file);
        let head = get(&mut frames, HEAD_BYTES_MAX).map_err(io)?;
        let head: SnapshotHead =
            serde_json::from_slice(&head).map_err(|error| wrong(&format!("it is damaged: its head: {error}")))?;
        head.geometry.validate().map_err(|absurd| wrong(&format!("it is damaged: {absurd}")))?;
        let metadata = get(&mut frames, METADATA_BYTES_MAX).map_err(io)?;
        let mut count = [0; 4];
        frames.read_exact(&mut count).map_err(io)?;
        let count = u32::from_le_bytes(count) as usize;
        if count > BLOBS_MAX {
            return Err(wrong(&format!("it is damaged: {count} modules")));
        }
        let mut blobs = Vec::new();
        for _ in 0..count {
            let name = get(&mut frames, 256).map_err(io)?;
            let name = String::from_utf8(name).map_err(|_| wrong(&"it is damaged: a module's name"))?;
            blobs.push((name, get(&mut frames, BLOB_BYTES_MAX).map_err(io)?));
        }
        Ok(Snapshot { path: path.to_owned(), head, metadata, blobs, frames })
    }

    /// Refuses flash of another preset; times, failures and collection may be others.
    pub fn check(&self, flash: Option<&FlashChoice>, preset: &str) -> Result<(), SnapshotFileError> {
        let head = &self.head;
        let what = match flash {
            None => "flash is another",
            Some(flash) if flash.ftl != head.ftl => "FTL is another",
            Some(flash) if flash.parameters.geometry != head.geometry || flash.banks != head.banks => {
                "flash is arranged otherwise"
            }
            Some(flash) if (flash.bank_bytes, flash.unit_bytes) != (head.bank_bytes, head.unit_bytes) => {
                "FTL offers other banks"
            }
            Some(_) => return Ok(()),
        };
        let (path, preset) = (self.path.clone(), preset.to_owned());
        Err(SnapshotFileError::OtherFlash { path, head: Box::new(head.clone()), what, preset })
    }

    /// The store that the snapshot is of, over an empty one for metadata.
    pub(crate) fn store(
        self,
        flash: &FlashChoice,
        metadata: Box<dyn Store>,
        contents: Contents<'_>,
    ) -> Result<Box<dyn Store>, SnapshotFileError> {
        let Snapshot { path, head, metadata: saved, blobs, mut frames } = self;
        let wrong = wrong(&path);
        let mut arrays = Vec::new();
        for bank in 0..u64::from(flash.banks) {
            let mut array = flash.new_array(contents, bank, head.seed).map_err(|what| wrong(&what))?;
            array.load(&mut frames).map_err(|error| wrong(&error))?;
            arrays.push(array);
        }
        frames.finish().map_err(|error| wrong(&error))?;
        let mut store = flash.over(metadata, arrays, matches!(contents, Contents::Files(..)));
        // Metadata come last: a folder that was interrupted before is none.
        for (ticket, (name, bytes)) in (1..).zip(blobs) {
            let begun = store.save_blob(ticket, &name, bytes);
            wait(&mut store, ticket, begun).map_err(|error| wrong(&error))?;
        }
        let begun = store.save_metadata(0, saved);
        wait(&mut store, 0, begun).map_err(|error| wrong(&error))?;
        Ok(Box::new(store))
    }

    /// Makes a data folder of it, for `willow serve --media`. The folder is empty or not there yet; it is there as a whole or not at all.
    pub fn restore(self, flash: &FlashChoice, folder: &Path) -> Result<(), SnapshotFileError> {
        let refuse = |what: &dyn std::fmt::Display| {
            let (path, what) = (folder.to_owned(), what.to_string());
            SnapshotFileError::Folder { path, what }
        };
        match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
            Ok(true) => {
                return Err(refuse(&"there is something in it: choose a folder that is empty or not there yet"));
            }
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refuse(&error)),
        }
        let mut name = folder.file_name().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(refuse(&"it has no name"));
        }
        name.push(".partial");
        let partial = folder.with_file_name(name);
        std::fs::create_dir(&partial)
            .map_err(|error| refuse(&format!("{}: {error}: is another restore under way?", partial.display())))?;
        let restored = self.restore_to(flash, &partial).and_then(|()| {
            std::fs::rename(&partial, folder).map_err(|error| refuse(&error))?;
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(|error| refuse(&error))
        });
        if restored.is_err() {
            let _ = std::fs::remove_dir_all(&partial);
        }
        restored
    }

    fn restore_to(self, flash: &FlashChoice, folder: &Path) -> Result<(), SnapshotFileError> {
        let refuse = |what: &dyn std::fmt::Display| {
            let (path, what) = (folder.to_owned(), what.to_string());
            SnapshotFileError::Folder { path, what }
        };
        let shape = FileShape { banks: usize::from(flash.banks), bank_bytes: REGION_ALIGNMENT_BYTES };
        let metadata = FileStore::create(folder, shape).map_err(|error| refuse(&error))?;
        let uuid = metadata.uuid();
        let mut store = self.store(flash, Box::new(metadata), Contents::Files(folder, uuid))?;
        if let Some(store) = store.delegating() {
            store.close();
        }
        Ok(())
    }
}

/// Waits until a save has ended.
fn wait(store: &mut dyn Store, ticket: Ticket, begun: Result<Progress, StoreError>) -> Result<(), StoreError> {
    if begun? == Progress::Done {
        return Ok(());
    }
    loop {
        match store.completed() {
            Some(ended) if ended.ticket == ticket => return ended.result.map(|_| ()),
            Some(_) => {}
            // The disk's time; each save ends.
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
