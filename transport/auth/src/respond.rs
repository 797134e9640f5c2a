//! What both ends compute alike: challenges augmented by the session key, and responses (NVMe Base 8.13.5.3 to 8.13.5.5).

use crate::{Ends, Hash, Secret};
use zeroize::Zeroizing;

/// All that a response is computed of, but names and secret.
pub(crate) struct Question<'a> {
    pub hash: Hash,
    pub challenge: &'a [u8],
    pub sequence: u32,
    pub transaction: u16,
    /// SC_C: nobody in between can take the secure channel out of a negotiation.
    pub secure_channel: u8,
    /// g^xy mod p; `None` with the NULL group.
    pub shared: Option<&'a [u8]>,
}

impl Question<'_> {
    fn respond(&self, secret: &Secret, prover: (&str, &str), role: &[u8], verifier: &str) -> Zeroizing<Vec<u8>> {
        let augmented = match self.shared {
            // Ca = HMAC(KS, C), where KS = H(g^xy mod p).
            Some(shared) => self.hash.hmac(&self.hash.digest(shared), &[self.challenge]),
            None => Zeroizing::new(self.challenge.to_vec()),
        };
        let (key_nqn, prover) = prover;
        self.hash.hmac(
            &secret.key(key_nqn),
            &[
                &augmented,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[self.secure_channel],
                role,
                prover.as_bytes(),
                &[0],
                verifier.as_bytes(),
            ],
        )
    }

    /// R1, by which the host proves itself.
    pub fn of_host(&self, ends: &Ends) -> Zeroizing<Vec<u8>> {
        let host = ends.credentials.host_nqn.as_str();
        self.respond(&ends.credentials.secret, (host, host), b"HostHost", &ends.subsystem_nqn)
    }

    /// R2, by which the controller proves itself.
    pub fn of_controller(&self, secret: &Secret, ends: &Ends) -> Zeroizing<Vec<u8>> {
        let subsystem = ends.subsystem_nqn.as_str();
        self.respond(secret, (subsystem, subsystem), b"Controller", &ends.credentials.host_nqn)
    }
}
