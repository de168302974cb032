// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Faults of a link: of the path, of certificates and clocks, of the host. Each is made on real tunnels under
//! connections that compare their bytes, and each test prints how long a connection waited at most.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use millrace_tests::link::{Ends, Traffic, is_possible};
use millrace_tests::process::{Process, program, run, succeed, text_of};
use millrace_tests::{is_long, wait};
use rustix::process::{Signal, kill_process};

fn report(fault: &str, mut traffic: Traffic) {
    traffic.report(fault);
    traffic.finish();
}

#[test]
fn stopped_supervisor_is_killed_when_its_link_goes_down() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(1);
    ends.up(0);
    wait::until("the supervisor has written a status", || ends.member(0, 0)["pid"].is_i64());
    let (tunnel, stopped) = (ends.pid(0, 0), ends.supervisor(0));
    kill_process(stopped, Signal::STOP).expect("a process");
    let log = ends.dir.path().join("down.log");
    let mut down = Process::start("down", ends.command(0, &["down", "mr"]), &log);
    assert!(down.wait().success(), "{}", down.log());
    for pid in [tunnel, stopped] {
        wait::until("the processes are gone", || rustix::process::test_kill_process(pid).is_err());
    }
    assert!(!ends.ip(0, "link show").contains("mr-0"));
}

#[test]
fn status_that_a_dead_supervisor_left_is_not_shown_as_that_of_the_next() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(1);
    ends.up(0);
    wait::until("the supervisor has written a status", || ends.member(0, 0)["pid"].is_i64());
    let said = || text_of(&run(&mut ends.command(0, &["status", "mr"])));
    ends.kill_supervisor(0);
    wait::until("there is no supervisor", || said().contains("has no supervisor"));
    // The next one has its lock, and nothing else yet.
    let lock = fs::File::create(ends.run_folder(0).join("mr/supervisor.lock")).expect("a lock");
    lock.lock().expect("free");
    write!(&lock, "{}", std::process::id()).expect("written");
    assert!(said().contains("has no status yet"), "{}", said());
}

#[test]
fn process_that_a_killed_supervisor_was_starting_keeps_no_other_from_its_port_and_goes_with_the_link()
 {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(1);
    // The supervisor is killed before the process that it starts has written its number.
    let lose = || {
        let tunnel = ends.pid(0, 0);
        ends.kill_supervisor(0);
        fs::remove_file(ends.run_folder(0).join("mr/0.pid")).expect("removed");
        tunnel
    };
    let lost = lose();
    ends.up(0);
    wait::until("it is gone", || rustix::process::test_kill_process(lost).is_err());
    wait::until("another one runs", || {
        let pid = ends.member(0, 0)["pid"].as_i64();
        pid.is_some_and(|pid| pid != i64::from(lost.as_raw_nonzero().get()))
    });
    ends.wait_up(1);
    // Or before it has set the device up: the process is found, and started anew.
    let incomplete = ends.pid(0, 0);
    ends.kill_supervisor(0);
    fs::remove_file(ends.run_folder(0).join("mr/0.started")).expect("removed");
    ends.up(0);
    wait::until("it is gone", || rustix::process::test_kill_process(incomplete).is_err());
    ends.wait_up(1);
    let lost = lose();
    let _ = ends.vpn(0, &["down", "mr"]);
    assert!(rustix::process::test_kill_process(lost).is_err());
}

#[test]
fn bridged_link_needs_bonding_and_says_so_before_it_changes_anything() {
    if !is_possible() {
        return;
    }
    let ends = Ends::declared(2, "mode = \"bridged\"");
    let mut probe = Command::new(program("unshare"));
    probe.args(["--net", "ip", "link", "add", "dev", "probe", "type", "bond"]);
    if run(&mut probe).status.success() {
        let plan = ends.vpn(0, &["plan", &ends.file().to_string_lossy()]);
        assert!(plan.contains("ip link add dev mr address 02:4d:0a:61:00:01 type bond"), "{plan}");
    } else {
        let output = ends.try_up(0);
        let text = text_of(&output);
        assert!(!output.status.success(), "{text}");
        for expected in ["1 problem, and nothing was changed", "line 3: the kernel has no bonding"]
        {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(!ends.state_folder(0).join("mr").exists());
    }
    let left = ends.ip(0, "link show");
    assert!(!left.contains("mr"), "{left}");
}

#[test]
fn path_cut_one_way_takes_its_member_out_at_both_ends() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(2);
    let mut traffic = Traffic::start(&ends);
    // Packets of member 1 from a to b are lost; those from b to a arrive.
    let cut = "pref 10 iif lo ipproto udp dport 1195 blackhole";
    let _ = ends.ip(0, &format!("rule add {cut}"));
    wait::until("both ends route around the member", || {
        ends.routed(0) == [0] && ends.routed(1) == [0]
    });
    traffic.flows();
    let _ = ends.ip(0, &format!("rule del {cut}"));
    ends.wait_up(2);
    traffic.flows();
    report("path cut one way", traffic);
}

