//! Exact sums of floating point numbers: all digits are kept, and rounded once at the end, so that a sum does not depend on the order in which its
//! parts come.
//!
//! What always holds: each digit is less than 2^63 in magnitude: carries are passed on before more additions than that allows.

/// Digits: of 32 bits each, from 2^-1074 on, with room above the greatest number for as many as can be added.
pub const DIGITS: usize = 68;
/// Additions after which carries are passed on.
const ADDITIONS_MAX: u32 = 1 << 29;

/// A sum.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactSum {
    digits: [i64; DIGITS],
    additions: u32,
    /// What is no finite number: their plain sum.
    other: Option<f64>,
}

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum { digits: [0; DIGITS], additions: 0, other: None }
    }
}

impl ExactSum {
    /// Encoded length.
    pub const BYTES: usize = DIGITS * 8 + 9;

    /// Adds a number.
    pub fn add(&mut self, value: f64) {
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as usize;
        if exponent == 0x7ff {
            self.other = Some(self.other.unwrap_or(0.0) + value);
            return;
        }
        let fraction = bits & ((1 << 52) - 1);
        // As an integer times 2^(place - 1074).
        let (mantissa, place) = if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) };
        let shifted = u128::from(mantissa) << (place % 32);
        let sign = if bits >> 63 == 0 { 1 } else { -1 };
        let first = place / 32;
        for (index, digit) in self.digits[first..first + 3].iter_mut().enumerate() {
            *digit += sign * i64::from((shifted >> (32 * index)) as u32);
        }
        self.additions += 1;
        if self.additions >= ADDITIONS_MAX {
            self.carry();
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &ExactSum) {
        let mut other = other.clone();
        other.carry();
        self.carry();
        for (digit, more) in self.digits.iter_mut().zip(other.digits) {
            *digit += more;
        }
        self.additions = 2;
        if let Some(value) = other.other {
            self.other = Some(self.other.unwrap_or(0.0) + value);
        }
    }

    /// Passes carries on: all digits but the last are 0 to 2^32 - 1 then.
    fn carry(&mut self) {
        let mut carry = 0;
        for digit in &mut self.digits[..DIGITS - 1] {
            let sum = *digit + carry;
            (*digit, carry) = (sum & 0xffff_ffff, sum >> 32);
        }
        self.digits[DIGITS - 1] += carry;
        self.additions = 1;
    }

    /// The number next to the sum; to the even one where two are as near.
    pub fn value(&self) -> f64 {
        if let Some(other) = self.other {
            return other;
        }
        let mut sum = self.clone();
        sum.carry();
        let is_negative = sum.digits[DIGITS - 1] < 0;
        if is_negative {
            sum.digits.iter_mut().for_each(|digit| *digit = -*digit);
            sum.carry();
        }
        let Some(top) = sum.digits.iter().rposition(|digit| *digit != 0) else { return 0.0 };
        let bit = |place: usize| sum.digits[place / 32] >> (place % 32) & 1 == 1;
        // The last digit may have more than 32 bits in no sum that can be: 2^64 of the greatest numbers fit.
        let highest = top * 32 + 31 - (sum.digits[top] as u32).leading_zeros() as usize;
        let lowest = highest.saturating_sub(52);
        let mut mantissa = (lowest..=highest).rev().fold(0u64, |value, place| value << 1 | u64::from(bit(place)));
        if lowest > 0 && bit(lowest - 1) {
            let is_more = (0..lowest - 1).any(bit);
            if is_more || mantissa & 1 == 1 {
                mantissa += 1;
            }
        }
        let mut lowest = lowest;
        if mantissa == 1 << 53 {
            (mantissa, lowest) = (1 << 52, lowest + 1);
        }
        let bits = match (mantissa >> 52 == 0, lowest) {
            (true, _) => mantissa,
            (false, lowest) if lowest + 1 >= 0x7ff => 0x7ff << 52,
            (false, lowest) => ((lowest as u64 + 1) << 52) | (mantissa & ((1 << 52) - 1)),
        };
        f64::from_bits(bits | u64::from(is_negative) << 63)
    }

    /// Appends its bytes by `put`.
    pub fn encode(&self, mut put: impl FnMut(&[u8])) {
        let mut sum = self.clone();
        sum.carry();
        for digit in sum.digits {
            put(&digit.to_le_bytes());
        }
        put(&[u8::from(sum.other.is_some())]);
        put(&sum.other.unwrap_or(0.0).to_le_bytes());
    }

    /// Of [`Self::BYTES`] bytes.
    pub fn decode(from: &[u8; Self::BYTES]) -> ExactSum {
        let mut sum = ExactSum::default();
        let number = |at: usize| {
            let bytes = from[at..at + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        for (index, digit) in sum.digits.iter_mut().enumerate() {
            // From a device: never more than what digits may be.
            *digit = number(index * 8) as i64;
            if index < DIGITS - 1 {
                *digit &= 0xffff_ffff;
            } else {
                *digit = (*digit).clamp(-(1 << 40), 1 << 40);
            }
        }
        sum.additions = 1;
        sum.other = (from[DIGITS * 8] == 1).then(|| f64::from_bits(number(DIGITS * 8 + 1)));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> f64 {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum.value()
    }

    #[test]
    fn sums_are_rounded_once() {
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(sum(&[1e308, 1e308, -1e308, -1e308, 0.5]), 0.5);
        assert_eq!(sum(&[f64::MAX, f64::MAX]), f64::INFINITY);
        assert_eq!(sum(&[f64::MAX, f64::MAX, -f64::MAX]), f64::MAX);
        assert_eq!(sum(&[f64::INFINITY, 1.0]), f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert_eq!(sum(&[5e-324, 5e-324]), 1e-323);
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0]), 1.0);
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0, 5e-324]), 1.0 + f64::EPSILON);
        assert_eq!(sum(&[-1.0, 5e-324]), -1.0);
        assert_eq!(sum(&[0.1; 10]), 1.0);
        assert_eq!(sum(&[-2.5, 1.25]), -1.25);
    }

    proptest! {
        #[test]
        fn the_order_and_the_parts_make_no_difference(
            bits in prop::collection::vec(any::<u64>(), 1..40),
            cut in any::<prop::sample::Index>(),
        ) {
            let values: Vec<f64> = bits.iter().map(|bits| f64::from_bits(*bits)).filter(|value| value.is_finite()).collect();
            let whole = sum(&values);
            let reversed: Vec<f64> = values.iter().rev().copied().collect();
            prop_assert_eq!(whole.to_bits(), sum(&reversed).to_bits());
            let cut = cut.index(values.len() + 1);
            let mut parts = [ExactSum::default(), ExactSum::default()];
            values[..cut].iter().for_each(|value| parts[0].add(*value));
            values[cut..].iter().for_each(|value| parts[1].add(*value));
            let mut bytes = Vec::new();
            parts[1].encode(|more| bytes.extend_from_slice(more));
            let read = ExactSum::decode(&bytes.try_into().expect("its length"));
            parts[0].merge(&read);
            prop_assert_eq!(whole.to_bits(), parts[0].value().to_bits());
        }

        #[test]
        fn a_pair_is_what_the_processor_adds(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_finite() && b.is_finite() && a + b != 0.0);
            prop_assert_eq!(sum(&[a, b]).to_bits(), (a + b).to_bits());
        }
    }
}
