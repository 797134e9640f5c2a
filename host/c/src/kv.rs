//! Key-value namespaces for programs in C, over the host library's client and an endpoint in shared memory.
//!
//! What always holds: keys and values are copied, so that nothing of a caller's is used past its call; what the device answers about one pair of
//! several is that pair's, and fails no other.
//!
//! Who may call it: the functions of `libwillow.h`.

use crate::{Failure, invalid, of, range, text, told};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;
use willow_host::kv::{ItemCondition, StoreMany, StoreOptions};
use willow_host::{Hre, HreError, KvClient, ShmHre, ShmOptions};

/// Most pairs of one call.
const PAIRS_MAX: usize = 65536;

/// Conditions, as in the header.
const ALWAYS: u32 = 0;
const IF_EXISTS: u32 = 1;
const IF_ABSENT: u32 = 2;
const IF_VERSION: u32 = 3;

/// A namespace. In a forked child it is left alone.
#[allow(non_camel_case_types)]
pub struct willow_kv {
    client: KvClient,
    runtime: Runtime,
    process: u32,
}

/// As in the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct willow_kv_options {
    condition: u32,
    expiry: u32,
    version: u64,
    durable: c_int,
}

/// As in the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct willow_kv_pair {
    key: *const c_void,
    key_bytes: usize,
    value: *mut c_void,
    value_bytes: usize,
    condition: u32,
    expiry: u32,
    version: u64,
    result: i64,
}

/// As in the header.
#[allow(non_camel_case_types)]
type willow_kv_each = unsafe extern "C" fn(context: *mut c_void, key: *const c_void, key_bytes: usize) -> c_int;

impl From<HreError> for Failure {
    fn from(error: HreError) -> Self {
        Failure(errno(&error), error.to_string())
    }
}

fn errno(error: &HreError) -> c_int {
    match error {
        error if error.is_busy() => libc::EAGAIN,
        HreError::KeyNotFound => libc::ENOENT,
        HreError::KeyExists => libc::EEXIST,
        HreError::Changed => libc::ESTALE,
        HreError::KeySize => libc::EINVAL,
        HreError::ValueSize { .. } => libc::EMSGSIZE,
        HreError::Full => libc::ENOSPC,
        HreError::NotPermitted => libc::EACCES,
        HreError::Namespace { .. } => libc::ENODEV,
        _ => libc::EIO,
    }
}

impl willow_kv {
    fn wait<T>(&self, request: impl Future<Output = Result<T, HreError>>) -> Result<T, Failure> {
        if std::process::id() != self.process {
            return Err(Failure(libc::ENXIO, "the namespace was opened by the parent of this process".to_owned()));
        }
        Ok(self.runtime.block_on(request)?)
    }
}

/// # Safety
/// `start` has so many bytes, which stay as they are for as long as the result is used.
unsafe fn bytes<'a>(start: *const c_void, bytes: usize) -> Result<&'a [u8], Failure> {
    let (start, bytes) = range(start, bytes)?;
    // SAFETY: as above.
    Ok(unsafe { std::slice::from_raw_parts(start, bytes) })
}

/// Copies of a value what there is room for; returns its length.
///
/// # Safety
/// `into` has `room` bytes.
unsafe fn hand_out(value: &[u8], into: *mut c_void, room: usize) -> Result<usize, Failure> {
    let (start, room) = range(into, room)?;
    // SAFETY: as above, and the value is the library's own.
    unsafe { start.copy_from_nonoverlapping(value.as_ptr(), room.min(value.len())) };
    Ok(value.len())
}

