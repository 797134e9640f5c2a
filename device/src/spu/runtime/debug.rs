//! Instances that are debugged: compiled anew with wasmtime's instrumentation for debuggers, and run on a fiber as those that ask for long runs, so that a
//! run can stop in the middle.
//!
//! What always holds:
//! - A stopped run is a suspended run ([`crate::spu::slice`]): nothing enters the instance, and nobody else waits for it. It goes on when its debugger, or
//!   the end of that, says so.
//! - Only a stopped instance is asked for its stack and values.
//! - While a run is stepped through, it makes way after [`IGNORED_MAX`] instructions at which it does not stop.
//! - Apps that are not debugged have another engine, whose code has nothing of this.

use super::autopsy::GlobalValue;
use super::long::{SharedDesk, makes_way};
use super::wasm::Guest;
use crate::bridge::accounts::EVENTS;
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use wasmtime::{AsContext, AsContextMut, DebugEvent, DebugHandler, FrameHandle, ModulePC, StoreContextMut, Val};

/// Frames that are shown.
const FRAMES_MAX: usize = 128;
/// Values of a kind that are shown of a frame.
const VALUES_MAX: usize = 1024;
/// Bytes of memory that one question reads.
pub(crate) const MEMORY_BYTES_MAX: u32 = 32 << 10;
/// Instructions that a run is stepped through before it makes way.
const IGNORED_MAX: u32 = 16;
/// Frames that are counted at an instruction: deeper is as deep as that.
const DEPTH_MAX: usize = 256;

/// What it costs to look at an instruction at which a run may stop, and each frame of its stack, in instructions: estimates, of some
/// 0.2 us and 50 ns.
const LOOK_COST: u64 = 1_600;
const FRAME_COST: u64 = 400;
/// What a value costs that a debugger is told: it is read, and written as text.
const VALUE_COST: u64 = 1_000;

/// How a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To the next breakpoint.
    Run,
    /// To the next instruction with so many frames at most.
    Step { depth_max: u32 },
}

/// A run that has stopped.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stop {
    /// `breakpoint`, `step`, `pause`, or why it is about to end.
    pub reason: String,
    /// Bytes from the module's beginning to the instruction.
    pub pc: u32,
    /// Frames of the stack.
    pub depth: u32,
    /// How often this instance has stopped.
    pub count: u32,
}

/// A frame of a stopped run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StoppedFrame {
    /// Index of the function among those that the module defines.
    pub defined_function: u32,
    /// Bytes from the module's beginning to the instruction.
    pub pc: u32,
}

/// The values of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FrameValues {
    /// Its locals, parameters first.
    pub locals: Vec<GlobalValue>,
    /// Its operands, the last pushed last.
    pub operands: Vec<GlobalValue>,
    /// The instance's globals.
    pub globals: Vec<GlobalValue>,
}

/// What is asked of a stopped run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query {
    Stack,
    Values { frame: u32 },
    Memory { from: u64, bytes: u32 },
}

/// The answer to it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Stack(Vec<StoppedFrame>),
    Values(FrameValues),
    Memory(Vec<u8>),
}

impl Answer {
    /// What it cost, in instructions.
    pub fn cost(&self) -> u64 {
        match self {
            Answer::Stack(frames) => LOOK_COST + frames.len() as u64 * (FRAME_COST + VALUE_COST),
            Answer::Values(FrameValues { locals, operands, globals }) => {
                let values = locals.len() + operands.len() + globals.len();
                LOOK_COST + FRAMES_MAX as u64 * FRAME_COST + values as u64 * VALUE_COST
            }
            Answer::Memory(bytes) => LOOK_COST + bytes.len() as u64 / 8,
        }
    }
}

