//! `willow saxpy` and `willow fft` on real file systems on the device: as ordinary users, by shared memory and over NVMe/TCP. What is right is computed here from what was
//! written. Skipped, with a line that says why, as the stage says.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use willow_tests::stage::{By, Stage, WAIT_MAX, is_frozen, or_skip, within_seconds};

const ALICE: u32 = 54_621;
const BOB: u32 = 54_622;

/// A folder of Alice's on the file system.
fn folder(stage: &Stage) -> PathBuf {
    let folder = stage.on_it("alice");
    if !folder.exists() {
        fs::create_dir(&folder).expect("a folder");
        chown(&folder, Some(ALICE), Some(ALICE)).expect("its owner");
    }
    folder
}

fn willow(stage: &Stage, arguments: &[&str]) -> Command {
    let mut run = Command::new(stage.willow());
    run.args(arguments).args(["--agent", &stage.path("agent"), "--report"]);
    run.uid(ALICE).gid(ALICE).current_dir(folder(stage)).stdin(Stdio::null());
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    run
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ran(stage: &Stage, arguments: &[&str], by: &str) {
    let output = willow(stage, arguments).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", said(&output));
    assert!(said(&output).contains(&format!("by={by} ")), "{arguments:?}: {}", said(&output));
}

fn failed(stage: &Stage, arguments: &[&str], words: &[&str]) {
    let output = willow(stage, arguments).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", said(&output));
    assert!(words.iter().all(|word| said(&output).contains(word)), "{arguments:?}: {}", said(&output));
}

/// Numbers, and as bytes.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let number = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 12) as f64 / (1u64 << 40) as f64 - 2000.0
    };
    (0..count).map(number).collect()
}

fn doubles(numbers: impl IntoIterator<Item = f64>) -> Vec<u8> {
    numbers.into_iter().flat_map(f64::to_le_bytes).collect()
}

fn singles(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A file as numpy saves it (its format 1.0), by another way than the library's.
fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), data].concat()
}

/// A file of Alice's in her folder.
fn file(stage: &Stage, name: &str, data: &[u8]) -> PathBuf {
    let path = folder(stage).join(name);
    fs::write(&path, data).expect("written");
    chown(&path, Some(ALICE), Some(ALICE)).expect("its owner");
    path
}

