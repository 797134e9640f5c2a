//! The log: lines on standard error, by level. Only `serve` and `demo` log more than warnings; the other commands end with
//! their one line.
//!
//! What always holds: who logs never waits for standard error; what a place in the code says more often than [`LINES_A_SECOND_MAX`] times
//! in a second is left out, and so is what standard error is too slow for. How much that was is told.

use crate::failure::{Context, Outcome};
use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::Metadata;
use tracing::callsite::Identifier;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context as LayerContext, Filter, Layer, SubscriberExt};

/// Environment variable with a filter, used where no flag gives one.
pub const ENVIRONMENT: &str = "WILLOW_LOG";
/// Lines from one place in the code in a second; more are left out and counted.
const LINES_A_SECOND_MAX: u32 = 20;
/// Lines that wait for standard error; more are left out and counted.
const LINES_WAITING_MAX: usize = 256;
/// Longest wait for standard error when the process ends.
const FINISH_TIME_MAX: Duration = Duration::from_secs(1);

/// What the thread that writes is sent.
enum Message {
    Line(Vec<u8>),
    /// Answered when all before it is written.
    Finish(SyncSender<()>),
}

/// The way to standard error.
#[derive(Clone)]
struct Lines {
    sender: SyncSender<Message>,
    left_out: Arc<AtomicU64>,
}

static LINES: OnceLock<Lines> = OnceLock::new();

impl Lines {
    /// Begins to write what is sent to `output`, on a thread of its own.
    fn start(output: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(LINES_WAITING_MAX);
        let lines = Lines { sender, left_out: Arc::default() };
        let left_out = lines.left_out.clone();
        let write = move || write_lines(&receiver, output, &left_out);
        std::thread::Builder::new().name("willow-log".to_owned()).spawn(write)?;
        Ok(lines)
    }

    fn put(&self, line: Vec<u8>) {
        if self.sender.try_send(Message::Line(line)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, within a bound.
    fn finish(&self) {
        let (answer, written) = sync_channel(1);
        if self.sender.try_send(Message::Finish(answer)).is_ok() {
            let _: Result<(), RecvTimeoutError> = written.recv_timeout(FINISH_TIME_MAX);
        }
    }
}

fn write_lines(receiver: &Receiver<Message>, mut output: impl Write, left_out: &AtomicU64) {
    // A standard error that is closed is nobody's concern: the work goes on.
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Line(line) => {
                let _ = output.write_all(&line);
            }
            Message::Finish(answer) => {
                let _ = output.flush();
                let _ = answer.try_send(());
            }
        }
        let count = left_out.swap(0, Ordering::Relaxed);
        if count > 0 {
            let _ = writeln!(output, "{count} lines of the log were left out, since standard error is slow");
        }
    }
}

/// A line on its way.
struct Line<'a>(&'a Lines, Vec<u8>);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.0.put(std::mem::take(&mut self.1));
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self, Vec::new())
    }
}

/// What one place in the code said.
struct Said {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Leaves out what a place says too often.
struct Limit {
    said: Mutex<HashMap<Identifier, Said>>,
    lines: Lines,
}

impl Limit {
    fn new(lines: Lines) -> Self {
        Limit { said: Mutex::default(), lines }
    }

    /// Whether the place may say something; what it could not say before is told now.
    fn admits(&self, metadata: &Metadata<'_>, now: Instant) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.entry(metadata.callsite()).or_insert(Said { since: now, lines: 0, left_out: 0 });
        if now.saturating_duration_since(said.since) >= Duration::from_secs(1) {
            let left_out = std::mem::take(&mut said.left_out);
            (said.since, said.lines) = (now, 0);
            if left_out > 0 {
                let place = (metadata.target(), metadata.line().unwrap_or_default());
                self.lines.put(format!("{left_out} lines of {} (line {}) were left out\n", place.0, place.1).into());
            }
        }
        said.lines = said.lines.saturating_add(1);
        let admits = said.lines <= LINES_A_SECOND_MAX;
        said.left_out += u64::from(!admits);
        admits
    }
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, metadata: &Metadata<'_>, _: &LayerContext<'_, S>) -> bool {
        !metadata.is_event() || self.admits(metadata, Instant::now())
    }
}

/// Starts the log with `filter`, such as `info` or `warn,willow_tcp=debug`.
pub fn start(filter: &str) -> Outcome<()> {
    let filter = EnvFilter::builder().parse(filter).context(|| {
        format!("\"{filter}\" is no log filter: use error, warn, info, debug, trace or crate=level, with commas")
    })?;
    let lines = Lines::start(std::io::stderr()).context(|| "cannot start a thread for the log".to_owned())?;
    let lines = LINES.get_or_init(|| lines).clone();
    // The limit is asked for what the filter lets through alone.
    let format = tracing_subscriber::fmt::layer().with_writer(lines.clone()).with_ansi(std::io::stderr().is_terminal());
    let limited = format.with_filter(tracing_subscriber::filter::FilterExt::and(filter, Limit::new(lines)));
    let subscriber = tracing_subscriber::registry().with(limited);
    tracing::subscriber::set_global_default(subscriber).context(|| "the log is started already".to_owned())
}

/// Waits until what was logged is written, within a bound: to be called before the process ends.
pub fn finish() {
    if let Some(lines) = LINES.get() {
        lines.finish();
    }
}

/// The filter of the environment, or `default`.
pub fn filter_or(default: &str) -> String {
    std::env::var(ENVIRONMENT).unwrap_or_else(|_| default.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_said_too_often_is_left_out_and_counted() {
        let kept = Kept::default();
        let lines = Lines::start(kept.clone()).unwrap();
        let format = tracing_subscriber::fmt::layer().with_writer(lines.clone()).with_ansi(false);
        let limited = format.with_filter(Limit::new(lines.clone()));
        let often = || tracing::warn!("the same again");
        let begun = Instant::now();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(limited), || {
            (0..500).for_each(|_| often());
            tracing::warn!("something else");
            std::thread::sleep(Duration::from_millis(1100));
            often();
        });
        lines.finish();
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let said = text.matches("the same again").count() as u32;
        // The last one is of a second of its own.
        let seconds = begun.elapsed().as_secs() as u32 + 1;
        assert!((LINES_A_SECOND_MAX..=seconds * LINES_A_SECOND_MAX + 1).contains(&said), "{said} in {seconds} s");
        assert!(text.contains("something else") && text.contains(" were left out"), "{text}");
    }

    #[test]
    fn an_output_that_nobody_reads_is_not_waited_for() {
        // A pipe, which blocks when it is full, as standard error may be.
        let (mut read, write) = std::io::pipe().unwrap();
        let lines = Lines::start(write).unwrap();
        const LINES: usize = 5000;
        let (done, written) = sync_channel(1);
        std::thread::spawn(move || {
            (0..LINES).for_each(|number| lines.put(format!("line {number} {}\n", "of the log ".repeat(20)).into()));
            done.send(()).unwrap();
        });
        written.recv_timeout(Duration::from_secs(120)).expect("who logs does not wait");
        // The other end is read from at last: what is missing is told.
        let mut text = String::new();
        std::io::Read::read_to_string(&mut read, &mut text).unwrap();
        let written = text.lines().filter(|line| line.starts_with("line ")).count();
        let told = |line: &str| line.split(" lines of the log were left out").next()?.parse::<usize>().ok();
        assert!(written < LINES);
        assert_eq!(written + text.lines().filter_map(told).sum::<usize>(), LINES);
    }
}
