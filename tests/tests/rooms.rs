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
        if line == "#[cfg(test)]"
            && let Some(next) = lines.peek().filter(|next| next.starts_with("mod tests"))
        {
            // Those in a file of their own leave more code after them.
            if next.ends_with('{') {
                break;
            }
            lines.next();
            continue;
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
        let users = uses.iter().filter(|(room, of)| !SHARED.contains(&room.as_str()) && of.contains(file)).count();
        assert!(users > 1, "{file}.rs is used by {users} rooms: it belongs there");
    }
}

/// Paths of a file that may name another room without `crate::ROOM`, so that [`names`] would not see which. `inside`: the file within the
/// device's source.
fn unseen(inside: &Path, code: &str) -> Vec<String> {
    let steps = inside.components().count() - 1 - usize::from(inside.ends_with("mod.rs"));
    let beyond = "super::".repeat(steps + 1);
    let words = [
        beyond.as_str(),
        "crate::*",
        "crate as ",
        "crate::{self",
        "super::{super",
        "{super::super",
        "#[path",
        "include!",
        "extern crate",
        "willow_device::",
    ];
    words.into_iter().filter(|word| code.contains(word)).map(str::to_owned).collect()
}

#[test]
fn no_path_leaves_a_room_unseen() {
    for path in rust_files(&source()) {
        let inside = path.strip_prefix(source()).expect("inside the device");
        let text = code(&fs::read_to_string(&path).expect("a readable file"));
        assert!(unseen(inside, &text).is_empty(), "{}: {:?}", inside.display(), unseen(inside, &text));
    }
    for (inside, planted) in [
        ("spu/dma.rs", "use super::super::service::Core;"),
        ("spu/mod.rs", "use super::drive::Device;"),
        ("spu/runtime/wasm.rs", "fn f() { super::super::super::drive::g() }"),
        ("region.rs", "use super::spu::os::Machine;"),
        ("spu/dma.rs", "use crate::*;"),
        ("spu/dma.rs", "use crate as device;"),
        ("spu/dma.rs", "use super::{super::drive::Device, abi};"),
        ("spu/dma.rs", "#[path = \"../drive/free.rs\"]"),
        ("spu/dma.rs", "use willow_device::Device;"),
    ] {
        assert_eq!(unseen(Path::new(inside), planted).len(), 1, "{planted}");
    }
    assert!(unseen(Path::new("spu/runtime/wasm.rs"), "use super::super::os::Machine;").is_empty());
}

/// The type that a line gives methods to, where that is what it does.
fn extended(line: &str) -> Option<String> {
    let line = line.trim_start().strip_prefix("impl")?;
    let line = match line.strip_prefix('<') {
        Some(generic) => {
            let mut depth = 1;
            let ends = generic.char_indices().find(|(at, c)| {
                let arrow = *c == '>' && generic[..*at].ends_with('-');
                depth += i32::from(*c == '<') - i32::from(*c == '>' && !arrow);
                depth == 0
            });
            &generic[ends?.0 + 1..]
        }
        None => line,
    };
    let named = line.strip_prefix(' ')?;
    if named.contains(" for ") {
        return None;
    }
    let path: String = named.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
    path.rsplit("::").next().map(str::to_owned)
}

/// Types of other rooms that files of a room give methods to: whoever is below could call such a method without naming the room that has it.
fn intrusions(files: &[(String, String)]) -> Vec<(String, String)> {
    let declares = |room: &str, name: &str| {
        let words = ["struct", "enum", "union", "type"].map(|word| format!("{word} {name}"));
        let is_it = |code: &str| {
            let ends = |at: usize| code[at..].chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '_');
            words.iter().any(|word| code.match_indices(word.as_str()).any(|(at, _)| ends(at + word.len())))
        };
        files.iter().filter(|(other, _)| other == room).any(|(_, text)| is_it(&code(text)))
    };
    let mut found = Vec::new();
    for (room, text) in files {
        for name in code(text).lines().filter_map(extended).filter(|name| !declares(room, name)) {
            found.push((room.clone(), name));
        }
    }
    found
}

#[test]
fn a_room_gives_methods_to_its_own_types_alone() {
    let (mut files, _) = device();
    let types = files.iter().flat_map(|(_, text)| code(text).lines().filter_map(extended).collect::<Vec<_>>()).count();
    assert!(types > 150, "{types} are found");
    assert_eq!(intrusions(&files), []);
    for (planted, name) in [
        ("impl Machine {", "Machine"),
        ("impl<T: Into<u32>, F: Fn() -> T> crate::spu::os::Machine {", "Machine"),
        ("impl<'a> Core<'a> {", "Core"),
    ] {
        files.push(("drive".to_owned(), planted.to_owned()));
        assert_eq!(intrusions(&files), [("drive".to_owned(), name.to_owned())], "{planted}");
        files.pop();
    }
    files.push(("drive".to_owned(), "impl Ready for Machine {".to_owned()));
    assert_eq!(intrusions(&files), [], "whose trait that is, a path says");
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
    for planted in [
        "use crate::top::Device;",
        "fn g() { let a = crate::Part; }",
        "use crate::{shared::x, middle::y};",
        "#[cfg(test)]\nmod tests;\nuse crate::top::Device;",
    ] {
        assert!(check(planted).is_some(), "{planted}");
    }
}

