// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key`, as a person uses it: real processes, real files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_service::policy::KeyPolicy;
use millrace_service::store::{IfExists, KekSource, KeyStore};
use serde_json::Value;

use crate::support::{Outcome, Place, SOON, openssl_key, p256_key, rsa_key};

fn names(place: &Place) -> Vec<String> {
    let list = place.run(&["key", "list", "--json"]);
    let list: Value = serde_json::from_str(&list.done().data).unwrap();
    list.as_array().unwrap().iter().map(|key| key["name"].as_str().unwrap().to_owned()).collect()
}

fn import(place: &Place, name: &str, pem: &str, more: &[&str]) -> Outcome {
    let file = place.write("key.pem", pem);
    let mut args = vec!["key", "import", name, file.to_str().unwrap()];
    args.extend(more);
    place.run(&args)
}

#[test]
fn key_is_imported_listed_shown_and_removed() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &["--allow-uid", "33", "--allow-cert", "gateway-1"]).done();
    assert_eq!(names(&place), ["www"]);

    let show = place.run(&["key", "show", "www", "--json"]);
    let show: Value = serde_json::from_str(&show.done().data).unwrap();
    assert_eq!(show["type"], "p-256");
    assert_eq!(show["identities"], serde_json::json!(["uid:33", "cert:gateway-1"]));
    assert_eq!(show["operations"], serde_json::json!(["ecdsa-sign", "ecdh-derive"]));
    assert_eq!(show["authenticated"], true);
    assert_eq!(show["spki_sha256"].as_str().unwrap().len(), 64);
    let page = place.run(&["key", "show", "www"]);
    assert!(page.done().data.contains("p-256"));
    assert!(place.run(&["key", "list"]).done().data.starts_with("NAME  TYPE"));

    let would = place.run(&["key", "remove", "www", "--dry-run"]);
    assert!(would.done().data.contains("would remove www and 0 former"));
    assert_eq!(names(&place), ["www"]);
    place.run(&["key", "remove", "www"]).done();
    assert!(names(&place).is_empty());
    place.run(&["key", "remove", "www", "--dry-run"]).failed(4, &["no key named www"]);
    place.run(&["key", "remove", "www"]).failed(4, &["no key named www"]);
    place.run(&["key", "show", "www"]).failed(4, &["no key named www"]);
}

#[test]
fn secrets_are_neither_readable_at_rest_nor_shown() {
    let place = Place::new();
    let pem = p256_key();
    import(&place, "www", &pem, &[]).done();
    let secret: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    for args in [&["key", "show", "www"][..], &["key", "stub", "www"], &["key", "list"]] {
        let outcome = place.run(args);
        assert!(!outcome.done().data.contains(secret[0]), "{args:?}");
        assert!(!outcome.data.contains("PRIVATE KEY-"), "{args:?}");
    }
    for file in files(&place.path("state")) {
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077, 0, "{}", file.display());
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        }
    }
    found
}

#[test]
fn import_of_an_existing_name_needs_replace() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    import(&place, "www", &rsa_key(2048), &[]).failed(4, &["www already", "--replace"]);
    assert!(place.run(&["key", "show", "www"]).data.contains("p-256"));
    import(&place, "www", &rsa_key(2048), &["--replace"]).done();
    assert!(place.run(&["key", "show", "www"]).data.contains("rsa-2048"));
}

#[test]
fn key_is_imported_from_standard_input() {
    let place = Place::new();
    place.run_with_input(&["key", "import", "piped", "-"], &p256_key()).done();
    assert_eq!(names(&place), ["piped"]);
    place.run_with_input(&["key", "import", "empty", "-"], "").failed(3, &["standard input"]);
}

