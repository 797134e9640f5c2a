//! Secure channels whose key an authentication generates (NVMe Base 8.13.5.9): a host proves itself on an admin queue in the clear, both
//! ends derive a key for TLS from that, and the host connects anew by it.
//!
//! ```text
//! generated ── an admin queue comes by it ──> of that controller ── the controller ends ──> gone
//!     └─ GENERATED_KEY_LIMIT is over, its host has more of them than it may, or another key file ──> gone
//! ```
//!
//! What always holds:
//! - a generated key is good for one association: the first admin queue that comes by it, and I/O queues of its controller;
//! - a controller that came by one has all its queues by it; another one may take its place (REPLACETLSPSK), for queues to come;
//! - a controller on which one was generated in the clear takes what a user's may, and has no I/O queues: it is there to be left;
//! - of one host at most [`GENERATED_KEYS_MAX`] wait to be used.

use willow_auth::{Concatenation, GeneratedKey, Hash, LentKey};
use willow_wire::spec::Status;
use willow_wire::spec::fabrics::connect_offset;

use crate::backend::Backend;
use crate::config::{GENERATED_KEY_LIMIT, GENERATED_KEYS_MAX};
use crate::status::Failure;
use crate::subsystem::Subsystem;

/// What TLS proved of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secured {
    /// NQN of the host.
    pub host_nqn: String,
    /// NQN of the subsystem that it means.
    pub subsystem_nqn: String,
    /// The identity of the generated key that it came by; `None`: a configured key.
    pub generated: Option<String>,
}

/// A generated key, under its identity.
pub(crate) struct SecureChannel {
    host_nqn: String,
    hash: Hash,
    /// TLS knows it as long as this is here.
    _lent: LentKey,
    /// Until when it has to be used.
    deadline_ns: u64,
    /// Controller that came by it.
    used_by: Option<u16>,
}

fn refused(host_nqn: &str, reason: &'static str) -> Failure {
    tracing::warn!(host = host_nqn, reason, "a host is refused");
    Failure::at(Status::CONNECT_INVALID_HOST, connect_offset::HOSTNQN)
}

impl<B: Backend> Subsystem<B> {
    fn generated_identity(&self, index: u16) -> Option<&str> {
        self.queues[usize::from(index)].as_ref()?.secured.as_deref()?.generated.as_deref()
    }

    /// Whether a queue that connects came by a generated key, which stands for its authentication. `controller`: of an I/O queue.
    pub(crate) fn check_channel(&self, index: u16, host_nqn: &str, controller: Option<u16>) -> Result<bool, Failure> {
        let of_controller = |cntlid: u16| self.channels.values().any(|channel| channel.used_by == Some(cntlid));
        let awaits = |cntlid: u16| self.controllers.get(&cntlid).is_some_and(|one| one.awaits_channel);
        let Some(identity) = self.generated_identity(index) else {
            return match controller {
                Some(cntlid) if of_controller(cntlid) || awaits(cntlid) => Err(refused(
                    host_nqn,
                    "its controller has a secure channel by a generated key, and the queue came without",
                )),
                _ => Ok(false),
            };
        };
        let channel = self.channels.get(identity).filter(|channel| channel.host_nqn == host_nqn);
        match (channel, controller) {
            (Some(channel), None) if channel.used_by.is_none() && channel.deadline_ns > self.now_ns => Ok(true),
            (Some(channel), Some(cntlid)) if channel.used_by == Some(cntlid) => Ok(true),
            _ => Err(refused(host_nqn, "its generated key is used up, or another controller's")),
        }
    }

    /// An admin queue that came by a generated key is connected: the key is its controller's.
    pub(crate) fn adopt_channel(&mut self, index: u16, cntlid: u16) {
        let Some(identity) = self.generated_identity(index).map(str::to_owned) else { return };
        if let Some(channel) = self.channels.get_mut(&identity) {
            channel.used_by = Some(cntlid);
        }
    }

