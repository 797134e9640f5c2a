//! A mock device for unit tests of apps: runs the native form of an app on one or several SPUs in this process, with NV memory
//! in RAM, without threads or clocks.
//!
//! What always holds:
//! - the same app, options and calls give the same run: all choices (what is pending, what completes first, what a power cut
//!   leaves) come from the seed;
//! - imports go through SPU-OS's own gate (`willow-gate`): what it refuses is refused, what it charges is charged, and an app whose run is past
//!   its budget of work ends here as it would in a drive; instructions are not counted;
//! - written bytes are durable only once a flush that was asked for later has completed.
//!
//! Its functions panic where a test is wrong or the app has ended, since they are for tests alone.
//!
//! ```
//! # use willow_sdk::{Reply, Local, Request, Error};
//! # async fn hello(request: Request, _: &()) -> Result<(), Error> {
//! #     request.dma(Local(b"hello"), Reply(0), 5).await
//! # }
//! # willow_sdk::app! { name: "hello", version: "0.1.0", state: () = (), threads: 1, handlers: { 1 => hello } }
//! # fn main() {
//! use willow_sdk::testing::{Device, Options};
//! let mut device = Device::new(native(), Options::default());
//! let outcome = device.call(0, 1, &[], &[], 5);
//! assert_eq!((outcome.status, outcome.reply.as_slice()), (0, b"hello".as_slice()));
//! # }
//! ```

mod host;
mod imports;
mod remote;
mod transform;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;

use crate::native::{BoxedInstance, NativeApp};
use crate::{DeviceEvent, Namespace, REGION_ALIGNMENT_BYTES, Response};
use host::SpuHost;
use willow_gate::{Ending, RemoteDma};

/// Which operations complete later, where they could also complete at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// None.
    Never,
    /// All.
    Always,
    /// As the seed has it.
    Random,
}

/// What the device is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of SPUs, at least 1.
    pub spus: u32,
    /// NV memory of each SPU in bytes.
    pub bank_bytes: u64,
    /// For all choices.
    pub seed: u64,
    /// Which operations complete later.
    pub pending: Pending,
    /// What the gate may charge a run (docs/abi.md): without its instructions, which cost as much again in a drive.
    pub work_budget: u64,
    /// Most bytes that the DMAs of a run may move.
    pub dma_budget_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        // The budgets are those of users' apps.
        let (work_budget, dma_budget_bytes) = (400_000, 64 << 20);
        Options { spus: 1, bank_bytes: 4 << 20, seed: 1, pending: Pending::Random, work_budget, dma_budget_bytes }
    }
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// 0 is success.
    pub status: u32,
    /// The 32-bit result.
    pub result: u32,
    /// The reply buffer, as long as the request had it.
    pub reply: Vec<u8>,
}

/// Names a request that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(u32);

/// An upcall to the originating HRE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upcall {
    /// The SPU that sent it.
    pub spu: u32,
    /// The HRE that it goes to.
    pub hre: u32,
    /// Its handler number.
    pub handler: u32,
    /// Its body.
    pub body: Vec<u8>,
}

/// A region of NV memory, the same in every bank.
struct Region {
    /// Its number, or `None` while it is being deleted.
    id: Option<u32>,
    base: u64,
    bytes: u64,
}

/// Who waits for a request's response.
enum Requester {
    /// It is in the background.
    Nobody,
    Test(RequestId),
    Event,
    Handler {
        spu: u32,
        wait: u32,
        reply: u64,
    },
}

struct PendingRequest {
    spu: u32,
    handler: u32,
    source: u32,
    originating_hre: u32,
    argument_bytes: u32,
    body: Vec<u8>,
    reply: Vec<u8>,
    requester: Requester,
    /// Bytes of the body that `receive_bytes` has given.
    received: u32,
    ending: Ending,
}

impl PendingRequest {
    /// One that nobody waits for, without inline arguments or a reply.
    fn new(spu: u32, originating_hre: u32, body: Vec<u8>) -> PendingRequest {
        PendingRequest {
            spu,
            handler: 0,
            source: crate::SOURCE_HOST,
            originating_hre,
            argument_bytes: 0,
            body,
            reply: Vec::new(),
            requester: Requester::Nobody,
            received: 0,
            ending: Ending::default(),
        }
    }
}

