//! A host that writes anything into its shared memory, at any moment, against the device's end of an endpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = willow_shm_front::testing::check_host(bytes, None) {
        panic!("{what}");
    }
});
