//! Energy, by the papers' formula (XSSD, 3.8): a component's power is idle * (1 - utilization) + active * utilization, and every
//! bit that the media move has its own price.
//!
//! Invariant: the parts are disjoint, so that their sum is the device's energy.

use super::accelerator::{Accelerator, PerAccelerator};
use super::parameters::{MediaParameters, ModelParameters, Watts};
use super::statistics::{ComponentEnergy, MediaStatistics};

/// Nanoseconds to seconds.
const SECOND: f64 = 1e-9;
const BITS: f64 = 8.0;
const PICO: f64 = 1e-12;
const MICRO: f64 = 1e-6;

/// Joules of a component in `now_ns`, of which it was busy for `busy_ns`.
pub fn joules(watts: Watts, busy_ns: u64, now_ns: u64) -> f64 {
    let busy_ns = busy_ns.min(now_ns);
    (watts.idle_w * (now_ns - busy_ns) as f64 + watts.active_w * busy_ns as f64) * SECOND
}

/// Busy times by kind of component, in nanoseconds.
pub struct Busy {
    /// Each direction of the link.
    pub link: [u64; 2],
    /// Each direction of the bridge.
    pub bridge: [u64; 2],
    pub ring: u64,
    pub processors: Vec<u64>,
    pub dmas: Vec<u64>,
    /// Of each SPU each accelerator.
    pub accelerators: Vec<PerAccelerator<u64>>,
    pub controllers: Vec<u64>,
}

/// Joules of an SPU's accelerators: those without a power of their own are one component; each other one is there once it has been used.
fn accelerators(parameters: &ModelParameters, now_ns: u64, busy_ns: &PerAccelerator<u64>) -> f64 {
    let (mut together_ns, mut apart) = (0, 0.0);
    for (accelerator, busy_ns) in Accelerator::ALL.iter().zip(busy_ns) {
        match parameters.accelerator.of(*accelerator).power {
            None => together_ns += busy_ns,
            Some(_) if *busy_ns == 0 => {}
            Some(watts) => apart += joules(watts, *busy_ns, now_ns),
        }
    }
    joules(parameters.power.accelerator, together_ns, now_ns) + apart
}

/// The device's energy by component.
pub fn energy(
    parameters: &ModelParameters,
    now_ns: u64,
    busy: &Busy,
    media: &[MediaStatistics],
    copied_bytes: u64,
) -> Vec<ComponentEnergy> {
    let power = &parameters.power;
    let all = |watts: Watts, busy: &[u64]| busy.iter().map(|busy_ns| joules(watts, *busy_ns, now_ns)).sum::<f64>();
    // One component with two halves: its utilization is their mean.
    let halves = |watts: Watts, busy: [u64; 2]| all(watts, &busy) / 2.0;
    let read_bytes: u64 = media.iter().map(|media| media.read_bytes).sum::<u64>() + copied_bytes;
    let written_bytes: u64 = media.iter().map(|media| media.written_bytes).sum::<u64>() + copied_bytes;
    let dies = match &parameters.media {
        MediaParameters::Pcm(pcm) => u64::from(pcm.dies) * media.len() as u64,
        MediaParameters::FixedLatency(_) | MediaParameters::Flash(_) => 0,
    };
    let background_w = power.media_background_uw_per_die * MICRO * dies as f64;
    let parts = [
        ("link", halves(power.link, busy.link)),
        ("bridge", halves(power.bridge, busy.bridge)),
        ("ring", joules(power.ring, busy.ring, now_ns)),
        ("SPU processors", all(power.spu_processor, &busy.processors)),
        ("DMA controllers", all(power.dma_controller, &busy.dmas)),
        ("accelerators", busy.accelerators.iter().map(|busy| accelerators(parameters, now_ns, busy)).sum()),
        ("media controllers", all(power.media_controller, &busy.controllers)),
        ("media background", background_w * now_ns as f64 * SECOND),
        ("media reads", read_bytes as f64 * BITS * power.media_read_pj_per_bit * PICO),
        ("media writes", written_bytes as f64 * BITS * power.media_write_pj_per_bit * PICO),
    ];
    parts.into_iter().map(|(name, joules)| ComponentEnergy { name: name.to_owned(), joules }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_goes_from_idle_to_active_with_utilization() {
        let watts = Watts { idle_w: 0.078, active_w: 0.37 };
        assert!((joules(watts, 0, 1_000_000_000) - 0.078).abs() < 1e-12);
        assert!((joules(watts, 1_000_000_000, 1_000_000_000) - 0.37).abs() < 1e-12);
        let quarter = 0.078 * 0.75 + 0.37 * 0.25;
        assert!((joules(watts, 500_000_000, 2_000_000_000) - 2.0 * quarter).abs() < 1e-12);
    }
}
