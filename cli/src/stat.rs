//! `willow stat`: counters and latencies of a device.

use crate::client::Client;
use crate::failure::Outcome;
use crate::output;
use crate::size::Size;
use crate::statistics::{Latency, Statistics};
use crate::table::{Table, grouped, microseconds};
use crate::target::TargetOption;
use willow_device::clock::Accelerator;
use willow_device::media::delegate::FlashHealth;
use willow_device::statistics::FlashStatistics;

/// Flags of `willow stat`.
#[derive(Debug, clap::Args)]
pub struct StatOptions {
    #[command(flatten)]
    target: TargetOption,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(options: StatOptions) -> Outcome<()> {
    let mut client = Client::connect(&options.target)?;
    if options.json {
        // As the device sends it: fields that this version does not know are kept.
        return output::json(&client.statistics_document()?);
    }
    output::text(&render(&client.statistics()?))
}

fn latency_cells(latency: &Latency) -> [String; 5] {
    if latency.count == 0 {
        return std::array::from_fn(|_| "-".to_owned());
    }
    [latency.mean_ns, latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns].map(microseconds)
}

/// The tables of the SPUs.
pub fn spu_table(statistics: &Statistics) -> String {
    let mut table = Table::new(&["SPU", "requests", "instructions", "NV read", "NV written", "DMAs", "store waits"]);
    for (spu, counters) in statistics.spus.iter().enumerate() {
        table.row([
            spu.to_string(),
            grouped(counters.requests),
            grouped(counters.instructions),
            Size(counters.nv_read_bytes).to_string(),
            Size(counters.nv_write_bytes).to_string(),
            grouped(counters.dmas),
            grouped(counters.store_waits),
        ]);
    }
    table.render()
}

/// The table of processes.
fn account_table(statistics: &Statistics) -> String {
    let headings = [
        "process",
        "user",
        "weight",
        "under way",
        "requests",
        "instructions",
        "DMA",
        "past its places",
        "handlers waited",
    ];
    let mut table = Table::new(&headings);
    for of in &statistics.accounts {
        table.row([
            of.name.clone(),
            of.user.map_or("-".to_owned(), |user| user.to_string()),
            of.weight.to_string(),
            grouped(of.under_way.into()),
            grouped(of.counters.requests),
            grouped(of.counters.instructions),
            Size(of.counters.dma_bytes).to_string(),
            grouped(of.counters.refused),
            grouped(of.counters.stalls),
        ]);
    }
    table.render()
}

/// The table of hosts.
fn host_table(statistics: &Statistics) -> String {
    let headings = [
        "host",
        "connections",
        "held",
        "to be sent",
        "data awaited",
        "wait for buffers",
        "wait for places",
        "in the device",
        "have waited",
        "refused",
    ];
    let mut table = Table::new(&headings);
    for of in &statistics.transport.hosts {
        table.row([
            if of.host.is_empty() { "(strangers)".to_owned() } else { of.host.clone() },
            of.connections.to_string(),
            Size(of.held_bytes).to_string(),
            Size(of.queued_bytes).to_string(),
            of.fetching.to_string(),
            of.waiting_for_buffer.to_string(),
            of.waiting_for_device.to_string(),
            of.in_device.to_string(),
            grouped(of.waited),
            grouped(of.refused),
        ]);
    }
    table.render()
}

/// The table of accelerators, all SPUs together; empty where none has been used.
fn accelerator_table(statistics: &Statistics) -> String {
    let mut table = Table::new(&["accelerator", "operations", "bytes"]);
    let mut used = false;
    for accelerator in Accelerator::ALL {
        let of = statistics.spus.iter().map(|spu| spu.accelerators.of(*accelerator));
        let (operations, bytes) =
            of.fold((0, 0), |(operations, bytes), of| (operations + of.operations, bytes + of.bytes));
        if operations > 0 {
            table.row([accelerator.name().to_owned(), grouped(operations), Size(bytes).to_string()]);
            used = true;
        }
    }
    if used { format!("\n{}", table.render()) } else { String::new() }
}

/// What there is to know of the flash.
fn flash_line(flash: &FlashStatistics) -> String {
    let FlashHealth { spare_percent, used_percent, media_errors, is_read_only } = flash.health;
    let state = match (&flash.failed, is_read_only) {
        (Some(why), _) => format!("failed: {why}"),
        (None, true) => "read-only, since too many blocks have worn out".to_owned(),
        (None, false) => "sound".to_owned(),
    };
    format!(
        "flash: {state}; FTL {}, {spare_percent} % of the spare blocks left, {used_percent} % of the rated erases used, {} media errors\n\n",
        flash.ftl,
        grouped(media_errors)
    )
}

fn render(statistics: &Statistics) -> String {
    let transport = &statistics.transport;
    let capacity = statistics.capacity_bytes.map_or("what the disk holds".to_owned(), |bytes| Size(bytes).to_string());
    let mut text = format!(
        "{}\nup {:.1} s, {} controllers, {} queues, regions take {} of {capacity}\n\n",
        transport.nqn,
        statistics.now_ns as f64 / 1e9,
        transport.controllers,
        transport.queues.len(),
        Size(statistics.used_bytes),
    );
    if let Some(flash) = &statistics.flash {
        text.push_str(&flash_line(flash));
    }
    text.push_str(&spu_table(statistics));
    text.push_str(&accelerator_table(statistics));
    let mut apps = Table::new(&[
        "app",
        "number",
        "requests",
        "instructions",
        "DMA",
        "memory",
        "NV",
        "traps",
        "RPCs",
        "waiting",
        "own counters",
        "state",
    ]);
    for app in &statistics.apps {
        let used = app.user.iter().rposition(|value| *value != 0).map_or(0, |last| last + 1);
        let own: Vec<String> = app.user[..used].iter().map(i64::to_string).collect();
        apps.row([
            app.name.clone(),
            app.number.to_string(),
            grouped(app.counters.requests),
            grouped(app.counters.instructions),
            Size(app.counters.dma_bytes).to_string(),
            Size(app.memory_bytes).to_string(),
            Size(app.nv_bytes).to_string(),
            grouped(app.counters.traps),
            grouped(app.counters.rpcs),
            app.messages.to_string(),
            own.join(" "),
            match &app.ended {
                None => "running".to_owned(),
                Some(why) if app.failed => format!("failed: {why}"),
                Some(why) => why.clone(),
            },
        ]);
    }
    text.push('\n');
    text.push_str(&apps.render());
    text.push('\n');
    text.push_str(&account_table(statistics));
    text.push('\n');
    text.push_str(&host_table(statistics));
    let headings = ["namespace", "kind", "commands", "bytes", "errors", "mean us", "p50", "p99", "p99.9", "max"];
    let mut namespaces = Table::new(&headings);
    for of in &transport.namespaces {
        for (kind, commands, bytes, latency) in [
            ("read", of.read_commands, of.read_bytes, &of.read_latency),
            ("write", of.write_commands, of.write_bytes, &of.write_latency),
            ("other", of.other_commands, 0, &of.other_latency),
        ] {
            let errors = if kind == "read" { of.errors.to_string() } else { String::new() };
            let [mean, p50, p99, p999, max] = latency_cells(latency);
            let bytes = Size(bytes).to_string();
            namespaces.row([
                of.nsid.to_string(),
                kind.to_owned(),
                grouped(commands),
                bytes,
                errors,
                mean,
                p50,
                p99,
                p999,
                max,
            ]);
        }
    }
    text.push('\n');
    text.push_str(&namespaces.render());
    let headings =
        ["controller", "queue", "entries", "in flight", "commands", "errors", "mean us", "p50", "p99", "p99.9", "max"];
    let mut queues = Table::new(&headings);
    for of in &transport.queues {
        let [mean, p50, p99, p999, max] = latency_cells(&of.latency);
        queues.row([
            of.controller.to_string(),
            of.queue.to_string(),
            of.entries.to_string(),
            of.in_flight.to_string(),
            grouped(of.commands),
            of.errors.to_string(),
            mean,
            p50,
            p99,
            p999,
            max,
        ]);
    }
    text.push('\n');
    text.push_str(&queues.render());
    text.push_str(&crate::hardware::render(statistics.model.as_ref(), statistics.clock.as_ref()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_shown() {
        let statistics: Statistics = serde_json::from_value(serde_json::json!({
            "now_ns": 1_500_000_000u64,
            "spus": [{"requests": 12345, "instructions": 1, "nv_read_bytes": 4096, "nv_write_bytes": 0, "dmas": 1,
                      "store_waits": 0, "thread_waits": 0, "accelerators": {"literals": {"operations": 7531, "bytes": 8192}}}],
            "apps": [{"number": 1, "name": "base-io", "requests": 5, "instructions": 6, "traps": 0, "rpcs": 0,
                      "user": [0, 3, 0], "ended": null}],
            "used_bytes": 1024,
            "something_new": true,
            "transport": {"nqn": "nqn.x", "controllers": 1,
                "hosts": [{"host": "", "refused": 77}, {"host": "nqn.one", "held_bytes": 2048, "waited": 4321}],
                "namespaces": [{"nsid": 1, "read_commands": 5, "read_latency": {"count": 5, "p50_ns": 12_300}}],
                "queues": [{"controller": 1, "queue": 1, "host": "h", "entries": 128}]},
        }))
        .unwrap();
        let text = render(&statistics);
        for part in [
            "nqn.x",
            "up 1.5 s",
            "12,345",
            "4 KiB",
            "base-io",
            "0 3",
            "running",
            "12.3",
            "128",
            "strangers",
            "77",
            "nqn.one",
            "2 KiB",
            "4,321",
            "literals",
            "7,531",
            "8 KiB",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
