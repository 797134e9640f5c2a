//! A scripted host against the target: the sequences that hosts send, and what each broken rule is answered with.

mod common;

use common::*;
use std::time::Duration;
use willow_wire::bytes::{u16_at, u32_at, u64_at};
use willow_wire::control;
use willow_wire::pdu::{Data, Encoder, FatalStatus, InitializeRequest, Pdu, field};
use willow_wire::spec::fabrics::{self, DISCOVERY_NQN, DiscoveryEntry};
use willow_wire::spec::identify::cns;
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::opcode::{admin, kv as kv_opcode, nvm};
use willow_wire::spec::property::csts;
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, feature, kv, property, tunnel};

const NQN: &str = willow_nvme::config::NQN_DEFAULT;

fn identify(peer: &mut Peer, structure: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, Status> {
    let entry = SubmissionEntry::new(admin::IDENTIFY)
        .with_cid(3)
        .with_nsid(nsid)
        .with_cdw(10, u32::from(structure))
        .with_cdw(11, u32::from(csi) << 24)
        .with_sgl(Sgl::transport(4096));
    let (completion, data) = peer.ask_data(&entry, &[]);
    if completion.status.is_success() {
        assert_eq!(data.len(), 4096);
        Ok(data)
    } else {
        assert!(data.is_empty());
        Err(completion.status)
    }
}

fn get_log(page: u8, offset: u64, bytes: u64, retain_event: bool) -> SubmissionEntry {
    let request = GetLogPage { page, specific: 0, retain_event, bytes, offset, csi: 0 };
    request.to_entry(0).with_cid(4).with_sgl(Sgl::transport(bytes as u32))
}

fn log_page(peer: &mut Peer, page: u8, offset: u64, bytes: u64, retain_event: bool) -> Result<Vec<u8>, Status> {
    let (completion, data) = peer.ask_data(&get_log(page, offset, bytes, retain_event), &[]);
    if completion.status.is_success() { Ok(data) } else { Err(completion.status) }
}

fn property_value(peer: &mut Peer, offset: u32, eight: bool) -> u64 {
    let completion = peer.ask(&fabrics::property_get(offset, eight).with_cid(2), &[]);
    assert!(completion.status.is_success());
    completion.result
}

fn set_feature(peer: &mut Peer, feature: u8, value: u32) -> CompletionEntry {
    let entry =
        SubmissionEntry::new(admin::SET_FEATURES).with_cid(5).with_cdw(10, u32::from(feature)).with_cdw(11, value);
    peer.ask(&entry, &[])
}

/// An RPC to the control service with the payload in the capsule.
fn control_send(io: &mut Peer, handler: u8, payload: &[u8]) -> (u32, u32) {
    let entry = SubmissionEntry::new(tunnel::SEND)
        .with_cid(6)
        .with_nsid(1)
        .with_cdw(10, tunnel::target(control::CONTROL_APP, handler))
        .with_cdw(11, tunnel::SPU_ANY)
        .with_sgl(Sgl::in_capsule(0, payload.len() as u32));
    let completion = io.ask(&entry, payload);
    assert!(completion.status.is_success(), "{completion:?}");
    tunnel::split_result(completion.result)
}

#[test]
fn discovery_as_linux_does_it() {
    let server = serve();
    let mut peer = Peer::initialized(server.address, false);
    assert!(peer.connect(0, 0xffff, DISCOVERY_NQN).status.is_success());
    property_value(&mut peer, property::CAP, true);
    peer.ask(&fabrics::property_set(property::CC, 0x46_0000, false).with_cid(1), &[]);
    peer.ask(&fabrics::property_set(property::CC, 0x46_0001, false).with_cid(1), &[]);
    assert_eq!(property_value(&mut peer, property::CSTS, false), u64::from(csts::RDY));
    let data = identify(&mut peer, cns::CONTROLLER, 0, 0).unwrap();
    assert_eq!(data[111], 2);
    let header = log_page(&mut peer, log::DISCOVERY, 0, 20, false).unwrap();
    let records = u64_at(&header, 8);
    let entries = log_page(&mut peer, log::DISCOVERY, 1024, records * 1024, false).unwrap();
    let first = DiscoveryEntry::from_bytes(&entries).unwrap();
    assert_eq!((first.subsystem_nqn.as_str(), first.address.as_str()), (NQN, "127.0.0.1"));
    assert_eq!(first.service, server.address.port().to_string());
    // A discovery controller has no I/O queues and no SMART.
    assert!(log_page(&mut peer, log::SMART, 0, 512, false).unwrap_err().is(Status::INVALID_LOG_PAGE));
}

#[test]
fn a_connection_as_linux_makes_it() {
    let server = serve();
    let mut peer = Peer::initialized(server.address, true);
    let cntlid = {
        // Linux's own digests, header and data.
        let connected = peer.connect(0, 0xffff, NQN);
        assert!(connected.status.is_success());
        connected.result as u16
    };
    let capabilities = property_value(&mut peer, property::CAP, true);
    assert_eq!((capabilities & 0xffff, capabilities >> 37 & 0xff), (1023, 0x41));
    property_value(&mut peer, property::CRTO, false);
    peer.ask(&fabrics::property_set(property::CC, 0x46_0060, false).with_cid(1), &[]);
    peer.ask(&fabrics::property_set(property::CC, 0x46_0061, false).with_cid(1), &[]);
    assert_eq!(property_value(&mut peer, property::CSTS, false), 1);
    assert_eq!(property_value(&mut peer, property::VS, false), 0x2_0000);
    let data = identify(&mut peer, cns::CONTROLLER, 0, 0).unwrap();
    assert_eq!(u16_at(&data, 78), cntlid);
    assert!(u16_at(&data, 320) != 0 && u32_at(&data, 1792) == 520 && data[111] == 1);
    assert_eq!(data[525] & 1, 0, "memory has no cache that could be lost");
    let effects = log_page(&mut peer, log::COMMAND_EFFECTS, 0, 4096, false).unwrap();
    assert_eq!(u32_at(&effects, 1024 + 4) & 3, 3);
    log_page(&mut peer, log::SMART, 0, 512, false).unwrap();
    assert_eq!(set_feature(&mut peer, feature::NUMBER_OF_QUEUES, 0x1_0001).result, 0x1_0001);
    let mut queues: Vec<Peer> = (0..2).map(|_| Peer::initialized(server.address, true)).collect();
    for (index, queue) in queues.iter_mut().enumerate() {
        assert!(queue.connect(index as u16 + 1, cntlid, NQN).status.is_success());
    }
    // A third is more than Set Features granted; a second with the same number is one too many.
    let mut third = Peer::initialized(server.address, true);
    let refused = third.connect(3, cntlid, NQN);
    assert!(refused.status.is(Status::CONNECT_INVALID_PARAMETERS) && refused.result == 42);
    assert!(third.connect(1, cntlid, NQN).status.is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(set_feature(&mut peer, feature::ASYNC_EVENT_CONFIGURATION, 0x100).status.is_success());
    identify(&mut peer, cns::CSI_CONTROLLER, 0, 0).unwrap();
    identify(&mut peer, cns::CSI_CONTROLLER, 0, 1).unwrap();
    let list = identify(&mut peer, cns::ACTIVE_NAMESPACES, 0, 0).unwrap();
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4), u32_at(&list, 8)), (1, 2, 0));
    for nsid in [1u32, 2] {
        let descriptors = identify(&mut peer, cns::NAMESPACE_DESCRIPTORS, nsid, 0).unwrap();
        let csi = u32::from(descriptors[44]);
        assert_eq!((descriptors[0], descriptors[20], descriptors[40], csi), (2, 3, 4, nsid - 1));
        assert_eq!(identify(&mut peer, cns::INDEPENDENT_NAMESPACE, nsid, 0).unwrap()[14], 1);
    }
    assert_eq!(u64_at(&identify(&mut peer, cns::NAMESPACE, 1, 0).unwrap(), 0), 16384);
    assert_eq!(u64_at(&identify(&mut peer, cns::CSI_NAMESPACE, 2, 1).unwrap(), 0), 32 << 20);
    assert_eq!(u64_at(&identify(&mut peer, cns::NAMESPACE, 2, 0).unwrap(), 0), 0, "no block namespace");
    assert!(identify(&mut peer, cns::CSI_NAMESPACE, 2, 0).unwrap_err().is(Status::INVALID_COMMAND_SET));
    assert_eq!(u64_at(&identify(&mut peer, cns::NAMESPACE, 9, 0).unwrap(), 0), 0);
    assert!(identify(&mut peer, cns::NAMESPACE, 0, 0).unwrap_err().is(Status::INVALID_NAMESPACE));
    assert!(identify(&mut peer, 0x7f, 0, 0).unwrap_err().is(Status::INVALID_FIELD));
    for queue in &mut queues {
        let (completion, data) = queue.ask_data(&read(1, 0, 1, 4096), &[]);
        assert!(completion.status.is_success() && data == [0; 4096]);
        assert_eq!(completion.sqhd, 2);
    }
    // Shutdown as `nvme disconnect` does it.
    peer.ask(&fabrics::property_set(property::CC, 0x46_4061, false).with_cid(1), &[]);
    let mut status = 0;
    for _ in 0..1000 {
        status = property_value(&mut peer, property::CSTS, false) as u32;
        if status & csts::SHST_MASK == csts::SHST_COMPLETE {
            break;
        }
    }
    assert_eq!(status & csts::SHST_MASK, csts::SHST_COMPLETE);
}

