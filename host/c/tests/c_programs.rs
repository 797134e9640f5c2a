//! libwillow from C: its header as each compiler reads it, the test program with the shared and the static library on a real ext4 on
//! the device, and the example of the documents. Skipped, with a line that says why, where there is no compiler, or as the stage says.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use willow_tests::daemon::Daemon;
use willow_tests::scratch::Scratch;
use willow_tests::stage::{By, Stage, has, is_frozen, or_skip, skip, tool, within_seconds};

fn own(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo puts the libraries.
fn libraries() -> PathBuf {
    let this = std::env::current_exe().expect("this program");
    let folder = this.parent().expect("the folder of the build").to_path_buf();
    assert!(folder.join("libwillow.so").exists() && folder.join("libwillow.a").exists(), "{}", folder.display());
    folder
}

fn compilers() -> Vec<&'static str> {
    ["gcc", "clang", "clang-14", "clang-19"].into_iter().filter(|compiler| has(compiler)).collect()
}

fn compile(compiler: &str, source: &str, into: &Path, is_static: bool) {
    let libraries = libraries().display().to_string();
    let (out, include, source) = (into.display().to_string(), format!("-I{}", own("")), own(source));
    let mut arguments =
        vec!["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", &include, "-o", &out, &source];
    let (archive, search, run) =
        (format!("{libraries}/libwillow.a"), format!("-L{libraries}"), format!("-Wl,-rpath,{libraries}"));
    if is_static {
        arguments.extend([archive.as_str(), "-lpthread", "-ldl", "-lm"]);
    } else {
        // As DT_RPATH, which goes before LD_LIBRARY_PATH: cargo puts folders there in which a library of another build may be left.
        arguments.extend([search.as_str(), &run, "-Wl,--disable-new-dtags", "-lwillow", "-lpthread"]);
    }
    tool(compiler, &arguments).expect("it compiles");
}

#[test]
fn c_programs_read_and_write_directly() {
    let test = "c_programs_read_and_write_directly";
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    if compilers().is_empty() {
        return skip(test, "there is no C compiler");
    }
    for (index, compiler) in compilers().into_iter().enumerate() {
        // One is enough for the archive, which is large.
        for is_static in [false, true].into_iter().take(2 - index.min(1)) {
            let program = stage.folder.join(format!("{compiler}-{is_static}"));
            compile(compiler, "tests/program.c", &program, is_static);
            let file = stage.on_it("file");
            let output = Command::new(&program)
                .args([stage.path("device"), stage.path("agent"), file.display().to_string()])
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler}, static {is_static}: {said}");
            // The child ended without giving back what it had: the agent does that when it sees it.
            within_seconds("the file thaws", || !is_frozen(&file));
            std::fs::remove_file(&file).expect("removed");
        }
    }
    let example = stage.folder.join("example");
    compile(compilers()[0], "examples/checksum.c", &example, false);
    let file = stage.on_it("summed");
    std::fs::write(&file, vec![3; 300_000]).expect("written");
    let output = Command::new(&example)
        .args([stage.path("device"), stage.path("agent"), file.display().to_string()])
        .output()
        .expect("it runs");
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(said, "900000 directly\n", "{error}");
}

#[test]
fn c_programs_reach_a_device_on_a_network() {
    let test = "c_programs_reach_a_device_on_a_network";
    let Some(compiler) = compilers().first().copied() else { return skip(test, "there is no C compiler") };
    for by in [By::Network, By::Tls] {
        let Some(stage) = or_skip(test, Stage::ext4_by(by)) else { return };
        let (program, file) = (stage.folder.join("program"), stage.on_it("file"));
        compile(compiler, "tests/program.c", &program, false);
        let arguments = ["-".to_owned(), stage.path("agent"), file.display().to_string()];
        let output = Command::new(&program).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{by:?}: {}", String::from_utf8_lossy(&output.stderr));
        within_seconds("the file thaws", || !is_frozen(&file));
    }
}

#[test]
fn c_programs_append_records() {
    let test = "c_programs_append_records";
    let Some(compiler) = compilers().first().copied() else { return skip(test, "there is no C compiler") };
    for by in [By::Memory, By::Network] {
        let Some(stage) = or_skip(test, Stage::ext4_by(by)) else { return };
        let (program, file) = (stage.folder.join("log"), stage.on_it("log"));
        compile(compiler, "tests/log.c", &program, false);
        let device = if by == By::Memory { stage.path("device") } else { "-".to_owned() };
        std::fs::write(&file, b"before\n").expect("written");
        let arguments = [device, stage.path("agent"), file.display().to_string()];
        let mut running = Command::new(&program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let running = running.as_mut().expect("it runs");
        let mut line = String::new();
        let mut output = BufReader::new(running.stdout.take().expect("its output"));
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "appended\n", "{by:?}");
        // The drive has the file's length; who opens the file finds all of it.
        assert!(is_frozen(&file), "{by:?}");
        let found = std::fs::read_to_string(&file).expect("text");
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!((lines.len(), lines[0]), (1 + 4 * 50, "before"), "{by:?}");
        drop(running.stdin.take());
        assert!(running.wait().expect("an end").success(), "{by:?}");
        within_seconds("the file thaws", || !is_frozen(&file));
        std::fs::write(&file, b"after").expect("it is the file system's own");
    }
}

