//! The gate: the one way from an import to what it has SPU-OS do. What an app asks for is an [`Operation`], a value that says all of it, and
//! each goes through the same stages:
//! - **decoded**, where the import's arguments become the operation (`runtime/calls.rs`): what cannot be is refused there;
//! - **on behalf of whom**: the request, or the message, that it names has to be the calling app's own ([`Machine::behalf`]);
//! - **charged** to the run, with its place among what the app may move and wait for ([`charge`]);
//! - **begun**, once for each piece of it: what touches the SPU's bank needs a permit, and gets it from the rule of protection ([`permit`]);
//! - **told**: at once, or by one completion ([`wake`]), whatever it was.
//!
//! Invariants: an operation that is refused at a stage has left nothing behind; nothing but these files charges the meter, makes permits, uses a
//! bank for an app or tells an app that something has ended (`tests/tests/rooms.rs` checks that).

mod charge;
mod permit;
mod wake;

use super::abi;
use super::accelerator::checksum::Checksum;
use super::accelerator::compare::Compare;
use super::accelerator::keys::KeySearch;
use super::accelerator::literals::LiteralSearch;
use super::activity::Caller;
use super::dma::Dma;
use super::flash::FlashRead;
use super::meter::Fault;
use super::os::{LocalMemory, Machine};
use super::request::Receive;
use super::rpc::{Append, Draft};
use crate::hre::HreId;
pub(crate) use charge::Charged;
pub(crate) use permit::{MayRead, MayWrite};

/// What an app asks SPU-OS for. Pointers are addresses in its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// `request_info`.
    Info { token: u32, to: u64 },
    /// `receive_bytes`, `receive_bytes_at`.
    Receive(Receive),
    /// `respond`.
    Respond { token: u32, status: u32, result: u32 },
    /// `dma`, `dma_strided`.
    Dma(Dma),
    /// `dma` of what is there at once, or not at all.
    DmaNow(Dma),
    /// `compare`.
    Compare(Compare),
    /// `checksum`.
    Checksum(Checksum),
    /// `literals_load`.
    LoadLiterals { literals: u64, bytes: u32, flags: u32 },
    /// `literals_find`.
    FindLiterals(LiteralSearch),
    /// `literals_free`.
    FreeLiterals { set: i32 },
    /// `keys_find`.
    FindKey(KeySearch),
    /// `rpc_start`, `upcall_start`.
    Draft(Draft),
    /// `rpc_append`.
    Append(Append),
    /// `rpc_finish`.
    Post { handle: i32, wait: u32 },
    /// `subscribers`.
    Subscribers { kind: u8, after: HreId, to: u64, most: u32 },
    /// `app_number`.
    AppNumber { name: u64, bytes: u32 },
    /// `region`.
    Region { id: u32, bytes: u64, wait: u32 },
    /// `region_bytes`.
    RegionBytes { id: u32 },
    /// `region_free`.
    FreeRegion { id: u32, wait: u32 },
    /// `namespace`.
    Namespace { nsid: u32, to: u64 },
    /// `flush`.
    Flush { wait: u32 },
    /// `sleep`.
    Sleep { duration_ns: u64, wait: u32 },
    /// `cancel`.
    Cancel { token: u32, wait: u32 },
    /// `background`.
    Background { handler: u8, argument: u64 },
    /// `print`.
    Print { text: u64, bytes: u32 },
    /// `count`.
    Count { counter: u32, delta: i64 },
    /// An import of the flash port.
    Flash(FlashOperation),
}

/// What an FTL asks its SPU's flash for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FlashOperation {
    Geometry { to: u64 },
    BadBlocks { die: u32, to: u64, most: u32 },
    Read(FlashRead),
    Program { die: u32, pages: u64, count: u32, wait: u32 },
    Erase { die: u32, blocks: u64, count: u32, wait: u32 },
    ZeroPeer { peer: u32, offset: u64, bytes: u32 },
    Pause { wait: u32 },
    Minimum { numbers: u64, count: u32 },
}

/// On whose behalf an operation is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behalf {
    /// The originating endpoint's of the request, or of the message, that it names.
    Of(HreId),
    /// It names none: the app's own, with no right to anything of others.
    Own,
}

impl Machine {
    /// Carries out what a running app asks for, or begins it; what its import returns.
    #[inline(always)]
    pub fn ask<M: LocalMemory>(&mut self, caller: Caller, memory: &mut M, operation: Operation) -> Result<i64, Fault> {
        let Some(behalf) = self.behalf(caller, &operation) else { return Ok(abi::ERROR_ARGUMENT.into()) };
        let Some(charged) = self.charge(caller, memory, &operation)? else { return Ok(abi::ERROR_REFUSED.into()) };
        self.begin(caller, memory, (operation, behalf), charged)
    }

    /// A handler has left its answer in its request record: it is told as `respond` would.
    #[inline]
    pub fn answered(&mut self, caller: Caller, token: u32, status: u32, result: u32) {
        if self.activity(caller, token).is_some() {
            self.respond_to(caller.at(token), status, result);
        }
    }

