// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! OpenVPN from the packages of the release under test: two ends that verify each other.
//!
//! Point to point with `dev null` there is a whole TLS handshake and no network device, so it takes
//! no privilege. [`Namespace`] is for a server with a real device, whose traffic stays in there.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_testkit::port::free_udp_port;

use crate::drive::Tls;
use crate::edge::Edge;
use crate::is_root;
use crate::pki::{Authority, Identity};
use crate::process::{self, Process, succeed};
use crate::release;
use crate::servers::fresh_folder;

/// The log line of an end that is connected.
const CONNECTED: &str = "Initialization Sequence Completed";

/// The private key of an end, as its configuration names it.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// The plain private key.
    Plain,
    /// The stub of a key in the pool.
    Stub(&'a str),
    /// No private key: the client of the management interface signs.
    External,
}

/// Configuration of one end.
#[derive(Debug)]
pub struct End<'a> {
    /// Certificate of the end.
    pub identity: &'a Identity,
    /// Private key of the end.
    pub key: Key<'a>,
    /// Files with which the end reaches the pool; `None`: without the provider.
    pub edge: Option<&'a Edge>,
    /// Further lines of the end's configuration.
    pub lines: String,
    /// Network namespace in which the end runs; `None`: that of the test.
    pub namespace: Option<&'a Namespace>,
    /// Further variables of the end's environment.
    pub environment: Vec<(&'static str, PathBuf)>,
}

impl<'a> End<'a> {
    /// An end with a plain key and without the provider.
    #[must_use]
    pub fn plain(identity: &'a Identity) -> Self {
        Self {
            identity,
            key: Key::Plain,
            edge: None,
            lines: String::new(),
            namespace: None,
            environment: Vec::new(),
        }
    }

    /// An end whose key is in the pool.
    #[must_use]
    pub fn pooled(identity: &'a Identity, stub: &'a str, edge: &'a Edge) -> Self {
        Self { key: Key::Stub(stub), edge: Some(edge), ..Self::plain(identity) }
    }

    /// This end with more lines of configuration.
    #[must_use]
    pub fn with(mut self, lines: &str) -> Self {
        self.lines.push_str(lines);
        self.lines.push('\n');
        self
    }

    fn start(&self, dir: &Path, role: &str, authority: &Authority) -> Running {
        let dir = fresh_folder(dir, role);
        let pem = match self.key {
            Key::Plain => Some(self.identity.key_pem.as_str()),
            Key::Stub(stub) => Some(stub),
            Key::External => None,
        };
        let key_line = pem.map_or_else(String::new, |pem| {
            let key = dir.join("key.pem");
            fs::write(&key, pem).expect("key");
            format!("key {}\n", key.display())
        });
        let config = dir.join("openvpn.conf");
        let text = format!(
            "proto udp4\nca {}\ncert {}\n{key_line}verify-x509-name localhost name\nverb 4\n{}",
            authority.file.display(),
            self.identity.certificate_file.display(),
            self.lines
        );
        fs::write(&config, text).expect("configuration of OpenVPN");
        let mut command = release::command("openvpn");
        for variable in ["OPENSSL_CONF", "OPENSSL_MODULES", "MILLRACE_CLIENT_CONF"] {
            command.env_remove(variable);
        }
        if let Some(edge) = self.edge {
            edge.apply(&mut command);
        }
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        let log = dir.join("output.log");
        command.arg("--config").arg(&config);
        if let Some(namespace) = self.namespace {
            command = namespace.enter(&command);
        }
        let process = Process::start(role, command, &log);
        Running { process, log }
    }
}

/// One end that runs.
#[derive(Debug)]
pub struct Running {
    /// Process of the end.
    pub process: Process,
    log: PathBuf,
}

impl Running {
    fn wait_for(&mut self, what: &str) {
        let log = self.log.clone();
        self.process.wait_ready(|| {
            let text = fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(what)
        });
    }

