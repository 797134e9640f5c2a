//! I/O commands: what is asked of the apps for each, and what their answers mean. Base-IO serves NVM namespaces, Key-Value
//! those of its command set; the tunnel reaches any app.

use base_io_host::wire::{self as block_wire, handler};
use base_io_host::{Geometry, SpuRequest};
use willow_device::{Arguments, HostCompletion, HostRequest, Rpc, RpcList, RpcOutcome, STRIPE_BYTES};
use willow_wire::control::{self, CONTROL_APP};
use willow_wire::spec::{Status, SubmissionEntry, opcode::nvm, tunnel};

use crate::access::Access;
use crate::account::Use;
use crate::backend::Backend;
use crate::buffer::HEADROOM_BYTES;
use crate::command::{self, Blocks, Command, Data, Durable, NSID_ALL, Operation, Target};
use crate::fused::is_fused;
use crate::queue::{Association, State};
use crate::ranges;
use crate::reservation;
use crate::status::{self, Failure};
use crate::subsystem::{Next, Payload, Subsystem};
use crate::work::{Copying, Deallocation, Work};

/// A status that may be gone when the command is sent again: its app is not there (yet).
pub(crate) const NOT_READY: Status = Status::NAMESPACE_NOT_READY;

/// Where a command's data lie in its buffer: behind the headroom for blocks, whose RPCs say where; at the start for others,
/// whose payload begins with the buffer.
pub(crate) fn data_start(operation: &Operation) -> usize {
    match operation {
        Operation::Read(_)
        | Operation::Write(..)
        | Operation::Compare(_)
        | Operation::FusedCompare(_)
        | Operation::FusedWrite(..)
        | Operation::DatasetManagement { .. } => HEADROOM_BYTES,
        _ => 0,
    }
}

fn rpc(app: u16, request: SpuRequest) -> Rpc {
    Rpc { app, handler: request.handler, spu: request.spu, arguments: arguments(&request.arguments.encode()) }
}

pub(crate) fn arguments(bytes: &[u8]) -> Arguments {
    // Every caller's arguments have a fixed length below the limit of 64.
    Arguments::new(bytes).unwrap_or_else(|| unreachable!("{} bytes of arguments", bytes.len()))
}

pub(crate) fn block_rpcs(app: u16, geometry: &Geometry, handler: u8, blocks: &Blocks, flags: u32) -> RpcList {
    let mut list: Option<RpcList> = None;
    geometry.range(handler, blocks.start, blocks.bytes, HEADROOM_BYTES as u32, flags, |request| {
        let next = rpc(app, request);
        match &mut list {
            None => list = Some(RpcList::One(next)),
            Some(RpcList::Many(many)) => many.push(next),
            Some(one) => {
                if let RpcList::One(first) = one {
                    let mut many = Vec::with_capacity(usize::from(geometry.spus));
                    many.extend([*first, next]);
                    *one = RpcList::Many(many);
                }
            }
        }
    });
    // A parsed command has at least one block.
    list.unwrap_or(RpcList::Many(Vec::new()))
}

fn flush_rpcs(apps: &[u16], geometry: &Geometry) -> RpcList {
    let mut many = Vec::with_capacity(usize::from(geometry.spus) * apps.len());
    apps.iter().for_each(|app| geometry.flush(|request| many.push(rpc(*app, request))));
    RpcList::Many(many)
}

