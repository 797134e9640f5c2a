//! What this process has open below the chosen folders.
//!
//! What always holds:
//! - a descriptor is tracked from its opening, duplication or inheritance until its close, one entry each;
//! - a forked child begins anew: what its parent had is left alone, and what it inherited is looked for among its descriptors;
//! - before another program takes the process' place, and before it ends, all is given back to the file system.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{CString, OsStr, c_int};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use willow_host::direct_io::{File, Session, SessionOptions, forks, watch_forks};

/// Descriptors below this are tracked; a program with more of them open has the others through the kernel.
const DESCRIPTORS_MAX: usize = 4096;

thread_local! {
    /// A call of this library is under way: what it calls itself passes through.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks a call as this library's own.
pub struct Inside(());

impl Inside {
    /// `None` where one is under way already.
    pub fn enter() -> Option<Inside> {
        // Where the thread is about to end, its calls pass through.
        let entered = INSIDE.try_with(|inside| !inside.replace(true)).unwrap_or(false);
        entered.then_some(Inside(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// A number of a descriptor that the program owns.
pub struct Raw(RawFd);

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: entries go before their descriptors are closed; a program that closes one while it uses it in another thread
        // gets what it would get without this library.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// An entry.
pub struct Tracked {
    pub file: File<Raw>,
    /// Held while the position is read and moved; duplicates share it.
    pub position: Arc<Mutex<()>>,
    pub appends: bool,
}

/// What the environment says.
struct Settings {
    /// `None`: the agent knows.
    device: Option<PathBuf>,
    agent: PathBuf,
    folders: Vec<PathBuf>,
    report: Option<PathBuf>,
}

impl Settings {
    fn read() -> Option<Settings> {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let list = std::env::var_os("WILLOW_DIRECT")?;
        let parts = list.as_bytes().split(|byte| *byte == b':').filter(|part| !part.is_empty());
        let whole = |part: &[u8]| {
            let path = Path::new(OsStr::from_bytes(part));
            path.canonicalize().unwrap_or_else(|_| path.to_owned())
        };
        let folders: Vec<PathBuf> = parts.map(whole).collect();
        let (device, agent) = (path("WILLOW_DEVICE"), path("WILLOW_AGENT")?);
        (!folders.is_empty()).then(|| Settings { device, agent, folders, report: path("WILLOW_DIRECT_REPORT") })
    }
}

/// The process.
pub struct Process {
    forks: u32,
    session: OnceLock<Option<Arc<Session>>>,
    entries: Vec<RwLock<Option<Arc<Tracked>>>>,
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
/// The present one; those of ancestors are never freed, since nobody knows what of them was in use.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Runs before the program does.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
/// Runs when it exits.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    let Some(_inside) = Inside::enter() else { return };
    if SETTINGS.get_or_init(Settings::read).is_some() {
        watch_forks();
        begin_process();
    }
}

/// Gives all back, and reports.
pub extern "C" fn end() {
    let Some(_inside) = Inside::enter() else { return };
    let Some(process) = present() else { return };
    if process.forks != forks() {
        return;
    }
    process.give_back();
    let report = SETTINGS.get().and_then(|settings| settings.as_ref()?.report.clone());
    let (Some(path), Some(Some(session))) = (report, process.session.get()) else { return };
    let program = std::env::args_os().next().unwrap_or_default();
    let line = serde_json::json!({
        "process": std::process::id(),
        "program": program.to_string_lossy(),
        "counts": session.counts(),
    });
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        // In one piece, since several processes may write there.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

fn present() -> Option<&'static Process> {
    // SAFETY: null, or leaked by `begin_process`.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

fn begin_process() -> &'static Process {
    let entries = (0..DESCRIPTORS_MAX).map(|_| RwLock::default()).collect();
    let process: &'static Process = Box::leak(Box::new(Process { forks: forks(), session: OnceLock::new(), entries }));
    PROCESS.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    process.adopt();
    process
}

/// The process, where the library has anything to do; `None` inside of itself as well.
pub fn enter() -> Option<(Inside, &'static Process)> {
    let process = present()?;
    let inside = Inside::enter()?;
    // In a forked child: its own.
    let process = if process.forks == forks() { process } else { begin_process() };
    Some((inside, process))
}

/// An entry, for a call on its descriptor.
pub fn tracked(descriptor: c_int) -> Option<(Inside, Arc<Tracked>)> {
    let (inside, process) = enter()?;
    Some((inside, process.get(descriptor)?))
}

impl Process {
    fn entry(&self, descriptor: c_int) -> Option<&RwLock<Option<Arc<Tracked>>>> {
        self.entries.get(usize::try_from(descriptor).ok()?)
    }

    /// An entry.
    pub fn get(&self, descriptor: c_int) -> Option<Arc<Tracked>> {
        self.entry(descriptor)?.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session, opened when it is first needed. Where that fails nothing goes directly.
    pub fn session(&self) -> Option<&Arc<Session>> {
        let open = || {
            let settings = SETTINGS.get()?.as_ref()?;
            let by_agent = SessionOptions::by_agent(&settings.agent);
            let opened = Session::open(SessionOptions { device: settings.device.clone(), ..by_agent });
            opened.map_err(|error| eprintln!("libwillow_preload: no direct access: {error}")).ok()
        };
        self.session.get_or_init(open).as_ref()
    }

    /// The session, where there is one.
    pub fn known_session(&self) -> Option<&Arc<Session>> {
        self.session.get()?.as_ref()
    }

    /// True where a file of this path is chosen.
    pub fn is_chosen(&self, path: &Path) -> bool {
        let settings = SETTINGS.get().and_then(Option::as_ref);
        settings.is_some_and(|settings| settings.folders.iter().any(|folder| path.starts_with(folder)))
    }

    /// A descriptor was opened: tracks it, if it is that of a chosen file.
    pub fn opened(&self, descriptor: c_int) {
        self.forget(descriptor);
        if self.entry(descriptor).is_none() {
            return;
        }
        let raw = Raw(descriptor);
        let is_file =
            rustix::fs::fstat(&raw).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        if !is_file {
            return;
        }
        let link = rustix::fs::readlink(format!("/proc/self/fd/{descriptor}"), Vec::new());
        let path = link.map(|link| PathBuf::from(std::ffi::OsString::from_vec(link.into_bytes())));
        if path.is_ok_and(|path| self.is_chosen(&path)) {
            self.track(descriptor, Arc::default());
        }
    }

    fn track(&self, descriptor: c_int, position: Arc<Mutex<()>>) {
        let (Some(entry), Some(session)) = (self.entry(descriptor), self.session()) else { return };
        let Ok(file) = File::new(session, Raw(descriptor)) else { return };
        let appends = rustix::fs::fcntl_getfl(Raw(descriptor)).is_ok_and(|flags| flags.contains(OFlags::APPEND));
        let tracked = Some(Arc::new(Tracked { file, position, appends }));
        let before = std::mem::replace(&mut *entry.write().unwrap_or_else(PoisonError::into_inner), tracked);
        drop(before);
    }

    /// A descriptor is another's duplicate now.
    pub fn duplicated(&self, from: c_int, to: c_int) {
        self.forget(to);
        if let Some(tracked) = self.get(from) {
            self.track(to, tracked.position.clone());
        }
    }

    /// A descriptor's flags have changed.
    pub fn flags_changed(&self, descriptor: c_int) {
        if let Some(tracked) = self.get(descriptor) {
            self.track(descriptor, tracked.position.clone());
        }
    }

    /// A descriptor is about to be closed, or to be used past this library.
    pub fn forget(&self, descriptor: c_int) {
        let Some(entry) = self.entry(descriptor) else { return };
        let is_there = entry.read().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_there {
            let before = entry.write().unwrap_or_else(PoisonError::into_inner).take();
            drop(before);
        }
    }

    /// The same of a range of them.
    pub fn forget_range(&self, first: u32, last: u32) {
        for descriptor in first..=last.min(DESCRIPTORS_MAX as u32 - 1) {
            self.forget(descriptor as c_int);
        }
    }

    /// Gives all files back; they are taken again when they are used.
    pub fn give_back(&self) {
        for entry in &self.entries {
            let tracked = entry.read().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(tracked) = tracked {
                let _ = tracked.file.change(|_| Ok::<_, Errno>(()));
            }
        }
    }

    /// Tracks what was inherited.
    fn adopt(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return };
        let Ok(listed) = rustix::fs::Dir::read_from(&folder) else { return };
        let number = |name: CString| name.to_str().ok()?.parse::<c_int>().ok();
        let numbers: Vec<c_int> = listed.flatten().filter_map(|entry| number(entry.file_name().to_owned())).collect();
        for descriptor in numbers {
            self.opened(descriptor);
        }
    }
}
