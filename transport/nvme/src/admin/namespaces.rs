//! The admin commands Namespace Management and Namespace Attachment (NVMe Base 5).
//!
//! What always holds: namespaces are made, attached and deleted by the control service, which keeps the one table of them; what a
//! command changed is durable and shows on controllers before the command is answered, and one that failed has changed nothing.

use crate::backend::Backend;
use crate::bytes::{get16, get64};
use crate::command::{self, Data};
use crate::config::*;
use crate::controller::Controller;
use crate::identify::IDENTIFY_BYTES;
use crate::status::Failure;
use crate::subsystem::{Next, Subsystem};
use crate::work::Work;
use willow_device::reservation::Access;
use willow_device::{Arguments, CommandSet, HostCompletion, Rpc, RpcList, RpcOutcome};
use willow_wire::bytes::u16_at;
use willow_wire::control;
use willow_wire::spec::{Status, SubmissionEntry};

impl<B: Backend> Subsystem<B> {
    pub(super) fn manage_namespace(
        &mut self,
        index: u16,
        cntlid: u16,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Next {
        let (request, work, nsid) = match self.namespace_request(cntlid, entry, capsule) {
            Ok(Ok(request)) => request,
            Ok(Err(failure)) => {
                self.fail(index, entry, failure);
                return Next::Taken;
            }
            Err(bytes) => return self.fetch_admin(index, entry, bytes),
        };
        let handler = match work {
            Work::NamespaceCreate => control::CREATE_NAMESPACE,
            _ => control::DELETE_NAMESPACE,
        };
        self.ask_control(index, entry, handler, &request, work, nsid);
        Next::Taken
    }

    /// Format NVM (NVMe Base 5.14): user data are gone whatever secure erase asks for (none or user data), since what the namespace had is zeroed.
    pub(super) fn format_namespace(&mut self, index: u16, cntlid: u16, entry: &SubmissionEntry) -> Next {
        match self.format_request(cntlid, entry) {
            Ok(request) => {
                self.ask_control(index, entry, control::FORMAT_NAMESPACE, &request, Work::NamespaceDelete, entry.nsid())
            }
            Err(failure) => self.fail(index, entry, failure),
        }
        Next::Taken
    }

    fn format_request(&self, cntlid: u16, entry: &SubmissionEntry) -> Result<Vec<u8>, Failure> {
        let (nsid, cdw10) = (entry.nsid(), entry.cdw10());
        if nsid == 0 || nsid > NSID_MAX {
            // FNA bit 3: each namespace by itself.
            return Err(Failure::at(Status::INVALID_NAMESPACE, 4));
        }
        let place = self.find_active(cntlid, nsid).ok_or(Failure::field(4))?;
        let (namespace, controller) = (&self.namespaces[place], self.controllers.get(&cntlid));
        // LBAF in bits 3:0 (and 13:12); no metadata, no protection information; SES in bits 11:9.
        let format = cdw10 & 15 | cdw10 >> 8 & 0x30;
        let block_bytes: u32 = match format {
            0 => 512,
            1 => 4096,
            _ => return Err(Failure::at(Status::INVALID_FORMAT, 40)),
        };
        if namespace.view.set != CommandSet::Nvm || cdw10 & 0x1f0 != 0 {
            return Err(Failure::at(Status::INVALID_FORMAT, 40));
        }
        if cdw10 >> 9 & 7 > 1 {
            return Err(Failure::field(41));
        }
        let is_kept = |controller: &Controller| {
            let reservation = namespace.reservation.as_ref();
            reservation.is_some_and(|one| !one.permits(&controller.host_id, Access::Write))
        };
        if controller.is_none_or(is_kept) {
            return Err(Failure::of(Status::RESERVATION_CONFLICT));
        }
        Ok([nsid.to_le_bytes(), block_bytes.to_le_bytes()].concat())
    }

    /// Begins a command that the control service does.
    fn ask_control(&mut self, index: u16, entry: &SubmissionEntry, handler: u8, request: &[u8], work: Work, nsid: u32) {
        let Some(place) = self.begin(index, entry) else { return };
        let mut buffer = self.take_buffer_always(index, request.len());
        buffer[..request.len()].copy_from_slice(request);
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            queue.slots[usize::from(place)].nsid = nsid;
        }
        let Some(arguments) = Arguments::new(&[]) else {
            return self.give_up(index, place, Status::INTERNAL_ERROR, buffer);
        };
        let rpcs = RpcList::One(Rpc { app: control::CONTROL_APP, handler, spu: 0, arguments });
        self.submit(index, place, rpcs, buffer, request.len() as u32, 0, work);
    }

