//! When changes of the device are seen: when they are durable, and not before. Here the save of the metadata is held up for as long as the test likes.

mod common;
use common::drive::*;
use common::slow::{SlowStore, Valve};
use common::steps::{STEPS, Step};
use willow_device::RpcOutcome;
use willow_device::media::fault::{Choices, FaultOptions};

/// Turns of the device in which a change that does not wait for its save would be made, and a request answered.
const TURNS: u32 = 2000;

/// The state without what apps answer and keep.
fn outline(of: &State) -> State {
    let mut outline = of.clone();
    outline.apps.iter_mut().for_each(|(.., answers)| answers.clear());
    outline.kept = None;
    outline
}

/// What a request comes to while the save is held up; `None`: it waits.
fn meanwhile(drive: &mut Drive, app: u16, handler: u8) -> Option<(RpcOutcome, u32)> {
    drive.turns_left = Some(TURNS);
    let done = drive.send(drive.hre, (app, handler, 0), &[], 0);
    drive.turns_left = None;
    done.map(|done| (done.outcome, done.result))
}

#[test]
fn a_change_is_seen_and_answered_when_it_is_durable_and_not_before() {
    for step in STEPS {
        let (media, before, after) = step.media(&FaultOptions::new(usize::from(SPUS), 1 << 26));
        let valve = Valve::default();
        let store = SlowStore::new(Box::new(media.store()), valve.clone());
        let mut drive = Drive::over(Box::new(store), &media).expect("the device opens");
        drive.settle();
        valve.saves.set(true);
        drive.turns_left = Some(TURNS);
        assert!(!step.run(&mut drive), "{step:?} is answered before it is durable");
        drive.turns_left = None;
        let asked = drive.last_tag();
        assert_eq!(valve.saves_waiting(), 1, "{step:?} is being saved");
        // Nothing that can be asked tells of it.
        assert_eq!(drive.outline(), outline(&before), "{step:?} is seen before it is durable");
        for (number, name, ..) in &after.apps {
            let old = before.apps.iter().find(|(of, ..)| of == number);
            match (meanwhile(&mut drive, *number, 1), old) {
                // Who asks while a version is changed waits.
                (None, Some(_)) => assert!(matches!(step, Step::Upgrade), "{step:?}: {name} does not answer"),
                (Some((RpcOutcome::Answered { status: 0 }, answer)), Some((.., answers))) => {
                    assert_eq!(answer, answers[0], "{step:?}: {name}");
                }
                (found, None) => assert_eq!(found, Some((RpcOutcome::NoApp, 0)), "{step:?}: {name}"),
                (found, Some(_)) => panic!("{step:?}: {name} came to {found:?}"),
            }
        }
        let regions = before.apps.iter().find(|(_, name, ..)| name == "regions");
        if let Some((number, ..)) = regions {
            let there = if matches!(step, Step::MakeRegion) { -9 } else { 65536 };
            let found = meanwhile(&mut drive, *number, 4).map(|(_, result)| result as i32);
            assert_eq!(found, Some(there), "{step:?}: region 1");
        }
        // Nor is it there after a cut now.
        let left = media.power_cut(&mut Choices::exhaustive());
        assert_eq!(outline(&Drive::open(&left).expect("it opens").outline()), outline(&before), "{step:?}");
        valve.saves.set(false);
        let done = drive.end_of(asked).expect("it ends");
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 }, "{step:?}");
        assert_eq!(drive.full_state(), after, "{step:?}");
        let left = media.power_cut(&mut Choices::exhaustive());
        assert_eq!(Drive::open(&left).expect("it opens").outline(), outline(&after), "{step:?}");
    }
}
