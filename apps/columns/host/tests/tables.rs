//! Parquet files of another writer, by the engine that the SPUs and hosts share, and what is no Parquet. What is in the samples was written beside them by
//! pyarrow (scripts/parquet-samples).

#[path = "support/engine.rs"]
mod engine;

use base_io_host::Geometry;
use columns_host::engine::{Stop, run};
use columns_host::outcome::{Outcome, Row};
use columns_host::testing::{Checked, check_parquet};
use columns_host::value::Scalar;
use columns_host::wire::*;
use columns_host::{Field, Query, Table, Wanted, footer, print};
use engine::{HOWS, Memory, Random, all_rows, now, ranges, whole};
use std::sync::Mutex;

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

#[test]
fn parquet_of_another_writer_has_the_values_that_it_wrote() {
    let wanted = String::from_utf8(sample("table.csv")).expect("text");
    for name in ["plain", "dictionary", "snappy", "fallback", "second", "zstd"] {
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
        (
            "price > 10 and city = \"Rome\"",
            Box::new(|row| both(price(row).map(|it| it > 10.0), city(row).map(|it| it == "Rome"))),
        ),
        (
            "price <= -3.5 or not (city <> 'Oslo')",
            Box::new(|row| either(price(row).map(|it| it <= -3.5), city(row).map(|it| it == "Oslo"))),
        ),
        ("id between 17 and 700.5", Box::new(|row| Some((17..=700).contains(&id(row))))),
        ("id not between 17 and 700", Box::new(|row| Some(!(17..=700).contains(&id(row))))),
        ("id in (3, 5, 5, 4000, -1)", Box::new(|row| Some([3, 5].contains(&id(row))))),
        ("id = 5.5 or id < 3.5", Box::new(|row| Some(id(row) < 4))),
        ("id >= 1190.2", Box::new(|row| Some(id(row) > 1190))),
        ("id < 99999999999999999999", Box::new(|_| Some(true))),
        ("price is null", Box::new(|row| Some(price(row).is_none()))),
        (
            "price IS NOT NULL AND is_new",
            Box::new(|row| both(Some(price(row).is_some()), row[3].as_ref().map(|it| *it == Scalar::Bool(true)))),
        ),
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
    let units =
        |text: &str| Query::new(&table, Some(text), &Wanted::Rows(select.clone())).expect(text).units(&table).len();
    assert_eq!((units("id < 400"), units("id < 401"), units("not id < 400"), units("id = 5000")), (1, 2, 3, 0));
    assert_eq!((units("never is not null"), units("never is null"), units("id > 500 and city = 'Rome'")), (3, 3, 2));
    for wrong in [
        "",
        "price",
        "price >",
        "price > ten",
        "nowhere = 1",
        "price > 'x'",
        "city = 5",
        "id = true",
        "(id = 1",
        "id = 1)",
        "id between 1",
        "id in ()",
        "id is 5",
        "5 < id",
        "day > '2020-02-30'",
        "id = 'a",
        "id = 1 id",
        "is_new > and",
        "id = 1x",
        "@",
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
            let greatest =
                values(column).reduce(|greatest, value| if greatest.is_less(&value) { value } else { greatest });
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
            let floats: f64 =
                values(column).map(|value| if let Scalar::Float(value) = value { value } else { 0.0 }).sum();
            assert_eq!(aggregate.exact.first().map_or(0.0, |sum| sum.value()), floats, "{}", names[column]);
        }
        for (by, least, count) in [("price", false, 10), ("price", true, 1), ("city", true, 300), ("big", false, 1024)]
        {
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
            // They come at once, at the end.
            let how = engine::How { reply_bytes: 512 << 10, ..how };
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

/// The file's table with all of its page index that a query names.
fn indexed(file: &[u8], table: &Table, query: &Query) -> Table {
    let mut learned = table.clone();
    for (group, column, index) in query.indexes(table) {
        let of = |range: &std::ops::Range<u64>| &file[range.start as usize..range.end as usize];
        learned.learn_pages((group, column), of(&index.values), of(&index.places)).expect("a sound index");
    }
    learned
}

#[test]
fn rows_of_pages_that_an_index_excludes_are_not_read() {
    let file = sample("indexed.parquet");
    let table = parquet(&file).expect("a table");
    type Case<'a> = (&'a str, &'a dyn Fn(i64) -> bool, u64);
    let cases: [Case<'_>; 7] = [
        ("id = 300", &|row| row / 100 == 300, 5000),
        ("id between 598 and 601", &|row| (598..=601).contains(&(row / 100)), 10_000),
        ("id < 5 or id >= 995", &|row| row / 100 < 5 || row / 100 >= 995, 10_000),
        ("name = 'n00017'", &|row| row / 5000 == 17, 12_000),
        ("name is null and id > 0", &|row| row / 20_000 == 3, 25_000),
        ("v = 3 and id = 42", &|row| row % 7 == 3 && row / 100 == 42, 5000),
        ("not id = 300", &|row| row / 100 != 300, 100_000),
    ];
    for (text, is_selected, rows_max) in cases {
        let query = Query::new(&table, Some(text), &Wanted::Aggregate(vec!["v".to_owned()])).expect(text);
        let learned = indexed(&file, &table, &query);
        let wanted: i64 = (0..100_000).filter(|row| is_selected(*row)).map(|row| row % 7).sum();
        for how in HOWS {
            let (Outcome::Aggregate(sums), counted, _) = whole(&file, &learned, &query, how).expect(text) else {
                panic!("aggregates")
            };
            let (Outcome::Aggregate(all), counted_all, _) = whole(&file, &table, &query, how).expect(text) else {
                panic!("aggregates")
            };
            assert_eq!((sums[0].sum, counted.selected), (i128::from(wanted), counted_all.selected), "{text}");
            assert_eq!((&sums[0].least, &sums[0].greatest), (&all[0].least, &all[0].greatest), "{text}");
            assert!(counted.rows <= rows_max && counted.rows <= counted_all.rows, "{text}: {} rows", counted.rows);
        }
    }
    // Without an expression, and of files without an index, there is nothing to read.
    let all = Query::new(&table, None, &Wanted::Aggregate(vec!["v".to_owned()])).expect("a query");
    assert!(all.indexes(&table).is_empty());
    let other = parquet(&sample("snappy.parquet")).expect("a table");
    let query = Query::new(&other, Some("id = 3"), &Wanted::Rows(Vec::new())).expect("a query");
    assert!(query.indexes(&other).is_empty());
    // An index that is none refuses the file, or says something that is sound.
    let query = Query::new(&table, Some("name = 'n00017' and id > 0"), &Wanted::Rows(Vec::new())).expect("a query");
    let (group, column, index) = query.indexes(&table).remove(0);
    let of = |range: &std::ops::Range<u64>| file[range.start as usize..range.end as usize].to_vec();
    let (values, places) = (of(&index.values), of(&index.places));
    let mut random = Random(11);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..2000 {
        let (mut values, mut places) = (values.clone(), places.clone());
        let bad = if round % 2 == 0 { &mut values } else { &mut places };
        match round % 3 {
            0 => bad.truncate(random.below(bad.len() as u64) as usize),
            _ => {
                let at = random.below(bad.len() as u64) as usize;
                bad[at] = random.below(256) as u8;
            }
        }
        let mut learned = table.clone();
        match learned.learn_pages((group, column), &values, &places) {
            Err(_) => refused += 1,
            Ok(()) => {
                taken += 1;
                let units = query.units(&learned);
                assert!(units.iter().all(|unit| unit.begin < unit.end && unit.end <= 60_000));
            }
        }
    }
    assert!(refused > 500 && taken > 100, "{refused} {taken}");
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let delta = sample("delta.parquet");
    let table = parquet(&delta).expect("a table");
    let stop = whole(&delta, &table, &all_rows(&table), HOWS[0]).expect_err("refused");
    assert_eq!(stop, Stop::Fault(Fault { reason: Reason::Encoding, column: 0, detail: 5 }));
    let other = Query::new(&table, None, &Wanted::Rows(vec!["s".to_owned()])).expect("a query");
    assert_eq!(whole(&delta, &table, &other, HOWS[0]).expect("the other column").2.len(), 3);
    let gzip = sample("gzip.parquet");
    let table = parquet(&gzip).expect("a table");
    let refused = Query::new(&table, None, &Wanted::Rows(vec!["s".to_owned()])).expect_err("refused").to_string();
    assert!(refused.contains("\"s\"") && refused.contains("gzip"), "{refused}");
    let nested = sample("nested.parquet");
    let table = parquet(&nested).expect("a table");
    assert_eq!(whole(&nested, &table, &all_rows(&table), HOWS[0]).expect("the flat column").2.len(), 2);
    for name in ["list.list.element", "group.a"] {
        let refused = Query::new(&table, None, &Wanted::Rows(vec![name.to_owned()])).expect_err("refused").to_string();
        assert!(refused.contains(name) && refused.contains("nested"), "{refused}");
    }
}

#[test]
fn cut_off_and_hostile_parquet_ends_with_an_error_within_bounds() {
    let mut random = Random(5);
    let (mut refused, mut stopped, mut read) = (0, 0, 0);
    for name in ["second", "fallback", "plain", "zstd"] {
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
            match check_parquet(&bad) {
                Checked::Refused => refused += 1,
                Checked::Stopped => stopped += 1,
                Checked::Read => read += 1,
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
