// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parsed keys of one device, by the digest of their encoding.
//!
//! A Linux guest makes a session, uses it once and destroys it, twice for each `keyctl` operation, with the same key
//! every time. Parsing and checking a private key costs milliseconds, so parsed keys outlive their sessions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use millrace_operation::der::{DerReader, tag};
use millrace_operation::{Curve, KeyError, KeyInfo, KeyType, MIN_MODULUS_BITS, PrivateKey};
use millrace_wire::{KeyHandle, KeyRefusal};

use crate::job_target::JobTarget;
use crate::primitives::{self, EcPublic, Rsa};
use crate::spec::Status;

/// Parsed keys of one device: a gateway with as many virtual hosts, at about 20 KiB each 10 MiB. The service's own
/// bound on the keys of a session is above it.
pub const MAX_KEYS: usize = 512;

/// A parsed public-key of a guest.
pub(crate) struct GuestKey {
    pub(crate) half: Half,
    /// Place of private operations; `None` for a public key.
    pub(crate) private: Option<Private>,
}

/// The public half of a key.
pub(crate) enum Half {
    Rsa(Rsa),
    Ec(EcPublic),
}

/// The place of a private key.
pub(crate) enum Private {
    /// A session of the pool, under this handle.
    Pool(KeyHandle),
    /// This process: an RSA key below the engine's smallest size, or without primes. Linux tests the device with such
    /// keys.
    Local(Rsa),
}

/// Type of the digested key, so that the same bytes as a key of another type are another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    RsaPublic,
    RsaPrivate,
    EcPublic(Curve),
    EcPrivate(Curve),
}

type Name = (Form, [u8; 32]);

/// The parsed keys of a device.
#[derive(Default)]
pub(crate) struct GuestKeys {
    keys: HashMap<Name, Entry>,
    /// Counts uses, to find the key that was not used for longest.
    clock: u64,
}

struct Entry {
    key: Arc<GuestKey>,
    used: u64,
}

impl GuestKeys {
    /// The key with this encoding, parsed now or before.
    pub(crate) fn get(
        &mut self,
        form: Form,
        der: &[u8],
        target: &mut dyn JobTarget,
        now: Instant,
    ) -> Result<Arc<GuestKey>, Status> {
        let name = (form, primitives::sha256(der));
        self.clock += 1;
        if let Some(entry) = self.keys.get_mut(&name) {
            entry.used = self.clock;
            return Ok(Arc::clone(&entry.key));
        }
        self.make_room(target, now)?;
        let key = Arc::new(parse(form, der, target, now)?);
        let entry = Entry { key: Arc::clone(&key), used: self.clock };
        self.keys.insert(name, entry);
        Ok(key)
    }

