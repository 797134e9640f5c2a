//! The keys accelerator: finds a key among keys that lie at equal distances at a port, as in a node of a B+tree or a bucket of a hash table.
//!
//! Natively a binary search, or a comparison of one after the other where they are in no order; under a model the accelerator takes the
//! keys that were compared.
//!
//! Invariant: whatever lies there, in order or not, as many keys are compared as the order asks for, and the place is within the range.

use crate::interconnect::Transfer;
use crate::media::store::Progress;
use crate::model::accelerator::Accelerator;
use crate::spu::abi::{self, PENDING};
use crate::spu::continuation::Pending;
use crate::spu::group::Waiter;
use crate::spu::meter::{BYTES_A_WORK, Fault, SEGMENT_WORK};
use crate::spu::os::{Caller, LocalMemory, Machine, error_of};
use crate::spu::permission::Rights;

/// Most bytes of a key.
pub const KEY_BYTES_MAX: u32 = 256;
/// Most bytes that a search's keys span.
pub const SPAN_BYTES_MAX: u64 = 65536;
/// A comparison, beside its bytes (5 ns).
const COMPARISON_WORK: u64 = 20;

/// A search as the app asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySearch {
    pub token: u32,
    pub port: u32,
    pub address: u64,
    pub layout: Layout,
    /// The key's pointer.
    pub key: u64,
    pub wait: u32,
}

/// How the keys lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub key_bytes: u32,
    /// From the begin of a key to that of the next.
    pub stride_bytes: u32,
    pub count: u32,
    /// 0: they ascend; 1: they are in no order.
    pub order: u32,
}

/// What there is of a key among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Keys before it that are less; in no order, keys before the first that equals it.
    index: u32,
    equal: bool,
    comparisons: u64,
}

impl Layout {
    /// Bytes from the first key's begin to the last one's end; `None` where they cannot lie so.
    fn span_bytes(&self) -> Option<u64> {
        let fits =
            (1..=KEY_BYTES_MAX).contains(&self.key_bytes) && self.stride_bytes >= self.key_bytes && self.order <= 1;
        let before_last = u64::from(self.stride_bytes) * u64::from(self.count.saturating_sub(1));
        let span = if self.count == 0 { 0 } else { before_last.checked_add(self.key_bytes.into())? };
        (fits && span <= SPAN_BYTES_MAX).then_some(span)
    }

    /// The same of a layout that was found to be one.
    fn place(&self, keys: &[u8], key: &[u8]) -> Place {
        let at = |index: usize| &keys[index * self.stride_bytes as usize..][..self.key_bytes as usize];
        let mut comparisons = 0;
        if self.order == 1 {
            let found = (0..self.count as usize).find(|index| {
                comparisons += 1;
                at(*index) == key
            });
            return Place {
                index: found.map_or(self.count, |index| index as u32),
                equal: found.is_some(),
                comparisons,
            };
        }
        let (mut low, mut high, mut equal) = (0, self.count as usize, false);
        while low < high {
            let middle = low.midpoint(high);
            comparisons += 1;
            match at(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                order => {
                    high = middle;
                    equal = order.is_eq();
                }
            }
        }
        Place { index: low as u32, equal, comparisons }
    }
}

impl Place {
    /// What the app is told: 2 and more, so that it is neither pending nor an error.
    fn result(&self) -> i32 {
        2 + 2 * self.index as i32 + i32::from(self.equal)
    }
}

