// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The audit log: one line of JSON for each change of a key, a policy or the settings.
//!
//! ```text
//! {"format":1,"time":1763800000,"uid":0,"pid":4711,"actor":"uid:0","action":"policy","key":"www","detail":{…}}
//! ```
//!
//! Writers only append, each line in one write, so several processes may share the file. Its mode is 0600.
//! `format` is for readers of later versions, which may add fields (a sequence number and the hash of the
//! line before); a reader ignores fields that it does not know. The log grows by about 300 bytes per change,
//! and Millrace never truncates it.

use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_hostfs::ordinary;
use serde_json::{Value, json};

/// Name of the log in the folder of the key store.
pub const AUDIT_LOG: &str = "audit.jsonl";

/// Value of `format` in each line.
const FORMAT: u32 = 1;

/// Appends a line about an action of `actor` (`None`: the user of this process), and flushes it to the disk.
pub(super) fn append(
    folder: &Path,
    actor: Option<&str>,
    action: &str,
    key: Option<&str>,
    detail: &Value,
) -> io::Result<()> {
    // The real user: root opens a store with the owner's effective user id.
    let uid = rustix::process::getuid().as_raw();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
    let actor = actor.map_or_else(|| format!("uid:{uid}"), str::to_owned);
    let line = json!({
        "format": FORMAT,
        "time": time,
        "uid": uid,
        "pid": std::process::id(),
        "actor": actor,
        "action": action,
        "key": key,
        "detail": detail,
    });
    // Never through a link, which could redirect the line to another file.
    let mut file = ordinary::open_to_append(&folder.join(AUDIT_LOG), 0o600)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.sync_data()
}
