//! The admin commands Namespace Management and Namespace Attachment (NVMe Base 5).
//!
//! What always holds: a namespace is made and deleted by the control service, and shows on controllers only when that has answered.

use crate::backend::Backend;
use crate::bytes::{get16, get64};
use crate::command::{self, Data};
use crate::config::*;
use crate::identify::IDENTIFY_BYTES;
use crate::status::Failure;
use crate::subsystem::{Next, Subsystem};
use crate::work::Work;
use willow_device::{Arguments, HostCompletion, Rpc, RpcList, RpcOutcome};
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
        let Some(place) = self.begin(index, entry) else { return Next::Taken };
        let mut buffer = self.take_buffer_always(index, request.len());
        buffer[..request.len()].copy_from_slice(&request);
        if let Some(queue) = self.queues[usize::from(index)].as_mut() {
            queue.slots[usize::from(place)].nsid = nsid;
        }
        let handler = match work {
            Work::NamespaceCreate => control::CREATE_NAMESPACE,
            _ => control::DELETE_NAMESPACE,
        };
        let Some(arguments) = Arguments::new(&[]) else {
            self.give_up(index, place, Status::INTERNAL_ERROR, buffer);
            return Next::Taken;
        };
        let rpcs = RpcList::One(Rpc { app: control::CONTROL_APP, handler, spu: 0, arguments });
        self.submit(index, place, rpcs, buffer, request.len() as u32, 0, work);
        Next::Taken
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
                Ok(create_request(entry, data).map(|json| (json, Work::NamespaceCreate, 0)))
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
        let status = match control::ControlStatus::from_u32(status) {
            Some(control::ControlStatus::Success) => Status::SUCCESS,
            Some(control::ControlStatus::NoRoom) => Status::NAMESPACE_INSUFFICIENT_CAPACITY.with_do_not_retry(),
            Some(control::ControlStatus::NotFound) => Status::INVALID_NAMESPACE.with_do_not_retry(),
            Some(control::ControlStatus::Malformed) => Status::INVALID_FIELD.with_do_not_retry(),
            Some(control::ControlStatus::Busy) => Status::COMMAND_INTERRUPTED,
            _ => Status::INTERNAL_ERROR,
        };
        let mut result = 0;
        if status.is_success() && matches!(work, Work::NamespaceCreate) {
            result = u64::from(completion.result);
            // A namespace made this way is attached to nobody yet (NVMe Base 5.23).
            self.attached_hosts.insert(completion.result, Vec::new());
            self.refresh_active();
        }
        self.complete(index, place, status, result, None);
    }

    /// Namespace Attachment (NVMe Base 5.22). Attachment is by host: all controllers of the host whose controller is named
    /// have the namespace, also those it makes later, until the device restarts.
    pub(super) fn attach_namespace(
        &mut self,
        _cntlid: u16,
        entry: &SubmissionEntry,
        capsule: &[u8],
    ) -> Result<Result<u32, Failure>, u32> {
        let data = match command::data_from_host(entry, Some(IDENTIFY_BYTES as u64), capsule.len()) {
            Ok(Data::Capsule(at, bytes)) => &capsule[at as usize..(at + bytes) as usize],
            Ok(_) => return Err(IDENTIFY_BYTES as u32),
            Err(failure) => return Ok(Err(failure)),
        };
        Ok(self.attach(entry, data))
    }

    pub(super) fn attach(&mut self, entry: &SubmissionEntry, data: &[u8]) -> Result<u32, Failure> {
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
        let mut hosts: Vec<String> = Vec::new();
        let attach = match entry.cdw10() & 15 {
            0 => true,
            1 => false,
            _ => return Err(Failure::field(40)),
        };
        for number in 0..count {
            let cntlid = u16_at(data, 2 + number * 2);
            let Some(controller) = self.controllers.get(&cntlid).filter(|one| !one.discovery) else {
                return Err(Failure::of(Status::CONTROLLER_LIST_INVALID));
            };
            match (attach, controller.active.get(place).copied().unwrap_or(false)) {
                (true, true) => return Err(Failure::of(Status::NAMESPACE_ALREADY_ATTACHED)),
                (false, false) => return Err(Failure::of(Status::NAMESPACE_NOT_ATTACHED)),
                _ => hosts.push(controller.host_nqn.clone()),
            }
        }
        // Until now it was attached to all: from now on to those that are here.
        let present = self.controllers.values().filter(|one| !one.discovery).map(|one| one.host_nqn.clone());
        let list = self.attached_hosts.entry(nsid).or_insert_with(|| present.collect());
        list.retain(|host| !hosts.contains(host));
        if attach {
            list.extend(hosts.iter().cloned());
        }
        list.sort();
        list.dedup();
        self.refresh_active();
        let told: Vec<u16> =
            self.controllers.values().filter(|one| hosts.contains(&one.host_nqn)).map(|one| one.cntlid).collect();
        for cntlid in told {
            if let Some(controller) = self.controllers.get_mut(&cntlid) {
                controller.note_changed(nsid);
            }
            self.tell_events(cntlid);
        }
        Ok(0)
    }
}

/// The JSON that the control service makes a namespace of.
fn create_request(entry: &SubmissionEntry, data: &[u8]) -> Result<Vec<u8>, Failure> {
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
            control::NamespaceRequest { csi: control::CommandSet::Nvm, size_bytes, block_bytes: Some(block_bytes) }
        }
        1 => control::NamespaceRequest { csi: control::CommandSet::Kv, size_bytes: size, block_bytes: None },
        _ => return Err(Failure::at(Status::COMMAND_SET_NOT_SUPPORTED, 47)),
    };
    serde_json::to_vec(&request).map_err(|_| Failure::of(Status::INTERNAL_ERROR))
}
