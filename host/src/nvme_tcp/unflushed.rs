//! What a device would lose with its process: changes that it has answered, and that nobody has flushed.
//!
//! What always holds: whoever is told that a change is done has it counted before; whether a next session may go on is decided with the
//! counts locked, so that no change is counted in between. Of devices that lose nothing (their start is 0) nothing is counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use willow_wire::spec::identify::NSID_ALL;
use willow_wire::spec::opcode::{kv, nvm};
use willow_wire::spec::{SubmissionEntry, tunnel};

/// Counts of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    answered: u64,
    /// As many of them as are flushed.
    flushed: u64,
}

/// The counts, and which start of the device they are of.
#[derive(Debug, Default)]
struct Counts {
    start: u64,
    namespaces: BTreeMap<u32, Changes>,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that could be lost.
    Nothing,
    /// A change of this namespace.
    Change(u32),
    /// It flushes these changes.
    Flush(Vec<(u32, u64)>),
}

/// The session that a command went over is of another start of the device than the counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Outdated;

/// Of a controller.
#[derive(Debug, Default)]
pub struct Unflushed(Mutex<Counts>);

impl Unflushed {
    /// Of a device of that start.
    pub fn new(start: u64) -> Self {
        Unflushed(Mutex::new(Counts { start, namespaces: BTreeMap::new() }))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an I/O command is about to do.
    pub fn effect(&self, entry: &SubmissionEntry) -> Effect {
        let is_durable = entry.opcode() == nvm::WRITE && entry.cdw(12) & nvm::CDW12_FUA != 0;
        match entry.opcode() {
            nvm::FLUSH => {
                let counts = self.counts();
                let those = counts.namespaces.iter().filter(|(nsid, _)| [**nsid, NSID_ALL].contains(&entry.nsid()));
                Effect::Flush(those.map(|(nsid, of)| (*nsid, of.answered)).collect())
            }
            nvm::READ | nvm::COMPARE | nvm::VERIFY | kv::LIST | kv::EXIST | tunnel::RECEIVE => Effect::Nothing,
            _ if is_durable => Effect::Nothing,
            _ => Effect::Change(entry.nsid()),
        }
    }

    /// A command has succeeded over a session of that start.
    pub fn succeeded(&self, start: u64, effect: &Effect) -> Result<(), Outdated> {
        let mut counts = self.counts();
        match effect {
            Effect::Nothing => {}
            _ if counts.start != start => return Err(Outdated),
            Effect::Change(nsid) => counts.namespaces.entry(*nsid).or_default().answered += 1,
            Effect::Flush(those) => {
                for (nsid, answered) in those {
                    if let Some(of) = counts.namespaces.get_mut(nsid) {
                        of.flushed = of.flushed.max(*answered);
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes on with a session of that start; false where changes are lost by that.
    pub fn goes_on(&self, start: u64) -> bool {
        let mut counts = self.counts();
        let is_same = counts.start == start;
        let is_lost = counts.start != 0 && counts.namespaces.values().any(|of| of.answered > of.flushed);
        counts.start = start;
        is_same || !is_lost
    }
}
