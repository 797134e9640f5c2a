//! What apps and hosts can do with the core: RPCs between SPUs, upcalls, regions, namespaces, replacing an app at run time.

mod common;
use common::*;
use willow_device::{Arguments, CommandSet, Rpc, RpcOutcome, control};

fn answered(outcome: RpcOutcome) -> bool {
    outcome == RpcOutcome::Answered { status: 0 }
}

#[test]
fn an_rpc_to_another_spu_brings_status_result_and_reply() {
    let mut rig = Rig::new(3);
    // Handler 2 asks SPU 2's handler 3, which doubles the 4 bytes of its body, then answers its host with what came back.
    let app = rig
        .install(&module(
            "pair",
            r#"
            (func $start (param i32 i32) (result i32) (local i32)
                (if (i32.eq (local.get 1) (i32.const 2)) (then
                    (i32.store (i32.const 0) (local.get 0))
                    (drop (call $receive_bytes (local.get 0) (i32.const 4) (i32.const 4)))
                    (local.set 2 (call $rpc_start (local.get 0) (i32.const 2) (i32.const -1) (i32.const 3) (i32.const 4) (i32.const 100) (i32.const 4)))
                    (drop (call $rpc_append (local.get 2) (i32.const 0) (i64.const 4) (i32.const 4)))
                    (if (i32.ne (call $rpc_finish (local.get 2) (i32.const 9)) (i32.const 1)) (then (unreachable)))
                    (return (i32.const 0))))
                (if (i32.eq (local.get 1) (i32.const 3)) (then
                    (drop (call $receive_bytes (local.get 0) (i32.const 200) (i32.const 4)))
                    (i32.store (i32.const 200) (i32.shl (i32.load (i32.const 200)) (i32.const 1)))
                    (if (call $dma (local.get 0) (i32.const 0) (i64.const 200) (i32.const 2) (i64.const 0) (i32.const 4) (i32.const 1)) (then (unreachable)))
                    (call $respond (local.get 0) (i32.const 3) (call $spu_id))
                    (return (i32.const 0))))
                (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (i32.const 0))
            (func $complete (param i32 i64)
                (if (i64.ne (local.get 1) (i64.const 0x300000002)) (then (unreachable)))
                (call $respond (i32.load (i32.const 0)) (i32.const 0) (i32.load (i32.const 100))))"#,
        ))
        .unwrap();
    let done = rig.call(app, 2, 0, &21u32.to_le_bytes(), &[], 0);
    assert!(answered(done.outcome), "{:?}", done.outcome);
    assert_eq!(done.result, 42);
    assert_eq!(rig.device.statistics().apps.iter().find(|app| app.name == "pair").unwrap().counters.rpcs, 1);
}

const UPCALLER: &str = r#"
    (func $start (param i32 i32) (result i32) (local i32)
        (if (i32.ne (local.get 1) (i32.const 2))
            (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
        (i32.store (i32.const 0) (local.get 0))
        (local.set 2 (call $rpc_start (local.get 0) (i32.const -1) (i32.const -1) (i32.const 77) (i32.const 4) (i32.const 0) (i32.const 0)))
        (drop (call $rpc_append (local.get 2) (i32.const 0) (i64.const 0) (i32.const 4)))
        (drop (call $rpc_finish (local.get 2) (i32.const 5)))
        (i32.const 0))
    (func $complete (param i32 i64)
        (call $respond (i32.load (i32.const 0)) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

#[test]
fn an_upcall_goes_to_the_originating_endpoint_and_its_answer_back() {
    let mut rig = Rig::new(1);
    let app = rig.install(&module("caller", UPCALLER)).unwrap();
    let other = rig.device.open_hre(None).unwrap();
    let rpc = Rpc { app, handler: 2, spu: 0, arguments: Arguments::EMPTY };
    let request = rig.request(rpc, &[], 0);
    rig.device.submit(rig.hre, request).unwrap();
    rig.settle();
    assert!(rig.device.upcall(other).is_none());
    let upcall = rig.device.upcall(rig.hre).unwrap();
    assert_eq!((upcall.app, upcall.handler, upcall.spu, upcall.body.len()), (app, 77, 0, 4));
    assert!(!rig.device.answer_upcall(other, upcall.id, 0, 1), "only the endpoint it was for may answer");
    assert!(rig.device.answer_upcall(rig.hre, upcall.id, 0, 1234));
    assert!(!rig.device.answer_upcall(rig.hre, upcall.id, 0, 1234), "once");
    rig.settle();
    assert_eq!(rig.device.completion().unwrap().result, 1234);
}

#[test]
fn an_endpoint_that_goes_away_ends_its_upcalls_and_drops_its_completions() {
    let mut rig = Rig::new(1);
    let app = rig.install(&module("caller", UPCALLER)).unwrap();
    let gone = rig.device.open_hre(None).unwrap();
    let rpc = Rpc { app, handler: 2, spu: 0, arguments: Arguments::EMPTY };
    let request = rig.request(rpc, &[], 0);
    rig.device.submit(gone, request).unwrap();
    rig.settle();
    rig.device.close_hre(gone);
    rig.settle();
    assert!(rig.device.completion().is_none());
    assert_eq!(rig.call(app, 1, 0, &[], &[], 0).result, 42);
}

/// Handler 2: opens region 1 (256 KiB a bank), writes the first 8 payload bytes at its start, answers 1. Handler 3: reads them back.
const KEEPER: &str = r#"
    (func $start (param i32 i32) (result i32) (local i64)
        (if (i32.lt_u (local.get 1) (i32.const 2))
            (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
        (i32.store (i32.const 0) (local.get 0))
        (i32.store (i32.const 4) (local.get 1))
        (local.set 2 (call $region (i32.const 1) (i64.const 262144) (i32.const 3)))
        (if (i64.ne (local.get 2) (i64.const -1)) (then (call $go (local.get 2))))
        (i32.const 0))
    (func $go (param i64)
        (if (i64.lt_s (local.get 0) (i64.const 0))
            (then (call $respond (i32.load (i32.const 0)) (i32.const 9) (i32.wrap_i64 (local.get 0))) (return)))
        (if (i32.eq (i32.load (i32.const 4)) (i32.const 2))
            (then (drop (call $dma (i32.load (i32.const 0)) (i32.const 2) (i64.const 0) (i32.const 1) (local.get 0) (i32.const 8) (i32.const 0))))
            (else (drop (call $dma (i32.load (i32.const 0)) (i32.const 1) (local.get 0) (i32.const 2) (i64.const 0) (i32.const 8) (i32.const 0)))))
        (call $respond (i32.load (i32.const 0)) (i32.const 0) (i32.const 1)))
    (func $complete (param i32 i64) (call $go (local.get 1)))"#;

#[test]
fn regions_belong_to_their_app_survive_its_replacement_and_are_zero_when_new() {
    let mut rig = Rig::new(2);
    let app = rig.install(&module("keeper", KEEPER)).unwrap();
    let thief = rig
        .install(&well_behaved(
            "thief",
            "(call $respond (local.get 0) (i32.const 0) (call $dma (local.get 0) (i32.const 1) (i64.const 0) (i32.const 0) (i64.const 0) (i32.const 8) (i32.const 0))) (return (i32.const 0))",
        ))
        .unwrap();
    let written = rig.call(app, 2, 1, &[], b"precious", 0);
    assert!(answered(written.outcome), "{:?}", written.outcome);
    assert_eq!(rig.call(thief, 2, 1, &[], &[], 0).result as i32, -4, "another app's region is out of reach");
    assert_eq!(rig.install(&module("keeper", KEEPER)).unwrap(), app, "replaced in place");
    assert_eq!(&rig.call(app, 3, 1, &[], &[], 8).buffer, b"precious");
    assert_eq!(&rig.call(app, 3, 0, &[], &[], 8).buffer, &[0; 8], "each SPU has a bank of its own");
    assert_eq!(rig.device.statistics().regions.len(), 1);
    let removed = rig.call(control::CONTROL_APP, control::REMOVE, 0, b"keeper", &[], 0);
    assert!(answered(removed.outcome));
    assert_eq!(rig.device.statistics().regions.len(), 0);
    let again = rig.install(&module("keeper", KEEPER)).unwrap();
    assert_eq!(&rig.call(again, 3, 1, &[], &[], 8).buffer, &[0; 8], "nothing of the old region shows");
}

#[test]
fn requests_that_come_while_an_app_is_replaced_are_answered_by_the_new_one() {
    let mut rig = Rig::new(1);
    let old = rig
        .install(&well_behaved(
            "app",
            "(call $respond (local.get 0) (i32.const 0) (i32.const 1)) (return (i32.const 0))",
        ))
        .unwrap();
    let new = well_behaved("app", "(call $respond (local.get 0) (i32.const 0) (i32.const 2)) (return (i32.const 0))");
    let install = Rpc { app: 0, handler: control::INSTALL, spu: 0, arguments: Arguments::EMPTY };
    let request = rig.request(install, &new, 0);
    rig.device.submit(rig.hre, request).unwrap();
    rig.device.run(0);
    let job = rig.device.job().expect("compiling is work for outside");
    assert_eq!(rig.call(old, 2, 0, &[], &[], 0).result, 1, "the old one serves meanwhile");
    let done = job.run();
    rig.device.job_done(done);
    // They come in each turn, until the new version is whole; the installation is answered among them.
    let mut results = Vec::new();
    for _ in 0..10 {
        let rpc = Rpc { app: old, handler: 2, spu: 0, arguments: Arguments::EMPTY };
        let request = rig.request(rpc, &[], 0);
        rig.device.submit(rig.hre, request).unwrap();
        rig.device.run(0);
    }
    rig.settle();
    while let Some(done) = rig.device.completion() {
        assert!(answered(done.outcome), "{:?}", done.outcome);
        results.push(done.result);
    }
    assert_eq!(results.len(), 11);
    assert!(results.iter().all(|result| *result <= 2) && results.contains(&2), "{results:?}");
}

#[test]
fn namespaces_need_their_app_and_bad_requests_say_why() {
    let mut rig = Rig::new(2);
    let mut create = |body: &str| {
        let done = rig.call(control::CONTROL_APP, control::CREATE_NAMESPACE, 0, &[], body.as_bytes(), 0);
        if answered(done.outcome) { Ok(done.result) } else { Err(rig.error_text()) }
    };
    assert!(create(r#"{"csi":"nvm","size_bytes":1048576}"#).unwrap_err().contains("base-io"));
    assert!(create("{").unwrap_err().contains("cannot be read"));
    rig.install(&well_behaved("base-io", "")).unwrap();
    let mut create = |body: &str| {
        let done = rig.call(control::CONTROL_APP, control::CREATE_NAMESPACE, 0, &[], body.as_bytes(), 0);
        if answered(done.outcome) { Ok(done.result) } else { Err(rig.error_text()) }
    };
    assert_eq!(create(r#"{"csi":"nvm","size_bytes":10485760}"#), Ok(1));
    assert_eq!(create(r#"{"csi":"nvm","size_bytes":10485760,"block_bytes":512}"#), Ok(2));
    assert!(create(r#"{"csi":"nvm","size_bytes":10485760,"block_bytes":520}"#).unwrap_err().contains("520"));
    assert!(create(r#"{"csi":"nvm","size_bytes":10}"#).unwrap_err().contains("1 MiB"));
    assert!(create(r#"{"csi":"nvm","size_bytes":18446744073709551615}"#).is_err());
    assert!(create(r#"{"csi":"nvm","size_bytes":1099511627776}"#).unwrap_err().contains("does not fit"));
    let namespaces = rig.device.namespaces();
    assert_eq!(
        namespaces.iter().map(|n| (n.nsid, n.csi, n.block_bytes)).collect::<Vec<_>>(),
        [(1, CommandSet::Nvm, 4096), (2, CommandSet::Nvm, 512)]
    );
    assert_ne!(namespaces[0].nguid, namespaces[1].nguid);
    let remove = rig.call(control::CONTROL_APP, control::REMOVE, 0, b"base-io", &[], 0);
    assert!(!answered(remove.outcome), "it serves namespaces");
    for nsid in [1u32, 2] {
        assert!(answered(
            rig.call(control::CONTROL_APP, control::DELETE_NAMESPACE, 0, &[], &nsid.to_le_bytes(), 0).outcome
        ));
    }
    assert!(!answered(
        rig.call(control::CONTROL_APP, control::DELETE_NAMESPACE, 0, &[], &1u32.to_le_bytes(), 0).outcome
    ));
    assert!(rig.device.namespaces().is_empty() && rig.device.statistics().used_bytes == 0);
}

#[test]
fn requests_to_what_is_not_there_get_their_outcome() {
    let mut rig = Rig::new(2);
    let app = rig.install(&well_behaved("app", "")).unwrap();
    assert_eq!(rig.call(60, 1, 0, &[], &[], 0).outcome, RpcOutcome::NoApp);
    assert_eq!(rig.call(60000, 1, 0, &[], &[], 0).outcome, RpcOutcome::NoApp);
    assert_eq!(rig.call(app, 9, 0, &[], &[], 0).outcome, RpcOutcome::NoHandler);
    assert_eq!(rig.call(app, 0, 0, &[], &[], 0).outcome, RpcOutcome::NoHandler, "events come from SPU-OS alone");
    assert_eq!(rig.call(app, 1, 2, &[], &[], 0).outcome, RpcOutcome::NoSpu);
    assert_eq!(rig.call(0, 200, 0, &[], &[], 0).outcome, RpcOutcome::NoHandler);
    let user = rig.device.open_hre(Some(7)).unwrap();
    let kernel = std::mem::replace(&mut rig.hre, user);
    assert_eq!(rig.call(0, control::LIST_NAMESPACES, 0, &[], &[], 100).outcome, RpcOutcome::NotPermitted);
    assert_eq!(rig.call(app, 1, 0, &[], &[], 0).outcome, RpcOutcome::NotPermitted, "its manifest makes nothing public");
    rig.hre = kernel;
    rig.device.shutdown();
    rig.settle();
    assert!(rig.device.is_shut_down());
}
