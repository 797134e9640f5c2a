//! Places in the tables that all share: an app or a process that takes as many as it can, and lets go of none, is refused itself, or waits,
//! and others notice nothing.

mod common;
use common::users::*;
use common::*;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::statistics::AppStatistics;
use willow_device::{Device, DeviceConfig, HreId, RpcOutcome};

/// Handler 1 does `body` so often as its first argument says; its result is what the last one came to. Handler 2 answers.
fn repeats(name: &str, body: &str, lines: &str) -> Vec<u8> {
    let start = format!(
        r#"(global $last (mut i32) (i32.const 0))
        (func $start (param i32 i32) (result i32) (local $left i32) (local $code i32)
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (if (i32.eq (local.get 1) (i32.const 1)) (then
                (local.set $left (i32.load (i32.const 0)))
                (loop $l
                    {body}
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $l (local.get $left)))))
            (call $respond (local.get 0) (i32.const 0) (local.get $code)) (i32.const 0))"#
    );
    app(name, &start, lines)
}

fn app_of(device: &Device, name: &str) -> AppStatistics {
    device.statistics().apps.into_iter().find(|app| app.name == name).expect("the app")
}

const UPCALL: &str = r#"(local.set $code (call $rpc_finish
    (call $rpc_start (local.get 0) (i32.const -1) (i32.const -1) (i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 5)))"#;

/// A user's app that has made as many upcalls as it can, which its process has fetched and never answers; and another user.
fn upcalls_unanswered() -> (Users, User, u16, User, Vec<u64>) {
    let mut users = Users::new(config(2));
    let (mallory, alice) = (users.user(6666), users.user(1000));
    users.grant(&alice, READ | WRITE, 0, 1 << 20);
    let caller = users.install_for(mallory.hre, &repeats("caller", UPCALL, "public=*\\n")).expect("an app");
    let mut fetched = Vec::new();
    for _ in 0..1200 {
        let done = users.rig.call_on(mallory.hre, (caller, 1, 0), &60u32.to_le_bytes(), &[], 0);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        fetched.extend(std::iter::from_fn(|| users.rig.device.upcall(mallory.hre)).map(|upcall| upcall.id));
    }
    (users, mallory, caller, alice, fetched)
}

#[test]
fn upcalls_that_nobody_answers_are_bounded_for_each_app_and_others_notice_nothing() {
    let (mut users, mallory, caller, alice, fetched) = upcalls_unanswered();
    // Another's reads that wait for the store, and flushes, go on.
    let flushes = repeats("flushes", "(local.set $code (call $flush (i32.const 1)))", "public=*\\n");
    let flushes = users.rig.install(&flushes).expect("an app");
    // Nobody waits for them: on flash they are pending.
    let flushed = u32::from(is_on_flash());
    for _ in 0..20 {
        let done = users.rig.call_on(alice.hre, (flushes, 1, 0), &1u32.to_le_bytes(), &[], 0);
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, flushed), "a flush");
    }
    let arguments = users.arguments(0, 512, NV);
    users.valve.closed.set(true);
    for _ in 0..20 {
        users.rig.begin(alice.hre, (users.mover, 1, 0), &arguments, &[], 512);
    }
    users.run();
    users.valve.closed.set(false);
    users.rig.settle();
    for _ in 0..20 {
        let done = users.completion().expect("a read has ended");
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 0));
    }
    // As many as one process may leave unanswered: half of the app's messages.
    let app = app_of(&users.rig.device, "u6666-caller");
    assert_eq!((app.messages, app.waits, fetched.len()), (64, 64, 64));
    // Another process of it finds places, in the same app.
    let other = users.user(1001);
    let done = users.rig.call_on(other.hre, (caller, 1, 0), &1u32.to_le_bytes(), &[], 0);
    assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    assert!(users.rig.device.upcall(other.hre).is_some());
    // What is answered gives its place back.
    for id in fetched {
        assert!(users.rig.device.answer_upcall(mallory.hre, id, 0, 0));
        assert!(!users.rig.device.answer_upcall(mallory.hre, id, 0, 0), "an answer is one");
    }
    users.rig.settle();
    let app = app_of(&users.rig.device, "u6666-caller");
    assert_eq!((app.messages, app.waits), (1, 1));
}

