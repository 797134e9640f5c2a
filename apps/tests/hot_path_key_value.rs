//! What a put and a get cost inside the sandbox: Key-Value's handlers and the SDK's executor, once with DMAs that end at once and once with
//! DMAs that end later. Counted, not timed: fuel is one a WebAssembly instruction, and the same on every machine.

use key_value_spu::wire::{PairArguments, handler};
use std::collections::VecDeque;
use wasmtime::{Caller, Config, Engine, Linker, Module, Store, TypedFunc};

/// The most that a request may take.
struct Limits {
    /// WebAssembly instructions of Key-Value and the SDK's executor together. Every operand that is pushed counts as one: compiled, it
    /// is a third of that.
    instructions: u64,
    /// The same where every DMA ends later: `start` and all of `complete` together.
    pending_instructions: u64,
    /// Calls of `start` and `complete` then.
    pending_runs: usize,
}
/// A put over a pair that is the first of its chain: the bucket's head, the header there, then value, header and head at once.
const PUT: Limits = Limits { instructions: 1860, pending_instructions: 2960, pending_runs: 6 };
const PUT_IMPORTS: &[&str] = &["count", "dma", "dma", "checksum", "dma", "dma", "dma"];
/// A put into an empty bucket.
const NEW: Limits = Limits { instructions: 1640, pending_instructions: 2480, pending_runs: 5 };
const NEW_IMPORTS: &[&str] = &["count", "dma", "checksum", "dma", "dma", "dma"];
/// A get of a pair that is the first of its chain.
const GET: Limits = Limits { instructions: 600, pending_instructions: 1910, pending_runs: 4 };
const GET_IMPORTS: &[&str] = &["count", "dma", "dma", "dma"];

const REGION_BYTES: u64 = 1 << 20;
const VALUE_BYTES: u32 = 1024;
/// Fewer than one slab has slots for, and than are replaced before their records are written down.
const KEYS: u64 = 15;
const LOCAL: i32 = 0;
const NV: i32 = 1;
const NETWORK: i32 = 2;
const NOW: i32 = 0x200;
/// SPU-OS' answer to a DMA that must not wait.
const NOT_NOW: i32 = 3;

