// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`BulkSession`]: one key of one algorithm in the kernel, and the bounds on its messages.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

use zeroize::Zeroizing;

use crate::algorithm::{BulkAlgorithm, BulkDirection, BulkInterface, BulkKind};
use crate::sys::{self, Order};

/// Bytes of a block of AES.
pub const BLOCK_LEN: usize = 16;

/// Bytes of the tag of AES-GCM.
pub const TAG_LEN: usize = 16;

/// Bytes of a nonce of AES-GCM: the kernel takes no other length.
pub const NONCE_LEN: usize = 12;

/// Longest message of one call, in bytes: `AF_ALG` takes what fits its socket's buffer, 208 KiB by default, and 16
/// pages per call.
pub const MAX_MESSAGE: usize = 60 * 1024;

/// Most bytes of additional authenticated data (AAD): `/dev/crypto` takes a page.
pub const MAX_AAD_LEN: usize = 4096;

/// Most sessions of one process. Each takes up to two file descriptors, of which a process has 1,024 by default.
const MAX_SESSIONS: usize = 64;

/// One key of one algorithm in the kernel.
#[derive(Debug)]
pub struct BulkSession {
    algorithm: BulkAlgorithm,
    transport: Transport,
    /// The process that opened the session. Two processes that share its descriptors would get each other's results.
    process: u32,
    _place: Place,
}

#[derive(Debug)]
enum Transport {
    AfAlg {
        /// Keeps the key.
        _algorithm: OwnedFd,
        operations: OwnedFd,
    },
    DevCrypto {
        device: File,
        session: u32,
    },
}

/// One of the [`MAX_SESSIONS`] that a process may have.
#[derive(Debug)]
struct Place;

