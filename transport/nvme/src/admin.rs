//! Admin commands (NVMe Base 5).

mod namespaces;
mod utilization;

use std::collections::BTreeSet;

use willow_device::CommandSet;
use willow_device::region::REGION_ALIGNMENT_BYTES;
use willow_wire::spec::identify::cns;
use willow_wire::spec::log::GetLogPage;
use willow_wire::spec::opcode::admin;
use willow_wire::spec::{Status, SubmissionEntry, feature as fid, log};

use crate::access;
use crate::account::{UNPROVED, Use};
use crate::backend::Backend;
use crate::command::{self, Command, Data, NSID_ALL};
use crate::config::*;
use crate::features::{Features, Select, queues_value};
use crate::identify::{self, ControllerView, IDENTIFY_BYTES};
use crate::log_page::{self, SmartView};
use crate::queue::{Association, State};
use crate::status::Failure;
use crate::subsystem::{ConnectionId, Next, Subsystem};
use crate::ticket::is_for_users;

/// What an admin command that is done at once ends with.
struct Answer {
    result: u32,
    data: Option<Vec<u8>>,
    /// Length of the answer: zeroes follow the data.
    bytes: usize,
}

impl From<u32> for Answer {
    fn from(result: u32) -> Self {
        Answer { result, data: None, bytes: 0 }
    }
}

impl From<Vec<u8>> for Answer {
    fn from(data: Vec<u8>) -> Self {
        Answer { result: 0, bytes: data.len(), data: Some(data) }
    }
}

impl<B: Backend> Subsystem<B> {
    /// A command on an admin queue.
    #[cold]
    pub(crate) fn admin_command(
        &mut self,
        index: u16,
        association: Association,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        let cntlid = association.controller;
        let now_ns = self.now_ns;
        // What goes to the host needs a buffer before anything is done (bits 1:0 of an opcode: the direction).
        let answer_bytes = entry.sgl().length.min(self.answer_bytes_max(cntlid));
        if entry.opcode() & 3 == 2 {
            // A flood of long answers lets others have their turn.
            if self.answered_bytes > ANSWERS_A_TURN_BYTES_MAX || !self.has_room(index, answer_bytes) {
                return Next::Wait;
            }
            self.answered_bytes += answer_bytes as usize;
        }
        if entry.opcode() == admin::ABORT {
            // The same for walks through all requests of the device, which looks for the one that is to be aborted.
            if self.answered_bytes > ANSWERS_A_TURN_BYTES_MAX {
                return Next::Wait;
            }
            self.answered_bytes += ANSWERS_A_TURN_BYTES_MAX / usize::from(ABORTS_MAX);
        }
        let Some(controller) = self.controllers.get_mut(&cntlid) else {
            return Next::Violation("the controller is gone");
        };
        controller.commanded_ns = now_ns;
        let discovery = controller.discovery;
        // Commands that do not end at once, or need the queue.
        let outcome = if !controller.is_ready() {
            Err(Failure::of(Status::COMMAND_SEQUENCE_ERROR))
        } else if let Err(failure) = command::check_flags(entry) {
            Err(failure)
        } else if (controller.process.is_some() || controller.awaits_channel) && !is_for_users(entry.opcode()) {
            Err(Failure::at(Status::OPERATION_DENIED, 0))
        } else {
            match entry.opcode() {
                admin::IDENTIFY => match (self.identify(cntlid, entry), self.described_pairs(cntlid, entry)) {
                    (Ok(structure), Some(found)) => return self.identify_pairs(index, entry, found, structure),
                    (answer, _) => answer.map(Answer::from),
                },
                admin::GET_LOG_PAGE => self.get_log_page(index, cntlid, entry),
                admin::GET_FEATURES => self.get_features(cntlid, entry),
                admin::SET_FEATURES if entry.cdw10() as u8 == fid::RESERVATION_PERSISTENCE && !discovery => {
                    return self.set_persistence(index, cntlid, entry);
                }
                admin::SET_FEATURES => match self.set_features(cntlid, entry, capsule) {
                    Ok(answer) => answer.map(Answer::from),
                    Err(next) => return self.fetch_admin(index, entry, next),
                },
                admin::ASYNC_EVENT_REQUEST => {
                    if controller.event_requests.len() >= EVENT_REQUESTS_MAX {
                        Err(Failure::at(Status::ASYNC_EVENT_LIMIT_EXCEEDED, 0))
                    } else {
                        if let Some(place) = self.begin(index, entry) {
                            self.wait_for_event(index, place, cntlid);
                        }
                        return Next::Taken;
                    }
                }
                admin::KEEP_ALIVE => {
                    controller.keep_alive_ns = now_ns;
                    Ok(Answer::from(0))
                }
                admin::ABORT if !discovery => Ok(Answer::from(self.abort(index, cntlid, entry))),
                admin::NAMESPACE_MANAGEMENT if !discovery => {
                    return self.manage_namespace(index, cntlid, entry, capsule);
                }
                admin::NAMESPACE_ATTACHMENT if !discovery => return self.attach_namespace(index, entry, capsule),
                admin::FORMAT_NVM if !discovery => return self.format_namespace(index, cntlid, entry),
                willow_wire::spec::ticket::ISSUE if !discovery => self.issue_ticket(cntlid, entry).map(Answer::from),
                willow_wire::spec::ticket::WITHDRAW if !discovery => self.withdraw_tickets(entry).map(Answer::from),
                _ => Err(Failure::at(Status::INVALID_OPCODE, 0)),
            }
        };
        match outcome {
            Ok(answer) => {
                if let Some(place) = self.begin(index, entry) {
                    let payload = answer.data.map(|data| self.padded_payload_of(index, &data, answer.bytes));
                    self.complete(index, place, Status::SUCCESS, u64::from(answer.result), payload);
                }
            }
            Err(failure) => self.fail(index, entry, failure),
        }
        Next::Taken
    }

