//! Rows of floating-point numbers in an app's memory, as the multiply-add and FFT accelerators take them: what an app may ask for, what it is charged,
//! and the arithmetic of the former.
//!
//! Invariants: a row has at most [`ROW_BYTES_MAX`] bytes, whether there is one or not; multiply-add rounds after the
//! multiplication and after the addition, as IEEE 754 says, on every machine: it is never one fused operation.

use crate::meter::SEGMENT_WORK;

/// Most bytes of a row that multiply-add reads, and of the numbers that one FFT transforms.
pub const ROW_BYTES_MAX: u64 = 512 << 10;
/// What one butterfly of a transform is charged (0.5 ns).
const BUTTERFLY_WORK: u64 = 4;
/// What a number of a length is charged that is no power of two, when its transform is planned: its sine and cosine.
const PLANNED_WORK: u64 = 100;

/// A kind of real numbers, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Of 4 bytes.
    Single,
    /// Of 8 bytes.
    Double,
}

impl Number {
    /// The kind that takes so many bytes.
    pub fn of_bytes(bytes: u32) -> Option<Number> {
        match bytes {
            4 => Some(Number::Single),
            8 => Some(Number::Double),
            _ => None,
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Number::Single => 4,
            Number::Double => 8,
        }
    }
}

/// `multiply_add`: y = alpha * x + y.
#[derive(Clone, Copy, Debug)]
pub struct MultiplyAdd {
    /// The request.
    pub token: u32,
    /// What x and y are made of.
    pub number: Number,
    /// Bits of alpha, of a double; of singles the nearest single is taken.
    pub alpha: u64,
    /// Where x is.
    pub x: u64,
    /// Where y is.
    pub y: u64,
    /// How many numbers each of them has.
    pub count: u32,
    /// The wait.
    pub wait: u32,
}

impl MultiplyAdd {
    /// Bytes of x, and of y.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.count) * self.number.bytes()
    }

    /// Whether it is short enough, and x and y have no byte in common.
    pub fn is_sound(&self) -> bool {
        let bytes = self.row_bytes();
        let apart = self.x.abs_diff(self.y) >= bytes;
        bytes <= ROW_BYTES_MAX && apart
    }
}

/// `fft`: transforms of rows of complex numbers, each in its place.
#[derive(Clone, Copy, Debug)]
pub struct Transform {
    /// The request.
    pub token: u32,
    /// What the real and the imaginary part are.
    pub number: Number,
    /// The inverse transform, which divides by the number of numbers.
    pub inverse: bool,
    /// Where the rows are, one behind the other.
    pub data: u64,
    /// Complex numbers of a row.
    pub count: u32,
    /// Rows.
    pub rows: u32,
    /// The wait.
    pub wait: u32,
}

impl Transform {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.count) * 2 * self.number.bytes()
    }

    /// Bytes of all rows; none where they would be too many.
    pub fn bytes(&self) -> Option<u64> {
        self.row_bytes().checked_mul(self.rows.into()).filter(|bytes| *bytes <= ROW_BYTES_MAX)
    }

    /// Whether there are such transforms. A row has its bound where there is none, too: its plan is made from its length.
    pub fn is_sound(&self) -> bool {
        self.count > 0 && self.row_bytes() <= ROW_BYTES_MAX && self.bytes().is_some()
    }

    /// Numbers of the power of two that a convolution with a row goes by: Bluestein's way, where the length is none.
    pub fn convolved(&self) -> u64 {
        (2 * u64::from(self.count)).next_power_of_two()
    }

    /// What it is charged: of a length that is no power of two, as Bluestein's way has it, by two transforms and two multiplications of a longer row. Many lengths take less.
    pub fn work(&self) -> u64 {
        let butterflies = |numbers: u64| numbers / 2 * u64::from(numbers.ilog2().max(1));
        let of_a_row = match self.count.is_power_of_two() {
            true => butterflies(self.count.into()),
            false => 2 * butterflies(self.convolved()) + 2 * self.convolved(),
        };
        SEGMENT_WORK + of_a_row * u64::from(self.rows) * BUTTERFLY_WORK
    }

    /// What planning it is charged, where its length is no power of two and was not transformed just before.
    pub fn planning_work(&self) -> u64 {
        self.convolved() * PLANNED_WORK
    }

    /// Bytes that an accelerator takes: each row once, or, of another length than a power of two, the longer row twice.
    pub fn taken_bytes(&self) -> u64 {
        match self.count.is_power_of_two() {
            true => self.bytes().unwrap_or(0),
            false => 2 * self.convolved() * 2 * self.number.bytes() * u64::from(self.rows),
        }
    }
}

