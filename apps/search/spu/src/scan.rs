//! One scan: chunks of a bank are read while the one before is searched, and cut at the borders of stripes. Where literals tell which stripes
//! need that, the accelerator goes first ([`crate::fast`]).

use alloc::sync::Arc;
use alloc::vec::Vec;

use willow_sdk::{Error, Found, Local, Match, Nv, Reply, Request, Response, join, yield_now};

use crate::buffers::{Buffer, MATCHES_MAX};
use crate::segment::{self, End, Output, Set};
use crate::sets::{Decider, Kept};
use crate::wire::*;
use crate::{Failure, MALFORMED, NO_MEMORY, State, process};

/// Longest segment: what its worst bytes cost stays far from a run's budget.
const SEGMENT_BYTES_MAX: usize = 8 << 10;
/// How often a scan asks for a permission that is missing before it fails.
const ASKS_MAX: u32 = 4;
/// What a scan does before it makes way for others, in instructions as they are estimated here: far from a run's budget.
const WORK_MAX: u32 = 1_000_000;
/// Instructions for a byte, with an automaton and without.
const BYTE_WORK: [u32; 2] = [16, 2];
/// Instructions for a line or a match, all that is done for it.
const STEP_WORK: u32 = 600;

/// Instructions for a search by the accelerator: the most that it is charged.
pub const SEARCH_WORK: u32 = 110_000;

/// How far a scan has come.
pub struct Progress {
    /// What is to be scanned.
    pub range: Scan,
    /// Bytes scanned.
    pub done: u32,
    /// Bytes of the reply.
    pub used: usize,
    /// Nothing more fits the reply.
    pub is_full: bool,
    /// Instructions since it made way for others.
    work: u32,
}

impl Progress {
    fn new(range: Scan) -> Progress {
        Progress { range, done: 0, used: REPLY_HEAD_BYTES, is_full: false, work: 0 }
    }

    /// True where the scan is at its end.
    pub fn is_over(&self) -> bool {
        self.is_full || self.done == self.range.bytes
    }

    /// Where in the bank it has come to.
    pub fn nv_address(&self) -> u64 {
        self.range.nv_address.wrapping_add(self.done.into())
    }

    /// Bytes from an offset to the next border between stripes.
    pub fn to_border(&self, offset: u32) -> u32 {
        let Scan { stripe_bytes, first_bytes, .. } = self.range;
        match (stripe_bytes, offset < first_bytes) {
            (0, _) => u32::MAX,
            (_, true) => first_bytes - offset,
            (stripe_bytes, false) => stripe_bytes - (offset - first_bytes) % stripe_bytes,
        }
    }

    /// Notes what was done, and makes way for others where that was much.
    pub async fn worked(&mut self, instructions: u32) -> Result<(), Error> {
        self.work += instructions;
        if self.work < WORK_MAX {
            return Ok(());
        }
        self.work = 0;
        yield_now().await
    }

    /// Scans a segment, where the scan has come to; the instructions that took.
    fn segment(&mut self, set: &Set<'_, Decider<'_>>, segment: &[u8], reply: &mut [u8]) -> u32 {
        let mut out = Output::new(&mut reply[self.used..]);
        let end = segment::scan(set, segment, &mut out);
        match end {
            End::NoRoom => self.is_full = true,
            End::Scanned(bytes) => {
                self.used += out.used();
                self.done += bytes as u32;
                self.is_full = bytes < segment.len();
            }
        }
        segment.len() as u32 * BYTE_WORK[usize::from(set.automaton.is_none())] + out.steps() * STEP_WORK
    }
}

/// What a scan searches for and with.
pub struct Tools<'a> {
    /// The request.
    pub request: &'a Request,
    /// The set.
    pub kept: &'a Kept,
    /// Ready to search with, where the accelerator is not needed for each segment. In a list of one: the handler's own memory is
    /// scarce.
    set: Vec<Set<'a, Decider<'a>>>,
}

