//! Pre-shared keys by the names of hosts, shared between who lets hosts in and who makes TLS handshakes with them.
//!
//! What always holds: a name has one key; a key that was lent is gone when its [`LentKey`] is dropped. It is looked into once a
//! handshake, never on the way of data.

use crate::PresharedKey;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The keys. Its clones are the same ring.
#[derive(Clone, Debug, Default)]
pub struct KeyRing(Arc<Mutex<BTreeMap<String, PresharedKey>>>);

/// A key that is on a ring as long as this lives.
#[derive(Debug)]
pub struct LentKey {
    ring: KeyRing,
    host_nqn: String,
}

impl KeyRing {
    /// With these keys, which stay.
    pub fn new(keys: BTreeMap<String, PresharedKey>) -> Self {
        KeyRing(Arc::new(Mutex::new(keys)))
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<String, PresharedKey>> {
        // Nothing is done with it that can be left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of this host.
    pub fn get(&self, host_nqn: &str) -> Option<PresharedKey> {
        self.keys().get(host_nqn).cloned()
    }

    /// True where no host has a key.
    pub fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// Takes the keys of these hosts off, and adds others, which stay. Keys that were lent stay as long as they are lent.
    pub fn replace(&self, gone: impl Iterator<Item = String>, come: BTreeMap<String, PresharedKey>) {
        let mut keys = self.keys();
        gone.for_each(|host_nqn| drop(keys.remove(&host_nqn)));
        keys.extend(come);
    }

    /// Adds a key for a time; `None` where the host has one.
    pub fn lend(&self, host_nqn: &str, key: PresharedKey) -> Option<LentKey> {
        let mut keys = self.keys();
        if keys.contains_key(host_nqn) {
            return None;
        }
        keys.insert(host_nqn.to_owned(), key);
        Some(LentKey { ring: self.clone(), host_nqn: host_nqn.to_owned() })
    }
}

impl Drop for LentKey {
    fn drop(&mut self) {
        self.ring.keys().remove(&self.host_nqn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entropy, Hash};

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
    }
}
