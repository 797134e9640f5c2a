//! Flash in the place of NV memory: how the SPUs of a preset share its channels, who serves it, and what that offers.
//!
//! What always holds: a bank is as many neighbouring channels as every other, and its FTL offers as many bytes as the same FTL says that the flash
//! is enough for.

use crate::preset::{Preset, PresetError};
use std::path::Path;
use willow_apps::{BundledApp, FTLS};
use willow_device::Store;
use willow_device::media::delegate::{Banks, CollectionPolicy, DelegatingStore};
use willow_device::media::flash::{Array, ControllerParameters, FlashParameters, Head, Uuid};
use willow_device::model::flash::bank_geometry;
use willow_device::model::parameters::MediaParameters;
use willow_device::region::REGION_ALIGNMENT_BYTES;

/// Where the contents of flash are.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// In memory.
    Memory,
    /// Nowhere, but for what the FTL itself needs: all else reads as zeroes.
    Nowhere,
    /// In a folder's files, of the device of that id.
    Files(&'a Path, Uuid),
}

/// The flash of a device, and who serves it.
#[derive(Clone, Debug)]
pub struct FlashChoice {
    /// The preset.
    pub name: String,
    /// One bank's flash.
    pub parameters: FlashParameters,
    /// Banks.
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
pub fn ftl(name: &str) -> Result<&'static BundledApp, PresetError> {
    FTLS.iter().find(|ftl| ftl.name == name).ok_or_else(|| {
        let names: Vec<&str> = FTLS.iter().map(|ftl| ftl.name).collect();
        PresetError(format!("there is no FTL {name}: use --ftl {}", names.join(" or ")))
    })
}

/// The name of a bank's file (docs/media-format.md, section 9).
fn file_name(bank: u64) -> String {
    format!("flash-{bank:03}")
}

impl FlashChoice {
    /// The flash of a preset, where it has some, behind an FTL.
    pub fn of_preset(preset: &Preset, ftl_name: Option<&str>) -> Result<Option<FlashChoice>, PresetError> {
        let Some(MediaParameters::Flash(flash)) = preset.model.as_ref().map(|model| &model.media) else {
            return match ftl_name {
                None => Ok(None),
                Some(ftl) => {
                    let with_flash =
                        Preset::names().filter(|name| Preset::load(name).is_ok_and(|preset| preset.has_flash()));
                    let names = with_flash.collect::<Vec<_>>().join(", ");
                    let what =
                        format!("preset {} has no flash; those of the repository that have: {names}", preset.name);
                    Err(PresetError(format!("--ftl {ftl}: {what}")))
                }
            };
        };
        let ftl = ftl(ftl_name.unwrap_or(FTLS[0].name))?;
        let banks = preset.device.spus;
        let wrong = |what: String| PresetError(format!("preset {}: {what}", preset.name));
        let geometry = bank_geometry(&flash.geometry, banks).map_err(wrong)?;
        let library = willow_flash::Geometry::of_words(&geometry.words(flash.faults.paired_page_loss));
        let user = f64::from(flash.controller.user_blocks_per_ten_thousand);
        let over_provisioning_percent = ((10_000.0 / user - 1.0) * 100.0).round() as u32;
        let config = page_ftl::FtlConfig::collecting(
            &library,
            1,
            over_provisioning_percent,
            flash.controller.collect_below_blocks,
        )
        .map_err(|why| wrong(format!("FTL {} cannot serve this flash: {why}", ftl.name)))?;
        let unit_bytes = u64::from(geometry.planes_per_die) * u64::from(geometry.page_bytes);
        let offered = u64::from(config.lane.units) * u64::from(config.lanes(&library)) * unit_bytes;
        let bank_bytes = offered / REGION_ALIGNMENT_BYTES * REGION_ALIGNMENT_BYTES;
        let parameters = FlashParameters { geometry, ..**flash };
        let (name, ftl) = (preset.name.clone(), ftl.name.to_owned());
        let is_durable_at_once = library.is_durable_at_once();
        Ok(Some(FlashChoice { name, parameters, banks, ftl, bank_bytes, unit_bytes, is_durable_at_once }))
    }

    /// Bytes of a namespace that takes all but room for the apps' own regions.
    pub fn namespace_bytes(&self) -> u64 {
        let regions = (self.bank_bytes / 16).next_multiple_of(REGION_ALIGNMENT_BYTES);
        self.bank_bytes.saturating_sub(regions) * u64::from(self.banks)
    }

