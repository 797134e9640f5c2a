//! NV memory of other SPUs: moved over the device's interconnect, without work for their processors.

use core::future::Future;
use core::marker::PhantomData;

use crate::executor::{Issued, Operation, Wait};
use crate::request::{Sink, Source, completed, issued};
use crate::sys::{self, port};
use crate::{Error, Request};

/// An address of another SPU's NV memory (its own, by its own number, works as well).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpuNv {
    /// Number of the SPU.
    pub spu: u32,
    /// Byte in its bank.
    pub address: u64,
}

impl SpuNv {
    /// Its port; one that there is not where there can be no such SPU.
    fn port(self) -> u32 {
        self.spu.checked_add(1).and_then(|number| number.checked_mul(port::SPU)).map_or(u32::MAX, |spu| port::NV + spu)
    }
}

impl Request {
    /// Moves `bytes` bytes of another SPU's NV memory to the reply or to local memory. Its permissions are asked there, and such a read does not
    /// wait for one that is missing.
    pub fn read_spu<B: Sink>(
        &self,
        from: SpuNv,
        destination: B,
        bytes: u32,
    ) -> impl Future<Output = Result<(), Error>> + use<'_, B> {
        let (destination, destination_bytes) = destination.sink();
        let (source, fits) = ((from.port(), from.address), bytes <= destination_bytes);
        let destination = (B::SINK_PORT, destination);
        Wait::new(RemoteDma::<B> { token: self.token(), source, destination, bytes, fits, end: PhantomData })
    }

    /// Moves `bytes` bytes of the body, of local memory, or zeroes to another SPU's NV memory, with the same conditions.
    pub fn write_spu<A: Source>(
        &self,
        source: A,
        to: SpuNv,
        bytes: u32,
    ) -> impl Future<Output = Result<(), Error>> + use<'_, A> {
        let (source, source_bytes) = source.source();
        let (destination, fits) = ((to.port(), to.address), bytes <= source_bytes);
        let source = (A::SOURCE_PORT, source);
        Wait::new(RemoteDma::<A> { token: self.token(), source, destination, bytes, fits, end: PhantomData })
    }
}

struct RemoteDma<E> {
    token: u32,
    source: (u32, u64),
    destination: (u32, u64),
    bytes: u32,
    /// Whether a local buffer is long enough.
    fits: bool,
    end: PhantomData<E>,
}

impl<E> Operation for RemoteDma<E> {
    type Output = Result<(), Error>;
    // One end may be: what is said of both kinds holds for the one that needs it.
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if !self.fits {
            return Issued::Done(Err(Error::Range));
        }
        // SAFETY: local buffers are at least `bytes` long and borrowed by the pending operation.
        issued(unsafe {
            sys::dma(self.token, self.source.0, self.source.1, self.destination.0, self.destination.1, self.bytes, wait)
        })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}