    /// Forgets every key that no session uses.
    pub(crate) fn clear(&mut self, target: &mut dyn JobTarget, now: Instant) {
        let unused: Vec<Name> = self.unused().map(|(name, _)| *name).collect();
        for name in unused {
            self.forget(&name, target, now);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    fn unused(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        self.keys.iter().filter(|(_, entry)| Arc::strong_count(&entry.key) == 1)
    }

    fn make_room(&mut self, target: &mut dyn JobTarget, now: Instant) -> Result<(), Status> {
        if self.keys.len() < MAX_KEYS {
            return Ok(());
        }
        let oldest = self.unused().min_by_key(|(_, entry)| entry.used);
        let oldest = *oldest.ok_or(Status::NoSpace)?.0;
        self.forget(&oldest, target, now);
        Ok(())
    }

    fn forget(&mut self, name: &Name, target: &mut dyn JobTarget, now: Instant) {
        if let Some(entry) = self.keys.remove(name)
            && let Some(Private::Pool(handle)) = entry.key.private
        {
            target.close(handle, now);
        }
    }
}

fn parse(
    form: Form,
    der: &[u8],
    target: &mut dyn JobTarget,
    now: Instant,
) -> Result<GuestKey, Status> {
    match form {
        Form::RsaPublic => {
            Ok(GuestKey { half: Half::Rsa(public_key(der).ok_or(Status::Err)?), private: None })
        }
        Form::EcPublic(curve) => Ok(GuestKey {
            half: Half::Ec(EcPublic::from_point(curve, der).ok_or(Status::Err)?),
            private: None,
        }),
        Form::RsaPrivate => match target.import(PrivateKey::from_pkcs1(der), now) {
            Ok((handle, info)) => pooled(handle, &info, target, now),
            Err(KeyRefusal::Key(KeyError::Size | KeyError::Inconsistent | KeyError::Malformed)) => {
                // A small key, or one without primes. Any other key that contradicts itself is refused here, too.
                let key = without_primes(der).or_else(|| small(der)).ok_or(Status::Err)?;
                Ok(GuestKey {
                    half: Half::Rsa(public_half(der).ok_or(Status::Err)?),
                    private: Some(Private::Local(key)),
                })
            }
            Err(reason) => Err(refused(reason)),
        },
        Form::EcPrivate(curve) => {
            let key = PrivateKey::from_sec1(der).map_err(|_| Status::Err)?;
            let (handle, info) = target.import(key, now).map_err(refused)?;
            if info.key_type != KeyType::Ec(curve) {
                target.close(handle, now);
                return Err(Status::Err);
            }
            pooled(handle, &info, target, now)
        }
    }
}

/// A key that the pool holds, with its public half.
fn pooled(
    handle: KeyHandle,
    info: &KeyInfo,
    target: &mut dyn JobTarget,
    now: Instant,
) -> Result<GuestKey, Status> {
    let half = subject_public_key(&info.spki).and_then(|key| match info.key_type {
        KeyType::Rsa { .. } => Rsa::public(key).map(Half::Rsa),
        KeyType::Ec(curve) => EcPublic::from_point(curve, key).map(Half::Ec),
        KeyType::X25519
        | KeyType::Ed25519
        | KeyType::Dh { .. }
        | KeyType::Dsa { .. }
        | KeyType::MlDsa(_) => None,
    });
    match half {
        Some(half) => Ok(GuestKey { half, private: Some(Private::Pool(handle)) }),
        None => {
            target.close(handle, now);
            Err(Status::Err)
        }
    }
}

/// The content of the `BIT STRING` of a `SubjectPublicKeyInfo`.
fn subject_public_key(spki: &[u8]) -> Option<&[u8]> {
    let mut fields = DerReader::new(DerReader::new(spki).take(tag::SEQUENCE)?);
    fields.take(tag::SEQUENCE)?;
    fields.take(tag::BIT_STRING)?.strip_prefix(&[0])
}

/// An `RSAPublicKey`, also one whose modulus lacks the zero byte that makes it positive: Linux 6.1 tests the driver
/// with such a key, and does not use the device if that is refused.
fn public_key(der: &[u8]) -> Option<Rsa> {
    let mut outer = DerReader::new(der);
    let mut fields = DerReader::new(outer.take(tag::SEQUENCE)?);
    let modulus = fields.take(tag::INTEGER)?;
    let (exponent, _) = fields.take_whole(tag::INTEGER)?;
    (outer.is_empty() && fields.is_empty()).then_some(())?;
    let sign = modulus.first().is_some_and(|byte| byte & 0x80 != 0);
    let modulus = [if sign { &[0][..] } else { &[] }, modulus].concat();
    let modulus = millrace_operation::der::element(tag::INTEGER, &modulus);
    Rsa::public(&millrace_operation::der::element(tag::SEQUENCE, &[&modulus, exponent].concat()))
}

/// A key below the engine's smallest size.
fn small(der: &[u8]) -> Option<Rsa> {
    Rsa::private(der).filter(|key| key.len() < usize::from(MIN_MODULUS_BITS / 8))
}

/// A key whose primes and what follows them are zero, like those with which Linux before 5.19 tests the driver. The
/// engine refuses them. The private exponent of one lacks the zero byte that makes it positive, so the sign is ignored.
fn without_primes(der: &[u8]) -> Option<Rsa> {
    let mut outer = DerReader::new(der);
    let mut fields = DerReader::new(outer.take(tag::SEQUENCE)?);
    fields.take(tag::INTEGER)?;
    let mut number = || {
        let bytes = fields.take(tag::INTEGER)?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Some(&bytes[zeros..])
    };
    let modulus = number()?;
    let public = number()?;
    let private = number()?;
    for _ in 0..5 {
        number()?.is_empty().then_some(())?;
    }
    (outer.is_empty() && fields.is_empty()).then_some(())?;
    Rsa::private_without_primes(modulus, public, private)
}

/// Modulus and exponent of a DER `RSAPrivateKey`; `None` if AWS-LC refuses them.
fn public_half(der: &[u8]) -> Option<Rsa> {
    let mut fields = DerReader::new(DerReader::new(der).take(tag::SEQUENCE)?);
    fields.take(tag::INTEGER)?;
    let (modulus, _) = fields.take_whole(tag::INTEGER)?;
    let (exponent, _) = fields.take_whole(tag::INTEGER)?;
    Rsa::public(&millrace_operation::der::element(tag::SEQUENCE, &[modulus, exponent].concat()))
}

/// The status for a key that the pool refused.
fn refused(reason: KeyRefusal) -> Status {
    match reason {
        KeyRefusal::TooManyKeys | KeyRefusal::Key(KeyError::TooMany) => Status::NoSpace,
        KeyRefusal::Key(KeyError::NotOffered) | KeyRefusal::ImportDisabled => Status::NotSupported,
        KeyRefusal::Key(
            KeyError::Malformed
            | KeyError::Size
            | KeyError::Inconsistent
            | KeyError::NoPublicExponent
            | KeyError::Backend,
        )
        | KeyRefusal::NoSuchKey
        | KeyRefusal::Draining => Status::Err,
    }
}

impl fmt::Debug for GuestKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.keys.len())
    }
}
