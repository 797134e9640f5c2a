//! Calls of one thread of one process.

use crate::spelled;
use crate::world::{FILE_BYTES, SLOTS, World};
use libc::{c_int, c_void, iovec};

pub fn open(world: &mut World) {
    let kinds = [
        libc::O_RDWR,
        libc::O_RDWR,
        libc::O_RDWR,
        libc::O_RDONLY,
        libc::O_WRONLY,
        libc::O_RDWR | libc::O_CREAT,
        libc::O_WRONLY | libc::O_APPEND,
        libc::O_RDWR | libc::O_APPEND | libc::O_CREAT,
        libc::O_RDWR | libc::O_DSYNC,
        libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
        libc::O_RDWR | libc::O_CLOEXEC,
        libc::O_PATH,
        libc::O_RDWR | libc::O_TRUNC,
        libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
    ];
    let (slot, name) = (world.slot(), world.name());
    let kind = kinds[world.below(kinds.len() as u64) as usize];
    match world.below(8) {
        0 => {
            // By the name that a descriptor has.
            let other = world.descriptor();
            let path = std::ffi::CString::new(format!("/proc/self/fd/{other}")).expect("a path");
            // SAFETY: a string.
            let opened = unsafe { spelled::open(world, &path, kind & !libc::O_EXCL & !libc::O_CREAT) };
            world.replace(slot);
            world.slots[slot] = opened;
            world.say(&format!("open {slot} by descriptor {kind:o}"), i64::from(opened.min(0)));
        }
        _ => world.open(slot, &name, kind),
    }
}

pub fn close(world: &mut World) {
    let slot = world.slot();
    let descriptor = world.slots[slot];
    // SAFETY: its own, or none.
    let closed = unsafe {
        if world.chance(3) && descriptor >= 0 {
            libc::close_range(descriptor as u32, descriptor as u32, 0)
        } else {
            spelled::close(world, descriptor)
        }
    };
    world.slots[slot] = -1;
    world.say(&format!("close {slot}"), i64::from(closed));
    if slot < 2 {
        world.open(slot, ["f0", "f1"][slot], libc::O_RDWR);
    }
}

pub fn duplicate(world: &mut World) {
    let (from, to) = (world.descriptor(), 2 + world.below(SLOTS as u64 - 2) as usize);
    let way = world.below(5);
    let old = world.slots[to];
    // SAFETY: numbers.
    let made = unsafe {
        match way {
            0 if old >= 0 => spelled::dup2(world, from, old),
            1 if old >= 0 && old != from => libc::dup3(from, old, libc::O_CLOEXEC),
            2 => spelled::fcntl(world, from, libc::F_DUPFD, 100),
            3 => spelled::fcntl(world, from, libc::F_DUPFD_CLOEXEC, 100),
            _ => libc::dup(from),
        }
    };
    let replaced = made >= 0 && made == old;
    if !replaced && made >= 0 {
        world.replace(to);
    }
    if made >= 0 {
        world.slots[to] = made;
    }
    world.say(&format!("duplicate to {to} in way {way}"), i64::from(made.min(0)));
    world.say_position(made);
}

/// Parts of a buffer.
pub fn parts(world: &mut World, buffer: &mut [u8]) -> Vec<iovec> {
    let count = 1 + world.below(4) as usize;
    let mut rest = buffer;
    let mut all = Vec::new();
    for index in 0..count {
        let here = if index + 1 == count { rest.len() } else { world.below(rest.len() as u64 + 1) as usize };
        let (first, second) = rest.split_at_mut(here);
        all.push(iovec { iov_base: first.as_mut_ptr().cast(), iov_len: first.len() });
        rest = second;
    }
    all
}

/// Reads and writes that move the position.
pub fn moves(world: &mut World) {
    let descriptor = world.descriptor();
    for _ in 0..=world.below(6) {
        transfer(world, descriptor);
    }
    world.say_position(descriptor);
}

pub fn transfer(world: &mut World, descriptor: c_int) {
    let bytes = world.bytes();
    let (mut buffer, way) = (world.data(bytes), world.below(4));
    let all = parts(world, &mut buffer);
    // SAFETY: buffers of these sizes.
    let done = unsafe {
        match way {
            0 => spelled::read(world, descriptor, buffer.as_mut_ptr().cast(), bytes),
            1 => spelled::write(world, descriptor, buffer.as_ptr().cast(), bytes),
            2 => libc::readv(descriptor, all.as_ptr(), all.len() as c_int),
            _ => libc::writev(descriptor, all.as_ptr(), all.len() as c_int),
        }
    };
    world.say_read(&format!("transfer {way} {bytes}"), done as i64, &buffer);
}

