//! Instances of users' apps that do not ask for long runs. Their runs are as those of any app, until they were seen to take the machine long
//! ([`crate::spu::pace`]): from then on they make way for others, as those of apps that ask for long runs do, with the budget that they had.
//!
//! What always holds: a run is cut, or not, from its beginning to its end; an instance whose runs are cut stays so.

use super::autopsy::Autopsy;
use super::limits::InstanceLimits;
use super::long::LongInstance;
use super::wasm::{Guest, WasmInstance};
use crate::spu::os::{Caller, Machine};
use crate::spu::{Instance, Offered, Resumed, Told};
use wasmtime::InstancePre;

/// An instance on one SPU.
pub(crate) struct PacedInstance {
    runs: Runs,
    caller: Caller,
}

/// How its runs go.
enum Runs {
    /// To their end.
    Whole(Box<WasmInstance>),
    /// In slices.
    Cut(Box<LongInstance>),
    /// It is about to be the other.
    Neither,
}

/// What is in a place whose instance was taken for a moment, inside of one function.
const NEVER: &str = "an instance runs in one of two ways";

impl PacedInstance {
    /// Makes an instance for an SPU and initialises it.
    pub fn new(
        pre: &InstancePre<Guest>,
        machine: &mut Machine,
        caller: Caller,
        limits: InstanceLimits,
    ) -> Result<Self, String> {
        let whole = WasmInstance::new(pre, machine, caller, limits)?;
        Ok(PacedInstance { runs: Runs::Whole(Box::new(whole)), caller })
    }

    fn instance(&self) -> &dyn Instance {
        match &self.runs {
            Runs::Whole(instance) => &**instance,
            Runs::Cut(instance) => &**instance,
            Runs::Neither => unreachable!("{NEVER}"),
        }
    }

    fn instance_mut(&mut self) -> &mut dyn Instance {
        match &mut self.runs {
            Runs::Whole(instance) => &mut **instance,
            Runs::Cut(instance) => &mut **instance,
            Runs::Neither => unreachable!("{NEVER}"),
        }
    }

    /// A run is about to begin: it goes as its app's do now.
    #[inline(always)]
    fn keeps_pace(&mut self, machine: &Machine) {
        let pace = machine.pace(self.caller.app);
        if pace.is_slow() {
            self.is_cut(pace.slice(machine.slice()));
        }
    }

    #[inline(never)]
    fn is_cut(&mut self, slice: u64) {
        self.runs = match std::mem::replace(&mut self.runs, Runs::Neither) {
            Runs::Whole(instance) => Runs::Cut(Box::new(LongInstance::cut(*instance, self.caller, slice))),
            Runs::Cut(mut instance) => {
                instance.set_slice(slice);
                Runs::Cut(instance)
            }
            Runs::Neither => unreachable!("{NEVER}"),
        };
    }

    /// A slice of a run that is cut.
    fn timed<R>(
        machine: &mut Machine,
        caller: Caller,
        instance: &mut LongInstance,
        go_on: impl FnOnce(&mut LongInstance, &mut Machine) -> R,
    ) -> R {
        let began_ns = machine.slice_begins();
        let went = go_on(instance, machine);
        machine.slice_ended(caller, instance.instructions(), began_ns);
        went
    }
}

impl Instance for PacedInstance {
    #[inline]
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        self.keeps_pace(machine);
        match &mut self.runs {
            Runs::Whole(instance) => {
                let offered = instance.start(machine, token, handler);
                machine.ran_whole(self.caller, instance.instructions());
                offered
            }
            Runs::Cut(instance) => {
                Self::timed(machine, self.caller, instance, |instance, machine| instance.start(machine, token, handler))
            }
            Runs::Neither => unreachable!("{NEVER}"),
        }
    }

    #[inline]
    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<Told, String> {
        self.keeps_pace(machine);
        match &mut self.runs {
            Runs::Whole(instance) => {
                let told = instance.complete(machine, wait, result);
                machine.ran_whole(self.caller, instance.instructions());
                told
            }
            Runs::Cut(instance) => Self::timed(machine, self.caller, instance, |instance, machine| {
                instance.complete(machine, wait, result)
            }),
            Runs::Neither => unreachable!("{NEVER}"),
        }
    }

    fn resume(&mut self, machine: &mut Machine) -> Result<Resumed, String> {
        match &mut self.runs {
            Runs::Cut(instance) => Self::timed(machine, self.caller, instance, LongInstance::resume),
            Runs::Whole(_) | Runs::Neither => unreachable!("only a run that is cut makes way"),
        }
    }

    fn bring(&mut self, pointer: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.instance_mut().bring(pointer, bytes)
    }

    fn instructions(&self) -> u64 {
        self.instance().instructions()
    }

    fn memory_bytes(&self) -> u64 {
        self.instance().memory_bytes()
    }

    fn memory(&self) -> Option<&[u8]> {
        self.instance().memory()
    }

    fn autopsy(&mut self) -> Option<Autopsy> {
        self.instance_mut().autopsy()
    }

    fn peek(&mut self, from: u64, bytes: usize) -> Vec<u8> {
        self.instance_mut().peek(from, bytes)
    }

    fn unwatched(self: Box<Self>) -> Box<dyn Instance> {
        self
    }

    fn enter(&mut self, caller: Caller) {
        self.caller = caller;
        self.instance_mut().enter(caller);
    }
}
