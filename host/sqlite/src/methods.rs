//! The tables of open files: bases and their journals.
//!
//! What always holds: a file of either table is [`Handle`], whose base lives until its `xClose`.

use crate::base::{Base, Shared, lock};
use crate::sqlite;
use crate::under::Done;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

/// An open file, in memory of SQLite's.
#[repr(C)]
pub struct Handle {
    methods: *const sqlite::sqlite3_io_methods,
    base: *const Mutex<Base>,
}

type File = *mut sqlite::sqlite3_file;

/// Makes SQLite's memory a file of this base.
///
/// # Safety
/// `file` is memory for a [`Handle`] that nothing is open in.
pub unsafe fn put(file: File, methods: &'static sqlite::sqlite3_io_methods, base: Shared) {
    // SAFETY: as promised.
    unsafe { file.cast::<Handle>().write(Handle { methods, base: Arc::into_raw(base) }) }
}

/// The base behind a file, where it is one of ours.
///
/// # Safety
/// `file` is null or a file that SQLite has open.
pub unsafe fn base_of(file: File) -> Option<Shared> {
    // SAFETY: as promised; whose methods these are is looked at first.
    unsafe {
        let methods = file.as_ref()?.pMethods;
        if !ptr::eq(methods, &raw const BASE) {
            return None;
        }
        let base = (*file.cast::<Handle>()).base;
        Arc::increment_strong_count(base);
        Some(Arc::from_raw(base))
    }
}

/// The base of a file of ours.
///
/// # Safety
/// SQLite calls a method of it.
unsafe fn base<'a>(file: File) -> MutexGuard<'a, Base> {
    // SAFETY: between `put` and `close`.
    lock(unsafe { &*(*file.cast::<Handle>()).base })
}

fn told(done: Done) -> c_int {
    done.err().unwrap_or(sqlite::OK)
}

unsafe extern "C" fn close(file: File) -> c_int {
    let handle = file.cast::<Handle>();
    // SAFETY: `put` has made it, and SQLite closes it once.
    unsafe {
        drop(Arc::from_raw((*handle).base));
        (*handle).methods = ptr::null();
    }
    sqlite::OK
}

macro_rules! slice {
    ($from:ident, $count:ident) => {{
        // SAFETY: SQLite's buffer of that length.
        unsafe { std::slice::from_raw_parts($from.cast::<u8>(), $count.max(0) as usize) }
    }};
}

macro_rules! slice_mut {
    ($into:ident, $count:ident) => {{
        // SAFETY: SQLite's buffer of that length.
        unsafe { std::slice::from_raw_parts_mut($into.cast::<u8>(), $count.max(0) as usize) }
    }};
}

unsafe extern "C" fn base_close(file: File) -> c_int {
    // SAFETY: called by SQLite for a file of ours, as all below.
    unsafe {
        let _ = base(file).lower(sqlite::LOCK_NONE);
        close(file)
    }
}

unsafe extern "C" fn base_read(file: File, into: *mut c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.read(offset as u64, slice_mut!(into, count)))
}

unsafe extern "C" fn base_write(file: File, from: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.write(offset as u64, slice!(from, count)))
}

unsafe extern "C" fn base_truncate(file: File, bytes: i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.truncate(bytes as u64))
}

unsafe extern "C" fn base_sync(file: File, _flags: c_int) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.sync())
}

unsafe extern "C" fn base_bytes(file: File, into: *mut i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.bytes().map(|bytes| unsafe { *into = bytes as i64 }))
}

unsafe extern "C" fn base_lock(file: File, level: c_int) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.locks.raise(level))
}

unsafe extern "C" fn base_unlock(file: File, level: c_int) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.lower(level))
}

unsafe extern "C" fn base_is_reserved(file: File, into: *mut c_int) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.locks.is_reserved().map(|reserved| unsafe { *into = reserved.into() }))
}

