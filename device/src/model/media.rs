//! The media behind one SPU, whatever they are. Of flash it is the buffers that DMAs reach; dies and buses are [`super::flash`]'s.
//!
//! Invariants: a DMA that reads asks first when the data are there ([`Media::read`]); media that share their controller with the
//! transfer answer with its end, media with buffers of their own with the time from which the DMA controller can take them.

use super::parameters::{FixedLatencyParameters, MediaParameters};
use super::pcm::{Access, Pcm};
use super::resource::{Divisor, Fifo, Rate};
use super::statistics::{MediaStatistics, ResourceStatistics};
use super::trace::{Lane, Tracer};

/// When a read is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadEnd {
    /// The media stream at the DMA's rate: the transfer ends then.
    Streamed(u64),
    /// The media have the data in their buffers then; the transfer can begin.
    Buffered(u64),
}

/// The media of one SPU.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one an SPU, and on the way of every DMA")]
pub enum Media {
    /// Phase-change memory.
    Pcm(Box<Pcm>),
    /// Units of fixed latency.
    Fixed(FixedMedia),
    /// Buffers before flash: as fast as the DMA controller.
    Buffers,
}

impl Media {
    /// Media of `bytes` behind an SPU.
    pub fn new(parameters: &MediaParameters, spu: u16, bytes: u64) -> Self {
        match parameters {
            MediaParameters::Pcm(pcm) => Media::Pcm(Box::new(Pcm::new(pcm, spu, bytes))),
            MediaParameters::FixedLatency(fixed) => Media::Fixed(FixedMedia::new(fixed, spu)),
            MediaParameters::Flash(_) => Media::Buffers,
        }
    }

    /// A read of a range that begins then, `byte_fs` a byte at the DMA controller.
    #[inline]
    pub fn read(&mut self, at_ns: u64, range: (u64, u64), byte_fs: u64, trace: &mut Tracer, id: u32) -> ReadEnd {
        match self {
            Media::Pcm(pcm) => ReadEnd::Streamed(pcm.access(at_ns, Access::Read, range, byte_fs, trace, id)),
            Media::Fixed(fixed) => ReadEnd::Buffered(fixed.read(at_ns, range, trace, id)),
            Media::Buffers => ReadEnd::Buffered(at_ns),
        }
    }

    /// A write of a range: `from_ns` its first byte comes, `to_ns` its last one would at the DMA's rate. When the DMA controller has
    /// handed over the last byte, and when the media have it for good.
    #[inline]
    pub fn write(
        &mut self,
        (from_ns, to_ns): (u64, u64),
        range: (u64, u64),
        byte_fs: u64,
        trace: &mut Tracer,
        id: u32,
    ) -> (u64, u64) {
        match self {
            Media::Pcm(pcm) => {
                let end_ns = pcm.access(from_ns, Access::Write, range, byte_fs, trace, id);
                (end_ns, end_ns)
            }
            Media::Fixed(fixed) => (to_ns, fixed.write(to_ns, range, trace, id)),
            Media::Buffers => (to_ns, to_ns),
        }
    }

    /// A transfer out of the media's buffers that begins then: when it could end as far as they go.
    #[inline]
    pub fn transfer(&mut self, at_ns: u64, bytes: u64) -> u64 {
        match self {
            Media::Pcm(_) | Media::Buffers => at_ns,
            Media::Fixed(fixed) => fixed.transfer(at_ns, bytes),
        }
    }

    /// Controller's line in the statistics.
    pub fn controller(&self, name: String, now_ns: u64) -> ResourceStatistics {
        let counters = self.statistics();
        let bytes = counters.read_bytes + counters.written_bytes;
        match self {
            Media::Pcm(pcm) => {
                let operations = counters.row_hits + counters.row_misses;
                ResourceStatistics { name, busy_ns: pcm.busy_ns(now_ns), operations, bytes, waited_ns: 0 }
            }
            Media::Fixed(fixed) => fixed.channel.statistics(name, now_ns),
            Media::Buffers => ResourceStatistics { name, ..ResourceStatistics::default() },
        }
    }

    /// What the media have done.
    pub fn statistics(&self) -> MediaStatistics {
        match self {
            Media::Pcm(pcm) => pcm.statistics(),
            Media::Fixed(fixed) => fixed.counters.clone(),
            Media::Buffers => MediaStatistics::default(),
        }
    }

