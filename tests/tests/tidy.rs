//! What is agreed on about the repository's text, checked: sizes of files, headers, no unfinished places, no unexplained
//! `unsafe`, no name of a machine or of a package registry.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Most lines of a source file, its unit tests not counted: what is longer has two jobs.
const SOURCE_LINES_MAX: usize = 600;
/// Most bytes of any file but the lock file: nothing generated, nothing binary.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// How many lines above an `unsafe` its reason may begin.
const SAFETY_LINES_MAX: usize = 12;

/// Folders that hold no text of the project.
const OTHER_FOLDERS: [&str; 6] = [".git", "target", "bin", "data", "corpus", "artifacts"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

/// All files of the project, with their text.
fn files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let entry = entry.expect("a readable entry");
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().expect("a kind of file");
            if kind.is_dir() {
                if !OTHER_FOLDERS.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if kind.is_file() {
                let bytes = fs::read(&path).expect("a readable file");
                let short = path.strip_prefix(root()).expect("inside the repository").to_path_buf();
                if let Ok(text) = String::from_utf8(bytes) {
                    found.push((short, text));
                }
            }
        }
    }
    found.sort();
    assert!(found.len() > 50, "the walk finds the repository's files");
    found
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

fn is_c(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "c" || extension == "h")
}

/// This file names what it forbids.
fn is_this(path: &Path) -> bool {
    path.ends_with("tests/tests/tidy.rs")
}

fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn files_are_of_a_size_to_be_read() {
    let mut complaints = Vec::new();
    for (path, text) in files() {
        let name = path.display();
        if path.ends_with("Cargo.lock") {
            continue;
        }
        if text.len() as u64 > FILE_BYTES_MAX {
            complaints.push(format!("{name}: {} bytes, more than {FILE_BYTES_MAX}", text.len()));
        }
        if is_rust(&path) || is_c(&path) {
            let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
            if lines > SOURCE_LINES_MAX {
                complaints.push(format!("{name}: {lines} lines, more than {SOURCE_LINES_MAX}: split it by jobs"));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn modules_say_what_they_are_for() {
    let silent = files().into_iter().filter(|(path, text)| is_rust(path) && !text.starts_with("//!"));
    assert_none(silent.map(|(path, _)| format!("{}: does not begin with //!", path.display())).collect());
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = [
        concat!("to", "do!"),
        concat!("unimpl", "emented!"),
        "dbg!(",
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("TO", "DO"),
    ];
    let mut complaints = Vec::new();
    for (path, text) in files() {
        if is_this(&path) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for mark in marks.iter().filter(|mark| line.contains(**mark)) {
                complaints.push(format!("{}:{}: {mark}", path.display(), number + 1));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn unsafe_code_has_its_reason() {
    let mut complaints = Vec::new();
    for (path, text) in files() {
        if !is_rust(&path) || is_this(&path) {
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let opens = code.contains(concat!("unsafe", " {")) || code.contains(concat!("unsafe", " impl"));
            let above = &lines[number.saturating_sub(SAFETY_LINES_MAX)..=number];
            if opens && !above.iter().any(|line| line.contains("SAFETY:")) {
                complaints.push(format!("{}:{}: unsafe without // SAFETY:", path.display(), number + 1));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn no_registry_and_no_machine_is_named() {
    // Package registries and mirrors are the machine's configuration; paths of one machine are nobody else's.
    let forbidden = [
        concat!("crates", ".io"),
        concat!("deb", ".debian"),
        concat!("debian", ".org"),
        concat!("ubuntu", ".com"),
        concat!("pypi", ".org"),
        concat!("npm", "js"),
        concat!("static", ".rust-lang"),
        concat!("proxy", ".golang"),
        concat!("/root", "/.cargo"),
        concat!("/root", "/.cache"),
    ];
    let mut complaints = Vec::new();
    for (path, text) in files() {
        // Cargo writes the registry's name into the lock file itself.
        if is_this(&path) || path.ends_with("Cargo.lock") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for name in forbidden.iter().filter(|name| line.contains(**name)) {
                complaints.push(format!("{}:{}: names {name}", path.display(), number + 1));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn tests_are_skipped_in_one_way() {
    // Any other way would be missing from the count of `make test`, and would pass in continuous integration.
    let mut complaints = Vec::new();
    for (path, text) in files() {
        if !is_rust(&path) || is_this(&path) || path.starts_with("tests/skip") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let said = ["\"SKIPPED ", "\"skipped: ", "\"skipping"].iter().any(|word| line.contains(word));
            let asks = line.contains(concat!("var_os(\"", "CI\")")) || line.contains(concat!("var(\"", "CI\")"));
            if said || asks {
                complaints.push(format!("{}:{}: not by willow_skip::skip", path.display(), number + 1));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn scripts_run() {
    let mut complaints = Vec::new();
    for (path, text) in files() {
        // A template becomes a script where it is used.
        if text.starts_with("#!/") && path.extension().is_none_or(|extension| extension != "template") {
            let mode = fs::metadata(root().join(&path)).expect("a file's mode").permissions().mode();
            if mode & 0o111 == 0 {
                complaints.push(format!("{}: begins with #! and cannot be run", path.display()));
            }
        }
    }
    assert_none(complaints);
}
