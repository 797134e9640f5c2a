//! Flash in the place of NV memory: which preset has it, how the SPUs share its channels, and what its FTL offers.
//!
//! What always holds: a bank is one channel, and its FTL offers as many bytes as the same FTL says that the flash is enough for.

use crate::config::parse_toml;
use crate::failure::{Failure, Outcome, fail};
use std::path::Path;
use willow_apps::{BundledApp, FTLS};
use willow_device::Store;
use willow_device::media::delegate::{Banks, DelegatingStore};
use willow_device::media::flash::{Array, FlashParameters, Head, Uuid, presets};
use willow_device::region::REGION_ALIGNMENT_BYTES;

/// The flash of a device, and who serves it.
#[derive(Clone, Debug)]
pub struct FlashChoice {
    /// The preset.
    pub name: String,
    /// One bank's flash.
    pub parameters: FlashParameters,
    /// Banks: channels.
    pub banks: u16,
    /// The FTL.
    pub ftl: String,
    /// Bytes that the FTL offers, a bank.
    pub bank_bytes: u64,
    /// Bytes that the FTL maps as one.
    pub unit_bytes: u64,
    /// What a write has done is on the flash when it is answered.
    pub is_durable_at_once: bool,
}

/// The FTL of that name.
pub fn ftl(name: &str) -> Outcome<&'static BundledApp> {
    let names: Vec<&str> = FTLS.iter().map(|ftl| ftl.name).collect();
    match FTLS.iter().find(|ftl| ftl.name == name) {
        Some(ftl) => Ok(ftl),
        None => fail!("there is no FTL {name}: use --ftl {}", names.join(" or ")),
    }
}

/// The name of a bank's file (docs/media-format.md, section 9).
fn file_name(bank: u64) -> String {
    format!("flash-{bank:03}")
}

impl FlashChoice {
    /// The flash of a preset, where it has one, behind an FTL.
    pub fn of_preset(preset: &str, ftl_name: Option<&str>) -> Outcome<Option<FlashChoice>> {
        let Some((name, text)) = presets::TEXTS.iter().find(|(name, _)| *name == preset) else {
            return match ftl_name {
                None => Ok(None),
                Some(ftl) => {
                    let names: Vec<&str> = presets::TEXTS.iter().map(|(name, _)| *name).collect();
                    fail!("--ftl {ftl}: preset {preset} has no flash; those that have: {}", names.join(", "))
                }
            };
        };
        let ftl = ftl(ftl_name.unwrap_or(FTLS[0].name))?;
        let mut parameters: FlashParameters = parse_toml(text, &format!("presets/flash/{name}.toml"))?;
        parameters.validate().map_err(Failure::new)?;
        let geometry = &mut parameters.geometry;
        let banks = u16::try_from(geometry.channels).map_err(Failure::new)?;
        geometry.channels = 1;
        let library = willow_flash::Geometry::of_words(&geometry.words(parameters.faults.paired_page_loss));
        let user = f64::from(parameters.controller.user_blocks_per_ten_thousand);
        let over_provisioning_percent = ((10_000.0 / user - 1.0) * 100.0).round() as u32;
        let config = page_ftl::FtlConfig::new(&library, 1, over_provisioning_percent)
            .map_err(|why| Failure::new(format!("preset {name}: FTL {} cannot serve this flash: {why}", ftl.name)))?;
        let unit_bytes = u64::from(geometry.planes_per_die) * u64::from(geometry.page_bytes);
        let offered = u64::from(config.lane.units) * u64::from(config.lanes(&library)) * unit_bytes;
        let bank_bytes = offered / REGION_ALIGNMENT_BYTES * REGION_ALIGNMENT_BYTES;
        let is_durable_at_once = library.is_durable_at_once();
        let (name, ftl) = ((*name).to_owned(), ftl.name.to_owned());
        Ok(Some(FlashChoice { name, parameters, banks, ftl, bank_bytes, unit_bytes, is_durable_at_once }))
    }

    /// Bytes of a namespace that takes all but room for the apps' own regions.
    pub fn namespace_bytes(&self) -> u64 {
        let regions = (self.bank_bytes / 16).next_multiple_of(REGION_ALIGNMENT_BYTES);
        self.bank_bytes.saturating_sub(regions) * u64::from(self.banks)
    }

    /// The device's store: flash in memory, or in a folder's files beside the metadata.
    pub fn store(
        &self,
        mut metadata: Box<dyn Store>,
        files: Option<(&Path, Uuid)>,
        seed: u64,
    ) -> Outcome<Box<dyn Store>> {
        let FlashParameters { geometry, faults, .. } = &self.parameters;
        // Files are made with the device: one that is missing later is a loss, and no new one may stand for it.
        let is_new = metadata.load_metadata().map_err(Failure::new)?.is_none();
        let mut arrays = Vec::new();
        for bank in 0..u64::from(self.banks) {
            let array = match files {
                None => Array::in_memory(geometry, faults, seed.wrapping_add(bank)),
                Some((folder, uuid)) => {
                    let path = folder.join(file_name(bank));
                    let head = Head { uuid, bank, geometry: *geometry, seed: seed.wrapping_add(bank) };
                    let made = match path.exists() {
                        true => Array::open(&path, &uuid, bank, geometry, faults),
                        false if is_new => Array::create(&path, &head, faults),
                        false => fail!("{}: a bank of the device's flash is missing: bring it back", path.display()),
                    };
                    made.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?
                }
            };
            arrays.push(array);
        }
        let banks = Banks {
            ftl: &self.ftl,
            bank_bytes: self.bank_bytes,
            unit_bytes: self.unit_bytes,
            // What is in files is in this machine's memory until it is synced.
            is_volatile: files.is_some() || !self.is_durable_at_once,
        };
        Ok(Box::new(DelegatingStore::new(metadata, arrays, &banks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_with_flash_are_found_and_others_take_no_ftl() {
        assert!(FlashChoice::of_preset("fast", None).expect("no flash, no FTL").is_none());
        let refused = FlashChoice::of_preset("fast", Some("page")).expect_err("no flash").to_string();
        assert!(refused.contains("tlc"), "{refused}");
        let refused = FlashChoice::of_preset("slc", Some("leaf")).expect_err("no such FTL").to_string();
        assert!(refused.contains("--ftl page"), "{refused}");
        let choice = FlashChoice::of_preset("slc", None).expect("it is enough").expect("it has flash");
        assert!(choice.bank_bytes > 0 && choice.ftl == "page");
    }
}
