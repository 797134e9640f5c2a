//! The runtime of trusted native apps: the same handlers without a sandbox, to measure what it costs. They come with the program;
//! nothing that a user installs ever runs here.
//!
//! Invariant: local addresses are pointers that the handler vouches for (the SDK's `Host` contract); SPU-OS uses them within the
//! call, or, for a pending DMA, until its completion, and never after the instance is gone.

use super::abi;
use super::calls::Call;
use super::table::imports;
use crate::spu::os::{Caller, LocalMemory, Machine, WildPointer};
use crate::spu::{Instance, Offered};
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

/// The program's own memory, as far as the handler vouches for the range.
struct NativeMemory;

impl LocalMemory for NativeMemory {
    #[inline]
    fn slice(&self, pointer: u64, bytes: usize) -> Result<&[u8], WildPointer> {
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: the caller of the import vouches for the range (contract of `Host`), and waits for us.
        Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(pointer as usize), bytes) })
    }

    #[inline]
    fn slice_mut(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], WildPointer> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as above, and nobody else uses what is written to (contract of `Host`).
        Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(pointer as usize), bytes) })
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
        machine.enter_unmetered();
        match self.instance.start(&mut Imports { machine, caller: self.caller }, token, handler.into()) {
            Ok(0) => Ok(Offered::Taken),
            Ok(_) => Ok(Offered::NoThread),
            Err(trap) => Err(trap.0),
        }
    }

    #[inline]
    fn complete(&mut self, machine: &mut Machine, wait: u32, result: i64) -> Result<(), String> {
        machine.enter_unmetered();
        self.instance.complete(&mut Imports { machine, caller: self.caller }, wait, result).map_err(|trap| trap.0)
    }

    fn local(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], String> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the handler vouches for the range until the DMA is completed (contract of `Host`), and waits for that.
        Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(pointer as usize), bytes) })
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

    fn enter(&mut self, caller: Caller) {
        self.caller = caller;
    }
}

/// What a native handler gets where a sandboxed one would be ended: its pointers cannot be wild, and nothing is past its budget.
trait Faulted {
    fn faulted() -> Self;
}

impl Faulted for () {
    fn faulted() {}
}

impl Faulted for i32 {
    fn faulted() -> i32 {
        abi::ERROR_ARGUMENT
    }
}

impl Faulted for i64 {
    fn faulted() -> i64 {
        abi::ERROR_ARGUMENT.into()
    }
}

impl Faulted for u32 {
    fn faulted() -> u32 {
        0
    }
}

impl Faulted for u64 {
    fn faulted() -> u64 {
        0
    }
}

/// A parameter's type in native code.
macro_rules! native {
    (u32) => {
        u32
    };
    (i32) => {
        i32
    };
    (u64) => {
        u64
    };
    (i64) => {
        i64
    };
    (read) => {
        *const u8
    };
    (written) => {
        *mut u8
    };
    (address) => {
        u64
    };
    () => {
        ()
    };
}

/// What a parameter is to SPU-OS: an address of 64 bits, whose provenance is exposed.
macro_rules! argument {
    (read, $value:ident) => {
        $value.expose_provenance() as u64
    };
    (written, $value:ident) => {
        $value.expose_provenance() as u64
    };
    ($kind:ident, $value:ident) => {
        $value
    };
}

/// The native shims of all imports.
macro_rules! shims {
    ($(
        $(#[doc = $meaning:literal])*
        [$($safety:tt)?] fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $result:ident)?;
        { $section:ident, since $since:literal, $who:ident, $when:ident, $work:ident, errors [$($error:ident),*] }
    )*) => {
        impl Host for Imports<'_> {
            $(
                #[inline]
                $($safety)? fn $name(&mut self, $($parameter: native!($kind)),*) -> native!($($result)?) {
                    let call = Call { caller: self.caller, memory: &mut NativeMemory, machine: &mut *self.machine };
                    call.$name($(argument!($kind, $parameter)),*).unwrap_or_else(|_| Faulted::faulted())
                }
            )*
        }
    };
}
imports!(shims);
