//! The typed clients against a real device, by each transport: what they promise does not depend on the way.

use append_host::Refusal;
use append_host::wire::{Delegation, Extent};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use willow_auth::{Credentials, Entropy, Group, Policy, Secret};
use willow_device::media::ram::RamStore;
use willow_device::testing::Hole;
use willow_device::{BuiltInApp, Device, DeviceConfig, OpenError};
use willow_host::control::{CommandSet, ControlClient, NamespaceRequest};
use willow_host::hre::{BlockCommand, Hre};
use willow_host::{
    AppClient, AppendClient, AppendError, BlockClient, Controller, HreError, InProcess, KvClient, NvmeHre, Options,
    RpcCall, StoreCondition,
};
use willow_sdk::native::{BoxedInstance, NativeApp};

fn device() -> Result<Device, OpenError> {
    let config = DeviceConfig {
        spus: 4,
        namespace_bytes: 32 << 20,
        block_bytes: 4096,
        kv_namespace_bytes: 32 << 20,
        ..DeviceConfig::default()
    };
    let store = RamStore::new(4, 256 << 20).expect("memory for a store");
    let apps = [base_io_spu::native(), key_value_spu::native(), &OtherIo, append_spu::native()];
    let apps = apps.into_iter().map(BuiltInApp::Native).collect();
    Device::open(config, Box::new(store), None, apps)
}

/// Base-IO under another name: what an app that serves block namespaces in its place looks like from outside.
struct OtherIo;

impl NativeApp for OtherIo {
    fn instantiate(&self) -> BoxedInstance {
        base_io_spu::native().instantiate()
    }

    fn manifest(&self) -> &'static [u8] {
        let manifest = String::from_utf8(base_io_spu::native().manifest().to_vec()).expect("text");
        manifest.replace("name=base-io\n", "name=other-io\n").leak().as_bytes()
    }
}

fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 11) as u8).collect()
}

async fn block_is_kept(hre: &Arc<dyn Hre>) {
    let block = BlockClient::open(hre.clone(), 1).await.expect("namespace 1");
    assert_eq!((block.block_bytes(), block.bytes()), (4096, 32 << 20));
    for (index, bytes) in [4096_usize, 8192, 12288, 65536, 1 << 20, 3 << 20].into_iter().enumerate() {
        let offset = (index as u64 + 1) * 4096;
        let data = pattern(bytes, index as u32);
        assert_eq!(block.write(offset, data.clone(), index % 2 == 0).await.expect("writes"), data);
        assert_eq!(block.read(offset, bytes).await.expect("reads"), data, "{bytes} bytes");
        block.compare(offset, data.clone()).await.expect("is equal");
        let mut other = data;
        other[bytes / 2] ^= 4;
        assert!(matches!(block.compare(offset, other).await, Err(HreError::CompareFailed)));
    }
    block.verify(0, block.bytes()).await.expect("verifies");
    block.write_zeroes(4096, 16384, false).await.expect("zeroes");
    assert_eq!(block.read(4096, 16384).await.expect("reads"), vec![0; 16384]);
    block.deallocate(&[(32768, 16384), (65536, 8192)]).await.expect("deallocates");
    assert_eq!(block.read(65536, 8192).await.expect("reads"), vec![0; 8192]);
    block.flush().await.expect("flushes");
    let past = BlockCommand::Read { lba: block.blocks() };
    assert!(matches!(hre.block(1, 4096, past, vec![0; 4096]).await, Err(HreError::OutOfRange)));
    assert!(matches!(BlockClient::open(hre.clone(), 99).await, Err(HreError::Namespace { nsid: 99, .. })));
    assert!(matches!(BlockClient::open(hre.clone(), 2).await, Err(HreError::Namespace { nsid: 2, .. })));
}

/// Requests that an app has had, and the bytes that each SPU has written.
async fn counted(control: &ControlClient, app: &str) -> (u64, Vec<u64>) {
    let statistics = control.statistics().await.expect("answers");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let spus = statistics["spus"].as_array().expect("SPUs").iter().map(|spu| number(&spu["nv_write_bytes"])).collect();
    let apps = statistics["apps"].as_array().expect("apps");
    (number(&apps.iter().find(|of| of["name"] == app).expect("the app")["requests"]), spus)
}

