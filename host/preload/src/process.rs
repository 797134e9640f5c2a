//! What this process has open below the chosen folders.
//!
//! What always holds:
//! - a descriptor is tracked from its opening, duplication or inheritance until its close, one entry each;
//! - a forked child begins anew: what its parent had is left alone, and what it inherited is looked for among its descriptors;
//! - a file of which anybody else has the same open file description stays with the kernel, here and there, until it is closed;
//! - before another program takes the process' place, and before it ends, all is given back to the file system;
//! - an operation by a number that is another file's meanwhile is done by what the number is then (`is_replaced`).

use crate::real::{result, returned};
use crate::sharing::{Sharing, Since};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString, c_int};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use willow_host::direct_io::{File, Hold, Session, SessionOptions, forks, watch_forks};

/// Descriptors below this are tracked; a program with more of them open has the others through the kernel.
pub const DESCRIPTORS_MAX: usize = 4096;
/// Numbers that the library's own sockets may have, at the end of those that the process may have, or of those that are tracked.
const OWN_DESCRIPTORS: usize = 128;
/// A process that may have fewer descriptors than this keeps all of them for itself, and has no session.
const DESCRIPTORS_MIN: usize = 2 * OWN_DESCRIPTORS;
/// Longest wait for an agent that is gone, and between two looks.
const AGENT_WAIT_MAX: Duration = Duration::from_secs(10);
const AGENT_LOOK: Duration = Duration::from_millis(10);
/// Most files whose mappings are remembered one by one; past it, everything stays with the kernel.
const MAPPED_MAX: usize = 4096;

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
        // Made where it was entered alone: its end is the end of the call.
        entered.then(|| Inside(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// A number of a descriptor that the program owns.
pub struct Raw(pub RawFd);

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: entries go before their descriptors are closed; a program that closes one while it uses it in another thread
        // gets what it would get without this library.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// An open file description: what `dup` and `fork` share.
#[derive(Default)]
pub struct Description {
    /// Held while the position is read and moved.
    pub position: Mutex<()>,
    /// There from when others may use the same description past this library: another process, a stream, a lock. Nobody can tell when
    /// that ends, so the file stays with the kernel until the description is closed.
    kept: OnceLock<Hold>,
}

impl Description {
    /// True where the kernel has it for good.
    pub fn is_kept(&self) -> bool {
        self.kept.get().is_some()
    }
}

/// An entry.
pub struct Tracked {
    pub file: File<Raw>,
    pub description: Arc<Description>,
    pub appends: bool,
    /// Device and inode.
    identity: (u64, u64),
}

impl Tracked {
    /// Leaves it to the kernel until it is closed.
    pub fn keep(&self) {
        self.description.kept.get_or_init(|| self.hold_for_others());
    }

    /// The same while what this returns lives, for somebody else who is about to have its descriptors: they have to be what the program
    /// opened. Where the agent is gone this waits for it to come back, once.
    pub fn hold_for_others(&self) -> Hold {
        static IN_VAIN: AtomicBool = AtomicBool::new(false);
        let (hold, begun) = (self.file.hold(), Instant::now());
        while self.file.give_back().is_err() {
            if IN_VAIN.load(Ordering::Relaxed) || begun.elapsed() > AGENT_WAIT_MAX {
                IN_VAIN.store(true, Ordering::Relaxed);
                return hold;
            }
            std::thread::sleep(AGENT_LOOK);
        }
        IN_VAIN.store(false, Ordering::Relaxed);
        hold
    }

    /// Leaves it to the kernel while what this returns lives.
    pub fn hold(&self) -> Option<Hold> {
        (!self.description.is_kept()).then(|| self.file.hold())
    }
}

/// What the environment says.
struct Settings {
    /// `None`: the agent knows.
    device: Option<PathBuf>,
    agent: PathBuf,
    folders: Vec<PathBuf>,
    /// The devices that these are on.
    devices: Vec<u64>,
    report: Option<PathBuf>,
}

impl Settings {
    fn read() -> Option<Settings> {
        // The program may have another working folder when they are needed.
        let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let path = |name: &str| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| whole(PathBuf::from(value)))
        };
        let list = std::env::var_os("WILLOW_DIRECT")?;
        let parts = list.as_bytes().split(|byte| *byte == b':').filter(|part| !part.is_empty());
        let whole = |part: &[u8]| {
            let path = Path::new(OsStr::from_bytes(part));
            path.canonicalize().unwrap_or_else(|_| path.to_owned())
        };
        let folders: Vec<PathBuf> = parts.map(whole).collect();
        let (device, agent) = (path("WILLOW_DEVICE"), path("WILLOW_AGENT")?);
        let devices = folders.iter().filter_map(|folder| Some(rustix::fs::stat(folder).ok()?.st_dev)).collect();
        (!folders.is_empty()).then(|| Settings {
            device,
            agent,
            folders,
            devices,
            report: path("WILLOW_DIRECT_REPORT"),
        })
    }
}

