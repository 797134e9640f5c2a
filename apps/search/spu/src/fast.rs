//! A scan by the accelerator: it looks for the literals where the bytes lie, and of stripes without any only the borders are read.
//!
//! What always holds: what is told of a stripe is what [`crate::segment::scan`] would tell.

use memchr::{memchr, memchr2, memrchr, memrchr2};
use willow_sdk::{Error, Found, Local, Match, Nv, Strides, join};

use crate::buffers::{CHUNK_BYTES, MATCHES_MAX};
use crate::scan::{Progress, SEARCH_WORK, Tools};
use crate::wire::*;

/// What the accelerator looks through at once.
const BLOCK_BYTES: u32 = 128 << 10;
/// What is read of a stripe's border: a line end is nearly always in it.
const WINDOW_BYTES: usize = 512;
/// Most stripes of a block: their windows at both ends fill a chunk.
const STRIPES_MAX: u32 = (CHUNK_BYTES / WINDOW_BYTES / 2) as u32;
/// Shortest stripe for which that is worth it.
const STRIPE_BYTES_MIN: u32 = 8 * WINDOW_BYTES as u32;
/// What is scanned without the accelerator where every other stripe of a block has matches, before it is tried again.
const DENSE_BYTES: u32 = 512 << 10;
/// Instructions for a stripe of which the borders alone are looked at.
const STRIPE_WORK: u32 = 1500;
const _: () = assert!(WINDOW_BYTES <= BORDER_BYTES_MAX);

/// A block of stripes.
struct Block {
    stripes: u32,
    stripe_bytes: u32,
}

/// The stripes from here on that are whole in the range; `None` where there is none.
fn block(progress: &Progress) -> Option<Block> {
    let left = progress.range.bytes - progress.done;
    let stripe_bytes = match progress.range.stripe_bytes {
        0 => left.min(BLOCK_BYTES),
        stripe_bytes => stripe_bytes,
    };
    let is_at_border = progress.range.stripe_bytes == 0 || progress.to_border(progress.done) == stripe_bytes;
    let stripes = (left.min(BLOCK_BYTES.max(stripe_bytes)) / stripe_bytes.max(1)).min(STRIPES_MAX);
    let is_worth_it = is_at_border && (STRIPE_BYTES_MIN..=BLOCK_BYTES).contains(&stripe_bytes);
    (is_worth_it && stripes > 0).then_some(Block { stripes, stripe_bytes })
}

/// Scans until the range, or the room for the reply, is at its end.
pub async fn scan(
    tools: &Tools<'_>,
    progress: &mut Progress,
    chunks: &mut [&mut [u8]; 2],
    (of_block, of_segment): (&mut Found<MATCHES_MAX>, &mut Found<MATCHES_MAX>),
    reply: &mut [u8],
) -> Result<(), Error> {
    while !progress.is_over() {
        let Some(block) = block(progress) else {
            // Up to the next border, or all of it.
            let end = progress.done.saturating_add(progress.to_border(progress.done)).min(progress.range.bytes);
            tools.until(end, progress, (chunks, of_segment), reply).await?;
            continue;
        };
        let Some(literals) = tools.kept.accelerated() else { return Err(Error::Full) };
        let bytes = block.stripes * block.stripe_bytes;
        of_block.restart();
        let find = literals.find(tools.request, Nv(progress.nv_address()), bytes, of_block);
        let (found, windows) = join(find, read_windows(tools, progress, &block, chunks[1])).await;
        found?;
        windows?;
        progress.worked(SEARCH_WORK).await?;
        let stripes = of_block.looked_at().min(bytes) / block.stripe_bytes;
        let begin = progress.done;
        let matches = of_block.matches();
        let is_dense = stripes == 0 || matches.len() as u32 * 2 > stripes.max(2);
        if is_dense && (stripes == 0 || matches.len() > 4) {
            let end = progress.range.bytes.min(begin + DENSE_BYTES.next_multiple_of(block.stripe_bytes));
            tools.until(end, progress, (chunks, of_segment), reply).await?;
            continue;
        }
        let mut first = 0;
        for stripe in 0..stripes {
            let (from, end) = (stripe * block.stripe_bytes, (stripe + 1) * block.stripe_bytes);
            let count = matches[first..].iter().take_while(|found| found.begin < end).count();
            let inside = &matches[first..first + count];
            first += count;
            // A match that goes over the border may hide one behind it: both are in the line that goes over the border.
            let windows = windows_of(chunks[1], stripe);
            if !tell(tools, progress, windows, (from, block.stripe_bytes), inside, reply) {
                // The windows stay: the stripe is read into the other chunk alone.
                let (one, other) = chunks[0].split_at_mut(CHUNK_BYTES / 2);
                tools.until(begin + end, progress, (&mut [one, other], of_segment), reply).await?;
            }
            if progress.is_full {
                return Ok(());
            }
        }
        progress.worked(stripes * STRIPE_WORK).await?;
    }
    Ok(())
}

