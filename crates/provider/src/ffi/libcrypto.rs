// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The libcrypto that loaded the module, found at run time.
//!
//! Nothing is linked: the address of an upcall leads to the object that holds it, and the functions
//! are looked up there. So one binary serves `libcrypto.so.3`, its successors, and an application that
//! links OpenSSL statically but exports its symbols.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uchar, c_void};

use thiserror::Error;

use super::types::{Algorithm, Callback, Param};

/// `CONF_get1_default_config_file`
pub(crate) type DefaultFile = unsafe extern "C" fn() -> *mut c_char;

/// `CRYPTO_free`
pub(crate) type ConfFree = unsafe extern "C" fn(*mut c_void, *const c_char, c_int);

/// `NCONF_load`
pub(crate) type ConfLoad = unsafe extern "C" fn(Ptr, *const c_char, *mut c_long) -> c_int;

/// `ASYNC_callback_fn`
pub(crate) type AsyncCallback = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Cleanup of a wait descriptor.
pub(crate) type FdCleanup = unsafe extern "C" fn(*mut c_void, *const c_void, c_int, *mut c_void);

macro_rules! symbols {
    (required { $($name:ident: $type:ty;)* } optional { $($opt:ident: $opt_type:ty;)* }) => {
        /// Functions of libcrypto. Names and signatures are those of its headers.
        #[allow(non_snake_case, reason = "the names of the library")]
        pub(crate) struct Lib {
            /// Address at which the object is mapped: tells one libcrypto from another.
            base: usize,
            $(pub(crate) $name: $type,)*
            $(pub(crate) $opt: Option<$opt_type>,)*
        }

        impl Lib {
            /// # Safety
            /// `lookup` yields null or the address of the function of libcrypto with this name.
            unsafe fn fill(
                base: usize,
                lookup: impl Fn(&CStr) -> *mut c_void,
            ) -> Result<Self, LibError> {
                let lookup = |name: &str| match CString::new(name) {
                    Ok(name) => lookup(&name),
                    Err(_) => std::ptr::null_mut(),
                };
                Ok(Self {
                    base,
                    $($name: {
                        let address = lookup(stringify!($name));
                        if address.is_null() {
                            return Err(LibError::Lacks(stringify!($name)));
                        }
                        // SAFETY: not null, and a function of this name has this type since OpenSSL 3.0.
                        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
                    },)*
                    // SAFETY: null, or a function of this name, which has this type wherever it exists.
                    $($opt: unsafe {
                        std::mem::transmute::<*mut c_void, Option<$opt_type>>(lookup(stringify!($opt)))
                    },)*
                })
            }
        }
    };
}

/// Why the libcrypto that loads the provider cannot be used.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum LibError {
    #[error("the address of its upcall belongs to no object")]
    NoObject,
    #[error("it cannot be opened a second time")]
    NotOpened,
    #[error("it does not export {0}")]
    Lacks(&'static str),
}

/// An opaque object of libcrypto.
pub(crate) type Ptr = *mut c_void;

