//! a = alpha * x + y, chunk by chunk (XSSD, 4.2.2): two pairs of buffers, of which one is read by DMA while the accelerator works on the other and its
//! result is written.

use crate::wire::{self, Piece, Place};
use crate::{buffer, read};
use alloc::vec::Vec;
use willow_sdk::{Error, Number, Request, join};

/// What is worked on at once.
#[derive(Clone, Copy)]
struct Chunk {
    to: u64,
    x: Place,
    y: Place,
    bytes: usize,
}

/// The pieces that a request brings, cut into chunks.
struct Chunks<'a> {
    request: &'a Request,
    number_bytes: u32,
    chunk_bytes: u32,
    pieces_left: u32,
    piece: Piece,
}

impl Chunks<'_> {
    /// The next one.
    fn next(&mut self) -> Result<Option<Chunk>, Error> {
        while self.piece.bytes == 0 {
            if self.pieces_left == 0 {
                return Ok(None);
            }
            self.pieces_left -= 1;
            self.piece = Piece::decode(&self.request.receive_array()?);
            if !self.piece.bytes.is_multiple_of(self.number_bytes) {
                return Err(Error::Argument);
            }
        }
        let Piece { to, x, y, bytes } = self.piece;
        let now = bytes.min(self.chunk_bytes);
        let rest = to.wrapping_add(now.into());
        self.piece = Piece { to: rest, x: x.after(now), y: y.after(now), bytes: bytes - now };
        Ok(Some(Chunk { to, x, y, bytes: now as usize }))
    }
}

/// Buffers of a chunk.
struct Pair {
    x: Vec<u8>,
    y: Vec<u8>,
}

impl Pair {
    fn new(bytes: usize) -> Result<Pair, Error> {
        Ok(Pair { x: buffer(bytes)?, y: buffer(bytes)? })
    }

    async fn load(&mut self, request: &Request, chunk: Option<Chunk>) -> Result<(), Error> {
        let Some(Chunk { x, y, bytes, .. }) = chunk else { return Ok(()) };
        let reads = join(read(request, x, &mut self.x[..bytes]), read(request, y, &mut self.y[..bytes])).await;
        reads.0.and(reads.1)
    }

    async fn compute(&mut self, request: &Request, chunk: Chunk, (number, alpha): (Number, f64)) -> Result<(), Error> {
        let Chunk { to, bytes, .. } = chunk;
        request.multiply_add(number, alpha, &self.x[..bytes], &mut self.y[..bytes]).await?;
        request.write(to, &self.y[..bytes]).await
    }
}

/// The handler.
pub async fn run(request: &Request) -> Result<(), Error> {
    if request.info().body_bytes as usize > wire::BODY_BYTES_MAX {
        return Err(Error::Argument);
    }
    let head = wire::Saxpy::decode(&request.receive_array()?).ok_or(Error::Argument)?;
    let number = Number::of_bytes(head.number_bytes).ok_or(Error::Argument)?;
    let nothing = Place { spu: 0, address: 0 };
    let mut chunks = Chunks {
        request,
        number_bytes: head.number_bytes,
        chunk_bytes: head.chunk_bytes,
        pieces_left: head.pieces,
        piece: Piece { to: 0, x: nothing, y: nothing, bytes: 0 },
    };
    let bytes = head.chunk_bytes as usize;
    let (mut current, mut next) = (Pair::new(bytes)?, Pair::new(bytes)?);
    let mut at_hand = chunks.next()?;
    current.load(request, at_hand).await?;
    while let Some(chunk) = at_hand {
        let coming = chunks.next()?;
        let (loaded, computed) =
            join(next.load(request, coming), current.compute(request, chunk, (number, head.alpha))).await;
        computed.and(loaded)?;
        core::mem::swap(&mut current, &mut next);
        at_hand = coming;
    }
    Ok(())
}
