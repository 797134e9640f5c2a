//! Which hosts have a namespace: NVMe's Namespace Management and Attachment on the device's one table.

mod common;

use common::*;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_wire::bytes::{u32_at, u64_at};
use willow_wire::pdu::{Data, Pdu};
use willow_wire::spec::identify::cns;
use willow_wire::spec::opcode::admin;
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, feature, log};

/// A device on media that fail when they are told to.
fn device_on(media: &FaultMedia) -> Device {
    let config =
        DeviceConfig { spus: 2, namespace_bytes: 1 << 20, kv_namespace_bytes: 1 << 20, ..DeviceConfig::default() };
    let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
    Device::open(config, Box::new(media.store()), None, apps).unwrap()
}

fn media() -> FaultMedia {
    FaultMedia::new(FaultOptions::new(2, 64 << 20))
}

fn serve_on(media: &FaultMedia) -> Running {
    let media = media.clone();
    serve_device(|_| {}, move || device_on(&media))
}

/// Namespace Management, create: blocks of 4 KiB.
fn create(peer: &mut Peer, blocks: u64, shared: bool) -> CompletionEntry {
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&blocks.to_le_bytes());
    data[8..16].copy_from_slice(&blocks.to_le_bytes());
    (data[26], data[30]) = (1, u8::from(shared));
    let entry = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_cid(1).with_sgl(Sgl::in_capsule(0, 4096));
    peer.ask(&entry, &data)
}

fn attachment(nsid: u32, attach: bool) -> SubmissionEntry {
    let select = u32::from(!attach);
    SubmissionEntry::new(admin::NAMESPACE_ATTACHMENT)
        .with_cid(2)
        .with_nsid(nsid)
        .with_cdw(10, select)
        .with_sgl(Sgl::in_capsule(0, 4096))
}

fn controllers(list: &[u16]) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[..2].copy_from_slice(&(list.len() as u16).to_le_bytes());
    for (place, cntlid) in list.iter().enumerate() {
        data[2 + place * 2..4 + place * 2].copy_from_slice(&cntlid.to_le_bytes());
    }
    data
}

fn attach(peer: &mut Peer, nsid: u32, list: &[u16]) -> Status {
    peer.ask(&attachment(nsid, true), &controllers(list)).status
}

fn detach(peer: &mut Peer, nsid: u32, list: &[u16]) -> Status {
    peer.ask(&attachment(nsid, false), &controllers(list)).status
}

fn identify(peer: &mut Peer, structure: u8, nsid: u32) -> Vec<u8> {
    let entry = SubmissionEntry::new(admin::IDENTIFY)
        .with_cid(3)
        .with_nsid(nsid)
        .with_cdw(10, u32::from(structure))
        .with_sgl(Sgl::transport(4096));
    let (completion, data) = peer.ask_data(&entry, &[]);
    assert!(completion.status.is_success(), "{completion:?}");
    data
}

/// The namespaces that a host is shown.
fn active(peer: &mut Peer) -> Vec<u32> {
    let list = identify(peer, cns::ACTIVE_NAMESPACES, 0);
    (0..1024).map(|place| u32_at(&list, place * 4)).take_while(|nsid| *nsid != 0).collect()
}

#[test]
fn attachments_are_the_devices_and_a_failed_save_changes_nothing() {
    let media = media();
    let (one, other) = (Host::named("one", 32), Host::named("other", 32));
    let server = serve_on(&media);
    let (mut first, cntlid) = one.admin(server.address);
    let (mut second, other_cntlid) = other.admin(server.address);
    let made = create(&mut first, 256, true);
    assert!(made.status.is_success(), "{made:?}");
    let nsid = made.result as u32;
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2], vec![1, 2]));

    media.fail_saves(0, 1, 0);
    let failed = attach(&mut first, nsid, &[cntlid]);
    assert!(failed.is(Status::INTERNAL_ERROR), "{failed:?}");
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2], vec![1, 2]));
    assert!(attach(&mut first, nsid, &[cntlid]).is_success());
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2, 3], vec![1, 2]));
    media.fail_saves(0, 1, 0);
    assert!(detach(&mut second, nsid, &[cntlid]).is(Status::INTERNAL_ERROR), "any host may, as kernel");
    assert_eq!(active(&mut first), [1, 2, 3]);
    // A namespace that was open to all: from now on those have it that are here, but for this one.
    assert!(detach(&mut first, 1, &[other_cntlid]).is_success());
    let (mut third, _) = Host::named("third", 32).admin(server.address);
    assert_eq!((active(&mut first), active(&mut second), active(&mut third)), (vec![1, 2, 3], vec![2], vec![2]));
    assert!(detach(&mut second, 1, &[other_cntlid]).is(Status::NAMESPACE_NOT_ATTACHED));

    drop((first, second, third));
    server.stop();
    let server = serve_on(&media);
    let (mut first, cntlid) = one.admin(server.address);
    let (mut second, other_cntlid) = other.admin(server.address);
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2, 3], vec![2]));
    let mut io = other.queue(server.address, 1, other_cntlid);
    for nsid in [1, nsid] {
        let (completion, data) = io.ask_data(&read(1, 0, 1, 4096).with_nsid(nsid), &[]);
        assert!(completion.status.is(Status::INVALID_FIELD) && data.is_empty(), "{completion:?}");
    }
    // What is deleted takes its attachment along: the next of that number is nobody's.
    let delete = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_cid(4).with_nsid(nsid).with_cdw(10, 1);
    assert!(first.ask(&delete, &[]).status.is_success());
    assert_eq!(create(&mut second, 256, true).result as u32, nsid);
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2], vec![2]));
    assert!(attach(&mut second, nsid, &[cntlid, other_cntlid]).is_success());
    assert_eq!((active(&mut first), active(&mut second)), (vec![1, 2, 3], vec![2, 3]));
}

