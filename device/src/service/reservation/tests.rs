//! Reservations: the table of what each type permits, what each action does, and what holds after any sequence of them.

use super::*;
use proptest::prelude::*;

const ALL: [ReservationType; 6] = [
    ReservationType::WriteExclusive,
    ReservationType::ExclusiveAccess,
    ReservationType::WriteExclusiveRegistrantsOnly,
    ReservationType::ExclusiveAccessRegistrantsOnly,
    ReservationType::WriteExclusiveAllRegistrants,
    ReservationType::ExclusiveAccessAllRegistrants,
];

fn host(number: u8) -> [u8; 16] {
    [number; 16]
}

fn act(of: &mut Reservation, number: u8, action: ReservationAction) -> Result<Vec<Notice>, ReservationError> {
    of.apply(&ReserveRequest { nsid: 1, others: vec![], host: host(number), action, persistent: None })
}

/// Hosts 1 to 3, registered with keys 11 to 13; host 1 holds it.
fn held(kind: ReservationType) -> Reservation {
    let mut one = Reservation::default();
    for number in 1..=3 {
        act(&mut one, number, ReservationAction::Register { key: 10 + u64::from(number) }).unwrap();
    }
    act(&mut one, 1, ReservationAction::Acquire { current: 11, kind }).unwrap();
    one
}

/// Reads and writes of the holder, another registrant, and a host that has not registered (NVMe Base, the table of command behaviour in
/// the presence of a reservation).
#[test]
fn each_type_permits_what_the_table_says() {
    let expected = [
        [[true, true], [true, false], [true, false]],
        [[true, true], [false, false], [false, false]],
        [[true, true], [true, true], [true, false]],
        [[true, true], [true, true], [false, false]],
        [[true, true], [true, true], [true, false]],
        [[true, true], [true, true], [false, false]],
    ];
    for (kind, rows) in ALL.into_iter().zip(expected) {
        let one = held(kind);
        for (number, [read, write]) in [1, 2, 9].into_iter().zip(rows) {
            assert_eq!(one.permits(&host(number), Access::Read), read, "{kind:?} {number}");
            assert_eq!(one.permits(&host(number), Access::Write), write, "{kind:?} {number}");
        }
    }
    assert!(Reservation::default().permits(&host(9), Access::Write));
}

#[test]
fn keys_are_checked_and_a_refusal_changes_nothing() {
    use ReservationAction::*;
    let kind = ReservationType::WriteExclusive;
    let one = held(kind);
    for (number, action) in [
        (2, Register { key: 5 }),
        (2, Unregister { current: Some(5) }),
        (9, Unregister { current: None }),
        (2, Replace { current: Some(5), key: 6 }),
        (9, Acquire { current: 0, kind }),
        (2, Acquire { current: 12, kind }),
        (1, Acquire { current: 11, kind: ReservationType::ExclusiveAccess }),
        (2, Preempt { current: 12, preempted: 99, kind }),
        (2, Preempt { current: 12, preempted: 0, kind }),
        (9, Preempt { current: 0, preempted: 11, kind }),
        (1, Release { current: 11, kind: ReservationType::ExclusiveAccess }),
        (2, Release { current: 11, kind }),
        (9, Clear { current: 0 }),
    ] {
        let mut tried = one.clone();
        assert!(act(&mut tried, number, action).is_err(), "{action:?}");
        assert_eq!(tried, one, "{action:?}");
    }
    let mut full = Reservation::default();
    for number in 0..REGISTRANTS_MAX as u8 {
        act(&mut full, number, Register { key: 1 }).unwrap();
    }
    assert_eq!(act(&mut full, 200, Register { key: 1 }), Err(ReservationError::Full));
}

#[test]
fn a_reservation_is_taken_given_up_and_ends_with_its_holder() {
    use ReservationAction::*;
    for kind in ALL {
        let all = kind as u8 >= 5;
        let mut one = held(kind);
        let generation = one.generation;
        // Who does not hold it releases nothing; of what all hold, each is a holder.
        act(&mut one, 2, Release { current: 12, kind }).unwrap();
        assert_eq!((one.held.is_some(), one.generation), (!all, generation));

        let mut one = held(kind);
        act(&mut one, 1, Unregister { current: Some(11) }).unwrap();
        assert_eq!((one.held.is_some(), one.generation), (all, generation + 1), "{kind:?}");

        let mut one = held(kind);
        act(&mut one, 2, Preempt { current: 12, preempted: if all { 0 } else { 11 }, kind }).unwrap();
        assert!(one.is_holder(&host(2)) && !one.is_registered(&host(1)), "{kind:?}");
        assert_eq!(one.is_registered(&host(3)), !all, "{kind:?}");

        // A registrant that holds nothing alone goes; the reservation stays.
        let mut one = held(kind);
        act(&mut one, 2, Preempt { current: 12, preempted: 13, kind }).unwrap();
        assert!(one.is_holder(&host(1)) && !one.is_registered(&host(3)), "{kind:?}");

        let mut one = held(kind);
        act(&mut one, 3, Clear { current: 13 }).unwrap();
        assert!(one.held.is_none() && one.registrants.is_empty());
    }
}

fn actions() -> impl Strategy<Value = (u8, ReservationAction)> {
    use ReservationAction::*;
    let key = 0u64..4;
    let kind = (0usize..6).prop_map(|at| ALL[at]);
    let action = prop_oneof![
        key.clone().prop_map(|key| Register { key }),
        proptest::option::of(key.clone()).prop_map(|current| Unregister { current }),
        (proptest::option::of(key.clone()), key.clone()).prop_map(|(current, key)| Replace { current, key }),
        (key.clone(), kind.clone()).prop_map(|(current, kind)| Acquire { current, kind }),
        (key.clone(), key.clone(), kind.clone()).prop_map(|(current, preempted, kind)| Preempt {
            current,
            preempted,
            kind
        }),
        (key.clone(), kind).prop_map(|(current, kind)| Release { current, kind }),
        key.prop_map(|current| Clear { current }),
    ];
    (0u8..4, action)
}

proptest! {
    #[test]
    fn what_always_holds_holds_after_any_sequence(sequence in proptest::collection::vec(actions(), 1..60)) {
        let mut one = Reservation::default();
        for (number, action) in sequence {
            let before = one.clone();
            match act(&mut one, number, action) {
                Err(_) => prop_assert_eq!(&one, &before),
                Ok(notices) => {
                    prop_assert!(notices.iter().all(|notice| notice.host != host(number) && before.is_registered(&notice.host)));
                    let is_same = one.registrants == before.registrants;
                    let acquires = matches!(action, ReservationAction::Acquire { .. } | ReservationAction::Release { .. });
                    prop_assert!(is_same || one.generation == before.generation + 1);
                    prop_assert!(!acquires || is_same);
                }
            }
            let mut hosts: Vec<_> = one.registrants.iter().map(|one| one.host).collect();
            hosts.sort();
            hosts.dedup();
            prop_assert_eq!(hosts.len(), one.registrants.len(), "one host is one registrant");
            if let Some(held) = one.held {
                prop_assert!(held.kind.is_of_all() || one.is_registered(&held.host));
                prop_assert!(!one.registrants.is_empty());
                let free = (0..4).filter(|number| one.permits(&host(*number), Access::Write)).count();
                let expected = if held.kind.is_of_holder_alone() { 1 } else { one.registrants.len() };
                prop_assert_eq!(free, expected, "who may write");
            }
        }
    }
}
