//! What an app's module must be before it is let in: checks that give the reason in words, and its manifest.
//!
//! Invariant: a module that passes imports only what SPU-OS offers, with the right signatures, exports what SPU-OS calls,
//! has no start function, fits the preset's limits, and is compiled with bounded effort ([`super::effort`]).

use super::effort::{Effort, FUNCTIONS_MAX, TYPES_MAX, check_count};
use super::limits::TABLE_ELEMENT_BYTES;
use crate::spu::abi::ABI_VERSION;
use crate::spu::protection::{Calls, Handlers};
use wasmparser::{CompositeInnerType, ExternalKind, Parser, Payload, TypeRef, ValType};
use willow_gate::table::{self, Import, Who};

/// Most bytes of a module.
pub const MODULE_BYTES_MAX: usize = 4 << 20;
/// Where a module's manifest is.
const MANIFEST_SECTION: &str = "willow.app";
/// Most bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 16384;
/// Most bytes of an app's name.
pub const NAME_BYTES_MAX: usize = 31;
const WASM_PAGE_BYTES: u64 = 65536;

/// Limits of the preset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleLimits {
    pub data_bytes_max: u64,
    pub code_bytes_max: u64,
    /// No user's: it may import what is for trusted apps.
    pub trusted: bool,
}

/// What an app takes of each SPU's memories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// What its memory and tables may grow to.
    pub data_bytes: u64,
    /// Its code section.
    pub code_bytes: u64,
}

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub name: String,
    pub version: String,
    pub handlers: Vec<(u8, String)>,
    pub calls: Calls,
    /// It carries out writes after it has answered: SPU-OS waits for what it owes.
    pub settles: bool,
    /// It asks for long runs.
    pub long: bool,
    /// Of the module that it is in; nothing of a native build.
    pub footprint: Footprint,
}

/// Reads a manifest; the error names the line.
pub(crate) fn parse_manifest(bytes: &[u8]) -> Result<Manifest, String> {
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(format!("its manifest has {} bytes, at most {MANIFEST_BYTES_MAX} are allowed", bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "its manifest (section willow.app) is not UTF-8".to_owned())?;
    let (mut abi, mut name, mut version) = (None, None, None);
    let mut handlers: Vec<(u8, String)> = Vec::new();
    let (mut calls, mut settles, mut long) = (Calls::default(), false, false);
    for (index, line) in text.split('\n').enumerate() {
        let line = line.trim_matches(['\0', ' ', '\r']);
        if line.is_empty() {
            continue;
        }
        let wrong = |what: &str| format!("its manifest's line {} (`{line}`) {what}", index + 1);
        let (key, value) = line.split_once('=').ok_or_else(|| wrong("is not KEY=VALUE"))?;
        match key {
            "abi" => abi = Some(value.parse::<u32>().map_err(|_| wrong("is no number"))?),
            "name" => name = Some(value.to_owned()),
            "version" => version = Some(value.to_owned()),
            "public" | "kernel" => {
                let set =
                    Handlers::parse(value).ok_or_else(|| wrong("is neither * nor handler numbers with commas"))?;
                *if key == "public" { &mut calls.public } else { &mut calls.kernel } = set;
            }
            "settles" => match value {
                "1" => settles = true,
                _ => return Err(wrong("is not settles=1")),
            },
            "long" => match value {
                "1" => long = true,
                _ => return Err(wrong("is not long=1")),
            },
            "handler" => {
                let (number, handler) = value.split_once(':').ok_or_else(|| wrong("is not handler=NUMBER:NAME"))?;
                let number = number.parse::<u8>().ok().filter(|number| *number > 0);
                let number = number.ok_or_else(|| wrong("needs a handler number from 1 to 255"))?;
                if handler.is_empty()
                    || handler.len() > 64
                    || handlers.iter().any(|(n, h)| *n == number || h == handler)
                {
                    return Err(wrong("repeats a handler or gives it no usable name"));
                }
                handlers.push((number, handler.to_owned()));
            }
            _ => return Err(wrong("has a key that this version does not know")),
        }
    }
    match abi {
        Some(ABI_VERSION) => {}
        Some(other) => {
            let advice = match other < ABI_VERSION {
                true => "build it anew with this version's SDK (docs/abi.md, From version 1 to 2)",
                false => "this device is older than the app",
            };
            return Err(format!("it was built for ABI version {other}, this device has {ABI_VERSION}: {advice}"));
        }
        None => return Err("its manifest has no line abi=".to_owned()),
    }
    let name = name.ok_or("its manifest has no line name=")?;
    if !valid_name(&name) {
        return Err(format!("its name `{name}` is not of the form [a-z][a-z0-9-]{{0,30}}"));
    }
    if handlers.is_empty() {
        return Err("its manifest names no handler".to_owned());
    }
    let version = version.unwrap_or_else(|| "0".to_owned());
    if version.len() > 64 {
        return Err("its version has more than 64 bytes".to_owned());
    }
    Ok(Manifest { name, version, handlers, calls, settles, long, footprint: Footprint::default() })
}

/// The name of the app that a module is, as its manifest says; the error says why it is none. Whether it may be installed, the device says.
pub fn name_of(bytes: &[u8]) -> Result<String, String> {
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|error| format!("it is not a WebAssembly module: {error}"))? {
            Payload::CustomSection(section) if section.name() == MANIFEST_SECTION => {
                return parse_manifest(section.data()).map(|manifest| manifest.name);
            }
            _ => {}
        }
    }
    Err(format!("it has no manifest (section {MANIFEST_SECTION}), so that it is no app"))
}

