//! A device with a block namespace, an agent and processes of users: what the tests of protection drive.

use super::slow::Valve;
use super::*;
use std::collections::VecDeque;
use willow_device::CommandSet;

/// Moves what it is asked to: inline arguments u64 NV address, u32 bytes, u32 port of NV memory. Handler 1: NV memory to the
/// reply. 2: payload to NV memory. 3: NV memory to local memory; the result is its first word. 4: the payload's first 4 bytes by
/// way of local memory to NV memory. 5: whether NV memory may be written. Result: what the DMA came to.
pub const MOVER: &str = r#"
    (func $start (param i32 i32) (result i32) (local $code i32)
        (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
        (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 16)))
        (i32.store (i32.const 32) (local.get 1))
        (if (i32.eq (local.get 1) (i32.const 1)) (then (local.set $code
            (call $dma (local.get 0) (i32.load (i32.const 12)) (i64.load (i32.const 0)) (i32.const 2) (i64.const 0) (i32.load (i32.const 8)) (local.get 0)))))
        (if (i32.eq (local.get 1) (i32.const 2)) (then (local.set $code
            (call $dma (local.get 0) (i32.const 2) (i64.const 16) (i32.load (i32.const 12)) (i64.load (i32.const 0)) (i32.load (i32.const 8)) (local.get 0)))))
        (if (i32.eq (local.get 1) (i32.const 3)) (then (local.set $code
            (call $dma (local.get 0) (i32.load (i32.const 12)) (i64.load (i32.const 0)) (i32.const 0) (i64.const 1024) (i32.load (i32.const 8)) (local.get 0)))))
        (if (i32.eq (local.get 1) (i32.const 4)) (then
            (drop (call $receive_bytes (local.get 0) (i32.const 64) (i32.const 4)))
            (local.set $code
            (call $dma (local.get 0) (i32.const 0) (i64.const 64) (i32.load (i32.const 12)) (i64.load (i32.const 0)) (i32.const 4) (local.get 0)))
            (i32.store (i32.const 64) (i32.const -1))))
        (if (i32.eq (local.get 1) (i32.const 5)) (then (local.set $code
            (call $dma (local.get 0) (i32.const 4) (i64.const 0) (i32.load (i32.const 12)) (i64.load (i32.const 0)) (i32.load (i32.const 8)) (local.get 0)))))
        (if (i32.eq (local.get $code) (i32.const 1)) (then (return (i32.const 0))))
        (call $complete (local.get 0) (i64.extend_i32_s (local.get $code)))
        (i32.const 0))
    (func $complete (param i32 i64)
        (if (i32.and (i32.eq (i32.load (i32.const 32)) (i32.const 3)) (i64.eqz (local.get 1)))
            (then (call $respond (local.get 0) (i32.const 0) (i32.load (i32.const 1024))) (return)))
        (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#;

/// Calls handler `handler` of the app whose number is in the arguments; answers with what came back.
pub fn caller(handler: u8) -> String {
    format!(
        r#"(func $start (param i32 i32) (result i32) (local $handle i32)
            (if (i32.eqz (local.get 1)) (then (call $respond (local.get 0) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
            (drop (call $receive_bytes (local.get 0) (i32.const 0) (i32.const 20)))
            (local.set $handle (call $rpc_start (local.get 0) (call $spu_id) (i32.load (i32.const 16)) (i32.const {handler}) (i32.const 16) (i32.const 512) (i32.const 16)))
            (drop (call $rpc_append (local.get $handle) (i32.const 0) (i64.const 0) (i32.const 16)))
            (drop (call $rpc_finish (local.get $handle) (local.get 0)))
            (i32.const 0))
        (func $complete (param i32 i64) (call $respond (local.get 0) (i32.const 0) (i32.wrap_i64 (local.get 1))))"#
    )
}

pub const NV: u32 = 1;
pub const PARKED_NV: u32 = 0x101;
pub const READ: u32 = 1;
pub const WRITE: u32 = 2;
pub const PERMISSION: u32 = -4i32 as u32;
/// Runs of the device after which it does not come to rest.
const RUNS_MAX: u32 = 10_000;
const MEMORY: &str = "(memory (export \"memory\") 1)";

/// A module with lines in its manifest.
pub fn app(name: &str, body: &str, lines: &str) -> Vec<u8> {
    let complete = if body.contains("(func $complete") { "" } else { "(func $complete (param i32 i64))" };
    module_with_manifest(name, MEMORY, &format!("{complete}{body}"), lines)
}

pub struct Users {
    pub rig: Rig,
    pub valve: Valve,
    done: VecDeque<HostCompletion>,
    /// Base-IO in these tests: it serves the namespace and is public.
    pub mover: u16,
    /// First byte of the namespace in every bank.
    pub base: u64,
    pub bank_bytes: u64,
}

pub struct User {
    pub process: u32,
    pub hre: HreId,
}

impl Users {
    pub fn new(config: DeviceConfig) -> Users {
        Users::with_namespace(config, 4 << 20)
    }

    pub fn with_namespace(config: DeviceConfig, namespace_bytes: u64) -> Users {
        Users::under(None, config, namespace_bytes)
    }

    /// The same under a model of time.
    pub fn under(timing: Option<Box<dyn Timing>>, config: DeviceConfig, namespace_bytes: u64) -> Users {
        let valve = Valve::default();
        let mut rig = Rig::slow(config, 1 << 26, timing, valve.clone());
        let mover = rig.install(&app("base-io", MOVER, "public=*\\nhandler=5:five\\n")).expect("an app");
        let request = format!(r#"{{"csi":"nvm","size_bytes":{namespace_bytes},"block_bytes":512}}"#);
        let made = rig.call(control::CONTROL_APP, control::CREATE_NAMESPACE, 0, &[], request.as_bytes(), 0);
        assert_eq!(made.outcome, RpcOutcome::Answered { status: 0 });
        let namespace = rig.device.namespaces().iter().find(|it| it.csi == CommandSet::Nvm).expect("made").clone();
        Users { rig, valve, done: VecDeque::new(), mover, base: namespace.base, bank_bytes: namespace.bank_bytes }
    }

    pub fn user(&mut self, uid: u32) -> User {
        let process = self.rig.device.open_process(uid, 0).expect("room for a process");
        User { process, hre: self.rig.device.open_hre(Some(process)).expect("room for an endpoint") }
    }

    /// A request of the kernel's to the control service: status and result. Time does not move meanwhile.
    pub fn control(&mut self, handler: u8, payload: &[u8]) -> (u32, u32) {
        let kernel = self.rig.hre;
        self.rig.begin(kernel, (control::CONTROL_APP, handler, 0), &[], payload, 0);
        for _ in 0..1000 {
            self.run();
            while let Some(done) = self.rig.device.completion() {
                match done.outcome {
                    RpcOutcome::Answered { status } if done.hre == kernel => return (status, done.result),
                    _ => self.done.push_back(done),
                }
            }
        }
        panic!("the control service does not answer")
    }

    pub fn extents(process: u32, extents: &[(u32, u32, u64, u64)]) -> Vec<u8> {
        let mut body = [process.to_le_bytes(), [0; 4]].concat();
        for (spu, rights, start, bytes) in extents {
            body.extend(spu.to_le_bytes());
            body.extend(rights.to_le_bytes());
            body.extend(start.to_le_bytes());
            body.extend(bytes.to_le_bytes());
        }
        body
    }

    /// Grants a range of SPU 0, counted from the namespace's first byte.
    pub fn grant(&mut self, user: &User, rights: u32, start: u64, bytes: u64) {
        let body = Self::extents(user.process, &[(0, rights, self.base + start, bytes)]);
        assert_eq!(self.control(control::GRANT, &body), (0, 1));
    }

    pub fn revoke(&mut self, user: &User, rights: u32, start: u64, bytes: u64) {
        let body = Self::extents(user.process, &[(0, rights, self.base + start, bytes)]);
        assert_eq!(self.control(control::REVOKE, &body).0, 0);
    }

    /// Asks for the revocation of all that a user has in the namespace, on SPU 0, and does not wait for the answer.
    pub fn revoke_later(&mut self, user: &User) {
        let (kernel, bytes) = (self.rig.hre, self.bank_bytes);
        let body = Self::extents(user.process, &[(0, READ | WRITE, self.base, bytes)]);
        self.rig.begin(kernel, (control::CONTROL_APP, control::REVOKE, 0), &[], &body, 0);
        self.run();
    }

    pub fn arguments(&self, start: u64, bytes: u32, port: u32) -> Vec<u8> {
        [&(self.base.wrapping_add(start)).to_le_bytes()[..], &bytes.to_le_bytes(), &port.to_le_bytes()].concat()
    }

    /// What a read on an endpoint comes to: result and data.
    pub fn read(&mut self, hre: HreId, app: u16, start: u64, bytes: u32) -> (RpcOutcome, u32, Vec<u8>) {
        let arguments = self.arguments(start, bytes, NV);
        let done = self.rig.call_on(hre, (app, 1, 0), &arguments, &[], bytes);
        (done.outcome, done.result, done.buffer[..done.reply_bytes as usize].to_vec())
    }

    pub fn write(&mut self, hre: HreId, app: u16, start: u64, data: &[u8]) -> (RpcOutcome, u32) {
        let arguments = self.arguments(start, data.len() as u32, NV);
        let done = self.rig.call_on(hre, (app, 2, 0), &arguments, data, 0);
        (done.outcome, done.result)
    }

    /// The next completion, those that came during control requests first.
    pub fn completion(&mut self) -> Option<HostCompletion> {
        self.done.pop_front().or_else(|| self.rig.device.completion())
    }

    /// Runs the device once: more may be left to do now, of what comes by turns. When it wants to run again.
    pub fn run_once(&mut self) -> Option<u64> {
        self.rig.device.run(self.rig.now_ns)
    }

    /// Runs the device for as long as it has something to do now, without moving time.
    pub fn run(&mut self) {
        let now_ns = self.rig.now_ns;
        let rests = (0..RUNS_MAX).find(|_| self.run_once().is_none_or(|at_ns| at_ns > now_ns));
        assert!(rests.is_some(), "the device does not come to rest");
    }

    pub fn install_for(&mut self, hre: HreId, module: &[u8]) -> Result<u16, RpcOutcome> {
        let done = self.rig.call_on(hre, (control::CONTROL_APP, control::INSTALL, 0), &[], module, 0);
        match done.outcome {
            RpcOutcome::Answered { status: 0 } => Ok(done.result as u16),
            refused => Err(refused),
        }
    }
}
