//! Files of processes: prepared, opened, released and closed.
//!
//! What always holds:
//! - a file is granted in this order: the process replaces its descriptors; the lease proves that it is open for writing nowhere; it is made
//!   immutable, and the lease stands; its extents are asked for, and the lease still stands; permissions are installed, and it stands even then;
//! - a file that is being opened or closed by one thread is left to it by all others;
//! - a permission is taken from the list before it is revoked, and nothing installs it again in between: who installs and who takes off
//!   the list do so by turns (`order`);
//! - nothing here keeps a lock of the agent's while it calls a file system.

use super::access::may_change;
use super::fault::{Fault, LATE};
use super::freeze::is_immutable;
use super::freezes::{UnderWay, Watch};
use super::hold::Hold;
use super::judge::{against_mount, judge, places};
use super::message::{PREPARED_MAX, VERSION};
use super::revoking::{FILES_AT_ONCE, Patience, WAITED_FOR_AT_ONCE};
use super::seldom::Seldom;
use super::serving::{READ, WRITE};
use super::shares::NO_PLACE;
use super::{
    Agent, CHANGES_MAX, CONTENDED_MAX, Connected, EXTENTS_MAX, FILES_MAX, Known, OpenFile, REVOKE_MAX, Refusal, Stage,
    Way, extents,
};
use crate::control::PermissionInfo;
use direct_io_host::FileExtent;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_shm::socket::Peer;

/// Longest wait for files that are being opened or closed; then who asks is told to ask again.
const RELEASE_MAX: Duration = Duration::from_secs(10);
/// Wait between two looks at one.
pub(super) const RELEASE_LOOK: Duration = Duration::from_millis(1);
/// Wait where the device has not revoked.
pub(super) const RELEASE_AGAIN: Duration = Duration::from_millis(50);

/// What came of opening a file.
pub(super) struct Granted {
    pub file: u32,
    pub bytes: u64,
    pub rights: u32,
    pub nsid: u32,
    pub extents: Vec<FileExtent>,
}

/// What came of asking for one.
pub(super) enum Asked {
    Prepared(u32),
    Granted(Granted),
}

/// A file that is being closed: the process in the device and its user, the hold, what was permitted and since when the device refuses to revoke that,
/// whether to write, and what a freeze waits for.
type Closing = ((Option<u32>, u32), Arc<Hold>, (Vec<PermissionInfo>, Option<Instant>), bool, UnderWay);

/// How a file is closed.
#[derive(Clone, Copy)]
pub(super) struct Closes {
    /// It is the thread that mends what is its user's that thaws it, since a user can have the kernel wait for as long as he likes with that.
    pub by_owner: bool,
    /// With a device that works on what was under way.
    pub patience: Patience,
    /// With another thread that opens or closes it.
    pub busy: Duration,
}

/// By who asked for it, who does not wait for ever.
pub(super) const ASKED: Closes = Closes { by_owner: false, patience: Patience::UpTo(REVOKE_MAX), busy: RELEASE_MAX };
/// By who closes it with many others, none of which waits for what a user does with this one.
const AMONG_OTHERS: Closes = Closes { busy: Duration::ZERO, ..ASKED };

impl Agent {
    /// Number of a process in the device: which the device's socket told it when the process connected there, or by which the process was
    /// let in.
    pub(super) async fn process(&self, key: u64, user: u32, identity: (u64, u64)) -> Result<u32, String> {
        let Way::Memory(device) = &self.way else {
            let known = self.state().connected.get(&key).and_then(|connected| connected.process);
            return known
                .ok_or_else(|| "the device knows nothing of this process: ask for an endpoint first".to_owned());
        };
        let known = self.control.processes().await.map_err(|error| error.to_string())?;
        let found = known.iter().find(|info| info.identity == identity && info.user == user);
        found.map(|info| info.process).ok_or_else(|| {
            format!("the device knows no endpoint of this process: open one at {} first", device.display())
        })
    }

