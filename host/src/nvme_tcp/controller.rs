//! A controller of a subsystem: its admin queue, its I/O queues, and the task that watches over them.
//!
//! What always holds:
//! - the watching task alone makes and ends sessions; a session is one admin queue with its I/O queues, and ends whole;
//! - while there is no session, commands wait for the next one, until the time to reconnect is over;
//! - an Abort is tried before a session is given up because of one command;
//! - where the device has begun anew, and changes that it had answered may be lost by that ([`super::unflushed`]), there is no next session: no flush
//!   says later that they are durable;
//! - the task ends when the last [`Controller`] is dropped, or after [`Controller::shut_down`].

use super::bringup::{self, Port, Ready};
use super::connection::{Connection, Expired};
use super::identity::NamespaceIdentity;
use super::options::RETRIES_MAX;
use super::queue::{Completed, QueueConfig, Transfer};
use super::unflushed::{Effect, Unflushed};
use super::{NvmeError, Options, Retry};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use willow_wire::spec::feature::event;
use willow_wire::spec::{SubmissionEntry, fabrics, log, opcode};

/// Commands of our own in flight on the admin queue.
const ADMIN_DEPTH: u16 = bringup::ADMIN_QUEUE_ENTRIES - 1;
/// Time limit of the event request: it is never due.
const NO_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// All that exists while the controller is connected.
#[derive(Debug)]
pub struct Session {
    admin: Connection,
    io: Vec<Connection>,
    ready: Ready,
}

#[derive(Clone, Debug)]
enum Phase {
    /// There is none; the next one is being made.
    Connecting,
    /// There is one.
    Up(Arc<Session>),
    /// There will be none any more.
    Over(NvmeError),
}

#[derive(Debug)]
enum Order {
    ShutDown(oneshot::Sender<Result<(), NvmeError>>),
}

/// A connected controller. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Controller {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: Arc<Options>,
    phase: watch::Receiver<Phase>,
    namespaces_changed: watch::Receiver<u64>,
    orders: mpsc::Sender<Order>,
    next: AtomicUsize,
    unflushed: Arc<Unflushed>,
}

/// Where a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Admin queue.
    Admin,
    /// This I/O queue (modulo how many there are).
    Queue(usize),
    /// Any I/O queue, in turn.
    Any,
}

impl Controller {
    /// Connects: discovery is not needed, the subsystem's address and NQN are in the options.
    pub async fn connect(options: Options) -> Result<Self, NvmeError> {
        options.validate()?;
        let options = Arc::new(options);
        let (expired_sender, expired) = mpsc::unbounded_channel();
        let session = Arc::new(Session::make(&options, &expired_sender).await?);
        let (phase_sender, phase) = watch::channel(Phase::Up(session.clone()));
        let (changed_sender, namespaces_changed) = watch::channel(0);
        let (orders, orders_receiver) = mpsc::channel(1);
        let unflushed = Arc::new(Unflushed::new(session.ready.identity.start));
        let watcher = Watcher {
            options: options.clone(),
            unflushed: unflushed.clone(),
            phase: phase_sender,
            namespaces_changed: changed_sender,
            orders: orders_receiver,
            expired_sender,
            expired,
        };
        tokio::spawn(watcher.run(session));
        let inner = Inner { options, phase, namespaces_changed, orders, next: AtomicUsize::new(0), unflushed };
        Ok(Controller { inner: Arc::new(inner) })
    }

    /// Options that it was made with.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// What the controller said of itself when it was connected last.
    pub async fn ready(&self) -> Result<Ready, NvmeError> {
        Ok(self.session(self.inner.options.command_timeout).await?.ready.clone())
    }

    /// Number of I/O queues.
    pub async fn queues(&self) -> Result<usize, NvmeError> {
        Ok(self.session(self.inner.options.command_timeout).await?.io.len())
    }

    /// Counts events that say that namespaces came, went or changed.
    pub fn namespaces_changed(&self) -> watch::Receiver<u64> {
        self.inner.namespaces_changed.clone()
    }

