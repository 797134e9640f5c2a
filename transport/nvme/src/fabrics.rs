//! Fabrics commands (NVMe Base 6): Connect, Property Get and Set.

use willow_auth::Concatenation;
use willow_device::HostCompletion;
use willow_wire::spec::authentication::{CONNECT_AUTHENTICATION_REQUIRED, CONNECT_SECURE_CHANNEL_REQUIRED};
use willow_wire::spec::fabrics::{self as wire, ConnectCommand, ConnectData, connect_offset};
use willow_wire::spec::opcode::{self, fabrics};
use willow_wire::spec::property::{self, csts};
use willow_wire::spec::{Status, SubmissionEntry};

use crate::account::UNPROVED;
use crate::backend::Backend;
use crate::command::{self, Data};
use crate::config::*;
use crate::controller::{ConfigurationChange, Controller, capabilities};
use crate::features::{Features, rounded_keep_alive_ms};
use crate::identify::VERSION;
use crate::queue::{Association, State};
use crate::status::Failure;
use crate::subsystem::{Next, Subsystem};
use crate::work::Work;

/// Ready timeouts (CRTO): 500 ms, with and without media.
const CRTO: u32 = 1 << 16 | 1;

fn invalid(offset: u16, in_data: bool) -> Failure {
    let place = u32::from(offset) | if in_data { wire::CONNECT_ERROR_IN_DATA } else { 0 };
    Failure::at(Status::CONNECT_INVALID_PARAMETERS, offset).with_result(place)
}

/// Some hosts (SPDK's tools) leave HOSTNQN empty: they are named by their host identifier, as NVMe Base 4.5.1 would have it.
fn name_nameless_host(data: &mut [u8; wire::CONNECT_DATA_BYTES]) {
    let at = usize::from(connect_offset::HOSTNQN);
    if data[at] != 0 {
        return;
    }
    let mut name = String::from("nqn.2014-08.org.nvmexpress:uuid:");
    for (index, byte) in data[..16].iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            name.push('-');
        }
        name.push_str(&format!("{byte:02x}"));
    }
    data[at..at + 256].fill(0);
    data[at..at + name.len()].copy_from_slice(name.as_bytes());
}

