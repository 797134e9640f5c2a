//! CSV and fixed-width records by the engine that the SPUs and hosts share, wherever they are cut, and what is none of them.

#[path = "support/engine.rs"]
mod engine;

use columns_host::engine::Stop;
use columns_host::schema::parse_schema;
use columns_host::table::{FileFormat, HEAD_BYTES};
use columns_host::value::Scalar;
use columns_host::wire::*;
use columns_host::{DataType, Table};
use engine::{HOWS, Random, all_rows, ranges, whole};
use proptest::prelude::*;

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
        // Its head is looked at too, and has nothing wrong in a large file.
        let head = &text.as_bytes()[..text.len().min(8)];
        let schema = Some(parse_schema(schema).expect("a schema"));
        let table = Table::csv(head, text.len() as u64, (b',', true), schema).expect("a table");
        let result = whole(text.as_bytes(), &table, &all_rows(&table), HOWS[0]);
        let Err(Stop::Fault(fault)) = result else { panic!("{text:?}: {:?}", result.map(|it| it.2)) };
        assert_eq!(fault.reason, reason, "{text:?}");
    }
    assert!(table("a\n1\n", Some("b:int64")).is_err(), "no such column");
    assert!(table("", None).is_err(), "no header");
    let long = vec![b'x'; HEAD_BYTES];
    assert!(Table::csv(&long, 1 << 30, (b',', true), None).is_err(), "no record in its first bytes");
}
