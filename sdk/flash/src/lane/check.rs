//! What must hold of a lane, looked at as a whole: for tests.

use super::Lane;
use super::state::{ADDRESSES_MAX, BlockState, STREAMS};
use crate::port::FlashPort;
use alloc::format;
use alloc::string::String;
use alloc::vec;

impl<P: FlashPort> Lane<P> {
    /// What is wrong: the map against the valid pages, their counts, the lists of blocks. `is_idle`: nothing is under way.
    pub fn check(&self, is_idle: bool) -> Result<(), String> {
        let state = self.state();
        let pages = state.pages();
        let mut counts = vec![0; state.states.len()];
        let mut bits = vec![0u64; state.valid.len()];
        for (unit, entry) in state.map.iter().copied().enumerate().filter(|(_, entry)| *entry < ADDRESSES_MAX) {
            if bits[entry as usize / 64] >> (entry % 64) & 1 == 1 {
                return Err(format!("page {unit} points where another does"));
            }
            bits[entry as usize / 64] |= 1 << (entry % 64);
            counts[(entry / pages) as usize] += 1;
        }
        if bits != state.valid || counts != state.valid_counts {
            return Err("the valid pages are not those that the map points to".into());
        }
        for (block, block_state) in (0u32..).zip(state.states.iter().copied()) {
            let in_freed = state.freed.iter().filter(|(_, freed)| *freed == block).count();
            let in_ready = usize::from(state.ready.iter().any(|(_, ready)| *ready == block));
            let in_reserved = state.reserved.iter().filter(|reserved| **reserved == block).count();
            let open = STREAMS
                .iter()
                .filter(|stream| state.streams[**stream as usize].is_some_and(|open| open.block == block));
            let metadata = &state.metadata;
            let in_metadata = metadata.live.iter().chain(&metadata.old).filter(|live| **live == block).count()
                + metadata.pool.iter().filter(|(pooled, _)| *pooled == block).count();
            let in_victims = usize::from(state.victims.contains(block));
            let found = [in_freed, in_ready, in_reserved, open.count(), in_victims, in_metadata];
            let mut wanted = [0; 6];
            match block_state {
                BlockState::Freed => wanted[0] = 1,
                BlockState::Ready => wanted[1] = 1,
                BlockState::Reserved => wanted[2] = 1,
                BlockState::Open => wanted[3] = 1,
                BlockState::Closed => wanted[4] = 1,
                BlockState::Metadata => wanted[5] = 1,
                BlockState::Collecting if is_idle => return Err(format!("block {block} is lost")),
                BlockState::Collecting | BlockState::Anchor | BlockState::Retired => {}
            }
            let moves = !is_idle && matches!(block_state, BlockState::Metadata | BlockState::Ready);
            if found != wanted && !moves {
                return Err(format!("block {block} is {block_state:?}, and in the lists {found:?}"));
            }
            let holds = !matches!(block_state, BlockState::Open | BlockState::Closed | BlockState::Collecting);
            if holds && counts[block as usize] > 0 {
                return Err(format!("block {block} is {block_state:?} and holds data"));
            }
        }
        if is_idle && state.readers.iter().any(|readers| *readers > 0) {
            return Err("somebody reads though nothing is under way".into());
        }
        Ok(())
    }
}
