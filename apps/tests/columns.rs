//! The app `columns` in a device: what it computes is what the same code computes on the host, whatever it is told to prepare and to run it goes on,
//! none of its loops is unbounded, and a process gets what it may read and nothing else.

#[path = "support/world.rs"]
mod world;

use base_io_host::Geometry;
use base_io_spu::wire::RangeArguments;
use columns_host::outcome::{self, Counted, Outcome, ReplyError};
use columns_host::schema::parse_schema;
use columns_host::sink::Aggregate;
use columns_host::wire::{self, Fault, REPLY_BYTES_MAX, Reason, Run, handler};
use columns_host::{APP_NAME, Query, Table, Unit, Wanted, footer};
use willow_device::{BuiltInApp, CommandSet, DeviceConfig, HostCompletion, RpcOutcome};
use willow_on_flash::{Medium, on_each_medium};
use world::World;

/// A fifth of what the app has.
const BUDGET: u64 = 10_000_000;
const SPUS: u16 = 2;
const STRIPE: usize = 8192;

struct Drive {
    world: World,
    base: u64,
}

impl Drive {
    fn on(medium: Medium, is_native: bool) -> Drive {
        let config = DeviceConfig {
            spus: SPUS,
            namespace_bytes: 64 << 20,
            kv_namespace_bytes: 0,
            instruction_budget: BUDGET,
            ..DeviceConfig::default()
        };
        let (store, mut apps) = medium.banks(SPUS, 1 << 30);
        let columns = willow_apps::BUNDLED_APPS.iter().find(|app| app.name == APP_NAME).expect("the app");
        let columns = if is_native { BuiltInApp::Native((columns.native)()) } else { BuiltInApp::Wasm(columns.wasm) };
        apps.extend([BuiltInApp::Wasm(willow_apps::BASE_IO_WASM), columns]);
        let world = World::open(config, store, apps);
        let namespaces = world.device.namespaces();
        let base = namespaces.iter().find(|it| it.csi == CommandSet::Nvm).expect("the namespace").base;
        Drive { world, base }
    }

    fn call(&mut self, number: u8, spu: u16, arguments: &[u8], payload: &[u8], reply: usize) -> HostCompletion {
        self.world.call((APP_NAME, number, spu), arguments, payload, reply)
    }

    fn geometry(&self) -> Geometry {
        Geometry { spus: SPUS, stripe_bytes: STRIPE as u32, base: self.base }
    }

    /// Writes a file to the namespace's start, stripe by stripe.
    fn write(&mut self, data: &[u8]) {
        for (number, stripe) in data.chunks(STRIPE).enumerate() {
            let range = RangeArguments {
                nv_address: self.base + (number / usize::from(SPUS) * STRIPE) as u64,
                bytes: stripe.len() as u32,
                buffer_offset: 0,
                first_bytes: STRIPE as u32,
                stripe_bytes: STRIPE as u32,
                stride: STRIPE as u32,
                flags: 0,
            };
            let to = ("base-io", base_io_spu::wire::handler::WRITE, number as u16 % SPUS);
            let done = self.world.call(to, &range.encode(), stripe, 0);
            assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        }
    }

    fn prepare(&mut self, spu: u16, plan: &[u8]) -> (u32, u32) {
        let done = self.call(handler::PREPARE, spu, &[], plan, 0);
        let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
        (status, done.result)
    }

    fn run(&mut self, spu: u16, run: Run) -> (u32, u32, Vec<u8>) {
        let done = self.call(handler::RUN, spu, &run.encode(), &[], REPLY_BYTES_MAX);
        let RpcOutcome::Answered { status } = done.outcome else { panic!("{:?}", done.outcome) };
        (status, done.result, done.buffer)
    }

    fn unit(&mut self, (table, query): (&Table, &Query), unit: &Unit, spu: u16, bytes: u64) -> (u32, Run) {
        let extents = [direct_io_host::FileExtent { file_offset: 0, namespace_offset: 0, bytes }];
        let plan = query.plan(table, unit, self.geometry(), &extents).expect("a plan");
        let (status, number) = self.prepare(spu, &plan.encode());
        (status, Run { plan: number, flags: unit.flags, begin: unit.begin, end: unit.end })
    }

