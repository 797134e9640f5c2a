//! All resources put together: the [`Timing`] of the virtual and of the real clock.
//!
//! Invariants: a message passes link, bridge and ring in this order inwards and the reverse outwards, and is in one of them at a time
//! (with cut-through, its head may be one further); every message that was taken arrives once.

use super::accelerator::{Accelerator, duration_of_ns};
use super::energy::{Busy, energy};
use super::flash::{self, FlashHardware, FlashStep};
use super::link::{FromRing, HostLink};
use super::parameters::{ModelParameters, OperatorCosts};
use super::resource::duration_ns;
use super::ring::{Ring, Sent};
use super::spu::SpuHardware;
use super::statistics::{ComponentEnergy, ModelStatistics};
use super::timing::{DmaStep, Timing, Work};
use super::trace::{Lane, TraceSink, Tracer};
use crate::interconnect::{Agenda, Endpoint, Message, Transfer};
use willow_flash_media::timing::{Completion, Submission};

/// Word of the tick at which the ring's token is free; all others are messages that reach the ring.
const RING_FREE: u32 = Agenda::OWN_TICK;
/// Station of the bridge; SPUs follow it.
const BRIDGE_STATION: u16 = 0;

/// A message on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    from: u16,
    to: u16,
    to_host: bool,
    /// Data that a DMA feeds: nobody waits for them.
    streamed: bool,
    ring_bytes: u64,
    payload_bytes: u64,
}

/// The modelled hardware of one device.
pub struct HardwareModel {
    parameters: ModelParameters,
    host: HostLink,
    ring: Ring,
    /// Time of a link packet's worth on the ring.
    first_packet_ns: u64,
    /// True where a tick for the ring's token is on the agenda.
    ring_tick: bool,
    spus: Vec<SpuHardware>,
    flash: Option<Box<FlashHardware>>,
    /// By the message's number.
    carried: Vec<Carried>,
    trace: Tracer,
}

impl HardwareModel {
    /// Hardware at rest, with so many SPUs and media of `bank_bytes` behind each. The error names the parameter that is wrong.
    pub fn new(parameters: &ModelParameters, spus: u16, bank_bytes: u64) -> Result<Self, String> {
        parameters.validate()?;
        let host = HostLink::new(&parameters.link, &parameters.bridge);
        let mut ring = Ring::new(&parameters.ring, usize::from(spus) + 1);
        Ok(HardwareModel {
            first_packet_ns: ring.transmission_ns(host.packet_bytes()),
            host,
            ring,
            ring_tick: false,
            spus: (0..spus).map(|spu| SpuHardware::new(parameters, spu, bank_bytes)).collect(),
            flash: flash::of(parameters, spus)?,
            carried: Vec::new(),
            trace: Tracer::default(),
            parameters: parameters.clone(),
        })
    }

    /// The token is a message's: it is known when it arrives.
    #[inline(always)]
    fn sent(&mut self, sent: Sent, agenda: &mut Agenda<'_>) {
        let carried = self.carried[sent.id as usize];
        self.trace.span(Lane::Ring, "message", (sent.begin_ns, sent.end_ns), sent.id.into(), carried.ring_bytes);
        if !carried.to_host {
            return agenda.arrive(sent.arrival_ns, sent.id);
        }
        // The token goes round in the order of the stations, so that messages reach the bridge in the order in which they were sent.
        let from_ring = FromRing {
            arrival_ns: sent.arrival_ns,
            transmission_ns: sent.transmission_ns,
            first_packet_ns: self.first_packet_ns,
            payload_bytes: carried.payload_bytes,
            completes: !carried.streamed,
            id: sent.id,
        };
        let host_ns = self.host.outward(from_ring, &mut self.trace);
        match carried.streamed {
            true => agenda.release(sent.id),
            false => agenda.arrive(host_ns, sent.id),
        }
    }

    /// Notes a message down until it has arrived.
    #[inline(always)]
    fn note(&mut self, message: &Message, streamed: bool) {
        let station = |end: Endpoint| match end {
            Endpoint::Host | Endpoint::Bridge => BRIDGE_STATION,
            Endpoint::Spu(spu) => spu + 1,
        };
        let id = message.id as usize;
        if self.carried.len() <= id {
            self.carried.resize(id + 1, Carried::default());
        }
        self.carried[id] = Carried {
            from: station(message.from),
            to: station(message.to),
            to_host: message.to == Endpoint::Host,
            streamed,
            ring_bytes: u64::from(message.header_bytes) + message.payload_bytes,
            payload_bytes: message.payload_bytes,
        };
    }

    #[inline(always)]
    fn await_token(&mut self, agenda: &mut Agenda<'_>) {
        if !self.ring_tick && self.ring.waiting() > 0 {
            self.ring_tick = true;
            agenda.tick(self.ring.free_ns(), RING_FREE);
        }
    }

    fn busy(&self, now_ns: u64) -> Busy {
        let of = |busy: fn(&SpuHardware, u64) -> u64| self.spus.iter().map(|spu| busy(spu, now_ns)).collect();
        Busy {
            link: [self.host.link_in.busy_ns(now_ns), self.host.link_out.busy_ns(now_ns)],
            bridge: [self.host.bridge_in.busy_ns(now_ns), self.host.bridge_out.busy_ns(now_ns)],
            ring: self.ring.busy_ns(now_ns),
            processors: of(|spu, now_ns| spu.processor.busy_ns(now_ns)),
            dmas: of(|spu, now_ns| spu.dma.busy_ns(now_ns)),
            accelerators: self
                .spus
                .iter()
                .map(|spu| spu.accelerators.each_ref().map(|of| of.busy_ns(now_ns)))
                .collect(),
            controllers: of(|spu, now_ns| spu.media.controller(String::new(), now_ns).busy_ns),
        }
    }
}

