//! Making and opening data folders: all the checks that stand between a folder of files and a running store.
//!
//! What always holds:
//! - A folder is used only under an exclusive lock, which the operating system drops with the process.
//! - Creation takes effect with one rename, its last step; before, the folder can be created again; after, never.
//! - Opening changes nothing in a folder that it refuses, but for the lock file, the removal of unplaced files,
//!   and intact superblock and metadata copies written again as they are.
//!
//! The host of a device calls it, through [`FileStore`].

use super::FileStore;
use super::bank::{BankFile, DATA_OFFSET_BYTES};
use super::copies::{CopiesError, TwoCopies};
use super::folder::{DiskFolder, Folder};
use super::keeper::{Keeper, METADATA, SUPERBLOCK, Superblock, is_unplaced, shape_is_valid};
use super::record::{HEADER_BYTES, Kind, Record, RecordError, Uuid};
use crate::media::BANKS_MAX;
use rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";
const BLOBS: &str = "blobs";

/// Shape of a new data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShape {
    /// Number of banks, 1 to 64.
    pub banks: usize,
    /// Bytes that a bank can hold at most: a multiple of 4096. The files are sparse and grow as they are written.
    pub bank_bytes: u64,
}

/// Why a data folder could not be made or opened. Each says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder is not there.
    #[error("{path}: there is no such folder; check the path, or create the data folder")]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is there but is not a data folder.
    #[error("{path}: this is not a Willow data folder (no superblock in it); check the path, or use an empty folder")]
    NotADataFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The creation of the folder never finished.
    #[error("{path}: the creation of this data folder was interrupted before it held any data; create it again")]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds something already.
    #[error("{path}: cannot create a data folder here, {found} is in it already; use an empty folder")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// Something that was found in it.
        found: String,
    },
    /// Another process uses the folder.
    #[error("{path}: the data folder is in use by process {holder}; stop that first")]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Process number that the lock file names.
        holder: String,
    },
    /// A shape that the format does not allow.
    #[error("{banks} banks of {bank_bytes} bytes: there can be 1 to 64 banks of a multiple of 4096 bytes up to 2^56")]
    Shape {
        /// Banks asked for.
        banks: usize,
        /// Size asked for.
        bank_bytes: u64,
    },
    /// Superblock or metadata cannot be used.
    #[error("{}/{error}", .path.display())]
    Copies {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        error: CopiesError,
    },
    /// A bank file is gone.
    #[error("{path}: the file of bank {bank} is missing; restore it from a copy")]
    BankMissing {
        /// The file.
        path: PathBuf,
        /// Bank number.
        bank: usize,
    },
    /// The head of a bank file cannot be used.
    #[error("{path}: {problem}")]
    BankRefused {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: RecordError,
    },
    /// A bank file of another data folder.
    #[error("{path}: this bank file belongs to another data folder; put the right file back")]
    BankForeign {
        /// The file.
        path: PathBuf,
    },
    /// A bank file of this folder under another bank's name.
    #[error("{path}: this file holds bank {found}, not bank {wanted}: files were swapped; rename them back")]
    BankSwapped {
        /// The file.
        path: PathBuf,
        /// Bank that it holds.
        found: u64,
        /// Bank that its name says.
        wanted: usize,
    },
    /// A bank file is shorter than it was.
    #[error("{path}: the file was truncated: it has {found} bytes and had at least {wanted}; restore it from a copy")]
    BankTruncated {
        /// The file.
        path: PathBuf,
        /// Length found.
        found: u64,
        /// Length recorded.
        wanted: u64,
    },
    /// The operating system refused something.
    #[error("{path}: cannot {action}: {error}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        error: io::Error,
    },
}

fn failed(path: &Path, action: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |error| OpenError::Io { path: path.to_owned(), action, error }
}

/// Name of a bank's file.
pub fn bank_name(bank: usize) -> String {
    format!("bank-{bank:03}")
}

/// Opens what is there, or makes a new data folder where there is none or an empty one.
pub fn open_or_create(path: &Path, shape: FileShape) -> Result<FileStore, OpenError> {
    match open(path) {
        Err(OpenError::NoFolder { .. } | OpenError::NotADataFolder { .. } | OpenError::Unfinished { .. }) => {
            create(path, shape)
        }
        other => other,
    }
}

