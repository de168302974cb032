// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compares `docs/protocol.md` with the code: its byte vectors decode to the messages of the tests and encode
//! to the same bytes, and its tables have every code, name and bound.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use common::*;
use millrace_operation::{
    BackendKind, Hash, JobError, KeyError, KeyKind, MAX_INPUT_LEN, MAX_KEY_NAME_LEN, MAX_LABEL_LEN,
    MAX_PRIVATE_KEY_LEN, MlDsaInput, OperationKind,
};
use millrace_wire::codes::{self, MessageKind};
use millrace_wire::*;
use millrace_wire::{
    EdgeCounter, FEATURE_NAMES, HEADER_LEN, MAX_FRAME_LEN, MAX_JOBS_PER_FRAME, MAX_NAME_LEN,
    MAX_OUTPUT_LEN, MAX_SPKI_LEN, Message,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn specification() -> String {
    fs::read_to_string(root().join("docs/protocol.md")).expect("docs/protocol.md is in the tree")
}

/// The byte vectors of one direction by name.
fn vectors(direction: &str) -> BTreeMap<String, Vec<u8>> {
    let text = specification();
    let mut vectors = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((of, name)) = line.strip_prefix("```vector ").and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        let bytes = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .flat_map(|line| line.split('#').next().unwrap_or(line).split_whitespace())
            .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
            .collect();
        if of == direction {
            assert!(vectors.insert(name.to_owned(), bytes).is_none(), "{name} occurs twice");
        }
    }
    vectors
}

/// The rows of the table after a marker, as cells.
fn table(marker: &str) -> Vec<Vec<String>> {
    let text = specification();
    let marker = format!("<!-- {marker} -->");
    let (_, after) = text.split_once(&marker).unwrap_or_else(|| panic!("no {marker}"));
    let rows = after.trim_start().lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

/// Compares the first `N` cells of each row of a table with `expected`.
fn assert_table<const N: usize>(marker: &str, expected: impl IntoIterator<Item = [String; N]>) {
    let documented: Vec<Vec<String>> =
        table(marker).into_iter().map(|row| row.into_iter().take(N).collect()).collect();
    let expected: Vec<Vec<String>> = expected.into_iter().map(Vec::from).collect();
    assert_eq!(documented, expected, "table \"{marker}\" of docs/protocol.md");
}

fn code(code: u8) -> String {
    format!("{code:#04x}")
}

/// `NoPublicExponent` as `no-public-exponent`.
fn kebab(value: impl fmt::Debug) -> String {
    let mut name = String::new();
    for c in format!("{value:?}").chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.extend(c.to_lowercase());
    }
    name
}

