//! What a get costs inside the sandbox: the real Key-Value module on a bank in memory whose DMAs end at once. Counted, not timed:
//! fuel is one a WebAssembly instruction, and the same on every machine.

use key_value_spu::wire::{PairArguments, handler};
use wasmtime::{Caller, Config, Engine, Instance, Linker, Memory, Module, Store};

/// Most WebAssembly instructions of one get of a pair that is the first of its chain: all of Key-Value and the SDK's executor.
const INSTRUCTIONS_MAX: u64 = 800;
/// The same where nothing ends at once.
const INSTRUCTIONS_PENDING_MAX: u64 = 2350;
const REGION_BYTES: usize = 8 << 20;
const VALUE_BYTES: u32 = 1024;

#[derive(Default)]
struct Spu {
    bank: Vec<u8>,
    body: Vec<u8>,
    reply: Vec<u8>,
    /// Imports of the request, and the fuel that was left at each.
    calls: Vec<(&'static str, u64)>,
    responses: Vec<(i32, i32)>,
    /// Reads to local memory end later, and these waits are to be completed.
    pending: bool,
    waits: Vec<i32>,
}

fn note(caller: &mut Caller<'_, Spu>, name: &'static str) {
    let left = caller.get_fuel().expect("fuel");
    caller.data_mut().calls.push((name, left));
}

fn memory(caller: &mut Caller<'_, Spu>) -> Memory {
    caller.get_export("memory").and_then(|export| export.into_memory()).expect("a memory")
}

fn linker(engine: &Engine, module: &Module) -> Linker<Spu> {
    let mut linker: Linker<Spu> = Linker::new(engine);
    let l = &mut linker;
    l.func_wrap(
        "willow",
        "dma",
        |mut caller: Caller<'_, Spu>, _: i32, sp: i32, sa: i64, dp: i32, da: i64, bytes: i32, wait: i32| -> i32 {
            note(&mut caller, "dma");
            let memory = memory(&mut caller);
            // A read that is done at once or not at all.
            let now = sp & 0x200 != 0;
            let sp = sp & !0x200;
            if now && caller.data().pending {
                return 3;
            }
            let (local, spu) = memory.data_and_store_mut(&mut caller);
            let (sa, da, bytes) = (sa as usize, da as usize, bytes as usize);
            let copy = match sp {
                0 => local[sa..sa + bytes].to_vec(),
                1 => spu.bank[sa..sa + bytes].to_vec(),
                2 => spu.body[sa..sa + bytes].to_vec(),
                _ => vec![0; bytes],
            };
            match dp {
                0 => local[da..da + bytes].copy_from_slice(&copy),
                1 => spu.bank[da..da + bytes].copy_from_slice(&copy),
                _ => spu.reply[da..da + bytes].copy_from_slice(&copy),
            }
            if spu.pending && dp == 0 {
                spu.waits.push(wait);
                return 1;
            }
            0
        },
    )
    .expect("defined");
    l.func_wrap("willow", "checksum", |mut caller: Caller<'_, Spu>, _: i32, _: i32, _: i64, _: i32, _: i32, _: i32| {
        note(&mut caller, "checksum");
        0
    })
    .expect("defined");
    l.func_wrap("willow", "checksum_value", |_: Caller<'_, Spu>| 7).expect("defined");
    l.func_wrap("willow", "count", |mut caller: Caller<'_, Spu>, _: i32, _: i64| note(&mut caller, "count"))
        .expect("defined");
    l.func_wrap("willow", "region", |_: Caller<'_, Spu>, _: i32, _: i64, _: i32| 0i64).expect("defined");
    l.func_wrap("willow", "region_bytes", |_: Caller<'_, Spu>, _: i32| REGION_BYTES as i64).expect("defined");
    l.func_wrap("willow", "flush", |_: Caller<'_, Spu>, _: i32| 0).expect("defined");
    l.func_wrap("willow", "spu_id", |_: Caller<'_, Spu>| 0).expect("defined");
    l.func_wrap("willow", "spu_count", |_: Caller<'_, Spu>| 1).expect("defined");
    l.func_wrap("willow", "time_ns", |_: Caller<'_, Spu>| 1i64).expect("defined");
    l.func_wrap("willow", "respond", |mut caller: Caller<'_, Spu>, _: i32, status: i32, result: i32| {
        note(&mut caller, "respond");
        caller.data_mut().responses.push((status, result));
    })
    .expect("defined");
    l.define_unknown_imports_as_traps(module).expect("the rest");
    linker
}

/// Makes a request of the app; returns its response.
fn request(store: &mut Store<Spu>, instance: &Instance, handler: u8, arguments: &PairArguments) -> (i32, i32) {
    let start = instance.get_typed_func::<(i32, i32), i32>(&mut *store, "start").expect("an export");
    let memory = instance.get_memory(&mut *store, "memory").expect("a memory");
    let record = instance.get_global(&mut *store, "request_record").expect("an export").get(&mut *store);
    let record = record.unwrap_i32() as usize;
    let (inline, payload) = (arguments.encode(), vec![0x5a; VALUE_BYTES as usize]);
    let body = PairArguments::BYTES as u32 + VALUE_BYTES;
    let words = [7, u32::MAX, body, VALUE_BYTES, handler.into(), PairArguments::BYTES as u32, 0, 0];
    let written = words.iter().flat_map(|word| word.to_le_bytes()).chain(inline).collect::<Vec<_>>();
    memory.write(&mut *store, record, &written).expect("in memory");
    let spu = store.data_mut();
    spu.body = [&inline[..], &payload].concat();
    spu.reply = vec![0; VALUE_BYTES as usize];
    spu.calls.clear();
    store.set_fuel(u64::MAX).expect("fuel");
    let recorded = |store: &mut Store<Spu>| {
        let mut response = [0; 8];
        memory.read(&*store, record + 24, &mut response).expect("in memory");
        let word = |at: usize| i32::from_le_bytes([0, 1, 2, 3].map(|byte| response[at + byte]));
        (word(0), word(4))
    };
    match start.call(&mut *store, (65536, handler.into())).expect("no trap") {
        2 => recorded(store),
        _ => {
            let complete = instance.get_typed_func::<(i32, i64), i32>(&mut *store, "complete").expect("an export");
            while let Some(wait) = store.data_mut().waits.pop() {
                if complete.call(&mut *store, (wait, 0)).expect("no trap") == 2 {
                    return recorded(store);
                }
            }
            store.data_mut().responses.pop().expect("an answer")
        }
    }
}

#[test]
fn a_get_is_few_imports_and_few_instructions() {
    let engine = Engine::new(Config::new().consume_fuel(true)).expect("an engine");
    let module = Module::new(&engine, willow_apps::KEY_VALUE_WASM).expect("a module");
    let linker = linker(&engine, &module);
    let mut store = Store::new(&engine, Spu { bank: vec![0; REGION_BYTES], ..Spu::default() });
    store.set_fuel(u64::MAX).expect("fuel");
    let instance = linker.instantiate(&mut store, &module).expect("an instance");
    let pair = |number: u64| PairArguments {
        nsid: 1,
        flags: 0,
        hash: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        key: *b"0123456789abcdef",
        key_bytes: 16,
        word: 0,
        reply_offset: 0,
    };
    for number in 0..100 {
        let put = PairArguments { word: VALUE_BYTES, ..pair(number) };
        assert_eq!(request(&mut store, &instance, handler::PUT, &put), (0, 0));
    }
    for (number, pending) in (0..100).map(|number| (number, false)).chain((0..100).map(|number| (number, true))) {
        store.data_mut().pending = pending;
        let found = request(&mut store, &instance, handler::GET, &pair(number));
        assert_eq!(found, (0, VALUE_BYTES as i32));
        let used = u64::MAX - store.get_fuel().expect("fuel");
        let names: Vec<_> = store.data().calls.iter().map(|(name, _)| *name).collect();
        assert_eq!(store.data().reply, vec![0x5a; VALUE_BYTES as usize]);
        if number < 3 {
            let mut before = u64::MAX;
            for (name, left) in store.data().calls.clone() {
                println!("{} instructions to {name}", before - left);
                before = left;
            }
            println!("{used} in all");
        }
        // The bucket's head, the record's header, the value.
        let (expected, limit) = match pending {
            false => (&["count", "dma", "dma", "dma"][..], INSTRUCTIONS_MAX),
            // One of 64 tries whether it can be done at once.
            true if number % 64 == 0 => (&["count", "dma", "dma", "dma", "dma"][..], INSTRUCTIONS_PENDING_MAX),
            true => (&["count", "dma", "dma", "dma"][..], INSTRUCTIONS_PENDING_MAX),
        };
        assert_eq!(names, expected);
        assert!(used <= limit, "pending {pending}: {used} instructions");
    }
    store.data_mut().pending = false;
    assert_eq!(request(&mut store, &instance, handler::GET, &pair(1000)).0, 1);
}
