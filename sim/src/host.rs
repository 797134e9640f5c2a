//! What the host's software costs: the table `[host]` of a preset. The device's costs are the device's model; here is what happens before
//! a request is in the device's queue and after its completion is out of it.
//!
//! What always holds: costs are times on a processor of the host, taken in pieces by the thread that does the work (or by an interrupt);
//! they wait for nothing but a processor and the locks that are named.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The host: its processors, software and power. presets/bee3.toml tells each value's source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostParameters {
    /// Processors (cores that run threads at the same time).
    pub processors: u32,
    /// Entering and leaving the kernel, nanoseconds a system call.
    pub system_call_ns: u64,
    /// The file system's work for a direct read, nanoseconds: locks, mapping of the file's extents, time stamps.
    pub file_system_read_ns: u64,
    /// The file system's work for a direct write, nanoseconds.
    pub file_system_write_ns: u64,
    /// Block of the file system, bytes. A direct write that is not made of whole ones holds the file's lock for itself alone until
    /// it has ended (so do XFS and ext4); all others share it.
    pub file_system_block_bytes: u32,
    /// The block layer's work for a request, submission and completion together, nanoseconds.
    pub block_layer_ns: u64,
    /// Most bytes of a request that the block layer makes of neighbours of the same kind that wait in its queue; 0: it merges none. Only in front of a
    /// port whose commands are bounded (table `[sata]`).
    pub merge_bytes_max: u32,
    /// The driver's work to put a command into a queue and ring the doorbell, nanoseconds.
    pub driver_submit_ns: u64,
    /// The driver's work to take a completion out of a queue, nanoseconds.
    pub driver_complete_ns: u64,
    /// Taking an interrupt, nanoseconds; only where completions come by interrupt.
    pub interrupt_ns: u64,
    /// Switching to a thread that slept, nanoseconds; only where completions come by interrupt.
    pub context_switch_ns: u64,
    /// True where the kernel polls for completions instead of sleeping until an interrupt.
    pub kernel_polls: bool,
    /// A user-space library's work to put a command into a queue and ring the doorbell, nanoseconds.
    pub user_submit_ns: u64,
    /// Its work to find and take a completion by polling, nanoseconds.
    pub user_complete_ns: u64,
    /// Rate of copying between the queues' memory and the program's, bytes a second; 0: data go to the program's memory directly.
    pub copy_bytes_per_s: u64,
    /// Power of the host's processors (all of them together) at rest and at work, watts.
    pub processor_idle_w: f64,
    /// See `processor_idle_w`.
    pub processor_active_w: f64,
    /// Power of the host's memory (all modules together) at rest and at work, watts.
    pub memory_idle_w: f64,
    /// See `memory_idle_w`.
    pub memory_active_w: f64,
}

/// The way that a host program's request takes to the device's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// A file: system call, file system, block layer, driver.
    #[default]
    File,
    /// The raw block device: system call, block layer, driver.
    Raw,
    /// The queue is a user process' own: user-space submission and polling; the Direct-IO app moves the data, and the device looks the
    /// process' permission up at each DMA. Operations that Direct-IO has no way for go as [`Path::Rpc`].
    User,
    /// A user-space queue of a trusted program: no permission check (the papers' kernel-granted HREs for RPCs).
    Rpc,
    /// No host software at all: what the device alone does.
    Bare,
}

impl Path {
    /// True where requests go to the device's queues as the kernel's driver, or nobody's software, puts them there.
    #[inline]
    pub fn is_of_the_kernel(self) -> bool {
        matches!(self, Path::File | Path::Raw | Path::Bare)
    }
}

impl std::str::FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "file" => Ok(Path::File),
            "raw" => Ok(Path::Raw),
            "user" => Ok(Path::User),
            "rpc" => Ok(Path::Rpc),
            "bare" => Ok(Path::Bare),
            _ => Err(format!("\"{text}\" is no path: use file, raw, user, rpc or bare")),
        }
    }
}

impl HostParameters {
    /// A host whose software costs nothing, with as many processors as threads may ask for.
    pub fn free() -> Self {
        HostParameters {
            processors: 1024,
            system_call_ns: 0,
            file_system_read_ns: 0,
            file_system_write_ns: 0,
            file_system_block_bytes: 1,
            block_layer_ns: 0,
            merge_bytes_max: 0,
            driver_submit_ns: 0,
            driver_complete_ns: 0,
            interrupt_ns: 0,
            context_switch_ns: 0,
            kernel_polls: true,
            user_submit_ns: 0,
            user_complete_ns: 0,
            copy_bytes_per_s: 0,
            processor_idle_w: 0.0,
            processor_active_w: 0.0,
            memory_idle_w: 0.0,
            memory_active_w: 0.0,
        }
    }

