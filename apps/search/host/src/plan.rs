//! A file's extents as scans of banks, in rounds: each round is a range of the file with at most one scan for each SPU.
//!
//! What always holds: rounds follow one another in the file and cover it, holes included; a scan covers one contiguous range of one bank, all of
//! it in one extent.

use base_io_host::Geometry;
use direct_io_host::{FileExtent, bank_ranges};

/// Bytes of a bank that a round scans.
pub const BANK_BYTES_A_ROUND: u64 = 1 << 20;

/// A scan of a bank, or what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankScan {
    /// SPU.
    pub spu: u16,
    /// First byte in its bank.
    pub nv_address: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// Bytes that no extent covers: zeroes.
    Hole {
        /// How many.
        bytes: u64,
    },
    /// Bytes of one extent.
    Scans {
        /// First byte in the namespace.
        namespace_offset: u64,
        /// Bytes.
        bytes: u64,
        /// One for each SPU that has some of them.
        scans: Vec<BankScan>,
    },
}

/// The rounds of a file.
#[derive(Clone, Debug)]
pub struct Plan {
    geometry: Geometry,
    at: u64,
    end: u64,
    index: usize,
}

impl Plan {
    /// Of a file with so many bytes.
    pub fn new(geometry: Geometry, bytes: u64) -> Plan {
        Plan { geometry, at: 0, end: bytes, index: 0 }
    }

    /// Bytes behind which what follows in a bank does not follow in the file; 0: all follows.
    pub fn stripe_bytes(&self) -> u32 {
        if self.geometry.spus > 1 { self.geometry.stripe_bytes } else { 0 }
    }

    /// Bytes of a bank from an address to the next border of a stripe.
    pub fn to_border(&self, nv_address: u64) -> u32 {
        let stripe = u64::from(self.geometry.stripe_bytes);
        (stripe - (nv_address - self.geometry.base) % stripe) as u32
    }

    /// SPU and bytes of the stripe, or what is left of it, at a byte of the namespace.
    pub fn stripe_at(&self, namespace_offset: u64) -> (u16, u64) {
        let (stripe, spus) = (u64::from(self.geometry.stripe_bytes), u64::from(self.geometry.spus));
        let number = namespace_offset / stripe;
        ((number % spus) as u16, stripe - namespace_offset % stripe)
    }

    /// The next round; `extents` are the same each time, sorted and disjoint.
    pub fn next(&mut self, extents: &[FileExtent]) -> Option<Round> {
        if self.at >= self.end {
            return None;
        }
        let extent = extents.get(self.index).filter(|extent| extent.file_offset < self.end);
        let Some(extent) = extent.filter(|extent| extent.file_offset <= self.at) else {
            let until = extent.map_or(self.end, |extent| extent.file_offset);
            let bytes = until - self.at;
            self.at = until;
            return Some(Round::Hole { bytes });
        };
        let namespace_offset = extent.namespace_offset + (self.at - extent.file_offset);
        let stripe = u64::from(self.geometry.stripe_bytes);
        // Rounds end with a stripe, so that each scan has whole ones but at the ends of extents.
        let round = BANK_BYTES_A_ROUND.max(stripe) / stripe * stripe * u64::from(self.geometry.spus);
        let bytes = (round - namespace_offset % stripe).min(extent.file_end() - self.at).min(self.end - self.at);
        let mut scans = Vec::with_capacity(usize::from(self.geometry.spus));
        bank_ranges(&self.geometry, namespace_offset, bytes, |spu, nv_address, bytes| {
            scans.push(BankScan { spu, nv_address, bytes });
        });
        self.at += bytes;
        if self.at == extent.file_end() {
            self.index += 1;
        }
        Some(Round::Scans { namespace_offset, bytes, scans })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each byte of a file is in one round, in the file's order, and in the scan of the SPU that has it.
        #[test]
        fn rounds_cover_a_file(
            spus in 1u16..7,
            stripe_shift in 9u32..22,
            parts in prop::collection::vec((0u64..3 << 20, 1u64..24 << 20, 0u64..1 << 30), 0..6),
            cut in 0u64..1 << 20,
        ) {
            let geometry = Geometry { spus, stripe_bytes: 1 << stripe_shift, base: 3 << 22 };
            let mut extents = Vec::new();
            let mut at = 0;
            for (hole, bytes, namespace_offset) in parts {
                at += hole;
                extents.push(FileExtent { file_offset: at, namespace_offset, bytes });
                at += bytes;
            }
            let end = (at + 5000).saturating_sub(cut);
            let mut plan = Plan::new(geometry, end);
            let mut at = 0;
            while let Some(round) = plan.next(&extents) {
                match round {
                    Round::Hole { bytes } => {
                        prop_assert!(bytes > 0);
                        let is_hole = |byte: u64| !extents.iter().any(|it| it.file_offset <= byte && byte < it.file_end());
                        prop_assert!(is_hole(at) && is_hole(at + bytes - 1));
                        at += bytes;
                    }
                    Round::Scans { namespace_offset, bytes, scans } => {
                        let extent = extents.iter().find(|it| it.file_offset <= at && at + bytes <= it.file_end());
                        let extent = extent.expect("a round is in one extent");
                        prop_assert_eq!(namespace_offset, extent.namespace_offset + at - extent.file_offset);
                        prop_assert_eq!(scans.iter().map(|scan| scan.bytes).sum::<u64>(), bytes);
                        // Stripe by stripe, each SPU's scan is used up from its start.
                        let mut left = scans.clone();
                        let mut done = 0;
                        while done < bytes {
                            let (spu, stripe) = plan.stripe_at(namespace_offset + done);
                            let part = stripe.min(bytes - done);
                            let scan = left.iter_mut().find(|scan| scan.spu == spu).expect("a scan of that SPU");
                            prop_assert!(scan.bytes >= part);
                            prop_assert_eq!(u64::from(plan.to_border(scan.nv_address)), stripe);
                            scan.nv_address += part;
                            scan.bytes -= part;
                            done += part;
                        }
                        prop_assert!(scans.iter().all(|scan| scan.bytes <= BANK_BYTES_A_ROUND.max(1 << stripe_shift) + (1 << stripe_shift)));
                        at += bytes;
                    }
                }
            }
            prop_assert_eq!(at, end);
        }
    }
}
