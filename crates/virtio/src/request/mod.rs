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
//! length of their structure ([`Layout`]). Every length that a guest states is compared with the bytes that are
//! there before anything is read or allocated, and sums are made in 64 bits.

mod data;
mod fields;
mod parameters;
#[cfg(test)]
mod tests;

use millrace_engine::Curve;

pub use self::data::{cipher_head, data};
use self::fields::{Cursor, Form, Values, fixed_len};
use crate::spec::{
    self, AeadAlgorithm, CONTROL_HEADER_LEN, CONTROL_LEGACY_LEN, CipherAlgorithm, Direction,
    HashAlgorithm, MacAlgorithm, RsaPadding, Service, Status, feature,
};

/// Bound on the bytes of one request that the guest wrote, in bytes. The largest request of a Linux guest is one of
/// AF_ALG with 64 KiB. A device holds one request in memory at a time.
pub const MAX_REQUEST_LEN: usize = 1 << 20;

/// Bound on the result that one request may ask for, in bytes: as for the request, since a cipher's result is about as
/// long as its input.
pub const MAX_RESULT_LEN: usize = 1 << 20;

/// Bound on an encoded public-key, in bytes: an RSA-8192 private key has about 4.7 KiB.
pub const MAX_KEY_LEN: usize = 8 * 1024;

/// The form of requests, as the guest's driver negotiated it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    features: u64,
}

impl Layout {
    /// The layout after the driver acknowledged these feature bits.
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
    const fn stateless(self, service: Service) -> bool {
        self.revision_1() && self.features & feature::stateless(service) != 0
    }
}

/// A request of the control queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// Make a session.
    Create(Parameters<'a>),
    /// End a session.
    Destroy {
        /// The service of the session, as the opcode names it.
        service: Service,
        /// The session.
        session: u64,
    },
}

/// The parameters of a session, or of a request without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters<'a> {
    /// A cipher.
    Cipher(CipherParameters<'a>),
    /// A cipher with a hash or MAC.
    Chain {
        /// The cipher.
        cipher: CipherParameters<'a>,
        /// The hash or MAC.
        check: Check<'a>,
        /// Whether the hash is computed on the output of the cipher.
        cipher_first: bool,
    },
    /// A hash or MAC.
    Check(Check<'a>),
    /// Authenticated encryption.
    Aead {
        /// The algorithm.
        algorithm: AeadAlgorithm,
        /// The key.
        key: &'a [u8],
        /// Length of the tag, in bytes.
        tag_len: usize,
        /// The direction.
        direction: Direction,
    },
    /// RSA.
    Rsa {
        /// The padding.
        padding: RsaPadding,
        /// Whether the key is private.
        private: bool,
        /// DER `RSAPrivateKey` or `RSAPublicKey` (RFC 8017 appendix A.1).
        key: &'a [u8],
    },
    /// ECDSA.
    Ecdsa {
        /// The curve.
        curve: Curve,
        /// Whether the key is private.
        private: bool,
        /// DER `ECPrivateKey` (RFC 5915), or a point (SEC 1 section 2.3.3).
        key: &'a [u8],
    },
}

/// The parameters of a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherParameters<'a> {
    /// The algorithm.
    pub algorithm: CipherAlgorithm,
    /// The key.
    pub key: &'a [u8],
    /// The direction.
    pub direction: Direction,
}

/// A hash, or a MAC with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check<'a> {
    /// A hash.
    Hash {
        /// The algorithm.
        algorithm: HashAlgorithm,
        /// Length of the result, in bytes; the digest is cut to it.
        len: usize,
    },
    /// A MAC.
    Mac {
        /// The algorithm.
        algorithm: MacAlgorithm,
        /// The key.
        key: &'a [u8],
        /// Length of the result, in bytes; the MAC is cut to it.
        len: usize,
    },
}

impl Parameters<'_> {
    /// The service to which a session with these parameters belongs.
    #[must_use]
    pub const fn service(&self) -> Service {
        match self {
            Self::Cipher(_) | Self::Chain { .. } => Service::Cipher,
            Self::Check(Check::Hash { .. }) => Service::Hash,
            Self::Check(Check::Mac { .. }) => Service::Mac,
            Self::Aead { .. } => Service::Aead,
            Self::Rsa { .. } | Self::Ecdsa { .. } => Service::Akcipher,
        }
    }
}