/// y = alpha * x + y of numbers of 4 bytes; what is left of the shorter slice stays.
fn multiply_add_single(alpha: f32, x: &[u8], y: &mut [u8]) {
    let (x, _) = x.as_chunks::<4>();
    let (y, _) = y.as_chunks_mut::<4>();
    for (x, y) in x.iter().zip(y) {
        *y = (alpha * f32::from_le_bytes(*x) + f32::from_le_bytes(*y)).to_le_bytes();
    }
}

/// The same of 8 bytes.
fn multiply_add_double(alpha: f64, x: &[u8], y: &mut [u8]) {
    let (x, _) = x.as_chunks::<8>();
    let (y, _) = y.as_chunks_mut::<8>();
    for (x, y) in x.iter().zip(y) {
        *y = (alpha * f64::from_le_bytes(*x) + f64::from_le_bytes(*y)).to_le_bytes();
    }
}

/// y = alpha * x + y, number by number: a loop that the compiler makes vectors of.
pub fn multiply_add(number: Number, alpha: u64, x: &[u8], y: &mut [u8]) {
    let alpha = f64::from_bits(alpha);
    match number {
        Number::Single => multiply_add_single(alpha as f32, x, y),
        Number::Double => multiply_add_double(alpha, x, y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_add_rounds_twice() {
        // 1 + 2^-23 squared has a part that one rounding keeps and two do not.
        let (alpha, x, y) = (1.0f32 + f32::EPSILON, 1.0f32 + f32::EPSILON, -1.0f32 - 2.0 * f32::EPSILON);
        assert_ne!(alpha.mul_add(x, y), alpha * x + y, "the example tells them apart");
        let mut bytes = y.to_le_bytes();
        multiply_add(Number::Single, f64::from(alpha).to_bits(), &x.to_le_bytes(), &mut bytes);
        assert_eq!(f32::from_le_bytes(bytes), alpha * x + y);
        let (alpha, x, y) = (1.0 + f64::EPSILON, 1.0 + f64::EPSILON, -1.0 - 2.0 * f64::EPSILON);
        assert_ne!(alpha.mul_add(x, y), alpha * x + y, "the example tells them apart");
        let mut bytes = y.to_le_bytes();
        multiply_add(Number::Double, alpha.to_bits(), &x.to_le_bytes(), &mut bytes);
        assert_eq!(f64::from_le_bytes(bytes), alpha * x + y);
    }

    #[test]
    fn what_is_too_long_or_overlaps_is_unsound_and_other_lengths_than_powers_of_two_cost_more() {
        let asked = MultiplyAdd { token: 0, number: Number::Single, alpha: 0, x: 0, y: 400, count: 100, wait: 0 };
        assert!(asked.is_sound() && MultiplyAdd { x: 800, ..asked }.is_sound());
        assert!(!MultiplyAdd { y: 399, ..asked }.is_sound() && !MultiplyAdd { x: 401, ..asked }.is_sound());
        assert!(!MultiplyAdd { y: u64::MAX, count: 1 << 18, ..asked }.is_sound());
        let asked =
            Transform { token: 0, number: Number::Single, inverse: false, data: 0, count: 1 << 15, rows: 2, wait: 0 };
        assert!(asked.is_sound() && Transform { rows: 0, ..asked }.is_sound());
        for (count, rows) in
            [(0, 1), (0, 0), (1 << 15, 3), (65537, 1), (1 << 31, 1), (2, u32::MAX), (1 << 31, 0), (1 << 17, 0)]
        {
            assert!(!Transform { count, rows, ..asked }.is_sound(), "{count} {rows}");
        }
        let of = |count| Transform { count, rows: 1, ..asked };
        assert!(of(1).is_sound() && of(3).is_sound() && of(65535).is_sound());
        assert_eq!((of(1024).work() - SEGMENT_WORK, of(1024).taken_bytes()), (512 * 10 * 4, 8192));
        // Both ways by 2048 numbers.
        assert_eq!(of(1000).work() - SEGMENT_WORK, (2 * 1024 * 11 + 2 * 2048) * 4);
        assert_eq!((of(1000).taken_bytes(), of(1000).planning_work()), (2 * 2048 * 8, 204_800));
    }
}