    /// Opens a file, or prepares it where the process has to give descriptors up first.
    pub(super) async fn open(
        &self,
        key: u64,
        (user, identity): (u32, (u64, u64)),
        (version, again, ready): (u32, bool, bool),
        descriptors: Vec<OwnedFd>,
    ) -> Result<Asked, Refusal> {
        if version != VERSION {
            return Err(format!("the agent speaks version {VERSION}, not {version}").into());
        }
        let known = |file| match again {
            true => self.state().connected.get(&key).map_or(0, |connected| connected.known_rights(file)),
            false => 0,
        };
        let judged = judge(&descriptors, user, (self.allow_xfs, self.faults.has(Fault::NoJudge)), known)?;
        let place = self.places.find(judged.key.0)?;
        let process = self.process(key, user, identity).await?;
        self.make_place(user).await?;
        let hold = {
            // Under the same lock as a release looks for who has it.
            let mut state = self.state();
            if state.connected.values().any(|other| other.changes.contains(&judged.key)) {
                return Err("a process is changing it through the file system".into());
            }
            let has_place = user == 0 || self.taken(&state) < self.descriptors_max();
            let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
            connected.process = Some(process);
            if !has_place {
                return Err(NO_PLACE.into());
            }
            if connected.files.len() >= FILES_MAX {
                return Err(format!("this process has {FILES_MAX} files open directly, which is the most").into());
            }
            self.holds.reserve(judged.key)
        };
        let prepared = self.prepare(&hold, &descriptors, judged.rights & WRITE != 0);
        // Whatever of them could be written by is the agent's no longer.
        drop(descriptors);
        let watch = match prepared {
            Ok(watch) => watch,
            Err(why) => {
                self.holds.release(&hold, user);
                return Err(why);
            }
        };
        let (stage, descriptor, file) = (Stage::Prepared(Instant::now()), hold.descriptor(), hold.key());
        let (rights, permissions) = (judged.rights, Vec::new());
        let number = {
            let mut state = self.state();
            let Some(connected) = state.connected.get_mut(&key) else {
                drop(state);
                self.holds.release(&hold, user);
                return Err("the connection has ended".into());
            };
            connected.next_file = connected.next_file.wrapping_add(1);
            let open = OpenFile { hold, rights, place, stage, permissions, revoking: Vec::new(), extents: 0, watch };
            connected.files.insert(connected.next_file, open);
            if let Some(descriptor) = descriptor {
                connected.know(file, rights, descriptor);
            }
            connected.next_file
        };
        match ready {
            true => self.confirm(key, number).await.map(Asked::Granted),
            false => Ok(Asked::Prepared(number)),
        }
    }

    fn prepare(&self, hold: &Hold, descriptors: &[OwnedFd], writes: bool) -> Result<Arc<Watch>, Refusal> {
        let device = hold.key().0;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo");
        let mounts = mounts.map_err(|error| format!("how it is mounted cannot be found out ({error})"))?;
        if let Some(why) = against_mount(device, &mounts) {
            return Err(why.into());
        }
        if self.freezes.is_frozen(device) {
            return Err(Refusal::Frozen);
        }
        // Who only reads as well: the attribute cannot be set or taken off while a file system is frozen.
        let places = places(device, &mounts);
        let watch = self.freezes.watch(device, &places)?;
        let first = descriptors.first().ok_or("it has no descriptor")?;
        self.holds.prepare(hold, first.as_fd(), writes, &places)?;
        Ok(watch)
    }

