//! Calls that several processes, threads or parts of the kernel have a hand in.

use crate::world::{self, World, errno};
use crate::{calls, spelled};
use libc::{c_char, c_int, c_void};
use std::ffi::CString;

/// Waits for a child, and says what became of it.
pub fn wait(world: &World, child: c_int) {
    let mut status = 0;
    // SAFETY: filled by the call.
    let done = unsafe { libc::waitpid(child, &raw mut status, 0) };
    world.say("child", if done == child { i64::from(status) } else { -1 });
}

pub fn fork(world: &mut World, who: &'static str, child: impl FnOnce(&mut World)) -> c_int {
    // SAFETY: this program has one thread where it forks.
    let made = unsafe { spelled::fork(world) };
    if made == 0 {
        world.say_as = who;
        child(world);
        // SAFETY: the child ends here.
        unsafe { spelled::exit(world, 0) };
    }
    made
}

/// What a child does with a descriptor that is its parent's too.
pub fn in_child(world: &mut World, descriptor: c_int) {
    for _ in 0..4 {
        calls::transfer(world, descriptor);
    }
    world.say_position(descriptor);
}

/// One after the other, child and parent use the same position.
pub fn forked(world: &mut World) {
    let descriptor = world.descriptor();
    calls::transfer(world, descriptor);
    for _ in 0..2 {
        let child = fork(world, "child", |world| in_child(world, descriptor));
        wait(world, child);
        let _ = world.random();
        calls::transfer(world, descriptor);
        world.say_position(descriptor);
    }
}

const RECORD_BYTES: usize = 200;
const RECORDS: usize = 25;

/// Writes them; the error, where one fails.
fn records(descriptor: c_int, mark: u8) -> c_int {
    let record = [mark; RECORD_BYTES];
    for _ in 0..RECORDS {
        // SAFETY: a buffer of that size.
        if unsafe { libc::write(descriptor, record.as_ptr().cast(), RECORD_BYTES) } < 0 {
            return errno();
        }
    }
    0
}

fn say_wrote(world: &World, error: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = error };
    world.say("wrote", if error == 0 { 0 } else { -1 });
}

/// Counts the records of each mark, in whatever order they are.
fn say_records(world: &World, descriptor: c_int, from: i64, writers: usize) {
    let mut all = vec![0_u8; RECORD_BYTES * RECORDS * writers];
    // SAFETY: a buffer of that size.
    let count = unsafe { libc::pread(descriptor, all.as_mut_ptr().cast(), all.len(), from) };
    world.say("records", count as i64);
    for mark in 1..=writers as u8 {
        let whole = all.chunks(RECORD_BYTES).filter(|record| record.iter().all(|byte| *byte == mark)).count();
        world.say(&format!("records of {mark}"), whole as i64);
    }
    world.say_position(descriptor);
    // In which order they are is chance.
    all.fill(0);
    // SAFETY: as above.
    world.say("cleared", unsafe { libc::pwrite(descriptor, all.as_ptr().cast(), all.len(), from) } as i64);
}

/// Two processes write at the same position at once: nothing of either is lost.
pub fn forked_at_once(world: &mut World) {
    world.open(0, "f0", libc::O_RDWR);
    let descriptor = world.slots[0];
    let (from, other) = (world.offset().min(150_000), world.slots[1]);
    // SAFETY: a number.
    world.say("seek", unsafe { libc::lseek(descriptor, from, libc::SEEK_SET) });
    calls::transfer(world, other);
    let child = fork(world, "child", |_| {
        let error = records(descriptor, 2);
        // SAFETY: the child ends here.
        unsafe { libc::_exit(error) };
    });
    say_wrote(world, records(descriptor, 1));
    wait(world, child);
    say_records(world, descriptor, from, 2);
    // Another description, which nobody shares.
    world.open(0, "f0", libc::O_RDWR);
}

