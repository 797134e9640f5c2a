//! The hosts that a target knows by their pre-shared keys, and which of them a ClientHello comes from.
//!
//! What always holds: a key is chosen by the identity that the host sent, for that host's name and one of the target's own; where an
//! identity can mean two keys, the binder says which; the identity of a generated key is looked up whole. What was chosen is proved by the
//! handshake that follows, not here.

use willow_auth::{Identity, KeyRing, TlsKey};

use crate::hello::Offers;

/// Whom a session is with, once its handshake is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// NQN of the host.
    pub host_nqn: String,
    /// NQN of the subsystem that it means to connect to.
    pub subsystem_nqn: String,
    /// The identity of the generated key that it came by; `None`: it has a configured one.
    pub generated: Option<String>,
}

/// Hosts and their keys.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    hosts: KeyRing,
    subsystem_nqns: Vec<String>,
}

impl KnownHosts {
    /// Their keys, and the names of the subsystems here.
    pub fn new(hosts: KeyRing, subsystem_nqns: Vec<String>) -> Self {
        KnownHosts { hosts, subsystem_nqns }
    }

    /// The first offer that is known; `Err` says what was offered instead.
    pub fn choose(&self, offers: &Offers<'_>) -> Result<(TlsKey, Proven), String> {
        for offer in &offers.offers {
            let Some(identity) = Identity::parse(offer.identity) else { continue };
            if !self.subsystem_nqns.iter().any(|nqn| nqn == identity.subsystem_nqn) {
                continue;
            }
            let mut meant = match (identity.generated, str::from_utf8(offer.identity)) {
                (true, Ok(name)) => self.hosts.generated(name),
                _ => self.hosts.get(identity.host_nqn).map(|key| key.matching(offer.identity)).unwrap_or_default(),
            };
            let proved = meant.iter().position(|key| *key.binder(offers.proved) == offer.binder).unwrap_or(0);
            if meant.is_empty() {
                continue;
            }
            let (length, wanted) = (offer.binder.len(), identity.hash.bytes());
            if length != wanted {
                return Err(format!("it proves its key by another hash than the key's: {length} bytes, not {wanted}"));
            }
            let key = meant.swap_remove(proved);
            let proven = Proven {
                host_nqn: identity.host_nqn.to_owned(),
                subsystem_nqn: identity.subsystem_nqn.to_owned(),
                generated: identity.generated.then(|| key.identity.clone()),
            };
            return Ok((key, proven));
        }
        match offers.offers.first() {
            Some(offer) => Err(format!("no key of this name is known: {}", offer.identity.escape_ascii())),
            None => Err("it offers no pre-shared key".to_owned()),
        }
    }
}
