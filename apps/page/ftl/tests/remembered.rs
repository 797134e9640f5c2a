//! The headers of pages that are kept in memory: what collection then does not read, and what it moves all the same.

use page_ftl::{FtlConfig, PageFtl};
use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;
use willow_flash::testing::{Choices, Executor, Faults, Medium, Random, Stop};
use willow_flash::{Cell, FlashPort, Geometry, LaneConfig, Peer, ProgramPage, Read, Status};

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    packages_per_channel: 1,
    dies_per_package: 1,
    planes_per_die: 2,
    blocks_per_plane: 30,
    pages_per_block: 8,
    page_bytes: 512,
    spare_bytes: 64,
    cell: Cell::Slc,
    spare_accessible: true,
    paired_distance: 0,
};
const UNITS: u32 = 60;
const UNIT_BYTES: u32 = 1024;

fn config(remembered_bytes_max: u32) -> FtlConfig {
    let lane = LaneConfig {
        replacement_blocks: 2,
        collect_below: 4,
        log_pages_max: 4,
        blocks_between_checkpoints: 6,
        remembered_bytes_max,
        ..LaneConfig::new(UNITS)
    };
    FtlConfig { dies_per_unit: 1, lane }
}

/// Flash that counts the reads of headers alone.
#[derive(Clone)]
struct Counting {
    medium: Medium,
    headers: Rc<Slot<u64>>,
}

impl Counting {
    fn new(medium: Medium) -> Counting {
        Counting { medium, headers: Rc::default() }
    }
}

impl FlashPort for Counting {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }

    fn factory_bad_blocks(&self, die: u32) -> Vec<u32> {
        self.medium.factory_bad_blocks(die)
    }

    async fn read(&self, die: u32, read: Read<'_>) -> Status {
        self.headers.set(self.headers.get() + u64::from(read.length_bytes == 0 && !read.spare.is_empty()));
        self.medium.read(die, read).await
    }

    async fn program(&self, die: u32, pages: &[ProgramPage<'_>]) -> Status {
        self.medium.program(die, pages).await
    }

    async fn erase(&self, die: u32, blocks: &[u32]) -> Status {
        self.medium.erase(die, blocks).await
    }

    async fn zero_peer(&self, peer: Peer, offset: u32, bytes: u32) -> Status {
        self.medium.zero_peer(peer, offset, bytes).await
    }

    async fn pause(&self) {
        self.medium.pause().await;
    }
}

fn run<T>(medium: &Medium, ftl: Option<&PageFtl<Counting>>, future: impl Future<Output = T>) -> T {
    let result = RefCell::new(None);
    let mut executor = Executor::new(3);
    for (ftl, lane) in ftl.into_iter().flat_map(|ftl| (0..ftl.lanes()).map(move |lane| (ftl, lane))) {
        executor.spawn_background(async move {
            let _ = ftl.maintain(lane).await;
        });
    }
    executor.spawn(async { *result.borrow_mut() = Some(future.await) });
    assert_eq!(executor.run(medium), Stop::Done);
    executor.settle(medium);
    drop(executor);
    assert!(medium.misuses().is_empty(), "{:?}", medium.misuses());
    result.into_inner().expect("it has ended")
}

/// Writes at random until much has been collected; how many headers were read meanwhile, and how many pages moved.
fn overwrite(ftl: &PageFtl<Counting>, port: &Counting, model: &mut [u8], seed: u64) -> (u64, u64) {
    let before = (port.headers.get(), ftl.counters().collected_pages);
    let mut random = Random(seed);
    run(&port.medium, Some(ftl), async {
        for number in 0..20 * model.len() {
            let unit = random.below(model.len() as u64);
            model[unit as usize] = number as u8;
            let peer = port.medium.peer(vec![number as u8; UNIT_BYTES as usize]);
            ftl.write(unit * u64::from(UNIT_BYTES), UNIT_BYTES, peer, 0, false).await.expect("written");
        }
        ftl.flush().await.expect("flushed");
    });
    (port.headers.get() - before.0, ftl.counters().collected_pages - before.1)
}

/// Pages that were written since the mount are moved without reading their headers, those from before it and those of lanes that keep none are not; what is
/// moved is what was written, also when the power has been cut.
#[test]
fn collection_reads_the_headers_that_are_not_kept_alone() {
    for remembered_bytes_max in [1 << 20, 0] {
        let config = config(remembered_bytes_max);
        let keeps = remembered_bytes_max > 0;
        let mut port = Counting::new(Medium::new(GEOMETRY, Faults::default(), 1));
        let mut ftl = run(&port.medium, None, PageFtl::format(port.clone(), config)).expect("formatted");
        let mut model = vec![0; 2 * UNITS as usize];
        let (headers, moved) = overwrite(&ftl, &port, &mut model, 1);
        assert!(moved > 100, "{moved} pages moved");
        assert_eq!(headers == 0, keeps, "{headers} headers of {moved} pages");
        for seed in 2..4 {
            drop(ftl);
            port = Counting::new(port.medium.survivor(&mut Choices::first()));
            ftl = run(&port.medium, None, PageFtl::mount(port.clone(), config)).expect("mounted");
            for (unit, byte) in (0u64..).zip(&model) {
                let peer = port.medium.peer(vec![!byte; UNIT_BYTES as usize]);
                let read = ftl.read(unit * u64::from(UNIT_BYTES), UNIT_BYTES, peer, 0);
                run(&port.medium, None, read).expect("readable");
                assert!(port.medium.peer_bytes(peer).iter().all(|found| found == byte), "unit {unit}");
            }
            let (headers, moved) = overwrite(&ftl, &port, &mut model, seed);
            // The blocks from before the mount are collected once.
            assert!(headers > 0 && (headers < moved / 2) == keeps, "{headers} headers of {moved} pages, {keeps}");
        }
    }
}
