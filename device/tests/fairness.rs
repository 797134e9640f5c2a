//! Users beside each other: what one asks for delays another by a bounded amount, in work that can be counted; what is past a budget
//! is refused, and budgets come back. Nothing here measures time: work is instructions and bytes, and the order in which
//! requests end.

mod common;
use common::users::*;
use common::*;
use willow_device::accounts::AccountStatistics;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::{Arguments, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control};

/// Handler 1 answers at once; handler 2 counts down from the first argument, and answers.
const LOOPER: &str = r#"(func $start (param i32 i32) (result i32) (local $left i32)
    (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
    (local.set $left (i32.load (i32.const 0)))
    (if (i32.eq (local.get 1) (i32.const 2)) (then
        (loop $l (local.set $left (i32.sub (local.get $left) (i32.const 1))) (br_if $l (i32.gt_s (local.get $left) (i32.const 0))))))
    (call $respond (local.get 0) (i32.const 0) (i32.const 9)) (i32.const 0))"#;

struct World {
    users: Users,
    looper: u16,
    tag: u64,
}

fn fair(change: impl FnOnce(&mut DeviceConfig)) -> World {
    let mut config = config(2);
    change(&mut config);
    let mut users = Users::new(config);
    let looper = users.rig.install(&app("looper", LOOPER, "public=*\\n")).expect("an app");
    World { users, looper, tag: 1 << 32 }
}

impl World {
    fn user(&mut self, uid: u32) -> User {
        let user = self.users.user(uid);
        self.users.grant(&user, READ | WRITE, 0, 1 << 20);
        user
    }

    /// Hands a request in; its tag, or none where there is no place.
    fn submit(&mut self, hre: HreId, (app, handler, spu): (u16, u8, u16), arguments: &[u8], reply: u32) -> Option<u64> {
        self.tag += 1;
        let rpc = Rpc { app, handler, spu, arguments: Arguments::new(arguments).expect("short") };
        let (rpcs, buffer) = (RpcList::One(rpc), vec![0; reply as usize]);
        let request = HostRequest { tag: self.tag, rpcs, buffer, payload_bytes: 0, reply_bytes: reply };
        self.users.rig.device.submit(hre, request).ok().map(|()| self.tag)
    }

    fn small(&mut self, user: &User) -> Option<u64> {
        self.submit(user.hre, (self.looper, 1, 0), &[], 0)
    }

    fn long(&mut self, user: &User, count: u32) -> Option<u64> {
        self.submit(user.hre, (self.looper, 2, 0), &count.to_le_bytes(), 0)
    }

    fn accounts(&self) -> Vec<AccountStatistics> {
        self.users.rig.device.statistics().accounts
    }

    fn account(&self, user: u32) -> AccountStatistics {
        self.accounts().into_iter().find(|account| account.user == Some(user)).expect("the user's account")
    }

    /// Completions of all that is under way, in order: endpoint and tag.
    fn drain(&mut self) -> Vec<(HreId, u64)> {
        self.users.rig.settle();
        std::iter::from_fn(|| self.users.completion()).map(|done| (done.hre, done.tag)).collect()
    }
}

#[test]
fn a_request_waits_behind_a_bounded_part_of_anothers_flood() {
    let mut world = fair(|_| {});
    let (alice, bob) = (world.user(1000), world.user(1001));
    for _ in 0..2000 {
        world.small(&bob).expect("a place");
    }
    let asked = world.small(&alice).expect("a place");
    let ended = world.drain();
    let place = ended.iter().position(|one| *one == (alice.hre, asked)).expect("it ended");
    assert_eq!(ended.len(), 2001);
    assert!(place <= 60, "{place} requests of the other went before");
}

#[test]
fn a_request_waits_for_few_runs_of_anothers_loops() {
    let mut world = fair(|_| {});
    let (alice, bob) = (world.user(1000), world.user(1001));
    for _ in 0..200 {
        world.long(&bob, 100_000).expect("a place");
    }
    let asked = world.small(&alice).expect("a place");
    let ended = world.drain();
    let place = ended.iter().position(|one| *one == (alice.hre, asked)).expect("it ended");
    assert!(place <= 2, "{place} loops of the other went before");
    // The loops themselves all ended well.
    assert_eq!(ended.len(), 201);
}

#[test]
fn the_driver_has_its_say_between_loops() {
    let mut world = fair(|_| {});
    let bob = world.user(1001);
    for _ in 0..200 {
        world.long(&bob, 200_000).expect("a place");
    }
    let before = world.account(1001).counters.instructions;
    let now_ns = world.users.rig.now_ns;
    assert_eq!(world.users.run_once(), Some(now_ns), "more is to be done");
    let ran = world.account(1001).counters.instructions - before;
    assert!(ran > 0 && ran <= 3_000_000, "{ran} instructions in one turn");
}

