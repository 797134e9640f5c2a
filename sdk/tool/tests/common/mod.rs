//! What the tests of projects share: a folder that goes away, and a device.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use willow_app_tool::ToolError;
use willow_device::media::ram::RamStore;
use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, control,
};

/// Says that an app cannot be built here, and why.
pub fn skip(error: &ToolError) {
    willow_skip::skip("building an app", &error.to_string());
}

/// A folder below the system's, gone when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("willow-app-tool-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A device with a block namespace of 1 MiB, and an endpoint of the host kernel.
pub struct Rig {
    pub device: Device,
    pub hre: HreId,
    now_ns: u64,
    tag: u64,
}

impl Rig {
    pub fn new(spus: u16) -> Rig {
        let config = DeviceConfig { spus, namespace_bytes: 1 << 20, kv_namespace_bytes: 0, ..Default::default() };
        let store = RamStore::new(spus as usize, 1 << 30).expect("a store in memory");
        let mut device = Device::open(config, Box::new(store), None, vec![BuiltInApp::Native(base_io_spu::native())])
            .expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        Rig { device, hre, now_ns: 0, tag: 0 }
    }

    /// Installs a module; returns the app's number.
    pub fn install(&mut self, module: &Path, name: &str) -> u16 {
        let module = fs::read(module).expect("a module");
        let installed = self.call((control::CONTROL_APP, control::INSTALL, 0), &[], &module, 0);
        if !matches!(installed.outcome, RpcOutcome::Answered { status: 0 }) {
            let text = self.call((control::CONTROL_APP, control::ERROR_TEXT, 0), &[], &[], 4096);
            panic!("{}", String::from_utf8_lossy(&text.buffer[..text.reply_bytes as usize]));
        }
        self.device.app_number(name).expect("installed")
    }

    /// Sends an RPC: app, handler, SPU.
    pub fn submit(&mut self, rpc: (u16, u8, u16), arguments: &[u8], payload: &[u8], reply_bytes: u32) {
        let (app, handler, spu) = rpc;
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes as usize), 0);
        let rpc = Rpc { app, handler, spu, arguments: Arguments::new(arguments).expect("at most 64 bytes") };
        let payload_bytes = payload.len() as u32;
        let request = HostRequest { tag: self.tag, rpcs: RpcList::One(rpc), buffer, payload_bytes, reply_bytes };
        assert!(self.device.submit(self.hre, request).is_ok(), "the queue has room");
    }

    /// Sends an RPC and waits for its end.
    pub fn call(&mut self, rpc: (u16, u8, u16), arguments: &[u8], payload: &[u8], reply_bytes: u32) -> HostCompletion {
        self.submit(rpc, arguments, payload, reply_bytes);
        self.completion()
    }

    /// The next completion.
    pub fn completion(&mut self) -> HostCompletion {
        for _ in 0..1_000_000 {
            let wake = self.device.run(self.now_ns);
            while let Some(job) = self.device.job() {
                self.device.job_done(job.run());
            }
            if let Some(completion) = self.device.completion() {
                return completion;
            }
            self.now_ns = wake.unwrap_or(self.now_ns).max(self.now_ns);
        }
        panic!("the request does not end");
    }
}
