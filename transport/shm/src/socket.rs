//! Unix sockets that keep messages apart (SOCK_SEQPACKET), carry descriptors, and tell who the peer is.
//!
//! What always holds:
//! - who the peer is comes from the kernel, as it was when the peer connected, and never from a message;
//! - sending never waits, and receiving waits only where its caller asks: neither depends on a flag that the peer could change;
//! - at most [`DESCRIPTORS_MAX`] descriptors come with a message, closed on exec; more, and longer messages, are errors;
//! - a connection that a [`Listener`] has accepted gives no descriptors until it is [admitted](Channel::admit): the kernel refuses them, or
//!   they stay in the queue. Whoever drops it until then does not wait for what somebody else's descriptors do when they are closed.

use crate::closing::{Closer, Unclosed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Most descriptors with a message.
pub const DESCRIPTORS_MAX: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Linux 6.5: a descriptor of the process that connected. Not in `libc` for all targets.
const SO_PEERPIDFD: i32 = 77;
/// Linux 6.16: whether a socket takes descriptors; who sends one to a socket that does not is refused (EPERM).
const SO_PASSRIGHTS: i32 = 83;

/// Who is at the other end: from the kernel.
#[derive(Debug)]
pub struct Peer {
    /// Process id when it connected; another process may have it since, unless `process` says that it still runs.
    pub pid: i32,
    /// Effective user id when it connected.
    pub uid: u32,
    /// Effective group id then.
    pub gid: u32,
    /// The process itself; `None` where the kernel cannot name it.
    pub process: Option<OwnedFd>,
}

impl Peer {
    /// What tells this process from all others, whatever their ids: its pidfd's inode where the kernel gives each process
    /// one of its own (6.9), else its id and when it started.
    pub fn identity(&self) -> (u64, u64) {
        if let Some(process) = &self.process
            && let (Ok(stat), Ok(file_system)) = (rustix::fs::fstat(process), rustix::fs::fstatfs(process))
            && file_system.f_type == PIDFS_MAGIC
        {
            return (u64::MAX, stat.st_ino);
        }
        (self.pid as u64, crate::process::started(self.pid).unwrap_or(0))
    }

    /// True once the process has ended (all threads of it).
    pub fn has_ended(&self) -> bool {
        match &self.process {
            Some(process) => is_readable(process.as_fd(), Duration::ZERO),
            None => crate::process::started(self.pid).is_none(),
        }
    }
}

/// File system type of process descriptors that have inodes of their own.
const PIDFS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

fn is_readable(descriptor: BorrowedFd<'_>, wait: Duration) -> bool {
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    let mut wanted = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    matches!(poll(&mut wanted, Some(&timeout)), Ok(ready) if ready > 0)
}

/// Why a message could not be received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The peer has closed.
    #[error("the other side has closed the connection")]
    Closed,
    /// Nothing has come (in time).
    #[error("nothing came in time")]
    Nothing,
    /// Longer, or with more descriptors, than may be.
    #[error("a message longer than {MESSAGE_BYTES_MAX} bytes, or with more than {DESCRIPTORS_MAX} descriptors")]
    TooLarge,
    /// With descriptors, where none are taken: it stays in the queue, and so does what comes after it.
    #[error("a message with descriptors, which are not taken here")]
    Descriptors,
    /// The kernel says so.
    #[error("the connection failed: {0}")]
    System(std::io::Error),
}

/// A message with what came with it.
pub struct Message {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// Descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    /// There until the value is dropped.
    socket: ManuallyDrop<OwnedFd>,
    /// Who closes it, and what lives until it is closed; `None` where its queue holds nothing whose close waits, or who has it waits for that.
    closer: Option<(Arc<Closer>, Arc<()>)>,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here, and nothing uses the field after this.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if let Some((closer, open)) = self.closer.take() {
            closer.close(socket, open);
        }
    }
}

impl From<OwnedFd> for Channel {
    /// A connection that another process has handed over, or that a process was started with.
    fn from(socket: OwnedFd) -> Self {
        Channel { socket: ManuallyDrop::new(socket), closer: None }
    }
}

impl From<Channel> for OwnedFd {
    fn from(mut channel: Channel) -> Self {
        channel.closer = None;
        let mut channel = ManuallyDrop::new(channel);
        // SAFETY: it is taken once: what drops a channel does not run for this one, of which nothing else is left to drop.
        unsafe { ManuallyDrop::take(&mut channel.socket) }
    }
}

