//! Calls after which the program is somebody else, somewhere else, or may do less; and descriptors that are replaced while threads use them.

use crate::calls;
use crate::others::{fork, wait};
use crate::world::{FILE_BYTES, SLOTS, World};
use libc::{c_int, c_long};

/// Who the program becomes, where it may.
const USER: u32 = 54_946;
/// Times that a descriptor is replaced under threads.
const TURNS: usize = 60;
const PARTS: i64 = 3;
const PART_BYTES: usize = 500;

const UL_SETFSIZE: c_int = 2;

unsafe extern "C" {
    fn ulimit(command: c_int, ...) -> c_long;
    fn closefrom(first: c_int);
    fn initgroups(user: *const libc::c_char, group: libc::gid_t) -> c_int;
}

/// Changes this process, by the way's number; what the call returned.
fn change(world: &World, way: u64) -> c_long {
    let limit = |descriptors: u64| {
        let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: descriptors };
        // SAFETY: the process' own.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }
    };
    let (none, folder) = (std::ptr::null(), world.path("."));
    // SAFETY: numbers, and strings.
    let done = unsafe {
        match way {
            0 => libc::setuid(USER),
            1 => libc::setresgid(USER, USER, USER),
            2 => libc::setgroups(0, none),
            3 => libc::seteuid(USER),
            4 => return libc::syscall(libc::SYS_setfsuid, USER),
            5 => return libc::syscall(libc::SYS_setresuid, USER, USER, USER),
            6 => libc::chroot(folder.as_ptr()),
            7 => libc::unshare(libc::CLONE_NEWUSER),
            8 => libc::unshare(libc::CLONE_NEWNS),
            9 => libc::unshare(libc::CLONE_FILES),
            10 => return libc::syscall(libc::SYS_unshare, libc::CLONE_NEWNET),
            11 => limit(0),
            12 => limit((world.slots[0] + 1) as u64),
            13 => limit(300),
            14 => libc::setgid(USER),
            15 => libc::setegid(USER),
            16 => libc::setregid(USER, USER),
            17 => libc::setreuid(USER, USER),
            18 => libc::setresuid(USER, USER, USER),
            19 => libc::setfsuid(USER),
            20 => libc::setfsgid(USER),
            21 => initgroups(c"root".as_ptr(), USER),
            // No new privileges.
            22 => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            // In units of 512 bytes, for good.
            23 => return ulimit(UL_SETFSIZE, (FILE_BYTES / 512) as c_long),
            _ => {
                closefrom(world.slots[0] + 1);
                0
            }
        }
    };
    c_long::from(done)
}

/// A child that opens a file of its own, changes, and goes on.
pub fn changed(world: &mut World) {
    let (way, name) = (world.below(25), world.name());
    // What the parent could write the child has not directly.
    (0..SLOTS).for_each(|slot| world.replace(slot));
    let child = fork(world, "child", |world| {
        world.open(0, &name, libc::O_RDWR);
        let descriptor = world.slots[0];
        for _ in 0..3 {
            calls::transfer(world, descriptor);
        }
        world.say(&format!("change {way}"), change(world, way).min(0));
        for round in 0..3 {
            calls::transfer(world, descriptor);
            calls::at_offsets(world);
            // SAFETY: numbers.
            let done = unsafe { libc::ftruncate(descriptor, FILE_BYTES as i64 + 5_000 - round) };
            world.say("longer", i64::from(done));
        }
        world.say_position(descriptor);
        // SAFETY: numbers.
        world.say("as long", i64::from(unsafe { libc::ftruncate(descriptor, FILE_BYTES as i64) }));
        // SAFETY: a number.
        world.say("sync", i64::from(unsafe { libc::fsync(descriptor) }));
    });
    wait(world, child);
    world.open(0, "f0", libc::O_RDWR);
    world.open(1, "f1", libc::O_RDWR);
    calls::at_offsets(world);
}

/// Writes a part of a file again and again; how many calls failed.
fn write_part(descriptor: c_int, part: i64) -> usize {
    let data = [part as u8 + 1; PART_BYTES];
    let at = |turn: i64| 1000 + (turn * PARTS + part) * PART_BYTES as i64;
    // SAFETY: a buffer of that size.
    let write = |turn| unsafe { libc::pwrite(descriptor, data.as_ptr().cast(), data.len(), at(turn)) };
    (0..TURNS as i64).filter(|turn| write(*turn) != PART_BYTES as isize).count()
}

/// Threads write a file by a descriptor under which its descriptions are exchanged meanwhile.
pub fn replaced(world: &mut World) {
    world.open(0, "f0", libc::O_RDWR);
    world.open(1, "f0", libc::O_RDWR);
    let (descriptor, other) = (world.slots[0], world.slots[1]);
    // SAFETY: numbers, and a buffer of that size.
    unsafe {
        world.say("long enough", i64::from(libc::ftruncate(descriptor, FILE_BYTES as i64)));
        calls::transfer(world, descriptor);
        let twin = libc::dup(descriptor);
        let failed = std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..PARTS).map(|part| scope.spawn(move || write_part(descriptor, part))).collect();
            let replace = |turn: usize| libc::dup2([twin, other][turn % 2], descriptor);
            let not_replaced = (0..TURNS).filter(|turn| replace(*turn) != descriptor).count();
            spawned.into_iter().map(|one| one.join().expect("an end")).sum::<usize>() + not_replaced
        });
        world.say("failed", failed as i64);
        let mut all = vec![0_u8; TURNS * PARTS as usize * PART_BYTES];
        let count = libc::pread(descriptor, all.as_mut_ptr().cast(), all.len(), 1000);
        world.say_read("replaced", count as i64, &all);
        libc::close(twin);
    }
    world.say_position(descriptor);
    world.open(0, "f0", libc::O_RDWR);
    world.open(1, "f1", libc::O_RDWR);
}
