//! Namespaces that grow and shrink under a host.

mod common;

use common::Host;
use willow_device::control::{CONTROL_APP, CREATE_NAMESPACE, ControlStatus, RESIZE_NAMESPACE};
use willow_nvme::{ConnectionId, Next};
use willow_wire::bytes::{u32_at, u64_at};
use willow_wire::spec::identify::cns;
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, feature, tunnel};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn control(host: &mut Host, io: ConnectionId, handler: u8, payload: &[u8]) -> u32 {
    let entry = SubmissionEntry::new(tunnel::SEND)
        .with_nsid(1)
        .with_cid(20)
        .with_cdw(10, tunnel::target(CONTROL_APP, handler))
        .with_sgl(Sgl::in_capsule(0, payload.len() as u32));
    tunnel::split_result(host.good(io, &entry, payload)).0
}

fn resize(host: &mut Host, io: ConnectionId, nsid: u32, bytes: u64) -> u32 {
    control(host, io, RESIZE_NAMESPACE, &[&nsid.to_le_bytes()[..], &bytes.to_le_bytes()].concat())
}

fn write(lba: u64) -> SubmissionEntry {
    let entry = SubmissionEntry::new(nvm::WRITE).with_nsid(1).with_cid(21);
    entry.with_cdw(10, lba as u32).with_sgl(Sgl::transport(BLOCK as u32))
}

/// The first byte of a block, all of which are the same.
fn read(host: &mut Host, io: ConnectionId, lba: u64) -> Result<u8, Status> {
    let entry = SubmissionEntry::new(nvm::READ).with_nsid(1).with_cid(22);
    let entry = entry.with_cdw(10, lba as u32).with_sgl(Sgl::transport(BLOCK as u32));
    let (answer, data) = host.ask_data(io, &entry, &[]).expect("it is answered");
    assert!(data.iter().all(|byte| *byte == data[0]), "block {lba}");
    data.first().copied().ok_or(answer.status)
}

fn blocks(host: &mut Host, admin: ConnectionId) -> u64 {
    let entry = SubmissionEntry::new(admin::IDENTIFY).with_nsid(1).with_cid(23);
    let entry = entry.with_cdw(10, cns::NAMESPACE.into()).with_sgl(Sgl::transport(4096));
    u64_at(&host.ask_data(admin, &entry, &[]).expect("it is answered").1, 0)
}

#[test]
fn what_a_namespace_gains_is_zero_and_what_it_loses_is_gone() {
    let mut host = Host::new();
    let (admin, io) = host.queues(1);
    let events = SubmissionEntry::new(admin::SET_FEATURES).with_cid(24);
    let wanted = feature::event::CONFIGURE_NAMESPACE;
    host.good(admin, &events.with_cdw(10, feature::ASYNC_EVENT_CONFIGURATION.into()).with_cdw(11, wanted), &[]);
    host.send(admin, &SubmissionEntry::new(admin::ASYNC_EVENT_REQUEST).with_cid(90), &[]);
    let last = 2 * MIB / BLOCK - 1;
    assert!(host.ask(io, &write(last), &[7; BLOCK as usize]).unwrap().status.is_success());

    // The key-value namespace lies behind it.
    assert_eq!(resize(&mut host, io, 1, 4 * MIB), ControlStatus::NoRoom as u32);
    assert_eq!((blocks(&mut host, admin), read(&mut host, io, last)), (last + 1, Ok(7)));
    assert_eq!(resize(&mut host, io, 2, 4 * MIB), ControlStatus::Malformed as u32, "it has no blocks");
    assert_eq!(resize(&mut host, io, 1, 4096), ControlStatus::Malformed as u32);
    assert_eq!(resize(&mut host, io, 1, u64::MAX), ControlStatus::Malformed as u32);
    assert_eq!(resize(&mut host, io, 9, 4 * MIB), ControlStatus::NotFound as u32);
    let gone = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_nsid(2).with_cid(25).with_cdw(10, 1);
    host.good(admin, &gone, &[]);

    assert_eq!(resize(&mut host, io, 1, 4 * MIB - 1), 0, "rounded up to what all banks have of it");
    assert_eq!(blocks(&mut host, admin), 4 * MIB / BLOCK);
    for lba in [0, last, last + 1, 4 * MIB / BLOCK - 1] {
        assert_eq!(read(&mut host, io, lba), Ok(if lba == last { 7 } else { 0 }));
    }
    let page =
        GetLogPage { page: log::CHANGED_NAMESPACES, specific: 0, retain_event: false, bytes: 4096, offset: 0, csi: 0 };
    let entry = page.to_entry(u32::MAX).with_cid(26).with_sgl(Sgl::transport(4096));
    let changed = host.ask_data(admin, &entry, &[]).unwrap().1;
    assert_eq!((u32_at(&changed, 0), u32_at(&changed, 4)), (1, 2), "the hosts are told of it");

    // Asked for its data, when the namespace shrinks: nothing of it lands, and what is still there can be written again.
    let fetches = [last, last + 1].map(|lba| match host.subsystem.command(io, &write(lba).with_cid(lba as u16), &[]) {
        Next::Fetch(fetch) => fetch,
        other => panic!("{other:?}"),
    });
    assert_eq!(resize(&mut host, io, 1, 2 * MIB), 0);
    assert_eq!(read(&mut host, io, last + 1).map_err(|status| status.is(Status::LBA_OUT_OF_RANGE)), Err(true));
    for mut fetch in fetches {
        fetch.buffer[fetch.start..][..BLOCK as usize].fill(9);
        host.subsystem.data(io, fetch.slot, fetch.buffer);
        host.run();
        let ended = host.subsystem.completion().expect("it has ended");
        assert!(ended.entry.status.is(Status::COMMAND_INTERRUPTED), "{ended:?}");
        assert!(!ended.entry.status.do_not_retry(), "the host may send it again");
    }
    // Another namespace takes the range, and gives it back; then it is the first one's again.
    assert_eq!(control(&mut host, io, CREATE_NAMESPACE, br#"{"csi":"nvm","size_bytes":1048576}"#), 0);
    assert_eq!(resize(&mut host, io, 1, 4 * MIB), ControlStatus::NoRoom as u32);
    host.good(admin, &gone, &[]);
    assert_eq!(resize(&mut host, io, 1, 4 * MIB), 0);
    for lba in last..4 * MIB / BLOCK {
        assert_eq!(read(&mut host, io, lba), Ok(if lba == last { 7 } else { 0 }), "block {lba}");
    }
}
