// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors of the kernel: what each concerns, and what to do about it.

use std::fmt;
use std::io;

/// An error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

/// Extent of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Every call: the backend is away until a known answer comes.
    Backend,
    /// The key: the kernel has lost it, so it is added again.
    Key,
    /// The room for keys: no further key until one is removed.
    Quota,
    /// One call: the next one may succeed.
    Call,
}

/// Errors with their scope and advice; every other one is of a [`Scope::Call`].
#[rustfmt::skip]
pub(super) const ERRORS: [(i32, Scope, &str); 13] = [
    (libc::ENOSYS,       Scope::Backend, "the kernel has no keyrings (CONFIG_KEYS)"),
    (libc::EPERM,        Scope::Backend, "calls are refused: allow add_key and keyctl in the seccomp filter of the container or unit"),
    (libc::EACCES,       Scope::Backend, "access to keys is denied: look at the security module (SELinux, AppArmor) and its log"),
    (libc::EOPNOTSUPP,   Scope::Backend, "the kernel has no operations with keys: they came with Linux 4.20 and CONFIG_ASYMMETRIC_KEY_TYPE"),
    (libc::ENODEV,       Scope::Backend, "the kernel has no asymmetric keys (CONFIG_ASYMMETRIC_KEY_TYPE)"),
    (libc::EBADMSG,      Scope::Backend, "the kernel reads no PKCS#8 keys: modprobe pkcs8_key_parser"),
    (libc::ENOPKG,       Scope::Backend, "the kernel has no RSA: load the driver of the device"),
    (libc::ENOKEY,       Scope::Key,     "the key is gone from the keyring of the process"),
    (libc::EKEYREVOKED,  Scope::Key,     "the key was revoked"),
    (libc::EKEYEXPIRED,  Scope::Key,     "the key has expired"),
    (libc::EDQUOT,       Scope::Quota,   "no room for more keys: raise kernel.keys.maxkeys and kernel.keys.maxbytes"),
    (libc::EKEYREJECTED, Scope::Call,    "the driver rejected the key: look at the kernel log"),
    (libc::EINVAL,       Scope::Call,    "the driver refuses the key or the input: look at the kernel log"),
];

impl Errno {
    fn row(self) -> Option<&'static (i32, Scope, &'static str)> {
        ERRORS.iter().find(|(number, ..)| *number == self.0)
    }

    pub(super) fn scope(self) -> Scope {
        self.row().map_or(Scope::Call, |(_, scope, _)| *scope)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some((.., advice)) => write!(f, "{advice} (error {})", self.0),
            None => write!(f, "the driver failed: {}", io::Error::from_raw_os_error(self.0)),
        }
    }
}
