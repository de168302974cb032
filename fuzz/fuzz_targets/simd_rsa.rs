// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: one byte for how lanes are made, then up to eight requests, each the number of a key, that of an
//! operation, and how its input is made of how many of the bytes that follow. Whatever comes together in a
//! batch, each request ends as it does on AWS-LC alone.
#![no_main]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use libfuzzer_sys::fuzz_target;
use millrace_backends::software::Software;
use millrace_backends::simd::{Implementation, Simd};
use millrace_engine::backend::{Backend, BackendKey, Queue, Task};
use millrace_engine::{BackendError};
use millrace_operation::{Hash, Operation, Output};
use millrace_testkit::keys;

/// Two full batches.
const MAX_REQUESTS: u32 = 8;

/// A backend with its keys, in the order of [`KEYS`].
struct Side {
    queue: Box<dyn Queue>,
    keys: Vec<BackendKey>,
    _backend: Box<dyn Backend>,
}

struct Bench {
    sides: Vec<Side>,
    reference: Side,
    moduli: Vec<usize>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

impl Side {
    fn new(backend: Box<dyn Backend>) -> Self {
        let open =
            |key: keys::TestKey| backend.open_key(&key.private_key()).expect("a good key").key;
        Self {
            keys: all_keys().into_iter().map(open).collect(),
            queue: backend.open_queue().expect("a queue"),
            _backend: backend,
        }
    }

    fn run(&mut self, requests: &[Request]) -> BTreeMap<u32, Result<Output, BackendError>> {
        let mut tasks: VecDeque<Task> = (0..)
            .zip(requests)
            .map(|(token, request)| Task {
                token,
                key: self.keys[request.key],
                operation: request.operation.clone(),
                input: request.input.clone(),
            })
            .collect();
        let mut done = Vec::new();
        loop {
            self.queue.submit(&mut tasks);
            if self.queue.poll(&mut done) == 0 && tasks.is_empty() {
                break;
            }
        }
        done.into_iter().map(|done| (done.task.token, done.result)).collect()
    }
}

fn all_keys() -> [keys::TestKey; 3] {
    [keys::rsa_2048(), keys::rsa_3072(), keys::rsa_4096()]
}

struct Request {
    key: usize,
    operation: Operation,
    input: Vec<u8>,
    /// Whether the result is the same each time.
    deterministic: bool,
}

impl Bench {
    fn new() -> Self {
        let fast = [Implementation::Avx512Ifma, Implementation::Avx512Fp52];
        let mut lanes: Vec<_> = fast.into_iter().filter(|lanes| lanes.is_available()).collect();
        if lanes.is_empty() {
            lanes.push(Implementation::Portable);
        }
        let side = |lanes| Side::new(Box::new(Simd::with(lanes).lanes_from(1)));
        Self {
            sides: lanes.into_iter().map(side).collect(),
            reference: Side::new(Box::new(Software::new())),
            moduli: all_keys().iter().map(|key| key.key_type.modulus_len()).collect(),
        }
    }

    fn run(&mut self, mut rest: &[u8]) -> Option<()> {
        let side = usize::from(byte(&mut rest)?) % self.sides.len();
        let mut requests = Vec::new();
        while requests.len() < MAX_REQUESTS as usize {
            match self.request(&mut rest) {
                Some(request) => requests.push(request),
                None => break,
            }
        }
        let ours = self.sides[side].run(&requests);
        let theirs = self.reference.run(&requests);
        assert_eq!(ours.len(), requests.len());
        for (token, request) in (0..).zip(&requests) {
            match (&ours[&token], &theirs[&token]) {
                (Ok(ours), Ok(theirs)) if request.deterministic => assert_eq!(ours, theirs),
                (Ok(ours), Ok(theirs)) => assert_eq!(ours.len(), theirs.len()),
                (ours, theirs) => assert_eq!(ours.as_ref().err(), theirs.as_ref().err()),
            }
        }
        Some(())
    }

    fn request(&self, rest: &mut &[u8]) -> Option<Request> {
        let key = usize::from(byte(rest)?) % self.moduli.len();
        let hash = Hash::Sha256;
        let (operation, deterministic) = match byte(rest)? % 6 {
            0 => (Operation::RsaPkcs1Sign { hash }, true),
            1 => (Operation::RsaPssSign { hash, mgf_hash: hash, salt_len: 32 }, false),
            2 => (Operation::RsaOaepDecrypt { hash, mgf_hash: hash, label: Vec::new() }, true),
            3 => (Operation::RsaPkcs1Decrypt, true),
            4 => (Operation::RsaTlsPremaster { client_version: 0x0303 }, false),
            _ => (Operation::RsaRaw, true),
        };
        let len = match &operation {
            Operation::RsaPkcs1Sign { .. } | Operation::RsaPssSign { .. } => hash.digest_len(),
            _ => self.moduli[key],
        };
        let (fill, taken) = (byte(rest)?, usize::from(byte(rest)?) * 2);
        let (given, more) = rest.split_at(taken.min(rest.len()).min(len));
        *rest = more;
        // The given bytes last, where they decide most, with the same byte before them.
        let mut input = vec![fill; len - given.len()];
        input.extend_from_slice(given);
        Some(Request { key, operation, input, deterministic })
    }
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (&first, more) = rest.split_first()?;
    *rest = more;
    Some(first)
}

fuzz_target!(|data: &[u8]| {
    BENCH.with(|bench| bench.borrow_mut().run(data));
});
