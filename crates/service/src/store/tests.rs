// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The store on the file system, and on a simulated full disk.

use std::os::unix::fs::{PermissionsExt, chown};
use std::thread;

use millrace_operation::{KeyType, OperationSet};
use millrace_testkit::refused_calls::{
    NO_HARD_LINKS, NO_RENAME_TO_A_FREE_NAME, RefusedCall, with_refused_calls,
};
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::files::fake::{DiskStep, FullDisk};
use super::*;

const SECRET: &[u8] = b"not really PKCS#8, but the store does not look";

fn key() -> PrivateKey {
    PrivateKey::from_pkcs8(Zeroizing::new(SECRET.to_vec()))
}

fn info() -> KeyInfo {
    KeyInfo { key_type: KeyType::Ed25519, spki: vec![0x30; 44] }
}

fn kek_in(directory: &TempDir) -> KekSource {
    KekSource::File { path: directory.path().join("kek"), create: true }
}

fn store_in(directory: &TempDir) -> KeyStore {
    KeyStore::open(directory.path().join("keys"), &kek_in(directory)).unwrap()
}

fn import(store: &KeyStore, name: &str) -> Result<KeyMeta, StoreError> {
    store.import(name, &key(), info(), KeyPolicy::signing(["*"]), IfExists::Fail)
}

/// The store with another key-encryption key.
fn with_other_kek(directory: &TempDir) -> KeyStore {
    let path = directory.path().join("kek2");
    fs::write(&path, [9; KEK_LEN]).unwrap();
    set_mode(&path, 0o600);
    let kek = KekSource::File { path, create: false };
    KeyStore::open(directory.path().join("keys"), &kek).unwrap()
}

fn file_of(store: &KeyStore, name: &str) -> PathBuf {
    store.path_of(&VersionId::current(name))
}

/// A key that the store takes for another version.
fn version(number: u8) -> KeyInfo {
    KeyInfo { spki: vec![number; 44], ..info() }
}

fn replace(store: &KeyStore, number: u8) -> KeyMeta {
    let policy = KeyPolicy::signing(["uid:33"]);
    store.import("www", &key(), version(number), policy, IfExists::Replace).unwrap()
}

/// First bytes of the public halves of `www`: the current version, then the former ones, sorted.
fn versions(store: &KeyStore) -> (u8, Vec<u8>) {
    let metas: Vec<KeyMeta> = store.list().unwrap().into_iter().map(Result::unwrap).collect();
    let (current, former): (Vec<&KeyMeta>, _) =
        metas.iter().partition(|meta| meta.replaced.is_none());
    let mut former: Vec<u8> = former.iter().map(|meta| meta.info.spki[0]).collect();
    former.sort_unstable();
    (current[0].info.spki[0], former)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn key_survives_reopening_and_its_files_are_private() {
    let directory = TempDir::new().unwrap();
    import(&store_in(&directory), "www").unwrap();
    let store = store_in(&directory);
    let (loaded, meta) = store.load("www").unwrap();
    assert_eq!(loaded.dangerous_pkcs8(), SECRET);
    assert_eq!(meta.info, info());
    assert!(meta.authenticated);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(store.directory()), 0o700);
    assert_eq!(mode(&file_of(&store, "www")), 0o600);
    assert_eq!(mode(&directory.path().join("kek")), 0o600);
    let bytes = fs::read(file_of(&store, "www")).unwrap();
    assert!(!bytes.windows(8).any(|window| window == &SECRET[..8]));
}

#[test]
fn listing_without_kek_is_marked_unauthenticated() {
    let directory = TempDir::new().unwrap();
    import(&store_in(&directory), "b").unwrap();
    import(&store_in(&directory), "a").unwrap();
    let store = KeyStore::open(directory.path().join("keys"), &KekSource::Absent).unwrap();
    fs::write(file_of(&store, "broken"), b"rubbish").unwrap();
    fs::write(store.directory().join("README"), b"not a key").unwrap();
    let listed = store.list().unwrap();
    let names: Vec<_> = listed.iter().flatten().map(|meta| meta.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(listed.iter().flatten().all(|meta| !meta.authenticated));
    assert!(matches!(listed[2], Err(StoreError::Damaged { .. })));
    assert!(matches!(store.load("a"), Err(StoreError::Locked)));
    assert!(matches!(import(&store, "c"), Err(StoreError::Locked)));
}

#[test]
fn flipped_bit_anywhere_is_an_error() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    let path = file_of(&store, "www");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut changed = good.clone();
            changed[at] ^= 1 << bit;
            fs::write(&path, &changed).unwrap();
            assert!(store.load("www").is_err(), "bit {bit} of byte {at}");
        }
    }
    fs::write(&path, &good).unwrap();
    assert!(store.load("www").is_ok());
}

