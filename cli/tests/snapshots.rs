//! `willow snapshot`: a drive that was written to is saved once, and simulated and served from there.

mod support;

use std::path::Path;
use std::sync::Arc;
use support::{Folder, Served, fails, willow};
use willow_host::{BlockClient, Controller, NvmeHre, Options};
use willow_sim::random::Random;
use willow_sim::snapshot::Snapshot;
use willow_sim::{Preset, Simulation, SimulationOptions};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;

/// Preset `slc` with as little flash as lets it collect soon, as a file of the user's own.
fn small_preset(folder: &Folder) -> String {
    let presets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets");
    let changed = |file: &str, changes: &[(&str, &str)]| {
        let mut text = std::fs::read_to_string(presets.join(file)).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{file} has {from}");
            text = text.replace(from, to);
        }
        text
    };
    let flash = changed(
        "flash/slc.toml",
        &[
            ("channels = 8\n", "channels = 2\n"),
            ("planes_per_die = 4", "planes_per_die = 2"),
            ("blocks_per_plane = 2048", "blocks_per_plane = 80"),
            ("pages_per_block = 64", "pages_per_block = 16"),
            ("user_blocks_per_ten_thousand = 8_500", "user_blocks_per_ten_thousand = 8_000"),
        ],
    );
    folder.file("table.toml", flash.as_bytes());
    let preset = changed("slc.toml", &[("spus = 8\n", "spus = 2\n"), ("table = \"slc\"", "table = \"table.toml\"")]);
    folder.file("small.toml", preset.as_bytes())
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = willow().args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

/// A drive is saved in its steady state; simulations from there are the same each time, and collect from their first write on.
#[test]
fn simulations_begin_in_the_steady_state_that_was_saved() {
    let folder = Folder::new();
    let (preset, file) = (small_preset(&folder), folder.path("steady"));
    let saved = willow().args(["snapshot", "save", &file, "--preset", &preset, "--range", "10M"]).output().unwrap();
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    let said = String::from_utf8(saved.stdout).unwrap();
    assert!(said.contains("FTL page, 10 MiB written of 10 MiB, without contents"), "{said}");
    let flags = ["--json", "--native", "--operations", "500", "--depths", "4", "--mix", "0"];
    let run = |more: &[&str]| {
        let report = json(&[&["simulate", "--preset", &preset][..], more, &flags].concat());
        report["simulations"][0].clone()
    };
    let report = run(&["--snapshot", &file]);
    assert_eq!(report, run(&["--snapshot", &file]), "the same again");
    let number = |report: &serde_json::Value, name: &str| report["flash"][name].as_f64().expect("a number");
    let fresh = run(&["--precondition", "none", "--range", "10M"]);
    assert!(number(&report, "by_collection") > 0.2, "it collects: {}", report["flash"]);
    assert_eq!(number(&fresh, "by_collection"), 0.0, "a new drive has nothing to collect");
    // As the drive that was not saved goes on.
    let unsaved = run(&["--precondition", "steady", "--range", "10M"]);
    let ratio = number(&report, "write_amplification") / number(&unsaved, "write_amplification");
    assert!((0.8..1.25).contains(&ratio), "{} and {}", report["flash"], unsaved["flash"]);
    assert!(number(&report, "erases_mean") >= 1.0, "wear is the saved drive's: {}", report["flash"]);
}

/// What a block was written with.
fn bytes(block: u64) -> Vec<u8> {
    let mut random = Random(block);
    (0..BLOCK).map(|_| random.below(256) as u8).collect()
}

