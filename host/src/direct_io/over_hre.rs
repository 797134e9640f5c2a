//! Bare direct access over any endpoint, asynchronous: a file of fixed length, whose operations are futures to be awaited one by one or
//! together.
//!
//! What always holds:
//! - any offset and length is fine; reads end at the end of the file, and writes past it are refused: the file keeps its length
//!   while it is open directly (close it, extend it, open it again);
//! - holes read as zeroes, and are not written to;
//! - a write is durable after [`DirectFile::sync`]; calls may overlap, and what overlapping ones leave is undefined, as with `pwrite`.

use super::{AgentClient, DirectError, Mapped};
use crate::hre::{Hre, HreError, RpcCall};
use base_io_host::Geometry;
use direct_io_host::wire::{Arguments, handler};
use direct_io_host::{FileExtent, Piece};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A file that is open directly. It is the file system's own again when this is dropped, or the process ends.
pub struct DirectFile {
    hre: Arc<dyn Hre>,
    mapped: Mapped,
}

impl DirectFile {
    /// Opens directly what the process has open as `file`: for reading, writing or both, as the descriptor is, which is closed. Refused
    /// where the process has other descriptors by which the file can be written. `hre` is an endpoint of this process. Waits for the
    /// agent.
    pub fn open(
        agent: &Arc<AgentClient>,
        hre: Arc<dyn Hre>,
        file: impl Into<OwnedFd>,
    ) -> Result<DirectFile, DirectError> {
        Ok(DirectFile { hre, mapped: agent.open(file)? })
    }

    /// Closes it: when this returns, the file is the file system's own again.
    pub fn close(self) -> Result<(), DirectError> {
        self.mapped.close()
    }

    /// Reads and writes through another app than Direct-IO from now on, one with the same handlers: an app of the user's own.
    pub fn use_app(&mut self, app: u16) {
        self.mapped.use_app(app);
    }

    /// Number of the app with the handlers.
    pub(crate) fn app(&self) -> u16 {
        self.mapped.app()
    }

    /// Another app is about to write it: its modification time is set when it is given back.
    pub(crate) fn note_write(&self) {
        self.mapped.note_write();
    }

    /// Bit 0: the device lets it be read, bit 1: written. Nothing here looks at it: the device does.
    pub fn rights(&self) -> u32 {
        self.mapped.rights()
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.mapped.bytes()
    }

    /// Where the file's bytes lie in the namespace.
    pub fn extents(&self) -> &[FileExtent] {
        self.mapped.extents()
    }

    /// How its namespace lies in the banks.
    pub fn geometry(&self) -> Geometry {
        self.mapped.geometry()
    }

    fn pieces(&self, offset: u64, bytes: usize, flags: u32) -> Vec<Piece> {
        let mut pieces = Vec::new();
        direct_io_host::pieces(&self.mapped.geometry(), self.mapped.extents(), (offset, bytes), flags, |piece| {
            pieces.push(piece)
        });
        pieces
    }

    fn call(&self, handler: u8, spu: u16, arguments: &Arguments) -> RpcCall {
        let arguments = arguments.encode().to_vec();
        RpcCall { app: self.mapped.app(), handler, spu: Some(spu), arguments, ..RpcCall::default() }
    }

