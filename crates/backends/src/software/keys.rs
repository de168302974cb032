// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Parses and checks private keys, and holds them ready for use.
//!
//! This module parses keys itself, because AWS-LC's PKCS#8 parser has one error for all defects, and the
//! owner of the key needs to know the defect:
//!
//! | defect | error |
//! |---|---|
//! | not DER, missing or trailing bytes, a field of the wrong type | `Malformed` |
//! | another algorithm or curve, explicit curve parameters, more than two primes, RSASSA-PSS keys (whose parameters restrict them), a Diffie-Hellman group that is not a safe prime and names no order | `NotOffered` |
//! | too small or too large | `Size` |
//! | parts that contradict each other, a secret out of range, a point off the curve, a composite "prime" | `Inconsistent` |
//! | RSA with a public exponent that is missing, even, 1, or above 33 bits | `NoPublicExponent` |
//!
//! After the checks an RSA key does one private operation. This makes its Montgomery contexts and its
//! blinding, so that the first job is as fast as the others.

use millrace_operation::der::{self, DerReader, tag};
use millrace_operation::{
    Curve, Hash, KeyError, KeyInfo, KeyType, MAX_DSA_BITS, MAX_MODULUS_BITS, MAX_PRIVATE_KEY_LEN,
    MIN_MODULUS_BITS, MlDsaSet,
};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::padding;
use super::rsa::{RsaSecret, rsa_private};
use super::sys::{self, Dh, Dsa, EcKey, MlDsa, Number, Rsa, RsaParts};

/// A key that is ready for use.
pub(crate) struct LoadedKey {
    pub(crate) info: KeyInfo,
    pub(crate) secret: Secret,
}

/// The secret half of a key, in the form that its operations need. AWS-LC zeroises its own objects.
pub(crate) enum Secret {
    Rsa(RsaSecret),
    Ec(EcKey),
    X25519(Zeroizing<[u8; 32]>),
    Ed25519(Zeroizing<[u8; 64]>),
    Dh(Dh),
    Dsa(Dsa),
    MlDsa(MlDsa),
}

/// Object identifiers, as the content of their DER.
mod oid {
    pub(super) const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    pub(super) const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    pub(super) const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    pub(super) const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
    pub(super) const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];
    pub(super) const X25519: &[u8] = &[0x2b, 0x65, 0x6e];
    pub(super) const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
    /// PKCS#3 `dhKeyAgreement`: prime and generator.
    pub(super) const DH: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x03, 0x01];
    /// X9.42 `dhpublicnumber`: prime, generator and order.
    pub(super) const DHX: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3e, 0x02, 0x01];
    pub(super) const DSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01];
    /// RFC 9881 section 2.
    pub(super) const ML_DSA_44: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 0x11];
    pub(super) const ML_DSA_65: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 0x12];
    pub(super) const ML_DSA_87: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 0x13];
}

/// Smallest order of a DSA or X9.42 subgroup, in bits (SP 800-131A: 112 bits of security).
const MIN_ORDER_BITS: usize = 224;

/// Largest order of a DSA subgroup, in bits (FIPS 186-4 section 4.2).
const MAX_ORDER_BITS: usize = 256;

/// Largest prime, in bits, of a Diffie-Hellman group outside RFC 3526 and RFC 7919. Its primality must be
/// tested, which takes tens of milliseconds at this size and seconds at 8192 bits.
const MAX_TESTED_PRIME_BITS: usize = 4096;

/// The parts of a `PrivateKeyInfo`.
struct PrivateKeyInfo<'a> {
    /// The whole `AlgorithmIdentifier`, for the public key.
    algorithm: &'a [u8],
    oid: &'a [u8],
    parameters: DerReader<'a>,
    private_key: &'a [u8],
    /// The content of the optional public key (RFC 5958), without the byte that counts unused bits.
    public_key: Option<&'a [u8]>,
}

