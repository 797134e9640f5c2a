//! Room for apps: numbers, and data and instruction memory on each SPU.
//!
//! What always holds:
//! - what is installed, and what is about to be, fits each SPU's memories together;
//! - users leave a quarter of each to apps of the kernel, and one user leaves as much to others as he has;
//! - what is installed is loaded at the next start whatever others have: users' shares are looked at when something is installed.
//!
//! Who may call it: installations, and what is loaded at the start.

use super::core::Core;
use super::transaction::Work;
use super::versions::{Making, Version};
use crate::request::AppNumber;
use crate::spu::app::AppState;
use crate::spu::module::Footprint;

/// Of so many parts of what all apps share, one is the kernel's.
const KERNEL_PART: u64 = 4;

/// What of one kind is taken.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    kernel: u64,
    users: u64,
    /// Of that, by the one who asks.
    own: u64,
}

impl Taken {
    /// Counts what an app has.
    fn add(&mut self, owner: Option<u32>, asks: u32, amount: u64) {
        match owner {
            None => self.kernel += amount,
            Some(user) => {
                self.users += amount;
                self.own += if user == asks { amount } else { 0 };
            }
        }
    }

    /// What is left to users.
    fn left(&self, total: u64) -> u64 {
        total.saturating_sub(self.kernel.max(total / KERNEL_PART)).saturating_sub(self.users)
    }

    /// True where a user may have so much more.
    fn admits(&self, total: u64, needs: u64) -> bool {
        self.own.saturating_add(needs) <= self.left(total)
    }
}

impl Core {
    /// A number that no app has, and none is about to get.
    pub(super) fn free_number(&self) -> Result<AppNumber, String> {
        let machine = &*self.machine;
        let claimed = |number: AppNumber| {
            self.service.commits.durable.apps.iter().any(|app| app.number == number) || self.is_reserved(number)
        };
        let mut places = 1..machine.config.apps_max;
        let free = places.find(|place| machine.app_at(*place).is_none() && !claimed(*place));
        free.ok_or_else(|| format!("there is room for {} apps", machine.config.apps_max - 1))
    }

    /// Apps beside the one of that name: those that are installed, and versions that are about to be.
    fn others(&self, name: &str) -> impl Iterator<Item = &AppState> {
        let staged = self.service.transactions.values().filter_map(|transaction| match &transaction.work {
            Work::Install(install) => {
                let making = install.making.as_ref().map(Making::state);
                making.or_else(|| install.staged.as_ref().map(Version::state))
            }
            _ => None,
        });
        let ftl = self.machine.media.store.served_by();
        let installed = self.machine.apps().map(|(_, app)| app);
        installed.chain(staged).filter(move |app| app.name != name && ftl != Some(&app.name))
    }

    /// Checks that an app fits each SPU's memories beside the others; a version before it makes way.
    pub(super) fn check_room(&self, name: &str, footprint: Footprint) -> Result<(), String> {
        let config = &self.machine.config;
        // The FTL's memory is the flash's: it has a bound of its own.
        if self.machine.media.store.served_by() == Some(name) {
            return Ok(());
        }
        let others = self.others(name).filter(|app| !app.failed);
        let (data, code) = others.fold((0, 0), |(data, code): (u64, u64), app| {
            (data + app.footprint.data_bytes, code + app.footprint.code_bytes)
        });
        for (what, needs, taken, limit, most) in [
            ("data", footprint.data_bytes, data, "spu_data_bytes_max", config.spu_data_bytes_max),
            ("instruction", footprint.code_bytes, code, "spu_code_bytes_max", config.spu_code_bytes_max),
        ] {
            if needs > most.saturating_sub(taken) {
                return Err(format!(
                    "it needs {needs} bytes of {what} memory on each SPU, and other apps have {taken} of {most} (the preset's limit {limit}): \
                     remove one, or declare a smaller maximum"
                ));
            }
        }
        Ok(())
    }

    /// Checks that a user's app leaves others their part, of numbers and of each SPU's memories. A version that takes no more than the one before
    /// is not refused.
    pub(super) fn check_share(&self, name: &str, user: u32, footprint: Footprint) -> Result<(), String> {
        let config = &self.machine.config;
        let before = self.machine.apps().map(|(_, app)| app).find(|app| app.name == name);
        let (had_apps, had) = before.map_or((0, Footprint::default()), |app| (1, app.footprint));
        let (mut apps, mut data, mut code) = (Taken::default(), Taken::default(), Taken::default());
        for app in self.others(name) {
            apps.add(app.owner, user, 1);
            data.add(app.owner, user, app.footprint.data_bytes);
            code.add(app.owner, user, app.footprint.code_bytes);
        }
        for (what, limit, total, (needs, had), taken) in [
            ("apps", "apps_max", u64::from(config.apps_max) - 1, (1, had_apps), apps),
            (
                "bytes of data memory on each SPU",
                "spu_data_bytes_max",
                config.spu_data_bytes_max,
                (footprint.data_bytes, had.data_bytes),
                data,
            ),
            (
                "bytes of instruction memory on each SPU",
                "spu_code_bytes_max",
                config.spu_code_bytes_max,
                (footprint.code_bytes, had.code_bytes),
                code,
            ),
        ] {
            if needs > had && !taken.admits(total, needs) {
                let left = taken.left(total);
                return Err(format!(
                    "this user would have {} {what}, and {left} are left to users of the {total} that there are ({limit}): each leaves as many to \
                     others as he has; remove one, or declare less",
                    taken.own + needs
                ));
            }
        }
        Ok(())
    }
}
