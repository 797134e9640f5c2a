//! docs/direct-ways.md as tests read it: what each way comes to on each file system, and which way each call of the kernel's is. The document
//! is what the tests hold the kernel to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a cell says of a way that the system does not have, or that would end it.
pub const NOT_TRIED: &str = "not tried";

/// The tables of the document.
pub struct Ways {
    /// By system and way.
    cells: BTreeMap<(String, String), String>,
    /// What it has of calls.
    calls: BTreeMap<String, String>,
    /// Kernels that it names.
    pub kernels: Vec<String>,
}

fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect())
}

impl Ways {
    /// Reads it. Each row of the table of ways has six cells, each row of the table of exceptions three, each row of that of
    /// calls two.
    pub fn read() -> Ways {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/direct-ways.md");
        let text = std::fs::read_to_string(path).expect("the document");
        let (mut found, mut exceptions, mut calls) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let is_head = |row: &[String]| row[0].starts_with('-') || ["way", "calls"].contains(&row[0].as_str());
        let rows = text.lines().filter_map(cells).filter(|row| !is_head(row));
        for row in rows {
            match &row[..] {
                [way, _, _, ext4, xfs, reflink] => {
                    for (system, cell) in
                        [("ext4", ext4), ("ext4 by block map", ext4), ("xfs", xfs), ("xfs with reflink", reflink)]
                    {
                        let twice = found.insert((system.to_owned(), way.clone()), cell.clone());
                        assert!(twice.is_none(), "the document has {way} twice");
                    }
                }
                [way, system, cell] => exceptions.push(((system.clone(), way.clone()), cell.clone())),
                [names, what] => {
                    for name in names.split("`, `") {
                        let twice = calls.insert(name.to_owned(), what.clone());
                        assert!(twice.is_none(), "the document has {name} twice");
                    }
                }
                _ => panic!("a row of the document has neither six cells, three nor two: {row:?}"),
            }
        }
        for (place, cell) in exceptions {
            let known = found.keys().any(|(_, way)| *way == place.1);
            assert!(known, "the document has an exception of {}, and no such way", place.1);
            // Of a kernel: another outcome than on the first kernel that the document names.
            let system = place.0.split_once(", Linux ").map(|(system, _)| system.to_owned());
            let said = system.and_then(|system| found.get(&(system, place.1.clone()))).or_else(|| found.get(&place));
            assert!(said != Some(&cell), "the document has an exception that is none: {place:?}");
            found.insert(place, cell);
        }
        for (_, way) in found.keys() {
            let is_tried = found.iter().any(|((_, other), cell)| other == way && cell != NOT_TRIED);
            assert!(is_tried, "the document has {way}, and no test tries it");
        }
        let kernels = text.lines().find_map(|line| line.strip_prefix("Kernels: ")).expect("the line of kernels");
        let kernels = kernels.trim_end_matches('.').split(", ").map(str::to_owned).collect();
        Ways { cells: found, calls, kernels }
    }

    /// What is wrong with what it says of the kernel's calls: of each whether it is a way, which it has, or why it is none.
    pub fn wrong_calls(&self, known: &BTreeSet<&str>) -> Vec<String> {
        let named: BTreeSet<&str> = self.calls.keys().map(String::as_str).collect();
        let missing = known.difference(&named).map(|name| format!("{name} is not in the document"));
        let more = named.difference(known).map(|name| format!("the kernel has no {name}"));
        let is_way = |way: &str| self.cells.keys().any(|(_, other)| other == way);
        let ways = self.calls.iter().filter_map(|(name, what)| Some((name, what.strip_prefix("ways: ")?)));
        let ways = ways.flat_map(|(name, ways)| ways.split(", ").map(move |way| (name, way)));
        let none = ways
            .filter(|(_, way)| !is_way(way))
            .map(|(name, way)| format!("{name} is said to be {way}, which is no way"));
        missing.chain(more).chain(none).collect()
    }

    /// What it says of a system on a kernel; where it has nothing of a way on that kernel, what it says of the system.
    pub fn of(&self, system: &str, kernel: &str) -> BTreeMap<&str, &str> {
        let of = |system: &str| {
            let those = self.cells.iter().filter(move |((other, _), _)| other == system);
            those.map(|((_, way), cell)| (way.as_str(), cell.as_str())).collect::<Vec<_>>()
        };
        of(system).into_iter().chain(of(&format!("{system}, Linux {kernel}"))).collect()
    }

    /// The ways that move a file's blocks where nobody has it directly and nothing refuses them, for a user or for root.
    pub fn that_move(&self, system: &str, kernel: &str, is_root: bool) -> BTreeSet<&str> {
        let moves = |cell: &str| {
            let alone = cell.split(" → ").next().unwrap_or_default();
            let (user, root) = alone.split_once(", root ").unwrap_or((alone, alone));
            (if is_root { root } else { user }) == "moves"
        };
        self.of(system, kernel).into_iter().filter(|(_, cell)| moves(cell)).map(|(way, _)| way).collect()
    }

    /// What differs between this and what was seen on a system, a row of the document each.
    pub fn wrong(&self, system: &str, kernel: &str, seen: &BTreeMap<&str, String>) -> Vec<String> {
        let said = self.of(system, kernel);
        let all: BTreeSet<&str> = said.keys().chain(seen.keys()).copied().collect();
        let compared = all.into_iter().map(|way| (way, said.get(way), seen.get(way).map_or(NOT_TRIED, String::as_str)));
        let wrong = compared.filter(|(_, said, seen)| *said != Some(seen));
        wrong.map(|(way, said, seen)| format!("| {way} | {system}, Linux {kernel} | {seen} | not {said:?}")).collect()
    }
}

/// The kernel that runs: the first two parts of its version.
pub fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    version(&release)
}

/// The first two parts of a kernel's release.
pub fn version(release: &str) -> String {
    let mut parts = release.trim().split(['.', '-']);
    format!("{}.{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}
