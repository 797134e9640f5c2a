//! The keys accelerator: the place of a key in a node or a bucket.

use core::future::Future;
use core::marker::PhantomData;

use crate::Error;
use crate::executor::{Issued, Operation, Wait};
use crate::request::{Request, Source};
use crate::sys::{self, port};

impl Request {
    /// The place of `key` among keys at a port, each as long as it, by the accelerator.
    pub fn find_key<A: Source>(
        &self,
        source: A,
        keys: Keys,
        key: &[u8],
    ) -> impl Future<Output = Result<KeyPlace, Error>> {
        let (address, address_bytes) = source.source();
        let reach = u64::from(keys.stride_bytes) * u64::from(keys.count.saturating_sub(1)) + key.len() as u64;
        let key_bytes = key.len() as u32;
        let fits = keys.count == 0 || reach <= u64::from(address_bytes);
        let key = key.as_ptr();
        Wait::new(FindKey::<A> { token: self.token(), address, keys, key, key_bytes, fits, port: PhantomData })
    }
}

/// How keys lie at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Bytes from the begin of a key to that of the next.
    pub stride_bytes: u32,
    /// How many there are.
    pub count: u32,
    /// They ascend, as bytes.
    pub ascending: bool,
}

/// Where a key is among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// How many keys are less; where they are in no order, how many come before the first that equals it.
    pub index: u32,
    /// Whether the key there equals it.
    pub equal: bool,
}

/// Most bytes of a key that is looked for.
pub const KEY_BYTES_MAX: usize = 256;

struct FindKey<A> {
    token: u32,
    address: u64,
    keys: Keys,
    key: *const u8,
    key_bytes: u32,
    /// Whether a local buffer is long enough.
    fits: bool,
    port: PhantomData<A>,
}

impl<A: Source> Operation for FindKey<A> {
    type Output = Result<KeyPlace, Error>;
    const LOCAL: bool = A::SOURCE_PORT == port::LOCAL;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if !self.fits {
            return Issued::Done(Err(Error::Range));
        }
        let Keys { stride_bytes, count, ascending } = self.keys;
        // SAFETY: a local source is long enough and borrowed by the pending operation; the key is read before this returns, and borrowed
        // as long.
        let code = unsafe {
            sys::keys_find(
                self.token,
                A::SOURCE_PORT,
                self.address,
                self.key_bytes,
                stride_bytes,
                count,
                (!ascending).into(),
                self.key,
                wait,
            )
        };
        match code {
            sys::PENDING => Issued::Pending,
            place => Issued::Done(self.completed(place.into())),
        }
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        // 2 and more: see docs/abi.md.
        let Some(place) = result.checked_sub(2).filter(|place| *place >= 0) else {
            return Err(Error::from_code(result));
        };
        Ok(KeyPlace { index: (place / 2) as u32, equal: place % 2 == 1 })
    }
}
