// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys and certificates of one test: an authority, and leaf certificates for `localhost`.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, RsaKeySize,
};

/// The keys that gateways have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyKind {
    /// RSA with 2048 bits.
    Rsa2048,
    /// ECDSA on P-256.
    P256,
    /// ECDSA on P-384.
    P384,
}

impl KeyKind {
    /// The kinds that most gateways use.
    pub const USUAL: [Self; 2] = [Self::Rsa2048, Self::P256];

    /// A name for files, keys and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rsa2048 => "rsa-2048",
            Self::P256 => "p-256",
            Self::P384 => "p-384",
        }
    }

    fn generate(self) -> KeyPair {
        match self {
            Self::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            Self::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::P384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
        }
        .expect("generate a key")
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A certificate authority that clients trust.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate, PEM.
    pub pem: String,
    /// The certificate, DER.
    pub der: Vec<u8>,
    /// The certificate in a file, for programs.
    pub file: PathBuf,
    dir: PathBuf,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.file.display())
    }
}

/// A key with its certificate. The key file lies in a folder of its own, outside every gateway's configuration
/// unless a test names it there.
#[derive(Clone)]
pub struct Identity {
    /// The kind of key.
    pub kind: KeyKind,
    /// Certificate for `localhost`, PEM.
    pub certificate_pem: String,
    /// The private key, PKCS#8 PEM.
    pub key_pem: String,
    /// The private key, PKCS#8 DER.
    pub key_der: Vec<u8>,
    /// The private key in a file.
    pub key_file: PathBuf,
    /// The certificate in a file.
    pub certificate_file: PathBuf,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.kind)
    }
}

impl Authority {
    /// Makes an authority with its files in `dir`.
    ///
    /// # Panics
    /// If files cannot be written.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("generate a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, "Millrace test authority");
        let certificate = params.self_signed(&key).expect("certificate");
        let dir = dir.join("pki");
        fs::create_dir_all(&dir).expect("folder for certificates");
        let file = dir.join("ca.pem");
        fs::write(&file, certificate.pem()).expect("certificate file");
        Self {
            pem: certificate.pem(),
            der: certificate.der().to_vec(),
            file,
            issuer: Issuer::new(params, key),
            dir,
        }
    }

    /// Makes a key with a certificate for `localhost`.
    ///
    /// # Panics
    /// If files cannot be written.
    #[must_use]
    pub fn identity(&self, kind: KeyKind) -> Identity {
        let key = kind.generate();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        // Required by RFC 5280, and by Python from 3.13 on.
        params.use_authority_key_identifier_extension = true;
        params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        let key_file = self.dir.join(format!("{kind}.key"));
        let certificate_file = self.dir.join(format!("{kind}.crt"));
        fs::write(&key_file, key.serialize_pem()).expect("key file");
        // A node refuses a key file that other users can read.
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).expect("mode of a key");
        fs::write(&certificate_file, certificate.pem()).expect("certificate file");
        Identity {
            kind,
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            key_der: key.serialize_der(),
            key_file,
            certificate_file,
        }
    }

    /// A key and a certificate for a client named `name` that was valid from and until the given
    /// years, as PEM files in a folder laid out like those that `millrace cert client` writes.
    ///
    /// # Panics
    /// If files cannot be written.
    #[must_use]
    pub fn client(&self, name: &str, from_year: i32, until_year: i32) -> PathBuf {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("generate a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(from_year, 1, 1);
        params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        let dir = self.dir.join(format!("client-{name}-{until_year}"));
        fs::create_dir_all(&dir).expect("folder for certificates");
        fs::write(dir.join("cert.pem"), certificate.pem()).expect("certificate file");
        fs::write(dir.join("key.pem"), key.serialize_pem()).expect("key file");
        dir
    }
}
