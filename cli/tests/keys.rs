//! Hosts with keys and without, as commands see them.

mod support;

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
    let bench = ["bench", "io", "--range", "1M", "--seconds", "0.05", "--warm-up", "0", "--depths", "1", "--key", &key];
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
