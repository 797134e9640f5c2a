//! Keeps the banks served where an app does that, the FTL: starts it, looks whether it answers, and starts it anew when it fails.
//!
//! What always holds:
//! - A bank is served while an instance of the FTL is there that has answered STARTED with status 0. Until then operations wait, for a
//!   bounded time: an FTL has [`START_LOOKS_MAX`] seconds to start and [`STARTS_MAX`] attempts, then its bank has failed, operations on it
//!   fail, and the device says so ([`Core::flash_failed`]) until another version is installed.
//! - An operation that the FTL has had for [`ANSWER_LOOKS_MAX`] seconds ends its instance. Seconds are counted by looking: what stops the
//!   whole device is not the FTL's fault.
//! - Instances are independent: what happens to one bank concerns no other.
//! - While the FTL is being replaced this waits: the installation starts it, or brings the old one back.
//!
//! The control service calls it.

use super::core::Core;
use crate::media::delegate::{Kind, Service};
use crate::request::AppNumber;
use crate::service::statistics::FlashStatistics;
use crate::spu::abi;
use crate::spu::os::{Admission, AppState};

/// From one look at the FTLs to the next.
pub const LOOK_NS: u64 = 1_000_000_000;
/// Most looks that find an operation with an FTL.
pub const ANSWER_LOOKS_MAX: u32 = 10;
/// Most looks that find an FTL starting: it reads what it needs of the flash meanwhile.
pub const START_LOOKS_MAX: u32 = 120;
/// Most attempts to start an FTL that ends before it has started.
pub const STARTS_MAX: u32 = 3;

/// How far the FTL of a bank is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bank {
    /// Its instance has been told STARTED, and has not answered; `watch` names the answer.
    Starting { watch: u32, looks: u32, attempt: u32 },
    /// It serves.
    Serving,
    /// It does not come up, and why.
    Failed(String),
}

/// What hosts should know of the flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashState {
    /// How often what was answered and not flushed may have been lost, since an FTL that keeps such things in memory has ended.
    pub losses: u64,
    /// Operations on a bank fail, since its FTL does not come up.
    pub failed: bool,
}

impl FlashState {
    /// The number that tells hosts which start of the device it is that has what they wrote and did not flush, where the process has that
    /// number: an FTL that has ended and may have lost such things makes it another. 0 stays 0: nothing is lost.
    pub fn start(&self, process: u64) -> u64 {
        if process == 0 { 0 } else { process.wrapping_add(self.losses).max(1) }
    }
}

/// All banks' FTLs.
pub(crate) struct Keeper {
    banks: Vec<Bank>,
    /// When to look next.
    look_ns: u64,
    state: FlashState,
    /// Instances that have failed while they served.
    restarts: u64,
}

impl Keeper {
    fn is_starting(&self) -> bool {
        self.banks.iter().any(|bank| matches!(bank, Bank::Starting { .. }))
    }
}

impl Core {
    /// The FTL is in its place: it starts on all SPUs.
    pub(super) fn start_ftl(&mut self, number: AppNumber) {
        let ended = self.forget_news();
        let banks = vec![Bank::Serving; self.spus().into()];
        let (losses, restarts) =
            self.service.ftl.as_ref().map_or((0, 0), |keeper| (keeper.state.losses, keeper.restarts));
        let state = FlashState { losses: losses + ended, failed: false };
        self.service.ftl = Some(Keeper { banks, look_ns: 0, state, restarts });
        for spu in 0..self.spus() {
            self.machine.set_service(spu, Service::Waiting);
            self.tell_ftl_started(number, spu, 1);
        }
    }

    /// The FTL has started on all SPUs in the course of its installation.
    pub(super) fn ftl_started(&mut self) {
        let ended = self.forget_news();
        if let Some(keeper) = &mut self.service.ftl {
            keeper.banks.fill(Bank::Serving);
            keeper.state = FlashState { losses: keeper.state.losses + ended, failed: false };
        }
        (0..self.spus()).for_each(|spu| self.machine.set_service(spu, Service::Serving));
    }

    /// Another version stands for instances that have ended: 1 where something was lost with them.
    fn forget_news(&mut self) -> u64 {
        let mut ended = false;
        while self.machine.news.ftl_ended().is_some() {
            ended = true;
        }
        u64::from(ended && self.machine.media.store.volatile_service())
    }

