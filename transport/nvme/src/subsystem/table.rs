//! Which namespaces there are and which hosts have them, as the device's tables say, and what that means for each controller.
//!
//! What always holds:
//! - the device's tables are the only ones: nothing here outlives them, and what they say is durable;
//! - a change shows before the command that made it is answered;
//! - a host that a namespace is no longer attached to begins nothing more in it.

use std::collections::{BTreeMap, BTreeSet};

use base_io_host::Geometry;
use key_value_host::Placement;
use willow_device::CommandSet;
use willow_wire::spec::Status;

use super::{ConnectionId, Entry, Subsystem};
use crate::backend::Backend;
use crate::command::NamespaceView;
use crate::queue::State;
use crate::statistics::NamespaceCounters;

impl<B: Backend> Subsystem<B> {
    /// True where the device has other tables than those that were taken over.
    #[inline]
    pub(crate) fn tables_changed(&self) -> bool {
        !self.backend.tables_are(&self.table, &self.host_tables)
    }

    /// Takes over the device's tables and tells hosts what changed.
    #[cold]
    pub(crate) fn take_tables(&mut self) {
        let before = self.active_numbers();
        let told = self.host_tables.notices.count();
        let (changed, shrunk) = self.take_namespaces();
        self.refresh_active();
        self.tell_reservations(told);
        for (cntlid, before) in before {
            let Some(controller) = self.controllers.get(&cntlid) else { continue };
            let after: BTreeSet<u32> = self.active_of(controller).collect();
            let lost: BTreeSet<u32> = before.difference(&after).copied().collect();
            let come = after.difference(&before);
            let other = changed.iter().filter(|nsid| before.contains(nsid) && after.contains(nsid));
            let told: Vec<u32> = lost.iter().chain(come).chain(other).copied().collect();
            if told.is_empty() {
                continue;
            }
            if !lost.is_empty() {
                self.give_up_in(cntlid, &lost, Status::INVALID_FIELD.with_do_not_retry());
            }
            if !shrunk.is_empty() {
                self.give_up_in(cntlid, &shrunk, Status::COMMAND_INTERRUPTED);
            }
            if let Some(controller) = self.controllers.get_mut(&cntlid) {
                told.into_iter().for_each(|nsid| controller.note_changed(nsid));
            }
            self.tell_events(cntlid);
        }
    }

    /// The numbers that are active on each controller of the subsystem.
    fn active_numbers(&self) -> Vec<(u16, BTreeSet<u32>)> {
        let of_subsystem = self.controllers.values().filter(|one| !one.discovery);
        of_subsystem.map(|one| (one.cntlid, self.active_of(one).collect())).collect()
    }

