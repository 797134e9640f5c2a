//! Lists the files of the SDKs, which the tool carries inside: a project is complete without this repository.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let tool = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let sdk = tool.parent().ok_or(io::ErrorKind::NotFound)?;
    let root = sdk.parent().ok_or(io::ErrorKind::NotFound)?;
    let mut text = String::new();
    for (constant, folder, extensions) in [
        ("RUST_SDK", sdk.join("rust/src"), &["rs"][..]),
        ("GATE", root.join("device/gate/src"), &["rs"][..]),
        ("C_SDK", sdk.join("c"), &["c", "h"][..]),
    ] {
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files = Vec::new();
        collect(&folder, extensions, &mut files)?;
        files.sort();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "/// Path below the folder, and contents.\npub(crate) const {constant}: &[(&str, &str)] = &["
        );
        for path in files {
            let name = path.strip_prefix(&folder).map_err(io::Error::other)?.to_string_lossy().replace('\\', "/");
            let _ = writeln!(text, "    ({name:?}, include_str!({:?})),", path.to_string_lossy());
        }
        text.push_str("];\n");
    }
    fs::write(out.join("sdk_files.rs"), text)
}

fn collect(folder: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            // Tests of the SDK itself are not for projects.
            if path.file_name().is_none_or(|name| name != "tests") {
                collect(&path, extensions, files)?;
            }
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|known| extension == *known)) {
            files.push(path);
        }
    }
    Ok(())
}
