//! Progress bars on long work, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// A bar over `total` things, or nothing where standard error is no terminal or `quiet` is asked for.
pub fn bar(total: u64, what: &'static str, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total).with_message(what);
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {human_pos}/{human_len} {per_sec} {eta}");
    // The template is a constant of ours.
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
