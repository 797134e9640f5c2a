//! The runtime of sandboxed apps: wasmtime, one Store an app and SPU, calls that run to completion, fuel as instruction count
//! and budget (docs/decisions).
//!
//! Invariants: a trapped instance is never called again; the guest reaches nothing but its own memory and the imports of
//! docs/abi.md; a call ends after the budget at the latest. Apps that ask for long runs have instances of their own ([`super::long`]).

use super::autopsy::{Autopsy, FRAMES_MAX};
use super::debug::SharedDebugging;
use super::kept::KeptModules;
use super::limits::{InstanceLimits, MemoryLimits};
use super::long::{self, SharedDesk};
use super::module::{self, Manifest, ModuleLimits};
use crate::model::parameters::OperatorCosts;
use crate::spu::os::{Caller, LocalMemory, Machine, UNPLACED, WildPointer};
use crate::spu::reach::{Reach, Reaching, lend};
use crate::spu::request::{RECORD_BYTES, record_answered, record_response};
use crate::spu::{Instance, Offered, Told};
use std::path::Path;
use wasmtime::{
    Caller as GuestCaller, Config, Engine, InstancePre, Linker, Memory, Module, Mutability, OperatorCost, OptLevel,
    Store, TypedFunc, Val,
};
use willow_gate::table::{Section, When, Work};
use willow_gate::{Call, Fault, argument, imports, parameter};

/// Native stack that a guest may use.
const WASM_STACK_BYTES_MAX: usize = 256 << 10;
/// The stack of a long run: the guest's, and SPU-OS's for its imports.
const FIBER_STACK_BYTES: usize = 1 << 20;

/// A checked and compiled module, before it has instances. Made on any thread.
pub(crate) struct CompiledModule {
    pub manifest: Manifest,
    pub bytes: Vec<u8>,
    pub module_bytes: u64,
    module: Module,
}

/// What compiles the modules of an owner. On any thread.
#[derive(Clone)]
pub(crate) struct Compiler {
    engine: Engine,
    kept: Option<KeptModules>,
}

/// What the imports know: the calling app, and during a call SPU-OS.
pub(crate) struct Guest {
    pub(super) os: Reach<Machine>,
    pub(super) caller: Caller,
    pub(super) memory: Option<Memory>,
    pub(super) limits: MemoryLimits,
    /// Of an instance that asks for long runs, or is debugged.
    pub(super) desk: Option<SharedDesk>,
    /// Of an instance that is debugged.
    pub(super) debugging: Option<SharedDebugging>,
}

/// The compiler and what modules share that are metered in one way.
#[derive(Clone)]
struct Metering {
    costs: OperatorCost,
    engine: Engine,
    linker: Linker<Guest>,
    /// For instances that ask for long runs.
    long_linker: Linker<Guest>,
    /// For apps that are debugged, made for the first of them.
    debug: Option<(Engine, Linker<Guest>)>,
}

/// The compiler and what all modules share. Apps that users install are metered by what takes a machine longest, all others by what they execute,
/// and both as a model of time says where there is one.
pub(crate) struct Runtime {
    kernels: Metering,
    /// Made for the first of users' apps; the same as `kernels` under a model of time.
    users: Option<Metering>,
    /// Where compiled code is kept.
    kept: Option<KeptModules>,
}

/// The export `complete`, in either form.
pub(super) enum Complete {
    Silent(TypedFunc<(u32, i64), ()>),
    Answering(TypedFunc<(u32, i64), i32>),
}

/// What SPU-OS uses of an instance.
pub(super) struct Exports {
    pub memory: Memory,
    pub start: TypedFunc<(u32, u32), i32>,
    pub complete: Complete,
    /// Where its request record is, if it has one.
    record: Option<usize>,
}

/// An instance on one SPU.
pub(crate) struct WasmInstance {
    store: Store<Guest>,
    exports: Exports,
    budget: u64,
    instructions: u64,
    /// Where its code has trapped.
    autopsy: Option<Autopsy>,
}

