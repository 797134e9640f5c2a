//! A device on RAM with a kernel endpoint, and apps written in WebAssembly text: what the core's tests drive.
#![allow(dead_code)]

pub mod drive;
pub mod even;
pub mod hardware;
pub mod keeper;
pub mod shared;
pub mod slow;
pub mod steps;
pub mod users;

use slow::{SlowStore, Valve};
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, Store,
    clock::Timing, control,
};
use willow_on_flash::Medium;

/// A device and an endpoint of the host kernel.
pub struct Rig {
    pub device: Device,
    pub hre: HreId,
    pub now_ns: u64,
    tag: u64,
}

/// Whether these tests are part of `on_flash`, which runs them on flash.
pub fn is_on_flash() -> bool {
    module_path!().starts_with("on_flash::")
}

/// Turns that a read takes. On flash the app begins, the FTL begins, the flash has the bytes brought, the FTL ends, and the app ends.
pub fn turns_of_a_read() -> u32 {
    if is_on_flash() { 5 } else { 1 }
}

/// Banks of the medium that these tests run on, and the apps that they need.
pub fn banks(count: u16, bank_bytes: u64) -> (Box<dyn Store>, Vec<BuiltInApp>) {
    let medium = if is_on_flash() { Medium::Flash } else { Medium::NvMemory };
    medium.banks(count, bank_bytes)
}

/// A configuration for tests: small.
pub fn config(spus: u16) -> DeviceConfig {
    DeviceConfig {
        spus,
        namespace_bytes: 0,
        kv_namespace_bytes: 0,
        instruction_budget: 2_000_000,
        ..Default::default()
    }
}

impl Rig {
    pub fn new(spus: u16) -> Rig {
        Rig::with(config(spus), None)
    }

    pub fn with(config: DeviceConfig, timing: Option<Box<dyn Timing>>) -> Rig {
        let (store, apps) = banks(config.spus, 1 << 30);
        Rig::opened(config, store, timing, apps)
    }

    /// On banks whose operations wait while the valve is closed.
    pub fn slow(config: DeviceConfig, bank_bytes: u64, timing: Option<Box<dyn Timing>>, valve: Valve) -> Rig {
        let (store, apps) = banks(config.spus, bank_bytes);
        Rig::opened(config, Box::new(SlowStore::new(store, valve)), timing, apps)
    }

    pub fn opened(
        config: DeviceConfig,
        store: Box<dyn Store>,
        timing: Option<Box<dyn Timing>>,
        apps: Vec<BuiltInApp>,
    ) -> Rig {
        let mut device = Device::open(config, store, timing, apps).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let mut rig = Rig::around(device, hre);
        if is_on_flash() {
            // The FTL starts.
            rig.settle();
        }
        rig
    }

    pub fn around(device: Device, hre: HreId) -> Rig {
        Rig { device, hre, now_ns: 0, tag: 0 }
    }

    /// Runs the device, jobs included, advancing time to its wake-ups until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            let wake = self.device.run(self.now_ns);
            let mut worked = false;
            while let Some(job) = self.device.job() {
                let done = job.run();
                self.device.job_done(done);
                worked = true;
            }
            match wake {
                _ if worked => {}
                Some(at_ns) => self.now_ns = self.now_ns.max(at_ns),
                None => return,
            }
        }
        panic!("the device does not come to rest");
    }

    pub fn request(&mut self, rpc: Rpc, payload: &[u8], reply_bytes: u32) -> HostRequest {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes as usize), 0);
        HostRequest { tag: self.tag, rpcs: RpcList::One(rpc), buffer, payload_bytes: payload.len() as u32, reply_bytes }
    }

    /// The tag of the last request.
    pub fn last_tag(&self) -> u64 {
        self.tag
    }

    /// Sends one RPC and waits for its end.
    pub fn call(
        &mut self,
        app: u16,
        handler: u8,
        spu: u16,
        arguments: &[u8],
        payload: &[u8],
        reply: u32,
    ) -> HostCompletion {
        self.call_on(self.hre, (app, handler, spu), arguments, payload, reply)
    }

    /// The same on another endpoint.
    pub fn call_on(
        &mut self,
        hre: HreId,
        to: (u16, u8, u16),
        arguments: &[u8],
        payload: &[u8],
        reply: u32,
    ) -> HostCompletion {
        self.begin(hre, to, arguments, payload, reply);
        self.settle();
        self.device.completion().expect("the request has ended")
    }

    /// Sends one RPC.
    pub fn begin(
        &mut self,
        hre: HreId,
        (app, handler, spu): (u16, u8, u16),
        arguments: &[u8],
        payload: &[u8],
        reply: u32,
    ) {
        let rpc = Rpc { app, handler, spu, arguments: Arguments::new(arguments).expect("at most 64 bytes") };
        let request = self.request(rpc, payload, reply);
        self.device.submit(hre, request).expect("the queue has room");
    }

    /// Installs a module; the app's number, or the sentence of the refusal.
    pub fn install(&mut self, module: &[u8]) -> Result<u16, String> {
        let done = self.call(control::CONTROL_APP, control::INSTALL, 0, &[], module, 0);
        match done.outcome {
            RpcOutcome::Answered { status: 0 } => Ok(done.result as u16),
            RpcOutcome::Answered { .. } => Err(self.error_text()),
            other => panic!("{other:?}"),
        }
    }

    pub fn error_text(&mut self) -> String {
        let done = self.call(control::CONTROL_APP, control::ERROR_TEXT, 0, &[], &[], 4096);
        String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned()
    }

    pub fn log(&mut self, name: &str) -> String {
        let mut arguments = vec![0; 4];
        arguments.extend_from_slice(name.as_bytes());
        let done = self.call(control::CONTROL_APP, control::LOG, 0, &arguments, &[], 65536);
        String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned()
    }
}

