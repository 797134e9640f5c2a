//! Rows of a matrix transformed, or parts of it transposed, batch by batch (XSSD, 4.3.2): one buffer is filled by DMA while the accelerator works on the
//! other and its result is written, where there is memory for two.

use crate::wire::{self, BATCH_BYTES_MAX, Batch, Rows, Segment, Work};
use crate::{State, buffer, read, write};
use alloc::vec::Vec;
use willow_sdk::{Error, Number, Request, join};

/// Batches above this are large: one request at a time works on them.
const LARGE_BYTES: u32 = BATCH_BYTES_MAX / 8;
/// Most segments of a batch: of each side.
const SEGMENTS_MAX: usize = wire::BODY_BYTES_MAX / Segment::BYTES;
/// Numbers that are moved before others have their turn, by the processor.
const NUMBERS_AT_ONCE: usize = 16 << 10;

/// A batch as it came.
#[derive(Default)]
struct Loaded {
    rows: u32,
    bytes: usize,
    sources: Vec<Segment>,
    destinations: Vec<Segment>,
}

/// The batches of a request.
struct Batches<'a> {
    request: &'a Request,
    head: Rows,
    left: u32,
}

impl Batches<'_> {
    fn segments(&self, count: u16, bytes: u64) -> Result<Vec<Segment>, Error> {
        if usize::from(count) > SEGMENTS_MAX {
            return Err(Error::Argument);
        }
        let mut segments = Vec::new();
        segments.try_reserve_exact(count.into()).map_err(|_| Error::Full)?;
        let mut sum = 0;
        for _ in 0..count {
            let segment = Segment::decode(&self.request.receive_array()?);
            sum += u64::from(segment.bytes);
            segments.push(segment);
        }
        if sum == bytes { Ok(segments) } else { Err(Error::Argument) }
    }

    /// The next one.
    fn next(&mut self) -> Result<Option<Loaded>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let batch = Batch::decode(&self.request.receive_array()?);
        let bytes = self.head.row_bytes() * u64::from(batch.rows);
        if bytes > self.head.batch_bytes.into() {
            return Err(Error::Argument);
        }
        let source_bytes = if self.head.real { bytes / 2 } else { bytes };
        let sources = self.segments(batch.sources, source_bytes)?;
        let destinations = self.segments(batch.destinations, bytes)?;
        Ok(Some(Loaded { rows: batch.rows, bytes: bytes as usize, sources, destinations }))
    }
}

/// Reads a batch; real numbers lie in the second half of the buffer.
async fn load(request: &Request, head: &Rows, batch: Option<&Loaded>, to: &mut [u8]) -> Result<(), Error> {
    let Some(batch) = batch else { return Ok(()) };
    let mut at = if head.real { batch.bytes / 2 } else { 0 };
    // As many as are next to each other at once.
    let mut segments = batch.sources.iter();
    loop {
        match (segments.next(), segments.next()) {
            (Some(one), Some(other)) => {
                let end = at + one.bytes as usize + other.bytes as usize;
                let (first, second) = to[at..end].split_at_mut(one.bytes as usize);
                let (one, other) = join(read(request, one.at, first), read(request, other.at, second)).await;
                one.and(other)?;
                at = end;
            }
            (Some(one), None) => {
                read(request, one.at, &mut to[at..at + one.bytes as usize]).await?;
                return Ok(());
            }
            (None, _) => return Ok(()),
        }
    }
}

/// Writes a batch.
async fn store(request: &Request, batch: &Loaded, from: &[u8]) -> Result<(), Error> {
    let mut at = 0;
    for segment in &batch.destinations {
        let end = at + segment.bytes as usize;
        write(request, &from[at..end], segment.at).await?;
        at = end;
    }
    Ok(())
}

/// Real numbers of the second half become complex ones of the whole.
fn widen(rows: &mut [u8], number_bytes: usize) {
    let half = rows.len() / 2;
    let numbers = half / number_bytes;
    for place in 0..numbers {
        let from = half + place * number_bytes;
        // It is read before it is written over: the result's end is at most where the next one is read from.
        rows.copy_within(from..from + number_bytes, 2 * place * number_bytes);
        let zero = (2 * place + 1) * number_bytes;
        rows[zero..zero + number_bytes].fill(0);
    }
}

/// Transposes numbers of `BYTES` bytes.
async fn transpose<const BYTES: usize>(
    from: &[u8],
    to: &mut [u8],
    (rows, columns): (usize, usize),
) -> Result<(), Error> {
    let (from, _) = from.as_chunks::<BYTES>();
    let (to, _) = to.as_chunks_mut::<BYTES>();
    let mut moved = 0;
    for (row, numbers) in from.chunks_exact(columns).enumerate() {
        for (column, number) in numbers.iter().enumerate() {
            to[column * rows + row] = *number;
        }
        moved += columns;
        if moved >= NUMBERS_AT_ONCE {
            moved = 0;
            willow_sdk::yield_now().await?;
        }
    }
    Ok(())
}

/// Works on a batch that is there, and writes it.
async fn work(request: &Request, head: &Rows, batch: &Loaded, rows: &mut [u8]) -> Result<(), Error> {
    let number = Number::of_bytes(head.number_bytes).ok_or(Error::Argument)?;
    let rows = &mut rows[..batch.bytes];
    if head.real {
        widen(rows, head.number_bytes as usize);
    }
    request.fft(number, head.work == Work::Inverse, head.count, rows).await?;
    store(request, batch, rows).await
}

/// The handler.
pub async fn run(request: &Request, state: &State) -> Result<(), Error> {
    if request.info().body_bytes as usize > wire::BODY_BYTES_MAX {
        return Err(Error::Argument);
    }
    let head = Rows::decode(&request.receive_array()?).ok_or(Error::Argument)?;
    let _large = if head.batch_bytes > LARGE_BYTES { Some(state.large.lock().await) } else { None };
    let bytes = head.batch_bytes as usize;
    let mut batches = Batches { request, head, left: head.batches };
    let mut current = buffer(bytes)?;
    if head.work == Work::Transpose {
        let mut turned = buffer(bytes)?;
        while let Some(batch) = batches.next()? {
            load(request, &head, Some(&batch), &mut current).await?;
            let shape = (batch.rows as usize, head.count as usize);
            let (from, to) = (&current[..batch.bytes], &mut turned[..batch.bytes]);
            match head.number_bytes {
                4 => transpose::<8>(from, to, shape).await?,
                _ => transpose::<16>(from, to, shape).await?,
            }
            store(request, &batch, &turned).await?;
        }
        return Ok(());
    }
    // Without memory for a second one there is no reading ahead.
    let mut next = buffer(bytes).unwrap_or_default();
    let mut at_hand = batches.next()?;
    load(request, &head, at_hand.as_ref(), &mut current).await?;
    while let Some(batch) = at_hand {
        let coming = batches.next()?;
        if next.is_empty() {
            work(request, &head, &batch, &mut current).await?;
            load(request, &head, coming.as_ref(), &mut current).await?;
        } else {
            let ahead = load(request, &head, coming.as_ref(), &mut next);
            let (loaded, worked) = join(ahead, work(request, &head, &batch, &mut current)).await;
            worked.and(loaded)?;
            core::mem::swap(&mut current, &mut next);
        }
        at_hand = coming;
    }
    Ok(())
}