/// Parses and checks a key.
pub(crate) fn load(pkcs8: &[u8]) -> Result<LoadedKey, KeyError> {
    if pkcs8.len() > MAX_PRIVATE_KEY_LEN {
        return Err(KeyError::Malformed);
    }
    let info = parse_private_key_info(pkcs8).ok_or(KeyError::Malformed)?;
    match info.oid {
        oid::RSA => load_rsa(info),
        oid::EC => load_ec(info),
        oid::X25519 => load_x25519(&info),
        oid::ED25519 => load_ed25519(&info),
        oid::DH => load_dh(info, DhForm::Pkcs3),
        oid::DHX => load_dh(info, DhForm::X942),
        oid::DSA => load_dsa(info),
        oid::ML_DSA_44 => load_ml_dsa(&info, MlDsaSet::MlDsa44),
        oid::ML_DSA_65 => load_ml_dsa(&info, MlDsaSet::MlDsa65),
        oid::ML_DSA_87 => load_ml_dsa(&info, MlDsaSet::MlDsa87),
        _ => Err(KeyError::NotOffered),
    }
}

fn parse_private_key_info(der: &[u8]) -> Option<PrivateKeyInfo<'_>> {
    let mut outer = DerReader::new(der);
    let mut fields = DerReader::new(outer.take(tag::SEQUENCE)?);
    let version = fields.take_unsigned()?;
    let (algorithm, content) = fields.take_whole(tag::SEQUENCE)?;
    let mut parameters = DerReader::new(content);
    let oid = parameters.take(tag::OBJECT_IDENTIFIER)?;
    let private_key = fields.take(tag::OCTET_STRING)?;
    // Attributes do not affect the key.
    fields.take_optional(tag::CONTEXT_0)?;
    let public_key = match fields.take_optional(tag::CONTEXT_1_PRIMITIVE)? {
        // Version 2 is the one with a public key (RFC 5958 section 2).
        Some([0, bits @ ..]) if version == [1] => Some(bits),
        Some(_) => return None,
        None => None,
    };
    let known_version = matches!(version, [] | [1]);
    (known_version && fields.is_empty() && outer.is_empty()).then_some(PrivateKeyInfo {
        algorithm,
        oid,
        parameters,
        private_key,
        public_key,
    })
}

fn number(magnitude: &[u8]) -> Result<Number, KeyError> {
    Number::from_bytes(magnitude).ok_or(KeyError::Backend)
}

/// Refuses a separate public key for algorithms that have no such field.
fn refuse_public_key(info: &PrivateKeyInfo<'_>) -> Result<(), KeyError> {
    if info.public_key.is_some() { Err(KeyError::Malformed) } else { Ok(()) }
}

fn load_rsa(mut info: PrivateKeyInfo<'_>) -> Result<LoadedKey, KeyError> {
    refuse_public_key(&info)?;
    let null = info.parameters.take(tag::NULL).ok_or(KeyError::Malformed)?;
    if !null.is_empty() || !info.parameters.is_empty() {
        return Err(KeyError::Malformed);
    }
    let [n, e, d, p, q, dp, dq, qinv] = parse_rsa_private_key(info.private_key)?;
    let modulus = number(n)?;
    let bits = in_range(modulus.bits(), MIN_MODULUS_BITS, MAX_MODULUS_BITS)?;
    check_public_exponent(e)?;
    if d.len() > n.len() {
        return Err(KeyError::Inconsistent);
    }
    let key = Rsa::new(&RsaParts {
        modulus: &modulus,
        public_exponent: &number(e)?,
        private_exponent: &number(d)?,
        prime1: &number(p)?,
        prime2: &number(q)?,
        exponent1: &number(dp)?,
        exponent2: &number(dq)?,
        coefficient: &number(qinv)?,
    })
    .ok_or(KeyError::Inconsistent)?;

    let mut padded = padding::block();
    let padded = &mut padded[..n.len()];
    padded[n.len() - d.len()..].copy_from_slice(d);
    let mut rejection_key = Zeroizing::new([0; 32]);
    sys::digest(Hash::Sha256, padded, &mut *rejection_key).map_err(|_| KeyError::Backend)?;

    let secret = RsaSecret { key, modulus: n.to_vec(), rejection_key };
    try_rsa(&secret)?;
    let public = der::element(tag::SEQUENCE, &[der::integer(n), der::integer(e)].concat());
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::Rsa { bits },
            spki: der::subject_public_key_info(info.algorithm, &public),
        },
        secret: Secret::Rsa(secret),
    })
}

