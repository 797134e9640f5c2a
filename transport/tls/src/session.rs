//! One end of a TLS connection over a socket that does not block.
//!
//! What always holds: the socket is the caller's and is handed in with every call; after an error a session does no more; plaintext is
//! handed out only of records that were whole and genuine.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;

use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{AlertBehavior, Blinding, Mode, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use willow_auth::{Hash, TlsKey};

use crate::hello::Offers;
use crate::hosts::{KnownHosts, Proven};

/// Ciphertext that is handed to the kernel in one call: four records of 16 KiB with what is around them.
pub const SEND_BYTES: u32 = 4 * (16 << 10) + 4 * 256;
/// The policy of s2n-tls that has TLS 1.3 alone, and the two cipher suites of NVMe/TCP 3.6.1.1 alone.
const POLICY: &str = "ELBSecurityPolicy-TLS13-1-3-FIPS-2023-04";

/// Why a TLS connection cannot be, or has ended. It names no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(Arc<str>);

impl TlsError {
    fn new(text: impl Into<Arc<str>>) -> Self {
        TlsError(text.into())
    }
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes of plaintext, at least one.
    Bytes(usize),
    /// There is nothing now.
    Blocked,
    /// The other end said that it sends no more (close_notify).
    Closed,
}

/// What is known of a session while its ClientHello is looked at.
#[derive(Default)]
struct Choice {
    chosen: Option<(String, Proven)>,
    refused: Option<String>,
}

/// Picks the key by what a ClientHello offers.
struct Chooser(KnownHosts);

impl Chooser {
    fn choose(&self, connection: &mut Connection) -> Result<(TlsKey, Proven), String> {
        let hello = connection.client_hello().map_err(|error| error.to_string())?;
        let body = hello.raw_message().map_err(|error| error.to_string())?;
        let random = hello.random().map_err(|error| error.to_string())?;
        // As it was sent: the library leaves the header out, and the random bytes.
        let mut message = vec![1];
        message.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend_from_slice(&body);
        if let Some(place) = message.get_mut(6..38) {
            place.copy_from_slice(&random);
        }
        let offers = Offers::parse(&message).ok_or("it offers no pre-shared key")?;
        self.0.choose(&offers)
    }
}

impl ClientHelloCallback for Chooser {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, s2n_tls::error::Error> {
        let outcome = self.choose(connection);
        let choice = match outcome {
            Ok((key, proven)) => {
                connection.append_psk(&psk(&key)?)?;
                Choice { chosen: Some((key.identity, proven)), refused: None }
            }
            Err(reason) => Choice { chosen: None, refused: Some(reason) },
        };
        let refused = choice.refused.is_some();
        connection.set_application_context(choice);
        if refused {
            return Err(s2n_tls::error::Error::application("no key for this host".into()));
        }
        Ok(None)
    }
}

fn psk(key: &TlsKey) -> Result<Psk, s2n_tls::error::Error> {
    let mut psk = Psk::builder()?;
    psk.set_identity(key.identity.as_bytes())?;
    psk.set_secret(&key.secret)?;
    psk.set_hmac(if key.hash == Hash::Sha256 { PskHmac::SHA256 } else { PskHmac::SHA384 })?;
    psk.build()
}

fn unusable(error: s2n_tls::error::Error) -> TlsError {
    TlsError::new(format!("TLS cannot be used: {}", error.message()))
}

fn builder() -> Result<Builder, s2n_tls::error::Error> {
    let mut config = Builder::new();
    config.set_security_policy(&Policy::from_version(POLICY)?)?;
    // No certificate is trusted: who has not the key is nobody.
    config.with_system_certs(false)?;
    config.wipe_trust_store()?;
    config.set_alert_behavior(AlertBehavior::FailOnWarnings)?;
    config.set_send_buffer_size(SEND_BYTES)?;
    // Delays after errors hide how long the padding of CBC took to be checked. These suites have none: who is refused is told at once.
    config.set_max_blinding_delay(0)?;
    Ok(config)
}

/// The target's end: makes sessions with the hosts that it knows.
#[derive(Clone)]
pub struct Acceptor(Config);

impl Acceptor {
    /// For these hosts.
    pub fn new(hosts: KnownHosts) -> Result<Self, TlsError> {
        let mut config = builder().map_err(unusable)?;
        config.set_client_hello_callback(Chooser(hosts)).map_err(unusable)?;
        Ok(Acceptor(config.build().map_err(unusable)?))
    }

    /// A session with whoever it is.
    pub fn accept(&self) -> Result<Session, TlsError> {
        Session::new(Mode::Server, self.0.clone()).map_err(unusable)
    }
}

/// A session: first its handshake, then bytes both ways.
pub struct Session {
    connection: Connection,
    /// What the initiator offered, to be compared with what was agreed on.
    offered: Option<String>,
    proven: Option<Proven>,
    failure: Option<TlsError>,
    closed: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.proven)
    }
}

