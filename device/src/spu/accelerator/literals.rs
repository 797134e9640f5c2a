//! The literals accelerator: finds any of a set of literals in bytes at a port, XSSD's fgrep for more than one pattern of eight bytes.
//!
//! An app loads sets into the accelerator of its SPU and searches with them; a search writes its matches to the app's memory. Natively
//! [`set`] does it; under a model the accelerator takes each byte that was looked at once.
//!
//! What always holds:
//! - a set belongs to the instance that has loaded it, and ends with it;
//! - sets of an app on an SPU are at most [`SETS_MAX`], and their automata together at most [`SETS_BYTES_MAX`];
//! - a search does bounded work ([`set::SEARCH_WORK_MAX`]) and says how far it got.

mod fingerprint;
pub(crate) mod set;

use self::set::{LiteralSet, Match, NoSet, Search};
use crate::interconnect::Transfer;
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::request::AppNumber;
use crate::spu::abi::{self, DONE};
use crate::spu::continuation::Pending;
use crate::spu::dma::Port;
use crate::spu::gate::{Behalf, Charged, MayRead};
use crate::spu::group::Waiter;
use crate::spu::meter::Fault;
use crate::spu::os::{Caller, LocalMemory, Machine, error_of};
use std::sync::Arc;
use willow_gate::literals::{LITERAL_BYTES_MAX, SETS_MAX};
use willow_gate::{LiteralSearch, SpuOs};

/// Most memory of the automata of an app's sets on an SPU.
pub const SETS_BYTES_MAX: u64 = 4 << 20;
/// NV memory is read in pieces that stay in the processor's cache until they are searched.
const PIECE_BYTES: usize = 32 << 10;
/// Bytes before the matches: u32 found, u32 looked at, u32 state.
const HEADER_BYTES: usize = 12;
/// Bytes of a match: u32 begin, u32 end, u32 literal.
const MATCH_BYTES: usize = 12;

/// The sets of an app on an SPU.
#[derive(Default)]
pub(in crate::spu) struct Sets {
    sets: Vec<Option<Arc<LiteralSet>>>,
    bytes: u64,
}

impl Sets {
    /// Memory of the automata.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn of(&self, handle: i32) -> Option<&Arc<LiteralSet>> {
        self.sets.get(usize::try_from(handle).ok()?.checked_sub(1)?)?.as_ref()
    }

    /// A place for another one.
    fn vacant(&mut self) -> Option<usize> {
        if let Some(place) = self.sets.iter().position(Option::is_none) {
            return Some(place);
        }
        (self.sets.len() < SETS_MAX).then(|| {
            self.sets.push(None);
            self.sets.len() - 1
        })
    }
}

/// What a search tells the app.
fn result(looked_at: usize, search: &Search) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + search.matches.len() * MATCH_BYTES);
    let mut put = |words: &[u32]| words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    put(&[search.found, looked_at as u32, search.passes_line.into()]);
    search.matches.iter().for_each(|Match { begin, end, literal }| put(&[*begin, *end, *literal]));
    bytes
}

impl Machine {
    /// `literals_load`: a set, by a handle.
    pub fn literals_load(&mut self, caller: Caller, literals: &[u8], flags: u32, _: Charged) -> i32 {
        let Some(resident) = self.spus[caller.spu as usize].residents.get_mut(caller.app as usize) else {
            return abi::ERROR_ARGUMENT;
        };
        let sets = &mut resident.literals;
        let Some(place) = sets.vacant() else { return abi::ERROR_FULL };
        let set = match LiteralSet::new(literals, flags, (SETS_BYTES_MAX - sets.bytes) as usize) {
            Ok(set) => set,
            Err(NoSet::Malformed) => return abi::ERROR_ARGUMENT,
            Err(NoSet::TooLarge) => return abi::ERROR_FULL,
        };
        sets.bytes += set.memory_bytes();
        sets.sets[place] = Some(Arc::new(set));
        self.accelerates(caller, Accelerator::Literals, literals.len() as u64);
        place as i32 + 1
    }

    /// `literals_free`: a set goes. A search that is under way goes on.
    pub fn literals_free(&mut self, caller: Caller, handle: i32) -> i32 {
        let Some(resident) = self.spus[caller.spu as usize].residents.get_mut(caller.app as usize) else {
            return abi::ERROR_ARGUMENT;
        };
        let sets = &mut resident.literals;
        if sets.of(handle).is_none() {
            return abi::ERROR_ARGUMENT;
        }
        if let Some(set) = sets.sets[handle as usize - 1].take() {
            sets.bytes -= set.memory_bytes();
        }
        DONE
    }