#[test]
fn connect_is_refused_with_the_place_that_is_wrong() {
    let server = serve();
    let mut peer = Peer::initialized(server.address, false);
    let refused = peer.connect(0, 0xffff, "nqn.2014-08.org.example:other");
    assert!(refused.status.is(Status::CONNECT_INVALID_PARAMETERS) && refused.status.do_not_retry());
    assert_eq!(refused.result, 0x1_0100);
    assert_eq!(peer.connect(0, 5, NQN).result, 0x1_0010);
    let (entry, data) = connect_command(0, 0xffff, NQN);
    assert!(peer.ask(&entry.with_cdw(10, 1), &data[..]).status.is(Status::CONNECT_INCOMPATIBLE_FORMAT));
    assert_eq!(peer.ask(&entry.with_cdw(11, 0), &data[..]).result, 44);
    assert_eq!(peer.ask(&entry.with_cdw(11, 1024), &data[..]).result, 44);
    assert_eq!(peer.connect(1, 77, NQN).result, 0x1_0010);
    assert!(peer.connect(0, 0xffff, NQN).status.is_success(), "and then it can still be right");
    assert!(peer.connect(0, 0xffff, NQN).status.is(Status::COMMAND_SEQUENCE_ERROR));
    // Not enabled: nothing but fabrics commands.
    assert!(identify(&mut peer, cns::CONTROLLER, 0, 0).unwrap_err().is(Status::COMMAND_SEQUENCE_ERROR));
    let mut other = Peer::initialized(server.address, false);
    let (entry, mut data) = connect_command(1, 1, NQN);
    // Another host's name.
    data[512 + 30] ^= 1;
    assert!(other.ask(&entry, &data[..]).status.is(Status::CONNECT_INVALID_HOST));
}

