//! Waiting ends: RPCs that wait for one another's threads, permissions that nobody answers about under a model of time, requests that are
//! taken back; and what is waited for is counted and costs once.

mod common;
use common::shared::Shared;
use common::slow::Valve;
use common::users::*;
use common::*;
use willow_device::clock::{Accelerator, Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::{RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };

/// Everything takes 100 ns; tells what accelerators and look-ups were asked for.
#[derive(Clone, Default)]
struct Even {
    compared_bytes: Shared<u64>,
    permission_checks: Shared<u64>,
}

impl Timing for Even {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 100, message.id);
    }
    fn dma(&mut self, at_ns: u64, _: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 100)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &Work) -> u64 {
        self.compared_bytes.set(self.compared_bytes.get() + work.accelerated.of(Accelerator::Compare));
        self.permission_checks.set(self.permission_checks.get() + u64::from(work.permission_checks));
        at_ns + 100
    }
}

/// An app with one thread on each SPU. Handler 1 sends an RPC to handler 2 of the SPU that its argument says, and answers with what that came
/// to: 5, or the error. Handler 2 answers 5; handler 3 is handler 1 with handler 3 as what it calls, until its argument is its own SPU.
const ONE_THREAD: &str = r#"(global $busy (mut i32) (i32.const 0))
    (func $start (param i32 i32) (result i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (global.get $busy) (then (return (i32.const 1))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then
            (call $respond (local.get 0) (i32.const 0) (i32.const 5)) (return (i32.const 0))))
        (global.set $busy (local.get 0))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
        (drop (call $rpc_finish
            (call $rpc_start (local.get 0) (i32.load (i32.const 0)) (i32.const -1) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0))
            (i32.const 1)))
        (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (global.get $busy) (i32.const 0) (i32.wrap_i64 (local.get 1)))
        (global.set $busy (i32.const 0)))"#;

#[test]
fn handlers_that_wait_for_one_anothers_threads_go_on() {
    for timing in [None, Some(Box::new(Even::default()) as Box<dyn Timing>)] {
        let mut rig = Rig::with(config(4), timing);
        let jammed = rig.install(&app("one-thread", ONE_THREAD, "")).expect("an app");
        let call =
            |rig: &mut Rig, spu: u16, other: u32| rig.begin(rig.hre, (jammed, 1, spu), &other.to_le_bytes(), &[], 0);
        let ends = |rig: &mut Rig| -> Vec<i32> {
            rig.settle();
            let done: Vec<_> = std::iter::from_fn(|| rig.device.completion()).collect();
            assert!(done.iter().all(|done| done.outcome == ANSWERED));
            done.iter().map(|done| done.result as i32).collect()
        };
        // A circle of two, of four, and of one: one RPC in each is refused, and all the others are answered.
        for circle in [vec![(0, 1), (1, 0)], vec![(0, 1), (1, 2), (2, 3), (3, 0)], vec![(2, 2)]] {
            circle.iter().for_each(|(spu, other)| call(&mut rig, *spu, *other));
            let mut results = ends(&mut rig);
            results.sort_unstable();
            assert_eq!(results.len(), circle.len());
            assert!(results[0] == -7 && results[1..].iter().all(|result| *result == 5), "{results:?}");
        }
        // A chain that ends somewhere: nothing is refused, however long the one at its end takes.
        for (spu, other) in [(0, 1), (1, 2), (2, 3)] {
            call(&mut rig, spu, other);
        }
        assert_eq!(ends(&mut rig), [5, 5, 5]);
        for _ in 0..3 {
            for spu in 0..4 {
                call(&mut rig, spu, (u32::from(spu) + 1) % 4);
            }
        }
        let results = ends(&mut rig);
        assert!(results.len() == 12 && results.iter().all(|result| matches!(result, 5 | -7)), "{results:?}");
        assert!(results.contains(&5), "{results:?}");
    }
}

