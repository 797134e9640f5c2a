//! Reservations as hosts ask for them (NVMe Base, "Reservations"): the four commands, the notices, the feature of persistence. The
//! rules and the table are the device's ([`willow_device::reservation`]).
//!
//! What always holds:
//! - a command that conflicts with a reservation does nothing; also one that waited, for a buffer or its data, while that came;
//! - Preempt and Abort is answered when nothing of those that it preempted is under way in the namespace;
//! - a controller keeps [`NOTICES_MAX`] notices, and forgets the oldest.
//!
//! Reservations stand between hosts that read and write blocks or pairs. RPCs to apps, and files that a process has directly, are under
//! the permissions of docs/protection.md instead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use willow_device::reservation::{Access, Notice, Reservation, ReservationAction, ReservationType, ReserveRequest};
use willow_device::{Arguments, HostCompletion, Rpc, RpcList, RpcOutcome, control};
use willow_wire::bytes::u64_at;
use willow_wire::spec::opcode::nvm;
use willow_wire::spec::{Status, SubmissionEntry, feature, log};

use crate::backend::Backend;
use crate::bytes::Put;
use crate::command::{self, Command, Data, Operation};
use crate::queue::State;
use crate::status::Failure;
use crate::subsystem::{ConnectionId, Next, Subsystem};
use crate::work::Work;

/// Most notices that a controller keeps: NUM LOG PAGES AVAILABLE is a byte.
pub const NOTICES_MAX: usize = 255;
/// Bytes of the data of Register and Acquire; of Release half of them.
const KEYS_BYTES: u32 = 16;
/// CNTLID of a registrant that has no controller.
const CONTROLLER_NONE: u16 = 0xffff;
/// Bytes of the head, and of each entry, of the extended data structure of Report.
const REPORT_BYTES: usize = 64;

/// A reservation command with its fields; the keys are in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveCommand {
    opcode: u8,
    action: u8,
    kind: u8,
    ignore_key: bool,
    persistent: Option<bool>,
}

/// What reservations make of a command.
pub(crate) fn access(operation: &Operation) -> Option<Access> {
    match operation {
        Operation::Read(_)
        | Operation::Compare(_)
        | Operation::Verify(_)
        | Operation::Retrieve(_)
        | Operation::RetrieveItem { .. }
        | Operation::List(_)
        | Operation::Exist(_) => Some(Access::Read),
        Operation::Write(..)
        | Operation::FusedCompare(_)
        | Operation::FusedWrite(..)
        | Operation::WriteZeroes { .. }
        | Operation::WriteUncorrectable(_)
        | Operation::DatasetManagement { .. }
        | Operation::Copy { .. }
        | Operation::CopyRanges
        | Operation::Flush
        | Operation::Store { .. }
        | Operation::StoreItem { .. }
        | Operation::DeleteItem { .. }
        | Operation::Touch { .. }
        | Operation::Sweep { .. }
        | Operation::Clear
        | Operation::Delete(_) => Some(Access::Write),
        Operation::Reserve(_)
        | Operation::ReservationReport
        | Operation::Send(_)
        | Operation::Call(..)
        | Operation::Admin
        | Operation::Receive { .. } => None,
    }
}

/// Parses a reservation command; `None`: it is none.
pub(crate) fn parse(entry: &SubmissionEntry, capsule_bytes: usize) -> Option<Result<(Operation, Data), Failure>> {
    let cdw10 = entry.cdw10();
    let (action, kind, ignore_key) = ((cdw10 & 7) as u8, (cdw10 >> 8) as u8, cdw10 & 1 << 3 != 0);
    let bytes = match entry.opcode() {
        nvm::RESERVATION_REGISTER | nvm::RESERVATION_ACQUIRE => KEYS_BYTES,
        nvm::RESERVATION_RELEASE => KEYS_BYTES / 2,
        nvm::RESERVATION_REPORT => return Some(parse_report(entry)),
        _ => return None,
    };
    let persistent = match (entry.opcode(), cdw10 >> 30) {
        (nvm::RESERVATION_REGISTER, 0b10) => Some(false),
        (nvm::RESERVATION_REGISTER, 0b11) => Some(true),
        (nvm::RESERVATION_REGISTER, 0b01) => return Some(Err(Failure::field(43))),
        _ => None,
    };
    if action > 2 || action == 2 && entry.opcode() == nvm::RESERVATION_RELEASE {
        return Some(Err(Failure::field(40)));
    }
    // Keys may be left out of Register alone (NVMe Base 1.3 and later).
    if ignore_key && entry.opcode() != nvm::RESERVATION_REGISTER {
        return Some(Err(Failure::field(40)));
    }
    let command = ReserveCommand { opcode: entry.opcode(), action, kind, ignore_key, persistent };
    let data = command::data_from_host(entry, Some(u64::from(bytes)), capsule_bytes);
    Some(data.map(|data| (Operation::Reserve(command), data)))
}

