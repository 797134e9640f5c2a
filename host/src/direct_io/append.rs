//! Records behind the end of a file, one append after another: by the device, which has the file's length meanwhile (Willow, 4.6), or through the kernel
//! where that does not go.
//!
//! What always holds:
//! - a record that was answered is durable, as a whole, behind all that were answered before it was begun;
//! - while the device has the length this process has no descriptor of the file but a mere path. What the kernel has to append is appended by one that
//!   is opened for that and closed afterwards: whoever opens the file has its length settled first;
//! - a record is never appended twice. Where the way to the device fails in the midst of one, nobody knows whether it was appended, and the caller is
//!   told so ([`AppendFailure::Unknown`]).

use super::agent_client::{AgentClient, DirectError};
use super::append_port::AppendPort;
use super::description::{DSYNC, open_anew};
use super::insist::{Place, Waits};
use super::reach;
use super::session::{AGENT_LOOK, Session, add, lock};
use crate::agent::append::message::{Ask, Told};
use crate::agent::freeze::{Guard, guarded};
use crate::append::{AppendClient, AppendError};
use crate::hre::{Hre, HreError};
use append_host::wire::RECORD_BYTES_MAX;
use append_host::{APP_NAME, Refusal};
use rustix::fs::{Mode, OFlags};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// How often the agent is asked for one record before the kernel appends it.
const ATTEMPTS_MAX: u32 = 8;

/// Why a record was not appended, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum AppendFailure {
    /// It was not appended.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// It was not appended: the device says why.
    #[error("the record was not appended: {0}")]
    Refused(Refusal),
    /// The way to the device failed: it was appended as a whole or not at all, which the file shows.
    #[error("nobody knows whether the record was appended: {0}")]
    Unknown(HreError),
}

impl AppendFailure {
    /// What POSIX calls it.
    pub fn errno(&self) -> i32 {
        match self {
            AppendFailure::Direct(error) => error.errno(),
            AppendFailure::Refused(Refusal::Busy) => libc::EAGAIN,
            AppendFailure::Refused(_) | AppendFailure::Unknown(_) => libc::EIO,
        }
    }
}

impl From<rustix::io::Errno> for AppendFailure {
    fn from(error: rustix::io::Errno) -> Self {
        AppendFailure::Direct(error.into())
    }
}

/// An endpoint of its own, for one thread at a time.
enum Port {
    Memory(AppendPort),
    Network(AppendClient, tokio::runtime::Runtime),
}

impl Port {
    fn append(&mut self, file: u64, least: u64, record: &[u8]) -> Result<u64, AppendError> {
        match self {
            Port::Memory(port) => port.append(file, least, record),
            Port::Network(client, runtime) => runtime.block_on(client.append(file, least, record)),
        }
    }
}

/// Where the device appends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Begun {
    number: u64,
    /// Of the app, and SPUs.
    numbers: (u16, u16),
    /// The file had this length before: where a record lies is told by 32 bits.
    least: u64,
    /// Each time that the agent was asked has another.
    turn: u64,
}

#[derive(Default)]
struct State {
    begun: Option<Begun>,
    turn: u64,
    /// To whom it was proved that this process may append, and the file's number.
    proved: Option<(Arc<AgentClient>, u64)>,
    /// Records that the kernel appends before the agent is asked again, and how many it will be the next time.
    kernel_left: u32,
    kernel_next: u32,
    /// The device has had the file's length for this process: it is append-only by nobody but an agent.
    has_begun: bool,
}

#[derive(Default)]
struct Ports {
    idle: Vec<Port>,
    made: usize,
}

/// Appends records to a file, from any number of threads.
pub struct Appender {
    session: Arc<Session>,
    /// A mere path to the file.
    path: OwnedFd,
    /// It appends for a [`super::File`], which sees to the file's other descriptors itself.
    is_files: bool,
    /// Records in a row that the kernel has appended for it.
    pub(super) kernel_run: AtomicU32,
    state: Mutex<State>,
    ports: Mutex<Ports>,
    returned: Condvar,
}

impl Appender {
    /// Opens a file for appending; it is there.
    pub fn open(session: &Arc<Session>, path: &Path) -> Result<Appender, AppendFailure> {
        let path = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let appender = Appender::of_path(session, path);
        // That it may be written is found out here.
        drop(appender.writable(OFlags::empty())?);
        Ok(appender)
    }

