//! The agent at work: a thread for each process that is connected, which watches it too, and one that answers the device's upcalls.

use super::admission::{Place, check_user};
use super::files::{Asked, Granted};
use super::message::{EXTENTS_A_MESSAGE, Request, Response};
use super::{Agent, AgentError, Connected, OpenFile, Refusal, Way, runtime};
use crate::control::{PermissionInfo, UPCALL_APP_ENDED, UPCALL_PERMISSION_MISS};
use crate::hre::Upcall;
use direct_io_host::FileExtent;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_shm::message::{decode, encode};
use willow_shm::socket::{Channel, Listener, Peer, ReceiveError};
use zeroize::Zeroize;

/// Longest wait of a thread before it looks whether the agent ends.
const LOOK: Duration = Duration::from_millis(200);
/// How long a connection that holds nothing may ask for nothing: it is made anew when something is to be asked.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How often leases are looked at.
const WATCH: Duration = Duration::from_millis(50);
/// How often it is looked whether somebody freezes a file system.
const FREEZE_WATCH: Duration = Duration::from_millis(10);
/// Rights as the device has them.
pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;

/// Permissions behind a missed one that are installed again with it: who reads on misses them next.
const INSTALLED_BEHIND: usize = 15;

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
        let mut threads: Vec<std::thread::JoinHandle<()>> = Vec::new();
        let upcalls = {
            let agent = self.clone();
            std::thread::Builder::new().name("willow-agent-upcalls".to_owned()).spawn(move || agent.answer_upcalls())
        };
        let upcalls = upcalls.map_err(|error| AgentError(format!("no thread for the device's upcalls: {error}")))?;
        let watches: [(&str, Watches); 3] = [
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
            threads.retain(|thread| !thread.is_finished());
            match listener.accept() {
                Ok(channel) => {
                    // Who it is, as it was when it connected, before anything is asked.
                    let Ok(peer) = channel.peer() else { continue };
                    match self.admission.admit(peer.uid) {
                        Ok(place) => {
                            let agent = self.clone();
                            let serve = move || {
                                agent.connection(&Arc::new(channel), &peer, &place);
                            };
                            threads.extend(std::thread::Builder::new().name("willow-agent".to_owned()).spawn(serve));
                        }
                        Err(reason) => {
                            let _ = channel.send(&encode(&Response::Refused { reason }), &[]);
                        }
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => wait_for(listener),
                Err(error) => {
                    // No descriptors left, say: others end.
                    tracing::warn!("a process could not be accepted: {error}");
                    std::thread::sleep(LOOK);
                }
            }
        }
        for thread in threads {
            // A panic of it has been reported by it.
            let _ = thread.join();
        }
        for thread in watching {
            // A panic of it has been reported by it.
            let _ = thread.join();
        }
        let ended = upcalls.join();
        if let (Way::Network(network), Ok(Ok(()))) = (&self.way, &ended) {
            // It goes by itself where the goodbye does not arrive.
            let goodbye = async { tokio::time::timeout(LOOK * 10, network.controller.shut_down()).await };
            let _ = runtime().map(|runtime| runtime.block_on(goodbye));
        }
        if let Some(why) = super::lock(&self.failure).take() {
            return Err(AgentError(why));
        }
        ended.unwrap_or_else(|_| Err(AgentError("the thread of the device's upcalls ended".to_owned())))
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
        let mut taking: Vec<((u64, u64), std::thread::JoinHandle<()>)> = Vec::new();
        while !self.stopping() {
            std::thread::sleep(WATCH);
            taking.retain(|(_, thread)| !thread.is_finished());
            for file in self.holds.broken() {
                if taking.iter().any(|(taken, _)| *taken == file) {
                    continue;
                }
                tracing::info!("a file is being opened for writing, and is taken back: {file:?}");
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
        // They are bounded in time, and report themselves.
        taking.into_iter().for_each(|(_, thread)| drop(thread.join()));
    }

    /// Does once more what failed, and what had to wait for a file system.
    fn mend(&self) {
        let Ok(runtime) = runtime() else { return self.stop() };
        while !self.stopping() {
            std::thread::sleep(WATCH);
            self.holds.retry(|(device, _)| !self.freezes.is_frozen(device));
            runtime.block_on(self.revoke_again());
            let gone: Vec<u64> = {
                let state = self.state();
                state.connected.iter().filter(|(_, connected)| connected.is_gone).map(|(key, _)| *key).collect()
            };
            for key in gone {
                runtime.block_on(self.disconnect(key));
            }
        }
    }

    /// Lets file systems be frozen.
    fn watch_freezes(&self) {
        let Ok(runtime) = runtime() else { return self.stop() };
        while !self.stopping() {
            std::thread::sleep(if self.freezes.is_empty() { WATCH } else { FREEZE_WATCH });
            for device in self.freezes.noticed() {
                tracing::info!("a file system is being frozen: {device:#x}");
                runtime.block_on(self.let_freeze(device));
            }
        }
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

    /// Installs again what a process' open files allow in the missed range, and some of what is behind it; false where that does not
    /// hold it.
    async fn resolve(&self, upcall: &Upcall) -> bool {
        let long = |at: usize| upcall.body.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        let (Some(who), Some(start), Some(end), Some(rights)) = (long(0), long(8), long(16), long(24)) else {
            return false;
        };
        let process = who as u32 >> 12 & 0x7_ffff;
        let _turn = self.order.lock().await;
        let again = self.permissions_of(process, |_, file| {
            let behind = |it: &&PermissionInfo| it.spu == upcall.spu && start < it.start + it.bytes;
            file.permissions.iter().filter(behind).copied().collect()
        });
        let wanted = rights as u32;
        for (user, mut again) in again {
            again.sort_unstable_by_key(|it| it.start);
            let inside = again.partition_point(|it| it.start < end);
            again.truncate(inside + INSTALLED_BEHIND);
            let reaches = |at: u64| {
                let at_it = again.iter().filter(|it| it.start <= at && at < it.start + it.bytes);
                at_it.filter(|it| it.rights & wanted == wanted).map(|it| it.start + it.bytes).max()
            };
            let mut at = start;
            while let Some(next) = reaches(at).filter(|_| at < end) {
                at = next;
            }
            if at >= end && self.control.grant_to_user((process, user), &again).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// What `of` takes of each open file of the process with this number in the device, which it is given with its connection's and its own
    /// number; by the user of the connection, since the number may be another process' by now.
    pub(super) fn permissions_of(
        &self,
        process: u32,
        of: impl Fn((u64, u32), &OpenFile) -> Vec<PermissionInfo>,
    ) -> BTreeMap<u32, Vec<PermissionInfo>> {
        let mut by_user = BTreeMap::<u32, Vec<PermissionInfo>>::new();
        let state = self.state();
        for (key, connected) in state.connected.iter().filter(|(_, connected)| connected.process == Some(process)) {
            for (number, file) in &connected.files {
                by_user.entry(connected.user).or_default().extend(of((*key, *number), file));
            }
        }
        by_user
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
                let _ = connected.channel.send(&notice, &[]);
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
                channel: channel.clone(),
                user: peer.uid,
                process: None,
                endpoints: 0,
                files,
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
                        Ok(Asked::Granted(granted)) => self.answer_open(channel, &granted),
                        Err(why) => self.answer_refused(channel, key, why),
                    }
                }
                Ok(Request::Confirm { file }) => {
                    let granted = runtime.block_on(self.confirm(key, file));
                    match granted {
                        Ok(granted) => self.answer_open(channel, &granted),
                        Err(why) => self.answer_refused(channel, key, why),
                    }
                }
                Ok(Request::Reopen { flags }) => match self.reopen(key, flags, &message.descriptors) {
                    Ok(opened) => channel.send(&encode(&Response::Reopened), &[opened.as_fd()]).is_ok(),
                    Err(reason) => channel.send(&encode(&Response::Refused { reason }), &[]).is_ok(),
                },
                Ok(Request::Close { file, unchanged, forget }) => {
                    let closed = runtime.block_on(self.close(key, file, unchanged, forget));
                    answer_closed(channel, closed)
                }
                Ok(Request::Forget) => {
                    self.forget(key, &message.descriptors);
                    answer_closed(channel, Ok(()))
                }
                Ok(Request::Release) => {
                    let released = runtime.block_on(self.release(key, peer.uid, message.descriptors));
                    answer_closed(channel, released)
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
        runtime.block_on(self.disconnect(key));
    }

    /// What a process would lose with its connection: files that it has open or could open again, endpoints, its turn to change one.
    fn holds(&self, key: u64) -> usize {
        let state = self.state();
        state.connected.get(&key).map_or(0, |connected| {
            let files = connected.files.len() + connected.known.len();
            files + connected.endpoints as usize + connected.changes.len()
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

    fn answer_open(&self, channel: &Channel, granted: &Granted) -> bool {
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
        let mut sent = send_patiently(channel, &encode(&head));
        let triple = |extent: &FileExtent| (extent.file_offset, extent.namespace_offset, extent.bytes);
        let mut lists: Vec<Vec<_>> =
            granted.extents.chunks(EXTENTS_A_MESSAGE).map(|chunk| chunk.iter().map(triple).collect()).collect();
        if lists.is_empty() {
            lists.push(Vec::new());
        }
        let last = lists.len() - 1;
        for (index, list) in lists.into_iter().enumerate() {
            sent &= send_patiently(channel, &encode(&Response::Extents { list, more: index < last }));
        }
        sent
    }

    async fn disconnect(&self, key: u64) {
        if let Err(why) = self.let_go(key).await {
            tracing::error!("a process that ended could not be told of to the device: {why}");
        }
        let mut state = self.state();
        let Some(connected) = state.connected.get_mut(&key) else { return };
        if connected.files.is_empty() {
            state.connected.remove(&key);
        } else {
            // Its files stay as they are, and it is tried again.
            connected.is_gone = true;
        }
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

fn wait_for(listener: &Listener) {
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    let mut wanted = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
    let _ = rustix::event::poll(&mut wanted, Some(&timeout));
}

/// Sends, and where the peer's queue is full gives it some time to take what is there.
fn send_patiently(channel: &Channel, bytes: &[u8]) -> bool {
    for _ in 0..1000 {
        match channel.send(bytes, &[]) {
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            sent => return sent.is_ok(),
        }
    }
    false
}
