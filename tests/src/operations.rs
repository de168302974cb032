// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Cryptographic requests as values, performed by the OpenSSL of this process.
//!
//! A test performs a request twice: in its own process with the system's OpenSSL, and in a [`Worker`], a
//! process with the provider. The two answers must agree.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use openssl::derive::Deriver;
use openssl::encrypt::Decrypter;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private, Public};
use openssl::rsa::Padding;
use openssl::sign::{RsaPssSaltlen, Signer, Verifier};
use serde::{Deserialize, Serialize};

use crate::edge::Edge;

/// Scheme of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// RSASSA-PKCS1-v1_5 with this digest.
    Pkcs1(String),
    /// RSASSA-PSS: digest, digest of MGF1, salt length.
    Pss(String, String, u16),
    /// ECDSA or DSA with this digest.
    Dsa(String),
    /// Ed25519.
    Ed25519,
}

/// Padding of a ciphertext.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encryption {
    /// RSAES-OAEP: digest, digest of MGF1, label.
    Oaep(String, String, Vec<u8>),
    /// RSAES-PKCS1-v1_5.
    Pkcs1,
}

/// One request. Private keys are PKCS#8 DER, public ones `SubjectPublicKeyInfo` DER.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Answered with the signature.
    Sign(Vec<u8>, Scheme, Vec<u8>),
    /// Key, scheme, message, signature. Answered with nothing, or an error.
    Verify(Vec<u8>, Scheme, Vec<u8>, Vec<u8>),
    /// Answered with the message.
    Decrypt(Vec<u8>, Encryption, Vec<u8>),
    /// Own key and the peer's public key. Answered with the shared secret.
    Derive(Vec<u8>, Vec<u8>),
}

/// The answer of a request; the error is a text.
pub type Answer = Result<Vec<u8>, String>;

/// Performs requests with the OpenSSL of this process. The last private key stays loaded.
#[derive(Default)]
pub struct Performer {
    last: Option<(Vec<u8>, PKey<Private>)>,
}

impl fmt::Debug for Performer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Performer")
    }
}

impl Performer {
    /// Performs one request.
    ///
    /// # Errors
    /// OpenSSL's error.
    pub fn perform(&mut self, request: &Request) -> Answer {
        let words = |error: ErrorStack| {
            let text = error.to_string();
            if text.is_empty() { "refused".to_owned() } else { text }
        };
        match request {
            Request::Sign(key, scheme, message) => {
                sign(self.key(key).map_err(words)?, scheme, message).map_err(words)
            }
            Request::Verify(key, scheme, message, signature) => {
                let key = PKey::public_key_from_der(key).map_err(words)?;
                match verify(&key, scheme, message, signature) {
                    Ok(true) => Ok(Vec::new()),
                    Ok(false) => Err("the signature is wrong".to_owned()),
                    Err(error) => Err(words(error)),
                }
            }
            Request::Decrypt(key, encryption, ciphertext) => {
                decrypt(self.key(key).map_err(words)?, encryption, ciphertext).map_err(words)
            }
            Request::Derive(key, peer) => {
                let peer = PKey::public_key_from_der(peer).map_err(words)?;
                derive(self.key(key).map_err(words)?, &peer).map_err(words)
            }
        }
    }

    fn key(&mut self, der: &[u8]) -> Result<&PKey<Private>, ErrorStack> {
        if self.last.as_ref().is_none_or(|(known, _)| known != der) {
            self.last = None;
            self.last = Some((der.to_vec(), PKey::private_key_from_der(der)?));
        }
        Ok(self.last.as_ref().map(|(_, key)| key).expect("just loaded"))
    }
}

fn digest(name: &str) -> MessageDigest {
    let name = name.replace("SHA-", "SHA").replace("SHA512/256", "SHA512-256");
    MessageDigest::from_name(&name).unwrap_or_else(|| panic!("a digest named {name}"))
}

