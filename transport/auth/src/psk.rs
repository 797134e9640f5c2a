//! Pre-shared keys for TLS on NVMe/TCP (NVMe/TCP Transport 3.6.1.2 to 3.6.1.5): the configured key in its text form, and what follows
//! from it for one host and one subsystem.
//!
//! ```text
//! NVMeTLSkey-1:hh:base64(key, CRC-32):  ── hash hh, "HostNQN" ──> retained key
//! retained key ── HMAC over the NQNs ──> digest, a part of the identity of version 1
//!              └─ "nvme-tls-psk" ──────> TLS key, with which the handshake is made
//! ```
//!
//! Two derivations are in use. RFC 8446's HKDF-Expand-Label, which the specification cites, is [`Derivation::Standard`]. Linux's tools
//! before libnvme 1.16 leave its length bytes out and write the output's length the other way round: [`Derivation::Linux`]. Linux's kernel
//! before 6.18 leaves the length bytes out of what it derives from a generated key: [`Derivation::LinuxKernel`].
//!
//! What always holds: keys and what follows from them are wiped when dropped, and printed by [`PresharedKey::to_text`] alone.

use crate::text::{self, Parsed, TextError};
use crate::{Entropy, Hash, NoEntropy};
use base64ct::{Base64, Encoding};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Longest text of a key: 52 bytes are 72 characters in base64.
pub const PSK_TEXT_BYTES_MAX: usize = 89;
/// Longest identity: `NVMe1R02`, two NQNs of 223 bytes, a digest of 64 characters, and blanks.
pub const PSK_IDENTITY_BYTES_MAX: usize = 8 + 2 * (1 + 223) + 1 + 64;
const PREFIX: &str = "NVMeTLSkey-1:";

/// Why a text is no pre-shared key. It never repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PskError {
    /// It has another form.
    #[error("it does not have the form NVMeTLSkey-1:hh:base64:")]
    Form,
    /// It names an unknown hash.
    #[error("its hash is none of 00, 01 and 02")]
    Hash,
    /// Its base64 is damaged.
    #[error("its base64 is damaged")]
    Base64,
    /// Its length is not that of its hash.
    #[error("it has {0} bytes; with hash 01 a key has 32, with 02 48, with 00 either")]
    Length(usize),
    /// Its CRC-32 does not match: it was mistyped.
    #[error("its checksum does not match: it was damaged or mistyped")]
    Checksum,
    /// TLS does not take it.
    #[error("it is all zero")]
    Zero,
}

/// How a label is expanded; see this module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// HKDF-Expand-Label of RFC 8446, 7.1.
    Standard,
    /// That of libnvme before 1.16.
    Linux,
    /// That of Linux's kernel before 6.18, of generated keys alone.
    LinuxKernel,
}

/// A configured pre-shared key.
#[derive(Clone)]
pub struct PresharedKey {
    transform: Option<Hash>,
    bytes: Zeroizing<Vec<u8>>,
}

/// What TLS is given: a name that is sent, and a key that is not.
#[derive(Clone)]
pub struct TlsKey {
    /// The PSK identity, as it goes over the network.
    pub identity: String,
    /// SHA-256 for TLS_AES_128_GCM_SHA256, SHA-384 for TLS_AES_256_GCM_SHA384.
    pub hash: Hash,
    /// The key.
    pub secret: Zeroizing<Vec<u8>>,
}

/// A PSK identity, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// 0 or 1.
    pub version: u8,
    /// The cipher suite's hash.
    pub hash: Hash,
    /// NQN of the host.
    pub host_nqn: &'a str,
    /// NQN of the subsystem.
    pub subsystem_nqn: &'a str,
    /// It is of a key that an exchange generated; else of a configured one.
    pub generated: bool,
    /// Base64 of the digest, in version 1.
    pub digest: Option<&'a str>,
}

impl<'a> Identity<'a> {
    /// Takes one apart; `None` where it is none.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > PSK_IDENTITY_BYTES_MAX {
            return None;
        }
        let mut parts = std::str::from_utf8(bytes).ok()?.split(' ');
        let (version, generated, hash) = match parts.next()? {
            "NVMe0R01" => (0, false, Hash::Sha256),
            "NVMe0R02" => (0, false, Hash::Sha384),
            "NVMe1R01" => (1, false, Hash::Sha256),
            "NVMe1R02" => (1, false, Hash::Sha384),
            "NVMe1G01" => (1, true, Hash::Sha256),
            "NVMe1G02" => (1, true, Hash::Sha384),
            _ => return None,
        };
        let (host_nqn, subsystem_nqn, digest) = (parts.next()?, parts.next()?, parts.next());
        let fits = digest.is_some() == (version == 1) && parts.next().is_none();
        (fits && !host_nqn.is_empty() && !subsystem_nqn.is_empty()).then_some(Identity {
            version,
            hash,
            host_nqn,
            subsystem_nqn,
            generated,
            digest,
        })
    }
}

