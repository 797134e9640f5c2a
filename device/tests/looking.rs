//! What looking into apps takes is paid for by who looks, within bounds, and leaves the device and others what is theirs.

mod common;
use common::users::*;
use common::*;
use willow_device::control::{self, ControlStatus, CoreInfo, DebugState, ProfileReport};
use willow_device::{HreId, RpcOutcome};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const ENDED: RpcOutcome = RpcOutcome::AppEnded;
/// A user whose app it is, and one who calls it.
const OWNER: u32 = 1000;
const CALLER: u32 = 1001;

/// Handler 1: 42. 2: counts down from 2000, two calls deep. 3: traps. 4: sleeps for an hour, so often as its first argument says.
const HANDLERS: &str = r#"(func $start (param i32 i32) (result i32) (local i32)
    (if (i32.lt_u (local.get 1) (i32.const 2))
        (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
    (if (i32.eq (local.get 1) (i32.const 2)) (then (call $outer)))
    (if (i32.eq (local.get 1) (i32.const 3)) (then (unreachable)))
    (if (i32.eq (local.get 1) (i32.const 4)) (then
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
        (local.set 2 (i32.load (i32.const 0)))
        (loop $again
            (drop (call $sleep (i64.const 3600000000000) (local.get 2)))
            (br_if $again (local.tee 2 (i32.sub (local.get 2) (i32.const 1)))))
        (return (i32.const 0))))
    (call $respond (local.get 0) (i32.const 0) (i32.const 7)) (i32.const 0))
    (func $outer (call $inner))
    (func $inner (local i32)
        (local.set 0 (i32.const 2000))
        (loop $again (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))"#;
/// Instructions that the loop of handler 2 has at least.
const LOOP_INSTRUCTIONS: u64 = 2000 * 5;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A request to the control service: status, and reply.
fn ask(users: &mut Users, hre: HreId, handler: u8, arguments: &[u8]) -> (u32, Vec<u8>) {
    let done = users.rig.call_on(hre, (control::CONTROL_APP, handler, 0), arguments, &[], 65536);
    let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
    let length = if status == 0 { done.result.min(65536) as usize } else { 0 };
    (status, done.buffer[..length].to_vec())
}

/// What SPU-OS has done for a user's processes.
fn work_of(users: &Users, user: u32) -> u64 {
    let accounts = users.rig.device.statistics().accounts;
    accounts.iter().filter(|account| account.user == Some(user)).map(|account| account.counters.host_work).sum()
}

/// What it does for a user while that happens.
fn work_for<R>(users: &mut Users, user: u32, happens: impl FnOnce(&mut Users) -> R) -> (u64, R) {
    let before = work_of(users, user);
    let came = happens(users);
    (work_of(users, user) - before, came)
}

/// The owner, the caller, and the owner's app.
fn two_users() -> (Users, User, User, u16) {
    let mut users = Users::new(config(2));
    let (alice, bob) = (users.user(OWNER), users.user(CALLER));
    let own = users.install_for(alice.hre, &app("scan", HANDLERS, "public=*\\n")).unwrap();
    (users, alice, bob, own)
}

fn stop_of(users: &mut Users, hre: HreId, app: u16, spu: usize) -> Option<String> {
    let (status, states) = ask(users, hre, control::DEBUG_STATE, &words(&[0, app.into()]));
    assert_eq!(status, 0);
    let states: Vec<DebugState> = serde_json::from_slice(&states).unwrap();
    states[spu].stop.as_ref().map(|stop| stop.reason.clone())
}

#[test]
fn what_single_steps_take_is_their_debuggers_to_pay_and_makes_way_for_others() {
    let (mut users, alice, bob, own) = two_users();
    assert_eq!(ask(&mut users, alice.hre, control::BEGIN_DEBUG, &words(&[own.into(), 0])).0, 0);
    assert_eq!(ask(&mut users, alice.hre, control::DEBUG_TELL, &words(&[own.into(), 0, 4])).0, 0, "pause");
    users.rig.begin(bob.hre, (own, 2, 0), &[], &[], 0);
    users.rig.settle();
    assert_eq!(stop_of(&mut users, alice.hre, own, 0).as_deref(), Some("pause"));
    // No stack has 0 frames: it is stepped through to its end.
    let (alices, bobs) = (work_of(&users, OWNER), work_of(&users, CALLER));
    let step = words(&[own.into(), 0, 3, 0]);
    users.rig.begin(alice.hre, (control::CONTROL_APP, control::DEBUG_TELL, 0), &step, &[], 0);
    let (mut turns, mut told, mut answer, mut answered_by) = (0u64, false, None, 0);
    while answer.is_none() {
        let now_ns = users.rig.now_ns;
        users.rig.device.run(now_ns);
        turns += 1;
        assert!(turns < 1_000_000, "it goes on");
        while let Some(done) = users.rig.device.completion() {
            match done.tag {
                tag if tag == users.rig.last_tag() && !told => {
                    told = true;
                    // Somebody else's request, in the middle of it.
                    let kernel = users.rig.hre;
                    users.rig.begin(kernel, (users.mover, 5, 1), &users.arguments(users.base, 512, NV), &[], 0);
                }
                tag if tag == users.rig.last_tag() => answered_by = turns,
                _ => answer = Some(done),
            }
        }
    }
    assert_eq!((answer.map(|done| done.result), told), (Some(7), true));
    assert!(answered_by > 0 && answered_by < turns / 2, "{answered_by} of {turns}: others do not wait for all of it");
    // A look costs more than 1000 instructions; a turn of the device does work of 262144 and what it had begun.
    let cost = work_of(&users, OWNER) - alices;
    assert!(cost > LOOP_INSTRUCTIONS * 1000, "{cost}");
    assert!(turns > cost / 262_144 / 2, "{turns} turns for {cost}");
    assert!(work_of(&users, CALLER) - bobs < 10_000, "who calls the app pays for none of it");
}

#[test]
fn what_a_debugger_is_told_costs_what_it_takes() {
    let (mut users, alice, bob, own) = two_users();
    assert_eq!(users.rig.call_on(alice.hre, (own, 3, 0), &[], &[], 0).outcome, ENDED);
    // A core: its memory of 64 KiB.
    let (cost, (status, reply)) =
        work_for(&mut users, OWNER, |users| ask(users, alice.hre, control::READ_CORE, &words(&[0, own.into(), 0])));
    assert_eq!((status, reply.len()), (0, 65536));
    assert!(cost >= 65536 / 2, "{cost}");
    let header = 4 + u32::from_le_bytes(reply[..4].try_into().unwrap()) as usize;
    assert_eq!(serde_json::from_slice::<CoreInfo>(&reply[4..header]).unwrap().memory_bytes, 65536);
    // Fresh instances.
    let (cost, _) = work_for(&mut users, OWNER, |users| {
        users.rig.call_on(alice.hre, (control::CONTROL_APP, control::RESET_APP, 0), &[], b"scan", 0)
    });
    assert!(cost >= 2 * 500_000, "{cost}");
    assert_eq!(ask(&mut users, alice.hre, control::BEGIN_DEBUG, &words(&[own.into(), 0])).0, 0);
    let breakpoints: Vec<u32> = [own.into(), u32::MAX, 1].into_iter().chain(0..1000).collect();
    let (cost, done) = work_for(&mut users, OWNER, |users| {
        users.rig.call_on(alice.hre, (control::CONTROL_APP, control::DEBUG_TELL, 0), &[], &words(&breakpoints), 0)
    });
    assert_eq!(done.outcome, ANSWERED);
    assert!(cost >= 2 * 1000 * 1000, "{cost}");
    // As many that are all alike are still as many that it is handed.
    let alike: Vec<u32> = [own.into(), u32::MAX, 1].into_iter().chain([5; 1025]).collect();
    let done =
        users.rig.call_on(alice.hre, (control::CONTROL_APP, control::DEBUG_TELL, 0), &[], &words(&alike), 0).outcome;
    assert_eq!(done, RpcOutcome::Answered { status: ControlStatus::NoRoom as u32 });
    assert_eq!(ask(&mut users, alice.hre, control::DEBUG_TELL, &words(&[own.into(), 0, 4])).0, 0, "pause");
    users.rig.begin(bob.hre, (own, 1, 0), &[], &[], 0);
    users.rig.settle();
    // Stack, values, memory and module: kind, two words, and what it costs at least.
    for (kind, first, second, least) in [(1, 0, 0, 3000), (2, 0, 0, 3000), (3, 0, 32768, 16384), (4, 0, 0, 500)] {
        let question = words(&[0, own.into(), 0, kind, first, second]);
        let (cost, (status, _)) =
            work_for(&mut users, OWNER, |users| ask(users, alice.hre, control::DEBUG_QUERY, &question));
        assert_eq!(status, 0);
        assert!(cost >= least, "{kind}: {cost}");
    }
}

#[test]
fn the_module_of_a_debugger_is_read_beside_the_device_and_held_against_its_hash() {
    let (mut users, alice, _, own) = two_users();
    let begin = (control::CONTROL_APP, control::BEGIN_DEBUG, 0);
    let read = users.valve.blobs_read.get();
    users.rig.begin(alice.hre, begin, &words(&[own.into(), 0]), &[], 0);
    let now_ns = users.rig.now_ns;
    users.rig.device.run(now_ns);
    assert_eq!(users.valve.blobs_read.get(), read, "the device has not waited for the media");
    let job = users.rig.device.job().expect("a module to compile");
    users.valve.damages_blobs.set(true);
    users.rig.device.job_done(job.run());
    users.valve.damages_blobs.set(false);
    assert_eq!(users.valve.blobs_read.get(), read + 1);
    users.rig.settle();
    let done = users.rig.device.completion().expect("it is refused");
    assert_eq!(done.outcome, RpcOutcome::Answered { status: ControlStatus::ModuleRefused as u32 });
    let text = ask(&mut users, alice.hre, control::ERROR_TEXT, &[]).1;
    assert!(String::from_utf8_lossy(&text).contains("is damaged"), "{}", String::from_utf8_lossy(&text));
    // The app runs as before, and is debugged when its module is as it was.
    assert_eq!(users.rig.call_on(alice.hre, (own, 1, 0), &[], &[], 0).result, 42);
    assert_eq!(ask(&mut users, alice.hre, control::BEGIN_DEBUG, &words(&[own.into(), 0])).0, 0);
}

#[test]
fn debuggers_that_are_about_to_begin_count_and_end_with_the_device() {
    let (mut users, alice, _, own) = two_users();
    let second = users.install_for(alice.hre, &app("other", HANDLERS, "")).unwrap();
    let begin = |users: &mut Users, app: u16| {
        let to = (control::CONTROL_APP, control::BEGIN_DEBUG, 0);
        users.rig.begin(alice.hre, to, &words(&[app.into(), 0]), &[], 0);
        let now_ns = users.rig.now_ns;
        users.rig.device.run(now_ns);
        users.rig.device.completion().map(|done| done.outcome)
    };
    assert_eq!(begin(&mut users, own), None, "its module is being compiled");
    let busy = RpcOutcome::Answered { status: ControlStatus::Busy as u32 };
    assert_eq!(begin(&mut users, second), Some(busy), "a user has one");
    let job = users.rig.device.job().expect("it was begun");
    // The device ends, and does not wait for the compiler.
    users.rig.device.shutdown();
    for _ in 0..100 {
        let now_ns = users.rig.now_ns;
        users.rig.device.run(now_ns);
    }
    assert!(users.rig.device.is_shut_down());
    assert_eq!(users.rig.device.completion().map(|done| done.outcome), Some(busy));
    // What the compiler brings then finds nobody.
    users.rig.device.job_done(job.run());
}

#[test]
fn an_app_that_traps_before_its_debugger_has_said_anything_goes_on_after_the_longest_stop() {
    let (mut users, alice, bob, own) = two_users();
    let (begun_ns, to) = (users.rig.now_ns, (control::CONTROL_APP, control::BEGIN_DEBUG, 0));
    // The device does not come to rest while it has to look whether a stop has lasted long enough.
    let run = |users: &mut Users, after_ms: u64| {
        for _ in 0..10 {
            users.rig.device.run(begun_ns + after_ms * 1_000_000);
            while let Some(job) = users.rig.device.job() {
                users.rig.device.job_done(job.run());
            }
        }
        users.rig.device.completion().map(|done| done.outcome)
    };
    users.rig.begin(alice.hre, to, &words(&[own.into(), 100]), &[], 0);
    assert_eq!(run(&mut users, 0), Some(ANSWERED));
    users.rig.begin(bob.hre, (own, 3, 0), &[], &[], 0);
    for after_ms in [0, 30, 60] {
        assert_eq!(run(&mut users, after_ms), None, "it has stopped where it traps");
    }
    assert_eq!(run(&mut users, 200), Some(ENDED));
}

#[test]
fn an_app_whose_debugger_is_gone_before_its_instances_are_there_never_stops() {
    let (mut users, alice, bob, own) = two_users();
    // Something is under way at the media: fresh instances wait for it.
    users.valve.closed.set(true);
    let kernel = users.rig.hre;
    let (mover, arguments) = (users.mover, users.arguments(users.base, 512, NV));
    users.rig.begin(kernel, (mover, 1, 0), &arguments, &[], 512);
    users.rig.begin(alice.hre, (control::CONTROL_APP, control::BEGIN_DEBUG, 0), &words(&[own.into(), 0]), &[], 0);
    for _ in 0..3 {
        let now_ns = users.rig.now_ns;
        users.rig.device.run(now_ns);
        if let Some(job) = users.rig.device.job() {
            users.rig.device.job_done(job.run());
        }
    }
    assert_eq!(users.valve.waiting(), 1);
    users.rig.device.close_hre(alice.hre);
    users.valve.closed.set(false);
    users.rig.settle();
    while users.rig.device.completion().is_some() {}
    assert_eq!(users.rig.call_on(bob.hre, (own, 1, 0), &[], &[], 0).result, 42);
    assert_eq!(
        users.rig.call_on(bob.hre, (own, 3, 0), &[], &[], 0).outcome,
        ENDED,
        "nobody is there whom it stops for"
    );
}

/// Past all that happens before.
const LATER_NS: u64 = 1_000_000_000_000;

/// Sends one RPC and waits for its end, at a time of its own: no time goes by, so that a profile goes on.
fn at(users: &mut Users, now_ns: u64, hre: HreId, to: (u16, u8, u16), arguments: &[u8]) -> (RpcOutcome, Vec<u8>) {
    users.rig.begin(hre, to, arguments, &[], 65536);
    for _ in 0..1000 {
        users.rig.device.run(now_ns);
        if let Some(done) = users.rig.device.completion() {
            return (done.outcome, done.buffer[..done.result.min(65536) as usize].to_vec());
        }
    }
    panic!("no end of {to:?}")
}

fn begin_profile(users: &mut Users, now_ns: u64, hre: HreId, app: u16, milliseconds: u32) -> RpcOutcome {
    at(users, now_ns, hre, (control::CONTROL_APP, control::BEGIN_PROFILE, 0), &words(&[app.into(), milliseconds])).0
}

fn report(users: &mut Users, now_ns: u64, hre: HreId) -> Option<ProfileReport> {
    let (outcome, json) = at(users, now_ns, hre, (control::CONTROL_APP, control::READ_PROFILE, 0), &[0; 4]);
    (outcome == ANSWERED).then(|| serde_json::from_slice(&json).unwrap())
}

#[test]
fn a_profile_makes_way_for_other_users_in_the_order_in_which_they_asked() {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut users = Users::new(config(1));
    let (alice, bob, carol) = (users.user(1000), users.user(1001), users.user(1002));
    let apps = [&alice, &bob, &carol]
        .map(|user| users.install_for(user.hre, &app("scan", HANDLERS, "public=*\\n")).expect("an app"));
    let busy = RpcOutcome::Answered { status: ControlStatus::Busy as u32 };
    let longest_ms = 600_000;
    assert_eq!(begin_profile(&mut users, LATER_NS, alice.hre, apps[0], longest_ms), ANSWERED);
    // The same user's other wishes end nothing.
    assert_eq!(begin_profile(&mut users, LATER_NS, alice.hre, apps[0], longest_ms), busy);
    users.rig.device.run(LATER_NS + 30 * SECOND_NS);
    let now_ns = LATER_NS + 60 * SECOND_NS;
    assert!(report(&mut users, now_ns, alice.hre).is_some(), "nobody else wants one");
    // It has lasted a turn: the first who asks has it ended, and is next, also before whose it was.
    assert_eq!(begin_profile(&mut users, now_ns, bob.hre, apps[1], longest_ms), busy);
    assert_eq!(begin_profile(&mut users, now_ns, carol.hre, apps[2], longest_ms), busy);
    users.rig.device.run(now_ns + 1);
    assert!(report(&mut users, now_ns + 1, alice.hre).is_none());
    assert_eq!(begin_profile(&mut users, now_ns + 1, alice.hre, apps[0], longest_ms), busy);
    assert_eq!(begin_profile(&mut users, now_ns + 1, carol.hre, apps[2], longest_ms), busy);
    assert_eq!(begin_profile(&mut users, now_ns + 1, bob.hre, apps[1], longest_ms), ANSWERED);
    // Others wait: it has a turn of ten seconds, all of it, and no more.
    for second in 1..10 {
        assert_eq!(begin_profile(&mut users, now_ns + second * SECOND_NS, carol.hre, apps[2], longest_ms), busy);
    }
    assert!(report(&mut users, now_ns + 10 * SECOND_NS, bob.hre).is_some());
    users.rig.device.run(now_ns + 10 * SECOND_NS + 2);
    assert!(report(&mut users, now_ns + 10 * SECOND_NS + 2, bob.hre).is_none());
    // Who has waited longest does not ask any more, and is forgotten after a while.
    let now_ns = now_ns + 20 * SECOND_NS;
    assert_eq!(begin_profile(&mut users, now_ns, bob.hre, apps[1], longest_ms), ANSWERED);
    users.rig.device.run(now_ns + 30 * SECOND_NS);
    assert!(report(&mut users, now_ns + 30 * SECOND_NS, bob.hre).is_some());
}

#[test]
fn who_waits_for_a_profile_past_the_bound_is_told() {
    let mut users = Users::new(config(1));
    let all: Vec<(User, u16)> = (0..34)
        .map(|number| {
            let user = users.user(2000 + number);
            let app = users.install_for(user.hre, &app("scan", HANDLERS, "public=*\\n")).expect("an app");
            (user, app)
        })
        .collect();
    assert_eq!(begin_profile(&mut users, LATER_NS, all[0].0.hre, all[0].1, 60_000), ANSWERED);
    let busy = RpcOutcome::Answered { status: ControlStatus::Busy as u32 };
    for (number, (user, app)) in all.iter().enumerate().skip(1) {
        assert_eq!(begin_profile(&mut users, LATER_NS, user.hre, *app, 60_000), busy);
        let to = (control::CONTROL_APP, control::ERROR_TEXT, 0);
        let text = String::from_utf8_lossy(&at(&mut users, LATER_NS, user.hre, to, &[0; 4]).1).into_owned();
        assert_eq!(text.contains("32 users wait already"), number == 33, "{number}: {text}");
    }
}

#[test]
fn a_look_at_waits_sees_each_spu_whatever_others_have_and_is_paid_for() {
    let settings = willow_device::DeviceConfig { instruction_budget: 50_000_000, ..config(2) };
    let mut users = Users::new(settings);
    let alice = users.user(OWNER);
    let kernel = users.rig.hre;
    // Another app waits for more, on SPU 0, than a look goes through.
    let crowd = users.rig.install(&app("crowd", HANDLERS, "")).unwrap();
    let own = users.install_for(alice.hre, &app("scan", HANDLERS, "")).unwrap();
    users.rig.begin(kernel, (crowd, 4, 0), &words(&[5000]), &[], 0);
    users.rig.device.run(LATER_NS);
    users.rig.begin(alice.hre, (own, 4, 0), &words(&[3]), &[], 0);
    users.rig.begin(alice.hre, (own, 4, 1), &words(&[2]), &[], 0);
    users.rig.device.run(LATER_NS);
    assert_eq!(begin_profile(&mut users, LATER_NS, alice.hre, own, 1000), ANSWERED);
    let before = work_of(&users, OWNER);
    for look in 1..=6 {
        users.rig.device.run(LATER_NS + look * 5_000_000);
    }
    let cost = work_of(&users, OWNER) - before;
    assert!(cost >= 6 * 2048 * 50, "{cost}");
    let found = report(&mut users, LATER_NS + 31_000_000, alice.hre).expect("it goes on");
    let waits: Vec<(u16, u8, u64)> = found.waits.iter().map(|wait| (wait.spu, wait.handler, wait.count)).collect();
    // Sleeps name no request. SPU 1 is seen as it is; of SPU 0, whose places are three times what a look goes through, each third look.
    assert_eq!(waits, [(0, 0, 3 * 2), (1, 0, 2 * 6)]);
    assert!(found.lost > 0, "what was not looked at is told");
}
