//! Protection from outside: what processes of users reach, and what they do not, with apps that try.

mod common;
use common::users::*;
use common::*;
use willow_device::control::{self, ControlStatus};
use willow_device::{ProcessInfo, RpcOutcome};

/// How long an agent may leave a miss unanswered.
const MISS_NS_MAX: u64 = 2_000_000_000;
const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };

#[test]
fn a_process_reaches_what_was_granted_and_no_byte_more() {
    let mut users = Users::new(config(2));
    let (alice, bob) = (users.user(1000), users.user(1001));
    let (kernel, mover) = (users.rig.hre, users.mover);
    assert_eq!(users.write(kernel, mover, 0, &[9; 8192]), (ANSWERED, 0));
    assert_eq!(users.read(alice.hre, mover, 0, 512), (ANSWERED, PERMISSION, vec![]));
    users.grant(&alice, READ, 512, 1024);
    assert_eq!(users.read(alice.hre, mover, 512, 1024), (ANSWERED, 0, vec![9; 1024]));
    for (start, bytes) in [(511, 2), (512, 1025), (1535, 2), (0, 512), (1536, 1)] {
        assert_eq!(users.read(alice.hre, mover, start, bytes).1, PERMISSION, "{start} {bytes}");
    }
    // Reading is not writing; another user's process and the other SPU have nothing.
    assert_eq!(users.write(alice.hre, mover, 512, &[1; 4]).1, PERMISSION);
    assert_eq!(users.read(bob.hre, mover, 512, 4).1, PERMISSION);
    let arguments = users.arguments(512, 4, NV);
    assert_eq!(users.rig.call_on(alice.hre, (mover, 1, 1), &arguments, &[], 4).result, PERMISSION);
    users.grant(&alice, WRITE, 1000, 24);
    assert_eq!(users.write(alice.hre, mover, 1000, &[7; 24]), (ANSWERED, 0));
    assert_eq!(users.write(alice.hre, mover, 999, &[7; 2]).1, PERMISSION);
    // A revocation takes what it names and leaves the rest.
    users.revoke(&alice, READ | WRITE, 1008, 8);
    assert_eq!(users.write(alice.hre, mover, 1007, &[5; 2]).1, PERMISSION);
    assert_eq!(users.read(alice.hre, mover, 1016, 8), (ANSWERED, 0, vec![7; 8]));
    assert_eq!(users.read(alice.hre, mover, 512, 496).1, 0);
    users.revoke(&alice, READ | WRITE, 0, 8192);
    assert_eq!(users.read(alice.hre, mover, 512, 1).1, PERMISSION);
    // What they did not reach is as it was.
    assert_eq!(users.read(kernel, mover, 0, 1000).2, vec![9; 1000]);
}

#[test]
fn permissions_end_with_the_process_and_with_the_namespace() {
    let mut users = Users::new(config(1));
    let mover = users.mover;
    let alice = users.user(1000);
    users.grant(&alice, READ | WRITE, 0, 4096);
    assert_eq!(users.control(control::CLOSE_PROCESS, &alice.process.to_le_bytes()).0, 0);
    let request = users.rig.request(rpc(mover, 1), &[], 4);
    assert!(users.rig.device.submit(alice.hre, request).is_err(), "its endpoints are closed");
    let body = Users::extents(alice.process, &[(0, READ, users.base, 512)]);
    assert_eq!(users.control(control::GRANT, &body).0, ControlStatus::NotFound as u32);
    // A process with the number of one that has ended has nothing of it.
    let bob = users.user(1001);
    users.grant(&bob, READ | WRITE, 0, 4096);
    assert_eq!(users.control(control::DELETE_NAMESPACE, &1u32.to_le_bytes()).0, 0);
    assert_eq!(users.rig.device.statistics().protection.permissions, 0);
    assert_eq!(users.read(bob.hre, mover, 0, 4).1, PERMISSION);
    let list = users.rig.call(control::CONTROL_APP, control::LIST_PROCESSES, 0, &[], &[], 4096);
    let list: Vec<ProcessInfo> = serde_json::from_slice(&list.buffer[..list.reply_bytes as usize]).unwrap();
    assert_eq!(list, [ProcessInfo { process: bob.process, user: 1001, weight: 1, hres: 1, identity: (0, 0) }]);
}