    /// There is no FTL at all, and why.
    pub(super) fn ftl_missing(&mut self, why: &str) {
        let banks = vec![Bank::Serving; self.spus().into()];
        self.service.ftl = Some(Keeper { banks, look_ns: 0, state: FlashState::default(), restarts: 0 });
        (0..self.spus()).for_each(|spu| self.ftl_failed(spu, why));
    }

    fn tell_ftl_started(&mut self, number: AppNumber, spu: u16, attempt: u32) {
        let watch = self.service.key();
        let now_ns = self.machine.now_ns;
        if let Some(keeper) = &mut self.service.ftl {
            keeper.banks[usize::from(spu)] = Bank::Starting { watch, looks: 0, attempt };
            if keeper.look_ns <= now_ns {
                keeper.look_ns = now_ns + LOOK_NS;
            }
        }
        self.send_event_to(number, spu..spu + 1, &[abi::EVENT_STARTED], Some(watch));
    }

    /// The FTL of a bank does not come up.
    fn ftl_failed(&mut self, spu: u16, why: &str) {
        let ftl = self.machine.media.store.served_by().unwrap_or_default().to_owned();
        tracing::error!("bank {spu} has failed, since FTL {ftl} does not come up: {why}");
        if let Some(app) = self.machine.ftl().and_then(|number| self.machine.app(number)) {
            app.push_line(format!("{spu}: [SPU-OS] the bank has failed, since its FTL does not come up: {why}"));
        }
        if let Some(keeper) = &mut self.service.ftl {
            keeper.banks[usize::from(spu)] = Bank::Failed(why.to_owned());
            keeper.state.failed = true;
        }
        self.machine.set_service(spu, Service::Failed);
    }

    /// Why a bank has failed, where one has: its FTL does not come up.
    pub fn flash_failed(&self) -> Option<(u16, &str)> {
        let banks = self.service.ftl.iter().flat_map(|keeper| &keeper.banks).enumerate();
        let mut failed = banks.filter_map(|(spu, bank)| match bank {
            Bank::Failed(why) => Some((spu as u16, why.as_str())),
            _ => None,
        });
        failed.next()
    }

    /// What hosts should know.
    #[inline]
    pub fn flash_state(&self) -> FlashState {
        self.service.ftl.as_ref().map_or(FlashState::default(), |keeper| keeper.state)
    }

    /// What there is to tell of it.
    pub(super) fn flash_statistics(&self) -> Option<FlashStatistics> {
        let keeper = self.service.ftl.as_ref()?;
        Some(FlashStatistics {
            ftl: self.machine.media.store.served_by()?.to_owned(),
            restarts: keeper.restarts,
            losses: keeper.state.losses,
            failed: self.flash_failed().map(|(spu, why)| format!("bank {spu}: {why}")),
            health: self.machine.flash_health()?,
        })
    }

    /// When the FTLs are to be looked at, if they are.
    pub(super) fn ftl_look_ns(&self) -> Option<u64> {
        let keeper = self.service.ftl.as_ref()?;
        (self.machine.handed_out() > 0 || keeper.is_starting()).then_some(keeper.look_ns)
    }

    /// An event that somebody waits for has been answered by all.
    pub(super) fn ftl_told(&mut self, watch: u32, refusal: Option<u32>) {
        let Some(keeper) = &mut self.service.ftl else { return };
        let is_watched = |bank: &Bank| matches!(bank, Bank::Starting { watch: own, .. } if *own == watch);
        let Some(spu) = keeper.banks.iter().position(is_watched) else { return };
        let number = self.machine.ftl();
        // One that has ended meanwhile is in the news.
        if number.is_none_or(|number| !self.machine.has_instance(number, spu as u16)) {
            return;
        }
        match refusal {
            None => {
                keeper.banks[spu] = Bank::Serving;
                self.machine.set_service(spu as u16, Service::Serving);
            }
            Some(status) => {
                let why = match status {
                    abi::EVENT_UNDELIVERED => "STARTED found no place in its inbox".to_owned(),
                    status => format!("it answered STARTED with status {status}: its serial port may say why"),
                };
                self.machine.ftl_instance_ended(spu as u16, &why);
            }
        }
    }

