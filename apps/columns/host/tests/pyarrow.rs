//! Arrow IPC as this library writes it, read by pyarrow, polars and DuckDB and compared with what each reads of the same Parquet file. Skipped, with a line that
//! says so, where one of them is not there.

#[path = "support/engine.rs"]
mod engine;

use columns_host::arrow::ArrowWriter;
use columns_host::{Table, footer};
use engine::{HOWS, all_rows, whole};
use std::path::PathBuf;
use std::process::Command;

/// Reads a Parquet file, and a file and a stream of Arrow, and says where they differ.
const COMPARE: &str = "
import sys
import pyarrow.ipc
import pyarrow.parquet
wanted = pyarrow.parquet.read_table(sys.argv[1])
for read in (pyarrow.ipc.open_file(sys.argv[2]).read_all(), pyarrow.ipc.open_stream(sys.argv[3]).read_all()):
    read.validate(full=True)
    if read.schema != wanted.schema:
        sys.exit('%s is not %s' % (read.schema, wanted.schema))
    if not read.equals(wanted):
        sys.exit('the values differ')
    print(read.num_rows)
";

/// The same by polars, which reads the bytes by itself.
const COMPARE_POLARS: &str = "
import sys
import polars
wanted = polars.read_parquet(sys.argv[1])
for read in (polars.read_ipc(sys.argv[2]), polars.read_ipc_stream(sys.argv[3])):
    if read.schema != wanted.schema:
        sys.exit('%s is not %s' % (read.schema, wanted.schema))
    if not read.equals(wanted):
        sys.exit('the values differ')
    print(read.height)
";

/// The same by DuckDB, which is handed the buffers and scans them.
const COMPARE_DUCKDB: &str = "
import sys
import duckdb
import pyarrow.ipc
for read in (pyarrow.ipc.open_file(sys.argv[2]).read_all(), pyarrow.ipc.open_stream(sys.argv[3]).read_all()):
    wanted = 'select * from read_parquet(\\'%s\\')' % sys.argv[1]
    for left, right in (('select * from read', wanted), (wanted, 'select * from read')):
        differ = duckdb.sql('select count(*) from (%s except all %s)' % (left, right)).fetchall()[0][0]
        if differ != 0:
            sys.exit('%d rows differ' % differ)
    print(duckdb.sql('select count(*) from read').fetchall()[0][0])
";

/// Where Python's packages for tests are, if one is there; else the test is skipped.
fn packages_with(test: &str, package: &str) -> Option<PathBuf> {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let packages = caches.unwrap_or_default().join("willow/python");
    if !packages.join(package).is_dir() {
        willow_skip::skip(test, &format!("{package} is not there (scripts/bootstrap --tests)"));
        return None;
    }
    Some(packages)
}

#[test]
fn pyarrow_reads_what_is_written() {
    reads("pyarrow_reads_what_is_written", "pyarrow", COMPARE);
}

#[test]
fn polars_reads_what_is_written() {
    reads("polars_reads_what_is_written", "polars", COMPARE_POLARS);
}

#[test]
fn duckdb_reads_what_is_written() {
    reads("duckdb_reads_what_is_written", "duckdb", COMPARE_DUCKDB);
}

fn reads(test: &str, package: &str, compare: &str) {
    let Some(packages) = packages_with(test, package) else { return };
    let folder = std::env::temp_dir().join(format!("willow-{package}-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    for (name, rows) in [("plain", 1200), ("second", 1200), ("required", 1200), ("one_page", 1200)] {
        let sample = samples.join(format!("{name}.parquet"));
        let file = std::fs::read(&sample).expect("a sample");
        let tail = file.last_chunk().expect("a tail");
        let length = footer::metadata_bytes(tail, file.len() as u64).expect("metadata");
        let end = file.len() - footer::TAIL_BYTES;
        let table = Table::parquet(&file[end - length..end], file.len() as u64).expect("a table");
        let query = all_rows(&table);
        let (.., values) = whole(&file, &table, &query, HOWS[0]).expect("rows");
        let mut paths = Vec::new();
        for (ending, is_file) in [("arrow", true), ("arrows", false)] {
            let mut writer = ArrowWriter::new(Vec::new(), &query.selected(&table), is_file).expect("memory");
            values.iter().for_each(|row| writer.row(row).expect("memory"));
            let path = folder.join(format!("{name}.{ending}"));
            std::fs::write(&path, writer.finish().expect("memory")).expect("written");
            paths.push(path);
        }
        let mut python = Command::new("python3");
        python.args(["-c", compare]).arg(&sample).args(&paths).env("PYTHONPATH", &packages);
        let compared = python.output().expect("python3");
        let said = String::from_utf8_lossy(&compared.stderr).into_owned();
        assert!(compared.status.success(), "{package} {name}: {said}");
        assert_eq!(String::from_utf8_lossy(&compared.stdout), format!("{rows}\n{rows}\n"), "{name}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
