//! The mock of the SDK answers as SPU-OS does: an app that asks for what can be and what cannot, as a seed has it, is told the same by both,
//! finds the same bytes, and is charged the same.

mod common;

use common::{Rig, config};
use std::sync::{Arc, Mutex};
use willow_device::{BuiltInApp, Device, DeviceConfig, RpcOutcome};
use willow_sdk::native::{BoxedInstance, Host, NativeApp, NativeInstance, Trap};
use willow_sdk::testing;

/// Sequences of imports: a seed each; `WILLOW_MOCK_SEEDS` says another number.
const SEEDS: u64 = 250;
/// Imports that a sequence asks for.
const IMPORTS: usize = 60;
/// What the DMAs of a run may move: sequences reach it.
const DMA_BUDGET_BYTES: u64 = 3 << 20;
/// The same where the mock has operations pend that SPU-OS does at once: their runs end at other places.
const DMA_BUDGET_BYTES_PENDING: u64 = 1 << 40;
const BANK_BYTES: u64 = 4 << 20;
const REGION_BYTES: u64 = 1 << 20;
const BODY: &[u8] =
    b"what the request brings, beyond its inline arguments: some 100 bytes that no two places have alike 0123";
/// What a request has room for as a reply. One of a host has a body or a reply: both are in its buffer.
const REPLY_BYTES: usize = 200;
const LOCAL_BYTES: usize = 2048;
/// Bytes of a request's inline arguments: its seed.
const ARGUMENT_BYTES: usize = 8;
const ASK: u8 = 1;
const ECHO: u8 = 2;
const REGION: u32 = 7;
/// What `complete` brings is told like this of what pends.
const PENDING: i64 = 1;

/// What an app was told, a line for each import.
type Told = Arc<Mutex<Vec<String>>>;

struct Asker {
    told: Told,
    /// It asks for reads at once or not at all: which of the two is the device's.
    now: bool,
}

/// What an import's result stands for, at once or by a completion.
#[derive(Clone, Copy)]
enum Result {
    Plain,
    /// At once it is 0 or 2, later 0 or 1.
    Comparison,
    /// At once it is 0, and another import has the value.
    Sum,
    /// Below 0 it is an error or, for -1, comes later.
    Region,
    /// A handle, a number, or an error: it never comes later.
    Handle,
}

struct Asking {
    told: Told,
    now: bool,
    local: Vec<u8>,
    random: u64,
    left: usize,
    token: u32,
    base: u64,
    /// The wait that is under way, with what it is and what it is called.
    waiting: Option<(u32, Result, String)>,
    next_wait: u32,
    handles: Vec<i32>,
    sets: Vec<i32>,
}

impl NativeApp for Asker {
    fn instantiate(&self) -> BoxedInstance {
        Box::new(Asking {
            told: Arc::clone(&self.told),
            now: self.now,
            local: vec![0; LOCAL_BYTES],
            random: 0,
            left: 0,
            token: 0,
            base: 0,
            waiting: None,
            next_wait: 100,
            handles: Vec::new(),
            sets: Vec::new(),
        })
    }

    fn manifest(&self) -> &'static [u8] {
        b"abi=2\nname=asker\nversion=1.0.0\nhandler=1:ask\nhandler=2:echo\n"
    }
}

impl NativeInstance for Asking {
    fn start(&mut self, host: &mut dyn Host, token: u32, handler: u32) -> std::result::Result<i32, Trap> {
        match handler as u8 {
            ASK => {
                let mut seed = [0; ARGUMENT_BYTES];
                // SAFETY: there is room for 8 bytes.
                let count = unsafe { host.receive_bytes(token, seed.as_mut_ptr(), 8) };
                assert_eq!(count, 8);
                (self.random, self.left, self.token) = (u64::from_le_bytes(seed), IMPORTS, token);
                let base = host.region(REGION, REGION_BYTES, 1);
                self.goes_on(host, base, Result::Region, "region".into());
            }
            ECHO => host.respond(token, 0, 5),
            _ => host.respond(token, 0, 0),
        }
        Ok(0)
    }

    fn complete(&mut self, host: &mut dyn Host, wait: u32, result: i64) -> std::result::Result<(), Trap> {
        if let Some((waiting, kind, name)) = self.waiting.take() {
            assert!(wait == waiting || wait == 1, "{name} waits for {waiting}, not for {wait}");
            self.tell(&name, kind, result, None);
            self.ask(host);
        }
        Ok(())
    }
}