type Entry = RwLock<Option<Arc<Tracked>>>;

/// The process.
pub struct Process {
    forks: u32,
    session: OnceLock<Option<Arc<Session>>>,
    entries: Vec<Entry>,
    pub sharing: Sharing,
    /// Files that are mapped into memory, by device and inode: a mapping outlives its descriptors.
    mapped: Mutex<HashMap<(u64, u64), Hold>>,
    /// Everything goes through the kernel from now on.
    is_off: AtomicBool,
    /// All that was open has been given back for that.
    off: Once,
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
        crate::sharing::watch();
        crate::limits::refresh();
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
    let files: Vec<_> = process.all().collect();
    let holds: Vec<_> = files.iter().filter_map(|(_, tracked)| tracked.hold()).collect();
    drop(holds);
    process.report();
}

/// Every call passes through from now on, in this process' memory.
pub fn leave() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
}

fn present() -> Option<&'static Process> {
    // SAFETY: null, or leaked by `begin_process`.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

fn begin_process() -> &'static Process {
    let entries = (0..DESCRIPTORS_MAX).map(|_| RwLock::default()).collect();
    let process: &'static Process = Box::leak(Box::new(Process {
        forks: forks(),
        session: OnceLock::new(),
        entries,
        sharing: Sharing::default(),
        mapped: Mutex::default(),
        is_off: AtomicBool::new(false),
        off: Once::new(),
    }));
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
    fn entry(&self, descriptor: c_int) -> Option<&Entry> {
        self.entries.get(usize::try_from(descriptor).ok()?)
    }

    /// An entry.
    pub fn get(&self, descriptor: c_int) -> Option<Arc<Tracked>> {
        read(self.entry(descriptor)?).clone()
    }

    /// The session, opened when it is first needed. Where that fails nothing goes directly.
    pub fn session(&self) -> Option<&Arc<Session>> {
        let open = || {
            let settings = SETTINGS.get()?.as_ref()?;
            let mut options =
                SessionOptions { device: settings.device.clone(), ..SessionOptions::by_agent(&settings.agent) };
            options.appends = true;
            if crate::is_eager() {
                options.kernel_operations_max = 0;
            }
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(DESCRIPTORS_MAX);
            if limit < DESCRIPTORS_MIN {
                eprintln!(
                    "libwillow_preload: no direct access: the process may have {limit} descriptors, and {DESCRIPTORS_MIN} are needed"
                );
                return None;
            }
            willow_shm::own::from(limit.min(DESCRIPTORS_MAX).saturating_sub(OWN_DESCRIPTORS) as c_int);
            let opened = Session::open(options);
            opened.map_err(|error| eprintln!("libwillow_preload: no direct access: {error}")).ok()
        };
        self.session.get_or_init(open).as_ref()
    }

    /// True where anything is chosen to which the device may append, in this process or another.
    pub fn is_watching(&self, device: u64) -> bool {
        SETTINGS.get().and_then(Option::as_ref).is_some_and(|settings| settings.devices.contains(&device))
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

    /// A descriptor was opened: tracks it, if it is that of a chosen file, or of one that is open by a chosen name as well.
    pub fn opened(&self, descriptor: c_int, since: Since) {
        self.forget(descriptor);
        if self.entry(descriptor).is_none() {
            return;
        }
        let raw = Raw(descriptor);
        let Ok(stat) = rustix::fs::fstat(&raw) else { return };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return;
        }
        let link = rustix::fs::readlink(format!("/proc/self/fd/{descriptor}"), Vec::new());
        let path = link.map(|link| PathBuf::from(OsString::from_vec(link.into_bytes())));
        if path.is_ok_and(|path| self.is_chosen(&path)) || self.with_identity((stat.st_dev, stat.st_ino)).is_some() {
            self.track(descriptor, Arc::default());
            if self.sharing.has_happened(since) {
                self.keep(descriptor);
            }
        }
    }

    /// The same of one whose description others have too.
    pub fn opened_shared(&self, descriptor: c_int) {
        self.opened(descriptor, self.sharing.since());
        self.keep(descriptor);
    }

    fn track(&self, descriptor: c_int, description: Arc<Description>) {
        let (Some(entry), Ok(flags)) = (self.entry(descriptor), rustix::fs::fcntl_getfl(Raw(descriptor))) else {
            return;
        };
        // What has no bytes to be read or written.
        if flags.contains(OFlags::PATH) {
            return;
        }
        let (Some(session), Ok(stat)) = (self.session(), rustix::fs::fstat(Raw(descriptor))) else { return };
        let Ok(file) = File::new(session, Raw(descriptor)) else { return };
        let appends = file.flags().unwrap_or(flags).contains(OFlags::APPEND);
        let identity = (stat.st_dev, stat.st_ino);
        let tracked = Arc::new(Tracked { file, description, appends, identity });
        let before = write(entry).replace(tracked.clone());
        if let Some(before) = before {
            before.file.forget();
        }
        if self.is_off.load(Ordering::SeqCst) || crate::streams::have(descriptor) {
            tracked.keep();
        }
    }

    /// A descriptor is another's duplicate now.
    pub fn duplicated(&self, from: c_int, to: c_int) {
        self.forget(to);
        if let Some(tracked) = self.get(from) {
            self.track(to, tracked.description.clone());
        }
    }

    /// A descriptor is what it was, though it was to be another's.
    pub fn remained(&self, descriptor: c_int, tracked: &Tracked) {
        self.track(descriptor, tracked.description.clone());
    }

    /// The flags of a descriptor and its duplicates have changed.
    pub fn flags_changed(&self, descriptor: c_int) {
        let Some(changed) = self.get(descriptor) else { return };
        for (descriptor, tracked) in self.all() {
            if Arc::ptr_eq(&tracked.description, &changed.description) {
                self.track(descriptor, tracked.description.clone());
            }
        }
    }

    /// Leaves a description to the kernel until it is closed.
    pub fn keep(&self, descriptor: c_int) {
        if let Some(tracked) = self.get(descriptor) {
            tracked.keep();
        }
    }

    /// A file is about to be mapped into memory: it stays with the kernel as long as the process lives.
    pub fn keep_mapped(&self, tracked: &Tracked) {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if mapped.len() < MAPPED_MAX || mapped.contains_key(&tracked.identity) {
            mapped.entry(tracked.identity).or_insert_with(|| tracked.file.hold());
            return;
        }
        drop(mapped);
        self.turn_off();
    }

    /// Leaves everything to the kernel, for good: when this returns, all has been given back.
    pub fn turn_off(&self) {
        self.off.call_once_force(|_| {
            self.is_off.store(true, Ordering::SeqCst);
            self.all().for_each(|(_, tracked)| tracked.keep());
        });
    }

    /// The same, where nothing may be left to this library at all: every call passes through from now on.
    pub fn turn_off_and_leave(&self) {
        self.turn_off();
        self.report();
        leave();
    }

    /// Says what went which way, where it is asked for.
    fn report(&self) {
        let report = SETTINGS.get().and_then(|settings| settings.as_ref()?.report.clone());
        let (Some(path), Some(session)) = (report, self.known_session()) else { return };
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

    /// A descriptor is about to be closed.
    pub fn forget(&self, descriptor: c_int) {
        let Some(entry) = self.entry(descriptor) else { return };
        if read(entry).is_some() {
            let before = write(entry).take();
            if let Some(before) = before {
                before.file.forget();
            }
        }
    }

    /// The same of a range of them.
    pub fn forget_range(&self, first: u32, last: u32) {
        for descriptor in first..=last.min(DESCRIPTORS_MAX as u32 - 1) {
            self.forget(descriptor as c_int);
        }
    }

    /// All entries, with their descriptors.
    pub fn all(&self) -> impl Iterator<Item = (c_int, Arc<Tracked>)> {
        self.entries.iter().enumerate().filter_map(|(number, entry)| Some((number as c_int, read(entry).clone()?)))
    }

    /// An entry of this file, by device and inode.
    pub fn with_identity(&self, identity: (u64, u64)) -> Option<Arc<Tracked>> {
        self.all().map(|(_, tracked)| tracked).find(|tracked| tracked.identity == identity)
    }

    /// Tracks what was inherited: whoever opened it may use it still.
    fn adopt(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return };
        let Ok(listed) = rustix::fs::Dir::read_from(&folder) else { return };
        let number = |name: CString| name.to_str().ok()?.parse::<c_int>().ok();
        let numbers: Vec<c_int> = listed.flatten().filter_map(|entry| number(entry.file_name().to_owned())).collect();
        for descriptor in numbers {
            self.opened_shared(descriptor);
        }
    }
}

