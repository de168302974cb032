// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests of a data queue.

use super::fields::{Cursor, Field, Form, Kind, Values, fixed_len, type_offset};
use super::parameters::parameters;
use super::{
    AkcipherOperation, ChainOperation, CipherHead, DataOperation, DataRequest, MAX_RESULT_LEN,
    RequestFormat, RequestMode,
};
use crate::spec::{
    CryptoService, DATA_HEADER_LEN, DATA_LEGACY_LEN, Direction, FLAG_SESSION_MODE, Status,
};

/// Parses a request of a data queue. `writable` is the number of bytes that the guest left for the result, without
/// the status.
pub fn data(
    format: RequestFormat,
    bytes: &[u8],
    writable: usize,
) -> Result<DataRequest<'_>, Status> {
    let Head { opcode, kind, service, session, mut body } = head(format, bytes, writable)?;
    let mode = match session {
        Some(session) => RequestMode::Session(session),
        None => RequestMode::Stateless(parameters(kind, &body.values, &mut body.rest)?),
    };
    let operation = match kind {
        Kind::Cipher => body.cipher(direction(opcode)?)?,
        Kind::Chain => body.chain(direction(opcode)?)?,
        Kind::Hash | Kind::Mac if opcode == 0 => body.hash_or_mac(service)?,
        Kind::Hash | Kind::Mac => return Err(Status::NotSupported),
        Kind::Aead => body.aead(direction(opcode)?)?,
        Kind::Akcipher => body.akcipher(akcipher_operation(opcode)?)?,
    };
    Ok(DataRequest { mode, operation })
}

/// Parses a request whose source is not in `bytes`. `None` if it is not one of a session's cipher, or has more than its
/// source behind `bytes`.
#[must_use]
pub fn cipher_head(format: RequestFormat, bytes: &[u8]) -> Option<CipherHead<'_>> {
    let Head { opcode, kind: Kind::Cipher, session: Some(session), mut body, .. } =
        head(format, bytes, 0).ok()?
    else {
        return None;
    };
    let iv = body.take(Field::IvLen).ok()?;
    let head = CipherHead {
        session,
        direction: direction(opcode).ok()?,
        iv,
        source_len: body.values.len(Field::SourceLen).ok()?,
        room: body.values.len(Field::TargetLen).ok()?,
    };
    body.rest.0.is_empty().then_some(head)
}

/// A data request up to its keys, IV and source.
struct Head<'a> {
    /// The low byte of the opcode: the operation within the service.
    opcode: u32,
    kind: Kind,
    service: CryptoService,
    /// The session, unless the request has its own parameters.
    session: Option<u64>,
    body: Body<'a>,
}

fn head(format: RequestFormat, bytes: &[u8], writable: usize) -> Result<Head<'_>, Status> {
    let mut rest = Cursor(bytes);
    let mut header = rest.part(DATA_HEADER_LEN)?;
    let opcode = header.word()?;
    // The algorithm; that of the session or of the parameters counts. Linux leaves it 0 for ciphers.
    header.word()?;
    let session = header.long()?;
    let flag = header.word()?;
    let service = CryptoService::of_opcode(opcode).ok_or(Status::NotSupported)?;
    let form = if format.stateless(service) { Form::Stateless } else { Form::Named };
    // In the stateless form a request may still name a session, and then its parameters do not count.
    let named = !format.revision_1() || flag & FLAG_SESSION_MODE != 0;
    if !named && form == Form::Named {
        return Err(Status::Err);
    }
    let fixed = rest.fixed(format, fixed_len(service, form), DATA_LEGACY_LEN)?;
    let kind = kind(service, form, fixed)?;
    let values = Values::read(kind, form, fixed)?;
    Ok(Head {
        opcode: opcode & 0xff,
        kind,
        service,
        session: named.then_some(session),
        body: Body { form, values, rest, writable },
    })
}

/// The kind of a request; the type of a cipher request stands behind its other fields.
pub(super) fn kind(service: CryptoService, form: Form, fixed: Cursor<'_>) -> Result<Kind, Status> {
    if service != CryptoService::Cipher {
        return Ok(Kind::of(service));
    }
    let kind = Cursor(fixed.0.get(type_offset(form)..).ok_or(Status::Err)?).word()?;
    match kind {
        1 => Ok(Kind::Cipher),
        2 => Ok(Kind::Chain),
        _ => Err(Status::NotSupported),
    }
}