#[test]
fn broken_pdus_end_the_connection_with_their_reason() {
    let server = serve();
    // One that is there all the time.
    let (_admin, other, _) = Peer::with_queue(server.address, false);
    let other = std::cell::RefCell::new(other);
    let initialize = |change: fn(&mut Vec<u8>)| {
        let mut peer = Peer::raw(server.address);
        let mut bytes = Vec::new();
        Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
        change(&mut bytes);
        peer.send(&bytes);
        let termination = peer.terminated();
        serves_on(&mut other.borrow_mut());
        (termination.status, termination.information)
    };
    assert_eq!(initialize(|bytes| bytes[8] = 1), (FatalStatus::UnsupportedParameter as u16, field::PFV));
    assert_eq!(initialize(|bytes| bytes[0] = 0x55), (FatalStatus::InvalidHeaderField as u16, field::TYPE));
    assert_eq!(initialize(|bytes| bytes[2] = 64), (FatalStatus::InvalidHeaderField as u16, field::HLEN));
    assert_eq!(initialize(|bytes| bytes[4] = 130), (FatalStatus::InvalidHeaderField as u16, field::PLEN));
    assert_eq!(initialize(|bytes| bytes[0] = 4), (FatalStatus::SequenceError as u16, 0));
    let running = |send: &dyn Fn(&mut Peer)| {
        let (_admin, mut io, _) = Peer::with_queue(server.address, false);
        send(&mut io);
        let termination = io.terminated();
        serves_on(&mut other.borrow_mut());
        (termination.status, termination.information)
    };
    let sequence = (FatalStatus::SequenceError as u16, 0);
    // A second initialization; a PDU that only controllers send; a capsule past IOCCSZ.
    assert_eq!(
        running(&|io| {
            let mut bytes = Vec::new();
            Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
            io.send(&bytes);
        }),
        sequence
    );
    assert_eq!(
        running(&|io| io.send(&[5, 0, 24, 0, 24, 0, 0, 0])),
        (FatalStatus::InvalidHeaderField as u16, field::TYPE)
    );
    assert_eq!(
        running(&|io| io.command(&write(1, 0, 3, Sgl::in_capsule(0, 12288)), &[0; 12288])),
        (FatalStatus::InvalidHeaderField as u16, field::PLEN)
    );
    // A command before Connect.
    let mut peer = Peer::initialized(server.address, false);
    peer.command(&read(1, 0, 1, 4096), &[]);
    assert_eq!(peer.terminated().status, FatalStatus::SequenceError as u16);
    serves_on(&mut other.borrow_mut());
    serves(server.address);
}