#[test]
fn unusable_key_is_refused_with_its_reason() {
    let place = Place::new();
    let p256 = p256_key();
    let cut: String = p256.lines().take(2).map(|line| format!("{line}\n")).collect();
    let encrypted = openssl_key(&[
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-aes256",
        "-pass",
        "pass:secret",
    ]);
    let ed448 = openssl_key(&["genpkey", "-algorithm", "ED448"]);
    let cases: [(&str, &str, &[&str]); 7] = [
        ("text", "no key here\n", &["no private key"]),
        ("cut", &cut, &["key.pem"]),
        ("encrypted", &encrypted, &["encrypted", "openssl pkey"]),
        ("small", &rsa_key(1024), &["size"]),
        ("foreign", &ed448, &["not offered"]),
        ("huge", &"x".repeat(100_000), &["too large"]),
        ("binary", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", &["key.pem"]),
    ];
    for (name, pem, words) in cases {
        import(&place, name, pem, &[]).failed(3, words);
    }
    assert!(names(&place).is_empty());
    place.run(&["key", "import", "none", "/nonexistent.pem"]).failed(2, &["/nonexistent.pem"]);
}

#[test]
fn invalid_names_and_policies_are_refused() {
    let place = Place::new();
    let p256 = p256_key();
    for name in ["../escape", ".hidden", "a/b", "", "a b"] {
        let outcome = import(&place, name, &p256, &[]);
        assert_ne!(outcome.code, 0, "{name}");
    }
    import(&place, "x", &p256, &["--operations", "rsa-raw"]).failed(2, &["never allowed"]);
    import(&place, "x", &p256, &["--operations", "rsa-pss-sign"]).failed(2, &["ecdsa-sign"]);
    import(&place, "x", &p256, &["--operations", "nonsense"]).failed(2, &["ecdsa-sign"]);
    import(&place, "x", &p256, &["--allow-uid", "no-such-user"]).failed(2, &["no-such-user"]);
    assert!(names(&place).is_empty());
}

#[test]
fn policy_change_replaces_only_the_named_parts() {
    let place = Place::new();
    import(&place, "www", &rsa_key(2048), &[]).done();
    let show = || -> Value {
        serde_json::from_str(&place.run(&["key", "show", "www", "--json"]).done().data).unwrap()
    };
    assert_eq!(show()["identities"], serde_json::json!([]));
    let set = ["key", "policy", "www", "--operations", "rsa-pss-sign", "--hashes", "sha256,sha384"];
    place.run(&set).done();
    assert_eq!(show()["operations"], serde_json::json!(["rsa-pss-sign"]));
    assert_eq!(show()["hashes"], serde_json::json!(["sha256", "sha384"]));
    place.run(&["key", "policy", "www", "--allow-uid", "0", "--allow-tls-premaster"]).done();
    assert_eq!(show()["identities"], serde_json::json!(["uid:0"]));
    assert_eq!(show()["operations"], serde_json::json!(["rsa-pss-sign", "rsa-tls-premaster"]));
    place.run(&["key", "policy", "gone", "--allow-all"]).failed(4, &["no key named gone"]);
}

#[test]
fn policy_change_is_shown_and_not_made_in_a_dry_run() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &["--allow-uid", "33"]).done();
    let change = ["key", "policy", "www", "--add-cert", "gateway-1"];
    let shown = place.run(&[&change[..], &["--dry-run"]].concat());
    let lines = "- identities uid:33\n+ identities uid:33 cert:gateway-1\n";
    assert!(shown.done().data.ends_with(lines), "{shown:?}");
    let policy = place.run(&["key", "policy", "www"]).done().data.clone();
    assert!(!policy.contains("gateway-1"), "{policy}");
}

