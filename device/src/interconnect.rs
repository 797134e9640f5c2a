//! The interconnect: carries messages between the bridge and the SPUs (Willow, section 3: a ring).
//!
//! Invariants: a message arrives once, whole; messages between the same two ends arrive in the order in which they were sent
//! unless a model of time says otherwise; an SPU's inbox for messages of other SPUs is bounded, and what does not fit is refused.

use crate::clock::Endpoint;
use crate::event::Event;
use crate::spu::os::{Activity, Machine};

/// Bytes of a message's header on the wire: RPC id, source, originating HRE, length.
pub const HEADER_BYTES: u64 = 16;
/// Most messages from SPUs that one SPU holds.
pub const MESSAGES_PER_SPU_MAX: u32 = 256;

impl Machine {
    /// Puts a request on the interconnect; false where the device holds as many as it can.
    #[inline]
    pub fn send(&mut self, activity: Activity, from: Endpoint) -> bool {
        let spu = activity.spu;
        let bytes = activity.arguments.as_slice().len() as u64 + HEADER_BYTES;
        let Ok(token) = self.activities.insert(activity) else { return false };
        match self.timing.as_mut() {
            None => self.events.push(Event::Deliver { token }),
            Some(timing) => {
                let at_ns = timing.message(self.now_ns, from, Endpoint::Spu(spu), bytes);
                self.events.push_at(self.now_ns, at_ns, Event::Deliver { token });
            }
        }
        true
    }

    /// Takes a place in an SPU's inbox; false where it is full.
    pub fn reserve_inbox(&mut self, spu: u16) -> bool {
        let inbox = &mut self.messages_to_spu[spu as usize];
        if *inbox >= MESSAGES_PER_SPU_MAX {
            return false;
        }
        *inbox += 1;
        true
    }

    /// Gives a place back.
    pub fn release_inbox(&mut self, spu: u16) {
        self.messages_to_spu[spu as usize] -= 1;
    }
}