/// The number of a process that has ended is another's at some time, and the agent may not know that yet.
#[test]
fn what_is_granted_to_a_users_process_is_not_installed_for_another_users() {
    let mut users = Users::new(config(1));
    let (alice, root) = (users.user(1000), users.user(0));
    let base = users.base;
    let grant = |users: &mut Users, process: u32, user: Option<u32>| {
        let mut body = Users::extents(process, &[(0, READ, base, 512)]);
        body[4..8].copy_from_slice(&user.map_or(0, |user| user + 1).to_le_bytes());
        users.control(control::GRANT, &body).0
    };
    for (process, others) in [(alice.process, [0, 1001, u32::MAX - 1]), (root.process, [1, 1000, u32::MAX - 1])] {
        for other in others {
            assert_eq!(grant(&mut users, process, Some(other)), ControlStatus::NotFound as u32, "{process} {other}");
        }
    }
    assert_eq!(users.rig.device.statistics().protection.permissions, 0);
    assert_eq!(grant(&mut users, alice.process, Some(1000)), 0);
    assert_eq!(grant(&mut users, root.process, Some(0)), 0);
    assert_eq!(users.rig.device.statistics().protection.permissions, 2);
    // Who does not say whose it is takes it as it is.
    let bob = users.user(1001);
    assert_eq!(grant(&mut users, bob.process, None), 0);
}

fn rpc(app: u16, handler: u8) -> willow_device::Rpc {
    willow_device::Rpc { app, handler, spu: 0, arguments: willow_device::Arguments::EMPTY }
}

#[test]
fn grants_are_for_block_namespaces_alone_and_bad_ones_change_nothing() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let base = users.base;
    let end = base + users.bank_bytes;
    for (spu, rights, start, bytes) in [
        (1, 1, base, 512),
        (0, 0, base, 512),
        (0, 4, base, 512),
        (0, 1, end, 512),
        (0, 1, end - 1, 2),
        (0, 1, base, 0),
        (0, 1, u64::MAX - 1, 8),
        (0, 1, base, u64::MAX),
    ] {
        let body = Users::extents(alice.process, &[(0, 3, base, 512), (spu, rights, start, bytes)]);
        assert_eq!(
            users.control(control::GRANT, &body).0,
            ControlStatus::Malformed as u32,
            "{spu} {rights} {start} {bytes}"
        );
    }
    assert_eq!(users.rig.device.statistics().protection.permissions, 0);
    assert_eq!(users.control(control::GRANT, &[1, 2, 3]).0, ControlStatus::Malformed as u32);
}

/// Begins a parked read of Alice's and takes the agent's upcall about it.
fn miss(users: &mut Users, alice: &User, port: u32) -> willow_device::Upcall {
    let arguments = users.arguments(512, 16, port);
    let mover = users.mover;
    users.rig.begin(alice.hre, (mover, 1, 0), &arguments, &[], 16);
    users.run();
    let upcall = users.rig.device.upcall(users.rig.hre).expect("the agent is told");
    assert_eq!((upcall.app, upcall.handler, upcall.spu), (0, control::UPCALL_PERMISSION_MISS, 0));
    let word = |at: usize| u64::from_le_bytes(upcall.body[at..at + 8].try_into().unwrap());
    assert_eq!(word(0) as u32 >> 12 & 0x7ffff, alice.process);
    assert_eq!((word(8), word(16), word(24)), (users.base + 512, users.base + 528, u64::from(READ)));
    upcall
}

