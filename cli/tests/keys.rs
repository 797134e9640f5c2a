//! Hosts with keys and without, as commands see them.

mod support;

use std::process::Stdio;
use std::time::Duration;
use support::{Folder, Served, fails, willow};

const HOST: &str = "nqn.2025-01.org.example:one";

#[test]
fn a_device_with_host_keys_serves_those_hosts_alone() {
    let folder = Folder::new();
    let (key, stolen, other) = (folder.path("key"), folder.path("stolen"), folder.path("other"));
    for (file, host) in [(&key, HOST), (&stolen, HOST), (&other, "nqn.2025-01.org.example:two")] {
        let made = willow().args(["key", "new", file, "--host", host, "--both"]).output().unwrap();
        assert_eq!(String::from_utf8(made.stdout).unwrap(), format!("host {host}\n"));
    }
    // By the file of settings, the other way than by a flag.
    let settings = folder.file("willow.toml", format!("host_key = [\"{key}\"]\n").as_bytes());
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M", "--config", &settings]);
    let listed = device.ok(&["ns", "list", "--key", &key]);
    assert!(listed.contains("kv"), "{listed}");
    let bench = ["bench", "io", "--range", "1M", "--seconds", "0.2", "--warm-up", "0", "--depths", "1", "--key", &key];
    assert!(device.run(&bench).status.success(), "the polled initiator proves itself, too");
    let named = willow().args(["ns", "list", "--target", &device.address]).env("WILLOW_KEY", &key).output().unwrap();
    assert_eq!(String::from_utf8(named.stdout).unwrap(), listed);

    let error = device.fails(&["ns", "list"]);
    assert!(error.contains("Connect Invalid Host") && error.contains("--key FILE"), "{error}");
    assert!(device.fails(&["ns", "list", "--key", &other]).contains("Connect Invalid Host"));
    let error = device.fails(&["ns", "list", "--key", &stolen]);
    assert!(error.contains("authentication failed"), "{error}");
    // Secrets are in no message.
    let text = std::fs::read_to_string(&stolen).unwrap();
    for secret in text.split('"').filter(|part| part.starts_with("DHHC-1:")) {
        assert!(!error.contains(&secret[10..20]));
    }
    device.end();
}

#[test]
fn keys_are_read_again_while_the_device_runs() {
    let folder = Folder::new();
    let (one, two) = (folder.path("one"), folder.path("two"));
    for file in [&one, &two] {
        assert!(willow().args(["key", "new", file]).stdout(Stdio::null()).status().unwrap().success());
    }
    let settings = |text: String| folder.file("willow.toml", text.as_bytes());
    let config = settings(format!("host_key = [\"{one}\"]\n"));
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0", "--config", &config]);
    let is_let_in = |key: &str| device.run(&["ns", "list", "--key", key]).status.success();
    assert!(is_let_in(&one) && !is_let_in(&two));
    // What cannot be read changes nothing; then the second host has a key, and then the first has none.
    settings("host_key = [\"/nowhere\"]\n".to_owned());
    device.signal("-HUP");
    settings(format!("host_key = [\"{one}\", \"{two}\"]\n"));
    device.signal("-HUP");
    eventually("the second host is let in", || is_let_in(&two));
    assert!(is_let_in(&one));
    settings(format!("host_key = [\"{two}\"]\n"));
    device.signal("-HUP");
    eventually("the first host is not let in", || !is_let_in(&one));
    assert!(is_let_in(&two));
    device.end();

    // With nothing to read again it is a signal to end.
    let mut plain = Served::start(&["--ram", "--size", "64M", "--kv-size", "0"]);
    plain.signal("-HUP");
    assert!(plain.child.wait().unwrap().success());
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2400 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: not within 2400 attempts");
}

#[test]
fn key_files_are_checked() {
    let folder = Folder::new();
    let key = folder.path("key");
    assert!(willow().args(["key", "new", &key]).status().unwrap().success());
    assert!(fails(&["key", "new", &key]).contains("cannot make"));
    assert!(fails(&["key", "new", &folder.path("x"), "--host", "me"]).contains("host NQN"));
    assert!(fails(&["serve", "--ram", "--host-key", &key, "--host-key", &key]).contains("more than one key"));
    let open = folder.file("open", &std::fs::read(&key).unwrap());
    assert!(fails(&["serve", "--ram", "--host-key", &open]).contains("chmod 600"));
    assert!(fails(&["ns", "list", "--key", &open]).contains("chmod 600"));
    assert!(fails(&["ns", "list", "--key", &key, "--target", "/run/none.sock"]).contains("leave --key out"));
    assert!(fails(&["ns", "list", "--key", &folder.path("none")]).contains("cannot read the key file"));
}

#[test]
fn hosts_with_a_key_for_tls_are_served_by_it_alone() {
    let folder = Folder::new();
    let (key, stolen, secret) = (folder.path("key"), folder.path("stolen"), folder.path("secret"));
    let make = |file: &str, flags: &[&str]| {
        assert!(willow().args(["key", "new", file, "--host", HOST]).args(flags).status().unwrap().success());
    };
    make(&key, &["--tls", "--hash", "sha384"]);
    make(&stolen, &["--tls-only"]);
    let text = std::fs::read_to_string(&key).unwrap();
    let without: String =
        text.lines().filter(|line| !line.starts_with("psk")).map(|line| format!("{line}\n")).collect();
    std::fs::write(&secret, without).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();

    let checked = willow().args(["key", "check", &key, "--subsystem", "nqn.2025-01.org.example:x"]).output().unwrap();
    let checked = String::from_utf8(checked.stdout).unwrap();
    let identity = format!("identity NVMe1R02 {HOST} nqn.2025-01.org.example:x ");
    for part in [&format!("host {HOST}\n"), "DH-HMAC-CHAP", "TLS_AES_256_GCM_SHA384", &identity] {
        assert!(checked.contains(part), "{checked}");
    }
    assert!(fails(&["key", "check", &folder.file("bad", b"psk = 1")]).contains("chmod 600"));

    for flags in [&[][..], &["--tls", "required"]] {
        let arguments = [&["--ram", "--size", "64M", "--kv-size", "64M", "--host-key", &key][..], flags].concat();
        let device = Served::start(&arguments);
        assert!(device.ok(&["ns", "list", "--key", &key]).contains("kv"));
        assert!(device.run_with(&["kv", "put", "alpha", "-", "--key", &key], &[7; 100_000]).status.success());
        assert_eq!(device.run(&["kv", "get", "alpha", "--key", &key]).stdout, [7; 100_000]);
        let bench =
            ["bench", "io", "--range", "1M", "--seconds", "0.2", "--warm-up", "0", "--depths", "1,32", "--key", &key];
        let output = device.run(&bench);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let error = device.fails(&["ns", "list", "--key", &stolen]);
        assert!(error.contains("TLS"), "{error}");
        let psk = std::fs::read_to_string(&stolen).unwrap();
        let psk = psk.split('"').find(|part| part.starts_with("NVMeTLSkey-1:")).unwrap();
        assert!(!error.contains(&psk[16..30]));
        let error = device.fails(&["ns", "list", "--key", &secret]);
        let refused = if flags.is_empty() { "Connect Invalid Host" } else { "no device answers" };
        assert!(error.contains(refused), "{error}");
        device.end();
    }
    assert!(fails(&["serve", "--ram", "--tls", "required"]).contains("--host-key"));
    assert!(fails(&["serve", "--ram", "--tls", "required", "--host-key", &secret]).contains("no key for it"));
    assert!(fails(&["serve", "--ram", "--tls", "maybe"]).contains("permitted or required"));
}
