//! Numeric kernels on files of numbers, done in the drive, for programs in C.
//!
//! What always holds: a call waits until its result is there or it has failed; nothing of a caller's is used past it.
//!
//! Who may call it: the functions of `libwillow.h`.

use crate::{Failure, invalid, text, told};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use willow_host::compute::{self, ComputeError, Done, Drive, Element, FftOptions, Form, Options, Transposer};

/// Most axes, as numpy has.
const DIMENSIONS_MAX: usize = 64;

/// As in the header.
const DRIVE_ONLY: u32 = 1;
const IN_PLACE: u32 = 2;
const INVERSE: u32 = 16;
const TWO_DIMENSIONAL: u32 = 32;
const TRANSPOSE_DRIVE: u32 = 64;

impl From<ComputeError> for Failure {
    fn from(error: ComputeError) -> Self {
        Failure(error.errno(), error.to_string())
    }
}

fn path(of: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(of.to_bytes()))
}

/// Runs a kernel: 0 where the drive did it, 1 where this host did.
///
/// # Safety
/// `agent` is null or a string, and so is `dtype`.
unsafe fn run(
    (agent, dtype, flags): (*const c_char, *const c_char, u32),
    kernel: impl AsyncFnOnce(&Drive, Options) -> Result<Done, ComputeError>,
) -> Result<c_int, Failure> {
    // SAFETY: the caller's strings.
    let agent = unsafe { text(agent, "agent's socket")? };
    let form = match dtype.is_null() {
        true => Form::Npy,
        false => {
            // SAFETY: the caller's string.
            let name = unsafe { text(dtype, "type")? }.to_string_lossy();
            Form::Raw(Element::of_name(&name).ok_or_else(|| invalid("the type is none of f4, f8, c8, c16"))?)
        }
    };
    if flags & !(DRIVE_ONLY | IN_PLACE) != 0 {
        return Err(invalid("there is no such flag"));
    }
    let options = Options { form, drive_only: flags & DRIVE_ONLY != 0, in_place: flags & IN_PLACE != 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure(error.raw_os_error().unwrap_or(libc::ENOMEM), error.to_string()))?;
    runtime.block_on(async {
        let drive = Drive::connect(path(agent), None).await?;
        let done = kernel(&drive, options).await?;
        Ok(c_int::from(done.by_host.is_some()))
    })
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_saxpy(
    agent: *const c_char,
    alpha: f64,
    x: *const c_char,
    y: *const c_char,
    out: *const c_char,
    dtype: *const c_char,
    flags: u32,
) -> c_int {
    let saxpy = || -> Result<_, Failure> {
        // SAFETY: the caller's strings.
        let (x, y, out) = unsafe { (text(x, "first vector")?, text(y, "second vector")?, text(out, "result")?) };
        let (x, y, out) = (path(x), path(y), path(out));
        // SAFETY: the same.
        unsafe {
            run((agent, dtype, flags), async |drive, options| {
                compute::saxpy(Some(drive), options, (alpha, x, y), out).await
            })
        }
    };
    told(saxpy(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_fft(
    agent: *const c_char,
    input: *const c_char,
    out: *const c_char,
    dtype: *const c_char,
    shape: *const u64,
    dimensions: usize,
    flags: u32,
) -> c_int {
    let fft = || -> Result<_, Failure> {
        // SAFETY: the caller's strings.
        let (input, out) = unsafe { (text(input, "input")?, text(out, "result")?) };
        let (input, out) = (path(input), path(out));
        let shape = match (shape.is_null(), dtype.is_null()) {
            (true, _) => None,
            (false, true) => return Err(invalid("a .npy file says its shape")),
            (false, false) if (1..=DIMENSIONS_MAX).contains(&dimensions) => {
                // SAFETY: the caller's sizes.
                Some(unsafe { std::slice::from_raw_parts(shape, dimensions) })
            }
            _ => return Err(invalid("a shape has 1 to 64 axes")),
        };
        let has = |flag: u32| flags & flag != 0;
        let transposer = if has(TRANSPOSE_DRIVE) { Transposer::Drive } else { Transposer::Host };
        let what = FftOptions { inverse: has(INVERSE), two_dimensional: has(TWO_DIMENSIONAL), transposer };
        let flags = flags & !(INVERSE | TWO_DIMENSIONAL | TRANSPOSE_DRIVE);
        // SAFETY: the caller's strings.
        unsafe {
            run((agent, dtype, flags), async |drive, options| {
                compute::fft(Some(drive), (options, what), (input, shape), out).await
            })
        }
    };
    told(fft(), -1)
}