pub fn at_offsets(world: &mut World) {
    let descriptor = world.descriptor();
    for _ in 0..=world.below(10) {
        let (bytes, offset, way) = (world.bytes(), world.offset(), world.below(6));
        let mut buffer = world.data(bytes);
        let all = parts(world, &mut buffer);
        let count = all.len() as c_int;
        // SAFETY: buffers of these sizes.
        let done = unsafe {
            match way {
                0 | 1 => spelled::pread(world, descriptor, buffer.as_mut_ptr().cast(), bytes, offset),
                2 | 3 => spelled::pwrite(world, descriptor, buffer.as_ptr().cast(), bytes, offset),
                4 => spelled::preadv(world, descriptor, all.as_ptr(), count, offset),
                _ => spelled::pwritev(world, descriptor, all.as_ptr(), count, offset),
            }
        };
        world.say_read(&format!("at {offset} way {way} {bytes}"), done as i64, &buffer);
    }
    world.say_position(descriptor);
}

pub fn flagged(world: &mut World) {
    let (descriptor, bytes) = (world.descriptor(), world.bytes());
    let offset = if world.chance(3) { -1 } else { world.offset() };
    let mut buffer = world.data(bytes);
    let all = parts(world, &mut buffer);
    let (count, writes) = (all.len() as c_int, world.chance(2));
    let flags = match world.below(6) {
        0 => 0,
        1 => libc::RWF_HIPRI,
        2 if writes => libc::RWF_APPEND,
        3 if writes => libc::RWF_SYNC,
        4 => 0x4000_0000,
        _ if writes => libc::RWF_DSYNC,
        _ => 0,
    };
    // SAFETY: buffers of these sizes.
    let done = unsafe {
        if writes {
            spelled::pwritev2(world, descriptor, all.as_ptr(), count, offset, flags)
        } else {
            spelled::preadv2(world, descriptor, all.as_ptr(), count, offset, flags)
        }
    };
    world.say_read(&format!("flagged {flags:x} {writes} {offset} {bytes}"), done as i64, &buffer);
    world.say_position(descriptor);
}

pub fn seek(world: &mut World) {
    let (descriptor, whence) = (world.descriptor(), world.below(4) as c_int);
    let offset = match whence {
        libc::SEEK_SET => world.offset(),
        _ => world.offset() - FILE_BYTES as i64 / 2,
    };
    // SAFETY: numbers. 3 and what follows tell what the file system knows of holes, which depends on what is cached.
    let done = unsafe { spelled::lseek(world, descriptor, offset, if whence == 3 { 77 } else { whence }) };
    world.say(&format!("seek {offset} {whence}"), done);
}

pub fn lengths(world: &mut World) {
    let (descriptor, name) = (world.descriptor(), world.name());
    let (bytes, offset, more) = (FILE_BYTES as i64 - world.below(40_000) as i64, world.offset(), world.bytes() as i64);
    let path = world.path(&name);
    let way = world.below(8);
    // SAFETY: numbers and a string.
    let done = unsafe {
        match way {
            0 => spelled::ftruncate(world, descriptor, bytes),
            1 => spelled::truncate(world, path.as_ptr(), bytes),
            2 => spelled::fallocate(world, descriptor, 0, offset, more),
            3 => spelled::fallocate(
                world,
                descriptor,
                libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
                offset,
                more,
            ),
            4 => spelled::fallocate(world, descriptor, libc::FALLOC_FL_ZERO_RANGE, offset, more),
            5 => spelled::posix_fallocate(world, descriptor, offset, more),
            6 => spelled::fallocate(world, descriptor, libc::FALLOC_FL_KEEP_SIZE, bytes, more),
            _ => spelled::ftruncate(world, descriptor, FILE_BYTES as i64),
        }
    };
    world.say(&format!("lengths {way} {bytes} {offset} {more}"), i64::from(done));
    world.say("size", world.size(descriptor));
}

pub fn durable(world: &mut World) {
    let (descriptor, way) = (world.descriptor(), world.below(5));
    // SAFETY: numbers.
    let done = unsafe {
        match way {
            0 => libc::fsync(descriptor),
            1 => libc::fdatasync(descriptor),
            2 => libc::sync_file_range(descriptor, 0, 8192, libc::SYNC_FILE_RANGE_WRITE),
            3 => libc::posix_fadvise(descriptor, 0, 0, libc::POSIX_FADV_WILLNEED),
            _ => libc::readahead(descriptor, 0, 65536) as c_int,
        }
    };
    world.say(&format!("durable {way}"), i64::from(done));
}

