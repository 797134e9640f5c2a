//! Blocks that a host has made unreadable (Write Uncorrectable), on a namespace whose writes go through a log: what the log has of before comes
//! over no mark, also where the power goes at once.

#[allow(dead_code)]
#[path = "../../../atomic-write/spu/tests/world/drive.rs"]
mod drive;

use atomic_io_spu::planted::{Planted, plant};
use atomic_io_spu::wire::{RangeArguments, STATUS_MEDIA_ERROR, handler};
use drive::{Drive, status};
use willow_device::control::{self, NamespaceRequest};
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, CommandSet, DeviceConfig};

const STRIPE: u32 = 65536;
const BLOCK: u32 = 512;

fn open(media: &FaultMedia) -> Drive {
    let config = DeviceConfig { spus: 1, namespace_bytes: 0, kv_namespace_bytes: 0, ..DeviceConfig::default() };
    let apps = vec![BuiltInApp::Native(atomic_io_spu::native())];
    Drive::open(config, Box::new(media.store()), apps).expect("the media open")
}

/// A request for blocks of the first namespace: its status and its buffer.
fn ask(drive: &mut Drive, number: u8, first: u32, blocks: u32, byte: u8) -> (u32, Vec<u8>) {
    let app = drive.device.app_number("atomic-io").expect("the app");
    let (base, bytes) = (drive.device.namespaces()[0].base, blocks * BLOCK);
    let arguments = RangeArguments {
        nv_address: base + u64::from(first * BLOCK),
        bytes,
        buffer_offset: 0,
        first_bytes: bytes,
        stripe_bytes: STRIPE,
        stride: STRIPE,
        flags: 0,
    };
    let data = vec![byte; bytes as usize];
    let (payload, reply) = if number == handler::READ { (&[][..], bytes as usize) } else { (&data[..], 0) };
    let done = drive.call((app, 0, number), &arguments.encode(), payload, reply);
    (status(&done), done.buffer)
}

fn marks_stay(seed: u64) -> Result<(), String> {
    let media = FaultMedia::new(FaultOptions { seed, ..FaultOptions::new(1, 1 << 30) });
    let mut drive = open(&media);
    let request = NamespaceRequest {
        app: Some("atomic-io".to_owned()),
        stripe_bytes: Some(STRIPE),
        block_bytes: Some(BLOCK),
        ..NamespaceRequest::new(CommandSet::Nvm, 1 << 20)
    };
    let made = drive.call(
        (control::CONTROL_APP, 0, control::CREATE_NAMESPACE),
        &[],
        &serde_json::to_vec(&request).expect("JSON"),
        0,
    );
    assert_eq!(status(&made), 0);
    // More than a unit of the media: by the log.
    assert_eq!(ask(&mut drive, handler::WRITE, 2, 4, 7).0, 0);
    let namespace = drive.device.namespaces()[0].clone();
    let range = [u64::from(3 * BLOCK), u64::from(2 * BLOCK)].map(u64::to_le_bytes).concat();
    let body = [&namespace.nsid.to_le_bytes()[..], &namespace.nguid, &range].concat();
    let marked = drive.call((control::CONTROL_APP, 0, control::MARK_UNCORRECTABLE), &body, &[], 0);
    assert_eq!(status(&marked), 0);
    for outcome in 0..8 {
        let left = media.power_cut(&mut Choices::seeded(seed ^ outcome << 32));
        let mut drive = open(&left);
        for (block, readable) in [(2, true), (3, false), (4, false), (5, true)] {
            let (status, data) = ask(&mut drive, handler::READ, block, 1, 0);
            if (status == 0) != readable || (readable && data[..512] != [7; 512]) {
                return Err(format!("seed {seed}, outcome {outcome}: block {block} ends with status {status}"));
            }
            assert!(status == 0 || status == STATUS_MEDIA_ERROR);
        }
        assert_eq!(ask(&mut drive, handler::WRITE, 3, 2, 9).0, 0);
        let again = left.power_cut(&mut Choices::seeded(outcome));
        let (status, data) = ask(&mut open(&again), handler::READ, 3, 2, 0);
        assert!(status == 0 && data[..1024] == [9; 1024], "what was answered is there");
    }
    Ok(())
}

#[test]
fn what_the_log_has_of_before_comes_over_no_mark() {
    (0..4).try_for_each(marks_stay).unwrap_or_else(|error| panic!("{error}"));
    // A log that keeps it is found out.
    plant(Some(Planted::KeepsDeleted));
    let found = (0..4).find_map(|seed| marks_stay(seed).err());
    plant(None);
    assert!(found.is_some(), "a log that keeps what was marked is not noticed");
}
