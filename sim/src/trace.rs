//! The trace of a simulation: spans of the device's resources and of the host's threads, written as Chrome's trace event format, which
//! Perfetto and chrome://tracing open. One lane for each resource and thread.
//!
//! What always holds: events are kept in the order in which they were told, which is the same from run to run; at most
//! [`EVENTS_MAX`] are kept, the others are counted; times are nanoseconds and lose nothing in the file (microseconds with three
//! decimals).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use willow_device::model::{Lane, Span, TraceSink};

/// Most events that are kept: a file of about 100 bytes each.
pub const EVENTS_MAX: usize = 10_000_000;
/// Lanes of host threads begin here; those of the device stand below.
const HOST: u32 = 1 << 16;

#[derive(Clone, Copy)]
struct Event {
    lane: u32,
    name: &'static str,
    begin_ns: u64,
    end_ns: u64,
    id: u64,
    bytes: u64,
}

/// A span of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedSpan {
    /// Name of its lane.
    pub lane: String,
    /// What was done.
    pub name: &'static str,
    /// Begin, nanoseconds.
    pub begin_ns: u64,
    /// End.
    pub end_ns: u64,
    /// Bytes moved.
    pub bytes: u64,
}

#[derive(Default)]
struct Kept {
    events: Vec<Event>,
    dropped: u64,
    lanes: BTreeMap<Lane, u32>,
    names: BTreeMap<u32, String>,
}

/// A trace; clones are the same one.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Kept>>);

impl Kept {
    fn push(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX { self.events.push(event) } else { self.dropped += 1 }
    }
}

impl Trace {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn host_lane(&self, thread: u32, name: &str) {
        self.kept().names.insert(HOST + thread, name.to_owned());
    }

    pub(crate) fn host(&self, thread: u32, name: &'static str, begin_ns: u64, end_ns: u64) {
        self.kept().push(Event { lane: HOST + thread, name, begin_ns, end_ns, id: 0, bytes: 0 });
    }

    /// Number of events kept, and of those beyond [`EVENTS_MAX`].
    pub fn events(&self) -> (usize, u64) {
        let kept = self.kept();
        (kept.events.len(), kept.dropped)
    }

    /// The spans that began at `since_ns` or later, in the order in which they were told.
    pub fn spans(&self, since_ns: u64) -> Vec<TracedSpan> {
        let kept = self.kept();
        let of = |event: &Event| TracedSpan {
            lane: kept.names.get(&event.lane).cloned().unwrap_or_default(),
            name: event.name,
            begin_ns: event.begin_ns,
            end_ns: event.end_ns,
            bytes: event.bytes,
        };
        kept.events.iter().filter(|event| event.begin_ns >= since_ns).map(of).collect()
    }

    /// Writes the trace: one JSON object.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let kept = self.kept();
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        for (process, name) in [(1, "device"), (2, "host")] {
            let name = quoted(name);
            writeln!(to, "{{\"ph\":\"M\",\"pid\":{process},\"name\":\"process_name\",\"args\":{{\"name\":{name}}}}},")?;
        }
        for (lane, name) in &kept.names {
            let (process, name) = (process_of(*lane), quoted(name));
            let head = format!("\"ph\":\"M\",\"pid\":{process},\"tid\":{lane}");
            writeln!(to, "{{{head},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}},")?;
            writeln!(to, "{{{head},\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{lane}}}}},")?;
        }
        let mut line = String::new();
        for event in &kept.events {
            line.clear();
            let (begin, length) = (event.begin_ns, event.end_ns - event.begin_ns);
            // Writing to a string cannot fail.
            let _ = writeln!(
                line,
                "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},\"dur\":{}.{:03},\"name\":{},\"args\":{{\"id\":{},\"bytes\":{}}}}},",
                process_of(event.lane),
                event.lane,
                begin / 1000,
                begin % 1000,
                length / 1000,
                length % 1000,
                quoted(event.name),
                event.id,
                event.bytes
            );
            to.write_all(line.as_bytes())?;
        }
        let (events, dropped) = (kept.events.len(), kept.dropped);
        writeln!(
            to,
            "{{\"ph\":\"M\",\"pid\":1,\"name\":\"kept\",\"args\":{{\"events\":{events},\"dropped\":{dropped}}}}}"
        )?;
        to.write_all(b"]}\n")
    }
}

fn process_of(lane: u32) -> u32 {
    if lane >= HOST { 2 } else { 1 }
}

impl TraceSink for Trace {
    fn span(&mut self, span: &Span) {
        let mut kept = self.kept();
        let kept = &mut *kept;
        let next = kept.lanes.len() as u32;
        let lane = *kept.lanes.entry(span.lane).or_insert_with(|| {
            kept.names.insert(next, span.lane.to_string());
            next
        });
        let &Span { name, begin_ns, end_ns, id, bytes, .. } = span;
        kept.push(Event { lane, name, begin_ns, end_ns, id, bytes });
    }
}
