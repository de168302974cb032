// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings about the files of the provider.

use super::*;

#[test]
fn missing_parts_of_openssl_cnf_are_failures() {
    for (from, to, check, word) in [
        ("[m]\n", "[m]\nmode = off\n", "openssl.cnf", "mode = off"),
        ("default = d\n", "", "openssl.cnf", "does not activate `default`"),
        (
            "activate = 1\npool",
            "activate = 0\npool",
            "openssl.cnf",
            "does not activate the provider",
        ),
        ("providers = all", "providers = none", "openssl.cnf", "no section"),
    ] {
        let machine = Machine::new(Server::Nginx);
        machine.change("openssl.cnf", from, to);
        machine.expect(CheckOutcome::Failure, check, word);
    }
    let machine = Machine::new(Server::Nginx);
    machine.change("openssl.cnf", "[m]\n", "[m]\nmode = sync\n");
    machine.expect(CheckOutcome::Warning, "waiting", "mode = sync");
    // The same through an include, and a separate section for nginx.
    let machine = Machine::new(Server::Nginx);
    machine.put("more.cnf", &machine.cnf().replace("openssl_conf", "nginx"));
    machine.put("openssl.cnf", &format!(".include {}\n", machine.path("more.cnf")));
    assert_eq!(
        machine.report().count(CheckOutcome::Failure),
        0,
        "{:#?}",
        machine.report().findings
    );
}

#[test]
fn unknown_keys_and_bad_values_in_openssl_cnf_are_named() {
    let machine = Machine::new(Server::Nginx);
    machine.change("openssl.cnf", "[m]\n", "[m]\nmodde = off\n");
    machine.expect(CheckOutcome::Failure, "openssl.cnf", "`modde`");
    let machine = Machine::new(Server::Nginx);
    machine.change("openssl.cnf", "[m]\n", "[m]\ndeadline_ms = 2 s\n");
    machine.expect(CheckOutcome::Failure, "openssl.cnf", "deadline_ms = 2 s");
}

#[test]
fn provider_settings_may_be_in_a_separate_file() {
    let machine = Machine::new(Server::Nginx);
    let file = machine.path("client.toml");
    machine.change("proc/100/environ", "A=1", &format!("MILLRACE_CLIENT_CONF={file}"));
    machine.put("client.toml", "pool = [\n");
    machine.expect(CheckOutcome::Failure, "openssl.cnf", "client.toml");
    let pool = format!("pool = unix:{}", machine.path("node.sock"));
    machine.change("openssl.cnf", &pool, "");
    machine.put("client.toml", &format!("pool = [\"unix:{}\"]\n", machine.path("other.sock")));
    machine.expect(CheckOutcome::Failure, "socket", "other.sock is not there");
}
