//! Pages: replaced records are listed in NV memory some at a write. A page is a slot of the heap: after its tag and the pointer to the
//! page before it come blocks of pointers; 0 ends a block that is not full.
//!
//! What always holds: a page's tag is durably 0 and stays so, as a free slot's: a crash leaves a free slot there, and recovery has
//! thrown the lists away. All pages but the latest are full.

use super::NOTES_MAX;
use crate::bank::{Bank, Failure};
use crate::format::{HEADER_BYTES, NEXT_OFFSET, class_for};
use crate::store::Store;

/// Bytes of a block, one sector at most.
const BLOCK_BYTES: u64 = HEADER_BYTES;
/// Blocks of a page; in tests of short histories, few.
const BLOCKS: u32 = if cfg!(feature = "planted") { 2 } else { 15 };

const _: () = assert!(4 * NOTES_MAX as u64 <= BLOCK_BYTES);

/// Records that are listed in pages; last in, first out.
#[derive(Clone, Copy, Default)]
pub(super) struct Pages {
    /// The latest page; 0: none.
    page: u32,
    /// Its blocks that are in use.
    blocks: u32,
    /// Records in all.
    records: u32,
}

impl Pages {
    pub const EMPTY: Pages = Pages { page: 0, blocks: 0, records: 0 };

    /// Records, and one more where there is a page to be freed.
    pub fn slots(&self) -> u32 {
        self.records + u32::from(self.page != 0)
    }

    fn has_room(&self) -> bool {
        self.page != 0 && self.blocks < BLOCKS
    }
}

impl Store {
    /// Lists the noted records in a page. False, and nothing was done, where there is no slot for a page.
    pub(super) async fn list_noted<B: Bank>(&self, bank: &B) -> Result<bool, Failure> {
        let limbo = &self.limbo;
        let mut spare = None;
        if !limbo.pages.get().has_room() {
            spare = self.allocate_now(bank, class_for((1 + u64::from(BLOCKS)) * BLOCK_BYTES)).await?;
            if spare.is_none() && !limbo.pages.get().has_room() {
                return Ok(false);
            }
        }
        // From here to the write nobody else runs.
        let mut pages = limbo.pages.get();
        let mut bytes = [0; 2 * BLOCK_BYTES as usize - NEXT_OFFSET as usize];
        let mut start = bytes.len() - BLOCK_BYTES as usize;
        for place in bytes[start..].as_chunks_mut::<4>().0 {
            let Some(pointer) = limbo.noted.pop() else { break };
            *place = pointer.to_le_bytes();
            pages.records += 1;
        }
        let unused = if pages.has_room() { spare.take() } else { None };
        if let Some(slot) = spare {
            bytes[..4].copy_from_slice(&pages.page.to_le_bytes());
            start = 0;
            pages = Pages { page: slot.pointer, blocks: 0, ..pages };
        }
        let offset = if start == 0 { NEXT_OFFSET } else { BLOCK_BYTES * u64::from(1 + pages.blocks) };
        pages.blocks += 1;
        limbo.pages.set(pages);
        limbo.links_pending.set(limbo.links_pending.get() + 1);
        let written = bank.write(self.geometry.get().address(pages.page) + offset, &bytes[start..]).await;
        limbo.links_pending.set(limbo.links_pending.get() - 1);
        self.sound(written)?;
        if let Some(slot) = unused {
            self.free_unused(bank, slot.pointer).await?;
        }
        Ok(true)
    }

    /// Notes the records of the latest block that has cooled, or frees its page where there is none.
    pub(super) async fn note_listed<B: Bank>(&self, bank: &B) -> Result<(), Failure> {
        let limbo = &self.limbo;
        let pages = limbo.cooling_pages.get();
        let address = self.geometry.get().address(pages.page);
        if pages.blocks == 0 {
            let before = self.sound(self.read_word(bank, address + NEXT_OFFSET).await)?;
            self.free_slot(bank, pages.page).await?;
            let blocks = if before == 0 { 0 } else { BLOCKS };
            limbo.cooling_pages.set(Pages { page: before, blocks, ..pages });
            return Ok(());
        }
        let mut bytes = [0; BLOCK_BYTES as usize];
        let read = bank.read(address + BLOCK_BYTES * u64::from(pages.blocks), &mut bytes).await;
        self.sound(read)?;
        let mut records = 0;
        for place in bytes.as_chunks::<4>().0 {
            let pointer = u32::from_le_bytes(*place);
            if pointer == 0 {
                break;
            }
            if !self.geometry.get().holds(pointer) || !limbo.cooling_noted.push(pointer) {
                return self.sound(Err(Failure::Media));
            }
            records += 1;
        }
        let left = pages.records.saturating_sub(records);
        limbo.cooling_pages.set(Pages { blocks: pages.blocks - 1, records: left, ..pages });
        Ok(())
    }
}