impl<'a> Tools<'a> {
    fn new(request: &'a Request, kept: &'a Kept) -> Result<Tools<'a>, Error> {
        let mut set = Vec::new();
        if !kept.needs_accelerator() {
            set.try_reserve_exact(1).map_err(|_| Error::Full)?;
            set.push(kept.set(&[]));
        }
        Ok(Tools { request, kept, set })
    }

    /// Scans a chunk, where the scan has come to.
    async fn chunk(
        &self,
        progress: &mut Progress,
        mut chunk: &[u8],
        reply: &mut [u8],
        found: &mut Found<MATCHES_MAX>,
    ) -> Result<(), Error> {
        while !chunk.is_empty() && !progress.is_full {
            let mut bytes = chunk.len().min(progress.to_border(progress.done) as usize).min(SEGMENT_BYTES_MAX);
            let begin = progress.done;
            let work = match (self.set.first(), self.kept.accelerated()) {
                (Some(set), _) => progress.segment(set, &chunk[..bytes], reply),
                (None, Some(literals)) => {
                    found.restart();
                    literals.find(self.request, Local(&chunk[..bytes]), bytes as u32, found).await?;
                    // Where it did not get to the end, the segment is shorter: it may be cut anywhere.
                    bytes = bytes.min(found.looked_at().max(1) as usize);
                    let matches: &[Match] = found.matches();
                    SEARCH_WORK + progress.segment(&self.kept.set(matches), &chunk[..bytes], reply)
                }
                (None, None) => return Err(Error::Full),
            };
            progress.worked(work).await?;
            chunk = &chunk[(progress.done - begin) as usize..];
        }
        Ok(())
    }

    /// Scans up to an offset, each chunk while the next one is read.
    pub async fn until(
        &self,
        end: u32,
        progress: &mut Progress,
        (chunks, found): (&mut [&mut [u8]; 2], &mut Found<MATCHES_MAX>),
        reply: &mut [u8],
    ) -> Result<(), Error> {
        let [current, next] = chunks;
        let chunk_bytes = current.len() as u32;
        let mut bytes = (end - progress.done).min(chunk_bytes);
        self.request.read(progress.nv_address(), &mut current[..bytes as usize]).await?;
        while bytes > 0 {
            let behind = progress.done + bytes;
            let next_bytes = (end - behind).min(chunk_bytes);
            let address = progress.range.nv_address.wrapping_add(behind.into());
            let read = self.request.read(address, &mut next[..next_bytes as usize]);
            let search = self.chunk(progress, &current[..bytes as usize], reply, found);
            let (read, search) = join(read, search).await;
            read.and(search)?;
            if progress.is_full {
                break;
            }
            core::mem::swap(current, next);
            bytes = next_bytes;
        }
        Ok(())
    }
}

/// The handler.
pub async fn scan(request: &Request, state: &State) -> Result<Response, Failure> {
    let range = Scan::decode(&request.receive_array().map_err(|_| MALFORMED)?);
    let reply_bytes = (request.info().reply_bytes as usize).min(REPLY_BYTES_MAX);
    if reply_bytes < REPLY_BYTES_MIN || range.bytes > SCAN_BYTES_MAX || range.first_bytes > SCAN_BYTES_MAX {
        return Err(MALFORMED);
    }
    let set = state.sets.get(process(request), range.set).ok_or(Failure(STATUS_NO_SET, 0))?;
    let mut progress = Progress::new(range);
    let mut asks = 0;
    loop {
        let mut buffer = state.buffers.take().await.ok_or(NO_MEMORY)?;
        let run = run(request, &set, &mut progress, &mut buffer, reply_bytes).await;
        let answered = match run {
            Ok(()) => {
                let head = [progress.done, progress.used as u32];
                buffer.reply[..4].copy_from_slice(&head[0].to_le_bytes());
                buffer.reply[4..8].copy_from_slice(&head[1].to_le_bytes());
                request.dma(Local(&buffer.reply), Reply(0), progress.used as u32).await
            }
            Err(error) => Err(error),
        };
        state.buffers.give(buffer);
        match answered {
            Ok(()) => return Ok(Response::success(progress.used as u32)),
            Err(Error::Permission) if asks < ASKS_MAX => asks += 1,
            Err(error) => return Err(error.into()),
        }
        // What was found so far went with the buffer: begin anew when the agent has answered.
        progress = Progress::new(range);
        ask(request, &range).await?;
    }
}

/// Scans until the range, or the room for the reply, is at its end.
async fn run(
    request: &Request,
    kept: &Arc<Kept>,
    progress: &mut Progress,
    buffer: &mut Buffer,
    reply_bytes: usize,
) -> Result<(), Error> {
    let tools = Tools::new(request, kept)?;
    let Buffer { chunks: [first, second], reply, found: [of_block, of_segment] } = buffer;
    let chunks = &mut [&mut first[..], &mut second[..]];
    let reply = &mut reply[..reply_bytes];
    let (Some(of_block), Some(of_segment)) = (of_block.first_mut(), of_segment.first_mut()) else {
        return Err(Error::Full);
    };
    if kept.is_fast() {
        return crate::fast::scan(&tools, progress, chunks, (of_block, of_segment), reply).await;
    }
    tools.until(progress.range.bytes, progress, (chunks, of_segment), reply).await
}

/// Has the agent asked for what is missing, at both ends of the range: it lies in one extent of a file.
async fn ask(request: &Request, range: &Scan) -> Result<(), Failure> {
    let mut byte = [0; 1];
    for offset in [0, range.bytes.saturating_sub(1)] {
        let at = Nv(range.nv_address.wrapping_add(offset.into())).parked();
        request.dma(at, Local(&mut byte), 1).await?;
    }
    Ok(())
}
