// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One cipher context: direction, nonce, tag, and the records of TLS 1.2.
//!
//! OpenSSL sets key and nonce, then gives additional data and text, and takes or gives the tag; or it announces records
//! and gives each as a whole. The context refuses a message without key or nonce, and a nonce that has encrypted
//! already. AWS-LC computes ([`Ciphering`]).

use std::ffi::CStr;

use crate::algorithms::Aead;
use crate::error::{Error, Reason, Result};
use crate::ffi::handle::owned;
use crate::ffi::ids;
use crate::ffi::params::{entries, integer, octets, set_bytes, set_bytes_ptr, set_unsigned};
use crate::ffi::state::Provider;
use crate::ffi::types::Param;
use crate::local::{self, Ciphering, TAG_LEN};

/// Bytes of the longest nonce of AES-GCM that OpenSSL takes.
const MAX_NONCE: usize = 128;

/// Bytes of every other nonce.
const NONCE_LEN: usize = 12;

/// Bytes at the end of a nonce that count, and that a record of TLS 1.2 with AES-GCM carries (RFC 5288, section 3).
const EXPLICIT_LEN: usize = 8;

/// Bytes of the additional authenticated data of a TLS 1.2 record: number, type, version and length.
const RECORD_HEAD: usize = 13;

/// Bytes of a record's number.
const SEQUENCE_LEN: usize = 8;

/// State of a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NonceState {
    /// None was set.
    Unset,
    /// Set, and the message has not begun.
    Waiting,
    /// The message has begun.
    InUse,
    /// The message has ended, or was abandoned: the nonce encrypts no other.
    Used,
}

/// The context of a cipher.
pub(super) struct AeadContext {
    provider: &'static Provider,
    kind: Aead,
    cipher: Ciphering,
    encrypts: bool,
    has_key: bool,
    nonce: [u8; MAX_NONCE],
    nonce_len: usize,
    state: NonceState,
    /// The nonce has a fixed part and a counter, which goes up with each message.
    counts: bool,
    /// A part of the nonce is random.
    is_random: bool,
    /// Tag of the message that was encrypted, or to be expected of the one to be decrypted.
    tag: [u8; TAG_LEN],
    tag_len: Option<usize>,
    /// Bytes that are authenticated with the record to come.
    record: Option<[u8; RECORD_HEAD]>,
    /// Bytes by which a record grows, once one was announced.
    growth: usize,
}

owned!(AeadContext);

fn refused(text: &'static str) -> Error {
    Error::new(Reason::Message, text)
}

/// A message that is not authentic. As in OpenSSL it leaves nothing on the error stack, where applications would take
/// it for another failure.
fn not_authentic() -> Error {
    Error { silent: true, ..refused("the message is not authentic") }
}

impl AeadContext {
    pub(super) fn new(provider: &'static Provider, kind: Aead) -> Result<Self> {
        Ok(Self {
            provider,
            kind,
            cipher: Ciphering::new(kind)?,
            encrypts: false,
            has_key: false,
            nonce: [0; MAX_NONCE],
            nonce_len: NONCE_LEN,
            state: NonceState::Unset,
            counts: false,
            is_random: false,
            tag: [0; TAG_LEN],
            tag_len: None,
            record: None,
            growth: 0,
        })
    }

    pub(super) fn kind(&self) -> Aead {
        self.kind
    }

    /// The same context at the same place of its message. OpenSSL has the function, although both contexts could
    /// encrypt with one nonce.
    pub(super) fn duplicate(&self) -> Result<Self> {
        Ok(Self { cipher: self.cipher.copy()?, ..*self })
    }

    pub(super) fn is_in_record(&self) -> bool {
        self.record.is_some()
    }

    fn nonce(&self) -> &[u8] {
        &self.nonce[..self.nonce_len]
    }

    fn takes_nonces_of(&self, len: usize) -> bool {
        if self.kind.is_gcm() { (1..=MAX_NONCE).contains(&len) } else { len == NONCE_LEN }
    }

