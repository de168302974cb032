// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key import --from-dir`: every key of a folder in one run.
//!
//! ```text
//! find ──► check all files ──► compare with the store ──► import, key by key ──► stubs ──► the node serves them
//!          └── a wrong file: nothing is imported ──────┘
//! ```
//!
//! A key is imported as a whole or not at all. A run that is interrupted has imported the keys up to there; the same
//! command again finds them in the store and goes on with the rest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::replace::replace_file;
use millrace_operation::stub::Stub;
use millrace_operation::{KeyInfo, PrivateKey};
use millrace_service::policy::KeyPolicy;
use millrace_service::store::pem::{MAX_PEM_LEN, PemError, read_private_key};
use millrace_service::store::{IfExists, KeyMeta, MAX_KEYS, StoreError, valid_name};
use schemars::JsonSchema;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::args::KeyImportArgs;
use crate::backends::check_key;
use crate::exit::{ContextCode, Failure, chain, fail, listed};
use crate::output::{self, Table};
use crate::owned_store::OwnedStore;
use crate::progress;
use crate::settings::Settings;

use super::import::{in_effect, kept_policy, present, wait_for_node};
use super::policy;
use super::view::sha256;

/// Endings of the names of files that may have a private key. The rest of the file's name names the key.
const ENDINGS: [&str; 2] = [".key", ".pem"];

/// The key in a folder that is named as the key, as certbot has it.
const IN_FOLDER: &str = "privkey.pem";

/// Ending of the name of a stub: HAProxy finds it beside the certificate `NAME.pem`.
const STUB_ENDING: &str = ".pem.key";

/// Files of a folder that are looked at: the four of certbot for each key of a full store.
const MAX_FILES: usize = 4 * MAX_KEYS;

/// Files without a key, and wrong ones, that a message names.
const NAMED: usize = 20;

/// A file of the folder, and what becomes of its key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "ImportedKey")]
pub(crate) struct ImportedKey {
    /// Name of the key in the pool.
    name: String,
    #[serde(rename = "type")]
    key_type: String,
    /// The file with the private key.
    file: PathBuf,
    action: ImportAction,
    /// SHA-256 of the `SubjectPublicKeyInfo`, in hex.
    spki_sha256: String,
    /// The stub, if stubs are written.
    stub: Option<PathBuf>,
}

/// Act on a key of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ImportAction {
    /// The key is imported under a new name.
    Import,
    /// The key takes the place of another one, or gets another policy.
    Replace,
    /// The store has it already: nothing is done.
    Present,
}

/// A key of the folder that was checked.
struct CheckedKey {
    name: String,
    file: PathBuf,
    key: PrivateKey,
    info: KeyInfo,
}

/// The files of a folder: their keys by name, those without one, and what is wrong.
#[derive(Default)]
struct KeyFolder {
    keys: BTreeMap<String, CheckedKey>,
    without_key: Vec<PathBuf>,
    problems: Vec<String>,
}

/// A key, its policy, and what becomes of it.
struct Step {
    key: CheckedKey,
    policy: KeyPolicy,
    action: ImportAction,
    stub: Option<PathBuf>,
}

pub(super) fn run(args: &KeyImportArgs, folder: &Path) -> Result<()> {
    // Wrong options are reported before the keys are read.
    policy::apply(&args.policy, KeyPolicy::signing([]))?;
    let found = read_folder(folder)?;
    let settings = Settings::for_keys(&args.store)?;
    let dry_run = args.plan.dry_run;
    let looks_only = dry_run || !found.problems.is_empty();
    let store = if looks_only { settings.look_at_store()? } else { settings.open_store()? };
    let (steps, in_the_way) = plan(args, &store, found.keys)?;
    let failure = if found.problems.is_empty() { Failure::KeyName } else { Failure::KeyRefused };
    let problems: Vec<String> = found.problems.into_iter().chain(in_the_way).collect();
    if !problems.is_empty() {
        let sentence = "nothing was imported, because these files cannot be";
        let shown = problems.iter().take(NAMED).map(String::as_str);
        let more = problems.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("and {more} more"));
        return Err(fail(failure, listed(sentence, shown.chain(more.as_deref()))));
    }
    if steps.is_empty() {
        let message = format!(
            "{} has no private key: keys are in NAME.pem, NAME.key or NAME/{IN_FOLDER}",
            folder.display()
        );
        return Err(fail(Failure::KeyRefused, message));
    }
    check_room(&store, &steps)?;
    tell_without_key(&found.without_key);
    if !dry_run {
        import(&store, &steps)?;
        if let Some(folder) = &args.stubs {
            write_stubs(folder, &steps)?;
        }
    }
    if args.json {
        output::print_json(&steps.iter().map(Step::view).collect::<Vec<_>>())?;
    } else if dry_run {
        table(&steps).print()?;
    }
    report(&steps, dry_run);
    if dry_run { Ok(()) } else { wait_for_node(&settings, &store, &metas(&store, &steps)?) }
}

