//! Who installs waits for his own: modules are compiled by turns of users, one at a time, and the instances of a new version are made one in a turn
//! of the device. Nothing here measures time: jobs and turns are counted.

mod common;
use common::users::*;
use common::*;
use willow_device::{JobDone, RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };
const SPUS: u16 = 8;

/// What an instance counts as at least: more than all else that a request to the control service does here.
const INSTANCE_WORK: u64 = 400_000;

/// What SPU-OS has done for a user.
fn host_work(users: &Users, user: u32) -> u64 {
    let accounts = users.rig.device.statistics().accounts;
    accounts.iter().filter(|account| account.user == Some(user)).map(|account| account.counters.host_work).sum()
}

/// An app that does nothing, and prints a line in `_initialize`.
fn idle(name: &str) -> Vec<u8> {
    app(
        name,
        r#"(data (i32.const 64) "x\n") (func (export "_initialize") (call $print (i32.const 64) (i32.const 2)))
        (func $start (param i32 i32) (result i32) (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))"#,
        "",
    )
}

fn begin_install(users: &mut Users, hre: willow_device::HreId, name: &str) {
    users.rig.begin(hre, (control::CONTROL_APP, control::INSTALL, 0), &[], &idle(name), 0);
}

/// Takes the next module to compile, and compiles it. There is no other one until that is done.
fn compile(users: &mut Users) -> Option<JobDone> {
    users.run();
    let job = users.rig.device.job()?;
    assert!(users.rig.device.job().is_none(), "two jobs at once");
    users.run();
    assert!(users.rig.device.job().is_none(), "two jobs at once");
    Some(job.run())
}

#[test]
fn modules_are_compiled_one_at_a_time_by_turns_of_users() {
    let mut users = Users::new(config(2));
    let kernel = users.rig.hre;
    let (alice, bob) = (users.user(1000), users.user(1001));
    for name in ["first", "second", "third", "fourth"] {
        begin_install(&mut users, kernel, name);
    }
    users.run();
    begin_install(&mut users, alice.hre, "of-alice");
    begin_install(&mut users, bob.hre, "of-bob");
    let mut order: Vec<String> = Vec::new();
    while let Some(done) = compile(&mut users) {
        users.rig.device.job_done(done);
        users.run();
        let apps = users.rig.device.statistics().apps;
        let fresh: Vec<_> =
            apps.into_iter().map(|app| app.name).filter(|name| name != "base-io" && !order.contains(name)).collect();
        assert_eq!(fresh.len(), 1, "one was compiled: {fresh:?}");
        order.extend(fresh);
    }
    assert_eq!(order, ["first", "u1000-of-alice", "u1001-of-bob", "second", "third", "fourth"]);
}

#[test]
fn what_nobody_waits_for_is_not_compiled() {
    let mut users = Users::new(config(2));
    let kernel = users.rig.hre;
    begin_install(&mut users, kernel, "first");
    begin_install(&mut users, kernel, "second");
    let first = compile(&mut users).expect("a job");
    users.rig.device.shutdown();
    users.rig.device.job_done(first);
    assert!(compile(&mut users).is_none(), "both have been told that the device ends");
    users.rig.settle();
    assert!(users.rig.device.is_shut_down());
}

#[test]
fn an_instance_is_made_in_a_turn_of_the_device_and_others_are_served_in_between() {
    let mut users = Users::new(config(SPUS));
    let people: Vec<User> = (0..3).map(|number| users.user(1000 + number)).collect();
    let bob = users.user(2000);
    users.grant(&bob, READ, 0, 512);
    for (number, user) in people.iter().enumerate() {
        begin_install(&mut users, user.hre, &format!("app-{number}"));
    }
    users.run();
    // All three are compiled before the device has its turn again.
    while let Some(job) = users.rig.device.job() {
        let done = job.run();
        users.rig.device.job_done(done);
    }
    let (mut served, mut installed) = (0, 0);
    for _ in 0..10_000 {
        let arguments = users.arguments(0, 512, NV);
        users.rig.begin(bob.hre, (users.mover, 1, 0), &arguments, &[], 512);
        users.run_once();
        while let Some(done) = users.completion() {
            assert_eq!(done.outcome, ANSWERED);
            match done.hre == bob.hre {
                true => served += 1,
                false => installed += 1,
            }
        }
        if installed == people.len() {
            break;
        }
    }
    assert_eq!(installed, people.len());
    let instances = people.len() * usize::from(SPUS);
    assert!(served >= instances, "{served} reads while {instances} instances were made");
    for user in 1000..1003 {
        let work = host_work(&users, user);
        assert!(work >= u64::from(SPUS) * INSTANCE_WORK, "user {user} has {work} for {SPUS} instances");
    }
    assert!(host_work(&users, 2000) < INSTANCE_WORK, "who only reads has none of it");
    users.rig.settle();
    while users.completion().is_some() {}
    for number in 0..3 {
        let log = users.rig.log(&format!("u{}-app-{number}", 1000 + number));
        assert_eq!(log.lines().count(), usize::from(SPUS), "a line of each instance: {log:?}");
    }
}

