//! RPCs that handlers send: to another SPU, or up to the originating HRE (Willow, sections 2.3 and 2.5).

use core::future::Future;
use core::marker::PhantomData;

use crate::executor::{Issued, Operation, Wait};
use crate::request::Nv;
use crate::sys::{self, port};
use crate::{Error, Response};

/// Most pieces that a request's body is gathered from.
pub const RPC_SEGMENTS_MAX: usize = 4;
/// Most bytes of a request's body (docs/abi.md).
pub const RPC_BODY_BYTES_MAX: u32 = 65536;

/// Where an RPC goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An SPU, also the own one.
    Spu(u32),
    /// The originating HRE: an upcall.
    Host,
    /// An endpoint that has subscribed to upcalls of the kind that the handler's number says ([`subscribers`]).
    Subscriber(u32),
}

/// What stands for an endpoint in place of an SPU.
const SUBSCRIBER: i32 = -2;

/// Writes the ids of endpoints that have subscribed to this app's upcalls of a kind, in rising order, from behind `after` on (0: all); how many.
pub fn subscribers(kind: u8, after: u32, to: &mut [u32]) -> Result<usize, Error> {
    // SAFETY: the import writes at most so many ids before it returns.
    let count = unsafe { sys::subscribers(kind.into(), after, to.as_mut_ptr().cast(), to.len() as u32) };
    usize::try_from(count).map_err(|_| Error::from_code(count.into()))
}

/// Whose handler an RPC is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// The sender's own app.
    Own,
    /// An installed app, by the number that [`app_number`] gave.
    Number(u32),
}

/// The number of an installed app.
pub fn app_number(name: &str) -> Result<App, Error> {
    match sys::app_number(name) {
        error if error < 0 => Err(Error::from_code(error.into())),
        number => Ok(App::Number(number as u32)),
    }
}

#[derive(Clone, Copy)]
struct Segment {
    port: u32,
    address: u64,
    bytes: u32,
}

/// A request being made. All that was appended is borrowed until the response is there.
#[must_use = "an RPC goes out when `send` is awaited"]
pub struct RpcBuilder<'a> {
    token: u32,
    destination: i32,
    app: i32,
    hre: u32,
    handler: u8,
    segments: [Segment; RPC_SEGMENTS_MAX],
    used: usize,
    reply: *mut u8,
    reply_bytes: u32,
    error: Option<Error>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> RpcBuilder<'a> {
    #[inline]
    pub(crate) fn new(token: u32, destination: Destination, app: App, handler: u8) -> Self {
        RpcBuilder {
            token,
            destination: match destination {
                Destination::Spu(number) => number as i32,
                Destination::Host => -1,
                Destination::Subscriber(_) => SUBSCRIBER,
            },
            app: match app {
                App::Own => -1,
                App::Number(number) => number as i32,
            },
            hre: match destination {
                Destination::Subscriber(hre) => hre,
                _ => 0,
            },
            handler,
            segments: [Segment { port: 0, address: 0, bytes: 0 }; RPC_SEGMENTS_MAX],
            used: 0,
            reply: core::ptr::null_mut(),
            reply_bytes: 0,
            error: match destination {
                Destination::Spu(number) if number > i32::MAX as u32 => Some(Error::Argument),
                _ => None,
            },
            buffers: PhantomData,
        }
    }

    fn push(mut self, segment: Segment) -> Self {
        match self.segments.get_mut(self.used) {
            Some(place) => *place = segment,
            None => self.error = Some(Error::Argument),
        }
        self.used += 1;
        self
    }

    /// Appends bytes from local memory (Figure 3, `RPCAppendRequest`). More than [`RPC_SEGMENTS_MAX`] pieces, or
    /// [`RPC_BODY_BYTES_MAX`] bytes, make [`RpcBuilder::send`] fail with [`Error::Argument`].
    #[inline]
    pub fn append(self, bytes: &'a [u8]) -> Self {
        self.push(Segment { port: port::LOCAL, address: sys::address(bytes.as_ptr()), bytes: bytes.len() as u32 })
    }

    /// Appends bytes from NV memory.
    #[inline]
    pub fn append_nv(self, from: Nv, bytes: u32) -> Self {
        self.push(Segment { port: port::NV, address: from.0, bytes })
    }

    /// Where the receiver's reply goes; without it there is room for none.
    #[inline]
    pub fn reply(mut self, to: &'a mut [u8]) -> Self {
        self.reply = to.as_mut_ptr();
        self.reply_bytes = to.len() as u32;
        self
    }

    pub(crate) fn has_reply(&self) -> bool {
        self.reply_bytes > 0
    }

    /// Sends it and waits for the response (Figure 3, `RPCFinishRequest`). A status other than 0 is no error here.
    #[inline]
    pub fn send(self) -> impl Future<Output = Result<Response, Error>> + use<'a> {
        Wait::new(Send { rpc: self })
    }
}

struct Send<'a> {
    rpc: RpcBuilder<'a>,
}

impl RpcBuilder<'_> {
    /// Puts it together and sends it; what was appended and the reply's buffer are borrowed until it has ended.
    pub(crate) fn issue(&self, wait: u32) -> Issued<Result<Response, Error>> {
        let rpc = self;
        let Some(segments) = rpc.segments.get(..rpc.used) else { return Issued::Done(Err(Error::Argument)) };
        let body_bytes = segments.iter().fold(0u32, |sum, segment| sum.saturating_add(segment.bytes));
        if rpc.error.is_some() || body_bytes > RPC_BODY_BYTES_MAX {
            return Issued::Done(Err(Error::Argument));
        }
        let fail = |code: i32| Issued::Done(Err(Error::from_code(code.into())));
        let handle = if rpc.destination == SUBSCRIBER {
            sys::upcall_start(rpc.token, rpc.hre, rpc.handler.into(), body_bytes)
        } else {
            // SAFETY: the reply buffer is borrowed by the pending operation.
            unsafe {
                sys::rpc_start(
                    rpc.token,
                    rpc.destination,
                    rpc.app,
                    rpc.handler.into(),
                    body_bytes,
                    rpc.reply,
                    rpc.reply_bytes,
                )
            }
        };
        if handle < 0 {
            return fail(handle);
        }
        for segment in segments {
            // SAFETY: local segments are borrowed by the pending operation.
            let code = unsafe { sys::rpc_append(handle, segment.port, segment.address, segment.bytes) };
            if code < 0 {
                return fail(code);
            }
        }
        // SAFETY: as above.
        match unsafe { sys::rpc_finish(handle, wait) } {
            sys::PENDING => Issued::Pending,
            sys::DONE => Issued::Done(Ok(Response::default())),
            error => fail(error),
        }
    }
}

/// What `complete`'s result says.
pub(crate) fn answer(result: i64) -> Result<Response, Error> {
    if result >> 32 == -1 && (-10..=-2).contains(&result) {
        return Err(Error::from_code(result));
    }
    Ok(Response { status: (result >> 32) as u32, result: result as u32 })
}

impl Operation for Send<'_> {
    type Output = Result<Response, Error>;
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        self.rpc.issue(wait)
    }

    #[inline]
    fn completed(&mut self, result: i64) -> Self::Output {
        answer(result)
    }
}
