// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sessions of one device.
//!
//! Session ids are numbers of this device only, and no id is used twice. A guest that reboots or crashes leaves its
//! sessions behind, and no message says so. The number of sessions is therefore bounded, an idle one gives way to a
//! new one, and a fresh control ring ends all of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use crate::job_target::JobTarget;
use crate::keys::{Form, GuestKey, GuestKeys};
use crate::primitives::{self, Aead, CipherContext};
use crate::request::{CipherParameters, HashOrMac, Parameters};
use crate::spec::{CryptoService, Direction, HashAlgorithm, MacAlgorithm, RsaPadding, Status};

/// Sessions of one device: sixteen times those of QEMU's own device, at up to 1 KiB each.
pub const MAX_SESSIONS: usize = 4096;

/// Time without a request after which a session gives way to a new one when there are [`MAX_SESSIONS`]. A session in
/// use by a Linux guest lives for milliseconds, except those of ciphers.
pub const IDLE_SESSION: Duration = Duration::from_secs(60);

/// The key and parameters of a session, ready for use.
pub(crate) enum Material {
    Cipher(CipherContext),
    Chain { cipher: CipherContext, check: OwnedHashOrMac, cipher_first: bool },
    HashOrMac(OwnedHashOrMac),
    Aead { aead: Aead, tag_len: usize, direction: Direction },
    Rsa { key: Arc<GuestKey>, padding: RsaPadding },
    Ecdsa(Arc<GuestKey>),
}

/// A hash, or a MAC with its key.
pub(crate) enum OwnedHashOrMac {
    Hash { algorithm: HashAlgorithm, len: usize },
    Mac { algorithm: MacAlgorithm, key: Zeroizing<Vec<u8>>, len: usize },
}

impl OwnedHashOrMac {
    fn new(check: &HashOrMac<'_>) -> Self {
        match *check {
            HashOrMac::Hash { algorithm, len } => Self::Hash { algorithm, len },
            HashOrMac::Mac { algorithm, key, len } => {
                Self::Mac { algorithm, key: key.to_vec().into(), len }
            }
        }
    }

    pub(crate) fn service(&self) -> CryptoService {
        match self {
            Self::Hash { .. } => CryptoService::Hash,
            Self::Mac { .. } => CryptoService::Mac,
        }
    }

    /// The first `len` bytes of the digest or MAC; `len` is that of the session.
    pub(crate) fn run(&self, data: &[u8], len: usize) -> Result<Vec<u8>, Status> {
        let (result, own) = match self {
            Self::Hash { algorithm, len } => (primitives::hash(*algorithm, data), *len),
            Self::Mac { algorithm, key, len } => (primitives::mac(*algorithm, key, data), *len),
        };
        if len != own {
            return Err(Status::Err);
        }
        let mut result = result.ok_or(Status::Err)?;
        result.truncate(len);
        Ok(result)
    }
}

impl Material {
    /// Prepares a key with its parameters.
    pub(crate) fn new(
        parameters: &Parameters<'_>,
        keys: &mut GuestKeys,
        target: &mut dyn JobTarget,
        now: Instant,
    ) -> Result<Self, Status> {
        match parameters {
            Parameters::Cipher(parameters) => cipher(parameters).map(Self::Cipher),
            Parameters::Chain { cipher: parameters, check, cipher_first } => Ok(Self::Chain {
                cipher: cipher(parameters)?,
                check: OwnedHashOrMac::new(check),
                cipher_first: *cipher_first,
            }),
            Parameters::HashOrMac(check) => Ok(Self::HashOrMac(OwnedHashOrMac::new(check))),
            Parameters::Aead { algorithm, key, tag_len, direction } => Ok(Self::Aead {
                aead: Aead::new(*algorithm, key, *tag_len).ok_or(Status::Err)?,
                tag_len: *tag_len,
                direction: *direction,
            }),
            Parameters::Rsa { padding, private, key } => {
                let form = if *private { Form::RsaPrivate } else { Form::RsaPublic };
                Ok(Self::Rsa { key: keys.get(form, key, target, now)?, padding: *padding })
            }
            Parameters::Ecdsa { curve, private, key } => {
                let form = if *private { Form::EcPrivate(*curve) } else { Form::EcPublic(*curve) };
                keys.get(form, key, target, now).map(Self::Ecdsa)
            }
        }
    }

