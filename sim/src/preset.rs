//! Presets: files of parameters of a device, its hardware and its host (folder presets/). Those of the repository are in the binary;
//! any other is given by its path.
//!
//! What always holds: every field of a preset file is known and present; a preset never guesses. A file has all tables of the hardware's
//! model or none, and where it has them it has a host.

use crate::host::HostParameters;
use crate::sata::SataParameters;
use crate::size::Size;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::path::Path;
use willow_device::config::{DeviceConfig, STRIPE_BYTES};
use willow_device::media::flash::{FlashParameters, presets as flash_tables};
use willow_device::model::ModelParameters;
use willow_device::model::parameters::{
    Accelerators, BridgeParameters, DmaParameters, FixedLatencyParameters, LinkParameters, MediaParameters,
    PcmParameters, PowerParameters, RingParameters, SpuParameters,
};

/// Name and text of the presets in the binary.
const EMBEDDED: &[(&str, &str)] = &[
    ("fast", include_str!("../../presets/fast.toml")),
    ("bee3", include_str!("../../presets/bee3.toml")),
    ("null-nvme", include_str!("../../presets/null-nvme.toml")),
    ("modern-nvme", include_str!("../../presets/modern-nvme.toml")),
    ("jasmine", include_str!("../../presets/jasmine.toml")),
    ("slc", include_str!("../../presets/slc.toml")),
    ("tlc", include_str!("../../presets/tlc.toml")),
    ("mqsim", include_str!("../../presets/mqsim.toml")),
];
/// The preset where none is asked for.
pub const DEFAULT: &str = "fast";
/// Most bytes of a preset file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a preset cannot be used: one sentence that names file, line where there is one, field, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PresetError(pub String);

/// A preset.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Its name, or its file's.
    pub name: String,
    /// Counts, sizes and limits of the device.
    pub device: DeviceParameters,
    /// The hardware; `None`: the device takes no modelled time.
    pub model: Option<ModelParameters>,
    /// The host; there where `model` is.
    pub host: Option<HostParameters>,
    /// The port between both, where it is SATA.
    pub sata: Option<SataParameters>,
    /// Parameters of the experiments' workloads that the papers did not print.
    pub workload: BTreeMap<String, f64>,
    /// Which parameter is fitted to which published figure (`willow calibrate`): path of the field, then `result.metric`.
    pub calibrate: BTreeMap<String, String>,
}

/// Counts, sizes and limits; presets/fast.toml tells units and sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceParameters {
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
    /// Extents in an SPU's permission table.
    pub permission_entries: usize,
    /// Most apps of a user.
    pub apps_per_user_max: u16,
    /// Most NV memory of a user's apps, in every bank.
    pub user_region_bytes_max: u64,
    /// Instructions between two waits, for users' apps.
    pub user_instruction_budget: u64,
    /// What processes and their apps may have, and how the kernel weighs beside them.
    pub budgets: Budgets,
    /// Most bytes of all regions.
    pub capacity: Capacity,
}

/// Table `budgets` of a preset; what it leaves out is as in [`DeviceConfig::default`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    /// Most requests under way of one process.
    pub requests_per_process_max: usize,
    /// Most handlers of one process' requests on one SPU.
    pub handlers_per_process_max: u16,
    /// Bytes of DMAs between two waits.
    pub dma_budget_bytes: u64,
    /// The same for users' apps.
    pub user_dma_budget_bytes: u64,
    /// Most messages of one user's app that are not answered.
    pub messages_per_user_app_max: u32,
    /// Weight of the host kernel beside users' processes.
    pub kernel_weight: u16,
    /// Data memory of an SPU for all apps.
    pub spu_data_bytes_max: u64,
    /// Instruction memory of an SPU for all apps.
    pub spu_code_bytes_max: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        let config = DeviceConfig::default();
        Budgets {
            requests_per_process_max: config.requests_per_process_max,
            handlers_per_process_max: config.handlers_per_process_max,
            dma_budget_bytes: config.dma_budget_bytes,
            user_dma_budget_bytes: config.user_dma_budget_bytes,
            messages_per_user_app_max: config.messages_per_user_app_max,
            kernel_weight: config.kernel_weight,
            spu_data_bytes_max: config.spu_data_bytes_max,
            spu_code_bytes_max: config.spu_code_bytes_max,
        }
    }
}