#[test]
fn policy_adds_and_removes_single_identities() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &["--allow-uid", "33"]).done();
    let change = |more: &[&str]| -> Value {
        let outcome = place.run(&[&["key", "policy", "www", "--json"], more].concat());
        serde_json::from_str::<Value>(&outcome.done().data).unwrap()["identities"].clone()
    };
    assert_eq!(change(&[]), serde_json::json!(["uid:33"]), "it only prints");
    let added = change(&["--add-uid", "0", "--add-cert", "gateway-1"]);
    assert_eq!(added, serde_json::json!(["uid:33", "uid:0", "cert:gateway-1"]));
    let removed = change(&["--remove-uid", "33", "--remove-cert", "gateway-1"]);
    assert_eq!(removed, serde_json::json!(["uid:0"]));
    assert_eq!(change(&[]), removed);
    place
        .run(&["key", "policy", "www", "--add-uid", "1", "--allow-uid", "2"])
        .failed(2, &["cannot be used with"]);
    place.run(&["key", "policy", "www", "--allow-all"]).done();
    place
        .run(&["key", "policy", "www", "--remove-uid", "0"])
        .failed(2, &["every authenticated client"]);
}

#[test]
fn stub_names_the_key_and_is_written_to_the_output_path() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let printed = place.run(&["key", "stub", "www"]).done().data.clone();
    assert!(printed.starts_with("Millrace key stub: "), "{printed}");
    let file = place.path("stub.pem");
    place.run(&["key", "stub", "www", "-o", file.to_str().unwrap()]).done();
    assert_eq!(fs::read_to_string(&file).unwrap(), printed);
    place.run(&["key", "stub", "gone"]).failed(4, &["no key named gone"]);
    let uri = place.run(&["key", "stub", "www", "--uri"]).done().data.clone();
    assert!(uri.starts_with("millrace:www?spki=MFkw") && uri.lines().count() == 1, "{uri}");
    let shown = place.run(&["key", "show", "www", "--json"]).done().data.clone();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["uri"], uri.trim_end());
    assert!(place.run(&["key", "show", "www"]).done().data.contains(uri.trim_end()));
}

#[test]
fn import_with_dry_run_shows_the_policy_and_changes_nothing() {
    let place = Place::new();
    let pem = place.write("key.pem", &p256_key());
    let import = ["key", "import", "www", pem.to_str().unwrap()];
    let run = |more: &[&str]| place.run(&[&import[..], more].concat());
    let would = run(&["--allow-cert", "gateway-1", "--dry-run"]);
    let wanted = "would import www (p-256)\n- identities \n+ identities cert:gateway-1\n";
    assert_eq!(would.done().data, wanted);
    assert!(names(&place).is_empty());
    run(&["--allow-all"]).done();
    let stub = place.run(&["key", "stub", "www"]).done().data.clone();
    run(&["--dry-run"]).failed(4, &["there is a key named www already"]);
    let would = run(&["--replace", "--allow-cert", "gateway-1", "--dry-run"]);
    let wanted = "would replace www (p-256)\n- identities *\n+ identities cert:gateway-1\n";
    assert_eq!(would.done().data, wanted);
    assert_eq!(place.run(&["key", "stub", "www"]).done().data, stub);
    assert!(place.run(&["key", "policy", "www"]).done().data.contains('*'));
}

/// Runs an import under a limit on file sizes, which fails halfway through the write, like a full disk.
#[test]
fn failed_write_leaves_the_store_unchanged() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let file = place.write("rsa.pem", &rsa_key(4096));
    // A block of `ulimit -f` has 512 or 1024 bytes: an RSA-4096 key is larger either way. The shell ignores
    // the signal, which would end the process before it sees the error.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""]);
    let original = place.command(["key", "import", "www", file.to_str().unwrap(), "--replace"]);
    limited.arg(original.get_program()).args(original.get_args()).env_clear();
    limited.envs(original.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let outcome = Outcome::of(limited.stdin(Stdio::null()).output().unwrap());
    outcome.failed(1, &["cannot write", "nothing was changed"]);
    assert!(place.run(&["key", "show", "www"]).done().data.contains("p-256"));
    let leftovers = files(&place.path("state"));
    assert!(leftovers.iter().all(|file| !file.ends_with(".tmp")), "{leftovers:?}");
}

