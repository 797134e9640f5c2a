//! Which SPU is asked for what, given where files lie.
//!
//! What always holds: each byte of a range is in exactly one piece or batch; an SPU writes results of vectors in its own bank alone, and reads the rest
//! from wherever it lies; requests fit [`wire::BODY_BYTES_MAX`].

use crate::Number;
use crate::wire::{BODY_BYTES_MAX, Batch, HOLE, Piece, Place, Rows, Saxpy, Segment, Work};
use base_io_host::Geometry;
use direct_io_host::FileExtent;
use std::collections::BTreeMap;

/// Pieces of one request, and segments of another: each may lie in an extent of its own, and all permissions of the requests at once are to fit an SPU's table.
const PIECES_MAX: usize = 64;
const SEGMENTS_MAX: usize = 256;
/// Bytes of one request's results, about: others wait for one request at most.
const REQUEST_BYTES: u64 = 4 << 20;

/// Where a file's data lie.
#[derive(Clone, Copy, Debug)]
pub struct Laid<'a> {
    /// How its namespace lies in the banks.
    pub geometry: Geometry,
    /// Where the file lies in the namespace.
    pub extents: &'a [FileExtent],
    /// Where the data begin in the file.
    pub begin: u64,
}

impl Laid<'_> {
    /// Calls `each` with the segments of a range of the data, in order; what is next to each other in a bank is one.
    pub fn segments(&self, (offset, bytes): (u64, u64), mut each: impl FnMut(Segment)) {
        let mut last: Option<Segment> = None;
        let mut add = |segment: Segment| match &mut last {
            Some(before)
                if before.at.spu == segment.at.spu
                    && (segment.at.spu == HOLE || before.at.after(before.bytes) == segment.at)
                    && before.bytes.checked_add(segment.bytes).is_some() =>
            {
                before.bytes += segment.bytes;
            }
            _ => {
                if let Some(whole) = last.replace(segment) {
                    each(whole);
                }
            }
        };
        direct_io_host::pieces(&self.geometry, self.extents, (self.begin + offset, bytes as usize), 0, |piece| {
            match piece {
                direct_io_host::Piece::Rpc { spu, arguments, .. } => {
                    let at = Place { spu: spu.into(), address: arguments.nv_address };
                    add(Segment { at, bytes: arguments.bytes });
                }
                direct_io_host::Piece::Hole { bytes, .. } => {
                    let mut left = bytes as u64;
                    while left > 0 {
                        let now = left.min(1 << 30) as u32;
                        add(Segment { at: Place { spu: HOLE, address: 0 }, bytes: now });
                        left -= u64::from(now);
                    }
                }
            }
        });
        if let Some(whole) = last {
            each(whole);
        }
    }

    fn list(&self, range: (u64, u64)) -> Vec<Segment> {
        let mut segments = Vec::new();
        self.segments(range, |segment| segments.push(segment));
        segments
    }
}

/// A request for an SPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whom it is for.
    pub spu: u16,
    /// Its payload.
    pub body: Vec<u8>,
    /// Places that it reads and writes: where each range begins.
    pub places: Vec<Place>,
}

