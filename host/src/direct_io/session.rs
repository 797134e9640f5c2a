//! One process' connection with a device and its agent, for all of its threads: lanes, one for each operation under way, and what it has
//! open.
//!
//! What always holds:
//! - a lane serves one thread at a time, and there are at most [`SessionOptions::lanes_max`];
//! - a lane that failed is dropped, and another is opened for the next operation: a device that comes back is found again;
//! - where a network is the way to the device and fails, all that was granted ends, and the agent is asked anew ([`super::reach`]);
//! - a session is its process' own: in a forked child it answers with ENXIO, its descriptors are closed there, and the child opens
//!   one of its own.

use super::agent_client::{AgentClient, DirectError};
use super::inode::{Inode, KERNEL_OPERATIONS_MAX};
use super::lane::{Lane, LaneOptions, Operation};
use super::mapped::Mapped;
use super::reach::{Reach, Way};
use super::spare::Spare;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long an agent that is gone is waited for, where nothing else is said.
pub const AGENT_PATIENCE: Duration = Duration::from_secs(10);
/// Wait between two looks for it.
pub(super) const AGENT_LOOK: Duration = Duration::from_millis(20);

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The device's socket (willow serve --socket); `None`: the agent says how the device is reached.
    pub device: Option<PathBuf>,
    /// The agent's socket (willow agent --socket).
    pub agent: PathBuf,
    /// Most lanes, and so most operations of blocking calls under way at once.
    pub lanes_max: usize,
    /// What each lane is like.
    pub lane: LaneOptions,
    /// Most operations that a file stays with the kernel after it was given back or refused. With 0 it is taken again at once.
    pub kernel_operations_max: u32,
    /// The device appends to files that are open for appending and made durable record by record ([`super::File::append`]): for programs
    /// that know nothing of [`super::Appender`].
    pub appends: bool,
    /// How long an agent that is gone is waited for, once each time that it goes: by what the kernel refuses of a file that the agent left
    /// immutable, and by all operations where the device is reached by a network and therefore by that agent alone. Past it, files go
    /// through the kernel, which refuses what it refuses (EPERM).
    pub patience: Duration,
}

impl SessionOptions {
    /// With all else as it usually is.
    pub fn new(device: impl Into<PathBuf>, agent: impl Into<PathBuf>) -> Self {
        SessionOptions { device: Some(device.into()), ..SessionOptions::by_agent(agent) }
    }

    /// The agent says where the device is.
    pub fn by_agent(agent: impl Into<PathBuf>) -> Self {
        let (lanes_max, lane, patience) = (32, LaneOptions::default(), AGENT_PATIENCE);
        let kernel_operations_max = KERNEL_OPERATIONS_MAX;
        let agent = agent.into();
        SessionOptions { device: None, agent, lanes_max, lane, kernel_operations_max, appends: false, patience }
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What went which way, since the session was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64,)* }
        impl Counters {
            fn read(&self) -> Counts { Counts { $($name: self.$name.load(Ordering::Relaxed),)* } }
        }
    };
}

counts! {
    /// Reads by the process' own endpoints.
    direct_reads,
    /// Writes by them.
    direct_writes,
    /// Syncs by them.
    direct_syncs,
    /// Reads through the kernel.
    kernel_reads,
    /// Writes through it.
    kernel_writes,
    /// Records that the device appended.
    direct_appends,
    /// Records that the kernel appended.
    kernel_appends,
    /// Times that a file was taken for direct access.
    opened,
    /// Times that it was refused.
    refused,
    /// Times that a file was given back to the file system, to be changed.
    given_back,
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptors of sessions, to be closed in a forked child: 0 is none.
static DESCRIPTORS: [AtomicI32; 512] = [const { AtomicI32::new(0) }; 512];
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process' line was forked since sessions were first opened in it: another number, another process.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// In the child: everything of the parent's sessions is left alone, and its sockets are replaced by a file that is nothing, so that the
/// device and the agent see the parent end when it ends. The numbers stay taken: whatever is dropped later closes its own.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Bare system calls, since this runs between fork and all else.
    // SAFETY: a path that ends with a zero byte.
    let nothing = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_CLOEXEC) };
    for place in &DESCRIPTORS {
        let descriptor = place.swap(0, Ordering::Relaxed);
        if descriptor > 0 && nothing >= 0 {
            // SAFETY: the child's copy of a socket that only the parent's session uses.
            unsafe { libc::syscall(libc::SYS_dup3, nothing, descriptor, libc::O_CLOEXEC) };
        }
    }
    if nothing >= 0 {
        // SAFETY: opened above.
        unsafe { libc::syscall(libc::SYS_close, nothing) };
    }
}

