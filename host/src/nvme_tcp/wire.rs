//! What a queue's bytes go through: the socket as it is, or TLS on it (NVMe/TCP Transport 3.6.1).
//!
//! What always holds: with a key, no byte of NVMe goes before the handshake is over; what TLS has sealed and could not send is the first
//! of what it is handed next, since a queue's output leaves in its order.

use super::socket::send_vectored;
use super::{NvmeError, Options};
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use willow_auth::{Derivation, PresharedKey};
use willow_tls::{Received, Session, TlsError};

/// Slices from here on are sealed from where they are, smaller ones are put together up to [`GATHERED_BYTES`].
const DIRECT_BYTES_MIN: usize = 16 << 10;
const GATHERED_BYTES: usize = 64 << 10;

/// TLS on a socket.
#[derive(Debug)]
pub(super) struct Sealed {
    session: Session,
    gathered: Vec<u8>,
}

impl Sealed {
    /// For the subsystem of these options; `None` where they have no key, or have none yet.
    pub fn new(options: &Options) -> std::result::Result<Option<Box<Self>>, NvmeError> {
        let configured =
            |psk: &Arc<PresharedKey>| psk.tls_key(&options.host_nqn, &options.subsystem_nqn, 1, Derivation::Standard);
        let key = options.channel_key.as_deref().cloned().or_else(|| options.psk.as_ref().map(configured));
        let Some(key) = key else { return Ok(None) };
        let session = Session::connect(&key).map_err(|source| refused(options, source))?;
        Ok(Some(Box::new(Sealed { session, gathered: Vec::new() })))
    }

    fn handshake(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        match self.session.handshake(socket) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(Error::other(error)),
        }
    }

    fn read(&mut self, socket: BorrowedFd<'_>, slices: &mut [IoSliceMut<'_>; 2]) -> Result<usize> {
        let mut total = 0;
        for slice in slices.iter_mut().filter(|slice| !slice.is_empty()) {
            match self.session.read(socket, slice) {
                Ok(Received::Bytes(count)) if count == slice.len() => total += count,
                Ok(Received::Bytes(count)) => return Ok(total + count),
                // What was read before is handed on first; the rest is told again.
                _ if total > 0 => break,
                Ok(Received::Blocked) => return Err(ErrorKind::WouldBlock.into()),
                Ok(Received::Closed) => return Ok(0),
                Err(error) => return Err(Error::other(error)),
            }
        }
        Ok(total)
    }

    fn write(&mut self, socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize> {
        let bytes = match slices {
            [first, ..] if first.len() >= DIRECT_BYTES_MIN => first,
            _ => {
                self.gathered.clear();
                for slice in slices {
                    let room = GATHERED_BYTES - self.gathered.len();
                    self.gathered.extend_from_slice(&slice[..slice.len().min(room)]);
                }
                self.gathered.as_slice()
            }
        };
        match self.session.write(socket, bytes) {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(Error::other(error)),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.session.close(self.stream.as_fd());
        }
    }
}

impl Drop for BlockingWire {
    fn drop(&mut self) {
        if let Some(sealed) = &mut self.sealed {
            sealed.session.close(self.stream.as_fd());
        }
    }
}

fn refused(options: &Options, source: TlsError) -> NvmeError {
    NvmeError::Secure { address: options.address, source }
}

/// The error of TLS in an error of the system.
fn negotiated(options: &Options, outcome: Result<()>) -> std::result::Result<(), NvmeError> {
    outcome.map_err(|error| match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        Some(source) => refused(options, source.clone()),
        None => NvmeError::Connect { address: options.address, source: error.into() },
    })
}

/// A socket of tokio's.
#[derive(Debug)]
pub(super) struct Wire {
    pub stream: tokio::net::TcpStream,
    sealed: Option<Box<Sealed>>,
}

impl Wire {
    /// Agrees on TLS where the options have a key.
    pub async fn open(stream: tokio::net::TcpStream, options: &Options) -> std::result::Result<Self, NvmeError> {
        let mut wire = Wire { stream, sealed: Sealed::new(options)? };
        if let Some(sealed) = &mut wire.sealed {
            let stream = &wire.stream;
            // It speaks first.
            let mut outcome = sealed.handshake(stream.as_fd());
            while outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                outcome = stream.readable().await;
                if outcome.is_ok() {
                    outcome = stream.try_io(Interest::READABLE, || sealed.handshake(stream.as_fd()));
                }
            }
            negotiated(options, outcome)?;
        }
        Ok(wire)
    }

    pub fn try_read(&mut self, slices: &mut [IoSliceMut<'_>; 2]) -> Result<usize> {
        let stream = &self.stream;
        match &mut self.sealed {
            None => stream.try_read_vectored(slices),
            Some(sealed) => stream.try_io(Interest::READABLE, || sealed.read(stream.as_fd(), slices)),
        }
    }

    pub fn try_write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let stream = &self.stream;
        match &mut self.sealed {
            None => stream.try_write_vectored(slices),
            Some(sealed) => stream.try_io(Interest::WRITABLE, || sealed.write(stream.as_fd(), slices)),
        }
    }
}

/// A socket that a thread polls itself; it does not block.
#[derive(Debug)]
pub(super) struct BlockingWire {
    pub stream: TcpStream,
    sealed: Option<Box<Sealed>>,
}

impl BlockingWire {
    /// Agrees on TLS where the options have a key, and waits for it.
    pub fn open(stream: TcpStream, options: &Options) -> std::result::Result<Self, NvmeError> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut wire = BlockingWire { stream, sealed: Sealed::new(options)? };
        let until = Instant::now() + options.connect_timeout;
        if let Some(sealed) = &mut wire.sealed {
            let mut outcome = sealed.handshake(wire.stream.as_fd());
            while outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                let left = until.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
                if left.is_zero() {
                    return Err(NvmeError::TimedOut { what: "TLS handshake", after: options.connect_timeout });
                }
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
                let _ = poll(&mut [PollFd::new(&wire.stream, PollFlags::IN)], Some(&left));
                outcome = sealed.handshake(wire.stream.as_fd());
            }
            negotiated(options, outcome)?;
        }
        Ok(wire)
    }

    #[inline]
    pub fn read(&mut self, slices: &mut [IoSliceMut<'_>; 2]) -> Result<usize> {
        match &mut self.sealed {
            None if slices[1].is_empty() => self.stream.read(&mut slices[0]),
            None => self.stream.read_vectored(slices),
            Some(sealed) => sealed.read(self.stream.as_fd(), slices),
        }
    }

    #[inline]
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        match &mut self.sealed {
            None if slices.len() == 1 => self.stream.write(&slices[0]),
            None => send_vectored(&self.stream, slices),
            Some(sealed) => sealed.write(self.stream.as_fd(), slices),
        }
    }
}
