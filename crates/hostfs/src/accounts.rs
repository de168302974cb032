// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Local users, from `/etc/passwd`. NSS is not used: it would load foreign libraries, and the files of a bundle
//! have no name service.

use crate::{ReadResult, Root};

/// Bound on `/etc/passwd`, in bytes: about 10,000 users.
const MAX_BYTES: usize = 1 << 20;

/// A local user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// Number of the user.
    pub uid: u32,
    /// Number of the user's first group.
    pub gid: u32,
}

/// The user with this name or number; `None` if the file has none.
pub fn user(root: &Root, name: &str) -> ReadResult<Option<UserAccount>> {
    let passwd = root.text("/etc/passwd", MAX_BYTES)?;
    Ok(find(&passwd, name))
}

fn find(passwd: &str, name: &str) -> Option<UserAccount> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let known = fields.next()?;
        let uid = fields.nth(1)?;
        let gid = fields.next()?;
        (known == name || uid == name).then_some(())?;
        Some(UserAccount { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_exact_name_or_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\nwww-data:x:33:34::/:/bin/false\nbroken\n";
        let found = Some(UserAccount { uid: 33, gid: 34 });
        assert_eq!(find(passwd, "www-data"), found);
        assert_eq!(find(passwd, "33"), found);
        for unknown in ["www", "broken", "", "3"] {
            assert_eq!(find(passwd, unknown), None, "{unknown}");
        }
    }
}
