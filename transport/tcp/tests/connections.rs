//! Connections that stall, flood or vanish: bounded, ended in time, and nothing of them left.

mod common;

use std::io::Write as _;
use std::time::Duration;

use common::*;
use willow_wire::pdu::{Encoder, InitializeRequest, Pdu};
use willow_wire::spec::opcode::admin;
use willow_wire::spec::{Sgl, SubmissionEntry};

#[test]
fn connections_that_do_not_move_are_ended() {
    let server = serve_with(
        |config| {
            config.connect_limit = Duration::from_millis(300);
            config.stall_limit = Duration::from_millis(300);
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
    std::thread::sleep(Duration::from_millis(700));
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
