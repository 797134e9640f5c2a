//! What was once seen to stop others, each beside hosts that never rest: a host reads, writes, flushes, puts and gets; a user's processes come, are granted
//! what they read and write, and go; and that user's app is replaced. All of it ends well, after a bounded number of calls of the device. Over
//! media in files, where calls are not what is waited for, all of it ends well.

mod common;

use base_io_spu::wire::{FLAG_FUA, RangeArguments, handler};
use common::even::Even;
use common::users::{READ, User, Users, WRITE, app};
use common::*;
use direct_io_spu::wire::handler as direct_handler;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use willow_device::clock::Timing;
use willow_device::media::file::{FileShape, FileStore};
use willow_device::{Arguments, BuiltInApp, CommandSet, Device, DeviceConfig, HreId, Rpc, RpcOutcome, control};

/// Apps of the one who attacks, and requests of his that are under way.
const HOGS: usize = 8;
const UNDER_WAY_MAX: usize = 60;
/// What comes with each of his requests.
const PAYLOAD_BYTES: usize = 60_000;
/// What a run of the attacker's comes to at most where it comes to an end: less than would end the app.
const WORK_OF_A_RUN: u32 = 300_000;
/// Rounds of the victims', at least, and at most until the attacker has tried so many installations.
const ROUNDS: u32 = 3;
const ROUNDS_MAX: u32 = 100;
const INSTALLS_MIN: u32 = 4;
/// Calls of the device until something of a victim's has ended, at most: each does a bounded amount of work.
const CALLS_MAX: u32 = 60;
/// What a call takes on the machine, for the device.
const CALL_NS: u64 = 500_000;
const BLOCK_BYTES: u32 = 4096;
/// The range of the namespace that the attacker was granted.
const HIS: (u64, u64) = (512 << 10, 64 << 10);

/// How long something of a victim's may take over files, whatever else this machine does, before it is taken to hang.
const FILES_WAIT_MAX: Duration = Duration::from_secs(240);

/// What the device of a test is.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Memory,
    Modelled,
    Files,
}

/// A folder of media files, which goes with the device.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Folder(std::env::temp_dir().join(format!("willow-busy-{}-{number}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What each of the attacker's handlers does, for ever, or as often as comes to [`WORK_OF_A_RUN`]: what it is each time; `$his` is the first byte that he was granted.
const ATTACKS: [(&str, u32, &str); 11] = [
    ("a loop", 10, ""),
    (
        "segments of no bytes, 2^32-1 of them",
        400,
        "(drop (call $dma_strided (local.get 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 0) (i32.const -1) (i32.const 0)))",
    ),
    (
        "60,000 bytes of a request, again and again",
        8500,
        "(drop (call $receive_bytes_at (local.get 0) (i32.const 0) (i32.const 4096) (i32.const 60000)))",
    ),
    ("lines of 4 KiB", 13_000, "(call $print (i32.const 4096) (i32.const 4096))"),
    (
        "upcalls that nobody answers",
        1500,
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const -1) (i32.const -1) (i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 5)))",
    ),
    (
        "30,000 segments of a byte",
        300_000,
        "(drop (call $dma_strided (local.get 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 1) (global.get $his) (i64.const 1) (i32.const 1) (i32.const 30000) (i32.const 6)))",
    ),
    (
        "2000 segments of a byte",
        300_000,
        "(drop (call $dma_strided (local.get 0) (i32.const 0) (i64.const 0) (i64.const 0) (i32.const 1) (global.get $his) (i64.const 1) (i32.const 1) (i32.const 2000) (i32.const 6)))",
    ),
    (
        "DMAs of no bytes that nobody waits for",
        400,
        "(drop (call $dma (local.get 0) (i32.const 0) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 7)))",
    ),
    ("tables that grow", 1000, "(drop (table.grow $t (ref.null func) (i32.const 100000)))"),
    ("flushes", 21_000, "(drop (call $flush (i32.const 8)))"),
    (
        "RPCs to itself",
        1500,
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const 0) (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 9)))",
    ),
];

fn hog(name: &str, (body, lines): (&str, &str), his: u64) -> Vec<u8> {
    let start = format!(
        r#"(global $his i64 (i64.const {his})) (table $t 1 funcref)
        (func $start (param i32 i32) (result i32)
            (if (i32.ne (local.get 1) (i32.const 1)) (then
                (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 4)))
            (loop $l {body}
                (i32.store (i32.const 0) (i32.sub (i32.load (i32.const 0)) (i32.const 1)))
                (br_if $l (i32.load (i32.const 0))))
            (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))"#
    );
    let memory = "(memory (export \"memory\") 2)";
    module_with_manifest(name, memory, &format!("(func $complete (param i32 i64)){start}"), lines)
}

