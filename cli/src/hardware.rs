//! Modelled hardware as `willow stat` shows it: resources, media, energy, and whether this machine keeps up with it.

use crate::size::Size;
use crate::table::{Table, grouped};
use willow_device::model::ModelStatistics;
use willow_device::punctuality::ClockStatistics;

/// The tables.
pub fn render(model: Option<&ModelStatistics>, clock: Option<&ClockStatistics>) -> String {
    let mut text = String::new();
    if let Some(clock) = clock {
        text.push_str(&format!("\nreal clock: {}\n", clock.statement));
        if clock.seconds_behind > 0 {
            let (behind, seconds) = (grouped(clock.seconds_behind), grouped(clock.seconds));
            text.push_str(&format!("in {behind} of {seconds} seconds with completions this machine did not keep up\n"));
        }
    }
    let Some(model) = model else { return text };
    let mut resources = Table::new(&["resource", "utilization", "operations", "bytes", "mean wait us"]);
    for resource in model.resources.iter().filter(|resource| resource.operations > 0) {
        let wait_us = resource.waited_ns as f64 / resource.operations as f64 / 1000.0;
        resources.row([
            resource.name.clone(),
            format!("{:.1} %", resource.utilization(model.now_ns) * 100.0),
            grouped(resource.operations),
            Size(resource.bytes).to_string(),
            format!("{wait_us:.2}"),
        ]);
    }
    let headings =
        ["media of SPU", "read", "written", "row hits", "misses", "written back", "gap moves", "most writes of a line"];
    let mut media = Table::new(&headings);
    for (spu, of) in model.media.iter().enumerate() {
        media.row([
            spu.to_string(),
            Size(of.read_bytes).to_string(),
            Size(of.written_bytes).to_string(),
            grouped(of.row_hits),
            grouped(of.row_misses),
            grouped(of.row_write_backs),
            grouped(of.gap_moves),
            grouped(of.wear.line_writes_max),
        ]);
    }
    let mut energy = Table::new(&["energy of", "joules"]);
    for part in &model.energy {
        energy.row([part.name.clone(), format!("{:.6}", part.joules)]);
    }
    energy.row(["all".to_owned(), format!("{:.6}", model.joules())]);
    for table in [resources, media, energy] {
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use willow_device::model::statistics::{ComponentEnergy, MediaStatistics, ResourceStatistics};

    #[test]
    fn resources_energy_and_punctuality_are_shown() {
        let resource = |name: &str, operations| ResourceStatistics {
            name: name.to_owned(),
            busy_ns: 250,
            operations,
            bytes: 4096,
            waited_ns: 3000,
        };
        let model = ModelStatistics {
            now_ns: 1000,
            resources: vec![resource("ring", 2), resource("SPU 7 processor", 0)],
            media: vec![MediaStatistics { gap_moves: 17, ..MediaStatistics::default() }],
            suspensions: 0,
            energy: vec![ComponentEnergy { name: "link".to_owned(), joules: 0.5 }],
        };
        let clock = ClockStatistics {
            statement: "on time".to_owned(),
            seconds: 9,
            seconds_behind: 2,
            ..ClockStatistics::default()
        };
        let text = render(Some(&model), Some(&clock));
        for part in ["real clock: on time", "2 of 9 seconds", "ring", "25.0 %", "1.50", "17", "0.500000"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("SPU 7"), "what has done nothing is left out");
        assert_eq!(render(None, None), "");
    }
}
