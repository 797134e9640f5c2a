//! NUSE of key-value namespaces (KV 4.1.5.1): what the pairs take is asked of the app, on all SPUs at once, before an Identify is answered.
//!
//! What always holds: an Identify is answered in any case. A device that has no place for the question has the host ask again. Where the app
//! does not say, because it is not there or the media failed, the namespace is told as full: never as emptier than it is.

use crate::backend::Backend;
use crate::bytes::{Put, get64};
use crate::io::arguments;
use crate::pairs::pair_status;
use crate::subsystem::{Next, Subsystem};
use crate::work::Work;
use key_value_host::Call;
use key_value_host::wire::Statistics;
use willow_device::{CommandSet, HostCompletion, Rpc, RpcList};
use willow_wire::spec::identify::{cns, kv_namespace};
use willow_wire::spec::{Status, SubmissionEntry};

impl<B: Backend> Subsystem<B> {
    /// The place of the key-value namespace that a good Identify describes; `None`: it describes something else.
    pub(super) fn described_pairs(&self, cntlid: u16, entry: &SubmissionEntry) -> Option<usize> {
        let found = match entry.cdw10() as u8 {
            cns::CSI_NAMESPACE => self.find_active(cntlid, entry.nsid()),
            cns::CSI_ALLOCATED_NAMESPACE => self.find(entry.nsid()),
            _ => None,
        }?;
        let is_discovery = self.controllers.get(&cntlid).is_none_or(|controller| controller.discovery);
        let is_pairs = self.namespaces[found].namespace.csi == CommandSet::Kv;
        (is_pairs && !is_discovery).then_some(found)
    }

    /// Asks the app of a namespace what its pairs take, and answers with this structure when it has said so.
    pub(super) fn identify_pairs(
        &mut self,
        index: u16,
        entry: &SubmissionEntry,
        found: usize,
        structure: Vec<u8>,
    ) -> Next {
        let Some(place) = self.begin(index, entry) else { return Next::Taken };
        let (nsid, spus) = (entry.nsid(), self.namespaces[found].placement.spus());
        let Some(app) = self.app_of(found) else {
            self.tell_utilization(index, place, structure, None);
            return Next::Taken;
        };
        let ask = |spu: u16| {
            let call = Call::statistics_at(nsid, spu, u32::from(spu) * Statistics::BYTES as u32);
            Rpc { app, handler: call.handler, spu, arguments: arguments(&call.arguments) }
        };
        let bytes = usize::from(spus) * Statistics::BYTES;
        let buffer = self.take_buffer_always(index, bytes);
        let rpcs = RpcList::Many((0..spus).map(ask).collect());
        self.submit(index, place, rpcs, buffer, 0, bytes as u32, Work::Utilization(structure));
        Next::Taken
    }

    /// The app has answered.
    pub(crate) fn utilization_answered(
        &mut self,
        index: u16,
        place: u16,
        structure: Vec<u8>,
        completion: HostCompletion,
    ) {
        let status = pair_status(completion.outcome);
        if status.is(Status::COMMAND_INTERRUPTED) {
            return self.give_up(index, place, status, completion.buffer);
        }
        let bytes = usize::from(self.backend.spus()) * Statistics::BYTES;
        let all =
            (status.is_success() && completion.reply_bytes as usize >= bytes).then(|| &completion.buffer[..bytes]);
        let used_bytes = all.map(|all| {
            let (all, _) = all.as_chunks();
            all.iter().map(|one| Statistics::decode(one).used_bytes).sum()
        });
        self.give(index, completion.buffer);
        self.tell_utilization(index, place, structure, used_bytes);
    }

    fn tell_utilization(&mut self, index: u16, place: u16, mut structure: Vec<u8>, used_bytes: Option<u64>) {
        let size_bytes = get64(&structure, kv_namespace::NSZE);
        structure[..].put64(kv_namespace::NUSE, used_bytes.unwrap_or(size_bytes).min(size_bytes));
        let payload = self.payload_of(index, &structure);
        self.complete(index, place, Status::SUCCESS, 0, Some(payload));
    }
}
