//! A file searched by the SPUs that it lies at: rounds of scans, some ahead of the one that is joined.

use super::resolve::{Source, deliver};
use super::{SearchError, Work};
use crate::control::ControlClient;
use crate::direct_io::DirectFile;
use crate::hre::{Hre, RpcCall};
use search_host::grep::{BLOCK_BYTES, Found};
use search_host::join::{self, Joiner, Segment};
use search_host::plan::{BankScan, Plan, Round};
use search_host::wire::{self, Scan, handler};
use search_host::{APP_NAME, Grep, GrepOptions, Pattern};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

/// Rounds that are scanned at once: the one that is joined, and those behind it.
const ROUNDS_MAX: usize = 3;
/// Replies of one scan that wait to be joined.
const REPLIES_AHEAD_MAX: usize = 4;
/// How often a set is prepared anew for one scan, since the SPU had to make room for others'.
const PREPARES_MAX: u32 = 16;
/// How often a scan is tried that SPU-OS has no place for, and the wait between.
const TRIES_MAX: u32 = 1000;
const TRY_WAIT: Duration = Duration::from_millis(5);

/// What is shared by the scans under way.
struct Shared {
    hre: Arc<dyn Hre>,
    app: u16,
    /// What an SPU is told to prepare.
    body: Vec<u8>,
    /// What it has called it, by SPU.
    sets: Mutex<HashMap<u16, u32>>,
    stripe_bytes: u32,
}

/// Searches files in a drive for one pattern.
pub struct Searcher {
    hre: Arc<dyn Hre>,
    app: u16,
    body: Vec<u8>,
    sets: HashMap<u16, u32>,
}

/// A round under way.
enum Begun {
    Hole(u64),
    Scans { namespace_offset: u64, bytes: u64, parts: HashMap<u16, Part> },
}

/// One SPU's part of a round.
struct Part {
    replies: mpsc::Receiver<Result<Vec<u8>, SearchError>>,
    /// The segments of the reply at hand that have not been joined.
    reply: Vec<u8>,
    at: usize,
}

impl Searcher {
    /// By an endpoint of this process; [`PatternError::TooBig`](search_host::PatternError) where the pattern is one for the host.
    pub async fn new(hre: Arc<dyn Hre>, pattern: &Pattern, options: &GrepOptions) -> Result<Searcher, SearchError> {
        let body = pattern.for_drive(options.for_scan())?;
        let app = ControlClient::new(hre.clone()).find_app(APP_NAME).await.map_err(SearchError::NoApp)?;
        Ok(Searcher { hre, app, body, sets: HashMap::new() })
    }

    /// Searches a file.
    pub async fn search(
        &mut self,
        file: &DirectFile,
        pattern: &Pattern,
        options: &GrepOptions,
        mut grep: Grep<'_>,
    ) -> Result<(Found, Work), SearchError> {
        let mut joiner = Joiner::new(!options.text);
        let plan = Plan::new(file.geometry(), file.bytes());
        let shared = Arc::new(Shared {
            hre: self.hre.clone(),
            app: self.app,
            body: self.body.clone(),
            sets: Mutex::new(std::mem::take(&mut self.sets)),
            stripe_bytes: plan.stripe_bytes(),
        });
        let outcome = run(&shared, plan, file, (pattern, options), &mut grep, &mut joiner).await;
        // However it ended: the SPUs have them, for the next file and to be given back. Scans that went on have ended with `run`.
        self.sets = std::mem::take(&mut *shared.sets.lock().await);
        match outcome {
            Ok(work) => Ok((grep.finish(&joiner).map_err(SearchError::Write)?, work)),
            Err(error) => {
                grep.advance(&joiner, true).map_err(SearchError::Write)?;
                Err(error)
            }
        }
    }

    /// Gives the SPUs' memory back. What is not given back goes when others need it.
    pub async fn close(self) -> Result<(), SearchError> {
        for (spu, set) in self.sets {
            let payload = set.to_le_bytes().to_vec();
            let call =
                RpcCall { app: self.app, handler: handler::RELEASE, spu: Some(spu), payload, ..RpcCall::default() };
            self.hre.rpc(call).await?;
        }
        Ok(())
    }
}

/// Searches a file by what is shared.
async fn run(
    shared: &Arc<Shared>,
    mut plan: Plan,
    file: &DirectFile,
    (pattern, options): (&Pattern, &GrepOptions),
    grep: &mut Grep<'_>,
    joiner: &mut Joiner,
) -> Result<Work, SearchError> {
    // Scans that nobody waits for any more end with it.
    let mut tasks = JoinSet::new();
    let mut rounds = VecDeque::new();
    let mut lines = Vec::new();
    let mut work = Work::default();
    if has_holes(file) {
        grep.has_holes();
    }
    while !grep.is_done() {
        while rounds.len() < ROUNDS_MAX
            && let Some(round) = plan.next(file.extents())
        {
            rounds.push_back(begin(shared, &mut tasks, &plan, round));
        }
        // Those that have ended are no use any more.
        while tasks.try_join_next().is_some() {}
        match rounds.pop_front() {
            None => break,
            Some(Begun::Hole(bytes)) => {
                joiner.hole(bytes, &mut |line| lines.push(line));
                deliver((&mut *grep, pattern, options), joiner, &mut lines, &Source::Direct(file)).await?;
            }
            Some(Begun::Scans { namespace_offset, bytes, mut parts }) => {
                let mut done = 0;
                while done < bytes && !grep.is_done() {
                    let (spu, stripe) = plan.stripe_at(namespace_offset + done);
                    let whole = if shared.stripe_bytes == 0 { bytes } else { stripe };
                    let end = done + whole.min(bytes - done);
                    let part = parts.get_mut(&spu).ok_or(SearchError::Device(wire::STATUS_RANGE))?;
                    while done < end && !grep.is_done() {
                        let segment = part.segment(&mut work).await?;
                        if u64::from(segment.head.bytes) > end - done {
                            return Err(SearchError::Device(wire::STATUS_RANGE));
                        }
                        done += u64::from(segment.head.bytes);
                        work.drive_bytes += u64::from(segment.head.bytes);
                        joiner.segment(&segment, options.text_wanted(), &mut |line| lines.push(line));
                    }
                    deliver((&mut *grep, pattern, options), joiner, &mut lines, &Source::Direct(file)).await?;
                }
            }
        }
    }
    if !grep.is_done() {
        joiner.finish(&mut |line| lines.push(line));
        deliver((&mut *grep, pattern, options), joiner, &mut lines, &Source::Direct(file)).await?;
    }
    Ok(work)
}