/// The pieces of a range of vectors, for each SPU that has some of the result; `None` where the result's file has a hole there.
fn pieces(range: (u64, u64), [to, x, y]: [Laid<'_>; 3]) -> Option<BTreeMap<u32, Vec<Piece>>> {
    let mut lists = [to, x, y].map(|laid| laid.list(range).into_iter().peekable());
    let mut of_spus: BTreeMap<u32, Vec<Piece>> = BTreeMap::new();
    while lists[0].peek().is_some() {
        let firsts: [Option<Segment>; 3] = lists.each_mut().map(|list| list.peek().copied());
        let [Some(to), Some(x), Some(y)] = firsts else { return None };
        if to.at.spu == HOLE {
            return None;
        }
        let bytes = to.bytes.min(x.bytes).min(y.bytes);
        for list in &mut lists {
            match list.peek_mut() {
                Some(segment) if segment.bytes > bytes => {
                    // A hole is the same everywhere.
                    let at = if segment.at.spu == HOLE { segment.at } else { segment.at.after(bytes) };
                    *segment = Segment { at, bytes: segment.bytes - bytes };
                }
                _ => drop(list.next()),
            }
        }
        let piece = Piece { to: to.at.address, x: x.at, y: y.at, bytes };
        let pieces = of_spus.entry(to.at.spu).or_default();
        let follows = |before: Place, now: Place, bytes: u32| {
            before.spu == now.spu && (now.spu == HOLE || before.after(bytes) == now)
        };
        match pieces.last_mut() {
            Some(last)
                if last.to + u64::from(last.bytes) == piece.to
                    && follows(last.x, piece.x, last.bytes)
                    && follows(last.y, piece.y, last.bytes)
                    && u64::from(last.bytes) + u64::from(bytes) <= REQUEST_BYTES =>
            {
                last.bytes += bytes;
            }
            _ => pieces.push(piece),
        }
    }
    Some(of_spus)
}

/// Requests for a range of vectors; `head` says all but the pieces. `None` where the result's file has a hole there.
pub fn saxpy(head: Saxpy, range: (u64, u64), files: [Laid<'_>; 3]) -> Option<Vec<Request>> {
    let mut requests = Vec::new();
    for (spu, pieces) in pieces(range, files)? {
        let mut some: Vec<Piece> = Vec::new();
        let mut sum = 0;
        let mut pack = |some: &mut Vec<Piece>| {
            let head = Saxpy { pieces: some.len() as u32, ..head };
            let mut body = head.encode().to_vec();
            body.extend(some.iter().flat_map(Piece::encode));
            let places = |piece: &Piece| [Place { spu, address: piece.to }, piece.x, piece.y];
            let places = some.iter().flat_map(places).filter(|place| place.spu != HOLE).collect();
            requests.push(Request { spu: spu as u16, body, places });
            some.clear();
        };
        for piece in pieces {
            if some.len() == PIECES_MAX || (sum + u64::from(piece.bytes) > REQUEST_BYTES && !some.is_empty()) {
                pack(&mut some);
                sum = 0;
            }
            sum += u64::from(piece.bytes);
            some.push(piece);
        }
        pack(&mut some);
    }
    Some(requests)
}

/// A batch of rows that is still to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Rows.
    pub rows: u32,
    /// Where they are.
    pub sources: Vec<Segment>,
    /// Where they go.
    pub destinations: Vec<Segment>,
}

impl PlannedBatch {
    fn segments(&self) -> usize {
        self.sources.len() + self.destinations.len()
    }

    fn encoded_bytes(&self) -> usize {
        Batch::BYTES + self.segments() * Segment::BYTES
    }

    /// The SPU that has most of what it moves.
    fn spu(&self) -> u16 {
        let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
        for segment in self.sources.iter().chain(&self.destinations).filter(|segment| segment.at.spu != HOLE) {
            *bytes.entry(segment.at.spu).or_default() += u64::from(segment.bytes);
        }
        let most = bytes.into_iter().max_by_key(|(spu, bytes)| (*bytes, std::cmp::Reverse(*spu)));
        most.map_or(0, |(spu, _)| spu as u16)
    }
}

/// How rows lie in source and destination.
#[derive(Clone, Copy, Debug)]
pub struct Matrices<'a> {
    /// Where the rows are.
    pub source: Laid<'a>,
    /// Where they go.
    pub destination: Laid<'a>,
}

/// The batches of rows from `first` on, so many of them; each batch is at most `head.batch_bytes`. `None` where the destination has a hole there.
pub fn batches(head: &Rows, (first, rows): (u64, u64), files: Matrices<'_>) -> Option<Vec<PlannedBatch>> {
    let at_once = (u64::from(head.batch_bytes) / head.row_bytes()).max(1);
    let source_row_bytes = if head.real { head.row_bytes() / 2 } else { head.row_bytes() };
    let mut batches = Vec::new();
    let mut row = first;
    while row < first + rows {
        let count = at_once.min(first + rows - row);
        let sources = files.source.list((row * source_row_bytes, count * source_row_bytes));
        let destinations = files.destination.list((row * head.row_bytes(), count * head.row_bytes()));
        if destinations.iter().any(|segment| segment.at.spu == HOLE) {
            return None;
        }
        batches.push(PlannedBatch { rows: count as u32, sources, destinations });
        row += count;
    }
    Some(batches)
}

/// A tile of a matrix, which is transposed: its first row and column in the source.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// First row.
    pub row: u64,
    /// First column.
    pub column: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
}

