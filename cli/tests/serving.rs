//! `willow serve` itself: its ready line, its configuration, its end, and what survives it.

mod support;

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use support::{Folder, Public, Served, fails, failure};
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_sim::random::Random;

#[test]
fn the_ready_line_names_subsystem_and_address() {
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0"]);
    let words: Vec<&str> = device.ready.trim_end().split(' ').collect();
    assert_eq!(words.len(), 4, "{:?}", device.ready);
    assert_eq!(words[0], "ready");
    assert!(words[1].starts_with("nqn=nqn."));
    assert!(words[2].strip_prefix("listen=").unwrap().parse::<std::net::SocketAddr>().unwrap().port() != 0);
    assert_eq!(words[3], "socket=-");
    let other = Served::start(&["--ram", "--size", "64M", "--nqn", "nqn.2025-01.org.example:named"]);
    assert!(other.ready.contains("nqn=nqn.2025-01.org.example:named "));
    assert_ne!(device.ready.split(' ').nth(1), other.ready.split(' ').nth(1));
    other.end();
    device.end();
}

#[test]
fn commands_go_by_the_socket_as_well() {
    let folder = Folder::new();
    // The folder of the tests may be deep, and a socket's path is short.
    let path = std::env::temp_dir().join(format!("willow-cli-{}.sock", std::process::id())).display().to_string();
    let mut device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M", "--socket", &path]);
    assert!(device.ready.trim_end().ends_with(&format!(" socket={path}")), "{}", device.ready);
    device.address = path.clone();
    assert!(device.run_with(&["kv", "put", "key", "-"], b"through memory").status.success());
    assert_eq!(device.ok(&["kv", "get", "key"]), "through memory");
    assert_eq!(device.ok(&["ns", "create", "--csi", "nvm", "--size", "1M"]), "nsid 3\n");
    let app = folder.file("app.wasm", b"\0asm");
    assert!(device.fails(&["app", "install", &app]).contains("not installed"));
    assert!(device.ok(&["app", "list"]).contains("base-io"));
    assert!(device.ok(&["stat", "--json"]).contains("shared_memory"));
    let bench = ["bench", "io", "--range", "1M", "--seconds", "0.2", "--warm-up", "0", "--depths", "1,16"];
    assert!(device.ok(&bench).contains("shared memory"));
    device.child.kill().unwrap();
    device.child.wait().unwrap();
    assert!(device.fails(&["kv", "get", "key"]).contains("no device answers"));
    // The file that the killed one left is taken over.
    let again = Served::start(&["--ram", "--size", "64M", "--socket", &path]);
    again.end();
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let folder = Folder::new();
    let media = folder.path("media");
    let arguments = ["--media", media.as_str(), "--size", "64M", "--kv-size", "64M", "--spus", "3"];
    let mut device = Served::start(&arguments);
    let nqn = device.ready.split(' ').nth(1).unwrap().to_owned();
    assert!(device.run_with(&["kv", "put", "kept", "-"], b"value").status.success());
    assert_eq!(device.ok(&["ns", "create", "--csi", "kv", "--size", "64M"]), "nsid 3\n");
    device.child.kill().unwrap();
    device.child.wait().unwrap();

    // The folder knows its number of SPUs.
    let device = Served::start(&arguments[..6]);
    assert_eq!(device.ready.split(' ').nth(1).unwrap(), nqn, "the device is the same one");
    assert_eq!(device.ok(&["kv", "get", "kept", "--nsid", "2"]), "value");
    let listed: serde_json::Value = serde_json::from_str(&device.ok(&["ns", "list", "--json"])).unwrap();
    assert_eq!(listed["namespaces"].as_array().unwrap().len(), 3);
    let error = fails(&["serve", "--media", &media, "--listen", "127.0.0.1:0", "--log", "error"]);
    assert!(error.contains("in use"), "{error}");
    device.end();
    let error = fails(&["serve", "--media", &media, "--listen", "127.0.0.1:0", "--spus", "4", "--log", "error"]);
    assert!(error.contains("3 SPUs"), "{error}");
}

