//! Apps that ask for long runs (`long=1`): a run of theirs may do as much as one of the kernel's apps, makes way for others after each slice,
//! and nothing else enters its instance meanwhile. Nothing here measures time: what comes before what is.

mod common;
use common::users::*;
use common::*;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::testing::tables;
use willow_device::{DeviceConfig, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
/// What one run of a user's app may do, and what one of an app that asks for long runs may.
const SMALL: u64 = 400_000;
const LARGE: u64 = 20_000_000;
/// Rounds of a loop that is more than the small budget, and less than the large one.
const ROUNDS: u32 = 1_000_000;

/// Handler 1 answers with what `complete` counted. Handler 2 goes round so often as its first argument says, does `body` each time, and
/// answers with 2. Handler 3 begins two sleeps of no time. Handler 4 sleeps, and computes when that is over. Whatever enters the instance
/// while a handler is in the middle of its rounds ends the app.
fn computes(body: &str) -> String {
    format!(
        r#"(global $within (mut i32) (i32.const 0)) (global $ends (mut i32) (i32.const 0)) (global $token (mut i32) (i32.const 0)) (global $goal (mut i32) (i32.const 0))
        (func $enter (if (global.get $within) (then (unreachable))))
        (func $rounds (param $token i32) (param $left i32)
            (global.set $within (i32.const 1))
            (loop $l {body} (br_if $l (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
            (global.set $within (i32.const 0)))
        (func $start (param i32 i32) (result i32)
            (call $enter)
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (if (i32.eq (local.get 1) (i32.const 2)) (then
                (call $rounds (local.get 0) (i32.load (i32.const 0)))
                (call $respond (local.get 0) (i32.const 0) (i32.const 2)) (return (i32.const 0))))
            (if (i32.eq (local.get 1) (i32.const 3)) (then
                (drop (call $sleep (i64.const 0) (i32.const 7)))
                (drop (call $sleep (i64.const 0) (i32.const 7)))))
            (if (i32.eq (local.get 1) (i32.const 4)) (then
                (global.set $token (local.get 0)) (global.set $goal (i32.load (i32.const 0)))
                (drop (call $sleep (i64.const 0) (i32.const 8))) (return (i32.const 0))))
            (call $respond (local.get 0) (i32.const 0) (global.get $ends)) (i32.const 0))
        (func $complete (param i32 i64)
            (call $enter)
            (global.set $ends (i32.add (global.get $ends) (i32.const 1)))
            (if (i32.eq (local.get 0) (i32.const 8)) (then
                (call $rounds (global.get $token) (global.get $goal))
                (call $respond (global.get $token) (i32.const 0) (i32.const 4)))))"#
    )
}

struct World {
    users: Users,
    mallory: User,
    alice: User,
    app: u16,
}

impl World {
    fn under(timing: Option<Box<dyn Timing>>, body: &str, lines: &str) -> World {
        let config = DeviceConfig { instruction_budget: LARGE, user_instruction_budget: SMALL, ..config(1) };
        let mut users = Users::under(timing, config, 1 << 20);
        let (mallory, alice) = (users.user(6666), users.user(1000));
        let extents = Users::extents(alice.process, &[(0, READ, users.base, 65536)]);
        assert_eq!(users.rig.call(control::CONTROL_APP, control::GRANT, 0, &[], &extents, 0).outcome, ANSWERED);
        let app = users.install_for(mallory.hre, &app("computes", &computes(body), lines)).expect("an app");
        World { users, mallory, alice, app }
    }

    fn new(body: &str, lines: &str) -> World {
        World::under(None, body, lines)
    }

    /// Asks for a handler of the app.
    fn ask(&mut self, handler: u8, rounds: u32) {
        self.users.rig.begin(self.mallory.hre, (self.app, handler, 0), &rounds.to_le_bytes(), &[], 0);
    }

    /// Asks for it, and has the device begin with it.
    fn begin(&mut self, handler: u8, rounds: u32) {
        self.ask(handler, rounds);
        self.users.run_once();
    }

    /// How many times another user's requests had their turn before something of the app's user ended: see [`turns_of_a_read`].
    fn turns_before_the_end(&mut self, most: u32) -> (u32, Option<(RpcOutcome, u32)>) {
        let (reads, end) = self.reads_before_the_end(most);
        (reads * turns_of_a_read(), end)
    }

    /// How many reads of another user's end before something of the app's user does, at most `most`; and the app's end.
    fn reads_before_the_end(&mut self, most: u32) -> (u32, Option<(RpcOutcome, u32)>) {
        let (alice, arguments) = (self.alice.hre, self.users.arguments(0, 512, NV));
        for reads in 0..most {
            self.users.rig.begin(alice, (self.users.mover, 1, 0), &arguments, &[], 512);
            let mut is_read = false;
            for _ in 0..1000 {
                self.users.run_once();
                while let Some(done) = self.users.completion() {
                    if done.hre != alice {
                        return (reads, Some((done.outcome, done.result)));
                    }
                    assert_eq!((done.outcome, done.result), (ANSWERED, 0));
                    is_read = true;
                }
                if is_read {
                    break;
                }
            }
            assert!(is_read, "a read does not end");
        }
        (most, None)
    }

    fn ends(&mut self) -> Vec<(RpcOutcome, u32)> {
        self.users.rig.settle();
        let (app, ended) = (self.mallory.hre, std::iter::from_fn(|| self.users.completion()));
        ended.filter(|done| done.hre == app).map(|done| (done.outcome, done.result)).collect()
    }

    /// Nothing is under way any more.
    fn check_rest(&mut self) {
        self.users.rig.settle();
        let left = tables(&self.users.rig.device);
        assert_eq!((left.transfers, left.activities, left.groups, left.waits), (0, 0, 0, 0), "{left:?}");
    }
}

#[test]
fn a_long_run_may_do_more_and_makes_way_for_others_after_each_slice() {
    let mut world = World::new("", "long=1\\n");
    world.begin(2, ROUNDS);
    // Each slice is half of the small budget, and a round some 7 instructions.
    let (turns, end) = world.turns_before_the_end(10_000);
    assert_eq!(end, Some((ANSWERED, 2)));
    assert!((20..=40).contains(&turns), "{turns} turns");
    world.check_rest();
    // Without the line it may do as much as any user's app.
    let mut world = World::new("", "");
    world.begin(2, ROUNDS);
    assert_eq!(world.reads_before_the_end(10_000).1, Some((RpcOutcome::AppEnded, 0)));
}

#[test]
fn what_spu_os_does_for_a_long_run_is_cut_into_slices_as_well() {
    // Some 12,000 units of work for few instructions, 1000 times.
    for body in [
        "(call $print (i32.const 0) (i32.const 2048))",
        "(drop (call $dma_strided (local.get $token) (i32.const 3) (i64.const 0) (i64.const 0) (i32.const 0) (i64.const 4096) (i64.const 8) (i32.const 1) (i32.const 80) (i32.const 0)))",
        "(drop (call $dma (local.get $token) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 4096) (i32.const 49152) (i32.const 0)))",
    ] {
        let mut world = World::new(body, "long=1\\n");
        world.begin(2, 1000);
        let (turns, end) = world.turns_before_the_end(10_000);
        assert_eq!(end, Some((ANSWERED, 2)), "{body}");
        // DMAs move 48 MiB in all: an instruction's worth for four bytes where the first MiB has been moved.
        assert!((20..=100).contains(&turns), "{turns} turns: {body}");
        let host_work = world.users.rig.device.statistics().apps.iter().map(|app| app.counters.host_work).max();
        assert!(host_work > Some(4_000_000), "{host_work:?}: {body}");
    }
}

#[test]
fn a_long_run_that_does_not_end_is_ended_by_the_large_budget() {
    for body in ["(br $l)", "(call $print (i32.const 0) (i32.const 4096)) (br $l)"] {
        let mut world = World::new(body, "long=1\\n");
        world.begin(2, 1);
        let (turns, end) = world.turns_before_the_end(10_000);
        assert_eq!(end, Some((RpcOutcome::AppEnded, 0)), "{body}");
        assert!((LARGE / SMALL..=4 * LARGE / SMALL).contains(&turns.into()), "{turns} turns: {body}");
        let app = world.users.rig.device.statistics().apps.into_iter().find(|app| app.name == "u6666-computes");
        let app = app.expect("it is listed");
        assert!(app.ended.is_some_and(|why| why.contains("instruction_budget")));
        let had = app.counters.instructions + app.counters.host_work;
        assert!((LARGE - LARGE / 100..=LARGE + LARGE / 100).contains(&had), "{had} of {LARGE}");
        world.check_rest();
    }
}

#[test]
fn the_bytes_of_a_long_runs_dmas_count_together() {
    // A budget of 64 MiB, moved by 1 MiB; what is past it is refused, whatever slice it is in.
    let body = "(if (i32.eq (i32.const -7) (call $dma (local.get $token) (i32.const 3) (i64.const 0) (i32.const 2) (i64.const 0) (i32.const 1048576) (i32.const 0)))
        (then (call $count (i32.const 1) (i64.const 1))) (else (call $count (i32.const 0) (i64.const 1))))";
    let mut world = World::new(body, "long=1\\n");
    let (mallory, app) = (world.mallory.hre, world.app);
    let done = world.users.rig.call_on(mallory, (app, 2, 0), &80u32.to_le_bytes(), &[], 1 << 20);
    assert_eq!((done.outcome, done.result), (ANSWERED, 2));
    let app = world.users.rig.device.statistics().apps.into_iter().find(|app| app.name == "u6666-computes");
    let counters = app.expect("it is listed").user;
    assert_eq!((counters[0], counters[1]), (64, 16));
}

#[test]
fn one_import_of_a_long_run_is_bounded_by_the_small_budget() {
    // 150 for each segment: what fits, and what does not.
    for (segments, outcome) in [(2600, (ANSWERED, 2)), (2700, (RpcOutcome::AppEnded, 0))] {
        let body = format!(
            "(drop (call $dma_strided (local.get $token) (i32.const 3) (i64.const 0) (i64.const 0) (i32.const 0) (i64.const 4096) (i64.const 8) (i32.const 1) (i32.const {segments}) (i32.const 0)))"
        );
        let mut world = World::new(&body, "long=1\\n");
        world.ask(2, 10);
        assert_eq!(world.ends(), [outcome], "{segments} segments");
    }
}

#[test]
fn nothing_enters_an_instance_while_its_run_makes_way() {
    let mut world = World::new("", "long=1\\n");
    // Two sleeps end, and requests come, while a run is in its middle: it would trap if any got in.
    world.ask(3, 0);
    world.begin(2, ROUNDS);
    world.ask(1, 0);
    world.begin(3, 0);
    let (reads, end) = world.reads_before_the_end(10_000);
    // The first to answer is what went before it.
    assert_eq!((reads, end), (0, Some((ANSWERED, 0))));
    let (turns, end) = world.turns_before_the_end(10_000);
    assert_eq!(end, Some((ANSWERED, 2)));
    assert!(turns >= 20, "{turns} turns");
    let ends = world.ends();
    assert!(ends.len() == 2 && ends.iter().all(|(outcome, _)| *outcome == ANSWERED), "{ends:?}");
    // All that ended was told, once.
    world.ask(1, 0);
    assert_eq!(world.ends(), [(ANSWERED, 4)]);
    // The same for a run that begins with the end of a wait.
    world.ask(4, ROUNDS);
    world.begin(3, 0);
    world.ask(1, 0);
    let ends = world.ends();
    assert_eq!(ends.len(), 3, "{ends:?}");
    assert!(ends.contains(&(ANSWERED, 4)) && ends.iter().all(|(outcome, _)| *outcome == ANSWERED), "{ends:?}");
    world.ask(1, 0);
    assert_eq!(world.ends(), [(ANSWERED, 7)]);
    world.check_rest();
}

#[test]
fn an_app_is_replaced_and_removed_in_the_middle_of_a_long_run() {
    let mut world = World::new("", "long=1\\n");
    for handler in [control::INSTALL, control::REMOVE] {
        // What waits for its end, and its end, are there when it goes.
        world.ask(3, 0);
        world.begin(2, u32::MAX);
        world.begin(1, 0);
        let module = app("computes", &computes(""), "long=1\\n");
        let payload = if handler == control::INSTALL { &module[..] } else { b"computes" };
        world.users.rig.begin(world.mallory.hre, (control::CONTROL_APP, handler, 0), &[], payload, 0);
        let ends = world.ends();
        assert_eq!(ends.len(), 4, "{ends:?}");
        let ended = ends.iter().filter(|(outcome, _)| *outcome == RpcOutcome::AppEnded).count();
        // It goes past its budget before the drain is over: the upgrade follows an app that has ended.
        assert!(ended >= 1, "{ends:?}");
        world.check_rest();
    }
    assert!(world.users.rig.device.app_number("u6666-computes").is_none());
}

#[test]
fn a_suspended_run_goes_with_its_instance() {
    // The device is killed, or its app removed, with a run in the middle: nothing of it is left, and others go on.
    let mut world = World::new("", "long=1\\n");
    world.begin(2, ROUNDS);
    drop(world);
    let mut world = World::new("", "long=1\\n");
    // A handler that has answered already, and computes on: a removal does not wait for it.
    let answers = "(if (i32.eqz (global.get $ends)) (then (global.set $ends (i32.const 1)) (call $respond (local.get $token) (i32.const 0) (i32.const 5))))";
    let module = app("computes", &computes(answers), "long=1\\n");
    let number = world.users.install_for(world.mallory.hre, &module).expect("an app");
    assert_eq!(number, world.app);
    world.begin(2, ROUNDS);
    let (reads, end) = world.reads_before_the_end(100);
    assert_eq!((reads, end), (0, Some((ANSWERED, 5))), "it has answered");
    world.users.rig.begin(world.mallory.hre, (control::CONTROL_APP, control::REMOVE, 0), &[], b"computes", 0);
    assert_eq!(world.ends(), [(ANSWERED, 0)]);
    world.check_rest();
    assert!(world.users.rig.device.app_number("u6666-computes").is_none());
}

/// Everything takes a while.
struct Even;

impl Timing for Even {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 100, message.id);
    }
    fn dma(&mut self, at_ns: u64, _: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 50)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &Work) -> u64 {
        at_ns + work.instructions.unwrap_or(0)
    }
}