async fn namespaces_are_bound_to_apps_and_have_stripes_of_their_own(hre: &Arc<dyn Hre>) {
    let control = ControlClient::new(hre.clone());
    for (stripe_bytes, app) in [(4096u32, "base-io"), (65_536, "other-io"), (1 << 20, "other-io"), (8192, "other-io")] {
        let request = NamespaceRequest {
            block_bytes: Some(512),
            stripe_bytes: Some(stripe_bytes),
            app: Some(app.to_owned()),
            ..NamespaceRequest::new(CommandSet::Nvm, (8 << 20) + 512)
        };
        let nsid = control.create_namespace(&request).await.expect("creates");
        let known = control.namespaces().await.expect("lists");
        let known = known.iter().find(|namespace| namespace.nsid == nsid).expect("it is listed");
        assert_eq!((known.stripe_bytes, known.app.as_str()), (stripe_bytes, app));
        let block = BlockClient::open(hre.clone(), nsid).await.expect("is there at once");
        let mut model = vec![0; block.bytes() as usize];
        // From one stripe on, over borders, the last stripe of all, and everything.
        let stripe = stripe_bytes as usize;
        let last = model.len() - 512;
        for (index, (offset, bytes)) in
            [(0, stripe), (stripe * 5 - 512, 1024), (512, 3 * stripe), (last, 512), (last - stripe, stripe)]
                .into_iter()
                .enumerate()
        {
            let (requests, before) = counted(&control, app).await;
            let data = pattern(bytes, index as u32);
            block.write(offset as u64, data.clone(), false).await.expect("writes");
            model[offset..offset + bytes].copy_from_slice(&data);
            let (later, after) = counted(&control, app).await;
            // What lies where is for the promise to say, not for the code under test.
            let mut expected = vec![0; 4];
            (offset..offset + bytes).for_each(|at| expected[at / stripe % 4] += 1);
            let written: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
            assert_eq!(written, expected, "{stripe_bytes} {offset} {bytes}");
            assert_eq!((later - requests) as usize, expected.iter().filter(|bytes| **bytes > 0).count());
        }
        assert_eq!(block.read(0, model.len()).await.expect("reads"), model, "stripes of {stripe_bytes}");
        block.flush().await.expect("flushes");
        block.write_zeroes(0, 4 * u64::from(stripe_bytes), false).await.expect("zeroes");
        model[..4 * stripe].fill(0);
        assert_eq!(block.read(0, model.len()).await.expect("reads"), model);
        control.delete_namespace(nsid).await.expect("deletes");
    }
    let new = |csi| NamespaceRequest::new(csi, 1 << 20);
    for (request, why) in [
        (NamespaceRequest { stripe_bytes: Some(2048), ..new(CommandSet::Nvm) }, "a stripe of 2048 bytes"),
        (
            NamespaceRequest { stripe_bytes: Some(12_288), ..new(CommandSet::Nvm) },
            "a power of two from 4096 to 1048576",
        ),
        (
            NamespaceRequest { stripe_bytes: Some(2 << 20), ..new(CommandSet::Nvm) },
            "a power of two from 4096 to 1048576",
        ),
        (NamespaceRequest { stripe_bytes: Some(8192), ..new(CommandSet::Kv) }, "has no stripes"),
        (NamespaceRequest { app: Some("nobody".to_owned()), ..new(CommandSet::Nvm) }, "app nobody"),
    ] {
        let error = control.create_namespace(&request).await.expect_err("is refused");
        assert!(matches!(&error, HreError::Control { text, .. } if text.contains(why)), "{error}");
    }
}