/// Between an instance that is debugged, its runs, and who debugs it.
#[derive(Debug)]
pub(crate) struct Debugging {
    /// What was asked for, and whether that is to be put into the code.
    breakpoints: BTreeSet<u32>,
    is_changed: bool,
    /// What is in the code: as asked for, and where the instructions are that it came to.
    applied: BTreeSet<u32>,
    actual: BTreeSet<u32>,
    mode: Mode,
    pause: bool,
    /// Somebody debugs it: it has been made, and its debugger is there.
    is_attached: bool,
    stop: Option<Stop>,
    goes_on: bool,
    count: u32,
    ignored: u32,
    query: Option<Query>,
    answer: Option<Answer>,
    /// Whose account pays for looks, and what they have cost that was not charged yet.
    payer: u16,
    looks_cost: u64,
}

pub(crate) type SharedDebugging = Arc<Mutex<Debugging>>;

/// It is held for a few instructions.
pub(super) fn at(debugging: &SharedDebugging) -> MutexGuard<'_, Debugging> {
    debugging.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Debugging {
    pub fn shared() -> SharedDebugging {
        Arc::new(Mutex::new(Debugging {
            breakpoints: BTreeSet::new(),
            is_changed: false,
            applied: BTreeSet::new(),
            actual: BTreeSet::new(),
            mode: Mode::Run,
            pause: false,
            is_attached: false,
            stop: None,
            goes_on: false,
            count: 0,
            ignored: 0,
            query: None,
            answer: None,
            payer: EVENTS,
            looks_cost: 0,
        }))
    }
}

/// What who debugs does with an instance.
pub(crate) struct Debugger<'a>(pub &'a SharedDebugging);

impl Debugger<'_> {
    /// Where it has stopped, if it has.
    pub fn stop(&self) -> Option<Stop> {
        let debugging = at(self.0);
        debugging.stop.clone().filter(|_| !debugging.goes_on)
    }

    /// From now on its looks are this account's to pay.
    pub fn is_of(&self, payer: u16) {
        at(self.0).payer = payer;
    }

    /// What its looks have cost since this was asked last, and whose account pays for it.
    pub fn take_cost(&self) -> (u16, u64) {
        let mut debugging = at(self.0);
        (debugging.payer, std::mem::take(&mut debugging.looks_cost))
    }

    /// Who has its run go on instruction by instruction, if somebody does: it goes on in his turn, not in that of whose request it is.
    pub fn steps_for(&self) -> Option<u16> {
        let debugging = at(self.0);
        (debugging.is_attached && debugging.mode != Mode::Run).then_some(debugging.payer)
    }

    /// The instance has been made: from now on it stops.
    pub(super) fn attach(&self) {
        at(self.0).is_attached = true;
    }

    /// These are its breakpoints from now on: a running one stops at them from its next import, or its next run, on.
    pub fn set_breakpoints(&self, breakpoints: BTreeSet<u32>) {
        let mut debugging = at(self.0);
        (debugging.breakpoints, debugging.is_changed) = (breakpoints, true);
    }

    /// It stops at the first instruction of its next run, or after its next import.
    pub fn pause(&self) {
        let mut debugging = at(self.0);
        if debugging.stop.is_none() || debugging.goes_on {
            (debugging.pause, debugging.is_changed) = (true, true);
        }
    }

    /// A stopped one is to go on; true where it was stopped: it is to be resumed then.
    pub fn go_on(&self, mode: Mode) -> bool {
        let mut debugging = at(self.0);
        let is_stopped = debugging.stop.is_some() && !debugging.goes_on;
        if is_stopped {
            (debugging.mode, debugging.goes_on, debugging.is_changed) = (mode, true, true);
        }
        is_stopped
    }

    /// Nobody debugs it any more: it runs as ever. True where it was stopped.
    pub fn leave(&self) -> bool {
        {
            let mut debugging = at(self.0);
            (debugging.pause, debugging.is_changed, debugging.mode) = (false, true, Mode::Run);
            debugging.breakpoints.clear();
            debugging.is_attached = false;
        }
        self.go_on(Mode::Run)
    }

    /// For the instance: what it is to answer when its run is looked at next.
    pub(super) fn ask(&self, query: Query) {
        at(self.0).query = Some(query);
    }

    pub(super) fn answer(&self) -> Option<Answer> {
        at(self.0).answer.take()
    }
}

