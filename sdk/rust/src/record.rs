//! The request record (docs/abi.md): where SPU-OS puts what is known of a request before it calls `start`, and where the
//! response is left when `start` or `complete` returns that it is answered. It spares most requests three imports.
//!
//! What always holds: it is one request's, from the beginning of `start` until that request's handler waits or ends; what is
//! asked of any other request goes to the imports.
//!
//! Who may call it: the executor and [`crate::Request`], in a module only; natively there is no record.

use core::cell::{Cell, UnsafeCell};

use crate::{RequestInfo, Response};

#[repr(C, align(8))]
struct Record {
    info: [u32; 6],
    response: [u32; 2],
    arguments: [u8; 64],
}

/// A place that SPU-OS reads and writes between two calls of the module, never during one.
#[repr(transparent)]
pub struct Place(UnsafeCell<Record>);

// SAFETY: a module without atomics has one thread of execution.
unsafe impl Sync for Place {}

/// SPU-OS finds it by this export.
#[unsafe(export_name = "request_record")]
pub static RECORD: Place = Place(UnsafeCell::new(Record { info: [0; 6], response: [0; 2], arguments: [0; 64] }));

struct Open(Cell<u32>);
// SAFETY: as above.
unsafe impl Sync for Open {}
/// The request whose record it is; 0, which is no request: nobody's.
static OPEN: Open = Open(Cell::new(0));

fn record() -> &'static Record {
    // SAFETY: written by SPU-OS alone, and by `answer` and `answer_to`, whose references are gone when they return.
    unsafe { &*RECORD.0.get() }
}

/// `start` was called for a request.
#[inline]
pub(crate) fn open(token: u32) {
    OPEN.0.set(token);
}

/// Its handler waits or has ended.
#[inline]
pub(crate) fn close() {
    OPEN.0.set(0);
}

/// What is known of a request, where the record is its.
#[inline]
pub(crate) fn info(token: u32) -> Option<RequestInfo> {
    let [originating_hre, source, body_bytes, reply_bytes, handler, argument_bytes] = of(token)?.info;
    Some(RequestInfo { originating_hre, source, body_bytes, reply_bytes, handler, argument_bytes })
}

/// The inline arguments of a request, where the record is its.
#[inline]
pub(crate) fn arguments(token: u32) -> Option<&'static [u8]> {
    let record = of(token)?;
    record.arguments.get(..record.info[5] as usize)
}

#[inline]
fn of(token: u32) -> Option<&'static Record> {
    (OPEN.0.get() == token).then(record)
}

/// Leaves the response to a request for SPU-OS; to be followed by `complete`'s return.
#[inline]
pub(crate) fn answer_to(token: u32, response: Response) {
    // SAFETY: the record is nobody's between `start`s, so that no reference to it is there.
    unsafe { (*RECORD.0.get()).info[0] = token };
    answer(response);
}

/// Leaves the response for SPU-OS; to be followed by `start`'s return.
#[inline]
pub(crate) fn answer(response: Response) {
    // SAFETY: no reference to the response's place is ever handed out.
    unsafe { (*RECORD.0.get()).response = [response.status, response.result] };
}