    /// Checks the values; the error names field, value and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        let within = |field: &str, value: u64, range: RangeInclusive<u64>, unit: &str| {
            if range.contains(&value) {
                return Ok(());
            }
            Err(format!("host.{field} is {value}, expected {} to {} {unit}", range.start(), range.end()))
        };
        within("processors", self.processors.into(), 1..=1024, "processors")?;
        for (field, ns) in [
            ("system_call_ns", self.system_call_ns),
            ("file_system_read_ns", self.file_system_read_ns),
            ("file_system_write_ns", self.file_system_write_ns),
            ("block_layer_ns", self.block_layer_ns),
            ("driver_submit_ns", self.driver_submit_ns),
            ("driver_complete_ns", self.driver_complete_ns),
            ("interrupt_ns", self.interrupt_ns),
            ("context_switch_ns", self.context_switch_ns),
            ("user_submit_ns", self.user_submit_ns),
            ("user_complete_ns", self.user_complete_ns),
        ] {
            within(field, ns, 0..=1_000_000_000, "ns")?;
        }
        let block = self.file_system_block_bytes;
        if !block.is_power_of_two() || block > 1 << 20 {
            return Err(format!(
                "host.file_system_block_bytes is {block}, expected a power of two up to 1048576 bytes"
            ));
        }
        within("merge_bytes_max", self.merge_bytes_max.into(), 0..=16 << 20, "bytes")?;
        if self.copy_bytes_per_s != 0 {
            within("copy_bytes_per_s", self.copy_bytes_per_s, 1_000_000..=10_000_000_000_000, "bytes/s, or 0")?;
        }
        for (field, idle, active) in [
            ("processor", self.processor_idle_w, self.processor_active_w),
            ("memory", self.memory_idle_w, self.memory_active_w),
        ] {
            if !(0.0..=1e6).contains(&idle) {
                return Err(format!("host.{field}_idle_w is {idle}, expected 0 to 1000000 W"));
            }
            if !(idle..=1e6).contains(&active) {
                return Err(format!(
                    "host.{field}_active_w is {active}, expected at least host.{field}_idle_w, which is {idle}, and at most 1000000 W"
                ));
            }
        }
        Ok(())
    }

    /// Work of the program's thread before a request is in the device's queue, nanoseconds.
    #[inline]
    pub fn submit_ns(&self, path: Path, write: bool, bytes: u64) -> u64 {
        let copy = if write { self.copy_ns(bytes) } else { 0 };
        match path {
            Path::File => {
                let file = if write { self.file_system_write_ns } else { self.file_system_read_ns };
                self.system_call_ns + file + self.block_layer_ns + self.driver_submit_ns + copy
            }
            Path::Raw => self.system_call_ns + self.block_layer_ns + self.driver_submit_ns + copy,
            Path::User | Path::Rpc => self.user_submit_ns + copy,
            Path::Bare => 0,
        }
    }

    /// Work of an interrupt when the completion has come, nanoseconds; 0: the thread polls.
    #[inline]
    pub fn interrupt_ns(&self, path: Path) -> u64 {
        match path {
            Path::File | Path::Raw if !self.kernel_polls => self.interrupt_ns + self.driver_complete_ns,
            _ => 0,
        }
    }

    /// Work of the program's thread when the completion has come, nanoseconds.
    #[inline]
    pub fn complete_ns(&self, path: Path, write: bool, bytes: u64) -> u64 {
        let copy = if write { 0 } else { self.copy_ns(bytes) };
        match path {
            Path::File | Path::Raw if self.kernel_polls => self.driver_complete_ns + copy,
            Path::File | Path::Raw => self.context_switch_ns + copy,
            Path::User | Path::Rpc => self.user_complete_ns + copy,
            Path::Bare => 0,
        }
    }

    /// True where the thread spins until the completion comes.
    #[inline]
    pub fn polls(&self, path: Path) -> bool {
        match path {
            Path::File | Path::Raw => self.kernel_polls,
            Path::User | Path::Rpc => true,
            Path::Bare => false,
        }
    }

    /// True where a write holds its file's lock for itself alone.
    #[inline]
    pub fn is_exclusive(&self, path: Path, write: bool, offset: u64, bytes: u64) -> bool {
        let block = u64::from(self.file_system_block_bytes) - 1;
        path == Path::File && write && (offset | bytes) & block != 0
    }

    #[inline]
    fn copy_ns(&self, bytes: u64) -> u64 {
        if self.copy_bytes_per_s == 0 {
            return 0;
        }
        (u128::from(bytes) * 1_000_000_000 / u128::from(self.copy_bytes_per_s)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cost_what_lies_on_them() {
        let host = HostParameters {
            system_call_ns: 1,
            file_system_read_ns: 10,
            file_system_write_ns: 20,
            block_layer_ns: 100,
            driver_submit_ns: 1000,
            user_submit_ns: 7,
            copy_bytes_per_s: 1_000_000_000,
            ..HostParameters::free()
        };
        assert_eq!(host.submit_ns(Path::File, false, 512), 1111);
        assert_eq!(host.submit_ns(Path::File, true, 512), 1121 + 512);
        assert_eq!(host.submit_ns(Path::Raw, false, 512), 1101);
        assert_eq!(host.submit_ns(Path::User, false, 512), 7);
        assert_eq!(host.submit_ns(Path::Bare, true, 512), 0);
        assert_eq!(host.complete_ns(Path::User, false, 4096), 4096);
        host.validate().unwrap();
    }

    #[test]
    fn only_writes_of_parts_of_blocks_are_exclusive() {
        let host = HostParameters { file_system_block_bytes: 4096, ..HostParameters::free() };
        assert!(host.is_exclusive(Path::File, true, 512, 4096) && host.is_exclusive(Path::File, true, 0, 512));
        assert!(!host.is_exclusive(Path::File, true, 8192, 4096) && !host.is_exclusive(Path::File, false, 0, 512));
        assert!(!host.is_exclusive(Path::User, true, 0, 512));
    }

    #[test]
    fn absurd_values_are_refused_with_the_field() {
        let free = HostParameters::free;
        for (host, expected) in [
            (HostParameters { processors: 0, ..free() }, "host.processors is 0, expected 1 to 1024"),
            (HostParameters { interrupt_ns: u64::MAX, ..free() }, "host.interrupt_ns"),
            (HostParameters { file_system_block_bytes: 3, ..free() }, "a power of two"),
            (HostParameters { processor_idle_w: 5.0, ..free() }, "host.processor_active_w is 0, expected at least"),
            (HostParameters { memory_idle_w: f64::NAN, ..free() }, "host.memory_idle_w is NaN"),
            (HostParameters { copy_bytes_per_s: 3, ..free() }, "host.copy_bytes_per_s is 3"),
        ] {
            let error = host.validate().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
