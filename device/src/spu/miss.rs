//! Permission misses: a DMA on behalf of a user endpoint found no permission. SPU-OS tells the agent of that namespace (an upcall to its
//! kernel endpoint), and the DMA either fails at once or is parked until the agent has answered, as the handler asked
//! (Willow, section 2.6).
//!
//! What always holds:
//! - a miss that no grant could mend (no block namespace there) is no miss: it fails and nobody is told;
//! - a block namespace has at most one agent, so that a device may be shared by hosts, each with namespaces and an agent of its own;
//! - at most one upcall an SPU and process is out; what that process misses there meanwhile waits for the same answer;
//! - a parked DMA ends: retried when the agent says so, at most [`RETRIES_MAX`] times about what it misses itself, or failed with
//!   `ERROR_PERMISSION` when the agent says no or is gone, when the range is revoked, or after [`MISS_NS_MAX`];
//! - a retried DMA is checked anew, like any other; nothing of a parked one has moved before.

use super::abi;
use super::dma::{Dma, Port};
use super::meter::Fault;
use super::os::{Caller, LocalMemory, Machine};
use super::permission::{Extent, Rights};
use super::rest::Rest;
use crate::bridge::MISSES_PER_AGENT_MAX;
use crate::bridge::accounts::PARTIES;
use crate::hre::HreId;
use crate::interconnect::Key;
use crate::places::Places;
use crate::request::Upcall;
use crate::slab::Slab;
use crate::spu::protection::{Access, in_ids};
use std::collections::BTreeMap;

/// Most agents at once.
pub const AGENTS_MAX: usize = 64;
/// Most DMAs parked in the whole device.
pub const PARKED_MAX: usize = 4096;
/// Most of one process.
pub const PARKED_PER_PROCESS_MAX: usize = 512;
/// How often a parked DMA is tried again after an answer about a range that it missed, not about what another waited for.
pub const RETRIES_MAX: u8 = 8;
/// How long an upcall about a miss may stay unanswered.
pub const MISS_NS_MAX: u64 = 2_000_000_000;

/// A DMA that waits for a permission.
struct Parked {
    rest: Rest,
    missed: Extent,
    /// Who has its place.
    party: u16,
}

/// The trusted part of a host, which answers for block namespaces.
pub(crate) struct Agent {
    pub hre: HreId,
    /// Where these begin in every bank; `None`: all that have no agent of their own.
    pub bases: Option<Vec<u64>>,
    /// Where these lie in every bank, to their ends.
    pub regions: Vec<(u64, u64)>,
}

impl Agent {
    /// True where both answer for the same namespace.
    pub fn overlaps(&self, bases: Option<&[u64]>) -> bool {
        match (&self.bases, bases) {
            (Some(own), Some(others)) => own.iter().any(|base| others.contains(base)),
            (own, others) => own.is_none() && others.is_none(),
        }
    }
}

/// An upcall that is out.
struct Told {
    agent: HreId,
    id: u64,
    missed: Extent,
    deadline_ns: u64,
    parked: Vec<u32>,
}

/// State of misses.
pub(crate) struct Misses {
    pub agents: Vec<Agent>,
    parked: Slab<Box<Parked>>,
    /// Places among them, by user.
    places: Places,
    /// By process (as in ids) and SPU.
    told: BTreeMap<(u32, u16), Told>,
    /// Since the device started.
    pub upcalls: u64,
}

impl Default for Misses {
    fn default() -> Self {
        let places = Places::new(PARKED_MAX as u64, PARTIES);
        Misses { agents: Vec::new(), parked: Slab::new(PARKED_MAX), places, told: BTreeMap::new(), upcalls: 0 }
    }
}

impl Misses {
    /// When the first unanswered upcall is given up.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.told.values().map(|told| told.deadline_ns).min()
    }

    /// The agent of the namespace that begins there.
    fn agent_of(&self, base: u64) -> Option<HreId> {
        let own = self.agents.iter().find(|agent| agent.bases.as_ref().is_some_and(|bases| bases.contains(&base)));
        own.or_else(|| self.agents.iter().find(|agent| agent.bases.is_none())).map(|agent| agent.hre)
    }
}

impl Machine {
    /// What a segment lacked; `None` where no grant would help.
    fn missed(&mut self, caller: Caller, dma: &Dma, from: u64, to: u64) -> Option<Extent> {
        let originating = self.activity_at(caller.at(dma.token))?.originating;
        if originating.is_kernel() {
            return None;
        }
        let bytes = u64::from(dma.segment_bytes);
        let ends = [(dma.source.port, from, Rights::READ), (dma.destination.port, to, Rights::WRITE)];
        for (port, address, rights) in ends {
            if port == Port::Nv {
                match self.access_again(caller, originating, (address, bytes), rights) {
                    Access::Permitted => {}
                    Access::Forbidden => return None,
                    Access::Missing => return Some(Extent { start: address, end: address + bytes, rights }),
                }
            }
        }
        None
    }

