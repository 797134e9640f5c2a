//! Sessions against each other and against OpenSSL's own client and server, so that not only we understand us.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use willow_auth::{Derivation, Entropy, Hash, KeyRing, PresharedKey, TlsKey};
use willow_tls::{Acceptor, KnownHosts, Proven, Received, Session, TlsError};

const HOST: &str = "nqn.2014-08.org.example:host";
const SUBSYSTEM: &str = "nqn.2025-01.org.example:subsystem";

fn key(hash: Hash) -> PresharedKey {
    PresharedKey::generate(hash, &Entropy::system()).unwrap()
}

fn acceptor(key: &PresharedKey) -> Acceptor {
    let hosts = BTreeMap::from([(HOST.to_owned(), key.clone())]);
    Acceptor::new(KnownHosts::new(KeyRing::new(hosts), vec![SUBSYSTEM.to_owned()])).unwrap()
}

/// How much the kernel keeps of a socket's data is this machine's otherwise.
fn bound(socket: &TcpStream) {
    let bytes: libc::c_int = 256 << 10;
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        // SAFETY: the kernel reads a number of that length.
        let done =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const bytes).cast(), 4) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    bound(&near);
    bound(&far);
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// Does a step until it says that it is over.
fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(done) = step() {
            return done;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn finish(session: &mut Session, socket: &TcpStream) -> Result<(), TlsError> {
    until(|| match session.handshake(socket.as_fd()) {
        Ok(true) => Some(Ok(())),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    })
}

/// Both ends' outcomes.
fn shake(client: &mut Session, server: &mut Session, near: &TcpStream, far: &TcpStream) -> [Result<(), TlsError>; 2] {
    let mut ends = [None, None];
    until(|| {
        for (end, session, socket) in [(0, &mut *client, near), (1, &mut *server, far)] {
            if ends[end].is_none() {
                ends[end] = match session.handshake(socket.as_fd()) {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(error) => Some(Err(error)),
                };
            }
            if matches!(ends[end], Some(Err(_))) {
                let _ = socket.shutdown(std::net::Shutdown::Write);
            }
        }
        ends.iter().all(Option::is_some).then_some(())
    });
    ends.map(Option::unwrap)
}

#[test]
fn both_suites_versions_and_derivations_carry_data_both_ways() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for (version, derivation) in
            [(1, Derivation::Standard), (1, Derivation::Linux), (0, Derivation::Standard), (0, Derivation::Linux)]
        {
            let key = key(hash);
            let (near, far) = pair();
            let mut client = Session::connect(&key.tls_key(HOST, SUBSYSTEM, version, derivation)).unwrap();
            let mut server = acceptor(&key).accept().unwrap();
            assert_eq!(shake(&mut client, &mut server, &near, &far), [Ok(()), Ok(())]);
            let proven = Proven { host_nqn: HOST.to_owned(), subsystem_nqn: SUBSYSTEM.to_owned(), generated: None };
            assert_eq!(server.proven(), Some(&proven));
            transfer(&mut client, &mut server, &near, &far);
            transfer(&mut server, &mut client, &far, &near);
            client.close(near.as_fd());
            let mut rest = [0; 8];
            until(|| (server.read(far.as_fd(), &mut rest) == Ok(Received::Closed)).then_some(()));
        }
    }
}

/// Sends more than the sockets take, so that both ends are stopped in the midst of records.
fn transfer(from: &mut Session, to: &mut Session, near: &TcpStream, far: &TcpStream) {
    let data: Vec<u8> = (0..9_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut sent, mut received) = (0, Vec::new());
    let mut buffer = vec![0; 50_000];
    let mut blocked = 0;
    until(|| {
        while sent < data.len() {
            let end = data.len().min(sent + 1_234_567);
            match from.write(near.as_fd(), &data[sent..end]).unwrap() {
                Some(count) => sent += count,
                None => {
                    blocked += 1;
                    break;
                }
            }
        }
        while let Received::Bytes(count) = to.read(far.as_fd(), &mut buffer).unwrap() {
            received.extend_from_slice(&buffer[..count]);
        }
        (received.len() == data.len()).then_some(())
    });
    assert!(received == data && blocked > 0, "blocked {blocked} times");
}

