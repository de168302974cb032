// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Servers without asynchronous handshakes: whoever handles a connection waits for the pool. They save
//! the CPU time and keep no key; for throughput they want more workers than cores.

use crate::plan::{Plan, Snippet};
use crate::settings::Settings;
use crate::verify::{Argument, Verification};

use super::Application;
use super::parts::{self, OPENSSL_CNF};

/// A service with one place where a key is named.
struct Service<'a> {
    application: Application,
    unit: &'static str,
    user: &'static str,
    key: String,
    snippet: (&'static str, String, &'static str),
    drop_in: &'a str,
    test: Option<Verification>,
}

fn service(settings: &Settings, service: Service<'_>) -> Plan {
    let (path, contents, sign) = service.snippet;
    Plan {
        application: service.application,
        before: parts::stub(settings, &service.key, service.user),
        files: vec![
            parts::openssl_cnf(settings),
            parts::drop_in(service.unit, settings, service.drop_in),
        ],
        snippets: vec![Snippet {
            path: path.into(),
            contents,
            why: "names the key",
            sign: sign.to_owned(),
        }],
        after: parts::restart(service.unit),
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

/// Apache httpd: a process or thread per connection, so others go on while one waits.
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
            unit: "apache2",
            user: "www-data",
            key: format!("/etc/apache2/{key}.key"),
            snippet: (
                "/etc/apache2/sites-available/default-ssl.conf",
                contents,
                "SSLCertificateKeyFile",
            ),
            drop_in: "",
            test: Some(test("apachectl -t", "apachectl", &["-t"])),
        },
    )
}

/// lighttpd: one thread per worker, so a worker waits.
pub(super) fn lighttpd(settings: &Settings) -> Plan {
    let Settings { key, .. } = settings;
    let contents = format!(
        "# Handshakes block their worker: have more workers than cores.\n\
         server.max-worker = {}\n\
         $SERVER[\"socket\"] == \":443\" {{\n    ssl.engine  = \"enable\"\n\
         \x20   ssl.pemfile = \"/etc/lighttpd/{key}.crt\"\n\
         \x20   ssl.privkey = \"/etc/lighttpd/{key}.key\"\n}}\n",
        (settings.cores * 4).max(16)
    );
    service(
        settings,
        Service {
            application: Application::Lighttpd,
            unit: "lighttpd",
            user: "www-data",
            key: format!("/etc/lighttpd/{key}.key"),
            snippet: ("/etc/lighttpd/lighttpd.conf", contents, "ssl.privkey"),
            drop_in: "",
            test: Some(test(
                "lighttpd -tt",
                "lighttpd",
                &["-tt", "-f", "/etc/lighttpd/lighttpd.conf"],
            )),
        },
    )
}

/// stunnel: a thread per connection, so others go on while one waits.
pub(super) fn stunnel(settings: &Settings) -> Plan {
    let Settings { key, .. } = settings;
    let contents = format!(
        "; With `chroot` in this file, bind the folder of the node's socket into it.\n\
         [{key}]\naccept  = 443\nconnect = 127.0.0.1:80\n\
         cert = /etc/stunnel/{key}.crt\nkey  = /etc/stunnel/{key}.key\n"
    );
    service(
        settings,
        Service {
            application: Application::Stunnel,
            unit: "stunnel@millrace",
            user: "stunnel4",
            key: format!("/etc/stunnel/{key}.key"),
            snippet: ("/etc/stunnel/millrace.conf", contents, "/etc/stunnel/"),
            drop_in: "",
            test: None,
        },
    )
}

/// OpenVPN: it makes a library context of its own, loads into it by name what `openssl.cnf` has
/// activated, and takes nothing else from that file. So the provider's settings are in its own file,
/// the module is looked for by its name, and the key has to be a stub.
pub(super) fn openvpn(settings: &Settings) -> Plan {
    let Settings { key, module, .. } = settings;
    let modules = module.parent().unwrap_or(module).display();
    let lines = format!(
        "# OpenVPN loads providers by name: the module has to be millrace.so in this folder.\n\
         Environment=OPENSSL_MODULES={modules}\n"
    );
    let contents = format!(
        "# A stub only: OpenVPN ignores the property query that sends plain keys to the pool.\n\
         cert /etc/openvpn/{key}.crt\nkey  /etc/openvpn/{key}.key\n"
    );
    let mut plan = service(
        settings,
        Service {
            application: Application::Openvpn,
            unit: "openvpn-server@server",
            user: "root",
            key: format!("/etc/openvpn/{key}.key"),
            snippet: ("/etc/openvpn/server/server.conf", contents, "/etc/openvpn/"),
            drop_in: &lines,
            test: None,
        },
    );
    plan.files.insert(1, parts::client_toml(settings));
    plan
}