/// Puts into the code what was asked for since.
pub(super) fn apply(mut store: StoreContextMut<'_, Guest>, debugging: &SharedDebugging) {
    let (wanted, had, steps) = {
        let mut debugging = at(debugging);
        if !std::mem::take(&mut debugging.is_changed) {
            return;
        }
        let steps = debugging.pause || debugging.mode != Mode::Run;
        (debugging.breakpoints.clone(), std::mem::take(&mut debugging.applied), steps)
    };
    let Some(module) = store.as_context_mut().debug_all_modules().into_iter().next() else { return };
    if let Some(mut edit) = store.as_context_mut().edit_breakpoints() {
        // They fail for modules of another engine alone.
        let mut all =
            had.difference(&wanted).map(|pc| edit.remove_breakpoint(&module, ModulePC::new(*pc))).collect::<Vec<_>>();
        all.extend(wanted.difference(&had).map(|pc| edit.add_breakpoint(&module, ModulePC::new(*pc))));
        all.push(edit.single_step(steps));
        debug_assert!(all.iter().all(Result::is_ok), "{all:?}");
    }
    let actual = store.as_context().breakpoints().map(|all| all.map(|one| one.pc.raw()).collect()).unwrap_or_default();
    let mut debugging = at(debugging);
    (debugging.applied, debugging.actual) = (wanted, actual);
}

/// Is told of breakpoints and traps.
#[derive(Clone)]
pub(super) struct Handler {
    pub debugging: SharedDebugging,
    pub desk: SharedDesk,
}

/// The frames of the stack, the innermost first.
fn frames(store: &mut StoreContextMut<'_, Guest>, most: usize) -> Vec<FrameHandle> {
    let mut next = store.as_context_mut().debug_exit_frames().next();
    let mut frames = Vec::new();
    while let Some(frame) = next.take().filter(|_| frames.len() < most) {
        next = frame.parent(store.as_context_mut()).ok().flatten();
        frames.push(frame);
    }
    frames
}

fn pc_of(store: &mut StoreContextMut<'_, Guest>, frame: &FrameHandle) -> Option<StoppedFrame> {
    let (function, pc) = frame.wasm_function_index_and_pc(store.as_context_mut()).ok().flatten()?;
    Some(StoppedFrame { defined_function: function.as_u32(), pc: pc.raw() })
}

fn value(value: &Val) -> GlobalValue {
    let (kind, bits) = match value {
        Val::I32(value) => ("i32", format!("{value:x}")),
        Val::I64(value) => ("i64", format!("{value:x}")),
        Val::F32(bits) => ("f32", format!("{bits:x}")),
        Val::F64(bits) => ("f64", format!("{bits:x}")),
        Val::V128(value) => ("v128", format!("{:x}", value.as_u128())),
        _ => ("ref", String::new()),
    };
    GlobalValue { kind: kind.to_owned(), mutable: true, bits }
}

fn answer(store: &mut StoreContextMut<'_, Guest>, query: Query) -> Answer {
    match query {
        Query::Stack => {
            let frames = frames(store, FRAMES_MAX);
            Answer::Stack(frames.iter().filter_map(|frame| pc_of(store, frame)).collect())
        }
        Query::Values { frame } => {
            let frames = frames(store, FRAMES_MAX);
            let Some(frame) = frames.get(frame as usize) else { return Answer::Values(FrameValues::default()) };
            let most = |count: wasmtime::Result<u32>| count.unwrap_or(0).min(VALUES_MAX as u32);
            let (locals, operands) =
                (most(frame.num_locals(store.as_context_mut())), most(frame.num_stacks(store.as_context_mut())));
            let local = |index| frame.local(store.as_context_mut(), index).ok();
            let locals = (0..locals).filter_map(local).map(|found| value(&found)).collect();
            let operand = |index| frame.stack(store.as_context_mut(), index).ok();
            let operands = (0..operands).filter_map(operand).map(|found| value(&found)).collect();
            let mut globals = Vec::new();
            if let Ok(instance) = frame.instance(store.as_context_mut()) {
                while let Some(global) = instance
                    .debug_global(store.as_context_mut(), globals.len() as u32)
                    .filter(|_| globals.len() < VALUES_MAX)
                {
                    globals.push(value(&global.get(store.as_context_mut())));
                }
            }
            Answer::Values(FrameValues { locals, operands, globals })
        }
        Query::Memory { from, bytes } => {
            let memory = store.data().memory;
            let all = memory.as_ref().map_or(&[][..], |memory| memory.data(&*store));
            let from = usize::try_from(from).unwrap_or(usize::MAX).min(all.len());
            let end = all.len().min(from.saturating_add(bytes.min(MEMORY_BYTES_MAX) as usize));
            Answer::Memory(all[from..end].to_vec())
        }
    }
}

