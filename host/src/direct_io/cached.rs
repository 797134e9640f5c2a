//! A file through its cache on the device (Willow, 4.4): what is in the cache is read and written by one request to the device, without the operating
//! system; what is not the agent fetches.
//!
//! What always holds:
//! - a write was answered by the cache, or, where that writes through, by the file; after [`CachedFile::sync`] it is durable there. Where the device has
//!   failed meanwhile, so that a write which was answered may be forgotten, one sync says so;
//! - of a write that failed half way the agent is told as of one that did not;
//! - the file keeps its length: reads are short at its end, and writes past it are refused;
//! - where an agent was started anew the cache is opened again by the descriptor that was shown before.
//!
//! Who may call it: a process, from any number of threads.

use super::agent_client::{AgentClient, DirectError};
use super::reach;
use super::session::{Session, lock};
use crate::agent::caching::message::{Ask, Told, WROTE_BYTES_MAX};
use crate::cache::{CacheError, CacheOptions, Keeper, Mode, read, write};
use crate::caching::{CachingClient, CachingError};
use crate::hre::{BoxFuture, Hre};
use crate::shm::{ShmHre, ShmOptions};
use caching_host::{APP_NAME, Refusal};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a cache is opened anew for one operation.
const ATTEMPTS_MAX: u32 = 8;
/// Wait before it is opened anew.
const AGAIN: Duration = Duration::from_millis(50);
/// How often the agent is asked for a chunk that it has no place for.
const BUSY_MAX: u32 = 200;
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// Entries of an endpoint's rings, and bytes of its data area: one chunk at a time.
const ENTRIES: u32 = 16;
const DATA_BYTES: u64 = 512 << 10;

/// The cache as the agent has opened it.
#[derive(Clone)]
struct Opened {
    agent: Arc<AgentClient>,
    cache: u32,
    epoch: u32,
    /// Of the app, and SPUs.
    numbers: (u16, u16),
    chunk_bytes: u32,
    bytes: u64,
    mode: Mode,
}

/// An endpoint of its own, for one thread at a time.
struct Port {
    hre: Arc<dyn Hre>,
    runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Ports {
    idle: Vec<Port>,
    made: usize,
}

/// Writes that the cache has answered, those of them that are synced, and whether the device failed in between.
#[derive(Default)]
struct Answered {
    writes: u64,
    synced: u64,
    is_lost: bool,
}

/// A file through its cache.
pub struct CachedFile {
    session: Arc<Session>,
    file: File,
    options: CacheOptions,
    opened: Mutex<Option<Opened>>,
    ports: Mutex<Ports>,
    returned: Condvar,
    answered: Mutex<Answered>,
}

fn said(error: DirectError) -> CacheError {
    match error {
        DirectError::System(error) => CacheError::Backing(error.into()),
        DirectError::Busy => CachingError::from(Refusal::Busy).into(),
        other => CacheError::Said(other.to_string()),
    }
}

/// What the agent says about an open cache: one that has ended leaves it to be opened anew.
fn done(told: Result<Told, DirectError>) -> Result<(), CacheError> {
    let told = match told {
        Err(DirectError::Agent(_)) => return Err(CachingError::from(Refusal::Stale).into()),
        told => told.map_err(said)?,
    };
    match told {
        Told::Done => Ok(()),
        Told::Failed { errno } => Err(CacheError::Backing(std::io::Error::from_raw_os_error(errno))),
        other => Err(CacheError::Said(format!("the agent says {other:?} about a cache"))),
    }
}

/// Asks the agent for chunks.
struct Asker<'a>(&'a Opened);

impl Asker<'_> {
    async fn ask(&self, ask: Ask) -> Result<(), CacheError> {
        let mut attempts = 0;
        loop {
            match self.0.agent.ask_module(APP_NAME, &ask, &[]) {
                Err(DirectError::Busy) if attempts < BUSY_MAX => tokio::time::sleep(BUSY_WAIT).await,
                told => return done(told),
            }
            attempts += 1;
        }
    }

    /// The file was written, or that was tried.
    async fn wrote(&self, mut offset: u64, mut bytes: u64) -> Result<(), CacheError> {
        while bytes > 0 {
            let count = bytes.min(WROTE_BYTES_MAX);
            self.ask(Ask::Wrote { cache: self.0.cache, offset, bytes: count }).await?;
            (offset, bytes) = (offset + count, bytes - count);
        }
        Ok(())
    }
}

