//! Caching's part of the agent (Willow, 4.4: the kernel module of Caching): the manager of caches that processes use. Misses of permissions in a cache
//! come here; what is missed is fetched from the backing file, and dirty chunks are written back.
//!
//! What always holds:
//! - a process is permitted chunks of a file as far as a descriptor went that it has shown, and no others; when its connection here ends, or it closes
//!   the cache, nothing is permitted any more;
//! - the agent reads and writes a backing file by descriptors of its own, in access modes that were shown to it;
//! - caches, who uses them, and their bytes are bounded, for each user as well; one whose backing file is slow delays nobody's reads and writes of others;
//! - what could not be written back stays in the cache, and is written by a later agent, to the file or disk that it is of and to no other;
//! - where a process that writes through ends without having closed the cache, what is clean is forgotten: it may have written and not said so.

pub mod message;

use super::module::{Caller, Module, Services};
use super::{Refusal, lock};
use crate::append::endpoints_of;
use crate::cache::manager::{AGAIN as CLAIM_AGAIN, CLAIM_PATIENCE};
use crate::cache::{Backing, CacheError, CacheOptions, Manager, Mode, list};
use crate::caching::{CachingClient, CachingError};
use crate::control::PermissionInfo;
use caching_host::wire::{CACHES_MAX, RIGHT_READ, RIGHT_WRITE};
use message::{Ask, Told, WROTE_BYTES_MAX};
use rustix::fs::{FileType, OFlags};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most caches that one process has open at a time.
const OPEN_MAX: usize = 16;
/// Most processes that have one cache open.
const USERS_MAX: usize = 24;
/// Most bytes of a cache that a user's process makes.
const USER_BYTES_MAX: u64 = 256 << 20;
/// How often the device is told that the manager is there.
const HOLD_EVERY: Duration = Duration::from_secs(1);
/// How often dirty chunks are written back.
const WRITE_BACK_EVERY: Duration = Duration::from_secs(5);
/// Wait between two attempts at what failed.
const AGAIN: Duration = Duration::from_secs(1);
/// What is due once: to write back what agents before this one have left.
const LEFT_BEHIND: u64 = u64::MAX;
/// `FUSE_SUPER_MAGIC` of `linux/magic.h`: a file system that may be served by who shows the file.
const FUSE: u64 = 0x6573_5546;

/// A process that has a cache open.
#[derive(Clone, Copy)]
struct Holder {
    connection: u64,
    user: u32,
    /// Upper bits of its endpoints' ids.
    process: u32,
    /// Those that it has shown together.
    rights: u32,
    /// How often it has the cache open.
    opens: u32,
    /// It is to be revoked.
    is_leaving: bool,
}

/// A cache that is open.
struct Open {
    manager: Manager,
    /// Who opened it first.
    user: u32,
    holders: Mutex<Vec<Holder>>,
    held: Mutex<Instant>,
    written: Mutex<Instant>,
    again: Mutex<Instant>,
}

/// Caching's part of the agent.
#[derive(Default)]
pub(super) struct Caching {
    open: Mutex<BTreeMap<u32, Arc<Open>>>,
    /// One cache is opened or closed at a time.
    opening: Mutex<()>,
    /// What agents before this one have left is looked after.
    has_looked: Mutex<bool>,
}

/// What a process is told of a failure: of the backing file its number, of all else a sentence.
fn answer(done: Result<(), CacheError>) -> Result<Told, Refusal> {
    match done {
        Ok(()) => Ok(Told::Done),
        Err(CacheError::Device(CachingError::Refused(caching_host::Refusal::Busy))) => Err(Refusal::Busy),
        Err(CacheError::Backing(error)) => Ok(Told::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }),
        Err(error) => Err(error.to_string().into()),
    }
}

/// True where a cache has another manager.
fn is_claimed(error: &CacheError) -> bool {
    matches!(error, CacheError::Device(error) if error.is(caching_host::Refusal::Claimed))
}

