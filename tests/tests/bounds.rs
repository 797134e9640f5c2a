//! docs/bounds.md, held to the code: it names each bound of the device and of what hosts reach it by, who can fill it, and the test that does.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose bounds are listed.
const FOLDERS: [&str; 2] = ["device", "transport"];
/// Of them, what is not: tests and their tools, and the specifications' formats.
const LEFT_OUT: [&str; 8] =
    ["/tests/", "/tests.rs", "/testing", "/examples/", "/benches/", "/models/", "/fuzz/", "transport/wire/src/spec/"];
/// How the name of a bound ends.
const ENDS: [&str; 3] = ["_MAX", "_LIMIT", "_PLACES"];
/// Who may fill what is shared.
const GUESTS: [&str; 4] = ["user", "app", "process", "host"];
/// The heading of what guests fill.
const GUESTS_HEADING: &str = "## What users, their processes and apps, and hosts fill";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// Rust files of the folders, as paths in the repository.
fn sources() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), FOLDERS.map(|folder| root().join(folder)).to_vec());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root()).expect("inside").to_string_lossy().into_owned();
            if name.ends_with(".rs") && !LEFT_OUT.iter().any(|part| name.contains(part)) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// The name of a constant that is a bound, if the line defines one.
fn bound(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let visible = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).or(line.strip_prefix("pub "));
    let (name, _) = visible.unwrap_or(line).strip_prefix("const ")?.split_once(':')?;
    ENDS.iter().any(|end| name.ends_with(end)).then_some(name)
}

/// Bounds of a file, with what its unit tests have left out.
fn bounds_of(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let ends = lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {"));
    lines[..ends.unwrap_or(lines.len())].iter().filter_map(|line| bound(line)).collect()
}

/// A line of the list: its heading and cells.
struct Line {
    heading: String,
    cells: Vec<String>,
}

/// What stands between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn lines(text: &str) -> Vec<Line> {
    let (mut heading, mut found) = (String::new(), Vec::new());
    for line in text.lines() {
        if line.starts_with("## ") {
            heading = line.to_owned();
        }
        if line.starts_with("| `") {
            let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
            found.push(Line { heading: heading.clone(), cells });
        }
    }
    found
}

/// True where a file has that constant, or that field of a configuration.
fn defines(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let visible =
            line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).or(line.strip_prefix("pub "));
        let line = visible.unwrap_or(line);
        line.strip_prefix("const ").unwrap_or(line).strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
    })
}

/// What is wrong with a list of bounds.
fn complaints(list: &str) -> Vec<String> {
    let (mut complaints, mut listed) = (Vec::new(), BTreeSet::new());
    for Line { heading, cells } in lines(list) {
        let files = quoted(&cells[1]);
        for name in quoted(&cells[0]) {
            let of: Vec<&&str> =
                files.iter().filter(|file| read(file).is_some_and(|text| defines(&text, name))).collect();
            if of.is_empty() {
                complaints.push(format!("{name} is in none of {files:?}"));
            }
            listed.extend(of.iter().map(|file| ((**file).to_owned(), name.to_owned())));
        }
        if heading != GUESTS_HEADING {
            continue;
        }
        let (who, tests) = (cells[3].as_str(), quoted(&cells[5]));
        if !GUESTS.contains(&who) || tests.is_empty() {
            complaints.push(format!("{}: filled by {who:?}, in {tests:?}", cells[0]));
        }
        for tests in tests {
            let Some((file, names)) = tests.split_once(": ") else {
                complaints.push(format!("{tests} is no file with tests"));
                continue;
            };
            let text = read(file).unwrap_or_default();
            for name in names.split(", ").filter(|name| !text.contains(&format!("fn {name}("))) {
                complaints.push(format!("{file} has no {name}"));
            }
        }
    }
    for file in sources() {
        let text = read(&file).expect("it was found");
        for name in bounds_of(&text) {
            if !listed.contains(&(file.clone(), name.to_owned())) {
                complaints.push(format!("{file}: {name} is not listed"));
            }
        }
    }
    complaints
}

#[test]
fn each_bound_is_listed_with_who_fills_it_and_the_test_that_does() {
    let list = read("docs/bounds.md").expect("the list");
    assert!(lines(&list).len() > 80, "the list has its lines");
    let complaints = complaints(&list);
    assert!(complaints.is_empty(), "docs/bounds.md: {} complaints:\n{}", complaints.len(), complaints.join("\n"));
    let tables = lines(&list).into_iter().filter(|line| line.heading == GUESTS_HEADING).count();
    assert!(tables > 30, "{tables}");
}

#[test]
fn a_bound_that_is_missing_or_that_nobody_fills_is_found() {
    let list = read("docs/bounds.md").expect("the list");
    for (was, is, complaint) in [
        ("`PARKED_MAX`, ", "", "device/src/spu/miss.rs: PARKED_MAX is not listed"),
        ("`PARKED_MAX`, ", "`PARKED_MAX`, `PARKED_LIMIT`, ", "PARKED_LIMIT is in none of [\"device/src/spu/miss.rs\"]"),
        ("another_goes_on, parked", "another_goes_on, parks", "device/tests/fillers.rs has no parks"),
    ] {
        assert!(list.contains(was), "{was}");
        assert!(complaints(&list.replace(was, is)).iter().any(|one| one == complaint), "{complaint}");
    }
}
