//! Instances of apps that ask for long runs (`long=1`), and of those whose runs are cut ([`super::paced`]): they make way for others after each slice.
//!
//! A call into such an app runs on a fiber. The fiber's future borrows the store from when the call begins until it has ended, so that nobody
//! else can use the store meanwhile, not even its data. One future therefore owns the store for good: it takes what is asked of the
//! instance from a desk, does it, and leaves there what came of it.
//!
//! What always holds:
//! - a slice ends after [`Machine::slice`] instructions, or when SPU-OS has done as much for it; one import may ask for twice as much: what
//!   a run of another user's app may. Where a run is cut a slice ends by its instructions alone, and the budget of the run bounds the rest;
//! - while a run is suspended the instance is asked for nothing but to go on;
//! - what the run has had so far (instructions, work, bytes of DMAs) counts against the budget of the whole run.

use super::autopsy::Autopsy;
use super::debug::{self, Answer, Debugger, Debugging, Query, SharedDebugging};
use super::limits::{InstanceLimits, MemoryLimits};
use super::wasm::{
    Complete, Exports, Guest, GuestMemory, WasmInstance, find_initialize, not_initialized, not_instantiated, offered,
    store_of, told, why_ended, with,
};
use crate::spu::os::{Caller, Machine};
use crate::spu::reach::Lender;
use crate::spu::request::RECORD_BYTES;
use crate::spu::{Instance, Offered, Resumed, Told};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use wasmtime::{AsContextMut, Caller as GuestCaller, Engine, InstancePre, Linker, Store};
use willow_gate::table::{Section, When, Work};
use willow_gate::{Call, Fault, SpuOs, argument, imports, parameter};

type Record = [u8; RECORD_BYTES];

/// What the store is to do next.
enum Asked {
    Start { token: u32, handler: u8, record: Option<Record> },
    Complete { wait: u32, result: i64 },
    Bring { pointer: u64, bytes: Vec<u8> },
    Peek { from: u64, bytes: usize },
}

/// What came of it.
struct Done {
    /// What an export returned.
    returned: Result<i32, String>,
    record: Option<Record>,
    /// Instructions of the whole run.
    instructions: u64,
}

/// What a run has had in slices that are over.
#[derive(Clone, Copy, Default)]
struct Had {
    instructions: u64,
    /// Slices that ended since the instructions of one were executed.
    whole_slices: u64,
    work: u64,
    dma_bytes: u64,
}

/// Between an instance and the future that has its store.
pub(crate) struct Desk {
    asked: Option<Asked>,
    done: Option<Done>,
    caller: Caller,
    memory_bytes: u64,
    has_record: bool,
    budget: u64,
    slice: u64,
    had: Had,
    /// The slice ended since SPU-OS had done much; instructions of the whole run by then.
    made_way_at: Option<u64>,
    /// Where its code has trapped.
    autopsy: Option<Autopsy>,
    /// Of its memory, what was asked for.
    peeked: Vec<u8>,
}

pub(crate) type SharedDesk = Arc<Mutex<Desk>>;

/// What a run was charged in slices of it that are over.
pub(super) fn charged_before(desk: &SharedDesk) -> u64 {
    at(desk).had.work
}

/// A run makes way where it is, with so much fuel left.
pub(super) fn makes_way(desk: &SharedDesk, left: u64) {
    let mut desk = at(desk);
    desk.made_way_at = Some(desk.budget.saturating_sub(left));
}

/// It is held for a few instructions, never while a call goes on.
fn at(desk: &SharedDesk) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An instance on one SPU.
pub(crate) struct LongInstance {
    /// What has the store.
    serving: Pin<Box<dyn Future<Output = ()> + Send>>,
    lender: Lender<Machine>,
    desk: SharedDesk,
    /// Of the last slice.
    instructions: u64,
    /// The run began with a request.
    is_start: bool,
    /// Where it was made for a debugger.
    debugging: Option<SharedDebugging>,
}

/// Makes an instance, and then does what it is asked for.
async fn serve(mut store: Store<Guest>, pre: InstancePre<Guest>, desk: SharedDesk) {
    let made = make(&mut store, &pre).await;
    let is_made = {
        let mut desk = at(&desk);
        desk.memory_bytes = store.data().limits.bytes();
        desk.has_record = made.as_ref().is_ok_and(Exports::has_record);
        desk.done =
            Some(Done { returned: made.as_ref().map(|_| 0).map_err(String::clone), record: None, instructions: 0 });
        made
    };
    if let Ok(exports) = is_made {
        let slice = at(&desk).slice;
        attend((store, exports), desk, slice).await;
    }
}

