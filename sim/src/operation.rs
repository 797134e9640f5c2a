//! Operations of workloads, and the requests that they become.
//!
//! What always holds: a request's buffer is what the operation was given and comes back with its completion; no allocation for an
//! operation within one stripe.

use crate::thread::BlockTarget;
use base_io_host::wire::{FLAG_DEALLOCATE, handler};
use key_value_host::wire::STATUS_NOT_FOUND;
use key_value_host::{Call, Key, Placement, PutCondition};
use willow_device::{AppNumber, Arguments, HostCompletion, HostRequest, Rpc, RpcList, RpcOutcome};
use willow_host::HreError;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read a range of the block namespace.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Write a range of the block namespace.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Make all that was written durable.
    Flush,
    /// Tell that a range of the block namespace is of no use any more.
    Deallocate {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Get the value of a key, which has at most this many bytes.
    Get {
        /// Number of the key.
        key: u64,
        /// Bytes of its value.
        bytes: u32,
    },
    /// Put a value.
    Put {
        /// Number of the key.
        key: u64,
        /// Bytes of the value.
        bytes: u32,
    },
}

/// Names of the kinds of operations, by [`Operation::kind`].
pub const KINDS: [&str; 6] = ["read", "write", "flush", "deallocate", "get", "put"];

impl Operation {
    /// Index in [`KINDS`].
    #[inline]
    pub fn kind(&self) -> usize {
        match self {
            Operation::Read { .. } => 0,
            Operation::Write { .. } => 1,
            Operation::Flush => 2,
            Operation::Deallocate { .. } => 3,
            Operation::Get { .. } => 4,
            Operation::Put { .. } => 5,
        }
    }

    /// Bytes of data that it moves.
    #[inline]
    pub fn bytes(&self) -> u32 {
        match *self {
            Operation::Read { bytes, .. }
            | Operation::Write { bytes, .. }
            | Operation::Get { bytes, .. }
            | Operation::Put { bytes, .. } => bytes,
            Operation::Flush | Operation::Deallocate { .. } => 0,
        }
    }

    /// True where it is one on the block namespace.
    #[inline]
    pub fn is_of_blocks(&self) -> bool {
        !matches!(self, Operation::Get { .. } | Operation::Put { .. })
    }

    /// True where its data go to the device.
    #[inline]
    pub fn is_write(&self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::Put { .. })
    }
}

/// The key-value namespace and the app that serves it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvTarget {
    pub placement: Placement,
    pub key_value: AppNumber,
    pub nsid: u32,
}

/// The key of a number: 16 bytes.
pub fn key_of(number: u64) -> Key {
    let mut bytes = *b"key-000000000000";
    let mut rest = number;
    for digit in bytes[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // 16 bytes are a valid key.
    Key::new(&bytes).unwrap_or_else(|_| unreachable!())
}

/// A read or write of a range as a request; `data` is its buffer, as long as the range where anybody looks at it.
#[inline(always)]
pub(crate) fn block_request(
    target: &BlockTarget,
    write: bool,
    (offset, bytes): (u64, u32),
    data: Vec<u8>,
) -> HostRequest {
    let of = if write { handler::WRITE } else { handler::READ };
    let rpc = |request: base_io_host::SpuRequest| {
        // 32 bytes of arguments fit.
        let arguments = Arguments::new(&request.arguments.encode()).unwrap_or(Arguments::EMPTY);
        Rpc { app: target.base_io, handler: request.handler, spu: request.spu, arguments }
    };
    let rpcs = match target.geometry.in_one_stripe(of, offset, u64::from(bytes), 0, 0) {
        Some(request) => RpcList::One(rpc(request)),
        None => {
            let mut many = Vec::new();
            target.geometry.range(of, offset, u64::from(bytes), 0, 0, |request| many.push(rpc(request)));
            RpcList::Many(many)
        }
    };
    let (payload_bytes, reply_bytes) = if write { (bytes, 0) } else { (0, bytes) };
    HostRequest { tag: 0, rpcs, buffer: data, payload_bytes, reply_bytes }
}

/// A flush, or a deallocation of a range, as a request without data; `buffer` comes back with it.
pub(crate) fn plain_request(target: &BlockTarget, operation: Operation, buffer: Vec<u8>) -> HostRequest {
    let mut rpcs = Vec::new();
    let mut add = |request: base_io_host::SpuRequest| {
        let arguments = Arguments::new(&request.arguments.encode()).unwrap_or(Arguments::EMPTY);
        rpcs.push(Rpc { app: target.base_io, handler: request.handler, spu: request.spu, arguments });
    };
    match operation {
        Operation::Deallocate { offset, bytes } => {
            target.geometry.range(handler::ZERO, offset, u64::from(bytes), 0, FLAG_DEALLOCATE, &mut add);
        }
        _ => target.geometry.flush(&mut add),
    }
    HostRequest { tag: 0, rpcs: RpcList::Many(rpcs), buffer, payload_bytes: 0, reply_bytes: 0 }
}

/// A get or put as a request.
pub(crate) fn kv_request(target: &KvTarget, operation: Operation, data: Vec<u8>) -> Result<HostRequest, String> {
    let (call, payload_bytes, reply_bytes) = match operation {
        Operation::Put { key, bytes } => {
            let call = Call::put(&target.placement, target.nsid, &key_of(key), bytes, PutCondition::Always, false);
            (call.map_err(|error| error.to_string())?, bytes, 0)
        }
        Operation::Get { key, bytes } => (Call::get(&target.placement, target.nsid, &key_of(key), 0), 0, bytes),
        _ => return Err("not an operation on pairs".to_owned()),
    };
    let arguments = Arguments::new(&call.arguments).unwrap_or(Arguments::EMPTY);
    let rpc = Rpc { app: target.key_value, handler: call.handler, spu: call.spu, arguments };
    Ok(HostRequest { tag: 0, rpcs: RpcList::One(rpc), buffer: data, payload_bytes, reply_bytes })
}

/// What a request is, for people.
pub(crate) fn name(request: &HostRequest) -> &'static str {
    match (request.payload_bytes, request.reply_bytes) {
        (0, 0) => "RPC",
        (_, 0) => "RPC with data to the device",
        _ => "RPC with data from the device",
    }
}

/// A block request's end; the buffer comes back.
pub(crate) fn block_result(done: HostCompletion) -> Result<Vec<u8>, HreError> {
    match done.outcome {
        RpcOutcome::Answered { status: 0 } => Ok(done.buffer),
        other => Err(HreError::Answer(format!("{other:?}"))),
    }
}

/// Why an operation's completion is none that a workload goes on with; `None`: all is well, or a get found no such pair.
pub(crate) fn failure(operation: &Operation, done: &HostCompletion) -> Option<String> {
    match (operation, done.outcome) {
        (_, RpcOutcome::Answered { status: 0 }) => None,
        (Operation::Get { .. }, RpcOutcome::Answered { status: STATUS_NOT_FOUND }) => None,
        (_, outcome) => Some(format!("{operation:?} failed: {outcome:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered() {
        assert_eq!(key_of(0).as_bytes(), b"key-000000000000");
        assert_eq!(key_of(1_234_567).as_bytes(), b"key-000001234567");
    }
}
