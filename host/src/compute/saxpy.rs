//! a = alpha * x + y of files of vectors (XSSD, 4.2).

use super::files::{Input, Output, PIECE_BYTES, laid};
use super::{ComputeError, Done, Drive, Options};
use crate::direct_io::DirectFile;
use compute_host::npy::Array;
use compute_host::plan;
use compute_host::wire::{CHUNK_BYTES_MAX, Saxpy, handler};
use std::path::Path;

/// Bytes of each vector that are planned at once.
const WINDOW_BYTES: u64 = 16 << 20;

/// The three files, directly: the result's, x, y.
type Direct = [DirectFile; 3];

fn close(files: Direct) -> Result<(), ComputeError> {
    // Each is given back, whatever came of the others.
    let closed = files.map(DirectFile::close);
    closed.into_iter().collect::<Result<(), _>>().map_err(ComputeError::from)
}

/// Opens all three directly; or says which one cannot be, and why.
fn open(
    drive: &Drive,
    output: &mut Output,
    inputs: [&Input; 2],
) -> Result<Result<Direct, (usize, String)>, ComputeError> {
    let mut opened = Vec::with_capacity(3);
    let descriptors = [output.take()?, inputs[0].descriptor()?, inputs[1].descriptor()?];
    for (place, descriptor) in descriptors.into_iter().enumerate() {
        match drive.open(descriptor)? {
            Ok(file) => opened.push(file),
            Err(why) => return Ok(Err((place, why))),
        }
    }
    // There are as many as were asked for.
    opened.try_into().map(Ok).map_err(|_| ComputeError::Busy)
}

async fn in_drive(
    drive: &Drive,
    alpha: f64,
    (files, array): (&Direct, &Array),
    (begins, inputs): ([u64; 3], [&Input; 2]),
) -> Result<(), ComputeError> {
    let [to, x, y] = files;
    inputs[0].check_length(x)?;
    inputs[1].check_length(y)?;
    let apps = drive.apps(to).await?;
    let number_bytes = array.element.number.bytes();
    let head = Saxpy { alpha, number_bytes, chunk_bytes: CHUNK_BYTES_MAX, pieces: 0 };
    let (mut at, bytes) = (0, array.bytes());
    to.note_write();
    let next = || {
        if at == bytes {
            return Ok(None);
        }
        let range = (at, WINDOW_BYTES.min(bytes - at));
        at += range.1;
        let planned = plan::saxpy(head, range, [laid(to, begins[0]), laid(x, begins[1]), laid(y, begins[2])]);
        planned.map(Some).ok_or(ComputeError::TakenBack)
    };
    super::run::run(drive, (apps, handler::SAXPY, to.geometry().spus), next).await?;
    Ok(to.sync().await?)
}

fn by_host(alpha: f64, output: &mut Output, (inputs, array): ([&Input; 2], &Array)) -> Result<u64, ComputeError> {
    let (mut x, mut y) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let (mut at, bytes) = (0, array.bytes());
    while at < bytes {
        let now = (bytes - at).min(PIECE_BYTES as u64) as usize;
        inputs[0].read(&mut x[..now], at)?;
        inputs[1].read(&mut y[..now], at)?;
        compute_host::multiply_add(array.element.number, alpha, &x[..now], &mut y[..now]);
        output.write(&y[..now], at)?;
        at += now as u64;
    }
    inputs.into_iter().try_for_each(Input::check_unchanged)?;
    Ok(3 * bytes)
}

/// Writes alpha * x + y to `out`, number by number, each rounded after the multiplication and after the addition, as numpy's `alpha * x + y` is for an
/// alpha of the vectors' type. The vectors have one type (f4 or f8), order and shape, which the result has too.
pub async fn saxpy(
    drive: Option<&Drive>,
    options: Options,
    (alpha, x, y): (f64, &Path, &Path),
    out: &Path,
) -> Result<Done, ComputeError> {
    let inputs = [Input::open(x, options.form)?, Input::open(y, options.form)?];
    let inputs = inputs.each_ref();
    let array = inputs[0].array.clone();
    if array.element.complex {
        return Err(ComputeError::unfit(
            x,
            format!("its elements are {}: vectors of f4 or f8 are worked on", array.element),
        ));
    }
    if inputs[1].array != array {
        let what = |of: &Array| {
            format!("{}{:?}{}", of.element, of.shape, if of.fortran_order { " in Fortran's order" } else { "" })
        };
        let (is, wanted) = (what(&inputs[1].array), what(&array));
        return Err(ComputeError::unfit(y, format!("it is {is}, and {} is {wanted}", x.display())));
    }
    let mut output = Output::new(out, (&array, options.form, options.in_place), &inputs)?;
    let mut done = Done { elements: array.elements(), element: Some(array.element), by_host: None, host_bytes: 0 };
    // Pieces end where stripes do, and a number lies in one of them.
    let begins = [output.begin, inputs[0].begin, inputs[1].begin];
    let unaligned = begins.iter().position(|begin| !begin.is_multiple_of(array.element.bytes()));
    let refused = match drive {
        None => (0, "no drive is named".to_owned()),
        Some(_) if unaligned.is_some() => {
            (unaligned.unwrap_or_default(), "its numbers do not begin at a multiple of their size".to_owned())
        }
        Some(drive) => match open(drive, &mut output, inputs)? {
            Ok(files) => {
                let begins = [output.begin, inputs[0].begin, inputs[1].begin];
                let computed = in_drive(drive, alpha, (&files, &array), (begins, inputs)).await;
                // Whatever came of it, files are given back before anything else is done.
                let closed = close(files);
                computed.and(closed)?;
                output.commit()?;
                return Ok(done);
            }
            Err(refused) => refused,
        },
    };
    let (place, why) = refused;
    if options.drive_only {
        let path = [out, x, y][place].to_owned();
        return Err(ComputeError::NotInDrive { path, why });
    }
    done.host_bytes = by_host(alpha, &mut output, (inputs, &array))?;
    done.by_host = Some(why);
    output.commit()?;
    Ok(done)
}
