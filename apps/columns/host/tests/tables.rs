//! The engine that the SPUs and hosts share, over files in memory: Parquet files of another writer, generated CSV and records, and what is none of them.
//! What is in the samples was written beside them by pyarrow (scripts/parquet-samples).

use base_io_host::Geometry;
use columns_host::engine::{Port, Stop, run};
use columns_host::outcome::{self, Counted, Outcome, Row};
use columns_host::print;
use columns_host::schema::parse_schema;
use columns_host::table::{FileFormat, HEAD_BYTES};
use columns_host::value::{Kind, Scalar};
use columns_host::wire::*;
use columns_host::{DataType, Field, Query, Table, Wanted, footer};
use proptest::prelude::*;
use std::future::Future;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

/// A file in memory, read a little at a time.
struct Memory<'a> {
    file: &'a [u8],
    input_bytes: usize,
    reply: Mutex<Vec<u8>>,
}

impl Port for Memory<'_> {
    async fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Stop> {
        let from = self.file.get(offset as usize..).and_then(|from| from.get(..to.len()));
        to.copy_from_slice(from.expect("nothing is read past the file"));
        Ok(())
    }

    async fn reply(&self, offset: u32, from: &[u8]) -> Result<(), Stop> {
        let mut reply = self.reply.lock().expect("alone");
        let end = offset as usize + from.len();
        let length = reply.len().max(end);
        reply.resize(length, 0);
        reply[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    async fn worked(&self, _: usize) -> Result<(), Stop> {
        Ok(())
    }

    fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    fn value_bytes_max(&self) -> usize {
        256 << 10
    }

    fn compared_bytes_max(&self) -> usize {
        4 << 10
    }
}

/// All that this port waits for is there.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing is waited for"),
    }
}

#[derive(Clone, Copy)]
struct How {
    input_bytes: usize,
    batch_rows: u32,
    reply_bytes: usize,
}

const HOWS: [How; 3] = [
    How { input_bytes: 32 << 10, batch_rows: 1024, reply_bytes: 512 << 10 },
    How { input_bytes: 100, batch_rows: 7, reply_bytes: 16 << 10 },
    How { input_bytes: 3000, batch_rows: 64, reply_bytes: 16 << 10 },
];

/// Runs a plan over ranges; the plan goes over the wire.
fn ranges(
    file: &[u8],
    (table, query): (&Table, &Query),
    units: &[(columns_host::Unit, u32)],
    how: How,
) -> Result<(Outcome, Counted, Vec<Row>), Stop> {
    let kinds: Vec<Kind> = query.selected(table).iter().map(|it| it.of.as_ref().expect("a type").kind()).collect();
    let (mut outcome, mut counted, mut rows) = (Outcome::new(query, table), Counted::default(), Vec::new());
    for (unit, flags) in units {
        let geometry = Geometry { spus: 1, stripe_bytes: 8192, base: 0 };
        let mut plan = query.plan(table, unit, geometry, &[]).expect("a plan");
        plan.batch_rows = how.batch_rows;
        let plan = Plan::decode(&plan.encode()).expect("it is sound");
        let mut asked = Run { plan: 1, flags: *flags, begin: unit.begin, end: unit.end };
        loop {
            let asked_now = Run::decode(&asked.encode()).expect("it is sound");
            let memory = Memory { file, input_bytes: how.input_bytes, reply: Mutex::new(Vec::new()) };
            let head = now(run(&memory, &plan, &asked_now, how.reply_bytes))?;
            let reply = memory.reply.into_inner().expect("alone");
            assert!(reply.len() <= how.reply_bytes);
            let (told, body) = outcome::open(&reply).expect("a reply");
            assert_eq!(told, head);
            counted.rows += head.rows;
            counted.selected += head.selected;
            outcome
                .add(query, &kinds, body, |row| {
                    rows.push(row);
                    Ok::<(), outcome::ReplyError>(())
                })
                .expect("a body");
            if head.is_done {
                break;
            }
            assert!(head.next >= asked.begin && head.rows > 0, "it goes on");
            (asked.begin, asked.flags) = (head.next, 0);
        }
    }
    let last = outcome.rows(&kinds, |row| {
        rows.push(row);
        Ok::<(), outcome::ReplyError>(())
    });
    last.expect("rows");
    Ok((outcome, counted, rows))
}

