//! A thousand connections that do nothing cost the device no processor, and a bounded amount of memory each, at rest as at depth 128. The test
//! prints what it measured: docs/benchmarks.md has it.
#![forbid(unsafe_code)]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_tests::daemon::Daemon;

/// I/O queues of each controller, a connection each, with one more for the admin queue.
const QUEUES: u16 = 63;
const CONTROLLERS: usize = 16;
const DEPTH: usize = 128;
const BLOCK: usize = 4096;
/// How long the device is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// Ticks of the processor (hundredths of a second) that the device may take meanwhile: for its own timers.
const TICKS_MAX: u64 = 4;
/// How often it is looked until one is as it should be: what was begun for the connections ends before that, on however slow a machine.
const LOOKS_MAX: usize = 30;
/// Memory that a connection may take.
const AT_REST_BYTES_MAX: usize = 64 << 10;
const AT_DEPTH_BYTES_MAX: usize = DEPTH * (BLOCK + 4096) + (512 << 10);

/// Ticks of processor time that a process has had.
fn ticks(process_id: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process_id}/stat")).expect("the device runs");
    // Behind the name in parentheses, which may have anything: state is field 3, utime 14, stime 15.
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    let field = |number: usize| fields[number - 3].parse::<u64>().expect("a number");
    field(14) + field(15)
}

/// Bytes of a process' memory that no file stands behind.
fn own_bytes(process_id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process_id}/status")).expect("the device runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it is told");
    1024 * line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number")
}

#[test]
fn a_thousand_idle_connections_cost_no_processor_and_little_memory() {
    let mut daemon = Daemon::start(&["--size", "64M", "--kv-size", "0", "--spus", "4"]);
    let process = daemon.process_id().expect("it runs");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let fresh_bytes = own_bytes(process);
        let mut controllers = Vec::new();
        for _ in 0..CONTROLLERS {
            let options = Options {
                queues: QUEUES,
                depth: DEPTH as u16,
                keep_alive: Duration::ZERO,
                receive_bytes: 16 << 10,
                ..Options::new(daemon.address(), daemon.nqn())
            };
            let controller = Controller::connect(options).await.expect("a controller");
            assert_eq!(controller.queues().await.expect("its queues"), usize::from(QUEUES));
            controllers.push(controller);
        }
        let connections = CONTROLLERS * usize::from(QUEUES + 1);
        let at_rest_bytes = own_bytes(process).saturating_sub(fresh_bytes) / connections;
        let mut taken = u64::MAX;
        for _ in 0..LOOKS_MAX {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let before = ticks(process);
            tokio::time::sleep(LOOK).await;
            taken = ticks(process) - before;
            if taken <= TICKS_MAX {
                break;
            }
        }
        println!(
            "{connections} connections at rest: {at_rest_bytes} bytes each, {taken} ticks of the processor in {LOOK:?}"
        );
        assert!(taken <= TICKS_MAX, "{connections} idle connections take {taken} ticks in {LOOK:?}");
        assert!(at_rest_bytes <= AT_REST_BYTES_MAX, "{at_rest_bytes} bytes a connection");

        let idle_bytes = own_bytes(process);
        let mut reads = JoinSet::new();
        for queue in 0..usize::from(QUEUES) {
            let hre = Arc::new(NvmeHre::new(controllers[0].clone(), queue).await.expect("an endpoint"));
            let client = Arc::new(BlockClient::open(hre, 1).await.expect("namespace 1"));
            for number in 0..DEPTH {
                let client = client.clone();
                reads.spawn(async move {
                    for round in 0..8 {
                        let lba = (number * 61 + round * 7) % 1000;
                        client.read((lba * BLOCK) as u64, BLOCK).await.expect("a read");
                    }
                });
            }
        }
        let mut most_bytes = 0;
        while let Some(done) = reads.join_next().await {
            done.expect("a read");
            most_bytes = most_bytes.max(own_bytes(process));
        }
        let at_depth_bytes = most_bytes.saturating_sub(idle_bytes) / usize::from(QUEUES);
        println!(
            "{QUEUES} connections with {DEPTH} reads of {BLOCK} bytes under way: {at_depth_bytes} bytes more each"
        );
        assert!(at_depth_bytes <= AT_DEPTH_BYTES_MAX, "{at_depth_bytes} bytes a connection");
    });
    assert!(daemon.stop().success());
}
