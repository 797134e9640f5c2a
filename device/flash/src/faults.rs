//! What goes wrong in flash: blocks that are bad from the factory, programs and erases that fail with wear, bits that flip with wear, age
//! and reads.
//!
//! What always holds:
//! - Everything follows from the seed, the address, the erase count and the parameters, never from the order of operations or from the
//!   machine: only additions, multiplications, divisions and square roots are used, which every machine rounds alike.
//! - A page has the same weak cells as long as it is not erased: reading it again corrects the same bits or, with age and reads, more.
//!
//! The model. With `w` the erases of the block divided by `endurance_cycles`, the probability that a raw bit is wrong is
//!
//! `fresh + worn * w^wear_exponent + (retention * age + disturb * reads / 10^6) * (unworn_share + (1 - unworn_share) * w)`
//!
//! where `age` is log2(1 + hours since programmed) over that of `retention_hours` (charge is lost fast at first: Luo et al., "Improving 3D
//! NAND Flash Memory Lifetime by Tolerating Early Retention Loss and Process Variation", 2018); reads disturb in proportion to their
//! number (Cai et al., "Read Disturb Errors in MLC NAND Flash Memory", DSN 2015). Each step of the ladder of read retries divides the
//! second line, the shift of voltages, by `retry_gain`. Errors of a codeword are drawn around the mean with the spread of independent errors.

use crate::check::{Absurd, within};
use serde::{Deserialize, Serialize};

/// Most steps of the ladder of read retries.
pub const RETRY_STEPS_MAX: u8 = 64;

/// Parameters of what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultParameters {
    /// Erases that a block is rated for.
    pub endurance_cycles: u32,
    /// Blocks that are bad from the factory, of a million.
    pub factory_bad_per_million: u32,
    /// Programs of pages that fail at the rated erases, of a billion; grows with the fourth power of wear.
    pub program_fail_per_billion: u32,
    /// Erases of blocks that fail at the rated erases, of a billion; grows with the fourth power of wear.
    pub erase_fail_per_billion: u32,
    /// Raw bit error rate of a page that was just programmed into a new block.
    pub fresh: f64,
    /// What the rated erases add.
    pub worn: f64,
    /// How it grows with wear: a power.
    pub wear_exponent: u32,
    /// What `retention_hours` add at the rated erases.
    pub retention: f64,
    /// Hours for which `retention` is given.
    pub retention_hours: u32,
    /// What a million reads of the block add at the rated erases.
    pub disturb: f64,
    /// Part of the shift by age and reads that a new block has as well.
    pub unworn_share: f64,
    /// Bytes of a codeword.
    pub codeword_bytes: u32,
    /// Bits that the ECC corrects in a codeword.
    pub correctable_bits: u16,
    /// Steps of the ladder of read retries.
    pub retry_steps: u8,
    /// What each step divides the shift of voltages by.
    pub retry_gain: f64,
    /// Whether a power cut while an upper page is programmed loses the lower page in the same cells.
    pub paired_page_loss: bool,
    /// Whether the controller gathers the pages of a word line in a buffer that outlives the power (capacitors), so that each page is done by
    /// itself; otherwise they wait in the die's latches, and a power cut loses them. TLC alone.
    pub word_line_buffer: bool,
}

impl FaultParameters {
    /// Flash in which nothing goes wrong but what is done to it.
    pub const NONE: FaultParameters = FaultParameters {
        endurance_cycles: u32::MAX,
        factory_bad_per_million: 0,
        program_fail_per_billion: 0,
        erase_fail_per_billion: 0,
        fresh: 0.0,
        worn: 0.0,
        wear_exponent: 1,
        retention: 0.0,
        retention_hours: 1,
        disturb: 0.0,
        unworn_share: 0.0,
        codeword_bytes: 1024,
        correctable_bits: 0,
        retry_steps: 0,
        retry_gain: 1.0,
        paired_page_loss: true,
        word_line_buffer: false,
    };