fn sign(key: &PKey<Private>, scheme: &Scheme, message: &[u8]) -> Result<Vec<u8>, ErrorStack> {
    let mut signer = match scheme {
        Scheme::Pkcs1(hash) | Scheme::Pss(hash, ..) | Scheme::Dsa(hash) => {
            Signer::new(digest(hash), key)?
        }
        Scheme::Ed25519 => Signer::new_without_digest(key)?,
    };
    match scheme {
        Scheme::Pkcs1(_) => signer.set_rsa_padding(Padding::PKCS1)?,
        Scheme::Pss(_, mgf, salt) => {
            signer.set_rsa_padding(Padding::PKCS1_PSS)?;
            signer.set_rsa_mgf1_md(digest(mgf))?;
            signer.set_rsa_pss_saltlen(RsaPssSaltlen::custom((*salt).into()))?;
        }
        Scheme::Dsa(_) | Scheme::Ed25519 => {}
    }
    signer.sign_oneshot_to_vec(message)
}

fn verify(
    key: &PKey<Public>,
    scheme: &Scheme,
    message: &[u8],
    signature: &[u8],
) -> Result<bool, ErrorStack> {
    let mut verifier = match scheme {
        Scheme::Pkcs1(hash) | Scheme::Pss(hash, ..) | Scheme::Dsa(hash) => {
            Verifier::new(digest(hash), key)?
        }
        Scheme::Ed25519 => Verifier::new_without_digest(key)?,
    };
    match scheme {
        Scheme::Pkcs1(_) => verifier.set_rsa_padding(Padding::PKCS1)?,
        Scheme::Pss(_, mgf, salt) => {
            verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
            verifier.set_rsa_mgf1_md(digest(mgf))?;
            verifier.set_rsa_pss_saltlen(RsaPssSaltlen::custom((*salt).into()))?;
        }
        Scheme::Dsa(_) | Scheme::Ed25519 => {}
    }
    verifier.verify_oneshot(signature, message)
}

fn decrypt(
    key: &PKey<Private>,
    encryption: &Encryption,
    ciphertext: &[u8],
) -> Result<Vec<u8>, ErrorStack> {
    let mut decrypter = Decrypter::new(key)?;
    match encryption {
        Encryption::Pkcs1 => decrypter.set_rsa_padding(Padding::PKCS1)?,
        Encryption::Oaep(hash, mgf, label) => {
            decrypter.set_rsa_padding(Padding::PKCS1_OAEP)?;
            decrypter.set_rsa_oaep_md(digest(hash))?;
            decrypter.set_rsa_mgf1_md(digest(mgf))?;
            if !label.is_empty() {
                decrypter.set_rsa_oaep_label(label)?;
            }
        }
    }
    let mut message = vec![0; decrypter.decrypt_len(ciphertext)?];
    let length = decrypter.decrypt(ciphertext, &mut message)?;
    message.truncate(length);
    Ok(message)
}

fn derive(key: &PKey<Private>, peer: &PKey<Public>) -> Result<Vec<u8>, ErrorStack> {
    let mut deriver = Deriver::new(key)?;
    deriver.set_peer(peer)?;
    deriver.derive_to_vec()
}

/// Answers requests, one JSON value per line, until the input ends. The worker program calls it.
///
/// # Errors
/// An error of the pipes.
pub fn serve() -> std::io::Result<()> {
    let mut performer = Performer::default();
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = performer.perform(&request);
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

/// A process that performs requests with the provider. Ends on drop.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the worker program, which cargo builds with the tests, on the release under test.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(program: &Path, edge: &Edge) -> Self {
        let mut command = crate::release::command_at(program);
        edge.apply(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the worker starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends one request and waits for the answer.
    ///
    /// # Errors
    /// The error of its OpenSSL.
    ///
    /// # Panics
    /// If the worker has died.
    pub fn perform(&mut self, request: &Request) -> Answer {
        let mut line = serde_json::to_vec(request).expect("a request is JSON");
        line.push(b'\n');
        let input = self.input.as_mut().expect("open until dropped");
        input.write_all(&line).expect("the worker listens");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the worker answers");
        assert!(!answer.is_empty(), "the worker died: {:?}", self.child.wait());
        serde_json::from_str(&answer).expect("an answer is JSON")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // At the end of its input it returns from main, so that exit handlers run.
        drop(self.input.take());
        let ended = crate::wait::holds_within(std::time::Duration::from_secs(5), || {
            !matches!(self.child.try_wait(), Ok(None))
        });
        if !ended {
            drop(self.child.kill());
        }
        drop(self.child.wait());
    }
}
