//! NVMe structures against values that real hosts and targets were seen to send.

use proptest::prelude::*;
use willow_wire::spec::log::GetLogPage;
use willow_wire::spec::property::{Capabilities, Configuration};
use willow_wire::spec::*;

#[test]
fn configuration_as_linux_writes_it() {
    assert_eq!(Configuration::new(false, Configuration::CSS_NVM).0, 0x46_0000);
    assert_eq!(Configuration::new(true, Configuration::CSS_ALL).0, 0x46_0061);
    assert_eq!(Configuration::new(true, 0).with_shutdown(1).0, 0x46_4001);
}

#[test]
fn capabilities_of_other_targets() {
    let spdk = Capabilities(0x0800_0020_1e01_007f);
    assert_eq!((spdk.queue_entries_max(), spdk.timeout_500ms(), spdk.all_command_sets()), (128, 0x1e, false));
    let kernel = Capabilities(0x0000_0820_0f00_03ff);
    assert!(kernel.all_command_sets());
    assert_eq!(
        Capabilities::new(128, 0x1e, Capabilities::CQR | Capabilities::CSS_NVM | Capabilities::CRMS_WITH_MEDIA),
        spdk
    );
}

#[test]
fn statuses() {
    assert!(Status::SUCCESS.is_success());
    let status = Status::INVALID_FIELD.with_do_not_retry();
    assert_eq!(status.to_field(), 0x8004);
    assert_eq!(Status::from_field(0x8005), status);
    assert!(status.is(Status::INVALID_FIELD) && status != Status::INVALID_FIELD);
    assert_eq!(status.to_string(), "Invalid Field in Command (type 0h, code 02h, do not retry)");
    assert_eq!(Status::new(7, 0xc1).to_string(), "unknown status (type 7h, code c1h)");
}

#[test]
fn event_results() {
    assert_eq!(feature::event::result(2, 0, log::CHANGED_NAMESPACES), 0x04_0002);
}

#[test]
fn list_data() {
    let mut buffer = [0xff; 32];
    let mut writer = kv::ListWriter::new(&mut buffer).expect("room");
    assert!(writer.push(b"a"));
    assert!(writer.push(b"sixteen bytes ok"));
    assert!(!writer.push(b"too much"));
    assert_eq!(writer.bytes(), 4 + 4 + 20);
    assert_eq!(kv::read_list(&buffer).expect("valid"), vec![b"a".to_vec(), b"sixteen bytes ok".to_vec()]);
    assert!(kv::read_list(&buffer[..20]).is_err());
}

proptest! {
    #[test]
    fn log_page_round_trips(page: u8, specific in 0..128u8, retain_event: bool, dwords in 1..=u32::MAX, offset: u64, csi: u8) {
        let request = GetLogPage { page, specific, retain_event, bytes: u64::from(dwords) * 4, offset, csi };
        prop_assert_eq!(GetLogPage::from_entry(&request.to_entry(7)), request);
    }

    #[test]
    fn kv_key_round_trips(bytes in proptest::collection::vec(any::<u8>(), 0..=16)) {
        let key = kv::Key::new(&bytes).expect("short enough");
        let mut entry = SubmissionEntry::new(opcode::kv::STORE).with_cdw(11, kv::STORE_MUST_EXIST);
        key.put(&mut entry);
        prop_assert_eq!(kv::Key::from_entry(&entry), Some(key));
        prop_assert_eq!(entry.cdw11() & 0xff00, kv::STORE_MUST_EXIST);
        prop_assert_eq!(key.as_slice(), &bytes[..]);
    }

    #[test]
    fn call_arguments_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..=24)) {
        let mut entry = SubmissionEntry::new(tunnel::CALL);
        tunnel::put_call_arguments(&mut entry, &bytes).expect("short enough");
        prop_assert_eq!(&tunnel::call_arguments(&entry)[..bytes.len()], &bytes[..]);
        prop_assert_eq!(entry.cdw10() | entry.cdw11(), 0);
    }

    #[test]
    fn read_list_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = kv::read_list(&bytes);
    }

    #[test]
    fn connect_round_trips(queue_id: u16, queue_size: u16, attributes: u8, keep_alive_ms: u32, host_id: [u8; 16], controller_id: u16,
                           name in "[a-z0-9:.-]{0,200}") {
        let command = fabrics::ConnectCommand { record_format: 0, queue_id, queue_size, attributes, keep_alive_ms };
        prop_assert_eq!(fabrics::ConnectCommand::from_entry(&command.to_entry()), command);
        let data = fabrics::ConnectData {
            host_id,
            controller_id,
            subsystem_nqn: format!("nqn.{name}"),
            host_nqn: fabrics::DISCOVERY_NQN.into(),
        };
        prop_assert_eq!(fabrics::ConnectData::from_bytes(&data.to_bytes()), Ok(data));
    }

    #[test]
    fn discovery_entry_round_trips(port_id: u16, service in "[0-9]{1,5}", nqn in "nqn\\.[a-z]{1,40}", address in "[0-9.:a-f]{1,40}") {
        let entry = fabrics::DiscoveryEntry {
            transport: fabrics::TRTYPE_TCP,
            family: fabrics::ADRFAM_IPV4,
            subsystem_type: fabrics::SUBTYPE_NVM,
            requirements: 0,
            port_id,
            controller_id: fabrics::CONTROLLER_DYNAMIC,
            admin_queue_max: 32,
            flags: 0,
            service,
            subsystem_nqn: nqn,
            address,
            security: 0,
        };
        prop_assert_eq!(fabrics::DiscoveryEntry::from_bytes(&entry.to_bytes()), Some(entry));
    }
}
