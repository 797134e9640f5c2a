//! The table of the file system: bases and their journals are ours, all else is the system's own.

use crate::base::{Base, Shared, by_journal, by_super_journal, commit_together, lock};
use crate::extension::{log, routines};
use crate::methods::{self, Handle, base_of, put};
use crate::sqlite::{self, Symbol};
use crate::under::{self, Done, done, vfs};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

/// What programs name it by.
const NAME: &CStr = c"willow";

type Vfs = *mut sqlite::sqlite3_vfs;
type File = *mut sqlite::sqlite3_file;

/// Registers the file system, once; the error says why not.
pub fn register() -> Result<(), String> {
    let routines = routines().ok_or("SQLite has given no functions")?;
    let (Some(find), Some(register)) = (routines.vfs_find, routines.vfs_register) else {
        return Err("this SQLite has no file systems".to_owned());
    };
    // SAFETY: SQLite's functions, with names that end.
    unsafe {
        if !find(NAME.as_ptr()).is_null() {
            return Ok(());
        }
        let below = find(ptr::null());
        if below.is_null() {
            return Err("SQLite has no file system to stand on".to_owned());
        }
        under::set(below);
        // It stays as long as the process.
        let ours = Box::leak(Box::new(sqlite::sqlite3_vfs {
            iVersion: (*below).iVersion.min(2),
            szOsFile: (*below).szOsFile.max(size_of::<Handle>() as c_int),
            zName: NAME.as_ptr(),
            pNext: ptr::null_mut(),
            pAppData: ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(remove),
            xAccess: Some(access),
            xFullPathname: Some(full_pathname),
            xDlOpen: Some(library_open),
            xDlError: Some(library_error),
            xDlSym: Some(library_symbol),
            xDlClose: Some(library_close),
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: Some(last_error),
            xCurrentTimeInt64: (*below).xCurrentTimeInt64.map(|_| current_time_int64 as _),
            later: [0; 3],
            ..*below
        }));
        done(register(ours, 0)).map_err(|code| format!("SQLite refuses the file system: code {code}"))
    }
}

unsafe extern "C" fn open(_: Vfs, name: *const c_char, file: File, flags: c_int, given: *mut c_int) -> c_int {
    // SAFETY: SQLite's memory for a file; without methods nothing is closed.
    unsafe { (*file).pMethods = ptr::null() };
    // SAFETY: null or a path.
    let path = unsafe { name.as_ref().map(|name| CStr::from_ptr(name)) };
    let opened = match path {
        Some(path) if flags & sqlite::OPEN_MAIN_DB != 0 => {
            // SAFETY: that memory.
            Base::open(path, flags).map(|(base, reads_only)| unsafe {
                put(file, &methods::BASE, base);
                if !given.is_null() {
                    let writable = sqlite::OPEN_READWRITE | sqlite::OPEN_CREATE;
                    *given = if reads_only { flags & !writable | sqlite::OPEN_READONLY } else { flags };
                }
            })
        }
        // SAFETY: the name is the one that SQLite has made for a journal.
        Some(_) if flags & sqlite::OPEN_MAIN_JOURNAL != 0 => match unsafe { base_of_journal(name) } {
            Some(base) if flags & sqlite::OPEN_CREATE != 0 => {
                lock(&base).journal.begin();
                // SAFETY: as above.
                unsafe {
                    put(file, &methods::JOURNAL, base);
                    if !given.is_null() {
                        *given = flags;
                    }
                }
                Ok(())
            }
            base => {
                if let Some(base) = base.filter(|_| flags & sqlite::OPEN_READWRITE != 0) {
                    lock(&base).journal.begin_on_disk();
                }
                // SAFETY: as SQLite has called this.
                unsafe { open_below(name, file, flags, given) }
            }
        },
        // SAFETY: as SQLite has called this.
        _ => unsafe { open_below(name, file, flags, given) },
    };
    opened.err().unwrap_or(sqlite::OK)
}

unsafe fn open_below(name: *const c_char, file: File, flags: c_int, given: *mut c_int) -> Done {
    // SAFETY: as SQLite has called `open`; the memory is as large as the file system below wants it.
    unsafe { (*vfs()).xOpen.map_or(Err(sqlite::CANTOPEN), |open| done(open(vfs(), name, file, flags, given))) }
}

