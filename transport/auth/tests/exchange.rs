//! Whole exchanges of the crate's two ends, and those that must fail; each beside its honest twin.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use willow_auth::{
    Concatenation, ControllerExchange, Credentials, Ends, Entropy, Group, Hash, HostExchange, HostFailure, OutOfOrder,
    Policy, Secret, SecretError, Sent, SequenceNumbers,
};
use willow_wire::spec::authentication::{Explanation, Message};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
const SUBSYSTEM: &str = "nqn.2025-01.org.willow-ssd:exchange";

/// Bytes by a seed, never the same twice.
fn entropy(seed: u64) -> Entropy {
    let state = AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    Entropy::from_fn(move |bytes| {
        for byte in bytes {
            let mut word = state.load(Ordering::Relaxed);
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            state.store(word, Ordering::Relaxed);
            *byte = (word >> 32) as u8;
        }
        Ok(())
    })
}

fn secret(seed: u64) -> Secret {
    Secret::generate(Some(Hash::Sha256), &entropy(seed)).unwrap()
}

fn ends(host_nqn: &str, secret_seed: u64, controller_seed: Option<u64>) -> Ends {
    Ends {
        credentials: Arc::new(Credentials {
            host_nqn: host_nqn.to_owned(),
            secret: secret(secret_seed),
            controller_secret: controller_seed.map(secret),
        }),
        subsystem_nqn: SUBSYSTEM.to_owned(),
    }
}

/// A controller and what it counts.
struct Controller {
    exchange: ControllerExchange,
    numbers: SequenceNumbers,
}

impl Controller {
    fn new(ends: Ends, policy: Policy) -> Self {
        Controller { exchange: ControllerExchange::new(ends, policy, entropy(77)), numbers: SequenceNumbers::default() }
    }
    /// One that chooses the NULL group: where the exchange itself matters.
    fn quick(ends: Ends) -> Self {
        Self::new(ends, Policy { groups: vec![Group::Null], ..Policy::default() })
    }
    fn send(&mut self, bytes: &[u8]) {
        if let Sent::Compute(computation) = self.exchange.send(bytes, &mut self.numbers) {
            assert_eq!(self.exchange.receive(), Err(OutOfOrder), "nothing to tell while it is computed");
            self.exchange.computed(computation.run());
        }
    }
    fn receive(&mut self) -> Vec<u8> {
        self.exchange.receive().expect("something to tell")
    }
    /// What it says at last, where it must be a failure.
    fn failure(&mut self) -> Explanation {
        let said = Message::parse(&self.receive()).unwrap();
        assert!(!self.exchange.is_authenticated() && self.exchange.has_failed(), "{said:?}");
        let Message::Failure1(_, explanation) = said else { panic!("{said:?}") };
        assert_eq!(self.exchange.failure(), Some(explanation));
        // It stays so, whatever comes.
        self.send(&HostExchange::new(ends(HOST, 1, None), 9, entropy(1)).negotiate());
        assert_eq!(self.exchange.receive(), Err(OutOfOrder));
        assert!(self.exchange.has_failed() && !self.exchange.is_authenticated());
        explanation
    }
}

/// The host's part up to its reply; the challenge that it answered.
fn to_reply(host: &mut HostExchange, controller: &mut Controller) -> (Vec<u8>, Vec<u8>) {
    controller.send(&host.negotiate());
    let challenge = controller.receive();
    let reply = host.reply(&challenge).expect("the challenge can be answered");
    (challenge, reply)
}

/// All of it: what the host makes of it.
fn run(host: &mut HostExchange, controller: &mut Controller) -> Result<(), HostFailure> {
    let (_, reply) = to_reply(host, controller);
    controller.send(&reply);
    if let Some(last) = host.finish(&controller.receive())? {
        assert!(!controller.exchange.is_authenticated(), "not before the host believes the controller");
        controller.send(&last);
    }
    Ok(())
}

/// The same where it may end at the negotiation.
fn attempt(host: &mut HostExchange, controller: &mut Controller) -> Result<(), HostFailure> {
    controller.send(&host.negotiate());
    let reply = host.reply(&controller.receive())?;
    controller.send(&reply);
    host.finish(&controller.receive()).map(|last| last.iter().for_each(|last| controller.send(last)))
}