#[test]
fn data_that_nobody_asked_for() {
    let server = serve();
    let (admin, mut other, _) = Peer::with_queue(server.address, false);
    type Case = (&'static str, fn(&mut Data), FatalStatus, u32);
    let cases: [Case; 6] = [
        ("tag", |data| data.transfer_tag ^= 0x100, FatalStatus::InvalidHeaderField, field::TTAG),
        ("command", |data| data.cid ^= 1, FatalStatus::InvalidHeaderField, field::CCCID),
        ("offset", |data| data.offset = 4, FatalStatus::DataOutOfRange, field::OFFSET),
        ("length", |data| data.bytes += 4096, FatalStatus::DataOutOfRange, field::LENGTH),
        ("no last", |data| data.last = false, FatalStatus::InvalidHeaderField, field::FLAGS),
        ("limit", |data| data.bytes = (1 << 20) + 4, FatalStatus::LimitExceeded, 0),
    ];
    for (name, change, status, information) in cases {
        let (_admin, mut io, _) = Peer::with_queue(server.address, false);
        io.command(&write(9, 0, 4, Sgl::transport(16384)), &[]);
        let Pdu::ReadyToTransfer(ready) = io.next().unwrap().pdu else { panic!("{name}: an R2T") };
        assert_eq!((ready.cid, ready.offset, ready.bytes), (9, 0, 16384));
        let mut data =
            Data { cid: 9, transfer_tag: ready.transfer_tag, offset: 0, bytes: 16384, last: true, success: false };
        change(&mut data);
        let mut bytes = Vec::new();
        io.encoder.host_data(&mut bytes, &data);
        io.send(&bytes);
        let termination = io.terminated();
        assert_eq!((termination.status, termination.information), (status as u16, information), "{name}");
        serves_on(&mut other);
    }
    drop((admin, other));
    server.settles(false);
    serves(server.address);
}

#[test]
fn digests_are_checked() {
    let server = serve();
    let (_admin, mut io, _) = Peer::with_queue(server.address, true);
    // A damaged capsule: the command fails and may be sent again.
    let entry = write(1, 0, 1, Sgl::in_capsule(0, 4096));
    let mut bytes = Vec::new();
    io.encoder.command_with_data(&mut bytes, &entry, &[3; 4096]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    io.send(&bytes);
    let Pdu::Response(completion) = io.next().unwrap().pdu else { panic!("a response") };
    assert!(completion.status.is(Status::TRANSIENT_TRANSPORT_ERROR) && !completion.status.do_not_retry());
    // Damaged data of a transfer, in two PDUs: the same, after both.
    io.command(&write(2, 0, 4, Sgl::transport(16384)), &[]);
    let Pdu::ReadyToTransfer(ready) = io.next().unwrap().pdu else { panic!("an R2T") };
    for (offset, last) in [(0, false), (8192, true)] {
        let data = Data { cid: 2, transfer_tag: ready.transfer_tag, offset, bytes: 8192, last, success: false };
        let mut bytes = Vec::new();
        io.encoder.host_data(&mut bytes, &data);
        io.encoder.payload(&mut bytes, &[4; 8192]);
        if !last {
            let at = bytes.len() - 100;
            bytes[at] ^= 1;
        }
        io.send(&bytes);
    }
    let Pdu::Response(completion) = io.next().unwrap().pdu else { panic!("a response") };
    assert!(completion.cid == 2 && completion.status.is(Status::TRANSIENT_TRANSPORT_ERROR));
    let (completion, data) = io.ask_data(&read(3, 0, 1, 4096), &[]);
    assert!(completion.status.is_success() && data == [0; 4096], "neither write took place");
    // A damaged header is fatal.
    let mut bytes = Vec::new();
    io.encoder.command(&mut bytes, &read(4, 0, 1, 4096), 0);
    bytes[50] ^= 1;
    io.send(&bytes);
    assert_eq!(io.terminated().status, FatalStatus::HeaderDigestError as u16);
}

#[test]
fn bad_commands_get_their_status_and_an_entry_in_the_error_log() {
    let server = serve();
    let (mut admin_queue, mut io, _) = Peer::with_queue(server.address, false);
    let mut told = Vec::new();
    let mut ask = |queue: &mut Peer, sqid: u16, entry: SubmissionEntry, data: &[u8], status: Status| {
        let completion = queue.ask(&entry, data);
        let as_told = completion.status.is(status) && completion.status.more();
        assert!(as_told, "{entry:?}: {completion:?} instead of {status:?}, with more in the error log");
        told.push((sqid, entry.cid(), status, entry.opcode(), entry.nsid(), if sqid == 0 { 0 } else { entry.lba() }));
    };
    let mut expect = |entry: SubmissionEntry, data: &[u8], status: Status| ask(&mut io, 1, entry, data, status);
    expect(read(1, 16384, 1, 4096), &[], Status::LBA_OUT_OF_RANGE);
    expect(read(2, 16383, 2, 8192), &[], Status::LBA_OUT_OF_RANGE);
    expect(read(3, 0, 1, 512), &[], Status::DATA_SGL_LENGTH_INVALID);
    expect(read(4, 0, 1, 4096).with_sgl(Sgl::in_capsule(0, 4096)), &[], Status::SGL_TYPE_INVALID);
    expect(read(5, 0, 1, 4096).with_nsid(0), &[], Status::INVALID_NAMESPACE);
    expect(read(6, 0, 1, 4096).with_nsid(7), &[], Status::INVALID_FIELD);
    expect(read(7, 0, 2048, 8 << 20), &[], Status::INVALID_FIELD);
    expect(write(8, 0, 1, Sgl::in_capsule(8, 4096)), &[0; 4096], Status::SGL_OFFSET_INVALID);
    expect(write(9, 0, 2, Sgl::in_capsule(0, 4096)), &[0; 4096], Status::DATA_SGL_LENGTH_INVALID);
    expect(SubmissionEntry::new(0x7d).with_nsid(1).with_cid(10), &[], Status::INVALID_OPCODE);
    let mut fused = read(11, 0, 1, 4096);
    fused.0[1] |= 3;
    expect(fused, &[], Status::INVALID_FIELD);
    let zeroes = SubmissionEntry::new(nvm::WRITE_ZEROES).with_nsid(1).with_cid(12).with_cdw(12, 65535);
    expect(zeroes, &[], Status::INVALID_FIELD);
    expect(fabrics::property_get(0, true).with_cid(13), &[], Status::INVALID_OPCODE);
    expect(SubmissionEntry::new(kv_opcode::LIST).with_nsid(1).with_cid(14), &[], Status::INVALID_OPCODE);
    // Of the admin queue: there is no such page, no such part of one, no such feature, no such command.
    for (cid, entry, status) in [
        (20, get_log(0x33, 0, 512, false), Status::INVALID_LOG_PAGE),
        (21, get_log(log::SMART, 2, 512, false), Status::INVALID_FIELD),
        (22, SubmissionEntry::new(admin::SET_FEATURES).with_cdw(10, 0x33), Status::INVALID_FIELD),
        (23, SubmissionEntry::new(admin::SANITIZE), Status::INVALID_OPCODE),
    ] {
        ask(&mut admin_queue, 0, entry.with_cid(cid), &[], status);
    }
    let page = log_page(&mut admin_queue, log::ERROR, 0, 19 * 64, false).unwrap();
    for (number, (slot, told)) in page.chunks_exact(64).zip(told.iter().rev()).enumerate() {
        let (sqid, cid, status, opcode, nsid, lba) = *told;
        assert_eq!((u64_at(slot, 0), u16_at(slot, 8), u16_at(slot, 10)), (18 - number as u64, sqid, cid));
        assert!(Status::from_field(u16_at(slot, 12)).is(status), "{told:?}: {slot:?}");
        assert_eq!((slot[31], u32_at(slot, 24), u64_at(slot, 16)), (opcode, nsid, lba), "{told:?}");
    }
    assert!(page[18 * 64..].iter().all(|byte| *byte == 0), "and of nothing else");
    let smart = log_page(&mut admin_queue, log::SMART, 0, 512, false).unwrap();
    assert_eq!(u64_at(&smart, log::smart::ERROR_LOG_ENTRIES), 18);
}

#[test]
fn identifiers_and_queue_entries_are_not_used_twice() {
    let server = serve();
    let (_admin, mut io, _) = Peer::with_queue(server.address, false);
    let receive = |cid| {
        SubmissionEntry::new(tunnel::RECEIVE)
            .with_cid(cid)
            .with_nsid(1)
            .with_cdw(12, 15_000)
            .with_sgl(Sgl::transport(4096))
    };
    io.command(&receive(5), &[]);
    let conflict = io.ask(&read(5, 0, 1, 4096), &[]);
    assert!(conflict.status.is(Status::COMMAND_ID_CONFLICT));
    for cid in 100..131 {
        io.command(&receive(cid), &[]);
    }
    // 32 are parked in a queue of 32 entries: the next breaks the rules.
    io.command(&receive(200), &[]);
    assert_eq!(io.terminated().status, FatalStatus::SequenceError as u16);
    serves(server.address);
}

#[test]
fn reset_and_keep_alive_end_queues() {
    let server = serve();
    let (mut admin_queue, mut io, cntlid) = Peer::with_queue(server.address, false);
    admin_queue.ask(&fabrics::property_set(property::CC, 0x46_0060, false).with_cid(1), &[]);
    assert_eq!(property_value(&mut admin_queue, property::CSTS, false), 0);
    assert!(io.next().is_none(), "a reset ends I/O queues");
    admin_queue.ask(&fabrics::property_set(property::CC, 0x46_0061, false).with_cid(1), &[]);
    let mut again = Peer::initialized(server.address, false);
    assert!(again.connect(1, cntlid, NQN).status.is_success());
    // A timeout of 1.5 s, fed twice and then no more: less time goes by than that from one to the next, and more in all.
    assert!(set_feature(&mut admin_queue, feature::KEEP_ALIVE_TIMER, 1500).status.is_success());
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(800));
        assert!(admin_queue.ask(&SubmissionEntry::new(admin::KEEP_ALIVE).with_cid(1), &[]).status.is_success());
    }
    assert!(admin_queue.next().is_none() && again.next().is_none(), "the association ends");
    serves(server.address);
}

