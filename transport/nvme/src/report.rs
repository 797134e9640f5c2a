//! What the subsystem tells of itself: SMART's numbers and the counters of namespaces and queues.

use crate::account::UNPROVED;
use crate::backend::Backend;
use crate::log_page::SmartView;
use std::collections::BTreeMap;

use crate::statistics::{HostStatistics, NamespaceStatistics, QueueStatistics, Statistics};
use crate::subsystem::{Entry, Subsystem};

impl<B: Backend> Subsystem<B> {
    /// SMART's numbers, of the whole or of what hosts did with the namespace of that place.
    pub(crate) fn smart(&self, place: Option<usize>) -> SmartView {
        let mut view = SmartView {
            bank_failed: self.backend.flash_state().failed,
            flash: self.backend.flash_health().unwrap_or_default(),
            up_ns: self.now_ns - self.started_ns,
            busy_ns: self.busy_ns,
            error_entries: self.error_entries,
            capacity: self.backend.capacity(),
            temperature_kelvin: self.backend.temperature_kelvin(),
            ..Default::default()
        };
        let of = match place {
            Some(place) => self.namespaces.get(place..=place).unwrap_or_default(),
            None => &self.namespaces[..],
        };
        for Entry { counters, .. } in of {
            view.read_bytes += counters.read_bytes;
            view.write_bytes += counters.write_bytes;
            view.read_commands += counters.read_commands;
            view.write_commands += counters.write_commands;
            view.media_errors += counters.media_errors;
        }
        if place.is_none() {
            view.media_errors = view.media_errors.max(view.flash.media_errors);
        }
        view
    }

    /// All counters.
    pub fn statistics(&self) -> Statistics {
        let namespaces = self.namespaces.iter().map(|entry| {
            let counters = &entry.counters;
            NamespaceStatistics {
                nsid: entry.namespace.nsid,
                read_commands: counters.read_commands,
                write_commands: counters.write_commands,
                other_commands: counters.other_commands,
                read_bytes: counters.read_bytes,
                write_bytes: counters.write_bytes,
                errors: counters.errors,
                media_errors: counters.media_errors,
                read_latency: counters.read.summary(),
                write_latency: counters.write.summary(),
                other_latency: counters.other.summary(),
            }
        });
        let queues = self.queues.iter().flatten().filter_map(|queue| {
            let association = queue.association?;
            Some(QueueStatistics {
                controller: association.controller,
                queue: association.qid,
                host: self.controllers.get(&association.controller)?.host_nqn.clone(),
                entries: u32::from(association.entries),
                in_flight: queue.in_flight,
                commands: queue.commands,
                errors: queue.errors,
                latency: queue.latency.summary(),
            })
        });
        let mut hosts: BTreeMap<u16, HostStatistics> = BTreeMap::new();
        for (account, of) in self.accounts.all() {
            let held = HostStatistics {
                host: of.name.clone(),
                issuer: of.issuer.map_or_else(String::new, |issuer| self.accounts.of(issuer).name.clone()),
                connections: of.connections,
                held_bytes: of.taken_bytes as u64,
                queued_bytes: 0,
                fetching: 0,
                waiting_for_buffer: of.waiting.len() as u32,
                waiting_for_device: of.ready.len() as u32,
                in_device: of.in_device,
                waited: of.waited,
                refused: of.refused,
            };
            hosts.insert(account, held);
        }
        for queue in self.queues.iter().flatten() {
            if let Some(host) = hosts.get_mut(&queue.account) {
                host.queued_bytes += queue.queued_bytes as u64;
                host.fetching += queue.fetching;
            }
        }
        Statistics {
            hosts: hosts.into_values().collect(),
            nqn: self.config.nqn.clone(),
            controllers: self.controllers.len() as u32,
            buffer_bytes: self.pool.taken_bytes() as u64,
            held_bytes: self.accounts.held_bytes() as u64,
            unproved_bytes: self.accounts.of(UNPROVED).taken_bytes as u64,
            unproved_connections: self.accounts.of(UNPROVED).connections,
            namespaces: namespaces.collect(),
            queues: queues.collect(),
        }
    }

    /// Makes what the control service's statistics tell of hosts; called just before they are asked for.
    pub(crate) fn refresh_front(&mut self) {
        *self.front.borrow_mut() = serde_json::to_value(self.statistics()).unwrap_or_default();
    }
}