    /// Takes a descriptor over, and closes it: the process should have no other one of the file.
    pub fn new(session: &Arc<Session>, file: OwnedFd) -> Result<Appender, AppendFailure> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        drop(file);
        Ok(Appender::of_path(session, path))
    }

    fn of_path(session: &Arc<Session>, path: OwnedFd) -> Appender {
        let (session, state) = (session.clone(), Mutex::default());
        let (kernel_run, ports, returned) = (AtomicU32::new(0), Mutex::default(), Condvar::new());
        Appender { session, path, is_files: false, kernel_run, state, ports, returned }
    }

    /// For a file whose descriptors become mere paths.
    pub(super) fn of_file(session: &Arc<Session>, file: BorrowedFd<'_>) -> Result<Appender, rustix::io::Errno> {
        let path = open_anew(file, OFlags::PATH | OFlags::CLOEXEC)?;
        // A number that the program does not look for.
        let path = willow_shm::own::raised(path);
        let mut appender = Appender::of_path(session, path);
        appender.is_files = true;
        Ok(appender)
    }

    /// The mere path.
    pub(super) fn path(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }

    /// Appends a record, durably; where in the file it begins. Records of more than 64 KiB are the kernel's.
    pub fn append(&self, record: &[u8]) -> Result<u64, AppendFailure> {
        self.session.check()?;
        if record.is_empty() {
            return Err(rustix::io::Errno::INVAL.into());
        }
        match self.append_by_device(record)? {
            Some(offset) => Ok(offset),
            None => self.append_by_kernel(record),
        }
    }

    /// The same by the device alone; `None`: the kernel is to append it.
    pub(super) fn append_by_device(&self, record: &[u8]) -> Result<Option<u64>, AppendFailure> {
        if record.len() > RECORD_BYTES_MAX as usize {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS_MAX {
            let Some(begun) = self.begin()? else { break };
            let mut port = match self.take_port(begun.numbers) {
                Ok(port) => port,
                Err(error) => {
                    tracing::debug!(
                        "the kernel appends, since the device is not reached by one more endpoint: {error}"
                    );
                    break;
                }
            };
            let done = port.append(begun.number, begun.least, record);
            let is_usable = !matches!(done, Err(AppendError::Hre(_)));
            self.give_port(Some(port).filter(|_| is_usable));
            match done {
                Ok(offset) => {
                    add(&self.session.counters.direct_appends);
                    return Ok(Some(offset));
                }
                // Nothing was done: the agent has settled the length, or is to.
                Err(AppendError::Refused(
                    Refusal::NotFound | Refusal::Insufficient | Refusal::Suspended | Refusal::Permission,
                )) => self.over(begun),
                Err(AppendError::Refused(refusal)) => return Err(AppendFailure::Refused(refusal)),
                Err(AppendError::Hre(error)) => {
                    self.over(begun);
                    // A device that comes back knows nothing of who was admitted, and neither does the agent.
                    lock(&self.state).proved = None;
                    return Err(AppendFailure::Unknown(error));
                }
            }
        }
        Ok(None)
    }

    /// The file's length, with all that was appended by anybody.
    pub fn length(&self) -> Result<u64, AppendFailure> {
        self.session.check()?;
        let mut state = lock(&self.state);
        if let Some(begun) = state.begun.take()
            && let Some(begun) = self.ask(&mut state, begun.number)?
        {
            return Ok(begun.least);
        }
        drop(state);
        // Nobody opens it while the device has its length.
        let file = self.writable(OFlags::empty())?;
        Ok(rustix::fs::fstat(&file)?.st_size as u64)
    }

    /// Gives the file back to the file system, which has its length then, unless other processes still append. It is taken again by the next record.
    pub fn give_back(&self) -> Result<(), AppendFailure> {
        self.session.check()?;
        let mut state = lock(&self.state);
        state.begun = None;
        match state.proved.take() {
            Some((agent, file)) => Ok(agent.ask_module::<_, Told>(APP_NAME, &Ask::End { file }, &[]).map(drop)?),
            None => Ok(()),
        }
    }

    /// What was begun in this turn is over.
    fn over(&self, begun: Begun) {
        let mut state = lock(&self.state);
        state.begun.take_if(|now| now.turn == begun.turn);
    }

    /// How the device appends; `None`: the kernel does.
    fn begin(&self) -> Result<Option<Begun>, AppendFailure> {
        let mut state = lock(&self.state);
        if let Some(begun) = state.begun {
            return Ok(Some(begun));
        }
        if state.kernel_left > 0 {
            return Ok(None);
        }
        let begun = match &state.proved {
            Some((_, number)) => {
                let number = *number;
                self.ask(&mut state, number)
            }
            None => Err(DirectError::Stale),
        };
        let begun = match begun {
            // To an agent that was started since, or to none yet.
            Err(DirectError::Stale | DirectError::Agent(_)) => self.prove(&mut state),
            begun => begun,
        };
        match begun {
            Ok(Some(begun)) => {
                (state.kernel_left, state.kernel_next) = (0, 0);
                Ok(Some(begun))
            }
            Ok(None) => Ok(None),
            Err(error @ DirectError::System(_)) => Err(error.into()),
            Err(error) => {
                tracing::debug!("the kernel appends: {error}");
                add(&self.session.counters.refused);
                let most = self.session.options.kernel_operations_max;
                state.kernel_next = (state.kernel_next * 2).clamp(1, most.max(1));
                state.kernel_left = if most == 0 { 0 } else { state.kernel_next };
                Ok(None)
            }
        }
    }

    /// Proves to the agent that this process may append, and begins.
    fn prove(&self, state: &mut State) -> Result<Option<Begun>, DirectError> {
        if let Some((agent, _)) = state.proved.take() {
            self.session.lose_agent(&agent);
        }
        let agent = self.session.agent()?;
        let file = self.writable(OFlags::empty())?;
        let told = agent.ask_module(APP_NAME, &Ask::Prepare, &[file.as_fd()]);
        drop(file);
        if matches!(told, Err(DirectError::Agent(_))) {
            // One that was started again is found the next time.
            self.session.lose_agent(&agent);
        }
        match told? {
            Told::Prepared { file } => {
                state.proved = Some((agent, file));
                self.ask(state, file)
            }
            other => Err(DirectError::Agent(format!("it says {other:?} to a proof"))),
        }
    }

    fn ask(&self, state: &mut State, file: u64) -> Result<Option<Begun>, DirectError> {
        let Some((agent, _)) = state.proved.clone() else { return Ok(None) };
        let told = agent.ask_module(APP_NAME, &Ask::Begin { file }, &[])?;
        let Told::Begun { app, spus, length } = told else {
            return Err(DirectError::Agent(format!("it says {told:?} to the beginning of an append")));
        };
        state.turn += 1;
        let begun = Begun { number: file, numbers: (app, spus), least: length, turn: state.turn };
        (state.begun, state.has_begun) = (Some(begun), true);
        add(&self.session.counters.opened);
        Ok(Some(begun))
    }

    /// Has the kernel make durable what anybody wrote by it.
    pub(super) fn sync_by_kernel(&self, data: bool) -> Result<(), rustix::io::Errno> {
        let file = self.writable(OFlags::empty())?;
        if data { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) }
    }

    /// Opens the file for appending. What keeps it from that (EPERM) ends first.
    fn writable(&self, flags: OFlags) -> Result<OwnedFd, rustix::io::Errno> {
        let path = format!("/proc/self/fd/{}", self.path.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | flags;
        let open = || self.session.spare.with(|| rustix::fs::open(&path, flags, Mode::empty()));
        if self.is_files {
            return self.session.insist(&[self.path.as_fd()], Waits::ToTheEnd, open);
        }
        let place = Place { folder: self.path.as_fd(), path: c"", follows: false };
        self.session.change(&[place], Waits::ToTheEnd, open)
    }

    fn append_by_kernel(&self, record: &[u8]) -> Result<u64, AppendFailure> {
        let file = self.writable_when_settled()?;
        let mut done = 0;
        while done < record.len() {
            done += rustix::io::retry_on_intr(|| rustix::io::write(&file, &record[done..]))?;
        }
        add(&self.session.counters.kernel_appends);
        Ok(rustix::fs::tell(&file)? - record.len() as u64)
    }

    /// One call of the kernel's, durable when it returns: how many bytes it took, and where the file ends behind them.
    pub(super) fn write_by_kernel(&self, from: &[IoSlice<'_>]) -> Result<(usize, u64), rustix::io::Errno> {
        let file = self.writable_when_settled()?;
        let count = rustix::io::writev(&file, from)?;
        add(&self.session.counters.kernel_appends);
        Ok((count, rustix::fs::tell(&file)?))
    }

    /// A descriptor by which the kernel appends behind all that the device has appended.
    fn writable_when_settled(&self) -> Result<OwnedFd, rustix::io::Errno> {
        let has_begun = {
            let mut state = lock(&self.state);
            state.kernel_left = state.kernel_left.saturating_sub(1);
            state.has_begun
        };
        let mut file = self.writable(DSYNC)?;
        // An agent that was killed while it gave the file back, or the next one, which does: what was appended before comes first.
        while has_begun && matches!(guarded(file.as_fd()), Ok(Guard::AppendOnly | Guard::Immutable)) {
            if !self.session.is_worth_waiting() {
                return Err(rustix::io::Errno::PERM);
            }
            std::thread::sleep(AGENT_LOOK);
            drop(file);
            file = self.writable(DSYNC)?;
        }
        Ok(file)
    }

    /// An endpoint; waits where there are as many as there may be.
    fn take_port(&self, numbers: (u16, u16)) -> Result<Port, AppendFailure> {
        let mut ports = lock(&self.ports);
        loop {
            if let Some(port) = ports.idle.pop() {
                return Ok(port);
            }
            if ports.made < self.session.options.lanes_max.max(1) {
                ports.made += 1;
                drop(ports);
                return self.connect(numbers).inspect_err(|_| self.give_port(None)).map_err(AppendFailure::from);
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

    fn connect(&self, (app, spus): (u16, u16)) -> Result<Port, DirectError> {
        if let Some(device) = self.session.device_socket()? {
            return Ok(Port::Memory(AppendPort::open(&device, (app, spus))?));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DirectError::Agent(format!("no runtime: {error}")))?;
        let hre: Arc<dyn Hre> = runtime.block_on(reach::endpoint(&self.session.agent()?))?;
        Ok(Port::Network(AppendClient::new(hre, app, spus), runtime))
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        // The agent notices by itself where this does not arrive.
        let _ = self.give_back();
    }
}