impl Channel {
    /// Connects to a socket.
    pub fn connect(path: &Path) -> std::io::Result<Channel> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let socket = crate::own::raised(socket);
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Channel::from(socket))
    }

    /// Two ends of one connection, for tests and for processes that are related.
    pub fn pair() -> std::io::Result<(Channel, Channel)> {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel::from(one), Channel::from(other)))
    }

    /// From now on descriptors that come are taken, and who drops it waits for as long as it takes to close what is in its queue.
    pub fn admit(&mut self) {
        self.closer = None;
    }

    /// Whether it is open, for who drops it.
    pub fn unclosed(&self) -> Unclosed {
        Unclosed::of(self.closer.as_ref().map(|(_, open)| open))
    }

    /// Who is at the other end.
    pub fn peer(&self) -> std::io::Result<Peer> {
        // Through `libc`, since a peer in another pid namespace has process id 0, which rustix' type cannot hold.
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        self.option(libc::SO_PEERCRED, &mut credentials)?;
        let mut descriptor: libc::c_int = -1;
        let process = match self.option(SO_PEERPIDFD, &mut descriptor) {
            // SAFETY: the kernel has just made this descriptor for this process, and nobody else knows it.
            Ok(()) if descriptor >= 0 => Some(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            _ => rustix::process::Pid::from_raw(credentials.pid)
                .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()),
        };
        Ok(Peer { pid: credentials.pid, uid: credentials.uid, gid: credentials.gid, process })
    }

    /// Reads an option of the socket into a plain structure of integers.
    fn option<T: Copy>(&self, name: libc::c_int, into: &mut T) -> std::io::Result<()> {
        let mut length = size_of::<T>() as libc::socklen_t;
        let descriptor = self.socket.as_raw_fd();
        // SAFETY: the kernel writes at most `length` bytes into `into`, which is as long; callers use structures of integers.
        let got = unsafe {
            libc::getsockopt(descriptor, libc::SOL_SOCKET, name, std::ptr::from_mut(into).cast(), &raw mut length)
        };
        if got == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Turns an option of the socket off.
    fn turn_off(&self, name: libc::c_int) -> std::io::Result<()> {
        let off: libc::c_int = 0;
        let (value, length) = (std::ptr::from_ref(&off).cast(), size_of_val(&off) as libc::socklen_t);
        // SAFETY: the kernel reads as many bytes as the value has.
        match unsafe { libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_SOCKET, name, value, length) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Sends a message; [`Errno::AGAIN`] where the peer has too many that it did not take.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::TOOBIG);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(self.socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, flags).map(|_| ())
    }

    /// Takes a message that has come.
    pub fn receive(&self) -> Result<Message, ReceiveError> {
        if self.closer.is_some() {
            // Without room for descriptors they stay where they are, and the kernel says that there are some.
            let seen = self.receive_by(&mut [], &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK)?;
            if seen.flags.contains(ReturnFlags::CTRUNC) {
                return Err(ReceiveError::Descriptors);
            }
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = self.receive_by(&mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(these) = message {
                descriptors.extend(these);
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ReceiveError::TooLarge);
        }
        if received.bytes == 0 && descriptors.is_empty() {
            return Err(ReceiveError::Closed);
        }
        Ok(Message { bytes: bytes[..received.bytes].to_vec(), descriptors })
    }

    fn receive_by(
        &self,
        bytes: &mut [u8],
        ancillary: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> Result<RecvMsg, ReceiveError> {
        loop {
            let flags = flags | RecvFlags::DONTWAIT;
            match rustix::net::recvmsg(self.as_fd(), &mut [IoSliceMut::new(bytes)], ancillary, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(ReceiveError::Nothing),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(ReceiveError::Closed),
                Err(error) => return Err(ReceiveError::System(error.into())),
                Ok(received) => return Ok(received),
            }
        }
    }

    /// Waits for a message for at most this long.
    pub fn receive_within(&self, wait: Duration) -> Result<Message, ReceiveError> {
        match self.receive() {
            Err(ReceiveError::Nothing) if self.wait(wait) => self.receive(),
            other => other,
        }
    }

    /// Waits for a message of this peer for at most this long, and no longer than its process lives, as far as the kernel can tell.
    pub fn receive_from(&self, peer: &Peer, wait: Duration) -> Result<Message, ReceiveError> {
        let Some(process) = &peer.process else { return self.receive_within(wait) };
        match self.receive() {
            Err(ReceiveError::Nothing) => {
                let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
                let mut wanted =
                    [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN), PollFd::new(process, PollFlags::IN)];
                let _ = poll(&mut wanted, Some(&timeout));
                self.receive()
            }
            other => other,
        }
    }

    /// Waits until something has come, or the peer has closed; false where it did not within this time.
    pub fn wait(&self, wait: Duration) -> bool {
        is_readable(self.as_fd(), wait)
    }
}

/// Whether descriptors may be sent to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// They may, and whoever is [admitted](Channel::admit) has them received.
    Taken,
    /// They are refused: by the kernel where it can (Linux 6.16).
    Refused,
    /// As before Linux 6.16: they arrive, and are left in the queue.
    Left,
}

