//! What the formats mean, how broken lines are told, and that no bytes do harm.

use super::testing::check_trace;
use super::*;
use proptest::prelude::*;

fn all(text: &str, format: Format) -> Vec<(u64, Action, u64, u64)> {
    let records = Records::new(text.as_bytes(), format);
    records.map(|record| record.unwrap()).map(|of| (of.at_ns, of.action, of.offset, of.bytes)).collect()
}

fn error(text: &str, format: Format) -> String {
    Records::new(text.as_bytes(), format).find_map(Result::err).expect("an error").to_string()
}

#[test]
fn fio_iologs_of_both_versions() {
    let two = "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a read 4096 512\n/dev/a wait 7\n/dev/a write 0 8192\n\
               /dev/a sync 0 0\n/dev/a trim 512 512\n/dev/a close\n";
    let expected = [
        (0, Action::Read, 4096, 512),
        (7000, Action::Write, 0, 8192),
        (7000, Action::Flush, 0, 0),
        (7000, Action::Deallocate, 512, 512),
    ];
    assert_eq!(all(two, Format::Fio), expected);
    let three =
        "fio version 3 iolog\r\n5 x add\r\n5 x open\r\n100 x read 4096 512\r\n107 x write 0 8192\r\n106 x datasync\r\n";
    assert_eq!(
        all(three, Format::Fio),
        [(0, Action::Read, 4096, 512), (7000, Action::Write, 0, 8192), (7000, Action::Flush, 0, 0)]
    );
}

#[test]
fn blkparse_text_until_its_statistics() {
    let text = "  8,0    3        1     1.000000000   697  Q   W 223490 + 8 [kjournald]\n\
                8,0 3 2 1.000000500 697 G W 223490 + 8 [kjournald]\n\
                8,0 3 0 1.000000600 0 m N cfq697 insert_request\n\
                8,0 1 3 1.000001 1 Q RA 16 + 16 [x]\n\
                8,0 1 4 1.000001500 1 Q FWS [x]\n8,0 1 5 1.000002 1 Q DS 8 + 8 [x]\n\
                CPU0 (sda):\n Reads Queued: anything\n";
    assert_eq!(
        all(text, Format::Blktrace),
        [
            (0, Action::Write, 223_490 * 512, 4096),
            (1000, Action::Read, 8192, 8192),
            (1500, Action::Flush, 0, 0),
            (2000, Action::Deallocate, 4096, 4096)
        ]
    );
}

#[test]
fn msr_csv() {
    let text = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n128166372003061629,hm,1,Read,383496192,32768,413\n\
                128166372003061729,hm,0,Write,0,512,1\n";
    assert_eq!(all(text, Format::Msr), [(0, Action::Read, 383_496_192, 32768), (10_000, Action::Write, 0, 512)]);
}

#[test]
fn broken_lines_are_told_with_line_field_and_what_was_expected() {
    for (text, format, expected) in [
        ("", Format::Fio, "line 1, version: the file is empty"),
        ("fio version 1\n", Format::Fio, "line 1, version: \"fio version 1\" found, expected \"fio version 2"),
        ("fio version 2 iolog\nx read 1\n", Format::Fio, "line 2, length: it is missing, expected a number of bytes"),
        ("fio version 2 iolog\n\nx read q 1\n", Format::Fio, "line 3, offset: \"q\" found, expected a number of bytes"),
        ("fio version 2 iolog\nx dance\n", Format::Fio, "line 2, action: \"dance\" found, expected add"),
        ("fio version 3 iolog\n1 x wait 5\n", Format::Fio, "line 2, action: \"wait\""),
        ("fio version 3 iolog\nx read 0 1\n", Format::Fio, "line 2, timestamp: \"x\" found"),
        ("fio version 2 iolog\nx read 0 1 2\n", Format::Fio, "line 2, line: \"2\" found behind the length"),
        ("8,0 1 1 1.0 1 Q R 1 - 2\n", Format::Blktrace, "line 1, sectors: \"-\" found behind the sector, expected +"),
        ("8,0 1 1 soon 1 Q R 1 + 2\n", Format::Blktrace, "line 1, time: \"soon\" found, expected seconds"),
        ("sda 1 1 1.0 1 Q R 1 + 2\n", Format::Blktrace, "line 1, device: \"sda\" found, expected MAJOR,MINOR"),
        ("8,0 1 1 1.0 1 Q X 1 + 2\n", Format::Blktrace, "line 1, rwbs"),
        ("1,h,0,Eat,0,512,1\n", Format::Msr, "line 1, Type: \"Eat\" found, expected Read or Write"),
        ("1,h,0,Read,0,-5,1\n", Format::Msr, "line 1, Size: \"-5\" found, expected a number of bytes"),
        ("1,h,0,Read,0,512\n", Format::Msr, "line 1, ResponseTime: it is missing"),
    ] {
        let error = error(text, format);
        assert!(error.contains(expected), "{error}\n{expected}");
    }
    let long = format!("1,h,0,Read,0,512,1\n{}", "9".repeat(1 << 20));
    assert!(error(&long, Format::Msr).starts_with("line 2, line: it is longer than 4096 bytes"));
    assert!(error("1,h,0,Read,0,512,1\n\u{1F600}\0", Format::Msr).starts_with("line 2, Timestamp"));
}

