//! More work than the device has places for: what has none is told so, as something that works later, and never that the media failed.

mod common;

use base_io_spu::wire::{self, RangeArguments, handler};
use common::slow::{SlowStore, Valve};
use common::*;
use willow_device::{Arguments, BuiltInApp, Device, Rpc, RpcList, RpcOutcome};

const SPUS: u16 = 4;
const READS: u64 = 100;
/// Pieces of a read on each SPU, each an operation of the store: 64 handlers an SPU ask for twice as many as there may be.
const PIECES: u32 = 256;
const PIECE_BYTES: u32 = 512;

#[test]
fn reads_beyond_the_places_of_the_store_wait_or_are_busy_and_have_not_failed() {
    let valve = Valve::default();
    let (store, mut apps) = banks(SPUS, 1 << 24);
    let store = SlowStore::new(store, valve.clone());
    let config = willow_device::DeviceConfig { namespace_bytes: 1 << 22, ..config(SPUS) };
    apps.push(BuiltInApp::Native(base_io_spu::native()));
    let mut device = Device::open(config, Box::new(store), None, apps).expect("the device opens");
    let hre = device.open_hre(None).expect("an endpoint");
    let app = device.app_number("base-io").expect("it is built in");
    let base = device.namespaces()[0].base;
    let mut rig = Rig::around(device, hre);
    rig.settle();
    valve.closed.set(true);
    let part = |spu: u16| {
        let range = RangeArguments {
            nv_address: base,
            bytes: PIECES * PIECE_BYTES,
            buffer_offset: u32::from(spu) * PIECE_BYTES,
            first_bytes: PIECE_BYTES,
            stripe_bytes: PIECE_BYTES,
            stride: u32::from(SPUS) * PIECE_BYTES,
            flags: 0,
        };
        Rpc { app, handler: handler::READ, spu, arguments: Arguments::new(&range.encode()).expect("32 bytes") }
    };
    let reply_bytes = u32::from(SPUS) * PIECES * PIECE_BYTES;
    let mut most = 0;
    for _ in 0..READS {
        let mut request = rig.request(part(0), &[], reply_bytes);
        request.rpcs = RpcList::Many((0..SPUS).map(part).collect());
        rig.device.submit(rig.hre, request).expect("the queue has room");
        rig.device.run(rig.now_ns);
        most = most.max(valve.waiting());
    }
    assert!(most > 12_000, "{most} operations reach the bound");
    let (mut busy, mut good) = (0, 0);
    let mut count = |rig: &mut Rig| {
        while let Some(done) = rig.device.completion() {
            match done.outcome {
                RpcOutcome::Answered { status: 0 } => good += 1,
                RpcOutcome::Answered { status: wire::STATUS_BUSY } => busy += 1,
                other => panic!("{other:?}"),
            }
        }
    };
    count(&mut rig);
    valve.closed.set(false);
    rig.settle();
    count(&mut rig);
    assert_eq!(busy + good, READS, "each is answered");
    assert!(good >= READS / 4, "{busy} of {READS} had no place");
    // Nothing of it stays.
    let mut request = rig.request(part(0), &[], reply_bytes);
    request.rpcs = RpcList::Many((0..SPUS).map(part).collect());
    rig.device.submit(rig.hre, request).expect("the queue has room");
    rig.settle();
    assert_eq!(rig.device.completion().expect("it has ended").outcome, RpcOutcome::Answered { status: 0 });
}