/// What there is in the folder.
fn names(stage: &Stage) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder(stage))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn saxpy_on(test: &str, stage: Result<Stage, String>) {
    let Some(stage) = or_skip(test, stage) else { return };
    let count = 300_001;
    let (x, y) = (numbers(count, 1), numbers(count, 2));
    // Each operation rounds, as numpy's do.
    let alpha = 1.0 / 3.0;
    let sums = x.iter().zip(&y).map(|(x, y)| alpha * x + y);
    file(&stage, "x.npy", &npy("<f8", "False", &format!("({count},)"), &doubles(x.iter().copied())));
    file(&stage, "y.npy", &npy("<f8", "False", &format!("({count},)"), &doubles(y.iter().copied())));
    ran(&stage, &["saxpy", "0.3333333333333333", "x.npy", "y.npy", "--out", "a.npy", "--drive-only"], "drive");
    let wanted = npy("<f8", "False", &format!("({count},)"), &doubles(sums));
    assert!(fs::read(folder(&stage).join("a.npy")).expect("a result") == wanted, "as numpy has it");
    assert_eq!(fs::metadata(folder(&stage).join("a.npy")).expect("a result").uid(), ALICE);
    // Singles, plain, in pieces of their own, with a hole; over a result that is there.
    let (x4, y4): (Vec<f32>, Vec<f32>) =
        (x.iter().map(|it| *it as f32).collect(), y.iter().map(|it| *it as f32).collect());
    let mut with_hole = singles(x4.iter().copied());
    with_hole[40_960..81_920].fill(0);
    let sparse = file(&stage, "x.raw", &with_hole);
    let punched =
        willow_tests::stage::tool("fallocate", &["-p", "-o", "40960", "-l", "40960", &sparse.display().to_string()]);
    punched.expect("a hole");
    file(&stage, "y.raw", &singles(y4.iter().copied()));
    file(&stage, "a.raw", &vec![7; 4 * count]);
    let raw = ["saxpy", "-2.7", "x.raw", "y.raw", "--out", "a.raw", "--dtype", "f4", "--in-place", "--drive-only"];
    let before = fs::metadata(folder(&stage).join("a.raw")).expect("a file").ino();
    ran(&stage, &raw, "drive");
    let product = |place: usize| if (10_240..20_480).contains(&place) { 0.0 } else { -2.7f32 * x4[place] };
    let wanted = singles((0..count).map(|place| product(place) + y4[place]));
    assert!(fs::read(folder(&stage).join("a.raw")).expect("a result") == wanted, "in place");
    assert_eq!(fs::metadata(folder(&stage).join("a.raw")).expect("a file").ino(), before);
    // Without elements.
    file(&stage, "none.npy", &npy("<f4", "True", "(3, 0)", b""));
    ran(&stage, &["saxpy", "1", "none.npy", "none.npy", "--out", "b.npy"], "drive");
    assert_eq!(fs::read(folder(&stage).join("b.npy")).expect("a result"), npy("<f4", "True", "(3, 0)", b""));
    // What is refused names the file and the reason, and leaves nothing.
    let whole = names(&stage);
    file(&stage, "short.npy", &npy("<f8", "False", "(1000,)", &[0; 7999]));
    file(&stage, "big.npy", &npy(">f8", "False", "(2,)", &[0; 16]));
    file(&stage, "complex.npy", &npy("<c8", "False", "(2,)", &[0; 16]));
    file(&stage, "transposed.npy", &npy("<f8", "True", &format!("({count},)"), &doubles(y.iter().copied())));
    let bobs = stage.owned("bobs.npy", BOB, &npy("<f8", "False", "(2,)", &[0; 16]));
    let bobs = bobs.display().to_string();
    for (arguments, words) in [
        (&["short.npy", "short.npy", "--out", "c.npy"][..], &["short.npy", "8127 of 8128"][..]),
        (&["big.npy", "big.npy", "--out", "c.npy"], &["big.npy", "little-endian"]),
        (&["complex.npy", "complex.npy", "--out", "c.npy"], &["complex.npy", "c8"]),
        (&["x.npy", "transposed.npy", "--out", "c.npy"], &["transposed.npy", "Fortran"]),
        (&["x.npy", "a.raw", "--out", "c.npy"], &["a.raw", ".npy"]),
        (&["x.npy", "nowhere.npy", "--out", "c.npy"], &["nowhere.npy", "No such file"]),
        (&["x.npy", "y.npy", "--out", "y.npy", "--in-place"], &["y.npy", "read as well"]),
        (&["x.npy", "y.npy", "--out", "none.npy", "--in-place"], &["none.npy", "shape"]),
        (&["x.npy", "y.npy", "--out", "nowhere/c.npy"], &["nowhere/c.npy", "No such file"]),
        (&["x.raw", "y.raw", "--out", "c", "--dtype", "f8"], &["x.raw", "whole numbers"]),
        (&[&bobs, &bobs, "--out", "c.npy"], &["bobs.npy", "Permission denied"]),
    ] {
        failed(&stage, &[&["saxpy", "2"], arguments].concat(), words);
    }
    let more = ["big.npy", "complex.npy", "short.npy", "transposed.npy"].map(str::to_owned);
    let mut expected = [whole, more.to_vec()].concat();
    expected.sort();
    assert_eq!(names(&stage), expected, "failures leave nothing");
    // What the agent refuses this host does, with the same result, and says so.
    let writer = fs::OpenOptions::new().append(true).open(folder(&stage).join("y.npy")).expect("open");
    let by_host = ["saxpy", "0.3333333333333333", "x.npy", "y.npy", "--out", "d.npy"];
    failed(&stage, &[&by_host[..], &["--drive-only"]].concat(), &["y.npy", "open for writing"]);
    ran(&stage, &by_host, "host");
    drop(writer);
    let of_both = ["a.npy", "d.npy"].map(|name| fs::read(folder(&stage).join(name)).expect("a result"));
    assert!(of_both[0] == of_both[1]);
    for name in ["x.npy", "y.npy", "a.npy"] {
        within_seconds("the file thaws", || !is_frozen(&folder(&stage).join(name)));
    }
}

