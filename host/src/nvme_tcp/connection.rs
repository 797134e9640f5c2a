//! One queue on a tokio socket: a task moves the bytes of [`Queue`], any number of tasks wait for commands.
//!
//! What always holds:
//! - commands that are submitted before the task runs go out in one write;
//! - a command whose future is dropped goes on; its buffer is freed when it ends;
//! - after a failure every command that waits ends with the error, and later ones end at once;
//! - no timer runs while nothing is in flight.

use super::queue::{Completed, Queue, QueueConfig, QueueError, SLICES_MAX, Transfer};
use super::wire::Wire;
use super::{NvmeError, Options};
use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;
use willow_wire::spec::SubmissionEntry;

/// How often deadlines of commands in flight are looked at.
const DEADLINE_CHECK: Duration = Duration::from_millis(50);
/// Most rounds of reading and writing before other tasks get their turn.
const ROUNDS_MAX: u32 = 16;

#[derive(Debug)]
enum Waiter {
    Empty,
    Waiting(Option<Waker>),
    Done(Box<Completed>),
    /// Nobody waits any more.
    Abandoned,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    /// By tag: index into this table.
    waiters: Vec<Waiter>,
    timed_out: Vec<bool>,
    free_tags: Vec<u32>,
    failure: Option<NvmeError>,
    closing: bool,
    ready: Option<Waker>,
}

/// A command that has passed its deadline.
#[derive(Clone, Copy, Debug)]
pub struct Expired {
    /// Queue.
    pub queue: u16,
    /// Command.
    pub cid: u16,
    /// True the second time: it outlived its Abort.
    pub again: bool,
}

#[derive(Debug)]
struct Shared {
    options: Arc<Options>,
    queue_id: u16,
    state: Mutex<State>,
    work: Notify,
    permits: Semaphore,
    failed: Notify,
    started: Instant,
    expired: Option<mpsc::UnboundedSender<Expired>>,
}

/// A connected queue. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was held leaves a state that is checked like any other.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
    fn lost(&self, reason: impl Into<Arc<str>>) -> NvmeError {
        NvmeError::ConnectionLost { address: self.options.address, queue: self.queue_id, reason: reason.into() }
    }
    fn protocol(&self, source: QueueError) -> NvmeError {
        NvmeError::Protocol { address: self.options.address, queue: self.queue_id, source }
    }

    /// Ends all commands and refuses new ones.
    fn fail(&self, error: NvmeError) {
        let mut state = self.state();
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(error);
        state.queue.fail();
        let mut wakers = Vec::new();
        self.collect(&mut state, &mut wakers);
        wakers.extend(state.ready.take());
        drop(state);
        self.permits.close();
        wakers.into_iter().for_each(Waker::wake);
        self.failed.notify_waiters();
        self.work.notify_one();
    }

    /// Hands completions to who waits for them.
    fn collect(&self, state: &mut State, wakers: &mut Vec<Waker>) {
        let mut freed = 0;
        while let Some(completed) = state.queue.completed() {
            let tag = completed.tag as usize;
            freed += 1;
            match std::mem::replace(&mut state.waiters[tag], Waiter::Empty) {
                Waiter::Waiting(waker) => {
                    state.waiters[tag] = Waiter::Done(Box::new(completed));
                    wakers.extend(waker);
                }
                Waiter::Abandoned => state.free_tags.push(tag as u32),
                Waiter::Empty | Waiter::Done(_) => debug_assert!(false, "a command that ends twice"),
            }
        }
        if freed > 0 {
            self.permits.add_permits(freed);
        }
    }
}

/// Marks the command as abandoned when its future is dropped.
struct Abandon<'a> {
    shared: &'a Shared,
    tag: u32,
    armed: bool,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if self.armed {
            let mut state = self.shared.state();
            match std::mem::replace(&mut state.waiters[self.tag as usize], Waiter::Abandoned) {
                Waiter::Waiting(_) => {}
                _ => {
                    state.waiters[self.tag as usize] = Waiter::Empty;
                    state.free_tags.push(self.tag);
                }
            }
        }
    }
}