#[test]
fn path_that_loses_long_packets_is_reported_and_a_smaller_mtu_cures_it() {
    if !is_long() {
        millrace_testkit::skip!(
            "only the long form waits for the kernel's last retransmission, 30 s"
        );
    }
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(2);
    let mut traffic = Traffic::start(&ends);
    // The receiver drops longer packets without a word; the sender's device still takes them.
    let _ = ends.ip(1, "link set cable mtu 1300");
    wait::until("the status says so", || ends.member(0, 0)["loses_long_packets"] == true);
    let page = ends.vpn(0, &["status", "mr"]);
    assert!(page.contains("lower path-mtu"), "{page}");
    ends.write(2, "path-mtu = 1300");
    ends.up(0);
    ends.up(1);
    ends.wait_up(2);
    traffic.flows();
    wait::until("long packets pass", || ends.member(0, 0)["loses_long_packets"] == false);
    report("path that loses long packets, until its cure", traffic);
}

/// An authority by OpenSSL's own `ca`, with the keys that `millrace vpn keys` made.
struct Revoker {
    dir: PathBuf,
    keys: PathBuf,
}

impl Revoker {
    fn new(ends: &Ends) -> Self {
        let dir = ends.dir.path().join("openssl-ca");
        fs::create_dir(&dir).expect("a folder");
        fs::write(dir.join("index.txt"), "").expect("a file");
        fs::write(dir.join("serial"), "4D52\n").expect("a file");
        let keys = ends.dir.path().join("keys");
        let authority = keys.join("authority");
        let config = format!(
            "[ca]\ndefault_ca = d\n[d]\ndatabase = {0}/index.txt\nserial = {0}/serial\nnew_certs_dir = {0}\n\
             default_md = sha256\ndefault_crl_days = 30\npolicy = p\nprivate_key = {1}/ca.key\n\
             certificate = {1}/ca.crt\nunique_subject = no\n[p]\ncommonName = supplied\n\
             [client]\nextendedKeyUsage = clientAuth\nkeyUsage = digitalSignature\n",
            dir.display(),
            authority.display()
        );
        fs::write(dir.join("ca.cnf"), config).expect("a file");
        Self { dir, keys }
    }

    fn openssl(&self, words: &[&str], paths: &[(&str, &Path)]) {
        let mut command = Command::new(program("openssl"));
        command.args(words);
        for (option, path) in paths {
            command.arg(option).arg(path);
        }
        let _ = succeed(&mut command);
    }

    /// Replaces the revocation list of end a by one that has the certificate of end b.
    fn revoke_b(&self) {
        let config = self.dir.join("ca.cnf");
        let list = self.dir.join("list.pem");
        let b = self.keys.join("b/cert.pem");
        self.openssl(&["ca", "-batch"], &[("-config", &config), ("-revoke", &b)]);
        self.openssl(&["ca", "-gencrl"], &[("-config", &config), ("-out", &list)]);
        fs::rename(list, self.keys.join("a/crl.pem")).expect("a file");
    }

    /// Replaces the certificate of end b by one with these times of validity.
    fn reissue_b(&self, from: &str, until: &str) {
        let request = self.dir.join("b.csr");
        let b = self.keys.join("b");
        let key = b.join("key.pem");
        self.openssl(&["req", "-new", "-subj", "/CN=mr-b"], &[("-key", &key), ("-out", &request)]);
        let sign = ["ca", "-batch", "-notext", "-extensions", "client"];
        let times = ["-startdate", from, "-enddate", until];
        self.openssl(
            &[&sign[..], &times].concat(),
            &[
                ("-config", &self.dir.join("ca.cnf")),
                ("-in", &request),
                ("-out", &b.join("cert.pem")),
            ],
        );
    }
}

