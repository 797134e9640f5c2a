//! The rooms of the device, checked: each folder of `device/src` is one, `lib.rs` opens them, and what all of them share lies beside it.
//! A room uses others in one direction, so that each can be read, and changed, after those below it.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What all rooms share, beside `lib.rs`: none of it uses a room.
const SHARED: [&str; 9] = ["config", "hre", "lib", "namespace", "places", "region", "request", "shared", "slab"];

/// Rooms, and whose names each uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").join("device/src")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The code of a file: no comments, no unit tests.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" && lines.peek().is_some_and(|next| next.starts_with("mod tests")) {
            break;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// The first names after `crate::`, those of a group one by one.
fn names(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':') {
            continue;
        }
        let rest = &code[at + start.len()..];
        let name = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(name(rest));
            continue;
        };
        let (mut depth, mut begins) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => begins = true,
                c if begins && depth == 1 && !c.is_whitespace() => {
                    found.insert(name(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// What `lib.rs` offers under a name of its own: the room that it is from.
fn offered(library: &str) -> BTreeMap<String, String> {
    let mut offered = BTreeMap::new();
    for statement in code(library).split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else { continue };
        let path = path.trim().trim_start_matches("crate::");
        let Some((room, _)) = path.split_once("::") else { continue };
        let last = path.rsplit("::").next().unwrap_or_default();
        for name in last.trim_matches(['{', '}']).split(',').map(str::trim).filter(|name| !name.is_empty()) {
            offered.insert(name.to_owned(), room.to_owned());
        }
    }
    offered
}

/// Who uses whom; `files`: room, or name of a shared file, and its text.
fn uses(files: &[(String, String)], library: &str) -> Uses {
    let offered = offered(library);
    let mut uses = Uses::new();
    for (room, text) in files {
        let of = uses.entry(room.clone()).or_default();
        for name in names(&code(text)) {
            let target = offered.get(&name).cloned().unwrap_or(name);
            if target != *room {
                of.insert(target);
            }
        }
    }
    uses
}

/// Rooms that use one another in a circle, if there are such.
fn circle(uses: &Uses) -> Option<Vec<String>> {
    let mut left = uses.clone();
    loop {
        // What uses nothing that is left is in no circle.
        let low: Vec<String> = left
            .iter()
            .filter(|(_, of)| of.iter().all(|other| !left.contains_key(other)))
            .map(|(room, _)| room.clone())
            .collect();
        if low.is_empty() {
            break;
        }
        low.iter().for_each(|room| drop(left.remove(room)));
    }
    (!left.is_empty()).then(|| left.into_keys().collect())
}

fn device() -> (Vec<(String, String)>, String) {
    let source = source();
    let mut files = Vec::new();
    let mut library = String::new();
    for path in rust_files(&source) {
        let text = fs::read_to_string(&path).expect("a readable file");
        let inside = path.strip_prefix(&source).expect("inside the device");
        let room = inside.iter().next().expect("a name").to_string_lossy().trim_end_matches(".rs").to_owned();
        if room == "lib" {
            library = text;
        } else if inside.file_stem().is_none_or(|stem| !stem.to_string_lossy().starts_with("tests")) {
            files.push((room, text));
        }
    }
    (files, library)
}

#[test]
fn rooms_of_the_device_use_one_another_in_one_direction() {
    let (files, library) = device();
    let uses = uses(&files, &library);
    for room in ["bridge", "drive", "interconnect", "media", "model", "service", "spu"] {
        assert!(uses.contains_key(room), "there is a room {room}");
    }
    let edges: usize = uses.values().map(BTreeSet::len).sum();
    assert!(edges > 30, "{edges} uses are found");
    assert_eq!(circle(&uses), None, "these use one another in a circle: {uses:#?}");
}

#[test]
fn what_all_rooms_share_is_little_and_uses_none_of_them() {
    let (files, library) = device();
    let uses = uses(&files, &library);
    let mut beside = Vec::new();
    for entry in fs::read_dir(source()).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_file() {
            beside.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
        }
    }
    beside.sort();
    assert_eq!(beside, SHARED, "a new file belongs to a room");
    for file in SHARED.into_iter().filter(|file| *file != "lib") {
        let rooms: Vec<&String> = uses[file].iter().filter(|name| !SHARED.contains(&name.as_str())).collect();
        assert!(rooms.is_empty(), "{file}.rs, which all rooms share, uses {rooms:?}");
    }
}

#[test]
fn one_file_of_spu_os_knows_which_clock_it_works_by() {
    let asks = ["Clock::Free", "Clock::Modelled", "is_timed", ".model()", ".model_mut()"];
    let (mut asking, mut others) = (0, Vec::new());
    for path in rust_files(&source().join("spu")) {
        let code = code(&fs::read_to_string(&path).expect("a readable file"));
        let count: usize = asks.iter().map(|word| code.matches(word).count()).sum();
        match path.ends_with("spu/clock.rs") {
            true => asking = count,
            false if count > 0 => others.push(path),
            false => {}
        }
    }
    assert!(asking > 10, "clock.rs is where it is asked");
    assert!(others.is_empty(), "these ask as well: {others:?}");
}

/// What one file of SPU-OS alone may do, as its code has it.
const GATE: [(&str, &[&str]); 4] = [
    ("gate/src/charge.rs", &["meter(caller).charge(", "charge_bytes(", "Charged(())"]),
    ("gate/mod.rs", &[".allow(", "meter(caller).enter("]),
    (
        "gate/permit.rs",
        &[
            "store.read(",
            "store.read_shared(",
            "store.skip(",
            "store.write(",
            "store.zero(",
            "media.begin_read(",
            "media.begin_write(",
            "media.begin_zero(",
            "MayRead(Range",
            "MayWrite(Range",
        ],
    ),
    ("gate/wake.rs", &["Event::Complete(Completion"]),
];

/// Files of SPU-OS that do what another file alone may do, and what.
fn strays(files: &[(String, String)]) -> Vec<(String, &'static str)> {
    let mut strays = Vec::new();
    for (path, code) in files {
        let others = GATE.iter().filter(|(home, _)| !path.ends_with(home));
        let words = others.flat_map(|(_, words)| *words).filter(|word| code.contains(**word));
        strays.extend(words.map(|word| (path.clone(), *word)));
    }
    strays
}

#[test]
fn what_apps_ask_for_goes_through_the_gate() {
    let read = |path: PathBuf| (path.to_string_lossy().into_owned(), code(&fs::read_to_string(path).expect("a file")));
    let crates = source().join("../gate/src");
    // What the meter charges by is its own.
    let of_gate = rust_files(&crates).into_iter().filter(|path| !path.ends_with("meter.rs"));
    let mut files: Vec<(String, String)> =
        rust_files(&source().join("spu")).into_iter().chain(of_gate).map(read).collect();
    assert_eq!(strays(&files), [], "these go past the gate");
    for (home, words) in GATE {
        let (_, code) = files.iter().find(|(path, _)| path.ends_with(home)).expect("it is there");
        let missing: Vec<_> = words.iter().filter(|word| !code.contains(**word)).collect();
        assert!(missing.is_empty(), "{home} has no {missing:?}: is it called otherwise?");
    }
    // Imports have no other way: what they call of SPU-OS is the gate, or a number that it has.
    let (_, calls) = files.iter().find(|(path, _)| path.ends_with("gate/src/decode.rs")).expect("imports");
    let name = |rest: &str| -> String { rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let called = |by: &str| -> BTreeSet<String> { calls.split(by).skip(1).map(name).collect() };
    assert_eq!(called("self.os."), ["checksum_value", "now_ns", "spus"].map(str::to_owned).into());
    assert_eq!(called("crate::ask"), ["", "_seldom"].map(str::to_owned).into());
    // One that does go past it is seen.
    for planted in
        ["self.meter(caller).charge(1)?;", "self.media.store.write(0, 0, &[])", "Event::Complete(Completion { of })"]
    {
        files.push(("spu/planted.rs".to_owned(), planted.to_owned()));
        assert_eq!(strays(&files).len(), 1, "{planted}");
        files.pop();
    }
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let library = "mod top;\npub use bottom::{Thing, other};\npub use crate::middle::Part;";
    let check = |bottom: &str| {
        let files = [
            ("top", "use crate::middle::Part;\nuse crate::{Thing, shared::{x, y}};"),
            ("middle", "fn f() { crate::bottom::g() }"),
            ("bottom", bottom),
        ];
        let files: Vec<(String, String)> = files.iter().map(|(room, text)| ((*room).into(), (*text).into())).collect();
        circle(&uses(&files, library))
    };
    assert_eq!(check("// crate::top::Device is above.\n#[cfg(test)]\nmod tests {\n use crate::top::a;\n}"), None);
    for planted in ["use crate::top::Device;", "fn g() { let a = crate::Part; }", "use crate::{shared::x, middle::y};"]
    {
        assert!(check(planted).is_some(), "{planted}");
    }
}