/// Returns the numbers of an RSA key that [`load`] has accepted, in the order of [`parse_rsa_private_key`].
/// Other backends compute with them.
pub(crate) fn rsa_numbers(pkcs8: &[u8]) -> Result<[&[u8]; 8], KeyError> {
    let info = parse_private_key_info(pkcs8).ok_or(KeyError::Malformed)?;
    parse_rsa_private_key(info.private_key)
}

/// The eight numbers of a two-prime `RSAPrivateKey` (RFC 8017 appendix A.1.2).
fn parse_rsa_private_key(bytes: &[u8]) -> Result<[&[u8]; 8], KeyError> {
    let mut outer = DerReader::new(bytes);
    let mut fields = DerReader::new(outer.take(tag::SEQUENCE).ok_or(KeyError::Malformed)?);
    match fields.take_unsigned() {
        Some([]) => {}
        Some([1]) => return Err(KeyError::NotOffered),
        _ => return Err(KeyError::Malformed),
    }
    let mut numbers: [&[u8]; 8] = [&[]; 8];
    for number in &mut numbers {
        *number = fields.take_unsigned().ok_or(KeyError::Malformed)?;
    }
    if !fields.is_empty() || !outer.is_empty() {
        return Err(KeyError::Malformed);
    }
    Ok(numbers)
}

/// Accepts an odd exponent of at least 3 and at most 33 bits. The upper bound is AWS-LC's; it keeps one
/// verification cheap.
fn check_public_exponent(e: &[u8]) -> Result<(), KeyError> {
    let usable = match e {
        [] | [1] => false,
        [.., last] if last & 1 == 0 => false,
        [first, rest @ ..] => rest.len() < 4 || (rest.len() == 4 && *first == 1),
    };
    if usable { Ok(()) } else { Err(KeyError::NoPublicExponent) }
}

/// Runs one private operation and reverses it with a public one. This makes the contexts, and fails if p or q
/// is composite.
fn try_rsa(secret: &RsaSecret) -> Result<(), KeyError> {
    let len = secret.modulus.len();
    let mut input = padding::block();
    let mut output = padding::block();
    let mut undone = padding::block();
    // Any number except 0 and 1 will do; the leading zero byte keeps it below the modulus.
    input[1..len].fill(0x5a);
    rsa_private(secret, &input[..len], &mut output[..len]).map_err(|_| KeyError::Inconsistent)?;
    secret.key.public(&output[..len], &mut undone[..len]).map_err(|_| KeyError::Inconsistent)?;
    if bool::from(undone.ct_eq(&*input)) { Ok(()) } else { Err(KeyError::Inconsistent) }
}

/// A size within bounds.
fn in_range(bits: usize, min: u16, max: u16) -> Result<u16, KeyError> {
    match u16::try_from(bits) {
        Ok(bits) if (min..=max).contains(&bits) => Ok(bits),
        _ => Err(KeyError::Size),
    }
}