/// Threads at one position, and threads with parts of a file of their own.
pub fn threads(world: &mut World) {
    world.open(0, "f0", libc::O_RDWR);
    let (descriptor, from) = (world.slots[0], world.offset().min(140_000));
    // SAFETY: a number.
    world.say("seek", unsafe { libc::lseek(descriptor, from, libc::SEEK_SET) });
    let all = std::thread::scope(|scope| {
        let spawned = [1, 2, 3, 4].map(|mark| scope.spawn(move || records(descriptor, mark)));
        spawned.map(|one| one.join().expect("an end"))
    });
    all.into_iter().for_each(|error| say_wrote(world, error));
    say_records(world, descriptor, from, 4);
    world.open(1, "f1", libc::O_RDWR);
    let other = world.slots[1];
    std::thread::scope(|scope| {
        for part in 0..4_u8 {
            scope.spawn(move || {
                let data = [part; 7_000];
                // SAFETY: a buffer of that size.
                unsafe { libc::pwrite(other, data.as_ptr().cast(), data.len(), i64::from(part) * 7_000 + 501) }
            });
        }
    });
    let mut all = [0_u8; 30_000];
    // SAFETY: a buffer of that size.
    let count = unsafe { libc::pread(other, all.as_mut_ptr().cast(), all.len(), 0) };
    world.say_read("parts", count as i64, &all);
}

/// This program as another one, with a descriptor that it inherits.
pub fn executed(world: &mut World) {
    let (descriptor, way, seed) = (world.descriptor(), world.below(12), world.random() >> 1);
    // What the other program does not inherit has a number that is anybody's there.
    // SAFETY: numbers.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } < 0 {
        return;
    }
    let string = |text: String| CString::new(text).expect("a string");
    let this = string(std::env::current_exe().expect("a path").display().to_string());
    let (number, seed) = (string(descriptor.to_string()), string(seed.to_string()));
    let all = [this.as_ptr(), c"child".as_ptr(), number.as_ptr(), seed.as_ptr(), std::ptr::null()];
    // SAFETY: the C library's.
    let environment = unsafe { environ };
    let (mut child, mut spawned) = (0, 0);
    // SAFETY: strings, and lists that end with a null pointer.
    unsafe {
        match way {
            0 => {
                let made = libc::posix_spawn(
                    &raw mut child,
                    all[0],
                    std::ptr::null(),
                    std::ptr::null(),
                    all.as_ptr().cast(),
                    environment,
                );
                spawned = -made;
            }
            1 => {
                child = fork(world, "child", |_| {
                    libc::execv(all[0], all.as_ptr());
                });
            }
            2 => {
                child = fork(world, "child", |_| {
                    libc::execl(all[0], all[0], all[1], all[2], all[3], std::ptr::null::<c_char>());
                });
            }
            3 => {
                child = fork(world, "child", |_| {
                    libc::execle(all[0], all[0], all[1], all[2], all[3], std::ptr::null::<c_char>(), environment);
                });
            }
            4 => {
                child = fork(world, "child", |_| {
                    let none = std::ptr::null::<c_char>();
                    libc::execlp(all[0], all[0], all[1], all[2], all[3], none);
                });
            }
            5 => {
                child = fork(world, "child", |_| {
                    libc::execve(all[0], all.as_ptr(), environment.cast());
                })
            }
            6 => {
                child = fork(world, "child", |_| {
                    libc::execvp(all[0], all.as_ptr());
                })
            }
            7 => {
                child = fork(world, "child", |_| {
                    libc::execvpe(all[0], all.as_ptr(), environment.cast());
                })
            }
            8..=10 => {
                let program = libc::open(all[0], libc::O_RDONLY | libc::O_CLOEXEC);
                child = fork(world, "child", |_| {
                    if way == 8 {
                        libc::fexecve(program, all.as_ptr(), environment.cast());
                    } else if way == 9 {
                        execveat(program, c"".as_ptr(), all.as_ptr(), environment, libc::AT_EMPTY_PATH);
                    } else {
                        let (number, empty) = (libc::SYS_execveat, c"".as_ptr());
                        libc::syscall(number, program, empty, all.as_ptr(), environment, libc::AT_EMPTY_PATH);
                    }
                });
                libc::close(program);
            }
            _ => {
                // Given another number on the way.
                let mut actions = std::mem::zeroed::<libc::posix_spawn_file_actions_t>();
                libc::posix_spawn_file_actions_init(&raw mut actions);
                libc::posix_spawn_file_actions_adddup2(&raw mut actions, descriptor, 90);
                let all = [all[0], all[1], c"90".as_ptr(), all[3], all[4]];
                let made = libc::posix_spawnp(
                    &raw mut child,
                    all[0],
                    &raw const actions,
                    std::ptr::null(),
                    all.as_ptr().cast(),
                    environment,
                );
                spawned = -made;
                libc::posix_spawn_file_actions_destroy(&raw mut actions);
            }
        }
    }
    if child > 0 {
        wait(world, child);
    }
    world.say("spawned", i64::from(spawned));
    calls::transfer(world, descriptor);
    world.say_position(descriptor);
    // It fails, and everything is as it was.
    // SAFETY: as above.
    world.say("nothing", i64::from(unsafe { libc::execv(c"/nothing".as_ptr(), all.as_ptr()) }));
    calls::transfer(world, descriptor);
}

