//! Generators and oracles for property tests and fuzz targets: modules that somebody made up, and damaged records of the
//! media. Behind the feature `testing`. Each oracle panics where the device does not keep its word.
//!
//! What [`ModuleOracle::check`] holds the device to, whatever a module's bytes are:
//! - it is refused with a sentence, or installed;
//! - an installed one is called by every handler that it names, on every SPU: each request ends in time, and at the latest
//!   when the app is removed, which always works;
//! - the control service and a neighbour app answer as ever, before and after.

mod hostile;
pub use crate::spu::hole::{Hole, Tables, release_compilers};

pub use hostile::{Aims, TOLD_TOO_OFTEN, hostile_module};

use crate::media::file::record::{Kind, Record};
use crate::media::ram::RamStore;
use crate::model::Timing;
use crate::service::control::{self, AppInfo, ControlStatus};
use crate::service::metadata::Metadata;
use crate::spu::module::{MANIFEST_BYTES_MAX, parse_manifest};
use crate::{
    Arguments, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, Store, Ticket,
};

/// Most calls of [`Device::run`] until a request of the control service must have ended.
pub const STEPS_MAX: usize = 100_000;
/// Calls of [`Device::run`] that a handler of a strange module gets.
const CALL_STEPS_MAX: usize = 64;
/// Handlers of a strange module that are called.
const HANDLERS_MAX: usize = 8;
/// SPUs of the oracle's device.
const SPUS: u16 = 2;
/// Result of the neighbour's handler 1.
const NEIGHBOUR_RESULT: u32 = 42;
/// Most damages of [`mutate`].
const DAMAGES_MAX: u64 = 8;

/// What became of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not let in: the sentence.
    Refused(String),
    /// Let in; how its requests ended.
    Installed {
        /// With an answer of a handler.
        answered: u32,
        /// With the app, by a trap, its budget or its removal.
        ended: u32,
        /// Otherwise: refused, no such handler.
        other: u32,
    },
}

/// A device with a well-behaved neighbour, into which strange modules are installed one after the other.
pub struct ModuleOracle {
    device: Device,
    hre: HreId,
    now_ns: u64,
    tag: u64,
    neighbour: Vec<u8>,
    neighbour_number: u16,
}

fn config() -> DeviceConfig {
    DeviceConfig {
        spus: SPUS,
        namespace_bytes: 0,
        kv_namespace_bytes: 0,
        app_data_bytes_max: 256 << 10,
        app_code_bytes_max: 64 << 10,
        instruction_budget: 100_000,
        ..Default::default()
    }
}

/// A module whose every handler answers with result 42, and its events as well.
pub fn neighbour_module() -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "willow" "respond" (func $respond (param i32 i32 i32)))
            (memory (export "memory") 1)
            (func (export "start") (param i32 i32) (result i32)
                (call $respond (local.get 0) (i32.const 0) (i32.const {NEIGHBOUR_RESULT})) (i32.const 0))
            (func (export "complete") (param i32 i64))
            (@custom "willow.app" "abi=2\nname=the-neighbour\nversion=1\nhandler=1:answer\n"))"#
    );
    wat::parse_str(text).expect("the neighbour is well formed")
}

impl Default for ModuleOracle {
    fn default() -> Self {
        Self::new()
    }
}

impl ModuleOracle {
    /// A fresh device in memory with its neighbour.
    pub fn new() -> Self {
        let store = RamStore::new(usize::from(SPUS), 16 << 20).expect("a store in memory");
        let timing: Option<Box<dyn Timing>> = None;
        let mut device = Device::open(config(), Box::new(store), timing, vec![]).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let mut oracle =
            ModuleOracle { device, hre, now_ns: 0, tag: 0, neighbour: neighbour_module(), neighbour_number: 0 };
        oracle.install_neighbour();
        oracle
    }

    fn install_neighbour(&mut self) {
        let neighbour = self.neighbour.clone();
        let (status, number) = self.control(control::INSTALL, &neighbour);
        assert_eq!(status, 0, "the neighbour is refused: {}", self.error_text());
        self.neighbour_number = number as u16;
    }

