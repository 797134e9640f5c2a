//! The app `compute` on the SDK's mock device, asked by the plans of this library, with files that lie anyhow: what it leaves is what is computed here
//! from what was written.

use base_io_host::Geometry;
use compute_host::npy::Array;
use compute_host::plan::{Laid, Matrices, batches, rows as plan_rows, saxpy, tiles};
use compute_host::wire::{Batch, HOLE, Piece, Place, Rows, Saxpy, Segment, Work, handler};
use compute_host::{Number, multiply_add};
use direct_io_host::FileExtent;
use willow_sdk::testing::{Device, Options};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const STRIPE_BYTES: u32 = 512;

/// A file in pieces of a namespace on one SPU: extents of whole blocks, in any order, with holes where `holes`.
fn extents(random: &mut Random, (file_bytes, from): (u64, u64), holes: bool) -> Vec<FileExtent> {
    let (mut extents, mut at, mut places) = (Vec::new(), 0, Vec::new());
    while at < file_bytes {
        let bytes = (64 * (1 + random.below(40))).min(file_bytes - at);
        if !(holes && random.below(3) == 0) {
            places.push((at, bytes));
        }
        at += bytes;
    }
    let mut namespace_offset = from;
    // The last ones lie first.
    for (file_offset, bytes) in places.into_iter().rev() {
        extents.push(FileExtent { file_offset, namespace_offset, bytes });
        namespace_offset += bytes.next_multiple_of(64) + 64 * random.below(2);
    }
    extents.sort_by_key(|extent| extent.file_offset);
    extents
}

struct World {
    device: Device,
    geometry: Geometry,
}

impl World {
    fn new(seed: u64) -> World {
        let mut device = Device::new(compute_spu::native(), Options { seed, ..Options::default() });
        let namespace = device.create_namespace(1, 0, 512, 1 << 20);
        World { device, geometry: Geometry { spus: 1, stripe_bytes: STRIPE_BYTES, base: namespace.base } }
    }

    fn write(&mut self, extents: &[FileExtent], data: &[u8]) {
        for extent in extents {
            let part = &data[extent.file_offset as usize..extent.file_end() as usize];
            self.device.write_bank(0, self.geometry.base + extent.namespace_offset, part);
        }
    }

    fn read(&self, extents: &[FileExtent], bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        for extent in extents {
            let begin = (self.geometry.base + extent.namespace_offset) as usize;
            let part = &self.device.bank(0)[begin..begin + extent.bytes as usize];
            data[extent.file_offset as usize..extent.file_end() as usize].copy_from_slice(part);
        }
        data
    }
}

fn vector(random: &mut Random, number: Number, count: u64) -> Vec<u8> {
    let part = |random: &mut Random| (random.below(1 << 20) as f64 - 500_000.0) / 997.0;
    match number {
        Number::Single => (0..count).flat_map(|_| (part(random) as f32).to_le_bytes()).collect(),
        Number::Double => (0..count).flat_map(|_| part(random).to_le_bytes()).collect(),
    }
}

#[test]
fn vectors_in_pieces_are_multiplied_and_added_bit_for_bit() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let number = if seed % 2 == 0 { Number::Single } else { Number::Double };
        let count = 1 + random.below(4000);
        let bytes = count * u64::from(number.bytes());
        let begins = [0, 1, 2].map(|_| 64 * random.below(3));
        let alpha = (random.below(2000) as f64 - 1000.0) / 7.0;
        let mut world = World::new(seed);
        let from = |file: u64| file * (1 << 18);
        let lie: Vec<Vec<FileExtent>> =
            (0..3).map(|file| extents(&mut random, (begins[file as usize] + bytes, from(file)), file > 0)).collect();
        let mut vectors = Vec::new();
        for file in [1, 2] {
            let mut data = vec![0; begins[file] as usize];
            data.extend(vector(&mut random, number, count));
            world.write(&lie[file], &data);
            // Holes are zeroes.
            let data = world.read(&lie[file], data.len());
            vectors.push(data[begins[file] as usize..].to_vec());
        }
        let head =
            Saxpy { alpha, number_bytes: number.bytes(), chunk_bytes: 8 * (1 + random.below(300)) as u32, pieces: 0 };
        let laid = [0, 1, 2].map(|file| Laid { geometry: world.geometry, extents: &lie[file], begin: begins[file] });
        let head_bytes = begins[0] as usize;
        let before = vec![0xab; head_bytes + bytes as usize];
        world.write(&lie[0], &before);
        for request in saxpy(head, (0, bytes), laid).expect("a plan") {
            let outcome = world.device.call(request.spu.into(), handler::SAXPY, &[], &request.body, 0);
            assert_eq!(outcome.status, 0, "seed {seed}");
        }
        let [x, y] = &mut vectors[..] else { panic!("two") };
        multiply_add(number, alpha, x, y);
        let found = world.read(&lie[0], head_bytes + bytes as usize);
        assert!(found[head_bytes..] == y[..], "seed {seed}");
        assert!(found[..head_bytes] == before[..head_bytes], "seed {seed}: nothing else was written");
    }
}

