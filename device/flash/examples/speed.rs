//! How many operations a second one core simulates: `cargo run --release -p willow-flash-media --example speed [DEPTH]`.

use willow_flash_media::timing::{Completion, Submission, Timing, Work};
use willow_flash_media::{Array, FlashParameters, Geometry, PageAddress, ProgramPage, Read, presets};

/// Operations under way at the same time, where no other number is given.
const DEPTH: u64 = 256;
const OPERATIONS: u64 = 4_000_000;

/// Time that this thread has had a processor, whatever else the machine does.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

/// What the array itself takes for 4 KiB reads and programs of whole pages with contents in memory, without a model of time.
fn contents_in_memory(parameters: &FlashParameters) {
    // A part of the drive that fits into memory.
    let geometry = Geometry { blocks_per_plane: 4, channels: 1, packages_per_channel: 1, ..parameters.geometry };
    let mut array = Array::in_memory(&geometry, &parameters.faults, 1);
    let page_bytes = vec![7u8; geometry.page_bytes as usize];
    let blocks = geometry.blocks_per_die();
    let program_all = |array: &mut Array| {
        let begun_ns = processor_ns();
        for block in 0..blocks {
            array.erase(0, &[block]).expect("in memory");
            for page in 0..geometry.pages_per_block {
                let at = PageAddress { block, page };
                array
                    .program(0, &[ProgramPage { at, data: &[&page_bytes], spare: &[], metadata: false }])
                    .expect("in memory");
            }
        }
        (processor_ns() - begun_ns) / u64::from(blocks * geometry.pages_per_block)
    };
    let (fresh_ns, again_ns) = (program_all(&mut array), program_all(&mut array));
    let mut buffer = vec![0; 4096];
    let reads = 2_000_000;
    let mut state = 1u64;
    let begun_ns = processor_ns();
    for _ in 0..reads {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (state >> 33) as u32;
        let at = PageAddress { block: random % blocks, page: (random >> 8) % geometry.pages_per_block };
        let read = Read { at, offset_bytes: 0, length_bytes: 4096, spare: false };
        std::hint::black_box(array.read(0, &read, &mut buffer, &mut []).expect("in memory"));
    }
    println!(
        "in memory: a random read of 4 KiB {} ns, a program of {} KiB {again_ns} ns (into memory that is fresh {fresh_ns} ns)",
        (processor_ns() - begun_ns) / reads,
        geometry.page_bytes / 1024
    );
}

fn main() {
    let depth = std::env::args().nth(1).map_or(DEPTH, |depth| depth.parse().expect("operations under way"));
    let (_, text) = presets::TEXTS[0];
    contents_in_memory(&toml::from_str(text).expect("a good preset"));
    for (name, text) in presets::TEXTS {
        let parameters: FlashParameters = toml::from_str(text).expect("a good preset");
        for reads_of_ten in [10, 7, 0] {
            let geometry = parameters.geometry;
            let mut timing = Timing::new(&geometry, &parameters.timing);
            let mut array = Array::headers_only(&geometry, &parameters.faults, 1);
            let mut state = 1u64;
            let mut next_page = vec![(0u32, 0u32); geometry.dies() as usize];
            let mut submitted = 0;
            let mut completed = 0;
            let mut completions: Vec<Completion> = Vec::new();
            let mut at_ns = 0;
            let begun_ns = processor_ns();
            while completed < OPERATIONS {
                while submitted < completed + depth {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let random = (state >> 33) as u32;
                    let die = random % geometry.dies();
                    let (block, page) = &mut next_page[die as usize];
                    let reads = (random >> 8) % 10 < reads_of_ten;
                    let (work, at) = if reads {
                        let at = PageAddress {
                            block: (random >> 4) % geometry.blocks_per_die(),
                            page: random % geometry.pages_per_block,
                        };
                        let read = Read { at, offset_bytes: 0, length_bytes: 4096, spare: false };
                        let retries = array.retries_of(die, &read);
                        (Work::Read { page: geometry.page_kind(at.page), retries }, at)
                    } else {
                        if *page == geometry.pages_per_block {
                            (*block, *page) = ((*block + 1) % geometry.blocks_per_die(), 0);
                        }
                        let at = PageAddress { block: *block, page: *page };
                        *page += 1;
                        let spare: &[u8] = if geometry.spare_accessible { &[7; 16] } else { &[] };
                        let program = ProgramPage { at, data: &[], spare, metadata: false };
                        if at.page == 0 {
                            array.erase(die, &[at.block]).expect("in memory");
                        }
                        array.program(die, &[program]).expect("in memory");
                        (Work::Program { page: geometry.page_kind(at.page) }, at)
                    };
                    let bytes = if reads { 4096 } else { geometry.page_bytes };
                    let submission = Submission { token: submitted, die, work, blocks: &[at.block], bytes };
                    if timing.submit(at_ns, &submission).is_err() {
                        break;
                    }
                    submitted += 1;
                }
                at_ns = timing.next_event_ns().expect("something is under way");
                timing.advance(at_ns, &mut completions);
                completed += completions.len() as u64;
                completions.clear();
            }
            let seconds = (processor_ns() - begun_ns) as f64 / 1e9;
            println!(
                "{name}, {} % reads: {:.2} million operations a second of processor time, {:.0} IOPS simulated",
                reads_of_ten * 10,
                OPERATIONS as f64 / seconds / 1e6,
                completed as f64 / (at_ns as f64 / 1e9)
            );
        }
    }
}
