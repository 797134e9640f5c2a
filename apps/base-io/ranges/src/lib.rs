//! What apps share that serve block namespaces: requests on the wire ([`wire`]), and handlers that move payload between the requester's
//! buffer and NV memory by DMA alone. Base-IO is made of them; Atomic-IO has its own way to write.
//!
//! What always holds: a range is contiguous in this SPU's bank; whether the originating HRE may touch it is for SPU-OS to say,
//! which checks every DMA.
//!
//! Who may call it: handlers of apps.
#![no_std]

pub mod wire;

use core::pin::Pin;
use core::task::{Context, Poll};

use willow_sdk::{Body, Error, Nv, Reply, Request, Response, Sink, Source, Strides, Zeroes, flush as flush_bank, join};
use wire::RangeArguments;

/// A failure as Base-IO's status.
#[derive(Clone, Copy, Debug)]
pub struct Failure(pub u32);

impl From<Error> for Failure {
    #[inline(never)]
    fn from(error: Error) -> Failure {
        Failure(match error {
            Error::Full => wire::STATUS_FULL,
            Error::Range => wire::STATUS_RANGE,
            Error::Permission => wire::STATUS_PERMISSION,
            Error::Argument => wire::STATUS_MALFORMED,
            Error::Refused => wire::STATUS_BUSY,
            _ => wire::STATUS_MEDIA_ERROR,
        })
    }
}

impl From<Failure> for Response {
    fn from(failure: Failure) -> Response {
        Response::failure(failure.0)
    }
}

/// Arguments that make no sense.
pub const MALFORMED: Failure = Failure(wire::STATUS_MALFORMED);

/// Receives the arguments; those of an empty range are fine.
#[inline]
pub fn arguments(request: &Request) -> Result<RangeArguments, Failure> {
    let bytes = request.receive_array().map_err(|_| MALFORMED)?;
    Ok(RangeArguments::decode(&bytes))
}

/// The pieces of a range in the requester's buffer: one, some of equal length and distance, and a shorter last one.
struct Pieces {
    middle: u32,
    middle_buffer: u32,
    last_bytes: u32,
    last_buffer: u32,
}

impl Pieces {
    /// Of a range of more than one piece whose buffer begins `skipped` bytes into a port. No offset there is past 32 bits.
    fn new(range: &RangeArguments, skipped: u32) -> Result<Pieces, Failure> {
        let (stripe, stride) = (u64::from(range.stripe_bytes), u64::from(range.stride));
        if range.first_bytes == 0 || range.first_bytes > range.stripe_bytes || stride < stripe {
            return Err(MALFORMED);
        }
        let rest = range.bytes - range.first_bytes;
        let (middle, last_bytes) = (rest / range.stripe_bytes, rest % range.stripe_bytes);
        // Piece k >= 1 begins at this + (k - 1) * stride.
        let second =
            u64::from(skipped) + u64::from(range.buffer_offset) + u64::from(range.first_bytes) + stride - stripe;
        let last = second.saturating_add(u64::from(middle).saturating_mul(stride));
        // The end of the last piece is within 32 bits, and so is all before it.
        let end = if last_bytes == 0 { last - stride + stripe } else { last.saturating_add(last_bytes.into()) };
        if end > u64::from(u32::MAX) {
            return Err(MALFORMED);
        }
        Ok(Pieces { middle, middle_buffer: second as u32, last_bytes, last_buffer: last as u32 })
    }
}

/// Most bytes of pieces that are moved as one: fewer than a run may move before others have their turn.
const JOINED_BYTES_MAX: u32 = 512 << 10;

/// Moves a range of more than one piece; `ports` makes the ends of a DMA of a bank address and a buffer offset.
async fn transfer<A: Source, B: Sink>(
    request: &Request,
    range: RangeArguments,
    skipped: u32,
    ports: impl Fn(u64, u32) -> (A, B),
    source_is_nv: bool,
) -> Result<(), Failure> {
    let pieces = Pieces::new(&range, skipped)?;
    let strides = |segments| {
        let (nv, buffer) = (i64::from(range.stripe_bytes), i64::from(range.stride));
        let (source_stride, destination_stride) = if source_is_nv { (nv, buffer) } else { (buffer, nv) };
        Strides { segment_bytes: range.stripe_bytes, segments, source_stride, destination_stride }
    };
    let (from, to) = ports(range.nv_address, skipped + range.buffer_offset);
    if range.stride == range.stripe_bytes && range.bytes <= JOINED_BYTES_MAX {
        // All in one bank: the pieces adjoin in the buffer as they do there.
        return Ok(request.dma(from, to, range.bytes).await?);
    }
    if range.first_bytes == range.stripe_bytes && pieces.last_bytes == 0 {
        return Ok(request.dma_strided(from, to, strides(pieces.middle + 1)).await?);
    }
    let first = request.dma(from, to, range.first_bytes);
    let middle_nv = range.nv_address.wrapping_add(range.first_bytes.into());
    let last_nv = middle_nv.wrapping_add(u64::from(pieces.middle) * u64::from(range.stripe_bytes));
    let middle = Optional((pieces.middle > 0).then(|| {
        let (from, to) = ports(middle_nv, pieces.middle_buffer);
        request.dma_strided(from, to, strides(pieces.middle))
    }));
    let last = Optional((pieces.last_bytes > 0).then(|| {
        let (from, to) = ports(last_nv, pieces.last_buffer);
        request.dma(from, to, pieces.last_bytes)
    }));
    let (first, (middle, last)) = join(first, join(middle, last)).await;
    Ok(first.and(middle).and(last)?)
}