#[test]
fn a_configuration_file_is_as_good_as_flags() {
    let folder = Folder::new();
    let media = folder.path("media");
    let text =
        format!("media = {media:?}\nsize = \"64M\"\nkv_size = 0\nspus = 2\nblock_bytes = 512\nlog = \"error\"\n");
    let file = folder.file("willow.toml", text.as_bytes());
    let device = Served::start(&["--config", &file, "--spus", "5"]);
    let listed: serde_json::Value = serde_json::from_str(&device.ok(&["ns", "list", "--json"])).unwrap();
    assert_eq!(listed["namespaces"][0]["block_bytes"], 512);
    assert_eq!(listed["namespaces"].as_array().unwrap().len(), 1);
    let statistics: serde_json::Value = serde_json::from_str(&device.ok(&["stat", "--json"])).unwrap();
    assert_eq!(statistics["spus"].as_array().unwrap().len(), 5, "flags go before the file");
    device.end();
}

#[test]
fn bad_configurations_are_refused_with_the_reason() {
    let folder = Folder::new();
    let unknown = folder.file("unknown.toml", b"spus = 2\ncolour = 1\n");
    let foreign = Folder::new();
    let letter = foreign.file("letter", b"dear");
    let foreign = foreign.0.display().to_string();
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = busy.local_addr().unwrap().to_string();
    for (arguments, expected) in [
        (vec!["--config", unknown.as_str()], "line 2: unknown field `colour`"),
        (vec!["--config", "/does/not/exist"], "cannot read configuration"),
        (vec!["--preset", "slow"], "there is no preset"),
        (vec!["--clock", "real"], "--preset bee3"),
        (vec!["--socket", letter.as_str(), "--ram", "--listen", "127.0.0.1:0", "--log", "error"], "no socket"),
        (vec!["--socket", "./s", "--endpoints", "0"], "endpoints_max"),
        (vec!["--spus", "65"], "1 to 64"),
        (vec!["--size", "much"], "is no size"),
        (vec!["--block-bytes", "1024"], "512 or 4096"),
        (vec!["--log", "=,="], "is no log filter"),
        (vec!["--native", "other"], "base-io"),
        (vec!["--media", foreign.as_str()], "letter"),
        (vec!["--ram", "--media", "x"], "--ram"),
        (vec!["--capacity", "1K"], "--capacity"),
        (vec!["--listen", taken.as_str(), "--log", "error"], "cannot listen"),
        (vec!["--metrics", taken.as_str(), "--listen", "127.0.0.1:0", "--log", "error"], "--metrics"),
    ] {
        let mut all = vec!["serve"];
        if !arguments.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        if !arguments.contains(&"--log") {
            all.extend(["--log", "error"]);
        }
        all.extend(&arguments);
        let error = fails(&all);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn compiled_code_is_kept_where_it_was_asked_for() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = Folder::new();
    let kept = folder.path("kept");
    let start = |more: &[&str]| {
        Served::start(&[&["--ram", "--size", "4M", "--kv-size", "0"], more].concat()).end();
    };
    let files = || -> std::collections::BTreeSet<u64> {
        let entries = std::fs::read_dir(&kept).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().ino()).collect()
    };
    start(&["--module-cache", &kept]);
    let first = files();
    assert!(first.len() > 5, "{first:?}");
    start(&["--module-cache", &kept]);
    assert_eq!(files(), first, "nothing is compiled and written anew");
    start(&["--module-cache", "none"]);
    assert!(!std::path::Path::new("none").exists());
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = fails(&["serve", "--listen", "127.0.0.1:0", "--ram", "--module-cache", &kept]);
    assert!(error.contains("--module-cache") && error.contains("other users"), "{error}");
}