const QUICK: &str = "(func $start (param i32 i32) (result i32) (call $respond (local.get 0) (i32.const 0) (i32.const 7)) (i32.const 0))";

struct World {
    rig: Rig,
    /// Where the media are, over files, and since when: the device's time is the machine's then.
    files: Option<(Folder, Instant)>,
    mallory: User,
    attack: (&'static str, u32, &'static str),
    /// First byte of the namespace, and the apps that serve.
    base: u64,
    kv: u32,
    numbers: [u16; 3],
    /// Numbers of the attacker's apps, and those that have ended and are to be installed again.
    hogs: Vec<u16>,
    ended: VecDeque<usize>,
    /// Requests of his that are under way, and whether one of them is an installation.
    under_way: usize,
    installing: Option<u64>,
    next: usize,
    /// How often an app of his was ended, how often he began anew, and upcalls that were fetched.
    seen: (u32, u32, u32),
}

impl World {
    fn new(attack: (&'static str, u32, &'static str), stage: Stage) -> World {
        let config = DeviceConfig { namespace_bytes: 1 << 20, kv_namespace_bytes: 4 << 20, ..config(1) };
        let (mut store, mut apps) = banks(1, 1 << 26);
        let files = (stage == Stage::Files).then(|| (Folder::new(), Instant::now()));
        if let Some((folder, _)) = &files {
            let shape = FileShape { banks: 1, bank_bytes: 1 << 26 };
            store = Box::new(FileStore::create(&folder.0, shape).expect("media files"));
        }
        let timing = (stage == Stage::Modelled).then(|| Box::new(Even) as Box<dyn Timing>);
        let natives = [base_io_spu::native(), key_value_spu::native(), direct_io_spu::native()];
        apps.extend(natives.map(BuiltInApp::Native));
        let mut device = Device::open(config, store, timing, apps).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let numbers = ["base-io", "key-value", "direct-io"].map(|name| device.app_number(name).expect("built in"));
        let namespaces = device.namespaces();
        let of = |csi| namespaces.iter().find(|one| one.csi == csi).expect("made");
        let (base, kv) = (of(CommandSet::Nvm).base, of(CommandSet::Kv).nsid);
        let mut rig = Rig::around(device, hre);
        rig.settle();
        let process = rig.device.open_process(6666, 0).expect("a process");
        let mallory = User { process, hre: rig.device.open_hre(Some(process)).expect("an endpoint") };
        let body = Users::extents(process, &[(0, READ | WRITE, base + HIS.0, HIS.1)]);
        let granted = rig.call(control::CONTROL_APP, control::GRANT, 0, &[], &body, 0);
        assert_eq!(granted.outcome, RpcOutcome::Answered { status: 0 });
        let (hogs, ended, seen) = (Vec::new(), VecDeque::new(), (0, 0, 0));
        let (under_way, installing, next) = (0, None, 0);
        let mut world =
            World { rig, files, mallory, attack, base, kv, numbers, hogs, ended, under_way, installing, next, seen };
        for number in 0..HOGS {
            let module = World::module(attack, number, base);
            let hre = world.mallory.hre;
            let tag = world.begin(hre, (control::CONTROL_APP, control::INSTALL, 0), &[], &module, 0);
            let done = loop {
                world.turn();
                if let Some(done) = world.rig.device.completion() {
                    break done;
                }
            };
            assert_eq!((done.tag, done.outcome), (tag, RpcOutcome::Answered { status: 0 }), "{}", attack.0);
            world.hogs.push(done.result as u16);
        }
        world
    }

    /// A call of the device, and what it has others do for it.
    fn turn(&mut self) {
        let now_ns = self.rig.now_ns;
        let wake_ns = self.rig.device.run(now_ns);
        self.rig.now_ns = match &self.files {
            Some((_, begin)) => begin.elapsed().as_nanos() as u64,
            None => wake_ns.unwrap_or(now_ns).max(now_ns + CALL_NS),
        };
        while let Some(job) = self.rig.device.job() {
            let done = job.run();
            self.rig.device.job_done(done);
        }
        if self.files.is_some() {
            // Threads of the store have work as well.
            std::thread::yield_now();
        }
    }