/// A module of WebAssembly text: `body` defines `$start` (token, handler) -> i32 and whatever else; imports, memory, exports and
/// manifest are added.
pub fn module(name: &str, body: &str) -> Vec<u8> {
    let complete = if body.contains("$complete") { "" } else { "(func $complete (param i32 i64))" };
    module_with_memory(name, "(memory (export \"memory\") 1)", &format!("{complete}{body}"))
}

pub fn module_with_memory(name: &str, memory: &str, body: &str) -> Vec<u8> {
    module_with_manifest(name, memory, body, "")
}

/// The same with more lines in its manifest.
pub fn module_with_manifest(name: &str, memory: &str, body: &str, lines: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
        (import "willow" "request_info" (func $request_info (param i32 i32)))
        (import "willow" "receive_bytes" (func $receive_bytes (param i32 i32 i32) (result i32)))
        (import "willow" "receive_bytes_at" (func $receive_bytes_at (param i32 i32 i32 i32) (result i32)))
        (import "willow" "respond" (func $respond (param i32 i32 i32)))
        (import "willow" "dma" (func $dma (param i32 i32 i64 i32 i64 i32 i32) (result i32)))
        (import "willow" "dma_strided" (func $dma_strided (param i32 i32 i64 i64 i32 i64 i64 i32 i32 i32) (result i32)))
        (import "willow" "compare" (func $compare (param i32 i64 i64 i32 i32) (result i32)))
        (import "willow" "checksum" (func $checksum (param i32 i32 i64 i32 i32 i32) (result i32)))
        (import "willow" "checksum_value" (func $checksum_value (result i32)))
        (import "willow" "literals_load" (func $literals_load (param i32 i32 i32) (result i32)))
        (import "willow" "literals_find" (func $literals_find (param i32 i32 i32 i64 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "multiply_add" (func $multiply_add (param i32 i32 i64 i32 i32 i32 i32) (result i32)))
        (import "willow" "fft" (func $fft (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "decompress" (func $decompress (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "keys_find" (func $keys_find (param i32 i32 i64 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "literals_free" (func $literals_free (param i32) (result i32)))
        (import "willow" "rpc_start" (func $rpc_start (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "willow" "rpc_append" (func $rpc_append (param i32 i32 i64 i32) (result i32)))
        (import "willow" "rpc_finish" (func $rpc_finish (param i32 i32) (result i32)))
        (import "willow" "upcall_start" (func $upcall_start (param i32 i32 i32 i32) (result i32)))
        (import "willow" "subscribers" (func $subscribers (param i32 i32 i32 i32) (result i32)))
        (import "willow" "app_number" (func $app_number (param i32 i32) (result i32)))
        (import "willow" "region" (func $region (param i32 i64 i32) (result i64)))
        (import "willow" "region_bytes" (func $region_bytes (param i32) (result i64)))
        (import "willow" "region_free" (func $region_free (param i32 i32) (result i32)))
        (import "willow" "namespace" (func $namespace (param i32 i32) (result i32)))
        (import "willow" "flush" (func $flush (param i32) (result i32)))
        (import "willow" "sleep" (func $sleep (param i64 i32) (result i32)))
        (import "willow" "cancel" (func $cancel (param i32 i32) (result i32)))
        (import "willow" "background" (func $background (param i32 i64) (result i32)))
        (import "willow" "spu_id" (func $spu_id (result i32)))
        (import "willow" "spu_count" (func $spu_count (result i32)))
        (import "willow" "time_ns" (func $time_ns (result i64)))
        (import "willow" "print" (func $print (param i32 i32)))
        (import "willow" "count" (func $count (param i32 i64)))
        {memory}
        {body}
        (export "start" (func $start)) (export "complete" (func $complete))
        (@custom "willow.app" "abi=2\nname={name}\nversion=1\nhandler=1:one\nhandler=2:two\nhandler=3:three\nhandler=4:four\n{lines}")
        )"#
    );
    wat::parse_str(&text).expect("the test's module is well formed")
}

/// Answers events and handler 1 (result 42); `rest` handles the others, with `local.get 0` the token and `local.get 1` the
/// handler, and falls through to an answer with result 7.
pub fn well_behaved(name: &str, rest: &str) -> Vec<u8> {
    module(
        name,
        &format!(
            r#"(func $start (param i32 i32) (result i32) (local i32 i64)
                (if (i32.lt_u (local.get 1) (i32.const 2))
                    (then (call $respond (local.get 0) (i32.const 0) (i32.const 42)) (return (i32.const 0))))
                {rest}
                (call $respond (local.get 0) (i32.const 0) (i32.const 7)) (i32.const 0))"#
        ),
    )
}
