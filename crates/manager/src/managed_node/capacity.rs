// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Capacity of a node, measured when it joins a pool: operations per second by key type, each alone on the whole node.
//!
//! The measurement is a quick estimate for placement, not a benchmark: 100 ms per key type, and one result of each key
//! is verified here beside what the backends verify themselves. Larger RSA keys are derived from RSA-2048, because
//! making them takes seconds.

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use aws_lc_rs::agreement::{self, UnparsedPublicKey as PeerKey};
use aws_lc_rs::digest::{SHA256, SHA384, digest};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::{self, SystemRandom};
use aws_lc_rs::rsa::{KeySize, PrivateDecryptingKey};
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, PqdsaKeyPair, RsaKeyPair,
    UnparsedPublicKey, VerificationAlgorithm,
};
use millrace_engine::{Completion, CompletionSink, Engine, Job, Key, Owner};
use millrace_operation::{
    Curve, Hash, JobError, KeyType, MlDsaInput, MlDsaSet, Operation, Output, PrivateKey,
};
use millrace_service::rates::JobClass;
use zeroize::Zeroizing;

use crate::model::node::Capacity;

/// Time per key type: all six delay the start of a node by 0.6 s.
const TIME: Duration = Duration::from_millis(100);

/// Jobs in flight per worker: two full batches of the AVX-512 lanes, one in work and one that waits.
const PER_WORKER: usize = 16;

/// Keys of each type. They take turns, so that neighbours in a batch share nothing.
const KEYS: usize = 4;

/// Deadline of a job: far above anything that is not a hang.
const DEADLINE: Duration = Duration::from_secs(20);

/// Message that the measured signatures cover.
const MESSAGE: &[u8] = b"millrace measures its capacity";

/// The fixed bytes in front of the 32 of an X25519 private key in PKCS#8 (RFC 8410 section 7).
const X25519_PKCS8_PREFIX: [u8; 16] =
    *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20";

/// Makes a key with one operation on it.
type MakeSample = fn() -> Result<Sample, Unspecified>;

/// The key types that are measured, each with one operation that stands for all.
const MEASURED: [(KeyType, MakeSample); 6] = [
    (KeyType::Rsa { bits: 2048 }, rsa_2048),
    (KeyType::Ec(Curve::P256), p_256),
    (KeyType::Ec(Curve::P384), p_384),
    (KeyType::X25519, x25519),
    (KeyType::Ed25519, ed25519),
    (KeyType::MlDsa(MlDsaSet::MlDsa65), ml_dsa_65),
];

/// The cost of larger RSA keys relative to RSA-2048, by the cube of the length.
const DERIVED: [(u16, f64); 2] = [(3072, 3.4), (4096, 8.0)];

/// Why the capacity is not known.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    /// No engine starts.
    #[error("no engine starts: {0}")]
    Engine(Box<dyn Error + Send + Sync>),
    /// The library makes no keys.
    #[error("AWS-LC makes no {0} key")]
    Library(KeyType),
    /// A backend computes wrong results.
    #[error(
        "a backend returned a wrong result for {0}: run `millrace bench crypto`, which names it"
    )]
    Wrong(KeyType),
    /// A job did not end.
    #[error("a job of {0} did not end within 20 s")]
    Hung(KeyType),
}

/// Measures the key types. `engine` makes an engine as the node has it; each ends after its measurement. A key type
/// that the engine cannot do is left out.
///
/// # Errors
/// A wrong result, a hang, or no engine starts.
pub fn measure(
    workers: usize,
    engine: impl Fn() -> Result<Engine, Box<dyn Error + Send + Sync>>,
) -> Result<Capacity, CapacityError> {
    let mut capacity = Capacity::new();
    for (key, sample) in MEASURED {
        let samples: Result<Vec<Sample>, _> = (0..KEYS).map(|_| sample()).collect();
        let samples = samples.map_err(|_| CapacityError::Library(key))?;
        let engine = engine().map_err(CapacityError::Engine)?;
        let rate = rate(&engine, key, &samples, workers.max(1) * PER_WORKER);
        engine.stop();
        let Some(rate) = rate? else {
            continue;
        };
        capacity.insert(JobClass::Key(key), whole(rate));
        if key == (KeyType::Rsa { bits: 2048 }) {
            let larger = DERIVED
                .map(|(bits, cost)| (JobClass::Key(KeyType::Rsa { bits }), whole(rate / cost)));
            capacity.extend(larger);
        }
    }
    Ok(capacity)
}

