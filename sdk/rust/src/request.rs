//! The request that a handler serves, and what it can have done for it: receive bytes, DMA, compare, checksum, respond.

use core::cell::Cell;
use core::future::Future;
use core::marker::PhantomData;

use crate::executor::{self, Issued, Operation, Wait};
use crate::rpc::{App, Destination, RpcBuilder};
use crate::sys::{self, port};
use crate::{Error, Response};

/// What is known of a request (docs/abi.md, `request_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The HRE that the request goes back to; a zero in the highest bit: the host kernel.
    pub originating_hre: u32,
    /// The SPU that sent it, or [`SOURCE_HOST`].
    pub source: u32,
    /// Bytes of its body: inline arguments and payload.
    pub body_bytes: u32,
    /// Bytes that fit the reply.
    pub reply_bytes: u32,
    /// Handler number.
    pub handler: u32,
    /// Bytes of the body that are inline arguments.
    pub argument_bytes: u32,
}

/// [`RequestInfo::source`] of requests that came from the host.
pub const SOURCE_HOST: u32 = u32::MAX;

/// NV memory of this SPU, from a byte of its bank on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nv(pub u64);

impl Nv {
    /// The same address; a DMA that has no permission for it is parked until the host's agent has installed one or refused, instead
    /// of failing with [`Error::Permission`] at once.
    #[inline]
    pub fn parked(self) -> ParkedNv {
        ParkedNv(self.0)
    }
}

/// NV memory as [`Nv::parked`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkedNv(u64);

/// The request's body, from a byte on: its inline arguments, then its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body(pub u32);

/// The request's reply: the requester's data buffer, from a byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply(pub u32);

/// Zeroes. Onto NV memory they deallocate where whole units are covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroes;

/// A buffer in local memory: `Local(&bytes)` as a source, `Local(&mut bytes)` as a destination. The handler has it back when
/// the DMA has ended.
#[derive(Debug)]
pub struct Local<T>(pub T);

/// One end of a DMA: an address at its port, and the most bytes from there on.
type End = (u64, u32);

/// Without a bound that the SDK knows: SPU-OS checks it.
const UNBOUNDED: u32 = u32::MAX;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// What a DMA can read from: [`Nv`], [`ParkedNv`], [`Body`], [`Local`], [`Zeroes`].
pub trait Source: Sealed {
    #[doc(hidden)]
    const SOURCE_PORT: u32;
    #[doc(hidden)]
    fn source(self) -> (u64, u32);
}

/// What a DMA can write to: [`Nv`], [`ParkedNv`], [`Reply`], [`Local`].
pub trait Sink: Sealed {
    #[doc(hidden)]
    const SINK_PORT: u32;
    #[doc(hidden)]
    fn sink(self) -> (u64, u32);
}

impl Sealed for Nv {}
impl Source for Nv {
    const SOURCE_PORT: u32 = port::NV;
    #[inline]
    fn source(self) -> End {
        (self.0, UNBOUNDED)
    }
}
impl Sink for Nv {
    const SINK_PORT: u32 = port::NV;
    #[inline]
    fn sink(self) -> End {
        (self.0, UNBOUNDED)
    }
}
impl Sealed for ParkedNv {}
impl Source for ParkedNv {
    const SOURCE_PORT: u32 = port::NV | port::PARK;
    #[inline]
    fn source(self) -> End {
        (self.0, UNBOUNDED)
    }
}
impl Sink for ParkedNv {
    const SINK_PORT: u32 = port::NV | port::PARK;
    #[inline]
    fn sink(self) -> End {
        (self.0, UNBOUNDED)
    }
}
impl Sealed for Body {}
impl Source for Body {
    const SOURCE_PORT: u32 = port::NETWORK;
    #[inline]
    fn source(self) -> End {
        (self.0.into(), UNBOUNDED)
    }
}
impl Sealed for Reply {}
impl Sink for Reply {
    const SINK_PORT: u32 = port::NETWORK;
    #[inline]
    fn sink(self) -> End {
        (self.0.into(), UNBOUNDED)
    }
}
impl Sealed for Zeroes {}
impl Source for Zeroes {
    const SOURCE_PORT: u32 = port::ZEROES;
    #[inline]
    fn source(self) -> End {
        (0, UNBOUNDED)
    }
}
/// No bytes at all: a permission is looked up.
struct Nothing;