symbols! {
    required {
        OSSL_LIB_CTX_new: unsafe extern "C" fn() -> Ptr;
        OSSL_PROVIDER_load: unsafe extern "C" fn(Ptr, *const c_char) -> Ptr;
        OSSL_PROVIDER_query_operation:
            unsafe extern "C" fn(Ptr, c_int, *mut c_int) -> *const Algorithm;
        OSSL_PROVIDER_get0_provider_ctx: unsafe extern "C" fn(Ptr) -> Ptr;
        OSSL_PROVIDER_get_capabilities:
            unsafe extern "C" fn(Ptr, *const c_char, Callback, *mut c_void) -> c_int;
        EVP_PKEY_CTX_new_from_name: unsafe extern "C" fn(Ptr, *const c_char, *const c_char) -> Ptr;
        EVP_PKEY_CTX_free: unsafe extern "C" fn(Ptr);
        EVP_PKEY_fromdata_init: unsafe extern "C" fn(Ptr) -> c_int;
        EVP_PKEY_fromdata: unsafe extern "C" fn(Ptr, *mut Ptr, c_int, *mut Param) -> c_int;
        EVP_PKEY_export: unsafe extern "C" fn(Ptr, c_int, Callback, Ptr) -> c_int;
        EVP_PKEY_get0_type_name: unsafe extern "C" fn(Ptr) -> *const c_char;
        EVP_PKEY_free: unsafe extern "C" fn(Ptr);
        EVP_PKEY2PKCS8: unsafe extern "C" fn(Ptr) -> Ptr;
        i2d_PKCS8_PRIV_KEY_INFO: unsafe extern "C" fn(Ptr, *mut *mut c_uchar) -> c_int;
        PKCS8_PRIV_KEY_INFO_free: unsafe extern "C" fn(Ptr);
        i2d_PUBKEY: unsafe extern "C" fn(Ptr, *mut *mut c_uchar) -> c_int;
        d2i_PUBKEY_ex:
            unsafe extern "C" fn(*mut Ptr, *mut *const c_uchar, c_long, Ptr, *const c_char) -> Ptr;
        EVP_MD_fetch: unsafe extern "C" fn(Ptr, *const c_char, *const c_char) -> Ptr;
        EVP_MD_CTX_new: unsafe extern "C" fn() -> Ptr;
        EVP_MD_CTX_free: unsafe extern "C" fn(Ptr);
        EVP_MD_CTX_copy_ex: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
        EVP_DigestInit_ex2: unsafe extern "C" fn(Ptr, Ptr, *const Param) -> c_int;
        EVP_DigestUpdate: unsafe extern "C" fn(Ptr, *const c_void, usize) -> c_int;
        EVP_DigestFinal_ex: unsafe extern "C" fn(Ptr, *mut c_uchar, *mut u32) -> c_int;
    }
    optional {
        OpenSSL_version: unsafe extern "C" fn(c_int) -> *const c_char;
        CONF_get1_default_config_file: DefaultFile;
        CRYPTO_free: ConfFree;
        NCONF_new: unsafe extern "C" fn(Ptr) -> Ptr;
        NCONF_load: ConfLoad;
        NCONF_free: unsafe extern "C" fn(Ptr);
        NCONF_get_section: unsafe extern "C" fn(Ptr, *const c_char) -> Ptr;
        OPENSSL_sk_num: unsafe extern "C" fn(Ptr) -> c_int;
        OPENSSL_sk_value: unsafe extern "C" fn(Ptr, c_int) -> Ptr;
        ERR_clear_error: unsafe extern "C" fn();
        ASYNC_get_current_job: unsafe extern "C" fn() -> Ptr;
        ASYNC_get_wait_ctx: unsafe extern "C" fn(Ptr) -> Ptr;
        ASYNC_pause_job: unsafe extern "C" fn() -> c_int;
        ASYNC_WAIT_CTX_get_fd: unsafe extern "C" fn(Ptr, *const c_void, *mut c_int, *mut Ptr) -> c_int;
        ASYNC_WAIT_CTX_set_wait_fd:
            unsafe extern "C" fn(Ptr, *const c_void, c_int, Ptr, FdCleanup) -> c_int;
        ASYNC_WAIT_CTX_get_callback:
            unsafe extern "C" fn(Ptr, *mut Option<AsyncCallback>, *mut Ptr) -> c_int;
    }
}

impl Lib {
    /// The library that holds the function at `upcall`.
    pub(crate) fn holding(upcall: *const c_void) -> Result<Self, LibError> {
        let object = object_of(upcall).ok_or(LibError::NoObject)?;
        let path = object.dli_fname;
        // SAFETY: takes a C string, which is valid while the object is mapped; opening an object that is
        // loaded already runs no constructor.
        let mut handle = unsafe { libc::dlopen(path, libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        if handle.is_null() {
            // The main program, with OpenSSL linked into it, is not found by its path.
            // SAFETY: takes null for the main program, which is loaded already.
            handle = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
        }
        if handle.is_null() {
            return Err(LibError::NotOpened);
        }
        let base = object.dli_fbase as usize;
        let lookup = |name: &CStr| {
            // SAFETY: takes a C string and an open handle; it stays open, so that addresses stay valid.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            // A program that links OpenSSL statically may have another libcrypto mapped as well.
            match object_of(address) {
                Some(found) if found.dli_fbase as usize == base => address,
                _ => std::ptr::null_mut(),
            }
        };
        // SAFETY: `lookup` finds a name in the object that holds libcrypto's upcalls, or nothing.
        unsafe { Self::fill(base, lookup) }
    }

    /// Whether `upcall` belongs to this library.
    pub(crate) fn holds(&self, upcall: *const c_void) -> bool {
        object_of(upcall).is_some_and(|object| object.dli_fbase as usize == self.base)
    }
}

fn object_of(address: *const c_void) -> Option<libc::Dl_info> {
    if address.is_null() {
        return None;
    }
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and writes the struct if it returns nonzero.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: all-zero is a value of this struct, and dladdr has filled it.
    let info = unsafe { info.assume_init() };
    (!info.dli_fname.is_null()).then_some(info)
}
