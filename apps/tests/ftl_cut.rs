//! The end of an FTL under a model of time: what the flash has not begun for it is not begun any more, and the next FTL is shown the flash when
//! all that had begun is done.

mod support;

use base_io_host::wire;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use support::{ANSWERED, BLOCK, Drive, Ftl, config, metadata, tiny};
use willow_device::clock::{Agenda, DmaStep, FlashStep, Message, Timing, Transfer, Work};
use willow_device::media::flash::timing::{Completion, Submission, Work as FlashWork};
use willow_device::media::flash::{Array, FaultParameters, Geometry};

/// Operations that a die takes.
const DIE_OPERATIONS_MAX: usize = 2;
const OPERATION_NS: u64 = 1_000_000;
/// Dies do not wait for one another: a read of one could be done long before an erase of the other.
const ERASE_NS: u64 = 50_000_000;

/// An operation that the flash of SPU 0 has taken.
#[derive(Clone, Debug)]
struct Taken {
    begin_ns: u64,
    end_ns: u64,
    kind: &'static str,
    block: u32,
}

/// Flash whose dies do what they take one after the other. Nothing else takes time but processors, a little.
#[derive(Default)]
struct Dies {
    /// By SPU and die: what it has taken, in the order in which it will be done.
    under_way: BTreeMap<(u16, u32), Vec<Completion>>,
    taken: Arc<Mutex<Vec<Taken>>>,
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

/// Blocks that lie on SPU 0: stripes of two blocks, over two SPUs.
fn block_of(number: usize) -> usize {
    number / 2 * 4 + number % 2
}

/// An FTL that erases block 1 of die 1 when it is asked for the second operation of its first life on SPU 0, and at the fourteenth asks for an
/// erase of block 2 there and traps in the same run. Between the two it has programs under way, most of which its die has no room for.
#[test]
fn what_a_dead_ftl_had_asked_of_the_flash_is_done_before_the_next_begins_or_not_at_all() {
    let erase = |block: u32| {
        format!(
            "(i32.store (i32.const 60000) (i32.const {block}))
             (if (i32.ne (call $flash_erase (i32.const 1) (i32.const 60000) (i32.const 1) (i32.const 999)) (i32.const 1)) (then (unreachable)))"
        )
    };
    let first = "(i32.and (i32.eqz (call $spu_id)) (i32.eqz (global.get $recovered)))";
    let hook = format!(
        "(if {first} (then
            (if (i32.eq (global.get $operations) (i32.const 2)) (then {}))
            (if (i32.eq (global.get $operations) (i32.const 14)) (then {} (unreachable)))))",
        erase(1),
        erase(2),
    );
    let flash = Geometry { dies_per_package: 2, ..tiny::FLASH };
    let flash = (0..u64::from(support::SPUS)).map(|bank| Array::in_memory(&flash, &FaultParameters::NONE, bank));
    let ftl = Ftl::Tiny(tiny::that(&hook));
    let dies = Dies::default();
    let taken = dies.taken.clone();
    let config = config(&ftl.banks());
    let mut drive = Drive::timed(config, flash.collect(), metadata(), ftl, Some(Box::new(dies)));
    drive.write(block_of(0), &[1; BLOCK]);
    let before = taken.lock().expect("the log").len();
    let tags: Vec<u64> =
        (1..14).map(|number| drive.begin(wire::handler::WRITE, block_of(number), 1, &[2; BLOCK])).collect();
    let answered = tags.into_iter().filter(|tag| drive.wait(*tag).outcome == ANSWERED).count();
    // The fourteenth operation waited for the next FTL, or failed with the rest.
    drive.write(block_of(20), &[3; BLOCK]);
    assert!(drive.read(block_of(20), 1) == [3; BLOCK] && drive.read(block_of(0), 1) == [1; BLOCK]);

    let statistics = drive.device.statistics();
    assert_eq!(statistics.strays, 0);
    assert_eq!(statistics.flash.map(|flash| (flash.restarts, flash.failed)), Some((1, None)));
    let taken = taken.lock().expect("the log").split_off(before);
    let restart = taken.iter().position(|one| one.kind == "read").expect("the next FTL reads what is there");
    let (old, new) = taken.split_at(restart);
    let programs = old.iter().filter(|one| one.kind == "program").count();
    assert_eq!(programs, DIE_OPERATIONS_MAX, "what had not begun is not begun any more: {old:?}");
    let erases: Vec<u32> = taken.iter().filter(|one| one.kind == "erase").map(|one| one.block).collect();
    assert_eq!(erases, [1], "that of the run that trapped was not begun: {taken:?}");
    let erased_ns = old.iter().map(|one| one.end_ns).max().expect("an erase");
    let early: Vec<&Taken> = new.iter().filter(|one| one.begin_ns < erased_ns).collect();
    assert!(early.is_empty(), "the next FTL looks at flash that is still changing until {erased_ns}: {early:?}");
    assert!(answered <= 1, "{answered} writes were answered whose programs had not been done");
}