impl Keeper for Asker<'_> {
    fn fetch(&self, chunk: u64) -> BoxFuture<'_, Result<(), CacheError>> {
        Box::pin(self.ask(Ask::Fetch { cache: self.0.cache, chunk }))
    }
}

impl CachedFile {
    /// Takes a file over that reads, and writes where it was opened for that; its cache is opened or made.
    pub fn open(session: &Arc<Session>, file: File, options: CacheOptions) -> Result<CachedFile, CacheError> {
        let (opened, ports, returned) = (Mutex::default(), Mutex::default(), Condvar::new());
        let (session, answered) = (session.clone(), Mutex::default());
        let cached = CachedFile { session, file, options, opened, ports, returned, answered };
        cached.opened()?;
        Ok(cached)
    }

    /// Bytes of the file, bytes of a chunk, and when writes are acknowledged.
    pub fn shape(&self) -> Result<(u64, u32, Mode), CacheError> {
        let opened = self.opened()?;
        Ok((opened.bytes, opened.chunk_bytes, opened.mode))
    }

    /// Reads; shorter at the end of the file.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize, CacheError> {
        self.with(|port, opened| {
            let count = (opened.bytes.saturating_sub(offset)).min(into.len() as u64) as usize;
            let client = opened.client(port);
            port.runtime.block_on(read(&client, &Asker(opened), opened.chunk_bytes, offset, &mut into[..count]))?;
            Ok(count)
        })
    }

    /// Writes all of it, or fails; nothing past the end of the file (ENOSPC), and only where the file was opened for writing (EBADF).
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<(), CacheError> {
        self.with(|port, opened| {
            let system = |errno: i32| CacheError::Backing(std::io::Error::from_raw_os_error(errno));
            if offset.checked_add(from.len() as u64).is_none_or(|end| end > opened.bytes) {
                return Err(system(libc::ENOSPC));
            }
            if opened.mode == Mode::WriteThrough {
                let written = self.file.write_all_at(from, offset);
                let is_open_for_it = !matches!(&written, Err(error) if error.raw_os_error() == Some(libc::EBADF));
                // Also where a part alone is in the file.
                let told = match is_open_for_it {
                    true => port.runtime.block_on(Asker(opened).wrote(offset, from.len() as u64)),
                    false => Ok(()),
                };
                written?;
                return told;
            }
            let flags = rustix::fs::fcntl_getfl(&self.file).map_err(std::io::Error::from)?;
            if !flags.contains(rustix::fs::OFlags::RDWR) {
                return Err(system(libc::EBADF));
            }
            let client = opened.client(port);
            port.runtime.block_on(write(&client, &Asker(opened), opened.chunk_bytes, offset, from))?;
            lock(&self.answered).writes += 1;
            Ok(())
        })
    }

    /// Makes all that was written durable: in the cache, or in the file where that is written through.
    pub fn sync(&self) -> Result<(), CacheError> {
        let covered = lock(&self.answered).writes;
        let done = self.with(|port, opened| {
            if opened.mode == Mode::WriteThrough {
                return Ok(self.file.sync_data()?);
            }
            let client = opened.client(port);
            for spu in 0..opened.numbers.1 {
                port.runtime.block_on(client.sync(spu))?;
            }
            Ok(())
        });
        let mut answered = lock(&self.answered);
        match done {
            Ok(()) => {
                answered.synced = answered.synced.max(covered);
                if std::mem::take(&mut answered.is_lost) {
                    let why = "the device has failed since the file was written, and may have forgotten what was not synced: write it again";
                    return Err(CacheError::Said(why.to_owned()));
                }
            }
            // This says it.
            Err(CacheError::Device(CachingError::Hre(_))) => answered.is_lost = false,
            Err(_) => {}
        }
        done
    }

    /// The device has failed: what it has answered and nobody has synced may be lost.
    fn failed(&self) {
        let mut answered = lock(&self.answered);
        answered.is_lost |= answered.writes > answered.synced;
        answered.synced = answered.writes;
    }

    /// Does something by an endpoint with the cache, once more where the agent was started anew meanwhile. What is done twice is the same.
    fn with<T>(&self, mut what: impl FnMut(&Port, &Opened) -> Result<T, CacheError>) -> Result<T, CacheError> {
        let mut attempts = 0;
        loop {
            let opened = self.opened()?;
            let port = self.take_port()?;
            let done = what(&port, &opened);
            let is_usable = !matches!(&done, Err(CacheError::Device(CachingError::Hre(_))));
            if !is_usable {
                self.failed();
            }
            self.give_port(Some(port).filter(|_| is_usable));
            match done {
                Err(CacheError::Device(error)) if error.is(Refusal::Stale) || error.is(Refusal::Absent) => {
                    if attempts >= ATTEMPTS_MAX {
                        return Err(error.into());
                    }
                    attempts += 1;
                    std::thread::sleep(AGAIN);
                    self.lose(&opened);
                }
                done => return done,
            }
        }
    }

    /// What was opened is so no more.
    fn lose(&self, opened: &Opened) {
        let mut now = lock(&self.opened);
        let is_same = |now: &mut Opened| now.epoch == opened.epoch && Arc::ptr_eq(&now.agent, &opened.agent);
        if let Some(lost) = now.take_if(is_same) {
            lost.close();
        }
    }

    fn opened(&self) -> Result<Opened, CacheError> {
        self.session.check().map_err(said)?;
        let mut opened = lock(&self.opened);
        if let Some(opened) = &*opened {
            return Ok(opened.clone());
        }
        // The agent knows only processes that the device knows.
        let port = self.take_port()?;
        self.give_port(Some(port));
        let mut asked = Err(DirectError::Stale);
        // One that was started again is found the second time.
        for _ in 0..2 {
            let agent = self.session.agent().map_err(said)?;
            let told = agent.ask_module(APP_NAME, &Ask::Open { options: self.options }, &[self.file.as_fd()]);
            if matches!(told, Err(DirectError::Agent(_))) {
                self.session.lose_agent(&agent);
            }
            let is_over = !matches!(told, Err(DirectError::Agent(_)));
            asked = told.map(|told| (agent, told));
            if is_over {
                break;
            }
        }
        let (agent, told) = asked.map_err(said)?;
        let Told::Opened { cache, epoch, app, spus, chunk_bytes, bytes, mode } = told else {
            return Err(CacheError::Said(format!("the agent says {told:?} to the opening of a cache")));
        };
        let now = Opened { agent, cache, epoch, numbers: (app, spus), chunk_bytes, bytes, mode };
        *opened = Some(now.clone());
        Ok(now)
    }

    /// An endpoint; waits where there are as many as there may be.
    fn take_port(&self) -> Result<Port, CacheError> {
        let mut ports = lock(&self.ports);
        loop {
            if let Some(port) = ports.idle.pop() {
                return Ok(port);
            }
            if ports.made < self.session.options.lanes_max.max(1) {
                ports.made += 1;
                drop(ports);
                return self.connect().inspect_err(|_| self.give_port(None)).map_err(said);
            }
            ports = self.returned.wait(ports).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives one back; none where it has failed, and those that wait most likely have as well.
    fn give_port(&self, port: Option<Port>) {
        let mut ports = lock(&self.ports);
        match port {
            Some(port) => ports.idle.push(port),
            None => {
                ports.made -= 1 + ports.idle.len();
                ports.idle.clear();
            }
        }
        drop(ports);
        self.returned.notify_one();
    }

    fn connect(&self) -> Result<Port, DirectError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DirectError::Agent(format!("no runtime: {error}")))?;
        let hre: Arc<dyn Hre> = match self.session.device_socket()? {
            Some(device) => {
                let kind = willow_shm::message::Kind::User;
                Arc::new(ShmHre::open(&device, ShmOptions { kind, entries: ENTRIES, data_bytes: DATA_BYTES })?)
            }
            None => runtime.block_on(reach::endpoint(&self.session.agent()?))?,
        };
        Ok(Port { hre, runtime })
    }
}

impl Opened {
    /// Tells the agent, which notices by itself where this does not arrive.
    fn close(&self) {
        let close = Ask::Close { cache: self.cache };
        let _: Result<Told, DirectError> = self.agent.ask_module(APP_NAME, &close, &[]);
    }

    fn client(&self, port: &Port) -> CachingClient {
        CachingClient::new(port.hre.clone(), self.numbers, (self.cache, self.epoch))
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        if let Some(opened) = lock(&self.opened).take() {
            opened.close();
        }
    }
}
