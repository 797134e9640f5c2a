//! Calls by which a program becomes somebody else (users, groups, capabilities), goes somewhere else (root, namespaces), or may do less from
//! then on (descriptors, sandboxes).
//!
//! What always holds:
//! - files are given back before such a call, while this process can still open them anew and the agent still knows it, and everything stays
//!   with the kernel from then on;
//! - in a sandbox, and where a thread has descriptors of its own, the library does nothing at all any more;
//! - a program that has opened no chosen file before is direct afterwards, as who it is then.

use crate::memory;
use crate::process::enter;
use crate::real;
use crate::real::{code, set_errno};
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, gid_t, pid_t, rlimit, uid_t};

/// What may not be in the namespaces that a thread enters: files, /proc, the agent's socket and the network by which the device is reached, and
/// the rights to them.
const MOVING: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET;

/// Has everything stay with the kernel, where anything is direct or may be.
pub fn stay() {
    if let Some((_inside, process)) = enter()
        && process.known_session().is_some()
        && !crate::planted("identity")
    {
        process.turn_off();
    }
}

/// Has every call pass through.
pub fn leave() {
    if let Some((_inside, process)) = enter()
        && !crate::planted("identity")
    {
        process.turn_off_and_leave();
    }
}

/// Does a call after which this process is another than the one that the agent knows.
pub fn changing<T>(real: impl FnOnce() -> T) -> T {
    stay();
    let done = real();
    // What another thread has begun meanwhile.
    let error = code();
    stay();
    set_errno(error);
    done
}

macro_rules! changes {
    ($($name:ident ($($argument:ident : $kind:ty),*);)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's arguments.
            changing(|| unsafe { real!($name: ($($kind),*) -> c_int)($($argument),*) })
        }
    )*};
}

changes! {
    setuid(user: uid_t);
    seteuid(user: uid_t);
    setreuid(user: uid_t, effective: uid_t);
    setresuid(user: uid_t, effective: uid_t, saved: uid_t);
    setfsuid(user: uid_t);
    setgid(group: gid_t);
    setegid(group: gid_t);
    setregid(group: gid_t, effective: gid_t);
    setresgid(group: gid_t, effective: gid_t, saved: gid_t);
    setfsgid(group: gid_t);
    setgroups(count: usize, groups: *const gid_t);
    initgroups(user: *const c_char, group: gid_t);
    capset(header: *mut c_void, data: *const c_void);
    chroot(path: *const c_char);
    pivot_root(new: *const c_char, old: *const c_char);
    setns(descriptor: c_int, kind: c_int);
}

/// As what `flags` say is unshared.
pub fn unsharing<T>(flags: c_int, real: impl FnOnce() -> T) -> T {
    if flags & libc::CLONE_FILES != 0 {
        leave();
    }
    if flags & MOVING != 0 { changing(real) } else { real() }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: the caller's argument.
    unsharing(flags, || unsafe { real!(unshare: (c_int) -> c_int)(flags) })
}

/// One of the many things that `prctl` does: what is allowed in a sandbox is not known here.
pub fn controlling<T>(option: c_int, real: impl FnOnce() -> T) -> T {
    if option == libc::PR_SET_SECCOMP {
        leave();
    }
    real()
}

/// # Safety
/// As for the C library's; arguments that were not given are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let real = real!(prctl: (c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int);
    // SAFETY: the caller's arguments.
    controlling(option, || unsafe { real(option, a, b, c, d) })
}

/// A limit is about to be set: with fewer descriptors than the library's own numbers need, files could not be given back.
///
/// # Safety
/// `limit` is the caller's, which may be null.
pub unsafe fn limiting(process: pid_t, resource: c_uint, limit: *const rlimit) {
    let is_this = process == 0 || process as u32 == std::process::id();
    if resource != libc::RLIMIT_NOFILE || !is_this || limit.is_null() {
        return;
    }
    if !memory::is_there(limit.cast_mut().cast(), size_of::<rlimit>(), false) {
        return;
    }
    // SAFETY: as above, and it is there.
    let wanted = unsafe { limit.read_unaligned() }.rlim_cur;
    let now = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if wanted < now && wanted < crate::process::DESCRIPTORS_MAX as u64 {
        stay();
    }
}

/// The calls above by their numbers, and those that only have one; `None`: another.
pub fn by_number(number: c_long, first: c_long, real: impl FnOnce() -> c_long) -> c_long {
    match number {
        libc::SYS_setuid
        | libc::SYS_setreuid
        | libc::SYS_setresuid
        | libc::SYS_setfsuid
        | libc::SYS_setgid
        | libc::SYS_setregid
        | libc::SYS_setresgid
        | libc::SYS_setfsgid
        | libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_setns
        | libc::SYS_landlock_restrict_self => changing(real),
        libc::SYS_unshare => unsharing(first as c_int, real),
        libc::SYS_prctl => controlling(first as c_int, real),
        libc::SYS_seccomp => {
            leave();
            real()
        }
        _ => real(),
    }
}