#[test]
fn prometheus_can_scrape() {
    // A free port, taken and let go again: `--metrics` prints no line of its own to read one from.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "64M", "--metrics", &address]);
    assert!(device.run_with(&["kv", "put", "a", "-"], b"value").status.success());
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for line in [
        "willow_namespace_commands_total{nsid=\"2\",kind=\"write\"} 1",
        "willow_app_requests_total{app=\"key-value\"}",
        "willow_spu_instructions_total{spu=\"0\"}",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    // The dashboard asks for nothing that is not there.
    let dashboard = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/grafana.json")).unwrap();
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let asked = dashboard
        .match_indices("willow_")
        .map(|(at, _)| dashboard[at..].split(|letter| !is_of_name(letter)).next().unwrap());
    let missing: Vec<&str> = asked.filter(|name| !text.contains(&format!("\n{name}"))).collect();
    assert!(missing.is_empty() && dashboard.contains("willow_used_bytes"), "{missing:?}");
    device.end();
}

/// The subsystem's name.
fn nqn(device: &Served) -> &str {
    device.ready.split_whitespace().find_map(|word| word.strip_prefix("nqn=")).unwrap()
}

/// Random reads and writes of namespace 1, of a part of a block's stripe up to many stripes, against a model; all of it is read in the end.
fn blocks_are_as_in(device: &Served, model: &mut [u8], seed: u64, writes: bool) {
    const BLOCK: usize = 4096;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options::new(device.address.parse().unwrap(), nqn(device));
        let controller = Controller::connect(options).await.unwrap();
        let hre = Arc::new(NvmeHre::new(controller.clone(), 1).await.unwrap());
        let client = BlockClient::open(hre, 1).await.unwrap();
        assert_eq!(client.block_bytes() as usize, BLOCK);
        let mut random = Random(seed);
        let blocks = model.len() / BLOCK;
        for _ in 0..if writes { 300 } else { 0 } {
            let most = [1, 2, 40][random.below(3) as usize];
            let count = 1 + random.below(most) as usize;
            let at = random.below((blocks - count + 1) as u64) as usize * BLOCK;
            let range = at..at + count * BLOCK;
            if random.below(3) > 0 {
                let data: Vec<u8> = (0..count * BLOCK).map(|_| random.below(256) as u8).collect();
                model[range].copy_from_slice(&data);
                client.write(at as u64, data, random.below(4) == 0).await.unwrap();
            } else {
                assert!(client.read(at as u64, count * BLOCK).await.unwrap() == model[range], "{count} blocks at {at}");
            }
        }
        for (piece, wanted) in model.chunks(64 * BLOCK).enumerate() {
            let found = client.read((piece * 64 * BLOCK) as u64, wanted.len()).await.unwrap();
            assert!(found == wanted, "the 64 blocks from {} on", piece * 64);
        }
        controller.shut_down().await.unwrap();
    });
}

/// The same operations on the same folder, by the sandboxed app and by the native one in turn: each reads what the other wrote.
#[test]
fn a_native_app_serves_the_same_blocks() {
    let folder = Folder::new();
    let media = folder.path("media");
    let arguments = ["--media", media.as_str(), "--size", "4M", "--kv-size", "0", "--spus", "3"];
    let native = [&arguments[..], &["--native", "base-io"]].concat();
    let mut model = vec![0; 4 << 20];
    for (seed, arguments) in [&arguments[..], &native, &arguments].into_iter().enumerate() {
        let device = Served::start(arguments);
        blocks_are_as_in(&device, &mut model, 0, false);
        blocks_are_as_in(&device, &mut model, seed as u64 + 1, true);
        device.end();
    }
    let device = Served::start(&["--ram", "--size", "64M", "--kv-size", "0", "--native", "base-io"]);
    let arguments = ["bench", "io", "--range", "1M", "--seconds", "0.2", "--warm-up", "0", "--depths", "4"];
    assert!(device.ok(&arguments).contains("random write 4 KiB"));
    let document: serde_json::Value = serde_json::from_str(&device.ok(&["stat", "--json"])).unwrap();
    assert_eq!(document["apps"][0]["instructions"], 0, "native code is not metered");
    assert!(document["apps"][0]["requests"].as_u64().unwrap() > 0);
    device.end();
}

#[test]
fn the_demo_holds_in_small() {
    let folder = Folder::new();
    let data = folder.path("demo");
    let arguments = ["demo", "--data", &data, "--writes", "2000", "--range", "4M", "--pairs", "2000"];
    let output = support::willow().args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for part in ["SIGKILL", "everything acknowledged is there", "all of it held", "instructions"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!std::path::Path::new(&data).exists(), "the data folder is removed");
    let occupied = folder.path(".");
    assert!(fails(&["demo", "--data", &occupied]).contains("exists already"));
}