#[test]
fn events_and_namespaces_made_at_run_time() {
    let server = serve();
    let (mut admin_queue, mut io, _) = Peer::with_queue(server.address, false);
    set_feature(&mut admin_queue, feature::ASYNC_EVENT_CONFIGURATION, 0x100);
    let event = |cid| SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(cid);
    admin_queue.command(&event(90), &[]);
    let (status, nsid) = control_send(&mut io, control::CREATE_NAMESPACE, br#"{"csi":"kv","size_bytes":8388608}"#);
    assert_eq!((status, nsid), (0, 3));
    let Pdu::Response(told) = admin_queue.next().unwrap().pdu else { panic!("an event") };
    assert_eq!((told.cid, told.result), (90, 0x4_0002));
    let changed = log_page(&mut admin_queue, log::CHANGED_NAMESPACES, 0, 4096, false).unwrap();
    assert_eq!((u32_at(&changed, 0), u32_at(&changed, 4)), (3, 0));
    let list = identify(&mut admin_queue, cns::CSI_ACTIVE_NAMESPACES, 0, 1).unwrap();
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4)), (2, 3));
    // Deleted again: another event.
    admin_queue.command(&event(91), &[]);
    assert_eq!(control_send(&mut io, control::DELETE_NAMESPACE, &3u32.to_le_bytes()).0, 0);
    let Pdu::Response(told) = admin_queue.next().unwrap().pdu else { panic!("an event") };
    assert_eq!((told.cid, told.result), (91, 0x4_0002));
    // Four requests wait, a fifth is too many; one is aborted.
    for cid in 92..96 {
        admin_queue.command(&event(cid), &[]);
    }
    assert!(admin_queue.ask(&event(96), &[]).status.is(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    admin_queue.command(&SubmissionEntry::new(admin::ABORT).with_cid(97).with_cdw(10, 93 << 16), &[]);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let Pdu::Response(completion) = admin_queue.next().unwrap().pdu else { panic!("a response") };
        seen.push((completion.cid, completion.result, completion.status.is(Status::ABORT_REQUESTED)));
    }
    seen.sort();
    assert_eq!(seen, [(93, 0, true), (97, 0, false)]);
}

