//! Operations of which a process has the right to a part: they are refused, or asked for, as a whole. The ranges go over several mapping units of flash,
//! at which writes are cut there.

mod common;
use common::users::*;
use common::*;
use willow_device::{RpcOutcome, control};

const ANSWERED: RpcOutcome = RpcOutcome::Answered { status: 0 };

#[test]
fn a_write_that_is_permitted_in_part_writes_nothing() {
    const START: u64 = 1000;
    const BYTES: usize = 72 << 10;
    let mut users = Users::with_namespace(config(1), 1 << 20);
    let alice = users.user(1000);
    let (kernel, mover) = (users.rig.hre, users.mover);
    users.control(control::REGISTER_AGENT, &[]);
    assert_eq!(users.write(kernel, mover, START, &[9; BYTES]), (ANSWERED, 0));
    for granted in [40_000, BYTES as u64 - 1] {
        users.grant(&alice, WRITE, START, granted);
        for port in [PARKED_NV, NV] {
            let arguments = users.arguments(START, BYTES as u32, port);
            users.rig.begin(alice.hre, (mover, 2, 0), &arguments, &[port as u8; BYTES], 0);
            users.run();
            let upcall = users.rig.device.upcall(kernel).expect("the agent is told");
            assert!(users.rig.device.answer_upcall(kernel, upcall.id, 1, 0));
            users.run();
            assert_eq!(users.completion().unwrap().result, PERMISSION);
            assert!(users.read(kernel, mover, START, BYTES as u32).2 == [9; BYTES], "{granted}");
        }
    }
    users.grant(&alice, WRITE, START, BYTES as u64);
    assert_eq!(users.write(alice.hre, mover, START, &[3; BYTES]).1, 0);
    assert!(users.read(kernel, mover, START, BYTES as u32).2 == [3; BYTES]);
}
