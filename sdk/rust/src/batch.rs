//! Several DMAs, or several RPCs, of one handler that go on at the same time and are waited for once: cheaper than to wait for each, and than
//! [`crate::join`], whose parts are polled each time one of them has ended.
//!
//! What always holds: a local buffer of a batch stays borrowed until all of the batch has ended.

use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::executor::Issued;
use crate::rpc::RpcBuilder;
use crate::sys::{self, port};
use crate::{Error, Request, Response, Sink, Source, WAITS_MAX, executor};

/// DMAs that have begun. Awaited, it gives `Ok` once all have ended well; else one of their errors, once all have ended: the others
/// may have been done or not.
///
/// It must not be dropped before it was awaited while one of its DMAs is pending that uses a local buffer: that ends the app.
#[must_use = "the DMAs have begun; what became of them is told when it is awaited"]
pub struct Batch<'a> {
    token: u32,
    /// The thread that it belongs to.
    thread: u32,
    /// Records of the waits that are pending.
    waits: u32,
    /// Whether one of them uses a local buffer.
    local: bool,
    /// An error of one that ended at once; 0: none.
    failed: i32,
    buffers: PhantomData<&'a mut [u8]>,
}

impl Request {
    /// Nothing yet: to be filled by [`Batch::dma`], then awaited. At most [`crate::WAITS_MAX`] DMAs.
    #[inline]
    pub fn batch(&self) -> Batch<'_> {
        let (token, thread) = (self.token(), executor::running());
        Batch { token, thread, waits: 0, local: false, failed: 0, buffers: PhantomData }
    }
}

impl<'a> Batch<'a> {
    /// Begins to move `bytes` bytes.
    #[inline]
    pub fn dma<A: Source + 'a, B: Sink + 'a>(&mut self, source: A, destination: B, bytes: u32) {
        let ((source, source_bytes), (destination, destination_bytes)) = (source.source(), destination.sink());
        let local = A::SOURCE_PORT == port::LOCAL || B::SINK_PORT == port::LOCAL;
        if local && bytes > source_bytes.min(destination_bytes) {
            self.failed = Error::Range.code();
            return;
        }
        let wait = executor::next_wait();
        // SAFETY: local buffers are at least `bytes` long and borrowed by the batch, which is not dropped before they are used.
        let code = unsafe { sys::dma(self.token, A::SOURCE_PORT, source, B::SINK_PORT, destination, bytes, wait) };
        match code {
            sys::DONE => {}
            sys::PENDING => {
                assert!(wait >> 16 == self.thread, "a batch was filled by another handler");
                executor::begin_wait(wait);
                self.waits |= 1 << (wait % WAITS_MAX as u32);
                self.local |= local;
            }
            error => self.failed = error,
        }
    }
}

impl Future for Batch<'_> {
    type Output = Result<(), Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failed = i64::from(self.failed);
        if self.waits != 0 {
            match executor::gather(self.waits) {
                None => return Poll::Pending,
                Some(0) => {}
                Some(error) => failed = error,
            }
            self.waits = 0;
        }
        Poll::Ready(if failed == 0 { Ok(()) } else { Err(Error::from_code(failed)) })
    }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.waits != 0 {
            executor::abandon(self.thread, self.waits, self.local);
        }
    }
}

/// RPCs that have been sent. Awaited, it gives the response `0, 0` once all have answered so; else one of the other responses, or an error
/// of one of them, once all have ended.
///
/// It must not be dropped before it was awaited while one of its RPCs is pending that has a buffer for a reply: that ends the app.
#[must_use = "the RPCs are on their way; what they were answered is told when it is awaited"]
pub struct RpcBatch<'a> {
    token: PhantomData<&'a Request>,
    /// The thread that it belongs to.
    thread: u32,
    /// Records of the waits that are pending.
    waits: u32,
    /// Whether one of them has a buffer for a reply.
    local: bool,
    /// An error of one that ended at once.
    failed: Option<Error>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl Request {
    /// Nothing yet: to be filled by [`RpcBatch::send`], then awaited. At most [`crate::WAITS_MAX`] RPCs.
    #[inline]
    pub fn rpc_batch(&self) -> RpcBatch<'_> {
        RpcBatch {
            token: PhantomData,
            thread: executor::running(),
            waits: 0,
            local: false,
            failed: None,
            buffers: PhantomData,
        }
    }
}

impl<'a> RpcBatch<'a> {
    /// Sends a request.
    pub fn send(&mut self, rpc: RpcBuilder<'a>) {
        let wait = executor::next_wait();
        match rpc.issue(wait) {
            Issued::Done(Ok(_)) => {}
            Issued::Done(Err(error)) => self.failed = Some(error),
            Issued::Pending => {
                assert!(wait >> 16 == self.thread, "a batch was filled by another handler");
                executor::begin_wait(wait);
                self.waits |= 1 << (wait % WAITS_MAX as u32);
                self.local |= rpc.has_reply();
            }
        }
    }
}

impl Future for RpcBatch<'_> {
    type Output = Result<Response, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = Ok(Response::default());
        if self.waits != 0 {
            match executor::gather(self.waits) {
                None => return Poll::Pending,
                Some(result) => answer = crate::rpc::answer(result),
            }
            self.waits = 0;
        }
        Poll::Ready(self.failed.take().map_or(answer, Err))
    }
}

impl Drop for RpcBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.waits != 0 {
            executor::abandon(self.thread, self.waits, self.local);
        }
    }
}
