//! What a fused operation has to wait for: the writes that the device had when the operation took its range.
//!
//! What always holds:
//! - a search sees each command that was in the device when its ranges were taken and still is, or has ended meanwhile, wherever it is by then:
//!   in its slot, or among the orphans, which are looked at last;
//! - a search looks at a bounded number of commands in a turn; what begins meanwhile and writes there is held, so that it need not be found;
//! - what waits for a place in the device is no reason to wait: it is held itself when it has its place, unless a part of it is done.

use std::collections::BTreeSet;

use willow_device::HreId;
use willow_wire::spec::opcode::nvm;

use super::{Held, Key, Stage, overlap, writes};
use crate::account::Ready;
use crate::backend::Backend;
use crate::command::Blocks;
use crate::config::planted;
use crate::queue::State;
use crate::subsystem::Subsystem;

/// True for those of them that are more than one request of the device, one after the other.
fn has_steps(opcode: u8) -> bool {
    matches!(opcode, nvm::DATASET_MANAGEMENT | nvm::COPY)
}

impl<B: Backend> Subsystem<B> {
    /// Where a command under way writes: its namespace, and the blocks where its slot says that.
    fn written_by(&self, index: u16, place: u16) -> Option<(u32, Option<Blocks>)> {
        let slot = self.queues[usize::from(index)].as_ref()?.slots.get(usize::from(place))?;
        // Fused operations have ranges of their own.
        if slot.internal || slot.paired || !writes(slot.opcode) {
            return None;
        }
        let shift = self.find(slot.nsid).map_or(0, |found| self.namespaces[found].view.block_shift);
        let blocks = Blocks { lba: slot.lba, start: slot.lba << shift, bytes: slot.bytes.into() };
        Some((slot.nsid, (slot.opcode == nvm::WRITE).then_some(blocks)))
    }

    /// Looks for what the device has and writes to ranges that were just taken. True where it goes on in the next turn.
    pub(super) fn find_blockers(&mut self, left: &mut usize) -> bool {
        let Some(first) = self.exclusives.next_queue.or_else(|| {
            let mut is_any = false;
            for taken in self.exclusives.taken.iter_mut().filter(|taken| taken.stage == Stage::Fresh) {
                (taken.stage, is_any) = (Stage::Searching, true);
            }
            is_any.then_some(0)
        }) else {
            return false;
        };
        let mut found: Vec<(u32, Option<Blocks>, Key)> = Vec::new();
        let mut next = first;
        while next < self.queues.len() && *left > 0 {
            let index = next as u16;
            (next, *left) = (next + 1, *left - 1);
            let Some(queue) = self.queues[usize::from(index)].as_ref() else { continue };
            let mut in_flight = queue.in_flight;
            for (place, slot) in (0u16..).zip(&queue.slots) {
                if in_flight == 0 {
                    break;
                }
                *left = left.saturating_sub(1);
                in_flight -= u32::from(slot.state != State::Free);
                // What waits for a place there waits on, but where a part of it is done already.
                let is_under_way = match slot.state {
                    State::Device => true,
                    State::Ready => has_steps(slot.opcode),
                    _ => false,
                };
                if is_under_way
                    && let Some((nsid, blocks)) = self.written_by(index, place)
                    && let Some(key) = self.key(index, place)
                {
                    found.push((nsid, blocks, key));
                }
            }
        }
        let is_over = next >= self.queues.len();
        if is_over {
            // Last, since a queue may have gone before it was looked at.
            let of_orphans = self.orphans.iter().filter(|(_, orphan)| orphan.writes_to != 0);
            found.extend(of_orphans.map(|((hre, tag), orphan)| (orphan.writes_to, None, (HreId(*hre), *tag))));
        }
        for taken in self.exclusives.taken.iter_mut().filter(|taken| taken.stage == Stage::Searching) {
            let writes_there = |(nsid, blocks, _): &&(u32, Option<Blocks>, Key)| {
                *nsid == taken.nsid && blocks.as_ref().is_none_or(|blocks| overlap(blocks, &taken.blocks))
            };
            taken.blockers.extend(found.iter().filter(writes_there).map(|(.., key)| *key));
            if is_over {
                taken.stage = Stage::Draining;
            }
        }
        self.exclusives.next_queue = (!is_over).then_some(next);
        // Those that came while this went on are looked for next.
        self.exclusives.due |= is_over && self.exclusives.taken.iter().any(|taken| taken.stage == Stage::Fresh);
        !is_over
    }

    /// Whether a write that waited for a place in the device, and has not begun, has to wait for a range instead; then it does.
    #[cold]
    pub(crate) fn hold_ready_for_fused(&mut self, ready: Ready) -> Option<Ready> {
        let (index, place) = (ready.connection.index, ready.place);
        if planted!(self, FusedTakesNothing) {
            return Some(ready);
        }
        let has_steps = self.slot_mut(index, place).is_none_or(|slot| has_steps(slot.opcode));
        let Some((nsid, blocks)) = self.written_by(index, place).filter(|_| !has_steps) else { return Some(ready) };
        match self.exclusives.keeps(nsid, blocks.as_ref()) {
            Some(taken) => {
                taken.held.push_back(Held::Ready { ready, blocks });
                if let Some(slot) = self.slot_mut(index, place) {
                    slot.state = State::Held;
                }
                None
            }
            None => Some(ready),
        }
    }
    /// Takes writes out that waited for a place in the device, and wait for a range now; where their slots are. Who has them ended answers them.
    pub(crate) fn forget_held_ready(&mut self, slots: &BTreeSet<(u16, u16)>) -> Vec<(u16, u16)> {
        if slots.is_empty() {
            return Vec::new();
        }
        let slot = |held: &Held| match held {
            Held::Ready { ready, .. } => Some((ready.connection.index, ready.place)),
            Held::Fused(_) | Held::Command { .. } => None,
        };
        let gone = self.exclusives.take_waiting(|held| slot(held).is_some_and(|slot| slots.contains(&slot)));
        let places = gone.iter().filter_map(slot).collect();
        for held in gone {
            let index = held.connection().index;
            held.into_buffers().into_iter().for_each(|buffer| self.give(index, buffer));
        }
        places
    }
}
