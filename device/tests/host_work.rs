//! What SPU-OS does for an app is the app's work: no loop of imports gets more of the device than a loop of instructions would, and no
//! instance more memory than its data segment. Nothing here measures time: calls, segments and bytes are counted.

mod common;
use common::users::*;
use common::*;
use willow_device::spu::meter::{
    ENTRY_WORK, IMPORT_WORK, LINE_WORK, MESSAGE_WORK, PRINTED_BYTE_WORK, SEGMENT_WORK, STORE_WORK,
};
use willow_device::statistics::AppStatistics;
use willow_device::{DeviceConfig, RpcOutcome};

/// Budget of users' apps here.
const BUDGET: u64 = 400_000;

struct World {
    users: Users,
    mallory: User,
    alice: User,
}

fn world() -> World {
    let config = DeviceConfig { user_instruction_budget: BUDGET, app_data_bytes_max: 1 << 20, ..config(2) };
    let mut users = Users::new(config);
    let (mallory, alice) = (users.user(6666), users.user(1000));
    for user in [&mallory, &alice] {
        users.grant(user, READ | WRITE, 0, 1 << 20);
    }
    World { users, mallory, alice }
}

impl World {
    fn app(&self, name: &str) -> AppStatistics {
        self.users.rig.device.statistics().apps.into_iter().find(|app| app.name == name).expect("the app")
    }

    /// Another user's requests go on as ever.
    fn check_neighbour(&mut self) {
        let hre = self.alice.hre;
        let mover = self.users.mover;
        let (outcome, code, data) = self.users.read(hre, mover, 4096, 64);
        assert_eq!((outcome, code, data.len()), (RpcOutcome::Answered { status: 0 }, 0, 64));
    }

