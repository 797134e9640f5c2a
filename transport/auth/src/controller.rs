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
//! a queue that was authenticated stays so while it is authenticated anew, until that fails; a key for TLS is generated only where
//! [`Concatenation`] lets the host ask for it, and handed out only once the exchange has succeeded.

use crate::respond::Question;
use crate::{Ends, Entropy, GeneratedKey, Group, GroupError, Hash, KeyPair};
use std::panic::{AssertUnwindSafe, catch_unwind};
use subtle::ConstantTimeEq;
use willow_wire::spec::authentication::{Challenge, Explanation, Message, Negotiate, Reply, Success1, secure_channel};
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

/// What the host may ask for beside the proof (SC_C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concatenation {
    /// Nothing: an I/O queue, or one whose TLS was made with a configured key.
    #[default]
    Never,
    /// A key for TLS: an admin queue in the clear.
    New,
    /// A key for TLS, and nothing less: an admin queue in the clear of a host that has to come by TLS.
    Required,
    /// Another key in place of the one that the admin queue's TLS was made with.
    Replace,
}

impl Concatenation {
    fn takes(self, asked: u8) -> bool {
        match self {
            Concatenation::Never => asked == secure_channel::NONE,
            Concatenation::New => matches!(asked, secure_channel::NONE | secure_channel::NEW_KEY),
            Concatenation::Required => asked == secure_channel::NEW_KEY,
            Concatenation::Replace => matches!(asked, secure_channel::NONE | secure_channel::REPLACE_KEY),
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
    /// SC_C.
    secure_channel: u8,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
}

impl Begun {
    fn generates_key(&self) -> bool {
        self.secure_channel != secure_channel::NONE
    }
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
    concatenation: Concatenation,
    /// The key of the exchange under way; it is handed out once that has succeeded.
    pending: Option<GeneratedKey>,
    generated: Option<GeneratedKey>,
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
            concatenation: Concatenation::Never,
            pending: None,
            generated: None,
        }
    }

    /// The same, letting the host ask for a key.
    pub fn with_concatenation(mut self, concatenation: Concatenation) -> Self {
        self.concatenation = concatenation;
        self
    }

    /// The same on a queue that need not authenticate, but may: its TLS proved the host.
    pub fn already_authenticated(mut self) -> Self {
        self.authenticated = true;
        self
    }

    /// The key that the exchange which has just succeeded generated, once.
    pub fn take_generated(&mut self) -> Option<GeneratedKey> {
        self.generated.take()
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
                        self.succeed();
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

    fn succeed(&mut self) {
        self.authenticated = true;
        self.generated = self.pending.take();
    }

    fn fail(&mut self, transaction: u16, explanation: Explanation) {
        self.authenticated = false;
        (self.pending, self.generated) = (None, None);
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
                (self.pending, self.generated) = (None, None);
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
                self.succeed();
                self.state = State::Over;
                Ok(Sent::Taken)
            }
            (State::Told(_), Message::Success2(_)) => Err(Explanation::IncorrectPayload),
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    fn negotiate(&mut self, negotiate: Negotiate, numbers: &mut SequenceNumbers) -> Result<Sent, Explanation> {
        let secure_channel = negotiate.secure_channel;
        if !self.concatenation.takes(secure_channel) {
            return Err(Explanation::ConcatenationMismatch);
        }
        // A key is made of a number that both ends share, and is for one of two cipher suites.
        let generates = secure_channel != secure_channel::NONE;
        let offer = negotiate.offer.ok_or(Explanation::ProtocolUnusable)?;
        let mut hashes = self.policy.hashes.iter().filter(|hash| !generates || GeneratedKey::is_possible(**hash));
        let hash = *hashes.find(|hash| offer.hashes.contains(&hash.id())).ok_or(Explanation::HashUnusable)?;
        let mut groups = self.policy.groups.iter().filter(|group| !generates || **group != Group::Null);
        let group = *groups.find(|group| offer.groups.contains(&group.id())).ok_or(Explanation::GroupUnusable)?;
        let mut challenge = vec![0; hash.bytes()];
        self.entropy.fill(&mut challenge).map_err(|_| Explanation::Failed)?;
        let sequence = numbers.next(&self.entropy)?;
        let begun = Begun { transaction: negotiate.transaction, secure_channel, hash, group, sequence, challenge };
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
        // challenge the number means nothing (Linux 6.12 sends one). A challenge without a number is there for the generated key alone.
        let fits = match &reply.challenge {
            Some(challenge) if *challenge == begun.challenge => false,
            Some(_) if reply.sequence == 0 => begun.generates_key(),
            Some(_) => reply.sequence != self.host_sequence,
            None => !begun.generates_key(),
        };
        if !fits {
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
        let (hash, transaction, secure_channel) = (begun.hash, begun.transaction, begun.secure_channel);
        let (challenge, sequence) = (&begun.challenge, begun.sequence);
        let question = Question { hash, challenge, sequence, transaction, secure_channel, shared };
        let wanted = question.of_host(&self.ends);
        if !bool::from(wanted.as_slice().ct_eq(&reply.response)) {
            return Err(Explanation::Failed);
        }
        self.pending = match (&reply.challenge, shared) {
            (Some(challenge), Some(shared)) if begun.generates_key() => {
                let generated = GeneratedKey::new(hash, shared, [&begun.challenge, challenge]);
                Some(generated.ok_or(Explanation::HashUnusable)?)
            }
            _ => None,
        };
        let response = match &reply.challenge {
            Some(challenge) if reply.sequence != 0 => {
                let secret = self.ends.credentials.controller_secret.as_ref().ok_or(Explanation::Failed)?;
                let sequence = reply.sequence;
                let question = Question { hash, challenge, sequence, transaction, secure_channel, shared };
                self.host_sequence = reply.sequence;
                Some(question.of_controller(secret, &self.ends).to_vec())
            }
            _ => None,
        };
        self.state = State::Proven(Success1 { transaction, hash_bytes: hash.bytes() as u8, response });
        Ok(())
    }
}
