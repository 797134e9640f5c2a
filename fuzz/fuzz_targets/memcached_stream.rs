//! What a client of memcached's protocols may send.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| willow_memcached::testing::check_stream(bytes));
