//! Hosts that write anything into their shared memory: a bounded run of the oracle that `fuzz/` runs without bounds, and
//! planted mistakes that it has to catch.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};
use willow_shm_front::testing::{Plant, Summary, check_host};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 256, ..ProptestConfig::default() })]
    #[test]
    fn nothing_that_a_host_writes_reaches_past_its_own_memory(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        check_host(&bytes, None).unwrap();
    }
}

fn inputs(count: usize) -> Vec<Vec<u8>> {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(Config::default().rng_algorithm));
    let inputs = prop::collection::vec(any::<u8>(), 2000..3000);
    (0..count).map(|_| inputs.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn the_oracle_reaches_what_it_is_for() {
    let mut sum = Summary::default();
    for bytes in inputs(300) {
        let one = check_host(&bytes, None).unwrap();
        sum.requests += one.requests;
        sum.payloads += one.payloads;
        sum.completions += one.completions;
        sum.violations += one.violations;
        sum.changed += one.changed;
    }
    assert!(sum.requests > 300 && sum.payloads > 300 && sum.completions > 300, "{sum:?}");
    assert!(sum.violations > 3 && sum.changed > 100, "{sum:?}");
}

#[test]
fn planted_mistakes_are_caught() {
    for plant in [Plant::TrustHead, Plant::NoReserve, Plant::ReadTwice] {
        let caught = inputs(400).iter().filter(|bytes| check_host(bytes, Some(plant)).is_err()).count();
        assert!(caught > 0, "{plant:?} is not caught");
    }
}
