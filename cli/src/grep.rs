//! `willow grep`: grep on files that lie on a drive, searched there. Options, output and exit status are GNU grep's.
//!
//! What always holds: exit status 0 where a line was selected, 1 where none was, 2 after an error; an error of one file is said, and the others
//! are searched.

use clap::ArgAction;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::runtime::Runtime;
use willow_host::direct_io::{AgentClient, DirectError, DirectFile, endpoint};
use willow_host::search::{SearchError, Searcher, Work, search_on_host};
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_shm::message::Kind;

use search_host::pattern::PATTERN_BYTES_MAX;
use search_host::{Found, Grep, GrepOptions, Pattern, PatternError, PatternOptions, Syntax};

/// Exit status after an error: grep's.
pub const STATUS_ERROR: u8 = 2;
/// Names the agent's socket where no flag does.
const AGENT_VARIABLE: &str = "WILLOW_AGENT";
/// Output that is put together before it is written.
const OUTPUT_BYTES: usize = 64 << 10;

/// Flags of `willow grep`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct GrepArguments {
    /// PATTERN (unless -e or -f names it), then files
    #[arg(value_name = "PATTERN|FILE", num_args = 0..)]
    words: Vec<OsString>,
    /// Search for this pattern; may be repeated
    #[arg(short = 'e', long = "regexp", value_name = "PATTERN", allow_hyphen_values = true)]
    patterns: Vec<OsString>,
    /// Search for the lines of this file; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pattern_files: Vec<PathBuf>,
    /// Patterns are extended regular expressions
    #[arg(short = 'E', long, overrides_with_all = ["fixed_strings", "basic_regexp", "extended_regexp"])]
    extended_regexp: bool,
    /// Patterns are plain strings
    #[arg(short = 'F', long, overrides_with_all = ["fixed_strings", "basic_regexp", "extended_regexp"])]
    fixed_strings: bool,
    /// Patterns are basic regular expressions (the default)
    #[arg(short = 'G', long, overrides_with_all = ["fixed_strings", "basic_regexp", "extended_regexp"])]
    basic_regexp: bool,
    /// Upper and lower case are the same
    #[arg(short = 'i', long, action = ArgAction::Count)]
    ignore_case: u8,
    /// Whole words alone
    #[arg(short = 'w', long, action = ArgAction::Count)]
    word_regexp: u8,
    /// Whole lines alone
    #[arg(short = 'x', long, action = ArgAction::Count)]
    line_regexp: u8,
    /// Lines that do not match
    #[arg(short = 'v', long, action = ArgAction::Count)]
    invert_match: u8,
    /// The number of selected lines alone
    #[arg(short = 'c', long, action = ArgAction::Count)]
    count: u8,
    /// With line numbers
    #[arg(short = 'n', long, action = ArgAction::Count)]
    line_number: u8,
    /// What matches alone
    #[arg(short = 'o', long, action = ArgAction::Count)]
    only_matching: u8,
    /// Names of files with selected lines alone
    #[arg(short = 'l', long, action = ArgAction::Count)]
    files_with_matches: u8,
    /// Names of files without
    #[arg(short = 'L', long, action = ArgAction::Count)]
    files_without_match: u8,
    /// Nothing: the exit status says it
    #[arg(short = 'q', long, visible_alias = "silent", action = ArgAction::Count)]
    quiet: u8,
    /// Binary files as if they were text
    #[arg(short = 'a', long, action = ArgAction::Count)]
    text: u8,
    /// At most so many selected lines of a file
    #[arg(short = 'm', long, value_name = "LINES")]
    max_count: Option<u64>,
    /// With the files' names (the default where there are several)
    #[arg(short = 'H', long, overrides_with = "no_filename", action = ArgAction::Count)]
    with_filename: u8,
    /// Without the files' names
    #[arg(short = 'h', long, overrides_with = "with_filename", action = ArgAction::Count)]
    no_filename: u8,
    /// No word of files that cannot be read
    #[arg(short = 's', long, action = ArgAction::Count)]
    no_messages: u8,
    /// The agent's socket (willow agent --socket) [default: $WILLOW_AGENT]
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The device's socket (willow serve --socket) [default: the agent says where the device is]
    #[arg(long, value_name = "PATH")]
    target: Option<PathBuf>,
    /// Fail for files that the drive cannot search, instead of reading them
    #[arg(long)]
    drive_only: bool,
    /// Say at the end, on standard error, what was searched where
    #[arg(long)]
    report: bool,
    /// Print help
    #[arg(long, action = ArgAction::HelpLong)]
    help: Option<bool>,
}

/// A way to the drive.
struct Way {
    agent: Arc<AgentClient>,
    hre: Arc<dyn Hre>,
    /// `None` where the pattern is one for the host.
    searcher: Option<Searcher>,
}

