//! `willow app`: what is installed in a device, and writing new apps.

use crate::client::Client;
use crate::coredump;
use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use crate::size::Size;
use crate::table::Table;
use crate::target::TargetOption;
use std::path::{Path, PathBuf};
use std::time::Duration;
use willow_app_tool::Language;
use willow_device::media::BLOB_BYTES_MAX;

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum App {
    /// Install a module into the running device; replaces the app of the same name
    Install {
        /// The module
        file: PathBuf,
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the installed apps
    List {
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove an app
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Print what an app printed to its virtual serial port
    Log {
        /// Its name
        name: String,
        /// Go on with what it prints from now on, until interrupted
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Start an app anew, without the others: what it had begun is answered as ended, its data stay
    Reset {
        /// Its name
        name: String,
        #[command(flatten)]
        target: TargetOption,
    },
    /// Write a core dump of the instance that trapped last, and print its stack
    Core {
        /// Its name
        name: String,
        /// File for the core dump, in the form of WebAssembly's tools; left out: only print the stack
        #[arg(short, long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        target: TargetOption,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make a folder with a new app: source, test, build file
    New {
        /// Name of the app and of the folder
        name: String,
        /// Language: rust or c
        #[arg(long, value_name = "rust|c", default_value = "rust")]
        lang: String,
    },
    /// Build the app in the current folder; prints the module's path last
    Build {
        /// With DWARF for a debugger, and less optimised
        #[arg(long)]
        debug: bool,
    },
    /// Run the tests of the app in the current folder, natively
    Test,
}

/// Runs one.
pub fn run(app: App) -> Outcome<()> {
    match app {
        App::Install { file, target, json } => {
            let module = read_module(&file)?;
            let mut client = Client::connect(&target)?;
            let number = client.install(&module)?;
            let apps = client.apps()?;
            let Some(app) = apps.iter().find(|app| app.number == number) else {
                fail!("the app was installed as number {number} and is gone again: see willow app list");
            };
            if json {
                return output::json(&app);
            }
            output::line(&format!("installed {} {} as app {number}", app.name, app.version))
        }
        App::List { target, json } => {
            let apps = Client::connect(&target)?.apps()?;
            if json {
                return output::json(&serde_json::json!({ "apps": apps }));
            }
            let mut table = Table::new(&["number", "name", "version", "module", "memory", "state", "handlers"]);
            for app in apps {
                let handlers: Vec<String> =
                    app.handlers.iter().map(|(number, name)| format!("{number}:{name}")).collect();
                table.row([
                    app.number.to_string(),
                    app.name,
                    app.version,
                    Size(app.module_bytes).to_string(),
                    Size(app.memory_bytes).to_string(),
                    app.state,
                    handlers.join(" "),
                ]);
            }
            output::text(&table.render())
        }
        App::Remove { name, target } => Client::connect(&target)?.remove(&name),
        App::Log { name, follow, target } => print_log(&mut Client::connect(&target)?, &name, follow),
        App::Reset { name, target } => Client::connect(&target)?.reset(&name),
        App::Core { name, out, target, json } => {
            let (info, memory) = Client::connect(&target)?.core(&name)?;
            if let Some(out) = out {
                let file = coredump::encode(&info, &memory)?;
                std::fs::write(&out, file).context(|| format!("cannot write {}", out.display()))?;
            }
            if json { output::json(&info) } else { output::text(&coredump::describe(&info)) }
        }
        App::New { name, lang } => new(&name, &lang),
        App::Build { debug } => {
            let module = willow_app_tool::build(Path::new("."), debug).map_err(Failure::new)?;
            output::line(&module.display().to_string())
        }
        App::Test => willow_app_tool::test(Path::new(".")).map_err(Failure::new),
    }
}

/// How often a log that is followed is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);

/// Prints an app's log, and where it is followed what comes to it.
fn print_log(client: &mut Client, name: &str, follow: bool) -> Outcome<()> {
    let app = client.find_app(name)?;
    let mut position = 0;
    loop {
        let (from, text) = client.log_from(name, app, position)?;
        if position > 0 && from > position {
            eprintln!("willow: {} bytes were printed faster than they were read, and are lost", from - position);
        }
        position = from + text.len() as u64;
        // Whole pieces may end within a character.
        if !text.is_empty() {
            output::bytes(&text)?;
        } else if follow {
            std::thread::sleep(FOLLOW_EVERY);
        } else {
            return Ok(());
        }
    }
}

/// Reads a module; refuses what cannot be one before it travels.
pub fn read_module(file: &PathBuf) -> Outcome<Vec<u8>> {
    let name = file.display();
    let metadata = std::fs::metadata(file).context(|| format!("cannot read {name}"))?;
    if metadata.len() > BLOB_BYTES_MAX as u64 {
        fail!("{name} has {} bytes, a module has at most {BLOB_BYTES_MAX}", metadata.len());
    }
    let module = std::fs::read(file).context(|| format!("cannot read {name}"))?;
    if !module.starts_with(b"\0asm") {
        fail!("{name} is no WebAssembly module: build one with willow app build");
    }
    Ok(module)
}

fn new(name: &str, lang: &str) -> Outcome<()> {
    let language = match lang {
        "rust" => Language::Rust,
        "c" => Language::C,
        other => fail!("\"{other}\" is no language for apps: use --lang rust or --lang c"),
    };
    let folder = willow_app_tool::create(name, language, Path::new(".")).map_err(Failure::new)?;
    output::line(&format!("{} is a new app: build it there with willow app build, see its README.md", folder.display()))
}