/// What happens next, in an order that the seed has.
enum Action {
    Start {
        spu: u32,
        token: u32,
    },
    /// An operation of an SPU: see [`SpuHost::complete`].
    Complete {
        spu: u32,
        operation: host::Pending,
    },
    /// A DMA to or from another SPU's bank.
    Remote {
        spu: u32,
        remote: RemoteDma,
    },
    Respond {
        token: u32,
        response: Response,
    },
}

type AnswerUpcall = std::boxed::Box<dyn FnMut(&Upcall) -> Response>;

/// What all SPUs share.
struct Shared {
    options: Options,
    random: u64,
    time_ns: u64,
    requests: BTreeMap<u32, PendingRequest>,
    next_token: u32,
    /// Handlers that sleep: until when, then in the order in which they began; SPU and wait.
    sleeps: BTreeMap<(u64, u64), (u32, u32)>,
    sleeps_begun: u64,
    actions: Vec<Action>,
    outcomes: BTreeMap<RequestId, Outcome>,
    regions: Vec<Region>,
    namespaces: BTreeMap<u32, Namespace>,
    answer_upcall: Option<AnswerUpcall>,
    /// Endpoints and kinds.
    subscribers: BTreeSet<(u32, u32)>,
    app_name: String,
    /// Numbers of its handlers.
    handlers: BTreeSet<u32>,
}

impl Shared {
    /// A number below `below`, from the seed (an xorshift generator).
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn pends(&mut self) -> bool {
        match self.options.pending {
            Pending::Never => false,
            Pending::Always => true,
            Pending::Random => self.random(2) == 0,
        }
    }

    /// First fit of a region, or `None` where no gap is long enough.
    fn place(&self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(REGION_ALIGNMENT_BYTES)?;
        let mut taken: Vec<(u64, u64)> = self.regions.iter().map(|region| (region.base, region.bytes)).collect();
        taken.extend(self.namespaces.values().map(|namespace| (namespace.base, namespace.bank_bytes)));
        taken.sort_unstable();
        let mut base = 0u64;
        for (start, length) in taken {
            if start >= base && start - base >= bytes {
                break;
            }
            base = base.max(start + length);
        }
        (base.checked_add(bytes)? <= self.options.bank_bytes).then_some(base)
    }

    /// Ends the first sleep, where somebody waits for a request; what nobody waits for sleeps on.
    fn wake_first(&mut self) -> bool {
        let waits = self.requests.values().any(|request| !matches!(request.requester, Requester::Nobody));
        waits && self.end_first_sleep(u64::MAX)
    }

    /// Ends the first sleep, if that is over by then.
    fn end_first_sleep(&mut self, by_ns: u64) -> bool {
        let Some(first) = self.sleeps.first_entry().filter(|first| first.key().0 <= by_ns) else { return false };
        let ((until_ns, _), (spu, wait)) = first.remove_entry();
        self.time_ns = self.time_ns.max(until_ns);
        self.actions.push(Action::Complete { spu, operation: host::Pending::value(wait, 0) });
        true
    }

    /// A handler has answered a request.
    fn answer(&mut self, token: u32, response: Response) {
        let request = self.requests.get_mut(&token);
        let told = request.and_then(|request| request.ending.answer(response.status, response.result));
        self.tell(token, told);
    }

    /// An operation of a request has ended.
    fn ended(&mut self, token: u32) {
        let told = self.requests.get_mut(&token).and_then(|request| request.ending.ended());
        self.tell(token, told);
    }

    fn tell(&mut self, token: u32, answer: Option<(u32, u32)>) {
        if let Some((status, result)) = answer {
            self.actions.push(Action::Respond { token, response: Response { status, result } });
        }
    }

    fn request(&mut self, request: PendingRequest) {
        let token = self.next_token;
        self.next_token += 1;
        self.actions.push(Action::Start { spu: request.spu, token });
        self.requests.insert(token, request);
    }
}

/// The number of a handler in a line of a manifest.
fn handler_of(line: &str) -> Option<u32> {
    line.strip_prefix("handler=")?.split(':').next()?.parse().ok()
}

