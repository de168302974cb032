// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A private operation of a pooled key: to the pool, or back to the caller to be done here.

use millrace_engine::{Operation, Output};

use super::key::{Key, Origin};
use super::{preload, wait};
use crate::config::Mode;
use crate::error::{Error, Reason, Result};
use crate::remote::FailureKind;
use crate::route::Request;

/// Tries the pool. `None` means: do it with the inner key data, which has the private part.
///
/// `operation` is the typed operation with its input, if there is one for what the application wants.
///
/// # Errors
/// If the pool did not do it and nobody else can.
pub(crate) fn run(
    key: &Key,
    operation: Option<(Operation, Vec<u8>)>,
    check: &dyn Fn(&[u8]) -> bool,
) -> Result<Option<Output>> {
    let provider = key.provider;
    let here = key.origin() == Origin::Imported;
    let Some((operation, input)) = operation else {
        if here {
            provider.stats.local.add();
            return Ok(None);
        }
        let text = "the pool holds the private key and offers no such operation; \
                    choose another digest, padding or key derivation";
        return Err(Error::new(Reason::NotOffered, text));
    };
    if provider.config.mode == Mode::Off && !here {
        let text = "the pool holds the private key, and the provider is configured with mode = off";
        return Err(Error::new(Reason::Config, text));
    }
    let local = here && provider.config.fallback;
    let identity = match key.identity() {
        Ok(identity) => identity,
        Err(_) if here => {
            provider.stats.local.add();
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let process = provider.process();
    let job = match provider.config.mode {
        Mode::Async => wait::Job::current(provider, process),
        _ => None,
    };
    if job.is_some() {
        preload::attend(process);
    }
    let request = Request {
        process,
        config: provider.config,
        stats: &provider.stats,
        key: &identity,
        local,
        pause: job.as_ref().map(|job| job as &dyn crate::oneshot::Pause),
    };
    match request.perform(&operation, &input, || key.source(), check) {
        Ok(output) => Ok(Some(output)),
        Err(error) => {
            provider.log(&format!("{}: {error}", operation.kind()));
            if local && error.kind != FailureKind::Abandoned {
                return Ok(None);
            }
            let (reason, advice) = match error.kind {
                FailureKind::Abandoned => (Reason::Pool, "nothing to do"),
                FailureKind::WrongResult => (Reason::WrongResult, "look at the log of the node"),
                FailureKind::Denied => (Reason::NotOffered, "look at the policy of the key"),
                FailureKind::Refused => (Reason::Key, "look at the keys of the node"),
                FailureKind::Quota => (Reason::Pool, "ask for a higher quota at the node"),
                _ => (Reason::Pool, "is the node up and is `pool` configured?"),
            };
            Err(Error::new(
                reason,
                format!("{}: {error}; {advice}", operation.kind()),
            ))
        }
    }
}

/// Copies a result into the buffer of the application.
///
/// # Safety
/// `out` is writable for `room` bytes, `len` is writable.
pub(crate) unsafe fn hand_out(
    output: &[u8],
    out: *mut u8,
    len: *mut usize,
    room: usize,
) -> Result<()> {
    if output.len() > room || out.is_null() || len.is_null() {
        return Err(Error::new(
            Reason::Internal,
            "the buffer for the result is too small",
        ));
    }
    // SAFETY: room enough, and a fresh result does not overlap with the buffer.
    unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), out, output.len()) };
    // SAFETY: the caller's promise.
    unsafe { len.write(output.len()) };
    Ok(())
}

/// The bytes that C describes by pointer and length.
///
/// # Safety
/// `data` is readable for `len` bytes, which do not change for `'a`; null is allowed if `len` is 0.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}
