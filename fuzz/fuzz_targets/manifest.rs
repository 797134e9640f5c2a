//! The section willow.app of a module.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| willow_device::testing::check_manifest(bytes));