/// The agent's own descriptor of a file, in the access mode of one that was shown; with the rights that this proves.
fn reopened(shown: &OwnedFd, user: u32) -> Result<(Backing, u32), String> {
    let flags = rustix::fs::fcntl_getfl(shown).map_err(|error| error.to_string())?;
    let rights = match flags & OFlags::RWMODE {
        _ if flags.contains(OFlags::PATH) => return Err("its descriptor is a mere path (O_PATH)".to_owned()),
        OFlags::RDONLY => RIGHT_READ,
        OFlags::RDWR => RIGHT_READ | RIGHT_WRITE,
        _ => return Err("its descriptor does not read".to_owned()),
    };
    if flags.contains(OFlags::APPEND) {
        return Err("it is open for appending, and a cache writes anywhere".to_owned());
    }
    let stat = rustix::fs::fstat(shown).map_err(|error| error.to_string())?;
    if user != 0 {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("it is no file: block devices are root's to cache".to_owned());
        }
        refuse_served(shown)?;
    }
    Ok((open_again(shown, rights & RIGHT_WRITE != 0)?, rights))
}

/// A process that serves a file system may let whoever uses it wait for ever.
fn refuse_served(file: &OwnedFd) -> Result<(), String> {
    let system = rustix::fs::fstatfs(file).map_err(|error| error.to_string())?;
    if system.f_type as u64 & 0xffff_ffff == FUSE {
        return Err("it is on a file system that a process serves (FUSE), which the agent does not wait for".to_owned());
    }
    Ok(())
}

fn open_again(file: &OwnedFd, writes: bool) -> Result<Backing, String> {
    let again = File::options()
        .read(true)
        .write(writes)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|error| format!("the agent cannot open it: {error}"))?;
    Backing::of(again)
}

/// The file of a cache that was left: by its path, where something else may be by now, which is not opened as it is not known what that does.
fn found_again(path: &std::path::Path, identity: &[u8; 24]) -> Result<Backing, String> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(|error| error.to_string())?;
    let stat = rustix::fs::fstat(&found).map_err(|error| error.to_string())?;
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::BlockDevice) {
        return Err("it is neither a file nor a block device by now".to_owned());
    }
    refuse_served(&found)?;
    let backing = open_again(&found, true)?;
    if backing.identity != *identity {
        return Err("it is another file by now".to_owned());
    }
    if !backing.is_told {
        return Err(
            "the kernel tells nothing by which this disk is known again: open its cache to have it written".to_owned()
        );
    }
    Ok(backing)
}

impl Open {
    fn is_used(&self) -> bool {
        !lock(&self.holders).is_empty()
    }

    fn holder(&self, connection: u64) -> Option<Holder> {
        lock(&self.holders).iter().find(|it| it.connection == connection && !it.is_leaving).copied()
    }

    /// Revokes what those that leave were permitted.
    fn revoke(&self, services: &Services<'_>) -> Result<(), String> {
        let leaving: Vec<Holder> = lock(&self.holders).iter().filter(|it| it.is_leaving).copied().collect();
        for gone in leaving {
            // Another connection of the process may still have it: that asks again for what it misses.
            services.wait(self.manager.revoke(gone.process)).map_err(|error| error.to_string())?;
            lock(&self.holders).retain(|it| !(it.is_leaving && it.connection == gone.connection));
        }
        Ok(())
    }
}

impl Caching {
    fn client(services: &Services<'_>) -> Result<CachingClient, String> {
        Ok(CachingClient::new(services.hre(), services.app(caching_host::APP_NAME)?, (0, 0)))
    }

    fn find(&self, cache: u32) -> Result<Arc<Open>, Refusal> {
        Ok(lock(&self.open).get(&cache).cloned().ok_or("this cache is not open")?)
    }

