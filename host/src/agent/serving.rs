//! The agent at work: a thread for each process that is connected, which watches it too, and one that answers the device's upcalls.

use super::admission::{Place, check_user};
use super::fault::Fault;
use super::files::{Asked, Granted};
use super::message::{EXTENTS_A_MESSAGE, Request, Response};
use super::module::Caller;
use super::{Agent, AgentError, Connected, Refusal, Way, runtime};
use crate::control::{UPCALL_APP_ENDED, UPCALL_PERMISSION_MISS};
use crate::hre::Upcall;
use direct_io_host::FileExtent;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use willow_shm::closing::{Unclosed, interrupt, interruptible};
use willow_shm::message::{decode, encode};
use willow_shm::socket::{Channel, Listener, Peer, ReceiveError};
use zeroize::Zeroize;

/// Longest wait of a thread before it looks whether the agent ends.
const LOOK: Duration = Duration::from_millis(200);
/// How long a connection that holds nothing may ask for nothing: it is made anew when something is to be asked.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Longest wait for threads when the agent ends.
const END_MAX: Duration = Duration::from_secs(3);
/// Longest wait, from then on, for files of those that have not ended: their file systems may be slow. As long for those of modules.
const TAKE_MAX: Duration = Duration::from_secs(30);
/// Time between two looks whether threads have ended.
const JOIN_LOOK: Duration = Duration::from_millis(5);
/// Longest time that an answer of many messages may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Connections that were refused and are being closed: beyond them nobody is accepted for a moment.
const REFUSED_CLOSING_MAX: usize = 64;
/// How often leases are looked at, and what is to be done once more.
pub(super) const WATCH: Duration = Duration::from_millis(50);
/// How often it is looked whether somebody freezes a file system.
const FREEZE_WATCH: Duration = Duration::from_millis(10);
/// Rights as the device has them.
pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;

/// What a thread that watches does.
type Watches = fn(&Arc<Agent>);

