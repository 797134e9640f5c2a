//! Calibration: fits the parameters that a preset's table `[calibrate]` names, each to the published figure that stands beside it, and to
//! nothing else.
//!
//! What always holds: only figures marked `calibrate` are fitted to; parameters are fitted in turn, over and over, until none changes any
//! more or [`ROUNDS_MAX`] is reached; a parameter that cannot reach its figure ends at the bound of its range that comes nearest.

use crate::experiments::{EXPERIMENTS, Experiment, ExperimentError, Laboratory};
use crate::preset::Preset;
use crate::published::{self, Use};
use std::collections::BTreeMap;

/// Most rounds over all parameters.
const ROUNDS_MAX: usize = 3;
/// Most experiments for one parameter in one round.
const STEPS_MAX: usize = 14;
/// A figure that is this near counts as met.
const NEAR: f64 = 0.005;

/// One parameter's fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Path of the parameter.
    pub parameter: String,
    /// Published figure, `id.metric`.
    pub figure: String,
    /// What was published.
    pub published: f64,
    /// What the model gives with the fitted value.
    pub modelled: f64,
    /// The parameter's value before.
    pub before: f64,
    /// The fitted value.
    pub after: f64,
}

/// What each experiment's figures are named, to find the one to run.
fn experiment_of(id: &str) -> Option<&'static Experiment> {
    let name = match id {
        "willow-baseio-link" | "willow-baseio-iops" | "willow-directio" => "willow-figure4",
        "willow-directio-latency" => "willow-figure5",
        "xssd-8k" => "xssd-table4.2",
        "xssd-4k-latency" => "xssd-figure2.1",
        "willow-kv" | "xssd-kvs" => "key-value",
        "lightnvm-table1" => "lightnvm-table1",
        other => other,
    };
    EXPERIMENTS.iter().find(|experiment| experiment.id == name).copied()
}

struct Fitter<'a> {
    preset: Preset,
    seed: u64,
    say: &'a mut dyn FnMut(&str),
}

impl Fitter<'_> {
    fn model(&mut self, parameter: &str, value: f64, id: &str, metric: &str) -> Result<f64, ExperimentError> {
        let mut preset = self.preset.clone();
        preset.set_parameter(parameter, value)?;
        let mut laboratory = Laboratory::new(preset, self.seed);
        laboratory.only = Some((id.to_owned(), metric.to_owned()));
        let experiment =
            experiment_of(id).ok_or_else(|| ExperimentError::Other(format!("no experiment gives {id}.{metric}")))?;
        let found = (experiment.run)(&laboratory)?;
        let finding = found.findings.iter().find(|finding| finding.id == id && finding.metric == metric);
        let missing = || ExperimentError::Other(format!("experiment {} does not give {id}.{metric}", experiment.id));
        Ok(finding.ok_or_else(missing)?.modelled)
    }

    /// Fits one parameter: the figure rises or falls with it all the way, so that halving an interval finds it.
    fn fit(&mut self, parameter: &str, target: &str) -> Result<Fit, ExperimentError> {
        let other = |text: String| ExperimentError::Other(text);
        let (id, metric) =
            target.split_once('.').ok_or_else(|| other(format!("calibrate: \"{target}\" is not RESULT.METRIC")))?;
        let figure =
            published::figure(id, metric).ok_or_else(|| other(format!("calibrate: {target} was not published")))?;
        if figure.usage != Use::Calibrate {
            return Err(other(format!("calibrate: {target} is for use as \"{}\", not to be fitted to", figure.usage)));
        }
        let wanted = figure.value;
        let before = self.preset.parameter(parameter).ok_or_else(|| other(format!("no parameter {parameter}")))?;
        let mut best = (before, self.model(parameter, before, id, metric)?);
        let error = |modelled: f64| (modelled / wanted - 1.0).abs();
        // Threads come whole.
        let whole = parameter.ends_with("_threads");
        let (mut low, mut high) = if whole { (1.0, 64.0) } else { (0.0, (before * 8.0).max(1.0)) };
        let (at_low, at_high) = (self.model(parameter, low, id, metric)?, self.model(parameter, high, id, metric)?);
        let rises = at_high > at_low;
        for found in [(low, at_low), (high, at_high)] {
            if error(found.1) < error(best.1) {
                best = found;
            }
        }
        for _ in 0..STEPS_MAX {
            if error(best.1) < NEAR || (whole && high - low <= 1.0) {
                break;
            }
            let middle = if whole { ((low + high) / 2.0).floor() } else { (low + high) / 2.0 };
            let modelled = self.model(parameter, middle, id, metric)?;
            (self.say)(&format!("{parameter} = {middle:.1}: {target} = {modelled:.4}, published {wanted}"));
            if error(modelled) < error(best.1) {
                best = (middle, modelled);
            }
            if (modelled < wanted) == rises {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.preset.set_parameter(parameter, best.0)?;
        let after = self.preset.parameter(parameter).unwrap_or(best.0);
        Ok(Fit {
            parameter: parameter.to_owned(),
            figure: target.to_owned(),
            published: wanted,
            modelled: best.1,
            before,
            after,
        })
    }
}

/// Fits all that the preset's table `[calibrate]` names; `say` is told of each step. Returns the preset with the fitted values, and what
/// was fitted from what, in the order of fitting.
pub fn calibrate(preset: &Preset, seed: u64, say: &mut dyn FnMut(&str)) -> Result<(Preset, Vec<Fit>), ExperimentError> {
    let mut fitter = Fitter { preset: preset.clone(), seed, say };
    let mut fits: BTreeMap<usize, Fit> = BTreeMap::new();
    for _ in 0..ROUNDS_MAX {
        let mut changed = false;
        for (place, (parameter, target)) in preset.calibrate.iter().enumerate() {
            let found = fitter.fit(parameter, target)?;
            changed |= (found.after - found.before).abs() > found.before.abs() * 0.01;
            let before = fits.get(&place).map_or(found.before, |fit| fit.before);
            fits.insert(place, Fit { before, ..found });
        }
        if !changed {
            break;
        }
    }
    Ok((fitter.preset, fits.into_values().collect()))
}
