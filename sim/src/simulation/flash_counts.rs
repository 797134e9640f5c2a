//! What the flash and its FTL have done, asked between two runs.

use super::*;
use page_ftl::{REPORT, REPORT_WORDS};
use willow_device::media::delegate::FlashStatistics;
use willow_flash::Counters;

/// Counts since the device was made.
pub(crate) struct FlashCounts {
    pub media: FlashStatistics,
    pub ftl: Counters,
    pub unit_bytes: u64,
}

impl Simulation {
    /// The counts of the medium and of the FTLs of all SPUs, where there is flash. Asking takes a little simulated time, which is nobody's.
    pub(super) fn flash_counts(&mut self) -> Result<Option<FlashCounts>, SimulationError> {
        let Some((app, hre)) = self.ftl else { return Ok(None) };
        let Some(media) = self.device.flash_statistics() else { return Ok(None) };
        let mut counts = FlashCounts { media, ftl: Counters::default(), unit_bytes: 0 };
        for spu in 0..self.device.spus() {
            let reply = self.ask(hre, Rpc { app, handler: REPORT, spu, arguments: Arguments::EMPTY })?;
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

    /// Asks for an RPC while nothing else is under way; its reply.
    fn ask(&mut self, hre: HreId, rpc: Rpc) -> Result<Vec<u8>, SimulationError> {
        let failed = |what: String| SimulationError::Device(format!("its FTL does not tell what it has done: {what}"));
        let now_ns = self.now_ns();
        let request = HostRequest {
            tag: 0,
            rpcs: RpcList::One(rpc),
            buffer: vec![0; REPORT_WORDS * 8],
            payload_bytes: 0,
            reply_bytes: (REPORT_WORDS * 8) as u32,
        };
        self.device.set_time(now_ns);
        self.device.submit(hre, request).map_err(|_| failed("no room".to_owned()))?;
        loop {
            let next_ns = self.device.run_to_completion(u64::MAX);
            self.run_jobs();
            if let Some(completion) = self.device.completion() {
                self.world.lock().advance(completion.at_ns.max(now_ns));
                self.device_ns = Some(0);
                return match completion.outcome {
                    RpcOutcome::Answered { status: 0 } => Ok(completion.buffer),
                    outcome => Err(failed(format!("{outcome:?}"))),
                };
            }
            if next_ns.is_none() {
                return Err(failed("no answer".to_owned()));
            }
        }
    }
}