    pub(crate) fn active_of<'a>(
        &'a self,
        controller: &'a crate::controller::Controller,
    ) -> impl Iterator<Item = u32> + 'a {
        let all = self.namespaces.iter().zip(&controller.active);
        all.filter(|(_, active)| **active).map(|(entry, _)| entry.namespace.nsid)
    }

    /// Takes over the tables; returns the numbers of namespaces that are there, and others than before or with other attributes, and of
    /// those that have become smaller.
    fn take_namespaces(&mut self) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let (table, host_tables) = (self.backend.namespaces(), self.backend.host_tables());
        let spus = self.backend.spus();
        let mut before: BTreeMap<u32, Entry> =
            std::mem::take(&mut self.namespaces).into_iter().map(|entry| (entry.namespace.nsid, entry)).collect();
        let (mut changed, mut shrunk) = (BTreeSet::new(), BTreeSet::new());
        for namespace in table.iter() {
            let nsid = namespace.nsid;
            let (counters, since, generation) = match before.remove(&nsid) {
                // One that was formatted lies elsewhere: what was parsed for it before is of no use.
                Some(entry) if (entry.namespace.nguid, entry.namespace.base) == (namespace.nguid, namespace.base) => {
                    if entry.namespace != *namespace {
                        changed.insert(nsid);
                    }
                    let mut generation = entry.view.generation;
                    if namespace.size_bytes < entry.namespace.size_bytes {
                        // What was parsed before may reach behind its end.
                        self.namespaces_seen += 1;
                        generation = self.namespaces_seen;
                        shrunk.insert(nsid);
                    }
                    (entry.counters, entry.since, generation)
                }
                _ => {
                    changed.insert(nsid);
                    self.namespaces_seen += 1;
                    (NamespaceCounters::default(), self.namespaces_seen, self.namespaces_seen)
                }
            };
            let block_bytes = if namespace.csi == CommandSet::Nvm { namespace.block_bytes } else { 1 };
            let attachment = host_tables.attachments.iter().find(|attachment| attachment.nsid == nsid);
            let mut hosts = attachment.map(|attachment| attachment.hosts.clone());
            hosts.iter_mut().for_each(|hosts| hosts.sort());
            self.namespaces.push(Entry {
                view: NamespaceView {
                    set: namespace.csi,
                    block_shift: block_bytes.trailing_zeros(),
                    blocks: namespace.size_bytes / u64::from(block_bytes.max(1)),
                    generation,
                },
                geometry: Geometry { spus, stripe_bytes: namespace.stripe_bytes, base: namespace.base },
                app: None,
                placement: Placement::new(namespace.nguid, spus),
                namespace: namespace.clone(),
                counters,
                since,
                hosts,
                reservation: host_tables.reservations.iter().find(|one| one.nsid == nsid).cloned(),
                private: attachment.is_some_and(|attachment| attachment.private),
            });
        }
        self.namespaces.sort_by_key(|entry| entry.namespace.nsid);
        (self.table, self.host_tables) = (table, host_tables);
        (changed, shrunk)
    }

    /// Recomputes which namespaces are active for which controller.
    fn refresh_active(&mut self) {
        let all: Vec<u16> = self.controllers.keys().copied().collect();
        all.into_iter().for_each(|cntlid| self.refresh_active_of(cntlid));
    }

    /// The same for one controller.
    pub(crate) fn refresh_active_of(&mut self, cntlid: u16) {
        let Some(controller) = self.controllers.get(&cntlid) else { return };
        let all_sets = controller.all_command_sets();
        // A process that a host let in by a ticket has what its host has.
        let host = self.share_of(&controller.host_nqn);
        let active = self.namespaces.iter().map(|entry| {
            let attached = entry.hosts.as_ref();
            !controller.discovery
                && (all_sets || entry.namespace.csi == CommandSet::Nvm)
                && attached.is_none_or(|hosts| hosts.binary_search_by(|one| one.as_str().cmp(host)).is_ok())
        });
        let active = active.collect();
        if let Some(controller) = self.controllers.get_mut(&cntlid) {
            controller.active = active;
        }
    }

    /// Place of a namespace in the table.
    #[inline]
    pub(crate) fn find(&self, nsid: u32) -> Option<usize> {
        let guess = (nsid as usize).wrapping_sub(1);
        if self.namespaces.get(guess).is_some_and(|entry| entry.namespace.nsid == nsid) {
            return Some(guess);
        }
        self.namespaces.binary_search_by_key(&nsid, |entry| entry.namespace.nsid).ok()
    }

    /// Place of a namespace that is active for a controller.
    #[inline]
    pub(crate) fn find_active(&self, cntlid: u16, nsid: u32) -> Option<usize> {
        let place = self.find(nsid)?;
        let controller = self.controllers.get(&cntlid)?;
        controller.active.get(place).copied().unwrap_or(false).then_some(place)
    }

    /// Ends what waits for a place in the device, of a controller whose host has lost these namespaces, or parts of them.
    fn give_up_in(&mut self, cntlid: u16, lost: &BTreeSet<u32>, status: Status) {
        let Some(controller) = self.controllers.get(&cntlid) else { return };
        let queues: Vec<u16> = controller.io.iter().flatten().copied().collect();
        let mut held = BTreeSet::new();
        for index in &queues {
            let Some(queue) = self.queues[usize::from(*index)].as_ref() else { continue };
            let is_held = |slot: &crate::queue::Slot| slot.state == State::Held && lost.contains(&slot.nsid);
            let places = (0u16..).zip(&queue.slots).filter(|(_, slot)| is_held(slot));
            held.extend(places.map(|(place, _)| (*index, place)));
        }
        // Other commands that are held are looked at anew when they go on.
        for (index, place) in self.forget_held_ready(&held) {
            self.complete(index, place, status, 0, None);
        }
        for index in queues {
            let Some(queue) = self.queues[usize::from(index)].as_ref() else { continue };
            let (account, connection) = (queue.account, ConnectionId { index, generation: queue.generation });
            let waits =
                |(_, slot): &(u16, &crate::queue::Slot)| slot.state == State::Ready && lost.contains(&slot.nsid);
            let places: Vec<u16> = (0u16..).zip(&queue.slots).filter(waits).map(|(place, _)| place).collect();
            for place in places {
                for ready in self.accounts.forget(account, connection, Some(place)) {
                    self.give(index, ready.request.buffer);
                }
                self.complete(index, place, status, 0, None);
            }
        }
    }
}
