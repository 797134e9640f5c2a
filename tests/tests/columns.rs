//! `willow sum`, `histogram` and `filter` on real file systems on the device: as ordinary users, by shared memory and over NVMe/TCP. What is right is
//! computed here from what was written. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use willow_host::RpcCall;
use willow_host::direct_io::{AgentClient, endpoint};
use willow_tests::stage::{By, Stage, is_frozen, or_skip, within_seconds};

const ALICE: u32 = 54_611;
const BOB: u32 = 54_612;

fn willow(stage: &Stage, command: &str, file: &Path, arguments: &[&str]) -> Command {
    let mut run = Command::new(stage.willow());
    run.arg(command).args(["--agent", &stage.path("agent"), "--report"]).arg(file).args(arguments);
    run.uid(ALICE).gid(ALICE).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ran(stage: &Stage, command: &str, file: &Path, arguments: &[&str]) -> Output {
    let output = willow(stage, command, file, arguments).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{command} {arguments:?}: {}", said(&output));
    output
}

/// A figure of the report.
fn figure(output: &Output, name: &str) -> u64 {
    let said = said(output);
    let value = said.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}="))).expect("the report");
    value.parse().expect("a number")
}

fn sample(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../apps/columns/host/tests/samples");
    fs::read(format!("{folder}/{name}")).expect("a sample")
}