#[test]
fn a_wrong_key_or_name_is_refused_and_nothing_is_proven() {
    let (known, other) = (key(Hash::Sha256), key(Hash::Sha256));
    let named = |host: &str, subsystem: &str| known.tls_key(host, subsystem, 1, Derivation::Standard);
    let mut forged = named(HOST, SUBSYSTEM);
    forged.secret = other.tls_key(HOST, SUBSYSTEM, 1, Derivation::Standard).secret;
    let mut old = other.tls_key(HOST, SUBSYSTEM, 0, Derivation::Standard);
    old.hash = Hash::Sha256;
    for (key, reason) in [
        (other.tls_key(HOST, SUBSYSTEM, 1, Derivation::Standard), "no key of this name"),
        (named("nqn.2014-08.org.example:other", SUBSYSTEM), "no key of this name"),
        (named(HOST, "nqn.2025-01.org.example:other"), "no key of this name"),
        (forged, "another key"),
        (old, "another key"),
    ] {
        let (near, far) = pair();
        let mut client = Session::connect(&key).unwrap();
        let mut server = acceptor(&known).accept().unwrap();
        let [at_client, at_server] = shake(&mut client, &mut server, &near, &far);
        let error = at_server.unwrap_err().to_string();
        assert!(error.contains(reason) && at_client.is_err(), "{error}, {at_client:?}");
        assert_eq!(server.proven(), None);
        assert!(server.read(far.as_fd(), &mut [0; 9]).is_err() && server.write(far.as_fd(), b"x").is_err());
    }
}

#[test]
fn garbage_damage_and_an_end_without_goodbye_are_errors() {
    let key = key(Hash::Sha256);
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16; 200], &[0x16, 3, 1, 0, 4, 1, 0, 0, 0], &[0x16, 3, 1, 0x7f, 0xff]]
    {
        let (mut near, far) = pair();
        let mut server = acceptor(&key).accept().unwrap();
        near.write_all(garbage).unwrap();
        let _ = near.shutdown(std::net::Shutdown::Write);
        assert!(finish(&mut server, &far).is_err());
    }
    // A record that was changed on its way, one cut short, and an alert in the clear.
    let connected = || {
        let (near, far) = pair();
        let mut client = Session::connect(&key.tls_key(HOST, SUBSYSTEM, 1, Derivation::Standard)).unwrap();
        let mut server = acceptor(&key).accept().unwrap();
        assert_eq!(shake(&mut client, &mut server, &near, &far), [Ok(()), Ok(())]);
        (near, far, client, server)
    };
    for damage in [&[0x17, 3, 3, 0, 40][..], &[0x15, 3, 3, 0, 2, 1, 0], &[0x17, 3, 3, 0, 0], &[0x16, 3, 3, 0, 1, 0]] {
        let (mut near, far, mut client, mut server) = connected();
        assert_eq!(client.write(near.as_fd(), b"genuine").unwrap(), Some(7));
        near.write_all(&[damage, &[9; 60]].concat()).unwrap();
        let mut buffer = [0; 64];
        let mut genuine = 0;
        let error = until(|| match server.read(far.as_fd(), &mut buffer) {
            Ok(Received::Bytes(count)) => {
                genuine += count;
                None
            }
            Ok(Received::Blocked) => None,
            Ok(Received::Closed) => panic!("a goodbye that is not genuine: {damage:x?}"),
            Err(error) => Some(error),
        });
        assert!(genuine == 7, "{error}");
        assert_eq!(server.write(far.as_fd(), b"x"), Err(error));
    }
    let (near, far, client, mut server) = connected();
    drop((client, near));
    let error = until(|| server.read(far.as_fd(), &mut [0; 8]).err());
    assert!(error.to_string().contains("closed"), "{error}");
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The key as OpenSSL takes keys of any hash: as a session with nothing in it but a suite and the key (its ASN.1, by hand).
fn session_file(key: &TlsKey, suite: u8) -> std::path::PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let length = key.secret.len() as u8;
    let fields: [&[u8]; 5] = [&[2, 1, 1, 2, 2, 3, 4], &[4, 2, 0x13, suite], &[4, 0], &[4, length], &key.secret];
    let fields = fields.concat();
    let der = [&[0x30, fields.len() as u8][..], &fields].concat();
    let name = format!("session-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let label = "SSL SESSION PARAMETERS";
    let text = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", Base64::encode_string(&der));
    std::fs::write(&path, text).unwrap();
    path
}