fn host(ends: Ends) -> HostExchange {
    HostExchange::new(ends, 0x4711, entropy(5))
}

#[test]
fn every_hash_and_group_one_way_and_both() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for controller_seed in [None, Some(2)] {
                let policy = Policy { hashes: vec![hash], groups: vec![group] };
                let ends = ends(HOST, 1, controller_seed);
                let mut controller = Controller::new(ends.clone(), policy);
                run(&mut host(ends), &mut controller).unwrap();
                assert!(controller.exchange.is_authenticated() && !controller.exchange.is_under_way());
            }
        }
    }
}

#[test]
fn computing_that_panics_fails_its_exchange_and_goes_no_further() {
    let calls = AtomicU64::new(0);
    // The first are for the challenge and its number.
    let panics = Entropy::from_fn(move |_| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) < 2, "a planted panic while powers are computed");
        Ok(())
    });
    let policy = Policy { groups: vec![Group::Ffdhe2048], ..Policy::default() };
    let ends = ends(HOST, 1, None);
    let exchange = ControllerExchange::new(ends.clone(), policy, panics);
    let mut controller = Controller { exchange, numbers: SequenceNumbers::default() };
    controller.send(&host(ends).negotiate());
    assert_eq!(controller.failure(), Explanation::Failed);
}

#[test]
fn a_host_without_the_secret_is_refused() {
    for stolen in [ends(HOST, 3, None), ends(OTHER, 1, None)] {
        // Another secret for this name; this secret, sent by a host of another name (its key is made of the name).
        let mut controller = Controller::quick(ends(HOST, 1, None));
        let refused = run(&mut host(stolen), &mut controller);
        assert_eq!(refused, Err(HostFailure::Refused(Explanation::Failed)));
        assert!(controller.exchange.has_failed() && !controller.exchange.is_authenticated());
    }
    // A secret that no hash transforms is the key of every name: the name in the response tells.
    let plain = Secret::generate(None, &entropy(4)).unwrap();
    let with = |host_nqn: &str| Ends {
        credentials: Arc::new(Credentials {
            host_nqn: host_nqn.to_owned(),
            secret: plain.clone(),
            controller_secret: None,
        }),
        subsystem_nqn: SUBSYSTEM.to_owned(),
    };
    assert!(run(&mut host(with(HOST)), &mut Controller::quick(with(HOST))).is_ok());
    assert!(run(&mut host(with(OTHER)), &mut Controller::quick(with(HOST))).is_err());
    let elsewhere = Ends { subsystem_nqn: "nqn.2025-01.org.willow-ssd:other".to_owned(), ..with(HOST) };
    assert!(run(&mut host(elsewhere), &mut Controller::quick(with(HOST))).is_err());
}

#[test]
fn a_replayed_response_is_refused() {
    let ends = ends(HOST, 1, None);
    let mut controller = Controller::quick(ends.clone());
    let (_, recorded) = to_reply(&mut host(ends.clone()), &mut controller);
    controller.send(&recorded);
    controller.receive();
    assert!(controller.exchange.is_authenticated());
    // On the same queue, authenticated anew, and on another of the same device.
    let mut again = host(ends.clone());
    to_reply(&mut again, &mut controller);
    controller.send(&recorded);
    assert_eq!(controller.failure(), Explanation::Failed);
    let mut other = Controller::quick(ends.clone());
    other.exchange =
        ControllerExchange::new(ends.clone(), Policy { groups: vec![Group::Null], ..Policy::default() }, entropy(78));
    to_reply(&mut host(ends), &mut other);
    other.send(&recorded);
    assert_eq!(other.failure(), Explanation::Failed);
}

#[test]
fn no_two_challenges_have_the_same_number() {
    let ends = ends(HOST, 1, None);
    let mut controller = Controller::quick(ends.clone());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let mut host = host(ends.clone());
        let (challenge, reply) = to_reply(&mut host, &mut controller);
        let Message::Challenge(challenge) = Message::parse(&challenge).unwrap() else { panic!() };
        assert!(challenge.sequence != 0 && seen.insert(challenge.sequence));
        controller.send(&reply);
        host.finish(&controller.receive()).unwrap();
        assert!(controller.exchange.is_authenticated());
    }
}

