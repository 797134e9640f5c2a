//! What a storage processor unit works with: its processor, its DMA controller, its accelerators and the media behind it.
//!
//! Invariants: each of them, and each accelerator, does one thing at a time, in the order in which it was asked; the processor waits for an
//! accelerator whose result its run goes on with, and for nothing else.

use super::accelerator::{Accelerator, PerAccelerator, duration_of_ns};
use super::media::{Media, ReadEnd};
use super::parameters::ModelParameters;
use super::pcm::byte_fs;
use super::resource::{Fifo, Rate};
use super::statistics::ResourceStatistics;
use super::timing::{DmaStep, Work};
use super::trace::{Lane, Tracer};
use crate::interconnect::{DmaKind, Transfer};

/// One SPU.
#[derive(Debug)]
pub struct SpuHardware {
    number: u16,
    /// Its processor.
    pub processor: Fifo,
    /// Its DMA controller.
    pub dma: Fifo,
    /// Its accelerators.
    pub accelerators: PerAccelerator<Fifo>,
    /// Its media.
    pub media: Media,
    dma_byte_fs: u64,
    cycles: Rate,
    /// Cycles of a run of native code, without its overheads.
    native_cycles: u64,
}

/// Cycles of so many instructions.
#[inline]
fn cycles_of(parameters: &ModelParameters, instructions: u64) -> u64 {
    (instructions as f64 * parameters.spu.cycles_per_instruction + 0.5) as u64
}

impl SpuHardware {
    /// At rest, with media of `bank_bytes`.
    pub fn new(parameters: &ModelParameters, number: u16, bank_bytes: u64) -> Self {
        SpuHardware {
            number,
            processor: Fifo::default(),
            dma: Fifo::default(),
            accelerators: Default::default(),
            media: Media::new(&parameters.media, number, bank_bytes),
            dma_byte_fs: byte_fs(parameters.dma.bytes_per_s),
            cycles: Rate::per_s(parameters.spu.clock_hz),
            native_cycles: cycles_of(parameters, parameters.spu.native_run_instructions),
        }
    }

    /// A run of a handler: when the processor is free again.
    #[inline(always)]
    pub fn run(&mut self, parameters: &ModelParameters, at_ns: u64, work: &Work, trace: &mut Tracer) -> u64 {
        let spu = &parameters.spu;
        let computing = match work.instructions {
            Some(instructions) => cycles_of(parameters, instructions),
            None => self.native_cycles,
        };
        let overhead = if work.dispatch { spu.dispatch_cycles } else { spu.resume_cycles };
        let cycles = overhead
            + u64::from(work.sends) * spu.send_cycles
            + u64::from(work.dmas) * spu.dma_set_up_cycles
            + u64::from(work.permission_checks) * spu.permission_check_cycles
            + computing;
        let computing_ns = self.cycles.duration_ns(cycles);
        let bytes = work.accelerated.total();
        let waiting_ns = if bytes > 0 { work.accelerated.duration_ns(&parameters.accelerator) } else { 0 };
        let waited_ns = if waiting_ns > 0 { self.accelerated_ns(parameters, at_ns, computing_ns, work) } else { 0 };
        let (begin_ns, end_ns) = self.processor.take_until(at_ns, computing_ns + waiting_ns, waited_ns, 0);
        let name = if work.dispatch { "start" } else { "resume" };
        trace.span(Lane::Processor(self.number), name, (begin_ns, end_ns), work.id.into(), 0);
        if waiting_ns > 0 {
            let mut at_ns = begin_ns + computing_ns;
            for (accelerator, bytes) in work.accelerated.at_work() {
                at_ns = self.accelerate(parameters, at_ns, (accelerator, bytes), work.id, trace);
            }
        }
        end_ns
    }

