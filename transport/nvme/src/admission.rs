//! What a command needs before it begins, and who waits for it: a buffer for its data out of its host's share, then a place in the
//! device. No command fails since others hold too much; it waits, and its host's other commands behind it.
//!
//! What always holds:
//! - every buffer is charged to its connection and to the account of that connection's host from when it is taken until its last byte
//!   was sent, also while the device still works on it for a queue that is gone;
//! - the transport asks for a command's data only when their buffer is there;
//! - whatever makes room is counted, so that nobody who waits is forgotten.

use std::collections::VecDeque;

use willow_device::{HostCompletion, HostRequest, HreId};
use willow_wire::spec::{Status, SubmissionEntry};

use crate::account::{Ready, UNPROVED, Use, Waiting};
use crate::backend::Backend;
use crate::buffer::BufferPool;
use crate::command::{Command, Data, Operation};
use crate::config::*;
use crate::fused;
use crate::queue::State;
use crate::subsystem::{ConnectionId, Fetch, Subsystem};

/// A buffer that the device still has for a queue that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    account: u16,
    bytes: u32,
    /// The block namespace that it writes to; 0: none.
    pub writes_to: u32,
}

impl<B: Backend> Subsystem<B> {
    // --- Buffers ---

    /// A buffer for `bytes` of data, charged to the connection; `None`: its host holds as much as it may.
    #[inline]
    pub(crate) fn take_buffer(&mut self, index: u16, bytes: u32, used_for: Use) -> Option<Vec<u8>> {
        let queue = self.queues[usize::from(index)].as_mut()?;
        let whole = BufferPool::whole_bytes(bytes as usize);
        let account = queue.account;
        let admitted = match account {
            UNPROVED => self.accounts.admits_unproved(queue.held_bytes(), whole),
            _ => self.accounts.of(account).waiting.is_empty() && self.accounts.admits(account, whole, used_for),
        };
        if !admitted {
            return None;
        }
        queue.charged_bytes += whole;
        self.accounts.take(account, whole);
        Some(self.pool.take(bytes as usize))
    }

