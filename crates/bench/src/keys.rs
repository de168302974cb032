// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys and certificates made for one run, in memory and in its temporary directory.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize,
};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::bench_key::BenchKey;
use crate::error::BenchError;

/// The keys that TLS gateways are measured with.
pub(crate) const GATEWAY_KEYS: [&str; 5] = ["rsa-2048", "p-256", "p-384", "p-521", "ed25519"];

/// Those of them that are measured with a pool, too.
pub(crate) const POOLED_KEYS: [BenchKey; 2] = [BenchKey::Rsa2048, BenchKey::P256];

/// A key and its self-signed certificate.
pub(crate) struct Identity {
    pub(crate) kind: BenchKey,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key_file: PathBuf,
    pub(crate) certificate_pem: String,
}

impl Identity {
    /// Makes a key and writes it into `dir`.
    pub(crate) fn make(kind: BenchKey, dir: &Path) -> Result<Self, BenchError> {
        let key = generate(kind)?;
        let failed = |error| BenchError::Setup(format!("cannot make a certificate: {error}"));
        let params = CertificateParams::new(vec!["localhost".to_owned()]).map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        let key_pem = Zeroizing::new(key.serialize_pem());
        let key_file = dir.join(format!("{kind}.key"));
        write_private(&key_file, &key_pem)?;
        Ok(Self {
            kind,
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            key_file,
        })
    }
}

/// Makes a key.
fn generate(kind: BenchKey) -> Result<KeyPair, BenchError> {
    match kind {
        BenchKey::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        BenchKey::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        BenchKey::P384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
        BenchKey::P521 => KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512),
        BenchKey::Ed25519 => {
            KeyPair::generate_for(&PKCS_ED25519).and_then(|key| private_half(&key))
        }
        _ => {
            let problem = format!("gateways are not measured with {kind} keys");
            return Err(BenchError::Setup(problem));
        }
    }
    .map_err(|error| BenchError::Setup(format!("cannot make a {kind} key: {error}")))
}

/// An Ed25519 key without its public half, which OpenSSL 3.0 does not read (RFC 8410 section 7, RFC 5958).
fn private_half(key: &KeyPair) -> Result<KeyPair, rcgen::Error> {
    // Behind the outer head and the version, up to the public half.
    let half = 5..48;
    let whole = Zeroizing::new(key.serialize_der());
    let rest = whole.get(half).ok_or(rcgen::Error::CouldNotParseKeyPair)?;
    let version_0 = [&[0x30, 0x2e, 2, 1, 0][..], rest].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&version_0.into(), &PKCS_ED25519)
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), BenchError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(BenchError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ed25519_key_is_in_the_form_that_every_openssl_reads() {
        let key = generate(BenchKey::Ed25519).expect("a key");
        let der = key.serialize_der();
        assert_eq!((der.len(), &der[..5]), (48, &[0x30, 0x2e, 2, 1, 0][..]));
    }
}