#[test]
fn who_is_told_of_an_attachment_is_who_it_concerns() {
    let server = serve();
    let told = |peer: &mut Peer| {
        let entry = SubmissionEntry::new(admin::SET_FEATURES)
            .with_cid(5)
            .with_cdw(10, u32::from(feature::ASYNC_EVENT_CONFIGURATION))
            .with_cdw(11, feature::event::CONFIGURE_NAMESPACE);
        assert!(peer.ask(&entry, &[]).status.is_success());
        peer.command(&SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(90), &[]);
    };
    let (mut first, cntlid) = Host::named("one", 32).admin(server.address);
    let (mut watcher, watched) = Host::named("other", 32).admin(server.address);
    told(&mut watcher);
    let nsid = create(&mut first, 256, true).result as u32;
    assert!(attach(&mut first, nsid, &[cntlid]).is_success());
    // Nothing of that concerns the other host: its next answer is to what it asks.
    assert_eq!(active(&mut watcher), [1, 2]);
    assert!(attach(&mut first, nsid, &[watched]).is_success());
    let Pdu::Response(event) = watcher.next().unwrap().pdu else { panic!("an event") };
    assert_eq!((event.cid, event.result as u32 >> 16 & 0xff), (90, u32::from(log::CHANGED_NAMESPACES)));
    assert_eq!(active(&mut watcher), [1, 2, nsid]);
}

#[test]
fn a_host_that_lost_a_namespace_begins_nothing_more_in_it() {
    let server = serve();
    let (one, other) = (Host::named("one", 32), Host::named("other", 32));
    let (mut first, cntlid) = one.admin(server.address);
    let (_second, other_cntlid) = other.admin(server.address);
    let mut io = other.queue(server.address, 1, other_cntlid);
    let nsid = create(&mut first, 256, true).result as u32;
    assert!(attach(&mut first, nsid, &[cntlid, other_cntlid]).is_success());
    let mut own = one.queue(server.address, 1, cntlid);
    // A write whose data were asked for before, and come afterwards.
    for replaced in [false, true] {
        let command = write(20, 0, 4, Sgl::transport(16384)).with_nsid(nsid);
        io.command(&command, &[]);
        let Pdu::ReadyToTransfer(ready) = io.next().unwrap().pdu else { panic!("an R2T") };
        if replaced {
            // Another namespace takes the number, and is attached to the same host.
            let delete = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_cid(4).with_nsid(nsid);
            assert!(first.ask(&delete.with_cdw(10, 1), &[]).status.is_success());
            assert_eq!(create(&mut first, 256, true).result as u32, nsid);
            assert!(attach(&mut first, nsid, &[cntlid, other_cntlid]).is_success());
        } else {
            assert!(detach(&mut first, nsid, &[other_cntlid]).is_success());
        }
        let tag = ready.transfer_tag;
        let data = Data { cid: 20, transfer_tag: tag, offset: 0, bytes: 16384, last: true, success: false };
        io.host_data(&data, &[7; 16384]);
        let Pdu::Response(ended) = io.next().unwrap().pdu else { panic!("a response") };
        assert!(ended.status.is(Status::INVALID_FIELD), "{ended:?}");
        let (completion, data) = own.ask_data(&read(1, 0, 4, 16384).with_nsid(nsid), &[]);
        assert!(completion.status.is_success() && data == [0; 16384], "nothing was written");
        if !replaced {
            assert!(attach(&mut first, nsid, &[other_cntlid]).is_success());
        }
    }
}

#[test]
fn a_private_namespace_is_one_hosts_alone() {
    let server = serve();
    let one = Host::named("one", 32);
    let (mut first, cntlid) = one.admin(server.address);
    let (_again, again) = one.admin(server.address);
    let (mut second, other) = Host::named("other", 32).admin(server.address);
    let nsid = create(&mut first, 256, false).result as u32;
    assert!(attach(&mut first, nsid, &[cntlid, other]).is(Status::NAMESPACE_PRIVATE));
    assert!(attach(&mut first, nsid, &[cntlid]).is_success());
    assert!(attach(&mut first, nsid, &[again]).is(Status::NAMESPACE_ALREADY_ATTACHED), "attachment is by host");
    assert!(attach(&mut second, nsid, &[other]).is(Status::NAMESPACE_PRIVATE));
    assert_eq!(active(&mut second), [1, 2]);
    assert_eq!(identify(&mut first, cns::NAMESPACE, nsid)[30], 0, "NMIC");
    assert_eq!(identify(&mut first, cns::INDEPENDENT_NAMESPACE, nsid)[1], 0, "NMIC");
    assert_eq!(identify(&mut first, cns::NAMESPACE, 1)[30], 1, "NMIC");
    assert!(detach(&mut first, nsid, &[cntlid]).is_success());
    assert!(attach(&mut second, nsid, &[other]).is_success(), "from one host to another");
    assert_eq!(active(&mut first), [1, 2]);
}

#[test]
fn capacity_is_what_is_left_and_no_more_is_given() {
    let media = media();
    let server = serve_on(&media);
    let (mut host, _) = Host::named("one", 32).admin(server.address);
    let left = |peer: &mut Peer| u64_at(&identify(peer, cns::CONTROLLER, 0), 296);
    let before = left(&mut host);
    assert!((1 << 20..128 << 20).contains(&before), "UNVMCAP {before}");
    let beyond = create(&mut host, before / 4096 + 1, true);
    assert!(beyond.status.is(Status::NAMESPACE_INSUFFICIENT_CAPACITY), "{beyond:?}");
    assert!(create(&mut host, 1024, true).status.is_success());
    assert_eq!(left(&mut host), before - (4 << 20));
}
