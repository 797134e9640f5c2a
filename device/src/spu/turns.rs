//! Whose operation a bank's FTL is handed next.
//!
//! What always holds:
//! - An FTL has at most so many operations of a kind at the same time ([`READS_MAX`], [`WRITES_MAX`], [`FLUSHES_MAX`]), so that whatever writes wait
//!   for (collection, the disk) reads find a thread of the FTL, and none of its handlers is everybody's bottleneck. The kinds together, and a thread
//!   that collects, are the most threads that an app can have.
//! - Those that wait are handed out by what their accounts have had, by weight; an account's own in the order in which they came.

use super::os::Machine;
use crate::interconnect::fair::FairQueue;
use crate::media::delegate::{Delegated, DelegatingStore, Kind};

/// Most reads that the FTL of a bank has.
pub const READS_MAX: u32 = 32;
/// Most writes and zeroings.
pub const WRITES_MAX: u32 = 24;
/// Most flushes.
pub const FLUSHES_MAX: u32 = 7;

/// Most operations that it has: SPU-OS keeps a place for each.
pub const OPERATIONS_PER_BANK_MAX: usize = (READS_MAX + WRITES_MAX + FLUSHES_MAX) as usize;

/// Operations of one kind on a bank.
#[derive(Default)]
struct Turn {
    under_way: u32,
    waiting: FairQueue<Delegated>,
}

/// Operations on a bank: reads, changes, flushes.
#[derive(Default)]
pub(super) struct Turns([Turn; 3]);

impl Turns {
    fn of(&mut self, kind: Kind) -> (&mut Turn, u32) {
        let [reads, writes, flushes] = &mut self.0;
        match kind {
            Kind::Read => (reads, READS_MAX),
            Kind::Write | Kind::Zero => (writes, WRITES_MAX),
            Kind::Flush => (flushes, FLUSHES_MAX),
        }
    }
}

impl Machine {
    /// An operation is for a bank's FTL: true where it is its turn at once.
    pub(super) fn takes_turn(&mut self, account: u16, delegated: &Delegated) -> bool {
        let (turn, most) = self.ftl.turns[delegated.bank].of(delegated.kind);
        let now = turn.under_way < most && turn.waiting.is_empty();
        match now {
            true => turn.under_way += 1,
            false => turn.waiting.push(account, *delegated),
        }
        now
    }

    /// One of a kind has ended: another whose turn it is now.
    pub(super) fn next_turn(&mut self, bank: usize, kind: Kind) -> Option<Delegated> {
        let (turn, _) = self.ftl.turns[bank].of(kind);
        turn.under_way -= 1;
        let next = turn.waiting.pop()?;
        turn.under_way += 1;
        let account = turn.waiting.current();
        let units = self.bridge.accounts.charge_unmetered(account, next.bytes / 8);
        turn.waiting.charge(account, units);
        Some(next)
    }

    /// The FTL of a bank has ended: what waits for its turn waits for the next FTL.
    pub(super) fn give_turns_back(&mut self, bank: usize) {
        for turn in &mut self.ftl.turns[bank].0 {
            while let Some(delegated) = turn.waiting.pop() {
                if let Some(store) = self.media.store.delegating() {
                    DelegatingStore::give_back(store, delegated.peer);
                }
            }
        }
    }
}
