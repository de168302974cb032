// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The applications that have a recipe.

use schemars::JsonSchema;
use serde::Serialize;
use strum::{Display, VariantArray};

/// An application with a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, Display, VariantArray)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Application {
    /// Any program on OpenSSL 3: only the openssl.cnf
    Openssl,
    /// Stock nginx, asynchronous with the preload library
    Nginx,
    /// HAProxy 2.6 or later, asynchronous
    Haproxy,
    /// Apache httpd with mod_ssl
    Apache,
    /// lighttpd with mod_openssl
    Lighttpd,
    /// stunnel
    Stunnel,
    /// OpenVPN, server or client
    Openvpn,
    /// Dovecot, IMAP and others
    Dovecot,
    /// curl with a client certificate
    Curl,
}
