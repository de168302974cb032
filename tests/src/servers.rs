// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Servers without asynchronous handshakes, whose threads block on the pool: Apache httpd, lighttpd and
//! stunnel, from the packages of the release under test, with generated configurations. nginx and HAProxy are
//! in [`crate::gateway`], OpenVPN is in [`crate::openvpn`].
//!
//! All of them read `openssl.cnf` from the environment and keys from files, so one variable and one line make
//! them use the pool. [`Daemon::key_line`] is that line, and the guide shows it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millrace_testkit::skip;
use rustix::process::Signal;
use serde_json::Value;

use crate::artifacts::artifacts;
use crate::edge::Edge;
use crate::gateway::Site;
use crate::is_root;
use crate::pki::KeyKind;
use crate::process::{self, Process, free_port, listens};
use crate::release;
use crate::wait;

/// A server that terminates TLS and answers requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// Apache httpd with the event MPM; started by root, its children run as `www-data`.
    Apache,
    /// lighttpd with `mod_openssl`; started by root, it changes to `www-data`.
    Lighttpd,
    /// stunnel in front of a plain server of ours; started by root, it changes to the user `nobody`.
    Stunnel,
}

impl Daemon {
    /// Every server of this module.
    pub const ALL: [Self; 3] = [Self::Apache, Self::Lighttpd, Self::Stunnel];

    /// The program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Apache => "apache2",
            Self::Lighttpd => "lighttpd",
            Self::Stunnel => "stunnel4",
        }
    }

    /// The line of its configuration that names a private key, or the stub of one.
    #[must_use]
    pub fn key_line(self, key: &str) -> String {
        match self {
            Self::Apache => format!("SSLCertificateKeyFile {key}"),
            Self::Lighttpd => format!("ssl.privkey = \"{key}\""),
            Self::Stunnel => format!("key = {key}"),
        }
    }

    /// Name of the server in `millrace gateway`.
    #[must_use]
    pub fn recipe(self) -> &'static str {
        match self {
            Self::Apache => "apache",
            Self::Lighttpd => "lighttpd",
            Self::Stunnel => "stunnel",
        }
    }

    /// The signal by which it reads its configuration again.
    fn reload_signal(self) -> Signal {
        match self {
            // Graceful for both: handshakes that have begun continue.
            Self::Apache | Self::Lighttpd => Signal::USR1,
            Self::Stunnel => Signal::HUP,
        }
    }

    /// The log line after it has read its configuration.
    fn says_when_ready(self) -> &'static str {
        match self {
            Self::Apache => "resuming normal operations",
            Self::Lighttpd => "server started",
            Self::Stunnel => "Configuration successful",
        }
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// Whether a program is installed; records a skip if not.
#[must_use]
pub fn is_installed(program: &str, package: &str) -> bool {
    let found = ["/usr/sbin", "/usr/bin"]
        .iter()
        .any(|folder| release::file(&format!("{folder}/{program}")).is_file());
    if !found {
        skip::record(file!(), &format!("no {program}: install package {package} (make setup)"));
    }
    found
}

/// The output of `millrace gateway` for an application.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The `openssl.cnf` that it generates.
    pub openssl_conf: String,
    /// The lines for the application's own configuration; a tool that has none gets a command.
    pub lines: String,
}

/// The kind of keys that a recipe configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Stubs of keys in the pool.
    Stubs,
    /// Plain PEM keys, too.
    Plain,
}

impl Recipe {
    /// Asks for it, for the key `www` and one node.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn of(application: &str, endpoint: &str, keys: Keys) -> Self {
        let mut command = Command::new(&artifacts().millrace);
        command.args(["gateway", application, "--key", "www", "--json"]);
        if keys == Keys::Plain {
            command.arg("--plain-keys");
        }
        command.args(["--pool", endpoint, "--provider"]);
        let output = process::run(command.arg(&artifacts().provider));
        assert!(output.status.success(), "{}", process::text_of(&output));
        let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan in JSON");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let files = plan["files"].as_array().expect("files");
        let openssl_conf = files
            .iter()
            .find(|file| text(&file["path"]).ends_with("openssl.cnf"))
            .map(|file| text(&file["contents"]))
            .expect("an openssl.cnf");
        let lines = match plan["snippets"].as_array().map(Vec::as_slice) {
            Some([snippet]) => text(&snippet["contents"]),
            _ => text(&plan["after"][0]["command"]),
        };
        Self { openssl_conf, lines }
    }
}

/// A running server with one port per site.
#[derive(Debug)]
pub struct Running {
    daemon: Daemon,
    /// The process (of Apache, the one that starts the others).
    pub process: Process,
    ports: BTreeMap<KeyKind, u16>,
    // stunnel passes requests on to it.
    _plain: Option<PlainServer>,
}

/// Attempts at the race with other processes between finding a free port and the server's `bind`.
const ATTEMPTS: usize = 5;