    /// When the accelerators that a run waits for will have done what it asks of them: what streams through them goes first.
    #[cold]
    fn accelerated_ns(&self, parameters: &ModelParameters, at_ns: u64, computing_ns: u64, work: &Work) -> u64 {
        let mut end_ns = self.processor.begins_ns(at_ns) + computing_ns;
        for (accelerator, bytes) in work.accelerated.at_work() {
            let begin_ns = self.accelerators[accelerator as usize].begins_ns(end_ns);
            end_ns = begin_ns + duration_of_ns(parameters.accelerator.of(accelerator), bytes);
        }
        end_ns
    }

    /// An accelerator takes bytes: when it has.
    #[inline(never)]
    fn accelerate(
        &mut self,
        parameters: &ModelParameters,
        at_ns: u64,
        (accelerator, bytes): (Accelerator, u64),
        id: u32,
        trace: &mut Tracer,
    ) -> u64 {
        let duration_ns = duration_of_ns(parameters.accelerator.of(accelerator), bytes);
        let (begin_ns, end_ns) = self.accelerators[accelerator as usize].take(at_ns, duration_ns, bytes);
        let lane = Lane::Accelerator { spu: self.number, accelerator };
        trace.span(lane, "take", (begin_ns, end_ns), id.into(), bytes);
        end_ns
    }

    /// All accelerators as one resource.
    pub fn accelerator_statistics(&self, now_ns: u64) -> ResourceStatistics {
        let mut all = ResourceStatistics { name: format!("SPU {} accelerators", self.number), ..Default::default() };
        for fifo in &self.accelerators {
            let of = fifo.statistics(String::new(), now_ns);
            all.busy_ns += of.busy_ns;
            all.operations += of.operations;
            all.bytes += of.bytes;
            all.waited_ns += of.waited_ns;
        }
        all
    }

    /// Calls `each` with every range of a transfer at `address` and after it.
    #[inline]
    fn ranges(transfer: &Transfer, address: u64, mut each: impl FnMut((u64, u64))) {
        let mut address = address;
        for _ in 0..transfer.segments {
            each((address, transfer.segment_bytes));
            address = address.wrapping_add_signed(transfer.stride);
        }
    }

    /// A DMA is asked for.
    #[inline(always)]
    pub fn begin_dma(
        &mut self,
        parameters: &ModelParameters,
        at_ns: u64,
        transfer: &Transfer,
        trace: &mut Tracer,
    ) -> DmaStep {
        let set_up_ns = parameters.dma.set_up_ns;
        let bytes = transfer.segment_bytes * u64::from(transfer.segments);
        let (byte_fs, id) = (self.dma_byte_fs, transfer.id);
        match transfer.kind {
            DmaKind::Accelerated { accelerator } => {
                let accelerator = Accelerator::ALL[usize::from(accelerator)];
                DmaStep::Ends(self.accelerate(parameters, at_ns, (accelerator, bytes), id, trace))
            }
            DmaKind::Local => DmaStep::Ends(self.move_bytes(at_ns, set_up_ns, bytes, "local", trace, id)),
            DmaKind::NvWrite => DmaStep::Ends(self.write(at_ns, set_up_ns, transfer, transfer.address, trace)),
            // The flash has the data in the buffers, or takes them from there.
            DmaKind::NvRead | DmaKind::NvCopy { .. } if matches!(self.media, Media::Buffers) => {
                DmaStep::Ends(self.move_bytes(at_ns, set_up_ns, bytes, "read", trace, id))
            }
            DmaKind::NvRead | DmaKind::NvCopy { .. } => {
                let begin_ns = at_ns.max(self.dma.free_ns);
                let (mut streamed_ns, mut buffered_ns) = (begin_ns + set_up_ns, None);
                let media = &mut self.media;
                Self::ranges(transfer, transfer.address, |range| {
                    // Media with buffers begin at once, those that stream when the controller comes to it.
                    let from_ns = if matches!(media, Media::Pcm(_)) { streamed_ns } else { at_ns };
                    match media.read(from_ns, range, byte_fs, trace, id) {
                        ReadEnd::Streamed(end_ns) => streamed_ns = end_ns,
                        ReadEnd::Buffered(end_ns) => buffered_ns = buffered_ns.max(Some(end_ns)),
                    }
                });
                if let Some(ready_ns) = buffered_ns {
                    return DmaStep::Data(ready_ns);
                }
                let (begin_ns, end_ns) = self.dma.take(at_ns, streamed_ns - begin_ns, bytes);
                trace.span(Lane::Dma(self.number), "read", (begin_ns, end_ns), id.into(), bytes);
                match transfer.kind {
                    DmaKind::NvCopy { to } => DmaStep::Ends(self.write(end_ns, set_up_ns, transfer, to, trace)),
                    _ => DmaStep::Ends(end_ns),
                }
            }
        }
    }

