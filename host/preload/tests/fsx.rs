//! fsx, the exerciser of file systems, with the library before it, on a real ext4 on the device: random reads, writes, truncations, mappings,
//! punched holes, copies and syncs of one file, each checked against what the file has to hold. Skipped, with a line that says why, where fsx is
//! missing, or as the stage says.

use std::fs;
use std::process::Command;
use willow_tests::stage::{By, PRELOAD, Stage, has, is_frozen, library, or_skip, skip, within_seconds};

/// What fsx does, each this often in proportion. Without mappings, after which a file is the kernel's for good; and with all.
const WITHOUT_MAPPINGS: &str = "flen = 262144\n[opsize]\nmax = 65536\n[weights]\nread = 10\nwrite = 10\nmapread = 0\nmapwrite = 0\n\
    truncate = 0.3\nfsync = 1\nfdatasync = 1\npunch_hole = 0.2\nsendfile = 0.5\ncopy_file_range = 0.3\nclose_open = 0.3\ninvalidate = 0\n";
const WITH_ALL: &str = "flen = 262144\n[opsize]\nmax = 65536\n[weights]\nread = 10\nwrite = 10\nmapread = 3\nmapwrite = 3\ntruncate = 2\n\
    fsync = 1\nfdatasync = 1\nposix_fallocate = 1\npunch_hole = 1\nsendfile = 1\nposix_fadvise = 1\ncopy_file_range = 1\nclose_open = 1\n";

/// Runs it; how many reads and writes were direct.
fn exercise(stage: &Stage, name: &str, config: &str, (seed, count): (u32, u32), is_eager: bool) -> u64 {
    let (settings, report) = (stage.path("fsx.toml"), stage.path("report"));
    fs::write(&settings, config).expect("written");
    let _ = fs::remove_file(&report);
    let mut command = Command::new("timeout");
    command.args(["240", "fsx", "-S", &seed.to_string(), "-N", &count.to_string(), "-f", &settings, name]);
    command.env("LD_PRELOAD", library(PRELOAD)).env("WILLOW_AGENT", stage.path("agent"));
    command.env("WILLOW_DIRECT", stage.path("files")).env("WILLOW_DIRECT_REPORT", &report);
    command.env("RUST_LOG", "error").current_dir(stage.path("files"));
    if stage.address.is_none() {
        command.env("WILLOW_DEVICE", stage.path("device"));
    }
    if is_eager {
        command.env("WILLOW_PRELOAD_EAGER", "1");
    }
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}, eager {is_eager}: {}: {said}", output.status);
    within_seconds("the file thaws", || !is_frozen(&stage.on_it(name)));
    let report = fs::read_to_string(report).unwrap_or_default();
    let figure = |name: &str| {
        let (_, rest) = report.split_once(&format!("\"{name}\":")).expect("the figure");
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().expect("a number")
    };
    eprintln!("seed {seed}, eager {is_eager}: {report}");
    figure("direct_reads") + figure("direct_writes")
}

fn exercises(test: &str, by: By, count: u32) {
    if !has("fsx") {
        return skip(test, "fsx is not installed (scripts/bootstrap --tests)");
    }
    let Some(stage) = or_skip(test, Stage::ext4_by(by)) else { return };
    for (seed, is_eager) in [(1, true), (2, true), (3, false), (4, false)] {
        let direct = exercise(&stage, &format!("file-{seed}"), WITHOUT_MAPPINGS, (seed, count), is_eager);
        assert!(!is_eager || direct > u64::from(count) / 20, "seed {seed}: {direct} were direct");
    }
    for seed in 5..8 {
        exercise(&stage, &format!("file-{seed}"), WITH_ALL, (seed, count), true);
    }
}

#[test]
fn fsx_finds_every_byte_where_it_was_written() {
    exercises("fsx_finds_every_byte_where_it_was_written", By::Memory, 4000);
}

#[test]
fn fsx_finds_every_byte_over_the_network() {
    exercises("fsx_finds_every_byte_over_the_network", By::Network, 1000);
}
