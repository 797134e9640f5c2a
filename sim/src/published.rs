//! The figures that the papers printed (sim/published.toml).

use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// What a figure may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// A parameter may be fitted to it.
    Calibrate,
    /// The model predicts it.
    Check,
    /// A preset states it.
    Input,
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Use::Calibrate => "calibrate",
            Use::Check => "check",
            Use::Input => "input",
        })
    }
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Result that it belongs to.
    pub id: String,
    /// Which of the result's figures.
    pub metric: String,
    /// What was printed.
    pub value: f64,
    /// In what unit; empty: a ratio.
    pub unit: String,
    /// What for.
    #[serde(rename = "use")]
    pub usage: Use,
    /// True where less is as good: the figure is a bound.
    #[serde(default)]
    pub at_most: bool,
    /// Paper and place.
    pub source: String,
    /// What it is of.
    pub what: String,
}

#[derive(Deserialize)]
struct File {
    figure: Vec<Figure>,
}

/// All figures, in the file's order.
pub fn figures() -> &'static [Figure] {
    static FIGURES: OnceLock<Vec<Figure>> = OnceLock::new();
    FIGURES.get_or_init(|| match toml::from_str::<File>(include_str!("../published.toml")) {
        Ok(file) => file.figure,
        // The file is part of the program, and a test reads it.
        Err(error) => unreachable!("sim/published.toml: {error}"),
    })
}

impl Figure {
    /// True where a prediction is at most so far away from it.
    pub fn is_met(&self, modelled: f64, error_max: f64) -> bool {
        let error = modelled / self.value - 1.0;
        if self.at_most { error <= error_max } else { error.abs() <= error_max }
    }
}

/// The figure of that name.
pub fn figure(id: &str, metric: &str) -> Option<&'static Figure> {
    figures().iter().find(|figure| figure.id == id && figure.metric == metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_there_once() {
        let mut names: Vec<_> = figures().iter().map(|figure| (&figure.id, &figure.metric)).collect();
        assert!(names.len() > 20);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), figures().len());
        assert_eq!(
            figure("xssd-8k", "host_us").map(|figure| (figure.value, figure.usage)),
            Some((11.2, Use::Calibrate))
        );
        assert!(figures().iter().all(|figure| figure.value > 0.0 && !figure.source.is_empty()));
    }
}