#[test]
fn file_under_another_name_is_an_error() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    fs::copy(file_of(&store, "www"), file_of(&store, "other")).unwrap();
    assert!(matches!(store.load("other"), Err(StoreError::Damaged { .. })));
}

#[test]
fn wrong_key_encryption_key_is_reported() {
    let directory = TempDir::new().unwrap();
    import(&store_in(&directory), "www").unwrap();
    let store = with_other_kek(&directory);
    assert!(matches!(store.load("www"), Err(StoreError::WrongKek { .. })));
}

#[test]
fn exposed_or_odd_key_encryption_key_is_refused() {
    let directory = TempDir::new().unwrap();
    drop(store_in(&directory));
    let path = directory.path().join("kek");
    let open = || KeyStore::open(directory.path().join("keys"), &kek_in(&directory));
    for mode in [0o640, 0o604, 0o660] {
        set_mode(&path, mode);
        assert!(matches!(open(), Err(StoreError::Kek(KekError::Exposed { .. }))));
    }
    set_mode(&path, 0o600);
    for len in [0, KEK_LEN - 1, KEK_LEN + 1] {
        fs::write(&path, vec![1; len]).unwrap();
        assert!(matches!(open(), Err(StoreError::Kek(KekError::Length { .. }))));
    }
    let absent = KekSource::File { path: directory.path().join("none"), create: false };
    let error = KeyStore::open(directory.path().join("keys"), &absent).unwrap_err();
    assert!(matches!(error, StoreError::Kek(KekError::Io { .. })));
}

#[test]
fn directory_that_others_can_write_to_is_refused() {
    let directory = TempDir::new().unwrap();
    drop(store_in(&directory));
    set_mode(&directory.path().join("keys"), 0o770);
    let error = KeyStore::open(directory.path().join("keys"), &kek_in(&directory)).unwrap_err();
    assert!(matches!(error, StoreError::Exposed { .. }));
}

#[test]
fn directory_of_another_user_is_refused_unless_root() {
    if !rustix::process::geteuid().is_root() {
        millrace_testkit::skip!("needs root, to give a directory away");
    }
    const OTHER_USER: u32 = 65_534;
    let directory = TempDir::new().unwrap();
    drop(store_in(&directory));
    let keys = directory.path().join("keys");
    let listed = || KeyStore::open(&keys, &KekSource::Absent).map(drop);

    if let Err(error) = chown(&keys, Some(OTHER_USER), None) {
        millrace_testkit::skip!("this root may not give files away: {error}");
    }
    let error = listed().unwrap_err();
    assert!(matches!(error, StoreError::Owner { owner: OTHER_USER, user: 0, .. }));
    assert!(error.to_string().contains("chown"), "{error}");

    // Only this thread changes its user, and it ends without changing back.
    set_mode(directory.path(), 0o755);
    let as_user = |id: u32| {
        let become_user = || {
            let user = rustix::fs::Uid::from_raw(id);
            rustix::thread::set_thread_res_uid(user, user, user).ok()?;
            Some(listed())
        };
        thread::scope(|scope| scope.spawn(become_user).join().unwrap())
    };
    let Some(owner) = as_user(OTHER_USER) else {
        millrace_testkit::skip!("root may not change its user here");
    };
    assert!(owner.is_ok());
    chown(&keys, Some(1), None).unwrap();
    assert!(matches!(as_user(OTHER_USER), Some(Err(StoreError::Owner { .. }))));
    chown(&keys, Some(0), None).unwrap();
    assert!(matches!(as_user(OTHER_USER), Some(Ok(()))));
}

#[test]
fn locked_store_can_be_unlocked() {
    let directory = TempDir::new().unwrap();
    import(&store_in(&directory), "www").unwrap();
    let store = KeyStore::open(directory.path().join("keys"), &KekSource::Absent).unwrap();
    assert!(matches!(store.load("www"), Err(StoreError::Locked)));
    let store = store.unlock(&kek_in(&directory)).unwrap();
    assert!(store.load("www").is_ok());
}

