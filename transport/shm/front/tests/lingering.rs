//! Who sends the device a descriptor whose close waits: the device serves all others, and ends when it is to end.

mod common;
use common::*;
use rustix::io::Errno;
use std::sync::mpsc;
use willow_shm::message::{Kind, Request, encode};
use willow_shm::socket::{Channel, ReceiveError};
use willow_shm::testing::Lingering;
use willow_shm_front::config::{Descriptors, PENDING_PER_USER_MAX, REFUSED_CLOSING_MAX};

/// Sends a message with such a socket; `None` where the kernel does not let it.
fn send(channel: &Channel, message: &[u8]) -> Option<Lingering> {
    let mut lingering = Lingering::new().unwrap();
    match channel.send(message, &[lingering.descriptor()]) {
        Ok(()) => drop(lingering.give_up()),
        // Refused before it was received, or by the kernel.
        Err(Errno::PERM | Errno::PIPE | Errno::CONNRESET) => return None,
        Err(error) => panic!("{error}"),
    }
    Some(lingering)
}

fn others_are_served(descriptors: Descriptors) {
    let running = serve_with(move |config| config.descriptors = descriptors);
    let hre = endpoint(&running.path);
    let honest = Honest::new(&hre, 5);
    let open = encode(&Request::Open {
        version: willow_shm::layout::VERSION,
        kind: Kind::User,
        entries: 16,
        data_bytes: 4096,
    });
    let (mut sent, mut hostile) = (0, Vec::new());
    let mut note = |channel: Channel, lingering: Option<Lingering>| {
        sent += usize::from(lingering.is_some());
        hostile.push((channel, lingering));
    };
    // As its first message, as the request for an endpoint, and where only doorbells are expected.
    for message in [&b"x"[..], b"", &open] {
        let channel = Channel::connect(&running.path).unwrap();
        let lingering = send(&channel, message);
        note(channel, lingering);
        assert_eq!(honest.damaged(), 0);
    }
    for _ in 0..3 {
        let channel = Channel::connect(&running.path).unwrap();
        channel.send(&open, &[]).unwrap();
        let opened = channel.receive_within(PATIENCE).unwrap();
        assert!(String::from_utf8_lossy(&opened.bytes).contains("opened"));
        let lingering = send(&channel, willow_shm::message::DOORBELL);
        note(channel, lingering);
        assert_eq!(honest.damaged(), 0);
    }
    // More of them than are let in, and than are closed at a time: it sends at once, before it is accepted or refused.
    for _ in 0..PENDING_PER_USER_MAX + REFUSED_CLOSING_MAX * 2 {
        let channel = Channel::connect(&running.path).unwrap();
        let lingering = send(&channel, b"x");
        note(channel, lingering);
    }
    assert_eq!(honest.damaged(), 0);
    if descriptors == Descriptors::Left {
        assert!(sent > 6, "{sent} were sent");
    }
    // All of them are over, and their places are free again.
    let begun = std::time::Instant::now();
    for (channel, _) in hostile.iter().filter(|(_, lingering)| lingering.is_some()) {
        while !matches!(channel.receive_within(PATIENCE), Err(ReceiveError::Closed)) {
            assert!(begun.elapsed() < PATIENCE, "it is connected still");
        }
    }
    // Those that could send nothing are connected still.
    hostile.retain(|(_, lingering)| lingering.is_some());
    let mut opened = None;
    while opened.is_none() {
        assert!(begun.elapsed() < PATIENCE, "nobody else is let in");
        opened = willow_shm::ring::Endpoint::open(&running.path, Kind::User, 16, 4096).ok();
    }
    // One that nobody takes in any more goes with the device.
    let last = Channel::connect(&running.path).unwrap();
    let last_sent = send(&last, b"x");
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        drop(running);
        let _ = ended.send(());
    });
    end.recv_timeout(PATIENCE).expect("the device ends");
    drop((last, last_sent, opened, hostile));
}

#[test]
fn a_device_does_not_wait_for_descriptors_that_strangers_send() {
    others_are_served(Descriptors::Refused);
}

/// As on Linux before 6.16.
#[test]
fn a_device_whose_kernel_lets_descriptors_in_does_not_wait_for_them() {
    others_are_served(Descriptors::Left);
}
