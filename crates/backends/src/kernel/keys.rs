// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA keys in the kernel.
//!
//! A key is held three times: as an AWS-LC object, to verify results; as PKCS#8 in this process; and in the kernel,
//! added before its first request, and again if the kernel lost it. The kernel zeroises its copy when the key is
//! closed. A driver copies the key to its device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_operation::{KeyError, KeyType};
use zeroize::Zeroizing;

use super::callers::Callers;
use super::capabilities::SIZES;
use super::errors::{Errno, Scope};
use super::sys::{Calls, Serial};
use crate::blinding::BlindedRsa;

/// Time until a key that was refused is tried again: a device that fails refuses keys, too.
const REFUSAL: Duration = Duration::from_secs(10);

pub(super) struct KernelKey {
    pub(super) rsa: BlindedRsa,
    pkcs8: Zeroizing<Vec<u8>>,
    /// Name in the keyring, which no other key of the process has.
    name: String,
    in_kernel: Mutex<InKernel>,
    callers: Arc<Callers>,
}

#[derive(Clone, Copy)]
enum InKernel {
    No,
    Yes(Serial),
    /// The driver does not take the key, or there is no room for it: not tried again before this time.
    Refused(Instant),
}

/// Why a key or a request of it was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// The driver does not take the key.
    Refused,
    /// The kernel's error.
    Kernel(Errno),
}

impl From<Errno> for CallError {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Parses and checks a key.
pub(super) fn load(pkcs8: &[u8]) -> Result<BlindedRsa, KeyError> {
    let rsa = BlindedRsa::load(pkcs8)?;
    match rsa.info().key_type {
        KeyType::Rsa { bits } if SIZES.contains(&bits) => Ok(rsa),
        _ => Err(KeyError::NotOffered),
    }
}

impl KernelKey {
    pub(super) fn new(rsa: BlindedRsa, pkcs8: &[u8], callers: Arc<Callers>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            rsa,
            pkcs8: Zeroizing::new(pkcs8.to_vec()),
            name: format!("millrace:{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            in_kernel: Mutex::new(InKernel::No),
            callers,
        }
    }

    /// Whether the key was refused lately. Never waits: a caller holds the lock while the driver loads the key.
    pub(super) fn is_refused(&self) -> bool {
        let in_kernel = self.in_kernel.try_lock();
        in_kernel
            .is_ok_and(|state| matches!(*state, InKernel::Refused(until) if Instant::now() < until))
    }

    /// The key's number in the kernel; adds the key if it is not there. Called by callers only.
    pub(super) fn serial(&self, calls: &dyn Calls) -> Result<Serial, CallError> {
        let mut in_kernel = lock(&self.in_kernel);
        match *in_kernel {
            InKernel::Yes(serial) => return Ok(serial),
            InKernel::Refused(until) if Instant::now() < until => return Err(CallError::Refused),
            InKernel::Refused(_) | InKernel::No => {}
        }
        let added = self.add(calls);
        match added {
            Ok(serial) => *in_kernel = InKernel::Yes(serial),
            Err(CallError::Kernel(error)) if error.scope() != Scope::Quota => {}
            Err(_) => *in_kernel = InKernel::Refused(Instant::now() + REFUSAL),
        }
        added
    }

    /// Adds the key and has the driver load it.
    fn add(&self, calls: &dyn Calls) -> Result<Serial, CallError> {
        let serial = calls.add(&self.name, &self.pkcs8)?;
        let error = match calls.query(serial) {
            Ok(facts) if facts.decrypts && facts.modulus_len == self.rsa.len() => {
                return Ok(serial);
            }
            // A driver that does not know the size says EINVAL.
            Ok(_) | Err(Errno(libc::EINVAL)) => CallError::Refused,
            Err(error) => CallError::Kernel(error),
        };
        calls.remove(serial);
        Err(error)
    }

    /// Raw private operation in the kernel, on an input as long as the modulus. Called by callers only.
    pub(super) fn compute(
        &self,
        calls: &dyn Calls,
        input: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, CallError> {
        let serial = self.serial(calls)?;
        let mut output = Zeroizing::new(vec![0; self.rsa.len()]);
        match calls.decrypt(serial, input, &mut output) {
            Ok(len) => {
                let zeros = output.len().saturating_sub(len);
                output.rotate_right(zeros);
                output[..zeros].fill(0);
                Ok(output)
            }
            Err(error) => {
                if error.scope() == Scope::Key {
                    self.forget(serial);
                }
                Err(error.into())
            }
        }
    }

    /// Notes that the kernel has lost the key, unless it was added again in the meantime.
    fn forget(&self, lost: Serial) {
        let mut in_kernel = lock(&self.in_kernel);
        if matches!(*in_kernel, InKernel::Yes(serial) if serial == lost) {
            *in_kernel = InKernel::No;
        }
    }
}

impl Drop for KernelKey {
    fn drop(&mut self) {
        if let InKernel::Yes(serial) = *lock(&self.in_kernel) {
            self.callers.call_later(move |calls| calls.remove(serial));
        }
    }
}
