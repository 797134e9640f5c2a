//! DH-HMAC-CHAP, NVMe's in-band authentication (NVMe Base 8.13.5): what is computed, and the two ends of an exchange. The messages'
//! bytes are in `willow_wire::spec::authentication`. Beside it, the keys of TLS on NVMe/TCP: configured ones (`psk.rs`), and those that an
//! exchange generates (`generated.rs`).
//!
//! ```text
//! Secret (DHHC-1 text) ── transformed by NQN ──> key ──┐
//! C1 ── with a group: HMAC(H(g^xy), C1) ──> C1a ───────┴─> response = HMAC(key, C1a | S1 | T_ID | SC_C | who | NQNs)
//! ```
//!
//! What always holds:
//! - sans-io, and no clock: who calls bounds the exchange in time;
//! - secrets and what follows from them are wiped when dropped, never printed, compared in constant time, and exponents do not show
//!   in the time that powers take;
//! - an exchange that failed stays so; a response proves the secret for its challenge, sequence number, transaction and
//!   names alone.
//!
//! Who may call it: the subsystem ([`ControllerExchange`]), the initiator ([`HostExchange`]), and who keeps keys ([`Secret`],
//! [`PresharedKey`], [`HostKey`], [`KeyRing`]).

mod controller;
mod entropy;
mod generated;
mod group;
mod hash;
mod host;
mod psk;
mod respond;
mod ring;
mod secret;
mod text;

pub use controller::{
    Computation, Computed, Concatenation, ControllerExchange, OutOfOrder, Policy, Sent, SequenceNumbers,
};
pub use entropy::{Entropy, NoEntropy};
pub use generated::GeneratedKey;
pub use group::{Group, GroupError, KeyPair};
pub use hash::Hash;
pub use host::{HostExchange, HostFailure};
pub use psk::{Derivation, Identity, PSK_IDENTITY_BYTES_MAX, PSK_TEXT_BYTES_MAX, PresharedKey, PskError, TlsKey};
pub use ring::{KeyRing, LentKey};
pub use secret::{SECRET_TEXT_BYTES_MAX, Secret, SecretError};

use std::sync::Arc;

/// What one end knows of one host: whose secrets they are, and the secrets.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// NQN of the host.
    pub host_nqn: String,
    /// Secret by which the host proves itself.
    pub secret: Secret,
    /// Secret by which the controller proves itself to this host; a controller without it cannot.
    pub controller_secret: Option<Secret>,
}

impl Credentials {
    /// Whether these are the same secrets of the same host. (Both are this end's own: how long it takes tells nobody anything.)
    pub fn is_same(&self, other: &Credentials) -> bool {
        let text = |secret: &Option<Secret>| secret.as_ref().map(Secret::to_text);
        self.host_nqn == other.host_nqn
            && self.secret.to_text() == other.secret.to_text()
            && text(&self.controller_secret) == text(&other.controller_secret)
    }
}

/// What proves one host to a device: a key file, read. At least one of both is there.
#[derive(Clone, Debug)]
pub struct HostKey {
    /// NQN of the host.
    pub host_nqn: String,
    /// For DH-HMAC-CHAP.
    pub credentials: Option<Credentials>,
    /// For TLS.
    pub psk: Option<PresharedKey>,
    /// The host comes by TLS, with a key that each authentication generates: no other key for TLS is there.
    pub secure_channel: bool,
}

impl From<Credentials> for HostKey {
    fn from(credentials: Credentials) -> Self {
        HostKey {
            host_nqn: credentials.host_nqn.clone(),
            credentials: Some(credentials),
            psk: None,
            secure_channel: false,
        }
    }
}

/// Names of both ends, as Connect had them.
#[derive(Clone, Debug)]
pub struct Ends {
    /// The host's secrets and name.
    pub credentials: Arc<Credentials>,
    /// NQN of the subsystem.
    pub subsystem_nqn: String,
}

#[cfg(test)]
mod tests;
