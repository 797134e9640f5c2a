//! A process that has a file directly and does all that could move the file's blocks: for the tests of what the agent promises.
//!
//! `willow-attacker DEVICE AGENT FILE attacks` prints a line for each way: its name, what the kernel said, and what came of it, by tabs:
//! `refused` (no direct access while it has that), `revoked` (the device permits nothing any more), `same` (it permits what is the
//! file's own still), or `VIOLATION` (it permits blocks that are not the file's any more).
//!
//! `willow-attacker DEVICE AGENT FILE victim` keeps a second writable descriptor, takes the file directly, moves its blocks to
//! another file that it cuts, waits for a line on its input while somebody else writes, and prints what it then reads past the kernel.
//! `writer` writes past the kernel without end, and says so; `goes on` writes on when its file's mode forbids to open it; `insistent` keeps a descriptor and asks again and again; `crowd` connects to the agent as often as that goes; `turncoat` changes its
//! user; `hoard` opens as many files of its own directly as it gets.

use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Error, Read, Result, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use willow_host::direct_io::{AgentClient, DirectError, DirectFile};
use willow_host::{Hre, ShmHre, ShmOptions};

const BYTES: usize = 64 << 10;

struct World {
    agent: Arc<AgentClient>,
    hre: Arc<dyn Hre>,
    runtime: tokio::runtime::Runtime,
    path: PathBuf,
}

fn check(done: i64) -> Result<()> {
    if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// An ioctl with a structure of these 64-bit words.
fn ioctl(descriptor: RawFd, request: u64, words: &mut [u64]) -> Result<()> {
    // SAFETY: the words are as many as the request's structure has, or more.
    check(i64::from(unsafe { libc::ioctl(descriptor, request as _, words.as_mut_ptr()) }))
}

fn writable(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

impl World {
    fn beside(&self, name: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(name);
        path.into()
    }

    /// Another file of the same length, written, and open for both.
    fn spare(&self) -> Result<File> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.beside(".spare"))?;
        file.write_all(&[9; BYTES])?;
        file.sync_all()?;
        Ok(file)
    }

    fn take(&self, file: File) -> std::result::Result<DirectFile, DirectError> {
        DirectFile::open(&self.agent, self.hre.clone(), file)
    }

    /// What the device permits now, of what it permitted.
    fn verdict(&self, direct: &DirectFile, reader: &File) -> &'static str {
        let mut buffer = vec![0; BYTES];
        match self.runtime.block_on(direct.read_at(&mut buffer, 0)) {
            Err(DirectError::Permission) => return "revoked",
            Err(error) => panic!("the device: {error}"),
            Ok(_) => {}
        }
        match willow_host::agent::extents::of_file(reader.as_fd()) {
            Ok(now) if now == direct.extents() => "same",
            // Read alone, they are the file's as well as the clone's.
            Err(why) if why.contains("shares blocks") && direct.rights() == 1 => "shared",
            _ => "VIOLATION",
        }
    }
}

