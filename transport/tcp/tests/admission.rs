//! Who may make the target hold how much, and for how long: floods, hosts that send or read nothing, and what others feel of it.

mod common;

use std::io::{BufRead as _, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use willow_device::DeviceConfig;
use willow_nvme::config::{CONTROLLERS_MAX, NQN_DEFAULT, NQN_DISCOVERY};
use willow_wire::pdu::{Data, Pdu};
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, opcode};

/// What a peer that proved nothing may make the target hold.
const UNPROVED_BYTES: u64 = 1 << 20;
/// Budget of data buffers where a test fills it.
const BUDGET_BYTES: usize = 16 << 20;
/// Longer than any test waits: who is delayed until another's connection is ended for want of its data is delayed for too long.
const NEVER: Duration = Duration::from_secs(3600);

fn log_page(cid: u16, bytes: u32) -> SubmissionEntry {
    let (page, specific, retain_event, offset, csi) = (log::DISCOVERY, 0, true, 0, 0);
    let request = GetLogPage { page, specific, retain_event, bytes: bytes.into(), offset, csi };
    request.to_entry(0).with_cid(cid).with_sgl(Sgl::transport(bytes))
}

/// Most bytes that the target holds of data while `time` goes by.
fn most_held(server: &Running, time: Duration) -> u64 {
    let begun = Instant::now();
    let mut most = 0;
    while begun.elapsed() < time {
        let statistics = server.handle.statistics(PATIENCE).expect("the server answers");
        most = most.max(statistics.buffer_bytes).max(statistics.held_bytes);
        std::thread::sleep(Duration::from_millis(1));
    }
    most
}

#[test]
fn a_discovery_controller_cannot_fill_the_memory() {
    let server = serve();
    let host = Host::named("stranger", 1024);
    // 64 KiB is the longest that such a controller gives (MDTS); past it, each command is refused, in little memory too.
    for bytes in [4 << 20, 65536] {
        let mut peers: Vec<Peer> = (0..4).map(|_| host.admin_of(server.address, NQN_DISCOVERY).0).collect();
        for peer in &mut peers {
            let mut flood = Vec::new();
            (0..1000).for_each(|cid| peer.encoder.command(&mut flood, &log_page(cid, bytes), 0));
            assert_eq!(flood.len(), 72_000);
            // Who does not read is not read from: the rest stays with the sender.
            peer.stream.set_nonblocking(true).unwrap();
            let _ = peer.stream.write(&flood);
            peer.stream.set_nonblocking(false).unwrap();
        }
        let held = most_held(&server, Duration::from_millis(300));
        assert!(held <= peers.len() as u64 * UNPROVED_BYTES, "{held} bytes are held for {bytes}");
        serves(server.address);
        // All that was read is answered once they are.
        let answered = peers[0].next().expect("an answer");
        match (bytes, answered.pdu) {
            (65536, Pdu::ControllerData(_)) => assert_eq!(answered.data.len(), 65536),
            (_, Pdu::Response(completion)) => assert!(!completion.status.is_success()),
            (_, other) => panic!("{other:?}"),
        }
    }
    server.settles(true);
}