#[test]
fn the_real_clock_holds_answers_back_and_says_how_punctual_it_is() {
    let arguments = ["--ram", "--size", "64M", "--kv-size", "0", "--clock", "real", "--preset", "null-nvme"];
    let device = Served::start(&arguments);
    device.ok(&["bench", "io", "--range", "1M", "--seconds", "0.2", "--warm-up", "0", "--depths", "1", "--nsid", "1"]);
    let statistics: serde_json::Value = serde_json::from_str(&device.ok(&["stat", "--json"])).unwrap();
    let reads = &statistics["transport"]["namespaces"][0];
    assert!(reads["read_commands"].as_u64().unwrap() > 0);
    // The published device takes 35 us; the histogram's buckets are a quarter of their value wide, the clock of a batch coarser.
    assert!(reads["read_latency"]["p50_ns"].as_u64().unwrap() > 30_000, "{reads}");
    assert!(statistics["clock"]["lateness"]["count"].as_u64().unwrap() > 0);
    assert!(statistics["model"]["resources"].as_array().unwrap().len() > 5);
    let text = device.ok(&["stat"]);
    assert!(text.contains("real clock: ") && text.contains("SPU 0 DMA"), "{text}");
    device.end();
    assert!(fails(&["serve", "--clock", "real"]).contains("--preset bee3"));
}

#[test]
fn the_real_clock_makes_flash_feel_as_flash_and_keeps_it() {
    let folder = Folder::new();
    let media = folder.path("flash");
    let arguments = ["--media", &media, "--preset", "slc", "--ftl", "page", "--clock", "real", "--size", "64M"];
    let device = Served::start(&arguments);
    let io = ["bench", "io", "--range", "1M", "--seconds", "0.3", "--warm-up", "0", "--depths", "1", "--nsid", "1"];
    device.ok(&[&io[..], &["--mix", "0"]].concat());
    device.ok(&[&io[..], &["--mix", "100"]].concat());
    let statistics: serde_json::Value = serde_json::from_str(&device.ok(&["stat", "--json"])).unwrap();
    let served = &statistics["transport"]["namespaces"][0];
    // A page of 4 KiB takes 25 us in the array and 100 us on the bus; a write reads the rest of its unit, and takes four pages there and 200 us.
    assert!(served["read_latency"]["p50_ns"].as_u64().unwrap() > 120_000, "{served}");
    assert!(served["write_latency"]["p50_ns"].as_u64().unwrap() > 550_000, "{served}");
    let resources = statistics["model"]["resources"].as_array().unwrap();
    let die = resources.iter().find(|resource| resource["name"] == "SPU 0 flash die 0").unwrap();
    assert!(die["operations"].as_u64().unwrap() > 0, "{die}");
    assert_eq!(statistics["flash"]["health"]["spare_percent"], 100);
    assert!(device.ok(&["stat"]).contains("flash: sound; FTL page, 100 % of the spare blocks left"));
    device.end();
    // What it wrote is there, under any clock.
    let device = Served::start(&["--media", &media, "--preset", "slc"]);
    assert!(device.ok(&["ns", "list"]).contains("64 MiB"));
    device.ok(&[&io[..], &["--mix", "100"]].concat());
    device.end();
}