#[test]
fn an_app_that_ends_leaves_none_of_its_places_taken() {
    let (mut users, mallory, caller, ..) = upcalls_unanswered();
    let ends = repeats("caller", "(unreachable)", "");
    // Replaced, ended by a trap, and installed again: nothing is left of it each time.
    for _ in 0..3 {
        assert_eq!(users.install_for(mallory.hre, &ends), Ok(caller));
        users.rig.settle();
        assert_eq!(app_of(&users.rig.device, "u6666-caller").waits, 0);
        let done = users.rig.call_on(mallory.hre, (caller, 1, 0), &1u32.to_le_bytes(), &[], 0);
        assert_eq!(done.outcome, RpcOutcome::AppEnded);
        // Messages that were begun and never sent go as well.
        let begins = r#"(local.set $code (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 2) (i32.const 8) (i32.const 0) (i32.const 0)))"#;
        for _ in 0..40 {
            let again = users.install_for(mallory.hre, &repeats("caller", begins, ""));
            assert_eq!(again, Ok(caller));
            let done = users.rig.call_on(mallory.hre, (caller, 1, 0), &200u32.to_le_bytes(), &[], 0);
            assert_eq!((done.outcome, done.result as i32), (RpcOutcome::Answered { status: 0 }, -7));
            assert_eq!(app_of(&users.rig.device, "u6666-caller").messages, 128);
        }
    }
    assert_eq!(willow_device::testing::tables(&users.rig.device).messages, 128);
}

/// A model of time in which DMAs take a second and all else is quick.
struct Lasting;

impl Timing for Lasting {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 10, message.id);
    }
    fn dma(&mut self, at_ns: u64, _: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 1_000_000_000)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, _: &Work) -> u64 {
        at_ns + 10
    }
}

/// A user's app on a modelled device; runs the device for a microsecond after each request.
struct Modelled {
    rig: Rig,
    mallory: HreId,
    alice: HreId,
}

impl Modelled {
    fn new() -> Modelled {
        let mut rig = Rig::with(DeviceConfig { handlers_per_process_max: 4096, ..config(1) }, Some(Box::new(Lasting)));
        let [mallory, alice] = [6666, 1000].map(|user| {
            let process = rig.device.open_process(user, 0).expect("a process");
            rig.device.open_hre(Some(process)).expect("an endpoint")
        });
        Modelled { rig, mallory, alice }
    }

    fn install(&mut self, module: &[u8]) -> u16 {
        let to = (willow_device::control::CONTROL_APP, willow_device::control::INSTALL, 0);
        let done = self.rig.call_on(self.mallory, to, &[], module, 0);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        done.result as u16
    }

    /// Has the app work `requests` times for so many rounds.
    fn hoard(&mut self, app: u16, (requests, rounds): (u32, u32)) {
        for _ in 0..requests {
            self.rig.device.set_time(self.rig.now_ns);
            self.rig.begin(self.mallory, (app, 1, 0), &rounds.to_le_bytes(), &[], 0);
            self.rig.now_ns += 1000;
            self.rig.device.run(self.rig.now_ns);
        }
    }

    fn check_neighbour(&mut self, app: u16) {
        let done = self.rig.call_on(self.alice, (app, 2, 0), &[0; 4], &[], 0);
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
    }
}

