//! Profiles: what an app's instances do, seen from outside while they run as ever. An instance of a profiled app is wrapped, so that who samples
//! the processor knows whose code runs; nothing else of the device changes, and nothing is there when no app is profiled.
//!
//! What always holds: a device profiles one app at a time; what is wrapped is unwrapped when the profile ends, however that comes about. SPU-OS itself
//! reads no clock: samples of the processor come from a [`Sampler`] that whoever runs the device has handed it.

use super::activity::State;
use super::debug::{Answer, Query, SharedDebugging};
use super::group::Under;
use super::os::{Caller, Machine};
use super::{Instance, Offered, Resumed, Told, abi, autopsy::Autopsy};
use crate::request::AppNumber;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places of waits that one look goes through, of all SPUs; each SPU has its part, whatever the others have.
const WAITS_A_LOOK_MAX: usize = 4096;

/// The SPU whose instance of the profiled app runs on the sampled thread, counted from 1; 0: something else runs.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// For a [`Sampler`], at any moment: the SPU whose instance of the profiled app runs, if one does.
pub fn running() -> Option<u16> {
    match RUNNING.load(Ordering::Relaxed) {
        0 => None,
        spu => Some((spu - 1) as u16),
    }
}

/// Samples the processor while instances of the profiled app run. Whoever runs the device implements it.
pub trait Sampler: Send {
    /// From now on, where [`running`] says an SPU, it notes every `period_ns` of processor time of this thread which functions are on the stack:
    /// addresses within `code`, where compiled functions alone lie, which keep frame pointers.
    fn start(&mut self, code: Range<usize>, period_ns: u64) -> Result<(), String>;
    /// Hands out what was noted: the SPU, and addresses, the innermost first; none where SPU-OS was at work for the app.
    fn take(&mut self, each: &mut dyn FnMut(u16, &[usize]));
    /// Samples that found no room since it started.
    fn lost(&self) -> u64;
    /// Ends.
    fn stop(&mut self);
}

/// What a handler waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum For {
    Operations,
    Sleep,
    Request,
    Upcall,
    Thread,
}

impl For {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            For::Operations => "DMA or another operation",
            For::Sleep => "sleep",
            For::Request => "an RPC's answer",
            For::Upcall => "an upcall's answer",
            For::Thread => "a free thread",
        }
    }
}

/// Runs of an instance that began alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Runs {
    pub count: u64,
    pub instructions: u64,
}

/// An instance of the profiled app.
pub(crate) struct Watched {
    inner: Box<dyn Instance>,
    spu: u16,
    /// By the handler that a request began; what ends of waits and slices went on with is under [`CONTINUED`].
    pub runs: BTreeMap<u16, Runs>,
}

/// In [`Watched::runs`]: no request began it.
pub(crate) const CONTINUED: u16 = 256;

/// Something of the profiled app runs.
struct Run;

impl Run {
    fn of(spu: u16) -> Self {
        RUNNING.store(u32::from(spu) + 1, Ordering::Relaxed);
        Run
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        RUNNING.store(0, Ordering::Relaxed);
    }
}

impl Watched {
    fn ran(&mut self, kind: u16) {
        let runs = self.runs.entry(kind).or_default();
        runs.count += 1;
        runs.instructions += self.inner.instructions();
    }
}

impl Instance for Watched {
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        let offered = {
            let _run = Run::of(self.spu);
            self.inner.start(machine, token, handler)
        };
        // One that found no thread is offered again.
        if !matches!(offered, Ok(Offered::NoThread)) {
            self.ran(handler.into());
        }
        offered
    }

    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<Told, String> {
        let told = {
            let _run = Run::of(self.spu);
            self.inner.complete(machine, wait, result)
        };
        self.ran(CONTINUED);
        told
    }

    fn resume(&mut self, machine: &mut Machine) -> Result<Resumed, String> {
        let resumed = {
            let _run = Run::of(self.spu);
            self.inner.resume(machine)
        };
        self.ran(CONTINUED);
        resumed
    }

    fn bring(&mut self, pointer: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.inner.bring(pointer, bytes)
    }

    fn instructions(&self) -> u64 {
        self.inner.instructions()
    }

    fn is_metered(&self) -> bool {
        self.inner.is_metered()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn enter(&mut self, caller: Caller) {
        self.inner.enter(caller);
    }

    fn autopsy(&mut self) -> Option<Autopsy> {
        self.inner.autopsy()
    }

    fn peek(&mut self, from: u64, bytes: usize) -> Vec<u8> {
        self.inner.peek(from, bytes)
    }

    fn debugging(&self) -> Option<&SharedDebugging> {
        self.inner.debugging()
    }

    fn examine(&mut self, query: Query) -> Option<Answer> {
        self.inner.examine(query)
    }

    fn watched(&mut self) -> Option<&mut Watched> {
        Some(self)
    }

    fn unwatched(self: Box<Self>) -> Box<dyn Instance> {
        self.inner
    }
}

