// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key agreements on a card: ECDH on the NIST curves, X25519 and finite-field Diffie-Hellman (ADR 41).
//!
//! The card gives no proof of a result, and computing one on the host costs what the result costs. So a job is several
//! requests whose results check each other:
//!
//! | operation | requests | check | result |
//! |---|---|---|---|
//! | ECDH | a·P, b·P, (a + 2b)·P | on the curve; A + 2B = C | A + B |
//! | Diffie-Hellman | y^a, y^b, y^(a + 2b) | A·B² = C | A·B |
//! | X25519 | k·P, twice | both are equal | either |
//!
//! a is random in each job and a + b is the private value, so the card has numbers that say nothing about the key:
//! this is the blinding. X25519 has no addition of points that are known by x alone, so its scalar goes to the card as
//! it is, in the memory of the requests, which is zeroised after their answers.

use std::sync::Arc;

use millrace_engine::BackendError;
use millrace_operation::{Curve, KeyType, Operation, Output};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::sys::{CurveNumbers, Request};
use crate::arguments::check_arguments;
use crate::software::keys::{LoadedKey, Secret};
use crate::software::sys::{self as numbers, Modulus, Number};

/// Sizes of the card's exponentiation, in bytes. A smaller prime is padded to the next one.
const POWER_SIZES: [usize; 6] = [256, 320, 384, 448, 512, 1024];

/// A key for agreements, with the public numbers of its group.
pub(super) struct AgreementKey {
    pub(super) software: LoadedKey,
    group: Group,
}

enum Group {
    Curve {
        curve: Curve,
        /// Length of the numbers of a request, in bytes.
        width: usize,
        numbers: CurveNumbers,
    },
    Curve25519,
    Prime {
        prime: Number,
        modulus: Modulus,
        /// The prime, padded to a size of the card.
        padded: Arc<Vec<u8>>,
        len: usize,
    },
}

/// Number of requests of a job.
pub(super) fn requests_of(operation: &Operation) -> usize {
    match operation {
        Operation::Ecdh | Operation::DhDerive => 3,
        Operation::X25519 => 2,
        _ => 1,
    }
}

impl AgreementKey {
    /// `None` for a key without agreements, or if there is no memory.
    pub(super) fn new(software: LoadedKey) -> Option<Self> {
        let group = match &software.secret {
            Secret::Ec(_) => {
                let KeyType::Ec(curve) = software.info.key_type else {
                    return None;
                };
                let (width, cofactor_len) = match curve {
                    Curve::P256 | Curve::P384 => (curve.field_len(), curve.field_len()),
                    // The card's function for 521 bits has nine words for a number, and one for the cofactor.
                    Curve::P521 => (72, 8),
                };
                let [p, a, b] = numbers::curve_numbers(curve)?;
                let mut cofactor = vec![0; cofactor_len];
                *cofactor.last_mut()? = 1;
                let [p, a, b] = [p, a, b].map(|number| padded(&number, width).to_vec());
                Group::Curve { curve, width, numbers: Arc::new([p, a, b, cofactor]) }
            }
            Secret::X25519(_) => Group::Curve25519,
            Secret::Dh(dh) => {
                let bytes = dh.prime()?;
                let size = POWER_SIZES.into_iter().find(|size| *size >= bytes.len())?;
                let prime = Number::from_bytes(&bytes)?;
                Group::Prime {
                    modulus: Modulus::new(&prime)?,
                    padded: Arc::new(padded(&bytes, size).to_vec()),
                    len: bytes.len(),
                    prime,
                }
            }
            _ => return None,
        };
        Some(Self { software, group })
    }

    /// Checks the peer's value, and makes the requests of a job.
    ///
    /// # Errors
    /// `BadInput` for a value that is not of the group or of a small order; `NotOffered` for an operation that is not
    /// an agreement.
    pub(super) fn requests(
        &self,
        operation: &Operation,
        input: &[u8],
    ) -> Result<Vec<Request>, BackendError> {
        check_arguments(operation, self.software.info.key_type, input)?;
        match (operation, &self.group, &self.software.secret) {
            (Operation::Ecdh, Group::Curve { curve, width, numbers }, Secret::Ec(key)) => {
                if !numbers::is_point(*curve, input) {
                    return Err(BackendError::BadInput);
                }
                let (x, y) = input[1..].split_at(curve.field_len());
                let point = [x, y].map(|coordinate| padded(coordinate, *width).to_vec());
                let shares = key.split().ok_or(BackendError::Failed)?;
                let requests = shares.map(|share| Request::Multiply {
                    curve: Arc::clone(numbers),
                    scalar: padded(&share, *width),
                    point: point.clone(),
                });
                Ok(requests.into())
            }
            (Operation::X25519, Group::Curve25519, Secret::X25519(key)) => {
                let x = canonical(input).ok_or(BackendError::BadInput)?;
                let request = || Request::Ladder { scalar: ladder_scalar(key), x };
                Ok(vec![request(), request()])
            }
            (Operation::DhDerive, Group::Prime { padded: modulus, .. }, Secret::Dh(key)) => {
                let peer = Number::from_bytes(input).ok_or(BackendError::Failed)?;
                key.check_peer(&peer)?;
                let wide =
                    |number: &Number| number.to_bytes(modulus.len()).ok_or(BackendError::Failed);
                let base = wide(&peer)?;
                let request = |share: Number| {
                    Ok(Request::Power {
                        modulus: Arc::clone(modulus),
                        base: base.clone(),
                        exponent: wide(&share)?,
                    })
                };
                key.split().ok_or(BackendError::Failed)?.into_iter().map(request).collect()
            }
            _ => Err(BackendError::NotOffered),
        }
    }

