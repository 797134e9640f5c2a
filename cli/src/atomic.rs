//! `willow atomic`: writes to a block namespace that are done as a whole or not at all.

use crate::client::{BlockNamespace, Client};
use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::rpc::read_data;
use crate::size::Size;
use crate::table::Table;
use crate::target::TargetOption;
use atomic_write_host::wire::Statistics;
use std::path::PathBuf;
use willow_wire::control::CommandSet;

/// Most bytes of one transaction that the command makes.
const DATA_BYTES_MAX: u64 = 16 << 20;

/// What all subcommands take.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Namespace, where there are several block namespaces
    #[arg(long)]
    nsid: Option<u32>,
    #[command(flatten)]
    target: TargetOption,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Atomic {
    /// Write several files to a block namespace: all of them, or none, whatever happens
    Write {
        /// Where a file's bytes go and the file: OFFSET=FILE, such as 64K=page.bin (- for standard input)
        #[arg(required = true, value_name = "OFFSET=FILE")]
        writes: Vec<String>,
        /// Put them into the log, and give them up instead of committing
        #[arg(long)]
        abort: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Print bytes of a block namespace as they are
    Read {
        /// First byte, such as 64K
        offset: Size,
        /// How many
        bytes: Size,
        #[command(flatten)]
        place: Place,
    },
    /// How full the log is on each processor
    Stat {
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

impl Place {
    /// A connection, and the namespace that is meant.
    fn open(&self) -> Outcome<(Client, BlockNamespace)> {
        let mut client = Client::connect(&self.target)?;
        let namespaces = client.namespaces()?;
        let blocks: Vec<u32> = namespaces.iter().filter(|n| n.csi == CommandSet::Nvm).map(|n| n.nsid).collect();
        let nsid = match (self.nsid, blocks.as_slice()) {
            (Some(nsid), _) if blocks.contains(&nsid) => nsid,
            (Some(nsid), _) => fail!("namespace {nsid} is no block namespace; those are {blocks:?}"),
            (None, [only]) => *only,
            (None, []) => fail!("there is no block namespace: make one with willow ns create --csi nvm --size 1G"),
            (None, _) => fail!("there are several block namespaces: choose one of {blocks:?} with --nsid"),
        };
        let found = client.block_namespace(nsid)?;
        Ok((client, found))
    }
}

/// What to write where.
struct Write {
    offset: u64,
    data: Vec<u8>,
}

fn parse(text: &str) -> Outcome<Write> {
    let Some((offset, file)) = text.split_once('=') else {
        fail!("\"{text}\" is not OFFSET=FILE, such as 64K=page.bin");
    };
    let offset: Size = offset.parse().map_err(|why| Failure::new(format_args!("the offset in \"{text}\": {why}")))?;
    let data = read_data(&PathBuf::from(file), DATA_BYTES_MAX)?;
    if data.is_empty() {
        fail!("{file} is empty: there is nothing to write");
    }
    Ok(Write { offset: offset.0, data })
}

fn check(write: &Write, found: &BlockNamespace) -> Outcome<()> {
    let end = write.offset.checked_add(write.data.len() as u64);
    if end.is_none_or(|end| end > found.bytes) {
        fail!(
            "{} bytes at {} go past the end of namespace {}, which has {} bytes",
            write.data.len(),
            write.offset,
            found.nsid,
            found.bytes
        );
    }
    Ok(())
}

/// Runs one.
pub fn run(atomic: Atomic) -> Outcome<()> {
    match atomic {
        Atomic::Write { writes, abort, place } => {
            if writes.iter().filter(|text| text.ends_with("=-")).count() > 1 {
                fail!("standard input is named twice");
            }
            let writes = writes.iter().map(|text| parse(text)).collect::<Outcome<Vec<Write>>>()?;
            let sum: u64 = writes.iter().map(|write| write.data.len() as u64).sum();
            if sum > DATA_BYTES_MAX {
                fail!("the files have {sum} bytes together, at most {DATA_BYTES_MAX} are written at once");
            }
            let (mut client, found) = place.open()?;
            writes.iter().try_for_each(|write| check(write, &found))?;
            let ranges: Vec<(u64, &[u8])> = writes.iter().map(|write| (write.offset, write.data.as_slice())).collect();
            client.write_atomically(&found, &ranges, abort)
        }
        Atomic::Read { offset, bytes, place } => {
            let (mut client, found) = place.open()?;
            let (Size(offset), Size(bytes)) = (offset, bytes);
            if offset.checked_add(bytes).is_none_or(|end| end > found.bytes) {
                fail!(
                    "{bytes} bytes at {offset} go past the end of namespace {}, which has {}",
                    found.nsid,
                    found.bytes
                );
            }
            let mut at = offset;
            while at < offset + bytes {
                let step = (offset + bytes - at).min(1 << 20);
                output::bytes(&client.read_range(&found, at, step)?)?;
                at += step;
            }
            Ok(())
        }
        Atomic::Stat { target, json } => {
            let mut client = Client::connect(&target)?;
            let all = client.log_statistics()?;
            if json {
                let spu = |statistics: &Statistics| {
                    serde_json::json!({
                        "open": statistics.open,
                        "committed": statistics.committed,
                        "chunks": statistics.chunks,
                        "free_chunks": statistics.free_chunks,
                    })
                };
                return output::json(&serde_json::json!({ "spus": all.iter().map(spu).collect::<Vec<_>>() }));
            }
            let mut table = Table::new(&["SPU", "open", "committed", "chunks", "free"]);
            for (spu, statistics) in all.iter().enumerate() {
                let Statistics { open, committed, chunks, free_chunks } = *statistics;
                table.row([spu as u32, open, committed, chunks, free_chunks].map(|number| number.to_string()));
            }
            output::text(&table.render())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_write_is_refused_with_the_reason() {
        for (text, why) in [("4096", "OFFSET=FILE"), ("x=file", "offset"), ("0=/no/such/file", "cannot read")] {
            let refused = parse(text).err().expect(text).to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let found = BlockNamespace {
            nsid: 1,
            bytes: 8192,
            geometry: base_io_host::Geometry { spus: 1, stripe_bytes: 8192, base: 0 },
        };
        assert!(check(&Write { offset: 8000, data: vec![0; 192] }, &found).is_ok());
        assert!(check(&Write { offset: 8000, data: vec![0; 193] }, &found).is_err());
        assert!(check(&Write { offset: u64::MAX, data: vec![0; 2] }, &found).is_err());
    }
}
