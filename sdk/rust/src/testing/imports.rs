//! What the mock device does with operations that its gate has decoded and charged: that gate is the device's own (`willow-gate`), so that an
//! app is refused here what a drive refuses, and is charged what a drive charges.

use std::string::String;
use std::vec::Vec;

use super::host::{LiteralSet, Move, Rpc, SpuHost, Work};
use super::{PendingRequest, Region, Requester};
use crate::native::Host;
use crate::{KEY_BYTES_MAX, LITERAL_BYTES_MAX, LITERAL_SET_BYTES_MAX, LITERALS_MAX, MATCHES_MAX};
use crate::{REGION_ALIGNMENT_BYTES, RPC_BODY_BYTES_MAX, Response, SEARCH_BYTES_MAX};
use willow_gate::abi::{self, DONE, PENDING};
use willow_gate::decompress::{STATE_BYTES, State};
use willow_gate::literals::Written;
use willow_gate::native::{Faulted, NativeMemory};
use willow_gate::{
    AppNumber, Behalf, Charged, Dma, Draft, Fault, HreId, LocalMemory, Meter, Operation, Port, Receive, Receiver,
    SpuOs, Table,
};

// What the SDK tells apps is what the gate keeps them to.
const _: () = {
    use willow_gate::{keys, literals};
    assert!(RPC_BODY_BYTES_MAX == abi::MESSAGE_BYTES_MAX && KEY_BYTES_MAX as u32 == keys::KEY_BYTES_MAX);
    assert!(LITERAL_BYTES_MAX == literals::LITERAL_BYTES_MAX && LITERALS_MAX == literals::LITERALS_MAX);
    assert!(LITERAL_SET_BYTES_MAX == literals::SET_BYTES_MAX as usize && MATCHES_MAX as u32 == literals::FOUND_MAX);
    assert!(SEARCH_BYTES_MAX == literals::SEARCH_BYTES_MAX);
    use willow_gate::decompress::{INPUT_BYTES_MAX, ROOM_BYTES_MAX};
    assert!(crate::DECOMPRESS_INPUT_BYTES_MAX as u32 == INPUT_BYTES_MAX);
    assert!(crate::DECOMPRESS_ROOM_BYTES_MAX as u32 == ROOM_BYTES_MAX);
};

/// The app under test, and no other.
const APP: AppNumber = 0;
/// Bytes before a search's matches, and of each of them.
const MATCH_BYTES: usize = 12;

/// Who calls: the app under test, on an SPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    spu: u32,
}

impl SpuHost {
    /// Every import begins here, and is charged as any is in the sandbox.
    fn lent(&mut self) -> (Caller, NativeMemory, &mut SpuHost) {
        let budget = self.shared.borrow().options.work_budget;
        if self.meter.enter(budget).is_err() {
            self.faulted::<()>(Fault::OverBudget);
        }
        // SAFETY: handlers vouch for what they name, and wait until it is used no longer (contract of `Host`).
        (Caller { spu: self.spu }, unsafe { NativeMemory::new() }, self)
    }

    /// An app that a drive would end, ends.
    fn faulted<R: Faulted>(&self, fault: Fault) -> R {
        panic!("{fault}")
    }

    /// What is done at once: told at once, unless the run has to make way for others, or the seed has it pend.
    fn tell(&mut self, token: Option<u32>, wait: u32, work: Work, at_once: impl FnOnce(&mut Self, i64) -> i32) -> i32 {
        match self.issue(token, wait, work) {
            Some(result) => at_once(self, result),
            None => PENDING,
        }
    }

    fn info(&self, token: u32) -> [u32; 8] {
        let shared = self.shared.borrow();
        let Some(request) = shared.requests.get(&token) else { return [0; 8] };
        let (body_bytes, reply_bytes) = (request.body.len() as u32, request.reply.len() as u32);
        let PendingRequest { originating_hre, source, handler, argument_bytes, .. } = *request;
        [originating_hre, source, body_bytes, reply_bytes, handler, argument_bytes, 0, 0]
    }