    /// Grants a file that was prepared, if nobody has it open for writing. Where it fails the file is closed.
    pub(super) async fn confirm(&self, key: u64, file: u32) -> Result<Granted, Refusal> {
        let found = {
            let mut state = self.state();
            let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
            let process = connected.process.ok_or("the device does not know this process")?;
            let user = connected.user;
            let found = connected.files.get_mut(&file).filter(|found| matches!(found.stage, Stage::Prepared(_)));
            let found = found.ok_or("it was taken back meanwhile")?;
            found.stage = Stage::Busy;
            ((process, user), found.hold.clone(), found.place, found.rights, found.watch.clone())
        };
        let (process, hold, (nsid, offset), rights, watch) = found;
        // Not under way for a freeze yet: where a freeze has begun this waits for its end.
        let proved = match self.holds.prove(&hold, process.1, rights & WRITE != 0).and_then(|()| count(&hold)) {
            Ok(extents) => self.make_room((key, file), extents).await,
            Err(why) => Err(why),
        };
        // Until the permissions are on the list, or taken back.
        let (granted, _under_way) = match proved.and_then(|()| watch.begin()) {
            Ok(under_way) if self.faults.has(Fault::NotUnderWay) => {
                drop(under_way);
                let granted = self.grant(process, &hold, (nsid, offset), rights).await;
                tokio::time::sleep(LATE).await;
                (granted, None)
            }
            Ok(under_way) => {
                let granted = self.grant(process, &hold, (nsid, offset), rights).await;
                if self.faults.has(Fault::SettledLate) {
                    // So that a freeze meets it on any machine.
                    tokio::time::sleep(LATE / 2).await;
                }
                (granted, Some(under_way))
            }
            Err(why) => (Err((why, Vec::new())), None),
        };
        let (done, permissions) = match granted {
            Ok((bytes, extents, permissions)) => (Ok(Granted { file, bytes, rights, nsid, extents }), permissions),
            Err((why, permissions)) => (Err(why), permissions),
        };
        if let Some(found) = self.state().connected.get_mut(&key).and_then(|it| it.files.get_mut(&file)) {
            found.stage = Stage::Granted;
            match done {
                Ok(_) => found.permissions = permissions,
                // What may have been installed of it is never installed again.
                Err(_) => found.revoking = permissions,
            }
        }
        if done.is_err() {
            self.close(key, file, true, false).await?;
        }
        done
    }

    /// Settles a file that was proved, and installs the permissions for what it has. With an error: what may have been installed.
    async fn grant(
        &self,
        process: (u32, u32),
        hold: &Hold,
        (nsid, offset): (u32, u64),
        rights: u32,
    ) -> Result<(u64, Vec<FileExtent>, Vec<PermissionInfo>), (Refusal, Vec<PermissionInfo>)> {
        let nothing = |why: Refusal| (why, Vec::new());
        let descriptor = hold.descriptor().ok_or_else(|| nothing("it was taken back meanwhile".into()))?;
        let (bytes, found) = settle(&descriptor, offset).map_err(|why| nothing(why.into()))?;
        self.check_blocks(nsid, descriptor.as_fd(), &found).map_err(|why| nothing(why.into()))?;
        let permissions = self.permissions(nsid, &found, rights);
        let looks_late = self.faults.has(Fault::LookedLate);
        // A user can have the kernel wait with these questions for longer than it waits for a lease: whoever had begun to open the file may have it by
        // now, and have moved its blocks since the first answer.
        let proves_late = self.faults.has(Fault::GrantFirst);
        if !looks_late && !proves_late && !self.is_kept(hold) {
            return Err(nothing(Refusal::OpenForWriting(hold.key())));
        }
        self.faults.step();
        if let Err(error) = self.control.grant_to_user(process, &permissions).await {
            // Some of it may have been installed.
            return Err((error.to_string().into(), permissions));
        }
        self.faults.step();
        if proves_late && let Err(why) = self.holds.prove_late(hold) {
            return Err((why, permissions));
        }
        if looks_late {
            tokio::time::sleep(LATE).await;
        }
        // Whoever began to open it for writing before it was immutable is seen by this, and waits until the lease is given up.
        if !self.is_kept(hold) {
            return Err((Refusal::OpenForWriting(hold.key()), permissions));
        }
        Ok((bytes, found, permissions))
    }

    /// True while nobody has a file open for writing, or is about to.
    fn is_kept(&self, hold: &Hold) -> bool {
        hold.is_whole() || self.faults.has(Fault::NoLease)
    }

    /// Closes a file; one that is closed already is closed. Where the device does not revoke, it stays as it is, and this may be tried
    /// again.
    pub(super) async fn close(&self, key: u64, file: u32, unchanged: bool, forget: bool) -> Result<(), Refusal> {
        self.close_by(key, file, (unchanged, forget), ASKED).await
    }

