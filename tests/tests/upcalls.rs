//! An app that asks its host: RPCs from SPUs to the originating host endpoint (Willow, section 2.3) over NVMe/TCP, by the opcodes
//! 81h, 82h and 86h of the tunnel and the real command.

use std::sync::Arc;
use std::time::Duration;
use willow_host::{AppClient, ControlClient, Controller, Hre, NvmeHre, Options};
use willow_tests::daemon::Daemon;

/// Handler 1 asks the originating endpoint (handler 9 there) with the 4 bytes that it was given, and answers with what it is told.
/// Up to 16 requests an SPU: request n waits under the number n, its token lies at 1024 + 4n.
const ASKER: &str = r#"(module
    (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
    (import "willow" "respond" (func $respond (param i32 i32 i32)))
    (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "willow" "rpc_append" (func $rpc_append (param i32 i32 i64 i32) (result i32)))
    (import "willow" "rpc_finish" (func $rpc_finish (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (global $next (mut i32) (i32.const 0))
    (func (export "start") (param $token i32) (param $handler i32) (result i32) (local $handle i32) (local $wait i32)
        (if (i32.eqz (local.get $handler))
            (then (call $respond (local.get $token) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (local.set $wait (i32.and (global.get $next) (i32.const 15)))
        (global.set $next (i32.add (global.get $next) (i32.const 1)))
        (i32.store (i32.add (i32.const 1024) (i32.mul (local.get $wait) (i32.const 4))) (local.get $token))
        (drop (call $receive_bytes (local.get $token) (i32.const 0) (i32.const 4)))
        (local.set $handle (call $rpc_start (local.get $token) (i32.const -1) (i32.const -1) (i32.const 9)
            (i32.const 4) (i32.const 0) (i32.const 0)))
        (drop (call $rpc_append (local.get $handle) (i32.const 0) (i64.const 0) (i32.const 4)))
        (if (i32.ne (call $rpc_finish (local.get $handle) (local.get $wait)) (i32.const 1))
            (then (call $respond (local.get $token) (i32.const 77) (i32.const 0))))
        (i32.const 0))
    (func (export "complete") (param $wait i32) (param $result i64)
        (call $respond (i32.load (i32.add (i32.const 1024) (i32.mul (local.get $wait) (i32.const 4))))
            (i32.wrap_i64 (i64.shr_u (local.get $result) (i64.const 32))) (i32.wrap_i64 (local.get $result))))
    (@custom "willow.app" "abi=2\nname=asker\nversion=1\nhandler=1:ask\n")
)"#;

async fn attach(daemon: &Daemon) -> Arc<dyn Hre> {
    let mut options = Options::new(daemon.address(), daemon.nqn());
    options.reconnect_for = Duration::ZERO;
    let controller = Controller::connect(options).await.expect("the device takes a host");
    Arc::new(NvmeHre::new(controller, 1).await.expect("an endpoint"))
}

async fn ask(client: &AppClient, spu: u16, question: u32) -> (u32, u32) {
    let reply = client.send(1, Some(spu), question.to_le_bytes().to_vec()).await.expect("an answer");
    (reply.status, reply.result)
}

#[test]
fn an_app_asks_the_endpoint_that_its_request_came_from() {
    let daemon = Daemon::start(&["--size", "64M", "--spus", "4"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let hre = attach(&daemon).await;
        let stranger = attach(&daemon).await;
        let module = wat::parse_str(ASKER).expect("the test's module is well formed");
        ControlClient::new(hre.clone()).install(module).await.expect("it can be installed");
        let client = AppClient::find(hre.clone(), "asker").await.expect("it is there");

        // Ten questions under way at once, from all SPUs; each is answered with its double, a status on the third.
        let host = async {
            for _ in 0..10 {
                let upcall = hre.receive_upcall(Duration::from_secs(120)).await.expect("no error").expect("an upcall");
                assert_eq!((upcall.app, upcall.handler), (client.number(), 9));
                let question = u32::from_le_bytes(upcall.body[..].try_into().expect("4 bytes"));
                assert_eq!(u32::from(upcall.spu), question % 4, "it comes from the SPU that was asked");
                assert!(stranger.answer_upcall(upcall.id, 0, 1).await.is_err(), "another endpoint cannot answer it");
                let status = if question == 3 { 5 } else { 0 };
                hre.answer_upcall(upcall.id, status, 2 * question).await.expect("it is taken");
                assert!(hre.answer_upcall(upcall.id, 0, 1).await.is_err(), "it is answered once");
            }
        };
        let asked = async {
            let mut set = tokio::task::JoinSet::new();
            let local = tokio::task::LocalSet::new();
            local
                .run_until(async {
                    for question in 0..10u32 {
                        let client = client.clone();
                        set.spawn_local(async move { (question, ask(&client, (question % 4) as u16, question).await) });
                    }
                    while let Some(done) = set.join_next().await {
                        let (question, answer) = done.expect("no panic");
                        assert_eq!(answer, (if question == 3 { 5 } else { 0 }, 2 * question));
                    }
                })
                .await;
        };
        tokio::join!(host, asked);

        // Nobody asks: the wait ends by itself. A stranger never sees what was not for him.
        assert!(hre.receive_upcall(Duration::from_millis(50)).await.expect("no error").is_none());
        assert!(stranger.receive_upcall(Duration::from_millis(50)).await.expect("no error").is_none());
    });
}

#[test]
fn a_question_to_an_endpoint_that_goes_away_is_answered_with_its_end() {
    let daemon = Daemon::start(&["--size", "64M", "--spus", "2"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let leaving = attach(&daemon).await;
        let module = wat::parse_str(ASKER).expect("the test's module is well formed");
        ControlClient::new(leaving.clone()).install(module).await.expect("it can be installed");
        let client = AppClient::find(leaving.clone(), "asker").await.expect("it is there");
        // It asks, and its host is gone before it answers.
        let asked = tokio::time::timeout(Duration::from_millis(300), ask(&client, 0, 1)).await;
        assert!(asked.is_err(), "nobody answered");
        drop((client, leaving));

        // The app goes on to serve others.
        let hre = attach(&daemon).await;
        let client = AppClient::find(hre.clone(), "asker").await.expect("it is there");
        let host = async {
            let upcall = hre.receive_upcall(Duration::from_secs(120)).await.expect("no error").expect("an upcall");
            hre.answer_upcall(upcall.id, 0, 42).await.expect("it is taken");
        };
        let ((), answer) = tokio::join!(host, ask(&client, 0, 2));
        assert_eq!(answer, (0, 42));
    });
}
