// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The next definitions of the interposed symbols, and the functions of libssl that we call.
//!
//! libssl is looked for apart from libc. A program may have none (and then calls nothing of it), or may load it late
//! and for itself (Python). One without `ASYNC_JOB`s (LibreSSL, BoringSSL) means something else by the number of
//! `SSL_MODE_ASYNC`.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use super::switch::JobFunction;

/// Opaque `SSL`.
pub(super) type Ssl = c_void;

/// Resolves a symbol as a function pointer of the type of its field.
macro_rules! symbol {
    ($library:expr, $name:literal) => {{
        let found = find($library, $name);
        // SAFETY: the definition behind this symbol has the documented C signature, which is the
        // type of the field that it is assigned to; null becomes None.
        (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, _>(found) })
    }};
}

/// `ASYNC_start_job`
pub(super) type StartJob = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_void,
    *mut c_int,
    JobFunction,
    *mut c_void,
    usize,
) -> c_int;

/// Body of a thread.
pub(super) type ThreadStart = extern "C" fn(*mut c_void) -> *mut c_void;

/// libc's definitions. Valid for the life of the process: libc is not unloaded.
pub(super) struct Libc {
    pub(super) epoll_ctl:
        unsafe extern "C" fn(c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
    pub(super) epoll_wait:
        unsafe extern "C" fn(c_int, *mut libc::epoll_event, c_int, c_int) -> c_int,
    pub(super) epoll_pwait: unsafe extern "C" fn(
        c_int,
        *mut libc::epoll_event,
        c_int,
        c_int,
        *const libc::sigset_t,
    ) -> c_int,
    /// glibc 2.35 and later.
    pub(super) epoll_pwait2: Option<
        unsafe extern "C" fn(
            c_int,
            *mut libc::epoll_event,
            c_int,
            *const libc::timespec,
            *const libc::sigset_t,
        ) -> c_int,
    >,
    pub(super) close: unsafe extern "C" fn(c_int) -> c_int,
    pub(super) write: unsafe extern "C" fn(c_int, *const c_void, usize) -> isize,
    pub(super) send: unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize,
    /// `None` in a program without threads before glibc 2.34, where the function has a library of its own.
    pub(super) pthread_create: Option<
        unsafe extern "C" fn(
            *mut libc::pthread_t,
            *const libc::pthread_attr_t,
            ThreadStart,
            *mut c_void,
        ) -> c_int,
    >,
    pub(super) pthread_join:
        Option<unsafe extern "C" fn(libc::pthread_t, *mut *mut c_void) -> c_int>,
}

/// libssl's definitions. Valid for the life of the process: the caller uses libssl, and OpenSSL links its
/// libraries so that they are not unloaded.
pub(super) struct Libssl {
    pub(super) do_handshake: unsafe extern "C" fn(*mut Ssl) -> c_int,
    pub(super) read_early_data:
        Option<unsafe extern "C" fn(*mut Ssl, *mut c_void, usize, *mut usize) -> c_int>,
    pub(super) get_error: unsafe extern "C" fn(*const Ssl, c_int) -> c_int,
    pub(super) free: unsafe extern "C" fn(*mut Ssl),
    /// Functions of ASYNC jobs. `None` unless libssl has all of them.
    pub(super) jobs: Option<Jobs>,
    pub(super) state_string: Option<StateString>,
    /// Functions of tickets. `None` unless libssl has all of them.
    pub(super) tickets: Option<TicketCalls>,
}

/// Further functions of a libssl with `ASYNC_JOB`s.
pub(super) struct Jobs {
    pub(super) ctrl: unsafe extern "C" fn(*mut Ssl, c_int, c_long, *mut c_void) -> c_long,
    pub(super) want: unsafe extern "C" fn(*const Ssl) -> c_int,
    pub(super) is_init_finished: unsafe extern "C" fn(*const Ssl) -> c_int,
    pub(super) get_fd: unsafe extern "C" fn(*const Ssl) -> c_int,
    pub(super) waiting_for_async: unsafe extern "C" fn(*mut Ssl) -> c_int,
    pub(super) get_all_async_fds: unsafe extern "C" fn(*mut Ssl, *mut c_int, *mut usize) -> c_int,
    pub(super) clear_errors: unsafe extern "C" fn(),
}

/// `SSL_state_string`
pub(super) type StateString = unsafe extern "C" fn(*const Ssl) -> *const c_char;

/// Functions of libssl that joining tickets needs. In OpenSSL 1.1.1 and later, and in no library that has TLS 1.3
/// without tickets.
pub(super) struct TicketCalls {
    pub(super) state_string: StateString,
    pub(super) session_reused: unsafe extern "C" fn(*const Ssl) -> c_int,
    pub(super) get_num_tickets: unsafe extern "C" fn(*const Ssl) -> usize,
    pub(super) is_server: unsafe extern "C" fn(*const Ssl) -> c_int,
}

/// `EVP_*_fetch`
pub(super) type Fetch =
    unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The functions of one kind of methods.
pub(super) struct MethodFunctions {
    pub(super) fetch: Fetch,
    pub(super) up_ref: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) free: unsafe extern "C" fn(*mut c_void),
}

