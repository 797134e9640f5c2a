//! What failed, or had to wait for a file system, is done once more.
//!
//! What always holds:
//! - nobody's files wait for another user's, and none for one with which the kernel waits. Whoever may read a file can bring that about: his process
//!   reads it past the page cache into memory that does not come, and has the inode's lock meanwhile;
//! - what the device refuses to revoke for too long ends the agent, whoever waits.

use super::apart::PATIENCE;
use super::serving::WATCH;
use super::{Agent, Connected, REVOKE_MAX, Stage, runtime};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long something may not be revoked where the thread that tries again does not come to say so: shorter, with what the agent needs to
/// end, than the kernel waits for a lease ([`super::lease`]).
const UNREVOKED_MAX: Duration = REVOKE_MAX.saturating_add(Duration::from_secs(2));

impl Agent {
    /// Has done once more what failed, and what had to wait for a file system.
    pub(super) fn mend(self: &Arc<Self>) {
        let mut mending: Vec<(u32, JoinHandle<()>)> = Vec::new();
        let mut thawing: Vec<(u32, Instant, JoinHandle<()>)> = Vec::new();
        while !self.stopping() {
            std::thread::sleep(WATCH);
            mending.extract_if(.., |(_, thread)| thread.is_finished()).for_each(|(_, thread)| self.look_after(thread));
            thawing
                .extract_if(.., |(.., thread)| thread.is_finished())
                .for_each(|(.., thread)| self.look_after(thread));
            self.holds.through().into_iter().for_each(|thread| self.look_after(thread));
            for user in self.holds.stuck(|(device, _)| !self.freezes.is_frozen(device)) {
                // One that is at it for longer may wait, and has what it waits with.
                if thawing.iter().any(|(other, since, _)| *other == user && since.elapsed() < PATIENCE) {
                    continue;
                }
                let agent = self.clone();
                let retry = move || agent.holds.retry(user, |(device, _)| !agent.freezes.is_frozen(device));
                let thread = std::thread::Builder::new().name("willow-agent-thaw".to_owned()).spawn(retry);
                thawing.extend(thread.ok().map(|thread| (user, Instant::now(), thread)));
            }
            let mut users = self.unrevoked();
            users.extend(self.state().connected.values().filter(|it| it.is_gone).map(|it| it.user));
            for user in users {
                if mending.iter().any(|(other, _)| *other == user) {
                    continue;
                }
                let agent = self.clone();
                let thread = std::thread::Builder::new().name("willow-agent-mend".to_owned());
                mending.extend(thread.spawn(move || agent.mend_of(user)).ok().map(|thread| (user, thread)));
            }
        }
        // This one ends when they have, so that who waits for it knows.
        mending.into_iter().for_each(|(_, thread)| self.look_after(thread));
        thawing.into_iter().for_each(|(.., thread)| self.look_after(thread));
    }

    fn mend_of(&self, user: u32) {
        let Ok(runtime) = runtime() else { return self.stop() };
        runtime.block_on(self.revoke_again(user));
        let gone: Vec<u64> = {
            let state = self.state();
            let those = state.connected.iter().filter(|(_, connected)| connected.is_gone && connected.user == user);
            those.map(|(key, _)| *key).collect()
        };
        for key in gone {
            runtime.block_on(self.disconnect(key));
        }
    }

    /// Users with something that could not be revoked. Where the device has refused that for too long the agent ends, whatever keeps those who try
    /// again.
    fn unrevoked(&self) -> BTreeSet<u32> {
        let (users, is_late) = {
            let state = self.state();
            let refused = |connected: &Connected| -> Vec<Option<Instant>> {
                let stages = connected.files.values().map(|file| file.stage);
                stages
                    .filter_map(|stage| if let Stage::Revoking(refused) = stage { Some(refused) } else { None })
                    .collect()
            };
            let those = state.connected.values().map(|connected| (connected.user, refused(connected)));
            let those: Vec<_> = those.filter(|(_, refused)| !refused.is_empty()).collect();
            let mut since = those.iter().flat_map(|(_, refused)| refused.iter().flatten());
            let is_late = since.any(|since| since.elapsed() >= UNREVOKED_MAX);
            (those.iter().map(|(user, _)| *user).collect(), is_late)
        };
        if is_late {
            self.fail(format!("what the device permits of a file could not be revoked for {} s", REVOKE_MAX.as_secs()));
        }
        users
    }
}