    /// Goes on with what the FTLs need; true where something was done.
    pub(super) fn keep_ftl(&mut self, now_ns: u64) -> bool {
        let Some(name) = self.machine.media.store.served_by() else { return false };
        let is_due = self.ftl_look_ns().is_some_and(|look_ns| look_ns <= now_ns);
        if !self.machine.news.has_ended_ftls() && !is_due {
            return false;
        }
        let is_changing = self.is_changing(name);
        let mut busy = is_due;
        if !is_changing {
            while let Some((spu, why)) = self.machine.news.ftl_ended() {
                self.ftl_ended(spu, &why);
                busy = true;
            }
        }
        if is_due {
            self.look_at_ftls(now_ns, is_changing);
        }
        busy
    }

    /// The FTL's instance on an SPU has ended.
    fn ftl_ended(&mut self, spu: u16, why: &str) {
        let forgets = self.machine.media.store.volatile_service();
        let Some(keeper) = &mut self.service.ftl else { return };
        let attempt = match &keeper.banks[usize::from(spu)] {
            Bank::Failed(_) => return,
            Bank::Serving => {
                keeper.restarts += 1;
                keeper.state.losses += u64::from(forgets);
                1
            }
            Bank::Starting { attempt, .. } if *attempt >= STARTS_MAX => return self.ftl_failed(spu, why),
            Bank::Starting { attempt, .. } => attempt + 1,
        };
        let Some(number) = self.machine.ftl() else { return self.ftl_failed(spu, "it is not installed any more") };
        if let Err(why) = self.restart_ftl(number, spu) {
            return self.ftl_failed(spu, &why);
        }
        tracing::warn!("FTL on SPU {spu}: started anew, attempt {attempt}");
        self.tell_ftl_started(number, spu, attempt);
    }

    /// A fresh instance of the FTL takes the place of one that has ended.
    fn restart_ftl(&mut self, number: AppNumber, spu: u16) -> Result<(), String> {
        let program = self.programs[usize::from(number)].clone().ok_or("it never came up")?;
        let app = self.machine.app_at(number).ok_or("it is not installed any more")?;
        // What `_initialize` prints goes with the log.
        let staging = AppState::new(&app.name, &app.version, vec![], 0, 0);
        let limits = self.instance_limits(app);
        self.machine.begin_staging(staging);
        let made = self.make_instance(&program, spu, limits);
        let printed = self.machine.end_staging();
        let instance = made?;
        if let (Some(printed), Some(app)) = (printed, self.machine.app(number)) {
            printed.log.into_iter().for_each(|line| app.push_line(line));
            // Where all instances had ended, the app goes on with the first.
            (app.ended, app.failed, app.admission) = (None, false, Admission::Open);
        }
        self.machine.place_instance(number, spu, instance);
        Ok(())
    }

    /// Ends what has taken too long.
    fn look_at_ftls(&mut self, now_ns: u64, is_changing: bool) {
        let mut late = Vec::new();
        let Some(keeper) = &mut self.service.ftl else { return };
        keeper.look_ns = now_ns + LOOK_NS;
        if is_changing {
            return;
        }
        for (spu, bank) in keeper.banks.iter_mut().enumerate() {
            let spu = spu as u16;
            match bank {
                Bank::Starting { looks, attempt, .. } => {
                    *looks += 1;
                    if *looks > START_LOOKS_MAX {
                        // Another attempt would take as long.
                        *attempt = STARTS_MAX;
                        late.push((spu, format!("it has not answered STARTED within {START_LOOKS_MAX} s")));
                    }
                }
                Bank::Serving => {
                    let Some(overdue) = self.machine.overdue(spu, ANSWER_LOOKS_MAX) else { continue };
                    let what = match overdue.kind {
                        Kind::Read => "a read",
                        Kind::Write => "a write",
                        Kind::Zero => "a zeroing",
                        Kind::Flush => "a flush",
                    };
                    let (address, bytes) = (overdue.address, overdue.bytes);
                    late.push((
                        spu,
                        format!("it has not answered {what} of {bytes} bytes at {address} within {ANSWER_LOOKS_MAX} s"),
                    ));
                }
                Bank::Failed(_) => {}
            }
        }
        for (spu, why) in late {
            self.machine.ftl_instance_ended(spu, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FlashState;

    #[test]
    fn each_loss_makes_the_devices_start_another_and_where_nothing_is_lost_there_is_none() {
        let start = |losses, process| FlashState { losses, failed: false }.start(process);
        assert_eq!((start(0, 0), start(3, 0)), (0, 0));
        assert_eq!(start(0, 77), 77);
        assert_ne!(start(1, 77), start(0, 77));
        assert_ne!(start(1, u64::MAX), 0, "0 says that nothing is lost");
    }
}