#[test]
fn a_parked_read_goes_on_when_the_agent_installs_the_permission() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let (kernel, mover) = (users.rig.hre, users.mover);
    users.write(kernel, mover, 512, &[3; 16]);
    // Nobody to ask: it fails at once, parked or not.
    let arguments = users.arguments(512, 16, PARKED_NV);
    assert_eq!(users.rig.call_on(alice.hre, (mover, 1, 0), &arguments, &[], 16).result, PERMISSION);
    assert_eq!(users.control(control::REGISTER_AGENT, &[]).0, 0);
    let upcall = miss(&mut users, &alice, PARKED_NV);
    assert_eq!(users.rig.device.statistics().protection.parked, 1);
    // More of them wait for the same answer.
    users.rig.begin(alice.hre, (mover, 1, 0), &arguments, &[], 16);
    let local = users.arguments(512, 16, PARKED_NV);
    users.rig.begin(alice.hre, (mover, 3, 0), &local, &[], 0);
    users.run();
    assert!(users.rig.device.upcall(kernel).is_none() && users.completion().is_none());
    users.grant(&alice, READ, 512, 16);
    assert!(users.completion().is_none());
    assert!(users.rig.device.answer_upcall(kernel, upcall.id, 0, 0));
    users.run();
    for _ in 0..2 {
        let done = users.completion().unwrap();
        assert_eq!((done.outcome, done.result, &done.buffer[..16]), (ANSWERED, 0, &[3; 16][..]));
    }
    assert_eq!(users.completion().unwrap().result, 0x0303_0303);
    assert!(!users.rig.device.answer_upcall(kernel, upcall.id, 0, 0), "an answer counts once");
}

#[test]
fn a_parked_write_keeps_the_bytes_that_it_was_given() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let (kernel, mover) = (users.rig.hre, users.mover);
    users.control(control::REGISTER_AGENT, &[]);
    // From local memory, which the handler overwrites while the DMA is parked; and from the payload.
    let arguments = users.arguments(0, 4, PARKED_NV);
    users.rig.begin(alice.hre, (mover, 4, 0), &arguments, &[1, 2, 3, 4], 0);
    let arguments = users.arguments(64, 4, PARKED_NV);
    users.rig.begin(alice.hre, (mover, 2, 0), &arguments, &[5, 6, 7, 8], 0);
    users.run();
    let upcall = users.rig.device.upcall(kernel).expect("the agent is told");
    users.grant(&alice, WRITE, 0, 4);
    users.rig.device.answer_upcall(kernel, upcall.id, 0, 0);
    users.run();
    assert_eq!(users.completion().unwrap().result, 0);
    // The other one missed again: a new upcall, which is refused.
    let again = users.rig.device.upcall(kernel).expect("the agent is told again");
    users.rig.device.answer_upcall(kernel, again.id, 1, 0);
    users.run();
    assert_eq!(users.completion().unwrap().result, PERMISSION);
    assert_eq!(users.read(kernel, mover, 0, 4).2, [1, 2, 3, 4]);
    assert_eq!(users.read(kernel, mover, 64, 4).2, [0; 4]);
}

#[test]
fn whether_a_range_may_be_written_is_told_without_writing() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let (kernel, mover) = (users.rig.hre, users.mover);
    assert_eq!(users.write(kernel, mover, 0, &[9; 1024]), (ANSWERED, 0));
    let ask = |users: &mut Users, hre, start, bytes| {
        let arguments = users.arguments(start, bytes, NV);
        users.rig.call_on(hre, (mover, 5, 0), &arguments, &[], 0).result
    };
    assert_eq!(ask(&mut users, kernel, 0, 1024), 0);
    users.grant(&alice, READ, 0, 1024);
    assert_eq!(ask(&mut users, alice.hre, 0, 512), PERMISSION, "reading is not writing");
    users.grant(&alice, WRITE, 256, 256);
    assert_eq!(ask(&mut users, alice.hre, 256, 256), 0);
    for (start, bytes) in [(255, 2), (256, 257), (511, 2)] {
        assert_eq!(ask(&mut users, alice.hre, start, bytes), PERMISSION, "{start} {bytes}");
    }
    // Where the agent may help, it is asked, and the look-up waits for what it says.
    assert_eq!(users.control(control::REGISTER_AGENT, &[]).0, 0);
    let arguments = users.arguments(600, 8, PARKED_NV);
    users.rig.begin(alice.hre, (mover, 5, 0), &arguments, &[], 0);
    users.run();
    assert!(users.completion().is_none());
    let upcall = users.rig.device.upcall(kernel).expect("the agent is told");
    users.grant(&alice, WRITE, 600, 8);
    assert!(users.rig.device.answer_upcall(kernel, upcall.id, 0, 0));
    users.run();
    assert_eq!(users.completion().map(|done| done.result), Some(0));
    // Nothing else may be its other end, and no byte has changed.
    let arguments = users.arguments(0, 8, 4);
    assert_eq!(users.rig.call_on(kernel, (mover, 1, 0), &arguments, &[], 8).result, 0u32.wrapping_sub(2));
    assert_eq!(users.read(kernel, mover, 0, 1024).2, [9; 1024]);
}

