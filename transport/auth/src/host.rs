//! The host's end of an exchange, for one queue: [`HostExchange::negotiate`] is sent, the challenge is answered by
//! [`HostExchange::reply`], and [`HostExchange::finish`] judges what came of it.
//!
//! What always holds: where the host has a secret of the controller it succeeds only if the controller proved that it has it.

use crate::respond::Question;
use crate::{Ends, Entropy, GeneratedKey, Group, Hash, KeyPair};
use subtle::ConstantTimeEq;
use willow_wire::spec::authentication::{Explanation, Message, Negotiate, Offer, Reply, secure_channel};
use zeroize::Zeroizing;

/// Why a host is not authenticated, or does not believe the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFailure {
    /// The controller said so.
    #[error("the controller refuses: {0}")]
    Refused(Explanation),
    /// This host found fault with the controller.
    #[error("the controller's answer is refused: {0}")]
    Distrusted(Explanation),
}

impl HostFailure {
    /// What the controller is to be told, where it does not know.
    pub fn to_message(self, transaction: u16) -> Option<Vec<u8>> {
        match self {
            HostFailure::Refused(_) => None,
            HostFailure::Distrusted(explanation) => Some(Message::Failure2(transaction, explanation).to_bytes()),
        }
    }
}

/// What the controller is to answer: hash, C2, S2, g^xy.
#[derive(Debug)]
struct Asked {
    hash: Hash,
    question: Option<(Vec<u8>, u32)>,
    shared: Option<Zeroizing<Vec<u8>>>,
    generated: Option<GeneratedKey>,
}

/// The host's end.
#[derive(Debug)]
pub struct HostExchange {
    ends: Ends,
    transaction: u16,
    entropy: Entropy,
    groups: Vec<Group>,
    secure_channel: u8,
    asked: Option<Asked>,
    generated: Option<GeneratedKey>,
}

impl HostExchange {
    /// An exchange of that number (T_ID), not yet begun.
    pub fn new(ends: Ends, transaction: u16, entropy: Entropy) -> Self {
        let (groups, secure_channel) = (Group::ALL.to_vec(), secure_channel::NONE);
        HostExchange { ends, transaction, entropy, groups, secure_channel, asked: None, generated: None }
    }

    /// The same, asking for a key for TLS; `replaces`: in place of the one that the queue's TLS was made with.
    pub fn with_key(mut self, replaces: bool) -> Self {
        self.secure_channel = if replaces { secure_channel::REPLACE_KEY } else { secure_channel::NEW_KEY };
        self
    }

    /// The key that was asked for, once the exchange has succeeded.
    pub fn take_generated(&mut self) -> Option<GeneratedKey> {
        self.generated.take()
    }

    fn generates_key(&self) -> bool {
        self.secure_channel != secure_channel::NONE
    }

    /// The same, offering these groups alone.
    pub fn with_groups(mut self, groups: &[Group]) -> Self {
        self.groups = groups.to_vec();
        self
    }

    /// Number of the exchange.
    pub fn transaction(&self) -> u16 {
        self.transaction
    }

    /// The message that begins it.
    pub fn negotiate(&self) -> Vec<u8> {
        let hashes = Hash::ALL.into_iter().filter(|hash| self.fits(*hash));
        let groups = self.groups.iter().filter(|group| self.fits_group(**group));
        let offer = Offer { hashes: hashes.map(Hash::id).collect(), groups: groups.map(|group| group.id()).collect() };
        let (transaction, secure_channel) = (self.transaction, self.secure_channel);
        Message::Negotiate(Negotiate { transaction, secure_channel, offer: Some(offer) }).to_bytes()
    }

    fn fits(&self, hash: Hash) -> bool {
        !self.generates_key() || GeneratedKey::is_possible(hash)
    }
    fn fits_group(&self, group: Group) -> bool {
        !self.generates_key() || group != Group::Null
    }

