//! The host link and the bridge behind it: two directions, each a chain of queues with one order, so that a message's times are
//! known as soon as it enters.
//!
//! Invariants: messages of one direction keep their order; the two directions share nothing.

use super::parameters::{BridgeParameters, LinkParameters};
use super::resource::{BySize, Divisor, Fifo, Rate};
use super::trace::{Lane, Tracer};

/// Link and bridge.
#[derive(Debug)]
pub struct HostLink {
    link: LinkParameters,
    bridge: BridgeParameters,
    packet_payload: Divisor,
    in_rate: Rate,
    out_rate: Rate,
    /// Bytes of a completion on the wire; the time of a command.
    completion_bytes: u64,
    command_ns: u64,
    /// Of a message to the ring with so much data: bytes on the wire and their time.
    inward: BySize<(u64, u64)>,
    /// Of data to the host: bytes on the wire, their time without a completion and with one, that of their last packet.
    outward: BySize<Outward>,
    /// Host to device.
    pub link_in: Fifo,
    /// Device to host.
    pub link_out: Fifo,
    /// Host to ring.
    pub bridge_in: Fifo,
    /// Ring to host.
    pub bridge_out: Fifo,
    /// When the last message to the ring was ready.
    ready_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outward {
    wire: u64,
    data_ns: u64,
    completed_ns: u64,
    packet_ns: u64,
}

/// A message as it comes off the ring.
#[derive(Clone, Copy, Debug)]
pub struct FromRing {
    /// When its last bit arrives.
    pub arrival_ns: u64,
    /// Time from its first bit to its last.
    pub transmission_ns: u64,
    /// Time from its first bit to the end of a link packet's worth.
    pub first_packet_ns: u64,
    /// Data in it.
    pub payload_bytes: u64,
    /// True where a completion goes with it, false where it is data alone.
    pub completes: bool,
    /// Number, for the trace.
    pub id: u32,
}

/// Bytes on the wire for that many of payload, in packets with so much each.
#[inline(always)]
fn wire_bytes(packet_payload: Divisor, payload_bytes: u64, overhead_bytes: u32) -> u64 {
    payload_bytes + packet_payload.div_ceil(payload_bytes) * u64::from(overhead_bytes)
}

impl LinkParameters {
    /// Bytes on the wire of a command with so much data, to the device.
    fn inward_wire_bytes(&self, packet_payload: Divisor, payload_bytes: u64) -> u64 {
        let of = |bytes| wire_bytes(packet_payload, bytes, self.in_packet_overhead_bytes);
        of(self.command_bytes.into()) + of(payload_bytes)
    }

    /// How long a command with so much data has the link to the device for itself, nanoseconds.
    pub fn inward_ns(&self, payload_bytes: u64) -> u64 {
        let packet_payload = Divisor::new(self.packet_payload_bytes.into());
        Rate::per_s(self.in_bytes_per_s).duration_ns(self.inward_wire_bytes(packet_payload, payload_bytes))
    }
}

impl HostLink {
    /// At rest.
    pub fn new(link: &LinkParameters, bridge: &BridgeParameters) -> Self {
        let packet_payload = Divisor::new(link.packet_payload_bytes.into());
        let [command_bytes, completion_bytes] = [
            (link.command_bytes, link.in_packet_overhead_bytes),
            (link.completion_bytes, link.out_packet_overhead_bytes),
        ]
        .map(|(bytes, overhead)| wire_bytes(packet_payload, bytes.into(), overhead));
        let in_rate = Rate::per_s(link.in_bytes_per_s);
        HostLink {
            packet_payload,
            in_rate,
            command_ns: in_rate.duration_ns(command_bytes),
            inward: BySize::new(),
            outward: BySize::new(),
            out_rate: Rate::per_s(link.out_bytes_per_s),
            completion_bytes,
            link: link.clone(),
            bridge: bridge.clone(),
            link_in: Fifo::default(),
            link_out: Fifo::default(),
            bridge_in: Fifo::default(),
            bridge_out: Fifo::default(),
            ready_ns: 0,
        }
    }

    /// Bytes of a link packet.
    pub fn packet_bytes(&self) -> u64 {
        self.link.packet_payload_bytes.into()
    }

    /// A host sends a message with so much data: when the bridge has it ready for the ring.
    #[inline(always)]
    pub fn inward(&mut self, at_ns: u64, payload_bytes: u64, id: u32, trace: &mut Tracer) -> u64 {
        let (wire, wire_ns) = self.inward.of(payload_bytes, |bytes| {
            let wire = self.link.inward_wire_bytes(self.packet_payload, bytes);
            (wire, self.in_rate.duration_ns(wire))
        });
        let (begin_ns, end_ns) = self.link_in.take(at_ns, wire_ns, wire);
        let command_ns = begin_ns + self.command_ns + self.link.in_latency_ns;
        let (work_ns, worked_ns) = self.bridge_in.take(command_ns, self.bridge.in_message_ns, 0);
        trace.span(Lane::LinkIn, "message", (begin_ns, end_ns), id.into(), wire);
        trace.span(Lane::BridgeIn, "message", (work_ns, worked_ns), id.into(), 0);
        let data_ns = end_ns + self.link.in_latency_ns + if payload_bytes > 0 { self.link.fetch_ns } else { 0 };
        // What the bridge took in first goes on first.
        self.ready_ns = self.ready_ns.max(worked_ns).max(data_ns);
        self.ready_ns
    }

