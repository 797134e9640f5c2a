//! Write Uncorrectable (NVM Command Set 3.2.7): blocks cannot be read until something writes them, and no others.

mod common;

use common::Host;
use willow_device::media::ram::RamStore;
use willow_device::reservation::ReservationType;
use willow_device::{BuiltInApp, Device, DeviceConfig, MARKED_BLOCKS_MAX, MARKED_BLOCKS_OF_ALL_MAX, control};
use willow_nvme::config::WUSL;
use willow_nvme::{ConnectionId, Subsystem, SubsystemConfig};
use willow_wire::bytes::u32_at;
use willow_wire::spec::identify::{cns, controller};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, tunnel};

const BLOCK: usize = 4096;
const NONE: [u64; 0] = [];

fn command(opcode: u8, lba: u64, blocks: u32) -> SubmissionEntry {
    SubmissionEntry::new(opcode).with_nsid(1).with_cid(21).with_lba(lba).with_cdw(12, blocks - 1)
}

fn mark(host: &mut Host, io: ConnectionId, lba: u64, blocks: u32) -> Status {
    host.ask(io, &command(nvm::WRITE_UNCORRECTABLE, lba, blocks), &[]).expect("it is answered").status
}

/// A command without data.
fn plain(host: &mut Host, io: ConnectionId, opcode: u8, lba: u64, blocks: u32) -> Status {
    host.ask(io, &command(opcode, lba, blocks), &[]).expect("it is answered").status
}

fn write(host: &mut Host, io: ConnectionId, lba: u64, blocks: u32, byte: u8) {
    let data = vec![byte; blocks as usize * BLOCK];
    let entry = command(nvm::WRITE, lba, blocks).with_sgl(Sgl::transport(data.len() as u32));
    assert!(host.ask(io, &entry, &data).expect("it is answered").status.is_success());
}

fn read(host: &mut Host, io: ConnectionId, lba: u64, blocks: u32) -> (Status, Vec<u8>) {
    let entry = command(nvm::READ, lba, blocks).with_sgl(Sgl::transport(blocks * BLOCK as u32));
    let (answer, data) = host.ask_data(io, &entry, &[]).expect("it is answered");
    (answer.status, data)
}

fn is_unreadable(status: Status) -> bool {
    status.is(Status::UNRECOVERED_READ_ERROR) && status.do_not_retry()
}

/// The blocks of these that cannot be read; all others have this byte.
fn unreadable(host: &mut Host, io: ConnectionId, blocks: std::ops::Range<u64>, byte: impl Fn(u64) -> u8) -> Vec<u64> {
    let mut found = Vec::new();
    for lba in blocks {
        match read(host, io, lba, 1) {
            (status, data) if status.is_success() => assert_eq!(data, vec![byte(lba); BLOCK], "block {lba}"),
            (status, data) => {
                assert!(is_unreadable(status) && data.is_empty(), "block {lba}: {status:?}");
                found.push(lba);
            }
        }
    }
    found
}

fn compare(host: &mut Host, io: ConnectionId, lba: u64, blocks: u32, byte: u8) -> Status {
    let data = vec![byte; blocks as usize * BLOCK];
    let entry = command(nvm::COMPARE, lba, blocks).with_sgl(Sgl::transport(data.len() as u32));
    host.ask(io, &entry, &data).expect("it is answered").status
}

fn deallocate(host: &mut Host, io: ConnectionId, lba: u64, blocks: u32) -> Status {
    let mut range = [0; nvm::DSM_RANGE_BYTES];
    range[4..8].copy_from_slice(&blocks.to_le_bytes());
    range[8..16].copy_from_slice(&lba.to_le_bytes());
    let entry =
        SubmissionEntry::new(nvm::DATASET_MANAGEMENT).with_nsid(1).with_cid(22).with_cdw(11, nvm::DSM_DEALLOCATE);
    host.ask(io, &entry.with_sgl(Sgl::in_capsule(0, 16)), &range).expect("it is answered").status
}

