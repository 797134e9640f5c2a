//! The keys accelerator: finds a key among keys that lie at equal distances at a port, as in a node of a B+tree or a bucket of a hash table.
//!
//! Natively a binary search, or a comparison of one after the other where they are in no order; under a model the accelerator takes the
//! keys that were compared ([`willow_gate::keys`]), or, where the store brings them later, as many as may have to be.

use crate::interconnect::Transfer;
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::spu::abi;
use crate::spu::continuation::Pending;
use crate::spu::dma::Port;
use crate::spu::gate::{Behalf, Charged, MayRead};
use crate::spu::group::Waiter;
use crate::spu::os::{Caller, LocalMemory, Machine, WildPointer, error_of};
use willow_gate::KeySearch;
use willow_gate::keys::Layout;

impl Machine {
    /// `keys_find`: the place of a key among keys at a port.
    pub fn keys_find<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        (asked, behalf): (KeySearch, Behalf),
        _: Charged,
    ) -> Result<i32, WildPointer> {
        let KeySearch { token, port, address, layout, key, wait } = asked;
        let span = layout.span_bytes as usize;
        let mut transfer = None;
        let mut found = None;
        let mut copy = Vec::new();
        match port {
            Port::Local => {
                let keys = memory.slice(address, span)?;
                found = Some(layout.place(keys, memory.slice(key, layout.key_bytes as usize)?));
            }
            Port::Network => {
                let key = memory.slice(key, layout.key_bytes as usize)?;
                found = self.with_body(caller.at(token), address, span, |keys| layout.place(keys, key));
                if found.is_none() {
                    return Ok(abi::ERROR_RANGE);
                }
            }
            Port::Nv => {
                let Some(permit) = self.may_read(caller, behalf, address, span) else {
                    return Ok(abi::ERROR_PERMISSION);
                };
                self.spus[caller.spu as usize].counters.nv_read_bytes += u64::from(layout.span_bytes);
                copy.resize(span, 0);
                match permit.read(&mut self.media, &mut copy) {
                    Ok(Progress::Done) => {
                        transfer = Some(Transfer::read(caller.spu, address, layout.span_bytes, token));
                    }
                    Ok(Progress::WouldBlock) => return self.keys_read_later(caller, memory, &asked, permit),
                    Err(error) => return Ok(error_of(error)),
                }
            }
            Port::Zero | Port::Nothing => return Ok(abi::ERROR_ARGUMENT),
        }
        let place = match found {
            Some(place) => place,
            None => layout.place(&copy, memory.slice(key, layout.key_bytes as usize)?),
        };
        let taken = (Accelerator::Keys, place.comparisons * u64::from(layout.key_bytes));
        let result = place.result();
        Ok(self.streams((caller, Waiter { token, wait }), taken, (result.into(), transfer), |_| result))
    }

    /// The keys are not there at once: they are read, with a copy of the key kept.
    #[cold]
    fn keys_read_later<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        asked: &KeySearch,
        permit: MayRead,
    ) -> Result<i32, WildPointer> {
        let KeySearch { token, address, layout, wait, .. } = *asked;
        let key = memory.slice(asked.key, layout.key_bytes as usize)?.into();
        let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
        // How many will be compared is not known yet: the processor waits for as many as there may be.
        let most_bytes = layout.comparisons_max() * u64::from(layout.key_bytes);
        self.clock.note(|work| work.accelerated.add(Accelerator::Keys, most_bytes));
        let pending = Pending::Keys { group, layout, key };
        let transfer = Transfer::read(caller.spu, address, layout.span_bytes, token);
        Ok(self.begin_single(permit, pending, (group, transfer)))
    }

    /// The keys have come: what the app is told.
    pub fn keys_read(&mut self, spu: u16, (layout, key): (Layout, &[u8]), keys: &[u8]) -> i64 {
        let place = layout.place(keys, key);
        self.passes_accelerator(spu, Accelerator::Keys, place.comparisons * u64::from(layout.key_bytes));
        place.result().into()
    }
}