    /// `pread`: how many bytes were read, fewer only at the end of the file.
    pub async fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize, DirectError> {
        let bytes = into.len().min(usize::try_from(self.mapped.bytes().saturating_sub(offset)).unwrap_or(usize::MAX));
        let into = &mut into[..bytes];
        let pieces = self.pieces(offset, bytes, 0);
        let mut calls = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            match piece {
                Piece::Hole { buffer_offset, bytes } => into[*buffer_offset..buffer_offset + bytes].fill(0),
                Piece::Rpc { spu, arguments, .. } => {
                    let call =
                        RpcCall { reply_bytes_max: arguments.bytes, ..self.call(handler::READ, *spu, arguments) };
                    calls.push(self.hre.rpc(call));
                }
            }
        }
        let mut replies = all(calls).await.into_iter();
        for piece in &pieces {
            let Piece::Rpc { arguments, buffer_offset, .. } = piece else { continue };
            let Some(reply) = replies.next() else { break };
            let reply = reply?;
            DirectError::of_status(reply.status)?;
            let wanted = arguments.bytes as usize;
            let data = reply.data.get(..wanted);
            let data = data.ok_or_else(|| HreError::Answer(format!("{} bytes of {wanted}", reply.data.len())))?;
            into[*buffer_offset..buffer_offset + wanted].copy_from_slice(data);
        }
        Ok(bytes)
    }

    /// `pwrite` within the file's length and blocks: all of it, or an error (then some of it may be written).
    pub async fn write_at(&self, from: &[u8], offset: u64) -> Result<usize, DirectError> {
        let end = offset.saturating_add(from.len() as u64);
        let pieces = self.pieces(offset, from.len(), 0);
        if end > self.mapped.bytes() || pieces.iter().any(|piece| matches!(piece, Piece::Hole { .. })) {
            return Err(DirectError::NoBlocks { offset, end });
        }
        let mut calls = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let Piece::Rpc { spu, arguments, buffer_offset } = piece else { continue };
            let payload = from[*buffer_offset..buffer_offset + arguments.bytes as usize].to_vec();
            calls.push(self.hre.rpc(RpcCall { payload, ..self.call(handler::WRITE, *spu, arguments) }));
        }
        self.mapped.note_write();
        for reply in all(calls).await {
            DirectError::of_status(reply?.status)?;
        }
        Ok(from.len())
    }

    /// `preadv`: fills the buffers one after the other.
    pub async fn read_vectored_at(&self, into: &mut [&mut [u8]], offset: u64) -> Result<usize, DirectError> {
        let mut done = 0;
        for buffer in into {
            let count = self.read_at(buffer, offset + done as u64).await?;
            done += count;
            if count < buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// `pwritev`: writes the buffers one after the other.
    pub async fn write_vectored_at(&self, from: &[&[u8]], offset: u64) -> Result<usize, DirectError> {
        let mut done = 0;
        for buffer in from {
            done += self.write_at(buffer, offset + done as u64).await?;
        }
        Ok(done)
    }

    /// `fdatasync`: what was written is durable when this returns.
    pub async fn sync(&self) -> Result<(), DirectError> {
        let nothing = Arguments { nv_address: 0, bytes: 0, flags: 0 };
        let calls = (0..self.mapped.geometry().spus)
            .map(|spu| self.hre.rpc(self.call(handler::FLUSH, spu, &nothing)))
            .collect();
        for reply in all(calls).await {
            DirectError::of_status(reply?.status)?;
        }
        Ok(())
    }
}

/// Waits for all of some futures; their results in order.
pub(crate) fn all<'a, T>(futures: Vec<crate::hre::BoxFuture<'a, T>>) -> All<'a, T> {
    All(futures.into_iter().map(Slot::Waits).collect())
}

enum Slot<'a, T> {
    Waits(crate::hre::BoxFuture<'a, T>),
    Done(Option<T>),
}

pub(crate) struct All<'a, T>(Vec<Slot<'a, T>>);

// Only the boxes inside are pinned, and they are on the heap.
impl<T> Unpin for All<'_, T> {}

impl<T> Future for All<'_, T> {
    type Output = Vec<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<T>> {
        let mut ready = true;
        for slot in &mut self.0 {
            if let Slot::Waits(future) = slot {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *slot = Slot::Done(Some(value)),
                    Poll::Pending => ready = false,
                }
            }
        }
        if !ready {
            return Poll::Pending;
        }
        let take = |slot: &mut Slot<'_, T>| match slot {
            Slot::Done(value) => value.take(),
            Slot::Waits(_) => None,
        };
        Poll::Ready(self.0.iter_mut().filter_map(take).collect())
    }
}