    /// Runs all parts of a query; the results, or the first status that is none of success.
    fn all(
        &mut self,
        file: &[u8],
        table: &Table,
        query: &Query,
    ) -> Result<(Outcome, Counted, Vec<outcome::Row>), (u32, u32)> {
        let kinds: Vec<_> = query.selected(table).iter().map(|it| it.of.as_ref().expect("a type").kind()).collect();
        let (mut outcome, mut counted, mut rows) = (Outcome::new(query, table), Counted::default(), Vec::new());
        for (number, unit) in query.units(table).iter().enumerate() {
            let spu = number as u16 % SPUS;
            let (status, mut run) = self.unit((table, query), unit, spu, file.len() as u64);
            assert_eq!(status, 0);
            loop {
                let (status, result, reply) = self.run(spu, run);
                if status != 0 {
                    return Err((status, result));
                }
                let (head, body) = outcome::open(&reply).expect("a reply");
                counted.rows += head.rows;
                counted.selected += head.selected;
                let add = outcome.add(query, &kinds, body, |row| {
                    rows.push(row);
                    Ok::<(), ReplyError>(())
                });
                add.expect("a body");
                if head.is_done {
                    break;
                }
                (run.begin, run.flags) = (head.next, 0);
            }
            let done = self.call(handler::RELEASE, spu, &[], &run.plan.to_le_bytes(), 0);
            assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 });
        }
        Ok((outcome, counted, rows))
    }
}

fn sample(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/columns/host/tests/samples/{name}", env!("CARGO_MANIFEST_DIR"))).expect("a sample")
}

fn parquet(file: &[u8]) -> Table {
    let tail = file.last_chunk().expect("a tail");
    let length = footer::metadata_bytes(tail, file.len() as u64).expect("metadata");
    let end = file.len() - footer::TAIL_BYTES;
    Table::parquet(&file[end - length..end], file.len() as u64).expect("a table")
}

fn csv_of(query: &Query, table: &Table, rows: &[outcome::Row]) -> Vec<u8> {
    let mut out = Vec::new();
    let fields = query.selected(table);
    columns_host::print::csv_header(&mut out, &fields).expect("memory");
    rows.iter().for_each(|row| columns_host::print::csv_row(&mut out, &fields, row).expect("memory"));
    out
}

on_each_medium!(the_drive_reads_parquet_of_another_writer);

fn the_drive_reads_parquet_of_another_writer(medium: Medium) {
    let wanted = sample("table.csv");
    for is_native in [false, true] {
        let mut drive = Drive::on(medium, is_native);
        for name in ["plain", "snappy", "fallback", "second"] {
            let file = sample(&format!("{name}.parquet"));
            drive.write(&file);
            let table = parquet(&file);
            let all: Vec<String> = table.fields.iter().map(|field| field.name.clone()).collect();
            // As many columns at once as have memory beside each other when pages are compressed.
            for names in all.chunks(4) {
                let query = Query::new(&table, None, &Wanted::Rows(names.to_vec())).expect("a query");
                let (_, counted, rows) = drive.all(&file, &table, &query).expect(name);
                assert_eq!(counted.rows, 1200, "{name}");
                let places: Vec<usize> = names.iter().filter_map(|name| all.iter().position(|it| it == name)).collect();
                let pick =
                    |fields: &Vec<&str>| places.iter().map(|place| fields[*place]).collect::<Vec<_>>().join(",") + "\n";
                let wanted: String = lines(&wanted).iter().map(pick).collect();
                assert!(csv_of(&query, &table, &rows) == wanted.as_bytes(), "{name} {names:?}");
            }
            // Rows and sums of a few.
            let text = "price > 100 and city = 'Rome' or id between 5 and 9";
            let names = ["id", "price", "city", "huge"].map(str::to_owned).to_vec();
            let select = Query::new(&table, Some(text), &Wanted::Rows(names.clone())).expect("a query");
            let (.., rows) = drive.all(&file, &table, &select).expect(name);
            let ids = |rows: &[outcome::Row]| -> Vec<String> { rows.iter().map(|row| format!("{row:?}")).collect() };
            let by_hand: Vec<String> = by_lines(&wanted, |fields| {
                let price: Option<f64> = fields[5].parse().ok();
                let id: i64 = fields[0].parse().expect("an id");
                (price.is_some_and(|price| price > 100.0) && fields[8] == "Rome") || (5..=9).contains(&id)
            });
            assert_eq!(rows.len(), by_hand.len(), "{name}");
            assert!(
                ids(&rows).iter().zip(&by_hand).all(|(row, id)| row.starts_with(&format!("[Some(Int({id}))"))),
                "{name}"
            );
            let sums = Query::new(&table, Some(text), &Wanted::Aggregate(names)).expect("a query");
            let (Outcome::Aggregate(sums), ..) = drive.all(&file, &table, &sums).expect(name) else { panic!("sums") };
            let sum: i128 = by_hand.iter().map(|id| id.parse::<i128>().expect("an id")).sum();
            assert_eq!((sums[0].sum, sums[0].values), (sum, by_hand.len() as u64), "{name}");
        }
    }
}

