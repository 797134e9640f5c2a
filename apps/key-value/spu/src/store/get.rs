//! Get: from a pair's bucket to its value in the reply, at once where nothing has to be waited for, else with waits.
//!
//! What always holds: both ways walk the chain as [`Store::find`] does; what is unusual is left to the way with waits, and with it
//! all repair.

use super::{Position, Store};
use crate::bank::{Bank, Failure, Planted, planted};
use crate::format::{HEADER_BYTES, HeaderView, Layout, NEXT_OFFSET, PairId, SLAB_BYTES};

/// Records of a chain that [`Store::get_now`] looks at.
const RECORDS_AT_ONCE: u32 = 8;

/// Gets that are done with waits after one that could not be done at once.
const GETS_THAT_WAIT: u32 = 63;

/// A pair that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Length of its value.
    pub value_bytes: u32,
    /// Its version: differs from that of whatever was stored under this key before, or will be.
    pub version: u64,
    /// When it ends to exist; 0: never.
    pub expiry: u32,
}

/// What a get says of a pair: all, or only the length of its value.
pub trait Answer {
    /// Of a pair with such a header.
    fn of(value_bytes: u32, header: &HeaderView<'_>) -> Self;
}

impl Answer for Found {
    #[inline]
    fn of(value_bytes: u32, header: &HeaderView<'_>) -> Self {
        Found { value_bytes, version: header.sequence(), expiry: header.expiry() }
    }
}

impl Answer for u32 {
    #[inline]
    fn of(value_bytes: u32, _header: &HeaderView<'_>) -> Self {
        value_bytes
    }
}

impl Store {
    /// [`Self::get`] where all of it can be done at once, which is the way of most requests: nobody else runs meanwhile, so that
    /// nothing has to be held. `None`: nothing was done, and nothing is said of the pair; what is unusual ends so as well.
    #[inline]
    pub fn get_now<B: Bank, A: Answer>(
        &self,
        bank: &B,
        id: &PairId,
        offset: u32,
        room: u32,
    ) -> Option<Result<A, Failure>> {
        let patience = self.patience.get();
        if patience > 0 {
            self.patience.set(patience - 1);
            return None;
        }
        let bucket = self.bucket(id);
        if self.stripes.is_changing(bucket) {
            return None;
        }
        let geometry = self.geometry.get();
        let mut pointer = [0; 4];
        let mut bytes = [0; HEADER_BYTES as usize];
        let mut before = 0;
        match bank.read_now(geometry.bucket_address(bucket), &mut pointer) {
            Some(Ok(())) => {}
            Some(Err(fault)) => return Some(Err(fault.into())),
            None => {
                // Media that make one wait make the next wait, too.
                self.patience.set(GETS_THAT_WAIT);
                return None;
            }
        }
        let mut pointer = u32::from_le_bytes(pointer);
        for _ in 0..RECORDS_AT_ONCE {
            if pointer == 0 {
                return Some(Err(Failure::NotFound));
            }
            if !geometry.holds(pointer) {
                return None;
            }
            let address = geometry.address(pointer);
            if let Err(fault) = bank.read_now(address, &mut bytes)? {
                return Some(Err(fault.into()));
            }
            let header = HeaderView(&bytes);
            if !header.is_sound() {
                return None;
            }
            if header.is_of(id) {
                let (length, 0) = header.value()? else { return None };
                if header.sequence() <= self.horizon.get() {
                    return None;
                }
                let end = length.min(offset.saturating_add(room));
                if offset < end {
                    let from = address + HEADER_BYTES + u64::from(offset);
                    if let Err(fault) = bank.send_now(from, 0, end - offset)? {
                        return Some(Err(fault.into()));
                    }
                }
                return Some(Ok(A::of(length, &header)));
            }
            let hash = header.hash();
            if hash > id.hash {
                return Some(Err(Failure::NotFound));
            }
            // Keys of one hash, and chains that do not ascend, are looked at with all checks.
            if hash == id.hash || hash < before {
                return None;
            }
            before = hash;
            pointer = header.next();
        }
        None
    }

    /// Copies the value from byte `offset` on to the reply, at most `room` bytes.
    #[inline]
    pub async fn get<B: Bank, A: Answer>(&self, bank: &B, id: &PairId, offset: u32, room: u32) -> Result<A, Failure> {
        let bucket = self.bucket(id);
        let share = match self.stripes.try_read(bucket, &self.waiters) {
            Some(share) => share,
            None => self.stripes.read(bucket, &self.waiters).await,
        };
        let mut bytes = [0; HEADER_BYTES as usize];
        let position = walk!(self, bank.read_in_place, bucket, id, &mut bytes);
        if !position.found {
            return Err(Failure::NotFound);
        }
        let (length, chunks) = self.value_of(&HeaderView(&bytes)).ok_or(Failure::NotFound)?;
        let _share = Some(share).filter(|_| !planted(bank, Planted::ReaderUnprotected));
        let end = length.min(offset.saturating_add(room));
        if offset < end {
            let address = self.geometry.get().address(position.pointer) + HEADER_BYTES;
            if chunks == 0 {
                bank.send(address + u64::from(offset), 0, end - offset).await?;
            } else {
                self.send_chunked(bank, address, length, offset, end).await?;
            }
        }
        Ok(A::of(length, &HeaderView(&bytes)))
    }

    async fn send_chunked<B: Bank>(
        &self,
        bank: &B,
        pointers: u64,
        value_bytes: u32,
        offset: u32,
        end: u32,
    ) -> Result<(), Failure> {
        let layout = Layout::of(value_bytes);
        let slab_bytes = SLAB_BYTES as u32;
        let mut at = offset;
        while at < end {
            let chunk = at / slab_bytes;
            if chunk >= layout.chunks {
                let rest = pointers + 4 * u64::from(layout.chunks);
                let inside = at - layout.chunks * slab_bytes;
                bank.send(rest + u64::from(inside), at - offset, end - at).await?;
                return Ok(());
            }
            let address = self.chunk_address(bank, pointers, chunk).await?;
            let inside = at % slab_bytes;
            let bytes = (slab_bytes - inside).min(end - at);
            bank.send(address + u64::from(inside), at - offset, bytes).await?;
            at += bytes;
        }
        Ok(())
    }
}