/// A small file system, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"])
            .arg(&path)
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn full_disk_at_import_is_reported_and_changes_nothing() {
    let place = Place::new();
    let Some(disk) = SmallDisk::mount(place.path("state")) else {
        millrace_testkit::skip!("mounting a small file system is not permitted");
    };
    import(&place, "www", &p256_key(), &[]).done();
    // Fills the disk completely.
    let filler = fs::write(disk.0.join("filler"), vec![0; 1 << 20]);
    assert!(filler.is_err());
    import(&place, "second", &rsa_key(4096), &[])
        .failed(1, &["No space left", "nothing was changed"]);
    assert_eq!(names(&place), ["www"]);
    fs::remove_file(disk.0.join("filler")).unwrap();
    import(&place, "second", &rsa_key(4096), &[]).done();
    assert_eq!(names(&place), ["second", "www"]);
}

#[test]
fn modified_key_file_is_never_used() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let stored = files(&place.path("state")).into_iter().find(|file| file.ends_with("www.key"));
    let stored = stored.expect("the store has a file per key");
    let mut bytes = fs::read(&stored).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&stored, bytes).unwrap();
    place.run(&["key", "show", "www"]).failed(1, &["was changed"]);
}

#[test]
fn wrong_key_encryption_key_opens_no_key() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let other = place.path("other-kek");
    fs::write(&other, [7; 32]).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    let kek = other.to_str().unwrap();
    place
        .run(&["key", "show", "www", "--kek-file", kek])
        .failed(1, &["another key-encryption key"]);
    place.run(&["key", "list", "--kek-file", kek]).failed(1, &["1 files in"]);
    let list = place.run(&["key", "list", "--json", "--kek-file", kek]);
    let list: Value = serde_json::from_str(&list.data).unwrap();
    let problem = list[0]["problem"].as_str().unwrap();
    assert!(problem.contains("another key-encryption key"), "{problem}");
    // A key under a second one would be lost to the node of the first.
    for args in [&["--replace"][..], &["--allow-uid", "0"]] {
        import(&place, "other", &p256_key(), &[args, &["--kek-file", kek]].concat())
            .failed(1, &["www in", "--kek-file"]);
    }
    assert_eq!(names(&place), ["www"]);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
    place
        .run(&["key", "policy", "www", "--add-uid", "0", "--kek-file", kek])
        .failed(1, &["chmod 0600"]);
}

#[test]
fn key_is_listed_shown_and_stubbed_without_its_kek() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let with = place.run(&["key", "stub", "www"]).done().data.clone();
    fs::remove_file(place.path("state/kek")).unwrap();
    assert_eq!(place.run(&["key", "stub", "www"]).done().data, with);
    let show = place.run(&["key", "show", "www", "--json"]);
    assert!(show.done().talk.contains("not verified"), "{show:?}");
    let show: Value = serde_json::from_str(&show.data).unwrap();
    assert_eq!(show["authenticated"], false);
    assert_eq!(names(&place), ["www"]);
    // Nothing of this makes a new one, and no further key is sealed.
    import(&place, "more", &p256_key(), &[]).failed(1, &["is missing", "put it back"]);
    assert!(!place.path("state/kek").exists());
}

#[test]
fn new_key_is_for_no_client_until_one_is_named() {
    let place = Place::new();
    let outcome = import(&place, "www", &p256_key(), &[]);
    for part in ["no client may use it", "key policy www --add-uid"] {
        assert!(outcome.done().talk.contains(part), "{outcome:?}");
    }
    let show = place.run(&["key", "policy", "www", "--json"]);
    let show: Value = serde_json::from_str(&show.done().data).unwrap();
    assert_eq!(show["identities"], serde_json::json!([]));
    let list = place.run(&["key", "list"]);
    assert!(list.done().data.contains("for no client"), "{list:?}");
}