fn direction(opcode: u32) -> Result<Direction, Status> {
    match opcode {
        0 => Ok(Direction::Encrypt),
        1 => Ok(Direction::Decrypt),
        _ => Err(Status::NotSupported),
    }
}

fn akcipher_operation(opcode: u32) -> Result<AkcipherOperation, Status> {
    match opcode {
        0 => Ok(AkcipherOperation::Encrypt),
        1 => Ok(AkcipherOperation::Decrypt),
        2 => Ok(AkcipherOperation::Sign),
        3 => Ok(AkcipherOperation::Verify),
        _ => Err(Status::NotSupported),
    }
}

/// The operation of one data request: its fields, and the bytes behind the keys.
struct Body<'a> {
    form: Form,
    values: Values,
    rest: Cursor<'a>,
    writable: usize,
}

impl<'a> Body<'a> {
    /// `len`, if the guest left room for a result of that many bytes.
    fn fits(&self, len: usize) -> Result<usize, Status> {
        if len <= self.writable && len <= MAX_RESULT_LEN { Ok(len) } else { Err(Status::Err) }
    }

    /// The room that the request asks for its result.
    fn room(&self) -> Result<usize, Status> {
        self.fits(self.values.len(Field::TargetLen)?)
    }

    /// The bytes whose length is in this field.
    fn take(&mut self, len: Field) -> Result<&'a [u8], Status> {
        self.rest.take(self.values.len(len)?)
    }

    fn cipher(mut self, direction: Direction) -> Result<DataOperation<'a>, Status> {
        Ok(DataOperation::Cipher {
            direction,
            iv: self.take(Field::IvLen)?,
            source: self.take(Field::SourceLen)?,
            room: self.room()?,
        })
    }

    fn chain(mut self, direction: Direction) -> Result<DataOperation<'a>, Status> {
        let iv = self.take(Field::IvLen)?;
        // The specification has the additional data after the source with a session, and before it without.
        let (source, aad) = if self.form == Form::Stateless {
            let aad = self.take(Field::AadLen)?;
            (self.take(Field::SourceLen)?, aad)
        } else {
            let source = self.take(Field::SourceLen)?;
            (source, self.take(Field::AadLen)?)
        };
        // The device answers with the whole source, of which it changes the part that the cipher covers.
        let room = self.values.len(Field::TargetLen)?;
        if room != source.len() {
            return Err(Status::Err);
        }
        let hash_len = self.values.len(Field::ResultLen)?;
        self.fits(room.checked_add(hash_len).ok_or(Status::Err)?)?;
        let range = |start: Field, len: Field| {
            let start = self.values.len(start)?;
            let end = start
                .checked_add(self.values.len(len)?)
                .filter(|end| *end <= source.len())
                .ok_or(Status::Err)?;
            Ok((start, end))
        };
        Ok(DataOperation::Chain(ChainOperation {
            direction,
            iv,
            source,
            aad,
            cipher: range(Field::CipherStart, Field::CipherLen)?,
            hash: range(Field::HashStart, Field::HashLen)?,
            hash_len,
        }))
    }

    fn hash_or_mac(mut self, service: CryptoService) -> Result<DataOperation<'a>, Status> {
        Ok(DataOperation::HashOrMac {
            service,
            source: self.take(Field::SourceLen)?,
            len: self.fits(self.values.len(Field::ResultLen)?)?,
        })
    }

    fn aead(mut self, direction: Direction) -> Result<DataOperation<'a>, Status> {
        Ok(DataOperation::Aead {
            direction,
            nonce: self.take(Field::IvLen)?,
            source: self.take(Field::SourceLen)?,
            aad: self.take(Field::AadLen)?,
            tag_len: self.values.len(Field::TagLen)?,
            room: self.room()?,
        })
    }

    fn akcipher(mut self, operation: AkcipherOperation) -> Result<DataOperation<'a>, Status> {
        let source = self.take(Field::SourceLen)?;
        let (digest, room) = match operation {
            AkcipherOperation::Verify => (self.take(Field::TargetLen)?, 0),
            AkcipherOperation::Encrypt | AkcipherOperation::Decrypt | AkcipherOperation::Sign => {
                (&[][..], self.room()?)
            }
        };
        Ok(DataOperation::Akcipher { operation, source, digest, room })
    }
}
