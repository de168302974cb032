// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Makes stock nginx asynchronous, as an `LD_PRELOAD` library, and keeps HAProxy from losing jobs.
//!
//! nginx has no notion of OpenSSL's ASYNC jobs: while a private operation is with the pool, its worker
//! would block. This library stands between nginx and libssl:
//!
//! ```text
//! nginx            SSL_do_handshake ──► preload: SSL_MODE_ASYNC on ──► libssl ──► provider pauses
//!                  SSL_get_error    ◄── "want read"  ◄── WANT_ASYNC
//!                                       the job's eventfd joins nginx's epoll instance under the
//!                                       epoll data of the connection's socket: its shadow descriptor
//! epoll_wait       ◄── the eventfd fires: to nginx its socket seems readable
//! nginx            SSL_do_handshake ──► the job continues
//! ```
//!
//! If the loop drives the pool's sockets itself (`ffi::host_loop`), the job has a wake token instead of an eventfd.
//! When the provider notifies that token, `epoll_wait` reports the socket as readable.
//!
//! Only handshakes run as jobs. Reads and writes do not, so renegotiation (which nginx refuses) and updates of TLS 1.3
//! keys (which take no private key) are as they were. When nginx frees a connection whose job is paused, this library
//! resumes the job once and tells it to give up. The provider asks for that order ([`millrace_preload_cancelling`]), so
//! the job ends within the call and leaks nothing.
//!
//! HAProxy is asynchronous by itself (`ssl-mode-async`). But when it closes a connection whose job is paused, because
//! the client is gone or timed out, it frees the connection and leaks the job: about 20 KiB each time, in every version
//! so far. This library ends the job before that, by the same order, when HAProxy asks whether there is one. It also
//! lets a single event loop drive the pool's sockets, and tells HAProxy that a job waits where an error of a callback
//! in the thread's queue would hide it.
//!
//! In both servers each job runs on a stack of ours with a guard (`ffi::job`): OpenSSL's own are too small for the code
//! of others that runs inside a handshake. Where none can be had, nginx's handshakes do not run as jobs.
//!
//! A job pauses only where libssl itself uses the private key. A callback of the program that uses a key of the pool
//! blocks (`ffi::callback`): what it holds (Lua's virtual machine, a lock) must not wait for another connection.
//!
//! In both servers, libcrypto before 3.2 searches for the decoders of keys once, and not for each file and certificate
//! (`ffi::decoders`).
//!
//! Where no pool is used, the library can leave the handshakes as they are (`MILLRACE_JOBS=off` in the environment). It
//! can answer libcrypto's fetches of methods from a cache (`MILLRACE_FETCH_CACHE=on`). And it can have the tickets of a
//! handshake leave in one packet (`MILLRACE_JOIN_TICKETS=on`).
//!
//! The library does nothing in any other program, in an nginx that does not use epoll, and in a program without a
//! shared OpenSSL. It says so once on standard error. In a program that is not known, it does so only to a terminal,
//! pipe or socket that was standard error before `main`. It does nothing for connections without a socket (QUIC), and
//! never reads encrypted data.
//!
//! - [`ffi`]: the interposed symbols, and everything that calls C. `ffi::tables` does what `table` decides.
//! - `table`: which eventfds shadow which sockets, and which connections were notified.
//! - `methods`: the cache of fetches (`ffi::fetch`); `answers`: what a key signs with (`ffi::sigalgs`).
//! - `program`: the names of the programs that are understood.
//!
//! [`millrace_preload_cancelling`]: ffi::millrace_preload_cancelling

mod answers;
#[expect(unsafe_code, reason = "symbol interposition; the only room for it in this crate")]
pub mod ffi;
mod methods;
mod program;
mod table;
