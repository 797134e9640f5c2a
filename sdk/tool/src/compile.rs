//! `willow app build`, and the native tests of apps in C.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use serde::Deserialize;

use crate::check::check_module;
use crate::{ToolError, file_error};

const WASM_TARGET: &str = "wasm32-unknown-unknown";
/// Versions of clang and wasm-ld that are tried by name, newest first; all of them compile to WebAssembly.
const LLVM_VERSIONS: [u32; 8] = [22, 21, 20, 19, 18, 17, 16, 15];
const INSTALL_RUST: &str = "get it from https://rustup.rs";
const INSTALL_TARGET: &str = "run `rustup target add wasm32-unknown-unknown`";
const INSTALL_LLVM: &str = "on Debian or Ubuntu run `apt install clang lld`, or set CLANG and WASM_LD to yours";
const INSTALL_BINARYEN: &str = "on Debian or Ubuntu run `apt install binaryen`, or set WASM_OPT to yours";
const INSTALL_CC: &str = "on Debian or Ubuntu run `apt install gcc`, or set CC to yours";

/// The features of WebAssembly that C is compiled to; all runtimes and all versions of Binaryen have them.
const C_FLAGS: [&str; 12] = [
    "--target=wasm32",
    "-mcpu=mvp",
    "-mbulk-memory",
    "-mmutable-globals",
    "-msign-ext",
    "-O2",
    "-std=c11",
    "-ffreestanding",
    "-nostdlib",
    "-fno-builtin",
    "-Wall",
    "-Wextra",
];
/// How much larger stacks are without optimisation: each value has a place of its own, and all that a thread has is kept while it waits.
const DEBUG_STACKS: u64 = 4;
const BINARYEN_FEATURES: [&str; 3] = ["--enable-bulk-memory", "--enable-mutable-globals", "--enable-sign-ext"];

/// willow.toml: an app in C.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Project {
    /// The app's name: the module is called so.
    name: String,
    /// C files of the app, from the project's folder on.
    sources: Vec<PathBuf>,
    /// C files of the native test.
    #[serde(default)]
    tests: Vec<PathBuf>,
    /// Where willow.h and willow.c are.
    #[serde(default = "default_sdk")]
    sdk: PathBuf,
    /// Requests that are handled at the same time.
    #[serde(default = "default_threads")]
    threads: u32,
    /// Stack of each.
    #[serde(default = "default_stack_bytes")]
    stack_bytes: u32,
}

fn default_sdk() -> PathBuf {
    "sdk".into()
}
fn default_threads() -> u32 {
    8
}
fn default_stack_bytes() -> u32 {
    4096
}

impl Project {
    fn read(folder: &Path) -> Result<Project, ToolError> {
        let path = folder.join("willow.toml");
        let text = fs::read_to_string(&path).map_err(file_error("read", &path))?;
        let wrong = |reason: String| ToolError::Project { path: path.clone(), reason };
        let project: Project = toml::from_str(&text).map_err(|error| wrong(error.to_string().trim().to_string()))?;
        if project.name.is_empty() || project.name.contains(['/', '\\', '.']) {
            return Err(wrong(format!("{:?} cannot be an app's name", project.name)));
        }
        if project.sources.is_empty() {
            return Err(wrong("sources is empty".into()));
        }
        if !(1..=255).contains(&project.threads) {
            return Err(wrong("threads is 1 to 255".into()));
        }
        if project.stack_bytes < 512 || !project.stack_bytes.is_multiple_of(16) {
            return Err(wrong("stack_bytes is a multiple of 16, at least 512".into()));
        }
        Ok(project)
    }

    /// `times`: how much larger stacks are than the project says.
    fn definitions(&self, times: u64) -> [String; 2] {
        let stack_bytes = u64::from(self.stack_bytes) * times;
        [format!("-DWILLOW_THREADS={}", self.threads), format!("-DWILLOW_STACK_BYTES={stack_bytes}")]
    }
}

/// Builds the app of a folder; returns the module's path. What compilers say goes to standard error. The module names its functions; with
/// `debug`, it has DWARF too, for a debugger, and the compiler optimises less; in C it does not at all, and stacks are larger.
pub fn build(folder: &Path, debug: bool) -> Result<PathBuf, ToolError> {
    let module = if folder.join("willow.toml").is_file() {
        build_c(folder, debug)?
    } else if folder.join("Cargo.toml").is_file() {
        build_rust(folder, debug)?
    } else {
        return Err(ToolError::NoApp(folder.to_path_buf()));
    };
    check_module(&module)?;
    module.canonicalize().map_err(file_error("find", &module))
}

