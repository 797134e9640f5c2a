//! `willow direct`: reads and writes a file by the process' own endpoint, without the operating system between.

use crate::failure::{Context, Failure, Outcome, fail};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use willow_host::direct_io::{AgentClient, DirectFile, endpoint};
use willow_host::{ControlClient, Hre, ShmHre, ShmOptions};
use willow_shm::message::Kind;

/// Bytes moved at a time.
const STEP_BYTES: usize = 1 << 20;

/// Where the device and the agent are.
#[derive(Debug, clap::Args)]
pub struct Reach {
    /// The device's socket (willow serve --socket) [default: the agent says where the device is]
    #[arg(long, value_name = "PATH")]
    target: Option<PathBuf>,
    /// The agent's socket (willow agent --socket)
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Go through this app instead of direct-io: one of your own with the same handlers
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Direct {
    /// Write a file's bytes to standard output
    Read {
        /// The file
        file: PathBuf,
        /// First byte
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// How many [default: to the end]
        #[arg(long)]
        bytes: Option<u64>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Write standard input to a file, within its length
    Write {
        /// The file
        file: PathBuf,
        /// First byte
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// Open the file for reading only, and try all the same
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        reach: Reach,
    },
}

struct Opened {
    file: DirectFile,
    runtime: tokio::runtime::Runtime,
}

fn open(reach: &Reach, file: File) -> Outcome<Opened> {
    let agent = AgentClient::connect(&reach.agent).map_err(Failure::new)?;
    let runtime = crate::client::runtime()?;
    let hre: Arc<dyn Hre> = match &reach.target {
        Some(path) => {
            let options = ShmOptions { kind: Kind::User, ..Default::default() };
            Arc::new(ShmHre::open(path, options).map_err(Failure::new)?)
        }
        None => runtime.block_on(endpoint(&agent)).map_err(Failure::new)?,
    };
    let mut file = DirectFile::open(&agent, hre.clone(), file).map_err(Failure::new)?;
    if let Some(name) = &reach.app {
        let number = runtime.block_on(ControlClient::new(hre).find_app(name));
        file.use_app(number.context(|| format!("cannot use app {name}"))?);
    }
    Ok(Opened { file, runtime })
}

/// Does it.
pub fn run(direct: Direct) -> Outcome<()> {
    match direct {
        Direct::Read { file, offset, bytes, reach } => {
            let named = File::open(&file).context(|| format!("cannot open {}", file.display()))?;
            let Opened { file, runtime } = open(&reach, named)?;
            let end = bytes.map_or(file.bytes(), |bytes| offset.saturating_add(bytes).min(file.bytes()));
            let mut at = offset;
            let mut buffer = vec![0; STEP_BYTES];
            while at < end {
                let step = STEP_BYTES.min((end - at) as usize);
                let count = runtime.block_on(file.read_at(&mut buffer[..step], at)).map_err(Failure::new)?;
                let written = std::io::stdout().write_all(&buffer[..count]);
                written.context(|| "cannot write to standard output".to_owned())?;
                at += count as u64;
            }
            file.close().map_err(Failure::new)
        }
        Direct::Write { file, offset, read_only, reach } => {
            let named = OpenOptions::new().read(true).write(!read_only).open(&file);
            let named = named.context(|| format!("cannot open {}", file.display()))?;
            let Opened { file, runtime } = open(&reach, named)?;
            let mut data = Vec::new();
            let room = file.bytes().saturating_sub(offset);
            let read = std::io::stdin().take(room + 1).read_to_end(&mut data);
            read.context(|| "cannot read standard input".to_owned())?;
            if data.len() as u64 > room {
                fail!(
                    "standard input has more than the {room} bytes from {offset} to the end of the file: extend it first"
                );
            }
            for (index, piece) in data.chunks(STEP_BYTES).enumerate() {
                let at = offset + (index * STEP_BYTES) as u64;
                runtime.block_on(file.write_at(piece, at)).map_err(Failure::new)?;
            }
            runtime.block_on(file.sync()).map_err(Failure::new)?;
            file.close().map_err(Failure::new)
        }
    }
}
