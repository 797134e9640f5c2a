//! The runtime of sandboxed apps: wasmtime, one Store an app and SPU, calls that run to completion, fuel as instruction count
//! and budget (docs/decisions).
//!
//! Invariants: a trapped instance is never called again; the guest reaches nothing but its own memory and the imports of
//! docs/abi.md; a call ends after the budget at the latest.

use super::abi;
use super::dma::{Dma, End};
use super::limits::MemoryLimits;
use super::meter::{ENTRY_WORK, Fault, IMPORT_WORK, STORE_WORK};
use super::module::{self, Manifest, ModuleLimits};
use super::os::{Caller, LocalMemory, Machine, UNPLACED, WildPointer, planted};
use super::reach::{Reach, Reaching, lend};
use super::request::{RECORD_BYTES, record_answered, record_response};
use super::{Instance, Offered};
use crate::model::parameters::OperatorCosts;
use wasmtime::{
    Caller as GuestCaller, Config, Engine, InstancePre, Linker, Memory, Module, Mutability, Store, TypedFunc, Val,
};

/// Native stack that a guest may use.
const WASM_STACK_BYTES_MAX: usize = 256 << 10;

/// A checked and compiled module, before it has instances. Made on any thread.
pub(crate) struct CompiledModule {
    pub manifest: Manifest,
    pub bytes: Vec<u8>,
    module: Module,
}

/// What the imports know: the calling app, and during a call SPU-OS.
pub(crate) struct Guest {
    os: Reach<Machine>,
    caller: Caller,
    memory: Option<Memory>,
    limits: MemoryLimits,
}

/// The compiler and what all modules share.
pub(crate) struct Runtime {
    engine: Engine,
    linker: Linker<Guest>,
}

/// The export `complete`, in either form.
enum Complete {
    Silent(TypedFunc<(u32, i64), ()>),
    Answering(TypedFunc<(u32, i64), i32>),
}

/// An instance on one SPU.
pub(crate) struct WasmInstance {
    store: Store<Guest>,
    memory: Memory,
    start: TypedFunc<(u32, u32), i32>,
    complete: Complete,
    /// Where its request record is, if it has one.
    record: Option<usize>,
    budget: u64,
    instructions: u64,
}

/// The app's linear memory.
struct GuestMemory<'a>(&'a mut [u8]);

impl LocalMemory for GuestMemory<'_> {
    #[inline]
    fn slice(&self, pointer: u64, bytes: usize) -> Result<&[u8], WildPointer> {
        let begin = pointer as usize;
        let range = begin.checked_add(bytes).and_then(|end| self.0.get(begin..end));
        range.ok_or(WildPointer { pointer, bytes: bytes as u64 })
    }

    #[inline]
    fn slice_mut(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], WildPointer> {
        let begin = pointer as usize;
        let range = begin.checked_add(bytes).and_then(|end| self.0.get_mut(begin..end));
        range.ok_or(WildPointer { pointer, bytes: bytes as u64 })
    }
}

impl Reaching<Machine> for Store<Guest> {
    #[inline(always)]
    fn reach(&mut self) -> &mut Reach<Machine> {
        &mut self.data_mut().os
    }
}

impl From<Fault> for wasmtime::Error {
    fn from(fault: Fault) -> Self {
        wasmtime::Error::msg(match fault {
            Fault::Wild(WildPointer { pointer, bytes }) => {
                format!("an import was handed {bytes} bytes at {pointer:#x}, outside of the app's memory")
            }
            Fault::OverBudget => "it had SPU-OS do more for it without waiting than its budget covers \
                                  (instruction_budget; docs/abi.md says what imports cost)"
                .to_owned(),
        })
    }
}

