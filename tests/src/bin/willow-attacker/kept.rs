//! What keeps a file open for writing, and what it does to the file: each such thing has to keep it from being direct.

use super::{BYTES, World, move_to, ring, stalled, truncate, ways, writable};
use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Something by which the file can still be written, and what does so when it has been taken.
pub type Kept = (Box<dyn std::any::Any>, Box<dyn FnOnce() -> Result<()>>);

/// What keeps the file open for writing, by its name.
pub fn keep(world: &World, name: &str) -> Result<Kept> {
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
            (Box::new(()), Box::new(move || ways::store(at)))
        }
        "in a socket" => {
            let (one, other) = willow_shm_pair()?;
            send_descriptor(&one, number)?;
            drop(file);
            (Box::new(one), Box::new(move || truncate(&receive_descriptor(&other)?)))
        }
        "in a child" => {
            let ((mut listens, tells), (mut ended, ends)) = (std::io::pipe()?, std::io::pipe()?);
            // SAFETY: the child has one thread, and does no more than wait and truncate.
            if unsafe { libc::fork() } == 0 {
                drop((tells, ended));
                let _ = listens.read(&mut [0]);
                let _ = truncate(&file);
                drop(ends);
                std::process::exit(0);
            }
            drop((file, listens, ends));
            let tell = move || {
                let mut tells = tells;
                tells.write_all(b"x")?;
                ended.read(&mut [0]).map(|_| ())
            };
            (Box::new(()), Box::new(tell))
        }
        "in a ring" => {
            let ring = ring::Ring::with_file(number)?;
            drop(file);
            (Box::new(()), Box::new(move || ring.truncate_by_allocation(BYTES as u64)))
        }
        "behind a path" => {
            let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&world.path)?;
            let link = format!("/proc/self/fd/{}", path.as_raw_fd());
            drop(file);
            // Open by itself, it could be opened again.
            (Box::new(path), cut(writable(Path::new(&link))?))
        }
        "stalled in splice" => (Box::new(()), stalled::in_splice(file)?),
        "stalled in MOVE_EXT" => {
            let spare = world.spare()?;
            let words = vec![(spare.as_raw_fd() as u64) << 32, 0, 0, (BYTES / 4096) as u64, 0];
            (Box::new(()), stalled::in_ioctl(file, 0xc028_660f, words, spare)?)
        }
        "stalled in EXCHANGE_RANGE" => {
            let spare = world.spare()?;
            let words = vec![spare.as_raw_fd() as u64, 0, 0, BYTES as u64, 0];
            (Box::new(()), stalled::in_ioctl(file, 0x4028_5881, words, spare)?)
        }
        "stalled in ENABLE_VERITY" => {
            drop(file);
            (Box::new(()), stalled::in_sealing(File::open(&world.path)?)?)
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

/// What waits for memory that is not there: an ordinary user may not have the kernel wait so (vm.unprivileged_userfaultfd), but by a file
/// system in user space.
pub const ONLY_AS_ROOT: [&str; 3] = ["stalled in MOVE_EXT", "stalled in EXCHANGE_RANGE", "stalled in ENABLE_VERITY"];

pub const KEPT: [&str; 14] = [
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
    "stalled in splice",
    "stalled in MOVE_EXT",
    "stalled in EXCHANGE_RANGE",
    "stalled in ENABLE_VERITY",
];
