// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A private operation: by the pool for a pooled key, by AWS-LC for a key that signs locally, or back to the caller,
//! whose OpenSSL does it.

use std::time::Instant;

use millrace_client::REMEDY;
use millrace_operation::{Operation, Output};

use super::key::{Key, Origin};
use super::preload;
use super::wait::AsyncJob;
use crate::config::WaitMode;
use crate::error::{Error, Reason, Result};
use crate::remote::{self, FailureKind, PoolError};
use crate::route::PooledOperation;
use crate::sampling::Scrutiny;

/// How an operation in an `ASYNC_JOB` waits for the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum JobWait {
    /// The job pauses.
    Pause,
    /// The thread blocks: the operation is part of something that the application does with a lock held.
    Block,
}

/// Does a private operation in the pool or by AWS-LC. `None` means that the caller has to do it with the inner key
/// data, which has the private part then.
///
/// `operation` is the typed operation with its input, `None` if the pool offers none for the application's settings.
/// `check` says whether a result is right, with the given scrutiny.
///
/// # Errors
/// The pool did not do it, and this process does not have the private key.
pub(crate) fn run(
    key: &Key,
    operation: Option<(Operation, Vec<u8>)>,
    check: &dyn Fn(&[u8], Scrutiny) -> bool,
) -> Result<Option<Output>> {
    run_in_job(key, operation, JobWait::Pause, check)
}

/// As [`run`], with a say in how a job waits.
pub(super) fn run_in_job(
    key: &Key,
    operation: Option<(Operation, Vec<u8>)>,
    wait: JobWait,
    check: &dyn Fn(&[u8], Scrutiny) -> bool,
) -> Result<Option<Output>> {
    let provider = key.provider;
    if let Some(signer) = key.signer() {
        let request = operation.as_ref();
        let output =
            request.and_then(|(operation, input)| signer.run(provider, operation, input, check));
        if output.is_none() {
            provider.stats.local.add();
        }
        return Ok(output);
    }
    let imported = key.origin() == Origin::Imported;
    let Some((operation, input)) = operation else {
        return if imported { leave_to_caller(key) } else { Err(not_offered()) };
    };
    if !imported {
        refuse_unpooled(key)?;
    }
    let local = imported && provider.config.fallback;
    let identity = match key.identity() {
        Ok(identity) => identity,
        Err(_) if imported => return leave_to_caller(key),
        Err(error) => return Err(error),
    };
    let process = provider.process();
    let job = match provider.config.mode {
        WaitMode::Async if wait == JobWait::Pause => AsyncJob::current(provider, process),
        _ => None,
    };
    if job.is_some() {
        preload::offer_host_loop(process);
    }
    let request = PooledOperation {
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
            provider.report(operation.kind(), &error, local);
            if local && error.kind != FailureKind::Abandoned {
                return Ok(None);
            }
            Err(failed(&operation, &error))
        }
    }
}

/// Whether the pool has the private half of a key that only the pool can have. The connection is closed before this
/// returns, so that a server which forks workers afterwards does not fork it.
///
/// # Errors
/// It does not, or did not answer.
pub(crate) fn check(key: &Key) -> Result<()> {
    refuse_unpooled(key)?;
    let identity = key.identity()?;
    let name = identity.name.as_deref().unwrap_or("");
    let config = key.provider.config;
    let pool = remote::connect(config.pool());
    let deadline = Instant::now() + config.deadline;
    match remote::open_version(pool.as_ref(), name, &identity.spki, deadline) {
        Ok(_) => Ok(()),
        Err(error) => {
            let reason = match error.kind {
                FailureKind::Refused => Reason::Key,
                _ => Reason::Pool,
            };
            Err(Error::new(reason, format!("key {name} of the pool: {error}")))
        }
    }
}

/// Leaves an operation to the caller, which has the private part, and counts it.
fn leave_to_caller(key: &Key) -> Result<Option<Output>> {
    key.provider.stats.local.add();
    Ok(None)
}

/// The error of an operation that the pool does not offer, with a key that only the pool has.
fn not_offered() -> Error {
    let text = "the pool holds the private key and offers no such operation; \
                choose another digest, padding or key derivation";
    Error::new(Reason::NotOffered, text)
}

/// Refuses a key that only the pool has where the provider does not use the pool.
fn refuse_unpooled(key: &Key) -> Result<()> {
    if key.provider.config.mode != WaitMode::Off {
        return Ok(());
    }
    let text = "the pool holds the private key, and the provider is configured with mode = off";
    Err(Error::new(Reason::Config, text))
}

/// The error of an operation that only the pool could do, with what an administrator can look at.
fn failed(operation: &Operation, error: &PoolError) -> Error {
    let (reason, advice) = match error.kind {
        FailureKind::Abandoned => (Reason::Pool, "nothing to do"),
        FailureKind::WrongResult => (Reason::WrongResult, "look at the log of the node"),
        FailureKind::Denied => (Reason::NotOffered, "look at the policy of the key"),
        FailureKind::Refused => (Reason::Key, "look at the keys of the node"),
        FailureKind::Quota => (Reason::Pool, "ask for a higher quota at the node"),
        // The error names it.
        _ if error.text.contains(REMEDY) => {
            return Error::new(Reason::Pool, format!("{}: {error}", operation.kind()));
        }
        FailureKind::NoNode
        | FailureKind::TimedOut
        | FailureKind::Busy
        | FailureKind::Failed
        | FailureKind::Breaker => (Reason::Pool, "is the node up and is `pool` configured?"),
    };
    Error::new(reason, format!("{}: {error}; {advice}", operation.kind()))
}
