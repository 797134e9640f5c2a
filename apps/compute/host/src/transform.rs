//! Fourier transforms of rows on this host, as the accelerator does them: by the same plans, so that the bits are the same.
//!
//! Plans of as many lengths as a transformer was asked for are kept: one or two.

use crate::Number;
use rustfft::num_complex::Complex;
use rustfft::{FftDirection, FftNum, FftPlannerScalar};

/// How a part of a number is read from bytes, and written.
type Coding<T, const BYTES: usize> = (fn([u8; BYTES]) -> T, fn(T) -> [u8; BYTES]);

/// Plans and buffers for one kind of numbers.
struct Kind<T: FftNum> {
    planner: FftPlannerScalar<T>,
    row: Vec<Complex<T>>,
    scratch: Vec<Complex<T>>,
}

impl<T: FftNum> Kind<T> {
    fn new() -> Kind<T> {
        Kind { planner: FftPlannerScalar::new(), row: Vec::new(), scratch: Vec::new() }
    }

    fn run<const BYTES: usize>(
        &mut self,
        (count, inverse): (usize, bool),
        rows: &mut [u8],
        (decode, encode): Coding<T, BYTES>,
        scale: T,
    ) {
        let direction = if inverse { FftDirection::Inverse } else { FftDirection::Forward };
        let plan = self.planner.plan_fft(count, direction);
        self.scratch.resize(plan.get_inplace_scratch_len(), Complex::new(T::zero(), T::zero()));
        for row in rows.chunks_exact_mut(count * 2 * BYTES) {
            let (parts, _) = row.as_chunks_mut::<BYTES>();
            self.row.clear();
            self.row.extend(parts.chunks_exact(2).map(|two| Complex::new(decode(two[0]), decode(two[1]))));
            plan.process_with_scratch(&mut self.row, &mut self.scratch);
            for (two, number) in parts.chunks_exact_mut(2).zip(&self.row) {
                let number = if inverse { *number * scale } else { *number };
                two[0] = encode(number.re);
                two[1] = encode(number.im);
            }
        }
    }
}

/// Transforms rows.
pub struct Transformer {
    single: Kind<f32>,
    double: Kind<f64>,
}

impl Default for Transformer {
    fn default() -> Self {
        Transformer { single: Kind::new(), double: Kind::new() }
    }
}

impl Transformer {
    /// Transforms rows of `count` complex numbers, one behind the other, each in its place; the inverse divides by `count`.
    pub fn run(&mut self, number: Number, (count, inverse): (usize, bool), rows: &mut [u8]) {
        match number {
            Number::Single => {
                let scale = 1.0 / count as f32;
                self.single.run((count, inverse), rows, (f32::from_le_bytes, f32::to_le_bytes), scale);
            }
            Number::Double => {
                let scale = 1.0 / count as f64;
                self.double.run((count, inverse), rows, (f64::from_le_bytes, f64::to_le_bytes), scale);
            }
        }
    }
}

/// Real numbers as complex ones.
pub fn widen(real: &[u8], number: Number, complex: &mut Vec<u8>) {
    let bytes = number.bytes() as usize;
    complex.clear();
    for number in real.chunks_exact(bytes) {
        complex.extend_from_slice(number);
        complex.resize(complex.len() + bytes, 0);
    }
}

/// Transposes a tile of elements of `bytes` bytes.
pub fn transpose(from: &[u8], to: &mut [u8], bytes: usize, (rows, columns): (usize, usize)) {
    for row in 0..rows {
        for column in 0..columns {
            let element = &from[(row * columns + column) * bytes..][..bytes];
            to[(column * rows + row) * bytes..][..bytes].copy_from_slice(element);
        }
    }
}