/// The app's linear memory.
pub(super) struct GuestMemory<'a>(&'a mut [u8]);

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

/// Why an import ends its app.
fn ends(fault: impl Into<Fault>) -> wasmtime::Error {
    wasmtime::Error::msg(fault.into().to_string())
}

/// Runs an import with the guest's memory and SPU-OS. Every import comes this way, and is charged here. `_initialize` may use memory and
/// `print` alone. `charged_before`: in slices of the run that are over; `most`: what this slice may have been charged.
#[inline]
pub(super) fn with<R>(
    mut guest: GuestCaller<'_, Guest>,
    (when, work): (When, Work),
    (charged_before, most): (u64, u64),
    body: impl FnOnce(Call<'_, Machine, GuestMemory<'_>>) -> Result<R, Fault>,
) -> wasmtime::Result<R> {
    if when == When::Started && guest.data().caller.app == UNPLACED {
        return Err(wasmtime::Error::msg("only memory and print may be used before the app has started"));
    }
    let too_early = || wasmtime::Error::msg("an import was called before its time");
    let memory = guest.data().memory.ok_or_else(too_early)?;
    let left = guest.get_fuel()?.saturating_sub(charged_before).min(most);
    let (bytes, state) = memory.data_and_store_mut(&mut guest);
    let caller = state.caller;
    let machine = state.os.get().ok_or_else(too_early)?;
    machine.enter(caller, left).map_err(ends)?;
    let before = machine.charged(caller);
    let done = body(Call { caller, memory: &mut GuestMemory(bytes), os: &mut *machine }).map_err(ends)?;
    debug_assert!(
        work != Work::Call || machine.charged(caller) == before,
        "the table says that it is charged as a call alone"
    );
    Ok(done)
}

/// What all engines have in common: how apps are contained and metered.
fn config(costs: OperatorCost) -> Config {
    let mut config = Config::new();
    config.consume_fuel(true);
    config.operator_cost(costs);
    config.max_wasm_stack(WASM_STACK_BYTES_MAX);
    config.async_stack_size(FIBER_STACK_BYTES);
    config.cranelift_nan_canonicalization(true);
    config.wasm_relaxed_simd(false);
    // Looked at when a call has ended with a trap, never before.
    config.coredump_on_trap(true);
    config.wasm_backtrace_max_frames(std::num::NonZeroUsize::new(FRAMES_MAX));
    config
}

impl Metering {
    fn new(costs: OperatorCost) -> Result<Self, String> {
        let wrong = |error: wasmtime::Error| format!("the app runtime cannot start: {error}");
        let engine = Engine::new(&config(costs.clone())).map_err(wrong)?;
        let linker = link(&engine).map_err(wrong)?;
        let long_linker = long::link(&engine).map_err(wrong)?;
        Ok(Metering { costs, engine, linker, long_linker, debug: None })
    }
}

impl Runtime {
    /// Engines with the features that apps may use.
    ///
    /// `costs`: of instructions, where a model of time has such; else those that the machine has. `kept`: where compiled code is kept.
    pub fn new(costs: Option<OperatorCosts>, kept: Option<&Path>) -> Result<Self, String> {
        let kept = kept.map(KeptModules::open).transpose().map_err(|why| why.to_string())?;
        match costs {
            Some(costs) => {
                let kernels = Metering::new(super::costs::table(costs))?;
                Ok(Runtime { users: Some(kernels.clone()), kernels, kept })
            }
            None => Ok(Runtime { kernels: Metering::new(super::costs::by_work())?, users: None, kept }),
        }
    }

    /// How the apps of an owner are metered.
    fn of(&mut self, owner: Option<u32>) -> Result<&mut Metering, String> {
        if owner.is_none() {
            return Ok(&mut self.kernels);
        }
        if self.users.is_none() {
            self.users = Some(Metering::new(super::costs::by_time())?);
        }
        self.users.as_mut().ok_or_else(String::new)
    }

