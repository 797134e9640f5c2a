//! The log: lines on standard error, by level. Only `serve` and `demo` log more than warnings; the other commands end with
//! their one line.

use crate::failure::{Context, Outcome};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Environment variable with a filter, used where no flag gives one.
pub const ENVIRONMENT: &str = "WILLOW_LOG";

/// Starts the log with `filter`, such as `info` or `warn,willow_tcp=debug`.
pub fn start(filter: &str) -> Outcome<()> {
    let filter = EnvFilter::builder().parse(filter).context(|| {
        format!("\"{filter}\" is no log filter: use error, warn, info, debug, trace or crate=level, with commas")
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .finish();
    tracing::subscriber::set_global_default(subscriber).context(|| "the log is started already".to_owned())
}

/// The filter of the environment, or `default`.
pub fn filter_or(default: &str) -> String {
    std::env::var(ENVIRONMENT).unwrap_or_else(|_| default.to_owned())
}
