// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The system calls `add_key` and `keyctl`. The kernel copies what they pass and checks every length.

use std::ffi::{CStr, CString};
use std::ptr;

use libc::{c_long, c_void};

use super::errors::Errno;

/// Number of a key in the kernel.
pub(super) type Serial = i32;

/// The kernel's answer about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyFacts {
    /// Length of the modulus, in bytes.
    pub(super) modulus_len: usize,
    /// Whether raw private operations work.
    pub(super) decrypts: bool,
}

/// The calls that the backend makes. Each may block for as long as the device does.
pub(super) trait Calls: Send + Sync {
    /// Makes the keyring of the process for the calling thread. Threads that it starts from then on have it, too.
    fn join(&self) -> Result<(), Errno>;

    /// Adds a PKCS#8 key to the keyring of the process. An earlier key with the same name is replaced.
    fn add(&self, name: &str, pkcs8: &[u8]) -> Result<Serial, Errno>;

    /// Asks for the key's properties, for which the driver loads it.
    fn query(&self, key: Serial) -> Result<KeyFacts, Errno>;

    /// Raw private operation. Returns the length of the result, whose leading zeros a driver may leave out.
    fn decrypt(&self, key: Serial, input: &[u8], output: &mut [u8]) -> Result<usize, Errno>;

    /// Revokes the key and takes it out of the keyring.
    fn remove(&self, key: Serial);
}

/// The kernel of this machine.
#[derive(Debug)]
pub(super) struct Keyctl;

// linux/keyctl.h
const KEY_SPEC_PROCESS_KEYRING: c_long = -2;
const KEYCTL_GET_KEYRING_ID: c_long = 0;
const KEYCTL_REVOKE: c_long = 3;
const KEYCTL_UNLINK: c_long = 9;
const KEYCTL_PKEY_QUERY: c_long = 24;
const KEYCTL_PKEY_DECRYPT: c_long = 26;
const KEYCTL_SUPPORTS_DECRYPT: u32 = 0x02;

/// Type of private keys.
const ASYMMETRIC: &CStr = c"asymmetric";
/// No padding: the backend pads.
const RAW: &CStr = c"enc=raw";

/// `struct keyctl_pkey_query`.
#[repr(C)]
#[derive(Default)]
struct PkeyQuery {
    supported_ops: u32,
    /// Length of the modulus in bits, rounded up to bytes.
    key_size: u32,
    /// Largest data, signature, ciphertext and plaintext.
    sizes: [u16; 4],
    spare: [u32; 10],
}

/// `struct keyctl_pkey_params`.
#[repr(C)]
struct PkeyParams {
    key: Serial,
    input_len: u32,
    output_len: u32,
    spare: [u32; 7],
}

const _: () = assert!(size_of::<PkeyQuery>() == 56 && size_of::<PkeyParams>() == 40);

/// The result of a call, or its error number.
fn outcome(result: c_long) -> Result<c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// A serial number or a length, which the kernel keeps within 31 bits.
fn small(result: c_long) -> Result<i32, Errno> {
    i32::try_from(result).map_err(|_| Errno(libc::EOVERFLOW))
}

fn length(bytes: &[u8]) -> Result<u32, Errno> {
    u32::try_from(bytes.len()).map_err(|_| Errno(libc::EINVAL))
}

impl Calls for Keyctl {
    fn join(&self) -> Result<(), Errno> {
        let operation = KEYCTL_GET_KEYRING_ID;
        let make = 1 as c_long;
        // SAFETY: the arguments of this operation are numbers.
        let result =
            unsafe { libc::syscall(libc::SYS_keyctl, operation, KEY_SPEC_PROCESS_KEYRING, make) };
        outcome(result).map(|_| ())
    }

    fn add(&self, name: &str, pkcs8: &[u8]) -> Result<Serial, Errno> {
        let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: both strings end with a zero byte, and `pkcs8` is valid for its length; the kernel reads them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_add_key,
                ASYMMETRIC.as_ptr(),
                name.as_ptr(),
                pkcs8.as_ptr(),
                pkcs8.len(),
                KEY_SPEC_PROCESS_KEYRING,
            )
        };
        small(outcome(result)?)
    }

    fn query(&self, key: Serial) -> Result<KeyFacts, Errno> {
        let mut answer = PkeyQuery::default();
        let no_password: c_long = 0;
        // SAFETY: `RAW` ends with a zero byte; `answer` has the layout and size that the kernel writes.
        let result = unsafe {
            libc::syscall(
                libc::SYS_keyctl,
                KEYCTL_PKEY_QUERY,
                c_long::from(key),
                no_password,
                RAW.as_ptr(),
                ptr::from_mut(&mut answer),
            )
        };
        outcome(result)?;
        Ok(KeyFacts {
            modulus_len: usize::try_from(answer.key_size.div_ceil(8)).unwrap_or(0),
            decrypts: answer.supported_ops & KEYCTL_SUPPORTS_DECRYPT != 0,
        })
    }

    fn decrypt(&self, key: Serial, input: &[u8], output: &mut [u8]) -> Result<usize, Errno> {
        let params = PkeyParams {
            key,
            input_len: length(input)?,
            output_len: length(output)?,
            spare: [0; 7],
        };
        // SAFETY: `params` has the layout that the kernel reads; `RAW` ends with a zero byte; the kernel reads and
        // writes no more than the lengths in `params`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_keyctl,
                KEYCTL_PKEY_DECRYPT,
                ptr::from_ref(&params),
                RAW.as_ptr(),
                input.as_ptr().cast::<c_void>(),
                output.as_mut_ptr().cast::<c_void>(),
            )
        };
        usize::try_from(outcome(result)?).map_err(|_| Errno(libc::EOVERFLOW))
    }

    fn remove(&self, key: Serial) {
        // Both fail only for a key that is gone already.
        // SAFETY: the arguments of this operation are numbers.
        let _ = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_REVOKE, c_long::from(key)) };
        let ring = KEY_SPEC_PROCESS_KEYRING;
        // SAFETY: the arguments of this operation are numbers.
        let _ = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_UNLINK, c_long::from(key), ring) };
    }
}
