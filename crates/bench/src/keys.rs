// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys and certificates made for one run, in memory and in its temporary directory.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::error::BenchError;

/// The keys that TLS gateways have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
pub enum KeyKind {
    /// RSA with 2048 bits.
    #[value(name = "rsa-2048")]
    #[serde(rename = "rsa-2048")]
    Rsa2048,
    /// ECDSA on P-256.
    #[value(name = "p-256")]
    #[serde(rename = "p-256")]
    P256,
}

impl KeyKind {
    /// The name used in options, file names and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rsa2048 => "rsa-2048",
            Self::P256 => "p-256",
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A key and its self-signed certificate.
pub(crate) struct Identity {
    pub(crate) kind: KeyKind,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) certificate_file: PathBuf,
    pub(crate) key_file: PathBuf,
    pub(crate) certificate_pem: String,
}

impl Identity {
    /// Makes a key and writes it and its certificate into `dir`.
    pub(crate) fn make(kind: KeyKind, dir: &Path) -> Result<Self, BenchError> {
        let key = generate(kind)?;
        let failed = |error| BenchError::Setup(format!("cannot make a certificate: {error}"));
        let params = CertificateParams::new(vec!["localhost".to_owned()]).map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        let key_pem = Zeroizing::new(key.serialize_pem());
        let key_file = dir.join(format!("{kind}.key"));
        let certificate_file = dir.join(format!("{kind}.crt"));
        write_private(&key_file, &key_pem)?;
        let certificate_pem = certificate.pem();
        fs::write(&certificate_file, &certificate_pem)
            .map_err(BenchError::file("write", &certificate_file))?;
        Ok(Self {
            kind,
            certificate: certificate.der().clone(),
            certificate_file,
            key_file,
            certificate_pem,
        })
    }
}

/// Makes a key.
pub(crate) fn generate(kind: KeyKind) -> Result<KeyPair, BenchError> {
    match kind {
        KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyKind::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
    }
    .map_err(|error| BenchError::Setup(format!("cannot make a {kind} key: {error}")))
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), BenchError> {
    write_private_bytes(path, text.as_bytes())
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private_bytes(path: &Path, bytes: &[u8]) -> Result<(), BenchError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(BenchError::file("write", path))
}
