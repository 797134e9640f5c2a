//! What one user can have come due at one moment is done in turns, and what the device asks itself at each turn is found without a walk through all
//! that hosts and apps have. Nothing here measures time: segments and walks are counted.

mod common;
use common::users::*;
use common::*;
use willow_device::testing::{tables, walks};
use willow_device::{Arguments, DeviceConfig, HostRequest, Rpc, RpcList, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
/// DMAs that are parked, and segments of each: as many as the budget of a run covers.
const PARKED: u32 = 64;
const SEGMENTS: u32 = 2000;

/// Handler 1 reads 2000 bytes, each a segment, to local memory from the address in its arguments, and waits for a permission where there is none.
fn strided() -> Vec<u8> {
    let body = format!(
        r#"(func $start (param i32 i32) (result i32) (local $code i32)
            (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 8)))
            (local.set $code (call $dma_strided (local.get 0) (i32.const {PARKED_NV}) (i64.load (i32.const 0)) (i64.const 2)
                (i32.const 0) (i64.const 4096) (i64.const 1) (i32.const 1) (i32.const {SEGMENTS}) (local.get 0)))
            (if (i32.ne (local.get $code) (i32.const 1)) (then (call $respond (local.get 0) (i32.const 0) (local.get $code))))
            (i32.const 0))
        (func $complete (param i32 i64) (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#
    );
    app("strided", &body, "")
}

/// Lets go on what waits, which `let_go` does, while another user reads: neither that nor any call of the device moves more than a part of it.
fn go_on_in_turns(users: &mut Users, alice: &User, bob: &User, let_go: impl FnOnce(&mut Users)) {
    let moved = |users: &Users| users.rig.device.statistics().spus[0].nv_read_bytes;
    let before = moved(users);
    let_go(users);
    assert_eq!(moved(users), before, "that itself moves nothing");
    // Another user's read comes at that moment.
    let arguments = users.arguments(1 << 20, 512, NV);
    users.rig.begin(bob.hre, (users.mover, 1, 0), &arguments, &[], 512);
    let mut most = 0;
    let ended = loop {
        let begin = moved(users);
        users.run_once();
        most = most.max(moved(users) - begin);
        if let Some(done) = users.completion() {
            break done;
        }
    };
    assert_eq!((ended.hre, ended.outcome, ended.result), (bob.hre, ANSWERED, 0));
    // What one call of the device covers, and not all that was let go on.
    let all = u64::from(PARKED * SEGMENTS);
    assert!(moved(users) - before < all / 8, "{} of {all} went before it", moved(users) - before);
    assert!(most < u64::from(SEGMENTS), "{most} in one call of the device");
    users.rig.settle();
    for _ in 0..PARKED {
        let done = users.completion().expect("it ends");
        assert_eq!((done.hre, done.outcome, done.result), (alice.hre, ANSWERED, 0));
    }
}

#[test]
fn dmas_that_an_answer_lets_go_on_do_so_in_turns() {
    let mut users = Users::new(DeviceConfig { handlers_per_process_max: PARKED as u16, ..config(1) });
    let kernel = users.rig.hre;
    users.control(control::REGISTER_AGENT, &[]);
    let (alice, bob) = (users.user(1000), users.user(1001));
    users.grant(&bob, READ, 1 << 20, 512);
    let strided = users.install_for(alice.hre, &strided()).expect("an app");
    let before = users.rig.device.statistics().spus[0].nv_read_bytes;
    for _ in 0..PARKED {
        users.rig.begin(alice.hre, (strided, 1, 0), &users.base.to_le_bytes(), &[], 0);
    }
    users.run();
    let upcall = users.rig.device.upcall(kernel).expect("the agent is told");
    assert_eq!(users.rig.device.statistics().protection.parked, u64::from(PARKED));
    users.grant(&alice, READ, 0, 1 << 20);
    go_on_in_turns(&mut users, &alice, &bob, |users| {
        assert!(users.rig.device.answer_upcall(kernel, upcall.id, 0, 0));
    });
    let moved = users.rig.device.statistics().spus[0].nv_read_bytes - before;
    assert_eq!(moved, u64::from(PARKED * SEGMENTS) + 512);
}

#[test]
fn dmas_that_the_end_of_operations_lets_go_on_do_so_in_turns() {
    let mut users = Users::new(DeviceConfig { handlers_per_process_max: PARKED as u16, ..config(1) });
    let (alice, bob) = (users.user(1000), users.user(1001));
    users.grant(&alice, READ, 0, 1 << 20);
    users.grant(&bob, READ, 1 << 20, 512);
    let strided = users.install_for(alice.hre, &strided()).expect("an app");
    users.valve.closed.set(true);
    for _ in 0..PARKED {
        users.rig.begin(alice.hre, (strided, 1, 0), &users.base.to_le_bytes(), &[], 0);
    }
    users.run();
    // The places of a process are taken; what is left of all others waits for them.
    assert!(tables(&users.rig.device).in_line >= PARKED as usize / 2);
    go_on_in_turns(&mut users, &alice, &bob, |users| users.valve.closed.set(false));
}

