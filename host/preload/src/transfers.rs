//! Reading and writing, and making durable.
//!
//! What always holds: what has a position in its call goes without a system call where it goes directly; what moves the file's position
//! reads and sets the kernel's.

use crate::process::{Inside, Tracked, tracked};
use crate::real;
use crate::real::{returned, set_errno};
use libc::{c_int, c_void, iovec, off_t};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::PoisonError;
use willow_host::direct_io::DirectError;

/// Most elements of a vector.
const VECTOR_MAX: c_int = 1024;

type Moved = Result<isize, Errno>;

fn moved(done: Result<usize, DirectError>) -> Moved {
    done.map(|count| count as isize).map_err(|error| Errno::from_raw_os_error(error.errno()))
}

fn offset_of(offset: off_t) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

/// # Safety
/// The caller's buffer.
unsafe fn into<'a>(start: *mut c_void, bytes: usize) -> Result<&'a mut [u8], Errno> {
    match (start.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno::FAULT),
        // More than there can be is cut, as in the kernel.
        // SAFETY: as above.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), bytes.min(0x7fff_f000)) }),
    }
}

/// # Safety
/// The caller's buffer.
unsafe fn from<'a>(start: *const c_void, bytes: usize) -> Result<&'a [u8], Errno> {
    // SAFETY: as above; it is only read.
    unsafe { into(start.cast_mut(), bytes) }.map(|slice| &*slice)
}

/// # Safety
/// The caller's vector.
unsafe fn vector<'a>(start: *const iovec, count: c_int) -> Result<Vec<&'a mut [u8]>, Errno> {
    if !(0..=VECTOR_MAX).contains(&count) {
        return Err(Errno::INVAL);
    }
    // SAFETY: as above.
    let all = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, count as usize) } };
    // SAFETY: as above.
    all.iter().map(|it| unsafe { into(it.iov_base, it.iov_len) }).collect()
}

fn read_all(file: &Tracked, buffers: &mut [&mut [u8]], offset: u64) -> Moved {
    if let [buffer] = buffers {
        return moved(file.file.pread(buffer, offset));
    }
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    moved(file.file.preadv(&mut slices, offset))
}

fn write_all(file: &Tracked, buffers: &[&[u8]], offset: u64) -> Moved {
    if let [buffer] = buffers {
        return moved(file.file.pwrite(buffer, offset));
    }
    let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
    moved(file.file.pwritev(&slices, offset))
}

/// Something at the file's position, which moves by what was done.
fn at_position(file: &Tracked, what: impl FnOnce(u64) -> Moved) -> Moved {
    let _alone = file.position.lock().unwrap_or_else(PoisonError::into_inner);
    let descriptor = file.file.descriptor();
    let at = rustix::fs::tell(descriptor)?;
    let count = what(at)?;
    if count > 0 {
        rustix::fs::seek(descriptor, SeekFrom::Start(at + count as u64))?;
    }
    Ok(count)
}

fn read_here(file: &Tracked, buffers: &mut [&mut [u8]]) -> Moved {
    at_position(file, |at| read_all(file, buffers, at))
}

fn write_here(file: &Tracked, buffers: &[&[u8]]) -> Moved {
    if file.appends {
        // The kernel finds the end, and sets the position.
        let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
        return file.file.change(|descriptor| rustix::io::writev(descriptor, &slices)).map(|count| count as isize);
    }
    at_position(file, |at| write_all(file, buffers, at))
}

/// Does a call on an entry, or the real one.
fn on(descriptor: c_int, direct: impl FnOnce(&Tracked) -> Moved, real: impl FnOnce() -> isize) -> isize {
    let found: Option<(Inside, _)> = tracked(descriptor);
    match found {
        Some((_inside, file)) => returned(direct(&file)),
        None => real(),
    }
}

macro_rules! transfers {
    ($($name:ident ($first:ident $(, $argument:ident : $kind:ty)*) = |$file:ident| $direct:expr;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($first: c_int $(, $argument: $kind)*) -> isize {
            // SAFETY: the caller's arguments.
            let real = || unsafe { real!($name: (c_int $(, $kind)*) -> isize)($first $(, $argument)*) };
            // SAFETY: the caller's memory, for this call.
            on($first, |$file| unsafe { $direct }, real)
        }
    )*};
}

type Into = *mut c_void;
type From = *const c_void;
type Vector = *const iovec;

