//! The SSD App `fgrep`: the thesis' FGREP-8 (XSSD, algorithm 3.6.2, section 4.1.2). It counts the words of eight bytes in a range of the bank that
//! equal a key: two buffers, of which one is read by DMA while the key accelerator compares the other.
//!
//! What always holds: all DMAs are done on behalf of the process that asks, so that it counts what it may read alone; memory is bounded by
//! [`REQUESTS_MAX`].
//!
//! Who may call it: any user's process.
#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::vec;
use willow_sdk::{Error, Keys, Local, Request, join, yield_now};

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Handler: counts.
pub const COUNT: u8 = 1;
/// Name that the app is installed under.
pub const APP_NAME: &str = "fgrep";
/// Bytes of a word.
pub const WORD_BYTES: usize = 8;
/// Bytes of a buffer: two of them, stack and tables fit the prototype's 32 kB of data memory.
pub const BUFFER_BYTES: usize = 8 << 10;
/// Most bytes that one request counts in.
pub const COUNT_BYTES_MAX: u32 = 16 << 20;
/// Requests on an SPU at a time.
pub const REQUESTS_MAX: usize = 4;
/// Words that the accelerator may have to compare before others have their turn: what they are charged stays far from a run's budget.
const WORDS_AT_ONCE: u32 = 64 << 10;

willow_sdk::app! {
    name: "fgrep",
    version: env!("CARGO_PKG_VERSION"),
    state: () = (),
    threads: REQUESTS_MAX,
    handlers: { COUNT => count },
    public: "*",
}

/// What to count, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The word.
    pub key: [u8; WORD_BYTES],
    /// First byte in the bank.
    pub nv_address: u64,
    /// Bytes, a multiple of [`WORD_BYTES`].
    pub bytes: u32,
}

impl Arguments {
    /// Encoded length.
    pub const BYTES: usize = 24;

    /// Little-endian bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..8].copy_from_slice(&self.key);
        out[8..16].copy_from_slice(&self.nv_address.to_le_bytes());
        out[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// From its bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> Arguments {
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| from[at + byte]));
        Arguments { key: core::array::from_fn(|byte| from[byte]), nv_address: long(8), bytes: long(16) as u32 }
    }
}

async fn count(request: Request, _: &()) -> Result<u32, Error> {
    let Arguments { key, nv_address, bytes } = Arguments::decode(&request.receive_array()?);
    if bytes > COUNT_BYTES_MAX || !(bytes as usize).is_multiple_of(WORD_BYTES) {
        return Err(Error::Argument);
    }
    let (mut current, mut next) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
    let (mut done, mut found, mut work) = (0, 0, 0);
    let mut there = bytes.min(BUFFER_BYTES as u32);
    request.read(nv_address, &mut current[..there as usize]).await?;
    while there > 0 {
        let behind = done + there;
        let coming = (bytes - behind).min(BUFFER_BYTES as u32);
        let read = request.read(nv_address.wrapping_add(behind.into()), &mut next[..coming as usize]);
        let (read, equal) = join(read, compare(&request, &current[..there as usize], &key, &mut work)).await;
        read?;
        found += equal?;
        core::mem::swap(&mut current, &mut next);
        (done, there) = (behind, coming);
    }
    Ok(found)
}

/// Words of a buffer that equal the key.
async fn compare(request: &Request, words: &[u8], key: &[u8; WORD_BYTES], work: &mut u32) -> Result<u32, Error> {
    let (mut found, mut rest) = (0, words);
    while !rest.is_empty() {
        let keys = Keys { stride_bytes: WORD_BYTES as u32, count: (rest.len() / WORD_BYTES) as u32, ascending: false };
        // A buffer full of the key is looked through from each of its words.
        *work += keys.count;
        if *work > WORDS_AT_ONCE {
            *work = 0;
            yield_now().await?;
        }
        let place = request.find_key(Local(rest), keys, key).await?;
        if !place.equal {
            break;
        }
        found += 1;
        rest = &rest[(place.index as usize + 1) * WORD_BYTES..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use willow_sdk::testing::{Device, Options};

    #[test]
    fn words_are_counted_wherever_they_are() {
        for bytes in [0, 8, 8192, 8200, 100_000] {
            let mut device = Device::new(native(), Options::default());
            let mut state = bytes as u64 + 1;
            let data: Vec<u8> = (0..bytes)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // The longest is full of the first key.
                    if bytes == 100_000 { 0 } else { (state >> 62) as u8 }
                })
                .collect();
            let at = device.create_namespace(1, 0, 512, 1 << 20).base + 64;
            device.write_bank(0, at, &data);
            for key in [[0u8; 8], [0, 1, 0, 1, 0, 1, 0, 1]]
                .into_iter()
                .chain(data.chunks_exact(8).step_by(97).map(|word| word.try_into().unwrap()))
            {
                let arguments = Arguments { key, nv_address: at, bytes: bytes as u32 };
                assert_eq!(Arguments::decode(&arguments.encode()), arguments);
                let outcome = device.call(0, COUNT, &arguments.encode(), &[], 0);
                let there = data.chunks_exact(8).filter(|word| **word == key).count() as u32;
                assert_eq!((outcome.status, outcome.result), (0, there), "{bytes}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut device = Device::new(native(), Options::default());
        for (nv_address, bytes) in [(0, 7), (0, COUNT_BYTES_MAX + 8), (u64::MAX - 8, 64), (4 << 20, 8)] {
            let arguments = Arguments { key: [1; 8], nv_address, bytes }.encode();
            assert_ne!(device.call(0, COUNT, &arguments, &[], 0).status, 0, "{nv_address} {bytes}");
        }
        assert_ne!(device.call(0, COUNT, &[1; 10], &[], 0).status, 0);
    }
}