impl Sealed for Nothing {}
impl Source for Nothing {
    const SOURCE_PORT: u32 = port::NOTHING;
    #[inline]
    fn source(self) -> End {
        (0, UNBOUNDED)
    }
}
impl<T> Sealed for Local<T> {}
impl<T: AsRef<[u8]> + ?Sized> Source for Local<&T> {
    const SOURCE_PORT: u32 = port::LOCAL;
    #[inline]
    fn source(self) -> End {
        let bytes = self.0.as_ref();
        (sys::address(bytes.as_ptr()), u32::try_from(bytes.len()).unwrap_or(u32::MAX))
    }
}
impl<T: AsMut<[u8]> + ?Sized> Sink for Local<&mut T> {
    const SINK_PORT: u32 = port::LOCAL;
    #[inline]
    fn sink(self) -> End {
        let bytes = self.0.as_mut();
        (sys::address(bytes.as_mut_ptr()), u32::try_from(bytes.len()).unwrap_or(u32::MAX))
    }
}

/// The pieces of a strided DMA: piece `k` of `segments` lies `k` strides after the first, on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Bytes of a piece.
    pub segment_bytes: u32,
    /// Number of pieces.
    pub segments: u32,
    /// From the start of a piece to the start of the next one, at the source.
    pub source_stride: i64,
    /// The same, at the destination.
    pub destination_stride: i64,
}

impl Strides {
    /// Bytes from the address of the first piece on that one side touches; `None` where it goes below that address.
    #[inline]
    fn reach(&self, stride: i64) -> Option<u64> {
        if self.segments == 0 || self.segment_bytes == 0 {
            return Some(0);
        }
        u64::try_from(stride).ok()?.checked_mul(u64::from(self.segments) - 1)?.checked_add(self.segment_bytes.into())
    }
}

/// A request. It belongs to the handler that it was handed to, and is answered with what the handler returns, or before with
/// [`Request::respond`].
#[derive(Debug)]
pub struct Request {
    token: u32,
    /// Bytes of the body received so far.
    received: Cell<u32>,
}

impl Request {
    #[inline]
    pub(crate) fn new(token: u32) -> Request {
        Request { token, received: Cell::new(0) }
    }

    #[inline]
    pub(crate) fn token(&self) -> u32 {
        self.token
    }

    /// What is known of it.
    #[inline]
    pub fn info(&self) -> RequestInfo {
        #[cfg(target_arch = "wasm32")]
        if let Some(info) = crate::record::info(self.token) {
            return info;
        }
        sys::request_info(self.token)
    }

    /// Copies the next bytes of the body to `to`; returns how many there were (Figure 3, `RPCReceiveBytes`).
    #[inline]
    pub fn receive(&self, to: &mut [u8]) -> usize {
        let from = self.received.get();
        #[cfg(target_arch = "wasm32")]
        if let Some(bytes) = self.recorded(to.len()) {
            to.copy_from_slice(bytes);
            return to.len();
        }
        let count = sys::receive_bytes_at(self.token, from, to).min(to.len() as u32);
        self.received.set(from + count);
        count as usize
    }

    /// The next `BYTES` bytes of the body; [`Error::Range`] where there are fewer.
    #[inline]
    pub fn receive_array<const BYTES: usize>(&self) -> Result<[u8; BYTES], Error> {
        #[cfg(target_arch = "wasm32")]
        {
            let mut storage = core::mem::MaybeUninit::<[u8; BYTES]>::uninit();
            // One place to load from, wherever the bytes are: what becomes of them is compiled once.
            let bytes = match self.recorded(BYTES).and_then(<[u8]>::first_chunk) {
                Some(bytes) => bytes,
                None => self.receive_whole(&mut storage).ok_or(Error::Range)?,
            };
            Ok(*bytes)
        }
        #[cfg(not(target_arch = "wasm32"))]
        {
            let mut bytes = [0; BYTES];
            if self.receive(&mut bytes) == BYTES { Ok(bytes) } else { Err(Error::Range) }
        }
    }