/// Rounds a rate down, but never below 1: a node that can do an operation has a capacity for it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate of operations per second is positive and far below 2^52"
)]
fn whole(rate: f64) -> u64 {
    (rate as u64).max(1)
}

/// Operations per second with `window` jobs in flight; `None` if no backend has the operation.
fn rate(
    engine: &Engine,
    key: KeyType,
    samples: &[Sample],
    window: usize,
) -> Result<Option<f64>, CapacityError> {
    let loaded: Result<Vec<Arc<Key>>, _> = samples
        .iter()
        .map(|sample| engine.load_key(&PrivateKey::from_pkcs8(sample.pkcs8.clone())))
        .collect();
    let Ok(keys) = loaded else {
        return Ok(None);
    };
    let (sink, ended): (_, Receiver<Completion>) = channel();
    let session = engine.open_session(Arc::new(Sink(sink)), Owner::new(1, 1));
    let job = |index: usize| Job {
        id: index as u64,
        session: session.clone(),
        key: Arc::clone(&keys[index % KEYS]),
        operation: samples[index % KEYS].operation.clone(),
        input: samples[index % KEYS].input.clone(),
        deadline: Instant::now() + DEADLINE,
    };
    let start = Instant::now();
    let mut sent = 0;
    let mut done = 0;
    let mut outputs: [Option<Output>; KEYS] = [const { None }; KEYS];
    // At least one window, however busy the machine is.
    while done < sent || start.elapsed() < TIME || sent == 0 {
        if start.elapsed() < TIME || sent == 0 {
            let room = window - (sent - done);
            engine.submit((sent..sent + room).map(job).collect());
            sent += room;
        }
        let first =
            ended.recv_timeout(DEADLINE).map_err(|_: RecvTimeoutError| CapacityError::Hung(key))?;
        for completion in [first].into_iter().chain(ended.try_iter()) {
            done += 1;
            let of = usize::try_from(completion.id).unwrap_or_default() % KEYS;
            match completion.result {
                Ok(output) => outputs[of] = Some(output),
                Err(JobError::NotOffered) => return Ok(None),
                Err(_) => return Err(CapacityError::Wrong(key)),
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let right = samples
        .iter()
        .zip(&outputs)
        .all(|(sample, output)| output.as_ref().is_none_or(|output| (sample.is_right)(output)));
    if !right {
        return Err(CapacityError::Wrong(key));
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of jobs, far below 2^52")]
    Ok(Some(done as f64 / seconds))
}

struct Sink(Sender<Completion>);

impl CompletionSink for Sink {
    fn complete(&self, completions: &mut Vec<Completion>) {
        for completion in completions.drain(..) {
            // The receiver is gone only when the measurement has ended.
            let _ = self.0.send(completion);
        }
    }
}

/// Whether an output is right.
type IsRight = Box<dyn Fn(&[u8]) -> bool>;

/// A key with one operation on it.
struct Sample {
    pkcs8: Zeroizing<Vec<u8>>,
    operation: Operation,
    input: Vec<u8>,
    is_right: IsRight,
}

/// A signature by `public` over `message`.
fn signed(
    algorithm: &'static dyn VerificationAlgorithm,
    public: &[u8],
    message: Vec<u8>,
) -> IsRight {
    let public = UnparsedPublicKey::new(algorithm, public.to_vec());
    Box::new(move |output| public.verify(&message, output).is_ok())
}

fn rsa_2048() -> Result<Sample, Unspecified> {
    let key = PrivateDecryptingKey::generate(KeySize::Rsa2048)?;
    let pkcs8 = Zeroizing::new(AsDer::as_der(&key)?.as_ref().to_vec());
    let pair = RsaKeyPair::from_pkcs8(&pkcs8).map_err(|_| Unspecified)?;
    Ok(Sample {
        pkcs8,
        operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
        input: digest(&SHA256, MESSAGE).as_ref().to_vec(),
        is_right: signed(
            &signature::RSA_PKCS1_2048_8192_SHA256,
            pair.public_key().as_ref(),
            MESSAGE.to_vec(),
        ),
    })
}

fn ecdsa(
    signing: &'static EcdsaSigningAlgorithm,
    verifying: &'static dyn VerificationAlgorithm,
    hash: Hash,
    input: &[u8],
) -> Result<Sample, Unspecified> {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(signing, &SystemRandom::new())?;
    let pair = EcdsaKeyPair::from_pkcs8(signing, pkcs8.as_ref()).map_err(|_| Unspecified)?;
    Ok(Sample {
        pkcs8: Zeroizing::new(pkcs8.as_ref().to_vec()),
        operation: Operation::EcdsaSign { hash },
        input: input.to_vec(),
        is_right: signed(verifying, pair.public_key().as_ref(), MESSAGE.to_vec()),
    })
}

fn p_256() -> Result<Sample, Unspecified> {
    ecdsa(
        &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
        &signature::ECDSA_P256_SHA256_ASN1,
        Hash::Sha256,
        digest(&SHA256, MESSAGE).as_ref(),
    )
}

fn p_384() -> Result<Sample, Unspecified> {
    ecdsa(
        &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
        &signature::ECDSA_P384_SHA384_ASN1,
        Hash::Sha384,
        digest(&SHA384, MESSAGE).as_ref(),
    )
}

fn x25519() -> Result<Sample, Unspecified> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    rand::fill(bytes.as_mut())?;
    let own = agreement::PrivateKey::from_private_key(&agreement::X25519, &bytes[..])
        .map_err(|_| Unspecified)?;
    let other = agreement::PrivateKey::generate(&agreement::X25519)?;
    let public = |key: &agreement::PrivateKey| -> Result<Vec<u8>, Unspecified> {
        Ok(key.compute_public_key()?.as_ref().to_vec())
    };
    let peer = PeerKey::new(&agreement::X25519, public(&own)?);
    let secret = agreement::agree(&other, peer, Unspecified, |secret| Ok(secret.to_vec()))?;
    Ok(Sample {
        pkcs8: Zeroizing::new([&X25519_PKCS8_PREFIX, &bytes[..]].concat()),
        operation: Operation::X25519,
        input: public(&other)?,
        is_right: Box::new(move |output| output == secret),
    })
}

fn ed25519() -> Result<Sample, Unspecified> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new())?;
    let pair =
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8.as_ref()).map_err(|_| Unspecified)?;
    Ok(Sample {
        pkcs8: Zeroizing::new(pkcs8.as_ref().to_vec()),
        operation: Operation::Ed25519Sign,
        input: MESSAGE.to_vec(),
        is_right: signed(&signature::ED25519, pair.public_key().as_ref(), MESSAGE.to_vec()),
    })
}

fn ml_dsa_65() -> Result<Sample, Unspecified> {
    let pair = PqdsaKeyPair::generate(&signature::ML_DSA_65_SIGNING)?;
    let pkcs8: Pkcs8V1Der<'_> = pair.private_key().as_der()?;
    Ok(Sample {
        pkcs8: Zeroizing::new(pkcs8.as_ref().to_vec()),
        operation: Operation::MlDsaSign { input: MlDsaInput::Message },
        input: MESSAGE.to_vec(),
        is_right: signed(&signature::ML_DSA_65, pair.public_key().as_ref(), MESSAGE.to_vec()),
    })
}