fn copy(host: &mut Host, io: ConnectionId, from: u64, blocks: u16, to: u64) -> Status {
    let mut range = [0; nvm::COPY_RANGE_BYTES];
    range[8..16].copy_from_slice(&from.to_le_bytes());
    range[16..18].copy_from_slice(&(blocks - 1).to_le_bytes());
    let entry = SubmissionEntry::new(nvm::COPY).with_nsid(1).with_cid(23).with_lba(to);
    let entry = entry.with_sgl(Sgl::in_capsule(0, nvm::COPY_RANGE_BYTES as u32));
    host.ask(io, &entry, &range).expect("it is answered").status
}

#[test]
fn marked_blocks_cannot_be_read_until_they_are_written_and_no_others() {
    let mut host = Host::new();
    let (_, io) = host.queues(1);
    let (_, other) = host.queues(2);
    write(&mut host, io, 0, 64, 7);
    // Over three stripes, on both SPUs.
    assert!(mark(&mut host, io, 9, 5).is_success());
    assert_eq!(unreadable(&mut host, other, 0..64, |_| 7), [9, 10, 11, 12, 13]);
    for (lba, blocks) in [(9, 1), (8, 2), (13, 2), (0, 64), (10, 2)] {
        assert!(is_unreadable(read(&mut host, io, lba, blocks).0), "{lba} {blocks}");
        assert!(is_unreadable(plain(&mut host, io, nvm::VERIFY, lba, blocks)), "{lba} {blocks}");
        assert!(is_unreadable(compare(&mut host, io, lba, blocks, 7)), "{lba} {blocks}");
        assert!(is_unreadable(copy(&mut host, io, lba, blocks as u16, 100)), "{lba} {blocks}");
    }
    assert_eq!(unreadable(&mut host, io, 100..164, |_| 0), NONE, "nothing was copied");
    assert!(compare(&mut host, io, 0, 9, 7).is_success() && plain(&mut host, io, nvm::VERIFY, 14, 50).is_success());
    // Each way to write takes the marks of its blocks, and of no others.
    write(&mut host, other, 10, 1, 8);
    let byte = |lba: u64| if lba == 10 { 8 } else { 7 };
    assert_eq!(unreadable(&mut host, io, 0..64, byte), [9, 11, 12, 13]);
    assert!(plain(&mut host, io, nvm::WRITE_ZEROES, 11, 1).is_success());
    let byte = |lba: u64| if lba == 11 { 0 } else { byte(lba) };
    assert_eq!(unreadable(&mut host, io, 0..64, byte), [9, 12, 13]);
    assert!(deallocate(&mut host, io, 12, 1).is_success());
    let byte = |lba: u64| if lba == 12 { 0 } else { byte(lba) };
    assert_eq!(unreadable(&mut host, io, 0..64, byte), [9, 13]);
    assert!(copy(&mut host, io, 10, 1, 13).is_success());
    let byte = |lba: u64| if lba == 13 { 8 } else { byte(lba) };
    assert_eq!(unreadable(&mut host, io, 0..64, byte), [9]);
    // What was marked twice is written once.
    assert!(mark(&mut host, io, 8, 2).is_success() && mark(&mut host, io, 9, 3).is_success());
    write(&mut host, io, 4, 16, 9);
    let byte = |lba: u64| if (4..20).contains(&lba) { 9 } else { byte(lba) };
    assert_eq!(unreadable(&mut host, io, 0..64, byte), NONE);
    assert_eq!(host.subsystem.backend().statistics().uncorrectable_bytes, 0);
}

