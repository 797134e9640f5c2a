//! Messages that SPU-OS sends: requests of hosts and RPCs of SPUs to their SPUs, events to apps.
//!
//! Invariants: a message arrives once, whole; an SPU's inbox for messages of other SPUs is bounded, users' apps share a part of it
//! ([`crate::places`]), and what does not fit is refused.

use super::abi;
use super::activity::{Activity, Origin};
use super::os::Machine;
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
    /// Puts a request for an SPU on the interconnect, as work of its account; its token, or `None` where that SPU holds as many as it can.
    #[inline(always)]
    pub fn send(&mut self, account: u16, spu: u16, activity: impl FnOnce() -> Activity, from: Endpoint) -> Option<Key> {
        let token = self.spus[spu as usize].take_activity(spu, activity)?;
        self.transmit_request(account, token, from);
        Some(token)
    }

    /// Puts a request of SPU-OS's for an app on an SPU, which comes from that SPU itself: no message carries it.
    pub fn send_here(
        &mut self,
        account: u16,
        spu: u16,
        app: AppNumber,
        activity: impl FnOnce() -> Activity,
    ) -> Option<Key> {
        let token = self.spus[spu as usize].take_activity(spu, activity)?;
        self.make_due(account, app, Event::Deliver { token });
        Some(token)
    }

    /// Sends an event of SPU-OS to an app on some SPUs; `watch`: the control service waits for their answers under that number.
    pub fn send_event_to(&mut self, app: AppNumber, spus: Range<u16>, words: &[u32], watch: Option<u32>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Some(arguments) = Arguments::new(&bytes) else { return };
        let account = self.account_of_events(app);
        for spu in spus {
            let origin = Origin::Event { watch: watch.unwrap_or(0) };
            let activity = || Activity::of_device((app, spu, abi::EVENT_HANDLER), account, arguments, origin);
            if self.send(account, spu, activity, Endpoint::Bridge).is_some() {
                self.bridge.accounts.begin_own(account);
            } else {
                self.news.answered(watch.unwrap_or(0), abi::EVENT_UNDELIVERED);
            }
        }
    }
}
