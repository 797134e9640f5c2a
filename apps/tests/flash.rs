//! A device whose banks are flash behind the FTL `page`, in the sandbox and natively: the same bytes as any other device's, also after
//! collection has had to work, and after a kill.

use base_io_host::{Geometry as Stripes, wire};
use std::path::Path;
use willow_apps::{BUNDLED_APPS, FTLS};
use willow_device::media::delegate::DelegatingStore;
use willow_device::media::fault::{FaultMedia, FaultOptions, Random};
use willow_device::media::flash::{Array, Cell, FaultParameters, Geometry, Head};
use willow_device::media::ram::RamStore;
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};

const SPUS: u16 = 2;
const FLASH: Geometry = Geometry {
    channels: 2,
    packages_per_channel: 1,
    dies_per_package: 1,
    planes_per_die: 2,
    blocks_per_plane: 48,
    pages_per_block: 16,
    page_bytes: 4096,
    spare_bytes: 64,
    cell: Cell::Slc,
    spare_accessible: true,
    paired_distance: 0,
};
const UNIT_BYTES: u64 = 8192;
const UUID: [u8; 16] = [7; 16];
const BLOCK: usize = 4096;

fn library_geometry() -> willow_flash::Geometry {
    willow_flash::Geometry {
        channels: FLASH.channels,
        packages_per_channel: FLASH.packages_per_channel,
        dies_per_package: FLASH.dies_per_package,
        planes_per_die: FLASH.planes_per_die,
        blocks_per_plane: FLASH.blocks_per_plane,
        pages_per_block: FLASH.pages_per_block,
        page_bytes: FLASH.page_bytes,
        spare_bytes: FLASH.spare_bytes,
        cell: willow_flash::Cell::Slc,
        spare_accessible: FLASH.spare_accessible,
        paired_distance: FLASH.paired_distance,
    }
}

/// Bytes of a bank that the FTL can offer: whole regions.
fn bank_bytes() -> u64 {
    let geometry = library_geometry();
    let config = page_ftl::FtlConfig::new(&geometry, 1, 25).expect("this flash is enough");
    let lanes = u64::from(config.lanes(&geometry));
    u64::from(config.lane.units) * lanes * UNIT_BYTES / 65536 * 65536
}

struct Drive {
    device: Device,
    hre: HreId,
    app: u16,
    stripes: Stripes,
    blocks: usize,
}

impl Drive {
    fn open(flash: Vec<Array>, metadata: Box<dyn willow_device::Store>, native: bool) -> Drive {
        let namespace_bytes = (bank_bytes() - 65536) * u64::from(SPUS);
        let config = DeviceConfig {
            spus: SPUS,
            namespace_bytes,
            block_bytes: BLOCK as u32,
            kv_namespace_bytes: 0,
            app_data_bytes_max: 16 << 20,
            app_code_bytes_max: 1 << 20,
            ..DeviceConfig::default()
        };
        let store = DelegatingStore::new(metadata, ("page", flash), bank_bytes(), UNIT_BYTES);
        let built_in = FTLS.iter().chain(&BUNDLED_APPS[..1]).map(|app| match native {
            true => BuiltInApp::Native((app.native)()),
            false => BuiltInApp::Wasm(app.wasm),
        });
        let mut device = Device::open(config, Box::new(store), None, built_in.collect()).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let namespace = device.namespaces().first().cloned().expect("a namespace");
        let app = device.app_number("base-io").expect("Base-IO");
        let stripes = Stripes { spus: SPUS, stripe_bytes: device.stripe_bytes(), base: namespace.base };
        Drive { device, hre, app, stripes, blocks: namespace.size_bytes as usize / BLOCK }
    }