fn parse_report(entry: &SubmissionEntry) -> Result<(Operation, Data), Failure> {
    let bytes = (u64::from(entry.cdw10()) + 1) * 4;
    // EDS: host identifiers have 128 bits here.
    if entry.cdw11() & 1 == 0 {
        return Err(Failure::at(Status::HOST_IDENTIFIER_INCONSISTENT, 44));
    }
    Ok((Operation::ReservationReport, command::data_to_host(entry, Some(bytes))?))
}

impl ReserveCommand {
    fn action(&self, data: &[u8]) -> Result<ReservationAction, Failure> {
        let current = u64_at(data, 0);
        let other = if data.len() >= KEYS_BYTES as usize { u64_at(data, 8) } else { 0 };
        let known = (!self.ignore_key).then_some(current);
        let kind = || ReservationType::from_number(self.kind).ok_or(Failure::field(41));
        Ok(match (self.opcode, self.action) {
            (nvm::RESERVATION_REGISTER, 0) => ReservationAction::Register { key: other },
            (nvm::RESERVATION_REGISTER, 1) => ReservationAction::Unregister { current: known },
            (nvm::RESERVATION_REGISTER, _) => ReservationAction::Replace { current: known, key: other },
            (nvm::RESERVATION_ACQUIRE, 0) => ReservationAction::Acquire { current, kind: kind()? },
            (nvm::RESERVATION_ACQUIRE, _) => ReservationAction::Preempt { current, preempted: other, kind: kind()? },
            (_, 0) => ReservationAction::Release { current, kind: kind()? },
            _ => ReservationAction::Clear { current },
        })
    }

    fn aborts(&self) -> bool {
        self.opcode == nvm::RESERVATION_ACQUIRE && self.action == 2
    }
}

/// What a controller is told of reservations.
#[derive(Default)]
pub(crate) struct Notices {
    /// Type and namespace, oldest first.
    waiting: VecDeque<(u8, u32)>,
    /// Number of the newest.
    count: u64,
    /// An event was told and the log not read since.
    told: bool,
    /// Types that are not told, by namespace (feature 82h).
    masks: BTreeMap<u32, u32>,
}

impl Notices {
    fn push(&mut self, notice: &Notice) {
        let (kind, nsid) = (notice.kind as u8, notice.nsid);
        if self.mask(nsid) & 1 << kind != 0 {
            return;
        }
        if self.waiting.len() == NOTICES_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((kind, nsid));
        self.count += 1;
    }

    /// DW0 of an event, where one is due.
    pub fn event(&mut self) -> Option<u32> {
        let due = !self.waiting.is_empty() && !self.told;
        self.told |= due;
        due.then(|| {
            feature::event::result(feature::event::TYPE_COMMAND_SET, feature::event::RESERVATION_LOG, log::RESERVATION)
        })
    }

    /// Whether one is due.
    pub fn is_due(&self) -> bool {
        !self.waiting.is_empty() && !self.told
    }

    /// LID 80h: the oldest notice, which is gone then unless `retain`.
    pub fn page(&mut self, retain: bool) -> Vec<u8> {
        let mut out = vec![0; 64];
        if let Some((kind, nsid)) = self.waiting.front().copied() {
            out.put64(0, self.count - self.waiting.len() as u64 + 1);
            out[8] = kind;
            out[9] = (self.waiting.len() - 1) as u8;
            out.put32(12, nsid);
        }
        if !retain {
            self.waiting.pop_front();
            self.told = false;
        }
        out
    }

    /// Feature 82h of a namespace.
    pub fn mask(&self, nsid: u32) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or(0)
    }

    /// Sets it.
    pub fn set_mask(&mut self, nsid: u32, mask: u32) {
        match mask & 0b1110 {
            0 => self.masks.remove(&nsid),
            mask => self.masks.insert(nsid, mask),
        };
    }

    /// Forgets what a reset forgets.
    pub fn reset(&mut self) {
        *self = Notices::default();
    }
}