/// Functions of libcrypto for keys.
pub(super) struct KeyCalls {
    /// `EVP_PKEY_digestsign_supports_digest`
    pub(super) supports_digest:
        unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_char, *const c_char) -> c_int,
    pub(super) up_ref: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) free: unsafe extern "C" fn(*mut c_void),
}

/// Body of a callback that a key file's password is asked of.
pub(super) type PasswordCallback = extern "C" fn(*mut c_char, c_int, c_int, *mut c_void) -> c_int;

/// Functions of libcrypto that read key files.
pub(super) struct KeyFileCalls {
    /// `PEM_read_bio_PrivateKey_ex`
    pub(super) read_private_key: unsafe extern "C" fn(
        *mut c_void,
        *mut *mut c_void,
        *const c_void,
        *mut c_void,
        *mut c_void,
        *const c_char,
    ) -> *mut c_void,
    /// `OSSL_DECODER_CTX_new_for_pkey`
    pub(super) new_decoders: unsafe extern "C" fn(
        *mut *mut c_void,
        *const c_char,
        *const c_char,
        *const c_char,
        c_int,
        *mut c_void,
        *const c_char,
    ) -> *mut c_void,
    /// `OSSL_DECODER_from_bio`
    pub(super) decode: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    /// `OSSL_DECODER_CTX_set_pem_password_cb`
    pub(super) set_password:
        unsafe extern "C" fn(*mut c_void, PasswordCallback, *mut c_void) -> c_int,
    /// `OSSL_DECODER_CTX_free`
    pub(super) free_decoders: unsafe extern "C" fn(*mut c_void),
    /// `OpenSSL_version_num`
    pub(super) version: unsafe extern "C" fn() -> c_ulong,
}

/// libcrypto's definitions for the fetch cache and for key files. Valid for the life of the process, as libssl's.
pub(super) struct Libcrypto {
    /// Functions of each kind of methods, by its number.
    pub(super) methods: [MethodFunctions; 8],
    /// `OSSL_LIB_CTX_set0_default`
    pub(super) set_default: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    pub(super) keys: KeyCalls,
    pub(super) key_files: KeyFileCalls,
}

/// Names under which a program may have loaded a libcrypto with providers with `dlopen`, newest first.
const CRYPTO_SONAMES: [&CStr; 2] = [c"libcrypto.so.4", c"libcrypto.so.3"];
/// One without.
const OLD_CRYPTO_SONAME: &CStr = c"libcrypto.so.1.1";

/// libcrypto's function that starts and resumes jobs, if this process has one by now.
pub(super) fn start_job() -> Option<StartJob> {
    static FOUND: OnceLock<StartJob> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(*found);
    }
    let names = CRYPTO_SONAMES.iter().copied().chain([OLD_CRYPTO_SONAME]);
    let found: StartJob = std::iter::once(libc::RTLD_NEXT)
        .chain(names.map(loaded))
        .find_map(|library| symbol!(library, c"ASYNC_start_job"))?;
    Some(*FOUND.get_or_init(|| found))
}

