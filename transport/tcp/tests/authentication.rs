//! Hosts that prove themselves, and those that do not: over sockets, against a whole target.
#![forbid(unsafe_code)]

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use willow_auth::{Credentials, Ends, Entropy, Group, HostExchange, Policy, Secret};
use willow_host::nvme_tcp::polled::PolledController;
use willow_host::nvme_tcp::{Via, discover};
use willow_host::{Controller, NvmeError, Options};
use willow_nvme::HostAuthentication;
use willow_nvme::config::NQN_DEFAULT;
use willow_tcp::Reload;
use willow_wire::spec::authentication::{AuthenticationCommand, Explanation, Message};
use willow_wire::spec::fabrics::DISCOVERY_NQN;
use willow_wire::spec::{CompletionEntry, Sgl, Status, SubmissionEntry, opcode};

/// The NQN that the scripted host of `common` has.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";

fn secret() -> Secret {
    Secret::generate(None, &Entropy::system()).unwrap()
}

fn credentials(host_nqn: &str, both: bool) -> Credentials {
    Credentials { host_nqn: host_nqn.to_owned(), secret: secret(), controller_secret: both.then(secret) }
}

/// A target that knows these hosts.
fn serve_for(hosts: &[&Credentials], groups: &[Group]) -> Running {
    let mut authentication = HostAuthentication::new(hosts.iter().map(|host| (*host).clone())).unwrap();
    authentication.policy = Policy { groups: groups.to_vec(), ..Policy::default() };
    serve_with(move |config| config.subsystem.authentication = Some(authentication), 4096)
}

fn options(running: &Running, credentials: &Credentials) -> Options {
    let options = running.options().with_credentials(Arc::new(credentials.clone()));
    Options { reconnect_for: Duration::ZERO, queues: 2, ..options }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn hosts_with_their_keys_are_served_on_every_queue() {
    let (one, two) = (credentials(HOST, true), credentials(OTHER, false));
    let running = serve_for(&[&one, &two], &[Group::Ffdhe2048]);
    let read = SubmissionEntry::new(opcode::nvm::READ).with_nsid(1).with_cdw(12, 0);
    runtime().block_on(async {
        for credentials in [&one, &two] {
            let controller = Controller::connect(options(&running, credentials)).await.unwrap();
            assert_eq!(controller.queues().await.unwrap(), 2);
            for queue in 0..2 {
                let buffer = willow_host::nvme_tcp::Transfer::FromController(vec![1; 4096]);
                let done = controller.command(Via::Queue(queue), "Read", read, buffer, true).await.unwrap();
                assert_eq!(done.buffer, vec![0; 4096]);
            }
            controller.shut_down().await.unwrap();
        }
    });
    let mut polled = PolledController::connect(&options(&running, &one)).unwrap();
    assert!(polled.open_queue().is_ok() && !polled.namespaces().unwrap().is_empty());
    drop(polled);
    running.settles(true);
    running.stop();
}

#[test]
fn others_get_nothing_beyond_discovery() {
    let known = credentials(HOST, false);
    let running = serve_for(&[&known], &[Group::Null]);
    runtime().block_on(async {
        // Anyone may ask what there is.
        let found = discover(&running.options()).await.unwrap();
        assert!(found.iter().any(|entry| entry.subsystem_nqn == NQN_DEFAULT));
        // An unknown name; no key; another key; another host's key.
        let refused = |options: Options| async { Controller::connect(options).await.map(|_| ()).unwrap_err() };
        let error = refused(Options { reconnect_for: Duration::ZERO, ..running.options() }).await;
        assert!(error.status().is_some_and(|status| status.is(Status::CONNECT_INVALID_HOST)), "{error}");
        let nameless = Options { host_nqn: HOST.to_owned(), ..running.options() };
        let error = refused(nameless).await;
        assert!(error.to_string().contains("requires authentication"), "{error}");
        for stolen in [credentials(HOST, false), Credentials { host_nqn: HOST.to_owned(), ..credentials(OTHER, false) }]
        {
            let error = refused(options(&running, &stolen)).await;
            assert!(matches!(error, NvmeError::Authentication { .. }), "{error}");
        }
        // The device has no secret by which it could prove itself.
        let error =
            refused(options(&running, &Credentials { controller_secret: Some(secret()), ..known.clone() })).await;
        assert!(matches!(error, NvmeError::Authentication { .. }), "{error}");
    });
    running.settles(true);
    // A host that wants the device to prove itself does not trust one that asks for nothing.
    let open = serve();
    let error =
        runtime().block_on(Controller::connect(options(&open, &credentials(HOST, true)))).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("does not authenticate"), "{error}");
    runtime().block_on(Controller::connect(options(&open, &credentials(HOST, false)))).unwrap();
}