unsafe extern "C" {
    static environ: *const *mut c_char;
    fn execveat(
        folder: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *mut c_char,
        flags: c_int,
    ) -> c_int;
}

/// A shell with the descriptor as its own.
pub fn started(world: &mut World) {
    let descriptor = world.descriptor();
    let twin = if descriptor >= 0 {
        // SAFETY: numbers.
        unsafe { libc::dup2(descriptor, world::SHELLS) }
    } else {
        -1
    };
    world.say("dup2", i64::from(twin.min(0)));
    // SAFETY: strings.
    unsafe {
        let done = libc::system(c"head -c 1000 <&9 > /dev/null 2>&1; echo changed >&9 2> /dev/null".as_ptr());
        world.say("system", i64::from(done));
        let read = libc::popen(c"dd bs=100 count=3 <&9 2> /dev/null | wc -c".as_ptr(), c"r".as_ptr());
        let mut said = [0_u8; 100];
        let count = libc::fread(said.as_mut_ptr().cast(), 1, said.len(), read);
        libc::pclose(read);
        world.say_read("popen", count as i64, &said);
        world::reserve();
    }
    calls::transfer(world, descriptor);
    world.say_position(descriptor);
}

/// A descriptor in a message.
pub fn sent(world: &mut World) {
    let (descriptor, to) = (world.descriptor(), 2 + world.below(4) as usize);
    let mut pair = [0; 2];
    // SAFETY: buffers of these sizes.
    let received = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
        let (mut byte, mut control) = (0_u8, [0_u64; 8]);
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor);
        let done = spelled::sendmsg(world, pair[0], &message);
        world.say("sent", done as i64);
        let received = if done == 1 {
            spelled::recvmsg(world, pair[1], &mut message);
            libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&raw const message)).cast::<c_int>().read_unaligned()
        } else {
            -1
        };
        libc::close(pair[0]);
        libc::close(pair[1]);
        received
    };
    world.replace(to);
    world.slots[to] = received;
    for descriptor in [received, descriptor] {
        calls::transfer(world, descriptor);
        world.say_position(descriptor);
    }
}