    /// One in two asks for long runs.
    fn module((_, _, body): (&str, u32, &str), number: usize, base: u64) -> Vec<u8> {
        hog(&format!("hog-{number}"), (body, if number % 2 == 1 { "long=1\\n" } else { "" }), base + HIS.0)
    }

    fn begin(&mut self, hre: HreId, to: (u16, u8, u16), arguments: &[u8], payload: &[u8], reply: u32) -> u64 {
        self.rig.device.set_time(self.rig.now_ns);
        self.rig.begin(hre, to, arguments, payload, reply);
        self.rig.last_tag()
    }

    /// The attacker asks for as much as he may, has what was ended installed again, and has modules refused in between.
    fn attacks(&mut self) {
        let hre = self.mallory.hre;
        while self.under_way < UNDER_WAY_MAX {
            // What ends by itself keeps what it has taken; what does not loses it with its app.
            let (app, times) = (
                self.hogs[self.next % HOGS],
                if self.next % HOGS < HOGS / 2 { WORK_OF_A_RUN / self.attack.1 } else { u32::MAX },
            );
            self.next += 1;
            self.begin(hre, (app, 1, 0), &times.to_le_bytes(), &[5; PAYLOAD_BYTES], 0);
            self.under_way += 1;
        }
        if self.installing.is_none() {
            let module = match self.ended.pop_front() {
                Some(number) => World::module(self.attack, number, self.base),
                None => app(
                    "hog-0",
                    "(func (export \"_initialize\") unreachable) (func $start (param i32 i32) (result i32) (i32.const 0))",
                    "",
                ),
            };
            self.installing = Some(self.begin(hre, (control::CONTROL_APP, control::INSTALL, 0), &[], &module, 0));
            self.seen.1 += 1;
        }
        while self.rig.device.upcall(hre).is_some() {
            self.seen.2 += 1;
        }
    }

    /// A call of the device; what a victim asked for under that tag, if it has ended.
    fn step(&mut self, tag: u64) -> Option<willow_device::HostCompletion> {
        self.attacks();
        self.turn();
        let mut found = None;
        while let Some(done) = self.rig.device.completion() {
            if done.hre != self.mallory.hre {
                assert_eq!(done.tag, tag, "{}", self.attack.0);
                found = Some(done);
            } else if self.installing == Some(done.tag) {
                self.installing = None;
            } else {
                self.under_way -= 1;
                if done.outcome == RpcOutcome::AppEnded {
                    self.seen.0 += 1;
                    let apps = self.rig.device.statistics().apps;
                    let gone =
                        |number: &usize| apps.iter().any(|app| app.number == self.hogs[*number] && app.ended.is_some());
                    let ended: Vec<usize> =
                        (0..HOGS).filter(|number| !self.ended.contains(number)).filter(gone).collect();
                    self.ended.extend(ended);
                }
            }
        }
        found
    }

    /// What a victim asks for is answered with status 0; result and reply.
    fn ask(&mut self, what: &str, hre: HreId, rpc: Rpc, (payload, reply): (&[u8], u32)) -> (u32, Vec<u8>) {
        let arguments = rpc.arguments.as_slice().to_vec();
        let tag = self.begin(hre, (rpc.app, rpc.handler, rpc.spu), &arguments, payload, reply);
        let (begin, mut calls) = (Instant::now(), 0);
        while if self.files.is_some() { begin.elapsed() < FILES_WAIT_MAX } else { calls < CALLS_MAX } {
            calls += 1;
            if let Some(done) = self.step(tag) {
                let (attack, outcome) = (self.attack.0, done.outcome);
                assert_eq!(outcome, RpcOutcome::Answered { status: 0 }, "{what} beside {attack}");
                return (done.result, done.buffer[..done.reply_bytes as usize].to_vec());
            }
        }
        panic!("{what} beside {} has not ended after {calls} calls of the device", self.attack.0)
    }

    fn rpc(app: u16, handler: u8, arguments: &[u8]) -> Rpc {
        Rpc { app, handler, spu: 0, arguments: Arguments::new(arguments).expect("at most 64 bytes") }
    }

