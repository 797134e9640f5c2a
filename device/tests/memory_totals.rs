//! An SPU's memories have room for so much of all apps together.

mod common;
use common::*;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{Device, DeviceConfig, RpcOutcome, control};

const MIB: u64 = 1 << 20;

/// An app whose memory may grow to so many pages; 0: to whatever an app may have. `code`: instructions of no use in it.
fn sized(name: &str, pages: u32, code: usize) -> Vec<u8> {
    let most = if pages == 0 { String::new() } else { pages.to_string() };
    let body = format!(
        "(func $idle {}) (func $complete (param i32 i64)) (func $start (param i32 i32) (result i32)
            (call $respond (local.get 0) (i32.const 0) (i32.const 1)) (i32.const 0))",
        "(drop (i64.mul (i64.const 12345678) (i64.const 98765432)))".repeat(code)
    );
    module_with_memory(name, &format!("(memory (export \"memory\") 1 {most})"), &body)
}

fn totals(spu_data_bytes_max: u64, spu_code_bytes_max: u64) -> DeviceConfig {
    DeviceConfig { spu_data_bytes_max, spu_code_bytes_max, app_code_bytes_max: 65536, ..config(2) }
}

#[test]
fn an_app_that_does_not_fit_beside_others_is_refused_with_the_numbers() {
    let mut rig = Rig::with(totals(3 * MIB, 256 << 10), None);
    let numbers: Vec<u16> = ["a", "b"].iter().map(|name| rig.install(&sized(name, 0, 0)).unwrap()).collect();
    // What says that it needs less takes less.
    assert!(rig.install(&sized("small", 4, 0)).is_ok());
    let refused = rig.install(&sized("c", 0, 0)).unwrap_err();
    let taken = 2 * MIB + 4 * 65536;
    let wanted = format!("needs 1048576 bytes of data memory on each SPU, and other apps have {taken} of {}", 3 * MIB);
    assert!(refused.contains(&wanted) && refused.contains("spu_data_bytes_max"), "{refused}");
    assert!(rig.device.app_number("c").is_none());
    // A version is replaced in its own place; what goes makes room.
    assert_eq!(rig.install(&sized("b", 0, 0)), Ok(numbers[1]));
    assert_eq!(rig.call(control::CONTROL_APP, control::REMOVE, 0, &[], b"small", 0).outcome, OK);
    assert!(rig.install(&sized("c", 0, 0)).is_ok());
    assert_eq!(rig.call(numbers[0], 1, 0, &[], &[], 0).outcome, OK, "the others run");
    // Code, in the same manner: four of some 60 kB.
    let mut rig = Rig::with(totals(64 * MIB, 200 << 10), None);
    for name in ["a", "b", "c"] {
        assert!(rig.install(&sized(name, 1, 4500)).is_ok());
    }
    let refused = rig.install(&sized("d", 1, 4500)).unwrap_err();
    assert!(refused.contains("of instruction memory") && refused.contains("of 204800"), "{refused}");
}

const OK: RpcOutcome = RpcOutcome::Answered { status: 0 };

#[test]
fn an_app_of_the_media_that_does_not_fit_any_more_is_listed_as_failed() {
    let media = FaultMedia::new(FaultOptions::new(2, 1 << 26));
    let open = |config: DeviceConfig| {
        let mut device = Device::open(config, Box::new(media.store()), None, vec![]).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        Rig::around(device, hre)
    };
    let mut rig = open(totals(4 * MIB, MIB));
    let numbers: Vec<u16> = ["a", "b"].iter().map(|name| rig.install(&sized(name, 0, 0)).unwrap()).collect();
    drop(rig);
    let mut rig = open(totals(MIB, MIB));
    assert_eq!(rig.call(numbers[0], 1, 0, &[], &[], 0).outcome, OK);
    assert_eq!(rig.call(numbers[1], 1, 0, &[], &[], 0).outcome, RpcOutcome::AppEnded);
    let statistics = rig.device.statistics();
    let failed = statistics.apps.iter().find(|app| app.name == "b").expect("it is listed");
    assert!(failed.failed && failed.ended.as_ref().is_some_and(|why| why.contains("spu_data_bytes_max")), "{failed:?}");
    drop(rig);
    // With room it is there again.
    assert_eq!(open(totals(4 * MIB, MIB)).call(numbers[1], 1, 0, &[], &[], 0).outcome, OK);
}

#[test]
fn totals_below_what_one_app_may_have_are_refused() {
    let why = totals(65536, MIB).validate().unwrap_err();
    assert!(why.contains("spu_data_bytes_max is 65536"), "{why}");
    let why = totals(64 * MIB, 1000).validate().unwrap_err();
    assert!(why.contains("spu_code_bytes_max is 1000"), "{why}");
}
