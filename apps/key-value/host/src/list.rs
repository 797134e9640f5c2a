//! Listing a namespace: one LIST call after the other, SPU 0 first, into one buffer in the form of the NVMe KV List data
//! structure: a u32 count, then entries of a u16 key length, the key, and zeroes up to a multiple of 4.

use crate::{Call, Key, Placement};
use key_value_spu::wire::{
    FLAG_AFTER, FLAG_FROM_START, KEY_BYTES_MAX, LIST_ENTRY_BYTES_MAX, LIST_MORE, PairArguments, handler,
    list_entry_bytes,
};

/// Length of the count before the entries.
const COUNT_BYTES: usize = 4;

/// What to do next in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListStep {
    /// Send this call with the same buffer, contents kept, and hand its result to [`ListScan::answered`].
    Call(Call),
    /// The buffer is complete: [`ListScan::finish`] writes the count.
    Done {
        /// There are more pairs behind the last one.
        more: bool,
    },
}

/// One listing into one buffer.
///
/// ```
/// # use key_value_host::{ListScan, ListStep, ListKeys, Placement};
/// # let placement = Placement::new([1; 16], 2);
/// # let mut buffer = vec![0; 4096];
/// # let send = |_call, _buffer: &mut Vec<u8>| 0_u32;
/// let (mut scan, mut step) = ListScan::start(placement, 1, None, false, buffer.len());
/// while let ListStep::Call(call) = step {
///     let result = send(call, &mut buffer);
///     step = scan.answered(result);
/// }
/// scan.finish(&mut buffer);
/// let keys: Vec<_> = ListKeys::new(&buffer).collect();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ListScan {
    placement: Placement,
    nsid: u32,
    spu: u16,
    written: usize,
    buffer_bytes: usize,
}

impl ListScan {
    /// Begins at `from` (`after`: behind it), which need not exist, or at the first pair. A buffer of less than 4 bytes is
    /// done at once.
    pub fn start(
        placement: Placement,
        nsid: u32,
        from: Option<&Key>,
        after: bool,
        buffer_bytes: usize,
    ) -> (Self, ListStep) {
        let mut scan = ListScan { placement, nsid, spu: 0, written: COUNT_BYTES, buffer_bytes };
        if buffer_bytes < COUNT_BYTES {
            return (scan, ListStep::Done { more: true });
        }
        let call = match from {
            None => scan.call(PairArguments { flags: FLAG_FROM_START, ..PairArguments::default() }),
            Some(key) => {
                let hash = placement.hash(key);
                scan.spu = placement.spu(hash);
                scan.call(PairArguments {
                    flags: if after { FLAG_AFTER } else { 0 },
                    hash,
                    key: key.bytes,
                    key_bytes: u32::from(key.length),
                    ..PairArguments::default()
                })
            }
        };
        (scan, ListStep::Call(call))
    }

    fn call(&self, arguments: PairArguments) -> Call {
        let arguments = PairArguments { nsid: self.nsid, word: self.written as u32, ..arguments };
        Call { handler: handler::LIST, spu: self.spu, arguments: arguments.encode() }
    }

    /// Takes the result of the last call (its status was 0).
    pub fn answered(&mut self, result: u32) -> ListStep {
        let more = result & LIST_MORE != 0;
        self.written = (self.written + (result & !LIST_MORE) as usize).min(self.buffer_bytes);
        if more {
            return ListStep::Done { more };
        }
        self.spu += 1;
        if self.spu >= self.placement.spus() {
            return ListStep::Done { more: false };
        }
        ListStep::Call(self.call(PairArguments { flags: FLAG_FROM_START, ..PairArguments::default() }))
    }

