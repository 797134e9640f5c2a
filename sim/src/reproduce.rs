//! Runs the papers' experiments and sets what the model gives beside what was printed: rows, plots, a report of one page.
//!
//! What always holds: every row says what its published figure was used for; one that is further than [`ERROR_MAX`] from a prediction is
//! told as such, never left out.

use crate::experiments::{Experiment, ExperimentError, Findings, Laboratory};
use crate::plot;
use crate::preset::Preset;
use crate::published::{self, Use};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How far a prediction may be from what was published: 15 %.
pub const ERROR_MAX: f64 = 0.15;

/// A modelled figure beside the published one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Id of the published result.
    pub id: String,
    /// Metric of it.
    pub metric: String,
    /// What was printed.
    pub published: f64,
    /// What the model gives.
    pub modelled: f64,
    /// `modelled / published - 1`.
    pub error: f64,
    /// What the published figure was used for.
    #[serde(rename = "use")]
    pub usage: Use,
}

/// An experiment that was run.
pub struct Section {
    /// Which.
    pub experiment: &'static Experiment,
    /// Preset that it ran on.
    pub preset: String,
    /// What it gave.
    pub findings: Findings,
}

impl Section {
    /// Its rows, in its order.
    pub fn rows(&self) -> Vec<Row> {
        let row = |finding: &crate::experiments::Finding| {
            let figure = published::figure(finding.id, finding.metric)?;
            Some(Row {
                id: figure.id.clone(),
                metric: figure.metric.clone(),
                published: figure.value,
                modelled: finding.modelled,
                error: finding.modelled / figure.value - 1.0,
                usage: figure.usage,
            })
        };
        self.findings.findings.iter().filter_map(row).collect()
    }
}

/// Runs experiments, on as many threads as the machine has processors; `done` is told of each that has ended. `preset`: instead of
/// their own; `kept_modules`: as [`crate::SimulationOptions::kept_modules`].
pub fn run(
    experiments: &[&'static Experiment],
    preset: Option<&Preset>,
    seed: u64,
    kept_modules: Option<&Path>,
    done: &(dyn Fn(&Experiment) + Sync),
) -> Result<Vec<Section>, ExperimentError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<Section, ExperimentError>)>> = Mutex::new(Vec::new());
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(experiment) = experiments.get(place).copied() else { return };
            let one = || {
                let preset = match preset {
                    Some(preset) => preset.clone(),
                    None => Preset::load(experiment.preset)?,
                };
                let name = preset.name.clone();
                let mut laboratory = Laboratory::new(preset, seed);
                laboratory.kept_modules = kept_modules.map(Path::to_owned);
                let findings = (experiment.run)(&laboratory)?;
                Ok(Section { experiment, preset: name, findings })
            };
            let section = one();
            done(experiment);
            results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((place, section));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(experiments.len().max(1));
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, section)| section).collect()
}

/// A number with as many digits as are worth reading.
pub fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// The report, as Markdown; plots are beside it.
pub fn report(sections: &[Section], seed: u64) -> String {
    let mut text = String::from("# The papers' results as the model predicts them\n\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "Seed {seed}. Figures marked *calibrate* were open to fitting parameters to (`willow calibrate` says which was fitted to which), those \
         marked *input* are stated by a preset, those marked *check* are predictions: nothing was fitted to them.\n"
    );
    let rows: Vec<Row> = sections.iter().flat_map(Section::rows).collect();
    let checks: Vec<&Row> = rows.iter().filter(|row| row.usage == Use::Check).collect();
    let is_met = |row: &Row| {
        let figure = published::figure(&row.id, &row.metric);
        figure.is_none_or(|figure| figure.is_met(row.modelled, ERROR_MAX))
    };
    let near = checks.iter().filter(|row| is_met(row)).count();
    let _ = writeln!(text, "{near} of {} predictions are within {:.0} %.\n", checks.len(), ERROR_MAX * 100.0);
    text.push_str("| result | metric | published | modelled | error | use | source |\n|---|---|---|---|---|---|---|\n");
    for row in &rows {
        let figure = published::figure(&row.id, &row.metric);
        let (unit, source) = figure.map_or(("", ""), |figure| (figure.unit.as_str(), figure.source.as_str()));
        let mark = if row.usage == Use::Check && !is_met(row) { " **(past 15 %)**" } else { "" };
        let _ = writeln!(
            text,
            "| {} | {} | {} {unit} | {} | {:+.1} %{mark} | {} | {source} |",
            row.id,
            row.metric,
            digits(row.published),
            digits(row.modelled),
            row.error * 100.0,
            row.usage
        );
    }
    for section in sections {
        let _ = writeln!(
            text,
            "\n## {}: {}\n\n{}; preset `{}`.\n",
            section.experiment.id, section.experiment.title, section.experiment.source, section.preset
        );
        for note in &section.findings.notes {
            let _ = writeln!(text, "- {note}");
        }
        for plot in &section.findings.plots {
            let _ = writeln!(text, "\n![{}]({}.svg)", plot.title, plot.file);
        }
    }
    text
}

/// Writes report and plots into a folder, which is made where it is missing.
pub fn write(sections: &[Section], seed: u64, folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write to {}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    for plot in sections.iter().flat_map(|section| &section.findings.plots) {
        plot::write(plot, folder)?;
    }
    std::fs::write(folder.join("report.md"), report(sections, seed)).map_err(failed)
}
