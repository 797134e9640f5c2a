//! The gate, where SPU-OS goes it: what `willow-gate` has decoded, and charged, is begun here; its crate documentation says which way an
//! operation takes. Of its stages, these files have what needs the device:
//! - **begun**, once for each piece of an operation: what touches the SPU's bank needs a permit, and gets it from the rule of protection
//!   ([`permit`]);
//! - **told**: at once, or by one completion ([`wake`]), whatever it was.
//!
//! Invariants: an operation that is refused at a stage has left nothing behind; nothing but the gate charges the meter, makes permits, uses a
//! bank for an app or tells an app that something has ended (`tests/tests/rooms.rs` checks that).

mod permit;
mod wake;

use super::abi;
use super::activity::Caller;
use super::meter::{Fault, Meter, OverBudget};
use super::os::{LocalMemory, Machine, planted};
use crate::hre::HreId;
use crate::request::AppNumber;
pub(crate) use permit::{MayRead, MayWrite};
pub(crate) use willow_gate::{Behalf, Charged};
use willow_gate::{Operation, Receive, SpuOs, Table};

impl Machine {
    /// A handler has left its answer in its request record: it is told as `respond` would.
    #[inline]
    pub fn answered(&mut self, caller: Caller, token: u32, status: u32, result: u32) {
        if self.activity(caller, token).is_some() {
            self.respond_to(caller.at(token), status, result);
        }
    }

    /// An import is called, by a run that may execute so many instructions more.
    #[inline]
    pub fn enter(&mut self, caller: Caller, instructions_left: u64) -> Result<(), OverBudget> {
        let left = if planted!(self, SkipsMeter) { u64::MAX } else { instructions_left };
        self.meter(caller).enter(left)
    }

    /// A run begins whose instructions nobody counts.
    #[inline]
    pub fn enter_unmetered(&mut self, caller: Caller) {
        self.meter(caller).allow(u64::MAX);
    }

    /// Charged since the run began.
    #[inline]
    pub fn charged(&self, caller: Caller) -> u64 {
        self.spus[usize::from(caller.spu)].meter.done()
    }
}

impl SpuOs for Machine {
    type Caller = Caller;

    #[inline(always)]
    fn app_of(caller: Caller) -> AppNumber {
        caller.app
    }

    #[inline(always)]
    fn spu_of(caller: Caller) -> u16 {
        caller.spu
    }

    #[inline(always)]
    fn spus(&self) -> u32 {
        self.spus.len() as u32
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn checksum_value(&self, caller: Caller) -> u32 {
        let resident = self.spus[usize::from(caller.spu)].residents.get(usize::from(caller.app));
        resident.map_or(0, |resident| resident.checksum_value)
    }

    #[inline(always)]
    fn request_of(&mut self, caller: Caller, token: u32) -> Option<HreId> {
        self.activity(caller, token).map(|activity| activity.originating)
    }

    #[inline(always)]
    fn message_of(&mut self, caller: Caller, handle: i32) -> Option<HreId> {
        self.message(caller, handle).map(|message| message.originating)
    }

    #[inline(always)]
    fn meter(&mut self, caller: Caller) -> &mut Meter {
        &mut self.spus[usize::from(caller.spu)].meter
    }

    #[cold]
    fn dma_budget_bytes(&self, caller: Caller) -> u64 {
        self.apps.get(usize::from(caller.app)).and_then(Option::as_ref).map_or(0, |app| app.dma_budget_bytes)
    }

    #[inline(always)]
    fn may_begin(&self, caller: Caller) -> bool {
        self.may_promise(caller)
    }

    fn body_left(&self, caller: Caller, receive: &Receive) -> u64 {
        let Some(activity) = self.activity_at(caller.at(receive.token)) else { return 0 };
        let begin = receive.offset.unwrap_or(activity.cursor);
        self.body_bytes(activity).saturating_sub(begin.into())
    }

    fn entries(&self, caller: Caller, table: Table) -> u64 {
        let entries = match table {
            Table::Waits { token } => self.cancel_entries(caller, token),
            Table::Subscriptions => self.bridge.subscriptions.of_app(caller.app),
            Table::Apps => self.apps.len(),
            Table::Namespaces => self.published.namespaces.len(),
            Table::Regions => self.published.regions.all().len(),
        };
        entries as u64
    }

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
            Operation::RemoteDma(dma) => self.remote_dma(caller, memory, (&dma, behalf), charged)?.into(),
            Operation::Compare(compare) => self.compare(caller, (&compare, behalf), charged).into(),
            Operation::Checksum(checksum) => self.checksum(caller, memory, (&checksum, behalf), charged)?.into(),
            Operation::LoadLiterals { literals, bytes, flags } => {
                self.literals_load(caller, memory.slice(literals, bytes as usize)?, flags, charged).into()
            }
            Operation::FindLiterals(search) => self.literals_find(caller, memory, (search, behalf), charged)?.into(),
            Operation::FindKey(search) => self.keys_find(caller, memory, (search, behalf), charged)?.into(),
            Operation::MultiplyAdd(asked) => self.multiply_add(caller, memory, asked, charged)?.into(),
            Operation::Transform(transform) => self.fft(caller, memory, transform, charged)?.into(),
            Operation::Decompress(asked) => self.decompress(caller, memory, asked, charged)?.into(),
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