impl Connection {
    /// Connects and initializes (TCP, ICReq, ICResp). Commands that pass their deadline are told to `expired`.
    pub async fn open(
        options: Arc<Options>,
        queue_id: u16,
        config: QueueConfig,
        expired: Option<mpsc::UnboundedSender<Expired>>,
    ) -> Result<Self, NvmeError> {
        let address = options.address;
        let limit = options.connect_timeout;
        let open = async {
            let stream = TcpStream::connect(address)
                .await
                .map_err(|source| NvmeError::Connect { address, source: Arc::new(source) })?;
            super::socket::tune(&stream, address.ip().is_loopback());
            let wire = Wire::open(stream, &options).await?;
            let queue = Queue::new(config);
            let depth = queue.depth();
            let shared = Arc::new(Shared {
                options: options.clone(),
                queue_id,
                state: Mutex::new(State {
                    queue,
                    // An abandoned command keeps its tag while a new one takes its place in line, never its slot.
                    waiters: (0..depth).map(|_| Waiter::Empty).collect(),
                    timed_out: vec![false; depth],
                    free_tags: (0..depth as u32).rev().collect(),
                    failure: None,
                    closing: false,
                    ready: None,
                }),
                work: Notify::new(),
                permits: Semaphore::new(depth),
                failed: Notify::new(),
                started: Instant::now(),
                expired,
            });
            let connection = Connection { shared };
            tokio::spawn(drive(connection.shared.clone(), wire));
            let opened = Closing(Some(connection));
            poll_fn(|context| {
                let Some(connection) = &opened.0 else { return Poll::Pending };
                let mut state = connection.shared.state();
                if let Some(failure) = &state.failure {
                    return Poll::Ready(Err(failure.clone()));
                }
                if state.queue.is_initialized() {
                    return Poll::Ready(Ok(()));
                }
                state.ready = Some(context.waker().clone());
                Poll::Pending
            })
            .await?;
            Ok(opened.keep())
        };
        match tokio::time::timeout(limit, open).await {
            Ok(result) => result,
            Err(_) => Err(NvmeError::TimedOut { what: "connection", after: limit }),
        }
    }

    /// Sets what IOCCSZ allows.
    pub fn set_capsule_data_bytes(&self, bytes: u32) {
        self.shared.state().queue.set_capsule_data_bytes(bytes);
    }

