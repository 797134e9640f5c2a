//! Compiles the SSD Apps of this repository to WebAssembly, so that the command carries them inside.
//!
//! What always holds: the apps are built in release mode whatever this build's profile is, in a target folder of their own
//! (cargo's lock on the outer one is held meanwhile), of the versions in Cargo.lock, and untouched by flags and wrappers of this build. What they need
//! for WebAssembly alone is downloaded here, where no other build has done so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Package and the name of the constant that holds it.
const APPS: [(&str, &str); 13] = [
    ("base-io", "BASE_IO_WASM"),
    ("key-value", "KEY_VALUE_WASM"),
    ("direct-io", "DIRECT_IO_WASM"),
    ("atomic-write", "ATOMIC_WRITE_WASM"),
    ("page", "PAGE_WASM"),
    (SEARCH, "SEARCH_WASM"),
    ("atomic-io", "ATOMIC_IO_WASM"),
    ("append", "APPEND_WASM"),
    ("btree", "BTREE_WASM"),
    ("fgrep", "FGREP_WASM"),
    ("caching", "CACHING_WASM"),
    (COLUMNS, "COLUMNS_WASM"),
    ("compute", "COMPUTE_WASM"),
];
/// It goes through many bytes between two imports: by vectors of 128 bits.
const SEARCH: &str = "search";
/// The same.
const COLUMNS: &str = "columns";
const TARGET: &str = "wasm32-unknown-unknown";
/// The stack of a module; an overflow traps, since the stack lies first in memory.
const STACK_BYTES: u32 = 16384;

fn main() {
    if let Err(message) = build() {
        println!("cargo::error={}", message.replace('\n', " / "));
        std::process::exit(1);
    }
}

fn variable(name: &str) -> Result<PathBuf, String> {
    env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo did not set {name}"))
}

fn build() -> Result<(), String> {
    let apps = variable("CARGO_MANIFEST_DIR")?;
    let root = apps.parent().ok_or("the apps folder has no parent")?;
    let out = variable("OUT_DIR")?;
    println!("cargo::rerun-if-changed=build.rs");
    for watched in ["sdk/rust/src", "sdk/rust/Cargo.toml", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }
    for (name, _) in APPS {
        for watched in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", apps.join(name).join("spu").join(watched).display());
        }
    }
    for script in ["page/spu/build.rs", "search/spu/build.rs", "columns/spu/build.rs"] {
        println!("cargo::rerun-if-changed={}", apps.join(script).display());
    }
    for library in ["sdk/flash", "apps/page/ftl", "apps/base-io/ranges"] {
        for watched in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", root.join(library).join(watched).display());
        }
    }
    check_target()?;
    let folder = out.join("spu");
    let (vectors, others): (Vec<&str>, Vec<&str>) =
        APPS.map(|(name, _)| name).into_iter().partition(|name| [SEARCH, COLUMNS].contains(name));
    compile(root, &folder, &others, &[])?;
    // In a folder of its own, so that libraries are not compiled anew each time for the other flags.
    let of_vectors = out.join("spu-simd");
    compile(root, &of_vectors, &vectors, &["-Ctarget-feature=+simd128"])?;
    let mut constants = String::new();
    for (name, constant) in APPS {
        let folder = if vectors.contains(&name) { &of_vectors } else { &folder };
        let built = folder.join(TARGET).join("release").join(format!("{}_spu.wasm", name.replace('-', "_")));
        let kept = out.join(format!("{name}.wasm"));
        fs::copy(&built, &kept).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
        constants += &format!(
            "/// The module of the app `{name}`.\npub static {constant}: &[u8] = include_bytes!({:?});\n",
            kept.to_string_lossy()
        );
    }
    let path = out.join("modules.rs");
    fs::write(&path, constants).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The target's standard library must be there, or what rustc says is hard to understand.
fn check_target() -> Result<(), String> {
    let output = Command::new(variable("RUSTC")?)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .map_err(|error| format!("cannot run rustc: {error}"))?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if output.status.success() && Path::new(&folder).is_dir() {
        return Ok(());
    }
    Err(format!("SSD Apps are compiled for {TARGET}, which is not installed: run `rustup target add {TARGET}`"))
}

fn compile(root: &Path, folder: &Path, names: &[&str], more_flags: &[&str]) -> Result<(), String> {
    let mut command = Command::new(variable("CARGO")?);
    command.current_dir(root).args(["build", "--release", "--locked", "--target", TARGET, "--target-dir"]).arg(folder);
    for name in names {
        command.arg("--package").arg(format!("{name}-spu"));
    }
    for setting in [
        "lto=\"fat\"",
        "codegen-units=1",
        "opt-level=3",
        "panic=\"abort\"",
        "strip=true",
        "debug=false",
        "overflow-checks=false",
        "incremental=false",
    ] {
        command.args(["--config", &format!("profile.release.{setting}")]);
    }
    // What this build was started with (flags, wrappers such as clippy's, profiles) is not for the modules.
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let of_this_build = text.starts_with("CARGO_PROFILE_")
            || text.starts_with("CARGO_TARGET_WASM32")
            || text.starts_with("CARGO_FEATURE_")
            || text.starts_with("CARGO_CFG_");
        let flag = ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"];
        if of_this_build || flag.contains(&text) || text.starts_with("CARGO_BUILD_RUST") {
            command.env_remove(&name);
        }
    }
    let mut flags = vec!["-Clink-arg=--stack-first".to_string(), format!("-Clink-arg=-zstack-size={STACK_BYTES}")];
    flags.extend(more_flags.iter().map(ToString::to_string));
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    Err("the SSD Apps did not compile; what cargo said is above".into())
}
