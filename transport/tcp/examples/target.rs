//! Serves a device in memory without the command line, for profiles and comparisons: `target [native|wasm] [ADDRESS] [SPUS]`.

use willow_apps::BUNDLED_APPS;
use willow_device::media::ram::RamStore;
use willow_device::{BuiltInApp, Device, DeviceConfig};
use willow_tcp::{Server, ServerConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let native = arguments.next().is_some_and(|kind| kind == "native");
    let address: std::net::SocketAddr = arguments.next().unwrap_or_else(|| "127.0.0.1:4420".into()).parse()?;
    let spus: u16 = arguments.next().map_or(Ok(8), |count| count.parse())?;
    let config = DeviceConfig { spus, namespace_bytes: 256 << 20, ..DeviceConfig::default() };
    let store = RamStore::new(usize::from(spus), 2 << 30)?;
    let apps = BUNDLED_APPS
        .iter()
        .map(|app| if native { BuiltInApp::Native((app.native)()) } else { BuiltInApp::Wasm(app.wasm) })
        .collect();
    let device = Device::open(config, Box::new(store), None, apps)?;
    let mut server = Server::bind(ServerConfig { listen: vec![address.into()], ..ServerConfig::default() }, device)?;
    println!("ready {}", server.local_addrs()[0].address);
    server.run()?;
    Ok(())
}
