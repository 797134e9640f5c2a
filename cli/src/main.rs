//! The `willow` command: serves a device, manages what is in it, measures it.
//!
//! Invariants: exit status 0, or 1 with one line on standard error that says what was wrong and what to do; what is asked
//! for goes to standard output, nothing else does.

mod agent;
mod app;
mod atomic;
mod bench;
mod btree;
mod cache;
mod child;
mod client;
mod columns;
mod compute;
mod config;
mod coredump;
mod cpu;
mod debug;
mod demo;
mod descriptors;
mod direct;
mod failure;
mod flash;
mod ftl;
mod grep;
mod hardware;
mod key;
mod kv;
mod logging;
mod manual;
mod memcached;
mod metrics;
mod modules;
mod mount;
mod ns;
mod output;
mod profile;
mod progress;
mod reproduce;
mod rpc;
mod serve;
mod simulate;
mod snapshot;
mod stage;
mod stat;
mod statistics;
mod table;
mod target;
mod torture;
mod weight;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Outcome;
use std::process::ExitCode;
// Shared with simulations.
use willow_sim::{preset, size};

/// Willow: a user-programmable SSD in software
#[derive(Debug, Parser)]
#[command(name = "willow", version, disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a device until SIGTERM or SIGINT
    Serve(Box<serve::ServeArguments>),
    /// SSD Apps: install, list, remove, log, reset, core; new and build
    #[command(subcommand)]
    App(app::App),
    /// Call a handler of an app
    Rpc(rpc::RpcOptions),
    /// Debug an app: a server of the Debug Adapter Protocol on standard input and output
    Debug(debug::Debug),
    /// Where an app's time goes: a table, a flame graph, a file for speedscope
    Profile(profile::Profile),
    /// Keys by which hosts prove who they are: new
    #[command(subcommand)]
    Key(key::Key),
    /// Namespaces: create, list, delete
    #[command(subcommand)]
    Ns(ns::Ns),
    /// Users' shares of the processors: list, set, remove
    #[command(subcommand)]
    Weight(weight::Weight),
    /// Key-value pairs: put, get, delete, exists, list
    #[command(subcommand)]
    Kv(kv::Kv),
    /// Writes to a block namespace that are done as a whole or not at all: write, read, stat
    #[command(subcommand)]
    Atomic(atomic::Atomic),
    /// B+trees in the drive: create, load, get, range, put, delete, stat
    #[command(subcommand)]
    Btree(btree::Btree),
    /// memcached's protocols in front of a key-value namespace
    Memcached(memcached::MemcachedOptions),
    /// Let processes of this machine reach their own files on a device directly
    Agent(agent::AgentOptions),
    /// A file's bytes by the process' own endpoint: read, write
    #[command(subcommand)]
    Direct(direct::Direct),
    /// Search files on a drive there: options, output and exit status of grep
    Grep(Box<grep::GrepArguments>),
    /// Count, sum, least and greatest of columns of a file on a drive
    Sum(Box<columns::SumOptions>),
    /// Count a column's values of a file on a drive by bins
    Histogram(Box<columns::HistogramOptions>),
    /// Rows of a file on a drive for which an expression is true, as Arrow, CSV or JSON
    Filter(Box<columns::FilterOptions>),
    /// ALPHA * X + Y of files of numbers on a drive, done there
    Saxpy(Box<compute::SaxpyOptions>),
    /// Fourier transforms of files of numbers on a drive, done there
    Fft(Box<compute::FftOptions>),
    /// Who serves the banks of flash: list, install, use
    #[command(subcommand)]
    Ftl(ftl::Ftl),
    /// The device's flash: map
    #[command(subcommand)]
    Flash(flash::Flash),
    /// Drives of flash that were written to, kept in files: save, restore
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Block namespace as a file: DIR/disk, by FUSE, until Ctrl-C
    Mount(mount::MountArguments),
    /// Files cached on the device: mount, list, remove
    #[command(subcommand)]
    Cache(cache::Cache),
    /// Counters and latencies of the device
    Stat(stat::StatOptions),
    /// Measure a device
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Run a workload or a recorded trace on modelled hardware in simulated time
    Simulate(Box<simulate::SimulateOptions>),
    /// The papers' experiments: list, run, set beside what was published
    Reproduce(reproduce::ReproduceOptions),
    /// Try what must not be lost until something is: power-cut
    #[command(subcommand)]
    Torture(torture::Torture),
    /// Fit a preset's parameters to the published figures that may be used for it
    Calibrate(reproduce::CalibrateOptions),
    /// Show what it can do: serve, attach, write, install, crash, prove; under two minutes
    Demo(demo::DemoOptions),
    /// Write the manual pages
    Manual(manual::ManualOptions),
    /// Print a shell's completions of this command
    Completions(manual::CompletionsOptions),
}

