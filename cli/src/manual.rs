//! The manual pages and the shells' completions, made of the command's own definitions, so that they say what it does.

use crate::failure::{Context, Outcome};
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;

/// Where manual pages go.
#[derive(Debug, Args)]
pub struct ManualOptions {
    /// Folder for the pages, made where it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Which shell's completions.
#[derive(Debug, Args)]
pub struct CompletionsOptions {
    /// The shell
    shell: Shell,
}

/// Writes `willow.1`, and a page for each command below it, such as `willow-ns-create.1`.
pub fn manual(command: Command, options: &ManualOptions) -> Outcome<()> {
    let out = &options.out;
    std::fs::create_dir_all(out).context(|| format!("cannot make the folder {}", out.display()))?;
    clap_mangen::generate_to(command, out).context(|| format!("cannot write the pages to {}", out.display()))
}

/// Prints a shell's completions.
pub fn completions(mut command: Command, options: &CompletionsOptions) -> Outcome<()> {
    let mut bytes = Vec::new();
    clap_complete::generate(options.shell, &mut command, "willow", &mut bytes);
    crate::output::bytes(&bytes)
}