    /// Fills `storage` through the import.
    #[cfg(target_arch = "wasm32")]
    #[cold]
    #[inline(never)]
    fn receive_whole<'a, const BYTES: usize>(
        &self,
        storage: &'a mut core::mem::MaybeUninit<[u8; BYTES]>,
    ) -> Option<&'a [u8; BYTES]> {
        let bytes = storage.write([0; BYTES]);
        (self.receive(bytes) == BYTES).then_some(bytes)
    }

    /// The next bytes of the body, where they are in the request record.
    #[cfg(target_arch = "wasm32")]
    #[inline]
    fn recorded(&self, bytes: usize) -> Option<&'static [u8]> {
        let from = self.received.get();
        let range = crate::record::arguments(self.token)?.get(from as usize..)?.get(..bytes)?;
        self.received.set(from + bytes as u32);
        Some(range)
    }

    /// Moves `bytes` bytes.
    #[inline]
    pub fn dma<A: Source, B: Sink>(
        &self,
        source: A,
        destination: B,
        bytes: u32,
    ) -> impl Future<Output = Result<(), Error>> + use<'_, A, B> {
        let ((source, source_bytes), (destination, destination_bytes)) = (source.source(), destination.sink());
        let fits = bytes <= source_bytes.min(destination_bytes);
        Wait::new(Dma::<A, B> { token: self.token, source, destination, bytes, fits, ports: PhantomData })
    }

    /// Moves `bytes` bytes of NV memory where that can be done at once; `None`: nothing was moved, since it would have had to wait
    /// (under a model of time always). For short ways through a handler, before [`Request::dma`].
    #[inline]
    pub fn dma_now<B: Sink>(&self, source: Nv, destination: B, bytes: u32) -> Option<Result<(), Error>> {
        let (destination, destination_bytes) = destination.sink();
        if B::SINK_PORT == port::LOCAL && bytes > destination_bytes {
            return Some(Err(Error::Range));
        }
        // SAFETY: a local buffer is at least `bytes` long and borrowed until this returns; nothing uses it later.
        match unsafe { sys::dma(self.token, port::NV | port::NOW, source.0, B::SINK_PORT, destination, bytes, 0) } {
            sys::DONE => Some(Ok(())),
            sys::NOT_NOW => None,
            error => Some(Err(failure(error.into()))),
        }
    }

    /// Whether this request may write those bytes of NV memory: [`Error::Permission`] where it may not. Nothing is moved. Where a permission
    /// is missing it waits until the host's agent has installed one or refused. The answer holds for now; what is written later is checked
    /// again then.
    #[inline]
    pub fn may_write(&self, at: Nv, bytes: u32) -> impl Future<Output = Result<(), Error>> + use<'_> {
        self.dma(Nothing, at.parked(), bytes)
    }

    /// Moves several pieces that lie at equal distances. Strides of local buffers must not be negative.
    #[inline]
    pub fn dma_strided<A: Source, B: Sink>(
        &self,
        source: A,
        destination: B,
        strides: Strides,
    ) -> impl Future<Output = Result<(), Error>> + use<'_, A, B> {
        let ((source, source_bytes), (destination, destination_bytes)) = (source.source(), destination.sink());
        let fits = |port: u32, bytes: u32, stride: i64| {
            port != port::LOCAL || strides.reach(stride).is_some_and(|reach| reach <= bytes.into())
        };
        let fits = fits(A::SOURCE_PORT, source_bytes, strides.source_stride)
            && fits(B::SINK_PORT, destination_bytes, strides.destination_stride);
        Wait::new(DmaStrided::<A, B> { token: self.token, source, destination, strides, fits, ports: PhantomData })
    }

    /// Reads NV memory into a local buffer, all of it.
    #[inline]
    pub fn read(&self, address: u64, to: &mut [u8]) -> impl Future<Output = Result<(), Error>> {
        let bytes = to.len() as u32;
        self.dma(Nv(address), Local(to), bytes)
    }

    /// Writes a local buffer to NV memory, all of it.
    #[inline]
    pub fn write(&self, address: u64, from: &[u8]) -> impl Future<Output = Result<(), Error>> {
        self.dma(Local(from), Nv(address), from.len() as u32)
    }

    /// Whether NV memory equals the body there.
    #[inline]
    pub fn compare(&self, nv: Nv, body: Body, bytes: u32) -> impl Future<Output = Result<bool, Error>> + use<'_> {
        Wait::new(Compare { token: self.token, nv, body, bytes })
    }

    /// CRC-32C (Castagnoli) of bytes at a port, continued from `seed` (0 for a fresh one), by the accelerator.
    #[inline]
    pub fn checksum<A: Source>(
        &self,
        source: A,
        bytes: u32,
        seed: u32,
    ) -> impl Future<Output = Result<u32, Error>> + use<'_, A> {
        let (address, address_bytes) = source.source();
        let fits = bytes <= address_bytes;
        Wait::new(Checksum::<A> { token: self.token, address, bytes, seed, fits, port: PhantomData })
    }

    /// Answers the request before the handler ends; what the handler returns is then ignored. The handler may go on with what
    /// needs no request: [`crate::flush`], regions, its state.
    #[inline]
    pub fn respond(self, response: impl Into<Response>) {
        executor::set_answered(self.token);
        let response = response.into();
        sys::respond(self.token, response.status, response.result);
    }

    /// Begins an RPC on behalf of this request (Figure 3, `RPCStartRequest`): append to it, then send it.
    #[inline]
    pub fn rpc(&self, destination: Destination, app: App, handler: u8) -> RpcBuilder<'_> {
        RpcBuilder::new(self.token, destination, app, handler)
    }
}

