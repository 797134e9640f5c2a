//! What of SQLite's interface is used (sqlite3.h and sqlite3ext.h, which promise to stay as they are): tables of functions and numbers.
//!
//! The usual binding (crate libsqlite3-sys) makes its tables when it is built, which costs more than these lines, and refuses any SQLite
//! that is older than its headers.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_void};

pub const OK: c_int = 0;
pub const ERROR: c_int = 1;
pub const BUSY: c_int = 5;
pub const READONLY: c_int = 8;
pub const IOERR: c_int = 10;
pub const NOTFOUND: c_int = 12;
pub const FULL: c_int = 13;
pub const CANTOPEN: c_int = 14;
pub const NOTICE: c_int = 27;
pub const IOERR_READ: c_int = 266;
pub const IOERR_SHORT_READ: c_int = 522;
pub const IOERR_WRITE: c_int = 778;
pub const IOERR_FSYNC: c_int = 1034;
pub const IOERR_TRUNCATE: c_int = 1546;
pub const IOERR_FSTAT: c_int = 1802;
pub const IOERR_UNLOCK: c_int = 2058;
pub const IOERR_DELETE: c_int = 2570;
pub const IOERR_LOCK: c_int = 3850;
pub const IOERR_COMMIT_ATOMIC: c_int = 7690;
pub const OK_LOAD_PERMANENTLY: c_int = 256;
pub const OPEN_READONLY: c_int = 1;
pub const OPEN_READWRITE: c_int = 2;
pub const OPEN_CREATE: c_int = 4;
pub const OPEN_EXCLUSIVE: c_int = 16;
pub const OPEN_MAIN_DB: c_int = 256;
pub const OPEN_MAIN_JOURNAL: c_int = 2048;
pub const LOCK_NONE: c_int = 0;
pub const LOCK_SHARED: c_int = 1;
pub const LOCK_RESERVED: c_int = 2;
pub const LOCK_PENDING: c_int = 3;
pub const LOCK_EXCLUSIVE: c_int = 4;
pub const SYNC_NORMAL: c_int = 2;
pub const SYNC_FULL: c_int = 3;
pub const ACCESS_EXISTS: c_int = 0;
pub const FCNTL_LOCKSTATE: c_int = 1;
pub const FCNTL_SIZE_HINT: c_int = 5;
pub const FCNTL_CHUNK_SIZE: c_int = 6;
pub const FCNTL_PRAGMA: c_int = 14;
pub const FCNTL_SYNC: c_int = 21;
pub const FCNTL_COMMIT_PHASETWO: c_int = 22;
pub const FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
pub const FCNTL_COMMIT_ATOMIC_WRITE: c_int = 32;
pub const FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;
pub const IOCAP_BATCH_ATOMIC: c_int = 16384;
pub const IOCAP_POWERSAFE_OVERWRITE: c_int = 4096;

/// A connection.
pub enum sqlite3 {}

/// The head of an open file (sqlite3_file).
#[repr(C)]
pub struct sqlite3_file {
    pub pMethods: *const sqlite3_io_methods,
}

type File = *mut sqlite3_file;

/// What an open file does.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sqlite3_io_methods {
    pub iVersion: c_int,
    pub xClose: Option<unsafe extern "C" fn(File) -> c_int>,
    pub xRead: Option<unsafe extern "C" fn(File, *mut c_void, c_int, i64) -> c_int>,
    pub xWrite: Option<unsafe extern "C" fn(File, *const c_void, c_int, i64) -> c_int>,
    pub xTruncate: Option<unsafe extern "C" fn(File, i64) -> c_int>,
    pub xSync: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xFileSize: Option<unsafe extern "C" fn(File, *mut i64) -> c_int>,
    pub xLock: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xUnlock: Option<unsafe extern "C" fn(File, c_int) -> c_int>,
    pub xCheckReservedLock: Option<unsafe extern "C" fn(File, *mut c_int) -> c_int>,
    pub xFileControl: Option<unsafe extern "C" fn(File, c_int, *mut c_void) -> c_int>,
    pub xSectorSize: Option<unsafe extern "C" fn(File) -> c_int>,
    pub xDeviceCharacteristics: Option<unsafe extern "C" fn(File) -> c_int>,
    /// Methods of later versions: of shared memory for a write-ahead log, and of mapping files.
    pub later: [usize; 6],
}

type Vfs = *mut sqlite3_vfs;

/// A file system.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sqlite3_vfs {
    pub iVersion: c_int,
    pub szOsFile: c_int,
    pub mxPathname: c_int,
    pub pNext: Vfs,
    pub zName: *const c_char,
    pub pAppData: *mut c_void,
    pub xOpen: Option<unsafe extern "C" fn(Vfs, *const c_char, File, c_int, *mut c_int) -> c_int>,
    pub xDelete: Option<unsafe extern "C" fn(Vfs, *const c_char, c_int) -> c_int>,
    pub xAccess: Option<unsafe extern "C" fn(Vfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub xFullPathname: Option<unsafe extern "C" fn(Vfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub xDlOpen: Option<unsafe extern "C" fn(Vfs, *const c_char) -> *mut c_void>,
    pub xDlError: Option<unsafe extern "C" fn(Vfs, c_int, *mut c_char)>,
    pub xDlSym: Option<unsafe extern "C" fn(Vfs, *mut c_void, *const c_char) -> Symbol>,
    pub xDlClose: Option<unsafe extern "C" fn(Vfs, *mut c_void)>,
    pub xRandomness: Option<unsafe extern "C" fn(Vfs, c_int, *mut c_char) -> c_int>,
    pub xSleep: Option<unsafe extern "C" fn(Vfs, c_int) -> c_int>,
    pub xCurrentTime: Option<unsafe extern "C" fn(Vfs, *mut f64) -> c_int>,
    pub xGetLastError: Option<unsafe extern "C" fn(Vfs, c_int, *mut c_char) -> c_int>,
    pub xCurrentTimeInt64: Option<unsafe extern "C" fn(Vfs, *mut i64) -> c_int>,
    /// Methods of version 3, of tests.
    pub later: [usize; 3],
}

/// What `xDlSym` gives.
pub type Symbol = Option<unsafe extern "C" fn(Vfs, *mut c_void, *const c_char)>;

/// The functions that SQLite hands to an extension; what lies between is not used here.
#[repr(C)]
pub struct sqlite3_api_routines {
    before_libversion_number: [usize; 67],
    pub libversion_number: Option<unsafe extern "C" fn() -> c_int>,
    malloc: usize,
    pub mprintf: Option<unsafe extern "C" fn(*const c_char, ...) -> *mut c_char>,
    before_vfs_find: [usize; 71],
    pub vfs_find: Option<unsafe extern "C" fn(*const c_char) -> Vfs>,
    pub vfs_register: Option<unsafe extern "C" fn(Vfs, c_int) -> c_int>,
    before_log: [usize; 24],
    pub log: Option<unsafe extern "C" fn(c_int, *const c_char, ...)>,
    before_database_file_object: [usize; 83],
    /// Since 3.31.
    pub database_file_object: Option<unsafe extern "C" fn(*const c_char) -> File>,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(sqlite3_api_routines, mprintf) == 69 * size_of::<usize>());
    assert!(offset_of!(sqlite3_api_routines, vfs_find) == 141 * size_of::<usize>());
    assert!(offset_of!(sqlite3_api_routines, log) == 167 * size_of::<usize>());
    assert!(offset_of!(sqlite3_api_routines, database_file_object) == 251 * size_of::<usize>());
};