/// Changes a field of a reply to a fresh challenge; what the controller says then.
fn with_reply(
    both: bool,
    change: impl FnOnce(&mut willow_wire::spec::authentication::Reply, &[u8]),
) -> Option<Explanation> {
    let ends = ends(HOST, 1, both.then_some(2));
    let mut controller = Controller::quick(ends.clone());
    let (challenge, reply) = to_reply(&mut host(ends), &mut controller);
    let Message::Reply(mut reply) = Message::parse(&reply).unwrap() else { panic!() };
    let Message::Challenge(challenge) = Message::parse(&challenge).unwrap() else { panic!() };
    change(&mut reply, &challenge.challenge);
    controller.send(&Message::Reply(reply).to_bytes());
    let mut said = controller.exchange.receive().unwrap();
    if let Message::Success1(_) = Message::parse(&said).unwrap() {
        return None;
    }
    said.truncate(8);
    let Message::Failure1(_, explanation) = Message::parse(&said).unwrap() else { panic!() };
    assert!(controller.exchange.has_failed() && !controller.exchange.is_authenticated());
    Some(explanation)
}

#[test]
fn replies_that_do_not_fit_are_refused() {
    assert_eq!(with_reply(false, |_, _| {}), None);
    assert_eq!(with_reply(true, |_, _| {}), None);
    let payload = Some(Explanation::IncorrectPayload);
    assert_eq!(with_reply(false, |reply, _| reply.transaction ^= 1), payload);
    assert_eq!(with_reply(false, |reply, _| reply.response.truncate(31)), payload);
    assert_eq!(with_reply(false, |reply, _| reply.response = vec![0; 48]), payload);
    assert_eq!(with_reply(false, |reply, _| reply.public = vec![2; 256]), payload);
    assert_eq!(with_reply(false, |reply, _| reply.sequence = 5), None, "it means nothing without a challenge");
    assert_eq!(with_reply(true, |reply, _| reply.sequence = 0), payload);
    // The controller's own question sent back to it.
    assert_eq!(with_reply(true, |reply, challenge| reply.challenge = Some(challenge.to_vec())), payload);
    assert_eq!(with_reply(false, |reply, _| reply.response[0] ^= 1), Some(Explanation::Failed));
    // A proof that the controller cannot give.
    let ask = |reply: &mut willow_wire::spec::authentication::Reply, _: &[u8]| {
        (reply.challenge, reply.sequence) = (Some(vec![1; reply.response.len()]), 9)
    };
    assert_eq!(with_reply(false, ask), Some(Explanation::Failed));
}

#[test]
fn a_host_that_counts_not_on_is_refused() {
    let ends = ends(HOST, 1, Some(2));
    let mut controller = Controller::quick(ends.clone());
    // The same source of bytes: the same C2 and S2 in both.
    let fresh = || HostExchange::new(ends.clone(), 1, entropy(5));
    run(&mut fresh(), &mut controller).unwrap();
    assert!(controller.exchange.is_authenticated());
    let (_, reply) = to_reply(&mut fresh(), &mut controller);
    controller.send(&reply);
    assert_eq!(controller.failure(), Explanation::IncorrectPayload);
}

#[test]
fn what_cannot_be_agreed_on_is_refused_with_the_reason() {
    let ends = ends(HOST, 1, None);
    let says = |policy: Policy, change: &dyn Fn(&mut Vec<u8>)| {
        let mut controller = Controller::new(ends.clone(), policy);
        let mut negotiate = HostExchange::new(ends.clone(), 3, entropy(1)).with_groups(&[Group::Ffdhe2048]).negotiate();
        change(&mut negotiate);
        controller.send(&negotiate);
        controller.failure()
    };
    let nothing = |_: &mut Vec<u8>| {};
    let none = Policy { hashes: vec![], ..Policy::default() };
    assert_eq!(says(none, &nothing), Explanation::HashUnusable);
    let null = Policy { groups: vec![Group::Null], ..Policy::default() };
    assert_eq!(says(null, &nothing), Explanation::GroupUnusable);
    assert_eq!(says(Policy::default(), &|bytes| bytes[6] = 1), Explanation::ConcatenationMismatch);
    assert_eq!(says(Policy::default(), &|bytes| bytes[8] = 2), Explanation::ProtocolUnusable);
    assert_eq!(says(Policy::default(), &|bytes| bytes.truncate(71)), Explanation::IncorrectPayload);
    assert_eq!(says(Policy::default(), &|bytes| bytes[10] = 31), Explanation::IncorrectPayload);
}

