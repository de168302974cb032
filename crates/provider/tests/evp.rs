// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The recipes of OpenSSL's own test suite (`test/recipes/30-test_evp_data`), run by the program `evp_test` of the
//! release under test: once with the `default` provider alone, once with every primitive computed by AWS-LC. Both have
//! to pass, fail and skip the same tests; the provider's counters prove who computed.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Bench, application, texts};
use millrace_edge::counters;

/// Builds the program, and returns its folder, or why it cannot be built.
fn built() -> Result<PathBuf, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut script = Command::new(workspace.join("scripts/evp-test.sh"));
    let root = std::env::var_os("MILLRACE_TEST_ROOT").filter(|root| !root.is_empty());
    script.args(root).current_dir(&workspace);
    let output = script.output().expect("the script");
    let (folder, said) = texts(&output);
    if output.status.success() { Ok(PathBuf::from(folder.trim())) } else { Err(said) }
}

/// Reaction of one configuration to a recipe.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// The program's own sum: tests, errors, skipped.
    completed: String,
    /// Lines of the recipe that the program names: what failed and what was skipped.
    named: BTreeSet<String>,
}

impl Outcome {
    fn of(said: &str, recipe: &str) -> Self {
        let completed = said.lines().find(|line| line.contains("# Completed "));
        let number = |rest: &str| {
            let end = rest.find(|letter: char| !letter.is_ascii_digit());
            rest[..end.unwrap_or(rest.len())].to_owned()
        };
        let place = format!("{recipe}:");
        let places = said.split(&place).skip(1);
        Self {
            completed: completed.unwrap_or("it broke off").trim().to_owned(),
            named: places.map(number).collect(),
        }
    }
}

/// A configuration with every primitive in the process, and the program.
struct Recipes {
    bench: Bench,
    folder: PathBuf,
}

impl Recipes {
    fn all(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("recipes")).expect("recipes");
        let names = entries.map(|entry| entry.expect("a file").file_name());
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".txt"))
            .collect();
        names.sort();
        names
    }

    /// Runs a recipe. Returns its outcome, what the program said, and the counters that it left.
    fn run(&self, config: &Path, recipe: &str) -> (Outcome, String, BTreeMap<String, u64>) {
        let counted = self.bench.path("counters");
        // That of the recipe before.
        let _ = fs::remove_file(&counted);
        let mut program = application(self.folder.join("evp_test"));
        program.arg("-config").arg(config);
        program.arg(self.folder.join("recipes").join(recipe));
        program
            .env_remove("OPENSSL_CONF")
            .env("OPENSSL_MODULES", self.bench.dir.path())
            .env("MILLRACE_COUNTERS", &counted);
        let (out, err) = texts(&program.output().expect("evp_test"));
        let said = out + &err;
        let counters = fs::read(&counted).ok();
        let counters = counters.and_then(|memory| counters::parse(&memory));
        (Outcome::of(&said, recipe), said, counters.unwrap_or_default())
    }
}

#[test]
fn recipes_of_openssl_have_the_same_outcome_with_everything_computed_locally() {
    let folder = match built() {
        Ok(folder) => folder,
        Err(said) => millrace_testkit::skip!("no source of OpenSSL to build evp_test from: {said}"),
    };
    let bench = Bench::new();
    bench.write_config(
        "local.cnf",
        "default_properties = ?millrace.local=yes",
        "local = all\nalgorithms = none\nmode = off",
    );
    let recipes = Recipes { bench, folder };
    let (here, stock) = (recipes.bench.path("local.cnf"), recipes.folder.join("default.cnf"));
    let mut served = BTreeMap::<String, u64>::new();
    let mut differences = Vec::new();
    for recipe in recipes.all() {
        let (expected, ..) = recipes.run(&stock, &recipe);
        let (outcome, said, counted) = recipes.run(&here, &recipe);
        if outcome != expected {
            differences.push(format!("{recipe}: {outcome:?}, not {expected:?}\n{said}"));
        }
        for (name, count) in counted {
            *served.entry(name).or_default() += count;
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    for primitive in [
        "X25519",
        "TLS13-KDF",
        "P-384",
        "P-521",
        "ED25519",
        "AES-GCM",
        "ChaCha20-Poly1305",
        "SHA2-256",
        "SHA2-512",
    ] {
        assert!(served[primitive] > 0, "{served:?}");
    }
}