    /// Checks all values; the error names the field, its value and what was expected.
    pub fn validate(&self, page_bytes: u32) -> Result<(), Absurd> {
        within("endurance_cycles", self.endurance_cycles, 1..=u32::MAX, "erases")?;
        within("factory_bad_per_million", self.factory_bad_per_million, 0..=500_000, "of a million")?;
        within("program_fail_per_billion", self.program_fail_per_billion, 0..=1_000_000_000, "of a billion")?;
        within("erase_fail_per_billion", self.erase_fail_per_billion, 0..=1_000_000_000, "of a billion")?;
        within("fresh", self.fresh, 0.0..=0.5, "errors a bit")?;
        within("worn", self.worn, 0.0..=0.5, "errors a bit")?;
        within("wear_exponent", self.wear_exponent, 1..=16, "")?;
        within("retention", self.retention, 0.0..=0.5, "errors a bit")?;
        within("retention_hours", self.retention_hours, 1..=1_000_000, "hours")?;
        within("disturb", self.disturb, 0.0..=0.5, "errors a bit")?;
        within("unworn_share", self.unworn_share, 0.0..=1.0, "")?;
        within("codeword_bytes", self.codeword_bytes, 128..=page_bytes, "bytes")?;
        if !page_bytes.is_multiple_of(self.codeword_bytes) {
            return Err(Absurd::new("codeword_bytes", self.codeword_bytes, "a divisor of page_bytes"));
        }
        within("correctable_bits", self.correctable_bits, 0..=4096, "bits")?;
        within("retry_steps", self.retry_steps, 0..=RETRY_STEPS_MAX, "steps")?;
        within("retry_gain", self.retry_gain, 1.0..=1000.0, "")?;
        let mean = self.fresh * f64::from(self.codeword_bytes) * 8.0;
        if mean > f64::from(self.correctable_bits) {
            let expected = "at least the errors of a new codeword, so that anything can be read";
            return Err(Absurd::new("correctable_bits", self.correctable_bits, expected));
        }
        Ok(())
    }
}

/// What a draw is for, so that draws for different things are independent.
#[derive(Clone, Copy)]
enum Draw {
    FactoryBad = 1,
    Program,
    Erase,
    Bits,
    Undefined,
}

/// What a page of a block shows whose erasing was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undefined {
    /// All ones.
    LooksErased,
    /// Nothing.
    Unreadable,
    /// What it showed before.
    AsBefore,
}

/// The errors that a read meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitErrors {
    /// Bits of the worst codeword, at the step that ended it.
    pub worst_bits: u16,
    /// Steps that were taken.
    pub retries: u8,
    /// Whether the ECC corrected all codewords.
    pub correctable: bool,
}

/// What a page has gone through.
#[derive(Clone, Copy, Debug)]
pub struct PageHistory {
    /// Die and block as one number.
    pub block: u64,
    /// Page of the block.
    pub page: u32,
    /// Erases of the block.
    pub erase_count: u32,
    /// Reads of the block since it was erased.
    pub reads: u32,
    /// Seconds since it was programmed.
    pub age_s: u32,
}

/// The model for one medium.
#[derive(Clone, Debug)]
pub struct Faults {
    parameters: FaultParameters,
    seed: u64,
    codeword_bits: f64,
    retention_scale: f64,
    any_bits: bool,
    any_failures: bool,
}

impl Faults {
    /// The model for a seed; the parameters are validated.
    pub fn new(parameters: &FaultParameters, seed: u64) -> Faults {
        let p = parameters;
        Faults {
            seed,
            codeword_bits: f64::from(p.codeword_bytes) * 8.0,
            retention_scale: p.retention / log2(1.0 + f64::from(p.retention_hours)),
            any_bits: p.fresh + p.worn + p.retention + p.disturb > 0.0,
            any_failures: p.program_fail_per_billion + p.erase_fail_per_billion > 0,
            parameters: *p,
        }
    }

    /// The parameters.
    pub fn parameters(&self) -> &FaultParameters {
        &self.parameters
    }

    /// Whether a block is bad from the factory.
    pub fn factory_bad(&self, block: u64) -> bool {
        let drawn = self.draw(Draw::FactoryBad, block, 0, 0);
        below(drawn, f64::from(self.parameters.factory_bad_per_million) / 1e6)
    }

