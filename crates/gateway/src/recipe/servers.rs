// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Servers without asynchronous handshakes: the process or thread of a connection waits for the pool. They save
//! CPU time and hold no key; for throughput they need more workers than cores.

use crate::plan::{Plan, Snippet};
use crate::settings::Settings;
use crate::verify::{Argument, Verification};

use super::Application;
use super::parts::{self, OPENSSL_CNF};

/// A service with one place where a key is named.
struct Service {
    application: Application,
    unit: String,
    user: &'static str,
    key: String,
    snippet: (String, String, &'static str),
    test: Option<Verification>,
}

fn service(settings: &Settings, service: Service) -> Plan {
    let (path, contents, sign) = service.snippet;
    let started = parts::Service {
        unit: &service.unit,
        preload: None,
        chroot: None,
        lines: String::new(),
    };
    Plan {
        application: service.application,
        before: parts::stub(settings, &service.key, service.user),
        files: [Some(parts::openssl_cnf(settings)), started.files(settings)]
            .into_iter()
            .flatten()
            .collect(),
        snippets: vec![Snippet {
            path: path.into(),
            contents,
            why: "names the key",
            marker: sign.to_owned(),
        }],
        after: started.start(settings),
        verifications: [
            vec![parts::provider_loads()],
            service.test.into_iter().collect(),
        ]
        .concat(),
    }
}

fn test(name: &'static str, program: &'static str, arguments: &[&'static str]) -> Verification {
    Verification {
        name,
        program,
        arguments: arguments.iter().map(|word| Argument::Text(word)).collect(),
        environment: vec![("OPENSSL_CONF", Argument::File(OPENSSL_CNF))],
        wants: None,
    }
}

/// Apache httpd has a process or thread per connection: a waiting handshake blocks only itself.
pub(super) fn apache(settings: &Settings) -> Plan {
    let Settings { key, .. } = settings;
    let contents = format!(
        "# Handshakes block the thread that has the connection: with mpm_event raise\n\
         # ThreadsPerChild (or MaxRequestWorkers) by what waits at a time.\n\
         SSLCertificateFile    /etc/apache2/{key}.crt\n\
         SSLCertificateKeyFile /etc/apache2/{key}.key\n"
    );
    service(
        settings,
        Service {
            application: Application::Apache,
            unit: "apache2".to_owned(),
            user: "www-data",
            key: format!("/etc/apache2/{key}.key"),
            snippet: (
                "/etc/apache2/sites-available/default-ssl.conf".to_owned(),
                contents,
                "SSLCertificateKeyFile",
            ),
            test: Some(test("apachectl -t", "apachectl", &["-t"])),
        },
    )
}

/// lighttpd: one thread per worker, so a worker waits.
pub(super) fn lighttpd(settings: &Settings) -> Plan {
    let Settings { key, .. } = settings;
    let contents = format!(
        "# Handshakes block their worker: have more workers than cores.\n\
         server.max-worker = {}\nserver.modules += ( \"mod_openssl\" )\n\
         $SERVER[\"socket\"] == \":443\" {{\n    ssl.engine  = \"enable\"\n\
         \x20   ssl.pemfile = \"/etc/lighttpd/{key}.crt\"\n\
         \x20   ssl.privkey = \"/etc/lighttpd/{key}.key\"\n}}\n",
        (settings.cores * 4).max(16)
    );
    service(
        settings,
        Service {
            application: Application::Lighttpd,
            unit: "lighttpd".to_owned(),
            user: "www-data",
            key: format!("/etc/lighttpd/{key}.key"),
            snippet: (
                "/etc/lighttpd/lighttpd.conf".to_owned(),
                contents,
                "ssl.privkey",
            ),
            test: Some(test(
                "lighttpd -tt",
                "lighttpd",
                &["-tt", "-f", "/etc/lighttpd/lighttpd.conf"],
            )),
        },
    )
}

/// stunnel has a thread per connection: a waiting handshake blocks only itself.
pub(super) fn stunnel(settings: &Settings) -> Plan {
    let Settings { key, .. } = settings;
    let contents = format!(
        "; With `chroot`, bind the folder of the node's socket into it (BindPaths= of the service).\n\
         foreground = yes\nsetuid = stunnel4\nsetgid = stunnel4\n[{key}]\naccept  = 443\nconnect = 127.0.0.1:80\n\
         cert = /etc/stunnel/{key}.crt\nkey  = /etc/stunnel/{key}.key\n"
    );
    service(
        settings,
        Service {
            application: Application::Stunnel,
            unit: format!("stunnel@{key}"),
            user: "stunnel4",
            key: format!("/etc/stunnel/{key}.key"),
            snippet: (
                format!("/etc/stunnel/{key}.conf"),
                contents,
                "/etc/stunnel/",
            ),
            test: None,
        },
    )
}

/// OpenVPN: one thread for all tunnels, which wait together. It reads `openssl.cnf`; where its
/// environment cannot be set, it loads the module by its name, and the provider reads a file of its own.
pub(super) fn openvpn(settings: &Settings) -> Plan {
    let Settings { key, .. } = settings;
    let contents = format!(
        "# One thread serves all tunnels, and they wait with it: keep deadline_ms short (200, say).\n\
         # Without OPENSSL_CONF in the environment, say here `providers default millrace`.\n\
         user nobody\ngroup nogroup\npersist-key\npersist-tun\n\
         cert /etc/openvpn/server/{key}.crt\nkey  /etc/openvpn/server/{key}.key\n"
    );
    let mut plan = service(
        settings,
        Service {
            application: Application::Openvpn,
            unit: format!("openvpn-server@{key}"),
            user: "nobody",
            key: format!("/etc/openvpn/server/{key}.key"),
            snippet: (
                format!("/etc/openvpn/server/{key}.conf"),
                contents,
                "/etc/openvpn/server/",
            ),
            test: None,
        },
    );
    plan.files.push(parts::client_toml(settings));
    plan
}