/// What each host holds is told, and what was refused.
#[test]
fn the_statistics_tell_what_each_host_holds() {
    let server = serve();
    let (one, other) = (Host::named("one", 32), Host::named("other", 32));
    let (_admin, cntlid) = one.admin(server.address);
    let mut io = one.queue(server.address, 1, cntlid);
    let (_other_admin, other_cntlid) = other.admin(server.address);
    let mut unread = other.queue(server.address, 1, other_cntlid);
    let of = |host: &str| {
        let statistics = server.handle.statistics(PATIENCE).unwrap();
        statistics.hosts.into_iter().find(|one| one.host == host).expect("it has connections")
    };
    // Three writes whose data are awaited.
    for cid in 0..3 {
        io.command(&write(cid, 0, 4, Sgl::transport(16384)), &[]);
        assert!(matches!(io.next().unwrap().pdu, Pdu::ReadyToTransfer(_)));
    }
    let held = of(&one.nqn);
    assert_eq!((held.connections, held.fetching, held.in_device, held.waiting_for_buffer), (2, 3, 0, 0), "{held:?}");
    assert!(held.held_bytes >= 3 * 16384 && held.queued_bytes == 0, "{held:?}");
    // Answers that nobody reads.
    (0..16).for_each(|cid| unread.command(&read(cid, 0, 1024, 4 << 20), &[]));
    let begun = Instant::now();
    while of(&other.nqn).queued_bytes < 1 << 20 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", of(&other.nqn));
    }
    assert_eq!(of(&other.nqn).fetching, 0);
    let before = of("");
    let refused = Peer::initialized(server.address, false).connect(0, 0xffff, "nqn.2014-08.org.example:nothing");
    assert!(!refused.status.is_success());
    assert_eq!(of("").refused, before.refused + 1);
    // The data come: nothing is awaited any more.
    write_by_request(&mut io, 9, 4);
    drop((io, unread, _admin, _other_admin));
    server.settles(true);
    let left = server.handle.statistics(PATIENCE).unwrap();
    assert!(left.hosts.iter().all(|host| (host.held_bytes, host.fetching, host.queued_bytes) == (0, 0, 0)), "{left:?}");
}

#[test]
fn idle_discovery_controllers_lock_nobody_out() {
    let server = serve();
    let stranger = Host::named("stranger", 32);
    let idle: Vec<Peer> = (0..CONTROLLERS_MAX)
        .map(|_| {
            let mut peer = Peer::initialized(server.address, false);
            assert!(
                stranger.connect(&mut peer, 0, 0xffff, NQN_DISCOVERY).status.is_success(),
                "the newest gets a place"
            );
            peer
        })
        .collect();
    serves(server.address);
    let statistics = server.handle.statistics(PATIENCE).unwrap();
    assert!(statistics.controllers as usize <= CONTROLLERS_MAX / 3 + 2, "{statistics:?}");
    drop(idle);
    server.settles(true);
}

/// Writes whose data never come, which together take a budget of [`BUDGET_BYTES`] to the last buffer where they are let.
fn hoard(io: &mut Peer) {
    let blocks = [1024, 1024, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2].into_iter().chain([1; 100]);
    for (cid, blocks) in (0..).zip(blocks) {
        io.command(&write(cid, 0, blocks, Sgl::transport(blocks * 4096)), &[]);
    }
    assert!(matches!(io.next().unwrap().pdu, Pdu::ReadyToTransfer(_)));
    // Until the target has read all of it, or as much as it reads.
    std::thread::sleep(Duration::from_millis(100));
}

/// A write whose data are asked for, to its end.
fn write_by_request(io: &mut Peer, cid: u16, blocks: u32) {
    io.command(&write(cid, 0, blocks, Sgl::transport(blocks * 4096)), &[]);
    let Pdu::ReadyToTransfer(ready) = io.next().unwrap().pdu else { panic!("an R2T") };
    let bytes = blocks * 4096;
    let (transfer_tag, offset, last, success) = (ready.transfer_tag, 0, true, false);
    io.host_data(&Data { cid, transfer_tag, offset, bytes, last, success }, &vec![7; bytes as usize]);
    let Pdu::Response(completion) = io.next().unwrap().pdu else { panic!("a response") };
    assert!(completion.cid == cid && completion.status.is_success(), "{completion:?}");
}

