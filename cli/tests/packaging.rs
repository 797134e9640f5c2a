//! What `make install` and `make deb` install: pages for every command, a unit whose program and configuration work, a package that
//! unpacks to the same.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Folder, Public, Served, willow};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder as `make build` leaves it; what is linked with programs is not looked at here.
fn built(folder: &Folder) -> PathBuf {
    let bin = folder.0.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_willow"), bin.join("willow")).unwrap();
    for file in ["libwillow.so", "libwillow.a", "libwillow_preload.so", "libwillow_sqlite.so", "libwillow.h"] {
        std::fs::write(bin.join(file), file).unwrap();
    }
    bin
}

fn script(name: &str, bin: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(root().join("scripts").join(name));
    let output = command
        .args(arguments)
        .env("WILLOW_BIN", bin)
        .env("WILLOW_DEB_OUT", bin)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .output()
        .unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Commands that `--help` of a command lists.
fn below(command: &[&str]) -> Vec<String> {
    let output = willow().args(command).arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

/// Every command, with its words.
fn commands() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut left: Vec<Vec<String>> = below(&[]).into_iter().map(|name| vec![name]).collect();
    while let Some(command) = left.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        left.extend(below(&words).into_iter().map(|name| [command.clone(), vec![name]].concat()));
        all.push(command);
    }
    all
}

#[test]
fn the_reference_names_every_command() {
    let text = std::fs::read_to_string(root().join("docs/cli.md")).unwrap();
    let all = commands();
    assert!(all.len() > 40, "{}", all.len());
    for command in all.iter().filter(|command| command.len() <= 2) {
        // A row of the table has a command's first word, and all its second words.
        let row = text.lines().find(|line| {
            line.starts_with('|')
                && line.contains(&format!("`willow {}", command[0]))
                && line.contains(&**command.last().unwrap())
        });
        assert!(row.is_some(), "docs/cli.md has no row with `willow {}`", command.join(" "));
    }
}

#[test]
fn what_is_installed_is_whole_and_its_unit_starts_a_device() {
    let folder = Folder::new();
    let (bin, stage) = (built(&folder), folder.0.join("stage"));
    script("install", &bin, &[stage.to_str().unwrap(), "/usr"]);
    let pages: BTreeSet<String> = std::fs::read_dir(stage.join("usr/share/man/man1"))
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    for command in commands() {
        assert!(pages.contains(&format!("willow-{}.1.gz", command.join("-"))), "{command:?}");
    }
    let unit = std::fs::read_to_string(stage.join("usr/lib/systemd/system/willow.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[1..], ["serve", "--config", "/etc/willow/willow.toml"]);
    assert!(stage.join(words[0].trim_start_matches('/')).exists(), "{}", words[0]);

    // The configuration that comes with it, at other places.
    let text = std::fs::read_to_string(root().join("packaging/willow.toml")).unwrap();
    let here = |name: &str| folder.path(name);
    let text = text.replace("/var/lib/willow", &here("data")).replace("/run/willow/socket", &here("socket"));
    let config = folder.file("willow.toml", text.as_bytes());
    let device = Served::start(&["--config", &config, "--size", "64M", "--kv-size", "0"]);
    assert!(device.ready.contains(&here("socket")), "{}", device.ready);
    device.end();
}

/// What the configuration says of keys is done as it stands there, by root, and the unit's user starts the device with it.
#[test]
fn the_recipe_for_keys_makes_some_that_the_service_can_read() {
    if !willow_skip::is_root() {
        return willow_skip::skip("the_recipe_for_keys_makes_some_that_the_service_can_read", "not root");
    }
    const SERVICE: u32 = 54_003;
    let program = Public::new();
    let text = std::fs::read_to_string(root().join("packaging/willow.toml")).unwrap();
    let places = [("/etc/willow", ""), ("/var/lib/willow", "data"), ("/run/willow/socket", "run/socket")];
    let text =
        places.iter().fold(text, |text, (place, name)| text.replace(place, program.path(name).trim_end_matches('/')));
    let recipe = text.lines().find_map(|line| line.strip_prefix("#   ")).expect("the configuration has a recipe");
    let recipe = recipe.replace("chown willow:", &format!("chown {SERVICE}:{SERVICE}"));
    let path = format!("{}:{}", program.path(""), std::env::var("PATH").unwrap());
    let made = Command::new("sh").args(["-c", &recipe]).env("PATH", path).output().unwrap();
    assert!(made.status.success(), "{recipe}: {made:?}");
    let text = text.replace("# host_key", "host_key");
    let (config, data) = (program.path("willow.toml"), program.path("data"));
    std::fs::write(&config, text).unwrap();
    for folder in [data, program.path("run")] {
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(SERVICE), Some(SERVICE)).unwrap();
    }
    let device = Served::start_as(SERVICE, &program, &["--config", &config, "--size", "64M", "--kv-size", "0"]);
    let key = program.path("host.key");
    device.ok(&["ns", "list", "--key", &key]);
    assert!(device.fails(&["ns", "list"]).contains("Connect Invalid Host"), "it asks for the key");
    device.end();
}

/// A word of an instruction in the container file: a file's path, without the slash in front.
fn container_file(instruction: &str, word: usize) -> String {
    let text = std::fs::read_to_string(root().join("packaging/Containerfile")).unwrap();
    let words = text.lines().find_map(|line| line.strip_prefix(instruction)).expect("it has the instruction").trim();
    let words: Vec<String> = serde_json::from_str(words).unwrap();
    words[word].trim_start_matches('/').to_owned()
}

#[test]
fn the_package_unpacks_to_what_is_installed() {
    if !["dpkg", "dpkg-deb"].iter().all(|tool| Command::new(tool).arg("--version").output().is_ok()) {
        return willow_skip::skip("the_package_unpacks_to_what_is_installed", "no dpkg-deb");
    }
    let folder = Folder::new();
    let bin = built(&folder);
    let said = script("deb", &bin, &[]);
    let package = said.lines().last().unwrap();
    let out = folder.path("out");
    assert!(Command::new("dpkg-deb").args(["--extract", package, &out]).status().unwrap().success());
    for file in [
        "usr/bin/willow",
        "usr/lib/systemd/system/willow.service",
        "usr/lib/sysusers.d/willow.conf",
        "usr/share/bash-completion/completions/willow",
        "usr/share/zsh/site-functions/_willow",
        "usr/share/fish/vendor_completions.d/willow.fish",
        "etc/willow/willow.toml",
        "usr/share/man/man1/willow.1.gz",
        // What the container image runs.
        &container_file("ENTRYPOINT", 0),
        &container_file("CMD", 2),
    ] {
        assert!(Path::new(&out).join(file).exists(), "{file}");
    }
    let version = Command::new(Path::new(&out).join("usr/bin/willow")).arg("--version").output().unwrap();
    assert!(version.status.success());
    let field = |name: &str| {
        let output = Command::new("dpkg-deb").args(["--field", package, name]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(field("Package"), "willow");
    assert!(String::from_utf8(version.stdout).unwrap().contains(&field("Version")));
}