#[test]
fn parked_requests_end_by_refusal_time_revocation_and_the_agents_end() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    let kernel = users.rig.hre;
    users.control(control::REGISTER_AGENT, &[]);
    let ends = |users: &mut Users, how: &str, end: &mut dyn FnMut(&mut Users, u64)| {
        let upcall = miss(users, &alice, PARKED_NV);
        assert!(users.completion().is_none(), "{how}");
        end(users, upcall.id);
        users.rig.settle();
        assert_eq!(users.completion().map(|done| done.result), Some(PERMISSION), "{how}");
        users.rig.device.answer_upcall(kernel, upcall.id, 1, 0);
        assert_eq!(users.rig.device.statistics().protection.parked, 0);
    };
    ends(&mut users, "refused", &mut |users, id| assert!(users.rig.device.answer_upcall(kernel, id, 1, 0)));
    // Time goes on to the next moment that the device has something to do at: that is when it gives up.
    let begun_ns = users.rig.now_ns;
    ends(&mut users, "in time", &mut |_, _| ());
    assert_eq!(users.rig.now_ns - begun_ns, MISS_NS_MAX);
    ends(&mut users, "agent's end", &mut |users, _| {
        users.rig.device.close_hre(kernel);
        assert_eq!(users.rig.device.open_hre(None), Some(kernel));
    });
    assert_eq!(users.control(control::REGISTER_AGENT, &[]).0, 0);
    let process = alice.process;
    let body = Users::extents(process, &[(0, READ, users.base + 520, 1)]);
    ends(&mut users, "revoked", &mut |users, _| {
        users.rig.begin(kernel, (control::CONTROL_APP, control::REVOKE, 0), &[], &body, 0);
        users.run();
        assert_eq!(users.completion().unwrap().outcome, ANSWERED);
    });
    // Not parked: it fails at once, and the agent hears of it all the same.
    let upcall = miss(&mut users, &alice, NV);
    assert_eq!(users.completion().unwrap().result, PERMISSION);
    assert!(users.rig.device.answer_upcall(kernel, upcall.id, 0, 0));
}

#[test]
fn users_get_nothing_from_the_control_service_but_what_is_theirs() {
    let mut users = Users::new(config(1));
    let alice = users.user(1000);
    for handler in 1..=255 {
        let allowed = [
            control::INSTALL,
            control::REMOVE,
            control::LIST_APPS,
            control::LOG,
            control::READ_LOG,
            control::READ_CORE,
            control::RESET_APP,
            control::BEGIN_PROFILE,
            control::READ_PROFILE,
            control::END_PROFILE,
            control::BEGIN_DEBUG,
            control::END_DEBUG,
            control::DEBUG_STATE,
            control::DEBUG_QUERY,
            control::DEBUG_TELL,
            control::ANSWER_UPCALL,
            control::ERROR_TEXT,
            control::FIND_APP,
            control::SUBSCRIBE,
            control::UNSUBSCRIBE,
        ];
        let base = users.base;
        for payload in
            [vec![], Users::extents(alice.process, &[(0, 3, base, 512)]), b"{\"user\":0}".to_vec(), vec![1, 0, 0, 0]]
        {
            let done = users.rig.call_on(alice.hre, (control::CONTROL_APP, handler, 0), &[], &payload, 0);
            let refused = done.outcome == RpcOutcome::NotPermitted;
            assert_eq!(refused, !allowed.contains(&handler), "{handler}: {:?}", done.outcome);
        }
    }
    let statistics = users.rig.device.statistics();
    assert_eq!((statistics.protection.permissions, users.rig.device.namespaces().len()), (0, 1));
    // An app of the kernel's is not removed by a user, nor read, nor replaced.
    let kernels = users.rig.install(&app("kernels", MOVER, "")).unwrap();
    let remove = users.rig.call_on(alice.hre, (control::CONTROL_APP, control::REMOVE, 0), &[], b"kernels", 0);
    assert_eq!(remove.outcome, RpcOutcome::Answered { status: ControlStatus::NotFound as u32 });
    let find = users.rig.call_on(alice.hre, (control::CONTROL_APP, control::FIND_APP, 0), &[], b"kernels", 0);
    assert_eq!(find.outcome, RpcOutcome::Answered { status: ControlStatus::NotFound as u32 });
    let own = users.install_for(alice.hre, &app("kernels", MOVER, "")).unwrap();
    assert_ne!(own, kernels);
    let find = users.rig.call_on(alice.hre, (control::CONTROL_APP, control::FIND_APP, 0), &[], b"kernels", 0);
    assert_eq!(find.result, u32::from(own));
    let mut log = vec![0; 4];
    log.extend(b"base-io");
    let log = users.rig.call_on(alice.hre, (control::CONTROL_APP, control::LOG, 0), &log, &[], 100);
    assert_eq!(log.outcome, RpcOutcome::Answered { status: ControlStatus::NotFound as u32 });
    // Its name is no name for the kernel's apps.
    assert!(users.rig.install(&app("u1000-kernels", MOVER, "")).is_err());
}

