//! The imports of one SPU of the mock device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;

use super::{Action, Shared, Upcall};
use crate::sys::{NOT_NOW, PENDING, port};
use crate::{COUNTERS_MAX, Error, Response};

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

/// One piece of a DMA.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub source: (u32, u64),
    pub destination: (u32, u64),
    pub bytes: usize,
}

pub(super) enum Work {
    Moves(Vec<Move>),
    Compare { nv: u64, body: u64, bytes: usize },
    Checksum { source: (u32, u64), bytes: usize, seed: u32 },
    Literals { source: (u32, u64), bytes: usize, set: LiteralSet, state: u32, to: *mut u8, most: u32 },
    Keys { source: (u32, u64), keys: (usize, usize, usize, u32), key: Vec<u8> },
    Flush { until: u64 },
    Value(i64),
    Answer { result: i64, to: *mut u8, reply: Vec<u8> },
}

/// A set of literals.
#[derive(Clone)]
pub(super) struct LiteralSet {
    pub literals: Vec<Vec<u8>>,
    pub ignore_case: bool,
    pub lines: Option<u8>,
}

/// The mock's searches look at no more than this.
const MOCK_SEARCH_BYTES_MAX: usize = 1000;

impl LiteralSet {
    /// What a search writes: matches that begin first and of these the longest, byte by byte.
    fn find(&self, text: &[u8], state: u32, most: usize) -> Vec<u8> {
        let text = &text[..text.len().min(MOCK_SEARCH_BYTES_MAX)];
        let is_at = |literal: &[u8], at: usize| {
            text.get(at..at + literal.len()).is_some_and(|there| match self.ignore_case {
                true => there.eq_ignore_ascii_case(literal),
                false => there == literal,
            })
        };
        let line_end = |from: usize| self.lines.and_then(|end| text[from..].iter().position(|byte| *byte == end));
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
            if self.lines.is_some() {
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
    pub fn answer(wait: u32, result: i64, to: *mut u8, reply: Vec<u8>) -> Pending {
        Pending { token: None, wait, work: Work::Answer { result, to, reply } }
    }
}

pub(super) struct Rpc {
    /// Of an upcall to one that has subscribed.
    pub hre: Option<u32>,
    pub token: u32,
    pub destination: i32,
    pub handler: u32,
    pub body_bytes: u32,
    pub segments: Vec<(u32, u64, u32)>,
    pub reply: *mut u8,
    pub reply_bytes: u32,
}

pub(super) struct SpuHost {
    pub(super) spu: u32,
    pub bank: Bank,
    pub broken: Range<u64>,
    pub serial: String,
    pub counters: [i64; COUNTERS_MAX as usize],
    pub(super) shared: Rc<RefCell<Shared>>,
    pub(super) checksum: u32,
    pub(super) literals: BTreeMap<i32, LiteralSet>,
    pub(super) rpcs: BTreeMap<i32, Rpc>,
    pub(super) next_handle: i32,
}

pub(super) fn code(error: Error) -> i64 {
    error.code().into()
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
            checksum: 0,
            literals: BTreeMap::new(),
            rpcs: BTreeMap::new(),
            next_handle: 1,
        }
    }

    /// The instance is gone.
    pub fn forget(&mut self) {
        self.rpcs.clear();
        self.literals.clear();
    }

    /// Checks one end of an operation as SPU-OS does.
    pub(super) fn check(
        &self,
        token: u32,
        port_number: u32,
        address: u64,
        bytes: usize,
        sink: bool,
    ) -> Result<(), Error> {
        let end = address.checked_add(bytes as u64).ok_or(Error::Range)?;
        let shared = self.shared.borrow();
        let request = shared.requests.get(&token).ok_or(Error::Argument)?;
        match port_number {
            port::LOCAL => Ok(()),
            port::ZEROES | port::NOTHING if !sink => Ok(()),
            port::NETWORK => {
                let room = if sink { request.reply.len() } else { request.body.len() };
                if end <= room as u64 { Ok(()) } else { Err(Error::Range) }
            }
            port::NV => {
                if end > self.bank.bytes.len() as u64 {
                    return Err(Error::Range);
                }
                let within = |base: u64, length: u64| address >= base && end <= base + length;
                let permitted =
                    shared.regions.iter().any(|region| region.id.is_some() && within(region.base, region.bytes))
                        || shared.namespaces.values().any(|namespace| within(namespace.base, namespace.bank_bytes));
                if !permitted {
                    Err(Error::Permission)
                } else if address < self.broken.end && self.broken.start < end {
                    Err(Error::Media)
                } else {
                    Ok(())
                }
            }
            _ => Err(Error::Argument),
        }
    }

