//! The file system that SQLite had before this one, and files of it.
//!
//! What always holds: a file that was opened is closed once, when its value is dropped.

use crate::sqlite;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

static UNDER: AtomicPtr<sqlite::sqlite3_vfs> = AtomicPtr::new(ptr::null_mut());

/// From now on it is this one.
pub fn set(vfs: *mut sqlite::sqlite3_vfs) {
    UNDER.store(vfs, Ordering::Release);
}

/// The file system; there is one while ours is registered.
pub fn vfs() -> *mut sqlite::sqlite3_vfs {
    UNDER.load(Ordering::Acquire)
}

/// An error code, or none.
pub type Done<T = ()> = Result<T, c_int>;

/// What a code of SQLite says.
pub fn done(code: c_int) -> Done {
    if code == sqlite::OK { Ok(()) } else { Err(code) }
}

/// Deletes a file, durably.
pub fn delete(path: &CStr, sync: bool) -> Done {
    let vfs = vfs();
    // SAFETY: a registered file system, and a path.
    unsafe { (*vfs).xDelete.map_or(Err(sqlite::IOERR_DELETE), |delete| done(delete(vfs, path.as_ptr(), sync.into()))) }
}

/// A journal on the disk.
pub struct Under {
    /// SQLite's structure for it, with what the file system below keeps behind.
    memory: Box<[u64]>,
    /// What it has of the path is this one's.
    _path: Vec<u8>,
}

// SAFETY: SQLite uses a file from one thread at a time, whichever that is; so does this: it takes `&mut self`.
unsafe impl Send for Under {}

macro_rules! method {
    ($self:ident.$name:ident($($argument:expr),*)) => {{
        let file = $self.file();
        // SAFETY: a file that is open, with its table of methods.
        let method = unsafe { (*file).pMethods.as_ref().and_then(|methods| methods.$name) };
        // SAFETY: as the method asks for.
        method.map_or(Err(sqlite::IOERR), |method| done(unsafe { method(file, $($argument),*) }))
    }};
}

impl Under {
    /// Opens the journal of a base, which is made where there is none.
    pub fn journal(path: &CStr) -> Done<Under> {
        let vfs = vfs();
        // SAFETY: a registered file system.
        let (bytes, open) = unsafe { ((*vfs).szOsFile as usize, (*vfs).xOpen) };
        // SQLite's names end with two zeroes.
        let path = [path.to_bytes(), &[0; 4]].concat();
        let mut under = Under { memory: vec![0; bytes.div_ceil(8)].into(), _path: path };
        let flags = sqlite::OPEN_READWRITE | sqlite::OPEN_CREATE | sqlite::OPEN_MAIN_JOURNAL;
        let (name, file, mut given) = (under._path.as_ptr(), under.file(), 0);
        let open = open.ok_or(sqlite::CANTOPEN)?;
        // SAFETY: memory of the size that it asks for, and a path that lives as long.
        done(unsafe { open(vfs, name.cast(), file, flags, &raw mut given) })?;
        Ok(under)
    }

    fn file(&mut self) -> *mut sqlite::sqlite3_file {
        self.memory.as_mut_ptr().cast()
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Done {
        // SQLite counts in 31 bits.
        for (number, part) in data.chunks(1 << 20).enumerate() {
            let offset = offset + ((number as u64) << 20);
            method!(self.xWrite(part.as_ptr().cast(), part.len() as c_int, offset as i64))?;
        }
        Ok(())
    }

    /// Reads; a short read fills the rest with zeroes, and is an error.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Done {
        method!(self.xRead(into.as_mut_ptr().cast(), into.len() as c_int, offset as i64))
    }

    /// Cuts it.
    pub fn truncate(&mut self, bytes: u64) -> Done {
        method!(self.xTruncate(bytes as i64))
    }

    /// Makes it durable.
    pub fn sync(&mut self, flags: c_int) -> Done {
        method!(self.xSync(flags))
    }

    /// Its length.
    pub fn bytes(&mut self) -> Done<u64> {
        let mut bytes = 0;
        method!(self.xFileSize(&raw mut bytes))?;
        Ok(bytes as u64)
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        // What was to be durable was synced.
        let file = self.file();
        // SAFETY: opened by the file system below, which sets the methods where a file is to be closed.
        if unsafe { !(*file).pMethods.is_null() } {
            let _: Done = method!(self.xClose());
        }
    }
}
