//! Reads of a bank that need no FTL, since it is known where their bytes lie.
//!
//! What always holds: such a read is done as a whole, at once, while the bank is served and no write that overlaps it has begun; else nothing is said of
//! it, and the FTL is to be asked. What a read that was not done has left in its buffer is of no meaning.

use super::{DelegatingStore, Service};
use crate::media::ordering::Span;
use willow_flash_media::{Read, Status};

/// Most pages of one read.
pub const PAGES_AT_ONCE_MAX: usize = 16;

/// Where a range lies: parts of pages, in its order.
pub struct Located {
    pages: [(u32, Read); PAGES_AT_ONCE_MAX],
    count: usize,
    /// What corrects more is a matter for the FTL.
    corrected_bits_max: u16,
}

impl Located {
    /// Nothing yet.
    #[inline]
    pub fn new(corrected_bits_max: u16) -> Located {
        let nothing = Read {
            at: willow_flash_media::PageAddress { block: 0, page: 0 },
            offset_bytes: 0,
            length_bytes: 0,
            spare: false,
        };
        Located { pages: [(0, nothing); PAGES_AT_ONCE_MAX], count: 0, corrected_bits_max }
    }

    /// Goes on with a part of a page of a die; false where there are as many as there may be.
    #[inline]
    pub fn push(&mut self, die: u32, read: Read) -> bool {
        let Some(place) = self.pages.get_mut(self.count) else { return false };
        *place = (die, read);
        self.count += 1;
        true
    }
}

impl DelegatingStore {
    /// Whether a range can be read without its FTL.
    #[inline]
    fn is_at_rest(&self, bank: usize, address: u64, bytes: u64) -> bool {
        let end = (address + bytes).next_multiple_of(self.unit_bytes);
        let span = Span { bank, start: address & !(self.unit_bytes - 1), end, reads: true };
        self.services.get(bank) == Some(&Service::Serving) && !self.order.conflicts(&span)
    }

    /// Reads a range that was located, whose length is that of `into`; `None`: nobody looks at the bytes. False: it was not done.
    #[inline]
    pub fn read_located(
        &mut self,
        (bank, address, bytes): (usize, u64, usize),
        located: &Located,
        mut into: Option<&mut [u8]>,
    ) -> bool {
        if !self.is_at_rest(bank, address, bytes as u64) {
            return false;
        }
        let Some(flash) = self.flash.get_mut(bank) else { return false };
        let mut done = 0;
        for (die, read) in &located.pages[..located.count] {
            let length = read.length_bytes as usize;
            let status = match into.as_mut().map(|into| into.get_mut(done..done + length)) {
                Some(Some(part)) => flash.read(*die, read, part, &mut []),
                Some(None) => return false,
                None => flash.read_unseen(*die, read, &mut []),
            };
            let is_good = |bits: u16| bits <= located.corrected_bits_max;
            if !matches!(status, Ok(Status::Done { corrected_bits, .. }) if is_good(corrected_bits)) {
                return false;
            }
            done += length;
        }
        done == bytes
    }

    /// The same into memory that another process may change meanwhile, by way of private memory.
    pub fn read_located_shared(
        &mut self,
        (bank, address): (usize, u64),
        located: &Located,
        into: &mut crate::shared::SharedSpan<'_>,
    ) -> bool {
        let mut bytes = self.buffers.take(into.len());
        let is_read = self.read_located((bank, address, bytes.len()), located, Some(&mut bytes));
        if is_read {
            into.copy_from(&bytes);
        }
        self.buffers.give(bytes);
        is_read
    }
}
