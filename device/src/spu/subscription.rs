//! Who has subscribed to an app, as that app sees it; the bridge knows.

use super::os::{Caller, LocalMemory, Machine, WildPointer};
use crate::hre::HreId;

impl Machine {
    /// `subscribers`: ids of endpoints that have subscribed to a kind, behind one of them; how many there were, at most `most`.
    pub fn subscribers<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        (kind, after): (u8, HreId),
        (to, most): (u64, u32),
    ) -> Result<i32, WildPointer> {
        let subscriptions = &self.bridge.subscriptions;
        let most = (most as usize).min(subscriptions.of_app(caller.app));
        let mut count = 0;
        for hre in subscriptions.after(caller.app, after, kind).take(most) {
            memory.slice_mut(to + 4 * count, 4)?.copy_from_slice(&hre.0.to_le_bytes());
            count += 1;
        }
        Ok(count as i32)
    }
}
