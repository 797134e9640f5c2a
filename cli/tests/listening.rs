//! Where a device listens, and who of its own machine may act as a host.

mod support;

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Output;
use support::{Folder, Public, Served, fails, failure, willow};
use willow_wire::pdu::{Encoder, InitializeRequest};
use willow_wire::spec::fabrics::{self, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData};
use willow_wire::spec::opcode::admin;
use willow_wire::spec::{Sgl, SubmissionEntry, property};

/// Users of no account.
const OWNER: u32 = 54_001;
const OTHER: u32 = 54_002;

fn as_user(user: u32, program: &Public, arguments: &[&str], device: &Served) -> Output {
    let mut command = program.willow();
    command.args(arguments).args(["--target", &device.address]);
    command.uid(user).gid(user).current_dir("/").output().unwrap()
}

#[test]
fn users_of_this_machine_are_told_apart_where_hosts_have_no_keys() {
    if !willow_skip::is_root() {
        return willow_skip::skip("users_of_this_machine_are_told_apart_where_hosts_have_no_keys", "not root");
    }
    let program = Public::new();
    let list = ["ns", "list"];
    let refused = |output: &Output| failure(&list, output);
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0"]);
    device.ok(&list);
    let error = refused(&as_user(OTHER, &program, &list, &device));
    assert!(error.contains("Connect Invalid Host") && error.contains("root"), "{error}");
    let bench = ["bench", "io", "--range", "1M", "--seconds", "0.2", "--warm-up", "0", "--depths", "1"];
    assert!(!as_user(OTHER, &program, &bench, &device).status.success(), "the polled initiator is refused, too");
    device.end();

    // The user who runs it may, and root.
    let owned = Served::start_as(OWNER, &program, &["--ram", "--size", "64M", "--kv-size", "0"]);
    owned.ok(&list);
    assert!(as_user(OWNER, &program, &list, &owned).status.success());
    assert!(refused(&as_user(OTHER, &program, &list, &owned)).contains("Connect Invalid Host"));
    owned.end();

    let open = Served::start(&["--ram", "--size", "64M", "--kv-size", "0", "--trust-loopback"]);
    assert!(as_user(OTHER, &program, &list, &open).status.success());
    open.end();

    // With keys it is the key that counts.
    let key = program.path("key");
    assert!(willow().args(["key", "new", &key]).status().unwrap().success());
    let keyed = Served::start(&["--ram", "--size", "64M", "--kv-size", "0", "--host-key", &key]);
    std::os::unix::fs::chown(&key, Some(OTHER), Some(OTHER)).unwrap();
    let output = as_user(OTHER, &program, &["ns", "list", "--key", &key], &keyed);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    keyed.end();
}

