//! Tests of files that are read and written directly, of their agent and of what users try against both, on a device of flash (preset `jasmine`,
//! FTL `page`): each is the one of its own file, where it runs on NV memory. A stage of this program has flash
//! ([`willow_tests::stage::is_on_flash`]).
//!
//! These are not here:
//! - of `direct_attacks`, ways that are tried on xfs, by readers, and under agents that forget a guard: they hold the agent, which is the same on any
//!   medium, to its promises; those on ext4 are here;
//! - `agent_crashes`, `agent_failures`, `agent_restarts`, `agent_waits`, `direct_freezes`, `direct_refusals`, `direct_privileges` and `direct_waits`, for the same reason;
//! - kills of the device, after which what was not flushed is gone: `kills`, and `mount` of the command.

#[path = "agent.rs"]
mod agent;
#[path = "direct_attacks.rs"]
mod direct_attacks;
#[path = "direct_files.rs"]
mod direct_files;

use willow_tests::daemon::binary;
use willow_tests::stage::{Stage, or_skip, tool};

#[test]
fn a_stage_of_this_program_has_flash() {
    let Some(stage) = or_skip("a_stage_of_this_program_has_flash", Stage::ext4()) else { return };
    let device = stage.path("device");
    let told = tool(&binary().display().to_string(), &["stat", "--json", "--target", &device]).expect("statistics");
    assert!(told.contains("\"ftl\":\"page\"") || told.contains("\"ftl\": \"page\""), "{told}");
}
