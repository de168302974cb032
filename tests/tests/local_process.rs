// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Local primitives and the fetch cache in processes that do what no stock server does while it serves
//! (`tests/clients/local_process.c`): the provider comes and goes under load, the libraries are opened and closed,
//! thousands of key objects come and go. And beside OpenSSL's FIPS provider, whose rule nothing of ours satisfies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use millrace_edge::local_counts::LocalCounts;
use millrace_testkit::skip;
use millrace_tests::artifacts::{artifacts, workspace};
use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::local::local_counts;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::openssl::{SServer, plain, self_signed, text};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{Process, children, free_port, listens, run, succeed, text_of};
use millrace_tests::release;
use millrace_tests::wait;
use millrace_tests::world::World;

/// The program, whose name makes it known to the preload library, and what it loads.
struct Bench {
    world: World,
    program: PathBuf,
    edge: Edge,
    key: PathBuf,
    certificate: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let world = World::new();
        let program = world.dir().join("nginx");
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]);
        compile.arg(&program);
        compile.arg(workspace().join("tests/clients/local_process.c"));
        let _ = succeed(compile.args(["-lssl", "-lcrypto", "-lpthread", "-ldl"]));
        let edge = EdgeOptions::local().write(world.dir());
        let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"];
        let (key, certificate) = self_signed(world.dir(), "p-384", &curve);
        Self { world, program, edge, key, certificate }
    }

    /// The program with this command.
    fn command(&self, what: &str) -> Command {
        let mut command = release::command_at(&self.program);
        self.edge.apply(&mut command).arg(what);
        command.arg(&self.certificate).arg(&self.key);
        command
    }

    /// The program with the preload library and its cache.
    fn cached(&self, what: &str) -> Command {
        let mut command = self.command(what);
        command.env("LD_PRELOAD", &artifacts().preload);
        command.env("MILLRACE_FETCH_CACHE", "on");
        command.env("MILLRACE_JOBS", "off");
        command
    }
}

/// Runs the program to its end. Returns its counters.
#[track_caller]
fn counted(command: &mut Command) -> LocalCounts {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::piped()).spawn().expect("the program");
    let mut said = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    let counts = local_counts(child.id());
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(line, "done\n");
    counts.expect("counters")
}

#[test]
fn provider_comes_and_goes_under_load_with_the_fetch_cache() {
    let bench = Bench::new();
    // The program loads the provider itself, so that it can unload it.
    let empty = bench.world.dir().join("empty.cnf");
    let settings = bench.world.dir().join("client.toml");
    fs::write(&empty, "").expect("a file");
    fs::write(&settings, "mode = \"off\"\nalgorithms = \"none\"\nlocal = \"all\"\n")
        .expect("settings");
    // libcrypto 3.0 crashes when a provider with decoders goes under load, also when it is one of its own.
    let mut command = bench.cached("reloads");
    command.arg(if release::openssl() >= (3, 5) { "millrace" } else { "null" });
    command.env("OPENSSL_CONF", &empty);
    let counts = counted(command.env("MILLRACE_CLIENT_CONF", &settings));
    for name in ["X25519", "TLS13-KDF", "P-384"] {
        assert!(counts.of(name) > 0, "{name}: {counts:?}");
    }
    let (hits, all) = counts.fetches();
    assert!(hits > all / 2, "{hits} of {all}");
}

#[test]
fn libraries_that_are_opened_and_closed_leave_no_trace_in_a_fork() {
    let bench = Bench::new();
    let mut command = bench.command("closes");
    command.arg(&artifacts().provider).arg(&artifacts().preload);
    let counts = counted(&mut command);
    // The forked children count in the same cells.
    assert_eq!(counts.of("P-384"), 2 * 20, "{counts:?}");
}

#[test]
fn memory_stays_flat_over_key_objects_and_handshakes() {
    let bench = Bench::new();
    let counts = counted(&mut bench.cached("memory"));
    assert_eq!(counts.of("P-384"), 7 * 200, "{counts:?}");
    let (hits, all) = counts.fetches();
    assert!(hits > all / 2, "{hits} of {all}");
}

/// OpenSSL's FIPS provider of Debian 13 with the file that it wants; none without a network or with an older libc.
fn fips(dir: &Path) -> Option<PathBuf> {
    let root = workspace().join("target/fips");
    let mut unpack = Command::new(workspace().join("scripts/unpack-debian.sh"));
    unpack.arg("trixie").arg(&root);
    let unpacked = run(unpack.args(["--alone", "openssl-provider-fips"]));
    if !unpacked.status.success() {
        return None;
    }
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let packaged = root.join(format!("usr/lib/{triplet}/ossl-modules/fips.so"));
    let (module, file) = (dir.join("modules/fips.so"), dir.join("fipsmodule.cnf"));
    fs::copy(packaged, &module).expect("a copy");
    let mut install = plain(&["fipsinstall", "-quiet", "-module", text(&module)]);
    run(install.arg("-out").arg(&file)).status.success().then_some(file)
}

