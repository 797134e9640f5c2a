//! Connections that stall, flood or vanish: bounded, ended in time, and nothing of them left.

mod common;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use common::*;
use willow_nvme::access::Access;
use willow_nvme::config::NQN_DISCOVERY;
use willow_tcp::{ListenAddress, Reload};
use willow_wire::bytes::{u16_at, u32_at, u64_at};
use willow_wire::pdu::{Encoder, InitializeRequest, Pdu};
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::opcode::{self, admin};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, feature};

#[test]
fn connections_that_do_not_move_are_ended() {
    let server = serve_with(
        |config| {
            // Long enough for an honest one on a machine that does other things.
            config.connect_limit = Duration::from_secs(1);
            config.stall_limit = Duration::from_secs(1);
        },
        4096,
    );
    // Nothing at all; an initialization and no Connect; half a PDU; a transfer whose data never come.
    let mut silent = Peer::raw(server.address);
    let mut unconnected = Peer::initialized(server.address, false);
    let (_admin, mut half, _) = Peer::with_queue(server.address, false);
    half.send(&[4, 0, 72]);
    let (_other, mut stuck, _) = Peer::with_queue(server.address, false);
    stuck.command(&write(1, 0, 16, Sgl::transport(65536)), &[]);
    assert!(matches!(stuck.next().unwrap().pdu, Pdu::ReadyToTransfer(_)));
    for peer in [&mut silent, &mut unconnected, &mut half, &mut stuck] {
        while peer.next().is_some() {}
    }
    serves(server.address);
    // A host that is connected and has nothing to say stays.
    let (_admin, mut idle, _) = Peer::with_queue(server.address, false);
    std::thread::sleep(Duration::from_millis(2000));
    assert!(idle.ask(&read(1, 0, 1, 4096), &[]).status.is_success());
    server.settles(false);
}

#[test]
fn a_flood_of_connections_is_bounded() {
    let server = serve_with(|config| config.connections_max = 32, 4096);
    // A host that has connected stays, whoever comes after it.
    let (_admin, mut io, _) = Peer::with_queue(server.address, false);
    let mut flood: Vec<Peer> = (0..60).map(|_| Peer::raw(server.address)).collect();
    // A quarter of the places is for those that proved nothing: the oldest of them made way.
    let mut newest = flood.split_off(52);
    for peer in &mut flood {
        assert!(peer.next().is_none(), "one of the first is still there");
    }
    let statistics = server.handle.statistics(PATIENCE).expect("the server answers");
    assert_eq!(statistics.unproved_connections, 8);
    for peer in &mut newest {
        let mut bytes = Vec::new();
        Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
        peer.stream.write_all(&bytes).unwrap();
        assert!(peer.next().is_some());
    }
    serves(server.address);
    assert!(io.ask(&read(1, 0, 1, 4096), &[]).status.is_success());
}

#[test]
fn a_host_that_vanishes_leaves_nothing_behind() {
    let server = serve();
    for round in 0..20u16 {
        let (mut admin_queue, mut io, _) = Peer::with_queue(server.address, round % 2 == 0);
        admin_queue.command(&SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(1), &[]);
        for cid in 0..10 {
            io.command(&read(cid, 0, 64, 64 * 4096), &[]);
            io.command(&write(100 + cid, 64, 64, Sgl::transport(64 * 4096)), &[]);
        }
        if round % 3 == 0 {
            drop(io);
            drop(admin_queue);
        } else {
            drop(admin_queue);
            drop(io);
        }
    }
    serves(server.address);
    server.settles(true);
}