#[test]
fn addresses_past_the_end_are_errors_or_wrap() {
    let text = "1,h,0,Read,1048576,512,1\n";
    let options = ReplayOptions { namespace_bytes: 1 << 20, block_bytes: 512, wrap: false, timed: false };
    let next =
        |text: &'static str, options| Replay::new(Records::new(text.as_bytes(), Format::Msr), options).next(0, 0);
    let Next::Broken(error) = next(text, options) else { panic!("past the end") };
    assert!(error.starts_with("line 1, offset: 512 bytes at 1048576 found, expected a range"), "{error}");
    let Next::Broken(error) = next("1,h,0,Read,0,500,1\n", options) else { panic!("no whole block") };
    assert_eq!(error, "line 1, size: 500 found, expected a multiple of the block size, 512");
    let wrap = ReplayOptions { wrap: true, ..options };
    assert_eq!(next(text, wrap), Next::Now(Operation::Read { offset: 0, bytes: 512 }));
    assert_eq!(next("1,h,0,Read,700,500,1\n", wrap), Next::Now(Operation::Read { offset: 512, bytes: 1024 }));
}

/// Lines that are nearly right: fields of all formats, put together at random.
fn lines() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        Just("fio version 2 iolog\n".to_owned()),
        Just("fio version 3 iolog\n".to_owned()),
        Just("8,0".to_owned()),
        Just("Q".to_owned()),
        Just("+".to_owned()),
        Just("read".to_owned()),
        Just(",Read,".to_owned()),
        Just("wait".to_owned()),
        Just("trim".to_owned()),
        Just("1.5".to_owned()),
        Just("\n".to_owned()),
        any::<u64>().prop_map(|number| number.to_string()),
        (0_u64..4096).prop_map(|number| (number * 512).to_string()),
        "[ -~]{0,12}",
    ];
    (prop::collection::vec(field, 0..60), prop_oneof![Just(" "), Just(",")]).prop_map(|(fields, by)| fields.join(by))
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        check_trace(&bytes);
    }

    #[test]
    fn nearly_right_lines_do_no_harm(text in lines()) {
        check_trace(text.as_bytes());
    }

    #[test]
    fn what_is_written_is_read(requests in prop::collection::vec((0_u64..1 << 40, any::<bool>(), 0_u64..1 << 30, 1_u64..1 << 20), 1..50)) {
        let mut sorted = requests.clone();
        sorted.sort_by_key(|(at_us, ..)| *at_us);
        let first = sorted[0].0;
        let expected: Vec<_> = sorted.iter().map(|(at_us, write, sector, sectors)| {
            ((at_us - first) * 1000, if *write { Action::Write } else { Action::Read }, sector * 512, sectors * 512)
        }).collect();
        let (mut fio, mut blktrace, mut msr) = ("fio version 3 iolog\n0 d add\n".to_owned(), String::new(), String::new());
        for (at_us, write, sector, sectors) in &sorted {
            let (low, letter, high) = if *write { ("write", "W", "Write") } else { ("read", "R", "Read") };
            let (offset, bytes) = (sector * 512, sectors * 512);
            fio += &format!("{at_us} d {low} {offset} {bytes}\n");
            blktrace += &format!("8,0 0 1 {}.{:06}000 1 Q {letter} {sector} + {sectors} [p]\n", at_us / 1_000_000, at_us % 1_000_000);
            msr += &format!("{},host,0,{high},{offset},{bytes},5\n", at_us * 10);
        }
        prop_assert_eq!(all(&fio, Format::Fio), expected.clone());
        prop_assert_eq!(all(&blktrace, Format::Blktrace), expected.clone());
        prop_assert_eq!(all(&msr, Format::Msr), expected);
    }
}