/// Reads and checks every key of a folder. Sorted, so that each run reports the same.
fn read_folder(folder: &Path) -> Result<KeyFolder> {
    let reading = || format!("reading {}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).or_fail(Failure::Usage, reading)? {
        let path = entry.with_context(reading)?.path();
        files.extend(key_file(&path).map(|file| (path, file)));
    }
    if files.len() > MAX_FILES {
        let message = format!("{} has more than {MAX_FILES} files: split it", folder.display());
        return Err(fail(Failure::Usage, message));
    }
    files.sort();
    let mut found = KeyFolder::default();
    let bar = progress::bar("checking", files.len());
    for (path, file) in files {
        found.add(&path, file);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(found)
}

/// The file that may have a key, for an entry of the folder.
fn key_file(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy();
    if path.is_dir() {
        return Some(path.join(IN_FOLDER)).filter(|file| file.exists());
    }
    let is_one = !name.starts_with('.') && ENDINGS.iter().any(|ending| name.ends_with(ending));
    is_one.then(|| path.to_owned())
}

impl KeyFolder {
    fn add(&mut self, entry: &Path, file: PathBuf) {
        match check(entry, &file) {
            Ok(None) => self.without_key.push(file),
            Ok(Some(key)) => match self.keys.get(&key.name) {
                // A key may lie in its own file and beside its certificate in another.
                Some(other) if other.info == key.info => {}
                Some(other) => self.problems.push(format!(
                    "{} and {} have different keys for the name {}",
                    other.file.display(),
                    key.file.display(),
                    key.name
                )),
                None => {
                    self.keys.insert(key.name.clone(), key);
                }
            },
            Err(error) => self.problems.push(format!("{}: {}", file.display(), chain(&error))),
        }
    }
}

/// Reads the key of a file; `None` if it has none, as a certificate.
fn check(entry: &Path, file: &Path) -> Result<Option<CheckedKey>> {
    // Reserves the full size: growing would leave copies of the key in freed memory.
    let mut pem = Zeroizing::new(Vec::with_capacity(MAX_PEM_LEN + 1));
    ordinary::read_into(file, Links::Follow, MAX_PEM_LEN, &mut pem)?;
    let key = match read_private_key(&pem) {
        Err(PemError::NotFound) => return Ok(None),
        read => read?,
    };
    let name = name_of(entry);
    if !valid_name(&name) {
        return Err(StoreError::Name { name }.into());
    }
    let info = check_key(&key)?;
    Ok(Some(CheckedKey { name, file: file.to_owned(), key, info }))
}

/// The name of the key of an entry: `www` for `www.pem`, for HAProxy's `www.pem.key`, and for a folder `www`.
fn name_of(entry: &Path) -> String {
    let name = entry.file_name().unwrap_or_default().to_string_lossy();
    let mut name = &*name;
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) {
        name = shorter;
    }
    name.to_owned()
}

/// Decides what becomes of each key; the second value says what cannot be done.
fn plan(
    args: &KeyImportArgs,
    store: &OwnedStore,
    keys: BTreeMap<String, CheckedKey>,
) -> Result<(Vec<Step>, Vec<String>)> {
    let (mut steps, mut problems) = (Vec::new(), Vec::new());
    let bar = progress::bar("comparing", keys.len());
    for key in keys.into_values() {
        bar.inc(1);
        match step(args, store, key)? {
            Ok(step) => steps.push(step),
            Err(problem) => problems.push(problem),
        }
    }
    bar.finish_and_clear();
    Ok((steps, problems))
}

/// Decides what becomes of a key, or says why nothing can.
///
/// # Errors
/// The store cannot be used.
fn step(
    args: &KeyImportArgs,
    store: &OwnedStore,
    key: CheckedKey,
) -> Result<std::result::Result<Step, String>> {
    let wrong = |error: &anyhow::Error| format!("{}: {}", key.file.display(), chain(error));
    let before = match present(store, &key.name) {
        Ok(before) => before,
        Err(error) => return Ok(Err(wrong(&error))),
    };
    let is_same = before.as_ref().is_some_and(|meta| meta.info == key.info);
    let (policy, action) = match before {
        Some(meta) if is_same && !args.replace => (meta.policy, ImportAction::Present),
        Some(_) if !args.replace => {
            let name = &key.name;
            let error = StoreError::Exists { name: name.clone() };
            return Ok(Err(format!("{}: {error}", key.file.display())));
        }
        before => {
            let own = before.as_ref().map(|meta| in_effect(&meta.policy, meta.info.key_type));
            let kept =
                before.map(|meta| kept_policy(store, meta, key.info.key_type)).transpose()?;
            let policy =
                policy::apply(&args.policy, kept.unwrap_or_else(|| KeyPolicy::signing([])))
                    .and_then(|policy| {
                        policy::check_fits(&policy, key.info.key_type).map(|()| policy)
                    });
            let policy = match policy {
                Ok(policy) => policy,
                Err(error) => return Ok(Err(wrong(&error))),
            };
            let action = match own {
                Some(own) if is_same && own == in_effect(&policy, key.info.key_type) => {
                    ImportAction::Present
                }
                Some(_) => ImportAction::Replace,
                None => ImportAction::Import,
            };
            (policy, action)
        }
    };
    let stub = args.stubs.as_ref().map(|folder| folder.join(format!("{}{STUB_ENDING}", key.name)));
    if let Some(path) = stub.as_ref().filter(|path| !may_write_stub(path)) {
        let path = path.display();
        return Ok(Err(format!(
            "{path} is there and no stub: move it away, or name another --stubs"
        )));
    }
    Ok(Ok(Step { key, policy, action, stub }))
}