fn whole(file: &[u8], table: &Table, query: &Query, how: How) -> Result<(Outcome, Counted, Vec<Row>), Stop> {
    let units: Vec<_> = query.units(table).into_iter().map(|unit| (unit.clone(), unit.flags)).collect();
    ranges(file, (table, query), &units, how)
}

fn sample(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/samples/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("a sample")
}

fn parquet(file: &[u8]) -> Result<Table, columns_host::TableError> {
    let bytes = file.len() as u64;
    let tail = file.last_chunk().copied().unwrap_or_default();
    let length = footer::metadata_bytes(&tail, bytes)?;
    let end = file.len() - footer::TAIL_BYTES;
    Table::parquet(&file[end - length..end], bytes)
}

fn csv_of(fields: &[&Field], rows: &[Row]) -> String {
    let mut out = Vec::new();
    print::csv_header(&mut out, fields).expect("memory");
    rows.iter().for_each(|row| print::csv_row(&mut out, fields, row).expect("memory"));
    String::from_utf8(out).expect("text")
}

fn all_rows(table: &Table) -> Query {
    Query::new(table, None, &Wanted::Rows(Vec::new())).expect("a query")
}

#[test]
fn parquet_of_another_writer_has_the_values_that_it_wrote() {
    let wanted = String::from_utf8(sample("table.csv")).expect("text");
    for name in ["plain", "dictionary", "snappy", "fallback", "second"] {
        let file = sample(&format!("{name}.parquet"));
        let table = parquet(&file).expect("a table");
        let query = all_rows(&table);
        for how in HOWS {
            let (_, counted, rows) = whole(&file, &table, &query, how).expect(name);
            assert_eq!((counted.rows, counted.selected), (1200, 1200), "{name}");
            let got = csv_of(&query.selected(&table), &rows);
            assert!(got == wanted, "{name} {}", how.input_bytes);
        }
    }
    // The first columns, where no value may be null, and where a page is a whole chunk.
    for name in ["required", "one_page"] {
        let file = sample(&format!("{name}.parquet"));
        let table = parquet(&file).expect("a table");
        let names: Vec<&str> = table.fields.iter().map(|field| field.name.as_str()).collect();
        let query = all_rows(&table);
        let other_file = sample("plain.parquet");
        let other = parquet(&other_file).expect("a table");
        let select = names.iter().map(|name| (*name).to_owned()).collect();
        let other_query = Query::new(&other, None, &Wanted::Rows(select)).expect("a query");
        let (.., wanted) = whole(&other_file, &other, &other_query, HOWS[0]).expect("plain");
        for how in HOWS {
            assert!(whole(&file, &table, &query, how).expect(name).2 == wanted, "{name}");
        }
    }
}

#[test]
fn a_row_group_can_be_read_from_any_row_on() {
    for name in ["plain", "fallback", "second", "dictionary"] {
        let file = sample(&format!("{name}.parquet"));
        let table = parquet(&file).expect("a table");
        let query = all_rows(&table);
        let (.., wanted) = whole(&file, &table, &query, HOWS[0]).expect(name);
        let first = &query.units(&table)[1];
        for (begin, end) in [(0, 0), (0, 1), (1, 3), (63, 66), (200, 400), (399, 400), (400, 400)] {
            let unit = columns_host::Unit { begin, end, ..first.clone() };
            let (_, counted, rows) = ranges(&file, (&table, &query), &[(unit, 0)], HOWS[2]).expect(name);
            assert_eq!(counted.rows, end - begin);
            assert!(rows == wanted[400 + begin as usize..400 + end as usize], "{name} {begin} {end}");
        }
    }
}

