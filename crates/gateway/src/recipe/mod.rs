// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How the pool is put under each application: one file per application, each turning the same
//! [`Settings`] into a [`Plan`]. Pure: composing text is all that happens here.
//!
//! Every application gets `/etc/millrace/openssl.cnf` and, as a service, a drop-in for systemd that
//! names it. They differ in how they wait for the pool, in what they confine themselves to, and in
//! where a key is named.

mod clients;
mod haproxy;
mod nginx;
mod parts;
mod servers;

use std::fmt;

use serde::Serialize;

use crate::plan::Plan;
use crate::settings::Settings;

pub(crate) use haproxy::global_maxconn;
pub use parts::{CLIENT_TOML, OPENSSL_CNF};

/// An application that there is a recipe for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Application {
    /// Anything that uses OpenSSL 3.
    Openssl,
    /// Stock nginx.
    Nginx,
    /// HAProxy 2.6 or later.
    Haproxy,
    /// Apache httpd with `mod_ssl`.
    Apache,
    /// lighttpd with `mod_openssl`.
    Lighttpd,
    /// stunnel.
    Stunnel,
    /// OpenVPN, server or client.
    Openvpn,
    /// curl with a client certificate.
    Curl,
}

impl Application {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Openssl,
        Self::Nginx,
        Self::Haproxy,
        Self::Apache,
        Self::Lighttpd,
        Self::Stunnel,
        Self::Openvpn,
        Self::Curl,
    ];

    /// What has to be done to put the pool under it.
    #[must_use]
    pub fn plan(self, settings: &Settings) -> Plan {
        match self {
            Self::Openssl => clients::openssl(settings),
            Self::Nginx => nginx::plan(settings),
            Self::Haproxy => haproxy::plan(settings),
            Self::Apache => servers::apache(settings),
            Self::Lighttpd => servers::lighttpd(settings),
            Self::Stunnel => servers::stunnel(settings),
            Self::Openvpn => servers::openvpn(settings),
            Self::Curl => clients::curl(settings),
        }
    }
}

impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Openssl => "openssl",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Apache => "apache",
            Self::Lighttpd => "lighttpd",
            Self::Stunnel => "stunnel",
            Self::Openvpn => "openvpn",
            Self::Curl => "curl",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn no_placeholder_is_left_in_any_recipe() {
        for nodes in [
            &["unix:/run/millrace/node.sock"][..],
            &["unix:/run/millrace/node.sock", "tcp:node-1:7433"],
        ] {
            for preload in [true, false] {
                let mut settings = settings(nodes);
                if !preload {
                    settings.preload = None;
                }
                for application in Application::ALL {
                    let text = application.plan(&settings).text();
                    for (at, _) in text.match_indices('{') {
                        let next = text[at + 1..].chars().next().unwrap_or(' ');
                        assert!(!next.is_ascii_lowercase(), "{application}:\n{text}");
                    }
                    assert!(
                        text.contains("unix:/run/millrace/node.sock"),
                        "{application}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_file_says_where_it_comes_from() {
        use crate::plan::Origin;
        for application in Application::ALL {
            for file in application.plan(&settings(&["unix:/run/x.sock"])).files {
                assert_eq!(
                    Origin::of(&file.contents),
                    Origin::Generated,
                    "{application}"
                );
                assert!(file.path.is_absolute() && file.mode == 0o644);
            }
        }
    }
}