/// The descriptor is the context itself: a number, so that there is nothing to dangle.
fn descriptor(context: *mut c_void) -> c_int {
    context.addr() as c_int
}

unsafe extern "C" fn receive(context: *mut c_void, buffer: *mut u8, length: u32) -> c_int {
    // SAFETY: the library hands a buffer of that length.
    unsafe { libc::recv(descriptor(context), buffer.cast(), length as usize, libc::MSG_DONTWAIT) as c_int }
}

unsafe extern "C" fn send(context: *mut c_void, buffer: *const u8, length: u32) -> c_int {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the library hands a buffer of that length.
    unsafe { libc::send(descriptor(context), buffer.cast(), length as usize, flags) as c_int }
}

impl Session {
    fn new(mode: Mode, config: Config) -> Result<Self, s2n_tls::error::Error> {
        let mut connection = Connection::new(mode);
        connection.set_config(config)?;
        // The key is chosen at once: nothing is there to be woken.
        connection.set_waker(Some(std::task::Waker::noop()))?;
        connection.set_blinding(Blinding::SelfService)?;
        connection.prefer_throughput()?;
        connection.set_receive_buffering(true)?;
        connection.set_receive_callback(Some(receive))?;
        connection.set_send_callback(Some(send))?;
        Ok(Session { connection, offered: None, proven: None, failure: None, closed: false })
    }

    /// The initiator's end, with its key for one subsystem.
    pub fn connect(key: &TlsKey) -> Result<Self, TlsError> {
        let make = || {
            let mut session = Session::new(Mode::Client, builder()?.build()?)?;
            session.connection.append_psk(&psk(key)?)?;
            Ok(session)
        };
        let mut session = make().map_err(unusable)?;
        session.offered = Some(key.identity.clone());
        Ok(session)
    }

    /// Whom it is with; on the target's end, after the handshake.
    pub fn proven(&self) -> Option<&Proven> {
        self.proven.as_ref()
    }

    /// True where the other end has said goodbye or something went wrong: reading tells it once all that came before was read.
    pub fn is_over(&self) -> bool {
        self.closed || self.failure.is_some()
    }

    fn attach(&mut self, socket: BorrowedFd<'_>) -> Result<(), TlsError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let context = std::ptr::without_provenance_mut(socket.as_raw_fd() as usize);
        // SAFETY: the context is a number that nothing is read by; it is set anew before each call that uses it.
        let attached = unsafe {
            let connection = &mut self.connection;
            connection.set_receive_context(context).and_then(|connection| connection.set_send_context(context)).is_ok()
        };
        if attached { Ok(()) } else { Err(TlsError::new("TLS cannot use the socket")) }
    }

