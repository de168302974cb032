// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `OSSL_PARAM` arrays: building them over borrowed buffers and reading foreign ones.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::ids;
use super::memory::bytes;
use super::types::Param;
use crate::operation_params::Digest;

/// `OSSL_PARAM_UNMODIFIED`
const UNMODIFIED: usize = usize::MAX;

/// Bound on the entries of a foreign array: the largest that OpenSSL makes has about 40.
const MAX_ENTRIES: usize = 256;

impl Param {
    pub(crate) const END: Self = Self {
        key: std::ptr::null(),
        data_type: 0,
        data: std::ptr::null_mut(),
        data_size: 0,
        return_size: 0,
    };

    /// An entry of a list of parameters: a name and a type, without a value.
    pub(crate) const fn listed(key: &'static CStr, kind: i32) -> Self {
        Self { key: key.as_ptr(), data_type: kind.unsigned_abs(), ..Self::END }
    }

    fn over<T: ?Sized>(key: &'static CStr, data_type: i32, data: *mut T, size: usize) -> Self {
        Self {
            key: key.as_ptr(),
            data_type: data_type.unsigned_abs(),
            data: data.cast(),
            data_size: size,
            return_size: UNMODIFIED,
        }
    }

    /// An `int`, to be read or written.
    pub(crate) fn int(key: &'static CStr, value: &mut c_int) -> Self {
        let size = size_of::<c_int>();
        Self::over(key, ids::param::INTEGER, std::ptr::from_mut(value), size)
    }

    /// An `unsigned int`, to be read or written.
    pub(crate) fn uint(key: &'static CStr, value: &mut c_uint) -> Self {
        let size = size_of::<c_uint>();
        Self::over(key, ids::param::UNSIGNED_INTEGER, std::ptr::from_mut(value), size)
    }

    /// Asks for a string, which OpenSSL writes into `buffer`.
    pub(crate) fn string(key: &'static CStr, buffer: &mut [u8]) -> Self {
        let size = buffer.len();
        Self::over(key, ids::param::UTF8_STRING, buffer.as_mut_ptr(), size)
    }

    /// A string that is handed in.
    pub(crate) fn text(key: &'static CStr, value: &CStr) -> Self {
        let size = value.count_bytes();
        Self::over(key, ids::param::UTF8_STRING, value.as_ptr().cast_mut(), size)
    }

    /// A place for a pointer to a string of the callee.
    pub(crate) fn string_ptr(key: &'static CStr, place: &mut *const c_char) -> Self {
        Self::over(key, ids::param::UTF8_PTR, std::ptr::from_mut(place), 0)
    }

    /// A place for a pointer to bytes of the callee.
    pub(crate) fn bytes_ptr(key: &'static CStr, place: &mut *const u8) -> Self {
        Self::over(key, ids::param::OCTET_PTR, std::ptr::from_mut(place), 0)
    }

    /// A buffer for bytes.
    pub(crate) fn buffer(key: &'static CStr, buffer: &mut [u8]) -> Self {
        let size = buffer.len();
        Self::over(key, ids::param::OCTET_STRING, buffer.as_mut_ptr(), size)
    }

