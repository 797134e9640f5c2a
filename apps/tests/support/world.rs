//! A device with apps that is called and run until it is at rest.

use willow_device::{
    Arguments, BuiltInApp, Device, DeviceConfig, HostCompletion, HostRequest, HreId, Rpc, RpcList, RpcOutcome, Store,
    control,
};

pub struct World {
    pub device: Device,
    pub hre: HreId,
    now_ns: u64,
    tag: u64,
}

#[allow(dead_code)] // Not every test installs for a user.
impl World {
    pub fn open(config: DeviceConfig, store: Box<dyn Store>, apps: Vec<BuiltInApp>) -> World {
        let mut device = Device::open(config, store, None, apps).expect("the device opens");
        let hre = device.open_hre(None).expect("an endpoint");
        let mut world = World { device, hre, now_ns: 0, tag: 0 };
        world.run();
        world
    }

    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            match self.device.run(self.now_ns) {
                Some(at_ns) => self.now_ns = self.now_ns.max(at_ns),
                None => return,
            }
        }
        panic!("the device does not come to rest");
    }

    /// Installs a module for a user, who calls from now on.
    pub fn install_for(&mut self, user: u32, module: &[u8]) {
        let process = self.device.open_process(user, 0).expect("room for a process");
        self.hre = self.device.open_hre(Some(process)).expect("room for an endpoint");
        let rpc = Rpc {
            app: control::CONTROL_APP,
            handler: control::INSTALL,
            spu: 0,
            arguments: Arguments::new(&[]).expect("none"),
        };
        let payload_bytes = module.len() as u32;
        let request =
            HostRequest { tag: 0, rpcs: RpcList::One(rpc), buffer: module.to_vec(), payload_bytes, reply_bytes: 0 };
        self.device.submit(self.hre, request).expect("room");
        self.run();
        while let Some(job) = self.device.job() {
            let done = job.run();
            self.device.job_done(done);
            self.run();
        }
        let done = self.device.completion().expect("it ends");
        assert_eq!(done.outcome, RpcOutcome::Answered { status: 0 }, "it is installed");
    }

    /// Calls an app, by its name, handler and SPU; no app has ended then.
    pub fn call(
        &mut self,
        to: (&str, u8, u16),
        arguments: &[u8],
        payload: &[u8],
        reply_bytes: usize,
    ) -> HostCompletion {
        self.tag += 1;
        let app = self.device.app_number(to.0).expect("a built-in app");
        let rpc = Rpc { app, handler: to.1, spu: to.2, arguments: Arguments::new(arguments).expect("they fit") };
        let mut buffer = payload.to_vec();
        buffer.resize(payload.len().max(reply_bytes), 0);
        let request = HostRequest {
            tag: self.tag,
            rpcs: RpcList::One(rpc),
            buffer,
            payload_bytes: payload.len() as u32,
            reply_bytes: reply_bytes as u32,
        };
        self.device.submit(self.hre, request).expect("room");
        self.run();
        let done = self.device.completion().expect("it ends");
        for app in self.device.statistics().apps {
            assert_eq!(app.ended, None, "{}", app.name);
        }
        done
    }
}