struct Spu {
    instance: Option<BoxedInstance>,
    host: SpuHost,
    /// Requests that found no free thread.
    refused: VecDeque<u32>,
}

/// The device.
pub struct Device {
    app: &'static dyn NativeApp,
    shared: Rc<RefCell<Shared>>,
    spus: Vec<Spu>,
}

impl Device {
    /// A device with zeroed NV memory and the app on all its SPUs, told that it has started.
    pub fn new(app: &'static dyn NativeApp, options: Options) -> Device {
        assert!(options.spus > 0, "a device has at least one SPU");
        let manifest = std::str::from_utf8(app.manifest()).expect("a manifest is UTF-8");
        let name = manifest.lines().find_map(|line| line.strip_prefix("name=")).expect("a manifest has a name");
        let shared = Rc::new(RefCell::new(Shared {
            random: options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            options: options.clone(),
            time_ns: 0,
            requests: BTreeMap::new(),
            next_token: 1,
            sleeps: BTreeMap::new(),
            sleeps_begun: 0,
            actions: Vec::new(),
            outcomes: BTreeMap::new(),
            regions: Vec::new(),
            namespaces: BTreeMap::new(),
            answer_upcall: None,
            subscribers: BTreeSet::new(),
            app_name: name.into(),
            handlers: manifest.lines().filter_map(handler_of).collect(),
        }));
        let spus = (0..options.spus)
            .map(|spu| Spu {
                instance: None,
                host: SpuHost::new(spu, options.bank_bytes as usize, Rc::clone(&shared)),
                refused: VecDeque::new(),
            })
            .collect();
        let mut device = Device { app, shared, spus };
        device.boot();
        device
    }

    fn boot(&mut self) {
        for spu in &mut self.spus {
            spu.instance = Some(self.app.instantiate());
        }
        self.event(DeviceEvent::Started);
    }

    /// Tells every SPU, and runs until all is quiet.
    fn event(&mut self, event: DeviceEvent) {
        let words = match event {
            DeviceEvent::NamespaceCreated(nsid) => [1u32, nsid, 0],
            DeviceEvent::NamespaceDeleted(nsid) => [2, nsid, 0],
            DeviceEvent::Shutdown => [3, 0, 0],
            DeviceEvent::Started => [4, 0, 0],
            DeviceEvent::Revoked { process, has_ended } => [5, process, has_ended.into()],
            DeviceEvent::NamespaceResized(nsid) => [6, nsid, 0],
            DeviceEvent::Other(code) => [code, 0, 0],
        };
        let body = words.map(u32::to_le_bytes).concat();
        for spu in 0..self.spus.len() as u32 {
            self.shared.borrow_mut().request(PendingRequest {
                argument_bytes: body.len() as u32,
                requester: Requester::Event,
                ..PendingRequest::new(spu, 0, body.clone())
            });
        }
        self.run();
    }

    /// Sends a request and runs until it is answered and all is quiet.
    pub fn call(&mut self, spu: u32, handler: u8, arguments: &[u8], payload: &[u8], reply_bytes: usize) -> Outcome {
        let id = self.submit(spu, handler, arguments, payload, reply_bytes);
        self.run();
        self.outcome(id).expect("all is quiet, but the request is not answered: its handler waits for ever")
    }

    /// Sends a request from HRE 80000001h, a user process; [`Device::run`] lets it be handled.
    pub fn submit(&mut self, spu: u32, handler: u8, arguments: &[u8], payload: &[u8], reply_bytes: usize) -> RequestId {
        assert!(arguments.len() <= 64, "at most 64 bytes of a request are inline arguments");
        assert!((spu as usize) < self.spus.len(), "there is no such SPU");
        let mut shared = self.shared.borrow_mut();
        let id = RequestId(shared.next_token);
        shared.request(PendingRequest {
            handler: handler.into(),
            argument_bytes: arguments.len() as u32,
            reply: vec![0; reply_bytes],
            requester: Requester::Test(id),
            ..PendingRequest::new(spu, 0x8000_0001, [arguments, payload].concat())
        });
        id
    }

