//! The pointer by which imports reach their SPU-OS, with its own tests, in a crate that Miri can run (`scripts/miri`): the device's has the
//! app runtime beneath it.

#[path = "../../src/spu/reach.rs"]
mod reach;
