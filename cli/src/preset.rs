//! Presets: files of device parameters (folder presets/). Those of the repository are in the binary; any other is given by
//! its path.
//!
//! Invariant: every field of a preset file is known and present; a preset never guesses.

use crate::failure::{Context, Outcome, fail};
use crate::size::Size;
use serde::{Deserialize, Deserializer, de};
use willow_device::config::{DeviceConfig, STRIPE_BYTES};

/// Name and text of the presets in the binary.
const EMBEDDED: &[(&str, &str)] = &[("fast", include_str!("../../presets/fast.toml"))];
/// The preset where none is asked for.
pub const DEFAULT: &str = "fast";

/// What a preset file says; presets/fast.toml tells units and sources.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Storage processor units.
    pub spus: u16,
    /// Stripe of block namespaces.
    pub stripe_bytes: u32,
    /// Most linear memory of an app on one SPU.
    pub app_data_bytes_max: u64,
    /// Most code of an app.
    pub app_code_bytes_max: u64,
    /// Instructions between two waits.
    pub instruction_budget: u64,
    /// Most apps.
    pub apps_max: u16,
    /// Most requests in flight on an endpoint.
    pub requests_per_hre_max: usize,
    /// Most bytes of all regions.
    pub capacity: Capacity,
}

/// Bound of the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity(pub Option<Size>);

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Capacity(Some(Size(bytes)))),
            Written::Text(text) if text == "none" => Ok(Capacity(None)),
            Written::Text(text) => text.parse().map(|size| Capacity(Some(size))).map_err(de::Error::custom),
        }
    }
}

impl Preset {
    /// The preset of that name, or of the file at that path.
    pub fn load(name_or_path: &str) -> Outcome<Self> {
        if let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(text, &format!("preset {name}"));
        }
        if !name_or_path.contains(['/', '.']) {
            let names: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
            fail!(
                "there is no preset \"{name_or_path}\": use one of {} or the path of a preset file",
                names.join(", ")
            );
        }
        let text = std::fs::read_to_string(name_or_path).context(|| format!("cannot read preset {name_or_path}"))?;
        Self::parse(&text, name_or_path)
    }

    fn parse(text: &str, file: &str) -> Outcome<Self> {
        let preset: Preset = crate::config::parse_toml(text, file)?;
        if preset.stripe_bytes != STRIPE_BYTES {
            fail!("{file}: stripe_bytes is {}, this version has {STRIPE_BYTES} only", preset.stripe_bytes);
        }
        preset.apply(DeviceConfig::default()).validate().context(|| file.to_owned())?;
        Ok(preset)
    }

    /// `config` with this preset's parameters.
    pub fn apply(&self, config: DeviceConfig) -> DeviceConfig {
        DeviceConfig {
            spus: self.spus,
            app_data_bytes_max: self.app_data_bytes_max,
            app_code_bytes_max: self.app_code_bytes_max,
            instruction_budget: self.instruction_budget,
            apps_max: self.apps_max,
            requests_per_hre_max: self.requests_per_hre_max,
            ..config
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_preset_loads() {
        for (name, _) in EMBEDDED {
            Preset::load(name).unwrap();
        }
        assert!(EMBEDDED.iter().any(|(name, _)| *name == DEFAULT));
    }

    #[test]
    fn bad_presets_are_refused_with_the_reason() {
        let fast = EMBEDDED[0].1;
        for (from, to, expected) in [
            ("spus = 8", "spus = 65", "spus is 65"),
            ("spus = 8", "", "missing field `spus`"),
            ("spus = 8", "spus = 8\ncolour = 3", "colour"),
            ("stripe_bytes = 8192", "stripe_bytes = 4096", "stripe_bytes is 4096"),
            ("capacity = \"none\"", "capacity = \"much\"", "much"),
        ] {
            let error = Preset::parse(&fast.replace(from, to), "some.toml").unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("some.toml"), "{error}");
        }
        let error = Preset::load("slow").unwrap_err().to_string();
        assert!(error.contains("fast"), "{error}");
        let bounded = Preset::parse(&fast.replace("\"none\"", "\"2G\""), "x").unwrap();
        assert_eq!(bounded.capacity, Capacity(Some(Size(2 << 30))));
    }
}
