//! What an app does in its own time: sleeping, cancelling, work in the background; under the free clock and under a model.

mod common;
use common::drive::Drive;
use common::even::Even;
use common::users::*;
use common::*;
use willow_device::clock::Timing;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::testing::tables;
use willow_device::{DeviceConfig, HreId, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const CANCELLED: u32 = -10i32 as u32;
const MS: u64 = 1_000_000;

fn clocks() -> [Option<Box<dyn Timing>>; 2] {
    [None, Some(Box::new(Even))]
}

/// Inline arguments of all handlers: u64 wait, u64 value, u64 port. What is waited for under a wait (1 to 62) ends the request that began it, with the
/// result; each end is counted at 512.
/// 1: sleeps `value` ns. 2: calls handler 3 of SPU 1 with the same arguments. 3: sleeps `value` ns, then answers 9 (on the caller's behalf: its wait
/// plus 62). 4: cancels `wait`. 5: asks the host. 6: reads 64 bytes at `value` from `port` into local memory, and 2000 times where that is NV memory. 7:
/// begins `value` rounds in the background. 8: a round each ms, counted at 520. 9: how many ends, and rounds << 16.
const TIMER: &str = r#"
    (func $asks (param $token i32) (param $spu i32) (param $handler i32) (result i32) (local $handle i32)
        (local.set $handle (call $rpc_start (local.get $token) (local.get $spu) (i32.const -1) (local.get $handler) (i32.const 16) (i32.const 600) (i32.const 0)))
        (drop (call $rpc_append (local.get $handle) (i32.const 0) (i64.const 0) (i32.const 16)))
        (call $rpc_finish (local.get $handle) (i32.load (i32.const 0))))
    (func $start (param $token i32) (param $handler i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get $handler)) (then (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.eq (local.get $handler) (i32.const 8)) (then
            (drop (call $receive_bytes (local.get $token) (i32.const 528) (i32.const 8)))
            (i32.store (i32.const 536) (local.get $token))
            (drop (call $sleep (i64.const 1000000) (i32.const 63)))
            (return (i32.const 0))))
        (drop (call $receive_bytes (local.get $token) (i32.const 0) (i32.const 24)))
        (if (i32.eq (local.get $handler) (i32.const 3)) (then
            (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 62)))))
        (if (i32.ne (local.get $handler) (i32.const 4)) (then
            (i32.store (i32.add (i32.const 1024) (i32.mul (i32.load (i32.const 0)) (i32.const 8))) (local.get $token))))
        (block $ended (block $waits
            (if (i32.eq (local.get $handler) (i32.const 1)) (then
                (local.set $code (call $sleep (i64.load (i32.const 8)) (i32.load (i32.const 0)))) (br $waits)))
            (if (i32.eq (local.get $handler) (i32.const 2)) (then
                (local.set $code (call $asks (local.get $token) (i32.const 1) (i32.const 3))) (br $waits)))
            (if (i32.eq (local.get $handler) (i32.const 3)) (then
                (local.set $code (call $sleep (i64.load (i32.const 8)) (i32.load (i32.const 0)))) (br $waits)))
            (if (i32.eq (local.get $handler) (i32.const 4)) (then
                (local.set $code (call $cancel (local.get $token) (i32.load (i32.const 0)))) (br $ended)))
            (if (i32.eq (local.get $handler) (i32.const 5)) (then
                (local.set $code (call $asks (local.get $token) (i32.const -1) (i32.const 7))) (br $waits)))
            (if (i32.eq (local.get $handler) (i32.const 6)) (then
                (local.set $code (call $dma_strided (local.get $token) (i32.load (i32.const 16)) (i64.load (i32.const 8)) (i64.const 0)
                    (i32.const 0) (i64.const 4096) (i64.const 0) (i32.const 64)
                    (select (i32.const 2000) (i32.const 1) (i32.eq (i32.load (i32.const 16)) (i32.const 1))) (i32.load (i32.const 0))))
                (br $waits)))
            (if (i32.eq (local.get $handler) (i32.const 7)) (then
                (local.set $code (call $background (i32.const 8) (i64.load (i32.const 8)))) (br $ended)))
            (if (i32.eq (local.get $handler) (i32.const 9)) (then
                (local.set $code (i32.or (i32.load (i32.const 512)) (i32.shl (i32.load (i32.const 520)) (i32.const 16)))) (br $ended)))
            (br $ended))
            (if (i32.eq (local.get $code) (i32.const 1)) (then (return (i32.const 0)))))
        (call $respond (local.get $token) (i32.const 0) (local.get $code))
        (i32.const 0))
    (func $complete (param $wait i32) (param $result i64)
        (if (i32.eq (local.get $wait) (i32.const 63)) (then
            (i32.store (i32.const 520) (i32.add (i32.load (i32.const 520)) (i32.const 1)))
            (i64.store (i32.const 528) (i64.sub (i64.load (i32.const 528)) (i64.const 1)))
            (if (i64.eqz (i64.load (i32.const 528)))
                (then (call $respond (i32.load (i32.const 536)) (i32.const 0) (i32.const 0)))
                (else (drop (call $sleep (i64.const 1000000) (i32.const 63)))))
            (return)))
        (i32.store (i32.const 512) (i32.add (i32.load (i32.const 512)) (i32.const 1)))
        (call $respond (i32.load (i32.add (i32.const 1024) (i32.mul (local.get $wait) (i32.const 8)))) (i32.const 0)
            (select (i32.const 9) (i32.wrap_i64 (local.get $result)) (i32.gt_u (local.get $wait) (i32.const 63)))))"#;

