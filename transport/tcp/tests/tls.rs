//! Connections over TLS: who is let in, what goes through, and what is refused, over sockets and against a whole target.
#![forbid(unsafe_code)]

mod common;

use common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use willow_auth::{Credentials, Derivation, Entropy, Hash, HostKey, PresharedKey, Secret};
use willow_host::nvme_tcp::polled::{PolledController, PolledQueue};
use willow_host::nvme_tcp::{Transfer, Via, discover};
use willow_host::{Controller, NvmeError, Options};
use willow_nvme::HostAuthentication;
use willow_nvme::config::NQN_DEFAULT;
use willow_tcp::Reload;
use willow_tcp::config::HANDSHAKES_MAX;
use willow_tls::{Received, Session};
use willow_wire::pdu::Encoder;
use willow_wire::spec::fabrics::DISCOVERY_NQN;
use willow_wire::spec::{Status, SubmissionEntry, opcode};

/// The NQN that the scripted host of `common` has.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";

fn psk(hash: Hash) -> PresharedKey {
    PresharedKey::generate(hash, &Entropy::system()).unwrap()
}

/// `both`: it has a secret for DH-HMAC-CHAP, too.
fn host(host_nqn: &str, psk: Option<PresharedKey>, both: bool) -> HostKey {
    let secret = Secret::generate(None, &Entropy::system()).unwrap();
    let credentials = Credentials { host_nqn: host_nqn.to_owned(), secret, controller_secret: None };
    HostKey { host_nqn: host_nqn.to_owned(), credentials: both.then_some(credentials), psk, secure_channel: false }
}

fn serve_for(hosts: &[&HostKey], required: bool) -> Running {
    serve_within(hosts, required, PATIENCE)
}

fn serve_within(hosts: &[&HostKey], required: bool, connect_limit: Duration) -> Running {
    let mut known = HostAuthentication::new(hosts.iter().map(|host| (*host).clone())).unwrap();
    known.tls_required = required;
    serve_with(
        move |config| {
            config.subsystem.authentication = Some(known);
            config.connect_limit = connect_limit;
        },
        4096,
    )
}

