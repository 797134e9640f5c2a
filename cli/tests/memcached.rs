//! `willow memcached` as clients and operators have it: other people's tests of the protocol, and kills under load.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Folder, Served, willow};

/// A server process.
struct Memcached {
    child: Child,
    port: u16,
}

impl Memcached {
    fn start(target: &str, arguments: &[&str]) -> Self {
        let mut child = willow()
            .args(["memcached", "--target", target])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut ready).expect("a line");
        let port = ready.split_whitespace().find_map(|word| word.strip_prefix("listen=127.0.0.1:"));
        let port = port.and_then(|port| port.split(',').next()?.parse().ok());
        let Some(port) = port else { panic!("no ready line: {ready:?}") };
        Memcached { child, port }
    }

    fn end(mut self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().expect("kill").success());
        assert!(self.child.wait().expect("it ends").success(), "a clean end has status 0");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a line, and takes what comes up to that end.
fn ask(stream: &mut TcpStream, line: &[u8], end: &[u8]) -> Option<Vec<u8>> {
    stream.write_all(line).ok()?;
    let mut came = Vec::new();
    while !came.ends_with(end) {
        let mut more = [0; 4096];
        match stream.read(&mut more) {
            Ok(0) | Err(_) => return None,
            Ok(bytes) => came.extend_from_slice(&more[..bytes]),
        }
    }
    Some(came)
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    Some(stream)
}

#[test]
fn commands_go_in_and_out_over_both_ways_to_the_device() {
    let folder = Folder::new();
    let socket = folder.path("w.sock");
    let device = Served::start(&["--ram", "--size", "16M", "--socket", &socket]);
    for target in [socket.as_str(), device.address.as_str()] {
        let unix = folder.path("m.sock");
        let server = Memcached::start(target, &["--listen", "127.0.0.1:0", "--unix", &unix]);
        let mut stream = connect(server.port).expect("it listens");
        assert_eq!(ask(&mut stream, b"set k 1 0 5\r\nhello\r\n", b"\r\n").as_deref(), Some(&b"STORED\r\n"[..]));
        let got = ask(&mut stream, b"get k\r\n", b"END\r\n");
        assert_eq!(got.as_deref(), Some(&b"VALUE k 1 5\r\nhello\r\nEND\r\n"[..]));
        let mut local = std::os::unix::net::UnixStream::connect(&unix).expect("it listens");
        local.write_all(b"incr k 1\r\nquit\r\n").expect("sends");
        let mut said = String::new();
        local.read_to_string(&mut said).expect("an answer");
        assert_eq!(said, "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
        server.end();
        assert!(!std::path::Path::new(&unix).exists(), "its socket goes with it");
    }
    device.end();
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let device = Served::start(&["--ram", "--size", "16M"]);
    let refused = |arguments: &[&str]| {
        let output = device.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    assert!(refused(&["memcached", "--nsid", "1"]).contains("namespace 1 is no key-value namespace"));
    assert!(refused(&["memcached", "--listen", "nowhere"]).contains("--listen nowhere is no address"));
    assert!(refused(&["memcached", "--listen", "192.0.2.1:11211"]).contains("cannot listen on 192.0.2.1:11211"));
    assert!(refused(&["memcached", "--item-size", "1G"]).contains("--item-size"));
    assert!(refused(&["memcached", "--connections", "0"]).contains("--connections"));
    device.end();
}

fn conformance_tool() -> Option<&'static str> {
    ["memcapable", "memccapable"].into_iter().find(|program| willow_skip::has(program))
}

/// libmemcached's conformance tool, text and binary.
#[test]
fn memcapable_passes() {
    let Some(tool) = conformance_tool() else {
        return willow_skip::skip("memcapable_passes", "memcapable is not installed (scripts/bootstrap --tests)");
    };
    let folder = Folder::new();
    let socket = folder.path("w.sock");
    let device = Served::start(&["--ram", "--size", "16M", "--socket", &socket]);
    let server = Memcached::start(&socket, &["--listen", "127.0.0.1:0"]);
    let output = Command::new(tool)
        .args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-t", "120", "-v"])
        .output()
        .expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.matches("[pass]").count() >= 50 && !text.contains("[FAIL]"), "{text}");
    server.end();
    device.end();
}

