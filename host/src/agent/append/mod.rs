//! Append's part of the agent (Willow, 4.6): the device has the length of a file, so that a process appends to it without the operating system, and
//! an unmodified ext4 gets the length and what was appended back before anybody else looks.
//!
//! ```text
//! message   what a process says       tail      a delegated file: how it begins, and how it gets its length back
//! spool     blocks of the agent's own that the device appends to          record    what a later agent has to know
//! places    which files have one, and how many a user may have
//! ```
//!
//! What always holds:
//! - who appends has proved by a descriptor that it may write the file, which is its own (root: any);
//! - a process is permitted to write the spool, and to read nothing; nothing is permitted in a spool when it is another file's;
//! - whoever opens the file waits until it has all that was appended. Who asks for its length alone (stat) finds one that it had at most
//!   [`SETTLE_EVERY`] before, and the time that settling takes;
//! - files, processes' proofs and spools are bounded; a file waits for nobody but who works on it.

pub mod message;
mod places;
mod record;
mod spool;
mod tail;

use super::judge::{against_mount, check, places};
use super::module::{Caller, Module, Services};
use super::serving::WRITE;
use super::{REVOKE_MAX, Refusal, freeze, lease, lock};
use crate::append::{AppendClient, endpoints_of};
use crate::control::PermissionInfo;
use direct_io_host::FileExtent;
use message::{Ask, Told};
use places::Places;
use record::{Record, Records};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use spool::Spools;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};
use tail::{Tail, Tools};

/// Most proofs that the agent keeps, each with a descriptor; of which a user has at most as many as that leaves free.
const KNOWN_MAX: usize = 2048;
/// How often a file gets its length while it is appended to.
const SETTLE_EVERY: Duration = Duration::from_secs(1);
/// A file to which nothing was appended for so long is given back.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Wait between two attempts to give a file back.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a file may still be open when it is begun: another process may be closing its descriptor just now.
const PROOF_PATIENCE: Duration = Duration::from_millis(20);
/// Wait between two looks.
const PROOF_LOOK: Duration = Duration::from_millis(1);

/// A file that a process has proved that it may append to.
struct Known {
    user: u32,
    /// Device and inode.
    key: (u64, u64),
    /// A mere path: it keeps nobody from being the only one who has the file open, and the file's number from being another's.
    path: Arc<OwnedFd>,
}

/// What a process is permitted in the spool of a file.
struct Granted {
    number: u64,
    connection: u64,
    process: u32,
    user: u32,
    permissions: Vec<PermissionInfo>,
    /// It is to be revoked, and is not installed again. Since then the device refuses that.
    revoking: Option<Option<Instant>>,
}

/// Append's part of the agent.
pub(super) struct Append {
    records: Records,
    files: Places,
    /// By connection and number.
    known: Mutex<BTreeMap<(u64, u64), Known>>,
    granted: Mutex<Vec<Granted>>,
    spools: Spools,
    /// When what failed last is tried again.
    again: Mutex<BTreeMap<u64, Instant>>,
}

/// A file's number in the device: its coordinator is that of its inode, where SPUs are a power of two.
fn number(nsid: u32, inode: u64) -> Option<u64> {
    Some(u64::from(nsid) << 32 | u64::from(u32::try_from(inode).ok()?))
}

impl Append {
    /// With what an agent before this one has left, which is due at once. The error is a sentence.
    pub fn open(journal: &Path) -> Result<Append, String> {
        let records = Records::beside(journal);
        let (found, damaged) = records.all().map_err(|error| format!("the list of delegated files: {error}"))?;
        if let Some(why) = damaged.first() {
            return Err(format!("the list of delegated files is damaged: {why}"));
        }
        let (spools, files) = (Spools::default(), Places::default());
        for record in found {
            spools.note(record.device, record.spool);
            files.add_left(Tail::left(record));
        }
        Ok(Append {
            records,
            files,
            known: Mutex::default(),
            granted: Mutex::default(),
            spools,
            again: Mutex::default(),
        })
    }

