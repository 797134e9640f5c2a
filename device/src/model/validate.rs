//! Checks of a preset's parameters: what is absurd or contradicts itself is refused with field, value, and what was expected.

use super::accelerator::Accelerator;
use super::parameters::*;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Rates from a kilobyte to ten terabytes a second.
const RATE: RangeInclusive<u64> = 1_000..=10_000_000_000_000;
/// Clocks from a kilohertz to 100 GHz.
const CLOCK: RangeInclusive<u64> = 1_000..=100_000_000_000;
/// A single step of hardware takes less than ten seconds.
const STEP_NS: RangeInclusive<u64> = 0..=10_000_000_000;
/// Work of software for one message.
const CYCLES: RangeInclusive<u64> = 0..=1_000_000_000;
/// No component of an SSD takes a megawatt.
const WATTS: RangeInclusive<f64> = 0.0..=1_000_000.0;

fn within<T: PartialOrd + Display>(field: &str, value: T, range: RangeInclusive<T>, unit: &str) -> Result<(), String> {
    // A value that does not compare (not a number) is in no range.
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{field} is {value}, expected {} to {} {unit}", range.start(), range.end()))
}

fn power_of_two(field: &str, value: u32, range: RangeInclusive<u32>) -> Result<(), String> {
    within(field, value, range, "bytes")?;
    if value.is_power_of_two() { Ok(()) } else { Err(format!("{field} is {value}, expected a power of two")) }
}

fn watts(field: &str, watts: Watts) -> Result<(), String> {
    within(&format!("{field}.idle_w"), watts.idle_w, WATTS, "W")?;
    within(&format!("{field}.active_w"), watts.active_w, WATTS, "W")?;
    if watts.active_w < watts.idle_w {
        return Err(format!(
            "{field}.active_w is {}, expected at least {field}.idle_w, which is {}",
            watts.active_w, watts.idle_w
        ));
    }
    Ok(())
}

fn accelerator(field: &str, accelerator: &AcceleratorParameters) -> Result<(), String> {
    within(&format!("{field}.clock_hz"), accelerator.clock_hz, CLOCK, "Hz")?;
    within(&format!("{field}.bytes_per_cycle"), accelerator.bytes_per_cycle, 1..=65536, "bytes")?;
    within(&format!("{field}.set_up_ns"), accelerator.set_up_ns, STEP_NS, "ns")?;
    accelerator.power.map_or(Ok(()), |power| watts(&format!("{field}.power"), power))
}

impl ModelParameters {
    /// Checks all values; the error names the field, its value and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        self.link.validate()?;
        within("bridge.in_message_ns", self.bridge.in_message_ns, STEP_NS, "ns")?;
        within("bridge.out_message_ns", self.bridge.out_message_ns, STEP_NS, "ns")?;
        within("ring.width_bits", self.ring.width_bits, 8..=65536, "bits")?;
        if !self.ring.width_bits.is_multiple_of(8) {
            return Err(format!("ring.width_bits is {}, expected a multiple of 8", self.ring.width_bits));
        }
        within("ring.clock_hz", self.ring.clock_hz, CLOCK, "Hz")?;
        within("ring.round_trip_ns", self.ring.round_trip_ns, 0..=1_000_000, "ns")?;
        self.spu.validate()?;
        within("dma.bytes_per_s", self.dma.bytes_per_s, RATE, "bytes/s")?;
        within("dma.set_up_ns", self.dma.set_up_ns, STEP_NS, "ns")?;
        match &self.media {
            MediaParameters::Pcm(pcm) => pcm.validate()?,
            MediaParameters::FixedLatency(fixed) => fixed.validate()?,
            MediaParameters::Flash(flash) => flash.validate().map_err(|absurd| format!("media.{absurd}"))?,
        }
        for kind in Accelerator::ALL {
            accelerator(&format!("accelerator.{}", kind.name()), self.accelerator.of(*kind))?;
        }
        self.power.validate()
    }
}

impl LinkParameters {
    fn validate(&self) -> Result<(), String> {
        within("link.in_bytes_per_s", self.in_bytes_per_s, RATE, "bytes/s")?;
        within("link.out_bytes_per_s", self.out_bytes_per_s, RATE, "bytes/s")?;
        within("link.packet_payload_bytes", self.packet_payload_bytes, 1..=65536, "bytes")?;
        within("link.in_packet_overhead_bytes", self.in_packet_overhead_bytes, 0..=65536, "bytes")?;
        within("link.out_packet_overhead_bytes", self.out_packet_overhead_bytes, 0..=65536, "bytes")?;
        within("link.in_latency_ns", self.in_latency_ns, STEP_NS, "ns")?;
        within("link.out_latency_ns", self.out_latency_ns, STEP_NS, "ns")?;
        within("link.fetch_ns", self.fetch_ns, STEP_NS, "ns")?;
        within("link.command_bytes", self.command_bytes, 0..=65536, "bytes")?;
        within("link.completion_bytes", self.completion_bytes, 0..=65536, "bytes")
    }
}

