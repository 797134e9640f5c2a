//! What hosts of others do that ours does not: each was seen with a client of others, and is taken as SPDK and nvmet take it.

mod common;

use common::*;
use willow_wire::bytes::{u16_at, u32_at};
use willow_wire::spec::fabrics::{self, DISCOVERY_NQN};
use willow_wire::spec::identify::cns;
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::opcode::{admin, nvm};
use willow_wire::spec::property::{self, csts};
use willow_wire::spec::{Sgl, Status, SubmissionEntry, feature};

fn page(peer: &mut Peer, page: u8, csi: u8, bytes: u32) -> Vec<u8> {
    let request = GetLogPage { page, specific: 0, retain_event: true, bytes: bytes.into(), offset: 0, csi };
    let (completion, data) = peer.ask_data(&request.to_entry(0).with_cid(4).with_sgl(Sgl::transport(bytes)), &[]);
    assert!(completion.status.is_success(), "{page:x}h: {completion:?}");
    data
}

/// truenas_pynvmeof_client enables every controller with CC.CSS 110b.
#[test]
fn a_discovery_controller_is_enabled_with_any_command_set() {
    let server = serve();
    for sets in [0x00_0060, 0x46_0060, 0x46_0070] {
        let mut peer = Peer::initialized(server.address, false);
        assert!(peer.connect(0, 0xffff, DISCOVERY_NQN).status.is_success());
        peer.ask(&fabrics::property_set(property::CC, sets | 1, false).with_cid(1), &[]);
        let status = peer.ask(&fabrics::property_get(property::CSTS, false).with_cid(2), &[]);
        assert_eq!(status.result as u32, csts::RDY, "{sets:x}");
        assert_eq!(page(&mut peer, log::DISCOVERY, 0, 2048)[8], 2, "records");
    }
}

/// The same client makes up a host identifier for each queue.
#[test]
fn an_io_queue_is_its_hosts_by_name_alone() {
    let server = serve();
    let (_admin, cntlid) = Peer::admin(server.address, false);
    let (entry, mut data) = connect_command(1, cntlid, willow_nvme::config::NQN_DEFAULT);
    data[0] ^= 1;
    let mut io = Peer::initialized(server.address, false);
    let connected = io.ask(&entry, &data[..]);
    assert!(connected.status.is_success(), "{connected:?}");
    assert!(io.ask(&read(1, 0, 1, 4096), &[]).status.is_success());
    let mut other = Peer::initialized(server.address, false);
    let (entry, mut data) = connect_command(2, cntlid, willow_nvme::config::NQN_DEFAULT);
    data[512 + 30] ^= 1;
    assert!(other.ask(&entry, &data[..]).status.is(Status::CONNECT_INVALID_HOST), "another host's controller");
}