fn load_ec(mut info: PrivateKeyInfo<'_>) -> Result<LoadedKey, KeyError> {
    if info.parameters.peek() == Some(tag::SEQUENCE) {
        return Err(KeyError::NotOffered); // explicit parameters
    }
    let curve_oid = info.parameters.take(tag::OBJECT_IDENTIFIER).ok_or(KeyError::Malformed)?;
    if !info.parameters.is_empty() {
        return Err(KeyError::Malformed);
    }
    let curve = match curve_oid {
        oid::P256 => Curve::P256,
        oid::P384 => Curve::P384,
        oid::P521 => Curve::P521,
        _ => return Err(KeyError::NotOffered),
    };
    let inner = parse_ec_private_key(info.private_key).ok_or(KeyError::Malformed)?;
    if inner.curve_oid.is_some_and(|oid| oid != curve_oid) || inner.scalar.len() > curve.field_len()
    {
        return Err(KeyError::Inconsistent);
    }
    let key = EcKey::new(curve, &number(inner.scalar)?).ok_or(KeyError::Inconsistent)?;
    let stated = [inner.public_point, info.public_key];
    if stated.into_iter().flatten().any(|point| !key.has_public_point(point)) {
        return Err(KeyError::Inconsistent);
    }
    let point = key.public_point().ok_or(KeyError::Backend)?;
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::Ec(curve),
            spki: der::subject_public_key_info(info.algorithm, &point),
        },
        secret: Secret::Ec(key),
    })
}

/// The fields of an `ECPrivateKey` (RFC 5915 section 3).
struct EcPrivateKey<'a> {
    scalar: &'a [u8],
    curve_oid: Option<&'a [u8]>,
    public_point: Option<&'a [u8]>,
}

fn parse_ec_private_key(bytes: &[u8]) -> Option<EcPrivateKey<'_>> {
    let mut outer = DerReader::new(bytes);
    let mut fields = DerReader::new(outer.take(tag::SEQUENCE)?);
    if fields.take_unsigned()? != [1] {
        return None;
    }
    let scalar = fields.take(tag::OCTET_STRING)?;
    let curve_oid = match fields.take_optional(tag::CONTEXT_0)? {
        Some(content) => {
            let mut parameters = DerReader::new(content);
            let oid = parameters.take(tag::OBJECT_IDENTIFIER)?;
            parameters.is_empty().then_some(Some(oid))?
        }
        None => None,
    };
    let public_point = match fields.take_optional(tag::CONTEXT_1)? {
        Some(content) => {
            let mut wrapped = DerReader::new(content);
            let [0, point @ ..] = wrapped.take(tag::BIT_STRING)? else {
                return None;
            };
            wrapped.is_empty().then_some(Some(point))?
        }
        None => None,
    };
    (fields.is_empty() && outer.is_empty()).then_some(EcPrivateKey {
        scalar,
        curve_oid,
        public_point,
    })
}

/// The 32 secret bytes of an RFC 8410 key.
fn parse_curve25519(info: &PrivateKeyInfo<'_>) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let mut inner = DerReader::new(info.private_key);
    let secret = inner.take(tag::OCTET_STRING).ok_or(KeyError::Malformed)?;
    if !inner.is_empty() || !info.parameters.is_empty() {
        return Err(KeyError::Malformed);
    }
    secret.try_into().map(Zeroizing::new).map_err(|_| KeyError::Malformed)
}

fn load_x25519(info: &PrivateKeyInfo<'_>) -> Result<LoadedKey, KeyError> {
    let secret = parse_curve25519(info)?;
    let public = sys::x25519_public(&secret);
    if info.public_key.is_some_and(|stated| stated != public) {
        return Err(KeyError::Inconsistent);
    }
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::X25519,
            spki: der::subject_public_key_info(info.algorithm, &public),
        },
        secret: Secret::X25519(secret),
    })
}

fn load_ed25519(info: &PrivateKeyInfo<'_>) -> Result<LoadedKey, KeyError> {
    let secret = sys::ed25519_expand(&*parse_curve25519(info)?);
    let public = &secret[32..];
    if info.public_key.is_some_and(|stated| stated != public) {
        return Err(KeyError::Inconsistent);
    }
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::Ed25519,
            spki: der::subject_public_key_info(info.algorithm, public),
        },
        secret: Secret::Ed25519(secret),
    })
}

/// The numbers of a group: prime, order if it is given, generator.
struct Group<'a> {
    p: &'a [u8],
    q: Option<&'a [u8]>,
    g: &'a [u8],
}

