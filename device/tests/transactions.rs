//! Changes of the device as transactions: installs, upgrades, removals, regions, namespaces and rights are whole or not at all after
//! a power cut, a kill or a failure of the media at each step; what is refused leaves nothing; an upgrade loses no request.

mod common;
use common::drive::*;
use common::keeper::{begin, keeper};
use common::slow::Valve;
use common::steps::{STEPS, Step};
use common::*;
use willow_device::media::fault::{Choices, FaultMedia, FaultOptions};
use willow_device::{Arguments, Rpc, RpcOutcome, Store, control};

const INITIALIZE_TRAPS: &str = "(func (export \"_initialize\") unreachable)";
const INITIALIZE_CALLS: &str = "(func (export \"_initialize\") (drop (call $app_number (i32.const 0) (i32.const 1))))";
const INITIALIZE_PRINTS: &str = "(func (export \"_initialize\") (i32.store8 (i32.const 0) (i32.const 72)) (call $print (i32.const 0) (i32.const 1)) (i32.store8 (i32.const 0) (i32.const 10)) (call $print (i32.const 0) (i32.const 1)))";

fn media() -> FaultMedia {
    FaultMedia::new(FaultOptions::new(usize::from(SPUS), 1 << 26))
}

#[test]
fn a_module_whose_initialize_traps_leaves_no_trace() {
    let media = media();
    let mut drive = Drive::open(&media).unwrap();
    for (extra, why) in [(INITIALIZE_TRAPS, "_initialize"), (INITIALIZE_CALLS, "only memory and print")] {
        let refused = drive.install(&keeper(1, "", extra)).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!((drive.state().apps.len(), media.blobs().len()), (0, 0));
    drive.shut_down();
    let mut drive = Drive::open(&media).expect("the device starts after a clean stop");
    let number = drive.install(&keeper(1, "", INITIALIZE_PRINTS)).unwrap();
    assert_eq!(number, 1, "no number was lost");
    assert!(drive.log("keeper").contains("0: H"), "{}", drive.log("keeper"));
    // One that is to follow a version that runs leaves that alone, with its memory.
    assert_eq!((drive.call(number, 4, &[]).1, drive.call(number, 4, &[]).1), (1, 2));
    assert!(drive.install(&keeper(2, "", INITIALIZE_TRAPS)).unwrap_err().contains("_initialize"));
    assert_eq!((drive.call(number, 1, &[]).1, drive.call(number, 4, &[]).1), (1, 3));
    assert_eq!(media.blobs().len(), 1);
}

#[test]
fn an_app_that_is_broken_on_the_media_is_listed_as_failed_and_the_device_starts() {
    let other = keeper(2, "", "(func (nop))");
    let damages: [(Option<Vec<u8>>, &str); 4] = [
        (None, "is gone from the media"),
        (Some(b"\0asm and no more".to_vec()), "is damaged"),
        (Some(other), "is damaged"),
        (Some(vec![]), "is damaged"),
    ];
    for (damage, why) in damages {
        let media = media();
        let mut drive = Drive::open(&media).unwrap();
        let number = drive.install(&keeper(1, "", "")).unwrap();
        assert_eq!(drive.call(number, 2, b"precious").0, RpcOutcome::Answered { status: 0 });
        drive.shut_down();
        media.damage_blob(&media.blobs()[0], damage);
        let mut drive = Drive::open(&media).expect("the device starts");
        let app = drive.apps().into_iter().find(|app| app.number == number).expect("it is listed");
        assert!(app.name == "keeper" && app.state.starts_with("failed: ") && app.state.contains(why), "{}", app.state);
        let statistics = drive.device.statistics();
        assert!(statistics.apps[0].failed && statistics.apps[0].ended.as_ref().is_some_and(|text| text.contains(why)));
        assert_eq!(drive.call(number, 1, &[]).0, RpcOutcome::AppEnded);
        // It keeps its number and its data, and is mended by an install.
        assert_eq!(drive.install(&keeper(3, "", "")), Ok(number));
        assert_eq!((drive.call(number, 1, &[]).1, drive.read(number)), (3, *b"precious"));
        drive.shut_down();
        assert_eq!(Drive::open(&media).unwrap().call(number, 1, &[]).1, 3);
    }
}

/// Metadata of version 1 name a module after its app; such a one may trap, or be no module, as well.
#[test]
fn media_of_version_1_are_read_and_their_broken_apps_listed() {
    let media = media();
    let mut store = media.store();
    store.save_blob(1, "keeper", keeper(7, "", "")).unwrap();
    let trapper = format!("(func $start (param i32 i32) (result i32) (i32.const 0)) {INITIALIZE_TRAPS}");
    store.save_blob(1, "trapper", module("trapper", &trapper)).unwrap();
    store.save_blob(1, "impostor", keeper(8, "", "")).unwrap();
    store.save_blob(1, "no-module", b"text".to_vec()).unwrap();
    store.save_blob(1, "nobodys", b"text".to_vec()).unwrap();
    let mut ancient = module("ancient", "(func $start (param i32 i32) (result i32) (i32.const 0))");
    let at = ancient.windows(6).position(|bytes| bytes == b"abi=2\n").expect("the version");
    ancient[at + 4] = b'1';
    store.save_blob(1, "ancient", ancient).unwrap();
    let app = |number: u32, name: &str| format!(r#"{{"number":{number},"name":"{name}","built_in":false}}"#);
    let apps =
        [app(1, "keeper"), app(2, "trapper"), app(5, "no-module"), app(6, "impostor"), app(7, "ancient")].join(",");
    let uuid = [1; 16];
    let text = format!(
        r#"{{"version":1,"uuid":{uuid:?},"spus":{SPUS},"stripe_bytes":8192,"identities":1,"regions":[],"namespaces":[],"apps":[{apps}]}}"#
    );
    store.save_metadata(1, text.into_bytes()).unwrap();
    drop(store);
    let mut drive = Drive::open(&media).expect("the device starts");
    let states: Vec<String> = drive.apps().into_iter().map(|app| app.state).collect();
    assert_eq!(states[0], "running");
    assert!(states[1].starts_with("failed: its _initialize failed"), "{}", states[1]);
    assert!(states[2].starts_with("failed: it is not a WebAssembly module"), "{}", states[2]);
    assert_eq!(states[3], "failed: its module is that of app keeper");
    assert!(states[4].starts_with("failed: it was built for ABI version 1"), "{}", states[4]);
    assert_eq!(drive.call(1, 1, &[]).1, 7);
    assert_eq!(
        media.blobs(),
        ["ancient", "impostor", "keeper", "no-module", "trapper"],
        "what no metadata name is removed"
    );
    // The next change writes the new version, under the module's hash for what is installed now.
    assert_eq!(drive.install(&keeper(9, "", "")), Ok(1));
    assert_eq!(media.blobs().iter().filter(|name| name.len() == 64).count(), 1);
    assert!(!media.blobs().contains(&"keeper".to_owned()));
    drive.shut_down();
    let mut drive = Drive::open(&media).unwrap();
    assert_eq!(drive.call(1, 1, &[]).1, 9);
}

/// A save that fails leaves the region table, the apps and their data as they were.
#[test]
fn what_could_not_be_saved_is_not_there() {
    let media = media();
    let mut drive = Drive::open(&media).unwrap();
    let number = drive.install(&keeper(1, "", "")).unwrap();
    media.fail_saves(0, 1, 0);
    assert_eq!(drive.call(number, 2, b"precious"), (RpcOutcome::Answered { status: 9 }, -5i32 as u32));
    assert!(drive.state().regions.is_empty(), "{:?}", drive.state().regions);
    assert_eq!(drive.call(number, 2, b"precious").0, RpcOutcome::Answered { status: 0 });
    let before = drive.state();
    media.fail_saves(0, 1, 0);
    assert!(!drive.control(control::REMOVE, b"keeper"));
    assert_eq!((drive.state(), drive.read(number)), (before.clone(), *b"precious"));
    drive.shut_down();
    let mut drive = Drive::open(&media).unwrap();
    assert_eq!((drive.state(), drive.read(number)), (before, *b"precious"));
}

/// Handler 1: opens regions 1 and 2, or where they are there writes 8 bytes of payload into region 2. 2: copies 8 bytes from region 2 to region 1. 3: frees region 1. 4: opens region 3 and reads its
/// first 8 bytes.
const COPIER: &str = r#"
    (func $start (param $token i32) (param $handler i32) (result i32) (local $code i32) (local $base i64)
        (if (i32.eqz (local.get $handler)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (if (i32.eq (local.get $handler) (i32.const 1)) (then
            (drop (call $region (i32.const 1) (i64.const 65536) (i32.const -1)))
            (local.set $base (call $region (i32.const 2) (i64.const 65536) (local.get $token)))
            (if (i64.eq (local.get $base) (i64.const -1)) (then (return (i32.const 0))))
            (local.set $code (call $dma (local.get $token) (i32.const 2) (i64.const 0) (i32.const 1) (local.get $base) (i32.const 8) (local.get $token)))))
        (if (i32.eq (local.get $handler) (i32.const 2)) (then (local.set $code
            (call $dma (local.get $token) (i32.const 1) (call $region (i32.const 2) (i64.const 0) (i32.const 0))
                (i32.const 1) (call $region (i32.const 1) (i64.const 0) (i32.const 0)) (i32.const 8) (local.get $token)))))
        (if (i32.eq (local.get $handler) (i32.const 3)) (then (local.set $code
            (call $region_free (i32.const 1) (local.get $token)))))
        (if (i32.eq (local.get $handler) (i32.const 4)) (then
            (local.set $base (call $region (i32.const 3) (i64.const 65536) (local.get $token)))
            (if (i64.eq (local.get $base) (i64.const -1)) (then (return (i32.const 0))))
            (local.set $code
            (call $dma (local.get $token) (i32.const 1) (local.get $base) (i32.const 2) (i64.const 0) (i32.const 8) (local.get $token)))))
        (if (i32.ne (local.get $code) (i32.const 1)) (then (call $complete (local.get $token) (i64.extend_i32_s (local.get $code)))))
        (i32.const 0))
    (func $complete (param i32 i64)
        (if (i32.ne (local.get 0) (i32.const -1))
            (then (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))))"#;

#[test]
fn a_late_write_does_not_land_in_a_region_that_was_freed_meanwhile() {
    let valve = Valve::default();
    let mut rig = Rig::slow(config(1), 1 << 26, None, valve.clone());
    let app = rig.install(&module("copier", COPIER)).unwrap();
    assert_eq!(rig.call(app, 1, 0, &[], &[], 0).outcome, RpcOutcome::Answered { status: 0 });
    let first = rig.device.statistics().regions[0].base;
    assert_eq!(rig.call(app, 1, 0, &[], b"too late", 0).result, 0);
    valve.reads_alone.set(true);
    valve.closed.set(true);
    begin(&mut rig, app, 2, 1);
    rig.device.run(0);
    assert_eq!(valve.waiting(), 1, "the copy has begun");
    begin(&mut rig, app, 3, 1);
    for _ in 0..100 {
        rig.device.run(0);
    }
    let rpc = Rpc { app, handler: 4, spu: 0, arguments: Arguments::EMPTY };
    let request = rig.request(rpc, &[], 8);
    let tag = request.tag;
    rig.device.submit(rig.hre, request).unwrap();
    for _ in 0..100 {
        rig.device.run(0);
    }
    valve.closed.set(false);
    rig.settle();
    let mut seen = None;
    while let Some(done) = rig.device.completion() {
        seen = if done.tag == tag { Some(done.buffer) } else { seen };
    }
    assert_eq!(seen, Some(vec![0; 8]), "the copy has landed in another region");
    let regions = rig.device.statistics().regions;
    assert!(regions.iter().all(|region| !region.deleting && region.base != first), "{regions:?}");
    let other = rig.install(&keeper(1, "", "")).unwrap();
    assert_eq!(rig.call(other, 3, 0, &[], &[], 8).buffer, [0; 8], "a late write has landed");
    assert!(rig.device.statistics().regions.iter().any(|region| region.base == first), "the range is free again");
}

/// Opens what is left and holds it to the old or the new state; `made`: it was said to be made. Then makes the change.
fn check(step: Step, media: &FaultMedia, (before, after): (&State, &State), made: Option<bool>, what: &str) {
    let mut drive = Drive::open(media).unwrap_or_else(|error| panic!("{what}: {error}"));
    drive.settle();
    let found = drive.full_state();
    let is_new = found == *after;
    assert!(
        is_new || found == *before,
        "{what}: neither the old nor the new state: {found:#?}\n{before:#?}\n{after:#?}"
    );
    assert!(made != Some(true) || is_new, "{what}: it was acknowledged and is gone");
    assert_eq!(drive.device.statistics().regions.iter().filter(|region| region.deleting).count(), 0, "{what}");
    assert_eq!(
        drive.named_modules(),
        media.blobs(),
        "{what}: modules that nobody names, or named ones that are not there"
    );
    if !is_new {
        assert!(step.run(&mut drive), "{what}: it cannot be made afterwards");
        assert_eq!(drive.full_state(), *after, "{what}");
    }
    drive.shut_down();
    assert_eq!(Drive::open(media).unwrap().full_state(), *after, "{what}, opened again");
}

fn options(delayed_percent: u8) -> FaultOptions {
    FaultOptions { delayed_percent, seed: 3, ..FaultOptions::new(usize::from(SPUS), 1 << 26) }
}

/// Outcomes of one cut that are looked at, at most.
const OUTCOMES_MAX: usize = 24;

#[test]
fn every_change_is_whole_or_not_at_all_after_a_cut_at_each_operation() {
    for delayed_percent in [0, 60] {
        for step in STEPS {
            let (_, before, after) = step.media(&options(delayed_percent));
            let mut cuts = 0;
            loop {
                let (media, ..) = step.media(&options(delayed_percent));
                media.cut_after(media.operations() + cuts);
                let made = Drive::open(&media).ok().map(|mut drive| step.run(&mut drive));
                let was_cut = media.is_cut();
                let mut choices = Choices::exhaustive();
                for outcome in 0..OUTCOMES_MAX {
                    let left = media.power_cut(&mut choices);
                    let what = format!("{step:?}, {delayed_percent} % delayed, cut after {cuts}, outcome {outcome}");
                    check(step, &left, (&before, &after), made, &what);
                    if !choices.advance() {
                        break;
                    }
                }
                if !was_cut {
                    assert_eq!(made, Some(true), "{step:?}");
                    break;
                }
                cuts += 1;
            }
            assert!(cuts > 0, "{step:?} does nothing to the media");
        }
    }
}

#[test]
fn every_change_is_whole_or_not_at_all_when_the_device_is_killed_at_each_step() {
    for step in STEPS {
        let (_, before, after) = step.media(&options(100));
        let mut turns = 0;
        loop {
            let (media, ..) = step.media(&options(100));
            let mut drive = Drive::open(&media).unwrap();
            drive.turns_left = Some(turns);
            let made = step.run(&mut drive);
            let was_killed = drive.turns_left == Some(0);
            drop(drive);
            let what = format!("{step:?}, killed after {turns} turns");
            // What was told in the turn of the kill had been done.
            check(step, &media, (&before, &after), Some(made && !was_killed), &what);
            if !was_killed {
                assert!(made, "{step:?}");
                break;
            }
            turns += 1;
        }
        assert!(turns > 3, "{step:?} takes {turns} turns only");
    }
}

#[test]
fn every_change_is_whole_or_not_at_all_when_a_save_or_a_flush_fails() {
    for step in STEPS {
        let (_, before, after) = step.media(&options(0));
        // How many fail in a row, and how many of these have happened all the same.
        for (count, happening) in [(1, 0), (1, 1), (2, 1), (2, 2), (1000, 0)] {
            let mut skipped = 0;
            loop {
                let (media, ..) = step.media(&options(0));
                let mut drive = Drive::open(&media).unwrap();
                drive.settle();
                let saves = media.statistics().saves;
                media.fail_saves(skipped, count, happening);
                let made = step.run(&mut drive);
                let what = format!("{step:?}, {count} saves fail after {skipped}, {happening} happen");
                let has_failed = media.statistics().saves > saves + skipped;
                media.heal();
                let found = drive.full_state();
                assert!(found == before || found == after, "{what}: neither nor: {found:#?}");
                assert!(!made || found == after, "{what}");
                // Killed now; where what was there could be saved again, it is what the running device had.
                drop(drive);
                if count == 1 {
                    let mut drive = Drive::open(&media.power_cut(&mut Choices::exhaustive())).unwrap();
                    drive.settle();
                    assert_eq!(drive.full_state(), found, "{what}: the media say otherwise than the device did");
                }
                check(step, &media, (&before, &after), Some(made), &what);
                if !has_failed {
                    assert!(made, "{what}");
                    break;
                }
                skipped += 1;
            }
            assert!(skipped > 0, "{step:?} saves nothing");
        }
        let (media, ..) = step.media(&options(0));
        let mut drive = Drive::open(&media).unwrap();
        media.fail_flushes(1);
        let made = step.run(&mut drive);
        let found = drive.full_state();
        assert!(found == before || found == after, "{step:?}: neither nor after a failed flush: {found:#?}");
        media.heal();
        drop(drive);
        check(step, &media, (&before, &after), Some(made), &format!("{step:?}, a flush fails"));
    }
}

#[test]
fn modules_that_nobody_names_are_removed_and_shared_ones_are_kept() {
    let media = media();
    let mut store = media.store();
    store.save_blob(1, &"0".repeat(64), b"left over".to_vec()).unwrap();
    drop(store);
    let mut drive = Drive::open(&media).unwrap();
    drive.settle();
    assert!(media.blobs().is_empty(), "{:?}", media.blobs());
    // Two users' apps of one content share the module, until the last of them goes.
    let module = keeper(1, "", "");
    let users: Vec<_> = [1000, 1001].map(|user| drive.user(user)).to_vec();
    for hre in &users {
        drive.install_on(*hre, &module).unwrap();
    }
    assert_eq!((drive.apps().len(), media.blobs().len()), (2, 1));
    assert!(drive.control(control::REMOVE, b"u1000-keeper"));
    drive.settle();
    assert_eq!(media.blobs().len(), 1);
    assert!(drive.control(control::REMOVE, b"u1001-keeper"));
    drive.settle();
    assert!(media.blobs().is_empty());
}

#[test]
fn rules_past_the_bound_are_refused_and_none_is_lost() {
    let media = media();
    let mut drive = Drive::open(&media).unwrap();
    let rule = |number: usize| format!(r#"{{"caller":"a{number}","callee":"b","handler":1}}"#);
    let change =
        |range: std::ops::Range<usize>| format!(r#"{{"add":[{}]}}"#, range.map(rule).collect::<Vec<_>>().join(","));
    assert!(drive.control(control::CHANGE_INTERCALLS, change(0..4096).as_bytes()));
    let before = drive.state();
    assert!(!drive.control(control::CHANGE_INTERCALLS, change(5000..5001).as_bytes()));
    assert!(drive.error_text().contains("at most 4096"), "{}", drive.error_text());
    assert_eq!(drive.state(), before);
}

#[test]
fn a_namespace_is_deleted_also_where_its_app_does_not_answer() {
    let media = media();
    let mut drive = Drive::open(&media).unwrap();
    // It answers nothing that SPU-OS tells it.
    let silent = r#"(func $start (param i32 i32) (result i32)
        (if (local.get 1) (then (call $respond (local.get 0) (i32.const 0) (i32.const 1)))) (i32.const 0))"#;
    drive.install(&module("base-io", silent)).unwrap();
    assert!(Step::CreateNamespace.run(&mut drive));
    assert!(Step::DeleteNamespace.run(&mut drive));
    assert!(drive.device.namespaces().is_empty() && drive.device.statistics().regions.is_empty());
}

#[test]
fn attachments_are_bounded_and_go_with_their_namespace() {
    let media = media();
    let mut drive = Drive::open(&media).unwrap();
    drive.install(&well_behaved("base-io", "")).unwrap();
    assert!(Step::CreateNamespace.run(&mut drive));
    let attached =
        |drive: &Drive| drive.device.host_tables().attachments.iter().map(|it| it.hosts.clone()).collect::<Vec<_>>();
    assert_eq!(attached(&drive), [["nqn.first"]]);
    let hosts = |count: usize, bytes: usize| {
        let hosts = (0..count).map(|_| format!("{:?}", "n".repeat(bytes))).collect::<Vec<_>>().join(",");
        format!(r#"{{"nsid":1,"hosts":[{hosts}]}}"#).into_bytes()
    };
    for (wrong, why) in [(hosts(65, 10), "at most 64"), (hosts(1, 224), "1 to 223"), (hosts(1, 0), "1 to 223")] {
        assert!(!drive.control(control::ATTACH, &wrong));
        assert!(drive.error_text().contains(why), "{}", drive.error_text());
        assert_eq!(attached(&drive), [["nqn.first"]]);
    }
    assert!(!drive.control(control::ATTACH, br#"{"nsid":2,"hosts":[]}"#));
    assert!(drive.control(control::ATTACH, &hosts(64, 223)));
    assert_eq!(attached(&drive)[0].len(), 64);
    assert!(drive.control(control::ATTACH, br#"{"nsid":1}"#), "attached to all hosts again");
    assert!(attached(&drive).is_empty());
    assert!(drive.control(control::ATTACH, br#"{"nsid":1,"hosts":[]}"#));
    assert_eq!(attached(&drive), [Vec::<String>::new()], "attached to none");
    // Some are added and taken out, whatever others changed meanwhile.
    assert!(drive.control(control::ATTACH, br#"{"nsid":1,"attach":["nqn.b","nqn.a","nqn.b"],"hosts":["nqn.x"]}"#));
    assert!(drive.control(control::ATTACH, br#"{"nsid":1,"attach":["nqn.c"],"detach":["nqn.b"]}"#));
    assert_eq!(attached(&drive), [["nqn.a", "nqn.c"]]);
    assert!(drive.control(control::ATTACH, br#"{"nsid":1}"#));
    assert!(!drive.control(control::ATTACH, br#"{"nsid":1,"detach":["nqn.b"]}"#));
    assert!(drive.error_text().contains("open to every host"), "{}", drive.error_text());
    assert!(drive.control(control::ATTACH, br#"{"nsid":1,"detach":["nqn.b"],"hosts":["nqn.a","nqn.b"]}"#));
    assert_eq!(attached(&drive), [["nqn.a"]]);
    let private = br#"{"csi":"nvm","size_bytes":1048576,"hosts":["nqn.a"],"private":true}"#;
    assert!(drive.control(control::CREATE_NAMESPACE, private));
    for wrong in [r#"{"nsid":2}"#, r#"{"nsid":2,"attach":["nqn.b"]}"#, r#"{"nsid":2,"hosts":["nqn.b","nqn.c"]}"#] {
        assert!(!drive.control(control::ATTACH, wrong.as_bytes()));
        assert!(drive.error_text().contains("one host at most"), "{}", drive.error_text());
    }
    assert!(drive.control(control::ATTACH, br#"{"nsid":2,"attach":["nqn.b"],"detach":["nqn.a"]}"#));
    assert_eq!(attached(&drive)[1], ["nqn.b"]);
    assert!(drive.control(control::DELETE_NAMESPACE, &2u32.to_le_bytes()));
    drive.shut_down();
    let mut drive = Drive::open(&media).unwrap();
    assert_eq!(attached(&drive).len(), 1);
    assert!(Step::DeleteNamespace.run(&mut drive));
    assert!(attached(&drive).is_empty());
}

#[test]
fn a_range_that_could_not_be_erased_is_free_after_the_next_change() {
    let (media, ..) = Step::Remove.media(&options(0));
    let mut drive = Drive::open(&media).unwrap();
    drive.settle();
    media.fail_flushes(1);
    // What has to be flushed: the zeroes.
    assert!(Step::Remove.run(&mut drive));
    drive.settle();
    let deleting = |drive: &Drive| drive.device.statistics().regions.iter().filter(|region| region.deleting).count();
    assert_eq!(deleting(&drive), 1, "it is out of reach, and its range is nobody's");
    assert!(Step::Weight.run(&mut drive));
    drive.settle();
    assert!(drive.device.statistics().regions.is_empty());
    drive.shut_down();
    assert!(Drive::open(&media).unwrap().device.statistics().regions.is_empty());
}

/// A save that failed and has happened all the same is the worst of both: until the media say for certain what there is, they must hold
/// all that the old and the new state name.
#[test]
fn every_change_is_whole_or_not_at_all_when_a_save_fails_that_has_happened_and_then_the_power_goes() {
    for step in STEPS {
        let (_, before, after) = step.media(&options(0));
        for skipped in 0..2 {
            for cuts in 1..6 {
                let (media, ..) = step.media(&options(0));
                let mut drive = Drive::open(&media).unwrap();
                drive.settle();
                media.fail_saves(skipped, 1, 1);
                media.cut_after(media.operations() + cuts);
                let made = step.run(&mut drive);
                drop(drive);
                let left = media.power_cut(&mut Choices::exhaustive());
                let what = format!("{step:?}, the save after {skipped} fails and happens, cut after {cuts}");
                check(step, &left, (&before, &after), Some(made), &what);
            }
        }
    }
}
