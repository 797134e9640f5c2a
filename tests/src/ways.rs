//! docs/direct-ways.md as tests read it: what each way comes to on each file system. The document is what the tests hold the kernel to.

use std::collections::BTreeMap;
use std::path::Path;

/// What a cell says of a way that the system does not have, or that would end it.
pub const NOT_TRIED: &str = "not tried";

/// The tables of the document.
pub struct Ways {
    /// By system and way.
    cells: BTreeMap<(String, String), String>,
    /// Kernels that it names.
    pub kernels: Vec<String>,
}

fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect())
}

impl Ways {
    /// Reads it. Each row of the table of ways has six cells, each row of the table of exceptions three.
    pub fn read() -> Ways {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/direct-ways.md");
        let text = std::fs::read_to_string(path).expect("the document");
        let (mut found, mut exceptions) = (BTreeMap::new(), Vec::new());
        let rows = text.lines().filter_map(cells).filter(|row| !row[0].starts_with('-') && row[0] != "way");
        for row in rows {
            match &row[..] {
                [way, _, _, ext4, xfs, reflink] => {
                    let is_tried = [ext4, xfs, reflink].iter().any(|cell| *cell != NOT_TRIED);
                    assert!(is_tried, "the document has {way}, and no test tries it");
                    for (system, cell) in
                        [("ext4", ext4), ("ext4 by block map", ext4), ("xfs", xfs), ("xfs with reflink", reflink)]
                    {
                        let twice = found.insert((system.to_owned(), way.clone()), cell.clone());
                        assert!(twice.is_none(), "the document has {way} twice");
                    }
                }
                [way, system, cell] => exceptions.push(((system.clone(), way.clone()), cell.clone())),
                _ => panic!("a row of the document has neither six cells nor three: {row:?}"),
            }
        }
        for (place, cell) in exceptions {
            let known = found.keys().any(|(_, way)| *way == place.1);
            assert!(known, "the document has an exception of {}, and no such way", place.1);
            assert!(found.get(&place) != Some(&cell), "the document has an exception that is none: {place:?}");
            found.insert(place, cell);
        }
        let kernels = text.lines().find_map(|line| line.strip_prefix("Kernels: ")).expect("the line of kernels");
        let kernels = kernels.trim_end_matches('.').split(", ").map(str::to_owned).collect();
        Ways { cells: found, kernels }
    }

    /// What it says of a system; where it has nothing of a way there, what it says of the system that this one is `like`.
    pub fn of(&self, system: &str, like: &str) -> BTreeMap<&str, &str> {
        let of = |system: &str| {
            let those = self.cells.iter().filter(move |((other, _), _)| other == system);
            those.map(|((_, way), cell)| (way.as_str(), cell.as_str())).collect::<Vec<_>>()
        };
        of(like).into_iter().chain(of(system)).collect()
    }
}

/// The kernel that runs: the first two parts of its version.
pub fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let mut parts = release.split(['.', '-']);
    format!("{}.{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}