async fn pairs_are_kept(hre: &Arc<dyn Hre>) {
    let kv = KvClient::open_only(hre.clone()).await.expect("the key-value namespace");
    assert!(kv.value_bytes_max() >= 1 << 20);
    for (index, bytes) in [0_usize, 1, 511, 4096, 70_000, 1 << 20].into_iter().enumerate() {
        let key = format!("key {index}");
        kv.store(key.as_bytes(), pattern(bytes, 7), StoreCondition::Always).await.expect("stores");
        assert_eq!(kv.retrieve(key.as_bytes()).await.expect("retrieves"), Some(pattern(bytes, 7)), "{bytes} bytes");
        assert_eq!(kv.retrieve_with(key.as_bytes(), 1).await.expect("asks twice"), Some(pattern(bytes, 7)));
    }
    let must = |condition| kv.store(b"key 0", vec![1], condition);
    assert!(matches!(must(StoreCondition::MustNotExist).await, Err(HreError::KeyExists)));
    must(StoreCondition::MustExist).await.expect("overwrites");
    assert!(matches!(kv.store(b"new", vec![1], StoreCondition::MustExist).await, Err(HreError::KeyNotFound)));
    assert!(kv.exists(b"key 1").await.expect("answers"));
    assert!(kv.delete(b"key 1").await.expect("deletes"));
    assert!(!kv.delete(b"key 1").await.expect("answers"));
    assert!(!kv.exists(b"key 1").await.expect("answers"));
    assert_eq!(kv.retrieve(b"key 1").await.expect("answers"), None);
    for bad in [&b""[..], &[0; 17]] {
        assert!(matches!(kv.store(bad, vec![], StoreCondition::Always).await, Err(HreError::KeySize)));
    }
    // More than one page of keys.
    for index in 0..5000_u32 {
        kv.store(&index.to_be_bytes(), vec![], StoreCondition::Always).await.expect("stores");
    }
    let mut seen = std::collections::BTreeSet::new();
    kv.list(|key| seen.insert(key.to_vec())).await.expect("lists, each key once");
    assert_eq!(seen.len(), 5005);
    let mut few = 0;
    kv.list(|_| {
        few += 1;
        few < 3
    })
    .await
    .expect("stops");
    assert_eq!(few, 3);
    kv.flush().await.expect("flushes");
}

async fn the_device_is_controlled(hre: &Arc<dyn Hre>) {
    let control = ControlClient::new(hre.clone());
    let apps = control.apps().await.expect("lists apps");
    assert_eq!(
        apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(),
        ["base-io", "key-value", "other-io", "append"]
    );
    let number = control.find_app("key-value").await.expect("finds");
    assert_eq!(number, apps[1].number);
    assert_eq!(AppClient::find(hre.clone(), "base-io").await.expect("finds").number(), apps[0].number);
    let error = control.find_app("nothing").await.expect_err("there is none");
    assert!(matches!(error, HreError::Control { status: 3, .. }), "{error}");
    let error = control.install(b"no module".to_vec()).await.expect_err("is refused");
    assert!(matches!(&error, HreError::Control { text, .. } if !text.is_empty()), "{error}");
    let request = NamespaceRequest::new(CommandSet::Kv, 16 << 20);
    let nsid = control.create_namespace(&request).await.expect("creates");
    assert!(control.namespaces().await.expect("lists").iter().any(|namespace| namespace.nsid == nsid));
    let kv = KvClient::open(hre.clone(), nsid).await.expect("is there at once");
    kv.store(b"a", vec![1, 2, 3], StoreCondition::Always).await.expect("stores");
    assert!(matches!(KvClient::open_only(hre.clone()).await, Err(HreError::Argument(_))), "two to choose from");
    control.delete_namespace(nsid).await.expect("deletes");
    assert!(control.delete_namespace(nsid).await.is_err());
    assert!(control.statistics().await.expect("answers").is_object());
    assert_eq!(control.log("base-io").await.expect("reads a log"), "");
    assert!(control.log("nothing").await.is_err());
    assert!(matches!(hre.rpc(RpcCall { app: 999, handler: 1, ..RpcCall::default() }).await, Err(HreError::NoApp(999))));
    let call = RpcCall { app: number, handler: 200, spu: Some(0), ..RpcCall::default() };
    assert!(matches!(hre.rpc(call).await, Err(HreError::NoHandler { handler: 200, .. })));
    let call = RpcCall { app: number, handler: 1, spu: Some(77), ..RpcCall::default() };
    assert!(matches!(hre.rpc(call).await, Err(HreError::NoSpu(Some(77)))));
    assert_eq!(hre.receive_upcall(Duration::from_millis(5)).await.expect("waits"), None);
    assert!(hre.answer_upcall(12345, 0, 0).await.is_err());
}

