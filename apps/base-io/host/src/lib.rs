//! Base-IO's library for hosts: which RPC goes to which SPU so that a range of a block namespace is read, written, zeroed
//! or compared (Willow, section 4.1: Base-IO stripes the address space over the SPUs).
//!
//! What always holds:
//! - byte `o` of a namespace lies on SPU `(o / stripe) % spus`, at `base + (o / stripe / spus) * stripe + o % stripe` of its bank;
//! - a range becomes at most one RPC an SPU, which covers one contiguous range of that SPU's bank ([`Geometry::range`]), unless
//!   it is longer than [`RANGE_BYTES_MAX`] an SPU, where it becomes several;
//! - no allocation, no input or output, no knowledge of a transport: the caller makes messages of what it is handed.
//!
//! Who may call it: transports that serve block commands, and host programs that send RPCs to Base-IO themselves.

use base_io_spu::wire::{RangeArguments, handler};

pub use base_io_spu::wire;

/// Name that Base-IO is installed under.
pub const APP_NAME: &str = "base-io";
/// Most bytes of one bank that one RPC covers: longer ranges (Dataset Management) are cut. Others wait for one piece at most, and it is less
/// than a DMA may move (256 MiB).
pub const RANGE_BYTES_MAX: u64 = 16 << 20;

/// Where a block namespace lies in the banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of SPUs that it is striped over, at least 1.
    pub spus: u16,
    /// Bytes of a stripe, a power of two.
    pub stripe_bytes: u32,
    /// First byte of its region in every bank.
    pub base: u64,
}

/// One RPC for one SPU, with its inline arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpuRequest {
    /// Receiver.
    pub spu: u16,
    /// Handler number in Base-IO.
    pub handler: u8,
    /// What to do there.
    pub arguments: RangeArguments,
}

impl Geometry {
    /// The RPC for a range that lies in one stripe; `None`: it lies in several, or has no bytes. Arguments as of [`Geometry::range`].
    #[inline(always)]
    pub fn in_one_stripe(
        &self,
        handler: u8,
        start: u64,
        bytes: u64,
        buffer_offset: u32,
        flags: u32,
    ) -> Option<SpuRequest> {
        let stripe = u64::from(self.stripe_bytes);
        let spus = u64::from(self.spus);
        let within = start & (stripe - 1);
        let first = start >> self.stripe_bytes.trailing_zeros();
        if bytes == 0 || within + bytes > stripe {
            return None;
        }
        // Most devices have a number of SPUs that needs no division.
        let (row, spu) = match spus & (spus - 1) {
            0 => (first >> spus.trailing_zeros(), first & (spus - 1)),
            _ => (first / spus, first % spus),
        };
        Some(SpuRequest {
            spu: spu as u16,
            handler,
            arguments: RangeArguments {
                nv_address: self.base + row * stripe + within,
                bytes: bytes as u32,
                buffer_offset,
                first_bytes: bytes as u32,
                stripe_bytes: self.stripe_bytes,
                stride: self.stripe_bytes.wrapping_mul(u32::from(self.spus)),
                flags,
            },
        })
    }

    /// Calls `each` with the RPCs for `bytes` bytes from byte `start` of the namespace on. `buffer_offset` is where the range's
    /// first byte lies in the host's buffer. `handler` is one of [`wire::handler`], `flags` the `FLAG_*` in [`wire`].
    /// The caller has checked that the range lies within the namespace; a range of 0 bytes makes no RPC.
    #[inline(always)]
    pub fn range(
        &self,
        handler: u8,
        start: u64,
        bytes: u64,
        buffer_offset: u32,
        flags: u32,
        mut each: impl FnMut(SpuRequest),
    ) {
        debug_assert!(self.spus > 0 && self.stripe_bytes.is_power_of_two());
        if bytes == 0 {
            return;
        }
        let stripe = u64::from(self.stripe_bytes);
        let spus = u64::from(self.spus);
        let within = start & (stripe - 1);
        let first = start >> self.stripe_bytes.trailing_zeros();
        // The common case.
        if let Some(request) = self.in_one_stripe(handler, start, bytes, buffer_offset, flags) {
            return each(request);
        }
        let end = start + bytes;
        let last = (end - 1) / stripe;
        for index in 0..spus.min(last - first + 1) {
            let mut number = first + index;
            // Stripes first + index, first + index + spus, ... are this SPU's share, contiguous in its bank; cut where too long.
            while number <= last {
                let stripes = ((last - number) / spus + 1).min(RANGE_BYTES_MAX / stripe);
                let final_stripe = number + (stripes - 1) * spus;
                let skipped = if number == first { within } else { 0 };
                let missing = if final_stripe == last { (last + 1) * stripe - end } else { 0 };
                let share = stripes * stripe - skipped - missing;
                let first_bytes = if stripes == 1 { share } else { stripe - skipped };
                each(SpuRequest {
                    spu: (number % spus) as u16,
                    handler,
                    arguments: RangeArguments {
                        nv_address: self.base + number / spus * stripe + skipped,
                        bytes: share as u32,
                        // Ranges with a buffer are no longer than the buffer, so that this does not wrap for them.
                        buffer_offset: buffer_offset.wrapping_add((number * stripe + skipped - start) as u32),
                        first_bytes: first_bytes as u32,
                        stripe_bytes: self.stripe_bytes,
                        stride: self.stripe_bytes.wrapping_mul(u32::from(self.spus)),
                        flags,
                    },
                });
                number = final_stripe + spus;
            }
        }
    }

