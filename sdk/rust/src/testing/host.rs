//! The imports of one SPU of the mock device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;

use super::{Action, Shared, Upcall};
use crate::COUNTERS_MAX;
use willow_gate::decompress::{STATE_BYTES, State, WORK_MAX};
use willow_gate::keys::Layout;
use willow_gate::literals::SETS_MAX;
use willow_gate::{Behalf, Dma, Draft, HreId, Meter, Port, abi};

/// Power cuts tear writes at multiples of this.
const SECTOR_BYTES: usize = 512;

/// NV memory of an SPU: what is there, what is durable of it, and the writes between the two.
pub(super) struct Bank {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<(usize, Vec<u8>)>,
    /// Number of writes ever, and of those that are durable.
    pub(super) written: u64,
    flushed: u64,
}

impl Bank {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn write(&mut self, address: usize, from: &[u8]) {
        self.bytes[address..address + from.len()].copy_from_slice(from);
        self.unflushed.push((address, from.to_vec()));
        self.written += 1;
    }

    pub fn zero(&mut self, address: u64, bytes: u64) {
        self.write(address as usize, &vec![0; bytes as usize]);
        self.flush(u64::MAX);
    }

    /// The first `until` writes ever are durable.
    pub fn flush(&mut self, until: u64) {
        let count = until.min(self.written).saturating_sub(self.flushed);
        for (address, bytes) in self.unflushed.drain(..count as usize) {
            self.durable[address..address + bytes.len()].copy_from_slice(&bytes);
        }
        self.flushed += count;
    }

    /// `survives` says so for every sector of every write that was not flushed.
    pub fn cut_power(&mut self, mut survives: impl FnMut() -> bool) {
        for (address, bytes) in self.unflushed.drain(..) {
            let mut at = 0;
            while at < bytes.len() {
                let end = bytes.len().min(at + SECTOR_BYTES - (address + at) % SECTOR_BYTES);
                if survives() {
                    self.durable[address + at..address + end].copy_from_slice(&bytes[at..end]);
                }
                at = end;
            }
        }
        self.flushed = self.written;
        self.bytes.copy_from_slice(&self.durable);
    }
}

/// One segment of a DMA: where it begins at both ends.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub dma: Dma,
    pub from: u64,
    pub to: u64,
}

pub(super) enum Work {
    /// Segments, and why there are no more of them.
    Moves {
        moves: Vec<Move>,
        error: i32,
    },
    Compare {
        nv: u64,
        body: u64,
        bytes: usize,
    },
    Checksum {
        source: (Port, u64),
        bytes: usize,
        seed: u32,
    },
    Literals {
        source: (Port, u64),
        bytes: usize,
        set: LiteralSet,
        state: u32,
        to: u64,
        most: u32,
    },
    Keys {
        source: (Port, u64),
        layout: Layout,
        key: Vec<u8>,
    },
    MultiplyAdd(willow_gate::MultiplyAdd),
    Transform(willow_gate::Transform),
    Decompress(willow_gate::Decompress),
    Flush {
        until: u64,
    },
    Value(i64),
    Answer {
        result: i64,
        to: u64,
        reply: Vec<u8>,
    },
}

/// A set of literals.
#[derive(Clone)]
pub(super) struct LiteralSet {
    pub literals: Vec<Vec<u8>>,
    pub ignores_case: bool,
    pub separator: Option<u8>,
}

/// The mock's searches look at no more than this.
const MOCK_SEARCH_BYTES_MAX: usize = 1000;