    fn with_tools<T>(
        &self,
        services: &Services<'_>,
        what: impl FnOnce(&Tools<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (app, spus) = services.app(append_host::APP_NAME)?;
        let client = AppendClient::new(services.hre(), app, spus);
        what(&Tools { services, records: &self.records, client: &client })
    }

    fn prepare(&self, services: &Services<'_>, caller: &Caller, descriptors: Vec<OwnedFd>) -> Result<Told, Refusal> {
        let [descriptor] = &descriptors[..] else {
            return Err("one descriptor comes with the request to append to a file".into());
        };
        let system_said = |error: rustix::io::Errno| Refusal::Said(error.to_string());
        let flags = rustix::fs::fcntl_getfl(descriptor).map_err(system_said)?;
        if flags.contains(OFlags::PATH) || !matches!(flags & OFlags::RWMODE, OFlags::WRONLY | OFlags::RDWR) {
            return Err("its descriptor does not write".into());
        }
        let stat = rustix::fs::fstat(descriptor).map_err(system_said)?;
        if check(descriptor, &stat, caller.user)? != freeze::EXT4 {
            return Err("it is not on ext4: for others nobody has shown that its length stays as it is".into());
        }
        let (nsid, _) = services.place(stat.st_dev)?;
        let number = number(nsid, stat.st_ino).ok_or("its inode has a number of more than 32 bits")?;
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let path = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(system_said)?;
        let mut known = lock(&self.known);
        let own = known.values().filter(|known| known.user == caller.user).count();
        let is_new = !known.contains_key(&(caller.connection, number));
        if is_new && (known.len() + own >= KNOWN_MAX && caller.user != 0 || known.len() >= KNOWN_MAX) {
            return Err("as many files are appended to as leave room for other users'".into());
        }
        let key = (stat.st_dev, stat.st_ino);
        known.insert((caller.connection, number), Known { user: caller.user, key, path: Arc::new(path) });
        Ok(Told::Prepared { file: number })
    }

    fn begin(&self, services: &Services<'_>, caller: &Caller, number: u64) -> Result<Told, Refusal> {
        let (key, path) = {
            let known = lock(&self.known);
            let known = known
                .get(&(caller.connection, number))
                .ok_or("this connection has not proved that it may append to it")?;
            (known.key, known.path.clone())
        };
        if services.is_changed(key) {
            return Err("a process is changing it through the file system".into());
        }
        let process = services.process(caller)?;
        self.with_tools(services, |tools| {
            let slot = self.files.take(number, key, caller.user, tools.client.numbers().1)?;
            let mut tail = lock(&slot);
            // The owner may be another by now.
            let stat = rustix::fs::fstat(&*path).map_err(|error| error.to_string())?;
            check(&path, &stat, caller.user)?;
            if tail.as_ref().is_some_and(|tail| tail.is_ending || tail.is_awaited()) {
                self.finish(tools, &mut tail).map_err(|_| Refusal::Busy)?;
            }
            if let Some(open) = &mut *tail {
                match open.look(tools)? {
                    Some((_, true)) => {}
                    Some((_, false)) => self.settle_and_go_on(tools, &mut tail)?,
                    // The device knows nothing of it: another has been put in its place.
                    None => self.finish(tools, &mut tail)?,
                }
            }
            if tail.is_none() {
                self.start(tools, &mut tail, (key, number), &path)?;
            }
            let begun = tail.as_ref().ok_or(Refusal::Busy)?;
            let told = self.admit(tools, begun, caller, process).and_then(|()| Ok(begun.look(tools)?));
            match told {
                Ok(Some((length, _))) => {
                    let (app, spus) = tools.client.numbers();
                    Ok(Told::Begun { app, spus, length })
                }
                other => {
                    let why = other.err().unwrap_or_else(|| "the device has forgotten it".into());
                    if !lock(&self.granted).iter().any(|it| it.number == number && it.revoking.is_none()) {
                        self.finish(tools, &mut tail)?;
                    }
                    Err(why)
                }
            }
        })
    }

    /// Has the device take over the length of a file that nobody has open.
    fn start(
        &self,
        tools: &Tools<'_>,
        tail: &mut Option<Tail>,
        (key, number): ((u64, u64), u64),
        path: &OwnedFd,
    ) -> Result<(), Refusal> {
        lease::check_break_time()?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo");
        let mounts = mounts.map_err(|error| format!("how it is mounted cannot be found out ({error})"))?;
        if let Some(why) = against_mount(key.0, &mounts) {
            return Err(why.into());
        }
        let mounted = places(key.0, &mounts);
        let begun = Instant::now();
        let writer = loop {
            let opened = super::handle::open_by_own_mount(path.as_fd(), key, &mounted, OFlags::RDWR);
            if let Ok(writer) = opened {
                if lease::take_alone(writer.as_fd())
                    .map_err(|error| format!("the agent gets no lease of it ({error})"))?
                {
                    break writer;
                }
                if begun.elapsed() >= PROOF_PATIENCE {
                    return Err(Refusal::OpenForWriting(key));
                }
            } else if begun.elapsed() >= PROOF_PATIENCE {
                // Where somebody has a lease of it, this agent for one, that is broken now.
                return Err(opened.err().unwrap_or_default().into());
            }
            std::thread::sleep(PROOF_LOOK);
        };
        if freeze::check(writer.as_fd())? {
            return Err("it is immutable (chattr +i)".into());
        }
        freeze::check_writing(writer.as_fd())?;
        let stat = rustix::fs::fstat(&writer).map_err(|error| error.to_string())?;
        let place = tools.services.place(key.0)?;
        let handle =
            super::handle::Handle::of_file(writer.as_fd()).ok_or("its file system has no handles for files")?;
        let named = std::fs::read_link(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap_or_default();
        let mounted = mounted.first().ok_or("its file system is not mounted for the agent")?;
        if Tail::is_known(tools, number)? {
            return Err("the device has the length of a file with its number, of which this agent has no record".into());
        }
        let begin = FileExtent { file_offset: 0, namespace_offset: place.1, bytes: 0 };
        tools.services.check_blocks(place.0, writer.as_fd(), &[begin])?;
        let (spool, extents) = self.spools.take(key.0, mounted)?;
        let base = stat.st_size as u64;
        let record = Record {
            number,
            device: key.0,
            inode: key.1,
            // For those who read messages: what finds the file is its handle, and a name that is no UTF-8 has no place in a record.
            path: named.to_string_lossy().into_owned().into(),
            handle,
            place,
            spool,
            extents: extents.iter().map(|extent| (extent.namespace_offset + place.1, extent.bytes)).collect(),
            base,
            at: base,
            has_length: false,
        };
        let prepared = match Tail::prepare(tools, record, writer) {
            Ok(prepared) => prepared,
            Err(why) => {
                let _ = self.records.remove(number);
                self.spools.release(key.0, spool);
                return Err(why.into());
            }
        };
        let delegated = tail.insert(prepared).delegate(tools);
        if let Err(why) = delegated {
            self.finish(tools, tail)?;
            return Err(why.into());
        }
        Ok(())
    }

    /// Lets a process append, and have the device write the spool for it.
    fn admit(&self, tools: &Tools<'_>, tail: &Tail, caller: &Caller, process: u32) -> Result<(), Refusal> {
        let (number, connection, user) = (tail.record.number, caller.connection, caller.user);
        let permissions = tools.services.permissions(tail.record.place.0, &tail.spool(), WRITE);
        tools.services.faults().step();
        let is_here = |it: &Granted| (it.number, it.connection, it.process) == (number, connection, process);
        {
            let mut granted = lock(&self.granted);
            if granted.iter().any(|it| is_here(it) && it.revoking.is_some()) {
                return Err(Refusal::Busy);
            }
            if !granted.iter().any(is_here) {
                let permissions = permissions.clone();
                granted.push(Granted { number, connection, process, user, permissions, revoking: None });
            }
        }
        tools.services.grant((process, user), &permissions)?;
        let admitted = tools.services.wait(tools.client.admit(number, endpoints_of(process), true));
        Ok(admitted.map_err(|error| error.to_string())?)
    }

    /// Gives a file what was appended so far, and goes on; where that does not go, it is given back.
    fn settle_and_go_on(&self, tools: &Tools<'_>, tail: &mut Option<Tail>) -> Result<(), String> {
        let Some(open) = tail else { return Ok(()) };
        if let Err(why) = open.settle(tools) {
            open.is_ending = true;
            return Err(why);
        }
        let number = open.record.number;
        let gone_on = open.delegate_again(tools).and_then(|()| {
            let who: Vec<u32> = {
                let granted = lock(&self.granted);
                granted.iter().filter(|it| it.number == number && it.revoking.is_none()).map(|it| it.process).collect()
            };
            who.into_iter().try_for_each(|process| {
                tools
                    .services
                    .wait(tools.client.admit(number, endpoints_of(process), true))
                    .map_err(|error| error.to_string())
            })
        });
        gone_on.or_else(|why| {
            tracing::info!("a file is appended to by the kernel again: {why}");
            self.finish(tools, tail)
        })
    }

    /// Gives a file back. Where that fails it stays immutable and listed, and it is tried again.
    fn finish(&self, tools: &Tools<'_>, tail: &mut Option<Tail>) -> Result<(), String> {
        let Some(open) = tail else { return Ok(()) };
        open.is_ending = true;
        open.take_up()?;
        open.settle(tools)?;
        self.revoke(tools.services, |it| it.number == open.record.number)?;
        open.give_back(tools)?;
        self.spools.release(open.record.device, open.record.spool);
        *tail = None;
        Ok(())
    }

    /// Takes what was permitted off the list, and has the device revoke it. What it does not is kept, and the agent ends where that goes on.
    fn revoke(&self, services: &Services<'_>, which: impl Fn(&Granted) -> bool) -> Result<(), String> {
        let taken = services.take_off(|| {
            let mut granted = lock(&self.granted);
            let those = granted.iter_mut().filter(|it| which(it)).map(|it| {
                let refused = *it.revoking.get_or_insert(None);
                (it.number, it.connection, it.process, it.permissions.clone(), refused)
            });
            those.collect::<Vec<_>>()
        });
        let mut failure = Ok(());
        for (number, connection, process, permissions, refused) in taken {
            let is_it = |it: &Granted| (it.number, it.connection, it.process) == (number, connection, process);
            match services.revoke(process, &permissions) {
                Ok(()) => lock(&self.granted).retain(|it| !is_it(it)),
                Err(why) => {
                    let refused = why.refused_since(refused);
                    lock(&self.granted).iter_mut().filter(|it| is_it(it)).for_each(|it| it.revoking = Some(refused));
                    if refused.is_some_and(|since| since.elapsed() >= REVOKE_MAX) {
                        services.fail(format!("what a process may append could not be revoked: {why}"));
                    }
                    failure = Err(why.to_string());
                }
            }
        }
        failure
    }

    /// A process appends no more to a file.
    fn leave(&self, services: &Services<'_>, connection: u64, number: u64) -> Result<(), Refusal> {
        let shown = lock(&self.known).remove(&(connection, number));
        // Who has shown nothing of a file has nothing of it to end.
        let Some(Known { key, .. }) = shown else { return Ok(()) };
        self.revoke(services, |it| (it.number, it.connection) == (number, connection))?;
        let has_others = || lock(&self.granted).iter().any(|it| it.number == number);
        let Some(slot) = self.files.find_file(number, key).filter(|_| !has_others()) else { return Ok(()) };
        let mut tail = lock(&slot);
        // Another may have begun meanwhile.
        if tail.is_none() || has_others() {
            return Ok(());
        }
        self.with_tools(services, |tools| Ok(self.finish(tools, &mut tail)?))
    }
}

impl Module for Append {
    fn name(&self) -> &'static str {
        append_host::APP_NAME
    }

    fn request(
        &self,
        services: &Services<'_>,
        caller: &Caller,
        ask: Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Value, Refusal> {
        let ask: Ask = serde_json::from_value(ask).map_err(|error| format!("a request about appending: {error}"))?;
        let told = match ask {
            Ask::Prepare => self.prepare(services, caller, descriptors)?,
            Ask::Begin { file } => self.begin(services, caller, file)?,
            Ask::End { file } => {
                self.leave(services, caller.connection, file)?;
                Told::Ended
            }
        };
        Ok(serde_json::to_value(told).map_err(|error| error.to_string())?)
    }

    fn permissions(&self, process: u32) -> Vec<(u32, PermissionInfo)> {
        let granted = lock(&self.granted);
        let of_it = granted.iter().filter(|it| it.process == process && it.revoking.is_none());
        of_it.flat_map(|it| it.permissions.iter().map(|permission| (it.user, *permission))).collect()
    }

    fn holds(&self, connection: u64) -> usize {
        lock(&self.known).range((connection, 0)..=(connection, u64::MAX)).count()
    }

    fn gone(&self, services: &Services<'_>, connection: u64) {
        let shown: Vec<Known> = {
            let mut known = lock(&self.known);
            known.extract_if((connection, 0)..=(connection, u64::MAX), |_, _| true).map(|(_, known)| known).collect()
        };
        // To close the last descriptor of a file that has no name takes as long as the file system likes: nobody waits for that.
        drop(shown);
        if let Err(why) = self.revoke(services, |it| it.connection == connection) {
            tracing::error!("what a process that ended could append is not revoked yet: {why}");
        }
    }

    fn take_back(&self, services: &Services<'_>, file: (u64, u64)) -> Result<(), Refusal> {
        // Its namespace is the one of its file system: no other file's place is waited for.
        let Ok((nsid, _)) = services.place(file.0) else { return Ok(()) };
        let Some(slot) = number(nsid, file.1).and_then(|number| self.files.find_file(number, file)) else {
            return Ok(());
        };
        let mut tail = lock(&slot);
        if tail.is_some() {
            self.with_tools(services, |tools| Ok(self.finish(tools, &mut tail)?))?;
        }
        Ok(())
    }

    fn due(&self) -> Vec<u64> {
        let now = Instant::now();
        let is_due = |number: u64, slot: &places::Slot| {
            if lock(&self.again).get(&number).is_some_and(|again| *again > now) {
                return false;
            }
            let tail = match slot.try_lock() {
                Ok(tail) => tail,
                Err(TryLockError::Poisoned(tail)) => tail.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            };
            let Some(tail) = &*tail else { return false };
            let granted = lock(&self.granted);
            let mut own = granted.iter().filter(|it| it.number == number);
            let is_left = !own.clone().any(|it| it.revoking.is_none()) || own.any(|it| it.revoking.is_some());
            tail.is_ending || is_left || tail.is_awaited() || now - tail.looked >= SETTLE_EVERY
        };
        self.files.all().into_iter().filter(|(number, slot)| is_due(*number, slot)).map(|(number, _)| number).collect()
    }

    fn mend(&self, services: &Services<'_>, number: u64) -> Result<(), String> {
        let Some(slot) = self.files.find(number) else { return Ok(()) };
        let mut tail = lock(&slot);
        let done = self.with_tools(services, |tools| Ok(self.look_after(tools, &mut tail)?));
        match done {
            Ok(()) => lock(&self.again).remove(&number),
            Err(_) => lock(&self.again).insert(number, Instant::now() + AGAIN),
        };
        let path = tail.as_ref().map(|tail| tail.record.path.display().to_string()).unwrap_or_default();
        done.map_err(|why| match why {
            Refusal::Said(why) => format!("{path} is not given back yet: {why}"),
            other => format!("{path} is not given back yet: {other:?}"),
        })
    }

    fn left(&self) -> Vec<u64> {
        self.files.all().into_iter().map(|(number, _)| number).collect()
    }

    fn end(&self, services: &Services<'_>, number: u64) {
        let Some(slot) = self.files.find(number) else { return };
        let mut tail = lock(&slot);
        let Some(open) = &*tail else { return };
        let path = open.record.path.clone();
        if let Err(why) = self.with_tools(services, |tools| Ok(self.finish(tools, &mut tail)?)) {
            tracing::error!("{} stays immutable until the next agent: {why:?}", path.display());
        }
    }

    fn ended(&self) {
        self.spools.remove_unused();
    }
}

impl Append {
    /// Does what is due of a file.
    fn look_after(&self, tools: &Tools<'_>, tail: &mut Option<Tail>) -> Result<(), String> {
        let Some(open) = tail else { return Ok(()) };
        let number = open.record.number;
        // Of processes that have gone.
        self.revoke(tools.services, |it| it.number == number && it.revoking.is_some())?;
        let is_left = !lock(&self.granted).iter().any(|it| it.number == number);
        if open.is_ending || is_left || open.is_awaited() {
            return self.finish(tools, tail);
        }
        let now = Instant::now();
        open.looked = now;
        match open.look(tools)? {
            Some((length, _)) if length > open.record.base => {
                open.grown = now;
                self.settle_and_go_on(tools, tail)
            }
            Some(_) if now - open.grown < IDLE_MAX => Ok(()),
            _ => self.finish(tools, tail),
        }
    }
}
