//! Queues that a thread polls itself: no runtime, no tasks, one send and one receive for as many commands as there are. While
//! waiting it spins for a bounded time, then sleeps in the kernel.
//!
//! What always holds: buffers go in with a command and come back with its completion, nothing is allocated for one; after an
//! error a queue does no more. No keep alive timer is set (KATO 0), since nothing would run to feed it while the thread is
//! busy elsewhere; a queue whose host dies is noticed by TCP.

use super::bringup::{self, Port, Ready};
use super::identity::NamespaceIdentity;
use super::queue::{Completed, Queue, QueueConfig, QueueFull, SLICES_MAX, Transfer};
use super::wire::BlockingWire;
use super::{NvmeError, Options};
use std::future::Future;
use std::io::{ErrorKind, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use willow_wire::spec::SubmissionEntry;

/// How long [`PolledQueue::wait`] spins before it sleeps.
pub const SPIN: Duration = Duration::from_micros(200);
/// Tries between looks at the clock while spinning.
const SPIN_TRIES: u32 = 64;

/// One queue pair on a socket that does not block.
#[derive(Debug)]
pub struct PolledQueue {
    wire: BlockingWire,
    queue: Queue,
    address: std::net::SocketAddr,
    id: u16,
    failure: Option<NvmeError>,
}

impl PolledQueue {
    fn open(options: &Options, id: u16, config: QueueConfig) -> Result<Self, NvmeError> {
        let address = options.address;
        let connect = |source: std::io::Error| NvmeError::Connect { address, source: Arc::new(source) };
        let stream = TcpStream::connect_timeout(&address, options.connect_timeout).map_err(connect)?;
        let stream = TcpStream::from(willow_shm::own::raised(stream.into()));
        super::socket::tune(&stream, address.ip().is_loopback());
        stream.set_nonblocking(true).map_err(connect)?;
        let wire = BlockingWire::open(stream, options)?;
        let mut queue = PolledQueue { wire, queue: Queue::new(config), address, id, failure: None };
        let until = Instant::now() + options.connect_timeout;
        while !queue.queue.is_initialized() {
            queue.progress()?;
            if !queue.queue.is_initialized() {
                queue.sleep_until(until, "connection", options.connect_timeout)?;
            }
        }
        Ok(queue)
    }

    fn lost(&mut self, reason: impl Into<Arc<str>>) -> NvmeError {
        let error = NvmeError::ConnectionLost { address: self.address, queue: self.id, reason: reason.into() };
        self.fail(error)
    }

    fn fail(&mut self, error: NvmeError) -> NvmeError {
        self.failure = Some(error.clone());
        self.queue.fail();
        error
    }

    /// Commands that may be in flight.
    pub fn depth(&self) -> usize {
        self.queue.depth()
    }
    /// True where a command would be taken.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.failure.is_none() && self.queue.in_flight() < self.queue.depth()
    }
    /// True where something is still to be sent: the socket was full.
    pub fn has_output(&self) -> bool {
        self.queue.has_output()
    }
    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Takes a command; it goes out with the next poll. `tag` comes back in its completion.
    #[inline]
    pub fn submit(&mut self, tag: u64, entry: SubmissionEntry, transfer: Transfer) -> Result<(), QueueFull> {
        self.queue.submit(tag, entry, transfer, u64::MAX).map(|_| ())
    }

    /// Sends what is to be sent and takes in what has come; never waits. Completions are appended to `into`, also those of
    /// commands that end because the connection did.
    #[inline]
    pub fn poll(&mut self, into: &mut Vec<Completed>) -> Result<usize, NvmeError> {
        let before = into.len();
        let outcome = self.progress();
        while let Some(completed) = self.queue.completed() {
            into.push(completed);
        }
        outcome?;
        Ok(into.len() - before)
    }

    /// Polls until there is a completion, or nothing in flight: spins for [`SPIN`], then sleeps until the socket has
    /// something, at most `limit`.
    pub fn wait(&mut self, into: &mut Vec<Completed>, limit: Duration) -> Result<usize, NvmeError> {
        let mut start: Option<Instant> = None;
        loop {
            for _ in 0..SPIN_TRIES {
                let count = self.poll(into)?;
                if count > 0 || self.queue.in_flight() == 0 {
                    return Ok(count);
                }
                std::hint::spin_loop();
            }
            let start = *start.get_or_insert_with(Instant::now);
            if start.elapsed() >= SPIN {
                self.sleep_until(start + limit, "command", limit)?;
            }
        }
    }

    /// Sleeps until the socket has something, or takes what is to be sent; for at most this long, which is no error.
    pub fn sleep(&mut self, most: Duration) -> Result<(), NvmeError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self.wait_socket(most),
        }
    }

    fn progress(&mut self) -> Result<(), NvmeError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.send()?;
        loop {
            let mut input = self.queue.input();
            let room = input[0].len() + input[1].len();
            match self.wire.read(&mut input) {
                Ok(0) => return Err(self.lost("closed by the controller")),
                Ok(bytes) => {
                    if let Err(source) = self.queue.received(bytes) {
                        // The termination request goes out as far as it can.
                        let _ = self.send();
                        let (address, queue) = (self.address, self.id);
                        return Err(self.fail(NvmeError::Protocol { address, queue, source }));
                    }
                    if self.queue.has_output() {
                        self.send()?;
                    }
                    // Less than there was room for: that was all.
                    if bytes < room {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error.to_string())),
            }
        }
    }

    #[inline]
    fn send(&mut self) -> Result<(), NvmeError> {
        while self.queue.has_output() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.queue.output(&mut slices);
            match self.wire.write(&slices[..count]) {
                Ok(bytes) => self.queue.sent(bytes),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(error.to_string())),
            }
        }
        Ok(())
    }

    /// Sleeps until the socket is ready.
    fn sleep_until(&mut self, until: Instant, what: &'static str, limit: Duration) -> Result<(), NvmeError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.fail(NvmeError::TimedOut { what, after: limit }));
        }
        self.wait_socket(left)
    }

    fn wait_socket(&mut self, left: Duration) -> Result<(), NvmeError> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut flags = PollFlags::IN;
        if self.queue.has_output() {
            flags |= PollFlags::OUT;
        }
        let timeout =
            Timespec { tv_sec: left.as_secs().min(i32::MAX as u64) as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.wire.stream, flags)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(self.lost(error.to_string())),
        }
    }
}