#[test]
fn a_miss_that_nobody_answers_ends_under_a_model_of_time_and_counts_once() {
    let even = Even::default();
    let mut users = Users::under(Some(Box::new(even.clone())), config(1), 4 << 20);
    let alice = users.user(1000);
    let begin_ns = users.rig.now_ns;
    // Without an agent it fails at once.
    assert_eq!(users.read(alice.hre, users.mover, 0, 64), (ANSWERED, PERMISSION, vec![]));
    let misses = |users: &Users| users.rig.device.statistics().protection.misses;
    assert_eq!((misses(&users), even.permission_checks.get()), (1, 1), "one look-up that found nothing");
    assert!(users.rig.now_ns < begin_ns + 1_000_000);
    // With an agent that says nothing, after its time.
    let registered = users.rig.call(control::CONTROL_APP, control::REGISTER_AGENT, 0, &[], &[], 0);
    assert_eq!(registered.outcome, ANSWERED);
    let arguments = users.arguments(0, 64, PARKED_NV);
    let done = users.rig.call_on(alice.hre, (users.mover, 1, 0), &arguments, &[], 64);
    assert_eq!((done.outcome, done.result), (ANSWERED, PERMISSION));
    assert!(users.rig.now_ns >= begin_ns + 2_000_000_000, "{} ns", users.rig.now_ns);
    assert_eq!(misses(&users), 2);
}

#[test]
fn comparing_takes_the_accelerator() {
    let even = Even::default();
    let mut users = Users::under(Some(Box::new(even.clone())), config(1), 4 << 20);
    let compares = r#"(func $start (param i32 i32) (result i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 8)))
        (drop (call $compare (local.get 0) (i64.load (i32.const 0)) (i64.const 8) (i32.const 512) (local.get 0))) (i32.const 0))
        (func $complete (param i32 i64) (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;
    let compares = users.rig.install(&app("compares", compares, "")).expect("an app");
    let address = users.base.to_le_bytes();
    for (data, differs) in [(vec![0; 512], 0), (vec![1; 512], 1)] {
        let done = users.rig.call_on(users.rig.hre, (compares, 1, 0), &address, &data, 0);
        assert_eq!((done.outcome, done.result), (ANSWERED, differs));
    }
    assert_eq!(even.compared_bytes.get(), 1024);
}

#[test]
fn a_request_whose_answer_is_under_way_is_not_taken_back() {
    let mut users = Users::under(Some(Box::new(Even::default())), config(1), 4 << 20);
    let kernel = users.rig.hre;
    let answers = "(func $start (param i32 i32) (result i32) (call $respond (local.get 0) (i32.const 0) (i32.const 3)) (i32.const 0))";
    let answers = users.rig.install(&app("answers", answers, "")).expect("an app");
    users.rig.settle();
    let mut outcomes = Vec::new();
    // At all moments of its way: 100 ns there, 100 ns at work, 100 ns back.
    for at_ns in (0..=400).step_by(10) {
        let begin_ns = users.rig.now_ns;
        users.rig.device.set_time(begin_ns);
        users.rig.begin(kernel, (answers, 1, 0), &[], &[], 0);
        let tag = users.rig.last_tag();
        users.rig.now_ns = begin_ns + at_ns;
        users.rig.device.run(users.rig.now_ns);
        let early = users.rig.device.completion();
        let taken_back = users.rig.device.abort(kernel, tag);
        users.rig.settle();
        let done = early.or_else(|| users.rig.device.completion()).expect("it ends");
        assert!(users.rig.device.completion().is_none(), "once");
        let aborted = done.outcome == RpcOutcome::Aborted;
        assert_eq!(taken_back, aborted, "after {at_ns} ns: {:?}", done.outcome);
        outcomes.push(aborted);
    }
    assert_eq!(outcomes.iter().filter(|aborted| **aborted).count(), 10, "{outcomes:?}");
}

#[test]
fn a_store_whose_news_nobody_can_take_leaves_the_driver_its_say() {
    for timing in [None, Some(Box::new(Even::default()) as Box<dyn Timing>)] {
        let valve = Valve::default();
        let mut rig = Rig::slow(config(2), 1 << 30, timing, valve.clone());
        valve.alarms.set(true);
        let wake = rig.device.run(rig.now_ns);
        assert!(wake.is_some_and(|wake_ns| wake_ns <= rig.now_ns), "it is to be called again at once: {wake:?}");
        valve.alarms.set(false);
        rig.settle();
        assert_eq!(rig.device.run(rig.now_ns), None, "at rest");
    }
}
