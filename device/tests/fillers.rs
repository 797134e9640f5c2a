//! Shares, not cliffs: for each table that users share, one of them takes as much of it as he can, by all his processes and apps, and lets go
//! of nothing. He meets his bound; another user, who asks for the same then, goes on.

mod common;
use common::users::*;
use common::*;
use willow_device::config::{PROCESSES_MAX, USERS_TRANSFERS_MAX};
use willow_device::testing::tables;
use willow_device::{Arguments, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control};

const SPUS: u16 = 2;
/// Processes of the one who hoards, and his apps.
const PROCESSES: usize = 24;
const APPS: usize = 8;
/// How often he tries by each process and app: more than any table has places for one.
const TRIES_MAX: u32 = 600;
/// RPCs of a request that has many.
const RPCS: usize = 16;
const NOBODY: u8 = 8;

/// Handlers: 2 begins a message that is never sent; 3 sleeps for an hour; 4 begins what never ends in the background; 5 sends an RPC to the other
/// SPU that is never answered; 6 reads 64 bytes of the namespace, and 7 writes 32 KiB of its memory there, which it may not and waits for; 8 and 9
/// never answer. Arguments: u64 address, u32 how often (2 to 5; the last one's code is the answer).
const HOARDER: &str = r#"
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.ge_u (local.get 1) (i32.const 8)) (then (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 12)))
        (if (i32.eq (local.get 1) (i32.const 6)) (then (local.set $code
            (call $dma (local.get 0) (i32.const 0x101) (i64.load (i32.const 0)) (i32.const 0) (i64.const 1024) (i32.const 64) (i32.const 7)))))
        (if (i32.eq (local.get 1) (i32.const 7)) (then (local.set $code
            (call $dma (local.get 0) (i32.const 0) (i64.const 1024) (i32.const 0x101) (i64.load (i32.const 0)) (i32.const 32768) (i32.const 7)))))
        (if (i32.lt_u (local.get 1) (i32.const 6)) (then (loop $again
            (if (i32.eq (local.get 1) (i32.const 2)) (then (local.set $code
                (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 8) (i32.const 8) (i32.const 0) (i32.const 0)))))
            (if (i32.eq (local.get 1) (i32.const 3)) (then (local.set $code
                (call $sleep (i64.const 3600000000000) (i32.const 7)))))
            (if (i32.eq (local.get 1) (i32.const 4)) (then (local.set $code
                (call $background (i32.const 9) (i64.const 0)))))
            (if (i32.eq (local.get 1) (i32.const 5)) (then
                (local.set $code (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 8) (i32.const 0) (i32.const 0) (i32.const 0)))
                (if (i32.ge_s (local.get $code) (i32.const 0)) (then
                    (local.set $code (call $rpc_finish (local.get $code) (i32.const 7)))))))
            (i32.store (i32.const 8) (i32.sub (i32.load (i32.const 8)) (i32.const 1)))
            (br_if $again (i32.load (i32.const 8))))))
        (if (i32.ge_s (local.get $code) (i32.const 0)) (then (local.set $code (i32.const 0))))
        (call $respond (local.get 0) (i32.const 0) (local.get $code)) (i32.const 0))
    ;; The end of an RPC that was refused is counted.
    (func $complete (param i32 i64)
        (if (i64.lt_s (local.get 1) (i64.const 0)) (then (call $count (i32.const 0) (i64.const 1)))))"#;

/// A user with processes and apps.
struct Person {
    uid: u32,
    processes: Vec<User>,
    apps: Vec<u16>,
}

struct World {
    users: Users,
    tag: u64,
}

impl World {
    fn new() -> World {
        let config = DeviceConfig {
            handlers_per_process_max: 4096,
            apps_per_user_max: APPS as u16,
            user_dma_budget_bytes: 1 << 30,
            ..config(SPUS)
        };
        let mut users = Users::new(config);
        assert_eq!(users.control(control::REGISTER_AGENT, &[]).0, 0);
        World { users, tag: 1 << 40 }
    }

    fn person(&mut self, uid: u32, processes: usize, apps: usize) -> Person {
        let processes: Vec<User> = (0..processes).map(|_| self.users.user(uid)).collect();
        let handlers = "handler=5:five\\nhandler=6:six\\nhandler=7:seven\\nhandler=8:eight\\nhandler=9:nine\\n";
        let install = |number| {
            let module = app(&format!("hoarder-{number}"), HOARDER, handlers);
            self.users.install_for(processes[0].hre, &module).expect("an app")
        };
        let apps = (0..apps).map(install).collect();
        Person { uid, processes, apps }
    }