/// Does what an instance is asked for. `slice`: that of its store; 0 where it has none yet.
async fn attend((mut store, exports): (Store<Guest>, Exports), desk: SharedDesk, mut slice: u64) {
    loop {
        let next = poll_fn(|_| {
            let mut desk = at(&desk);
            let Some(asked) = desk.asked.take() else { return Poll::Pending };
            Poll::Ready((asked, desk.caller, desk.budget, desk.slice))
        });
        let (asked, caller, budget, wanted) = next.await;
        let another = (std::mem::replace(&mut slice, wanted) != wanted).then_some(wanted);
        store.data_mut().caller = caller;
        if let Some(debugging) = store.data().debugging.clone() {
            debug::apply(store.as_context_mut(), &debugging);
        }
        let returned = match asked {
            Asked::Bring { pointer, bytes } => exports.bring(&mut store, pointer, &bytes).map(|()| 0),
            Asked::Peek { from, bytes } => {
                let peeked = exports.peek(&store, from, bytes);
                at(&desk).peeked = peeked;
                Ok(0)
            }
            Asked::Start { token, handler, record } => {
                if let (Some(record), Some(at)) = (&record, exports.record(&mut store)) {
                    at.copy_from_slice(record);
                }
                let arguments = (token, handler.into());
                run(&mut store, budget, another, async |store| exports.start.call_async(store, arguments).await).await
            }
            Asked::Complete { wait, result } => {
                let arguments = (wait, result);
                run(&mut store, budget, another, async |store| match &exports.complete {
                    Complete::Answering(complete) => complete.call_async(store, arguments).await,
                    Complete::Silent(complete) => complete.call_async(store, arguments).await.map(|()| 0),
                })
                .await
            }
        };
        let record = exports.record(&mut store).map(|record| *record);
        let mut desk = at(&desk);
        desk.memory_bytes = store.data().limits.bytes();
        let instructions = budget - store.get_fuel().unwrap_or(0).min(budget);
        desk.done = Some(Done { returned, record, instructions });
    }
}

/// One run of the app; `slice`: from now on its runs make way after so many instructions.
async fn run(
    store: &mut Store<Guest>,
    budget: u64,
    slice: Option<u64>,
    call: impl AsyncFnOnce(&mut Store<Guest>) -> wasmtime::Result<i32>,
) -> Result<i32, String> {
    let cut = slice.map_or(Ok(()), |slice| store.fuel_async_yield_interval(Some(slice)));
    let ran = match cut.and_then(|()| store.set_fuel(budget)) {
        Ok(()) => call(store).await,
        Err(error) => Err(error),
    };
    ran.map_err(|error| {
        let autopsy = Autopsy::new(&error, store);
        let why = why_ended(&error, budget, &autopsy);
        if let Some(desk) = &store.data().desk {
            at(desk).autopsy = Some(autopsy);
        }
        why
    })
}

/// Instantiates it, and initialises it.
async fn make(store: &mut Store<Guest>, pre: &InstancePre<Guest>) -> Result<Exports, String> {
    let instance = pre.instantiate_async(&mut *store).await.map_err(not_instantiated)?;
    let exports = Exports::find(&instance, store)?;
    if let Some(initialize) = find_initialize(&instance, store) {
        initialize.call_async(&mut *store, ()).await.map_err(|error| not_initialized(&error))?;
    }
    // From now on it makes way.
    let slice = store.data().desk.as_ref().map(|desk| at(desk).slice);
    store.fuel_async_yield_interval(slice).map_err(not_instantiated)?;
    Ok(exports)
}

impl Desk {
    fn shared(caller: Caller, budget: u64, slice: u64) -> SharedDesk {
        Arc::new(Mutex::new(Desk {
            asked: None,
            done: None,
            caller,
            memory_bytes: 0,
            has_record: false,
            budget,
            slice,
            had: Had::default(),
            made_way_at: None,
            autopsy: None,
            peeked: Vec::new(),
        }))
    }
}

impl LongInstance {
    /// An instance whose runs went to their end until now: from now on they make way after so many instructions.
    pub(super) fn cut(whole: WasmInstance, caller: Caller, slice: u64) -> Self {
        let (mut store, exports, budget) = whole.into_parts();
        let desk = Desk::shared(caller, budget, slice);
        {
            let mut desk = at(&desk);
            (desk.memory_bytes, desk.has_record) = (store.data().limits.bytes(), exports.has_record());
        }
        let (lender, os) = Lender::new();
        let guest = store.data_mut();
        (guest.os, guest.desk) = (os, Some(desk.clone()));
        let serving = Box::pin(attend((store, exports), desk.clone(), 0));
        LongInstance { serving, lender, desk, instructions: 0, is_start: false, debugging: None }
    }

