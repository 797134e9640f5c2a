//! What runs plans over files in memory, and an oracle for Parquet files, for tests and fuzzing: whatever the bytes are, nothing panics, as many rows are read as the metadata say or the run ends with a
//! reason, and in whatever pieces the file is read its columns have the same sums.

use crate::outcome::{self, Outcome};
use crate::table::Rows;
use crate::{Query, Table, Wanted, footer};
use base_io_host::Geometry;
use columns_spu::engine::{Decompression, Port, Stop, run};
use columns_spu::wire::{Plan, REPLY_BYTES_MAX, Run};
use std::future::Future;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

/// Rows of a file that is read: as many nulls as the metadata say are read otherwise, from a few bytes.
const ROWS_MAX: u64 = 20_000;

/// A file in memory, read so much at a time.
pub struct Memory<'a> {
    /// The file.
    pub file: &'a [u8],
    /// Bytes that are read at a time.
    pub input_bytes: usize,
    /// What was replied.
    pub reply: Mutex<Vec<u8>>,
}

impl Port for Memory<'_> {
    async fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Stop> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.file.get(offset..)?.get(..to.len()));
        to.copy_from_slice(from.unwrap_or_else(|| panic!("bytes from {offset} on are past the file")));
        Ok(())
    }

    async fn reply(&self, offset: u32, from: &[u8]) -> Result<(), Stop> {
        let mut reply = self.reply.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let end = offset as usize + from.len();
        assert!(end <= REPLY_BYTES_MAX, "a reply has {end} bytes");
        let length = reply.len().max(end);
        reply.resize(length, 0);
        reply[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    async fn decompress(&self, from: &[u8], to: &mut [u8], state: &mut Decompression) -> Result<(), Stop> {
        state.step(from, to);
        Ok(())
    }

    async fn worked(&self, _: usize) -> Result<(), Stop> {
        Ok(())
    }

    fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    fn value_bytes_max(&self) -> usize {
        256 << 10
    }

    fn compared_bytes_max(&self) -> usize {
        4 << 10
    }
}

/// All that such a port waits for is there.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing is waited for"),
    }
}

/// Sums of all columns as text, or why there are none.
fn sums(file: &[u8], (table, query): (&Table, &Query), input_bytes: usize) -> Result<String, Stop> {
    let mut outcome = Outcome::new(query, table);
    let geometry = Geometry { spus: 1, stripe_bytes: 8192, base: 0 };
    for unit in query.units(table) {
        let Some(plan) = query.plan(table, &unit, geometry, &[]) else { panic!("a plan without extents") };
        let Some(plan) = Plan::decode(&plan.encode()) else { panic!("a host's own plan is refused") };
        let mut asked = Run { plan: 1, flags: unit.flags, begin: unit.begin, end: unit.end };
        loop {
            let memory = Memory { file, input_bytes, reply: Mutex::new(Vec::new()) };
            let head = now(run(&memory, &plan, &asked, REPLY_BYTES_MAX))?;
            let reply = memory.reply.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
            let Ok((told, body)) = outcome::open(&reply) else { panic!("a reply that is none") };
            assert_eq!(told, head);
            let added = outcome.add(query, &[], body, |_| Ok::<(), outcome::ReplyError>(()));
            assert!(added.is_ok(), "a reply that is none");
            if head.is_done {
                break;
            }
            assert!(head.next > asked.begin && head.rows > 0, "it goes on");
            asked.begin = head.next;
        }
    }
    Ok(format!("{outcome:?}"))
}

/// What came of bytes as a Parquet file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// The metadata, or what is asked of the table, are refused.
    Refused,
    /// It ended before the file did.
    Stopped,
    /// It was read.
    Read,
}

/// Reads bytes as a Parquet file, all columns that are supported.
pub fn check_parquet(file: &[u8]) -> Checked {
    let (bytes, tail) = (file.len() as u64, file.last_chunk().copied().unwrap_or_default());
    let Ok(length) = footer::metadata_bytes(&tail, bytes) else { return Checked::Refused };
    let end = file.len() - footer::TAIL_BYTES;
    let Ok(table) = Table::parquet(&file[end - length..end], bytes) else { return Checked::Refused };
    let Rows::Parquet { row_groups, .. } = &table.rows else { panic!("a table of Parquet") };
    if row_groups.iter().map(|group| group.rows).sum::<u64>() > ROWS_MAX {
        return Checked::Refused;
    }
    let names = table.fields.iter().filter(|field| field.of.is_ok()).map(|field| field.name.clone()).collect();
    let Ok(query) = Query::new(&table, None, &Wanted::Aggregate(names)) else { return Checked::Refused };
    let wholes = sums(file, (&table, &query), 256 << 10);
    let pieces = sums(file, (&table, &query), 61);
    match (&wholes, &pieces) {
        (Ok(wholes), Ok(pieces)) => assert_eq!(wholes, pieces),
        // In which pieces it is read may decide what is found missing first, not whether something is.
        (Err(_), Err(_)) => {}
        _ => panic!("{wholes:?} and {pieces:?}"),
    }
    if wholes.is_ok() { Checked::Read } else { Checked::Stopped }
}
