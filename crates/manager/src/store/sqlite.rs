// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A store in one SQLite file, for one manager. The file is locked while it is open: a second manager on it does not
//! start. A commit is on the disk when it returns (write-ahead log, `synchronous=FULL`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_hostfs::{ordinary, trusted};
use millrace_operation::sync::lock;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use super::{Change, Changes, Snapshot, Store, StoreEntry, StoreError, Transaction, Write};

/// `application_id` of the file: "MRPL".
const APPLICATION: i32 = 0x4d52_504c;

/// Form of the tables. The form of the records in them is [`crate::schema`]'s.
const TABLES: i32 = 1;

const CREATE: &str = "
    CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX records_by_revision ON records (revision);
    CREATE TABLE deleted (key TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX deleted_by_revision ON deleted (revision);
    CREATE TABLE store (revision INTEGER NOT NULL);
    INSERT INTO store VALUES (0);
";

/// Records in one SQLite file, for a manager that runs alone.
pub struct SqliteStore {
    path: PathBuf,
    connection: Mutex<Connection>,
    changed: Condvar,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteStore").field(&self.path).finish()
    }
}

impl SqliteStore {
    /// Opens the file, and makes it if there is none. Its mode is 0600.
    ///
    /// # Errors
    /// Another process has it open, it is not a store, or a newer version has written it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let wrong =
            |problem: String| StoreError::Configuration(format!("{}: {problem}", path.display()));
        trusted::check_own_folder(path.parent().unwrap_or_else(|| Path::new("/")))
            .map_err(|error| StoreError::Configuration(error.to_string()))?;
        ordinary::open_to_append(path, 0o600).map_err(|error| wrong(error.to_string()))?;
        let connection = Connection::open(path).map_err(failed)?;
        let locked = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                wrong("another manager has it open; for several managers use etcd".to_owned())
            }
            _ => failed(error),
        };
        connection.busy_timeout(Duration::ZERO).map_err(failed)?;
        connection
            .execute_batch(
                "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            )
            .map_err(locked)?;
        let pragma = |name: &str| {
            connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0))
        };
        let (application, tables) =
            (pragma("application_id").map_err(locked)?, pragma("user_version").map_err(locked)?);
        match (application, tables) {
            (0, 0) => {
                let marks =
                    format!("PRAGMA application_id={APPLICATION}; PRAGMA user_version={TABLES};");
                connection
                    .execute_batch(&format!("BEGIN EXCLUSIVE; {CREATE} {marks} COMMIT;"))
                    .map_err(locked)?;
            }
            (APPLICATION, TABLES) => {
                // Takes the lock now, not with the first write.
                connection.execute_batch("BEGIN EXCLUSIVE; COMMIT;").map_err(locked)?;
            }
            (APPLICATION, newer) if newer > TABLES => {
                return Err(wrong(format!("its tables have version {newer}: upgrade millrace")));
            }
            _ => return Err(wrong("it is a database of another program".to_owned())),
        }
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
            changed: Condvar::new(),
        })
    }

    /// Bounds the size of the file, in pages of 4 KiB: writes beyond it fail as on a full disk.
    ///
    /// # Errors
    /// The database fails.
    pub fn set_max_pages(&self, pages: u32) -> Result<(), StoreError> {
        let connection = lock(&self.connection);
        let set = connection.query_row(&format!("PRAGMA max_page_count={pages}"), [], |_| Ok(()));
        set.map_err(failed)
    }
}

impl Store for SqliteStore {
    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError> {
        transaction.check()?;
        let mut connection = lock(&self.connection);
        let done = write(&mut connection, transaction).map_err(failed)?;
        drop(connection);
        self.changed.notify_all();
        done.ok_or(StoreError::Conflict)
    }

    fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.page(prefix, prefix, usize::MAX)
    }

    fn page(&self, prefix: &str, from: &str, limit: usize) -> Result<Snapshot, StoreError> {
        let connection = lock(&self.connection);
        let read = || {
            let mut query = connection.prepare(
                "SELECT key, value, revision FROM records WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
            )?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = query.query_map(params![from.max(prefix), end(prefix), limit], |row| {
                Ok(StoreEntry {
                    key: row.get(0)?,
                    value: row.get::<_, Vec<u8>>(1)?.into(),
                    revision: row.get(2)?,
                })
            })?;
            Ok(Snapshot {
                revision: revision(&connection)?,
                entries: rows.collect::<Result<_, _>>()?,
            })
        };
        read().map_err(failed)
    }

    fn changes(&self, prefix: &str, after: u64, wait: Duration) -> Result<Changes, StoreError> {
        let until = Instant::now() + wait;
        let mut connection = lock(&self.connection);
        loop {
            let changes = since(&connection, prefix, after).map_err(failed)?;
            let left = until.saturating_duration_since(Instant::now());
            if !changes.changes.is_empty() || left.is_zero() {
                return Ok(changes);
            }
            let woken = self.changed.wait_timeout(connection, left);
            connection = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The end of the keys below a prefix: keys are printable ASCII.
fn end(prefix: &str) -> String {
    format!("{prefix}\u{7f}")
}

fn revision(connection: &Connection) -> rusqlite::Result<u64> {
    connection.prepare("SELECT revision FROM store")?.query_row([], |row| row.get(0))
}

/// Does the transaction; `None` if a condition does not hold.
fn write(connection: &mut Connection, transaction: &Transaction) -> rusqlite::Result<Option<u64>> {
    let within = connection.transaction()?;
    for condition in &transaction.when {
        let found: Option<u64> = within
            .prepare("SELECT revision FROM records WHERE key = ?1")?
            .query_row([&condition.key], |row| row.get(0))
            .optional()?;
        if found.unwrap_or(0) != condition.revision {
            return Ok(None);
        }
    }
    let revision = revision(&within)? + 1;
    for write in &transaction.then {
        match write {
            Write::Put { key, value } => {
                within
                    .prepare("INSERT OR REPLACE INTO records VALUES (?1, ?2, ?3)")?
                    .execute(params![key, value, revision])?;
                within.prepare("DELETE FROM deleted WHERE key = ?1")?.execute([key])?;
            }
            Write::Delete { key } => {
                let gone = within.prepare("DELETE FROM records WHERE key = ?1")?.execute([key])?;
                if gone > 0 {
                    within
                        .prepare("INSERT OR REPLACE INTO deleted VALUES (?1, ?2)")?
                        .execute(params![key, revision])?;
                }
            }
        }
    }
    within.prepare("UPDATE store SET revision = ?1")?.execute([revision])?;
    within.commit()?;
    Ok(Some(revision))
}

/// The last change of each key after a revision. Changes in between are not kept.
fn since(connection: &Connection, prefix: &str, after: u64) -> rusqlite::Result<Changes> {
    let mut query = connection.prepare(
        "SELECT key, value, revision FROM records WHERE revision > ?1 AND key >= ?2 AND key < ?3
         UNION ALL SELECT key, NULL, revision FROM deleted WHERE revision > ?1 AND key >= ?2 AND key < ?3
         ORDER BY 3, 1",
    )?;
    let rows = query.query_map(params![after, prefix, end(prefix)], |row| {
        Ok(Change {
            key: row.get(0)?,
            value: row.get::<_, Option<Vec<u8>>>(1)?.map(Arc::from),
            revision: row.get(2)?,
        })
    })?;
    Ok(Changes {
        changes: rows.collect::<Result<_, _>>()?,
        revision: revision(connection)?.max(after),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn failed(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full(error.to_string()),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged(error.to_string())
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &SqliteStore, key: &str, bytes: usize) -> Result<u64, StoreError> {
        let mut transaction = Transaction::default();
        transaction.put(key, vec![7; bytes]);
        store.commit(&transaction)
    }

    #[test]
    fn commits_are_there_after_the_file_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool.db");
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(put(&store, "a", 3), Ok(1));
        drop(store);
        let store = SqliteStore::open(&path).unwrap();
        let snapshot = store.read("").unwrap();
        assert_eq!((snapshot.revision, snapshot.entries.len()), (1, 1));
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn second_manager_on_the_same_file_does_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool.db");
        let _first = SqliteStore::open(&path).unwrap();
        let error = SqliteStore::open(&path).unwrap_err();
        assert!(error.to_string().contains("another manager has it open"), "{error}");
    }

    #[test]
    fn full_disk_refuses_writes_and_keeps_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("pool.db")).unwrap();
        put(&store, "a", 10).unwrap();
        store.set_max_pages(20).unwrap();
        let full = (0..50).find_map(|n| put(&store, &format!("b{n}"), 8000).err()).unwrap();
        assert!(matches!(full, StoreError::Full(_)), "{full}");
        assert_eq!(store.read("a").unwrap().entries.len(), 1);
        store.set_max_pages(10_000).unwrap();
        put(&store, "c", 8000).unwrap();
    }

    #[test]
    fn file_of_another_program_or_a_newer_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.db");
        std::fs::write(
            &path,
            "this is not a database, and long enough to be read as the header of one",
        )
        .unwrap();
        assert!(SqliteStore::open(&path).is_err());
        let path = folder.path().join("newer.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA user_version=2").unwrap();
        drop(connection);
        let error = SqliteStore::open(&path).unwrap_err();
        assert!(error.to_string().contains("upgrade millrace"), "{error}");
    }
}
