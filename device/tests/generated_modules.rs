//! Generated modules: a hundred thousand WebAssembly modules that wasm-smith made up (`fuzz/modules`), compiled, installed by a user and
//! called on every SPU; more on request. The oracle holds the device to this:
//! - nothing panics, and each call of the device returns: every request ends, at the latest when the app is replaced;
//! - while the user's modules are installed, called and removed, no byte of NV memory that the user was not granted is read or written,
//!   by whomever on the user's behalf: a store that watches tells;
//! - the neighbour answers as ever, and others' bytes are what they were.
//!
//! The modules come from a program of their own, which `make test` builds and names in `WILLOW_MODULE_GENERATOR`. A module's number decides
//! what it is, and each shard of a thousand begins with a device of its own, so that what happens is the same however many processors
//! share the shards. `WILLOW_MODULES` asks for another number, `WILLOW_MODULES_FIRST` for others than the first (a module takes 3 ms of a
//! processor: compiling it is what takes the time). What they do is random: few find the way to NV memory that may be touched, so that the
//! deep part of this is `hostile_programs.rs`, and the wide part here.

mod common;
use common::slow::Watch;
use common::users::*;
use common::*;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use willow_device::{DeviceConfig, HreId, RpcOutcome, control};

/// Modules of the test.
const MODULES: u64 = 100_000;
/// On flash: what they are aimed at are the same imports.
const FLASH_MODULES: u64 = 2000;
/// Modules that meet one device.
const SHARD: u64 = 1000;
/// Most threads, one shard at a time each.
const THREADS_MAX: usize = 16;
/// Between two words on how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);
/// What others' bytes are.
const SECRET: u8 = 0xe7;
/// Modules between two looks at what others have, and between two removals of the app and its regions.
const LOOK_EVERY: u64 = 500;
/// What the user was granted on SPU 0: rights, first byte and bytes from the namespace's first byte on. Its first bytes, since small
/// numbers are what random code has.
const GRANTED: &[(u32, u64, u64)] = &[(READ | WRITE, 0, 4096), (READ, 8192, 4096)];

struct Modules {
    process: Child,
    left: u64,
}