    /// The control service's request for a Namespace Management command (NVMe Base 5.23).
    #[allow(clippy::type_complexity)]
    pub(super) fn namespace_request(
        &mut self,
        cntlid: u16,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Result<Result<(Vec<u8>, Work, u32), Failure>, u32> {
        match entry.cdw10() & 15 {
            0 => {
                let data = match command::data_from_host(entry, Some(IDENTIFY_BYTES as u64), capsule.len()) {
                    Ok(Data::Capsule(at, bytes)) => &capsule[at as usize..(at + bytes) as usize],
                    Ok(_) => return Err(IDENTIFY_BYTES as u32),
                    Err(failure) => return Ok(Err(failure)),
                };
                let (used_bytes, total_bytes) = self.backend.capacity();
                let left_bytes = total_bytes.map_or(u64::MAX, |total| total.saturating_sub(used_bytes));
                Ok(create_request(entry, data, left_bytes).map(|json| (json, Work::NamespaceCreate, 0)))
            }
            1 => {
                let nsid = entry.nsid();
                Ok(match self.find(nsid) {
                    Some(_) => Ok((nsid.to_le_bytes().to_vec(), Work::NamespaceDelete, nsid)),
                    None if nsid == 0 || nsid > NSID_MAX => {
                        tracing::debug!(controller = cntlid, nsid, "no such namespace to delete");
                        Err(Failure::at(Status::INVALID_NAMESPACE, 4))
                    }
                    None => Err(Failure::field(4)),
                })
            }
            _ => Ok(Err(Failure::field(40))),
        }
    }

    /// The control service has answered.
    pub(crate) fn namespace_managed(&mut self, index: u16, place: u16, work: Work, completion: HostCompletion) {
        self.give(index, completion.buffer);
        let RpcOutcome::Answered { status } = completion.outcome else {
            return self.complete(index, place, crate::status::of_outcome(completion.outcome), 0, None);
        };
        let is_attachment = matches!(work, Work::NamespaceAttach);
        let slot = self.queues[usize::from(index)].as_ref().map(|queue| &queue.slots[usize::from(place)]);
        let is_private = slot.and_then(|slot| self.find(slot.nsid)).is_some_and(|place| self.namespaces[place].private);
        let status = match control::ControlStatus::from_u32(status) {
            Some(control::ControlStatus::Success) => Status::SUCCESS,
            Some(control::ControlStatus::NoRoom) if is_attachment => {
                Status::NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED.with_do_not_retry()
            }
            Some(control::ControlStatus::Busy) if is_attachment && is_private => {
                Status::NAMESPACE_PRIVATE.with_do_not_retry()
            }
            Some(control::ControlStatus::NoRoom) => Status::NAMESPACE_INSUFFICIENT_CAPACITY.with_do_not_retry(),
            Some(control::ControlStatus::NotFound) => Status::INVALID_NAMESPACE.with_do_not_retry(),
            Some(control::ControlStatus::Malformed) => Status::INVALID_FIELD.with_do_not_retry(),
            Some(control::ControlStatus::Busy) => Status::COMMAND_INTERRUPTED,
            _ => Status::INTERNAL_ERROR,
        };
        let mut result = 0;
        if status.is_success() && matches!(work, Work::NamespaceCreate) {
            result = u64::from(completion.result);
        }
        self.complete(index, place, status, result, None);
    }

    /// Namespace Attachment (NVMe Base 5.22). Attachment is by host: all controllers of the host whose controller is named
    /// have the namespace, also those that it makes later, after restarts of the device too.
    pub(super) fn attach_namespace(&mut self, index: u16, entry: &SubmissionEntry, capsule: &[u8]) -> Next {
        let data = match command::data_from_host(entry, Some(IDENTIFY_BYTES as u64), capsule.len()) {
            Ok(Data::Capsule(at, bytes)) => &capsule[at as usize..(at + bytes) as usize],
            Ok(_) => return self.fetch_admin(index, entry, IDENTIFY_BYTES as u32),
            Err(failure) => {
                self.fail(index, entry, failure);
                return Next::Taken;
            }
        };
        match self.attach_request(entry, data) {
            Ok(request) => {
                self.ask_control(index, entry, control::ATTACH, &request, Work::NamespaceAttach, entry.nsid())
            }
            Err(failure) => self.fail(index, entry, failure),
        }
        Next::Taken
    }

    /// The control service's request for a Namespace Attachment command.
    fn attach_request(&self, entry: &SubmissionEntry, data: &[u8]) -> Result<Vec<u8>, Failure> {
        let nsid = entry.nsid();
        let Some(place) = self.find(nsid) else {
            return Err(if nsid == 0 || nsid > NSID_MAX {
                Failure::at(Status::INVALID_NAMESPACE, 4)
            } else {
                Failure::field(4)
            });
        };
        let count = usize::from(get16(data, 0));
        if count == 0 || count > IDENTIFY_BYTES / 2 - 1 {
            return Err(Failure::of(Status::CONTROLLER_LIST_INVALID));
        }
        let attach = match entry.cdw10() & 15 {
            0 => true,
            1 => false,
            _ => return Err(Failure::field(40)),
        };
        let mut hosts: Vec<String> = Vec::new();
        for number in 0..count {
            let cntlid = u16_at(data, 2 + number * 2);
            let Some(controller) = self.controllers.get(&cntlid).filter(|one| !one.discovery) else {
                return Err(Failure::of(Status::CONTROLLER_LIST_INVALID));
            };
            match (attach, self.is_attached(place, controller)) {
                (true, true) => return Err(Failure::of(Status::NAMESPACE_ALREADY_ATTACHED)),
                (false, false) => return Err(Failure::of(Status::NAMESPACE_NOT_ATTACHED)),
                _ => hosts.push(self.share_of(&controller.host_nqn).to_owned()),
            }
        }
        hosts.sort();
        hosts.dedup();
        // What was open to every host is from now on attached to those that are here.
        let of_subsystem = self.controllers.values().filter(|one| !one.discovery && one.proved);
        let mut present: Vec<String> = of_subsystem.map(|one| self.share_of(&one.host_nqn).to_owned()).collect();
        present.sort();
        present.dedup();
        let (attach, detach) = if attach { (hosts, Vec::new()) } else { (Vec::new(), hosts) };
        let request = control::AttachRequest { nsid, hosts: Some(present), attach, detach };
        serde_json::to_vec(&request).map_err(|_| Failure::of(Status::INTERNAL_ERROR))
    }

    /// Whether a controller's host has a namespace, shown to it or not (it may have asked for block namespaces alone).
    fn is_attached(&self, place: usize, controller: &Controller) -> bool {
        let host = self.share_of(&controller.host_nqn);
        self.namespaces[place].hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|one| one == host))
    }
}