/// With the FIPS provider loaded, everything is computed here as before; with `fips=yes` nothing is, not even what
/// the FIPS provider lacks.
#[test]
fn nothing_is_computed_here_once_only_fips_algorithms_are_allowed() {
    let world = World::new();
    let identity = world.identity(KeyKind::P384);
    let edge = EdgeOptions::local().write(world.dir());
    let Some(installed) = fips(world.dir()) else {
        skip!("no FIPS provider that runs here");
    };
    let conf = fs::read_to_string(&edge.conf).expect("openssl.cnf");
    let conf = conf.replace("[providers]\n", "[providers]\nfips = fips_sect\nbase = base\n");
    let included = installed.display();
    let conf = format!("{conf}[base]\nactivate = 1\n.include {included}\n");
    for (properties, computes) in [("", true), ("fips=yes,", false)] {
        let start = "default_properties = ";
        let text = conf.replace(start, &format!("{start}{properties}"));
        fs::write(&edge.conf, &text).expect("openssl.cnf");
        let (certificate, key) = (&identity.certificate_file, &identity.key_file);
        let server = SServer::start(&edge, world.dir(), certificate, key, &["-tls1_3"]);
        let mut client = plain(&["s_client", "-groups", "P-256", "-verify_return_error"]);
        let said = text_of(&server.get(client.arg("-CAfile").arg(&world.authority.file)));
        assert!(said.contains("Verification: OK"), "{said}\n{}", server.log());
        let counts = local_counts(server.id()).expect("counters");
        for name in ["TLS13-KDF", "P-384"] {
            assert_eq!(counts.of(name) > 0, computes, "{properties} {name}: {counts:?}");
        }
    }
}

/// The collector would cost the first handshake of each process tens of milliseconds of CPU time.
#[test]
fn provider_has_no_collector_of_timer_jitter() {
    let mut symbols = Command::new("nm");
    let symbols = succeed(symbols.arg(&artifacts().provider));
    let named = |part: &str| symbols.lines().filter(|line| line.contains(part)).count();
    assert!(named("_RAND_bytes") > 0, "the provider has symbols of AWS-LC");
    assert_eq!(
        named("_jent_"),
        0,
        "build it in the repository: .cargo/config.toml has the setting"
    );
}

/// CPU time of a process as the scheduler counts it, in nanoseconds, when it has come to rest.
fn cpu_time_at_rest(id: u32) -> u64 {
    wait::until_steady("CPU time", || {
        let text = fs::read_to_string(format!("/proc/{id}/schedstat")).expect("a process");
        let first = text.split(' ').next().and_then(|number| number.parse::<u64>().ok());
        first.expect("a time")
    })
}

