//! Looks at a module before it is handed out: what SPU-OS would refuse is better said by the build.

use std::path::Path;

use wasmparser::{ExternalKind, Parser, Payload};

use crate::{ToolError, file_error};

/// Checks that a module has the exports and the section of docs/abi.md and imports from `willow`, or, an FTL, from `willow_flash`, alone.
pub fn check_module(path: &Path) -> Result<(), ToolError> {
    let bytes = std::fs::read(path).map_err(file_error("read", path))?;
    check(&bytes).map_err(|reason| ToolError::Module { path: path.to_path_buf(), reason })
}

fn check(bytes: &[u8]) -> Result<(), String> {
    let mut exports = Vec::new();
    let mut manifest = None;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|error| format!("it is no WebAssembly: {error}"))? {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(|error| error.to_string())?;
                    if !["willow", "willow_flash"].contains(&import.module) {
                        return Err(format!(
                            "it imports {}.{}, and apps can import from the modules willow and willow_flash alone: remove what needs it",
                            import.module, import.name
                        ));
                    }
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(|error| error.to_string())?;
                    exports.push((export.name.to_string(), export.kind));
                }
            }
            Payload::CustomSection(section) if section.name() == "willow.app" => manifest = Some(section.data()),
            _ => {}
        }
    }
    for (name, kind) in
        [("memory", ExternalKind::Memory), ("start", ExternalKind::Func), ("complete", ExternalKind::Func)]
    {
        if !exports.iter().any(|(exported, of_kind)| exported == name && *of_kind == kind) {
            return Err(format!("it does not export {name}: app! (Rust) or WILLOW_APP (C) makes the exports"));
        }
    }
    match manifest {
        Some(manifest) if manifest.starts_with(b"abi=2\n") => Ok(()),
        Some(_) => Err("its section willow.app is not of ABI version 2: it was built with another SDK".into()),
        None => Err("it has no section willow.app: app! (Rust) or WILLOW_APP (C) makes it".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn says_what_is_wrong() {
        assert!(check(b"text").is_err_and(|reason| reason.contains("no WebAssembly")));
        assert!(check(b"\0asm\x01\0\0\0").is_err_and(|reason| reason.contains("export memory")));
        // (module (import "env" "f" (func)))
        let foreign = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x02\x09\x01\x03env\x01f\0\0";
        assert!(check(foreign).is_err_and(|reason| reason.contains("env.f")));
    }
}
