//! `willow kv`: pairs of a key-value namespace, by NVMe KV commands.

use crate::client::Client;
use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::rpc::read_data;
use crate::target::TargetOption;
use key_value_host::Key;
use std::path::PathBuf;
use willow_wire::control::CommandSet;

/// Most bytes of a value that the command handles: one NVMe transfer.
pub const VALUE_BYTES_MAX: u64 = 4 << 20;

/// What all subcommands take.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Namespace, where there are several key-value namespaces
    #[arg(long)]
    nsid: Option<u32>,
    /// Keys are written as hexadecimal digits, in and out
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    target: TargetOption,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Kv {
    /// Store a value
    Put {
        /// Key of 1 to 16 bytes
        key: String,
        /// The value: a file, or - for standard input
        file: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Print a value as it is
    Get {
        /// Key
        key: String,
        #[command(flatten)]
        place: Place,
    },
    /// Delete a pair
    Delete {
        /// Key
        key: String,
        #[command(flatten)]
        place: Place,
    },
    /// Ask whether there is such a pair: prints yes, or ends with status 1
    Exists {
        /// Key
        key: String,
        #[command(flatten)]
        place: Place,
    },
    /// List the keys, in the namespace's stable order
    List {
        /// Begin behind this key
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// Print at most this many
        #[arg(long)]
        limit: Option<u64>,
        #[command(flatten)]
        place: Place,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

fn parse_key(text: &str, hex: bool) -> Outcome<Key> {
    let bytes = if hex {
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
            fail!("key \"{text}\" is no even number of hexadecimal digits");
        }
        let value = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
        digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
    } else {
        text.as_bytes().to_vec()
    };
    match Key::new(&bytes) {
        Ok(key) => Ok(key),
        Err(_) => fail!("the key has {} bytes, must have 1 to 16", bytes.len()),
    }
}

fn show_key(key: &Key, hex: bool) -> String {
    if hex {
        key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    } else {
        match std::str::from_utf8(key.as_bytes()) {
            Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
            _ => key.as_bytes().escape_ascii().to_string(),
        }
    }
}

impl Place {
    /// A connection, and the namespace that is meant.
    fn open(&self) -> Outcome<(Client, u32)> {
        let mut client = Client::connect(&self.target)?;
        let namespaces = client.namespaces()?;
        let kv: Vec<u32> = namespaces.iter().filter(|n| n.csi == CommandSet::Kv).map(|n| n.nsid).collect();
        let nsid = match (self.nsid, kv.as_slice()) {
            (Some(nsid), _) if kv.contains(&nsid) => nsid,
            (Some(nsid), _) => fail!("namespace {nsid} is no key-value namespace; those are {kv:?}"),
            (None, [only]) => *only,
            (None, []) => fail!("there is no key-value namespace: make one with willow ns create --csi kv --size 1G"),
            (None, _) => fail!("there are several key-value namespaces: choose one of {kv:?} with --nsid"),
        };
        Ok((client, nsid))
    }
}

fn missing(key: &Key, place: &Place) -> Failure {
    Failure::new(format_args!("there is no key {}", show_key(key, place.hex)))
}

/// Runs one.
pub fn run(kv: Kv) -> Outcome<()> {
    match kv {
        Kv::Put { key, file, place } => {
            let key = parse_key(&key, place.hex)?;
            let value = read_data(&file, VALUE_BYTES_MAX)?;
            let (mut client, nsid) = place.open()?;
            client.put(nsid, &key, &value)
        }
        Kv::Get { key, place } => {
            let key = parse_key(&key, place.hex)?;
            let (mut client, nsid) = place.open()?;
            let value = client.get(nsid, &key)?.ok_or_else(|| missing(&key, &place))?;
            output::bytes(&value)
        }
        Kv::Delete { key, place } => {
            let key = parse_key(&key, place.hex)?;
            let (mut client, nsid) = place.open()?;
            if client.delete(nsid, &key)? { Ok(()) } else { Err(missing(&key, &place)) }
        }
        Kv::Exists { key, place } => {
            let key = parse_key(&key, place.hex)?;
            let (mut client, nsid) = place.open()?;
            if client.exists(nsid, &key)? { output::line("yes") } else { Err(missing(&key, &place)) }
        }
        Kv::List { after, limit, place, json } => {
            let mut after = after.map(|key| parse_key(&key, place.hex)).transpose()?;
            let (mut client, nsid) = place.open()?;
            let mut left = limit.unwrap_or(u64::MAX);
            let mut collected = Vec::new();
            while left > 0 {
                let keys = client.list(nsid, after.as_ref())?;
                let Some(last) = keys.last() else { break };
                after = Some(*last);
                let taken = keys.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                left -= taken as u64;
                if json {
                    collected.extend(keys[..taken].iter().map(|key| show_key(key, place.hex)));
                } else {
                    let lines: String = keys[..taken].iter().map(|key| show_key(key, place.hex) + "\n").collect();
                    output::text(&lines)?;
                }
            }
            if json { output::json(&serde_json::json!({ "nsid": nsid, "keys": collected })) } else { Ok(()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_and_out() {
        assert_eq!(parse_key("abc", false).unwrap().as_bytes(), b"abc");
        assert_eq!(parse_key("00ff", true).unwrap().as_bytes(), [0, 255]);
        assert_eq!(show_key(&parse_key("00ff", true).unwrap(), true), "00ff");
        assert_eq!(show_key(&parse_key("00ff", true).unwrap(), false), "\\x00\\xff");
        assert_eq!(show_key(&parse_key("grün", false).unwrap(), false), "grün");
        for (text, hex) in [("", false), ("12345678901234567", false), ("0", true), ("zz", true)] {
            assert!(parse_key(text, hex).is_err(), "{text}");
        }
    }
}
