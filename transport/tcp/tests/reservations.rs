//! Reservations of namespaces between hosts (NVMe Base, "Reservations"), by scripted hosts over TCP.

mod common;

use common::*;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_wire::bytes::{u16_at, u32_at, u64_at};
use willow_wire::pdu::{Data, Pdu};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, feature, log};

const WRITE_EXCLUSIVE: u32 = 1;
const EXCLUSIVE_ACCESS: u32 = 2;
const EXCLUSIVE_ACCESS_REGISTRANTS: u32 = 4;
/// CPTPL: what is registered outlives a loss of power.
const PERSISTENT: u32 = 0b11 << 30;

fn named(name: &str, number: u8) -> Host {
    Host { id: [number; 16], ..Host::named(name, 32) }
}

fn device_on(media: &FaultMedia) -> Device {
    let config =
        DeviceConfig { spus: 2, namespace_bytes: 1 << 20, kv_namespace_bytes: 1 << 20, ..DeviceConfig::default() };
    let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
    Device::open(config, Box::new(media.store()), None, apps).unwrap()
}

fn serve_on(media: &FaultMedia) -> Running {
    let media = media.clone();
    serve_device(|_| {}, move || device_on(&media))
}

fn command(peer: &mut Peer, opcode: u8, cdw10: u32, keys: &[u64]) -> Status {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let entry = SubmissionEntry::new(opcode)
        .with_cid(20)
        .with_nsid(1)
        .with_cdw(10, cdw10)
        .with_sgl(Sgl::in_capsule(0, data.len() as u32));
    peer.ask(&entry, &data).status
}

fn register(peer: &mut Peer, cdw10: u32, key: u64) -> Status {
    command(peer, nvm::RESERVATION_REGISTER, cdw10, &[0, key])
}

fn acquire(peer: &mut Peer, action: u32, kind: u32, keys: [u64; 2]) -> Status {
    command(peer, nvm::RESERVATION_ACQUIRE, kind << 8 | action, &keys)
}

fn release(peer: &mut Peer, action: u32, kind: u32, key: u64) -> Status {
    command(peer, nvm::RESERVATION_RELEASE, kind << 8 | action, &[key])
}

fn writes(peer: &mut Peer) -> Status {
    peer.ask(&write(3, 5, 1, Sgl::in_capsule(0, 4096)), &[9; 4096]).status
}

fn reads(peer: &mut Peer) -> Status {
    peer.ask_data(&read(4, 5, 1, 4096), &[]).0.status
}

/// Generation, type, persistence, and (key, holder) of each entry.
fn report(peer: &mut Peer) -> (u32, u8, u8, Vec<(u64, bool)>) {
    let entry = SubmissionEntry::new(nvm::RESERVATION_REPORT)
        .with_cid(21)
        .with_nsid(1)
        .with_cdw(10, 4096 / 4 - 1)
        .with_cdw(11, 1)
        .with_sgl(Sgl::transport(4096));
    let (completion, data) = peer.ask_data(&entry, &[]);
    assert!(completion.status.is_success(), "{completion:?}");
    let entries =
        (0..usize::from(u16_at(&data, 5))).map(|at| (u64_at(&data, 64 * (at + 1) + 8), data[64 * (at + 1) + 2] == 1));
    (u32_at(&data, 0), data[4], data[9], entries.collect())
}

