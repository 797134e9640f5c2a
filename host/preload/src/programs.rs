//! Children, other programs, and the end of this one.
//!
//! What always holds: see [`crate::sharing`]. A child of `vfork` gets a copy of the memory, since what it does to its descriptors is not to
//! change what is known here of its parent's.

use crate::process::{enter, leave};
use crate::real;
use crate::sharing::{SPAWNED_WITH, Starting, after_fork, before_fork};
use libc::{c_char, c_int, c_long, c_ulong, c_void, pid_t};

/// # Safety
/// As for the C library's `fork`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: as above.
    unsafe { libc::fork() }
}

/// A fork of which the C library tells nobody: the child goes on through the kernel alone.
pub fn forking_alone<T: PartialEq + From<i8>>(real: impl FnOnce() -> T) -> T {
    before_fork();
    let done = real();
    if done == T::from(0) {
        leave();
    } else {
        after_fork();
    }
    done
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: as above.
    forking_alone(|| unsafe { real!(_Fork: () -> pid_t)() })
}

/// What a child made by `clone` runs.
pub type Main = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What a child made by `clone` begins with.
struct Beginning {
    main: Main,
    argument: *mut c_void,
}

/// # Safety
/// `beginning` is a [`Beginning`], in this process' memory.
unsafe extern "C" fn begin_child(beginning: *mut c_void) -> c_int {
    // SAFETY: as above; copied, since the parent frees its own.
    let Beginning { main, argument } = unsafe { std::ptr::read(beginning.cast::<Beginning>()) };
    leave();
    // SAFETY: as the caller of `clone` wants it.
    unsafe { main(argument) }
}

/// One that shares no descriptors with this process is a fork of which the C library tells nobody.
///
/// # Safety
/// As for the C library's; arguments that were not given are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    main: Main,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: c_long,
    storage: c_long,
    child: c_long,
) -> c_int {
    type Clone = unsafe extern "C" fn(Main, *mut c_void, c_int, *mut c_void, c_long, c_long, c_long) -> c_int;
    let real: Clone = real!(clone: (Main, *mut c_void, c_int, *mut c_void, c_long, c_long, c_long) -> c_int);
    if shares(flags as c_ulong, libc::CLONE_FILES) && !shares(flags as c_ulong, libc::CLONE_VM) {
        // As in [`cloning`].
        crate::identity::leave();
    }
    if flags & libc::CLONE_FILES != 0 || enter().is_none() {
        // SAFETY: the caller's arguments.
        return unsafe { real(main, stack, flags, argument, parent, storage, child) };
    }
    before_fork();
    let mut beginning = Beginning { main, argument };
    let done = if flags & libc::CLONE_VM == 0 {
        let beginning = std::ptr::from_mut(&mut beginning).cast();
        // SAFETY: the caller's arguments; the child has a copy of this frame.
        unsafe { real(begin_child, stack, flags, beginning, parent, storage, child) }
    } else {
        // The child's memory is this one's, and its descriptors are not: nothing here could be true of both.
        if let Some((_inside, process)) = enter() {
            process.turn_off();
        }
        leave();
        // SAFETY: the caller's arguments.
        unsafe { real(main, stack, flags, argument, parent, storage, child) }
    };
    after_fork();
    done
}

/// All is given back before another program takes this one's place: it finds what it inherits by itself.
pub fn executing<T>(real: impl FnOnce() -> T) -> T {
    let _starting = Starting::begin();
    real()
}

macro_rules! executes {
    ($($name:ident ($($argument:ident : $kind:ty),*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's arguments.
            executing(|| unsafe { real!($name: ($($kind),*) -> c_int)($($argument),*) })
        }
    )*};
}

type Strings = *const *const c_char;

executes! {
    execve(path: *const c_char, arguments: Strings, environment: Strings);
    execv(path: *const c_char, arguments: Strings);
    execvp(path: *const c_char, arguments: Strings);
    execvpe(path: *const c_char, arguments: Strings, environment: Strings);
    fexecve(descriptor: c_int, arguments: Strings, environment: Strings);
    execveat(folder: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int);
}

