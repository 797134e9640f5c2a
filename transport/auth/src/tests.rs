//! What the crate computes against what Python computed of the same numbers (tests/vectors.py).

use crate::respond::Question;
use crate::{Credentials, Ends, Group, Hash, KeyPair, Secret};
use std::sync::Arc;
use zeroize::Zeroizing;

fn bytes(value: &serde_json::Value) -> Vec<u8> {
    let text = value.as_str().expect("hexadecimal text");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("a byte")).collect()
}

fn number(value: &serde_json::Value) -> u32 {
    u32::try_from(value.as_u64().expect("a number")).expect("32 bits")
}

#[test]
fn responses_are_those_that_another_implementation_computes() {
    let vectors: Vec<serde_json::Value> = serde_json::from_str(include_str!("../tests/vectors.json")).unwrap();
    assert_eq!(vectors.len(), 18);
    for vector in &vectors {
        let text = |name: &str| vector[name].as_str().unwrap().to_owned();
        let secret: Secret = text("secret").parse().unwrap();
        let controller_secret: Secret = text("controller_secret").parse().unwrap();
        assert_eq!(*secret.to_text(), text("secret"));
        let hash = Hash::from_id(number(&vector["hash"]) as u8).unwrap();
        let group = Group::from_id(number(&vector["group"]) as u8).unwrap();
        let fingerprint = |data: &[u8], name: &str| {
            assert_eq!(Hash::Sha256.digest(data).to_vec(), bytes(&vector[name]), "{name} of {}", group.name())
        };
        fingerprint(&group.prime(), "prime_sha256");
        let shared = (group != Group::Null).then(|| {
            let pair = |name: &str| KeyPair::of(group, Zeroizing::new(bytes(&vector[name]))).unwrap();
            let (x, y) = (pair("x"), pair("y"));
            fingerprint(x.public(), "public_x_sha256");
            fingerprint(y.public(), "public_y_sha256");
            let shared = x.shared(y.public()).unwrap();
            assert_eq!(shared, y.shared(x.public()).unwrap());
            fingerprint(&shared, "shared_sha256");
            shared
        });
        let credentials = Credentials { host_nqn: text("host_nqn"), secret, controller_secret: None };
        let ends = Ends { credentials: Arc::new(credentials), subsystem_nqn: text("subsystem_nqn") };
        let (c1, c2) = (bytes(&vector["c1"]), bytes(&vector["c2"]));
        let question = |challenge, sequence: &str| Question {
            hash,
            challenge,
            sequence: number(&vector[sequence]),
            transaction: number(&vector["transaction"]) as u16,
            secure_channel: 0,
            shared: shared.as_ref().map(|shared| shared.as_slice()),
        };
        assert_eq!(question(&c1, "s1").of_host(&ends).to_vec(), bytes(&vector["r1"]), "{hash:?} {group:?}");
        let r2 = question(&c2, "s2").of_controller(&controller_secret, &ends);
        assert_eq!(r2.to_vec(), bytes(&vector["r2"]), "{hash:?} {group:?}");
    }
}

#[test]
fn public_values_with_known_powers_are_refused() {
    for group in [Group::Ffdhe2048, Group::Ffdhe8192] {
        let pair = KeyPair::of(group, Zeroizing::new(vec![5; group.bytes().min(32)])).unwrap();
        let number = |last: u8| {
            let mut value = vec![0; group.bytes()];
            *value.last_mut().unwrap() = last;
            value
        };
        let below_prime = |less: u8| {
            let mut value = group.prime();
            *value.last_mut().unwrap() -= less;
            value
        };
        for bad in [vec![], number(0), number(1), below_prime(0), below_prime(1), vec![0xff; group.bytes()]] {
            assert!(pair.shared(&bad).is_err(), "{:02x?}", &bad[..bad.len().min(4)]);
        }
        assert!(pair.shared(&number(2)[1..]).is_err(), "too short");
        assert!(pair.shared(&number(2)).is_ok() && pair.shared(&below_prime(2)).is_ok());
    }
}
