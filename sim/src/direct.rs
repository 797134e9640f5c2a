//! Operations by Direct-IO's way: a request for each stripe that a range touches, all by the endpoint of a user's process, as the library
//! of `willow-host` sends them.
//!
//! What always holds: an operation ends when all its requests have; buffers come back and are used again.

use crate::generator::Stage;
use crate::operation::{self, Operation};
use crate::simulation::{Owner, Simulation};
use crate::thread::{BlockTarget, HostThread};
use direct_io_host::wire::{Arguments as Range, handler};
use direct_io_host::{FileExtent, Piece, pieces};
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use willow_device::{Arguments, HostRequest, HreId, Rpc, RpcList};
use willow_host::HreError;
use willow_host::device_queue::DeviceQueue;

/// What a generator's slot has under way by Direct-IO.
pub(crate) struct DirectSlot {
    hre: HreId,
    /// The first piece that is to be sent yet.
    next: usize,
    in_flight: usize,
    /// More pieces are to be sent.
    more: bool,
    spare: Vec<Vec<u8>>,
}

/// How far an operation is when one of its requests has ended.
pub(crate) enum Ended {
    /// It has ended, too; a buffer for the next one.
    All(Vec<u8>),
    MoreToSend,
    MoreToEnd,
}

impl DirectSlot {
    pub fn new(hre: HreId) -> Self {
        DirectSlot { hre, next: 0, in_flight: 0, more: false, spare: Vec::new() }
    }

    /// An operation begins, or goes on after the device has refused what was left of it; a buffer to use.
    pub fn begin(&mut self, anew: bool, buffer: Vec<u8>) {
        if anew {
            self.next = 0;
        }
        self.spare.push(buffer);
    }

    /// True while the device has requests of it.
    pub fn is_under_way(&self) -> bool {
        self.in_flight > 0
    }

    /// A request has ended; its buffer comes back.
    pub fn ended(&mut self, buffer: Vec<u8>) -> Ended {
        self.in_flight -= 1;
        if self.in_flight == 0 && !self.more {
            return Ended::All(buffer);
        }
        self.spare.push(buffer);
        if self.more { Ended::MoreToSend } else { Ended::MoreToEnd }
    }
}

/// Calls `each` with the pieces of a range of the block namespace: their SPU, their range in its bank and where they begin.
fn each_piece(block: &BlockTarget, offset: u64, bytes: usize, mut each: impl FnMut(u16, Range, usize)) {
    let whole = [FileExtent { file_offset: 0, namespace_offset: 0, bytes: block.bytes }];
    pieces(&block.geometry, &whole, (offset, bytes), 0, |piece| {
        if let Piece::Rpc { spu, arguments, buffer_offset } = piece {
            each(spu, arguments, buffer_offset);
        }
    });
}

/// A piece as a request; `data` is its buffer, as long as the piece.
fn request(app: u16, write: bool, spu: u16, range: &Range, data: Vec<u8>) -> HostRequest {
    let handler = if write { handler::WRITE } else { handler::READ };
    // 16 bytes of arguments fit.
    let arguments = Arguments::new(&range.encode()).unwrap_or(Arguments::EMPTY);
    let bytes = range.bytes;
    let (payload_bytes, reply_bytes) = if write { (bytes, 0) } else { (0, bytes) };
    let rpcs = RpcList::One(Rpc { app, handler, spu, arguments });
    HostRequest { tag: 0, rpcs, buffer: data, payload_bytes, reply_bytes }
}

impl Simulation {
    /// Sends what is left of a slot's operation, as far as the device takes it.
    pub(crate) fn send_direct(&mut self, now_ns: u64, (number, index): (u32, u32)) {
        let slot = &mut self.generators[number as usize].slots[index as usize];
        let (Some(block), Some(direct)) = (self.block, slot.direct.as_mut()) else { return };
        let (Operation::Read { offset, bytes } | Operation::Write { offset, bytes }) = slot.operation else { return };
        let (write, app) = (slot.operation.is_write(), block.direct_io.unwrap_or_default());
        let (hre, first) = (direct.hre, direct.next);
        let mut spare = std::mem::take(&mut direct.spare);
        let (mut count, mut sent, mut full) = (0, 0, false);
        each_piece(&block, offset, bytes as usize, |spu, range, _| {
            count += 1;
            if count <= first || full {
                return;
            }
            let mut buffer = spare.pop().unwrap_or_default();
            if write {
                buffer.resize(range.bytes as usize, 0x5a);
            }
            match self.submit(now_ns, hre, request(app, write, spu, &range, buffer), Owner::Slot(number, index)) {
                Ok(()) => sent += 1,
                Err(request) => {
                    full = true;
                    spare.push(request.buffer);
                }
            }
        });
        let slot = &mut self.generators[number as usize].slots[index as usize];
        slot.stage = Stage::Device;
        let Some(direct) = slot.direct.as_mut() else { return };
        direct.spare = spare;
        direct.next += sent;
        direct.in_flight += sent;
        direct.more = direct.next < count;
        if direct.in_flight == 0 {
            slot.buffer = direct.spare.pop().unwrap_or_default();
            self.refused(number, index);
        }
    }
}

impl HostThread {
    /// A range by Direct-IO: all its requests at once.
    pub(crate) async fn transfer_direct(
        &self,
        block: &BlockTarget,
        write: bool,
        offset: u64,
        mut data: Vec<u8>,
    ) -> Result<Vec<u8>, HreError> {
        let app = block.direct_io.ok_or_else(|| HreError::Answer("the device has no Direct-IO".to_owned()))?;
        let mut waiting = Vec::new();
        each_piece(block, offset, data.len(), |spu, range, at| {
            let buffer = data[at..at + range.bytes as usize].to_vec();
            let request = request(app, write, spu, &range, buffer);
            waiting.push((at, Box::pin(self.direct.queue().request(request))));
        });
        let mut failed = None;
        for (at, done) in all(waiting).await {
            match done.and_then(operation::block_result) {
                Ok(buffer) if !write => data[at..at + buffer.len()].copy_from_slice(&buffer),
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(data), Err)
    }
}

/// Waits for all of some futures at the same time; what each brings, in their order.
pub(crate) async fn all<K, F: Future>(futures: Vec<(K, Pin<Box<F>>)>) -> Vec<(K, F::Output)> {
    let mut left: Vec<_> = futures.into_iter().map(|(key, future)| (key, future, None)).collect();
    std::future::poll_fn(move |context| {
        let mut pending = false;
        for (_, future, output) in &mut left {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        match pending {
            true => Poll::Pending,
            false => {
                let ended = std::mem::take(&mut left).into_iter();
                Poll::Ready(ended.filter_map(|(key, _, output)| output.map(|output| (key, output))).collect())
            }
        }
    })
    .await
}