fn told(name: &str, done: &Result<()>, verdict: &str) {
    let said = match done {
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("{name}\t{said}\t{verdict}");
}

/// Something by which the file can still be written, and what does so when it has been taken.
type Kept = (Box<dyn std::any::Any>, Box<dyn FnOnce() -> Result<()>>);

fn truncate(file: &File) -> Result<()> {
    file.set_len(0)?;
    file.set_len(BYTES as u64)
}

fn move_to(spare: &File, orig: RawFd) -> Result<()> {
    // EXT4_IOC_MOVE_EXT: donor, both from block 0, as many as there are.
    let donor = (spare.as_raw_fd() as u64) << 32;
    ioctl(orig, 0xc028_660f, &mut [donor, 0, 0, (BYTES / 4096) as u64, 0])
}

/// What keeps the file open for writing, by its name.
fn keep(world: &World, name: &str) -> Result<Kept> {
    let file = writable(&world.path)?;
    let number = file.as_raw_fd();
    let cut = move |file: File| -> Box<dyn FnOnce() -> Result<()>> { Box::new(move || truncate(&file)) };
    Ok(match name {
        "descriptor" => (Box::new(()), cut(file)),
        "duplicate" => (Box::new(()), cut(file.try_clone()?)),
        "writes alone" => (Box::new(file), cut(OpenOptions::new().write(true).open(&world.path)?)),
        "appends" => (Box::new(()), cut(OpenOptions::new().append(true).open(&world.path)?)),
        "moves its extents" => {
            let spare = world.spare()?;
            (Box::new(()), Box::new(move || move_to(&spare, file.as_raw_fd())))
        }
        "mapping" => {
            let (length, both, shared) = (BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping of a file that is as long.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), length, both, shared, number, 0) };
            if at == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
            drop(file);
            let at = at as usize;
            // SAFETY: mapped above, and never unmapped.
            (Box::new(()), Box::new(move || unsafe { check(i64::from(libc::munmap(at as *mut _, BYTES))) }))
        }
        "in a socket" => {
            let (one, other) = willow_shm_pair()?;
            send_descriptor(&one, number)?;
            drop(file);
            (Box::new(one), Box::new(move || truncate(&receive_descriptor(&other)?)))
        }
        "in a child" => {
            // SAFETY: the child only sleeps, and is killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                std::thread::sleep(Duration::from_secs(60));
                std::process::exit(0);
            }
            drop(file);
            // SAFETY: the child made above.
            (Box::new(()), Box::new(move || check(i64::from(unsafe { libc::kill(child, libc::SIGKILL) }))))
        }
        "in a ring" => {
            let mut parameters = [0u64; 16];
            // SAFETY: io_uring_setup fills 120 bytes; io_uring_register reads one descriptor.
            let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
            check(ring)?;
            let list = [number];
            // SAFETY: as above.
            check(unsafe { libc::syscall(libc::SYS_io_uring_register, ring, 2, list.as_ptr(), 1) })?;
            drop(file);
            // SAFETY: made above, nobody else's.
            (Box::new(unsafe { OwnedFd::from_raw_fd(ring as RawFd) }), Box::new(|| Ok(())))
        }
        "behind a path" => {
            let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&world.path)?;
            let link = format!("/proc/self/fd/{}", path.as_raw_fd());
            drop(file);
            // Open by itself, it could be opened again.
            (Box::new((path, writable(Path::new(&link))?)), Box::new(|| Ok(())))
        }
        _ => unreachable!("{name}"),
    })
}

fn willow_shm_pair() -> Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn send_descriptor(socket: &OwnedFd, number: RawFd) -> Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // SAFETY: open while this runs.
    let list = [unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&list)));
    sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive_descriptor(socket: &OwnedFd) -> Result<File> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [std::io::IoSliceMut::new(&mut [0])], &mut ancillary, RecvFlags::empty())?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut list) = message
            && let Some(one) = list.next()
        {
            return Ok(one.into());
        }
    }
    Err(Error::other("no descriptor"))
}

const KEPT: [&str; 10] = [
    "descriptor",
    "duplicate",
    "writes alone",
    "appends",
    "moves its extents",
    "mapping",
    "in a socket",
    "in a child",
    "in a ring",
    "behind a path",
];