/// Whether calls of the function with this name come to this library: no other one stands before it. The address of
/// our own function would not tell, since that is looked up like every other.
pub(super) fn is_ours(name: &CStr) -> bool {
    // SAFETY: a C string.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let own = object_of(is_ours as fn(&CStr) -> bool as usize);
    own.is_some() && object_of(first.addr()) == own
}

/// The library, or program, that holds a function: where it is mapped.
pub(super) fn object_of(function: usize) -> Option<usize> {
    let mut info = mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: takes any address and writes the struct if it returns nonzero.
    let found = unsafe { libc::dladdr(function as *const c_void, info.as_mut_ptr()) };
    // SAFETY: all-zero is a value of this struct.
    let info = unsafe { info.assume_init() };
    (found != 0).then(|| info.dli_fbase.addr())
}

/// libcrypto's definitions, if this process has a libcrypto with providers by now.
pub(super) fn libcrypto() -> Option<&'static Libcrypto> {
    static FOUND: OnceLock<Libcrypto> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let found = libcrypto_in(crypto_library()?)?;
    Some(FOUND.get_or_init(|| found))
}

/// A handle by which libcrypto's functions are found.
fn crypto_library() -> Option<*mut c_void> {
    std::iter::once(libc::RTLD_NEXT)
        .chain(CRYPTO_SONAMES.iter().map(|name| loaded(name)))
        .find(|library| !find(*library, c"EVP_MD_fetch").is_null())
}

/// A handle of the library with this name, if the program has loaded it; otherwise null.
fn loaded(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; nothing is loaded that is not there already.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// The function of libcrypto with this name, which ends with a zero byte.
///
/// # Safety
/// `F` is the type of that function.
pub(super) unsafe fn in_libcrypto<F: Copy>(name: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
    let address = find(crypto_library()?, name);
    // SAFETY: not null, and by this function's contract the address of an `F`.
    (!address.is_null()).then(|| unsafe { mem::transmute_copy(&address) })
}

fn libcrypto_in(library: *mut c_void) -> Option<Libcrypto> {
    macro_rules! methods {
        ($($fetch:literal $up_ref:literal $free:literal;)*) => {
            [$(MethodFunctions {
                fetch: symbol!(library, $fetch)?,
                up_ref: symbol!(library, $up_ref)?,
                free: symbol!(library, $free)?,
            }),*]
        };
    }
    Some(Libcrypto {
        methods: methods! {
            c"EVP_MD_fetch" c"EVP_MD_up_ref" c"EVP_MD_free";
            c"EVP_KDF_fetch" c"EVP_KDF_up_ref" c"EVP_KDF_free";
            c"EVP_MAC_fetch" c"EVP_MAC_up_ref" c"EVP_MAC_free";
            c"EVP_CIPHER_fetch" c"EVP_CIPHER_up_ref" c"EVP_CIPHER_free";
            c"EVP_SIGNATURE_fetch" c"EVP_SIGNATURE_up_ref" c"EVP_SIGNATURE_free";
            c"EVP_KEYMGMT_fetch" c"EVP_KEYMGMT_up_ref" c"EVP_KEYMGMT_free";
            c"EVP_KEYEXCH_fetch" c"EVP_KEYEXCH_up_ref" c"EVP_KEYEXCH_free";
            c"EVP_KEM_fetch" c"EVP_KEM_up_ref" c"EVP_KEM_free";
        },
        set_default: symbol!(library, c"OSSL_LIB_CTX_set0_default")?,
        keys: KeyCalls {
            supports_digest: symbol!(library, c"EVP_PKEY_digestsign_supports_digest")?,
            up_ref: symbol!(library, c"EVP_PKEY_up_ref")?,
            free: symbol!(library, c"EVP_PKEY_free")?,
        },
        key_files: KeyFileCalls {
            read_private_key: symbol!(library, c"PEM_read_bio_PrivateKey_ex")?,
            new_decoders: symbol!(library, c"OSSL_DECODER_CTX_new_for_pkey")?,
            decode: symbol!(library, c"OSSL_DECODER_from_bio")?,
            set_password: symbol!(library, c"OSSL_DECODER_CTX_set_pem_password_cb")?,
            free_decoders: symbol!(library, c"OSSL_DECODER_CTX_free")?,
            version: symbol!(library, c"OpenSSL_version_num")?,
        },
    })
}

/// Names under which a program may have loaded libssl with `dlopen`, newest first.
const SSL_SONAMES: [&CStr; 3] = [c"libssl.so.4", c"libssl.so.3", c"libssl.so.1.1"];

/// libc's definitions. `None` only if there is no libc to speak of.
pub(super) fn libc() -> Option<&'static Libc> {
    static FOUND: OnceLock<Option<Libc>> = OnceLock::new();
    FOUND.get_or_init(next_libc).as_ref()
}

