//! `willow debug`: a server of the Debug Adapter Protocol on standard input and output, for VS Code and other clients, between them and an app
//! in a device. Each SPU is a thread: its instance stops alone.
//!
//! What always holds: standard output has messages of the protocol alone; when the client is gone, the device is told so by the end of the connection,
//! and what was stopped goes on.

mod session;
mod source;
mod values;
mod variables;
mod wire;

use crate::client::Client;
use crate::failure::{Outcome, fail};
use crate::target::TargetOption;
use session::Session;
use source::Sources;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How often the device is asked for stops.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Messages of the client that have not been taken.
const MESSAGES_MAX: usize = 64;
/// Longest time that a stop may be given.
const STOP_SECONDS_MAX: f64 = 1e6;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Debug {
    /// The app: it is started anew for the debugger
    app: String,
    /// Only the instance on this SPU stops
    #[arg(long, value_name = "N")]
    spu: Option<u16>,
    /// A stopped instance goes on by itself after this time, so that its requests wait no longer; left out: it waits for the debugger
    #[arg(long, value_name = "SECONDS")]
    longest_stop: Option<f64>,
    /// The app's module with its DWARF, where the installed one has none
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
    #[command(flatten)]
    target: TargetOption,
}

/// Debugs.
pub fn run(arguments: &Debug) -> Outcome<()> {
    let seconds = arguments.longest_stop.unwrap_or(0.0);
    if !(0.0..=STOP_SECONDS_MAX).contains(&seconds) || arguments.longest_stop == Some(0.0) {
        fail!("--longest-stop is more than 0, and at most {STOP_SECONDS_MAX}");
    }
    let file = arguments.module.as_ref().map(crate::app::read_module).transpose()?;
    let mut client = Client::connect(&arguments.target)?;
    let app = client.find_app(&arguments.app)?;
    client.begin_debug(&arguments.app, app, (seconds * 1000.0).ceil() as u32)?;
    let module = match file {
        Some(file) => {
            if source::code_of(&file) != source::code_of(&client.debug_module(app)?) {
                fail!("the module that is installed has other code than the file: build and install it anew");
            }
            file
        }
        None => client.debug_module(app)?,
    };
    let sources = Sources::new(&module);
    let (sender, messages) = sync_channel(MESSAGES_MAX);
    // It ends with its input, or with this process.
    std::thread::spawn(move || {
        let mut input = BufReader::new(std::io::stdin());
        loop {
            let message = wire::read(&mut input);
            let is_last = !matches!(message, Ok(Some(_)));
            if sender.send(message).is_err() || is_last {
                break;
            }
        }
    });
    let mut session = Session::new(client, app, arguments.spu, &sources)?;
    loop {
        match messages.recv_timeout(LOOK_EVERY) {
            Ok(Ok(Some(message))) => {
                if session.handle(&message)?.is_break() {
                    break;
                }
            }
            Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Err(failure)) => return Err(failure),
            Err(RecvTimeoutError::Timeout) => session.look()?,
        }
    }
    session.end();
    Ok(())
}
