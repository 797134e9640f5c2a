//! The runtime of trusted native apps: the same handlers without a sandbox, to measure what it costs. They come with the program;
//! nothing that a user installs ever runs here.
//!
//! Invariant: local addresses are pointers that the handler vouches for (the SDK's `Host` contract); SPU-OS uses them within the
//! call, or, for a pending DMA, until its completion, and never after the instance is gone.

use crate::spu::os::{Caller, Machine};
use crate::spu::{Instance, Offered, Told};
use willow_gate::native::{Faulted, NativeMemory};
use willow_gate::{Fault, LocalMemory};
use willow_sdk::native::{BoxedInstance, Host, NativeApp};

/// A native app's instance on one SPU.
pub(crate) struct NativeInstance {
    instance: BoxedInstance,
    caller: Caller,
}

/// What a call into the app reaches.
struct Imports<'a> {
    machine: &'a mut Machine,
    caller: Caller,
}

impl<'a> Imports<'a> {
    #[inline(always)]
    fn new(machine: &'a mut Machine, caller: Caller) -> Self {
        machine.enter_unmetered(caller);
        Imports { machine, caller }
    }

    #[inline(always)]
    fn lent(&mut self) -> (Caller, NativeMemory, &mut Machine) {
        // SAFETY: handlers vouch for what they name, and wait until it is used no longer (contract of `Host`).
        (self.caller, unsafe { NativeMemory::new() }, self.machine)
    }

    /// Its pointers cannot be wild, and nothing is past its budget.
    #[cold]
    fn faulted<R: Faulted>(&self, _: Fault) -> R {
        R::faulted()
    }
}

impl NativeInstance {
    pub fn new(app: &'static dyn NativeApp, caller: Caller) -> Self {
        NativeInstance { instance: app.instantiate(), caller }
    }
}

impl Instance for NativeInstance {
    #[inline]
    fn start(&mut self, machine: &mut Machine, token: u32, handler: u8) -> Result<Offered, String> {
        match self.instance.start(&mut Imports::new(machine, self.caller), token, handler.into()) {
            Ok(0) => Ok(Offered::Taken),
            Ok(_) => Ok(Offered::NoThread),
            Err(trap) => Err(trap.0),
        }
    }

    #[inline]
    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<Told, String> {
        let ran = self.instance.complete(&mut Imports::new(machine, self.caller), wait, result);
        ran.map(|()| Told::Done).map_err(|trap| trap.0)
    }

    fn bring(&mut self, pointer: u64, bytes: Vec<u8>) -> Result<(), String> {
        // SAFETY: the handler vouches for the range until the DMA is completed (contract of `Host`), and waits for that.
        if let Ok(local) = unsafe { NativeMemory::new() }.slice_mut(pointer, bytes.len()) {
            local.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn instructions(&self) -> u64 {
        0
    }

    fn is_metered(&self) -> bool {
        false
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn unwatched(self: Box<Self>) -> Box<dyn Instance> {
        self
    }

    fn enter(&mut self, caller: Caller) {
        self.caller = caller;
    }
}

macro_rules! shims {
    ($($table:tt)*) => {
        willow_gate::native_imports! { impl Host, for Imports<'_>; $($table)* }
    };
}
willow_gate::imports!(shims);
