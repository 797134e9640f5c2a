//! A device that may have few descriptors: who floods it with connections, and with messages full of descriptors, harms nobody who is
//! served already, and when the flood is over others are let in again.

mod common;
use common::*;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use willow_shm::message::Kind;
use willow_shm::ring::Endpoint;
use willow_shm::socket::Channel;

/// Descriptors that the device may open beyond those that it has when it is ready.
const SPARE: u64 = 12;

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the device lives").count()
}

/// Not a test by itself: the device.
#[test]
fn child_with_few_descriptors() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    // As before Linux 6.16, so that it is sent some.
    let _running = serve_with(|config| config.descriptors = willow_shm_front::config::Descriptors::Left);
    let limit = Some(descriptors(std::process::id()) as u64 + SPARE);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("less is always granted");
    loop {
        std::thread::park();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_device_out_of_descriptors_serves_on_and_recovers() {
    let mut device = child("child_with_few_descriptors", Path::new("-")).spawn().unwrap();
    let path: PathBuf = std::env::temp_dir().join(format!("willow-shm-{}-0.sock", device.id()));
    until("the device is ready", || Channel::connect(&path).is_ok());
    let hre = endpoint(&path);
    let honest = Honest::new(&hre, 9);
    settles(&hre, "processes", 1);
    let at_rest = descriptors(device.id());
    // The planted twin of the count below: a connection that lives is seen by it.
    let held = Endpoint::open(&path, Kind::User, 16, 4096).unwrap();
    assert!(descriptors(device.id()) > at_rest);
    drop(held);
    until("nothing is left of an endpoint", || descriptors(device.id()) == at_rest);
    for round in 0..3 {
        let flood: Vec<Channel> = (0..60).filter_map(|_| Channel::connect(&path).ok()).collect();
        assert!(flood.len() > SPARE as usize);
        let file = std::fs::File::open("/dev/null").unwrap();
        for channel in &flood {
            // Refused or not, whole or cut short: none of them stays.
            let _ = channel.send(b"{}", &[file.as_fd(), file.as_fd(), file.as_fd()]);
        }
        assert_eq!(honest.damaged(), 0, "round {round}");
        if round == 0 {
            // Connections alone, and nothing else: now there is no room for one more.
            let more: Vec<Channel> = (0..30).filter_map(|_| Channel::connect(&path).ok()).collect();
            until("the limit is reached", || descriptors(device.id()) >= at_rest + SPARE as usize - 3);
            let waits =
                more.iter().filter(|channel| channel.receive_within(Duration::from_millis(20)).is_err()).count();
            assert!(waits > 0, "all were let in");
            assert_eq!(honest.damaged(), 0);
        }
        drop(flood);
        let mut opened = None;
        until("others are let in again", || {
            opened = Endpoint::open(&path, Kind::User, 16, 4096).ok();
            opened.is_some()
        });
        drop(opened);
        until("nothing is left of the flood", || descriptors(device.id()) == at_rest);
    }
    assert_eq!(honest.damaged(), 0);
    device.kill().unwrap();
    device.wait().unwrap();
    let _ = std::fs::remove_file(path);
}
