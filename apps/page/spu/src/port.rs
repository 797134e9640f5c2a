//! The flash port of SPU-OS as the flash library has it.

use alloc::vec;
use alloc::vec::Vec;

use willow_flash::{FlashPort, Geometry, Peer, ProgramPage, Read, Sink, Source, Status};
use willow_sdk::Error;
use willow_sdk::flash::{self, FlashShape, FlashStatus, PagePart, PageProgram, Program, ReadTo};

/// Parts of a page, at most: what a host writes of it, and what it leaves before and behind that.
const PAGE_PARTS_MAX: usize = 3;
const PARTS_MAX: usize = PAGE_PARTS_MAX * flash::PROGRAM_PAGES_MAX;

/// The flash port of this SPU.
#[derive(Clone, Copy)]
pub struct Port {
    geometry: Geometry,
    victim_search: bool,
    copyback: bool,
}

fn told(result: Result<FlashStatus, Error>) -> Status {
    match result {
        // The next power cut would take it along, though a flush had called it durable.
        Ok(FlashStatus::Latched) => {
            Status::Misuse("pages of a word line wait for one another: this FTL needs a buffer")
        }
        Ok(FlashStatus::Done(corrected_bits)) => Status::Done { corrected_bits },
        Ok(FlashStatus::Erased) => Status::Erased,
        Ok(FlashStatus::Uncorrectable) => Status::Uncorrectable,
        Ok(FlashStatus::ProgramFailed(pages)) => Status::ProgramFailed { pages },
        Ok(FlashStatus::EraseFailed(blocks)) => Status::EraseFailed { blocks },
        Ok(FlashStatus::Misuse) => Status::Misuse("it breaks a rule of the flash"),
        Err(Error::Ended) => Status::PeerEnded,
        Err(Error::Media) => Status::Misuse("what keeps the flash's contents failed"),
        Err(_) => Status::Misuse("SPU-OS refuses it"),
    }
}

impl Port {
    /// The port of flash of that shape.
    pub fn new(shape: &FlashShape) -> Port {
        let geometry = Geometry::of_words(&shape.geometry);
        Port { geometry, victim_search: shape.victim_search, copyback: shape.copyback }
    }
}

impl FlashPort for Port {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn factory_bad_blocks(&self, die: u32) -> Vec<u32> {
        let mut blocks = vec![0; self.geometry.blocks_per_die() as usize];
        let count = flash::factory_bad_blocks(die, &mut blocks).unwrap_or(0);
        blocks.truncate(count);
        blocks
    }

    async fn read(&self, die: u32, read: Read<'_>) -> Status {
        let Read { block, page, offset_bytes, length_bytes, sink, spare } = read;
        let to = match sink {
            Sink::Local(into) => match into.get_mut(..length_bytes as usize) {
                Some(into) => ReadTo::Local(into),
                None => return Status::Misuse("a read longer than what it goes to"),
            },
            Sink::Peer { peer: Peer(peer), offset } => {
                ReadTo::Peer { peer, offset: offset.into(), bytes: length_bytes }
            }
        };
        told(flash::read(die, (block, page, offset_bytes), to, spare).await)
    }

    async fn program(&self, die: u32, pages: &[ProgramPage<'_>]) -> Status {
        let described = pages.iter().map(|page| PageProgram {
            block: page.block,
            page: page.page,
            spare: page.spare,
            parts: page.data.iter().map(|segment| match segment.source {
                Source::Local(local) => PagePart::Local(&local[..segment.bytes as usize]),
                Source::Zeroes => PagePart::Zeroes(segment.bytes),
                Source::Copyback { block, page } => PagePart::Copyback { block, page, bytes: segment.bytes },
                Source::Peer { peer: Peer(peer), offset } => {
                    PagePart::Peer { peer, offset: offset.into(), bytes: segment.bytes }
                }
                Source::Flash { die, block, page, offset } => {
                    PagePart::Flash { die, block, page, offset, bytes: segment.bytes }
                }
            }),
        });
        // Descriptions are cleared before they are filled: where dies have one plane, most of that would be for nothing.
        told(match pages.len() {
            1 => flash::program(die, &mut Program::<PAGE_PARTS_MAX, 1>::default(), described).await,
            _ => flash::program(die, &mut Program::<PARTS_MAX>::default(), described).await,
        })
    }

    async fn erase(&self, die: u32, blocks: &[u32]) -> Status {
        told(flash::erase(die, blocks).await)
    }

    async fn zero_peer(&self, peer: Peer, offset: u32, bytes: u32) -> Status {
        told(flash::zero_peer(peer.0, offset.into(), bytes).map(|()| FlashStatus::Done(0)))
    }

    async fn pause(&self) {
        let _ = flash::pause().await;
    }

    fn copies_back(&self) -> bool {
        self.copyback
    }

    fn minimum(&self, numbers: &[u32]) -> Option<usize> {
        if self.victim_search { flash::minimum(numbers) } else { None }
    }
}