impl Handler {
    /// Whether a run stops here, and why.
    fn decides(&self, ends: Option<String>, pc: u32, depth: u32) -> Option<String> {
        let debugging = at(&self.debugging);
        if !debugging.is_attached {
            return None;
        }
        if ends.is_some() {
            return ends;
        }
        if debugging.pause {
            return Some("pause".to_owned());
        }
        match debugging.mode {
            Mode::Step { depth_max } if depth <= depth_max => Some("step".to_owned()),
            _ => debugging.actual.contains(&pc).then(|| "breakpoint".to_owned()),
        }
    }

    /// Lets others have their turn.
    async fn make_way(&self, left: u64) {
        makes_way(&self.desk, left);
        let mut made_way = false;
        poll_fn(|_| match std::mem::replace(&mut made_way, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    async fn event(&self, mut store: StoreContextMut<'_, Guest>, ends: Option<String>) {
        let (pc, depth) = {
            let frames = frames(&mut store, DEPTH_MAX);
            let innermost = frames.first().and_then(|frame| pc_of(&mut store, frame));
            (innermost.map_or(0, |frame| frame.pc), frames.len() as u32)
        };
        at(&self.debugging).looks_cost += LOOK_COST + u64::from(depth) * FRAME_COST;
        let Some(reason) = self.decides(ends, pc, depth) else {
            let makes_way = {
                let mut debugging = at(&self.debugging);
                debugging.ignored = (debugging.ignored + 1) % IGNORED_MAX;
                debugging.ignored == 0
            };
            if makes_way {
                self.make_way(store.get_fuel().unwrap_or(0)).await;
            }
            return apply(store, &self.debugging);
        };
        {
            let mut debugging = at(&self.debugging);
            debugging.count = debugging.count.wrapping_add(1);
            (debugging.pause, debugging.mode, debugging.goes_on) = (false, Mode::Run, false);
            debugging.stop = Some(Stop { reason, pc, depth, count: debugging.count });
        }
        makes_way(&self.desk, store.get_fuel().unwrap_or(0));
        loop {
            let next = poll_fn(|_| {
                let mut debugging = at(&self.debugging);
                if let Some(query) = debugging.query.take() {
                    return Poll::Ready(Some(query));
                }
                if debugging.goes_on { Poll::Ready(None) } else { Poll::Pending }
            });
            let Some(query) = next.await else { break };
            let answered = answer(&mut store, query);
            at(&self.debugging).answer = Some(answered);
        }
        {
            let mut debugging = at(&self.debugging);
            (debugging.stop, debugging.goes_on) = (None, false);
        }
        apply(store, &self.debugging);
    }
}

impl DebugHandler for Handler {
    type Data = Guest;

    fn handle(&self, store: StoreContextMut<'_, Guest>, event: DebugEvent<'_>) -> impl Future<Output = ()> + Send {
        let ends = match event {
            DebugEvent::Breakpoint => Some(None),
            DebugEvent::Trap(trap) => Some(Some(format!("it traps: {trap}"))),
            DebugEvent::HostcallError(error) => Some(Some(format!("it is ended: {}", error.root_cause()))),
            DebugEvent::Exception(_) | DebugEvent::EpochYield => None,
        };
        async move {
            if let Some(ends) = ends {
                self.event(store, ends).await;
            }
        }
    }
}