    /// The output of a job from the answers to its requests, in their order.
    ///
    /// # Errors
    /// `Fault` if they do not go together, `BadInput` for a secret that the peer forced.
    pub(super) fn join(&self, answers: &[Zeroizing<Vec<u8>>]) -> Result<Output, BackendError> {
        match (&self.group, answers) {
            (Group::Curve { curve, width, .. }, [a, b, both]) => {
                let encode = |answer: &Zeroizing<Vec<u8>>| point_of(answer, *width, *curve);
                let [a, b, both] = [encode(a)?, encode(b)?, encode(both)?];
                numbers::join_points(*curve, [&a, &b, &both])
            }
            (Group::Curve25519, [one, other]) => {
                if !bool::from(one.ct_eq(other)) {
                    return Err(BackendError::Fault);
                }
                // All zero is the secret of a peer of small order alone, which was refused before.
                if bool::from(one.ct_eq(&[0; 32])) {
                    return Err(BackendError::Fault);
                }
                Ok(Output::new(one.iter().rev().copied().collect()))
            }
            (Group::Prime { prime, modulus, len, .. }, [a, b, both]) => {
                let below = |bytes: &Zeroizing<Vec<u8>>| {
                    let number = Number::from_bytes(bytes).filter(|number| number.is_below(prime));
                    number.ok_or(BackendError::Fault)
                };
                let a = below(a)?;
                let b = below(b)?;
                let b = modulus.factor(&b).ok_or(BackendError::Failed)?;
                let times_b =
                    |number: &Number| modulus.multiply(number, &b).ok_or(BackendError::Failed);
                let secret = times_b(&a)?;
                let check = times_b(&secret)?.to_bytes(both.len()).ok_or(BackendError::Failed)?;
                if !bool::from(check.ct_eq(both)) {
                    return Err(BackendError::Fault);
                }
                let last = prime.minus_one().ok_or(BackendError::Failed)?;
                if secret.bits() <= 1 || !secret.is_below(&last) {
                    return Err(BackendError::BadInput);
                }
                secret.to_bytes(*len).ok_or(BackendError::Failed)
            }
            _ => Err(BackendError::Failed),
        }
    }
}

/// A number with zeros before it.
fn padded(number: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(vec![0; len]);
    bytes[len - number.len()..].copy_from_slice(number);
    bytes
}

/// A card's answer, x and y of `width` bytes each, as an uncompressed point.
///
/// # Errors
/// `Fault` for a coordinate that is longer than the field.
fn point_of(answer: &[u8], width: usize, curve: Curve) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    let zeros = width - curve.field_len();
    let mut point = Zeroizing::new(Vec::with_capacity(1 + 2 * curve.field_len()));
    point.push(4);
    if answer.len() != 2 * width {
        return Err(BackendError::Fault);
    }
    for coordinate in answer.chunks_exact(width) {
        if coordinate[..zeros].iter().any(|byte| *byte != 0) {
            return Err(BackendError::Fault);
        }
        point.extend_from_slice(&coordinate[zeros..]);
    }
    Ok(point)
}

/// The scalar of an X25519 key as a card has it: decoded (RFC 7748 section 5), and big-endian.
fn ladder_scalar(key: &[u8; 32]) -> Zeroizing<[u8; 32]> {
    let mut scalar = Zeroizing::new(*key);
    scalar[0] &= 0xf8;
    scalar[31] &= 0x7f;
    scalar[31] |= 0x40;
    scalar.reverse();
    scalar
}

/// 2²⁵⁵ - 19, little-endian.
const PRIME: [u8; 32] = {
    let mut prime = [0xff; 32];
    prime[0] = 0xed;
    prime[31] = 0x7f;
    prime
};

/// The x coordinates below the prime, little-endian, of the points whose order divides eight on Curve25519 or its
/// twist (RFC 7748 section 7 names the check; the list is that of Curve25519's page, reduced).
const SMALL_ORDER: [[u8; 32]; 5] = [
    [0; 32],
    {
        let mut one = [0; 32];
        one[0] = 1;
        one
    },
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef,
        0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f,
        0x11, 0x57,
    ],
    {
        let mut last = PRIME;
        last[0] = 0xec;
        last
    },
];

/// A peer's public value as a card has it: below the prime, and big-endian. `None` for a point of small order.
fn canonical(input: &[u8]) -> Option<[u8; 32]> {
    let mut x: [u8; 32] = input.try_into().ok()?;
    x[31] &= 0x7f;
    // The values from the prime to 2²⁵⁵ - 1 differ from it in the first byte alone.
    if x[1..] == PRIME[1..] && x[0] >= PRIME[0] {
        let rest = x[0] - PRIME[0];
        x = [0; 32];
        x[0] = rest;
    }
    if SMALL_ORDER.contains(&x) {
        return None;
    }
    x.reverse();
    Some(x)
}