async fn all(hre: Arc<dyn Hre>) {
    block_is_kept(&hre).await;
    pairs_are_kept(&hre).await;
    namespaces_are_bound_to_apps_and_have_stripes_of_their_own(&hre).await;
    the_device_is_controlled(&hre).await;
    records_are_appended(&hre).await;
    let kv = KvClient::open_only(hre.clone()).await.expect("the key-value namespace").nsid();
    willow_host::testing::items::items_are_kept(hre, kv, 4).await;
}

/// A file whose length the drive has, as an agent sees it: who appends beside others gets places that follow each other, and what is there is what was
/// appended.
async fn records_are_appended(hre: &Arc<dyn Hre>) {
    const FILE: u64 = 77;
    /// Byte of the file at which its extents begin, and where it ends.
    const FIRST: u64 = 5 << 32;
    const LENGTH: u64 = FIRST + 100;
    let extents = [Extent { start: 2 << 20, bytes: 40_960 }, Extent { start: 1 << 20, bytes: 4096 }];
    let block = BlockClient::open(hre.clone(), 1).await.expect("namespace 1");
    let known = ControlClient::new(hre.clone()).namespaces().await.expect("lists");
    let namespace = known.iter().find(|namespace| namespace.nsid == 1).expect("it is listed");
    let client = AppendClient::find(hre.clone()).await.expect("the app");
    let refused = |done: Result<u64, AppendError>| match done.expect_err("is refused") {
        AppendError::Refused(refusal) => refusal,
        other => panic!("{other}"),
    };
    assert_eq!(refused(client.append(FILE, 0, b"x").await), Refusal::NotFound);
    let stripe_bytes = namespace.stripe_bytes;
    let delegation =
        Delegation { file: FILE, length: LENGTH, first: FIRST, base: namespace.base, stripe_bytes, extents: 0 };
    client.delegate(delegation, &extents[..1]).await.expect("is delegated");
    let records: Vec<Vec<u8>> = (0..12).map(|seed| pattern(1 + 500 * seed as usize, seed)).collect();
    let (mut model, mut end) = (vec![0; 40_960 + 4096], LENGTH);
    for three in records.chunks(3) {
        let append = |index: usize| client.append(FILE, end, &three[index]);
        let (a, b, c) = tokio::join!(append(0), append(1), append(2));
        let mut placed: Vec<(u64, &Vec<u8>)> = Vec::new();
        placed.extend([a, b, c].into_iter().zip(three).map(|(offset, record)| (offset.expect("appends"), record)));
        placed.sort_by_key(|(offset, _)| *offset);
        for (offset, record) in placed {
            assert_eq!(offset, end, "one after another");
            let at = (offset - FIRST) as usize;
            model[at..at + record.len()].copy_from_slice(record);
            end += record.len() as u64;
        }
    }
    assert_eq!(client.length(FILE).await.map(|entry| (entry.length, entry.capacity)).unwrap(), (end, FIRST + 40_960));
    // It spans what is left and the extent that is added.
    let long = pattern((FIRST + 40_960 - end) as usize + 2000, 99);
    assert_eq!(refused(client.append(FILE, end, &long).await), Refusal::Insufficient);
    client.extend(FILE, &extents[1..]).await.expect("is extended");
    assert_eq!(client.append(FILE, end, &long).await.expect("appends"), end);
    let at = (end - FIRST) as usize;
    model[at..at + long.len()].copy_from_slice(&long);
    end += long.len() as u64;
    assert_eq!(refused(client.append(FILE, end, &[]).await), Refusal::Malformed);
    let listed = client.list().await.expect("lists");
    assert_eq!(listed.iter().map(|entry| (entry.file, entry.is_suspended)).collect::<Vec<_>>(), [(FILE, false)]);
    assert_eq!(refused(client.end(FILE).await.map(|()| 0)), Refusal::Appending);
    assert_eq!(client.suspend(FILE).await.map(|entry| (entry.length, entry.is_suspended)).unwrap(), (end, true));
    assert_eq!(refused(client.append(FILE, end, b"x").await), Refusal::Suspended);
    client.end(FILE).await.expect("ends");
    assert!(client.list().await.expect("lists").is_empty());
    let mut found = Vec::new();
    for extent in extents {
        found.extend(block.read(extent.start, extent.bytes as usize).await.expect("reads"));
    }
    // What the file had before is not the app's affair, nor what its blocks had behind its end.
    let own = 100..(end - FIRST) as usize;
    assert_eq!(found[own.clone()], model[own]);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn in_process() {
    let device = InProcess::start(device).expect("opens");
    runtime().block_on(async {
        let hre = device.endpoint(None).await.expect("an endpoint");
        all(Arc::new(hre)).await;
        // A user's endpoint may not control the device.
        let user: Arc<dyn Hre> = Arc::new(device.endpoint(Some(5)).await.expect("an endpoint"));
        assert!(matches!(ControlClient::new(user).namespaces().await, Err(HreError::NotPermitted)));
    });
    drop(device);
    let refused = InProcess::start(|| Err(OpenError("no media".to_owned())));
    assert_eq!(refused.err().map(|error| error.to_string()).as_deref(), Some("no media"));
}

/// A module of which the compiler panics is refused; the device goes on, and its jobs too.
async fn a_compilers_panic_is_a_refusal(hre: Arc<dyn Hre>) {
    let control = &ControlClient::new(hre);
    // The limit is for jobs that are never answered: it is far above what an answer takes.
    let install = |module: &'static [u8]| async move {
        tokio::time::timeout(Duration::from_secs(180), control.install(module.to_vec())).await.expect("it is answered")
    };
    for _ in 0..3 {
        let refused = install(b"this one panics").await.expect_err("it is refused").to_string();
        assert!(refused.contains("the compiler panicked"), "{refused}");
        let other = install(b"this is none").await.expect_err("it is refused").to_string();
        assert!(!other.contains("panicked"), "{other}");
    }
    assert!(!control.namespaces().await.expect("it goes on").is_empty());
}

