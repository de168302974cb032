// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Values of link.toml: each is good, or there is the reason why it is not.

use std::error::Error;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error as ThisError;
use toml::Spanned;
use toml::de::DeValue;

use super::{BondHash, BondSpread, DataPath, MAX_NAME, TunnelCipher};
use crate::candidate::ChoiceGoal;
use crate::proposal::ProposalError;

/// Ciphers that users of old configurations ask for, and why a link has none of them.
const REFUSED_CIPHERS: &[(&str, &str)] = &[
    ("CBC", "has no authenticated encryption, and OpenVPN cannot run it in the kernel"),
    ("CFB", "has no authenticated encryption"),
    ("OFB", "has no authenticated encryption"),
    ("DES", "has blocks of 64 bits, which repeat after some gigabytes (SWEET32)"),
    ("BF", "has blocks of 64 bits, which repeat after some gigabytes (SWEET32)"),
    ("RC", "is broken"),
    ("NONE", "does not encrypt"),
];

/// Longest name of a user or group (useradd(8)).
const MAX_ACCOUNT: usize = 32;

/// Longest common name of a certificate (RFC 5280, appendix A.1).
const MAX_CERTIFICATE_NAME: usize = 64;

/// Longest name of a network device: `IFNAMSIZ` without the final zero.
const MAX_DEVICE: usize = 15;

/// Bound on proposals: a packet of IKE holds them all.
const MAX_PROPOSALS: usize = 16;

/// Why a value is refused. In a message it follows the key.
#[derive(Debug, ThisError)]
pub(super) enum LinkValueError {
    #[error("is not {0}")]
    NotA(&'static str),
    #[error("is not from {min} to {max}")]
    OutOfRange { min: i64, max: i64 },
    #[error("{text:?}: {source}")]
    Unreadable { text: String, source: Box<dyn Error + Send + Sync> },
    #[error(
        "{0:?} does not consist of 1 to {MAX_NAME} lower-case letters, digits and dashes, a letter first"
    )]
    Name(String),
    #[error("{text:?} {why}")]
    Refused { text: String, why: &'static str },
    #[error("{text:?} {why}; write one of {known}")]
    NoneOf { text: String, why: &'static str, known: String },
    #[error("{text:?} does not exist; write {known}")]
    NoSuchValue { text: String, known: &'static str },
    #[error("{0} is not the address of a host")]
    NoHost(IpAddr),
    #[error("is not an IPv4 network: tunnels carry IPv6 without addresses of their own")]
    TunnelsOfV6,
    #[error("does not have 1 to {MAX_PROPOSALS} proposals")]
    ProposalCount,
}

fn unreadable(text: &str, error: impl Error + Send + Sync + 'static) -> LinkValueError {
    LinkValueError::Unreadable { text: text.to_owned(), source: Box::new(error) }
}

fn refused(text: &str, why: &'static str) -> LinkValueError {
    LinkValueError::Refused { text: text.to_owned(), why }
}

fn none_of(text: &str, why: &'static str, known: &[&str]) -> LinkValueError {
    LinkValueError::NoneOf { text: text.to_owned(), why, known: known.join(", ") }
}

fn no_such_value(text: &str, known: &'static str) -> LinkValueError {
    LinkValueError::NoSuchValue { text: text.to_owned(), known }
}

pub(super) fn text<'t>(value: &'t DeValue<'t>) -> Result<&'t str, LinkValueError> {
    value.as_str().ok_or(LinkValueError::NotA("a string"))
}

pub(super) fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
    value: &DeValue<'_>,
) -> Result<T, LinkValueError> {
    let text = text(value)?;
    text.parse().map_err(|error| unreadable(text, error))
}

pub(super) fn number<T: TryFrom<i64> + Into<i64> + PartialOrd + Copy>(
    value: &DeValue<'_>,
    range: RangeInclusive<T>,
) -> Result<T, LinkValueError> {
    let DeValue::Integer(integer) = value else {
        return Err(LinkValueError::NotA("a number"));
    };
    let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
    number
        .and_then(|number| T::try_from(number).ok())
        .filter(|number| range.contains(number))
        .ok_or_else(|| LinkValueError::OutOfRange {
            min: (*range.start()).into(),
            max: (*range.end()).into(),
        })
}

/// Whether a text has 1 to `max` bytes, all of them ASCII letters, digits or `more`.
fn consists_of(text: &str, max: usize, more: &[u8]) -> bool {
    (1..=max).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
}

pub(super) fn name(value: &DeValue<'_>) -> Result<String, LinkValueError> {
    let name = text(value)?;
    let good = consists_of(name, MAX_NAME, b"-")
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.contains(|c: char| c.is_ascii_uppercase());
    good.then(|| name.to_owned()).ok_or_else(|| LinkValueError::Name(name.to_owned()))
}

pub(super) fn account(value: &DeValue<'_>) -> Result<String, LinkValueError> {
    let name = text(value)?;
    let good = consists_of(name, MAX_ACCOUNT, b"_-");
    good.then(|| name.to_owned()).ok_or_else(|| refused(name, "is not a name of a user or group"))
}

/// A name between quotes in the configuration of OpenVPN.
pub(super) fn certificate_name(value: &DeValue<'_>) -> Result<String, LinkValueError> {
    let name = text(value)?;
    let good = consists_of(name, MAX_CERTIFICATE_NAME, b" ._-@");
    good.then(|| name.to_owned())
        .ok_or_else(|| refused(name, "has characters other than letters, digits, spaces and ._-@"))
}

/// A file or folder that configurations of OpenVPN and strongSwan can name as it is.
pub(super) fn path(value: &DeValue<'_>) -> Result<PathBuf, LinkValueError> {
    let path = text(value)?;
    let safe =
        path.starts_with('/') && !path.contains(|c: char| c.is_whitespace() || "\"'\\".contains(c));
    safe.then(|| PathBuf::from(path))
        .ok_or_else(|| refused(path, "is not an absolute path without spaces and quotes"))
}

pub(super) fn device(value: &DeValue<'_>) -> Result<String, LinkValueError> {
    let name = text(value)?;
    let good = consists_of(name, MAX_DEVICE, b"._-") && !name.starts_with('.');
    good.then(|| name.to_owned()).ok_or_else(|| refused(name, "is not a name of a network device"))
}

/// Refuses addresses that no host has.
pub(super) fn usable(address: IpAddr) -> Result<IpAddr, LinkValueError> {
    let impossible = address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] == 0 || v4.octets()[0] >= 240);
    if impossible {
        return Err(LinkValueError::NoHost(address));
    }
    Ok(address)
}

