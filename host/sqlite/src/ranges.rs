//! Bytes of a base that are written and not committed.
//!
//! What always holds: no two ranges overlap; what was written last is what is there.

use std::collections::BTreeMap;

/// Ranges: first byte, and bytes.
#[derive(Default)]
pub struct Ranges {
    all: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Ranges {
    /// True where there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// One past the last byte; 0 where there are none.
    pub fn end(&self) -> u64 {
        self.all.last_key_value().map_or(0, |(start, data)| start + data.len() as u64)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.all.iter().map(|(start, data)| (*start, data.as_slice()))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.all.clear();
        self.bytes = 0;
    }

    /// Writes.
    pub fn write(&mut self, start: u64, data: &[u8]) {
        if let Some(same) = self.all.get_mut(&start).filter(|same| same.len() == data.len()) {
            same.copy_from_slice(data);
            return;
        }
        let end = start + data.len() as u64;
        let overlapped: Vec<u64> = self.overlapping(start, end).map(|(at, _)| at).collect();
        for at in overlapped {
            let Some(old) = self.all.remove(&at) else { continue };
            self.bytes -= old.len();
            if at < start {
                self.put(at, old[..(start - at) as usize].to_vec());
            }
            if at + old.len() as u64 > end {
                self.put(end, old[(end - at) as usize..].to_vec());
            }
        }
        self.put(start, data.to_vec());
    }

    fn put(&mut self, start: u64, data: Vec<u8>) {
        if !data.is_empty() {
            self.bytes += data.len();
            self.all.insert(start, data);
        }
    }

    /// Puts what is there over bytes that were read.
    pub fn read(&self, start: u64, into: &mut [u8]) {
        let end = start + into.len() as u64;
        for (at, data) in self.overlapping(start, end) {
            let (from, until) = (at.max(start), (at + data.len() as u64).min(end));
            into[(from - start) as usize..(until - start) as usize]
                .copy_from_slice(&data[(from - at) as usize..(until - at) as usize]);
        }
    }

    /// Forgets what is behind this byte.
    pub fn truncate(&mut self, end: u64) {
        for (_, data) in self.all.split_off(&end) {
            self.bytes -= data.len();
        }
        if let Some(mut last) = self.all.last_entry() {
            let most = (end - *last.key()) as usize;
            self.bytes -= last.get().len().saturating_sub(most);
            last.get_mut().truncate(most);
        }
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let before = self.all.range(..start).next_back().map_or(start, |(at, _)| *at);
        let all = self.all.range(before..end.max(before)).map(|(at, data)| (*at, data.as_slice()));
        all.filter(move |(at, data)| at + data.len() as u64 > start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_last_is_there() {
        let mut random = 7u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for round in 0..300 {
            let (mut ranges, mut model) = (Ranges::default(), [None; 300]);
            for step in 0..30u8 {
                let (start, count) = (below(200), 1 + below(90));
                if below(8) == 0 {
                    ranges.truncate(start);
                    model[start as usize..].fill(None);
                    continue;
                }
                ranges.write(start, &vec![step; count as usize]);
                model[start as usize..(start + count) as usize].fill(Some(step));
            }
            let mut found = [255; 300];
            ranges.read(0, &mut found);
            for (at, expected) in model.iter().enumerate() {
                assert_eq!(found[at], expected.unwrap_or(255), "round {round}, byte {at}");
            }
            assert_eq!(ranges.bytes(), model.iter().flatten().count());
            let end = model.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            assert_eq!(ranges.end(), end as u64);
            let (from, bytes) = (below(250), below(50));
            let mut part = vec![255; bytes as usize];
            ranges.read(from, &mut part);
            assert_eq!(part, found[from as usize..(from + bytes) as usize]);
        }
    }
}