#[test]
fn dmas_that_nobody_waits_for_are_bounded_under_a_model_of_time() {
    for body in [
        "(local.set $code (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 8) (i32.const 0) (i32.const 7)))",
        "(local.set $code (call $compare (local.get 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 7)))",
        "(local.set $code (call $checksum (local.get 0) (i32.const 1) (call $region (i32.const 1) (i64.const 0) (i32.const 0)) (i32.const 0) (i32.const 0) (i32.const 7)))",
    ] {
        let mut world = Modelled::new();
        let app = world.install(&repeats("hoarder", body, "public=*\\n"));
        world.hoard(app, (720, 1000));
        let waits = app_of(&world.rig.device, "u6666-hoarder").waits;
        let bound = willow_device::testing::USERS_WAITS_MAX as u64;
        assert!(waits <= bound / 3, "{waits} of {bound}: {body}");
        world.rig.settle();
        while world.rig.device.completion().is_some() {}
        assert_eq!(app_of(&world.rig.device, "u6666-hoarder").waits, 0, "all have been told");
        world.check_neighbour(app);
    }
}

#[test]
fn parts_of_messages_that_nobody_sends_are_bounded_under_a_model_of_time() {
    let body = r#"(if (i32.eqz (global.get $last)) (then
            (drop (call $region (i32.const 1) (i64.const 65536) (i32.const 0)))
            (global.set $last (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 2) (i32.const 8) (i32.const 0) (i32.const 0)))))
        (local.set $code (call $rpc_append (global.get $last) (i32.const 1) (call $region (i32.const 1) (i64.const 0) (i32.const 0)) (i32.const 0)))
        (if (i32.lt_s (local.get $code) (i32.const 0)) (then (global.set $last (i32.const 0))))"#;
    let mut world = Modelled::new();
    let app = world.install(&repeats("hoarder", body, "public=*\\n"));
    world.hoard(app, (1, 1));
    world.rig.settle();
    while world.rig.device.completion().is_some() {}
    world.hoard(app, (1000, 300));
    let held = willow_device::testing::tables(&world.rig.device).events;
    assert!(held < 100_000, "{held} events");
    world.rig.settle();
    while world.rig.device.completion().is_some() {}
    world.check_neighbour(app);
}

#[test]
fn a_user_who_keeps_all_his_requests_leaves_others_places() {
    // Handler 3 never answers: four processes of his take what they can.
    let config = DeviceConfig { handlers_per_process_max: 4096, ..config(2) };
    let mut users = Users::new(config);
    let keeps = r#"(func $start (param i32 i32) (result i32)
        (if (i32.ne (local.get 1) (i32.const 3)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 9))))
        (i32.const 0))"#;
    let mallory = users.user(6666);
    let keeper = users.install_for(mallory.hre, &app("keeper", keeps, "public=*\\n")).expect("an app");
    let mut tag = 1 << 40;
    let mut taken = Vec::new();
    // Eight users of four processes each: more than all places.
    for user in 0..8 {
        for _ in 0..4 {
            let process = users.user(5000 + user);
            for _ in 0..5000 {
                tag += 1;
                let arguments = willow_device::Arguments::EMPTY;
                let rpc = willow_device::Rpc { app: keeper, handler: 3, spu: 0, arguments };
                let rpcs = willow_device::RpcList::One(rpc);
                let request =
                    willow_device::HostRequest { tag, rpcs, buffer: vec![], payload_bytes: 0, reply_bytes: 0 };
                match users.rig.device.submit(process.hre, request) {
                    Ok(()) => taken.push((process.hre, tag)),
                    Err(_) => break,
                }
            }
            users.rig.settle();
        }
    }
    assert!(taken.len() > 10_000 && taken.len() < 24_576, "{}", taken.len());
    // One who comes then finds places, and so does the kernel.
    let alice = users.user(1000);
    users.grant(&alice, READ | WRITE, 0, 1 << 20);
    let mover = users.mover;
    let (outcome, code, _) = users.read(alice.hre, mover, 0, 64);
    assert_eq!((outcome, code), (RpcOutcome::Answered { status: 0 }, 0));
    let kernel = users.rig.hre;
    let (outcome, code, _) = users.read(kernel, mover, 0, 64);
    assert_eq!((outcome, code), (RpcOutcome::Answered { status: 0 }, 0));
}