    fn begin(
        &self,
        services: &Services<'_>,
        caller: &Caller,
        options: &CacheOptions,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Told, Refusal> {
        let [shown] = &descriptors[..] else {
            return Err("one descriptor comes with the request to open a cache".into());
        };
        if caller.user != 0 && options.bytes.is_some_and(|bytes| bytes > USER_BYTES_MAX) {
            return Err(format!("a user's cache has at most {USER_BYTES_MAX} bytes").into());
        }
        if self.holds(caller.connection) >= OPEN_MAX {
            return Err(format!("a process has at most {OPEN_MAX} caches open").into());
        }
        self.without_manager(|| {
            let (backing, rights) = reopened(shown, caller.user)?;
            self.begin_alone(services, caller, options, (backing, rights))
        })
    }

    /// Does something while no other cache is opened or closed. `None`: another manager has the cache, which is waited for, and others go on meanwhile.
    fn without_manager<T>(&self, mut what: impl FnMut() -> Result<Option<T>, Refusal>) -> Result<T, Refusal> {
        let begun = Instant::now();
        loop {
            let done = {
                let _one = lock(&self.opening);
                what()?
            };
            if let Some(done) = done {
                return Ok(done);
            }
            if begun.elapsed() >= CLAIM_PATIENCE {
                return Err(CachingError::from(caching_host::Refusal::Claimed).to_string().into());
            }
            std::thread::sleep(CLAIM_AGAIN);
        }
    }

    /// Opens a cache for a process; `None`: another manager has it.
    fn begin_alone(
        &self,
        services: &Services<'_>,
        caller: &Caller,
        options: &CacheOptions,
        (backing, rights): (Backing, u32),
    ) -> Result<Option<Told>, Refusal> {
        let process = endpoints_of(services.process(caller)?);
        let (connection, user) = (caller.connection, caller.user);
        let holder = Holder { connection, user, process, rights, opens: 1, is_leaving: false };
        let mut there = lock(&self.open).values().find(|it| it.manager.backing().identity == backing.identity).cloned();
        let is_otherwise = |open: &Arc<Open>| {
            let (mode, length) = (open.manager.mode(), open.manager.backing().bytes);
            length != backing.bytes || options.mode.is_some_and(|wanted| wanted != mode)
        };
        if let Some(left) = there.take_if(|open| !open.is_used() && is_otherwise(open)) {
            // Its last process has closed it, and it is about to be.
            let closed = async {
                left.manager.hold().await?;
                left.manager.close().await
            };
            services.wait(closed).map_err(|error| error.to_string())?;
            lock(&self.open).remove(&left.manager.client().cache().0);
        }
        let open = match there {
            Some(open) => {
                let (mode, length) = (open.manager.mode(), open.manager.backing().bytes);
                if options.mode.is_some_and(|wanted| wanted != mode) {
                    return Err(format!("it is cached {mode:?} by others just now").into());
                }
                if length != backing.bytes {
                    return Err("it has another length by now: close its cache everywhere first".into());
                }
                open.manager.reopen(backing);
                // After an attempt to close it that failed it has no manager, and somebody may have written the file since: its stamp is looked at.
                services.wait(open.manager.hold()).map_err(|error| error.to_string())?;
                open
            }
            None => {
                self.check_share(caller.user)?;
                let client = Self::client(services)?;
                let manager = match services.wait(Manager::open_within(&client, backing, options, Duration::ZERO)) {
                    Err(error) if is_claimed(&error) => return Ok(None),
                    opened => opened.map_err(|error| error.to_string())?,
                };
                let now = Instant::now();
                let (user, cache) = (caller.user, manager.client().cache().0);
                let (holders, held, written, again) =
                    (Mutex::default(), Mutex::new(now), Mutex::new(now), Mutex::new(now));
                let open = Arc::new(Open { manager, user, holders, held, written, again });
                lock(&self.open).insert(cache, open.clone());
                open
            }
        };
        if open.manager.mode() == Mode::WriteThrough && rights & RIGHT_WRITE != 0 {
            // It writes the file by itself from now on.
            services.wait(open.manager.unstamp()).map_err(|error| error.to_string())?;
        }
        let mut holders = lock(&open.holders);
        if let Some(own) = holders.iter_mut().find(|it| it.connection == connection && !it.is_leaving) {
            own.opens = own.opens.saturating_add(1);
            own.rights |= rights;
        } else {
            let own = holders.iter().filter(|it| it.user == user).count();
            if holders.len() >= USERS_MAX || user != 0 && holders.len() + own >= USERS_MAX {
                return Err("as many processes have this cache open as leave room for other users'".into());
            }
            holders.push(holder);
        }
        let ((cache, epoch), (app, spus)) = (open.manager.client().cache(), open.manager.client().numbers());
        let (chunk_bytes, bytes, mode) =
            (open.manager.shape().chunk_bytes, open.manager.backing().bytes, open.manager.mode());
        Ok(Some(Told::Opened { cache, epoch, app, spus, chunk_bytes, bytes, mode }))
    }

    /// A user has as many caches open as that leaves free.
    fn check_share(&self, user: u32) -> Result<(), Refusal> {
        let open = lock(&self.open);
        let own = open.values().filter(|it| it.user == user).count();
        if open.len() >= CACHES_MAX || user != 0 && open.len() + own >= CACHES_MAX {
            return Err("as many caches are open as leave room for other users'".into());
        }
        Ok(())
    }

    fn leave(&self, services: &Services<'_>, connection: u64, cache: Option<u32>) -> Result<(), String> {
        let those: Vec<Arc<Open>> = {
            let open = lock(&self.open);
            open.iter().filter(|(number, _)| cache.is_none_or(|it| it == **number)).map(|(_, it)| it.clone()).collect()
        };
        let mut done = Ok(());
        for open in those {
            let mut holders = lock(&open.holders);
            let mut own = holders.iter_mut().filter(|it| it.connection == connection).peekable();
            if own.peek().is_none() {
                continue;
            }
            for one in own {
                // It has the cache open by another descriptor as well.
                one.opens = if cache.is_some() { one.opens.saturating_sub(1) } else { 0 };
                one.is_leaving |= one.opens == 0;
            }
            if !holders.iter().any(|it| it.connection == connection && it.is_leaving) {
                continue;
            }
            drop(holders);
            done = open.revoke(services).and(done);
        }
        done
    }

    /// Closes a cache that nobody has open any more.
    fn close(&self, services: &Services<'_>, cache: u32) -> Result<(), String> {
        let Ok(open) = self.find(cache) else { return Ok(()) };
        // After an attempt that failed it has no manager.
        let held = services.wait(open.manager.hold());
        if held.is_ok() {
            // Most of it while nobody who opens another waits.
            services.wait(open.manager.write_back(None)).map_err(|error| error.to_string())?;
        }
        let _one = lock(&self.opening);
        // Another may have closed it meanwhile, and opened it anew.
        let is_there = lock(&self.open).get(&cache).is_some_and(|it| Arc::ptr_eq(it, &open));
        if open.is_used() || !is_there {
            return Ok(());
        }
        if held.is_ok() {
            services.wait(open.manager.close()).map_err(|error| error.to_string())?;
        }
        lock(&self.open).remove(&cache);
        // It is another manager's where this one did not get it again.
        held.map_err(|error| error.to_string())
    }

    /// Writes back what agents before this one have left dirty.
    fn write_left(&self, services: &Services<'_>) -> Result<(), String> {
        let client = Self::client(services)?;
        let listed = services.wait(list(&client)).map_err(|error| error.to_string())?;
        for left in listed.iter().filter(|it| it.counts.dirty > 0) {
            let path = left.descriptor.path.get(..left.descriptor.path_bytes as usize).unwrap_or_default();
            let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
            let written = || -> Result<Option<()>, Refusal> {
                // A process has opened it meanwhile, which has it written as well.
                if lock(&self.open).contains_key(&left.cache) {
                    return Ok(Some(()));
                }
                let backing = found_again(path, &left.descriptor.identity)?;
                let written = async {
                    let options = CacheOptions::default();
                    Manager::open_within(&client, backing, &options, Duration::ZERO).await?.close().await
                };
                match services.wait(written) {
                    Err(error) if is_claimed(&error) => Ok(None),
                    done => Ok(done.map(Some).map_err(|error| error.to_string())?),
                }
            };
            let done = self.without_manager(written).map_err(|why| match why {
                Refusal::Said(why) => why,
                other => format!("{other:?}"),
            });
            if let Err(why) = done {
                tracing::warn!(
                    "{} does not have all that was written to its cache, where it stays: {why}",
                    path.display()
                );
            }
        }
        Ok(())
    }
}

impl Module for Caching {
    fn name(&self) -> &'static str {
        caching_host::APP_NAME
    }