/// Of a socket that closes the kernel names root: commands that lie in it already must not be root's.
#[test]
fn who_closes_before_being_looked_at_is_not_taken_for_root() {
    if !willow_skip::is_root() {
        return willow_skip::skip("who_closes_before_being_looked_at_is_not_taken_for_root", "not root");
    }
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0"]);
    // All that makes a controller and deletes namespace 1, sent at once; then the end.
    let subsystem = device.ready.split_whitespace().find_map(|word| word.strip_prefix("nqn=")).unwrap();
    let bytes = deletion_of_namespace_1(subsystem);
    let send = |closing: Option<Shutdown>| {
        device.signal("-STOP");
        let mut stream = TcpStream::connect(&device.address).unwrap();
        stream.write_all(&bytes).unwrap();
        if let Some(how) = closing {
            stream.shutdown(how).unwrap();
        }
        device.signal("-CONT");
        let is_there = || String::from_utf8(device.run(&["ns", "list"]).stdout).unwrap().contains("nvm");
        let begun = std::time::Instant::now();
        // Who stays is waited for; of who has gone it is looked a few times whether anything comes of it.
        let longest = std::time::Duration::from_millis(if closing.is_none() { 120_000 } else { 300 });
        while is_there() && begun.elapsed() < longest {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        is_there()
    };
    for _ in 0..3 {
        assert!(send(Some(Shutdown::Write)), "namespace 1 is still there");
        assert!(send(Some(Shutdown::Both)), "namespace 1 is still there");
    }
    // The same from root, who stays: the bytes do what they are meant to.
    assert!(!send(None), "the bytes delete nothing, so that nothing was tested");
    device.end();
}

fn deletion_of_namespace_1(subsystem: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::initialize_request(&mut bytes, &InitializeRequest::default());
    let encoder = Encoder::default();
    let connect = ConnectCommand { record_format: 0, queue_id: 0, queue_size: 31, attributes: 0, keep_alive_ms: 0 };
    let data = ConnectData {
        host_id: [7; 16],
        controller_id: CONTROLLER_DYNAMIC,
        subsystem_nqn: subsystem.to_owned(),
        host_nqn: "nqn.2025-01.org.example:hasty".to_owned(),
    };
    let entry = connect.to_entry().with_cid(1).with_sgl(Sgl::in_capsule(0, 1024));
    encoder.command_with_data(&mut bytes, &entry, &data.to_bytes()[..]);
    for value in [0x46_0060, 0x46_0061] {
        encoder.command_with_data(&mut bytes, &fabrics::property_set(property::CC, value, false).with_cid(2), &[]);
    }
    let delete = SubmissionEntry::new(admin::NAMESPACE_MANAGEMENT).with_cid(3).with_nsid(1).with_cdw(10, 1);
    encoder.command_with_data(&mut bytes, &delete, &[]);
    bytes
}

#[test]
fn a_device_listens_at_several_addresses_or_at_none() {
    let folder = Folder::new();
    let key = folder.path("key");
    assert!(willow().args(["key", "new", &key, "--tls"]).status().unwrap().success());
    // `Served::start` names the first.
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0", "--listen", "127.0.0.1:0"]);
    assert_eq!(device.address.split(',').count(), 2, "{}", device.ready);
    for address in device.address.split(',') {
        assert!(willow().args(["ns", "list", "--target", address]).status().unwrap().success());
    }
    device.end();

    // One in the clear for hosts with a secret alone, one for TLS.
    let plain = folder.path("plain");
    assert!(willow().args(["key", "new", &plain]).status().unwrap().success());
    let arguments = ["--ram", "--size", "64M", "--kv-size", "0", "--listen", "tls:127.0.0.1:0", "--host-key", &key];
    let device = Served::start(&[&arguments[..], &["--host-key", &plain]].concat());
    let addresses: Vec<&str> = device.address.split(',').collect();
    let list = |address: &str, key: &str| {
        willow().args(["ns", "list", "--target", address, "--key", key]).output().unwrap().status.success()
    };
    assert!(list(addresses[0], &plain) && !list(addresses[1], &plain), "in the clear at the first alone");
    assert!(list(addresses[0], &key) && list(addresses[1], &key));
    device.end();

    let socket = std::env::temp_dir().join(format!("willow-listen-{}.sock", std::process::id())).display().to_string();
    let mut child = willow()
        .args(["serve", "--ram", "--size", "64M", "--kv-size", "0", "--listen", "none", "--log", "error"])
        .args(["--socket", &socket])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let output = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut ready).unwrap();
    assert!(ready.contains(" listen=- socket="), "{ready}");
    assert!(willow().args(["ns", "list", "--target", &socket]).status().unwrap().success());
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let inodes: Vec<String> =
        sockets.filter_map(|fd| Some(std::fs::read_link(fd.ok()?.path()).ok()?.display().to_string())).collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listens = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"0A") && fields.get(9).is_some_and(|inode| inodes.contains(&format!("socket:[{inode}]")))
    };
    assert_eq!(table.lines().find(listens), None, "it listens by TCP");
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_file(&socket);
}

#[test]
fn what_cannot_be_listened_on_is_told_before_anything_is_begun() {
    let folder = Folder::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = busy.local_addr().unwrap().to_string();
    let media = folder.path("media");
    let base = ["serve", "--media", &media, "--log", "error"];
    for (more, expected) in [
        (vec!["--listen", "127.0.0.1:0", "--listen", taken.as_str()], "cannot listen on 127.0.0.1"),
        (vec!["--listen", "127.0.0.1:0", "--metrics", taken.as_str()], "--metrics"),
        (vec!["--listen", "127.0.0.1:0", "--socket", "/does/not/exist/socket"], "/does/not/exist"),
        (vec!["--listen", "none"], "--socket"),
        (vec!["--listen", "none", "--listen", "127.0.0.1:0", "--socket", "./s"], "no other --listen"),
        (vec!["--listen", "tls:127.0.0.1:0"], "--host-key"),
    ] {
        let error = fails(&[&base[..], &more].concat());
        assert!(error.contains(expected), "{more:?}: {error}");
        assert!(!std::path::Path::new(&media).exists(), "{more:?}: a device was made");
    }
    let output = willow().args(["serve", "--listen", "here"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no socket address"));
}
