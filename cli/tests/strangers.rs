//! What connections that prove nothing cost the device's process: its memory, measured.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::{Folder, Served, willow};
use willow_wire::pdu::{Encoder, InitializeRequest};
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData, DISCOVERY_NQN};
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::{Sgl, property};

/// Connections of the attack: more than have a place.
const CONNECTIONS: usize = 1200;
/// What they may cost: 32 MiB that they share, 17 KiB for each of 1024, and as much for what else the target keeps of a connection
/// (docs/authentication.md).
const COST_BYTES_MAX: u64 = 64 << 20;

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// A discovery controller that asks for its log, 64 KiB at a time, far more than it will read.
fn asks_and_never_reads() -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
    let encoder = Encoder::default();
    let connect = ConnectCommand { record_format: 0, queue_id: 0, queue_size: 1023, attributes: 0, keep_alive_ms: 0 };
    let data = ConnectData {
        host_id: [7; 16],
        controller_id: CONTROLLER_DYNAMIC,
        subsystem_nqn: DISCOVERY_NQN.to_owned(),
        host_nqn: "nqn.2025-01.org.example:stranger".to_owned(),
    };
    let entry = connect.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 1024));
    encoder.command_with_data(&mut bytes, &entry, &data.to_bytes()[..]);
    for value in [0x46_0000, 0x46_0001] {
        encoder.command_with_data(&mut bytes, &fabrics::property_set(property::CC, value, false).with_cid(2), &[]);
    }
    for cid in 0..1000 {
        let page = log::DISCOVERY;
        let request = GetLogPage { page, specific: 0, retain_event: true, bytes: 65536, offset: 0, csi: 0 };
        encoder.command(&mut bytes, &request.to_entry(0).with_cid(cid).with_sgl(Sgl::transport(65536)), 0);
    }
    bytes
}

/// A capsule with the longest data that an admin queue takes, but for its last byte.
fn never_ends() -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
    let connect = ConnectCommand { record_format: 0, queue_id: 0, queue_size: 1023, attributes: 0, keep_alive_ms: 0 };
    let entry = connect.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 8192));
    Encoder::default().command_with_data(&mut bytes, &entry, &[7; 8192]);
    bytes.pop();
    bytes
}

#[test]
fn a_thousand_strangers_cost_the_process_a_bounded_amount() {
    // With keys, so that whoever comes is a stranger.
    let folder = Folder::new();
    let key = folder.path("key");
    assert!(willow().args(["key", "new", &key]).status().unwrap().success());
    let arguments = ["--ram", "--size", "64M", "--kv-size", "0", "--spus", "2", "--host-key", &key];
    let device = Served::start(&arguments);
    device.ok(&["ns", "list", "--key", &key]);
    let before = resident_bytes(device.child.id());
    let (asks, unfinished) = (asks_and_never_reads(), never_ends());
    let mut report = Vec::new();
    for (what, bytes) in [("answers that nobody reads", &asks), ("capsules without an end", &unfinished)] {
        let mut peers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(&device.address).unwrap();
            stream.set_nonblocking(true).unwrap();
            let sent = stream.write(bytes).unwrap_or(0);
            peers.push((stream, sent));
        }
        let (begun, mut most) = (Instant::now(), 0);
        // For some time, and until the attack is at its height.
        let counted = loop {
            let turn = Instant::now();
            while turn.elapsed() < Duration::from_secs(2) {
                // As much more as the target takes.
                for (stream, sent) in &mut peers {
                    *sent += stream.write(&bytes[*sent..]).unwrap_or(0);
                }
                most = most.max(resident_bytes(device.child.id()));
            }
            let statistics: serde_json::Value =
                serde_json::from_str(&device.ok(&["stat", "--json", "--key", &key])).unwrap();
            let strangers = &statistics["transport"]["hosts"][0];
            assert_eq!(strangers["host"], "");
            let counted = strangers["held_bytes"].as_u64().unwrap();
            if strangers["connections"].as_u64().unwrap() > 500 && counted > 1 << 20 {
                break counted;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "they hold something: {strangers}");
        };
        let cost = most.saturating_sub(before);
        report.push(format!("{what}: {} KiB of the process, {} KiB counted", cost >> 10, counted >> 10));
        assert!(cost < COST_BYTES_MAX, "{report:?}");
        drop(peers);
    }
    println!("{report:#?}");
    device.ok(&["ns", "list", "--key", &key]);
    device.end();
}