    /// Sets the direction, and a key and a nonce where they are given.
    pub(super) fn begin_message(
        &mut self,
        encrypts: bool,
        key: Option<&[u8]>,
        nonce: Option<&[u8]>,
    ) -> Result<()> {
        if encrypts != self.encrypts && self.state == NonceState::InUse {
            self.state = NonceState::Used;
        }
        self.encrypts = encrypts;
        if key.is_some() || nonce.is_some() {
            self.record = None;
        }
        if let Some(nonce) = nonce {
            if !self.takes_nonces_of(nonce.len()) {
                return Err(refused("the cipher has no nonces of this length"));
            }
            self.nonce[..nonce.len()].copy_from_slice(nonce);
            self.nonce_len = nonce.len();
            self.state = NonceState::Waiting;
        }
        if let Some(key) = key {
            self.cipher.set_key(self.kind, key)?;
            self.has_key = true;
            // Another key: for ChaCha20-Poly1305 OpenSSL takes the same nonce again.
            let again = self.state == NonceState::Used && !self.kind.is_gcm();
            if again || self.state == NonceState::InUse {
                self.state = NonceState::Waiting;
            }
        }
        Ok(())
    }

    /// Begins the message if it has not begun.
    fn begin(&mut self) -> Result<()> {
        if self.state == NonceState::InUse {
            return Ok(());
        }
        if !self.has_key {
            return Err(refused("no key is set"));
        }
        match self.state {
            NonceState::Unset if self.kind.is_gcm() && self.encrypts => self.make_nonce()?,
            NonceState::Unset => return Err(refused("no nonce is set")),
            NonceState::Used if self.kind.is_gcm() || self.encrypts => {
                return Err(refused("the nonce was used: each message needs its own"));
            }
            NonceState::Used | NonceState::Waiting | NonceState::InUse => {}
        }
        self.cipher.start(&self.nonce[..self.nonce_len], self.encrypts)?;
        self.state = NonceState::InUse;
        Ok(())
    }

    /// OpenSSL makes a nonce for an encryption that has none.
    fn make_nonce(&mut self) -> Result<()> {
        if self.nonce_len < NONCE_LEN {
            return Err(refused("a random nonce of this length could come twice"));
        }
        local::random(&mut self.nonce[..self.nonce_len]);
        self.is_random = true;
        Ok(())
    }

    /// Takes additional authenticated data.
    pub(super) fn authenticate(&mut self, aad: &[u8]) -> Result<()> {
        self.begin()?;
        Ok(self.cipher.authenticate(aad)?)
    }

    /// Encrypts or decrypts a part of the message.
    ///
    /// # Safety
    /// As [`Ciphering::process`].
    pub(super) unsafe fn process(
        &mut self,
        out: *mut u8,
        input: *const u8,
        len: usize,
    ) -> Result<()> {
        self.begin()?;
        // SAFETY: by this function's contract.
        Ok(unsafe { self.cipher.process(out, input, len) }?)
    }

    /// Ends the message: makes its tag, or compares it.
    pub(super) fn finish_message(&mut self) -> Result<()> {
        if self.record.take().is_some() {
            self.state = NonceState::Used;
            return Err(refused("a record is processed as a whole"));
        }
        if !self.encrypts && self.tag_len.is_none() {
            return Err(refused("no tag is set"));
        }
        self.begin()?;
        self.end()?;
        self.provider.stats.served_locally(self.kind.row().primitive);
        Ok(())
    }

    /// As [`Self::finish_message`], for a message that has begun; not counted.
    pub(super) fn end(&mut self) -> Result<()> {
        self.state = NonceState::Used;
        if self.encrypts {
            self.tag = self.cipher.tag()?;
            self.tag_len = Some(TAG_LEN);
            return Ok(());
        }
        let expected = self.tag_len.and_then(|len| self.tag.get(..len));
        let is_authentic = expected.is_some_and(|tag| self.cipher.verifies(tag));
        if is_authentic { Ok(()) } else { Err(not_authentic()) }
    }

