// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace key import --from-dir`: the keys of a folder in one run.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use millrace_testkit::is_long;
use millrace_testkit::wait::holds_within;
use serde_json::Value;

use crate::support::{Outcome, Place, SOON, p256_key, rsa_key};

const FOLDER: &str = "private";

/// A place with a folder of these files.
fn place_with(files: &[(&str, &str)]) -> Place {
    let place = Place::new();
    fs::create_dir(place.path(FOLDER)).unwrap();
    for (name, text) in files {
        let path = place.path(FOLDER).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    place
}

fn import(place: &Place, more: &[&str]) -> Outcome {
    let folder = place.path(FOLDER);
    place.run(&[&["key", "import", "--from-dir", folder.to_str().unwrap()], more].concat())
}

fn listed(place: &Place) -> Vec<Value> {
    let list = place.run(&["key", "list", "--json"]);
    serde_json::from_str(&list.done().data).unwrap()
}

fn names(place: &Place) -> Vec<String> {
    listed(place).iter().map(|key| key["name"].as_str().unwrap().to_owned()).collect()
}

/// Name and action of each key, from the JSON that an import printed.
fn actions(outcome: &Outcome) -> Vec<(String, String)> {
    let rows: Vec<Value> = serde_json::from_str(&outcome.done().data).unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(row, "name"), text(row, "action"))).collect()
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn keys_of_a_folder_are_imported_with_stubs_and_a_second_run_changes_nothing() {
    let (one, two, three, four) = (p256_key(), rsa_key(2048), p256_key(), p256_key());
    let certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let place = place_with(&[
        ("www.example.com.pem", &one),
        ("shop.key", &two),
        ("shop.pem", certificate),
        ("mail/privkey.pem", &three),
        ("mail/fullchain.pem", certificate),
        ("api.pem.key", &four),
        ("api.pem", &format!("{certificate}{four}")),
        ("README", "not a key"),
        (".hidden.key", "not looked at"),
    ]);
    let expected = ["api", "mail", "shop", "www.example.com"];
    let would = import(&place, &["--allow-cert", "gateway-1", "--dry-run", "--stubs", "x"]);
    assert!(would.done().data.contains("www.example.com.pem"), "{would:?}");
    assert!(would.talk.contains("would have imported 4 keys"), "{would:?}");
    assert!(names(&place).is_empty() && !place.path("x").exists());

    let stubs = place.path("stubs");
    let all = ["--allow-cert", "gateway-1", "--json", "--stubs", stubs.to_str().unwrap()];
    let first = import(&place, &all);
    assert!(first.talk.contains("shop.pem") && first.talk.contains("imported 4 keys"), "{first:?}");
    let done = |action: &str| expected.map(|name| (name.to_owned(), action.to_owned()));
    assert_eq!(actions(&first), done("import"));
    assert_eq!(names(&place), expected);
    assert_eq!(listed(&place)[3]["identities"], serde_json::json!(["cert:gateway-1"]));
    assert_eq!(files_in(&stubs), expected.map(|name| format!("{name}.pem.key")));
    let stub = fs::read_to_string(stubs.join("shop.pem.key")).unwrap();
    assert_eq!(stub, place.run(&["key", "stub", "shop"]).done().data);

    let store = || files_in(&place.path("state/keys"));
    let before = store();
    fs::remove_file(stubs.join("mail.pem.key")).unwrap();
    let second = import(&place, &all);
    assert_eq!(actions(&second), done("present"));
    assert!(second.talk.contains("4 were there already"), "{second:?}");
    assert_eq!(store(), before);
    assert!(stubs.join("mail.pem.key").exists(), "a stub that is missing is made");
}

#[test]
fn wrong_file_among_good_ones_is_named_and_nothing_is_imported() {
    let good = p256_key();
    let cut: String = good.lines().take(2).map(|line| format!("{line}\n")).collect();
    let place = place_with(&[
        ("good.pem", &good),
        ("cut.pem", &cut),
        ("small.key", &rsa_key(1024)),
        ("a b.pem", &good),
        ("twice.key", &p256_key()),
        ("twice.pem", &p256_key()),
    ]);
    let words = ["nothing was imported", "cut.pem: ", "small.key: ", "a b.pem: ", "name twice"];
    import(&place, &[]).failed(3, &words);
    assert!(names(&place).is_empty());
    for name in ["cut.pem", "small.key", "a b.pem", "twice.key"] {
        fs::remove_file(place.path(FOLDER).join(name)).unwrap();
    }
    import(&place, &[]).done();
    assert_eq!(names(&place), ["good", "twice"]);
    let empty = place_with(&[("README", "nothing")]);
    import(&empty, &[]).failed(3, &["no private key", "NAME.pem"]);
    place.run(&["key", "import", "--from-dir", "/nonexistent"]).failed(2, &["/nonexistent"]);
    place.run(&["key", "import"]).failed(2, &["required"]);
    place.run(&["key", "import", "www", "x.pem", "--from-dir", "."]).failed(2, &["cannot be used"]);
}