    fn wait_for_event(&mut self, index: u16, place: u16, cntlid: u16) {
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            queue.slots[usize::from(place)].state = State::Event;
        }
        if let Some(controller) = self.controllers.get_mut(&cntlid) {
            controller.event_requests.push_back(place);
        }
        self.tell_events(cntlid);
    }

    /// Admin commands with data from the host take them from the capsule: it holds all that any of them has (NVMe/TCP 3.3.2.2).
    /// A host that wants to be asked for them instead is asked, and the command done when they are there.
    fn fetch_admin(&mut self, index: u16, entry: &SubmissionEntry, bytes: u32) -> Next {
        let whole_bytes = bytes + ADMIN_ENTRY_BYTES as u32;
        let is_unproved = self.queues[usize::from(index)].as_ref().is_some_and(|queue| queue.account == UNPROVED);
        if is_unproved && !self.has_room(index, whole_bytes) {
            return Next::Wait;
        }
        let Some(place) = self.begin(index, entry) else { return Next::Taken };
        let (nsid, data) = (entry.nsid(), Data::Fetch(bytes));
        let command = Command { nsid, generation: 0, operation: command::Operation::Admin, data };
        match self.take_buffer(index, whole_bytes, Use::Fetch) {
            Some(buffer) => match self.start(index, place, entry.cid(), command, Some(*entry), buffer) {
                Some(fetch) => Next::Fetch(fetch),
                None => Next::Taken,
            },
            None => {
                if let Some(queue) = self.queues[usize::from(index)].as_mut() {
                    queue.slots[usize::from(place)].entry = Some(Box::new(*entry));
                }
                self.wait_for_buffer(index, place, command, Use::Fetch);
                Next::Taken
            }
        }
    }

    /// Longest answer of an admin command of a controller.
    fn answer_bytes_max(&self, cntlid: u16) -> u32 {
        match self.controllers.get(&cntlid) {
            Some(controller) if controller.discovery => 4096 << DISCOVERY_MDTS,
            _ => TRANSFER_BYTES_MAX,
        }
    }

    /// Does an admin command whose data have been fetched.
    pub(crate) fn execute_admin(&mut self, index: u16, place: u16, bytes: u32, buffer: Vec<u8>) {
        let mut raw = [0; 64];
        raw.copy_from_slice(&buffer[..ADMIN_ENTRY_BYTES]);
        let bytes = bytes as usize;
        // As if they had come in the capsule.
        let entry = SubmissionEntry(raw).with_sgl(willow_wire::spec::Sgl::in_capsule(0, bytes as u32));
        let data = buffer[ADMIN_ENTRY_BYTES..ADMIN_ENTRY_BYTES + bytes].to_vec();
        self.give(index, buffer);
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return };
        let Some(association) = queue.association else { return };
        // Its identifier and place go back; handing it in again takes them again, and does not move the head twice.
        let head = association.head;
        queue.free_slot(place);
        self.admin_command(index, association, &entry, &data);
        if let Some(queue) = self.queues[usize::from(index)].as_mut()
            && let Some(association) = queue.association.as_mut()
        {
            association.head = head;
        }
        if let Some(last) = self.completions.back_mut()
            && last.entry.cid == entry.cid()
        {
            last.entry.sqhd = head;
        }
    }

    // --- Identify ---

    fn identify(&mut self, cntlid: u16, entry: &SubmissionEntry) -> Result<Vec<u8>, Failure> {
        let Some(controller) = self.controllers.get(&cntlid) else { return Err(Failure::of(Status::INTERNAL_ERROR)) };
        command::data_to_host(entry, Some(IDENTIFY_BYTES as u64))?;
        let (structure, nsid, from) = (entry.cdw10() as u8, entry.nsid(), (entry.cdw10() >> 16) as u16);
        let csi = (entry.cdw11() >> 24) as u8;
        let active_entry = |nsid: u32| self.find_active(cntlid, nsid).map(|place| &self.namespaces[place]);
        let active = |nsid: u32| active_entry(nsid).map(|entry| &entry.namespace);
        let view = ControllerView {
            cntlid,
            discovery: controller.discovery,
            serial: &self.config.serial,
            start: self.backend.flash_state().start(self.config.start),
            nqn: if controller.discovery { NQN_DISCOVERY } else { &self.config.nqn },
            volatile_write_cache: self.backend.volatile_write_cache(),
            capacity: if structure == cns::CONTROLLER { self.backend.capacity() } else { (0, None) },
        };
        if controller.discovery {
            return match structure {
                cns::CONTROLLER => Ok(identify::controller(&view).to_vec()),
                cns::ACTIVE_NAMESPACES => Ok(identify::zeroes().to_vec()),
                _ => Err(Failure::field(40)),
            };
        }
        let set = match csi {
            0 => Some(CommandSet::Nvm),
            1 => Some(CommandSet::Kv),
            _ => None,
        };
        let checked_set = || set.ok_or(Failure::at(Status::INVALID_FIELD, 47));
        let valid = |nsid: u32| -> Result<(), Failure> {
            if nsid == 0 || nsid > NSID_MAX { Err(Failure::at(Status::INVALID_NAMESPACE, 4)) } else { Ok(()) }
        };
        // Lists begin behind NSID; the two highest numbers cannot be begun behind (NVMe Base 5.17.2.2).
        let list_start = || if nsid >= 0xffff_fffe { Err(Failure::at(Status::INVALID_NAMESPACE, 4)) } else { Ok(()) };
        let all_sets = controller.all_command_sets();
        let numbers = |only_active: bool, set: Option<CommandSet>| {
            let chosen = self.namespaces.iter().enumerate().filter(move |(place, one)| {
                (!only_active || controller.active.get(*place).copied().unwrap_or(false))
                    && set.is_none_or(|set| one.namespace.csi == set)
                    && (all_sets || one.namespace.csi == CommandSet::Nvm)
            });
            chosen.map(|(_, one)| one.namespace.nsid)
        };
        let out = match structure {
            cns::NAMESPACE if nsid == NSID_ALL => identify::namespace(None, false),
            cns::NAMESPACE => {
                valid(nsid)?;
                match active_entry(nsid) {
                    Some(entry) if entry.namespace.csi == CommandSet::Nvm => {
                        identify::namespace(Some(&entry.namespace), entry.private)
                    }
                    // Inactive, or of another command set: hosts that know only blocks (and SPDK, which asks before it
                    // knows the command set) take a size of 0 as a namespace that is not for them.
                    _ => identify::zeroes(),
                }
            }
            cns::CONTROLLER => identify::controller(&view),
            cns::ACTIVE_NAMESPACES => {
                list_start()?;
                identify::namespace_list(numbers(true, None), nsid)
            }
            cns::NAMESPACE_DESCRIPTORS => {
                valid(nsid)?;
                identify::descriptors(active(nsid).ok_or(Failure::field(4))?)
            }
            cns::CSI_NAMESPACE => {
                let set = checked_set()?;
                valid(nsid)?;
                match active(nsid) {
                    Some(namespace) if namespace.csi != set => {
                        return Err(Failure::at(Status::INVALID_COMMAND_SET, 47));
                    }
                    Some(namespace) if set == CommandSet::Kv => identify::kv_namespace(namespace),
                    // Protection information and its storage tags: there are none.
                    _ => identify::zeroes(),
                }
            }
            cns::CSI_CONTROLLER => match checked_set()? {
                CommandSet::Nvm => identify::nvm_controller(),
                CommandSet::Kv => identify::zeroes(),
            },
            cns::CSI_ACTIVE_NAMESPACES => {
                list_start()?;
                identify::namespace_list(numbers(true, Some(checked_set()?)), nsid)
            }
            cns::INDEPENDENT_NAMESPACE => {
                valid(nsid)?;
                active_entry(nsid).map_or_else(identify::zeroes, |entry| identify::independent_namespace(entry.private))
            }
            cns::ALLOCATED_NAMESPACES => {
                list_start()?;
                identify::namespace_list(numbers(false, None), nsid)
            }
            cns::CSI_ALLOCATED_NAMESPACES => {
                list_start()?;
                identify::namespace_list(numbers(false, Some(checked_set()?)), nsid)
            }
            cns::ALLOCATED_NAMESPACE => {
                valid(nsid)?;
                match self.find(nsid).map(|place| &self.namespaces[place]) {
                    Some(entry) if entry.namespace.csi == CommandSet::Nvm => {
                        identify::namespace(Some(&entry.namespace), entry.private)
                    }
                    _ => identify::zeroes(),
                }
            }
            cns::CSI_ALLOCATED_NAMESPACE => {
                let set = checked_set()?;
                valid(nsid)?;
                match self.find(nsid).map(|place| &self.namespaces[place].namespace) {
                    Some(namespace) if namespace.csi != set => {
                        return Err(Failure::at(Status::INVALID_COMMAND_SET, 47));
                    }
                    Some(namespace) if set == CommandSet::Kv => identify::kv_namespace(namespace),
                    _ => identify::zeroes(),
                }
            }
            // What the formats have in common with every namespace; the index says of which is asked (CNS specific identifier).
            cns::NAMESPACE_FORMAT if (entry.cdw11() as u16) < identify::FORMATS => identify::namespace(None, false),
            cns::CSI_NAMESPACE_FORMAT if set == Some(CommandSet::Nvm) && (entry.cdw11() as u16) < identify::FORMATS => {
                identify::zeroes()
            }
            cns::GRANULARITY => identify::granularity(REGION_ALIGNMENT_BYTES * u64::from(self.backend.spus())),
            cns::ATTACHED_CONTROLLERS => {
                valid(nsid)?;
                let place = self.find(nsid).ok_or(Failure::field(4))?;
                let attached = self.controllers.values().filter(|one| one.active.get(place).copied().unwrap_or(false));
                identify::controller_list(attached.map(|one| one.cntlid), from)
            }
            cns::CONTROLLERS => {
                let io = self.controllers.values().filter(|one| !one.discovery);
                identify::controller_list(io.map(|one| one.cntlid), from)
            }
            cns::COMMAND_SETS => {
                // CNTID FFFFh: the controller that processes the command.
                if from != 0xffff && from != cntlid {
                    return Err(Failure::field(42));
                }
                identify::command_sets()
            }
            _ => return Err(Failure::field(40)),
        };
        Ok(out.to_vec())
    }

    // --- Get Log Page ---

    fn get_log_page(&mut self, index: u16, cntlid: u16, entry: &SubmissionEntry) -> Result<Answer, Failure> {
        let wanted = GetLogPage::from_entry(entry);
        if wanted.bytes > u64::from(self.answer_bytes_max(cntlid)) {
            return Err(Failure::field(40));
        }
        command::data_to_host(entry, Some(wanted.bytes))?;
        // OT (CDW14 bit 23): index offsets are not supported by any page.
        if !wanted.offset.is_multiple_of(4) || entry.cdw14() & 1 << 23 != 0 {
            return Err(Failure::field(48));
        }
        let smart = match (wanted.page, entry.nsid()) {
            (log::SMART, 0 | NSID_ALL) => self.smart(None),
            (log::SMART, nsid) => self.smart(Some(self.find_active(cntlid, nsid).ok_or(Failure::field(4))?)),
            _ => SmartView::default(),
        };
        let local = self.queues[usize::from(index)].as_ref().and_then(|queue| queue.local);
        let Some(controller) = self.controllers.get_mut(&cntlid) else {
            return Err(Failure::of(Status::INTERNAL_ERROR));
        };
        let page = match (wanted.page, controller.discovery) {
            (log::SUPPORTED_PAGES, discovery) => log_page::supported(discovery),
            (log::ERROR, _) => controller.error_log.page(),
            (log::DISCOVERY, true) => {
                // What is true for this host: another may connect in the clear.
                let authentication = self.config.authentication.as_ref();
                let tls = authentication.is_some_and(|known| known.requires_tls(&controller.host_nqn));
                controller.discovery_told &= wanted.retain_event;
                log_page::discovery(&self.config, local.map(|local| local.ip()), tls, self.discovery_generation)
            }
            (_, true) => return Err(Failure::at(Status::INVALID_LOG_PAGE, 40)),
            (log::SMART, _) => log_page::smart(&smart),
            (log::FIRMWARE_SLOT, _) => log_page::firmware(),
            (log::CHANGED_NAMESPACES, _) => log_page::changed_namespaces(&controller.take_changed(wanted.retain_event)),
            (log::RESERVATION, _) => controller.notices.page(wanted.retain_event),
            (log::ANA, _) => {
                controller.access.told &= wanted.retain_event;
                let active = self.namespaces.iter().zip(&controller.active).filter(|(_, active)| **active);
                let numbers = active.map(|(entry, _)| entry.namespace.nsid);
                access::page(controller.access.changes, controller.access.state, wanted.specific, numbers)
            }
            (log::COMMAND_EFFECTS, _) => match wanted.csi {
                0 => log_page::effects(Some(CommandSet::Nvm)),
                1 => log_page::effects(Some(CommandSet::Kv)),
                _ => log_page::effects(None),
            },
            (log::FEATURE_EFFECTS, _) => {
                log_page::feature_effects(|feature| controller.features.is_supported(feature, false))
            }
            (log::MANAGEMENT_EFFECTS, _) => log_page::management_effects(),
            _ => return Err(Failure::at(Status::INVALID_LOG_PAGE, 40)),
        };
        if wanted.offset > page.len() as u64 {
            return Err(Failure::field(48));
        }
        let mut page = page;
        page.drain(..wanted.offset as usize);
        page.truncate(wanted.bytes as usize);
        self.tell_events(cntlid);
        Ok(Answer { result: 0, data: Some(page), bytes: wanted.bytes as usize })
    }

    // --- Features ---

    fn get_features(&mut self, cntlid: u16, entry: &SubmissionEntry) -> Result<Answer, Failure> {
        let now_ns = self.now_ns;
        let Some(controller) = self.controllers.get(&cntlid) else { return Err(Failure::of(Status::INTERNAL_ERROR)) };
        let feature = entry.cdw10() as u8;
        let select = match (entry.cdw10() >> 8) as u8 & 7 {
            fid::SELECT_CURRENT => Select::Current,
            // Nothing is saved, so that what is saved is the default (NVMe Base 5.15).
            fid::SELECT_DEFAULT | fid::SELECT_SAVED => Select::Default,
            fid::SELECT_SUPPORTED => Select::Capabilities,
            _ => return Err(Failure::field(41)),
        };
        if !controller.features.is_supported(feature, controller.discovery) {
            return Err(Failure::field(40));
        }
        let bytes = Features::data_bytes(feature);
        let has_data = bytes > 0 && select != Select::Capabilities;
        // EXHID: 128 bits, always so over fabrics; nvme-cli asks for 64 where it is not told otherwise.
        if has_data && feature == fid::HOST_IDENTIFIER && entry.cdw11() & 1 == 0 {
            return Err(Failure::field(44));
        }
        if has_data {
            command::data_to_host(entry, Some(u64::from(bytes)))?;
        }
        match (feature, select) {
            (fid::NUMBER_OF_QUEUES, Select::Current) => Ok(queues_value(controller.queues_granted).into()),
            (fid::NUMBER_OF_QUEUES, Select::Default) => Ok(queues_value(controller.queues_max).into()),
            (fid::RESERVATION_NOTIFICATION_MASK | fid::RESERVATION_PERSISTENCE, Select::Current | Select::Default) => {
                // Both are a namespace's.
                let nsid = entry.nsid();
                let place = self.find_active(cntlid, nsid).ok_or(Failure::field(4))?;
                let reservation = self.namespaces[place].reservation.as_ref();
                Ok(match (feature, select) {
                    (_, Select::Default) => 0,
                    (fid::RESERVATION_PERSISTENCE, _) => u32::from(reservation.is_some_and(|one| one.persistent)),
                    _ => controller.notices.mask(nsid),
                }
                .into())
            }
            (fid::HOST_IDENTIFIER, Select::Current | Select::Default) => Ok(controller.host_id.to_vec().into()),
            _ => {
                let (result, data) = controller.features.get(feature, entry.cdw11(), select, now_ns)?;
                Ok(Answer { result, bytes: data.as_ref().map_or(0, Vec::len), data })
            }
        }
    }

    /// The outer error: so many bytes of data are to be fetched first.
    fn set_features(
        &mut self,
        cntlid: u16,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Result<Result<u32, Failure>, u32> {
        let now_ns = self.now_ns;
        let Some(controller) = self.controllers.get_mut(&cntlid) else {
            return Ok(Err(Failure::of(Status::INTERNAL_ERROR)));
        };
        let feature = entry.cdw10() as u8;
        if !controller.features.is_supported(feature, controller.discovery) {
            return Ok(Err(Failure::field(40)));
        }
        if entry.cdw10() & fid::SAVE != 0 {
            return Ok(Err(Failure::at(Status::FEATURE_NOT_SAVEABLE, 43)));
        }
        if feature == fid::RESERVATION_NOTIFICATION_MASK {
            return Ok(self.set_notices(cntlid, entry));
        }
        // Only error recovery is a namespace's; it may be set for all (NVMe Base 5.27).
        if !matches!(entry.nsid(), 0 | NSID_ALL) && feature != fid::ERROR_RECOVERY {
            return Ok(Err(Failure::at(Status::FEATURE_NOT_NAMESPACE_SPECIFIC, 4)));
        }
        let bytes = Features::data_bytes(feature);
        let mut data: &[u8] = &[];
        if bytes > 0 {
            match command::data_from_host(entry, Some(u64::from(bytes)), capsule.len()) {
                Ok(Data::Capsule(at, bytes)) => data = &capsule[at as usize..(at + bytes) as usize],
                Ok(_) => return Err(bytes),
                Err(failure) => return Ok(Err(failure)),
            }
        }
        if feature == fid::NUMBER_OF_QUEUES {
            let (submission, completion) = (entry.cdw11() as u16, (entry.cdw11() >> 16) as u16);
            if submission == 0xffff || completion == 0xffff {
                return Ok(Err(Failure::field(44)));
            }
            // NVMe Base 5.27.1.5: not after I/O queues were made.
            if controller.io.iter().any(Option::is_some) {
                return Ok(Err(Failure::of(Status::COMMAND_SEQUENCE_ERROR)));
            }
            controller.queues_granted = submission.min(completion).saturating_add(1).min(controller.queues_max);
            return Ok(Ok(queues_value(controller.queues_granted)));
        }
        let outcome = controller.features.set(feature, entry.cdw11(), data, now_ns);
        if feature == fid::KEEP_ALIVE_TIMER {
            controller.keep_alive_ns = now_ns;
            if let Some(deadline) = controller.keep_alive_deadline_ns() {
                self.set_timer(deadline);
            }
        }
        Ok(outcome)
    }

    // --- Abort ---

    /// Abort: DW0 bit 0 is 0 where the command was aborted (NVMe Base 5.1).
    fn abort(&mut self, admin_index: u16, cntlid: u16, entry: &SubmissionEntry) -> u32 {
        const NOT_ABORTED: u32 = 1;
        let (qid, cid) = (entry.cdw10() as u16, (entry.cdw10() >> 16) as u16);
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return NOT_ABORTED };
        let index = match qid {
            0 => admin_index,
            _ => match controller.io.get(usize::from(qid) - 1) {
                Some(Some(index)) => *index,
                _ => return NOT_ABORTED,
            },
        };
        let Some(queue) = self.queues[usize::from(index)].as_mut() else { return NOT_ABORTED };
        let (Some(place), Some(association)) = (queue.find(cid), queue.association) else { return NOT_ABORTED };
        match queue.slots[usize::from(place)].state {
            State::Device => {
                let tag = self.tag(index, place);
                u32::from(!self.backend.abort(association.hre, tag))
            }
            State::Waiting | State::Ready => {
                let connection = ConnectionId { index, generation: queue.generation };
                for ready in self.accounts.forget(queue.account, connection, Some(place)) {
                    self.give(index, ready.request.buffer);
                }
                self.complete(index, place, Status::ABORT_REQUESTED, 0, None);
                0
            }
            State::Parked => {
                queue.parked.retain(|other| *other != place);
                self.complete(index, place, Status::ABORT_REQUESTED, 0, None);
                0
            }
            State::Event => {
                controller.event_requests.retain(|other| *other != place);
                self.complete(index, place, Status::ABORT_REQUESTED, 0, None);
                0
            }
            State::Held => match self.forget_held_ready(&BTreeSet::from([(index, place)])).is_empty() {
                true => NOT_ABORTED,
                false => {
                    self.complete(index, place, Status::ABORT_REQUESTED, 0, None);
                    0
                }
            },
            State::Free | State::Fetching | State::Authenticating => NOT_ABORTED,
        }
    }
}
