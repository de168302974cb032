// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The requests of one case: inputs, expected outputs, and the check of every kind of output.
//!
//! An output is either known beforehand and compared at once, or it is a randomised signature that is
//! verified with the public key after the round, from a bounded and evenly spread sample.

use aws_lc_rs::digest::{Digest, SHA256, SHA384, digest};
use millrace_operation::{Hash, MlDsaInput, Operation, OperationKind};

use super::Case;
use super::library::{KEYS, Keys, LibraryKey};
use crate::bench_key::BenchKey;
use crate::error::{BenchError, LibraryError};

/// Different inputs: enough that nothing is answered from a cache of one entry. A multiple of [`KEYS`].
const INPUTS: usize = 64;

/// Outputs that are verified per measurement, unless a benchmark sets [`Requests::max_samples`].
const MAX_SAMPLES: usize = 256;

/// The TLS version in a premaster secret: 1.2.
const CLIENT_VERSION: u16 = 0x0303;

/// A case with its keys and inputs. Request number `index` always has the same key and input.
pub(crate) struct Requests<'a> {
    pub(crate) case: Case,
    pub(crate) keys: &'a Keys,
    pub(crate) operation: Operation,
    /// Bound on the outputs of one measurement that are kept and verified after it.
    pub(crate) max_samples: usize,
    inputs: Vec<Input>,
}

struct Input {
    /// The input of a backend.
    request: Vec<u8>,
    /// The message whose digest is signed, and that digest.
    signed: Option<([u8; 8], Digest)>,
    /// The expected output, where it is known beforehand.
    expected: Option<Vec<u8>>,
}

impl<'a> Requests<'a> {
    pub(crate) fn new(case: Case, keys: &'a Keys) -> Result<Self, LibraryError> {
        use OperationKind::{Ed25519Sign, RsaPkcs1Sign, RsaRaw};
        let mut requests = Self {
            case,
            keys,
            operation: operation(case),
            max_samples: MAX_SAMPLES,
            inputs: Vec::new(),
        };
        for index in 0..INPUTS {
            let mut input = requests.input_for(index)?;
            if [RsaPkcs1Sign, RsaRaw, Ed25519Sign].contains(&case.operation) {
                input.expected = Some(requests.call(index, &input)?);
            }
            requests.inputs.push(input);
        }
        Ok(requests)
    }

    /// Index of the key that request number `index` uses.
    pub(crate) fn key_of(&self, index: usize) -> usize {
        index % KEYS
    }

    /// The input of request number `index`, as a backend takes it.
    pub(crate) fn input(&self, index: usize) -> Vec<u8> {
        self.inputs[index % INPUTS].request.clone()
    }