fn planted() -> Result<Device, OpenError> {
    planted_with(Hole::CompilerPanics)
}

fn planted_with(hole: Hole) -> Result<Device, OpenError> {
    let mut device = device()?;
    willow_device::testing::plant(&mut device, hole);
    Ok(device)
}

#[test]
fn a_job_that_panics_is_answered_in_process() {
    let device = InProcess::start(planted).expect("opens");
    runtime().block_on(async {
        let hre = device.endpoint(None).await.expect("an endpoint");
        a_compilers_panic_is_a_refusal(Arc::new(hre)).await;
    });
}

/// A device behind a server of its own: how to connect, how to stop it, and its thread.
fn served(
    make: fn() -> Result<Device, OpenError>,
) -> (Options, willow_tcp::ServerHandle, JoinHandle<Result<(), willow_tcp::ServeError>>) {
    served_with(make, |_| {})
}

/// The same with other settings.
fn served_with(
    make: fn() -> Result<Device, OpenError>,
    configure: impl FnOnce(&mut willow_tcp::ServerConfig) + Send + 'static,
) -> (Options, willow_tcp::ServerHandle, JoinHandle<Result<(), willow_tcp::ServeError>>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let listen: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let mut config =
            willow_tcp::ServerConfig { listen: vec![listen.into()], ..willow_tcp::ServerConfig::default() };
        configure(&mut config);
        let mut server = willow_tcp::Server::bind(config, make().expect("opens")).expect("binds");
        sender.send((server.local_addr().expect("it listens"), server.handle())).expect("somebody waits");
        server.run()
    });
    let (address, handle) = receiver.recv().expect("starts");
    (Options::new(address, willow_nvme::config::NQN_DEFAULT), handle, thread)
}

#[test]
fn a_job_that_panics_is_answered_over_nvme_tcp() {
    let (options, handle, thread) = served(planted);
    runtime().block_on(async {
        let controller = Controller::connect(options).await.expect("connects");
        let hre = NvmeHre::new(controller.clone(), 1).await.expect("an endpoint");
        a_compilers_panic_is_a_refusal(Arc::new(hre)).await;
        controller.shut_down().await.expect("shuts down");
    });
    handle.stop();
    thread.join().expect("no panic").expect("ends well");
}