impl PresharedKey {
    /// A fresh one. `hash` decides how long it is, and by it the cipher suite: [`Hash::Sha256`] or [`Hash::Sha384`]; anything else is
    /// taken for the latter.
    pub fn generate(hash: Hash, entropy: &Entropy) -> Result<Self, NoEntropy> {
        let hash = if hash == Hash::Sha256 { hash } else { Hash::Sha384 };
        let mut bytes = Zeroizing::new(vec![0; hash.bytes()]);
        entropy.fill(&mut bytes)?;
        Ok(PresharedKey { transform: Some(hash), bytes })
    }

    /// Its text form, as `nvme gen-tls-key` writes it.
    pub fn to_text(&self) -> Zeroizing<String> {
        text::write(PREFIX, self.transform, &self.bytes)
    }

    /// Hash of the cipher suite that it is for.
    pub fn hash(&self) -> Hash {
        // 3.6.1.3: that of the transform; a key that is not transformed says it by its length.
        self.transform.unwrap_or(if self.bytes.len() == 32 { Hash::Sha256 } else { Hash::Sha384 })
    }

    /// What TLS is given for one host and one subsystem. `version` is the identity's: 1, or 0 as it was before the digest.
    pub fn tls_key(&self, host_nqn: &str, subsystem_nqn: &str, version: u8, derivation: Derivation) -> TlsKey {
        let hash = self.hash();
        let retained = match self.transform {
            None => self.bytes.clone(),
            Some(hash) => {
                let prk = hash.extract(&self.bytes);
                derivation.expand(hash, &prk, "HostNQN", &[host_nqn.as_bytes()])
            }
        };
        if version != 0 {
            return TlsKey::of('R', hash, &retained, (host_nqn, subsystem_nqn), derivation);
        }
        let identity = format!("NVMe0R{:02x} {host_nqn} {subsystem_nqn}", hash.id());
        let secret = derivation.expand(hash, &hash.extract(&retained), "nvme-tls-psk", &[identity.as_bytes()]);
        TlsKey { identity, hash, secret }
    }

    /// What an identity that a host sent can mean: none where this is not its key; two where it does not tell the derivations apart.
    pub fn matching(&self, identity: &[u8]) -> Vec<TlsKey> {
        let Some(named) = Identity::parse(identity) else { return Vec::new() };
        [Derivation::Standard, Derivation::Linux]
            .into_iter()
            .map(|derivation| self.tls_key(named.host_nqn, named.subsystem_nqn, named.version, derivation))
            .filter(|key| key.identity.as_bytes() == identity)
            .collect()
    }
}

impl TlsKey {
    /// What TLS is given of a retained key (kind `R`) or a generated one (`G`), with an identity of version 1. `names`: of host and
    /// subsystem.
    pub(crate) fn of(kind: char, hash: Hash, key: &[u8], names: (&str, &str), derivation: Derivation) -> TlsKey {
        let (host_nqn, subsystem_nqn) = names;
        let named = [host_nqn.as_bytes(), b" ", subsystem_nqn.as_bytes(), b" NVMe-over-Fabrics"];
        let digest = Base64::encode_string(&hash.hmac(key, &named));
        let context = format!("{:02x} {digest}", hash.id());
        let secret = derivation.expand(hash, &hash.extract(key), "nvme-tls-psk", &[context.as_bytes()]);
        let identity = format!("NVMe1{kind}{:02x} {host_nqn} {subsystem_nqn} {digest}", hash.id());
        TlsKey { identity, hash, secret }
    }

    /// The PSK binder that a client with this key puts under what it sent until there (RFC 8446, 4.2.11.2).
    pub fn binder(&self, client_hello_until_binders: &[u8]) -> Zeroizing<Vec<u8>> {
        let hash = self.hash;
        let early = hash.extract(&self.secret);
        let expand = |key: &[u8], label, context: &[u8]| Derivation::Standard.expand(hash, key, label, &[context]);
        let binder = expand(&early, "ext binder", &hash.digest(&[]));
        hash.hmac(&expand(&binder, "finished", &[]), &[&hash.digest(client_hello_until_binders)])
    }
}

impl Hash {
    /// HKDF-Extract without a salt (RFC 5869, 2.2).
    fn extract(self, key: &[u8]) -> Zeroizing<Vec<u8>> {
        self.hmac(&[0; 64][..self.bytes()], &[key])
    }
}

impl Derivation {
    /// As many bytes as the hash has: one round of HKDF-Expand (RFC 5869, 2.3).
    fn expand(self, hash: Hash, key: &[u8], label: &str, context: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        let context = Zeroizing::new(context.concat());
        let bytes = hash.bytes() as u16;
        match self {
            Derivation::Standard => {
                let lengths = [6 + label.len() as u8, context.len() as u8];
                let parts: [&[u8]; 7] =
                    [&bytes.to_be_bytes(), &lengths[..1], b"tls13 ", label.as_bytes(), &lengths[1..], &context, &[1]];
                hash.hmac(key, &parts)
            }
            Derivation::Linux => hash.hmac(key, &[&bytes.to_le_bytes(), b"tls13 ", label.as_bytes(), &context, &[1]]),
            Derivation::LinuxKernel => {
                hash.hmac(key, &[&bytes.to_be_bytes(), b"tls13 ", label.as_bytes(), &context, &[1]])
            }
        }
    }
}