/// Makes a data folder in a folder that is empty or not there yet, and opens it.
pub fn create(path: &Path, shape: FileShape) -> Result<FileStore, OpenError> {
    if !shape_is_valid(shape.banks, shape.bank_bytes) {
        return Err(OpenError::Shape { banks: shape.banks, bank_bytes: shape.bank_bytes });
    }
    make_folder(path)?;
    // Looked at before the lock file is made, so that a folder of somebody else is left untouched.
    refuse_contents(path)?;
    let lock = take_lock(path)?;
    refuse_contents(path)?;
    let mut uuid: Uuid = [0; 16];
    let source = Path::new("/dev/urandom");
    File::open(source).and_then(|mut file| file.read_exact(&mut uuid)).map_err(failed(source, "read"))?;
    // A random UUID (RFC 9562, version 4).
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;

    let mut folder = DiskFolder::open(path).map_err(failed(path, "open"))?;
    make_folder(&path.join(BLOBS))?;
    for rest in shape.banks..BANKS_MAX {
        folder.remove(&bank_name(rest)).map_err(failed(path, "remove the rests of an interrupted creation"))?;
    }
    for bank in 0..shape.banks {
        create_bank(&path.join(bank_name(bank)), uuid, bank, shape.bank_bytes)?;
    }
    let superblock = Superblock { bank_bytes: shape.bank_bytes, lengths: vec![DATA_OFFSET_BYTES; shape.banks] };
    Keeper::create_metadata(&mut folder, uuid)
        .and_then(|()| Keeper::create_superblock(&mut folder, uuid, &superblock))
        .map_err(failed(path, "create the data folder"))?;
    // The folder's own name has to last as well.
    if let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed(parent, "sync"))?;
    }
    open_locked(path, lock)
}

fn make_folder(path: &Path) -> Result<(), OpenError> {
    match DirBuilder::new().mode(0o700).recursive(false).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.map_err(failed(path, "create the folder")),
    }
}

