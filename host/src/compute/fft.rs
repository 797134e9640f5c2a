//! Fourier transforms of files of numbers (XSSD, 4.3): of rows by the SPUs, and of matrices by rows, a transposition in blocks, and rows again.
//!
//! What always holds: a step reads one file and writes another, so that what is sent again for a missing permission is never transformed twice. The result's own
//! file holds the rows of the first step; what is transposed lies in a file that is removed at the end.

use super::files::{Input, Output, PIECE_BYTES, laid};
use super::{Apps, ComputeError, Done, Drive, Options};
use crate::direct_io::DirectFile;
use crate::hre::BoxFuture;
use compute_host::npy::Array;
use compute_host::plan::{self, Matrices};
use compute_host::transform::{Transformer, transpose, widen};
use compute_host::wire::{BATCH_BYTES_MAX, Rows, Work, handler};
use compute_host::{Element, Number};
use std::path::Path;

/// Bytes of rows that are planned at once.
const WINDOW_BYTES: u64 = 32 << 20;
/// Rows that are shorter are worked on together, up to this; longer ones one by one.
const TOGETHER_BYTES: u64 = 64 << 10;
/// Rows and columns of a block that this host transposes: eight to sixteen MiB of each file at a time.
const BLOCK: u64 = 1024;
/// Reads, or writes, of rows of a block at once.
const AT_ONCE: usize = 64;
/// Rows and columns of a block that an SPU transposes.
const TILE: u64 = 64;

/// Who transposes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transposer {
    /// This host, as in the thesis: blocks cross its link twice.
    #[default]
    Host,
    /// The SPUs: blocks go over the drive's ring.
    Drive,
}

/// What is transformed, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FftOptions {
    /// The inverse, which divides by the number of numbers.
    pub inverse: bool,
    /// Both axes of a matrix, instead of the last one.
    pub two_dimensional: bool,
    /// Who transposes a matrix.
    pub transposer: Transposer,
}

/// Rows to be transformed.
#[derive(Clone, Copy)]
struct Pass {
    number: Number,
    inverse: bool,
    real: bool,
    rows: u64,
    count: u64,
}

impl Pass {
    fn head(&self) -> Rows {
        let row_bytes = self.count * 2 * u64::from(self.number.bytes());
        let batch_bytes = if row_bytes >= TOGETHER_BYTES { row_bytes } else { TOGETHER_BYTES / row_bytes * row_bytes };
        Rows {
            work: if self.inverse { Work::Inverse } else { Work::Forward },
            real: self.real,
            number_bytes: self.number.bytes(),
            count: self.count as u32,
            batch_bytes: batch_bytes as u32,
            batches: 0,
        }
    }

    fn row_bytes(&self) -> u64 {
        self.head().row_bytes()
    }
}

/// A direct file, and where its numbers begin.
type At<'a> = (&'a DirectFile, u64);

async fn pass_in_drive(
    drive: &Drive,
    apps: Apps,
    pass: Pass,
    (from, to): (At<'_>, At<'_>),
) -> Result<(), ComputeError> {
    let (head, spus) = (pass.head(), to.0.geometry().spus);
    let rows_at_once = (WINDOW_BYTES / pass.row_bytes()).max(1);
    let mut row = 0;
    to.0.note_write();
    let next = || {
        if row == pass.rows {
            return Ok(None);
        }
        let range = (row, rows_at_once.min(pass.rows - row));
        row += range.1;
        let files = Matrices { source: laid(from.0, from.1), destination: laid(to.0, to.1) };
        let batches = plan::batches(&head, range, files).ok_or(ComputeError::TakenBack)?;
        Ok(Some(plan::rows(head, batches, spus)))
    };
    super::run::run(drive, (apps, handler::ROWS, spus), next).await
}

async fn transpose_in_drive(
    drive: &Drive,
    apps: Apps,
    (number, shape): (Number, (u64, u64)),
    (from, to): (At<'_>, At<'_>),
) -> Result<(), ComputeError> {
    let spus = to.0.geometry().spus;
    let mut row = 0;
    to.0.note_write();
    let next = || {
        if row == shape.0 {
            return Ok(None);
        }
        let files = Matrices { source: laid(from.0, from.1), destination: laid(to.0, to.1) };
        let rows = TILE.min(shape.0 - row);
        let requests = plan::tiles(number, shape, ((row, rows), TILE), files, spus).ok_or(ComputeError::TakenBack)?;
        row += rows;
        Ok(Some(requests))
    };
    super::run::run(drive, (apps, handler::ROWS, spus), next).await
}

