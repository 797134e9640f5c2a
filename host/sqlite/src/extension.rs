//! What SQLite calls when it loads the library.

use crate::sqlite;
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The oldest SQLite that has all that is used here (`sqlite3_database_file_object`).
const VERSION_MIN: c_int = 3_031_000;

static ROUTINES: AtomicPtr<sqlite::sqlite3_api_routines> = AtomicPtr::new(ptr::null_mut());

/// SQLite's functions.
pub fn routines() -> Option<&'static sqlite::sqlite3_api_routines> {
    // SAFETY: SQLite's table, which lives as long as SQLite, and this library is never unloaded.
    unsafe { ROUTINES.load(Ordering::Acquire).as_ref() }
}

/// A line in SQLite's error log.
pub fn log(code: c_int, text: &str) {
    let (Some(log), Ok(text)) = (routines().and_then(|routines| routines.log), CString::new(text)) else { return };
    // SAFETY: a format for one string, and that.
    unsafe { log(code, c"willow: %s".as_ptr(), text.as_ptr()) }
}

/// Memory of SQLite's with this text; null where there is none.
pub fn text(text: &str) -> *mut c_char {
    let Some(print) = routines().and_then(|routines| routines.mprintf) else { return ptr::null_mut() };
    let Ok(text) = CString::new(text) else { return ptr::null_mut() };
    // SAFETY: a format for one string, and that.
    unsafe { print(c"%s".as_ptr(), text.as_ptr()) }
}

/// The entry point that SQLite looks for first.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    _base: *mut sqlite::sqlite3,
    error: *mut *mut c_char,
    routines: *mut sqlite::sqlite3_api_routines,
) -> c_int {
    ROUTINES.store(routines, Ordering::Release);
    // SAFETY: SQLite's table.
    let version = unsafe { (*routines).libversion_number.map_or(0, |version| version()) };
    let refused = match version {
        VERSION_MIN.. => crate::vfs::register().err(),
        _ => Some("SQLite 3.31 or newer is needed".to_owned()),
    };
    match refused {
        // The file system stays when the connection is closed.
        None => sqlite::OK_LOAD_PERMANENTLY,
        Some(why) => {
            if !error.is_null() {
                // SAFETY: SQLite's place for it.
                unsafe { *error = text(&why) };
            }
            sqlite::ERROR
        }
    }
}

/// The entry point by the library's name.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_willowsqlite_init(
    base: *mut sqlite::sqlite3,
    error: *mut *mut c_char,
    routines: *mut sqlite::sqlite3_api_routines,
) -> c_int {
    // SAFETY: as this one.
    unsafe { sqlite3_extension_init(base, error, routines) }
}
