//! Parameters of the model: what a preset file says of the hardware. Each field tells its unit in its name and what it stands for here;
//! the preset tells where its value comes from.
//!
//! Invariants: every field is known and present (a preset never guesses); [`ModelParameters::validate`] has the last word.

pub use super::accelerator::Accelerators;
use serde::{Deserialize, Serialize};
use willow_flash_media::FlashParameters;

/// All of the device's hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelParameters {
    /// Between host and device.
    pub link: LinkParameters,
    /// The device's front.
    pub bridge: BridgeParameters,
    /// The interconnect.
    pub ring: RingParameters,
    /// Processors of the storage processor units.
    pub spu: SpuParameters,
    /// DMA controllers, one an SPU.
    pub dma: DmaParameters,
    /// NV memory, one bank of it an SPU.
    pub media: MediaParameters,
    /// Native kernels beside the processor.
    pub accelerator: Accelerators,
    /// Power of all that.
    pub power: PowerParameters,
}

/// The host link: two directions that do not disturb each other, each carrying packets one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkParameters {
    /// Raw rate from host to device, bytes a second, packet overhead included.
    pub in_bytes_per_s: u64,
    /// Raw rate from device to host, bytes a second, packet overhead included.
    pub out_bytes_per_s: u64,
    /// Most payload of a packet, bytes (PCIe: maximum payload size).
    pub packet_payload_bytes: u32,
    /// What a packet from host to device takes beside its payload, bytes: header, framing, checksums, and its share of the
    /// requests and acknowledgements that it causes.
    pub in_packet_overhead_bytes: u32,
    /// The same from device to host.
    pub out_packet_overhead_bytes: u32,
    /// Time from the last byte sent by the host to the last byte at the bridge, nanoseconds (wires, switches, physical layers).
    pub in_latency_ns: u64,
    /// The same from device to host.
    pub out_latency_ns: u64,
    /// Time that the device takes to get data out of host memory once it has the command, nanoseconds: the request's way there and
    /// the first byte's way back. Only for requests with a payload.
    pub fetch_ns: u64,
    /// Bytes of a request on the link beside its payload (NVMe: submission queue entry of 64 bytes).
    pub command_bytes: u32,
    /// Bytes of a completion on the link beside its data (NVMe: completion queue entry of 16 bytes).
    pub completion_bytes: u32,
}

/// The bridge between link and ring: takes one message at a time in each direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeParameters {
    /// Work for a message from a host's queue to the ring, nanoseconds (fetch, stamp, schedule).
    pub in_message_ns: u64,
    /// Work for a message from the ring to a host's queue, nanoseconds.
    pub out_message_ns: u64,
    /// True where the link begins to send a message's first packet as soon as that has come off the ring (cut-through); false
    /// where a message is taken in as a whole first.
    pub cut_through: bool,
}

/// A token ring: whoever holds the token sends one message; the token then goes to the next station that has one to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingParameters {
    /// Bits that it moves in a cycle.
    pub width_bits: u32,
    /// Its clock, Hz.
    pub clock_hz: u64,
    /// Time of a token, or of a message's first bits, once around, nanoseconds.
    pub round_trip_ns: u64,
}

/// Processors. A run of a handler, from its start or the end of a wait to its next wait, takes
/// `(overheads + instructions * cycles_per_instruction) / clock`; while it runs, nothing else runs on that SPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpuParameters {
    /// Clock of each processor, Hz.
    pub clock_hz: u64,
    /// Cycles of an instruction of cost 1 in [`OperatorCosts`].
    pub cycles_per_instruction: f64,
    /// Cost of instructions by class.
    pub operator_cost: OperatorCosts,
    /// Cycles to take an RPC in: interrupt, reading the header, finding app and handler, a thread for it.
    pub dispatch_cycles: u64,
    /// Cycles to resume a handler whose wait is over: interrupt, context switch.
    pub resume_cycles: u64,
    /// Cycles to send a response or an RPC: its header, the network interface's registers.
    pub send_cycles: u64,
    /// Cycles to set a DMA up: the controller's registers, and finding that a kernel's endpoint asks, whose permission takes no look-up.
    pub dma_set_up_cycles: u64,
    /// Cycles of a look-up in the permission table, for each range of NV memory that a user process' DMA moves.
    pub permission_check_cycles: u64,
    /// Instructions that a run of a native app's handler is charged with: native code is not metered.
    pub native_run_instructions: u64,
}