#[test]
fn a_users_app_is_the_users_and_has_the_callers_rights() {
    let mut users = Users::new(config(1));
    let (alice, bob, nobody) = (users.user(1000), users.user(1001), users.rig.device.open_hre(Some(9)).unwrap());
    let kernel = users.rig.hre;
    let own = users.install_for(alice.hre, &app("scan", MOVER, "")).unwrap();
    let public = users.install_for(alice.hre, &app("public", MOVER, "public=1\\n")).unwrap();
    users.grant(&alice, READ, 0, 512);
    users.grant(&bob, READ, 512, 512);
    assert_eq!(users.read(alice.hre, own, 0, 512).1, 0);
    assert_eq!(users.read(alice.hre, own, 512, 4).1, PERMISSION);
    // Not Bob's to call; what is public runs with his rights, not with hers.
    assert_eq!(users.read(bob.hre, own, 512, 4).0, RpcOutcome::NotPermitted);
    assert_eq!(users.read(nobody, own, 512, 4).0, RpcOutcome::NotPermitted);
    assert_eq!(users.read(bob.hre, public, 512, 4), (ANSWERED, 0, vec![0; 4]));
    assert_eq!(users.read(bob.hre, public, 0, 4).1, PERMISSION);
    assert_eq!(users.write(bob.hre, public, 512, &[0; 4]).0, RpcOutcome::NotPermitted);
    // The kernel's endpoint lends it nothing.
    assert_eq!(users.read(kernel, own, 0, 4).1, PERMISSION);
    assert_eq!(users.write(kernel, own, 0, &[1]).1, PERMISSION);
    assert!(users.install_for(nobody, &app("scan", MOVER, "")).is_err());
    // Eight apps at most; replacing one is no new one.
    for index in 0..6 {
        users.install_for(alice.hre, &app(&format!("app{index}"), MOVER, "")).unwrap();
    }
    let full = RpcOutcome::Answered { status: ControlStatus::NoRoom as u32 };
    assert_eq!(users.install_for(alice.hre, &app("one-more", MOVER, "")), Err(full));
    assert_eq!(users.install_for(alice.hre, &app("scan", MOVER, "")), Ok(own));
    assert!(users.install_for(bob.hre, &app("scan", MOVER, "")).is_ok());
}