/// Refuses a folder with anything in it but the rests of an interrupted creation.
fn refuse_contents(path: &Path) -> Result<(), OpenError> {
    let entries = std::fs::read_dir(path).map_err(failed(path, "list the folder"))?;
    for entry in entries {
        let entry = entry.map_err(failed(path, "list the folder"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let length = entry.metadata().map_err(failed(path, "list the folder"))?.len();
        let mut rests = TwoCopies::names(METADATA).to_vec();
        rests.extend([format!("{SUPERBLOCK}-b"), format!("{SUPERBLOCK}-a.new"), LOCK.to_owned(), BLOBS.to_owned()]);
        let is_bank = (0..BANKS_MAX).any(|bank| name == bank_name(bank));
        let is_rest = rests.contains(&name) || (is_bank && length <= DATA_OFFSET_BYTES);
        if !is_rest {
            return Err(OpenError::NotEmpty { path: path.to_owned(), found: name });
        }
    }
    Ok(())
}

fn create_bank(path: &Path, uuid: Uuid, bank: usize, bank_bytes: u64) -> Result<(), OpenError> {
    let mut head = Record { uuid, number: bank as u64, payload: bank_bytes.to_le_bytes().to_vec() }.encode(Kind::Bank);
    head.resize(DATA_OFFSET_BYTES as usize, 0);
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(&head).and_then(|()| file.sync_all()))
        .map_err(failed(path, "create the file"))
}

/// Opens a data folder.
pub fn open(path: &Path) -> Result<FileStore, OpenError> {
    let entries = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::fs::read_dir(path).map_err(failed(path, "list the folder"))?,
        Ok(_) => return Err(OpenError::NotADataFolder { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::NoFolder { path: path.to_owned() });
        }
        Err(error) => return Err(failed(path, "open")(error)),
    };
    let [first, _] = TwoCopies::names(SUPERBLOCK);
    if !path.join(first).exists() {
        let mut has_rests = false;
        for entry in entries {
            let entry = entry.map_err(failed(path, "list the folder"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let length = entry.metadata().map_err(failed(path, "list the folder"))?.len();
            if name.starts_with("bank-") && length > DATA_OFFSET_BYTES {
                // There is data: this folder was in use once, and its superblock is lost.
                let error = CopiesError::Missing { file: format!("{SUPERBLOCK}-a") };
                return Err(OpenError::Copies { path: path.to_owned(), error });
            }
            has_rests |= name == bank_name(0);
        }
        let path = path.to_owned();
        return Err(if has_rests { OpenError::Unfinished { path } } else { OpenError::NotADataFolder { path } });
    }
    let lock = take_lock(path)?;
    open_locked(path, lock)
}

/// Exclusive use of a data folder.
pub(super) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing alone would leave the lock with a child process that was forked a moment ago and has not closed its copy
        // of the file yet.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn take_lock(folder: &Path) -> Result<FolderLock, OpenError> {
    let path = folder.join(LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed(&path, "open"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // Only for the message: the lock itself is what counts.
            let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "?".to_owned() } else { holder.trim().to_owned() };
            return Err(OpenError::InUse { path: folder.to_owned(), holder });
        }
        Err(errno) => return Err(failed(&path, "lock")(errno.into())),
    }
    // On a full disk there is no process number to read; the lock holds all the same.
    let named = file.set_len(0).and_then(|()| file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
    if let Err(error) = named {
        tracing::warn!(path = %path.display(), %error, "cannot write the process number into the lock file");
    }
    Ok(FolderLock(file))
}

fn open_locked(path: &Path, lock: FolderLock) -> Result<FileStore, OpenError> {
    let copies = |error| OpenError::Copies { path: path.to_owned(), error };
    let blobs_path = path.join(BLOBS);
    let blob_names = list_blobs(&blobs_path)?;
    let folder = DiskFolder::open(path).map_err(failed(path, "open"))?;
    let blobs = DiskFolder::open(&blobs_path).map_err(failed(&blobs_path, "open"))?;
    let keeper = Keeper::open(Box::new(folder), Box::new(blobs)).map_err(copies)?;
    let superblock = keeper.superblock().clone();
    let mut banks = Vec::with_capacity(superblock.lengths.len());
    for (bank, recorded) in superblock.lengths.iter().enumerate() {
        banks.push(open_bank(&path.join(bank_name(bank)), keeper.uuid(), bank, superblock.bank_bytes, *recorded)?);
    }
    FileStore::new(path, lock, keeper, blob_names, banks)
}

/// Names of the blobs; removes what an interrupted replacement left.
fn list_blobs(blobs: &Path) -> Result<BTreeSet<String>, OpenError> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(blobs).map_err(failed(blobs, "list the folder"))? {
        let entry = entry.map_err(failed(blobs, "list the folder"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_unplaced(&name) {
            std::fs::remove_file(entry.path()).map_err(failed(&entry.path(), "remove"))?;
        } else {
            names.insert(name);
        }
    }
    Ok(names)
}

fn open_bank(path: &Path, uuid: Uuid, bank: usize, bank_bytes: u64, recorded: u64) -> Result<BankFile, OpenError> {
    let path_owned = path.to_owned();
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::BankMissing { path: path_owned, bank });
        }
        Err(error) => return Err(failed(path, "open")(error)),
    };
    let found = file.metadata().map_err(failed(path, "look at the file"))?.len();
    let mut head = vec![0; found.min(DATA_OFFSET_BYTES) as usize];
    file.read_exact_at(&mut head, 0).map_err(failed(path, "read"))?;
    let record = Record::decode(Kind::Bank, &head)
        .map_err(|problem| OpenError::BankRefused { path: path_owned.clone(), problem })?;
    if record.uuid != uuid {
        return Err(OpenError::BankForeign { path: path_owned });
    }
    if record.number != bank as u64 {
        return Err(OpenError::BankSwapped { path: path_owned, found: record.number, wanted: bank });
    }
    if record.payload != bank_bytes.to_le_bytes() || head[HEADER_BYTES + 8..].iter().any(|byte| *byte != 0) {
        let problem = RecordError::Damaged("bank size");
        return Err(OpenError::BankRefused { path: path_owned, problem });
    }
    let wanted = recorded.max(DATA_OFFSET_BYTES);
    if found < wanted {
        return Err(OpenError::BankTruncated { path: path_owned, found, wanted });
    }
    // Files grow by whole pages; what somebody else appended is rounded up so that this stays true.
    let whole = found.next_multiple_of(super::pages::PAGE_BYTES);
    if whole != found {
        file.set_len(whole).map_err(failed(path, "grow the file"))?;
    }
    Ok(BankFile::new(file, path_owned, bank_bytes, whole))
}
