//! Permissions that are taken back: by the device's word alone is that done.
//!
//! What always holds:
//! - what is to be revoked was taken off the list before, and is never installed again for that file;
//! - a file whose revocation fails stays frozen, in the list and in the journal; it is tried again ([`Agent::revoke_again`]) until the device
//!   says that it is done;
//! - a device that refuses a revocation, or says nothing at all, may go on permitting: past [`REVOKE_MAX`] the agent ends, and the device ends what
//!   it permitted with it;
//! - a device that has taken the rights away, and still works on what they allowed before, permits nothing new. It has as long as it needs, since the
//!   agent's end would not shorten that, and would end everybody else's direct access. What it works on is what was under way when it was asked: nobody
//!   can add to that. Such a wait is not broken off and begun anew by who mends: it would have to wait for others' newer requests then, again and again;
//! - a file system goes on being frozen only when all revocations there were answered.

use super::fault::{Fault, LATE};
use super::files::{ASKED, Closes, RELEASE_AGAIN, RELEASE_LOOK};
use super::serving::{READ, WRITE};
use super::{Agent, Connected, REVOKE_MAX, Refusal, Stage};
use crate::control::{ControlStatus, PermissionInfo};
use crate::hre::{BoxFuture, HreError};
use std::time::{Duration, Instant};

/// What is permitted in a file: connection, number of the file there, process in the device, and the list.
type Permitted = (u64, u32, u32, Vec<PermissionInfo>);

/// How often a device that has not answered a revocation is asked whether it answers at all.
const ANSWER_LOOK: Duration = Duration::from_secs(2);
/// Wait between two looks whether the agent ends.
const REVOKE_LOOK: Duration = Duration::from_millis(200);
/// Most files that one thread has revoked at the same time: each is answered when all that is under way then has ended.
pub(super) const FILES_AT_ONCE: usize = 16;
/// The same where somebody waits for all of them: to freeze their file system, or to open the one file that they are.
pub(super) const WAITED_FOR_AT_ONCE: usize = 256;

/// How long is waited for a device that works on what was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Then who mends waits.
    UpTo(Duration),
    /// Until it is done, or the agent ends.
    UntilDone,
}

/// Why something is not revoked yet.
#[derive(Debug)]
pub(super) enum Unrevoked {
    /// The device refuses it, or has not answered at all since then: it may go on permitting.
    Refused(String, Instant),
    /// The device has taken the rights away, and works on what they allowed before.
    UnderWay(String),
}

impl Unrevoked {
    /// Since when the device may go on permitting, where it had refused since `before` already.
    pub fn refused_since(&self, before: Option<Instant>) -> Option<Instant> {
        match self {
            Unrevoked::Refused(_, since) => Some(before.unwrap_or(*since)),
            Unrevoked::UnderWay(_) => None,
        }
    }
}

impl std::fmt::Display for Unrevoked {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Unrevoked::Refused(why, _) | Unrevoked::UnderWay(why)) = self;
        out.write_str(why)
    }
}

impl Agent {
    /// Has the device revoke what it permits a process of a file: when this returns, nothing of it is under way.
    pub(super) async fn revoke(
        &self,
        process: u32,
        permissions: &[PermissionInfo],
        patience: Patience,
    ) -> Result<(), Unrevoked> {
        let whole: Vec<PermissionInfo> =
            permissions.iter().map(|it| PermissionInfo { rights: READ | WRITE, ..*it }).collect();
        let begun = Instant::now();
        if self.faults.has(Fault::RevokeFails) {
            return Err(Unrevoked::Refused("the device refuses, as was planted".to_owned(), begun));
        }
        let mut revoked = std::pin::pin!(self.control.revoke(process, &whole));
        let mut heard = begun;
        loop {
            match tokio::time::timeout(REVOKE_LOOK, revoked.as_mut()).await {
                Ok(Ok(())) if self.faults.has(Fault::RevokeUnheard) => {
                    return Err(Unrevoked::Refused("its answer was lost, as was planted".to_owned(), begun));
                }
                Ok(Ok(())) => return Ok(()),
                // The rights are gone, and an app has not written yet what it owes by them.
                Ok(Err(HreError::Control { status, text })) if status == ControlStatus::Busy as u32 => {
                    return Err(Unrevoked::UnderWay(text));
                }
                Ok(Err(error)) => return Err(Unrevoked::Refused(error.to_string(), heard)),
                Err(_) => {}
            }
            // The control service takes what it is asked in order: one that answers this has taken the rights away.
            let silent = heard.elapsed();
            if silent >= ANSWER_LOOK && self.answers_within(REVOKE_MAX.saturating_sub(silent)).await {
                heard = Instant::now();
            }
            if heard.elapsed() >= REVOKE_MAX {
                let why = format!("the device has not answered for {} s", REVOKE_MAX.as_secs());
                return Err(Unrevoked::Refused(why, heard));
            }
            let is_over = match patience {
                Patience::UpTo(most) => begun.elapsed() >= most,
                Patience::UntilDone => self.stopping(),
            };
            if is_over {
                let why = format!("the device still works on what was under way {} s ago", begun.elapsed().as_secs());
                return Err(Unrevoked::UnderWay(why));
            }
        }
    }

    async fn answers_within(&self, most: Duration) -> bool {
        matches!(tokio::time::timeout(most, self.control.processes()).await, Ok(Ok(_)))
    }

