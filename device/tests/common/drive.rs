//! A device on media that fail, and its whole state as its users see it: what the tests of transactions drive.

use super::config;
use std::collections::BTreeSet;
use willow_device::control::{self, AppInfo};
use willow_device::media::fault::FaultMedia;
use willow_device::metadata::{Attachment, Metadata};
use willow_device::{
    Arguments, Device, HostCompletion, HostRequest, HreId, Intercall, Namespace, Rpc, RpcList, RpcOutcome, Store,
};

/// SPUs of these devices.
pub const SPUS: u16 = 2;
/// Turns of the device after which a request hangs.
const TURNS_MAX: u32 = 20_000;
/// Turns without an end after which time goes on.
const TURNS_AT_ONCE: u32 = 400;

/// What users see of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Number, name, state, and what handler 1 answers on each SPU.
    pub apps: Vec<(u16, String, String, Vec<u32>)>,
    /// App, number, first byte, bytes of each region that is not given up.
    pub regions: Vec<(String, u32, u64, u64)>,
    pub namespaces: Vec<Namespace>,
    pub intercalls: Vec<Intercall>,
    pub weights: Vec<(u32, u16)>,
    pub attachments: Vec<Attachment>,
    /// Bytes that cannot be read until they are written.
    pub uncorrectable_bytes: u64,
    /// What the app `keeper` keeps, where it has a region.
    pub kept: Option<[u8; 8]>,
}

/// A device and an endpoint of the host kernel.
pub struct Drive {
    pub device: Device,
    pub hre: HreId,
    media: FaultMedia,
    now_ns: u64,
    tag: u64,
    /// How many more turns it takes until it is killed; at 0 it does nothing any more.
    pub turns_left: Option<u32>,
}

impl Drive {
    pub fn open(media: &FaultMedia) -> Result<Drive, String> {
        Drive::over(Box::new(media.store()), media)
    }

    /// On a store that stands before that of these media.
    pub fn over(store: Box<dyn Store>, media: &FaultMedia) -> Result<Drive, String> {
        let mut device = Device::open(config(SPUS), store, None, vec![]).map_err(|error| error.to_string())?;
        let hre = device.open_hre(None).ok_or("no endpoint")?;
        Ok(Drive { device, hre, media: media.clone(), now_ns: 0, tag: 0, turns_left: None })
    }