    /// Has a handler work so often; what it came to, or nothing where it is at work yet.
    fn call(&mut self, hre: HreId, app: u16, handler: u8, often: u32) -> Option<u32> {
        let arguments = [&self.users.base.to_le_bytes()[..], &often.to_le_bytes()].concat();
        self.users.rig.begin(hre, (app, handler, 0), &arguments, &[], 0);
        let tag = self.users.rig.last_tag();
        self.users.run();
        while let Some(done) = self.users.completion() {
            if (done.hre, done.tag) == (hre, tag) {
                assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
                return Some(done.result);
            }
        }
        None
    }

    /// RPCs of a user's apps that ended with an error.
    fn failed(&self, uid: u32) -> i64 {
        let apps = self.users.rig.device.statistics().apps;
        apps.iter().filter(|app| app.name.starts_with(&format!("u{uid}-"))).map(|app| app.user[0]).sum()
    }
}

/// Asks for so many places; true where they were to be had.
type Take = fn(&mut World, &Person, usize, usize, u32) -> bool;

fn messages(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    world.call(of.processes[process].hre, of.apps[app], 2, often) == Some(0)
}

fn waits(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    world.call(of.processes[process].hre, of.apps[app], 3, often) == Some(0)
}

fn background(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    world.call(of.processes[process].hre, of.apps[app], 4, often) == Some(0)
}

fn inbox(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    let before = world.failed(of.uid);
    let code = world.call(of.processes[process].hre, of.apps[app], 5, often);
    code == Some(0) && world.failed(of.uid) == before
}

fn parked(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    // Who waits for the agent is not answered.
    (0..often).all(|_| world.call(of.processes[process].hre, of.apps[app], 6, 0).is_none())
}

fn copies(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    (0..often).all(|_| world.call(of.processes[process].hre, of.apps[app], 7, 0).is_none())
}

fn rpcs(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    (0..often).all(|_| {
        world.tag += 1;
        let rpc = |spu| Rpc { app: of.apps[app], handler: NOBODY, spu, arguments: Arguments::EMPTY };
        let rpcs = RpcList::Many((0..RPCS).map(|at| rpc(at as u16 % SPUS)).collect());
        let request = HostRequest { tag: world.tag, rpcs, buffer: vec![], payload_bytes: 0, reply_bytes: 0 };
        world.users.rig.device.submit(of.processes[process].hre, request).is_ok()
    })
}

fn endpoint(world: &mut World, of: &Person, process: usize) -> Option<HreId> {
    world.users.rig.device.open_hre(Some(of.processes[process].process))
}

fn subscriptions(world: &mut World, of: &Person, process: usize, app: usize, often: u32) -> bool {
    (0..often).all(|_| {
        let Some(hre) = endpoint(world, of, process) else { return false };
        let arguments = [u32::from(of.apps[app]).to_le_bytes(), 64u32.to_le_bytes()].concat();
        let to = (control::CONTROL_APP, control::SUBSCRIBE, 0);
        world.users.rig.begin(hre, to, &arguments, &[], 0);
        world.users.run();
        world.users.completion().expect("an answer").outcome == RpcOutcome::Answered { status: 0 }
    })
}

/// A request of an endpoint is refused.
fn is_refused(world: &mut World, hre: HreId) {
    world.users.rig.begin(hre, (control::CONTROL_APP, control::REMOVE, 0), &[], b"nothing", 0);
    world.users.run();
    let done = world.users.completion().expect("an answer");
    assert_ne!(done.outcome, RpcOutcome::Answered { status: 0 });
}

/// Bytes of the sentence that says why an endpoint's last request was refused.
fn sentence(world: &mut World, hre: HreId) -> u32 {
    world.users.rig.begin(hre, (control::CONTROL_APP, control::ERROR_TEXT, 0), &[], &[], 256);
    world.users.run();
    world.users.completion().expect("an answer").result
}

/// The tables, and how many places are asked for at a time.
const TABLES: [(&str, u32, Take); 8] = [
    ("messages that are put together", 40, messages),
    ("operations that are waited for", 200, waits),
    ("activities in the background", 40, background),
    ("an SPU's inbox", 40, inbox),
    ("RPCs of hosts", 1, rpcs),
    ("DMAs that wait for the agent", 1, parked),
    ("bytes that these keep", 1, copies),
    ("subscriptions", 1, subscriptions),
];