/// The form of the parameters of a Diffie-Hellman key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DhForm {
    /// Prime, generator, length.
    Pkcs3,
    /// Prime, generator, order, cofactor, seed.
    X942,
}

fn parse_dh_group<'a>(parameters: &mut DerReader<'a>, form: DhForm) -> Option<Group<'a>> {
    let mut fields = DerReader::new(parameters.take(tag::SEQUENCE)?);
    let p = fields.take_unsigned()?;
    let g = fields.take_unsigned()?;
    let q = if form == DhForm::X942 { Some(fields.take_unsigned()?) } else { None };
    fields.take_optional(tag::INTEGER)?;
    if form == DhForm::X942 {
        fields.take_optional(tag::SEQUENCE)?;
    }
    (fields.is_empty() && parameters.is_empty()).then_some(Group { p, q, g })
}

/// The private value of a DH or DSA key.
fn parse_private_value(bytes: &[u8]) -> Result<&[u8], KeyError> {
    let mut inner = DerReader::new(bytes);
    let value = inner.take_unsigned().ok_or(KeyError::Malformed)?;
    if inner.is_empty() { Ok(value) } else { Err(KeyError::Malformed) }
}

fn load_dh(mut info: PrivateKeyInfo<'_>, form: DhForm) -> Result<LoadedKey, KeyError> {
    refuse_public_key(&info)?;
    let group = parse_dh_group(&mut info.parameters, form).ok_or(KeyError::Malformed)?;
    let x = parse_private_value(info.private_key)?;
    let prime = number(group.p)?;
    let generator = number(group.g)?;
    let private = number(x)?;
    let bits = in_range(prime.bits(), MIN_MODULUS_BITS, MAX_MODULUS_BITS)?;
    let last = prime.minus_one().ok_or(KeyError::Backend)?;
    if !prime.is_odd() || !within(&generator, &last) {
        return Err(KeyError::Inconsistent);
    }
    let order = group.q.map(number).transpose()?;
    match &order {
        Some(order) => {
            if order.bits() < MIN_ORDER_BITS {
                return Err(KeyError::Size);
            }
            check_subgroup(&prime, order, &generator)?;
        }
        None => check_safe_prime(group.p, group.g, &prime)?,
    }
    if x.is_empty() || !private.is_below(order.as_ref().unwrap_or(&last)) {
        return Err(KeyError::Inconsistent);
    }
    let public = public_value(&generator, &private, &prime, group.p.len())?;
    let dh = Dh::new(prime, order, generator, private).ok_or(KeyError::Backend)?;
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::Dh { bits },
            spki: der::subject_public_key_info(info.algorithm, &der::integer(&public)),
        },
        secret: Secret::Dh(dh),
    })
}

fn load_dsa(mut info: PrivateKeyInfo<'_>) -> Result<LoadedKey, KeyError> {
    refuse_public_key(&info)?;
    let group = parse_dsa_group(&mut info.parameters).ok_or(KeyError::Malformed)?;
    let x = parse_private_value(info.private_key)?;
    let order = number(group.q.unwrap_or_default())?;
    let prime = number(group.p)?;
    let generator = number(group.g)?;
    let private = number(x)?;
    let bits = in_range(prime.bits(), MIN_MODULUS_BITS, MAX_DSA_BITS)?;
    // The two lengths of FIPS 186-4 for primes of this size.
    if order.bits() != MIN_ORDER_BITS && order.bits() != MAX_ORDER_BITS {
        return Err(KeyError::Size);
    }
    let last = prime.minus_one().ok_or(KeyError::Backend)?;
    if !prime.is_odd() || !within(&generator, &last) {
        return Err(KeyError::Inconsistent);
    }
    check_subgroup(&prime, &order, &generator)?;
    if x.is_empty() || !private.is_below(&order) {
        return Err(KeyError::Inconsistent);
    }
    let public = public_value(&generator, &private, &prime, group.p.len())?;
    let dsa =
        Dsa::new(prime, order, generator, number(&public)?, private).ok_or(KeyError::Backend)?;
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::Dsa { bits },
            spki: der::subject_public_key_info(info.algorithm, &der::integer(&public)),
        },
        secret: Secret::Dsa(dsa),
    })
}

