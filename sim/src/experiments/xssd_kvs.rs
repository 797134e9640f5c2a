//! XSSD, section 4.4: the key-value store in its three versions, by chain length and by mix, with the energy of a million operations.
//!
//! IO and RPC are those of the experiment `key-value`, which says how they are modelled and finds the published rates; HW is the same app's steps
//! by a state machine ([`Laboratory::in_hardware`]). MemcacheDB's processor time is in all three.
//!
//! What always holds: nothing is fitted here.

use super::key_value::chains::{self, Operation};
use super::key_value::{Measured, Version, measure};
use super::{Drawing, Experiment, ExperimentError, Findings, Laboratory, Plot, Series};
use crate::host::Path;

/// See the module.
pub const EXPERIMENT: Experiment = Experiment {
    id: "xssd-kvs",
    title: "gets, puts, deletes and their energy by the host, by SPUs and by hardware; chains of up to 32 pairs",
    source: "XSSD 4.4",
    preset: "bee3",
    run,
};

const THREADS: u64 = 16;
/// Pairs of a chain up to the one that is wanted.
const LENGTHS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Puts in a hundred: gets alone, both mixes of Willow's, puts alone.
const MIXES: [u64; 4] = [0, 5, 50, 100];

fn run(laboratory: &Laboratory) -> Result<Findings, ExperimentError> {
    let mut findings = Findings::default();
    let hardware = laboratory.in_hardware()?;
    let names = ["KVS-IO", "KVS-RPC", "KVS-HW"];
    let host = |length| Version::Host(Path::User, length);
    let lines = |points: [Vec<(f64, f64)>; 3]| -> Vec<Series> {
        let line = |(name, points): (&str, Vec<(f64, f64)>)| Series { name: name.to_owned(), points, published: false };
        names.into_iter().zip(points).map(line).collect()
    };
    let (mut rates, mut energies) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for percent in MIXES {
        let measured = [
            measure(laboratory, host(1), percent, THREADS)?,
            measure(laboratory, Version::Device, percent, THREADS)?,
            measure(&hardware, Version::Device, percent, THREADS)?,
        ];
        let told: Vec<String> = names.into_iter().zip(&measured).map(tell).collect();
        findings.notes.push(format!("{percent} puts in a hundred, {THREADS} threads: {}.", told.join("; ")));
        for (at, Measured { rate, joules, .. }) in measured.into_iter().enumerate() {
            rates[at].push((percent as f64, rate / 1000.0));
            energies[at].push((percent as f64, joules * 1e6));
        }
    }
    let mut by_length = Vec::new();
    for operation in [Operation::Get, Operation::Put, Operation::Delete] {
        let mut points = [const { Vec::new() }; 3];
        for length in LENGTHS {
            let measured = [
                chains::measure(laboratory, (false, operation), length, THREADS)?,
                chains::measure(laboratory, (true, operation), length, THREADS)?,
                chains::measure(&hardware, (true, operation), length, THREADS)?,
            ];
            let told: Vec<String> = names.into_iter().zip(&measured).map(tell).collect();
            findings.notes.push(format!("{operation:?}, through a chain of {length}: {}.", told.join("; ")));
            (points.iter_mut().zip(measured)).for_each(|(points, it)| points.push((length as f64, it.rate / 1000.0)));
        }
        by_length.push(points);
    }
    let [gets, puts, deletes] = by_length.try_into().unwrap_or_default();
    for (file, title, x, y, series, log_x) in [
        ("xssd-kvs-mixes", "gets and puts mixed, 16 threads", "puts in a hundred", "thousand a second", rates, false),
        ("xssd-kvs-energy", "energy of a million operations", "puts in a hundred", "J", energies, false),
        ("xssd-kvs-chains", "gets by chain length", "pairs up to the one wanted", "thousand a second", gets, true),
        ("xssd-kvs-put-chains", "puts by chain length", "pairs up to the one wanted", "thousand a second", puts, true),
        (
            "xssd-kvs-delete-chains",
            "deletes by chain length",
            "pairs up to the one wanted",
            "thousand a second",
            deletes,
            true,
        ),
    ] {
        findings.plots.push(Plot {
            file,
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            drawing: Drawing::Lines { series: lines(series), log_x, log_y: false },
        });
    }
    findings.notes.push(
        "The published rates are set beside the model's in the experiment key-value. No delete is among them. A delete of the host version takes BerkeleyDB's processor time of a \
         put, which is calibrated, and the write of the element that points behind it; both are ours. In the device puts and deletes are the app's own, safe over power cuts."
            .to_owned(),
    );
    findings.notes.push(super::HARDWARE_NOTE.to_owned());
    Ok(findings)
}

/// Rate, energy of a million, and that times their time.
fn tell((name, measured): (&str, &Measured)) -> String {
    let (million_s, million_j) = (1e6 / measured.rate, measured.joules * 1e6);
    format!(
        "{name} {:.0} thousand a second, {million_j:.0} J and {:.0} Js a million",
        measured.rate / 1000.0,
        million_j * million_s
    )
}
