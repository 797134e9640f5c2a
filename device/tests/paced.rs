//! Runs of users' apps that take the machine longer than their instructions say make way for others, and come to the same. Nothing here measures time:
//! the clock that the device asks is the test's.

mod common;
use common::even::Even;
use common::users::*;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use willow_device::clock::Timing;
use willow_device::testing::tables;
use willow_device::{DeviceConfig, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
/// What a run of a user's app may do.
const BUDGET: u64 = 400_000;
/// Rounds of a run that is most of the budget: a round is some 13 units.
const ROUNDS: u32 = 25_000;
/// What a run takes of the test's clock that is as fast as it should be, and one that is slow.
const QUICK_NS: u64 = 50_000;
const SLOW_NS: u64 = 3_000_000;
/// Runs until a slow app is known for one: each counts for a millisecond at most.
const RUNS_UNTIL_KNOWN: u32 = 3;
/// Reads of another user's beside a run that is cut into slices of some 4,000 units, at least; and beside one that is not, at most.
const READS_BESIDE_CUT: u32 = 50;
const READS_BESIDE_WHOLE: u32 = 2;

/// Its first argument says how many rounds a handler goes, its second how often it prints before and after. Handler 2 answers with what the rounds come to.
/// Handler 3 sleeps for no time, and does so when that is over. Handler 4 answers with how many ends of waits there were. Whatever enters the instance while
/// a handler is in its rounds ends the app.
const COMPUTES: &str = r#"
    (global $within (mut i32) (i32.const 0)) (global $ends (mut i32) (i32.const 0))
    (global $token (mut i32) (i32.const 0)) (global $rounds (mut i32) (i32.const 0)) (global $prints (mut i32) (i32.const 0))
    (func $enter (if (global.get $within) (then (unreachable))))
    (func $say (local $left i32)
        (local.set $left (global.get $prints))
        (block $done (loop $again (br_if $done (i32.eqz (local.get $left)))
            (call $print (i32.const 1024) (i32.const 4096))
            (local.set $left (i32.sub (local.get $left) (i32.const 1))) (br $again))))
    (func $compute (param $token i32) (local $left i32) (local $sum i32)
        (global.set $within (i32.const 1))
        (call $say)
        (local.set $left (global.get $rounds))
        (loop $l
            (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (local.get $left)))
            (br_if $l (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (call $say)
        (global.set $within (i32.const 0))
        (call $respond (local.get $token) (i32.const 0) (local.get $sum)))
    (func $start (param i32 i32) (result i32)
        (call $enter)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (call $respond (local.get 0) (i32.const 0) (global.get $ends)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 8)))
        (global.set $rounds (i32.load (i32.const 0))) (global.set $prints (i32.load (i32.const 4)))
        (if (i32.eq (local.get 1) (i32.const 3))
            (then (global.set $token (local.get 0)) (drop (call $sleep (i64.const 0) (i32.const 8))))
            (else (call $compute (local.get 0))))
        (i32.const 0))
    (func $complete (param i32 i64)
        (call $enter)
        (global.set $ends (i32.add (global.get $ends) (i32.const 1)))
        (call $compute (global.get $token)))"#;

/// What so many rounds come to.
fn sum(rounds: u32) -> u32 {
    (1..=rounds).rev().fold(0_u32, |sum, left| sum.wrapping_mul(31).wrapping_add(left))
}

/// A clock that goes on by so much each time that it is looked at.
#[derive(Clone, Default)]
struct Clock(Arc<[AtomicU64; 3]>);

impl Clock {
    fn look(&self) -> u64 {
        let [now_ns, step_ns, looks] = &*self.0;
        looks.fetch_add(1, Ordering::Relaxed);
        now_ns.fetch_add(step_ns.load(Ordering::Relaxed), Ordering::Relaxed) + step_ns.load(Ordering::Relaxed)
    }

    /// From now on what is looked at takes so long.
    fn goes(&self, step_ns: u64) {
        self.0[1].store(step_ns, Ordering::Relaxed);
    }

    fn looks(&self) -> u64 {
        self.0[2].load(Ordering::Relaxed)
    }
}

struct World {
    users: Users,
    mallory: User,
    alice: User,
    app: u16,
    clock: Clock,
}

impl World {
    fn under(timing: Option<Box<dyn Timing>>) -> World {
        let config = DeviceConfig { user_instruction_budget: BUDGET, ..config(2) };
        let mut users = Users::under(timing, config, 1 << 20);
        let clock = Clock::default();
        let asked = clock.clone();
        users.rig.device.set_clock(Box::new(move || asked.look()));
        let (mallory, alice) = (users.user(6666), users.user(1000));
        let extents = Users::extents(alice.process, &[(0, READ, users.base, 65536)]);
        assert_eq!(users.rig.call(control::CONTROL_APP, control::GRANT, 0, &[], &extents, 0).outcome, ANSWERED);
        let app = users.install_for(mallory.hre, &app("computes", COMPUTES, "")).expect("an app");
        World { users, mallory, alice, app, clock }
    }

    fn new() -> World {
        World::under(None)
    }

    fn begin(&mut self, (handler, spu): (u8, u16), rounds: u32, prints: u32) {
        let arguments = [rounds.to_le_bytes(), prints.to_le_bytes()].concat();
        self.users.rig.begin(self.mallory.hre, (self.app, handler, spu), &arguments, &[], 0);
    }

    /// Has a handler compute; what it ends with, and how many reads of another user's end before it does.
    fn compute(&mut self, on: (u8, u16), rounds: u32, prints: u32) -> ((RpcOutcome, u32), u32) {
        self.begin(on, rounds, prints);
        let (alice, arguments) = (self.alice.hre, self.users.arguments(0, 512, NV));
        let mut reads = 0;
        loop {
            assert!(reads < 10_000, "it does not end");
            self.users.rig.begin(alice, (self.users.mover, 1, 0), &arguments, &[], 512);
            let mut is_read = false;
            for _ in 0..1000 {
                self.users.run_once();
                while let Some(done) = self.users.completion() {
                    if done.hre == self.mallory.hre {
                        self.users.rig.settle();
                        while self.users.completion().is_some() {}
                        return ((done.outcome, done.result), reads);
                    }
                    assert_eq!((done.hre, done.outcome, done.result), (alice, ANSWERED, 0));
                    is_read = true;
                }
                if is_read {
                    break;
                }
            }
            assert!(is_read, "a read does not end");
            reads += 1;
        }
    }

    /// The app turns out to be slow; until then its runs are whole.
    fn turn_slow(&mut self) {
        self.clock.goes(SLOW_NS);
        for _ in 0..RUNS_UNTIL_KNOWN {
            let (end, reads) = self.compute((2, 0), ROUNDS, 0);
            assert_eq!(end, (ANSWERED, sum(ROUNDS)));
            assert!(reads <= READS_BESIDE_WHOLE, "{reads} reads");
        }
    }

    fn is_cut(&mut self, on: (u8, u16)) -> bool {
        let (end, reads) = self.compute(on, ROUNDS, 0);
        assert_eq!(end, (ANSWERED, sum(ROUNDS)), "it comes to the same");
        assert!(reads <= READS_BESIDE_WHOLE || reads >= READS_BESIDE_CUT, "{reads} reads");
        reads >= READS_BESIDE_CUT
    }

    fn log(&mut self) -> String {
        self.users.rig.log("u6666-computes")
    }

    fn check_rest(&mut self) {
        self.users.rig.settle();
        let left = tables(&self.users.rig.device);
        assert_eq!((left.transfers, left.activities, left.groups, left.waits), (0, 0, 0, 0), "{left:?}");
    }
}

#[test]
fn runs_that_take_long_make_way_and_come_to_the_same() {
    let mut world = World::new();
    world.clock.goes(QUICK_NS);
    for _ in 0..50 {
        assert!(!world.is_cut((2, 0)), "a run that takes no longer than it should makes no way");
    }
    assert!(!world.log().contains("make way"));
    world.turn_slow();
    // On the other SPU as well, and where the end of a wait begins it.
    for on in [(2, 0), (2, 1), (3, 0), (3, 1)] {
        assert!(world.is_cut(on), "{on:?}");
    }
    assert_eq!(world.log().matches("make way").count(), 1, "{}", world.log());
    // What is asked of it meanwhile waits, since nothing enters an instance whose run makes way.
    for handler in [2, 4, 2, 4] {
        world.begin((handler, 0), ROUNDS, 0);
    }
    world.users.rig.settle();
    let ends = std::iter::from_fn(|| world.users.completion()).map(|done| (done.outcome, done.result));
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by_key(|(_, result)| *result);
    let (waits, comes_to) = ((ANSWERED, 1), (ANSWERED, sum(ROUNDS)));
    let mut expected = vec![waits, waits, comes_to, comes_to];
    expected.sort_by_key(|(_, result)| *result);
    assert_eq!(ends, expected);
    world.check_rest();
}

#[test]
fn a_run_that_makes_way_has_the_budget_that_it_had() {
    // A line of 4096 bytes is some 25,000 units. What was charged in slices that are over counts as well: 5 lines, rounds, 5 lines.
    let fits = (2, 9_000, 5);
    let does_not = [(2, 36_000, 0), (2, 19_000, 5), (3, 36_000, 0), (3, 19_000, 5)];
    for is_slow in [false, true] {
        for (handler, rounds, prints) in does_not {
            let mut world = World::new();
            if is_slow {
                world.turn_slow();
            }
            let (end, _) = world.compute((fits.0, 0), fits.1, fits.2);
            assert_eq!(end, (ANSWERED, sum(fits.1)), "it is within its budget: {is_slow}");
            let (end, reads) = world.compute((handler, 0), rounds, prints);
            assert_eq!(end, (RpcOutcome::AppEnded, 0), "{handler}, {rounds} rounds, {prints} lines: {is_slow}");
            assert_eq!(reads > READS_BESIDE_WHOLE, is_slow, "{reads} reads");
            let apps = world.users.rig.device.statistics().apps;
            let app = apps.into_iter().find(|app| app.name == "u6666-computes").expect("it is listed");
            assert!(app.ended.is_some_and(|why| why.contains("instruction_budget")));
            world.check_rest();
        }
    }
}

#[test]
fn an_app_that_is_slow_stays_so_when_it_is_reset_and_not_when_it_is_replaced_or_removed() {
    let mut world = World::new();
    world.turn_slow();
    for (handler, payload) in [(control::RESET_APP, &b"computes"[..]), (control::REMOVE, b"computes")] {
        world.begin((2, 0), ROUNDS, 0);
        for _ in 0..5 {
            world.users.run_once();
        }
        assert!(world.users.completion().is_none(), "it is under way");
        world.users.rig.begin(world.mallory.hre, (control::CONTROL_APP, handler, 0), &[], payload, 0);
        world.users.rig.settle();
        let ends: Vec<_> = std::iter::from_fn(|| world.users.completion()).map(|done| done.outcome).collect();
        // A removal waits for what was begun.
        let run = if handler == control::RESET_APP { RpcOutcome::AppEnded } else { ANSWERED };
        assert_eq!(ends, [run, ANSWERED]);
        world.check_rest();
        if handler == control::RESET_APP {
            assert!(world.is_cut((2, 0)) && world.is_cut((2, 1)));
        }
    }
    let module = app("computes", COMPUTES, "");
    for _ in 0..2 {
        world.app = world.users.install_for(world.mallory.hre, &module).expect("an app");
        world.clock.goes(QUICK_NS);
        assert!(!world.is_cut((2, 0)), "another version is not known to be slow");
        world.turn_slow();
        assert!(world.is_cut((2, 0)));
    }
}

#[test]
fn what_cannot_take_long_and_what_nobody_would_hear_of_is_not_looked_at() {
    let mut world = World::new();
    world.clock.goes(SLOW_NS);
    // Short runs, and those of apps of the kernel.
    for _ in 0..100 {
        assert_eq!(world.compute((2, 0), 100, 0).0, (ANSWERED, sum(100)));
    }
    let kernels = world.users.rig.install(&app("computes", COMPUTES, "")).expect("an app");
    for _ in 0..10 {
        let arguments = [ROUNDS.to_le_bytes(), [0; 4]].concat();
        let done = world.users.rig.call(kernels, 2, 0, &arguments, &[], 0);
        assert_eq!((done.outcome, done.result), (ANSWERED, sum(ROUNDS)));
    }
    assert_eq!(world.clock.looks(), 0);
    world.turn_slow();
    assert_eq!(world.clock.looks(), u64::from(RUNS_UNTIL_KNOWN), "one look for each long run");
    // Under a model of time the machine's time is nobody's business.
    let mut world = World::under(Some(Box::new(Even)));
    world.clock.goes(SLOW_NS);
    for _ in 0..10 {
        world.begin((2, 0), ROUNDS, 0);
        world.users.rig.settle();
        let done = world.users.completion().expect("it has ended");
        assert_eq!((done.outcome, done.result), (ANSWERED, sum(ROUNDS)));
    }
    assert_eq!(world.clock.looks(), 0);
}