#[test]
fn full_disk_is_reported_and_changes_nothing() {
    for step in [DiskStep::Write, DiskStep::Rename] {
        let directory = TempDir::new().unwrap();
        let mut store = store_in(&directory);
        import(&store, "www").unwrap();
        let before = fs::read(file_of(&store, "www")).unwrap();
        store.files = Box::new(FullDisk(step));
        let replaced =
            store.import("www", &key(), info(), KeyPolicy::signing(["*"]), IfExists::Replace);
        let changed = store.set_policy("www", KeyPolicy::signing(["*"]));
        for error in [replaced.unwrap_err(), changed.unwrap_err(), import(&store, "b").unwrap_err()]
        {
            let text = error.to_string();
            assert!(text.contains(".key") && text.ends_with("nothing was changed"), "{text}");
        }
        assert_eq!(fs::read(file_of(&store, "www")).unwrap(), before);
        let left = fs::read_dir(store.directory()).unwrap().count();
        assert_eq!(left, 2, "the key and the audit log: no temporary file stays");
    }
}

#[test]
fn existing_name_is_refused_unless_replaced() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    assert!(matches!(import(&store, "www"), Err(StoreError::Exists { .. })));
    store.import("www", &key(), info(), KeyPolicy::signing(["*"]), IfExists::Replace).unwrap();
    assert!(matches!(import(&store, "../www"), Err(StoreError::Name { .. })));
}

#[test]
fn replaced_key_stays_as_a_former_version_up_to_the_bound() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    let first = replace(&store, 1);
    assert_eq!((first.replaced, first.authenticated), (None, true));
    replace(&store, 1);
    assert_eq!(versions(&store), (1, vec![]), "the same key again");
    let last = u8::try_from(MAX_FORMER).unwrap() + 2;
    for number in 2..=last {
        replace(&store, number);
    }
    assert_eq!(versions(&store), (last, (2..last).collect()), "the first is pruned");
    for (id, _) in store.entries().unwrap() {
        let (_, meta) = store.load_version(&id).unwrap();
        assert_eq!(meta.replaced.is_some(), id.former.is_some());
    }
    replace(&store, 3);
    assert_eq!(versions(&store), (3, vec![2, 4, 5, 6]), "a former version is current again");
}

#[test]
fn former_versions_go_with_their_key_or_alone() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    replace(&store, 1);
    replace(&store, 2);
    assert_eq!(store.remove_former("www").unwrap(), 1);
    assert_eq!(versions(&store), (2, vec![]));
    assert_eq!(store.remove_former("www").unwrap(), 0);
    replace(&store, 3);
    store.remove("www").unwrap();
    assert!(store.list().unwrap().is_empty());
    // A file that is left from a removed key is not a version of a new one.
    replace(&store, 1);
    replace(&store, 2);
    fs::remove_file(file_of(&store, "www")).unwrap();
    import(&store, "www").unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn former_version_under_the_name_of_another_is_damaged() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    replace(&store, 1);
    let other = VersionId::former("www", &version(2));
    fs::copy(file_of(&store, "www"), store.path_of(&other)).unwrap();
    assert!(matches!(store.load_version(&other), Err(StoreError::Damaged { .. })));
}

#[test]
fn full_disk_at_a_replacement_leaves_the_versions_unchanged() {
    for step in [DiskStep::Write, DiskStep::Rename] {
        let directory = TempDir::new().unwrap();
        let mut store = store_in(&directory);
        replace(&store, 1);
        store.files = Box::new(FullDisk(step));
        let policy = KeyPolicy::signing(["*"]);
        let error = store.import("www", &key(), version(2), policy, IfExists::Replace).unwrap_err();
        assert!(error.to_string().ends_with("nothing was changed"), "{error}");
        assert_eq!(versions(&store), (1, vec![]));
    }
}

#[test]
fn keys_under_another_kek_are_named_before_anything_is_written() {
    let directory = TempDir::new().unwrap();
    let ours = store_in(&directory);
    ours.check_kek().unwrap();
    import(&ours, "www").unwrap();
    ours.check_kek().unwrap();
    let store = with_other_kek(&directory);
    let error = store.check_kek().unwrap_err().to_string();
    let ids = [ours.kek().unwrap(), store.kek().unwrap()].map(|kek| kek.to_string());
    for part in ["www in ", "--kek-file", &ids[0], &ids[1]] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

/// Calls of `read` by this thread so far.
fn reads() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("syscr: ")?.parse().ok())
}

#[test]
fn import_opens_as_many_files_of_a_store_of_200_keys_as_of_one_of_2() {
    let cost = |count: usize| {
        let directory = TempDir::new().unwrap();
        let store = store_in(&directory);
        let mut importer = store.importer().unwrap();
        for number in 0..count {
            let (name, policy) = (format!("k{number}"), KeyPolicy::signing(["*"]));
            importer.import(&name, &key(), info(), policy, IfExists::Fail).unwrap();
        }
        assert_eq!(importer.room(), MAX_KEYS - count);
        let before = reads();
        store.check_kek().unwrap();
        import(&store, "www").unwrap();
        Some(reads()? - before?)
    };
    let (Some(small), Some(large)) = (cost(2), cost(200)) else {
        millrace_testkit::skip!("this kernel does not count the reads of a thread");
    };
    assert_eq!(small, large);
}

