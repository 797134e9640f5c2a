//! The presets: good ones are taken and do what their sources say, absurd ones are refused with what is wrong.

use willow_flash_media::timing::{Submission, Timing, Work};
use willow_flash_media::{FlashParameters, Geometry, PageKind, presets};

fn preset(name: &str) -> FlashParameters {
    let (_, text) = presets::TEXTS.into_iter().find(|(known, _)| *known == name).expect("a preset");
    toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn presets_are_good_and_as_large_as_they_say() {
    for (name, _) in presets::TEXTS {
        preset(name).validate().unwrap_or_else(|absurd| panic!("{name}: {absurd}"));
    }
    let jasmine = preset("jasmine").geometry;
    assert_eq!(
        (jasmine.dies(), jasmine.page_bytes * jasmine.planes_per_die),
        (8, 32 << 10),
        "8 banks, virtual pages of 32 kB"
    );
    assert_eq!(jasmine.page_bytes * jasmine.planes_per_die * jasmine.pages_per_block, 4 << 20, "erase blocks of 4 MB");
    assert!((64 << 30..66 << 30).contains(&jasmine.bytes()));
    assert!(!jasmine.spare_accessible);
    assert_eq!(preset("mqsim").geometry.bytes(), 512 << 30);
    assert_eq!(preset("slc").geometry.bytes(), 32 << 30);
    let tlc = preset("tlc");
    let user = tlc.geometry.bytes() / 10_000 * u64::from(tlc.controller.user_blocks_per_ten_thousand);
    assert!((960_000_000_000..1_100_000_000_000).contains(&user), "{user}");
}

/// Megabytes a second of reads of 32 kB pages in two planes, one after the other in each of some ways of some channels.
fn jasmine_reads(channels: u32, ways: u32) -> f64 {
    let parameters = preset("jasmine");
    let geometry = Geometry { channels, packages_per_channel: ways, dies_per_package: 1, ..parameters.geometry };
    let mut timing = Timing::new(&geometry, &parameters.timing);
    let reads = 200;
    let mut submitted = 0;
    let submit = |timing: &mut Timing, die: u32, at_ns| {
        let work = Work::Read { page: PageKind::Lower, retries: 0 };
        timing.submit(at_ns, &Submission { token: die.into(), die, work, blocks: &[0, 1], bytes: 32768 }).unwrap();
    };
    // Two for each way: the firmware's queue of a bank always has the next one.
    for die in (0..geometry.dies()).chain(0..geometry.dies()) {
        submit(&mut timing, die, 0);
        submitted += 1;
    }
    let mut completions = Vec::new();
    let mut done = 0;
    let mut at_ns = 0;
    while done < reads {
        at_ns = timing.next_event_ns().unwrap();
        timing.advance(at_ns, &mut completions);
        for completion in completions.drain(..) {
            done += 1;
            if submitted < reads {
                submit(&mut timing, completion.token as u32, at_ns);
                submitted += 1;
            }
        }
    }
    f64::from(reads) * 32768.0 / (at_ns as f64 / 1e9) / 1e6
}

#[test]
fn jasmine_reads_as_fast_as_the_boards_developers_measured() {
    // openssd-project.org/jasmine/devinfo. Fitted to the first two; the others follow.
    for (channels, ways, measured) in
        [(1, 1, 39.29), (1, 2, 51.42), (1, 4, 51.45), (2, 1, 78.58), (2, 2, 102.6), (2, 4, 102.78)]
    {
        let modelled = jasmine_reads(channels, ways);
        assert!(
            (modelled / measured - 1.0).abs() < 0.03,
            "{channels} channels, {ways} ways: {modelled}, measured {measured}"
        );
    }
}

#[test]
fn absurd_presets_are_refused_with_field_value_and_what_was_expected() {
    let refused = |change: &dyn Fn(&mut FlashParameters)| {
        let mut changed = preset("jasmine");
        change(&mut changed);
        changed.validate().expect_err("absurd").to_string()
    };
    assert_eq!(
        refused(&|p| p.timing.bus_bytes_per_s = 0),
        "bus_bytes_per_s is 0, expected 1000 to 1000000000000 bytes/s"
    );
    assert!(refused(&|p| p.timing.erase_ns = u64::MAX).contains("erase_ns"));
    assert!(refused(&|p| p.timing.read.middle_ns = 5).contains("kinds of pages that the cell does not have"));
    assert!(refused(&|p| p.timing.overtaking_reads_max = 0).contains("overtaking_reads_max is 0"));
    assert!(refused(&|p| p.faults.fresh = f64::NAN).contains("fresh is NaN"));
    assert!(refused(&|p| p.faults.fresh = 0.4).contains("correctable_bits"));
    assert!(refused(&|p| p.faults.codeword_bytes = 1000).contains("divisor of page_bytes"));
    assert!(refused(&|p| p.faults.word_line_buffer = true).contains("word_line_buffer is true"));
    assert!(refused(&|p| p.controller.user_blocks_per_ten_thousand = 10_000).contains("user_blocks_per_ten_thousand"));
    assert!(refused(&|p| p.geometry.channels = 1 << 31).contains("channels"));
    for (name, text) in presets::TEXTS {
        for (place, line) in text.lines().enumerate().filter(|(_, line)| line.contains(" = ") && !line.starts_with('#'))
        {
            let without: String =
                text.lines().enumerate().filter(|(at, _)| *at != place).map(|(_, line)| format!("{line}\n")).collect();
            let error = toml::from_str::<FlashParameters>(&without).expect_err("a preset never guesses").to_string();
            let field = line.split(' ').next().unwrap();
            assert!(error.contains(field), "{name} without {field}: {error}");
        }
        let unknown = text.replace("[controller]", "[controller]\nunknown = 1");
        assert!(toml::from_str::<FlashParameters>(&unknown).expect_err("unknown").to_string().contains("unknown"));
    }
}