#[test]
fn a_reservation_keeps_other_hosts_out_and_can_be_taken_over() {
    let server = serve();
    let (one, other) = (named("one", 1), named("other", 2));
    let (_first, first_id) = one.admin(server.address);
    let (_second, second_id) = other.admin(server.address);
    let mut a = one.queue(server.address, 1, first_id);
    let mut b = other.queue(server.address, 1, second_id);
    // Of the same host, and so with the same rights.
    let (_again, again_id) = one.admin(server.address);
    let mut same = one.queue(server.address, 1, again_id);

    assert!(acquire(&mut a, 0, WRITE_EXCLUSIVE, [11, 0]).is(Status::RESERVATION_CONFLICT), "not registered");
    assert!(register(&mut a, 0, 11).is_success());
    assert!(register(&mut a, 0, 12).is(Status::RESERVATION_CONFLICT), "another key");
    assert!(register(&mut b, 0, 22).is_success());
    assert!(writes(&mut b).is_success(), "registered is not reserved");
    assert!(acquire(&mut a, 0, WRITE_EXCLUSIVE, [11, 0]).is_success());
    assert!(writes(&mut b).is(Status::RESERVATION_CONFLICT) && reads(&mut b).is_success());
    assert!(writes(&mut a).is_success() && writes(&mut same).is_success());
    for (opcode, cdw11) in [(nvm::WRITE_ZEROES, 0), (nvm::FLUSH, 0)] {
        let entry = SubmissionEntry::new(opcode).with_cid(5).with_nsid(1).with_cdw(11, cdw11);
        assert!(b.ask(&entry, &[]).status.is(Status::RESERVATION_CONFLICT), "{opcode:x}");
    }
    let ranges = SubmissionEntry::new(nvm::DATASET_MANAGEMENT).with_cid(6).with_nsid(1).with_cdw(11, 4);
    let ranges = ranges.with_sgl(Sgl::in_capsule(0, 16));
    assert!(b.ask(&ranges, &[0; 16]).status.is(Status::RESERVATION_CONFLICT));
    assert_eq!(report(&mut b), (2, 1, 0, vec![(11, true), (11, true), (22, false)]), "an entry for each controller");

    assert!(release(&mut b, 0, WRITE_EXCLUSIVE, 22).is_success(), "who does not hold it releases nothing");
    assert!(writes(&mut b).is(Status::RESERVATION_CONFLICT));
    assert!(release(&mut a, 0, EXCLUSIVE_ACCESS, 11).is(Status::INVALID_FIELD));
    assert!(acquire(&mut b, 1, EXCLUSIVE_ACCESS, [22, 11]).is_success(), "preempts");
    assert!(reads(&mut a).is(Status::RESERVATION_CONFLICT) && writes(&mut b).is_success());
    assert_eq!(report(&mut a), (3, 2, 0, vec![(22, true)]));
    assert!(release(&mut b, 1, 0, 22).is_success(), "clears");
    assert!(writes(&mut a).is_success());
    assert_eq!(report(&mut a), (4, 0, 0, vec![]));

    // What makes no sense.
    assert!(register(&mut a, 3, 1).is(Status::INVALID_FIELD));
    assert!(register(&mut a, 0b01 << 30, 1).is(Status::INVALID_FIELD));
    assert!(register(&mut a, 0, 1).is_success());
    for kind in [0, 7, 255] {
        assert!(acquire(&mut a, 0, kind, [1, 0]).is(Status::INVALID_FIELD), "{kind}");
    }
    let short = SubmissionEntry::new(nvm::RESERVATION_REPORT).with_cid(7).with_nsid(1).with_cdw(10, 3);
    assert!(a.ask(&short.with_sgl(Sgl::transport(16)), &[]).status.is(Status::HOST_IDENTIFIER_INCONSISTENT));
    let (completion, head) = a.ask_data(&short.with_cdw(11, 1).with_sgl(Sgl::transport(16)), &[]);
    assert!(completion.status.is_success() && head.len() == 16, "a report that is cut off");
}

/// The preempted host's write had its place and was asked for its data: it neither delays Preempt and Abort nor lands after it.
#[test]
fn what_a_preempted_host_had_begun_does_not_land_later() {
    let server = serve();
    let (one, other) = (named("one", 1), named("other", 2));
    let (_first, first_id) = one.admin(server.address);
    let (_second, second_id) = other.admin(server.address);
    let mut a = one.queue(server.address, 1, first_id);
    let mut b = other.queue(server.address, 1, second_id);
    assert!(register(&mut a, 0, 11).is_success() && register(&mut b, 0, 22).is_success());
    assert!(acquire(&mut a, 0, EXCLUSIVE_ACCESS_REGISTRANTS, [11, 0]).is_success());
    a.command(&write(9, 8, 1, Sgl::transport(4096)), &[]);
    let Some(Pdu::ReadyToTransfer(asked)) = a.next().map(|came| came.pdu) else { panic!("it is asked for its data") };
    assert!(acquire(&mut b, 2, EXCLUSIVE_ACCESS, [22, 11]).is_success());
    let data = Data { cid: 9, transfer_tag: asked.transfer_tag, offset: 0, bytes: 4096, last: true, success: false };
    a.host_data(&data, &[0xee; 4096]);
    let Some(Pdu::Response(completion)) = a.next().map(|came| came.pdu) else { panic!("it is answered") };
    assert!(completion.status.is(Status::RESERVATION_CONFLICT), "{completion:?}");
    let (completion, kept) = b.ask_data(&read(4, 8, 1, 4096), &[]);
    assert!(completion.status.is_success() && kept.iter().all(|byte| *byte == 0), "nothing of it was written");
}

