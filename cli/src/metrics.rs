//! Metrics for Prometheus: a small HTTP server on a thread of its own. A scrape shows a snapshot that the device's thread
//! publishes between two requests: no lock is held on the way of the data.

use crate::failure::{Context, Outcome};
use crate::statistics::Statistics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::net::SocketAddr;
use willow_device::clock::Accelerator;

/// Upper ends of the buckets that latencies are shown in, seconds.
const BUCKETS_SECONDS: [f64; 15] =
    [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 1.0, 10.0];
/// Media type of the text (OpenMetrics 1.0).
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where a scrape gets the statistics from; `None`: the device does not answer now.
type Source = Box<dyn Fn() -> Option<Statistics> + Send + Sync>;

struct Scrape(Source);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

/// A server that listens and does not answer yet.
pub struct Bound {
    server: tiny_http::Server,
    address: SocketAddr,
}

/// Listens.
pub fn bind(address: SocketAddr) -> Outcome<Bound> {
    let server = tiny_http::Server::http(address).context(|| format!("cannot listen on {address} for --metrics"))?;
    let address = server.server_addr().to_ip().unwrap_or(address);
    Ok(Bound { server, address })
}

impl Bound {
    /// Answers from now on; returns the address that it listens on.
    pub fn start(self, source: impl Fn() -> Option<Statistics> + Send + Sync + 'static) -> Outcome<SocketAddr> {
        let Bound { server, address } = self;
        answer(server, source)?;
        Ok(address)
    }
}

fn answer(server: tiny_http::Server, source: impl Fn() -> Option<Statistics> + Send + Sync + 'static) -> Outcome<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(Box::new(source))));
    let content_type = tiny_http::Header::from_bytes("Content-Type", CONTENT_TYPE);
    let content_type = content_type.map_err(|()| crate::failure::Failure::new("the content type is malformed"))?;
    std::thread::Builder::new()
        .name("willow-metrics".to_owned())
        .spawn(move || {
            for request in server.incoming_requests() {
                let sent = match request.url() {
                    "/metrics" => {
                        let mut text = String::new();
                        match prometheus_client::encoding::text::encode(&mut text, &registry) {
                            Ok(()) => request
                                .respond(tiny_http::Response::from_string(text).with_header(content_type.clone())),
                            Err(_) => request.respond(
                                tiny_http::Response::from_string("the device does not answer\n").with_status_code(503),
                            ),
                        }
                    }
                    _ => request.respond(
                        tiny_http::Response::from_string("the metrics are at /metrics\n").with_status_code(404),
                    ),
                };
                if let Err(error) = sent {
                    tracing::debug!("a scrape was not answered: {error}");
                }
            }
        })
        .context(|| "cannot start the thread of --metrics".to_owned())?;
    Ok(())
}

