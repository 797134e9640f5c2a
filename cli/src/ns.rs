//! `willow ns`: namespaces of a device.

use crate::client::Client;
use crate::failure::{Outcome, fail};
use crate::output;
use crate::size::Size;
use crate::table::Table;
use crate::target::TargetOption;
use willow_wire::control::CommandSet;

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Ns {
    /// Make a namespace; connected hosts see it at once
    Create {
        /// Command set: nvm (block device) or kv (key-value pairs)
        #[arg(long, value_name = "nvm|kv")]
        csi: String,
        /// Size, such as 1G
        #[arg(long)]
        size: Size,
        /// Logical block of a block namespace: 512 or 4096 [default: 4096]
        #[arg(long, value_name = "512|4096")]
        block_bytes: Option<u32>,
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the namespaces
    List {
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Delete a namespace and its contents
    Delete {
        /// Its number
        nsid: u32,
        #[command(flatten)]
        target: TargetOption,
    },
}

/// The name of a command set.
pub fn name_of(csi: CommandSet) -> &'static str {
    match csi {
        CommandSet::Nvm => "nvm",
        CommandSet::Kv => "kv",
    }
}

/// Runs one.
pub fn run(ns: Ns) -> Outcome<()> {
    match ns {
        Ns::Create { csi, size, block_bytes, target, json } => {
            let csi = match csi.as_str() {
                "nvm" => CommandSet::Nvm,
                "kv" => CommandSet::Kv,
                other => fail!("\"{other}\" is no command set: use --csi nvm or --csi kv"),
            };
            if csi == CommandSet::Kv && block_bytes.is_some() {
                fail!("a key-value namespace has no blocks: leave --block-bytes out");
            }
            if size.0 == 0 {
                fail!("--size is 0: a namespace has at least one byte");
            }
            let nsid = Client::connect(&target)?.create_namespace(csi, size.0, block_bytes)?;
            if json {
                output::json(&serde_json::json!({ "nsid": nsid }))
            } else {
                output::line(&format!("nsid {nsid}"))
            }
        }
        Ns::List { target, json } => {
            let namespaces = Client::connect(&target)?.namespaces()?;
            if json {
                return output::json(&serde_json::json!({ "namespaces": namespaces }));
            }
            let mut table = Table::new(&["nsid", "csi", "size", "block", "nguid"]);
            for namespace in namespaces {
                table.row([
                    namespace.nsid.to_string(),
                    name_of(namespace.csi).to_owned(),
                    Size(namespace.size_bytes).to_string(),
                    if namespace.csi == CommandSet::Nvm { namespace.block_bytes.to_string() } else { "-".to_owned() },
                    namespace.nguid.iter().map(|byte| format!("{byte:02x}")).collect(),
                ]);
            }
            output::text(&table.render())
        }
        Ns::Delete { nsid, target } => Client::connect(&target)?.delete_namespace(nsid),
    }
}