#[test]
fn a_host_that_sends_no_data_delays_no_other() {
    let server = serve_with(
        |config| {
            config.subsystem.buffer_budget_bytes = BUDGET_BYTES;
            config.stall_limit = NEVER;
        },
        4096,
    );
    let (greedy, victim) = (Host::named("greedy", 256), Host::named("victim", 32));
    let (_admin, cntlid) = greedy.admin(server.address);
    let mut hoarding = greedy.queue(server.address, 1, cntlid);
    hoard(&mut hoarding);
    let (_other, cntlid) = victim.admin(server.address);
    let mut io = victim.queue(server.address, 1, cntlid);
    for cid in 0..20 {
        write_by_request(&mut io, cid, 1);
        assert!(io.ask(&read(cid, 0, 1, 4096), &[]).status.is_success());
    }
    write_by_request(&mut io, 30, 256);
    // A second queue of the greedy host's is read from as ever: what needs no buffer, or a small one, passes.
    let mut second = greedy.queue(server.address, 2, cntlid - 1);
    assert!(second.ask(&write(1, 0, 1, Sgl::in_capsule(0, 4096)), &[1; 4096]).status.is_success());
    drop((hoarding, second));
}

/// The budget as it comes, and as much as a host can ask for at once.
#[test]
fn writes_of_four_megabytes_without_data_stop_no_other_hosts_read() {
    let server = serve_with(|config| config.stall_limit = NEVER, 4096);
    let (greedy, victim) = (Host::named("greedy", 256), Host::named("victim", 32));
    let (_admin, cntlid) = greedy.admin(server.address);
    let mut hoarding = greedy.queue(server.address, 1, cntlid);
    (0..128).for_each(|cid| hoarding.command(&write(cid, 0, 1024, Sgl::transport(4 << 20)), &[]));
    assert!(matches!(hoarding.next().unwrap().pdu, Pdu::ReadyToTransfer(_)));
    let (_other, cntlid) = victim.admin(server.address);
    let mut io = victim.queue(server.address, 1, cntlid);
    for cid in 0..20 {
        assert!(io.ask(&read(cid, 0, 1, 4096), &[]).status.is_success());
        write_by_request(&mut io, cid, 1);
    }
    let hosts = server.handle.statistics(PATIENCE).unwrap().hosts;
    let of = |name: &str| hosts.iter().find(|one| one.host == name).expect("it has connections");
    let (held, waiting) = (of(&greedy.nqn).held_bytes, of(&greedy.nqn).waiting_for_buffer);
    assert!(held >= 64 << 20 && waiting > 0, "it holds {held} bytes, and {waiting} of its commands wait");
    drop(hoarding);
    server.settles(false);
}

/// Controllers that send no keep alive, and were asked for none.
#[test]
fn one_hosts_idle_controllers_leave_other_hosts_theirs() {
    let server = serve();
    let greedy = Host::named("greedy", 32);
    assert_eq!(greedy.keep_alive_ms, 0);
    let mut idle = Vec::new();
    let refused = loop {
        let mut peer = Peer::initialized(server.address, false);
        let connected = greedy.connect(&mut peer, 0, 0xffff, NQN_DEFAULT);
        if !connected.status.is_success() {
            break connected.status;
        }
        idle.push(peer);
        assert!(idle.len() < CONTROLLERS_MAX, "it has all of them");
    };
    assert_eq!(refused, Status::CONNECT_CONTROLLER_BUSY);
    assert!(idle.len() >= 256, "a host gets {} controllers", idle.len());
    for name in ["one", "another"] {
        let host = Host::named(name, 32);
        let (_admin, cntlid) = host.admin(server.address);
        let mut io = host.queue(server.address, 1, cntlid);
        assert!(io.ask(&read(1, 0, 1, 4096), &[]).status.is_success());
    }
    drop(idle);
    server.settles(false);
}

#[test]
fn who_waits_for_a_buffer_is_woken_by_the_end_of_a_connection() {
    let server = serve_with(
        |config| {
            config.subsystem.buffer_budget_bytes = BUDGET_BYTES;
            config.stall_limit = Duration::from_millis(500);
        },
        4096,
    );
    let greedy = Host::named("greedy", 256);
    let (_admin, cntlid) = greedy.admin(server.address);
    let mut hoarding = greedy.queue(server.address, 1, cntlid);
    hoard(&mut hoarding);
    // The same host's share is used up: this one waits until the stall limit ends the other connection, and nothing else happens.
    let mut second = greedy.queue(server.address, 2, cntlid);
    write_by_request(&mut second, 1, 256);
    while hoarding.next().is_some() {}
    server.settles(false);
}