#[test]
fn the_ftl_is_replaced_while_its_flash_is_used_and_the_flash_is_shown() {
    let folder = Folder::new();
    let device = Served::start(&["--ram", "--preset", "jasmine", "--size", "16M"]);
    let mut model = vec![0; 4 << 20];
    blocks_are_as_in(&device, &mut model, 1, true);
    let json = |arguments: &[&str]| -> serde_json::Value { serde_json::from_str(&device.ok(arguments)).unwrap() };
    let listed = json(&["ftl", "list", "--json"]);
    let only = &listed["ftls"][0];
    assert!(only["name"] == "page" && only["serves"] == true && only["state"] == "running", "{listed}");
    let (module, other) = (folder.path("page.wasm"), folder.path("base-io.wasm"));
    std::fs::write(&module, willow_apps::FTLS[0].wasm).unwrap();
    std::fs::write(&other, willow_apps::BUNDLED_APPS[0].wasm).unwrap();
    for arguments in [&["ftl", "install", &module][..], &["ftl", "use", "page"]] {
        assert!(device.ok(arguments).starts_with("page "), "{arguments:?}");
        blocks_are_as_in(&device, &mut model, 2, false);
        blocks_are_as_in(&device, &mut model, 3, true);
    }
    assert!(device.fails(&["ftl", "install", &other]).contains("is app base-io, and the banks are served by page"));
    assert!(device.fails(&["ftl", "install", &folder.path("nothing")]).contains("cannot read"));
    assert!(device.fails(&["ftl", "use", "dftl"]).contains("use page"));
    // The map has all blocks; some of each die were erased, and some are bad from the factory.
    let dies = json(&["flash", "map", "--json"]);
    let dies = dies["dies"].as_array().unwrap();
    let erases = |die: &serde_json::Value| die["erases"].as_array().unwrap().clone();
    assert!(!dies.is_empty() && dies.iter().all(|die| erases(die).iter().any(|block| block.as_u64() > Some(0))));
    assert!(dies.iter().flat_map(erases).any(|block| block.is_null()));
    assert_eq!(device.ok(&["flash", "map"]).lines().count(), dies.len());
    let picture = folder.path("wear.png");
    device.ok(&["flash", "map", "--out", &picture]);
    assert!(std::fs::read(&picture).unwrap().starts_with(b"\x89PNG"));
    assert!(device.fails(&["flash", "map", "--out", &folder.path("none/wear.png")]).contains("cannot draw"));
    device.end();
    let device = Served::start(&["--ram", "--size", "16M"]);
    assert!(device.fails(&["flash", "map"]).contains("has no flash"));
    assert!(device.fails(&["ftl", "use", "page"]).contains("has no flash"));
    device.end();
}

#[test]
fn a_device_that_forgets_with_its_process_tells_hosts_which_start_it_is() {
    let folder = Folder::new();
    let start_of = |flags: &[&str]| {
        let device = Served::start(&[flags, &["--size", "16M", "--kv-size", "0"]].concat());
        let options = Options::new(device.address.parse().unwrap(), nqn(&device));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let ready = runtime.block_on(async {
            let controller = Controller::connect(options).await.unwrap();
            let ready = controller.ready().await.unwrap();
            controller.shut_down().await.unwrap();
            ready
        });
        device.end();
        ready.identity.start
    };
    let media = folder.path("media");
    let flash = ["--media", media.as_str(), "--preset", "jasmine"];
    let starts = [start_of(&flash), start_of(&flash)];
    assert!(starts[0] != 0 && starts[1] != 0 && starts[0] != starts[1], "{starts:?}");
    assert_eq!(start_of(&["--media", &folder.path("memory")]), 0, "what it answered is in its files");
}

/// A user of the machine who is in no account of the device's.
const STRANGER: u32 = 54_003;

#[test]
fn users_neither_replace_the_ftl_nor_reach_the_flash() {
    if !willow_skip::is_root() {
        return willow_skip::skip("users_neither_replace_the_ftl_nor_reach_the_flash", "not root");
    }
    let program = Public::new();
    let (socket, module) = (program.path("socket"), program.path("page.wasm"));
    std::fs::write(&module, willow_apps::FTLS[0].wasm).unwrap();
    let mut device =
        Served::start(&["--ram", "--preset", "jasmine", "--size", "16M", "--kv-size", "0", "--socket", &socket]);
    let mut model = vec![0; 4 << 20];
    blocks_are_as_in(&device, &mut model, 1, true);
    let over_network = std::mem::replace(&mut device.address, socket.clone());
    let as_stranger = |arguments: &[&str]| {
        let mut command = program.willow();
        let output =
            command.args(arguments).args(["--target", &socket]).uid(STRANGER).gid(STRANGER).current_dir("/").output();
        failure(arguments, &output.unwrap())
    };
    for arguments in [&["ftl", "list"][..], &["ftl", "install", &module], &["ftl", "use", "page"], &["flash", "map"]] {
        let error = as_stranger(arguments);
        assert!(error.contains("not permitted on this endpoint"), "{arguments:?}: {error}");
    }
    // An app of the user's own gets no flash port either.
    let error = as_stranger(&["app", "install", &module]);
    assert!(error.contains("flash"), "{error}");
    assert!(device.ok(&["ftl", "list"]).contains("running"));
    device.address = over_network;
    blocks_are_as_in(&device, &mut model, 2, false);
    device.end();
}
