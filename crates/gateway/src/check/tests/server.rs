// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Findings about the server's own configuration, and about certbot.

use super::*;

#[test]
fn plain_keys_need_the_property_query() {
    let machine = Machine::new(Server::Nginx);
    machine.put("www.key", "-----BEGIN PRIVATE KEY-----\n");
    machine.expect(CheckOutcome::Failure, "keys", "no property query");
    machine.change("openssl.cnf", "[init]\n", "[init]\nalg_section = algorithms\n");
    assert_eq!(machine.report().count(CheckOutcome::Failure), 0);
    machine.put("www.key", "-----BEGIN CERTIFICATE-----\n");
    assert_eq!(machine.report().count(CheckOutcome::Warning), 1);
}

#[test]
fn nginx_without_env_directives_is_warned_about() {
    let machine = Machine::new(Server::Nginx);
    machine.change("nginx.conf", "env OPENSSL_CONF; env LD_PRELOAD;", "env OPENSSL_CONF;");
    machine.expect(CheckOutcome::Warning, "configuration", "no `env LD_PRELOAD;`");
}

#[test]
fn quic_with_keys_of_the_pool_is_warned_about() {
    let machine = Machine::new(Server::Nginx);
    machine.change("nginx.conf", "listen 443 ssl;", "listen 443 ssl; listen 443 quic;");
    machine.expect(CheckOutcome::Warning, "quic", "`listen 443 quic` with keys of the pool");
    // A key of the server's own is signed in the worker.
    machine.put("www.key", "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n");
    let findings = machine.report().findings;
    assert!(findings.iter().all(|finding| finding.check != "quic"), "{findings:#?}");
}

#[test]
fn descriptors_are_compared_with_connections() {
    let machine = Machine::new(Server::Nginx);
    machine.change("nginx.conf", "worker_connections 500", "worker_connections 4000");
    machine.expect(CheckOutcome::Warning, "descriptors", "4096 descriptors for 4000 connections");
    let machine = Machine::new(Server::Haproxy);
    machine.change("haproxy.cfg", "maxconn 800", "maxconn 765");
    machine.expect(CheckOutcome::Warning, "descriptors", "maxconn 765 in `global`");
    machine.change("haproxy.cfg", "maxconn 765", "maxconn 766");
    assert_eq!(machine.report().count(CheckOutcome::Warning), 0);
}

#[test]
fn haproxy_ulimit_n_is_warned_about_and_does_not_size_the_table() {
    let machine = Machine::new(Server::Haproxy);
    machine.change("haproxy.cfg", "maxconn 800", "maxconn 800\n ulimit-n 3000");
    machine.expect(CheckOutcome::Warning, "descriptors", "ulimit-n 3000 in `global`");
    let remedy = |machine: &Machine| {
        let findings = machine.report().findings;
        let found = findings.iter().find(|finding| finding.check == "descriptors");
        found.and_then(|finding| finding.remedy.clone()).expect("what to do")
    };
    assert!(remedy(&machine).contains("to at least 766"));
    machine.change("haproxy.cfg", "listen a\n maxconn 500", "listen a");
    assert!(remedy(&machine).contains("one and a half times"));
    machine.change("haproxy.cfg", "ulimit-n", "# ulimit-n");
    assert_eq!(machine.report().count(CheckOutcome::Warning), 0, "a comment");
}

#[test]
fn haproxy_without_the_right_to_threads_is_a_failure() {
    let machine = Machine::new(Server::Haproxy);
    machine.put("proc/101/limits", "Max processes   0   0   processes\n");
    machine.expect(CheckOutcome::Failure, "threads", "may not start threads");
    machine.change("proc/101/status", "Uid:\t33\t33", "Uid:\t0\t0");
    assert_eq!(machine.report().count(CheckOutcome::Failure), 0, "root may");
}

#[test]
fn plugins_of_certbot_are_reported_for_stubs_alone() {
    let machine = Machine::new(Server::Nginx);
    // The same path below the root of the unit's files.
    machine.put(machine.path("www.key").trim_start_matches('/'), &stub());
    let renewal = "etc/letsencrypt/renewal/www.conf";
    machine.put(renewal, "[renewalparams]\nauthenticator = nginx\ninstaller = None\n");
    let found = confined(&machine, "", "certbot");
    assert!(found.len() == 1 && found[0].outcome == CheckOutcome::Warning, "{found:?}");
    let unit = "etc/systemd/system/certbot.service.d/millrace.conf";
    machine.put(unit, "[Service]\nEnvironment=OPENSSL_CONF=/etc/millrace/openssl.cnf\n");
    assert!(confined(&machine, "", "certbot").is_empty());
    machine.put(unit, "[Service]\n");
    machine.put(renewal, "[renewalparams]\nauthenticator = webroot\ninstaller = None\n");
    assert!(confined(&machine, "", "certbot").is_empty());
}