impl SpuParameters {
    fn validate(&self) -> Result<(), String> {
        within("spu.clock_hz", self.clock_hz, CLOCK, "Hz")?;
        within("spu.cycles_per_instruction", self.cycles_per_instruction, 0.0..=1000.0, "cycles")?;
        within("spu.dispatch_cycles", self.dispatch_cycles, CYCLES, "cycles")?;
        within("spu.resume_cycles", self.resume_cycles, CYCLES, "cycles")?;
        within("spu.send_cycles", self.send_cycles, CYCLES, "cycles")?;
        within("spu.dma_set_up_cycles", self.dma_set_up_cycles, CYCLES, "cycles")?;
        within("spu.permission_check_cycles", self.permission_check_cycles, CYCLES, "cycles")?;
        within("spu.native_run_instructions", self.native_run_instructions, CYCLES, "instructions")?;
        let OperatorCosts { simple, load, store, multiply, divide, branch, call, float, vector } = self.operator_cost;
        let all = [simple, load, store, multiply, divide, branch, call, float, vector];
        let names = ["simple", "load", "store", "multiply", "divide", "branch", "call", "float", "vector"];
        for (name, cost) in names.into_iter().zip(all) {
            // An endless loop must use up its budget: what loops are made of has a cost.
            within(&format!("spu.operator_cost.{name}"), cost, 1..=u8::MAX, "units")?;
        }
        Ok(())
    }
}

impl PcmParameters {
    fn validate(&self) -> Result<(), String> {
        within("media.activate_read_ns", self.activate_read_ns, STEP_NS, "ns")?;
        within("media.precharge_write_ns", self.precharge_write_ns, STEP_NS, "ns")?;
        within("media.access_ns", self.access_ns, STEP_NS, "ns")?;
        power_of_two("media.row_bytes", self.row_bytes, 64..=1 << 20)?;
        within("media.banks", self.banks, 1..=1024, "banks")?;
        within("media.bytes_per_cycle", self.bytes_per_cycle, 1..=65536, "bytes")?;
        within("media.clock_hz", self.clock_hz, CLOCK, "Hz")?;
        power_of_two("media.line_bytes", self.line_bytes, 16..=65536)?;
        if self.line_bytes > self.row_bytes {
            return Err(format!(
                "media.line_bytes is {}, expected at most media.row_bytes, which is {}",
                self.line_bytes, self.row_bytes
            ));
        }
        within("media.gap_write_interval", self.gap_write_interval, 0..=1_000_000_000, "writes")?;
        within("media.endurance_writes", self.endurance_writes, 1..=u64::MAX, "writes")?;
        within("media.dies", self.dies, 1..=65536, "dies")
    }
}

impl FixedLatencyParameters {
    fn validate(&self) -> Result<(), String> {
        within("media.read_ns", self.read_ns, STEP_NS, "ns")?;
        within("media.write_ns", self.write_ns, STEP_NS, "ns")?;
        within("media.units", self.units, 1..=65536, "units")?;
        power_of_two("media.interleave_bytes", self.interleave_bytes, 16..=1 << 20)?;
        within("media.channel_bytes_per_s", self.channel_bytes_per_s, RATE, "bytes/s")
    }
}

impl PowerParameters {
    fn validate(&self) -> Result<(), String> {
        watts("power.link", self.link)?;
        watts("power.bridge", self.bridge)?;
        watts("power.ring", self.ring)?;
        watts("power.spu_processor", self.spu_processor)?;
        watts("power.dma_controller", self.dma_controller)?;
        watts("power.accelerator", self.accelerator)?;
        watts("power.media_controller", self.media_controller)?;
        within("power.media_read_pj_per_bit", self.media_read_pj_per_bit, 0.0..=1e9, "pJ")?;
        within("power.media_write_pj_per_bit", self.media_write_pj_per_bit, 0.0..=1e9, "pJ")?;
        within("power.media_background_uw_per_die", self.media_background_uw_per_die, 0.0..=1e9, "uW")
    }
}