/// Bytes that the kernel moves from one file to another.
pub fn between(world: &mut World) {
    let (from, to, way, bytes) = (world.descriptor(), world.descriptor(), world.below(8), world.bytes());
    let (mut from_at, mut to_at) = (world.offset(), world.offset());
    // SAFETY: numbers, and offsets that are there.
    unsafe {
        let mut pipe = [0; 2];
        libc::pipe(pipe.as_mut_ptr());
        let mut buffer = world.data(bytes);
        let done = match way {
            0 => spelled::sendfile(world, to, from, &raw mut from_at, bytes) as i64,
            1 => spelled::sendfile(world, to, from, std::ptr::null_mut(), bytes) as i64,
            2 => libc::copy_file_range(from, &raw mut from_at, to, &raw mut to_at, bytes, 0) as i64,
            3 => {
                // Through a pipe, which holds as much as this.
                let mut all = 0;
                loop {
                    let none = std::ptr::null_mut();
                    let done = libc::splice(from, &raw mut from_at, pipe[1], none, bytes - all, 0);
                    if done <= 0 || all + done as usize == bytes {
                        all += done.max(0) as usize;
                        break;
                    }
                    all += done as usize;
                }
                if all > 0 { libc::read(pipe[0], buffer.as_mut_ptr().cast(), bytes) as i64 } else { 0 }
            }
            4 => {
                libc::write(pipe[1], buffer.as_ptr().cast(), bytes);
                libc::splice(pipe[0], std::ptr::null_mut(), to, &raw mut to_at, bytes, 0) as i64
            }
            5 => {
                // At the positions of both.
                let none = std::ptr::null_mut();
                let all = libc::splice(from, none, pipe[1], none, bytes, libc::SPLICE_F_NONBLOCK);
                world.say("into the pipe", all as i64);
                libc::splice(pipe[0], none, to, none, bytes, libc::SPLICE_F_NONBLOCK) as i64
            }
            6 => {
                // Twice the same bytes, of memory that the pipe has itself.
                let mut other = [0; 2];
                libc::pipe(other.as_mut_ptr());
                let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: bytes };
                let all = libc::vmsplice(pipe[1], &raw const part, 1, libc::SPLICE_F_NONBLOCK);
                world.say("of memory", all as i64);
                world.say("twice", libc::tee(pipe[0], other[1], bytes, libc::SPLICE_F_NONBLOCK) as i64);
                let none = std::ptr::null_mut();
                let first = libc::splice(pipe[0], none, to, &raw mut to_at, bytes, libc::SPLICE_F_NONBLOCK);
                world.say("first", first as i64);
                let second = libc::splice(other[0], none, to, &raw mut to_at, bytes, libc::SPLICE_F_NONBLOCK);
                libc::close(other[0]);
                libc::close(other[1]);
                second as i64
            }
            _ => {
                let none = std::ptr::null_mut();
                libc::copy_file_range(from, none, to, none, bytes, 0) as i64
            }
        };
        world.say_read(&format!("between {way} {bytes} {from_at} {to_at}"), done, &buffer);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    world.say_position(from);
    world.say_position(to);
}

pub fn mapped(world: &mut World) {
    let (descriptor, offset, private) = (world.descriptor(), world.offset() & !4095, world.chance(2));
    let kind = if private { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: what was mapped is used as far as the file goes.
    unsafe {
        let map = spelled::mmap(world, std::ptr::null_mut(), 8192, protection, kind, descriptor, offset);
        world.say("mapped", if map == libc::MAP_FAILED { -1 } else { 0 });
        if map != libc::MAP_FAILED {
            let bytes = (world.size(descriptor) - offset).clamp(0, 8192) as usize;
            let data = world.data(bytes);
            let held = std::slice::from_raw_parts_mut(map.cast::<u8>(), bytes);
            held[bytes / 2..].copy_from_slice(&data[bytes / 2..]);
            let done = libc::pwrite(descriptor, data.as_ptr().cast(), bytes / 3, offset);
            world.say_read("beside the mapping", done as i64, held);
            let mut buffer = vec![0_u8; bytes];
            let done = libc::pread(descriptor, buffer.as_mut_ptr().cast(), bytes, offset);
            world.say_read("under the mapping", done as i64, &buffer);
            // Longer by memory that no file has behind it, and read alone.
            let longer = libc::mremap(map, 8192, 12288, libc::MREMAP_MAYMOVE);
            let done = spelled::mprotect(world, longer, 12288, libc::PROT_READ);
            world.say("protected", i64::from(done));
            let done = libc::pread(descriptor, longer, 10, 0);
            world.say("into the mapping", done as i64);
            libc::munmap(longer, 12288);
        }
    }
    calls::transfer(world, descriptor);
}

pub fn locked(world: &mut World) {
    let (descriptor, way) = (world.descriptor(), world.below(4));
    // SAFETY: numbers and a lock that is there.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, libc::SEEK_SET as _, 100, 50);
        let done = match way {
            0 => libc::fcntl(descriptor, libc::F_SETLK, &raw const lock),
            1 => libc::flock(descriptor, libc::LOCK_EX),
            2 => libc::fcntl(descriptor, libc::F_OFD_SETLK, &raw const lock),
            _ => spelled::lockf(world, descriptor, libc::F_TLOCK, 100),
        };
        world.say(&format!("locked {way}"), i64::from(done));
        calls::transfer(world, descriptor);
        let path = world.path(&world.name_of_slot(descriptor));
        let child = fork(world, "child", |world| {
            // The locks are there, whatever the parent did to the file meanwhile.
            let own = libc::open(path.as_ptr(), libc::O_RDWR);
            let mut lock = lock;
            let done = libc::fcntl(own, libc::F_GETLK, &raw mut lock);
            world.say(&format!("lock is {} {} {}", lock.l_type, lock.l_start, lock.l_len), i64::from(done));
            world.say("flock", i64::from(libc::flock(own, libc::LOCK_SH | libc::LOCK_NB)));
        });
        wait(world, child);
        lock.l_type = libc::F_UNLCK as _;
        lock.l_pid = 0;
        match way {
            0 => libc::fcntl(descriptor, libc::F_SETLK, &raw const lock),
            1 => libc::flock(descriptor, libc::LOCK_UN),
            2 => libc::fcntl(descriptor, libc::F_OFD_SETLK, &raw const lock),
            _ => spelled::lockf(world, descriptor, libc::F_ULOCK, 0),
        };
    }
    calls::transfer(world, descriptor);
}