    /// Bytes of the block and of the key-value namespace of a fresh device, of which it is told the one, the other, or none. The key-value namespace has
    /// an eighth of all, or what the block namespace leaves, and at most so many bytes.
    pub fn split(&self, block: Option<u64>, key_value: Option<u64>, key_value_bytes_max: u64) -> (u64, u64) {
        let (all, piece) = (self.namespace_bytes(), u64::from(self.banks) * REGION_ALIGNMENT_BYTES);
        let share = block.map_or(all / 8, |block| all.saturating_sub(block.next_multiple_of(piece)));
        let key_value = key_value.unwrap_or(share.min(key_value_bytes_max) / piece * piece);
        (block.unwrap_or(all.saturating_sub(key_value.next_multiple_of(piece))), key_value)
    }

    /// The device's store over that of its metadata.
    pub fn store(
        &self,
        mut metadata: Box<dyn Store>,
        contents: Contents<'_>,
        seed: u64,
    ) -> Result<Box<dyn Store>, String> {
        let FlashParameters { geometry, faults, .. } = &self.parameters;
        // Files are made with the device: one that is missing later is a loss, and no new one may stand for it.
        let is_new = metadata.load_metadata().map_err(|error| error.to_string())?.is_none();
        let mut arrays = Vec::new();
        for bank in 0..u64::from(self.banks) {
            let array = match contents {
                Contents::Files(folder, uuid) if folder.join(file_name(bank)).exists() => {
                    let path = folder.join(file_name(bank));
                    Array::open(&path, &uuid, bank, geometry, faults)
                        .map_err(|error| format!("{}: {error}", path.display()))?
                }
                Contents::Files(folder, _) if !is_new => {
                    let path = folder.join(file_name(bank));
                    let path = path.display();
                    return Err(format!("{path}: a bank of the device's flash is missing: bring it back"));
                }
                _ => self.new_array(contents, bank, seed)?,
            };
            arrays.push(array);
        }
        Ok(Box::new(self.over(metadata, arrays, matches!(contents, Contents::Files(..)))))
    }

    /// New flash of a bank.
    pub(crate) fn new_array(&self, contents: Contents<'_>, bank: u64, seed: u64) -> Result<Array, String> {
        let FlashParameters { geometry, faults, .. } = &self.parameters;
        let seed = seed.wrapping_add(bank);
        match contents {
            Contents::Memory => Ok(Array::in_memory(geometry, faults, seed)),
            Contents::Nowhere => Ok(Array::headers_only(geometry, faults, seed)),
            Contents::Files(folder, uuid) => {
                let path = folder.join(file_name(bank));
                let head = Head { uuid, bank, geometry: *geometry, seed };
                Array::create(&path, &head, faults).map_err(|error| format!("{}: {error}", path.display()))
            }
        }
    }

    /// The store of that flash.
    pub(crate) fn over(&self, metadata: Box<dyn Store>, arrays: Vec<Array>, is_in_files: bool) -> DelegatingStore {
        let banks = Banks {
            ftl: &self.ftl,
            bank_bytes: self.bank_bytes,
            unit_bytes: self.unit_bytes,
            // What is in files is in this machine's memory until it is synced.
            is_volatile: is_in_files || !self.is_durable_at_once,
            ftl_forgets: !self.is_durable_at_once,
        };
        let ControllerParameters { victim_search, copyback, collect_below_blocks, .. } = self.parameters.controller;
        let policy = CollectionPolicy { collect_below_blocks, victim_search, copyback };
        DelegatingStore::new(metadata, arrays, &banks).with_policy(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_with_flash_are_found_and_others_take_no_ftl() {
        let choice = |preset: &str, ftl| FlashChoice::of_preset(&Preset::load(preset).expect("a preset"), ftl);
        assert!(choice("fast", None).expect("no flash, no FTL").is_none());
        let refused = choice("bee3", Some("page")).expect_err("no flash").to_string();
        assert!(refused.contains("tlc"), "{refused}");
        let refused = choice("slc", Some("leaf")).expect_err("no such FTL").to_string();
        assert!(refused.contains("--ftl page"), "{refused}");
        for (name, banks) in [("jasmine", 1), ("slc", 8), ("tlc", 8), ("mqsim", 8)] {
            let choice = choice(name, None).expect("it is enough").expect("it has flash");
            assert!(choice.bank_bytes > 0 && choice.ftl == "page" && choice.banks == banks);
        }
    }
}
