//! In-band authentication: the fields of Authentication Send and Receive (NVMe Base 6.2, 6.3) and the messages of DH-HMAC-CHAP that
//! they carry (8.13.5). Bytes only: what is computed of them is in `willow-auth`.
//!
//! What always holds: a message is parsed whole or refused with the explanation that a failure message names; lengths within
//! it are checked against the bytes that are there; what is behind it (a receive buffer's padding) is not looked at.

use crate::bytes::{put_u16, put_u32, u16_at, u32_at};
use crate::spec::{SubmissionEntry, opcode};

/// SECP of NVMe's own in-band authentication (SPC-6's security protocol).
pub const SECURITY_PROTOCOL: u8 = 0xe9;
/// SPSP0 and SPSP1 of it.
pub const SECURITY_PROTOCOL_SPECIFIC: u8 = 1;
/// Most bytes of a message: a reply with SHA-512 and ffdhe8192 has 1168.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Bits of AUTHREQ in Connect's result: authentication is required (ATR).
pub const CONNECT_AUTHENTICATION_REQUIRED: u32 = 1 << 17;
/// Bits of AUTHREQ in Connect's result: authentication followed by a secure channel is required (ASCR).
pub const CONNECT_SECURE_CHANNEL_REQUIRED: u32 = 1 << 18;
/// What a host may ask for to follow an exchange (SC_C, 8.13.5.2).
pub mod secure_channel {
    /// NOSC: nothing.
    pub const NONE: u8 = 0;
    /// NEWTLSPSK: a key for TLS is generated.
    pub const NEW_KEY: u8 = 2;
    /// REPLACETLSPSK: a key for TLS is generated in place of the one that the connection's TLS was made with.
    pub const REPLACE_KEY: u8 = 3;
}
/// Protocol identifier of DH-HMAC-CHAP in a negotiation.
pub const PROTOCOL_DH_HMAC_CHAP: u8 = 1;
/// Identifiers of hashes and of groups that one protocol descriptor has room for.
pub const IDENTIFIERS_MAX: usize = 30;
/// Bytes of a protocol descriptor.
const DESCRIPTOR_BYTES: usize = 64;
/// Most protocol descriptors that are looked at.
const DESCRIPTORS_MAX: usize = 8;

const COMMON: u8 = 0;
const DH_HMAC_CHAP: u8 = 1;

/// Why an authentication failed (RCODE_EXP, NVMe Base 8.13.5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Explanation {
    /// 01h.
    #[error("authentication failed")]
    Failed,
    /// 02h.
    #[error("no usable authentication protocol")]
    ProtocolUnusable,
    /// 03h.
    #[error("secure channel concatenation mismatch")]
    ConcatenationMismatch,
    /// 04h.
    #[error("no usable hash function")]
    HashUnusable,
    /// 05h.
    #[error("no usable Diffie-Hellman group")]
    GroupUnusable,
    /// 06h.
    #[error("incorrect payload")]
    IncorrectPayload,
    /// 07h.
    #[error("incorrect message")]
    IncorrectMessage,
    /// Any other value.
    #[error("authentication failed for an unknown reason ({0:02x}h)")]
    Other(u8),
}

impl Explanation {
    /// As the byte RCODE_EXP.
    pub const fn code(self) -> u8 {
        match self {
            Explanation::Failed => 1,
            Explanation::ProtocolUnusable => 2,
            Explanation::ConcatenationMismatch => 3,
            Explanation::HashUnusable => 4,
            Explanation::GroupUnusable => 5,
            Explanation::IncorrectPayload => 6,
            Explanation::IncorrectMessage => 7,
            Explanation::Other(code) => code,
        }
    }
    /// From the byte RCODE_EXP.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Explanation::Failed,
            2 => Explanation::ProtocolUnusable,
            3 => Explanation::ConcatenationMismatch,
            4 => Explanation::HashUnusable,
            5 => Explanation::GroupUnusable,
            6 => Explanation::IncorrectPayload,
            7 => Explanation::IncorrectMessage,
            other => Explanation::Other(other),
        }
    }
}

/// Fields of Authentication Send and of Authentication Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticationCommand {
    /// SPSP0.
    pub specific_0: u8,
    /// SPSP1.
    pub specific_1: u8,
    /// SECP.
    pub protocol: u8,
    /// TL of a Send, AL of a Receive: bytes.
    pub bytes: u32,
}

impl AuthenticationCommand {
    /// Offset of SPSP0 in the entry.
    pub const SPSP0: u16 = 41;
    /// Offset of SPSP1 in the entry.
    pub const SPSP1: u16 = 42;
    /// Offset of SECP in the entry.
    pub const SECP: u16 = 43;
    /// Offset of TL or AL in the entry.
    pub const LENGTH: u16 = 44;

