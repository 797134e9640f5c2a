//! Modules that aim at imports (`willow_device::testing::hostile_module`): a user installs one after the other and calls them, over media
//! that are at once or slow and, each fourth time, under a model of time, while another user reads and writes, has an app of her own that
//! writes to its region, flushes and reads it, and replaces that app. The oracle holds the device to this:
//! - the other's requests end well, after a bounded amount of what was done for anybody, and with the right bytes;
//! - what the app does counts: no run goes past its budget; its memory and the tables of all stay bounded;
//! - no byte that the user was not granted is read or written: a store that watches tells;
//! - the app is told no more ends of operations than it was promised: it counts them;
//! - every request ends once, at the latest when the app is removed; then nothing of it is left in any table, and nobody waits for it.
//!
//! Planted weaknesses must be caught by the same oracle, by generated modules, not by any that was written for them. The module's number is
//! all that is needed to see a failure again; `WILLOW_HOSTILE_MODULES` asks for another number of modules.

mod common;
use common::slow::Watch;
use common::users::*;
use common::*;
use std::collections::BTreeMap;
use willow_device::clock::{Agenda, DmaStep, Message, Timing, Transfer, Work};
use willow_device::testing::{Aims, Hole, TOLD_TOO_OFTEN, Tables, hostile_module, plant, tables};
use willow_device::{DeviceConfig, HostCompletion, RpcOutcome, control};

/// Modules of the test.
const MODULES: u64 = 1500;
/// Modules that meet one device.
const A_DEVICE: u64 = 25;
const BUDGET: u64 = 50_000;
const DATA_BYTES_MAX: u64 = 256 << 10;
/// What users may have in the namespace, and what is nobody's, from its first byte on.
const OWN: (u64, u64) = (0, 16384);
const VICTIMS: (u64, u64) = (65536, 4096);
/// Of these the victim writes some.
const WRITTEN: (u64, u64) = (VICTIMS.0 + 2048, 512);
/// Bytes of a page of the victim's.
const PAGE_BYTES: u32 = 512;
/// Bytes of the victim's region that her app uses.
const REGION_USED: u64 = 512;
/// Most that may be done between the victim's request and its end, for each time that it waits: a run of each of the app's events on the two
/// SPUs would be too much.
const WORK_MAX: u64 = 8 * BUDGET;
/// The same for DMAs: a run may move its budget in one. For each turn of the read.
const MOVED_MAX: u64 = (64 << 20) / 8;
/// Between two upgrades of the victim's app, in modules.
const UPGRADE_EVERY: u64 = 5;
/// Waits of her app's request (a region, a write, a flush, a read), and of an upgrade (the app is drained, told of its end, and the new one of
/// its start).
const OWN_WAITS: u64 = 4;
const UPGRADE_WAITS: u64 = 4;

