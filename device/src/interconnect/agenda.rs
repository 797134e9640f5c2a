//! How a model of time says when a message arrives.

use super::event::{EventQueue, MODEL_PLACE};

/// Where a model puts what is to happen.
pub struct Agenda<'a>(pub(crate) &'a mut EventQueue);

impl Agenda<'_> {
    /// A message arrives then.
    #[inline]
    pub fn arrive(&mut self, at_ns: u64, message: u32) {
        self.0.schedule(at_ns, message);
    }

    /// A streamed message needs no arrival: its number is free again.
    #[inline]
    pub fn release(&mut self, message: u32) {
        self.0.release(message);
    }

    /// [`Timing::tick`] is called then with this word: the number of a message that is on its way and has no arrival yet, or
    /// [`Agenda::OWN_TICK`]; the same word not twice at once.
    #[inline]
    pub fn tick(&mut self, at_ns: u64, word: u32) {
        self.0.schedule_tick(at_ns, word);
    }

    /// A tick that no message is named by.
    pub const OWN_TICK: u32 = MODEL_PLACE;
}
