//! The multiply-add and FFT accelerators: rows of floating-point numbers in local memory.

use core::future::Future;

use crate::executor::{Issued, Operation, Wait};
use crate::request::{Request, completed, issued};
use crate::{Error, sys};

/// Most bytes of a row of [`Request::multiply_add`], and of the rows of [`Request::fft`] together.
pub const ROW_BYTES_MAX: usize = 512 << 10;

/// A kind of real numbers, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Of 4 bytes.
    Single,
    /// Of 8 bytes.
    Double,
}

impl Number {
    /// The kind that takes so many bytes.
    pub fn of_bytes(bytes: u32) -> Option<Number> {
        match bytes {
            4 => Some(Number::Single),
            8 => Some(Number::Double),
            _ => None,
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> u32 {
        match self {
            Number::Single => 4,
            Number::Double => 8,
        }
    }
}

impl Request {
    /// y = alpha * x + y, number by number, by the accelerator; the processor is free meanwhile. Both have as many whole numbers.
    pub fn multiply_add<'a>(
        &'a self,
        number: Number,
        alpha: f64,
        x: &'a [u8],
        y: &'a mut [u8],
    ) -> impl Future<Output = Result<(), Error>> + use<'a> {
        let fits = x.len() == y.len() && x.len().is_multiple_of(number.bytes() as usize) && x.len() <= ROW_BYTES_MAX;
        let count = x.len() as u32 / number.bytes();
        let (x, y) = (x.as_ptr(), y.as_mut_ptr());
        Wait::new(MultiplyAdd { token: self.token(), number, alpha, x, y, count, fits })
    }

    /// Fourier transforms of rows of `count` complex numbers, one behind the other, each in its place, by the accelerator; the
    /// processor is free meanwhile. The inverse divides by `count`.
    pub fn fft<'a>(
        &'a self,
        number: Number,
        inverse: bool,
        count: u32,
        rows: &'a mut [u8],
    ) -> impl Future<Output = Result<(), Error>> + use<'a> {
        let row_bytes = u64::from(count) * 2 * u64::from(number.bytes());
        let fits = row_bytes > 0 && (rows.len() as u64).is_multiple_of(row_bytes) && rows.len() <= ROW_BYTES_MAX;
        let number_of_rows = if fits { rows.len() as u64 / row_bytes } else { 0 } as u32;
        let data = rows.as_mut_ptr();
        Wait::new(Transform { token: self.token(), number, inverse, count, rows: number_of_rows, data, fits })
    }
}

struct MultiplyAdd {
    token: u32,
    number: Number,
    alpha: f64,
    x: *const u8,
    y: *mut u8,
    count: u32,
    /// Whether both buffers have so many numbers.
    fits: bool,
}

impl Operation for MultiplyAdd {
    type Output = Result<(), Error>;
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if !self.fits {
            return Issued::Done(Err(Error::Argument));
        }
        let MultiplyAdd { token, number, alpha, x, y, count, .. } = *self;
        // SAFETY: both buffers are as long as `count` says, and borrowed by the pending operation.
        issued(unsafe { sys::multiply_add(token, number.bytes(), alpha.to_bits(), x, y, count, wait) })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}

struct Transform {
    token: u32,
    number: Number,
    inverse: bool,
    count: u32,
    rows: u32,
    data: *mut u8,
    /// Whether the buffer has so many whole rows.
    fits: bool,
}

impl Operation for Transform {
    type Output = Result<(), Error>;
    const LOCAL: bool = true;

    fn issue(&mut self, wait: u32) -> Issued<Self::Output> {
        if !self.fits {
            return Issued::Done(Err(Error::Argument));
        }
        let Transform { token, number, inverse, count, rows, data, .. } = *self;
        // SAFETY: the buffer is as long as `count` and `rows` say, and borrowed by the pending operation.
        issued(unsafe { sys::fft(token, number.bytes(), inverse.into(), data, count, rows, wait) })
    }

    fn completed(&mut self, result: i64) -> Self::Output {
        completed(result)
    }
}