#[test]
fn keys_come_and_go_while_hosts_are_connected() {
    let (one, two, changed) = (credentials(HOST, false), credentials(OTHER, false), credentials(HOST, true));
    let running = serve_for(&[&one], &[Group::Null]);
    let known = |hosts: &[&Credentials]| {
        let mut known = HostAuthentication::new(hosts.iter().map(|host| (*host).clone())).unwrap();
        known.policy = Policy { groups: vec![Group::Null], ..Policy::default() };
        known
    };
    let reload = |authentication: Option<HostAuthentication>| {
        let reload = Reload { listen: vec![running.address.into()], referrals: Vec::new(), authentication };
        running.handle.reload(reload, PATIENCE).expect("the server answers")
    };
    runtime().block_on(async {
        let connect = |credentials: &Credentials| Controller::connect(options(&running, credentials));
        let read = async |controller: &Controller| {
            let entry = SubmissionEntry::new(opcode::nvm::READ).with_nsid(1).with_cdw(12, 0);
            let buffer = willow_host::nvme_tcp::Transfer::FromController(vec![1; 4096]);
            controller.command(Via::Queue(0), "Read", entry, buffer, true).await.is_ok()
        };
        let first = connect(&one).await.unwrap();
        assert!(connect(&two).await.is_err() && read(&first).await);
        assert_eq!(reload(Some(known(&[&one, &two]))).unwrap().len(), 1);
        let second = connect(&two).await.unwrap();
        assert!(read(&first).await && read(&second).await, "who has its key still notices nothing");

        let error = reload(None).unwrap_err();
        assert!(error.to_string().contains("restart"), "{error}");
        let mut impossible = known(&[&one]);
        impossible.tls_required = true;
        let error = reload(Some(impossible)).unwrap_err();
        assert!(error.to_string().contains(HOST), "{error}");
        assert!(read(&first).await && read(&second).await && connect(&one).await.is_ok());

        reload(Some(known(&[&changed, &two]))).unwrap();
        assert!(!read(&first).await, "its key is another");
        assert!(connect(&one).await.is_err() && read(&connect(&changed).await.unwrap()).await);
        assert!(read(&second).await);
        reload(Some(known(&[&changed]))).unwrap();
        assert!(!read(&second).await && connect(&two).await.is_err(), "its key is gone");
    });
    running.settles(true);
    // Where no host had a key, those that come without end, and nobody comes without any more.
    let open = serve();
    runtime().block_on(async {
        let stranger = || Controller::connect(Options { reconnect_for: Duration::ZERO, ..open.options() });
        let before = stranger().await.unwrap();
        let reload =
            Reload { listen: vec![open.address.into()], referrals: Vec::new(), authentication: Some(known(&[&one])) };
        open.handle.reload(reload, PATIENCE).expect("the server answers").unwrap();
        assert!(before.namespaces().await.is_err() && stranger().await.is_err());
        Controller::connect(options(&open, &one)).await.unwrap();
    });
}

/// Authentication Send; its completion.
fn send(peer: &mut Peer, cid: u16, message: &[u8]) -> CompletionEntry {
    let bytes = message.len() as u32;
    let entry = AuthenticationCommand::send(bytes).with_cid(cid).with_sgl(Sgl::in_capsule(0, bytes));
    peer.ask(&entry, message)
}