impl Running {
    /// Starts a server.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(daemon: Daemon, dir: &Path, edge: &Edge, sites: &[Site]) -> Self {
        Self::start_with(daemon, dir, edge, sites, None)
    }

    /// Starts a server with one site, which is configured as a recipe says.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_by_recipe(
        daemon: Daemon,
        dir: &Path,
        edge: &Edge,
        site: &Site,
        recipe: &Recipe,
    ) -> Self {
        let sites = std::slice::from_ref(site);
        Self::start_with(daemon, dir, edge, sites, Some(&recipe.lines))
    }

    fn start_with(
        daemon: Daemon,
        dir: &Path,
        edge: &Edge,
        sites: &[Site],
        lines: Option<&str>,
    ) -> Self {
        let mut attempt = 1;
        loop {
            match Self::try_start(daemon, dir, edge, sites, lines) {
                Ok(running) => return running,
                Err(log) if attempt < ATTEMPTS && log.contains("in use") => attempt += 1,
                Err(log) => panic!("{daemon} does not start:\n{log}"),
            }
        }
    }

    fn try_start(
        daemon: Daemon,
        dir: &Path,
        edge: &Edge,
        sites: &[Site],
        lines: Option<&str>,
    ) -> Result<Self, String> {
        let dir = fresh_folder(dir, daemon.program());
        let ports: BTreeMap<_, _> = sites.iter().map(|site| (site.kind, free_port())).collect();
        let plain = (daemon == Daemon::Stunnel).then(PlainServer::start);
        let setup = Setup {
            daemon,
            dir: &dir,
            sites,
            lines,
            ports: &ports,
            behind: plain.as_ref().map_or(0, |plain| plain.port),
        };
        let config = dir.join("server.conf");
        fs::write(&config, setup.text()).expect("configuration of a server");
        let mut command = release::command(daemon.program());
        edge.apply(&mut command);
        match daemon {
            Daemon::Apache => command.arg("-DFOREGROUND").arg("-f").arg(&config),
            Daemon::Lighttpd => command.arg("-D").arg("-f").arg(&config),
            Daemon::Stunnel => command.arg(&config),
        };
        let mut process = Process::start(daemon.program(), command, &dir.join("output.log"));
        let mut ended = false;
        let good = wait::holds_within(wait::SOON, || {
            ended = process.ended().is_some();
            ended || ports.values().all(|port| listens(*port))
        });
        if ended || !good {
            return Err(process.log());
        }
        Ok(Self { daemon, process, ports, _plain: plain })
    }

    /// The port that serves this key.
    ///
    /// # Panics
    /// If it has no such site.
    #[must_use]
    pub fn port(&self, kind: KeyKind) -> u16 {
        self.ports[&kind]
    }

    /// Address of the server with this key.
    #[must_use]
    pub fn address(&self, kind: KeyKind) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port(kind)).into()
    }

    /// Makes it read its configuration and its keys again, and waits until it has and listens.
    ///
    /// # Panics
    /// If it does not.
    pub fn reload(&self) {
        let times = || self.process.log().matches(self.daemon.says_when_ready()).count();
        wait::until("it has started", || times() > 0);
        let before = times();
        self.process.signal(self.daemon.reload_signal());
        wait::until("it has read its configuration again", || times() > before);
        wait::until("it listens again", || self.ports.values().all(|port| listens(*port)));
    }

    /// The processes that hold the keys.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let mut all = process::children(self.process.id());
        // The first process of lighttpd starts the others before it reads anything.
        if self.daemon != Daemon::Lighttpd {
            all.push(self.process.id());
        }
        all
    }
}

/// A folder of its own for each start of a program.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn fresh_folder(dir: &Path, name: &str) -> PathBuf {
    const MOST: usize = 100;
    (0..MOST)
        .map(|number| dir.join(format!("{name}-{number}")))
        .find(|folder| fs::create_dir(folder).is_ok())
        .unwrap_or_else(|| panic!("no folder for {name} in {}", dir.display()))
}

/// Inputs of a generated configuration.
struct Setup<'a> {
    daemon: Daemon,
    dir: &'a Path,
    sites: &'a [Site],
    /// Lines of a recipe, in place of generated ones.
    lines: Option<&'a str>,
    ports: &'a BTreeMap<KeyKind, u16>,
    behind: u16,
}