/// One run of the app, beside reads of another user's, one after the other: how the run ended, how many reads ended before, the longest of them in
/// modelled time, and when all was over.
fn reads_beside_a_modelled_run(body: &str, rounds: u32) -> ((RpcOutcome, u32), u32, u64, u64) {
    let mut world = World::under(Some(Box::new(Even)), body, "long=1\\n");
    world.users.rig.device.set_time(world.users.rig.now_ns);
    let (alice, arguments) = (world.alice.hre, world.users.arguments(0, 512, NV));
    world.ask(2, rounds);
    let (mut reads, mut longest_ns) = (0, 0);
    let end = 'over: loop {
        let begun_ns = world.users.rig.now_ns;
        world.users.rig.begin(alice, (world.users.mover, 1, 0), &arguments, &[], 512);
        loop {
            let wake_ns = world.users.run_once();
            if let Some(done) = world.users.completion() {
                if done.hre != alice {
                    break 'over (done.outcome, done.result);
                }
                assert_eq!((done.outcome, done.result), (ANSWERED, 0));
                break;
            }
            world.users.rig.now_ns = world.users.rig.now_ns.max(wake_ns.expect("the read has not ended"));
        }
        longest_ns = longest_ns.max(world.users.rig.now_ns - begun_ns);
        reads += 1;
    };
    world.check_rest();
    (end, reads, longest_ns, world.users.rig.now_ns)
}