    fn receive<M: LocalMemory>(&mut self, memory: &mut M, receive: &Receive) -> Result<i64, Fault> {
        let mut shared = self.shared.borrow_mut();
        let Some(request) = shared.requests.get_mut(&receive.token) else { return Ok(abi::ERROR_ARGUMENT.into()) };
        let begin = receive.offset.unwrap_or(request.received);
        let left = request.body.get(begin as usize..).unwrap_or_default();
        let count = left.len().min(receive.bytes as usize);
        memory.slice_mut(receive.to, count)?.copy_from_slice(&left[..count]);
        if receive.offset.is_none() {
            request.received += count as u32;
        }
        Ok(count as i64)
    }

    /// Moves the segments up to the first that cannot be.
    fn dma(&mut self, dma: &Dma, behalf: Behalf) -> i32 {
        let (mut moves, mut error) = (Vec::new(), 0);
        let (mut from, mut to) = (dma.source.address, dma.destination.address);
        for _ in 0..dma.segments {
            let piece = Move { dma: *dma, from, to };
            if let Err(number) = self.check_move(behalf, &piece) {
                error = number;
                break;
            }
            moves.push(piece);
            (from, to) = dma.after((from, to));
        }
        if moves.is_empty() && error != 0 {
            return error;
        }
        self.tell(Some(dma.token), dma.wait, Work::Moves { moves, error }, |_, result| result as i32)
    }

    /// A read of NV memory that is done at once or not at all.
    fn dma_now(&mut self, dma: &Dma, behalf: Behalf) -> i32 {
        let piece = Move { dma: *dma, from: dma.source.address, to: dma.destination.address };
        if let Err(error) = self.permit(behalf, piece.from, dma.segment_bytes as usize) {
            return error;
        }
        if !self.meter.in_slice(dma.segment_bytes.into()) || self.shared.borrow_mut().pends() {
            return abi::NOT_NOW;
        }
        if let Err(error) = self.check_move(behalf, &piece) {
            return error;
        }
        self.meter.moves(dma.segment_bytes.into());
        self.carry_out(dma.token, Work::Moves { moves: [piece].into(), error: 0 }) as i32
    }

    /// Whether an accelerator's operand is there.
    fn operand(&mut self, behalf: Behalf, token: u32, (port, address): (Port, u64), bytes: u32) -> Result<(), i32> {
        match port {
            Port::Local => Ok(()),
            Port::Network => self.within_body(token, address, bytes as usize),
            Port::Nv => {
                self.permit(behalf, address, bytes as usize)?;
                self.medium(address, bytes as usize)
            }
            Port::Zero | Port::Nothing => Err(abi::ERROR_ARGUMENT),
        }
    }

    fn load_literals(&mut self, literals: &[u8], flags: u32) -> i32 {
        let Some(place) = self.literals.iter().position(Option::is_none) else { return abi::ERROR_FULL };
        let Some(Written { literals, ignores_case, separator }) = Written::read(literals, flags) else {
            return abi::ERROR_ARGUMENT;
        };
        let literals = literals.into_iter().map(<[u8]>::to_vec).collect();
        self.literals[place] = Some(LiteralSet { literals, ignores_case, separator });
        place as i32 + 1
    }

    fn literals_of(&mut self, handle: i32) -> Option<&mut Option<LiteralSet>> {
        self.literals.get_mut(usize::try_from(handle).ok()?.checked_sub(1)?).filter(|set| set.is_some())
    }

