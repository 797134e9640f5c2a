//! Secure channels by keys that authentications generate (secure channel concatenation): over sockets, against a whole target.
#![forbid(unsafe_code)]

mod common;

use common::*;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use willow_auth::{Credentials, Ends, Entropy, Group, HostExchange, HostKey, Policy, Secret, TlsKey};
use willow_host::nvme_tcp::polled::PolledController;
use willow_host::nvme_tcp::{Transfer, Via};
use willow_host::{Controller, NvmeError, Options};
use willow_nvme::HostAuthentication;
use willow_nvme::config::{GENERATED_KEYS_MAX, NQN_DEFAULT};
use willow_tcp::Reload;
use willow_wire::spec::authentication::AuthenticationCommand;
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, fabrics, opcode, property};

/// The NQN that the scripted host of `common` has.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

fn secret() -> Secret {
    Secret::generate(None, &Entropy::system()).unwrap()
}

/// `both`: the device proves itself, too. `required`: the host has to come by a generated key.
fn host(both: bool, required: bool) -> HostKey {
    let controller_secret = both.then(secret);
    let credentials = Credentials { host_nqn: HOST.to_owned(), secret: secret(), controller_secret };
    HostKey { host_nqn: HOST.to_owned(), credentials: Some(credentials), psk: None, secure_channel: required }
}

fn known(host: &HostKey) -> HostAuthentication {
    let mut known = HostAuthentication::new([host.clone()]).unwrap();
    known.policy = Policy { groups: vec![Group::Ffdhe2048], ..Policy::default() };
    known
}

fn serve_for(host: &HostKey) -> Running {
    let known = known(host);
    serve_with(move |config| config.subsystem.authentication = Some(known), 4096)
}

fn options(address: SocketAddr, running: &Running, key: &HostKey) -> Options {
    let options = Options { address, ..running.options() }.with_host_key(key.clone());
    Options { reconnect_for: Duration::ZERO, queues: 2, ..options }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn io(opcode: u8, blocks: u32) -> SubmissionEntry {
    SubmissionEntry::new(opcode).with_nsid(1).with_cdw(12, blocks - 1)
}

/// What nobody but the two ends may see.
fn message() -> Vec<u8> {
    b"to be seen by nobody in between! ".iter().copied().cycle().take(16384).collect()
}

async fn writes_and_reads(controller: &Controller) {
    for queue in 0..controller.queues().await.unwrap() {
        let write = Transfer::ToController(message());
        controller.command(Via::Queue(queue), "Write", io(opcode::nvm::WRITE, 4), write, true).await.unwrap();
        let read = Transfer::FromController(vec![0; 16384]);
        let done = controller.command(Via::Queue(queue), "Read", io(opcode::nvm::READ, 4), read, true).await.unwrap();
        assert!(done.buffer == message());
    }
}

/// Somebody in between, who passes everything on and keeps it: one entry a connection and direction.
struct Between {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Between {
    fn new(target: SocketAddr) -> Between {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let all = seen.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { return };
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    let place = {
                        let mut all = all.lock().unwrap();
                        all.push(Vec::new());
                        all.len() - 1
                    };
                    let all = all.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 65536];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            all.lock().unwrap()[place].extend_from_slice(&bytes[..count]);
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Between { address, seen }
    }

    /// First bytes of the connections from hosts, in their order.
    fn first_bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().iter().step_by(2).filter_map(|bytes| bytes.first().copied()).collect()
    }

    fn saw(&self, what: &[u8]) -> bool {
        self.seen.lock().unwrap().iter().any(|bytes| bytes.windows(what.len()).any(|part| part == what))
    }
}

#[test]
fn all_but_the_authentication_is_tls_by_a_key_that_it_generated() {
    for (both, required) in [(false, true), (true, true), (true, false)] {
        let key = host(both, required);
        let running = serve_for(&key);
        let between = Between::new(running.address);
        // Where the device does not insist, the host does.
        let wanting = HostKey { secure_channel: true, ..key.clone() };
        runtime().block_on(async {
            let controller = Controller::connect(options(between.address, &running, &wanting)).await.unwrap();
            writes_and_reads(&controller).await;
            controller.shut_down().await.unwrap();
        });
        // In the clear to authenticate, then an admin and two I/O queues.
        assert_eq!(between.first_bytes(), [0, 0x16, 0x16, 0x16]);
        assert!(!between.saw(&message()[..66]) && between.saw(NQN_DEFAULT.as_bytes()));

        let mut polled = PolledController::connect(&options(between.address, &running, &wanting)).unwrap();
        let mut queue = polled.open_queue().unwrap();
        assert!(queue.submit(0, io(opcode::nvm::READ, 4), Transfer::FromController(vec![0; 16384])).is_ok());
        let mut done = Vec::new();
        queue.wait(&mut done, PATIENCE).unwrap();
        assert!(done[0].buffer == message());
        drop((queue, polled));
        assert_eq!(between.first_bytes()[4..], [0, 0x16, 0x16]);
        running.settles(true);
        running.stop();
    }
}

#[test]
fn a_host_that_has_to_come_by_a_generated_key_gets_nothing_without() {
    let key = host(false, true);
    let running = serve_for(&key);
    let lax = HostKey { secure_channel: false, ..key.clone() };
    let error = runtime().block_on(Controller::connect(options(running.address, &running, &lax))).unwrap_err();
    assert!(error.to_string().contains("requires a secure channel"), "{error}");
    // Who has not the secret generates nothing.
    let stolen = HostKey { credentials: host(false, true).credentials, ..key.clone() };
    let error = runtime().block_on(Controller::connect(options(running.address, &running, &stolen))).unwrap_err();
    assert!(matches!(error, NvmeError::Authentication { .. }), "{error}");
    // A device that asks for no proof makes no key.
    let open = serve();
    let error = runtime().block_on(Controller::connect(options(open.address, &open, &key))).unwrap_err();
    assert!(error.to_string().contains("does not authenticate"), "{error}");
    running.settles(true);
    serves(open.address);
}