/// The fields of the sample's lines as they are written, with their quotes.
fn lines(csv: &[u8]) -> Vec<Vec<&str>> {
    let text = std::str::from_utf8(csv).expect("text");
    text.lines()
        .map(|line| {
            let mut is_quoted = false;
            let is_border = |part: char| {
                is_quoted ^= part == '"';
                part == ',' && !is_quoted
            };
            line.split(is_border).collect()
        })
        .collect()
}

/// The first fields of lines that are selected.
fn by_lines(csv: &[u8], is: impl Fn(&[&str]) -> bool) -> Vec<String> {
    lines(csv).iter().skip(1).filter(|fields| is(fields)).map(|fields| fields[0].to_owned()).collect()
}

#[test]
fn whatever_is_prepared_and_run_the_app_goes_on() {
    let file = sample("second.parquet");
    let table = parquet(&file);
    for is_native in [false, true] {
        let mut drive = Drive::on(Medium::NvMemory, is_native);
        drive.write(&file);
        let asked = Wanted::Top { count: 9, by: "price".to_owned(), least: true, select: vec!["city".to_owned()] };
        let query = Query::new(&table, Some("price > 1 and city in ('a', 'b') or is_new"), &asked).expect("a query");
        let unit = query.units(&table).remove(0);
        let extents = [direct_io_host::FileExtent { file_offset: 0, namespace_offset: 0, bytes: file.len() as u64 }];
        let plan = query.plan(&table, &unit, drive.geometry(), &extents).expect("a plan").encode();
        let mut state = 7u64;
        let mut below = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % bound
        };
        let mut answers = std::collections::BTreeMap::new();
        for _ in 0..2000 {
            let mut bad = plan.clone();
            for _ in 0..1 + below(3) {
                let at = below(bad.len());
                bad[at] = if below(2) == 0 { below(256) as u8 } else { bad[at] ^ 1 << below(8) };
            }
            let (status, number) = drive.prepare(0, &bad);
            *answers.entry(status).or_insert(0) += 1;
            if status == 0 {
                let run = Run { plan: number, flags: below(8) as u32, begin: below(400) as u64, end: 400 };
                drive.run(0, run);
            }
        }
        assert!(answers[&0] > 100 && answers[&wire::STATUS_MALFORMED] > 100, "{answers:?}");
        for bad in [vec![], vec![0; 40], vec![1; wire::PLAN_BYTES_MAX + 1]] {
            assert_eq!(drive.prepare(0, &bad).0, wire::STATUS_MALFORMED);
        }
        let (status, number) = drive.prepare(0, &plan);
        assert_eq!(status, 0);
        let run = Run { plan: number, flags: 0, begin: 0, end: 400 };
        assert_eq!(drive.run(0, run).0, 0);
        assert_eq!(drive.run(0, Run { plan: number + 1, ..run }).0, wire::STATUS_NO_PLAN);
        let short = drive.call(handler::RUN, 0, &run.encode(), &[], 100);
        assert_eq!(short.outcome, RpcOutcome::Answered { status: wire::STATUS_MALFORMED });
        // Past the row group's rows: there is no page there.
        let (status, result, _) = drive.run(0, Run { begin: 0, end: 401, ..run });
        assert_eq!((status, Fault::decode(result).map(|it| it.reason)), (wire::STATUS_FAULT, Some(Reason::Malformed)));
    }
}

