//! All parts of a file, some ahead of the one that is put together.

use super::parts::{Shared, Way};
use super::{ColumnsError, Place, Work};
use crate::control::ControlClient;
use crate::hre::Hre;
use columns_host::outcome::{self, Counted, Outcome, Row};
use columns_host::table::FileFormat;
use columns_host::value::Kind;
use columns_host::wire::{RUN_COUNT_QUOTES, RUN_QUOTED, RUN_SKIP_FIRST, Run};
use columns_host::{APP_NAME, Query, Table, Unit};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet};

/// Parts under way, for each SPU.
const PARTS_PER_SPU: usize = 2;
/// Replies of one part that wait to be put together.
const REPLIES_AHEAD_MAX: usize = 2;

type Replies = mpsc::Receiver<Result<Vec<u8>, ColumnsError>>;

fn begin(shared: &Arc<Shared>, tasks: &mut JoinSet<()>, unit: &Unit, run: Run, spu: u16) -> Replies {
    let (sender, replies) = mpsc::channel(REPLIES_AHEAD_MAX);
    let (shared, unit) = (shared.clone(), unit.clone());
    tasks.spawn_local(async move {
        if let Err(error) = shared.part(&unit, run, spu, &sender).await {
            // Nobody listens where all has ended.
            let _ = sender.send(Err(error)).await;
        }
    });
    replies
}

/// Whether each part of CSV begins within quotes.
async fn quoted(
    shared: &Arc<Shared>,
    units: &[Unit],
    (spus, ahead): (usize, usize),
) -> Result<Vec<bool>, ColumnsError> {
    let mut tasks = JoinSet::new();
    let (mut under_way, mut next) = (VecDeque::new(), 0);
    let (mut is_quoted, mut quoted) = (false, Vec::with_capacity(units.len()));
    while quoted.len() < units.len() {
        quoted.push(is_quoted);
        while next + 1 < units.len() && under_way.len() < ahead {
            let (begin_at, end) = (units[next].begin, units[next + 1].begin);
            let run = Run { plan: 0, flags: RUN_COUNT_QUOTES, begin: begin_at, end };
            under_way.push_back(begin(shared, &mut tasks, &units[next], run, (next % spus) as u16));
            next += 1;
        }
        while tasks.try_join_next().is_some() {}
        let Some(mut replies) = under_way.pop_front() else { continue };
        let mut is_done = false;
        while let Some(reply) = replies.recv().await {
            let reply = reply?;
            let (head, _) = outcome::open(&reply)?;
            is_done = head.is_done;
            is_quoted ^= head.selected % 2 == 1;
        }
        if !is_done {
            return Err(outcome::ReplyError.into());
        }
    }
    Ok(quoted)
}

/// Runs a query over a file; selected rows go to `each`, in the file's order, where rows are wanted. `hre` is an endpoint of this process, where the
/// file is one that it has directly.
pub async fn run(
    place: (Arc<Place>, Option<Arc<dyn Hre>>),
    table: Arc<Table>,
    query: Arc<Query>,
    each: impl FnMut(Row) -> Result<(), ColumnsError>,
) -> Result<(Outcome, Counted, Work), ColumnsError> {
    // Parts are tasks of this thread.
    LocalSet::new().run_until(parts(place, table, query, each)).await
}

async fn parts(
    (place, hre): (Arc<Place>, Option<Arc<dyn Hre>>),
    table: Arc<Table>,
    query: Arc<Query>,
    mut each: impl FnMut(Row) -> Result<(), ColumnsError>,
) -> Result<(Outcome, Counted, Work), ColumnsError> {
    let way = match (&*place, hre) {
        (Place::Direct(file), Some(hre)) => {
            let app = ControlClient::new(hre.clone()).find_app(APP_NAME).await.map_err(ColumnsError::NoApp)?;
            Some(Way { hre, app, geometry: file.geometry() })
        }
        _ => None,
    };
    let table = place.with_page_index(table, &query).await?;
    let spus = way.as_ref().map_or(1, |way| usize::from(way.geometry.spus));
    let ahead = spus * PARTS_PER_SPU;
    let shared = Arc::new(Shared {
        place,
        table,
        query,
        way,
        reply_bytes: AtomicU64::new(0),
        host_bytes: AtomicU64::new(0),
        drive_parts: AtomicU64::new(0),
        host_parts: AtomicU64::new(0),
    });
    let (table, query) = (&*shared.table, &*shared.query);
    let units = query.units(table);
    let quoted = match table.format() {
        FileFormat::Csv if units.len() > 1 => quoted(&shared, &units, (spus, ahead)).await?,
        _ => vec![false; units.len()],
    };
    // Both phases count parts: what is told is the second.
    shared.drive_parts.store(0, std::sync::atomic::Ordering::Relaxed);
    shared.host_parts.store(0, std::sync::atomic::Ordering::Relaxed);
    let kinds: Vec<Kind> =
        query.selected(table).iter().map(|field| field.of.as_ref().map_or(Kind::Bytes, |of| of.kind())).collect();
    let (mut outcome, mut counted) = (Outcome::new(query, table), Counted::default());
    // Parts that nobody waits for any more end with it.
    let mut tasks = JoinSet::new();
    let (mut under_way, mut next) = (VecDeque::new(), 0);
    loop {
        while next < units.len() && under_way.len() < ahead {
            let unit = &units[next];
            let flags =
                if unit.flags & RUN_SKIP_FIRST != 0 && quoted[next] { unit.flags | RUN_QUOTED } else { unit.flags };
            let run = Run { plan: 0, flags, begin: unit.begin, end: unit.end };
            under_way.push_back(begin(&shared, &mut tasks, unit, run, (next % spus) as u16));
            next += 1;
        }
        while tasks.try_join_next().is_some() {}
        let Some(mut replies) = under_way.pop_front() else { break };
        let mut is_done = false;
        while let Some(reply) = replies.recv().await {
            let reply = reply?;
            let (head, body) = outcome::open(&reply)?;
            counted.rows += head.rows;
            counted.selected += head.selected;
            is_done = head.is_done;
            outcome.add(query, &kinds, body, &mut each)?;
        }
        if !is_done {
            // The task has ended without a word.
            return Err(outcome::ReplyError.into());
        }
    }
    outcome.rows(&kinds, &mut each)?;
    Ok((outcome, counted, shared.work()))
}
