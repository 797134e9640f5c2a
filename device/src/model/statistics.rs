//! What the modelled hardware has done: how long each resource worked, what the media moved, and the energy of it.

use serde::{Deserialize, Serialize};

/// A resource's time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceStatistics {
    /// Name, as the trace's lanes have it.
    pub name: String,
    /// Time that it worked, nanoseconds, up to `now_ns`.
    pub busy_ns: u64,
    /// Pieces of work.
    pub operations: u64,
    /// Bytes that it moved; 0 for processors.
    pub bytes: u64,
    /// Time that pieces of work waited for it, all together, nanoseconds.
    pub waited_ns: u64,
}

impl ResourceStatistics {
    /// Share of the time that it worked, 0 to 1.
    pub fn utilization(&self, now_ns: u64) -> f64 {
        if now_ns == 0 { 0.0 } else { self.busy_ns as f64 / now_ns as f64 }
    }
}

/// The media behind one SPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MediaStatistics {
    /// Bytes read from it.
    pub read_bytes: u64,
    /// Bytes written to it, the copies of wear leveling not counted.
    pub written_bytes: u64,
    /// Accesses to a row that its bank's buffer held; 0 for media without row buffers.
    pub row_hits: u64,
    /// Accesses that had to bring a row in.
    pub row_misses: u64,
    /// Rows that were written back to their cells.
    pub row_write_backs: u64,
    /// Moves of the gap, each a copy of one line.
    pub gap_moves: u64,
    /// Wear, where it is counted.
    pub wear: WearStatistics,
}

/// Wear of the lines behind one controller, copies included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WearStatistics {
    /// Lines of the medium, the gap included; 0: wear is not counted.
    pub lines: u64,
    /// Lines that were ever written.
    pub lines_written: u64,
    /// Writes of lines.
    pub writes: u64,
    /// Writes of the line that has most.
    pub line_writes_max: u64,
    /// Share of its endurance that that line has used.
    pub worn: f64,
}

/// Energy of one kind of component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComponentEnergy {
    /// Which.
    pub name: String,
    /// Joules, all components of this kind together.
    pub joules: f64,
}

/// Everything, up to one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStatistics {
    /// That moment: the device's clock, nanoseconds; also how long the device has been powered.
    pub now_ns: u64,
    /// All resources, in the order of the trace's lanes.
    pub resources: Vec<ResourceStatistics>,
    /// The media, one an SPU.
    pub media: Vec<MediaStatistics>,
    /// Times that a read suspended a program, a copyback or an erase of flash.
    #[serde(default)]
    pub suspensions: u64,
    /// Energy by component; their sum is the device's.
    pub energy: Vec<ComponentEnergy>,
}

impl ModelStatistics {
    /// Joules that the device took.
    pub fn joules(&self) -> f64 {
        self.energy.iter().map(|component| component.joules).sum()
    }

    /// The resource of that name.
    pub fn resource(&self, name: &str) -> Option<&ResourceStatistics> {
        self.resources.iter().find(|resource| resource.name == name)
    }
}