impl Modules {
    fn new(generator: &str, first: u64, count: u64) -> Modules {
        let process = Command::new(generator)
            .args([first.to_string(), count.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("the generator {generator} does not start: {error}"));
        Modules { process, left: count }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let out = self.process.stdout.as_mut().expect("it is piped");
        let mut length = [0; 4];
        out.read_exact(&mut length).expect("the generator writes as many as it was asked for");
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        out.read_exact(&mut bytes).expect("a whole module");
        Some(bytes)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        // Ended already is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug, Default)]
struct Count {
    installed: u64,
    refused: u64,
    answered: u64,
    ended: u64,
    /// DMAs, permission misses, and DMAs of NV memory that were allowed.
    dmas: u64,
    misses: u64,
    seen: u64,
}

impl Count {
    fn add(&mut self, other: &Count) {
        self.installed += other.installed;
        self.refused += other.refused;
        self.answered += other.answered;
        self.ended += other.ended;
        self.dmas += other.dmas;
        self.misses += other.misses;
        self.seen += other.seen;
    }
}

struct World {
    users: Users,
    mallory: User,
    count: Count,
}

impl World {
    fn new() -> World {
        let config = DeviceConfig { user_instruction_budget: 5000, app_data_bytes_max: 4 << 16, ..config(2) };
        let mut users = Users::with_namespace(config, 1 << 20);
        let (kernel, mover) = (users.rig.hre, users.mover);
        for spu in 0..2 {
            let secret = vec![SECRET; users.bank_bytes as usize];
            let arguments = users.arguments(0, secret.len() as u32, NV);
            assert_eq!(users.rig.call_on(kernel, (mover, 2, spu), &arguments, &secret, 0).result, 0);
        }
        let mallory = users.user(6666);
        for (rights, start, bytes) in GRANTED {
            users.grant(&mallory, *rights, *start, *bytes);
        }
        World { users, mallory, count: Count::default() }
    }

    fn watch(&mut self) {
        let (base, end) = (self.users.base, self.users.base + self.users.bank_bytes);
        let allowed = GRANTED.iter().flat_map(|(rights, start, bytes)| {
            let one = |write, right| (rights & right != 0).then_some((0, write, base + start, base + start + bytes));
            [one(false, READ), one(true, WRITE)].into_iter().flatten()
        });
        let watch = Watch { guarded: vec![(base, end)], allowed: allowed.collect(), ..Watch::default() };
        *self.users.valve.watch.lock() = Some(watch);
    }

    /// Ends watching; a breach is an error.
    fn look(&mut self) -> Result<(), String> {
        let Some(watch) = self.users.valve.watch.lock().take() else { return Ok(()) };
        self.count.seen += watch.seen;
        watch.breach.map_or(Ok(()), |breach| Err(format!("on the user's behalf {breach}")))
    }

    /// Waits for all that ends by itself; counts how.
    fn settle(&mut self) {
        self.users.rig.settle();
        while let Some(done) = self.users.completion() {
            match done.outcome {
                RpcOutcome::Answered { .. } => self.count.answered += 1,
                RpcOutcome::AppEnded => self.count.ended += 1,
                _ => {}
            }
        }
        while self.users.rig.device.upcall(self.mallory.hre).is_some() {}
    }

    /// The last answer to a request of the control service on an endpoint: status and result.
    fn control(&mut self, hre: HreId, handler: u8, payload: &[u8]) -> (u32, u32) {
        self.users.rig.begin(hre, (control::CONTROL_APP, handler, 0), &[], payload, 0);
        self.users.rig.settle();
        let mut answer = None;
        while let Some(done) = self.users.completion() {
            // Requests of the app that was replaced end first.
            match done.outcome {
                RpcOutcome::Answered { status } => answer = Some((status, done.result)),
                _ => self.count.ended += 1,
            }
        }
        answer.expect("the control service answers")
    }

    fn one(&mut self, module: &[u8]) {
        let hre = self.mallory.hre;
        let (mut status, mut number) = self.control(hre, control::INSTALL, module);
        if status != 0 {
            // One whose requests never end is replaced by none (promise 275): it is removed, and the other installed.
            let _ = self.control(hre, control::REMOVE, b"generated");
            (status, number) = self.control(hre, control::INSTALL, module);
        }
        if status != 0 {
            self.count.refused += 1;
            return;
        }
        self.count.installed += 1;
        for (handler, spu, payload, reply) in [(1, 0, 64, 0), (2, 1, 0, 64)] {
            let (payload, reply) = (vec![0x11; payload], reply);
            self.users.rig.begin(hre, (number as u16, handler, spu), &[1, 0, 0, 0, 8, 0, 0, 0], &payload, reply);
            self.settle();
        }
    }

    /// What others have is as it was, and the neighbour answers.
    fn check(&mut self) -> Result<(), String> {
        self.look()?;
        let statistics = self.users.rig.device.statistics();
        self.count.misses = statistics.protection.misses;
        self.count.dmas = statistics.spus.iter().map(|spu| spu.dmas).sum();
        let _ = self.control(self.mallory.hre, control::REMOVE, b"generated");
        let (kernel, mover) = (self.users.rig.hre, self.users.mover);
        for spu in 0..2 {
            let bytes = self.users.bank_bytes as u32;
            let arguments = self.users.arguments(0, bytes, NV);
            let done = self.users.rig.call_on(kernel, (mover, 1, spu), &arguments, &[], bytes);
            if done.outcome != (RpcOutcome::Answered { status: 0 }) || done.result != 0 {
                return Err(format!("the neighbour answers {:?}", done.outcome));
            }
            let granted = |at: u64| {
                spu == 0
                    && GRANTED
                        .iter()
                        .any(|(rights, start, of)| rights & WRITE != 0 && (*start..start + of).contains(&at))
            };
            let changed = (0..).zip(&done.buffer).find(|(at, byte)| **byte != SECRET && !granted(*at));
            if let Some((at, _)) = changed {
                return Err(format!("byte {at} of SPU {spu} has changed"));
            }
        }
        self.watch();
        Ok(())
    }

    fn run(mut self, mut modules: Modules) -> Result<Count, String> {
        self.watch();
        let mut number = 0;
        while let Some(module) = modules.next() {
            number += 1;
            self.one(&module);
            if number % LOOK_EVERY == 0 {
                self.check().map_err(|error| format!("up to module {number}: {error}"))?;
            }
        }
        self.check()?;
        Ok(self.count)
    }
}

fn generator() -> Option<String> {
    let found = std::env::var("WILLOW_MODULE_GENERATOR").ok();
    if found.is_none() {
        let why = "WILLOW_MODULE_GENERATOR is not set; `make test` builds it from fuzz/modules";
        willow_skip::skip("generated_modules", why);
    }
    found
}

/// A number that the environment may name.
fn asked(name: &str, otherwise: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, must be a number"))
}

/// Modules that have been through, of how many; says so now and then.
struct Progress {
    began: Instant,
    done: AtomicU64,
    of: u64,
    /// Words said.
    said: AtomicU64,
}

impl Progress {
    fn advance(&self, modules: u64) {
        let done = self.done.fetch_add(modules, Ordering::Relaxed) + modules;
        let due = self.began.elapsed().as_secs() / PROGRESS_EVERY.as_secs();
        if self.said.fetch_max(due, Ordering::Relaxed) < due {
            // Past the capture of a test's output, which would keep it to the end. Nobody listening is fine.
            let _ = writeln!(std::io::stderr(), "generated modules: {done} of {}", self.of);
        }
    }
}

#[test]
fn no_generated_module_reaches_what_is_not_its_users() {
    let Some(generator) = generator() else { return };
    let (modules, first) = (
        asked("WILLOW_MODULES", if is_on_flash() { FLASH_MODULES } else { MODULES }),
        asked("WILLOW_MODULES_FIRST", 0),
    );
    let next = AtomicU64::new(0);
    let progress = Progress { began: Instant::now(), done: AtomicU64::new(0), of: modules, said: AtomicU64::new(0) };
    let shards = || {
        let mut all = Count::default();
        loop {
            let begin = next.fetch_add(SHARD, Ordering::Relaxed);
            if begin >= modules {
                return all;
            }
            let (begin, count) = (first + begin, SHARD.min(modules - begin));
            match World::new().run(Modules::new(&generator, begin, count)) {
                Ok(found) => all.add(&found),
                Err(error) => panic!("WILLOW_MODULES_FIRST={begin} WILLOW_MODULES={count}: {error}"),
            }
            progress.advance(count);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let mut all = Count::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(shards)).collect();
        for thread in threads {
            all.add(&thread.join().expect("the device keeps its word and does not panic"));
        }
    });
    assert_eq!(all.installed + all.refused, modules, "{all:?}");
    // The ways are taken: modules are let in, answer, end, and move bytes.
    if modules >= 10_000 {
        assert!(all.installed > modules / 2, "{all:?}");
        // Fewer get as far as a DMA: what takes a machine long takes more of their budgets.
        let reached = [all.ended, all.answered, all.dmas * 2, all.misses, all.seen * 10];
        assert!(reached.iter().all(|count| *count > modules / 50), "{all:?}");
    }
    println!("{all:?}");
}

/// The watching store tells of what it is there for: a permission that the watch does not know of, used by an app.
#[test]
fn a_planted_permission_is_caught() {
    let mut world = World::new();
    let own = world.users.install_for(world.mallory.hre, &app("mover", MOVER, "")).expect("an app");
    let mallory = User { process: world.mallory.process, hre: world.mallory.hre };
    world.users.grant(&mallory, READ, 65536, 512);
    for (start, bytes, caught) in [(0, 4096, false), (8192, 4096, false), (65536, 512, true), (4096, 1, false)] {
        world.watch();
        let (outcome, ..) = world.users.read(mallory.hre, own, start, bytes);
        assert_eq!(outcome, RpcOutcome::Answered { status: 0 });
        assert_eq!(world.look().is_err(), caught, "{start}");
    }
    // And one for writing, by the app that serves the namespace.
    world.users.grant(&mallory, WRITE, 8192, 512);
    world.watch();
    let mover = world.users.mover;
    assert_eq!(world.users.write(mallory.hre, mover, 8192, &[1; 512]).1, 0);
    assert!(world.look().is_err());
}
