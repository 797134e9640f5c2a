//! `willow saxpy` and `willow fft`: numeric kernels on files of numbers that lie on a drive, done there.
//!
//! What always holds: exit status 0 where the result is there, durable and whole; else 1, and nothing is there by the result's name that was not before
//! (but with --in-place).

use crate::failure::{Failure, Outcome, fail};
use compute_host::Element;
use std::path::PathBuf;
use willow_host::compute::{self, ComputeError, Done, Drive, Form, Options, Transposer};

/// Names the agent's socket where no flag does.
const AGENT_VARIABLE: &str = "WILLOW_AGENT";

/// What all kernels have.
#[derive(Debug, clap::Args)]
struct Common {
    /// Where the result goes: a new file, which gets this name when it is whole
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The files are plain numbers of this type, without a header: f4, f8, c8, c16 [default: .npy files]
    #[arg(long, value_name = "TYPE", value_parser = element)]
    dtype: Option<Element>,
    /// Write over a result file that is there and has the right type, order and shape; a failed run leaves part of the result in it
    #[arg(long)]
    in_place: bool,
    /// The agent's socket (willow agent --socket) [default: $WILLOW_AGENT]
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The device's socket (willow serve --socket) [default: the agent says where the device is]
    #[arg(long, value_name = "PATH")]
    target: Option<PathBuf>,
    /// Fail where the drive cannot do it, instead of doing it on this host
    #[arg(long)]
    drive_only: bool,
    /// Say at the end, on standard error, what was done where
    #[arg(long)]
    report: bool,
}

/// Flags of `willow saxpy`.
#[derive(Debug, clap::Args)]
pub struct SaxpyOptions {
    /// The factor
    #[arg(allow_hyphen_values = true)]
    alpha: f64,
    /// The vector that is multiplied
    x: PathBuf,
    /// The vector that is added
    y: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Who transposes a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum TransposerName {
    /// This host: blocks cross its link
    #[default]
    Host,
    /// The drive: blocks go over its ring
    Drive,
}

/// Flags of `willow fft`.
#[derive(Debug, clap::Args)]
pub struct FftOptions {
    /// The numbers
    input: PathBuf,
    /// Both axes of a matrix, as numpy.fft.fft2 [default: the last axis, as numpy.fft.fft]
    #[arg(long = "2d")]
    two_dimensional: bool,
    /// The inverse, which divides by the number of numbers
    #[arg(long)]
    inverse: bool,
    /// --2d: who transposes the matrix
    #[arg(long, value_name = "WHO", default_value = "host", requires = "two_dimensional")]
    transpose: TransposerName,
    /// --dtype: sizes of the axes, with commas between [default: one axis]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', requires = "dtype")]
    shape: Option<Vec<u64>>,
    #[command(flatten)]
    common: Common,
}

fn element(name: &str) -> Result<Element, String> {
    Element::of_name(name).ok_or_else(|| "expected f4, f8, c8 or c16 (little-endian)".to_owned())
}

impl Common {
    fn options(&self) -> Options {
        Options { form: self.dtype.map_or(Form::Npy, Form::Raw), drive_only: self.drive_only, in_place: self.in_place }
    }

    async fn drive(&self) -> Outcome<Drive> {
        let named = std::env::var_os(AGENT_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(agent) = self.agent.clone().or(named) else {
            fail!("name the agent's socket: --agent PATH, or the variable {AGENT_VARIABLE}");
        };
        Drive::connect(&agent, self.target.as_deref()).await.map_err(Failure::new)
    }

    fn say(&self, done: &Done) {
        if let Some(why) = &done.by_host {
            eprintln!("willow: done by this host: {why}");
        }
        if self.report {
            let by = if done.by_host.is_some() { "host" } else { "drive" };
            eprintln!("willow: by={by} elements={} host_bytes={}", done.elements, done.host_bytes);
        }
    }

    fn run(&self, kernel: impl AsyncFnOnce(&Drive, Options) -> Result<Done, ComputeError>) -> Outcome<()> {
        let runtime = crate::client::runtime()?;
        let done = runtime.block_on(async {
            let drive = self.drive().await?;
            kernel(&drive, self.options()).await.map_err(Failure::new)
        })?;
        self.say(&done);
        Ok(())
    }
}

/// `willow saxpy`.
pub fn saxpy(options: &SaxpyOptions) -> Outcome<()> {
    let SaxpyOptions { alpha, x, y, common } = options;
    common.run(async |drive, how| compute::saxpy(Some(drive), how, (*alpha, x, y), &common.out).await)
}

/// `willow fft`.
pub fn fft(options: &FftOptions) -> Outcome<()> {
    let FftOptions { input, two_dimensional, inverse, transpose, shape, common } = options;
    let transposer = match transpose {
        TransposerName::Host => Transposer::Host,
        TransposerName::Drive => Transposer::Drive,
    };
    let what = compute::FftOptions { inverse: *inverse, two_dimensional: *two_dimensional, transposer };
    common.run(async |drive, how| compute::fft(Some(drive), (how, what), (input, shape.as_deref()), &common.out).await)
}
