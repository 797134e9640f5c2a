//! What one host may have done between two looks at the device: floods let others have their turn.

use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::config::{
    ABORTS_MAX, ANSWERS_A_TURN_BYTES_MAX, NQN_DEFAULT, SENT_A_TURN_BYTES_MAX, TRANSFER_BYTES_MAX,
};
use willow_nvme::{ConnectionId, Next, Subsystem, SubsystemConfig};
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData};
use willow_wire::spec::log::{self, GetLogPage};
use willow_wire::spec::{CompletionEntry, Sgl, SubmissionEntry, opcode, property};

fn subsystem() -> Subsystem<Device> {
    let config =
        DeviceConfig { spus: 2, namespace_bytes: 1 << 20, kv_namespace_bytes: 1 << 20, ..DeviceConfig::default() };
    let store = RamStore::new(2, 16 << 20).unwrap();
    let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
    let device = Device::open(config, Box::new(store), None, apps).unwrap();
    Subsystem::new(SubsystemConfig::default(), device, 0).unwrap()
}

fn ask(subsystem: &mut Subsystem<Device>, at: ConnectionId, entry: &SubmissionEntry, data: &[u8]) -> CompletionEntry {
    assert!(matches!(subsystem.command(at, entry, data), Next::Taken));
    subsystem.run(0);
    let completion = subsystem.completion().expect("an answer");
    if let Some(payload) = completion.payload {
        subsystem.give_buffer(at, payload.buffer);
    }
    completion.entry
}

/// A controller of a host, on its admin queue.
fn host(subsystem: &mut Subsystem<Device>, name: &str) -> ConnectionId {
    let at = subsystem.open_connection(None).unwrap();
    let command = ConnectCommand { record_format: 0, queue_id: 0, queue_size: 127, attributes: 0, keep_alive_ms: 0 };
    let data = ConnectData {
        host_id: [1; 16],
        controller_id: CONTROLLER_DYNAMIC,
        subsystem_nqn: NQN_DEFAULT.to_owned(),
        host_nqn: format!("nqn.2025-01.org.example:{name}"),
    };
    let entry = command.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 1024));
    assert!(ask(subsystem, at, &entry, &data.to_bytes()[..]).status.is_success());
    for value in [0x46_0060, 0x46_0061] {
        assert!(
            ask(subsystem, at, &fabrics::property_set(property::CC, value, false).with_cid(2), &[]).status.is_success()
        );
    }
    at
}

fn log_page(cid: u16, bytes: u32) -> SubmissionEntry {
    let page = GetLogPage { page: log::ERROR, specific: 0, retain_event: true, bytes: bytes.into(), offset: 0, csi: 0 };
    page.to_entry(0).with_cid(cid).with_sgl(Sgl::transport(bytes))
}

#[test]
fn long_answers_of_admin_commands_are_made_a_few_in_a_turn() {
    let mut subsystem = subsystem();
    let at = host(&mut subsystem, "one");
    for (bytes, most) in [(TRANSFER_BYTES_MAX, 1), (4096, ANSWERS_A_TURN_BYTES_MAX / 4096 + 1)] {
        for _ in 0..3 {
            let before = subsystem.releases();
            let mut taken = 0;
            while taken < 120 && matches!(subsystem.command(at, &log_page(10 + taken, bytes), &[]), Next::Taken) {
                taken += 1;
            }
            assert_eq!(usize::from(taken), most.min(120), "of {bytes} bytes");
            subsystem.run(0);
            // Who was told to wait is told to try again, whatever else happens.
            assert!(usize::from(taken) == 120 || subsystem.releases() > before);
            while let Some(completion) = subsystem.completion() {
                let payload = completion.payload.expect("a page");
                assert_eq!(payload.bytes, bytes as usize);
                let page = &payload.buffer[payload.start..payload.start + payload.bytes];
                assert!(page[64..].iter().all(|byte| *byte == 0), "nothing of what was in the buffer before");
                let mut buffer = payload.buffer;
                buffer.fill(0xff);
                subsystem.give_buffer(at, buffer);
            }
        }
    }
}

#[test]
fn aborts_are_looked_for_a_few_in_a_turn() {
    let mut subsystem = subsystem();
    let (one, other) = (host(&mut subsystem, "one"), host(&mut subsystem, "other"));
    for _ in 0..3 {
        let mut taken = 0u16;
        // Of a command that is not there: the device looks at all that it has.
        let abort = |cid: u16| SubmissionEntry::new(opcode::admin::ABORT).with_cid(cid).with_cdw(10, 77 << 16);
        while taken < 100 && matches!(subsystem.command(one, &abort(10 + taken), &[]), Next::Taken) {
            taken += 1;
        }
        assert_eq!(taken, u16::from(ABORTS_MAX) + 1);
        assert!(matches!(subsystem.command(other, &abort(200), &[]), Next::Wait), "all hosts' together");
        // Commands that need no such look are done all the same.
        let keep_alive = SubmissionEntry::new(opcode::admin::KEEP_ALIVE).with_cid(9);
        assert!(matches!(subsystem.command(other, &keep_alive, &[]), Next::Taken));
        let before = subsystem.releases();
        subsystem.run(0);
        assert!(subsystem.releases() > before, "who was told to wait is told to try again");
        let done = std::iter::from_fn(|| subsystem.completion()).count();
        assert_eq!(done, usize::from(taken) + 1);
    }
}

#[test]
fn a_host_has_its_turn_only_where_others_wait_for_theirs() {
    let mut subsystem = subsystem();
    let one = host(&mut subsystem, "one");
    subsystem.has_sent(one, 10 * SENT_A_TURN_BYTES_MAX);
    assert!(!subsystem.has_had_its_turn(one), "alone");
    let other = host(&mut subsystem, "other");
    subsystem.has_sent(one, SENT_A_TURN_BYTES_MAX - 1);
    assert!(!subsystem.has_had_its_turn(one));
    subsystem.has_sent(one, 1);
    assert!(subsystem.has_had_its_turn(one) && !subsystem.has_had_its_turn(other));
    subsystem.run(0);
    assert!(!subsystem.has_had_its_turn(one), "the next turn");
    subsystem.has_sent(one, SENT_A_TURN_BYTES_MAX);
    subsystem.close_connection(other);
    assert!(!subsystem.has_had_its_turn(one), "alone again");
}
