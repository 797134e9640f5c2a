//! A model of time in which flash alone takes any: its dies do what they take one after the other. Processors take a little.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use willow_device::clock::{Agenda, DmaStep, FlashStep, Message, Timing, Transfer, Work};
use willow_device::media::flash::timing::{Completion, Submission, Work as FlashWork};

/// Operations that a die takes.
pub const DIE_OPERATIONS_MAX: usize = 2;
pub const OPERATION_NS: u64 = 1_000_000;
/// Dies do not wait for one another: a read of one could be done long before an erase of the other.
pub const ERASE_NS: u64 = 50_000_000;

/// An operation that the flash of SPU 0 has taken.
#[derive(Clone, Debug)]
pub struct Taken {
    pub begin_ns: u64,
    pub end_ns: u64,
    pub kind: &'static str,
    pub block: u32,
}

/// Flash whose dies do what they take one after the other. Nothing else takes time but processors, a little.
#[derive(Default)]
pub struct Dies {
    /// By SPU and die: what it has taken, in the order in which it will be done.
    under_way: BTreeMap<(u16, u32), Vec<Completion>>,
    pub taken: Arc<Mutex<Vec<Taken>>>,
}

impl Timing for Dies {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns, message.id);
    }
    fn dma(&mut self, at_ns: u64, _transfer: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, _work: &Work) -> u64 {
        at_ns + 100
    }
    fn flash(&mut self, now_ns: u64, spu: u16, submission: &Submission<'_>) -> FlashStep {
        let of_die = self.under_way.entry((spu, submission.die)).or_default();
        if of_die.len() >= DIE_OPERATIONS_MAX {
            return FlashStep::Full;
        }
        let (kind, takes_ns) = match submission.work {
            FlashWork::Read { .. } => ("read", OPERATION_NS),
            FlashWork::Program { .. } | FlashWork::Copyback { .. } => ("program", OPERATION_NS),
            FlashWork::Erase => ("erase", ERASE_NS),
        };
        let begin_ns = of_die.last().map_or(now_ns, |last| now_ns.max(last.at_ns));
        let end_ns = begin_ns + takes_ns;
        of_die.push(Completion { token: submission.token, submitted_ns: now_ns, at_ns: end_ns });
        if spu == 0 {
            let block = submission.blocks[0];
            self.taken.lock().expect("the log").push(Taken { begin_ns: now_ns, end_ns, kind, block });
        }
        FlashStep::UnderWay
    }
    fn flash_next_ns(&self) -> Option<u64> {
        self.under_way.values().flatten().map(|one| one.at_ns).min()
    }
    fn flash_advance(&mut self, now_ns: u64, completions: &mut Vec<Completion>) {
        for of_die in self.under_way.values_mut() {
            let done = of_die.partition_point(|one| one.at_ns <= now_ns);
            completions.extend(of_die.drain(..done));
        }
    }
}
