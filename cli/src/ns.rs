//! `willow ns`: namespaces of a device.

use crate::client::Client;
use crate::failure::{Outcome, fail};
use crate::output;
use crate::size::Size;
use crate::table::Table;
use crate::target::TargetOption;
use willow_wire::control::{AttachRequest, CommandSet, NamespaceRequest};

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
        /// Attach it to the host of this name, and no other; may be repeated [default: every host has it]
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// It is never attached to more than one host
        #[arg(long, requires = "host")]
        private: bool,
        /// Stripe of a block namespace over the processors, a power of two from 4K to 1M [default: 8K]
        #[arg(long, value_name = "BYTES")]
        stripe: Option<Size>,
        /// Writes of a block namespace within so many bytes, a power of two from 4K to 64K, are whole or not there at all after a power cut: stripes of
        /// that length, and a log on each processor
        #[arg(long, value_name = "BYTES", conflicts_with_all = ["stripe", "app"])]
        atomic: Option<Size>,
        /// The app that serves it, where it is not that of the command set
        #[arg(long, value_name = "NAME")]
        app: Option<String>,
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
    /// Attach a namespace to hosts, for good
    Attach {
        /// Its number
        nsid: u32,
        /// A host's name; may be repeated
        #[arg(long, value_name = "NQN", required_unless_present = "all")]
        host: Vec<String>,
        /// Open it to every host
        #[arg(long, conflicts_with = "host")]
        all: bool,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Take a namespace from hosts, for good
    Detach {
        /// Its number
        nsid: u32,
        /// A host's name; may be repeated
        #[arg(long, value_name = "NQN", required_unless_present = "all")]
        host: Vec<String>,
        /// Take it from all hosts
        #[arg(long, conflicts_with = "host")]
        all: bool,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Give a block namespace another size; connected hosts see it at once, and what it loses is gone
    Resize {
        /// Its number
        nsid: u32,
        /// The new size, such as 2G; rounded up to whole stripes on all processors
        #[arg(long)]
        size: Size,
        /// Make it smaller, though its last blocks are lost
        #[arg(long)]
        shrink: bool,
        #[command(flatten)]
        target: TargetOption,
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

/// What `--atomic` may be: from the shortest stripe to the longest write that the app has room for.
const ATOMIC_BYTES: std::ops::RangeInclusive<u64> = 4096..=atomic_io_host::WRITE_BYTES_MAX as u64;

/// Checks that a text can be a host's name.
fn check_host(host: &str) -> Outcome<()> {
    if !willow_nvme::config::is_nqn(host.as_bytes()) {
        fail!("--host \"{host}\" is no host's name: write its NQN, nqn.YYYY-MM.DOMAIN:NAME");
    }
    Ok(())
}

/// Runs one.
pub fn run(ns: Ns) -> Outcome<()> {
    match ns {
        Ns::Create { csi, size, block_bytes, host, private, stripe, atomic, app, target, json } => {
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
            host.iter().try_for_each(|host| check_host(host))?;
            let hosts = (!host.is_empty()).then_some(host);
            let stripe_bytes = match stripe.map(|stripe| u32::try_from(stripe.0)) {
                None => None,
                Some(Ok(bytes)) => Some(bytes),
                Some(Err(_)) => fail!("--stripe is too long: use a power of two from 4K to 1M"),
            };
            let (stripe_bytes, app) = match atomic {
                None => (stripe_bytes, app),
                Some(_) if csi == CommandSet::Kv => fail!("a key-value namespace has no blocks: leave --atomic out"),
                Some(Size(bytes)) if bytes.is_power_of_two() && ATOMIC_BYTES.contains(&bytes) => {
                    (Some(bytes as u32), Some(atomic_io_host::APP_NAME.to_owned()))
                }
                Some(size) => fail!("--atomic {size} is not possible: use a power of two from 4K to 64K"),
            };
            let request = NamespaceRequest {
                block_bytes,
                hosts,
                private,
                stripe_bytes,
                app,
                ..NamespaceRequest::new(csi, size.0)
            };
            let nsid = Client::connect(&target)?.make_namespace(&request)?;
            if json {
                output::json(&serde_json::json!({ "nsid": nsid }))
            } else {
                output::line(&format!("nsid {nsid}"))
            }
        }
        Ns::List { target, json } => {
            let mut client = Client::connect(&target)?;
            let (namespaces, attachments) = (client.namespaces()?, client.attachments()?);
            if json {
                return output::json(&serde_json::json!({ "namespaces": namespaces, "attachments": attachments }));
            }
            let mut table = Table::new(&["nsid", "csi", "size", "block", "stripe", "app", "nguid", "hosts"]);
            for namespace in namespaces {
                let attachment = attachments.iter().find(|attachment| attachment.nsid == namespace.nsid);
                table.row([
                    namespace.nsid.to_string(),
                    name_of(namespace.csi).to_owned(),
                    Size(namespace.size_bytes).to_string(),
                    if namespace.csi == CommandSet::Nvm { namespace.block_bytes.to_string() } else { "-".to_owned() },
                    if namespace.csi == CommandSet::Nvm {
                        Size(namespace.stripe_bytes.into()).to_string()
                    } else {
                        "-".to_owned()
                    },
                    namespace.app.clone(),
                    namespace.nguid.iter().map(|byte| format!("{byte:02x}")).collect(),
                    match attachment {
                        None => "all".to_owned(),
                        Some(attachment) if attachment.hosts.is_empty() => "none".to_owned(),
                        Some(attachment) => attachment.hosts.join(" "),
                    },
                ]);
            }
            output::text(&table.render())
        }
        Ns::Attach { nsid, host, all, target } => {
            host.iter().try_for_each(|host| check_host(host))?;
            let request = if all {
                AttachRequest { nsid, ..AttachRequest::default() }
            } else {
                AttachRequest { nsid, attach: host, ..AttachRequest::default() }
            };
            Client::connect(&target)?.change_attachment(&request)
        }
        Ns::Detach { nsid, host, all, target } => {
            let request = if all {
                AttachRequest { nsid, hosts: Some(Vec::new()), ..AttachRequest::default() }
            } else {
                AttachRequest { nsid, detach: host, ..AttachRequest::default() }
            };
            Client::connect(&target)?.change_attachment(&request)
        }
        Ns::Resize { nsid, size, shrink, target } => {
            let mut client = Client::connect(&target)?;
            let now = client.namespaces()?.into_iter().find(|namespace| namespace.nsid == nsid);
            if !shrink && let Some(now) = now.filter(|now| size.0 < now.size_bytes) {
                let now = Size(now.size_bytes);
                fail!("namespace {nsid} has {now} now: what lies behind {size} would be lost; say --shrink if it may");
            }
            let size = Size(client.resize_namespace(nsid, size.0)?);
            output::line(&format!("nsid {nsid} size {size}"))
        }
        Ns::Delete { nsid, target } => Client::connect(&target)?.delete_namespace(nsid),
    }
}
