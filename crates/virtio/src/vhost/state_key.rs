// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The key under which states of devices move between hosts, and their tags.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use millrace_hostfs::ordinary::{self, Links};
use rustix::process::geteuid;
use zeroize::Zeroizing;

use crate::primitives;
use crate::spec::MacAlgorithm;

/// Length of a key: as long as a tag, the least that RFC 2104 recommends.
pub const STATE_KEY_LEN: usize = 32;

/// Length of a tag: SHA-256, or HMAC of it.
pub(super) const TAG_LEN: usize = 32;

/// Mode bits that a file with a key must not have. The group may read it: a systemd credential shows so.
const EXPOSED: u32 = 0o037;

/// A key that the hosts share between which machines move.
pub struct StateKey(Zeroizing<[u8; STATE_KEY_LEN]>);

impl StateKey {
    /// Reads a file of [`STATE_KEY_LEN`] random bytes.
    ///
    /// # Errors
    /// If it has another length, is no file, belongs to another user, or can be read or written by others.
    pub fn read(path: &Path) -> io::Result<Self> {
        let refused = |reason: &str| io::Error::other(reason.to_owned());
        // A credential may be a link.
        let mut file = ordinary::open(path, Links::Follow)?;
        let found = file.metadata()?;
        if found.len() != STATE_KEY_LEN as u64 {
            return Err(refused(
                "not a file of 32 bytes: make one with `openssl rand -out FILE 32`",
            ));
        }
        if found.mode() & EXPOSED != 0 {
            return Err(refused("others can read it: chmod 0600"));
        }
        if ![0, geteuid().as_raw()].contains(&found.uid()) {
            return Err(refused("it belongs to another user: chown it to root or to this user"));
        }
        Self::read_whole(&mut file)
    }

    fn read_whole(file: &mut File) -> io::Result<Self> {
        let mut key = Zeroizing::new([0; STATE_KEY_LEN]);
        file.read_exact(&mut *key)?;
        Ok(Self(key))
    }

    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; STATE_KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

/// The tag of a state: an HMAC under the key, or without one a digest, which shows damage and no forgery.
pub(super) fn tag(key: Option<&StateKey>, state: &[u8]) -> io::Result<[u8; TAG_LEN]> {
    let Some(StateKey(key)) = key else {
        return Ok(primitives::sha256(state));
    };
    let mac = primitives::mac(MacAlgorithm::HmacSha256, &key[..], state);
    mac.and_then(|mac| mac.try_into().ok()).ok_or_else(|| io::Error::other("no HMAC"))
}

/// Whether two tags are the same, in a time that does not depend on them.
pub(super) fn is_same(one: &[u8; TAG_LEN], other: &[u8; TAG_LEN]) -> bool {
    one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateKey")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_is_a_private_file_of_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let read = |len: usize, mode: u32| {
            fs::write(&path, vec![7; len]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            StateKey::read(&path).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(read(32, 0o600), Ok(()));
        assert_eq!(read(32, 0o440), Ok(()), "a credential");
        for (len, mode, reason) in [
            (31, 0o600, "32 bytes"),
            (33, 0o600, "32 bytes"),
            (32, 0o604, "others"),
            (32, 0o620, "others"),
        ] {
            let error = read(len, mode).unwrap_err();
            assert!(error.contains(reason), "{len} {mode:o}: {error}");
        }
        let error = StateKey::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("a folder"), "{error}");
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let error = StateKey::read(&pipe).unwrap_err().to_string();
        assert!(error.contains("a pipe"), "{error}");
        assert!(StateKey::read(&folder.path().join("none")).is_err());
    }
}