    /// The same, in this way.
    pub(super) async fn close_by(
        &self,
        key: u64,
        file: u32,
        (unchanged, forget): (bool, bool),
        Closes { by_owner, patience, busy }: Closes,
    ) -> Result<(), Refusal> {
        let begun = Instant::now();
        let taken = loop {
            match self.take_for_closing(key, file).await? {
                Some(taken) => break taken,
                None if begun.elapsed() >= busy => return Err(Refusal::Busy),
                None => tokio::time::sleep(RELEASE_LOOK).await,
            }
        };
        let Some(((process, user), hold, (permissions, refused), writable, under_way)) = taken else {
            return Ok(());
        };
        self.faults.step();
        let is_thawed = self.faults.has(Fault::ThawFirst);
        if is_thawed {
            self.holds.release(&hold, user);
            tokio::time::sleep(LATE).await;
        }
        if let Some(process) = process {
            // Where the process is gone, its permissions are: this waits for what was under way all the same.
            if let Err(error) = self.revoke(process, &permissions, patience).await {
                let refused = error.refused_since(refused);
                if let Some(found) = self.state().connected.get_mut(&key).and_then(|it| it.files.get_mut(&file)) {
                    found.stage = Stage::Revoking(refused);
                }
                // Since that hold does not thaw, nothing is lost by trying again.
                if writable && !unchanged {
                    hold.note_write();
                }
                let why = format!("what the device permits of it could not be revoked: {error}");
                if refused.is_some_and(|since| since.elapsed() >= REVOKE_MAX) {
                    self.fail(why.clone());
                }
                return Err(format!("{why}; it stays immutable until it is").into());
            }
            self.restore_kept(process, hold.key(), (key, file)).await;
        }
        self.faults.step();
        drop(under_way);
        if writable && !unchanged {
            hold.note_write();
        }
        match self.freezes.is_frozen(hold.key().0) {
            _ if is_thawed => {}
            // It would wait for the file system.
            is_frozen if is_frozen || by_owner => self.holds.defer(&hold, user),
            _ => self.holds.release(&hold, user),
        }
        if let Some(connected) = self.state().connected.get_mut(&key) {
            connected.remove(file);
            if forget && !connected.files.values().any(|other| other.hold.key() == hold.key()) {
                connected.known.remove(&hold.key());
            }
        }
        Ok(())
    }

    /// Takes a file's permissions off the list, and leaves it to the caller. `None`: another thread has it; nothing inside: it is gone.
    async fn take_for_closing(&self, key: u64, file: u32) -> Result<Option<Option<Closing>>, String> {
        let _turn = self.order.lock().await;
        let mut state = self.state();
        let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
        let process = (connected.process, connected.user);
        let Some(found) = connected.files.get_mut(&file) else { return Ok(Some(None)) };
        if matches!(found.stage, Stage::Busy) {
            return Ok(None);
        }
        let refused = if let Stage::Revoking(refused) = found.stage { refused } else { None };
        found.stage = Stage::Busy;
        let permissions = found.begin_revoking();
        let under_way = found.watch.begin_revoking();
        Ok(Some(Some((process, found.hold.clone(), (permissions, refused), found.rights & WRITE != 0, under_way))))
    }

