//! What an app's author asks of a device: its log, a core of it, a reset; and who else gets none of that.

mod common;
use common::users::*;
use common::*;
use willow_device::control::{self, ControlStatus, CoreInfo};
use willow_device::{HreId, RpcOutcome};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const ENDED: RpcOutcome = RpcOutcome::AppEnded;

/// Handler 2: prints a line. 3: writes a word of its memory and traps two calls below. 4: is never answered. 1: 42.
const AUTHORS: &str = r#"
    (if (i32.eq (local.get 1) (i32.const 2)) (then (i32.store (i32.const 8) (i32.const 0x0a696821)) (call $print (i32.const 8) (i32.const 4))))
    (if (i32.eq (local.get 1) (i32.const 3)) (then (i32.store (i32.const 4096) (i32.const 0x5eed)) (call $middle)))
    (if (i32.eq (local.get 1) (i32.const 4)) (then (return (i32.const 0))))"#;
const FUNCTIONS: &str = r#"
    (global $kept (mut i64) (i64.const 5))
    (func $middle (global.set $kept (i64.const -2)) (call $inner))
    (func $inner (unreachable))"#;

fn app_of(name: &str, lines: &str) -> Vec<u8> {
    let start = format!(
        r#"(func $start (param i32 i32) (result i32)
            (if (i32.lt_u (local.get 1) (i32.const 2))
                (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
            {AUTHORS}
            (call $respond (local.get 0) (i32.const 0) (i32.const 7)) (i32.const 0)){FUNCTIONS}"#
    );
    app(name, &start, lines)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A request to the control service on an endpoint: status, result and reply.
fn ask(users: &mut Users, hre: HreId, handler: u8, arguments: &[u8], payload: &[u8]) -> (u32, u32, Vec<u8>) {
    let done = users.rig.call_on(hre, (control::CONTROL_APP, handler, 0), arguments, payload, 65536);
    let RpcOutcome::Answered { status } = done.outcome else { return (u32::MAX, 0, Vec::new()) };
    let length = if status == 0 { done.result.min(65536) as usize } else { 0 };
    (status, done.result, done.buffer[..length].to_vec())
}

fn core_of(users: &mut Users, hre: HreId, app: u16, trap: u32) -> Result<(CoreInfo, Vec<u8>), u32> {
    let mut whole = Vec::new();
    loop {
        let arguments = words(&[whole.len() as u32, app.into(), trap]);
        let done = users.rig.call_on(hre, (control::CONTROL_APP, control::READ_CORE, 0), &arguments, &[], 50_000);
        match done.outcome {
            RpcOutcome::Answered { status: 0 } => {}
            RpcOutcome::Answered { status } => return Err(status),
            other => panic!("{other:?}"),
        }
        let left = done.result as usize - whole.len();
        whole.extend_from_slice(&done.buffer[..left.min(50_000)]);
        if left <= 50_000 {
            break;
        }
    }
    let begin = 4 + u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
    Ok((serde_json::from_slice(&whole[4..begin]).unwrap(), whole.split_off(begin)))
}

fn check_core(users: &mut Users, long: &str) {
    let alice = users.user(1000);
    let own = users.install_for(alice.hre, &app_of("scan", &format!("public=*\\n{long}"))).unwrap();
    assert_eq!(core_of(users, alice.hre, own, 0), Err(ControlStatus::NotFound as u32), "it has not trapped");
    assert_eq!(users.rig.call_on(alice.hre, (own, 3, 1), &[], &[], 0).outcome, ENDED);
    let (info, memory) = core_of(users, alice.hre, own, 0).unwrap();
    assert_eq!((info.app.as_str(), info.spu, info.trap, info.memory_bytes), ("u1000-scan", 1, 1, 65536));
    let names: Vec<&str> = info.frames.iter().filter_map(|frame| frame.name.as_deref()).collect();
    assert_eq!(names, ["inner", "middle", "start"]);
    assert!(info.why.contains("unreachable") && info.why.contains("in inner, called by middle"), "{}", info.why);
    assert_eq!((info.globals.len(), info.globals[0].bits.as_str()), (1, "fffffffffffffffe"));
    assert_eq!((memory.len(), &memory[4096..4100]), (65536, &0x5eedu32.to_le_bytes()[..]));
    // It outlives a reset, until the next trap, which has another number.
    let (status, _, _) = ask(users, alice.hre, control::RESET_APP, &[], b"scan");
    assert_eq!(status, 0);
    assert_eq!(core_of(users, alice.hre, own, 1).unwrap().1, memory);
    assert_eq!(users.rig.call_on(alice.hre, (own, 3, 0), &[], &[], 0).outcome, ENDED);
    assert_eq!(core_of(users, alice.hre, own, 1), Err(ControlStatus::Busy as u32));
    assert_eq!(core_of(users, alice.hre, own, 0).unwrap().0.spu, 0);
    let done = users.rig.call_on(alice.hre, (control::CONTROL_APP, control::REMOVE, 0), b"scan", &[], 0);
    assert_eq!(done.outcome, ANSWERED);
}

#[test]
fn an_instance_that_trapped_is_kept_with_its_stack_globals_and_memory() {
    let mut users = Users::new(config(2));
    check_core(&mut users, "");
    check_core(&mut users, "long=1\\n");
}

#[test]
fn only_its_owner_and_the_kernel_read_what_an_app_printed_or_left_and_reset_it() {
    let mut users = Users::new(config(1));
    let (alice, bob) = (users.user(1000), users.user(1001));
    let kernel = users.rig.hre;
    // Anybody may call it; what it has is hers all the same.
    let own = users.install_for(alice.hre, &app_of("scan", "public=*\\n")).unwrap();
    let of_kernel = users.rig.install(&app_of("shared", "public=*\\n")).unwrap();
    for app in [own, of_kernel] {
        assert_eq!(users.rig.call_on(bob.hre, (app, 2, 0), &[], &[], 0).outcome, ANSWERED);
        assert_eq!(users.rig.call_on(bob.hre, (app, 3, 0), &[], &[], 0).outcome, ENDED);
    }
    let log = |app: u16| [words(&[0, app.into()]), vec![0; 8]].concat();
    for (hre, app, may) in [
        (alice.hre, own, true),
        (kernel, own, true),
        (bob.hre, own, false),
        (alice.hre, of_kernel, false),
        (bob.hre, of_kernel, false),
        (kernel, of_kernel, true),
        (bob.hre, 900, false),
        (bob.hre, 0, false),
    ] {
        let expected = if may { 0 } else { ControlStatus::NotFound as u32 };
        let (status, _, text) = ask(&mut users, hre, control::READ_LOG, &log(app), &[]);
        assert_eq!(status, expected, "log {app}");
        assert_eq!(String::from_utf8_lossy(&text).contains("0: !hi\n"), may);
        assert_eq!(core_of(&mut users, hre, app, 0).map(drop), if may { Ok(()) } else { Err(expected) }, "core {app}");
    }
    for (hre, name) in [(bob.hre, &b"scan"[..]), (bob.hre, b"u1000-scan"), (alice.hre, b"shared"), (bob.hre, b"shared")]
    {
        let (status, _, _) = ask(&mut users, hre, control::RESET_APP, &[], name);
        assert_eq!(status, ControlStatus::NotFound as u32);
    }
    for (hre, app) in [(bob.hre, own), (alice.hre, of_kernel), (bob.hre, of_kernel)] {
        let (status, _, _) = ask(&mut users, hre, control::BEGIN_PROFILE, &words(&[app.into(), 1000]), &[]);
        assert_eq!(status, ControlStatus::NotFound as u32);
    }
    assert_eq!(users.rig.call_on(alice.hre, (own, 1, 0), &[], &[], 0).outcome, ENDED, "nobody has reset it");
    for (hre, name, app) in [(alice.hre, &b"scan"[..], own), (kernel, b"shared", of_kernel)] {
        assert_eq!(ask(&mut users, hre, control::RESET_APP, &[], name).0, 0);
        assert_eq!(users.rig.call_on(hre, (app, 1, 0), &[], &[], 0).result, 42, "it is there again");
    }
    // Malformed ones get an answer.
    for arguments in [&[][..], &[0; 7], &[0; 15]] {
        assert_ne!(ask(&mut users, kernel, control::READ_LOG, arguments, &[]).0, 0);
        assert_ne!(ask(&mut users, kernel, control::READ_CORE, &arguments[..arguments.len().min(11)], &[]).0, 0);
    }
}

#[test]
fn a_reset_ends_what_an_app_had_begun_and_nothing_of_another() {
    let mut users = Users::new(config(2));
    let (alice, kernel) = (users.user(1000), users.rig.hre);
    let own = users.install_for(alice.hre, &app_of("scan", "")).unwrap();
    let other = users.install_for(alice.hre, &app_of("other", "")).unwrap();
    for app in [own, own, other] {
        users.rig.begin(alice.hre, (app, 4, 1), &[], &[], 0);
    }
    users.rig.settle();
    assert!(users.rig.device.completion().is_none(), "they wait");
    let tag = users.rig.last_tag();
    users.rig.begin(alice.hre, (control::CONTROL_APP, control::RESET_APP, 0), &[], b"scan", 0);
    users.rig.settle();
    let mut ended = Vec::new();
    while let Some(done) = users.rig.device.completion() {
        ended.push((done.tag, done.outcome));
    }
    ended.sort_by_key(|(tag, _)| *tag);
    assert_eq!(ended, [(tag - 2, ENDED), (tag - 1, ENDED), (tag + 1, ANSWERED)]);
    assert_eq!(users.rig.call_on(alice.hre, (own, 1, 0), &[], &[], 0).result, 42);
    // What it printed is still there, and the log says that it was reset.
    assert!(users.rig.log("u1000-scan").contains("[SPU-OS] reset"));
    // The other's request is still under way, and ends with its app.
    let done = users.rig.call_on(kernel, (control::CONTROL_APP, control::REMOVE, 0), b"u1000-other", &[], 0);
    assert!([ENDED, ANSWERED].contains(&done.outcome));
}

#[test]
fn a_followed_log_has_each_byte_once_and_says_where_some_are_lost() {
    let mut users = Users::new(config(1));
    let kernel = users.rig.hre;
    let app = users.rig.install(&app_of("chatty", "")).unwrap();
    let piece = |users: &mut Users, from: u64| {
        let arguments = [words(&[0, app.into()]), from.to_le_bytes().to_vec()].concat();
        let (status, _, reply) = ask(users, kernel, control::READ_LOG, &arguments, &[]);
        assert_eq!(status, 0);
        let (begin, text) = reply.split_at(8);
        (u64::from_le_bytes(begin.try_into().unwrap()), String::from_utf8(text.to_vec()).unwrap())
    };
    let print = |users: &mut Users, times: u32| {
        for _ in 0..times {
            users.rig.call(app, 2, 0, &[], &[], 0);
        }
    };
    assert_eq!(piece(&mut users, 0), (0, String::new()));
    print(&mut users, 3);
    assert_eq!(piece(&mut users, 0), (0, "0: !hi\n".repeat(3)));
    assert_eq!(piece(&mut users, 7), (7, "0: !hi\n".repeat(2)));
    assert_eq!(piece(&mut users, 10), (10, "!hi\n0: !hi\n".to_owned()), "from the middle of a line");
    assert_eq!(piece(&mut users, 21), (21, String::new()), "the end so far");
    assert_eq!(piece(&mut users, 22), (0, "0: !hi\n".repeat(3)), "a place that this log never had");
    // 64 KiB are kept: 9362 lines of 7 bytes.
    print(&mut users, 10_000);
    let (begin, mut text) = piece(&mut users, 21);
    assert_eq!(begin, 7 * (10_003 - 9362));
    assert_eq!(text.len(), 32 << 10, "a reply has so much at most");
    loop {
        let (from, more) = piece(&mut users, begin + text.len() as u64);
        assert_eq!(from, begin + text.len() as u64);
        if more.is_empty() {
            break;
        }
        text += &more;
    }
    assert_eq!(text, "0: !hi\n".repeat(9362));
    // Another version goes on with it.
    users.rig.install(&app_of("chatty", "")).unwrap();
    assert_eq!(piece(&mut users, 70_021), (70_021, String::new()));
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

#[test]
fn a_profile_counts_runs_and_is_gone_when_it_has_ended() {
    let mut users = Users::new(config(2));
    let (alice, bob) = (users.user(1000), users.user(1001));
    let own = users.install_for(alice.hre, &app_of("scan", "public=*\\n")).unwrap();
    let begin = |users: &mut Users, now_ns: u64, hre: HreId, milliseconds: u32| {
        let arguments = words(&[own.into(), milliseconds]);
        at(users, now_ns, hre, (control::CONTROL_APP, control::BEGIN_PROFILE, 0), &arguments).0
    };
    let report = |users: &mut Users, now_ns: u64, hre: HreId| {
        let (outcome, json) = at(users, now_ns, hre, (control::CONTROL_APP, control::READ_PROFILE, 0), &[0; 4]);
        (outcome == ANSWERED).then(|| serde_json::from_slice::<control::ProfileReport>(&json).unwrap())
    };
    let busy = RpcOutcome::Answered { status: ControlStatus::Busy as u32 };
    for milliseconds in [0, 600_001, u32::MAX] {
        let malformed = RpcOutcome::Answered { status: ControlStatus::Malformed as u32 };
        assert_eq!(begin(&mut users, LATER_NS, alice.hre, milliseconds), malformed);
    }
    assert_eq!(begin(&mut users, LATER_NS, alice.hre, 1000), ANSWERED);
    assert_eq!(begin(&mut users, LATER_NS, alice.hre, 1000), busy);
    for spu in [0, 1, 1] {
        assert_eq!(at(&mut users, LATER_NS, bob.hre, (own, 1, spu), &[]).0, ANSWERED);
    }
    let found = report(&mut users, LATER_NS + 7, alice.hre).unwrap();
    let runs: Vec<(u16, Option<u8>, u64)> = found.runs.iter().map(|run| (run.spu, run.handler, run.count)).collect();
    assert_eq!((runs, found.elapsed_ns), (vec![(0, Some(1), 1), (1, Some(1), 2)], 7));
    assert!(!found.is_sampled && found.stacks.is_empty(), "nobody samples in this test");
    assert_eq!(found.runs[1].instructions, 2 * found.runs[0].instructions);
    assert!(report(&mut users, LATER_NS, alice.hre).unwrap().runs.is_empty(), "what was read is not read again");
    // It is this endpoint's to read and to end.
    assert!(report(&mut users, LATER_NS, bob.hre).is_none());
    let end = (control::CONTROL_APP, control::END_PROFILE, 0);
    assert_ne!(at(&mut users, LATER_NS, bob.hre, end, &[]).0, ANSWERED);
    assert_eq!(at(&mut users, LATER_NS, alice.hre, end, &[]).0, ANSWERED);
    assert!(report(&mut users, LATER_NS, alice.hre).is_none());
    // It ends with its endpoint, its time and its instances.
    let second = users.rig.device.open_hre(Some(alice.process)).unwrap();
    assert_eq!(begin(&mut users, LATER_NS, second, 1000), ANSWERED);
    users.rig.device.close_hre(second);
    assert_eq!(begin(&mut users, LATER_NS, alice.hre, 1000), ANSWERED);
    let over_ns = LATER_NS + 1_000_000_000;
    users.rig.device.run(over_ns);
    assert!(report(&mut users, over_ns, alice.hre).is_none());
    assert_eq!(begin(&mut users, over_ns, alice.hre, 1000), ANSWERED);
    assert_eq!(at(&mut users, over_ns, alice.hre, (own, 3, 0), &[]).0, ENDED);
    users.rig.device.run(over_ns + 10_000_000);
    assert!(report(&mut users, over_ns + 10_000_000, alice.hre).is_none());
    let (info, _) = core_of(&mut users, alice.hre, own, 0).unwrap();
    assert!(info.why.contains("unreachable"), "what is profiled leaves a core as ever");
}

#[test]
fn only_its_owner_and_the_kernel_debug_an_app() {
    let mut users = Users::new(config(2));
    let (alice, bob, kernel) = (users.user(1000), users.user(1001), users.rig.hre);
    let own = users.install_for(alice.hre, &app_of("scan", "public=*\\n")).unwrap();
    let second = users.install_for(alice.hre, &app_of("other", "")).unwrap();
    let of_kernel = users.rig.install(&app_of("shared", "public=*\\n")).unwrap();
    let waited_for = users.rig.install(&app_of("log", "settles=1\\n")).unwrap();
    let begin = |users: &mut Users, hre: HreId, app: u16| {
        ask(users, hre, control::BEGIN_DEBUG, &words(&[app.into(), 0]), &[]).0
    };
    let (none, busy) = (ControlStatus::NotFound as u32, ControlStatus::Busy as u32);
    for (hre, app) in [(bob.hre, own), (bob.hre, of_kernel), (alice.hre, of_kernel), (bob.hre, 0), (kernel, 900)] {
        assert_eq!(begin(&mut users, hre, app), none);
    }
    assert_eq!(begin(&mut users, kernel, waited_for), busy, "others would wait for it");
    assert_eq!(begin(&mut users, alice.hre, own), 0);
    assert_eq!(begin(&mut users, alice.hre, own), busy, "it has a debugger");
    assert_eq!(begin(&mut users, kernel, own), busy, "it has a debugger");
    assert_eq!(begin(&mut users, alice.hre, second), busy, "a user has one");
    assert_eq!(begin(&mut users, kernel, of_kernel), 0, "others' are not this user's affair");
    // Nobody else asks it or tells it anything.
    for hre in [bob.hre, kernel] {
        for (handler, arguments) in [
            (control::DEBUG_STATE, words(&[0, own.into()])),
            (control::DEBUG_QUERY, words(&[0, own.into(), 0, 4, 0, 0])),
            (control::DEBUG_TELL, words(&[own.into(), u32::MAX, 4])),
            (control::END_DEBUG, words(&[own.into()])),
        ] {
            assert_eq!(ask(&mut users, hre, handler, &arguments, &[]).0, none, "{handler}");
        }
    }
    // It works as ever, and stops where its debugger says: at the next instruction.
    assert_eq!(users.rig.call_on(bob.hre, (own, 1, 0), &[], &[], 0).result, 42);
    assert_eq!(ask(&mut users, alice.hre, control::DEBUG_TELL, &words(&[own.into(), 0, 4]), &[]).0, 0);
    users.rig.begin(bob.hre, (own, 1, 0), &[], &[], 0);
    users.rig.settle();
    assert!(users.rig.device.completion().is_none(), "it has stopped");
    let (_, _, states) = ask(&mut users, alice.hre, control::DEBUG_STATE, &words(&[0, own.into()]), &[]);
    let states: Vec<control::DebugState> = serde_json::from_slice(&states).unwrap();
    assert_eq!(states[0].stop.as_ref().map(|stop| (stop.reason.as_str(), stop.depth)), Some(("pause", 1)));
    assert!(states[1].stop.is_none());
    for wrong in [words(&[own.into(), 7, 2]), words(&[own.into(), 0, 9]), words(&[own.into()])] {
        assert_eq!(ask(&mut users, alice.hre, control::DEBUG_TELL, &wrong, &[]).0, ControlStatus::Malformed as u32);
    }
    let many: Vec<u32> = [own.into(), u32::MAX, 1].into_iter().chain(0..1025).collect();
    assert_eq!(ask(&mut users, alice.hre, control::DEBUG_TELL, &[], &words(&many)).0, ControlStatus::NoRoom as u32);
    // With its endpoint the debugger is gone, and the request ends.
    users.rig.device.close_hre(alice.hre);
    users.rig.settle();
    assert_eq!(users.rig.device.completion().expect("it goes on").result, 42);
    let alice = users.user(1000);
    assert_eq!(begin(&mut users, alice.hre, second), 0);
}
