// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock nginx whose responses a QAT card compresses: the stand-in for the card under Intel's library. Every response
//! is right, whatever the card does.

use std::fs;
use std::process::Command;
use std::time::Duration;

use millrace_edge::compression::Counter;
use millrace_testkit::qat::{
    ALL_COMPRESSION, CardEvent, DMA_FAULTS, LOSE_EVERY, QatControls, QatMachine, QatMachineError,
    RING_MAP, WRONG_EVERY,
};
use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::nginx::{Nginx, NginxOptions};
use millrace_tests::process::{free_port, succeed};
use millrace_tests::web::{counters, get, html};
use millrace_tests::{temp_dir, wait};

/// nginx with two workers on a machine with one card of four virtual functions.
struct Site {
    nginx: Nginx,
    port: u16,
    machine: QatMachine,
    // Last, so that it is removed after everything in it.
    _dir: tempfile::TempDir,
}

impl Site {
    /// A site with these settings of the library; an error where Intel's library cannot be had.
    fn new(settings: &[(&'static str, &str)]) -> Result<Self, QatMachineError> {
        let machine = QatMachine::new("trixie", 1, 4)?;
        machine.controls().set(RING_MAP, ALL_COMPRESSION);
        let (card, mut environment) = machine.parts();
        // On a real machine the workers' user is in the group of the card's files.
        let root = environment[0].1.clone();
        let _ = succeed(Command::new("chmod").args(["-R", "a+rwX", &root]));
        environment.extend(settings.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let dir = temp_dir();
        let pages = dir.path().join("pages");
        fs::create_dir(&pages).expect("a folder");
        for length in [1_000, 100_000, 1_000_000] {
            fs::write(pages.join(format!("{length}.html")), html(length)).expect("a page");
        }
        let port = free_port();
        let libraries = format!("{}:{}", card.display(), artifacts().zlib.display());
        let options = NginxOptions {
            workers: 2,
            preload: true,
            library: Some(libraries.into()),
            daemon: false,
            edge: None,
            main: String::new(),
            events: String::new(),
            http: format!(
                "types {{ text/html html; }} gzip on; gzip_comp_level 6; gzip_http_version 1.0;\n\
                 server {{ listen 127.0.0.1:{port} reuseport; root {}; }}\n",
                pages.display()
            ),
            stream: String::new(),
            environment,
            launcher: Vec::new(),
        };
        let nginx = Nginx::start(dir.path(), &options, &[port]);
        Ok(Self { nginx, port, machine, _dir: dir })
    }

    fn controls(&self) -> QatControls {
        self.machine.controls()
    }

    fn counted(&self, counter: Counter) -> u64 {
        let found = counters(self.nginx.master()).expect("the library in nginx");
        found.get(counter)
    }

    fn ask(&self, length: usize) {
        let page = get(self.port, &format!("/{length}.html"));
        assert!(page.is_gzip() && page.plain() == html(length), "{length}");
    }

    /// Asks until the card has compressed something more.
    fn until_served(&self, what: &str) {
        let before = self.counted(Counter::QatChunks);
        wait::until(what, || {
            self.ask(100_000);
            std::thread::sleep(Duration::from_millis(10));
            self.counted(Counter::QatChunks) > before
        });
    }

    /// Fails if nginx has complained, or a worker has died.
    fn assert_quiet(&self) {
        let log = self.nginx.log();
        let bad =
            ["[alert]", "[crit]", "[emerg]", "panicked"].iter().find(|word| log.contains(**word));
        assert_eq!(bad, None, "{log}");
        assert_eq!(self.controls().get(DMA_FAULTS), 0, "{log}");
    }
}

/// The stand-in computes on the cores that the tests share.
const PATIENT: (&str, &str) = ("MILLRACE_GZIP_DEVICE_MS", "10000");
const FAILOVER: (&str, &str) = ("MILLRACE_GZIP_DEVICE", "failover");

#[test]
fn nginx_serves_right_gzip_by_a_card_across_a_reload() {
    let site = match Site::new(&[FAILOVER, PATIENT, ("MILLRACE_GZIP_DEVICE_MIN", "16k")]) {
        Ok(site) => site,
        Err(reason) => skip!("no library for QAT cards: {reason}"),
    };
    assert_eq!(site.counted(Counter::QatAway), 0, "nothing starts before the first response");
    site.until_served("the card serves");
    for length in [1_000, 100_000, 1_000_000] {
        site.ask(length);
    }
    assert!(
        site.counted(Counter::LibdeflateChunks) > 0,
        "short responses, and those before it had started"
    );
    let old = site.nginx.workers();
    site.nginx.reload();
    // The functions of the workers that have ended are free again.
    wait::until("the old workers have gone", || {
        old.iter().all(|id| !millrace_tests::process::is_alive(*id))
    });
    site.until_served("new workers start the library anew");
    let none = [Counter::WrongQat, Counter::FailedQat, Counter::QatLate, Counter::Panics];
    assert_eq!(none.map(|counter| site.counted(counter)), [0; 4]);
    site.assert_quiet();
}

#[test]
fn responses_stay_right_while_a_card_lies_loses_requests_and_resets() {
    let site = match Site::new(&[FAILOVER, ("MILLRACE_GZIP_DEVICE_MS", "300")]) {
        Ok(site) => site,
        Err(reason) => skip!("no library for QAT cards: {reason}"),
    };
    site.until_served("the card serves");
    let controls = site.controls();
    controls.set(LOSE_EVERY, 2);
    let lost = site.counted(Counter::QatLate);
    wait::until("a request is lost", || {
        site.ask(100_000);
        site.counted(Counter::QatLate) > lost
    });
    controls.set(LOSE_EVERY, 0);
    site.until_served("the card serves after a lost request");
    controls.send(CardEvent::Fatal);
    for _ in 0..20 {
        site.ask(1_000_000);
    }
    site.until_served("the card serves after a fatal error");
    controls.set(WRONG_EVERY, 1);
    wait::until("a wrong output is found", || {
        site.ask(100_000);
        site.counted(Counter::WrongQat) > 0
    });
    let served = site.counted(Counter::QatChunks);
    for length in [100_000, 1_000_000] {
        site.ask(length);
    }
    assert_eq!(site.counted(Counter::QatChunks), served, "in quarantine in every worker");
    assert_eq!(site.counted(Counter::Panics), 0);
    site.assert_quiet();
}

#[test]
fn device_that_is_missing_costs_no_response() {
    for (mode, engine) in [("failover", Counter::LibdeflateChunks), ("only", Counter::StoredChunks)]
    {
        let missing = ("MILLRACE_QAT_LIBRARY", "/nonexistent/libqat.so.4");
        let site = match Site::new(&[("MILLRACE_GZIP_DEVICE", mode), missing]) {
            Ok(site) => site,
            Err(reason) => skip!("no library for QAT cards: {reason}"),
        };
        site.ask(100_000);
        assert!(site.counted(Counter::QatAway) > 0 && site.counted(engine) > 0, "{mode}");
        assert!(site.nginx.log().contains("libqat4"), "what to install is said");
        site.assert_quiet();
    }
}