/// Expressions, and the same by hand on `id`, `price`, `city`, `is_new`, `huge` of a row.
#[test]
fn expressions_mean_what_sql_means() {
    let file = sample("snappy.parquet");
    let table = parquet(&file).expect("a table");
    let select = ["id", "price", "city", "is_new", "huge"].map(str::to_owned).to_vec();
    let all = Query::new(&table, None, &Wanted::Rows(select.clone())).expect("a query");
    let (.., rows) = whole(&file, &table, &all, HOWS[0]).expect("all");
    type Three = Option<bool>;
    let id = |row: &Row| match row[0] {
        Some(Scalar::Int(id)) => id,
        _ => panic!("an id"),
    };
    let price = |row: &Row| match row[1] {
        Some(Scalar::Float(price)) => Some(price),
        _ => None,
    };
    let city = |row: &Row| match &row[2] {
        Some(Scalar::Bytes(city)) => Some(String::from_utf8(city.clone()).expect("text")),
        _ => None,
    };
    let huge = |row: &Row| match row[4] {
        Some(Scalar::Unsigned(huge)) => Some(huge),
        _ => None,
    };
    let both = |a: Three, b: Three| match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    };
    let either = |a: Three, b: Three| both(a.map(|a| !a), b.map(|b| !b)).map(|a| !a);
    type Case<'a> = (&'a str, Box<dyn Fn(&Row) -> Three + 'a>);
    let cases: Vec<Case<'_>> = vec![
        ("price > 10", Box::new(|row| price(row).map(|it| it > 10.0))),
        ("not price > 10", Box::new(|row| price(row).map(|it| it <= 10.0))),
        ("price > 10 and city = \"Rome\"", Box::new(|row| both(price(row).map(|it| it > 10.0), city(row).map(|it| it == "Rome")))),
        ("price <= -3.5 or not (city <> 'Oslo')", Box::new(|row| either(price(row).map(|it| it <= -3.5), city(row).map(|it| it == "Oslo")))),
        ("id between 17 and 700.5", Box::new(|row| Some((17..=700).contains(&id(row))))),
        ("id not between 17 and 700", Box::new(|row| Some(!(17..=700).contains(&id(row))))),
        ("id in (3, 5, 5, 4000, -1)", Box::new(|row| Some([3, 5].contains(&id(row))))),
        ("id = 5.5 or id < 3.5", Box::new(|row| Some(id(row) < 4))),
        ("id >= 1190.2", Box::new(|row| Some(id(row) > 1190))),
        ("id < 99999999999999999999", Box::new(|_| Some(true))),
        ("price is null", Box::new(|row| Some(price(row).is_none()))),
        ("price IS NOT NULL AND is_new", Box::new(|row| both(Some(price(row).is_some()), row[3].as_ref().map(|it| *it == Scalar::Bool(true))))),
        ("is_new = false", Box::new(|row| row[3].as_ref().map(|it| *it == Scalar::Bool(false)))),
        ("huge > 9223372036854775807", Box::new(|row| huge(row).map(|it| it > i64::MAX as u64))),
        ("huge >= -1", Box::new(|row| huge(row).map(|_| true))),
        ("huge < -1", Box::new(|row| huge(row).map(|_| false))),
        ("`city` >= 'P' and city < 'S'", Box::new(|row| city(row).map(|it| it.as_str() >= "P" && it.as_str() < "S"))),
        ("city = ''", Box::new(|row| city(row).map(|it| it.is_empty()))),
    ];
    for (text, holds) in &cases {
        let query = Query::new(&table, Some(text), &Wanted::Rows(select.clone())).expect(text);
        let wanted: Vec<&Row> = rows.iter().filter(|row| holds(row) == Some(true)).collect();
        assert!(!wanted.is_empty() || text.contains("-1"), "{text}: it selects some");
        for how in HOWS {
            let (.., got) = whole(&file, &table, &query, how).expect(text);
            assert!(got.iter().eq(wanted.iter().copied()), "{text}: {} rows of {}", got.len(), wanted.len());
        }
    }
    // Row groups that statistics exclude are left out, and no others.
    let units = |text: &str| Query::new(&table, Some(text), &Wanted::Rows(select.clone())).expect(text).units(&table).len();
    assert_eq!((units("id < 400"), units("id < 401"), units("not id < 400"), units("id = 5000")), (1, 2, 3, 0));
    assert_eq!((units("never is not null"), units("never is null"), units("id > 500 and city = 'Rome'")), (3, 3, 2));
    for wrong in [
        "", "price", "price >", "price > ten", "nowhere = 1", "price > 'x'", "city = 5", "id = true", "(id = 1", "id = 1)", "id between 1",
        "id in ()", "id is 5", "5 < id", "day > '2020-02-30'", "id = 'a", "id = 1 id", "is_new > and", "id = 1x", "@",
    ] {
        assert!(Query::new(&table, Some(wrong), &Wanted::Rows(Vec::new())).is_err(), "{wrong:?}");
    }
    let deep = format!("{}id = 1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(Query::new(&table, Some(&deep), &Wanted::Rows(Vec::new())).is_err());
    let long = vec!["id = 1"; 100].join(" or ");
    assert!(Query::new(&table, Some(&long), &Wanted::Rows(Vec::new())).is_err());
}

