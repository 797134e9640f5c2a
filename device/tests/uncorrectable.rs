//! Blocks that a host has made unreadable, on media that lose power: until what was written over them is durable they stay so, whatever the
//! cut leaves; what was answered is there.

use base_io_host::{Geometry, wire};
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};

const SPUS: u16 = 2;
const BLOCK: usize = 512;
/// What the tests look at: the stripes of both banks, and some of the next.
const BLOCKS: usize = 40;
/// Marked: over the end of a stripe, so that both banks have a part.
const MARKED: std::ops::Range<usize> = 12..20;
/// Turns that any request has ended in.
const TURNS_MAX: usize = 10_000;

struct Drive {
    device: Device,
    hre: HreId,
    app: u16,
    geometry: Geometry,
    nguid: [u8; 16],
}

impl Drive {
    fn open(media: &FaultMedia) -> Result<Drive, String> {
        let config = DeviceConfig {
            spus: SPUS,
            namespace_bytes: 1 << 20,
            block_bytes: BLOCK as u32,
            kv_namespace_bytes: 0,
            ..DeviceConfig::default()
        };
        let apps = vec![BuiltInApp::Native(base_io_spu::native())];
        let mut device =
            Device::open(config, Box::new(media.store()), None, apps).map_err(|error| error.to_string())?;
        let hre = device.open_hre(None).ok_or("no endpoint")?;
        let namespace = device.namespaces().first().cloned().ok_or("no namespace")?;
        let app = device.app_number("base-io").ok_or("no Base-IO")?;
        let geometry = Geometry { spus: SPUS, stripe_bytes: device.stripe_bytes(), base: namespace.base };
        Ok(Drive { device, hre, app, geometry, nguid: namespace.nguid })
    }

    /// The status of each RPC's answer, the worst of them, and the buffer; `None`: the device does not answer any more.
    fn send(&mut self, rpcs: Vec<Rpc>, buffer: Vec<u8>, reads: bool) -> Option<(u32, Vec<u8>)> {
        let bytes = buffer.len() as u32;
        let (payload_bytes, reply_bytes) = if reads { (0, bytes) } else { (bytes, 0) };
        let request = HostRequest { tag: 1, rpcs: RpcList::Many(rpcs), buffer, payload_bytes, reply_bytes };
        self.device.submit(self.hre, request).expect("room");
        for _ in 0..TURNS_MAX {
            self.device.run(0);
            if let Some(done) = self.device.completion() {
                let RpcOutcome::Answered { status } = done.outcome else { return None };
                return Some((status, done.buffer));
            }
        }
        None
    }