    /// Writes the count in front; returns the bytes of the list. Where not even the count fits, writes nothing.
    pub fn finish(&self, buffer: &mut [u8]) -> usize {
        if buffer.len() < COUNT_BYTES {
            return 0;
        }
        let end = self.written.min(buffer.len());
        let count = entries(&buffer[COUNT_BYTES..end]).count() as u32;
        buffer[..COUNT_BYTES].copy_from_slice(&count.to_le_bytes());
        end
    }

    /// Bytes that hold any list with at least one key.
    pub const BUFFER_BYTES_MIN: usize = COUNT_BYTES + LIST_ENTRY_BYTES_MAX;
}

/// The keys of a finished list.
pub struct ListKeys<'a> {
    left: u32,
    rest: &'a [u8],
}

impl<'a> ListKeys<'a> {
    /// Reads a list; one that is cut short or senseless ends early.
    pub fn new(list: &'a [u8]) -> Self {
        match list.split_first_chunk::<COUNT_BYTES>() {
            Some((count, rest)) => ListKeys { left: u32::from_le_bytes(*count), rest },
            None => ListKeys { left: 0, rest: &[] },
        }
    }
}

impl<'a> ListKeys<'a> {
    /// The keys of entries without a count, as a scan brings them.
    pub fn of_entries(rest: &'a [u8]) -> Self {
        ListKeys { left: u32::MAX, rest }
    }
}

impl Iterator for ListKeys<'_> {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        self.left = self.left.checked_sub(1)?;
        let (key, rest) = entry(self.rest)?;
        self.rest = rest;
        Some(key)
    }
}

fn entry(from: &[u8]) -> Option<(Key, &[u8])> {
    let (length, rest) = from.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length == 0 || length > KEY_BYTES_MAX {
        return None;
    }
    let key = Key::new(rest.get(..length)?).ok()?;
    Some((key, from.get(list_entry_bytes(length)..)?))
}

fn entries(mut from: &[u8]) -> impl Iterator<Item = Key> {
    std::iter::from_fn(move || {
        let (key, rest) = entry(from)?;
        from = rest;
        Some(key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_over_all_spus_and_counts() {
        let placement = Placement::new([1; 16], 3);
        let mut buffer = vec![0_u8; 64];
        let (mut scan, mut step) = ListScan::start(placement, 7, None, false, buffer.len());
        let mut spus = Vec::new();
        while let ListStep::Call(call) = step {
            let arguments = PairArguments::decode(&call.arguments);
            assert_eq!(arguments.nsid, 7);
            let at = arguments.word as usize;
            buffer[at..at + 2].copy_from_slice(&1_u16.to_le_bytes());
            buffer[at + 2] = b'a' + call.spu as u8;
            spus.push(call.spu);
            step = scan.answered(4);
        }
        assert_eq!(step, ListStep::Done { more: false });
        assert_eq!(spus, [0, 1, 2]);
        let bytes = scan.finish(&mut buffer);
        assert_eq!(bytes, 16);
        let keys: Vec<Key> = ListKeys::new(&buffer[..bytes]).collect();
        assert_eq!(keys, [b"a", b"b", b"c"].map(|key| Key::new(key).unwrap()));
    }

    #[test]
    fn stops_where_the_buffer_is_full() {
        let placement = Placement::new([1; 16], 3);
        let (mut scan, step) = ListScan::start(placement, 1, None, false, 20);
        assert!(matches!(step, ListStep::Call(_)));
        assert_eq!(scan.answered(8 | LIST_MORE), ListStep::Done { more: true });
        assert_eq!(ListScan::start(placement, 1, None, false, 3).1, ListStep::Done { more: true });
    }

    #[test]
    fn senseless_lists_end_early() {
        assert_eq!(ListKeys::new(&[]).count(), 0);
        assert_eq!(ListKeys::new(&[255; 40]).count(), 0);
        assert_eq!(ListKeys::new(&[9, 0, 0, 0, 1, 0]).count(), 0);
        assert_eq!(ListKeys::new(&[9, 0, 0, 0, 1, 0, 65, 0]).count(), 1);
    }
}
