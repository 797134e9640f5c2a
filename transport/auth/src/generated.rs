//! The key for TLS that both ends of an exchange derive from it: secure channel concatenation (NVMe Base 8.13.5.9, NVMe/TCP Transport
//! 3.6.1.3).
//!
//! ```text
//! KS = H(g^xy mod p) ── HMAC over C1 and C2 ──> generated key ── as a retained key ──> identity NVMe1G.., TLS key
//! ```
//!
//! What always holds: there is one only where the exchange succeeded, with a group and two challenges; it is wiped when dropped and
//! never printed.

use crate::{Derivation, Hash, TlsKey};
use std::fmt;
use zeroize::Zeroizing;

/// A generated key.
#[derive(Clone)]
pub struct GeneratedKey {
    hash: Hash,
    bytes: Zeroizing<Vec<u8>>,
}

impl GeneratedKey {
    /// Of an exchange's shared number and its challenges, the controller's first; `None` where no cipher suite of NVMe/TCP has the hash.
    pub(crate) fn new(hash: Hash, shared: &[u8], challenges: [&[u8]; 2]) -> Option<Self> {
        Self::of_session(hash, &hash.digest(shared), challenges)
    }

    fn of_session(hash: Hash, session: &[u8], challenges: [&[u8]; 2]) -> Option<Self> {
        Self::is_possible(hash).then(|| GeneratedKey { hash, bytes: hash.hmac(session, &challenges) })
    }

    /// Whether a cipher suite of NVMe/TCP has this hash.
    pub(crate) fn is_possible(hash: Hash) -> bool {
        matches!(hash, Hash::Sha256 | Hash::Sha384)
    }

    /// The hash of the exchange, and of the cipher suite.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// What TLS is given for these two: first as the specification has it, then as Linux's kernel before 6.18. Both have one
    /// identity: the binder tells them apart.
    pub fn tls_keys(&self, host_nqn: &str, subsystem_nqn: &str) -> [TlsKey; 2] {
        [Derivation::Standard, Derivation::LinuxKernel]
            .map(|derivation| TlsKey::of('G', self.hash, &self.bytes, (host_nqn, subsystem_nqn), derivation))
    }
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GeneratedKey({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    // What Linux's own tests of its derivation expect (drivers/nvme/common), for the same numbers.
    #[test]
    fn keys_are_those_that_linux_generates() {
        let counted = |step: fn(u8) -> u8| (0..64).map(step).collect::<Vec<u8>>();
        let (session, one, two) = (counted(|at| b'A' + at), counted(|at| at), counted(|at| 0xff - at));
        for (hash, key, digest, secret) in [
            (
                Hash::Sha256,
                "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
                "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
                "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
            ),
            (
                Hash::Sha384,
                "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
                "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
                "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
            ),
        ] {
            let length = hash.bytes();
            let challenges = [&one[..length], &two[..length]];
            let generated = GeneratedKey::of_session(hash, &session[..length], challenges).unwrap();
            assert_eq!(generated.bytes.to_vec(), bytes(key));
            let [standard, linux] = generated.tls_keys("hostnqn", "subsysnqn");
            assert_eq!(standard.identity, format!("NVMe1G{:02x} hostnqn subsysnqn {digest}", hash.id()));
            assert_eq!(standard.secret.to_vec(), bytes(secret));
            assert!(linux.identity == standard.identity && linux.secret != standard.secret);
            assert!(!format!("{generated:?}").contains(&key[..8]));
        }
        assert!(GeneratedKey::of_session(Hash::Sha512, &session, [&one, &two]).is_none());
    }
}