#[test]
fn addresses_come_and_go_while_hosts_are_connected() {
    let server = serve();
    let (mut admin, _) = Peer::admin(server.address, false);
    let (mut discovery, _) = Host::named("one", 32).admin_of(server.address, NQN_DISCOVERY);
    let wanted = SubmissionEntry::new(admin::SET_FEATURES)
        .with_cid(3)
        .with_cdw(10, feature::ASYNC_EVENT_CONFIGURATION.into())
        .with_cdw(11, feature::event::CONFIGURE_DISCOVERY);
    assert!(discovery.ask(&wanted, &[]).status.is_success());
    assert!(!admin.ask(&wanted, &[]).status.is_success(), "of discovery controllers alone");
    // Generation and records of the discovery log.
    let log = |peer: &mut Peer| {
        let page = GetLogPage { page: log::DISCOVERY, specific: 0, retain_event: false, bytes: 16, offset: 0, csi: 0 };
        let (completion, data) = peer.ask_data(&page.to_entry(0).with_cid(4).with_sgl(Sgl::transport(16)), &[]);
        assert!(completion.status.is_success(), "{completion:?}");
        (u64_at(&data, 0), u64_at(&data, 8))
    };
    let reload = |listen: &[SocketAddr]| {
        let listen = listen.iter().map(|address| (*address).into()).collect();
        server
            .handle
            .reload(Reload { listen, referrals: Vec::new(), authentication: None }, PATIENCE)
            .expect("the server answers")
    };
    let (generation, records) = log(&mut discovery);
    discovery.command(&SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(90), &[]);

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = reload(&[taken.local_addr().unwrap()]).unwrap_err();
    assert!(error.to_string().contains("cannot listen on"), "{error}");
    assert_eq!((log(&mut discovery), records), ((generation, 2), 2), "all is as before");
    serves(server.address);

    let now = reload(&[server.address, SocketAddr::from(([127, 0, 0, 1], 0))]).unwrap();
    let (same, other) = (now[0].address, now[1].address);
    assert_eq!(same, server.address);
    let Some(Pdu::Response(event)) = discovery.next().map(|came| came.pdu) else { panic!("it is told") };
    let told =
        feature::event::result(feature::event::TYPE_NOTICE, feature::event::NOTICE_DISCOVERY_CHANGED, log::DISCOVERY);
    assert_eq!((event.cid, event.result), (90, u64::from(told)));
    assert_eq!(log(&mut discovery), (generation + 1, 4));
    serves(server.address);
    serves(other);

    assert_eq!(reload(&[other]).unwrap().len(), 1);
    assert!(std::net::TcpStream::connect(server.address).is_err(), "it is given up");
    serves(other);
    assert!(admin.ask(&SubmissionEntry::new(admin::KEEP_ALIVE).with_cid(5), &[]).status.is_success(), "it stays");
    assert_eq!(log(&mut discovery), (generation + 2, 2));
}

