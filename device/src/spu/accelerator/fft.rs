//! The FFT accelerator: discrete Fourier transforms of rows of complex numbers in local memory (XSSD, 4.3.2).
//!
//! Natively rustfft's scalar plans, so that the same numbers give the same bits on every machine; under a model the accelerator takes each row once,
//! as a pipeline that one number enters in a cycle does, while the processor goes on: it streams. Rows of other lengths than powers of two go through such a
//! pipeline twice, longer (Bluestein's way; natively the plan may be another).
//!
//! What always holds: a plan is made once for each power of two, direction and kind of numbers, of which there are few, and kept by the SPU. Of other lengths it
//! keeps the last [`OTHERS_MAX`], and each one that has to be planned is charged for that.

use crate::model::accelerator::Accelerator;
use crate::spu::abi;
use crate::spu::gate::Charged;
use crate::spu::group::Waiter;
use crate::spu::meter::Fault;
use crate::spu::os::{Caller, LocalMemory, Machine};
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection, FftNum, FftPlannerScalar};
use std::sync::Arc;
use willow_gate::numbers::Number;
use willow_gate::{SpuOs, Transform};

/// Plans that are kept of lengths that are no powers of two, for each kind of numbers: some MiB each at most.
const OTHERS_MAX: usize = 2;

/// How a part of a number is read from bytes, and written.
type Coding<T, const BYTES: usize> = (fn([u8; BYTES]) -> T, fn(T) -> [u8; BYTES]);

/// What an SPU transforms one kind of numbers with.
struct Kind<T: FftNum> {
    planner: FftPlannerScalar<T>,
    /// Of lengths that are no powers of two, the one that was used last at the end.
    others: Vec<Arc<dyn Fft<T>>>,
    row: Vec<Complex<T>>,
    scratch: Vec<Complex<T>>,
}

impl<T: FftNum> Kind<T> {
    fn new() -> Kind<T> {
        Kind { planner: FftPlannerScalar::new(), others: Vec::new(), row: Vec::new(), scratch: Vec::new() }
    }

    /// Where the plan of a length that is no power of two is, if it is kept.
    fn other(&self, count: usize, direction: FftDirection) -> Option<usize> {
        self.others.iter().position(|plan| plan.len() == count && plan.fft_direction() == direction)
    }

    fn plan(&mut self, count: usize, direction: FftDirection) -> Arc<dyn Fft<T>> {
        if count.is_power_of_two() {
            return self.planner.plan_fft(count, direction);
        }
        let plan = match self.other(count, direction) {
            Some(place) => self.others.remove(place),
            // What a planner has planned it keeps: this one goes.
            None => FftPlannerScalar::new().plan_fft(count, direction),
        };
        if self.others.len() == OTHERS_MAX {
            self.others.remove(0);
        }
        self.others.push(plan.clone());
        plan
    }

    /// Transforms rows, given as bytes, each part of a number `BYTES` of them.
    fn run<const BYTES: usize>(
        &mut self,
        (count, inverse): (usize, bool),
        bytes: &mut [u8],
        (decode, encode): Coding<T, BYTES>,
        scale: T,
    ) {
        if bytes.is_empty() {
            return;
        }
        let plan = self.plan(count, direction_of(inverse));
        let zero = Complex::new(T::zero(), T::zero());
        self.scratch.resize(plan.get_inplace_scratch_len(), zero);
        for row in bytes.chunks_exact_mut(count * 2 * BYTES) {
            let (parts, _) = row.as_chunks_mut::<BYTES>();
            let numbers = parts.chunks_exact(2).map(|parts| Complex::new(decode(parts[0]), decode(parts[1])));
            self.row.clear();
            self.row.extend(numbers);
            plan.process_with_scratch(&mut self.row, &mut self.scratch);
            for (parts, number) in parts.chunks_exact_mut(2).zip(&self.row) {
                let number = if inverse { *number * scale } else { *number };
                parts[0] = encode(number.re);
                parts[1] = encode(number.im);
            }
        }
    }
}

/// What an SPU transforms with; made when it is used first.
#[derive(Default)]
pub(in crate::spu) struct Transforms(Option<Box<(Kind<f32>, Kind<f64>)>>);

fn direction_of(inverse: bool) -> FftDirection {
    if inverse { FftDirection::Inverse } else { FftDirection::Forward }
}

impl Transforms {
    /// What planning a transform is to be charged; nothing where it is planned.
    pub fn planning_work(&self, transform: &Transform) -> u64 {
        let (count, direction) = (transform.count as usize, direction_of(transform.inverse));
        let is_kept = count.is_power_of_two()
            || self.0.as_ref().is_some_and(|kinds| match transform.number {
                Number::Single => kinds.0.other(count, direction).is_some(),
                Number::Double => kinds.1.other(count, direction).is_some(),
            });
        if is_kept { 0 } else { transform.planning_work() }
    }

    /// Transforms rows in their place.
    pub fn run(&mut self, transform: &Transform, bytes: &mut [u8]) {
        let (single, double) = &mut **self.0.get_or_insert_with(|| Box::new((Kind::new(), Kind::new())));
        let count = transform.count as usize;
        let what = (count, transform.inverse);
        match transform.number {
            // As numpy has it: exact for powers of two.
            Number::Single => single.run(what, bytes, (f32::from_le_bytes, f32::to_le_bytes), 1.0 / count as f32),
            Number::Double => double.run(what, bytes, (f64::from_le_bytes, f64::to_le_bytes), 1.0 / count as f64),
        }
    }
}