impl Asking {
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn tell(&mut self, name: &str, kind: Result, result: i64, sum: Option<u32>) {
        let value = match (kind, sum) {
            (Result::Region, _) if result >= 0 => {
                self.base = result as u64;
                0
            }
            (Result::Comparison, None) if result == 1 => 2,
            (_, Some(sum)) => i64::from(sum),
            _ => result,
        };
        let mut hash = 0u64;
        self.local.iter().for_each(|byte| hash = hash.wrapping_mul(31).wrapping_add((*byte).into()));
        self.told.lock().expect("no panic").push(format!("{name}: {value} {hash:x}"));
    }

    /// What an import has returned is told, or waited for; then the next one comes.
    fn goes_on(&mut self, host: &mut dyn Host, result: i64, kind: Result, name: String) {
        let pends = match kind {
            Result::Region => result == -1,
            Result::Handle => false,
            _ => result == PENDING,
        };
        if pends {
            self.waiting = Some((self.next_wait, kind, name));
            return;
        }
        let sum = (matches!(kind, Result::Sum) && result == 0).then(|| host.checksum_value());
        self.tell(&name, kind, result, sum);
        self.ask(host);
    }

    /// An address at a port: mostly of something that is there.
    fn address(&mut self, port: u32) -> u64 {
        let odd = [u64::MAX, 1 << 40, u64::MAX - 3, self.base + REGION_BYTES - 5, 0, self.base.wrapping_sub(1)];
        if port & 0xff != 0 && self.draw(8) == 0 {
            return odd[self.draw(odd.len() as u64) as usize];
        }
        match port & 0xff {
            0 => {
                let offset = self.draw(LOCAL_BYTES as u64 / 2);
                (self.local.as_mut_ptr().expose_provenance() as u64) + offset
            }
            1 => self.base + self.draw(REGION_BYTES + 9),
            _ => self.draw(BODY.len() as u64 + 20),
        }
    }

    fn port(&mut self) -> u32 {
        let port = [0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 0x101, 0x201, 0x202][self.draw(13) as usize];
        if self.now { port } else { port & 0xff }
    }

    /// As many bytes as there are at local memory from where addresses are on, at most.
    fn length(&mut self, local: bool) -> u32 {
        let most = LOCAL_BYTES as u64 / 2;
        match self.draw(12) {
            0 => 0,
            1 if !local => [u32::MAX, 1 << 23, (1 << 23) + 1, 1 << 19, 1 << 20, (1 << 28) + 1][self.draw(6) as usize],
            2 => self.draw(most) as u32,
            _ => 1 + self.draw(60) as u32,
        }
    }

    fn handle(&mut self) -> i32 {
        let mut known = self.handles.clone();
        known.push(-1);
        known.push(12_345);
        known[self.draw(known.len() as u64) as usize]
    }