type Labels = Vec<(&'static str, String)>;

/// One metric with all its series.
fn counters(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

/// The same of values that go up and down.
fn gauges(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_gauge(&(value as f64))?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: u64) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    metric.encode_gauge(&(value as f64))
}

fn labels<const N: usize>(of: [(&'static str, String); N]) -> Labels {
    of.into()
}

/// The same with values that are no whole numbers.
fn seconds(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Labels, f64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in series {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn encode_histogram(mut metric: MetricEncoder, sum: f64, count: u64, buckets: &[(f64, u64)]) -> fmt::Result {
    metric.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
}

/// (sum in seconds, buckets) of a latency: its mean, its count, and (upper end, count) of its own buckets.
fn histogram(mean_ns: u64, count: u64, of: &[(u64, u64)]) -> (f64, Vec<(f64, u64)>) {
    let mut buckets: Vec<(f64, u64)> =
        BUCKETS_SECONDS.iter().map(|end| (*end, 0)).chain([(f64::INFINITY, 0)]).collect();
    for (end_ns, count) in of {
        let seconds = *end_ns as f64 / 1e9;
        let place = BUCKETS_SECONDS.iter().position(|end| seconds <= *end).unwrap_or(BUCKETS_SECONDS.len());
        buckets[place].1 += count;
    }
    (mean_ns as f64 * count as f64 / 1e9, buckets)
}

/// What the kernel and each process of a user had.
fn accounts(encoder: &mut DescriptorEncoder, statistics: &Statistics) -> fmt::Result {
    let all = || {
        statistics.accounts.iter().map(|of| {
            let user = of.user.map_or(String::new(), |user| user.to_string());
            (labels([("process", of.name.clone()), ("user", user)]), &of.counters)
        })
    };
    counters(encoder, "willow_process_requests", "Requests of the process", all().map(|(l, c)| (l, c.requests)))?;
    let help = "Instructions of apps on the process' behalf";
    counters(encoder, "willow_process_instructions", help, all().map(|(l, c)| (l, c.instructions)))?;
    let help = "Bytes of DMAs on the process' behalf";
    counters(encoder, "willow_process_dma_bytes", help, all().map(|(l, c)| (l, c.dma_bytes)))
}

/// What each host holds, and how often there was no room for it.
fn hosts(encoder: &mut DescriptorEncoder, statistics: &Statistics) -> fmt::Result {
    let all = |of: fn(&crate::statistics::Host) -> u64| {
        statistics.transport.hosts.iter().map(move |host| (labels([("host", host.host.clone())]), of(host)))
    };
    gauges(encoder, "willow_host_held_bytes", "Bytes held for the host", all(|host| host.held_bytes))?;
    gauges(encoder, "willow_host_queued_bytes", "Bytes to be sent to the host", all(|host| host.queued_bytes))?;
    let help = "Commands whose data the host was asked for and has not sent";
    gauges(encoder, "willow_host_fetching", help, all(|host| host.fetching.into()))?;
    let help = "Commands of the host that wait for a buffer or a place";
    let waiting = all(|host| u64::from(host.waiting_for_buffer) + u64::from(host.waiting_for_device));
    gauges(encoder, "willow_host_waiting", help, waiting)?;
    gauges(encoder, "willow_host_connections", "Connections of the host", all(|host| host.connections.into()))?;
    let help = "Commands of the host that had to wait";
    counters(encoder, "willow_host_waited", help, all(|host| host.waited))?;
    counters(encoder, "willow_host_refused", "What was refused to the host", all(|host| host.refused))
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let statistics = (self.0)().ok_or(fmt::Error)?;
        let encoder = &mut encoder;
        let spus = || statistics.spus.iter().enumerate().map(|(spu, of)| (labels([("spu", spu.to_string())]), of));
        counters(
            encoder,
            "willow_spu_requests",
            "Requests that arrived at the SPU",
            spus().map(|(l, c)| (l, c.requests)),
        )?;
        counters(
            encoder,
            "willow_spu_instructions",
            "Instructions that apps ran on the SPU",
            spus().map(|(l, c)| (l, c.instructions)),
        )?;
        counters(
            encoder,
            "willow_spu_nv_read_bytes",
            "Bytes that DMA read from NV memory",
            spus().map(|(l, c)| (l, c.nv_read_bytes)),
        )?;
        counters(
            encoder,
            "willow_spu_nv_write_bytes",
            "Bytes that DMA wrote to NV memory",
            spus().map(|(l, c)| (l, c.nv_write_bytes)),
        )?;
        counters(encoder, "willow_spu_dmas", "DMA operations", spus().map(|(l, c)| (l, c.dmas)))?;
        counters(
            encoder,
            "willow_spu_store_waits",
            "Operations that had to wait for the store",
            spus().map(|(l, c)| (l, c.store_waits)),
        )?;

        let accelerators = || {
            statistics.spus.iter().enumerate().flat_map(|(spu, of)| {
                let each = Accelerator::ALL.iter();
                each.map(move |accelerator| {
                    let names = [("spu", spu.to_string()), ("accelerator", accelerator.name().to_owned())];
                    (labels(names), of.accelerators.of(*accelerator))
                })
            })
        };
        counters(
            encoder,
            "willow_accelerator_operations",
            "Times that the accelerator was started",
            accelerators().map(|(l, c)| (l, c.operations)),
        )?;
        let help = "Bytes that the accelerator took";
        counters(encoder, "willow_accelerator_bytes", help, accelerators().map(|(l, c)| (l, c.bytes)))?;

        let apps = || statistics.apps.iter().map(|app| (labels([("app", app.name.clone())]), &app.counters));
        counters(encoder, "willow_app_requests", "Requests to the app", apps().map(|(l, c)| (l, c.requests)))?;
        counters(
            encoder,
            "willow_app_instructions",
            "Instructions of the app",
            apps().map(|(l, c)| (l, c.instructions)),
        )?;
        counters(encoder, "willow_app_traps", "Times that the app was ended", apps().map(|(l, c)| (l, c.traps)))?;
        counters(encoder, "willow_app_rpcs", "RPCs that the app sent", apps().map(|(l, c)| (l, c.rpcs)))?;
        let help = "Bytes that the app's DMAs moved";
        counters(encoder, "willow_app_dma_bytes", help, apps().map(|(l, c)| (l, c.dma_bytes)))?;
        accounts(encoder, &statistics)?;
        hosts(encoder, &statistics)?;

        let namespaces = &statistics.transport.namespaces;
        let kinds = |of: fn(&crate::statistics::Namespace) -> [u64; 3]| {
            namespaces.iter().flat_map(move |namespace| {
                let kinds = ["read", "write", "other"].into_iter().zip(of(namespace));
                kinds.map(|(kind, value)| {
                    (labels([("nsid", namespace.nsid.to_string()), ("kind", kind.to_owned())]), value)
                })
            })
        };
        let commands = kinds(|n| [n.read_commands, n.write_commands, n.other_commands]);
        counters(encoder, "willow_namespace_commands", "Commands to the namespace", commands)?;
        let bytes = kinds(|n| [n.read_bytes, n.write_bytes, 0]);
        counters(encoder, "willow_namespace_bytes", "Bytes of data moved", bytes)?;
        let one = |of: fn(&crate::statistics::Namespace) -> u64| {
            namespaces.iter().map(move |n| (labels([("nsid", n.nsid.to_string())]), of(n)))
        };
        counters(encoder, "willow_namespace_errors", "Commands that failed", one(|n| n.errors))?;
        counters(
            encoder,
            "willow_namespace_media_errors",
            "Commands that failed for the media's sake",
            one(|n| n.media_errors),
        )?;
        let name = "willow_namespace_latency_seconds";
        let mut metric = encoder.encode_descriptor(name, "From arrival to completion", None, MetricType::Histogram)?;
        for namespace in namespaces {
            for (kind, latency) in [
                ("read", &namespace.read_latency),
                ("write", &namespace.write_latency),
                ("other", &namespace.other_latency),
            ] {
                let labels = labels([("nsid", namespace.nsid.to_string()), ("kind", kind.to_owned())]);
                let (sum, buckets) = histogram(latency.mean_ns, latency.count, &latency.buckets);
                metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, latency.count, &buckets, None)?;
            }
        }

        if let Some(clock) = &statistics.clock {
            let name = "willow_clock_lateness_seconds";
            let help = "How much later than the modelled hardware completions were handed out";
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            let lateness = &clock.lateness;
            let (sum, buckets) = histogram(lateness.mean_ns, lateness.count, &lateness.buckets);
            encode_histogram(metric, sum, lateness.count, &buckets)?;
            let help = "1 where this machine kept up with the modelled hardware in the last second, else 0";
            gauge(encoder, "willow_clock_keeps_up", help, u64::from(clock.keeps_up))?;
        }
        if let Some(model) = &statistics.model {
            let busy = model.resources.iter();
            let busy = busy.map(|of| (labels([("resource", of.name.clone())]), of.busy_ns as f64 / 1e9));
            seconds(encoder, "willow_model_busy_seconds", "Time that the modelled resource worked", busy)?;
            let energy = model.energy.iter().map(|of| (labels([("component", of.name.clone())]), of.joules));
            seconds(encoder, "willow_model_energy_joules", "Energy of the modelled component", energy)?;
        }

        if let Some(flash) = &statistics.flash {
            let health = flash.health;
            let spare = "Spare blocks that are left, in percent of those of new flash";
            gauge(encoder, "willow_flash_spare_percent", spare, health.spare_percent.into())?;
            let used = "Erases of a block on average, in percent of those that it is rated for";
            gauge(encoder, "willow_flash_used_percent", used, health.used_percent.into())?;
            let read_only = "1 where too many blocks have worn out, so that nothing is written";
            gauge(encoder, "willow_flash_read_only", read_only, health.is_read_only.into())?;
        }
        gauge(encoder, "willow_used_bytes", "Bytes of all regions and namespaces", statistics.used_bytes)?;
        if let Some(capacity) = statistics.capacity_bytes {
            gauge(encoder, "willow_capacity_bytes", "Bytes that the media can hold", capacity)?;
        }
        gauge(encoder, "willow_controllers", "NVMe controllers", u64::from(statistics.transport.controllers))?;
        gauge(encoder, "willow_buffer_bytes", "Bytes of data buffers in use", statistics.transport.buffer_bytes)?;
        gauge(encoder, "willow_store_in_flight", "Operations under way in the store", statistics.store_in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Latency, Namespace, Transport};
    use std::io::{Read, Write};
    use willow_device::accounts::{AccountCounters, AccountStatistics};
    use willow_device::histogram::LatencySummary;
    use willow_device::model::ModelStatistics;
    use willow_device::model::statistics::ResourceStatistics;
    use willow_device::punctuality::ClockStatistics;
    use willow_device::statistics::SpuCounters;

    fn scrape(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scrape_shows_the_statistics() {
        let silent = bind("127.0.0.1:0".parse().unwrap()).unwrap().start(|| None).unwrap();
        assert!(scrape(silent, "/metrics").contains("503"));
        let statistics = Statistics {
            spus: vec![SpuCounters { requests: 7, ..SpuCounters::default() }; 2],
            accounts: vec![AccountStatistics {
                name: "5".to_owned(),
                user: Some(1000),
                counters: AccountCounters { dma_bytes: 4096, ..AccountCounters::default() },
                ..AccountStatistics::default()
            }],
            used_bytes: 99,
            clock: Some(ClockStatistics {
                keeps_up: true,
                lateness: LatencySummary {
                    count: 4,
                    mean_ns: 3_000,
                    buckets: vec![(2_999, 3), (19_999, 1)],
                    ..LatencySummary::default()
                },
                ..ClockStatistics::default()
            }),
            model: Some(ModelStatistics {
                resources: vec![ResourceStatistics {
                    name: "ring".to_owned(),
                    busy_ns: 1_500_000_000,
                    ..ResourceStatistics::default()
                }],
                ..ModelStatistics::default()
            }),
            transport: Transport {
                hosts: vec![crate::statistics::Host {
                    host: "nqn.one".to_owned(),
                    held_bytes: 4096,
                    waiting_for_buffer: 2,
                    waiting_for_device: 3,
                    refused: 9,
                    ..crate::statistics::Host::default()
                }],
                namespaces: vec![Namespace {
                    nsid: 1,
                    read_commands: 5,
                    read_latency: Latency {
                        count: 5,
                        mean_ns: 30_000,
                        buckets: vec![(9_999, 2), (49_999, 3)],
                        ..Latency::default()
                    },
                    ..Namespace::default()
                }],
                ..Transport::default()
            },
            ..Statistics::default()
        };
        let address = bind("127.0.0.1:0".parse().unwrap()).unwrap().start(move || Some(statistics.clone())).unwrap();
        let text = scrape(address, "/metrics");
        for line in [
            "200 OK",
            "willow_spu_requests_total{spu=\"1\"} 7",
            "willow_accelerator_bytes_total{spu=\"1\",accelerator=\"literals\"} 0",
            "willow_namespace_commands_total{nsid=\"1\",kind=\"read\"} 5",
            "willow_namespace_latency_seconds_bucket{le=\"0.00001\",nsid=\"1\",kind=\"read\"} 2",
            "willow_namespace_latency_seconds_bucket{le=\"+Inf\",nsid=\"1\",kind=\"read\"} 5",
            "willow_process_dma_bytes_total{process=\"5\",user=\"1000\"} 4096",
            "willow_host_held_bytes{host=\"nqn.one\"} 4096",
            "willow_host_waiting{host=\"nqn.one\"} 5",
            "willow_host_refused_total{host=\"nqn.one\"} 9",
            "willow_used_bytes 99",
            "willow_clock_lateness_seconds_bucket{le=\"0.00001\"} 3",
            "willow_clock_lateness_seconds_count 4",
            "willow_clock_keeps_up 1",
            "willow_model_busy_seconds_total{resource=\"ring\"} 1.5",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(scrape(address, "/other").contains("404"));
    }
}