    /// From a command.
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        AuthenticationCommand {
            specific_0: entry.0[usize::from(Self::SPSP0)],
            specific_1: entry.0[usize::from(Self::SPSP1)],
            protocol: entry.0[usize::from(Self::SECP)],
            bytes: u32_at(&entry.0, usize::from(Self::LENGTH)),
        }
    }
    /// A Send of so many bytes, of NVMe's authentication.
    pub fn send(bytes: u32) -> SubmissionEntry {
        Self::entry(opcode::fabrics::AUTHENTICATION_SEND, bytes)
    }
    /// A Receive of at most so many bytes, of NVMe's authentication.
    pub fn receive(bytes: u32) -> SubmissionEntry {
        Self::entry(opcode::fabrics::AUTHENTICATION_RECEIVE, bytes)
    }
    fn entry(kind: u8, bytes: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::fabrics(kind);
        entry.0[usize::from(Self::SPSP0)] = SECURITY_PROTOCOL_SPECIFIC;
        entry.0[usize::from(Self::SPSP1)] = SECURITY_PROTOCOL_SPECIFIC;
        entry.0[usize::from(Self::SECP)] = SECURITY_PROTOCOL;
        put_u32(&mut entry.0, usize::from(Self::LENGTH), bytes);
        entry
    }
}

/// AUTH_Negotiate: what the host can do (8.13.5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Transaction.
    pub transaction: u16,
    /// SC_C: see [`secure_channel`].
    pub secure_channel: u8,
    /// Identifiers of hashes of its first DH-HMAC-CHAP descriptor, in the host's order; `None`: it has no such descriptor.
    pub offer: Option<Offer>,
}

/// What a DH-HMAC-CHAP descriptor offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Identifiers of hashes.
    pub hashes: Vec<u8>,
    /// Identifiers of groups.
    pub groups: Vec<u8>,
}

/// DH-HMAC-CHAP_Challenge, from the controller (8.13.5.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Transaction.
    pub transaction: u16,
    /// Chosen hash.
    pub hash: u8,
    /// Chosen group.
    pub group: u8,
    /// S1.
    pub sequence: u32,
    /// C1: as long as the hash.
    pub challenge: Vec<u8>,
    /// g^x mod p; empty for the NULL group.
    pub public: Vec<u8>,
}

/// DH-HMAC-CHAP_Reply, from the host (8.13.5.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Transaction.
    pub transaction: u16,
    /// R1: as long as the hash.
    pub response: Vec<u8>,
    /// C2, where the controller is to prove itself, too (CVALID).
    pub challenge: Option<Vec<u8>>,
    /// S2; 0 where there is no C2, and where C2 is there for a generated key alone and the controller need not prove itself.
    pub sequence: u32,
    /// g^y mod p; empty for the NULL group.
    pub public: Vec<u8>,
}

/// DH-HMAC-CHAP_Success1, from the controller (8.13.5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1 {
    /// Transaction.
    pub transaction: u16,
    /// Length of the hash.
    pub hash_bytes: u8,
    /// R2, where the host asked for it (RVALID).
    pub response: Option<Vec<u8>>,
}

/// Any message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Common 00h, host.
    Negotiate(Negotiate),
    /// 01h, controller.
    Challenge(Challenge),
    /// 02h, host.
    Reply(Reply),
    /// 03h, controller.
    Success1(Success1),
    /// 04h, host: with its transaction.
    Success2(u16),
    /// Common F1h, controller: transaction and why.
    Failure1(u16, Explanation),
    /// Common F0h, host: transaction and why.
    Failure2(u16, Explanation),
}

