//! `willow sum`, `willow histogram` and `willow filter`: columns of binary, CSV and Parquet files on a drive, worked on there.
//!
//! What always holds: an output file is there when all of it is, or not at all; where a file is worked on is told by `--json` and `--report`.

use crate::failure::{Context, Failure, Outcome, fail};
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;
use willow_host::columns::{ColumnsError, CsvOptions, Place, Work, read_table, run};
use willow_host::direct_io::{AgentClient, DirectError, DirectFile, endpoint};
use willow_host::{Hre, ShmHre, ShmOptions};
use willow_shm::message::Kind;

use columns_host::arrow::ArrowWriter;
use columns_host::outcome::{Counted, Outcome as Results, Row};
use columns_host::schema::parse_schema;
use columns_host::sink::Aggregate;
use columns_host::table::FileFormat;
use columns_host::value::Scalar;
use columns_host::{DataType, Field, Query, Table, Wanted, print};

/// Names the agent's socket where no flag does.
const AGENT_VARIABLE: &str = "WILLOW_AGENT";
/// Output that is put together before it is written.
const OUTPUT_BYTES: usize = 256 << 10;

/// Formats of files.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FormatName {
    /// Fixed-width records, as --schema has them
    Binary,
    /// Text (RFC 4180)
    Csv,
    /// Apache Parquet
    Parquet,
}

/// Formats of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    /// Arrow IPC stream
    Arrow,
    /// Arrow IPC file
    ArrowFile,
    /// Text with a header
    Csv,
    /// An object a line
    Json,
}

/// What all three have.
#[derive(Debug, clap::Args)]
struct Source {
    /// The file
    file: PathBuf,
    /// Only rows for which this is true, such as 'price > 10 and city = "Rome"'
    #[arg(long = "where", value_name = "EXPRESSION")]
    condition: Option<String>,
    /// The file's format [default: as its name ends: .parquet, .csv, .tsv, .bin]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatName>,
    /// Columns and types: id:uint32,price:float64 (all of a binary file; of CSV those that are to be no guess)
    #[arg(long, value_name = "SCHEMA")]
    schema: Option<String>,
    /// Between fields of CSV [default: a comma; a tab where the name ends in .tsv]
    #[arg(long, value_name = "CHARACTER")]
    delimiter: Option<char>,
    /// The first record of CSV is none of names: columns are c1, c2 and so on
    #[arg(long)]
    no_header: bool,
    /// The agent's socket (willow agent --socket) [default: $WILLOW_AGENT]
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The device's socket (willow serve --socket) [default: the agent says where the device is]
    #[arg(long, value_name = "PATH")]
    target: Option<PathBuf>,
    /// Fail where the drive cannot do it, instead of reading the file
    #[arg(long)]
    drive_only: bool,
    /// Say at the end, on standard error, what was done where
    #[arg(long)]
    report: bool,
}

/// Flags of `willow sum`.
#[derive(Debug, clap::Args)]
pub struct SumOptions {
    #[command(flatten)]
    source: Source,
    /// Columns, with commas between
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    column: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Flags of `willow histogram`.
#[derive(Debug, clap::Args)]
pub struct HistogramOptions {
    #[command(flatten)]
    source: Source,
    /// The column
    #[arg(long, value_name = "NAME")]
    column: String,
    /// So many bins of the same width, from the least to the greatest selected value
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=256))]
    bins: u16,
    /// Edges of the bins, ascending, with commas between
    #[arg(long, value_name = "EDGES", allow_hyphen_values = true)]
    edges: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Flags of `willow filter`.