/// The victim's own app, a request at a time: handler 1 opens region 1, reads its first 512 bytes, writes 512 bytes that begin with the number
/// that it was sent, and flushes. It answers with the number that was there, or an error of SPU-OS.
const OWN_APP: &str = r#"
    (global $token (mut i32) (i32.const 0)) (global $base (mut i64) (i64.const 0))
    (func $start (param i32 i32) (result i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (global.set $token (local.get 0))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
        (call $ended (i32.const 0) (call $region (i32.const 1) (i64.const 65536) (i32.const 0)))
        (i32.const 0))
    ;; Stages: 0 opens the region, 1 reads, 2 writes, 3 flushes.
    (func $ended (param $stage i32) (param $result i64) (local $code i32)
        (if (i64.eq (local.get $result) (i64.const -1)) (then (return)))
        (if (i64.lt_s (local.get $result) (i64.const 0)) (then
            (call $respond (global.get $token) (i32.const 0) (i32.wrap_i64 (local.get $result))) (return)))
        (if (i32.eq (local.get $stage) (i32.const 3)) (then
            (call $respond (global.get $token) (i32.const 0) (i32.load (i32.const 1024))) (return)))
        (if (i32.eqz (local.get $stage)) (then
            (global.set $base (local.get $result))
            (local.set $code (call $dma (global.get $token) (i32.const 1) (global.get $base) (i32.const 0) (i64.const 1024) (i32.const 512) (i32.const 1)))))
        (if (i32.eq (local.get $stage) (i32.const 1)) (then
            (local.set $code (call $dma (global.get $token) (i32.const 0) (i64.const 0) (i32.const 1) (global.get $base) (i32.const 512) (i32.const 2)))))
        (if (i32.eq (local.get $stage) (i32.const 2)) (then (local.set $code (call $flush (i32.const 3)))))
        (if (i32.ne (local.get $code) (i32.const 1)) (then
            (call $ended (i32.add (local.get $stage) (i32.const 1)) (i64.extend_i32_s (local.get $code))))))
    (func $complete (param i32 i64) (call $ended (local.get 0) (local.get 1)))"#;

/// What a step takes on the machine, for the device.
const STEP_NS: u64 = 500_000;
/// Most that one call of the device may do before its driver has its say: what its turn is, and the run that goes past it.
const STEP_WORK_MAX: u64 = (1 << 18) + 2 * BUDGET;
/// What one instance counts, of which a call of the device makes one while an app is installed.
const INSTANCE_WORK: u64 = 500_000;

/// Everything takes a while.
struct Even;

impl Timing for Even {
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        agenda.arrive(at_ns + 100 + message.payload_bytes / 4, message.id);
    }
    fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep {
        DmaStep::Ends(at_ns + 50 + transfer.segment_bytes * u64::from(transfer.segments) / 4)
    }
    fn processor(&mut self, at_ns: u64, _spu: u16, work: &Work) -> u64 {
        at_ns + 100 + work.instructions.unwrap_or(0) / 4
    }
}

struct World {
    users: Users,
    mallory: User,
    alice: User,
    timed: bool,
    /// An app is being installed.
    installs: bool,
    /// The victim's app, and what she has written so far, on each SPU.
    own: u16,
    written: [u32; 2],
    /// A module's RPCs go on for longer than is waited for here.
    is_endless: bool,
    /// Requests under way: tag, and whose.
    under_way: BTreeMap<u64, bool>,
    ended: Vec<HostCompletion>,
    aims: Aims,
    /// How often each end was seen: answered, ended with the app.
    seen: (u64, u64),
}