#[test]
fn a_result_with_a_hole_has_no_plan_and_nonsense_is_refused() {
    let mut random = Random(1);
    let geometry = Geometry { spus: 3, stripe_bytes: STRIPE_BYTES, base: 0 };
    let whole = extents(&mut random, (8192, 0), false);
    let holed = [FileExtent { file_offset: 0, namespace_offset: 0, bytes: 4096 }];
    let laid = |extents| Laid { geometry, extents, begin: 0 };
    let head = Saxpy { alpha: 1.0, number_bytes: 8, chunk_bytes: 4096, pieces: 0 };
    assert!(saxpy(head, (0, 8192), [laid(&holed), laid(&whole), laid(&whole)]).is_none());
    let planned = saxpy(head, (0, 8192), [laid(&whole), laid(&holed), laid(&whole)]).expect("a plan");
    // Each byte of the result is in one piece.
    let mut bytes = 0;
    for request in &planned {
        for piece in request.body[Saxpy::BYTES..].chunks_exact(Piece::BYTES) {
            bytes += u64::from(Piece::decode(piece.try_into().unwrap()).bytes);
        }
    }
    assert_eq!(bytes, 8192);
    let mut device = Device::new(compute_spu::native(), Options::default());
    let nowhere = Place { spu: HOLE, address: 0 };
    for (head, piece) in [
        (Saxpy { number_bytes: 5, pieces: 1, ..head }, Piece { to: 0, x: nowhere, y: nowhere, bytes: 8 }),
        (Saxpy { chunk_bytes: 12, pieces: 1, ..head }, Piece { to: 0, x: nowhere, y: nowhere, bytes: 8 }),
        (Saxpy { chunk_bytes: 1 << 20, pieces: 1, ..head }, Piece { to: 0, x: nowhere, y: nowhere, bytes: 8 }),
        (Saxpy { pieces: 2, ..head }, Piece { to: 0, x: nowhere, y: nowhere, bytes: 0 }),
        (Saxpy { pieces: 1, ..head }, Piece { to: 0, x: nowhere, y: nowhere, bytes: 7 }),
        (Saxpy { pieces: 1, ..head }, Piece { to: u64::MAX - 7, x: nowhere, y: nowhere, bytes: 16 }),
        (Saxpy { pieces: 1, ..head }, Piece { to: 0, x: Place { spu: 77, address: 0 }, y: nowhere, bytes: 8 }),
    ] {
        let body = [&head.encode()[..], &piece.encode()].concat();
        assert_ne!(device.call(0, handler::SAXPY, &[], &body, 0).status, 0, "{head:?} {piece:?}");
    }
    assert_ne!(device.call(0, handler::SAXPY, &[], &[1; 7], 0).status, 0);
    assert_ne!(device.call(0, handler::SAXPY, &[], &vec![0; 40 << 10], 0).status, 0);
}