    fn draft(&mut self, draft: &Draft, behalf: Behalf) -> i32 {
        let Behalf::Of(originating) = behalf else { return abi::ERROR_ARGUMENT };
        {
            let shared = self.shared.borrow();
            match draft.to {
                Receiver::Subscriber(hre) if !shared.subscribers.contains(&(hre.0, draft.handler.into())) => {
                    return abi::ERROR_PERMISSION;
                }
                Receiver::Spu(spu, _) if u32::from(spu) >= shared.options.spus => return abi::ERROR_REFUSED,
                _ => {}
            }
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.rpcs.insert(handle, Rpc { draft: *draft, originating, body: Vec::new() });
        handle
    }

    /// An error gives the handle back.
    fn append<M: LocalMemory>(
        &mut self,
        memory: &M,
        append: &willow_gate::Append,
        behalf: Behalf,
    ) -> Result<i32, Fault> {
        let bytes = append.bytes as usize;
        let Some(rpc) = self.rpcs.get(&append.handle) else { return Ok(abi::ERROR_ARGUMENT) };
        let fits = rpc.body.len() + bytes <= rpc.draft.body_bytes as usize;
        let piece = match append.port {
            _ if !fits => Err(abi::ERROR_ARGUMENT),
            Port::Local => Ok(memory.slice(append.address, bytes)?.to_vec()),
            Port::Nv => self
                .permit(behalf, append.address, bytes)
                .and_then(|()| self.medium(append.address, bytes))
                .map(|()| self.bank.bytes()[append.address as usize..][..bytes].to_vec()),
            Port::Network | Port::Zero | Port::Nothing => Err(abi::ERROR_ARGUMENT),
        };
        match piece {
            Ok(piece) => {
                if let Some(rpc) = self.rpcs.get_mut(&append.handle) {
                    rpc.body.extend(piece);
                }
                Ok(DONE)
            }
            Err(error) => {
                self.rpcs.remove(&append.handle);
                Ok(error)
            }
        }
    }

    fn post(&mut self, handle: i32, wait: u32) -> i32 {
        let Some(Rpc { draft, originating, body }) = self.rpcs.remove(&handle) else { return abi::ERROR_ARGUMENT };
        if body.len() != draft.body_bytes as usize {
            return abi::ERROR_ARGUMENT;
        }
        let hre = match draft.to {
            Receiver::Spu(spu, APP) if self.shared.borrow().handlers.contains(&draft.handler.into()) => {
                self.shared.borrow_mut().request(PendingRequest {
                    handler: draft.handler.into(),
                    source: self.spu,
                    reply: std::vec![0; draft.reply_bytes as usize],
                    requester: Requester::Handler { spu: self.spu, wait, reply: draft.reply_pointer },
                    ..PendingRequest::new(spu.into(), originating.0, body)
                });
                return PENDING;
            }
            Receiver::Spu(..) => {
                self.later(wait, abi::ERROR_REFUSED.into());
                return PENDING;
            }
            Receiver::Originating => originating,
            Receiver::Subscriber(hre) => hre,
        };
        self.upcall((hre, draft.handler), body, wait);
        PENDING
    }

    /// A region that exists is there at once; making one, or freeing it, is the control service's, which has its time.
    fn region(&mut self, id: u32, bytes: u64, wait: u32) -> Result<i64, Fault> {
        if let Some(region) = self.shared.borrow().regions.iter().find(|region| region.id == Some(id)) {
            return Ok(region.base as i64);
        }
        if bytes == 0 {
            return Ok(abi::ERROR_NOT_FOUND.into());
        }
        self.meter.charge_change()?;
        let value = {
            let mut shared = self.shared.borrow_mut();
            match shared.place(bytes) {
                Some(base) => {
                    let bytes = bytes.next_multiple_of(REGION_ALIGNMENT_BYTES);
                    shared.regions.push(Region { id: Some(id), base, bytes });
                    base as i64
                }
                None => abi::ERROR_FULL.into(),
            }
        };
        self.later(wait, value);
        Ok(abi::REGION_PENDING)
    }

    fn region_free(&mut self, id: u32, wait: u32) -> Result<i32, Fault> {
        {
            // Its place is free for others once all banks are zeroed, before the next thing happens.
            let mut shared = self.shared.borrow_mut();
            let super::Shared { regions, namespaces, .. } = &mut *shared;
            match regions.iter_mut().find(|region| region.id == Some(id)) {
                None => return Ok(abi::ERROR_NOT_FOUND),
                Some(region) if namespaces.values().any(|namespace| namespace.base == region.base) => {
                    return Ok(abi::ERROR_PERMISSION);
                }
                Some(region) => region.id = None,
            }
        }
        self.meter.charge_change()?;
        self.later(wait, 0);
        Ok(PENDING)
    }

    fn sleep(&mut self, duration_ns: u64, wait: u32) -> i32 {
        if duration_ns == 0 {
            self.later(wait, 0);
            return PENDING;
        }
        let mut shared = self.shared.borrow_mut();
        let until_ns = shared.time_ns.saturating_add(duration_ns);
        shared.sleeps_begun += 1;
        let order = shared.sleeps_begun;
        shared.sleeps.insert((until_ns, order), (self.spu, wait));
        PENDING
    }

    fn cancel(&mut self, wait: u32) -> i32 {
        let spu = self.spu;
        let found = {
            let mut shared = self.shared.borrow_mut();
            let sleeps = shared.sleeps.iter().find(|(_, of)| **of == (spu, wait)).map(|(key, _)| *key);
            let sleeps = sleeps.and_then(|key| shared.sleeps.remove(&key)).is_some();
            // A request of its own goes on, and its answer is nobody's.
            let of_it = |request: &&mut PendingRequest| matches!(request.requester, Requester::Handler { spu: of, wait: number, .. } if (of, number) == (spu, wait));
            sleeps
                || shared
                    .requests
                    .values_mut()
                    .find(of_it)
                    .map(|request| request.requester = Requester::Nobody)
                    .is_some()
        };
        if !found {
            return abi::GOES_ON;
        }
        self.later(wait, abi::ERROR_CANCELLED.into());
        DONE
    }

    fn namespace_info<M: LocalMemory>(&self, memory: &mut M, nsid: u32, to: u64) -> Result<i32, Fault> {
        let Some(found) = self.shared.borrow().namespaces.get(&nsid).copied() else { return Ok(abi::ERROR_NOT_FOUND) };
        let kinds = u64::from(found.block_bytes) << 32 | u64::from(found.command_set);
        let words = [found.base, found.bank_bytes, kinds, found.blocks];
        memory.slice_mut(to, 32)?.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        Ok(DONE)
    }
}

impl SpuOs for SpuHost {
    type Caller = Caller;