impl Machine {
    /// `keys_find`: the place of a key among keys at a port.
    pub fn keys_find<M: LocalMemory>(&mut self, caller: Caller, memory: &M, asked: KeySearch) -> Result<i32, Fault> {
        let KeySearch { token, port, address, layout, key, wait } = asked;
        let Some(activity) = self.activity(caller, token) else { return Ok(abi::ERROR_ARGUMENT) };
        let originating = activity.originating;
        let Some(span_bytes) = layout.span_bytes() else { return Ok(abi::ERROR_ARGUMENT) };
        if let Some(error) = self.too_much(caller, span_bytes, SPAN_BYTES_MAX)? {
            return Ok(error);
        }
        // Searches do not park.
        let port = port & !abi::PORT_PARK;
        let copied_bytes = if port == abi::PORT_LOCAL { 0 } else { span_bytes };
        let most = if layout.order == 1 { layout.count } else { u32::BITS - layout.count.leading_zeros() };
        let comparison = COMPARISON_WORK + u64::from(layout.key_bytes) / BYTES_A_WORK;
        self.meter.charge(SEGMENT_WORK + copied_bytes / BYTES_A_WORK + u64::from(most) * comparison)?;
        let span = span_bytes as usize;
        let mut found = None;
        let mut copy = Vec::new();
        match port {
            abi::PORT_LOCAL => {
                let keys = memory.slice(address, span)?;
                found = Some(layout.place(keys, memory.slice(key, layout.key_bytes as usize)?));
            }
            abi::PORT_NETWORK => {
                copy.resize(span, 0);
                if self.copy_body(caller.at(token), address, &mut copy).is_none() {
                    return Ok(abi::ERROR_RANGE);
                }
            }
            abi::PORT_NV => {
                if !self.permitted(caller, originating, address, span_bytes, Rights::READ) {
                    return Ok(abi::ERROR_PERMISSION);
                }
                self.spus[caller.spu as usize].counters.nv_read_bytes += span_bytes;
                copy.resize(span, 0);
                match self.media.store.read(caller.spu as usize, address, &mut copy) {
                    Ok(Progress::Done) => {}
                    Ok(Progress::WouldBlock) => return self.keys_read_later(caller, memory, &asked, span_bytes),
                    Err(error) => return Ok(error_of(error)),
                }
            }
            _ => return Ok(abi::ERROR_ARGUMENT),
        }
        let place = match found {
            Some(place) => place,
            None => layout.place(&copy, memory.slice(key, layout.key_bytes as usize)?),
        };
        self.accelerates(caller, Accelerator::Keys, place.comparisons * u64::from(layout.key_bytes));
        let result = place.result();
        let at_once = |machine: &mut Machine| match machine.makes_way(caller) {
            true => machine.yields(caller, token, (wait, result.into()), machine.is_users_app(caller.app)),
            false => result,
        };
        if port != abi::PORT_NV {
            return Ok(at_once(self));
        }
        let transfer = Transfer::read(caller.spu, address, span_bytes as u32, token);
        Ok(self.tell_end((caller, Waiter { token, wait }), result.into(), |_| (transfer, false), at_once))
    }

    /// The keys are not there at once: they are read, with a copy of the key kept.
    #[cold]
    fn keys_read_later<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &M,
        asked: &KeySearch,
        span_bytes: u64,
    ) -> Result<i32, Fault> {
        let KeySearch { token, address, layout, wait, .. } = *asked;
        let key = memory.slice(asked.key, layout.key_bytes as usize)?.into();
        let Some(group) = self.group(caller, Some(token), wait) else { return Ok(abi::ERROR_REFUSED) };
        let pending = Pending::Keys { group, layout, key };
        let begun = self.begin_single(group, caller.spu as usize, address, span_bytes as usize, pending);
        if begun == PENDING {
            let transfer = Transfer::read(caller.spu, address, span_bytes as u32, token);
            self.group_takes(group, |_| (transfer, false));
        }
        Ok(begun)
    }

    /// The keys have come: what the app is told.
    pub fn keys_read(&mut self, spu: u16, (layout, key): (Layout, &[u8]), keys: &[u8]) -> i64 {
        let place = layout.place(keys, key);
        self.passes_accelerator(spu, Accelerator::Keys, place.comparisons * u64::from(layout.key_bytes));
        place.result().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_definition() {
        let mut state = 3u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..3000 {
            let key_bytes = 1 + next(3) as u32;
            let (stride_bytes, count) = (key_bytes + next(4) as u32, next(40) as u32);
            let draw =
                |next: &mut dyn FnMut(u64) -> u64| (0..key_bytes).map(|_| next(4) as u8 + 126).collect::<Vec<u8>>();
            let mut all: Vec<Vec<u8>> = (0..count).map(|_| draw(&mut next)).collect();
            let key = draw(&mut next);
            for order in [1, 0] {
                if order == 0 {
                    all.sort();
                }
                let layout = Layout { key_bytes, stride_bytes, count, order };
                let mut bytes: Vec<u8> = all
                    .iter()
                    .flat_map(|key| [key.clone(), vec![0xff; (stride_bytes - key_bytes) as usize]].concat())
                    .collect();
                let span = layout.span_bytes().expect("a layout") as usize;
                assert!(span <= bytes.len());
                bytes.truncate(span);
                let first = all.iter().position(|other| *other == key);
                let less = all.iter().filter(|other| **other < key).count();
                let index = if order == 1 { first.unwrap_or(count as usize) } else { less };
                let place = layout.place(&bytes, &key);
                assert_eq!((place.index as usize, place.equal), (index, first.is_some()));
                assert!(place.comparisons <= if order == 1 { count.into() } else { 7 });
            }
        }
    }

    #[test]
    fn layouts_that_cannot_be_are_none() {
        let layout =
            |key_bytes, stride_bytes, count, order| Layout { key_bytes, stride_bytes, count, order }.span_bytes();
        assert_eq!(
            (layout(8, 8, 0, 0), layout(8, 16, 2, 1), layout(256, 256, 256, 0)),
            (Some(0), Some(24), Some(65_536))
        );
        for (key_bytes, stride_bytes, count, order) in
            [(0, 8, 1, 0), (257, 300, 1, 0), (8, 7, 1, 0), (8, 8, 1, 2), (256, 256, 257, 0), (1, u32::MAX, u32::MAX, 0)]
        {
            assert_eq!(layout(key_bytes, stride_bytes, count, order), None);
        }
    }
}
