//! The mock's Fourier transforms: by halves, in doubles. Slow, and another way than the device's.

use willow_gate::Transform;
use willow_gate::numbers::Number;

type Complex = (f64, f64);

/// The transform without scaling, by the definition where a length has no half.
fn halves(numbers: &[Complex], sign: f64) -> Vec<Complex> {
    let count = numbers.len();
    let turned = |(re, im): Complex, part: usize| {
        let (sine, cosine) = (sign * std::f64::consts::TAU * (part % count) as f64 / count as f64).sin_cos();
        (re * cosine - im * sine, re * sine + im * cosine)
    };
    let sum = |a: Complex, b: Complex| (a.0 + b.0, a.1 + b.1);
    if count % 2 == 1 {
        let at = |place: usize| {
            let terms = numbers.iter().enumerate().map(|(number, of)| turned(*of, number * place));
            terms.fold((0.0, 0.0), sum)
        };
        return (0..count).map(at).collect();
    }
    let part = |odd: usize| halves(&numbers.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>(), sign);
    let (even, odd) = (part(0), part(1));
    let pairs = even.iter().zip(&odd).enumerate().map(|(place, (even, odd))| (*even, turned(*odd, place)));
    let (low, high) = pairs.map(|(a, b)| (sum(a, b), (a.0 - b.0, a.1 - b.1))).unzip();
    let (low, high): (Vec<Complex>, Vec<Complex>) = (low, high);
    [low, high].concat()
}

/// Transforms rows in their place.
pub(super) fn transform(asked: &Transform, bytes: &mut [u8]) {
    let number_bytes = asked.number.bytes() as usize;
    let scale = if asked.inverse { 1.0 / f64::from(asked.count) } else { 1.0 };
    for row in bytes.chunks_exact_mut(asked.row_bytes() as usize) {
        let part = |bytes: &[u8]| match asked.number {
            Number::Single => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
            Number::Double => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        };
        let numbers: Vec<Complex> = row
            .chunks_exact(2 * number_bytes)
            .map(|number| (part(&number[..number_bytes]), part(&number[number_bytes..])))
            .collect();
        let transformed = halves(&numbers, if asked.inverse { 1.0 } else { -1.0 });
        let parts = transformed.iter().flat_map(|(re, im)| [re * scale, im * scale]);
        for (to, part) in row.chunks_exact_mut(number_bytes).zip(parts) {
            match asked.number {
                Number::Single => to.copy_from_slice(&(part as f32).to_le_bytes()),
                Number::Double => to.copy_from_slice(&part.to_le_bytes()),
            }
        }
    }
}