    async fn session(&self, limit: Duration) -> Result<Arc<Session>, NvmeError> {
        if let Phase::Up(session) = &*self.inner.phase.borrow() {
            return Ok(session.clone());
        }
        let mut phase = self.inner.phase.clone();
        let wait = phase.wait_for(|phase| !matches!(phase, Phase::Connecting));
        match tokio::time::timeout(limit, wait).await {
            Ok(Ok(phase)) => match &*phase {
                Phase::Up(session) => Ok(session.clone()),
                Phase::Over(error) => Err(error.clone()),
                Phase::Connecting => Err(NvmeError::ShutDown),
            },
            Ok(Err(_)) => Err(NvmeError::ShutDown),
            Err(_) => Err(NvmeError::ConnectionLost {
                address: self.inner.options.address,
                queue: 0,
                reason: "not connected again yet".into(),
            }),
        }
    }

    /// Does a command and returns its completion, whatever its status. `idempotent`: it may be sent again after a loss of the
    /// connection, where the options say so.
    pub async fn execute(
        &self,
        via: Via,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
        idempotent: bool,
    ) -> Result<Completed, NvmeError> {
        self.execute_within(via, what, entry, transfer, idempotent, self.inner.options.command_timeout).await
    }

    /// The same with a time limit of its own.
    pub async fn execute_within(
        &self,
        via: Via,
        what: &'static str,
        entry: SubmissionEntry,
        mut transfer: Transfer,
        idempotent: bool,
        limit: Duration,
    ) -> Result<Completed, NvmeError> {
        let mut tries = 0;
        loop {
            let session = self.session(limit).await?;
            let connection = session.connection(via, &self.inner.next);
            let start = session.ready.identity.start;
            let counts = start != 0 && via != Via::Admin;
            let effect = if counts { self.inner.unflushed.effect(&entry) } else { Effect::Nothing };
            match connection.execute(what, entry, transfer, limit).await {
                Ok(completed) => {
                    let done = completed.entry.status.is_success();
                    if counts && done && self.inner.unflushed.succeeded(start, &effect).is_err() {
                        // The device that has answered is gone, and the next is there already.
                        return Err(NvmeError::Forgotten { address: self.inner.options.address });
                    }
                    return Ok(completed);
                }
                Err((error, data)) => {
                    let again = idempotent
                        && self.inner.options.retry == Retry::Idempotent
                        && error.is_connection()
                        && tries < RETRIES_MAX;
                    if !again {
                        return Err(error);
                    }
                    tries += 1;
                    transfer = data;
                    // The watcher may not have noticed yet that this session is over.
                    let mut phase = self.inner.phase.clone();
                    let over = |now: &Phase| !matches!(now, Phase::Up(up) if Arc::ptr_eq(up, &session));
                    let _ = tokio::time::timeout(limit, phase.wait_for(over)).await;
                }
            }
        }
    }

    /// The same, failing where the status is no success.
    pub async fn command(
        &self,
        via: Via,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
        idempotent: bool,
    ) -> Result<Completed, NvmeError> {
        bringup::check(what, self.execute(via, what, entry, transfer, idempotent).await?)
    }

    /// The active namespaces now.
    pub async fn namespaces(&self) -> Result<Vec<NamespaceIdentity>, NvmeError> {
        bringup::namespaces(&mut AdminPort(self.clone()), &self.inner.options).await
    }

    /// One namespace now.
    pub async fn namespace(&self, nsid: u32) -> Result<Option<NamespaceIdentity>, NvmeError> {
        bringup::namespace(&mut AdminPort(self.clone()), &self.inner.options, nsid).await
    }

    /// Reads a log page.
    pub async fn log_page(&self, nsid: u32, page: u8, offset: u64, bytes: usize) -> Result<Vec<u8>, NvmeError> {
        bringup::log_page(&mut AdminPort(self.clone()), nsid, page, offset, bytes).await
    }

    /// Shuts the controller down as the specification wants it, and ends all connections.
    pub async fn shut_down(&self) -> Result<(), NvmeError> {
        let (sender, receiver) = oneshot::channel();
        if self.inner.orders.send(Order::ShutDown(sender)).await.is_err() {
            return Ok(());
        }
        receiver.await.unwrap_or(Ok(()))
    }
}