/// Runs `body` with the guest's memory and SPU-OS, once the instance has a place: `_initialize` may use memory and print alone.
#[inline]
fn with<R>(
    guest: GuestCaller<'_, Guest>,
    body: impl FnOnce(Caller, &mut GuestMemory<'_>, &mut Machine) -> Result<R, Fault>,
) -> wasmtime::Result<R> {
    if guest.data().caller.app == UNPLACED {
        return Err(wasmtime::Error::msg("only memory and print may be used before the app has started"));
    }
    with_any(guest, body)
}

/// The same also before. Every import comes this way, and is charged here.
#[inline]
fn with_any<R>(
    mut guest: GuestCaller<'_, Guest>,
    body: impl FnOnce(Caller, &mut GuestMemory<'_>, &mut Machine) -> Result<R, Fault>,
) -> wasmtime::Result<R> {
    let too_early = || wasmtime::Error::msg("an import was called before its time");
    let memory = guest.data().memory.ok_or_else(too_early)?;
    let left = guest.get_fuel()?;
    let (bytes, state) = memory.data_and_store_mut(&mut guest);
    let caller = state.caller;
    let machine = state.os.get().ok_or_else(too_early)?;
    let left = if planted!(machine, SkipsMeter) { u64::MAX } else { left };
    machine.meter.allow(left);
    machine.meter.charge(IMPORT_WORK).map_err(Fault::from)?;
    Ok(body(caller, &mut GuestMemory(bytes), machine)?)
}

impl Runtime {
    /// An engine with the features that apps may use.
    ///
    /// `costs`: of instructions, where a model of time wants them in the meter.
    pub fn new(costs: Option<OperatorCosts>) -> Result<Self, String> {
        let mut config = Config::new();
        config.consume_fuel(true);
        if let Some(costs) = costs {
            config.operator_cost(super::costs::table(costs));
        }
        config.max_wasm_stack(WASM_STACK_BYTES_MAX);
        config.cranelift_nan_canonicalization(true);
        config.wasm_relaxed_simd(false);
        let engine = Engine::new(&config).map_err(|error| format!("the app runtime cannot start: {error}"))?;
        let linker = link(&engine).map_err(|error| format!("the app runtime cannot start: {error}"))?;
        Ok(Runtime { engine, linker })
    }

    /// The engine, to compile with on another thread.
    pub fn engine(&self) -> Engine {
        self.engine.clone()
    }

    /// Resolves the module's imports.
    pub fn prepare(&self, compiled: &CompiledModule) -> Result<InstancePre<Guest>, String> {
        self.linker.instantiate_pre(&compiled.module).map_err(|error| format!("it cannot be linked: {error}"))
    }
}

/// Checks and compiles a module; takes tens of milliseconds. The error says what is wrong with it.
pub(crate) fn compile(engine: &Engine, bytes: Vec<u8>, limits: ModuleLimits) -> Result<CompiledModule, String> {
    let manifest = module::check(&bytes, limits)?;
    let module = Module::from_binary(engine, &bytes).map_err(|error| format!("it does not compile: {error:#}"))?;
    Ok(CompiledModule { manifest, bytes, module })
}

impl WasmInstance {
    /// Makes an instance for an SPU and initialises it.
    pub fn new(
        engine: &Engine,
        pre: &InstancePre<Guest>,
        machine: &mut Machine,
        caller: Caller,
        data_bytes_max: u64,
        budget: u64,
    ) -> Result<Self, String> {
        let limits = MemoryLimits::new(data_bytes_max);
        let mut store = Store::new(engine, Guest { os: Reach::NOTHING, caller, memory: None, limits });
        store.limiter(|guest| &mut guest.limits);
        let wrong = |error: wasmtime::Error| format!("it cannot be instantiated: {error:#}");
        store.set_fuel(budget).map_err(wrong)?;
        let instance = pre.instantiate(&mut store).map_err(wrong)?;
        let memory = instance.get_memory(&mut store, "memory").ok_or("it exports no memory")?;
        store.data_mut().memory = Some(memory);
        let start = instance.get_typed_func(&mut store, "start").map_err(wrong)?;
        let complete = match instance.get_typed_func(&mut store, "complete") {
            Ok(complete) => Complete::Answering(complete),
            Err(_) => Complete::Silent(instance.get_typed_func(&mut store, "complete").map_err(wrong)?),
        };
        let record = Self::find_record(&instance, &mut store, memory)?;
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut store, "_initialize") {
            let initialized = lend(&mut store, machine, |store| initialize.call(store, ()));
            // It is nobody's run.
            machine.meter.take();
            initialized.map_err(|error| format!("its _initialize failed: {error:#}"))?;
        }
        Ok(WasmInstance { store, memory, start, complete, record, budget, instructions: 0 })
    }

    /// The address that the export `request_record` holds.
    fn find_record(
        instance: &wasmtime::Instance,
        store: &mut Store<Guest>,
        memory: Memory,
    ) -> Result<Option<usize>, String> {
        let Some(global) = instance.get_global(&mut *store, "request_record") else { return Ok(None) };
        let ty = global.ty(&*store);
        let (Val::I32(address), Mutability::Const) = (global.get(&mut *store), ty.mutability()) else {
            return Err("its export request_record is no immutable i32".to_owned());
        };
        let address = address as u32 as usize;
        match address.checked_add(RECORD_BYTES) {
            Some(end) if end <= memory.data_size(&*store) => Ok(Some(address)),
            _ => Err(format!("its export request_record holds {address:#x}, outside of its memory")),
        }
    }

    /// The request record, where it has one. Memories never shrink, so that it stays where it was found.
    #[inline]
    fn record(&mut self) -> Option<&mut [u8; RECORD_BYTES]> {
        let address = self.record?;
        self.memory.data_mut(&mut self.store).get_mut(address..)?.first_chunk_mut()
    }

    #[inline]
    fn account(&mut self) {
        self.instructions = self.budget - self.store.get_fuel().unwrap_or(0);
    }

    #[cold]
    fn reason(&mut self, error: &wasmtime::Error) -> String {
        self.account();
        match error.downcast_ref::<wasmtime::Trap>() {
            Some(wasmtime::Trap::OutOfFuel) => {
                format!("it ran more than {} instructions without waiting (instruction_budget)", self.budget)
            }
            Some(trap) => format!("it trapped: {trap}"),
            None => format!("it was ended: {}", error.root_cause()),
        }
    }
}

impl Instance for WasmInstance {
    #[inline]
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        if let Some(record) = self.record() {
            machine.request_record(token, record);
        }
        let start = &self.start;
        let ran = self.store.set_fuel(self.budget);
        let ran = ran.and_then(|()| lend(&mut self.store, machine, |store| start.call(store, (token, handler.into()))));
        match ran {
            Ok(taken) => {
                self.account();
                match (taken, self.record()) {
                    (0, _) => Ok(Offered::Taken),
                    (1, _) => Ok(Offered::NoThread),
                    (2, Some(record)) => {
                        let (status, result) = record_response(record);
                        Ok(Offered::Answered { status, result })
                    }
                    (2, None) => Err("its export start returned 2, but it has no request record".to_owned()),
                    (other, _) => Err(format!("its export start returned {other}, only 0, 1 and 2 have a meaning")),
                }
            }
            Err(error) => Err(self.reason(&error)),
        }
    }

    #[inline]
    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<(), String> {
        let (complete, arguments) = (&self.complete, (wait, result));
        let ran = self.store.set_fuel(self.budget).and_then(|()| {
            lend(&mut self.store, machine, |store| match complete {
                Complete::Answering(complete) => complete.call(store, arguments),
                Complete::Silent(complete) => complete.call(store, arguments).map(|()| 0),
            })
        });
        match ran {
            Ok(answered) => {
                self.account();
                match (answered, self.record()) {
                    (0, _) => Ok(()),
                    (2, Some(record)) => {
                        let (token, (status, result)) = (record_answered(record), record_response(record));
                        machine.respond(self.store.data().caller, token, status, result);
                        Ok(())
                    }
                    (2, None) => Err("its export complete returned 2, but it has no request record".to_owned()),
                    (other, _) => Err(format!("its export complete returned {other}, only 0 and 2 have a meaning")),
                }
            }
            Err(error) => Err(self.reason(&error)),
        }
    }

    fn local(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], String> {
        let memory = self.memory.data_mut(&mut self.store);
        let begin = pointer as usize;
        let range = begin.checked_add(bytes).and_then(|end| memory.get_mut(begin..end));
        range.ok_or_else(|| format!("its memory no longer holds {pointer:#x}"))
    }

    fn instructions(&self) -> u64 {
        self.instructions
    }

    fn memory_bytes(&self) -> u64 {
        self.store.data().limits.bytes()
    }

    fn enter(&mut self, caller: Caller) {
        self.store.data_mut().caller = caller;
    }
}

