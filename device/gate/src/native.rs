//! Imports of native code: apps that run without a sandbox, in a device or in a unit test.
//!
//! Invariant: local addresses are pointers that the handler vouches for (the SDK's `Host` contract); they are used within the call, or, for a
//! pending operation, until its completion, and never after the instance is gone.

use crate::{LocalMemory, WildPointer};

/// The program's own memory, as far as the handler vouches for the range.
#[derive(Debug)]
pub struct NativeMemory(());

impl NativeMemory {
    /// The program's own memory.
    ///
    /// # Safety
    /// Ranges that are asked for exist until they are no longer used, and while one is to be written nobody else uses it.
    pub const unsafe fn new() -> Self {
        NativeMemory(())
    }
}

impl LocalMemory for NativeMemory {
    #[inline]
    fn slice(&self, pointer: u64, bytes: usize) -> Result<&[u8], WildPointer> {
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: whoever made this vouches for the range.
        Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(pointer as usize), bytes) })
    }

    #[inline]
    fn slice_mut(&mut self, pointer: u64, bytes: usize) -> Result<&mut [u8], WildPointer> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as above, and nobody else uses what is written to.
        Ok(unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(pointer as usize), bytes) })
    }
}

/// What an import returns where a sandboxed app would have been ended.
pub trait Faulted {
    /// It.
    fn faulted() -> Self;
}

impl Faulted for () {
    fn faulted() {}
}

impl Faulted for i32 {
    fn faulted() -> i32 {
        crate::abi::ERROR_ARGUMENT
    }
}

impl Faulted for i64 {
    fn faulted() -> i64 {
        crate::abi::ERROR_ARGUMENT.into()
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

/// The type of an import's parameter, or of its result: that of pointers is said before it.
#[macro_export]
macro_rules! parameter {
    ([$read:ty, $written:ty] read) => {
        $read
    };
    ([$read:ty, $written:ty] written) => {
        $written
    };
    ([$read:ty, $written:ty] address) => {
        u64
    };
    ([$read:ty, $written:ty] $scalar:ident) => {
        $scalar
    };
    ([$read:ty, $written:ty]) => {
        ()
    };
}

/// What a parameter is to [`crate::decode`]: pointers become addresses of 64 bits, by `$address`.
#[macro_export]
macro_rules! argument {
    ([$address:expr] read $value:ident) => {
        $address($value)
    };
    ([$address:expr] written $value:ident) => {
        $address($value)
    };
    ([$address:expr] $kind:ident $value:ident) => {
        $value
    };
}

/// The address of a native pointer, whose provenance is exposed.
#[inline(always)]
pub fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// The native shims of all imports: implements the SDK's trait `$host` for a type that has `fn lent(&mut self) -> (Caller, NativeMemory, &mut Os)` and
/// `fn faulted<R: Faulted>(&self, fault: Fault) -> R`. To be handed the table by [`crate::imports`].
#[macro_export]
macro_rules! native_imports {
    (impl $host:path, for $imports:ty;
    $(
        $(#[doc = $meaning:literal])*
        [$($safety:tt)?] fn $name:ident($($parameter:ident: $kind:ident),*) $(-> $result:ident)?;
        { $section:ident, since $since:literal, $who:ident, $when:ident, $work:ident, errors [$($error:ident),*] }
    )*) => {
        impl $host for $imports {
            $(
                #[inline]
                $($safety)? fn $name(
                    &mut self,
                    $($parameter: $crate::parameter!([*const u8, *mut u8] $kind)),*
                ) -> $crate::parameter!([*const u8, *mut u8] $($result)?) {
                    let done = {
                        let (caller, mut memory, os) = self.lent();
                        let call = $crate::Call { caller, memory: &mut memory, os };
                        call.$name($($crate::argument!([$crate::native::address] $kind $parameter)),*)
                    };
                    done.unwrap_or_else(|fault| self.faulted(fault))
                }
            )*
        }
    };
}
