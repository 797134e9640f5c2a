//! Write Uncorrectable: blocks whose reads fail because a host said so, until they are written.
//!
//! What always holds:
//! - the set is a part of the metadata, so that it is durable before a host is told that it is, and changes whole or not at all;
//! - a mark is a whole logical block of a namespace; what writes a part of a block leaves the block's mark;
//! - a mark goes when what was written over it is durable, and whoever wrote is answered after that ([`crate::media::controller`]): a
//!   cut in between leaves the mark;
//! - marks of what is no namespace's any more are gone with it.

use super::change::{Change, Draft, Made, Refusal, refuse};
use super::core::Core;
use super::transaction::{Asker, Work};
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::media::store::Ticket;
use crate::namespace::{CommandSet, Namespace};
use crate::service::control::ControlStatus;
use crate::service::protection::{long, word};
use crate::spu::abi;

/// Most marked blocks of a namespace.
pub const MARKED_BLOCKS_MAX: u64 = 4096;
/// Most marked blocks of all namespaces.
pub const MARKED_BLOCKS_OF_ALL_MAX: u64 = 16384;

/// Bytes of a request: [`crate::service::control::MARK_UNCORRECTABLE`].
const REQUEST_BYTES: usize = 36;

/// Blocks of a namespace that are to be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkRequest {
    pub nsid: u32,
    /// Of the namespace that it had when it was asked.
    pub nguid: [u8; 16],
    /// First byte in the namespace.
    pub start: u64,
    pub bytes: u64,
}

impl MarkRequest {
    fn decode(body: &[u8]) -> Option<MarkRequest> {
        let body = body.get(..REQUEST_BYTES)?;
        let nguid = body.get(4..20)?.try_into().ok()?;
        Some(MarkRequest { nsid: word(body, 0)?, nguid, start: long(body, 20)?, bytes: long(body, 28)? })
    }
}

/// How many bytes of an SPU's share of a namespace lie before byte `at` of the namespace.
fn share_before(namespace: &Namespace, spus: u16, spu: u16, at: u64) -> u64 {
    let stripe = u64::from(namespace.stripe_bytes);
    let row = stripe * u64::from(spus);
    at / row * stripe + (at % row).saturating_sub(u64::from(spu) * stripe).min(stripe)
}

impl Draft {
    /// Marks blocks; past a bound nothing is.
    pub(super) fn mark_uncorrectable(&mut self, request: &MarkRequest) -> Result<Made, Refusal> {
        let MarkRequest { nsid, nguid, start, bytes } = *request;
        let spus = self.metadata.spus;
        let is_it = |namespace: &&Namespace| namespace.nsid == nsid && namespace.nguid == nguid;
        let Some(namespace) = self.metadata.namespaces.iter().find(is_it) else {
            return refuse(ControlStatus::NotFound, format!("there is no namespace {nsid}, or another one by now"));
        };
        let block_bytes = u64::from(namespace.block_bytes);
        let is_whole = start.is_multiple_of(block_bytes) && bytes.is_multiple_of(block_bytes) && bytes > 0;
        let is_within = start.checked_add(bytes).is_some_and(|end| end <= namespace.size_bytes);
        if namespace.csi != CommandSet::Nvm || !is_whole || !is_within {
            let text = format!("{bytes} bytes from byte {start} on are no blocks of block namespace {nsid}");
            return refuse(ControlStatus::Malformed, text);
        }
        let mut marks = self.metadata.uncorrectable.clone();
        for spu in 0..spus {
            let share = |at| share_before(namespace, spus, spu, at);
            let from = share(start);
            marks.add(spu, namespace.base + from, share(start + bytes) - from);
        }
        let blocks_of = |namespace: &Namespace| {
            let of_bank = |spu| marks.bytes_within(spu, namespace.base, namespace.bank_bytes);
            (0..spus).map(of_bank).sum::<u64>() / u64::from(namespace.block_bytes)
        };
        if blocks_of(namespace) > MARKED_BLOCKS_MAX {
            let text = format!("namespace {nsid} would have more than {MARKED_BLOCKS_MAX} blocks that cannot be read");
            return refuse(ControlStatus::NoRoom, text);
        }
        let block_namespaces = self.metadata.namespaces.iter().filter(|one| one.csi == CommandSet::Nvm);
        if block_namespaces.map(blocks_of).sum::<u64>() > MARKED_BLOCKS_OF_ALL_MAX {
            let text = format!("there would be more than {MARKED_BLOCKS_OF_ALL_MAX} blocks that cannot be read");
            return refuse(ControlStatus::NoRoom, text);
        }
        self.changed |= self.metadata.uncorrectable != marks;
        self.metadata.uncorrectable = marks;
        Ok(Made::GivenUp(Vec::new()))
    }