    /// Does a command: its completion, whatever its status. On failure of the connection the data come back with the error,
    /// so that the command can be sent again elsewhere.
    pub async fn execute(
        &self,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
        limit: Duration,
    ) -> Result<Completed, (NvmeError, Transfer)> {
        let shared = &*self.shared;
        let Ok(permit) = shared.permits.acquire().await else {
            return Err((self.failure(), transfer));
        };
        permit.forget();
        let from_controller = matches!(transfer, Transfer::FromController(_));
        let give_back = |buffer: Vec<u8>| {
            if from_controller { Transfer::FromController(buffer) } else { Transfer::ToController(buffer) }
        };
        let tag = {
            let mut state = shared.state();
            if let Some(failure) = &state.failure {
                let failure = failure.clone();
                drop(state);
                return Err((failure, transfer));
            }
            let deadline = shared.now_ms().saturating_add(limit.as_millis().min(u128::from(u64::MAX >> 1)) as u64);
            // A tag is given back when its completion has been taken, a little after the slot: where all are taken, a
            // finished future has not been polled yet, and one more tag is made.
            let tag = match state.free_tags.pop() {
                Some(tag) => tag,
                None => {
                    state.waiters.push(Waiter::Empty);
                    state.timed_out.push(false);
                    state.waiters.len() as u32 - 1
                }
            };
            match state.queue.submit(u64::from(tag), entry, transfer, deadline) {
                Ok(_) => {
                    state.waiters[tag as usize] = Waiter::Waiting(None);
                    state.timed_out[tag as usize] = false;
                }
                Err(full) => {
                    state.free_tags.push(tag);
                    drop(state);
                    shared.permits.add_permits(1);
                    let error = NvmeError::Argument(format!("queue {} is not connected yet", shared.queue_id));
                    return Err((error, full.0));
                }
            }
            tag
        };
        shared.work.notify_one();
        let mut guard = Abandon { shared, tag, armed: true };
        let outcome = poll_fn(|context| {
            let mut state = shared.state();
            match &mut state.waiters[tag as usize] {
                Waiter::Waiting(waker) => {
                    match waker {
                        Some(known) if known.will_wake(context.waker()) => {}
                        _ => *waker = Some(context.waker().clone()),
                    }
                    Poll::Pending
                }
                slot => {
                    let taken = std::mem::replace(slot, Waiter::Empty);
                    state.free_tags.push(tag);
                    let timed_out = state.timed_out[tag as usize];
                    let failure = state.failure.clone();
                    match taken {
                        Waiter::Done(completed) => Poll::Ready(Ok((completed, timed_out, failure))),
                        _ => Poll::Ready(Err(shared.lost("the command was lost"))),
                    }
                }
            }
        })
        .await;
        guard.armed = false;
        let (completed, timed_out, failure) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Err((error, Transfer::None)),
        };
        let status = completed.entry.status;
        if let Some(failure) = failure
            && status.is(willow_wire::spec::Status::HOST_PATH_ERROR)
        {
            let error = if timed_out { NvmeError::TimedOut { what, after: limit } } else { failure };
            return Err((error, give_back(completed.buffer)));
        }
        if timed_out && status.is(willow_wire::spec::Status::ABORT_REQUESTED) {
            return Err((NvmeError::TimedOut { what, after: limit }, give_back(completed.buffer)));
        }
        Ok(*completed)
    }

    /// Why it failed, or that it was closed.
    pub fn failure(&self) -> NvmeError {
        self.shared.state().failure.clone().unwrap_or(NvmeError::ShutDown)
    }
    /// True where it can take no more commands.
    pub fn has_failed(&self) -> bool {
        self.shared.state().failure.is_some()
    }
    /// Waits until the connection has failed.
    pub async fn wait_failed(&self) {
        loop {
            let failed = self.shared.failed.notified();
            tokio::pin!(failed);
            failed.as_mut().enable();
            if self.has_failed() {
                return;
            }
            failed.await;
        }
    }
    /// Ends the connection; commands in flight end with `error`.
    pub fn fail(&self, error: NvmeError) {
        self.shared.fail(error);
    }
    /// Ends the connection because of something that has to do with its peer.
    pub fn fail_lost(&self, reason: impl Into<Arc<str>>) {
        self.shared.fail(self.shared.lost(reason));
    }
    /// Sends what is still to be sent, then ends the connection.
    pub fn close(&self) {
        self.shared.state().closing = true;
        self.shared.work.notify_one();
    }
    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.shared.state().queue.in_flight()
    }
}

/// Closes a connection whose opening is given up.
struct Closing(Option<Connection>);

impl Closing {
    fn keep(mut self) -> Connection {
        match self.0.take() {
            Some(connection) => connection,
            None => unreachable!("it is taken once, here"),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.fail(NvmeError::ShutDown);
        }
    }
}

/// What a round of the driver did.
struct Round {
    progress: bool,
    output_left: bool,
    in_flight: bool,
    end: bool,
}

