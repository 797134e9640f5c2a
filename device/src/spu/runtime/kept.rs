//! Compiled code of apps' modules, kept in a folder from one start to the next: a start reads what an earlier one has compiled.
//!
//! What always holds:
//! - what is read is what this user has written: the folder and all above it can be changed by him and root alone, and a file that is cut
//!   off or damaged counts as absent;
//! - code is found by the module's bytes and by all that decides what the compiler makes of them (its version, its settings, how it is metered,
//!   the processor), so that what is found is what compiling would give;
//! - it is never needed: where anything about it fails, the module is compiled. Modules are checked all the same;
//! - it is bounded: the oldest files make room for new ones.
//!
//! Called where modules are compiled.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use wasmtime::{Engine, Module};

/// What each file begins with; then the length of the code (u64) and its CRC32C (u32), little-endian, and the code.
const MAGIC: [u8; 8] = *b"WILLOWC1";
const HEAD_BYTES: usize = 20;
/// Most bytes of one file.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Most files, and most bytes of them all.
const FILES_MAX: usize = 256;
const BYTES_MAX: u64 = 512 << 20;

/// A folder that may be used: see [`KeptModules::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptModules {
    folder: PathBuf,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptModulesError {
    /// It cannot be made or looked at.
    #[error("{}: {error}", path.display())]
    Unreachable {
        /// What.
        path: PathBuf,
        /// The operating system's reason.
        error: std::io::Error,
    },
    /// Another user could put code there.
    #[error("{} can be changed by other users than the one that runs this: compiled code would not be safe there", path.display())]
    OpenToOthers {
        /// The folder, or one above it.
        path: PathBuf,
    },
}

impl KeptModules {
    /// Makes the folder where it is not there, and checks that nobody but this user and root can change it; where others can, nothing is made.
    pub fn open(folder: &Path) -> Result<Self, KeptModulesError> {
        let unreachable = |error| KeptModulesError::Unreachable { path: folder.to_owned(), error };
        let folder = std::path::absolute(folder).map_err(unreachable)?;
        if let Some(above) = folder.ancestors().skip(1).find(|path| path.exists()) {
            check_above(above)?;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(unreachable)?;
        let folder = folder.canonicalize().map_err(unreachable)?;
        let found = fs::metadata(&folder).map_err(unreachable)?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
            return Err(KeptModulesError::OpenToOthers { path: folder });
        }
        folder.parent().map_or(Ok(()), check_above)?;
        Ok(KeptModules { folder })
    }

    /// The module of these bytes: as it was kept, or compiled, and then kept.
    pub(super) fn module(&self, engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Module> {
        let path = self.folder.join(name(engine, bytes));
        if let Some(module) = load(&path, engine) {
            return Ok(module);
        }
        let module = Module::from_binary(engine, bytes)?;
        if let Err(error) = self.keep(&path, &module) {
            tracing::debug!("compiled code is not kept: {}: {error:#}", path.display());
        }
        Ok(module)
    }

    /// Writes it, whole or not at all.
    fn keep(&self, path: &Path, module: &Module) -> wasmtime::Result<()> {
        let code = module.serialize()?;
        let file_bytes = (HEAD_BYTES + code.len()) as u64;
        if file_bytes > FILE_BYTES_MAX {
            return Ok(());
        }
        self.make_room(file_bytes)?;
        // Of this thread; where it is there already, a process of that number was killed there.
        let part = format!("part-{}-{:?}", std::process::id(), std::thread::current().id());
        let part = path.with_extension(part);
        let written =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).and_then(|mut file| {
                file.write_all(&MAGIC)?;
                file.write_all(&(code.len() as u64).to_le_bytes())?;
                file.write_all(&crc32c::crc32c(&code).to_le_bytes())?;
                file.write_all(&code)?;
                fs::rename(&part, path)
            });
        if written.is_err() {
            // Nothing of a full disk's half file stays.
            let _ = fs::remove_file(&part);
        }
        Ok(written?)
    }

    /// Removes the oldest files until one more of that size is within the bounds.
    fn make_room(&self, file_bytes: u64) -> std::io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let path = entry.path();
            // What others have put there stays; another process may have removed what is ours.
            if let Ok(found) = entry.metadata()
                && found.is_file()
                && is_ours(&path)
            {
                files.push((found.modified()?, found.len(), path));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        let mut count = files.len();
        for (_, of_it, path) in files {
            if count < FILES_MAX && bytes + file_bytes <= BYTES_MAX {
                break;
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => (count, bytes) = (count - 1, bytes - of_it),
            }
        }
        Ok(())
    }
}

/// Checks that nobody but this user and root can change a folder and those above it.
fn check_above(folder: &Path) -> Result<(), KeptModulesError> {
    let unreachable = |path: &Path, error| KeptModulesError::Unreachable { path: path.to_owned(), error };
    let folder = folder.canonicalize().map_err(|error| unreachable(folder, error))?;
    let user = rustix::process::geteuid().as_raw();
    for path in folder.ancestors() {
        let found = fs::metadata(path).map_err(|error| unreachable(path, error))?;
        // In a sticky folder, such as /tmp, nobody replaces what is another's.
        let writable = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
        if writable || !(found.uid() == user || found.uid() == 0) {
            return Err(KeptModulesError::OpenToOthers { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Whether a file has a name that [`name`] gives, or is the part of one.
fn is_ours(path: &Path) -> bool {
    let is_digest = |stem: &str| stem.len() == 64 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_part = |rest: &std::ffi::OsStr| rest.to_str().is_some_and(|rest| rest.starts_with("part-"));
    path.file_stem().and_then(|stem| stem.to_str()).is_some_and(is_digest) && path.extension().is_none_or(is_part)
}

/// What a module's compiled code is kept as.
fn name(engine: &Engine, bytes: &[u8]) -> String {
    struct Digest(hmac_sha256::Hash);
    impl Hasher for Digest {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }
    let mut digest = Digest(hmac_sha256::Hash::new());
    engine.precompile_compatibility_hash().hash(&mut digest);
    digest.write(bytes);
    digest.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the file has, where it is whole and made for this engine.
fn load(path: &Path, engine: &Engine) -> Option<Module> {
    let file = fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let (head, code) = bytes.split_at_checked(HEAD_BYTES)?;
    let length = u64::from_le_bytes(head[8..16].try_into().ok()?);
    let checksum = u32::from_le_bytes(head[16..].try_into().ok()?);
    if head[..8] != MAGIC || length != code.len() as u64 || checksum != crc32c::crc32c(code) {
        tracing::debug!("{} is damaged: the module is compiled anew", path.display());
        return None;
    }
    // SAFETY: the bytes are what this user's processes wrote after `Module::serialize`: nobody else can change the folder (`open` has looked), and
    // what a crash has cut off fails its checksum. That engine and version are right wasmtime looks itself.
    let module = unsafe { Module::deserialize(engine, code) };
    module.inspect_err(|error| tracing::debug!("{} is of another runtime: {error:#}", path.display())).ok()
}