/// Reads what lies at both ends of each stripe of a block.
async fn read_windows(tools: &Tools<'_>, progress: &Progress, block: &Block, into: &mut [u8]) -> Result<(), Error> {
    let strides = Strides {
        segment_bytes: WINDOW_BYTES as u32,
        segments: block.stripes,
        source_stride: block.stripe_bytes.into(),
        destination_stride: WINDOW_BYTES as i64,
    };
    let (heads, tails) = into.split_at_mut(CHUNK_BYTES / 2);
    let tail = u64::from(block.stripe_bytes) - WINDOW_BYTES as u64;
    let heads = tools.request.dma_strided(Nv(progress.nv_address()), Local(heads), strides);
    let tails = tools.request.dma_strided(Nv(progress.nv_address().wrapping_add(tail)), Local(tails), strides);
    let (heads, tails) = join(heads, tails).await;
    heads.and(tails)
}

/// The windows at both ends of a stripe.
fn windows_of(windows: &[u8], stripe: u32) -> (&[u8], &[u8]) {
    let at = stripe as usize * WINDOW_BYTES;
    (&windows[at..at + WINDOW_BYTES], &windows[CHUNK_BYTES / 2 + at..][..WINDOW_BYTES])
}

/// Tells of a stripe whose borders and matches say all; false where they do not.
fn tell(
    tools: &Tools<'_>,
    progress: &mut Progress,
    (before, behind): (&[u8], &[u8]),
    (from, bytes): (u32, u32),
    matches: &[Match],
    reply: &mut [u8],
) -> bool {
    let nul_ends = tools.kept.nul_ends();
    let first = if nul_ends { memchr2(b'\n', 0, before) } else { memchr(b'\n', before) };
    let last = if nul_ends { memrchr2(b'\n', 0, behind) } else { memrchr(b'\n', behind) };
    let (Some(first), Some(last)) = (first, last) else { return false };
    let (head, tail) = (&before[..first], &behind[last + 1..]);
    let lines_end = bytes - tail.len() as u32;
    // In a part of a line that whoever joins it decides on. A zero byte that is looked for ends lines, and is in none.
    let is_border = |found: &Match| found.end - from <= head.len() as u32 || found.begin - from >= lines_end;
    if !matches.iter().all(is_border) {
        return false;
    }
    let told = SegmentHead {
        bytes,
        head_bytes: head.len() as u32,
        tail_bytes: tail.len() as u32,
        nul: NONE,
        flags: SEGMENT_HEAD | SEGMENT_TAIL,
        ..SegmentHead::default()
    };
    let parts: [&[u8]; 3] = [&told.encode(), head, tail];
    let mut used = progress.used;
    for part in parts {
        let Some(place) = reply.get_mut(used..used + part.len()) else {
            progress.is_full = true;
            return true;
        };
        place.copy_from_slice(part);
        used += part.len();
    }
    progress.used = used;
    progress.done += bytes;
    true
}
