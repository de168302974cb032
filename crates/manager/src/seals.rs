// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Seals: proofs that tenants, principals, keys and the audit log are what managers wrote. They are made with a key
//! derived from the pool's key-encryption key, which the store does not hold, so that a writer to the store alone
//! can make none.
//!
//! ```text
//!  millrace-seal/tenant/NAME   number of the audit entry that wrote the record, MAC of both
//!  millrace-seal/head          number and hash of the newest sealed audit entry, MAC
//!  STATE/manager/audit-head    the newest head that this manager has seen, outside of the store
//! ```
//!
//! The sealed head makes the hash chain of the audit log authentic, and the chain says which entry wrote each record
//! last: a record that was put back together with its former seal has an older number. The seals are outside of the
//! view's prefix, and managers of a version before seals neither read nor write them: what they change is named, and
//! taken. ADR 57 has the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_hostfs::ordinary::{self, Links};
use millrace_operation::sync::lock;
use millrace_service::store::{IfExists, MAC_LEN, write_private};
use serde::{Deserialize, Serialize};
use tracing::{error, info, warn};

use crate::model::audit::{AuditEntry, AuditError, AuditHash, AuditHead, AuditVerifier};
use crate::model::command;
use crate::model::view::{AUDIT_HEAD, AUDIT_PREFIX, PREFIX, SCHEMA, Table, audit_key};
use crate::store::{MAX_OPERATIONS, Snapshot, Store, StoreError, Transaction, Write};
use crate::vault::Vault;

/// All seals are below this prefix.
const SEAL_PREFIX: &str = "millrace-seal/";

/// Key of the [`SealedHead`].
const HEAD: &str = "millrace-seal/head";

/// File beside the key-encryption key with the newest audit head that this manager has seen.
const NOTE: &str = "audit-head";

/// Bound on that file, in bytes: it has 200.
const MAX_NOTE_LEN: usize = 4096;

/// Time between two checks. Each reads all records; a pool of 1,000 tenants has 1 MiB.
const INTERVAL: Duration = Duration::from_secs(30);

/// Least time between two checks as a multiple of what the last one took: a large pool is checked less often.
const SPARING: u32 = 50;

/// Checks after which the audit log is read from its first entry again.
const FULL_EVERY: u32 = 120;

/// Audit entries that are read at once.
const PAGE: usize = 1000;

/// Bound on the findings that are kept as texts; [`Findings::count`] has their number.
pub const MAX_FINDINGS: usize = 50;

/// Bound on [`SealedHead::gaps`]: more become one.
const MAX_GAPS: usize = 16;

/// Actor of the audit entry that says that all records were sealed.
const ACTOR: &str = "manager start";

/// Tries of a seal of all records while other managers write.
const TRIES: u32 = 16;

/// Proof for one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seal {
    /// Number of the audit entry that wrote the record.
    seq: u64,
    /// Over key, number and value of the record, in hexadecimal digits.
    mac: String,
}

/// Proof for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SealedHead {
    /// A random name of the pool: a manager notes heads of one pool.
    pool: String,
    seq: u64,
    hash: AuditHash,
    /// Entries, from and to, that were there when a manager with this key continued the log, and that none had sealed.
    gaps: Vec<(u64, u64)>,
    mac: String,
}

/// A manager's note outside of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    pool: String,
    seq: u64,
    hash: AuditHash,
}

/// The findings of a check, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Number of records and places of the audit log.
    pub count: usize,
    /// The first [`MAX_FINDINGS`], a sentence each.
    pub texts: Vec<String>,
}

/// The seals of a pool, at one manager.
pub(crate) struct Seals {
    vault: Arc<Vault>,
    store: Arc<dyn Store>,
    note: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Entry of the audit log up to which the chain was followed, and the last entry of each record up to there.
    verified: AuditHead,
    last: BTreeMap<String, u64>,
    checks: u32,
    next: Option<Instant>,
    /// Revision of the records that were checked last.
    through: u64,
    /// Records that did not pass, with their revisions.
    suspects: BTreeMap<String, Suspect>,
    findings: Findings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Suspect {
    /// 0: it was removed.
    revision: u64,
    text: String,
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seals").field("note", &self.note).finish_non_exhaustive()
    }
}

impl Seals {
    pub(crate) fn new(vault: Arc<Vault>, store: Arc<dyn Store>) -> Self {
        let note = vault.path().with_file_name(NOTE);
        Self { vault, store, note, state: Mutex::default() }
    }

