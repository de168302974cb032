// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One recipe per application: a pure function from [`Settings`] to a [`Plan`].
//!
//! Every application gets `/etc/millrace/openssl.cnf` and, if it is a service, a systemd drop-in that names it.
//! Applications differ in how they wait for the pool, in their chroot or sandbox, and in where they name a key.

mod clients;
mod compression;
mod haproxy;
mod local;
mod nginx;
mod parts;
mod servers;

use schemars::JsonSchema;
use serde::Serialize;
use strum::{Display, VariantArray};

use crate::plan::Plan;
use crate::settings::Settings;

pub use compression::plan as compression_plan;
pub(crate) use haproxy::global_maxconn;
pub use local::{LocalSettings, plan as local_plan, with_groups};
pub(crate) use parts::provider_loads;
pub use parts::{CLIENT_TOML, OPENSSL_CNF};

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
    /// curl with a client certificate
    Curl,
}

impl Application {
    /// The steps that put the pool under the application.
    #[must_use]
    pub fn plan(self, settings: &Settings) -> Plan {
        match self {
            Self::Openssl => clients::openssl(settings),
            Self::Nginx => nginx::plan(settings),
            Self::Haproxy => haproxy::plan(settings),
            Self::Apache => servers::APACHE.plan(settings),
            Self::Lighttpd => servers::LIGHTTPD.plan(settings),
            Self::Stunnel => servers::STUNNEL.plan(settings),
            Self::Openvpn => servers::openvpn(settings),
            Self::Curl => clients::curl(settings),
        }
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
                for &application in Application::VARIANTS {
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
    fn every_file_is_marked_as_generated() {
        use crate::plan::Origin;
        for &application in Application::VARIANTS {
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