#[test]
fn requests_are_read_as_they_were_written() {
    let saxpy = Saxpy { alpha: -1.5, number_bytes: 4, chunk_bytes: 4096, pieces: 7 };
    assert_eq!(Saxpy::decode(&saxpy.encode()), Some(saxpy));
    let at = |spu, address| Place { spu, address };
    let piece = Piece { to: 1 << 40, x: at(3, 5), y: at(HOLE, 0), bytes: 4096 };
    assert_eq!(Piece::decode(&piece.encode()), piece);
    assert!(Array::read(b"").is_err());
}

/// Complex numbers, as doubles.
fn complex(bytes: &[u8], number: Number) -> Vec<(f64, f64)> {
    let parts: Vec<f64> = match number {
        Number::Single => bytes.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()).into()).collect(),
        Number::Double => bytes.chunks_exact(8).map(|it| f64::from_le_bytes(it.try_into().unwrap())).collect(),
    };
    parts.chunks_exact(2).map(|two| (two[0], two[1])).collect()
}

/// By the definition, along an axis: `count` numbers that lie `stride` apart.
fn transformed(
    numbers: &[(f64, f64)],
    inverse: bool,
    (first, count, stride): (usize, usize, usize),
) -> Vec<(f64, f64)> {
    let sign = if inverse { 1.0 } else { -1.0 };
    let at = |to: usize| {
        let (mut re, mut im) = (0.0, 0.0);
        for from in 0..count {
            let turn = (from * to % count) as f64 / count as f64;
            let (sine, cosine) = (sign * std::f64::consts::TAU * turn).sin_cos();
            let (a, b) = numbers[first + from * stride];
            re += a * cosine - b * sine;
            im += a * sine + b * cosine;
        }
        let scale = if inverse { 1.0 / count as f64 } else { 1.0 };
        (re * scale, im * scale)
    };
    (0..count).map(at).collect()
}

fn norm(numbers: impl Iterator<Item = (f64, f64)>) -> f64 {
    numbers.map(|(re, im)| re * re + im * im).sum::<f64>().sqrt()
}

fn ask(world: &mut World, requests: Vec<compute_host::plan::Request>) {
    for request in requests {
        let outcome = world.device.call(request.spu.into(), handler::ROWS, &[], &request.body, 0);
        assert_eq!(outcome.status, 0);
    }
}

