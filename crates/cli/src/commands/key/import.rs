// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key import`: get, verify, then store. Nothing is written before everything is known
//! to be right.

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

/// Runs the command.
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

/// Reads a file, or standard input for `-`, into memory that is zeroised. One byte more than a PEM
/// file may have is enough to see that it is none.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let limit = MAX_PEM_LEN + 1;
    // Room at once: growing would leave copies of the key behind.
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

/// Loads the key into a backend and forgets it again: it is one that the pool can use.
fn check(key: &PrivateKey) -> Result<KeyInfo, KeyError> {
    let mut verdict = KeyError::NotOffered;
    // The last one takes most, and opens no device for it.
    for backend in backends::all().into_iter().rev() {
        match backend.open_key(key) {
            Ok(opened) => {
                backend.close_key(opened.key);
                return Ok(opened.info);
            }
            // "Not mine" from one backend leaves the word to the next.
            Err(KeyError::NotOffered) => {}
            Err(error) => verdict = error,
        }
    }
    Err(verdict)
}