impl LiteralSet {
    /// What a search writes: matches that begin first and of these the longest, byte by byte.
    fn find(&self, text: &[u8], state: u32, most: usize) -> Vec<u8> {
        let text = &text[..text.len().min(MOCK_SEARCH_BYTES_MAX)];
        let is_at = |literal: &[u8], at: usize| {
            text.get(at..at + literal.len()).is_some_and(|there| match self.ignores_case {
                true => there.eq_ignore_ascii_case(literal),
                false => there == literal,
            })
        };
        let line_end = |from: usize| self.separator.and_then(|end| text[from..].iter().position(|byte| *byte == end));
        let pass = |from: usize| line_end(from).map_or((text.len(), 1), |at| (from + at + 1, 0));
        let (mut at, mut state) = if state == 1 { pass(0) } else { (0, 0) };
        let mut found = Vec::new();
        while at < text.len() && (most == 0 || found.len() < most) {
            let there = self.literals.iter().enumerate().filter(|(_, literal)| is_at(literal, at));
            let Some((number, literal)) = there.max_by_key(|(number, literal)| (literal.len(), usize::MAX - number))
            else {
                at += 1;
                continue;
            };
            found.push([at, at + literal.len(), number]);
            at += literal.len();
            if self.separator.is_some() {
                (at, state) = pass(at - 1);
            }
        }
        let head = [found.len(), at, state as usize];
        let matches = if most == 0 { &[][..] } else { &found[..] };
        let words = head.iter().chain(matches.as_flattened());
        words.flat_map(|word| (*word as u32).to_le_bytes()).collect()
    }
}

/// An operation that completes later.
pub(super) struct Pending {
    token: Option<u32>,
    wait: u32,
    work: Work,
}

impl Pending {
    /// A value.
    pub fn value(wait: u32, value: i64) -> Pending {
        Pending { token: None, wait, work: Work::Value(value) }
    }

    /// The response to an RPC.
    pub fn answer(wait: u32, result: i64, to: u64, reply: Vec<u8>) -> Pending {
        Pending { token: None, wait, work: Work::Answer { result, to, reply } }
    }
}

/// A message that is put together.
pub(super) struct Rpc {
    pub draft: Draft,
    pub originating: HreId,
    pub body: Vec<u8>,
}

pub(super) struct SpuHost {
    pub(super) spu: u32,
    pub bank: Bank,
    pub broken: Range<u64>,
    pub serial: String,
    pub counters: [i64; COUNTERS_MAX as usize],
    pub(super) shared: Rc<RefCell<Shared>>,
    /// What the gate charges the run by.
    pub(super) meter: Meter,
    /// What its runs were charged.
    pub charged: u64,
    pub(super) checksum: u32,
    pub(super) literals: [Option<LiteralSet>; SETS_MAX],
    pub(super) rpcs: BTreeMap<i32, Rpc>,
    pub(super) next_handle: i32,
}

/// Local memory that a handler gave for an operation which is pending.
fn local<'a>(address: u64, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller of the import vouches for local addresses until the completion (`Host`), and this is used before that is told.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address as usize), bytes) }
}

impl SpuHost {
    pub fn new(spu: u32, bank_bytes: usize, shared: Rc<RefCell<Shared>>) -> SpuHost {
        SpuHost {
            spu,
            bank: Bank {
                bytes: vec![0; bank_bytes],
                durable: vec![0; bank_bytes],
                unflushed: Vec::new(),
                written: 0,
                flushed: 0,
            },
            broken: 0..0,
            serial: String::new(),
            counters: [0; COUNTERS_MAX as usize],
            shared,
            meter: Meter::default(),
            charged: 0,
            checksum: 0,
            literals: [const { None }; SETS_MAX],
            rpcs: BTreeMap::new(),
            next_handle: 1,
        }
    }

    /// The instance is gone.
    pub fn forget(&mut self) {
        self.rpcs.clear();
        self.literals.fill(None);
        self.ran();
    }

    /// A run has ended.
    pub fn ran(&mut self) {
        self.charged += self.meter.take().work;
    }

    /// Whether the app may use a range of the bank on somebody's behalf.
    pub(super) fn permit(&self, behalf: Behalf, address: u64, bytes: usize) -> Result<(), i32> {
        let (Behalf::Of(_), Some(end)) = (behalf, address.checked_add(bytes as u64)) else {
            return Err(abi::ERROR_PERMISSION);
        };
        let shared = self.shared.borrow();
        let within = |base: u64, length: u64| address >= base && end <= base + length;
        let permitted = shared.regions.iter().any(|region| region.id.is_some() && within(region.base, region.bytes))
            || shared.namespaces.values().any(|namespace| within(namespace.base, namespace.bank_bytes));
        if permitted { Ok(()) } else { Err(abi::ERROR_PERMISSION) }
    }

