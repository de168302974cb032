// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parser of requests: bytes that a guest wrote, read once into memory of our own, become typed requests.
//!
//! ```text
//!  control queue   header 16 │ fixed fields │ keys                       → session id and status
//!  data queue      header 24 │ fixed fields │ keys, IV, source, …        → result │ status
//! ```
//!
//! Without `VIRTIO_CRYPTO_F_REVISION_1` the fixed fields are padded to 56 and 48 bytes; with it they have the
//! length of their structure ([`RequestFormat`]). Every length that a guest states is compared with the bytes that are
//! there before anything is read or allocated, and sums are made in 64 bits.

mod data;
mod fields;
mod parameters;
#[cfg(test)]
mod tests;

use millrace_operation::Curve;

pub use self::data::{cipher_head, data};
use self::fields::{Cursor, Form, Values, fixed_len};
use crate::spec::{
    self, AeadAlgorithm, CONTROL_HEADER_LEN, CONTROL_LEGACY_LEN, CipherAlgorithm, CryptoService,
    Direction, HashAlgorithm, MacAlgorithm, RsaPadding, Status, feature,
};

/// Bound on the bytes of one request that the guest wrote, in bytes. The largest request of a Linux guest is one of
/// AF_ALG with 64 KiB. A device holds one request in memory at a time.
pub const MAX_REQUEST_LEN: usize = 1 << 20;

/// Bound on the result that one request may ask for, in bytes: as for the request, since a cipher's result is about as
/// long as its input.
pub const MAX_RESULT_LEN: usize = 1 << 20;

/// Bound on an encoded public-key, in bytes: an RSA-8192 private key has about 4.7 KiB.
pub const MAX_KEY_LEN: usize = 8 * 1024;

/// The format of requests, which the features decide that the guest's driver acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFormat {
    features: u64,
}

impl RequestFormat {
    /// `features`: the feature bits that the driver acknowledged.
    #[must_use]
    pub const fn new(features: u64) -> Self {
        Self { features }
    }

    /// Whether fixed fields have their own length.
    #[must_use]
    pub const fn revision_1(self) -> bool {
        self.features & feature::REVISION_1 != 0
    }

    /// Whether data requests of a service have the stateless form. It needs revision 1.
    const fn stateless(self, service: CryptoService) -> bool {
        self.revision_1() && self.features & feature::stateless(service) != 0
    }
}

/// A request of the control queue (virtio 1.3, section 5.9.7.2).
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub enum SessionCommand<'a> {
    Create(Parameters<'a>),
    /// The service is that of the opcode; the session must be one of it.
    Destroy {
        service: CryptoService,
        session: u64,
    },
}

/// The parameters of a session, or of a data request in stateless mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub enum Parameters<'a> {
    Cipher(CipherParameters<'a>),
    /// `VIRTIO_CRYPTO_SYM_OP_ALGORITHM_CHAINING`
    Chain {
        cipher: CipherParameters<'a>,
        check: HashOrMac<'a>,
        /// Whether the hash or MAC covers the output of the cipher, not its input.
        cipher_first: bool,
    },
    HashOrMac(HashOrMac<'a>),
    Aead {
        algorithm: AeadAlgorithm,
        key: &'a [u8],
        /// Length of the tag, in bytes.
        tag_len: usize,
        direction: Direction,
    },
    Rsa {
        padding: RsaPadding,
        /// Whether `key` is the private half.
        private: bool,
        /// DER `RSAPrivateKey` or `RSAPublicKey` (RFC 8017 appendix A.1).
        key: &'a [u8],
    },
    Ecdsa {
        curve: Curve,
        /// Whether `key` is the private half.
        private: bool,
        /// DER `ECPrivateKey` (RFC 5915), or a point (SEC 1 section 2.3.3).
        key: &'a [u8],
    },
}

/// A cipher with its key: the fields of `virtio_crypto_cipher_session_para`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct CipherParameters<'a> {
    pub algorithm: CipherAlgorithm,
    pub key: &'a [u8],
    pub direction: Direction,
}

/// A hash, or a MAC with its key. `len` is the length of the result in bytes; digest and MAC are cut to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub enum HashOrMac<'a> {
    Hash { algorithm: HashAlgorithm, len: usize },
    Mac { algorithm: MacAlgorithm, key: &'a [u8], len: usize },
}

impl Parameters<'_> {
    /// The service to which a session with these parameters belongs.
    #[must_use]
    pub const fn service(&self) -> CryptoService {
        match self {
            Self::Cipher(_) | Self::Chain { .. } => CryptoService::Cipher,
            Self::HashOrMac(HashOrMac::Hash { .. }) => CryptoService::Hash,
            Self::HashOrMac(HashOrMac::Mac { .. }) => CryptoService::Mac,
            Self::Aead { .. } => CryptoService::Aead,
            Self::Rsa { .. } | Self::Ecdsa { .. } => CryptoService::Akcipher,
        }
    }
}

