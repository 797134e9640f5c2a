//! A host that sends anything at all, against a real device in memory: a bounded run of the oracle that `fuzz/` runs
//! without bounds. A failure prints its input, and proptest keeps it.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_nvme::testing::{Summary, check_commands};

fn device(block_bytes: u32) -> Device {
    let config = DeviceConfig {
        spus: 2,
        namespace_bytes: 1 << 20,
        block_bytes,
        kv_namespace_bytes: 1 << 20,
        ..DeviceConfig::default()
    };
    let store = RamStore::new(2, 16 << 20).unwrap();
    let apps = vec![BuiltInApp::Native(base_io_spu::native()), BuiltInApp::Native(key_value_spu::native())];
    Device::open(config, Box::new(store), None, apps).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 256, ..ProptestConfig::default() })]
    #[test]
    fn whatever_a_host_sends_is_answered_once_and_stays_in_its_blocks(
        large_blocks in any::<bool>(), bytes in prop::collection::vec(any::<u8>(), 0..2500)
    ) {
        check_commands(device(if large_blocks { 4096 } else { 512 }), &bytes);
    }
}

/// The same inputs in each run reach what the oracle is there to compare.
#[test]
fn the_oracle_reaches_what_it_is_for() {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(Config::default().rng_algorithm));
    let inputs = prop::collection::vec(any::<u8>(), 2000..2500);
    let mut sum = Summary::default();
    for _ in 0..40 {
        let bytes = inputs.new_tree(&mut runner).unwrap().current();
        let one = check_commands(device(512), &bytes);
        sum.commands += one.commands;
        sum.succeeded += one.succeeded;
        sum.failed += one.failed;
        sum.changes_compared += one.changes_compared;
        sum.reads_compared += one.reads_compared;
        sum.namespace_compared += one.namespace_compared;
        sum.connections_ended += one.connections_ended;
    }
    assert!(sum.commands > 1000 && sum.succeeded > 100 && sum.failed > 100, "{sum:?}");
    assert!(sum.changes_compared > 20 && sum.reads_compared > 10 && sum.namespace_compared > 100, "{sum:?}");
    assert!(sum.connections_ended > 0, "{sum:?}");
}