fn openssl(arguments: &[&str], key: &TlsKey) -> Running {
    let (name, suite) = match key.hash {
        Hash::Sha256 => ("TLS_AES_128_GCM_SHA256", 1),
        _ => ("TLS_AES_256_GCM_SHA384", 2),
    };
    let mut command = Command::new("openssl");
    command.args(arguments).args(["-tls1_3", "-ciphersuites", name, "-quiet"]);
    if arguments.contains(&"X25519:P-256") {
        // With the key as a session its client loses count after a HelloRetryRequest; as a key it is one of SHA-256.
        let hex: String = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        command.args(["-psk", &hex]);
    } else {
        command.arg("-psk_session").arg(session_file(key, suite));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Running(command.spawn().expect("openssl runs"))
}

#[test]
fn openssl_as_client_is_understood() {
    if let Some(why) = willow_skip::programs(&["openssl"]) {
        return willow_skip::skip("openssl_as_client_is_understood", &why);
    }
    // The last has the device ask for another key exchange.
    for (hash, groups) in
        [(Hash::Sha256, "P-256"), (Hash::Sha384, "P-256"), (Hash::Sha384, "P-384"), (Hash::Sha256, "X25519:P-256")]
    {
        openssl_as_client(hash, groups);
    }
}

fn openssl_as_client(hash: Hash, groups: &str) {
    let key = key(hash);
    let meant = key.tls_key(HOST, SUBSYSTEM, 1, Derivation::Standard);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client =
        openssl(&["s_client", "-groups", groups, "-connect", &address, "-psk_identity", &meant.identity], &meant);
    let (far, _) = listener.accept().unwrap();
    far.set_nonblocking(true).unwrap();
    let mut server = acceptor(&key).accept().unwrap();
    finish(&mut server, &far).unwrap();
    assert_eq!(server.proven().unwrap().host_nqn, HOST);
    client.0.stdin.as_mut().unwrap().write_all(b"from openssl\n").unwrap();
    let mut buffer = [0; 100];
    let count = until(|| match server.read(far.as_fd(), &mut buffer).unwrap() {
        Received::Bytes(count) => Some(count),
        _ => None,
    });
    assert_eq!(&buffer[..count], b"from openssl\n");
    assert_eq!(server.write(far.as_fd(), b"to openssl\n").unwrap(), Some(11));
    let mut line = [0; 11];
    client.0.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"to openssl\n");
}

#[test]
fn openssl_as_server_is_understood() {
    if let Some(why) = willow_skip::programs(&["openssl"]) {
        return willow_skip::skip("openssl_as_server_is_understood", &why);
    }
    [Hash::Sha256, Hash::Sha384].into_iter().for_each(openssl_as_server);
}

fn openssl_as_server(hash: Hash) {
    let key = key(hash);
    let meant = key.tls_key(HOST, SUBSYSTEM, 1, Derivation::Standard);
    // It takes any identity by this key; another key is refused by it.
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port().to_string();
    let mut server = openssl(&["s_server", "-nocert", "-accept", &port, "-psk_identity", &meant.identity], &meant);
    let connect = || {
        let near = until(|| TcpStream::connect(format!("127.0.0.1:{port}")).ok());
        near.set_nonblocking(true).unwrap();
        near
    };
    let mut other = meant.clone();
    other.secret[0] ^= 1;
    let refused = connect();
    assert!(finish(&mut Session::connect(&other).unwrap(), &refused).is_err());
    let near = connect();
    let mut client = Session::connect(&meant).unwrap();
    finish(&mut client, &near).unwrap();
    assert_eq!(client.write(near.as_fd(), b"to openssl\n").unwrap(), Some(11));
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.ends_with("to openssl\n"), "{line}");
}
