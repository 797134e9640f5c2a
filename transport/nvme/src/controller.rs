//! A controller: what belongs to one host's association (NVMe Base 3.1, 3.5): its properties, features, logs and events.
//!
//! What always holds:
//! - a controller has exactly one admin queue; when that goes, the controller goes with all its queues;
//! - commands other than fabrics ones are taken only while CSTS.RDY is 1;
//! - at most [`EVENT_REQUESTS_MAX`] event requests wait, and at most one event of each kind is told until its log is read.

use std::collections::{BTreeSet, VecDeque};

use willow_wire::spec::feature::event;
use willow_wire::spec::log;
use willow_wire::spec::property::{Capabilities, Configuration, csts};

use crate::access::{Access, Path};
use crate::config::*;
use crate::features::Features;
use crate::identify::{OAES, OAES_DISCOVERY};
use crate::log_page::ErrorLog;
use crate::reservation::Notices;

/// A controller.
pub(crate) struct Controller {
    pub cntlid: u16,
    pub discovery: bool,
    pub host_id: [u8; 16],
    pub host_nqn: String,
    /// The process of a user that it belongs to; `None`: it acts as kernel.
    pub process: Option<u32>,
    /// Connection of its admin queue.
    pub admin: u16,
    /// Connections of its I/O queues, by QID - 1.
    pub io: Vec<Option<u16>>,
    pub queues_granted: u16,
    /// Most I/O queues that it may have.
    pub queues_max: u16,
    pub configuration: Configuration,
    pub status: u32,
    pub features: Features,
    pub error_log: ErrorLog,
    /// Namespaces whose attributes changed since the log of them was read.
    pub changed: BTreeSet<u32>,
    /// An event of changed namespaces was told and its log not read since.
    pub changed_told: bool,
    /// An event of changed namespaces is to be told.
    pub changed_pending: bool,
    /// The event of a changed discovery log is to be told; and was, and the log not read since.
    pub discovery_pending: bool,
    pub discovery_told: bool,
    /// The event of a fatal status is to be told.
    pub fatal_pending: bool,
    /// Slots on the admin queue of event requests, oldest first.
    pub event_requests: VecDeque<u16>,
    /// What it is to be told of reservations.
    pub notices: Notices,
    /// When the keep alive timer was last restarted; it runs only where its timeout is not 0.
    pub keep_alive_ns: u64,
    /// Its host has proved itself, or need not, and it is no discovery controller.
    pub proved: bool,
    /// Its host has a generated key, by which it will come anew: until then it takes no more than a user's.
    pub awaits_channel: bool,
    /// When it last got a command.
    pub commanded_ns: u64,
    /// For each namespace of the subsystem's table, whether it is active here.
    pub active: Vec<bool>,
    /// How good the path is that it was reached by.
    pub access: Path,
}

/// CAP of I/O and of discovery controllers (NVMe Base 3.1.4.1): ready within 500 ms and with media.
pub(crate) fn capabilities(discovery: bool) -> Capabilities {
    let css = if discovery { Capabilities::CSS_NVM } else { Capabilities::CSS_NVM | Capabilities::CSS_ALL };
    Capabilities::new(QUEUE_ENTRIES_MAX, 1, Capabilities::CQR | Capabilities::CRMS_WITH_MEDIA | css)
}

/// What a write to CC asks for beyond keeping the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigurationChange {
    Nothing,
    /// EN went from 1 to 0.
    Reset,
    /// SHN asks for a shutdown.
    Shutdown,
}

impl Controller {
    pub fn new(
        cntlid: u16,
        discovery: bool,
        host_id: [u8; 16],
        host_nqn: String,
        admin: u16,
        features: Features,
        now_ns: u64,
    ) -> Self {
        let events_offered = if discovery { OAES_DISCOVERY } else { OAES };
        let mut features = features;
        features.events_offered = events_offered;
        Controller {
            cntlid,
            discovery,
            host_id,
            host_nqn,
            process: None,
            admin,
            io: vec![None; usize::from(IO_QUEUES_MAX)],
            queues_granted: IO_QUEUES_MAX,
            queues_max: IO_QUEUES_MAX,
            configuration: Configuration(0),
            status: 0,
            features,
            error_log: ErrorLog::default(),
            changed: BTreeSet::new(),
            changed_told: false,
            changed_pending: false,
            discovery_pending: false,
            discovery_told: false,
            fatal_pending: false,
            event_requests: VecDeque::new(),
            notices: Notices::default(),
            keep_alive_ns: now_ns,
            proved: false,
            awaits_channel: false,
            commanded_ns: now_ns,
            active: Vec::new(),
            access: Path::default(),
        }
    }