#[test]
fn namespace_management_and_attachment() {
    let server = serve();
    let (mut admin_queue, mut io, cntlid) = Peer::with_queue(server.address, false);
    let manage = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_cid(1);
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&2048u64.to_le_bytes());
    data[8..16].copy_from_slice(&2048u64.to_le_bytes());
    let made = admin_queue.ask(&manage.with_sgl(Sgl::in_capsule(0, 4096)), &data);
    assert!(made.status.is_success(), "{made:?}");
    let nsid = made.result as u32;
    let small = read(1, 0, 1, 512).with_nsid(nsid);
    assert!(io.ask(&small, &[]).status.is(Status::INVALID_FIELD), "allocated, not attached");
    let allocated = identify(&mut admin_queue, cns::ALLOCATED_NAMESPACES, 0, 0).unwrap();
    assert_eq!(u32_at(&allocated, 8), nsid);
    let mut list = vec![0; 4096];
    list[0] = 1;
    list[2..4].copy_from_slice(&cntlid.to_le_bytes());
    let attach = SubmissionEntry::new(admin::NAMESPACE_ATTACHMENT).with_cid(2).with_nsid(nsid);
    // Once with the data in the capsule, once fetched by R2T.
    assert!(admin_queue.ask(&attach.with_sgl(Sgl::in_capsule(0, 4096)), &list).status.is_success());
    admin_queue.command(&attach.with_sgl(Sgl::transport(4096)), &[]);
    let Pdu::ReadyToTransfer(ready) = admin_queue.next().unwrap().pdu else { panic!("an R2T") };
    let data = Data { cid: 2, transfer_tag: ready.transfer_tag, offset: 0, bytes: 4096, last: true, success: false };
    admin_queue.host_data(&data, &list);
    let Pdu::Response(twice) = admin_queue.next().unwrap().pdu else { panic!("a response") };
    assert!(twice.status.is(Status::NAMESPACE_ALREADY_ATTACHED), "{twice:?}");
    let (completion, data) = io.ask_data(&small, &[]);
    assert!(completion.status.is_success() && data == [0; 512]);
    let attached = identify(&mut admin_queue, cns::ATTACHED_CONTROLLERS, nsid, 0).unwrap();
    assert_eq!((u16_at(&attached, 0), u16_at(&attached, 2)), (1, cntlid));
    assert!(admin_queue.ask(&manage.with_nsid(nsid).with_cdw(10, 1), &[]).status.is_success());
    assert!(io.ask(&small, &[]).status.is(Status::INVALID_FIELD));
    assert!(admin_queue.ask(&manage.with_nsid(nsid).with_cdw(10, 1), &[]).status.is(Status::INVALID_FIELD));
}