    /// What compiles an owner's apps for debuggers.
    pub fn debug_compiler(&mut self, owner: Option<u32>) -> Result<Compiler, String> {
        let of = self.of(owner)?;
        if of.debug.is_none() {
            let mut config = config(of.costs.clone());
            config.guest_debug(true);
            config.cranelift_opt_level(OptLevel::None);
            let wrong = |error: wasmtime::Error| format!("the runtime for debuggers cannot start: {error}");
            let engine = Engine::new(&config).map_err(wrong)?;
            let linker = long::link(&engine).map_err(wrong)?;
            of.debug = Some((engine, linker));
        }
        let compiler = |(engine, _): &(Engine, _)| Compiler { engine: engine.clone(), kept: None };
        of.debug.as_ref().map(compiler).ok_or_else(String::new)
    }

    /// Resolves the imports of a module that is compiled for a debugger.
    pub fn prepare_debug(&self, compiled: &CompiledModule) -> Result<InstancePre<Guest>, String> {
        let made = std::iter::once(&self.kernels).chain(&self.users).filter_map(|of| of.debug.as_ref());
        let found = made.into_iter().find(|(engine, _)| Engine::same(engine, compiled.module.engine()));
        let (_, linker) = found.ok_or("the runtime for debuggers has not started")?;
        linker.instantiate_pre(&compiled.module).map_err(|error| format!("it cannot be linked: {error}"))
    }

    /// What compiles an owner's apps.
    pub fn compiler(&mut self, owner: Option<u32>) -> Result<Compiler, String> {
        let kept = self.kept.clone();
        self.of(owner).map(|of| Compiler { engine: of.engine.clone(), kept })
    }

    /// Resolves the imports of an owner's module; `long`: for [`super::long::LongInstance`].
    pub fn prepare(
        &mut self,
        compiled: &CompiledModule,
        owner: Option<u32>,
        long: bool,
    ) -> Result<InstancePre<Guest>, String> {
        let of = self.of(owner)?;
        let linker = if long { &of.long_linker } else { &of.linker };
        linker.instantiate_pre(&compiled.module).map_err(|error| format!("it cannot be linked: {error}"))
    }
}

impl Compiler {
    /// Checks and compiles a module; takes tens of milliseconds, where its code is not kept. The error says what is wrong with it.
    pub fn compile(&self, bytes: Vec<u8>, limits: ModuleLimits) -> Result<CompiledModule, String> {
        let manifest = module::check(&bytes, limits)?;
        let module = match &self.kept {
            Some(kept) => kept.module(&self.engine, &bytes),
            None => Module::from_binary(&self.engine, &bytes),
        };
        let module = module.map_err(|error| format!("it does not compile: {error:#}"))?;
        let module_bytes = bytes.len() as u64;
        Ok(CompiledModule { manifest, bytes, module_bytes, module })
    }
}

impl WasmInstance {
    /// Makes an instance for an SPU and initialises it.
    pub fn new(
        pre: &InstancePre<Guest>,
        machine: &mut Machine,
        caller: Caller,
        InstanceLimits { data_bytes_max, budget, initialize_budget }: InstanceLimits,
    ) -> Result<Self, String> {
        let limits = MemoryLimits::new(data_bytes_max);
        let guest = Guest { os: Reach::NOTHING, caller, memory: None, limits, desk: None, debugging: None };
        let mut store = store_of(pre.module().engine(), guest, initialize_budget)?;
        let instance = pre.instantiate(&mut store).map_err(not_instantiated)?;
        let exports = Exports::find(&instance, &mut store)?;
        if let Some(initialize) = find_initialize(&instance, &mut store) {
            let initialized = lend(&mut store, machine, |store| initialize.call(store, ()));
            initialized.map_err(|error| not_initialized(&error))?;
        }
        Ok(WasmInstance { store, exports, budget, instructions: 0, autopsy: None })
    }