impl World {
    fn new(timed: bool, hole: Option<Hole>) -> World {
        let config = DeviceConfig {
            // Apps that ask for long runs make way 80 times at most.
            instruction_budget: 40 * BUDGET,
            user_instruction_budget: BUDGET,
            app_data_bytes_max: DATA_BYTES_MAX,
            user_region_bytes_max: 1 << 20,
            ..config(2)
        };
        let timing = timed.then(|| Box::new(Even) as Box<dyn Timing>);
        let mut users = Users::under(timing, config, 1 << 20);
        let (mallory, alice) = (users.user(6666), users.user(1000));
        let kernel = users.rig.hre;
        let page: Vec<u8> = (0..VICTIMS.1).map(|at| at as u8).collect();
        for (user, (start, bytes)) in [(&mallory, OWN), (&alice, VICTIMS)] {
            for spu in 0..2 {
                let body = Users::extents(user.process, &[(spu, READ | WRITE, users.base + start, bytes)]);
                let done = users.rig.call(control::CONTROL_APP, control::GRANT, 0, &[], &body, 0);
                assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
            }
        }
        for spu in 0..2 {
            let arguments = users.arguments(VICTIMS.0, page.len() as u32, NV);
            assert_eq!(users.rig.call_on(kernel, (users.mover, 2, spu), &arguments, &page, 0).result, 0);
        }
        let own = app("own", OWN_APP, "");
        let own = users.install_for(alice.hre, &own).expect("an app");
        for spu in 0..2 {
            let done = users.rig.call_on(alice.hre, (own, 1, spu), &0u32.to_le_bytes(), &[], 0);
            assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 0));
        }
        let region = users.rig.device.statistics().regions.iter().find(|it| it.app == "u1000-own").expect("hers").base;
        let base = users.base;
        let addresses = [OWN.0, OWN.0 + 4096, OWN.1 - 512, OWN.1, VICTIMS.0, VICTIMS.0 + 512, 1 << 18];
        let mut addresses: Vec<u64> = addresses.iter().map(|address| base + address).collect();
        // Its own regions come after the namespace and the victim's.
        addresses.extend([region, region + 65536, region + 131_072]);
        let aims = Aims { addresses, apps: vec![0, users.mover, users.mover + 1, 63, 999], spus: 2, long: true };
        *users.valve.watch.lock() = Some(Watch {
            guarded: vec![(base, base + users.bank_bytes), (region, region + 65536)],
            // What the victim does goes through the same store.
            allowed: (0..2)
                .flat_map(|bank| {
                    let used = (region - base, REGION_USED);
                    [(true, OWN), (false, OWN), (false, VICTIMS), (true, WRITTEN), (false, used), (true, used)]
                        .map(|(writes, (start, bytes))| (bank, writes, base + start, base + start + bytes))
                })
                .collect(),
            ..Watch::default()
        });
        if let Some(hole) = hole {
            plant(&mut users.rig.device, hole);
        }
        let (under_way, ended) = (BTreeMap::new(), Vec::new());
        let (own, written) = (own, [0; 2]);
        World {
            users,
            mallory,
            alice,
            timed,
            installs: false,
            own,
            written,
            is_endless: false,
            under_way,
            ended,
            aims,
            seen: (0, 0),
        }
    }

    /// What was done for anybody's apps so far: instructions and what SPU-OS did, and DMAs.
    fn work(&self) -> (u64, u64) {
        // By account: what an app had is forgotten with it.
        let accounts = self.users.rig.device.statistics().accounts;
        let work = accounts.iter().map(|of| of.counters.instructions + of.counters.host_work).sum();
        (work, accounts.iter().map(|of| of.counters.dma_bytes / 8).sum())
    }

    fn begin(&mut self, is_alices: bool, to: (u16, u8, u16), arguments: &[u8], payload: &[u8], reply: u32) -> u64 {
        let hre = if is_alices { self.alice.hre } else { self.mallory.hre };
        self.users.rig.device.set_time(self.users.rig.now_ns);
        self.users.rig.begin(hre, to, arguments, payload, reply);
        let tag = self.users.rig.last_tag();
        self.under_way.insert(tag, is_alices);
        tag
    }

    fn collect(&mut self) -> Result<(), String> {
        while let Some(done) = self.users.completion() {
            if self.under_way.remove(&done.tag).is_none() {
                return Err(format!("request {} ended twice", done.tag));
            }
            self.ended.push(done);
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<u64>, String> {
        let now_ns = self.users.rig.now_ns;
        let before = self.work().0;
        let wake = self.users.rig.device.run(now_ns);
        let work = self.work().0.saturating_sub(before);
        let most = STEP_WORK_MAX + if self.installs { INSTANCE_WORK } else { 0 };
        if work > most && !self.timed {
            return Err(format!("one call of the device did {work} units of work"));
        }
        while let Some(job) = self.users.rig.device.job() {
            let done = job.run();
            self.users.rig.device.job_done(done);
        }
        if let Some(wake) = wake {
            // Work takes time under the free clock as well: what waits for a deadline meets it, whatever goes on beside.
            let took_ns = if self.timed { 0 } else { STEP_NS };
            self.users.rig.now_ns = wake.max(now_ns + took_ns);
        }
        self.collect()?;
        Ok(wake)
    }

    /// A page of the victim's on an SPU, while the other is at work.
    fn victim_reads(&mut self, spu: u16) -> Result<(), String> {
        self.bounded("read", 1, |world| {
            let tag = world.victim_begins(spu);
            world.victim_has_read(tag)
        })
    }

    /// What the victim asks for ends after no more than was to be expected of an app that has its turn now and then.
    fn bounded<T>(
        &mut self,
        what: &str,
        waits: u64,
        ask: impl FnOnce(&mut World) -> Result<T, String>,
    ) -> Result<T, String> {
        let before = self.work();
        let asked = ask(self)?;
        let (after, before) = (self.work(), before);
        let (work, moved) = (after.0 - before.0, after.1 - before.1);
        let waits = waits * u64::from(turns_of_a_read());
        // Those of her own app, on two SPUs.
        let work = work.saturating_sub(if self.installs { 2 * INSTANCE_WORK } else { 0 });
        if (work > waits * WORK_MAX || moved > waits * MOVED_MAX) && !self.timed {
            return Err(format!("the victim's {what} came after {work} units of work, and {moved} of DMAs"));
        }
        Ok(asked)
    }

    /// Whatever else the victim does with the device, on an SPU, while the other is at work.
    fn victim_works(&mut self, spu: u16) -> Result<(), String> {
        let before = self.written[usize::from(spu)];
        let number = before + 1;
        self.written[usize::from(spu)] = number;
        let page = vec![number as u8; WRITTEN.1 as usize];
        let arguments = self.users.arguments(WRITTEN.0, WRITTEN.1 as u32, NV);
        let done = self.bounded("write", 1, |world| {
            let tag = world.begin(true, (world.users.mover, 2, spu), &arguments, &page, 0);
            world.victim_has("write", tag)
        })?;
        self.check_answer("write", &done, 0)?;
        let done = self.bounded("read of what she wrote", 1, |world| {
            let tag = world.begin(true, (world.users.mover, 1, spu), &arguments, &[], WRITTEN.1 as u32);
            world.victim_has("read of what she wrote", tag)
        })?;
        if done.buffer != page {
            return Err("the victim reads something else than she wrote".to_owned());
        }
        let done = self.bounded("app", OWN_WAITS, |world| {
            let tag = world.begin(true, (world.own, 1, spu), &number.to_le_bytes(), &[], 0);
            world.victim_has("app", tag)
        })?;
        self.check_answer("app", &done, before)
    }

    /// The victim replaces her app.
    fn victim_upgrades(&mut self) -> Result<(), String> {
        let own = self.own;
        self.installs = true;
        let done = self.bounded("upgrade", UPGRADE_WAITS, |world| {
            let tag = world.begin(true, (control::CONTROL_APP, control::INSTALL, 0), &[], &app("own", OWN_APP, ""), 0);
            world.victim_has("upgrade", tag)
        })?;
        self.installs = false;
        self.check_answer("upgrade", &done, own.into())
    }

    fn check_answer(&self, what: &str, done: &HostCompletion, result: u32) -> Result<(), String> {
        if (done.outcome, done.result) == (RpcOutcome::Answered { status: 0 }, result) {
            return Ok(());
        }
        Err(format!("the victim's {what} came to {:?}, {} where {result} was due", done.outcome, done.result as i32))
    }

    fn victim_begins(&mut self, spu: u16) -> u64 {
        let arguments = self.users.arguments(VICTIMS.0, PAGE_BYTES, NV);
        self.begin(true, (self.users.mover, 1, spu), &arguments, &[], PAGE_BYTES)
    }

    /// What the victim asked for ends.
    fn victim_has(&mut self, what: &str, tag: u64) -> Result<HostCompletion, String> {
        let mut steps = 0;
        while self.under_way.contains_key(&tag) {
            self.step()?;
            steps += 1;
            if steps > 20_000 {
                return Err(format!("the victim's {what} does not end"));
            }
        }
        let place = self.ended.iter().position(|done| done.tag == tag).expect("it has ended");
        Ok(self.ended.remove(place))
    }

    /// A read of the victim's ends, and well.
    fn victim_has_read(&mut self, tag: u64) -> Result<(), String> {
        let done = self.victim_has("read", tag)?;
        let right = (0..PAGE_BYTES as usize).all(|at| done.buffer.get(at) == Some(&(at as u8)));
        if done.outcome != (RpcOutcome::Answered { status: 0 }) || done.result != 0 || !right {
            return Err(format!("the victim's read came to {:?}, {}, right: {right}", done.outcome, done.result));
        }
        Ok(())
    }

    /// What the module has, and was told.
    fn check_app(&self, hog: u16) -> Result<(), String> {
        let apps = self.users.rig.device.statistics().apps;
        let app = apps.into_iter().find(|app| app.number == hog).ok_or("it is gone")?;
        if app.memory_bytes > 2 * DATA_BYTES_MAX {
            return Err(format!("it has {} bytes of memory", app.memory_bytes));
        }
        match app.ended {
            Some(why) if why.contains(TOLD_TOO_OFTEN) => Err("it was told more ends than it was promised".to_owned()),
            _ => Ok(()),
        }
    }

    fn call_control(&mut self, handler: u8, payload: &[u8]) -> Result<RpcOutcome, String> {
        let tag = self.begin(false, (control::CONTROL_APP, handler, 0), &[], payload, 0);
        for _ in 0..20_000 {
            self.step()?;
            if let Some(place) = self.ended.iter().position(|done| done.tag == tag) {
                return Ok(self.ended.remove(place).outcome);
            }
        }
        if self.timed && handler == control::REMOVE {
            // RPCs that go on for ever take nanoseconds of modelled time each, and a removal waits 5 s for them: it is not waited for here.
            self.victim_reads(0)?;
            self.is_endless = true;
            return Ok(RpcOutcome::Aborted);
        }
        Err(format!("request {handler} of the control service does not end"))
    }

    /// A module from its installation to its removal.
    fn meet(&mut self, seed: u64) -> Result<(), String> {
        let module = hostile_module("hog", seed, &self.aims);
        self.installs = true;
        let installed = self.call_control(control::INSTALL, &module)?;
        self.installs = false;
        if installed != (RpcOutcome::Answered { status: 0 }) {
            return Err(format!("it is refused: {installed:?}"));
        }
        let hog = self.users.rig.device.app_number("u6666-hog").ok_or("it is not there")?;
        self.users.valve.closed.set(seed.is_multiple_of(3));
        for number in 0..8u64 {
            let handler = 1 + (number % 4) as u8;
            self.begin(false, (hog, handler, (number % 2) as u16), &[7; 16], &[5; 3000], 3000);
            if number % 2 == 0 {
                self.step()?;
            }
        }
        self.users.valve.closed.set(false);
        self.victim_reads(0)?;
        self.users.valve.closed.set(seed % 3 == 1);
        // Reads of the victim's that take a while: their requests are there while the other is at work.
        let long: Vec<u64> = (0..24).map(|number| self.victim_begins(number % 2)).collect();
        for spu in 0..2 {
            self.begin(false, (hog, 1 + spu as u8, spu), &[7; 16], &[5; 3000], 3000);
        }
        for _ in 0..20 {
            self.step()?;
        }
        self.users.valve.closed.set(false);
        for tag in long {
            self.victim_has_read(tag)?;
        }
        self.victim_reads(1)?;
        self.victim_works((seed % 2) as u16)?;
        if seed.is_multiple_of(UPGRADE_EVERY) {
            self.victim_upgrades()?;
        }
        self.check_app(hog)?;
        let bounded =
            |of: Tables| of.groups < 33_000 && of.events < 100_000 && of.messages <= 256 && of.operations < 3000;
        if !bounded(tables(&self.users.rig.device)) {
            return Err(format!("{:?}", tables(&self.users.rig.device)));
        }
        // Upcalls: one in two is answered.
        let mut number = 0;
        while let Some(upcall) = self.users.rig.device.upcall(self.mallory.hre) {
            number += 1;
            if number % 2 == 0 {
                self.users.rig.device.answer_upcall(self.mallory.hre, upcall.id, 0, 9);
            }
        }
        for _ in 0..50 {
            self.step()?;
        }
        self.check_app(hog)?;
        let removed = self.call_control(control::REMOVE, b"hog")?;
        if self.is_endless {
            return Ok(());
        }
        if removed != (RpcOutcome::Answered { status: 0 }) {
            return Err(format!("it is not removed: {removed:?}"));
        }
        for _ in 0..20_000 {
            if self.step()?.is_none() {
                break;
            }
        }
        while self.users.rig.device.upcall(self.mallory.hre).is_some() {}
        if !self.under_way.is_empty() {
            return Err(format!("{:?} do not end", self.under_way));
        }
        for done in std::mem::take(&mut self.ended) {
            match done.outcome {
                RpcOutcome::Answered { .. } => self.seen.0 += 1,
                _ => self.seen.1 += 1,
            }
        }
        if let Some(breach) = self.users.valve.watch.lock().as_ref().and_then(|watch| watch.breach.clone()) {
            return Err(breach);
        }
        let left = tables(&self.users.rig.device);
        let nothing = Tables {
            transfers: 0,
            activities: 0,
            groups: 0,
            waits: 0,
            messages: 0,
            upcalls: 0,
            operations: 0,
            parked: 0,
            in_line: 0,
            events: 0,
            sleeping: 0,
            background: 0,
            subscriptions: 0,
        };
        if left != nothing {
            return Err(format!("what is left: {left:?}"));
        }
        Ok(())
    }
}

/// The first module that the oracle does not pass, and why; and how many answers and ends there were.
fn first_failure(first: u64, count: u64, hole: Option<Hole>) -> (Option<(u64, String)>, (u64, u64)) {
    let mut seen = (0, 0);
    let mut endless = 0;
    let mut world: Option<World> = None;
    for seed in first..first + count {
        if seed.is_multiple_of(A_DEVICE) || world.is_none() {
            world = Some(World::new(seed / A_DEVICE % 4 == 3, hole));
        }
        let of = world.as_mut().expect("a world");
        let met = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| of.meet(seed)));
        let met = met.unwrap_or_else(|_| Err("the device panicked".to_owned()));
        seen = (seen.0 + std::mem::take(&mut of.seen.0), seen.1 + std::mem::take(&mut of.seen.1));
        let is_endless = of.is_endless;
        if is_endless {
            (world, endless) = (None, endless + 1);
            continue;
        }
        if let Err(why) = met {
            return (Some((seed, why)), seen);
        }
    }
    assert!(endless <= count / 100, "{endless} of {count} cannot be judged");
    (None, seen)
}

#[test]
fn no_module_that_aims_at_imports_does_others_harm() {
    let count = std::env::var("WILLOW_HOSTILE_MODULES").ok().and_then(|count| count.parse().ok()).unwrap_or(MODULES);
    let first = std::env::var("WILLOW_HOSTILE_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    let (failure, (answered, ended)) = first_failure(first, count, None);
    assert!(failure.is_none(), "module {failure:?}");
    // Both ends of a module's requests were reached often.
    assert!(answered > count && ended > count / 4, "{answered} answered, {ended} ended");
}

#[test]
fn planted_weaknesses_are_caught_by_generated_modules() {
    for hole in [
        Hole::SkipsMeter,
        Hole::SkipsPermission,
        Hole::ForgetsWake,
        Hole::AnswersTwice,
        Hole::KeepsPlaces,
        Hole::WakesTwice,
        Hole::TakesOthersTokens,
        Hole::KeepsProcessor,
    ] {
        let (failure, _) = first_failure(0, 300, Some(hole));
        let (seed, why) = failure.unwrap_or_else(|| panic!("{hole:?} is not noticed"));
        println!("{hole:?} is caught by module {seed}: {why}");
    }
}
