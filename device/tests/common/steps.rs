//! The changes of the device that there are, each as its user makes it: what the tests of transactions and of their visibility go through.

use super::drive::{Drive, State};
use super::keeper::keeper;
use super::{module, well_behaved};
use willow_device::media::fault::{FaultMedia, FaultOptions};
use willow_device::{RpcOutcome, control};

/// A change of the device, as its user makes it.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Install,
    Upgrade,
    MakeRegion,
    FreeRegion,
    Remove,
    CreateNamespace,
    DeleteNamespace,
    Intercall,
    Weight,
    Attach,
    Grow,
    Shrink,
    Format,
    Mark,
}

pub const STEPS: [Step; 14] = [
    Step::Install,
    Step::Upgrade,
    Step::MakeRegion,
    Step::FreeRegion,
    Step::Remove,
    Step::CreateNamespace,
    Step::DeleteNamespace,
    Step::Intercall,
    Step::Weight,
    Step::Attach,
    Step::Grow,
    Step::Shrink,
    Step::Format,
    Step::Mark,
];

/// Sizes that a namespace of 1 MiB gets.
const GROWN: [u8; 8] = (2u64 << 20).to_le_bytes();
const SHRUNK: [u8; 8] = (1u64 << 20).to_le_bytes();

/// An app whose handler 2 opens region 1, and handler 3 frees it; both answer with what came of it. Handler 4 tells how large that region is.
const REGIONS: &str = r#"
    (func $start (param i32 i32) (result i32) (local i64)
        (if (i32.lt_u (local.get 1) (i32.const 2))
            (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 4))
            (then (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (call $region_bytes (i32.const 1)))) (return (i32.const 0))))
        (if (i32.eq (local.get 1) (i32.const 2))
            (then (local.set 2 (call $region (i32.const 1) (i64.const 65536) (local.get 0))))
            (else (local.set 2 (i64.extend_i32_s (call $region_free (i32.const 1) (local.get 0))))
                (if (i64.eq (local.get 2) (i64.const 1)) (then (local.set 2 (i64.const -1))))))
        (if (i64.ne (local.get 2) (i64.const -1)) (then (call $complete (local.get 0) (local.get 2))))
        (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (local.get 0) (i64.lt_s (local.get 1) (i64.const 0)) (i32.wrap_i64 (local.get 1))))"#;

impl Step {
    /// What has to be there before.
    pub fn prepare(self, drive: &mut Drive) {
        let base_io = well_behaved("base-io", "");
        match self {
            Step::Install | Step::Weight | Step::Intercall => {}
            Step::Upgrade | Step::Remove => {
                let number = drive.install(&keeper(1, "", "")).unwrap();
                assert_eq!(drive.call(number, 2, b"precious").0, RpcOutcome::Answered { status: 0 });
            }
            Step::MakeRegion => drop(drive.install(&module("regions", REGIONS)).unwrap()),
            Step::FreeRegion => {
                Step::MakeRegion.prepare(drive);
                assert!(Step::MakeRegion.run(drive));
            }
            Step::CreateNamespace => drop(drive.install(&base_io).unwrap()),
            Step::DeleteNamespace | Step::Attach | Step::Grow | Step::Format | Step::Mark => {
                drive.install(&base_io).unwrap();
                assert!(Step::CreateNamespace.run(drive));
            }
            Step::Shrink => {
                Step::Grow.prepare(drive);
                assert!(Step::Grow.run(drive));
            }
        }
    }

    /// Makes the change; true where it is said to be made.
    pub fn run(self, drive: &mut Drive) -> bool {
        let regions = drive.apps().iter().find(|app| app.name == "regions").map_or(0, |app| app.number);
        match self {
            Step::Install => drive.install(&keeper(1, "", "")).is_ok(),
            Step::Upgrade => drive.install(&keeper(2, "", "")).is_ok(),
            Step::MakeRegion => drive.call(regions, 2, &[]).0 == RpcOutcome::Answered { status: 0 },
            Step::FreeRegion => drive.call(regions, 3, &[]).0 == RpcOutcome::Answered { status: 0 },
            Step::Remove => drive.control(control::REMOVE, b"keeper"),
            Step::CreateNamespace => {
                drive.control(control::CREATE_NAMESPACE, br#"{"csi":"nvm","size_bytes":1048576,"hosts":["nqn.first"]}"#)
            }
            Step::DeleteNamespace => drive.control(control::DELETE_NAMESPACE, &1u32.to_le_bytes()),
            Step::Format => {
                drive.control(control::FORMAT_NAMESPACE, &[1u32.to_le_bytes(), 512u32.to_le_bytes()].concat())
            }
            Step::Mark => {
                let nguid = drive.device.namespaces()[0].nguid;
                // Across the stripes of both banks.
                let range = [4096u64.to_le_bytes(), (24u64 << 10).to_le_bytes()].concat();
                drive.control(control::MARK_UNCORRECTABLE, &[&1u32.to_le_bytes()[..], &nguid, &range].concat())
            }
            Step::Grow => drive.control(control::RESIZE_NAMESPACE, &[&1u32.to_le_bytes()[..], &GROWN].concat()),
            Step::Shrink => drive.control(control::RESIZE_NAMESPACE, &[&1u32.to_le_bytes()[..], &SHRUNK].concat()),
            Step::Intercall => {
                drive.control(control::CHANGE_INTERCALLS, br#"{"add":[{"caller":"a","callee":"b","handler":1}]}"#)
            }
            Step::Weight => drive.control(control::SET_WEIGHT, &[1000u32.to_le_bytes(), 5u32.to_le_bytes()].concat()),
            Step::Attach => drive.control(control::ATTACH, br#"{"nsid":1,"hosts":["nqn.a","nqn.b"]}"#),
        }
    }

    /// Media with what has to be there, durably, and the states before and after.
    pub fn media(self, options: &FaultOptions) -> (FaultMedia, State, State) {
        let prepared = || {
            let media = FaultMedia::new(options.clone());
            let mut drive = Drive::open(&media).expect("fresh media open");
            self.prepare(&mut drive);
            drive.shut_down();
            media
        };
        let dry = prepared();
        let mut drive = Drive::open(&dry).unwrap();
        let before = drive.full_state();
        assert!(self.run(&mut drive), "{self:?} is made where nothing fails");
        let after = drive.full_state();
        assert_ne!(before, after, "{self:?} changes something");
        (prepared(), before, after)
    }
}
