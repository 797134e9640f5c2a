//! Spools: files of the agent's own, into whose blocks the device appends until the file gets what was appended.
//!
//! What always holds:
//! - a spool is root's alone, in a folder of root's alone, immutable, and of blocks that were written: no user opens it, and its blocks stay where
//!   they are for as long as it is there;
//! - processes are permitted to write a spool, never to read it, so that what others left in it shows nowhere;
//! - a spool is one file's at a time, until nothing is permitted in it any more; at most [`SPOOLS_KEPT`] of a file system stay for the next files;
//! - nobody waits for who keeps the folder busy where the file system is mounted (a process that reads it into memory that does not come has its lock)
//!   for longer than [`FOLDER_PATIENCE`].

use super::super::freeze::{self, Guard};
use super::super::pages::write;
use super::super::{extents, lock};
use append_host::wire::EXTENTS_MAX;
use direct_io_host::FileExtent;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Bytes of a spool: as much is appended to a file before the file system is told.
pub(super) const SPOOL_BYTES: u64 = 8 << 20;
/// Most spools of a file system.
const SPOOLS_MAX: u32 = 64;
/// A file system has room for this many spools at least, or gets none.
const ROOM_MIN: u64 = 4;
/// Their folder, where the file system is mounted.
const FOLDER: &str = ".willow-append";
/// Spools of a file system that stay when they are nobody's.
const SPOOLS_KEPT: u32 = 4;
/// How long the folder is waited for.
const FOLDER_PATIENCE: Duration = Duration::from_secs(2);
/// Written at once.
const PART_BYTES: usize = 1 << 20;

/// Which ones are in use: by file system and number.
#[derive(Default)]
pub(super) struct Spools {
    used: Mutex<BTreeSet<(u64, u32)>>,
    /// Where file systems with spools are mounted.
    places: Mutex<BTreeMap<u64, String>>,
    /// File systems whose folder somebody keeps busy: a thread of this agent waits for it.
    stuck: Arc<Mutex<BTreeSet<u64>>>,
}

/// Others' bits of a mode.
const NOT_OWNERS: u32 = 0o077;

impl Spools {
    /// One that is in use already.
    pub fn note(&self, device: u64, spool: u32) {
        lock(&self.used).insert((device, spool));
    }

    /// It may be another file's: nothing is permitted in it. Those that are more than stay are removed; where that fails they stay.
    pub fn release(&self, device: u64, spool: u32) {
        let place = lock(&self.places).get(&device).cloned();
        if spool >= SPOOLS_KEPT
            && let Some(place) = place
            && let Ok(folder) = self.reach(device, &place, false)
        {
            let _ = discard(&folder, &spool.to_string());
        }
        lock(&self.used).remove(&(device, spool));
    }

    /// The folder of the spools. One thread waits for who keeps it busy; who comes meanwhile is refused at once.
    fn reach(&self, device: u64, place: &str, makes: bool) -> Result<OwnedFd, String> {
        let is_stuck = || format!("somebody keeps the folder busy in which it is mounted, {place}");
        if lock(&self.stuck).contains(&device) {
            return Err(is_stuck());
        }
        let (tell, told) = mpsc::channel();
        let (stuck, at) = (self.stuck.clone(), place.to_owned());
        let reach = move || {
            // What comes too late is closed again: nothing was done but that there is an empty folder.
            let _ = tell.send(folder(device, &at, makes).map(|(folder, _)| folder));
            lock(&stuck).remove(&device);
        };
        let thread = std::thread::Builder::new().name("willow-agent-spool".to_owned()).spawn(reach);
        thread.map_err(|error| error.to_string())?;
        let reached = told.recv_timeout(FOLDER_PATIENCE).or_else(|_| {
            let mut stuck = lock(&self.stuck);
            // The thread tells first, and takes this off the list then.
            told.try_recv().inspect_err(|_| {
                stuck.insert(device);
            })
        });
        reached.map_err(|_| is_stuck())?.map_err(|error| error.to_string())
    }

    /// Takes a spool on a file system that is mounted at this place: its number, and where it lies on the block device. The error is a sentence.
    pub fn take(&self, device: u64, place: &str) -> Result<(u32, Vec<FileExtent>), String> {
        let spool = {
            let mut used = lock(&self.used);
            let free = (0..SPOOLS_MAX).find(|spool| !used.contains(&(device, *spool)));
            let free = free
                .ok_or_else(|| format!("{SPOOLS_MAX} files of its file system are appended to, which is the most"))?;
            used.insert((device, free));
            free
        };
        lock(&self.places).insert(device, place.to_owned());
        let opened = self.reach(device, place, true).and_then(|folder| open(device, &folder, spool));
        opened.map(|extents| (spool, extents)).map_err(|error| {
            lock(&self.used).remove(&(device, spool));
            format!("there is no spool for it: {error}")
        })
    }

