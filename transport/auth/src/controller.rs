//! The controller's end of an exchange, for one queue (NVMe Base 8.13.5.1).
//!
//! ```text
//! Idle ─Negotiate─> Preparing ─computed─> Prepared ─Challenge fetched─> Challenged ─Reply─> Deriving ─computed─┐
//!  ^                                                                                                           v
//! Over <─Success2── Told <─Success1 fetched, host asked for proof── Proven ───Success1 fetched, it did not──> Over
//! ```
//! and from everywhere Failing ─Failure1 fetched─> Failed, which nothing leaves.
//!
//! What always holds: what takes long (powers in large groups) is handed out as a [`Computation`], of which at most one is out;
//! a queue that was authenticated stays so while it is authenticated anew, until that fails.

use crate::respond::{NO_SECURE_CHANNEL, Question};
use crate::{Ends, Entropy, Group, GroupError, Hash, KeyPair};
use std::panic::{AssertUnwindSafe, catch_unwind};
use subtle::ConstantTimeEq;
use willow_wire::spec::authentication::{Challenge, Explanation, Message, Negotiate, Reply, Success1};
use zeroize::Zeroizing;

/// What a controller agrees to.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Hashes, the one that is liked best first.
    pub hashes: Vec<Hash>,
    /// Groups, the one that is liked best first.
    pub groups: Vec<Group>,
}

impl Default for Policy {
    /// 128 bits of strength first, stronger next; without a group only where a host can nothing else.
    fn default() -> Self {
        Policy {
            hashes: Hash::ALL.to_vec(),
            groups: vec![
                Group::Ffdhe3072,
                Group::Ffdhe4096,
                Group::Ffdhe2048,
                Group::Ffdhe6144,
                Group::Ffdhe8192,
                Group::Null,
            ],
        }
    }
}

/// Numbers of challenges (S1): each once, never 0, from a random one on.
#[derive(Debug, Default)]
pub struct SequenceNumbers(u32);

impl SequenceNumbers {
    fn next(&mut self, entropy: &Entropy) -> Result<u32, Explanation> {
        if self.0 == 0 {
            let mut bytes = [0; 4];
            entropy.fill(&mut bytes).map_err(|_| Explanation::Failed)?;
            self.0 = u32::from_le_bytes(bytes);
        }
        self.0 = self.0.wrapping_add(1).max(1);
        Ok(self.0)
    }
}

/// Powers that are to be computed, away from whoever must not wait.
#[derive(Debug)]
pub struct Computation(Work);

#[derive(Debug)]
enum Work {
    Pair(Group, Entropy),
    Shared(KeyPair, Vec<u8>),
}

/// What came of a [`Computation`].
#[derive(Debug)]
pub struct Computed(Found);

#[derive(Debug)]
enum Found {
    Pair(Result<KeyPair, GroupError>),
    Shared(Result<Zeroizing<Vec<u8>>, GroupError>),
}

fn computed<T>(work: impl FnOnce() -> Result<T, GroupError>) -> Result<T, GroupError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(GroupError::Defect))
}

impl Computation {
    /// Computes: some milliseconds in the largest groups. Never panics: where computing does, the exchange has failed, and others go on.
    pub fn run(self) -> Computed {
        Computed(match self.0 {
            Work::Pair(group, entropy) => Found::Pair(computed(|| KeyPair::generate(group, &entropy))),
            Work::Shared(pair, other) => Found::Shared(computed(|| pair.shared(&other))),
        })
    }
}

/// What became of a message.
#[derive(Debug)]
pub enum Sent {
    /// It was taken, whatever it leads to.
    Taken,
    /// It is taken once this is computed and handed to [`ControllerExchange::computed`].
    Compute(Computation),
}

/// A message was asked for, and there is none to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder;

#[derive(Debug)]
struct Begun {
    transaction: u16,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Negotiate may come.
    Idle,
    /// This end's public value is computed.
    Preparing(Begun),
    /// The challenge is to be fetched.
    Prepared(Begun, Option<KeyPair>),
    /// The reply is to come.
    Challenged(Begun, Option<KeyPair>),
    /// What both ends share is computed.
    Deriving(Begun, Reply),
    /// Success1 is to be fetched.
    Proven(Success1),
    /// Success2 is to come, with this transaction.
    Told(u16),
    /// It succeeded.
    Over,
    /// Failure1 is to be fetched.
    Failing(u16, Explanation),
    /// It failed, and the host knows.
    Failed,
}

