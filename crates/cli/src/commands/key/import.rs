// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key import`: reads, verifies, then stores. It writes nothing before all checks have passed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use millrace_engine::{KeyError, KeyInfo, KeyPolicy, PrivateKey};
use millrace_service::store::pem::{MAX_PEM_LEN, read_private_key};
use zeroize::Zeroizing;

use crate::args::KeyImportArgs;
use crate::backends;
use crate::exit::{ContextCode, Failure};
use crate::settings::Settings;

use super::policy;

pub(super) fn run(args: &KeyImportArgs) -> Result<()> {
    let policy = policy::apply(&args.policy, KeyPolicy::signing())?;
    let pem = read(&args.file)?;
    let refused = || format!("the key in {} was refused", describe(&args.file));
    let key = read_private_key(&pem).or_fail(Failure::KeyRefused, refused)?;
    let info = check(&key).or_fail(Failure::KeyRefused, refused)?;
    policy::check_fits(&policy, info.key_type)?;
    let store = Settings::for_store(&args.store)?.open_store()?;
    let meta = store.act(|keys| keys.import(&args.name, &key, info, policy, args.replace))?;
    eprintln!(
        "imported {} ({}) for {}",
        meta.name,
        meta.info.key_type,
        meta.policy.identities.join(", ")
    );
    Ok(())
}

/// Reads a file, or standard input for `-`, into memory that is zeroised. It reads at most one byte above the
/// bound on PEM files, enough to detect a larger file.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let limit = MAX_PEM_LEN + 1;
    // Reserves the full size: growing would leave copies of the key in freed memory.
    let mut pem = Zeroizing::new(Vec::with_capacity(limit));
    let bounded = u64::try_from(limit).unwrap_or(u64::MAX);
    let outcome = if path == Path::new("-") {
        io::stdin().lock().take(bounded).read_to_end(&mut pem)
    } else {
        File::open(path).and_then(|file| file.take(bounded).read_to_end(&mut pem))
    };
    outcome.with_context(|| format!("reading {}", describe(path)))?;
    Ok(pem)
}

fn describe(path: &Path) -> String {
    if path == Path::new("-") {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

/// Loads the key into a backend and unloads it, which proves that the pool can use it.
fn check(key: &PrivateKey) -> Result<KeyInfo, KeyError> {
    let mut verdict = KeyError::NotOffered;
    // In reverse order: the last backend supports most keys, and opens no device for them.
    for backend in backends::all().into_iter().rev() {
        match backend.open_key(key) {
            Ok(opened) => {
                backend.close_key(opened.key);
                return Ok(opened.info);
            }
            // This backend does not support the key; the next one may.
            Err(KeyError::NotOffered) => {}
            Err(error) => verdict = error,
        }
    }
    Err(verdict)
}