    /// Whether the medium is sound there.
    pub(super) fn medium(&self, address: u64, bytes: usize) -> Result<(), i32> {
        let is_broken = address < self.broken.end && self.broken.start < address + bytes as u64;
        if is_broken { Err(abi::ERROR_MEDIA) } else { Ok(()) }
    }

    fn within(address: u64, bytes: usize, room: Option<usize>) -> Result<(), i32> {
        let room = room.ok_or(abi::ERROR_ARGUMENT)?;
        let end = address.checked_add(bytes as u64);
        if end.is_some_and(|end| end <= room as u64) { Ok(()) } else { Err(abi::ERROR_RANGE) }
    }

    /// Whether a range lies within a request's body.
    pub(super) fn within_body(&self, token: u32, address: u64, bytes: usize) -> Result<(), i32> {
        Self::within(address, bytes, self.shared.borrow().requests.get(&token).map(|request| request.body.len()))
    }

    pub(super) fn within_reply(&self, token: u32, address: u64, bytes: usize) -> Result<(), i32> {
        Self::within(address, bytes, self.shared.borrow().requests.get(&token).map(|request| request.reply.len()))
    }

    /// Whether a segment can be moved, in the order in which SPU-OS asks: the permissions, the ends, the medium.
    pub(super) fn check_move(&self, behalf: Behalf, piece: &Move) -> Result<(), i32> {
        let Move { dma, from, to } = *piece;
        let bytes = dma.segment_bytes as usize;
        let ports = (dma.source.port, dma.destination.port);
        if ports.0 == Port::Nv {
            self.permit(behalf, from, bytes)?;
        }
        if ports.1 == Port::Nv {
            self.permit(behalf, to, bytes)?;
        }
        if ports == (Port::Nv, Port::Nv) && bytes > abi::BOUNCE_BYTES_MAX {
            return Err(abi::ERROR_ARGUMENT);
        }
        if ports.0 == Port::Network {
            self.within_body(dma.token, from, bytes)?;
        }
        if ports.1 == Port::Network {
            self.within_reply(dma.token, to, bytes)?;
        }
        if ports.0 == Port::Nv {
            self.medium(from, bytes)?;
        }
        if ports.1 == Port::Nv && ports.0 != Port::Nothing {
            self.medium(to, bytes)?;
        }
        Ok(())
    }

    pub(super) fn read(&self, token: u32, (port, address): (Port, u64), bytes: usize) -> Vec<u8> {
        let at = address as usize;
        match port {
            Port::Local => local(address, bytes).to_vec(),
            Port::Nv => self.bank.bytes[at..at + bytes].to_vec(),
            Port::Network => self.shared.borrow().requests[&token].body[at..at + bytes].to_vec(),
            Port::Zero | Port::Nothing => vec![0; bytes],
        }
    }

    pub(super) fn put(&mut self, token: u32, (port, address): (Port, u64), bytes: &[u8]) {
        let at = address as usize;
        match port {
            Port::Nv => self.bank.write(at, bytes),
            Port::Network => {
                let mut shared = self.shared.borrow_mut();
                let request = shared.requests.get_mut(&token).expect("checked when it was issued");
                request.reply[at..at + bytes.len()].copy_from_slice(bytes);
            }
            _ => local(address, bytes.len()).copy_from_slice(bytes),
        }
    }

