//! What hosts need to have the app `compute` work on files: numpy's file headers ([`npy`]), and which SPU is asked for what ([`plan`]).
//!
//! What always holds: no input or output, no knowledge of a transport; what a plan names are ranges of files' extents, so that the device decides who
//! may touch them.
//!
//! Who may call it: host programs; `willow_host::compute` is written over it.

pub mod npy;
pub mod plan;
pub mod transform;

pub use compute_spu::wire;
pub use wire::APP_NAME;

/// A kind of real numbers, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Of 4 bytes.
    Single,
    /// Of 8 bytes.
    Double,
}

impl Number {
    /// Bytes of one.
    pub fn bytes(self) -> u32 {
        match self {
            Number::Single => 4,
            Number::Double => 8,
        }
    }
}

/// What a file's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Of what.
    pub number: Number,
    /// Two of them, a real and an imaginary part.
    pub complex: bool,
}

impl Element {
    /// All kinds.
    pub const ALL: [Element; 4] = [
        Element { number: Number::Single, complex: false },
        Element { number: Number::Double, complex: false },
        Element { number: Number::Single, complex: true },
        Element { number: Number::Double, complex: true },
    ];

    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        u64::from(self.number.bytes()) * if self.complex { 2 } else { 1 }
    }

    /// numpy's name, without the order of its bytes.
    pub fn name(self) -> &'static str {
        match (self.number, self.complex) {
            (Number::Single, false) => "f4",
            (Number::Double, false) => "f8",
            (Number::Single, true) => "c8",
            (Number::Double, true) => "c16",
        }
    }

    /// By numpy's name: `f4`, `<f4`, `float32`, and the like.
    pub fn of_name(name: &str) -> Option<Element> {
        let name = name.strip_prefix('<').unwrap_or(name);
        let long = |element: Element| match element.name() {
            "f4" => "float32",
            "f8" => "float64",
            "c8" => "complex64",
            _ => "complex128",
        };
        Element::ALL.into_iter().find(|element| element.name() == name || long(*element) == name)
    }
}

impl std::fmt::Display for Element {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// y = alpha * x + y on this host, as the accelerator does it: rounded after the multiplication and after the addition.
pub fn multiply_add(number: Number, alpha: f64, x: &[u8], y: &mut [u8]) {
    match number {
        Number::Single => {
            let alpha = alpha as f32;
            for (x, y) in x.as_chunks::<4>().0.iter().zip(y.as_chunks_mut::<4>().0) {
                *y = (alpha * f32::from_le_bytes(*x) + f32::from_le_bytes(*y)).to_le_bytes();
            }
        }
        Number::Double => {
            for (x, y) in x.as_chunks::<8>().0.iter().zip(y.as_chunks_mut::<8>().0) {
                *y = (alpha * f64::from_le_bytes(*x) + f64::from_le_bytes(*y)).to_le_bytes();
            }
        }
    }
}
