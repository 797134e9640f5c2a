//! Both ends of the rings against each other, and each against an other side that writes anything: sequences of steps, which
//! shrink to the shortest that shows a mistake. Miri has `tests/races.rs`.
#![cfg(not(miri))]

mod common;

use common::{DATA_BYTES, HostStep, play_device, play_host};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};
use willow_shm::layout::{Call, Command, Layout, Operation, Outcome, depth_max};
use willow_shm::memory::Mapping;
use willow_shm::rings::device::{DeviceRings, Plant, Taken};
use willow_shm::rings::host::HostRings;

const CASES: u32 = 4000;
const STEPS: usize = 200;

fn config() -> Config {
    Config { cases: CASES, max_shrink_iters: 4096, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_host_gets_more_than_was_reserved(steps in prop::collection::vec(common::host_step(), 0..STEPS)) {
        play_host(&steps, None).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn no_device_makes_a_host_miscount(steps in prop::collection::vec(common::device_step(), 0..STEPS)) {
        play_device(&steps).map_err(TestCaseError::fail)?;
    }
}

/// The same sequences on every machine.
fn sequences<S: Strategy>(strategy: impl Fn() -> S, count: usize) -> Vec<S::Value> {
    let rng = TestRng::deterministic_rng(Config::default().rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config(), rng);
    (0..count).map(|_| strategy().new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn the_sequences_reach_what_they_are_for() {
    let mut host = common::HostSummary::default();
    for steps in sequences(|| prop::collection::vec(common::host_step(), 200), 300) {
        host += play_host(&steps, None).unwrap();
    }
    assert!(host.taken > 1000 && host.refused > 300 && host.violations > 30 && host.full > 30, "{host:?}");
    let mut device = common::DeviceSummary::default();
    for steps in sequences(|| prop::collection::vec(common::device_step(), 200), 300) {
        device += play_device(&steps).unwrap();
    }
    assert!(
        device.submitted > 1000 && device.completions > 300 && device.broken > 30 && device.full > 30,
        "{device:?}"
    );
}

#[test]
fn planted_mistakes_of_the_device_are_caught() {
    for plant in [Plant::TrustHead, Plant::NoReserve, Plant::LateHead] {
        let caught = sequences(|| prop::collection::vec(common::host_step(), 200), 1000)
            .iter()
            .filter(|steps: &&Vec<HostStep>| play_host(steps, Some(plant)).is_err())
            .count();
        assert!(caught > 0, "{plant:?} is not caught");
    }
}

/// Both ends, with as many entries, and this many commands under way.
fn ends(entries: u32, depth: u32) -> (HostRings<Mapping>, DeviceRings<Mapping>) {
    let layout = Layout::new(entries, DATA_BYTES).unwrap();
    let (host, device) = Mapping::pair(layout.bytes()).unwrap();
    (HostRings::new(host, layout, depth), DeviceRings::new(device, layout, depth, DATA_BYTES as u32))
}

fn nothing(tag: u32) -> Command {
    let call = Call::new(0, 0, 0, &[]).unwrap();
    Command {
        tag,
        operation: Operation::Nothing,
        more: 0,
        payload_offset: 0,
        payload_bytes: 0,
        reply_offset: 0,
        reply_bytes: 0,
        call,
    }
}

fn take(device: &mut DeviceRings<Mapping>) -> Option<u16> {
    match device.take(|_, _| Some(()), |_, _| Some(())).unwrap()? {
        Taken::Command(flight, ..) => Some(flight),
        Taken::Refused => panic!("an honest command is refused"),
    }
}

#[test]
fn who_sees_a_completion_sees_the_slots_as_free() {
    // A whole ring is answered in one batch, before the device has looked around: the host has nothing under way then, so that
    // nothing would tell it of room that came later.
    let (mut host, mut device) = ends(16, 8);
    for tag in 0..64 {
        assert!(host.submit(&nothing(tag), &[]), "no room for command {tag}, and nobody will say when there is");
        let flight = take(&mut device).unwrap();
        device.end(flight, Outcome::Answered, 0, 0, 0);
        assert_eq!(host.completion().unwrap().unwrap().tag, tag);
    }
}

/// A device that answers all it can and sleeps, and a host that keeps `depth` commands under way, takes what has come only
/// when it is full, and then waits for the rest. Returns how many of `commands` were answered when both slept.
fn until_both_sleep(depth: u32, commands: u32) -> u32 {
    let (mut host, mut device) = ends(16, depth);
    let (mut submitted, mut completed) = (0, 0);
    let serve = |device: &mut DeviceRings<Mapping>| {
        device.wake();
        loop {
            while let Some(flight) = take(device) {
                device.end(flight, Outcome::Answered, 0, 0, 0);
            }
            device.show_position();
            if device.fall_asleep() {
                return device.wants_doorbell();
            }
        }
    };
    assert!(device.fall_asleep());
    loop {
        let before = (submitted, completed);
        while submitted < commands && host.submit(&nothing(submitted), &[]) {
            submitted += 1;
        }
        if submitted > before.0 && host.must_ring() {
            serve(&mut device);
        }
        // What a host takes between two submissions.
        for _ in 0..if submitted < commands { 3 } else { commands } {
            completed += u32::from(host.completion().unwrap().is_some());
        }
        if before == (submitted, completed) {
            return completed;
        }
    }
}

#[test]
fn half_of_the_ring_is_as_deep_as_it_may_be_used() {
    for commands in 0..100 {
        assert_eq!(until_both_sleep(depth_max(16), commands), commands);
    }
    // The planted twin: as deep as the ring. The device has no place for a completion, sleeps, and nobody rings.
    assert!((0..100).any(|commands| until_both_sleep(16, commands) < commands), "some commands are left behind");
}