/// Handler 1 makes a region of 32 MiB, handler 2 gives it up.
const REGIONS: &str = r#"(func $start (param i32 i32) (result i32) (local $code i64)
    (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
    (if (i32.eq (local.get 1) (i32.const 1))
        (then (local.set $code (call $region (i32.const 1) (i64.const 33554432) (local.get 0))))
        (else (local.set $code (i64.extend_i32_s (call $region_free (i32.const 1) (local.get 0))))
            (if (i64.eq (local.get $code) (i64.const 1)) (then (return (i32.const 0))))))
    (if (i64.ne (local.get $code) (i64.const -1)) (then (call $complete (local.get 0) (local.get $code))))
    (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (local.get 0) (i32.const 0) (i64.lt_s (local.get 1) (i64.const 0))))"#;

#[test]
fn a_region_that_is_given_up_is_erased_by_pieces() {
    let mut users = Users::new(config(2));
    let (alice, bob) = (users.user(1000), users.user(1001));
    users.grant(&bob, READ, 0, 512);
    let regions = users.install_for(alice.hre, &app("regions", REGIONS, "")).expect("an app");
    let made = users.rig.call_on(alice.hre, (regions, 1, 0), &[], &[], 0);
    assert_eq!((made.outcome, made.result), (ANSWERED, 0));
    let zeroed = users.valve.zeroed_bytes.clone();
    zeroed.set(0);
    users.rig.begin(alice.hre, (regions, 2, 0), &[], &[], 0);
    let (mut most, mut served, mut freed) = (0, 0, None);
    for turn in 0..10_000 {
        // Another user reads all the time.
        let arguments = users.arguments(0, 512, NV);
        users.rig.begin(bob.hre, (users.mover, 1, 0), &arguments, &[], 512);
        let before = zeroed.get();
        users.run_once();
        most = most.max(zeroed.get() - before);
        while let Some(done) = users.completion() {
            assert_eq!((done.outcome, done.result), (ANSWERED, 0));
            match done.hre == bob.hre {
                true if zeroed.get() > 0 && zeroed.get() < 64 << 20 => served += 1,
                true => {}
                false => freed = Some(turn),
            }
        }
        if zeroed.get() == 64 << 20 && freed.is_some() {
            break;
        }
    }
    assert!(freed.is_some() && zeroed.get() == 64 << 20, "{} bytes", zeroed.get());
    assert!(most <= 4 << 20, "{most} bytes in one call of the device");
    assert!(served >= 10, "{served} reads while it was erased");
}

/// Handler 1 never answers; 2 sends itself an RPC to handler 3, for which there is never a thread, as often as its argument says.
const KEEPER: &str = r#"(func $start (param i32 i32) (result i32) (local $left i32)
    (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
    (if (i32.eq (local.get 1) (i32.const 1)) (then (return (i32.const 0))))
    (if (i32.eq (local.get 1) (i32.const 3)) (then (return (i32.const 1))))
    (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
    (local.set $left (i32.load (i32.const 0)))
    (loop $l
        (drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 9)))
        (br_if $l (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (call $respond (local.get 0) (i32.const 0) (i32.const 0))
    (i32.const 0))"#;

#[test]
fn waiting_for_an_apps_end_walks_through_its_requests_once() {
    let mut users = Users::new(config(2));
    let alice = users.user(1000);
    let kernel = users.rig.hre;
    let keeper = users.install_for(alice.hre, &app("keeper", KEEPER, "")).expect("an app");
    for number in 0..16 {
        users.rig.begin(alice.hre, (keeper, 1, number % 2), &[], &[], 0);
    }
    users.run();
    // It is to be replaced, and its requests do not end: that is looked at again and again until the deadline.
    let module = app("keeper", KEEPER, "");
    users.rig.begin(alice.hre, (control::CONTROL_APP, control::INSTALL, 0), &[], &module, 0);
    users.run();
    while let Some(job) = users.rig.device.job() {
        let done = job.run();
        users.rig.device.job_done(done);
    }
    users.run();
    let before = walks(&users.rig.device);
    let base = users.base;
    for _ in 0..500 {
        // Others are served meanwhile.
        let rpc = Rpc {
            app: users.mover,
            handler: 1,
            spu: 0,
            arguments: Arguments::new(&[&base.to_le_bytes()[..], &512u32.to_le_bytes(), &NV.to_le_bytes()].concat())
                .expect("short"),
        };
        let request =
            HostRequest { tag: 1, rpcs: RpcList::One(rpc), buffer: vec![0; 512], payload_bytes: 0, reply_bytes: 512 };
        users.rig.device.submit(kernel, request).expect("room");
        users.run();
        assert_eq!(users.completion().expect("it ends").outcome, ANSWERED);
    }
    let walked = walks(&users.rig.device) - before;
    assert!(walked <= 2, "{walked} walks in 500 turns of the device");
    // Past the deadline the upgrade is refused, as ever.
    users.rig.settle();
    let done = users.completion().expect("the upgrade ends");
    assert!(matches!(done.outcome, RpcOutcome::Answered { status } if status != 0), "{:?}", done.outcome);
}

#[test]
fn an_app_that_never_has_a_thread_has_nobody_searched_for_circles() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let keeper = users.install_for(alice.hre, &app("keeper", KEEPER, "")).expect("an app");
    let before = walks(&users.rig.device);
    let sent = 20u32;
    users.rig.begin(alice.hre, (keeper, 2, 0), &sent.to_le_bytes(), &[], 0);
    users.run();
    assert_eq!(users.completion().expect("it is answered").outcome, ANSWERED);
    let walked = walks(&users.rig.device) - before;
    assert!(walked <= 2, "{walked} walks for {sent} RPCs that find no thread");
}
