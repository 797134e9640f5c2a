//! Tests of the device that are written for any medium, on banks of flash behind an FTL (preset `jasmine`, FTL `page`): each is the one of its own
//! file, where it runs on NV memory.
//!
//! These are not here, since no FTL would meet anything of them, or for the reason that is said:
//! - `bindings`, `transactions`, `upgrades`, `memory_totals`, `power_cut`: they hold the device's metadata and modules to their promises, on media that
//!   fail on purpose. Metadata lie beside the flash, in the same store. How an FTL itself is replaced is in `apps/tests/ftl_faults.rs`, and what
//!   a power cut does to flash in `sdk/flash/tests/power.rs` and `tests/tests/kills.rs`;
//! - `hardware_model` and `simulated_time`: they hold the model of NV memory to its figures. That of flash has `sim/tests/flash.rs`;
//! - `busy_victim`: it counts calls of the device, and flash takes more of them;
//! - `interface`, `mock`, `random_modules`: no bank is in them.

#![allow(clippy::duplicate_mod, reason = "each of the files below has what they share")]

#[path = "accelerators.rs"]
mod accelerators;
#[path = "core.rs"]
mod core_requests;
#[path = "fairness.rs"]
mod fairness;
#[path = "fillers.rs"]
mod fillers;
#[path = "generated_modules.rs"]
mod generated_modules;
#[path = "host_work.rs"]
mod host_work;
#[path = "hostile.rs"]
mod hostile;
#[path = "hostile_imports.rs"]
mod hostile_imports;
#[path = "hostile_programs.rs"]
mod hostile_programs;
#[path = "long_runs.rs"]
mod long_runs;
#[path = "overload.rs"]
mod overload;
#[path = "own_time.rs"]
mod own_time;
#[path = "partial_rights.rs"]
mod partial_rights;
#[path = "places.rs"]
mod places;
#[path = "planted_rights.rs"]
mod planted_rights;
#[path = "protection.rs"]
mod protection;
#[path = "remote_nv.rs"]
mod remote_nv;
#[path = "revocation.rs"]
mod revocation;
#[path = "settling.rs"]
mod settling;
#[path = "subscriptions.rs"]
mod subscriptions;
#[path = "waiting.rs"]
mod waiting;