fn next_libc() -> Option<Libc> {
    Some(Libc {
        epoll_ctl: symbol!(libc::RTLD_NEXT, c"epoll_ctl")?,
        epoll_wait: symbol!(libc::RTLD_NEXT, c"epoll_wait")?,
        epoll_pwait: symbol!(libc::RTLD_NEXT, c"epoll_pwait")?,
        epoll_pwait2: symbol!(libc::RTLD_NEXT, c"epoll_pwait2"),
        close: symbol!(libc::RTLD_NEXT, c"close")?,
        write: symbol!(libc::RTLD_NEXT, c"write")?,
        send: symbol!(libc::RTLD_NEXT, c"send")?,
        pthread_create: symbol!(libc::RTLD_NEXT, c"pthread_create"),
        pthread_join: symbol!(libc::RTLD_NEXT, c"pthread_join"),
    })
}

/// libssl's definitions, if this process has a libssl by now.
pub(super) fn libssl() -> Option<&'static Libssl> {
    static FOUND: OnceLock<Libssl> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let found = libssl_in(libc::RTLD_NEXT)
        .or_else(|| SSL_SONAMES.iter().find_map(|name| libssl_in(loaded(name))))?;
    Some(FOUND.get_or_init(|| found))
}

fn libssl_in(library: *mut c_void) -> Option<Libssl> {
    Some(Libssl {
        do_handshake: symbol!(library, c"SSL_do_handshake")?,
        read_early_data: symbol!(library, c"SSL_read_early_data"),
        get_error: symbol!(library, c"SSL_get_error")?,
        free: symbol!(library, c"SSL_free")?,
        jobs: jobs_in(library),
        state_string: symbol!(library, c"SSL_state_string"),
        tickets: tickets_in(library),
    })
}

fn tickets_in(library: *mut c_void) -> Option<TicketCalls> {
    Some(TicketCalls {
        state_string: symbol!(library, c"SSL_state_string")?,
        session_reused: symbol!(library, c"SSL_session_reused")?,
        get_num_tickets: symbol!(library, c"SSL_get_num_tickets")?,
        is_server: symbol!(library, c"SSL_is_server")?,
    })
}

fn jobs_in(library: *mut c_void) -> Option<Jobs> {
    Some(Jobs {
        ctrl: symbol!(library, c"SSL_ctrl")?,
        want: symbol!(library, c"SSL_want")?,
        is_init_finished: symbol!(library, c"SSL_is_init_finished")?,
        get_fd: symbol!(library, c"SSL_get_fd")?,
        waiting_for_async: symbol!(library, c"SSL_waiting_for_async")?,
        get_all_async_fds: symbol!(library, c"SSL_get_all_async_fds")?,
        clear_errors: symbol!(library, c"ERR_clear_error")?,
    })
}

/// Looks a symbol up in a library (with what that library is linked with), or behind this one.
fn find(library: *mut c_void, name: &CStr) -> *mut c_void {
    if library.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a handle of `dlopen` that is never closed, or RTLD_NEXT, which is relative to this
    // library; and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}