    /// Tells the agent of what a DMA lacked, where a grant would help.
    pub(super) fn tell_missing(
        &mut self,
        caller: Caller,
        originating: HreId,
        (start, bytes): (u64, u64),
        rights: Rights,
    ) {
        if self.access_again(caller, originating, (start, bytes), rights) == Access::Missing {
            self.tell(originating, caller.spu, caller.app, Extent { start, end: start + bytes, rights });
        }
    }

    /// A segment was refused for want of a permission: tells the agent, and parks the rest of the DMA if `park`. Returns 0 where
    /// it is parked (the group then has one more operation to wait for), else the error.
    #[cold]
    pub fn permission_missed<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        dma: &Dma,
        (from, to, left): (u64, u64, u32),
        group: &mut Option<Key>,
    ) -> Result<i32, Fault> {
        let Some(missed) = self.missed(caller, dma, from, to) else { return Ok(abi::ERROR_PERMISSION) };
        let Some(activity) = self.activity_at(caller.at(dma.token)) else { return Ok(abi::ERROR_PERMISSION) };
        let (originating, app) = (activity.originating, caller.app);
        if !self.tell(originating, caller.spu, app, missed) || !dma.parks {
            return Ok(abi::ERROR_PERMISSION);
        }
        let Some(rest) = self.rest_of(caller, memory, dma, (from, to, left), group)? else {
            return Ok(abi::ERROR_PERMISSION);
        };
        let (key, party) = (rest.group, self.bridge.accounts.party(rest.account()));
        match self.park(originating.process(), Box::new(Parked { rest, missed, party })) {
            Ok(()) => {
                if let Some(group) = self.group_at_mut(key) {
                    group.remaining += 1;
                }
                Ok(0)
            }
            Err(parked) => {
                self.drop_rest(parked.rest);
                Ok(abi::ERROR_PERMISSION)
            }
        }
    }

    /// Parks a DMA; gives it back where there is no place for it.
    fn park(&mut self, process: u32, parked: Box<Parked>) -> Result<(), Box<Parked>> {
        let spu = parked.rest.caller.spu;
        let misses = &mut self.protection.misses;
        let own = misses.told.range((process, 0)..=(process, u16::MAX)).map(|(_, told)| told.parked.len());
        let own = own.sum::<usize>();
        let Some(told) = misses.told.get_mut(&(process, spu)) else { return Err(parked) };
        if own >= PARKED_PER_PROCESS_MAX || !misses.parked.has_room() || !misses.places.take(parked.party, 1) {
            return Err(parked);
        }
        told.parked.push(misses.parked.put(|| parked));
        Ok(())
    }

    /// Takes a DMA out that was parked.
    fn unpark(&mut self, key: u32) -> Option<Box<Parked>> {
        let misses = &mut self.protection.misses;
        let parked = misses.parked.remove(key)?;
        misses.places.release(parked.party, 1);
        Some(parked)
    }

    /// Sends the upcall, unless one for that process and SPU is out; false where nobody can be told.
    fn tell(&mut self, originating: HreId, spu: u16, app: u16, missed: Extent) -> bool {
        let process = originating.process();
        if self.protection.misses.told.contains_key(&(process, spu)) {
            return true;
        }
        let region = self.published.regions.holding(missed.start, missed.end - missed.start);
        let agent = region.and_then(|(_, region)| self.protection.misses.agent_of(region.base));
        let Some(agent) = agent else { return false };
        let id = self.bridge.upcalls.next();
        let words =
            [u64::from(originating.0) | u64::from(app) << 32, missed.start, missed.end, missed.rights.bits().into()];
        let body = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let handler = crate::request::UPCALL_PERMISSION_MISS;
        let upcall = Upcall { id, app: crate::request::CONTROL_APP, handler, spu, body };
        if !self.bridge.push_upcall(agent, upcall, MISSES_PER_AGENT_MAX) {
            return false;
        }
        self.bridge.upcalls.number();
        self.protection.misses.upcalls += 1;
        let deadline_ns = self.now_ns.saturating_add(MISS_NS_MAX);
        let told = Told { agent, id, missed, deadline_ns, parked: Vec::new() };
        self.protection.misses.told.insert((process, spu), told);
        true
    }

    /// The agent's answer to an upcall about a miss; false where there is no such upcall.
    pub fn answer_miss(&mut self, agent: HreId, id: u64, resolved: bool) -> bool {
        let mut told = self.protection.misses.told.iter();
        let key = told.find(|(_, told)| told.id == id && told.agent == agent).map(|(key, _)| *key);
        let Some(key) = key else { return false };
        self.end_told(key, resolved);
        true
    }

    fn end_told(&mut self, key: (u32, u16), retry: bool) {
        let Some(told) = self.protection.misses.told.remove(&key) else { return };
        for parked in told.parked {
            if let Some(mut parked) = self.unpark(parked) {
                let is_own = parked.missed.start < told.missed.end && told.missed.start < parked.missed.end;
                parked.rest.retries += u8::from(is_own);
                // As one of those that wait for a place: there may be many, each of many segments.
                if retry { self.line_up(parked.rest) } else { self.fail(*parked) }
            }
        }
    }

    fn fail(&mut self, parked: Parked) {
        self.end_rest(parked.rest, abi::ERROR_PERMISSION);
    }

    /// A DMA that went on, from the line or after an answer, misses a permission.
    pub fn miss_again(&mut self, rest: Rest) {
        let missed = self.missed(rest.caller, &rest.dma, rest.from, rest.to);
        let originating = self.activity_at(rest.caller.at(rest.dma.token)).map(|activity| activity.originating);
        if let (Some(missed), Some(originating)) = (missed, originating)
            && rest.retries <= RETRIES_MAX
            && self.tell(originating, rest.caller.spu, rest.caller.app, missed)
        {
            let party = self.bridge.accounts.party(rest.account());
            if let Err(parked) = self.park(originating.process(), Box::new(Parked { rest, missed, party })) {
                self.fail(*parked);
            }
            return;
        }
        self.end_rest(rest, abi::ERROR_PERMISSION);
    }

    /// Fails what is parked for a process, in a range of an SPU or wherever it is.
    pub fn fail_parked(&mut self, process: u32, range: Option<(u16, Extent)>) {
        let spus: Vec<(u32, u16)> = self.protection.misses.told.keys().copied().collect();
        for key in spus.into_iter().filter(|(of, spu)| *of == in_ids(process) && range.is_none_or(|(at, _)| at == *spu))
        {
            let misses = &mut self.protection.misses;
            let Some(told) = misses.told.get_mut(&key) else { continue };
            let overlaps = |missed: &Extent| range.is_none_or(|(_, of)| missed.start < of.end && of.start < missed.end);
            let (gone, stay) = std::mem::take(&mut told.parked)
                .into_iter()
                .partition(|key| misses.parked.get(*key).is_some_and(|parked| overlaps(&parked.missed)));
            told.parked = stay;
            let gone: Vec<u32> = gone;
            for key in gone {
                if let Some(parked) = self.unpark(key) {
                    self.fail(*parked);
                }
            }
        }
    }

    /// Gives up what was not answered in time; true where something was.
    pub fn expire_misses(&mut self, now_ns: u64) -> bool {
        let late = self.protection.misses.told.iter().filter(|(_, told)| told.deadline_ns <= now_ns);
        let late: Vec<(u32, u16)> = late.map(|(key, _)| *key).collect();
        for key in &late {
            self.end_told(*key, false);
        }
        !late.is_empty()
    }

    /// An endpoint is gone: where it was an agent's, nothing is permitted in its namespaces any more, whoever let the processes in, since
    /// nobody watches their files; and what it was told is answered with no.
    pub fn agent_gone(&mut self, hre: HreId) {
        let agents = &mut self.protection.misses.agents;
        let ended: Vec<(u64, u64)> =
            agents.extract_if(.., |agent| agent.hre == hre).flat_map(|it| it.regions).collect();
        let processes = if ended.is_empty() { Vec::new() } else { self.protection.numbers() };
        for (start, end) in ended {
            let extent = Extent { start, end, rights: Rights::READ_WRITE };
            for spu in 0..self.config.spus {
                for process in &processes {
                    self.revoke(*process, spu, extent);
                    self.fail_parked(*process, Some((spu, extent)));
                }
            }
        }
        let told = self.protection.misses.told.iter().filter(|(_, told)| told.agent == hre);
        let keys: Vec<(u32, u16)> = told.map(|(key, _)| *key).collect();
        for key in keys {
            self.end_told(key, false);
        }
    }

    /// How many DMAs are parked for a process on an SPU.
    pub fn parked_of(&self, process: u32, spu: u16) -> usize {
        self.protection.misses.told.get(&(process, spu)).map_or(0, |told| told.parked.len())
    }

    /// Cancels a DMA that is parked.
    pub fn cancel_parked(&mut self, process: u32, caller: Caller, wait: u32) -> bool {
        let misses = &mut self.protection.misses;
        let Some(told) = misses.told.get_mut(&(process, caller.spu)) else { return false };
        let of_it = |parked: &Parked| parked.rest.caller == caller && parked.rest.dma.wait == wait;
        let found = told.parked.iter().position(|key| misses.parked.get(*key).is_some_and(|parked| of_it(parked)));
        let Some(parked) = found.map(|at| told.parked.swap_remove(at)).and_then(|key| self.unpark(key)) else {
            return false;
        };
        self.end_rest(parked.rest, abi::ERROR_CANCELLED);
        true
    }

    /// DMAs parked.
    pub fn parked(&self) -> usize {
        self.protection.misses.parked.len()
    }
}