/// Bytes that `namespace` writes, if there is that namespace.
pub(crate) fn namespace_info(machine: &Machine, nsid: u32) -> Option<[u8; 32]> {
    let namespace = machine.namespaces.iter().find(|namespace| namespace.nsid == nsid)?;
    let mut info = [0; 32];
    info[0..8].copy_from_slice(&namespace.base.to_le_bytes());
    info[8..16].copy_from_slice(&namespace.bank_bytes.to_le_bytes());
    let csi: u32 = if namespace.csi == crate::CommandSet::Kv { 1 } else { 0 };
    info[16..20].copy_from_slice(&csi.to_le_bytes());
    info[20..24].copy_from_slice(&namespace.block_bytes.to_le_bytes());
    info[24..32].copy_from_slice(&(namespace.size_bytes / u64::from(namespace.block_bytes.max(1))).to_le_bytes());
    Some(info)
}

fn link(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    let l = &mut linker;
    l.func_wrap("willow", "request_info", |g: GuestCaller<'_, Guest>, token: u32, pointer: u32| {
        with(g, |caller, memory, machine| {
            let info = machine.request_info(caller, token);
            memory.slice_mut(pointer.into(), 32)?.copy_from_slice(&info);
            Ok(())
        })
    })?;
    l.func_wrap("willow", "receive_bytes", |g: GuestCaller<'_, Guest>, token: u32, pointer: u32, bytes: u32| {
        with(g, |caller, memory, machine| machine.receive_bytes(caller, memory, token, (pointer.into(), bytes)))
    })?;
    l.func_wrap(
        "willow",
        "receive_bytes_at",
        |g: GuestCaller<'_, Guest>, token: u32, offset: u32, pointer: u32, bytes: u32| {
            with(g, |caller, memory, machine| {
                machine.receive_bytes_at(caller, memory, token, offset, (pointer.into(), bytes))
            })
        },
    )?;
    l.func_wrap("willow", "respond", |g: GuestCaller<'_, Guest>, token: u32, status: u32, result: u32| {
        with(g, |caller, _, machine| {
            machine.respond(caller, token, status, result);
            Ok(())
        })
    })?;
    l.func_wrap(
        "willow",
        "dma",
        |g: GuestCaller<'_, Guest>, token: u32, sp: u32, sa: u64, dp: u32, da: u64, bytes: u32, wait: u32| {
            with(g, |caller, memory, machine| {
                let source = End { port: sp, address: sa, stride: 0 };
                let destination = End { port: dp, address: da, stride: 0 };
                machine.dma(caller, memory, Dma { token, source, destination, segment_bytes: bytes, segments: 1, wait })
            })
        },
    )?;
    l.func_wrap(
        "willow",
        "dma_strided",
        |g: GuestCaller<'_, Guest>,
         token: u32,
         sp: u32,
         sa: u64,
         ss: i64,
         dp: u32,
         da: u64,
         ds: i64,
         segment_bytes: u32,
         segments: u32,
         wait: u32| {
            with(g, |caller, memory, machine| {
                let source = End { port: sp, address: sa, stride: ss };
                let destination = End { port: dp, address: da, stride: ds };
                machine.dma(caller, memory, Dma { token, source, destination, segment_bytes, segments, wait })
            })
        },
    )?;
    l.func_wrap(
        "willow",
        "compare",
        |g: GuestCaller<'_, Guest>, token: u32, nv: u64, body: u64, bytes: u32, wait: u32| {
            with(g, |caller, _, machine| machine.compare(caller, token, nv, body, bytes, wait))
        },
    )?;
    l.func_wrap(
        "willow",
        "checksum",
        |g: GuestCaller<'_, Guest>, token: u32, port: u32, address: u64, bytes: u32, seed: u32, wait: u32| {
            with(g, |caller, memory, machine| {
                machine.checksum(caller, memory, (token, port, address, bytes, seed, wait))
            })
        },
    )?;
    l.func_wrap("willow", "checksum_value", |g: GuestCaller<'_, Guest>| {
        with(g, |_, _, machine| Ok(machine.checksum_value))
    })?;
    l.func_wrap(
        "willow",
        "rpc_start",
        |g: GuestCaller<'_, Guest>,
         token: u32,
         destination: i32,
         app: i32,
         handler: u32,
         body: u32,
         reply: u32,
         reply_bytes: u32| {
            with(g, |caller, memory, machine| {
                let message = (destination, app, handler, body);
                machine.rpc_start(caller, memory, token, message, (reply.into(), reply_bytes))
            })
        },
    )?;
    l.func_wrap(
        "willow",
        "rpc_append",
        |g: GuestCaller<'_, Guest>, handle: i32, port: u32, address: u64, bytes: u32| {
            with(g, |caller, memory, machine| machine.rpc_append(caller, memory, handle, port, address, bytes))
        },
    )?;
    l.func_wrap("willow", "rpc_finish", |g: GuestCaller<'_, Guest>, handle: i32, wait: u32| {
        with(g, |caller, _, machine| Ok(machine.rpc_finish(caller, handle, wait)?))
    })?;
    l.func_wrap("willow", "app_number", |g: GuestCaller<'_, Guest>, pointer: u32, bytes: u32| {
        with(g, |caller, memory, machine| {
            machine.meter.charge_bytes(bytes.into())?;
            machine.meter.charge(machine.apps.len() as u64 * ENTRY_WORK)?;
            let name = memory.slice(pointer.into(), bytes as usize)?;
            let owner = machine.app(caller.app).and_then(|app| app.owner);
            Ok(machine.find_app_for(owner, name).map_or(abi::ERROR_NOT_FOUND, i32::from))
        })
    })?;
    l.func_wrap("willow", "region", |g: GuestCaller<'_, Guest>, id: u32, bytes: u64, wait: u32| {
        with(g, |caller, _, machine| Ok(machine.region(caller, id, bytes, wait)?))
    })?;
    l.func_wrap("willow", "region_bytes", |g: GuestCaller<'_, Guest>, id: u32| {
        with(g, |caller, _, machine| {
            machine.charge_region_search()?;
            Ok(machine.region_bytes(caller, id))
        })
    })?;
    l.func_wrap("willow", "region_free", |g: GuestCaller<'_, Guest>, id: u32, wait: u32| {
        with(g, |caller, _, machine| Ok(machine.region_free(caller, id, wait)?))
    })?;
    l.func_wrap("willow", "namespace", |g: GuestCaller<'_, Guest>, nsid: u32, pointer: u32| {
        with(g, |_, memory, machine| {
            machine.meter.charge(machine.namespaces.len() as u64 * ENTRY_WORK)?;
            let Some(info) = namespace_info(machine, nsid) else { return Ok(abi::ERROR_NOT_FOUND) };
            memory.slice_mut(pointer.into(), 32)?.copy_from_slice(&info);
            Ok(abi::DONE)
        })
    })?;
    l.func_wrap("willow", "flush", |g: GuestCaller<'_, Guest>, wait: u32| {
        with(g, |caller, _, machine| {
            machine.meter.charge(STORE_WORK)?;
            Ok(machine.flush_bank(caller, wait))
        })
    })?;
    l.func_wrap("willow", "spu_id", |g: GuestCaller<'_, Guest>| with(g, |caller, _, _| Ok(u32::from(caller.spu))))?;
    l.func_wrap("willow", "spu_count", |g: GuestCaller<'_, Guest>| {
        with(g, |_, _, machine| Ok(machine.spus.len() as u32))
    })?;
    l.func_wrap("willow", "time_ns", |g: GuestCaller<'_, Guest>| with(g, |_, _, machine| Ok(machine.now_ns)))?;
    l.func_wrap("willow", "print", |g: GuestCaller<'_, Guest>, pointer: u32, bytes: u32| {
        with_any(g, |caller, memory, machine| {
            let text = memory.slice(pointer.into(), bytes.min(abi::PRINT_BYTES_MAX) as usize)?;
            Ok(machine.print(caller, text)?)
        })
    })?;
    l.func_wrap("willow", "count", |g: GuestCaller<'_, Guest>, counter: u32, delta: i64| {
        with(g, |caller, _, machine| {
            machine.count(caller, counter, delta);
            Ok(())
        })
    })?;
    Ok(linker)
}