fn receive(peer: &mut Peer, cid: u16, bytes: u32) -> (CompletionEntry, Vec<u8>) {
    peer.ask_data(&AuthenticationCommand::receive(bytes).with_cid(cid).with_sgl(Sgl::transport(bytes)), &[])
}

fn exchange(credentials: &Credentials) -> HostExchange {
    let ends = Ends { credentials: Arc::new(credentials.clone()), subsystem_nqn: NQN_DEFAULT.to_owned() };
    HostExchange::new(ends, 5, Entropy::system())
}

/// Authenticates a queue whose Connect asked for it.
fn prove(peer: &mut Peer, credentials: &Credentials) {
    let mut exchange = exchange(credentials);
    assert!(send(peer, 1, &exchange.negotiate()).status.is_success());
    let (completion, challenge) = receive(peer, 2, 4096);
    assert!(completion.status.is_success() && challenge.len() == 4096);
    assert!(send(peer, 3, &exchange.reply(&challenge).unwrap()).status.is_success());
    let (_, success) = receive(peer, 4, 4096);
    assert_eq!(exchange.finish(&success), Ok(None));
}

const REQUIRED: u64 = 1 << 17;

#[test]
fn each_queue_takes_nothing_but_authentication_first() {
    let known = credentials(HOST, false);
    let running = serve_for(&[&known], &[Group::Null]);
    let mut admin = Peer::initialized(running.address, false);
    let connected = admin.connect(0, 0xffff, NQN_DEFAULT);
    assert!(connected.status.is_success() && connected.result & REQUIRED != 0);
    let cntlid = connected.result as u16;
    let required =
        |completion: CompletionEntry| assert!(completion.status.is(Status::AUTHENTICATION_REQUIRED), "{completion:?}");
    let identify =
        SubmissionEntry::new(opcode::admin::IDENTIFY).with_cid(8).with_cdw(10, 1).with_sgl(Sgl::transport(4096));
    required(admin.ask(&identify, &[]));
    required(admin.ask(&willow_wire::spec::fabrics::property_get(0, true).with_cid(9), &[]));
    required(admin.ask(&willow_wire::spec::fabrics::property_set(0x14, 0x46_0061, false).with_cid(9), &[]));
    // No other queue of a controller whose host is not known.
    let mut early = Peer::initialized(running.address, false);
    assert!(!early.connect(1, cntlid, NQN_DEFAULT).status.is_success());
    prove(&mut admin, &known);
    assert!(
        admin
            .ask(&willow_wire::spec::fabrics::property_set(0x14, 0x46_0061, false).with_cid(9), &[])
            .status
            .is_success()
    );
    // The admin queue's proof is not the I/O queue's.
    let mut io = Peer::initialized(running.address, false);
    let connected = io.connect(1, cntlid, NQN_DEFAULT);
    assert!(connected.status.is_success() && connected.result & REQUIRED != 0);
    required(io.ask(&read(7, 0, 1, 4096), &[]));
    required(io.ask(&write(7, 0, 1, Sgl::transport(4096)), &[]));
    let tunnel = SubmissionEntry::new(0x86).with_cid(7).with_nsid(1).with_sgl(Sgl::transport(4096));
    required(io.ask(&tunnel, &[]));
    prove(&mut io, &known);
    assert!(io.ask(&read(7, 0, 1, 4096), &[]).status.is_success());
    // Proven anew while it is in use.
    prove(&mut io, &known);
    assert!(io.ask(&read(7, 0, 1, 4096), &[]).status.is_success());
    // Anew without the secret: it is lost, and the connection with it.
    let mut exchange = exchange(&credentials(HOST, false));
    send(&mut io, 1, &exchange.negotiate());
    let (_, challenge) = receive(&mut io, 2, 4096);
    send(&mut io, 3, &exchange.reply(&challenge).unwrap());
    required(io.ask(&read(7, 0, 1, 4096), &[]));
    let (_, failure) = receive(&mut io, 4, 4096);
    assert_eq!(Message::parse(&failure), Ok(Message::Failure1(5, Explanation::Failed)));
    assert!(io.next().is_none(), "the device closes it");
    assert!(admin.ask(&identify, &[]).status.is_success());
}