    fn failed(&mut self, error: s2n_tls::error::Error) -> TlsError {
        let refused = self.connection.application_context_mut::<Choice>().and_then(|choice| choice.refused.take());
        let text = match (refused, self.connection.alert()) {
            (Some(reason), _) => reason,
            (None, Some(alert)) => format!("the other end refused: {} (alert {alert})", alert_name(alert)),
            (None, None) => match error.name() {
                "S2N_ERR_CLOSED" => "the other end closed the connection".to_owned(),
                "S2N_ERR_IO" => "the connection is lost".to_owned(),
                "S2N_ERR_BAD_PSK_BINDER" | "S2N_ERR_BAD_MESSAGE" if self.offered.is_none() && self.proven.is_none() => {
                    format!("the host has another key, or its message is damaged: {}", error.message())
                }
                _ => error.message().to_owned(),
            },
        };
        let error = TlsError::new(text);
        self.failure = Some(error.clone());
        error
    }

    /// Goes on with the handshake; true when it is over. On an error the other end is told.
    pub fn handshake(&mut self, socket: BorrowedFd<'_>) -> Result<bool, TlsError> {
        self.attach(socket)?;
        match self.connection.poll_negotiate().map_ok(|_| ()) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(())) => self.agreed().map(|()| true),
            Poll::Ready(Err(error)) => {
                let _ = self.connection.poll_shutdown_send();
                Err(self.failed(error))
            }
        }
    }

    /// Checks that what was agreed on is what was meant.
    fn agreed(&mut self) -> Result<(), TlsError> {
        let chosen = self.connection.application_context_mut::<Choice>().and_then(|choice| choice.chosen.take());
        let (wanted, proven) = match chosen {
            Some((identity, proven)) => (Some(identity), Some(proven)),
            None => (self.offered.take(), None),
        };
        let length = self.connection.negotiated_psk_identity_length().unwrap_or(0);
        let mut identity = vec![0; length];
        let read = self.connection.negotiated_psk_identity(&mut identity).is_ok();
        if !read || wanted.is_none_or(|wanted| wanted.as_bytes() != identity) {
            let error = TlsError::new("the pre-shared key was not used");
            self.failure = Some(error.clone());
            return Err(error);
        }
        self.proven = proven;
        Ok(())
    }

    /// Reads until `buffer` is full or there is no more now.
    pub fn read(&mut self, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, TlsError> {
        if self.closed {
            return Ok(Received::Closed);
        }
        self.attach(socket)?;
        let mut count = 0;
        while count < buffer.len() {
            match self.connection.poll_recv(&mut buffer[count..]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.closed = true;
                    break;
                }
                Poll::Ready(Ok(bytes)) => count += bytes,
                Poll::Ready(Err(error)) => {
                    let error = self.failed(error);
                    // What came before is genuine; the error is told by the next call.
                    if count == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        Ok(match count {
            0 if self.closed => Received::Closed,
            0 => Received::Blocked,
            count => Received::Bytes(count),
        })
    }

    /// Writes what goes, up to all of `bytes`; `None` where nothing does now. What did not go is to be handed in again first, with
    /// more behind it or not.
    pub fn write(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<Option<usize>, TlsError> {
        self.attach(socket)?;
        match self.connection.poll_send(bytes) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(count)) => Ok(Some(count)),
            Poll::Ready(Err(error)) => Err(self.failed(error)),
        }
    }

    /// Tells the other end that no more comes, if that goes now.
    pub fn close(&mut self, socket: BorrowedFd<'_>) {
        if self.attach(socket).is_ok() {
            let _ = self.connection.poll_shutdown_send();
        }
    }
}

/// What RFC 8446, 6, calls an alert.
fn alert_name(alert: u8) -> &'static str {
    match alert {
        10 => "unexpected message",
        20 => "bad record MAC",
        40 => "handshake failure",
        47 => "illegal parameter",
        50 => "decode error",
        51 => "decrypt error",
        70 => "protocol version",
        80 => "internal error",
        109 => "missing extension",
        112 => "unrecognized name",
        115 => "unknown PSK identity",
        116 => "certificate required",
        _ => "see RFC 8446",
    }
}