#[test]
fn shares_are_as_weights_say() {
    let mut world = fair(|config| config.user_weights = vec![(1000, 3)]);
    let (alice, bob) = (world.user(1000), world.user(1001));
    // Of different lengths: what counts is work, not requests.
    let lengths = [(alice.hre, 1000u32, 4000), (bob.hre, 1001, 9000)];
    let before: Vec<u64> = lengths.iter().map(|(_, user, _)| world.account(*user).counters.instructions).collect();
    for _ in 0..400 {
        for (hre, user, length) in lengths {
            while world.account(user).under_way < 200 {
                let number: u32 = length;
                world.submit(hre, (world.looper, 2, 0), &number.to_le_bytes(), 0).expect("a place");
            }
        }
        world.users.run_once();
        while world.users.completion().is_some() {}
    }
    let ran: Vec<u64> = lengths
        .iter()
        .zip(before)
        .map(|((_, user, _), was)| world.account(*user).counters.instructions - was)
        .collect();
    let ratio = ran[0] as f64 / ran[1] as f64;
    assert!((2.8..3.2).contains(&ratio), "{ran:?}");
    world.drain();
    // Another weight, while it runs.
    let body = [1000u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    assert_eq!(world.users.control(control::SET_WEIGHT, &body).0, 0);
    assert_eq!(world.account(1000).weight, 1);
    let of_bob = [&1001u32.to_le_bytes()[..], &7u32.to_le_bytes(), &bob.process.to_le_bytes()].concat();
    assert_eq!((world.users.control(control::SET_WEIGHT, &of_bob).0, world.account(1001).weight), (0, 7));
    for refused in
        [[1000u32, 1001].map(u32::to_le_bytes).concat(), [1001u32, 0, bob.process].map(u32::to_le_bytes).concat()]
    {
        assert_ne!(world.users.control(control::SET_WEIGHT, &refused).0, 0);
    }
    // None: as any user.
    let none = [1000u32, 0].map(u32::to_le_bytes).concat();
    world.users.control(control::SET_WEIGHT, &[1000u32, 9].map(u32::to_le_bytes).concat());
    assert_eq!(world.account(1000).weight, 9);
    assert_eq!((world.users.control(control::SET_WEIGHT, &none).0, world.account(1000).weight), (0, 1));
    let by_a_user = world.users.rig.call_on(alice.hre, (control::CONTROL_APP, control::SET_WEIGHT, 0), &[], &body, 0);
    assert_eq!(by_a_user.outcome, RpcOutcome::NotPermitted);
}

#[test]
fn more_processes_give_a_user_no_more() {
    let mut world = fair(|_| {});
    let alice = world.user(1000);
    let bobs: Vec<User> = (0..8).map(|_| world.user(1001)).collect();
    let work = |world: &World, user: u32| -> u64 {
        let of = world.accounts().into_iter().filter(|account| account.user == Some(user));
        of.map(|account| account.counters.instructions).sum()
    };
    let before = (work(&world, 1000), work(&world, 1001));
    for _ in 0..300 {
        for user in std::iter::once(&alice).chain(&bobs) {
            for _ in 0..20 {
                world.long(user, 3000);
            }
        }
        world.users.run_once();
        while world.users.completion().is_some() {}
    }
    let ran = (work(&world, 1000) - before.0, work(&world, 1001) - before.1);
    let ratio = ran.0 as f64 / ran.1 as f64;
    assert!((0.85..1.15).contains(&ratio), "{ran:?}");
}

#[test]
fn the_kernel_is_not_starved_by_users_nor_they_by_it() {
    let mut world = fair(|_| {});
    let alice = world.user(1000);
    let kernel = world.users.rig.hre;
    for (flood, asks) in [(alice.hre, kernel), (kernel, alice.hre)] {
        for _ in 0..1000 {
            world.submit(flood, (world.looper, 1, 0), &[], 0).expect("a place");
        }
        let asked = world.submit(asks, (world.looper, 1, 0), &[], 0).expect("a place");
        let ended = world.drain();
        let place = ended.iter().position(|one| *one == (asks, asked)).expect("it ended");
        assert!(place <= 500, "{place}");
    }
}

#[test]
fn places_are_bounded_for_each_process_and_come_back() {
    let mut world = fair(|config| config.requests_per_process_max = 10);
    let (alice, bob) = (world.user(1000), world.user(1001));
    // A second endpoint of the same process brings no more places.
    let second = world.users.rig.device.open_hre(Some(bob.process)).expect("an endpoint");
    let taken = (0..20).filter(|number| {
        let hre = if number % 2 == 0 { bob.hre } else { second };
        world.submit(hre, (world.looper, 1, 0), &[], 0).is_some()
    });
    assert_eq!(taken.count(), 10);
    assert_eq!((world.account(1001).under_way, world.account(1001).counters.refused), (10, 10));
    assert!(world.small(&alice).is_some(), "another process has places of its own");
    assert_eq!(world.drain().len(), 11);
    assert!(world.small(&bob).is_some());
    assert_eq!(world.drain().len(), 1);
}

#[test]
fn handlers_of_one_process_leave_threads_to_others() {
    // Reads that wait for the store hold their handlers.
    let mut world = fair(|config| config.handlers_per_process_max = 4);
    let (alice, bob) = (world.user(1000), world.user(1001));
    let arguments = world.users.arguments(0, 512, NV);
    world.users.valve.closed.set(true);
    for _ in 0..20 {
        world.submit(bob.hre, (world.users.mover, 1, 0), &arguments, 512).expect("a place");
    }
    world.submit(alice.hre, (world.users.mover, 1, 0), &arguments, 512).expect("a place");
    for _ in 0..10 {
        world.users.run_once();
    }
    // Four of the one's, and the other's.
    assert_eq!(world.users.rig.device.statistics().store_in_flight, 5);
    assert_eq!(world.account(1001).counters.stalls, 16);
    // Those that wait can be taken back, and the others go on.
    let last = world.tag - 1;
    assert!(world.users.rig.device.abort(bob.hre, last));
    world.users.valve.closed.set(false);
    assert_eq!(world.drain().len(), 21);
    assert!(world.small(&bob).is_some());
    assert_eq!(world.drain().len(), 1);
}

/// Handler 1 moves a MiB of zeroes to NV memory so often as its argument says, without waiting, and answers with how often that
/// was refused.
const GREEDY: &str = r#"(func $start (param i32 i32) (result i32) (local $left i32) (local $refused i32)
    (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
    (local.set $left (i32.load (i32.const 0)))
    (if (i32.eq (local.get 1) (i32.const 1)) (then
        (block $end (loop $l
            (br_if $end (i32.eqz (local.get $left)))
            (local.set $left (i32.sub (local.get $left) (i32.const 1)))
            (if (i32.lt_s (call $dma (local.get 0) (i32.const 3) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 65536) (i32.const 5)) (i32.const 0))
                (then (local.set $refused (i32.add (local.get $refused) (i32.const 1)))))
            (br $l)))))
    (call $respond (local.get 0) (i32.const 0) (local.get $refused)) (i32.const 0))"#;

