//! Endpoints as their transports see them: opening and closing, and upcalls.

use super::*;

impl Device {
    /// A new queue at the bridge. `process`: `None` for the host kernel (trusted), else a user process' number.
    pub fn open_hre(&mut self, process: Option<u32>) -> Option<HreId> {
        let machine = &mut *self.machine;
        let hre = machine.bridge.open(process)?;
        if let Some(process) = process {
            machine.hre_opened(hre, process);
        }
        Some(hre)
    }

    /// True where an endpoint is open.
    pub fn is_open(&mut self, hre: HreId) -> bool {
        self.machine.bridge.is_open(hre)
    }

    /// From now on the ends of requests whose endpoint was closed meanwhile are kept for [`Device::drained`], so that who made
    /// them knows when their buffers are free. To be fetched after each [`Device::run`].
    pub fn keep_drained(&mut self) {
        self.machine.bridge.drained.get_or_insert_default();
    }

    /// The next end of a request whose endpoint was closed before it ended.
    pub fn drained(&mut self) -> Option<HostCompletion> {
        self.machine.bridge.drained.as_mut()?.pop_front()
    }

    /// Ends a queue: what it has in flight is drained and its completions are dropped.
    pub fn close_hre(&mut self, hre: HreId) {
        let machine = &mut *self.machine;
        if !machine.bridge.is_open(hre) {
            return;
        }
        machine.bridge.close(hre);
        if machine.hre_closed(hre) {
            machine.fail_parked(hre.process(), None);
        }
        machine.agent_gone(hre);
        machine.end_upcalls(|of, _| of == hre, abi::ERROR_ENDED);
        let opened = machine.protection.opened_by(hre);
        self.service.forget(hre);
        // Where the trusted part of a host goes, nothing of what it let in stays.
        opened.into_iter().for_each(|process| self.close_process(process));
    }

    /// The next upcall for an endpoint.
    pub fn upcall(&mut self, hre: HreId) -> Option<Upcall> {
        self.machine.bridge.pop_upcall(hre)
    }

    /// Answers an upcall. False where there is no such upcall waiting for this endpoint.
    pub fn answer_upcall(&mut self, hre: HreId, id: u64, status: u32, result: u32) -> bool {
        let machine = &mut *self.machine;
        if machine.answer_miss(hre, id, status == 0) {
            return true;
        }
        match machine.upcalls.get(&id) {
            Some((of, _)) if *of == hre => {
                let Some(group) = machine.take_upcall(id) else { return false };
                let result = (u64::from(status & 0x7fff_ffff) << 32 | u64::from(result)) as i64;
                match machine.groups.get(group).map(|group| group.caller.spu) {
                    Some(spu) if machine.is_timed() => {
                        let ends = (Endpoint::Host, Endpoint::Spu(spu));
                        machine.carry(|| Event::End { group, result, memory: None }, ends, 0, 0);
                    }
                    _ => machine.end_one(group, result, None),
                }
                true
            }
            _ => false,
        }
    }
}
