//! Reading and writing, and making durable.
//!
//! What always holds:
//! - what has a position in its call goes without a system call where it goes directly; what moves the file's position reads and sets
//!   the kernel's;
//! - a call that is odd in any way (memory that is not there, an offset below zero, a flag, a limit) is the kernel's as it is: it says
//!   what comes of it, and sends what signal it sends.

use crate::memory;
use crate::process::{Tracked, by_kernel, files_by_kernel, is_replaced, tracked};
use crate::real;
use crate::real::{returned, set_errno};
use libc::{c_int, c_void, iovec, off_t};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::sync::PoisonError;
use willow_host::direct_io::DirectError;

/// Most elements of a vector.
const VECTOR_MAX: c_int = 1024;
/// Most bytes of a call; the kernel does less than was asked for then.
const BYTES_MAX: usize = 0x7fff_f000;
/// A buffer above this is looked at no further than the file goes.
const BUFFER_SURE_BYTES: usize = 1 << 20;

/// Why a call did not go directly.
enum Other {
    /// It is the kernel's.
    Kernel,
    Error(Errno),
}

impl std::convert::From<Errno> for Other {
    fn from(error: Errno) -> Self {
        Other::Error(error)
    }
}

type Moved = Result<isize, Other>;

fn moved(done: Result<usize, DirectError>) -> Moved {
    done.map(|count| count as isize).map_err(|error| Errno::from_raw_os_error(error.errno()).into())
}

fn offset_of(offset: off_t) -> Result<u64, Other> {
    u64::try_from(offset).map_err(|_| Other::Kernel)
}

/// A buffer that is filled, or (`writes` to the file) taken from.
///
/// # Safety
/// The caller's buffer.
unsafe fn buffer<'a>(start: *mut c_void, bytes: usize, writes: bool) -> Result<&'a mut [u8], Other> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    if bytes > BYTES_MAX || !memory::is_there(start, bytes, !writes) {
        return Err(Other::Kernel);
    }
    // SAFETY: as above, and it is there.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), bytes) })
}

/// # Safety
/// The caller's buffer.
unsafe fn into<'a>(file: &Tracked, start: *mut c_void, bytes: usize, at: Option<u64>) -> Result<&'a mut [u8], Other> {
    let mut bytes = bytes;
    if bytes > BUFFER_SURE_BYTES
        && bytes <= BYTES_MAX
        && let Ok(all) = file.file.bytes()
    {
        let left = all.saturating_sub(at.unwrap_or(0));
        bytes = bytes.min(usize::try_from(left).unwrap_or(usize::MAX).max(BUFFER_SURE_BYTES));
    }
    // SAFETY: as above.
    unsafe { buffer(start, bytes, false) }
}

/// # Safety
/// The caller's buffer.
unsafe fn from<'a>(start: *const c_void, bytes: usize) -> Result<&'a [u8], Other> {
    // SAFETY: as above; it is only read.
    unsafe { buffer(start.cast_mut(), bytes, true) }.map(|slice| &*slice)
}