    /// What came of a request, once.
    pub fn outcome(&mut self, id: RequestId) -> Option<Outcome> {
        self.shared.borrow_mut().outcomes.remove(&id)
    }

    /// Runs until all is quiet.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Lets time pass: what sleeps until then goes on, also what nobody waits for.
    pub fn pass_ns(&mut self, duration_ns: u64) {
        self.run();
        let until_ns = self.shared.borrow().time_ns.saturating_add(duration_ns);
        while self.shared.borrow_mut().end_first_sleep(until_ns) {
            self.run();
        }
        let mut shared = self.shared.borrow_mut();
        shared.time_ns = shared.time_ns.max(until_ns);
    }

    /// Lets one thing happen; false where all is quiet. For power cuts in the midst of requests.
    pub fn step(&mut self) -> bool {
        self.zero_deleted_regions();
        let action = {
            let mut shared = self.shared.borrow_mut();
            if shared.actions.is_empty() && !shared.wake_first() {
                return false;
            }
            shared.time_ns += 1000;
            let count = shared.actions.len() as u64;
            let index = shared.random(count) as usize;
            shared.actions.swap_remove(index)
        };
        match action {
            Action::Start { spu, token } => {
                self.start(spu, token);
            }
            Action::Complete { spu, operation } => {
                let (wait, result) = self.spus[spu as usize].host.complete(operation);
                self.told(spu, wait, result);
            }
            Action::Remote { spu, remote } => {
                let result = self.carry_there(spu, &remote);
                self.shared.borrow_mut().ended(remote.dma.token);
                self.told(spu, remote.dma.wait, result);
            }
            Action::Respond { token, response } => self.respond(token, response),
        }
        true
    }

    /// The end of an operation is told to the app, and requests that found no thread are offered again.
    fn told(&mut self, spu: u32, wait: u32, result: i64) {
        let place = &mut self.spus[spu as usize];
        let instance = place.instance.as_mut().expect("running");
        let completed = instance.complete(&mut place.host, wait, result);
        completed.unwrap_or_else(|trap| panic!("the app ended on SPU {spu}: {trap}"));
        place.host.ran();
        while self.spus[spu as usize].refused.pop_front().is_some_and(|token| self.start(spu, token)) {}
    }

    fn zero_deleted_regions(&mut self) {
        self.shared.borrow_mut().regions.retain(|region| {
            if region.id.is_none() {
                self.spus.iter_mut().for_each(|spu| spu.host.bank.zero(region.base, region.bytes));
            }
            region.id.is_some()
        });
    }

    /// Offers a request to the app; where it finds no free thread it is kept.
    fn start(&mut self, spu: u32, token: u32) -> bool {
        let handler = self.shared.borrow().requests.get(&token).expect("a request that waits").handler;
        let place = &mut self.spus[spu as usize];
        let instance = place.instance.as_mut().expect("running");
        let offered = instance.start(&mut place.host, token, handler);
        place.host.ran();
        match offered {
            Ok(0) => true,
            Ok(_) => {
                place.refused.push_front(token);
                false
            }
            Err(trap) => panic!("the app ended on SPU {spu}: {trap}"),
        }
    }

    /// Brings a response to who waits for it.
    fn respond(&mut self, token: u32, response: Response) {
        let mut shared = self.shared.borrow_mut();
        let request = shared.requests.remove(&token).expect("a request that was answered");
        match request.requester {
            Requester::Event | Requester::Nobody => {}
            Requester::Test(id) => {
                let outcome = Outcome { status: response.status, result: response.result, reply: request.reply };
                shared.outcomes.insert(id, outcome);
            }
            Requester::Handler { spu, wait, reply } => {
                let result = i64::from(response.status) << 32 | i64::from(response.result);
                let operation = host::Pending::answer(wait, result, reply, request.reply);
                shared.actions.push(Action::Complete { spu, operation });
            }
        }
    }

