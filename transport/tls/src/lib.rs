//! TLS 1.3 for NVMe/TCP (NVMe/TCP Transport 3.6.1), by pre-shared keys alone: what both ends make of a socket.
//!
//! ```text
//! KnownHosts ── identity of the ClientHello, binder ──> one key ─┐
//! TlsKey of one host and subsystem ──────────────────────────────┴─> Session: handshake, then read and write
//! ```
//!
//! What always holds:
//! - TLS 1.3, TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384, a key exchange beside the pre-shared key; no certificates, resumption or
//!   early data;
//! - after the handshake both ends have proved that they have the same key, and [`Session::proven`] says whose it is; before that no
//!   byte of the other end is handed on;
//! - nothing blocks, and the memory of a session is bounded: one buffer of ciphertext each way ([`SEND_BYTES`], one record);
//! - records are made and opened by s2n-tls; nothing here computes with their keys.
//!
//! Who may call it: the NVMe/TCP target and the initiator. docs/decisions/2026-11-tls.md says why this library.

mod hello;
mod hosts;
mod session;

pub use hello::{OFFERS_MAX, Offer, Offers};
pub use hosts::{KnownHosts, Proven};
pub use session::{Acceptor, Received, SEND_BYTES, Session, TlsError};
/// Keys by host; they may come and go while sessions are made.
pub use willow_auth::KeyRing;

/// First byte of a TLS connection: a handshake record (RFC 8446, 5.1). That of NVMe/TCP is 00h, an ICReq.
pub const FIRST_BYTE: u8 = 0x16;