    pub(super) fn carry_out(&mut self, token: u32, work: Work) -> i64 {
        match work {
            Work::Moves { moves, error } => {
                for Move { dma, from, to } in moves {
                    if dma.segment_bytes == 0 || dma.source.port == Port::Nothing {
                        continue;
                    }
                    let bytes = self.read(token, (dma.source.port, from), dma.segment_bytes as usize);
                    self.put(token, (dma.destination.port, to), &bytes);
                }
                error.into()
            }
            Work::Compare { nv, body, bytes } => {
                let same = self.read(token, (Port::Nv, nv), bytes) == self.read(token, (Port::Network, body), bytes);
                i64::from(!same)
            }
            Work::Checksum { source, bytes, seed } => crc32c(seed, &self.read(token, source, bytes)).into(),
            Work::Literals { source, bytes, set, state, to, most } => {
                let found = set.find(&self.read(token, source, bytes), state, most as usize);
                local(to, found.len()).copy_from_slice(&found);
                0
            }
            Work::Keys { source, layout, key } => {
                layout.place(&self.read(token, source, layout.span_bytes as usize), &key).result().into()
            }
            Work::MultiplyAdd(asked) => {
                let bytes = asked.row_bytes() as usize;
                let x = local(asked.x, bytes).to_vec();
                willow_gate::numbers::multiply_add(asked.number, asked.alpha, &x, local(asked.y, bytes));
                0
            }
            Work::Transform(transform) => {
                let bytes = transform.bytes().expect("sound") as usize;
                super::transform::transform(&transform, local(transform.data, bytes));
                0
            }
            Work::Decompress(asked) => {
                let record = local(asked.state, STATE_BYTES);
                let mut state = State::decode(record.first_chunk().expect("a record"));
                let input = local(asked.from, asked.bytes as usize).to_vec();
                state.decompress(&input, local(asked.to, asked.to_bytes as usize), WORK_MAX);
                record.copy_from_slice(&state.encode());
                0
            }
            Work::Flush { until } => {
                self.bank.flush(until);
                0
            }
            Work::Value(value) => value,
            Work::Answer { result, to, reply } => {
                local(to, reply.len()).copy_from_slice(&reply);
                result
            }
        }
    }

    /// Carries out what was pending; returns its wait and result.
    pub fn complete(&mut self, pending: Pending) -> (u32, i64) {
        let result = self.carry_out(pending.token.unwrap_or(0), pending.work);
        if let Some(token) = pending.token {
            self.shared.borrow_mut().ended(token);
        }
        (pending.wait, result)
    }

    /// Carries it out now, or later: then `None`. Later is where the seed has it so, or where the run has to make way for others.
    pub(super) fn issue(&mut self, token: Option<u32>, wait: u32, work: Work) -> Option<i64> {
        {
            let mut shared = self.shared.borrow_mut();
            // A flush and a look-up move nothing, and an error is told at once.
            let moves = match &work {
                Work::Flush { .. } => false,
                Work::Moves { moves, error } => {
                    *error == 0 && moves.first().is_none_or(|piece| piece.dma.source.port != Port::Nothing)
                }
                _ => true,
            };
            let makes_way = moves && !self.meter.in_slice(0);
            if shared.pends() || makes_way {
                if let Some(request) = token.and_then(|token| shared.requests.get_mut(&token)) {
                    request.ending.begins();
                }
                let operation = Pending { token, wait, work };
                shared.actions.push(Action::Complete { spu: self.spu, operation });
                return None;
            }
        }
        Some(self.carry_out(token.unwrap_or(0), work))
    }

    /// Completes a wait later with a value.
    pub(super) fn later(&mut self, wait: u32, value: i64) {
        let operation = Pending::value(wait, value);
        self.shared.borrow_mut().actions.push(Action::Complete { spu: self.spu, operation });
    }

    /// Sends an upcall; its answer comes later, also where nobody takes it.
    pub(super) fn upcall(&mut self, (hre, handler): (HreId, u8), body: Vec<u8>, wait: u32) {
        let answer = self.shared.borrow_mut().answer_upcall.take();
        let Some(mut answer) = answer else { return self.later(wait, abi::ERROR_REFUSED.into()) };
        let response = answer(&Upcall { spu: self.spu, hre: hre.0, handler: handler.into(), body });
        self.shared.borrow_mut().answer_upcall = Some(answer);
        self.later(wait, i64::from(response.status) << 32 | i64::from(response.result));
    }
}

/// CRC-32C (Castagnoli), bit by bit: a mock may be slow.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let mut sum = !seed;
    for &byte in bytes {
        sum ^= u32::from(byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(sum & 1));
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn checksum_of_the_check_string() {
        assert_eq!(super::crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(super::crc32c(super::crc32c(0, b"1234"), b"56789"), 0xe306_9283);
    }
}