    /// What the host of a queue may ask its exchange for.
    pub(crate) fn concatenation(&self, index: u16, host_nqn: &str, queue_id: u16, by_ticket: bool) -> Concatenation {
        let secured = self.queues[usize::from(index)].as_ref().and_then(|queue| queue.secured.as_deref());
        let known = self.config.authentication.as_ref();
        match secured {
            _ if queue_id != 0 || by_ticket => Concatenation::Never,
            Some(secured) if secured.generated.is_some() => Concatenation::Replace,
            Some(_) => Concatenation::Never,
            None if known.is_some_and(|known| known.requires_channel(host_nqn)) => Concatenation::Required,
            None => Concatenation::New,
        }
    }

    /// The authentication of an admin queue has generated a key.
    pub(crate) fn keep_generated(&mut self, index: u16, cntlid: u16, key: &GeneratedKey) {
        let replaces = self.generated_identity(index).is_some();
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        let host_nqn = controller.host_nqn.clone();
        controller.awaits_channel |= !replaces;
        let keys = key.tls_keys(&host_nqn, &self.config.nqn);
        let identity = keys[0].identity.clone();
        let Some(lent) = self.keys.lend_generated(keys) else {
            tracing::error!(
                controller = cntlid,
                "a key was generated that is there already: random bytes are not random"
            );
            return;
        };
        match replaces {
            true => self.channels.retain(|_, channel| channel.used_by != Some(cntlid)),
            false => self.make_way_for_generated(&host_nqn),
        }
        let deadline_ns = self.now_ns.saturating_add(GENERATED_KEY_LIMIT.as_nanos() as u64);
        let used_by = replaces.then_some(cntlid);
        let channel = SecureChannel { host_nqn, hash: key.hash(), _lent: lent, deadline_ns, used_by };
        self.channels.insert(identity, channel);
        self.set_timer(deadline_ns);
        tracing::info!(controller = cntlid, replaces, "a key for TLS was generated");
    }

    /// The oldest of a host's keys that nobody has used goes where there are as many as may be.
    fn make_way_for_generated(&mut self, host_nqn: &str) {
        let unused = self.channels.iter().filter(|(_, one)| one.used_by.is_none() && one.host_nqn == host_nqn);
        let mut unused: Vec<(u64, String)> =
            unused.map(|(identity, one)| (one.deadline_ns, identity.clone())).collect();
        unused.sort_unstable();
        let excess = (unused.len() + 1).saturating_sub(GENERATED_KEYS_MAX);
        unused.into_iter().take(excess).for_each(|(_, identity)| drop(self.channels.remove(&identity)));
    }

    /// The hash of the generated key that a controller came by.
    pub(crate) fn channel_hash(&self, cntlid: u16) -> Option<Hash> {
        self.channels.values().find(|channel| channel.used_by == Some(cntlid)).map(|channel| channel.hash)
    }

    /// A controller is gone: so is the key that it came by.
    pub(crate) fn channel_of_controller_ends(&mut self, cntlid: u16) {
        self.channels.retain(|_, channel| channel.used_by != Some(cntlid));
    }

    /// Keys that nobody has used and whose host does not prove itself by the same any more.
    pub(crate) fn forget_channels(&mut self, stays: impl Fn(&str) -> bool) {
        self.channels.retain(|_, channel| channel.used_by.is_some() || stays(&channel.host_nqn));
    }

    /// Keys that were not used in time go; when the next one is due.
    pub(crate) fn expire_channels(&mut self) -> u64 {
        let now_ns = self.now_ns;
        self.channels.retain(|_, channel| channel.used_by.is_some() || channel.deadline_ns > now_ns);
        let unused = self.channels.values().filter(|channel| channel.used_by.is_none());
        unused.map(|channel| channel.deadline_ns).min().unwrap_or(u64::MAX)
    }
}