/// SPU-OS, as far as these handlers need it.
struct Host {
    nv: Vec<u8>,
    body: Vec<u8>,
    reply: Vec<u8>,
    /// DMAs end later.
    pending: bool,
    waits: VecDeque<(i32, i64)>,
    checksum: u32,
    /// Imports of the request, and the fuel that was left at each.
    calls: Vec<(&'static str, u64)>,
}

impl Host {
    fn end(&mut self, wait: i32, result: i64) -> i32 {
        if self.pending {
            self.waits.push_back((wait, result));
        }
        i32::from(self.pending)
    }
}

struct App {
    store: Store<Host>,
    start: TypedFunc<(i32, i32), i32>,
    complete: TypedFunc<(i32, i64), i32>,
    instance: wasmtime::Instance,
    token: i32,
}

/// What a request cost.
#[derive(Debug, Default)]
struct Cost {
    /// Instructions of `start`, then of each `complete`, from import to import.
    runs: Vec<Vec<u64>>,
    calls: Vec<&'static str>,
}

impl Cost {
    fn instructions(&self) -> u64 {
        self.runs.iter().flatten().sum()
    }
}

fn note(caller: &mut Caller<'_, Host>, name: &'static str) {
    let left = caller.get_fuel().expect("fuel");
    caller.data_mut().calls.push((name, left));
}

fn memory(caller: &mut Caller<'_, Host>) -> wasmtime::Memory {
    caller.get_export("memory").and_then(wasmtime::Extern::into_memory).expect("a memory")
}

#[allow(clippy::too_many_arguments)]
fn dma(
    mut caller: Caller<'_, Host>,
    _token: i32,
    source_port: i32,
    source: i64,
    destination_port: i32,
    destination: i64,
    bytes: i32,
    wait: i32,
) -> i32 {
    note(&mut caller, "dma");
    let now = source_port & NOW != 0;
    if now && caller.data().pending {
        return NOT_NOW;
    }
    let (bytes, from, to) = (bytes as usize, source as usize, destination as usize);
    let memory = memory(&mut caller);
    let mut moved = vec![0; bytes];
    match source_port & !NOW {
        LOCAL => memory.read(&caller, from, &mut moved).expect("in memory"),
        NV => moved.copy_from_slice(&caller.data().nv[from..from + bytes]),
        NETWORK => moved.copy_from_slice(&caller.data().body[from..from + bytes]),
        port => panic!("a source of port {port}"),
    }
    match destination_port {
        LOCAL => memory.write(&mut caller, to, &moved).expect("in memory"),
        NV => caller.data_mut().nv[to..to + bytes].copy_from_slice(&moved),
        NETWORK => caller.data_mut().reply[to..to + bytes].copy_from_slice(&moved),
        port => panic!("a destination of port {port}"),
    }
    if now { 0 } else { caller.data_mut().end(wait, 0) }
}

/// The bytes of the body alone: of a put's value. As the model has it, it is always done at once.
fn checksum(
    mut caller: Caller<'_, Host>,
    _token: i32,
    port: i32,
    address: i64,
    bytes: i32,
    seed: i32,
    _wait: i32,
) -> i32 {
    note(&mut caller, "checksum");
    assert_eq!((port, seed), (NETWORK, 0));
    let host = caller.data_mut();
    host.checksum = host.body[address as usize..][..bytes as usize].iter().map(|byte| u32::from(*byte)).sum();
    0
}

impl App {
    fn new() -> Self {
        let engine = Engine::new(Config::new().consume_fuel(true)).expect("an engine");
        let module = Module::new(&engine, willow_apps::KEY_VALUE_WASM).expect("a module");
        let mut linker: Linker<Host> = Linker::new(&engine);
        let defined = linker.func_wrap("willow", "dma", dma).is_ok()
            && linker.func_wrap("willow", "checksum", checksum).is_ok()
            && linker
                .func_wrap("willow", "checksum_value", |caller: Caller<'_, Host>| caller.data().checksum as i32)
                .is_ok()
            && linker
                .func_wrap("willow", "count", |mut caller: Caller<'_, Host>, _: i32, _: i64| note(&mut caller, "count"))
                .is_ok()
            && linker.func_wrap("willow", "spu_id", || 0).is_ok()
            && linker.func_wrap("willow", "spu_count", || 1).is_ok()
            && linker.func_wrap("willow", "time_ns", || 7_i64).is_ok()
            // The caretaker never begins here.
            && linker.func_wrap("willow", "background", |_: i32, _: i64| 0).is_ok()
            && linker.func_wrap("willow", "region", |_: i32, _: i64, _: i32| 0_i64).is_ok()
            && linker.func_wrap("willow", "region_bytes", |_: i32| REGION_BYTES as i64).is_ok()
            && linker
                .func_wrap("willow", "flush", |mut caller: Caller<'_, Host>, wait: i32| caller.data_mut().end(wait, 0))
                .is_ok();
        assert!(defined);
        linker.define_unknown_imports_as_traps(&module).expect("the rest");
        let host = Host {
            nv: vec![0; REGION_BYTES as usize],
            body: Vec::new(),
            reply: vec![0; VALUE_BYTES as usize],
            pending: false,
            waits: VecDeque::new(),
            checksum: 0,
            calls: Vec::new(),
        };
        let mut store = Store::new(&engine, host);
        store.set_fuel(u64::MAX).expect("fuel");
        let instance = linker.instantiate(&mut store, &module).expect("an instance");
        let start = instance.get_typed_func(&mut store, "start").expect("an export");
        let complete = instance.get_typed_func(&mut store, "complete").expect("an export");
        App { store, start, complete, instance, token: 0 }
    }

    /// One request, to its answer, which is a success.
    fn request(&mut self, handler: u8, key: u64, pending: bool) -> Cost {
        self.token += 1;
        let put = handler == handler::PUT;
        let arguments = PairArguments {
            nsid: 1,
            flags: 0,
            hash: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            key: u128::from(key).to_le_bytes(),
            key_bytes: 16,
            word: if put { VALUE_BYTES } else { 0 },
            reply_offset: 0,
        }
        .encode();
        let payload = if put { vec![self.token as u8; VALUE_BYTES as usize] } else { Vec::new() };
        let host = self.store.data_mut();
        host.body = arguments.iter().copied().chain(payload).collect();
        host.pending = pending;
        host.calls.clear();
        let body_bytes = host.body.len() as u32;
        let reply_bytes = if put { 0 } else { VALUE_BYTES };
        let words = [7, u32::MAX, body_bytes, reply_bytes, handler.into(), PairArguments::BYTES as u32, u32::MAX, 0];
        let record = self.instance.get_global(&mut self.store, "request_record").expect("an export");
        let record = record.get(&mut self.store).unwrap_i32() as usize;
        let memory = self.instance.get_memory(&mut self.store, "memory").expect("a memory");
        let mut written = words.iter().flat_map(|word| word.to_le_bytes()).chain(arguments).collect::<Vec<_>>();
        written.resize(96, 0);
        memory.write(&mut self.store, record, &written).expect("in memory");
        let mut cost = Cost::default();
        let mut before = self.store.get_fuel().expect("fuel");
        let mut answered = self.start.call(&mut self.store, (self.token, handler.into())).expect("no trap");
        loop {
            let left = self.store.get_fuel().expect("fuel");
            let mut at = before;
            let mut parts = Vec::new();
            for (name, left) in self.store.data_mut().calls.drain(..) {
                cost.calls.push(name);
                parts.push(at - left);
                at = left;
            }
            parts.push(at - left);
            cost.runs.push(parts);
            if answered == 2 {
                break;
            }
            let (wait, result) = self.store.data_mut().waits.pop_front().expect("it waits for something");
            before = self.store.get_fuel().expect("fuel");
            answered = self.complete.call(&mut self.store, (wait, result)).expect("no trap");
        }
        let mut response = [0xff; 8];
        memory.read(&self.store, record + 24, &mut response).expect("in memory");
        let result = if put { 0 } else { VALUE_BYTES };
        assert_eq!(response[..4], [0; 4], "status");
        assert_eq!(response[4..], result.to_le_bytes());
        assert!(self.store.data().waits.is_empty());
        cost
    }
}

fn check(what: &str, cost: &Cost, pending: bool, limits: &Limits, imports: &[&str]) {
    println!("{what}, pending {pending}: {} instructions, {cost:?}", cost.instructions());
    assert_eq!(cost.calls, imports, "{what}");
    let (instructions, runs) =
        if pending { (limits.pending_instructions, limits.pending_runs) } else { (limits.instructions, 1) };
    assert!(cost.instructions() <= instructions, "{what}: {} instructions", cost.instructions());
    assert_eq!(cost.runs.len(), runs, "{what}");
}

#[test]
fn a_put_and_a_get_are_few_runs_and_few_instructions() {
    for pending in [false, true] {
        let mut app = App::new();
        // The first put makes the store, and of every slab's slots up to 64 are claimed at once.
        for key in 0..KEYS {
            app.request(handler::PUT, key, pending);
        }
        check("put", &app.request(handler::PUT, KEYS, pending), pending, &NEW, NEW_IMPORTS);
        // A get that could not be done at once is not tried so for the next ones.
        app.request(handler::GET, 0, pending);
        // Replaced records are written down 16 at a time.
        for key in 0..KEYS {
            let put = app.request(handler::PUT, key, pending);
            check("put over a pair", &put, pending, &PUT, PUT_IMPORTS);
            let get = app.request(handler::GET, key, pending);
            check("get", &get, pending, &GET, GET_IMPORTS);
            assert!(app.store.data().reply.iter().all(|byte| i32::from(*byte) == app.token - 1), "the value");
        }
    }
}