    /// Its next run makes way after so many instructions.
    pub(super) fn set_slice(&mut self, slice: u64) {
        at(&self.desk).slice = slice;
    }

    /// Makes an instance for an SPU and initialises it.
    pub fn new(
        pre: &InstancePre<Guest>,
        machine: &mut Machine,
        caller: Caller,
        limits: InstanceLimits,
    ) -> Result<Self, String> {
        Self::made(pre, machine, caller, limits, None)
    }

    /// The same for a debugger, of a module that is compiled for that.
    pub fn debugged(
        pre: &InstancePre<Guest>,
        machine: &mut Machine,
        caller: Caller,
        limits: InstanceLimits,
    ) -> Result<Self, String> {
        Self::made(pre, machine, caller, limits, Some(Debugging::shared()))
    }

    fn made(
        pre: &InstancePre<Guest>,
        machine: &mut Machine,
        caller: Caller,
        InstanceLimits { data_bytes_max, budget, initialize_budget }: InstanceLimits,
        debugging: Option<SharedDebugging>,
    ) -> Result<Self, String> {
        let desk = Desk::shared(caller, budget, machine.slice());
        let (lender, os) = Lender::new();
        let limits = MemoryLimits::new(data_bytes_max);
        let guest = Guest { os, caller, memory: None, limits, desk: Some(desk.clone()), debugging: debugging.clone() };
        let mut store = store_of(pre.module().engine(), guest, initialize_budget)?;
        if let Some(debugging) = debugging.clone() {
            store.set_debug_handler(debug::Handler { debugging, desk: desk.clone() });
        }
        let serving = Box::pin(serve(store, pre.clone(), desk.clone()));
        let mut made = LongInstance { serving, lender, desk, instructions: 0, is_start: false, debugging };
        // What is not anybody's run makes no way: what it may do is bounded by its budget.
        let done = loop {
            if let Some(done) = made.go_on(machine) {
                break done;
            }
            machine.staged_one(caller.spu);
        };
        if let Some(debugging) = &made.debugging {
            Debugger(debugging).attach();
        }
        done.returned.map(|_| made)
    }

    /// Goes on until what was asked for is done, or for a slice.
    fn go_on(&mut self, machine: &mut Machine) -> Option<Done> {
        let (caller, moved_before) = {
            let mut desk = at(&self.desk);
            desk.made_way_at = None;
            (desk.caller, desk.had.dma_bytes)
        };
        machine.meter(caller).goes_on(moved_before);
        let mut context = Context::from_waker(Waker::noop());
        let (serving, lender) = (self.serving.as_mut(), &mut self.lender);
        let ended = lender.lend(machine, || serving.poll(&mut context));
        debug_assert!(ended.is_pending() || at(&self.desk).done.is_some(), "it serves until it is dropped");
        let mut desk = at(&self.desk);
        let Desk { had, made_way_at, done, slice, .. } = &mut *desk;
        had.dma_bytes = machine.meter(caller).makes_way(moved_before);
        had.work += machine.charged(caller);
        if let Some(done) = done.take() {
            self.instructions = done.instructions.saturating_sub(had.instructions);
            return Some(done);
        }
        let instructions = made_way_at.unwrap_or_else(|| {
            had.whole_slices += 1;
            had.whole_slices * *slice
        });
        self.instructions = instructions.saturating_sub(had.instructions);
        had.instructions = instructions.max(had.instructions);
        None
    }

    /// A run begins.
    fn ask(&mut self, asked: Asked) {
        let mut desk = at(&self.desk);
        debug_assert!(desk.asked.is_none() && desk.done.is_none(), "a run is under way");
        desk.had = Had::default();
        desk.asked = Some(asked);
    }

    fn start_went(&mut self, machine: &mut Machine) -> Result<Offered, String> {
        match self.go_on(machine) {
            Some(Done { returned, record, .. }) => offered(returned?, record.as_ref()),
            None => Ok(Offered::Suspended),
        }
    }

    fn complete_went(&mut self, machine: &mut Machine) -> Result<Told, String> {
        match self.go_on(machine) {
            Some(Done { returned, record, .. }) => {
                let caller = at(&self.desk).caller;
                told(machine, caller, returned?, record.as_ref())
            }
            None => Ok(Told::Suspended),
        }
    }
}