    /// Installs a module, calls it, removes it, and checks what this module's header lists.
    pub fn check(&mut self, module: &[u8]) -> Verdict {
        let (status, number) = self.control(control::INSTALL, module);
        if status != 0 {
            assert_eq!(status, ControlStatus::ModuleRefused as u32);
            let text = self.error_text();
            assert!(text.len() > 10, "a refusal without a reason: {text:?}");
            self.check_neighbour();
            return Verdict::Refused(text);
        }
        let number = number as u16;
        let app = self.apps().into_iter().find(|app| app.number == number).expect("an installed app is listed");
        let mut pending = Vec::new();
        let mut ended = Vec::new();
        for (handler, _) in app.handlers.iter().take(HANDLERS_MAX) {
            for spu in 0..SPUS {
                let (payload, reply) = if spu == 0 { (vec![5; 100], 0) } else { (vec![], 300) };
                pending.push(self.submit(number, *handler, spu, &[1, 2, 3, 4, 0, 0, 0, 0], &payload, reply));
                self.advance(CALL_STEPS_MAX, &mut pending, &mut ended);
            }
        }
        while self.device.upcall(self.hre).is_some() {}
        if number != self.neighbour_number {
            self.check_neighbour();
        }
        pending.push(self.submit(control::CONTROL_APP, control::REMOVE, 0, &[], app.name.as_bytes(), 0));
        self.advance(STEPS_MAX, &mut pending, &mut ended);
        assert!(pending.is_empty(), "requests without an end after the removal of app {}: {pending:?}", app.name);
        let removed = ended.pop().expect("the removal ended last");
        assert_eq!(removed.outcome, RpcOutcome::Answered { status: 0 }, "{}", self.error_text());
        while self.device.upcall(self.hre).is_some() {}
        if number == self.neighbour_number {
            self.install_neighbour();
        }
        self.check_neighbour();
        let count = |wanted: fn(&RpcOutcome) -> bool| ended.iter().filter(|one| wanted(&one.outcome)).count() as u32;
        let answered = count(|outcome| matches!(outcome, RpcOutcome::Answered { .. }));
        let with_app = count(|outcome| matches!(outcome, RpcOutcome::AppEnded));
        Verdict::Installed { answered, ended: with_app, other: ended.len() as u32 - answered - with_app }
    }

    fn check_neighbour(&mut self) {
        for spu in 0..SPUS {
            let done = self.call(self.neighbour_number, 1, spu, &[]);
            assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, NEIGHBOUR_RESULT));
        }
        assert!(self.apps().iter().any(|app| app.number == self.neighbour_number && app.state == "running"));
    }

    fn submit(&mut self, app: u16, handler: u8, spu: u16, arguments: &[u8], payload: &[u8], reply_bytes: u32) -> u64 {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes as usize), 0);
        let arguments = Arguments::new(arguments).expect("short arguments");
        let request = HostRequest {
            tag: self.tag,
            rpcs: RpcList::One(Rpc { app, handler, spu, arguments }),
            buffer,
            payload_bytes: payload.len() as u32,
            reply_bytes,
        };
        self.device.submit(self.hre, request).expect("the endpoint has room");
        self.tag
    }

    /// Runs the device, jobs included, until all of `pending` has ended, nothing is left to do, or `steps` are over; moves
    /// what ended.
    fn advance(&mut self, steps: usize, pending: &mut Vec<u64>, ended: &mut Vec<HostCompletion>) {
        for _ in 0..steps {
            let wake_ns = self.device.run(self.now_ns);
            let mut worked = false;
            while let Some(job) = self.device.job() {
                let done = job.run();
                self.device.job_done(done);
                worked = true;
            }
            while let Some(completion) = self.device.completion() {
                let place = pending.iter().position(|tag| *tag == completion.tag);
                pending.remove(place.expect("a completion that nobody is owed"));
                ended.push(completion);
            }
            match wake_ns {
                _ if pending.is_empty() => return,
                _ if worked => {}
                Some(at_ns) => self.now_ns = self.now_ns.max(at_ns),
                None => return,
            }
        }
    }

    fn call(&mut self, app: u16, handler: u8, spu: u16, payload: &[u8]) -> HostCompletion {
        let reply_bytes = if payload.is_empty() { 65536 } else { 0 };
        let tag = self.submit(app, handler, spu, &[], payload, reply_bytes);
        let (mut pending, mut ended) = (vec![tag], Vec::new());
        self.advance(STEPS_MAX, &mut pending, &mut ended);
        ended.pop().unwrap_or_else(|| panic!("app {app}, handler {handler} on SPU {spu} does not answer"))
    }

    fn control(&mut self, handler: u8, payload: &[u8]) -> (u32, u32) {
        let done = self.call(control::CONTROL_APP, handler, 0, payload);
        match done.outcome {
            RpcOutcome::Answered { status } => (status, done.result),
            other => panic!("the control service: {other:?}"),
        }
    }

    fn error_text(&mut self) -> String {
        let done = self.call(control::CONTROL_APP, control::ERROR_TEXT, 0, &[]);
        String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned()
    }

    fn apps(&mut self) -> Vec<AppInfo> {
        let done = self.call(control::CONTROL_APP, control::LIST_APPS, 0, &[]);
        serde_json::from_slice(&done.buffer[..done.reply_bytes as usize]).expect("the list of apps is JSON")
    }
}

