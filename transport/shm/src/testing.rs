//! What a hostile peer sends.

use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any test runs.
const LINGER: Duration = Duration::from_secs(30_000);

/// A socket whose last close waits, for as long as this lives: it has data that its other end does not take. Whoever it was sent to closes
/// it last when this process has [dropped its own](Lingering::give_up).
pub struct Lingering {
    socket: Option<TcpStream>,
    _other_end: TcpStream,
}

impl Lingering {
    /// On this machine's loopback.
    pub fn new() -> std::io::Result<Lingering> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        set_socket_recv_buffer_size(&listener, 4096)?;
        let mut socket = TcpStream::connect(listener.local_addr()?)?;
        let (other_end, _) = listener.accept()?;
        set_socket_linger(&socket, Some(LINGER))?;
        socket.set_nonblocking(true)?;
        loop {
            match socket.write(&[1; 65536]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Lingering { socket: Some(socket), _other_end: other_end })
    }

    /// To be sent.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("it was not given up").as_fd()
    }

    /// Closes this process' own. Where it was sent to another socket, and is closed there already, that is the last, and the thread waits;
    /// who joins it before anybody can have received it knows that the other one is the last.
    pub fn give_up(&mut self) -> JoinHandle<()> {
        let socket = self.socket.take();
        std::thread::spawn(move || drop(socket))
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        // Where nobody was sent it this process' own close is the last, and does not wait.
        if let Some(socket) = &self.socket {
            let _ = set_socket_linger(socket, None);
        }
    }
}