    /// Makes missing seals and checks the records, when a manager starts. What is damaged keeps no manager from
    /// starting.
    pub(crate) fn start(&self, accepts: bool, time_ms: u64) -> Result<(), StoreError> {
        let prepared = self.prepare(accepts, time_ms).and_then(|()| self.check());
        match prepared {
            Err(error) if !error.may_pass() => {
                error!("the records cannot be compared with their seals: {error}");
                Ok(())
            }
            prepared => prepared,
        }
    }

    /// Seals the records of a pool that has no seals yet, and all of them anew if an operator `accepts` them as they
    /// are. Seals that are missing although this manager has seen some are not made again.
    fn prepare(&self, accepts: bool, time_ms: u64) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let (head, revision) = self.head()?;
            let records = self.store.read(PREFIX)?;
            let fresh = records.entries.iter().all(|entry| entry.key == SCHEMA);
            let lost = head.is_none() && !fresh && self.noted().is_some();
            if (head.is_some() || lost) && !accepts {
                return Ok(());
            }
            match self.seal_all(&records, (head, revision), fresh, time_ms) {
                Err(StoreError::Conflict) => {}
                sealed => return sealed,
            }
        }
        Err(StoreError::Conflict)
    }

    fn seal_all(
        &self,
        records: &Snapshot,
        (head, sealed_at): (Option<SealedHead>, u64),
        fresh: bool,
        time_ms: u64,
    ) -> Result<(), StoreError> {
        let found = records.entries.iter().find(|entry| entry.key == AUDIT_HEAD);
        let (before, revision) = match found {
            None => (AuditHead::default(), 0),
            Some(entry) => (parse(&entry.key, &entry.value)?, entry.revision),
        };
        let sealed: Vec<_> =
            records.entries.iter().filter(|entry| sealed_name(&entry.key).is_some()).collect();
        let detail = serde_json::json!({ "records": sealed.len() });
        let entry = AuditEntry::after(&before, time_ms, ACTOR, "records-seal", "records", detail);
        let next = if fresh { before } else { entry.head() };
        for part in sealed.chunks(MAX_OPERATIONS / 2) {
            let mut transaction = Transaction::default();
            for record in part {
                transaction.require(record.key.clone(), record.revision);
                let seal = self.seal(&record.key, next.seq, &record.value);
                transaction.put(seal_key(&record.key), json(&seal));
            }
            self.store.commit(&transaction)?;
        }
        for part in self.stale(records)?.chunks(MAX_OPERATIONS / 2) {
            let mut transaction = Transaction::default();
            part.iter().for_each(|stale| transaction.delete(stale.clone()));
            self.store.commit(&transaction)?;
        }
        let mut transaction = Transaction::default();
        transaction.require(AUDIT_HEAD, revision);
        transaction.require(HEAD, sealed_at);
        if !fresh {
            transaction.put(AUDIT_HEAD, json(&next));
            transaction.put(audit_key(entry.seq), json(&entry));
            let count = sealed.len();
            info!("{count} records are sealed as they are, by entry {} of the audit log", next.seq);
        }
        let pool = match head.filter(|head| head.mac == self.mac_of_head(head)) {
            Some(head) => head.pool,
            None => random()?,
        };
        transaction.put(HEAD, json(&self.sealed_head(pool, next, Vec::new())));
        self.store.commit(&transaction)?;
        // What was noted before belongs to records that are no more.
        self.write_note(None);
        Ok(())
    }

    /// Seals of records that are gone.
    fn stale(&self, records: &Snapshot) -> Result<Vec<String>, StoreError> {
        let present: BTreeSet<String> =
            records.entries.iter().map(|entry| seal_key(&entry.key)).collect();
        let seals = self.store.read(SEAL_PREFIX)?.entries.into_iter().map(|entry| entry.key);
        Ok(seals.filter(|key| key != HEAD && !present.contains(key)).collect())
    }

    /// Adds the seals of an administrative change to its transaction.
    pub(crate) fn add(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        let head = transaction.then.iter().find_map(|write| match write {
            Write::Put { key, value } if key == AUDIT_HEAD => Some(parse(key, value)),
            Write::Put { .. } | Write::Delete { .. } => None,
        });
        let Some(head) = head else { return Ok(()) };
        let head: AuditHead = head?;
        let mut seals = Transaction::default();
        for write in &transaction.then {
            match write {
                Write::Put { key, value } if sealed_name(key).is_some() => {
                    seals.put(seal_key(key), json(&self.seal(key, head.seq, value)));
                }
                Write::Delete { key } if sealed_name(key).is_some() => seals.delete(seal_key(key)),
                Write::Put { .. } | Write::Delete { .. } => {}
            }
        }
        let (sealed, revision) = self.head()?;
        let sealed = sealed.filter(|sealed| sealed.mac == self.mac_of_head(sealed));
        let (pool, mut gaps, seq) = match sealed {
            Some(SealedHead { pool, gaps, seq, .. }) => (pool, gaps, seq),
            // The checks say that it is missing; what is written from now on is sealed.
            None => (random()?, Vec::new(), 0),
        };
        if seq + 1 < head.seq {
            gaps.push((seq + 1, head.seq - 1));
        }
        if gaps.len() > MAX_GAPS {
            let first = gaps.remove(0);
            gaps[0].0 = first.0;
        }
        transaction.require(HEAD, revision);
        seals.put(HEAD, json(&self.sealed_head(pool, head, gaps)));
        transaction.then.append(&mut seals.then);
        Ok(())
    }

    /// Whether the record of a principal is what a manager wrote.
    pub(crate) fn vouches(&self, principal: &str, revision: u64) -> Result<bool, StoreError> {
        let mut state = lock(&self.state);
        if state.through < revision {
            self.check_now(&mut state)?;
        }
        let suspect = state.suspects.get(&Table::Principal.key(principal));
        Ok(suspect.is_none_or(|suspect| suspect.revision != revision))
    }

    /// The findings of the last check.
    pub(crate) fn findings(&self) -> Findings {
        lock(&self.state).findings.clone()
    }

    /// Checks the records, if it is time.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if state.next.is_some_and(|next| Instant::now() < next) {
            return Ok(());
        }
        self.check_now(&mut state)
    }

    /// Checks the records now.
    pub(crate) fn check_at_once(&self) -> Result<(), StoreError> {
        self.check_now(&mut lock(&self.state))
    }

    fn check_now(&self, state: &mut State) -> Result<(), StoreError> {
        let start = Instant::now();
        state.checks += 1;
        if state.checks.is_multiple_of(FULL_EVERY) {
            (state.verified, state.last) = (AuditHead::default(), BTreeMap::new());
        }
        let mut look = self.look(state)?;
        if !look.suspects.is_empty() {
            // Records and seals are read one after the other: what was written in between shows in the second look.
            let again = self.look(state)?;
            look.suspects.retain(|key, suspect| again.suspects.get(key) == Some(&*suspect));
            look.through = again.through;
            look.places = again.places;
        }
        let Look { suspects, places, through } = look;
        let texts = || places.iter().chain(suspects.values().map(|suspect| &suspect.text));
        let findings = Findings {
            count: texts().count(),
            texts: texts().take(MAX_FINDINGS).cloned().collect(),
        };
        if findings != state.findings {
            findings.texts.iter().for_each(|text| error!("{text}"));
        }
        (state.through, state.suspects, state.findings) = (through, suspects, findings);
        state.next = Some(Instant::now() + INTERVAL.max(start.elapsed() * SPARING));
        Ok(())
    }

    /// Compares all records with their seals, and the audit log with its sealed head.
    fn look(&self, state: &mut State) -> Result<Look, StoreError> {
        let records = self.store.read(PREFIX)?;
        let seals = self.store.read(SEAL_PREFIX)?;
        let mut look = Look { through: records.revision, ..Look::default() };
        let head = seals.entries.iter().find(|entry| entry.key == HEAD);
        let head = head.map(|entry| parse::<SealedHead>(&entry.key, &entry.value)).transpose();
        let head = head.ok().flatten().filter(|head| head.mac == self.mac_of_head(head));
        let Some(head) = head else {
            look.places.push(
                "the seals of the pool's records are missing, or were changed outside of the manager: look at tenants, \
                 principals and keys, and start a manager once with --accept-records"
                    .to_owned(),
            );
            return Ok(look);
        };
        let unsealed = self.follow(state, &head, &records, &mut look)?;
        let seal_of: BTreeMap<&str, (Option<Seal>, u64)> = seals
            .entries
            .iter()
            .filter(|entry| entry.key != HEAD)
            .map(|entry| {
                let seal = serde_json::from_slice(&entry.value).ok();
                (&entry.key[SEAL_PREFIX.len()..], (seal, entry.revision))
            })
            .collect();
        let mut named = BTreeSet::new();
        for record in &records.entries {
            let Some(name) = sealed_name(&record.key) else { continue };
            named.insert(name);
            let written = state.last.get(name).copied();
            let what = match seal_of.get(name) {
                // It was written after the records were read.
                Some((_, revision)) if *revision > records.revision => continue,
                Some((Some(seal), _))
                    if *seal == self.seal(&record.key, seal.seq, &record.value)
                        && written.is_none_or(|written| seal.seq >= written) =>
                {
                    continue;
                }
                Some(_) => "changed",
                None => "added",
            };
            let text = outside(name, what, written.filter(|seq| unsealed.contains(seq)));
            look.suspects.insert(record.key.clone(), Suspect { revision: record.revision, text });
        }
        let gone = seal_of.iter().filter(|(name, (_, revision))| {
            *revision <= records.revision && !named.contains(**name)
        });
        for (name, _) in gone {
            let written = state.last.get(*name).copied().filter(|seq| unsealed.contains(seq));
            let text = outside(name, "removed", written);
            look.suspects.insert(format!("{PREFIX}{name}"), Suspect { revision: 0, text });
        }
        Ok(look)
    }

    /// Follows the audit log to its end, and compares it with the sealed head and with what this manager noted. Returns
    /// the numbers of the entries that no manager with this key has sealed.
    fn follow(
        &self,
        state: &mut State,
        head: &SealedHead,
        records: &Snapshot,
        look: &mut Look,
    ) -> Result<BTreeSet<u64>, StoreError> {
        let mut unsealed: BTreeSet<u64> =
            head.gaps.iter().flat_map(|(from, to)| *from..=*to).take(PAGE).collect();
        for (from, to) in &head.gaps {
            look.places.push(unsealed_entries(*from, *to));
        }
        let note = self.noted().filter(|note| note.pool == head.pool);
        if let Some(note) = note.as_ref().filter(|note| note.seq > head.seq) {
            look.places.push(format!(
                "the audit log ends with entry {}, and this manager has seen entry {}: the store was restored from a \
                 backup, or entries were removed outside of the manager",
                head.seq, note.seq
            ));
        }
        match self.entries(state, head.seq, |entry| {
            note.as_ref().is_none_or(|note| note.seq != entry.seq || note.hash == entry.hash)
        })? {
            Ok(()) if state.verified != (AuditHead { seq: head.seq, hash: head.hash }) => {
                look.places.push(AuditError::Changed(head.seq).to_string());
            }
            Ok(()) if note.is_none_or(|note| note.seq <= head.seq) => self.write_note(Some(head)),
            Ok(()) => {}
            Err(broken) => look.places.push(broken.to_string()),
        }
        // What follows was written by managers that know no seals, or by none.
        let end = records.entries.iter().find(|entry| entry.key == AUDIT_HEAD);
        // One that cannot be read is among the damaged records of the view.
        let end = end.and_then(|entry| parse::<AuditHead>(&entry.key, &entry.value).ok());
        if let Some(end) = end.filter(|end| end.seq > head.seq) {
            look.places.push(unsealed_entries(head.seq + 1, end.seq));
            let page = self.store.page(AUDIT_PREFIX, &audit_key(head.seq + 1), PAGE)?;
            for entry in page.entries.iter().filter_map(|entry| AuditEntry::read(entry).ok()) {
                unsealed.insert(entry.seq);
                note_entry(&mut state.last, &entry);
            }
        }
        Ok(unsealed)
    }

    /// Follows the chain from the last verified entry up to `to`.
    fn entries(
        &self,
        state: &mut State,
        to: u64,
        fits: impl Fn(&AuditEntry) -> bool,
    ) -> Result<Result<(), AuditError>, StoreError> {
        let mut verifier = AuditVerifier::after(state.verified);
        while state.verified.seq < to {
            let from = state.verified.seq + 1;
            let page = self.store.page(AUDIT_PREFIX, &audit_key(from), PAGE)?;
            if page.entries.is_empty() {
                return Ok(Err(AuditError::Cut { expected: to, found: state.verified.seq }));
            }
            for entry in &page.entries {
                let entry = match AuditEntry::read(entry) {
                    Ok(entry) => entry,
                    Err(damaged) => return Ok(Err(damaged)),
                };
                if entry.seq > to {
                    return Ok(Ok(()));
                }
                if let Err(broken) = verifier.take(&entry) {
                    return Ok(Err(broken));
                }
                if !fits(&entry) {
                    return Ok(Err(AuditError::Changed(entry.seq)));
                }
                note_entry(&mut state.last, &entry);
                state.verified = entry.head();
            }
        }
        Ok(Ok(()))
    }

    fn seal(&self, key: &str, seq: u64, value: &[u8]) -> Seal {
        let parts: [&[u8]; 4] = [b"record", key.as_bytes(), &seq.to_be_bytes(), value];
        Seal { seq, mac: hex::encode(self.vault.authenticate(&parts)) }
    }

    fn sealed_head(&self, pool: String, head: AuditHead, gaps: Vec<(u64, u64)>) -> SealedHead {
        let AuditHead { seq, hash } = head;
        let mut sealed = SealedHead { pool, seq, hash, gaps, mac: String::new() };
        sealed.mac = self.mac_of_head(&sealed);
        sealed
    }

    fn mac_of_head(&self, head: &SealedHead) -> String {
        let SealedHead { pool, seq, hash, gaps, mac: _ } = head;
        let gaps: Vec<u8> = gaps
            .iter()
            .flat_map(|(from, to)| [from.to_be_bytes(), to.to_be_bytes()])
            .flatten()
            .collect();
        let hash = hash.to_string();
        let parts: [&[u8]; 5] =
            [b"audit head", pool.as_bytes(), &seq.to_be_bytes(), hash.as_bytes(), &gaps];
        hex::encode(self.vault.authenticate(&parts))
    }

    /// The sealed head, of any writer, and its revision.
    fn head(&self) -> Result<(Option<SealedHead>, u64), StoreError> {
        let page = self.store.page(SEAL_PREFIX, HEAD, 1)?;
        let found = page.entries.iter().find(|entry| entry.key == HEAD);
        Ok(found.map_or((None, 0), |entry| (parse(&entry.key, &entry.value).ok(), entry.revision)))
    }

    fn noted(&self) -> Option<Note> {
        let note = ordinary::read(&self.note, Links::Refuse, MAX_NOTE_LEN).ok()?;
        serde_json::from_slice(&note).ok()
    }

    /// Notes the head outside of the store; `None` forgets the note.
    fn write_note(&self, head: Option<&SealedHead>) {
        let written = match head {
            None => std::fs::remove_file(&self.note),
            Some(SealedHead { pool, seq, hash, .. }) => {
                let note = Note { pool: pool.clone(), seq: *seq, hash: *hash };
                if self.noted().as_ref() == Some(&note) {
                    return;
                }
                write_private(&self.note, &json(&note), IfExists::Replace)
            }
        };
        match written {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!("cannot note the head of the audit log in {}: {error}", self.note.display());
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// A name of a pool.
fn random() -> Result<String, StoreError> {
    let mut bytes = [0; MAC_LEN];
    let no_numbers = |_| StoreError::Configuration("the system gives no random numbers".to_owned());
    aws_lc_rs::rand::fill(&mut bytes).map_err(no_numbers)?;
    Ok(hex::encode(bytes))
}

#[derive(Default)]
struct Look {
    suspects: BTreeMap<String, Suspect>,
    /// Places of the audit log, a sentence each.
    places: Vec<String>,
    through: u64,
}

fn outside(name: &str, what: &str, entry: Option<u64>) -> String {
    let record = name.replacen('/', " ", 1);
    match entry {
        None => format!("{record} was {what} outside of the manager"),
        Some(seq) => format!(
            "{record} was {what} outside of the manager, or by one of an earlier version (entry {seq} of the audit log)"
        ),
    }
}

fn unsealed_entries(from: u64, to: u64) -> String {
    let which =
        if from == to { format!("entry {from}") } else { format!("entries {from} to {to}") };
    format!(
        "{which} of the audit log: written by a manager of an earlier version, or outside of the manager"
    )
}

/// `tenant/NAME` and its like for a key of a record that has a seal.
fn sealed_name(key: &str) -> Option<&str> {
    let sealed = [Table::Tenant, Table::Principal, Table::Key];
    let is_sealed = sealed.iter().any(|table| key.starts_with(&table.key("")));
    is_sealed.then(|| key.strip_prefix(PREFIX)).flatten()
}

fn seal_key(record: &str) -> String {
    format!("{SEAL_PREFIX}{}", record.strip_prefix(PREFIX).unwrap_or(record))
}

/// Notes which entry wrote a record last.
fn note_entry(last: &mut BTreeMap<String, u64>, entry: &AuditEntry) {
    if let Some(table) = command::table_of(&entry.action)
        && let Some(name) = table.key(&entry.subject).strip_prefix(PREFIX)
    {
        last.insert(name.to_owned(), entry.seq);
    }
}

fn parse<T: serde::de::DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|error| StoreError::Damaged(format!("{key}: {error}")))
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
