//! What imports fail with, and the responses that handlers end with. The numbers are the ABI's (docs/abi.md).

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Error {
    /// A port, length, stride or handle that cannot be.
    Argument = -2,
    /// An address past the body, the reply or a local buffer; past the bank nobody has a permission.
    Range = -3,
    /// The originating HRE may not access this range of NV memory, and it is no region of this app.
    Permission = -4,
    /// The media failed.
    Media = -5,
    /// No room: media, region space or disk.
    Full = -6,
    /// The receiver had no room, or there is no such app, SPU or handler.
    Refused = -7,
    /// The other side ended before it answered.
    Ended = -8,
    /// No such region or namespace.
    NotFound = -9,
    /// This app has cancelled it.
    Cancelled = -10,
}

impl Error {
    /// From an import's negative result; a number of a later ABI is [`Error::Argument`].
    #[inline]
    pub const fn from_code(code: i64) -> Error {
        if code >= Error::Cancelled as i64 && code <= Error::Argument as i64 {
            // SAFETY: every number in this range is an `Error`.
            unsafe { core::mem::transmute::<i32, Error>(code as i32) }
        } else {
            Error::Argument
        }
    }

    /// The ABI's number.
    #[inline]
    pub const fn code(self) -> i32 {
        self as i32
    }
}

impl core::fmt::Display for Error {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Error::Argument => "an argument that cannot be",
            Error::Range => "an address out of range",
            Error::Permission => "not permitted",
            Error::Media => "the media failed",
            Error::Full => "no room",
            Error::Refused => "refused by the receiver",
            Error::Ended => "the other side ended",
            Error::NotFound => "not found",
            Error::Cancelled => "cancelled",
        })
    }
}

impl core::error::Error for Error {}

/// How a request ends: the fixed-size response whose delivery is guaranteed (Willow, section 2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// 0 is success; all else is the app's own.
    pub status: u32,
    /// A value.
    pub result: u32,
}

impl Response {
    /// Success with a value.
    #[inline]
    pub const fn success(result: u32) -> Response {
        Response { status: 0, result }
    }

    /// A status other than success.
    #[inline]
    pub const fn failure(status: u32) -> Response {
        Response { status, result: 0 }
    }
}

impl From<()> for Response {
    #[inline]
    fn from((): ()) -> Response {
        Response::success(0)
    }
}

impl From<u32> for Response {
    #[inline]
    fn from(result: u32) -> Response {
        Response::success(result)
    }
}

/// The status is the error's number in two's complement (FFFFFFFCh for a missing permission), so that `?` works in handlers.
impl From<Error> for Response {
    #[inline]
    fn from(error: Error) -> Response {
        Response::failure(error.code() as u32)
    }
}

impl<T: Into<Response>, E: Into<Response>> From<Result<T, E>> for Response {
    #[inline]
    fn from(result: Result<T, E>) -> Response {
        match result {
            Ok(value) => value.into(),
            Err(error) => error.into(),
        }
    }
}