/// Handler 1 answers. STARTED is answered with this status.
fn starts_with(status: u32) -> Vec<u8> {
    app(
        "starts",
        &format!(
            r#"(func $start (param i32 i32) (result i32)
            (call $respond (local.get 0) (select (i32.const {status}) (i32.const 0) (i32.eqz (local.get 1))) (i32.const {})) (i32.const 0))"#,
            status + 7
        ),
        "",
    )
}

/// Reads of another user's that end before a request of Alice's to the control service does, and what that comes to.
fn reads_beside(users: &mut Users, alice: &User, bob: &User, handler: u8, payload: &[u8]) -> (usize, RpcOutcome) {
    users.rig.begin(alice.hre, (control::CONTROL_APP, handler, 0), &[], payload, 0);
    let mut reads = 0;
    for _ in 0..10_000 {
        let arguments = users.arguments(0, 512, NV);
        users.rig.begin(bob.hre, (users.mover, 1, 0), &arguments, &[], 512);
        users.run_once();
        while let Some(job) = users.rig.device.job() {
            let done = job.run();
            users.rig.device.job_done(done);
        }
        while let Some(done) = users.completion() {
            if done.hre == alice.hre {
                users.rig.settle();
                while users.completion().is_some() {}
                return (reads, done.outcome);
            }
            assert_eq!((done.hre, done.outcome, done.result), (bob.hre, ANSWERED, 0));
            reads += 1;
        }
    }
    panic!("it does not end")
}

#[test]
fn instances_that_are_made_anew_are_made_one_in_a_turn_as_well() {
    let mut users = Users::new(config(SPUS));
    let (alice, bob) = (users.user(1000), users.user(2000));
    users.grant(&bob, READ, 0, 512);
    let instances = usize::from(SPUS);
    let (reads, installed) = reads_beside(&mut users, &alice, &bob, control::INSTALL, &starts_with(0));
    assert_eq!(installed, ANSWERED);
    assert!(reads >= instances, "{reads} reads while {instances} instances were made");
    let answers = |users: &mut Users| {
        let number = users.rig.device.app_number("u1000-starts").expect("it is there");
        (0..SPUS).for_each(|spu| {
            let done = users.rig.call_on(alice.hre, (number, 1, spu), &[], &[], 0);
            assert_eq!((done.outcome, done.result), (ANSWERED, 7));
        });
    };
    answers(&mut users);
    // It is reset.
    let before = host_work(&users, 1000);
    let (reads, reset) = reads_beside(&mut users, &alice, &bob, control::RESET_APP, b"starts");
    assert_eq!(reset, ANSWERED);
    assert!(reads >= instances, "{reads} reads while {instances} instances were made anew");
    let work = host_work(&users, 1000) - before;
    assert!(work >= u64::from(SPUS) * INSTANCE_WORK, "{work} for {SPUS} instances");
    answers(&mut users);
    // A version that does not start makes its instances, and the one before comes back, which makes its own.
    let before = host_work(&users, 1000);
    let (reads, refused) = reads_beside(&mut users, &alice, &bob, control::INSTALL, &starts_with(3));
    assert!(matches!(refused, RpcOutcome::Answered { status } if status != 0), "{refused:?}");
    assert!(reads >= 2 * instances, "{reads} reads while twice {instances} instances were made");
    let work = host_work(&users, 1000) - before;
    assert!(work >= 2 * u64::from(SPUS) * INSTANCE_WORK, "{work} for twice {SPUS} instances");
    answers(&mut users);
}