#[test]
fn hosts_prove_themselves_while_a_module_is_compiled() {
    let secret = || Secret::generate(None, &Entropy::system()).expect("a secret");
    let host = |number: u32| format!("nqn.2014-08.org.nvmexpress:uuid:{number:08}-2222-3333-4444-555555555555");
    let hosts: Vec<Credentials> = (1..=3)
        .map(|number| Credentials { host_nqn: host(number), secret: secret(), controller_secret: Some(secret()) })
        .collect();
    let mut known = willow_nvme::HostAuthentication::new(hosts.clone()).expect("keys of hosts");
    // With a group, so that there is something to compute.
    known.policy = Policy { groups: vec![Group::Ffdhe2048], ..Policy::default() };
    let (options, handle, thread) =
        served_with(|| planted_with(Hole::CompilerWaits), move |config| config.subsystem.authentication = Some(known));
    let connect = |host: &Credentials| {
        let options = options.clone().with_credentials(Arc::new(host.clone()));
        Controller::connect(Options { queues: 2, ..options })
    };
    runtime().block_on(async {
        let first = connect(&hosts[0]).await.expect("connects");
        let hre: Arc<dyn Hre> = Arc::new(NvmeHre::new(first.clone(), 1).await.expect("an endpoint"));
        let control = ControlClient::new(hre);
        let mut install = std::pin::pin!(control.install(b"this one waits".to_vec()));
        // It is under way from when it was asked for first; others come meanwhile.
        for host in &hosts[1..] {
            let connected = tokio::time::timeout(Duration::from_secs(180), async {
                tokio::select! {
                    biased;
                    ended = &mut install => panic!("nothing lets it end: {ended:?}"),
                    connected = connect(host) => connected,
                }
            });
            let controller = connected.await.expect("whoever proves himself waits for no compiler").expect("connects");
            controller.shut_down().await.expect("shuts down");
        }
        willow_device::testing::release_compilers();
        let refused = install.await.expect_err("it is no module").to_string();
        assert!(refused.contains("not a WebAssembly module"), "{refused}");
        first.shut_down().await.expect("shuts down");
    });
    handle.stop();
    thread.join().expect("no panic").expect("ends well");
}

#[test]
fn over_nvme_tcp() {
    for digests in [false, true] {
        let (mut options, handle, thread) = served(device);
        (options.header_digest, options.data_digest, options.queues) = (digests, digests, 2);
        runtime().block_on(async {
            let found = willow_host::nvme_tcp::discover(&options).await.expect("discovers");
            assert!(found.iter().any(|entry| entry.subsystem_nqn == options.subsystem_nqn));
            let controller = Controller::connect(options).await.expect("connects");
            let hre = NvmeHre::new(controller.clone(), 1).await.expect("an endpoint");
            all(Arc::new(hre)).await;
            // The namespace that came and went was told.
            assert_ne!(*controller.namespaces_changed().borrow(), 0);
            controller.shut_down().await.expect("shuts down");
        });
        handle.stop();
        thread.join().expect("no panic").expect("ends well");
    }
}

