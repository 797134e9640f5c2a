//! The apps that come with the device stay far from the budget of a run, which is the large one: none of their loops is unbounded.
//! Instructions and what SPU-OS does for them count together.

#[path = "support/world.rs"]
mod world;

use base_io_spu::wire::{RangeArguments, handler};
use key_value_host::{Call, Key, ListScan, ListStep, Placement, PutCondition};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, CommandSet, DeviceConfig, RpcOutcome};
use world::World;

/// A tenth of what these apps have.
const BUDGET: u64 = 5_000_000;
const SPUS: u16 = 2;
const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };

fn world() -> World {
    let config = DeviceConfig {
        spus: SPUS,
        namespace_bytes: 512 << 20,
        kv_namespace_bytes: 256 << 20,
        instruction_budget: BUDGET,
        ..DeviceConfig::default()
    };
    let store = RamStore::new(usize::from(SPUS), 1 << 30).expect("a store in memory");
    let apps = [willow_apps::BASE_IO_WASM, willow_apps::KEY_VALUE_WASM].map(BuiltInApp::Wasm).into();
    World::open(config, Box::new(store), apps)
}

#[test]
fn base_io_does_its_longest_requests_within_a_tenth_of_the_budget() {
    let mut world = world();
    let namespaces = world.device.namespaces();
    let base = namespaces.iter().find(|it| it.csi == CommandSet::Nvm).expect("the namespace").base;
    for (bytes, stride) in [(4096, 8192), (1 << 20, 16384), (4 << 20, 16384)] {
        for number in [handler::WRITE, handler::READ, handler::COMPARE, handler::VERIFY, handler::ZERO, handler::FLUSH]
        {
            let range = RangeArguments {
                nv_address: base,
                bytes,
                buffer_offset: 0,
                first_bytes: bytes.min(8192),
                stripe_bytes: 8192,
                stride,
                flags: 0,
            };
            let buffer = (bytes as usize) * (stride as usize / 8192);
            let (payload, reply) = match number {
                handler::WRITE | handler::COMPARE => (vec![7; buffer], 0),
                handler::READ => (vec![], buffer),
                _ => (vec![], 0),
            };
            let done = world.call(("base-io", number, 0), &range.encode(), &payload, reply);
            assert_eq!(done.outcome, ANSWERED, "handler {number}, {bytes} bytes");
        }
    }
    // The largest range that is zeroed in one piece.
    let range = RangeArguments {
        nv_address: base,
        bytes: 256 << 20,
        buffer_offset: 0,
        first_bytes: 8192,
        stripe_bytes: 8192,
        stride: 16384,
        flags: base_io_spu::wire::FLAG_DEALLOCATE,
    };
    let done = world.call(("base-io", handler::ZERO, 0), &range.encode(), &[], 0);
    assert_eq!(done.outcome, ANSWERED);
}

#[test]
fn key_value_does_its_longest_requests_within_a_tenth_of_the_budget() {
    let mut world = world();
    let namespaces = world.device.namespaces();
    let namespace = namespaces.iter().find(|it| it.csi == CommandSet::Kv).expect("the namespace");
    let (nsid, placement) = (namespace.nsid, Placement::new(namespace.nguid, SPUS));
    let key = |number: u32| Key::new(format!("key-{number}").as_bytes()).expect("a key");
    let go = |world: &mut World, call: Call, payload: &[u8], reply: usize| {
        world.call(("key-value", call.handler, call.spu), &call.arguments, payload, reply)
    };
    for number in 0..3000 {
        let bytes = if number % 500 == 0 { 1 << 20 } else { 1 + number * 7 % 5000 };
        let put =
            Call::put(&placement, nsid, &key(number), bytes, PutCondition::Always, number % 100 == 0).expect("a put");
        assert_eq!(go(&mut world, put, &vec![3; bytes as usize], 0).outcome, ANSWERED, "put {number}");
    }
    for number in (0..3000).step_by(7) {
        let done = go(&mut world, Call::get(&placement, nsid, &key(number), 0), &[], 1 << 20);
        assert_eq!(done.outcome, ANSWERED, "get {number}");
    }
    // All keys in one list.
    let (mut scan, mut step) = ListScan::start(placement, nsid, None, false, 1 << 20);
    while let ListStep::Call(call) = step {
        let done = go(&mut world, call, &[], 1 << 20);
        assert_eq!(done.outcome, ANSWERED, "a list");
        step = scan.answered(done.result);
    }
    for number in 0..3000 {
        let deleted = go(&mut world, Call::delete(&placement, nsid, &key(number), false), &[], 0);
        assert_eq!(deleted.outcome, ANSWERED, "delete {number}");
    }
}