/// Counts forks from now on; opening a session does it too.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `in_child` is safe to run at that point: see there.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A descriptor's place in the list.
pub(crate) struct Registered(Option<usize>, RawFd);

impl Registered {
    pub fn new(descriptor: RawFd) -> Self {
        let free =
            |place: &AtomicI32| place.compare_exchange(0, descriptor, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        Registered(DESCRIPTORS.iter().position(free), descriptor)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            let _ = DESCRIPTORS[place].compare_exchange(self.1, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What tells a socket's file from those that were there under its name before: inode, and when that was made.
type SocketFile = Option<(u64, i64, u64)>;

#[derive(Default)]
struct Lanes {
    idle: Vec<Lane>,
    /// Those in use as well.
    made: usize,
    /// Threads that wait for one: without any, nobody is woken, which would be a system call.
    waiting: usize,
}

struct Agent {
    client: Arc<AgentClient>,
    _registered: Registered,
}

/// What became of an operation that no lane could do.
pub(crate) struct Undone {
    pub error: DirectError,
    /// As it was handed over, where nobody uses its memory any more.
    pub operation: Option<Operation>,
    /// The way that it was tried by.
    pub way: u64,
}

/// What replaces descriptors.
pub(crate) type GiveUp<'a> = &'a mut dyn FnMut() -> Result<(), DirectError>;

/// A session: one a process and device, since grants are the process'; what the agent takes back for the sake of one session of a process
/// another would not notice in time.
pub struct Session {
    pub(super) options: SessionOptions,
    forks: u32,
    lanes: Mutex<Lanes>,
    returned: Condvar,
    agent: Mutex<Option<Agent>>,
    way: Mutex<Way>,
    /// Number of the way now.
    way_number: AtomicU64,
    /// The device is reached by a network.
    is_remote: AtomicBool,
    /// When it was first seen that the agent is gone, and the socket that it left.
    gone_since: Mutex<Option<(Instant, SocketFile)>>,
    pub(super) inodes: Mutex<HashMap<(u64, u64), Weak<Inode>>>,
    /// Lanes of queues, to be drained when a file is given back.
    queues: Mutex<Vec<Weak<Mutex<Lane>>>>,
    pub(super) insisting: Mutex<()>,
    /// What the agent granted and may not have got back yet.
    granted: Mutex<Vec<Weak<Mapped>>>,
    pub(super) spare: Spare,
    pub(crate) counters: Counters,
}

impl Session {
    /// Connects with both.
    pub fn open(options: SessionOptions) -> Result<Arc<Session>, DirectError> {
        watch_forks();
        let session = Session {
            forks: forks(),
            lanes: Mutex::default(),
            returned: Condvar::new(),
            agent: Mutex::default(),
            way: Mutex::default(),
            way_number: AtomicU64::new(0),
            is_remote: AtomicBool::new(false),
            gone_since: Mutex::default(),
            inodes: Mutex::default(),
            queues: Mutex::default(),
            insisting: Mutex::default(),
            granted: Mutex::default(),
            spare: Spare::new(),
            counters: Counters::default(),
            options,
        };
        // The device knows this process from its first endpoint on, and the agent asks the device.
        let lane = session.take_lane()?;
        session.give_lane(lane);
        session.agent()?;
        Ok(Arc::new(session))
    }

    /// An error in a forked child.
    pub(crate) fn check(&self) -> Result<(), DirectError> {
        if self.forks == forks() { Ok(()) } else { Err(rustix::io::Errno::NXIO.into()) }
    }

    /// What went which way.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// Apps that have ended, with the reasons, as far as the agent told by now.
    pub fn ended_apps(&self) -> Vec<(String, String)> {
        lock(&self.agent).as_ref().map_or_else(Vec::new, |agent| agent.client.ended_apps())
    }

    pub(super) fn agent(&self) -> Result<Arc<AgentClient>, DirectError> {
        self.check()?;
        let mut agent = lock(&self.agent);
        if let Some(agent) = &*agent {
            return Ok(agent.client.clone());
        }
        let client = self.connect_agent()?;
        let registered = Registered::new(client.descriptor());
        *agent = Some(Agent { client: client.clone(), _registered: registered });
        Ok(client)
    }

    fn connect_agent(&self) -> Result<Arc<AgentClient>, DirectError> {
        let begun = Instant::now();
        loop {
            let connected = AgentClient::connect(&self.options.agent);
            if connected.is_ok() {
                return connected;
            }
            // Of a device on this machine files go through the kernel meanwhile, as far as it lets them.
            let waits = self.is_remote.load(Ordering::Relaxed) && self.is_worth_waiting();
            if !waits || begun.elapsed() >= self.options.patience {
                return connected;
            }
            std::thread::sleep(AGENT_LOOK);
        }
    }

    /// True while an agent that is gone is waited for: for `patience` since that was first seen, whoever waits.
    pub(super) fn is_worth_waiting(&self) -> bool {
        let stat = rustix::fs::stat(&self.options.agent).ok();
        let socket = stat.map(|stat| (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec));
        let mut gone = lock(&self.gone_since);
        // One that came back unseen, and went again, is another's.
        gone.take_if(|(_, left)| socket.is_some() && left.is_some() && *left != socket);
        let (since, left) = gone.get_or_insert_with(|| (Instant::now(), socket));
        *left = left.or(socket);
        since.elapsed() < self.options.patience
    }

    /// The agent has answered.
    pub(super) fn note_agent(&self) {
        *lock(&self.gone_since) = None;
    }

    /// This agent does not answer: all that it granted ends before another is asked.
    pub(super) fn lose_agent(&self, client: &Arc<AgentClient>) {
        let mut granted = lock(&self.granted);
        let mut agent = lock(&self.agent);
        if agent.as_ref().is_some_and(|agent| Arc::ptr_eq(&agent.client, client)) {
            *agent = None;
            drop(agent);
            self.leave_way(None, false);
            self.end_all(&mut granted);
        }
    }

    /// The way to the device, found out where it is not known.
    fn with_way<T>(&self, what: impl FnOnce(&mut Reach, u64) -> Result<T, DirectError>) -> Result<T, DirectError> {
        let mut way = lock(&self.way);
        let number = way.number;
        let reach = way.find(self.options.device.as_ref(), || self.agent(), self.options.lane.slots)?;
        self.is_remote.store(matches!(reach, Reach::Network { .. }), Ordering::Relaxed);
        what(reach, number)
    }

    /// The device's socket, where it is reached by that.
    pub(super) fn device_socket(&self) -> Result<Option<PathBuf>, DirectError> {
        self.with_way(|reach, _| match reach {
            Reach::Memory(device) => Ok(Some(device.clone())),
            Reach::Network { .. } => Ok(None),
        })
    }

    /// Opens a lane.
    fn open_lane(&self, options: LaneOptions) -> Result<Lane, DirectError> {
        self.with_way(|reach, number| reach.lane(|| self.agent(), options, number))
    }

    /// A way over a network has failed: nothing goes by it any more, and all that was granted ends. Once for each way.
    pub(crate) fn lose(&self, number: u64) {
        let mut granted = lock(&self.granted);
        if self.leave_way(Some(number), true) {
            self.end_all(&mut granted);
        }
    }

    /// Gives a way over a network up, this one or whichever it is; true where it was one.
    fn leave_way(&self, number: Option<u64>, lost: bool) -> bool {
        let mut way = lock(&self.way);
        let is_it = number.is_none_or(|number| number == way.number);
        if !is_it || !self.is_remote.load(Ordering::Relaxed) {
            return false;
        }
        (way.reach, way.lost) = (None, lost);
        way.number += 1;
        self.way_number.store(way.number, Ordering::Relaxed);
        drop(way);
        let mut lanes = lock(&self.lanes);
        lanes.made -= lanes.idle.len();
        lanes.idle.clear();
        true
    }

    /// Asks the agent for a file, by descriptors that show what the process may do with it; `again`, and by what was shown before. `give_up`
    /// replaces the descriptors that write, where there are any. Once more where the agent had been started again since, or has taken
    /// files back.
    pub(crate) fn map(
        &self,
        descriptors: &[BorrowedFd<'_>],
        again: bool,
        mut give_up: Option<GiveUp<'_>>,
    ) -> Result<Arc<Mapped>, DirectError> {
        // One at a time: nothing is granted while old grants end.
        let mut granted = lock(&self.granted);
        // What has been given up shows nothing any more.
        let mut is_given_up = false;
        let mut ask = |is_given_up: &mut bool| {
            // The agent grants nothing to a process that the device does not know.
            self.with_way(|_, _| Ok(()))?;
            let give_up = give_up.as_mut().map(|give_up| {
                || {
                    *is_given_up = true;
                    give_up()
                }
            });
            self.agent()?.open_for(descriptors, again, give_up)
        };
        let mut mapped = ask(&mut is_given_up);
        if matches!(mapped, Err(DirectError::Agent(_))) {
            *lock(&self.agent) = None;
            // Over a network all that this process had went with that agent.
            self.leave_way(None, false);
            self.end_all(&mut granted);
            if !is_given_up {
                mapped = ask(&mut is_given_up);
            }
        }
        if matches!(mapped, Err(DirectError::Stale)) {
            self.end_all(&mut granted);
            self.agent()?.acknowledge()?;
            if !is_given_up {
                mapped = ask(&mut is_given_up);
            }
        }
        if !matches!(mapped, Err(DirectError::Agent(_))) {
            self.note_agent();
        }
        let mapped = Arc::new(mapped?);
        granted.retain(|one| one.strong_count() > 0);
        granted.push(Arc::downgrade(&mapped));
        Ok(mapped)
    }

    /// The last descriptor of a file that the agent knows is about to be closed.
    pub(crate) fn forget(&self, descriptor: BorrowedFd<'_>) {
        let agent = lock(&self.agent).as_ref().map(|agent| agent.client.clone());
        // An agent that is gone knows nothing of it.
        let _ = agent.map(|agent| agent.forget(descriptor));
    }

    /// A descriptor with these flags, where the process may not open the file so any more and the agent knows that it might.
    pub(crate) fn reopen(&self, descriptor: BorrowedFd<'_>, flags: OFlags) -> Result<std::os::fd::OwnedFd, Errno> {
        let agent = self.agent().map_err(|_| Errno::ACCESS)?;
        agent.reopen(descriptor, flags.bits()).map_err(|error| {
            tracing::debug!("a file is not opened anew: {error}");
            Errno::ACCESS
        })
    }

    /// Ends all grants, since what they say may be old: waits until nothing is done by them any more. Files notice and ask again.
    fn end_all(&self, granted: &mut Vec<Weak<Mapped>>) {
        let all: Vec<Arc<Mapped>> = granted.drain(..).filter_map(|one| one.upgrade()).collect();
        all.iter().for_each(|one| one.end());
        for one in &all {
            self.drain(one);
            // Bounded by the longest wait of a lane for an answer.
            while one.is_used() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// A lane for one operation.
    fn take_lane(&self) -> Result<Lane, DirectError> {
        self.check()?;
        let mut lanes = lock(&self.lanes);
        loop {
            if let Some(lane) = lanes.idle.pop() {
                if lane.way() == self.way_number.load(Ordering::Relaxed) {
                    return Ok(lane);
                }
                lanes.made -= 1;
                continue;
            }
            if lanes.made < self.options.lanes_max.max(1) {
                lanes.made += 1;
                drop(lanes);
                match self.open_lane(self.options.lane) {
                    Ok(lane) => return Ok(lane),
                    Err(error) => {
                        lanes = lock(&self.lanes);
                        lanes.made -= 1;
                        // The device has no more endpoints for this user: those that there are will do.
                        if lanes.made == 0 {
                            return Err(error);
                        }
                        if let Some(lane) = lanes.idle.pop() {
                            return Ok(lane);
                        }
                    }
                }
            }
            lanes.waiting += 1;
            lanes = self.returned.wait(lanes).unwrap_or_else(PoisonError::into_inner);
            lanes.waiting -= 1;
        }
    }

    fn give_lane(&self, lane: Lane) {
        let mut lanes = lock(&self.lanes);
        lanes.idle.push(lane);
        let is_awaited = lanes.waiting > 0;
        drop(lanes);
        if is_awaited {
            self.returned.notify_one();
        }
    }

    /// Does one operation to its end.
    pub(crate) fn run(&self, operation: Operation) -> Result<Operation, Box<Undone>> {
        let mut lane = match self.take_lane() {
            Ok(lane) => lane,
            Err(error) => {
                let way = self.way_number.load(Ordering::Relaxed);
                return Err(Box::new(Undone { error, operation: Some(operation), way }));
            }
        };
        match lane.run(operation) {
            Ok(operation) => {
                self.give_lane(lane);
                Ok(operation)
            }
            Err(error) => {
                let (operation, way) = (lane.abandon().next(), lane.way());
                drop(lane);
                // The others are no better, most likely; those that are in use find out by themselves.
                let mut lanes = lock(&self.lanes);
                lanes.made -= 1 + lanes.idle.len();
                lanes.idle.clear();
                drop(lanes);
                self.returned.notify_all();
                Err(Box::new(Undone { error, operation, way }))
            }
        }
    }

    /// Which start of the device it is now; by a lane of its own, since one that is there may be of a device that has ended. Once more where
    /// the agent, or the way that it gave, was of before.
    pub(crate) fn device_start(&self) -> Result<u64, DirectError> {
        let open = || self.open_lane(LaneOptions { slots: 1, ..self.options.lane });
        let mut lane = open();
        if matches!(lane, Err(DirectError::Agent(_) | DirectError::Lost(_))) {
            let agent = lock(&self.agent).as_ref().map(|agent| agent.client.clone());
            agent.iter().for_each(|agent| self.lose_agent(agent));
            lane = open();
        }
        let unknown = |why| DirectError::Lost(format!("nobody says whether the device has begun anew: {why}"));
        Ok(lane.map_err(unknown)?.start())
    }

    /// A lane of its own for a queue.
    pub(crate) fn queue_lane(&self, slots: u32) -> Result<Arc<Mutex<Lane>>, DirectError> {
        self.check()?;
        let lane = self.open_lane(LaneOptions { slots, ..self.options.lane })?;
        let lane = Arc::new(Mutex::new(lane));
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&lane));
        Ok(lane)
    }

    /// Waits until no queue has anything of a grant under way; the grant has been ended.
    pub(crate) fn drain(&self, file: &Arc<Mapped>) {
        let queues: Vec<_> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        let begun = Instant::now();
        for queue in queues {
            let mut lane = lock(&queue);
            // A lane that fails, or a device that does not answer, has nothing under way that could still be permitted: what
            // the agent takes back is drained by the device.
            while lane.uses(file) && begun.elapsed() < Duration::from_secs(60) {
                if lane.poll().and_then(|()| lane.wait(Duration::from_secs(1))).is_err() {
                    break;
                }
            }
        }
    }

    /// The file with this device and inode number, as the session knows it.
    pub(crate) fn inode(&self, key: (u64, u64)) -> Arc<Inode> {
        let mut inodes = lock(&self.inodes);
        if let Some(inode) = inodes.get(&key).and_then(Weak::upgrade) {
            return inode;
        }
        if inodes.len() >= 64 {
            inodes.retain(|_, inode| inode.strong_count() > 0);
        }
        let inode = Arc::new(Inode::new(self.options.kernel_operations_max));
        inodes.insert(key, Arc::downgrade(&inode));
        inode
    }
}