/// The host that Connect's data name, whatever else is wrong with them.
fn named_host(capsule: &[u8]) -> String {
    let at = usize::from(connect_offset::HOSTNQN);
    let name = capsule.get(at..at + 256).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

impl<B: Backend> Subsystem<B> {
    /// Connect: ties a connection to a queue (NVMe Base 6.3).
    pub(crate) fn connect(&mut self, index: u16, entry: &SubmissionEntry, capsule: &[u8]) -> Next {
        if let Err(failure) = self.try_connect(index, entry, capsule) {
            let account = match failure.status.is(Status::CONNECT_CONTROLLER_BUSY) {
                true => self.accounts.find(&named_host(capsule)).unwrap_or(UNPROVED),
                false => UNPROVED,
            };
            self.accounts.of_mut(account).refused += 1;
            self.fail(index, entry, failure);
        }
        Next::Taken
    }

    fn try_connect(&mut self, index: u16, entry: &SubmissionEntry, capsule: &[u8]) -> Result<(), Failure> {
        command::check_flags(entry)?;
        let bytes = wire::CONNECT_DATA_BYTES;
        // Connect's data always come in the capsule (NVMe/TCP 3.3.2.2).
        let Data::Capsule(at, _) = command::data_from_host(entry, Some(bytes as u64), capsule.len())? else {
            return Err(Failure::at(Status::SGL_TYPE_INVALID, 39));
        };
        let fields = ConnectCommand::from_entry(entry);
        if fields.record_format != wire::CONNECT_RECORD_FORMAT {
            return Err(Failure::at(Status::CONNECT_INCOMPATIBLE_FORMAT, connect_offset::RECFMT));
        }
        if fields.queue_size == 0 || fields.queue_size >= QUEUE_ENTRIES_MAX {
            return Err(invalid(connect_offset::SQSIZE, false));
        }
        let data: &[u8; wire::CONNECT_DATA_BYTES] = capsule[at as usize..at as usize + bytes]
            .try_into()
            .map_err(|_| Failure::at(Status::DATA_SGL_LENGTH_INVALID, 32))?;
        let mut data = *data;
        name_nameless_host(&mut data);
        let data = ConnectData::from_bytes(&data).map_err(|error| invalid(error.offset, true))?;
        if !is_nqn(data.host_nqn.as_bytes()) {
            return Err(invalid(connect_offset::HOSTNQN, true));
        }
        let discovery = data.subsystem_nqn == NQN_DISCOVERY;
        if !discovery && data.subsystem_nqn != self.config.nqn {
            return Err(invalid(connect_offset::SUBNQN, true));
        }
        self.check_secured(index, &data.host_nqn, &data.subsystem_nqn)?;
        let controller = (fields.queue_id != 0).then_some(data.controller_id);
        let (credentials, process) = self.credentials(&data.host_nqn, discovery, controller)?;
        let by_channel = self.check_channel(index, &data.host_nqn, controller)?;
        let proof_asked = credentials.is_some() && !by_channel;
        let distrusted = self.queues[usize::from(index)].as_ref().is_some_and(|queue| queue.distrusted);
        if distrusted && credentials.is_none() && !discovery {
            return Err(Failure::at(Status::CONNECT_INVALID_HOST, connect_offset::HOSTNQN));
        }
        let queues_max = process.and_then(|_| self.ticket_queues(&data.host_nqn));
        let host_nqn = data.host_nqn.clone();
        let proved = !discovery && !proof_asked;
        if proved {
            self.check_host_share(index, fields.queue_id, &host_nqn)?;
        }
        let cntlid = if fields.queue_id == 0 {
            self.connect_admin(index, &fields, data, discovery, proved)?
        } else {
            self.connect_io(index, &fields, data, discovery)?
        };
        let access = self.access_by(index);
        if let (0, Some(controller)) = (fields.queue_id, self.controllers.get_mut(&cntlid)) {
            (controller.process, controller.proved) = (process, proved);
            controller.access.state = access;
            if let Some(queues_max) = queues_max {
                (controller.queues_max, controller.queues_granted) = (queues_max, queues_max);
            }
        }
        let flow_control = fields.attributes & wire::CONNECT_NO_FLOW_CONTROL == 0;
        let Some(hre) = self.backend.open_hre(process) else {
            // No room for another endpoint in the device.
            if fields.queue_id == 0 {
                self.controllers.remove(&cntlid);
            } else if let Some(controller) = self.controllers.get_mut(&cntlid) {
                controller.io[usize::from(fields.queue_id) - 1] = None;
            }
            return Err(Failure::retryable(Status::CONNECT_CONTROLLER_BUSY));
        };
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return Ok(()) };
        queue.association = Some(Association {
            controller: cntlid,
            qid: fields.queue_id,
            hre,
            entries: fields.queue_size + 1,
            // SQHD FFFFh in Connect's completion says that flow control is off, as the host asked.
            head: if flow_control { 0 } else { 0xffff },
            flow_control,
            authenticated: !proof_asked,
        });
        if proved {
            self.enter_account(index, &host_nqn);
        }
        let mut result = u64::from(cntlid);
        if fields.queue_id == 0 {
            self.adopt_channel(index, cntlid);
        }
        if let Some(credentials) = credentials {
            let concatenation = self.concatenation(index, &host_nqn, fields.queue_id, process.is_some());
            if proof_asked {
                result |= u64::from(CONNECT_AUTHENTICATION_REQUIRED);
            }
            if concatenation == Concatenation::Required {
                result |= u64::from(CONNECT_SECURE_CHANNEL_REQUIRED);
            }
            self.expect_authentication(index, credentials, concatenation, by_channel);
        }
        self.refresh_active_of(cntlid);
        tracing::debug!(controller = cntlid, queue = fields.queue_id, entries = fields.queue_size + 1, "connected");
        if let Some(place) = self.begin(index, entry) {
            self.complete(index, place, Status::SUCCESS, result, None);
        }
        Ok(())
    }

    fn connect_admin(
        &mut self,
        index: u16,
        fields: &ConnectCommand,
        data: ConnectData,
        discovery: bool,
        proved: bool,
    ) -> Result<u16, Failure> {
        // The dynamic controller model (NVMe Base 6.3): no other value of CNTLID is there to be asked for.
        if data.controller_id != wire::CONTROLLER_DYNAMIC {
            return Err(invalid(connect_offset::CNTLID, true));
        }
        if !proved {
            self.make_way_for_unproved();
        }
        let cntlid = self.allocate_cntlid().ok_or(Failure::retryable(Status::CONNECT_CONTROLLER_BUSY))?;
        let features = Features::new(self.backend.volatile_write_cache(), rounded_keep_alive_ms(fields.keep_alive_ms));
        tracing::info!(controller = cntlid, discovery, host = %data.host_nqn, keep_alive_ms = fields.keep_alive_ms, "controller made");
        let controller = Controller::new(cntlid, discovery, data.host_id, data.host_nqn, index, features, self.now_ns);
        if let Some(deadline) = controller.keep_alive_deadline_ns() {
            self.set_timer(deadline);
        }
        self.controllers.insert(cntlid, controller);
        Ok(cntlid)
    }

    fn connect_io(
        &mut self,
        index: u16,
        fields: &ConnectCommand,
        data: ConnectData,
        discovery: bool,
    ) -> Result<u16, Failure> {
        let cntlid = data.controller_id;
        let Some(controller) = self.controllers.get_mut(&cntlid).filter(|one| one.discovery == discovery) else {
            return Err(invalid(connect_offset::CNTLID, true));
        };
        // By its name alone: some hosts (truenas_pynvmeof_client) make up a host identifier for each queue, which SPDK and nvmet take.
        if controller.host_nqn != data.host_nqn {
            return Err(Failure::at(Status::CONNECT_INVALID_HOST, connect_offset::HOSTNQN));
        }
        // Discovery controllers have no I/O queues.
        if discovery || fields.queue_id > controller.queues_granted {
            return Err(invalid(connect_offset::QID, false));
        }
        if !controller.is_ready() || controller.status & (csts::SHST_MASK | csts::CFS) != 0 {
            return Err(Failure::of(Status::COMMAND_SEQUENCE_ERROR));
        }
        let place = &mut controller.io[usize::from(fields.queue_id) - 1];
        if place.is_some() {
            return Err(Failure::at(Status::COMMAND_SEQUENCE_ERROR, connect_offset::QID));
        }
        *place = Some(index);
        Ok(cntlid)
    }

    /// A fabrics command on a queue that is connected.
    #[cold]
    pub(crate) fn fabrics_command(
        &mut self,
        index: u16,
        association: Association,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        if matches!(entry.fabrics_type(), fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE) {
            return self.authentication_command(index, association, entry, capsule);
        }
        let outcome = match (entry.fabrics_type(), association.qid) {
            _ if command::check_flags(entry).is_err() => Err(Failure::field(1)),
            (fabrics::CONNECT, _) => Err(Failure::of(Status::COMMAND_SEQUENCE_ERROR)),
            (fabrics::PROPERTY_GET, 0) => self.property_get(association.controller, entry),
            (fabrics::PROPERTY_SET, 0) => {
                // Its completion comes before what it brings about.
                match self.property_check(entry) {
                    Ok(value) => {
                        if let Some(place) = self.begin(index, entry) {
                            self.complete(index, place, Status::SUCCESS, 0, None);
                            self.property_set(association.controller, value);
                        }
                        return Next::Taken;
                    }
                    Err(failure) => Err(failure),
                }
            }
            (fabrics::PROPERTY_GET | fabrics::PROPERTY_SET, _) => Err(Failure::at(Status::INVALID_OPCODE, 4)),
            // Disconnect is not supported (OFCS 0).
            _ => Err(Failure::at(Status::INVALID_OPCODE, 4)),
        };
        match outcome {
            Ok(result) => {
                if let Some(place) = self.begin(index, entry) {
                    self.complete(index, place, Status::SUCCESS, result, None);
                }
            }
            Err(failure) => self.fail(index, entry, failure),
        }
        Next::Taken
    }

    fn property_get(&mut self, cntlid: u16, entry: &SubmissionEntry) -> Result<u64, Failure> {
        let Some(controller) = self.controllers.get(&cntlid) else {
            return Err(Failure::of(Status::INTERNAL_ERROR));
        };
        let (size, offset) = (entry.cdw10() & 7, entry.cdw11());
        let (value, wanted) = match offset {
            property::CAP => (capabilities(controller.discovery).0, property::SIZE_8),
            property::VS => (u64::from(VERSION), property::SIZE_4),
            property::CC => (u64::from(controller.configuration.0), property::SIZE_4),
            property::CSTS => (u64::from(controller.status), property::SIZE_4),
            property::CRTO => (u64::from(CRTO), property::SIZE_4),
            // NSSR reads as 0 (NVMe Base 3.1.4.7), supported or not.
            property::NSSR => (0, property::SIZE_4),
            _ => return Err(Failure::field(44)),
        };
        if size != wanted { Err(Failure::field(40)) } else { Ok(value) }
    }

    fn property_check(&mut self, entry: &SubmissionEntry) -> Result<u32, Failure> {
        if entry.cdw11() != property::CC {
            return Err(Failure::field(44));
        }
        if entry.cdw10() & 7 != property::SIZE_4 {
            return Err(Failure::field(40));
        }
        Ok(entry.cdw12())
    }

    fn property_set(&mut self, cntlid: u16, value: u32) {
        let now_ns = self.now_ns;
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        let change = controller.configure(value);
        controller.keep_alive_ns = now_ns;
        let (admin, status) = (controller.admin, controller.status);
        tracing::debug!(
            controller = cntlid,
            cc = format_args!("{value:#x}"),
            csts = format_args!("{status:#x}"),
            "configured"
        );
        match change {
            ConfigurationChange::Nothing => {}
            ConfigurationChange::Reset => self.reset_controller(cntlid, admin),
            ConfigurationChange::Shutdown => self.shut_controller_down(cntlid, admin),
        }
        self.refresh_active_of(cntlid);
    }

    /// A controller level reset (NVMe Base 3.7.2): I/O queues and outstanding event requests go.
    fn reset_controller(&mut self, cntlid: u16, admin: u16) {
        let volatile_write_cache = self.backend.volatile_write_cache();
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        let io: Vec<u16> = controller.io.iter().flatten().copied().collect();
        controller.reset(volatile_write_cache);
        io.into_iter().for_each(|index| self.detach_and_close(index));
        if let Some(queue) = self.queues[usize::from(admin)].as_mut() {
            let places =
                (0..queue.slots.len() as u16).filter(|place| queue.slots[usize::from(*place)].state == State::Event);
            for place in places.collect::<Vec<_>>() {
                queue.free_slot(place);
            }
        }
    }

    /// A shutdown that the host announced (NVMe Base 3.6): everything completed is made durable first.
    fn shut_controller_down(&mut self, cntlid: u16, admin: u16) {
        let flush = self.backend.volatile_write_cache() && !self.block_apps().is_empty();
        let Some(queue) = self.queues[usize::from(admin)].as_mut() else { return };
        if !flush {
            return self.shutdown_complete(cntlid);
        }
        let place = queue.take_slot();
        let slot = &mut queue.slots[usize::from(place)];
        slot.internal = true;
        slot.state = State::Device;
        slot.bytes = 0;
        slot.buffer_bytes = 0;
        slot.opcode = opcode::nvm::FLUSH;
        self.flush_all(admin, place, Work::Shutdown);
        let pending = self.queues[usize::from(admin)]
            .as_ref()
            .is_some_and(|queue| queue.slots[usize::from(place)].state == State::Device);
        if !pending {
            self.shutdown_complete(cntlid);
        }
    }

    fn shutdown_complete(&mut self, cntlid: u16) {
        if let Some(controller) = self.controllers.get_mut(&cntlid) {
            controller.status = controller.status & !csts::SHST_MASK | csts::SHST_COMPLETE;
        }
    }

    /// The flush of a shutdown has ended.
    pub(crate) fn shutdown_flushed(&mut self, index: u16, place: u16, completion: HostCompletion) {
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let cntlid = queue.association.map(|association| association.controller);
        queue.free_slot(place);
        if completion.outcome != (willow_device::RpcOutcome::Answered { status: 0 }) {
            tracing::error!(controller = cntlid, outcome = ?completion.outcome, "the flush of a shutdown failed");
        }
        if let Some(cntlid) = cntlid {
            self.shutdown_complete(cntlid);
        }
    }
}
