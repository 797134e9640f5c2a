//! Arrow IPC as this library writes it, read by pyarrow and compared with what pyarrow reads of the same Parquet file. Skipped, with a line that says
//! so, where pyarrow is not there.

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

#[test]
fn pyarrow_reads_what_is_written() {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let packages = caches.unwrap_or_default().join("willow/python");
    if !packages.join("pyarrow").is_dir() {
        willow_skip::skip("pyarrow_reads_what_is_written", "pyarrow is not there (scripts/bootstrap --tests)");
        return;
    }
    let folder = std::env::temp_dir().join(format!("willow-pyarrow-{}", std::process::id()));
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
        python.args(["-c", COMPARE]).arg(&sample).args(&paths).env("PYTHONPATH", &packages);
        let compared = python.output().expect("python3");
        let said = String::from_utf8_lossy(&compared.stderr).into_owned();
        assert!(compared.status.success(), "{name}: {said}");
        assert_eq!(String::from_utf8_lossy(&compared.stdout), format!("{rows}\n{rows}\n"), "{name}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