/// The controller's end for one queue.
#[derive(Debug)]
pub struct ControllerExchange {
    ends: Ends,
    policy: Policy,
    entropy: Entropy,
    state: State,
    authenticated: bool,
    /// S2 of the exchange before.
    host_sequence: u32,
    failure: Option<Explanation>,
}

impl ControllerExchange {
    /// An end that waits for the host to begin.
    pub fn new(ends: Ends, policy: Policy, entropy: Entropy) -> Self {
        ControllerExchange {
            ends,
            policy,
            entropy,
            state: State::Idle,
            authenticated: false,
            host_sequence: 0,
            failure: None,
        }
    }

    /// True since the host proved itself, until an exchange fails.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }
    /// True between an exchange's beginning and its end.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.state, State::Idle | State::Over | State::Failed)
    }
    /// True where it failed and the host was told, or told this end.
    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }
    /// Why it failed.
    pub fn failure(&self) -> Option<Explanation> {
        self.failure
    }
    /// Whose secrets it is about.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Takes what Authentication Send brought.
    pub fn send(&mut self, bytes: &[u8], numbers: &mut SequenceNumbers) -> Sent {
        let transaction = self.transaction();
        let outcome = match Message::parse(bytes) {
            Ok(message) => self.take(message, numbers),
            Err(explanation) => Err(explanation),
        };
        outcome.unwrap_or_else(|explanation| {
            self.fail(transaction, explanation);
            Sent::Taken
        })
    }

    /// Takes what was computed for [`Sent::Compute`].
    pub fn computed(&mut self, computed: Computed) {
        match (std::mem::replace(&mut self.state, State::Idle), computed.0) {
            (State::Preparing(begun), Found::Pair(Ok(pair))) => self.state = State::Prepared(begun, Some(pair)),
            (State::Deriving(begun, reply), Found::Shared(Ok(shared))) => {
                let transaction = begun.transaction;
                if let Err(explanation) = self.verify(&begun, reply, Some(&shared)) {
                    self.fail(transaction, explanation);
                }
            }
            (State::Preparing(begun), _) => self.fail(begun.transaction, Explanation::Failed),
            (State::Deriving(begun, _), _) => self.fail(begun.transaction, Explanation::IncorrectPayload),
            // The exchange has failed meanwhile.
            (other, _) => self.state = other,
        }
    }

    /// Bytes of the message that [`ControllerExchange::receive`] would give; 0 where there is none.
    pub fn message_bytes(&self) -> usize {
        match &self.state {
            State::Prepared(begun, pair) => {
                16 + begun.challenge.len() + pair.as_ref().map_or(0, |pair| pair.public().len())
            }
            State::Proven(success) => 16 + success.response.as_ref().map_or(0, Vec::len),
            State::Failing(..) => 8,
            _ => 0,
        }
    }

    /// The message that Authentication Receive is answered with.
    pub fn receive(&mut self) -> Result<Vec<u8>, OutOfOrder> {
        let (next, message) = match std::mem::replace(&mut self.state, State::Idle) {
            State::Prepared(begun, pair) => {
                let public = pair.as_ref().map_or(Vec::new(), |pair| pair.public().to_vec());
                let message = Message::Challenge(Challenge {
                    transaction: begun.transaction,
                    hash: begun.hash.id(),
                    group: begun.group.id(),
                    sequence: begun.sequence,
                    challenge: begun.challenge.clone(),
                    public,
                });
                (State::Challenged(begun, pair), message)
            }
            State::Proven(success) => {
                let next = match success.response {
                    Some(_) => State::Told(success.transaction),
                    None => {
                        self.authenticated = true;
                        State::Over
                    }
                };
                (next, Message::Success1(success))
            }
            State::Failing(transaction, explanation) => (State::Failed, Message::Failure1(transaction, explanation)),
            other => {
                self.state = other;
                return Err(OutOfOrder);
            }
        };
        self.state = next;
        Ok(message.to_bytes())
    }

    /// Transaction of the exchange under way.
    fn transaction(&self) -> u16 {
        match &self.state {
            State::Preparing(begun) | State::Prepared(begun, _) | State::Challenged(begun, _) => begun.transaction,
            State::Deriving(begun, _) => begun.transaction,
            State::Proven(success) => success.transaction,
            State::Told(transaction) | State::Failing(transaction, _) => *transaction,
            State::Idle | State::Over | State::Failed => 0,
        }
    }

    fn fail(&mut self, transaction: u16, explanation: Explanation) {
        self.authenticated = false;
        if !matches!(self.state, State::Failed) {
            self.state = State::Failing(transaction, explanation);
            self.failure.get_or_insert(explanation);
        }
    }

    fn take(&mut self, message: Message, numbers: &mut SequenceNumbers) -> Result<Sent, Explanation> {
        match (std::mem::replace(&mut self.state, State::Idle), message) {
            (State::Failed, _) => {
                self.state = State::Failed;
                Err(Explanation::IncorrectMessage)
            }
            (_, Message::Failure2(_, explanation)) => {
                self.authenticated = false;
                self.state = State::Failed;
                self.failure.get_or_insert(explanation);
                Ok(Sent::Taken)
            }
            (State::Idle | State::Over, Message::Negotiate(negotiate)) => {
                let transaction = negotiate.transaction;
                self.negotiate(negotiate, numbers).or_else(|explanation| {
                    self.fail(transaction, explanation);
                    Ok(Sent::Taken)
                })
            }
            (State::Challenged(begun, pair), Message::Reply(reply)) => self.reply(begun, pair, reply),
            (State::Told(transaction), Message::Success2(other)) if transaction == other => {
                self.authenticated = true;
                self.state = State::Over;
                Ok(Sent::Taken)
            }
            (State::Told(_), Message::Success2(_)) => Err(Explanation::IncorrectPayload),
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    fn negotiate(&mut self, negotiate: Negotiate, numbers: &mut SequenceNumbers) -> Result<Sent, Explanation> {
        if negotiate.secure_channel != NO_SECURE_CHANNEL {
            return Err(Explanation::ConcatenationMismatch);
        }
        let offer = negotiate.offer.ok_or(Explanation::ProtocolUnusable)?;
        let hash = self.policy.hashes.iter().find(|hash| offer.hashes.contains(&hash.id()));
        let hash = *hash.ok_or(Explanation::HashUnusable)?;
        let group = self.policy.groups.iter().find(|group| offer.groups.contains(&group.id()));
        let group = *group.ok_or(Explanation::GroupUnusable)?;
        let mut challenge = vec![0; hash.bytes()];
        self.entropy.fill(&mut challenge).map_err(|_| Explanation::Failed)?;
        let sequence = numbers.next(&self.entropy)?;
        let begun = Begun { transaction: negotiate.transaction, hash, group, sequence, challenge };
        if group == Group::Null {
            self.state = State::Prepared(begun, None);
            return Ok(Sent::Taken);
        }
        self.state = State::Preparing(begun);
        Ok(Sent::Compute(Computation(Work::Pair(group, self.entropy.clone()))))
    }

    fn reply(&mut self, begun: Begun, pair: Option<KeyPair>, reply: Reply) -> Result<Sent, Explanation> {
        let lengths = reply.response.len() == begun.hash.bytes() && reply.public.len() == begun.group.bytes();
        if reply.transaction != begun.transaction || !lengths {
            return Err(Explanation::IncorrectPayload);
        }
        // A challenge sent back would have this end answer its own question; a number used twice, a question asked before. Without a
        // challenge the number means nothing (Linux 6.12 sends one).
        if let Some(challenge) = &reply.challenge
            && (reply.sequence == 0 || reply.sequence == self.host_sequence || *challenge == begun.challenge)
        {
            return Err(Explanation::IncorrectPayload);
        }
        match pair {
            Some(pair) => {
                let work = Work::Shared(pair, reply.public.clone());
                self.state = State::Deriving(begun, reply);
                Ok(Sent::Compute(Computation(work)))
            }
            None => self.verify(&begun, reply, None).map(|()| Sent::Taken),
        }
    }

    fn verify(&mut self, begun: &Begun, reply: Reply, shared: Option<&[u8]>) -> Result<(), Explanation> {
        let (hash, transaction) = (begun.hash, begun.transaction);
        let question = Question { hash, challenge: &begun.challenge, sequence: begun.sequence, transaction, shared };
        let wanted = question.of_host(&self.ends);
        if !bool::from(wanted.as_slice().ct_eq(&reply.response)) {
            return Err(Explanation::Failed);
        }
        let response = match &reply.challenge {
            Some(challenge) => {
                let secret = self.ends.credentials.controller_secret.as_ref().ok_or(Explanation::Failed)?;
                let question = Question { hash, challenge, sequence: reply.sequence, transaction, shared };
                self.host_sequence = reply.sequence;
                Some(question.of_controller(secret, &self.ends).to_vec())
            }
            None => None,
        };
        self.state = State::Proven(Success1 { transaction, hash_bytes: hash.bytes() as u8, response });
        Ok(())
    }
}
