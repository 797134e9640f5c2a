//! Published closed forms for the write amplification of uniform random writes, which measured figures are compared with.
//!
//! P. Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012: equation 4 for cleaning in the order of writing (LRU), equation 12 for greedy
//! cleaning. `alpha` is physical by logical pages (1 + over-provisioning), free blocks not counted.

/// Turns of the iteration that the Lambert function is computed with.
const TURNS_MAX: u32 = 10_000;

/// Without the standard library there is no exponential function: by halving the argument and squaring the series' sum.
fn exponential(x: f64) -> f64 {
    let mut halvings = 0;
    let mut small = x;
    while !(-0.01..=0.01).contains(&small) {
        small /= 2.0;
        halvings += 1;
    }
    let mut term = 1.0;
    let mut sum = 1.0;
    for power in 1..12 {
        term *= small / f64::from(power);
        sum += term;
    }
    for _ in 0..halvings {
        sum *= sum;
    }
    sum
}

/// Equation 4: `alpha / (alpha + W(-alpha * exp(-alpha)))`, W the principal branch of the Lambert function.
pub fn in_order(alpha: f64) -> f64 {
    // With u = -W / alpha, the share of valid pages in a block that is cleaned: u = exp(-alpha * (1 - u)).
    let mut u = 0.0;
    for _ in 0..TURNS_MAX {
        let next = exponential(-alpha * (1.0 - u));
        let change = next - u;
        u = next;
        if change < 1e-15 {
            break;
        }
    }
    1.0 / (1.0 - u)
}

/// Equation 12: greedy cleaning with that many pages in a block.
pub fn greedy(alpha: f64, pages_per_block: f64) -> f64 {
    let k = 1.0 + 1.0 / (2.0 * pages_per_block);
    in_order(k * alpha) / k
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_form_holds_known_values() {
        // Xiang and Kurkoski, "An Improved Analytic Expression for Write Amplification in NAND Flash", arXiv 1110.4245, abstract: 2.36
        // at an over-provisioning factor of 0.3, where many pages are in a block.
        assert!((in_order(1.3) - 2.36).abs() < 0.01, "{}", in_order(1.3));
        assert!((greedy(1.3, 1e9) - in_order(1.3)).abs() < 1e-6);
        assert!(greedy(1.3, 32.0) < in_order(1.3));
        assert!((exponential(-3.5) - (-3.5f64).exp()).abs() < 1e-12);
        // The fixed point solves the equation.
        for alpha in [1.07, 1.15, 1.28] {
            let u = 1.0 - 1.0 / in_order(alpha);
            assert!(((-alpha * (1.0 - u)).exp() - u).abs() < 1e-9);
        }
    }
}
