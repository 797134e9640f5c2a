//! Permissions that the device no longer has: those that are evicted are installed again when they are missed.
//!
//! What always holds: what is installed again is on a list, of a file that is open or of a module, and stays there until it is installed
//! (`order`).

use super::{Agent, OpenFile};
use crate::control::PermissionInfo;
use crate::hre::Upcall;
use std::collections::BTreeMap;

/// Permissions behind a missed one that are installed again with it: who reads on misses them next.
const INSTALLED_BEHIND: usize = 15;

impl Agent {
    /// Installs again what a process' open files allow in the missed range, and some of what is behind it; false where that does not
    /// hold it.
    pub(super) async fn resolve(&self, upcall: &Upcall) -> bool {
        let long = |at: usize| upcall.body.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        let (Some(who), Some(start), Some(end), Some(rights)) = (long(0), long(8), long(16), long(24)) else {
            return false;
        };
        let process = who as u32 >> 12 & 0x7_ffff;
        let _turn = self.order.lock().await;
        let again = self.permissions_of(process, |_, file| {
            let behind = |it: &&PermissionInfo| it.spu == upcall.spu && start < it.start + it.bytes;
            file.permissions.iter().filter(behind).copied().collect()
        });
        let mut again = again;
        for (user, permission) in self.modules.iter().flat_map(|module| module.permissions(process)) {
            if permission.spu == upcall.spu && start < permission.start + permission.bytes {
                again.entry(user).or_default().push(permission);
            }
        }
        let wanted = rights as u32;
        for (user, mut again) in again {
            again.sort_unstable_by_key(|it| it.start);
            let inside = again.partition_point(|it| it.start < end);
            again.truncate(inside + INSTALLED_BEHIND);
            let reaches = |at: u64| {
                let at_it = again.iter().filter(|it| it.start <= at && at < it.start + it.bytes);
                at_it.filter(|it| it.rights & wanted == wanted).map(|it| it.start + it.bytes).max()
            };
            let mut at = start;
            while let Some(next) = reaches(at).filter(|_| at < end) {
                at = next;
            }
            if at >= end && self.control.grant_to_user((process, user), &again).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// What `of` takes of each open file of the process with this number in the device, which it is given with its connection's and its own
    /// number; by the user of the connection, since the number may be another process' by now.
    pub(super) fn permissions_of(
        &self,
        process: u32,
        of: impl Fn((u64, u32), &OpenFile) -> Vec<PermissionInfo>,
    ) -> BTreeMap<u32, Vec<PermissionInfo>> {
        let mut by_user = BTreeMap::<u32, Vec<PermissionInfo>>::new();
        let state = self.state();
        for (key, connected) in state.connected.iter().filter(|(_, connected)| connected.process == Some(process)) {
            for (number, file) in &connected.files {
                by_user.entry(connected.user).or_default().extend(of((*key, *number), file));
            }
        }
        by_user
    }
}
