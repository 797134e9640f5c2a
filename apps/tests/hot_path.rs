//! What the way of nearly every block request costs inside the sandbox: Base-IO's read and write of a piece of one stripe, with
//! a DMA that ends at once. Counted, not timed: fuel is one a WebAssembly instruction, and the same on every machine.

use base_io_spu::wire::{RangeArguments, handler};
use wasmtime::{Caller, Config, Engine, Extern, Linker, Module, Store};

/// Most WebAssembly instructions of one request, all of Base-IO and the SDK's executor together. Every operand that is pushed
/// counts as one: compiled, it is a third of that.
const INSTRUCTIONS_MAX: u64 = 300;
/// The same where the DMA ends later: `start` and `complete` together.
const INSTRUCTIONS_PENDING_MAX: u64 = 700;

/// The import calls of one request.
#[derive(Default)]
struct Calls {
    names: Vec<&'static str>,
    arguments: Vec<u8>,
}

fn instance(pending: bool) -> (Store<Calls>, wasmtime::Instance) {
    let engine = Engine::new(Config::new().consume_fuel(true)).expect("an engine");
    let module = Module::new(&engine, willow_apps::BASE_IO_WASM).expect("a module");
    let mut linker: Linker<Calls> = Linker::new(&engine);
    linker
        .func_wrap("willow", "receive_bytes", |mut caller: Caller<'_, Calls>, _: i32, to: i32, bytes: i32| -> i32 {
            let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!("no memory") };
            let arguments = caller.data().arguments.clone();
            let count = arguments.len().min(bytes as usize);
            memory.write(&mut caller, to as usize, &arguments[..count]).expect("in memory");
            caller.data_mut().names.push("receive_bytes");
            count as i32
        })
        .expect("defined");
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
fn a_read_and_a_write_are_three_imports_and_few_instructions() {
    for (handler, pending) in
        [(handler::READ, false), (handler::WRITE, false), (handler::READ, true), (handler::WRITE, true)]
    {
        let (mut store, instance) = instance(pending);
        let start = instance.get_typed_func::<(i32, i32), i32>(&mut store, "start").expect("an export");
        let complete = instance.get_typed_func::<(i32, i64), ()>(&mut store, "complete").expect("an export");
        let range = RangeArguments {
            nv_address: 65536,
            bytes: 4096,
            buffer_offset: 0,
            first_bytes: 4096,
            stripe_bytes: 8192,
            stride: 65536,
            flags: 0,
        };
        store.data_mut().arguments = range.encode().to_vec();
        for token in 0..10 {
            store.data_mut().names.clear();
            let before = store.get_fuel().expect("fuel");
            assert_eq!(start.call(&mut store, (token, handler.into())).expect("no trap"), 0);
            if pending {
                assert_eq!(store.data().names, ["receive_bytes", "dma"]);
                complete.call(&mut store, (0, 0)).expect("no trap");
            }
            let used = before - store.get_fuel().expect("fuel");
            assert_eq!(store.data().names, ["receive_bytes", "dma", "respond"]);
            println!("handler {handler}, pending {pending}: {used} instructions");
            let limit = if pending { INSTRUCTIONS_PENDING_MAX } else { INSTRUCTIONS_MAX };
            assert!(used <= limit, "handler {handler}, pending {pending}: {used} instructions");
        }
    }
}