#[test]
fn a_run_stays_far_from_the_budget_of_a_run() {
    for is_native in [false, true] {
        let mut drive = Drive::on(Medium::NvMemory, is_native);
        // Records of many kinds; fields of one byte; quotes; a record that is long.
        let fields = parse_schema("a:string,b:string,c:string").expect("a schema");
        let (quotes, short) = (b"\"\"\"\",,\n".repeat(100_000), b"a,,\n".repeat(150_000));
        let long = [&b"x,"[..], &vec![b'y'; 200_000], b",z\n"].concat().repeat(4);
        for text in [quotes, short, long] {
            drive.write(&text);
            let table = Table::csv(
                &text,
                text.len() as u64,
                (b',', false),
                Some(
                    fields
                        .iter()
                        .map(|it| columns_host::Field {
                            name: it.name.replace('a', "c1").replace('b', "c2"),
                            ..it.clone()
                        })
                        .take(2)
                        .collect(),
                ),
            )
            .expect("a table");
            let all: Vec<String> = ["c1", "c2", "c3"].map(str::to_owned).to_vec();
            let condition = vec!["c1 < 'yyyyyyyyyyyyyyyyyyyy'"; 30].join(" or ");
            for wanted in [Wanted::Rows(all.clone()), Wanted::Aggregate(vec!["c1".to_owned()])] {
                let query = Query::new(&table, Some(&condition), &wanted).expect("a query");
                match drive.all(&text, &table, &query) {
                    Ok((_, counted, _)) => assert!(counted.rows >= 4),
                    // What does not fit the SPU's memory is the host's.
                    Err((status, _)) => assert_eq!(status, wire::STATUS_NO_MEMORY),
                }
            }
        }
        let file = vec![7; 1 << 20];
        drive.write(&file);
        let schema: Vec<String> = (0..30).map(|number| format!("c{number}:uint8")).collect();
        let schema = format!("{},rest:bytes[2]", schema.join(","));
        let table = Table::binary(parse_schema(&schema).expect("a schema"), 32 << 10).expect("a table");
        let names = (0..30).map(|number| format!("c{number}")).collect();
        let query = Query::new(&table, Some("c1 = 7"), &Wanted::Aggregate(names)).expect("a query");
        let (Outcome::Aggregate(sums), ..) = drive.all(&file[..32 << 10], &table, &query).expect("sums") else {
            panic!("sums")
        };
        assert!(sums.iter().all(|sum: &Aggregate| sum.sum == 7 * 1024));
    }
}

#[test]
fn a_process_gets_what_it_may_read_and_nothing_else() {
    let mut drive = Drive::on(Medium::NvMemory, false);
    let bytes = 4 * STRIPE as u64;
    drive.write(&vec![b'S'; bytes as usize]);
    let table = Table::binary(parse_schema("a:bytes[8]").expect("a schema"), bytes).expect("a table");
    let query = Query::new(&table, None, &Wanted::Rows(Vec::new())).expect("a query");
    let unit = query.units(&table).remove(0);
    let mut user = |number: u32, spus: std::ops::Range<u16>| {
        let process = drive.world.device.open_process(number, 1).expect("a process");
        for spu in spus {
            drive.world.device.permit(process, spu, (drive.base, 2 * STRIPE as u64), false);
        }
        drive.world.device.open_hre(Some(process)).expect("an endpoint")
    };
    let (mine, half, none) = (user(1001, 0..SPUS), user(1002, 0..1), user(1003, 0..0));
    drive.world.hre = mine;
    let (status, run) = drive.unit((&table, &query), &unit, 0, bytes);
    assert_eq!(status, 0);
    assert_eq!(drive.run(0, run).0, 0);
    for (hre, may_touch) in [(half, true), (none, false)] {
        drive.world.hre = hre;
        // What another has prepared is another's.
        assert_eq!(drive.run(0, run).0, wire::STATUS_NO_PLAN);
        let (status, own) = drive.unit((&table, &query), &unit, 0, bytes);
        assert_eq!(status, 0);
        let (status, _, reply) = drive.run(0, own);
        assert_eq!(status, wire::STATUS_PERMISSION);
        assert!(reply.iter().all(|byte| *byte != b'S'), "nothing of it comes along");
        // A part of it that lies at the SPU where it may read is as far as it gets.
        let first = Run { end: STRIPE as u64, ..own };
        assert_eq!(drive.run(0, first).0, if may_touch { 0 } else { wire::STATUS_PERMISSION });
    }
}