/// The JSON that the control service makes a namespace of.
fn create_request(entry: &SubmissionEntry, data: &[u8], left_bytes: u64) -> Result<Vec<u8>, Failure> {
    // NMIC bit 0: it may be attached to several controllers. Nobody has it yet (NVMe Base 5.23).
    let (private, hosts) = (data[30] & 1 == 0, Some(Vec::new()));
    let (size, capacity) = (get64(data, 0), get64(data, 8));
    if size == 0 {
        return Err(Failure::of(Status::INVALID_FIELD));
    }
    let request = match (entry.cdw11() >> 24) as u8 {
        0 => {
            if size != capacity {
                return Err(Failure::of(Status::THIN_PROVISIONING_NOT_SUPPORTED));
            }
            let block_bytes: u32 = match data[26] & 15 {
                0 => 512,
                1 => 4096,
                _ => return Err(Failure::of(Status::INVALID_FORMAT)),
            };
            let size_bytes =
                size.checked_mul(u64::from(block_bytes)).ok_or(Failure::of(Status::NAMESPACE_INSUFFICIENT_CAPACITY))?;
            let (csi, block_bytes) = (control::CommandSet::Nvm, Some(block_bytes));
            control::NamespaceRequest { block_bytes, hosts, private, ..control::NamespaceRequest::new(csi, size_bytes) }
        }
        1 => {
            let (csi, size_bytes) = (control::CommandSet::Kv, size);
            control::NamespaceRequest { hosts, private, ..control::NamespaceRequest::new(csi, size_bytes) }
        }
        _ => return Err(Failure::at(Status::COMMAND_SET_NOT_SUPPORTED, 47)),
    };
    if request.size_bytes > left_bytes {
        return Err(Failure::of(Status::NAMESPACE_INSUFFICIENT_CAPACITY));
    }
    serde_json::to_vec(&request).map_err(|_| Failure::of(Status::INTERNAL_ERROR))
}