#[test]
fn a_users_app_that_is_told_of_events_has_no_rights_then() {
    // At its start (originating HRE 0), it tries to write to the namespace and to call the app that serves it.
    let events = r#"
        (func $start (param i32 i32) (result i32)
            (if (i32.eqz (local.get 1)) (then
                (i64.store (i32.const 0) (i64.const 0x4141414141414141))
                (i32.store (i32.const 100) (call $dma (local.get 0) (i32.const 0) (i64.const 0) (i32.const 1) (i64.const 0) (i32.const 8) (i32.const 5)))
                (i32.store (i32.const 104) (call $dma (local.get 0) (i32.const 1) (i64.const 0) (i32.const 0) (i64.const 200) (i32.const 8) (i32.const 5)))))
            (call $respond (local.get 0) (i32.const 0)
                (i32.and (i32.eq (i32.load (i32.const 100)) (i32.const -4)) (i32.eq (i32.load (i32.const 104)) (i32.const -4))))
            (i32.const 0))"#;
    let mut users = Users::new(config(1));
    assert_eq!(users.base, 0, "the namespace lies where the app tries");
    let alice = users.user(1000);
    let app = users.install_for(alice.hre, &app("starts", events, "")).unwrap();
    assert_eq!(users.rig.call_on(alice.hre, (app, 1, 0), &[], &[], 0).result, 1);
    let kernel = users.rig.hre;
    let mover = users.mover;
    assert_eq!(users.read(kernel, mover, 0, 8).2, [0; 8]);
}

#[test]
fn calls_between_apps_keep_the_originating_endpoint_and_obey_the_table() {
    let mut users = Users::new(config(1));
    let (alice, bob) = (users.user(1000), users.user(1001));
    let kernel = users.rig.hre;
    let closed = users.rig.install(&app("closed", MOVER, "kernel=2\\n")).unwrap();
    let calls = users.install_for(alice.hre, &app("calls", &caller(1), "public=*\\n")).unwrap();
    let writes = users.install_for(alice.hre, &app("writes", &caller(2), "public=*\\n")).unwrap();
    let friend = users.install_for(alice.hre, &app("friend", MOVER, "")).unwrap();
    users.grant(&alice, READ, 0, 512);
    let call = |users: &mut Users, hre, app: u16, callee: u16, start| {
        let mut arguments = users.arguments(start, 16, NV);
        arguments.extend(u32::from(callee).to_le_bytes());
        let done = users.rig.call_on(hre, (app, 1, 0), &arguments, &[], 0);
        (done.outcome, done.result)
    };
    let mover = users.mover;
    // Through a public app and an own one: Alice's rights, whoever asks; Bob has none.
    assert_eq!(call(&mut users, alice.hre, calls, mover, 0), (ANSWERED, 0));
    assert_eq!(call(&mut users, alice.hre, calls, friend, 0), (ANSWERED, 0));
    assert_eq!(call(&mut users, alice.hre, calls, mover, 512), (ANSWERED, PERMISSION));
    assert_eq!(call(&mut users, bob.hre, calls, mover, 0), (ANSWERED, PERMISSION));
    // On behalf of the kernel a user's app calls nobody: it would act with the kernel's rights.
    assert_eq!(call(&mut users, kernel, calls, mover, 0), (ANSWERED, PERMISSION));
    // An app that is not public, without and with a rule.
    assert_eq!(call(&mut users, alice.hre, calls, closed, 0), (ANSWERED, PERMISSION));
    let rule = br#"{"add":[{"caller":"u1000-calls","callee":"closed","handler":1},{"caller":"u1000-writes","callee":"closed","handler":0}]}"#;
    assert_eq!(users.control(control::CHANGE_INTERCALLS, rule).0, 0);
    assert_eq!(call(&mut users, alice.hre, calls, closed, 0), (ANSWERED, 0));
    // A handler for the kernel alone stays that.
    assert_eq!(call(&mut users, alice.hre, writes, closed, 0), (ANSWERED, PERMISSION));
    assert_eq!(users.write(kernel, closed, 0, &[1; 4]), (ANSWERED, 0));
    assert_eq!(users.write(alice.hre, closed, 0, &[1; 4]).0, RpcOutcome::NotPermitted);
    let rule = br#"{"remove":[{"caller":"u1000-calls","callee":"closed","handler":1}]}"#;
    assert_eq!(users.control(control::CHANGE_INTERCALLS, rule).0, 0);
    assert_eq!(call(&mut users, alice.hre, calls, closed, 0), (ANSWERED, PERMISSION));
    // The control service is no app that could be called.
    assert_ne!(call(&mut users, alice.hre, calls, 0, 0).1, 0);
}