#[test]
fn other_key_of_a_name_needs_replace_and_another_policy_too() {
    let place = place_with(&[("a.pem", &p256_key()), ("b.pem", &p256_key())]);
    import(&place, &["--allow-cert", "one"]).done();
    // Without --replace nothing changes, not even the policy.
    assert!(import(&place, &["--allow-cert", "two"]).talk.contains("2 were there already"));
    let identities = |place: &Place| listed(place)[0]["identities"][0].clone();
    assert_eq!(identities(&place), "cert:one");
    fs::write(place.path(FOLDER).join("b.pem"), p256_key()).unwrap();
    import(&place, &[]).failed(4, &["nothing was imported", "b.pem: ", "--replace"]);
    let replaced = import(&place, &["--replace", "--json"]);
    let row = |name: &str, action: &str| (name.to_owned(), action.to_owned());
    assert_eq!(actions(&replaced), [row("a", "present"), row("b", "replace")]);
    assert_eq!(listed(&place)[1]["former"].as_array().unwrap().len(), 1);
    let wider = import(&place, &["--replace", "--allow-cert", "two", "--json"]);
    assert_eq!(actions(&wider), [row("a", "replace"), row("b", "replace")]);
    assert_eq!(identities(&place), "cert:two");
    assert!(listed(&place)[0]["former"].as_array().unwrap().is_empty(), "the same key");
}

#[test]
fn stub_takes_the_place_of_no_private_key() {
    let key = p256_key();
    let place = place_with(&[("www.pem", &key), ("other.pem.key", &p256_key())]);
    let folder = place.path(FOLDER);
    fs::write(folder.join("www.pem.key"), &key).unwrap();
    let stubs = ["--stubs", folder.to_str().unwrap()];
    import(&place, &stubs).failed(4, &["nothing was imported", "www.pem.key is there and no stub"]);
    assert!(names(&place).is_empty());
    assert_eq!(fs::read_to_string(folder.join("www.pem.key")).unwrap(), key);
}

/// Writes the same key under many names.
fn many(count: usize) -> Place {
    let place = place_with(&[]);
    let key = p256_key();
    for number in 0..count {
        fs::write(place.path(FOLDER).join(format!("k{number:05}.pem")), &key).unwrap();
    }
    place
}

#[test]
fn import_that_is_killed_leaves_whole_keys_and_the_next_run_does_the_rest() {
    let count = 400;
    let place = many(count);
    let keys = place.path("state/keys");
    let stored = || {
        fs::read_dir(&keys).map_or(0, |entries| {
            entries
                .flatten()
                .filter(|entry| entry.path().extension().is_some_and(|it| it == "key"))
                .count()
        })
    };
    let folder = place.path(FOLDER);
    let mut command = place.command(["key", "import", "--from-dir", folder.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(holds_within(SOON, || stored() > 0));
    child.kill().unwrap();
    child.wait().unwrap();
    let done = listed(&place).len();
    assert!(done > 0 && done < count, "{done} of {count} were imported before the kill");
    let rest = import(&place, &["--allow-cert", "one"]);
    assert!(
        rest.done().talk.contains(&format!("imported {} keys; {done} were there", count - done))
    );
    assert_eq!(stored(), count);
    assert!(files_in(&keys).iter().all(|name| !name.ends_with(".new")), "nothing is left");
}

#[test]
fn store_takes_keys_up_to_its_bound_and_a_running_node_serves_them() {
    // A node has room for 10,000 keys.
    let count = if is_long() { 10_000 } else { 200 };
    let place = many(count);
    let _node = place.up(&[]);
    let outcome = import(&place, &[]);
    assert!(outcome.done().talk.contains("serves them"), "{outcome:?}");
    assert_eq!(listed(&place).len(), count);
    if count == 10_000 {
        fs::write(place.path(FOLDER).join("more.pem"), p256_key()).unwrap();
        import(&place, &[]).failed(1, &["nothing was imported", "has 1 new keys", "room for 0"]);
    }
}