impl<B: Backend> Subsystem<B> {
    /// A command on an I/O queue.
    #[inline]
    pub(crate) fn io_command(
        &mut self,
        index: u16,
        association: Association,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        let Some(controller) = self.controllers.get(&association.controller) else {
            return Next::Violation("the controller is gone");
        };
        if is_fused(entry) || self.queues[usize::from(index)].as_ref().is_some_and(|queue| queue.first_half.is_some()) {
            return self.fused_command(index, association, entry, capsule);
        }
        if !controller.is_ready() {
            self.fail(index, entry, Failure::of(Status::COMMAND_SEQUENCE_ERROR));
            return Next::Taken;
        }
        // As `find_active`, with the controller that is at hand.
        let is_active = |place: &usize| controller.active.get(*place).copied().unwrap_or(false);
        let found = self.find(entry.nsid()).filter(is_active).map(|place| &self.namespaces[place]);
        let view = found.map(|entry| entry.view);
        let command = match command::parse(entry, view, capsule.len()) {
            Ok(command) => command,
            Err(failure) => {
                self.fail(index, entry, failure);
                return Next::Taken;
            }
        };
        if controller.access.state == Access::Inaccessible
            && (command.generation != 0 || command.operation == Operation::Flush)
        {
            // Hosts send it again by another path.
            self.fail(index, entry, Failure::retryable(Status::ANA_INACCESSIBLE));
            return Next::Taken;
        }
        if let Some(reservation) = found.and_then(|entry| entry.reservation.as_ref())
            && let Some(access) = reservation::access(&command.operation)
            && !reservation.permits(&controller.host_id, access)
        {
            self.fail(index, entry, Failure::of(Status::RESERVATION_CONFLICT));
            return Next::Taken;
        }
        // Data of a capsule have to lie somewhere before the next is read; all else waits in its slot.
        let mut capsule_buffer = Vec::new();
        let mut capsule_bytes = 0;
        if let Data::Capsule(_, bytes) = command.data {
            match self.take_capsule_buffer(index, bytes) {
                Some(taken) => (capsule_buffer, capsule_bytes) = taken,
                None => return Next::Wait,
            }
        }
        let Some(place) = self.begin(index, entry) else {
            self.give(index, capsule_buffer);
            return Next::Taken;
        };
        let start = data_start(&command.operation);
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Next::Taken };
        let slot = &mut queue.slots[usize::from(place)];
        slot.direction = command.operation.direction();
        slot.lba = command.operation.lba();
        let (used_for, bytes) = match (command.operation, command.data) {
            (_, Data::Capsule(at, bytes)) => {
                slot.bytes = bytes;
                slot.capsule_bytes = capsule_bytes;
                queue.capsules_bytes += capsule_bytes;
                let (at, bytes) = (at as usize, bytes as usize);
                capsule_buffer[start..start + bytes].copy_from_slice(&capsule[at..at + bytes]);
                self.execute(index, place, command, capsule_buffer);
                return Next::Taken;
            }
            // A Receive waits without a buffer.
            (Operation::Receive { .. }, Data::ToHost(bytes)) => {
                slot.bytes = bytes;
                self.execute(index, place, command, Vec::new());
                return Next::Taken;
            }
            (_, Data::None) => {
                self.execute(index, place, command, Vec::new());
                return Next::Taken;
            }
            (_, Data::Fetch(bytes)) => {
                slot.bytes = bytes;
                (Use::Fetch, bytes)
            }
            (_, Data::ToHost(bytes)) => {
                slot.bytes = bytes;
                (Use::Answer, bytes)
            }
        };
        let Some(buffer) = self.take_buffer(index, bytes, used_for) else {
            self.wait_for_buffer(index, place, command, used_for);
            return Next::Taken;
        };
        match self.start(index, place, entry.cid(), command, None, buffer) {
            Some(fetch) => Next::Fetch(fetch),
            None => Next::Taken,
        }
    }

    /// Does a command whose data are all there. `buffer` is empty for commands without data.
    #[inline]
    pub(crate) fn execute(&mut self, index: u16, place: u16, command: Command, buffer: Vec<u8>) {
        let bytes = match command.data {
            Data::None => 0,
            Data::Capsule(_, bytes) | Data::Fetch(bytes) | Data::ToHost(bytes) => bytes,
        };
        // The tunnel needs no namespace, and its commands may name any.
        match command.operation {
            Operation::Send(target) => return self.send(index, place, target, None, buffer, bytes, 0),
            Operation::Call(target, given) => {
                let mut buffer = buffer;
                buffer[..bytes as usize].fill(0);
                return self.send(index, place, target, Some(given), buffer, 0, bytes);
            }
            Operation::Receive { wait_ms } => return self.receive(index, place, wait_ms),
            Operation::Admin => return self.execute_admin(index, place, bytes, buffer),
            Operation::Flush if command.nsid == NSID_ALL => return self.flush_all(index, place, Work::Block),
            _ => {}
        }
        // The namespace may have gone while data were fetched.
        let found = self.find(command.nsid).map(|found| (&self.namespaces[found], found));
        let Some((entry, found)) = found else {
            return self.give_up(index, place, Status::INVALID_FIELD.with_do_not_retry(), buffer);
        };
        let (geometry, placement, nsid) = (entry.geometry, entry.placement, command.nsid);
        let is_kv = entry.view.set == willow_device::CommandSet::Kv;
        match command.operation {
            Operation::Reserve(wanted) => {
                let keys = buffer[..bytes as usize].to_vec();
                self.give(index, buffer);
                return self.reserve(index, place, nsid, &wanted, &keys);
            }
            Operation::ReservationReport => return self.report_reservation(index, place, nsid, buffer, bytes as usize),
            _ => {}
        }
        if is_kv {
            return self.pair_command(index, place, (placement, found), nsid, command.operation, buffer, bytes);
        }
        let mut buffer = buffer;
        if !self.exclusives.are_none() {
            match self.hold_for_fused(index, place, command, buffer) {
                Some(free) => buffer = free,
                None => return,
            }
        }
        let Some(app) = self.app_of(found) else { return self.give_up(index, place, NOT_READY, buffer) };
        let at = HEADROOM_BYTES as u32;
        match command.operation {
            Operation::Read(blocks) => {
                let rpcs = block_rpcs(app, &geometry, handler::READ, &blocks, 0);
                self.submit(index, place, rpcs, buffer, 0, at + bytes, Work::Block);
            }
            Operation::Write(blocks, durable) => {
                let rpcs = block_rpcs(app, &geometry, handler::WRITE, &blocks, fua(durable));
                self.submit(index, place, rpcs, buffer, at + bytes, 0, Work::Block);
            }
            Operation::Compare(blocks) => {
                let rpcs = block_rpcs(app, &geometry, handler::COMPARE, &blocks, 0);
                self.submit(index, place, rpcs, buffer, at + bytes, 0, Work::Block);
            }
            Operation::WriteZeroes { blocks, deallocate, durable } => {
                let flags = fua(durable) | if deallocate { block_wire::FLAG_DEALLOCATE } else { 0 };
                let rpcs = block_rpcs(app, &geometry, handler::ZERO, &blocks, flags);
                self.submit(index, place, rpcs, buffer, 0, 0, Work::Block);
            }
            Operation::Verify(blocks) => {
                let rpcs = block_rpcs(app, &geometry, handler::VERIFY, &blocks, 0);
                self.submit(index, place, rpcs, buffer, 0, 0, Work::Block);
            }
            Operation::WriteUncorrectable(blocks) => {
                let nguid = self.namespaces[found].namespace.nguid;
                let request = [
                    &nsid.to_le_bytes()[..],
                    &nguid[..],
                    &blocks.start.to_le_bytes()[..],
                    &blocks.bytes.to_le_bytes()[..],
                ];
                let arguments = arguments(&request.concat());
                let one = Rpc { app: CONTROL_APP, handler: control::MARK_UNCORRECTABLE, spu: 0, arguments };
                self.submit(index, place, RpcList::One(one), buffer, 0, 0, Work::WriteUncorrectable);
            }
            Operation::DatasetManagement { ranges, deallocate } => {
                let view = self.namespaces[found].view;
                let data = &buffer[HEADROOM_BYTES..HEADROOM_BYTES + bytes as usize];
                match ranges::dataset_ranges(data, ranges, &view) {
                    Err(failure) => self.give_up(index, place, failure.status, buffer),
                    Ok(list) => {
                        self.give(index, buffer);
                        // Steps are taken from the end.
                        let left = list.iter().rev().filter(|_| deallocate);
                        let ranges = left.map(|blocks| (blocks.start, blocks.bytes)).collect();
                        self.deallocate(
                            index,
                            place,
                            Box::new(Deallocation { nsid, generation: command.generation, geometry, ranges }),
                        );
                    }
                }
            }
            Operation::Copy { ranges, to_lba, durable } => {
                let data = &buffer[..usize::from(ranges) * nvm::COPY_RANGE_BYTES];
                let checked = ranges::copy_ranges(data, to_lba, &self.namespaces[found].view);
                self.give(index, buffer);
                match checked {
                    Ok((from, to)) => {
                        let generation = command.generation;
                        self.begin_copy(index, place, nsid, Copying { from, to, durable, generation });
                    }
                    Err(failure) => self.complete(index, place, failure.status, 0, None),
                }
            }
            Operation::FusedCompare(_) | Operation::FusedWrite(..) => self.half_of_fused(index, place, command, buffer),
            Operation::CopyRanges => self.read_for_copy(index, place, (app, geometry), buffer),
            Operation::Flush => self.submit(index, place, flush_rpcs(&[app], &geometry), buffer, 0, 0, Work::Block),
            Operation::Send(_)
            | Operation::Call(..)
            | Operation::Receive { .. }
            | Operation::Admin
            | Operation::Reserve(_)
            | Operation::ReservationReport => unreachable!("handled above"),
            _ => unreachable!("parsed for key-value namespaces alone"),
        }
    }

    /// A Copy whose ranges are known waits for a buffer for its data, and reads them.
    fn begin_copy(&mut self, index: u16, place: u16, nsid: u32, copying: Copying) {
        let (generation, bytes) = (copying.generation, copying.to.bytes as u32);
        let Some(slot) = self.slot_mut(index, place) else { return };
        slot.work = Work::Copy(Box::new(copying));
        let command = Command { nsid, generation, operation: Operation::CopyRanges, data: Data::ToHost(bytes) };
        match self.take_buffer(index, bytes, Use::Answer) {
            Some(buffer) => self.execute(index, place, command, buffer),
            None => self.wait_for_buffer(index, place, command, Use::Answer),
        }
    }

    fn read_for_copy(&mut self, index: u16, place: u16, (app, geometry): (u16, Geometry), buffer: Vec<u8>) {
        let work = self.slot_mut(index, place).map(|slot| std::mem::replace(&mut slot.work, Work::Nothing));
        let Some(Work::Copy(copying)) = work else {
            debug_assert!(false, "a Copy's ranges are in its slot");
            return self.give_up(index, place, Status::INTERNAL_ERROR, buffer);
        };
        let (mut rpcs, mut at) = (Vec::new(), HEADROOM_BYTES as u32);
        for blocks in &copying.from {
            geometry.range(handler::READ, blocks.start, blocks.bytes, at, 0, |request| rpcs.push(rpc(app, request)));
            at += blocks.bytes as u32;
        }
        self.submit(index, place, RpcList::Many(rpcs), buffer, 0, at, Work::Copy(copying));
    }

    /// What a Copy writes is in the buffer: it is written, if the host still may.
    fn copy_read(&mut self, index: u16, place: u16, copying: &Copying, completion: HostCompletion) {
        let (buffer, end) = (completion.buffer, HEADROOM_BYTES as u32 + copying.to.bytes as u32);
        let status = block_status(completion.outcome, nvm::READ);
        if !status.is_success() {
            return self.give_up(index, place, status, buffer);
        }
        let Some(nsid) = self.slot_mut(index, place).map(|slot| slot.nsid) else { return };
        let (operation, generation) = (Operation::CopyRanges, copying.generation);
        let command = Command { nsid, generation, operation, data: Data::None };
        if let Some(status) = self.refusal(index, &command) {
            return self.give_up(index, place, status, buffer);
        }
        let found = self.find(nsid).and_then(|found| Some((self.app_of(found)?, self.namespaces[found].geometry)));
        let Some((app, geometry)) = found else { return self.give_up(index, place, NOT_READY, buffer) };
        if completion.reply_bytes < end {
            tracing::error!(written = completion.reply_bytes, end, "base-io answered a read short");
            return self.give_up(index, place, Status::INTERNAL_ERROR, buffer);
        }
        let rpcs = block_rpcs(app, &geometry, handler::WRITE, &copying.to, fua(copying.durable));
        self.submit(index, place, rpcs, buffer, end, 0, Work::Block);
    }

    /// Sends a command's RPCs to the device.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub(crate) fn submit(
        &mut self,
        index: u16,
        place: u16,
        rpcs: RpcList,
        buffer: Vec<u8>,
        payload_bytes: u32,
        reply_bytes: u32,
        work: Work,
    ) {
        let tag = self.tag(index, place);
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let Some(association) = queue.association else { return self.give(index, buffer) };
        let slot = &mut queue.slots[usize::from(place)];
        slot.state = State::Device;
        slot.buffer_bytes = buffer.len() as u32;
        slot.work = work;
        let request = HostRequest { tag, rpcs, buffer, payload_bytes, reply_bytes };
        self.enter_device(index, place, association.hre, request);
    }

    /// Ends a command without data.
    pub(crate) fn give_up(&mut self, index: u16, place: u16, status: Status, buffer: Vec<u8>) {
        self.give(index, buffer);
        self.complete(index, place, status, 0, None);
    }

    /// The next step of Dataset Management.
    fn deallocate(&mut self, index: u16, place: u16, mut left: Box<Deallocation>) {
        if left.ranges.is_empty() {
            return self.complete(index, place, Status::SUCCESS, 0, None);
        }
        // The namespace may have gone since the last step, and its place may be another's.
        let found = match self.place_for(index, left.nsid, left.generation) {
            Ok(found) => found,
            Err(status) => return self.complete(index, place, status, 0, None),
        };
        let Some(app) = self.app_of(found) else { return self.complete(index, place, NOT_READY, 0, None) };
        let (mut rpcs, geometry) = (Vec::new(), left.geometry);
        left.step(|start, bytes| {
            let flags = block_wire::FLAG_DEALLOCATE;
            geometry.range(handler::ZERO, start, bytes, 0, flags, |request| rpcs.push(rpc(app, request)));
        });
        self.submit(index, place, RpcList::Many(rpcs), Vec::new(), 0, 0, Work::Deallocate(left));
    }

    /// Flushes all of the device.
    pub(crate) fn flush_all(&mut self, index: u16, place: u16, work: Work) {
        let apps = self.block_apps();
        if apps.is_empty() {
            return self.complete(index, place, NOT_READY, 0, None);
        }
        // A flush has no range.
        let geometry = Geometry { spus: self.backend.spus(), stripe_bytes: STRIPE_BYTES, base: 0 };
        self.submit(index, place, flush_rpcs(&apps, &geometry), Vec::new(), 0, 0, work);
    }

    /// An RPC of the tunnel (design: 81h with the payload as its body, 82h with inline arguments and a reply).
    #[allow(clippy::too_many_arguments)]
    fn send(
        &mut self,
        index: u16,
        place: u16,
        target: Target,
        given: Option<[u8; tunnel::CALL_ARGUMENT_BYTES]>,
        buffer: Vec<u8>,
        payload_bytes: u32,
        reply_bytes: u32,
    ) {
        let spu = match target.spu {
            Some(spu) => spu,
            None if target.app == CONTROL_APP => 0,
            None => {
                self.next_spu = (self.next_spu + 1) % self.backend.spus().max(1);
                self.next_spu
            }
        };
        if target.app == CONTROL_APP && target.handler == control::STATISTICS {
            self.refresh_front();
        }
        let arguments = arguments(given.as_ref().map_or(&[], |given| &given[..]));
        let one = RpcList::One(Rpc { app: target.app, handler: target.handler, spu, arguments });
        self.submit(index, place, one, buffer, payload_bytes, reply_bytes, Work::Tunnel);
    }

    /// Takes the device's answer to a slot's request.
    #[inline]
    pub(crate) fn answered(&mut self, index: u16, place: u16, completion: HostCompletion) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let slot = &mut queue.slots[usize::from(place)];
        let (bytes, opcode) = (slot.bytes, slot.opcode);
        slot.buffer_bytes = 0;
        let work = std::mem::replace(&mut slot.work, Work::Nothing);
        if matches!(completion.outcome, RpcOutcome::NoApp | RpcOutcome::AppEnded) {
            self.forget_apps();
        }
        match work {
            Work::Block => {
                let status = block_status(completion.outcome, opcode);
                if status.is_success() && opcode == nvm::READ {
                    // What the app did not write would be bytes of some other command.
                    if (completion.reply_bytes as usize) < HEADROOM_BYTES + bytes as usize {
                        tracing::error!(written = completion.reply_bytes, bytes, "base-io answered a read short");
                        return self.give_up(index, place, Status::INTERNAL_ERROR, completion.buffer);
                    }
                    let payload = Payload { buffer: completion.buffer, start: HEADROOM_BYTES, bytes: bytes as usize };
                    return self.complete(index, place, Status::SUCCESS, 0, Some(payload));
                }
                self.give_up(index, place, status, completion.buffer);
            }
            Work::Copy(copying) => self.copy_read(index, place, &copying, completion),
            Work::FusedCompare => self.fused_answered(index, place, false, completion),
            Work::FusedWrite => self.fused_answered(index, place, true, completion),
            Work::Deallocate(left) => {
                let status = block_status(completion.outcome, opcode);
                if status.is_success() {
                    self.deallocate(index, place, left)
                } else {
                    self.complete(index, place, status, 0, None)
                }
            }
            Work::Pair | Work::Retrieve | Work::StoreItem | Work::RetrieveItem | Work::Item | Work::List(_) => {
                self.pair_answered(index, place, work, completion, bytes)
            }
            Work::Tunnel => {
                let RpcOutcome::Answered { status } = completion.outcome else {
                    return self.give_up(index, place, status::of_outcome(completion.outcome), completion.buffer);
                };
                let result = tunnel::result(status, completion.result);
                let sent = completion.reply_bytes.min(bytes) as usize;
                let payload = if opcode == tunnel::CALL { sent } else { 0 };
                let payload = self.or_nothing(index, Payload { buffer: completion.buffer, start: 0, bytes: payload });
                self.complete(index, place, Status::SUCCESS, result, payload);
            }
            Work::NamespaceCreate | Work::NamespaceDelete | Work::NamespaceAttach => {
                self.namespace_managed(index, place, work, completion)
            }
            Work::WriteUncorrectable => self.give_up(index, place, mark_status(completion.outcome), completion.buffer),
            Work::Utilization(structure) => self.utilization_answered(index, place, structure, completion),
            Work::Reserve(aborts) => self.reserved(index, place, aborts, completion),
            Work::Shutdown => self.shutdown_flushed(index, place, completion),
            Work::FusedBroken(status) => self.give_up(index, place, status, completion.buffer),
            Work::Nothing => self.give_up(index, place, Status::INTERNAL_ERROR, completion.buffer),
        }
    }

    pub(crate) fn slot_mut(&mut self, index: u16, place: u16) -> Option<&mut crate::queue::Slot> {
        self.queues[usize::from(index)].as_mut()?.slots.get_mut(usize::from(place))
    }

    pub(crate) fn or_nothing(&mut self, index: u16, payload: Payload) -> Option<Payload> {
        if payload.bytes > 0 {
            return Some(payload);
        }
        self.give(index, payload.buffer);
        None
    }
}