/// What a file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    spus: u16,
    stripe_bytes: u32,
    app_data_bytes_max: u64,
    app_code_bytes_max: u64,
    instruction_budget: u64,
    apps_max: u16,
    requests_per_hre_max: usize,
    permission_entries: usize,
    apps_per_user_max: u16,
    user_region_bytes_max: u64,
    user_instruction_budget: u64,
    #[serde(default)]
    budgets: Budgets,
    capacity: Capacity,
    link: Option<LinkParameters>,
    bridge: Option<BridgeParameters>,
    ring: Option<RingParameters>,
    spu: Option<SpuParameters>,
    dma: Option<DmaParameters>,
    media: Option<WrittenMedia>,
    accelerator: Option<Accelerators>,
    power: Option<PowerParameters>,
    host: Option<HostParameters>,
    sata: Option<SataParameters>,
    #[serde(default)]
    workload: BTreeMap<String, f64>,
    #[serde(default)]
    calibrate: BTreeMap<String, String>,
}

/// Table `media` of a preset.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum WrittenMedia {
    Pcm(PcmParameters),
    FixedLatency(FixedLatencyParameters),
    Flash(FlashTable),
}

/// Where the flash of a preset is described.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlashTable {
    /// Name of a table of the repository, or the path of a file, from the preset's folder on.
    table: String,
}

impl WrittenMedia {
    /// The parameters; those of flash are in a file of their own, which its errors name.
    fn parameters(self, file: &str) -> Result<MediaParameters, PresetError> {
        let FlashTable { table } = match self {
            WrittenMedia::Pcm(pcm) => return Ok(MediaParameters::Pcm(pcm)),
            WrittenMedia::FixedLatency(fixed) => return Ok(MediaParameters::FixedLatency(fixed)),
            WrittenMedia::Flash(flash) => flash,
        };
        let known = flash_tables::TEXTS.iter().find(|(name, _)| *name == table);
        let (text, name) = match known {
            Some((name, text)) => ((*text).to_owned(), format!("presets/flash/{name}.toml")),
            None if table.contains(['/', '.']) => {
                let path = Path::new(file).parent().unwrap_or(Path::new("")).join(&table);
                (read(&path, "table of flash")?, path.display().to_string())
            }
            None => {
                let names: Vec<&str> = flash_tables::TEXTS.iter().map(|(name, _)| *name).collect();
                return Err(PresetError(format!(
                    "{file}: media.table is \"{table}\", expected one of {} or the path of a file",
                    names.join(", ")
                )));
            }
        };
        let flash: FlashParameters = parse_toml(&text, &name)?;
        flash.validate().map_err(|absurd| placed(&text, &name, &absurd.to_string()))?;
        Ok(MediaParameters::Flash(Box::new(flash)))
    }
}

/// The text of a file of settings.
fn read(path: &Path, what: &str) -> Result<String, PresetError> {
    let name = path.display();
    let unreadable = |error: &dyn std::fmt::Display| PresetError(format!("cannot read {what} {name}: {error}"));
    let bytes = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(unreadable(&format_args!("it has {bytes} bytes, a preset has at most {FILE_BYTES_MAX}")));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(&error))
}

/// Bound of the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity(pub Option<Size>);

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(bytes) => Ok(Capacity(Some(Size(bytes)))),
            Either::Text(text) if text == "none" => Ok(Capacity(None)),
            Either::Text(text) => text.parse().map(|size| Capacity(Some(size))).map_err(de::Error::custom),
        }
    }
}