const HANDLERS: &str =
    "handler=5:five\\nhandler=6:six\\nhandler=7:seven\\nhandler=8:eight\\nhandler=9:nine\\npublic=*\\n";

fn timer() -> Vec<u8> {
    app("timer", TIMER, HANDLERS)
}

fn arguments(wait: u64, value: u64, port: u64) -> Vec<u8> {
    [wait, value, port].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Runs for as long as something can be done without time passing.
fn still(rig: &mut Rig) {
    for _ in 0..200 {
        rig.device.run(rig.now_ns);
    }
}

#[test]
fn a_sleep_takes_its_time_under_every_clock_and_nobody_elses() {
    for timing in clocks() {
        let timed = timing.is_some();
        let mut rig = Rig::with(config(2), timing);
        let app = rig.install(&timer()).unwrap();
        let (hre, begin_ns) = (rig.hre, rig.now_ns);
        // The longer one was begun first; what needs no sleep does not wait for either.
        rig.begin(hre, (app, 1, 0), &arguments(1, 50 * MS, 0), &[], 0);
        rig.begin(hre, (app, 1, 0), &arguments(2, 20 * MS, 0), &[], 0);
        rig.begin(hre, (app, 1, 0), &arguments(3, 0, 0), &[], 0);
        rig.begin(hre, (app, 9, 0), &arguments(4, 0, 0), &[], 0);
        let mut ends = Vec::new();
        for _ in 0..10_000 {
            let wake = rig.device.run(rig.now_ns);
            while let Some(done) = rig.device.completion() {
                assert_eq!(done.outcome, ANSWERED);
                ends.push((done.tag, rig.now_ns - begin_ns));
            }
            let Some(at_ns) = wake else { break };
            rig.now_ns = rig.now_ns.max(at_ns);
        }
        let first = rig.last_tag() - 3;
        let ended = |tag: u64| ends.iter().find(|(of, _)| *of == tag).expect("it ends").1;
        // A modelled request takes 100 ns to come, to run, to run again, and to leave.
        let most = if timed { 1000 } else { 0 };
        for (tag, slept_ns) in [(first, 50 * MS), (first + 1, 20 * MS), (first + 2, 0), (first + 3, 0)] {
            assert!((slept_ns..=slept_ns + most).contains(&ended(tag)), "{ends:?}");
        }
        assert!(!timed || ended(first) == 50 * MS + 400, "to the nanosecond: {ends:?}");
        assert_eq!(tables(&rig.device).sleeping, 0);
        // More than a day is an error.
        let done = rig.call(app, 1, 0, &arguments(1, 86_400_000 * MS + 1, 0), &[], 0);
        assert_eq!(done.result, -2i32 as u32);
    }
}

#[test]
fn what_is_cancelled_ends_once_and_at_once() {
    for timing in clocks() {
        let mut rig = Rig::with(config(2), timing);
        let app = rig.install(&timer()).unwrap();
        let hre = rig.hre;
        let begin_ns = rig.now_ns;
        // A sleep, a call of a handler that sleeps, an upcall.
        for (handler, wait) in [(1, 1), (2, 2), (5, 3)] {
            rig.begin(hre, (app, handler, 0), &arguments(wait, 1000 * MS, 0), &[], 0);
        }
        let mut until_ns = begin_ns;
        let mut run_for = |rig: &mut Rig, ns: u64| {
            until_ns += ns;
            rig.now_ns = until_ns;
            rig.device.set_time(until_ns);
            still(rig);
        };
        run_for(&mut rig, 10_000);
        assert!(rig.device.completion().is_none());
        for wait in [1, 2, 3, 1, 40] {
            rig.begin(hre, (app, 4, 0), &arguments(wait, 0, 0), &[], 0);
        }
        run_for(&mut rig, 10_000);
        let mut results = Vec::new();
        while let Some(done) = rig.device.completion() {
            assert_eq!(done.outcome, ANSWERED);
            results.push(done.result);
        }
        results.sort_unstable();
        assert_eq!(results, [0, 0, 0, 1, 1, CANCELLED, CANCELLED, CANCELLED], "three, and nothing twice");
        assert!(rig.device.upcall(hre).is_none(), "the upcall is withdrawn");
        // The handler that was called sleeps on, and its answer is nobody's.
        assert_eq!(tables(&rig.device).sleeping, 1);
        // Others that wait meanwhile, in what places they may have had, are not told of it.
        for wait in [6, 7, 8] {
            rig.begin(hre, (app, 1, 0), &arguments(wait, 5000 * MS, 0), &[], 0);
        }
        run_for(&mut rig, 2000 * MS);
        assert!(rig.device.completion().is_none());
        run_for(&mut rig, 5000 * MS);
        assert_eq!(std::iter::from_fn(|| rig.device.completion()).map(|done| done.result).sum::<u32>(), 0);
        let ends = |rig: &mut Rig| {
            rig.begin(hre, (app, 9, 0), &arguments(5, 0, 0), &[], 0);
            let now_ns = rig.now_ns;
            rig.device.run(now_ns + 10_000);
            rig.now_ns += 10_000;
            still(rig);
            rig.device.completion().expect("it ends").result
        };
        assert_eq!(ends(&mut rig), 6);
        let left = tables(&rig.device);
        assert_eq!((left.groups, left.upcalls, left.sleeping, left.activities), (0, 0, 0, 0), "{left:?}");
    }
}

#[test]
fn an_upcall_that_was_fetched_and_cancelled_has_no_answer() {
    let mut rig = Rig::new(1);
    let app = rig.install(&timer()).unwrap();
    let hre = rig.hre;
    rig.begin(hre, (app, 5, 0), &arguments(1, 0, 0), &[], 0);
    still(&mut rig);
    let upcall = rig.device.upcall(hre).expect("it is there");
    assert_eq!(rig.call(app, 4, 0, &arguments(1, 0, 0), &[], 0).outcome, ANSWERED);
    assert!(!rig.device.answer_upcall(hre, upcall.id, 0, 5), "nobody waits");
    rig.settle();
    assert_eq!(rig.device.completion().map(|done| done.result).into_iter().filter(|result| *result == 5).count(), 0);
    assert_eq!(rig.call(app, 9, 0, &arguments(2, 0, 0), &[], 0).result, 1);
}

#[test]
fn dmas_that_are_parked_or_in_line_are_cancelled_and_those_at_the_store_are_not() {
    let mut users = Users::new(config(1));
    let app = users.rig.install(&timer()).unwrap();
    let alice = users.user(1000);
    assert_eq!(users.control(control::REGISTER_AGENT, &[]).0, 0);
    users.grant(&alice, READ, 65536, 65536);
    let base = users.base;
    let begin = |users: &mut Users, handler: u8, arguments: &[u8]| {
        users.rig.begin(alice.hre, (app, handler, 0), arguments, &[], 0);
        still(&mut users.rig);
    };
    let ends = |users: &mut Users| -> Vec<u32> {
        still(&mut users.rig);
        std::iter::from_fn(|| users.rig.device.completion()).map(|done| done.result).collect()
    };
    // No permission: parked, until it is cancelled.
    begin(&mut users, 6, &arguments(1, base, PARKED_NV.into()));
    assert_eq!((tables(&users.rig.device).parked, ends(&mut users)), (1, vec![]));
    begin(&mut users, 4, &arguments(1, 0, 0));
    let mut results = ends(&mut users);
    results.sort_unstable();
    assert_eq!((tables(&users.rig.device).parked, results), (0, vec![0, CANCELLED]));
    // 2000 pieces of which the store has places for 1024: the rest waits in line, and is cancelled; the others end first.
    users.valve.closed.set(true);
    begin(&mut users, 6, &arguments(2, base + 65536, NV.into()));
    let before = tables(&users.rig.device);
    assert_eq!((before.in_line, before.operations), (1, 1024));
    begin(&mut users, 4, &arguments(2, 0, 0));
    assert_eq!((tables(&users.rig.device).in_line, ends(&mut users)), (0, vec![0]), "the store works on the others");
    begin(&mut users, 4, &arguments(2, 0, 0));
    assert_eq!(ends(&mut users), [1], "they cannot be cancelled");
    users.valve.closed.set(false);
    assert_eq!(ends(&mut users), [CANCELLED]);
    assert_eq!(tables(&users.rig.device).groups, 0);
}

#[test]
fn work_in_the_background_holds_up_no_upgrade_and_goes_with_its_version() {
    let media = FaultMedia::new(FaultOptions::new(2, 1 << 26));
    let mut drive = Drive::open(&media).unwrap();
    let app = drive.install(&timer()).unwrap();
    let call = |drive: &mut Drive, handler: u8, value: u64| {
        let hre = drive.hre;
        drive.send(hre, (app, handler, 0), &arguments(1, value, 0), 0).expect("it ends").result
    };
    assert_eq!(call(&mut drive, 7, u64::MAX), 0);
    let sleeping = |drive: &Drive| (tables(&drive.device).background, tables(&drive.device).sleeping);
    assert_eq!(sleeping(&drive), (1, 1));
    // Time passes, and rounds are done.
    assert_eq!(call(&mut drive, 1, 10 * MS), 0);
    let rounds = call(&mut drive, 9, 0) >> 16;
    assert!((9..=11).contains(&rounds), "{rounds}");
    let begin_ns = drive.now_ns();
    assert_eq!(drive.install(&timer()), Ok(app), "nobody waits for it");
    assert!(drive.now_ns() < begin_ns + 1000 * MS, "no deadline passed");
    assert_eq!(sleeping(&drive), (0, 0), "it went with its version");
    assert_eq!(call(&mut drive, 9, 0), 0, "the new version has a memory of its own");
    // A handler that a host waits for does hold an upgrade up, as ever.
    let hre = drive.hre;
    let slow = drive.device.open_hre(None).unwrap();
    drive.begin(slow, (app, 1, 0), &arguments(1, 60_000 * MS, 0));
    let refused = drive.install_on(hre, &timer()).unwrap_err();
    assert!(refused.contains("have not ended within 5 s"), "{refused}");
}

#[test]
fn an_app_that_ends_leaves_nobody_asleep_and_its_waiters_are_told() {
    for timing in clocks() {
        let mut rig = Rig::with(config(2), timing);
        let app = rig.install(&timer()).unwrap();
        let hre = rig.hre;
        rig.begin(hre, (app, 1, 0), &arguments(1, 86_400_000 * MS, 0), &[], 0);
        rig.begin(hre, (app, 7, 0), &arguments(2, 1_000_000, 0), &[], 0);
        let until_ns = rig.now_ns + 50_000;
        rig.now_ns = until_ns;
        still(&mut rig);
        assert_eq!(rig.device.completion().expect("the background has begun").result, 0);
        assert_eq!(tables(&rig.device).sleeping, 2);
        // A removal waits 5 s for requests of hosts, and for nothing else.
        rig.begin(hre, (control::CONTROL_APP, control::REMOVE, 0), &[], b"timer", 0);
        for _ in 0..100 {
            still(&mut rig);
            rig.now_ns += 100 * MS;
        }
        let outcomes: Vec<RpcOutcome> =
            std::iter::from_fn(|| rig.device.completion()).map(|done| done.outcome).collect();
        assert!(outcomes.contains(&RpcOutcome::AppEnded) && outcomes.contains(&ANSWERED), "{outcomes:?}");
        let left = tables(&rig.device);
        assert_eq!((left.sleeping, left.background, left.groups, left.activities), (0, 0, 0, 0), "{left:?}");
    }
}

/// Handler 1: sleeps for ever as often as it is let, and says how often. 2: begins work in the background in the same manner, which does so too.
const HOARDER: &str = r#"(func $start (param $token i32) (param $handler i32) (result i32) (local $count i32)
    (if (i32.eqz (local.get $handler)) (then (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
    (if (i32.eq (local.get $handler) (i32.const 3)) (then (drop (call $sleep (i64.const 86400000000000) (i32.const 0))) (return (i32.const 0))))
    (block $refused (loop $l
        (br_if $refused (i32.eq (i32.const -7) (if (result i32) (i32.eq (local.get $handler) (i32.const 1))
            (then (call $sleep (i64.const 86400000000000) (i32.const 0)))
            (else (call $background (i32.const 3) (i64.const 0))))))
        (local.set $count (i32.add (local.get $count) (i32.const 1)))
        (br_if $l (i32.lt_u (local.get $count) (i32.const 500)))))
    (call $respond (local.get $token) (i32.const 0) (local.get $count)) (i32.const 0))
    (func $complete (param i32 i64))"#;

#[test]
fn who_hoards_sleeps_or_background_work_is_refused_alone() {
    for timing in clocks() {
        let mut users = Users::under(timing, DeviceConfig { user_instruction_budget: 400_000, ..config(1) }, 4 << 20);
        let (mallory, alice) = (users.user(6666), users.user(1000));
        let hoarder = users.install_for(mallory.hre, &app("hoarder", HOARDER, "")).expect("an app");
        let own = users.install_for(alice.hre, &app("timer", TIMER, HANDLERS)).expect("an app");
        let call = |users: &mut Users, hre: HreId, app: u16, handler: u8, arguments: &[u8]| {
            users.rig.begin(hre, (app, handler, 0), arguments, &[], 0);
            for _ in 0..2 {
                still(&mut users.rig);
                users.rig.now_ns += 10 * MS;
            }
            still(&mut users.rig);
            users.rig.device.completion().map(|done| (done.outcome, done.result))
        };
        for handler in [1, 2] {
            let mut counts = Vec::new();
            for _ in 0..100 {
                let (outcome, count) = call(&mut users, mallory.hre, hoarder, handler, &[]).expect("it ends");
                assert_eq!(outcome, ANSWERED);
                counts.push(count);
            }
            assert_eq!(counts.last(), Some(&0), "handler {handler} is refused in the end");
            assert!(counts[0] == 500, "{counts:?}");
        }
        let full = tables(&users.rig.device);
        assert!(full.sleeping > 1000 && full.background > 1000 && full.waits <= 32_768, "{full:?}");
        // Another user's app finds places of both kinds.
        assert_eq!(call(&mut users, alice.hre, own, 7, &arguments(1, 3, 0)), Some((ANSWERED, 0)));
        assert_eq!(call(&mut users, alice.hre, own, 1, &arguments(1, MS, 0)), Some((ANSWERED, 0)));
        assert_eq!(call(&mut users, alice.hre, own, 9, &arguments(1, 0, 0)).map(|it| it.1 & 0xffff), Some(1));
    }
}

/// Handler 1 begins handler 2 in the background, as often as it is let; each of those computes nearly as much as a run may, for ever, and yields in
/// between. Handler 3 computes as much once.
const TIRELESS: &str = r#"(func $compute (local $left i32)
        (local.set $left (i32.const 50000))
        (loop $l (br_if $l (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
    (func $work (call $compute)
        (drop (call $sleep (i64.const 0) (i32.const 1))))
    (func $start (param $token i32) (param $handler i32) (result i32) (local $left i32)
        (if (i32.eq (local.get $handler) (i32.const 2)) (then (call $work) (return (i32.const 0))))
        (if (i32.eq (local.get $handler) (i32.const 3)) (then (call $compute)))
        (if (i32.eq (local.get $handler) (i32.const 1)) (then
            (local.set $left (i32.const 100))
            (loop $l
                (drop (call $background (i32.const 2) (i64.const 0)))
                (br_if $l (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))
        (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (i32.const 0))
    (func $complete (param i32 i64) (call $work))"#;
const RUN_BUDGET: u64 = 400_000;

struct Tireless {
    users: Users,
    is_modelled: bool,
    mallory: User,
    alice: User,
}

impl Tireless {
    /// Mallory's apps work in the background, so much as they are let, on one SPU.
    fn new(timing: Option<Box<dyn Timing>>) -> Tireless {
        let is_modelled = timing.is_some();
        let config = DeviceConfig { user_instruction_budget: RUN_BUDGET, ..config(1) };
        let mut users = Users::under(timing, config, 4 << 20);
        let (mallory, alice) = (users.user(6666), users.user(1000));
        let mut world = Tireless { users, is_modelled, mallory, alice };
        for name in ["tireless", "restless"] {
            let app = world.ask(world.mallory.hre, (0, control::INSTALL), &[], &app(name, TIRELESS, ""));
            for _ in 0..12 {
                world.ask(world.mallory.hre, (app as u16, 1), &[], &[]);
            }
        }
        assert!(tables(&world.users.rig.device).background > 1000, "{:?}", tables(&world.users.rig.device));
        world
    }

    /// What apps of a user have computed.
    fn work_of(&self, user: &str) -> u64 {
        let apps = self.users.rig.device.statistics().apps;
        apps.iter().filter(|app| app.name.starts_with(user)).map(|app| app.counters.instructions).sum()
    }

    fn step(&mut self) {
        let now_ns = self.users.rig.now_ns;
        self.users.rig.now_ns = self.users.rig.device.run(now_ns).unwrap_or(now_ns).max(now_ns);
        while let Some(job) = self.users.rig.device.job() {
            let done = job.run();
            self.users.rig.device.job_done(done);
        }
    }

    /// What a request comes to beside all that.
    fn ask(&mut self, hre: HreId, (app, handler): (u16, u8), arguments: &[u8], payload: &[u8]) -> u32 {
        self.users.rig.device.set_time(self.users.rig.now_ns);
        self.users.rig.begin(hre, (app, handler, 0), arguments, payload, 0);
        for _ in 0..1_000_000 {
            self.step();
            if let Some(done) = self.users.rig.device.completion() {
                assert_eq!(done.outcome, ANSWERED);
                return done.result;
            }
        }
        panic!("it does not end")
    }
}

#[test]
fn one_users_work_in_the_background_holds_up_no_other_users_apps() {
    for timing in clocks() {
        let mut world = Tireless::new(timing);
        let alice = world.alice.hre;
        let is_modelled = world.is_modelled;
        // Where time is modelled, many runs of the other's take place while she sleeps.
        for step in ["new", "upgrade", "background"].into_iter().take(if is_modelled { 2 } else { 3 }) {
            let before = world.work_of("u6666-");
            let number = world.ask(alice, (0, control::INSTALL), &[], &timer()) as u16;
            if step == "background" {
                // Three rounds, with a millisecond in between.
                assert_eq!(world.ask(alice, (number, 7), &arguments(1, 3, 0), &[]), 0);
                while tables(&world.users.rig.device).background > 0
                    && world.ask(alice, (number, 9), &arguments(1, 0, 0), &[]) >> 16 < 3
                {
                    world.users.rig.now_ns += MS;
                }
            }
            let runs = (world.work_of("u6666-") - before) / RUN_BUDGET;
            assert!(runs < 40, "{step}: after {runs} runs of another's");
        }
    }
}

#[test]
fn what_a_users_apps_do_for_nobody_is_a_part_of_the_users_share() {
    let mut world = Tireless::new(None);
    let hres = [world.mallory.hre, world.alice.hre];
    let apps = hres.map(|hre| world.ask(hre, (0, control::INSTALL), &[], &app("busy", TIRELESS, "")) as u16);
    let begun = [world.work_of("u6666-"), world.work_of("u1000-")];
    for (hre, app) in hres.into_iter().zip(apps) {
        for _ in 0..200 {
            world.users.rig.begin(hre, (app, 3, 0), &[], &[], 0);
        }
    }
    // While both have requests.
    let mut left = [200; 2];
    while left.iter().all(|left| *left > 50) {
        world.step();
        while let Some(done) = world.users.rig.device.completion() {
            left[usize::from(done.hre == hres[1])] -= 1;
        }
    }
    let had = [world.work_of("u6666-") - begun[0], world.work_of("u1000-") - begun[1]];
    let part = had[0] as f64 / (had[0] + had[1]) as f64;
    assert!((0.45..0.55).contains(&part), "{part} of what both had: {had:?}");
}

/// Calls of a device that has more to do than a call may: so many until what was asked of the control service has ended.
const CALLS_MAX: u32 = 200;

#[test]
fn a_modelled_device_that_falls_behind_answers_the_control_service() {
    let mut world = Tireless::new(Some(Box::new(Even)));
    let alice = world.alice.hre;
    world.ask(alice, (0, control::INSTALL), &[], &timer());
    // An upgrade waits for answers of the app.
    let now_ns = world.users.rig.now_ns;
    world.users.rig.device.set_time(now_ns);
    world.users.rig.begin(alice, (0, control::INSTALL, 0), &[], &timer(), 0);
    // Its driver says that an hour has passed, and another with each call, in which there is work without end.
    for call in 0.. {
        assert!(call < CALLS_MAX, "it is not installed");
        world.users.rig.device.run(now_ns + (1 + u64::from(call)) * 3_600_000 * MS);
        while let Some(job) = world.users.rig.device.job() {
            let done = job.run();
            world.users.rig.device.job_done(done);
        }
        if let Some(done) = world.users.rig.device.completion() {
            assert_eq!(done.outcome, ANSWERED);
            break;
        }
    }
}

/// Calls of a device that is always behind: so many until another user's request has ended, at most.
const CALLS_OF_OTHERS_MAX: u32 = 60;

#[test]
fn a_modelled_device_that_is_always_behind_answers_others_after_a_bounded_amount_of_work() {
    let mut world = Tireless::new(Some(Box::new(Even)));
    let alice = world.alice.hre;
    let quick = "(func $start (param i32 i32) (result i32) (call $respond (local.get 0) (i32.const 0) (i32.const 7)) (i32.const 0))";
    let number = world.ask(alice, (0, control::INSTALL), &[], &app("quick", quick, "")) as u16;
    let mut now_ns = world.users.rig.now_ns;
    for request in 0..50 {
        world.users.rig.device.set_time(now_ns);
        world.users.rig.begin(alice, (number, 1, 0), &[], &[], 0);
        let mut calls = 0;
        let done = loop {
            // The machine does in each of them what takes the modelled hardware a fraction of the time that passes.
            now_ns += 200 * MS;
            let wake_ns = world.users.rig.device.run(now_ns);
            assert!(wake_ns.is_some_and(|at_ns| at_ns <= now_ns), "it has more to do");
            if let Some(done) = world.users.rig.device.completion() {
                break done;
            }
            calls += 1;
            assert!(calls < CALLS_OF_OTHERS_MAX, "request {request} has not ended");
        };
        assert_eq!((done.hre, done.outcome, done.result), (alice, ANSWERED, 7));
        world.users.rig.device.delivered(now_ns, done.at_ns);
    }
    let clock = world.users.rig.device.statistics().clock.expect("it is a modelled device");
    assert!(!clock.keeps_up && clock.waited_ns > 1000 * MS, "{clock:?}");
    assert!(clock.statement.contains("modelled time has waited"), "{}", clock.statement);
}