/// Moves `segments` pieces of `bytes` between the request's buffer and NV memory, side by side there and here: inline arguments u64
/// address, u32 bytes, u32 segments. Handler 1 reads, handler 2 writes; the result is what the DMA came to. Handler 3 writes one byte of
/// local memory as often as `segments` says, to one place.
const STRIDED: &str = r#"
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 16)))
        (if (i32.eq (local.get 1) (i32.const 1)) (then (local.set $code
            (call $dma_strided (local.get 0) (i32.const 1) (i64.load (i32.const 0)) (i64.load32_u (i32.const 8)) (i32.const 2) (i64.const 0)
                (i64.load32_u (i32.const 8)) (i32.load (i32.const 8)) (i32.load (i32.const 12)) (local.get 0)))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then (local.set $code
            (call $dma_strided (local.get 0) (i32.const 2) (i64.const 16) (i64.load32_u (i32.const 8)) (i32.const 1) (i64.load (i32.const 0))
                (i64.load32_u (i32.const 8)) (i32.load (i32.const 8)) (i32.load (i32.const 12)) (local.get 0)))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then (local.set $code
            (call $dma_strided (local.get 0) (i32.const 0) (i64.const 8) (i64.const 0) (i32.const 1) (i64.load (i32.const 0))
                (i64.const 0) (i32.const 1) (i32.load (i32.const 12)) (local.get 0)))))
        (if (i32.eq (local.get $code) (i32.const 1)) (then (return (i32.const 0))))
        (call $complete (local.get 0) (i64.extend_i32_s (local.get $code)))
        (i32.const 0))
    (func $complete (param i32 i64) (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

fn strided_arguments(users: &Users, start: u64, bytes: u32, segments: u32) -> Vec<u8> {
    [&(users.base + start).to_le_bytes()[..], &bytes.to_le_bytes(), &segments.to_le_bytes()].concat()
}

/// Runs the device until nothing is left to do, with what its store does in its own time.
fn completions(users: &mut Users, count: usize) -> Vec<willow_device::HostCompletion> {
    users.rig.settle();
    let all: Vec<_> = std::iter::from_fn(|| users.completion()).collect();
    assert_eq!(all.len(), count);
    all
}

#[test]
fn cold_reads_of_more_pieces_than_the_store_has_places_wait_and_none_fails() {
    let mut users = Users::new(config(1));
    let strided = users.rig.install(&app("strided", STRIDED, "public=*\\n")).expect("an app");
    let kernel = users.rig.hre;
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512 * 31 + at) as u8).collect();
    let arguments = strided_arguments(&users, 0, 512, 2048);
    let done = users.rig.call_on(kernel, (strided, 2, 0), &arguments, &data, 0);
    assert_eq!(done.result, 0);
    users.valve.closed.set(true);
    for _ in 0..40 {
        users.rig.begin(kernel, (strided, 1, 0), &arguments, &[], 1 << 20);
    }
    for _ in 0..50 {
        users.run();
    }
    // 81,920 pieces: the store has 32,768 places, of which a part is others'. Who comes now finds one. On flash pieces that adjoin are one.
    let tables = willow_device::testing::tables(&users.rig.device);
    let waits = if is_on_flash() { tables.operations == 40 } else { tables.operations < 20_000 && tables.in_line > 20 };
    assert!(waits, "{tables:?}");
    let alice = users.user(1000);
    users.valve.closed.set(false);
    users.grant(&alice, READ | WRITE, 0, 1 << 20);
    users.valve.closed.set(true);
    let arguments = users.arguments(512, 512, NV);
    users.rig.begin(alice.hre, (users.mover, 1, 0), &arguments, &[], 512);
    users.run();
    users.valve.closed.set(false);
    for done in completions(&mut users, 41) {
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 0));
        let bytes = done.reply_bytes as usize;
        let from = if bytes == 512 { 512 } else { 0 };
        assert!(done.buffer[..bytes] == data[from..from + bytes], "the bytes are what was written");
    }
    let tables = willow_device::testing::tables(&users.rig.device);
    assert_eq!((tables.operations, tables.in_line, tables.groups), (0, 0, 0));
}