/// The task that moves bytes until the connection fails or is closed.
async fn drive(shared: Arc<Shared>, mut wire: Wire) {
    let mut wakers = Vec::new();
    let mut rounds = 0;
    let mut check_at: Option<Instant> = None;
    loop {
        let round = match step(&shared, &mut wire, &mut wakers) {
            Ok(round) => round,
            Err(error) => {
                tracing::debug!(queue = shared.queue_id, %error, "connection ended");
                return shared.fail(error);
            }
        };
        wakers.drain(..).for_each(Waker::wake);
        if round.end {
            return;
        }
        if round.progress {
            rounds += 1;
            if rounds < ROUNDS_MAX {
                // Let those that were woken submit more, so that the next write takes all of it.
                tokio::task::yield_now().await;
                continue;
            }
            rounds = 0;
            tokio::task::yield_now().await;
        }
        if round.in_flight {
            let at = *check_at.get_or_insert_with(|| Instant::now() + DEADLINE_CHECK);
            if Instant::now() >= at {
                check_at = Some(Instant::now() + DEADLINE_CHECK);
                check_deadlines(&shared);
            }
        } else {
            check_at = None;
        }
        let timer = async {
            match check_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.work.notified() => {}
            _ = wire.stream.readable() => {}
            _ = wire.stream.writable(), if round.output_left => {}
            () = timer => {}
        }
    }
}

/// Reads and writes what can be at once.
fn step(shared: &Shared, wire: &mut Wire, wakers: &mut Vec<Waker>) -> Result<Round, NvmeError> {
    let mut guard = shared.state();
    let state = &mut *guard;
    if state.failure.is_some() {
        return Ok(Round { progress: false, output_left: false, in_flight: false, end: true });
    }
    let mut progress = false;
    let blocked = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    let lost = |error: std::io::Error| shared.lost(error.to_string());
    if write(state, wire).map_err(lost)? {
        progress = true;
    }
    let mut input = state.queue.input();
    let room = input[0].len() + input[1].len();
    match wire.try_read(&mut input) {
        Ok(0) => return Err(shared.lost("closed by the controller")),
        Ok(bytes) => {
            let was_initialized = state.queue.is_initialized();
            let outcome = state.queue.received(bytes);
            shared.collect(state, wakers);
            if let Err(error) = outcome {
                // The termination request goes out as far as it can; the connection ends whether it did or not.
                let _ = write(state, wire);
                drop(guard);
                wakers.drain(..).for_each(Waker::wake);
                return Err(shared.protocol(error));
            }
            if state.queue.is_initialized() != was_initialized {
                wakers.extend(state.ready.take());
            }
            // Less than there was room for: what came is all there is, and readiness tells of more.
            progress |= bytes == room || state.queue.has_output();
        }
        Err(error) if blocked(&error) => {}
        Err(error) => return Err(lost(error)),
    }
    let output_left = state.queue.has_output();
    if state.closing && !output_left {
        drop(guard);
        shared.fail(NvmeError::ShutDown);
        return Ok(Round { progress: false, output_left: false, in_flight: false, end: true });
    }
    Ok(Round { progress, output_left, in_flight: state.queue.in_flight() > 0, end: false })
}

/// Writes as much as goes; true where something went.
fn write(state: &mut State, wire: &mut Wire) -> std::io::Result<bool> {
    let mut progress = false;
    while state.queue.has_output() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = state.queue.output(&mut slices);
        match wire.try_write(&slices[..count]) {
            Ok(bytes) => {
                state.queue.sent(bytes);
                progress = true;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(progress)
}

fn check_deadlines(shared: &Shared) {
    let now_ms = shared.now_ms();
    let mut state = shared.state();
    for (cid, tag) in state.queue.expired(now_ms) {
        let again = std::mem::replace(&mut state.timed_out[tag as usize], true);
        match &shared.expired {
            Some(expired) if !again => {
                let _ = expired.send(Expired { queue: shared.queue_id, cid, again });
                state.queue.extend(cid, now_ms + shared.options.command_timeout.as_millis() as u64);
            }
            _ => {
                drop(state);
                return shared.fail(shared.lost("a command was not answered in time"));
            }
        }
    }
}