/// The integration tests of pymemcache, a client in Python; those for TLS aside.
#[test]
fn the_tests_of_pymemcache_pass() {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = cache.or(home).unwrap_or_default().join("willow/python");
    let test = folder.join("pymemcache/test/test_integration.py");
    if !test.exists() || !willow_skip::has("python3") {
        return willow_skip::skip(
            "the_tests_of_pymemcache_pass",
            "pymemcache is not there (scripts/bootstrap --tests)",
        );
    }
    let scratch = Folder::new();
    let socket = scratch.path("w.sock");
    let device = Served::start(&["--ram", "--size", "16M", "--socket", &socket]);
    let server = Memcached::start(&socket, &["--listen", "127.0.0.1:0"]);
    let output = Command::new("python3")
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "-m", "integration", "-k", "not tls"])
        .args(["--server", "127.0.0.1", "--port", &server.port.to_string()])
        .arg(&test)
        .current_dir(&folder)
        .output()
        .expect("python3 runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed =
        text.lines().next_back().and_then(|line| line.split(" passed").next()?.split(' ').next_back()?.parse().ok());
    assert!(output.status.success() && passed.is_some_and(|passed: u32| passed >= 90), "{text}");
    server.end();
    device.end();
}

/// SIGKILL for the server and for the device, in turns and together, under load: no acknowledged set is lost.
#[test]
fn kills_of_server_and_device_lose_nothing_acknowledged() {
    const CLIENTS: usize = 4;
    const KILLS: usize = 8;
    let folder = Folder::new();
    let (media, socket) = (folder.path("media"), folder.path("w.sock"));
    let start_device = || Served::start(&["--media", &media, "--size", "16M", "--socket", &socket]);
    let start_server = || Memcached::start(&socket, &["--listen", "127.0.0.1:0", "--reconnect", "120"]);
    let mut device = start_device();
    let mut server = start_server();
    let port = AtomicU64::new(server.port.into());
    let stop = AtomicBool::new(false);
    let acknowledged: Vec<AtomicU64> = (0..CLIENTS).map(|_| 0.into()).collect();
    std::thread::scope(|scope| {
        for (number, acknowledged) in acknowledged.iter().enumerate() {
            let (port, stop) = (&port, &stop);
            scope.spawn(move || {
                let mut version = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let Some(mut stream) = connect(port.load(Ordering::SeqCst) as u16) else {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    };
                    while !stop.load(Ordering::Relaxed) {
                        version += 1;
                        let data = format!("{version} {}", ".".repeat((version * 131 % 5000) as usize));
                        let set = format!("set k{number} 0 0 {}\r\n{data}\r\n", data.len());
                        match ask(&mut stream, set.as_bytes(), b"\r\n").as_deref() {
                            Some(b"STORED\r\n") => acknowledged.store(version, Ordering::SeqCst),
                            // The device was killed: it may be stored or not.
                            Some(said) => {
                                assert!(said.starts_with(b"SERVER_ERROR"), "{:?}", said.escape_ascii().to_string())
                            }
                            None => break,
                        }
                    }
                }
            });
        }
        for kill in 0..KILLS {
            // Some sets are to be acknowledged between two kills, however slow the machine is.
            let before: u64 = acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).sum();
            let since = Instant::now();
            while acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>() < before + 40 {
                assert!(since.elapsed() < Duration::from_secs(180), "nothing is acknowledged after kill {kill}");
                std::thread::sleep(Duration::from_millis(2));
            }
            if kill % 3 != 1 {
                server.child.kill().expect("it is killed");
                server.child.wait().expect("it is gone");
            }
            if kill % 3 != 0 {
                device.signal("-KILL");
                device.child.wait().expect("it is gone");
                device = start_device();
            }
            if kill % 3 != 1 {
                server = start_server();
                port.store(server.port.into(), Ordering::SeqCst);
            }
            let mut stream = connect(port.load(Ordering::SeqCst) as u16).expect("it listens");
            for (number, acknowledged) in acknowledged.iter().enumerate() {
                let least = acknowledged.load(Ordering::SeqCst);
                let got = loop {
                    match ask(&mut stream, format!("get k{number}\r\n").as_bytes(), b"\r\n") {
                        // The rest of the value is not needed.
                        Some(got) if got.starts_with(b"VALUE") => break got,
                        Some(got) if got.starts_with(b"SERVER_ERROR") => {}
                        other => panic!("k{number}: {:?}", other.map(|text| text.escape_ascii().to_string())),
                    }
                };
                let data = got.splitn(2, |byte| *byte == b'\n').nth(1).unwrap_or_default();
                let version = String::from_utf8_lossy(data).split(' ').next().and_then(|text| text.parse::<u64>().ok());
                assert!(
                    version.is_some_and(|version| version >= least),
                    "kill {kill}, k{number}: {version:?}, {least} acknowledged"
                );
                stream = connect(port.load(Ordering::SeqCst) as u16).expect("it listens");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    server.end();
    device.end();
}
