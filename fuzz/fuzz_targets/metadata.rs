//! Device metadata as a store gives them back; those that can be read open a device.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| willow_device::testing::check_metadata(bytes));
