//! Flash behind the SPUs: dies and buses of all banks as one state machine ([`willow_flash_media::timing`]) that the model of hardware carries
//! along, and where its spans, uses and energy are told.
//!
//! Invariants: a bank is a number of neighbouring channels, the same for each; a die's lane and name are those of its bank. Operations are submitted
//! in the order of time, each at its own.

use super::parameters::ModelParameters;
use super::statistics::ResourceStatistics;
use super::trace::{Lane, Tracer};
use willow_flash_media::timing::{self, Completion, Refused, Submission};
use willow_flash_media::{FlashParameters, Geometry};

/// How an operation of flash was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashStep {
    /// It is under way: [`super::Timing::flash_advance`] tells when it is done.
    UnderWay,
    /// Its die has as many as it takes: it is to be submitted again when one of them is done.
    Full,
    /// The model knows no flash: it is done at once.
    Done,
}

/// Flash of all banks.
#[derive(Debug)]
pub struct FlashHardware {
    timing: timing::Timing,
    channels: u32,
    /// Channels of a bank.
    bank_channels: u32,
    /// Dies at a channel.
    channel_dies: u32,
}

/// One bank's part of the flash, where so many banks share its channels.
pub fn bank_geometry(geometry: &Geometry, banks: u16) -> Result<Geometry, String> {
    let channels = geometry.channels;
    if banks == 0 || !channels.is_multiple_of(banks.into()) {
        return Err(format!("media.channels is {channels}, expected a multiple of spus, which is {banks}"));
    }
    Ok(Geometry { channels: channels / u32::from(banks), ..*geometry })
}

impl FlashHardware {
    /// Flash at rest, shared by so many banks.
    pub fn new(parameters: &FlashParameters, banks: u16) -> Result<Self, String> {
        let geometry = &parameters.geometry;
        let bank = bank_geometry(geometry, banks)?;
        Ok(FlashHardware {
            timing: timing::Timing::new(geometry, &parameters.timing),
            channels: geometry.channels,
            bank_channels: bank.channels,
            channel_dies: geometry.packages_per_channel * geometry.dies_per_package,
        })
    }

    /// The number of a bank's die among all.
    #[inline]
    fn die(&self, bank: u16, die: u32) -> u32 {
        let (way, channel) = (die / self.bank_channels, die % self.bank_channels);
        way * self.channels + u32::from(bank) * self.bank_channels + channel
    }

    fn lane(&self, lane: timing::Lane) -> Lane {
        let bank = |channel: u32| (channel / self.bank_channels) as u16;
        match lane {
            timing::Lane::Bus(channel) => {
                Lane::Bus { spu: bank(channel), channel: (channel % self.bank_channels) as u16 }
            }
            timing::Lane::Die(die) => {
                let (way, channel) = (die / self.channels, die % self.channels);
                let die = way * self.bank_channels + channel % self.bank_channels;
                Lane::Die { spu: bank(channel), die: die as u16 }
            }
        }
    }

    /// Takes an operation on a die of a bank.
    #[inline]
    pub(super) fn submit(
        &mut self,
        now_ns: u64,
        bank: u16,
        submission: &Submission<'_>,
        trace: &mut Tracer,
    ) -> FlashStep {
        let submission = Submission { die: self.die(bank, submission.die), ..*submission };
        let step = match self.timing.submit(now_ns, &submission) {
            Ok(()) => FlashStep::UnderWay,
            Err(Refused::Full(_)) => FlashStep::Full,
            // What the flash does not have takes no time, and is told by the medium's rules.
            Err(Refused::NoSuch { .. }) => FlashStep::Done,
        };
        self.tell(trace);
        step
    }

