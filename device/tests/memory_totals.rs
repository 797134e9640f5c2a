//! An SPU's memories, and the device's numbers, have room for so much of all apps together: each user has a part of it, and the kernel another.

mod common;
use common::users::Users;
use common::*;
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{BuiltInApp, Device, DeviceConfig, HreId, RpcOutcome, control};

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

/// Installs apps of an endpoint until one is refused; how many there are, and why there are no more.
fn fill(users: &mut Users, hre: HreId, (name, code): (&str, usize)) -> (u32, String) {
    for made in 0..100 {
        if users.install_for(hre, &sized(&format!("{name}-{made}"), 0, code)).is_err() {
            let done = users.rig.call_on(hre, (control::CONTROL_APP, control::ERROR_TEXT, 0), &[], &[], 4096);
            let why = String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned();
            return (made, why);
        }
    }
    panic!("nothing is refused")
}

#[test]
fn one_user_leaves_as_much_room_for_apps_as_he_has_and_all_leave_some_to_the_kernel() {
    let full = DeviceConfig { apps_per_user_max: 64, app_code_bytes_max: 65536, ..config(1) };
    // Of 32 numbers 8 are the kernel's; so it is with memories for 32 such apps, and with instruction memory for 32 of 54 kB.
    for (config, limit, code) in [
        (DeviceConfig { apps_max: 33, ..full.clone() }, "apps_max", 0),
        (DeviceConfig { spu_data_bytes_max: 32 * full.app_data_bytes_max, ..full.clone() }, "spu_data_bytes_max", 0),
        (DeviceConfig { spu_code_bytes_max: 32 * 54_100, ..full.clone() }, "spu_code_bytes_max", 4500),
    ] {
        let mut users = Users::new(config.clone());
        let hres = [6666, 1000, 1001, 1002, 1003, 1004].map(|uid| users.user(uid).hre);
        let (taken, why) = fill(&mut users, hres[0], ("hoard", code));
        assert!((11..=12).contains(&taken) && why.contains(limit), "{limit}: {taken}, {why}");
        // What he has may be replaced by as much.
        assert!(users.install_for(hres[0], &sized("hoard-0", 0, code)).is_ok(), "{limit}");
        // Others find as much, each half of what is left, until there is none.
        let others: Vec<u32> = hres[1..].iter().map(|hre| fill(&mut users, *hre, ("own", code)).0).collect();
        assert!((5..=6).contains(&others[0]) && others[1] >= 2 && others[2] >= 1, "{limit}: {others:?}");
        // The kernel has its part, one of which is the test's own.
        let kernels = (0..7).take_while(|at| users.rig.install(&sized(&format!("kernels-{at}"), 0, code)).is_ok());
        assert_eq!(kernels.count(), 7, "{limit}");
        // What is gone makes room.
        let removed = users.rig.call(control::CONTROL_APP, control::REMOVE, 0, b"u6666-hoard-0", &[], 0);
        assert_eq!(removed.outcome, OK);
        assert!(users.install_for(hres[5], &sized("last", 0, code)).is_ok(), "{limit}");
    }
}

#[test]
fn a_device_that_users_have_filled_starts_with_one_more_built_in_app() {
    let media = FaultMedia::new(FaultOptions::new(1, 1 << 26));
    let config = DeviceConfig { apps_max: 9, ..config(1) };
    let open = |built_in| Device::open(config.clone(), Box::new(media.store()), None, built_in);
    let mut device = open(vec![]).unwrap_or_else(|why| panic!("{}", why.0));
    for uid in 1000..1020 {
        let process = device.open_process(uid, 0).expect("a process");
        let hre = device.open_hre(Some(process)).expect("an endpoint");
        let mut rig = Rig::around(device, hre);
        for number in 0..8 {
            let module = sized(&format!("app-{number}"), 1, 0);
            rig.call(control::CONTROL_APP, control::INSTALL, 0, &[], &module, 0);
        }
        device = rig.device;
    }
    assert_eq!(device.statistics().apps.len(), 6);
    drop(device);
    let module = Box::leak(sized("new", 1, 0).into_boxed_slice());
    let device = open(vec![BuiltInApp::Wasm(module)]).unwrap_or_else(|why| panic!("{}", why.0));
    assert!(device.app_number("new").is_some());
    assert_eq!(device.statistics().apps.iter().filter(|app| app.ended.is_none()).count(), 7);
}
