//! Modules into the device's way of installing them, and calls to those that it lets in. An input is a module, or, where it
//! has 8 bytes, a seed by which a valid module is damaged.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use willow_device::testing::{ModuleOracle, mutate, neighbour_module};

thread_local! {
    // One device for all inputs: each module is removed before the next comes.
    static ORACLE: RefCell<ModuleOracle> = RefCell::default();
}

fuzz_target!(|bytes: &[u8]| {
    ORACLE.with_borrow_mut(|oracle| {
        match <[u8; 8]>::try_from(bytes) {
            Ok(seed) => oracle.check(&mutate(&neighbour_module(), u64::from_le_bytes(seed))),
            Err(_) => oracle.check(bytes),
        };
    });
});
