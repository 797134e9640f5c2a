//! System calls by number (`syscall`), and asynchronous ones: what they do to files cannot be followed, so the kernel does it, to files
//! that stay with it.
//!
//! What always holds: a call by number does what the function of that name does here.

use crate::process::{by_kernel, enter};
use crate::programs::{cloning, executing, forking_alone};
use crate::real;
use crate::{changes, descriptors, identity, limits, looks, messages, requests, transfers};
use libc::{aiocb, c_int, c_long, c_ulong, c_void};

/// Its arguments were passed as those of a function with a variable number of them, which are where named ones would be.
///
/// # Safety
/// As for the C library's; arguments that were not given are not looked at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let real = real!(syscall: (c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long);
    // SAFETY: the caller's arguments.
    let real = || unsafe { real(number, a, b, c, d, e, f) };
    let (first, second, third) = (a as c_int, b as usize, c as usize);
    // Offsets of vectors come in two halves, of which the first is all here.
    // SAFETY: the caller's arguments, for a call that takes the same.
    unsafe {
        match number {
            libc::SYS_read => transfers::read(first, second as _, third) as c_long,
            libc::SYS_write => transfers::write(first, second as _, third) as c_long,
            libc::SYS_pread64 => transfers::pread64(first, second as _, third, d) as c_long,
            libc::SYS_pwrite64 => transfers::pwrite64(first, second as _, third, d) as c_long,
            libc::SYS_readv => transfers::readv(first, second as _, c as c_int) as c_long,
            libc::SYS_writev => transfers::writev(first, second as _, c as c_int) as c_long,
            libc::SYS_preadv => transfers::preadv64(first, second as _, c as c_int, d) as c_long,
            libc::SYS_pwritev => transfers::pwritev64(first, second as _, c as c_int, d) as c_long,
            libc::SYS_preadv2 => transfers::preadv64v2(first, second as _, c as c_int, d, f as c_int) as c_long,
            libc::SYS_pwritev2 => transfers::pwritev64v2(first, second as _, c as c_int, d, f as c_int) as c_long,
            libc::SYS_fsync => c_long::from(transfers::fsync(first)),
            libc::SYS_sync_file_range => c_long::from(transfers::sync_file_range(first, b, c, d as libc::c_uint)),
            libc::SYS_fdatasync => c_long::from(transfers::fdatasync(first)),
            libc::SYS_lseek => transfers::lseek64(first, b, c as c_int),
            libc::SYS_close => c_long::from(descriptors::close(first)),
            libc::SYS_close_range => c_long::from(descriptors::close_range(a as u32, b as u32, c as c_int)),
            libc::SYS_dup => c_long::from(descriptors::dup(first)),
            libc::SYS_dup3 => c_long::from(descriptors::dup3(first, b as c_int, c as c_int)),
            libc::SYS_fcntl => c_long::from(descriptors::fcntl(first, b as c_int, c)),
            libc::SYS_flock => c_long::from(descriptors::flock(first, b as c_int)),
            libc::SYS_openat => c_long::from(descriptors::openat64(first, second as _, c as c_int, d as libc::mode_t)),
            libc::SYS_openat2 => c_long::from(descriptors::opening(first, second as _, || real() as c_int)),
            libc::SYS_ftruncate | libc::SYS_fallocate | libc::SYS_fchmod | libc::SYS_fchown => {
                by_kernel(&[first], real)
            }
            libc::SYS_fsetxattr | libc::SYS_fremovexattr => by_kernel(&[first], real),
            // The descriptor's own file, which the function has no way to name.
            libc::SYS_utimensat if b == 0 => by_kernel(&[first], real),
            libc::SYS_truncate
            | libc::SYS_unlinkat
            | libc::SYS_renameat2
            | libc::SYS_linkat
            | libc::SYS_fchmodat
            | libc::SYS_fchownat
            | libc::SYS_utimensat
            | libc::SYS_setxattr
            | libc::SYS_lsetxattr
            | libc::SYS_removexattr
            | libc::SYS_lremovexattr => c_long::from(by_path(number, (a, b, c, d, e))),
            libc::SYS_fstat => c_long::from(looks::fstat64(first, second as _)),
            libc::SYS_newfstatat => c_long::from(looks::fstatat64(first, second as _, c as _, d as c_int)),
            libc::SYS_statx => c_long::from(looks::statx(first, second as _, c as c_int, d as u32, e as _)),
            libc::SYS_fgetxattr => looks::fgetxattr(first, second as _, c as _, d as usize) as c_long,
            libc::SYS_flistxattr => looks::flistxattr(first, second as _, third) as c_long,
            libc::SYS_readahead => looks::readahead(first, b, third) as c_long,
            libc::SYS_syncfs => c_long::from(looks::syncfs(first)),
            // Of these the function has another way to tell errors, or another list of arguments.
            libc::SYS_fadvise64 => looks::by_descriptor(first, real),
            libc::SYS_epoll_ctl => looks::by_descriptor(c as c_int, real),
            libc::SYS_ppoll => looks::polling(a as _, b as _, real),
            libc::SYS_pselect6 => looks::selecting(first, [b as _, c as _, d as _], real),
            libc::SYS_faccessat => asked(first, b, true, real),
            libc::SYS_faccessat2 | libc::SYS_fchmodat2 => asked(first, b, changes::follows(d as c_int), real),
            libc::SYS_ioctl => c_long::from(requests::ioctl(first, b as c_ulong, c as c_ulong)),
            libc::SYS_sendfile => by_kernel(&[first, b as c_int], real),
            libc::SYS_splice | libc::SYS_copy_file_range => by_kernel(&[first, c as c_int], real),
            libc::SYS_mmap => changes::mmap64(second_as(a), second, c as c_int, d as c_int, e as c_int, f) as c_long,
            libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_pkey_mprotect | libc::SYS_mremap | libc::SYS_shmdt => {
                let done = real();
                crate::memory::forget();
                done
            }
            libc::SYS_sendmsg => messages::sendmsg(first, second as _, c as c_int) as c_long,
            libc::SYS_recvmsg => messages::recvmsg(first, second as _, c as c_int) as c_long,
            libc::SYS_sendmmsg => c_long::from(messages::sendmmsg(first, second as _, c as u32, d as c_int)),
            libc::SYS_recvmmsg => c_long::from(messages::recvmmsg(first, second as _, c as u32, d as c_int, e as _)),
            libc::SYS_prlimit64 => c_long::from(limits::prlimit64(first, b as u32, c as _, d as _)),
            libc::SYS_setrlimit => c_long::from(limits::setrlimit64(a as u32, b as _)),
            libc::SYS_execve | libc::SYS_execveat => executing(real),
            libc::SYS_exit_group => {
                crate::process::end();
                real()
            }
            libc::SYS_clone => cloning(a as c_ulong, real),
            libc::SYS_clone3 if a != 0 => cloning((a as *const c_ulong).read(), real),
            libc::SYS_io_submit => {
                keep_submitted(b, c as *mut *mut c_void);
                real()
            }
            libc::SYS_io_uring_setup => {
                keep_all();
                real()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => c_long::from(descriptors::open64(a as _, b as c_int, c as libc::mode_t)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => c_long::from(looks::stat64(a as _, second as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => c_long::from(looks::lstat64(a as _, second as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => looks::polling(a as _, b as _, real),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => looks::selecting(first, [b as _, c as _, d as _], real),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => c_long::from(descriptors::creat64(a as _, b as libc::mode_t)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => asked(libc::AT_FDCWD, a, true, real),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(descriptors::dup2(first, b as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink
            | libc::SYS_rename
            | libc::SYS_renameat
            | libc::SYS_link
            | libc::SYS_chmod
            | libc::SYS_chown
            | libc::SYS_lchown
            | libc::SYS_utime
            | libc::SYS_utimes
            | libc::SYS_futimesat => c_long::from(by_older_path(number, (a, b, c, d))),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => forking_alone(real),
            _ => identity::by_number(number, a, real),
        }
    }
}

/// A call on what has a path, by its number.
///
/// # Safety
/// The caller's path.
unsafe fn asked(folder: c_int, path: c_long, follows: bool, real: impl Fn() -> c_long) -> c_long {
    // SAFETY: as above.
    c_long::from(unsafe { changes::at_paths(&[(folder, path as _, follows)], || real() as c_int) })
}

/// A call that names files by their paths.
///
/// # Safety
/// The caller's arguments of such a call.
unsafe fn by_path(number: c_long, (a, b, c, d, e): (c_long, c_long, c_long, c_long, c_long)) -> c_int {
    let first = a as c_int;
    // SAFETY: as above.
    unsafe {
        match number {
            libc::SYS_truncate => changes::truncate64(a as _, b),
            libc::SYS_unlinkat => changes::unlinkat(first, b as _, c as c_int),
            libc::SYS_renameat2 => changes::renameat2(first, b as _, c as c_int, d as _, e as u32),
            libc::SYS_linkat => changes::linkat(first, b as _, c as c_int, d as _, e as c_int),
            // The kernel's has no flags.
            libc::SYS_fchmodat => changes::fchmodat(first, b as _, c as libc::mode_t, 0),
            libc::SYS_fchownat => changes::fchownat(first, b as _, c as u32, d as u32, e as c_int),
            libc::SYS_utimensat => changes::utimensat(first, b as _, c as _, d as c_int),
            libc::SYS_setxattr => changes::setxattr(a as _, b as _, c as _, d as usize, e as c_int),
            libc::SYS_lsetxattr => changes::lsetxattr(a as _, b as _, c as _, d as usize, e as c_int),
            libc::SYS_removexattr => changes::removexattr(a as _, b as _),
            _ => changes::lremovexattr(a as _, b as _),
        }
    }
}

/// The same of those that newer machines do not have.
///
/// # Safety
/// The caller's arguments of such a call.
#[cfg(target_arch = "x86_64")]
unsafe fn by_older_path(number: c_long, (a, b, c, d): (c_long, c_long, c_long, c_long)) -> c_int {
    // SAFETY: as above.
    unsafe {
        match number {
            libc::SYS_unlink => changes::unlink(a as _),
            libc::SYS_rename => changes::rename(a as _, b as _),
            libc::SYS_renameat => changes::renameat(a as c_int, b as _, c as c_int, d as _),
            libc::SYS_link => changes::link(a as _, b as _),
            libc::SYS_chmod => changes::chmod(a as _, b as libc::mode_t),
            libc::SYS_chown => changes::chown(a as _, b as u32, c as u32),
            libc::SYS_lchown => changes::lchown(a as _, b as u32, c as u32),
            libc::SYS_utime => changes::utime(a as _, b as _),
            libc::SYS_utimes => changes::utimes(a as _, b as _),
            _ => changes::futimesat(a as c_int, b as _, c as _),
        }
    }
}

fn second_as(address: c_long) -> *mut c_void {
    address as *mut c_void
}

/// A ring of its own lets a process read and write past everything.
fn keep_all() {
    if let Some((_inside, process)) = enter() {
        process.turn_off();
    }
}

macro_rules! rings {
    ($($name:ident ($($argument:ident),*);)*) => {$(
        /// # Safety
        /// As for liburing's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: c_long),*) -> c_int {
            keep_all();
            // SAFETY: the caller's arguments, each of which fills a register.
            unsafe { real!($name: ($(rings!(@ $argument)),*) -> c_int)($($argument),*) }
        }
    )*};
    (@ $argument:ident) => { c_long };
}

rings! {
    io_uring_queue_init(entries, ring, flags);
    io_uring_queue_init_params(entries, ring, parameters);
    io_uring_queue_init_mem(entries, ring, parameters, memory, bytes);
    io_uring_setup(entries, parameters);
}

/// Where the descriptor is in the kernel's `struct iocb`.
const IOCB_DESCRIPTOR: usize = 20;

/// # Safety
/// The caller's list of `struct iocb`.
unsafe fn keep_submitted(count: c_long, all: *mut *mut c_void) {
    let Some((_inside, process)) = enter().filter(|_| !all.is_null()) else { return };
    for index in 0..count.max(0) as usize {
        // SAFETY: as above.
        let one = unsafe { *all.add(index) };
        if !one.is_null() {
            // SAFETY: as above.
            process.keep(unsafe { one.byte_add(IOCB_DESCRIPTOR).cast::<c_int>().read_unaligned() });
        }
    }
}

/// # Safety
/// As for libaio's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_submit(context: *mut c_void, count: c_long, all: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        keep_submitted(count, all);
        real!(io_submit: (*mut c_void, c_long, *mut *mut c_void) -> c_int)(context, count, all)
    }
}

/// # Safety
/// The caller's, or null.
unsafe fn keep_queued(one: *const aiocb) {
    if !one.is_null() {
        // SAFETY: as above.
        descriptors::keep(unsafe { (*one).aio_fildes });
    }
}

macro_rules! queues {
    ($($name:ident ($($first:ident : $kind:ty,)* | $one:ident);)*) => {$(
        /// A thread of the C library does it.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($first: $kind,)* $one: *mut aiocb) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe {
                keep_queued($one);
                real!($name: ($($kind,)* *mut aiocb) -> c_int)($($first,)* $one)
            }
        }
    )*};
}

queues! {
    aio_read(| one);
    aio_read64(| one);
    aio_write(| one);
    aio_write64(| one);
    aio_fsync(kind: c_int, | one);
    aio_fsync64(kind: c_int, | one);
}

macro_rules! lists {
    ($($name:ident),*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(mode: c_int, all: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int {
            for index in 0..count.max(0) as usize {
                // SAFETY: the caller's list.
                unsafe { keep_queued(*all.add(index)) };
            }
            // SAFETY: the caller's arguments.
            unsafe {
                real!($name: (c_int, *const *mut aiocb, c_int, *mut c_void) -> c_int)(mode, all, count, event)
            }
        }
    )*};
}

lists!(lio_listio, lio_listio64);