    /// Whether programming a page of a block fails.
    #[inline]
    pub fn program_fails(&self, block: u64, page: u32, erase_count: u32) -> bool {
        self.any_failures
            && below(
                self.draw(Draw::Program, block, page, erase_count),
                self.failure(self.parameters.program_fail_per_billion, erase_count),
            )
    }

    /// Whether the next erase of a block fails.
    #[inline]
    pub fn erase_fails(&self, block: u64, erase_count: u32) -> bool {
        self.any_failures
            && below(
                self.draw(Draw::Erase, block, 0, erase_count),
                self.failure(self.parameters.erase_fail_per_billion, erase_count),
            )
    }

    /// What a page of a block shows whose erasing was interrupted.
    pub fn undefined(&self, block: u64, page: u32, erase_count: u32) -> Undefined {
        match self.draw(Draw::Undefined, block, page, erase_count) % 3 {
            0 => Undefined::LooksErased,
            1 => Undefined::Unreadable,
            _ => Undefined::AsBefore,
        }
    }

    fn failure(&self, per_billion: u32, erase_count: u32) -> f64 {
        f64::from(per_billion) / 1e9 * power(self.wear(erase_count), 4)
    }

    fn wear(&self, erase_count: u32) -> f64 {
        f64::from(erase_count) / f64::from(self.parameters.endurance_cycles)
    }

    /// What a read of some codewords (first, and one past the last) of a page meets.
    #[inline]
    pub fn bit_errors(&self, history: &PageHistory, codewords: (u32, u32)) -> BitErrors {
        if !self.any_bits {
            return BitErrors { worst_bits: 0, retries: 0, correctable: true };
        }
        self.drawn_bit_errors(history, codewords)
    }

    fn drawn_bit_errors(&self, history: &PageHistory, codewords: (u32, u32)) -> BitErrors {
        let p = &self.parameters;
        let wear = self.wear(history.erase_count);
        let steady = p.fresh + p.worn * power(wear, p.wear_exponent);
        let age = log2(1.0 + f64::from(history.age_s) / 3600.0);
        let shift = (self.retention_scale * age + p.disturb * f64::from(history.reads) / 1e6)
            * (p.unworn_share + (1.0 - p.unworn_share) * wear);
        let mut left = shift;
        for retries in 0..=p.retry_steps {
            let worst_bits = self.worst(history, codewords, steady + left);
            if worst_bits <= p.correctable_bits || retries == p.retry_steps {
                return BitErrors { worst_bits, retries, correctable: worst_bits <= p.correctable_bits };
            }
            left /= p.retry_gain;
        }
        unreachable!("the last step returns")
    }

    /// Errors of the worst codeword at a rate.
    fn worst(&self, history: &PageHistory, (first, end): (u32, u32), rate: f64) -> u16 {
        let mean = rate.min(0.5) * self.codeword_bits;
        let spread = mean.sqrt();
        // The draw below is at most 8 away from the mean: no codeword can have an error.
        if mean + 8.0 * spread < 0.5 {
            return 0;
        }
        let page = self.draw(Draw::Bits, history.block, history.page, history.erase_count);
        // Ones of 64 random bits: a binomial with mean 32 and deviation 4, close to the normal distribution of many independent errors.
        let most = (first..end).map(|codeword| mix(page ^ u64::from(codeword)).count_ones()).max().unwrap_or(32);
        let errors = mean + spread * (f64::from(most) - 32.0) / 4.0;
        errors.round().clamp(0.0, 65_535.0) as u16
    }

    #[inline]
    fn draw(&self, draw: Draw, block: u64, page: u32, erase_count: u32) -> u64 {
        let place = (block << 20) ^ u64::from(page);
        mix(mix(self.seed ^ ((draw as u64) << 56) ^ place).wrapping_add(u64::from(erase_count)))
    }
}