/// Blocks that were written, simulated and saved with their contents are there in another simulation, and in a device that is served.
#[test]
fn what_was_saved_is_there_when_it_is_simulated_and_when_it_is_served() {
    let folder = Folder::new();
    let (path, file, media) = (small_preset(&folder), folder.path("drive"), folder.path("media"));
    let preset = Preset::load(&path).unwrap();
    let options = SimulationOptions {
        namespace_bytes: BLOCKS * BLOCK as u64,
        block_bytes: 4096,
        ..SimulationOptions::new(preset)
    };
    let mut simulation = Simulation::new(&options).unwrap();
    let written = simulation.host_thread("writer", |thread| async move {
        for block in (0..BLOCKS).filter(|block| !block.is_multiple_of(3)) {
            thread.write(willow_sim::Path::Bare, block * BLOCK as u64, bytes(block)).await.expect("room");
        }
    });
    written.unwrap();
    simulation.run().unwrap();
    simulation.save(Path::new(&file), BLOCKS * BLOCK as u64).unwrap();

    let expected = |block: u64| if block.is_multiple_of(3) { vec![0; BLOCK] } else { bytes(block) };
    let mut simulation = Simulation::restore(&options, Snapshot::open(Path::new(&file)).unwrap()).unwrap();
    let read = simulation.host_thread("reader", move |thread| async move {
        for block in 0..BLOCKS {
            let found =
                thread.read(willow_sim::Path::Bare, block * BLOCK as u64, BLOCK as u32).await.expect("readable");
            assert!(found == expected(block), "block {block}");
        }
    });
    simulation.run().unwrap();
    assert!(read.unwrap().take().is_some(), "it has read all");

    let restored =
        willow().args(["snapshot", "restore", &file, "--media", &media, "--preset", &path]).output().unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    for round in 0..2 {
        let device = Served::start(&["--media", &media, "--preset", &path, "--ftl", "page"]);
        let nqn = device.ready.split(' ').nth(1).unwrap().strip_prefix("nqn=").unwrap().to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let controller = Controller::connect(Options::new(device.address.parse().unwrap(), nqn)).await.unwrap();
            let hre = Arc::new(NvmeHre::new(controller.clone(), 1).await.unwrap());
            let client = BlockClient::open(hre, 1).await.unwrap();
            for block in 0..BLOCKS {
                // What the first round wrote is there in the second.
                let expected =
                    if round == 1 && block.is_multiple_of(5) { bytes(block + 1_000_000) } else { expected(block) };
                let found = client.read(block * BLOCK as u64, BLOCK).await.unwrap();
                assert!(found == expected, "block {block} in round {round}");
                if round == 0 && block.is_multiple_of(5) {
                    client.write(block * BLOCK as u64, bytes(block + 1_000_000), false).await.unwrap();
                }
            }
            controller.shut_down().await.unwrap();
        });
        device.end();
    }
}

/// What is no snapshot, a damaged one, one of other flash, and folders that are in use are refused with what is wrong, and leave nothing behind.
#[test]
fn what_cannot_be_a_snapshot_is_refused() {
    let folder = Folder::new();
    let (preset, file, media) = (small_preset(&folder), folder.path("drive"), folder.path("media"));
    let save =
        ["snapshot", "save", &file, "--preset", &preset, "--range", "1M", "--size", "4M", "--precondition", "fill"];
    assert!(willow().args(save).output().unwrap().status.success());
    let whole = std::fs::read(&file).unwrap();
    let (foreign, broken) = (folder.file("foreign", b"WILLOWfl and so on"), folder.path("broken"));
    let simulate = |file: &str| fails(&["simulate", "--preset", &preset, "--snapshot", file, "--native"]);
    let restore = |file: &str| fails(&["snapshot", "restore", file, "--media", &media, "--preset", &preset]);
    for refused in [&simulate as &dyn Fn(&str) -> String, &restore] {
        assert!(refused(&foreign).contains("it is no snapshot"));
        assert!(refused(&folder.path("nothing")).contains("No such file"));
        for length in [10, 100, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&broken, &whole[..length]).unwrap();
            assert!(refused(&broken).contains("truncated"), "cut at {length}");
        }
        for at in [20, whole.len() / 2, whole.len() - 20] {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(&broken, damaged).unwrap();
            let why = refused(&broken);
            assert!(why.contains("damaged") || why.contains("truncated"), "{why}");
        }
        let newer = [&whole[..8], &9_u32.to_le_bytes(), &whole[12..]].concat();
        std::fs::write(&broken, newer).unwrap();
        assert!(refused(&broken).contains("version 9"));
        assert!(!Path::new(&media).exists(), "nothing is left");
        assert!(!Path::new(&folder.path("media.partial")).exists(), "nothing is left");
    }
    for (arguments, expected) in [
        (&["simulate", "--preset", "tlc", "--snapshot", &file][..], "arranged otherwise"),
        (&["simulate", "--preset", "bee3", "--snapshot", &file], "flash"),
        (&["simulate", "--preset", &preset, "--snapshot", &file, "--workload", "kv"], "block namespace"),
        (&["simulate", "--preset", &preset, "--snapshot", &file, "--size", "1M"], "--size"),
        (&["snapshot", "save", &file, "--preset", "bee3"], "has no flash"),
        (&["snapshot", "save", &file, "--preset", &preset, "--range", "2M", "--size", "1M"], "is more than"),
        (&["snapshot", "save", "/nowhere/drive", "--preset", &preset, "--range", "1M"], "/nowhere/drive"),
    ] {
        let why = fails(arguments);
        assert!(why.contains(expected), "{why}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), whole, "what failed has left the old one alone");
    std::fs::create_dir(&media).unwrap();
    std::fs::write(Path::new(&media).join("mine"), "kept").unwrap();
    assert!(restore(&file).contains("there is something in it"));
    assert_eq!(std::fs::read_to_string(Path::new(&media).join("mine")).unwrap(), "kept");
}