/// Records: id, price, city; of CSV some cities are in quotes, with delimiters and line ends in them.
struct Records(Vec<(u32, i64, &'static str)>);

impl Records {
    fn new(count: usize) -> Records {
        let cities = ["Rome", "Oslo", "a \"quoted\", town", "two\nlines", "Paris"];
        let mut state = 3u64;
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % bound
        };
        let record = |id| (id as u32, below(2001) as i64 - 1000, cities[below(5) as usize]);
        Records((0..count).map(record).collect())
    }

    fn binary(&self) -> Vec<u8> {
        let record = |(id, price, city): &(u32, i64, &str)| {
            let mut bytes = [0; 36];
            bytes[..4].copy_from_slice(&id.to_le_bytes());
            bytes[4..12].copy_from_slice(&price.to_le_bytes());
            bytes[12..12 + city.len()].copy_from_slice(city.as_bytes());
            bytes
        };
        self.0.iter().flat_map(record).collect()
    }

    fn csv(&self) -> Vec<u8> {
        let mut text = String::from("id,price,city\r\n");
        for (id, price, city) in &self.0 {
            match city.contains(['"', '\n']) {
                true => text += &format!("{id},{price},\"{}\"\r\n", city.replace('"', "\"\"")),
                false => text += &format!("{id},{price},{city}\r\n"),
            }
        }
        text.into_bytes()
    }

    fn selected(&self) -> impl Iterator<Item = &(u32, i64, &'static str)> {
        self.0.iter().filter(|(_, price, city)| *price > 900 && *city == "Rome")
    }

    /// What is printed of a sum of prices of those that are selected.
    fn sums(&self) -> String {
        let prices: Vec<i64> = self.selected().map(|it| it.1).collect();
        let (least, greatest) = (prices.iter().min().expect("some"), prices.iter().max().expect("some"));
        let sum: i64 = prices.iter().sum();
        format!("price\tcount={}\tnulls=0\tsum={sum}\tmin={least}\tmax={greatest}\n", prices.len())
    }
}

fn on(test: &str, stage: Result<Stage, String>) {
    let Some(stage) = or_skip(test, stage) else { return };
    let records = Records::new(150_000);
    let (binary, csv) = (records.binary(), records.csv());
    let schema = "id:uint32,price:int64,city:bytes[24]";
    let selected: String = records.selected().map(|it| format!("{},{}\n", it.1, it.0)).collect();
    let of_binary = stage.owned("records.bin", ALICE, &binary);
    let of_csv = stage.owned("records.csv", ALICE, &csv);
    let condition = ["--where", "price > 900 and city = 'Rome'"];
    for (file, bytes, more) in [(&of_binary, binary.len(), &["--schema", schema][..]), (&of_csv, csv.len(), &[])] {
        let arguments = [more, &condition].concat();
        let sums = ran(&stage, "sum", file, &[&arguments[..], &["--column", "price"]].concat());
        assert_eq!(printed(&sums), records.sums(), "{}", said(&sums));
        assert_eq!((figure(&sums, "rows"), figure(&sums, "host_parts")), (150_000, 0), "{}", said(&sums));
        // Only results leave the drive.
        assert!(figure(&sums, "reply_bytes") < bytes as u64 / 100, "{}", said(&sums));
        let rows = ran(&stage, "filter", file, &[&arguments[..], &["--select", "price,id"]].concat());
        assert_eq!(printed(&rows), format!("price,id\n{selected}"), "{}", said(&rows));
        let bins = ran(
            &stage,
            "histogram",
            file,
            &[&arguments[..], &["--column", "price", "--edges", "901,950,1000", "--json"]].concat(),
        );
        let within = |low: i64, high: i64| records.selected().filter(|it| it.1 >= low && it.1 < high).count();
        let wanted = format!("\"counts\":[{},{}]", within(901, 950), within(950, 1001));
        assert!(printed(&bins).contains(&wanted) && printed(&bins).contains("\"by\":\"drive\""), "{}", printed(&bins));
    }
    let top = ran(&stage, "filter", &of_csv, &["--top", "3", "--by", "price", "--select", "id"]);
    let mut order: Vec<_> = records.0.iter().collect();
    order.sort_by_key(|it| -it.1);
    assert_eq!(printed(&top), format!("id\n{}\n{}\n{}\n", order[0].0, order[1].0, order[2].0));
    for name in ["plain", "snappy", "fallback", "second"] {
        let file = stage.owned(&format!("{name}.parquet"), ALICE, &sample(&format!("{name}.parquet")));
        let all = ran(&stage, "filter", &file, &["--select", "id,price,city,day", "--where", "id >= 0"]);
        assert_eq!((figure(&all, "rows"), figure(&all, "host_parts")), (1200, 0), "{}", said(&all));
        // Whatever is asked at once: what the SPUs' memory does not hold is the host's, with the same result.
        let all = ran(&stage, "filter", &file, &[]);
        assert!(all.stdout == sample("table.csv"), "{name}: {}", said(&all));
    }
    // Zstandard is the host's, and it says so.
    let file = stage.owned("zstd.parquet", ALICE, &sample("zstd.parquet"));
    let all = ran(&stage, "filter", &file, &[]);
    assert_eq!((figure(&all, "rows"), figure(&all, "drive_parts")), (1200, 0), "{}", said(&all));
    assert!(all.stdout == sample("table.csv"), "zstd: {}", said(&all));
    // Refusals name what is refused.
    let gzip = stage.owned("gzip.parquet", ALICE, &sample("gzip.parquet"));
    let delta = stage.owned("delta.parquet", ALICE, &sample("delta.parquet"));
    let short = stage.owned("short.parquet", ALICE, &sample("plain.parquet")[..5000]);
    let odd = stage.owned("odd.bin", ALICE, &[0; 37]);
    for (file, arguments, words) in [
        (&gzip, &["--column", "n"][..], &["\"n\"", "gzip"][..]),
        (&delta, &["--column", "n"], &["\"n\"", "DELTA_BINARY_PACKED"]),
        (&short, &["--column", "id"], &["no Parquet file"]),
        (&odd, &["--column", "id", "--schema", schema], &["multiple"]),
        (&of_csv, &["--column", "city", "--schema", "city:int32"], &["\"city\"", "int32"]),
        (&of_csv, &["--column", "nowhere"], &["nowhere", "price"]),
    ] {
        let output = willow(&stage, "sum", file, arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(words.iter().all(|word| said(&output).contains(word)), "{arguments:?}: {}", said(&output));
    }
    for file in [&of_binary, &of_csv, &gzip] {
        within_seconds("the file thaws", || !is_frozen(file));
    }
    // Where the user may not read: the file system's word.
    let bobs = stage.owned("bobs.csv", BOB, &csv);
    let refused = willow(&stage, "sum", &bobs, &["--column", "price"]).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("Permission denied"), "{}", said(&refused));
    // What the agent refuses is read by this host, with the same result, and it says so.
    let writer = fs::OpenOptions::new().append(true).open(&of_csv).expect("open");
    let arguments = ["--where", "price > 900 and city = 'Rome'", "--column", "price"];
    let by_host = ran(&stage, "sum", &of_csv, &arguments);
    assert_eq!(printed(&by_host), records.sums());
    assert!(figure(&by_host, "drive_parts") == 0 && said(&by_host).contains("read by this host"), "{}", said(&by_host));
    let only = willow(&stage, "sum", &of_csv, &[&arguments[..], &["--drive-only"]].concat()).output().expect("it runs");
    assert_eq!(only.status.code(), Some(1));
    drop(writer);
}

#[test]
fn users_sum_and_filter_their_files_in_the_drive_on_xfs() {
    on("users_sum_and_filter_their_files_in_the_drive_on_xfs", Stage::xfs());
}

#[test]
fn users_sum_and_filter_their_files_in_the_drive_over_the_network() {
    on("users_sum_and_filter_their_files_in_the_drive_over_the_network", Stage::ext4_by(By::Network));
}

#[test]
fn columns_of_what_another_user_has_are_refused_by_the_device() {
    use columns_host::schema::parse_schema;
    use columns_host::wire::{REPLY_BYTES_MAX, Run, STATUS_PERMISSION, handler};
    use columns_host::{Query, Table, Wanted};
    let test = "columns_of_what_another_user_has_are_refused_by_the_device";
    let Some(stage) = or_skip(test, Stage::ext4_by(By::Network)) else { return };
    let path = stage.owned("bobs", BOB, &[b'S'; 64 << 10]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let agent = || AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
        let (bob, alice) = (agent(), agent());
        let (bobs, alices) = (endpoint(&bob).await.expect("an endpoint"), endpoint(&alice).await.expect("another"));
        let mapped = bob.open(fs::File::open(&path).expect("open")).expect("directly");
        let app = willow_host::ControlClient::new(bobs.clone()).find_app("columns").await.expect("the app");
        let table = Table::binary(parse_schema("a:bytes[8]").expect("a schema"), mapped.bytes()).expect("a table");
        let query = Query::new(&table, None, &Wanted::Rows(Vec::new())).expect("a query");
        let unit = query.units(&table).remove(0);
        let plan = query.plan(&table, &unit, mapped.geometry(), mapped.extents()).expect("a plan");
        for spu in 0..mapped.geometry().spus {
            for (hre, is_bob) in [(&bobs, true), (&alices, false)] {
                let (spu, payload) = (Some(spu), plan.encode());
                let prepare = RpcCall { app, handler: handler::PREPARE, spu, payload, ..RpcCall::default() };
                let prepared = hre.rpc(prepare).await.expect("answered");
                assert_eq!(prepared.status, 0);
                for end in [8, unit.end] {
                    let run = Run { plan: prepared.result, flags: 0, begin: 0, end };
                    let call = RpcCall {
                        app,
                        handler: handler::RUN,
                        spu,
                        arguments: run.encode().to_vec(),
                        payload: Vec::new(),
                        reply_bytes_max: REPLY_BYTES_MAX as u32,
                    };
                    let reply = hre.rpc(call).await.expect("answered");
                    assert_eq!(reply.status, if is_bob { 0 } else { STATUS_PERMISSION });
                    assert!(is_bob || reply.data.iter().all(|byte| *byte == 0), "nothing of Bob's comes along");
                }
            }
        }
    });
}

