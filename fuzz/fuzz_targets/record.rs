//! The envelope that every file of a data folder begins with.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| willow_device::testing::check_record(bytes));
