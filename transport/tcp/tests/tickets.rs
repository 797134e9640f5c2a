//! Endpoints of users over NVMe/TCP: tickets, what they are good for, and what they are not.
#![forbid(unsafe_code)]

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use willow_auth::{Credentials, Entropy, Hash, HostKey, PresharedKey, Secret};
use willow_host::control::{CommandSet, NamespaceRequest, PermissionInfo, ProcessRequest};
use willow_host::nvme_tcp::{Transfer, Via};
use willow_host::{BlockClient, ControlClient, Controller, HreError, NvmeError, NvmeHre, Options};
use willow_nvme::HostAuthentication;
use willow_nvme::config::{Hole, TICKET_NQN_PREFIX, TICKETS_MAX};
use willow_tcp::ServerConfig;
use willow_wire::spec::{Sgl, Status, SubmissionEntry, opcode, ticket, tunnel};

const READ: u32 = 1;
const WRITE: u32 = 2;
const STRIPE_BYTES: u64 = 8192;
const TIME: Duration = Duration::from_secs(60);

fn secret() -> Secret {
    Secret::generate(None, &Entropy::system()).unwrap()
}

/// How the kernel comes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Clear,
    /// Over TLS, where others may come in the clear.
    Tls,
    /// Over TLS, which the device demands.
    TlsAlone,
}

const KERNEL: &str = "nqn.2025-01.org.example:kernel";

/// A host that acts as kernel, and the device that knows it by its key.
struct Kernel {
    running: Running,
    controller: Controller,
    control: ControlClient,
    base: u64,
}

impl Kernel {
    async fn new(by: By) -> Self {
        Kernel::with(by, None).await
    }

    /// The same, of a device with a weakness.
    async fn with(by: By, hole: Option<Hole>) -> Self {
        let host_nqn = KERNEL.to_owned();
        let credentials = Credentials { host_nqn: host_nqn.clone(), secret: secret(), controller_secret: None };
        let key = HostKey {
            host_nqn,
            credentials: Some(credentials),
            psk: (by != By::Clear).then(|| psk(Hash::Sha384)),
            secure_channel: false,
        };
        let mut authentication = HostAuthentication::new([key.clone()]).unwrap();
        authentication.tls_required = by == By::TlsAlone;
        let configure = move |config: &mut ServerConfig| {
            config.subsystem.authentication = Some(authentication);
            config.subsystem.hole = hole;
        };
        let running = serve_with(configure, 4096);
        let controller = Controller::connect(options(&running, &key)).await.unwrap();
        let control = ControlClient::new(Arc::new(NvmeHre::new(controller.clone(), 0).await.unwrap()));
        let base = control.namespaces().await.unwrap().iter().find(|one| one.nsid == 1).unwrap().base;
        Kernel { running, controller, control, base }
    }

    async fn process(&self, user: u32) -> u32 {
        self.control.open_process(&ProcessRequest { user, weight: 1 }).await.unwrap()
    }

    /// A permission for the first stripe of namespace 1, which lies on SPU 0.
    fn permission(&self, rights: u32) -> [PermissionInfo; 1] {
        [PermissionInfo { spu: 0, start: self.base, bytes: STRIPE_BYTES, rights }]
    }

    async fn connect(&self, key: &HostKey) -> Result<Controller, NvmeError> {
        Controller::connect(options(&self.running, key)).await
    }
}

fn options(running: &Running, key: &HostKey) -> Options {
    let options = running.options().with_host_key(key.clone());
    Options { reconnect_for: Duration::ZERO, queues: 2, ..options }
}

fn psk(hash: Hash) -> PresharedKey {
    PresharedKey::generate(hash, &Entropy::system()).unwrap()
}

/// The key with another secret.
fn with_secret(key: &HostKey, secret: Secret) -> HostKey {
    let credentials = Credentials { secret, ..key.credentials.clone().unwrap() };
    HostKey { credentials: Some(credentials), ..key.clone() }
}

