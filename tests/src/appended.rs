//! Records that say which they are, for tests of appending: who wrote it, how many before, how long it is, and bytes that no other has.

use crate::stage::contents;
use std::collections::BTreeMap;
use std::path::Path;

/// What files of these tests have before anything is appended: no whole number of blocks.
pub const FIRST: usize = 5000;

/// Bytes before those of its own: mark, writer, number, length.
const HEAD_BYTES: usize = 16;
const MARK: u32 = 0x5eed_cafe;

/// The record of a writer with this number; of lengths from 17 bytes to some 3000, and now and then of 60,000.
pub fn record(writer: u32, number: u32) -> Vec<u8> {
    let bytes = match number % 16 {
        15 => 60_000,
        _ => HEAD_BYTES as u32 + 1 + (number * 797 + writer * 31) % 3000,
    };
    let head: Vec<u8> = [MARK, writer, number, bytes].iter().flat_map(|word| word.to_le_bytes()).collect();
    let seed = writer.wrapping_mul(197).wrapping_add(number);
    let body = (HEAD_BYTES as u32..bytes).map(|at| (seed.wrapping_add(at * 31) >> 2) as u8);
    head.into_iter().chain(body).collect()
}

/// What a file has behind `first` bytes: how many records of each writer, which have to be whole, one after another, and of each writer those from the
/// first one on in their order; with where each begins. An error says what is wrong and where.
pub fn check(contents: &[u8], first: usize) -> Result<BTreeMap<u32, Vec<u64>>, String> {
    let mut found: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut at = first;
    while at < contents.len() {
        let word = |index: usize| {
            let bytes = contents.get(at + index * 4..at + index * 4 + 4)?;
            bytes.try_into().ok().map(u32::from_le_bytes)
        };
        let (Some(MARK), Some(writer), Some(number)) = (word(0), word(1), word(2)) else {
            return Err(format!("no record at {at} of {}", contents.len()));
        };
        let wanted = record(writer, number);
        if contents.get(at..at + wanted.len()) != Some(&wanted[..]) {
            return Err(format!("record {number} of writer {writer} at {at} of {} is torn", contents.len()));
        }
        let own = found.entry(writer).or_default();
        if own.len() != number as usize {
            return Err(format!("record {number} of writer {writer} at {at} comes after {} others of it", own.len()));
        }
        own.push(at as u64);
        at += wanted.len();
    }
    Ok(found)
}

/// The same of a file to which the kernel appends meanwhile: who reads it may see the beginning of the last record alone, since write(2) lets a file
/// grow piece by piece. That one is left out.
pub fn check_growing(contents: &[u8], first: usize) -> Result<BTreeMap<u32, Vec<u64>>, String> {
    let mut at = first;
    loop {
        let rest = contents.get(at..).unwrap_or_default();
        let word = |index: usize| {
            let bytes = rest.get(index * 4..index * 4 + 4)?;
            bytes.try_into().ok().map(u32::from_le_bytes)
        };
        let is_begun = match (word(1), word(2)) {
            (Some(writer), Some(number)) => {
                let wanted = record(writer, number);
                if rest.starts_with(&wanted) {
                    at += wanted.len();
                    continue;
                }
                wanted.starts_with(rest)
            }
            _ => rest.iter().zip(MARK.to_le_bytes()).all(|(byte, mark)| *byte == mark),
        };
        return check(if is_begun { &contents[..at] } else { contents }, first);
    }
}

/// Holds a file against what was acknowledged: records of each writer, by their offsets. There may be more than that behind them.
pub fn hold_against(path: &Path, told: &BTreeMap<u32, Vec<u64>>) -> Result<(), String> {
    let found = std::fs::read(path).map_err(|error| error.to_string())?;
    if found.get(..FIRST) != Some(&contents(FIRST, 1)[..]) {
        return Err("what was there before is something else".to_owned());
    }
    let records = check(&found, FIRST)?;
    for (writer, offsets) in told {
        let own = records.get(writer).map_or(&[][..], Vec::as_slice);
        if own.get(..offsets.len()) != Some(offsets) {
            return Err(format!("writer {writer} was told {} records, {} are there", offsets.len(), own.len()));
        }
    }
    Ok(())
}