/// Without a thread that watches, however it came to its end, nothing may be granted.
struct Ends(Arc<Agent>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Agent {
    /// Serves until [`Agent::stop`], or until the device is gone.
    pub fn serve(self: &Arc<Self>, listener: &Listener) -> Result<(), AgentError> {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut refused: VecDeque<Unclosed> = VecDeque::new();
        let upcalls = {
            let agent = self.clone();
            std::thread::Builder::new().name("willow-agent-upcalls".to_owned()).spawn(move || agent.answer_upcalls())
        };
        let upcalls = upcalls.map_err(|error| AgentError(format!("no thread for the device's upcalls: {error}")))?;
        let watches: [(&str, Watches); 4] = [
            ("willow-agent-modules", |agent| agent.watch_modules()),
            ("willow-agent-watch", |agent| agent.watch()),
            ("willow-agent-mend", |agent| agent.mend()),
            ("willow-agent-freezes", |agent| agent.watch_freezes()),
        ];
        let mut watching = Vec::new();
        for (name, what) in watches {
            let agent = self.clone();
            match std::thread::Builder::new().name(name.to_owned()).spawn(move || what(&Ends(agent).0)) {
                Ok(thread) => watching.push(thread),
                Err(error) => {
                    self.stop();
                    return Err(AgentError(format!("no thread to watch files: {error}")));
                }
            }
        }
        while !self.stopping() {
            threads.extract_if(.., |thread| thread.is_finished()).for_each(|thread| self.look_after(thread));
            refused.retain(Unclosed::is_open);
            if refused.len() >= REFUSED_CLOSING_MAX {
                std::thread::sleep(WATCH);
                continue;
            }
            match listener.accept() {
                // Who is refused is closed by another thread.
                Ok(channel) => {
                    let unclosed = channel.unclosed();
                    match self.admit(channel) {
                        Some(thread) => threads.push(thread),
                        None => refused.push_back(unclosed),
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    wait_for(listener, rustix::event::PollFlags::IN);
                }
                Err(error) => {
                    // No descriptors left, say: others end.
                    tracing::warn!("a process could not be accepted: {error}");
                    std::thread::sleep(LOOK);
                }
            }
        }
        threads.extend(watching);
        let end = Instant::now() + END_MAX;
        let all_ended = self.join_until(threads, end);
        for connected in self.state().connected.values_mut() {
            // Its thread drops it, or has panicked; where this were the last, to drop it would wait here.
            if let Some(channel) = connected.channel.take() {
                let _ = rustix::net::shutdown(&*channel, rustix::net::Shutdown::Both);
                std::mem::forget(channel);
            }
        }
        if !all_ended {
            // They wait for descriptors that were sent to them, each with nothing but its own connection.
            let agent = self.clone();
            let taking =
                std::thread::Builder::new().name("willow-agent-take".to_owned()).spawn(move || agent.take_all_back());
            if !taking.is_ok_and(|taking| self.join_until(vec![taking], end + TAKE_MAX)) {
                tracing::error!("files stay immutable until the next agent starts: they could not be closed in time");
            }
            self.note_threads();
        }
        // It looks up each [`LOOK`], and the device answers or is gone.
        let ended = match join_until_one(upcalls, Instant::now() + END_MAX) {
            Some(ended) => ended,
            None => Ok(Err(AgentError("the device does not answer".to_owned()))),
        };
        self.end_modules(Instant::now() + TAKE_MAX);
        if let Way::Network(network) = &self.way {
            // It goes by itself where the goodbye does not arrive.
            let goodbye = async { tokio::time::timeout(LOOK * 10, network.controller.shut_down()).await };
            let _ = runtime().map(|runtime| runtime.block_on(goodbye));
        }
        // A thread that waits still keeps this value: what the device permits does not last as long.
        self.hre.close();
        self.holds.leave_journal(all_ended);
        if let Some(why) = super::lock(&self.failure).take() {
            return Err(AgentError(why));
        }
        ended.unwrap_or_else(|_| Err(AgentError("the thread of the device's upcalls ended".to_owned())))
    }

    /// Threads are left behind that still wait.
    pub(super) fn note_threads(&self) {
        self.has_threads.store(true, Ordering::Relaxed);
    }

    /// Where [`Agent::serve`] has returned and left threads behind that still wait: waits until they have ended, or until the caller gives up.
    /// False where some go on. What they have to do with files ends with them, and no other agent may begin in this process before.
    pub fn wait_for_threads(self: &Arc<Self>, goes_on: impl Fn() -> bool) -> bool {
        // Each has this value, and the caller.
        while self.has_threads.load(Ordering::Relaxed) && Arc::strong_count(self) > 1 {
            if !goes_on() {
                return false;
            }
            std::thread::sleep(JOIN_LOOK);
        }
        true
    }

    /// Gives who has connected a place and a thread; `None` where it is refused.
    fn admit(self: &Arc<Self>, mut channel: Channel) -> Option<JoinHandle<()>> {
        // Who it is, as it was when it connected, before anything is asked.
        let peer = channel.peer().ok()?;
        let place = match self.admission.admit(peer.uid) {
            Ok(place) => place,
            Err(reason) => {
                let _ = channel.send(&encode(&Response::Refused { reason }), &[]);
                return None;
            }
        };
        let agent = self.clone();
        let serve = move || {
            // From here on this thread alone waits for what is sent to it, and keeps the place meanwhile.
            interruptible();
            channel.admit();
            let channel = Arc::new(channel);
            agent.connection(&channel, &peer, &place);
            drop(channel);
            drop(place);
        };
        std::thread::Builder::new().name("willow-agent".to_owned()).spawn(serve).ok()
    }

    /// Takes back what connections have whose threads do not end.
    fn take_all_back(&self) {
        let Ok(runtime) = runtime() else { return };
        let keys: Vec<u64> = self.state().connected.keys().copied().collect();
        keys.into_iter().for_each(|key| runtime.block_on(self.disconnect(key)));
    }

    /// Waits for threads until then, and ends what they wait for where a signal does; false where some have not ended.
    pub(super) fn join_until(&self, mut threads: Vec<JoinHandle<()>>, end: Instant) -> bool {
        let mut looked_at = Instant::now();
        loop {
            threads.extract_if(.., |thread| thread.is_finished()).for_each(|thread| self.look_after(thread));
            if threads.is_empty() || Instant::now() >= end {
                return threads.is_empty();
            }
            if looked_at.elapsed() >= LOOK * 2 {
                threads.iter().for_each(interrupt);
                looked_at = Instant::now();
            }
            std::thread::sleep(JOIN_LOOK);
        }
    }

    /// Waits for a thread that has ended, or is about to. Where it panicked, what it had granted may still be permitted, with nobody to take it
    /// back: the agent ends with all that it granted.
    pub(super) fn look_after(&self, thread: JoinHandle<()>) {
        let name = thread.thread().name().unwrap_or("a thread").to_owned();
        if thread.join().is_err() {
            self.fail(format!("{name} panicked: please report this"));
        }
    }

    fn answer_upcalls(&self) -> Result<(), AgentError> {
        let runtime = runtime()?;
        while !self.stopping() {
            // Over a network each look is a command there and back.
            let wait = if matches!(self.way, Way::Network(_)) { LOOK * 5 } else { LOOK };
            match runtime.block_on(self.hre.receive_upcall(wait)) {
                Ok(Some(upcall)) if upcall.app == 0 => runtime.block_on(self.upcall(upcall)),
                Ok(_) => {}
                Err(error) => {
                    self.stop();
                    return Err(AgentError(format!("the device is gone: {error}")));
                }
            }
        }
        Ok(())
    }

    /// Looks at leases, and does once more what failed.
    fn watch(self: &Arc<Self>) {
        let mut taking: Vec<((u64, u64), JoinHandle<()>)> = Vec::new();
        while !self.stopping() {
            std::thread::sleep(WATCH);
            taking.extract_if(.., |(_, thread)| thread.is_finished()).for_each(|(_, thread)| self.look_after(thread));
            let waited_for = self.holds.broken().into_iter().map(|file| (file, "is being opened for writing"));
            let nameless = self.holds.nameless().into_iter().map(|file| (file, "has no name any more"));
            for (file, why) in waited_for.chain(nameless) {
                if taking.iter().any(|(taken, _)| *taken == file) {
                    continue;
                }
                tracing::info!("a file {why}, and is taken back: {file:?}");
                // Its file system may wait for something: others' files do not.
                let agent = self.clone();
                let take = move || match runtime().map(|runtime| runtime.block_on(agent.take_back(file, None))) {
                    Ok(Ok(())) => {}
                    failed => tracing::error!("it is not taken back yet: {failed:?}"),
                };
                let thread = std::thread::Builder::new().name("willow-agent-take".to_owned()).spawn(take);
                taking.extend(thread.ok().map(|thread| (file, thread)));
            }
        }
        // They are bounded in time.
        taking.into_iter().for_each(|(_, thread)| self.look_after(thread));
    }

    /// Lets file systems be frozen, each by a thread of its own: a user can hold one of them up, as he can without the agent, and no other.
    fn watch_freezes(self: &Arc<Self>) {
        let mut freezing: Vec<JoinHandle<()>> = Vec::new();
        while !self.stopping() {
            std::thread::sleep(if self.freezes.is_empty() { WATCH } else { FREEZE_WATCH });
            freezing.extract_if(.., |thread| thread.is_finished()).for_each(|thread| self.look_after(thread));
            for device in self.freezes.noticed() {
                tracing::info!("a file system is being frozen: {device:#x}");
                let agent = self.clone();
                let let_freeze = move || match runtime() {
                    Ok(runtime) => runtime.block_on(agent.let_freeze(device)),
                    Err(_) => agent.stop(),
                };
                match std::thread::Builder::new().name("willow-agent-let".to_owned()).spawn(let_freeze) {
                    Ok(thread) => freezing.push(thread),
                    Err(error) => self.fail(format!("no thread to let a file system be frozen: {error}")),
                }
            }
        }
        freezing.into_iter().for_each(|thread| self.look_after(thread));
    }

    async fn upcall(&self, upcall: Upcall) {
        match upcall.handler {
            UPCALL_PERMISSION_MISS => {
                let resolved = self.resolve(&upcall).await;
                if let Err(error) = self.hre.answer_upcall(upcall.id, u32::from(!resolved), 0).await {
                    tracing::debug!("the answer about a permission came too late: {error}");
                }
            }
            UPCALL_APP_ENDED => self.tell_app_ended(&upcall.body),
            _ => {}
        }
    }

    /// Tells the processes that could have called it.
    fn tell_app_ended(&self, body: &[u8]) {
        let text = String::from_utf8_lossy(body.get(4..).unwrap_or_default()).into_owned();
        let (name, reason) = text.split_once('\n').unwrap_or((&text, ""));
        tracing::info!("app {name} ended: {reason}");
        let notice = encode(&Response::AppEnded { name: name.to_owned(), reason: reason.chars().take(500).collect() });
        for connected in self.state().connected.values() {
            let own = name.starts_with(&format!("u{}-", connected.user));
            let of_a_user = name.strip_prefix('u').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            if own || !of_a_user {
                // Who does not take what it was sent before is not told.
                let _ = connected.channel.as_ref().map(|channel| channel.send(&notice, &[]));
            }
        }
    }

    /// Serves one process until it goes.
    fn connection(&self, channel: &Arc<Channel>, peer: &Peer, place: &Place) {
        let Ok(runtime) = runtime() else { return };
        let mut used_at = Instant::now();
        let identity = peer.identity();
        let key = {
            let mut state = self.state();
            state.next += 1;
            let (key, files) = (state.next, BTreeMap::new());
            let connected = Connected {
                channel: Some(channel.clone()),
                user: peer.uid,
                process: None,
                endpoints: 0,
                files,
                extents: 0,
                known: BTreeMap::new(),
                next_known: 0,
                contended: VecDeque::new(),
                is_gone: false,
                next_file: 0,
                changes: VecDeque::new(),
                is_stale: false,
            };
            state.connected.insert(key, connected);
            key
        };
        while !self.stopping() {
            if place.must_leave() {
                tracing::debug!("process {} of user {} makes way for another user", peer.pid, peer.uid);
                break;
            }
            let received = channel.receive_from(peer, LOOK);
            // Of who asks all the time as well.
            runtime.block_on(self.expire(key));
            let message = match received {
                Ok(_) if self.faults.has(Fault::Panics) => std::panic::panic_any("planted"),
                Ok(message) => message,
                // A child of it may still hold the socket: that has no rights by this.
                Err(ReceiveError::Nothing) if peer.has_ended() => break,
                Err(ReceiveError::Nothing) if used_at.elapsed() >= IDLE_MAX && self.holds(key) == 0 => {
                    tracing::debug!("process {} of user {} asks for nothing", peer.pid, peer.uid);
                    break;
                }
                Err(ReceiveError::Nothing) => continue,
                Err(ReceiveError::Closed) => break,
                Err(error) => {
                    tracing::info!("process {} of user {} is disconnected: {error}", peer.pid, peer.uid);
                    break;
                }
            };
            let request = decode::<Request>(&message.bytes);
            if let Err(reason) = check_user(peer) {
                let _ = channel.send(&encode(&Response::Refused { reason }), &[]);
                break;
            }
            let answered = match request {
                Err(why) => {
                    let _ = channel.send(&encode(&Response::Refused { reason: why }), &[]);
                    break;
                }
                Ok(Request::Attach { version, endpoints, lost }) => {
                    let attached = runtime.block_on(self.attach(key, peer.uid, (version, endpoints, lost)));
                    let answer = attached.map_or_else(|reason| Response::Refused { reason }, Response::Attached);
                    let mut bytes = encode(&answer);
                    let sent = channel.send(&bytes, &[]).is_ok();
                    // There is a secret in it.
                    bytes.zeroize();
                    sent
                }
                Ok(Request::Open { .. }) if self.state().connected.get(&key).is_some_and(|it| it.is_stale) => {
                    drop(message.descriptors);
                    channel.send(&encode(&Response::Stale), &[]).is_ok()
                }
                Ok(Request::Acknowledge) => {
                    let left = runtime.block_on(self.close_all(key));
                    if let Some(connected) = self.state().connected.get_mut(&key).filter(|_| left == 0) {
                        connected.is_stale = false;
                    }
                    let why = || format!("{left} files could not be closed");
                    answer_closed(channel, (left == 0).then_some(()).ok_or_else(|| why().into()))
                }
                Ok(Request::Open { version, again, ready }) => {
                    let how = (version, again, ready);
                    let asked = runtime.block_on(self.open(key, (peer.uid, identity), how, message.descriptors));
                    match asked {
                        Ok(Asked::Prepared(file)) => channel.send(&encode(&Response::Prepared { file }), &[]).is_ok(),
                        Ok(Asked::Granted(granted)) => self.answer_open(channel, place, &granted),
                        Err(why) => self.answer_refused(channel, key, why),
                    }
                }
                Ok(Request::Confirm { file }) => {
                    let granted = runtime.block_on(self.confirm(key, file));
                    match granted {
                        Ok(granted) => self.answer_open(channel, place, &granted),
                        Err(why) => self.answer_refused(channel, key, why),
                    }
                }
                Ok(Request::Reopen { flags }) => {
                    let reopened = self.reopen(key, flags, &message.descriptors);
                    drop(message.descriptors);
                    match reopened {
                        Ok(opened) => channel.send(&encode(&Response::Reopened), &[opened.as_fd()]).is_ok(),
                        Err(reason) => channel.send(&encode(&Response::Refused { reason }), &[]).is_ok(),
                    }
                }
                Ok(Request::Close { file, unchanged, forget }) => {
                    let closed = runtime.block_on(self.close(key, file, unchanged, forget));
                    answer_closed(channel, closed)
                }
                Ok(Request::Forget) => {
                    self.forget(key, &message.descriptors);
                    drop(message.descriptors);
                    answer_closed(channel, Ok(()))
                }
                Ok(Request::Release) => {
                    let file = message.descriptors.first().and_then(|file| rustix::fs::fstat(file).ok());
                    let released = runtime.block_on(self.release(key, peer, message.descriptors));
                    let released = released.and_then(|()| self.take_back_from_modules(&runtime, file));
                    answer_closed(channel, released)
                }
                Ok(Request::Module { name, ask }) => {
                    let caller = Caller { connection: key, user: peer.uid, identity };
                    match self.ask_module(&runtime, &caller, (&name, ask), message.descriptors) {
                        Ok(told) => channel.send(&encode(&Response::Module { told }), &[]).is_ok(),
                        Err(why) => self.answer_refused(channel, key, why),
                    }
                }
                Ok(Request::Resume) => {
                    if let Some(connected) = self.state().connected.get_mut(&key) {
                        connected.changes.clear();
                    }
                    answer_closed(channel, Ok(()))
                }
            };
            if !answered {
                break;
            }
            used_at = Instant::now();
            place.note(self.holds(key));
        }
        self.leave_modules(&runtime, key);
        runtime.block_on(self.disconnect(key));
    }

    /// What a process would lose with its connection: files that it has open or could open again, endpoints, its turn to change one.
    fn holds(&self, key: u64) -> usize {
        let of_modules: usize = self.modules.iter().map(|module| module.holds(key)).sum();
        let state = self.state();
        state.connected.get(&key).map_or(of_modules, |connected| {
            let files = connected.files.len() + connected.known.len();
            of_modules + files + connected.endpoints as usize + connected.changes.len()
        })
    }

    fn answer_refused(&self, channel: &Channel, key: u64, why: Refusal) -> bool {
        let answer = match why {
            Refusal::Said(reason) => Response::Refused { reason },
            Refusal::Frozen => Response::Frozen,
            Refusal::Busy => Response::Busy,
            Refusal::OpenForWriting(file) => Response::Contended { shared: self.note_contended(key, file) },
        };
        channel.send(&encode(&answer), &[]).is_ok()
    }

    fn answer_open(&self, channel: &Channel, place: &Place, granted: &Granted) -> bool {
        let Some(geometry) = self.geometries.get(&granted.nsid) else { return false };
        let head = Response::Opened {
            file: granted.file,
            bytes: granted.bytes,
            rights: granted.rights,
            app: self.direct_io,
            spus: geometry.spus,
            stripe_bytes: geometry.stripe_bytes,
            base: geometry.base,
        };
        let begun = Instant::now();
        let goes_on = || begun.elapsed() < ANSWER_MAX && !self.stopping() && !place.must_leave();
        if !send_patiently(channel, &encode(&head), goes_on) {
            return false;
        }
        let triple = |extent: &FileExtent| (extent.file_offset, extent.namespace_offset, extent.bytes);
        let mut lists: Vec<Vec<_>> =
            granted.extents.chunks(EXTENTS_A_MESSAGE).map(|chunk| chunk.iter().map(triple).collect()).collect();
        if lists.is_empty() {
            lists.push(Vec::new());
        }
        let last = lists.len() - 1;
        let mut messages = lists.into_iter().enumerate();
        messages.all(|(index, list)| {
            send_patiently(channel, &encode(&Response::Extents { list, more: index < last }), goes_on)
        })
    }

    pub(super) async fn disconnect(&self, key: u64) {
        if let Err(why) = self.let_go(key).await {
            tracing::error!("a process that ended could not be told of to the device: {why}");
        }
        let mut state = self.state();
        let Some(connected) = state.connected.get_mut(&key) else { return };
        // Its thread alone drops it, since that may wait.
        let channel = connected.channel.take();
        if connected.files.is_empty() {
            state.connected.remove(&key);
        } else {
            // Its files stay as they are, and it is tried again.
            connected.is_gone = true;
        }
        drop(state);
        drop(channel);
    }
}

fn answer_closed(channel: &Channel, done: Result<(), Refusal>) -> bool {
    let answer = match done {
        Ok(()) => Response::Closed,
        Err(Refusal::Said(reason)) => Response::Refused { reason },
        Err(Refusal::OpenForWriting(_)) => Response::Contended { shared: false },
        Err(Refusal::Frozen) => Response::Frozen,
        Err(Refusal::Busy) => Response::Busy,
    };
    channel.send(&encode(&answer), &[]).is_ok()
}

fn wait_for(socket: &impl AsFd, what: rustix::event::PollFlags) {
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    let mut wanted = [rustix::event::PollFd::new(socket, what)];
    let _ = rustix::event::poll(&mut wanted, Some(&timeout));
}

/// Sends, and while the peer's queue is full waits until it has taken what is there, or this is over; false where it was not sent.
fn send_patiently(channel: &Channel, bytes: &[u8], goes_on: impl Fn() -> bool) -> bool {
    loop {
        match channel.send(bytes, &[]) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if goes_on() => {
                wait_for(channel, rustix::event::PollFlags::OUT);
            }
            sent => return sent.is_ok(),
        }
    }
}

/// What a thread came to, if it did until then.
fn join_until_one<T>(thread: JoinHandle<T>, end: Instant) -> Option<std::thread::Result<T>> {
    while !thread.is_finished() {
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(JOIN_LOOK);
    }
    Some(thread.join())
}