    /// The media have a DMA's data in their buffers: when it ends. Or a DMA has ended whose data an accelerator takes.
    #[inline(always)]
    pub fn dma_data(
        &mut self,
        parameters: &ModelParameters,
        at_ns: u64,
        transfer: &Transfer,
        trace: &mut Tracer,
    ) -> u64 {
        if let DmaKind::Accelerated { accelerator } = transfer.kind {
            let taken = (Accelerator::ALL[usize::from(accelerator)], transfer.segment_bytes);
            return self.accelerate(parameters, at_ns, taken, transfer.id, trace);
        }
        let set_up_ns = parameters.dma.set_up_ns;
        let bytes = transfer.segment_bytes * u64::from(transfer.segments);
        let begin_ns = at_ns.max(self.dma.free_ns) + set_up_ns;
        let there_ns = self.media.transfer(begin_ns, bytes);
        let duration_ns =
            (set_up_ns + (bytes * self.dma_byte_fs).div_ceil(1_000_000)).max(there_ns - begin_ns + set_up_ns);
        let (begin_ns, end_ns) = self.dma.take(at_ns, duration_ns, bytes);
        trace.span(Lane::Dma(self.number), "read", (begin_ns, end_ns), transfer.id.into(), bytes);
        match transfer.kind {
            DmaKind::NvCopy { to } => self.write(end_ns, set_up_ns, transfer, to, trace),
            _ => end_ns,
        }
    }

    fn move_bytes(
        &mut self,
        at_ns: u64,
        set_up_ns: u64,
        bytes: u64,
        name: &'static str,
        trace: &mut Tracer,
        id: u32,
    ) -> u64 {
        let duration_ns = set_up_ns + (bytes * self.dma_byte_fs).div_ceil(1_000_000);
        let (begin_ns, end_ns) = self.dma.take(at_ns, duration_ns, bytes);
        trace.span(Lane::Dma(self.number), name, (begin_ns, end_ns), id.into(), bytes);
        end_ns
    }

    /// The part of a DMA that goes to NV memory: when the media have it.
    fn write(&mut self, at_ns: u64, set_up_ns: u64, transfer: &Transfer, address: u64, trace: &mut Tracer) -> u64 {
        let bytes = transfer.segment_bytes * u64::from(transfer.segments);
        let (byte_fs, id) = (self.dma_byte_fs, transfer.id);
        if matches!(self.media, Media::Fixed(_) | Media::Buffers) {
            let there_ns = self.move_bytes(at_ns, set_up_ns, bytes, "write", trace, id);
            let (media, mut end_ns) = (&mut self.media, there_ns);
            Self::ranges(transfer, address, |range| {
                end_ns = end_ns.max(media.write((there_ns, there_ns), range, byte_fs, trace, id).1);
            });
            return end_ns;
        }
        let begin_ns = at_ns.max(self.dma.free_ns);
        let mut moved_ns = begin_ns + set_up_ns;
        let media = &mut self.media;
        Self::ranges(transfer, address, |range| {
            moved_ns = media.write((moved_ns, moved_ns), range, byte_fs, trace, id).1;
        });
        let (begin_ns, end_ns) = self.dma.take(at_ns, moved_ns - begin_ns, bytes);
        trace.span(Lane::Dma(self.number), "write", (begin_ns, end_ns), id.into(), bytes);
        end_ns
    }
}