    fn request(
        &self,
        services: &Services<'_>,
        caller: &Caller,
        ask: Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Value, Refusal> {
        let ask: Ask = serde_json::from_value(ask).map_err(|error| format!("a request about caching: {error}"))?;
        let own = |cache: u32| -> Result<(Arc<Open>, Holder), Refusal> {
            let open = self.find(cache)?;
            let holder = open.holder(caller.connection).ok_or("this connection has not opened the cache")?;
            Ok((open, holder))
        };
        let told = match ask {
            Ask::Open { options } => self.begin(services, caller, &options, descriptors)?,
            Ask::Fetch { cache, chunk } => {
                let (open, Holder { process, rights, .. }) = own(cache)?;
                if chunk.saturating_mul(open.manager.shape().chunk_bytes.into()) >= open.manager.backing().bytes {
                    return Err("the file has no such chunk".into());
                }
                let told = answer(services.wait(open.manager.fetch(chunk, process, rights)))?;
                // It may have left meanwhile, by another connection's doing: then it is permitted nothing.
                if open.holder(caller.connection).is_none() {
                    services.wait(open.manager.revoke(process)).map_err(|error| error.to_string())?;
                }
                told
            }
            Ask::Wrote { cache, offset, bytes } => {
                let (open, holder) = own(cache)?;
                if holder.rights & RIGHT_WRITE == 0 || open.manager.mode() != Mode::WriteThrough {
                    return Err("the process does not write this file".into());
                }
                if bytes > WROTE_BYTES_MAX {
                    return Err(format!("at most {WROTE_BYTES_MAX} written bytes are told at a time").into());
                }
                answer(services.wait(open.manager.wrote(offset, bytes)))?
            }
            Ask::Close { cache } => {
                self.leave(services, caller.connection, Some(cache))?;
                Told::Done
            }
        };
        Ok(serde_json::to_value(told).map_err(|error| error.to_string())?)
    }

    /// None in namespaces: chunks are permitted by the app itself.
    fn permissions(&self, _process: u32) -> Vec<(u32, PermissionInfo)> {
        Vec::new()
    }

    fn holds(&self, connection: u64) -> usize {
        lock(&self.open).values().filter(|it| it.holder(connection).is_some()).count()
    }

    fn gone(&self, services: &Services<'_>, connection: u64) {
        let writes_through = |open: &Arc<Open>| {
            let holder = open.holder(connection).filter(|it| it.rights & RIGHT_WRITE != 0);
            holder.is_some() && open.manager.mode() == Mode::WriteThrough
        };
        let those: Vec<Arc<Open>> = lock(&self.open).values().filter(|open| writes_through(open)).cloned().collect();
        if let Err(why) = self.leave(services, connection, None) {
            tracing::error!("what a process that ended could reach of a cache is not revoked yet: {why}");
        }
        for open in those {
            // It may have written the file, and not said so any more.
            if let Err(why) = services.wait(open.manager.distrust()) {
                tracing::error!("a cache may have older bytes than {}: {why}", open.manager.backing().path.display());
            }
        }
    }

    /// A backing file is nobody else's to write: there is nothing to give back.
    fn take_back(&self, _services: &Services<'_>, _file: (u64, u64)) -> Result<(), Refusal> {
        Ok(())
    }

    fn due(&self) -> Vec<u64> {
        let now = Instant::now();
        let is_due = |open: &Open| {
            let is_leaving = || lock(&open.holders).iter().any(|it| it.is_leaving);
            let is_late = |at: &Mutex<Instant>, every: Duration| now.saturating_duration_since(*lock(at)) >= every;
            let writes = open.manager.mode() == Mode::WriteBack && is_late(&open.written, WRITE_BACK_EVERY);
            *lock(&open.again) <= now && (is_late(&open.held, HOLD_EVERY) || writes || is_leaving() || !open.is_used())
        };
        let mut due: Vec<u64> =
            lock(&self.open).iter().filter(|(_, open)| is_due(open)).map(|(cache, _)| u64::from(*cache)).collect();
        if !*lock(&self.has_looked) {
            due.push(LEFT_BEHIND);
        }
        due
    }

    fn mend(&self, services: &Services<'_>, item: u64) -> Result<(), String> {
        if item == LEFT_BEHIND {
            *lock(&self.has_looked) = true;
            return self.write_left(services);
        }
        let Ok(open) = self.find(item as u32) else { return Ok(()) };
        let done = (|| {
            open.revoke(services)?;
            if !open.is_used() {
                return self.close(services, item as u32);
            }
            *lock(&open.held) = Instant::now();
            services.wait(open.manager.hold()).map_err(|error| error.to_string())?;
            let is_late = lock(&open.written).elapsed() >= WRITE_BACK_EVERY;
            if open.manager.mode() == Mode::WriteBack && is_late {
                *lock(&open.written) = Instant::now();
                services.wait(open.manager.write_back(None)).map_err(|error| error.to_string())?;
            }
            Ok(())
        })();
        if done.is_err() {
            *lock(&open.again) = Instant::now() + AGAIN;
        }
        done.map_err(|why: String| format!("{}: {why}", open.manager.backing().path.display()))
    }

    fn left(&self) -> Vec<u64> {
        lock(&self.open).keys().map(|cache| u64::from(*cache)).collect()
    }

    fn end(&self, services: &Services<'_>, item: u64) {
        let Ok(open) = self.find(item as u32) else { return };
        lock(&open.holders).iter_mut().for_each(|it| it.is_leaving = true);
        let done = open.revoke(services).and_then(|()| self.close(services, item as u32));
        if let Err(why) = done {
            let path = open.manager.backing().path.clone();
            tracing::error!(
                "{} does not have all that was written to its cache, where it stays: {why}",
                path.display()
            );
        }
    }

    fn ended(&self) {}
}