/// The base whose journal SQLite opens by this name.
unsafe fn base_of_journal(name: *const c_char) -> Option<Shared> {
    let find = routines()?.database_file_object?;
    // SAFETY: SQLite has made the name of its journal, which the function asks for.
    unsafe { base_of(find(name)) }
}

unsafe extern "C" fn remove(_: Vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: a path.
    let path = unsafe { CStr::from_ptr(name) };
    let removed = match by_journal(path) {
        Some(base) => lock(&base).journal.delete(path, sync != 0),
        None => {
            let sharing = by_super_journal(path.to_bytes());
            let committed = if sharing.is_empty() { Ok(()) } else { commit_shared(path, &sharing) };
            committed.and_then(|()| under::delete(path, sync != 0))
        }
    };
    removed.err().unwrap_or(sqlite::OK)
}

/// The deletion of a journal that several bases share is the commit of all of them. Where all are ours, and none has its own journal on the
/// disk, they are written as a whole; else all go SQLite's own way.
fn commit_shared(path: &CStr, sharing: &[Shared]) -> Done {
    let mut bases: Vec<_> = sharing.iter().map(|base| lock(base)).collect();
    let known: BTreeSet<CString> = bases.iter().map(|base| base.journal_path.clone()).collect();
    let named = std::fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|error| {
        log(sqlite::IOERR_READ, &format!("{}: {error}", path.to_string_lossy()));
        sqlite::IOERR_READ
    })?;
    let mut names = named.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let all_ours = names.all(|name| known.iter().any(|known| known.as_bytes() == name));
    if all_ours && bases.iter().all(|base| !base.journal.is_on_disk()) {
        let mut together: Vec<&mut Base> = bases.iter_mut().map(|base| &mut **base).collect();
        if commit_together(&mut together)? {
            return Ok(());
        }
    }
    for base in &mut bases {
        if !base.journal.is_on_disk() {
            base.go_own_way()?;
            base.sync()?;
        }
    }
    Ok(())
}

unsafe extern "C" fn access(_: Vfs, name: *const c_char, flags: c_int, into: *mut c_int) -> c_int {
    // SAFETY: a path.
    let path = unsafe { CStr::from_ptr(name) };
    if flags == sqlite::ACCESS_EXISTS && by_journal(path).is_some_and(|base| lock(&base).journal.is_there) {
        // SAFETY: SQLite's place for it.
        unsafe { *into = 1 };
        return sqlite::OK;
    }
    // SAFETY: the file system below, as SQLite has called this.
    unsafe { (*vfs()).xAccess.map_or(sqlite::IOERR, |access| access(vfs(), name, flags, into)) }
}

/// Functions that are those of the file system below.
macro_rules! below {
    ($($name:ident = $of:ident($($argument:ident: $type:ty),*) -> $gives:ty, else $otherwise:expr;)*) => {$(
        unsafe extern "C" fn $name(_: Vfs $(, $argument: $type)*) -> $gives {
            // SAFETY: a registered file system, called as SQLite has called this.
            unsafe { (*vfs()).$of.map_or($otherwise, |it| it(vfs() $(, $argument)*)) }
        }
    )*};
}

below! {
    full_pathname = xFullPathname(name: *const c_char, bytes: c_int, into: *mut c_char) -> c_int, else sqlite::IOERR;
    library_open = xDlOpen(name: *const c_char) -> *mut c_void, else ptr::null_mut();
    library_error = xDlError(bytes: c_int, into: *mut c_char) -> (), else ();
    library_symbol = xDlSym(library: *mut c_void, name: *const c_char) -> Symbol, else None;
    library_close = xDlClose(library: *mut c_void) -> (), else ();
    randomness = xRandomness(bytes: c_int, into: *mut c_char) -> c_int, else 0;
    sleep = xSleep(microseconds: c_int) -> c_int, else 0;
    current_time = xCurrentTime(into: *mut f64) -> c_int, else sqlite::IOERR;
    last_error = xGetLastError(bytes: c_int, into: *mut c_char) -> c_int, else 0;
    current_time_int64 = xCurrentTimeInt64(into: *mut i64) -> c_int, else sqlite::IOERR;
}