/// A Preempt and Abort that waits for what the preempted hosts have under way.
pub(crate) struct Preempting {
    connection: ConnectionId,
    place: u16,
    nsid: u32,
    hosts: Vec<[u8; 16]>,
    /// Commands that began later are not waited for.
    at_ns: u64,
    /// What the device had then for queues that are gone.
    orphans: Vec<(u32, u64)>,
}

impl<B: Backend> Subsystem<B> {
    /// A Register, Acquire or Release whose keys are there.
    pub(crate) fn reserve(&mut self, index: u16, place: u16, nsid: u32, command: &ReserveCommand, data: &[u8]) {
        let Some(host) = self.host_of(index) else { return };
        let action = match command.action(data) {
            Ok(action) => action,
            Err(failure) => return self.complete(index, place, failure.status, 0, None),
        };
        let aborts = command.aborts().then(|| {
            let before = self.find(nsid).and_then(|found| self.namespaces[found].reservation.as_ref());
            before.map(|before| before.registrants.iter().map(|one| one.host).collect()).unwrap_or_default()
        });
        self.ask_to_reserve(
            index,
            place,
            &ReserveRequest { nsid, others: Vec::new(), host, action, persistent: command.persistent },
            aborts,
        );
    }

    /// Set Features, Reservation Persistence (feature 83h), of a namespace or of all that the host has.
    pub(crate) fn set_persistence(&mut self, index: u16, cntlid: u16, entry: &SubmissionEntry) -> Next {
        let mut numbers = match self.numbers_of(cntlid, entry.nsid()) {
            Ok(numbers) => numbers,
            Err(failure) => {
                self.fail(index, entry, Failure { status: Status::INVALID_NAMESPACE.with_do_not_retry(), ..failure });
                return Next::Taken;
            }
        };
        if let Some(place) = self.begin(index, entry)
            && let Some(host) = self.host_of(index)
        {
            let Some(nsid) = numbers.pop() else {
                // A host without namespaces: that is all of them.
                self.complete(index, place, Status::SUCCESS, 0, None);
                return Next::Taken;
            };
            let (action, persistent) = (ReservationAction::Persist, Some(entry.cdw11() & 1 != 0));
            let request = ReserveRequest { nsid, others: numbers, host, action, persistent };
            self.ask_to_reserve(index, place, &request, None);
        }
        Next::Taken
    }

    /// Set Features, Reservation Notification Mask (feature 82h), of a namespace or of all that the host has.
    pub(crate) fn set_notices(&mut self, cntlid: u16, entry: &SubmissionEntry) -> Result<u32, Failure> {
        let (numbers, mask) = (self.numbers_of(cntlid, entry.nsid())?, entry.cdw11());
        if let Some(controller) = self.controllers.get_mut(&cntlid) {
            numbers.into_iter().for_each(|nsid| controller.notices.set_mask(nsid, mask));
        }
        Ok(0)
    }

    /// The namespaces of a controller that an NSID means: one, or all.
    fn numbers_of(&self, cntlid: u16, nsid: u32) -> Result<Vec<u32>, Failure> {
        match (nsid, self.controllers.get(&cntlid)) {
            (command::NSID_ALL, Some(controller)) => Ok(self.active_of(controller).collect()),
            _ => self.find_active(cntlid, nsid).map(|_| vec![nsid]).ok_or(Failure::field(4)),
        }
    }

    fn ask_to_reserve(&mut self, index: u16, place: u16, request: &ReserveRequest, aborts: Option<Vec<[u8; 16]>>) {
        let (Ok(json), Some(arguments)) = (serde_json::to_vec(request), Arguments::new(&[])) else {
            return self.complete(index, place, Status::INTERNAL_ERROR, 0, None);
        };
        let mut buffer = self.take_buffer_always(index, json.len());
        buffer[..json.len()].copy_from_slice(&json);
        let rpcs =
            RpcList::One(Rpc { app: willow_wire::control::CONTROL_APP, handler: control::RESERVE, spu: 0, arguments });
        self.submit(index, place, rpcs, buffer, json.len() as u32, 0, Work::Reserve(aborts));
    }