#[test]
fn what_a_run_may_move_is_bounded_and_the_next_run_moves_again() {
    let mut world = fair(|config| config.user_dma_budget_bytes = 2 << 20);
    let alice = world.user(1000);
    let greedy = world.users.install_for(alice.hre, &app("greedy", GREEDY, "")).expect("an app");
    for _ in 0..2 {
        for (moves, refused) in [(1u32, 0), (32, 0), (40, 8)] {
            let done = world.users.rig.call_on(alice.hre, (greedy, 1, 0), &moves.to_le_bytes(), &[], 0);
            assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, refused), "{moves}");
        }
    }
    let app = world.users.rig.device.statistics().apps.into_iter().find(|app| app.name == "u1000-greedy").expect("it");
    assert_eq!((app.counters.dma_bytes, app.memory_bytes), (2 * 65 * 65536, 2 * 65536));
    assert!(world.account(1000).counters.dma_bytes >= 2 * 65 * 65536);
}

/// Handler 1 begins as many messages as it can to the own handler 2, which never answers: result, how many.
const HOARDER: &str = r#"(func $start (param i32 i32) (result i32) (local $made i32) (local $handle i32)
    (if (i32.eq (local.get 1) (i32.const 2)) (then (return (i32.const 0))))
    (if (i32.eq (local.get 1) (i32.const 1)) (then
        (block $end (loop $l
            (local.set $handle (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0)))
            (br_if $end (i32.lt_s (local.get $handle) (i32.const 0)))
            (drop (call $rpc_finish (local.get $handle) (i32.const 7)))
            (local.set $made (i32.add (local.get $made) (i32.const 1)))
            (br $l)))))
    (call $respond (local.get 0) (i32.const 0) (local.get $made)) (i32.const 0))"#;