    /// Has a user's app run `body` for ever, with payload and a reply: how often it came round, and what it was charged.
    fn rounds(&mut self, body: &str) -> (u64, AppStatistics) {
        let start = format!(
            r#"(func $start (param i32 i32) (result i32) (local $handle i32)
                (if (i32.ne (local.get 1) (i32.const 1)) (then
                    (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
                (memory.fill (i32.const 0) (i32.const 10) (i32.const 4096))
                (loop $l {body} (call $count (i32.const 0) (i64.const 1)) (br $l))
                (i32.const 0))"#
        );
        let memory = "(memory (export \"memory\") 2) (func $complete (param i32 i64))";
        let module = module_with_manifest("hog", memory, &start, "");
        let hre = self.mallory.hre;
        let hog = self.users.install_for(hre, &module).expect("an app");
        let done = self.users.rig.call_on(hre, (hog, 1, 0), &[0; 16], &vec![7; 60_000], 0);
        assert_eq!(done.outcome, RpcOutcome::AppEnded, "{body}");
        let app = self.app("u6666-hog");
        let why = app.ended.clone().expect("it ended");
        assert!(why.contains("instruction_budget"), "{body}: {why}");
        self.check_neighbour();
        (app.user[0] as u64, app)
    }
}

#[test]
fn a_loop_of_any_import_ends_within_the_budget_of_a_run() {
    // Each with what one call is charged at the least.
    let loops: &[(&str, u64)] = &[
        ("(call $request_info (local.get 0) (i32.const 4096))", 0),
        ("(drop (call $receive_bytes (local.get 0) (i32.const 4096) (i32.const 8)))", 0),
        // 60,000 bytes of the body, a second time each round.
        ("(drop (call $receive_bytes_at (local.get 0) (i32.const 16) (i32.const 4096) (i32.const 60000)))", 60_000 / 8),
        ("(call $respond (i32.const 1) (i32.const 0) (i32.const 0))", 0),
        (
            "(drop (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 4096) (i32.const 0) (i32.const 0)))",
            SEGMENT_WORK,
        ),
        (
            "(drop (call $dma (local.get 0) (i32.const 2) (i64.const 0) (i32.const 0) (i64.const 4096) (i32.const 512) (i32.const 0)))",
            SEGMENT_WORK,
        ),
        (
            "(drop (call $dma (local.get 0) (i32.const 0x201) (i64.const 0) (i32.const 0) (i64.const 4096) (i32.const 8) (i32.const 0)))",
            SEGMENT_WORK,
        ),
        (
            "(drop (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 0) (i32.const 0) (i64.const 4096) (i64.const 8) (i32.const 1) (i32.const 1000) (i32.const 0)))",
            1000 * SEGMENT_WORK,
        ),
        ("(drop (call $compare (local.get 0) (i64.const 0) (i64.const 0) (i32.const 64) (i32.const 0)))", SEGMENT_WORK),
        (
            "(drop (call $checksum (local.get 0) (i32.const 0) (i64.const 4096) (i32.const 64) (i32.const 0) (i32.const 0)))",
            SEGMENT_WORK,
        ),
        ("(drop (call $checksum_value))", 0),
        ("(drop (call $literals_load (i32.const 0) (i32.const 10) (i32.const 0)))", 110_000),
        (
            "(drop (call $keys_find (local.get 0) (i32.const 0) (i64.const 0) (i32.const 8) (i32.const 8) (i32.const 1000) (i32.const 1) (i32.const 0) (i32.const 0)))",
            SEGMENT_WORK + 1000 * 21,
        ),
        (
            "(drop (call $keys_find (local.get 0) (i32.const 2) (i64.const 0) (i32.const 8) (i32.const 8) (i32.const 7000) (i32.const 0) (i32.const 0) (i32.const 0)))",
            SEGMENT_WORK + 56_000 / 8 + 12 * 21,
        ),
        (
            "(drop (call $multiply_add (local.get 0) (i32.const 4) (i64.const 0) (i32.const 0) (i32.const 4096) (i32.const 64) (i32.const 0)))",
            SEGMENT_WORK,
        ),
        (
            "(drop (call $fft (local.get 0) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 512) (i32.const 2) (i32.const 0)))",
            SEGMENT_WORK + 2 * 256 * 9 * 4,
        ),
        // Elements of three bytes that copy three from 2570 before: most are done in one go, the last ones by one.
        (
            "(i32.store (i32.const 32) (i32.const 3000)) (i64.store (i32.const 36) (i64.const 0x1ffffffff)) (i64.store (i32.const 44) (i64.const 0)) \
             (drop (call $decompress (local.get 0) (i32.const 1) (i32.const 100) (i32.const 800) (i32.const 8192) (i32.const 8000) (i32.const 32) (i32.const 0)))",
            SEGMENT_WORK + 800 / 8 + 245 * 40 + 21 * 120,
        ),
        ("(drop (call $literals_free (i32.const 1)))", 0),
        // A set of what local memory begins with, and all of the range for the literal `\0`.
        (
            "(if (i32.eqz (i32.load8_u (i32.const 9000))) (then (i32.store8 (i32.const 9000) (i32.const 1)) (i32.store (i32.const 0) (i32.const 1)) \
             (drop (call $literals_load (i32.const 0) (i32.const 5) (i32.const 0))))) \
             (drop (call $literals_find (local.get 0) (i32.const 1) (i32.const 0) (i64.const 65536) (i32.const 60000) (i32.const 0) \
             (i32.const 12000) (i32.const 0) (i32.const 0)))",
            SEGMENT_WORK + 60_000 / 4,
        ),
        (
            "(drop (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 2) (i32.const 65536) (i32.const 0) (i32.const 65536)))",
            MESSAGE_WORK + 131_072 / 8,
        ),
        (
            "(drop (call $rpc_append (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 2) (i32.const 64) (i32.const 0) (i32.const 0)) (i32.const 7) (i64.const 0) (i32.const 8)))",
            IMPORT_WORK + MESSAGE_WORK,
        ),
        (
            "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 0)))",
            IMPORT_WORK + 2 * MESSAGE_WORK,
        ),
        ("(drop (call $upcall_start (local.get 0) (i32.const 1) (i32.const 1) (i32.const 0)))", 0),
        ("(drop (call $subscribers (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 9)))", 0),
        ("(drop (call $app_number (i32.const 4096) (i32.const 8000)))", 64 * ENTRY_WORK + 1000),
        ("(drop (call $region (i32.const 9) (i64.const 65536) (i32.const 0)))", STORE_WORK),
        ("(drop (call $region_bytes (i32.const 9)))", ENTRY_WORK),
        ("(drop (call $region_free (i32.const 9) (i32.const 0)))", ENTRY_WORK),
        ("(drop (call $namespace (i32.const 1) (i32.const 4096)))", ENTRY_WORK),
        ("(drop (call $flush (i32.const 0)))", STORE_WORK),
        ("(drop (call $sleep (i64.const 1000000) (i32.const 0)))", MESSAGE_WORK),
        ("(drop (call $sleep (i64.const 0) (i32.const 0)))", MESSAGE_WORK),
        ("(drop (call $cancel (local.get 0) (i32.const 0)))", MESSAGE_WORK),
        ("(drop (call $background (i32.const 2) (i64.const 0)))", MESSAGE_WORK),
        ("(drop (call $spu_id))", 0),
        ("(drop (call $spu_count))", 0),
        ("(drop (call $time_ns))", 0),
        // 4096 lines.
        ("(call $print (i32.const 0) (i32.const 4096))", 4096 * (LINE_WORK + PRINTED_BYTE_WORK)),
        // 4096 bytes without an end.
        ("(call $print (i32.const 4096) (i32.const 4096))", 4096 * PRINTED_BYTE_WORK),
        ("(call $count (i32.const 1) (i64.const 1))", 0),
    ];
    let named = |name: &str| {
        loops
            .iter()
            .any(|(body, _)| body.contains(&format!("(call ${name} ")) || body.contains(&format!("(call ${name})")))
    };
    // The flash port is for the one app that serves the banks.
    for import in willow_device::testing::IMPORTS.iter().filter(|import| import.who == willow_device::testing::Who::Any)
    {
        assert!(named(import.name), "no loop calls {}", import.name);
    }
    for (body, cost) in loops {
        let mut world = world();
        let (rounds, app) = world.rounds(body);
        // The import itself, and `count`, which says that it came round.
        let least = cost + 2 * IMPORT_WORK;
        assert!(rounds <= BUDGET / least, "{body}: {rounds} rounds at {least}");
        assert!(rounds > 0 || *cost > BUDGET / 3, "{body}: not one round");
        let charged = app.counters.instructions + app.counters.host_work;
        assert!(charged <= BUDGET + 3 * 5000, "{body}: {charged}");
        assert!(app.counters.host_work >= rounds * least, "{body}: {} for {rounds}", app.counters.host_work);
    }
}

#[test]
fn segments_without_bytes_are_nothing_however_many() {
    let mut world = world();
    let start = r#"(func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eq (local.get 1) (i32.const 1)) (then
            (local.set $code (call $dma_strided (local.get 0) (i32.const 3) (i64.const 0) (i64.const 1) (i32.const 0) (i64.const 0)
                (i64.const 1) (i32.const 0) (i32.const -1) (i32.const 0)))))
        (call $respond (local.get 0) (i32.const 0) (local.get $code)) (i32.const 0))"#;
    let hre = world.mallory.hre;
    let strided = world.users.install_for(hre, &app("strided", start, "")).expect("an app");
    let done = world.users.rig.call_on(hre, (strided, 1, 0), &[], &[], 0);
    assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 0));
    let work = world.app("u6666-strided").counters.host_work;
    assert!(work < 10 * SEGMENT_WORK, "{work}");
    world.check_neighbour();
}