    fn ask(&mut self, host: &mut dyn Host) {
        if self.left == 0 {
            return host.respond(self.token, 3, 4);
        }
        self.left -= 1;
        self.next_wait += 1;
        let (token, wait) = (if self.draw(20) == 0 { 9999 } else { self.token }, self.next_wait);
        let local = self.local.as_mut_ptr().expose_provenance() as u64;
        let pointer = |offset: u64| std::ptr::with_exposed_provenance_mut::<u8>((local + offset) as usize);
        let (number, name) = {
            let number = self.draw(24);
            (number, format!("{} import {number} left {}", self.token == token, self.left))
        };
        let (result, kind) = match number {
            0 => {
                let bytes = self.length(true);
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                (unsafe { host.receive_bytes(token, pointer(0), bytes) }.into(), Result::Handle)
            }
            1 => {
                let (offset, bytes) = (self.draw(130) as u32, self.length(true));
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                (unsafe { host.receive_bytes_at(token, offset, pointer(7), bytes) }.into(), Result::Handle)
            }
            2..=6 => {
                let (from, to) = (self.port(), self.port());
                let bytes = self.length(from & 0xff == 0 || to & 0xff == 0);
                let (source, destination) = (self.address(from), self.address(to));
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                (unsafe { host.dma(token, from, source, to, destination, bytes, wait) }.into(), Result::Plain)
            }
            7..=8 => {
                let (from, to) = (self.port(), self.port());
                let (source, destination) = (self.address(from), self.address(to));
                let is_local = from & 0xff == 0 || to & 0xff == 0;
                let bytes = if is_local { self.draw(40) as u32 } else { self.length(false) };
                let stride = |draw: u64| if is_local { draw as i64 % 50 } else { draw as i64 - 100 };
                let (by, onto) = (stride(self.draw(5000)), stride(self.draw(5000)));
                let segments = self.draw(9) as u32;
                let moved =
                    // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                    unsafe { host.dma_strided(token, from, source, by, to, destination, onto, bytes, segments, wait) };
                (moved.into(), Result::Plain)
            }
            9 => {
                let (address, offset, bytes) = (self.address(1), self.address(2), self.length(false));
                (host.compare(token, address, offset, bytes, wait).into(), Result::Comparison)
            }
            10 => {
                let port = self.port();
                let (address, bytes) = (self.address(port), self.length(port & 0xff == 0));
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                (unsafe { host.checksum(token, port, address, bytes, 77, wait) }.into(), Result::Sum)
            }
            11 => {
                let literals = [3u32.to_le_bytes(), *b"all ", 2u32.to_le_bytes()].concat();
                let flags = [0, 1, 2, 0x0a02, 0x0a00, 4, 0x10000][self.draw(7) as usize];
                let (begin, bytes) = ([0, 0, 4][self.draw(3) as usize], [7, 6, 12, 0, 70_000][self.draw(5) as usize]);
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                let handle = unsafe {
                    host.literals_load(
                        literals.as_ptr().add(begin),
                        if bytes > 60_000 { bytes } else { bytes.min(12 - begin as u32) },
                        flags,
                    )
                };
                if handle > 0 {
                    self.sets.push(handle);
                }
                (handle.into(), Result::Handle)
            }
            12 => {
                let set =
                    if self.sets.is_empty() || self.draw(5) == 0 { self.draw(20) as i32 - 1 } else { self.sets[0] };
                let port = self.port();
                let (address, bytes) = (self.address(port), self.length(true).min(900));
                let (state, most) = ([0, 0, 1, 2][self.draw(4) as usize], [0, 3, 20, 4097][self.draw(4) as usize]);
                let found =
                    // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                    unsafe { host.literals_find(token, set, port, address, bytes, state, pointer(1600), most, wait) };
                (found.into(), Result::Plain)
            }
            13 => {
                let set = self.draw(19) as i32 - 1;
                (host.literals_free(set).into(), Result::Plain)
            }
            14 => {
                let port = self.port();
                let (key_bytes, stride) = (self.draw(20) as u32, self.draw(30) as u32);
                let (count, order) = (self.draw(30) as u32, self.draw(3) as u32);
                let address = self.address(port);
                let found =
                    // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                    unsafe { host.keys_find(token, port, address, key_bytes, stride, count, order, pointer(50), wait) };
                (found.into(), Result::Plain)
            }
            15 => {
                let destination = [0, 0, 1, -2, 70_000][self.draw(5) as usize];
                let app = if self.draw(8) == 0 { 200 } else { -1 };
                let handler = [2, 2, 1, 3, 0, 256][self.draw(6) as usize];
                // It is not asked for more of what asks this.
                let handler = if handler == 1 { 9 } else { handler };
                let bytes = [0, 10, 10, 65_536, 65_537][self.draw(5) as usize];
                let reply = [0, 16, 65_537][self.draw(3) as usize];
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                let handle = unsafe { host.rpc_start(token, destination, app, handler, bytes, pointer(1024), reply) };
                if handle >= 0 {
                    self.handles.push(handle);
                }
                (i64::from(handle.min(0)), Result::Handle)
            }
            16 => {
                let (handle, port) = (self.handle(), self.port());
                let (address, bytes) = (self.address(port), [10, 5, 11][self.draw(3) as usize]);
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                let appended = unsafe { host.rpc_append(handle, port, address, bytes) };
                if appended < 0 {
                    self.handles.retain(|known| *known != handle);
                }
                (appended.into(), Result::Plain)
            }
            17 => {
                let handle = self.handle();
                self.handles.retain(|known| *known != handle);
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                (unsafe { host.rpc_finish(handle, wait) }.into(), Result::Plain)
            }
            18 => {
                let (kind, most) = ([0, 1, 256][self.draw(3) as usize], 4);
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                let listed = unsafe { host.subscribers(kind, 0, pointer(0), most) };
                (listed.into(), Result::Handle)
            }
            19 => {
                let (kind, bytes) = ([0, 1, 256][self.draw(3) as usize], [0, 65_537][self.draw(2) as usize]);
                (host.upcall_start(token, 0x8000_1001, kind, bytes).into(), Result::Handle)
            }
            20 => {
                let name = [&b"nobody"[..], b"asker"][self.draw(2) as usize];
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                let found = unsafe { host.app_number(name.as_ptr(), name.len() as u32) };
                (i64::from(found.min(0)), Result::Handle)
            }
            21 => match self.draw(4) {
                0 => (host.region_bytes(REGION), Result::Handle),
                1 => (host.region_bytes(99), Result::Handle),
                2 => (host.region(99, 0, wait), Result::Region),
                _ => (host.region_free(99, wait).into(), Result::Plain),
            },
            22 => match self.draw(4) {
                0 => (host.flush(wait).into(), Result::Plain),
                1 => (host.sleep([0, 5000, u64::MAX][self.draw(3) as usize], wait).into(), Result::Plain),
                2 => (host.cancel(token, 5).into(), Result::Handle),
                // SAFETY: local pointers and addresses lie in `local`, or in what is named here, and the app waits.
                _ => (unsafe { host.namespace(99, pointer(0)) }.into(), Result::Plain),
            },
            _ => {
                let handler = [0, 77, 256][self.draw(3) as usize];
                let begun = host.background(handler, 3);
                host.count(self.draw(40) as u32, 5);
                (begun.into(), Result::Handle)
            }
        };
        self.goes_on(host, result, kind, name);
    }
}