    /// All that the victims do, once.
    fn round(&mut self, round: u32) {
        let (kernel, [base_io, key_value, direct_io]) = (self.rig.hre, self.numbers);
        let block = vec![round as u8; BLOCK_BYTES as usize];
        let range = RangeArguments {
            nv_address: self.base,
            bytes: BLOCK_BYTES,
            buffer_offset: 0,
            first_bytes: BLOCK_BYTES,
            stripe_bytes: BLOCK_BYTES,
            stride: BLOCK_BYTES,
            flags: 0,
        };
        let arguments = range.encode();
        self.ask("a write", kernel, Self::rpc(base_io, handler::WRITE, &arguments), (&block, 0));
        let (_, read) = self.ask("a read", kernel, Self::rpc(base_io, handler::READ, &arguments), (&[], BLOCK_BYTES));
        assert_eq!(read, block, "beside {}", self.attack.0);
        let durable = RangeArguments { flags: FLAG_FUA, ..range }.encode();
        self.ask("a durable write", kernel, Self::rpc(base_io, handler::WRITE, &durable), (&block, 0));
        self.ask("a flush", kernel, Self::rpc(base_io, handler::FLUSH, &arguments), (&[], 0));
        let placement = key_value_host::Placement::new([3; 16], 1);
        let key = key_value_host::Key::new(&round.to_le_bytes()).expect("a key");
        let condition = key_value_host::PutCondition::Always;
        let put = key_value_host::Call::put(&placement, self.kv, &key, BLOCK_BYTES, condition, true).expect("it fits");
        self.ask("a put", kernel, Self::rpc(key_value, put.handler, &put.arguments), (&block, 0));
        let get = key_value_host::Call::get(&placement, self.kv, &key, 0);
        let (_, value) =
            self.ask("a get", kernel, Self::rpc(key_value, get.handler, &get.arguments), (&[], BLOCK_BYTES));
        assert_eq!(value, block, "beside {}", self.attack.0);
        // A process comes, is granted a file's bytes, and goes.
        let process = self.rig.device.open_process(1000, 0).expect("a place for a process");
        let alice = self.rig.device.open_hre(Some(process)).expect("a place for an endpoint");
        let extents = Users::extents(process, &[(0, READ | WRITE, self.base + 8192, 8192)]);
        self.ask("a grant", kernel, Self::rpc(control::CONTROL_APP, control::GRANT, &[]), (&extents, 0));
        let arguments = direct_io_spu::wire::Arguments { nv_address: self.base + 8192, bytes: BLOCK_BYTES, flags: 0 };
        let arguments = arguments.encode();
        for (what, handler, payload, reply) in [
            ("a direct write", direct_handler::WRITE, &block[..], 0),
            ("a direct read", direct_handler::READ, &[], BLOCK_BYTES),
            ("a direct flush", direct_handler::FLUSH, &[], 0),
        ] {
            let (_, read) = self.ask(what, alice, Self::rpc(direct_io, handler, &arguments), (payload, reply));
            assert!(read.is_empty() || read == block, "beside {}", self.attack.0);
        }
        let module = app("quick", QUICK, "");
        let (quick, _) =
            self.ask("an upgrade", alice, Self::rpc(control::CONTROL_APP, control::INSTALL, &[]), (&module, 0));
        let (seven, _) = self.ask("her app", alice, Self::rpc(quick as u16, 1, &[]), (&[], 0));
        assert_eq!(seven, 7);
        let revoked = Self::rpc(control::CONTROL_APP, control::REVOKE, &[]);
        self.ask("a revocation", kernel, revoked, (&extents, 0));
        self.rig.device.close_process(process);
    }
}

fn beside_each_attack(stage: Stage) {
    for attack in ATTACKS {
        let mut world = World::new(attack, stage);
        let mut rounds = 0;
        while rounds < ROUNDS || world.seen.1 < INSTALLS_MIN {
            assert!(rounds < ROUNDS_MAX, "{}: he has not got to attack: {:?}", attack.0, world.seen);
            world.round(rounds);
            rounds += 1;
        }
        let (ended, _, upcalls) = world.seen;
        assert!(ended > 0 || upcalls > 0, "{}: {:?}", attack.0, world.seen);
        // No app of his has more memory than an app may.
        let apps = world.rig.device.statistics().apps;
        let most = apps.iter().filter(|app| app.name.starts_with("u6666-")).map(|app| app.memory_bytes).max();
        assert!(most <= Some(DeviceConfig::default().app_data_bytes_max), "{}: {most:?}", attack.0);
    }
}

#[test]
fn who_never_rests_is_served_beside_each_attack_that_was_seen() {
    beside_each_attack(Stage::Memory);
}

#[test]
fn under_a_model_of_time_who_never_rests_is_served_beside_each_attack_that_was_seen() {
    beside_each_attack(Stage::Modelled);
}

#[test]
fn over_files_who_never_rests_is_served_beside_each_attack_that_was_seen() {
    beside_each_attack(Stage::Files);
}