impl Machine {
    /// `fft`.
    #[inline(never)]
    pub fn fft<M: LocalMemory>(
        &mut self,
        caller: Caller,
        memory: &mut M,
        transform: Transform,
        _: Charged,
    ) -> Result<i32, Fault> {
        let Transform { token, data, wait, .. } = transform;
        let bytes = transform.bytes().unwrap_or(0);
        memory.slice_mut(data, bytes as usize)?;
        if bytes > 0 {
            let planning_work = self.spus[usize::from(caller.spu)].transforms.planning_work(&transform);
            self.meter(caller).charge_found(planning_work)?;
        }
        let rows = memory.slice_mut(data, bytes as usize)?;
        self.spus[usize::from(caller.spu)].transforms.run(&transform, rows);
        let taken = (Accelerator::Fft, transform.taken_bytes());
        Ok(self.streams((caller, Waiter { token, wait }), taken, (abi::DONE.into(), None), |_| abi::DONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, in doubles.
    fn transformed(row: &[Complex<f64>], inverse: bool) -> Vec<Complex<f64>> {
        let count = row.len();
        let sign = if inverse { 1.0 } else { -1.0 };
        let turn = |part: usize| sign * std::f64::consts::TAU * (part as f64 / count as f64);
        let turns: Vec<Complex<f64>> = (0..count).map(|part| Complex::from_polar(1.0, turn(part))).collect();
        let at = |place: usize| {
            // The angle is reduced before it is rounded.
            let term = |(number, of): (usize, &Complex<f64>)| *of * turns[number * place % count];
            let sum: Complex<f64> = row.iter().enumerate().map(term).sum();
            if inverse { sum / count as f64 } else { sum }
        };
        (0..count).map(at).collect()
    }

    fn numbers(count: usize, seed: u64) -> Vec<Complex<f64>> {
        let mut state = seed;
        let mut part = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Exact in a single.
            f64::from((state >> 40) as u32) / f64::from(1u32 << 24) - 0.5
        };
        (0..count).map(|_| Complex::new(part(), part())).collect()
    }

    fn norm(row: impl Iterator<Item = Complex<f64>>) -> f64 {
        row.map(|number| number.norm_sqr()).sum::<f64>().sqrt()
    }

    #[test]
    fn transforms_are_as_exact_as_promised() {
        let mut transforms = Transforms::default();
        // Powers of two, products of small primes, and primes, which go by a convolution.
        for count in [1usize, 2, 4, 8, 64, 512, 2048, 3, 5, 12, 97, 360, 1000, 1009, 2039] {
            for (number, inverse) in
                [(Number::Single, false), (Number::Single, true), (Number::Double, false), (Number::Double, true)]
            {
                let (first, second) = (numbers(count, 7), numbers(count, 8));
                let transform = Transform { token: 0, number, inverse, data: 0, count: count as u32, rows: 2, wait: 0 };
                assert!(transform.is_sound());
                let parts = first.iter().chain(&second).flat_map(|number| [number.re, number.im]);
                let mut bytes: Vec<u8> = match number {
                    Number::Single => parts.flat_map(|part| (part as f32).to_le_bytes()).collect(),
                    Number::Double => parts.flat_map(f64::to_le_bytes).collect(),
                };
                transforms.run(&transform, &mut bytes);
                let parts: Vec<f64> = match number {
                    Number::Single => {
                        bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()).into()).collect()
                    }
                    Number::Double => {
                        bytes.chunks_exact(8).map(|it| f64::from_le_bytes(it.try_into().unwrap())).collect()
                    }
                };
                let found: Vec<Complex<f64>> = parts.chunks_exact(2).map(|it| Complex::new(it[0], it[1])).collect();
                let epsilon = if number == Number::Single { f32::EPSILON.into() } else { f64::EPSILON };
                // docs/compute.md: relative to the norm of the row, epsilon for each level of butterflies.
                let most = match count {
                    1 => 0.0,
                    _ if count.is_power_of_two() => epsilon * f64::from(count.ilog2()),
                    _ => epsilon * 2.0 * (2.0 * count as f64).log2(),
                };
                for (row, wanted) in found.chunks_exact(count).zip([first, second]) {
                    let wanted = transformed(&wanted, inverse);
                    let error = norm(row.iter().zip(&wanted).map(|(one, other)| one - other));
                    assert!(error <= most * norm(wanted.iter().copied()), "{count} {number:?} {inverse}: {error}");
                }
            }
        }
    }
    #[test]
    fn plans_of_other_lengths_are_kept_while_they_are_used_and_charged_when_they_are_made() {
        let mut transforms = Transforms::default();
        let of = |count, inverse| {
            let number = Number::Single;
            Transform { token: 0, number, inverse, data: 0, count, rows: 1, wait: 0 }
        };
        let mut run = |transform: Transform| {
            let work = transforms.planning_work(&transform);
            transforms.run(&transform, &mut vec![0; transform.row_bytes() as usize]);
            assert_eq!(transforms.planning_work(&transform), 0);
            work
        };
        assert_eq!(run(of(64, false)), 0);
        for (count, inverse, is_new) in [
            (100, false, true),
            (100, true, true),
            (100, false, false),
            (3, false, true),
            // The one that was used last stayed.
            (100, false, false),
            (100, true, true),
            (3, false, true),
        ] {
            assert_eq!(run(of(count, inverse)) > 0, is_new, "{count} {inverse}");
        }
    }
}
