// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where programs have their settings, and the names of those that checks judge.

use schemars::JsonSchema;
use serde::Serialize;

use crate::kernel::programs::PROVIDER_SETTINGS;

/// The program that reads the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConfiguredProgram {
    /// strongSwan, swanctl.conf or ipsec.conf
    Strongswan,
    /// OpenVPN
    Openvpn,
    /// nginx
    Nginx,
    /// HAProxy
    Haproxy,
    /// The OpenSSL library, and the provider
    Openssl,
    /// systemd's services
    Systemd,
    /// Limits of users
    Limits,
    /// Certificates that certbot renews
    Certbot,
}

/// The files of a program, and the names that matter.
pub(super) struct Place {
    pub(super) program: ConfiguredProgram,
    /// Files, or folders that end in `/`, separated by blanks.
    pub(super) paths: &'static str,
    /// Suffix of the files in such a folder.
    pub(super) suffix: &'static str,
    /// Names of settings, separated by blanks.
    pub(super) names: &'static str,
}

#[rustfmt::skip]
pub(super) const PLACES: [Place; 9] = [
    place(ConfiguredProgram::Strongswan, ".conf",
        "etc/swanctl/swanctl.conf etc/swanctl/conf.d/",
        "proposals esp_proposals ah_proposals replay_window dpd_delay dpd_timeout version per_cpu_sas"),
    place(ConfiguredProgram::Strongswan, ".conf",
        "etc/ipsec.conf etc/ipsec.d/",
        "ike esp ah keyexchange dpddelay replay_window"),
    place(ConfiguredProgram::Openvpn, ".conf",
        "etc/openvpn/ etc/openvpn/server/ etc/openvpn/client/ run/openvpn/ var/etc/",
        "cipher data-ciphers data-ciphers-fallback ncp-disable auth comp-lzo compress \
         allow-compression secret <secret> dev dev-type disable-dco tls-version-min tun-mtu mssfix \
         fragment keepalive ping ping-restart engine"),
    place(ConfiguredProgram::Nginx, "",
        "etc/nginx/nginx.conf etc/nginx/conf.d/ etc/nginx/sites-enabled/ \
         usr/local/nginx/conf/nginx.conf",
        "listen ssl_protocols ssl_ciphers ssl_ecdh_curve ssl_engine use_engine ssl_conf_command sendfile \
         gzip gzip_comp_level gzip_types gzip_vary worker_connections worker_rlimit_nofile worker_rlimit_core"),
    place(ConfiguredProgram::Haproxy, ".cfg",
        "etc/haproxy/haproxy.cfg etc/haproxy/conf.d/",
        "maxconn ssl-default-bind-options ssl-default-bind-ciphers ssl-default-bind-curves ssl-engine ulimit-n bind"),
    place(ConfiguredProgram::Openssl, ".cnf",
        PROVIDER_SETTINGS,
        "engines engine_id dynamic_path MinProtocol CipherString Groups Curves local kernel_bulk \
         SET_CRYPTO_SMALL_PACKET_OFFLOAD_THRESHOLD"),
    place(ConfiguredProgram::Systemd, "",
        "etc/systemd/system/ etc/systemd/system.conf",
        "LimitCORE DefaultLimitCORE LimitNOFILE RestrictAddressFamilies"),
    place(ConfiguredProgram::Limits, ".conf",
        "etc/security/limits.conf etc/security/limits.d/",
        "core"),
    place(ConfiguredProgram::Certbot, ".conf",
        "etc/letsencrypt/renewal/",
        "installer authenticator"),
];

const fn place(
    program: ConfiguredProgram,
    suffix: &'static str,
    paths: &'static str,
    names: &'static str,
) -> Place {
    Place { program, paths, suffix, names }
}