pub fn flags(world: &mut World) {
    let descriptor = world.descriptor();
    // SAFETY: numbers.
    unsafe {
        let appends = if world.chance(2) { libc::O_APPEND } else { 0 };
        let done = spelled::fcntl(world, descriptor, libc::F_SETFL, appends.into());
        world.say(&format!("flags {appends:o}"), i64::from(done));
        transfer(world, descriptor);
        world.say_position(descriptor);
        let flags = spelled::fcntl(world, descriptor, libc::F_GETFL, 0);
        world.say("flags are", i64::from(flags));
        // Mostly not for long.
        if !world.chance(4) {
            spelled::fcntl(world, descriptor, libc::F_SETFL, 0);
        }
    }
}

/// What no program ought to say.
pub fn odd(world: &mut World) {
    let (descriptor, way, offset) = (world.descriptor(), world.below(14), world.offset());
    // SAFETY: the kernel is asked for what is not there.
    unsafe {
        let pages = libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        std::slice::from_raw_parts_mut(pages.cast::<u8>(), 8192).fill(way as u8);
        let (whole, edge) = (pages, pages.byte_add(4096 - 100));
        let denied = if world.chance(2) { libc::PROT_NONE } else { libc::PROT_READ };
        libc::mprotect(pages.byte_add(4096), 4096, denied);
        let part = iovec { iov_base: whole, iov_len: usize::MAX / 2 };
        let done = match way {
            0 => libc::pwrite(descriptor, edge, 200, offset),
            1 => libc::pread(descriptor, edge, 200, offset),
            2 => libc::write(descriptor, edge, 200),
            3 => libc::read(descriptor, edge, 200),
            4 => libc::pwrite(descriptor, std::ptr::null(), 10, offset),
            5 => libc::pread(descriptor, std::ptr::null_mut(), 10, -1 - offset),
            6 => libc::pwrite(descriptor, whole, 0, offset),
            7 => libc::pread(descriptor, whole, 0, 1 << 50),
            8 => libc::pwrite(descriptor, whole, 10, i64::MAX - 5),
            9 => libc::pwrite(descriptor, whole, 10, 1 << 60),
            10 => libc::read(descriptor, whole, usize::MAX / 2 + 100),
            11 => libc::preadv(descriptor, &raw const part, 2000, offset),
            12 => libc::pwritev(descriptor, &raw const part, -1, offset),
            _ => libc::writev(descriptor, [part, part, part].as_ptr(), 3),
        };
        let held = std::slice::from_raw_parts(pages.cast::<u8>(), 4096);
        world.say_read(&format!("odd {way} {offset} {denied}"), done as i64, held);
        world.say_position(descriptor);
        libc::munmap(pages, 8192);
    }
}

/// Writes near a limit of the process.
pub fn limited(world: &mut World) {
    let descriptor = world.descriptor();
    let limit = world.offset() as u64;
    let set = |world: &mut World, bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the process' own.
        unsafe { spelled::setrlimit(world, libc::RLIMIT_FSIZE, &raw const limit) }
    };
    let done = set(world, limit);
    world.say(&format!("limit {limit}"), i64::from(done));
    for _ in 0..3 {
        let bytes = world.bytes();
        let buffer = world.data(bytes);
        let at = (limit as i64 - world.below(10_000) as i64 + 2_000).max(0);
        let (other, way, mut into, mut from) = (world.slots[1], world.below(6), at, 0);
        // SAFETY: a buffer of that size, and offsets that are there.
        let done = unsafe {
            match way {
                0 | 1 => {
                    spelled::lseek(world, descriptor, at, libc::SEEK_SET);
                    spelled::write(world, descriptor, buffer.as_ptr().cast(), bytes)
                }
                2 => libc::copy_file_range(other, &raw mut from, descriptor, &raw mut into, bytes, 0),
                3 => {
                    spelled::lseek(world, descriptor, at, libc::SEEK_SET);
                    spelled::sendfile(world, descriptor, other, &raw mut from, bytes)
                }
                4 => spelled::fallocate(world, descriptor, 0, at, bytes as i64) as isize,
                _ => spelled::pwrite(world, descriptor, buffer.as_ptr().cast(), bytes, at),
            }
        };
        world.say(&format!("limited {way} {at} {bytes}"), done as i64);
        world.say_position(descriptor);
    }
    // SAFETY: a number.
    let done = unsafe { spelled::ftruncate(world, descriptor, FILE_BYTES as i64) };
    world.say("longer", i64::from(done));
    set(world, libc::RLIM_INFINITY);
}