/// A request of a data queue (virtio 1.3, section 5.9.7.3).
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the types say it")]
pub struct DataRequest<'a> {
    pub mode: RequestMode<'a>,
    pub operation: DataOperation<'a>,
}

/// Where a data request has its key and parameters: the specification's session mode and stateless mode.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestMode<'a> {
    /// In the session of this number.
    Session(u64),
    /// In the request itself.
    Stateless(Parameters<'a>),
}

/// The operation of a data request. `room` and lengths are in bytes; `room` is what the guest left for the result.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub enum DataOperation<'a> {
    /// `iv` is the counter of CTR, and the tweak of XTS.
    Cipher {
        direction: Direction,
        iv: &'a [u8],
        source: &'a [u8],
        room: usize,
    },
    Chain(ChainOperation<'a>),
    HashOrMac {
        /// [`CryptoService::Hash`] or [`CryptoService::Mac`], as the opcode says.
        service: CryptoService,
        source: &'a [u8],
        len: usize,
    },
    Aead {
        direction: Direction,
        nonce: &'a [u8],
        /// Ends with the tag for a decryption.
        source: &'a [u8],
        aad: &'a [u8],
        tag_len: usize,
        room: usize,
    },
    Akcipher {
        operation: AkcipherOperation,
        /// The signature for a verification.
        source: &'a [u8],
        /// The digest of a verification; empty otherwise.
        digest: &'a [u8],
        room: usize,
    },
}

/// A cipher and a hash or MAC over parts of one source.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct ChainOperation<'a> {
    pub direction: Direction,
    pub iv: &'a [u8],
    pub source: &'a [u8],
    /// Additional authenticated data, which the hash covers first.
    pub aad: &'a [u8],
    /// Start and end of the part of the source that the cipher covers.
    pub cipher: (usize, usize),
    /// Start and end of the part of the source that the hash covers.
    pub hash: (usize, usize),
    /// Length of the hash result, in bytes.
    pub hash_len: usize,
}

/// A request for the cipher of a session, without its source. Lengths are in bytes.
#[derive(Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct CipherHead<'a> {
    pub session: u64,
    pub direction: Direction,
    pub iv: &'a [u8],
    pub source_len: usize,
    pub room: usize,
}

/// A public-key operation. Only guests before Linux 6.13 sign and verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the words of the specification")]
pub enum AkcipherOperation {
    Encrypt,
    Decrypt,
    Sign,
    Verify,
}

/// A control opcode that the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlOpcode {
    Create(CryptoService),
    Destroy(CryptoService),
}

impl ControlOpcode {
    fn of(opcode: u32) -> Option<Self> {
        let service = CryptoService::of_opcode(opcode)?;
        let (create, destroy) = match service {
            CryptoService::Akcipher => {
                (spec::AKCIPHER_CREATE_SESSION, spec::AKCIPHER_DESTROY_SESSION)
            }
            CryptoService::Cipher
            | CryptoService::Hash
            | CryptoService::Mac
            | CryptoService::Aead => (spec::CREATE_SESSION, spec::DESTROY_SESSION),
        };
        match opcode & 0xff {
            op if op == u32::from(create) => Some(Self::Create(service)),
            op if op == u32::from(destroy) => Some(Self::Destroy(service)),
            _ => None,
        }
    }
}

/// Whether a control request, malformed or not, asks for a session: then the driver looks for the status in the 16
/// bytes of such an answer, otherwise in the first byte.
#[must_use]
pub fn creates_session(bytes: &[u8]) -> bool {
    let opcode = Cursor(bytes).word().ok().and_then(ControlOpcode::of);
    matches!(opcode, Some(ControlOpcode::Create(_)))
}

/// Parses a request of the control queue.
pub fn control(format: RequestFormat, bytes: &[u8]) -> Result<SessionCommand<'_>, Status> {
    let mut rest = Cursor(bytes);
    let opcode = rest.part(CONTROL_HEADER_LEN)?.word()?;
    match ControlOpcode::of(opcode).ok_or(Status::NotSupported)? {
        ControlOpcode::Create(service) => {
            let own = fixed_len(service, Form::Session);
            let fixed = rest.fixed(format, own, CONTROL_LEGACY_LEN)?;
            let kind = data::kind(service, Form::Session, fixed)?;
            let values = Values::read(kind, Form::Session, fixed)?;
            parameters::parameters(kind, &values, &mut rest).map(SessionCommand::Create)
        }
        ControlOpcode::Destroy(service) => {
            let session = rest.fixed(format, 8, CONTROL_LEGACY_LEN)?.long()?;
            Ok(SessionCommand::Destroy { service, session })
        }
    }
}