#[test]
fn replaced_key_keeps_its_policy_and_its_former_version() {
    let place = Place::new();
    let policy = ["--allow-uid", "33", "--hashes", "sha256"];
    import(&place, "www", &rsa_key(2048), &policy).done();
    let show = || -> Value {
        serde_json::from_str(&place.run(&["key", "show", "www", "--json"]).done().data).unwrap()
    };
    let before = show();
    let outcome = import(&place, "www", &rsa_key(2048), &["--replace"]);
    for part in ["replaced www", "uid:33", "key stub www", "--former"] {
        assert!(outcome.done().talk.contains(part), "{outcome:?}");
    }
    let after = show();
    for kept in ["identities", "operations", "hashes"] {
        assert_eq!(after[kept], before[kept], "{kept}");
    }
    assert_eq!(after["former"][0]["spki_sha256"], before["spki_sha256"]);
    // A key of another type gets the operations of the same purpose, for the same clients, and that is said.
    let outcome = import(&place, "www", &p256_key(), &["--replace"]);
    for part in ["policy is another one now", "rsa-2048 before", "+ operations ecdsa-sign\n"] {
        assert!(outcome.done().talk.contains(part), "{outcome:?}");
    }
    let after = show();
    assert_eq!(after["identities"], before["identities"]);
    assert_eq!(after["operations"], serde_json::json!(["ecdsa-sign"]));
    assert_eq!(after["former"].as_array().unwrap().len(), 2);
    assert_eq!(names(&place), ["www"]);
    // An option changes what it names.
    import(&place, "www", &p256_key(), &["--replace", "--allow-uid", "34"]).done();
    assert_eq!(show()["identities"], serde_json::json!(["uid:34"]));
    place.run(&["key", "remove", "www", "--former"]).done();
    assert_eq!(show()["former"], serde_json::json!([]));
}

#[test]
fn renewal_with_other_key_types_and_back_never_widens_the_policy() {
    let place = Place::new();
    import(&place, "www", &rsa_key(2048), &["--operations", "rsa-pss-sign"]).done();
    let operations = || -> Value {
        let show = place.run(&["key", "show", "www", "--json"]);
        serde_json::from_str::<Value>(&show.done().data).unwrap()["operations"].clone()
    };
    for (key, expected) in [(p256_key(), "ecdsa-sign"), (rsa_key(2048), "rsa-pss-sign")] {
        let would = import(&place, "www", &key, &["--replace", "--dry-run"]);
        assert!(would.done().data.contains(&format!("+ operations {expected}\n")), "{would:?}");
        import(&place, "www", &key, &["--replace"]).done();
        assert_eq!(operations(), serde_json::json!([expected]));
    }
    let x25519 = openssl_key(&["genpkey", "-algorithm", "X25519"]);
    import(&place, "www", &x25519, &["--replace"]).failed(2, &["x25519 key", "it can do"]);
    assert_eq!(operations(), serde_json::json!(["rsa-pss-sign"]));
}

#[test]
fn former_versions_without_a_current_one_are_shown_and_removed() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    import(&place, "www", &p256_key(), &["--replace"]).done();
    fs::remove_file(place.path("state/keys/www.key")).unwrap();
    let list = place.run(&["key", "list"]);
    assert!(list.done().talk.contains("millrace key remove www"), "{list:?}");
    let would = place.run(&["key", "remove", "www", "--former", "--dry-run"]);
    assert!(would.done().data.contains("would remove 1 former"), "{would:?}");
    place.run(&["key", "remove", "www"]).done();
    place.run(&["key", "remove", "www"]).failed(4, &["no key named www"]);
}

#[test]
fn pipe_in_the_store_holds_no_command_up() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let pipe = place.path("state/keys/pipe.key");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let list = place.run(&["key", "list"]);
    list.failed(1, &["1 files in"]);
    assert!(list.talk.contains("pipe.key: it is a pipe") && list.data.contains("www"), "{list:?}");
    place.run(&["key", "policy", "www", "--add-uid", "33"]).done();
    let mut node = place.up(&[]);
    assert_eq!(place.status()["keys_broken"], 1);
    place.run(&["key", "policy", "www", "--remove-uid", "33"]).done();
    node.signal(rustix::process::Signal::TERM);
    assert!(node.wait().success(), "{}", node.log());
}