    fn app_of(_: Caller) -> AppNumber {
        APP
    }

    fn spu_of(caller: Caller) -> u16 {
        caller.spu as u16
    }

    fn spus(&self) -> u32 {
        self.shared.borrow().options.spus
    }

    fn now_ns(&self) -> u64 {
        self.shared.borrow().time_ns
    }

    fn checksum_value(&self, _: Caller) -> u32 {
        self.checksum
    }

    fn request_of(&mut self, _: Caller, token: u32) -> Option<HreId> {
        let shared = self.shared.borrow();
        let request = shared.requests.get(&token)?;
        (request.spu == self.spu && !request.ending.is_answered()).then_some(HreId(request.originating_hre))
    }

    fn message_of(&mut self, _: Caller, handle: i32) -> Option<HreId> {
        self.rpcs.get(&handle).map(|rpc| rpc.originating)
    }

    fn meter(&mut self, _: Caller) -> &mut Meter {
        &mut self.meter
    }

    fn dma_budget_bytes(&self, _: Caller) -> u64 {
        self.shared.borrow().options.dma_budget_bytes
    }

    fn may_begin(&self, _: Caller) -> bool {
        true
    }

    fn body_left(&self, _: Caller, receive: &Receive) -> u64 {
        self.shared.borrow().requests.get(&receive.token).map_or(0, |request| {
            let begin = receive.offset.unwrap_or(request.received);
            (request.body.len() as u64).saturating_sub(begin.into())
        })
    }