#[test]
fn hosts_are_told_of_what_others_do_to_their_registrations() {
    let server = serve();
    let (one, other) = (named("one", 1), named("other", 2));
    let (mut first, first_id) = one.admin(server.address);
    let (_second, second_id) = other.admin(server.address);
    let mut a = one.queue(server.address, 1, first_id);
    let mut b = other.queue(server.address, 1, second_id);
    let page = |peer: &mut Peer| {
        let wanted = SubmissionEntry::new(admin::GET_LOG_PAGE).with_cid(8).with_nsid(u32::MAX);
        let entry = wanted.with_cdw(10, 15 << 16 | u32::from(log::RESERVATION));
        let (completion, data) = peer.ask_data(&entry.with_sgl(Sgl::transport(64)), &[]);
        assert!(completion.status.is_success(), "{completion:?}");
        (data[8], data[9], u32_at(&data, 12))
    };
    assert!(register(&mut a, 0, 11).is_success() && register(&mut b, 0, 22).is_success());
    assert_eq!(page(&mut first), (0, 0, 0));
    first.command(&SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(90), &[]);
    assert!(acquire(&mut b, 0, EXCLUSIVE_ACCESS_REGISTRANTS, [22, 0]).is_success());
    assert!(release(&mut b, 0, EXCLUSIVE_ACCESS_REGISTRANTS, 22).is_success());
    let Some(Pdu::Response(event)) = first.next().map(|came| came.pdu) else { panic!("it is told") };
    let event_type = feature::event::event_type(event.result as u32);
    assert_eq!((event.cid, event_type, feature::event::log_page(event.result as u32)), (90, 6, log::RESERVATION));
    assert!(acquire(&mut b, 1, WRITE_EXCLUSIVE, [22, 11]).is_success(), "the other is no longer registered");
    assert_eq!(page(&mut first), (2, 1, 1), "released");
    assert_eq!(page(&mut first), (1, 0, 1), "registration preempted");
    assert_eq!(page(&mut first), (0, 0, 0));

    // What is masked is not told.
    let mask = |peer: &mut Peer, value: u32| {
        let entry = SubmissionEntry::new(admin::SET_FEATURES)
            .with_cid(5)
            .with_nsid(1)
            .with_cdw(10, u32::from(feature::RESERVATION_NOTIFICATION_MASK))
            .with_cdw(11, value);
        assert!(peer.ask(&entry, &[]).status.is_success());
    };
    mask(&mut first, 1 << 3);
    assert!(register(&mut a, 0, 11).is_success());
    assert!(release(&mut b, 1, 0, 22).is_success());
    assert_eq!(page(&mut first), (0, 0, 0));
}

#[test]
fn what_is_to_outlive_a_loss_of_power_does_and_all_else_is_gone() {
    for persistent in [true, false] {
        let media = FaultMedia::new(FaultOptions::new(2, 64 << 20));
        let (one, other) = (named("one", 1), named("other", 2));
        let server = serve_on(&media);
        let (_admin, id) = one.admin(server.address);
        let mut a = one.queue(server.address, 1, id);
        // A failed save leaves nothing behind.
        media.fail_saves(0, 1, 0);
        assert!(register(&mut a, 0, 11).is(Status::INTERNAL_ERROR));
        assert!(acquire(&mut a, 0, WRITE_EXCLUSIVE, [11, 0]).is(Status::RESERVATION_CONFLICT));
        assert!(register(&mut a, if persistent { PERSISTENT } else { 0 }, 11).is_success());
        assert!(acquire(&mut a, 0, WRITE_EXCLUSIVE, [11, 0]).is_success());
        drop((a, _admin));
        server.stop();
        let server = serve_on(&media);
        let (_admin, id) = other.admin(server.address);
        let mut b = other.queue(server.address, 1, id);
        let expected = if persistent { (1, 1, 1, vec![(11, true)]) } else { (0, 0, 0, vec![]) };
        assert_eq!(report(&mut b), expected);
        let wrote = writes(&mut b);
        assert_eq!(wrote.is(Status::RESERVATION_CONFLICT), persistent, "{wrote:?}");
    }
}