#[test]
fn a_device_without_a_place_makes_commands_wait() {
    let config = || DeviceConfig { requests_per_hre_max: 16, ..DeviceConfig::default() };
    let server = serve_device(|_| {}, move || device_with(config()));
    let host = Host::named("deep", 1024);
    let (_admin, cntlid) = host.admin(server.address);
    let mut queues: Vec<Peer> = (1..5).map(|queue_id| host.queue(server.address, queue_id, cntlid)).collect();
    for io in &mut queues {
        let mut flood = Vec::new();
        (0..1000).for_each(|cid| io.encoder.command(&mut flood, &read(cid, u64::from(cid), 1, 4096), 0));
        io.send(&flood);
    }
    for io in &mut queues {
        let mut ended = [false; 1000];
        while !ended.iter().all(|ended| *ended) {
            match io.next().expect("the connection stays").pdu {
                Pdu::Response(completion) => {
                    assert!(completion.status.is_success(), "{completion:?}");
                    assert!(!std::mem::replace(&mut ended[usize::from(completion.cid)], true));
                }
                Pdu::ControllerData(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    server.settles(false);
}

#[test]
fn who_sends_a_few_bytes_now_and_then_is_ended() {
    let server = serve_with(|config| config.stall_limit = Duration::from_millis(400), 4096);
    let trickle = |name: &str, first: &dyn Fn(&mut Peer) -> Vec<u8>| {
        let host = Host::named(name, 32);
        let (_admin, cntlid) = host.admin(server.address);
        let mut io = host.queue(server.address, 1, cntlid);
        let bytes = first(&mut io);
        let begun = Instant::now();
        for byte in bytes.chunks(1) {
            if io.stream.write_all(byte).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
            assert!(begun.elapsed() < PATIENCE, "{name}: it is not ended");
        }
        panic!("{name}: all of it was taken");
    };
    trickle("capsule", &|io| {
        let mut bytes = Vec::new();
        io.encoder.command_with_data(&mut bytes, &write(1, 0, 1, Sgl::in_capsule(0, 4096)), &[0; 4096]);
        bytes
    });
    trickle("transfer", &|io| {
        io.command(&write(1, 0, 16, Sgl::transport(65536)), &[]);
        let Pdu::ReadyToTransfer(ready) = io.next().unwrap().pdu else { panic!("an R2T") };
        let (transfer_tag, offset, bytes, last, success) = (ready.transfer_tag, 0, 65536, true, false);
        let mut out = Vec::new();
        io.encoder.host_data(&mut out, &Data { cid: 1, transfer_tag, offset, bytes, last, success });
        out.resize(out.len() + 65536, 0);
        out
    });
    serves(server.address);
}

#[test]
fn time_limits_hold_while_others_keep_the_target_busy() {
    let server = serve_with(
        |config| {
            // Long enough for an honest one on a machine that does other things.
            config.connect_limit = Duration::from_secs(1);
            config.stall_limit = Duration::from_secs(1);
            // Whoever has been active lately keeps the thread from ever coming to rest.
            config.spin = Duration::from_millis(10);
        },
        4096,
    );
    let address = server.address;
    // It keeps the target busy until all have ended that are to end.
    let (over, (began, begins)) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel());
    let is_over = over.clone();
    let busy = std::thread::spawn(move || {
        let (_admin, mut io, _) = Peer::with_queue(address, false);
        let mut began = Some(began);
        while !is_over.load(Ordering::Relaxed) {
            assert!(io.ask(&read(1, 0, 1, 4096), &[]).status.is_success());
            drop(began.take());
        }
    });
    assert!(begins.recv_timeout(PATIENCE) == Err::<(), _>(std::sync::mpsc::RecvTimeoutError::Disconnected));
    let begun = Instant::now();
    // Nothing at all; no Connect; half a PDU; data that were asked for and do not come; no keep alive; answers that nobody reads.
    let mut silent = Peer::raw(address);
    let mut unconnected = Peer::initialized(address, false);
    let (_half, mut half, _) = Peer::with_queue(address, false);
    half.send(&[4, 0, 72]);
    let (_stuck, mut stuck, _) = Peer::with_queue(address, false);
    stuck.command(&write(1, 0, 16, Sgl::transport(65536)), &[]);
    assert!(matches!(stuck.next().unwrap().pdu, Pdu::ReadyToTransfer(_)));
    let (mut lifeless, _) = Host { keep_alive_ms: 1000, ..Host::named("lifeless", 32) }.admin(address);
    let deaf = Host::named("deaf", 32);
    let (_deaf, cntlid) = deaf.admin(address);
    let mut unread = deaf.queue(address, 1, cntlid);
    (0..16).for_each(|cid| unread.command(&read(cid, 0, 1024, 4 << 20), &[]));
    for (what, peer) in [
        ("silent", &mut silent),
        ("unconnected", &mut unconnected),
        ("half", &mut half),
        ("stuck", &mut stuck),
        ("lifeless", &mut lifeless),
    ] {
        while peer.next().is_some() {}
        assert!(!busy.is_finished(), "the load has ended before {what}, after {:?}", begun.elapsed());
    }
    // What it has sent lies in the socket still: the admin queue alone is left.
    let connections = || {
        let hosts = server.handle.statistics(PATIENCE).expect("the server answers").hosts;
        hosts.iter().find(|one| one.host == deaf.nqn).map_or(0, |one| one.connections)
    };
    while connections() > 1 {
        assert!(begun.elapsed() < 2 * PATIENCE, "whoever reads no answers is there after {:?}", begun.elapsed());
    }
    assert!(connections() == 1 && !busy.is_finished());
    over.store(true, Ordering::Relaxed);
    busy.join().unwrap();
}

/// Names the environment variable by which this program is told to serve, and do nothing else.
const SERVE_VARIABLE: &str = "WILLOW_TEST_SERVES";

/// No test by itself: the process that another test stops.
#[test]
fn a_process_that_serves() {
    if std::env::var_os(SERVE_VARIABLE).is_some() {
        let server = serve();
        println!("\nserves at {}", server.address);
        // Ends with whoever started it.
        let _ = std::io::stdin().read(&mut [0]);
    }
}

#[test]
fn keep_alives_that_came_in_a_pause_count() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_serves", "--nocapture"])
        .env(SERVE_VARIABLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let address =
        lines.by_ref().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("serves at ")?.to_owned()));
    let address: std::net::SocketAddr = address.expect("it serves").parse().unwrap();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    };
    // Something else goes on all the time, so that the target does not ask the kernel who has something at each turn.
    let (_other_admin, mut busy, _) = Peer::with_queue(address, false);
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let load = std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            assert!(busy.ask(&read(1, 0, 1, 4096), &[]).status.is_success());
        }
    });
    // From one pause to the next less time goes by than that, on a busy machine as well.
    let (mut admin, _) = Host { keep_alive_ms: 1200, ..Host::default() }.admin(address);
    for round in 0..4 {
        signal("-STOP");
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(400));
            admin.command(&SubmissionEntry::new(opcode::admin::KEEP_ALIVE).with_cid(1), &[]);
        }
        signal("-CONT");
        for _ in 0..6 {
            let came = admin.next().unwrap_or_else(|| panic!("round {round}: the association ended"));
            let Pdu::Response(completion) = came.pdu else { panic!("a response") };
            assert!(completion.status.is_success(), "{completion:?}");
        }
    }
    // It ends all the same where none come.
    assert!(admin.next().is_none());
    over.store(true, Ordering::Relaxed);
    load.join().unwrap();
    drop(child.stdin.take());
    lines.map_while(Result::ok).for_each(drop);
    assert!(child.wait().unwrap().success());
}