    /// The same for what is asked for seldom: one piece of code for all of it.
    #[inline(never)]
    pub fn ask_seldom<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        operation: Operation,
    ) -> Result<i64, Fault> {
        self.ask(caller, memory, operation)
    }

    /// On whose behalf an operation is; `None` where it names what is not the calling app's.
    #[inline(always)]
    fn behalf(&mut self, caller: Caller, operation: &Operation) -> Option<Behalf> {
        let token = match operation {
            Operation::Respond { token, .. }
            | Operation::Receive(Receive { token, .. })
            | Operation::Dma(Dma { token, .. })
            | Operation::DmaNow(Dma { token, .. })
            | Operation::Compare(Compare { token, .. })
            | Operation::Checksum(Checksum { token, .. })
            | Operation::FindLiterals(LiteralSearch { token, .. })
            | Operation::FindKey(KeySearch { token, .. })
            | Operation::Draft(Draft { token, .. })
            | Operation::Cancel { token, .. } => *token,
            Operation::Append(Append { handle, .. }) | Operation::Post { handle, .. } => {
                return self.message(caller, *handle).map(|message| Behalf::Of(message.originating));
            }
            Operation::Info { .. }
            | Operation::LoadLiterals { .. }
            | Operation::FreeLiterals { .. }
            | Operation::Subscribers { .. }
            | Operation::AppNumber { .. }
            | Operation::Region { .. }
            | Operation::RegionBytes { .. }
            | Operation::FreeRegion { .. }
            | Operation::Namespace { .. }
            | Operation::Flush { .. }
            | Operation::Sleep { .. }
            | Operation::Background { .. }
            | Operation::Print { .. }
            | Operation::Count { .. }
            | Operation::Flash(_) => return Some(Behalf::Own),
        };
        self.activity(caller, token).map(|activity| Behalf::Of(activity.originating))
    }

    /// Begins what has been charged.
    #[inline(always)]
    fn begin<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (operation, behalf): (Operation, Behalf),
        charged: Charged,
    ) -> Result<i64, Fault> {
        Ok(match operation {
            Operation::Info { token, to } => self.request_info(caller, memory, token, to)?,
            Operation::Receive(receive) => self.receive(caller, memory, &receive, charged)?.into(),
            Operation::Respond { token, status, result } => {
                self.respond_to(caller.at(token), status, result);
                0
            }
            Operation::Dma(dma) => self.dma(caller, memory, (&dma, behalf), charged)?.into(),
            Operation::DmaNow(dma) => self.dma_now(caller, memory, (&dma, behalf), charged)?.into(),
            Operation::Compare(compare) => self.compare(caller, (&compare, behalf), charged).into(),
            Operation::Checksum(checksum) => self.checksum(caller, memory, (&checksum, behalf), charged)?.into(),
            Operation::LoadLiterals { literals, bytes, flags } => {
                self.literals_load(caller, memory.slice(literals, bytes as usize)?, flags, charged).into()
            }
            Operation::FindLiterals(search) => self.literals_find(caller, memory, (search, behalf), charged)?.into(),
            Operation::FindKey(search) => self.keys_find(caller, memory, (search, behalf), charged)?.into(),
            Operation::FreeLiterals { set } => self.literals_free(caller, set).into(),
            Operation::Draft(draft) => self.draft(caller, (draft, behalf), charged).into(),
            Operation::Append(append) => self.append(caller, memory, (append, behalf), charged)?.into(),
            Operation::Post { handle, wait } => self.finish(caller, handle, wait, charged).into(),
            Operation::Subscribers { kind, after, to, most } => {
                self.subscribers(caller, memory, (kind, after), (to, most))?.into()
            }
            Operation::AppNumber { name, bytes } => {
                let name = memory.slice(name, bytes as usize)?;
                let owner = self.app(caller.app).and_then(|app| app.owner);
                self.find_app_for(owner, name).map_or(abi::ERROR_NOT_FOUND.into(), i64::from)
            }
            Operation::Region { id, bytes, wait } => self.region(caller, (id, bytes), wait, charged)?,
            Operation::RegionBytes { id } => self.region_bytes(caller, id),
            Operation::FreeRegion { id, wait } => self.region_free(caller, id, wait, charged)?.into(),
            Operation::Namespace { nsid, to } => self.namespace_info(memory, nsid, to)?.into(),
            Operation::Flush { wait } => self.flush(caller, wait, charged).into(),
            Operation::Sleep { duration_ns, wait } => self.sleep(caller, duration_ns, wait, charged).into(),
            Operation::Cancel { token, wait } => self.cancel(caller, token, wait, charged).into(),
            Operation::Background { handler, argument } => self.background(caller, handler, argument, charged).into(),
            Operation::Print { text, bytes } => {
                self.print(caller, memory.slice(text, bytes as usize)?, charged);
                0
            }
            Operation::Count { counter, delta } => {
                self.count(caller, counter, delta);
                0
            }
            Operation::Flash(operation) => self.flash(caller, memory, operation, charged)?.into(),
        })
    }
}
