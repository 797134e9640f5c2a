//! Listeners and sockets of both families, none of which ever blocks.

use super::ServerError;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Where clients come from.
pub enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// A path, which goes with it.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// On an address.
    pub fn tcp(address: SocketAddr) -> Result<Self, ServerError> {
        let listen = |source| ServerError::Listen { place: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        Ok(Listener::Tcp(listener))
    }

    /// On a path, for its owner alone. A socket there that nobody listens on any more is replaced.
    pub fn unix(path: &Path) -> Result<Self, ServerError> {
        let listen = |source| ServerError::Listen { place: path.display().to_string(), source };
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket
            && UnixStream::connect(path).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        {
            std::fs::remove_file(path).map_err(listen)?;
        }
        let listener = UnixListener::bind(path).map_err(listen)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        Ok(Listener::Unix(listener, path.to_owned()))
    }

    /// Where it is.
    pub fn place(&self) -> String {
        match self {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string())
            }
            Listener::Unix(_, path) => path.display().to_string(),
        }
    }

    /// The next client.
    pub fn accept(&self) -> Result<Socket, Errno> {
        let socket = rustix::net::accept_with(self, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        if let Listener::Tcp(_) = self {
            // Without it answers only come later.
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        }
        Ok(Socket(socket))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A client's socket.
pub struct Socket(OwnedFd);

impl Socket {
    /// Reads what is there.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&self.0, into, RecvFlags::empty()).map(|(bytes, _)| bytes)
    }

    /// Sends what goes.
    pub fn write(&self, from: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(&self.0, from, SendFlags::NOSIGNAL)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