    pub fn is_ready(&self) -> bool {
        self.status & csts::RDY != 0
    }

    /// True where namespaces of other command sets than NVM are visible (CC.CSS 110b).
    pub fn all_command_sets(&self) -> bool {
        self.configuration.css() == Configuration::CSS_ALL
    }

    /// Takes a write to CC (NVMe Base 3.1.4.5). It becomes ready also where media have failed: commands that need these fail, and hosts can put
    /// in order what failed.
    pub fn configure(&mut self, value: u32) -> ConfigurationChange {
        let (old, new) = (self.configuration, Configuration(value));
        self.configuration = new;
        let mut change = ConfigurationChange::Nothing;
        if new.enabled() && !old.enabled() {
            let sets = match new.css() {
                // To discovery controllers, which have no I/O queues, it is all the same; hosts ask for any (SPDK and nvmet take it).
                Configuration::CSS_NVM | Configuration::CSS_ALL | Configuration::CSS_ADMIN_ONLY => true,
                _ => false,
            };
            // Discovery controllers have no I/O queues, so that the entry sizes mean nothing to them.
            let sizes = self.discovery || (new.iosqes(), new.iocqes()) == (6, 4);
            if sets && sizes && new.page_size_shift() == 12 && new.arbitration() == 0 {
                self.status = csts::RDY;
                self.keep_alive_ns = self.keep_alive_ns.max(1);
            } else {
                self.status |= csts::CFS;
            }
        } else if !new.enabled() && old.enabled() {
            self.status = 0;
            change = ConfigurationChange::Reset;
        }
        if new.shutdown() != 0 && self.status & csts::SHST_MASK == 0 {
            self.status |= csts::SHST_IN_PROGRESS;
            change = ConfigurationChange::Shutdown;
        }
        change
    }

    /// Forgets what a reset forgets.
    pub fn reset(&mut self, volatile_write_cache: bool) {
        let keep_alive_ms = self.features.keep_alive_ms;
        let events_offered = self.features.events_offered;
        self.features = Features::new(volatile_write_cache, keep_alive_ms);
        self.features.events_offered = events_offered;
        self.queues_granted = self.queues_max;
        self.io.fill(None);
        self.changed.clear();
        self.changed_told = false;
        self.changed_pending = false;
        (self.discovery_pending, self.discovery_told) = (false, false);
        (self.access.pending, self.access.told) = (false, false);
        self.fatal_pending = false;
        self.event_requests.clear();
        self.notices.reset();
    }

    /// When the keep alive timer runs out (NVMe Base 3.9): the timeout and one granule of grace.
    pub fn keep_alive_deadline_ns(&self) -> Option<u64> {
        if self.features.keep_alive_ms == 0 {
            // An explicit connection to a discovery controller ends when nothing is asked of it (NVMe Base 3.1.3.3).
            let idle_ns = DISCOVERY_IDLE_LIMIT.as_nanos() as u64;
            return self.discovery.then(|| self.commanded_ns.saturating_add(idle_ns));
        }
        let granule_ms = u64::from(KEEP_ALIVE_GRANULARITY_100MS) * 100;
        Some(self.keep_alive_ns.saturating_add((u64::from(self.features.keep_alive_ms) + granule_ms) * 1_000_000))
    }

    /// Takes note of a namespace that came, went or changed.
    pub fn note_changed(&mut self, nsid: u32) {
        if self.changed.len() <= CHANGED_NAMESPACES_MAX {
            self.changed.insert(nsid);
        }
        if self.features.async_events & event::CONFIGURE_NAMESPACE != 0 {
            self.changed_pending = true;
        }
    }

    /// Takes note of another state of its path.
    pub fn note_access(&mut self, state: Access) {
        self.access.state = state;
        self.access.changes += 1;
        self.access.pending |= self.features.async_events & event::CONFIGURE_ANA != 0;
    }