    fn entries(&self, _: Caller, table: Table) -> u64 {
        let shared = self.shared.borrow();
        let entries = match table {
            Table::Waits { .. } => shared.sleeps.len(),
            Table::Subscriptions => shared.subscribers.len(),
            Table::Apps => 1,
            Table::Namespaces => shared.namespaces.len(),
            Table::Regions => shared.regions.len(),
        };
        entries as u64
    }

    fn begin<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (operation, behalf): (Operation, Behalf),
        _: Charged,
    ) -> Result<i64, Fault> {
        Ok(match operation {
            Operation::Info { token, to } => {
                let words = if self.request_of(caller, token).is_some() { self.info(token) } else { [0; 8] };
                memory.slice_mut(to, 32)?.copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
                0
            }
            Operation::Receive(receive) => self.receive(memory, &receive)?,
            Operation::Respond { token, status, result } => {
                self.shared.borrow_mut().answer(token, Response { status, result });
                0
            }
            Operation::Dma(dma) => self.dma(&dma, behalf).into(),
            Operation::DmaNow(dma) => self.dma_now(&dma, behalf).into(),
            // The mock has the bank of the own SPU alone.
            Operation::RemoteDma(remote) => self.remote_dma(&remote, behalf).into(),
            Operation::Compare(compare) => {
                let willow_gate::Compare { token, address, body_offset, bytes, wait } = compare;
                let there = self
                    .operand(behalf, token, (Port::Nv, address), bytes)
                    .and_then(|()| self.within_body(token, body_offset, bytes as usize));
                let work = Work::Compare { nv: address, body: body_offset, bytes: bytes as usize };
                let at_once = |_: &mut Self, result| if result == 0 { DONE } else { abi::DIFFERS };
                there.map_or_else(i64::from, |()| self.tell(Some(token), wait, work, at_once).into())
            }
            Operation::Checksum(checksum) => {
                let willow_gate::Checksum { token, port, address, bytes, seed, wait } = checksum;
                let there = self.operand(behalf, token, (port, address), bytes);
                let work = Work::Checksum { source: (port, address), bytes: bytes as usize, seed };
                let at_once = |host: &mut Self, sum| {
                    host.checksum = sum as u32;
                    DONE
                };
                there.map_or_else(i64::from, |()| self.tell(Some(token), wait, work, at_once).into())
            }
            Operation::LoadLiterals { literals, bytes, flags } => {
                self.load_literals(memory.slice(literals, bytes as usize)?, flags).into()
            }
            Operation::FindLiterals(search) => {
                let willow_gate::LiteralSearch { token, set, port, address, bytes, state, to, most, wait } = search;
                let Some(set) = self.literals_of(set).and_then(|set| set.clone()) else {
                    return Ok(abi::ERROR_ARGUMENT.into());
                };
                memory.slice_mut(to, MATCH_BYTES * (1 + most as usize))?;
                let there = self.operand(behalf, token, (port, address), bytes);
                let work = Work::Literals { source: (port, address), bytes: bytes as usize, set, state, to, most };
                there.map_or_else(i64::from, |()| self.tell(Some(token), wait, work, |_, _| DONE).into())
            }
            Operation::FreeLiterals { set } => match self.literals_of(set) {
                Some(set) => {
                    *set = None;
                    DONE.into()
                }
                None => abi::ERROR_ARGUMENT.into(),
            },
            Operation::FindKey(search) => {
                let willow_gate::KeySearch { token, port, address, layout, key, wait } = search;
                let there = self.operand(behalf, token, (port, address), layout.span_bytes);
                let key = memory.slice(key, layout.key_bytes as usize)?.to_vec();
                let work = Work::Keys { source: (port, address), layout, key };
                there.map_or_else(i64::from, |()| self.tell(Some(token), wait, work, |_, place| place as i32).into())
            }
            Operation::MultiplyAdd(asked) => {
                memory.slice(asked.x, asked.row_bytes() as usize)?;
                memory.slice_mut(asked.y, asked.row_bytes() as usize)?;
                self.tell(Some(asked.token), asked.wait, Work::MultiplyAdd(asked), |_, _| DONE).into()
            }
            Operation::Transform(transform) => {
                memory.slice_mut(transform.data, transform.bytes().unwrap_or(0) as usize)?;
                self.tell(Some(transform.token), transform.wait, Work::Transform(transform), |_, _| DONE).into()
            }
            Operation::Decompress(asked) => {
                memory.slice(asked.from, asked.bytes as usize)?;
                memory.slice_mut(asked.to, asked.to_bytes as usize)?;
                let record = memory.slice_mut(asked.state, STATE_BYTES)?;
                match record.first_chunk().map(State::decode).filter(|state| state.is_sound(asked.to_bytes)) {
                    Some(_) => self.tell(Some(asked.token), asked.wait, Work::Decompress(asked), |_, _| DONE).into(),
                    None => abi::ERROR_ARGUMENT.into(),
                }
            }
            Operation::Draft(draft) => self.draft(&draft, behalf).into(),
            Operation::Append(append) => self.append(memory, &append, behalf)?.into(),
            Operation::Post { handle, wait } => self.post(handle, wait).into(),
            Operation::Subscribers { kind, after, to, most } => {
                let shared = self.shared.borrow();
                let behind = shared.subscribers.iter().filter(|(hre, of)| *of == u32::from(kind) && *hre > after.0);
                let ids: Vec<u8> = behind.take(most as usize).flat_map(|(hre, _)| hre.to_le_bytes()).collect();
                memory.slice_mut(to, ids.len())?.copy_from_slice(&ids);
                (ids.len() / 4) as i64
            }
            Operation::AppNumber { name, bytes } => {
                let is_own = memory.slice(name, bytes as usize)? == self.shared.borrow().app_name.as_bytes();
                if is_own { APP.into() } else { abi::ERROR_NOT_FOUND.into() }
            }
            Operation::Region { id, bytes, wait } => self.region(id, bytes, wait)?,
            Operation::RegionBytes { id } => {
                let shared = self.shared.borrow();
                let region = shared.regions.iter().find(|region| region.id == Some(id));
                region.map_or(abi::ERROR_NOT_FOUND.into(), |region| region.bytes as i64)
            }
            Operation::FreeRegion { id, wait } => self.region_free(id, wait)?.into(),
            Operation::Namespace { nsid, to } => self.namespace_info(memory, nsid, to)?.into(),
            Operation::Flush { wait } => {
                let until = self.bank.written;
                self.tell(None, wait, Work::Flush { until }, |_, _| DONE).into()
            }
            Operation::Sleep { duration_ns, wait } => self.sleep(duration_ns, wait).into(),
            Operation::Cancel { wait, .. } => self.cancel(wait).into(),
            Operation::Background { handler, .. } if !self.shared.borrow().handlers.contains(&handler.into()) => {
                abi::ERROR_ARGUMENT.into()
            }
            Operation::Background { handler, argument } => {
                self.shared.borrow_mut().request(PendingRequest {
                    handler: handler.into(),
                    source: self.spu,
                    argument_bytes: 8,
                    ..PendingRequest::new(self.spu, HreId::DEVICE.0, argument.to_le_bytes().into())
                });
                DONE.into()
            }
            Operation::Print { text, bytes } => {
                let text = memory.slice(text, bytes as usize)?;
                self.serial.push_str(&String::from_utf8_lossy(text));
                0
            }
            Operation::Count { counter, delta } => {
                if let Some(counter) = self.counters.get_mut(counter as usize) {
                    *counter = counter.wrapping_add(delta);
                }
                0
            }
            // The app under test serves no banks: the flash port is not for it.
            Operation::Flash(_) => abi::ERROR_PERMISSION.into(),
        })
    }
}

macro_rules! shims {
    ($($table:tt)*) => {
        willow_gate::native_imports! { impl Host, for SpuHost; $($table)* }
    };
}
willow_gate::imports!(shims);