/// # Safety
/// The caller's vector.
unsafe fn vector<'a>(start: *const iovec, count: c_int, writes: bool) -> Result<Vec<&'a mut [u8]>, Other> {
    if !(0..=VECTOR_MAX).contains(&count) {
        return Err(Other::Kernel);
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    if !memory::is_there(start.cast(), count as usize * size_of::<iovec>(), false) {
        return Err(Other::Kernel);
    }
    // SAFETY: as above, and it is there.
    let all = unsafe { std::slice::from_raw_parts(start, count as usize) };
    if all.iter().try_fold(0_usize, |sum, it| sum.checked_add(it.iov_len)).is_none_or(|sum| sum > BYTES_MAX) {
        return Err(Other::Kernel);
    }
    // SAFETY: as above.
    all.iter().map(|it| unsafe { buffer(it.iov_base, it.iov_len, writes) }).collect()
}

/// # Safety
/// The caller's vector.
unsafe fn vector_of<'a>(start: *const iovec, count: c_int) -> Result<Vec<&'a [u8]>, Other> {
    // SAFETY: as above.
    unsafe { vector(start, count, true) }.map(|all| all.into_iter().map(|it| &*it).collect())
}

/// True where a call would go past what an offset can say.
fn is_past_all(offset: u64, bytes: usize) -> bool {
    offset.checked_add(bytes as u64).is_none_or(|end| end > i64::MAX as u64)
}

fn read_all(file: &Tracked, buffers: &mut [&mut [u8]], offset: u64) -> Moved {
    if is_past_all(offset, buffers.iter().map(|buffer| buffer.len()).sum()) {
        return Err(Other::Kernel);
    }
    if let [buffer] = buffers {
        return moved(file.file.pread(buffer, offset));
    }
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    moved(file.file.preadv(&mut slices, offset))
}

fn write_all(file: &Tracked, buffers: &[&[u8]], offset: u64) -> Moved {
    let bytes = buffers.iter().map(|buffer| buffer.len()).sum();
    if is_past_all(offset, bytes) {
        return Err(Other::Kernel);
    }
    if !crate::limits::allow(offset, bytes) {
        if crate::planted("short") {
            let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
            return moved(file.file.pwritev(&slices, offset).map(|_| bytes));
        }
        return Err(Other::Kernel);
    }
    if let [buffer] = buffers {
        return moved(file.file.pwrite(buffer, offset));
    }
    let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
    moved(file.file.pwritev(&slices, offset))
}

/// Something at the file's position, which moves by what was done.
fn at_position(file: &Tracked, what: impl FnOnce(u64) -> Moved) -> Moved {
    let _alone = file.description.position.lock().unwrap_or_else(PoisonError::into_inner);
    // What has another file's number has no position.
    if file.file.is_forgotten() {
        return Err(Errno::BADF.into());
    }
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
        // Where the file ends is not known here: with a limit the kernel looks.
        let slices: Vec<_> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
        let appended = crate::limits::is_none().then(|| file.file.append(&slices)).flatten();
        return appended.map_or(Err(Other::Kernel), moved);
    }
    at_position(file, |at| write_all(file, buffers, at))
}