    /// The same whatever the host holds, for the few answers that must not wait; queues bound how many there are.
    pub(crate) fn take_buffer_always(&mut self, index: u16, bytes: usize) -> Vec<u8> {
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            let whole = BufferPool::whole_bytes(bytes);
            queue.charged_bytes += whole;
            self.accounts.take(queue.account, whole);
        }
        self.pool.take(bytes)
    }

    /// A buffer for data in a capsule; `None`: none until some of those before have ended. Past its host's share a connection has a
    /// few of its own: what they are for needs nothing more from the host, so that the data which it still owes for other commands
    /// can always be read. The second value is what was taken of these.
    #[inline]
    pub(crate) fn take_capsule_buffer(&mut self, index: u16, bytes: u32) -> Option<(Vec<u8>, u32)> {
        let queue = self.queues[usize::from(index)].as_ref()?;
        let whole = BufferPool::whole_bytes(bytes as usize);
        if self.accounts.admits(queue.account, whole, Use::Answer) {
            return Some((self.take_buffer_always(index, bytes as usize), 0));
        }
        if queue.capsules_bytes as usize + whole > CAPSULES_BYTES_MIN {
            return None;
        }
        Some((self.take_buffer_always(index, bytes as usize), whole as u32))
    }

    /// Whether an answer of so many bytes may be made for a connection now.
    pub(crate) fn has_room(&self, index: u16, bytes: u32) -> bool {
        let Some(queue) = &self.queues[usize::from(index)] else { return true };
        let whole = BufferPool::whole_bytes(bytes as usize);
        match queue.account {
            UNPROVED => self.accounts.admits_unproved(queue.held_bytes(), whole),
            account => self.accounts.admits(account, whole, Use::Answer),
        }
    }

    /// Takes a payload's or a fetch's buffer back.
    #[inline]
    pub fn give_buffer(&mut self, connection: ConnectionId, buffer: Vec<u8>) {
        self.give(connection.index, buffer);
    }

    /// The same by the connection's place, which keeps what it holds until it is closed.
    #[inline]
    pub(crate) fn give(&mut self, index: u16, buffer: Vec<u8>) {
        let bytes = self.pool.give(buffer);
        self.discharge(index, bytes);
    }

    fn discharge(&mut self, index: u16, bytes: usize) {
        if bytes > 0
            && let Some(queue) = self.queues[usize::from(index)].as_mut()
        {
            debug_assert!(queue.charged_bytes >= bytes);
            queue.charged_bytes = queue.charged_bytes.saturating_sub(bytes);
            self.accounts.give(queue.account, bytes);
        }
    }

    /// Says what the transport itself holds for a connection now (bytes received and not taken yet, framing that was not sent yet),
    /// and how much it has to send in all.
    #[inline]
    pub fn set_transport_bytes(&mut self, connection: ConnectionId, bytes: usize, queued_bytes: usize) {
        let Some(queue) = self.queues[connection.index()].as_mut() else { return };
        queue.queued_bytes = queued_bytes;
        let before = std::mem::replace(&mut queue.transport_bytes, bytes);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.accounts.take(queue.account, more),
            None => self.accounts.give(queue.account, before - bytes),
        }
    }

    /// Counts what makes room for somebody: who was told to wait tries again when it has changed.
    pub fn releases(&self) -> u64 {
        self.accounts.releases
    }

    /// True where a connection belongs to no host yet, or to a discovery controller.
    pub fn is_unproved(&self, connection: ConnectionId) -> bool {
        self.queue(connection).is_none_or(|queue| queue.account == UNPROVED)
    }

    /// Connections that belong to no host yet, or to discovery controllers.
    pub fn unproved_connections(&self) -> usize {
        self.accounts.of(UNPROVED).connections as usize
    }

    // --- Who is charged ---

    /// The connection is a host's from now on, with all that it holds.
    pub(crate) fn enter_account(&mut self, index: u16, name: &str) {
        let share = self.share_of(name);
        let issuer = if share == name { None } else { self.accounts.find(share) };
        let account = self.accounts.open(name, issuer);
        self.change_account(index, account);
    }

    fn change_account(&mut self, index: u16, account: u16) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let held = queue.charged_bytes + queue.transport_bytes;
        let before = std::mem::replace(&mut queue.account, account);
        if before == account {
            return;
        }
        self.accounts.connected(account);
        self.accounts.take(account, held);
        self.accounts.disconnected(before);
        self.accounts.give(before, held);
    }

    /// The connection is closed: what it holds is given back.
    pub(crate) fn leave_account(&mut self, connection: ConnectionId) {
        let (stale, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.completions).into_iter().partition(|one| one.connection == connection);
        self.completions = kept;
        for payload in stale.into_iter().filter_map(|completion| completion.payload) {
            self.give(connection.index, payload.buffer);
        }
        let Some(queue) = self.queues[connection.index()].as_mut() else { return };
        debug_assert!(queue.charged_bytes == 0, "{} bytes of a closed connection are nowhere", queue.charged_bytes);
        let held = queue.charged_bytes + queue.transport_bytes;
        let account = queue.account;
        (queue.charged_bytes, queue.transport_bytes) = (0, 0);
        self.accounts.disconnected(account);
        self.accounts.give(account, held);
    }

    /// A queue goes: what waits for it is forgotten, and what the device has stays charged until the device is done with it.
    pub(crate) fn abandon(&mut self, connection: ConnectionId) {
        let index = connection.index;
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let account = queue.account;
        let hre = queue.association.map(|association| association.hre);
        let in_device: Vec<(u16, u32, u32)> = (0u16..)
            .zip(&queue.slots)
            .filter(|(_, slot)| slot.state == State::Device && slot.submitted)
            .map(|(place, slot)| (place, slot.buffer_bytes, if fused::writes(slot.opcode) { slot.nsid } else { 0 }))
            .collect();
        for (place, bytes, writes_to) in in_device {
            let tag = self.tag(index, place);
            if let Some(hre) = hre {
                self.orphans.insert((hre.0, tag), Orphan { account, bytes, writes_to });
            }
            if let Some(queue) = self.queues[usize::from(index)].as_mut() {
                queue.charged_bytes -= bytes as usize;
            }
        }
        for ready in self.accounts.forget(account, connection, None) {
            self.give(index, ready.request.buffer);
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.fetches).into_iter().partition(|(of, _)| *of == connection);
        self.fetches = kept;
        for (_, fetch) in gone {
            self.give(index, fetch.buffer);
        }
        self.abandon_fused(connection);
    }

    /// Takes back what the device had for queues that are gone.
    pub(crate) fn take_drained(&mut self) {
        while let Some(HostCompletion { hre, tag, buffer, .. }) = self.backend.drained() {
            self.orphan_ended(hre, tag, buffer);
        }
    }

    /// The device is done with a request; true where it was of a queue that is gone.
    pub(crate) fn orphan_ended(&mut self, hre: HreId, tag: u64, buffer: Vec<u8>) -> bool {
        let Some(orphan) = self.orphans.remove(&(hre.0, tag)) else { return false };
        debug_assert_eq!(buffer.len(), orphan.bytes as usize);
        self.pool.give(buffer);
        self.accounts.left_device(orphan.account);
        self.accounts.give(orphan.account, orphan.bytes as usize);
        self.count_out_of_device();
        if !self.exclusives.are_none() {
            self.fused_orphan_ended(hre, tag);
        }
        true
    }

    // --- Waiting for a buffer ---

    /// Lets a command that was begun wait for its buffer.
    pub(crate) fn wait_for_buffer(&mut self, index: u16, place: u16, command: Command, used_for: Use) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let (Data::Fetch(bytes) | Data::ToHost(bytes)) = command.data else { return };
        let bytes = if command.operation == Operation::Admin { bytes + ADMIN_ENTRY_BYTES as u32 } else { bytes };
        let slot = &mut queue.slots[usize::from(place)];
        slot.state = State::Waiting;
        slot.command = Some(command);
        let connection = ConnectionId { index, generation: queue.generation };
        self.accounts.wait(queue.account, Waiting { connection, place, bytes, used_for });
    }

    /// Gives buffers to commands that wait for them, hosts in turn; and places in the device. True where some command went on.
    pub fn grant(&mut self) -> bool {
        let mut granted = self.admit_ready();
        if self.accounts.waiting.is_empty() || self.granted_at == self.accounts.releases {
            return granted;
        }
        // One command of each host in a turn; who gets none has had its last turn for now.
        let mut turns = self.accounts.waiting.len();
        while turns > 0
            && let Some(account) = self.accounts.waiting.pop_front()
        {
            turns -= 1;
            let of = self.accounts.of(account);
            let Some(first) = of.waiting.front().copied() else { continue };
            let whole = BufferPool::whole_bytes(first.bytes as usize);
            if !self.accounts.admits(account, whole, first.used_for) {
                self.accounts.waiting.push_back(account);
                continue;
            }
            let of = self.accounts.of_mut(account);
            of.waiting.pop_front();
            if !of.waiting.is_empty() {
                self.accounts.waiting.push_back(account);
                turns += 1;
            }
            self.start_waiting(first);
            granted = true;
        }
        self.granted_at = self.accounts.releases;
        granted
    }

    /// True where [`Subsystem::grant`] may have something to do.
    pub fn may_grant(&self) -> bool {
        !self.accounts.waiting.is_empty() && self.granted_at != self.accounts.releases
    }

    /// A command that waited gets its buffer.
    fn start_waiting(&mut self, waiting: Waiting) {
        let Waiting { connection, place, bytes, .. } = waiting;
        let index = connection.index;
        let buffer = self.take_buffer_always(index, bytes as usize);
        let Some(queue) =
            self.queues[usize::from(index)].as_mut().filter(|one| one.generation == connection.generation)
        else {
            debug_assert!(false, "a command of a closed connection waited");
            return self.give(index, buffer);
        };
        let slot = &mut queue.slots[usize::from(place)];
        let (cid, entry) = (slot.cid, slot.entry.take());
        let Some(command) = slot.command.take().filter(|_| slot.state == State::Waiting) else {
            debug_assert!(false, "a command that had ended waited");
            return self.give(index, buffer);
        };
        if let Some(status) = self.refusal(index, &command) {
            return self.give_up(index, place, status, buffer);
        }
        match self.start(index, place, cid, command, entry.map(|entry| *entry), buffer) {
            Some(fetch) => self.fetches.push_back((connection, fetch)),
            None => self.submitted = true,
        }
    }

    /// Begins a command that has its buffer; what is to be fetched comes back.
    #[inline]
    pub(crate) fn start(
        &mut self,
        index: u16,
        place: u16,
        cid: u16,
        command: Command,
        entry: Option<SubmissionEntry>,
        mut buffer: Vec<u8>,
    ) -> Option<Fetch> {
        let Data::Fetch(bytes) = command.data else {
            self.execute(index, place, command, buffer);
            return None;
        };
        let mut start = crate::io::data_start(&command.operation);
        if let Some(entry) = entry {
            // The entry waits in front of its data.
            buffer[..ADMIN_ENTRY_BYTES].copy_from_slice(&entry.0);
            start = ADMIN_ENTRY_BYTES;
        }
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            queue.fetching += 1;
            let slot = &mut queue.slots[usize::from(place)];
            slot.state = State::Fetching;
            slot.command = Some(command);
        }
        Some(Fetch { slot: place, cid, buffer, start, bytes })
    }

    /// The next command that waited for its buffer and has it: its data are to be fetched.
    #[inline]
    pub fn fetch(&mut self) -> Option<(ConnectionId, Fetch)> {
        self.fetches.pop_front()
    }

    // --- Waiting for a place in the device ---

    /// Hands a request to the device, or lets it wait for a place there.
    #[inline]
    pub(crate) fn enter_device(&mut self, index: u16, place: u16, hre: HreId, request: HostRequest) {
        let Some(queue) = self.queues[usize::from(index)].as_ref() else { return };
        let (account, connection) = (queue.account, ConnectionId { index, generation: queue.generation });
        // Others wait for the range of a fused operation: it does not wait for its host's other requests (FUSED_RANGES_MAX of them at most).
        let has_range = queue.slots[usize::from(place)].paired;
        let mut request = request;
        if has_range || self.accounts.of(account).ready.is_empty() && self.accounts.has_place(account) {
            match self.backend.submit(hre, request) {
                Ok(()) => return self.count_in_device(index, place, account),
                Err(refused) => request = refused,
            }
        }
        self.hold(account, Ready { connection, place, hre, request, since_ns: self.now_ns });
    }

    #[cold]
    pub(crate) fn hold(&mut self, account: u16, ready: Ready) {
        if !self.backend.is_open(ready.hre) {
            return self.give_up(
                ready.connection.index,
                ready.place,
                Status::COMMAND_INTERRUPTED,
                ready.request.buffer,
            );
        }
        if let Some(queue) = self.queues[ready.connection.index()].as_mut() {
            queue.slots[usize::from(ready.place)].state = State::Ready;
        }
        self.accounts.hold(account, ready);
    }

    /// Hands requests that wait for a place to the device, hosts in turn; true where one went.
    pub(crate) fn admit_ready(&mut self) -> bool {
        let mut admitted = false;
        let mut turns = self.accounts.ready.len();
        while turns > 0
            && let Some(account) = self.accounts.ready.pop_front()
        {
            turns -= 1;
            let has_place = self.accounts.has_place(account);
            let Some(mut ready) = self.accounts.of_mut(account).ready.pop_front() else { continue };
            let (index, place) = (ready.connection.index, ready.place);
            if has_place && !self.exclusives.are_none() {
                match self.hold_ready_for_fused(ready) {
                    Some(free) => ready = free,
                    None => {
                        if !self.accounts.of(account).ready.is_empty() {
                            self.accounts.ready.push_back(account);
                            turns += 1;
                        }
                        continue;
                    }
                }
            }
            let outcome = if has_place { self.backend.submit(ready.hre, ready.request) } else { Err(ready.request) };
            let went = outcome.is_ok();
            match outcome {
                Ok(()) => self.count_in_device(index, place, account),
                Err(request) => {
                    let waited_ns = self.now_ns.saturating_sub(ready.since_ns);
                    if waited_ns >= DEVICE_WAIT_MAX.as_nanos() as u64 || !self.backend.is_open(ready.hre) {
                        self.accounts.of_mut(account).refused += 1;
                        self.give_up(index, place, Status::COMMAND_INTERRUPTED, request.buffer);
                    } else {
                        ready.request = request;
                        self.accounts.of_mut(account).ready.push_front(ready);
                    }
                }
            }
            if !self.accounts.of(account).ready.is_empty() {
                self.accounts.ready.push_back(account);
                turns += usize::from(went);
            }
            admitted |= went;
        }
        admitted
    }

    /// When a request that waits for a place is to be tried again though nothing has ended.
    pub(crate) fn ready_retry_ns(&self) -> Option<u64> {
        (!self.accounts.ready.is_empty()).then(|| self.now_ns.saturating_add(DEVICE_RETRY.as_nanos() as u64))
    }
}