impl FromStr for PresharedKey {
    type Err = PskError;

    fn from_str(text: &str) -> Result<Self, PskError> {
        let check = |transform: Option<Hash>, length| match (transform, length) {
            (Some(Hash::Sha512), _) => Err(TextError::Hash),
            (None, 32 | 48) => Ok(()),
            (Some(hash), _) if length == hash.bytes() => Ok(()),
            _ => Err(TextError::Length(length)),
        };
        let Parsed { transform, bytes } = text::parse(text, PREFIX, PSK_TEXT_BYTES_MAX, check)?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(PskError::Zero);
        }
        Ok(PresharedKey { transform, bytes })
    }
}

impl From<TextError> for PskError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Form => PskError::Form,
            TextError::Hash => PskError::Hash,
            TextError::Base64 => PskError::Base64,
            TextError::Length(bytes) => PskError::Length(bytes),
            TextError::Checksum => PskError::Checksum,
        }
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PresharedKey({} bytes)", self.bytes.len())
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsKey({})", self.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The keys and identities of libnvme's own tests, for both derivations.
    const KEY_32: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const KEY_48: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    const NAMES: (&str, &str) = ("nqn.psk-test-host", "nqn.psk-test-subsys");

    fn key(text: &str, version: u8, derivation: Derivation) -> TlsKey {
        text.parse::<PresharedKey>().unwrap().tls_key(NAMES.0, NAMES.1, version, derivation)
    }

    #[test]
    fn identities_are_those_of_linux() {
        for (text, hash, derivation, digest) in [
            (KEY_32, "01", Derivation::Standard, "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="),
            (KEY_32, "01", Derivation::Linux, "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM="),
            (KEY_48, "02", Derivation::Standard, "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a"),
            (KEY_48, "02", Derivation::Linux, "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz"),
        ] {
            let wanted = format!("NVMe1R{hash} {} {} {digest}", NAMES.0, NAMES.1);
            let found = key(text, 1, derivation);
            assert_eq!(found.identity, wanted);
            let parsed = Identity::parse(wanted.as_bytes()).unwrap();
            assert_eq!((parsed.version, parsed.hash, parsed.digest), (1, found.hash, Some(digest)));
            let matching = text.parse::<PresharedKey>().unwrap().matching(wanted.as_bytes());
            assert!(matching.len() == 1 && matching[0].secret == found.secret, "the digest tells the derivation");
        }
        // Before the digest, the name says nothing of the derivation.
        let old = key(KEY_32, 0, Derivation::Standard);
        assert_eq!(old.identity, "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys");
        let matching = KEY_32.parse::<PresharedKey>().unwrap().matching(old.identity.as_bytes());
        assert!(matching.len() == 2 && matching[0].secret != matching[1].secret);
        let other = PresharedKey::generate(Hash::Sha256, &Entropy::system()).unwrap();
        assert!(other.matching(key(KEY_32, 1, Derivation::Standard).identity.as_bytes()).is_empty());
    }

    #[test]
    fn text_is_read_as_it_was_written_and_damage_is_told() {
        for hash in [Hash::Sha256, Hash::Sha384] {
            let fresh = PresharedKey::generate(hash, &Entropy::system()).unwrap();
            let read = fresh.to_text().parse::<PresharedKey>().unwrap();
            assert!(read.bytes == fresh.bytes && read.hash() == hash && format!("{read:?}").contains("bytes"));
        }
        let plain = KEY_48.replace("-1:02:", "-1:00:").parse::<PresharedKey>().unwrap();
        assert!(plain.transform.is_none() && plain.hash() == Hash::Sha384);
        let error = |text: &str| text.parse::<PresharedKey>().unwrap_err();
        assert_eq!(error("DHHC-1:00:AAAA:"), PskError::Form);
        assert_eq!(error(&KEY_32[..KEY_32.len() - 1]), PskError::Form);
        assert_eq!(error(&KEY_32.replace("-1:01:", "-1:03:")), PskError::Hash);
        assert_eq!(error(&KEY_32.replace("-1:01:", "-1:02:")), PskError::Length(32));
        assert_eq!(error(&KEY_32.replace("VRLb", "VRLc")), PskError::Checksum);
        assert_eq!(error(&KEY_32.replace("VRLb", "V*Lb")), PskError::Base64);
        assert_eq!(error(&format!("{PREFIX}01:{}:", "A".repeat(200))), PskError::Form);
        let zero = PresharedKey { transform: None, bytes: Zeroizing::new(vec![0; 32]) };
        assert_eq!(error(&zero.to_text()), PskError::Zero);
        for bad in [
            "",
            "NVMe2R01 a b c",
            "NVMe0G01 a b",
            "NVMe1G01 a b",
            "NVMe0R01 a",
            "NVMe0R01 a b c",
            "NVMe1R01 a b",
            "NVMe1R01  b c",
            "NVMe1R01 a b c d",
        ] {
            assert_eq!(Identity::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