fn options(running: &Running, key: &HostKey) -> Options {
    Options { reconnect_for: Duration::ZERO, queues: 2, ..running.options().with_host_key(key.clone()) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn io(opcode: u8, lba: u64, blocks: usize) -> SubmissionEntry {
    SubmissionEntry::new(opcode).with_nsid(1).with_lba(lba).with_cdw(12, blocks as u32 - 1)
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Writes and reads back transfers of all sizes on both queues, many at once.
async fn transfers(controller: &Controller) {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..24u64 {
        let controller = controller.clone();
        tasks.spawn(async move {
            for (round, blocks) in [1usize, 2, 7, 32, 256, 1].into_iter().enumerate() {
                let data = pattern(task << 8 | round as u64, blocks * 4096);
                let via = Via::Queue(task as usize + round);
                let write = Transfer::ToController(data.clone());
                let entry = io(opcode::nvm::WRITE, task * 256, blocks);
                assert!(controller.command(via, "Write", entry, write, true).await.unwrap().entry.status.is_success());
                let read = Transfer::FromController(vec![0; data.len()]);
                let entry = io(opcode::nvm::READ, task * 256, blocks);
                let done = controller.command(via, "Read", entry, read, true).await.unwrap();
                assert!(done.buffer == data, "task {task}, {blocks} blocks");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[test]
fn data_of_all_sizes_go_through_with_both_suites_and_digests() {
    let (one, two) = (host(HOST, Some(psk(Hash::Sha256)), true), host(OTHER, Some(psk(Hash::Sha384)), false));
    for required in [true, false] {
        let running = serve_for(&[&one, &two], required);
        runtime().block_on(async {
            for key in [&one, &two] {
                let found = discover(&options(&running, key)).await.unwrap();
                let entry = found.iter().find(|entry| entry.subsystem_nqn == NQN_DEFAULT).unwrap();
                assert_eq!((entry.requirements & 3, entry.security), (1, 2), "what the log says of TLS");
                for digests in [false, true] {
                    let options = Options { header_digest: digests, data_digest: digests, ..options(&running, key) };
                    let controller = Controller::connect(options).await.unwrap();
                    transfers(&controller).await;
                    controller.shut_down().await.unwrap();
                }
            }
        });
        let mut controller = PolledController::connect(&options(&running, &two)).unwrap();
        polled(&mut controller.open_queue().unwrap());
        drop(controller);
        running.settles(true);
        running.stop();
    }
}

/// A full queue of large writes, then of reads, by the initiator that a thread polls.
fn polled(queue: &mut PolledQueue) {
    const BYTES: usize = 512 << 10;
    for opcode in [opcode::nvm::WRITE, opcode::nvm::READ] {
        for tag in 0..32u64 {
            let transfer = match opcode {
                opcode::nvm::WRITE => Transfer::ToController(pattern(tag, BYTES)),
                _ => Transfer::FromController(vec![0; BYTES]),
            };
            assert!(queue.submit(tag, io(opcode, tag * 128, 128), transfer).is_ok());
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(&mut done, PATIENCE).unwrap();
        }
        assert_eq!(done.len(), 32);
        for completed in done {
            assert!(completed.entry.status.is_success());
            assert!(opcode == opcode::nvm::WRITE || completed.buffer == pattern(completed.tag, BYTES));
        }
    }
}

#[test]
fn who_has_not_the_key_or_comes_without_tls_gets_nothing() {
    let known = host(HOST, Some(psk(Hash::Sha256)), true);
    let plain = host(OTHER, None, true);
    let running = serve_for(&[&known, &plain], false);
    runtime().block_on(async {
        let refused = |options: Options| async { Controller::connect(options).await.map(|_| ()).unwrap_err() };
        let secure = |error: NvmeError| assert!(matches!(error, NvmeError::Secure { .. }), "{error}");
        // Another key of the same name; a name that is not known; one that has no key for TLS.
        secure(refused(options(&running, &HostKey { psk: Some(psk(Hash::Sha256)), ..known.clone() })).await);
        secure(refused(options(&running, &HostKey { psk: Some(psk(Hash::Sha384)), ..known.clone() })).await);
        secure(refused(options(&running, &host("nqn.2014-08.org.example:none", known.psk.clone(), false))).await);
        secure(refused(options(&running, &HostKey { psk: known.psk.clone(), ..plain.clone() })).await);
        // The right secret, but in the clear.
        let error = refused(options(&running, &HostKey { psk: None, ..known.clone() })).await;
        assert!(error.status().is_some_and(|status| status.is(Status::CONNECT_INVALID_HOST)), "{error}");
        // TLS does not stand for DH-HMAC-CHAP.
        let error = refused(options(&running, &HostKey { credentials: None, ..known.clone() })).await;
        assert!(error.to_string().contains("requires authentication"), "{error}");
        // A host without a key for TLS is served as ever, and is told that it need not have one.
        let found = discover(&running.options()).await.unwrap();
        assert!(found.iter().all(|entry| (entry.requirements & 3, entry.security) == (2, 0)));
        Controller::connect(options(&running, &plain)).await.unwrap();
        Controller::connect(options(&running, &known)).await.unwrap();
    });
    running.settles(true);
    // TLS to a device that has none.
    let open = serve();
    let error = runtime().block_on(Controller::connect(options(&open, &known))).map(|_| ()).unwrap_err();
    assert!(matches!(error, NvmeError::Secure { .. }), "{error}");
    serves(open.address);
}

/// A session whose handshake is over, for what an initiator would not do.
fn session(running: &Running, key: &HostKey, subsystem_nqn: &str) -> (TcpStream, Session) {
    let stream = TcpStream::connect(running.address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let key = key.psk.as_ref().unwrap().tls_key(&key.host_nqn, subsystem_nqn, 1, Derivation::Standard);
    let mut session = Session::connect(&key).unwrap();
    patiently(|| session.handshake(stream.as_fd()).unwrap().then_some(()));
    (stream, session)
}

fn patiently<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(done) = step() {
            return done;
        }
        assert!(begun.elapsed() < PATIENCE, "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn initialize() -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::initialize_request(&mut bytes, &Default::default());
    bytes
}

/// Everything that comes until the end, however it ends.
fn rest(stream: &TcpStream, session: &mut Session) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    patiently(|| match session.read(stream.as_fd(), &mut buffer) {
        Ok(Received::Bytes(count)) => {
            all.extend_from_slice(&buffer[..count]);
            None
        }
        Ok(Received::Blocked) => None,
        Ok(Received::Closed) | Err(_) => Some(()),
    });
    all
}

#[test]
fn connect_names_what_tls_proved() {
    let known = host(HOST, Some(psk(Hash::Sha256)), false);
    let other = host(OTHER, Some(psk(Hash::Sha256)), false);
    let running = serve_for(&[&known, &other], true);
    for (key, subsystem, lets_in) in
        [(&known, NQN_DEFAULT, true), (&other, NQN_DEFAULT, false), (&known, DISCOVERY_NQN, false)]
    {
        let (stream, mut session) = session(&running, key, subsystem);
        let mut bytes = initialize();
        // The scripted host's Connect, by the name of HOST.
        let (entry, data) = connect_command(0, 0xffff, NQN_DEFAULT);
        Encoder::default().command_with_data(&mut bytes, &entry, &data[..]);
        assert_eq!(session.write(stream.as_fd(), &bytes).unwrap(), Some(bytes.len()));
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        patiently(|| {
            if let Received::Bytes(count) = session.read(stream.as_fd(), &mut buffer).unwrap() {
                answer.extend_from_slice(&buffer[..count]);
            }
            // ICResp of 128 bytes, and a response of 24.
            (answer.len() >= 152).then_some(())
        });
        let status = u16::from_le_bytes([answer[150], answer[151]]);
        assert_eq!(status == 0, lets_in, "{subsystem}: status {status:#x}");
    }
    running.settles(true);
}

#[test]
fn what_is_no_tls_is_closed_unread_and_what_stalls_is_closed_in_time() {
    let known = host(HOST, Some(psk(Hash::Sha256)), false);
    let running = serve_within(&[&known], true, Duration::from_secs(2));
    // NVMe/TCP in the clear, noise, and half of a ClientHello: nothing of NVMe comes back.
    for begin in [&initialize()[..], b"\x80garbage", &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3], &[0x16; 300]] {
        let mut stream = TcpStream::connect(running.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(begin).unwrap();
        let mut came = Vec::new();
        // A connection that is reset had its end, too.
        let _ = stream.read_to_end(&mut came);
        assert!(came.is_empty() || came[0] == 0x15, "an alert at most: {came:x?}");
    }
    // A silent one, one whose handshake is over and that says no more, and one that is gone in the midst of it.
    let mut silent = TcpStream::connect(running.address).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(silent.read(&mut [0; 1]), Ok(0) | Err(_)));
    let (stream, mut idle) = session(&running, &known, NQN_DEFAULT);
    rest(&stream, &mut idle);
    drop(TcpStream::connect(running.address).unwrap());
    // Damage in the midst of a connection, a goodbye, and an end without one.
    for end in 0..4 {
        let (mut stream, mut session) = session(&running, &known, NQN_DEFAULT);
        assert!(session.write(stream.as_fd(), &initialize()).unwrap().is_some());
        match end {
            0 => stream.write_all(&[0x17, 3, 3, 0, 40, 1, 2, 3]).unwrap(),
            1 => session.close(stream.as_fd()),
            2 => stream.shutdown(Shutdown::Write).unwrap(),
            _ => stream.write_all(&[&[0x17, 3, 3, 0, 40][..], &[9; 40]].concat()).unwrap(),
        }
        if end == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        rest(&stream, &mut session);
    }
    running.settles(true);
    runtime().block_on(async {
        let controller = Controller::connect(options(&running, &known)).await.unwrap();
        transfers(&controller).await;
    });
    running.settles(true);
    running.stop();
}

#[test]
fn many_connect_at_once_and_come_again() {
    let known = host(HOST, Some(psk(Hash::Sha256)), false);
    let running = serve_for(&[&known], true);
    runtime().block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..24 {
            let options = options(&running, &known);
            tasks.spawn(async move {
                let controller = Controller::connect(options).await.unwrap();
                let read = Transfer::FromController(vec![1; 4096]);
                let done = controller.command(Via::Any, "Read", io(opcode::nvm::READ, 0, 1), read, true).await;
                assert!(done.unwrap().entry.status.is_success());
                controller.shut_down().await.unwrap();
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
    running.settles(true);
    let known = Arc::new(known);
    // A polled one that is dropped without a word leaves nothing behind.
    for _ in 0..3 {
        let mut controller = PolledController::connect(&options(&running, &known)).unwrap();
        let mut queue = controller.open_queue().unwrap();
        assert!(queue.submit(0, io(opcode::nvm::READ, 0, 256), Transfer::FromController(vec![0; 1 << 20])).is_ok());
        queue.poll(&mut Vec::new()).unwrap();
    }
    running.settles(true);
}

#[test]
fn handshakes_that_do_not_go_on_are_bounded_and_keep_nobody_out_for_long() {
    const MORE: usize = 8;
    let known = host(HOST, Some(psk(Hash::Sha256)), false);
    let running = serve_within(&[&known], true, PATIENCE);
    let begun: Vec<TcpStream> = (0..HANDSHAKES_MAX + MORE)
        .map(|_| {
            let mut stream = TcpStream::connect(running.address).unwrap();
            stream.write_all(&[0x16, 3, 1, 0, 200]).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // The oldest make way for the newest; the others have their time.
    let closed = |stream: &&TcpStream| match (&**stream).read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    patiently(|| (begun.iter().filter(closed).count() >= MORE).then_some(()));
    assert_eq!(begun.iter().filter(closed).count(), MORE);
    drop(begun);
    running.settles(true);
    runtime().block_on(async { transfers(&Controller::connect(options(&running, &known)).await.unwrap()).await });
}

#[test]
fn a_host_gets_its_key_for_tls_while_the_server_runs() {
    let (plain, secure) = (host(HOST, None, true), host(HOST, Some(psk(Hash::Sha256)), true));
    let running = serve_within(&[&plain], false, PATIENCE);
    let reload = |known: &HostKey| {
        let authentication = Some(HostAuthentication::new([known.clone()]).unwrap());
        let reload = Reload { listen: vec![running.address.into()], referrals: Vec::new(), authentication };
        running.handle.reload(reload, PATIENCE).expect("the server answers").unwrap()
    };
    runtime().block_on(async {
        let before = Controller::connect(options(&running, &plain)).await.unwrap();
        reload(&secure);
        assert!(before.namespaces().await.is_err(), "it came in the clear");
        assert!(Controller::connect(options(&running, &plain)).await.is_err());
        let by_tls = Controller::connect(options(&running, &secure)).await.unwrap();
        transfers(&by_tls).await;
        let other = HostKey { psk: Some(psk(Hash::Sha256)), ..secure.clone() };
        reload(&other);
        assert!(by_tls.namespaces().await.is_err() && Controller::connect(options(&running, &secure)).await.is_err());
        transfers(&Controller::connect(options(&running, &other)).await.unwrap()).await;
    });
}