#[test]
fn a_path_that_is_worse_or_none_is_told_and_what_comes_by_it_refused() {
    let path = |port: u16, access| ListenAddress { access, ..SocketAddr::from(([127, 0, 0, 1], port)).into() };
    let server =
        serve_with(move |config| config.listen = vec![path(0, Access::Optimized), path(0, Access::NonOptimized)], 4096);
    let reload = |listen: Vec<ListenAddress>, referrals: Vec<SocketAddr>| {
        let asked = Reload { listen, referrals, authentication: None };
        server.handle.reload(asked, PATIENCE).expect("the server answers").expect("it can be")
    };
    let now = reload(vec![path(0, Access::Optimized), path(0, Access::NonOptimized)], Vec::new());
    let (one, other) = (now[0].address, now[1].address);
    let page = |peer: &mut Peer, retain_event: bool, specific: u8| {
        let page = GetLogPage { page: log::ANA, specific, retain_event, bytes: 64, offset: 0, csi: 0 };
        let (completion, data) = peer.ask_data(&page.to_entry(0).with_cid(4).with_sgl(Sgl::transport(64)), &[]);
        assert!(completion.status.is_success(), "{completion:?}");
        // Changes; groups; of the first its number, how many namespaces, its state, the first two of them.
        (u64_at(&data, 0), u16_at(&data, 8), u32_at(&data, 16), u32_at(&data, 20), data[32], u64_at(&data, 48))
    };
    const BOTH: u64 = 2 << 32 | 1;
    let (mut first, mut first_io, _) = Peer::with_queue(one, false);
    let (mut second, mut second_io, _) = Peer::with_queue(other, false);
    assert_eq!(page(&mut first, false, 0), (0, 1, 1, 2, 1, BOTH));
    assert_eq!(page(&mut second, false, 0), (0, 1, 1, 2, 2, BOTH));
    assert_eq!(page(&mut second, false, 1), (0, 1, 1, 0, 2, 0), "the groups alone");
    serves_on(&mut first_io);
    serves_on(&mut second_io);
    // Who has asked is told of each change once, until the log is read.
    let wanted = SubmissionEntry::new(admin::SET_FEATURES)
        .with_cid(3)
        .with_cdw(10, feature::ASYNC_EVENT_CONFIGURATION.into())
        .with_cdw(11, feature::event::CONFIGURE_ANA);
    assert!(first.ask(&wanted, &[]).status.is_success());
    (0..3).for_each(|cid| first.command(&SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(90 + cid), &[]));
    let told = |peer: &mut Peer, cid: u16| {
        let Some(Pdu::Response(event)) = peer.next().map(|came| came.pdu) else { panic!("it is told") };
        let result = feature::event::result(feature::event::TYPE_NOTICE, feature::event::NOTICE_ANA_CHANGED, log::ANA);
        assert_eq!((event.cid, event.result), (cid, u64::from(result)));
    };
    reload(vec![path(one.port(), Access::Inaccessible), path(other.port(), Access::NonOptimized)], Vec::new());
    told(&mut first, 90);
    let flush = SubmissionEntry::new(opcode::nvm::FLUSH).with_cid(6);
    for refused in [read(5, 0, 1, 4096), flush.with_nsid(1), flush.with_nsid(u32::MAX)] {
        let status = first_io.ask(&refused, &[]).status;
        assert!(status.is(Status::ANA_INACCESSIBLE) && !status.do_not_retry(), "{refused:?}: {status}");
    }
    let status = first_io.ask(&write(5, 0, 1, Sgl::in_capsule(0, 4096)), &[7; 4096]).status;
    assert!(status.is(Status::ANA_INACCESSIBLE), "{status}");
    serves_on(&mut second_io);
    // Another change, of which nothing is told before the log is read.
    reload(vec![path(one.port(), Access::NonOptimized), path(other.port(), Access::NonOptimized)], Vec::new());
    serves_on(&mut first_io);
    assert_eq!(page(&mut first, true, 0), (2, 1, 1, 2, 2, BOTH), "the event is retained");
    // The log that is read next has the second event told, in front of its answer.
    let ask = GetLogPage { page: log::ANA, specific: 0, retain_event: false, bytes: 64, offset: 0, csi: 0 };
    first.command(&ask.to_entry(0).with_cid(4).with_sgl(Sgl::transport(64)), &[]);
    told(&mut first, 91);
    assert!(matches!(first.next().map(|came| came.pdu), Some(Pdu::ControllerData(_))));
    assert!(matches!(first.next().map(|came| came.pdu), Some(Pdu::Response(answer)) if answer.cid == 4));
    assert_eq!(page(&mut second, false, 0), (0, 1, 1, 2, 2, BOTH), "its path has not changed");
    // What was written by a path that was refused was not written.
    let (_, data) = second_io.ask_data(&read(5, 0, 1, 4096), &[]);
    assert_eq!(data, [0; 4096]);
    // A path that is given up leaves the state that it had last, and goes on.
    reload(vec![path(other.port(), Access::Optimized)], vec![SocketAddr::from(([192, 0, 2, 7], 8009))]);
    assert_eq!(page(&mut first, false, 0).4, 2);
    serves_on(&mut first_io);
    assert_eq!(page(&mut second, false, 0), (1, 1, 1, 2, 1, BOTH));
    // The discovery log names the other discovery controller.
    let (mut discovery, _) = Host::named("one", 32).admin_of(other, NQN_DISCOVERY);
    let ask = GetLogPage { page: log::DISCOVERY, specific: 0, retain_event: false, bytes: 4096, offset: 0, csi: 0 };
    let (_, data) = discovery.ask_data(&ask.to_entry(0).with_cid(4).with_sgl(Sgl::transport(4096)), &[]);
    assert_eq!((u64_at(&data, 8), data[3 * 1024 + 2]), (3, 1));
    assert!(data[3 * 1024 + 512..].starts_with(b"192.0.2.7\0"));
}