/// Blocks of a matrix of this shape, one after the other: reads one, transposes it, writes it. `read` and `write` take numbers of rows' parts of the source and of
/// the destination: (offset in the data, place in the block).
async fn blocks<'a>(
    element_bytes: u64,
    shape: (u64, u64),
    mut read: impl AsyncFnMut(&[u64], usize, &mut [u8]) -> Result<(), ComputeError> + 'a,
    mut write: impl AsyncFnMut(&[u64], usize, &[u8]) -> Result<(), ComputeError> + 'a,
) -> Result<(), ComputeError> {
    let bytes = (BLOCK.min(shape.0) * BLOCK.min(shape.1) * element_bytes) as usize;
    let (mut block, mut turned) = (vec![0; bytes], vec![0; bytes]);
    for row in (0..shape.0).step_by(BLOCK as usize) {
        for column in (0..shape.1).step_by(BLOCK as usize) {
            // The last ones may be smaller.
            let (rows, columns) = (BLOCK.min(shape.0 - row), BLOCK.min(shape.1 - column));
            let bytes = (rows * columns * element_bytes) as usize;
            let (block, turned) = (&mut block[..bytes], &mut turned[..bytes]);
            let from: Vec<u64> = (row..row + rows).map(|row| (row * shape.1 + column) * element_bytes).collect();
            read(&from, (columns * element_bytes) as usize, block).await?;
            transpose(block, turned, element_bytes as usize, (rows as usize, columns as usize));
            let to: Vec<u64> = (column..column + columns).map(|at| (at * shape.0 + row) * element_bytes).collect();
            write(&to, (rows * element_bytes) as usize, turned).await?;
        }
    }
    Ok(())
}

/// Waits for operations, some at once.
async fn some_at_once<T, E: Into<ComputeError>>(
    operations: Vec<BoxFuture<'_, Result<T, E>>>,
) -> Result<Vec<T>, ComputeError> {
    let mut done = Vec::with_capacity(operations.len());
    let mut operations = operations.into_iter();
    loop {
        let some: Vec<_> = operations.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return Ok(done);
        }
        for one in crate::direct_io::all(some).await {
            done.push(one.map_err(Into::into)?);
        }
    }
}