/// Runs the native tests of the app of a folder.
pub fn test(folder: &Path) -> Result<(), ToolError> {
    if folder.join("willow.toml").is_file() {
        return test_c(folder);
    }
    if !folder.join("Cargo.toml").is_file() {
        return Err(ToolError::NoApp(folder.to_path_buf()));
    }
    let target = folder.join("target");
    let mut command = cargo(folder);
    run(command.arg("test").arg("--target-dir").arg(&target), "cargo", INSTALL_RUST)
}

/// Runs a program; its standard output goes to standard error, since the module's path is all that ours shows.
fn run(command: &mut Command, program: &'static str, install: &'static str) -> Result<(), ToolError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ToolError::Missing { program, install });
        }
        Err(error) => return Err(ToolError::File { action: "run", path: name.into(), error }),
    };
    if let Some(mut output) = child.stdout.take() {
        std::io::copy(&mut output, &mut std::io::stderr())
            .map_err(file_error("read the output of", Path::new(&name)))?;
    }
    let status = child.wait().map_err(file_error("wait for", Path::new(&name)))?;
    if status.success() { Ok(()) } else { Err(ToolError::Failed(name)) }
}

/// cargo in a project's folder, untouched by a cargo that this runs under.
fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder);
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WORKSPACE_WRAPPER"] {
        command.env_remove(name);
    }
    command
}

fn build_rust(folder: &Path, debug: bool) -> Result<PathBuf, ToolError> {
    let library = library_name(folder)?;
    check_rust_target(folder)?;
    let target = folder.canonicalize().map_err(file_error("find", folder))?.join("target");
    let mut command = cargo(folder);
    command.args(["build", "--release", "--lib", "--target", WASM_TARGET, "--target-dir"]).arg(&target);
    // Whatever the project says: what ends the app is to be named.
    let settings: &[&str] =
        if debug { &["strip=\"none\"", "debug=2", "opt-level=1"] } else { &["strip=\"debuginfo\""] };
    for setting in settings {
        command.args(["--config", &format!("profile.release.{setting}")]);
    }
    run(&mut command, "cargo", INSTALL_RUST)?;
    let built = target.join(WASM_TARGET).join("release").join(format!("{}.wasm", library.replace('-', "_")));
    if !built.is_file() {
        return Err(ToolError::Project {
            path: folder.join("Cargo.toml"),
            reason: "no module was built: [lib] needs crate-type = [\"cdylib\", \"rlib\"]".into(),
        });
    }
    let module = output_folder(folder)?.join(format!("{library}.wasm"));
    fs::copy(&built, &module).map_err(file_error("write", &module))?;
    Ok(module)
}

/// The name of the package, or of its library where that has one of its own.
fn library_name(folder: &Path) -> Result<String, ToolError> {
    let path = folder.join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(file_error("read", &path))?;
    let wrong = |reason: String| ToolError::Project { path: path.clone(), reason };
    let manifest: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let name = |table: &str| Some(manifest.get(table)?.get("name")?.as_str()?.to_string());
    name("lib").or_else(|| name("package")).ok_or_else(|| wrong("it has no package with a name".into()))
}

/// What rustc says without the target's library does not tell what to do.
fn check_rust_target(folder: &Path) -> Result<(), ToolError> {
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(folder).args(["--print", "target-libdir", "--target", WASM_TARGET]);
    let Ok(output) = command.output() else {
        return Err(ToolError::Missing { program: "rustc", install: INSTALL_RUST });
    };
    if Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir() {
        return Ok(());
    }
    Err(ToolError::Missing { program: "the Rust target wasm32-unknown-unknown", install: INSTALL_TARGET })
}

fn output_folder(folder: &Path) -> Result<PathBuf, ToolError> {
    let build = folder.join("build");
    fs::create_dir_all(&build).map_err(file_error("make the folder", &build))?;
    Ok(build)
}

