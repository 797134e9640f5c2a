//! `willow btree`: B+trees in the drive, by the SSD App `btree`, which `create` installs where it is not yet.

use crate::client::{GOODBYE_TIMEOUT, attach, runtime};
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::rpc::read_data;
use crate::size::Size;
use crate::target::TargetOption;
use btree_host::wire::{KEY_BYTES, Key, VALUE_BYTES_MAX};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;
use willow_host::btree::{BtreeClient, BtreeError, BtreeTree, Layout, Pair};
use willow_host::{ControlClient, Controller, Hre, HreError};

/// Bytes that a load sends before it waits.
const LOAD_BYTES: usize = 4 << 20;
/// Longest line of a load.
const LINE_BYTES_MAX: u64 = 2 * (KEY_BYTES as u64 + VALUE_BYTES_MAX as u64) + 2;

/// How keys and values are written, and which device it is.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Keys and values are written as hexadecimal digits, in and out
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    target: TargetOption,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Btree {
    /// Make a tree; installs the app where the device has none
    Create {
        /// Name of the tree
        name: String,
        /// Room for nodes and values, in all banks together
        #[arg(long, default_value = "64M")]
        size: Size,
        /// One tree over all banks, instead of one on each processor that has the keys of a hash
        #[arg(long)]
        striped: bool,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Store pairs, a line each: key, tab, value; in ascending order it is quickest
    Load {
        /// Name of the tree
        name: String,
        /// The lines: a file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Print a value as it is
    Get {
        /// Name of the tree
        name: String,
        /// Key of 1 to 16 bytes
        key: String,
        #[command(flatten)]
        place: Place,
    },
    /// Print pairs in the order of their keys, a line each: key, tab, value
    Range {
        /// Name of the tree
        name: String,
        /// First key [default: all]
        from: Option<String>,
        /// Up to this key, without it
        #[arg(long, value_name = "KEY")]
        to: Option<String>,
        /// Print at most this many
        #[arg(long)]
        limit: Option<u64>,
        /// Keys alone
        #[arg(long)]
        keys: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Store a value
    Put {
        /// Name of the tree
        name: String,
        /// Key of 1 to 16 bytes
        key: String,
        /// The value, of up to 4096 bytes: a file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Delete a key
    Delete {
        /// Name of the tree
        name: String,
        /// Key
        key: String,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a tree with all its pairs, and give its room back
    Remove {
        /// Name of the tree
        name: String,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Say what there is of a tree
    Stat {
        /// Name of the tree
        name: String,
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// A connection.
struct Drive {
    runtime: Runtime,
    controller: Option<Controller>,
    hre: Arc<dyn Hre>,
}

impl Drive {
    fn attach(target: &TargetOption) -> Outcome<Drive> {
        let runtime = runtime()?;
        let (controller, hre) = attach(&runtime, target)?;
        Ok(Drive { runtime, controller, hre })
    }

    fn client(&self) -> Outcome<BtreeClient> {
        let found = self.runtime.block_on(BtreeClient::find(self.hre.clone()));
        found.context(|| "the device has no app btree: willow btree create installs it".to_owned())
    }

    fn tree(&self, name: &str) -> Outcome<BtreeTree> {
        self.runtime.block_on(self.client()?.open(name)).map_err(Failure::new)
    }

    fn run<T>(&self, done: impl Future<Output = Result<T, BtreeError>>) -> Outcome<T> {
        self.runtime.block_on(done).map_err(Failure::new)
    }

    /// Installs the app where there is none; a newer or older one that is there stays.
    fn install(&self) -> Outcome<()> {
        let control = ControlClient::new(self.hre.clone());
        match self.runtime.block_on(control.find_app(btree_host::APP_NAME)) {
            Ok(_) => return Ok(()),
            Err(HreError::Control { .. }) => {}
            Err(error) => return Err(Failure::new(error)),
        }
        let module = willow_apps::BTREE_WASM.to_vec();
        let installed = self.runtime.block_on(control.install(module));
        installed.map(drop).context(|| "the app btree was not installed".to_owned())
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        let Some(controller) = self.controller.clone() else { return };
        let _ = self.runtime.block_on(async { tokio::time::timeout(GOODBYE_TIMEOUT, controller.shut_down()).await });
    }
}

fn parse(text: &[u8], hex: bool, what: &str) -> Outcome<Vec<u8>> {
    if !hex {
        return Ok(text.to_vec());
    }
    if !text.len().is_multiple_of(2) || !text.iter().all(u8::is_ascii_hexdigit) {
        fail!("{what} \"{}\" is no even number of hexadecimal digits", text.escape_ascii());
    }
    let digit = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
    Ok(text.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect())
}

fn parse_key(text: &[u8], hex: bool) -> Outcome<Key> {
    let bytes = parse(text, hex, "key")?;
    match btree_host::key(&bytes) {
        Some(key) => Ok(key),
        None => fail!("the key has {} bytes, must have 1 to {KEY_BYTES}", bytes.len()),
    }
}

fn show(bytes: &[u8], hex: bool) -> String {
    if hex {
        return bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// A key without the zeroes that it was filled up with.
fn show_key(key: &Key, hex: bool) -> String {
    let bytes = if hex { KEY_BYTES } else { key.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1) };
    show(&key[..bytes], hex)
}

fn parse_line(line: &[u8], hex: bool) -> Outcome<(Key, Vec<u8>)> {
    let Some(tab) = line.iter().position(|byte| *byte == b'\t') else { fail!("there is no tab behind the key") };
    let value = parse(&line[tab + 1..], hex, "value")?;
    if value.len() > VALUE_BYTES_MAX as usize {
        fail!("the value has {} bytes, must have at most {VALUE_BYTES_MAX}", value.len());
    }
    Ok((parse_key(&line[..tab], hex)?, value))
}

fn load(tree: &BtreeTree, drive: &Drive, file: &Path, hex: bool) -> Outcome<u64> {
    let name = file.display();
    let input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(file).context(|| format!("cannot read {name}"))?),
    };
    let mut lines = BufReader::with_capacity(1 << 16, input);
    let (mut pairs, mut bytes, mut number, mut stored) = (Vec::new(), 0, 0u64, 0u64);
    loop {
        let mut line = Vec::new();
        let read = lines.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        let is_end = read.context(|| format!("cannot read {name}; {stored} pairs are stored"))? == 0;
        if !is_end {
            number += 1;
            let line = line.strip_suffix(b"\n").unwrap_or(&line);
            let of_line =
                |why: Failure| Failure::new(format_args!("{name}, line {number}: {why}; {stored} pairs are stored"));
            let (key, value) = parse_line(line, hex).map_err(of_line)?;
            bytes += value.len() + KEY_BYTES;
            pairs.push((key, value));
        }
        if is_end || bytes >= LOAD_BYTES {
            let count = pairs.len() as u64;
            bytes = 0;
            let put = drive.run(tree.put_many(std::mem::take(&mut pairs)));
            put.map_err(|why| Failure::new(format_args!("{why}; at least {stored} pairs are stored")))?;
            stored += count;
        }
        if is_end {
            return Ok(stored);
        }
    }
}

/// A failure in the midst of a range.
enum Stopped {
    Tree(BtreeError),
    Output(Failure),
}

impl From<BtreeError> for Stopped {
    fn from(error: BtreeError) -> Self {
        Stopped::Tree(error)
    }
}

fn range(
    drive: &Drive,
    tree: &BtreeTree,
    (from, to): (Key, Option<Key>),
    limit: u64,
    (keys, hex): (bool, bool),
) -> Outcome<()> {
    let mut left = limit;
    let each = |pair: Pair| {
        if left == 0 || to.is_some_and(|to| pair.key >= to) {
            return Ok(false);
        }
        left -= 1;
        let key = show_key(&pair.key, hex);
        let line = if keys { key } else { format!("{key}\t{}", show(&pair.value, hex)) };
        output::line(&line).map_err(Stopped::Output)?;
        Ok(left > 0)
    };
    if limit == 0 {
        return Ok(());
    }
    drive.runtime.block_on(tree.range(from, keys, each)).map_err(|stopped| match stopped {
        Stopped::Tree(error) => Failure::new(error),
        Stopped::Output(failure) => failure,
    })
}

fn missing(key: &Key, hex: bool) -> Failure {
    Failure::new(format_args!("there is no key {}", show_key(key, hex)))
}

/// Runs one.
pub fn run(btree: Btree) -> Outcome<()> {
    match btree {
        Btree::Create { name, size, striped, target } => {
            let drive = Drive::attach(&target)?;
            drive.install()?;
            let layout = if striped { Layout::Striped } else { Layout::Partitioned };
            drive.run(drive.client()?.create(&name, layout, size.0)).map(drop)
        }
        Btree::Load { name, file, place } => {
            let drive = Drive::attach(&place.target)?;
            let stored = load(&drive.tree(&name)?, &drive, &file, place.hex)?;
            output::line(&format!("{stored} pairs"))
        }
        Btree::Get { name, key, place } => {
            let key = parse_key(key.as_bytes(), place.hex)?;
            let drive = Drive::attach(&place.target)?;
            let value = drive.run(drive.tree(&name)?.get(&key))?.ok_or_else(|| missing(&key, place.hex))?;
            output::bytes(&value)
        }
        Btree::Range { name, from, to, limit, keys, place } => {
            let from = from.map(|key| parse_key(key.as_bytes(), place.hex)).transpose()?.unwrap_or_default();
            let to = to.map(|key| parse_key(key.as_bytes(), place.hex)).transpose()?;
            let drive = Drive::attach(&place.target)?;
            let tree = drive.tree(&name)?;
            range(&drive, &tree, (from, to), limit.unwrap_or(u64::MAX), (keys, place.hex))
        }
        Btree::Put { name, key, file, place } => {
            let key = parse_key(key.as_bytes(), place.hex)?;
            let value = read_data(&file, VALUE_BYTES_MAX.into())?;
            let drive = Drive::attach(&place.target)?;
            drive.run(drive.tree(&name)?.put(&key, &value))
        }
        Btree::Delete { name, key, place } => {
            let key = parse_key(key.as_bytes(), place.hex)?;
            let drive = Drive::attach(&place.target)?;
            if drive.run(drive.tree(&name)?.delete(&key))? { Ok(()) } else { Err(missing(&key, place.hex)) }
        }
        Btree::Remove { name, target } => {
            let drive = Drive::attach(&target)?;
            drive.run(drive.client()?.remove(&name))
        }
        Btree::Stat { name, target, json } => {
            let drive = Drive::attach(&target)?;
            let found = drive.run(drive.tree(&name)?.statistics())?;
            let layout = if found.layout == Layout::Striped { "striped" } else { "partitioned" };
            let (pairs, height, pages, changes) = (found.pairs, found.height, found.pages, found.changes);
            if json {
                let value = serde_json::json!({
                    "name": name, "layout": layout, "pairs": pairs, "height": height, "pages": pages, "changes": changes,
                });
                return output::json(&value);
            }
            output::line(&format!(
                "{layout}, {pairs} pairs, {height} levels, {} for nodes and values",
                Size(pages * 4096)
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_keys_in_and_out() {
        assert_eq!(parse_line(b"key\ta\tvalue", false).unwrap().1, b"a\tvalue");
        assert_eq!(parse_line(b"00ff\t", true).unwrap(), (btree_host::key(&[0, 255]).unwrap(), Vec::new()));
        for line in [&b"key"[..], b"\tvalue", b"12345678901234567\tv"] {
            assert!(parse_line(line, false).is_err());
        }
        assert!(parse_line(b"0\tff", true).is_err() && parse_line(b"00\tf", true).is_err());
        assert!(parse_line(&[b"k\t".to_vec(), vec![b'v'; 4097]].concat(), false).is_err());
        assert_eq!(
            (show_key(&btree_host::key(b"a\n").unwrap(), false), show(b"\n", false)),
            ("a\\n".into(), "\\n".into())
        );
        assert_eq!(show_key(&btree_host::key(&[1]).unwrap(), true), format!("01{}", "00".repeat(15)));
    }
}