#[test]
fn sums_extremes_bins_and_the_first_of_an_order_are_those_of_the_values() {
    let file = sample("fallback.parquet");
    let table = parquet(&file).expect("a table");
    let names: Vec<String> = table.fields.iter().map(|field| field.name.clone()).collect();
    let select = Query::new(&table, Some("id > 100"), &Wanted::Rows(names.clone())).expect("a query");
    let (.., rows) = whole(&file, &table, &select, HOWS[0]).expect("rows");
    let values = |column: usize| rows.iter().filter_map(move |row| row[column].clone());
    let query = Query::new(&table, Some("id > 100"), &Wanted::Aggregate(names.clone())).expect("a query");
    for how in HOWS {
        let (Outcome::Aggregate(aggregates), ..) = whole(&file, &table, &query, how).expect("aggregates") else {
            panic!("aggregates")
        };
        for (column, aggregate) in aggregates.iter().enumerate() {
            assert_eq!(aggregate.values, values(column).count() as u64);
            assert_eq!(aggregate.values + aggregate.nulls, rows.len() as u64);
            let least = values(column).reduce(|least, value| if value.is_less(&least) { value } else { least });
            let greatest = values(column).reduce(|greatest, value| if greatest.is_less(&value) { value } else { greatest });
            assert_eq!((&aggregate.least, &aggregate.greatest), (&least, &greatest), "{}", names[column]);
            let integers: i128 = values(column)
                .map(|value| match value {
                    Scalar::Int(value) => value.into(),
                    Scalar::Unsigned(value) => value.into(),
                    Scalar::Bool(value) => value.into(),
                    _ => 0,
                })
                .sum();
            assert_eq!(aggregate.sum, integers, "{}", names[column]);
            // Eighths: exact in any order.
            let floats: f64 = values(column).map(|value| if let Scalar::Float(value) = value { value } else { 0.0 }).sum();
            assert_eq!(aggregate.exact.first().map_or(0.0, |sum| sum.value()), floats, "{}", names[column]);
        }
        for (by, least, count) in [("price", false, 10), ("price", true, 1), ("city", true, 300), ("big", false, 1024)] {
            let column = names.iter().position(|name| name == by).expect("a column");
            let mut wanted: Vec<&Row> = rows.iter().filter(|row| row[column].is_some()).collect();
            wanted.sort_by(|a, b| {
                let (a, b) = (a[column].as_ref().expect("a value"), b[column].as_ref().expect("a value"));
                let order = columns_host::predicate::order(a, b).expect("an order");
                if least { order } else { order.reverse() }
            });
            wanted.truncate(count);
            let asked = Wanted::Top { count: count as u32, by: by.to_owned(), least, select: names.clone() };
            let query = Query::new(&table, Some("id > 100"), &asked).expect("a query");
            let (.., got) = whole(&file, &table, &query, how).expect("rows");
            assert!(got.iter().eq(wanted), "{by} {least} {count}");
        }
        let edges: Vec<Scalar> = [-100.0, -0.125, 0.0, 250.0, 499.875].map(Scalar::Float).to_vec();
        let column = names.iter().position(|name| name == "price").expect("a column");
        let asked = Wanted::Histogram { column: "price".to_owned(), edges };
        let query = Query::new(&table, Some("id > 100"), &asked).expect("a query");
        let (Outcome::Histogram(bins), ..) = whole(&file, &table, &query, how).expect("bins") else { panic!("bins") };
        let within = |low: f64, high: f64| {
            let is = |value: &Scalar| matches!(value, Scalar::Float(value) if *value >= low && *value < high);
            values(column).filter(is).count() as u64
        };
        let wanted = [within(-100.0, -0.125), within(-0.125, 0.0), within(0.0, 250.0), within(250.0, 499.9)];
        assert_eq!(bins.counts, wanted);
        assert_eq!(bins.outside[0], within(f64::NEG_INFINITY, -100.0));
        assert_eq!(bins.outside[1], within(499.9, f64::INFINITY));
        assert_eq!(bins.outside[2], rows.iter().filter(|row| row[column].is_none()).count() as u64);
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let delta = sample("delta.parquet");
    let table = parquet(&delta).expect("a table");
    let stop = whole(&delta, &table, &all_rows(&table), HOWS[0]).expect_err("refused");
    assert_eq!(stop, Stop::Fault(Fault { reason: Reason::Encoding, column: 0, detail: 5 }));
    let other = Query::new(&table, None, &Wanted::Rows(vec!["s".to_owned()])).expect("a query");
    assert_eq!(whole(&delta, &table, &other, HOWS[0]).expect("the other column").2.len(), 3);
    let zstd = sample("zstd.parquet");
    let table = parquet(&zstd).expect("a table");
    let refused = Query::new(&table, None, &Wanted::Rows(vec!["s".to_owned()])).expect_err("refused").to_string();
    assert!(refused.contains("\"s\"") && refused.contains("zstd"), "{refused}");
    let nested = sample("nested.parquet");
    let table = parquet(&nested).expect("a table");
    assert_eq!(whole(&nested, &table, &all_rows(&table), HOWS[0]).expect("the flat column").2.len(), 2);
    for name in ["list.list.element", "group.a"] {
        let refused = Query::new(&table, None, &Wanted::Rows(vec![name.to_owned()])).expect_err("refused").to_string();
        assert!(refused.contains(name) && refused.contains("nested"), "{refused}");
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[test]
fn cut_off_and_hostile_parquet_ends_with_an_error_within_bounds() {
    let mut random = Random(5);
    let (mut refused, mut stopped, mut read) = (0, 0, 0);
    for name in ["second", "fallback", "plain"] {
        let file = sample(&format!("{name}.parquet"));
        for round in 0..400 {
            let mut bad = file.clone();
            match round % 4 {
                0 => bad.truncate(random.below(file.len() as u64) as usize),
                // In the metadata.
                1 => {
                    for _ in 0..1 + random.below(3) {
                        let at = file.len() - 1 - random.below(4000) as usize;
                        bad[at] = random.below(256) as u8;
                    }
                }
                _ => {
                    for _ in 0..1 + random.below(200) {
                        let at = random.below(file.len() as u64 - 8000) as usize;
                        bad[at] = if round % 4 == 2 { random.below(256) as u8 } else { 0xff };
                    }
                }
            }
            let Ok(table) = parquet(&bad) else {
                refused += 1;
                continue;
            };
            let rows: u64 = match &table.rows {
                columns_host::table::Rows::Parquet { row_groups, .. } => row_groups.iter().map(|it| it.rows).sum(),
                _ => 0,
            };
            if rows > 100_000 {
                // As many nulls as are said would be read: what bounds them is the format's own count.
                refused += 1;
                continue;
            }
            let names = table.fields.iter().filter(|field| field.of.is_ok()).map(|field| field.name.clone()).collect();
            let Ok(query) = Query::new(&table, None, &Wanted::Aggregate(names)) else {
                refused += 1;
                continue;
            };
            match whole(&bad, &table, &query, HOWS[(round % 3) as usize]) {
                Ok(_) => read += 1,
                Err(_) => stopped += 1,
            }
        }
    }
    assert!(refused > 100 && stopped > 100 && read > 0, "{refused} {stopped} {read}");
}

#[test]
fn a_plan_that_is_none_is_refused() {
    let file = sample("second.parquet");
    let table = parquet(&file).expect("a table");
    let asked = Wanted::Top { count: 9, by: "price".to_owned(), least: true, select: vec!["city".to_owned()] };
    let query = Query::new(&table, Some("price > 1 and city in ('a', 'b') or is_new"), &asked).expect("a query");
    let unit = query.units(&table).remove(0);
    let geometry = Geometry { spus: 3, stripe_bytes: 512, base: 4096 };
    let plan = query.plan(&table, &unit, geometry, &[]).expect("a plan");
    let bytes = plan.encode();
    assert_eq!(Plan::decode(&bytes), Some(plan));
    let mut random = Random(9);
    for cut in 0..bytes.len() {
        assert_eq!(Plan::decode(&bytes[..cut]), None, "{cut}");
    }
    for _ in 0..20_000 {
        let mut bad = bytes.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bad[at] = random.below(256) as u8;
        }
        // What is left of a plan runs within its bounds, whatever it says of the file.
        let Some(plan) = Plan::decode(&bad) else { continue };
        let is_inside = plan.columns.iter().all(|it| it.chunk_offset + it.chunk_bytes <= file.len() as u64);
        if is_inside && plan.file_bytes <= file.len() as u64 {
            let memory = Memory { file: &file, input_bytes: 1000, reply: Mutex::new(Vec::new()) };
            let asked = Run { plan: 1, flags: 0, begin: 0, end: random.below(500) };
            let _ = now(run(&memory, &plan, &asked, REPLY_BYTES_MIN));
        }
    }
}

/// Records as text, and their fields.
fn csv_text(records: &[Vec<String>], crlf: bool, ends: bool, random: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    for (number, record) in records.iter().enumerate() {
        for (place, field) in record.iter().enumerate() {
            if place > 0 {
                text.push(b',');
            }
            let needs = field.contains(['"', ',', '\n', '\r']) || (record.len() == 1 && field.is_empty());
            if needs || random.below(4) == 0 {
                text.extend_from_slice(format!("\"{}\"", field.replace('"', "\"\"")).as_bytes());
            } else {
                text.extend_from_slice(field.as_bytes());
            }
        }
        if ends || number + 1 < records.len() {
            text.extend_from_slice(if crlf { b"\r\n" } else { b"\n" });
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Wherever CSV is cut into parts, its records are those that were written.
    #[test]
    fn csv_is_the_same_however_it_is_cut(
        records in prop::collection::vec(prop::collection::vec("[a\", \n\r;é]{0,6}", 3), 1..40),
        crlf in any::<bool>(),
        ends in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        how in 0usize..3,
        seed in 1u64..1 << 40,
    ) {
        let text = csv_text(&records, crlf, ends, &mut Random(seed));
        let fields = parse_schema("c1:string,c2:string,c3:string").expect("a schema");
        let table = Table::csv(&text, text.len() as u64, (b',', false), Some(fields));
        // Without any whole record at its start there is none.
        let table = table.expect("a table");
        let query = all_rows(&table);
        let mut cuts: Vec<u64> = cuts.iter().map(|cut| 1 + cut.index(text.len()) as u64).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.push(text.len() as u64);
        let mut begin = 0;
        let mut units = Vec::new();
        for end in cuts.into_iter().filter(|end| *end > 0) {
            if begin >= end {
                continue;
            }
            let mut unit = query.units(&table).remove(0);
            let quotes = text[..(begin.max(1) - 1) as usize].iter().filter(|byte| **byte == b'"').count();
            let mut flags = 0;
            if begin > 0 {
                flags = RUN_SKIP_FIRST | if quotes % 2 == 1 { RUN_QUOTED } else { 0 };
            }
            (unit.begin, unit.end) = (begin.max(1) - u64::from(begin > 0), end);
            if begin == 0 {
                unit.begin = 0;
            }
            units.push((unit, flags));
            begin = end;
        }
        let (_, counted, rows) = ranges(&text, (&table, &query), &units, HOWS[how]).expect("rows");
        let got: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let text = |value: &Option<Scalar>| match value {
                    Some(Scalar::Bytes(text)) => String::from_utf8(text.clone()).expect("text"),
                    other => panic!("{other:?}"),
                };
                row.iter().map(text).collect()
            })
            .collect();
        prop_assert_eq!(counted.rows as usize, records.len());
        // A line's end of CR and LF is one, wherever it is; a CR before the end is a part of it.
        prop_assert_eq!(got, records);
    }

    /// Records of all types are what was written, both ways round.
    #[test]
    fn records_are_what_was_written(
        rows in prop::collection::vec(any::<(i8, u16, i32, u64, f32, f64, bool)>(), 0..200),
        big in any::<bool>(),
        how in 0usize..3,
    ) {
        let order = if big { ">" } else { "" };
        let schema = format!("a:int8,_:bytes[3],b:{order}uint16,c:{order}int32,d:{order}uint64,e:{order}float32,f:{order}float64,g:bool,h:bytes[2]");
        let mut file = Vec::new();
        for (a, b, c, d, e, f, g) in &rows {
            let put = |file: &mut Vec<u8>, bytes: &[u8]| {
                if big { file.extend(bytes.iter().rev()) } else { file.extend(bytes) }
            };
            put(&mut file, &a.to_le_bytes());
            file.extend_from_slice(b"...");
            put(&mut file, &b.to_le_bytes());
            put(&mut file, &c.to_le_bytes());
            put(&mut file, &d.to_le_bytes());
            put(&mut file, &e.to_bits().to_le_bytes());
            put(&mut file, &f.to_bits().to_le_bytes());
            file.push(u8::from(*g));
            file.extend_from_slice(b"hi");
        }
        let table = Table::binary(parse_schema(&schema).expect("a schema"), file.len() as u64).expect("a table");
        let (.., got) = whole(&file, &table, &all_rows(&table), HOWS[how]).expect("rows");
        prop_assert_eq!(got.len(), rows.len());
        for (got, (a, b, c, d, e, f, g)) in got.iter().zip(&rows) {
            let bits = |value: &Option<Scalar>| match value {
                Some(Scalar::Float(value)) => value.to_bits(),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(&got[0], &Some(Scalar::Int((*a).into())));
            prop_assert_eq!(&got[1], &Some(Scalar::Unsigned((*b).into())));
            prop_assert_eq!(&got[2], &Some(Scalar::Int((*c).into())));
            prop_assert_eq!(&got[3], &Some(Scalar::Unsigned(*d)));
            prop_assert!(e.is_nan() || bits(&got[4]) == f64::from(*e).to_bits());
            prop_assert_eq!(bits(&got[5]), f.to_bits());
            prop_assert_eq!(&got[6], &Some(Scalar::Bool(*g)));
            prop_assert_eq!(&got[7], &Some(Scalar::Bytes(b"hi".to_vec())));
        }
        file.push(0);
        let cut = Table::binary(parse_schema(&schema).expect("a schema"), file.len() as u64);
        prop_assert!(cut.is_err());
    }
}

#[test]
fn csv_that_is_none_and_values_of_other_types_are_errors() {
    let table = |text: &str, schema: Option<&str>| {
        let schema = schema.map(|schema| parse_schema(schema).expect("a schema"));
        Table::csv(text.as_bytes(), text.len() as u64, (b',', true), schema)
    };
    let guessed = table("a,b,c,d,e\n1,1.5,true,x,\n,2,False,3,\n", None).expect("a table");
    let types: Vec<_> = guessed.fields.iter().map(|field| field.of.clone().expect("a type")).collect();
    assert_eq!(types, [DataType::Int(64), DataType::Float(64), DataType::Bool, DataType::Utf8, DataType::Utf8]);
    assert_eq!(guessed.format(), FileFormat::Csv);
    for (text, schema, reason) in [
        ("a,b\n1,2\nx,2\n", "a:int64", Reason::Value),
        ("a,b\n1,2\n3\n", "b:int64", Reason::Fields),
        ("a,b\n1,2\n\"3\"4,5\n", "a:string,b:string", Reason::Quote),
        ("a,b\n1,2\n3,4\"5\n", "a:string,b:string", Reason::Quote),
        ("a,b\n1,2\n3,\"45\n", "a:string,b:string", Reason::Quote),
        ("a\n300\n", "a:int8", Reason::Value),
    ] {
        // Its head is looked at too, and a large file has more than that.
        let Ok(table) = Table::csv(&text.as_bytes()[..8], text.len() as u64, (b',', true), Some(parse_schema(schema).expect("a schema"))) else {
            continue;
        };
        let result = whole(text.as_bytes(), &table, &all_rows(&table), HOWS[0]);
        let Err(Stop::Fault(fault)) = result else { panic!("{text:?}: {:?}", result.map(|it| it.2)) };
        assert_eq!(fault.reason, reason, "{text:?}");
    }
    assert!(table("a\n1\n", Some("b:int64")).is_err(), "no such column");
    assert!(table("", None).is_err(), "no header");
    let long = vec![b'x'; HEAD_BYTES];
    assert!(Table::csv(&long, 1 << 30, (b',', true), None).is_err(), "no record in its first bytes");
}