    fn range(&mut self, handler: u8, blocks: &std::ops::Range<usize>, buffer: Vec<u8>) -> Option<(u32, Vec<u8>)> {
        let (start, bytes) = ((blocks.start * BLOCK) as u64, (blocks.len() * BLOCK) as u64);
        let (mut rpcs, app) = (Vec::new(), self.app);
        self.geometry.range(handler, start, bytes, 0, 0, |request| {
            let arguments = Arguments::new(&request.arguments.encode()).unwrap();
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        self.send(rpcs, buffer, handler == wire::handler::READ)
    }

    /// What a block has; `None`: it cannot be read.
    fn block(&mut self, block: usize) -> Option<Vec<u8>> {
        let (status, data) =
            self.range(wire::handler::READ, &(block..block + 1), vec![0xee; BLOCK]).expect("an answer");
        assert!(status == 0 || status == wire::STATUS_MEDIA_ERROR, "block {block}: status {status}");
        (status == 0).then_some(data)
    }

    fn write(&mut self, blocks: &std::ops::Range<usize>, byte: u8) -> bool {
        self.range(wire::handler::WRITE, blocks, vec![byte; blocks.len() * BLOCK])
            .is_some_and(|(status, _)| status == 0)
    }

    fn zero(&mut self, blocks: &std::ops::Range<usize>) -> bool {
        self.range(wire::handler::ZERO, blocks, vec![]).is_some_and(|(status, _)| status == 0)
    }

    fn flush(&mut self) -> bool {
        let (mut rpcs, app) = (Vec::new(), self.app);
        self.geometry.flush(|request| {
            let arguments = Arguments::new(&request.arguments.encode()).unwrap();
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        self.send(rpcs, vec![], false).is_some_and(|(status, _)| status == 0)
    }

    fn mark(&mut self, blocks: &std::ops::Range<usize>) -> bool {
        let range = [(blocks.start * BLOCK) as u64, (blocks.len() * BLOCK) as u64].map(u64::to_le_bytes).concat();
        let body = [&1u32.to_le_bytes()[..], &self.nguid, &range].concat();
        let arguments = Arguments::new(&body).unwrap();
        let rpc = Rpc { app: control::CONTROL_APP, handler: control::MARK_UNCORRECTABLE, spu: 0, arguments };
        self.send(vec![rpc], vec![], false).is_some_and(|(status, _)| status == 0)
    }
}

/// What a block may be after a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    /// It may be unreadable.
    marked: bool,
    /// It may have all of this byte; unit and block are of one size, so that it is never torn.
    bytes: Vec<u8>,
}

/// What the workload has done when it stops: all of it, or as far as the power lasted.
struct Model(Vec<Block>);

impl Model {
    fn begin(&mut self, blocks: &std::ops::Range<usize>, byte: u8) {
        self.0[blocks.clone()].iter_mut().for_each(|block| block.bytes.push(byte));
    }

    /// A mark may be durable, and what was there is hidden by it.
    fn begin_mark(&mut self, blocks: &std::ops::Range<usize>) {
        self.0[blocks.clone()].iter_mut().for_each(|block| block.marked = true);
    }

    fn marked(&mut self, blocks: &std::ops::Range<usize>) {
        self.0[blocks.clone()].iter_mut().for_each(|block| block.bytes.clear());
    }

    /// A write was answered; where it wrote over marks it is durable.
    fn written(&mut self, blocks: &std::ops::Range<usize>, byte: u8) {
        for block in self.0[blocks.clone()].iter_mut().filter(|block| block.marked) {
            *block = Block { marked: false, bytes: vec![byte] };
        }
    }

    fn flushed(&mut self) {
        for block in &mut self.0 {
            block.bytes.drain(..block.bytes.len().saturating_sub(1));
        }
    }

    fn check(&self, drive: &mut Drive, what: &str) {
        for (at, block) in self.0.iter().enumerate() {
            match drive.block(at) {
                None => assert!(block.marked, "{what}: block {at} cannot be read, and is {block:?}"),
                Some(data) => {
                    let is_there = block.bytes.iter().any(|byte| data == [*byte; BLOCK]);
                    assert!(is_there, "{what}: block {at} has {:?}..., and is {block:?}", &data[..4]);
                }
            }
        }
    }
}

/// Writes, marks, and writes again over some of what is marked, until the power goes.
fn run(media: &FaultMedia) -> Model {
    let mut model = Model(vec![Block { marked: false, bytes: vec![0] }; BLOCKS]);
    let Ok(mut drive) = Drive::open(media) else { return model };
    let all = 0..BLOCKS;
    let mut steps = |model: &mut Model| -> Option<()> {
        model.begin(&all, 1);
        drive.write(&all, 1).then(|| model.written(&all, 1))?;
        drive.flush().then(|| model.flushed())?;
        model.begin_mark(&MARKED);
        drive.mark(&MARKED).then(|| model.marked(&MARKED))?;
        assert!(MARKED.clone().all(|block| drive.block(block).is_none()), "all that is marked");
        // In the midst, so that marks stay on both sides; nobody asks for durability.
        model.begin(&(14..17), 2);
        drive.write(&(14..17), 2).then(|| model.written(&(14..17), 2))?;
        assert!((14..17).all(|block| drive.block(block).is_some()));
        model.begin(&(19..24), 0);
        drive.zero(&(19..24)).then(|| model.written(&(19..24), 0))?;
        // What was marked already is marked once more, and with it what was written.
        model.begin_mark(&(13..15));
        drive.mark(&(13..15)).then(|| model.marked(&(13..15)))?;
        model.begin(&(10..19), 3);
        drive.write(&(10..19), 3).then(|| model.written(&(10..19), 3))?;
        (all.clone().all(|block| drive.block(block).is_some())).then_some(())
    };
    let done = steps(&mut model);
    assert!(done.is_some() || media.is_cut(), "it fails though the power is on");
    model
}

fn options(seed: u64) -> FaultOptions {
    FaultOptions { seed, delayed_percent: (seed % 3 * 30) as u8, ..FaultOptions::new(SPUS as usize, 1 << 30) }
}

#[test]
fn a_block_is_unreadable_until_what_was_written_is_durable_whatever_a_cut_leaves() {
    let (mut found_marked, mut found_written) = (0, 0);
    for seed in 0..3 {
        let operations = {
            let whole = FaultMedia::new(options(seed));
            run(&whole);
            whole.operations()
        };
        for cut in 0..=operations {
            let media = FaultMedia::new(options(seed));
            media.cut_after(cut);
            let model = run(&media);
            for outcome in 0..8u64 {
                let left = media.power_cut(&mut Choices::seeded(seed ^ cut << 20 ^ outcome << 40));
                let what = format!("seed {seed}, cut after {cut} of {operations}, outcome {outcome}");
                let mut drive = Drive::open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
                model.check(&mut drive, &what);
                found_marked += (0..BLOCKS).filter(|block| drive.block(*block).is_none()).count();
                // It is a device as any other: all of it can be written, and read then.
                assert!(drive.write(&(0..BLOCKS), 9), "{what}");
                found_written += (0..BLOCKS).filter(|block| drive.block(*block) == Some(vec![9; BLOCK])).count();
                assert_eq!(drive.device.statistics().uncorrectable_bytes, 0, "{what}");
                assert_eq!(drive.device.statistics().strays, 0, "{what}");
            }
        }
    }
    assert!(found_marked > 100, "cuts came while blocks were marked: {found_marked}");
    assert_eq!(found_written % BLOCKS, 0, "each time all of it");
}

/// A write of a part of a block leaves the block as it is: who wrote it is answered, and the block cannot be read.
#[test]
fn a_part_of_a_block_is_not_enough() {
    let media = FaultMedia::new(options(0));
    let mut drive = Drive::open(&media).unwrap();
    assert!(drive.mark(&(3..5)));
    let mut part = |start: u64, bytes: u32| {
        let (mut rpcs, app) = (Vec::new(), drive.app);
        drive.geometry.range(wire::handler::WRITE, start, bytes.into(), 0, 0, |request| {
            let arguments = Arguments::new(&request.arguments.encode()).unwrap();
            rpcs.push(Rpc { app, handler: request.handler, spu: request.spu, arguments });
        });
        assert_eq!(drive.send(rpcs, vec![7; bytes as usize], false).expect("an answer").0, 0);
        (2..6).map(|block| drive.block(block).is_some()).collect::<Vec<bool>>()
    };
    let block = BLOCK as u64;
    assert_eq!(part(3 * block + 1, 510), [true, false, false, true]);
    assert_eq!(part(3 * block + 256, 512), [true, false, false, true]);
    assert_eq!(part(3 * block + 256, 768), [true, false, true, true], "the second of them, as a whole");
    assert_eq!(part(2 * block + 256, 768), [true, true, true, true]);
}

/// Media on which nothing can be made durable keep the marks, and the write has failed.
#[test]
fn a_write_that_cannot_be_durable_leaves_the_mark() {
    let media = FaultMedia::new(options(0));
    let mut drive = Drive::open(&media).unwrap();
    assert!(drive.mark(&(3..5)));
    media.fail_flushes(1);
    assert!(!drive.write(&(3..4), 7));
    assert_eq!((drive.block(2), drive.block(3)), (Some(vec![0; BLOCK]), None));
    assert!(drive.write(&(3..4), 8) && drive.block(3) == Some(vec![8; BLOCK]));
    media.fail_saves(0, 1, 0);
    assert!(!drive.write(&(4..5), 7), "the mark may be on the media");
    assert_eq!(drive.block(4), None);
    assert!(drive.write(&(4..5), 9) && drive.block(4) == Some(vec![9; BLOCK]));
    assert_eq!(drive.device.statistics().strays, 0);
}