    /// A message comes off the ring: when the host has it. To be called in the order of arrival.
    #[inline(always)]
    pub fn outward(&mut self, message: FromRing, trace: &mut Tracer) -> u64 {
        let FromRing { arrival_ns, transmission_ns, first_packet_ns, payload_bytes, completes, id } = message;
        let of = self.outward.of(payload_bytes, |bytes| {
            let overhead = self.link.out_packet_overhead_bytes;
            let wire = wire_bytes(self.packet_payload, bytes, overhead);
            // The last packet leaves after the message's last bit has come.
            let packet = u64::from(self.link.packet_payload_bytes).min(bytes) + u64::from(overhead);
            Outward {
                wire,
                data_ns: self.out_rate.duration_ns(wire),
                completed_ns: self.out_rate.duration_ns(self.completion_bytes + wire),
                packet_ns: self.out_rate.duration_ns(packet),
            }
        });
        let (wire, wire_ns) = match completes {
            true => (self.completion_bytes + of.wire, of.completed_ns),
            false => (of.wire, of.data_ns),
        };
        let first_ns = match self.bridge.cut_through {
            true => arrival_ns - transmission_ns + first_packet_ns.min(transmission_ns),
            false => arrival_ns,
        };
        let (work_ns, worked_ns) = self.bridge_out.take(first_ns, self.bridge.out_message_ns, 0);
        let (begin_ns, end_ns) = self.link_out.take_until(worked_ns, wire_ns, arrival_ns + of.packet_ns, wire);
        trace.span(Lane::BridgeOut, "message", (work_ns, worked_ns), id.into(), 0);
        trace.span(Lane::LinkOut, "message", (begin_ns, end_ns), id.into(), wire);
        end_ns + self.link.out_latency_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::resource::duration_ns;

    fn link() -> LinkParameters {
        LinkParameters {
            in_bytes_per_s: 2_000_000_000,
            out_bytes_per_s: 2_000_000_000,
            packet_payload_bytes: 128,
            in_packet_overhead_bytes: 47,
            out_packet_overhead_bytes: 36,
            in_latency_ns: 300,
            out_latency_ns: 200,
            fetch_ns: 500,
            command_bytes: 64,
            completion_bytes: 16,
        }
    }

    fn bridge(cut_through: bool) -> BridgeParameters {
        BridgeParameters { in_message_ns: 100, out_message_ns: 50, cut_through }
    }

    fn from_ring(arrival_ns: u64, payload_bytes: u64) -> FromRing {
        let transmission_ns = payload_bytes / 4;
        FromRing { arrival_ns, transmission_ns, first_packet_ns: 32, payload_bytes, completes: true, id: 0 }
    }

    #[test]
    fn a_saturated_link_carries_its_rate_less_the_packets_overhead() {
        let mut host = HostLink::new(&link(), &bridge(true));
        let (count, bytes) = (1000u64, 65536u64);
        let (mut end_ns, mut tracer) = (0, Tracer::default());
        for message in 0..count {
            end_ns = host.outward(from_ring(20_000 * (message + 1), bytes), &mut tracer);
        }
        let rate = (count * bytes) as f64 / (end_ns as f64 * 1e-9);
        // 128 of every 164 bytes, and one packet of 16 + 36 bytes a message.
        let per_message = (bytes + 512 * 36 + 52) as f64;
        let expected = 2e9 * bytes as f64 / per_message;
        assert!((rate / expected - 1.0).abs() < 0.001, "{rate} bytes/s, expected {expected}");
        assert!(host.link_out.busy_ns(end_ns) <= end_ns);

        let mut host = HostLink::new(&link(), &bridge(true));
        for _ in 0..count {
            end_ns = host.inward(0, bytes, 0, &mut tracer);
        }
        let expected_ns = count * (duration_ns(bytes + 512 * 47 + 64 + 47, 2_000_000_000)) + 300 + 500;
        assert_eq!(end_ns, expected_ns);
        assert_eq!(host.link_out.busy_ns(end_ns), 0, "the directions share nothing");
    }

    #[test]
    fn cut_through_saves_the_time_on_the_ring_and_nothing_else() {
        let mut tracer = Tracer::default();
        let through = HostLink::new(&link(), &bridge(true)).outward(from_ring(10_000, 8192), &mut tracer);
        let stored = HostLink::new(&link(), &bridge(false)).outward(from_ring(10_000, 8192), &mut tracer);
        assert_eq!(stored - through, 8192 / 4 - 32);
        // A slow ring bounds it from below: the last packet cannot go before it has come.
        let slow = FromRing { transmission_ns: 9_900, ..from_ring(10_000, 8192) };
        let end_ns = HostLink::new(&link(), &bridge(true)).outward(slow, &mut tracer);
        assert_eq!(end_ns, 10_000 + 82 + 200);
    }

    #[test]
    fn an_empty_message_costs_its_command_and_the_ways() {
        let mut host = HostLink::new(&link(), &bridge(true));
        let ready_ns = host.inward(1000, 0, 0, &mut Tracer::default());
        assert_eq!(ready_ns, 1000 + (64 + 47u64).div_ceil(2) + 300 + 100);
        let second = host.inward(1000, 0, 0, &mut Tracer::default());
        assert!(second > ready_ns);
    }
}
