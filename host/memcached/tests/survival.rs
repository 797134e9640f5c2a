//! What the server acknowledged survives: power cuts of the device, and its restarts.

mod common;

use common::{PATIENCE, Way, config, connect, device, device_on, path, serve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions, Random};
use willow_memcached::ServerConfig;

/// What a cut left that must not be.
#[derive(Debug)]
enum Wrong {
    /// Less than was acknowledged.
    Lost(String),
    /// More than was asked for.
    Invented(String),
}

/// The power fails at any moment of a load of sets, and of appends and counts: what was acknowledged is there. Without the flush it is not
/// (so that the test would notice). So many runs, or until one went wrong.
fn power_cuts(durable: bool, runs: u64) -> Result<(), Wrong> {
    let mut random = Random::new(9);
    for seed in 0..runs {
        let mut options = FaultOptions::new(usize::from(common::SPUS), 64 << 20);
        (options.seed, options.delayed_percent) = (seed, 20);
        let media = FaultMedia::new(options);
        let store = media.clone();
        let device = device_on(path("cut"), move || Box::new(store.store()));
        let serving = serve(&device, Way::Memory, ServerConfig { durable, ..config() });
        let acknowledged: Vec<AtomicU64> = (0..4).map(|_| 0.into()).collect();
        let stop = AtomicBool::new(false);
        let cuts: Vec<(FaultMedia, Vec<u64>, Vec<u64>)> = std::thread::scope(|scope| {
            for (number, acknowledged) in acknowledged.iter().enumerate() {
                let (serving, stop) = (&serving, &stop);
                scope.spawn(move || {
                    let mut client = connect(serving);
                    client.set(&format!("count{number}"), b"0");
                    let mut version = 0;
                    while !stop.load(Ordering::Relaxed) {
                        version += 1;
                        // The number in two ways: stored, and counted.
                        let data = [version.to_string().as_bytes(), &vec![b'.'; version as usize * 37 % 3000]].concat();
                        assert_eq!(client.set(&format!("set{number}"), &data), "STORED");
                        assert_eq!(client.ask(&format!("incr count{number} 1")), version.to_string());
                        acknowledged.store(version, Ordering::SeqCst);
                    }
                });
            }
            let mut cuts = Vec::new();
            let counted = || -> Vec<u64> { acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).collect() };
            let mut last = counted();
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(5 + random.below(30)));
                // However slow the machine is, each client got somewhere since the cut before.
                let started = Instant::now();
                while counted().iter().zip(&last).any(|(now, last)| now == last) {
                    assert!(started.elapsed() < PATIENCE, "a client does not go on");
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Clients go on while the cut is made.
                let before = counted();
                let left = media.power_cut(&mut Choices::seeded(random.below(1 << 40)));
                last = counted();
                cuts.push((left, before, last.clone()));
            }
            stop.store(true, Ordering::Relaxed);
            cuts
        });
        drop((serving, device));
        for (media, before, after) in cuts {
            let device = device_on(path("after"), move || Box::new(media.store()));
            let serving = serve(&device, Way::Memory, config());
            let mut client = connect(&serving);
            for (number, (before, after)) in before.into_iter().zip(after).enumerate() {
                let found = |text: Option<Vec<u8>>| {
                    let text = String::from_utf8(text.unwrap_or_default()).unwrap();
                    text.trim_end_matches('.').parse().unwrap_or(0_u64)
                };
                let (set, count) =
                    (found(client.get(&format!("set{number}"))), found(client.get(&format!("count{number}"))));
                let what = format!("seed {seed}: {before} to {after} acknowledged, {set} set, {count} counted");
                if set < before || count < before {
                    return Err(Wrong::Lost(what));
                }
                // One more of each may have been under way.
                if set > after + 1 || count > after + 1 {
                    return Err(Wrong::Invented(what));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    if let Err(Wrong::Lost(what) | Wrong::Invented(what)) = power_cuts(true, 4) {
        panic!("{what}");
    }
}

#[test]
fn without_flushes_power_cuts_lose_what_was_acknowledged() {
    // In which run depends on who was how far.
    let outcome = power_cuts(false, 40);
    assert!(matches!(&outcome, Err(Wrong::Lost(what)) if !what.is_empty()), "{outcome:?}");
}

/// The device goes and comes back: what is under way fails, clients stay connected, and what comes meanwhile waits.
#[test]
fn a_device_that_comes_back_is_found_again() {
    let way = Way::Memory;
    let media = FaultMedia::new(FaultOptions::new(usize::from(common::SPUS), 64 << 20));
    let (socket, store) = (path("back"), media.clone());
    let first = device_on(socket.clone(), move || Box::new(store.store()));
    let serving = serve(&first, way, config());
    let mut client = connect(&serving);
    assert_eq!(client.set("stays", b"here"), "STORED");
    drop(first);
    client.send(b"get stays\r\n");
    std::thread::sleep(Duration::from_millis(300));
    let _second = device_on(socket, move || Box::new(media.store()));
    let line = client.line();
    match line.as_str() {
        "VALUE stays 0 4" => assert_eq!(client.take(4 + 2 + 5), b"here\r\nEND\r\n"),
        other => assert_eq!(other, "SERVER_ERROR the device is gone"),
    }
    assert_eq!(client.get("stays"), Some(b"here".to_vec()));
    assert_eq!(client.set("more", b"1"), "STORED");
}

/// Without a device, and without hope: the server ends, and says why.
#[test]
fn a_device_that_is_gone_for_good_ends_the_server() {
    let device = device();
    let serving = serve(&device, Way::Memory, ServerConfig { reconnect: Duration::ZERO, ..config() });
    let mut client = connect(&serving);
    assert_eq!(client.set("k", b"v"), "STORED");
    drop(device);
    client.send(b"get k\r\n");
    assert!(serving.end().is_err());
}