#[test]
fn the_agent_is_told_when_an_app_ends() {
    let mut users = Users::new(config(1));
    users.control(control::REGISTER_AGENT, &[]);
    let alice = users.user(1000);
    let own = users.install_for(alice.hre, &well_behaved("bad", "(unreachable)")).unwrap();
    let done = users.rig.call_on(alice.hre, (own, 2, 0), &[], &[], 0);
    assert_eq!(done.outcome, RpcOutcome::AppEnded);
    let notice = users.rig.device.upcall(users.rig.hre).expect("the agent is told");
    assert_eq!((notice.app, notice.handler), (0, control::UPCALL_APP_ENDED));
    assert_eq!(notice.body[..4], u32::from(own).to_le_bytes());
    assert!(String::from_utf8_lossy(&notice.body[4..]).starts_with("u1000-bad\nit trapped"));
}

#[test]
fn under_pressure_the_table_evicts_and_misses_bring_back() {
    let mut users = Users::new(willow_device::DeviceConfig { permission_entries: 8, ..config(1) });
    let alice = users.user(1000);
    let mover = users.mover;
    users.control(control::REGISTER_AGENT, &[]);
    for index in 0..64 {
        users.grant(&alice, READ, index * 1024, 512);
    }
    let counters = users.rig.device.statistics().protection;
    assert_eq!((counters.permissions, counters.evictions), (8, 56));
    let kernel = users.rig.hre;
    for index in 0..64 {
        let arguments = users.arguments(index * 1024, 512, PARKED_NV);
        users.rig.begin(alice.hre, (mover, 1, 0), &arguments, &[], 512);
        users.run();
        if let Some(upcall) = users.rig.device.upcall(kernel) {
            users.grant(&alice, READ, index * 1024, 512);
            users.rig.device.answer_upcall(kernel, upcall.id, 0, 0);
            users.run();
        }
        assert_eq!(users.completion().unwrap().result, 0, "{index}");
    }
}

/// A control request of another kernel endpoint: its status and result.
fn ask(users: &mut Users, hre: willow_device::HreId, handler: u8, payload: &[u8]) -> (RpcOutcome, u32) {
    let done = users.rig.call_on(hre, (control::CONTROL_APP, handler, 0), &[], payload, 0);
    (done.outcome, done.result)
}

#[test]
fn a_namespace_has_one_agent_which_is_told_of_it_alone() {
    let mut users = Users::new(config(1));
    let request = br#"{"csi":"nvm","size_bytes":4194304,"block_bytes":512}"#;
    let (made, second) = users.control(control::CREATE_NAMESPACE, request);
    assert_eq!(made, 0);
    let first = users.rig.device.namespaces().iter().find(|it| it.base == users.base).expect("it is there").nsid;
    let (one, other) = (users.rig.hre, users.rig.device.open_hre(None).expect("room"));
    let alice = users.user(1000);
    let status = |status: ControlStatus| RpcOutcome::Answered { status: status as u32 };
    assert_eq!(users.control(control::REGISTER_AGENT, &first.to_le_bytes()).0, 0);
    for (body, wanted) in [
        (first.to_le_bytes().to_vec(), ControlStatus::Busy),
        ([first.to_le_bytes(), second.to_le_bytes()].concat(), ControlStatus::Busy),
        (77u32.to_le_bytes().to_vec(), ControlStatus::NotFound),
        (vec![1, 2], ControlStatus::Malformed),
    ] {
        assert_eq!(ask(&mut users, other, control::REGISTER_AGENT, &body).0, status(wanted), "{body:?}");
    }
    assert_eq!(ask(&mut users, other, control::REGISTER_AGENT, &second.to_le_bytes()).0, ANSWERED);
    // Each is told of what is missed in its own namespace, and the other cannot answer.
    let upcall = miss(&mut users, &alice, PARKED_NV);
    assert!(users.rig.device.upcall(other).is_none());
    assert!(!users.rig.device.answer_upcall(other, upcall.id, 0, 0));
    // The other's end is nothing to it; its own is.
    users.rig.device.close_hre(other);
    users.run();
    assert!(users.completion().is_none());
    users.rig.device.close_hre(one);
    users.run();
    assert_eq!(users.completion().expect("the read has ended").result, PERMISSION);
    // Whoever comes next takes the place of who is gone, and may leave namespaces out for another.
    let third = users.rig.device.open_hre(None).expect("room");
    assert_eq!(ask(&mut users, third, control::REGISTER_AGENT, &[]).0, ANSWERED);
    let fourth = users.rig.device.open_hre(None).expect("room");
    assert_eq!(ask(&mut users, fourth, control::REGISTER_AGENT, &[]).0, status(ControlStatus::Busy));
    assert_eq!(ask(&mut users, fourth, control::REGISTER_AGENT, &first.to_le_bytes()).0, ANSWERED);
    users.rig.hre = fourth;
    miss(&mut users, &alice, PARKED_NV);
    assert!(users.rig.device.upcall(third).is_none());
}