#[test]
fn what_spu_os_did_counts_where_it_is_decided_who_is_next() {
    // One copies 60,000 bytes ten times a request, the other counts; both are charged about the same by the fair queue.
    let mut world = world();
    let start = r#"(func $start (param i32 i32) (result i32) (local $left i32)
        (if (i32.eq (local.get 1) (i32.const 1)) (then
            (local.set $left (i32.const 40))
            (loop $l
                (drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 0) (i32.const 60000)))
                (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                (br_if $l (local.get $left)))))
        (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))"#;
    let (mallory, alice) = (world.mallory.hre, world.alice.hre);
    let copier = world.users.install_for(mallory, &app("copier", start, "public=*\\n")).expect("an app");
    for _ in 0..200 {
        world.users.rig.begin(mallory, (copier, 1, 0), &[], &vec![1; 60_000], 0);
    }
    for _ in 0..200 {
        world.users.rig.begin(alice, (copier, 2, 0), &[], &[], 0);
    }
    world.users.rig.settle();
    let ended: Vec<_> = std::iter::from_fn(|| world.users.completion()).map(|done| done.hre == mallory).collect();
    assert_eq!(ended.len(), 400);
    // 300,000 units each are many of the small requests' (some 350): those are through after few of the large ones.
    let last_small = ended.iter().rposition(|large| !large).expect("small ones");
    let large_before = ended[..last_small].iter().filter(|large| **large).count();
    assert!(large_before <= 3, "{large_before} of the large ones went before");
}