unsafe extern "C" fn base_control(file: File, what: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: see above.
    let mut base = unsafe { base(file) };
    match what {
        sqlite::FCNTL_SYNC => {
            // SAFETY: null or the name of the journal that several bases share.
            let name = (!argument.is_null()).then(|| unsafe { CStr::from_ptr(argument.cast()) });
            base.super_journal = name.map(|name| name.to_bytes().to_vec());
            sqlite::OK
        }
        sqlite::FCNTL_COMMIT_PHASETWO => told(base.commit()),
        sqlite::FCNTL_BEGIN_ATOMIC_WRITE => told(base.begin_batch()),
        sqlite::FCNTL_COMMIT_ATOMIC_WRITE => told(base.commit_batch()),
        sqlite::FCNTL_ROLLBACK_ATOMIC_WRITE => {
            base.give_up_batch();
            sqlite::OK
        }
        sqlite::FCNTL_LOCKSTATE => {
            // SAFETY: a place for a level.
            unsafe { *argument.cast() = base.locks.level };
            sqlite::OK
        }
        sqlite::FCNTL_PRAGMA => {
            let words = argument.cast::<*mut std::ffi::c_char>();
            // SAFETY: the pragma's result, name and argument, the last of which may be null.
            let name = unsafe { CStr::from_ptr(*words.add(1)) };
            if !name.to_bytes().eq_ignore_ascii_case(b"willow") {
                return sqlite::NOTFOUND;
            }
            // SAFETY: SQLite frees what is put there.
            unsafe { *words = crate::extension::text(&base.report()) };
            sqlite::OK
        }
        // Hints; the file grows by itself.
        sqlite::FCNTL_SIZE_HINT | sqlite::FCNTL_CHUNK_SIZE => sqlite::OK,
        _ => sqlite::NOTFOUND,
    }
}

unsafe extern "C" fn sector(_file: File) -> c_int {
    4096
}

unsafe extern "C" fn base_characteristics(_file: File) -> c_int {
    sqlite::IOCAP_BATCH_ATOMIC | sqlite::IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn journal_read(file: File, into: *mut c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.journal.read(offset as usize, slice_mut!(into, count)))
}

unsafe extern "C" fn journal_write(file: File, from: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let mut base = unsafe { base(file) };
    let written = base.journal.write(offset as usize, slice!(from, count));
    told(written.and_then(|()| if base.journal.is_too_large() { base.go_own_way() } else { Ok(()) }))
}

unsafe extern "C" fn journal_truncate(file: File, bytes: i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.journal.truncate(bytes as usize))
}

unsafe extern "C" fn journal_sync(file: File, flags: c_int) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.journal.sync(flags))
}

unsafe extern "C" fn journal_bytes(file: File, into: *mut i64) -> c_int {
    // SAFETY: see above.
    told(unsafe { base(file) }.journal.bytes().map(|bytes| unsafe { *into = bytes as i64 }))
}

unsafe extern "C" fn no_lock(_file: File, _level: c_int) -> c_int {
    sqlite::OK
}

unsafe extern "C" fn not_reserved(_file: File, into: *mut c_int) -> c_int {
    // SAFETY: SQLite's place for it.
    unsafe { *into = 0 };
    sqlite::OK
}

unsafe extern "C" fn no_control(_file: File, _what: c_int, _argument: *mut c_void) -> c_int {
    sqlite::NOTFOUND
}

unsafe extern "C" fn journal_characteristics(_file: File) -> c_int {
    sqlite::IOCAP_POWERSAFE_OVERWRITE
}

/// Methods of a base.
pub static BASE: sqlite::sqlite3_io_methods = sqlite::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(base_close),
    xRead: Some(base_read),
    xWrite: Some(base_write),
    xTruncate: Some(base_truncate),
    xSync: Some(base_sync),
    xFileSize: Some(base_bytes),
    xLock: Some(base_lock),
    xUnlock: Some(base_unlock),
    xCheckReservedLock: Some(base_is_reserved),
    xFileControl: Some(base_control),
    xSectorSize: Some(sector),
    xDeviceCharacteristics: Some(base_characteristics),
    later: [0; 6],
};

/// Methods of a journal.
pub static JOURNAL: sqlite::sqlite3_io_methods = sqlite::sqlite3_io_methods {
    xClose: Some(close),
    xRead: Some(journal_read),
    xWrite: Some(journal_write),
    xTruncate: Some(journal_truncate),
    xSync: Some(journal_sync),
    xFileSize: Some(journal_bytes),
    xLock: Some(no_lock),
    xUnlock: Some(no_lock),
    xCheckReservedLock: Some(not_reserved),
    xFileControl: Some(no_control),
    xDeviceCharacteristics: Some(journal_characteristics),
    ..BASE
};