#[test]
fn what_was_permitted_in_a_namespace_ends_with_its_agent() {
    let mut users = Users::new(config(1));
    let (kernel, mover) = (users.rig.hre, users.mover);
    let request = br#"{"csi":"nvm","size_bytes":4194304,"block_bytes":512}"#;
    let (made, second) = users.control(control::CREATE_NAMESPACE, request);
    assert_eq!(made, 0);
    let first = users.rig.device.namespaces().iter().find(|it| it.base == users.base).expect("it is there").nsid;
    let (one, other) = (users.rig.device.open_hre(None).expect("room"), users.rig.device.open_hre(None).expect("room"));
    assert_eq!(ask(&mut users, one, control::REGISTER_AGENT, &first.to_le_bytes()).0, ANSWERED);
    assert_eq!(ask(&mut users, other, control::REGISTER_AGENT, &second.to_le_bytes()).0, ANSWERED);
    // A process that the device's own transport let in, not an agent.
    let alice = users.user(1000);
    let apart =
        users.rig.device.namespaces().iter().find(|it| it.nsid == second).expect("it is there").base - users.base;
    for at in [0, apart] {
        users.grant(&alice, READ, at, 512);
        assert_eq!(users.read(alice.hre, mover, at, 16).1, 0);
    }
    users.rig.device.close_hre(one);
    users.run();
    assert_eq!(users.read(alice.hre, mover, 0, 16).1, PERMISSION);
    // The other agent's is as it was, and ends with that.
    assert_eq!(users.read(alice.hre, mover, apart, 16).1, 0);
    users.rig.device.close_hre(other);
    users.run();
    assert_eq!(users.read(alice.hre, mover, apart, 16).1, PERMISSION);
    assert_eq!(users.rig.hre, kernel);
}

#[test]
fn processes_end_with_the_endpoint_that_told_of_them() {
    let mut users = Users::new(config(1));
    let (kernel, mover) = (users.rig.hre, users.mover);
    let agent = users.rig.device.open_hre(None).expect("room");
    let open = |users: &mut Users, hre, user: u32| {
        let (outcome, process) = ask(users, hre, control::OPEN_PROCESS, format!(r#"{{"user":{user}}}"#).as_bytes());
        assert_eq!(outcome, ANSWERED);
        let hre = users.rig.device.open_hre(Some(process)).expect("room for an endpoint");
        User { process, hre }
    };
    let (alice, bob) = (open(&mut users, agent, 1000), open(&mut users, kernel, 1001));
    for user in [&alice, &bob] {
        users.grant(user, READ, 0, 512);
        assert_eq!(users.read(user.hre, mover, 0, 16).1, 0);
    }
    // One with a read under way: it drains, and nobody hears of it.
    let arguments = users.arguments(0, 16, NV);
    users.rig.begin(alice.hre, (mover, 1, 0), &arguments, &[], 16);
    users.rig.device.close_hre(agent);
    users.rig.settle();
    assert!(users.completion().is_none());
    let known = users.rig.device.statistics().protection;
    assert_eq!((known.processes, known.permissions), (1, 1));
    assert!(
        users.rig.device.open_hre(Some(alice.process)).is_some_and(|hre| users.read(hre, mover, 0, 16).1 == PERMISSION)
    );
    assert_eq!(users.read(bob.hre, mover, 0, 16).1, 0);
}
