// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Upcalls to the core, its error stack, and the guard of every entry.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use super::ids;
use super::types::{Dispatch, Param};
use crate::config::section_keys;
use crate::error::Error;

type GetParams = unsafe extern "C" fn(*const c_void, *mut Param) -> c_int;
type HandleOnly = unsafe extern "C" fn(*const c_void);
type HandleInt = unsafe extern "C" fn(*const c_void) -> c_int;
type SetDebug = unsafe extern "C" fn(*const c_void, *const c_char, c_int, *const c_char);
type VsetError = unsafe extern "C" fn(*const c_void, u32, *const c_char, *mut c_void);
type BioReadEx = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> c_int;
type BioGets = unsafe extern "C" fn(*mut c_void, *mut c_char, c_int) -> c_int;

/// Functions that the core lets the provider call.
#[derive(Clone, Copy)]
pub(crate) struct Core {
    handle: *const c_void,
    get_params: Option<GetParams>,
    new_error: Option<HandleOnly>,
    set_error_debug: Option<SetDebug>,
    vset_error: Option<VsetError>,
    set_mark: Option<HandleInt>,
    pop_to_mark: Option<HandleInt>,
    bio_read_ex: Option<BioReadEx>,
    bio_gets: Option<BioGets>,
    /// Address of an upcall: leads to the libcrypto that it belongs to.
    pub(crate) upcall: *const c_void,
}

// SAFETY: the upcalls may be called from any thread (they work on the calling thread's error stack,
// or on an object that the caller has for itself); the handle is not dereferenced here.
unsafe impl Send for Core {}
// SAFETY: as for `Send`.
unsafe impl Sync for Core {}

impl Core {
    /// Reads the table that the core hands to `OSSL_provider_init`.
    ///
    /// # Safety
    /// `table` is an array of `OSSL_DISPATCH` that a zero id ends, with functions of the types that
    /// `core_dispatch.h` gives to their ids.
    pub(crate) unsafe fn new(handle: *const c_void, table: *const Dispatch) -> Self {
        // SAFETY: by this function's contract.
        let find = |id| unsafe { function(table, id) };
        macro_rules! upcall {
            ($module:ident::$id:ident as $type:ty) => {{
                let address = find(ids::$module::$id);
                if address.is_null() {
                    None
                } else {
                    // SAFETY: not null, and by this function's contract of the type that `core_dispatch.h`
                    // gives to this id, as the table below states it.
                    Some(unsafe { std::mem::transmute::<*const c_void, $type>(address) })
                }
            }};
        }
        Self {
            handle,
            get_params: upcall!(upcall::GET_PARAMS as GetParams),
            new_error: upcall!(upcall::NEW_ERROR as HandleOnly),
            set_error_debug: upcall!(upcall::SET_ERROR_DEBUG as SetDebug),
            vset_error: upcall!(upcall::VSET_ERROR as VsetError),
            set_mark: upcall!(upcall::SET_ERROR_MARK as HandleInt),
            pop_to_mark: upcall!(upcall::POP_ERROR_TO_MARK as HandleInt),
            bio_read_ex: upcall!(bio::READ_EX as BioReadEx),
            bio_gets: upcall!(bio::GETS as BioGets),
            upcall: find(ids::upcall::GET_LIBCTX),
        }
    }

    /// Puts an error on the stack of the calling thread.
    pub(crate) fn raise(&self, error: &Error) {
        if error.silent {
            return;
        }
        let (Some(new_error), Some(set_debug), Some(vset_error)) =
            (self.new_error, self.set_error_debug, self.vset_error)
        else {
            return;
        };
        // The text is the format: no conversion may remain in it, so that no argument is read.
        let text =
            CString::new(error.text.replace('%', "%%").replace('\0', " ")).unwrap_or_default();
        // A `va_list` is passed as a pointer on every ABI with OpenSSL 3; this one is never read.
        let mut no_arguments = [0_u64; 8];
        // SAFETY: each takes the core's own handle; the strings are C strings, and the format has no
        // conversion, so that no argument is read.
        unsafe {
            new_error(self.handle);
            set_debug(self.handle, c"millrace".as_ptr(), 0, c"millrace".as_ptr());
            vset_error(
                self.handle,
                error.reason as u32,
                text.as_ptr(),
                no_arguments.as_mut_ptr().cast(),
            );
        }
    }