impl Message {
    /// Parses a message; fails with what a failure message tells its sender.
    pub fn parse(bytes: &[u8]) -> Result<Message, Explanation> {
        if bytes.len() < 8 {
            return Err(Explanation::IncorrectPayload);
        }
        let transaction = u16_at(bytes, 4);
        match (bytes[0], bytes[1]) {
            (COMMON, 0x00) => negotiate(bytes, transaction).map(Message::Negotiate),
            (DH_HMAC_CHAP, 0x01) => challenge(bytes, transaction).map(Message::Challenge),
            (DH_HMAC_CHAP, 0x02) => reply(bytes, transaction).map(Message::Reply),
            (DH_HMAC_CHAP, 0x03) => success1(bytes, transaction).map(Message::Success1),
            (DH_HMAC_CHAP, 0x04) => Ok(Message::Success2(transaction)),
            (COMMON, 0xf1) => Ok(Message::Failure1(transaction, Explanation::from_code(bytes[7]))),
            (COMMON, 0xf0) => Ok(Message::Failure2(transaction, Explanation::from_code(bytes[7]))),
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    /// As bytes. Fields longer than their length can say are not there in messages that this crate's callers make.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Message::Negotiate(negotiate) => {
                let mut bytes = head(COMMON, 0x00, negotiate.transaction, 8);
                bytes[6] = negotiate.secure_channel;
                if let Some(offer) = &negotiate.offer {
                    bytes[7] = 1;
                    bytes.resize(8 + DESCRIPTOR_BYTES, 0);
                    bytes[8] = PROTOCOL_DH_HMAC_CHAP;
                    let lists = [(&offer.hashes, 10, 12), (&offer.groups, 11, 12 + IDENTIFIERS_MAX)];
                    for (list, length, at) in lists {
                        let count = list.len().min(IDENTIFIERS_MAX);
                        bytes[length] = count as u8;
                        bytes[at..at + count].copy_from_slice(&list[..count]);
                    }
                }
                bytes
            }
            Message::Challenge(challenge) => {
                let mut bytes = head(DH_HMAC_CHAP, 0x01, challenge.transaction, 16);
                bytes[6] = challenge.challenge.len() as u8;
                bytes[8] = challenge.hash;
                bytes[9] = challenge.group;
                put_u16(&mut bytes, 10, challenge.public.len() as u16);
                put_u32(&mut bytes, 12, challenge.sequence);
                bytes.extend_from_slice(&challenge.challenge);
                bytes.extend_from_slice(&challenge.public);
                bytes
            }
            Message::Reply(reply) => {
                let mut bytes = head(DH_HMAC_CHAP, 0x02, reply.transaction, 16);
                bytes[6] = reply.response.len() as u8;
                bytes[8] = u8::from(reply.challenge.is_some());
                put_u16(&mut bytes, 10, reply.public.len() as u16);
                put_u32(&mut bytes, 12, reply.sequence);
                bytes.extend_from_slice(&reply.response);
                match &reply.challenge {
                    Some(challenge) => bytes.extend_from_slice(challenge),
                    None => bytes.resize(bytes.len() + reply.response.len(), 0),
                }
                bytes.extend_from_slice(&reply.public);
                bytes
            }
            Message::Success1(success) => {
                let mut bytes = head(DH_HMAC_CHAP, 0x03, success.transaction, 16);
                bytes[6] = success.hash_bytes;
                bytes[8] = u8::from(success.response.is_some());
                bytes.extend_from_slice(success.response.as_deref().unwrap_or_default());
                bytes
            }
            Message::Success2(transaction) => head(DH_HMAC_CHAP, 0x04, *transaction, 16),
            Message::Failure1(transaction, explanation) => failure(0xf1, *transaction, *explanation),
            Message::Failure2(transaction, explanation) => failure(0xf0, *transaction, *explanation),
        }
    }
}

fn head(kind: u8, id: u8, transaction: u16, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes];
    message[0] = kind;
    message[1] = id;
    put_u16(&mut message, 4, transaction);
    message
}

fn failure(id: u8, transaction: u16, explanation: Explanation) -> Vec<u8> {
    let mut bytes = head(COMMON, id, transaction, 8);
    // RCODE: authentication failure, the only one.
    bytes[6] = 1;
    bytes[7] = explanation.code();
    bytes
}

/// The bytes from `at` on, as many as a length field says.
fn take(bytes: &[u8], at: usize, length: usize) -> Result<Vec<u8>, Explanation> {
    bytes.get(at..at + length).map(<[u8]>::to_vec).ok_or(Explanation::IncorrectPayload)
}

fn negotiate(bytes: &[u8], transaction: u16) -> Result<Negotiate, Explanation> {
    let count = usize::from(bytes[7]);
    if count > DESCRIPTORS_MAX || bytes.len() < 8 + count * DESCRIPTOR_BYTES {
        return Err(Explanation::IncorrectPayload);
    }
    let mut descriptors = bytes[8..].chunks_exact(DESCRIPTOR_BYTES).take(count);
    let offer = match descriptors.find(|descriptor| descriptor[0] == PROTOCOL_DH_HMAC_CHAP) {
        Some(descriptor) => {
            let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
            if hashes > IDENTIFIERS_MAX || groups > IDENTIFIERS_MAX {
                return Err(Explanation::IncorrectPayload);
            }
            Some(Offer {
                hashes: descriptor[4..4 + hashes].to_vec(),
                groups: descriptor[4 + IDENTIFIERS_MAX..4 + IDENTIFIERS_MAX + groups].to_vec(),
            })
        }
        None => None,
    };
    Ok(Negotiate { transaction, secure_channel: bytes[6], offer })
}

fn challenge(bytes: &[u8], transaction: u16) -> Result<Challenge, Explanation> {
    if bytes.len() < 16 {
        return Err(Explanation::IncorrectPayload);
    }
    let hash_bytes = usize::from(bytes[6]);
    Ok(Challenge {
        transaction,
        hash: bytes[8],
        group: bytes[9],
        sequence: u32_at(bytes, 12),
        challenge: take(bytes, 16, hash_bytes)?,
        public: take(bytes, 16 + hash_bytes, usize::from(u16_at(bytes, 10)))?,
    })
}