/// Ways by a descriptor that only reads: name, and what is done.
type By = (&'static str, fn(&World, &File) -> Result<()>);

/// `struct xfs_flock64`: type and whence 0, start, length.
fn space(descriptor: &File, request: u64) -> Result<()> {
    ioctl(descriptor.as_raw_fd(), request, &mut [0, 0, 8192, 0, 0, 0])
}

fn allocate(file: &File, flags: FallocateFlags, at: u64) -> Result<()> {
    Ok(rustix::fs::fallocate(file, flags, at, 8192)?)
}

fn dedupe(from: &File, into: &File) -> Result<()> {
    let mut request = [0, 4096, 1, into.as_raw_fd() as u64, 0, 0, 0];
    ioctl(from.as_raw_fd(), 0xc018_9436, &mut request)?;
    match request[6] as i32 {
        0 => Ok(()),
        status => Err(Error::from_raw_os_error(status.abs())),
    }
}

const BY_DESCRIPTOR: [By; 38] = [
    ("MOVE_EXT as original", |world, file| move_to(&world.spare()?, file.as_raw_fd())),
    ("MOVE_EXT as donor", |world, file| move_to(file, world.spare()?.as_raw_fd())),
    ("SWAP_BOOT", |_, file| ioctl(file.as_raw_fd(), 0x6611, &mut [0])),
    ("MIGRATE", |_, file| ioctl(file.as_raw_fd(), 0x6609, &mut [0])),
    ("ALLOC_DA_BLKS", |_, file| ioctl(file.as_raw_fd(), 0x660c, &mut [0])),
    ("CLEAR_ES_CACHE", |_, file| ioctl(file.as_raw_fd(), 0x6628, &mut [0])),
    ("SETFLAGS without extents", |_, file| ioctl(file.as_raw_fd(), 0x4008_6602, &mut [0x10])),
    ("SETFLAGS journaled", |_, file| ioctl(file.as_raw_fd(), 0x4008_6602, &mut [0x8_4010])),
    ("FSSETXATTR realtime", |_, file| ioctl(file.as_raw_fd(), 0x401c_5820, &mut [0x9, 0, 0, 0])),
    ("ENABLE_VERITY", |_, file| {
        ioctl(file.as_raw_fd(), 0x4080_6685, &mut [1 | 1 << 32, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }),
    ("ftruncate to less", |_, file| file.set_len(0)),
    ("ftruncate to more", |_, file| file.set_len(BYTES as u64 * 2)),
    ("fallocate", |_, file| allocate(file, FallocateFlags::empty(), BYTES as u64)),
    ("fallocate and keep the size", |_, file| allocate(file, FallocateFlags::KEEP_SIZE, BYTES as u64)),
    ("punch", |_, file| allocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0)),
    ("collapse", |_, file| allocate(file, FallocateFlags::COLLAPSE_RANGE, 0)),
    ("insert", |_, file| allocate(file, FallocateFlags::INSERT_RANGE, 0)),
    ("zero", |_, file| allocate(file, FallocateFlags::ZERO_RANGE, 0)),
    ("unshare", |_, file| allocate(file, FallocateFlags::UNSHARE_RANGE, 0)),
    ("FICLONE into", |world, file| {
        // SAFETY: two descriptors, no memory.
        check(i64::from(unsafe { libc::ioctl(file.as_raw_fd(), 0x4004_9409, world.spare()?.as_raw_fd()) }))
    }),
    ("FICLONE from", |world, file| {
        // SAFETY: as above.
        check(i64::from(unsafe { libc::ioctl(world.spare()?.as_raw_fd(), 0x4004_9409, file.as_raw_fd()) }))
    }),
    ("FICLONERANGE into", |world, file| {
        ioctl(file.as_raw_fd(), 0x4020_940d, &mut [world.spare()?.as_raw_fd() as u64, 0, 4096, 0])
    }),
    ("dedupe into", |world, file| dedupe(&world.spare()?, file)),
    ("dedupe from", |world, file| dedupe(file, &world.spare()?)),
    ("copy_file_range into", |world, file| {
        Ok(rustix::fs::copy_file_range(world.spare()?, Some(&mut 0), file, Some(&mut 0), 4096).map(|_| ())?)
    }),
    ("splice into", |_, file| {
        let (reader, mut writer) = std::io::pipe()?;
        writer.write_all(&[1; 4096])?;
        let (from, into, nothing) = (reader.as_raw_fd(), file.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: two descriptors, no memory.
        check(unsafe { libc::splice(from, nothing, into, nothing, 4096, 0) } as i64)
    }),
    ("sendfile into", |world, file| Ok(rustix::fs::sendfile(file, world.spare()?, Some(&mut 0), 4096).map(|_| ())?)),
    ("pwrite", |_, file| file.write_all_at(&[1; 4096], 0)),
    ("shared mapping that writes", |_, file| {
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, both, shared, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(()) }
    }),
    ("mprotect of a shared mapping", |_, file| {
        // SAFETY: a new mapping, which is left there.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        // SAFETY: mapped above.
        check(i64::from(unsafe { libc::mprotect(at, BYTES, libc::PROT_READ | libc::PROT_WRITE) }))
    }),
    ("/proc/self/fd for writing", |_, file| {
        truncate(&writable(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?)
    }),
    ("SWAPEXT", |world, file| {
        let mut request = [0; 24];
        let (target, other) = (file.as_raw_fd() as u64, world.spare()?);
        request[1..5].copy_from_slice(&[target, other.as_raw_fd() as u64, 0, BYTES as u64]);
        ioctl(file.as_raw_fd(), 0xc0c0_586d, &mut request)
    }),
    ("EXCHANGE_RANGE into", |world, file| {
        ioctl(file.as_raw_fd(), 0x4028_5881, &mut [world.spare()?.as_raw_fd() as u64, 0, 0, BYTES as u64, 0])
    }),
    ("EXCHANGE_RANGE from", |world, file| {
        ioctl(world.spare()?.as_raw_fd(), 0x4028_5881, &mut [file.as_raw_fd() as u64, 0, 0, BYTES as u64, 0])
    }),
    ("FREESP", |_, file| space(file, 0x4030_5825)),
    ("ALLOCSP", |_, file| space(file, 0x4030_5824)),
    ("UNRESVSP", |_, file| space(file, 0x4030_582b)),
    ("ZERO_RANGE", |_, file| space(file, 0x4030_5839)),
];

/// The same by the file's path.
type ByPath = (&'static str, fn(&World) -> Result<()>);

/// Ways by the file's path.
const BY_PATH: [ByPath; 11] = [
    ("open for writing", |world| truncate(&writable(&world.path)?)),
    ("open and truncate", |world| OpenOptions::new().write(true).truncate(true).open(&world.path).map(|_| ())),
    ("truncate", |world| {
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        // SAFETY: a path that ends with a zero byte.
        check(i64::from(unsafe { libc::truncate(path.as_ptr(), 0) }))
    }),
    ("unlink", |world| std::fs::remove_file(&world.path)),
    ("rename away", |world| std::fs::rename(&world.path, world.beside(".away"))),
    ("rename over", |world| {
        world.spare()?;
        std::fs::rename(world.beside(".spare"), &world.path)
    }),
    ("link", |world| std::fs::hard_link(&world.path, world.beside(".link"))),
    ("chmod", |world| std::fs::set_permissions(&world.path, std::os::unix::fs::PermissionsExt::from_mode(0o666))),
    ("set an attribute", |world| {
        Ok(rustix::fs::setxattr(&world.path, "user.a", &[1; 4000], rustix::fs::XattrFlags::empty())?)
    }),
    ("open by handle", |world| {
        let mut handle = [0u64; 18];
        handle[0] = 128;
        let path = std::ffi::CString::new(world.path.as_os_str().as_encoded_bytes())?;
        let (at, number) = (handle.as_mut_ptr(), libc::SYS_name_to_handle_at);
        let mut mount = 0i32;
        // SAFETY: room for a handle of 128 bytes behind its head.
        check(unsafe { libc::syscall(number, libc::AT_FDCWD, path.as_ptr(), at, &raw mut mount, 0) })?;
        let folder = File::open(world.path.parent().unwrap_or(Path::new("/")))?;
        // SAFETY: the handle that the kernel has just written.
        let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, folder.as_raw_fd(), at, libc::O_RDWR) };
        check(opened)?;
        // SAFETY: opened above.
        truncate(&unsafe { File::from_raw_fd(opened as RawFd) })
    }),
    ("programs that defragment", |world| {
        for program in ["e4defrag", "xfs_fsr"] {
            // What is not installed is not tried.
            let _ = std::process::Command::new(program)
                .arg(&world.path)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status();
        }
        Ok(())
    }),
];

/// The file as it was at the beginning.
fn renew(world: &World) -> Result<()> {
    for name in [".away", ".link"] {
        let _ = std::fs::rename(world.beside(name), &world.path);
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&world.path)?;
    file.rewind()?;
    file.write_all(&[5; BYTES])?;
    file.set_len(BYTES as u64)?;
    file.sync_all()
}

/// Of a file that is taken to be read alone, or to be written too.
fn attacks(world: &World, reads: bool) -> Result<()> {
    let open = || if reads { File::open(&world.path) } else { writable(&world.path) };
    for name in KEPT {
        renew(world)?;
        let (kept, attack) = keep(world, name)?;
        let named = format!("kept: {name}");
        match world.take(open()?) {
            Err(DirectError::Contended { .. }) => told(&named, &Ok(()), "refused"),
            Err(error) => told(&named, &Err(Error::other(error)), "refused otherwise"),
            Ok(direct) => {
                let reader = File::open(&world.path)?;
                let done = attack();
                told(&named, &done, world.verdict(&direct, &reader));
                let _ = direct.close();
                continue;
            }
        }
        // And for reading alone: what is read could be another's by then.
        match world.take(File::open(&world.path)?) {
            Err(DirectError::Contended { .. }) => told(&format!("{named}, to read"), &Ok(()), "refused"),
            _ => told(&format!("{named}, to read"), &Ok(()), "VIOLATION"),
        }
        let _ = attack();
        drop(kept);
    }
    renew(world)?;
    let before = File::open(&world.path)?;
    let begun = std::time::Instant::now();
    let mut direct = loop {
        match world.take(open()?) {
            // The ring and the child go in the background.
            Err(DirectError::Contended { .. }) if begun.elapsed() < Duration::from_secs(20) => {}
            taken => break Some(taken.map_err(Error::other)?),
        }
    };
    let after = File::open(&world.path)?;
    let mut again = |name: &str, done: Result<()>| -> Result<()> {
        let verdict = direct.as_ref().map_or("nothing", |direct| world.verdict(direct, &before));
        told(name, &done, verdict);
        if verdict != "same" {
            // The next way begins anew.
            drop(direct.take());
            renew(world)?;
            direct = Some(world.take(open()?).map_err(Error::other)?);
        }
        Ok(())
    };
    for (when, reader) in [("before", &before), ("after", &after)] {
        for (name, way) in BY_DESCRIPTOR {
            again(&format!("{name}, opened {when}"), way(world, reader))?;
        }
    }
    for (name, way) in BY_PATH {
        again(name, way(world))?;
    }
    Ok(())
}

/// Keeps a descriptor, takes the file directly, gives its blocks away, and reads them past the kernel when somebody else has them.
fn victim(world: &World) -> Result<()> {
    renew(world)?;
    let kept = writable(&world.path)?;
    let direct = match world.take(writable(&world.path)?) {
        Ok(direct) => direct,
        Err(error) => {
            println!("refused\t{error}");
            return Ok(());
        }
    };
    let spare = world.spare()?;
    let moved = move_to(&spare, kept.as_raw_fd());
    let gone = if moved.is_ok() { spare.set_len(0) } else { kept.set_len(0) };
    spare.sync_all()?;
    println!("taken\t{moved:?} {gone:?}");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let mut buffer = vec![0; BYTES];
    let read = world.runtime.block_on(direct.read_at(&mut buffer, 0));
    let at = buffer.windows(10).position(|part| part == b"Bob alone ").unwrap_or(0);
    println!("read\t{}", String::from_utf8_lossy(&buffer[at..at + 60]));
    let wrote = world.runtime.block_on(direct.write_at(b"changed by another user", at as u64));
    println!("wrote\t{wrote:?} {read:?}");
    Ok(())
}

/// Writes past the kernel without end, a line for each write, until the device refuses.
fn writer(world: &World) -> Result<()> {
    renew(world)?;
    let direct = world.take(writable(&world.path)?).map_err(Error::other)?;
    let mut number = 0u64;
    let stdout = std::io::stdout();
    loop {
        number += 1;
        let done = world.runtime.block_on(direct.write_at(&number.to_le_bytes(), 0));
        let said = match done {
            Ok(_) => "written".to_owned(),
            Err(error) => error.to_string(),
        };
        if said != "written" || number.is_multiple_of(100) {
            writeln!(stdout.lock(), "{said}\t{number}")?;
        }
        if said != "written" {
            break;
        }
    }
    // Its files stay with it until it is told.
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Asks for the file again and again while it keeps a descriptor by which it writes, a line for each answer.
fn insistent(world: &World) -> Result<()> {
    renew(world)?;
    let _kept = writable(&world.path)?;
    for _ in 0..40 {
        match world.take(writable(&world.path)?) {
            Ok(_) => println!("taken\t"),
            Err(error) => println!("refused\t{error}"),
        }
    }
    Ok(())
}

/// A file whose mode forbids to open it so any more is written on by who has it open.
fn goes_on(device: &str, agent: &str, path: &Path) -> Result<()> {
    use rustix::fs::Mode;
    use willow_host::direct_io::{File as DirectlyOpen, Session, SessionOptions};
    let session = Session::open(SessionOptions::new(device, agent)).map_err(Error::other)?;
    let mut made = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    made.write_all(&[1; BYTES])?;
    let file = DirectlyOpen::new(&session, made).map_err(Error::other)?;
    file.change(|descriptor| rustix::fs::fchmod(descriptor, Mode::RUSR))?;
    assert_eq!(writable(path).map(|_| ()).map_err(|error| error.raw_os_error()), Err(Some(libc::EACCES)));
    for round in 1..4u64 {
        file.take().map_err(Error::other)?;
        assert_eq!(file.pwrite(b"directly", 0).map_err(Error::other)?, 8);
        assert!(file.is_direct());
        // It grows, which the kernel does.
        let end = BYTES as u64 * round;
        assert_eq!(file.pwrite(&[2; BYTES], end).map_err(Error::other)?, BYTES);
        assert_eq!(file.bytes().map_err(Error::other)?, end + BYTES as u64);
    }
    println!("went on\t");
    Ok(())
}

/// Connects as often as that goes, and stays.
fn crowd(agent: &Path) -> Result<()> {
    let many = rustix::process::Rlimit { current: Some(4096), maximum: Some(4096) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, many)?;
    let all: Vec<_> = (0..1100).map_while(|_| willow_shm::socket::Channel::connect(agent).ok()).collect();
    println!("there\t{}", all.len());
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Opens files of its own directly, as many as it gets, and keeps them; asks for one more at each line of its input.
fn hoard(world: &World) -> Result<()> {
    let mut held = Vec::new();
    let refusal = loop {
        let path = world.beside(&format!(".{}", held.len()));
        std::fs::write(&path, [5; 4096])?;
        match world.take(writable(&path)?) {
            Ok(direct) => held.push(direct),
            Err(error) => break error.to_string(),
        }
        if held.len() >= 300 {
            break "nothing".to_owned();
        }
    };
    println!("held\t{}\t{refusal}", held.len());
    std::io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Becomes another user, and asks as the one that it was.
fn turncoat(world: &World, user: u32) -> Result<()> {
    let file = File::open(&world.path)?;
    // SAFETY: a call without memory.
    check(i64::from(unsafe { libc::setresuid(user, user, user) }))?;
    match world.take(file) {
        Ok(_) => println!("taken\t"),
        Err(error) => println!("refused\t{error}"),
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, device, agent, file, what] = &arguments[..] else { panic!("DEVICE AGENT FILE WHAT") };
    if what == "crowd" {
        return crowd(Path::new(agent));
    }
    if what == "goes on" {
        return goes_on(device, agent, Path::new(file));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = ShmOptions { kind: willow_shm::message::Kind::User, ..ShmOptions::default() };
    let agent = AgentClient::connect(Path::new(agent)).map_err(Error::other)?;
    let hre: Arc<dyn Hre> = match device.as_str() {
        // Wherever the agent says.
        "-" => runtime.block_on(willow_host::direct_io::endpoint(&agent)).map_err(Error::other)?,
        device => Arc::new(ShmHre::open(Path::new(device), options).map_err(Error::other)?),
    };
    let world = World { agent, hre, runtime, path: PathBuf::from(file) };
    match what.as_str() {
        "attacks" => attacks(&world, false),
        "attacks of a reader" => attacks(&world, true),
        "victim" => victim(&world),
        "writer" => writer(&world),
        "insistent" => insistent(&world),
        "hoard" => hoard(&world),
        "turncoat" => turncoat(&world, 54_802),
        _ => panic!("there is no {what}"),
    }
}