    /// What it is made of, for one whose runs are cut: its store, its exports and its budget.
    pub(super) fn into_parts(self) -> (Store<Guest>, Exports, u64) {
        (self.store, self.exports, self.budget)
    }

    #[inline]
    fn account(&mut self) {
        self.instructions = self.budget - self.store.get_fuel().unwrap_or(0);
    }

    #[cold]
    fn reason(&mut self, error: &wasmtime::Error) -> String {
        self.account();
        let autopsy = Autopsy::new(error, &mut self.store);
        let why = why_ended(error, self.budget, &autopsy);
        self.autopsy = Some(autopsy);
        why
    }
}

/// A store for one instance, with what it may do until its first wait.
pub(super) fn store_of(engine: &Engine, guest: Guest, budget: u64) -> Result<Store<Guest>, String> {
    let mut store = Store::new(engine, guest);
    store.limiter(|guest| &mut guest.limits);
    store.set_fuel(budget).map_err(not_instantiated)?;
    Ok(store)
}

pub(super) fn not_instantiated(error: wasmtime::Error) -> String {
    format!("it cannot be instantiated: {error:#}")
}

pub(super) fn not_initialized(error: &wasmtime::Error) -> String {
    format!("its _initialize failed: {error:#}")
}

/// Why a call ended its app.
pub(super) fn why_ended(error: &wasmtime::Error, budget: u64, autopsy: &Autopsy) -> String {
    let place = autopsy.place();
    match error.downcast_ref::<wasmtime::Trap>() {
        Some(wasmtime::Trap::OutOfFuel) => {
            format!("it ran more than {budget} instructions without waiting (instruction_budget){place}")
        }
        Some(trap) => format!("it trapped: {trap}{place}"),
        None => format!("it was ended: {}{place}", error.root_cause()),
    }
}

/// The export `_initialize`, where there is one.
pub(super) fn find_initialize(instance: &wasmtime::Instance, store: &mut Store<Guest>) -> Option<TypedFunc<(), ()>> {
    instance.get_typed_func(store, "_initialize").ok()
}