/// The key by another name.
fn named(key: &HostKey, host_nqn: String) -> HostKey {
    let credentials = Credentials { host_nqn: host_nqn.clone(), ..key.credentials.clone().unwrap() };
    HostKey { host_nqn, credentials: Some(credentials), ..key.clone() }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn run_by_all(test: impl AsyncFn(By)) {
    [By::Clear, By::Tls, By::TlsAlone].into_iter().for_each(|by| run(test(by)));
}

/// True where the error is that there is no such host: by TLS the handshake says so.
fn is_unknown(outcome: Result<Controller, NvmeError>) -> bool {
    outcome.is_err_and(|error| {
        matches!(error, NvmeError::Secure { .. })
            || error.status().is_some_and(|status| status.is(Status::CONNECT_INVALID_HOST))
    })
}

#[test]
fn a_process_reaches_what_it_was_permitted_and_nothing_else() {
    run_by_all(async |by| {
        let kernel = Kernel::new(by).await;
        let process = kernel.process(1000).await;
        let ticket = kernel.controller.issue_ticket(process, TIME, 0).await.unwrap();
        let user = kernel.connect(&ticket).await.unwrap();
        assert_eq!(user.queues().await.unwrap(), 2);
        // What it holds is counted with all that came by this host's tickets.
        let hosts = kernel.running.handle.statistics(PATIENCE).unwrap().hosts;
        let of = |name: &str| hosts.iter().find(|host| host.host == name).expect("it has connections");
        assert_eq!(of(&ticket.host_nqn).issuer, KERNEL);
        assert_eq!((of(KERNEL).issuer.as_str(), of(&ticket.host_nqn).connections), ("", 3));
        for queue in 0..2 {
            let hre = Arc::new(NvmeHre::new(user.clone(), queue).await.unwrap());
            let blocks = BlockClient::open(hre.clone(), 1).await.unwrap();
            let denied = |outcome: Result<Vec<u8>, HreError>| assert!(outcome.is_err(), "{outcome:?}");
            denied(blocks.read(0, 4096).await);
            kernel.control.grant(process, &kernel.permission(READ)).await.unwrap();
            assert_eq!(blocks.read(0, 8192).await.unwrap().len(), 8192);
            denied(blocks.write(0, vec![7; 4096], false).await);
            denied(blocks.read(STRIPE_BYTES, 4096).await);
            denied(blocks.read(0, 12288).await);
            kernel.control.grant(process, &kernel.permission(READ | WRITE)).await.unwrap();
            blocks.write(4096, vec![7; 4096], true).await.unwrap();
            assert_eq!(blocks.read(4096, 4096).await.unwrap(), vec![7; 4096]);
            kernel.control.revoke(process, &kernel.permission(READ | WRITE)).await.unwrap();
            denied(blocks.read(0, 4096).await);
            // The control service knows whose endpoint it is.
            let control = ControlClient::new(hre);
            let request = NamespaceRequest::new(CommandSet::Nvm, 1 << 20);
            assert!(control.create_namespace(&request).await.is_err());
            assert!(control.grant(process, &kernel.permission(READ)).await.is_err());
            assert!(control.open_process(&ProcessRequest { user: 0, weight: 1 }).await.is_err());
        }
        // Nothing is managed over its admin queue, and no ticket asked for.
        let is_denied = |error: NvmeError| error.status().is_some_and(|status| status.is(Status::OPERATION_DENIED));
        assert!(is_denied(user.issue_ticket(process, TIME, 0).await.unwrap_err()));
        assert!(is_denied(user.withdraw_tickets(process).await.unwrap_err()));
        let create = SubmissionEntry::new(opcode::admin::NAMESPACE_MANAGEMENT);
        let made = user.command(Via::Admin, "create", create, Transfer::ToController(vec![0; 4096]), false).await;
        assert!(is_denied(made.unwrap_err()));
        kernel.controller.shut_down().await.unwrap();
    });
}

#[test]
fn tickets_are_for_who_has_the_secret_and_for_once() {
    run_by_all(async |by| {
        let kernel = Kernel::new(by).await;
        let process = kernel.process(1000).await;
        let ticket = kernel.controller.issue_ticket(process, TIME, 0).await.unwrap();
        // Names alone are of no use, and do not use the ticket up; nor are names that were never issued.
        let stolen = with_secret(&ticket, secret());
        assert!(matches!(kernel.connect(&stolen).await, Err(NvmeError::Authentication { .. })));
        let forged = named(&ticket, format!("{TICKET_NQN_PREFIX}{}", "0".repeat(32)));
        assert!(is_unknown(kernel.connect(&forged).await));
        // What was asked for by TLS is good by TLS alone, with its own key; and what was asked for in the clear, in the clear.
        let (none, other) =
            (HostKey { psk: None, ..ticket.clone() }, HostKey { psk: Some(psk(Hash::Sha384)), ..ticket.clone() });
        assert_eq!(ticket.psk.as_ref().map(PresharedKey::hash), (by != By::Clear).then_some(Hash::Sha384));
        let by_another_key = kernel.connect(&other).await.unwrap_err();
        assert!(matches!(by_another_key, NvmeError::Secure { .. }), "{by:?}: {by_another_key}");
        match by {
            By::Clear => {}
            By::Tls => assert!(is_unknown(kernel.connect(&none).await)),
            By::TlsAlone => assert!(kernel.connect(&none).await.unwrap_err().is_connection()),
        }
        let first = kernel.connect(&ticket).await.unwrap();
        assert!(is_unknown(kernel.connect(&ticket).await), "used while the first association lives");
        first.shut_down().await.unwrap();
        assert!(is_unknown(kernel.connect(&ticket).await), "used and gone");
        // Another process' ticket is another secret.
        let other = kernel.controller.issue_ticket(kernel.process(1001).await, TIME, 0).await.unwrap();
        let fresh = kernel.controller.issue_ticket(process, TIME, 0).await.unwrap();
        let mixed = with_secret(&fresh, other.credentials.clone().unwrap().secret);
        assert!(matches!(kernel.connect(&mixed).await, Err(NvmeError::Authentication { .. })));
        // In time.
        let late = kernel.controller.issue_ticket(process, Duration::from_millis(1), 0).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(is_unknown(kernel.connect(&late).await));
        for (process, time) in
            [(0, TIME), (1 << 19, TIME), (process, Duration::ZERO), (process, Duration::from_secs(601))]
        {
            let error = kernel.controller.issue_ticket(process, time, 0).await.unwrap_err();
            assert!(error.status().is_some_and(|status| status.is(Status::INVALID_FIELD)), "{error}");
        }
        kernel.controller.shut_down().await.unwrap();
    });
}

#[test]
fn what_came_by_a_ticket_ends_with_it() {
    run_by_all(async |by| {
        let kernel = Kernel::new(by).await;
        let gone = |user: Controller| async move {
            let read = SubmissionEntry::new(opcode::nvm::FLUSH).with_nsid(1);
            for _ in 0..24_000 {
                match user.execute(Via::Any, "Flush", read, Transfer::None, false).await {
                    Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(error) => return assert!(error.is_connection(), "{error}"),
                }
            }
            panic!("the connection is still there");
        };
        // Withdrawn, used and unused: those of this process alone.
        let (one, two) = (kernel.process(1000).await, kernel.process(1001).await);
        let user = kernel.connect(&kernel.controller.issue_ticket(one, TIME, 0).await.unwrap()).await.unwrap();
        let unused = kernel.controller.issue_ticket(one, TIME, 0).await.unwrap();
        let neighbour = kernel.connect(&kernel.controller.issue_ticket(two, TIME, 0).await.unwrap()).await.unwrap();
        assert_eq!(kernel.controller.withdraw_tickets(one).await.unwrap(), 2);
        gone(user).await;
        assert!(is_unknown(kernel.connect(&unused).await));
        assert_eq!(neighbour.namespaces().await.unwrap().len(), 2);
        // With the controller that asked for it.
        kernel.controller.shut_down().await.unwrap();
        gone(neighbour).await;
        kernel.running.settles(true);
    });
}

#[test]
fn a_ticket_says_how_many_endpoints_there_may_be_and_its_process_ends_with_who_told_of_it() {
    run_by_all(async |by| {
        let kernel = Kernel::new(by).await;
        let process = kernel.process(1000).await;
        kernel.control.grant(process, &kernel.permission(READ)).await.unwrap();
        let ticket = kernel.controller.issue_ticket(process, TIME, 3).await.unwrap();
        let many = options(&kernel.running, &ticket);
        let user = Controller::connect(Options { queues: 8, ..many }).await.unwrap();
        assert_eq!(user.queues().await.unwrap(), 3, "no more than the ticket's");
        let error = kernel.controller.issue_ticket(process, TIME, 65).await.unwrap_err();
        assert!(error.status().is_some_and(|status| status.is(Status::INVALID_FIELD)), "{error}");
        let known = |all: Vec<willow_host::control::ProcessInfo>| all.iter().any(|one| one.process == process);
        assert!(known(kernel.control.processes().await.unwrap()));
        // Another kernel endpoint sees it go with the one that told of it.
        let own = Options { reconnect_for: Duration::ZERO, ..kernel.controller.options().clone() };
        let second = Controller::connect(own).await.unwrap();
        let control = ControlClient::new(Arc::new(NvmeHre::new(second, 0).await.unwrap()));
        assert!(known(control.processes().await.unwrap()));
        kernel.controller.shut_down().await.unwrap();
        for _ in 0..24_000 {
            if !known(control.processes().await.unwrap()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the process is still known");
    });
}

#[test]
fn one_hosts_tickets_leave_another_host_places() {
    run(async {
        let open = serve();
        let host = async |name: &str| {
            let host_nqn = format!("nqn.2025-01.org.example:{name}");
            Controller::connect(Options { host_nqn, reconnect_for: Duration::ZERO, ..open.options() }).await.unwrap()
        };
        let (hoarder, other) = (host("hoarder").await, host("other").await);
        let mut held = 0;
        let refused = loop {
            match hoarder.issue_ticket(5, TIME, 1).await {
                Ok(_) => held += 1,
                Err(error) => break error,
            }
        };
        assert!(refused.status().is_some_and(|status| status.is(Status::OPERATION_DENIED)), "{refused}");
        assert!((1000..TICKETS_MAX).contains(&held), "{held}");
        for _ in 0..100 {
            other.issue_ticket(6, TIME, 1).await.unwrap();
        }
    });
}

#[test]
fn commands_for_tickets_are_checked_and_hosts_without_keys_may_use_them_too() {
    let open = serve();
    let (mut admin, _) = Peer::admin(open.address, false);
    let transport = willow_wire::spec::Sgl::transport;
    let short = ticket::issue(5, 1000, 0).with_cid(1).with_sgl(transport(511));
    assert!(admin.ask(&short, &[]).status.is(Status::DATA_SGL_LENGTH_INVALID));
    let (completion, data) = admin.ask_data(&ticket::issue(5, 60_000, 0).with_cid(1).with_sgl(transport(512)), &[]);
    assert!(completion.status.is_success());
    let (host_nqn, secret, psk) = ticket::from_bytes(&data).unwrap();
    assert_eq!(psk, None, "who asked had no TLS");
    let host_nqn = host_nqn.to_owned();
    let credentials =
        Credentials { host_nqn: host_nqn.clone(), secret: secret.parse().unwrap(), controller_secret: None };
    let key = HostKey { host_nqn, credentials: Some(credentials), psk: None, secure_channel: false };
    run(async {
        let user = Controller::connect(options(&open, &key)).await.unwrap();
        let blocks = BlockClient::open(Arc::new(NvmeHre::new(user, 0).await.unwrap()), 1).await.unwrap();
        assert!(blocks.read(0, 4096).await.is_err(), "nobody vouched for the process");
        let forged = named(&key, format!("{TICKET_NQN_PREFIX}1"));
        assert!(is_unknown(Controller::connect(options(&open, &forged)).await));
    });
}

/// Rules of who somebody is that are broken in a device with that weakness.
async fn broken(hole: Option<Hole>) -> Vec<&'static str> {
    let kernel = Kernel::with(By::Clear, hole).await;
    let process = kernel.process(1000).await;
    let mut broken = Vec::new();
    let mut holds = |rule, holds: bool| broken.extend((!holds).then_some(rule));
    // Mallory has seen the name of Alice's ticket, and not its secret.
    let ticket = kernel.controller.issue_ticket(process, TIME, 0).await.unwrap();
    let stolen = kernel.connect(&with_secret(&ticket, secret())).await;
    holds("stolen: a name without its secret is nobody's", stolen.is_err());
    if let Ok(stolen) = stolen {
        stolen.shut_down().await.unwrap();
    }
    // He has all of one that Alice has used.
    let ticket = kernel.controller.issue_ticket(process, TIME, 0).await.unwrap();
    kernel.connect(&ticket).await.unwrap().shut_down().await.unwrap();
    let replayed = kernel.connect(&ticket).await;
    holds("replayed: a ticket is for once", replayed.is_err());
    if let Ok(replayed) = replayed {
        replayed.shut_down().await.unwrap();
    }
    kernel.controller.shut_down().await.unwrap();
    // The number of a command that is under way.
    let server = serve_with(move |config| config.subsystem.hole = hole, 4096);
    let (_admin, mut io, _) = Peer::with_queue(server.address, false);
    let parked = SubmissionEntry::new(tunnel::RECEIVE).with_cid(5).with_nsid(1).with_cdw(12, 15_000);
    io.command(&parked.with_sgl(Sgl::transport(4096)), &[]);
    let (again, _) = io.ask_data(&read(5, 0, 1, 4096), &[]);
    holds("number: no two commands under way have the same", again.status.is(Status::COMMAND_ID_CONFLICT));
    broken
}

#[test]
fn secrets_tickets_and_numbers_are_good_for_one_and_each_planted_weakness_breaks_its_own() {
    run(async {
        assert_eq!(broken(None).await, [""; 0]);
        for (hole, rules) in [
            // What nobody has proved is not used up either.
            (Hole::AsksForNoProof, &["stolen", "replayed"][..]),
            (Hole::TicketsStayGood, &["replayed"]),
            (Hole::ReusesIdentifiers, &["number"]),
        ] {
            let broken: Vec<&str> = broken(Some(hole)).await.iter().filter_map(|rule| rule.split(':').next()).collect();
            assert_eq!(broken, rules, "{hole:?}");
        }
    });
}