    /// Takes a file back from all that have it, for a process that is going to change it through the file system.
    /// Its own it closes as well: it asks when it has given back what it knew of it.
    pub(super) async fn release(&self, key: u64, peer: &Peer, mut descriptors: Vec<OwnedFd>) -> Result<(), Refusal> {
        let (Some(descriptor), true) = (descriptors.pop(), descriptors.is_empty()) else {
            return Err("one descriptor comes with the request to release a file".into());
        };
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| error.to_string())?;
        if !may_change(peer, descriptor.as_fd(), &stat) {
            return Err("it belongs to another user: only who could change it may have it released".into());
        }
        self.take_back((stat.st_dev, stat.st_ino), Some(key)).await
    }

    /// Takes a file back from all that have it, at the same time: whoever keeps one of them busy keeps it from none of the others. `by`: who is
    /// going to change it, and may until it says that it has.
    pub(super) async fn take_back(&self, released: (u64, u64), by: Option<u64>) -> Result<(), Refusal> {
        let begun = Instant::now();
        loop {
            let found: Vec<(u64, u32)> = {
                let mut state = self.state();
                if let Some(connected) = by.and_then(|by| state.connected.get_mut(&by)) {
                    connected.note_change(released);
                }
                let of = |(key, connected): (&u64, &Connected)| {
                    let (key, files) = (*key, connected.files.iter());
                    let those = files.filter(|(_, file)| file.hold.key() == released).map(|(number, _)| (key, *number));
                    those.collect::<Vec<_>>()
                };
                state.connected.iter().flat_map(of).collect()
            };
            for (holder, _) in found.iter().filter(|(holder, _)| Some(*holder) != by) {
                if let Some(connected) = self.state().connected.get_mut(holder) {
                    connected.is_stale = true;
                }
            }
            // Closed by its holder meanwhile is as good.
            let (_, failure) = self.close_each(&found, AMONG_OTHERS, WAITED_FOR_AT_ONCE).await;
            // One that was being opened is found the next time.
            if !self.holds.contains(released) {
                return Ok(());
            }
            if self.freezes.is_frozen(released.0) {
                return Err(Refusal::Frozen);
            }
            if begun.elapsed() > RELEASE_MAX {
                return Err(failure.unwrap_or(Refusal::Busy));
            }
            let is_refused = failure.is_some_and(|why| !matches!(why, Refusal::Busy));
            tokio::time::sleep(if is_refused { RELEASE_AGAIN } else { RELEASE_LOOK }).await;
        }
    }

    /// A descriptor by which the process may write the file, where it proved before that it may, and the file's mode has changed since.
    pub(super) fn reopen(&self, key: u64, flags: u32, descriptors: &[OwnedFd]) -> Result<OwnedFd, String> {
        let [descriptor] = descriptors else {
            return Err("one descriptor comes with the request to open a file anew".to_owned());
        };
        let stat = rustix::fs::fstat(descriptor).map_err(|error| error.to_string())?;
        let known = {
            let mut state = self.state();
            let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
            if connected.user != 0 && connected.user != stat.st_uid {
                connected.known.remove(&(stat.st_dev, stat.st_ino));
                return Err("it belongs to another user by now".to_owned());
            }
            connected.known.get(&(stat.st_dev, stat.st_ino)).map(|known| (known.rights, known.descriptor.clone()))
        };
        let (rights, descriptor) = known.ok_or("this connection has not opened that file")?;
        let kept = OFlags::RWMODE | OFlags::APPEND | OFlags::DIRECT | OFlags::NOATIME | OFlags::SYNC | OFlags::DSYNC;
        let flags = OFlags::from_bits_retain(flags) & kept;
        let wanted = match flags & OFlags::RWMODE {
            OFlags::RDONLY => READ,
            OFlags::WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if rights & wanted != wanted {
            return Err("this connection has not opened that file so".to_owned());
        }
        if is_immutable(descriptor.as_fd()) {
            return Err("it is open directly".to_owned());
        }
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        // Never waits for a lease; which the process' own descriptor may do.
        let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        let opened = opened.map_err(|error| error.to_string())?;
        rustix::fs::fcntl_setfl(&opened, flags - OFlags::RWMODE).map_err(|error| error.to_string())?;
        Ok(opened)
    }

    /// Notes that a process did not get a file since it is open for writing; true where another process asks for it as well.
    pub(super) fn note_contended(&self, key: u64, file: (u64, u64)) -> bool {
        let mut state = self.state();
        if let Some(connected) = state.connected.get_mut(&key)
            && !connected.contended.contains(&file)
        {
            connected.contended.push_back(file);
            if connected.contended.len() > CONTENDED_MAX {
                connected.contended.pop_front();
            }
        }
        let mut others = state.connected.iter().filter(|(other, _)| **other != key);
        others.any(|(_, other)| other.contended.contains(&file) || other.known.contains_key(&file))
    }

    /// Forgets what a process showed of a file that it does not have open.
    pub(super) fn forget(&self, key: u64, descriptors: &[OwnedFd]) {
        let Some(Ok(stat)) = descriptors.first().map(rustix::fs::fstat) else { return };
        let file = (stat.st_dev, stat.st_ino);
        if let Some(connected) = self.state().connected.get_mut(&key)
            && !connected.files.values().any(|open| open.hold.key() == file)
        {
            connected.known.remove(&file);
        }
    }

    /// Closes what a process prepared and did not confirm in time.
    pub(super) async fn expire(&self, key: u64) {
        let expired: Vec<u32> = {
            let state = self.state();
            let Some(connected) = state.connected.get(&key) else { return };
            let is_old = |file: &OpenFile| matches!(file.stage, Stage::Prepared(at) if at.elapsed() >= PREPARED_MAX);
            connected.files.iter().filter(|(_, file)| is_old(file)).map(|(number, _)| *number).collect()
        };
        for file in expired {
            let _ = self.close(key, file, true, false).await;
        }
    }

    /// Closes all files of a process; how many could not be closed.
    pub(super) async fn close_all(&self, key: u64) -> usize {
        let files: Vec<u32> = {
            let state = self.state();
            state.connected.get(&key).map_or_else(Vec::new, |connected| connected.files.keys().copied().collect())
        };
        static SAID: Seldom = Seldom::new();
        let files: Vec<(u64, u32)> = files.into_iter().map(|file| (key, file)).collect();
        let (left, failure) = self.close_each(&files, ASKED, FILES_AT_ONCE).await;
        if let Some(why) = failure
            && SAID.is_due()
        {
            tracing::error!("the permissions of a process that ended could not be taken back: {why:?}");
        }
        left
    }

    /// Files that are frozen now.
    pub fn frozen(&self) -> usize {
        self.holds.count()
    }

    /// Of those, the ones that somebody waits to open for writing.
    pub fn waited_for(&self) -> usize {
        self.holds.broken().len()
    }

    /// Of those, the ones that nobody has any more, and that could not be thawed yet.
    pub fn left(&self) -> usize {
        self.holds.left().values().sum()
    }
}