impl Timing for HardwareModel {
    #[inline(always)]
    fn send(&mut self, at_ns: u64, message: Message, agenda: &mut Agenda<'_>) {
        self.note(&message, false);
        let Message { id, from, payload_bytes, .. } = message;
        let ready_ns = match from {
            Endpoint::Host => self.host.inward(at_ns, payload_bytes, id, &mut self.trace),
            _ => at_ns,
        };
        agenda.tick(ready_ns, id);
    }

    #[inline(always)]
    fn stream(&mut self, (from_ns, end_ns): (u64, u64), message: Message, agenda: &mut Agenda<'_>) {
        self.note(&message, true);
        // It takes the ring so late that its last byte leaves with the DMA's.
        let transmission_ns = self.ring.transmission_ns(u64::from(message.header_bytes) + message.payload_bytes);
        agenda.tick(from_ns.max(end_ns.saturating_sub(transmission_ns)), message.id);
    }

    #[inline(always)]
    fn tick(&mut self, now_ns: u64, word: u32, agenda: &mut Agenda<'_>) {
        let sent = if word == RING_FREE {
            self.ring_tick = false;
            self.ring.next(now_ns)
        } else {
            let Carried { from, to, ring_bytes, .. } = self.carried[word as usize];
            self.ring.offer(now_ns, from, to, ring_bytes, word)
        };
        if let Some(sent) = sent {
            self.sent(sent, agenda);
        }
        self.await_token(agenda);
    }

    #[inline(always)]
    fn dma(&mut self, at_ns: u64, transfer: &Transfer) -> DmaStep {
        self.spus[transfer.spu as usize].begin_dma(&self.parameters, at_ns, transfer, &mut self.trace)
    }

    #[inline]
    fn streams(&self, accelerator: u8, bytes: u64) -> bool {
        // It is told by a completion then, which costs a resumption: what takes no longer is waited for.
        let parameters = &self.parameters;
        let spu = &parameters.spu;
        let told_ns = duration_ns(spu.resume_cycles + spu.dma_set_up_cycles, spu.clock_hz);
        let accelerator = Accelerator::ALL[usize::from(accelerator)];
        duration_of_ns(parameters.accelerator.of(accelerator), bytes) > told_ns
    }

    #[inline(always)]
    fn dma_data(&mut self, at_ns: u64, transfer: &Transfer) -> u64 {
        self.spus[transfer.spu as usize].dma_data(&self.parameters, at_ns, transfer, &mut self.trace)
    }

    #[inline]
    fn flash(&mut self, now_ns: u64, spu: u16, submission: &Submission<'_>) -> FlashStep {
        match &mut self.flash {
            Some(flash) => flash.submit(now_ns, spu, submission, &mut self.trace),
            None => FlashStep::Done,
        }
    }

    #[inline]
    fn flash_next_ns(&self) -> Option<u64> {
        self.flash.as_ref()?.next_ns()
    }

    #[inline]
    fn flash_advance(&mut self, now_ns: u64, completions: &mut Vec<Completion>) {
        if let Some(flash) = &mut self.flash {
            flash.advance(now_ns, completions, &mut self.trace);
        }
    }

    fn flash_cut(&mut self, now_ns: u64) -> Vec<u64> {
        self.flash.as_mut().map_or(Vec::new(), |flash| flash.cut(now_ns))
    }

    #[inline(always)]
    fn processor(&mut self, at_ns: u64, spu: u16, work: &Work) -> u64 {
        self.spus[spu as usize].run(&self.parameters, at_ns, work, &mut self.trace)
    }

    fn operator_costs(&self) -> Option<OperatorCosts> {
        Some(self.parameters.spu.operator_cost)
    }

    fn statistics(&self, now_ns: u64) -> Option<ModelStatistics> {
        let host = &self.host;
        let fixed = [
            (Lane::LinkIn, &host.link_in),
            (Lane::LinkOut, &host.link_out),
            (Lane::BridgeIn, &host.bridge_in),
            (Lane::BridgeOut, &host.bridge_out),
        ];
        let mut resources: Vec<_> =
            fixed.into_iter().map(|(lane, fifo)| fifo.statistics(lane.to_string(), now_ns)).collect();
        resources.push(self.ring.statistics(Lane::Ring.to_string(), now_ns));
        for (number, spu) in (0u16..).zip(&self.spus) {
            resources.push(spu.processor.statistics(Lane::Processor(number).to_string(), now_ns));
            resources.push(spu.dma.statistics(Lane::Dma(number).to_string(), now_ns));
            resources.push(spu.accelerator_statistics(now_ns));
            match &self.flash {
                None => resources.push(spu.media.controller(format!("SPU {number} media"), now_ns)),
                Some(flash) => resources.extend(flash.resources(number)),
            }
        }
        let media: Vec<_> = self.spus.iter().map(|spu| spu.media.statistics()).collect();
        let copied_bytes = self.spus.iter().map(|spu| spu.media.copied_bytes()).sum();
        let mut energy = energy(&self.parameters, now_ns, &self.busy(now_ns), &media, copied_bytes);
        if let Some(flash) = &self.flash {
            energy.push(ComponentEnergy { name: "flash".to_owned(), joules: flash.joules() });
        }
        let suspensions = self.flash.as_ref().map_or(0, |flash| flash.suspensions());
        Some(ModelStatistics { now_ns, resources, media, suspensions, energy })
    }

    fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        if let Some(flash) = &mut self.flash {
            flash.set_trace(sink.is_some());
        }
        self.trace = Tracer(sink);
    }
}