#[test]
fn the_key_value_command_set() {
    let server = serve();
    let (mut admin_queue, mut io, _) = Peer::with_queue(server.address, false);
    let command = |opcode, key: &[u8], bytes: u32, options: u32| {
        let mut entry = SubmissionEntry::new(opcode).with_cid(8).with_nsid(2).with_cdw(10, bytes).with_cdw(11, options);
        kv::Key::new(key).unwrap().put(&mut entry);
        entry
    };
    let store =
        |key: &[u8], bytes, options| command(kv_opcode::STORE, key, bytes, options).with_sgl(Sgl::in_capsule(0, bytes));
    assert!(io.ask(&store(b"one", 5, 0), b"value").status.is_success());
    assert!(io.ask(&store(b"one", 5, kv::STORE_MUST_NOT_EXIST), b"value").status.is(Status::KV_KEY_EXISTS));
    assert!(io.ask(&store(b"two", 5, kv::STORE_MUST_EXIST), b"value").status.is(Status::KV_KEY_NOT_FOUND));
    assert!(io.ask(&command(kv_opcode::STORE, b"empty", 0, 0), &[]).status.is_success());
    let retrieve = |key: &[u8], bytes| command(kv_opcode::RETRIEVE, key, bytes, 0).with_sgl(Sgl::transport(bytes));
    let (completion, data) = io.ask_data(&retrieve(b"one", 64), &[]);
    assert!(completion.result == 5 && data == b"value", "{completion:?}");
    let (completion, data) = io.ask_data(&retrieve(b"one", 2), &[]);
    assert!(completion.result == 5 && data == b"va", "the length tells of a short buffer");
    assert!(io.ask(&retrieve(b"three", 64), &[]).status.is(Status::KV_KEY_NOT_FOUND));
    assert!(io.ask(&command(kv_opcode::EXIST, b"empty", 0, 0), &[]).status.is_success());
    let list = command(kv_opcode::LIST, b"", 4096, 0).with_sgl(Sgl::transport(4096));
    let (completion, data) = io.ask_data(&list, &[]);
    assert!(completion.status.is_success());
    let mut keys = kv::read_list(&data).unwrap();
    keys.sort();
    assert_eq!(keys, [b"empty".to_vec(), b"one".to_vec()]);
    assert!(io.ask(&command(kv_opcode::DELETE, b"one", 0, 0), &[]).status.is_success());
    assert!(io.ask(&command(kv_opcode::DELETE, b"one", 0, 0), &[]).status.is(Status::KV_KEY_NOT_FOUND));
    let page = log_page(&mut admin_queue, log::ERROR, 0, 64, false).unwrap();
    assert_eq!(u64_at(&page, 0), 0, "a key that is not there, or is, is an answer and no failure");
    let mut long = command(kv_opcode::EXIST, b"k", 0, 0);
    long.set_cdw(11, 17);
    assert!(io.ask(&long, &[]).status.is(Status::KV_INVALID_KEY_SIZE));
    long.set_cdw(11, 0);
    assert!(io.ask(&long, &[]).status.is(Status::KV_INVALID_KEY_SIZE));
    assert!(io.ask(&store(b"big", (4 << 20) + 4, 0), &[]).status.is(Status::KV_INVALID_VALUE_SIZE));
    assert!(io.ask(&SubmissionEntry::new(kv_opcode::FLUSH).with_nsid(2).with_cid(1), &[]).status.is_success());
}