    /// When something happens next, if anything does.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.timing.next_event_ns()
    }

    /// Goes on until then.
    #[inline]
    pub(super) fn advance(&mut self, now_ns: u64, completions: &mut Vec<Completion>, trace: &mut Tracer) {
        self.timing.advance(now_ns, completions);
        self.tell(trace);
    }

    /// The power goes: the operations that were changing an array.
    pub(super) fn cut(&mut self, now_ns: u64) -> Vec<u64> {
        self.timing.cut(now_ns).into_iter().map(|(_, token)| token).collect()
    }

    #[inline]
    fn tell(&mut self, trace: &mut Tracer) {
        if trace.0.is_some() {
            self.tell_spans(trace);
        }
    }

    #[cold]
    fn tell_spans(&mut self, trace: &mut Tracer) {
        for span in self.timing.take_spans() {
            let lane = self.lane(span.lane);
            trace.span(lane, span.name, (span.begin_ns, span.end_ns), span.token, span.bytes);
        }
    }

    /// Spans are kept from now on, or not.
    pub fn set_trace(&mut self, on: bool) {
        self.timing.set_trace(on);
    }

    /// Energy of all that was begun, joules.
    pub fn joules(&self) -> f64 {
        self.timing.energy_pj() as f64 * 1e-12
    }

    /// Times that a read suspended what changed a die.
    pub fn suspensions(&self) -> u64 {
        self.timing.dies().iter().map(|die| die.suspensions).sum()
    }

    /// What the channels and dies of a bank have done.
    pub fn resources(&self, bank: u16) -> impl Iterator<Item = ResourceStatistics> + '_ {
        let channels = (0..self.bank_channels).map(move |channel| {
            let number = u32::from(bank) * self.bank_channels + channel;
            let bus = &self.timing.buses()[number as usize];
            ResourceStatistics {
                name: self.lane(timing::Lane::Bus(number)).to_string(),
                busy_ns: bus.busy_ns,
                operations: bus.transfers,
                bytes: bus.bytes,
                waited_ns: bus.waited_ns,
            }
        });
        let dies = (0..self.bank_channels * self.channel_dies).map(move |die| {
            let number = self.die(bank, die);
            let used = &self.timing.dies()[number as usize];
            ResourceStatistics {
                name: self.lane(timing::Lane::Die(number)).to_string(),
                busy_ns: used.busy_ns,
                operations: used.operations.iter().sum(),
                bytes: 0,
                waited_ns: used.waited_ns,
            }
        });
        channels.chain(dies)
    }
}

/// The flash of a model, where it has flash.
pub(super) fn of(parameters: &ModelParameters, spus: u16) -> Result<Option<Box<FlashHardware>>, String> {
    match &parameters.media {
        super::parameters::MediaParameters::Flash(flash) => Ok(Some(Box::new(FlashHardware::new(flash, spus)?))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dies_of_banks_have_their_own_channels_and_lanes() {
        let (_, text) = willow_flash_media::presets::TEXTS.iter().find(|(name, _)| *name == "tlc").unwrap();
        assert!(text.contains("channels = 8"));
        let geometry = Geometry {
            channels: 8,
            packages_per_channel: 4,
            dies_per_package: 4,
            planes_per_die: 1,
            blocks_per_plane: 2,
            pages_per_block: 2,
            page_bytes: 512,
            spare_bytes: 0,
            cell: willow_flash_media::Cell::Slc,
            paired_distance: 0,
            spare_accessible: false,
        };
        let bank = bank_geometry(&geometry, 4).unwrap();
        assert_eq!(bank.channels, 2);
        assert!(bank_geometry(&geometry, 3).unwrap_err().contains("multiple of spus"));
        let flash = FlashHardware {
            timing: timing::Timing::new(&geometry, &TIMES),
            channels: 8,
            bank_channels: 2,
            channel_dies: 16,
        };
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..4 {
            for die in 0..bank.dies() {
                let of_all = flash.die(number, die);
                assert_eq!(geometry.channel_of(of_all), u32::from(number) * 2 + bank.channel_of(die));
                assert_eq!(flash.lane(timing::Lane::Die(of_all)), Lane::Die { spu: number, die: die as u16 });
                assert!(seen.insert(of_all));
            }
        }
        assert_eq!(seen.len() as u32, geometry.dies());
    }

    const TIMES: timing::TimingParameters = timing::TimingParameters {
        bus_bytes_per_s: 1_000_000_000,
        command_ns: 0,
        read: ONE,
        retry_ns: 0,
        program: ONE,
        erase_ns: 1,
        cache_operations: false,
        cache_busy_ns: 0,
        read_priority: false,
        overtaking_reads_max: 1,
        suspend_program: false,
        suspend_erase: false,
        suspend_ns: 0,
        resume_ns: 0,
        suspend_left_min_ns: 0,
        suspensions_max: 0,
        suspended_max_ns: 0,
        read_pj: 0,
        program_pj: 0,
        erase_pj: 0,
        bus_pj_per_byte: 0,
    };
    const ONE: timing::PageTimes = timing::PageTimes { lower_ns: 1, middle_ns: 1, upper_ns: 1 };
}