pub fn stream(world: &mut World) {
    let (name, way) = (world.name(), world.below(4));
    let (path, descriptor) = (world.path(&name), world.descriptor());
    // SAFETY: a stream that is open.
    unsafe {
        let stream = match way {
            0 => spelled::fopen(world, path.as_ptr(), c"r".as_ptr()),
            1 => spelled::fopen(world, path.as_ptr(), c"r+".as_ptr()),
            2 => spelled::fdopen(world, libc::dup(descriptor), c"r".as_ptr()),
            _ => spelled::fopen(world, path.as_ptr(), c"a+".as_ptr()),
        };
        world.say(&format!("stream {way} {name}"), if stream.is_null() { i64::from(-errno()) } else { 0 });
        if stream.is_null() {
            return;
        }
        let offset = world.offset();
        libc::fseek(stream, offset, libc::SEEK_SET);
        let mut buffer = world.data(3000);
        let count = libc::fread(buffer.as_mut_ptr().cast::<c_void>(), 1, 1500, stream);
        world.say_read("stream", count as i64, &buffer);
        libc::fseek(stream, offset / 2, libc::SEEK_SET);
        let count = libc::fwrite(buffer.as_ptr().cast(), 1, 3000, stream);
        world.say("stream", count as i64);
        let stream = if way == 1 { spelled::freopen(world, path.as_ptr(), c"r+".as_ptr(), stream) } else { stream };
        if !stream.is_null() {
            // Nothing but this is in its buffer any more.
            libc::fseek(stream, 100, libc::SEEK_SET);
            libc::fwrite(buffer.as_ptr().cast(), 1, 10, stream);
            let done = spelled::fclose(world, stream);
            world.say("stream", i64::from(done));
        }
    }
    calls::at_offsets(world);
}

/// Waits for what a thread of the C library does, and says what came of it.
fn queued_end(world: &World, one: &mut libc::aiocb, buffer: &[u8]) {
    let one = std::ptr::from_mut(one);
    // SAFETY: it has been begun.
    let (error, returned) = unsafe {
        while libc::aio_error(one) == libc::EINPROGRESS {
            std::thread::yield_now();
        }
        (libc::aio_error(one), libc::aio_return(one))
    };
    world.say_read(&format!("queued {error}"), returned as i64 & 0xff_ffff, buffer);
}

/// By threads of the C library.
pub fn queued(world: &mut World) {
    let (descriptor, bytes) = (world.descriptor(), world.bytes());
    let mut buffer = world.data(bytes);
    for way in 0..5 {
        // SAFETY: the buffer lives until the end.
        unsafe {
            let mut one: libc::aiocb = std::mem::zeroed();
            one.aio_fildes = descriptor;
            one.aio_offset = world.offset();
            (one.aio_buf, one.aio_nbytes) = (buffer.as_mut_ptr().cast(), bytes);
            one.aio_lio_opcode = if way == 3 { libc::LIO_WRITE } else { libc::LIO_READ };
            let place = &raw mut one;
            let done = match way {
                0 => spelled::aio_write(world, place),
                1 => spelled::aio_read(world, place),
                2 => spelled::aio_fsync(world, libc::O_SYNC, place),
                _ => spelled::lio_listio(world, libc::LIO_WAIT, &raw const place, 1, std::ptr::null_mut()),
            };
            world.say("queued", i64::from(done));
            if done == 0 {
                queued_end(world, &mut one, &buffer);
            }
        }
    }
    world.say_position(descriptor);
}
