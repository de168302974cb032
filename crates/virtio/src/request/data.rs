// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests of a data queue.

use super::fields::{Cursor, Field, Form, Kind, Values, fixed_len, type_offset};
use super::parameters::parameters;
use super::{
    AkcipherOperation, ChainWork, CipherHead, Data, Layout, MAX_RESULT_LEN, Subject, Work,
};
use crate::spec::{
    DATA_HEADER_LEN, DATA_LEGACY_LEN, Direction, FLAG_SESSION_MODE, Service, Status,
};

/// Parses a request of a data queue. `writable` is the number of bytes that the guest left for the result, without
/// the status.
///
/// # Errors
/// The status with which to answer it.
pub fn data(layout: Layout, bytes: &[u8], writable: usize) -> Result<Data<'_>, Status> {
    let Head { operation, kind, service, subject, mut body } = head(layout, bytes, writable)?;
    let subject = match subject {
        Some(session) => Subject::Session(session),
        None => Subject::Inline(parameters(kind, &body.values, &mut body.rest)?),
    };
    let work = match kind {
        Kind::Cipher => body.cipher(direction(operation)?)?,
        Kind::Chain => body.chain(direction(operation)?)?,
        Kind::Hash | Kind::Mac if operation == 0 => body.check(service)?,
        Kind::Hash | Kind::Mac => return Err(Status::NotSupported),
        Kind::Aead => body.aead(direction(operation)?)?,
        Kind::Akcipher => body.akcipher(akcipher_operation(operation)?)?,
    };
    Ok(Data { subject, work })
}

/// Parses a request whose source is not in `bytes`. `None` if it is not one of a session's cipher, or has more than its
/// source behind `bytes`.
#[must_use]
pub fn cipher_head(layout: Layout, bytes: &[u8]) -> Option<CipherHead<'_>> {
    let Head { operation, kind: Kind::Cipher, subject: Some(session), mut body, .. } =
        head(layout, bytes, 0).ok()?
    else {
        return None;
    };
    let iv = body.take(Field::IvLen).ok()?;
    let head = CipherHead {
        session,
        direction: direction(operation).ok()?,
        iv,
        source_len: body.values.len(Field::SourceLen).ok()?,
        room: body.values.len(Field::TargetLen).ok()?,
    };
    body.rest.0.is_empty().then_some(head)
}

/// A data request up to its keys, IV and source.
struct Head<'a> {
    operation: u32,
    kind: Kind,
    service: Service,
    /// The session, unless the request has its own parameters.
    subject: Option<u64>,
    body: Body<'a>,
}

fn head(layout: Layout, bytes: &[u8], writable: usize) -> Result<Head<'_>, Status> {
    let mut rest = Cursor(bytes);
    let mut header = rest.part(DATA_HEADER_LEN)?;
    let opcode = header.word()?;
    // The algorithm; that of the session or of the parameters counts. Linux leaves it 0 for ciphers.
    header.word()?;
    let session = header.long()?;
    let flag = header.word()?;
    let service = Service::of_opcode(opcode).ok_or(Status::NotSupported)?;
    let form = if layout.stateless(service) { Form::Stateless } else { Form::Named };
    // In the stateless form a request may still name a session, and then its parameters do not count.
    let named = !layout.revision_1() || flag & FLAG_SESSION_MODE != 0;
    if !named && form == Form::Named {
        return Err(Status::Err);
    }
    let fixed = rest.fixed(layout, fixed_len(service, form), DATA_LEGACY_LEN)?;
    let kind = kind(service, form, fixed)?;
    let values = Values::read(kind, form, fixed)?;
    Ok(Head {
        operation: opcode & 0xff,
        kind,
        service,
        subject: named.then_some(session),
        body: Body { form, values, rest, writable },
    })
}

/// The kind of a request; the type of a cipher request stands behind its other fields.
pub(super) fn kind(service: Service, form: Form, fixed: Cursor<'_>) -> Result<Kind, Status> {
    if service != Service::Cipher {
        return Ok(Kind::of(service));
    }
    let kind = Cursor(fixed.0.get(type_offset(form)..).ok_or(Status::Err)?).word()?;
    match kind {
        1 => Ok(Kind::Cipher),
        2 => Ok(Kind::Chain),
        _ => Err(Status::NotSupported),
    }
}

fn direction(operation: u32) -> Result<Direction, Status> {
    match operation {
        0 => Ok(Direction::Encrypt),
        1 => Ok(Direction::Decrypt),
        _ => Err(Status::NotSupported),
    }
}

fn akcipher_operation(operation: u32) -> Result<AkcipherOperation, Status> {
    match operation {
        0 => Ok(AkcipherOperation::Encrypt),
        1 => Ok(AkcipherOperation::Decrypt),
        2 => Ok(AkcipherOperation::Sign),
        3 => Ok(AkcipherOperation::Verify),
        _ => Err(Status::NotSupported),
    }
}

/// The work of one data request: its fields, and the bytes behind the keys.
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

    fn cipher(mut self, direction: Direction) -> Result<Work<'a>, Status> {
        Ok(Work::Cipher {
            direction,
            iv: self.take(Field::IvLen)?,
            source: self.take(Field::SourceLen)?,
            room: self.room()?,
        })
    }

    fn chain(mut self, direction: Direction) -> Result<Work<'a>, Status> {
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
            let end = start.checked_add(self.values.len(len)?);
            let end = end.filter(|end| *end <= source.len()).ok_or(Status::Err)?;
            Ok((start, end))
        };
        Ok(Work::Chain(ChainWork {
            direction,
            iv,
            source,
            aad,
            cipher: range(Field::CipherStart, Field::CipherLen)?,
            hash: range(Field::HashStart, Field::HashLen)?,
            hash_len,
        }))
    }

    fn check(mut self, service: Service) -> Result<Work<'a>, Status> {
        Ok(Work::Check {
            service,
            source: self.take(Field::SourceLen)?,
            len: self.fits(self.values.len(Field::ResultLen)?)?,
        })
    }

    fn aead(mut self, direction: Direction) -> Result<Work<'a>, Status> {
        Ok(Work::Aead {
            direction,
            nonce: self.take(Field::IvLen)?,
            source: self.take(Field::SourceLen)?,
            aad: self.take(Field::AadLen)?,
            tag_len: self.values.len(Field::TagLen)?,
            room: self.room()?,
        })
    }

    fn akcipher(mut self, operation: AkcipherOperation) -> Result<Work<'a>, Status> {
        let source = self.take(Field::SourceLen)?;
        let (digest, room) = match operation {
            AkcipherOperation::Verify => (self.take(Field::TargetLen)?, 0),
            AkcipherOperation::Encrypt | AkcipherOperation::Decrypt | AkcipherOperation::Sign => {
                (&[][..], self.room()?)
            }
        };
        Ok(Work::Akcipher { operation, source, digest, room })
    }
}
