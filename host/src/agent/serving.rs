//! The agent at work: a thread for each process that is connected, which watches it too, and one that answers the device's upcalls.

use super::message::{EXTENTS_A_MESSAGE, Request, Response, VERSION};
use super::{Agent, AgentError, CONNECTIONS_MAX, Connected, FILES_MAX, OpenFile, Way, extents, freeze, lock, runtime};
use crate::control::{PermissionInfo, UPCALL_APP_ENDED, UPCALL_PERMISSION_MISS};
use crate::hre::Upcall;
use direct_io_host::FileExtent;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use willow_shm::message::{decode, encode};
use willow_shm::socket::{Channel, Listener, ReceiveError};
use zeroize::Zeroize;

/// Longest wait of a thread before it looks whether the agent ends.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for files that are being opened or closed.
const RELEASE_MAX: Duration = Duration::from_secs(10);
/// Rights as the device has them.
pub(super) const READ: u32 = 1;
pub(super) const WRITE: u32 = 2;

/// Permissions behind a missed one that are installed again with it: who reads on misses them next.
const INSTALLED_BEHIND: usize = 15;

/// What came of opening a file.
struct Granted {
    file: u32,
    bytes: u64,
    rights: u32,
    nsid: u32,
    extents: Vec<FileExtent>,
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
        while !self.stopping() {
            threads.retain(|thread| !thread.is_finished());
            match listener.accept() {
                Ok(channel) if threads.len() < CONNECTIONS_MAX => {
                    let agent = self.clone();
                    let thread = std::thread::Builder::new()
                        .name("willow-agent".to_owned())
                        .spawn(move || agent.connection(&Arc::new(channel)));
                    threads.extend(thread);
                }
                Ok(channel) => {
                    let reason = format!("the agent serves {CONNECTIONS_MAX} processes already");
                    let _ = channel.send(&encode(&Response::Refused { reason }), &[]);
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
        let ended = upcalls.join();
        if let (Way::Network(network), Ok(Ok(()))) = (&self.way, &ended) {
            // It goes by itself where the goodbye does not arrive.
            let goodbye = async { tokio::time::timeout(LOOK * 10, network.controller.shut_down()).await };
            let _ = runtime().map(|runtime| runtime.block_on(goodbye));
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
        let mut again: Vec<PermissionInfo> = {
            let state = self.state();
            let of = state.connected.values().filter(|connected| connected.process == Some(process));
            let all = of.flat_map(|connected| connected.files.values()).flat_map(|file| &file.permissions);
            all.filter(|it| it.spu == upcall.spu && start < it.start + it.bytes).copied().collect()
        };
        again.sort_unstable_by_key(|it| it.start);
        let inside = again.partition_point(|it| it.start < end);
        again.truncate(inside + INSTALLED_BEHIND);
        let wanted = rights as u32;
        let reaches = |at: u64| {
            let at_it = again.iter().filter(|it| it.start <= at && at < it.start + it.bytes);
            at_it.filter(|it| it.rights & wanted == wanted).map(|it| it.start + it.bytes).max()
        };
        let mut at = start;
        while at < end {
            match reaches(at) {
                Some(next) => at = next,
                None => return false,
            }
        }
        self.control.grant(process, &again).await.is_ok()
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
    fn connection(&self, channel: &Arc<Channel>) {
        let (Ok(peer), Ok(runtime)) = (channel.peer(), runtime()) else { return };
        let identity = peer.identity();
        let key = {
            let mut state = self.state();
            state.next += 1;
            let (key, files) = (state.next, BTreeMap::new());
            let (user, process, endpoints, next_file, changes, is_stale) = (peer.uid, None, 0, 0, None, false);
            let channel = channel.clone();
            let connected = Connected { channel, user, process, endpoints, files, next_file, changes, is_stale };
            state.connected.insert(key, connected);
            key
        };
        while !self.stopping() {
            let message = match channel.receive_from(&peer, LOOK) {
                Ok(message) => message,
                // A child of it may still hold the socket: that has no rights by this.
                Err(ReceiveError::Nothing) if peer.has_ended() => break,
                Err(ReceiveError::Nothing) => continue,
                Err(ReceiveError::Closed) => break,
                Err(error) => {
                    tracing::info!("process {} of user {} is disconnected: {error}", peer.pid, peer.uid);
                    break;
                }
            };
            let answered = match decode::<Request>(&message.bytes) {
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
                    runtime.block_on(self.close_all(key));
                    if let Some(connected) = self.state().connected.get_mut(&key) {
                        connected.is_stale = false;
                    }
                    answer_closed(channel, Ok(()))
                }
                Ok(Request::Open { version }) => {
                    let opened = runtime.block_on(self.open(key, (peer.uid, identity), version, message.descriptors));
                    self.answer_open(channel, opened)
                }
                Ok(Request::Close { file, unchanged }) => {
                    let closed = runtime.block_on(self.close(key, file, unchanged));
                    answer_closed(channel, closed)
                }
                Ok(Request::Release) => {
                    let released = runtime.block_on(self.release(key, peer.uid, message.descriptors));
                    answer_closed(channel, released)
                }
                Ok(Request::Resume) => {
                    if let Some(connected) = self.state().connected.get_mut(&key) {
                        connected.changes = None;
                    }
                    answer_closed(channel, Ok(()))
                }
            };
            if !answered {
                break;
            }
        }
        runtime.block_on(self.disconnect(key));
    }

    fn answer_open(&self, channel: &Channel, opened: Result<Granted, String>) -> bool {
        let granted = match opened {
            Ok(granted) => granted,
            Err(reason) => return channel.send(&encode(&Response::Refused { reason }), &[]).is_ok(),
        };
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

    /// Number of a process in the device: which the device's socket told it when the process connected there, or by which the process was
    /// let in.
    async fn process(&self, key: u64, user: u32, identity: (u64, u64)) -> Result<u32, String> {
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

    async fn open(
        &self,
        key: u64,
        (user, identity): (u32, (u64, u64)),
        version: u32,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Granted, String> {
        if version != VERSION {
            return Err(format!("the agent speaks version {VERSION}, not {version}"));
        }
        let (Some(descriptor), true) = (descriptors.pop(), descriptors.is_empty()) else {
            return Err("one descriptor comes with the request to open a file".to_owned());
        };
        let process = self.process(key, user, identity).await?;
        let file = {
            let mut state = self.state();
            let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
            connected.process = Some(process);
            if connected.files.len() >= FILES_MAX {
                return Err(format!("this process has {FILES_MAX} files open directly, which is the most"));
            }
            connected.next_file = connected.next_file.wrapping_add(1);
            connected.next_file
        };
        let (rights, stat) = judge(&descriptor, user)?;
        let place = self.places.find(stat.st_dev);
        let (nsid, offset) = place.ok_or("it is not on a block device that is a namespace which the agent serves")?;
        let freeze_key = (stat.st_dev, stat.st_ino);
        {
            // Under the same lock as a release looks for who has it.
            let state = self.state();
            if state.connected.values().any(|other| other.changes == Some(freeze_key)) {
                return Err("a process is changing it through the file system".to_owned());
            }
            lock(&self.frozen).freeze(descriptor.as_fd(), freeze_key)?;
        }
        let granted = self.grant(process, &descriptor, (nsid, offset), rights).await;
        let (bytes, found, permissions) = match granted {
            Ok(granted) => granted,
            Err((why, is_clean)) => {
                if is_clean {
                    lock(&self.frozen).thaw(descriptor.as_fd(), freeze_key);
                }
                return Err(why);
            }
        };
        let opened = OpenFile { descriptor, key: freeze_key, permissions, writable: rights & WRITE != 0 };
        if let Some(connected) = self.state().connected.get_mut(&key) {
            connected.files.insert(file, opened);
        }
        Ok(Granted { file, bytes, rights, nsid, extents: found })
    }

    /// Settles a file that is frozen, and installs the permissions for what it has. With an error: whether nothing of it was installed.
    async fn grant(
        &self,
        process: u32,
        descriptor: &OwnedFd,
        (nsid, offset): (u32, u64),
        rights: u32,
    ) -> Result<(u64, Vec<FileExtent>, Vec<PermissionInfo>), (String, bool)> {
        let (bytes, found) = settle(descriptor, offset).map_err(|why| (why, true))?;
        let permissions = self.permissions(nsid, &found, rights);
        match self.control.grant(process, &permissions).await {
            Ok(()) => Ok((bytes, found, permissions)),
            Err(error) => {
                // Some of it may have been installed.
                let taken_back = self.control.revoke(process, &permissions).await.is_ok();
                Err((error.to_string(), taken_back))
            }
        }
    }

    async fn close(&self, key: u64, file: u32, unchanged: bool) -> Result<(), String> {
        let (process, closed, kept) = {
            let mut state = self.state();
            let connected = state.connected.get_mut(&key).ok_or("the connection has ended")?;
            let closed = connected.files.remove(&file).ok_or("there is no such file open")?;
            let process = connected.process;
            // What other open files of the process still allow in the same place.
            let same = state.connected.values().filter(|other| other.process == process);
            let same = same.flat_map(|other| other.files.values()).filter(|other| other.key == closed.key);
            let kept: Vec<PermissionInfo> = same.flat_map(|other| &other.permissions).copied().collect();
            (process, closed, kept)
        };
        if let Some(process) = process {
            let whole: Vec<PermissionInfo> =
                closed.permissions.iter().map(|it| PermissionInfo { rights: READ | WRITE, ..*it }).collect();
            // Where the process is gone, its permissions are: this waits for what was under way all the same.
            self.control.revoke(process, &whole).await.map_err(|error| error.to_string())?;
            if !kept.is_empty() {
                let _ = self.control.grant(process, &kept).await;
            }
        }
        let _ = rustix::fs::fadvise(&closed.descriptor, 0, None, rustix::fs::Advice::DontNeed);
        lock(&self.frozen).thaw(closed.descriptor.as_fd(), closed.key);
        if closed.writable && !unchanged {
            // Direct writes have not told the file system of themselves.
            let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let then = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let times = rustix::fs::Timestamps { last_access: then, last_modification: now };
            let _ = rustix::fs::futimens(&closed.descriptor, &times);
        }
        Ok(())
    }

    /// Takes a file back from all that have it, for a process that is going to change it through the file system.
    /// Its own it closes as well: it asks when it has given back what it knew of it.
    async fn release(&self, key: u64, user: u32, mut descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let (Some(descriptor), true) = (descriptors.pop(), descriptors.is_empty()) else {
            return Err("one descriptor comes with the request to release a file".to_owned());
        };
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| error.to_string())?;
        if user != 0 && stat.st_uid != user {
            return Err("it belongs to another user: only its owner may have it released".to_owned());
        }
        let released = (stat.st_dev, stat.st_ino);
        let begun = std::time::Instant::now();
        loop {
            let found: Vec<(u64, u32)> = {
                let mut state = self.state();
                if let Some(connected) = state.connected.get_mut(&key) {
                    connected.changes = Some(released);
                }
                let of = |(key, connected): (&u64, &Connected)| {
                    let (key, files) = (*key, connected.files.iter());
                    let those = files.filter(|(_, file)| file.key == released).map(|(number, _)| (key, *number));
                    those.collect::<Vec<_>>()
                };
                state.connected.iter().flat_map(of).collect()
            };
            for (holder, file) in found {
                if let Some(connected) = self.state().connected.get_mut(&holder).filter(|_| holder != key) {
                    connected.is_stale = true;
                }
                // Closed by its holder meanwhile is as good.
                let _ = self.close(holder, file, false).await;
            }
            // One that was being opened is found the next time.
            if !lock(&self.frozen).holds(released) {
                return Ok(());
            }
            if begun.elapsed() > RELEASE_MAX {
                return Err("another process is opening or closing it, and does not come to an end".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Closes all files of a process.
    pub(super) async fn close_all(&self, key: u64) {
        let files: Vec<u32> = {
            let state = self.state();
            state.connected.get(&key).map_or_else(Vec::new, |connected| connected.files.keys().copied().collect())
        };
        for file in files {
            if let Err(why) = self.close(key, file, false).await {
                tracing::error!("the permissions of a process that ended could not be taken back: {why}");
            }
        }
    }

    async fn disconnect(&self, key: u64) {
        if let Err(why) = self.let_go(key).await {
            tracing::error!("a process that ended could not be told of to the device: {why}");
        }
        self.state().connected.remove(&key);
    }

    /// Files that are frozen now.
    pub fn frozen(&self) -> usize {
        lock(&self.frozen).len()
    }
}

fn answer_closed(channel: &Channel, done: Result<(), String>) -> bool {
    let answer = done.map_or_else(|reason| Response::Refused { reason }, |()| Response::Closed);
    channel.send(&encode(&answer), &[]).is_ok()
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

/// What a descriptor allows, from the kernel: rights, and the file.
fn judge(descriptor: &OwnedFd, user: u32) -> Result<(u32, rustix::fs::Stat), String> {
    let flags = rustix::fs::fcntl_getfl(descriptor).map_err(|error| error.to_string())?;
    let rights = match flags & OFlags::RWMODE {
        _ if flags.contains(OFlags::PATH) => return Err("its descriptor is a mere path (O_PATH)".to_owned()),
        OFlags::RDONLY => READ,
        OFlags::WRONLY => WRITE,
        OFlags::RDWR => READ | WRITE,
        _ => return Err("its descriptor has no access mode".to_owned()),
    };
    let stat = rustix::fs::fstat(descriptor).map_err(|error| error.to_string())?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err("it is no regular file".to_owned());
    }
    if user != 0 && stat.st_uid != user {
        return Err(
            "it belongs to another user, for whom it would be frozen meanwhile: only its owner may open it directly"
                .into(),
        );
    }
    let system = rustix::fs::fstatfs(descriptor).map_err(|error| error.to_string())?;
    if !matches!(system.f_type as u64, EXT4 | XFS) {
        return Err(format!(
            "its file system (type {:#x}) is neither ext4 nor xfs: others give addresses that are no blocks of one device",
            system.f_type
        ));
    }
    if rights & WRITE != 0 && freeze::can_share_blocks(descriptor.as_fd()) {
        return Err(
            "its file system can share its blocks with clones (xfs: mkfs -m reflink=0), which writes would reach"
                .into(),
        );
    }
    if flags.contains(OFlags::APPEND) && rights & WRITE != 0 {
        return Err("it is open for appending, and direct writes do not append".to_owned());
    }
    Ok((rights, stat))
}

/// File systems whose extents are block addresses of the device that they are on.
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;

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