    /// All inputs, in the order of requests.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = Vec<u8>> {
        self.inputs.iter().map(|input| input.request.clone())
    }

    /// Whether AWS-LC has an interface for this case.
    pub(crate) fn has_library(&self) -> bool {
        !matches!(self.keys.library.first(), Some(LibraryKey::OpenSsl(_)))
    }

    /// Calls the library directly with the input that a node gets: no hashing that a node does not do.
    pub(crate) fn library(&self, index: usize) -> Result<Vec<u8>, LibraryError> {
        self.call(index, &self.inputs[index % INPUTS])
    }

    fn call(&self, index: usize, input: &Input) -> Result<Vec<u8>, LibraryError> {
        let operation = self.case.operation;
        match (&self.keys.library[self.key_of(index)], &input.signed) {
            (key, Some((_, digest))) => key.sign(operation, digest),
            (LibraryKey::Rsa(rsa), None) => rsa.open(operation, &input.request),
            (key, None) => key.agree(&input.request),
        }
    }

    fn is_known(&self, index: usize) -> bool {
        self.inputs[index % INPUTS].expected.is_some()
    }

    /// # Errors
    /// [`BenchError::Wrong`] if this is not what request number `index` must yield.
    pub(crate) fn check(&self, index: usize, output: &[u8]) -> Result<(), BenchError> {
        let input = &self.inputs[index % INPUTS];
        let valid = match (&input.expected, &input.signed) {
            (Some(expected), _) => expected == output,
            (None, Some((message, digest))) => {
                self.keys.library[self.key_of(index)].verify(message, digest, output)
            }
            (None, None) => false,
        };
        valid.then_some(()).ok_or_else(|| self.wrong(index))
    }

    /// The error for a wrong output.
    pub(crate) fn wrong(&self, index: usize) -> BenchError {
        let case = self.case;
        BenchError::Wrong(format!("{case}: the output of request {index} is wrong"))
    }

    fn input_for(&self, index: usize) -> Result<Input, LibraryError> {
        let message = (index as u64).to_be_bytes();
        let is_p384 = self.keys.key == BenchKey::P384;
        let digest = digest(if is_p384 { &SHA384 } else { &SHA256 }, &message);
        let secret = digest.as_ref().to_vec();
        let known = |request, expected| Input { request, signed: None, expected: Some(expected) };
        let signed = |request| Input { request, signed: Some((message, digest)), expected: None };
        let own = &self.keys.library[self.key_of(index)];
        Ok(match (self.case.operation, own) {
            (OperationKind::RsaOaepDecrypt, LibraryKey::Rsa(rsa)) => {
                known(rsa.seal_oaep(&secret)?, secret)
            }
            (OperationKind::RsaPkcs1Decrypt, LibraryKey::Rsa(rsa)) => {
                known(rsa.seal_pkcs1(&secret)?, secret)
            }
            (OperationKind::RsaTlsPremaster, LibraryKey::Rsa(rsa)) => {
                let version = CLIENT_VERSION.to_be_bytes();
                let premaster = [&version[..], &secret, &secret[..14]].concat();
                known(rsa.seal_pkcs1(&premaster)?, premaster)
            }
            (OperationKind::RsaRaw, LibraryKey::Rsa(rsa)) => {
                signed(padded(&secret, rsa.pair.public_modulus_len()))
            }
            (OperationKind::Ecdh | OperationKind::X25519 | OperationKind::DhDerive, own) => {
                let (_, peer) = LibraryKey::generate(self.keys.key)?;
                known(peer.public_value()?, peer.agree_with(own)?)
            }
            (
                OperationKind::RsaPkcs1Sign
                | OperationKind::RsaPssSign
                | OperationKind::EcdsaSign
                | OperationKind::Ed25519Sign
                | OperationKind::DsaSign
                | OperationKind::MlDsaSign,
                _,
            ) => signed(secret),
            (
                OperationKind::RsaOaepDecrypt
                | OperationKind::RsaPkcs1Decrypt
                | OperationKind::RsaTlsPremaster
                | OperationKind::RsaRaw,
                _,
            ) => return Err(LibraryError::Missing(self.case.to_string())),
        })
    }
}

fn operation(case: Case) -> Operation {
    let hash = match case.key {
        BenchKey::P384 => Hash::Sha384,
        _ => Hash::Sha256,
    };
    let mgf_hash = hash;
    match case.operation {
        OperationKind::RsaPkcs1Sign => Operation::RsaPkcs1Sign { hash },
        OperationKind::RsaPssSign => Operation::RsaPssSign { hash, mgf_hash, salt_len: 32 },
        OperationKind::RsaOaepDecrypt => {
            Operation::RsaOaepDecrypt { hash, mgf_hash, label: Vec::new() }
        }
        OperationKind::RsaPkcs1Decrypt => Operation::RsaPkcs1Decrypt,
        OperationKind::RsaTlsPremaster => {
            Operation::RsaTlsPremaster { client_version: CLIENT_VERSION }
        }
        OperationKind::RsaRaw => Operation::RsaRaw,
        OperationKind::EcdsaSign => Operation::EcdsaSign { hash },
        OperationKind::Ecdh => Operation::Ecdh,
        OperationKind::X25519 => Operation::X25519,
        OperationKind::Ed25519Sign => Operation::Ed25519Sign,
        OperationKind::DhDerive => Operation::DhDerive,
        OperationKind::DsaSign => Operation::DsaSign { hash },
        OperationKind::MlDsaSign => Operation::MlDsaSign { input: MlDsaInput::Message },
    }
}