#[test]
fn key_in_another_form_is_refused_with_the_command_that_converts_it() {
    let place = Place::new();
    let marked = format!("\u{feff}{}", p256_key());
    import(&place, "marked", &marked, &[]).done();
    let explicit = openssl_key(&[
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-pkeyopt",
        "ec_param_enc:explicit",
    ]);
    import(&place, "explicit", &explicit, &[]).failed(3, &["explicit", "-param_enc named_curve"]);
    let pem = place.write("plain.pem", &p256_key());
    let path = |name: &str| place.path(name).display().to_string();
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let plain = pem.to_str().unwrap();
    openssl(&["pkey", "-in", plain, "-outform", "DER", "-out", &path("key.der")]);
    let words = &["DER, not PEM", "openssl pkey -inform DER"];
    place.run(&["key", "import", "der", &path("key.der")]).failed(3, words);
    let p12 = path("key.p12");
    openssl(&[
        "pkcs12", "-export", "-nocerts", "-inkey", plain, "-passout", "pass:x", "-out", &p12,
    ]);
    place.run(&["key", "import", "p12", &p12]).failed(3, &["PKCS#12", "openssl pkcs12"]);
    let bad = place.run(&["key", "import", "../x", plain, "--replace"]);
    bad.failed(2, &["\"../x\" cannot name a key"]);
    assert!(!bad.talk.contains("remove the key"), "{bad:?}");
    assert_eq!(names(&place), ["marked"]);
}

/// Each reads its secret from standard input, and waits for it here.
#[test]
fn command_that_reads_a_key_leaves_no_core() {
    let place = Place::new();
    for args in [&["key", "import", "www", "-"][..], &["key", "import", "www", "-", "--replace"]] {
        let mut command = place.command(args);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let limits = format!("/proc/{}/limits", child.id());
        let no_core = || {
            let text = fs::read_to_string(&limits).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with("Max core file size"));
            line.is_some_and(|line| line.split_whitespace().skip(4).take(2).all(|it| it == "0"))
        };
        let hardened = millrace_testkit::wait::holds_within(SOON, no_core);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(hardened, "{args:?}");
    }
}

/// Only root can be another user than the one of this run, who has a home.
#[test]
fn user_without_a_home_names_the_state_folder_or_the_socket() {
    if !rustix::process::geteuid().is_root() {
        millrace_testkit::skip!("only root can change its user");
    }
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let state = place.path("state");
    fs::create_dir(&state).unwrap();
    if std::os::unix::fs::chown(&state, Some(65_534), Some(65_534)).is_err() {
        millrace_testkit::skip!("this root may not change the owner of files");
    }
    let pem = place.write("key.pem", &p256_key());
    let program = place.path("millrace");
    fs::copy(env!("CARGO_BIN_EXE_millrace"), &program).unwrap();
    let run = |args: &[&str], state: Option<&Path>| {
        let mut command = Command::new(&program);
        use std::os::unix::process::CommandExt;
        command.args(args).env_clear().uid(65_534).gid(65_534);
        command.envs(state.map(|state| ("MILLRACE_STATE", state)));
        Outcome::of(command.output().unwrap())
    };
    let named = state.to_str().unwrap();
    run(&["key", "import", "www", pem.to_str().unwrap(), "--state", named], None).done();
    let list = run(&["key", "list"], Some(&state));
    assert!(list.done().data.contains("www"), "{list:?}");
    run(&["key", "list"], None).failed(1, &["--state DIR"]);
    run(&["status"], None).failed(1, &["--socket PATH"]);
    let socket = place.path("none.sock");
    run(&["status", "--socket", socket.to_str().unwrap()], None).failed(5, &["none-status.sock"]);
    run(&["status"], Some(&state)).failed(5, &["state/status.sock"]);
}