    fn service(&self) -> CryptoService {
        match self {
            Self::Cipher(_) | Self::Chain { .. } => CryptoService::Cipher,
            Self::HashOrMac(check) => check.service(),
            Self::Aead { .. } => CryptoService::Aead,
            Self::Rsa { .. } | Self::Ecdsa(_) => CryptoService::Akcipher,
        }
    }
}

fn cipher(parameters: &CipherParameters<'_>) -> Result<CipherContext, Status> {
    let CipherParameters { algorithm, key, direction } = *parameters;
    CipherContext::new(algorithm, key, direction).ok_or(Status::Err)
}

/// The sessions of one device, at most [`MAX_SESSIONS`]; an idle one gives way to a new one.
pub(crate) struct GuestSessions {
    sessions: HashMap<u64, Session>,
    next: u64,
    /// Sessions that gave way since the last [`Self::take_evicted`].
    evicted: Vec<u64>,
}

struct Session {
    material: Material,
    used: Instant,
}

impl Default for GuestSessions {
    fn default() -> Self {
        Self { sessions: HashMap::new(), next: 1, evicted: Vec::new() }
    }
}

impl GuestSessions {
    /// Adds a session and returns its id.
    ///
    /// # Errors
    /// [`Status::NoSpace`] if there are [`MAX_SESSIONS`], all of them in use.
    pub(crate) fn add(&mut self, material: Material, now: Instant) -> Result<u64, Status> {
        if self.sessions.len() >= MAX_SESSIONS {
            let idle = |session: &Session| now.saturating_duration_since(session.used);
            let given_up = self.sessions.extract_if(|_, session| idle(session) >= IDLE_SESSION);
            self.evicted.extend(given_up.map(|(id, _)| id));
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(Status::NoSpace);
        }
        let id = self.next;
        self.next += 1;
        self.restore(id, material, now);
        Ok(id)
    }

    /// Adds a session that had this id in a former process.
    pub(crate) fn restore(&mut self, id: u64, material: Material, now: Instant) {
        let session = Session { material, used: now };
        self.sessions.insert(id, session);
    }

    /// The first id that no session has had; `least` if a former process gave out those below.
    pub(crate) fn continue_at(&mut self, least: u64) {
        self.next = self.next.max(least);
    }

    /// The sessions that gave way to others since the last call.
    pub(crate) fn take_evicted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.evicted)
    }

    /// The material of a session.
    ///
    /// # Errors
    /// [`Status::InvalidSession`] for an id that this device has not given out, or that is destroyed.
    pub(crate) fn get(&mut self, id: u64, now: Instant) -> Result<&mut Material, Status> {
        let session = self.sessions.get_mut(&id).ok_or(Status::InvalidSession)?;
        session.used = now;
        Ok(&mut session.material)
    }

    /// Ends a session. Requests under way with its key end normally.
    ///
    /// # Errors
    /// [`Status::InvalidSession`] as for [`Self::get`], and for a session of another service.
    pub(crate) fn remove(&mut self, service: CryptoService, id: u64) -> Result<(), Status> {
        match self.sessions.get(&id) {
            Some(session) if session.material.service() == service => {
                self.sessions.remove(&id);
                Ok(())
            }
            Some(_) | None => Err(Status::InvalidSession),
        }
    }

    /// Ends all sessions.
    pub(crate) fn clear(&mut self) {
        self.sessions.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }
}

impl fmt::Debug for GuestSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.sessions.len())
    }
}