    /// Log of the end so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Two ends that have verified each other and are connected.
#[derive(Debug)]
pub struct Tunnel {
    /// The server.
    pub server: Running,
    /// The client.
    pub client: Running,
}

impl Tunnel {
    /// Connects two ends, point to point and without a network device.
    ///
    /// # Panics
    /// If they do not connect, or with another version of TLS.
    #[must_use]
    pub fn point_to_point(
        dir: &Path,
        authority: &Authority,
        tls: Tls,
        server: End<'_>,
        client: End<'_>,
    ) -> Self {
        const NO_DEVICE: &str = "dev null\nifconfig-noexec\nroute-noexec\n";
        let port = free_udp_port();
        let version = match tls {
            Tls::V12 => "tls-version-max 1.2",
            Tls::V13 => "tls-version-min 1.3",
        };
        let tunnel = Self::start(
            dir,
            authority,
            server.with(&format!(
                "{NO_DEVICE}tls-server\ndh none\nlocal 127.0.0.1\nport {port}\n{version}{}",
                drop_privileges()
            )),
            client.with(&format!("{NO_DEVICE}tls-client\nnobind\nremote 127.0.0.1 {port}")),
        );
        let said = match tls {
            Tls::V12 => "Control Channel: TLSv1.2,",
            Tls::V13 => "Control Channel: TLSv1.3,",
        };
        for log in [tunnel.server.log(), tunnel.client.log()] {
            assert!(log.contains(said), "{said} in\n{log}");
        }
        tunnel
    }

    /// Starts two ends, and waits until both are connected.
    ///
    /// # Panics
    /// If they are not.
    #[must_use]
    pub fn start(dir: &Path, authority: &Authority, server: End<'_>, client: End<'_>) -> Self {
        let mut server = server.start(dir, "openvpn-server", authority);
        server.wait_for("UDPv4 link remote");
        let mut client = client.start(dir, "openvpn-client", authority);
        client.wait_for(CONNECTED);
        server.wait_for(CONNECTED);
        let tunnel = Self { server, client };
        for log in [tunnel.server.log(), tunnel.client.log()] {
            let verified = log.contains("VERIFY X509NAME OK: CN=localhost");
            assert!(verified, "each end verifies the other:\n{log}");
        }
        tunnel
    }
}

/// A tunnel with network devices at both ends, and a web server behind one of them. Needs root and `/dev/net/tun`.
#[derive(Debug)]
pub struct Traffic {
    /// The ends of the tunnel.
    pub tunnel: Tunnel,
    web: Process,
    _here: Namespace,
    there: Namespace,
}

impl Traffic {
    /// Whether this machine can have such tunnels.
    #[must_use]
    pub fn is_possible() -> bool {
        Namespace::is_possible() && Path::new("/dev/net/tun").exists()
    }

    /// Connects a server for many clients with a client in another namespace, and serves a page behind the server.
    ///
    /// # Panics
    /// If they do not connect, or there is no web server.
    #[must_use]
    pub fn start(
        dir: &Path,
        authority: &Authority,
        server: End<'_>,
        client: End<'_>,
        page: &[u8],
    ) -> Self {
        let here = Namespace::new(dir, "here");
        let there = Namespace::new(dir, "there");
        here.join("198.18.0.1/24", &there, "198.18.0.2/24");
        let server = End { namespace: Some(&here), ..server };
        let client = End { namespace: Some(&there), ..client };
        let tunnel = Tunnel::start(
            dir,
            authority,
            server.with(
                "dev tun\ntopology subnet\nserver 198.19.0.0 255.255.255.0\ndh none\nport 1194",
            ),
            client.with("client\ndev tun\nnobind\nremote 198.18.0.1 1194"),
        );
        let pages = fresh_folder(dir, "pages");
        fs::write(pages.join("index.html"), page).expect("a page");
        // In a separate network namespace every port is free.
        let mut web = release::python();
        web.args(["-u", "-m", "http.server", "--bind", "198.19.0.1", "8000"]);
        web.arg("--directory").arg(&pages);
        let log = dir.join("web.log");
        let mut web = Process::start("web", here.enter(&web), &log);
        web.wait_ready(|| fs::read_to_string(&log).is_ok_and(|text| text.contains("Serving")));
        Self { tunnel, web, _here: here, there }
    }

