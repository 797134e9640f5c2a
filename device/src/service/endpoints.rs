//! Endpoints are opened and closed.

use super::core::Core;
use crate::hre::HreId;
use crate::spu::abi;

impl Core {
    /// A new queue at the bridge. `process`: `None` for the host kernel (trusted), else a user process' number.
    pub fn open_hre(&mut self, process: Option<u32>) -> Option<HreId> {
        let machine = &mut *self.machine;
        let hre = machine.bridge.open(process)?;
        if let Some(process) = process {
            machine.hre_opened(hre, process);
        }
        Some(hre)
    }

    /// Ends a queue: what it has in flight is drained and its completions are dropped.
    pub fn close_hre(&mut self, hre: HreId) {
        let machine = &mut *self.machine;
        if !machine.bridge.is_open(hre) {
            return;
        }
        machine.bridge.subscriptions.forget(|_, of| of == hre);
        machine.bridge.close(hre);
        let process_ended = machine.hre_closed(hre);
        if process_ended {
            machine.fail_parked(hre.process(), None);
        }
        machine.agent_gone(hre);
        machine.end_upcalls(|of, _| of == hre, abi::ERROR_ENDED);
        let opened = machine.protection.opened_by(hre);
        self.service.forget(hre);
        self.forget_profile(hre);
        self.forget_debuggers(hre);
        if process_ended {
            self.tell_revoked(hre.process(), true);
        }
        // Where the trusted part of a host goes, nothing of what it let in stays.
        opened.into_iter().for_each(|process| self.close_process(process));
    }
}
