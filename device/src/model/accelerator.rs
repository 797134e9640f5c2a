//! The registry of accelerators: native kernels beside each SPU's processor. A line here gives one its place in the presets, in the model of
//! time and in the statistics; `spu/accelerator` has a file for what each does.
//!
//! Invariant: an accelerator has the same name everywhere: in presets, statistics, docs/abi.md.

use super::parameters::AcceleratorParameters;
use super::resource::duration_ns;
use serde::{Deserialize, Serialize};

/// What an accelerator did since the device started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceleratorUse {
    /// Times that it was started.
    pub operations: u64,
    /// Bytes that it took.
    pub bytes: u64,
}

macro_rules! registry {
    ($($(#[doc = $meaning:literal])* $kind:ident $name:ident)*) => {
        /// A kind of accelerator; each SPU has one of each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Accelerator {
            $($(#[doc = $meaning])* $kind,)*
        }

        impl Accelerator {
            /// All, in the order of the registry.
            pub const ALL: &'static [Accelerator] = &[$(Accelerator::$kind),*];

            /// The name in presets and statistics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Accelerator::$kind => stringify!($name),)*
                }
            }
        }

        /// The accelerators of a preset.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Accelerators {
            $($(#[doc = $meaning])* pub $name: AcceleratorParameters,)*
        }

        impl Accelerators {
            /// Parameters of one.
            #[inline]
            pub fn of(&self, accelerator: Accelerator) -> &AcceleratorParameters {
                match accelerator {
                    $(Accelerator::$kind => &self.$name,)*
                }
            }

            /// The same for all.
            pub fn alike(parameters: &AcceleratorParameters) -> Accelerators {
                Accelerators { $($name: parameters.clone()),* }
            }
        }

        /// Use of each accelerator of an SPU since the device started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct AcceleratorCounters {
            $($(#[doc = $meaning])* pub $name: AcceleratorUse,)*
        }

        impl AcceleratorCounters {
            /// Use of one.
            pub fn of(&self, accelerator: Accelerator) -> AcceleratorUse {
                match accelerator {
                    $(Accelerator::$kind => self.$name,)*
                }
            }

            /// One was started for so many bytes.
            #[inline]
            pub fn count(&mut self, accelerator: Accelerator, bytes: u64) {
                let used = match accelerator {
                    $(Accelerator::$kind => &mut self.$name,)*
                };
                used.operations += 1;
                used.bytes += bytes;
            }
        }
    };
}

/// Something for each accelerator.
pub(super) type PerAccelerator<T> = [T; Accelerator::ALL.len()];

registry! {
    /// Compares bytes of NV memory with a request's (the `compare` import).
    Compare compare
    /// Sums bytes (the `checksum` import).
    Checksum checksum
    /// Finds any of a set of literals in bytes (the `literals_find` import).
    Literals literals
    /// Finds a key among others (the `keys_find` import).
    Keys keys
    /// Finds the least of a row of numbers (the `flash_minimum` import).
    Minimum minimum
    /// Multiplies a row of numbers and adds another (the `multiply_add` import).
    MultiplyAdd multiply_add
    /// Transforms rows of complex numbers (the `fft` import).
    Fft fft
    /// Decompresses blocks of Snappy's (the `decompress` import).
    Decompress decompress
}

/// What a run has the accelerators of its SPU do: bytes for each, in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accelerated {
    bytes: [u64; Accelerator::ALL.len()],
}

impl Accelerated {
    /// One is to take so many bytes more.
    #[inline]
    pub fn add(&mut self, accelerator: Accelerator, bytes: u64) {
        self.bytes[accelerator as usize] += bytes;
    }

    /// Bytes that one takes.
    #[inline]
    pub fn of(&self, accelerator: Accelerator) -> u64 {
        self.bytes[accelerator as usize]
    }

    /// Bytes that all take.
    #[inline]
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Those that are to take something, with their bytes.
    #[inline]
    pub fn at_work(&self) -> impl Iterator<Item = (Accelerator, u64)> + use<> {
        let bytes = self.bytes;
        Accelerator::ALL.iter().map(move |of| (*of, bytes[*of as usize])).filter(|(_, bytes)| *bytes > 0)
    }

    /// How long the processor waits for them.
    #[inline]
    pub fn duration_ns(&self, parameters: &Accelerators) -> u64 {
        self.at_work().map(|(accelerator, bytes)| duration_of_ns(parameters.of(accelerator), bytes)).sum()
    }
}

/// Time of an accelerator for so many bytes.
pub(super) fn duration_of_ns(parameters: &AcceleratorParameters, bytes: u64) -> u64 {
    let cycles = bytes.div_ceil(u64::from(parameters.bytes_per_cycle));
    parameters.set_up_ns + duration_ns(cycles, parameters.clock_hz)
}
