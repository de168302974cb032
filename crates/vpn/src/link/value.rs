// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Values of link.toml: each is good, or there is the reason why it is not.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use toml::de::DeValue;

use super::{MAX_NAME, TunnelCipher};

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

pub(super) fn text<'t>(value: &'t DeValue<'t>) -> Result<&'t str, String> {
    value.as_str().ok_or_else(|| "is not a string".to_owned())
}

pub(super) fn parsed<T: FromStr<Err: std::fmt::Display>>(value: &DeValue<'_>) -> Result<T, String> {
    let text = text(value)?;
    text.parse().map_err(|error: T::Err| format!("{text:?}: {error}"))
}

pub(super) fn number<T: TryFrom<i64> + PartialOrd + std::fmt::Display>(
    value: &DeValue<'_>,
    range: RangeInclusive<T>,
) -> Result<T, String> {
    let DeValue::Integer(integer) = value else {
        return Err("is not a number".to_owned());
    };
    let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
    number
        .and_then(|number| T::try_from(number).ok())
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("is not from {} to {}", range.start(), range.end()))
}

pub(super) fn name(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(allowed)
        && name.as_bytes()[0].is_ascii_lowercase();
    good.then(|| name.to_owned()).ok_or_else(|| {
        format!("{name:?} does not consist of 1 to {MAX_NAME} lower-case letters, digits and dashes, a letter first")
    })
}

pub(super) fn account(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let good = (1..=32).contains(&name.len()) && name.bytes().all(allowed);
    good.then(|| name.to_owned())
        .ok_or_else(|| format!("{name:?} is not a name of a user or group"))
}

/// A name between quotes in the configuration of OpenVPN.
pub(super) fn certificate_name(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b" ._-@".contains(&byte);
    let good = (1..=64).contains(&name.len()) && name.bytes().all(allowed);
    good.then(|| name.to_owned()).ok_or_else(|| {
        format!("{name:?} has characters other than letters, digits, spaces and ._-@")
    })
}

/// A file or folder that configurations of OpenVPN and strongSwan can name as it is.
pub(super) fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = text(value)?;
    let safe =
        path.starts_with('/') && !path.contains(|c: char| c.is_whitespace() || "\"'\\".contains(c));
    safe.then(|| PathBuf::from(path))
        .ok_or_else(|| format!("{path:?} is not an absolute path without spaces and quotes"))
}

pub(super) fn device(value: &DeValue<'_>) -> Result<String, String> {
    let name = text(value)?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let good =
        (1..=15).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.');
    good.then(|| name.to_owned())
        .ok_or_else(|| format!("{name:?} is not a name of a network device"))
}

/// Refuses addresses that no host has.
pub(super) fn usable(address: IpAddr) -> Result<IpAddr, String> {
    let impossible = address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] == 0 || v4.octets()[0] >= 240);
    if impossible {
        return Err(format!("{address} is not the address of a host"));
    }
    Ok(address)
}

pub(super) fn cipher(value: &DeValue<'_>) -> Result<TunnelCipher, String> {
    let wanted = text(value)?.to_ascii_uppercase();
    let known = TunnelCipher::ALL.into_iter().find(|cipher| cipher.name() == wanted);
    known.ok_or_else(|| {
        let reason = REFUSED_CIPHERS.iter().find(|(part, _)| wanted.contains(part));
        let why = reason.map_or("is not known", |(_, why)| *why);
        let names = TunnelCipher::ALL.map(TunnelCipher::name).join(", ");
        format!("{wanted:?} {why}; use one of {names}")
    })
}