#[test]
fn users_have_vectors_added_in_the_drive_on_xfs() {
    saxpy_on("users_have_vectors_added_in_the_drive_on_xfs", Stage::xfs());
}

#[test]
fn users_have_vectors_added_in_the_drive_over_the_network() {
    saxpy_on("users_have_vectors_added_in_the_drive_over_the_network", Stage::ext4_by(By::Network));
}

/// The data of a result, which has to have this header.
fn result(stage: &Stage, name: &str, header: &[u8]) -> Vec<u8> {
    let bytes = fs::read(folder(stage).join(name)).expect("a result");
    assert!(bytes.starts_with(header), "{name}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(128)]));
    bytes[header.len()..].to_vec()
}

/// The transform at a few places, by the definition; `numbers` are complex, in C's order, `at` is a row and a column.
fn transformed(numbers: &[(f64, f64)], (rows, columns): (usize, usize), at: (usize, usize)) -> (f64, f64) {
    let (mut re, mut im) = (0.0, 0.0);
    for (place, (a, b)) in numbers.iter().enumerate() {
        let (row, column) = (place / columns, place % columns);
        let turn = (row * at.0 % rows) as f64 / rows as f64 + (column * at.1 % columns) as f64 / columns as f64;
        let (sine, cosine) = (-std::f64::consts::TAU * turn).sin_cos();
        re += a * cosine - b * sine;
        im += a * sine + b * cosine;
    }
    (re, im)
}

fn fft_on(test: &str, stage: Result<Stage, String>, (rows, columns): (usize, usize)) {
    let Some(stage) = or_skip(test, stage) else { return };
    let parts = numbers(2 * rows * columns, 5);
    let complex: Vec<(f64, f64)> = parts.chunks_exact(2).map(|two| (two[0], two[1])).collect();
    let shape = format!("({rows}, {columns})");
    file(&stage, "m.npy", &npy("<c16", "False", &shape, &doubles(parts.iter().copied())));
    let pairs = |bytes: &[u8]| -> Vec<(f64, f64)> {
        let parts: Vec<f64> =
            bytes.chunks_exact(8).map(|it| f64::from_le_bytes(it.try_into().expect("eight"))).collect();
        parts.chunks_exact(2).map(|two| (two[0], two[1])).collect()
    };
    let scale = complex.iter().map(|(re, im)| re * re + im * im).sum::<f64>().sqrt() * ((rows * columns) as f64).sqrt();
    let is_near =
        |found: (f64, f64), wanted: (f64, f64)| (found.0 - wanted.0).hypot(found.1 - wanted.1) < 1e-12 * scale;
    // Of rows.
    ran(&stage, &["fft", "m.npy", "--out", "r.npy", "--drive-only"], "drive");
    let found = pairs(&result(&stage, "r.npy", &npy("<c16", "False", &shape, b"")));
    for (row, column) in [(0, 0), (1, columns - 1), (97, 300), (rows - 1, 1)] {
        let wanted = transformed(&complex[row * columns..][..columns], (1, columns), (0, column));
        assert!(is_near(found[row * columns + column], wanted), "{row} {column}");
    }
    // Of both axes, transposed here and there: the same bits, in Fortran's order.
    ran(&stage, &["fft", "m.npy", "--2d", "--out", "h.npy", "--drive-only"], "drive");
    ran(&stage, &["fft", "m.npy", "--2d", "--transpose", "drive", "--out", "d.npy", "--drive-only"], "drive");
    let header = npy("<c16", "True", &shape, b"");
    let found = pairs(&result(&stage, "h.npy", &header));
    assert!(result(&stage, "h.npy", &header) == result(&stage, "d.npy", &header));
    for (row, column) in [(0, 0), (3, 500), (200, 33)] {
        let wanted = transformed(&complex, (rows, columns), (row, column));
        assert!(is_near(found[column * rows + row], wanted), "{row} {column}");
    }
    // And back: what lies in Fortran's order comes in C's.
    ran(&stage, &["fft", "h.npy", "--2d", "--inverse", "--out", "b.npy"], "drive");
    let back = pairs(&result(&stage, "b.npy", &npy("<c16", "False", &shape, b"")));
    let most = parts.iter().fold(0.0, |most: f64, part| most.max(part.abs()));
    assert!(back.iter().zip(&complex).all(|(one, other)| (one.0 - other.0).hypot(one.1 - other.1) < 1e-12 * most));
    // Real singles, plain, over a result that is there; by this host the same bits.
    let real: Vec<f32> = numbers(64 * 1024, 6).into_iter().map(|it| it as f32).collect();
    let path = file(&stage, "s.raw", &singles(real.iter().copied()));
    file(&stage, "t.raw", &vec![1; 8 * 64 * 1024]);
    let raw = ["fft", "s.raw", "--dtype", "f4", "--shape", "64,1024", "--2d"];
    ran(&stage, &[&raw[..], &["--out", "t.raw", "--in-place", "--drive-only"]].concat(), "drive");
    let writer = fs::OpenOptions::new().append(true).open(&path).expect("open");
    ran(&stage, &[&raw[..], &["--out", "u.raw"]].concat(), "host");
    drop(writer);
    assert!(result(&stage, "t.raw", b"") == result(&stage, "u.raw", b""), "bit for bit");
    // What is refused names the file and the reason, and leaves nothing.
    let whole = names(&stage);
    file(&stage, "none.npy", &npy("<c16", "False", "(4, 0)", &[]));
    file(&stage, "long.npy", &npy("<c16", "False", "(65536,)", &[0; 1 << 20]));
    file(&stage, "cube.npy", &npy("<f4", "False", "(2, 2, 2)", &[0; 32]));
    file(&stage, "columns.npy", &npy("<f4", "True", "(4, 2)", &[0; 32]));
    for (arguments, words) in [
        (&["none.npy", "--out", "c.npy"][..], &["none.npy", "0 numbers"][..]),
        (&["long.npy", "--out", "c.npy"], &["long.npy", "32768"]),
        (&["cube.npy", "--2d", "--out", "c.npy"], &["cube.npy", "3 dimensions"]),
        (&["columns.npy", "--out", "c.npy"], &["columns.npy", "Fortran"]),
        (&["s.raw", "--dtype", "f4", "--shape", "64,1000", "--out", "c"], &["s.raw", "shape"]),
        (&["m.npy", "--out", "m.npy", "--in-place"], &["m.npy", "read as well"]),
    ] {
        failed(&stage, &[&["fft"], arguments].concat(), words);
    }
    let more = ["columns.npy", "cube.npy", "long.npy", "none.npy"].map(str::to_owned);
    let mut expected = [whole, more.to_vec()].concat();
    expected.sort();
    assert_eq!(names(&stage), expected, "failures leave nothing");
}

#[test]
fn users_have_matrices_transformed_in_the_drive_on_xfs() {
    // No powers of two: a product of small primes, and a prime.
    fft_on("users_have_matrices_transformed_in_the_drive_on_xfs", Stage::xfs(), (210, 509));
}

#[test]
fn users_have_matrices_transformed_in_the_drive_over_the_network() {
    fft_on("users_have_matrices_transformed_in_the_drive_over_the_network", Stage::ext4_by(By::Network), (256, 512));
}

#[test]
fn kernels_on_what_another_user_has_are_refused_by_the_device() {
    use compute_host::plan::{Laid, saxpy};
    use compute_host::wire::{STATUS_PERMISSION, Saxpy, handler};
    use willow_host::RpcCall;
    use willow_host::direct_io::{AgentClient, endpoint};
    let test = "kernels_on_what_another_user_has_are_refused_by_the_device";
    let Some(stage) = or_skip(test, Stage::ext4_by(By::Network)) else { return };
    let bytes = 256 << 10;
    let secret = stage.owned("bobs", BOB, &vec![1; bytes]);
    let own = stage.owned("own", ALICE, &vec![2; bytes]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let agent = || AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
        let (bob, alice) = (agent(), agent());
        let (bobs, alices) = (endpoint(&bob).await.expect("an endpoint"), endpoint(&alice).await.expect("another"));
        let rights = |write| fs::OpenOptions::new().read(true).write(write).clone();
        let of_bob = bob.open(rights(false).open(&secret).expect("open")).expect("directly");
        let of_alice = alice.open(rights(true).open(&own).expect("open")).expect("directly");
        let app = willow_host::ControlClient::new(alices.clone()).find_app("compute").await.expect("the app");
        let (theirs, hers) = ([&of_bob; 2], [&of_alice; 2]);
        let laid = |of: &willow_host::direct_io::Mapped| (of.geometry(), of.extents().to_vec(), 0);
        let head = Saxpy { alpha: 1.0, number_bytes: 8, chunk_bytes: 4096, pieces: 0 };
        // Alice reads Bob's file, and writes it; Bob, who may read it, may not write it.
        for (hre, files, is_refused) in [
            (&alices, [hers[0], hers[0], hers[0]], false),
            (&alices, [hers[0], theirs[0], hers[0]], true),
            (&alices, [hers[0], hers[0], theirs[0]], true),
            (&alices, [theirs[0], hers[0], hers[0]], true),
            (&bobs, [theirs[0], theirs[0], theirs[0]], true),
        ] {
            let lie = files.map(laid);
            let lie =
                lie.each_ref().map(|(geometry, extents, begin)| Laid { geometry: *geometry, extents, begin: *begin });
            for request in saxpy(head, (0, bytes as u64), lie).expect("a plan") {
                let (spu, payload) = (Some(request.spu), request.body);
                let call = RpcCall { app, handler: handler::SAXPY, spu, payload, ..RpcCall::default() };
                let status = hre.rpc(call).await.expect("answered").status;
                assert_eq!(status, if is_refused { STATUS_PERMISSION } else { 0 });
            }
        }
    });
    within_seconds("it thaws", || !is_frozen(&secret) && !is_frozen(&own));
    assert!(fs::read(&secret).expect("Bob's") == vec![1; bytes], "nobody has written it");
}