#[test]
fn importer_sees_former_versions_and_those_left_without_a_current_one() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    for number in 1..=3 {
        replace(&store, number);
    }
    fs::remove_file(file_of(&store, "www")).unwrap();
    let mut importer = store.importer().unwrap();
    let policy = || KeyPolicy::signing(["uid:33"]);
    importer.import("www", &key(), version(4), policy(), IfExists::Fail).unwrap();
    assert_eq!(versions(&store), (4, vec![]), "they are no versions of the new key");
    let mut importer = store.importer().unwrap();
    importer.import("www", &key(), version(5), policy(), IfExists::Replace).unwrap();
    importer.import("other", &key(), version(5), policy(), IfExists::Fail).unwrap();
    assert_eq!(store.former("www").unwrap().len(), 1);
    assert_eq!(importer.room(), MAX_KEYS - 2);
}

#[test]
fn missing_kek_of_a_store_with_keys_is_not_created_anew() {
    let directory = TempDir::new().unwrap();
    import(&store_in(&directory), "www").unwrap();
    let kek = directory.path().join("kek");
    fs::remove_file(&kek).unwrap();
    let error = KeyStore::open(directory.path().join("keys"), &kek_in(&directory)).unwrap_err();
    assert!(matches!(error, StoreError::MissingKek { .. }), "{error}");
    assert!(!kek.exists());
}

#[test]
fn policy_changes_are_stored_but_never_raw_rsa() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    let before = import(&store, "www").unwrap();
    let mut policy = KeyPolicy::signing(["*"]);
    policy.identities = vec!["uid:33".to_owned()];
    policy.operations = OperationSet::from_iter([OperationKind::Ed25519Sign]);
    store.set_policy("www", policy.clone()).unwrap();
    let (_, meta) = store.load("www").unwrap();
    assert_eq!((&meta.policy, meta.created), (&policy, before.created));
    policy.operations = OperationSet::from_iter([OperationKind::RsaRaw]);
    assert!(matches!(store.set_policy("www", policy), Err(StoreError::RawRsa)));
}

#[test]
fn every_change_of_a_key_is_a_line_in_the_audit_log() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    let mut policy = KeyPolicy::signing(["*"]);
    policy.identities = vec!["uid:33".to_owned()];
    store.set_policy("www", policy).unwrap();
    assert!(import(&store, "www").is_err(), "a refused change is not a line");
    store.remove("www").unwrap();
    let path = store.directory().join(AUDIT_LOG);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let actions: Vec<_> = lines.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["import", "policy", "remove"]);
    for line in &lines {
        assert_eq!((&line["format"], &line["key"]), (&json!(1), &json!("www")), "{line}");
        assert!(line["actor"].as_str().unwrap().starts_with("uid:"), "{line}");
        assert!(line["time"].as_u64().unwrap() > 1_700_000_000, "{line}");
    }
    assert_eq!(lines[1]["detail"]["before"]["identities"], json!(["*"]));
    assert_eq!(lines[1]["detail"]["policy"]["identities"], json!(["uid:33"]));
    assert!(!text.contains("PKCS"), "nothing secret");
}

#[test]
fn audit_log_that_is_a_link_is_not_followed() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    let target = directory.path().join("precious");
    fs::write(&target, b"x").unwrap();
    std::os::unix::fs::symlink(&target, store.directory().join(AUDIT_LOG)).unwrap();
    assert!(matches!(import(&store, "www"), Err(StoreError::Audit { .. })));
    assert_eq!(fs::read(&target).unwrap(), b"x");
}