/// A host that asks for a key, and a controller that takes what `concatenation` says.
fn asking(ends: &Ends, replaces: bool, concatenation: Concatenation, policy: Policy) -> (HostExchange, Controller) {
    let exchange = ControllerExchange::new(ends.clone(), policy, entropy(77)).with_concatenation(concatenation);
    let controller = Controller { exchange, numbers: SequenceNumbers::default() };
    (host(ends.clone()).with_groups(&[Group::Null, Group::Ffdhe2048]).with_key(replaces), controller)
}

#[test]
fn both_ends_generate_the_same_key_once_both_have_proved_what_they_have_to() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for (controller_seed, replaces, concatenation) in [
            (None, false, Concatenation::New),
            (Some(2), false, Concatenation::Required),
            (None, true, Concatenation::Replace),
            (Some(2), true, Concatenation::Replace),
        ] {
            let ends = ends(HOST, 1, controller_seed);
            let policy = Policy { hashes: vec![Hash::Sha512, hash], ..Policy::default() };
            let (mut host, mut controller) = asking(&ends, replaces, concatenation, policy);
            let (_, reply) = to_reply(&mut host, &mut controller);
            controller.send(&reply);
            assert!(controller.exchange.take_generated().is_none() && host.take_generated().is_none(), "too early");
            let last = host.finish(&controller.receive()).unwrap();
            assert_eq!(last.is_some(), controller_seed.is_some());
            if let Some(last) = last {
                assert!(controller.exchange.take_generated().is_none(), "before the host has believed the controller");
                controller.send(&last);
            }
            let (near, far) = (host.take_generated().unwrap(), controller.exchange.take_generated().unwrap());
            assert!(controller.exchange.take_generated().is_none() && near.hash() == hash && far.hash() == hash);
            let (near, far) = (near.tls_keys(HOST, SUBSYSTEM), far.tls_keys(HOST, SUBSYSTEM));
            assert!(near[0].identity == far[0].identity && near[0].secret == far[0].secret);
            // Another exchange, another key.
            let (mut again, mut anew) = asking(&ends, replaces, concatenation, Policy::default());
            anew.exchange =
                ControllerExchange::new(ends.clone(), Policy::default(), entropy(78)).with_concatenation(concatenation);
            run(&mut again, &mut anew).unwrap();
            let other = anew.exchange.take_generated().unwrap().tls_keys(HOST, SUBSYSTEM);
            assert!(other[0].identity != far[0].identity && other[0].secret != far[0].secret);
        }
    }
}

#[test]
fn a_key_is_generated_where_it_may_be_asked_for_and_nowhere_else() {
    let ends = ends(HOST, 1, None);
    let mismatch = Err(HostFailure::Refused(Explanation::ConcatenationMismatch));
    for (replaces, concatenation) in [
        (false, Concatenation::Never),
        (true, Concatenation::Never),
        (true, Concatenation::New),
        (true, Concatenation::Required),
        (false, Concatenation::Replace),
    ] {
        let (mut host, mut controller) = asking(&ends, replaces, concatenation, Policy::default());
        assert_eq!(attempt(&mut host, &mut controller), mismatch, "{concatenation:?}");
        assert!(controller.exchange.take_generated().is_none() && host.take_generated().is_none());
    }
    // Who does not ask gets none, and is refused where it has to ask.
    for (concatenation, outcome) in
        [(Concatenation::New, Ok(())), (Concatenation::Replace, Ok(())), (Concatenation::Required, mismatch)]
    {
        let (_, mut controller) = asking(&ends, false, concatenation, Policy::default());
        let mut host = host(ends.clone()).with_groups(&[Group::Ffdhe2048]);
        assert_eq!(attempt(&mut host, &mut controller), outcome);
        assert!(controller.exchange.take_generated().is_none() && host.take_generated().is_none());
    }
    // What no key can be made of.
    for (policy, explanation) in [
        (Policy { hashes: vec![Hash::Sha512], ..Policy::default() }, Explanation::HashUnusable),
        (Policy { groups: vec![Group::Null], ..Policy::default() }, Explanation::GroupUnusable),
    ] {
        let (mut host, mut controller) = asking(&ends, false, Concatenation::New, policy);
        assert_eq!(attempt(&mut host, &mut controller), Err(HostFailure::Refused(explanation)));
    }
}