    /// Fetches the page through the tunnel.
    ///
    /// # Panics
    /// If the client does not get it.
    #[must_use]
    pub fn fetch(&self) -> Vec<u8> {
        let mut curl = release::command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "60"]);
        curl.arg("http://198.19.0.1:8000/");
        let output = process::run(&mut self.there.enter(&curl));
        assert!(output.status.success(), "{}\n{}", process::text_of(&output), self.web.log());
        output.stdout
    }
}

/// Privileges that a server drops before the provider connects to the node.
#[must_use]
pub fn drop_privileges() -> &'static str {
    if is_root() { "\nuser nobody\ngroup nogroup\npersist-key\npersist-tun\n" } else { "\n" }
}

/// A client of the management interface that makes OpenVPN's signatures. OpenVPN then creates a separate
/// library context and loads every active provider into it by its name.
#[derive(Debug)]
pub struct Signer {
    socket: PathBuf,
}

impl Signer {
    /// Waits for one OpenVPN. `sign` takes a digest. (Its thread ends with that OpenVPN, or with the test.)
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(dir: &Path, sign: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> Self {
        let socket = fresh_folder(dir, "signer").join("management.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        thread::spawn(move || {
            if let Ok((connection, _)) = listener.accept() {
                // OpenVPN closes the connection when it ends.
                drop(answer(&connection, sign));
            }
        });
        Self { socket }
    }

    /// Arguments that make OpenVPN ask this client.
    #[must_use]
    pub fn lines(&self) -> String {
        format!(
            "management {} unix\nmanagement-client\nmanagement-hold\nmanagement-external-key nopadding",
            self.socket.display()
        )
    }
}

fn answer(mut connection: &UnixStream, sign: impl Fn(&[u8]) -> Vec<u8>) -> io::Result<()> {
    // Version 3 of the interface names the kind of signature.
    connection.write_all(b"version 3\nhold release\n")?;
    for line in BufReader::new(connection).lines() {
        let line = line?;
        let Some((digest, kind)) =
            line.strip_prefix(">PK_SIGN:").and_then(|request| request.split_once(','))
        else {
            continue;
        };
        assert_eq!(kind, "ECDSA", "signs with ECDSA");
        let signature = STANDARD.encode(sign(&STANDARD.decode(digest).expect("base64")));
        connection.write_all(format!("pk-sig\n{signature}\nEND\n").as_bytes())?;
    }
    Ok(())
}

/// A network namespace, removed on drop. Needs root.
#[derive(Debug)]
pub struct Namespace {
    holder: Process,
}

impl Namespace {
    /// Whether this user may create network namespaces with veth pairs. In a container root may not.
    #[must_use]
    pub fn is_possible() -> bool {
        let mut command = Command::new(process::program("unshare"));
        command.arg("--net").arg(process::program("ip"));
        command.args(["link", "add", "type", "veth"]);
        is_root() && process::run(&mut command).status.success()
    }

    /// Creates a namespace.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut command = Command::new(process::program("unshare"));
        command.args(["--net", "sh", "-c", "echo made; exec sleep infinity"]);
        let log = dir.join(format!("{name}.log"));
        let mut holder = Process::start(name, command, &log);
        holder.wait_ready(|| fs::read_to_string(&log).is_ok_and(|text| text.contains("made")));
        let namespace = Self { holder };
        namespace.ip("link set lo up");
        namespace
    }

    /// Id of a process in the namespace.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    /// File by which the kernel knows the namespace.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.id()).into()
    }

    /// This command inside the namespace, in the process of the program itself.
    #[must_use]
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new(process::program("nsenter"));
        inside.arg(format!("--net={}", self.file().display()));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Runs `ip` inside the namespace.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, arguments: &str) {
        let mut command = Command::new(process::program("ip"));
        let _ = succeed(&mut self.enter(command.args(arguments.split(' '))));
    }

    /// Connects two namespaces by a veth pair with these addresses.
    pub fn join(&self, address: &str, other: &Self, other_address: &str) {
        self.ip(&format!("link add cable type veth peer name cable netns {}", other.holder.id()));
        for (end, address) in [(self, address), (other, other_address)] {
            end.ip(&format!("addr add {address} dev cable"));
            end.ip("link set cable up");
        }
    }
}
