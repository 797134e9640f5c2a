//! What SPU-OS has for the control service: messages by value, which it takes between two events of the device.
//!
//! What always holds: a message is taken once, those of a kind in the order in which they came; of calls for regions users' apps have places
//! ([`crate::places`]), and of the rest there is no more than there are events to apps, apps and SPUs.

use super::os::Machine;
use crate::interconnect::Key;
use crate::places::Places;
use crate::request::AppNumber;
use std::collections::VecDeque;

/// Most calls of apps for regions that the service has not taken yet.
const REGION_CALLS_MAX: usize = 256;
/// Of them those of users' apps, which share these places.
const USERS_REGION_CALLS_MAX: usize = REGION_CALLS_MAX / 2;
/// Of them those of one user's app.
const REGION_CALLS_PER_USER_APP_MAX: u64 = 8;

/// An app's call that changes the region table.
pub(crate) struct RegionCall {
    pub group: Key,
    pub app: AppNumber,
    pub id: u32,
    /// `None`: free it.
    pub bank_bytes: Option<u64>,
}

/// The messages.
pub(crate) struct News {
    /// Answers to events that are waited for: under which number, and the status.
    answers: VecDeque<(u32, u32)>,
    /// Apps that are waited for at revocations (`settles=1`) and have trapped.
    settlers_ended: VecDeque<AppNumber>,
    /// Instances of the FTL that have ended, by SPU, and why.
    ftls_ended: VecDeque<(u16, String)>,
    /// Calls for regions, and whether they have places of users' apps.
    region_calls: VecDeque<(RegionCall, bool)>,
    region_places: Places,
}

impl News {
    pub(super) fn new(apps_max: u16) -> Self {
        News {
            answers: VecDeque::new(),
            settlers_ended: VecDeque::new(),
            ftls_ended: VecDeque::new(),
            region_calls: VecDeque::new(),
            region_places: Places::new(USERS_REGION_CALLS_MAX as u64, apps_max),
        }
    }

    /// An event has been answered, or had no place.
    pub(super) fn answered(&mut self, watch: u32, status: u32) {
        // 0: nobody waits for it.
        if watch != 0 {
            self.answers.push_back((watch, status));
        }
    }

    /// The next answer to an event.
    pub fn answer(&mut self) -> Option<(u32, u32)> {
        self.answers.pop_front()
    }

    /// An app has trapped that is waited for at revocations.
    pub(super) fn settler_has_ended(&mut self, number: AppNumber) {
        self.settlers_ended.push_back(number);
    }

    /// The next such app.
    pub fn settler_ended(&mut self) -> Option<AppNumber> {
        self.settlers_ended.pop_front()
    }

    /// The FTL's instance on an SPU has ended.
    pub(super) fn ftl_has_ended(&mut self, spu: u16, why: &str) {
        self.ftls_ended.push_back((spu, why.to_owned()));
    }

    /// The next such instance.
    pub fn ftl_ended(&mut self) -> Option<(u16, String)> {
        self.ftls_ended.pop_front()
    }

    /// True where [`News::ftl_ended`] has one.
    pub fn has_ended_ftls(&self) -> bool {
        !self.ftls_ended.is_empty()
    }

    /// Takes a place for a call of an app, a user's or not; false where there is none for it.
    fn takes_region_call(&mut self, app: AppNumber, users: bool) -> bool {
        if users {
            return self.region_places.of(app) < REGION_CALLS_PER_USER_APP_MAX && self.region_places.take(app, 1);
        }
        self.region_calls.len() < REGION_CALLS_MAX - USERS_REGION_CALLS_MAX + self.region_places.taken() as usize
    }

    /// The next call of an app that changes the region table.
    pub fn region_call(&mut self) -> Option<RegionCall> {
        let (call, users) = self.region_calls.pop_front()?;
        self.region_places.release(call.app, u64::from(users));
        Some(call)
    }
}

impl Machine {
    /// Hands the service an app's call for a region, whose end `group` begins; false where the app has no place for one.
    pub(super) fn call_for_region(
        &mut self,
        app: AppNumber,
        group: impl FnOnce(&mut Machine) -> Option<RegionCall>,
    ) -> bool {
        let users = self.is_users_app(app);
        if !self.news.takes_region_call(app, users) {
            return false;
        }
        match group(self) {
            Some(call) => self.news.region_calls.push_back((call, users)),
            None => {
                self.news.region_places.release(app, u64::from(users));
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_apps_that_call_for_regions_leave_others_places() {
        let mut news = News::new(64);
        let call = |app| RegionCall { group: Key { spu: 0, key: 1 }, app, id: 1, bank_bytes: None };
        let mut made = Vec::new();
        for app in 1..40 {
            let taken = (0..20).filter(|_| news.takes_region_call(app, true)).count();
            made.push(taken);
            (0..taken).for_each(|_| news.region_calls.push_back((call(app), true)));
        }
        assert_eq!(made[0], REGION_CALLS_PER_USER_APP_MAX as usize);
        assert!(made.iter().all(|taken| *taken > 0), "{made:?}");
        assert!(made.iter().sum::<usize>() <= USERS_REGION_CALLS_MAX);
        assert!(news.takes_region_call(50, false), "the kernel's apps have places of their own");
        while news.region_call().is_some() {}
        assert_eq!(news.region_places.taken(), 0);
    }
}
