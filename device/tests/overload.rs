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

/// What an app answers, call by call: status 0 is success.
fn statuses(rig: &mut Rig, calls: &[(Rpc, Vec<u8>, u32)]) -> Vec<u32> {
    let mut status = |(rpc, payload, reply_bytes): &(Rpc, Vec<u8>, u32)| {
        let request = rig.request(*rpc, payload, *reply_bytes);
        rig.device.submit(rig.hre, request).expect("the queue has room");
        rig.settle();
        match rig.device.completion().expect("it has ended").outcome {
            RpcOutcome::Answered { status } => status,
            other => panic!("{other:?}"),
        }
    };
    calls.iter().map(&mut status).collect()
}

#[test]
fn what_has_no_place_is_told_as_busy_by_every_app_and_never_as_media_that_failed() {
    let valve = Valve::default();
    let (store, mut apps) = banks(1, 1 << 24);
    let store = SlowStore::new(store, valve.clone());
    let config = willow_device::DeviceConfig { namespace_bytes: 1 << 20, kv_namespace_bytes: 4 << 20, ..config(1) };
    let natives = [base_io_spu::native(), key_value_spu::native(), direct_io_spu::native()];
    apps.extend(natives.map(BuiltInApp::Native));
    let mut device = Device::open(config, Box::new(store), None, apps).expect("the device opens");
    let hre = device.open_hre(None).expect("an endpoint");
    let numbers = ["base-io", "key-value", "direct-io"].map(|name| device.app_number(name).expect("it is built in"));
    let namespaces: Vec<_> = device.namespaces().iter().map(|namespace| (namespace.nsid, namespace.base)).collect();
    let mut rig = Rig::around(device, hre);
    rig.settle();
    let call = |app, handler, arguments: &[u8], payload: &[u8], reply_bytes| {
        let arguments = Arguments::new(arguments).expect("at most 64 bytes");
        (Rpc { app, handler, spu: 0, arguments }, payload.to_vec(), reply_bytes)
    };
    let ((_, base), (kv, _)) = (namespaces[0], namespaces[1]);
    let bytes = 4096;
    let range = RangeArguments {
        nv_address: base,
        bytes,
        buffer_offset: 0,
        first_bytes: bytes,
        stripe_bytes: bytes,
        stride: bytes,
        flags: 0,
    };
    let placement = key_value_host::Placement::new([3; 16], 1);
    let key = key_value_host::Key::new(b"key").expect("a key");
    let put = key_value_host::Call::put(&placement, kv, &key, 5, key_value_host::PutCondition::Always, true);
    let put = put.expect("a value of 5 bytes");
    let get = key_value_host::Call::get(&placement, kv, &key, 0);
    let direct = direct_io_spu::wire::Arguments { nv_address: base, bytes, flags: 0 };
    let block = vec![7; bytes as usize];
    use direct_io_spu::wire::handler as direct_handler;
    let calls = [
        call(numbers[0], handler::WRITE, &range.encode(), &block, 0),
        call(numbers[0], handler::READ, &range.encode(), &[], bytes),
        call(numbers[1], put.handler, &put.arguments, b"value", 0),
        call(numbers[1], get.handler, &get.arguments, &[], 5),
        call(numbers[2], direct_handler::WRITE, &direct.encode(), &block, 0),
        call(numbers[2], direct_handler::READ, &direct.encode(), &[], bytes),
        call(numbers[2], direct_handler::FLUSH, &direct.encode(), &[], 0),
    ];
    let good = [0; 7];
    assert_eq!(statuses(&mut rig, &calls), good);
    valve.busy.set(true);
    let (block, pair) = (wire::STATUS_BUSY, key_value_host::wire::STATUS_BUSY);
    let file = direct_io_spu::wire::STATUS_BUSY;
    assert_eq!(statuses(&mut rig, &calls), [block, block, pair, pair, file, file, file]);
    // It was nothing but that.
    valve.busy.set(false);
    assert_eq!(statuses(&mut rig, &calls), good);
}