/// A request of a data queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The session, or the parameters of a request without one.
    pub subject: Subject<'a>,
    /// Operation to do.
    pub work: Work<'a>,
}

/// The origin of a data request's key and parameters.
#[derive(Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A session.
    Session(u64),
    /// The request itself.
    Inline(Parameters<'a>),
}

/// The work of a data request.
#[derive(Debug, PartialEq, Eq)]
pub enum Work<'a> {
    /// A cipher.
    Cipher {
        /// The direction of the opcode.
        direction: Direction,
        /// The IV, counter or tweak.
        iv: &'a [u8],
        /// The source.
        source: &'a [u8],
        /// Room for the result, in bytes.
        room: usize,
    },
    /// A cipher and a hash or MAC.
    Chain(ChainWork<'a>),
    /// A hash or MAC.
    Check {
        /// The service of the opcode: [`Service::Hash`] or [`Service::Mac`].
        service: Service,
        /// The source.
        source: &'a [u8],
        /// Length of the result, in bytes.
        len: usize,
    },
    /// Authenticated encryption.
    Aead {
        /// The direction of the opcode.
        direction: Direction,
        /// The nonce.
        nonce: &'a [u8],
        /// The source; the tag is its end for a decryption.
        source: &'a [u8],
        /// Additional authenticated data.
        aad: &'a [u8],
        /// Length of the tag, in bytes.
        tag_len: usize,
        /// Room for the result, in bytes.
        room: usize,
    },
    /// A public-key operation.
    Akcipher {
        /// The operation.
        operation: AkcipherOperation,
        /// The source; the signature for a verification.
        source: &'a [u8],
        /// The digest of a verification; empty otherwise.
        digest: &'a [u8],
        /// Room for the result, in bytes.
        room: usize,
    },
}

/// The work of a request that chains a cipher and a hash or MAC. The ranges are inside the source.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainWork<'a> {
    /// The direction of the opcode.
    pub direction: Direction,
    /// The IV, counter or tweak.
    pub iv: &'a [u8],
    /// The source.
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

/// A request for a session's cipher, without its source.
#[derive(Debug, PartialEq, Eq)]
pub struct CipherHead<'a> {
    /// The session.
    pub session: u64,
    /// The direction of the opcode.
    pub direction: Direction,
    /// The IV, counter or tweak.
    pub iv: &'a [u8],
    /// Length of the source, in bytes.
    pub source_len: usize,
    /// Room for the result, in bytes.
    pub room: usize,
}

/// A public-key operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AkcipherOperation {
    /// Encryption with the public key.
    Encrypt,
    /// Decryption with the private key.
    Decrypt,
    /// Signature with the private key; guests before Linux 6.13 use it.
    Sign,
    /// Verification with the public key; guests before Linux 6.13 use it.
    Verify,
}

/// A control opcode that the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlOpcode {
    Create(Service),
    Destroy(Service),
}

impl ControlOpcode {
    fn of(opcode: u32) -> Option<Self> {
        let service = Service::of_opcode(opcode)?;
        let (create, destroy) = match service {
            Service::Akcipher => (spec::AKCIPHER_CREATE_SESSION, spec::AKCIPHER_DESTROY_SESSION),
            Service::Cipher | Service::Hash | Service::Mac | Service::Aead => {
                (spec::CREATE_SESSION, spec::DESTROY_SESSION)
            }
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
///
/// # Errors
/// The status with which to answer it.
pub fn control(layout: Layout, bytes: &[u8]) -> Result<Control<'_>, Status> {
    let mut rest = Cursor(bytes);
    let opcode = rest.part(CONTROL_HEADER_LEN)?.word()?;
    match ControlOpcode::of(opcode).ok_or(Status::NotSupported)? {
        ControlOpcode::Create(service) => {
            let own = fixed_len(service, Form::Session);
            let fixed = rest.fixed(layout, own, CONTROL_LEGACY_LEN)?;
            let kind = data::kind(service, Form::Session, fixed)?;
            let values = Values::read(kind, Form::Session, fixed)?;
            parameters::parameters(kind, &values, &mut rest).map(Control::Create)
        }
        ControlOpcode::Destroy(service) => {
            let session = rest.fixed(layout, 8, CONTROL_LEGACY_LEN)?.long()?;
            Ok(Control::Destroy { service, session })
        }
    }
}