/// SplitMix64's finaliser, over a step of its sequence.
#[inline]
fn mix(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// True for a part of all draws.
fn below(drawn: u64, probability: f64) -> bool {
    // 53 bits are what a float holds exactly.
    ((drawn >> 11) as f64) < probability * (1u64 << 53) as f64
}

fn power(base: f64, exponent: u32) -> f64 {
    (0..exponent).fold(1.0, |product, _| product * base)
}

/// Logarithm to base 2 of a number from 1: exact at powers of two, straight between them. The machine's own differs from one to another.
fn log2(of: f64) -> f64 {
    let bits = of.to_bits();
    let exponent = ((bits >> 52) & 0x7FF) as i32 - 1023;
    let fraction = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52)) - 1.0;
    f64::from(exponent) + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worn_mlc() -> FaultParameters {
        FaultParameters {
            endurance_cycles: 3000,
            factory_bad_per_million: 5000,
            program_fail_per_billion: 1_000_000,
            erase_fail_per_billion: 5_000_000,
            fresh: 1e-6,
            worn: 4e-4,
            wear_exponent: 2,
            retention: 8e-3,
            retention_hours: 8760,
            disturb: 1e-3,
            unworn_share: 0.1,
            codeword_bytes: 1024,
            correctable_bits: 40,
            retry_steps: 6,
            retry_gain: 1.5,
            paired_page_loss: true,
            word_line_buffer: false,
        }
    }

    fn errors(erase_count: u32, reads: u32, age_s: u32) -> BitErrors {
        let faults = Faults::new(&worn_mlc(), 7);
        faults.bit_errors(&PageHistory { block: 5, page: 3, erase_count, reads, age_s }, (0, 8))
    }

    #[test]
    fn errors_grow_with_wear_age_and_reads_and_the_ladder_corrects_until_it_ends() {
        assert_eq!(errors(0, 0, 0), BitErrors { worst_bits: 0, retries: 0, correctable: true });
        let year_s = 8760 * 3600;
        let by_age: Vec<BitErrors> = [0, 3600, 86_400, year_s].map(|age| errors(3000, 0, age)).to_vec();
        let effort: Vec<(u8, u16)> = by_age.iter().map(|errors| (errors.retries, errors.worst_bits)).collect();
        assert!(effort[..3].is_sorted(), "{effort:?}");
        assert!(by_age[3].retries > by_age[0].retries && by_age[3].correctable, "{by_age:?}");
        assert!(errors(3000, 4_000_000, year_s).retries > by_age[3].retries);
        assert!(!errors(15_000, 0, year_s).correctable, "wear itself is nothing that a retry mends");
        let again = errors(3000, 0, year_s);
        assert_eq!(again, by_age[3], "the same page has the same errors");
    }

    #[test]
    fn failures_come_as_often_as_the_parameters_say() {
        let faults = Faults::new(&worn_mlc(), 99);
        let bad = (0..1_000_000).filter(|block| faults.factory_bad(*block)).count();
        assert!((4700..5300).contains(&bad), "{bad}");
        let programs = |count| (0..1_000_000).filter(|block| faults.program_fails(*block, 1, count)).count();
        assert_eq!(programs(0), 0);
        assert!((850..1150).contains(&programs(3000)), "{}", programs(3000));
        assert!((15_000..17_000).contains(&programs(6000)), "16 times as often at twice the wear: {}", programs(6000));
        let erases = (0..1_000_000).filter(|block| faults.erase_fails(*block, 3000)).count();
        assert!((4700..5300).contains(&erases), "{erases}");
    }

    #[test]
    fn errors_are_spread_around_their_mean() {
        let faults = Faults::new(&worn_mlc(), 3);
        let mut sum = 0.0;
        let mut squares = 0.0;
        let pages = 20_000;
        for page in 0..pages {
            let history = PageHistory { block: 1, page, erase_count: 6000, reads: 0, age_s: 0 };
            let bits = f64::from(faults.worst(&history, (0, 1), 1.6e-3));
            sum += bits;
            squares += bits * bits;
        }
        let (mean, expected) = (sum / f64::from(pages), 1.6e-3 * 8192.0);
        let variance = squares / f64::from(pages) - mean * mean;
        assert!((mean - expected).abs() < 0.15, "{mean} for {expected}");
        assert!((variance / expected - 1.0).abs() < 0.1, "{variance} for {expected}");
    }

    #[test]
    fn the_logarithm_is_exact_at_powers_of_two_and_close_between() {
        for of in 1..100_000u32 {
            let (ours, exact) = (log2(f64::from(of)), f64::from(of).log2());
            assert!((ours - exact).abs() < 0.0861, "{of}");
        }
        assert_eq!(log2(1024.0), 10.0);
    }
}