/// Format, another size, and the end of a namespace take the marks of what is gone, and of no other namespace.
#[test]
fn marks_go_with_what_they_were_of() {
    let mut host = Host::new();
    let (admin_queue, io) = host.queues(1);
    let marked = |host: &Host| host.subsystem.backend().statistics().uncorrectable_bytes / BLOCK as u64;
    assert!(mark(&mut host, io, 500, 12).is_success() && mark(&mut host, io, 3, 2).is_success());
    assert_eq!(marked(&host), 14);
    let of_control = |host: &mut Host, handler: u8, payload: &[u8]| {
        let entry = SubmissionEntry::new(tunnel::SEND).with_nsid(1).with_cid(25);
        let entry = entry.with_cdw(10, tunnel::target(control::CONTROL_APP, handler));
        let result = host.good(io, &entry.with_sgl(Sgl::in_capsule(0, payload.len() as u32)), payload);
        assert_eq!(tunnel::split_result(result).0, 0, "the control service does it");
    };
    let resize = |bytes: u64| [&1u32.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    of_control(&mut host, control::RESIZE_NAMESPACE, &resize(1 << 20));
    assert_eq!(marked(&host), 2, "those past its end are gone");
    of_control(&mut host, control::RESIZE_NAMESPACE, &resize(2 << 20));
    assert_eq!(unreadable(&mut host, io, 0..512, |_| 0), [3, 4], "and do not come back");
    let format = SubmissionEntry::new(admin::FORMAT_NVM).with_nsid(1).with_cid(24).with_cdw(10, 1);
    assert!(host.ask(admin_queue, &format, &[]).unwrap().status.is_success());
    assert_eq!((unreadable(&mut host, io, 0..512, |_| 0), marked(&host)), (vec![], 0));
    assert!(mark(&mut host, io, 3, 2).is_success());
    of_control(&mut host, control::DELETE_NAMESPACE, &1u32.to_le_bytes());
    assert_eq!(marked(&host), 0);
}

fn with_block_namespaces(count: usize, mib_each: u64) -> Host {
    let sizes = DeviceConfig {
        namespace_bytes: mib_each << 20,
        block_bytes: 512,
        kv_namespace_bytes: 0,
        ..DeviceConfig::default()
    };
    let store = RamStore::new(2, 64 << 20).unwrap();
    let apps = vec![BuiltInApp::Native(base_io_spu::native())];
    let device = Device::open(DeviceConfig { spus: 2, ..sizes }, Box::new(store), None, apps).unwrap();
    let mut host = Host::of(Subsystem::new(SubsystemConfig::default(), device, 0).unwrap());
    let (admin_queue, _) = host.queues(9);
    for _ in 1..count {
        let mut data = vec![0; 4096];
        let blocks = (mib_each << 20) / 512;
        data[..8].copy_from_slice(&blocks.to_le_bytes());
        data[8..16].copy_from_slice(&blocks.to_le_bytes());
        data[30] = 1;
        let entry = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_cid(26).with_sgl(Sgl::transport(4096));
        let nsid = host.good(admin_queue, &entry, &data) as u32;
        let mut list = vec![0; 4096];
        list[0] = 1;
        let identify = SubmissionEntry::new(admin::IDENTIFY).with_cid(27).with_cdw(10, cns::CONTROLLER.into());
        let (_, of) = host.ask_data(admin_queue, &identify.with_sgl(Sgl::transport(4096)), &[]).unwrap();
        list[2..4].copy_from_slice(&of[78..80]);
        let attach = SubmissionEntry::new(admin::NAMESPACE_ATTACHMENT).with_nsid(nsid).with_cid(28);
        host.good(admin_queue, &attach.with_sgl(Sgl::transport(4096)), &list);
    }
    host
}

#[test]
fn past_its_bounds_it_is_refused_and_marks_nothing() {
    let mut host = with_block_namespaces(1, 4);
    let (_, io) = host.queues(1);
    let bytes = |host: &Host| host.subsystem.backend().statistics().uncorrectable_bytes;
    let most = MARKED_BLOCKS_MAX as u32;
    assert_eq!(4096 << WUSL, MARKED_BLOCKS_MAX * 512);
    let long = mark(&mut host, io, 0, most + 1);
    assert!(long.is(Status::INVALID_FIELD) && long.do_not_retry(), "{long:?}");
    assert!(mark(&mut host, io, 8192 - 1, 2).is(Status::LBA_OUT_OF_RANGE));
    assert!(mark(&mut host, io, u64::MAX, 1).is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(bytes(&host), 0);
    assert!(mark(&mut host, io, 100, most - 1).is_success());
    // Two more would be one too many, of which neither is marked.
    let full = mark(&mut host, io, 5000, 2);
    assert!(full.is(Status::CAPACITY_EXCEEDED) && !full.do_not_retry(), "{full:?}");
    assert!(plain(&mut host, io, nvm::VERIFY, 5000, 2).is_success());
    assert!(mark(&mut host, io, 101, 7).is_success(), "those are marked already");
    assert!(mark(&mut host, io, 5000, 1).is_success());
    assert!(mark(&mut host, io, 5001, 1).is(Status::CAPACITY_EXCEEDED));
    // Every second block is written: as many ranges as there can be, and room again.
    for lba in (100..100 + u64::from(most) - 1).step_by(64) {
        assert!(plain(&mut host, io, nvm::WRITE_ZEROES, lba, 1).is_success());
    }
    assert_eq!(bytes(&host), 512 * (u64::from(most) - 64));
    assert!(mark(&mut host, io, 5001, 64).is_success());
    assert!(mark(&mut host, io, 6001, 1).is(Status::CAPACITY_EXCEEDED));
}

#[test]
fn all_namespaces_have_so_many_marks_together() {
    let namespaces = (MARKED_BLOCKS_OF_ALL_MAX / MARKED_BLOCKS_MAX) as u32;
    let mut host = with_block_namespaces(namespaces as usize + 1, 2);
    let (_, io) = host.queues(9);
    let mut of = |nsid: u32, lba: u64, blocks: u32| {
        let entry = command(nvm::WRITE_UNCORRECTABLE, lba, blocks).with_nsid(nsid);
        host.ask(io, &entry, &[]).expect("it is answered").status
    };
    for nsid in 1..=namespaces {
        assert!(of(nsid, 0, MARKED_BLOCKS_MAX as u32).is_success(), "namespace {nsid}");
    }
    assert!(of(namespaces + 1, 0, 1).is(Status::CAPACITY_EXCEEDED));
    assert!(of(namespaces, 17, 5).is_success(), "nothing more is marked by it");
}

#[test]
fn it_is_told_and_reservations_keep_it() {
    let mut host = Host::new();
    let ((admin_queue, io), (_, holder)) = (host.queues(1), host.queues(2));
    let mut identify = |structure: u8, bytes: u32| {
        let entry = SubmissionEntry::new(admin::IDENTIFY).with_cid(24).with_cdw(10, structure.into());
        host.ask_data(admin_queue, &entry.with_sgl(Sgl::transport(bytes)), &[]).unwrap().1
    };
    let of_controller = identify(cns::CONTROLLER, 4096);
    assert_ne!(of_controller[520] & controller::ONCS_WRITE_UNCORRECTABLE as u8, 0);
    assert_eq!(identify(cns::CSI_CONTROLLER, 4096)[2], WUSL);
    let log = SubmissionEntry::new(admin::GET_LOG_PAGE).with_cid(25).with_cdw(10, 1023 << 16 | 5);
    let (_, effects) = host.ask_data(admin_queue, &log.with_sgl(Sgl::transport(4096)), &[]).unwrap();
    let of = |opcode: u8| u32_at(&effects, 1024 + usize::from(opcode) * 4);
    assert_eq!(of(nvm::WRITE_UNCORRECTABLE), of(nvm::WRITE), "it changes what is there, and nothing else");
    host.reserve(holder, nvm::RESERVATION_REGISTER, 0, [0, 5]);
    host.reserve(holder, nvm::RESERVATION_ACQUIRE, (ReservationType::WriteExclusive as u32) << 8, [5, 0]);
    assert!(mark(&mut host, io, 0, 1).is(Status::RESERVATION_CONFLICT));
    assert_eq!(unreadable(&mut host, io, 0..4, |_| 0), NONE);
    assert!(mark(&mut host, holder, 0, 1).is_success());
    assert_eq!(unreadable(&mut host, io, 0..4, |_| 0), [0]);
}