#[derive(Debug, clap::Args)]
pub struct FilterOptions {
    #[command(flatten)]
    source: Source,
    /// Columns, with commas between [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    select: Vec<String>,
    /// Only so many rows: those with the greatest values of --by
    #[arg(long, value_name = "COUNT", requires = "by")]
    top: Option<u32>,
    /// The column that --top goes by
    #[arg(long, value_name = "NAME", requires = "top")]
    by: Option<String>,
    /// --top: those with the least values
    #[arg(long, requires = "top")]
    least: bool,
    /// Where to write [default: standard output]
    #[arg(long, value_name = "FILE|-")]
    output: Option<PathBuf>,
    /// Output's format [default: as its name ends: .arrow and .feather (a file), .arrows (a stream), .json, .jsonl; else csv]
    #[arg(long, value_name = "FORMAT")]
    output_format: Option<OutputFormat>,
}

/// A file that is open, and what it is.
struct Opened {
    runtime: Runtime,
    place: Arc<Place>,
    hre: Option<Arc<dyn Hre>>,
    table: Arc<Table>,
    /// Why the drive does not do it.
    refused: Option<String>,
    report: bool,
}

/// What came of a query.
struct Done {
    results: Results,
    counted: Counted,
    work: Work,
}

fn ends_with(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    ending.is_some_and(|ending| endings.contains(&ending.as_str()))
}

impl Source {
    fn format(&self) -> Outcome<FileFormat> {
        Ok(match self.format {
            Some(FormatName::Binary) => FileFormat::Binary,
            Some(FormatName::Csv) => FileFormat::Csv,
            Some(FormatName::Parquet) => FileFormat::Parquet,
            None if ends_with(&self.file, &["parquet", "parq", "pq"]) => FileFormat::Parquet,
            None if ends_with(&self.file, &["csv", "tsv"]) => FileFormat::Csv,
            None if ends_with(&self.file, &["bin"]) => FileFormat::Binary,
            None => fail!("{}: its name does not say its format: name it by --format", self.file.display()),
        })
    }

    fn csv(&self) -> Outcome<CsvOptions> {
        let default = if ends_with(&self.file, &["tsv"]) { '\t' } else { ',' };
        let delimiter = self.delimiter.unwrap_or(default);
        match u8::try_from(delimiter) {
            Ok(delimiter) if delimiter.is_ascii() && !matches!(delimiter, 0 | b'"' | b'\n' | b'\r') => {
                Ok(CsvOptions { delimiter, has_header: !self.no_header })
            }
            _ => fail!("--delimiter is one ASCII character, and no quote or line end"),
        }
    }

