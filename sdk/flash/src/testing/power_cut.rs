//! Rounds of a random workload on a lane, each ended by a power cut, with what was under way decided by seed, and cuts in the midst of recovery: for
//! tests, and for `willow torture power-cut`.
//!
//! What always holds: everything follows from the seed, so that one number repeats what was found.

use super::world::{MIXED, SHAPES, Shape, UNITS, Workload, World, check_survivor};
use super::{Choices, Faults, Random};
use crate::Planted;
use std::format;
use std::string::String;

/// Programs and erases that fail, and blocks that are bad from the start.
pub const FAILING: Faults = Faults { programs: 400, erases: 200, reads: 0, factory: 30 };
/// Pages that become unreadable.
pub const ROTTING: Faults = Faults { programs: 0, erases: 0, reads: 3000, factory: 0 };
/// Cuts of one case, but for those in recovery.
pub const ROUNDS: u64 = 8;

/// What one number stands for: a shape of flash, what fails on it, and the seed of all else.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The flash.
    pub shape: Shape,
    /// What fails.
    pub faults: Faults,
    /// Of all else.
    pub seed: u64,
}

impl Case {
    /// Neighbouring numbers are on other flash, with other failures.
    pub fn of(number: u64) -> Case {
        let (shapes, kinds) = (SHAPES.len() as u64, [Faults::default(), FAILING, ROTTING]);
        let (rest, shape) = (number / shapes, SHAPES[(number % shapes) as usize]);
        let faults = kinds[(rest % kinds.len() as u64) as usize];
        Case { shape, faults, seed: rest / kinds.len() as u64 }
    }

    /// Cuts the power again and again, and returns how often; an error says what was lost, or came back.
    pub fn run(&self, planted: Option<Planted>) -> Result<u64, String> {
        cut_at_random(self.shape, self.faults, planted, ROUNDS, self.seed)
    }
}

/// Rounds of a random workload, each ended by a cut; returns how many there were.
pub fn cut_at_random(
    shape: Shape,
    faults: Faults,
    planted: Option<Planted>,
    rounds: u64,
    seed: u64,
) -> Result<u64, String> {
    let mut random = Random(seed);
    let (mut world, mut lane) = World::new(shape, faults, seed);
    world.planted = planted;
    for round in 0..rounds {
        // Early rounds are long, so that collection runs.
        let steps = if round == 0 { 150 } else { 20 + random.below(60) };
        let workload = Workload {
            clients: 1 + random.below(4) as usize,
            steps,
            units: [4, 16, UNITS][random.below(3) as usize],
            trims: [0, 4, 10][random.below(3) as usize],
            flushes: [3, 8, 30][random.below(3) as usize],
            ended: [0, 10][random.below(2) as usize],
            ..MIXED
        };
        world.medium.cut_after(random.below(5 * steps * workload.clients as u64));
        let text = |text: String| format!("{shape:?} seed {seed} round {round}: {text}");
        world.run(&lane, workload, random.next()).map_err(text)?;
        if world.read_only.get() {
            // Read to the end: that is what is left.
            return Ok(round + 1);
        }
        let mut choices = Choices::Drawn(random.clone());
        drop(lane);
        (world, lane) = match check_survivor(&world, &mut choices, 2, random.next()) {
            Ok(next) => next,
            // With media that rot the log itself may be hit; that is told, and never taken for something else.
            Err(error) if faults.reads > 0 && error.contains("Damaged") => return Ok(round + 1),
            Err(error) if faults.programs > 0 && (error.contains("TooManyBad") || error.contains("ReadOnly")) => {
                return Ok(round + 1);
            }
            Err(error) => return Err(text(error)),
        };
    }
    Ok(rounds)
}
