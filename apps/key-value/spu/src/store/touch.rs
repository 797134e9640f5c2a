//! Touch: a pair gets another time to end, in place. Its value and its version stay.
//!
//! What always holds: a header lies within one sector, so that after a cut it is the old or the new one, with the same sequence number;
//! so recovery judges the record by the same rules.

use super::{DRAIN_PER_MUTATION, Found, Store};
use crate::bank::{Bank, Failure, Planted, planted};
use crate::format::{HEADER_BYTES, Header, HeaderView, PairId};

impl Store {
    /// Gives a pair another expiry (0: it stays).
    pub async fn touch<B: Bank>(&self, bank: &B, id: &PairId, expiry: u32) -> Result<Found, Failure> {
        // Looks first, so that to touch what is not there writes nothing.
        self.exists(bank, id).await?;
        self.begin_mutation(bank).await?;
        let bucket = self.bucket(id);
        let mut bytes = [0; HEADER_BYTES as usize];
        let found = {
            let _alone = self.stripes.write(bucket, &self.waiters).await;
            let position = self.find(bank, bucket, id, &mut bytes).await?;
            if !position.found || self.value_of(&HeaderView(&bytes)).is_none() {
                return Err(Failure::NotFound);
            }
            let old = self.decoded(&bytes)?;
            let new = Header { expiry, ..old };
            let generation = self.generation_of(bank, position.pointer).await?;
            new.encode(&self.nonce.get(), Self::offset(position.pointer), generation, &mut bytes);
            if planted(bank, Planted::ExpiryUnchecked) {
                let mut unchecked = bytes;
                old.encode(&self.nonce.get(), Self::offset(position.pointer), generation, &mut unchecked);
                bytes[..8].copy_from_slice(&unchecked[..8]);
            }
            let written = bank.write(self.geometry.get().address(position.pointer), &bytes).await;
            self.sound(written)?;
            Found { value_bytes: old.value_bytes, version: old.sequence, expiry }
        };
        self.drain(bank, DRAIN_PER_MUTATION).await?;
        Ok(found)
    }
}