    fn send(&mut self, rpcs: Vec<Rpc>, buffer: Vec<u8>, payload_bytes: u32, reply_bytes: u32) -> Vec<u8> {
        let request = HostRequest { tag: 1, rpcs: RpcList::Many(rpcs), buffer, payload_bytes, reply_bytes };
        self.device.submit(self.hre, request).expect("room");
        for _ in 0..100_000 {
            self.device.run(0);
            if let Some(done) = self.device.completion() {
                assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 }, "{}", self.log());
                return done.buffer;
            }
        }
        panic!("a request hangs: {}", self.log());
    }

    fn range(&mut self, handler: u8, block: usize, count: usize, buffer: Vec<u8>) -> Vec<u8> {
        let (mut rpcs, app, length) = (Vec::new(), self.app, buffer.len() as u32);
        self.stripes.range(handler, (block * BLOCK) as u64, (count * BLOCK) as u64, 0, 0, |request| {
            let arguments = Arguments::new(&request.arguments.encode()).expect("they fit");
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        match handler {
            wire::handler::READ => self.send(rpcs, buffer, 0, length),
            _ => self.send(rpcs, buffer, length, 0),
        }
    }

    fn flush(&mut self) {
        let (mut rpcs, app) = (Vec::new(), self.app);
        self.stripes.flush(|request| {
            let arguments = Arguments::new(&request.arguments.encode()).expect("they fit");
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        self.send(rpcs, vec![], 0, 0);
    }

    /// What the FTL printed.
    fn log(&mut self) -> String {
        let arguments = [&[0; 4][..], b"page"].concat();
        let rpc = Rpc {
            app: control::CONTROL_APP,
            handler: control::LOG,
            spu: 0,
            arguments: Arguments::new(&arguments).expect("they fit"),
        };
        let request = HostRequest {
            tag: 2,
            rpcs: RpcList::One(rpc),
            buffer: vec![0; 65536],
            payload_bytes: 0,
            reply_bytes: 65536,
        };
        let _ = self.device.submit(self.hre, request);
        for _ in 0..1000 {
            self.device.run(0);
            if let Some(done) = self.device.completion().filter(|done| done.tag == 2) {
                return String::from_utf8_lossy(&done.buffer).trim_end_matches('\0').to_owned();
            }
        }
        "the log cannot be had".to_owned()
    }
}

fn in_memory() -> Vec<Array> {
    (0..SPUS).map(|bank| Array::in_memory(&FLASH, &FaultParameters::NONE, bank.into())).collect()
}

fn metadata() -> Box<dyn willow_device::Store> {
    Box::new(RamStore::new(SPUS.into(), 65536).expect("a store"))
}

/// Writes, reads and zeroes at random, compared with an array all along; more is written than the flash has bytes.
fn workload(drive: &mut Drive, model: &mut [u8], random: &mut Random, steps: usize) {
    for _ in 0..steps {
        let block = random.below(drive.blocks as u64) as usize;
        let count = 1 + random.below((drive.blocks - block).min(24) as u64) as usize;
        let range = block * BLOCK..(block + count) * BLOCK;
        match random.below(10) {
            0..6 => {
                let data = random.bytes(count * BLOCK);
                model[range].copy_from_slice(&data);
                drive.range(wire::handler::WRITE, block, count, data);
            }
            6..8 => {
                let found = drive.range(wire::handler::READ, block, count, vec![0xEE; count * BLOCK]);
                assert!(found == model[range], "blocks {block} to {}: {}", block + count, drive.log());
            }
            8 => {
                model[range].fill(0);
                drive.range(wire::handler::ZERO, block, count, vec![]);
            }
            _ => drive.flush(),
        }
    }
    compare(drive, model);
}

fn compare(drive: &mut Drive, model: &[u8]) {
    for block in (0..drive.blocks).step_by(16) {
        let count = (drive.blocks - block).min(16);
        let found = drive.range(wire::handler::READ, block, count, vec![0xEE; count * BLOCK]);
        assert!(found == model[block * BLOCK..][..count * BLOCK], "from block {block} on: {}", drive.log());
    }
}

fn written_bytes(drive: &mut Drive) -> u64 {
    drive.blocks as u64 * BLOCK as u64
}

fn same_as_an_array(native: bool) {
    let mut drive = Drive::open(in_memory(), metadata(), native);
    let mut model = vec![0; written_bytes(&mut drive) as usize];
    let mut random = Random::new(11);
    workload(&mut drive, &mut model, &mut random, 1500);
}

#[test]
fn the_same_bytes_in_the_sandbox() {
    same_as_an_array(false);
}

#[test]
fn the_same_bytes_natively() {
    same_as_an_array(true);
}

fn flash_files(folder: &Path, fresh: bool) -> Vec<Array> {
    (0..u64::from(SPUS))
        .map(|bank| {
            let path = folder.join(format!("flash-{bank}"));
            let head = Head { uuid: UUID, bank, geometry: FLASH, seed: bank };
            match fresh {
                true => Array::create(&path, &head, &FaultParameters::NONE).expect("a flash file"),
                false => Array::open(&path, &UUID, bank, &FLASH, &FaultParameters::NONE).expect("the same file"),
            }
        })
        .collect()
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    let folder = std::env::temp_dir().join(format!("willow-flash-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut model = Vec::new();
    let mut random = Random::new(5);
    let metadata = FaultMedia::new(FaultOptions::new(SPUS.into(), 65536));
    for round in 0..4 {
        let mut drive = Drive::open(flash_files(&folder, round == 0), Box::new(metadata.store()), false);
        model.resize(drive.blocks * BLOCK, 0);
        if round > 0 {
            compare(&mut drive, &model);
        }
        workload(&mut drive, &mut model, &mut random, 150);
        drive.flush();
        // No regular end: the FTL finds what it programmed, and its log.
        drop(drive);
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
}