fn read(entry: &Entry) -> RwLockReadGuard<'_, Option<Arc<Tracked>>> {
    entry.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(entry: &Entry) -> RwLockWriteGuard<'_, Option<Arc<Tracked>>> {
    entry.write().unwrap_or_else(PoisonError::into_inner)
}

/// Does a call of the C library through the kernel: the files of these descriptors are given back first, and stay so until it has
/// returned. What the kernel refuses since other processes have a file directly is done once more when they do not.
pub fn by_kernel<T: PartialOrd + Default + std::convert::From<i8>>(
    descriptors: &[c_int],
    mut real: impl FnMut() -> T,
) -> T {
    loop {
        let Some((inside, process)) = enter() else { return real() };
        let files: Vec<Arc<Tracked>> = descriptors.iter().filter_map(|descriptor| process.get(*descriptor)).collect();
        if files.is_empty() {
            drop(inside);
            return real();
        }
        let files: Vec<&Tracked> = files.iter().map(|file| &**file).collect();
        let done = files_by_kernel(inside, &files, &mut real);
        if !is_replaced(&files, &done) {
            return done;
        }
    }
}

/// True where a call was refused and may not have met what these descriptors were: another thread has closed one meanwhile, or put another file
/// under its number, of which the kernel found a placeholder. It is done once more by what is there now, as often as the program does that.
pub fn is_replaced<T: PartialOrd + Default>(files: &[&Tracked], done: &T) -> bool {
    *done < T::default()
        && matches!(crate::real::errno(), Errno::BADF | Errno::INVAL)
        && files.iter().any(|tracked| tracked.file.is_forgotten())
}

/// The same of files that were looked up.
pub fn files_by_kernel<T: PartialOrd + Default + std::convert::From<i8>>(
    inside: Inside,
    files: &[&Tracked],
    mut real: impl FnMut() -> T,
) -> T {
    let holds: Vec<Option<Hold>> = files.iter().map(|file| file.hold()).collect();
    files.iter().for_each(|file| file.file.refresh());
    // It may wait long, and a signal's handler may come meanwhile whose calls are not this library's.
    drop(inside);
    let mut done = result(real());
    let _inside = Inside::enter();
    for file in files {
        match done {
            Err(Errno::PERM) => done = file.file.insist(|| result(real())),
            // A descriptor that only reads still, since the agent is gone: or that was opened so.
            Err(Errno::BADF) => done = file.file.give_back().and_then(|()| result(real())),
            _ => {}
        }
    }
    drop(holds);
    returned(done)
}
