//! The bindings of the SDKs and the reference are what the table of imports says. `make interface` writes them anew: it compiles this file
//! by itself, since the device does not compile before the SDK's bindings have what is new in the table.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use gate::table::IMPORTS;
use generate as interface;

#[path = "interface/generate.rs"]
mod generate;

#[path = "../gate/src"]
#[allow(dead_code, unused_imports)]
mod gate {
    pub mod abi;
    pub mod table;
}

fn repository() -> PathBuf {
    let device = std::env::var("CARGO_MANIFEST_DIR").expect("the folder of the device");
    Path::new(&device).parent().expect("the repository").to_path_buf()
}

/// Compares a file with what it should be, or writes it.
fn check(path: &str, wanted: &str) {
    let file = repository().join(path);
    if std::env::var_os("WILLOW_REGENERATE").is_some() {
        return fs::write(&file, wanted).expect("a writable file");
    }
    let found = fs::read_to_string(&file).expect("a readable file");
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    let line = differs.unwrap_or(found.lines().count().min(wanted.lines().count())) + 1;
    assert!(
        found == wanted,
        "{path} is not what the table of imports says, from line {line} on; `make interface` writes it anew"
    );
}

#[test]
fn the_rust_bindings_come_from_the_table() {
    check("sdk/rust/src/imports.rs", &interface::rust());
}

#[test]
fn the_c_declarations_come_from_the_table() {
    check("sdk/c/willow_imports.h", &interface::c());
}

#[test]
fn the_reference_comes_from_the_table() {
    let path = "docs/abi.md";
    let mut text = fs::read_to_string(repository().join(path)).expect("a readable file");
    for (section, name) in interface::SECTIONS {
        let (begin, end) = (format!("<!-- imports: {name} -->\n"), "<!-- end of imports -->\n");
        let at = text.find(&begin).unwrap_or_else(|| panic!("{path} has no place for {name}")) + begin.len();
        let until = at + text[at..].find(end).expect("the end of that place");
        text.replace_range(at..until, &interface::reference(*section));
    }
    check(path, &text);
}

#[test]
fn the_sdks_name_the_version() {
    // The macro of C and the tool's check have it as text.
    let version = gate::abi::ABI_VERSION;
    for (path, text) in [
        ("sdk/c/willow.h", format!("WILLOW_MANIFEST(\"abi={version}\"")),
        ("sdk/tool/src/check.rs", format!("b\"abi={version}\\n\"")),
        ("docs/abi.md", format!("(ABI version {version})")),
    ] {
        let found = fs::read_to_string(repository().join(path)).expect("a readable file");
        assert!(found.contains(&text), "{path} has no {text}");
    }
}

#[test]
fn every_import_is_documented_and_named_once() {
    for (number, import) in IMPORTS.iter().enumerate() {
        assert!(!import.meaning.is_empty(), "{} says nothing", import.name);
        assert!(IMPORTS[..number].iter().all(|other| other.name != import.name), "{} is there twice", import.name);
        let waits = import.parameters.iter().any(|(name, _)| *name == "wait");
        assert!(!waits || import.result.is_some(), "{} waits and cannot say so", import.name);
    }
}
