//! The seam to the device's model of time.

use crate::simulation::SimulationOptions;
use willow_device::DeviceConfig;
use willow_device::clock::Timing;
use willow_device::model::{HardwareModel, TraceSink};

/// The model of a preset; `None` where the preset has none (free clock: the device takes no time).
pub(crate) fn timing(
    options: &SimulationOptions,
    config: &DeviceConfig,
    bank_bytes: u64,
) -> Result<Option<Box<dyn Timing>>, String> {
    let Some(parameters) = options.preset.model.as_ref().filter(|_| !options.free) else { return Ok(None) };
    let mut model = HardwareModel::new(parameters, config.spus, bank_bytes)?;
    if let Some(trace) = &options.trace {
        model.set_trace(Some(Box::new(trace.clone()) as Box<dyn TraceSink>));
    }
    Ok(Some(Box::new(model)))
}
