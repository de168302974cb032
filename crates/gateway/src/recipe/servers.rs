// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Servers without asynchronous handshakes: the process or thread of a connection waits for the pool. They save
//! CPU time and hold no key; for throughput they need more workers than cores.

use millrace_hostfs::generated::verify::Argument;

use crate::plan::{RecipePlan, Snippet};
use crate::settings::RecipeSettings;

use super::parts::{self, PooledService};
use crate::application::Application;

/// A server; `{key}` in its texts is the name of the key.
pub(super) struct BlockingServer {
    application: Application,
    unit: &'static str,
    user: &'static str,
    key: &'static str,
    /// The file that names the key.
    path: &'static str,
    /// Lines of the file; `{workers}` is a number of workers for handshakes that block.
    contents: &'static str,
    marker: &'static str,
    /// Test of the server's configuration: name, program, arguments.
    test: Option<(&'static str, &'static str, &'static [&'static str])>,
}

/// Apache httpd has a process or thread per connection: a waiting handshake blocks only itself.
pub(super) const APACHE: BlockingServer = BlockingServer {
    application: Application::Apache,
    unit: "apache2",
    user: "www-data",
    key: "/etc/apache2/{key}.key",
    path: "/etc/apache2/sites-available/default-ssl.conf",
    contents: include_str!("../../templates/apache.conf"),
    marker: "SSLCertificateKeyFile",
    test: Some(("apachectl -t", "apachectl", &["-t"])),
};

const LIGHTTPD_CONF: &str = "/etc/lighttpd/lighttpd.conf";

/// lighttpd: one thread per worker, so a worker waits.
pub(super) const LIGHTTPD: BlockingServer = BlockingServer {
    application: Application::Lighttpd,
    unit: "lighttpd",
    user: "www-data",
    key: "/etc/lighttpd/{key}.key",
    path: LIGHTTPD_CONF,
    contents: include_str!("../../templates/lighttpd.conf"),
    marker: "ssl.privkey",
    test: Some(("lighttpd -tt", "lighttpd", &["-tt", "-f", LIGHTTPD_CONF])),
};

/// stunnel has a thread per connection: a waiting handshake blocks only itself.
pub(super) const STUNNEL: BlockingServer = BlockingServer {
    application: Application::Stunnel,
    unit: "stunnel@{key}",
    user: "stunnel4",
    key: "/etc/stunnel/{key}.key",
    path: "/etc/stunnel/{key}.conf",
    contents: include_str!("../../templates/stunnel.conf"),
    marker: "/etc/stunnel/",
    test: None,
};

/// OpenVPN: one thread for all tunnels, which wait together.
const OPENVPN: BlockingServer = BlockingServer {
    application: Application::Openvpn,
    unit: "openvpn-server@{key}",
    user: "nobody",
    key: "/etc/openvpn/server/{key}.key",
    path: "/etc/openvpn/server/{key}.conf",
    contents: include_str!("../../templates/openvpn.conf"),
    marker: "/etc/openvpn/server/",
    test: None,
};

/// Dovecot: a login process per connection, or one for many (`service_count = 0`), which wait together.
pub(super) const DOVECOT: BlockingServer = BlockingServer {
    application: Application::Dovecot,
    unit: "dovecot",
    user: "dovenull",
    key: "/etc/dovecot/private/{key}.key",
    path: "/etc/dovecot/local.conf",
    contents: include_str!("../../templates/dovecot.conf"),
    marker: "ssl_key",
    test: Some(("doveconf -n", "doveconf", &["-n"])),
};

impl BlockingServer {
    pub(super) fn plan(&self, settings: &RecipeSettings) -> RecipePlan {
        let fill = |text: &str| text.replace("{key}", &settings.key);
        let workers = (settings.cores * 4).max(16).to_string();
        let snippet = Snippet {
            path: fill(self.path).into(),
            contents: fill(self.contents).replace("{workers}", &workers),
            why: "names the key",
            marker: self.marker.to_owned(),
        };
        let test = self.test.map(|(name, program, arguments)| {
            let arguments = arguments.iter().map(|word| Argument::Text(word));
            (name, program, arguments.collect())
        });
        PooledService {
            application: self.application,
            unit: fill(self.unit),
            user: self.user,
            key: fill(self.key),
            preload: None,
            chroot: None,
            lines: String::new(),
            include: None,
            snippet,
            is_checked: false,
            test,
        }
        .plan(settings)
    }
}

/// OpenVPN reads `openssl.cnf`; where its environment cannot be set, it loads the module by its name, and the provider
/// reads a file of its own.
pub(super) fn openvpn(settings: &RecipeSettings) -> RecipePlan {
    let mut plan = OPENVPN.plan(settings);
    plan.files.push(parts::client_toml(settings));
    plan
}