fn check_vectors<M: Message>(
    direction: &str,
    expected: Vec<(&'static str, M)>,
    assert_same: impl Fn(&M, &M),
) {
    let mut vectors = vectors(direction);
    for (name, expected) in expected {
        let bytes = vectors.remove(name).unwrap_or_else(|| panic!("no vector {name}"));
        let decoded = decode_in_pieces::<M>(&bytes, usize::MAX)
            .unwrap_or_else(|error| panic!("vector {name}: {error}"));
        let [decoded] = &decoded[..] else { panic!("vector {name} is not one message") };
        assert_same(decoded, &expected);
        assert_eq!(encoded(decoded), bytes, "vector {name} encodes differently");
    }
    assert!(vectors.is_empty(), "vectors without a message: {:?}", vectors.keys());
}

#[test]
fn vectors_decode_to_their_messages_and_encode_to_themselves() {
    check_vectors("client", client_messages(), assert_same_client);
    check_vectors("node", node_messages(), assert_same_node);
}

#[test]
fn every_kind_has_a_vector() {
    let covered = |vectors: BTreeMap<String, Vec<u8>>, kinds: &[MessageKind]| {
        for kind in kinds {
            assert!(vectors.values().any(|bytes| bytes[4] == kind.code), "{}", kind.name);
        }
    };
    covered(vectors("client"), codes::CLIENT_KINDS);
    covered(vectors("node"), codes::NODE_KINDS);
}

#[test]
fn code_tables_equal_those_of_the_code() {
    let kinds = |kinds: &'static [MessageKind]| {
        kinds
            .iter()
            .map(|kind| [code(kind.code), kind.name.to_owned(), kind.max_payload.to_string()])
    };
    assert_table("codes: client-kinds", kinds(codes::CLIENT_KINDS));
    assert_table("codes: node-kinds", kinds(codes::NODE_KINDS));

    let operations = OperationKind::ALL.iter();
    assert_table("codes: operations", operations.map(|o| [code(o.code()), o.name().to_owned()]));
    let inputs = MlDsaInput::ALL.iter();
    assert_table("codes: ml-dsa-inputs", inputs.map(|i| [code(i.code()), i.name().to_owned()]));
    let hashes = Hash::ALL.iter();
    let row = |h: &Hash| [code(h.code()), h.name().to_owned(), h.digest_len().to_string()];
    assert_table("codes: hashes", hashes.map(row));
    let backends = BackendKind::ALL.iter();
    assert_table("codes: backends", backends.map(|b| [code(b.code()), b.name().to_owned()]));
    let errors = JobError::ALL.iter();
    let row = |e: &JobError| {
        let elsewhere = if e.retry_elsewhere() { "yes" } else { "no" };
        [code(e.code()), e.name().to_owned(), elsewhere.to_owned()]
    };
    assert_table("codes: job-errors", errors.map(row));
    let errors = KeyError::ALL.iter();
    assert_table("codes: key-errors", errors.map(|e| [code(e.code()), e.name().to_owned()]));
    let faults = Fault::ALL.iter();
    assert_table("codes: faults", faults.map(|f| [code(f.code()), f.name().to_owned()]));

    let named = |table: &'static [(u8, &'static str)]| {
        table.iter().map(|(number, name)| [code(*number), (*name).to_owned()])
    };
    assert_table("codes: refusals", named(KeyRefusal::CODES));
    let kinds = KeyKind::ALL.iter();
    assert_table("codes: key-types", kinds.map(|kind| [code(kind.code()), kind.name().to_owned()]));
    let counters = EdgeCounter::ALL.iter();
    assert_table("codes: edge-counters", counters.map(|c| [code(c.code()), c.name().to_owned()]));
    assert_table(
        "codes: features",
        FEATURE_NAMES.iter().map(|(bit, name)| [format!("{bit:#04x}"), (*name).to_owned()]),
    );
    let selectors = [(codes::SELECT_NAME, "name"), (codes::SELECT_SPKI_SHA256, "spki_sha256")];
    assert_table(
        "codes: selectors",
        selectors.map(|(number, name)| [code(number), name.to_owned()]),
    );
}

#[test]
fn tables_and_conversions_agree() {
    for fault in Fault::ALL {
        assert_eq!(Fault::from_code(fault.code()), Some(*fault));
        assert_eq!(fault.name(), kebab(fault));
    }
    for (number, name) in KeyRefusal::CODES {
        let detail = if *name == "key-error" { 1 } else { 0 };
        let refusal = KeyRefusal::from_codes(*number, detail).expect(name);
        assert_eq!(refusal.codes(), (*number, detail));
    }
}

#[test]
fn bounds_equal_those_of_the_code() {
    let bounds = [
        ("header", HEADER_LEN),
        ("frame with header", MAX_FRAME_LEN),
        ("jobs in a frame", MAX_JOBS_PER_FRAME),
        ("input of a job", MAX_INPUT_LEN),
        ("output of a job", MAX_OUTPUT_LEN),
        ("label", MAX_LABEL_LEN),
        ("private key", MAX_PRIVATE_KEY_LEN),
        ("public key", MAX_SPKI_LEN),
        ("name of a key", MAX_KEY_NAME_LEN),
        ("name of a software or node", MAX_NAME_LEN),
    ];
    assert_table("bounds", bounds.map(|(name, value)| [name.to_owned(), value.to_string()]));
}

/// The fuzzers use the vectors as seeds. `UPDATE_SEEDS=1` writes the seed files.
#[test]
fn fuzz_seeds_equal_the_vectors() {
    let mut seeds = BTreeMap::new();
    for (direction, flag) in [("client", 0_u8), ("node", 1)] {
        let mut stream = vec![flag | 3 << 1, 0, 3, 40];
        for (name, bytes) in vectors(direction) {
            let message = [&bytes[4..5], &bytes[HEADER_LEN..]].concat();
            seeds.insert(format!("{direction}_message/seed-{name}"), message);
            stream.extend(bytes);
        }
        seeds.insert(format!("decoder_stream/seed-{direction}"), stream);
    }
    let corpus = root().join("fuzz/corpus");
    for (name, seed) in seeds {
        let path = corpus.join(name);
        if std::env::var_os("UPDATE_SEEDS").is_some() {
            fs::create_dir_all(path.parent().expect("a folder per target")).unwrap();
            fs::write(&path, &seed).unwrap();
        }
        let written = fs::read(&path).unwrap_or_default();
        assert!(written == seed, "{}: run this test with UPDATE_SEEDS=1", path.display());
    }
}