impl AsFd for PolledQueue {
    /// Its socket.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.stream.as_fd()
    }
}

/// A controller whose queues are polled.
#[derive(Debug)]
pub struct PolledController {
    options: Options,
    admin: PolledQueue,
    ready: Ready,
    queues: u16,
    opened: u16,
}

struct Blocking<'a> {
    queue: &'a mut PolledQueue,
    limit: Duration,
}

impl Port for Blocking<'_> {
    fn execute(
        &mut self,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
    ) -> impl Future<Output = Result<Completed, NvmeError>> + Send {
        std::future::ready(self.one(what, entry, transfer))
    }
    fn sleep(&mut self, time: Duration) -> impl Future<Output = ()> + Send {
        std::thread::sleep(time);
        std::future::ready(())
    }
}

impl Blocking<'_> {
    fn one(&mut self, what: &'static str, entry: SubmissionEntry, transfer: Transfer) -> Result<Completed, NvmeError> {
        if self.queue.submit(0, entry, transfer).is_err() {
            return Err(self
                .queue
                .failure
                .clone()
                .unwrap_or(NvmeError::Argument(format!("{what}: the queue is full"))));
        }
        let mut done = Vec::new();
        let start = Instant::now();
        loop {
            self.queue.wait(&mut done, self.limit)?;
            if let Some(completed) = done.pop() {
                return Ok(completed);
            }
            if start.elapsed() >= self.limit {
                return Err(NvmeError::TimedOut { what, after: self.limit });
            }
        }
    }
}

/// Runs a future whose every wait blocks: it is ready when it is polled.
fn now<T>(future: impl Future<Output = Result<T, NvmeError>>) -> Result<T, NvmeError> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(NvmeError::Argument("a blocking port did not block".to_owned())),
    }
}

impl PolledController {
    /// Connects the admin queue and makes the controller ready. The options' keep alive time is not used.
    pub fn connect(options: &Options) -> Result<Self, NvmeError> {
        options.validate()?;
        let options = Options { keep_alive: Duration::ZERO, ..options.clone() };
        let config = QueueConfig {
            depth: bringup::ADMIN_QUEUE_ENTRIES - 1,
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            capsule_data_bytes: 0,
            receive_bytes: 16 << 10,
            admin: true,
        };
        let options = match options.awaits_channel() {
            true => {
                let mut queue = PolledQueue::open(&options, 0, config)?;
                let mut port = Blocking { queue: &mut queue, limit: options.command_timeout };
                now(bringup::channel(&mut port, &options))?
            }
            false => options,
        };
        let mut admin = PolledQueue::open(&options, 0, config)?;
        let mut port = Blocking { queue: &mut admin, limit: options.command_timeout };
        let ready = now(bringup::enable(&mut port, &options))?;
        let queues = now(bringup::number_of_queues(&mut port, options.queues))?;
        Ok(PolledController { options, admin, ready, queues, opened: 0 })
    }

    /// What the controller said of itself.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }
    /// I/O queues that can be opened.
    pub fn queues(&self) -> u16 {
        self.queues
    }
    /// I/O queues that were opened.
    pub fn opened(&self) -> u16 {
        self.opened
    }
    /// The socket of its admin queue.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.admin.as_fd()
    }

    /// The active namespaces.
    pub fn namespaces(&mut self) -> Result<Vec<NamespaceIdentity>, NvmeError> {
        let mut port = Blocking { queue: &mut self.admin, limit: self.options.command_timeout };
        now(bringup::namespaces(&mut port, &self.options))
    }

    /// Which start of a device it is that loses with its process what it answered and did not flush; 0: it loses nothing by that.
    pub fn start(&self) -> u64 {
        self.ready.identity.start
    }

    /// Opens the next I/O queue, of the options' depth or what the controller allows.
    pub fn open_queue(&mut self) -> Result<PolledQueue, NvmeError> {
        if self.opened >= self.queues {
            return Err(NvmeError::Argument(format!("the controller gives {} I/O queues", self.queues)));
        }
        let id = self.opened + 1;
        let entries_max = self.ready.capabilities.queue_entries_max().min(u32::from(u16::MAX));
        let entries = (u32::from(self.options.depth) + 1).min(entries_max).max(2) as u16;
        let config = QueueConfig {
            depth: entries - 1,
            header_digest: self.options.header_digest,
            data_digest: self.options.data_digest,
            capsule_data_bytes: self.ready.identity.capsule_data_bytes,
            receive_bytes: self.options.receive_bytes,
            admin: false,
        };
        let mut queue = PolledQueue::open(&self.options, id, config)?;
        let mut port = Blocking { queue: &mut queue, limit: self.options.command_timeout };
        now(bringup::connect(&mut port, &self.options, id, self.ready.controller_id, entries))?;
        self.opened = id;
        Ok(queue)
    }

    /// Shuts the controller down.
    pub fn shut_down(mut self) -> Result<(), NvmeError> {
        let mut port = Blocking { queue: &mut self.admin, limit: self.options.command_timeout };
        now(bringup::shut_down(&mut port, &self.options, self.ready.capabilities))
    }
}