    /// Bytes that were copied within the media.
    pub fn copied_bytes(&self) -> u64 {
        match self {
            Media::Pcm(pcm) => pcm.copied_bytes(),
            Media::Fixed(_) | Media::Buffers => 0,
        }
    }
}

/// Units that take a fixed time for each piece of at most the interleave, and a channel that they share.
#[derive(Debug)]
pub struct FixedMedia {
    parameters: FixedLatencyParameters,
    spu: u16,
    units: Vec<u64>,
    unit_count: Divisor,
    interleave_shift: u32,
    channel_rate: Rate,
    channel: Fifo,
    counters: MediaStatistics,
}

impl FixedMedia {
    fn new(parameters: &FixedLatencyParameters, spu: u16) -> Self {
        FixedMedia {
            parameters: parameters.clone(),
            spu,
            units: vec![0; parameters.units as usize],
            unit_count: Divisor::new(parameters.units.into()),
            // A power of two: validated.
            interleave_shift: parameters.interleave_bytes.trailing_zeros(),
            channel_rate: Rate::per_s(parameters.channel_bytes_per_s),
            channel: Fifo::default(),
            counters: MediaStatistics::default(),
        }
    }

    /// Units work on their pieces at the same time; the range is in the buffers when the last one has done so.
    #[inline]
    fn read(&mut self, at_ns: u64, range: (u64, u64), trace: &mut Tracer, id: u32) -> u64 {
        self.counters.read_bytes += range.1;
        self.work(at_ns, self.parameters.read_ns, "read", range, trace, id)
    }

    /// The time of a transfer on the channel, which begins then.
    #[inline]
    fn transfer(&mut self, at_ns: u64, bytes: u64) -> u64 {
        self.channel.take(at_ns, self.channel_rate.duration_ns(bytes), bytes).1
    }

    #[inline]
    fn write(&mut self, at_ns: u64, range: (u64, u64), trace: &mut Tracer, id: u32) -> u64 {
        let there_ns = self.transfer(at_ns, range.1);
        self.counters.written_bytes += range.1;
        self.work(there_ns, self.parameters.write_ns, "write", range, trace, id)
    }

    /// Every piece of a range takes its unit for the latency: when the last one is done.
    #[inline(always)]
    fn work(
        &mut self,
        at_ns: u64,
        latency_ns: u64,
        name: &'static str,
        (mut address, mut left): (u64, u64),
        trace: &mut Tracer,
        id: u32,
    ) -> u64 {
        let interleave = u64::from(self.parameters.interleave_bytes);
        let mut end_ns = at_ns;
        while left > 0 {
            let bytes = left.min(interleave - (address & (interleave - 1)));
            let piece = address >> self.interleave_shift;
            let unit = (piece - self.unit_count.div(piece) * self.unit_count.get()) as usize;
            let begin_ns = at_ns.max(self.units[unit]);
            self.units[unit] = begin_ns + latency_ns;
            end_ns = end_ns.max(self.units[unit]);
            let lane = Lane::Media { spu: self.spu, bank: unit as u16 };
            trace.span(lane, name, (begin_ns, begin_ns + latency_ns), id.into(), bytes);
            address += bytes;
            left -= bytes;
        }
        end_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_work_at_the_same_time_and_one_after_the_other_in_each() {
        let parameters = FixedLatencyParameters {
            read_ns: 10_000,
            write_ns: 20_000,
            units: 4,
            interleave_bytes: 4096,
            channel_bytes_per_s: 1_000_000_000,
        };
        let mut media = Media::new(&MediaParameters::FixedLatency(parameters), 3, 1 << 30);
        let mut trace = Tracer::default();
        let mut read = |address, bytes| media.read(0, (address, bytes), 0, &mut trace, 0);
        assert_eq!(read(0, 4 * 4096), ReadEnd::Buffered(10_000));
        assert_eq!(read(0, 1), ReadEnd::Buffered(20_000));
        assert_eq!(read(4095, 2), ReadEnd::Buffered(30_000));
        assert_eq!(read(3 * 4096, 4096), ReadEnd::Buffered(20_000));
        // A write first takes the channel, then its units.
        assert_eq!(media.write((50_000, 50_000), (0, 8192), 0, &mut trace, 0), (50_000, 50_000 + 8192 + 20_000));
        assert_eq!(media.transfer(58_000, 1000), 59_192);
        let statistics = media.statistics();
        assert_eq!((statistics.read_bytes, statistics.written_bytes), (5 * 4096 + 3, 8192));
    }
}