pub(super) fn cipher(value: &DeValue<'_>) -> Result<TunnelCipher, LinkValueError> {
    let written = text(value)?;
    let wanted = written.to_ascii_uppercase();
    let known = TunnelCipher::ALL.into_iter().find(|cipher| cipher.name() == wanted);
    known.ok_or_else(|| {
        let reason = REFUSED_CIPHERS.iter().find(|(part, _)| wanted.contains(part));
        let why = reason.map_or("is not known", |(_, why)| *why);
        none_of(written, why, &TunnelCipher::ALL.map(TunnelCipher::name))
    })
}

/// Values of `engine`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineName {
    OpenVpn,
    Ipsec,
    Auto,
}

pub(super) fn engine(value: &DeValue<'_>) -> Result<EngineName, LinkValueError> {
    match text(value)? {
        "openvpn" => Ok(EngineName::OpenVpn),
        "ipsec" => Ok(EngineName::Ipsec),
        "auto" => Ok(EngineName::Auto),
        other => Err(no_such_value(other, "openvpn, ipsec or auto")),
    }
}

pub(super) fn is_bridged(value: &DeValue<'_>) -> Result<bool, LinkValueError> {
    match text(value)? {
        "routed" => Ok(false),
        "bridged" => Ok(true),
        other => Err(no_such_value(other, "routed or bridged")),
    }
}

pub(super) fn spread(value: &DeValue<'_>) -> Result<BondSpread, LinkValueError> {
    let wanted = text(value)?;
    let found = BondSpread::MODES.into_iter().find(|(name, _)| *name == wanted);
    found.map(|(_, spread)| spread).ok_or_else(|| {
        let known = BondSpread::MODES.map(|(name, _)| name);
        none_of(wanted, "is not a mode of a link's bond", &known)
    })
}

pub(super) fn hash(value: &DeValue<'_>) -> Result<BondHash, LinkValueError> {
    let wanted = text(value)?;
    let found = BondHash::ALL.into_iter().find(|hash| hash.name() == wanted);
    found.ok_or_else(|| {
        none_of(wanted, "is not a hash of a bond", &BondHash::ALL.map(BondHash::name))
    })
}

pub(super) fn goal(value: &DeValue<'_>) -> Result<ChoiceGoal, LinkValueError> {
    match text(value)? {
        "throughput" => Ok(ChoiceGoal::Throughput),
        "cpu" => Ok(ChoiceGoal::Cpu),
        other => Err(no_such_value(other, "throughput or cpu")),
    }
}

pub(super) fn data_path(value: &DeValue<'_>) -> Result<DataPath, LinkValueError> {
    match text(value)? {
        "kernel" => Ok(DataPath::Kernel),
        "user" => Ok(DataPath::User),
        other => Err(no_such_value(other, "kernel or user")),
    }
}

/// A list of proposals, all of which must be good.
pub(super) fn proposals<T: FromStr<Err = ProposalError>>(
    value: &DeValue<'_>,
) -> Result<Vec<T>, LinkValueError> {
    let DeValue::Array(items) = value else {
        return Err(LinkValueError::NotA("a list"));
    };
    if items.is_empty() || items.len() > MAX_PROPOSALS {
        return Err(LinkValueError::ProposalCount);
    }
    let read = |item: &Spanned<DeValue<'_>>| {
        let text = text(item.get_ref())?;
        text.parse().map_err(|error| unreadable(text, error))
    };
    items.iter().map(read).collect()
}