/// Parses a file of settings; the error names file, line and field.
pub fn parse_toml<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, PresetError> {
    toml::from_str(text).map_err(|error| {
        let message = error.message();
        let Some(span) = error.span() else { return PresetError(format!("{file}: {message}")) };
        let before = &text.as_bytes()[..span.start.min(text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count();
        match field_of(text, line, message) {
            Some((line, field)) => PresetError(format!("{file}, line {}: {field}: {message}", line + 1)),
            None => PresetError(format!("{file}, line {}: {message}", line + 1)),
        }
    })
}

/// The field that a complaint about a value is about, and its line, counted from 0: the line's own; or, where it is a table's
/// header (of some tables the parser tells no more), the field of that table that has the value which the complaint quotes.
/// `None` where the complaint names a field itself.
fn field_of(text: &str, line: usize, message: &str) -> Option<(usize, String)> {
    if message.contains("field `") {
        return None;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let header = |line: &str| Some(line.strip_prefix('[')?.split(']').next()?.trim().to_owned());
    let entry = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.trim().to_owned(), value.trim().replace('_', "")))
    };
    let table = lines.get(..=line)?.iter().rev().find_map(|line| header(line));
    let full = |key: String| table.as_ref().map_or(key.clone(), |table| format!("{table}.{key}"));
    if let Some((key, _)) = entry(lines.get(line)?) {
        return Some((line, full(key)));
    }
    let quoted = message.split('`').nth(1)?;
    let within = lines.iter().enumerate().skip(line + 1).take_while(|(_, line)| header(line).is_none());
    let mut matching = within.filter_map(|(number, line)| Some((number, entry(line)?)));
    matching.find(|(_, (_, value))| value == quoted).map(|(number, (key, _))| (number, full(key)))
}

/// The line of `table.field` (or of a top-level field), counted from 1.
fn line_of(text: &str, path: &str) -> Option<usize> {
    let mut table = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = format!("{}.", header.trim());
        } else if let Some((key, _)) = line.split_once('=')
            && path.starts_with(&format!("{table}{}", key.trim()))
            && matches!(path.as_bytes().get(table.len() + key.trim().len()), None | Some(b'.'))
        {
            return Some(number + 1);
        }
    }
    None
}

/// A complaint about a field (its first word is the field's path), with its line.
fn placed(text: &str, file: &str, complaint: &str) -> PresetError {
    let field = complaint.split([' ', ',']).next().unwrap_or_default();
    let line = line_of(text, field).map(|line| format!(", line {line}"));
    PresetError(format!("{file}{}: {complaint}", line.unwrap_or_default()))
}

/// What is wrong with a port for this host.
fn check_port(sata: Option<&SataParameters>, host: Option<&HostParameters>) -> Result<(), String> {
    match (sata, host) {
        (Some(_), None) => Err("sata is there, expected a file that models hardware".to_owned()),
        (Some(sata), Some(_)) => sata.validate(),
        (None, Some(host)) if host.merge_bytes_max > 0 => {
            Err(format!("host.merge_bytes_max is {}, expected 0 where there is no table [sata]", host.merge_bytes_max))
        }
        (None, _) => Ok(()),
    }
}

