//! `willow app new`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Language, ToolError, file_error};

include!(concat!(env!("OUT_DIR"), "/sdk_files.rs"));

/// Longest name of an app (docs/abi.md).
const NAME_BYTES_MAX: usize = 31;

/// Names that are an app's in form, but lead nowhere.
const TAKEN: [&str; 4] = ["base-io", "key-value", "willow-sdk", "willow-gate"];

/// Names that cargo does not take for a package.
const RUST_WORDS: [&str; 43] = [
    "abstract", "alloc", "as", "async", "await", "become", "box", "break", "const", "continue", "core", "crate", "do",
    "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "priv", "pub", "ref", "return", "self", "static", "std", "struct", "super", "test",
    "trait",
];
const MORE_RUST_WORDS: [&str; 11] =
    ["true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield"];

const RUST_FILES: [(&str, &str); 8] = [
    ("Cargo.toml", include_str!("../templates/rust/Cargo.toml.template")),
    (".cargo/config.toml", include_str!("../templates/rust/config.toml.template")),
    (".gitignore", "/target\n/build\n"),
    ("README.md", include_str!("../templates/rust/README.md.template")),
    ("src/lib.rs", include_str!("../templates/rust/lib.rs.template")),
    ("tests/count.rs", include_str!("../templates/rust/count.rs.template")),
    ("sdk/willow-sdk/Cargo.toml", include_str!("../templates/rust/sdk.Cargo.toml.template")),
    ("sdk/willow-gate/Cargo.toml", include_str!("../templates/rust/gate.Cargo.toml.template")),
];

const C_FILES: [(&str, &str); 5] = [
    ("willow.toml", include_str!("../templates/c/willow.toml.template")),
    (".gitignore", "/build\n"),
    ("README.md", include_str!("../templates/c/README.md.template")),
    ("src/app.c", include_str!("../templates/c/app.c.template")),
    ("tests/app_test.c", include_str!("../templates/c/app_test.c.template")),
];
/// Run by `sh test`; the only file that is meant to be run.
const C_TEST_SCRIPT: &str = include_str!("../templates/c/test.template");

/// Makes the app `name` in a new folder of that name below `parent`; returns the folder.
pub fn create(name: &str, language: Language, parent: &Path) -> Result<PathBuf, ToolError> {
    check_name(name, language)?;
    let folder = parent.join(name);
    match fs::create_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(ToolError::Exists(folder)),
        result => result.map_err(file_error("make the folder", &folder))?,
    }
    let version = env!("CARGO_PKG_VERSION");
    let crate_name = name.replace('-', "_");
    let fill = |text: &str| {
        text.replace("__NAME__", name).replace("__CRATE__", &crate_name).replace("__SDK_VERSION__", version)
    };
    let (files, sdks) = match language {
        Language::Rust => (&RUST_FILES[..], &[(RUST_SDK, "sdk/willow-sdk/src"), (GATE, "sdk/willow-gate/src")][..]),
        Language::C => (&C_FILES[..], &[(C_SDK, "sdk")][..]),
    };
    for (path, text) in files {
        write(&folder.join(path), &fill(text))?;
    }
    if language == Language::C {
        write(&folder.join("test"), C_TEST_SCRIPT)?;
    }
    for (sdk_files, sdk_folder) in sdks {
        for (path, text) in *sdk_files {
            write(&folder.join(sdk_folder).join(path), text)?;
        }
    }
    write(&folder.join("sdk/VERSION"), &format!("willow SDK {version}, ABI 1\n"))?;
    Ok(folder)
}

fn write(path: &Path, text: &str) -> Result<(), ToolError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(file_error("make the folder", folder))?;
    }
    fs::write(path, text).map_err(file_error("write", path))
}

fn check_name(name: &str, language: Language) -> Result<(), ToolError> {
    let refuse = |reason| Err(ToolError::Name { name: name.to_string(), reason });
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return refuse("it has 1 to 31 characters");
    }
    if !name.starts_with(|letter: char| letter.is_ascii_lowercase()) {
        return refuse("it begins with a letter from a to z");
    }
    if !name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-') {
        return refuse("it is made of a to z, 0 to 9 and -");
    }
    if TAKEN.contains(&name) {
        return refuse("it belongs to Willow itself");
    }
    if language == Language::Rust && (RUST_WORDS.contains(&name) || MORE_RUST_WORDS.contains(&name)) {
        return refuse("it is a word of Rust");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = "a".repeat(32);
        for bad in ["", "A", "1a", "-a", "a_b", "a/b", "../a", "ä", "base-io", long.as_str()] {
            assert!(matches!(check_name(bad, Language::C), Err(ToolError::Name { .. })), "{bad}");
        }
        assert!(check_name("async", Language::Rust).is_err());
        for good in ["a", "a1", "byte-count", "async", &long[..31]] {
            assert!(check_name(good, Language::C).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_sdks_are_inside() {
        for (files, wanted) in [
            (RUST_SDK, "lib.rs"),
            (RUST_SDK, "testing/host.rs"),
            (GATE, "charge.rs"),
            (C_SDK, "willow.h"),
            (C_SDK, "willow_flash.h"),
        ] {
            assert!(files.iter().any(|(path, text)| *path == wanted && !text.is_empty()), "{wanted}");
        }
    }
}
