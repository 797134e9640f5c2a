//! What a simulation's device is made of, and the store that it is opened on.
//!
//! What always holds: a plan is a function of the options alone, so that a device can be opened anew on the store of another of the same plan.

use super::*;

/// Sizes of block namespaces whose contents lie in huge pages: worth their making, and small where all of them are touched.
const HUGE_PAGES: std::ops::RangeInclusive<u64> = 32 << 20..=256 << 20;
/// Room for the apps' own regions beside the namespaces, bytes a bank.
const REGIONS_BANK_BYTES: u64 = 64 << 20;

/// A device to be.
pub(super) struct Plan {
    pub config: DeviceConfig,
    /// The flash, and who serves it, where the preset has some.
    pub flash: Option<FlashChoice>,
    pub bank_bytes: u64,
}

impl Plan {
    pub fn of(options: &SimulationOptions) -> Result<Plan, SimulationError> {
        let preset = &options.preset;
        let config = preset.apply(DeviceConfig {
            namespace_bytes: options.namespace_bytes,
            block_bytes: options.block_bytes,
            kv_namespace_bytes: options.kv_namespace_bytes,
            seed: options.seed,
            kept_modules: options.kept_modules.clone(),
            ..DeviceConfig::default()
        });
        let share = |bytes| config.bank_share_bytes(bytes).unwrap_or(u64::MAX / 4);
        let needed = share(options.namespace_bytes).saturating_add(share(options.kv_namespace_bytes));
        let flash = FlashChoice::of_preset(preset, options.ftl.as_deref())
            .map_err(|error| SimulationError::Device(error.to_string()))?;
        let bounded = match &flash {
            Some(flash) => Some(flash.bank_bytes),
            None => preset
                .capacity_bytes()
                .map(|capacity| capacity / u64::from(config.spus) / REGION_ALIGNMENT_BYTES * REGION_ALIGNMENT_BYTES),
        };
        if let Some(bank) = bounded.filter(|bank| *bank < needed) {
            let text = format!(
                "its namespaces take {needed} bytes of each bank, preset {} has {bank}: choose smaller ones",
                preset.name
            );
            return Err(SimulationError::Device(text));
        }
        let bank_bytes = bounded.unwrap_or(needed.saturating_add(REGIONS_BANK_BYTES));
        Ok(Plan { config, flash, bank_bytes })
    }

    /// An empty store.
    pub fn store(&self, options: &SimulationOptions) -> Result<Box<dyn Store>, SimulationError> {
        let failed = |error: &dyn std::fmt::Display| SimulationError::Device(error.to_string());
        let banks = usize::from(self.config.spus);
        let Some(flash) = &self.flash else {
            let mut store = RamStore::new(banks, self.bank_bytes).map_err(|error| failed(&error))?;
            if HUGE_PAGES.contains(&options.namespace_bytes) {
                store.prefer_huge_pages();
            }
            return Ok(Box::new(store));
        };
        let metadata = RamStore::new(banks, REGION_ALIGNMENT_BYTES).map_err(|error| failed(&error))?;
        let contents = if options.contents { Contents::Memory } else { Contents::Nowhere };
        flash.store(Box::new(metadata), contents, options.seed).map_err(SimulationError::Device)
    }
}