transfers! {
    read(fd, to: Into, bytes: usize) = |file| read_here(file, &mut [into(to, bytes)?]);
    write(fd, of: From, bytes: usize) = |file| write_here(file, &[from(of, bytes)?]);
    pread(fd, to: Into, bytes: usize, at: off_t) = |file| read_all(file, &mut [into(to, bytes)?], offset_of(at)?);
    pread64(fd, to: Into, bytes: usize, at: off_t) = |file| read_all(file, &mut [into(to, bytes)?], offset_of(at)?);
    pwrite(fd, of: From, bytes: usize, at: off_t) = |file| write_all(file, &[from(of, bytes)?], offset_of(at)?);
    pwrite64(fd, of: From, bytes: usize, at: off_t) = |file| write_all(file, &[from(of, bytes)?], offset_of(at)?);
    readv(fd, all: Vector, count: c_int) = |file| read_here(file, &mut vector(all, count)?);
    writev(fd, all: Vector, count: c_int) = |file| write_here(file, &shared(&vector(all, count)?));
    preadv(fd, all: Vector, count: c_int, at: off_t) = |file| read_all(file, &mut vector(all, count)?, offset_of(at)?);
    preadv64(fd, all: Vector, count: c_int, at: off_t) = |file| read_all(file, &mut vector(all, count)?, offset_of(at)?);
    pwritev(fd, all: Vector, count: c_int, at: off_t) =
        |file| write_all(file, &shared(&vector(all, count)?), offset_of(at)?);
    pwritev64(fd, all: Vector, count: c_int, at: off_t) =
        |file| write_all(file, &shared(&vector(all, count)?), offset_of(at)?);
    preadv2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| read_with(file, all, count, at, flags);
    preadv64v2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| read_with(file, all, count, at, flags);
    pwritev2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| write_with(file, all, count, at, flags);
    pwritev64v2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| write_with(file, all, count, at, flags);
    __read_chk(fd, to: Into, bytes: usize, room: usize) =
        |file| read_here(file, &mut [into(to, checked(bytes, room))?]);
    __pread_chk(fd, to: Into, bytes: usize, at: off_t, room: usize) =
        |file| read_all(file, &mut [into(to, checked(bytes, room))?], offset_of(at)?);
    __pread64_chk(fd, to: Into, bytes: usize, at: off_t, room: usize) =
        |file| read_all(file, &mut [into(to, checked(bytes, room))?], offset_of(at)?);
}

fn shared<'a>(buffers: &'a [&mut [u8]]) -> Vec<&'a [u8]> {
    buffers.iter().map(|buffer| &**buffer).collect()
}

/// A buffer that is too small ends the program, as the C library does.
fn checked(bytes: usize, room: usize) -> usize {
    if bytes > room {
        std::process::abort();
    }
    bytes
}

/// # Safety
/// The caller's vector.
unsafe fn read_with(file: &Tracked, all: Vector, count: c_int, at: off_t, _flags: c_int) -> Moved {
    // Flags of reads are about waiting, which there is little of.
    // SAFETY: as above.
    let mut buffers = unsafe { vector(all, count) }?;
    if at == -1 { read_here(file, &mut buffers) } else { read_all(file, &mut buffers, offset_of(at)?) }
}

/// # Safety
/// The caller's vector.
unsafe fn write_with(file: &Tracked, all: Vector, count: c_int, at: off_t, flags: c_int) -> Moved {
    if flags & libc::RWF_APPEND != 0 {
        let descriptor = file.file.descriptor().as_raw_fd();
        let real = real!(pwritev2: (c_int, Vector, c_int, off_t, c_int) -> isize);
        // SAFETY: the caller's vector.
        return file.file.change(|_| crate::real::result(unsafe { real(descriptor, all, count, at, flags) }));
    }
    // SAFETY: as above.
    let buffers = unsafe { vector(all, count) }?;
    let buffers = shared(&buffers);
    let done = if at == -1 { write_here(file, &buffers) } else { write_all(file, &buffers, offset_of(at)?) }?;
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        file.file.sync(true).map_err(|error| Errno::from_raw_os_error(error.errno()))?;
    }
    Ok(done)
}

fn synced(descriptor: c_int, data: bool, real: impl FnOnce() -> c_int) -> c_int {
    match tracked(descriptor) {
        Some((_inside, file)) => match file.file.sync(data) {
            Ok(()) => 0,
            Err(error) => {
                set_errno(error.errno());
                -1
            }
        },
        None => real(),
    }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(descriptor: c_int) -> c_int {
    // SAFETY: the caller's descriptor.
    synced(descriptor, false, || unsafe { real!(fsync: (c_int) -> c_int)(descriptor) })
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    // SAFETY: the caller's descriptor.
    synced(descriptor, true, || unsafe { real!(fdatasync: (c_int) -> c_int)(descriptor) })
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(descriptor: c_int, at: off_t, bytes: off_t, flags: libc::c_uint) -> c_int {
    let real = real!(sync_file_range: (c_int, off_t, off_t, libc::c_uint) -> c_int);
    // SAFETY: the caller's descriptor.
    synced(descriptor, true, || unsafe { real(descriptor, at, bytes, flags) })
}