    /// Makes a namespace of `bank_bytes` in every bank and tells the app. For a key-value namespace (command set 1) it is also
    /// the app's region of the same number, as it is for the app `key-value`.
    pub fn create_namespace(&mut self, nsid: u32, command_set: u32, block_bytes: u32, bank_bytes: u64) -> Namespace {
        let namespace = {
            let mut shared = self.shared.borrow_mut();
            let bank_bytes = bank_bytes.next_multiple_of(REGION_ALIGNMENT_BYTES);
            let base = shared.place(bank_bytes).expect("no room for the namespace in the banks");
            let blocks = bank_bytes * u64::from(shared.options.spus) / u64::from(block_bytes.max(1));
            let namespace = Namespace { base, bank_bytes, command_set, block_bytes, blocks };
            assert!(shared.namespaces.insert(nsid, namespace).is_none(), "there is such a namespace already");
            if command_set == 1 {
                shared.regions.push(Region { id: Some(nsid), base, bytes: bank_bytes });
            }
            namespace
        };
        self.event(DeviceEvent::NamespaceCreated(nsid));
        namespace
    }

    /// Deletes a namespace, tells the app, and zeroes what it held.
    pub fn delete_namespace(&mut self, nsid: u32) {
        let namespace = self.shared.borrow_mut().namespaces.remove(&nsid).expect("no such namespace");
        self.shared.borrow_mut().regions.retain(|region| region.base != namespace.base);
        self.event(DeviceEvent::NamespaceDeleted(nsid));
        for spu in &mut self.spus {
            spu.host.bank.zero(namespace.base, namespace.bank_bytes);
        }
    }

    /// Shuts down as the device does (the app is told and waited for), then starts again with the same NV memory.
    pub fn restart(&mut self) {
        self.event(DeviceEvent::Shutdown);
        for spu in &mut self.spus {
            spu.host.bank.flush(u64::MAX);
            spu.instance = None;
        }
        self.forget_requests();
        self.boot();
    }

    /// Cuts the power here and now, then starts again: of what was written and not flushed the seed chooses what survives, in
    /// pieces of 512 bytes. Requests that were not answered are gone.
    pub fn cut_power(&mut self) {
        self.forget_requests();
        for spu in &mut self.spus {
            spu.instance = None;
            let mut shared = self.shared.borrow_mut();
            spu.host.bank.cut_power(|| shared.random(2) == 0);
        }
        self.boot();
    }

    fn forget_requests(&mut self) {
        let mut shared = self.shared.borrow_mut();
        shared.requests.clear();
        shared.actions.clear();
        shared.sleeps.clear();
        for spu in &mut self.spus {
            spu.refused.clear();
            spu.host.forget();
        }
    }

    /// NV memory of an SPU.
    pub fn bank(&self, spu: u32) -> &[u8] {
        self.spus[spu as usize].host.bank.bytes()
    }

    /// Writes NV memory of an SPU behind the app's back, durably.
    pub fn write_bank(&mut self, spu: u32, address: u64, bytes: &[u8]) {
        let bank = &mut self.spus[spu as usize].host.bank;
        bank.write(address as usize, bytes);
        bank.flush(u64::MAX);
    }

    /// Has every operation that touches this range of an SPU's bank fail with [`crate::Error::Media`]; an empty range ends that.
    pub fn fail_media(&mut self, spu: u32, range: Range<u64>) {
        self.spus[spu as usize].host.broken = range;
    }

    /// What the gate has charged the runs of the app on an SPU: units of docs/abi.md, without instructions, which are not counted here.
    pub fn charged(&self, spu: u32) -> u64 {
        self.spus[spu as usize].host.charged
    }

    /// What the app printed on an SPU.
    pub fn serial(&self, spu: u32) -> &str {
        &self.spus[spu as usize].host.serial
    }

    /// One of the app's counters on an SPU.
    pub fn counter(&self, spu: u32, counter: u32) -> i64 {
        self.spus[spu as usize].host.counters[counter as usize]
    }

    /// Has an endpoint subscribe to the app's upcalls of a kind.
    pub fn subscribe(&mut self, hre: u32, kind: u8) {
        self.shared.borrow_mut().subscribers.insert((hre, kind.into()));
    }

    /// Answers the app's upcalls; without it they are refused.
    pub fn on_upcall(&mut self, answer: impl FnMut(&Upcall) -> Response + 'static) {
        self.shared.borrow_mut().answer_upcall = Some(std::boxed::Box::new(answer));
    }
}
