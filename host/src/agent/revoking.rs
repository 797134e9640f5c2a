//! Permissions that are taken back: by the device's word alone is that done.
//!
//! What always holds:
//! - what is to be revoked was taken off the list before, and is never installed again for that file;
//! - a file whose revocation fails stays frozen, in the list and in the journal; it is tried again ([`Agent::revoke_again`]) until the device
//!   says that it is done, or until the agent ends ([`REVOKE_MAX`]), with which the device ends what it permitted;
//! - a file system goes on being frozen only when all revocations there were answered.

use super::fault::{Fault, LATE};
use super::files::{RELEASE_AGAIN, RELEASE_LOOK};
use super::serving::{READ, WRITE};
use super::{Agent, Connected, REVOKE_MAX, Stage};
use crate::control::PermissionInfo;
use std::time::Instant;

/// What is permitted in a file: connection, number of the file there, process in the device, and the list.
type Permitted = (u64, u32, u32, Vec<PermissionInfo>);

impl Agent {
    /// Has the device revoke what it permits a process of a file: when this returns, nothing of it is under way. The error is a sentence.
    pub(super) async fn revoke(&self, process: u32, permissions: &[PermissionInfo]) -> Result<(), String> {
        let whole: Vec<PermissionInfo> =
            permissions.iter().map(|it| PermissionInfo { rights: READ | WRITE, ..*it }).collect();
        if self.faults.has(Fault::RevokeFails) {
            return Err("the device refuses, as was planted".to_owned());
        }
        match tokio::time::timeout(REVOKE_MAX, self.control.revoke(process, &whole)).await {
            Ok(Ok(())) if self.faults.has(Fault::RevokeUnheard) => {
                Err("its answer was lost, as was planted".to_owned())
            }
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the device has not answered for {} s", REVOKE_MAX.as_secs())),
        }
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
        for (key, file) in failed {
            if self.close(key, file, false, false).await.is_ok() {
                tracing::info!("what could not be revoked of a file is revoked now");
            }
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
        let begun = Instant::now();
        while !self.stopping() {
            // Looked at before the list is: what ends later has put its permissions on it by then, and nothing begins any more.
            let is_settled = !self.freezes.is_busy(device);
            self.faults.step();
            let taken = self.take_all_on(device).await;
            self.faults.step();
            let mut failure = None;
            for (key, file, process, permissions) in &taken {
                match self.revoke(*process, permissions).await {
                    Ok(()) => {
                        let mut state = self.state();
                        let of = state.connected.get_mut(key).and_then(|connected| connected.files.get_mut(file));
                        // A thread that closes it meanwhile revokes it once more.
                        of.into_iter().for_each(|file| file.revoking.clear());
                    }
                    Err(why) => failure = Some(why),
                }
            }
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
                && begun.elapsed() >= REVOKE_MAX
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
