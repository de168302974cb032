// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The version of the records' form. A manager brings an older store forward, step by step, and refuses a newer one.
//!
//! Every transaction of a manager requires that the schema has not changed since it was read, so that a manager of an
//! older version that still runs cannot write once a newer one has migrated the store.

use crate::model::command::Refusal;
use crate::model::view::{PREFIX, SCHEMA, SCHEMA_VERSION, Schema};
use crate::store::{Snapshot, Store, StoreError, Transaction};

/// Brings a store from one version to the next.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The version before.
    pub from: u32,
    /// Makes the writes that bring the records of a snapshot to the next version. They can be done again: a manager
    /// that ends in the middle leaves some done and the version unchanged.
    pub writes: fn(&Snapshot) -> Result<Transaction, StoreError>,
}

/// All steps up to [`SCHEMA_VERSION`], one per version.
const STEPS: &[Step] = &[];

/// Why a manager does not open a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A newer manager has written the store.
    #[error(transparent)]
    Newer(Refusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes an empty store one of this version, or brings an older one forward.
///
/// # Errors
/// The store is of a newer version, or fails.
pub fn prepare(store: &dyn Store) -> Result<(), SchemaError> {
    prepare_to(store, SCHEMA_VERSION, STEPS)
}

/// Brings a store to the version `current`, by `steps`.
fn prepare_to(store: &dyn Store, current: u32, steps: &[Step]) -> Result<(), SchemaError> {
    // Two managers may migrate at once: the loser reads again.
    for _ in 0..100 {
        let snapshot = store.read(PREFIX)?;
        let entry = snapshot.entries.iter().find(|entry| entry.key == SCHEMA);
        let (version, revision) = match entry {
            None if snapshot.entries.is_empty() => (None, 0),
            None => {
                return Err(StoreError::Damaged(format!("it has records but no {SCHEMA}")).into());
            }
            Some(entry) => {
                let schema: Schema = serde_json::from_slice(&entry.value)
                    .map_err(|error| StoreError::Damaged(format!("{SCHEMA}: {error}")))?;
                (Some(schema.version), entry.revision)
            }
        };
        let (mut transactions, next) = match version {
            None => (vec![Transaction::default()], current),
            Some(version) if version == current => return Ok(()),
            Some(version) if version > current => {
                return Err(SchemaError::Newer(Refusal::Schema { found: version, known: current }));
            }
            Some(version) => {
                let step = steps.iter().find(|step| step.from == version);
                let step = step.ok_or_else(|| {
                    StoreError::Configuration(format!(
                        "the store has schema {version}, which is too old for this version: upgrade step by step"
                    ))
                })?;
                (in_parts((step.writes)(&snapshot)?), version + 1)
            }
        };
        let last = transactions.len() - 1;
        let mut conflict = false;
        for (n, transaction) in transactions.iter_mut().enumerate() {
            transaction.require(SCHEMA, revision);
            if n == last {
                let schema = Schema { version: next };
                transaction.put(SCHEMA, serde_json::to_vec(&schema).unwrap_or_default());
            }
            match store.commit(transaction) {
                Ok(_) => {}
                Err(StoreError::Conflict) => {
                    conflict = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if conflict {
            tracing::info!("another manager changes the schema of the store, too");
        }
    }
    Err(StoreError::Conflict.into())
}

/// Cuts a transaction into parts that a store takes, with room for the schema record.
fn in_parts(transaction: Transaction) -> Vec<Transaction> {
    let most = crate::store::MAX_OPERATIONS - 1;
    let mut parts: Vec<Transaction> = transaction
        .then
        .chunks(most)
        .map(|then| Transaction { when: transaction.when.clone(), then: then.to_vec() })
        .collect();
    if parts.is_empty() {
        parts.push(Transaction::default());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn version(store: &MemoryStore) -> u32 {
        let snapshot = store.read(SCHEMA).unwrap();
        let schema: Schema = serde_json::from_slice(&snapshot.entries[0].value).unwrap();
        schema.version
    }

    /// A step that doubles every value of more records than one transaction takes.
    fn double(snapshot: &Snapshot) -> Result<Transaction, StoreError> {
        let mut transaction = Transaction::default();
        for entry in snapshot.entries.iter().filter(|entry| entry.key != SCHEMA) {
            transaction.put(entry.key.clone(), entry.value.repeat(2)[..2].to_vec());
        }
        Ok(transaction)
    }

    #[test]
    fn empty_store_gets_the_current_schema() {
        let store = MemoryStore::new();
        prepare(&store).unwrap();
        assert_eq!(version(&store), SCHEMA_VERSION);
        let before = store.read("").unwrap().revision;
        prepare(&store).unwrap();
        assert_eq!(store.read("").unwrap().revision, before, "a second start writes nothing");
    }

    #[test]
    fn older_store_is_brought_forward_in_parts() {
        let store = MemoryStore::new();
        prepare_to(&store, 1, &[]).unwrap();
        for n in 0..250 {
            let mut transaction = Transaction::default();
            transaction.put(format!("{PREFIX}x/{n}"), b"a".to_vec());
            store.commit(&transaction).unwrap();
        }
        let steps = [Step { from: 1, writes: double }];
        prepare_to(&store, 2, &steps).unwrap();
        assert_eq!(version(&store), 2);
        let snapshot = store.read("millrace/x/").unwrap();
        assert!(snapshot.entries.iter().all(|entry| *entry.value == *b"aa"));
    }

    #[test]
    fn newer_store_is_refused_and_not_written() {
        let store = MemoryStore::new();
        prepare_to(&store, SCHEMA_VERSION + 1, &[]).unwrap();
        let before = store.read("").unwrap();
        let error = prepare(&store).unwrap_err();
        assert!(error.to_string().contains("upgrade millrace"), "{error}");
        assert_eq!(store.read("").unwrap(), before);
    }

    #[test]
    fn store_of_another_program_is_not_taken_over() {
        let store = MemoryStore::new();
        let mut transaction = Transaction::default();
        transaction.put("millrace/other", b"x".to_vec());
        store.commit(&transaction).unwrap();
        assert!(matches!(prepare(&store), Err(SchemaError::Store(StoreError::Damaged(_)))));
    }
}