/// nvme-cli's effects-log asks for the zoned command set where CAP.CSS has bit 6; fid- and mi-cmd-support-effects-log ask whatever
/// LPA says; Linux (6.12) warns of I/O commands with other effects than these.
#[test]
fn pages_of_effects_are_there_and_claim_nothing_else() {
    let server = serve();
    let (mut admin_queue, _) = Peer::admin(server.address, false);
    let blocks = page(&mut admin_queue, log::COMMAND_EFFECTS, 0, 4096);
    for opcode in 0..256 {
        let effects = u32_at(&blocks, 1024 + opcode * 4);
        assert_eq!(effects & !(log::EFFECT_SUPPORTED | log::EFFECT_CONTENT_CHANGE), 0, "{opcode:x}h: {effects:x}");
    }
    assert_eq!(u32_at(&blocks, 1024 + usize::from(nvm::WRITE) * 4), 3);
    let zoned = page(&mut admin_queue, log::COMMAND_EFFECTS, 2, 4096);
    assert_eq!(zoned[..1024], blocks[..1024]);
    assert!(zoned[1024..].iter().all(|byte| *byte == 0), "none of its commands is supported");

    let features = page(&mut admin_queue, log::FEATURE_EFFECTS, 0, 1024);
    for number in 0..=u8::MAX {
        let entry = SubmissionEntry::new(admin::GET_FEATURES).with_cid(5).with_cdw(10, 3 << 8 | u32::from(number));
        let is_supported = admin_queue.ask(&entry, &[]).status.is_success();
        assert_eq!(features[usize::from(number) * 4] & 1 == 1, is_supported, "feature {number:x}h");
    }
    assert_eq!(features[usize::from(feature::NUMBER_OF_QUEUES) * 4], 1);
    assert!(page(&mut admin_queue, log::MANAGEMENT_EFFECTS, 0, 4096).iter().all(|byte| *byte == 0));
    let pages = page(&mut admin_queue, log::SUPPORTED_PAGES, 0, 1024);
    for number in 0..=u8::MAX {
        let request = GetLogPage { page: number, specific: 0, retain_event: true, bytes: 512, offset: 0, csi: 0 };
        let entry = request.to_entry(0).with_cid(4).with_sgl(Sgl::transport(512));
        let is_there = admin_queue.ask(&entry, &[]).status.is_success();
        assert_eq!(pages[usize::from(number) * 4] & 1 == 1, is_there, "page {number:x}h");
    }
    let entry = SubmissionEntry::new(admin::IDENTIFY).with_cid(3).with_cdw(10, u32::from(cns::CONTROLLER));
    let identity = admin_queue.ask_data(&entry.with_sgl(Sgl::transport(4096)), &[]).1;
    assert_eq!(identity[261], 0b111, "LPA");
    // No sensor of this device tells a temperature.
    assert_eq!(u16_at(&page(&mut admin_queue, log::SMART, 0, 512), 1), 0);
}

/// As `nvme smart-log --namespace-id`, and `create-ns` with sizes in bytes, ask.
#[test]
fn each_namespace_has_its_own_smart_page_and_formats_are_told_before_there_is_one() {
    let server = serve();
    let (mut admin_queue, mut io, _) = Peer::with_queue(server.address, false);
    assert!(io.ask(&write(1, 0, 1, Sgl::in_capsule(0, 4096)), &[1; 4096]).status.is_success());
    let mut units_written = |nsid: u32| {
        let entry = SubmissionEntry::new(admin::GET_LOG_PAGE)
            .with_cid(2)
            .with_nsid(nsid)
            .with_cdw(10, 127 << 16 | u32::from(log::SMART))
            .with_sgl(Sgl::transport(512));
        let (completion, data) = admin_queue.ask_data(&entry, &[]);
        completion.status.is_success().then(|| (data[48], data[80]))
    };
    assert_eq!([1, 2, u32::MAX, 9].map(&mut units_written), [Some((1, 1)), Some((0, 0)), Some((1, 1)), None]);

    let mut identify = |structure: u8, nsid: u32, cdw11: u32| {
        let entry = SubmissionEntry::new(admin::IDENTIFY)
            .with_cid(3)
            .with_nsid(nsid)
            .with_cdw(10, u32::from(structure))
            .with_cdw(11, cdw11)
            .with_sgl(Sgl::transport(4096));
        let (completion, data) = admin_queue.ask_data(&entry, &[]);
        completion.status.is_success().then_some(data)
    };
    let granularity = identify(cns::GRANULARITY, 0, 0).unwrap();
    let bytes = u64::from(u16_at(&granularity, 32)) | u64::from(u16_at(&granularity, 34)) << 16;
    assert_eq!((bytes, granularity[4]), (4 * 65536, 0), "four SPUs' least region");
    assert_eq!(identify(cns::NAMESPACE_FORMAT, 0, 1).unwrap()[132 + 2], 12);
    assert!(identify(cns::NAMESPACE_FORMAT, 0, 2).is_none());
    assert!(
        identify(cns::CSI_NAMESPACE_FORMAT, 0, 1).is_some()
            && identify(cns::CSI_NAMESPACE_FORMAT, 0, 1 << 24).is_none()
    );
    assert!(identify(cns::CSI_ALLOCATED_NAMESPACE, 2, 1 << 24).is_some_and(|data| data[72] == 16));
    assert!(identify(cns::CSI_ALLOCATED_NAMESPACE, 2, 0).is_none(), "of another command set");
}