#[test]
fn one_user_fills_a_table_and_another_goes_on() {
    let mut cliffs = Vec::new();
    for (table, at_once, take) in TABLES {
        let mut world = World::new();
        let alice = world.person(1000, 2, 1);
        let mallory = world.person(6666, PROCESSES, APPS);
        let mut refused = 0;
        for process in 0..PROCESSES {
            for app in 0..APPS {
                let tries = (0..TRIES_MAX).find(|_| !take(&mut world, &mallory, process, app, at_once));
                refused += u32::from(tries.is_some());
            }
        }
        let held = tables(&world.users.rig.device);
        assert!(refused > 0, "{table}: he never meets a bound: {held:?}");
        if !(0..2).all(|process| take(&mut world, &alice, process, 0, 1)) {
            cliffs.push((table, held));
        }
    }
    assert!(cliffs.is_empty(), "nothing is left for another of {cliffs:#?}");
}

/// Requests of a user that are never answered, each of a process that ends at once, until one is refused; how many were taken.
fn requests_of_ended_processes(world: &mut World, of: &Person, most: usize) -> usize {
    for taken in 0..most {
        let user = world.users.user(of.uid);
        world.tag += 1;
        let rpc = Rpc { app: of.apps[0], handler: NOBODY, spu: 0, arguments: Arguments::EMPTY };
        let rpcs = RpcList::Many(vec![rpc]);
        let request = HostRequest { tag: world.tag, rpcs, buffer: vec![], payload_bytes: 0, reply_bytes: 0 };
        let is_taken = world.users.rig.device.submit(user.hre, request).is_ok();
        world.users.run();
        world.users.rig.device.close_process(user.process);
        if !is_taken {
            return taken;
        }
    }
    most
}

#[test]
fn requests_of_processes_that_have_ended_stay_their_users() {
    let mut world = World::new();
    let alice = world.person(1000, 1, 1);
    let mallory = world.person(6666, 1, 1);
    let taken = requests_of_ended_processes(&mut world, &mallory, USERS_TRANSFERS_MAX);
    assert!((1000..USERS_TRANSFERS_MAX / 2).contains(&taken), "he has taken {taken}");
    // As many are left for another, each of whose processes has an account of its own.
    let hers = requests_of_ended_processes(&mut world, &alice, taken / 2);
    assert_eq!(hers, taken / 2);
    let process = world.users.user(1001).process.to_string();
    let accounts = world.users.rig.device.statistics().accounts;
    assert!(accounts.iter().any(|line| line.name == process && line.user == Some(1001)), "{process}");
    // They end with the app, and leave no place taken.
    let removed = world.users.rig.call(control::CONTROL_APP, control::REMOVE, 0, b"u6666-hoarder-0", &[], 0);
    assert_eq!(removed.outcome, RpcOutcome::Answered { status: 0 });
    assert_eq!(tables(&world.users.rig.device).transfers, hers);
    assert_eq!(requests_of_ended_processes(&mut world, &alice, taken / 2), taken / 2);
}

/// Opens processes by an endpoint of a host's kernel until there is no room; how many.
fn processes_opened(world: &mut World, hre: HreId, most: u32) -> u32 {
    let request = br#"{"user":1000,"weight":1}"#;
    let opens = |_: &u32| {
        world.users.rig.begin(hre, (control::CONTROL_APP, control::OPEN_PROCESS, 0), &[], request, 0);
        world.users.run();
        let done = world.users.completion().expect("an answer");
        done.outcome == RpcOutcome::Answered { status: 0 }
    };
    (0..most).take_while(opens).count() as u32
}

#[test]
fn processes_that_one_host_tells_of_leave_another_as_many() {
    let mut world = World::new();
    let [one, other] = [(); 2].map(|()| world.users.rig.device.open_hre(None).expect("an endpoint"));
    let taken = processes_opened(&mut world, one, PROCESSES_MAX as u32 + 1);
    assert!((2000..=PROCESSES_MAX as u32 / 2).contains(&taken), "{taken}");
    assert_eq!(processes_opened(&mut world, other, 500), 500);
    // They end with who told of them.
    world.users.rig.device.close_hre(one);
    world.users.run();
    assert_eq!(processes_opened(&mut world, other, 1000), 1000);
}

#[test]
fn sentences_of_one_users_refusals_do_not_push_out_anothers() {
    let mut world = World::new();
    let alice = world.person(1000, 2, 0);
    let mallory = world.person(6666, 2, 0);
    let before = alice.processes[0].hre;
    is_refused(&mut world, before);
    for _ in 0..600 {
        for process in 0..2 {
            let hre = endpoint(&mut world, &mallory, process).expect("a process has 4096 endpoints");
            is_refused(&mut world, hre);
            assert!(sentence(&mut world, hre) > 0);
        }
    }
    let after = alice.processes[1].hre;
    is_refused(&mut world, after);
    assert!(sentence(&mut world, before) > 0 && sentence(&mut world, after) > 0);
    // Of his own the first are gone.
    let first = HreId(mallory.processes[0].hre.0 + 1);
    assert_eq!(sentence(&mut world, first), 0);
}
