//! Experiments run, their figures are published ones, those that parameters were fitted to are met, and report and plots are written.
//! The example workload of the documents runs.

#[path = "../examples/workload.rs"]
mod workload;

use willow_sim::experiments::{self, Experiment};
use willow_sim::published::{self, Use};
use willow_sim::reproduce;

/// Those that take no longer than a test may.
const SHORT: [&str; 4] = ["xssd-table4.2", "willow-figure5", "lightnvm-table1", "xssd-figure2.1"];

/// Most that a prediction of these experiments is off by. What they predict is not fitted to: a change that makes a prediction worse than
/// that has broken the model, or found out why it was good.
const PREDICTION_ERROR_MAX: f64 = 0.25;

/// What parameters were fitted to in experiments that take longer than a test may: `willow reproduce` says how well it is met.
const LONG: [&str; 5] = [
    "willow-baseio-link.read",
    "willow-baseio-link.write",
    "willow-baseio-iops.value",
    "xssd-kvs.io_get",
    "xssd-kvs.io_put",
];

/// Both were printed, and contradict each other by 7 %.
const CONTRADICTED: &str = "host_gb_per_s";

#[test]
fn experiments_give_what_parameters_were_fitted_to_and_are_reported() {
    let chosen: Vec<&'static Experiment> = SHORT.iter().map(|id| experiments::find(id).unwrap()).collect();
    let kept = std::env::temp_dir().join(format!("willow-experiments-{}", std::process::id()));
    let sections = reproduce::run(&chosen, None, 1, Some(&kept), &|_| ()).unwrap();
    // By the code that those have compiled and kept.
    let again = reproduce::run(&chosen, None, 1, Some(&kept), &|_| ()).unwrap();
    std::fs::remove_dir_all(&kept).unwrap();
    let rows: Vec<_> = sections.iter().flat_map(|section| section.rows()).collect();
    assert_eq!(rows, again.iter().flat_map(|section| section.rows()).collect::<Vec<_>>(), "the same again");
    assert_eq!(rows.len(), sections.iter().map(|section| section.findings.findings.len()).sum::<usize>());
    assert!(rows.len() > 10 && rows.iter().filter(|row| row.usage == Use::Check).count() >= 2);
    // What parameters were fitted to is among them, but for what `LONG` names.
    for preset in willow_sim::Preset::names().map(|name| willow_sim::Preset::load(name).unwrap()) {
        for target in preset.calibrate.values() {
            let is_run = rows.iter().any(|row| *target == format!("{}.{}", row.id, row.metric));
            assert!(is_run != LONG.contains(&target.as_str()), "{target} is met, or not: nobody looks");
        }
    }
    for row in &rows {
        assert!(row.modelled.is_finite() && row.modelled > 0.0, "{row:?}");
        if row.usage == Use::Check {
            assert!(row.error.abs() < PREDICTION_ERROR_MAX, "{row:?}");
        }
        if row.usage != Use::Check && row.metric != CONTRADICTED {
            assert!(row.error.abs() < 0.05, "{row:?}: `willow calibrate` has to be run again");
        }
    }
    let folder = std::env::temp_dir().join(format!("willow-experiments-{}", std::process::id()));
    reproduce::write(&sections, 1, &folder).unwrap();
    let report = std::fs::read_to_string(folder.join("report.md")).unwrap();
    for row in &rows {
        assert!(report.contains(&row.id) && published::figure(&row.id, &row.metric).is_some());
    }
    let plots: Vec<_> = sections.iter().flat_map(|section| &section.findings.plots).collect();
    assert!(plots.len() >= 2);
    for plot in plots {
        let png = std::fs::read(folder.join(format!("{}.png", plot.file))).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 5000);
        let svg = std::fs::read_to_string(folder.join(format!("{}.svg", plot.file))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains(&plot.title));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn only_figures_that_may_be_are_fitted_to() {
    for name in willow_sim::Preset::names() {
        let preset = willow_sim::Preset::load(name).unwrap();
        for (parameter, target) in &preset.calibrate {
            let (id, metric) = target.split_once('.').unwrap();
            let figure = published::figure(id, metric).unwrap_or_else(|| panic!("{target} was not published"));
            assert_eq!(figure.usage, Use::Calibrate, "{parameter} of {name}");
        }
    }
    let mut preset = willow_sim::Preset::load("bee3").unwrap();
    preset.calibrate.clear();
    preset.calibrate.insert("dma.set_up_ns".to_owned(), "willow-directio.read_ratio".to_owned());
    let error = willow_sim::calibrate::calibrate(&preset, 1, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("not to be fitted to"), "{error}");
}

#[test]
fn a_parameter_is_found_again() {
    let mut preset = willow_sim::Preset::load("bee3").unwrap();
    preset.calibrate.retain(|parameter, _| parameter == "dma.set_up_ns");
    preset.set_parameter("dma.set_up_ns", 100.0).unwrap();
    let (fitted, fits) = willow_sim::calibrate::calibrate(&preset, 1, &mut |_| ()).unwrap();
    assert_eq!((fits.len(), fits[0].figure.as_str()), (1, "xssd-8k.spu_dma_us"));
    assert!((fits[0].modelled / 3.4 - 1.0).abs() < 0.01, "{fits:?}");
    let value = fitted.parameter("dma.set_up_ns").unwrap();
    assert!((250.0..420.0).contains(&value), "{value}");
}

#[test]
fn the_documents_example_runs() {
    let (report, lookup_ns) = workload::run("bee3").unwrap();
    assert!(lookup_ns > 5_000 && report.workload("log", "write").unwrap().operations == 200);
    assert_eq!(workload::run("bee3").unwrap().1, lookup_ns);
    assert!(workload::run("modern-nvme").unwrap().1 < lookup_ns);
}

#[test]
fn every_file_of_an_experiment_is_in_the_list() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/experiments");
    let files = std::fs::read_dir(folder).unwrap().filter(|file| file.as_ref().unwrap().path().is_file()).count();
    // All but `mod.rs`.
    assert_eq!(experiments::EXPERIMENTS.len(), files - 1);
}