impl Setup<'_> {
    fn text(&self) -> String {
        let mut text = match self.daemon {
            Daemon::Apache => self.apache(),
            Daemon::Lighttpd => self.lighttpd(),
            Daemon::Stunnel => self.stunnel(),
        };
        for site in self.sites {
            let port = self.ports[&site.kind];
            let name = if self.lines.is_some() { "www" } else { site.kind.name() };
            let file = |kind: &str| self.dir.join(format!("{name}.{kind}")).display().to_string();
            fs::write(file("crt"), &site.certificate_pem).expect("certificate");
            fs::write(file("key"), &site.key_pem).expect("key");
            let lines = match self.lines {
                Some(lines) => self.adapted(lines, port),
                None => self.lines_for(port, &file("crt"), &file("key")),
            };
            if self.daemon == Daemon::Apache {
                let _ = write!(
                    text,
                    "Listen 127.0.0.1:{port}\n<VirtualHost 127.0.0.1:{port}>\nSSLEngine on\n\
                     {lines}</VirtualHost>\n"
                );
            } else {
                text.push_str(&lines);
            }
        }
        text
    }

    /// The part of a configuration that is about one certificate.
    fn lines_for(&self, port: u16, certificate: &str, key: &str) -> String {
        let key_line = self.daemon.key_line(key);
        match self.daemon {
            Daemon::Apache => format!("SSLCertificateFile {certificate}\n{key_line}\n"),
            Daemon::Lighttpd => format!(
                "$SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{\n\
                 \x20 ssl.engine = \"enable\"\n  ssl.pemfile = \"{certificate}\"\n  {key_line}\n}}\n"
            ),
            Daemon::Stunnel => format!(
                "[{port}]\naccept = 127.0.0.1:{port}\nconnect = 127.0.0.1:{}\n\
                 cert = {certificate}\n{key_line}\n",
                self.behind
            ),
        }
    }

    /// Lines of a recipe with the ports and the folder of this test.
    fn adapted(&self, lines: &str, port: u16) -> String {
        let folder = match self.daemon {
            Daemon::Apache => "/etc/apache2/",
            Daemon::Lighttpd => "/etc/lighttpd/",
            Daemon::Stunnel => "/etc/stunnel/",
        };
        assert!(lines.contains(folder), "{folder} in\n{lines}");
        // Only root can change the user.
        let kept = |line: &&str| is_root() || !line.starts_with("set");
        let lines: Vec<&str> = lines.lines().filter(kept).collect();
        format!("{}\n", lines.join("\n"))
            .replace(folder, &format!("{}/", self.dir.display()))
            .replace("\":443\"", &format!("\"127.0.0.1:{port}\""))
            .replace("= 443\n", &format!("= 127.0.0.1:{port}\n"))
            .replace("127.0.0.1:80\n", &format!("127.0.0.1:{}\n", self.behind))
    }

    /// A folder with a page that says `ok`.
    fn pages(&self) -> PathBuf {
        let pages = self.dir.join("pages");
        fs::create_dir(&pages).expect("folder for pages");
        fs::write(pages.join("index.html"), "ok").expect("a page");
        pages
    }

    fn apache(&self) -> String {
        let mut text = format!(
            "ServerName localhost\nServerRoot {0}\nDefaultRuntimeDir {0}\nPidFile {0}/pid\n\
             ErrorLog /dev/stderr\nDocumentRoot {1}\n",
            self.dir.display(),
            self.pages().display()
        );
        for module in ["mpm_event", "authz_core", "dir", "ssl"] {
            let _ = writeln!(
                text,
                "LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so"
            );
        }
        // Two processes with a few threads each: a thread that waits for the pool blocks no other.
        text.push_str(
            "StartServers 2\nServerLimit 2\nThreadsPerChild 8\nMaxRequestWorkers 16\n\
             SSLSessionCache none\nSSLSessionTickets off\nSSLProtocol -all +TLSv1.2 +TLSv1.3\n",
        );
        if is_root() {
            text.push_str("User www-data\nGroup www-data\n");
        }
        text
    }

    fn lighttpd(&self) -> String {
        let mut text = format!(
            "server.document-root = \"{}\"\nindex-file.names = ( \"index.html\" )\n\
             server.bind = \"127.0.0.1\"\nserver.port = {}\n\
             server.modules = ( \"mod_openssl\" )\n\
             ssl.openssl.ssl-conf-cmd = ( \"MinProtocol\" => \"TLSv1.2\" )\n",
            self.pages().display(),
            free_port()
        );
        if self.lines.is_none() {
            text.push_str("server.max-worker = 2\n");
        }
        if is_root() {
            text.push_str("server.username = \"www-data\"\nserver.groupname = \"www-data\"\n");
        }
        text
    }

    fn stunnel(&self) -> String {
        let mut text = "pid =\nsslVersionMin = TLSv1.2\n".to_owned();
        if self.lines.is_none() {
            text.push_str("foreground = yes\n");
            if is_root() {
                text.push_str("setuid = nobody\nsetgid = nogroup\n");
            }
        }
        text
    }
}

/// An HTTP server without TLS that answers `ok` to every request.
#[derive(Debug)]
struct PlainServer {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Bound on the head of a request, in bytes: those of the test clients are a tenth of it.
const MAX_REQUEST: usize = 4096;

/// Longest wait of the server for the rest of a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl PlainServer {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound socket").port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for socket in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // A client that closes early is not a failure of the server.
                drop(socket.and_then(answer));
            }
        });
        Self { port, stop, thread: Some(thread) }
    }
}

fn answer(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut request = Vec::new();
    let mut buffer = [0; 512];
    while !request.ends_with(b"\r\n\r\n") && request.len() < MAX_REQUEST {
        let count = socket.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..count]);
    }
    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
}

impl Drop for PlainServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread up.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