/// The first of some programs that runs; the variable, where it is set, alone.
fn find(variable: &str, names: &[String], program: &'static str, install: &'static str) -> Result<OsString, ToolError> {
    let given = env::var_os(variable).filter(|value| !value.is_empty());
    let candidates: Vec<OsString> = match given {
        Some(given) => vec![given],
        None => names.iter().map(OsString::from).collect(),
    };
    let runs = |name: &OsStr| {
        let mut command = Command::new(name);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    candidates.into_iter().find(|name| runs(name)).ok_or(ToolError::Missing { program, install })
}

/// `name` with and without a version.
fn versions(name: &str) -> Vec<String> {
    LLVM_VERSIONS.iter().map(|version| format!("{name}-{version}")).chain([name.to_string()]).collect()
}

fn build_c(folder: &Path, debug: bool) -> Result<PathBuf, ToolError> {
    let project = Project::read(folder)?;
    let clang = find("CLANG", &versions("clang"), "clang", INSTALL_LLVM)?;
    let wasm_ld = find("WASM_LD", &versions("wasm-ld"), "wasm-ld (package lld)", INSTALL_LLVM)?;
    let wasm_opt = find("WASM_OPT", &["wasm-opt".to_string()], "wasm-opt (package binaryen)", INSTALL_BINARYEN)?;
    let output = output_folder(folder)?;
    let objects = output.join("objects");
    fs::create_dir_all(&objects).map_err(file_error("make the folder", &objects))?;
    let sdk = folder.join(&project.sdk);
    let sources = project.sources.iter().map(|source| folder.join(source)).chain([sdk.join("willow.c")]);
    let mut linked = Vec::new();
    for (index, source) in sources.enumerate() {
        let object = objects.join(format!("{index}.o"));
        let mut command = Command::new(&clang);
        // The last level that is named counts.
        let flags: &[&str] = if debug { &["-O0", "-g"] } else { &[] };
        let times = if debug { DEBUG_STACKS } else { 1 };
        command.args(C_FLAGS).args(flags).args(project.definitions(times)).arg("-I").arg(&sdk);
        run(command.arg("-c").arg(&source).arg("-o").arg(&object), "clang", INSTALL_LLVM)?;
        linked.push(object);
    }
    let unresumable = objects.join("linked.wasm");
    let mut command = Command::new(&wasm_ld);
    // The stack outside of threads: `start` and `complete` themselves.
    command.args(["--no-entry", "--stack-first", "-z", if debug { "stack-size=16384" } else { "stack-size=4096" }]);
    command.args(["--gc-sections"]).args(if debug { &[][..] } else { &["--strip-debug"] });
    run(command.args(&linked).arg("-o").arg(&unresumable), "wasm-ld", INSTALL_LLVM)?;
    // Makes handlers resumable. Imports themselves never unwind: willow.c does.
    let module = output.join(format!("{}.wasm", project.name));
    let mut command = Command::new(&wasm_opt);
    // -g: it keeps the names of functions, and moves DWARF's lines and functions along with the code. Locals stay where DWARF says as long as nothing is optimised.
    command.args(BINARYEN_FEATURES).args(["-g", "--pass-arg=asyncify-ignore-imports", "--asyncify"]);
    command.args(if debug { &[][..] } else { &["-O2"] });
    run(command.arg(&unresumable).arg("-o").arg(&module), "wasm-opt", INSTALL_BINARYEN)?;
    Ok(module)
}

fn test_c(folder: &Path) -> Result<(), ToolError> {
    let project = Project::read(folder)?;
    if project.tests.is_empty() {
        return Err(ToolError::Project { path: folder.join("willow.toml"), reason: "tests is empty".into() });
    }
    let mut names = vec!["cc".to_string(), "gcc".to_string()];
    names.extend(versions("clang"));
    let compiler = find("CC", &names, "a C compiler", INSTALL_CC)?;
    let sdk = folder.join(&project.sdk);
    let program = output_folder(folder)?.join("test");
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-g", "-O1", "-Wall", "-Wextra"]).args(project.definitions(1)).arg("-I").arg(&sdk);
    command.args(project.sources.iter().chain(&project.tests).map(|source| folder.join(source)));
    command.args([sdk.join("willow.c"), sdk.join("willow_test.c")]).arg("-o").arg(&program);
    run(&mut command, "a C compiler", INSTALL_CC)?;
    let program = program.canonicalize().map_err(file_error("find", &program))?;
    run(&mut Command::new(program), "the test", INSTALL_CC)
}
