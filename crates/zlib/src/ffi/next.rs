// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The system's zlib: the next definitions of the interposed functions. It is looked for when it is first needed: a
//! server may load it with a module.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem;
use std::sync::OnceLock;

use super::abi::ZStream;

/// The functions, with zlib's signatures.
#[derive(Clone, Copy)]
pub(super) struct Zlib {
    pub(super) init2: unsafe extern "C" fn(
        *mut ZStream,
        c_int,
        c_int,
        c_int,
        c_int,
        c_int,
        *const c_char,
        c_int,
    ) -> c_int,
    pub(super) deflate: unsafe extern "C" fn(*mut ZStream, c_int) -> c_int,
    pub(super) end: unsafe extern "C" fn(*mut ZStream) -> c_int,
    pub(super) reset: unsafe extern "C" fn(*mut ZStream) -> c_int,
    pub(super) reset_keep: unsafe extern "C" fn(*mut ZStream) -> c_int,
    pub(super) params: unsafe extern "C" fn(*mut ZStream, c_int, c_int) -> c_int,
    pub(super) tune: unsafe extern "C" fn(*mut ZStream, c_int, c_int, c_int, c_int) -> c_int,
    pub(super) bound: unsafe extern "C" fn(*mut ZStream, c_ulong) -> c_ulong,
    pub(super) pending: unsafe extern "C" fn(*mut ZStream, *mut c_uint, *mut c_int) -> c_int,
    pub(super) prime: unsafe extern "C" fn(*mut ZStream, c_int, c_int) -> c_int,
    pub(super) set_header: unsafe extern "C" fn(*mut ZStream, *mut c_void) -> c_int,
    pub(super) set_dictionary: unsafe extern "C" fn(*mut ZStream, *const u8, c_uint) -> c_int,
    pub(super) get_dictionary: unsafe extern "C" fn(*mut ZStream, *mut u8, *mut c_uint) -> c_int,
    pub(super) copy: unsafe extern "C" fn(*mut ZStream, *mut ZStream) -> c_int,
}

/// Loaded if no library of the program brings it.
const SONAME: &CStr = c"libz.so.1";

/// Resolves a symbol as a function pointer of the type of its field.
macro_rules! symbol {
    ($library:expr, $name:literal) => {{
        // SAFETY: a handle of `dlopen` that is never closed, or RTLD_NEXT; and a C string.
        let found = unsafe { libc::dlsym($library, $name.as_ptr()) };
        // SAFETY: zlib's functions have the signatures of the fields that they are assigned to.
        (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, _>(found) })?
    }};
}

/// The system's zlib. `None` if the machine has none.
pub(super) fn zlib() -> Option<&'static Zlib> {
    static FOUND: OnceLock<Option<Zlib>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref()
}

fn find() -> Option<Zlib> {
    in_library(libc::RTLD_NEXT).or_else(|| {
        // SAFETY: a C string; zlib has no constructors.
        let library = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() { None } else { in_library(library) }
    })
}

fn in_library(library: *mut c_void) -> Option<Zlib> {
    Some(Zlib {
        init2: symbol!(library, c"deflateInit2_"),
        deflate: symbol!(library, c"deflate"),
        end: symbol!(library, c"deflateEnd"),
        reset: symbol!(library, c"deflateReset"),
        reset_keep: symbol!(library, c"deflateResetKeep"),
        params: symbol!(library, c"deflateParams"),
        tune: symbol!(library, c"deflateTune"),
        bound: symbol!(library, c"deflateBound"),
        pending: symbol!(library, c"deflatePending"),
        prime: symbol!(library, c"deflatePrime"),
        set_header: symbol!(library, c"deflateSetHeader"),
        set_dictionary: symbol!(library, c"deflateSetDictionary"),
        get_dictionary: symbol!(library, c"deflateGetDictionary"),
        copy: symbol!(library, c"deflateCopy"),
    })
}
