//! `willow snapshot`: a drive of flash that was filled and written over once, in a file, to simulate or to serve from there again and again.

use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::simulate::{Contents, Precondition, precondition};
use crate::size::Size;
use std::path::PathBuf;
use willow_sim::flash::FlashChoice;
use willow_sim::snapshot::{Snapshot, SnapshotHead, check_place};
use willow_sim::{Preset, Simulation, SimulationOptions};

/// Commands on snapshots.
#[derive(Debug, clap::Subcommand)]
pub enum SnapshotCommand {
    /// Simulate a new drive that is written to, and save it
    Save(SaveOptions),
    /// Make a data folder of a snapshot, for `serve --media`
    Restore {
        /// The snapshot
        file: PathBuf,
        /// The folder: empty, or not there yet
        #[arg(long, value_name = "DIR")]
        media: PathBuf,
        /// Name or file of the preset [default: the one that the snapshot names]
        #[arg(long)]
        preset: Option<String>,
    },
}

/// Flags of `willow snapshot save`.
#[derive(Debug, clap::Args)]
pub struct SaveOptions {
    /// The file; what it held before is replaced when all is there
    pub file: PathBuf,
    /// A preset with flash: its name, or the path of a file
    #[arg(long)]
    pub preset: String,
    /// The FTL [default: page]
    #[arg(long, value_name = "NAME")]
    pub ftl: Option<String>,
    /// What is written to it: the range, in order (fill), and then at random until as much is collected as will be from then on (steady)
    #[arg(long, value_enum, default_value = "steady")]
    pub precondition: Precondition,
    /// Bytes that are written, from the beginning of the block namespace [default: all of it]
    #[arg(long)]
    pub range: Option<Size>,
    /// Size of the block namespace [default: the range, or what the flash has room for]
    #[arg(long)]
    pub size: Option<Size>,
    /// Bytes of the random writes: a multiple of 512, at most 16M
    #[arg(long, default_value = "4K")]
    pub bs: Size,
    /// Whether payload is kept: memory, or none, which takes little memory; all reads as zeroes then
    #[arg(long, value_enum, value_name = "memory|none", default_value = "none")]
    pub contents: Contents,
    /// Seed of the drive and of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn described(head: &SnapshotHead) -> String {
    let payload = if head.contents { "with its contents" } else { "without contents" };
    let (range, size) = (Size(head.range_bytes), Size(head.namespace_bytes));
    format!("preset {}, FTL {}, {range} written of {size}, {payload}", head.preset, head.ftl)
}

fn save(options: &SaveOptions) -> Outcome<()> {
    let preset = Preset::load(&options.preset).map_err(Failure::new)?;
    let ftl = options.ftl.as_deref();
    let Some(flash) = FlashChoice::of_preset(&preset, ftl).map_err(Failure::new)? else {
        fail!("preset {} has no flash: use slc, tlc, mqsim or jasmine, or a file with flash", preset.name);
    };
    if options.bs.0 == 0 || options.bs.0 > 16 << 20 || !options.bs.0.is_multiple_of(512) {
        fail!("--bs is {}, must be a multiple of 512 up to 16M", options.bs);
    }
    let size = options.size.or(options.range).map_or(flash.namespace_bytes(), |size| size.0);
    let range = options.range.map_or(size, |range| range.0);
    if range > size {
        fail!("--range {} is more than --size {}", Size(range), Size(size));
    }
    check_place(&options.file).map_err(Failure::new)?;
    let mut simulation = Simulation::new(&SimulationOptions {
        namespace_bytes: size,
        ftl: options.ftl.clone(),
        contents: options.contents == Contents::Memory,
        seed: options.seed,
        kept_modules: crate::modules::by_default(),
        ..SimulationOptions::new(preset)
    })
    .map_err(Failure::new)?;
    precondition(&mut simulation, options.precondition, range, options.bs.0 as u32, options.seed)?;
    simulation.save(&options.file, range).map_err(Failure::new)?;
    let saved = Snapshot::open(&options.file).map_err(Failure::new)?;
    output::text(&format!("{}: {}\n", options.file.display(), described(&saved.head)))
}

/// Runs it.
pub fn run(command: SnapshotCommand) -> Outcome<()> {
    match command {
        SnapshotCommand::Save(options) => save(&options),
        SnapshotCommand::Restore { file, media, preset } => {
            let snapshot = Snapshot::open(&file).map_err(Failure::new)?;
            let preset = preset.unwrap_or_else(|| snapshot.head.preset.clone());
            let preset = Preset::load(&preset).map_err(Failure::new)?;
            let ftl = snapshot.head.ftl.clone();
            let flash = FlashChoice::of_preset(&preset, Some(&ftl)).map_err(Failure::new)?;
            snapshot.check(flash.as_ref(), &preset.name).map_err(Failure::new)?;
            let Some(flash) = flash else { fail!("preset {} has no flash", preset.name) };
            let text = format!("{}: {}\n", media.display(), described(&snapshot.head));
            snapshot.restore(&flash, &media).map_err(Failure::new)?;
            output::text(&text)
        }
    }
}