fn run(command: Command) -> Outcome<()> {
    if matches!(command, Command::Serve(_) | Command::Agent(_) | Command::Memcached(_)) {
        descriptors::raise();
    }
    match command {
        // `serve` starts its own log: its configuration file may say what to log.
        Command::Serve(arguments) => return serve::run(*arguments),
        Command::Demo(_)
        | Command::Bench(_)
        | Command::Agent(_)
        | Command::Mount(_)
        | Command::Memcached(_)
        | Command::Cache(_) => logging::start(&logging::filter_or("warn"))?,
        _ => logging::start(&logging::filter_or("error"))?,
    }
    match command {
        // They end with an exit status of their own.
        Command::Serve(_) | Command::Grep(_) => Ok(()),
        Command::App(app) => app::run(app),
        Command::Rpc(options) => rpc::run(options),
        Command::Key(key) => key::run(key),
        Command::Ns(ns) => ns::run(ns),
        Command::Weight(weight) => weight::run(weight),
        Command::Kv(kv) => kv::run(kv),
        Command::Atomic(atomic) => atomic::run(atomic),
        Command::Btree(btree) => btree::run(btree),
        Command::Memcached(options) => memcached::run(&options),
        Command::Agent(options) => agent::run(options),
        Command::Direct(direct) => direct::run(direct),
        Command::Sum(options) => columns::sum(*options),
        Command::Histogram(options) => columns::histogram(*options),
        Command::Filter(options) => columns::filter(*options),
        Command::Saxpy(options) => compute::saxpy(&options),
        Command::Fft(options) => compute::fft(&options),
        Command::Ftl(ftl) => ftl::run(ftl),
        Command::Flash(flash) => flash::run(flash),
        Command::Snapshot(command) => snapshot::run(command),
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Cache(cache) => cache::run(cache),
        Command::Stat(options) => stat::run(options),
        Command::Profile(profile) => profile::run(&profile),
        Command::Debug(options) => debug::run(&options),
        Command::Bench(bench) => bench::run(bench),
        Command::Simulate(options) => simulate::run(&options),
        Command::Reproduce(options) => reproduce::run(&options),
        Command::Torture(torture) => torture::run(torture),
        Command::Calibrate(options) => reproduce::calibrate(&options),
        Command::Demo(options) => demo::run(options),
        Command::Manual(options) => manual::manual(CommandLine::command(), &options),
        Command::Completions(options) => manual::completions(CommandLine::command(), &options),
    }
}

fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) if error.use_stderr() => {
            eprintln!("willow: {}", usage_error(&error));
            // Of grep, 1 would say that nothing was found.
            let is_grep = std::env::args_os().nth(1).is_some_and(|word| word == "grep");
            return ExitCode::from(if is_grep { grep::STATUS_ERROR } else { 1 });
        }
        Err(help) => {
            // Printing to a closed pipe is no failure.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    let command = match command_line.command {
        Command::Grep(arguments) => return grep::run(*arguments),
        other => other,
    };
    let outcome = run(command);
    logging::finish();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("willow: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// A usage error as one line: what was wrong, and where to read on.
fn usage_error(error: &clap::Error) -> String {
    if matches!(
        error.kind(),
        clap::error::ErrorKind::MissingSubcommand | clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return "a command is missing: see --help".to_owned();
    }
    let text = error.render().to_string();
    let mut parts = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            continue;
        }
        parts.push(line.trim_start_matches("error: "));
    }
    format!("{} (see --help)", parts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_one_line() {
        for arguments in [
            &["willow"][..],
            &["willow", "nonsense"],
            &["willow", "serve", "--spus", "many"],
            &["willow", "serve", "--ram", "--media", "x"],
            &["willow", "kv", "get"],
            &["willow", "ns", "create"],
            &["willow", "app"],
        ] {
            let error = CommandLine::try_parse_from(arguments).unwrap_err();
            let text = usage_error(&error);
            assert!(!text.contains('\n') && text.contains("--help"), "{text}");
        }
    }
}