    fn read(&self, token: u32, (port_number, address): (u32, u64), bytes: usize) -> Vec<u8> {
        let at = address as usize;
        match port_number {
            // SAFETY: the caller of the import vouches for local addresses (`Host`), and waits.
            port::LOCAL => unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), bytes) }.to_vec(),
            port::NV => self.bank.bytes[at..at + bytes].to_vec(),
            port::NETWORK => self.shared.borrow().requests[&token].body[at..at + bytes].to_vec(),
            _ => vec![0; bytes],
        }
    }

    fn carry_out(&mut self, token: u32, work: Work) -> i64 {
        match work {
            Work::Moves(moves) => {
                for piece in moves {
                    if piece.bytes == 0 || piece.source.0 == port::NOTHING {
                        continue;
                    }
                    let bytes = self.read(token, piece.source, piece.bytes);
                    let at = piece.destination.1 as usize;
                    match piece.destination.0 {
                        port::NV => self.bank.write(at, &bytes),
                        port::NETWORK => {
                            let mut shared = self.shared.borrow_mut();
                            let request = shared.requests.get_mut(&token).expect("checked when it was issued");
                            request.reply[at..at + bytes.len()].copy_from_slice(&bytes);
                        }
                        _ => {
                            let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
                            // SAFETY: as in `read`, and nobody else uses it meanwhile.
                            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                        }
                    }
                }
                0
            }
            Work::Compare { nv, body, bytes } => {
                let same = self.read(token, (port::NV, nv), bytes) == self.read(token, (port::NETWORK, body), bytes);
                i64::from(!same)
            }
            Work::Checksum { source, bytes, seed } => crc32c(seed, &self.read(token, source, bytes)).into(),
            Work::Literals { source, bytes, set, state, to, most } => {
                let found = set.find(&self.read(token, source, bytes), state, most as usize);
                // SAFETY: the caller of the import vouches for its room until now.
                unsafe { to.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
                0
            }
            Work::Keys { source, keys: (key_bytes, stride, count, order), key } => {
                let bytes = self.read(token, source, if count == 0 { 0 } else { (count - 1) * stride + key_bytes });
                let at = |index: &usize| &bytes[index * stride..][..key_bytes];
                let index = match order {
                    0 => (0..count).filter(|index| at(index) < &key[..]).count(),
                    _ => (0..count).find(|index| at(index) == key).unwrap_or(count),
                };
                let equal = index < count && at(&index) == key;
                (2 + 2 * index + usize::from(equal)) as i64
            }
            Work::Flush { until } => {
                self.bank.flush(until);
                0
            }
            Work::Value(value) => value,
            Work::Answer { result, to, reply } => {
                if !reply.is_empty() {
                    // SAFETY: the sender vouches for its reply buffer until now.
                    unsafe { to.copy_from_nonoverlapping(reply.as_ptr(), reply.len()) };
                }
                result
            }
        }
    }

    /// Carries out what was pending; returns its wait and result.
    pub fn complete(&mut self, pending: Pending) -> (u32, i64) {
        let result = self.carry_out(pending.token.unwrap_or(0), pending.work);
        if let Some(token) = pending.token {
            let mut shared = self.shared.borrow_mut();
            if let Some(request) = shared.requests.get_mut(&token) {
                request.operations -= 1;
                if request.operations == 0 && request.response.is_some() {
                    shared.actions.push(Action::Respond { token });
                }
            }
        }
        (pending.wait, result)
    }

    /// Carries it out now, or later: then `None`.
    pub(super) fn issue(&mut self, token: Option<u32>, wait: u32, work: Work) -> Option<i64> {
        {
            let mut shared = self.shared.borrow_mut();
            if shared.pends() {
                if let Some(request) = token.and_then(|token| shared.requests.get_mut(&token)) {
                    request.operations += 1;
                }
                let operation = Pending { token, wait, work };
                shared.actions.push(Action::Complete { spu: self.spu, operation });
                return None;
            }
        }
        Some(self.carry_out(token.unwrap_or(0), work))
    }

    fn check_move(&self, token: u32, piece: &Move) -> Result<(), Error> {
        if piece.source.0 == port::NOTHING && piece.destination.0 != port::NV {
            return Err(Error::Argument);
        }
        self.check(token, piece.source.0, piece.source.1, piece.bytes, false)?;
        self.check(token, piece.destination.0, piece.destination.1, piece.bytes, true)
    }

    pub(super) fn move_all(&mut self, token: u32, wait: u32, moves: Vec<Move>) -> i32 {
        for piece in &moves {
            if let Err(error) = self.check_move(token, piece) {
                return error.code();
            }
        }
        match self.issue(Some(token), wait, Work::Moves(moves)) {
            Some(result) => result as i32,
            None => PENDING,
        }
    }

    /// A read of NV memory that is done at once or not at all.
    pub(super) fn move_now(&mut self, token: u32, piece: Move) -> i32 {
        if piece.source.0 != port::NV {
            return Error::Argument.code();
        }
        if let Err(error) = self.check_move(token, &piece) {
            return error.code();
        }
        if self.shared.borrow_mut().pends() {
            return NOT_NOW;
        }
        self.carry_out(token, Work::Moves(vec![piece])) as i32
    }

    pub(super) fn upcall(&mut self, rpc: &Rpc, hre: u32, body: Vec<u8>, wait: u32) -> i32 {
        let answer = self.shared.borrow_mut().answer_upcall.take();
        let Some(mut answer) = answer else { return Error::Refused.code() };
        let response: Response = answer(&Upcall { spu: self.spu, hre, handler: rpc.handler, body });
        let mut shared = self.shared.borrow_mut();
        shared.answer_upcall = Some(answer);
        let result = i64::from(response.status) << 32 | i64::from(response.result);
        let operation = Pending::answer(wait, result, rpc.reply, Vec::new());
        shared.actions.push(Action::Complete { spu: self.spu, operation });
        PENDING
    }

    pub(super) fn gather(&self, rpc: &Rpc) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        for &(port_number, address, bytes) in &rpc.segments {
            if port_number != port::LOCAL && port_number != port::NV {
                return Err(Error::Argument);
            }
            self.check(rpc.token, port_number, address, bytes as usize, false)?;
            body.extend(self.read(rpc.token, (port_number, address), bytes as usize));
        }
        if body.len() == rpc.body_bytes as usize { Ok(body) } else { Err(Error::Argument) }
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