#[test]
fn an_app_that_breaks_its_dmas_into_bytes_takes_its_own_places_alone() {
    let mut users = Users::new(DeviceConfig { user_instruction_budget: 400_000, ..config(1) });
    let (mallory, alice) = (users.user(6666), users.user(1000));
    for user in [&mallory, &alice] {
        users.grant(user, READ | WRITE, 0, 1 << 20);
    }
    let strided = users.install_for(mallory.hre, &app("strided", STRIDED, "")).expect("an app");
    // 30,000 pieces are more than one run may ask for: the app has ended.
    let arguments = strided_arguments(&users, 0, 1, 30_000);
    let done = users.rig.call_on(mallory.hre, (strided, 3, 0), &arguments, &[], 0);
    assert_eq!(done.outcome, RpcOutcome::AppEnded);
    let strided = users.install_for(mallory.hre, &app("strided", STRIDED, "")).expect("an app");
    users.valve.closed.set(true);
    let arguments = strided_arguments(&users, 0, 1, 2000);
    for _ in 0..20 {
        users.rig.begin(mallory.hre, (strided, 3, 0), &arguments, &[], 0);
    }
    for _ in 0..20 {
        users.run();
    }
    let of_mallory = willow_device::testing::tables(&users.rig.device).operations;
    assert!(of_mallory <= 1024, "{of_mallory} operations of one process");
    // Another's request is in the store at once, on the range beside.
    let arguments = users.arguments(4096, 512, NV);
    users.rig.begin(alice.hre, (users.mover, 2, 0), &arguments, &[9; 512], 0);
    users.run();
    assert_eq!(willow_device::testing::tables(&users.rig.device).operations, of_mallory + 1);
    // His process ends while most of it waits in line: it is checked anew, and fails.
    users.revoke_later(&mallory);
    users.valve.closed.set(false);
    let ended = completions(&mut users, 22);
    let failed = ended.iter().filter(|done| done.hre == mallory.hre && done.result == PERMISSION).count();
    assert!(failed >= 18, "{failed}");
    assert!(ended.iter().any(|done| done.hre == alice.hre && done.result == 0));
    let tables = willow_device::testing::tables(&users.rig.device);
    assert_eq!((tables.operations, tables.in_line, tables.groups), (0, 0, 0));
    assert_eq!(app_of(&users.rig.device, "u6666-strided").waits, 0);
}

#[test]
fn many_processes_that_miss_do_not_keep_anothers_miss_from_the_agent() {
    let mut users = Users::new(config(1));
    assert_eq!(users.control(willow_device::control::REGISTER_AGENT, &[]).0, 0);
    let arguments = users.arguments(0, 64, PARKED_NV);
    let begin = |users: &mut Users, user: &User| {
        users.rig.begin(user.hre, (users.mover, 1, 0), &arguments, &[], 64);
        users.run();
    };
    let crowd: Vec<User> = (0..100).map(|_| users.user(6666)).collect();
    crowd.iter().for_each(|user| begin(&mut users, user));
    let alice = users.user(1000);
    begin(&mut users, &alice);
    // Nobody has failed, though the agent has fetched nothing yet; and it is told of the last as well.
    assert!(users.completion().is_none());
    assert_eq!(willow_device::testing::tables(&users.rig.device).parked, 101);
    users.grant(&alice, READ, 0, 64);
    let kernel = users.rig.hre;
    let told: Vec<u64> = std::iter::from_fn(|| users.rig.device.upcall(kernel)).map(|upcall| upcall.id).collect();
    assert_eq!(told.len(), 101);
    assert!(users.rig.device.answer_upcall(kernel, told[100], 0, 0));
    users.run();
    let done = users.completion().expect("it goes on");
    assert_eq!((done.hre, done.outcome, done.result), (alice.hre, RpcOutcome::Answered { status: 0 }, 0));
}