/// The parameters of a DSA key (RFC 3279 section 2.3.2).
fn parse_dsa_group<'a>(parameters: &mut DerReader<'a>) -> Option<Group<'a>> {
    let mut fields = DerReader::new(parameters.take(tag::SEQUENCE)?);
    let p = fields.take_unsigned()?;
    let q = fields.take_unsigned()?;
    let g = fields.take_unsigned()?;
    (fields.is_empty() && parameters.is_empty()).then_some(Group { p, q: Some(q), g })
}

/// Length of the seed of an ML-DSA key, in bytes (FIPS 204 section 5.1).
const ML_DSA_SEED_LEN: usize = 32;

/// The seed and the expanded key of an `ML-DSA-PrivateKey` (RFC 9881 section 6): one of them, or both.
struct MlDsaPrivateKey<'a> {
    seed: Option<&'a [u8]>,
    expanded: Option<&'a [u8]>,
}

fn parse_ml_dsa_private_key(bytes: &[u8], set: MlDsaSet) -> Option<MlDsaPrivateKey<'_>> {
    let mut outer = DerReader::new(bytes);
    let (seed, expanded) = match outer.peek()? {
        tag::CONTEXT_0_PRIMITIVE => (Some(outer.take(tag::CONTEXT_0_PRIMITIVE)?), None),
        tag::OCTET_STRING => (None, Some(outer.take(tag::OCTET_STRING)?)),
        _ => {
            let mut both = DerReader::new(outer.take(tag::SEQUENCE)?);
            let seed = both.take(tag::OCTET_STRING)?;
            let expanded = both.take(tag::OCTET_STRING)?;
            both.is_empty().then_some((Some(seed), Some(expanded)))?
        }
    };
    let fits = outer.is_empty()
        && seed.is_none_or(|seed| seed.len() == ML_DSA_SEED_LEN)
        && expanded.is_none_or(|expanded| expanded.len() == set.private_key_len());
    fits.then_some(MlDsaPrivateKey { seed, expanded })
}

fn load_ml_dsa(info: &PrivateKeyInfo<'_>, set: MlDsaSet) -> Result<LoadedKey, KeyError> {
    if !info.parameters.is_empty() {
        return Err(KeyError::Malformed);
    }
    let parsed = parse_ml_dsa_private_key(info.private_key, set).ok_or(KeyError::Malformed)?;
    let from = |bytes| MlDsa::new(set, bytes).ok_or(KeyError::Inconsistent);
    let key = match (parsed.seed, parsed.expanded) {
        (Some(seed), None) => from(seed)?,
        (None, Some(expanded)) => from(expanded)?,
        (Some(seed), Some(expanded)) => {
            let key = from(seed)?;
            let made = key.expanded().ok_or(KeyError::Backend)?;
            // RFC 9881 section 8.2: a seed and an expanded key that disagree are refused.
            if !bool::from(made.ct_eq(expanded)) {
                return Err(KeyError::Inconsistent);
            }
            key
        }
        (None, None) => return Err(KeyError::Malformed),
    };
    let public = key.public().ok_or(KeyError::Backend)?;
    if info.public_key.is_some_and(|stated| stated != public) {
        return Err(KeyError::Inconsistent);
    }
    try_ml_dsa(&key)?;
    Ok(LoadedKey {
        info: KeyInfo {
            key_type: KeyType::MlDsa(set),
            spki: der::subject_public_key_info(info.algorithm, &public),
        },
        secret: Secret::MlDsa(key),
    })
}