#[test]
fn nobody_in_between_takes_the_key_out_of_an_exchange_or_puts_one_in() {
    let ends = ends(HOST, 1, None);
    // The host asked, and the controller is told that it did not; and the other way round.
    for (asks, told) in [(true, 0), (false, 2)] {
        let (asking, mut controller) = asking(&ends, false, Concatenation::New, Policy::default());
        let mut host = if asks { asking } else { host(ends.clone()).with_groups(&[Group::Ffdhe2048]) };
        let mut negotiate = host.negotiate();
        negotiate[6] = told;
        controller.send(&negotiate);
        let reply = host.reply(&controller.receive()).unwrap();
        controller.send(&reply);
        let said = controller.failure();
        assert!(matches!(said, Explanation::Failed | Explanation::IncorrectPayload), "{said:?}");
        assert!(controller.exchange.take_generated().is_none());
    }
    // The challenge that the key is made of is missing, or the controller's own.
    for spoil in [
        (|reply: &mut willow_wire::spec::authentication::Reply, _: &[u8]| reply.challenge = None)
            as fn(&mut willow_wire::spec::authentication::Reply, &[u8]),
        |reply, own| reply.challenge = Some(own.to_vec()),
    ] {
        let (mut host, mut controller) = asking(&ends, false, Concatenation::New, Policy::default());
        let (challenge, reply) = to_reply(&mut host, &mut controller);
        let Message::Reply(mut reply) = Message::parse(&reply).unwrap() else { panic!() };
        let Message::Challenge(challenge) = Message::parse(&challenge).unwrap() else { panic!() };
        spoil(&mut reply, &challenge.challenge);
        controller.send(&Message::Reply(reply).to_bytes());
        assert_eq!(controller.failure(), Explanation::IncorrectPayload);
    }
}

#[test]
fn messages_out_of_order_are_refused() {
    let ends = ends(HOST, 1, Some(2));
    let (_, reply) = to_reply(&mut host(ends.clone()), &mut Controller::quick(ends.clone()));
    let success2 = Message::Success2(0x4711).to_bytes();
    let negotiate = host(ends.clone()).negotiate();
    // Before anything; after the negotiation; before the challenge was fetched; after the reply.
    for early in [&reply, &success2] {
        let mut controller = Controller::quick(ends.clone());
        controller.send(early);
        assert_eq!(controller.failure(), Explanation::IncorrectMessage);
    }
    for second in [&negotiate, &reply, &success2] {
        let mut controller = Controller::quick(ends.clone());
        controller.send(&negotiate);
        controller.send(second);
        assert_eq!(controller.failure(), Explanation::IncorrectMessage);
    }
    let mut controller = Controller::quick(ends.clone());
    let (_, reply) = to_reply(&mut host(ends.clone()), &mut controller);
    controller.send(&reply);
    controller.send(&success2);
    assert_eq!(controller.failure(), Explanation::IncorrectMessage);
    // The end of another transaction.
    let mut controller = Controller::quick(ends.clone());
    let (_, reply) = to_reply(&mut host(ends.clone()), &mut controller);
    controller.send(&reply);
    controller.receive();
    controller.send(&Message::Success2(1).to_bytes());
    assert_eq!(controller.failure(), Explanation::IncorrectPayload);
    // Nothing to fetch.
    assert_eq!(Controller::quick(ends).exchange.receive(), Err(OutOfOrder));
}

#[test]
fn a_controller_without_its_secret_is_not_believed() {
    // It has another one; it has none; it says nothing of it.
    let mut controller = Controller::quick(ends(HOST, 1, Some(3)));
    let distrusted = run(&mut host(ends(HOST, 1, Some(2))), &mut controller);
    assert_eq!(distrusted, Err(HostFailure::Distrusted(Explanation::Failed)));
    let told = distrusted.unwrap_err().to_message(0x4711).expect("the controller is told");
    controller.send(&told);
    assert!(controller.exchange.has_failed() && !controller.exchange.is_authenticated());

    let mut controller = Controller::quick(ends(HOST, 1, None));
    let refused = run(&mut host(ends(HOST, 1, Some(2))), &mut controller);
    assert_eq!(refused, Err(HostFailure::Refused(Explanation::Failed)));

    let ends = ends(HOST, 1, Some(2));
    let mut honest = host(ends.clone());
    let mut controller = Controller::quick(ends);
    let (_, reply) = to_reply(&mut honest, &mut controller);
    controller.send(&reply);
    let Message::Success1(mut success) = Message::parse(&controller.receive()).unwrap() else { panic!() };
    success.response = None;
    let silent = honest.finish(&Message::Success1(success).to_bytes());
    assert_eq!(silent, Err(HostFailure::Distrusted(Explanation::Failed)));
}

