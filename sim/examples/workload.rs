//! A workload in a few lines: two threads that look records up in an index of two levels, beside a stream of writes.
//!
//! `cargo run --package willow-sim --example workload`

use willow_sim::random::Random;
use willow_sim::{BlockWorkload, Path, Preset, Report, Simulation, SimulationError, SimulationOptions};

/// Runs it; returns the report and the mean time of a look-up, nanoseconds.
pub fn run(preset: &str) -> Result<(Report, u64), Box<dyn std::error::Error>> {
    let mut simulation = Simulation::new(&SimulationOptions::new(Preset::load(preset)?))?;
    let mut outputs = Vec::new();
    for number in 0..2 {
        let mut random = Random(7).part(number);
        let output = simulation.host_thread(&format!("look-up {number}"), |thread| async move {
            let began_ns = thread.now_ns();
            for _ in 0..100 {
                // An inner node, then a leaf that it points to; 300 ns to search each.
                thread.read(Path::User, random.below(16) * 4096, 4096).await?;
                thread.compute(300, "search").await;
                thread.read(Path::User, (16 + random.below(4096)) * 4096, 4096).await?;
                thread.compute(300, "search").await;
            }
            Ok::<u64, willow_host::HreError>((thread.now_ns() - began_ns) / 100)
        })?;
        outputs.push(output);
    }
    let writes = BlockWorkload {
        name: "log".to_owned(),
        path: Path::File,
        bytes: 16384,
        read_percent: 0,
        sequential: true,
        operations: Some(200),
        ..BlockWorkload::default()
    };
    let broken = |what| SimulationError::Workload { workload: "log".to_owned(), what };
    let (generator, source) = writes.generator().map_err(broken)?;
    simulation.generator(generator, source)?;
    let report = simulation.run()?;
    let mut sum_ns = 0;
    for output in &outputs {
        sum_ns += output.take().ok_or("a thread did not end")??;
    }
    Ok((report, sum_ns / outputs.len() as u64))
}

#[allow(dead_code)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (report, lookup_ns) = run("bee3")?;
    println!("a look-up takes {:.2} us", lookup_ns as f64 / 1000.0);
    for row in &report.workloads {
        println!("{}: {:.0} MB/s, p99 {} ns", row.name, row.bytes_per_second / 1e6, row.latency.p99_ns);
    }
    for resource in report.resources.iter().filter(|resource| resource.utilization > 0.05) {
        println!("{}: used {:.0} %", resource.name, resource.utilization * 100.0);
    }
    Ok(())
}