#[test]
fn a_users_app_that_hoards_messages_leaves_others_theirs() {
    let mut world = fair(|config| config.messages_per_user_app_max = 50);
    let alice = world.user(1000);
    let hoarder = world.users.install_for(alice.hre, &app("hoarder", HOARDER, "")).expect("an app");
    let call = |world: &mut World| world.users.rig.call_on(alice.hre, (hoarder, 1, 0), &[], &[], 0).result;
    assert_eq!((call(&mut world), call(&mut world)), (50, 0), "what is not answered keeps its places");
    // Messages of apps that are not users' go on.
    let mut users = (0..).map(|number| 2000 + number);
    for _ in 0..4 {
        let other = world.user(users.next().expect("numbers"));
        let own = world.users.install_for(other.hre, &app("hoarder", HOARDER, "")).expect("an app");
        world.users.rig.call_on(other.hre, (own, 1, 0), &[], &[], 0);
    }
    let once = r#"(func $start (param i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 1)) (then
            (call $respond (local.get 0) (i32.const 0) (call $rpc_finish
                (call $rpc_start (local.get 0) (i32.const 1) (i32.const -1) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 7)))
            (return (i32.const 0))))
        (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))
        (func $complete (param i32 i64) (call $count (i32.const 0) (i64.add (local.get 1) (i64.const 1))))"#;
    let trusted = world.users.rig.install(&app("trusted", once, "")).expect("an app");
    assert_eq!(world.users.rig.call(trusted, 1, 0, &[], &[], 0).result, 1, "pending");
    let app = world.users.rig.device.statistics().apps.into_iter().find(|app| app.name == "trusted").expect("it");
    assert_eq!(app.user[0], 1, "answered with success");
}

/// The same requests in the same order: the same completions in the same order.
#[test]
fn who_is_next_is_the_same_each_time() {
    let run = || {
        let mut world = fair(|_| {});
        let users: Vec<User> = (0..5).map(|number| world.user(1000 + number % 3)).collect();
        for number in 0..500u32 {
            let user = &users[number as usize * 7 % 5];
            if number % 3 == 0 {
                world.long(user, number * 10)
            } else {
                world.small(user)
            };
            if number % 100 == 99 {
                world.users.run_once();
            }
        }
        world.drain().into_iter().map(|(_, tag)| tag).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// Modelled time: a processor takes 8 ns an instruction, all else is quick.
struct Slow;

impl Timing for Slow {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 100, message.id);
    }
    fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + transfer.segment_bytes / 4)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &Work) -> u64 {
        at_ns + work.instructions.unwrap_or(100) * 8
    }
}

#[test]
fn in_simulated_time_shares_are_as_weights_say_and_waiting_is_bounded() {
    const RUN: u32 = 10_000;
    let mut rig = Rig::with(DeviceConfig { user_weights: vec![(1000, 3)], ..config(1) }, Some(Box::new(Slow)));
    let looper = rig.install(&app("looper", LOOPER, "public=*\\n")).expect("an app");
    let hres = [1000, 1001, 1002].map(|user| {
        let process = rig.device.open_process(user, 0).expect("a process");
        rig.device.open_hre(Some(process)).expect("an endpoint")
    });
    let start_ns = rig.now_ns;
    let end_ns = start_ns + 200_000_000;
    let (mut under_way, mut ended, mut asked_ns, mut waits) = ([0; 2], [0u64; 2], None, Vec::new());
    while rig.now_ns < end_ns {
        rig.device.set_time(rig.now_ns);
        for (flooder, count) in under_way.iter_mut().enumerate() {
            while *count < 64 {
                rig.begin(hres[flooder], (looper, 2, 0), &RUN.to_le_bytes(), &[], 0);
                *count += 1;
            }
        }
        if asked_ns.is_none() {
            rig.begin(hres[2], (looper, 1, 0), &[], &[], 0);
            asked_ns = Some(rig.now_ns);
        }
        let wake = rig.device.run_to_completion(end_ns);
        while let Some(done) = rig.device.completion() {
            rig.now_ns = rig.now_ns.max(done.at_ns);
            match hres.iter().position(|hre| *hre == done.hre).expect("one of these") {
                2 => waits.push(done.at_ns - asked_ns.take().expect("it was asked")),
                flooder => {
                    under_way[flooder] -= 1;
                    ended[flooder] += 1;
                }
            }
        }
        rig.now_ns = wake.map_or(end_ns, |wake| wake.max(rig.now_ns));
    }
    let ratio = ended[0] as f64 / ended[1] as f64;
    assert!((2.9..3.1).contains(&ratio), "{ended:?}");
    // A run takes 8 ns for each of its five instructions a turn: the one at work, and at most one of each of the others.
    let run_ns = u64::from(RUN) * 5 * 8;
    let longest = waits.iter().max().copied().expect("the third had answers");
    assert!(waits.len() > 100 && longest < 4 * run_ns, "{} answers, the last after {longest} ns", waits.len());
}