    /// Answers the controller's challenge. Takes milliseconds in the large groups.
    pub fn reply(&mut self, challenge: &[u8]) -> Result<Vec<u8>, HostFailure> {
        let distrusted = HostFailure::Distrusted;
        let challenge = match Message::parse(challenge).map_err(distrusted)? {
            Message::Challenge(challenge) => challenge,
            Message::Failure1(_, explanation) => return Err(HostFailure::Refused(explanation)),
            _ => return Err(distrusted(Explanation::IncorrectMessage)),
        };
        if challenge.transaction != self.transaction {
            return Err(distrusted(Explanation::IncorrectPayload));
        }
        let hash = Hash::from_id(challenge.hash).filter(|hash| self.fits(*hash));
        let hash = hash.ok_or(distrusted(Explanation::HashUnusable))?;
        let group = Group::from_id(challenge.group);
        let group = group.filter(|group| self.groups.contains(group) && self.fits_group(*group));
        let group = group.ok_or(distrusted(Explanation::GroupUnusable))?;
        let lengths = challenge.challenge.len() == hash.bytes() && challenge.public.len() == group.bytes();
        if !lengths || challenge.sequence == 0 {
            return Err(distrusted(Explanation::IncorrectPayload));
        }
        let failed = distrusted(Explanation::Failed);
        let (public, shared) = match group {
            Group::Null => (Vec::new(), None),
            _ => {
                let pair = KeyPair::generate(group, &self.entropy).map_err(|_| failed)?;
                let shared = pair.shared(&challenge.public);
                (pair.public().to_vec(), Some(shared.map_err(|_| distrusted(Explanation::IncorrectPayload))?))
            }
        };
        let question = Question {
            hash,
            challenge: &challenge.challenge,
            sequence: challenge.sequence,
            transaction: self.transaction,
            secure_channel: self.secure_channel,
            shared: shared.as_ref().map(|shared| shared.as_slice()),
        };
        let response = question.of_host(&self.ends).to_vec();
        let proves = self.ends.credentials.controller_secret.is_some();
        let asked = match proves || self.generates_key() {
            true => {
                let (mut own, mut number) = (vec![0; hash.bytes()], [0; 4]);
                self.entropy.fill(&mut own).and_then(|()| self.entropy.fill(&mut number)).map_err(|_| failed)?;
                // A number of 0: the challenge is there for the key alone.
                Some((own, if proves { u32::from_le_bytes(number).max(1) } else { 0 }))
            }
            false => None,
        };
        let generated = match (&asked, &shared) {
            (Some((own, _)), Some(shared)) if self.generates_key() => {
                GeneratedKey::new(hash, shared, [&challenge.challenge, own])
            }
            _ => None,
        };
        self.asked = Some(Asked { hash, question: asked.clone(), shared, generated });
        let (challenge, sequence) = asked.map_or((None, 0), |(own, number)| (Some(own), number));
        let transaction = self.transaction;
        Ok(Message::Reply(Reply { transaction, response, challenge, sequence, public }).to_bytes())
    }

    /// Judges the controller's last word. `Some`: what is to be sent to end the exchange.
    pub fn finish(&mut self, success: &[u8]) -> Result<Option<Vec<u8>>, HostFailure> {
        let distrusted = HostFailure::Distrusted;
        let success = match Message::parse(success).map_err(distrusted)? {
            Message::Success1(success) => success,
            Message::Failure1(_, explanation) => return Err(HostFailure::Refused(explanation)),
            _ => return Err(distrusted(Explanation::IncorrectMessage)),
        };
        let asked = self.asked.take().ok_or(distrusted(Explanation::IncorrectMessage))?;
        if success.transaction != self.transaction || usize::from(success.hash_bytes) != asked.hash.bytes() {
            return Err(distrusted(Explanation::IncorrectPayload));
        }
        let credentials = &self.ends.credentials;
        let (Some((challenge, sequence)), Some(secret)) = (&asked.question, &credentials.controller_secret) else {
            self.generated = asked.generated;
            return Ok(None);
        };
        let question = Question {
            hash: asked.hash,
            challenge,
            sequence: *sequence,
            transaction: self.transaction,
            secure_channel: self.secure_channel,
            shared: asked.shared.as_ref().map(|shared| shared.as_slice()),
        };
        let wanted = question.of_controller(secret, &self.ends);
        let response = success.response.ok_or(distrusted(Explanation::Failed))?;
        if !bool::from(wanted.as_slice().ct_eq(&response)) {
            return Err(distrusted(Explanation::Failed));
        }
        self.generated = asked.generated;
        Ok(Some(Message::Success2(self.transaction).to_bytes()))
    }
}
