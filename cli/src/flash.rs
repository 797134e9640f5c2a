//! `willow flash map`: how worn the blocks of a device's flash are.

use crate::client::Client;
use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::target::TargetOption;
use std::path::PathBuf;
use willow_sim::plot;
use willow_wire::control::{DieWear, FACTORY_BAD};

/// Characters of a die in the text.
const COLUMNS: usize = 64;

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Flash {
    /// Show how worn the blocks are: a line a die, each character the most worn of some neighbouring blocks, in tenths of the rated erases
    Map {
        #[command(flatten)]
        target: TargetOption,
        /// Draw a picture instead, a point a block: green is new, red has reached its rated erases, black was bad from the factory
        #[arg(long, value_name = "FILE.png")]
        out: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// A die of an SPU.
struct Die {
    spu: u16,
    number: u32,
    wear: DieWear,
}

fn read(client: &mut Client) -> Outcome<Vec<Die>> {
    let statistics = client.statistics()?;
    if statistics.flash.is_none() {
        fail!("this device has no flash: serve one with a preset that has, as --preset jasmine");
    }
    let mut dies = Vec::new();
    for spu in 0..statistics.spus.len() as u16 {
        let first = client.die_wear(spu, 0)?;
        let count = first.dies;
        dies.push(Die { spu, number: 0, wear: first });
        for number in 1..count {
            dies.push(Die { spu, number, wear: client.die_wear(spu, number)? });
        }
    }
    Ok(dies)
}

/// Tenths of the rated erases; a point for blocks that were never erased.
fn symbol(blocks: &[u32], rated: u32) -> char {
    let good = blocks.iter().filter(|block| **block != FACTORY_BAD);
    match good.max() {
        None => 'x',
        Some(0) => '.',
        Some(erases) => {
            let tenths = u64::from(*erases) * 10 / u64::from(rated.max(1));
            char::from(b'0' + tenths.min(9) as u8)
        }
    }
}

fn line(die: &Die) -> String {
    let DieWear { rated_erases, blocks, .. } = &die.wear;
    let together = blocks.len().div_ceil(COLUMNS).max(1);
    let map: String = blocks.chunks(together).map(|some| symbol(some, *rated_erases)).collect();
    let bad = blocks.iter().filter(|block| **block == FACTORY_BAD).count();
    let good = || blocks.iter().filter(|block| **block != FACTORY_BAD);
    let (least, most) = (good().min().copied().unwrap_or(0), good().max().copied().unwrap_or(0));
    format!("SPU {} die {:2} |{map}| {least} to {most} erases, {bad} bad from the factory\n", die.spu, die.number)
}

/// Runs it.
pub fn run(flash: Flash) -> Outcome<()> {
    let Flash::Map { target, out, json } = flash;
    let dies = read(&mut Client::connect(&target)?)?;
    if let Some(path) = &out {
        let rows: Vec<Vec<Option<f64>>> = dies
            .iter()
            .map(|die| {
                let share = |erases: &u32| f64::from(*erases) / f64::from(die.wear.rated_erases.max(1));
                die.wear.blocks.iter().map(|block| (*block != FACTORY_BAD).then(|| share(block))).collect()
            })
            .collect();
        plot::write_wear(&rows, path).map_err(Failure::new)?;
    }
    if json {
        let of = |die: &Die| {
            let erases = die.wear.blocks.iter().map(|block| (*block != FACTORY_BAD).then_some(*block));
            serde_json::json!({
                "spu": die.spu, "die": die.number, "planes": die.wear.planes, "rated_erases": die.wear.rated_erases,
                "erases": erases.collect::<Vec<_>>(),
            })
        };
        return output::json(&serde_json::json!({ "dies": dies.iter().map(of).collect::<Vec<_>>() }));
    }
    match out {
        Some(path) => output::line(&path.display().to_string()),
        None => output::text(&dies.iter().map(line).collect::<String>()),
    }
}
