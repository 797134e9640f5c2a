//! The end of a drive's life, as hosts see it over NVMe: SMART tells of it before, then nothing is written any more, and all that was is read.

mod common;

use common::Host;

use willow_device::media::delegate::{Banks, DelegatingStore};
use willow_device::media::flash::{Array, Cell, FaultParameters, Geometry};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::{ConnectionId, Subsystem, SubsystemConfig};
use willow_wire::spec::opcode::nvm;
use willow_wire::spec::{Sgl, Status, SubmissionEntry, log};

const BLOCK_BYTES: usize = 4096;
/// Blocks of the namespace; the victim's are the first.
const BLOCKS: u32 = 256;
const VICTIM_BLOCKS: u32 = 32;
/// Writes after which such flash has long worn out.
const WRITES_MAX: u32 = 400_000;
const FLASH: Geometry = Geometry {
    channels: 1,
    packages_per_channel: 1,
    dies_per_package: 1,
    planes_per_die: 1,
    blocks_per_plane: 96,
    pages_per_block: 16,
    page_bytes: 4096,
    spare_bytes: 64,
    cell: Cell::Slc,
    spare_accessible: true,
    paired_distance: 0,
};
/// Flash that is rated for few erases, and whose programs and erases fail as it ages.
const SHORT_LIVED: FaultParameters = FaultParameters {
    endurance_cycles: 10,
    program_fail_per_billion: 300_000,
    erase_fail_per_billion: 3_000_000,
    ..FaultParameters::NONE
};

struct Drive {
    host: Host,
    admin: ConnectionId,
    io: ConnectionId,
}

#[derive(Clone, Copy, Debug)]
struct Smart {
    warnings: u8,
    spare: u8,
    threshold: u8,
    used: u8,
}

impl Drive {
    fn new() -> Drive {
        let namespace_bytes = u64::from(BLOCKS) * BLOCK_BYTES as u64;
        let config = DeviceConfig { spus: 1, namespace_bytes, kv_namespace_bytes: 0, ..DeviceConfig::default() };
        let flash = vec![Array::in_memory(&FLASH, &SHORT_LIVED, 1)];
        let banks =
            Banks { ftl: "page", bank_bytes: 2 << 20, unit_bytes: 4096, is_volatile: false, ftl_forgets: false };
        let store = DelegatingStore::new(Box::new(RamStore::new(1, 65536).unwrap()), flash, &banks);
        let apps = vec![BuiltInApp::Native(page_spu::native()), BuiltInApp::Native(base_io_spu::native())];
        let device = Device::open(config, Box::new(store), None, apps).unwrap();
        let mut host = Host::of(Subsystem::new(SubsystemConfig::default(), device, 0).unwrap());
        let (admin, io) = host.queues(1);
        Drive { host, admin, io }
    }

    fn write(&mut self, block: u32, byte: u8) -> Status {
        let entry = SubmissionEntry::new(nvm::WRITE).with_nsid(1).with_cid(9).with_cdw(10, block);
        let entry = entry.with_sgl(Sgl::transport(BLOCK_BYTES as u32));
        self.host.ask(self.io, &entry, &[byte; BLOCK_BYTES]).expect("the queue stays").status
    }

    fn read(&mut self, block: u32) -> Vec<u8> {
        let entry = SubmissionEntry::new(nvm::READ).with_nsid(1).with_cid(8).with_cdw(10, block);
        let entry = entry.with_sgl(Sgl::transport(BLOCK_BYTES as u32));
        let (answer, bytes) = self.host.ask_data(self.io, &entry, &[]).expect("the queue stays");
        assert!(answer.status.is_success(), "block {block}: {answer:?}");
        bytes
    }

    fn smart(&mut self) -> Smart {
        let page = log::GetLogPage { page: log::SMART, specific: 0, retain_event: true, bytes: 512, offset: 0, csi: 0 };
        let entry = page.to_entry(u32::MAX).with_cid(6).with_sgl(Sgl::transport(512));
        let bytes = self.host.ask_data(self.admin, &entry, &[]).expect("it is answered").1;
        Smart { warnings: bytes[0], spare: bytes[3], threshold: bytes[4], used: bytes[5] }
    }

    fn victim_is_there(&mut self) {
        for block in 0..VICTIM_BLOCKS {
            assert!(self.read(block).iter().all(|byte| *byte == 1 + block as u8), "block {block}");
        }
    }
}

#[test]
fn a_drive_that_wears_out_says_so_before_becomes_read_only_and_loses_nothing() {
    let mut drive = Drive::new();
    for block in 0..VICTIM_BLOCKS {
        assert_eq!(drive.write(block, 1 + block as u8), Status::SUCCESS);
    }
    let fresh = drive.smart();
    assert!(matches!(fresh, Smart { warnings: 0, spare: 100, threshold: 10, used: 0..10 }), "{fresh:?}");
    // Somebody else writes until nothing can be written any more.
    let others = BLOCKS - VICTIM_BLOCKS;
    let (mut model, mut before, mut looked) = (vec![0; others as usize], fresh, vec![]);
    let refused = (0..WRITES_MAX).find_map(|number| {
        let block = number.wrapping_mul(2_654_435_761) % others;
        let status = drive.write(VICTIM_BLOCKS + block, number as u8);
        if !status.is_success() {
            return Some(status);
        }
        model[block as usize] = number as u8;
        if number % 1024 == 0 {
            let now = drive.smart();
            assert!(now.spare <= before.spare && now.used >= before.used, "{before:?}, {now:?}");
            assert_eq!(now.warnings, if now.spare < now.threshold { log::SMART_WARNING_SPARE } else { 0 });
            looked.push(now.spare);
            before = now;
            drive.victim_is_there();
        }
        None
    });
    let refused = refused.expect("the flash wears out");
    assert!(refused.is(Status::CAPACITY_EXCEEDED), "{refused:?}");
    assert!(looked.iter().any(|spare| (1..100).contains(spare)), "SMART told of it before: {looked:?}");
    let worn = drive.smart();
    assert_eq!(worn.warnings, log::SMART_WARNING_SPARE | log::SMART_WARNING_READ_ONLY, "{worn:?}");
    assert_eq!((worn.spare, worn.used >= 100), (0, true), "{worn:?}");
    // Nobody writes any more, and all that was written is there.
    assert!(drive.write(0, 0).is(Status::CAPACITY_EXCEEDED));
    assert!(drive.host.zero(drive.io, 7).is_some_and(|status| status.is(Status::CAPACITY_EXCEEDED)));
    drive.victim_is_there();
    for (block, byte) in (VICTIM_BLOCKS..).zip(&model) {
        assert!(drive.read(block).iter().all(|found| found == byte), "block {block}");
    }
    let health = drive.host.subsystem.backend_mut().statistics().flash.expect("flash").health;
    assert_eq!((health.spare_percent, health.is_read_only), (0, true));
}
