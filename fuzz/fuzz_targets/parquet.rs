//! Bytes as a Parquet file, of which all columns are summed.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    columns_host::testing::check_parquet(bytes);
});