#[test]
fn secrets_are_read_and_never_shown() {
    let text = secret(1).to_text();
    let read: Secret = text.parse().unwrap();
    assert_eq!(read.to_text(), text);
    let shown = format!("{read:?} {:?}", ends(HOST, 1, Some(2)));
    assert!(!shown.contains(&text[10..20]) && shown.contains("32 bytes"), "{shown}");
    let error = |text: &str| text.parse::<Secret>().unwrap_err();
    assert_eq!(error("DHHC-2:00:AAAA:"), SecretError::Form);
    assert_eq!(error(text.trim_end_matches(':')), SecretError::Form);
    assert_eq!(error(&text.replace(":01:", ":04:")), SecretError::Hash);
    assert_eq!(error("DHHC-1:00:AAAA:"), SecretError::Length(0));
    assert_eq!(error("DHHC-1:00:A?AA:"), SecretError::Base64);
    let mut mistyped = text.to_string();
    let at = 15;
    let other = if &mistyped[at..=at] == "A" { "B" } else { "A" };
    mistyped.replace_range(at..=at, other);
    assert_eq!(error(&mistyped), SecretError::Checksum);
    for (transform, bytes) in [(None, 32), (Some(Hash::Sha384), 48), (Some(Hash::Sha512), 64)] {
        let made = Secret::generate(transform, &Entropy::system()).unwrap();
        assert!(made.to_text().len() <= willow_auth::SECRET_TEXT_BYTES_MAX);
        assert!(format!("{:?}", made.to_text().parse::<Secret>().unwrap()).contains(&bytes.to_string()));
    }
}

proptest! {
    /// Whatever a host without the secret sends in place of any message, it is not authenticated, and nothing panics.
    #[test]
    fn nothing_but_the_secret_authenticates(
        messages in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..128), 0u8..3, 0u8..6), 1..6),
        steps in 0usize..4,
    ) {
        let ends = ends(HOST, 1, Some(2));
        let mut controller = Controller::quick(ends.clone());
        let mut thief = host(self::ends(HOST, 9, Some(2)));
        let (mut challenge, mut at) = (Vec::new(), 0);
        for (mut bytes, kind, id) in messages {
            match at {
                0 if steps > 0 => bytes = thief.negotiate(),
                1 if steps > 1 && !challenge.is_empty() => bytes = thief.reply(&challenge).unwrap_or(bytes),
                _ if bytes.len() > 1 => (bytes[0], bytes[1]) = (kind, id),
                _ => {}
            }
            at += 1;
            controller.send(&bytes);
            if let Ok(said) = controller.exchange.receive() {
                let _ = thief.finish(&said);
                challenge = said;
            }
            prop_assert!(!controller.exchange.is_authenticated());
        }
    }

    /// A controller that says anything at all: the host never believes one that owes it a proof.
    #[test]
    fn no_controller_is_believed_by_chance(bytes in proptest::collection::vec(any::<u8>(), 0..200), id in 0u8..6, cut in 0usize..100) {
        let ends = ends(HOST, 1, Some(2));
        let mut controller = Controller::quick(ends.clone());
        let mut honest = host(ends);
        let (challenge, reply) = to_reply(&mut honest, &mut controller);
        let _ = host(self::ends(HOST, 1, Some(2))).reply(&challenge[..cut.min(challenge.len() - 1)]).unwrap_err();
        controller.send(&reply);
        let mut said = bytes;
        if said.len() > 8 {
            (said[0], said[1]) = (1, id);
            (said[4], said[5], said[6], said[8]) = (0x11, 0x47, 32, 1);
        }
        prop_assert!(honest.finish(&said).is_err());
    }
}
