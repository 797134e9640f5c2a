//! Namespaces say which app serves them and how long their stripes are, and that is as durable as they are.

mod common;
use common::drive::*;
use common::users::app;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{CommandSet, Namespace, RpcOutcome, control};

/// Answers handler 1 with 7, and counts what it is told of namespaces: counters 0 and 1 are the numbers of the last that was made and deleted.
const SERVER: &str = r#"(func $start (param i32 i32) (result i32)
        (if (i32.eqz (local.get 1)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 8)))
            (if (i32.le_u (i32.sub (i32.load (i32.const 0)) (i32.const 1)) (i32.const 1)) (then
                (if (i32.eqz (call $spu_id)) (then
                    (call $count (i32.sub (i32.load (i32.const 0)) (i32.const 1)) (i64.load32_u (i32.const 4)))))))
            (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (call $respond (local.get 0) (i32.const 0) (i32.const 7)) (i32.const 0))"#;

fn server(name: &str) -> Vec<u8> {
    app(name, SERVER, "public=*\\n")
}

fn version(media: &FaultMedia) -> u64 {
    let bytes = media.metadata().expect("there are metadata");
    let value: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    value["version"].as_u64().expect("a number")
}

fn create(drive: &mut Drive, request: &str) -> Result<u32, String> {
    let (outcome, nsid) = drive.call(control::CONTROL_APP, control::CREATE_NAMESPACE, request.as_bytes());
    if outcome == (RpcOutcome::Answered { status: 0 }) { Ok(nsid) } else { Err(drive.error_text()) }
}

fn counters(drive: &Drive, name: &str) -> [i64; 2] {
    let apps = drive.device.statistics().apps;
    let app = apps.iter().find(|app| app.name == name).expect("the app");
    [app.user[0], app.user[1]]
}

#[test]
fn a_namespace_is_its_apps_until_it_is_deleted_also_after_a_restart() {
    let media = FaultMedia::new(FaultOptions::new(usize::from(SPUS), 1 << 26));
    let mut drive = Drive::open(&media).expect("a device");
    for name in ["base-io", "other-io", "pairs"] {
        drive.install(&server(name)).expect("an app");
    }
    let plain = create(&mut drive, r#"{"csi":"nvm","size_bytes":1048576}"#).expect("a namespace");
    assert_eq!((version(&media), counters(&drive, "base-io")), (2, [i64::from(plain), 0]));
    let bound = create(&mut drive, r#"{"csi":"nvm","size_bytes":5000000,"stripe_bytes":65536,"app":"other-io"}"#);
    let bound = bound.expect("a namespace");
    let pairs = create(&mut drive, r#"{"csi":"kv","size_bytes":1048576,"app":"pairs"}"#).expect("a namespace");
    assert_eq!((version(&media), counters(&drive, "base-io")), (3, [i64::from(plain), 0]));
    assert_eq!(counters(&drive, "other-io"), [i64::from(bound), 0]);
    assert_eq!(counters(&drive, "pairs"), [i64::from(pairs), 0]);
    let is = |of: &Namespace, nsid: u32, csi: CommandSet, app: &str, stripe_bytes: u32| {
        assert_eq!((of.nsid, of.csi, of.app.as_str(), of.stripe_bytes), (nsid, csi, app, stripe_bytes));
    };
    for restarts in [false, true] {
        if restarts {
            drive.shut_down();
            drive = Drive::open(&media).expect("a device");
        }
        let namespaces = drive.device.namespaces().to_vec();
        is(&namespaces[0], plain, CommandSet::Nvm, "base-io", 8192);
        is(&namespaces[1], bound, CommandSet::Nvm, "other-io", 65_536);
        is(&namespaces[2], pairs, CommandSet::Kv, "pairs", 8192);
        // 5,000,000 bytes are 77 stripes of 64 KiB, 39 of them in one of two banks.
        assert_eq!(namespaces[1].bank_bytes, 39 * 65_536);
        let regions = drive.device.statistics().regions;
        let owner = |nsid: u32| regions.iter().find(|region| region.id == nsid).map(|region| region.app.as_str());
        assert_eq!((owner(plain), owner(bound), owner(pairs)), (Some("base-io"), Some("other-io"), Some("pairs")));
        for name in ["base-io", "other-io", "pairs"] {
            assert!(!drive.control(control::REMOVE, name.as_bytes()), "{name} serves a namespace");
        }
    }
    for nsid in [bound, pairs] {
        assert!(drive.control(control::DELETE_NAMESPACE, &nsid.to_le_bytes()));
    }
    assert_eq!((counters(&drive, "other-io")[1], counters(&drive, "pairs")[1]), (bound.into(), pairs.into()));
    assert_eq!((counters(&drive, "base-io")[1], version(&media)), (0, 2), "older programs read it again");
    assert!(drive.control(control::REMOVE, b"other-io"));
}

#[test]
fn metadata_with_stripes_that_cannot_be_are_refused_with_the_namespace() {
    let media = FaultMedia::new(FaultOptions::new(usize::from(SPUS), 1 << 26));
    let mut drive = Drive::open(&media).expect("a device");
    drive.install(&server("base-io")).expect("an app");
    create(&mut drive, r#"{"csi":"nvm","size_bytes":1048576,"stripe_bytes":65536}"#).expect("a namespace");
    drive.shut_down();
    for stripe in ["65535", "2097152", "1"] {
        let text = String::from_utf8(media.metadata().expect("there are metadata")).expect("text");
        let damaged = text.replace("\"stripe_bytes\":65536", &format!("\"stripe_bytes\":{stripe}"));
        assert_ne!(text, damaged);
        let why = willow_device::metadata::Metadata::decode(damaged.as_bytes()).expect_err(stripe);
        assert!(why.contains(&format!("namespace 1 has stripes of {stripe} bytes")), "{why}");
    }
}

#[test]
fn what_cannot_serve_or_be_a_stripe_is_refused() {
    let media = FaultMedia::new(FaultOptions::new(usize::from(SPUS), 1 << 26));
    let mut drive = Drive::open(&media).expect("a device");
    drive.install(&server("base-io")).expect("an app");
    let user = drive.user(1000);
    drive.install_on(user, &server("mine")).expect("an app");
    for (request, why) in [
        (r#"{"csi":"nvm","size_bytes":1048576,"app":"nobody"}"#, "app nobody"),
        (r#"{"csi":"nvm","size_bytes":1048576,"app":"u1000-mine"}"#, "user 1000's"),
        (r#"{"csi":"kv","size_bytes":1048576}"#, "app key-value"),
        (r#"{"csi":"kv","size_bytes":1048576,"app":"base-io","stripe_bytes":8192}"#, "no stripes"),
        (r#"{"csi":"nvm","size_bytes":1048576,"stripe_bytes":0}"#, "a stripe of 0 bytes"),
        (r#"{"csi":"nvm","size_bytes":1048576,"stripe_bytes":5000}"#, "a stripe of 5000 bytes"),
        (r#"{"csi":"nvm","size_bytes":1048576,"stripe_bytes":2048}"#, "from 4096 to 1048576"),
        (r#"{"csi":"nvm","size_bytes":1048576,"stripe_bytes":2097152}"#, "from 4096 to 1048576"),
        (r#"{"csi":"nvm","size_bytes":1048576,"stripe_bytes":4294967296}"#, "cannot be read"),
    ] {
        let refused = create(&mut drive, request).expect_err(request);
        assert!(refused.contains(why), "{request}: {refused}");
    }
    assert!(drive.device.namespaces().is_empty() && drive.device.statistics().regions.is_empty());
}