/// True where a file has holes behind its first block.
fn has_holes(file: &DirectFile) -> bool {
    let mut at = 0;
    for extent in file.extents() {
        if extent.file_offset > at.max(BLOCK_BYTES) {
            return true;
        }
        at = extent.file_end();
    }
    file.bytes() > at.max(BLOCK_BYTES)
}

fn begin(shared: &Arc<Shared>, tasks: &mut JoinSet<()>, plan: &Plan, round: Round) -> Begun {
    let (namespace_offset, bytes, scans) = match round {
        Round::Hole { bytes } => return Begun::Hole(bytes),
        Round::Scans { namespace_offset, bytes, scans } => (namespace_offset, bytes, scans),
    };
    let mut parts = HashMap::with_capacity(scans.len());
    for scan in scans {
        let (sender, replies) = mpsc::channel(REPLIES_AHEAD_MAX);
        let (shared, plan) = (shared.clone(), plan.clone());
        tasks.spawn(async move {
            if let Err(error) = shared.scan(&plan, scan, &sender).await {
                // Nobody listens where the search has ended.
                let _ = sender.send(Err(error)).await;
            }
        });
        parts.insert(scan.spu, Part { replies, reply: Vec::new(), at: 0 });
    }
    Begun::Scans { namespace_offset, bytes, parts }
}

impl Part {
    /// The next segment.
    async fn segment(&mut self, work: &mut Work) -> Result<Segment<'_>, SearchError> {
        if self.at == self.reply.len() {
            let reply = self.replies.recv().await.unwrap_or(Err(SearchError::Device(wire::STATUS_RANGE)))?;
            work.reply_bytes += reply.len() as u64;
            (self.reply, self.at) = (reply, wire::REPLY_HEAD_BYTES);
        }
        let mut rest = &self.reply[self.at..];
        let segment = Segment::take(&mut rest)?;
        self.at = self.reply.len() - rest.len();
        Ok(segment)
    }
}

impl Shared {
    /// Scans a range of a bank, by as many requests as that takes.
    async fn scan(
        &self,
        plan: &Plan,
        mut left: BankScan,
        replies: &mpsc::Sender<Result<Vec<u8>, SearchError>>,
    ) -> Result<(), SearchError> {
        let (mut prepares, mut tries) = (0, 0);
        while left.bytes > 0 {
            let set = self.set(left.spu).await?;
            let scan = Scan {
                set,
                bytes: left.bytes.min(wire::SCAN_BYTES_MAX.into()) as u32,
                nv_address: left.nv_address,
                stripe_bytes: self.stripe_bytes,
                first_bytes: if self.stripe_bytes == 0 { 0 } else { plan.to_border(left.nv_address) },
            };
            let call = RpcCall {
                app: self.app,
                handler: handler::SCAN,
                spu: Some(left.spu),
                arguments: scan.encode().to_vec(),
                payload: Vec::new(),
                reply_bytes_max: wire::REPLY_BYTES_MAX as u32,
            };
            let mut reply = self.hre.rpc(call).await?;
            match reply.status {
                0 => {}
                wire::STATUS_NO_SET if prepares < PREPARES_MAX => {
                    prepares += 1;
                    self.forget(left.spu, set).await;
                    continue;
                }
                wire::STATUS_BUSY if tries < TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(TRY_WAIT).await;
                    continue;
                }
                wire::STATUS_NO_SET => return Err(SearchError::Forgotten),
                status => return Err(SearchError::of_status(status)),
            }
            let (scanned, segments) = join::open(&reply.data)?;
            if scanned == 0 || scanned > scan.bytes {
                return Err(SearchError::Device(wire::STATUS_RANGE));
            }
            let used = wire::REPLY_HEAD_BYTES + segments.len();
            reply.data.truncate(used);
            left.nv_address += u64::from(scanned);
            left.bytes -= u64::from(scanned);
            if replies.send(Ok(reply.data)).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The set's number at an SPU, prepared where it is not.
    async fn set(&self, spu: u16) -> Result<u32, SearchError> {
        // Held, so that it is prepared once.
        let mut sets = self.sets.lock().await;
        if let Some(set) = sets.get(&spu) {
            return Ok(*set);
        }
        let payload = self.body.clone();
        let call = RpcCall { app: self.app, handler: handler::PREPARE, spu: Some(spu), payload, ..RpcCall::default() };
        let reply = self.hre.rpc(call).await?;
        if reply.status != 0 {
            return Err(SearchError::of_status(reply.status));
        }
        sets.insert(spu, reply.result);
        Ok(reply.result)
    }

    /// An SPU has none of that number any more.
    async fn forget(&self, spu: u16, set: u32) {
        let mut sets = self.sets.lock().await;
        if sets.get(&spu) == Some(&set) {
            sets.remove(&spu);
        }
    }
}
