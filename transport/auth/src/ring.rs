//! Pre-shared keys by the names of hosts, and generated ones by their identities, shared between who lets hosts in and who makes TLS
//! handshakes with them.
//!
//! What always holds: a name has one key; a key that was lent is gone when its [`LentKey`] is dropped. It is looked into once a
//! handshake, never on the way of data.

use crate::{PresharedKey, TlsKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The keys. Its clones are the same ring.
#[derive(Clone, Debug, Default)]
pub struct KeyRing(Arc<Mutex<Keys>>);

#[derive(Debug, Default)]
struct Keys {
    /// By host.
    configured: BTreeMap<String, PresharedKey>,
    /// By identity: what it can mean.
    generated: BTreeMap<String, [TlsKey; 2]>,
}

/// A key that is on a ring as long as this lives.
#[derive(Debug)]
pub struct LentKey {
    ring: KeyRing,
    of: Lent,
}

#[derive(Debug)]
enum Lent {
    Host(String),
    Generated(String),
}

impl KeyRing {
    /// With these keys, which stay.
    pub fn new(keys: BTreeMap<String, PresharedKey>) -> Self {
        KeyRing(Arc::new(Mutex::new(Keys { configured: keys, generated: BTreeMap::new() })))
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        // Nothing is done with it that can be left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of this host.
    pub fn get(&self, host_nqn: &str) -> Option<PresharedKey> {
        self.keys().configured.get(host_nqn).cloned()
    }

    /// What the identity of a generated key can mean; nothing where it is not here.
    pub fn generated(&self, identity: &str) -> Vec<TlsKey> {
        self.keys().generated.get(identity).map(|keys| keys.to_vec()).unwrap_or_default()
    }

    /// True where no host has a key.
    pub fn is_empty(&self) -> bool {
        self.keys().configured.is_empty()
    }

    /// Takes the keys of these hosts off, and adds others, which stay. Keys that were lent stay as long as they are lent.
    pub fn replace(&self, gone: impl Iterator<Item = String>, come: BTreeMap<String, PresharedKey>) {
        let mut keys = self.keys();
        gone.for_each(|host_nqn| drop(keys.configured.remove(&host_nqn)));
        keys.configured.extend(come);
    }

    /// Adds a key for a time; `None` where the host has one.
    pub fn lend(&self, host_nqn: &str, key: PresharedKey) -> Option<LentKey> {
        let mut keys = self.keys();
        if keys.configured.contains_key(host_nqn) {
            return None;
        }
        keys.configured.insert(host_nqn.to_owned(), key);
        Some(LentKey { ring: self.clone(), of: Lent::Host(host_nqn.to_owned()) })
    }

    /// Adds a generated key for a time, by what its one identity can mean; `None` where that is there.
    pub fn lend_generated(&self, keys: [TlsKey; 2]) -> Option<LentKey> {
        let identity = keys[0].identity.clone();
        let mut all = self.keys();
        if all.generated.contains_key(&identity) {
            return None;
        }
        all.generated.insert(identity.clone(), keys);
        Some(LentKey { ring: self.clone(), of: Lent::Generated(identity) })
    }
}

impl Drop for LentKey {
    fn drop(&mut self) {
        let mut keys = self.ring.keys();
        match &self.of {
            Lent::Host(host_nqn) => drop(keys.configured.remove(host_nqn)),
            Lent::Generated(identity) => drop(keys.generated.remove(identity)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entropy, GeneratedKey, Hash};

    #[test]
    fn what_was_lent_goes_and_what_was_there_stays() {
        let key = || PresharedKey::generate(Hash::Sha256, &Entropy::system()).unwrap();
        let ring = KeyRing::new(BTreeMap::from([("stays".to_owned(), key())]));
        assert!(ring.lend("stays", key()).is_none());
        let lent = ring.lend("goes", key()).unwrap();
        assert!(ring.get("goes").is_some() && ring.clone().lend("goes", key()).is_none());
        ring.replace(["stays".to_owned()].into_iter(), BTreeMap::from([("new".to_owned(), key())]));
        assert!(ring.get("stays").is_none() && ring.get("new").is_some() && ring.get("goes").is_some());
        ring.replace(["new".to_owned()].into_iter(), BTreeMap::from([("stays".to_owned(), key())]));
        drop(lent);
        assert!(ring.get("goes").is_none() && ring.get("stays").is_some() && !ring.is_empty());

        let generated = GeneratedKey::new(Hash::Sha256, &[7; 256], [&[1; 32], &[2; 32]]).unwrap();
        let identity = generated.tls_keys("a", "b")[0].identity.clone();
        let lent = ring.lend_generated(generated.tls_keys("a", "b")).unwrap();
        assert!(ring.generated(&identity).len() == 2 && ring.lend_generated(generated.tls_keys("a", "b")).is_none());
        drop(lent);
        assert!(ring.generated(&identity).is_empty());
    }
}