pub fn names(world: &mut World) {
    let (one, other) = (world.name(), world.name());
    let (old, new, way, slot) = (world.path(&one), world.path(&other), world.below(8), world.slot());
    let (third, folder, path) = (world.path("f4"), world.path("."), world.path("link"));
    // SAFETY: strings.
    let done = unsafe {
        match way {
            0 => spelled::rename(world, &old, &new),
            1 => spelled::unlink(world, &world.path("f3")),
            2 => libc::link(old.as_ptr(), third.as_ptr()),
            3 => spelled::unlink(world, &third),
            4 => libc::chmod(old.as_ptr(), 0o600),
            5 => {
                libc::symlink(c"f1".as_ptr(), path.as_ptr());
                spelled::truncate(world, path.as_ptr(), FILE_BYTES as i64 - 5000)
            }
            6 => {
                // One without a name, which gets one when it has been written.
                world.replace(slot);
                let made = libc::open(folder.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
                world.slots[slot] = made;
                let data = world.data(50_000);
                let written = spelled::write(world, made, data.as_ptr().cast(), data.len());
                world.say("nameless", written as i64);
                for _ in 0..3 {
                    at_offsets_of(world, made);
                }
                let path = std::ffi::CString::new(format!("/proc/self/fd/{made}")).expect("a path");
                libc::linkat(libc::AT_FDCWD, path.as_ptr(), libc::AT_FDCWD, third.as_ptr(), libc::AT_SYMLINK_FOLLOW)
            }
            _ => {
                let mode = [libc::F_OK, libc::R_OK, libc::W_OK, libc::X_OK][world.below(4) as usize];
                spelled::access(world, &old, mode)
            }
        }
    };
    world.say(&format!("names {way} {one} {other}"), i64::from(done));
}

fn at_offsets_of(world: &mut World, descriptor: c_int) {
    let mut buffer = world.data(3000);
    let offset = world.below(40_000) as i64;
    // SAFETY: a buffer of that size.
    unsafe {
        let done = spelled::pwrite(world, descriptor, buffer.as_ptr().cast(), 3000, offset);
        world.say("nameless", done as i64);
        let done = spelled::pread(world, descriptor, buffer.as_mut_ptr().cast(), 3000, offset / 2);
        world.say_read("nameless", done as i64, &buffer);
    }
}

/// What a file is, other than its bytes.
pub fn attributes(world: &mut World) {
    let (descriptor, name) = (world.descriptor(), world.name());
    let path = world.path(&name);
    for _ in 0..3 {
        // SAFETY: a string, and a number.
        let (way, done) = unsafe { spelled::attribute(world, &path, descriptor) };
        world.say(&format!("attribute {way} {name}"), i64::from(done));
        transfer(world, descriptor);
    }
}

/// What the C library writes by itself, and requests of the file system.
pub fn by_others(world: &mut World) {
    let (descriptor, number, way) = (world.descriptor(), world.below(1000) as c_int, world.below(5));
    // `struct space_resv`: from the beginning, a part of the file.
    let mut space = [0_u64, world.offset() as u64, 8192, 0, 0, 0];
    // SAFETY: what the requests want.
    let done = unsafe {
        match way {
            0 => spelled::print(world, descriptor, number),
            // FS_IOC_RESVSP64, FS_IOC_UNRESVSP, FS_IOC_ZERO_RANGE.
            1 => libc::ioctl(descriptor, 0x4030_582a, space.as_mut_ptr()),
            2 => libc::ioctl(descriptor, 0x4030_5829, space.as_mut_ptr()),
            3 => libc::ioctl(descriptor, 0x4030_5839, space.as_mut_ptr()),
            // FIONREAD only tells.
            _ => libc::ioctl(descriptor, libc::FIONREAD, space.as_mut_ptr()),
        }
    };
    world.say(&format!("by others {way} {space:?}"), i64::from(done));
    transfer(world, descriptor);
    world.say_position(descriptor);
}

/// System calls by their numbers.
pub fn by_number(world: &mut World) {
    let (descriptor, bytes, offset) = (world.descriptor(), world.bytes(), world.offset());
    let mut buffer = world.data(bytes);
    let at: *mut c_void = buffer.as_mut_ptr().cast();
    let way = world.below(6);
    // SAFETY: buffers of these sizes.
    let done = unsafe {
        match way {
            0 => libc::syscall(libc::SYS_pread64, descriptor, at, bytes, offset),
            1 => libc::syscall(libc::SYS_pwrite64, descriptor, at, bytes, offset),
            2 => libc::syscall(libc::SYS_read, descriptor, at, bytes),
            3 => libc::syscall(libc::SYS_write, descriptor, at, bytes),
            4 => libc::syscall(libc::SYS_ftruncate, descriptor, FILE_BYTES - 100),
            _ => libc::syscall(libc::SYS_fsync, descriptor),
        }
    };
    world.say_read(&format!("by number {way} {bytes} {offset}"), done, &buffer);
    world.say_position(descriptor);
}