/// Has the agent take a file back from all that have it directly, as a program that writes it through the library does.
fn take_back(stage: &Stage, file: &Path) {
    use willow_host::direct_io::{AgentClient, endpoint};
    let agent = AgentClient::connect(Path::new(&stage.path("agent"))).expect("the agent");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let _endpoint = endpoint(&agent).await.expect("an endpoint");
        agent.release(fs::File::open(file).expect("open")).expect("taken back");
        agent.resume().expect("it may be taken again");
    });
}

#[test]
fn a_vector_that_is_taken_back_in_the_middle_ends_with_an_error_and_leaves_no_result() {
    let test = "a_vector_that_is_taken_back_in_the_middle_ends_with_an_error_and_leaves_no_result";
    let Some(stage) = or_skip(test, Stage::ext4_by(By::Network)) else { return };
    let count = 2_000_000;
    let vector = file(&stage, "x.raw", &doubles(numbers(count, 3)));
    let ended = (0..200).find_map(|_| {
        let arguments = ["saxpy", "2", "x.raw", "x.raw", "--out", "a.raw", "--dtype", "f8", "--drive-only"];
        let mut child = willow(&stage, &arguments).spawn().expect("it runs");
        // From when it has the file, unless it is quicker than who looks.
        let begun = std::time::Instant::now();
        while !is_frozen(&vector) && child.try_wait().expect("its state").is_none() {
            assert!(begun.elapsed() < WAIT_MAX, "it neither takes the file nor ends");
            std::thread::yield_now();
        }
        take_back(&stage, &vector);
        let output = child.wait_with_output().expect("an end");
        match output.status.code() {
            Some(0) => {
                // It was done before.
                fs::remove_file(folder(&stage).join("a.raw")).expect("a result");
                None
            }
            code => Some((code, said(&output))),
        }
    });
    let (code, said) = ended.expect("in one of so many times it is in the middle");
    assert_eq!(code, Some(1));
    assert!(said.contains("taken back in the middle"), "{said}");
    assert_eq!(names(&stage), ["x.raw"], "nothing is left of it");
    within_seconds("it thaws", || !is_frozen(&vector));
    fs::OpenOptions::new().write(true).open(&vector).expect("the file system's own").set_len(0).expect("cut");
}
