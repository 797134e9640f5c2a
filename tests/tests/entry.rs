//! `make test` on a machine that lacks what tests need: it installs that, as an ordinary user by sudo; where that cannot be, it goes on
//! and says so, but not in continuous integration. Programs that install and build are stand-ins that record how they were called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use willow_tests::scratch::Scratch;

/// What the scripts call, of this machine.
const REAL: [&str; 21] = [
    "bash", "env", "sed", "grep", "awk", "mktemp", "tee", "rm", "dirname", "sort", "cat", "stat", "xargs", "cut",
    "uname", "ls", "head", "tail", "tr", "touch", "true",
];
/// What building needs; there, and never run.
const PRESENT: [&str; 6] = ["cc", "gcc", "clang", "wasm-ld", "wasm-opt", "rustup"];

/// A machine with what building needs and without what tests need.
struct Machine(Scratch);

impl Machine {
    fn new(uid: u32) -> Self {
        let machine = Machine(Scratch::new("entry").expect("a folder"));
        for folder in ["bin", "home"] {
            fs::create_dir(machine.path(folder)).expect("a folder");
        }
        for name in REAL {
            let found =
                ["/usr/bin", "/bin"].iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
            let found = found.unwrap_or_else(|| panic!("{name} is on every machine"));
            std::os::unix::fs::symlink(found, machine.path("bin").join(name)).expect("a link");
        }
        PRESENT.iter().for_each(|name| machine.program(name, "exit 99"));
        machine.program("id", &format!("echo {uid}"));
        machine.program("cargo", "echo cargo \"$@\" >> \"$CALLS\"");
        machine.program("rustfmt", "exit 0");
        fs::create_dir_all(machine.path("target/release")).expect("a folder");
        fs::write(machine.path("target/release/willow"), "a release build that is there").expect("written");
        let channel = fs::read_to_string(repository().join("rust-toolchain.toml")).expect("the toolchain's file");
        let channel =
            channel.lines().find_map(|line| line.strip_prefix("channel = ")).expect("a channel").trim_matches('"');
        let toolchain = machine.path("home").join(format!(".rustup/toolchains/{channel}-here"));
        fs::create_dir_all(toolchain.join("lib/rustlib/wasm32-unknown-unknown")).expect("a folder");
        fs::create_dir_all(toolchain.join("bin")).expect("a folder");
        for name in ["cargo", "rustfmt", "cargo-clippy"] {
            std::os::unix::fs::symlink(machine.path("bin").join("true"), toolchain.join("bin").join(name))
                .expect("a link");
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/bash\n{body}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// An apt that installs by recording it.
    fn with_apt(self) -> Self {
        self.program("apt-get", "echo apt-get \"$@\" >> \"$CALLS\"");
        self
    }

    fn with_sudo(self) -> Self {
        self.program("sudo", "echo sudo \"$1\" >> \"$CALLS\"; exec \"$@\"");
        self
    }

    fn test(&self, ci: Option<&str>) -> Output {
        let mut command = Command::new(repository().join("scripts/test"));
        command.env_clear().envs([
            ("PATH", self.path("bin")),
            ("HOME", self.path("home")),
            ("CALLS", self.path("calls")),
        ]);
        command.envs(ci.map(|ci| ("CI", ci))).env("CARGO_TARGET_DIR", self.path("target"));
        command.output().expect("it runs")
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn what_tests_need_is_installed_by_sudo_or_by_root() {
    for (machine, sudo) in [(Machine::new(1000).with_apt().with_sudo(), true), (Machine::new(0).with_apt(), false)] {
        let output = machine.test(None);
        assert!(output.status.success(), "{}", text(&output));
        let calls = machine.calls();
        let install = calls.lines().find(|line| line.starts_with("apt-get") && line.contains(" install "));
        let install = install.unwrap_or_else(|| panic!("nothing was installed:\n{calls}{}", text(&output)));
        // Programs below /usr/sbin are found there, whatever the path.
        for package in ["tshark", "fio", "sqlite3", "openssl", "qemu-system-x86"] {
            assert!(install.split(' ').any(|word| word == package), "{package}: {install}");
        }
        assert_eq!(calls.contains("sudo env"), sudo, "{calls}");
        assert!(calls.contains("cargo test --workspace --no-fail-fast"), "{calls}");
        assert!(calls.contains("cargo test --workspace --test kills"), "{calls}");
    }
}

#[test]
fn without_a_way_to_install_tests_go_on_but_not_in_continuous_integration() {
    for machine in [Machine::new(1000).with_apt(), Machine::new(0)] {
        let output = machine.test(None);
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("those that need it are skipped"), "{}", text(&output));
        assert!(machine.calls().contains("cargo test --workspace --no-fail-fast"), "{}", machine.calls());
        let output = machine.test(Some("true"));
        assert!(!output.status.success(), "{}", text(&output));
        assert_eq!(machine.calls().matches("cargo test --workspace --no-fail-fast").count(), 1, "{}", machine.calls());
    }
}

#[test]
fn what_is_skipped_is_counted_also_where_tests_run_one_by_one() {
    let machine = Machine::new(1000).with_apt().with_sudo();
    let said = "printf 'test here ... SKIPPED here: no FUSE\\nok\\nSKIPPED there: no root\\n'";
    machine.program("cargo", &format!("case \"$*\" in *no-fail-fast*) {said} ;; esac"));
    let output = text(&machine.test(None));
    assert!(output.contains(" 2 skipped, "), "{output}");
    assert!(output.contains("\nSKIPPED here: no FUSE\n"), "{output}");
    // Kills of what is shipped need a release build, which is not made for them.
    fs::remove_dir_all(machine.path("target/release")).expect("removed");
    let output = text(&machine.test(None));
    assert!(output.contains(" 3 skipped, ") && output.contains("\nSKIPPED kills of the release build"), "{output}");
}