/// Does a call on an entry, or the real one.
fn on(descriptor: c_int, direct: impl Fn(&Tracked) -> Moved, mut real: impl FnMut() -> isize) -> isize {
    loop {
        let Some((inside, file)) = tracked(descriptor) else { return real() };
        // The kernel alone knows the position of a description that others have too, and when it was moved.
        if !file.description.is_kept() {
            match direct(&file) {
                Ok(count) => return count,
                // Another thread has put another file under the number: it is that one's.
                Err(Other::Error(Errno::BADF)) if file.file.is_forgotten() => continue,
                Err(Other::Error(error)) => return returned(Err(error)),
                Err(Other::Kernel) => {}
            }
        }
        let done = files_by_kernel(inside, &[&file], &mut real);
        if !is_replaced(&[&file], &done) {
            return done;
        }
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
    read(fd, to: Into, bytes: usize) = |file| read_here(file, &mut [into(file, to, bytes, None)?]);
    write(fd, of: From, bytes: usize) = |file| write_here(file, &[from(of, bytes)?]);
    pread(fd, to: Into, bytes: usize, at: off_t) = |file| read_at(file, to, bytes, at);
    pread64(fd, to: Into, bytes: usize, at: off_t) = |file| read_at(file, to, bytes, at);
    pwrite(fd, of: From, bytes: usize, at: off_t) = |file| write_all(file, &[from(of, bytes)?], offset_of(at)?);
    pwrite64(fd, of: From, bytes: usize, at: off_t) = |file| write_all(file, &[from(of, bytes)?], offset_of(at)?);
    readv(fd, all: Vector, count: c_int) = |file| read_here(file, &mut vector(all, count, false)?);
    writev(fd, all: Vector, count: c_int) = |file| write_here(file, &vector_of(all, count)?);
    preadv(fd, all: Vector, count: c_int, at: off_t) =
        |file| read_all(file, &mut vector(all, count, false)?, offset_of(at)?);
    preadv64(fd, all: Vector, count: c_int, at: off_t) =
        |file| read_all(file, &mut vector(all, count, false)?, offset_of(at)?);
    pwritev(fd, all: Vector, count: c_int, at: off_t) = |file| write_all(file, &vector_of(all, count)?, offset_of(at)?);
    pwritev64(fd, all: Vector, count: c_int, at: off_t) =
        |file| write_all(file, &vector_of(all, count)?, offset_of(at)?);
    preadv2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| read_with(file, all, count, at, flags);
    preadv64v2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| read_with(file, all, count, at, flags);
    pwritev2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| write_with(file, all, count, at, flags);
    pwritev64v2(fd, all: Vector, count: c_int, at: off_t, flags: c_int) = |file| write_with(file, all, count, at, flags);
    __read_chk(fd, to: Into, bytes: usize, room: usize) =
        |file| read_here(file, &mut [into(file, to, checked(bytes, room)?, None)?]);
    __pread_chk(fd, to: Into, bytes: usize, at: off_t, room: usize) =
        |file| read_at(file, to, checked(bytes, room)?, at);
    __pread64_chk(fd, to: Into, bytes: usize, at: off_t, room: usize) =
        |file| read_at(file, to, checked(bytes, room)?, at);
}

/// A buffer that is too small ends the program in the C library.
fn checked(bytes: usize, room: usize) -> Result<usize, Other> {
    if bytes > room { Err(Other::Kernel) } else { Ok(bytes) }
}

/// # Safety
/// The caller's buffer.
unsafe fn read_at(file: &Tracked, to: Into, bytes: usize, at: off_t) -> Moved {
    let offset = offset_of(at)?;
    // SAFETY: as above.
    read_all(file, &mut [unsafe { into(file, to, bytes, Some(offset)) }?], offset)
}

/// # Safety
/// The caller's vector.
unsafe fn read_with(file: &Tracked, all: Vector, count: c_int, at: off_t, flags: c_int) -> Moved {
    if flags & !libc::RWF_HIPRI != 0 {
        return Err(Other::Kernel);
    }
    // SAFETY: as above.
    let mut buffers = unsafe { vector(all, count, false) }?;
    if at == -1 { read_here(file, &mut buffers) } else { read_all(file, &mut buffers, offset_of(at)?) }
}

/// # Safety
/// The caller's vector.
unsafe fn write_with(file: &Tracked, all: Vector, count: c_int, at: off_t, flags: c_int) -> Moved {
    if flags & !(libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        return Err(Other::Kernel);
    }
    // SAFETY: as above.
    let buffers = unsafe { vector_of(all, count) }?;
    let done = if at == -1 { write_here(file, &buffers) } else { write_all(file, &buffers, offset_of(at)?) }?;
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        file.file.sync(true).map_err(|error| Errno::from_raw_os_error(error.errno()))?;
    }
    Ok(done)
}

macro_rules! seeks {
    ($($name:ident),*) => {$(
        /// Not amid a read or write that moves the position.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, offset: off_t, whence: c_int) -> off_t {
            // SAFETY: the caller's arguments.
            let real = || unsafe { real!($name: (c_int, off_t, c_int) -> off_t)(descriptor, offset, whence) };
            let found = tracked(descriptor);
            if found.as_ref().is_some_and(|(_inside, file)| file.file.is_appending()) {
                drop(found);
                return by_kernel(&[descriptor], real);
            }
            let position = found.as_ref().map(|(_inside, file)| &file.description.position);
            let _alone = position.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
            real()
        }
    )*};
}

seeks!(lseek, lseek64);

fn synced(descriptor: c_int, data: bool, real: impl FnOnce() -> c_int) -> c_int {
    while let Some((_inside, file)) = tracked(descriptor) {
        match file.file.sync(data) {
            Ok(()) => return 0,
            // As for `on`.
            Err(error) if error.errno() == libc::EBADF && file.file.is_forgotten() => {}
            Err(error) => {
                set_errno(error.errno());
                return -1;
            }
        }
    }
    real()
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