#[test]
fn tables_are_an_apps_memory() {
    let mut world = world();
    let start = r#"(table $t 100 funcref)
        (func $start (param i32 i32) (result i32) (local $left i32)
            (if (i32.eq (local.get 1) (i32.const 1)) (then
                (local.set $left (i32.const 200))
                (loop $l
                    (drop (table.grow $t (ref.null func) (i32.const 1000)))
                    (local.set $left (i32.sub (local.get $left) (i32.const 1)))
                    (br_if $l (local.get $left)))
                (drop (memory.grow (i32.const 1)))))
            (call $respond (local.get 0) (i32.const 0) (table.size $t)) (i32.const 0))"#;
    let hre = world.mallory.hre;
    let growing = world.users.install_for(hre, &app("growing", start, "")).expect("an app");
    assert_eq!(world.app("u6666-growing").memory_bytes, 2 * (65536 + 100 * 16));
    let done = world.users.rig.call_on(hre, (growing, 1, 0), &[], &[], 0);
    // Of 1 MiB, 64 KiB are its memory: what is left holds 61,340 elements, and no page more.
    assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 61_100));
    let bytes = world.app("u6666-growing").memory_bytes;
    assert_eq!(bytes, (65536 + 61_100 * 16) + (65536 + 100 * 16));
    // One that begins with more than that is refused, with the reason.
    let large = start.replace("$t 100", "$t 100000000");
    let why = world.users.rig.install(&app("large", &large, "")).expect_err("too much");
    assert!(why.contains("1600065536 bytes of memory, 1600000000 of them for its tables"), "{why}");
    world.check_neighbour();
}

#[test]
fn a_run_that_does_not_make_way_is_ended_and_one_that_does_goes_on() {
    // 16 MiB are summed by 1 MiB: the first by one that waits where it is told to, the second by one that does not.
    let sums = |waits: bool| {
        let wait = if waits { "(if (i32.eq (local.get $code) (i32.const 1)) (then (return)))" } else { "" };
        format!(
            r#"(global $left (mut i32) (i32.const 0))
            (func $go (local $code i32)
                (loop $l
                    (if (i32.eqz (global.get $left)) (then
                        (call $respond (i32.load (i32.const 0)) (i32.const 0) (i32.const 5)) (return)))
                    (global.set $left (i32.sub (global.get $left) (i32.const 1)))
                    (local.set $code (call $checksum (i32.load (i32.const 0)) (i32.const 0) (i64.const 0) (i32.const 524288) (i32.const 0) (i32.const 1)))
                    {wait} (br $l)))
            (func $start (param i32 i32) (result i32)
                (if (i32.ne (local.get 1) (i32.const 1)) (then
                    (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
                (i32.store (i32.const 0) (local.get 0)) (global.set $left (i32.const 32)) (call $go) (i32.const 0))
            (func $complete (param i32 i64) (call $go))"#
        )
    };
    let mut world = world();
    let hre = world.mallory.hre;
    let memory = "(memory (export \"memory\") 9)";
    for (waits, outcome) in [(true, RpcOutcome::Answered { status: 0 }), (false, RpcOutcome::AppEnded)] {
        let module = module_with_manifest("summing", memory, &sums(waits), "");
        let summing = world.users.install_for(hre, &module).expect("an app");
        let done = world.users.rig.call_on(hre, (summing, 1, 0), &[], &[], 0);
        assert_eq!(done.outcome, outcome, "{waits}");
        world.check_neighbour();
    }
}
