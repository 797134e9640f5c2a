//! Write amplification of `page` under uniform random writes, beside what the published closed form for greedy cleaning predicts; and how many
//! requests a second its map and its collection manage on one core.
//!
//! `cargo run --release -p page-ftl --example write_amplification`

use std::time::Instant;
use willow_flash::testing::{NullFlash, Random, drive};
use willow_flash::{Cell, Geometry, Lane, LaneConfig, Layout, Peer, Update, prediction};

const BLOCKS: u32 = 4096;
const PAGES: u32 = 64;
/// Host writes per logical page until the steady state, and those that are measured.
const TURNS: [u64; 2] = [6, 4];

fn main() {
    println!("over-provisioning  measured  predicted  error   with metadata  writes/s");
    for percent in [7.0, 15.0, 28.0] {
        let geometry = Geometry {
            channels: 1,
            packages_per_channel: 1,
            dies_per_package: 1,
            planes_per_die: 1,
            blocks_per_plane: BLOCKS,
            pages_per_block: PAGES,
            page_bytes: 32768,
            spare_bytes: 64,
            cell: Cell::Tlc,
            spare_accessible: true,
            paired_distance: 0,
        };
        let layout = Layout { geometry, dies_per_unit: 1, lane: 0 };
        let mut config = LaneConfig {
            collect_below: 3,
            collect_batch: 1,
            replacement_blocks: 0,
            wear_spread_max: 0,
            ..LaneConfig::new(1)
        };
        // What holds data: neither metadata nor the blocks that are kept free.
        config.units = BLOCKS * PAGES / 2;
        let own = config.anchors + config.metadata_blocks(&layout) + config.collect_below;
        let alpha = 1.0 + percent / 100.0;
        config.units = (f64::from((BLOCKS - own) * PAGES) / alpha) as u32;
        let flash = NullFlash::new(geometry);
        let ready = &mut (Box::pin(std::future::pending()) as std::pin::Pin<Box<dyn Future<Output = ()>>>);
        let lane = drive(Lane::format(flash, layout, config), ready).expect("the flash can be formatted");
        let mut maintainer: std::pin::Pin<Box<dyn Future<Output = ()>>> =
            Box::pin(async { lane.maintain().await.expect("the flash does not fail") });
        let mut random = Random(1);
        let mut write = |unit: u32| {
            let update = Update { unit, start: 0, end: layout.unit_bytes(), peer: Some((Peer(0), 0)) };
            drive(lane.write(update), &mut maintainer).expect("the flash does not fail");
        };
        (0..config.units).for_each(&mut write);
        let turn = u64::from(config.units);
        (0..TURNS[0] * turn).for_each(|_| write(random.below(turn) as u32));
        let (before, start) = (lane.counters(), Instant::now());
        (0..TURNS[1] * turn).for_each(|_| write(random.below(turn) as u32));
        let (after, seconds) = (lane.counters(), start.elapsed().as_secs_f64());
        let host = (after.host_pages - before.host_pages) as f64;
        let measured = 1.0 + (after.collected_pages - before.collected_pages) as f64 / host;
        let all = (after.programmed_pages() - before.programmed_pages()) as f64 / host;
        let predicted = prediction::greedy(alpha, PAGES.into());
        println!(
            "{percent:15} %  {measured:8.3}  {predicted:9.3}  {:+.2} %  {all:13.3}  {:8.0}",
            (measured / predicted - 1.0) * 100.0,
            host / seconds
        );
    }
}
