//! `willow rpc`: calls one handler of an app.

use crate::client::Client;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::target::TargetOption;
use std::io::Read;
use std::path::PathBuf;

/// Most bytes of a request's data, and of a reply.
pub const DATA_BYTES_MAX: u64 = 1 << 20;

/// Flags of `willow rpc`.
#[derive(Debug, clap::Args)]
pub struct RpcOptions {
    /// Name of the app
    app: String,
    /// Handler: its name or number
    handler: String,
    /// SPU to send it to [default: the app decides]
    #[arg(long)]
    spu: Option<u16>,
    /// Data to send: a file, or - for standard input
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Ask for a reply of at most this many bytes and print it as it is
    #[arg(long, value_name = "BYTES")]
    reply: Option<u32>,
    #[command(flatten)]
    target: TargetOption,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads a file, or standard input for `-`, up to a bound.
pub fn read_data(file: &PathBuf, bytes_max: u64) -> Outcome<Vec<u8>> {
    let mut data = Vec::new();
    let name = file.display();
    if file.as_os_str() == "-" {
        std::io::stdin()
            .lock()
            .take(bytes_max + 1)
            .read_to_end(&mut data)
            .context(|| "cannot read standard input".to_owned())?;
    } else {
        let opened = std::fs::File::open(file).context(|| format!("cannot read {name}"))?;
        opened.take(bytes_max + 1).read_to_end(&mut data).context(|| format!("cannot read {name}"))?;
    }
    if data.len() as u64 > bytes_max {
        fail!("{name} has more than {bytes_max} bytes, which is the most that can be sent");
    }
    Ok(data)
}

/// Runs it.
pub fn run(options: RpcOptions) -> Outcome<()> {
    let data = match &options.data {
        Some(file) => read_data(file, DATA_BYTES_MAX)?,
        None => Vec::new(),
    };
    let reply_bytes = options.reply.unwrap_or(0);
    if u64::from(reply_bytes) > DATA_BYTES_MAX {
        fail!("--reply is {reply_bytes}, must be at most {DATA_BYTES_MAX}");
    }
    let mut client = Client::connect(&options.target)?;
    let apps = client.apps()?;
    let Some(app) = apps.iter().find(|app| app.name == options.app) else {
        let names: Vec<&str> = apps.iter().map(|app| app.name.as_str()).collect();
        fail!("app {} is not installed; there are {}", options.app, names.join(", "));
    };
    let named = app.handlers.iter().find(|(_, name)| *name == options.handler).map(|(number, _)| *number);
    let handler = named.or_else(|| options.handler.parse().ok().filter(|number| *number > 0)).ok_or_else(|| {
        let names: Vec<String> = app.handlers.iter().map(|(number, name)| format!("{number}:{name}")).collect();
        Failure::new(format_args!("{} has no handler {}; it has {}", app.name, options.handler, names.join(" ")))
    })?;
    let answer = client.rpc(app.number, handler, options.spu, &data, reply_bytes)?;
    if options.json {
        let hex: String = answer.reply.iter().map(|byte| format!("{byte:02x}")).collect();
        output::json(&serde_json::json!({ "status": answer.status, "result": answer.result, "reply_hex": hex }))?;
    }
    if answer.status != 0 {
        fail!("handler {handler} of {} answered with status {} and result {}", app.name, answer.status, answer.result);
    }
    match (options.json, options.reply) {
        (true, _) => Ok(()),
        (false, Some(_)) => output::bytes(&answer.reply),
        (false, None) => output::line(&format!("result {}", answer.result)),
    }
}
