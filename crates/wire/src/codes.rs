// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tables of the codes on the wire. `millrace_operation` defines the codes of operations, hashes, backends, job errors
//! and key errors; this module has the codes that occur only on the wire.

use millrace_operation::{KeyError, KeyKind, KeyType, MAX_KEY_NAME_LEN, MAX_PRIVATE_KEY_LEN};

use crate::error::WireError;
use crate::message::KeyRefusal;
use crate::report::EDGE_COUNTERS;
use crate::{MAX_NAME_LEN, MAX_PAYLOAD_LEN, MAX_SPKI_LEN};

/// One kind of message: its code in the frame header, its name, and its longest payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageKind {
    /// Code in the frame header.
    pub code: u8,
    /// Name, as in `crate::message` and in the specification.
    pub name: &'static str,
    /// Bound on the payload, in bytes. The decoder refuses a longer one when it has read the header.
    pub max_payload: usize,
}

macro_rules! kinds {
    ($(#[$doc:meta])* $table:ident: $($constant:ident = $code:literal $name:literal $max:expr;)*) => {
        $(
            #[doc = concat!("Kind of `", $name, "`.")]
            pub const $constant: MessageKind = MessageKind { code: $code, name: $name, max_payload: $max };
        )*
        $(#[$doc])*
        pub const $table: &[MessageKind] = &[$($constant),*];
    };
}

kinds! {
    /// Every kind that clients send, in the order of the codes, all below 0x80.
    CLIENT_KINDS:
    HELLO = 0x01 "Hello" 8 + 2 + 2 + 8 + 1 + MAX_NAME_LEN;
    OPEN_KEY = 0x02 "OpenKey" 4 + 1 + 1 + MAX_KEY_NAME_LEN;
    IMPORT_KEY = 0x03 "ImportKey" 4 + 2 + MAX_PRIVATE_KEY_LEN;
    CLOSE_KEY = 0x04 "CloseKey" 4;
    SUBMIT = 0x05 "Submit" MAX_PAYLOAD_LEN;
    CANCEL = 0x06 "Cancel" 8;
    PING = 0x07 "Ping" 8;
    REPORT = 0x08 "Report" 1 + EDGE_COUNTERS * REPORTED_LEN;
    DESCRIBE = 0x09 "Describe" 0;
}

kinds! {
    /// Every kind that nodes send, in the order of the codes, all from 0x80.
    NODE_KINDS:
    WELCOME = 0x81 "Welcome" 8 + 2 + 8 + 1 + MAX_NAME_LEN + 4 + 4;
    KEY_OPENED = 0x82 "KeyOpened" 4 + 4 + 1 + 2 + 2 + MAX_SPKI_LEN + 4 + 4;
    KEY_REFUSED = 0x83 "KeyRefused" 4 + 1 + 1;
    COMPLETE = 0x84 "Complete" MAX_PAYLOAD_LEN;
    PONG = 0x85 "Pong" 8;
    DRAIN = 0x86 "Drain" 0;
    FAULT = 0x87 "Fault" 1;
    DESCRIPTION = 0x88 "Description" 1 + MAX_NAME_LEN + 1 + EDGE_COUNTERS * REPORTED_LEN;
    RETRY_AFTER = 0x89 "RetryAfter" 4 + 4;
}

/// Bytes of one counter in a `Report`: its code and its value.
const REPORTED_LEN: usize = 1 + 8;

/// Tag of [`crate::message::KeySelector::Name`].
pub const SELECT_NAME: u8 = 0x01;
/// Tag of [`crate::message::KeySelector::SpkiSha256`].
pub const SELECT_SPKI_SHA256: u8 = 0x02;

/// Status of a job that has an output. Every other status is a
/// [`JobError`](millrace_operation::JobError).
pub const STATUS_OK: u8 = 0x00;
/// `served_by` of a job that no backend served.
pub const SERVED_BY_NONE: u8 = 0x00;

impl KeyRefusal {
    /// Code and name of every refusal. `key-error` comes with a [`KeyError`] code, the others with 0.
    pub const CODES: &'static [(u8, &'static str)] = &[
        (0x01, "no-such-key"),
        (0x02, "key-error"),
        (0x03, "too-many-keys"),
        (0x04, "draining"),
        (0x05, "import-disabled"),
    ];

    /// The two bytes on the wire: the refusal, and the [`KeyError`] or 0.
    #[must_use]
    pub fn codes(self) -> (u8, u8) {
        match self {
            Self::NoSuchKey => (0x01, 0),
            Self::Key(error) => (0x02, error.code()),
            Self::TooManyKeys => (0x03, 0),
            Self::Draining => (0x04, 0),
            Self::ImportDisabled => (0x05, 0),
        }
    }

    /// The refusal with these two bytes, if there is one.
    #[must_use]
    pub fn from_codes(reason: u8, detail: u8) -> Option<Self> {
        match (reason, detail) {
            (0x01, 0) => Some(Self::NoSuchKey),
            (0x02, detail) => KeyError::from_code(detail).map(Self::Key),
            (0x03, 0) => Some(Self::TooManyKeys),
            (0x04, 0) => Some(Self::Draining),
            (0x05, 0) => Some(Self::ImportDisabled),
            _ => None,
        }
    }
}

/// Code and size of a type of key. `None` for a size that the peer would not accept.
pub(crate) fn key_type_to_codes(key_type: KeyType) -> Option<(u8, u16)> {
    let kind = key_type.kind();
    let bits = key_type.bits();
    kind.with_bits(bits).map(|_| (kind.code(), bits))
}

/// Returns the type of key with this code and size.
pub(crate) fn key_type_from_codes(code: u8, bits: u16) -> Result<KeyType, WireError> {
    let unknown = WireError::UnknownCode { field: "key type", code: code.into() };
    let out_of_range = WireError::OutOfRange { field: "key size", value: bits.into() };
    KeyKind::from_code(code).ok_or(unknown)?.with_bits(bits).ok_or(out_of_range)
}