impl Machine {
    /// Wraps an app's instances.
    pub fn watch(&mut self, number: AppNumber) {
        for (spu, at) in self.spus.iter_mut().enumerate() {
            let resident = &mut at.residents[usize::from(number)];
            let Some(inner) = resident.instance.take() else { continue };
            let runs = BTreeMap::new();
            resident.instance = Some(Box::new(Watched { inner, spu: spu as u16, runs }));
        }
    }

    /// Takes the wrappers off again, where there are any.
    pub fn unwatch(&mut self, number: AppNumber) {
        for at in &mut self.spus {
            let resident = &mut at.residents[usize::from(number)];
            resident.instance = resident.instance.take().map(Instance::unwatched);
        }
    }

    /// True where all of an app's instances are wrapped.
    pub fn is_watched(&mut self, number: AppNumber) -> bool {
        self.spus.iter_mut().all(|at| {
            let instance = at.residents[usize::from(number)].instance.as_mut();
            instance.is_some_and(|instance| instance.watched().is_some())
        })
    }

    /// What an app's instances have run since this was asked last: SPU, handler or [`CONTINUED`], runs.
    pub fn take_runs(&mut self, number: AppNumber) -> Vec<(u16, u16, Runs)> {
        let mut all = Vec::new();
        for (spu, at) in self.spus.iter_mut().enumerate() {
            let instance = at.residents[usize::from(number)].instance.as_mut();
            let Some(watched) = instance.and_then(|instance| instance.watched()) else { continue };
            all.extend(std::mem::take(&mut watched.runs).into_iter().map(|(kind, runs)| (spu as u16, kind, runs)));
        }
        all
    }

    /// What an app's handlers wait for at this moment: `each` gets SPU, handler (0: none that is known) and reason. Of an SPU that has more places of waits than
    /// its part of a look, the look with the number `turn` goes through another part of them than the one before.
    pub fn look_at_waits(&self, number: AppNumber, turn: u64, mut each: impl FnMut(u16, u8, For)) -> Look {
        let most = (WAITS_A_LOOK_MAX / self.spus.len()).max(1);
        let mut look = Look::default();
        for (number_of_spu, at) in self.spus.iter().enumerate() {
            let spu = number_of_spu as u16;
            let handler = |token: Option<u32>| {
                token.and_then(|token| at.activities.get(token)).map_or(abi::EVENT_HANDLER, |activity| activity.handler)
            };
            let places = at.groups.places();
            let parts = places.div_ceil(most).max(1);
            let first = (turn % parts as u64) as usize * most;
            let mut left = most;
            for (_, group) in at.groups.iter_at(first..first + most) {
                if group.caller.app != number {
                    continue;
                }
                let reason = match group.under {
                    Under::Operations => For::Operations,
                    Under::Sleep { .. } => For::Sleep,
                    Under::Request { .. } => For::Request,
                    Under::Upcall { .. } => For::Upcall,
                };
                each(spu, handler(group.token), reason);
                left -= 1;
            }
            let waiting = &at.residents[usize::from(number)].waiting;
            for key in waiting.iter().take(left) {
                if at.activities.get(*key).is_some_and(|activity| activity.state != State::Served) {
                    each(spu, handler(Some(*key)), For::Thread);
                }
            }
            look.places += (places.min(most) + waiting.len().min(left)) as u64;
            look.left_out += (places.saturating_sub(most) + waiting.len().saturating_sub(left)) as u64;
        }
        look
    }
}

/// What a look at waits took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Places that it went through.
    pub places: u64,
    /// And those for which there was no time.
    pub left_out: u64,
}