/// The calls whose arguments are a list: Rust has no functions with such arguments, so a few instructions put them in a row.
#[cfg(target_arch = "x86_64")]
mod lists {
    use super::{c_char, c_int, execv, execve, execvp};
    use std::arch::naked_asm;

    /// The strings up to a null pointer, that included, and what follows.
    ///
    /// # Safety
    /// `first` is five of the arguments, and `rest` is where the others are.
    unsafe fn list(first: *const *const c_char, rest: *const *const c_char) -> (Vec<*const c_char>, *const c_char) {
        // SAFETY: as above; nothing past the end of the list, and one more, is looked at.
        let at = |index: usize| unsafe { if index < 5 { *first.add(index) } else { *rest.add(index - 5) } };
        let mut all = Vec::new();
        loop {
            let next = at(all.len());
            all.push(next);
            if next.is_null() {
                // Only who knows that there is one more uses it; the caller's frame is there in any case.
                let more = at(all.len());
                return (all, more);
            }
        }
    }

    macro_rules! with_lists {
        ($($name:ident $inner:ident |$path:ident, $all:ident, $more:ident| $call:expr;)*) => {$(
            /// # Safety
            /// As for the C library's.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                naked_asm!(
                    "push r9", "push r8", "push rcx", "push rdx", "push rsi",
                    "mov rsi, rsp",
                    "lea rdx, [rsp + 48]",
                    "call {inner}",
                    "add rsp, 40",
                    "ret",
                    inner = sym $inner,
                )
            }

            unsafe extern "C" fn $inner(
                $path: *const c_char,
                first: *const *const c_char,
                rest: *const *const c_char,
            ) -> c_int {
                // SAFETY: they are as the instructions above left them.
                let ($all, $more) = unsafe { list(first, rest) };
                let _ = $more;
                // SAFETY: the caller's arguments.
                unsafe { $call }
            }
        )*};
    }

    with_lists! {
        execl execl_of |path, all, more| execv(path, all.as_ptr());
        execlp execlp_of |path, all, more| execvp(path, all.as_ptr());
        execle execle_of |path, all, more| execve(path, all.as_ptr(), more.cast());
    }
}

/// Starts a program in a child, which runs it when this returns.
fn spawning<T>(real: impl FnOnce() -> T) -> T {
    let starting = Starting::begin();
    let done = real();
    if let Some(starting) = &starting {
        starting.inherited();
    }
    done
}

macro_rules! spawns {
    ($($name:ident ($($argument:ident : $kind:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's arguments.
            spawning(|| unsafe { real!($name: ($($kind),*) -> $result)($($argument),*) })
        }
    )*};
}

type Opaque = *const c_void;

spawns! {
    posix_spawn(id: *mut pid_t, path: *const c_char, actions: Opaque, attributes: Opaque, all: Strings, of: Strings)
        -> c_int;
    posix_spawnp(id: *mut pid_t, path: *const c_char, actions: Opaque, attributes: Opaque, all: Strings, of: Strings)
        -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, kind: *const c_char) -> *mut c_void;
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int {
    SPAWNED_WITH.insert(from);
    // SAFETY: the caller's arguments.
    unsafe { real!(posix_spawn_file_actions_adddup2: (*mut c_void, c_int, c_int) -> c_int)(actions, from, to) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    crate::process::end();
    // SAFETY: ends the process.
    unsafe { real!(_exit: (c_int) -> !)(status) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as above.
    unsafe { _exit(status) }
}

/// A `clone` with these flags, by its number.
pub fn cloning(flags: c_ulong, real: impl FnOnce() -> c_long) -> c_long {
    if !shares(flags, libc::CLONE_FILES) {
        return forking_alone(real);
    }
    if !shares(flags, libc::CLONE_VM) {
        // What the child does to its descriptors it does to this process' too, and nothing here knows of it.
        crate::identity::leave();
    }
    real()
}

fn shares(flags: c_ulong, what: c_int) -> bool {
    flags & what as c_ulong != 0
}