#[test]
fn under_a_model_of_time_a_long_run_makes_way_as_well() {
    // A read has three runs of a hundred instructions or so, and waits for one slice at each of them.
    let read_max_ns = 3 * (SMALL / 2 + 10_000);
    let rounds_end = reads_beside_a_modelled_run("", ROUNDS);
    let ((end, reads, longest_ns, over_ns), endless) = (rounds_end, reads_beside_a_modelled_run("(br $l)", 1));
    assert_eq!(end, (ANSWERED, 2));
    assert!(reads >= 10, "{reads} reads");
    assert!((SMALL / 4..=read_max_ns).contains(&longest_ns), "{longest_ns} ns: no read waited, or one for more");
    assert!(over_ns > 10 * SMALL, "{over_ns} ns");
    // The same each time.
    assert_eq!(reads_beside_a_modelled_run("", ROUNDS), rounds_end);
    // What goes on for ever is ended by the large budget.
    let (end, reads, longest_ns, over_ns) = endless;
    assert_eq!(end, (RpcOutcome::AppEnded, 0));
    assert!(reads >= 30 && longest_ns <= read_max_ns && over_ns > LARGE, "{endless:?}");
}

#[test]
fn under_a_model_of_time_nothing_enters_an_instance_whose_run_makes_way() {
    let mut world = World::under(Some(Box::new(Even)), "", "long=1\\n");
    world.users.rig.device.set_time(world.users.rig.now_ns);
    // Sleeps end, and requests come, while runs are in their middle: those that began with a request, and with the end of a wait.
    world.ask(3, 0);
    world.ask(2, ROUNDS);
    world.ask(4, ROUNDS);
    world.ask(3, 0);
    world.ask(1, 0);
    let ends = world.ends();
    assert!(ends.len() == 5 && ends.iter().all(|(outcome, _)| *outcome == ANSWERED), "{ends:?}");
    world.ask(1, 0);
    assert_eq!(world.ends(), [(ANSWERED, 5)], "the end of each sleep is told once");
    // It goes in the middle of a run.
    world.ask(2, u32::MAX);
    world.users.rig.begin(world.mallory.hre, (control::CONTROL_APP, control::REMOVE, 0), &[], b"computes", 0);
    let ends = world.ends();
    assert_eq!(ends.len(), 2, "{ends:?}");
    world.check_rest();
    assert!(world.users.rig.device.app_number("u6666-computes").is_none());
}

#[test]
fn a_manifest_asks_for_long_runs_by_one_value() {
    let mut rig = Rig::new(1);
    let refused = rig.install(&app("computes", &computes(""), "long=2\\n"));
    assert!(refused.as_ref().is_err_and(|why| why.contains("is not long=1")), "{refused:?}");
}
