//! Bytes as a block trace of every format, replayed on a small namespace.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| willow_sim::replay::testing::check_trace(bytes));