pub(crate) fn fua(durable: Durable) -> u32 {
    if durable.0 { block_wire::FLAG_FUA } else { 0 }
}

/// Status of Write Uncorrectable: what the control service's answer means to a host.
fn mark_status(outcome: RpcOutcome) -> Status {
    let RpcOutcome::Answered { status } = outcome else { return block_status(outcome, nvm::WRITE_UNCORRECTABLE) };
    match control::ControlStatus::from_u32(status) {
        Some(control::ControlStatus::Success) => Status::SUCCESS,
        // Without "do not retry": there is room when some were written.
        Some(control::ControlStatus::NoRoom) => Status::CAPACITY_EXCEEDED,
        Some(control::ControlStatus::NotFound) => Status::INVALID_NAMESPACE.with_do_not_retry(),
        // The namespace is shorter, or has other blocks, than when the command was taken.
        Some(control::ControlStatus::Malformed) => Status::LBA_OUT_OF_RANGE.with_do_not_retry(),
        Some(control::ControlStatus::Busy) => Status::COMMAND_INTERRUPTED,
        Some(control::ControlStatus::MediaFailed) => Status::WRITE_FAULT.with_do_not_retry(),
        _ => Status::INTERNAL_ERROR,
    }
}

/// Status of a block command: what Base-IO's answer means to a host.
pub(crate) fn block_status(outcome: RpcOutcome, opcode: u8) -> Status {
    let answered = match outcome {
        RpcOutcome::Answered { status } => status,
        RpcOutcome::Aborted => return Status::ABORT_REQUESTED,
        RpcOutcome::Refused => return Status::COMMAND_INTERRUPTED,
        RpcOutcome::NoApp | RpcOutcome::AppEnded => return NOT_READY,
        RpcOutcome::NoHandler | RpcOutcome::NoSpu => return Status::INTERNAL_ERROR.with_do_not_retry(),
        RpcOutcome::NotPermitted => return Status::ACCESS_DENIED.with_do_not_retry(),
    };
    let status = match answered {
        0 => return Status::SUCCESS,
        block_wire::STATUS_COMPARE_FAILED => Status::COMPARE_FAILURE,
        block_wire::STATUS_MEDIA_ERROR if matches!(opcode, nvm::READ | nvm::COMPARE | nvm::VERIFY) => {
            Status::UNRECOVERED_READ_ERROR
        }
        block_wire::STATUS_MEDIA_ERROR => Status::WRITE_FAULT,
        block_wire::STATUS_FULL => Status::CAPACITY_EXCEEDED,
        // Without "do not retry": a host sends it again.
        block_wire::STATUS_BUSY => return Status::COMMAND_INTERRUPTED,
        block_wire::STATUS_RANGE => Status::LBA_OUT_OF_RANGE,
        block_wire::STATUS_PERMISSION => Status::ACCESS_DENIED,
        _ => Status::INTERNAL_ERROR,
    };
    status.with_do_not_retry()
}