    /// A record of TLS 1.2, whose head was set before. Returns the length of the result.
    ///
    /// # Safety
    /// As [`Ciphering::process`]; `out` may be null.
    pub(super) unsafe fn record(
        &mut self,
        out: *mut u8,
        input: *const u8,
        len: usize,
    ) -> Result<usize> {
        let before = self.state;
        self.state = NonceState::Used;
        let head = self.record.take().ok_or_else(|| refused("no record was announced"))?;
        if !self.has_key || out.is_null() {
            return Err(refused("a record needs a key and an output"));
        }
        if self.kind.is_gcm() {
            let around = EXPLICIT_LEN + TAG_LEN;
            if !std::ptr::eq(out, input) || len < around {
                return Err(refused("a record of AES-GCM is processed in its place"));
            }
            // SAFETY: `len` bytes, which are more, and written by nothing else.
            let explicit = unsafe { std::slice::from_raw_parts_mut(out, EXPLICIT_LEN) };
            if self.encrypts { self.count(explicit) } else { self.follow(explicit) }?;
            self.state = NonceState::Used;
            // SAFETY: what stands between nonce and tag, by this function's contract; both pointers are equal.
            unsafe {
                let out = out.add(EXPLICIT_LEN);
                let input = input.add(EXPLICIT_LEN);
                self.seal(&head, out, input, len - around)
            }?;
            return Ok(if self.encrypts { len } else { len - around });
        }
        let [.., high, low] = head;
        let payload = usize::from(u16::from_be_bytes([high, low]));
        if before == NonceState::Unset || len != payload + TAG_LEN {
            return Err(refused("the record has another length than was announced, or no nonce"));
        }
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&self.nonce[..NONCE_LEN]);
        let (_, counting) = nonce.split_at_mut(NONCE_LEN - SEQUENCE_LEN);
        counting.iter_mut().zip(head).for_each(|(byte, number)| *byte ^= number);
        self.cipher.start(&nonce, self.encrypts)?;
        // SAFETY: by this function's contract; the tag stands behind the payload.
        unsafe { self.seal(&head, out, input, payload) }?;
        Ok(if self.encrypts { len } else { payload })
    }

    /// Processes the payload of a record, and writes or compares the tag behind it. What is not authentic is wiped.
    ///
    /// # Safety
    /// As [`Ciphering::process`], with [`TAG_LEN`] bytes more on both sides.
    unsafe fn seal(
        &mut self,
        head: &[u8],
        out: *mut u8,
        input: *const u8,
        len: usize,
    ) -> Result<()> {
        self.cipher.authenticate(head)?;
        let mut tag = [0; TAG_LEN];
        if !self.encrypts {
            // SAFETY: by this function's contract. It is read first: the output may lie in the same place.
            unsafe { input.add(len).copy_to_nonoverlapping(tag.as_mut_ptr(), TAG_LEN) };
        }
        // SAFETY: by this function's contract.
        unsafe { self.cipher.process(out, input, len) }?;
        if self.encrypts {
            tag = self.cipher.tag()?;
            // SAFETY: by this function's contract.
            unsafe { out.add(len).copy_from_nonoverlapping(tag.as_ptr(), TAG_LEN) };
        } else if !self.cipher.verifies(&tag) {
            // SAFETY: by this function's contract.
            unsafe { out.write_bytes(0, len) };
            return Err(not_authentic());
        }
        self.provider.stats.served_locally(self.kind.row().primitive);
        Ok(())
    }

    /// Starts a message with a nonce of the fixed part and the counter, writes its end, and counts on.
    fn count(&mut self, end: &mut [u8]) -> Result<()> {
        if !self.counts || !self.has_key || self.nonce_len < EXPLICIT_LEN {
            return Err(refused("no fixed part of the nonce is set"));
        }
        self.cipher.start(&self.nonce[..self.nonce_len], self.encrypts)?;
        let len =
            if (1..=self.nonce_len).contains(&end.len()) { end.len() } else { self.nonce_len };
        let room = end.get_mut(..len).ok_or_else(|| refused("the nonce is longer"))?;
        room.copy_from_slice(&self.nonce[self.nonce_len - len..self.nonce_len]);
        let counter = &mut self.nonce[self.nonce_len - EXPLICIT_LEN..self.nonce_len];
        for byte in counter.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        self.state = NonceState::InUse;
        Ok(())
    }

    /// Starts the decryption of a message whose nonce ends so.
    fn follow(&mut self, end: &[u8]) -> Result<()> {
        let fits = (1..=self.nonce_len).contains(&end.len());
        if !self.counts || !self.has_key || self.encrypts || !fits {
            return Err(refused("no fixed part of the nonce is set, or its end is longer"));
        }
        self.nonce[self.nonce_len - end.len()..self.nonce_len].copy_from_slice(end);
        self.cipher.start(&self.nonce[..self.nonce_len], self.encrypts)?;
        self.state = NonceState::InUse;
        Ok(())
    }

    /// Announces a record.
    fn announce(&mut self, head: &[u8]) -> Result<()> {
        let wrong = || refused("the head of a record has 13 bytes, with a length that fits");
        self.record = None;
        let mut head: [u8; RECORD_HEAD] = head.try_into().map_err(|_| wrong())?;
        let [.., high, low] = head;
        let explicit = if self.kind.is_gcm() { EXPLICIT_LEN } else { 0 };
        let tag = if self.encrypts { 0 } else { TAG_LEN };
        let len = usize::from(u16::from_be_bytes([high, low]))
            .checked_sub(explicit + tag)
            .and_then(|len| u16::try_from(len).ok())
            .ok_or_else(wrong)?;
        head[RECORD_HEAD - 2..].copy_from_slice(&len.to_be_bytes());
        self.record = Some(head);
        self.growth = TAG_LEN;
        Ok(())
    }

    /// Sets the fixed part of the nonces to come.
    ///
    /// # Safety
    /// `param` describes readable memory: of the nonce's length, where its size is -1.
    unsafe fn fix(&mut self, param: &Param) -> Result<()> {
        let wrong = || refused("the fixed part of a nonce has another length");
        let is_whole = param.data_size == usize::MAX && self.kind.is_gcm();
        let len = if is_whole { self.nonce_len } else { param.data_size };
        let fits = if self.kind.is_gcm() {
            // Four bytes are fixed at least, and eight count.
            is_whole || (len >= 4 && len.saturating_add(EXPLICIT_LEN) <= self.nonce_len)
        } else {
            len == NONCE_LEN
        };
        if !fits {
            return Err(wrong());
        }
        // SAFETY: by this function's contract: the length was checked, and is never -1.
        let fixed = unsafe { octets(&Param { data_size: len, ..*param }) }
            .filter(|fixed| fixed.len() == len)
            .ok_or_else(wrong)?;
        self.nonce[..len].copy_from_slice(fixed);
        if self.encrypts && len < self.nonce_len {
            local::random(&mut self.nonce[len..self.nonce_len]);
            self.is_random = true;
        }
        self.counts = self.kind.is_gcm();
        self.state = NonceState::Waiting;
        Ok(())
    }

    /// Sets the tag that a decryption expects, or the length of one.
    ///
    /// # Safety
    /// `param` describes readable memory.
    unsafe fn set_tag(&mut self, param: &Param) -> Result<()> {
        let wrong = || refused("a tag of 1 to 16 bytes is set for a decryption");
        if param.data.is_null() && !self.kind.is_gcm() && (1..=TAG_LEN).contains(&param.data_size) {
            // The length alone; that of an encryption is asked for with the tag.
            if !self.encrypts {
                self.tag_len = Some(param.data_size);
            }
            return Ok(());
        }
        // SAFETY: by this function's contract.
        let tag = unsafe { octets(param) }.ok_or_else(wrong)?;
        let room = self
            .tag
            .get_mut(..tag.len())
            .filter(|room| !room.is_empty() && !self.encrypts)
            .ok_or_else(wrong)?;
        room.copy_from_slice(tag);
        self.tag_len = Some(tag.len());
        Ok(())
    }

    fn set_nonce_len(&mut self, len: Option<i64>) -> Result<()> {
        let len = len
            .and_then(|len| usize::try_from(len).ok())
            .filter(|len| self.takes_nonces_of(*len))
            .ok_or_else(|| refused("the cipher has no nonces of this length"))?;
        if len != self.nonce_len && self.state != NonceState::Unset {
            self.state = NonceState::Used;
        }
        self.nonce_len = len;
        Ok(())
    }

    /// Sets parameters.
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends, whose entries describe readable memory.
    pub(super) unsafe fn note(&mut self, settings: *const Param) -> Result<()> {
        // SAFETY: by this function's contract.
        for param in unsafe { entries(settings) } {
            // SAFETY: the key of an entry is a C string.
            let name = unsafe { CStr::from_ptr(param.key) };
            match name.to_bytes() {
                // SAFETY: by this function's contract.
                b"tag" => unsafe { self.set_tag(param) }?,
                // SAFETY: by this function's contract.
                b"ivlen" => self.set_nonce_len(unsafe { integer(param) })?,
                b"keylen" => {
                    // SAFETY: by this function's contract.
                    let len = unsafe { integer(param) }.and_then(|len| usize::try_from(len).ok());
                    if !self.kind.is_gcm() && len != Some(self.kind.row().key_len) {
                        return Err(refused("the cipher has no keys of this length"));
                    }
                }
                b"tlsaad" => {
                    // SAFETY: by this function's contract.
                    self.announce(unsafe { octets(param) }.unwrap_or_default())?;
                }
                // SAFETY: by this function's contract.
                b"tlsivfixed" => unsafe { self.fix(param) }?,
                b"tlsivinv" if self.kind.is_gcm() => {
                    // SAFETY: by this function's contract.
                    self.follow(unsafe { octets(param) }.unwrap_or_default())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Answers for parameters.
    ///
    /// # Safety
    /// `request` is null or an array that a null key ends, whose entries describe writable memory.
    pub(super) unsafe fn answer_all(&mut self, request: *mut Param) -> Result<()> {
        // SAFETY: by this function's contract.
        let count = unsafe { entries(request) }.count();
        for index in 0..count {
            // SAFETY: one of the entries counted above, and the application passes the array to be written.
            let param = unsafe { &mut *request.add(index) };
            // SAFETY: by this function's contract.
            if !unsafe { self.answer(param) } {
                return Err(refused("a parameter is not known yet, or has another type or size"));
            }
        }
        Ok(())
    }

    /// Answers one parameter, and returns whether it is known and fits.
    ///
    /// # Safety
    /// `param` has a key, and describes writable memory.
    unsafe fn answer(&mut self, param: &mut Param) -> bool {
        // SAFETY: by this function's contract.
        let name = unsafe { CStr::from_ptr(param.key) };
        let number = match name.to_bytes() {
            b"ivlen" => self.nonce_len,
            b"keylen" => self.kind.row().key_len,
            b"taglen" => self.tag_len.unwrap_or(TAG_LEN),
            b"tlsaadpad" => self.growth,
            b"iv-generated" => self.is_random.into(),
            // SAFETY: by this function's contract.
            _ => return unsafe { self.answer_bytes(name, param) },
        };
        // SAFETY: by this function's contract.
        unsafe { set_unsigned(param, number as u64) }
    }

    /// The same for nonces and tags, which are bytes.
    ///
    /// # Safety
    /// `param` describes writable memory.
    unsafe fn answer_bytes(&mut self, name: &CStr, param: &mut Param) -> bool {
        match name.to_bytes() {
            b"iv" | b"updated-iv" if self.kind.is_gcm() => {
                let nonce = self.nonce();
                self.state != NonceState::Unset
                    && nonce.len() <= param.data_size
                    // SAFETY: by this function's contract; the nonce lives as long as the context, at its place.
                    && unsafe { set_bytes(param, nonce) || set_bytes_ptr(param, nonce) }
            }
            b"tag" => {
                let tag = self
                    .tag
                    .get(..param.data_size)
                    .filter(|tag| !tag.is_empty() && self.encrypts && self.tag_len.is_some());
                // SAFETY: by this function's contract.
                tag.is_some_and(|tag| unsafe { set_bytes(param, tag) })
            }
            b"tlsivgen" if self.kind.is_gcm() => {
                let is_place = param.data_type == ids::param::OCTET_STRING.unsigned_abs();
                if !is_place || param.data.is_null() || param.data_size > isize::MAX as usize {
                    return false;
                }
                // A size of zero stands for the whole nonce.
                let len = if param.data_size == 0 { self.nonce_len } else { param.data_size };
                // SAFETY: not null, and writable for its size by this function's contract.
                let end = unsafe { std::slice::from_raw_parts_mut(param.data.cast::<u8>(), len) };
                self.count(end).is_ok()
            }
            _ => true,
        }
    }
}