fn condition(number: u32, version: u64) -> Result<ItemCondition, Failure> {
    match number {
        ALWAYS => Ok(ItemCondition::Always),
        IF_EXISTS => Ok(ItemCondition::IfExists),
        IF_ABSENT => Ok(ItemCondition::IfAbsent),
        IF_VERSION => Ok(ItemCondition::IfVersion(version)),
        other => Err(invalid(&format!("there is no condition {other}"))),
    }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_open(device: *const c_char, nsid: u32) -> *mut willow_kv {
    let open = || -> Result<_, Failure> {
        // SAFETY: the caller's string.
        let path = Path::new(OsStr::from_bytes(unsafe { text(device, "device's path") }?.to_bytes()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure(libc::ENOMEM, format!("no runtime: {error}")))?;
        let hre: Arc<dyn Hre> = Arc::new(ShmHre::open(path, ShmOptions::default())?);
        let client = match nsid {
            0 => runtime.block_on(KvClient::open_only(hre)),
            nsid => runtime.block_on(KvClient::open(hre, nsid)),
        };
        let process = std::process::id();
        Ok(Box::into_raw(Box::new(willow_kv { client: client?, runtime, process })))
    };
    told(open(), std::ptr::null_mut())
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_close(kv: *mut willow_kv) {
    if kv.is_null() {
        return;
    }
    // SAFETY: made by `willow_kv_open`, and not used any more.
    let kv = unsafe { Box::from_raw(kv) };
    if kv.process != std::process::id() {
        // The endpoint's thread is the parent's.
        std::mem::forget(kv);
    }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_put(
    kv: *mut willow_kv,
    key: *const c_void,
    key_bytes: usize,
    value: *const c_void,
    value_bytes: usize,
    options: *const willow_kv_options,
    version: *mut u64,
) -> c_int {
    let put = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and buffers, for this call.
        let (kv, key, value) = unsafe { (of(kv, "namespace")?, bytes(key, key_bytes)?, bytes(value, value_bytes)?) };
        // SAFETY: the caller's options.
        let options = match unsafe { options.as_ref() } {
            None => StoreOptions::default(),
            Some(options) => StoreOptions {
                condition: condition(options.condition, options.version)?,
                expiry: options.expiry,
                durable: options.durable != 0,
            },
        };
        let stored = kv.wait(kv.client.store_item(key, value, options))?;
        // SAFETY: the caller's variable, where there is one.
        if let Some(version) = unsafe { version.as_mut() } {
            *version = stored;
        }
        Ok(0)
    };
    told(put(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_get(
    kv: *mut willow_kv,
    key: *const c_void,
    key_bytes: usize,
    into: *mut c_void,
    room: usize,
    version: *mut u64,
    expiry: *mut u32,
) -> isize {
    let get = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and key, for this call.
        let (kv, key) = unsafe { (of(kv, "namespace")?, bytes(key, key_bytes)?) };
        range(into, room)?;
        let item = kv.wait(kv.client.retrieve_item(key))?.ok_or(HreError::KeyNotFound)?;
        // SAFETY: the caller's variables, where there are some.
        let (version, expiry) = unsafe { (version.as_mut(), expiry.as_mut()) };
        version.into_iter().for_each(|version| *version = item.version);
        expiry.into_iter().for_each(|expiry| *expiry = item.expiry);
        // SAFETY: the caller's buffer.
        unsafe { hand_out(&item.value, into, room) }
    };
    told(get().map(|bytes| bytes as isize), -1)
}

fn found(was: bool) -> Result<c_int, Failure> {
    if was { Ok(0) } else { Err(HreError::KeyNotFound.into()) }
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_delete(
    kv: *mut willow_kv,
    key: *const c_void,
    key_bytes: usize,
    version: u64,
    durable: c_int,
) -> c_int {
    let delete = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and key, for this call.
        let (kv, key) = unsafe { (of(kv, "namespace")?, bytes(key, key_bytes)?) };
        let version = Some(version).filter(|version| *version != 0);
        found(kv.wait(kv.client.delete_item(key, version, durable != 0))?)
    };
    told(delete(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_touch(
    kv: *mut willow_kv,
    key: *const c_void,
    key_bytes: usize,
    expiry: u32,
    durable: c_int,
) -> c_int {
    let touch = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and key, for this call.
        let (kv, key) = unsafe { (of(kv, "namespace")?, bytes(key, key_bytes)?) };
        found(kv.wait(kv.client.touch(key, expiry, durable != 0))?)
    };
    told(touch(), -1)
}

/// The caller's pairs.
///
/// # Safety
/// There are so many, and nobody else uses them meanwhile.
unsafe fn pairs<'a>(pairs: *mut willow_kv_pair, count: usize) -> Result<&'a mut [willow_kv_pair], Failure> {
    if count > PAIRS_MAX {
        return Err(invalid(&format!("a call has at most {PAIRS_MAX} pairs")));
    }
    let (start, _) = range(pairs.cast_const().cast(), count * size_of::<willow_kv_pair>())?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as above; `start` is `pairs`, which is not null.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), count) })
}

/// Puts each pair's result where it belongs; how many went well.
fn tell(pairs: &mut [willow_kv_pair], each: impl Iterator<Item = Result<i64, Failure>>) -> c_int {
    let mut well = 0;
    for (pair, outcome) in pairs.iter_mut().zip(each) {
        well += c_int::from(outcome.is_ok());
        pair.result = outcome.unwrap_or_else(|Failure(errno, _)| -i64::from(errno));
    }
    well
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_put_many(
    kv: *mut willow_kv,
    all: *mut willow_kv_pair,
    count: usize,
    durable: c_int,
) -> c_int {
    let put = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and pairs, for this call.
        let (kv, pairs) = unsafe { (of(kv, "namespace")?, pairs(all, count)?) };
        let mut items = Vec::with_capacity(pairs.len());
        for pair in pairs.iter() {
            // SAFETY: the caller's buffers, for this call.
            let (key, value) =
                unsafe { (bytes(pair.key, pair.key_bytes)?, bytes(pair.value, pair.value_bytes)?.to_vec()) };
            let condition = condition(pair.condition, pair.version)?;
            items.push(StoreMany { condition, expiry: pair.expiry, ..StoreMany::new(key, value)? });
        }
        let done = kv.wait(kv.client.store_many(items, durable != 0))?;
        Ok(tell(pairs, done.into_iter().map(|outcome| Ok(outcome.map(|()| 0)?))))
    };
    told(put(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_get_many(kv: *mut willow_kv, all: *mut willow_kv_pair, count: usize) -> c_int {
    let get = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and pairs, for this call.
        let (kv, pairs) = unsafe { (of(kv, "namespace")?, pairs(all, count)?) };
        let mut names = Vec::with_capacity(pairs.len());
        for pair in pairs.iter() {
            range(pair.value, pair.value_bytes)?;
            // SAFETY: the caller's keys, for this call.
            names.push(unsafe { bytes(pair.key, pair.key_bytes) }?);
        }
        let mut done = Vec::with_capacity(pairs.len());
        for (pair, outcome) in pairs.iter_mut().zip(kv.wait(kv.client.retrieve_many(&names))?) {
            done.push(outcome.and_then(|item| item.ok_or(HreError::KeyNotFound)).map_err(Failure::from).and_then(
                |item| {
                    (pair.version, pair.expiry) = (item.version, item.expiry);
                    // SAFETY: the caller's buffer.
                    Ok(unsafe { hand_out(&item.value, pair.value, pair.value_bytes) }? as i64)
                },
            ));
        }
        Ok(tell(pairs, done.into_iter()))
    };
    told(get(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_scan(
    kv: *mut willow_kv,
    from: *const c_void,
    from_bytes: usize,
    to: *const c_void,
    to_bytes: usize,
    each: Option<willow_kv_each>,
    context: *mut c_void,
) -> c_int {
    let scan = || -> Result<_, Failure> {
        // SAFETY: the caller's namespace and keys, for this call.
        let (kv, from, to) = unsafe { (of(kv, "namespace")?, bytes(from, from_bytes)?, bytes(to, to_bytes)?) };
        let each = each.ok_or_else(|| invalid("the function is NULL"))?;
        let mut at = None;
        loop {
            // The function is called between two waits: it may use the namespace itself.
            let page = kv.wait(kv.client.scan_page(from, to, at))?;
            for key in &page.keys {
                // SAFETY: the caller's function, with a key that lives as long as the call.
                let ended = unsafe { each(context, key.as_ptr().cast(), key.len()) };
                if ended != 0 {
                    return Ok(ended);
                }
            }
            at = page.next;
            if at.is_none() {
                return Ok(0);
            }
        }
    };
    told(scan(), -1)
}

/// # Safety
/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn willow_kv_flush(kv: *mut willow_kv) -> c_int {
    // SAFETY: the caller's namespace.
    let flushed = unsafe { of(kv, "namespace") }.and_then(|kv| kv.wait(kv.client.flush()));
    told(flushed.map(|()| 0), -1)
}
