//! `willow reproduce` and `willow calibrate`: the papers' results as the model predicts them, and what its parameters were fitted to.

use crate::failure::{Failure, Outcome, fail};
use crate::output;
use crate::table::Table;
use std::path::PathBuf;
use willow_sim::Preset;
use willow_sim::experiments::{self, EXPERIMENTS, Experiment};
use willow_sim::published;
use willow_sim::reproduce::{self, Row, digits};

/// Flags of `willow reproduce`.
#[derive(Debug, clap::Args)]
pub struct ReproduceOptions {
    /// `list`, `all`, or names of experiments
    #[arg(default_value = "list", value_name = "list|all|ID")]
    pub what: Vec<String>,
    /// Run on this preset instead of the experiments' own
    #[arg(long)]
    pub preset: Option<String>,
    /// Folder for plots and report
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON array of {id, metric, published, modelled, error, use}
    #[arg(long)]
    pub json: bool,
}

fn list(json: bool) -> Outcome<()> {
    if json {
        let of = |experiment: &&Experiment| {
            serde_json::json!({
                "id": experiment.id, "title": experiment.title, "source": experiment.source, "preset": experiment.preset,
            })
        };
        return output::json(&EXPERIMENTS.iter().map(of).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["experiment", "shows", "source", "preset"]);
    for experiment in EXPERIMENTS {
        let cells = [experiment.id, experiment.title, experiment.source, experiment.preset];
        table.row(cells.map(str::to_owned));
    }
    output::text(&table.render())
}

/// Runs it.
pub fn run(options: &ReproduceOptions) -> Outcome<()> {
    let chosen: Vec<&'static Experiment> = match options.what.iter().map(String::as_str).collect::<Vec<_>>().as_slice()
    {
        ["list"] => return list(options.json),
        ["all"] => EXPERIMENTS.to_vec(),
        ids => {
            let mut chosen = Vec::new();
            for id in ids {
                match experiments::find(id) {
                    Some(experiment) => chosen.push(experiment),
                    None => fail!("there is no experiment \"{id}\": `willow reproduce list` shows all"),
                }
            }
            chosen
        }
    };
    let preset = options.preset.as_deref().map(Preset::load).transpose().map_err(Failure::new)?;
    let bar = crate::progress::bar(chosen.len() as u64, "experiments", options.json);
    let kept = crate::modules::by_default();
    let sections = reproduce::run(&chosen, preset.as_ref(), options.seed, kept.as_deref(), &|_| bar.inc(1))
        .map_err(Failure::new)?;
    bar.finish_and_clear();
    if let Some(folder) = &options.out {
        reproduce::write(&sections, options.seed, folder).map_err(Failure::new)?;
    }
    let rows: Vec<Row> = sections.iter().flat_map(|section| section.rows()).collect();
    if options.json {
        return output::json(&rows);
    }
    let mut table = Table::new(&["result", "metric", "published", "modelled", "error %", "use", "unit"]);
    for row in &rows {
        let unit = published::figure(&row.id, &row.metric).map_or("", |figure| figure.unit.as_str());
        table.row([
            row.id.clone(),
            row.metric.clone(),
            digits(row.published),
            digits(row.modelled),
            format!("{:+.1}", row.error * 100.0),
            row.usage.to_string(),
            unit.to_owned(),
        ]);
    }
    output::text(&table.render())?;
    for section in &sections {
        output::line(&format!(
            "\n{}: {} ({})",
            section.experiment.id, section.experiment.title, section.experiment.source
        ))?;
        for note in &section.findings.notes {
            output::line(&format!("  {note}"))?;
        }
    }
    if let Some(folder) = &options.out {
        output::line(&format!("\nreport.md and the plots are in {}", folder.display()))?;
    }
    Ok(())
}

/// Flags of `willow calibrate`.
#[derive(Debug, clap::Args)]
pub struct CalibrateOptions {
    /// The preset whose table [calibrate] says what is fitted to what
    #[arg(long, default_value = "bee3")]
    pub preset: String,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// Fits, and prints what was fitted from what.
pub fn calibrate(options: &CalibrateOptions) -> Outcome<()> {
    let preset = Preset::load(&options.preset).map_err(Failure::new)?;
    if preset.calibrate.is_empty() {
        fail!("preset {} has no table [calibrate] that says what is fitted to what", options.preset);
    }
    let bar = crate::progress::bar(0, "calibrating", options.json);
    let (_, fits) = willow_sim::calibrate::calibrate(&preset, options.seed, &mut |step| {
        bar.inc(1);
        tracing::info!("{step}");
    })
    .map_err(Failure::new)?;
    bar.finish_and_clear();
    if options.json {
        let of = |fit: &willow_sim::calibrate::Fit| {
            serde_json::json!({
                "parameter": fit.parameter, "figure": fit.figure, "published": fit.published, "modelled": fit.modelled,
                "before": fit.before, "after": fit.after,
            })
        };
        return output::json(&fits.iter().map(of).collect::<Vec<_>>());
    }
    let mut table = Table::new(&["parameter", "in the preset", "fitted", "to", "published", "modelled"]);
    for fit in &fits {
        table.row([
            fit.parameter.clone(),
            digits(fit.before),
            digits(fit.after),
            fit.figure.clone(),
            digits(fit.published),
            digits(fit.modelled),
        ]);
    }
    output::text(&table.render())?;
    output::line(
        "Figures that are not named here were not used. To keep the values, write them into the preset's file.",
    )
}