impl Instance for LongInstance {
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        let (caller, has_record) = {
            let desk = at(&self.desk);
            (desk.caller, desk.has_record)
        };
        let record = has_record.then(|| {
            let mut record = [0; RECORD_BYTES];
            machine.request_record(caller.at(token), &mut record);
            record
        });
        self.is_start = true;
        self.ask(Asked::Start { token, handler, record });
        self.start_went(machine)
    }

    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<Told, String> {
        self.is_start = false;
        self.ask(Asked::Complete { wait, result });
        self.complete_went(machine)
    }

    fn resume(&mut self, machine: &mut Machine) -> Result<Resumed, String> {
        match self.is_start {
            true => self.start_went(machine).map(Resumed::Started),
            false => self.complete_went(machine).map(Resumed::Completed),
        }
    }

    fn bring(&mut self, pointer: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.ask(Asked::Bring { pointer, bytes });
        // It calls nothing of the app's, and no import.
        let ended = self.serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(ended.is_pending());
        at(&self.desk).done.take().map_or(Ok(()), |done| done.returned.map(|_| ()))
    }

    fn autopsy(&mut self) -> Option<Autopsy> {
        at(&self.desk).autopsy.take()
    }

    fn peek(&mut self, from: u64, bytes: usize) -> Vec<u8> {
        self.ask(Asked::Peek { from, bytes });
        // It calls nothing of the app's, and no import.
        let ended = self.serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(ended.is_pending());
        let mut desk = at(&self.desk);
        desk.done = None;
        std::mem::take(&mut desk.peeked)
    }

    fn instructions(&self) -> u64 {
        self.instructions
    }

    fn memory_bytes(&self) -> u64 {
        at(&self.desk).memory_bytes
    }

    fn debugging(&self) -> Option<&SharedDebugging> {
        self.debugging.as_ref()
    }

    fn examine(&mut self, query: Query) -> Option<Answer> {
        let debugger = Debugger(self.debugging.as_ref()?);
        debugger.ask(query);
        // The run is stopped, and goes on only when that is asked for: this calls nothing of the app's, and no import.
        let ended = self.serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(ended.is_pending());
        Debugger(self.debugging.as_ref()?).answer()
    }

    fn unwatched(self: Box<Self>) -> Box<dyn Instance> {
        self
    }

    fn enter(&mut self, caller: Caller) {
        at(&self.desk).caller = caller;
    }
}

/// Runs an import as [`with`] does, after others have had their turn where the slice is over.
async fn with_slices<R>(
    mut guest: GuestCaller<'_, Guest>,
    for_whom: (When, Work),
    body: impl FnOnce(Call<'_, Machine, GuestMemory<'_>>) -> Result<R, Fault>,
) -> wasmtime::Result<R> {
    let too_early = || wasmtime::Error::msg("an import was called before its time");
    let desk = guest.data().desk.clone().ok_or_else(too_early)?;
    if let Some(debugging) = guest.data().debugging.clone() {
        debug::apply(guest.as_context_mut(), &debugging);
    }
    let caller = guest.data().caller;
    let mut charged = guest.data_mut().os.get().map_or(0, |machine| machine.charged(caller));
    let slice = at(&desk).slice;
    if charged >= slice {
        let left = guest.get_fuel()?;
        {
            let mut desk = at(&desk);
            desk.made_way_at = Some(desk.budget.saturating_sub(left));
        }
        let mut made_way = false;
        poll_fn(|_| match std::mem::replace(&mut made_way, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        charged = 0;
    }
    let before = at(&desk).had.work;
    with(guest, for_whom, (before, charged + 2 * slice), body)
}

/// Links every import of the table to its call.
macro_rules! link_all {
    ($(
        $(#[doc = $meaning:literal])*
        [$($safety:tt)?] fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $result:ident)?;
        { $section:ident, since $since:literal, $who:ident, $when:ident, $work:ident, errors [$($error:ident),*] }
    )*) => {
        /// The imports of instances that ask for long runs.
        pub(super) fn link(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
            let mut linker = Linker::new(engine);
            $(
                linker.func_wrap_async(
                    Section::$section.module(),
                    stringify!($name),
                    |guest: GuestCaller<'_, Guest>, ($($parameter,)*): ($(parameter!([u32, u32] $kind),)*)| {
                        Box::new(with_slices(guest, (When::$when, Work::$work), move |call| {
                            call.$name($(argument!([u64::from] $kind $parameter)),*)
                        }))
                    },
                )?;
            )*
            Ok(linker)
        }
    };
}
imports!(link_all);