/// What most requests never need: apart, so that what they do need is short.
#[cold]
#[inline(never)]
fn failure(code: i64) -> Error {
    Error::from_code(code)
}

#[inline]
pub(crate) fn issued(code: i32) -> Issued<Result<(), Error>> {
    match code {
        sys::DONE => Issued::Done(Ok(())),
        sys::PENDING => Issued::Pending,
        error => Issued::Done(Err(failure(error.into()))),
    }
}

#[inline]
pub(crate) fn completed(result: i64) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(failure(result)) }
}

struct Dma<A, B> {
    token: u32,
    bytes: u32,
    source: u64,
    destination: u64,
    /// Whether local buffers are long enough.
    fits: bool,
    ports: PhantomData<(A, B)>,
}

impl<A: Source, B: Sink> Operation for Dma<A, B> {
    type Output = Result<(), Error>;
    const LOCAL: bool = A::SOURCE_PORT == port::LOCAL || B::SINK_PORT == port::LOCAL;

    #[inline]
    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if Self::LOCAL && !self.fits {
            return Issued::Done(Err(Error::Range));
        }
        // SAFETY: local buffers are at least `bytes` long and borrowed by the pending operation.
        issued(unsafe {
            sys::dma(self.token, A::SOURCE_PORT, self.source, B::SINK_PORT, self.destination, self.bytes, wait)
        })
    }

    #[inline]
    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}

struct DmaStrided<A, B> {
    token: u32,
    source: u64,
    destination: u64,
    strides: Strides,
    /// Whether local buffers hold all pieces.
    fits: bool,
    ports: PhantomData<(A, B)>,
}

impl<A: Source, B: Sink> Operation for DmaStrided<A, B> {
    type Output = Result<(), Error>;
    const LOCAL: bool = A::SOURCE_PORT == port::LOCAL || B::SINK_PORT == port::LOCAL;

    #[inline]
    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if Self::LOCAL && !self.fits {
            return Issued::Done(Err(Error::Range));
        }
        // SAFETY: local buffers hold all pieces and are borrowed by the pending operation.
        issued(unsafe {
            sys::dma_strided(
                self.token,
                A::SOURCE_PORT,
                self.source,
                self.strides.source_stride,
                B::SINK_PORT,
                self.destination,
                self.strides.destination_stride,
                self.strides.segment_bytes,
                self.strides.segments,
                wait,
            )
        })
    }

    #[inline]
    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}

struct Compare {
    token: u32,
    nv: Nv,
    body: Body,
    bytes: u32,
}

impl Operation for Compare {
    type Output = Result<bool, Error>;
    const LOCAL: bool = false;

    #[inline]
    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        match sys::compare(self.token, self.nv.0, self.body.0.into(), self.bytes, wait) {
            sys::DONE => Issued::Done(Ok(true)),
            sys::DIFFERENT => Issued::Done(Ok(false)),
            sys::PENDING => Issued::Pending,
            error => Issued::Done(Err(Error::from_code(error.into()))),
        }
    }

    #[inline]
    fn completed(&mut self, result: i64) -> Self::Output {
        if result < 0 { Err(Error::from_code(result)) } else { Ok(result == 0) }
    }
}

struct Checksum<A> {
    token: u32,
    address: u64,
    bytes: u32,
    seed: u32,
    /// Whether a local buffer is long enough.
    fits: bool,
    port: PhantomData<A>,
}

impl<A: Source> Operation for Checksum<A> {
    type Output = Result<u32, Error>;
    const LOCAL: bool = A::SOURCE_PORT == port::LOCAL;

    #[inline]
    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if Self::LOCAL && !self.fits {
            return Issued::Done(Err(Error::Range));
        }
        // SAFETY: a local buffer is at least `bytes` long and borrowed by the pending operation.
        match unsafe { sys::checksum(self.token, A::SOURCE_PORT, self.address, self.bytes, self.seed, wait) } {
            sys::DONE => Issued::Done(Ok(sys::checksum_value())),
            sys::PENDING => Issued::Pending,
            error => Issued::Done(Err(Error::from_code(error.into()))),
        }
    }

    #[inline]
    fn completed(&mut self, result: i64) -> Self::Output {
        if result < 0 { Err(Error::from_code(result)) } else { Ok(result as u32) }
    }
}