    /// A range of a bank was written, durably: the marks of blocks that lie within it go.
    pub(super) fn mend(&mut self, spu: u16, start: u64, bytes: u64) -> Made {
        let end = start.saturating_add(bytes);
        for namespace in &self.metadata.namespaces {
            let (base, limit) = (namespace.base, namespace.base + namespace.bank_bytes);
            let (from, to) = (start.max(base), end.min(limit));
            if from < to && namespace.csi == CommandSet::Nvm {
                let block_bytes = u64::from(namespace.block_bytes);
                let from = base + (from - base).next_multiple_of(block_bytes);
                let to = base + (to - base) / block_bytes * block_bytes;
                self.changed |= self.metadata.uncorrectable.remove(spu, from, to.saturating_sub(from));
            }
        }
        Made::Nothing
    }

    /// A range of all banks was given up.
    pub(super) fn forget_marks(&mut self, range: Option<(u64, u64)>) {
        let Some((base, bank_bytes)) = range else { return };
        for spu in 0..self.metadata.spus {
            self.metadata.uncorrectable.remove(spu, base, bank_bytes);
        }
    }
}

impl Core {
    /// A host has blocks marked. An app that writes after it has answered knows of it before the host does, so that nothing from before
    /// comes over the marks.
    pub(super) fn mark_uncorrectable(&mut self, token: Key, hre: HreId, body: &[u8]) {
        let Some(request) = MarkRequest::decode(body) else {
            let text =
                format!("a request to mark blocks has {REQUEST_BYTES} bytes: number, NGUID, first byte and bytes");
            return self.answer(token, hre, super::refuse(ControlStatus::Malformed, text));
        };
        self.change_namespace(token, hre, request.nsid, Change::MarkUncorrectable(request));
    }

    /// False where blocks were marked and are not any more: their app wrote there, when it was told, what had failed before, or a host did.
    #[cold]
    pub(super) fn marks_stand(&self, key: u32) -> bool {
        let Some(transaction) = self.service.transactions.get(&key) else { return true };
        let Change::MarkUncorrectable(request) = &transaction.change else { return true };
        let durable = &self.service.commits.durable;
        let is_it = |namespace: &&Namespace| namespace.nsid == request.nsid && namespace.nguid == request.nguid;
        durable.namespaces.iter().find(is_it).is_some_and(|namespace| {
            (0..durable.spus).all(|spu| {
                let share = |at| share_before(namespace, durable.spus, spu, at);
                let (from, to) = (share(request.start), share(request.start + request.bytes));
                durable.uncorrectable.bytes_within(spu, namespace.base + from, to - from) == to - from
            })
        })
    }

    /// Blocks were marked, durably, but their app has something from before that it may put there, or has put there, which takes the marks.
    #[cold]
    pub(super) fn marks_in_doubt(&mut self, key: u32) {
        let text =
            "the blocks were marked, but their app has something of before to write there, or wrote it".to_owned();
        self.finish(key, Err(Refusal { status: ControlStatus::MediaFailed, text, error: abi::ERROR_MEDIA }));
    }

    /// What an operation wrote over marks is durable: they go with the next commit.
    pub(super) fn mend(&mut self, ticket: Ticket) {
        let Some((bank, start, bytes)) = self.machine.media.written(ticket) else {
            debug_assert!(false, "an operation that wrote over marks ends by this");
            return;
        };
        let change = Change::Mend { spu: bank as u16, start, bytes };
        self.transact(Asker::Service, change, Work::Mending { ticket });
    }

    /// The set without those marks is saved, or could not be.
    pub(super) fn mended(&mut self, key: u32, ticket: Ticket, result: Result<Made, Refusal>) {
        self.machine.media.mended(ticket, result.is_ok());
        self.finish(key, result.map(|_| 0));
    }
}