    /// Removes those that are not in use, and their folder with the last one. Where that fails they stay.
    pub fn remove_unused(&self) {
        let used = lock(&self.used);
        for (device, place) in &*lock(&self.places) {
            let Ok((folder, name)) = folder(*device, place, false) else { continue };
            for spool in (0..SPOOLS_MAX).filter(|spool| !used.contains(&(*device, *spool))) {
                let _ = discard(&folder, &spool.to_string());
            }
            let _ = rustix::fs::open(place, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|place| rustix::fs::unlinkat(place, name.as_str(), AtFlags::REMOVEDIR));
        }
    }
}

/// The folder of the spools, and its name: root's, and nobody else's. Where users may make folders, one may have made one of the usual name: then it is
/// one whose name nobody knew before.
fn folder(device: u64, place: &str, makes: bool) -> std::io::Result<(OwnedFd, String)> {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount = rustix::fs::open(place, directory, Mode::empty())?;
    // To make one that is there would wait for the lock of where it is mounted.
    let usual = match open_folder(device, &mount, FOLDER) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && makes => make_folder(device, &mount, FOLDER),
        opened => opened,
    };
    if usual.is_ok() || matches!(&usual, Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
        return usual;
    }
    for entry in rustix::fs::Dir::read_from(&mount)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(FOLDER)
            && let Ok(found) = open_folder(device, &mount, &name)
        {
            return Ok(found);
        }
    }
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let other = format!("{FOLDER}-{:016x}", u64::from_le_bytes(random));
    if makes { make_folder(device, &mount, &other) } else { usual }
}

fn make_folder(device: u64, mount: &OwnedFd, name: &str) -> std::io::Result<(OwnedFd, String)> {
    match rustix::fs::mkdirat(mount, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => open_folder(device, mount, name),
        Err(error) => Err(error.into()),
    }
}

fn open_folder(device: u64, mount: &OwnedFd, name: &str) -> std::io::Result<(OwnedFd, String)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = rustix::fs::openat(mount, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&folder)?;
    match stat.st_dev == device && stat.st_uid == 0 && stat.st_mode & NOT_OWNERS == 0 {
        true => Ok((folder, name.to_owned())),
        false => Err(std::io::Error::other(format!("{name} is not root's alone"))),
    }
}

fn discard(folder: &OwnedFd, name: &str) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    freeze::set_immutable(file.as_fd(), false)?;
    Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?)
}

/// Opens a spool, or makes it, and says where it lies.
fn open(device: u64, folder: &OwnedFd, spool: u32) -> Result<Vec<FileExtent>, String> {
    let said = |error: std::io::Error| error.to_string();
    let name = spool.to_string();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let found = rustix::fs::openat(folder, &name, flags, Mode::empty()).ok().filter(|file| is_whole(device, file));
    let file = match found {
        Some(file) => file,
        None => {
            // What an agent that was killed has made of it in part.
            match discard(folder, &name) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.to_string()),
                _ => make(folder, &name).map_err(said)?,
            }
        }
    };
    let mut extents = extents::of_file(file.as_fd())?;
    extents::cut(&mut extents, SPOOL_BYTES);
    // The drive keeps so many of a file; what they have is enough, or else the spool is soon full.
    extents.truncate(EXTENTS_MAX);
    Ok(extents)
}

/// True where a spool was made to the end: it is immutable only then.
fn is_whole(device: u64, file: &OwnedFd) -> bool {
    let is_it = |stat: rustix::fs::Stat| {
        stat.st_dev == device
            && stat.st_uid == 0
            && stat.st_mode & NOT_OWNERS == 0
            && stat.st_size as u64 == SPOOL_BYTES
    };
    rustix::fs::fstat(file).is_ok_and(is_it) && matches!(freeze::guarded(file.as_fd()), Ok(Guard::Immutable))
}

fn make(folder: &OwnedFd, name: &str) -> std::io::Result<OwnedFd> {
    let room = rustix::fs::fstatvfs(folder)?;
    if room.f_bavail.saturating_mul(room.f_frsize) < ROOM_MIN * SPOOL_BYTES {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let made = fill(&file);
    if made.is_err() {
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
    }
    made.map(|()| file)
}

/// Writes all of it, so that no block of it is unwritten in the eyes of the file system, durably.
fn fill(file: &OwnedFd) -> std::io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, SPOOL_BYTES)?;
    let zeroes = vec![0; PART_BYTES];
    for at in (0..SPOOL_BYTES).step_by(PART_BYTES) {
        write(file, at, &zeroes)?;
    }
    rustix::fs::fsync(file)?;
    freeze::set_immutable(file.as_fd(), true)?;
    Ok(rustix::fs::fsync(file)?)
}