#[test]
fn both_sides_of_the_control_service_have_the_same_numbers() {
    use willow_device::control as device;
    use willow_wire::control as wire;
    let pairs = [
        (u32::from(wire::CONTROL_APP), u32::from(device::CONTROL_APP)),
        (u32::from(wire::INSTALL), u32::from(device::INSTALL)),
        (u32::from(wire::REMOVE), u32::from(device::REMOVE)),
        (u32::from(wire::LIST_APPS), u32::from(device::LIST_APPS)),
        (u32::from(wire::LOG), u32::from(device::LOG)),
        (u32::from(wire::READ_LOG), u32::from(device::READ_LOG)),
        (u32::from(wire::RESET_APP), u32::from(device::RESET_APP)),
        (u32::from(wire::READ_CORE), u32::from(device::READ_CORE)),
        (u32::from(wire::BEGIN_PROFILE), u32::from(device::BEGIN_PROFILE)),
        (u32::from(wire::READ_PROFILE), u32::from(device::READ_PROFILE)),
        (u32::from(wire::END_PROFILE), u32::from(device::END_PROFILE)),
        (u32::from(wire::BEGIN_DEBUG), u32::from(device::BEGIN_DEBUG)),
        (u32::from(wire::END_DEBUG), u32::from(device::END_DEBUG)),
        (u32::from(wire::DEBUG_STATE), u32::from(device::DEBUG_STATE)),
        (u32::from(wire::DEBUG_QUERY), u32::from(device::DEBUG_QUERY)),
        (u32::from(wire::DEBUG_TELL), u32::from(device::DEBUG_TELL)),
        (u32::from(wire::CREATE_NAMESPACE), u32::from(device::CREATE_NAMESPACE)),
        (u32::from(wire::DELETE_NAMESPACE), u32::from(device::DELETE_NAMESPACE)),
        (u32::from(wire::LIST_NAMESPACES), u32::from(device::LIST_NAMESPACES)),
        (u32::from(wire::STATISTICS), u32::from(device::STATISTICS)),
        (u32::from(wire::ANSWER_UPCALL), u32::from(device::ANSWER_UPCALL)),
        (u32::from(wire::ERROR_TEXT), u32::from(device::ERROR_TEXT)),
        (u32::from(wire::FIND_APP), u32::from(device::FIND_APP)),
        (u32::from(wire::GRANT), u32::from(device::GRANT)),
        (u32::from(wire::REVOKE), u32::from(device::REVOKE)),
        (u32::from(wire::LIST_PERMISSIONS), u32::from(device::LIST_PERMISSIONS)),
        (u32::from(wire::OPEN_PROCESS), u32::from(device::OPEN_PROCESS)),
        (u32::from(wire::CLOSE_PROCESS), u32::from(device::CLOSE_PROCESS)),
        (u32::from(wire::REGISTER_AGENT), u32::from(device::REGISTER_AGENT)),
        (u32::from(wire::CHANGE_INTERCALLS), u32::from(device::CHANGE_INTERCALLS)),
        (u32::from(wire::LIST_INTERCALLS), u32::from(device::LIST_INTERCALLS)),
        (u32::from(wire::LIST_PROCESSES), u32::from(device::LIST_PROCESSES)),
        (u32::from(wire::SET_WEIGHT), u32::from(device::SET_WEIGHT)),
        (u32::from(wire::STRIPES), u32::from(device::STRIPES)),
        (u32::from(wire::LIST_WEIGHTS), u32::from(device::LIST_WEIGHTS)),
        (u32::from(wire::ATTACH), u32::from(device::ATTACH)),
        (u32::from(wire::RESIZE_NAMESPACE), u32::from(device::RESIZE_NAMESPACE)),
        (u32::from(wire::FORMAT_NAMESPACE), u32::from(device::FORMAT_NAMESPACE)),
        (u32::from(wire::MARK_UNCORRECTABLE), u32::from(device::MARK_UNCORRECTABLE)),
        (u32::from(wire::LIST_ATTACHMENTS), u32::from(device::LIST_ATTACHMENTS)),
        (u32::from(wire::SUBSCRIBE), u32::from(device::SUBSCRIBE)),
        (u32::from(wire::UNSUBSCRIBE), u32::from(device::UNSUBSCRIBE)),
        (u32::from(wire::FLASH_MAP), u32::from(device::FLASH_MAP)),
        (u32::from(wire::UPCALL_PERMISSION_MISS), u32::from(device::UPCALL_PERMISSION_MISS)),
        (u32::from(wire::UPCALL_APP_ENDED), u32::from(device::UPCALL_APP_ENDED)),
        (wire::ControlStatus::Busy as u32, device::ControlStatus::Busy as u32),
        (wire::ControlStatus::ModuleRefused as u32, device::ControlStatus::ModuleRefused as u32),
        (wire::ControlStatus::NoRoom as u32, device::ControlStatus::NoRoom as u32),
    ];
    for (ours, theirs) in pairs {
        assert_eq!(ours, theirs);
    }
}
