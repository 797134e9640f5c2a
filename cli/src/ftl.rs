//! `willow ftl`: who serves the banks of a device with flash, and putting another version in its place.

use crate::app::read_module;
use crate::client::Client;
use crate::failure::{Outcome, fail};
use crate::output;
use crate::statistics::Statistics;
use crate::table::Table;
use crate::target::TargetOption;
use std::path::PathBuf;
use willow_apps::FTLS;
use willow_device::module_name;

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Ftl {
    /// List the FTLs: those that come with this program, and the one that serves the device
    List {
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put a module in the place of the FTL that serves the running device, of the same name; where it does not start, the old one goes on
    Install {
        /// The module
        file: PathBuf,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Have the FTL of that name, as it comes with this program, serve the running device
    Use {
        /// Its name
        name: String,
        #[command(flatten)]
        target: TargetOption,
    },
}

/// An FTL, as `list` shows it.
#[derive(Debug, serde::Serialize)]
struct Known {
    name: String,
    /// It comes with this program.
    bundled: bool,
    /// It serves the device.
    serves: bool,
    /// Of what serves.
    version: Option<String>,
    state: Option<String>,
}

/// Name of the FTL that serves.
fn serving(statistics: &Statistics) -> Outcome<&str> {
    match &statistics.flash {
        Some(flash) => Ok(&flash.ftl),
        None => fail!("this device has no flash: serve one with a preset that has, as --preset jasmine"),
    }
}

fn install(client: &mut Client, module: &[u8], what: &str) -> Outcome<()> {
    let statistics = client.statistics()?;
    let serving = serving(&statistics)?;
    match module_name(module) {
        Ok(name) if name == serving => {}
        Ok(name) => fail!(
            "{what} is app {name}, and the banks are served by {serving}: an FTL takes the place of one of its name; another is chosen when the device is \
             made (serve --ftl)"
        ),
        Err(why) => fail!("{what} cannot be installed: {why}"),
    }
    let number = client.install(module)?;
    let apps = client.apps()?;
    let Some(app) = apps.iter().find(|app| app.number == number) else {
        fail!("the FTL was installed as number {number} and is gone again: see willow app list");
    };
    output::line(&format!("{} {} serves the banks", app.name, app.version))
}

/// Runs one.
pub fn run(ftl: Ftl) -> Outcome<()> {
    match ftl {
        Ftl::List { target, json } => {
            let mut client = Client::connect(&target)?;
            let statistics = client.statistics()?;
            let serving = statistics.flash.as_ref().map(|flash| flash.ftl.as_str());
            let installed = client.apps()?;
            let others = serving.filter(|name| FTLS.iter().all(|ftl| ftl.name != *name));
            let names = FTLS.iter().map(|ftl| ftl.name).chain(others);
            let known = names.map(|name| {
                let app = installed.iter().find(|app| serving == Some(name) && app.name == name);
                Known {
                    name: name.to_owned(),
                    bundled: FTLS.iter().any(|ftl| ftl.name == name),
                    serves: serving == Some(name),
                    version: app.map(|app| app.version.clone()),
                    state: app.map(|app| app.state.clone()),
                }
            });
            let known: Vec<Known> = known.collect();
            if json {
                return output::json(&serde_json::json!({ "ftls": known }));
            }
            let mut table = Table::new(&["name", "comes with this program", "serves", "version", "state"]);
            let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
            for Known { name, bundled, serves, version, state } in known {
                let or_dash = |text: Option<String>| text.unwrap_or("-".to_owned());
                table.row([name, yes(bundled), yes(serves), or_dash(version), or_dash(state)]);
            }
            output::text(&table.render())
        }
        Ftl::Install { file, target } => {
            let module = read_module(&file)?;
            install(&mut Client::connect(&target)?, &module, &file.display().to_string())
        }
        Ftl::Use { name, target } => {
            let Some(ftl) = FTLS.iter().find(|ftl| ftl.name == name) else {
                let names: Vec<&str> = FTLS.iter().map(|ftl| ftl.name).collect();
                fail!(
                    "no FTL {name} comes with this program: use {}, or willow ftl install FILE.wasm",
                    names.join(" or ")
                );
            };
            install(&mut Client::connect(&target)?, ftl.wasm, &name)
        }
    }
}
