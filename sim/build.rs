//! Lists the experiments: every file of src/experiments but `mod.rs` is one, so that a new one is a new file and nothing else.

use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("src/experiments");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.extension().is_some_and(|extension| extension == "rs") && name != "mod" {
            names.push(name);
        }
    }
    names.sort();
    let mut text = String::new();
    for name in &names {
        let path = folder.join(name).with_extension("rs");
        text.push_str(&format!("#[path = {path:?}]\nmod {name};\n"));
    }
    text.push_str("/// All of them, in the order of their files' names.\npub static EXPERIMENTS: &[&Experiment] = &[");
    text.push_str(&names.iter().map(|name| format!("&{name}::EXPERIMENT")).collect::<Vec<_>>().join(", "));
    text.push_str("];\n");
    let out = env::var("OUT_DIR").map_err(io::Error::other)?;
    fs::write(Path::new(&out).join("experiments.rs"), text)?;
    println!("cargo::rerun-if-changed=src/experiments");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