/// A scripted host that has authenticated in the clear and generated a key: its admin queue, its controller, the key.
fn generate(running: &Running, key: &HostKey) -> (Peer, u16, TlsKey) {
    let mut peer = Peer::initialized(running.address, false);
    let connected = peer.connect(0, 0xffff, NQN_DEFAULT);
    assert!(connected.status.is_success());
    let ends = Ends { credentials: Arc::new(key.credentials.clone().unwrap()), subsystem_nqn: NQN_DEFAULT.to_owned() };
    let mut exchange = HostExchange::new(ends, 9, Entropy::system()).with_key(false);
    let tell = |peer: &mut Peer, message: &[u8]| {
        let entry = AuthenticationCommand::send(message.len() as u32).with_cid(2);
        let entry = entry.with_sgl(Sgl::in_capsule(0, message.len() as u32));
        assert!(peer.ask(&entry, message).status.is_success());
    };
    let ask = |peer: &mut Peer| {
        let entry = AuthenticationCommand::receive(4096).with_cid(3).with_sgl(Sgl::transport(4096));
        let (done, said) = peer.ask_data(&entry, &[]);
        assert!(done.status.is_success());
        said
    };
    tell(&mut peer, &exchange.negotiate());
    let reply = exchange.reply(&ask(&mut peer)).unwrap();
    tell(&mut peer, &reply);
    assert!(exchange.finish(&ask(&mut peer)).unwrap().is_none());
    let [generated, _] = exchange.take_generated().unwrap().tls_keys(HOST, NQN_DEFAULT);
    (peer, connected.result as u16, generated)
}

fn status(completion: CompletionEntry) -> Status {
    completion.status
}

#[test]
fn a_controller_in_the_clear_is_there_to_be_left_once_a_key_was_generated() {
    let key = host(false, false);
    let running = serve_for(&key);
    let (mut admin, cntlid, _generated) = generate(&running, &key);
    admin.ask(&fabrics::property_set(property::CC, 0x46_0061, false).with_cid(1), &[]);
    // What Linux does before it leaves.
    let identify = SubmissionEntry::new(opcode::admin::IDENTIFY).with_cid(4).with_cdw(10, 1);
    assert!(status(admin.ask_data(&identify.with_sgl(Sgl::transport(4096)), &[]).0).is_success());
    let format = SubmissionEntry::new(opcode::admin::FORMAT_NVM).with_cid(5).with_nsid(1);
    assert!(status(admin.ask(&format, &[])).is(Status::OPERATION_DENIED));
    let mut queue = Peer::initialized(running.address, false);
    assert!(status(queue.connect(1, cntlid, NQN_DEFAULT)).is(Status::CONNECT_INVALID_HOST));
}

#[test]
fn a_generated_key_is_good_for_one_association_and_ends_with_it() {
    let key = host(false, false);
    let running = serve_for(&key);
    let (admin, _, generated) = generate(&running, &key);
    drop(admin);
    let runtime = runtime();
    let with = |generated: &TlsKey| Options {
        channel_key: Some(Arc::new(generated.clone())),
        ..options(running.address, &running, &key)
    };
    runtime.block_on(async {
        let first = Controller::connect(with(&generated)).await.unwrap();
        writes_and_reads(&first).await;
        // In use: TLS knows it, Connect refuses another controller.
        let error = Controller::connect(with(&generated)).await.unwrap_err();
        assert!(error.status().is_some_and(|status| status.is(Status::CONNECT_INVALID_HOST)), "{error}");
        // An I/O queue in the clear, of the controller that came by it.
        let cntlid = first.ready().await.unwrap().controller_id;
        let mut queue = Peer::initialized(running.address, false);
        assert!(status(queue.connect(3, cntlid, NQN_DEFAULT)).is(Status::CONNECT_INVALID_HOST));
        writes_and_reads(&first).await;
        first.shut_down().await.unwrap();
    });
    running.settles(true);
    let error = runtime.block_on(Controller::connect(with(&generated))).unwrap_err();
    assert!(matches!(error, NvmeError::Secure { .. }), "gone with its controller: {error}");
}

#[test]
fn keys_that_nobody_uses_are_bounded_and_go_with_their_hosts_key_file() {
    let key = host(false, false);
    let running = serve_for(&key);
    let mut made: Vec<TlsKey> = (0..=GENERATED_KEYS_MAX).map(|_| generate(&running, &key).2).collect();
    let runtime = runtime();
    let connect = |generated: &TlsKey| {
        let options = options(running.address, &running, &key);
        runtime.block_on(Controller::connect(Options { channel_key: Some(Arc::new(generated.clone())), ..options }))
    };
    let oldest = made.remove(0);
    assert!(matches!(connect(&oldest).unwrap_err(), NvmeError::Secure { .. }), "the oldest made way");
    let (last, next) = (made.pop().unwrap(), made.pop().unwrap());
    let second = connect(&made[0]).unwrap();
    runtime.block_on(writes_and_reads(&second));
    runtime.block_on(writes_and_reads(&connect(&last).unwrap()));
    // Another secret of the host: what was made by the one before is worth nothing.
    let authentication = Some(known(&host(false, false)));
    let reload = Reload { listen: vec![running.address.into()], referrals: Vec::new(), authentication };
    running.handle.reload(reload, PATIENCE).expect("the server answers").unwrap();
    assert!(matches!(connect(&next).unwrap_err(), NvmeError::Secure { .. }));
    assert!(runtime.block_on(second.namespaces()).is_err());
}