impl Preset {
    /// The names of the presets in the binary.
    pub fn names() -> impl Iterator<Item = &'static str> {
        EMBEDDED.iter().map(|(name, _)| *name)
    }

    /// The text of the preset of that name in the binary.
    pub fn text(name: &str) -> Option<&'static str> {
        EMBEDDED.iter().find(|(other, _)| *other == name).map(|(_, text)| *text)
    }

    /// The preset of that name, or of the file at that path.
    pub fn load(name_or_path: &str) -> Result<Self, PresetError> {
        if let Some(text) = Self::text(name_or_path) {
            return Self::parse(text, name_or_path, &format!("preset {name_or_path}"));
        }
        if !name_or_path.contains(['/', '.']) {
            let names: Vec<&str> = Self::names().collect();
            return Err(PresetError(format!(
                "there is no preset \"{name_or_path}\": use one of {} or the path of a preset file",
                names.join(", ")
            )));
        }
        let text = read(Path::new(name_or_path), "preset")?;
        Self::parse(&text, name_or_path, name_or_path)
    }

    /// A preset from its text; `file` names it in errors.
    pub fn parse(text: &str, name: &str, file: &str) -> Result<Self, PresetError> {
        let written: Written = parse_toml(text, file)?;
        if written.stripe_bytes != STRIPE_BYTES {
            let complaint = format!("stripe_bytes is {}, expected {STRIPE_BYTES}", written.stripe_bytes);
            return Err(placed(text, file, &complaint));
        }
        let tables = [
            ("link", written.link.is_some()),
            ("bridge", written.bridge.is_some()),
            ("ring", written.ring.is_some()),
            ("spu", written.spu.is_some()),
            ("dma", written.dma.is_some()),
            ("media", written.media.is_some()),
            ("accelerator", written.accelerator.is_some()),
            ("power", written.power.is_some()),
            ("host", written.host.is_some()),
        ];
        if let (Some((there, _)), Some((missing, _))) =
            (tables.iter().find(|(_, there)| *there), tables.iter().find(|(_, there)| !*there))
        {
            return Err(PresetError(format!(
                "{file}: table [{missing}] is missing: a file with [{there}] models hardware and has all of {}",
                tables.map(|(name, _)| format!("[{name}]")).join(", ")
            )));
        }
        let media = written.media.map(|media| media.parameters(file)).transpose()?;
        let model = match (written.link, written.bridge, written.ring, written.spu) {
            (Some(link), Some(bridge), Some(ring), Some(spu)) => {
                match (written.dma, media, written.accelerator, written.power) {
                    (Some(dma), Some(media), Some(accelerator), Some(power)) => {
                        Some(ModelParameters { link, bridge, ring, spu, dma, media, accelerator, power })
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        if let Some(model) = &model {
            model.validate().map_err(|complaint| placed(text, file, &complaint))?;
        }
        if let Some(host) = &written.host {
            host.validate().map_err(|complaint| placed(text, file, &complaint))?;
        }
        check_port(written.sata.as_ref(), written.host.as_ref()).map_err(|complaint| placed(text, file, &complaint))?;
        let preset = Preset {
            name: name.to_owned(),
            device: DeviceParameters {
                spus: written.spus,
                stripe_bytes: written.stripe_bytes,
                app_data_bytes_max: written.app_data_bytes_max,
                app_code_bytes_max: written.app_code_bytes_max,
                instruction_budget: written.instruction_budget,
                apps_max: written.apps_max,
                requests_per_hre_max: written.requests_per_hre_max,
                permission_entries: written.permission_entries,
                apps_per_user_max: written.apps_per_user_max,
                user_region_bytes_max: written.user_region_bytes_max,
                user_instruction_budget: written.user_instruction_budget,
                budgets: written.budgets,
                capacity: written.capacity,
            },
            model,
            host: written.host,
            sata: written.sata,
            workload: written.workload,
            calibrate: written.calibrate,
        };
        preset.apply(DeviceConfig::default()).validate().map_err(|complaint| placed(text, file, &complaint))?;
        for field in preset.calibrate.keys() {
            if preset.parameter(field).is_none() {
                return Err(placed(text, file, &format!("calibrate.\"{field}\" names no parameter that is a number")));
            }
        }
        Ok(preset)
    }

    /// `config` with this preset's parameters.
    pub fn apply(&self, config: DeviceConfig) -> DeviceConfig {
        DeviceConfig {
            spus: self.device.spus,
            app_data_bytes_max: self.device.app_data_bytes_max,
            app_code_bytes_max: self.device.app_code_bytes_max,
            instruction_budget: self.device.instruction_budget,
            apps_max: self.device.apps_max,
            requests_per_hre_max: self.device.requests_per_hre_max,
            permission_entries: self.device.permission_entries,
            apps_per_user_max: self.device.apps_per_user_max,
            user_region_bytes_max: self.device.user_region_bytes_max,
            user_instruction_budget: self.device.user_instruction_budget,
            requests_per_process_max: self.device.budgets.requests_per_process_max,
            handlers_per_process_max: self.device.budgets.handlers_per_process_max,
            dma_budget_bytes: self.device.budgets.dma_budget_bytes,
            user_dma_budget_bytes: self.device.budgets.user_dma_budget_bytes,
            messages_per_user_app_max: self.device.budgets.messages_per_user_app_max,
            kernel_weight: self.device.budgets.kernel_weight,
            spu_data_bytes_max: self.device.budgets.spu_data_bytes_max,
            spu_code_bytes_max: self.device.budgets.spu_code_bytes_max,
            ..config
        }
    }

    /// Whether its media are flash.
    pub fn has_flash(&self) -> bool {
        self.model.as_ref().is_some_and(|model| matches!(model.media, MediaParameters::Flash(_)))
    }

    /// Most bytes of all banks together, where the preset bounds them.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.device.capacity.0.map(|size| size.0)
    }

    /// A numeric parameter of the hardware, the host or the workloads, by its path such as `host.system_call_ns`.
    pub fn parameter(&self, path: &str) -> Option<f64> {
        if let Some(name) = path.strip_prefix("workload.") {
            return self.workload.get(name).copied();
        }
        let (model, host) = (serde_json::to_value(&self.model).ok()?, serde_json::to_value(&self.host).ok()?);
        let mut place = match path.strip_prefix("host.") {
            Some(rest) => return host.get(rest)?.as_f64(),
            None => &model,
        };
        for part in path.split('.') {
            place = place.get(part)?;
        }
        place.as_f64().or_else(|| place.as_bool().map(|is| f64::from(u8::from(is))))
    }

    /// Sets a numeric parameter; whole numbers are rounded, and of what is yes or no 1 is yes and 0 is no. Errors where there is no such parameter or its value cannot be.
    pub fn set_parameter(&mut self, path: &str, value: f64) -> Result<(), PresetError> {
        let unknown = || PresetError(format!("there is no numeric parameter {path}"));
        let wrong = |error: &dyn std::fmt::Display| PresetError(format!("{path} cannot be {value}: {error}"));
        let set = |place: &mut serde_json::Value| -> Result<(), PresetError> {
            *place = match place {
                serde_json::Value::Number(old) if old.is_f64() => serde_json::json!(value),
                serde_json::Value::Number(_) => serde_json::json!(value.round().max(0.0) as u64),
                // Whether something is done: 0 or 1.
                serde_json::Value::Bool(_) if value == 0.0 || value == 1.0 => serde_json::json!(value == 1.0),
                serde_json::Value::Bool(_) => return Err(wrong(&"it is 0 (no) or 1 (yes)")),
                _ => return Err(unknown()),
            };
            Ok(())
        };
        if let Some(name) = path.strip_prefix("workload.") {
            *self.workload.get_mut(name).ok_or_else(unknown)? = value;
            return Ok(());
        }
        if let Some(rest) = path.strip_prefix("host.") {
            let mut host = serde_json::to_value(&self.host).map_err(|error| wrong(&error))?;
            set(host.get_mut(rest).ok_or_else(unknown)?)?;
            let host: HostParameters = serde_json::from_value(host).map_err(|error| wrong(&error))?;
            host.validate().map_err(|error| wrong(&error))?;
            self.host = Some(host);
            return Ok(());
        }
        let mut model = serde_json::to_value(&self.model).map_err(|error| wrong(&error))?;
        let mut place = &mut model;
        for part in path.split('.') {
            place = place.get_mut(part).ok_or_else(unknown)?;
        }
        set(place)?;
        let model: ModelParameters = serde_json::from_value(model).map_err(|error| wrong(&error))?;
        model.validate().map_err(|error| wrong(&error))?;
        self.model = Some(model);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Preset, String> {
        Preset::parse(text, "some", "some.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn every_embedded_preset_loads() {
        for name in Preset::names() {
            Preset::load(name).unwrap();
        }
        assert!(Preset::names().any(|name| name == DEFAULT));
        assert!(Preset::load("slow").unwrap_err().to_string().contains("fast"));
    }

    #[test]
    fn bad_presets_are_refused_with_file_line_field_and_what_was_expected() {
        let fast = Preset::text("fast").unwrap();
        for (from, to, expected) in [
            ("spus = 8", "spus = 65", "spus is 65"),
            ("spus = 8", "", "missing field `spus`"),
            ("spus = 8", "spus = 8\ncolour = 3", "colour"),
            ("stripe_bytes = 8192", "stripe_bytes = 4096", "stripe_bytes is 4096, expected 8192"),
            ("capacity = \"none\"", "capacity = \"much\"", "much"),
            ("capacity = \"none\"", "capacity = \"none\"\n[host]\n", "missing field"),
        ] {
            let error = parse(&fast.replace(from, to)).unwrap_err();
            assert!(error.contains(expected) && error.starts_with("some.toml"), "{error}");
        }
        assert_eq!(parse(&fast.replace("\"none\"", "\"2G\"")).unwrap().capacity_bytes(), Some(2 << 30));
        let bee3 = Preset::text("bee3").unwrap();
        let host = bee3.find("[host]").unwrap();
        let without = &bee3[..host];
        assert!(parse(without).unwrap_err().contains("table [host] is missing"));
        let lines = bee3[..host].lines().count();
        let (head, tail) = bee3.split_at(host);
        let mut changed = String::new();
        for line in tail.lines() {
            let line = if line.starts_with("processors =") { "processors = 0" } else { line };
            changed.push_str(line);
            changed.push('\n');
        }
        let error = parse(&format!("{head}{changed}")).unwrap_err();
        assert!(error.contains("host.processors is 0, expected 1 to 1024 processors"), "{error}");
        let line: usize = error.split("line ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
        assert!(line > lines && bee3.lines().nth(line - 1).unwrap().starts_with("processors ="), "{error}");
    }

    /// Values of a wrong kind: the parser knows the line (or, in a table with kinds, its header), and the field is found.
    #[test]
    fn values_of_a_wrong_kind_are_told_with_their_field_and_line() {
        let text = Preset::text("modern-nvme").unwrap();
        for (from, to, field) in [
            ("read_ns = 3_000", "read_ns = -5", "media.read_ns"),
            ("kernel_polls = ", "kernel_polls = 3 # ", "host.kernel_polls"),
            ("spus = 8", "spus = \"many\"", "spus"),
            ("in_bytes_per_s = ", "in_bytes_per_s = \"fast\" # ", "link.in_bytes_per_s"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let line = changed.lines().position(|line| line.starts_with(to)).unwrap() + 1;
            let error = parse(&changed).unwrap_err();
            assert!(error.starts_with(&format!("some.toml, line {line}: {field}: invalid ")), "{error}");
            assert!(error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn parameters_are_read_and_set_by_path() {
        let mut preset = Preset::load("bee3").unwrap();
        assert_eq!(preset.parameter("ring.width_bits"), Some(128.0));
        preset.set_parameter("ring.width_bits", 64.2).unwrap();
        preset.set_parameter("host.system_call_ns", 77.0).unwrap();
        assert_eq!(preset.parameter("ring.width_bits"), Some(64.0));
        assert_eq!(preset.host.as_ref().unwrap().system_call_ns, 77);
        assert!(preset.set_parameter("ring.width", 1.0).is_err());
        assert!(preset.set_parameter("host.processors", 0.0).unwrap_err().to_string().contains("expected 1 to 1024"));
        assert_eq!(preset.parameter("ring"), None);
        let (mut flash, suspends) = (Preset::load("jasmine").unwrap(), "media.timing.suspend_program");
        assert_eq!(flash.parameter(suspends), Some(0.0));
        flash.set_parameter(suspends, 1.0).unwrap();
        assert_eq!(flash.parameter(suspends), Some(1.0));
        assert!(flash.set_parameter(suspends, 0.5).unwrap_err().to_string().contains("0 (no) or 1 (yes)"));
    }
}
