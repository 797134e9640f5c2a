//! What the way of nearly every block request costs inside the sandbox: Base-IO's read and write of a piece of one stripe, with
//! a DMA that ends at once. Counted, not timed: fuel is one a WebAssembly instruction, and the same on every machine.

use base_io_spu::wire::{RangeArguments, handler};
use wasmtime::{Caller, Config, Engine, Linker, Module, Store};

/// Most WebAssembly instructions of one request, all of Base-IO and the SDK's executor together. Every operand that is pushed
/// counts as one: compiled, it is a third of that.
const INSTRUCTIONS_MAX: u64 = 350;
/// The same where the DMA ends later: `start` and `complete` together.
const INSTRUCTIONS_PENDING_MAX: u64 = 720;

/// The import calls of one request.
#[derive(Default)]
struct Calls {
    names: Vec<&'static str>,
}

fn instance(pending: bool) -> (Store<Calls>, wasmtime::Instance) {
    let engine = Engine::new(Config::new().consume_fuel(true)).expect("an engine");
    let module = Module::new(&engine, willow_apps::BASE_IO_WASM).expect("a module");
    let mut linker: Linker<Calls> = Linker::new(&engine);
    let dma = move |mut caller: Caller<'_, Calls>, _: i32, _: i32, _: i64, _: i32, _: i64, _: i32, _: i32| -> i32 {
        caller.data_mut().names.push("dma");
        i32::from(pending)
    };
    linker.func_wrap("willow", "dma", dma).expect("defined");
    let respond = |mut caller: Caller<'_, Calls>, _: i32, status: i32, _: i32| {
        assert_eq!(status, 0);
        caller.data_mut().names.push("respond");
    };
    linker.func_wrap("willow", "respond", respond).expect("defined");
    linker.define_unknown_imports_as_traps(&module).expect("the rest");
    let mut store = Store::new(&engine, Calls::default());
    store.set_fuel(u64::MAX).expect("fuel");
    let instance = linker.instantiate(&mut store, &module).expect("an instance");
    (store, instance)
}

#[test]
fn a_read_and_a_write_are_one_import_and_few_instructions() {
    for (handler, pending) in
        [(handler::READ, false), (handler::WRITE, false), (handler::READ, true), (handler::WRITE, true)]
    {
        let (mut store, instance) = instance(pending);
        let start = instance.get_typed_func::<(i32, i32), i32>(&mut store, "start").expect("an export");
        let complete = instance.get_typed_func::<(i32, i64), i32>(&mut store, "complete").expect("an export");
        let range = RangeArguments {
            nv_address: 65536,
            bytes: 4096,
            buffer_offset: 0,
            first_bytes: 4096,
            stripe_bytes: 8192,
            stride: 65536,
            flags: 0,
        };
        let record = instance.get_global(&mut store, "request_record").expect("an export");
        let record = record.get(&mut store).unwrap_i32() as usize;
        let memory = instance.get_memory(&mut store, "memory").expect("a memory");
        for token in 1..10 {
            store.data_mut().names.clear();
            let words = [7, u32::MAX, 32, 4096, handler.into(), 32, u32::MAX, u32::MAX];
            let written = words.iter().flat_map(|word| word.to_le_bytes()).chain(range.encode()).collect::<Vec<_>>();
            memory.write(&mut store, record, &written).expect("in memory");
            let before = store.get_fuel().expect("fuel");
            let taken = start.call(&mut store, (token, handler.into())).expect("no trap");
            if pending {
                assert_eq!((taken, &store.data().names[..]), (0, &["dma"][..]));
                assert_eq!(complete.call(&mut store, (0, 0)).expect("no trap"), 2);
                assert_eq!(store.data().names, ["dma"]);
                let mut answered = [0xff; 4];
                memory.read(&store, record, &mut answered).expect("in memory");
                assert_eq!(i32::from_le_bytes(answered), token);
            } else {
                assert_eq!((taken, &store.data().names[..]), (2, &["dma"][..]));
                let mut response = [0xff; 8];
                memory.read(&store, record + 24, &mut response).expect("in memory");
                assert_eq!(response, [0; 8]);
            }
            let used = before - store.get_fuel().expect("fuel");
            println!("handler {handler}, pending {pending}: {used} instructions");
            let limit = if pending { INSTRUCTIONS_PENDING_MAX } else { INSTRUCTIONS_MAX };
            assert!(used <= limit, "handler {handler}, pending {pending}: {used} instructions");
        }
    }
}