/// An operation, or success at once.
struct Optional<F>(Option<F>);

impl<F: Future<Output = Result<(), Error>>> Future for Optional<F> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the operation is pinned with the whole.
        match unsafe { self.map_unchecked_mut(|this| &mut this.0) }.as_pin_mut() {
            Some(operation) => operation.poll(context),
            None => Poll::Ready(Ok(())),
        }
    }
}

/// The way of `read`, as a macro: a future within a future would cost each request instructions.
macro_rules! read_way {
    ($request:ident, $range:ident) => {{
        if $range.bytes > $range.first_bytes {
            return transfer(&$request, $range, 0, |nv, buffer| (Nv(nv), Reply(buffer)), true).await;
        }
        // All in one stripe: the way of nearly every request.
        if $range.bytes > 0 {
            $request.dma(Nv($range.nv_address), Reply($range.buffer_offset), $range.bytes).await?;
        }
        Ok(())
    }};
}

/// Reads a range.
pub async fn read<S>(request: Request, _: &S) -> Result<(), Failure> {
    let range = arguments(&request)?;
    read_way!(request, range)
}

/// Reads a range that was received.
pub async fn read_range(request: Request, range: RangeArguments) -> Result<(), Failure> {
    read_way!(request, range)
}

/// Where the payload begins in the body: behind the arguments.
pub const PAYLOAD: u32 = RangeArguments::BYTES as u32;

/// The way of `write`, as a macro: a future within a future would cost each request instructions.
macro_rules! write_way {
    ($request:ident, $range:ident) => {{
        let first = $range.buffer_offset.checked_add(PAYLOAD).ok_or(MALFORMED)?;
        let force_unit_access = $range.flags & wire::FLAG_FUA != 0;
        if $range.bytes > $range.first_bytes {
            transfer(&$request, $range, PAYLOAD, |nv, buffer| (Body(buffer), Nv(nv)), false).await?;
        } else if $range.bytes > 0 {
            $request.dma(Body(first), Nv($range.nv_address), $range.bytes).await?;
        }
        if force_unit_access {
            flush_bank().await?;
        }
        Ok(())
    }};
}

/// Writes a range; with FUA it is durable then.
pub async fn write<S>(request: Request, _: &S) -> Result<(), Failure> {
    let range = arguments(&request)?;
    write_way!(request, range)
}

/// Writes a range that was received.
pub async fn write_range(request: Request, range: RangeArguments) -> Result<(), Failure> {
    write_way!(request, range)
}

/// Makes the bank durable.
pub async fn flush<S>(_: Request, _: &S) -> Result<(), Failure> {
    Ok(flush_bank().await?)
}

/// Zeroes a range.
pub async fn zero<S>(request: Request, _: &S) -> Result<(), Failure> {
    let range = arguments(&request)?;
    zero_range(request, range).await
}

/// Zeroes a range that was received.
#[inline]
pub async fn zero_range(request: Request, range: RangeArguments) -> Result<(), Failure> {
    if range.bytes > 0 {
        request.dma(Zeroes, Nv(range.nv_address), range.bytes).await?;
    }
    if range.flags & wire::FLAG_FUA != 0 {
        flush_bank().await?;
    }
    Ok(())
}

/// Compares a range with the body.
pub async fn compare<S>(request: Request, _: &S) -> Result<(), Failure> {
    let range = arguments(&request)?;
    compare_range(request, range).await
}

/// Compares a range that was received.
#[inline]
pub async fn compare_range(request: Request, range: RangeArguments) -> Result<(), Failure> {
    let mut from = range.buffer_offset.checked_add(PAYLOAD).ok_or(MALFORMED)?;
    if range.bytes > range.first_bytes {
        // Refuses what cannot be before anything is compared.
        Pieces::new(&range, PAYLOAD)?;
    }
    let (mut done, mut bytes) = (0, range.first_bytes.min(range.bytes));
    while done < range.bytes {
        if !request.compare(Nv(range.nv_address.wrapping_add(done.into())), Body(from), bytes).await? {
            return Err(Failure(wire::STATUS_COMPARE_FAILED));
        }
        // The next piece begins a stride after the start of the stripe that this one ended.
        from = from.wrapping_add(bytes).wrapping_add(range.stride.wrapping_sub(range.stripe_bytes));
        done += bytes;
        bytes = (range.bytes - done).min(range.stripe_bytes);
    }
    Ok(())
}

/// Reads a range and throws it away.
pub async fn verify<S>(request: Request, _: &S) -> Result<(), Failure> {
    let range = arguments(&request)?;
    if range.bytes > 0 {
        // The accelerator reads every byte; the sum is of no interest.
        request.checksum(Nv(range.nv_address), range.bytes, 0).await?;
    }
    Ok(())
}