/// What the export `start` has returned.
#[inline]
pub(super) fn offered(taken: i32, record: Option<&[u8; RECORD_BYTES]>) -> Result<Offered, String> {
    match (taken, record) {
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

/// What the export `complete` has returned: a request may be answered.
#[inline]
pub(super) fn told(
    machine: &mut Machine,
    caller: Caller,
    answered: i32,
    record: Option<&[u8; RECORD_BYTES]>,
) -> Result<Told, String> {
    match (answered, record) {
        (0, _) => Ok(Told::Done),
        (2, Some(record)) => {
            let (token, (status, result)) = (record_answered(record), record_response(record));
            machine.answered(caller, token, status, result);
            Ok(Told::Done)
        }
        (2, None) => Err("its export complete returned 2, but it has no request record".to_owned()),
        (other, _) => Err(format!("its export complete returned {other}, only 0 and 2 have a meaning")),
    }
}

impl Exports {
    /// Finds them; from then on imports find the memory.
    pub fn find(instance: &wasmtime::Instance, store: &mut Store<Guest>) -> Result<Self, String> {
        let memory = instance.get_memory(&mut *store, "memory").ok_or("it exports no memory")?;
        store.data_mut().memory = Some(memory);
        let start = instance.get_typed_func(&mut *store, "start").map_err(not_instantiated)?;
        let complete = match instance.get_typed_func(&mut *store, "complete") {
            Ok(complete) => Complete::Answering(complete),
            Err(_) => Complete::Silent(instance.get_typed_func(&mut *store, "complete").map_err(not_instantiated)?),
        };
        let record = Self::find_record(instance, store, memory)?;
        Ok(Exports { memory, start, complete, record })
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
    pub fn record<'a>(&self, store: &'a mut Store<Guest>) -> Option<&'a mut [u8; RECORD_BYTES]> {
        let address = self.record?;
        self.memory.data_mut(store).get_mut(address..)?.first_chunk_mut()
    }

    /// True where it has one.
    pub fn has_record(&self) -> bool {
        self.record.is_some()
    }

    /// Some of its memory, as far as there is any.
    pub fn peek(&self, store: &Store<Guest>, from: u64, bytes: usize) -> Vec<u8> {
        let memory = self.memory.data(store);
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(memory.len());
        memory[from..memory.len().min(from.saturating_add(bytes))].to_vec()
    }

    /// Puts bytes into its memory.
    pub fn bring(&self, store: &mut Store<Guest>, pointer: u64, bytes: &[u8]) -> Result<(), String> {
        let local = GuestMemory(self.memory.data_mut(store)).slice_mut(pointer, bytes.len()).map(|local| {
            local.copy_from_slice(bytes);
        });
        local.map_err(|_| format!("its memory no longer holds {pointer:#x}"))
    }
}

impl Instance for WasmInstance {
    #[inline]
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        let at = self.store.data().caller.at(token);
        if let Some(record) = self.exports.record(&mut self.store) {
            machine.request_record(at, record);
        }
        let start = &self.exports.start;
        let ran = self.store.set_fuel(self.budget);
        let ran = ran.and_then(|()| lend(&mut self.store, machine, |store| start.call(store, (token, handler.into()))));
        match ran {
            Ok(taken) => {
                self.account();
                offered(taken, self.exports.record(&mut self.store).map(|record| &*record))
            }
            Err(error) => Err(self.reason(&error)),
        }
    }

    #[inline]
    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<Told, String> {
        let (complete, arguments) = (&self.exports.complete, (wait, result));
        let ran = self.store.set_fuel(self.budget).and_then(|()| {
            lend(&mut self.store, machine, |store| match complete {
                Complete::Answering(complete) => complete.call(store, arguments),
                Complete::Silent(complete) => complete.call(store, arguments).map(|()| 0),
            })
        });
        match ran {
            Ok(answered) => {
                self.account();
                let caller = self.store.data().caller;
                told(machine, caller, answered, self.exports.record(&mut self.store).map(|record| &*record))
            }
            Err(error) => Err(self.reason(&error)),
        }
    }

    fn bring(&mut self, pointer: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.exports.bring(&mut self.store, pointer, &bytes)
    }

    fn instructions(&self) -> u64 {
        self.instructions
    }

    fn memory_bytes(&self) -> u64 {
        self.store.data().limits.bytes()
    }

    fn memory(&self) -> Option<&[u8]> {
        Some(self.exports.memory.data(&self.store))
    }

    fn autopsy(&mut self) -> Option<Autopsy> {
        self.autopsy.take()
    }

    fn peek(&mut self, from: u64, bytes: usize) -> Vec<u8> {
        self.exports.peek(&self.store, from, bytes)
    }

    fn unwatched(self: Box<Self>) -> Box<dyn Instance> {
        self
    }

    fn enter(&mut self, caller: Caller) {
        self.store.data_mut().caller = caller;
    }
}

/// Links every import of the table to its call.
macro_rules! link_all {
    ($(
        $(#[doc = $meaning:literal])*
        [$($safety:tt)?] fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $result:ident)?;
        { $section:ident, since $since:literal, $who:ident, $when:ident, $work:ident, errors [$($error:ident),*] }
    )*) => {
        fn link(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
            let mut linker = Linker::new(engine);
            $(
                linker.func_wrap(
                    Section::$section.module(),
                    stringify!($name),
                    |guest: GuestCaller<'_, Guest>, $($parameter: parameter!([u32, u32] $kind)),*| -> wasmtime::Result<parameter!([u32, u32] $($result)?)> {
                        // Slices that are over of a run that is cut (`super::paced`).
                        let before = guest.data().desk.as_ref().map_or(0, long::charged_before);
                        with(guest, (When::$when, Work::$work), (before, u64::MAX), |call| call.$name($(argument!([u64::from] $kind $parameter)),*))
                    },
                )?;
            )*
            Ok(linker)
        }
    };
}
imports!(link_all);