    /// Runs `f` and takes back what it put on the error stack.
    pub(crate) fn discarding_errors<T>(&self, f: impl FnOnce() -> T) -> T {
        if let Some(set_mark) = self.set_mark {
            // SAFETY: takes the core's own handle.
            unsafe { set_mark(self.handle) };
        }
        let value = f();
        if let Some(pop_to_mark) = self.pop_to_mark {
            // SAFETY: takes the core's own handle.
            unsafe { pop_to_mark(self.handle) };
        }
        value
    }

    /// The value of a key in the provider's section of `openssl.cnf`.
    pub(crate) fn setting(&self, key: &'static CStr) -> Option<String> {
        let mut place: *const c_char = std::ptr::null();
        let mut request = [Param::string_ptr(key, &mut place), Param::END];
        let get_params = self.get_params?;
        // SAFETY: takes the core's own handle and an array that a null key ends, over a place for a pointer.
        let done = unsafe { get_params(self.handle, request.as_mut_ptr()) };
        if done != 1 || place.is_null() {
            return None;
        }
        // SAFETY: not null, so the core has put a C string of its configuration there.
        let value = unsafe { CStr::from_ptr(place) };
        Some(value.to_string_lossy().into_owned())
    }

    /// Reads a line of at most `buffer.len() - 1` bytes, with its end of line.
    ///
    /// # Safety
    /// `bio` is an `OSSL_CORE_BIO` that the core has handed in.
    pub(crate) unsafe fn read_line<'a>(
        &self,
        bio: *mut c_void,
        buffer: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let size = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: takes a BIO of the core, by this function's contract, and a buffer with its length.
        let read = unsafe { self.bio_gets?(bio, buffer.as_mut_ptr().cast(), size) };
        buffer.get(..usize::try_from(read).ok().filter(|len| *len > 0)?)
    }

    /// Reads everything, up to `limit` bytes; `None` if there is more.
    ///
    /// # Safety
    /// As [`Self::read_line`].
    pub(crate) unsafe fn read_all(&self, bio: *mut c_void, limit: usize) -> Option<Vec<u8>> {
        let read_ex = self.bio_read_ex?;
        let mut bytes = vec![0; limit + 1];
        let mut filled = 0;
        loop {
            let mut read = 0;
            let room = bytes.get_mut(filled..).filter(|room| !room.is_empty())?;
            // SAFETY: takes a BIO of the core, by this function's contract, and the rest of the buffer.
            let more = unsafe { read_ex(bio, room.as_mut_ptr().cast(), room.len(), &mut read) };
            if more != 1 || read == 0 {
                bytes.truncate(filled);
                return Some(bytes);
            }
            filled += read.min(room.len());
        }
    }
}

/// The function with this id in a table.
///
/// # Safety
/// `table` is null or an array of `OSSL_DISPATCH` that a zero id ends.
pub(crate) unsafe fn function(table: *const Dispatch, id: i32) -> *const c_void {
    let mut entry = table;
    while !entry.is_null() {
        // SAFETY: not null, and no zero id was met so far, so the array continues.
        let found = unsafe { *entry };
        if found.id == 0 {
            break;
        }
        if found.id == id {
            return found.function;
        }
        // SAFETY: this entry had an id, so another one follows it.
        entry = unsafe { entry.add(1) };
    }
    std::ptr::null()
}

/// The guard of the few entries that get no context, so that there is no error stack to raise on.
pub(crate) fn guard_bare<T>(failed: T, entry: impl FnOnce() -> Option<T>) -> T {
    match catch_unwind(AssertUnwindSafe(entry)) {
        Ok(Some(value)) => value,
        Ok(None) => failed,
        Err(payload) => {
            std::mem::forget(payload);
            failed
        }
    }
}

/// Reads the values of the provider's section.
pub(crate) fn section(core: &Core) -> Vec<(String, String)> {
    static KEYS: LazyLock<Vec<(&str, CString)>> = LazyLock::new(|| {
        section_keys().filter_map(|key| Some((key, CString::new(key).ok()?))).collect()
    });
    KEYS.iter().filter_map(|(key, name)| Some(((*key).to_owned(), core.setting(name)?))).collect()
}
