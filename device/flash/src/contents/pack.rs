//! Packs a page's header as what differs from the one before it.
//!
//! What always holds: unpacking gives the bytes that were packed, whatever they are; how short they become depends on how alike headers are.
//!
//! ```text
//! u8 flags: 1 the length differs, 2 the last four bytes are the CRC-32 of those before, 4 the differences are one run
//! u16 length, where it differs
//! runs: u8 skip << 4 | count, then as many bytes (exclusive or); a count of zero only skips; after the last one, unless it is one run, a zero
//! ```
//! The checksum is that of IEEE 802.3, which FTLs of this repository end their headers with: it need not be kept, since it can be computed.

const LENGTH_DIFFERS: u8 = 1;
const ENDS_WITH_CHECKSUM: u8 = 2;
const ONE_RUN: u8 = 4;
/// Most bytes that a run skips, and that it has.
const RUN_MAX: usize = 15;

fn checksum(bytes: &[u8]) -> [u8; 4] {
    crc32fast::hash(bytes).to_le_bytes()
}

/// Appends a header, given the one before.
pub fn pack(before: &[u8], header: &[u8], packed: &mut Vec<u8>) {
    let flags_at = packed.len();
    let mut flags = 0;
    packed.push(0);
    if header.len() != before.len() {
        flags |= LENGTH_DIFFERS;
        // At most 65,535: validated.
        packed.extend_from_slice(&(header.len() as u16).to_le_bytes());
    }
    let mut body = header;
    if let Some((front, end)) = header.split_last_chunk::<4>()
        && *end == checksum(front)
    {
        flags |= ENDS_WITH_CHECKSUM;
        body = front;
    }
    let difference = |at: usize| body[at] ^ before.get(at).copied().unwrap_or(0);
    let mut at = 0;
    let mut runs = 0;
    let mut skip = 0;
    while at < body.len() {
        if difference(at) == 0 {
            (at, skip) = (at + 1, skip + 1);
            continue;
        }
        while skip > RUN_MAX {
            packed.push((RUN_MAX << 4) as u8);
            (skip, runs) = (skip - RUN_MAX, runs + 1);
        }
        let mut count = 1;
        // A single byte that is the same costs less within a run than a new run.
        while count < RUN_MAX && at + count < body.len() {
            let more = difference(at + count) != 0 || (at + count + 1 < body.len() && difference(at + count + 1) != 0);
            if !more {
                break;
            }
            count += 1;
        }
        packed.push((skip << 4 | count) as u8);
        packed.extend((at..at + count).map(difference));
        (at, skip, runs) = (at + count, 0, runs + 1);
    }
    if runs == 1 {
        flags |= ONE_RUN;
    } else {
        packed.push(0);
    }
    packed[flags_at] = flags;
}

/// Turns the header before into the packed one; the bytes that it took.
pub fn unpack(packed: &[u8], header: &mut Vec<u8>) -> usize {
    let flags = packed[0];
    let mut at = 1;
    if flags & LENGTH_DIFFERS != 0 {
        header.resize(u16::from_le_bytes([packed[1], packed[2]]).into(), 0);
        at = 3;
    }
    let mut place = 0;
    loop {
        let run = packed[at];
        at += 1;
        if run == 0 {
            break;
        }
        place += usize::from(run >> 4);
        for _ in 0..run & 15 {
            header[place] ^= packed[at];
            (place, at) = (place + 1, at + 1);
        }
        if flags & ONE_RUN != 0 {
            break;
        }
    }
    if flags & ENDS_WITH_CHECKSUM != 0 {
        let front = header.len() - 4;
        let sum = checksum(&header[..front]);
        header[front..].copy_from_slice(&sum);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = Vec<u8>> {
        let bytes = proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..80);
        (bytes, any::<bool>()).prop_map(|(mut bytes, sealed)| {
            if sealed {
                let sum = checksum(&bytes);
                bytes.extend(sum);
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn what_is_unpacked_is_what_was_packed(headers in proptest::collection::vec(header(), 1..20)) {
            let mut packed = Vec::new();
            let mut before: &[u8] = &[];
            for header in &headers {
                pack(before, header, &mut packed);
                before = header;
            }
            let (mut at, mut current) = (0, Vec::new());
            for header in &headers {
                at += unpack(&packed[at..], &mut current);
                prop_assert_eq!(&current, header);
            }
            prop_assert_eq!(at, packed.len());
        }
    }
}