/// Reads the discovery log of the service at an address.
pub async fn discover(options: &Options) -> Result<Vec<fabrics::DiscoveryEntry>, NvmeError> {
    let options = Arc::new(Options {
        subsystem_nqn: fabrics::DISCOVERY_NQN.to_owned(),
        keep_alive: Duration::ZERO,
        ..options.clone()
    });
    options.validate()?;
    let connection = Connection::open(options.clone(), 0, admin_config(&options), None).await?;
    let mut port = ConnectionPort { connection: connection.clone(), limit: options.connect_timeout };
    let read = async {
        let ready = bringup::enable(&mut port, &options).await?;
        let entries = bringup::discovery_log(&mut port, &options).await?;
        if let Err(error) = bringup::shut_down(&mut port, &options, ready.capabilities).await {
            tracing::debug!(%error, "shutdown of the discovery controller");
        }
        Ok(entries)
    };
    let result = read.await;
    connection.close();
    result
}

fn admin_config(options: &Options) -> QueueConfig {
    QueueConfig {
        depth: ADMIN_DEPTH,
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        capsule_data_bytes: 0,
        receive_bytes: 16 << 10,
        admin: true,
    }
}

struct AdminPort(Controller);

impl Port for AdminPort {
    async fn execute(
        &mut self,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
    ) -> Result<Completed, NvmeError> {
        // What goes this way only reads.
        self.0.execute(Via::Admin, what, entry, transfer, true).await
    }
    async fn sleep(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

struct ConnectionPort {
    connection: Connection,
    limit: Duration,
}

impl Port for ConnectionPort {
    async fn execute(
        &mut self,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
    ) -> Result<Completed, NvmeError> {
        self.connection.execute(what, entry, transfer, self.limit).await.map_err(|(error, _)| error)
    }
    async fn sleep(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

impl Session {
    fn connection(&self, via: Via, next: &AtomicUsize) -> &Connection {
        match via {
            Via::Admin => &self.admin,
            Via::Queue(index) => &self.io[index % self.io.len()],
            Via::Any if self.io.len() == 1 => &self.io[0],
            Via::Any => &self.io[next.fetch_add(1, Ordering::Relaxed) % self.io.len()],
        }
    }

    /// The options by which to connect: with a key for TLS that is generated now, where they want one.
    async fn secured(options: &Arc<Options>) -> Result<Arc<Options>, NvmeError> {
        if !options.awaits_channel() {
            return Ok(options.clone());
        }
        let connection = Connection::open(options.clone(), 0, admin_config(options), None).await?;
        let mut port = ConnectionPort { connection: connection.clone(), limit: options.connect_timeout };
        let secured = bringup::channel(&mut port, options).await;
        connection.close();
        secured.map(Arc::new)
    }

    async fn make(options: &Arc<Options>, expired: &mpsc::UnboundedSender<Expired>) -> Result<Self, NvmeError> {
        let options = &Session::secured(options).await?;
        let admin = Connection::open(options.clone(), 0, admin_config(options), None).await?;
        let mut session = Session::enable(options, admin.clone()).await.inspect_err(|_| admin.close())?;
        match session.add_queues(options, expired).await {
            Ok(()) => Ok(session),
            Err(error) => {
                session.fail(&error);
                Err(error)
            }
        }
    }

    async fn enable(options: &Arc<Options>, admin: Connection) -> Result<Self, NvmeError> {
        let mut port = ConnectionPort { connection: admin.clone(), limit: options.connect_timeout };
        let ready = bringup::enable(&mut port, options).await?;
        Ok(Session { admin, io: Vec::new(), ready })
    }

    async fn add_queues(
        &mut self,
        options: &Arc<Options>,
        expired: &mpsc::UnboundedSender<Expired>,
    ) -> Result<(), NvmeError> {
        let mut port = ConnectionPort { connection: self.admin.clone(), limit: options.connect_timeout };
        let queues = bringup::number_of_queues(&mut port, options.queues).await?;
        bringup::configure_events(&mut port, self.ready.identity.events & event::CONFIGURE_NAMESPACE).await?;
        // A queue of n entries takes n - 1 commands (NVMe Base 3.3.1.5).
        let entries_max = self.ready.capabilities.queue_entries_max().min(u32::from(u16::MAX));
        let entries = (u32::from(options.depth) + 1).min(entries_max).max(2) as u16;
        for queue in 1..=queues {
            let config = QueueConfig {
                depth: entries - 1,
                header_digest: options.header_digest,
                data_digest: options.data_digest,
                capsule_data_bytes: self.ready.identity.capsule_data_bytes,
                receive_bytes: options.receive_bytes,
                admin: false,
            };
            let connection = Connection::open(options.clone(), queue, config, Some(expired.clone())).await?;
            self.io.push(connection.clone());
            let mut port = ConnectionPort { connection, limit: options.connect_timeout };
            bringup::connect(&mut port, options, queue, self.ready.controller_id, entries).await?;
        }
        Ok(())
    }

    fn fail(&self, error: &NvmeError) {
        for connection in self.io.iter().chain([&self.admin]) {
            connection.fail(error.clone());
        }
    }

    /// Waits until any of its connections has failed.
    async fn wait_failed(&self) -> NvmeError {
        std::future::poll_fn({
            let mut waits: Vec<_> = self
                .io
                .iter()
                .chain([&self.admin])
                .map(|connection| {
                    Box::pin(async move {
                        connection.wait_failed().await;
                        connection.failure()
                    })
                })
                .collect();
            move |context| {
                for wait in &mut waits {
                    if let std::task::Poll::Ready(error) = wait.as_mut().poll(context) {
                        return std::task::Poll::Ready(error);
                    }
                }
                std::task::Poll::Pending
            }
        })
        .await
    }
}

struct Watcher {
    options: Arc<Options>,
    unflushed: Arc<Unflushed>,
    phase: watch::Sender<Phase>,
    namespaces_changed: watch::Sender<u64>,
    orders: mpsc::Receiver<Order>,
    expired_sender: mpsc::UnboundedSender<Expired>,
    expired: mpsc::UnboundedReceiver<Expired>,
}

impl Watcher {
    async fn run(mut self, mut session: Arc<Session>) {
        loop {
            let Some(error) = self.watch(&session).await else { return };
            tracing::warn!(address = %self.options.address, %error, "connection lost");
            session.fail(&error);
            if self.options.reconnect_for.is_zero() {
                let _ = self.phase.send(Phase::Over(error));
                return;
            }
            let _ = self.phase.send(Phase::Connecting);
            match self.reconnect().await {
                Some(made) => session = made,
                None => return,
            }
            if !self.unflushed.goes_on(session.ready.identity.start) {
                let error = NvmeError::Forgotten { address: self.options.address };
                tracing::error!("{error}");
                session.fail(&error);
                let _ = self.phase.send(Phase::Over(error));
                return;
            }
            let _ = self.phase.send(Phase::Up(session.clone()));
            // Namespaces may have changed unseen.
            self.namespaces_changed.send_modify(|count| *count += 1);
            tracing::info!(address = %self.options.address, "connected again");
        }
    }

    /// Watches over a session: its error, or `None` where all is over.
    async fn watch(&mut self, session: &Arc<Session>) -> Option<NvmeError> {
        let keep_alive = self.options.keep_alive / 2;
        let mut alive_at = Instant::now() + keep_alive;
        let has_events = session.ready.identity.events & event::CONFIGURE_NAMESPACE != 0;
        let events = self.events(session.clone(), has_events);
        let failed = session.wait_failed();
        tokio::pin!(events, failed);
        loop {
            tokio::select! {
                error = &mut failed => return Some(error),
                error = &mut events => return Some(error),
                order = self.orders.recv() => {
                    let done = shut_down(session, &self.options).await;
                    let _ = self.phase.send(Phase::Over(NvmeError::ShutDown));
                    if let Some(Order::ShutDown(sender)) = order {
                        let _ = sender.send(done);
                    }
                    return None;
                }
                Some(expired) = self.expired.recv() => abort(session.clone(), expired, self.options.command_timeout),
                () = tokio::time::sleep_until(alive_at), if !keep_alive.is_zero() => {
                    let entry = SubmissionEntry::new(opcode::admin::KEEP_ALIVE);
                    match session.admin.execute("Keep Alive", entry, Transfer::None, self.options.keep_alive).await {
                        Ok(_) => alive_at = Instant::now() + keep_alive,
                        Err((error, _)) => return Some(error),
                    }
                }
            }
        }
    }

    /// Keeps one Asynchronous Event Request at the controller and reads what clears the event; ends with an error only.
    fn events(&self, session: Arc<Session>, enabled: bool) -> impl Future<Output = NvmeError> + use<> {
        let changed = self.namespaces_changed.clone();
        let limit = self.options.command_timeout;
        async move {
            if !enabled {
                return std::future::pending().await;
            }
            loop {
                let entry = SubmissionEntry::new(opcode::admin::ASYNC_EVENT_REQUEST);
                let done = match session.admin.execute("event request", entry, Transfer::None, NO_LIMIT).await {
                    Ok(done) => done,
                    Err((error, _)) => return error,
                };
                if !done.entry.status.is_success() {
                    tracing::debug!(status = %done.entry.status, "no more asynchronous events");
                    break;
                }
                let result = done.entry.result as u32;
                tracing::debug!(result, "asynchronous event");
                if event::log_page(result) != 0 {
                    // Reading the page rearms the event.
                    let bytes = if event::log_page(result) == log::CHANGED_NAMESPACES { 4096 } else { 512 };
                    let mut port = ConnectionPort { connection: session.admin.clone(), limit };
                    let nsid = willow_wire::spec::identify::NSID_ALL;
                    if let Err(error) = bringup::log_page(&mut port, nsid, event::log_page(result), 0, bytes).await {
                        tracing::debug!(%error, "log page of an event");
                        if error.is_connection() {
                            return error;
                        }
                    }
                }
                if event::event_type(result) == event::TYPE_NOTICE
                    && event::information(result) == event::NOTICE_NAMESPACE_CHANGED
                {
                    changed.send_modify(|count| *count += 1);
                }
            }
            std::future::pending().await
        }
    }

    /// A new session, or `None` where it is all over.
    async fn reconnect(&mut self) -> Option<Arc<Session>> {
        let until = Instant::now() + self.options.reconnect_for;
        let mut delay = self.options.reconnect_delay;
        loop {
            // What the old session's commands had to say is of no use any more.
            while self.expired.try_recv().is_ok() {}
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                order = self.orders.recv() => {
                    let _ = self.phase.send(Phase::Over(NvmeError::ShutDown));
                    if let Some(Order::ShutDown(sender)) = order {
                        let _ = sender.send(Ok(()));
                    }
                    return None;
                }
            }
            let error = match Session::make(&self.options, &self.expired_sender).await {
                Ok(session) => return Some(Arc::new(session)),
                Err(error) => error,
            };
            tracing::debug!(%error, "no new connection yet");
            if Instant::now() >= until {
                tracing::warn!(address = %self.options.address, %error, "giving up");
                let _ = self.phase.send(Phase::Over(error));
                return None;
            }
            delay = (delay * 2).min(self.options.reconnect_delay_max);
        }
    }
}

/// Asks the controller to give a command up; its own second deadline ends the session where it does not.
fn abort(session: Arc<Session>, expired: Expired, limit: Duration) {
    tracing::warn!(queue = expired.queue, cid = expired.cid, "command timed out, aborting it");
    tokio::spawn(async move {
        let entry = SubmissionEntry::new(opcode::admin::ABORT)
            .with_cdw(10, u32::from(expired.queue) | u32::from(expired.cid) << 16);
        if let Err((error, _)) = session.admin.execute("Abort", entry, Transfer::None, limit).await {
            tracing::debug!(%error, "abort");
        }
    });
}

async fn shut_down(session: &Session, options: &Options) -> Result<(), NvmeError> {
    for connection in &session.io {
        connection.close();
    }
    let mut port = ConnectionPort { connection: session.admin.clone(), limit: options.connect_timeout };
    let done = bringup::shut_down(&mut port, options, session.ready.capabilities).await;
    session.admin.close();
    done
}