/// What was done, for `--report`.
#[derive(Default)]
struct Report {
    drive_files: u64,
    host_files: u64,
    work: Work,
}

struct Command {
    arguments: GrepArguments,
    options: GrepOptions,
    pattern: Pattern,
    runtime: Runtime,
    way: Option<Way>,
    report: Report,
}

/// True where the locale's characters are UTF-8, as grep's C library decides it.
fn is_unicode() -> bool {
    let value = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let value = value.unwrap_or_default().to_ascii_lowercase();
    value.ends_with(".utf-8") || value.ends_with(".utf8") || value.contains(".utf-8@") || value.contains(".utf8@")
}

fn say(text: impl std::fmt::Display) {
    eprintln!("willow: {text}");
}

/// An error as the C library says it.
fn system(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

impl GrepArguments {
    fn syntax(&self) -> Syntax {
        match (self.fixed_strings, self.extended_regexp) {
            (true, _) => Syntax::Fixed,
            (_, true) => Syntax::Extended,
            _ => Syntax::Basic,
        }
    }

    /// The patterns; what is left of the words are files.
    fn take_patterns(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let mut patterns: Vec<Vec<u8>> = self.patterns.drain(..).map(OsString::into_vec).collect();
        for path in &self.pattern_files {
            let mut text = Vec::new();
            let read = File::open(path).and_then(|file| file.take(PATTERN_BYTES_MAX as u64 + 1).read_to_end(&mut text));
            read.map_err(|error| format!("{}: {}", path.display(), system(&error)))?;
            if text.len() > PATTERN_BYTES_MAX {
                return Err(format!("{} has more than {PATTERN_BYTES_MAX} bytes of patterns", path.display()));
            }
            if text.last() == Some(&b'\n') {
                text.pop();
                patterns.push(text);
            } else if !text.is_empty() {
                patterns.push(text);
            }
        }
        if patterns.is_empty() && self.pattern_files.is_empty() {
            if self.words.is_empty() {
                return Err("a pattern is missing (see willow grep --help)".to_owned());
            }
            patterns.push(self.words.remove(0).into_vec());
        }
        if self.words.is_empty() {
            return Err("a file is missing: willow grep searches files on a drive, not standard input".to_owned());
        }
        Ok(patterns)
    }

    fn options(&self, unicode: bool) -> GrepOptions {
        let list = self.files_with_matches > 0;
        let list_without = self.files_without_match > 0 && !list;
        let quiet = self.quiet > 0;
        GrepOptions {
            invert: self.invert_match > 0,
            count: self.count > 0 && !quiet && !list && !list_without,
            number: self.line_number > 0,
            only_matching: self.only_matching > 0,
            list: list && !quiet,
            list_without: list_without && !quiet,
            quiet,
            text: self.text > 0,
            with_name: self.with_filename > 0 || (self.words.len() > 1 && self.no_filename == 0),
            unicode,
            lines_max: self.max_count,
        }
    }
}

impl Command {
    fn new(mut arguments: GrepArguments) -> Result<Option<Command>, String> {
        let patterns = arguments.take_patterns()?;
        let unicode = is_unicode();
        let options = arguments.options(unicode);
        let pattern_options = PatternOptions {
            syntax: arguments.syntax(),
            ignore_case: arguments.ignore_case > 0,
            word: arguments.word_regexp > 0,
            line: arguments.line_regexp > 0,
            unicode,
        };
        if options.selects_nothing(&patterns, &pattern_options) {
            return Ok(None);
        }
        let pattern = Pattern::new(&patterns, pattern_options).map_err(|error| error.to_string())?;
        let runtime = crate::client::runtime().map_err(|failure| failure.to_string())?;
        Ok(Some(Command { arguments, options, pattern, runtime, way: None, report: Report::default() }))
    }

    /// Connects, once.
    fn way(&mut self) -> Result<&mut Way, String> {
        if self.way.is_none() {
            let named = std::env::var_os(AGENT_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
            let path = self.arguments.agent.clone().or(named);
            let path =
                path.ok_or_else(|| format!("name the agent's socket: --agent PATH, or the variable {AGENT_VARIABLE}"))?;
            let agent = AgentClient::connect(&path).map_err(|error| error.to_string())?;
            let hre: Arc<dyn Hre> = match &self.arguments.target {
                Some(path) => {
                    let options = ShmOptions { kind: Kind::User, ..Default::default() };
                    Arc::new(ShmHre::open(path, options).map_err(|error| error.to_string())?)
                }
                None => self.runtime.block_on(endpoint(&agent)).map_err(|error| error.to_string())?,
            };
            let searcher = self.runtime.block_on(Searcher::new(hre.clone(), &self.pattern, &self.options));
            let searcher = match searcher {
                Ok(searcher) => Some(searcher),
                Err(SearchError::Pattern(PatternError::TooBig)) => None,
                Err(error) => return Err(error.to_string()),
            };
            self.way = Some(Way { agent, hre, searcher });
        }
        self.way.as_mut().ok_or_else(|| "there is no way to the device".to_owned())
    }

    /// Searches one file.
    fn file(&mut self, name: &OsString, out: &mut dyn Write) -> Result<Found, String> {
        // A pipe that nobody writes is not waited for.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(name);
        let file = file.map_err(|error| system(&error))?;
        let kind = file.metadata().map_err(|error| system(&error))?.file_type();
        if kind.is_dir() {
            return Err("Is a directory".to_owned());
        }
        if !kind.is_file() {
            return Err("it is no regular file: willow grep searches files on a drive".to_owned());
        }
        let drive_only = self.arguments.drive_only;
        self.way()?;
        let (pattern, options) = (&self.pattern, &self.options);
        let Some(way) = &mut self.way else { return Err("there is no way to the device".to_owned()) };
        let refused = match &mut way.searcher {
            None => "the pattern is too big for the drive's memory".to_owned(),
            Some(searcher) => {
                let asked = file.try_clone().map_err(|error| system(&error))?;
                match DirectFile::open(&way.agent, way.hre.clone(), asked) {
                    Ok(direct) => {
                        let grep = Grep::new(pattern, *options, name.as_bytes(), out);
                        let searched = self.runtime.block_on(searcher.search(&direct, pattern, options, grep));
                        self.report.drive_files += 1;
                        let closed = direct.close();
                        let (found, work) = searched.map_err(|error| error.to_string())?;
                        self.report.add(&work);
                        closed.map_err(|error| error.to_string())?;
                        return Ok(found);
                    }
                    Err(error @ (DirectError::Refused(_) | DirectError::Contended { .. } | DirectError::Frozen)) => {
                        error.to_string()
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        if drive_only {
            return Err(refused);
        }
        let grep = Grep::new(pattern, *options, name.as_bytes(), out);
        self.report.host_files += 1;
        let searched = self.runtime.block_on(search_on_host(&file, pattern, options, grep));
        let (found, work) = searched.map_err(|error| error.to_string())?;
        self.report.add(&work);
        Ok(found)
    }

    fn run(&mut self) -> u8 {
        let names = std::mem::take(&mut self.arguments.words);
        let (mut selected, mut failed) = (false, false);
        let mut out = std::io::BufWriter::with_capacity(OUTPUT_BYTES, std::io::stdout().lock());
        for name in &names {
            let found = self.file(name, &mut out);
            match out.flush() {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
                Err(error) => {
                    say(format_args!("cannot write to standard output: {error}"));
                    return STATUS_ERROR;
                }
                Ok(()) => {}
            }
            let name = name.to_string_lossy();
            match found {
                Ok(found) => {
                    if found.is_binary {
                        say(format_args!("{name}: binary file matches"));
                    }
                    selected |= found.lines > 0;
                    if selected && self.options.quiet {
                        break;
                    }
                }
                Err(error) => {
                    failed = true;
                    if self.arguments.no_messages == 0 {
                        say(format_args!("{name}: {error}"));
                    }
                }
            }
        }
        if let Some(Way { searcher: Some(searcher), .. }) = self.way.take() {
            // The device takes back what is left when it needs the room.
            let _ = self.runtime.block_on(searcher.close());
        }
        if self.arguments.report {
            self.report.say();
        }
        match (selected, failed) {
            (true, true) if self.options.quiet => 0,
            (_, true) => STATUS_ERROR,
            (selected, false) => u8::from(!selected),
        }
    }
}

impl Report {
    fn add(&mut self, work: &Work) {
        self.work.drive_bytes += work.drive_bytes;
        self.work.reply_bytes += work.reply_bytes;
        self.work.host_bytes += work.host_bytes;
    }

    fn say(&self) {
        let Work { drive_bytes, reply_bytes, host_bytes } = self.work;
        say(format_args!(
            "drive_files={} host_files={} drive_bytes={drive_bytes} reply_bytes={reply_bytes} host_bytes={host_bytes}",
            self.drive_files, self.host_files
        ));
    }
}

/// Runs it; the exit status.
pub fn run(arguments: GrepArguments) -> ExitCode {
    match Command::new(arguments) {
        Ok(Some(mut command)) => ExitCode::from(command.run()),
        Ok(None) => ExitCode::from(1),
        Err(error) => {
            say(error);
            ExitCode::from(STATUS_ERROR)
        }
    }
}