    fn way(&self, runtime: &Runtime) -> Outcome<(Arc<AgentClient>, Arc<dyn Hre>)> {
        let named = std::env::var_os(AGENT_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(path) = self.agent.clone().or(named) else {
            fail!("name the agent's socket: --agent PATH, or the variable {AGENT_VARIABLE}");
        };
        let agent = AgentClient::connect(&path).map_err(Failure::new)?;
        let hre: Arc<dyn Hre> = match &self.target {
            Some(path) => {
                let options = ShmOptions { kind: Kind::User, ..Default::default() };
                Arc::new(ShmHre::open(path, options).map_err(Failure::new)?)
            }
            None => runtime.block_on(endpoint(&agent)).map_err(Failure::new)?,
        };
        Ok((agent, hre))
    }

    fn open(&self) -> Outcome<Opened> {
        let name = || self.file.display().to_string();
        let (format, csv) = (self.format()?, self.csv()?);
        let schema = self.schema.as_deref().map(parse_schema).transpose().map_err(Failure::new)?;
        match (format, &schema) {
            (FileFormat::Binary, None) => fail!("a binary file needs --schema: id:uint32,price:float64"),
            (FileFormat::Parquet, Some(_)) => fail!("a Parquet file has its own schema: leave out --schema"),
            _ => {}
        }
        // A pipe that nobody writes is not waited for.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&self.file);
        let file = file.context(name)?;
        let metadata = file.metadata().context(name)?;
        if !metadata.is_file() {
            fail!("{} is no regular file", name());
        }
        let runtime = crate::client::runtime()?;
        let (agent, hre) = self.way(&runtime)?;
        let (place, hre, refused) = match DirectFile::open(&agent, hre.clone(), file.try_clone().context(name)?) {
            Ok(direct) => (Place::Direct(direct), Some(hre), None),
            Err(error @ (DirectError::Refused(_) | DirectError::Contended { .. } | DirectError::Frozen)) => {
                if self.drive_only {
                    fail!("{}: {error}", name());
                }
                (Place::Host(file, metadata.len()), None, Some(error.to_string()))
            }
            Err(error) => fail!("{}: {error}", name()),
        };
        let table = runtime.block_on(read_table(&place, format, csv, schema)).context(name)?;
        let (place, table) = (Arc::new(place), Arc::new(table));
        Ok(Opened { runtime, place, hre, table, refused, report: self.report })
    }

    /// Runs a query; rows go to `each`.
    fn run(
        &self,
        opened: &Opened,
        wanted: &Wanted,
        each: impl FnMut(&Query, Row) -> Result<(), ColumnsError>,
    ) -> Outcome<(Arc<Query>, Done)> {
        let name = || self.file.display().to_string();
        let query = Query::new(&opened.table, self.condition.as_deref(), wanted).context(name)?;
        let query = Arc::new(query);
        let mut each = each;
        let each_row = |row: Row| each(&query, row);
        let place = (opened.place.clone(), opened.hre.clone());
        let ran = opened.runtime.block_on(run(place, opened.table.clone(), query.clone(), each_row));
        let (results, counted, work) = match ran {
            Err(ColumnsError::Write(error)) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
            ran => ran.context(name)?,
        };
        if self.drive_only && work.host_parts > 0 {
            fail!("{}: an SPU has too little memory for {} of its parts (app_data_bytes_max)", name(), work.host_parts);
        }
        Ok((query, Done { results, counted, work }))
    }
}

impl Opened {
    fn say(&self, done: &Done) {
        if !self.report {
            return;
        }
        let Work { drive_parts, host_parts, reply_bytes, host_bytes } = done.work;
        let Counted { rows, selected } = done.counted;
        eprintln!(
            "willow: rows={rows} selected={selected} drive_parts={drive_parts} host_parts={host_parts} reply_bytes={reply_bytes} \
             host_bytes={host_bytes}"
        );
        if let Some(refused) = &self.refused {
            eprintln!("willow: read by this host: {refused}");
        }
    }