impl Connected {
    /// Notes that it is going to change a file; of too many, the one before is over.
    fn note_change(&mut self, file: (u64, u64)) {
        if !self.changes.contains(&file) {
            self.changes.push_back(file);
        }
        if self.changes.len() > CHANGES_MAX {
            self.changes.pop_front();
        }
    }

    fn known_rights(&self, file: (u64, u64)) -> u32 {
        self.known.get(&file).map_or(0, |known| known.rights)
    }

    /// Notes that the process has proved to have these rights; of too many files that it does not have open, the oldest are forgotten.
    fn know(&mut self, file: (u64, u64), rights: u32, descriptor: Arc<OwnedFd>) {
        self.next_known += 1;
        let known = self.known.entry(file).or_insert(Known { rights: 0, descriptor: descriptor.clone(), since: 0 });
        known.rights |= rights;
        (known.descriptor, known.since) = (descriptor, self.next_known);
        if self.known.len() > FILES_MAX {
            self.forget_oldest();
        }
    }

    /// Forgets the file that was shown longest ago and is not open; false where there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let open: BTreeSet<(u64, u64)> = self.files.values().map(|open| open.hold.key()).collect();
        let closed = self.known.iter().filter(|(file, _)| !open.contains(file));
        let oldest = closed.min_by_key(|(_, known)| known.since).map(|(file, _)| *file);
        oldest.is_some_and(|oldest| self.known.remove(&oldest).is_some())
    }
}

/// How many extents a file that was proved has at most.
fn count(hold: &Hold) -> Result<usize, Refusal> {
    let descriptor = hold.descriptor().ok_or("it was taken back meanwhile")?;
    Ok(extents::count(descriptor.as_fd())?.min(EXTENTS_MAX))
}

/// Settles a file: its length, and its extents in the namespace, of which its block device begins at `offset`.
fn settle(descriptor: &OwnedFd, offset: u64) -> Result<(u64, Vec<FileExtent>), String> {
    rustix::fs::fsync(descriptor).map_err(|error| format!("it cannot be synced ({error})"))?;
    // What the page cache holds is on the device now; let nobody read it there when it is old.
    let _ = rustix::fs::fadvise(descriptor, 0, None, rustix::fs::Advice::DontNeed);
    let bytes = rustix::fs::fstat(descriptor).map_err(|error| error.to_string())?.st_size as u64;
    let mut found = extents::of_file(descriptor.as_fd())?;
    for extent in &mut found {
        extent.namespace_offset += offset;
    }
    extents::cut(&mut found, bytes);
    Ok((bytes, found))
}