/// True for names of the form `[a-z][a-z0-9-]{0,30}`.
pub(crate) fn valid_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn letters(types: &[ValType]) -> String {
    let letter = |value: &ValType| match value {
        ValType::I32 => 'i',
        ValType::I64 => 'I',
        ValType::F32 => 'f',
        ValType::F64 => 'F',
        _ => '?',
    };
    types.iter().map(letter).collect()
}

/// Checks an import: it is in the table, has that signature, and is for such an app.
fn check_import(
    table: &[Import],
    (module, name): (&str, &str),
    (parameters, results): &(String, String),
    trusted: bool,
) -> Result<(), String> {
    let known = table.iter().find(|import| import.section.module() == module && import.name == name);
    let Some(import) = known else { return Err(format!("it imports {module}.{name}, which SPU-OS does not offer")) };
    let (needs, gives) = (import.parameter_letters(), import.result_letters());
    if (parameters, results) != (&needs, &gives) {
        return Err(format!(
            "it imports {module}.{name} as ({parameters})->({results}), its signature is ({needs})->({gives})"
        ));
    }
    if import.who == Who::Trusted && !trusted {
        return Err(format!("it imports {module}.{name}, which is for apps that the host's kernel installs"));
    }
    Ok(())
}

/// Checks a module; the error is a sentence that begins with what the module does wrong.
pub(crate) fn check(bytes: &[u8], limits: ModuleLimits) -> Result<Manifest, String> {
    if bytes.len() > MODULE_BYTES_MAX {
        return Err(format!("it has {} bytes, at most {MODULE_BYTES_MAX} are allowed", bytes.len()));
    }
    let broken = |error: wasmparser::BinaryReaderError| format!("it is not a WebAssembly module: {error}");
    let mut effort = Effort::new();
    let mut signatures: Vec<Option<(String, String)>> = Vec::new();
    let mut functions: Vec<u32> = Vec::new();
    let (mut manifest, mut memory, mut tables, mut exports_memory) = (None, None, 0u64, false);
    let (mut start, mut complete) = (None, None);
    // What it may grow to, where it says so; else all that an app may have.
    let (mut grows, mut code_bytes) = (0u64, 0);
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(broken)?;
        if let Payload::Version { encoding: wasmparser::Encoding::Component, .. } = payload {
            return Err("it is a component, a core module is needed".to_owned());
        }
        effort.see(&payload)?;
        match payload {
            Payload::TypeSection(reader) => {
                for group in reader {
                    for sub_type in group.map_err(broken)?.types() {
                        signatures.push(match &sub_type.composite_type.inner {
                            CompositeInnerType::Func(function) => {
                                Some((letters(function.params()), letters(function.results())))
                            }
                            _ => None,
                        });
                        check_count("types or more", signatures.len(), TYPES_MAX)?;
                    }
                }
            }
            Payload::ImportSection(reader) => {
                for import in reader.into_imports() {
                    let import = import.map_err(broken)?;
                    let TypeRef::Func(signature) = import.ty else {
                        return Err(format!("it imports {}.{}, which is no function", import.module, import.name));
                    };
                    functions.push(signature);
                    check_count("functions or more, with imports", functions.len(), FUNCTIONS_MAX)?;
                    let found = signatures.get(signature as usize).cloned().flatten().unwrap_or_default();
                    check_import(table::IMPORTS, (import.module, import.name), &found, limits.trusted)?;
                }
            }
            Payload::FunctionSection(reader) => {
                for signature in reader {
                    functions.push(signature.map_err(broken)?);
                }
                check_count("functions or more, with imports", functions.len(), FUNCTIONS_MAX)?;
            }
            Payload::MemorySection(reader) => {
                for found in reader {
                    let found = found.map_err(broken)?;
                    if memory.is_some() || found.memory64 || found.shared {
                        return Err("it has more than one memory, or one that is 64-bit or shared".to_owned());
                    }
                    let page_bytes = found.page_size_log2.map_or(WASM_PAGE_BYTES, |log2| 1 << log2.min(16));
                    memory = Some(found.initial.saturating_mul(page_bytes));
                    let most = found.maximum.unwrap_or(u64::MAX);
                    grows = grows.saturating_add(most.saturating_mul(page_bytes));
                }
            }
            Payload::TableSection(reader) => {
                for table in reader {
                    let found = table.map_err(broken)?.ty;
                    tables = found.initial.saturating_mul(TABLE_ELEMENT_BYTES).saturating_add(tables);
                    let most = found.maximum.unwrap_or(u64::MAX);
                    grows = grows.saturating_add(most.saturating_mul(TABLE_ELEMENT_BYTES));
                }
            }
            Payload::StartSection { .. } => {
                return Err("it has a start function: move it to the export _initialize".to_owned());
            }
            Payload::ExportSection(reader) => {
                for export in reader {
                    let export = export.map_err(broken)?;
                    match (export.name, export.kind) {
                        ("memory", ExternalKind::Memory) => exports_memory = true,
                        ("start", ExternalKind::Func) => start = Some(export.index),
                        ("complete", ExternalKind::Func) => complete = Some(export.index),
                        _ => {}
                    }
                }
            }
            Payload::CodeSectionStart { size, .. } if u64::from(size) > limits.code_bytes_max => {
                return Err(format!(
                    "its code has {size} bytes, the preset's limit app_code_bytes_max is {}",
                    limits.code_bytes_max
                ));
            }
            Payload::CodeSectionStart { size, .. } => code_bytes = u64::from(size),
            Payload::CustomSection(reader) if reader.name() == MANIFEST_SECTION => {
                if manifest.is_some() {
                    return Err("it has two sections willow.app".to_owned());
                }
                manifest = Some(parse_manifest(reader.data())?);
            }
            _ => {}
        }
    }
    let mut manifest = manifest.ok_or("it has no section willow.app: it was not built as an SSD App")?;
    if manifest.settles && !limits.trusted {
        return Err("it declares settles=1, which is for apps that the host's kernel installs".to_owned());
    }
    let Some(memory) = memory.filter(|_| exports_memory) else {
        return Err("it does not export a memory named memory".to_owned());
    };
    let needed = memory.saturating_add(tables);
    if needed > limits.data_bytes_max {
        let of_tables = if tables > 0 { format!(", {tables} of them for its tables,") } else { String::new() };
        return Err(format!(
            "it needs {needed} bytes of memory{of_tables} on each SPU, the preset's limit app_data_bytes_max is {}",
            limits.data_bytes_max
        ));
    }
    manifest.footprint = Footprint { data_bytes: grows.min(limits.data_bytes_max), code_bytes };
    for (name, index, parameters, results) in
        [("start", start, "ii", &["i"][..]), ("complete", complete, "iI", &["", "i"])]
    {
        let index = index.ok_or_else(|| format!("it does not export a function named {name}"))?;
        let signature = functions.get(index as usize).and_then(|signature| signatures.get(*signature as usize));
        let Some(Some((has, gives))) = signature else { return Err(format!("its export {name} has no signature")) };
        if has != parameters || !results.contains(&gives.as_str()) {
            let results = results.join(") or (");
            return Err(format!("its export {name} is ({has})->({gives}), it must be ({parameters})->({results})"));
        }
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use willow_gate::table::{Kind, Section, When, Work};

    #[test]
    fn imports_are_checked_against_the_table() {
        let import = |name, who| Import {
            name,
            parameters: &[("address", Kind::Address), ("to", Kind::Written)],
            result: Some(Kind::I32),
            meaning: &[],
            section: Section::Rest,
            since: 1,
            who,
            when: When::Started,
            work: Work::Call,
            errors: &[],
            local: true,
        };
        let table = [import("all", Who::Any), import("some", Who::Trusted)];
        let of = |module, name, parameters: &str, trusted| {
            check_import(&table, (module, name), &(parameters.to_owned(), "i".to_owned()), trusted)
        };
        assert_eq!(of("willow", "all", "Ii", false), Ok(()));
        assert_eq!(of("willow", "some", "Ii", true), Ok(()));
        let refused = |checked: Result<(), String>, why: &str| {
            assert!(checked.as_ref().is_err_and(|text| text.contains(why)), "{checked:?}");
        };
        refused(of("env", "all", "Ii", true), "env.all, which SPU-OS does not offer");
        refused(of("willow", "none", "Ii", true), "willow.none, which SPU-OS does not offer");
        refused(of("willow", "all", "ii", true), "as (ii)->(i), its signature is (Ii)->(i)");
        refused(of("willow", "some", "Ii", false), "for apps that the host's kernel installs");
    }
}