/// A socket that processes connect to; its file goes with it.
#[derive(Debug)]
pub struct Listener {
    /// As a channel, since connections that were not accepted go with it.
    socket: Channel,
    path: PathBuf,
    /// Device and inode of the file, so that nobody else's is removed.
    file: Option<(u64, u64)>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.file.is_some() && file_of(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// True where the process that listens at the other end has ended, as far as it can.
pub fn is_left(channel: &Channel) -> bool {
    channel.peer().is_ok_and(|peer| crate::process::is_ending(peer.pid))
}

fn file_of(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::lstat(path).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

impl Listener {
    /// Listens at a path, with these permissions for its file. A socket there that nobody serves any more is replaced; one
    /// that is served, or a file of another kind, is an error.
    pub fn bind(path: &Path, mode: u32, descriptors: Descriptors) -> std::io::Result<Listener> {
        let address = SocketAddrUnix::new(path)?;
        if let Ok(stat) = rustix::fs::lstat(path) {
            if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Socket {
                return Err(std::io::Error::other("there is a file of that name, which is no socket"));
            }
            match Channel::connect(path) {
                Err(error) if error.raw_os_error() == Some(Errno::CONNREFUSED.raw_os_error()) => {
                    std::fs::remove_file(path)?;
                }
                Ok(channel) if is_left(&channel) => std::fs::remove_file(path)?,
                Ok(_) => return Err(std::io::Error::other("another process serves that socket")),
                Err(error) => return Err(error),
            }
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&socket, &address)?;
        let file = file_of(path);
        let mut listener = Listener { socket: Channel::from(socket), path: path.to_owned(), file };
        // Who connects inherits it, and nobody has connected yet.
        if descriptors != Descriptors::Refused || listener.socket.turn_off(SO_PASSRIGHTS).is_err() {
            listener.socket.closer = Some((Arc::new(Closer::new()?), Arc::default()));
        }
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// Accepts one that has connected; [`Errno::AGAIN`] where there is none.
    pub fn accept(&self) -> Result<Channel, Errno> {
        let mut channel = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).map(Channel::from)?;
        channel.closer = self.socket.closer.as_ref().map(|(closer, _)| (closer.clone(), Arc::default()));
        Ok(channel)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

// Miri has no such sockets.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::testing::Lingering;
    use std::io::{Read, Write};

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("willow-socket-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let (one, other) = Channel::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        one.send(b"first", &[writer.as_fd()]).unwrap();
        one.send(b"second", &[]).unwrap();
        drop(writer);
        let first = other.receive().unwrap();
        assert_eq!((first.bytes.as_slice(), first.descriptors.len()), (&b"first"[..], 1));
        let mut file = std::fs::File::from(first.descriptors.into_iter().next().unwrap());
        file.write_all(b"through").unwrap();
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert_eq!(other.receive().unwrap().bytes, b"second");
        assert!(matches!(other.receive(), Err(ReceiveError::Nothing)));
        drop(one);
        assert!(matches!(other.receive_within(Duration::from_secs(5)), Err(ReceiveError::Closed)));
    }

    #[test]
    fn what_is_too_much_is_an_error_and_leaks_nothing() {
        let (one, other) = Channel::pair().unwrap();
        one.send(&vec![1; MESSAGE_BYTES_MAX], &[]).unwrap();
        assert_eq!(other.receive().unwrap().bytes.len(), MESSAGE_BYTES_MAX);
        one.send(&vec![1; MESSAGE_BYTES_MAX + 1], &[]).unwrap();
        assert!(matches!(other.receive(), Err(ReceiveError::TooLarge)));
        // A peer that takes nothing does not hold up the sender.
        let refused = (0..100_000).find_map(|_| one.send(b"!", &[]).err());
        assert_eq!(refused, Some(Errno::AGAIN));
    }

    #[test]
    fn the_peer_is_who_the_kernel_says() {
        let path = scratch("peer");
        let listener = Listener::bind(&path, 0o600, Descriptors::Taken).unwrap();
        assert_eq!(listener.accept().unwrap_err(), Errno::AGAIN);
        let _client = Channel::connect(&path).unwrap();
        let accepted = listener.accept().unwrap();
        let peer = accepted.peer().unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert!(!peer.has_ended());
        assert_eq!(peer.identity(), accepted.peer().unwrap().identity());
    }

    #[test]
    fn a_peer_is_gone_with_its_process_though_its_socket_lives() {
        // As where a child has inherited the socket: `other` stays open.
        let (one, _other) = Channel::pair().unwrap();
        let mut process = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(process.id() as i32).unwrap();
        let opened = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let peer = Peer { pid: process.id() as i32, uid: 0, gid: 0, process: Some(opened) };
        assert!(matches!(one.receive_from(&peer, Duration::ZERO), Err(ReceiveError::Nothing)));
        assert!(!peer.has_ended());
        process.kill().unwrap();
        let begun = std::time::Instant::now();
        while !peer.has_ended() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            assert!(matches!(one.receive_from(&peer, Duration::from_secs(1)), Err(ReceiveError::Nothing)));
        }
        process.wait().unwrap();
    }

    /// A peer that has sent such a socket; its own end is to be kept.
    fn hostile(path: &Path) -> (Channel, Lingering) {
        let channel = Channel::connect(path).unwrap();
        let mut lingering = Lingering::new().unwrap();
        channel.send(b"x", &[lingering.descriptor()]).unwrap();
        lingering.give_up().join().unwrap();
        (channel, lingering)
    }

    fn until(what: &str, holds: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_a_peer_has_sent_is_closed_in_a_thread_of_its_own() {
        let path = scratch("hostile");
        let listener = Listener::bind(&path, 0o600, Descriptors::Left).unwrap();
        // As many at once as there are threads for, and more, if each waited.
        let (mut peers, mut left) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            peers.push(hostile(&path));
            let channel = listener.accept().unwrap();
            // However often it looks: the descriptor stays where it is.
            for _ in 0..3 {
                assert!(matches!(channel.receive(), Err(ReceiveError::Descriptors)));
            }
            left.push(channel.unclosed());
            // If this waited, it would for hours.
            drop(channel);
        }
        // The peers see it at once, and the signal ends all those waits.
        assert!(peers.iter().all(|(peer, _)| matches!(peer.receive(), Err(ReceiveError::Closed))));
        until("all are closed", || left.iter().all(|it| !it.is_open()));
        // One that sends nothing of that kind is served as ever.
        let good = Channel::connect(&path).unwrap();
        let channel = listener.accept().unwrap();
        good.send(b"one", &[]).unwrap();
        good.send(b"two", &[]).unwrap();
        assert_eq!(channel.receive().unwrap().bytes, b"one");
        assert_eq!(channel.receive().unwrap().bytes, b"two");
        assert!(matches!(channel.receive(), Err(ReceiveError::Nothing)));
        drop(good);
        assert!(matches!(channel.receive(), Err(ReceiveError::Closed)));
        // And those that nobody has accepted go with the listener.
        let waiting = hostile(&path);
        drop(listener);
        until("its connection is over", || matches!(waiting.0.receive(), Err(ReceiveError::Closed)));
        drop(peers);
    }

    #[test]
    fn a_socket_that_takes_no_descriptors_has_the_kernel_refuse_them() {
        let path = scratch("refused");
        let listener = Listener::bind(&path, 0o600, Descriptors::Refused).unwrap();
        let peer = Channel::connect(&path).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let sent = peer.send(b"x", &[null.as_fd()]);
        let channel = listener.accept().unwrap();
        if listener.socket.closer.is_some() {
            // A kernel before 6.16.
            assert!(sent.is_ok() && matches!(channel.receive(), Err(ReceiveError::Descriptors)));
            return;
        }
        assert_eq!(sent, Err(Errno::PERM), "before it was accepted");
        assert_eq!(peer.send(b"x", &[null.as_fd()]), Err(Errno::PERM));
        peer.send(b"y", &[]).unwrap();
        assert_eq!(channel.receive().unwrap().bytes, b"y");
        assert!(!channel.unclosed().is_open());
        // It sends some itself.
        channel.send(b"z", &[null.as_fd()]).unwrap();
        assert_eq!(peer.receive().unwrap().descriptors.len(), 1);
    }

    #[test]
    fn who_is_admitted_has_descriptors_received() {
        let path = scratch("admitted");
        let listener = Listener::bind(&path, 0o600, Descriptors::Taken).unwrap();
        let peer = Channel::connect(&path).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        peer.send(b"x", &[null.as_fd()]).unwrap();
        let mut channel = listener.accept().unwrap();
        assert!(matches!(channel.receive(), Err(ReceiveError::Descriptors)));
        channel.admit();
        assert_eq!(channel.receive().unwrap().descriptors.len(), 1);
        assert!(!channel.unclosed().is_open());
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let path = scratch("dead");
        let listener = Listener::bind(&path, 0o600, Descriptors::Taken).unwrap();
        assert!(Listener::bind(&path, 0o600, Descriptors::Taken).unwrap_err().to_string().contains("another process"));
        // As a killed process leaves it: the file is there, and nobody listens.
        let mut dead = listener;
        dead.file = None;
        drop(dead);
        assert!(path.exists());
        let listener = Listener::bind(&path, 0o666, Descriptors::Refused).unwrap();
        assert!(Channel::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists(), "the file goes with the listener");
        std::fs::write(&path, b"mine").unwrap();
        assert!(Listener::bind(&path, 0o600, Descriptors::Taken).unwrap_err().to_string().contains("no socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        std::fs::remove_file(&path).unwrap();
    }
}