/// Whether a path is free or has a stub: a private key in its place must not be lost.
fn may_write_stub(path: &Path) -> bool {
    match ordinary::read_text(path, Links::Refuse, MAX_PEM_LEN) {
        Ok(text) => Stub::from_pem(&text).is_some(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn check_room(store: &OwnedStore, steps: &[Step]) -> Result<()> {
    let new = count(steps, ImportAction::Import);
    let room = store.act(|keys| keys.importer().map(|importer| importer.room()))?;
    if new <= room {
        return Ok(());
    }
    let message = format!(
        "nothing was imported: the folder has {new} new keys, and the store has room for {room} ({MAX_KEYS} in all)"
    );
    Err(fail(Failure::Failed, message))
}

fn import(store: &OwnedStore, steps: &[Step]) -> Result<()> {
    let todo: Vec<_> = steps.iter().filter(|step| step.action != ImportAction::Present).collect();
    let bar = progress::bar("importing", todo.len());
    let (done, stopped) = store.act(|keys| {
        let mut importer = keys.importer()?;
        for (done, step) in todo.iter().enumerate() {
            let if_exists = match step.action {
                ImportAction::Replace => IfExists::Replace,
                ImportAction::Import | ImportAction::Present => IfExists::Fail,
            };
            let CheckedKey { name, key, info, .. } = &step.key;
            let policy = step.policy.clone();
            if let Err(error) = importer.import(name, key, info.clone(), policy, if_exists) {
                return Ok((done, Some((name.clone(), error))));
            }
            bar.inc(1);
        }
        Ok((todo.len(), None))
    })?;
    bar.finish_and_clear();
    let Some((name, error)) = stopped else {
        return Ok(());
    };
    Err(anyhow::Error::new(error).context(format!(
        "imported {done} of {} keys, until {name} (run the command again for the rest)",
        todo.len()
    )))
}

fn write_stubs(folder: &Path, steps: &[Step]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for step in steps {
        let Some(path) = &step.stub else {
            continue;
        };
        let writing = || format!("writing {}", path.display());
        let CheckedKey { name, info, .. } = &step.key;
        let stub = Stub::new(name, &info.spki);
        let stub = stub.with_context(|| format!("{name} cannot be named by a stub"))?;
        replace_file(path, stub.to_pem().as_bytes(), Some(0o644)).with_context(writing)?;
    }
    Ok(())
}

/// The keys as the store has them now.
fn metas(store: &OwnedStore, steps: &[Step]) -> Result<Vec<KeyMeta>> {
    store.act(|keys| steps.iter().map(|step| keys.describe(&step.key.name)).collect())
}

fn count(steps: &[Step], action: ImportAction) -> usize {
    steps.iter().filter(|step| step.action == action).count()
}

fn tell_without_key(files: &[PathBuf]) {
    if files.is_empty() {
        return;
    }
    let named = files.iter().take(NAMED).map(|file| file.display().to_string());
    let mut named = named.collect::<Vec<_>>().join(", ");
    if files.len() > NAMED {
        named.push_str(&format!(" and {} more", files.len() - NAMED));
    }
    note!("without a private key: {named}");
}

fn report(steps: &[Step], dry_run: bool) {
    let would = if dry_run { "would have " } else { "" };
    let [imported, replaced, present] =
        [ImportAction::Import, ImportAction::Replace, ImportAction::Present]
            .map(|action| count(steps, action));
    let mut text = format!("{would}imported {imported} keys");
    if replaced > 0 {
        text.push_str(&format!(", replaced {replaced}"));
    }
    if present > 0 {
        text.push_str(&format!("; {present} were there already and stay as they are"));
    }
    note!("{text}");
    let closed = steps.iter().filter(|step| step.policy.identities.is_empty()).count();
    if closed > 0 {
        note!(
            "no client may use {closed} of them yet: --replace --allow-uid USER (on this machine) or --allow-cert NAME \
             (over TCP) with the same folder, or millrace key policy NAME"
        );
    }
}

#[rustfmt::skip]
fn table(steps: &[Step]) -> Table {
    Table::of(steps, &[
        ("name", &|step| step.key.name.clone()),
        ("type", &|step| step.key.info.key_type.to_string()),
        ("file", &|step| step.key.file.display().to_string()),
        ("action", &|step| step.action.word().to_owned()),
    ])
}

impl ImportAction {
    fn word(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Replace => "replace",
            Self::Present => "present",
        }
    }
}

impl Step {
    fn view(&self) -> ImportedKey {
        let CheckedKey { name, file, key: _, info } = &self.key;
        ImportedKey {
            name: name.clone(),
            key_type: info.key_type.to_string(),
            file: file.clone(),
            action: self.action,
            spki_sha256: sha256(&info.spki),
            stub: self.stub.clone(),
        }
    }
}