async fn transpose_by_host(
    (number, shape): (Number, (u64, u64)),
    (from, to): (At<'_>, At<'_>),
) -> Result<(), ComputeError> {
    let read = async |offsets: &[u64], bytes: usize, block: &mut [u8]| {
        let parts = block.chunks_exact_mut(bytes).zip(offsets);
        let reads = parts.map(|(part, offset)| Box::pin(from.0.read_at(part, from.1 + offset)) as BoxFuture<'_, _>);
        let counts = some_at_once(reads.collect()).await?;
        // Its length is fixed while it is direct.
        if counts.iter().all(|count| *count == bytes) { Ok(()) } else { Err(ComputeError::TakenBack) }
    };
    let write = async |offsets: &[u64], bytes: usize, block: &[u8]| {
        let parts = block.chunks_exact(bytes).zip(offsets);
        let writes = parts.map(|(part, offset)| Box::pin(to.0.write_at(part, to.1 + offset)) as BoxFuture<'_, _>);
        some_at_once(writes.collect()).await.map(|_| ())
    };
    blocks(2 * u64::from(number.bytes()), shape, read, write).await
}

/// The files of a transform, directly: the result's, the input, and for a matrix the one between.
struct Direct {
    files: Vec<DirectFile>,
}

impl Direct {
    fn close(self) -> Result<(), ComputeError> {
        // Each is given back, whatever came of the others.
        let closed: Vec<_> = self.files.into_iter().map(DirectFile::close).collect();
        closed.into_iter().collect::<Result<(), _>>().map_err(ComputeError::from)
    }
}

/// Opens all directly; or says which one cannot be, and why.
fn open(
    drive: &Drive,
    output: &mut Output,
    input: &Input,
    between: Option<&mut Output>,
) -> Result<Result<Direct, (bool, String)>, ComputeError> {
    let mut opened = Direct { files: Vec::new() };
    let mut descriptors = vec![(false, output.take()?), (true, input.descriptor()?)];
    if let Some(between) = between {
        descriptors.push((false, between.take()?));
    }
    for (is_input, descriptor) in descriptors {
        match drive.open(descriptor)? {
            Ok(file) => opened.files.push(file),
            Err(why) => return Ok(Err((is_input, why))),
        }
    }
    Ok(Ok(opened))
}

/// What is to be done, once files are looked at.
struct Job {
    first: Pass,
    /// Of a matrix: the rows of the transposed one.
    second: Option<Pass>,
    transposer: Transposer,
}

impl Job {
    async fn in_drive(
        &self,
        drive: &Drive,
        direct: &Direct,
        begins: (u64, u64),
        input: &Input,
    ) -> Result<u64, ComputeError> {
        let (to, from) = (&direct.files[0], &direct.files[1]);
        input.check_length(from)?;
        let apps = drive.apps(to).await?;
        let (to, from) = ((to, begins.0), (from, begins.1));
        pass_in_drive(drive, apps, self.first, (from, to)).await?;
        let mut host_bytes = 0;
        if let (Some(second), Some(between)) = (self.second, direct.files.get(2)) {
            let what = (self.first.number, (self.first.rows, self.first.count));
            let between = (between, 0);
            match self.transposer {
                Transposer::Drive => transpose_in_drive(drive, apps, what, (to, between)).await?,
                Transposer::Host => {
                    transpose_by_host(what, (to, between)).await?;
                    host_bytes = 2 * self.first.rows * self.first.row_bytes();
                }
            }
            pass_in_drive(drive, apps, second, (between, to)).await?;
        }
        to.0.sync().await?;
        Ok(host_bytes)
    }

    async fn by_host(
        &self,
        output: &mut Output,
        input: &Input,
        between: Option<&mut Output>,
    ) -> Result<u64, ComputeError> {
        let mut transformer = Transformer::default();
        let mut host_bytes = 0;
        let Pass { number, inverse, rows, count, real } = self.first;
        let row_bytes = self.first.row_bytes();
        let at_once = (PIECE_BYTES as u64 / row_bytes).max(1);
        let (mut source, mut complex) = (Vec::new(), Vec::new());
        for row in (0..rows).step_by(at_once as usize) {
            let bytes = at_once.min(rows - row) * row_bytes;
            let source_bytes = if real { bytes / 2 } else { bytes };
            source.resize(source_bytes as usize, 0);
            input.read(&mut source, row * if real { row_bytes / 2 } else { row_bytes })?;
            let rows = match real {
                true => {
                    widen(&source, number, &mut complex);
                    &mut complex
                }
                false => &mut source,
            };
            transformer.run(number, (count as usize, inverse), rows);
            output.write(rows, row * row_bytes)?;
            host_bytes += source_bytes + bytes;
        }
        input.check_unchanged()?;
        let (Some(second), Some(between)) = (self.second, between) else { return Ok(host_bytes) };
        let element_bytes = 2 * u64::from(number.bytes());
        let read = async |offsets: &[u64], bytes: usize, block: &mut [u8]| {
            let mut parts = block.chunks_exact_mut(bytes).zip(offsets);
            parts.try_for_each(|(part, offset)| output.read(part, *offset))
        };
        let write = async |offsets: &[u64], bytes: usize, block: &[u8]| {
            let mut parts = block.chunks_exact(bytes).zip(offsets);
            parts.try_for_each(|(part, offset)| between.write(part, *offset))
        };
        blocks(element_bytes, (rows, count), read, write).await?;
        let row_bytes = second.row_bytes();
        let at_once = (PIECE_BYTES as u64 / row_bytes).max(1);
        for row in (0..second.rows).step_by(at_once as usize) {
            source.resize((at_once.min(second.rows - row) * row_bytes) as usize, 0);
            between.read(&mut source, row * row_bytes)?;
            transformer.run(number, (second.count as usize, inverse), &mut source);
            output.write(&source, row * row_bytes)?;
        }
        Ok(host_bytes + 4 * rows * self.first.row_bytes())
    }
}

/// Whether rows of so many numbers can be transformed; else what is wrong.
fn check(path: &Path, number: Number, count: u64, what: &str) -> Result<(), ComputeError> {
    let most = u64::from(BATCH_BYTES_MAX) / (2 * u64::from(number.bytes()));
    if (1..=most).contains(&count) {
        return Ok(());
    }
    let what = format!("its {what} have {count} numbers: 1 to {most} are worked on");
    Err(ComputeError::unfit(path, what))
}

/// The shape and order of a matrix as rows and their length, as it lies in the file.
fn rows_of(path: &Path, array: &Array, options: &FftOptions) -> Result<(u64, u64), ComputeError> {
    if options.two_dimensional {
        return match array.shape[..] {
            // Both axes are transformed alike, so that the order does not matter.
            [rows, columns] if array.fortran_order => Ok((columns, rows)),
            [rows, columns] => Ok((rows, columns)),
            _ => Err(ComputeError::unfit(path, format!("it has {} dimensions, and a matrix has 2", array.shape.len()))),
        };
    }
    let Some((count, before)) = array.shape.split_last() else {
        return Err(ComputeError::unfit(path, "it is a single number"));
    };
    if array.fortran_order && before.iter().any(|size| *size > 1) {
        return Err(ComputeError::unfit(path, "its last axis does not lie together (Fortran's order)"));
    }
    Ok((before.iter().product(), *count))
}

/// Transforms the numbers of a file: along the last axis, as `numpy.fft.fft` does, or along both axes of a matrix, as `numpy.fft.fft2`. The result is complex, of the
/// input's precision; that of a matrix lies in the other order (Fortran's, where the input has C's), which its header says. `shape`: of a file of plain numbers.
pub async fn fft(
    drive: Option<&Drive>,
    (options, how): (Options, FftOptions),
    (path, shape): (&Path, Option<&[u64]>),
    out: &Path,
) -> Result<Done, ComputeError> {
    let mut input = Input::open(path, options.form)?;
    if let Some(shape) = shape {
        let elements = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        if elements != Some(input.array.elements()) {
            let what =
                format!("it has {} numbers, and those of the shape {shape:?} are others", input.array.elements());
            return Err(ComputeError::unfit(path, what));
        }
        input.array.shape = shape.to_vec();
    }
    let Element { number, complex } = input.array.element;
    let (rows, count) = rows_of(path, &input.array, &how)?;
    check(path, number, count, "rows")?;
    let first = Pass { number, inverse: how.inverse, real: !complex, rows, count };
    let mut result = Array { element: Element { number, complex: true }, ..input.array.clone() };
    let mut second = None;
    if how.two_dimensional {
        check(path, number, rows, "columns")?;
        second = Some(Pass { real: false, rows: count, count: rows, ..first });
        result.fortran_order = !result.fortran_order;
    }
    let mut output = Output::new(out, (&result, options.form, options.in_place), &[&input])?;
    let mut between = second.map(|_| Output::scratch(out, result.bytes())).transpose()?;
    let job = Job { first, second, transposer: how.transposer };
    let mut done = Done { elements: result.elements(), element: Some(result.element), by_host: None, host_bytes: 0 };
    let (is_input, why) = match drive {
        None => (true, "no drive is named".to_owned()),
        Some(drive) => match open(drive, &mut output, &input, between.as_mut())? {
            Ok(direct) => {
                let computed = job.in_drive(drive, &direct, (output.begin, input.begin), &input).await;
                // Whatever came of it, files are given back before anything else is done.
                let closed = direct.close();
                done.host_bytes = computed.and_then(|bytes| closed.map(|()| bytes))?;
                output.commit()?;
                return Ok(done);
            }
            Err(refused) => refused,
        },
    };
    if options.drive_only {
        let path = if is_input { path } else { out }.to_owned();
        return Err(ComputeError::NotInDrive { path, why });
    }
    done.host_bytes = job.by_host(&mut output, &input, between.as_mut()).await?;
    done.by_host = Some(why);
    output.commit()?;
    Ok(done)
}