    /// Closes files, so many at the same time; how many could not be closed, and one of the reasons: of all but that another thread is busy with one
    /// where there is another.
    pub(super) async fn close_each(
        &self,
        files: &[(u64, u32)],
        closes: Closes,
        at_once: usize,
    ) -> (usize, Option<Refusal>) {
        let (mut left, mut failure) = (0, None);
        for some in files.chunks(at_once) {
            let closing = some.iter().map(|(key, file)| {
                let closed = self.close_by(*key, *file, (false, false), closes);
                Box::pin(closed) as BoxFuture<'_, Result<(), Refusal>>
            });
            for closed in crate::direct_io::all(closing.collect()).await {
                if let Err(why) = closed {
                    left += 1;
                    failure = match failure {
                        Some(other) if matches!(why, Refusal::Busy) => Some(other),
                        _ => Some(why),
                    };
                }
            }
        }
        (left, failure)
    }

    /// Closes once more what a user could not close since the device did not revoke. A device that goes on refusing permits what may be
    /// another file's soon: then the agent ends, and what was permitted with it.
    pub(super) async fn revoke_again(&self, user: u32) {
        let failed: Vec<(u64, u32)> = {
            let state = self.state();
            let of = |(key, connected): (&u64, &Connected)| {
                let (key, all) = (*key, connected.files.iter().filter(|_| connected.user == user));
                let those = all.filter(|(_, file)| matches!(file.stage, Stage::Revoking(_)));
                those.map(|(number, _)| (key, *number)).collect::<Vec<_>>()
            };
            state.connected.iter().flat_map(of).collect()
        };
        let until_done = Closes { patience: Patience::UntilDone, ..ASKED };
        let (left, _) = self.close_each(&failed, until_done, FILES_AT_ONCE).await;
        if left < failed.len() {
            tracing::info!("what could not be revoked of {} files is revoked now", failed.len() - left);
        }
    }

    /// Installs again what other open files of a process allow in the same file.
    pub(super) async fn restore_kept(&self, process: u32, file: (u64, u64), but: (u64, u32)) {
        let _turn = self.order.lock().await;
        let kept = self.permissions_of(process, |which, other| match which != but && other.hold.key() == file {
            true => other.permissions.clone(),
            false => Vec::new(),
        });
        for (user, kept) in kept.into_iter().filter(|(_, kept)| !kept.is_empty()) {
            // What is missing then is missed, and asked for.
            let _ = self.control.grant_to_user((process, user), &kept).await;
        }
    }

    /// A file system is being frozen: nothing can be written past it when this returns, and it goes on being frozen. Calls no file system.
    pub(super) async fn let_freeze(&self, device: u64) {
        if self.faults.has(Fault::HolderFirst) {
            self.freezes.let_go(device);
            while self.faults.has(Fault::HolderFirst) && !self.stopping() {
                tokio::time::sleep(RELEASE_AGAIN).await;
            }
        }
        let mut refused = None;
        while !self.stopping() {
            // Looked at before the list is: what ends later has put its permissions on it by then, and nothing begins any more.
            let is_settled = !self.freezes.is_busy(device);
            self.faults.step();
            let taken = self.take_all_on(device).await;
            self.faults.step();
            let mut failure: Option<Unrevoked> = None;
            for some in taken.chunks(WAITED_FOR_AT_ONCE) {
                let revoking = some.iter().map(|(_, _, process, permissions)| {
                    let revoked = self.revoke(*process, permissions, Patience::UntilDone);
                    Box::pin(revoked) as BoxFuture<'_, Result<(), Unrevoked>>
                });
                for ((key, file, ..), revoked) in some.iter().zip(crate::direct_io::all(revoking.collect()).await) {
                    match revoked {
                        Ok(()) => {
                            let mut state = self.state();
                            let of = state.connected.get_mut(key).and_then(|connected| connected.files.get_mut(file));
                            // A thread that closes it meanwhile revokes it once more.
                            of.into_iter().for_each(|file| file.revoking.clear());
                        }
                        Err(why) => failure = Some(why),
                    }
                }
            }
            refused = failure.as_ref().and_then(|why| why.refused_since(refused));
            let is_settled = match self.faults.has(Fault::SettledLate) {
                true => {
                    tokio::time::sleep(LATE).await;
                    !self.freezes.is_busy(device)
                }
                false => is_settled,
            };
            if failure.is_none() && is_settled {
                self.faults.step();
                self.freezes.let_go(device);
                return self.faults.step();
            }
            if let Some(why) = &failure
                && refused.is_some_and(|since| since.elapsed() >= REVOKE_MAX)
            {
                return self.fail(format!("a file system that is being frozen waits for a revocation: {why}"));
            }
            tokio::time::sleep(if failure.is_some() { RELEASE_AGAIN } else { RELEASE_LOOK }).await;
        }
    }

    /// Takes off the list what is permitted on a file system: of whom, and what the device has to revoke.
    async fn take_all_on(&self, device: u64) -> Vec<Permitted> {
        let _turn = self.order.lock().await;
        let mut state = self.state();
        let mut taken = Vec::new();
        for (key, connected) in &mut state.connected {
            for (number, file) in connected.files.iter_mut().filter(|(_, file)| file.hold.key().0 == device) {
                if file.permissions.is_empty() && file.revoking.is_empty() {
                    continue;
                }
                if file.rights & WRITE == 0 && self.faults.has(Fault::ReadersLeft) {
                    continue;
                }
                connected.is_stale = true;
                let permissions = file.begin_revoking();
                taken.extend(connected.process.map(|process| (*key, *number, process, permissions)));
                if file.rights & WRITE != 0 {
                    file.hold.note_write();
                }
            }
        }
        taken
    }
}