/// nginx and HAProxy, fresh and after a reload: the event loop does not stand in the first handshake. CPU time of the
/// worker's thread decides, the least of some rounds, beside that of the same server without the provider: work of
/// others on the machine is in neither.
#[test]
fn first_handshake_of_a_fresh_worker_costs_little_more_with_local_primitives() {
    const ROUNDS: usize = 3;
    if !Path::new("/proc/self/schedstat").exists() {
        skip!("this kernel does not count CPU time in /proc/PID/schedstat");
    }
    let world = World::new();
    let site = Site::with_key(&world.identity(KeyKind::P256));
    let local = EdgeOptions::local().write(world.dir());
    // Without a provider: `openssl.cnf` of no sections.
    let empty = world.dir().join("empty.cnf");
    fs::write(&empty, "").expect("a file");
    let plain = Edge { conf: empty, ..local.clone() };
    let first = |id: u32, port: u16| {
        let before = cpu_time_at_rest(id);
        world.client.handshakes(([127, 0, 0, 1], port).into(), Tls::V13, 1);
        cpu_time_at_rest(id) - before
    };
    let mut least = [[u64::MAX; 4]; 2];
    for _ in 0..ROUNDS {
        for (edge, least) in [&plain, &local].into_iter().zip(&mut least) {
            let environment = vec![("MILLRACE_JOBS", "off".to_owned())];
            let port = free_port();
            let http = format!(
                "server {{ listen 127.0.0.1:{port} ssl; {} location / {{ return 200 ok; }} }}\n",
                certificate_lines(world.dir(), "www", &site)
            );
            let options = NginxOptions { environment, ..NginxOptions::asynchronous(edge, http) };
            let nginx = Nginx::start(world.dir(), &options, &[port]);
            let fresh = first(nginx.workers()[0], port);
            nginx.reload();
            let reloaded = first(nginx.workers()[0], port);
            drop(nginx);
            let port = free_port();
            let sections = format!(
                "frontend https\n  bind 127.0.0.1:{port} ssl crt {}\n\
                 \x20 http-request return status 200 content-type text/plain string ok\n",
                bundle(world.dir(), "www", &site),
            );
            let options = HaproxyOptions {
                master: true,
                preload: true,
                mode_async: false,
                ..HaproxyOptions::asynchronous(edge, sections)
            };
            let haproxy = Haproxy::start(world.dir(), &options, &[port]);
            let worker = || {
                let mut workers = Vec::new();
                wait::until("HAProxy has one worker", || {
                    workers = children(haproxy.process.id());
                    workers.len() == 1
                });
                workers[0]
            };
            let seen = [fresh, reloaded, first(worker(), port), {
                haproxy.reload();
                first(worker(), port)
            }];
            for (least, seen) in least.iter_mut().zip(seen) {
                *least = seen.min(*least);
            }
        }
    }
    let [plain, local] = least;
    println!("nginx fresh, reloaded, HAProxy fresh, reloaded, ns: {plain:?}, {local:?}");
    for (plain, local) in plain.into_iter().zip(local) {
        // 1.2 ms and 4.5 ms in an unoptimised build; a collector of timer jitter takes 35 ms and more.
        assert!(local < 10 * plain, "{local} ns of CPU time, without the provider {plain} ns");
    }
}

/// Connections of each cipher that a kernel with TLS can take over, and the directions that it is offered before it
/// should have encrypted something.
const KERNEL_CIPHERS: [(&[&str], usize); 5] = [
    (&["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"], 2),
    (&["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"], 2),
    (&["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"], 2),
    (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], 1),
    (&["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"], 1),
];

/// libssl hands keys to the kernel itself, also where the provider computes the handshake. The kernel here is a library
/// that takes every offer.
#[test]
fn kernel_is_offered_the_same_connections_beside_local_primitives() {
    let help = text_of(&run(&mut plain(&["s_server", "-help"])));
    if !help.contains("-ktls") {
        skip!("this OpenSSL is built without TLS in the kernel");
    }
    let world = World::new();
    let kernel = world.dir().join("ktls.so");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&kernel);
    let _ = succeed(compile.arg(workspace().join("tests/clients/ktls.c")).arg("-ldl"));
    let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let (key, certificate) = self_signed(world.dir(), "p-256", &curve);
    let local = EdgeOptions::local().write(world.dir());
    let stock = Edge { conf: world.dir().join("empty.cnf"), modules: local.modules.clone() };
    fs::write(&stock.conf, "").expect("a file");
    let [offers, beside] = [(&stock, "stock"), (&local, "local")].map(|(edge, name)| {
        let port = free_port();
        let mut command = edge.openssl(&["s_server", "-ktls", "-quiet", "-accept"]);
        command.arg(format!("127.0.0.1:{port}")).arg("-cert").arg(&certificate);
        command.arg("-key").arg(&key).env("LD_PRELOAD", &kernel);
        let mut server = Process::start(name, command, &world.dir().join(name));
        server.wait_ready(|| listens(port));
        let offers = |server: &Process| -> Vec<String> {
            let log = server.log();
            log.lines().filter(|line| line.starts_with("ktls: ")).map(str::to_owned).collect()
        };
        let mut expected = 0;
        for (number, (options, directions)) in KERNEL_CIPHERS.iter().enumerate() {
            let address = format!("127.0.0.1:{port}");
            let mut client = plain(&["s_client", "-connect", &address]);
            client.args(*options);
            let log = world.dir().join(format!("{name}-client-{number}"));
            let _client = Process::start("s_client", client, &log);
            expected += directions;
            wait::until("the kernel is offered the connection", || {
                offers(&server).len() >= expected
            });
        }
        if name == "local" {
            let counts = local_counts(server.id()).expect("counters");
            assert!(counts.of("TLS13-KDF") > 0, "{counts:?}");
        }
        offers(&server)
    });
    assert_eq!(beside, offers);
    // AES-128-GCM, AES-256-GCM and ChaCha20-Poly1305, as the kernel numbers them.
    for cipher in [51, 52, 54] {
        let line = format!("ktls: sends version 304 cipher {cipher}");
        assert!(offers.contains(&line), "{offers:?}");
    }
}