/// Plants a weakness into a device, for good.
pub fn plant(device: &mut Device, hole: Hole) {
    device.core.machine.plant(hole);
}

/// The imports that SPU-OS offers.
pub use willow_gate::table::{IMPORTS, Import, Who};

/// Most ends of operations that users' apps may be promised, all together.
pub const USERS_WAITS_MAX: usize = crate::spu::unit::WAITS_MAX / 2;

/// How full a device's tables are.
pub fn tables(device: &Device) -> Tables {
    device.core.machine.tables()
}

/// How often it has walked through the requests of all hosts and apps.
pub fn walks(device: &Device) -> u64 {
    device.core.machine.walks()
}

/// Damages `module` as `seed` says: bytes changed, ranges removed, repeated or swapped for another place's.
pub fn mutate(module: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed;
    // splitmix64.
    let mut next = move |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    };
    let mut bytes = module.to_vec();
    for _ in 0..=next(DAMAGES_MAX) / 2 {
        if bytes.is_empty() {
            break;
        }
        let at = next(bytes.len() as u64) as usize;
        let end = (at + 1 + next(16) as usize).min(bytes.len());
        match next(16) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            2 => bytes.truncate(at),
            3 => {
                let from = next((bytes.len() - (end - at)) as u64 + 1) as usize;
                bytes.copy_within(from..from + (end - at), at);
            }
            4..=8 => bytes[at] = bytes[at].wrapping_add(1 + next(2) as u8 * 254),
            9..=11 => bytes[at] = next(256) as u8,
            12 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][next(5) as usize],
            _ => bytes[at] ^= 1 << next(8),
        }
    }
    bytes
}

/// A manifest's bytes: it is refused with a sentence, or what it says is within bounds.
pub fn check_manifest(bytes: &[u8]) {
    match parse_manifest(bytes) {
        Ok(manifest) => {
            assert!(bytes.len() <= MANIFEST_BYTES_MAX && !manifest.handlers.is_empty());
            assert!(crate::spu::module::valid_name(&manifest.name), "{:?}", manifest.name);
            let mut numbers: Vec<u8> = manifest.handlers.iter().map(|(number, _)| *number).collect();
            numbers.sort_unstable();
            assert!(numbers[0] != 0 && numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
        }
        Err(why) => assert!(why.len() > 10, "a refusal without a reason: {why:?}"),
    }
}

/// Metadata as a store gives it back: it is refused with a sentence; or it survives encoding, and a device opens with it or
/// says why not, and runs.
pub fn check_metadata(bytes: &[u8]) {
    let metadata = match Metadata::decode(bytes) {
        Ok(metadata) => metadata,
        Err(why) => {
            assert!(why.len() > 10, "a refusal without a reason: {why:?}");
            return;
        }
    };
    assert_eq!(Metadata::decode(&metadata.encode()).as_ref(), Ok(&metadata));
    let mut store = RamStore::new(usize::from(SPUS), 16 << 20).expect("a store in memory");
    let ticket: Ticket = 1;
    store.save_metadata(ticket, bytes.to_vec()).expect("a store in memory keeps all");
    while store.completed().is_some() {}
    match Device::open(config(), Box::new(store), None, vec![]) {
        Ok(mut device) => {
            for _ in 0..CALL_STEPS_MAX {
                device.run(0);
            }
            assert_eq!(device.namespaces()[..], metadata.namespaces[..]);
        }
        Err(why) => assert!(why.0.len() > 10, "a refusal without a reason: {why:?}"),
    }
}

/// A record of a data folder: it is refused, or it is what its encoding is, byte for byte.
pub fn check_record(bytes: &[u8]) {
    for kind in [Kind::Superblock, Kind::Metadata, Kind::Bank, Kind::Blob] {
        match Record::decode(kind, bytes) {
            Ok(record) => assert!(bytes.starts_with(&record.encode(kind))),
            Err(why) => assert!(why.to_string().len() > 10),
        }
    }
}