    /// The control service has answered.
    pub(crate) fn reserved(
        &mut self,
        index: u16,
        place: u16,
        aborts: Option<Vec<[u8; 16]>>,
        completion: HostCompletion,
    ) {
        self.give(index, completion.buffer);
        let RpcOutcome::Answered { status } = completion.outcome else {
            return self.complete(index, place, crate::status::of_outcome(completion.outcome), 0, None);
        };
        use willow_wire::control::ControlStatus;
        let status = match ControlStatus::from_u32(status) {
            Some(ControlStatus::Success) => Status::SUCCESS,
            Some(ControlStatus::Busy | ControlStatus::NoRoom) => Status::RESERVATION_CONFLICT.with_do_not_retry(),
            Some(ControlStatus::Malformed) => Status::INVALID_FIELD.with_do_not_retry(),
            Some(ControlStatus::NotFound) => Status::INVALID_NAMESPACE.with_do_not_retry(),
            _ => Status::INTERNAL_ERROR,
        };
        let (true, Some(before)) = (status.is_success(), aborts) else {
            return self.complete(index, place, status, 0, None);
        };
        if self.tables_changed() {
            self.take_tables();
        }
        let Some(queue) = self.queues[usize::from(index)].as_ref() else { return };
        let (nsid, generation) = (queue.slots[usize::from(place)].nsid, queue.generation);
        let now = self.find(nsid).and_then(|found| self.namespaces[found].reservation.as_ref());
        let hosts = before.into_iter().filter(|host| now.is_none_or(|now| !now.is_registered(host))).collect();
        let waiting = Preempting {
            connection: ConnectionId { index, generation },
            place,
            nsid,
            hosts,
            at_ns: self.now_ns,
            orphans: self.orphans.keys().copied().collect(),
        };
        self.abort_preempted(&waiting);
        self.preempting.push(waiting);
        self.settle_preempting();
    }

    /// Ends what the preempted hosts have in the namespace, as far as it can be ended.
    fn abort_preempted(&mut self, preempting: &Preempting) {
        let commands = self.commands_of(preempting);
        // Other commands that are held are looked at anew when they go on.
        let held =
            commands.iter().filter(|(.., state)| *state == State::Held).map(|(index, place, _)| (*index, *place));
        for (index, place) in self.forget_held_ready(&held.collect()) {
            self.complete(index, place, Status::ABORTED_PREEMPT.with_do_not_retry(), 0, None);
        }
        for (index, place, state) in commands {
            let Some(queue) = self.queues[usize::from(index)].as_ref() else { continue };
            let connection = ConnectionId { index, generation: queue.generation };
            let (account, hre) = (queue.account, queue.association.map(|association| association.hre));
            match state {
                State::Waiting | State::Ready => {
                    for ready in self.accounts.forget(account, connection, Some(place)) {
                        self.give(index, ready.request.buffer);
                    }
                    self.complete(index, place, Status::ABORTED_PREEMPT.with_do_not_retry(), 0, None);
                }
                State::Device => {
                    let tag = self.tag(index, place);
                    // What cannot be taken back is waited for.
                    if let Some(hre) = hre {
                        self.backend.abort(hre, tag);
                    }
                }
                _ => {}
            }
        }
    }

    /// Commands in a namespace of hosts that were preempted, which began before that.
    fn commands_of(&self, preempting: &Preempting) -> Vec<(u16, u16, State)> {
        let of_hosts = self.controllers.values().filter(|one| preempting.hosts.contains(&one.host_id));
        let queues: Vec<u16> = of_hosts.flat_map(|one| one.io.iter().flatten().copied()).collect();
        let mut out = Vec::new();
        for index in queues {
            let Some(queue) = self.queues[usize::from(index)].as_ref() else { continue };
            for (place, slot) in (0u16..).zip(&queue.slots) {
                if slot.state != State::Free && slot.nsid == preempting.nsid && slot.start_ns <= preempting.at_ns {
                    out.push((index, place, slot.state));
                }
            }
        }
        out
    }