/// A tile of a matrix of `shape` (rows and columns of the source) as a batch; `None` where the destination has a hole there.
pub fn tile(element_bytes: u64, shape: (u64, u64), tile: Tile, files: Matrices<'_>) -> Option<PlannedBatch> {
    let (mut sources, mut destinations) = (Vec::new(), Vec::new());
    for row in tile.row..tile.row + tile.rows {
        let range = ((row * shape.1 + tile.column) * element_bytes, tile.columns * element_bytes);
        files.source.segments(range, |segment| sources.push(segment));
    }
    for column in tile.column..tile.column + tile.columns {
        let range = ((column * shape.0 + tile.row) * element_bytes, tile.rows * element_bytes);
        files.destination.segments(range, |segment| destinations.push(segment));
    }
    let is_whole = destinations.iter().all(|segment| segment.at.spu != HOLE);
    is_whole.then_some(PlannedBatch { rows: tile.rows as u32, sources, destinations })
}

/// Requests that transpose some rows, from the first one on, of a matrix of `shape`, in tiles that are `wide` wide; the last one may be narrower. `None` where the
/// destination has a hole there.
pub fn tiles(
    number: Number,
    shape: (u64, u64),
    ((row, rows), wide): ((u64, u64), u64),
    files: Matrices<'_>,
    spus: u16,
) -> Option<Vec<Request>> {
    let element_bytes = 2 * u64::from(number.bytes());
    let whole = shape.1 / wide * wide;
    let mut requests = Vec::new();
    // Those of a request have one width.
    for (begin, end, columns) in [(0, whole, wide), (whole, shape.1, shape.1 - whole)] {
        if begin == end {
            continue;
        }
        let head = Rows {
            work: Work::Transpose,
            real: false,
            number_bytes: number.bytes(),
            count: columns as u32,
            batch_bytes: (rows * columns * element_bytes) as u32,
            batches: 0,
        };
        let tiles = (begin..end).step_by(columns as usize).map(|column| Tile { row, column, rows, columns });
        let batches: Option<Vec<_>> = tiles.map(|it| tile(element_bytes, shape, it, files)).collect();
        requests.extend(self::rows(head, batches?, spus));
    }
    Some(requests)
}

/// Requests of batches: each for the SPU that has most of what it moves, or, where that is no more than another has, for the next one in turn.
pub fn rows(head: Rows, batches: Vec<PlannedBatch>, spus: u16) -> Vec<Request> {
    let mut of_spus: BTreeMap<u16, Vec<PlannedBatch>> = BTreeMap::new();
    for (number, batch) in batches.into_iter().enumerate() {
        let is_local = batch.sources.len() <= 1 && batch.destinations.len() <= 1;
        let spu = if is_local { batch.spu() } else { (number % usize::from(spus.max(1))) as u16 };
        of_spus.entry(spu).or_default().push(batch);
    }
    let mut requests = Vec::new();
    for (spu, batches) in of_spus {
        let mut some: Vec<PlannedBatch> = Vec::new();
        let (mut encoded, mut segments, mut sum) = (Rows::BYTES, 0, 0);
        let mut pack = |some: &mut Vec<PlannedBatch>| {
            if some.is_empty() {
                return;
            }
            let largest = some.iter().map(|batch| u64::from(batch.rows) * head.row_bytes()).max().unwrap_or(0);
            let head = Rows { batches: some.len() as u32, batch_bytes: largest as u32, ..head };
            let mut body = head.encode().to_vec();
            let mut places = Vec::new();
            for batch in some.drain(..) {
                let counts = (batch.sources.len() as u16, batch.destinations.len() as u16);
                body.extend(Batch { rows: batch.rows, sources: counts.0, destinations: counts.1 }.encode());
                for segment in batch.sources.iter().chain(&batch.destinations) {
                    body.extend(segment.encode());
                    places.push(segment.at);
                }
            }
            places.retain(|place| place.spu != HOLE);
            requests.push(Request { spu, body, places });
        };
        for batch in batches {
            let bytes = u64::from(batch.rows) * head.row_bytes();
            let is_full =
                encoded + batch.encoded_bytes() > BODY_BYTES_MAX || segments + batch.segments() > SEGMENTS_MAX;
            if is_full || sum + bytes > REQUEST_BYTES {
                pack(&mut some);
                (encoded, segments, sum) = (Rows::BYTES, 0, 0);
            }
            encoded += batch.encoded_bytes();
            segments += batch.segments();
            sum += bytes;
            some.push(batch);
        }
        pack(&mut some);
    }
    requests
}

const _: () = assert!(Saxpy::BYTES + PIECES_MAX * Piece::BYTES <= BODY_BYTES_MAX);
