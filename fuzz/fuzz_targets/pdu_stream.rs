//! A stream of NVMe/TCP bytes into the decoder, as host and as controller, before and after initialization, with and without
//! digests: what the first byte says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((setup, stream)) = bytes.split_first() {
        willow_wire::testing::check_stream(*setup, stream);
    }
});