#[test]
fn c_programs_compute_in_the_drive() {
    let test = "c_programs_compute_in_the_drive";
    let Some(compiler) = compilers().first().copied() else { return skip(test, "there is no C compiler") };
    let Some(stage) = or_skip(test, Stage::ext4()) else { return };
    let program = stage.folder.join("compute");
    compile(compiler, "tests/compute.c", &program, false);
    let folder = stage.on_it("").display().to_string();
    assert_eq!(tool(&program.display().to_string(), &[&stage.path("agent"), &folder]).as_deref(), Ok("computed"));
}

#[test]
fn c_programs_use_files_through_their_caches() {
    let test = "c_programs_use_files_through_their_caches";
    let Some(compiler) = compilers().first().copied() else { return skip(test, "there is no C compiler") };
    for by in [By::Memory, By::Network] {
        let Some(stage) = or_skip(test, Stage::ext4_by(by)) else { return };
        let (program, file) = (stage.folder.join("cached"), stage.folder.join("slow"));
        compile(compiler, "tests/cached.c", &program, false);
        let device = if by == By::Memory { stage.path("device") } else { "-".to_owned() };
        std::fs::write(&file, [b's'; 300_000]).expect("written");
        let run = |what: &str| {
            let arguments = [&device, &stage.path("agent"), &file.display().to_string(), what];
            let output = Command::new(&program).args(arguments).output().expect("it runs");
            assert!(output.status.success(), "{by:?} {what}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let part = |at: usize, bytes: usize| std::fs::read(&file).expect("the file")[at..at + bytes].to_vec();
        // It is in the file when it is answered; the program itself sees that it is not yet, where it is written back.
        run("through");
        assert_eq!(part(4000, 200), [b't'; 200], "{by:?}");
        run("back");
        within_seconds("the agent writes it back", || part(4100, 200_000) == [b'b'; 200_000]);
        assert_eq!((part(4000, 100), part(204_100, 1)), (vec![b't'; 100], vec![b's']), "{by:?}");
    }
}

#[test]
fn c_programs_store_pairs() {
    let test = "c_programs_store_pairs";
    let Some(compiler) = compilers().first().copied() else { return skip(test, "there is no C compiler") };
    let scratch = Scratch::new("kv").expect("a temporary folder");
    let (program, socket) = (scratch.path().join("program"), scratch.path().join("device").display().to_string());
    compile(compiler, "tests/kv.c", &program, false);
    let mut daemon = Daemon::start(&["--size", "16M", "--kv-size", "16M", "--spus", "3", "--socket", &socket]);
    let run = |what: &str| {
        let output = Command::new(&program).args([&socket, what]).output().expect("it runs");
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("use");
    daemon.kill();
    daemon.restart();
    run("survived");
    assert!(daemon.stop().success());
}

/// Names of the functions that a library of this machine exports (ELF, dynamic symbols).
fn exported(library: &[u8]) -> BTreeSet<String> {
    let number = |at: usize, bytes: usize| {
        library[at..at + bytes].iter().rev().fold(0, |number: usize, byte| number << 8 | usize::from(*byte))
    };
    assert_eq!((&library[..4], library[4], library[5]), (&b"\x7fELF"[..], 2, 1), "64 bits, little-endian");
    let (headers, header_bytes, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    // Of a section: type, offset, bytes, the section of its names.
    let section = |index: usize| {
        let at = headers + index * header_bytes;
        (number(at + 4, 4), number(at + 0x18, 8), number(at + 0x20, 8), number(at + 0x28, 4))
    };
    const DYNAMIC_SYMBOLS: usize = 11;
    const SYMBOL_BYTES: usize = 24;
    const FUNCTION: u8 = 2;
    let (_, symbols, bytes, names) = (0..count).map(section).find(|of| of.0 == DYNAMIC_SYMBOLS).expect("it exports");
    let names = section(names).1;
    let functions = (symbols..symbols + bytes).step_by(SYMBOL_BYTES).filter(|at| {
        let is_here = number(at + 6, 2) != 0;
        is_here && library[at + 4] & 0xf == FUNCTION
    });
    let name = |at: usize| {
        let from = names + number(at, 4);
        let text = library[from..].split(|byte| *byte == 0).next().expect("it ends");
        String::from_utf8_lossy(text).into_owned()
    };
    functions.map(name).collect()
}

#[test]
fn the_header_declares_what_the_library_has() {
    let header = std::fs::read_to_string(own("libwillow.h")).expect("the header");
    let library = std::fs::read(libraries().join("libwillow.so")).expect("the library");
    let code = header.lines().filter(|line| !line.starts_with([' ', '/', '*', '#']));
    let names: BTreeSet<String> = code
        .filter_map(|line| {
            let before = line.split_once('(')?.0;
            before.rsplit([' ', '*']).next().filter(|name| name.starts_with("willow_")).map(str::to_owned)
        })
        .collect();
    assert!(names.len() >= 32, "{names:?}");
    assert_eq!(names, exported(&library), "what the header declares, and what the library exports");
}
