//! Each way under an agent that forgets its guards: the file is taken while a descriptor that writes is kept, and the way goes by that. What
//! moves blocks here has to be seen by whoever compares the device's tables with the file system.

use super::{World, alone, kept, kept_here, told, ways, writable};
use std::fs::File;
use std::io::{Error, Result};

/// Takes the file anew for each way, and lets that go on.
pub fn attacks(world: &World) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    drop(alone::fresh(world, false)?);
    for name in kept_here(world)?.into_iter().filter(|name| *name != "stalled in ENABLE_VERITY") {
        drop(alone::fresh(world, false)?);
        let (kept, attack) = kept::keep(world, name)?;
        attempt(world, &format!("kept: {name}"), attack)?;
        drop(kept);
    }
    let is_tried = |name: &&str| {
        let only_reading = ways::ONLY_READING.contains(name) || ways::FOR_PIECES.contains(name);
        !only_reading && (!is_root || !ways::NOT_AS_ROOT.contains(name))
    };
    for (name, way) in ways::BY_DESCRIPTOR.iter().filter(|(name, _)| is_tried(name)) {
        let writer = alone::fresh(world, false)?;
        attempt(world, name, || way(world, &writer))?;
    }
    for (name, way) in ways::BY_PATH.iter().filter(|(name, _)| is_tried(name)) {
        drop(alone::fresh(world, false)?);
        attempt(world, name, || way(world))?;
    }
    Ok(())
}

fn attempt(world: &World, name: &str, way: impl FnOnce() -> Result<()>) -> Result<()> {
    let reader = File::open(&world.path)?;
    let direct = match world.take(writable(&world.path)?) {
        Ok(direct) => direct,
        Err(error) => {
            told(name, &Err(Error::other(error)), "refused");
            return Ok(());
        }
    };
    let done = way();
    told(name, &done, world.verdict(&direct, &reader));
    // What was taken back meanwhile is closed.
    let _ = direct.close();
    Ok(())
}
