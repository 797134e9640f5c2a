//! Loads a target with block commands from one thread: `load ADDRESS read|write DEPTH BYTES SECONDS`. Prints commands a second,
//! bandwidth and the median and 99th percentile of latency. For comparisons while working on the target; `willow bench` is
//! the measurement that counts.

use std::time::{Duration, Instant};

use willow_host::Options;
use willow_host::nvme_tcp::Transfer;
use willow_host::nvme_tcp::polled::PolledController;
use willow_nvme::config::NQN_DEFAULT;
use willow_wire::spec::{SubmissionEntry, opcode::nvm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |place: usize, default: &str| arguments.get(place).cloned().unwrap_or_else(|| default.to_owned());
    let mut options = Options::new(argument(1, "127.0.0.1:4420").parse()?, NQN_DEFAULT);
    let write = argument(2, "read") == "write";
    options.depth = argument(3, "32").parse()?;
    let bytes: usize = argument(4, "4096").parse()?;
    let seconds: u64 = argument(5, "3").parse()?;
    let mut controller = PolledController::connect(&options)?;
    let mut queue = controller.open_queue()?;
    let blocks = (bytes / 4096) as u64;
    let places = (200u64 << 20) / bytes as u64;
    let mut state = 88172645463325252u64;
    let mut entry = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        SubmissionEntry::new(if write { nvm::WRITE } else { nvm::READ })
            .with_nsid(1)
            .with_lba(state % places * blocks)
            .with_cdw(12, blocks as u32 - 1)
    };
    let transfer = |buffer| if write { Transfer::ToController(buffer) } else { Transfer::FromController(buffer) };
    let mut begun = vec![Instant::now(); usize::from(options.depth)];
    for tag in 0..u64::from(options.depth) {
        queue.submit(tag, entry(), transfer(vec![0; bytes])).map_err(|_| "the queue is full")?;
    }
    let mut latencies = Vec::new();
    let mut done = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        queue.wait(&mut done, Duration::from_secs(10))?;
        let now = Instant::now();
        for completed in done.drain(..) {
            if !completed.entry.status.is_success() {
                return Err(format!("{:?}", completed.entry).into());
            }
            latencies.push((now - begun[completed.tag as usize]).as_nanos() as u64);
            begun[completed.tag as usize] = now;
            queue.submit(completed.tag, entry(), transfer(completed.buffer)).map_err(|_| "the queue is full")?;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    let rate = latencies.len() as f64 / elapsed;
    println!(
        "{rate:.0} IOPS  {:.2} GB/s  p50 {:.1} us  p99 {:.1} us  {} commands",
        rate * bytes as f64 / 1e9,
        at(0.5),
        at(0.99),
        latencies.len()
    );
    Ok(())
}
