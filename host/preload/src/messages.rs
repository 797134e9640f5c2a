//! Descriptors in messages (SCM_RIGHTS): who receives one has the same open file description.

use crate::process::{Process, enter};
use crate::real;
use libc::{c_int, c_uint, c_void, cmsghdr, mmsghdr, msghdr};

/// Calls `each` with the descriptors in a message.
///
/// # Safety
/// The caller's message, as it goes to the kernel or came from there.
unsafe fn rights(message: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: as above.
    let message = unsafe { &*message };
    if message.msg_control.is_null() || message.msg_controllen < size_of::<cmsghdr>() as _ {
        return;
    }
    // SAFETY: as above.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: within the message, by the macros.
        let header = unsafe { &*next };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let start = unsafe { libc::CMSG_DATA(next) }.cast::<c_int>();
            let bytes = (header.cmsg_len as usize).saturating_sub(start as usize - next as usize);
            for index in 0..bytes / size_of::<c_int>() {
                // SAFETY: as above.
                each(unsafe { start.add(index).read_unaligned() });
            }
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
}

/// The real files go, and stay with the kernel.
///
/// # Safety
/// As for [`rights`].
unsafe fn send(process: &Process, message: *const msghdr) {
    // SAFETY: as above.
    unsafe { rights(message, |descriptor| process.keep(descriptor)) };
}

/// # Safety
/// As for [`rights`].
unsafe fn receive(process: &Process, message: *const msghdr) {
    // SAFETY: as above.
    unsafe { rights(message, |descriptor| process.opened_shared(descriptor)) };
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    if let Some((_inside, process)) = enter().filter(|_| !message.is_null()) {
        // SAFETY: the caller's message.
        unsafe { send(process, message) };
    }
    // SAFETY: the caller's arguments.
    unsafe { real!(sendmsg: (c_int, *const msghdr, c_int) -> isize)(socket, message, flags) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(socket: c_int, all: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if let Some((_inside, process)) = enter().filter(|_| !all.is_null()) {
        for index in 0..count as usize {
            // SAFETY: the caller's messages.
            unsafe { send(process, &raw const (*all.add(index)).msg_hdr) };
        }
    }
    // SAFETY: the caller's arguments.
    unsafe { real!(sendmmsg: (c_int, *mut mmsghdr, c_uint, c_int) -> c_int)(socket, all, count, flags) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's arguments.
    let done = unsafe { real!(recvmsg: (c_int, *mut msghdr, c_int) -> isize)(socket, message, flags) };
    if done >= 0
        && let Some((_inside, process)) = enter()
    {
        // SAFETY: as the kernel left it.
        unsafe { receive(process, message) };
    }
    done
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    socket: c_int,
    all: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    let real = real!(recvmmsg: (c_int, *mut mmsghdr, c_uint, c_int, *mut c_void) -> c_int);
    // SAFETY: the caller's arguments.
    let done = unsafe { real(socket, all, count, flags, timeout) };
    if let Some((_inside, process)) = enter() {
        for index in 0..done.max(0) as usize {
            // SAFETY: as the kernel left them.
            unsafe { receive(process, &raw const (*all.add(index)).msg_hdr) };
        }
    }
    done
}