    /// What JSON says beside the results.
    fn json(&self, done: &Done) -> String {
        let by = match done.work {
            Work { host_parts: 0, .. } => "drive",
            Work { drive_parts: 0, .. } => "host",
            _ => "both",
        };
        let Counted { rows, selected } = done.counted;
        format!("\"by\":\"{by}\",\"rows\":{rows},\"selected\":{selected}")
    }
}

/// An aggregate's sum as text.
fn sum_text(aggregate: &Aggregate) -> String {
    aggregate.exact.first().map_or_else(|| aggregate.sum.to_string(), |sum| sum.value().to_string())
}

/// True for types that have a sum.
fn has_sum(of: DataType) -> bool {
    matches!(of, DataType::Bool | DataType::Int(_) | DataType::Unsigned(_) | DataType::Float(_))
}

fn type_of(field: &Field) -> DataType {
    field.of.clone().unwrap_or(DataType::Binary)
}

/// `willow sum`.
pub fn sum(options: SumOptions) -> Outcome<()> {
    let opened = options.source.open()?;
    let wanted = Wanted::Aggregate(options.column.clone());
    let (_, done) = options.source.run(&opened, &wanted, |_, _| Ok(()))?;
    let Results::Aggregate(aggregates) = &done.results else { fail!("the results are of another kind") };
    let field = |name: &String| opened.table.fields.iter().find(|field| field.name == *name);
    let mut out = String::new();
    for (name, aggregate) in options.column.iter().zip(aggregates) {
        let of = field(name).map_or(DataType::Binary, type_of);
        if options.json {
            let sum = match aggregate.exact.first().map(|sum| sum.value()) {
                _ if !has_sum(of) => "null".to_owned(),
                Some(sum) => print::json(DataType::Float(64), Some(&Scalar::Float(sum))),
                None => aggregate.sum.to_string(),
            };
            out += &format!(
                "{}{{\"column\":{},\"type\":\"{of}\",\"count\":{},\"nulls\":{},\"sum\":{sum},\"min\":{},\"max\":{}}}",
                if out.is_empty() { "" } else { "," },
                print::json_text(name),
                aggregate.values,
                aggregate.nulls,
                print::json(of, aggregate.least.as_ref()),
                print::json(of, aggregate.greatest.as_ref()),
            );
        } else {
            let text = |value: &Option<Scalar>| {
                print::text(of, value.as_ref())
                    .map_or("-".to_owned(), |text| String::from_utf8_lossy(&text).into_owned())
            };
            let sum = if has_sum(of) { sum_text(aggregate) } else { "-".to_owned() };
            out += &format!(
                "{name}\tcount={}\tnulls={}\tsum={sum}\tmin={}\tmax={}\n",
                aggregate.values,
                aggregate.nulls,
                text(&aggregate.least),
                text(&aggregate.greatest)
            );
        }
    }
    opened.say(&done);
    if options.json {
        out = format!("{{{},\"columns\":[{out}]}}\n", opened.json(&done));
    }
    crate::output::text(&out)
}

/// `willow histogram`.
pub fn histogram(options: HistogramOptions) -> Outcome<()> {
    let opened = options.source.open()?;
    let name = &options.column;
    let field = opened.table.fields.iter().find(|field| field.name == *name);
    let of = field.map_or(DataType::Binary, type_of);
    let edges = match &options.edges {
        Some(text) => Query::edges(&opened.table, name, text).map_err(Failure::new)?,
        None => {
            let wanted = Wanted::Aggregate(vec![name.clone()]);
            let (_, done) = options.source.run(&opened, &wanted, |_, _| Ok(()))?;
            let Results::Aggregate(aggregates) = &done.results else { fail!("the results are of another kind") };
            let extremes = aggregates.first().and_then(|of| of.least.as_ref().zip(of.greatest.as_ref()));
            let Some(extremes) = extremes else {
                fail!("column {name:?} has no values there: name --edges");
            };
            Query::equal_bins(of, extremes, options.bins.into()).context(|| format!("column {name:?}"))?
        }
    };
    let wanted = Wanted::Histogram { column: name.clone(), edges: edges.clone() };
    let (_, done) = options.source.run(&opened, &wanted, |_, _| Ok(()))?;
    let Results::Histogram(bins) = &done.results else { fail!("the results are of another kind") };
    let [below, above, nulls, not_numbers] = bins.outside;
    let text = |edge: &Scalar| {
        print::text(of, Some(edge)).map_or(String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    };
    let out = if options.json {
        let edges: Vec<String> = edges.iter().map(|edge| print::json(of, Some(edge))).collect();
        let counts: Vec<String> = bins.counts.iter().map(u64::to_string).collect();
        format!(
            "{{{},\"column\":{},\"type\":\"{of}\",\"edges\":[{}],\"counts\":[{}],\"below\":{below},\"above\":{above},\"nulls\":{nulls},\"nan\":{not_numbers}}}\n",
            opened.json(&done),
            print::json_text(name),
            edges.join(","),
            counts.join(",")
        )
    } else {
        let mut out = String::new();
        for (pair, count) in edges.windows(2).zip(&bins.counts) {
            out += &format!("{}\t{}\t{count}\n", text(&pair[0]), text(&pair[1]));
        }
        out += &format!("below={below}\tabove={above}\tnulls={nulls}\tnan={not_numbers}\n");
        out
    };
    opened.say(&done);
    crate::output::text(&out)
}

/// What rows are written to.
enum Sink<W: Write> {
    Arrow(Box<ArrowWriter<W>>),
    Text(W, OutputFormat),
}

impl<W: Write> Sink<W> {
    fn new(mut out: W, format: OutputFormat, fields: &[&Field]) -> std::io::Result<Self> {
        match format {
            OutputFormat::Arrow | OutputFormat::ArrowFile => {
                let is_file = format == OutputFormat::ArrowFile;
                return Ok(Sink::Arrow(Box::new(ArrowWriter::new(out, fields, is_file)?)));
            }
            OutputFormat::Csv => print::csv_header(&mut out, fields)?,
            OutputFormat::Json => {}
        }
        Ok(Sink::Text(out, format))
    }

    fn row(&mut self, fields: &[&Field], row: &Row) -> std::io::Result<()> {
        match self {
            Sink::Arrow(arrow) => arrow.row(row),
            Sink::Text(out, OutputFormat::Json) => print::json_row(out, fields, row),
            Sink::Text(out, _) => print::csv_row(out, fields, row),
        }
    }

    fn finish(self) -> std::io::Result<()> {
        match self {
            Sink::Arrow(arrow) => arrow.finish().map(drop),
            Sink::Text(mut out, _) => out.flush(),
        }
    }
}

/// A file that takes its name when it is whole.
struct Unfinished {
    path: PathBuf,
    whole: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.whole {
            // Where it cannot be removed there is nothing more to do.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// `willow filter`.
pub fn filter(options: FilterOptions) -> Outcome<()> {
    let file = options.output.as_deref().filter(|path| *path != Path::new("-"));
    let format = options.output_format.unwrap_or(match file {
        Some(path) if ends_with(path, &["arrow", "feather"]) => OutputFormat::ArrowFile,
        Some(path) if ends_with(path, &["arrows"]) => OutputFormat::Arrow,
        Some(path) if ends_with(path, &["json", "jsonl"]) => OutputFormat::Json,
        _ => OutputFormat::Csv,
    });
    let select = options.select.clone();
    let wanted = match (options.top, &options.by) {
        (Some(count), Some(by)) => Wanted::Top { count, by: by.clone(), least: options.least, select },
        _ => Wanted::Rows(select),
    };
    let opened = options.source.open()?;
    // Asked before anything is written: it may be refused.
    let asked = Query::new(&opened.table, options.source.condition.as_deref(), &wanted);
    let asked = asked.context(|| options.source.file.display().to_string())?;
    let fields = asked.selected(&opened.table);
    let Some(path) = file else {
        let out = BufWriter::with_capacity(OUTPUT_BYTES, std::io::stdout().lock());
        return write(&options, &opened, &wanted, (out, format), &fields);
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let mut unfinished = Unfinished { path: path.with_file_name(name), whole: false };
    let out = File::options().write(true).create_new(true).open(&unfinished.path);
    let out = out.context(|| format!("cannot write {}", unfinished.path.display()))?;
    write(&options, &opened, &wanted, (BufWriter::with_capacity(OUTPUT_BYTES, out), format), &fields)?;
    std::fs::rename(&unfinished.path, path).context(|| format!("cannot write {}", path.display()))?;
    unfinished.whole = true;
    Ok(())
}

fn write(
    options: &FilterOptions,
    opened: &Opened,
    wanted: &Wanted,
    (out, format): (impl Write, OutputFormat),
    fields: &[&Field],
) -> Outcome<()> {
    let mut sink = match Sink::new(out, format, fields) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        sink => sink.context(|| "cannot write the output".to_owned())?,
    };
    let (_, done) = options.source.run(opened, wanted, |_, row| Ok(sink.row(fields, &row)?))?;
    match sink.finish() {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        finished => finished.context(|| "cannot write the output".to_owned())?,
    }
    opened.say(&done);
    Ok(())
}
