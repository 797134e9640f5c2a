//! Messages that SPU-OS sends: requests of hosts and RPCs of SPUs to their SPUs, events to apps.
//!
//! Invariants: a message arrives once, whole; an SPU's inbox for messages of other SPUs is bounded, users' apps share a part of it
//! ([`crate::places`]), and what does not fit is refused.

use super::abi;
use super::activity::{Activity, Ending, Origin, State};
use super::os::{ACTIVITIES_MAX, EVENT_ACTIVITIES, Machine};
use super::sleep::BACKGROUND_MAX;
use super::turns::OPERATIONS_PER_BANK_MAX;
use crate::bridge::accounts::KERNEL;
use crate::hre::HreId;
use crate::interconnect::event::Event;
use crate::interconnect::{Endpoint, Key};
use crate::places::Places;
use crate::request::{AppNumber, Arguments};
use std::ops::Range;

/// Most messages from SPUs that one SPU holds.
pub const MESSAGES_PER_SPU_MAX: u32 = 512;
/// Of them from users' apps, which share these places.
pub const USERS_MESSAGES_PER_SPU_MAX: u32 = 256;

/// Places of users' apps in an SPU's inbox.
pub(crate) fn users_inbox(apps_max: u16) -> Places {
    Places::new(USERS_MESSAGES_PER_SPU_MAX.into(), apps_max)
}

impl Machine {
    /// Puts a request for an SPU on the interconnect, as work of its account; its token, or `None` where the device holds as many as it can.
    #[inline(always)]
    pub fn send(&mut self, account: u16, spu: u16, activity: impl FnOnce() -> Activity, from: Endpoint) -> Option<Key> {
        if self.held.activities >= ACTIVITIES_MAX {
            return None;
        }
        self.held.activities += 1;
        let token = Key { spu, key: self.spus[spu as usize].activities.put(activity) };
        self.transmit_request(account, token, from);
        Some(token)
    }

    /// Puts a request for an SPU that comes from that SPU itself: no message carries it.
    pub fn send_here(&mut self, account: u16, spu: u16, activity: impl FnOnce() -> Activity) -> Option<Key> {
        if self.held.activities >= ACTIVITIES_MAX {
            return None;
        }
        self.held.activities += 1;
        let token = Key { spu, key: self.spus[spu as usize].activities.put(activity) };
        self.events.push(self.ready_account(account), Event::Deliver { token });
        Some(token)
    }

    /// Most activities while a host's request may be taken in, on that account: the rest is kept for messages of SPUs, for events and for
    /// operations on banks that an FTL serves, and of a user's requests for those of others.
    pub fn host_activities_max(&self, account: u16) -> usize {
        let inboxes = self.spus.len() * MESSAGES_PER_SPU_MAX as usize;
        let of_banks = if self.ftl().is_some() { self.spus.len() * OPERATIONS_PER_BANK_MAX } else { 0 };
        let of_hosts = ACTIVITIES_MAX - EVENT_ACTIVITIES - BACKGROUND_MAX - inboxes - of_banks;
        if account == KERNEL { of_hosts } else { of_hosts / 4 * 3 }
    }

    /// Sends an event of SPU-OS to an app on all SPUs; `watch` counts their answers.
    pub fn send_event(&mut self, app: AppNumber, words: &[u32], watch: Option<u32>) {
        self.send_event_to(app, 0..self.config.spus, words, watch);
    }

    /// The same on some SPUs.
    pub fn send_event_to(&mut self, app: AppNumber, spus: Range<u16>, words: &[u32], watch: Option<u32>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Some(arguments) = Arguments::new(&bytes) else { return };
        let account = self.account_of_events(app);
        if let Some(watch) = watch {
            self.watches.entry(watch).or_default().0 += spus.len() as u32;
        }
        for spu in spus {
            let activity = || Activity {
                app,
                spu,
                handler: abi::EVENT_HANDLER,
                state: State::Arrived,
                originating: HreId::DEVICE,
                account,
                arguments,
                cursor: 0,
                ending: Ending::default(),
                replied_bytes: 0,
                origin: Origin::Event { watch: watch.unwrap_or(0) },
            };
            if self.send(account, spu, activity, Endpoint::Bridge).is_none()
                && let Some(watch) = watch
            {
                self.watched(watch, abi::EVENT_UNDELIVERED);
            }
        }
    }
}
