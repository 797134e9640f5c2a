//! What the agent has made immutable, in a file, so that the next agent undoes it after a crash.
//!
//! A line for each change, appended: a checksum (CRC-32C, 8 hexadecimal digits), a space, and JSON: `{"freeze":{...}}` or
//! `{"thaw":{...}}`. What always holds:
//! - the line about a file that is to be frozen is durable before the file is frozen; that of its thawing follows it;
//! - a last line that is torn tells of a file that was not frozen yet, or of one that was thawed: it is left out;
//! - the file is written anew, beside the old one and then in its place, when most of its lines say nothing any more.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Lines before the file is written anew, if most of them are old.
const LINES_MIN: usize = 1024;

/// Device and inode of a file.
pub type Key = (u64, u64);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Freeze { device: u64, inode: u64, path: PathBuf },
    Thaw { device: u64, inode: u64 },
}

/// The journal.
pub struct Journal {
    path: PathBuf,
    file: File,
    lines: usize,
    frozen: BTreeMap<Key, PathBuf>,
}

fn encode(line: &Line) -> std::io::Result<String> {
    let text = serde_json::to_string(line)?;
    Ok(format!("{:08x} {text}\n", crc32c::crc32c(text.as_bytes())))
}

fn decode(line: &str) -> Option<Line> {
    let (sum, text) = line.split_once(' ')?;
    let sum = u32::from_str_radix(sum, 16).ok()?;
    (sum == crc32c::crc32c(text.as_bytes())).then(|| serde_json::from_str(text).ok()).flatten()
}

/// What a journal says is frozen. The error names the line that is wrong, and is not the last.
fn read(text: &str) -> Result<BTreeMap<Key, PathBuf>, String> {
    let mut frozen = BTreeMap::new();
    if text.starts_with('[') {
        // As agents before this one wrote it: a list of all.
        let all: Vec<(u64, u64, PathBuf)> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        return Ok(all.into_iter().map(|(device, inode, path)| ((device, inode), path)).collect());
    }
    let mut lines = text.split_inclusive('\n').enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        match line.strip_suffix('\n').and_then(decode) {
            Some(Line::Freeze { device, inode, path }) => {
                frozen.insert((device, inode), path);
            }
            Some(Line::Thaw { device, inode }) => {
                frozen.remove(&(device, inode));
            }
            // The last one, torn.
            None if lines.peek().is_none() => {}
            None => return Err(format!("line {} is damaged", number + 1)),
        }
    }
    Ok(frozen)
}

impl Journal {
    /// Reads it, or begins a new one.
    pub fn open(path: PathBuf) -> Result<Journal, String> {
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let frozen = match std::fs::read(&path) {
            Ok(bytes) => read(&String::from_utf8_lossy(&bytes)).map_err(|why| said(&why))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(said(&error)),
        };
        let file = rewrite(&path, &frozen).map_err(|error| said(&error))?;
        Ok(Journal { lines: frozen.len(), path, file, frozen })
    }

    /// What is frozen.
    pub fn frozen(&self) -> &BTreeMap<Key, PathBuf> {
        &self.frozen
    }

    /// A file is about to be frozen: durable when this returns.
    pub fn freeze(&mut self, key: Key, path: &Path) -> std::io::Result<()> {
        self.append(&Line::Freeze { device: key.0, inode: key.1, path: path.to_owned() })?;
        self.file.sync_data()?;
        self.frozen.insert(key, path.to_owned());
        Ok(())
    }

    /// A file was thawed. Not durable at once: to thaw it once more does no harm.
    pub fn thaw(&mut self, key: Key) -> std::io::Result<()> {
        self.frozen.remove(&key);
        if self.lines >= LINES_MIN && self.lines / 4 > self.frozen.len() {
            self.file = rewrite(&self.path, &self.frozen)?;
            self.lines = self.frozen.len();
            return Ok(());
        }
        self.append(&Line::Thaw { device: key.0, inode: key.1 })
    }

    fn append(&mut self, line: &Line) -> std::io::Result<()> {
        let length = self.file.metadata()?.len();
        let written = self.file.write_all(encode(line)?.as_bytes());
        if written.is_err() {
            // A part of a line would make those behind it unreadable.
            self.file.set_len(length)?;
        }
        self.lines += 1;
        written
    }
}

/// Writes a journal with these files alone in the place of what is there.
fn rewrite(path: &Path, frozen: &BTreeMap<Key, PathBuf>) -> std::io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let _ = std::fs::remove_file(&new);
    let mut file = File::options().append(true).create_new(true).open(&new)?;
    let mut text = String::new();
    for ((device, inode), path) in frozen {
        text.push_str(&encode(&Line::Freeze { device: *device, inode: *inode, path: path.clone() })?);
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("willow-journal-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn a_journal_cut_anywhere_says_what_was_frozen_by_then() {
        let path = scratch("cut");
        let mut journal = Journal::open(path.clone()).unwrap();
        // After each change: the length, and what is frozen.
        let mut after = vec![(0, Vec::new())];
        for (step, (inode, freezes)) in
            [(1, true), (2, true), (1, false), (3, true), (2, false), (1, true)].iter().enumerate()
        {
            let named = PathBuf::from(format!("/a file\n\u{fe}{step}"));
            let done = if *freezes { journal.freeze((7, *inode), &named) } else { journal.thaw((7, *inode)) };
            done.unwrap();
            after.push((std::fs::metadata(&path).unwrap().len(), journal.frozen().keys().copied().collect()));
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (_, wanted) = after.iter().rfind(|(at, _)| *at <= length as u64).unwrap();
            let found: Vec<Key> = Journal::open(path.clone()).unwrap().frozen().keys().copied().collect();
            assert_eq!(found, *wanted, "cut at {length}");
        }
        // Damage before the last line is said, and where.
        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(Journal::open(path.clone()).err().unwrap().contains("line 1 is damaged"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_journal_stays_short_and_knows_what_agents_before_it_wrote() {
        let path = scratch("short");
        std::fs::write(&path, r#"[[5,6,"/old"]]"#).unwrap();
        let mut journal = Journal::open(path.clone()).unwrap();
        assert_eq!(journal.frozen().get(&(5, 6)), Some(&PathBuf::from("/old")));
        for round in 0..1200u64 {
            journal.freeze((1, round), Path::new("/file")).unwrap();
            journal.thaw((1, round)).unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 2 * LINES_MIN, "{lines} lines");
        assert_eq!(Journal::open(path.clone()).unwrap().frozen().len(), 1);
        std::fs::remove_file(path).unwrap();
    }
}
