//! The one way in which a test says that it cannot run on this machine.
//!
//! What always holds: a skipped test prints one line `SKIPPED test: why`, past the harness, which hides what passing tests print;
//! `make test` counts these lines. In continuous integration (`CI` is set) a skipped test fails.
//!
//! Who may call it: tests of every crate. `tests/tests/tidy.rs` refuses any other way to skip.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Bit of `CAP_SYS_ADMIN` in a process' set of capabilities: mounting and loop devices need it, and a container's root lacks it.
const CAP_SYS_ADMIN: u32 = 21;

/// Says that a test is skipped and why.
///
/// # Panics
/// In continuous integration, where nothing may be skipped.
#[track_caller]
pub fn skip(test: &str, why: &str) {
    assert!(!is_ci(std::env::var_os("CI").as_deref()), "{test} cannot run here, and CI skips nothing: {why}");
    // Nobody may be listening, which is no failure of the test. One write, so that lines of several tests do not mix.
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

/// True where the variable `CI` says that this is continuous integration.
fn is_ci(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !["", "0", "false"].map(OsStr::new).contains(&value))
}

/// True where a program is installed, be it only for root.
pub fn has(program: &str) -> bool {
    let folders = std::env::var("PATH").unwrap_or_default();
    folders.split(':').chain(["/usr/sbin", "/sbin"]).any(|folder| Path::new(folder).join(program).exists())
}

/// True where this process is root's.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|this| std::os::unix::fs::MetadataExt::uid(&this) == 0)
}

/// Why a loop device cannot be made and mounted here; `None` where it can.
pub fn missing_for_loop_mounts() -> Option<String> {
    if !is_root() {
        return Some("it is not run as root".to_owned());
    }
    if !may_administer(&fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        return Some("this container's root may not mount (no CAP_SYS_ADMIN)".to_owned());
    }
    opens("/dev/loop-control").or_else(|| programs(&["losetup", "mount", "umount"]))
}

/// Why a FUSE file cannot be made a loop device and mounted here; `None` where it can.
pub fn missing_for_fuse_mounts() -> Option<String> {
    missing_for_loop_mounts().or_else(|| opens("/dev/fuse"))
}

/// Which of these programs is not installed, as a reason.
pub fn programs(names: &[&str]) -> Option<String> {
    let missing = names.iter().find(|name| !has(name))?;
    Some(format!("{missing} is not installed (scripts/bootstrap --tests installs it)"))
}

fn opens(device: &str) -> Option<String> {
    // In a container the node may be there and closed to it.
    let opened = fs::OpenOptions::new().read(true).write(true).open(device);
    opened.err().map(|error| format!("{device} cannot be opened: {error}"))
}

fn may_administer(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    capabilities.is_some_and(|capabilities| capabilities >> CAP_SYS_ADMIN & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    #[test]
    #[ignore = "the child of what_is_skipped_is_said_and_fails_in_ci"]
    fn child_that_skips() {
        skip("child_that_skips", "this is what it is for");
    }

    fn child(ci: Option<&str>) -> Output {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "tests::child_that_skips"]).env_remove("CI");
        command.envs(ci.map(|value| ("CI", value))).output().expect("it runs")
    }

    #[test]
    fn what_is_skipped_is_said_and_fails_in_ci() {
        for ci in [None, Some(""), Some("false"), Some("0")] {
            let output = child(ci);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "CI={ci:?}: {said}");
            assert_eq!(said, "SKIPPED child_that_skips: this is what it is for\n", "CI={ci:?}");
        }
        for ci in ["true", "1", "yes", "anything"] {
            let output = child(Some(ci));
            assert!(!output.status.success(), "CI={ci}");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("CI skips nothing: this is what it is for"), "CI={ci}: {said}");
        }
    }

    #[test]
    fn capabilities_are_read() {
        assert!(may_administer("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        // What a container's root has by default.
        assert!(!may_administer("Name:\tx\nCapEff:\t00000000a80425fb\n"));
        assert!(!may_administer(""));
    }
}