static SESSIONS: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn take() -> io::Result<Self> {
        if SESSIONS.fetch_add(1, Ordering::Relaxed) < MAX_SESSIONS {
            return Ok(Self);
        }
        SESSIONS.fetch_sub(1, Ordering::Relaxed);
        Err(io::Error::other("this process has as many sessions in the kernel as it may"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        SESSIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn refused(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn short() -> io::Error {
    io::Error::other("the kernel took or gave another number of bytes")
}

impl BulkSession {
    /// Gives the kernel a key; an empty one for a hash.
    ///
    /// # Errors
    /// The kernel or the device lacks the algorithm, or this process has 64 sessions already.
    pub fn open(
        interface: BulkInterface,
        algorithm: BulkAlgorithm,
        key: &[u8],
    ) -> io::Result<Self> {
        let place = Place::take()?;
        let transport = match interface {
            BulkInterface::AfAlg => Self::open_socket(algorithm, key)?,
            BulkInterface::DevCrypto => Self::open_device(algorithm, key)?,
        };
        Ok(Self { algorithm, transport, process: process::id(), _place: place })
    }

    fn open_socket(algorithm: BulkAlgorithm, key: &[u8]) -> io::Result<Transport> {
        let kind: &[u8] = match algorithm.kind() {
            BulkKind::Cipher => b"skcipher",
            BulkKind::Aead => b"aead",
            BulkKind::Hash(_) => b"hash",
        };
        let socket = sys::algorithm(kind, algorithm.kernel_name().as_bytes())?;
        if !key.is_empty() {
            sys::set_key(&socket, key)?;
        }
        if algorithm.kind() == BulkKind::Aead {
            sys::set_tag_len(&socket, TAG_LEN)?;
        }
        let operations = sys::operations(&socket)?;
        Ok(Transport::AfAlg { _algorithm: socket, operations })
    }

    fn open_device(algorithm: BulkAlgorithm, key: &[u8]) -> io::Result<Transport> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/crypto")?;
        let (cipher, mac) = algorithm.numbers();
        let session = sys::begin_session(device.as_fd(), cipher, mac, key)?;
        Ok(Transport::DevCrypto { device, session })
    }

    /// Whether the session belongs to this process, and not to one that it was forked from.
    fn check_process(&self) -> io::Result<()> {
        if self.process == process::id() {
            return Ok(());
        }
        Err(refused("the session belongs to the process that this one was forked from"))
    }

    /// Encrypts or decrypts whole blocks into `out`, which is as long.
    ///
    /// # Errors
    /// The kernel refused or failed; `out` may have been written.
    pub fn crypt(
        &mut self,
        direction: BulkDirection,
        iv: &[u8; BLOCK_LEN],
        input: &[u8],
        out: &mut [u8],
    ) -> io::Result<()> {
        self.check_process()?;
        let fits = self.algorithm.kind() == BulkKind::Cipher
            && input.len() <= MAX_MESSAGE
            && input.len() == out.len()
            && input.len().is_multiple_of(BLOCK_LEN);
        if !fits {
            return Err(refused("the message does not fit the cipher"));
        }
        match &mut self.transport {
            Transport::AfAlg { operations, .. } => {
                let order = Order { direction, iv, authenticated: None };
                exchange(
                    operations,
                    Some(&order),
                    &[IoSlice::new(input)],
                    &mut [IoSliceMut::new(out)],
                )
            }
            Transport::DevCrypto { device, session } => {
                sys::crypt(device.as_fd(), *session, direction, iv, input, out)
            }
        }
    }

    /// Encrypts a message into `out`, which is as long, and returns its tag.
    ///
    /// # Errors
    /// The kernel refused or failed; `out` may have been written.
    pub fn seal(
        &mut self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        input: &[u8],
        out: &mut [u8],
    ) -> io::Result<[u8; TAG_LEN]> {
        self.check_process()?;
        self.check_aead(aad, input, out)?;
        let mut tag = [0; TAG_LEN];
        let order =
            Order { direction: BulkDirection::Encrypt, iv: nonce, authenticated: Some(aad.len()) };
        match &mut self.transport {
            Transport::AfAlg { operations, .. } => {
                let mut aad_copy = vec![0; aad.len()];
                let parts = [IoSlice::new(aad), IoSlice::new(input)];
                exchange(
                    operations,
                    Some(&order),
                    &parts,
                    &mut [
                        IoSliceMut::new(&mut aad_copy),
                        IoSliceMut::new(out),
                        IoSliceMut::new(&mut tag),
                    ],
                )?;
            }
            Transport::DevCrypto { device, session } => {
                let mut whole = vec![0; input.len() + TAG_LEN];
                let device = device.as_fd();
                sys::crypt_auth(device, *session, &order, aad, input, &mut whole, TAG_LEN)?;
                let (text, found) = whole.split_at(input.len());
                out.copy_from_slice(text);
                tag.copy_from_slice(found);
            }
        }
        Ok(tag)
    }

    /// Decrypts a message into `out`, which is as long, if this is its tag.
    ///
    /// # Errors
    /// The message is not authentic, or the kernel refused or failed; `out` may have been written.
    pub fn open_sealed(
        &mut self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        input: &[u8],
        tag: &[u8; TAG_LEN],
        out: &mut [u8],
    ) -> io::Result<()> {
        self.check_process()?;
        self.check_aead(aad, input, out)?;
        let order =
            Order { direction: BulkDirection::Decrypt, iv: nonce, authenticated: Some(aad.len()) };
        match &mut self.transport {
            Transport::AfAlg { operations, .. } => {
                let mut aad_copy = vec![0; aad.len()];
                let parts = [IoSlice::new(aad), IoSlice::new(input), IoSlice::new(tag)];
                exchange(
                    operations,
                    Some(&order),
                    &parts,
                    &mut [IoSliceMut::new(&mut aad_copy), IoSliceMut::new(out)],
                )
            }
            Transport::DevCrypto { device, session } => {
                let sealed = [input, tag].concat();
                let mut whole = Zeroizing::new(vec![0; sealed.len()]);
                let device = device.as_fd();
                sys::crypt_auth(device, *session, &order, aad, &sealed, &mut whole, TAG_LEN)?;
                out.copy_from_slice(&whole[..input.len()]);
                Ok(())
            }
        }
    }

    fn check_aead(&self, aad: &[u8], input: &[u8], out: &[u8]) -> io::Result<()> {
        let fits = self.algorithm.kind() == BulkKind::Aead
            && (1..=MAX_MESSAGE).contains(&input.len())
            && aad.len() <= MAX_AAD_LEN
            && input.len() == out.len();
        if fits { Ok(()) } else { Err(refused("the message does not fit the cipher")) }
    }

    /// Hashes a whole message into `out`, which has the length of the result.
    ///
    /// # Errors
    /// The kernel refused or failed.
    pub fn hash(&mut self, message: &[u8], out: &mut [u8]) -> io::Result<()> {
        self.check_process()?;
        let fits = self.algorithm.kind() == BulkKind::Hash(out.len())
            && (1..=MAX_MESSAGE).contains(&message.len());
        if !fits {
            return Err(refused("the message does not fit the hash"));
        }
        match &mut self.transport {
            Transport::AfAlg { operations, .. } => {
                exchange(operations, None, &[IoSlice::new(message)], &mut [IoSliceMut::new(out)])
            }
            Transport::DevCrypto { device, session } => {
                sys::hash(device.as_fd(), *session, message, out)
            }
        }
    }
}

impl Drop for BulkSession {
    fn drop(&mut self) {
        // The session of a parent continues.
        if let Transport::DevCrypto { device, session } = &self.transport
            && self.process == process::id()
        {
            sys::end_session(device.as_fd(), *session);
        }
    }
}

/// Sends one message and receives its result, both whole.
fn exchange(
    socket: &OwnedFd,
    order: Option<&Order<'_>>,
    parts: &[IoSlice<'_>],
    results: &mut [IoSliceMut<'_>],
) -> io::Result<()> {
    let sent: usize = parts.iter().map(|part| part.len()).sum();
    let expected: usize = results.iter().map(|part| part.len()).sum();
    if sys::send(socket, order, parts)? != sent || sys::receive(socket, results)? != expected {
        return Err(short());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_an_interface_says_so_and_keeps_its_places() {
        for _ in 0..2 * MAX_SESSIONS {
            // A name that no kernel has; on some machines the whole family is missing.
            let missing = sys::algorithm(b"skcipher", b"millrace(none)");
            missing.expect_err("no such algorithm");
            if !std::path::Path::new("/dev/crypto").exists() {
                let opened =
                    BulkSession::open(BulkInterface::DevCrypto, BulkAlgorithm::AesCbc, &[7; 16]);
                assert_eq!(opened.expect_err("no device").kind(), io::ErrorKind::NotFound);
            }
        }
        assert_eq!(SESSIONS.load(Ordering::Relaxed), 0, "nothing is left of what failed");
    }
}