/// Signs once and verifies, because an expanded key can have the right form and still sign wrongly.
fn try_ml_dsa(key: &MlDsa) -> Result<(), KeyError> {
    let message = b"pairwise consistency";
    let mut signature = vec![0; key.set().signature_len()];
    key.sign_message(message, &mut signature).map_err(|_| KeyError::Inconsistent)?;
    if key.verifies(message, &signature) { Ok(()) } else { Err(KeyError::Inconsistent) }
}

/// Whether 1 < `value` < `last`.
fn within(value: &Number, last: &Number) -> bool {
    value.bits() > 1 && value.is_below(last)
}

fn is_prime(number: &Number) -> Result<bool, KeyError> {
    number.is_probably_prime().ok_or(KeyError::Backend)
}

/// Checks that p and q are prime and that g has order q, so that q divides p-1.
fn check_subgroup(p: &Number, q: &Number, g: &Number) -> Result<(), KeyError> {
    if p.bits() > MAX_TESTED_PRIME_BITS || q.bits() >= p.bits() {
        return Err(if q.bits() >= p.bits() { KeyError::Inconsistent } else { KeyError::Size });
    }
    let power = g.power(q, p).ok_or(KeyError::Backend)?;
    if power.bits() == 1 && is_prime(q)? && is_prime(p)? {
        Ok(())
    } else {
        Err(KeyError::Inconsistent)
    }
}

/// Checks that p and (p-1)/2 are prime. Without a known order, only this prevents a peer from learning a part
/// of the private value through a small subgroup.
fn check_safe_prime(p_bytes: &[u8], g_bytes: &[u8], p: &Number) -> Result<(), KeyError> {
    if g_bytes == [2] && is_named_group(p_bytes)? {
        return Ok(());
    }
    if p.bits() > MAX_TESTED_PRIME_BITS {
        return Err(KeyError::Size);
    }
    if !is_prime(p)? {
        return Err(KeyError::Inconsistent);
    }
    let half = p.half().ok_or(KeyError::Backend)?;
    if is_prime(&half)? { Ok(()) } else { Err(KeyError::NotOffered) }
}

/// Whether p is the prime of a group that is known to be safe and needs no test.
fn is_named_group(p: &[u8]) -> Result<bool, KeyError> {
    let mut digest = [0; 32];
    sys::digest(Hash::Sha256, p, &mut digest).map_err(|_| KeyError::Backend)?;
    Ok(NAMED_GROUPS.contains(&digest))
}

/// Computes the public value g^x mod p, as long as p.
fn public_value(g: &Number, x: &Number, p: &Number, len: usize) -> Result<Vec<u8>, KeyError> {
    let public = g.power(x, p).ok_or(KeyError::Backend)?;
    let mut bytes = vec![0; len];
    if public.write_padded(&mut bytes) { Ok(bytes) } else { Err(KeyError::Backend) }
}

