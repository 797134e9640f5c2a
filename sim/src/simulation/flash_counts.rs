//! What the flash and its FTL have done, asked between two runs.

use super::*;
use page_ftl::{REPORT, REPORT_WORDS};
use willow_device::control;
use willow_device::media::delegate::FlashStatistics;
use willow_flash::Counters;

/// Counts since the device was made.
pub(crate) struct FlashCounts {
    pub media: FlashStatistics,
    pub ftl: Counters,
    pub unit_bytes: u64,
    /// Times that reads suspended what changed a die.
    pub suspensions: u64,
}

impl Simulation {
    /// The counts of the medium and of the FTLs of all SPUs, where there is flash. Asking takes a little simulated time, which is nobody's.
    pub(super) fn flash_counts(&mut self) -> Result<Option<FlashCounts>, SimulationError> {
        let Some((app, hre)) = self.ftl else { return Ok(None) };
        let Some(media) = self.device.flash_statistics() else { return Ok(None) };
        let mut counts = FlashCounts { media, ftl: Counters::default(), unit_bytes: 0, suspensions: 0 };
        let model = self.device.model_statistics(self.now_ns());
        counts.suspensions = model.map_or(0, |model| model.suspensions);
        for spu in 0..self.device.spus() {
            let rpc = Rpc { app, handler: REPORT, spu, arguments: Arguments::EMPTY };
            let reply = self.ask(hre, rpc, &[])?.ok_or_else(|| no_answer("it refuses"))?;
            let words: Vec<u64> = reply.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let Some((Ok(done), unit_bytes)) = words.split_last().map(|(last, done)| (done.try_into(), *last)) else {
                let (is, should) = (words.len(), REPORT_WORDS);
                return Err(SimulationError::Device(format!(
                    "its FTL tells {is} numbers of what it has done, not {should}"
                )));
            };
            counts.ftl.add(&Counters::from_words(done));
            counts.unit_bytes = unit_bytes;
        }
        Ok(Some(counts))
    }

    /// Bytes of this machine's memory that the contents of flash take; `None`: there is no flash.
    pub fn flash_held_bytes(&mut self) -> Option<u64> {
        self.device.flash_statistics().map(|statistics| statistics.held_bytes)
    }

    /// Has the FTL's own module take the place of its old one: it recovers what the flash holds, from the newest checkpoint and what was written since,
    /// as after a power cut. Nanoseconds of simulated time until it answers on all SPUs again.
    pub fn restart_ftl(&mut self, ftl: &str) -> Result<u64, SimulationError> {
        let module = flash::ftl(ftl).map_err(|error| no_answer(&error.to_string()))?.wasm;
        let (_, hre) = self.ftl.ok_or_else(|| no_answer("there is none"))?;
        let rpc = Rpc { app: control::CONTROL_APP, handler: control::INSTALL, spu: 0, arguments: Arguments::EMPTY };
        let began_ns = self.now_ns();
        self.ask(hre, rpc, module)?.ok_or_else(|| no_answer("it is not installed again"))?;
        self.flash_counts()?;
        Ok(self.now_ns() - began_ns)
    }

    /// Asks for an RPC while nothing else is under way; its reply, or `None` where it is refused.
    fn ask(&mut self, hre: HreId, rpc: Rpc, payload: &[u8]) -> Result<Option<Vec<u8>>, SimulationError> {
        let mut now_ns = self.now_ns();
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(REPORT_WORDS * 8), 0);
        let request = HostRequest {
            tag: 0,
            rpcs: RpcList::One(rpc),
            buffer,
            payload_bytes: payload.len() as u32,
            reply_bytes: (REPORT_WORDS * 8) as u32,
        };
        self.device.set_time(now_ns);
        self.device.submit(hre, request).map_err(|_| no_answer("no room"))?;
        loop {
            // Without a model of time, the time of a call is the device's own.
            let next_ns = if self.timed { self.device.run_to_completion(u64::MAX) } else { self.device.run(now_ns) };
            let worked = self.run_jobs() | self.woken.swap(false, Ordering::Relaxed);
            if let Some(completion) = self.device.completion() {
                self.world.lock().advance(completion.at_ns.max(now_ns));
                self.device_ns = Some(0);
                return match completion.outcome {
                    RpcOutcome::Answered { status: 0 } => Ok(Some(completion.buffer[..REPORT_WORDS * 8].to_vec())),
                    RpcOutcome::Answered { .. } => Ok(None),
                    outcome => Err(no_answer(&format!("{outcome:?}"))),
                };
            }
            match next_ns {
                _ if worked => {}
                Some(next_ns) if !self.timed => now_ns = now_ns.max(next_ns),
                Some(_) => {}
                None => return Err(no_answer("no answer")),
            }
        }
    }
}

fn no_answer(what: &str) -> SimulationError {
    SimulationError::Device(format!("its FTL does not tell what it has done: {what}"))
}
