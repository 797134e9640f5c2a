//! Damaged modules, manifests, metadata and records against the device: refused, or harmless. A bounded run, the same each
//! time, of the oracles that `fuzz/` runs without bounds.

mod common;
use common::*;
use proptest::prelude::*;
use willow_device::media::file::record::{Kind, Record};
use willow_device::metadata::{InstalledApp, METADATA_VERSION, Metadata};
use willow_device::namespace::{CommandSet, Namespace};
use willow_device::region::Region;
use willow_device::testing::{ModuleOracle, Verdict, check_manifest, check_metadata, check_record, mutate};

/// Mutated modules, all seeds together.
const MODULES: u64 = 2000;

/// Valid modules that use what SPU-OS offers.
fn modules() -> Vec<Vec<u8>> {
    [
        "",
        "(drop (call $dma (local.get 0) (i32.const 2) (i64.const 0) (i32.const 0) (i64.const 4096) (i32.const 50) (i32.const 0)))",
        "(drop (call $region (i32.const 1) (i64.const 65536) (i32.const 1)))
         (drop (call $dma (local.get 0) (i32.const 0) (i64.const 0) (i32.const 1) (call $region (i32.const 1) (i64.const 65536) (i32.const 1)) (i32.const 512) (i32.const 0)))",
        "(drop (call $rpc_finish (call $rpc_start (local.get 0) (i32.const 1) (i32.const 1) (i32.const 3) (i32.const 8) (i32.const 0) (i32.const 8)) (i32.const 0)))",
        "(drop (i32.load (i32.const 65532))) (drop (i32.load (i32.const 65528))) (drop (i32.load (i32.const 65524)))",
        "(local.set 2 (i32.const 1000)) (loop $l (local.set 2 (i32.sub (local.get 2) (i32.const 1))) (br_if $l (local.get 2)))",
        "(drop (memory.grow (i32.const 1))) (memory.fill (i32.const 0) (i32.const 1) (i32.const 5000)) (call $print (i32.const 0) (i32.const 40))",
        "(drop (call $flush (i32.const 3))) (call $count (i32.const 1) (i64.const 1)) (drop (call $time_ns))
         (drop (call $checksum (local.get 0) (i32.const 0) (i64.const 0) (i32.const 100) (i32.const 0) (i32.const 0)))",
    ]
    .iter()
    .map(|rest| well_behaved("strange", rest))
    .collect()
}

#[test]
fn mutated_modules_are_refused_or_harmless() {
    let modules = modules();
    let mut oracle = ModuleOracle::new();
    let (mut refused, mut installed, mut answered, mut ended) = (0, 0, 0, 0);
    for module in &modules {
        assert!(matches!(oracle.check(module), Verdict::Installed { answered: 1.., .. }));
    }
    for seed in 0..MODULES {
        let bytes = mutate(&modules[seed as usize % modules.len()], seed);
        // The seed is all that is needed to see a failure again.
        let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| oracle.check(&bytes)));
        match verdict.unwrap_or_else(|_| panic!("the module of seed {seed}")) {
            Verdict::Refused(_) => refused += 1,
            Verdict::Installed { answered: with_answer, ended: with_app, .. } => {
                installed += 1;
                answered += u32::from(with_answer > 0);
                ended += u32::from(with_app > 0);
            }
        }
    }
    // The rare ways were taken: both verdicts, handlers that answer and apps that end.
    assert!(refused > 200 && installed > 100, "{refused} refused, {installed} installed");
    assert!(answered > 50 && ended > 0, "{answered} answered, {ended} ended");
}

/// Two apps' handlers that call each other, or themselves, for ever: the device goes on, and they can be removed.
#[test]
fn endless_messages_do_not_stop_the_device() {
    let forever = well_behaved(
        "forever",
        "(drop (call $rpc_finish (call $rpc_start (i32.const 0) (i32.const 1) (i32.const 1) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 0)))",
    );
    assert!(matches!(ModuleOracle::new().check(&forever), Verdict::Installed { .. }));
}

fn metadata() -> Metadata {
    let region =
        |id: u32, base| Region { app: "base-io".into(), id, base, bank_bytes: 65536, shared: true, deleting: id == 2 };
    Metadata {
        version: METADATA_VERSION,
        uuid: [7; 16],
        spus: 2,
        stripe_bytes: 8192,
        identities: 4,
        regions: vec![region(1, 0), region(2, 65536)],
        namespaces: vec![Namespace {
            nsid: 1,
            csi: CommandSet::Nvm,
            size_bytes: 131072,
            block_bytes: 4096,
            base: 0,
            bank_bytes: 65536,
            nguid: [1; 16],
            app: "base-io".into(),
            stripe_bytes: 8192,
        }],
        apps: vec![InstalledApp { number: 1, name: "base-io".into(), built_in: true, module: None, owner: None }],
        intercalls: vec![],
        weights: vec![],
        attachments: vec![],
        reservations: vec![],
        uncorrectable: Default::default(),
    }
}

/// Numbers and words of the metadata replaced by others.
fn twisted(bytes: &[u8], changes: &[(prop::sample::Index, &str)]) -> Vec<u8> {
    let mut text = String::from_utf8(bytes.to_vec()).unwrap();
    for (at, with) in changes {
        let mut numbers = Vec::new();
        let mut start = None;
        for (index, byte) in text.bytes().enumerate() {
            match (byte.is_ascii_digit(), start) {
                (true, None) => start = Some(index),
                (false, Some(from)) => {
                    numbers.push(from..index);
                    start = None;
                }
                _ => {}
            }
        }
        if !numbers.is_empty() {
            text.replace_range(at.get(&numbers).clone(), with);
        }
    }
    text.into_bytes()
}

proptest! {
    #[test]
    fn metadata_is_refused_or_opens(changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![
        "0", "1", "2", "-1", "511", "4096", "65535", "65536", "131072", "4294967295", "9223372036854710272", "18446744073709486080",
        "18446744073709551615", "1e3", "null", "true"
    ])), 0..4)) {
        check_metadata(&twisted(&metadata().encode(), &changes));
    }

    #[test]
    fn bytes_are_no_manifest_metadata_or_record(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_manifest(&bytes);
        check_metadata(&bytes);
        check_record(&bytes);
    }

    #[test]
    fn damaged_manifests_are_refused_or_bounded(seed in any::<u64>()) {
        check_manifest(&mutate(b"abi=2\nname=an-app\nversion=1.2\nhandler=1:one\nhandler=20:twenty\n", seed));
    }

    #[test]
    fn damaged_records_are_refused(seed in any::<u64>(), payload in prop::collection::vec(any::<u8>(), 0..100)) {
        for kind in [Kind::Superblock, Kind::Metadata, Kind::Bank, Kind::Blob] {
            let good = Record { uuid: [7; 16], number: 3, payload: payload.clone() }.encode(kind);
            check_record(&good);
            check_record(&mutate(&good, seed));
        }
    }
}

/// An app of the metadata whose number this device has no place for is named, and nothing panics.
#[test]
fn apps_past_the_limit_are_named() {
    let mut odd = metadata();
    odd.apps = vec![InstalledApp { number: 9999, name: "lost".into(), built_in: false, module: None, owner: None }];
    check_metadata(&odd.encode());
}