/// EMSA-PKCS1-v1_5 of a SHA-256 digest, so that the raw operation yields a signature.
fn padded(digest: &[u8], len: usize) -> Vec<u8> {
    let tail = [&[0], Hash::Sha256.digest_info_prefix(), digest].concat();
    let mut block = vec![0xff; len];
    block[..2].copy_from_slice(&[0, 1]);
    block[len - tail.len()..].copy_from_slice(&tail);
    block
}

/// A bounded, evenly spread sample of outputs, verified after the measurement. Outputs are kept in groups
/// of [`KEYS`] neighbours, so that every key is in the sample. When it is full, every second group is
/// dropped and from then on half as many are kept.
#[derive(Default)]
pub(crate) struct Checks {
    kept: Vec<(usize, Vec<u8>)>,
    offered: usize,
    /// One group in `2^skip` is kept.
    skip: u32,
}

impl Checks {
    /// Compares an output at once if it is known beforehand, else keeps it as [`Self::keep`] does.
    pub(crate) fn take(
        &mut self,
        requests: &Requests<'_>,
        index: usize,
        output: &[u8],
    ) -> Result<(), BenchError> {
        if requests.is_known(index) {
            self.offered += 1;
            return requests.check(index, output);
        }
        self.keep(requests.max_samples, index, || output.to_vec());
        Ok(())
    }

    /// Keeps an output if its turn comes; `most` bounds how many are kept.
    pub(crate) fn keep(&mut self, most: usize, index: usize, output: impl FnOnce() -> Vec<u8>) {
        let group = self.offered / KEYS;
        if self.kept.len() >= most && self.offered.is_multiple_of(KEYS) {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                ((place - 1) / KEYS).is_multiple_of(2)
            });
            self.skip += 1;
        }
        if group.is_multiple_of(1 << self.skip) {
            self.kept.push((index, output()));
        }
        self.offered += 1;
    }

    /// Verifies the kept outputs.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] for a wrong output, or if there was no output at all.
    pub(crate) fn verify(self, requests: &Requests<'_>) -> Result<(), BenchError> {
        if self.offered == 0 {
            let case = requests.case;
            return Err(BenchError::Wrong(format!("{case}: nothing was computed")));
        }
        self.kept.iter().try_for_each(|(index, output)| requests.check(*index, output))
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;
    use crate::workload::CASES;

    #[test]
    fn every_case_verifies_what_the_library_yields() {
        for key in BenchKey::VARIANTS {
            // The larger keys take seconds to make and differ in nothing else.
            if [BenchKey::Rsa3072, BenchKey::Rsa4096].contains(key) {
                continue;
            }
            let cases: Vec<_> = CASES.iter().filter(|case| case.key == *key).collect();
            if cases.is_empty() {
                // Servers of `bench tls` have a P-521 key; `bench sizes` encapsulates.
                let elsewhere = [BenchKey::MlKem768, BenchKey::P521].contains(key);
                assert!(elsewhere, "{key} has no case");
                continue;
            }
            let keys = Keys::generate(*key).expect("keys");
            for case in cases {
                let requests = Requests::new(*case, &keys).expect("inputs");
                for index in [5, 5 + INPUTS] {
                    if !requests.has_library() {
                        continue;
                    }
                    let output = requests.library(index).expect("an output");
                    requests.check(index, &output).expect("the right output");
                    assert!(requests.check(6, &output).is_err(), "{case}: of another request");
                    let mut flipped = output;
                    flipped[3] ^= 1;
                    assert!(requests.check(index, &flipped).is_err(), "{case}: a flipped bit");
                }
            }
        }
    }

    #[test]
    fn samples_stay_bounded_and_evenly_spread() {
        const MOST: usize = 64;
        let mut checks = Checks::default();
        for index in 0..5 * MOST {
            checks.keep(MOST, index, Vec::new);
        }
        assert!(checks.kept.len() <= MOST && checks.kept.len() > MOST / 2);
        let every = 1 << checks.skip;
        for (place, (index, _)) in checks.kept.iter().enumerate() {
            assert_eq!(*index, place / KEYS * KEYS * every + place % KEYS);
        }
    }
}