#[test]
fn removed_key_is_gone() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    store.remove("www").unwrap();
    assert!(matches!(store.remove("www"), Err(StoreError::NoSuchKey { .. })));
    assert!(matches!(store.load("www"), Err(StoreError::NoSuchKey { .. })));
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn former_versions_are_listed_and_removable_however_many_files_the_store_has() {
    const BEYOND: usize = MAX_KEYS + 12;
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    replace(&store, 1);
    replace(&store, 2);
    for number in 0..BEYOND {
        let id = VersionId::former(&format!("left-{number}"), &version(1));
        fs::write(store.path_of(&id), b"").unwrap();
    }
    assert_eq!(store.entries().unwrap().len(), BEYOND + 2);
    assert_eq!(store.files_of("www").unwrap().former.len(), 1);
    assert_eq!(store.remove_former("www").unwrap(), 1);
    replace(&store, 3);
    store.remove("www").unwrap();
    store.remove("left-7").unwrap();
    assert!(matches!(store.remove("left-7"), Err(StoreError::NoSuchKey { .. })));
    let left = store.entries().unwrap();
    assert_eq!(left.len(), BEYOND - 1);
    assert!(left.iter().all(|(id, _)| id.name != "www" && id.name != "left-7"));
}

#[test]
fn file_that_is_not_ordinary_is_named_and_blocks_nothing() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    let path = |name: &str| store.directory().join(name);
    let pipe = |name: &str| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path(name), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
    };
    pipe("pipe.key");
    fs::create_dir(path("folder.key")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.key")).unwrap();
    std::os::unix::fs::symlink("www.key", path("link.key")).unwrap();
    let listed = store.list().unwrap();
    let problems: Vec<String> =
        listed.iter().filter_map(|row| Some(row.as_ref().err()?.to_string())).collect();
    let kinds = ["a folder", "a symbolic link", "a pipe", "a socket"];
    assert_eq!(problems.len(), kinds.len(), "{problems:?}");
    for (problem, kind) in problems.iter().zip(kinds) {
        assert!(problem.contains(kind) && problem.contains(".key"), "{problem}");
    }
    fs::remove_file(path(AUDIT_LOG)).unwrap();
    pipe(AUDIT_LOG);
    let error = import(&store, "more").unwrap_err();
    assert!(error.to_string().contains("a pipe"), "{error}");
    fs::remove_file(directory.path().join("kek")).unwrap();
    let kek = directory.path().join("kek");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &kek, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let error = KeyStore::open(store.directory(), &kek_in(&directory)).unwrap_err();
    assert!(error.to_string().contains("a pipe"), "{error}");
}

#[test]
fn store_works_without_the_rename_that_network_file_systems_lack() {
    let imported = |calls: &[RefusedCall]| {
        with_refused_calls(calls, || {
            let directory = TempDir::new().unwrap();
            let store = KeyStore::open(directory.path().join("keys"), &kek_in(&directory))?;
            import(&store, "www")?;
            assert!(matches!(import(&store, "www"), Err(StoreError::Exists { .. })));
            store.load("www").map(drop)
        })
    };
    imported(&[NO_RENAME_TO_A_FREE_NAME]).unwrap();
    let error = imported(&[NO_RENAME_TO_A_FREE_NAME, NO_HARD_LINKS]).unwrap_err().to_string();
    assert!(error.contains("hard links"), "{error}");
}

#[test]
fn edited_file_is_called_edited_and_never_a_newer_version() {
    let directory = TempDir::new().unwrap();
    let store = store_in(&directory);
    import(&store, "www").unwrap();
    let path = file_of(&store, "www");
    let good = fs::read(&path).unwrap();
    let identities = good.windows(3).position(|window| window == b"\0\x01*").unwrap() + 2;
    let operations = identities + 1;
    for (at, value, what) in [
        (identities, b'7', "another identity"),
        (identities, b' ', "an identity that none can be"),
        (operations, 0x80, "an unknown operation"),
        (operations + 3, good[operations + 3] ^ 1, "another operation"),
    ] {
        let mut edited = good.clone();
        edited[at] = value;
        fs::write(&path, &edited).unwrap();
        let error = store.load("www").unwrap_err();
        assert!(matches!(error, StoreError::Changed { .. }), "{what}: {error}");
        assert!(!error.is_deliberate(), "{what}");
    }
    let sealer = store.sealer.as_ref().unwrap();
    fs::write(&path, sealer.reseal(&good, |aad| aad[operations] = 0x80)).unwrap();
    let error = store.load("www").unwrap_err();
    assert!(error.is_deliberate() && error.to_string().contains("upgrade millrace"), "{error}");
}

#[test]
fn folder_above_the_store_that_others_could_replace_is_refused_with_the_remedy() {
    let directory = TempDir::new().unwrap();
    let above = directory.path().join("state");
    let open = || KeyStore::open(above.join("keys"), &kek_in(&directory));
    open().unwrap();
    set_mode(&above, 0o777);
    let error = open().unwrap_err().to_string();
    assert!(error.ends_with(&format!("chmod go-w {}", above.display())), "{error}");
    set_mode(&above, 0o755);
    open().unwrap();
}