/// Has the agent take a file back from all that have it directly, as a program that writes it through the library does.
fn take_back(stage: &Stage, file: &Path) {
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let _endpoint = endpoint(&agent).await.expect("an endpoint");
        agent.release(fs::File::open(file).expect("open")).expect("taken back");
        agent.resume().expect("it may be taken again");
    });
}

#[test]
fn a_file_that_is_taken_back_in_the_middle_ends_with_an_error_and_leaves_no_output() {
    use std::io::Read;
    let test = "a_file_that_is_taken_back_in_the_middle_ends_with_an_error_and_leaves_no_output";
    let Some(stage) = or_skip(test, Stage::ext4_by(By::Network)) else { return };
    let records = Records::new(600_000);
    let file = stage.owned("records.csv", ALICE, &records.csv());
    let whole: String = records.0.iter().map(|it| format!("{},{}\n", it.0, it.1)).collect();
    let whole = format!("id,price\n{whole}");
    // Nobody reads the output for a while.
    let mut child = willow(&stage, "filter", &file, &["--select", "id,price"]).spawn().expect("it runs");
    let mut output = child.stdout.take().expect("output");
    let mut read = vec![0; 1 << 16];
    output.read_exact(&mut read).expect("it has begun");
    assert!(is_frozen(&file), "it is being read");
    take_back(&stage, &file);
    fs::OpenOptions::new().write(true).open(&file).expect("it has thawed").set_len(0).expect("cut");
    output.read_to_end(&mut read).expect("its end");
    let output = child.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("taken back in the middle"), "{}", said(&output));
    // What was printed is what was there, and nothing else.
    assert!(read.len() < whole.len() && read == whole.as_bytes()[..read.len()], "what was printed was in the file");
    // A file that is refused in the middle leaves nothing.
    let folder = PathBuf::from(stage.path("out"));
    fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(ALICE), Some(ALICE)).expect("its owner");
    let wrong = stage.owned("wrong.csv", ALICE, &[&records.csv()[..], b"x,y,z\r\n"].concat());
    let out = folder.join("rows.arrow");
    let failed = willow(&stage, "filter", &wrong, &["--output", &out.display().to_string()]).output().expect("it runs");
    assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0, "nothing is left");
    let good = ran(
        &stage,
        "filter",
        &stage.owned("good.csv", ALICE, &records.csv()),
        &["--output", &out.display().to_string()],
    );
    let arrow = fs::read(&out).expect("the output");
    assert!(arrow.starts_with(b"ARROW1\0\0") && arrow.ends_with(b"ARROW1"), "{}", said(&good));
}