/// A number that has little in common with those of its neighbours (SplitMix64's last step).
fn spread(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The payload of a seed's request, and the bytes of its reply.
fn request(seed: u64) -> (&'static [u8], usize) {
    if seed.is_multiple_of(2) { (BODY, 0) } else { (&[], REPLY_BYTES) }
}

/// What an app was told, and its request's answer.
type Outcome = (Vec<String>, (u32, u32), Vec<u8>);

fn dma_budget_bytes(now: bool) -> u64 {
    if now { DMA_BUDGET_BYTES } else { DMA_BUDGET_BYTES_PENDING }
}

fn taken(told: &Told) -> Vec<String> {
    std::mem::take(&mut told.lock().expect("no panic"))
}

fn by_the_mock(seed: u64, pending: testing::Pending) -> Outcome {
    let (told, now) = (Told::default(), pending == testing::Pending::Never);
    let app: &'static Asker = Box::leak(Box::new(Asker { told: Arc::clone(&told), now }));
    let options = testing::Options {
        bank_bytes: BANK_BYTES,
        seed,
        pending,
        work_budget: u64::MAX,
        dma_budget_bytes: dma_budget_bytes(now),
        ..testing::Options::default()
    };
    let mut device = testing::Device::new(app, options);
    let (payload, reply_bytes) = request(seed);
    let done = device.call(0, ASK, &seed.to_le_bytes(), payload, reply_bytes);
    (taken(&told), (done.status, done.result), done.reply)
}

fn by_spu_os(seed: u64, now: bool) -> Outcome {
    let told = Told::default();
    let app: &'static Asker = Box::leak(Box::new(Asker { told: Arc::clone(&told), now }));
    let config = DeviceConfig { dma_budget_bytes: dma_budget_bytes(now), ..config(1) };
    let store = willow_device::media::ram::RamStore::new(1, BANK_BYTES).expect("a store in memory");
    let device = Device::open(config, Box::new(store), None, vec![BuiltInApp::Native(app)]).expect("the device opens");
    let mut device = device;
    let hre = device.open_hre(None).expect("an endpoint");
    let number = device.app_number("asker").expect("it is built in");
    let mut rig = Rig::around(device, hre);
    rig.settle();
    let (payload, reply_bytes) = request(seed);
    let done = rig.call(number, ASK, 0, &seed.to_le_bytes(), payload, reply_bytes as u32);
    let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
    (taken(&told), (status, done.result as u32), done.buffer[..reply_bytes].to_vec())
}

#[test]
fn the_mock_of_the_sdk_answers_as_spu_os_does() {
    let mut errors = std::collections::BTreeSet::new();
    let seeds = std::env::var("WILLOW_MOCK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    for seed in (1..=seeds).map(spread) {
        for pending in [testing::Pending::Never, testing::Pending::Always, testing::Pending::Random] {
            let (told, answer, reply) = by_spu_os(seed, pending == testing::Pending::Never);
            assert_eq!(told.len(), IMPORTS + 1, "seed {seed}");
            let by_mock = by_the_mock(seed, pending);
            let differ = told.iter().zip(&by_mock.0).position(|(device, mock)| device != mock);
            if let Some(at) = differ {
                let (device, mock) = (&told[at.saturating_sub(3)..=at], &by_mock.0[at]);
                panic!("seed {seed}, {pending:?}: SPU-OS tells, last, {device:#?}, the mock {mock}");
            }
            assert_eq!((told.len(), answer, &reply), (by_mock.0.len(), by_mock.1, &by_mock.2), "seed {seed}");
            let results =
                told.iter().filter_map(|line| line.split(": ").nth(1)?.split(' ').next()?.parse::<i64>().ok());
            errors.extend(results.filter(|result| *result < 0));
        }
    }
    // Sequences reach what can be refused, and why.
    assert_eq!(errors.into_iter().collect::<Vec<i64>>(), [-9, -7, -4, -3, -2]);
}
