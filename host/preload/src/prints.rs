//! What the C library prints to a descriptor by itself, past its own `write`: `dprintf` and its like.
//!
//! What always holds: while it prints, the descriptor is what the program opened.

use crate::process::by_kernel;
use crate::real;
use libc::{c_char, c_int};

/// A `va_list`: where the next arguments are. Who prints moves it on, so each try has its own.
#[cfg(target_arch = "x86_64")]
type List = [u64; 3];
#[cfg(not(target_arch = "x86_64"))]
type List = [u64; 4];

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vdprintf(descriptor: c_int, format: *const c_char, list: *const List) -> c_int {
    let real = real!(vdprintf: (c_int, *const c_char, *mut List) -> c_int);
    let known = if crate::planted("print") { -1 } else { descriptor };
    // SAFETY: the caller's arguments.
    by_kernel(&[known], || unsafe { real(descriptor, format, &mut list.read()) })
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdprintf_chk(
    descriptor: c_int,
    check: c_int,
    format: *const c_char,
    list: *const List,
) -> c_int {
    let real = real!(__vdprintf_chk: (c_int, c_int, *const c_char, *mut List) -> c_int);
    // SAFETY: the caller's arguments.
    by_kernel(&[descriptor], || unsafe { real(descriptor, check, format, &mut list.read()) })
}

/// The calls whose arguments follow the format: Rust has no functions with such arguments, so a few instructions make a `va_list` of them.
#[cfg(target_arch = "x86_64")]
mod variadic {
    use super::{__vdprintf_chk, vdprintf};
    use libc::c_int;
    use std::arch::naked_asm;

    macro_rules! prints {
        ($($name:ident = $list:ident, $named:literal named, in $register:literal;)*) => {$(
            /// # Safety
            /// As for the C library's.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                // System V ABI for x86-64, 3.5.7: 24 bytes of `va_list` from rsp, and 176 for registers from rsp + 32.
                naked_asm!(
                    "sub rsp, 216",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    // How many vector registers the caller has used at most.
                    "test al, al",
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    concat!("mov dword ptr [rsp], 8 * ", $named),
                    "mov dword ptr [rsp + 4], 48",
                    "lea rax, [rsp + 224]",
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("mov ", $register, ", rsp"),
                    "call {list}",
                    "add rsp, 216",
                    "ret",
                    list = sym $list,
                )
            }
        )*};
    }

    prints! {
        dprintf = vdprintf, 2 named, in "rdx";
        __dprintf_chk = __vdprintf_chk, 3 named, in "rcx";
    }
}