/// Cost of WebAssembly instructions by class, in units of `cycles_per_instruction`. Structure without work (block, loop, end, drop,
/// nop) is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorCosts {
    /// Arithmetic, comparison, constants, locals, conversions.
    pub simple: u8,
    /// Loads.
    pub load: u8,
    /// Stores.
    pub store: u8,
    /// Integer multiplication.
    pub multiply: u8,
    /// Integer division and remainder.
    pub divide: u8,
    /// Branches.
    pub branch: u8,
    /// Calls and returns.
    pub call: u8,
    /// Floating point.
    pub float: u8,
    /// Vectors.
    pub vector: u8,
}

/// DMA controllers: each moves one transfer at a time, in the order in which its SPU asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaParameters {
    /// Rate between any two ports, bytes a second.
    pub bytes_per_s: u64,
    /// Time from the command to the first byte, nanoseconds.
    pub set_up_ns: u64,
}

/// NV memory behind an SPU's controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum MediaParameters {
    /// Phase-change memory with row buffers and start-gap wear leveling.
    Pcm(PcmParameters),
    /// Units with a fixed latency for each access, working in parallel.
    FixedLatency(FixedLatencyParameters),
    /// Flash behind an FTL; its channels are shared out to the SPUs.
    Flash(Box<FlashParameters>),
}

/// Phase-change memory behind a DDR2-like interface (XSSD, 6.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcmParameters {
    /// Time to bring a row into its bank's row buffer, nanoseconds; between row and column strobe.
    pub activate_read_ns: u64,
    /// Time to write a row that was changed back to its cells, nanoseconds; added to the precharge that closes it.
    pub precharge_write_ns: u64,
    /// Time of the controller and of the column access for each transfer, nanoseconds.
    pub access_ns: u64,
    /// Bytes of a row buffer.
    pub row_bytes: u32,
    /// Banks with a row buffer each, behind one controller.
    pub banks: u32,
    /// Bytes that the controller moves in a cycle.
    pub bytes_per_cycle: u32,
    /// Its clock, Hz.
    pub clock_hz: u64,
    /// Line of start-gap, bytes: what is copied when the gap moves, and what wear is counted for.
    pub line_bytes: u32,
    /// Writes of lines between two moves of the gap; 0: no wear leveling.
    pub gap_write_interval: u32,
    /// Writes that a line endures.
    pub endurance_writes: u64,
    /// Dies behind one controller, for their background power.
    pub dies: u32,
}

/// Media of which only latency, parallelism and rate are modelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedLatencyParameters {
    /// Time of a read in a unit, nanoseconds.
    pub read_ns: u64,
    /// Time of a write in a unit, nanoseconds.
    pub write_ns: u64,
    /// Units that work at the same time behind one controller.
    pub units: u32,
    /// Bytes after which addresses go on in the next unit.
    pub interleave_bytes: u32,
    /// Rate of the channel between the units and the controller, bytes a second.
    pub channel_bytes_per_s: u64,
}

/// One kind of accelerator; each SPU has one of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorParameters {
    /// Clock, Hz.
    pub clock_hz: u64,
    /// Bytes that it takes in a cycle.
    pub bytes_per_cycle: u32,
    /// Time to start it and to fetch its result, nanoseconds.
    pub set_up_ns: u64,
    /// Its power, where it is a unit of its own that an SPU has once an app uses it; without, its part of [`PowerParameters::accelerator`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Watts>,
}

/// Power of a component, as the papers model it: `idle * (1 - utilization) + active * utilization` (XSSD, 3.8).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watts {
    /// At rest, watts.
    pub idle_w: f64,
    /// At work, watts.
    pub active_w: f64,
}

/// Power of the device's components. That of the host is the host model's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerParameters {
    /// Host link, both directions together.
    pub link: Watts,
    /// Bridge (XSSD's request scheduler).
    pub bridge: Watts,
    /// The whole ring.
    pub ring: Watts,
    /// Each SPU's processor.
    pub spu_processor: Watts,
    /// Each SPU's DMA controller.
    pub dma_controller: Watts,
    /// Each SPU's accelerators together, but for those with a power of their own ([`AcceleratorParameters::power`]).
    pub accelerator: Watts,
    /// Each SPU's media controller.
    pub media_controller: Watts,
    /// Energy of reading a bit of the media, picojoules.
    pub media_read_pj_per_bit: f64,
    /// Energy of writing a bit of the media, picojoules; the copies of wear leveling included.
    pub media_write_pj_per_bit: f64,
    /// Power that each die takes whatever it does, microwatts; only media that tell their dies.
    pub media_background_uw_per_die: f64,
}