    /// One turn of the device, jobs included; when it wants to be called again.
    fn turn(&mut self) -> Option<u64> {
        if let Some(left) = &mut self.turns_left {
            if *left == 0 {
                return None;
            }
            *left -= 1;
        }
        let wake_ns = self.device.run(self.now_ns);
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
        }
        wake_ns
    }

    /// Has the device do what it has to.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_AT_ONCE {
            self.turn();
        }
    }

    /// What time it is for the device.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Sends a request and does not wait.
    pub fn begin(&mut self, hre: HreId, (app, handler, spu): (u16, u8, u16), payload: &[u8]) {
        self.tag += 1;
        let rpc = Rpc { app, handler, spu, arguments: Arguments::EMPTY };
        let (buffer, payload_bytes) = (payload.to_vec(), payload.len() as u32);
        let request = HostRequest { tag: self.tag, rpcs: RpcList::One(rpc), buffer, payload_bytes, reply_bytes: 0 };
        self.device.submit(hre, request).expect("room");
    }

    /// Sends a request and waits for its end; `None` where the device was killed meanwhile.
    pub fn send(
        &mut self,
        hre: HreId,
        (app, handler, spu): (u16, u8, u16),
        payload: &[u8],
        reply: u32,
    ) -> Option<HostCompletion> {
        self.tag += 1;
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply as usize), 0);
        let rpc = Rpc { app, handler, spu, arguments: Arguments::EMPTY };
        let payload_bytes = payload.len() as u32;
        let request = HostRequest { tag: self.tag, rpcs: RpcList::One(rpc), buffer, payload_bytes, reply_bytes: reply };
        self.device.submit(hre, request).expect("room");
        self.end_of(self.tag)
    }

    /// The tag of the last request.
    pub fn last_tag(&self) -> u64 {
        self.tag
    }

    /// Waits for the end of a request; `None` where the device was killed meanwhile. What else ends is forgotten.
    pub fn end_of(&mut self, tag: u64) -> Option<HostCompletion> {
        for turn in 0..TURNS_MAX {
            let wake_ns = self.turn();
            while let Some(done) = self.device.completion() {
                if done.tag == tag {
                    return Some(done);
                }
            }
            if self.turns_left == Some(0) {
                return None;
            }
            if let (Some(at_ns), true) = (wake_ns, turn > TURNS_AT_ONCE) {
                self.now_ns = self.now_ns.max(at_ns);
            }
        }
        panic!("a request hangs");
    }

    /// An RPC to SPU 0: outcome and result.
    pub fn call(&mut self, app: u16, handler: u8, payload: &[u8]) -> (RpcOutcome, u32) {
        let done = self.send(self.hre, (app, handler, 0), payload, 0);
        done.map_or((RpcOutcome::Aborted, 0), |done| (done.outcome, done.result))
    }

    /// What `keeper` keeps.
    pub fn read(&mut self, app: u16) -> [u8; 8] {
        let done = self.send(self.hre, (app, 3, 0), &[], 8).expect("not killed");
        assert_eq!((done.outcome, done.result), (RpcOutcome::Answered { status: 0 }, 0));
        done.buffer[..8].try_into().expect("8 bytes")
    }

    /// A control request; true where it succeeds.
    pub fn control(&mut self, handler: u8, payload: &[u8]) -> bool {
        let done = self.send(self.hre, (control::CONTROL_APP, handler, 0), payload, 0);
        done.is_some_and(|done| done.outcome == RpcOutcome::Answered { status: 0 })
    }

    pub fn install(&mut self, module: &[u8]) -> Result<u16, String> {
        self.install_on(self.hre, module)
    }

    pub fn install_on(&mut self, hre: HreId, module: &[u8]) -> Result<u16, String> {
        let Some(done) = self.send(hre, (control::CONTROL_APP, control::INSTALL, 0), module, 0) else {
            return Err("killed".to_owned());
        };
        match done.outcome {
            RpcOutcome::Answered { status: 0 } => Ok(done.result as u16),
            _ => Err(self.error_text()),
        }
    }

    /// An endpoint of a process of a user.
    pub fn user(&mut self, user: u32) -> HreId {
        let process = self.device.open_process(user, 0).expect("room for a process");
        self.device.open_hre(Some(process)).expect("room for an endpoint")
    }

    fn reply(&mut self, handler: u8) -> Vec<u8> {
        let Some(mut done) = self.send(self.hre, (control::CONTROL_APP, handler, 0), &[], 1 << 20) else {
            return vec![];
        };
        done.buffer.truncate(done.reply_bytes as usize);
        done.buffer
    }

    pub fn error_text(&mut self) -> String {
        String::from_utf8_lossy(&self.reply(control::ERROR_TEXT)).into_owned()
    }

    pub fn log(&mut self, name: &str) -> String {
        let arguments = [&[0; 4], name.as_bytes()].concat();
        let rpc = Rpc {
            app: control::CONTROL_APP,
            handler: control::LOG,
            spu: 0,
            arguments: Arguments::new(&arguments).expect("short"),
        };
        self.tag += 1;
        let buffer = vec![0; 65536];
        let request =
            HostRequest { tag: self.tag, rpcs: RpcList::One(rpc), buffer, payload_bytes: 0, reply_bytes: 65536 };
        self.device.submit(self.hre, request).expect("room");
        self.settle();
        let done = self.device.completion().expect("it has ended");
        String::from_utf8_lossy(&done.buffer[..done.reply_bytes as usize]).into_owned()
    }

    pub fn apps(&mut self) -> Vec<AppInfo> {
        serde_json::from_slice(&self.reply(control::LIST_APPS)).unwrap_or_default()
    }

    /// What users see but for what `keeper` keeps.
    pub fn state(&mut self) -> State {
        let mut state = self.outline();
        for (number, .., answers) in &mut state.apps {
            *answers = (0..SPUS)
                .map(|spu| {
                    let done = self.send(self.hre, (*number, 1, spu), &[], 0).expect("not killed");
                    if done.outcome == (RpcOutcome::Answered { status: 0 }) { done.result } else { u32::MAX }
                })
                .collect();
        }
        state
    }

    /// What the device says of itself: all that users see but for what apps answer and keep.
    pub fn outline(&mut self) -> State {
        let apps = self.apps().into_iter().map(|app| (app.number, app.name, app.state, Vec::new())).collect();
        let regions = self.device.statistics().regions.into_iter().filter(|region| !region.deleting);
        State {
            apps,
            regions: regions.map(|region| (region.app, region.id, region.base, region.bank_bytes)).collect(),
            namespaces: self.device.namespaces().to_vec(),
            intercalls: serde_json::from_slice(&self.reply(control::LIST_INTERCALLS)).expect("JSON"),
            weights: serde_json::from_slice(&self.reply(control::LIST_WEIGHTS)).expect("JSON"),
            attachments: serde_json::from_slice(&self.reply(control::LIST_ATTACHMENTS)).expect("JSON"),
            uncorrectable_bytes: self.device.statistics().uncorrectable_bytes,
            kept: None,
        }
    }

    /// All that users see.
    pub fn full_state(&mut self) -> State {
        let mut state = self.state();
        if state.regions.iter().any(|(app, ..)| app == "keeper") {
            let number = state.apps.iter().find(|(_, name, ..)| name == "keeper").map(|(number, ..)| *number);
            state.kept = number.map(|number| self.read(number));
        }
        state
    }

    /// The modules that the metadata on the media name.
    pub fn named_modules(&self) -> Vec<String> {
        let bytes = self.media.metadata().expect("there are metadata");
        let metadata = Metadata::decode(&bytes).expect("they can be read");
        let named: BTreeSet<String> = metadata.apps.into_iter().filter_map(|app| app.module).collect();
        named.into_iter().collect()
    }

    pub fn shut_down(&mut self) {
        self.device.shutdown();
        for turn in 0..TURNS_MAX {
            let wake_ns = self.turn();
            if self.device.is_shut_down() {
                return;
            }
            if let (Some(at_ns), true) = (wake_ns, turn > TURNS_AT_ONCE) {
                self.now_ns = self.now_ns.max(at_ns);
            }
        }
        panic!("the device does not end");
    }
}
