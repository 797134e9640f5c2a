//! Flash without contents and without time, for measuring an FTL: headers alone are kept, and every operation is done at once.

use crate::HEADER_BYTES;
use crate::geometry::Geometry;
use crate::port::{FlashPort, Peer, ProgramPage, Read, Status};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

const DONE: Status = Status::Done { corrected_bits: 0 };

/// Flash that keeps the spare areas.
#[derive(Clone)]
pub struct NullFlash {
    geometry: Geometry,
    spares: Rc<RefCell<Vec<[u8; HEADER_BYTES]>>>,
}

impl NullFlash {
    /// Erased flash.
    pub fn new(geometry: Geometry) -> NullFlash {
        let pages = geometry.dies() as usize * geometry.blocks_per_die() as usize * geometry.pages_per_block as usize;
        NullFlash { geometry, spares: Rc::new(RefCell::new(vec![[0; HEADER_BYTES]; pages])) }
    }

    fn index(&self, die: u32, block: u32, page: u32) -> usize {
        let block = die as usize * self.geometry.blocks_per_die() as usize + block as usize;
        block * self.geometry.pages_per_block as usize + page as usize
    }
}

impl FlashPort for NullFlash {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn factory_bad_blocks(&self, _: u32) -> Vec<u32> {
        Vec::new()
    }

    async fn read(&self, die: u32, read: Read<'_>) -> Status {
        let spares = self.spares.borrow();
        let spare = &spares[self.index(die, read.block, read.page)];
        read.spare.copy_from_slice(&spare[..read.spare.len()]);
        DONE
    }

    async fn program(&self, die: u32, pages: &[ProgramPage<'_>]) -> Status {
        let mut spares = self.spares.borrow_mut();
        for page in pages {
            let spare = &mut spares[self.index(die, page.block, page.page)];
            spare[..page.spare.len()].copy_from_slice(page.spare);
        }
        DONE
    }

    async fn erase(&self, _: u32, _: &[u32]) -> Status {
        DONE
    }

    async fn zero_peer(&self, _: Peer, _: u32, _: u32) -> Status {
        DONE
    }

    async fn pause(&self) {}
}

/// Runs a host's future beside a lane's maintainer, on flash where nothing takes time: whenever the one waits, the other goes on.
pub fn drive<T>(
    host: impl Future<Output = T>,
    maintainer: &mut core::pin::Pin<alloc::boxed::Box<dyn Future<Output = ()> + '_>>,
) -> T {
    let mut host = core::pin::pin!(host);
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    loop {
        if let core::task::Poll::Ready(value) = host.as_mut().poll(&mut context) {
            return value;
        }
        let ended = maintainer.as_mut().poll(&mut context).is_ready();
        assert!(!ended, "the maintainer works for as long as the lane does");
    }
}