    /// Calls `each` with the RPCs that make all that was written to the namespace durable: one an SPU.
    pub fn flush(&self, mut each: impl FnMut(SpuRequest)) {
        for spu in 0..self.spus {
            each(SpuRequest {
                spu,
                handler: handler::FLUSH,
                arguments: RangeArguments {
                    nv_address: self.base,
                    bytes: 0,
                    buffer_offset: 0,
                    first_bytes: 0,
                    stripe_bytes: self.stripe_bytes,
                    stride: self.stripe_bytes.wrapping_mul(u32::from(self.spus)),
                    flags: 0,
                },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spells out the pieces of a request: (bank address, buffer offset, bytes).
    fn pieces(request: &SpuRequest) -> Vec<(u64, i64, u64)> {
        let arguments = &request.arguments;
        let mut out =
            vec![(arguments.nv_address, i64::from(arguments.buffer_offset), u64::from(arguments.first_bytes))];
        let mut done = u64::from(arguments.first_bytes);
        let mut piece = 1;
        while done < u64::from(arguments.bytes) {
            let bytes = (u64::from(arguments.bytes) - done).min(u64::from(arguments.stripe_bytes));
            let offset = i64::from(arguments.buffer_offset) + i64::from(arguments.first_bytes)
                - i64::from(arguments.stripe_bytes)
                + piece * i64::from(arguments.stride);
            out.push((arguments.nv_address + done, offset, bytes));
            done += bytes;
            piece += 1;
        }
        out
    }

    #[test]
    fn every_byte_is_covered_once_and_in_its_place() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..3000 {
            let stripe = 16u64;
            let geometry = Geometry { spus: 1 + random(9) as u16, stripe_bytes: 16, base: 4096 };
            let (start, bytes) = (random(400), 1 + random(300));
            let mut seen = vec![false; bytes as usize];
            let mut spus = Vec::new();
            geometry.range(handler::READ, start, bytes, 32, 0, |request| {
                assert!(!spus.contains(&request.spu), "one RPC an SPU");
                spus.push(request.spu);
                for (address, offset, length) in pieces(&request) {
                    for byte in 0..length {
                        let at = (offset - 32) as u64 + byte;
                        let global = start + at;
                        assert_eq!(u64::from(request.spu), global / stripe % u64::from(geometry.spus));
                        let place = 4096 + global / stripe / u64::from(geometry.spus) * stripe + global % stripe;
                        assert_eq!(address + byte, place);
                        assert!(!std::mem::replace(&mut seen[at as usize], true));
                    }
                }
            });
            assert!(seen.iter().all(|seen| *seen));
        }
    }

    #[test]
    fn long_ranges_are_cut_and_an_empty_one_is_nothing() {
        let geometry = Geometry { spus: 2, stripe_bytes: 8192, base: 65536 };
        let (mut total, mut count) = (0u64, 0);
        let share = (5 << 30) / 2;
        geometry.range(handler::ZERO, 4096, (5 << 30) - 4096, 0, 0, |request| {
            assert!(u64::from(request.arguments.bytes) <= RANGE_BYTES_MAX);
            total += u64::from(request.arguments.bytes);
            count += 1;
        });
        assert_eq!((total, count), ((5 << 30) - 4096, 2 * share / RANGE_BYTES_MAX));
        geometry.range(handler::READ, 0, 0, 0, 0, |_| panic!("no bytes, no request"));
        let mut flushed = 0;
        geometry.flush(|request| flushed += usize::from(request.spu) + 1);
        assert_eq!(flushed, 3);
    }
}