    /// Answers each Preempt and Abort that waits for nothing any more.
    pub(crate) fn settle_preempting(&mut self) {
        for mut waiting in std::mem::take(&mut self.preempting) {
            if self.queue(waiting.connection).is_none() {
                continue;
            }
            waiting.orphans.retain(|orphan| self.orphans.contains_key(orphan));
            let is_over = waiting.orphans.is_empty()
                && self.commands_of(&waiting).iter().all(|(.., state)| *state != State::Device);
            match is_over {
                true => self.complete(waiting.connection.index, waiting.place, Status::SUCCESS, 0, None),
                false => self.preempting.push(waiting),
            }
        }
    }

    /// Reservation Report in its extended form: an entry for each controller of each registrant.
    pub(crate) fn report_reservation(&mut self, index: u16, place: u16, nsid: u32, mut buffer: Vec<u8>, bytes: usize) {
        let mut out = vec![0; REPORT_BYTES];
        let none = Reservation::default();
        let found = self.find(nsid);
        let reservation = found.and_then(|found| self.namespaces[found].reservation.as_ref()).unwrap_or(&none);
        out.put32(0, reservation.generation);
        out[4] = reservation.held.map_or(0, |held| held.kind as u8);
        out[9] = u8::from(reservation.persistent);
        let mut registered = 0u16;
        for one in &reservation.registrants {
            let here =
                self.controllers.values().filter(|controller| !controller.discovery && controller.host_id == one.host);
            let mut numbers: Vec<u16> = here.map(|controller| controller.cntlid).collect();
            if numbers.is_empty() {
                numbers.push(CONTROLLER_NONE);
            }
            for number in numbers {
                let mut entry = [0; REPORT_BYTES];
                entry[..].put16(0, number);
                entry[2] = u8::from(reservation.is_holder(&one.host));
                entry[..].put64(8, one.key);
                entry[16..32].copy_from_slice(&one.host);
                out.extend_from_slice(&entry);
                registered += 1;
            }
        }
        out.put16(5, registered);
        out.resize(bytes.max(out.len()), 0);
        buffer[..bytes].copy_from_slice(&out[..bytes]);
        self.complete(index, place, Status::SUCCESS, 0, Some(crate::subsystem::Payload { buffer, start: 0, bytes }));
    }

    /// Tells controllers what others have done to reservations since the first `seen` notices.
    pub(super) fn tell_reservations(&mut self, seen: u64) {
        let there: BTreeSet<u32> = self.namespaces.iter().map(|entry| entry.namespace.nsid).collect();
        self.controllers.values_mut().for_each(|one| one.notices.masks.retain(|nsid, _| there.contains(nsid)));
        let tables = self.host_tables.clone();
        let mut told = BTreeSet::new();
        for notice in tables.notices.since(seen) {
            for one in self.controllers.values_mut().filter(|one| !one.discovery && one.host_id == notice.host) {
                one.notices.push(notice);
                told.insert(one.cntlid);
            }
        }
        told.into_iter().for_each(|cntlid| self.tell_events(cntlid));
    }

    /// Why a command may not begin: its namespace is gone from its host, or another host has reserved it.
    pub(crate) fn refusal(&self, index: u16, command: &Command) -> Option<Status> {
        if command.generation == 0 {
            return None;
        }
        let place = match self.place_for(index, command.nsid, command.generation) {
            Ok(place) => place,
            Err(status) => return Some(status),
        };
        let reservation = self.namespaces[place].reservation.as_ref()?;
        let (access, host) = (access(&command.operation)?, self.host_of(index)?);
        (!reservation.permits(&host, access)).then_some(Status::RESERVATION_CONFLICT.with_do_not_retry())
    }

    /// Where the namespace of a command stands, which was parsed for it in that generation; else what the command ends with.
    pub(crate) fn place_for(&self, index: u16, nsid: u32, generation: u32) -> Result<usize, Status> {
        let association = self.queues[usize::from(index)].as_ref().and_then(|queue| queue.association);
        let found = association.and_then(|association| self.find_active(association.controller, nsid));
        match found.map(|place| (place, &self.namespaces[place])) {
            Some((place, entry)) if entry.view.generation == generation => Ok(place),
            // It has become smaller: the host sends the command again, and is told then where it ends.
            Some((_, entry)) if (entry.since..entry.view.generation).contains(&generation) => {
                Err(Status::COMMAND_INTERRUPTED)
            }
            _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
        }
    }

    fn host_of(&self, index: u16) -> Option<[u8; 16]> {
        let association = self.queues[usize::from(index)].as_ref()?.association?;
        Some(self.controllers.get(&association.controller)?.host_id)
    }
}
