//! A model of time in which everything takes 100 ns, whatever it is: the machine is slower than the model.

use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};

/// See above.
pub struct Even;

impl Timing for Even {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 100, message.id);
    }
    fn dma(&mut self, at_ns: u64, _: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 100)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, _work: &Work) -> u64 {
        at_ns + 100
    }
}
