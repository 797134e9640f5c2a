//! What other threads have of a server: the hold by which they stop it, its errors, and the threads that run errands.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use willow_nvme::config::ListenAddress;
use willow_nvme::{HostAuthentication, Statistics};

use crate::config::SHUTDOWN_LIMIT;
use crate::wake::Wake;

/// Why a server cannot be made or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A value of the configuration.
    #[error("{0}")]
    Config(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}; is another server running there?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The kernel refuses something that the server cannot do without.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The device did not shut down in time.
    #[error("the device did not shut down within {} s", SHUTDOWN_LIMIT.as_secs())]
    Shutdown,
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(Errno) -> ServeError {
    move |source| ServeError::System { what, source: source.into() }
}

pub(crate) struct Shared {
    pub wake: Wake,
    pub stop: AtomicBool,
    pub statistics: Mutex<Vec<mpsc::SyncSender<Statistics>>>,
    /// What is to change, and who is told what came of it.
    pub reload: Mutex<Option<(Reload, ReloadAnswer)>>,
}

pub(crate) type ReloadAnswer = mpsc::SyncSender<Result<Vec<ListenAddress>, ServeError>>;

/// What may change while a server runs.
#[derive(Clone, Debug)]
pub struct Reload {
    /// Addresses to listen on, in the place of those before; those that stay are not touched.
    pub listen: Vec<ListenAddress>,
    /// Other discovery controllers that hosts are referred to.
    pub referrals: Vec<SocketAddr>,
    /// Hosts that may connect; `None`: any, where that has always been so.
    pub authentication: Option<HostAuthentication>,
}

/// A hold on a running server, for any thread.
#[derive(Clone)]
pub struct ServerHandle {
    pub(crate) shared: Arc<Shared>,
}

impl ServerHandle {
    /// Asks the server to stop cleanly. Safe to call more than once.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake.wake();
    }

    /// Has the server work by other settings from now on; the addresses that it listens on then. The error says what cannot be, and all is as
    /// before; `None`: it does not answer in time.
    pub fn reload(&self, reload: Reload, limit: Duration) -> Option<Result<Vec<ListenAddress>, ServeError>> {
        let (sender, receiver) = mpsc::sync_channel(1);
        *self.shared.reload.lock().ok()? = Some((reload, sender));
        self.shared.wake.wake();
        receiver.recv_timeout(limit).ok()
    }

    /// The subsystem's counters; `None` where the server does not answer in time.
    pub fn statistics(&self, limit: Duration) -> Option<Statistics> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.shared.statistics.lock().ok()?.push(sender);
        self.shared.wake.wake();
        receiver.recv_timeout(limit).ok()
    }
}

/// What takes too long for the thread that serves, done by a thread of its own, one after the other.
pub(crate) struct Worker<Errand, Done> {
    errands: mpsc::Sender<Errand>,
    done: mpsc::Receiver<Done>,
}

impl<Errand: Send + 'static, Done: Send + 'static> Worker<Errand, Done> {
    /// Starts the thread, which does each errand by `run`.
    pub fn start(name: &str, shared: Arc<Shared>, run: fn(Errand) -> Done) -> Result<Self, ServeError> {
        let (errands, todo) = mpsc::channel::<Errand>();
        let (results, done) = mpsc::channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Ok(errand) = todo.recv() {
                    if results.send(run(errand)).is_err() {
                        return;
                    }
                    shared.wake.wake();
                }
            })
            .map_err(|source| ServeError::System { what: "cannot start a thread", source })?;
        Ok(Worker { errands, done })
    }

    /// Has an errand done.
    pub fn send(&self, errand: Errand) {
        // The thread is there for as long as this end of its queue.
        let sent = self.errands.send(errand);
        debug_assert!(sent.is_ok(), "what an errand does never panics");
    }

    /// What came of one.
    pub fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}
