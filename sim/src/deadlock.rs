//! The list of who waits for what, where nothing can happen any more.

use crate::generator::Stage;
use crate::simulation::{Simulation, SimulationError};
use crate::world::World;

/// Most lines of the list.
const LIST_MAX: usize = 100;

impl Simulation {
    pub(crate) fn deadlock(&self, world: &World) -> SimulationError {
        let mut waiting = Vec::new();
        for (number, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            let waits = world.waits_of(number as u32);
            match waits.as_slice() {
                [] => waiting.push(format!("{} waits for something outside of the simulation", task.name)),
                waits => waiting.push(format!("{} waits for {}", task.name, waits.join(" and "))),
            }
        }
        for generator in &self.generators {
            for (index, slot) in generator.slots.iter().enumerate() {
                let what = match slot.stage {
                    Stage::Over => continue,
                    Stage::Locking => world.tell_lock(slot.file_lock),
                    Stage::Device => format!("the device to answer {:?}", slot.operation),
                    Stage::Port => format!("the SATA port to end {:?}", slot.operation),
                    Stage::Refused => "room in the device's queue".to_owned(),
                    stage => format!("the end of its stage {stage:?}"),
                };
                waiting.push(format!("operation {index} of {} waits for {what}", generator.name));
            }
        }
        if waiting.len() > LIST_MAX {
            let more = waiting.len() - LIST_MAX;
            waiting.truncate(LIST_MAX);
            waiting.push(format!("and {more} more"));
        }
        SimulationError::Deadlock { now_ns: world.now_ns, waiting }
    }
}