#[test]
fn authentication_commands_are_checked_and_a_failure_ends_the_connection() {
    let known = credentials(HOST, false);
    let running = serve_for(&[&known], &[Group::Null]);
    let mut admin = Peer::initialized(running.address, false);
    admin.connect(0, 0xffff, NQN_DEFAULT);
    let message = exchange(&known).negotiate();
    let bytes = message.len() as u32;
    let good = AuthenticationCommand::send(bytes).with_cid(1).with_sgl(Sgl::in_capsule(0, bytes));
    for offset in [AuthenticationCommand::SECP, AuthenticationCommand::SPSP0, AuthenticationCommand::SPSP1] {
        let mut bad = good;
        bad.0[usize::from(offset)] ^= 0x10;
        assert!(admin.ask(&bad, &message).status.is(Status::INVALID_FIELD));
    }
    let mut longer = good;
    longer.0[44] += 1;
    assert!(admin.ask(&longer, &message).status.is(Status::DATA_SGL_LENGTH_INVALID));
    let mut empty = good;
    empty.0[44] = 0;
    assert!(admin.ask(&empty, &message).status.is(Status::INVALID_FIELD));
    // Nothing to fetch yet; then a buffer that is too small, which changes nothing.
    assert!(receive(&mut admin, 2, 4096).0.status.is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(admin.ask(&good, &message).status.is_success());
    assert!(receive(&mut admin, 2, 16).0.status.is(Status::INVALID_FIELD));
    let (completion, challenge) = receive(&mut admin, 2, 100);
    assert!(completion.status.is_success() && challenge.len() == 100);
    // Out of order: the same negotiation once more.
    assert!(admin.ask(&good, &message).status.is_success());
    let (_, failure) = receive(&mut admin, 2, 8);
    assert_eq!(Message::parse(&failure), Ok(Message::Failure1(5, Explanation::IncorrectMessage)));
    assert!(admin.next().is_none(), "the device closes it");
    // Where nobody has to prove anything, there is no such command.
    let open = serve();
    let (mut admin, _) = Peer::admin(open.address, false);
    assert!(admin.ask(&good, &message).status.is(Status::INVALID_OPCODE));
    let mut discovery = Peer::initialized(running.address, false);
    assert!(discovery.connect(0, 0xffff, DISCOVERY_NQN).result & REQUIRED == 0);
    running.settles(false);
}

#[test]
fn a_recorded_session_is_of_no_use() {
    let known = credentials(HOST, false);
    let running = serve_for(&[&known], &[Group::Ffdhe2048]);
    let mut exchange = exchange(&known);
    let mut admin = Peer::initialized(running.address, false);
    admin.connect(0, 0xffff, NQN_DEFAULT);
    let negotiate = exchange.negotiate();
    send(&mut admin, 1, &negotiate);
    let reply = exchange.reply(&receive(&mut admin, 2, 4096).1).unwrap();
    send(&mut admin, 3, &reply);
    assert_eq!(exchange.finish(&receive(&mut admin, 4, 4096).1), Ok(None));
    // The same bytes on another connection.
    let mut thief = Peer::initialized(running.address, false);
    thief.connect(0, 0xffff, NQN_DEFAULT);
    send(&mut thief, 1, &negotiate);
    receive(&mut thief, 2, 4096);
    send(&mut thief, 3, &reply);
    let (_, failure) = receive(&mut thief, 4, 4096);
    assert_eq!(Message::parse(&failure[..8]), Ok(Message::Failure1(5, Explanation::Failed)));
    assert!(thief.next().is_none(), "the device closes it");
}