#[cfg(test)]
mod tests {
    use millrace_testkit::keys::{self as test_keys, TestKey};
    use millrace_testkit::verify;

    use super::*;
    use crate::software::{keys, operations};

    fn key(key: &TestKey) -> AgreementKey {
        AgreementKey::new(keys::load(key.der).expect("a good key")).expect("an agreement")
    }

    /// A number modulo another, as a card computes.
    fn power(modulus: &[u8], base: &[u8], exponent: &[u8]) -> Zeroizing<Vec<u8>> {
        let number = |bytes| Number::from_bytes(bytes).expect("a number");
        let power = number(base).power(&number(exponent), &number(modulus));
        power.and_then(|power| power.to_bytes(modulus.len())).expect("a power")
    }

    fn dh_answers(requests: &[Request]) -> Vec<Zeroizing<Vec<u8>>> {
        let answer = |request: &Request| match request {
            Request::Power { modulus, base, exponent } => power(modulus, base, exponent),
            _ => panic!("another request"),
        };
        requests.iter().map(answer).collect()
    }

    #[test]
    fn shares_of_a_diffie_hellman_key_give_its_secret_and_differ_each_time() {
        for test_key in [test_keys::dh_ffdhe2048(), test_keys::dhx_2048()] {
            let key = key(&test_key);
            let (peer, _) = verify::agreement(&test_key);
            let expected = operations::run(&key.software, &Operation::DhDerive, &peer);
            let mut seen = Vec::new();
            for _ in 0..3 {
                let requests = key.requests(&Operation::DhDerive, &peer).expect("requests");
                for request in &requests {
                    let Request::Power { exponent, .. } = request else { panic!("a power") };
                    assert!(!seen.contains(exponent), "a share came twice");
                    seen.push(exponent.clone());
                }
                assert_eq!(key.join(&dh_answers(&requests)), expected);
            }
        }
    }

    #[test]
    fn any_wrong_answer_of_a_diffie_hellman_job_is_a_fault() {
        let test_key = test_keys::dh_ffdhe2048();
        let key = key(&test_key);
        let (peer, _) = verify::agreement(&test_key);
        let requests = key.requests(&Operation::DhDerive, &peer).expect("requests");
        let answers = dh_answers(&requests);
        for wrong in 0..answers.len() {
            let mut answers = answers.clone();
            answers[wrong][100] ^= 1;
            assert_eq!(key.join(&answers), Err(BackendError::Fault), "answer {wrong}");
        }
    }

    #[test]
    fn any_wrong_answer_of_a_curve_job_is_a_fault_on_the_curve_or_off_it() {
        for test_key in [test_keys::p_256(), test_keys::p_384(), test_keys::p_521()] {
            let key = key(&test_key);
            let (peer, _) = verify::agreement(&test_key);
            let requests = key.requests(&Operation::Ecdh, &peer).expect("requests");
            let Group::Curve { curve, width, .. } = &key.group else { panic!("a curve") };
            let answer = |request: &Request| {
                let Request::Multiply { scalar, .. } = request else { panic!("a multiple") };
                let share = &scalar[width - curve.field_len()..];
                let point = verify::multiple(*curve, share, &peer);
                let (x, y) = point[1..].split_at(curve.field_len());
                [padded(x, *width).to_vec(), padded(y, *width).to_vec()].concat()
            };
            let answers: Vec<_> =
                requests.iter().map(|request| Zeroizing::new(answer(request))).collect();
            let expected = operations::run(&key.software, &Operation::Ecdh, &peer);
            assert_eq!(key.join(&answers), expected);
            for wrong in 0..answers.len() {
                let mut off = answers.clone();
                let mut on = answers.clone();
                off[wrong][width - 1] ^= 1;
                on[wrong] = answers[(wrong + 1) % 3].clone();
                assert_eq!(key.join(&off), Err(BackendError::Fault), "off the curve");
                assert_eq!(key.join(&on), Err(BackendError::Fault), "another point");
            }
        }
    }

    #[test]
    fn points_of_small_order_and_values_above_the_prime_do_not_reach_the_card() {
        for small in SMALL_ORDER {
            assert_eq!(canonical(&small), None);
        }
        // p, p + 1 and 2²⁵⁵ - 20 + p are 0, 1 and small numbers.
        for rest in 0..=0x12_u8 {
            let mut above = PRIME;
            above[0] += rest;
            let mut expected = [0; 32];
            expected[31] = rest;
            assert_eq!(canonical(&above), (rest > 1).then_some(expected), "p + {rest}");
        }
        let mut below = PRIME;
        below[0] -= 2;
        assert!(canonical(&below).is_some());
        let mut high = [9; 32];
        high[31] = 0x89;
        assert_eq!(canonical(&high), canonical(&[9; 32]), "the highest bit is ignored");
        assert_eq!(canonical(&[9; 31]), None);
    }
}