    /// An app's instances have ended: so have their sets.
    pub fn end_literals(&mut self, number: AppNumber) {
        self.spus.iter_mut().for_each(|spu| spu.residents[number as usize].literals = Sets::default());
    }

    /// `literals_find`: matches in bytes at a port.
    pub fn literals_find<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (asked, behalf): (LiteralSearch, Behalf),
        _: Charged,
    ) -> Result<i32, Fault> {
        let LiteralSearch { token, set, port, address, bytes, state, to, most, wait } = asked;
        let sets = self.spus[caller.spu as usize].residents.get(caller.app as usize).map(|resident| &resident.literals);
        let Some(set) = sets.and_then(|sets| sets.of(set)).cloned() else { return Ok(abi::ERROR_ARGUMENT) };
        // There is room for the result: nothing is looked at in vain.
        memory.slice_mut(to, HEADER_BYTES + most as usize * MATCH_BYTES)?;
        let mut search = Search::new(most, state == 1, self.meter(caller).left());
        let mut transfer = None;
        let looked_at = match port {
            Port::Local => set.find_in(memory.slice(address, bytes as usize)?, &mut search),
            Port::Network => {
                match self.with_body(caller.at(token), address, bytes as usize, |body| set.find_in(body, &mut search)) {
                    Some(looked_at) => looked_at,
                    None => return Ok(abi::ERROR_RANGE),
                }
            }
            Port::Nv => {
                let Some(permit) = self.may_read(caller, behalf, address, bytes as usize) else {
                    return Ok(abi::ERROR_PERMISSION);
                };
                match self.find_in_bank(caller, &set, (&permit, bytes), &mut search) {
                    Ok(Some(looked_at)) => {
                        self.spus[caller.spu as usize].counters.nv_read_bytes += looked_at as u64;
                        transfer = Some(Transfer::read(caller.spu, address, looked_at as u32, token));
                        looked_at
                    }
                    Ok(None) => {
                        // It may end the run: nothing is begun before it.
                        self.meter(caller).charge_copy(bytes.into())?;
                        let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
                        self.accelerates(caller, Accelerator::Literals, bytes.into());
                        self.spus[caller.spu as usize].counters.nv_read_bytes += u64::from(bytes);
                        let pending = Pending::Literals { group, set, state, to, most };
                        let transfer = Transfer::read(caller.spu, address, bytes, token);
                        return Ok(self.begin_single(permit, pending, (group, transfer)));
                    }
                    Err(error) => return Ok(error),
                }
            }
            Port::Zero | Port::Nothing => return Ok(abi::ERROR_ARGUMENT),
        };
        self.meter(caller).charge_found(search.work())?;
        let found = result(looked_at, &search);
        memory.slice_mut(to, found.len())?.copy_from_slice(&found);
        let taken = (Accelerator::Literals, looked_at as u64);
        Ok(self.streams((caller, Waiter { token, wait }), taken, (0, transfer), |_| DONE))
    }

    /// Searches NV memory as far as it is there at once: how far it got; `None` where nothing is.
    fn find_in_bank(
        &mut self,
        caller: Caller,
        set: &LiteralSet,
        (permit, bytes): (&MayRead, u32),
        search: &mut Search,
    ) -> Result<Option<usize>, i32> {
        let bytes = bytes as usize;
        let buffer = &mut self.spus[usize::from(caller.spu)].piece;
        buffer.resize(PIECE_BYTES, 0);
        let mut at = 0;
        while at < bytes && !search.is_over() {
            let piece = &mut buffer[..PIECE_BYTES.min(bytes - at)];
            match permit.read_part(&mut self.media, at, piece) {
                Ok(Progress::Done) => {}
                Ok(Progress::WouldBlock) if at == 0 => return Ok(None),
                Ok(Progress::WouldBlock) => break,
                Err(error) => return Err(error_of(error)),
            }
            // What begins at the end of a piece may go on in the next one.
            let is_last = at + piece.len() == bytes;
            let limit = if is_last { piece.len() } else { piece.len() - (set.longest() - 1) };
            at += set.find(piece, limit, at as u32, search);
        }
        Ok(Some(at))
    }

    /// The bytes of a search have come: its result, for the app's memory at `to`.
    pub fn literals_read(
        &mut self,
        account: u16,
        set: &LiteralSet,
        bytes: &[u8],
        (state, to, most): (u32, u64, u32),
    ) -> Box<(u64, Vec<u8>)> {
        let mut search = Search::new(most, state == 1, u64::MAX);
        let looked_at = set.find_in(bytes, &mut search);
        self.charge_account(account, search.work());
        Box::new((to, result(looked_at, &search)))
    }
}

const _: () = assert!(LITERAL_BYTES_MAX < PIECE_BYTES / 2);