#[test]
fn revoked_peer_is_refused_and_the_status_says_why() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(2);
    let mut traffic = Traffic::start(&ends);
    Revoker::new(&ends).revoke_b();
    // What is connected stays until its next handshake; a restarted member is refused.
    kill_process(ends.pid(0, 1), Signal::KILL).expect("a process");
    wait::until("the peer is refused", || {
        let log = ends.run_folder(0).join("mr/1.log");
        let log = fs::read(log).unwrap_or_default();
        String::from_utf8_lossy(&log).contains("certificate revoked")
    });
    wait::until("the status names the handshake", || {
        let reason = ends.member(0, 1)["reason"].clone();
        reason.as_str().is_some_and(|text| text.contains("the TLS handshake fails"))
    });
    assert_eq!(ends.routed(0), [0]);
    traffic.flows();
    report("peer revoked", traffic);
}

#[test]
fn certificate_out_of_its_time_is_refused_and_the_link_stays() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(1);
    let mut traffic = Traffic::start(&ends);
    let tunnel = ends.pid(1, 0);
    let authority = Revoker::new(&ends);
    // To this host's clock a certificate of the future is what a present one is to a clock that is late.
    for (from, until, expected) in [
        ("20990101000000Z", "21000101000000Z", "is the clock of this host right?"),
        ("20200101000000Z", "20210101000000Z", "expired"),
    ] {
        authority.reissue_b(from, until);
        let output = ends.try_up(1);
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected) && said.contains("cert.pem"), "{said}");
        traffic.flows();
    }
    assert_eq!(ends.pid(1, 0), tunnel);
    report("certificate out of its time at `up`", traffic);
}

/// A small file system on an end's state folder, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path) -> Option<Self> {
        fs::create_dir_all(folder).expect("a folder");
        let mut command = Command::new(program("mount"));
        command.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(folder);
        if run(&mut command).status.success() {
            return Some(Self(folder.to_owned()));
        }
        millrace_testkit::skip::record(file!(), "mounting a small file system is not permitted");
        None
    }

    fn fill(&self) {
        // The file takes what is there, and its end fails.
        assert!(fs::write(self.0.join("filler"), vec![0; 1 << 20]).is_err());
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).expect("a file");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut command = Command::new(program("umount"));
        drop(command.arg("--lazy").arg(&self.0).output());
    }
}

#[test]
fn full_disk_changes_nothing_and_the_next_run_succeeds() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(1);
    let Some(disk) = SmallDisk::mount(&ends.state_folder(0)) else {
        return;
    };
    disk.fill();
    let output = ends.try_up(0);
    let said = text_of(&output);
    assert!(!output.status.success() && said.contains("No space left"), "{said}");
    assert!(!ends.ip(0, "link show").contains("mr-0"), "no device");
    disk.free();
    ends.up(0);
    ends.up(1);
    ends.wait_up(1);
    let mut traffic = Traffic::start(&ends);
    let (tunnel, generation) = (ends.pid(0, 0), ends.status(0)["generation"].clone());

    disk.fill();
    ends.write(2, "");
    assert!(!ends.try_up(0).status.success());
    traffic.flows();
    assert_eq!(ends.pid(0, 0), tunnel);
    assert_eq!(ends.status(0)["generation"], generation);
    assert!(!ends.ip(0, "link show").contains("mr-1"), "no device");
    disk.free();
    ends.up(0);
    ends.up(1);
    ends.wait_up(2);
    traffic.flows();
    report("full disk during a change", traffic);
    let history = ends.vpn(0, &["history", "mr", "--json"]);
    let history: serde_json::Value = serde_json::from_str(&history).expect("JSON");
    assert_eq!(history.as_array().map(Vec::len), Some(2), "{history}");
    // Before the file system goes, so do the processes that use it.
    for end in [0, 1] {
        let _ = ends.vpn(end, &["down", "mr"]);
    }
}

#[test]
fn change_that_is_killed_at_any_time_is_completed_by_the_next_run() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(2);
    let mut traffic = Traffic::start(&ends);
    let log = ends.dir.path().join("up.log");
    // The run takes about 100 ms; further times are tried in the long form.
    let all = [0, 5, 10, 20, 40, 80, 160];
    let times = if is_long() { &all[..] } else { &all[2..6] };
    for (index, ms) in times.iter().enumerate() {
        let members = if index % 2 == 0 { 3 } else { 2 };
        ends.write(members, "");
        let mut up = Process::start("up", ends.up_command(0), &log);
        thread::sleep(Duration::from_millis(*ms));
        up.kill();
        // The supervisor dies in the middle of the change, too.
        if index % 2 == 0 {
            ends.kill_supervisor(0);
        }
        traffic.flows();
        ends.up(0);
        ends.up(1);
        ends.wait_up(usize::from(members));
        traffic.flows();
    }
    report("`up` and the supervisor killed", traffic);
}
