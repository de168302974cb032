// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests in the legacy form of the specification: header and padded fields.

/// 32-bit little-endian numbers.
#[must_use]
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A control request in the legacy form: header and padded fields.
#[must_use]
pub fn control_request(opcode: u32, fields: &[u8]) -> Vec<u8> {
    let mut request = words(&[opcode, 0, 0, 0]);
    request.extend_from_slice(fields);
    request.resize(72, 0);
    request
}

/// The request for an RSA session in the legacy form.
#[must_use]
pub fn rsa_session(private: bool, key_len: usize, padding: u32, hash: u32) -> Vec<u8> {
    let key_type = if private { 2 } else { 1 };
    let key_len = u32::try_from(key_len).unwrap_or(u32::MAX);
    control_request(0x404, &words(&[1, key_type, key_len, padding, hash]))
}

/// The request for a cipher session in the legacy form. Direction 1 encrypts, 2 decrypts.
#[must_use]
pub fn cipher_session(algorithm: u32, key_len: usize, direction: u32) -> Vec<u8> {
    let key_len = u32::try_from(key_len).unwrap_or(u32::MAX);
    let mut fields = words(&[algorithm, key_len, direction, 0]);
    fields.resize(48, 0);
    fields.extend(words(&[1, 0]));
    control_request(2, &fields)
}

/// A data request in the legacy form: header and padded fields.
#[must_use]
pub fn data_request(opcode: u32, session: u64, fields: &[u8]) -> Vec<u8> {
    let mut request = words(&[opcode, 0]);
    request.extend(session.to_le_bytes());
    request.extend(words(&[0, 0]));
    request.extend_from_slice(fields);
    request.resize(72, 0);
    request
}

/// A public-key request in the legacy form.
#[must_use]
pub fn akcipher_request(opcode: u32, session: u64, source: usize, target: usize) -> Vec<u8> {
    let lengths = [source, target].map(|len| u32::try_from(len).unwrap_or(u32::MAX));
    data_request(opcode, session, &words(&lengths))
}

/// A cipher request in the legacy form.
#[must_use]
pub fn cipher_request(
    opcode: u32,
    session: u64,
    iv: usize,
    source: usize,
    target: usize,
) -> Vec<u8> {
    let lengths = [iv, source, target].map(|len| u32::try_from(len).unwrap_or(u32::MAX));
    let mut fields = words(&lengths);
    fields.resize(40, 0);
    fields.extend(words(&[1, 0]));
    data_request(opcode, session, &fields)
}