#[test]
fn keys_that_root_imports_belong_to_the_owner_of_the_store() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() {
        millrace_testkit::skip!("only root can change the owner of files");
    }
    let state = place.path("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    // The other user must be able to traverse the folder above.
    fs::set_permissions(state.parent().unwrap(), fs::Permissions::from_mode(0o711)).unwrap();
    std::os::unix::fs::chown(&state, Some(65_534), Some(65_534)).unwrap();
    import(&place, "www", &p256_key(), &[]).done();
    for file in files(&state) {
        assert_eq!(fs::metadata(&file).unwrap().uid(), 65_534, "{}", file.display());
    }
    place.run(&["key", "show", "www"]).done();
}

#[test]
fn closed_output_pipe_is_no_failure() {
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let mut child = place
        .command(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let outcome = Outcome::of(child.wait_with_output().unwrap());
    assert_eq!((outcome.code, outcome.talk.as_str()), (0, ""));
}

#[test]
fn systemd_credential_takes_precedence() {
    let place = Place::new();
    let folder = place.path("credentials");
    fs::create_dir(&folder).unwrap();
    let credential = folder.join("millrace-kek");
    fs::write(&credential, [9; 32]).unwrap();
    // The mode that systemd sets when it grants the service's user access with an ACL.
    fs::set_permissions(&credential, fs::Permissions::from_mode(0o440)).unwrap();
    let pem = place.write("key.pem", &p256_key());
    let with_credential = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("CREDENTIALS_DIRECTORY", &folder);
        Outcome::of(command.output().unwrap())
    };
    with_credential(&["key", "import", "www", pem.to_str().unwrap()]).done();
    assert!(!place.path("state/kek").exists());
    with_credential(&["key", "show", "www"]).done();
    // Run outside of the service, with the file from which the credential was made.
    let file = place.path("kek");
    fs::write(&file, [9; 32]).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    place.run(&["key", "show", "www", "--kek-file", file.to_str().unwrap()]).done();
    fs::set_permissions(&credential, fs::Permissions::from_mode(0o444)).unwrap();
    with_credential(&["key", "policy", "www", "--add-uid", "0"])
        .failed(1, &["can be read by others"]);
}

/// User and system time of a process, ms.
fn cpu_ms(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |index: usize| fields[index].parse::<u64>().unwrap();
    // USER_HZ is 100 on every architecture of Linux that Millrace runs on.
    (ticks(11) + ticks(12)) * 10
}

/// The CPU time, not the clock: a busy machine does not change it much.
#[test]
fn idle_node_with_ten_thousand_keys_takes_next_to_no_time() {
    if !millrace_testkit::is_long() {
        millrace_testkit::skip!("only the long form makes 10,000 keys");
    }
    const KEYS: usize = 10_000;
    const WINDOW: std::time::Duration = std::time::Duration::from_secs(20);
    let place = Place::new();
    import(&place, "www", &p256_key(), &[]).done();
    let kek = KekSource::File { path: place.path("state/kek"), create: false };
    let store = KeyStore::open(place.path("state/keys"), &kek).unwrap();
    let (key, meta) = store.load("www").unwrap();
    for number in 1..KEYS - 1 {
        let (name, info) = (format!("k{number}"), meta.info.clone());
        store.import(&name, &key, info, KeyPolicy::signing([]), IfExists::Fail).unwrap();
    }
    let node = place.up(&[]);
    let began = std::time::Instant::now();
    import(&place, "last", &p256_key(), &[]).done();
    let imported = began.elapsed();
    let settled = std::time::Instant::now() + WINDOW / 4;
    millrace_testkit::wait::holds_within(WINDOW, || std::time::Instant::now() > settled);
    let before = cpu_ms(node.child.id());
    let end = std::time::Instant::now() + WINDOW;
    millrace_testkit::wait::holds_within(2 * WINDOW, || std::time::Instant::now() > end);
    let spent = cpu_ms(node.child.id()) - before;
    eprintln!("an import beside {KEYS} keys: {imported:?}; idle node: {spent} ms of {WINDOW:?}");
    assert!(u128::from(spent) < WINDOW.as_millis() / 20, "{spent} ms of {WINDOW:?}");
}