/// SHA-256 digests of the primes of RFC 7919 (ffdhe) and RFC 3526 (modp), all with generator 2.
#[rustfmt::skip]
const NAMED_GROUPS: [[u8; 32]; 10] = [
    // ffdhe2048
    [
        0x9c, 0xd3, 0xb7, 0xf3, 0x36, 0x87, 0x2f, 0x46, 0xc0, 0x94, 0x28, 0xd1, 0xbb, 0xc1, 0x98, 0x77,
        0xa4, 0xd4, 0x40, 0x51, 0x2c, 0xda, 0x8d, 0x1c, 0x1c, 0xf0, 0xcd, 0x6e, 0x33, 0x69, 0x89, 0x66,
    ],
    // ffdhe3072
    [
        0x0e, 0xaf, 0x67, 0xdb, 0x3a, 0x83, 0x91, 0x56, 0xd5, 0x01, 0x34, 0x94, 0xa5, 0x31, 0x8a, 0x77,
        0x2b, 0x56, 0x97, 0xd2, 0x70, 0xd7, 0x21, 0xf3, 0x7f, 0x09, 0x2e, 0xfc, 0x69, 0xea, 0x5a, 0x17,
    ],
    // ffdhe4096
    [
        0x46, 0x48, 0x41, 0x42, 0x24, 0xac, 0x88, 0x1b, 0x3d, 0x0d, 0xc5, 0x9b, 0x46, 0x6f, 0x96, 0xd0,
        0x6a, 0x55, 0x82, 0x78, 0x77, 0x68, 0x07, 0x79, 0x7e, 0xcf, 0x1f, 0x66, 0xff, 0x39, 0x7b, 0x3e,
    ],
    // ffdhe6144
    [
        0x22, 0x7a, 0xc9, 0x06, 0x6b, 0x3d, 0xdd, 0x9e, 0x19, 0x36, 0x70, 0xcd, 0xa2, 0x38, 0x8f, 0xa8,
        0x84, 0xf6, 0x5b, 0xa0, 0xcf, 0x98, 0xb7, 0x42, 0xd1, 0xfe, 0x77, 0xa6, 0x68, 0x7c, 0x79, 0xc7,
    ],
    // ffdhe8192
    [
        0x77, 0x0b, 0x14, 0xef, 0xaf, 0x6f, 0x04, 0x99, 0x29, 0xc5, 0x23, 0x11, 0x3b, 0x3f, 0xa9, 0x9a,
        0x8d, 0x11, 0xda, 0xb1, 0xb1, 0x8a, 0xf3, 0x60, 0x95, 0x90, 0x12, 0x20, 0x75, 0xd1, 0x98, 0x33,
    ],
    // modp_2048
    [
        0xd6, 0x64, 0x36, 0xf7, 0x9b, 0xbd, 0x6b, 0x2e, 0x38, 0xc0, 0xff, 0xbd, 0x07, 0x9b, 0xe9, 0x04,
        0xd2, 0x64, 0x14, 0x15, 0xe2, 0xe6, 0x71, 0x40, 0xe0, 0x94, 0x48, 0xbe, 0x9a, 0x60, 0x89, 0x0e,
    ],
    // modp_3072
    [
        0x48, 0xcf, 0x8b, 0x09, 0x2f, 0xbc, 0xe4, 0x35, 0x9d, 0x98, 0x71, 0xab, 0xf7, 0x4f, 0x98, 0xe2,
        0x5b, 0x61, 0x63, 0x37, 0x9e, 0xaa, 0x15, 0xcd, 0x90, 0x87, 0xe8, 0x00, 0xc6, 0xd1, 0xc5, 0x5c,
    ],
    // modp_4096
    [
        0x4e, 0xe9, 0x51, 0x87, 0x68, 0x2b, 0xcb, 0x23, 0x0a, 0xd2, 0x6a, 0x95, 0x20, 0x5f, 0x69, 0x20,
        0xe8, 0x47, 0x08, 0xf6, 0x25, 0x1b, 0x38, 0x94, 0x32, 0x9b, 0x09, 0xec, 0x23, 0x91, 0x9e, 0x33,
    ],
    // modp_6144
    [
        0xd1, 0xbf, 0xe6, 0xd0, 0x92, 0x5c, 0xe7, 0xe4, 0xda, 0x26, 0x2b, 0x62, 0x86, 0x15, 0x14, 0xa7,
        0x75, 0x5e, 0x35, 0x83, 0x1e, 0x42, 0x9f, 0x34, 0x3e, 0x7b, 0x86, 0x48, 0x48, 0x65, 0x7e, 0xfd,
    ],
    // modp_8192
    [
        0x39, 0xab, 0x4f, 0xea, 0xb9, 0x50, 0xa3, 0x12, 0x8f, 0xb7, 0x1a, 0xcc, 0xb9, 0xfc, 0x39, 0x65,
        0xd8, 0x57, 0x01, 0x2e, 0x08, 0x19, 0x98, 0xa8, 0x59, 0x96, 0xe3, 0xea, 0x8b, 0x3c, 0x3b, 0xcf,
    ],
];