#[test]
fn the_rpc_tunnel() {
    let server = serve();
    let (_admin, mut io, _) = Peer::with_queue(server.address, false);
    let call = |app, handler, bytes| {
        SubmissionEntry::new(tunnel::CALL)
            .with_cid(4)
            .with_nsid(1)
            .with_cdw(10, tunnel::target(app, handler))
            .with_cdw(11, tunnel::SPU_ANY)
            .with_sgl(Sgl::transport(bytes))
    };
    let (completion, data) = io.ask_data(&call(0, control::LIST_APPS, 65536), &[]);
    let (status, length) = tunnel::split_result(completion.result);
    assert_eq!((status, length as usize), (0, data.len()));
    let apps: Vec<control::AppInfo> = serde_json::from_slice(&data).unwrap();
    assert!(apps.iter().any(|app| app.name == "base-io"));
    let (completion, data) = io.ask_data(&call(0, control::STATISTICS, 1 << 20), &[]);
    assert_eq!(completion.result >> 32, 0);
    let statistics: serde_json::Value = serde_json::from_slice(&data).unwrap();
    assert!(statistics.to_string().contains("\"queues\""), "hosts' counters are in the device's statistics");
    for (app, handler, spu, status) in [
        (99, 1, tunnel::SPU_ANY, tunnel::status::NO_APP),
        (1, 250, tunnel::SPU_ANY, tunnel::status::NO_HANDLER),
        (1, 1, 60, tunnel::status::NO_SPU),
    ] {
        let completion = io.ask(&call(app, handler, 64).with_cdw(11, spu), &[]);
        assert!(completion.status.is(status), "{completion:?}");
    }
    assert!(io.ask(&call(1, 0, 64), &[]).status.is(Status::INVALID_FIELD));
    assert!(io.ask(&call(1, 1, 64).with_cdw(10, 0x1_0101), &[]).status.is(Status::INVALID_FIELD));
    // Nobody calls: the time is over, and result 0 says so.
    let receive = SubmissionEntry::new(tunnel::RECEIVE).with_cid(4).with_nsid(1).with_sgl(Sgl::transport(4096));
    for wait_ms in [0, 50] {
        let completion = io.ask(&receive.with_cdw(12, wait_ms), &[]);
        assert!(completion.status.is_success() && completion.result == 0, "{completion:?}");
    }
    assert!(io.ask(&receive.with_cdw(12, 30_000), &[]).status.is(Status::INVALID_FIELD));
}

#[test]
fn without_flow_control_a_read_ends_with_its_data() {
    let server = serve();
    let (_admin, cntlid) = Peer::admin(server.address, false);
    let mut io = Peer::initialized(server.address, false);
    let (mut entry, data) = connect_command(1, cntlid, NQN);
    entry.0[46] = fabrics::CONNECT_NO_FLOW_CONTROL;
    assert_eq!(io.ask(&entry, &data[..]).sqhd, 0xffff);
    io.command(&read(3, 0, 2, 8192), &[]);
    let came = io.next().unwrap();
    let Pdu::ControllerData(data) = came.pdu else { panic!("{:?}", came.pdu) };
    assert!(data.success && data.last && came.data.len() == 8192);
    assert!(io.ask(&write(4, 0, 1, Sgl::in_capsule(0, 4096)), &[1; 4096]).status.is_success());
}

#[test]
fn features_are_kept_for_each_controller() {
    let server = serve();
    let (mut one, _) = Peer::admin(server.address, false);
    let (mut other, _) = Peer::admin(server.address, false);
    let get = |peer: &mut Peer, feature: u8| {
        peer.ask(&SubmissionEntry::new(admin::GET_FEATURES).with_cid(1).with_cdw(10, u32::from(feature)), &[])
    };
    set_feature(&mut one, feature::ASYNC_EVENT_CONFIGURATION, 0x100);
    assert_eq!(
        (
            get(&mut one, feature::ASYNC_EVENT_CONFIGURATION).result,
            get(&mut other, feature::ASYNC_EVENT_CONFIGURATION).result
        ),
        (0x100, 0)
    );
    assert!(get(&mut one, feature::VOLATILE_WRITE_CACHE).status.is(Status::INVALID_FIELD), "there is no such cache");
    assert!(get(&mut one, feature::INTERRUPT_COALESCING).status.is(Status::INVALID_FIELD));
    assert_eq!(get(&mut one, feature::NUMBER_OF_QUEUES).result, 0x3f_003f);
    // The timestamp's data in the capsule.
    let set = SubmissionEntry::new(admin::SET_FEATURES).with_cid(2).with_cdw(10, u32::from(feature::TIMESTAMP));
    assert!(one.ask(&set.with_sgl(Sgl::in_capsule(0, 8)), &[0, 0, 1, 0, 0, 0, 0, 0]).status.is_success());
    let entry = SubmissionEntry::new(admin::GET_FEATURES)
        .with_cid(1)
        .with_cdw(10, u32::from(feature::TIMESTAMP))
        .with_sgl(Sgl::transport(8));
    let (_, data) = one.ask_data(&entry, &[]);
    assert!(u64_at(&data, 0) & 0xffff_ffff_ffff >= 0x1_0000);
    assert!(set_feature(&mut one, feature::ASYNC_EVENT_CONFIGURATION, 1 << 31).status.is(Status::INVALID_FIELD));
}