    /// The next event to tell and the request to answer with it.
    pub fn next_event(&mut self) -> Option<(u16, u32)> {
        if self.fatal_pending && self.is_ready() {
            let slot = self.event_requests.pop_front()?;
            self.fatal_pending = false;
            return Some((slot, event::result(event::TYPE_ERROR, event::ERROR_PERSISTENT_INTERNAL, log::ERROR)));
        }
        if self.discovery_pending && !self.discovery_told && self.is_ready() {
            let slot = self.event_requests.pop_front()?;
            (self.discovery_pending, self.discovery_told) = (false, true);
            return Some((slot, event::result(event::TYPE_NOTICE, event::NOTICE_DISCOVERY_CHANGED, log::DISCOVERY)));
        }
        if self.access.pending && !self.access.told && self.is_ready() {
            let slot = self.event_requests.pop_front()?;
            (self.access.pending, self.access.told) = (false, true);
            return Some((slot, event::result(event::TYPE_NOTICE, event::NOTICE_ANA_CHANGED, log::ANA)));
        }
        let is_changed = self.changed_pending && !self.changed_told;
        if !self.is_ready() || !is_changed && !self.notices.is_due() {
            return None;
        }
        let slot = self.event_requests.pop_front()?;
        if !is_changed {
            return self.notices.event().map(|event| (slot, event));
        }
        self.changed_pending = false;
        self.changed_told = true;
        Some((slot, event::result(event::TYPE_NOTICE, event::NOTICE_NAMESPACE_CHANGED, log::CHANGED_NAMESPACES)))
    }

    /// Contents of the changed namespace log; clears it and rearms the event unless `retain`.
    pub fn take_changed(&mut self, retain: bool) -> Vec<u32> {
        let list = self.changed.iter().copied().collect();
        if !retain {
            self.changed.clear();
            self.changed_told = false;
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller {
        Controller::new(1, false, [0; 16], "nqn.x".into(), 0, Features::new(true, 5000), 0)
    }

    #[test]
    fn enable_reset_shutdown() {
        let mut one = controller();
        assert_eq!(one.configure(0x46_0060), ConfigurationChange::Nothing);
        one.configure(0x46_0061);
        assert!(one.is_ready() && one.all_command_sets());
        assert_eq!(one.configure(0x46_4061), ConfigurationChange::Shutdown);
        assert_eq!(one.status, csts::RDY | csts::SHST_IN_PROGRESS);
        assert_eq!(one.configure(0x46_0060), ConfigurationChange::Reset);
        assert_eq!(one.status, 0);
        for bad in [0x46_0021, 0x46_0081, 0x45_0001, 0x46_0801] {
            let mut one = controller();
            one.configure(bad);
            assert_eq!(one.status, csts::CFS, "{bad:x}");
        }
    }

    #[test]
    fn a_fatal_status_is_told_and_lasts_until_a_reset() {
        let mut one = controller();
        one.configure(0x46_0061);
        one.event_requests.push_back(4);
        one.status |= csts::CFS;
        one.fatal_pending = true;
        assert_eq!((one.next_event(), one.next_event()), (Some((4, 0x01_0300)), None));
        one.configure(0x46_0060);
        one.configure(0x46_0061);
        assert_eq!(one.status, csts::RDY);
    }

    #[test]
    fn a_discovery_controller_takes_any_command_set() {
        for sets in [0x46_0001, 0x46_0061, 0x46_0071, 0x61] {
            let mut one = controller();
            one.discovery = true;
            one.configure(sets);
            assert_eq!(one.status, csts::RDY, "{sets:x}");
        }
    }

    #[test]
    fn an_event_is_told_once_until_its_log_is_read() {
        let mut one = controller();
        one.configure(0x46_0061);
        one.features.async_events = event::CONFIGURE_NAMESPACE;
        one.event_requests.extend([4, 5]);
        one.note_changed(3);
        assert_eq!(one.next_event(), Some((4, 0x04_0002)));
        one.note_changed(2);
        assert_eq!(one.next_event(), None);
        assert_eq!(one.take_changed(true), [2, 3]);
        assert_eq!(one.next_event(), None);
        assert_eq!(one.take_changed(false), [2, 3]);
        assert!(one.next_event().is_some() && one.take_changed(false).is_empty());
    }

    #[test]
    fn keep_alive() {
        let mut one = controller();
        assert_eq!(one.keep_alive_deadline_ns(), Some(5_100_000_000));
        one.features.keep_alive_ms = 0;
        assert_eq!(one.keep_alive_deadline_ns(), None);
        one.discovery = true;
        one.commanded_ns = 7;
        assert_eq!(one.keep_alive_deadline_ns(), Some(120_000_000_007));
    }
}
