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
    check("sdk/rust/src/imports/linked.rs", &interface::linked());
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

/// What version 1 had for apps, as its last modules import it: i for i32, I for i64, the result behind the colon.
const OF_VERSION_1: [(&str, &str); 23] = [
    ("request_info", "ii:"),
    ("receive_bytes", "iii:i"),
    ("receive_bytes_at", "iiii:i"),
    ("respond", "iii:"),
    ("dma", "iiIiIii:i"),
    ("dma_strided", "iiIIiIIiii:i"),
    ("compare", "iIIii:i"),
    ("checksum", "iiIiii:i"),
    ("checksum_value", ":i"),
    ("rpc_start", "iiiiiii:i"),
    ("rpc_append", "iiIi:i"),
    ("rpc_finish", "ii:i"),
    ("app_number", "ii:i"),
    ("region", "iIi:I"),
    ("region_bytes", "i:I"),
    ("region_free", "ii:i"),
    ("namespace", "ii:i"),
    ("flush", "i:i"),
    ("spu_id", ":i"),
    ("spu_count", ":i"),
    ("time_ns", ":I"),
    ("print", "ii:"),
    ("count", "iI:"),
];

/// What version 2 has brought. A new import is added here when there are devices that have it; none is ever changed or taken out.
const OF_VERSION_2: [(&str, &str); 12] = [
    ("upcall_start", "iiii:i"),
    ("subscribers", "iiii:i"),
    ("literals_load", "iii:i"),
    ("literals_find", "iiiIiiiii:i"),
    ("keys_find", "iiIiiiiii:i"),
    ("multiply_add", "iiIiiii:i"),
    ("fft", "iiiiiii:i"),
    ("decompress", "iiiiiiii:i"),
    ("literals_free", "i:i"),
    ("sleep", "Ii:i"),
    ("cancel", "ii:i"),
    ("background", "iI:i"),
];

/// Numbers that modules have compiled in.
const NUMBERS: [(&str, i64, i64); 20] = [
    ("PORT_LOCAL", gate::abi::PORT_LOCAL as i64, 0),
    ("PORT_NV", gate::abi::PORT_NV as i64, 1),
    ("PORT_NETWORK", gate::abi::PORT_NETWORK as i64, 2),
    ("PORT_ZERO", gate::abi::PORT_ZERO as i64, 3),
    ("PORT_NOTHING", gate::abi::PORT_NOTHING as i64, 4),
    ("PORT_PARK", gate::abi::PORT_PARK as i64, 0x100),
    ("PORT_NOW", gate::abi::PORT_NOW as i64, 0x200),
    ("PORT_SPU", gate::abi::PORT_SPU as i64, 0x1_0000),
    ("DONE", gate::abi::DONE as i64, 0),
    ("PENDING", gate::abi::PENDING as i64, 1),
    ("DIFFERS", gate::abi::DIFFERS as i64, 2),
    ("ERROR_ARGUMENT", gate::abi::ERROR_ARGUMENT as i64, -2),
    ("ERROR_RANGE", gate::abi::ERROR_RANGE as i64, -3),
    ("ERROR_PERMISSION", gate::abi::ERROR_PERMISSION as i64, -4),
    ("ERROR_MEDIA", gate::abi::ERROR_MEDIA as i64, -5),
    ("ERROR_FULL", gate::abi::ERROR_FULL as i64, -6),
    ("ERROR_REFUSED", gate::abi::ERROR_REFUSED as i64, -7),
    ("ERROR_ENDED", gate::abi::ERROR_ENDED as i64, -8),
    ("ERROR_NOT_FOUND", gate::abi::ERROR_NOT_FOUND as i64, -9),
    ("ERROR_CANCELLED", gate::abi::ERROR_CANCELLED as i64, -10),
];

#[test]
fn what_modules_were_built_with_is_there_unchanged() {
    for (since, frozen) in [(1, &OF_VERSION_1[..]), (2, &OF_VERSION_2[..])] {
        for (name, signature) in frozen {
            let import = gate::table::find("willow", name).unwrap_or_else(|| panic!("{name} is gone"));
            let parameters: String = import.parameters.iter().map(|(_, kind)| kind.letter()).collect();
            let result: String = import.result.iter().map(|kind| kind.letter()).collect();
            assert_eq!(format!("{parameters}:{result}"), *signature, "{name}");
            assert_eq!(import.since, since, "{name}");
            assert_eq!(import.who, gate::table::Who::Any, "{name} is everybody's");
        }
    }
    let told = IMPORTS.iter().filter(|import| import.section.module() == "willow").count();
    assert_eq!(told, OF_VERSION_1.len() + OF_VERSION_2.len(), "an import is in neither list");
    for (name, found, wanted) in NUMBERS {
        assert_eq!(found, wanted, "{name}");
    }
}