/// Fields of a struct, in order.
fn fields(code: &str, name: &str) -> Vec<String> {
    let body = code.split_once(&format!("struct {name} {{")).expect("the struct").1;
    let body = body.split_once("\n}").expect("its end").0;
    let field = |line: &str| -> Option<String> {
        let line = line.trim();
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let (name, _) = line.split_once(": ")?;
        name.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| name.to_owned())
    };
    body.lines().filter_map(field).collect()
}

/// Names in the first column of the table under a heading.
fn listed(document: &str, heading: &str) -> Vec<String> {
    let section = document.split_once(heading).expect("the heading").1;
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let first = rows.skip(2).map(|row| row.split('|').nth(1).expect("a column"));
    first.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn what_spus_have_in_common_is_listed_with_its_reason() {
    let architecture = fs::read_to_string(source().join("../../ARCHITECTURE.md")).expect("a document");
    let os = code(&fs::read_to_string(source().join("spu/os.rs")).expect("a file"));
    let (mut has, mut says) = (fields(&os, "Machine"), listed(&architecture, "### What SPUs have in common"));
    has.sort();
    says.sort();
    assert_eq!(has, says, "ARCHITECTURE.md says whose each field of Machine is");
    // One that is added is seen, and one that is gone.
    let planted = os.replace("pub config:", "pub(super) table: BTreeMap<u32, u32>,\n    pub config:");
    assert_eq!(fields(&planted, "Machine").len(), has.len() + 1);
}

/// Ways to have something in common that no field of `Machine` shows.
const SHARING: [&str; 10] =
    ["Rc<", "Cell<", "static mut", "thread_local!", "Mutex<", "RwLock<", "OnceLock", "LazyLock", "Atomic", "Arc<"];

/// Where one of them is, and what for.
const SHARED_ON_PURPOSE: [(&str, &str); 16] = [
    // Snapshots that nobody changes.
    ("spu/published.rs", "Arc<"),
    ("spu/os.rs", "Arc<"),
    ("service/core.rs", "Arc<"),
    ("drive/mod.rs", "Arc<"),
    // A set of literals that a search under way keeps; nobody changes it.
    ("spu/accelerator/literals.rs", "Arc<"),
    ("spu/continuation.rs", "Arc<"),
    // An instance of an app and the fiber that has its store.
    ("spu/reach.rs", "Arc<"),
    ("spu/reach.rs", "Atomic"),
    ("spu/runtime/long.rs", "Arc<"),
    ("spu/runtime/long.rs", "Mutex<"),
    // The same of one that is debugged, and the module that it was compiled from.
    ("spu/runtime/debug.rs", "Arc<"),
    ("spu/runtime/debug.rs", "Mutex<"),
    ("service/debug.rs", "Arc<"),
    // Whose code a profile's samples are of: a signal's handler reads it.
    ("spu/profile.rs", "Atomic"),
    // Plans of transforms, as the library hands them out: each SPU has its own.
    ("spu/accelerator/fft.rs", "Arc<"),
    // In builds for tests: compilers that a test holds up.
    ("spu/hole.rs", "Mutex<"),
];

/// What shares in other ways than those that are known.
fn sharing(files: &[(String, String)]) -> BTreeSet<(String, &'static str)> {
    let of = |(path, code): &(String, String)| {
        let words = SHARING.into_iter().filter(|word| code.contains(word)).collect::<Vec<_>>();
        words.into_iter().map(|word| (path.clone(), word)).collect::<Vec<_>>()
    };
    files.iter().flat_map(of).collect()
}

#[test]
fn spus_share_by_no_other_way() {
    let mut files = Vec::new();
    for room in ["bridge", "drive", "interconnect", "service", "spu"] {
        for path in rust_files(&source().join(room)) {
            let inside = path.strip_prefix(source()).expect("inside the device").to_string_lossy().into_owned();
            files.push((inside, code(&fs::read_to_string(&path).expect("a readable file"))));
        }
    }
    let known: BTreeSet<(String, &str)> =
        SHARED_ON_PURPOSE.iter().map(|(path, word)| ((*path).to_owned(), *word)).collect();
    assert_eq!(sharing(&files), known);
    files.push(("spu/planted.rs".to_owned(), "table: Rc<RefCell<u32>>".to_owned()));
    assert_eq!(sharing(&files).len(), known.len() + 2);
}
