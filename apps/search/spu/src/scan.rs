//! One scan: chunks of a bank are read while the one before is searched, and cut at the borders of stripes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use willow_sdk::{Error, Local, Nv, Reply, Request, Response, join, yield_now};

use crate::buffers::{Buffer, CHUNK_BYTES};
use crate::segment::{self, End, Output, Set};
use crate::sets::Kept;
use crate::wire::*;
use crate::{Failure, MALFORMED, NO_MEMORY, State, process};

/// How often a scan asks for a permission that is missing before it fails.
const ASKS_MAX: u32 = 4;
/// What a scan does before it makes way for others, in instructions as they are estimated here: far from a run's budget.
const WORK_MAX: u32 = 1_000_000;
/// Instructions for a byte, with an automaton and without.
const BYTE_WORK: [u32; 2] = [16, 2];
/// Instructions for a line or a match, all that is done for it.
const STEP_WORK: u32 = 600;

/// How far a scan has come.
struct Progress {
    range: Scan,
    /// Bytes scanned.
    done: u32,
    /// Bytes of the reply.
    used: usize,
    is_full: bool,
    /// Instructions since it made way for others.
    work: u32,
}

impl Progress {
    fn left(&self) -> u32 {
        self.range.bytes - self.done
    }

    /// Bytes from an offset to the next border between stripes.
    fn to_border(&self, offset: u32) -> u32 {
        let Scan { stripe_bytes, first_bytes, .. } = self.range;
        match (stripe_bytes, offset < first_bytes) {
            (0, _) => u32::MAX,
            (_, true) => first_bytes - offset,
            (stripe_bytes, false) => stripe_bytes - (offset - first_bytes) % stripe_bytes,
        }
    }

    /// Scans a chunk that begins where the scan has come to.
    fn chunk(&mut self, set: &Set<'_>, mut chunk: &[u8], reply: &mut [u8]) {
        while !chunk.is_empty() && !self.is_full {
            let segment = chunk.len().min(self.to_border(self.done) as usize);
            let mut out = Output::new(&mut reply[self.used..]);
            let end = segment::scan(set, &chunk[..segment], &mut out);
            let bytes = segment as u32 * BYTE_WORK[usize::from(set.automaton.is_none())];
            self.work += bytes + out.steps() * STEP_WORK;
            match end {
                End::NoRoom => self.is_full = true,
                End::Scanned(bytes) => {
                    self.used += out.used();
                    self.done += bytes as u32;
                    self.is_full = bytes < segment;
                    chunk = &chunk[bytes..];
                }
            }
        }
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
    let mut progress = Progress { range, done: 0, used: REPLY_HEAD_BYTES, is_full: false, work: 0 };
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
        progress = Progress { range, done: 0, used: REPLY_HEAD_BYTES, is_full: false, work: 0 };
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
    let Buffer { chunks: [first, second], reply } = buffer;
    let (mut current, mut next) = (first, second);
    let reply = &mut reply[..reply_bytes];
    let nv = progress.range.nv_address;
    // Not in the handler's own memory, of which there is as much for each of an app's threads as for any.
    let mut place = Vec::new();
    place.try_reserve_exact(1).map_err(|_| Error::Full)?;
    place.push(kept.set());
    let Some(set) = place.first() else { return Err(Error::Full) };
    let mut bytes = progress.left().min(CHUNK_BYTES as u32);
    request.read(nv, &mut current[..bytes as usize]).await?;
    while bytes > 0 {
        let behind = progress.done + bytes;
        let next_bytes = (progress.range.bytes - behind).min(CHUNK_BYTES as u32);
        let read = request.read(nv.wrapping_add(behind.into()), &mut next[..next_bytes as usize]);
        let chunk = &current[..bytes as usize];
        let search = async { progress.chunk(set, chunk, reply) };
        let (read, ()) = join(read, search).await;
        read?;
        if progress.is_full {
            break;
        }
        if progress.work >= WORK_MAX {
            progress.work = 0;
            yield_now().await?;
        }
        core::mem::swap(&mut current, &mut next);
        bytes = next_bytes;
    }
    Ok(())
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
