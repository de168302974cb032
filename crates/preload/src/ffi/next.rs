// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The next definitions of the interposed symbols, and the functions of libssl that we call.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::mem;
use std::sync::OnceLock;

use super::Ssl;

/// Allocates and frees stacks of ASYNC jobs (`ASYNC_stack_alloc_fn`, `ASYNC_stack_free_fn`).
pub(super) type StackAlloc = unsafe extern "C" fn(*mut usize) -> *mut c_void;
/// See [`StackAlloc`].
pub(super) type StackFree = unsafe extern "C" fn(*mut c_void);

/// Function pointers that stay valid for the life of the process: libc and libssl are not unloaded.
pub(super) struct Next {
    pub(super) epoll_ctl:
        unsafe extern "C" fn(c_int, c_int, c_int, *mut libc::epoll_event) -> c_int,
    pub(super) close: unsafe extern "C" fn(c_int) -> c_int,
    pub(super) ssl_do_handshake: unsafe extern "C" fn(*mut Ssl) -> c_int,
    pub(super) ssl_get_error: unsafe extern "C" fn(*const Ssl, c_int) -> c_int,
    pub(super) ssl_free: unsafe extern "C" fn(*mut Ssl),
    pub(super) ssl_ctrl: unsafe extern "C" fn(*mut Ssl, c_int, c_long, *mut c_void) -> c_long,
    pub(super) ssl_is_init_finished: unsafe extern "C" fn(*const Ssl) -> c_int,
    pub(super) ssl_get_fd: unsafe extern "C" fn(*const Ssl) -> c_int,
    pub(super) ssl_waiting_for_async: unsafe extern "C" fn(*mut Ssl) -> c_int,
    pub(super) ssl_get_all_async_fds:
        unsafe extern "C" fn(*mut Ssl, *mut c_int, *mut usize) -> c_int,
    pub(super) err_clear_error: unsafe extern "C" fn(),
    /// OpenSSL 3.2 and later.
    pub(super) async_set_mem_functions:
        Option<unsafe extern "C" fn(StackAlloc, StackFree) -> c_int>,
}

/// Symbols of a process without libssl: nobody can call their interposed versions there.
unsafe extern "C" fn no_ssl_int(_ssl: *mut Ssl) -> c_int {
    -1
}
unsafe extern "C" fn no_ssl_const_int(_ssl: *const Ssl) -> c_int {
    -1
}
unsafe extern "C" fn no_ssl_error(_ssl: *const Ssl, _result: c_int) -> c_int {
    1
}
unsafe extern "C" fn no_ssl_free(_ssl: *mut Ssl) {}
unsafe extern "C" fn no_ssl_ctrl(_: *mut Ssl, _: c_int, _: c_long, _: *mut c_void) -> c_long {
    0
}
unsafe extern "C" fn no_ssl_fds(_: *mut Ssl, _: *mut c_int, _: *mut usize) -> c_int {
    0
}
unsafe extern "C" fn no_err_clear() {}

/// Resolves a symbol behind this library, as a function pointer of the type of its field.
macro_rules! symbol {
    ($name:literal) => {{
        let found = find($name);
        // SAFETY: the definition behind this symbol has the documented C signature, which is the
        // type of the field that it is assigned to; null becomes None.
        (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, _>(found) })
    }};
}

/// The next definitions; none only if libc itself lacks one.
pub(super) fn next() -> Option<&'static Next> {
    static NEXT: OnceLock<Option<Next>> = OnceLock::new();
    NEXT.get_or_init(resolve).as_ref()
}

fn resolve() -> Option<Next> {
    Some(Next {
        epoll_ctl: symbol!(c"epoll_ctl")?,
        close: symbol!(c"close")?,
        ssl_do_handshake: symbol!(c"SSL_do_handshake").unwrap_or(no_ssl_int),
        ssl_get_error: symbol!(c"SSL_get_error").unwrap_or(no_ssl_error),
        ssl_free: symbol!(c"SSL_free").unwrap_or(no_ssl_free),
        ssl_ctrl: symbol!(c"SSL_ctrl").unwrap_or(no_ssl_ctrl),
        ssl_is_init_finished: symbol!(c"SSL_is_init_finished").unwrap_or(no_ssl_const_int),
        ssl_get_fd: symbol!(c"SSL_get_fd").unwrap_or(no_ssl_const_int),
        ssl_waiting_for_async: symbol!(c"SSL_waiting_for_async").unwrap_or(no_ssl_int),
        ssl_get_all_async_fds: symbol!(c"SSL_get_all_async_fds").unwrap_or(no_ssl_fds),
        err_clear_error: symbol!(c"ERR_clear_error").unwrap_or(no_err_clear),
        async_set_mem_functions: symbol!(c"ASYNC_set_mem_functions"),
    })
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a valid C string; RTLD_NEXT is resolved relative to this library.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}