#[test]
fn matrices_in_pieces_are_transformed_by_rows_transposed_and_transformed_again() {
    for seed in 0..16 {
        let mut random = Random(seed);
        let number = if seed % 2 == 0 { Number::Single } else { Number::Double };
        let (inverse, real) = (seed % 3 == 0, seed % 4 < 2);
        // Powers of two, and any sizes.
        let (rows, columns) = match seed % 5 {
            0 | 1 => (2 << random.below(6), 2 << random.below(7)),
            _ => (1 + random.below(100), 1 + random.below(150)),
        };
        let complex_bytes = rows * columns * 2 * u64::from(number.bytes());
        let source_bytes = if real { complex_bytes / 2 } else { complex_bytes };
        let mut world = World::new(seed);
        let from = |file: u64| file * (1 << 18);
        let begin = 64 * random.below(3);
        let lie = [
            extents(&mut random, (begin + source_bytes, from(0)), true),
            extents(&mut random, (complex_bytes, from(1)), false),
            extents(&mut random, (complex_bytes, from(2)), false),
        ];
        let mut data = vec![0; begin as usize];
        data.extend(vector(&mut random, number, source_bytes / u64::from(number.bytes())));
        world.write(&lie[0], &data);
        let data = world.read(&lie[0], data.len())[begin as usize..].to_vec();
        let geometry = world.geometry;
        let laid = |file: usize, begin| Laid { geometry, extents: &lie[file], begin };
        let work = if inverse { Work::Inverse } else { Work::Forward };
        let pass = |real, count: u64| Rows {
            work,
            real,
            number_bytes: number.bytes(),
            count: count as u32,
            batch_bytes: (count * 2 * u64::from(number.bytes()) * 3) as u32,
            batches: 0,
        };
        let first = pass(real, columns);
        let files = Matrices { source: laid(0, begin), destination: laid(1, 0) };
        let planned = batches(&first, (0, rows), files).expect("a plan");
        ask(&mut world, plan_rows(first, planned, 1));
        // The last tiles may be smaller.
        let files = Matrices { source: laid(1, 0), destination: laid(2, 0) };
        for row in (0..rows).step_by(8) {
            let tiles = tiles(number, (rows, columns), ((row, 8.min(rows - row)), 16), files, 1);
            ask(&mut world, tiles.expect("a plan"));
        }
        let files = Matrices { source: laid(2, 0), destination: laid(1, 0) };
        let second = pass(false, rows);
        let planned = batches(&second, (0, columns), files).expect("a plan");
        ask(&mut world, plan_rows(second, planned, 1));
        // What it is to be: along both axes, by the definition.
        let mut source = data;
        if real {
            let mut wide = Vec::new();
            compute_host::transform::widen(&source, number, &mut wide);
            source = wide;
        }
        let (rows, columns) = (rows as usize, columns as usize);
        let mut wanted = complex(&source, number);
        for row in 0..rows {
            let line = transformed(&wanted, inverse, (row * columns, columns, 1));
            wanted[row * columns..][..columns].copy_from_slice(&line);
        }
        for column in 0..columns {
            let line = transformed(&wanted, inverse, (column, rows, columns));
            (0..rows).for_each(|row| wanted[row * columns + column] = line[row]);
        }
        let found = complex(&world.read(&lie[1], complex_bytes as usize), number);
        let differences = (0..rows * columns).map(|place| {
            let (row, column) = (place / columns, place % columns);
            let (found, wanted) = (found[column * rows + row], wanted[place]);
            (found.0 - wanted.0, found.1 - wanted.1)
        });
        // docs/compute.md.
        let epsilon = if number == Number::Single { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let of_axis = |count: usize| match count {
            1 => 0.0,
            _ if count.is_power_of_two() => (count as f64).log2(),
            _ => 2.0 * (2.0 * count as f64).log2(),
        };
        let most = epsilon * (of_axis(rows) + of_axis(columns)) * norm(wanted.iter().copied());
        let error = norm(differences);
        assert!(error <= most, "seed {seed}: {error} {most}");
    }
}

#[test]
fn senseless_rows_are_refused() {
    let mut device = Device::new(compute_spu::native(), Options::default());
    let head = Rows { work: Work::Forward, real: false, number_bytes: 4, count: 8, batch_bytes: 64, batches: 1 };
    assert_eq!(Rows::decode(&head.encode()), Some(head));
    let segment = |bytes| Segment { at: Place { spu: 0, address: 0 }, bytes };
    let batch = Batch { rows: 1, sources: 1, destinations: 1 };
    assert_eq!((Batch::decode(&batch.encode()), Segment::decode(&segment(7).encode())), (batch, segment(7)));
    for (head, batch, segments) in [
        (Rows { number_bytes: 2, ..head }, batch, vec![segment(64), segment(64)]),
        (Rows { count: 0, ..head }, batch, vec![segment(0), segment(0)]),
        (Rows { batch_bytes: 1 << 20, ..head }, batch, vec![segment(64), segment(64)]),
        (Rows { real: true, work: Work::Transpose, ..head }, batch, vec![segment(32), segment(64)]),
        (Rows { batches: 2, ..head }, batch, vec![segment(64), segment(64)]),
        (head, Batch { rows: 2, ..batch }, vec![segment(128), segment(128)]),
        (head, batch, vec![segment(63), segment(64)]),
        (head, batch, vec![segment(64), segment(63)]),
        (head, Batch { sources: 2, ..batch }, vec![segment(64), segment(64)]),
        (head, Batch { sources: u16::MAX, ..batch }, vec![segment(64), segment(64)]),
        (head, batch, vec![segment(64), Segment { at: Place { spu: HOLE, address: 0 }, bytes: 64 }]),
    ] {
        let mut body = head.encode().to_vec();
        body.extend(batch.encode());
        segments.iter().for_each(|segment| body.extend(segment.encode()));
        assert_ne!(device.call(0, handler::ROWS, &[], &body, 0).status, 0, "{head:?} {batch:?}");
    }
    assert_ne!(device.call(0, handler::ROWS, &[], &[3; 24], 0).status, 0);
}