    /// Bytes that are handed in.
    pub(crate) fn bytes(key: &'static CStr, bytes: &[u8]) -> Self {
        Self::over(key, ids::param::OCTET_STRING, bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// The bytes at `place`: they pass a key object by reference.
    pub(crate) fn reference<T>(key: &'static CStr, place: *mut T) -> Self {
        Self::over(key, ids::param::OCTET_STRING, place, size_of::<T>())
    }

    /// Whether the callee set the parameter.
    pub(crate) fn is_set(&self) -> bool {
        self.return_size != UNMODIFIED
    }
}

/// The string that a callee wrote into `buffer`, up to its terminator.
pub(crate) fn string_in(buffer: &[u8]) -> Option<&str> {
    CStr::from_bytes_until_nul(buffer).ok()?.to_str().ok()
}

/// The digest whose name a callee wrote into `buffer`.
pub(crate) fn digest_in(buffer: &[u8]) -> Digest {
    string_in(buffer).map_or(Digest::Unset, Digest::named)
}

/// The entry with this key.
///
/// # Safety
/// `params` is null or an array that a null key ends, alive and unchanged for `'a`.
pub(crate) unsafe fn locate<'a>(params: *const Param, key: &CStr) -> Option<&'a Param> {
    // SAFETY: by this function's contract.
    unsafe { entries(params) }.find(|param| {
        // SAFETY: `entries` ends at a null key, so this one is a C string.
        let found = unsafe { CStr::from_ptr(param.key) };
        found == key
    })
}

/// The entries up to the null key.
///
/// # Safety
/// As [`locate`].
pub(crate) unsafe fn entries<'a>(params: *const Param) -> impl Iterator<Item = &'a Param> {
    let mut index = 0;
    std::iter::from_fn(move || {
        if params.is_null() || index == MAX_ENTRIES {
            return None;
        }
        // SAFETY: not null, and no null key was met so far, so the array continues.
        let param = unsafe { &*params.add(index) };
        index += 1;
        (!param.key.is_null()).then_some(param)
    })
}

/// The value of an integer of any width that fits.
///
/// # Safety
/// `param` describes readable memory.
pub(crate) unsafe fn integer(param: &Param) -> Option<i64> {
    let kind = c_int::try_from(param.data_type).ok()?;
    let signed = kind == ids::param::INTEGER;
    if (!signed && kind != ids::param::UNSIGNED_INTEGER) || param.data.is_null() {
        return None;
    }
    match (param.data_size, signed) {
        // SAFETY: not null, and four readable bytes by this function's contract; alignment is not assumed.
        (4, true) => Some(i64::from(unsafe { param.data.cast::<i32>().read_unaligned() })),
        // SAFETY: not null, and four readable bytes by this function's contract; alignment is not assumed.
        (4, false) => Some(i64::from(unsafe { param.data.cast::<u32>().read_unaligned() })),
        // SAFETY: not null, and eight readable bytes by this function's contract; alignment is not assumed.
        (8, true) => Some(unsafe { param.data.cast::<i64>().read_unaligned() }),
        // SAFETY: not null, and eight readable bytes by this function's contract; alignment is not assumed.
        (8, false) => i64::try_from(unsafe { param.data.cast::<u64>().read_unaligned() }).ok(),
        _ => None,
    }
}

/// The integer in the entry with this key, if there is one.
///
/// # Safety
/// As [`locate`], and its entries describe readable memory.
pub(crate) unsafe fn integer_in(array: *const Param, key: &CStr) -> Option<i64> {
    // SAFETY: by this function's contract.
    unsafe { locate(array, key).and_then(|param| integer(param)) }
}

/// Writes an unsigned integer into a place of 4 or 8 bytes.
///
/// # Safety
/// `param` describes writable memory.
pub(crate) unsafe fn set_unsigned(param: &mut Param, value: u64) -> bool {
    if param.data_type != ids::param::UNSIGNED_INTEGER.unsigned_abs() {
        return false;
    }
    match (param.data_size, u32::try_from(value)) {
        _ if param.data.is_null() => {}
        // SAFETY: not null, and four writable bytes by this function's contract.
        (4, Ok(small)) => unsafe { param.data.cast::<u32>().write_unaligned(small) },
        // SAFETY: not null, and eight writable bytes by this function's contract.
        (8, _) => unsafe { param.data.cast::<u64>().write_unaligned(value) },
        _ => return false,
    }
    param.return_size = if param.data.is_null() { 8 } else { param.data_size };
    true
}

/// Writes an integer into a place of 4 or 8 bytes, of either sign. Without a place only its size is written.
///
/// # Safety
/// `param` describes writable memory.
pub(crate) unsafe fn set_integer(param: &mut Param, value: i64) -> bool {
    if param.data_type != ids::param::INTEGER.unsigned_abs() {
        // SAFETY: by this function's contract.
        return u64::try_from(value).is_ok_and(|value| unsafe { set_unsigned(param, value) });
    }
    match (param.data_size, i32::try_from(value)) {
        _ if param.data.is_null() => {}
        // SAFETY: not null, and four writable bytes by this function's contract.
        (4, Ok(small)) => unsafe { param.data.cast::<i32>().write_unaligned(small) },
        // SAFETY: not null, and eight writable bytes by this function's contract.
        (8, _) => unsafe { param.data.cast::<i64>().write_unaligned(value) },
        _ => return false,
    }
    param.return_size = if param.data.is_null() { size_of::<c_int>() } else { param.data_size };
    true
}

/// Copies bytes into an `OCTET_STRING`. Without a place only their number is written.
///
/// # Safety
/// `param` describes writable memory.
pub(crate) unsafe fn set_bytes(param: &mut Param, bytes: &[u8]) -> bool {
    if param.data_type != ids::param::OCTET_STRING.unsigned_abs() {
        return false;
    }
    param.return_size = bytes.len();
    if param.data.is_null() {
        return true;
    }
    if param.data_size < bytes.len() {
        return false;
    }
    // SAFETY: not null, and writable for at least as many bytes; the bytes are memory of ours.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), param.data.cast(), bytes.len()) };
    true
}

/// Points an `OCTET_PTR` at bytes.
///
/// # Safety
/// `param` describes writable memory, and the bytes outlive what is done with them.
pub(crate) unsafe fn set_bytes_ptr(param: &mut Param, bytes: &[u8]) -> bool {
    if param.data_type != ids::param::OCTET_PTR.unsigned_abs() || param.data.is_null() {
        return false;
    }
    // SAFETY: not null, and the data of an OCTET_PTR is a writable pointer.
    unsafe { param.data.cast::<*const u8>().write(bytes.as_ptr()) };
    param.return_size = bytes.len();
    true
}

/// The bytes of an `OCTET_STRING`.
///
/// # Safety
/// `param` describes memory that is readable and unchanged for `'a`.
pub(crate) unsafe fn octets<'a>(param: &Param) -> Option<&'a [u8]> {
    let right = param.data_type == ids::param::OCTET_STRING.unsigned_abs();
    // SAFETY: by this function's contract; null becomes no bytes.
    right.then(|| unsafe { bytes(param.data.cast(), param.data_size) })
}

/// The text of a `UTF8_STRING`.
///
/// # Safety
/// `param` describes memory that is readable and unchanged for `'a`.
pub(crate) unsafe fn text<'a>(param: &Param) -> Option<&'a str> {
    if param.data_type != ids::param::UTF8_STRING.unsigned_abs() {
        return None;
    }
    // SAFETY: by this function's contract; null becomes no bytes.
    let bytes = unsafe { bytes(param.data.cast::<u8>(), param.data_size) };
    // Some applications count the terminator.
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}

/// Points a `UTF8_PTR` at a constant.
///
/// # Safety
/// `param` describes writable memory.
pub(crate) unsafe fn set_string_ptr(param: &mut Param, value: &'static CStr) -> bool {
    if param.data_type != ids::param::UTF8_PTR.unsigned_abs() || param.data.is_null() {
        return false;
    }
    // SAFETY: not null, and the data of a UTF8_PTR is a writable pointer.
    unsafe { param.data.cast::<*const c_char>().write(value.as_ptr()) };
    param.return_size = value.count_bytes();
    true
}