fn reply(bytes: &[u8], transaction: u16) -> Result<Reply, Explanation> {
    if bytes.len() < 16 {
        return Err(Explanation::IncorrectPayload);
    }
    let hash_bytes = usize::from(bytes[6]);
    let challenge = take(bytes, 16 + hash_bytes, hash_bytes)?;
    Ok(Reply {
        transaction,
        response: take(bytes, 16, hash_bytes)?,
        challenge: (bytes[8] & 1 != 0).then_some(challenge),
        sequence: u32_at(bytes, 12),
        public: take(bytes, 16 + 2 * hash_bytes, usize::from(u16_at(bytes, 10)))?,
    })
}

fn success1(bytes: &[u8], transaction: u16) -> Result<Success1, Explanation> {
    if bytes.len() < 16 {
        return Err(Explanation::IncorrectPayload);
    }
    let response = match bytes[8] & 1 != 0 {
        true => Some(take(bytes, 16, usize::from(bytes[6]))?),
        false => None,
    };
    Ok(Success1 { transaction, hash_bytes: bytes[6], response })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..=max)
    }

    fn messages() -> impl Strategy<Value = Message> {
        let offer = (some_bytes(IDENTIFIERS_MAX), some_bytes(IDENTIFIERS_MAX))
            .prop_map(|(hashes, groups)| Offer { hashes, groups });
        let hash_bytes = prop_oneof![Just(32usize), Just(48), Just(64)];
        let reply = (any::<u16>(), hash_bytes.clone(), any::<bool>(), any::<u32>(), some_bytes(1024)).prop_map(
            |(transaction, bytes, both, sequence, public)| {
                let challenge = both.then(|| vec![7; bytes]);
                Message::Reply(Reply { transaction, response: vec![3; bytes], challenge, sequence, public })
            },
        );
        let success = (any::<u16>(), hash_bytes, any::<bool>()).prop_map(|(transaction, bytes, both)| {
            let response = both.then(|| vec![9; bytes]);
            Message::Success1(Success1 { transaction, hash_bytes: bytes as u8, response })
        });
        prop_oneof![
            (any::<u16>(), any::<u8>(), proptest::option::of(offer)).prop_map(
                |(transaction, secure_channel, offer)| {
                    Message::Negotiate(Negotiate { transaction, secure_channel, offer })
                }
            ),
            (any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>(), some_bytes(64), some_bytes(1024)).prop_map(
                |(transaction, hash, group, sequence, challenge, public)| Message::Challenge(Challenge {
                    transaction,
                    hash,
                    group,
                    sequence,
                    challenge,
                    public
                })
            ),
            reply,
            success,
            any::<u16>().prop_map(Message::Success2),
            (any::<u16>(), any::<u8>()).prop_map(|(id, code)| Message::Failure1(id, Explanation::from_code(code))),
            (any::<u16>(), any::<u8>()).prop_map(|(id, code)| Message::Failure2(id, Explanation::from_code(code))),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_their_bytes_with_padding_and_never_half(message in messages(), padding in 0usize..64) {
            let bytes = message.to_bytes();
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            let mut padded = bytes.clone();
            padded.resize(bytes.len() + padding, 0);
            prop_assert_eq!(Message::parse(&padded), Ok(message.clone()));
            for cut in 0..bytes.len() {
                // A shorter one is refused, or it is one whose end says nothing.
                if let Ok(other) = Message::parse(&bytes[..cut]) {
                    prop_assert_eq!(other, message.clone());
                }
            }
        }

        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(mut bytes in some_bytes(256), kind in 0u8..3, id in prop_oneof![0u8..6, 0xf0u8..0xf3]) {
            if bytes.len() > 1 {
                bytes[0] = kind;
                bytes[1] = id;
            }
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(Message::parse(&message.to_bytes()), Ok(message));
            }
        }
    }

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        let offer = Offer { hashes: vec![1, 2], groups: vec![0, 3] };
        let negotiate = Message::Negotiate(Negotiate { transaction: 0x1234, secure_channel: 0, offer: Some(offer) });
        let bytes = negotiate.to_bytes();
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..14], [0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 2, 2, 1, 2]);
        assert_eq!(bytes[42..44], [0, 3]);
        let failure = Message::Failure1(5, Explanation::HashUnusable).to_bytes();
        assert_eq!(failure, [0, 0xf1, 0, 0, 5, 0, 1, 4]);
        let entry = AuthenticationCommand::receive(4096);
        let fields = AuthenticationCommand::from_entry(&entry);
        assert_eq!((fields.protocol, fields.specific_0, fields.specific_1, fields.bytes), (0xe9, 1, 1, 4096));
    }
}
