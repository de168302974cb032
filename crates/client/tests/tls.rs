// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TCP with mutual TLS: works with the right certificates, and says what is wrong with others.

mod fake;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fake::{Auto, Peer, SIGN, digest, is_answer, open, soon};
use millrace_client::{
    ClientError, Endpoint, KeySelector, Pool, PoolConfig, ProbeError, ProbeRequest, TlsConfig,
    TlsFault, probe,
};
use millrace_operation::PrivateKey;
use millrace_wire::{ClientMessage, Decoder, Message, NodeMessage, Welcome};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA")
}

/// Writes `name.crt` and `name.key`.
fn leaf(folder: &Path, name: &str, issuer: &Authority, expired: bool) -> (PathBuf, PathBuf) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    if expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    let paths = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    fs::write(&paths.0, certificate.pem()).expect("written");
    fs::write(&paths.1, key.serialize_pem()).expect("written");
    paths
}

fn ca_file(folder: &Path, name: &str, authority: &Authority) -> PathBuf {
    let path = folder.join(format!("{name}.pem"));
    fs::write(&path, authority.pem()).expect("written");
    path
}

struct TlsNode {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TlsNode {
    fn start(ca: &Path, files: &(PathBuf, PathBuf), alpn: &[u8]) -> Self {
        Self::start_with(ca, files, alpn, serve)
    }

    fn start_with(
        ca: &Path,
        (cert, key): &(PathBuf, PathBuf),
        alpn: &[u8],
        serve: fn(StreamOwned<ServerConnection, TcpStream>),
    ) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).expect("a CA")).expect("a CA");
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .expect("a verifier");
        let chain = vec![CertificateDer::from_pem_file(cert).expect("a certificate")];
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).expect("a key"))
            .expect("a pair");
        config.alpn_protocols = vec![alpn.to_vec()];
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let tls = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                thread::spawn(move || serve(StreamOwned::new(tls, stream)));
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    fn endpoint(&self, tls: TlsConfig) -> Endpoint {
        Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: self.address.port(), tls }
    }
}

impl Drop for TlsNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the fake node does not panic");
        }
    }
}

/// Sends a welcome, and then pongs as fast as it can.
fn babble(mut stream: impl Read + Write) {
    let mut decoder = Decoder::<ClientMessage>::new();
    let mut babble = Vec::new();
    for token in 0..4096 {
        NodeMessage::Pong { token }.encode(&mut babble);
    }
    let mut welcome = Vec::new();
    NodeMessage::Welcome(Welcome {
        version: 1,
        features: 0,
        node: "babbler".to_owned(),
        max_in_flight: 10,
        max_keys: 10,
    })
    .encode(&mut welcome);
    while let Ok(n @ 1..) = stream.read(decoder.space()) {
        decoder.filled(n);
        if decoder.next().is_ok_and(|message| message.is_some()) {
            break;
        }
    }
    let mut sent = stream.write_all(&welcome);
    while sent.is_ok() {
        sent = stream.write_all(&babble);
    }
}

fn serve(mut stream: impl Read + Write) {
    let (unused, _) = UnixStream::pair().expect("a pair");
    let peer = Peer { stream: Arc::new(Mutex::new(unused)) };
    let mut decoder = Decoder::<ClientMessage>::new();
    let (mut keys, mut replies) = (0, Vec::new());
    while let Ok(n @ 1..) = stream.read(decoder.space()) {
        decoder.filled(n);
        while let Some(message) = decoder.next().expect("the client sends what decodes") {
            fake::react(message, &peer, Auto::ALL, "tls", 1, &mut keys, &mut replies);
        }
        if stream.write_all(&replies).and_then(|()| stream.flush()).is_err() {
            return;
        }
        replies.clear();
    }
}

fn pool(endpoint: Endpoint) -> Pool {
    // On a busy test machine no node is given up for slowness.
    let config = PoolConfig::new(vec![endpoint]).connect_timeout(fake::SOON);
    Pool::new(config.health(fake::SOON, fake::SOON))
}

fn trouble(endpoint: Endpoint) -> String {
    match fake::import(&pool(endpoint)) {
        Err(ClientError::NoNode(why)) => why,
        other => panic!("no node should be reached: {other:?}"),
    }
}

struct World {
    folder: tempfile::TempDir,
    authority: Authority,
    ca: PathBuf,
    node: (PathBuf, PathBuf),
    client: (PathBuf, PathBuf),
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let authority = authority("right");
        let ca = ca_file(folder.path(), "ca", &authority);
        let node = leaf(folder.path(), "node", &authority, false);
        let client = leaf(folder.path(), "gateway-1", &authority, false);
        Self { folder, authority, ca, node, client }
    }

    fn tls(&self) -> TlsConfig {
        TlsConfig {
            ca: self.ca.clone(),
            cert: self.client.0.clone(),
            key: self.client.1.clone(),
            server_name: Some("localhost".to_owned()),
        }
    }
}

#[test]
fn jobs_go_over_tls() {
    let world = World::new();
    let node = TlsNode::start(&world.ca, &world.node, millrace_wire::ALPN);
    let pool = pool(node.endpoint(world.tls()));
    let key = open(&pool);
    for number in 0..200 {
        let reply = pool.call(&key, &SIGN, &digest(number), soon()).expect("an answer");
        assert!(is_answer(&digest(number), &reply));
        assert_eq!(&*reply.node, "tls");
    }
    let (done, ended) = std::sync::mpsc::channel();
    for number in 0..2000 {
        let done = done.clone();
        let tell = move |reply: Result<millrace_client::NodeReply, _>| {
            let right = is_answer(&digest(number), &reply.expect("an answer"));
            done.send(right).expect("open");
        };
        pool.submit(&key, SIGN, digest(number), soon(), Box::new(tell)).expect("taken");
    }
    for _ in 0..2000 {
        assert_eq!(ended.recv_timeout(fake::SOON), Ok(true));
    }
    // A key larger than a TLS record's worth of small frames goes the same way.
    let import = PrivateKey::from_pkcs8(zeroize::Zeroizing::new(vec![0x30; 8000]));
    pool.import_key(import, soon()).expect("imported");
}

#[test]
fn caller_of_a_node_that_never_stops_talking_returns_in_time() {
    let world = World::new();
    let node = TlsNode::start_with(&world.ca, &world.node, millrace_wire::ALPN, babble);
    let pool = pool(node.endpoint(world.tls()));
    let (done, ended) = std::sync::mpsc::channel();
    let caller = pool.clone();
    thread::spawn(move || {
        let selector = KeySelector::Name("site".to_owned());
        let deadline = Instant::now() + Duration::from_secs(1);
        drop(done.send(caller.open_key(selector, deadline).map(drop)));
    });
    let answer = ended.recv_timeout(fake::SOON);
    assert_eq!(answer, Ok(Err(ClientError::TimedOut)));
}

#[test]
fn node_of_another_ca_is_not_trusted() {
    let world = World::new();
    let other = authority("wrong");
    let stranger = leaf(world.folder.path(), "stranger", &other, false);
    let node = TlsNode::start(&world.ca, &stranger, millrace_wire::ALPN);
    let why = trouble(node.endpoint(world.tls()));
    assert!(why.contains("not signed by the configured CA"), "{why}");
}

#[test]
fn node_with_expired_certificate_is_not_trusted() {
    let world = World::new();
    let expired = leaf(world.folder.path(), "old", &world.authority, true);
    let node = TlsNode::start(&world.ca, &expired, millrace_wire::ALPN);
    let why = trouble(node.endpoint(world.tls()));
    assert!(why.contains("has expired"), "{why}");
}

#[test]
fn node_of_another_name_is_not_trusted() {
    let world = World::new();
    let node = TlsNode::start(&world.ca, &world.node, millrace_wire::ALPN);
    let tls = TlsConfig { server_name: Some("elsewhere.example".to_owned()), ..world.tls() };
    let why = trouble(node.endpoint(tls));
    assert!(why.contains("set `server_name`"), "{why}");
}

#[test]
fn client_without_accepted_certificate_sees_the_reason() {
    let world = World::new();
    let node = TlsNode::start(&world.ca, &world.node, millrace_wire::ALPN);
    let (cert, key) = leaf(world.folder.path(), "guest", &authority("wrong"), false);
    let why = trouble(node.endpoint(TlsConfig { cert, key, ..world.tls() }));
    assert!(why.contains("refused the TLS handshake"), "{why}");
}

#[test]
fn probe_keeps_the_type_of_an_error() {
    let world = World::new();
    let folder = world.folder.path();
    let other = authority("right");
    let ask = |tls: TlsConfig, node: &TlsNode| {
        let request = ProbeRequest {
            keys: vec![KeySelector::Name("site".to_owned())],
            timeout: fake::SOON,
            agent: "test".to_owned(),
        };
        probe(&node.endpoint(tls), &request)
    };
    let node = TlsNode::start(&world.ca, &world.node, millrace_wire::ALPN);
    let said = ask(world.tls(), &node).expect("an answer");
    assert_eq!((said.node.as_str(), said.keys.len()), ("tls", 1));
    assert!(said.keys[0].is_ok() && said.certificates.is_some());
    let fault = |tls: TlsConfig, node: &TlsNode| match ask(tls, node) {
        Err(ProbeError::Tls(fault, _)) => fault,
        other => panic!("TLS should fail: {other:?}"),
    };
    // The authority has the same name and another key.
    let stranger = leaf(folder, "stranger", &other, false);
    let strange = TlsNode::start(&world.ca, &stranger, millrace_wire::ALPN);
    assert_eq!(fault(world.tls(), &strange), TlsFault::OtherAuthority);
    let expired = leaf(folder, "old", &world.authority, true);
    let old = TlsNode::start(&world.ca, &expired, millrace_wire::ALPN);
    assert_eq!(fault(world.tls(), &old), TlsFault::NodeExpired);
    let elsewhere = TlsConfig { server_name: Some("elsewhere.example".to_owned()), ..world.tls() };
    assert_eq!(fault(elsewhere, &node), TlsFault::WrongName);
    for ((cert, key), expected) in
        [(stranger, TlsFault::UnknownToNode), (expired, TlsFault::Expired)]
    {
        let tls = TlsConfig { cert, key, ..world.tls() };
        assert_eq!(fault(tls, &node), expected);
    }
    let gone = TlsConfig { cert: folder.join("missing.pem"), ..world.tls() };
    assert!(matches!(ask(gone, &node), Err(ProbeError::Files(why)) if why.contains("missing.pem")));
}

#[test]
fn server_of_another_protocol_is_not_a_node() {
    let world = World::new();
    let node = TlsNode::start(&world.ca, &world.node, b"h2");
    let why = trouble(node.endpoint(world.tls()));
    assert!(why.contains("refused the TLS handshake") || why.contains("ALPN"), "{why}");
}

#[test]
fn missing_tls_files_are_named() {
    let world = World::new();
    let node = TlsNode::start(&world.ca, &world.node, millrace_wire::ALPN);
    for missing in ["ca", "cert", "key"] {
        let mut tls = world.tls();
        let file = match missing {
            "ca" => &mut tls.ca,
            "cert" => &mut tls.cert,
            _ => &mut tls.key,
        };
        *file = world.folder.path().join(format!("no-{missing}"));
        let why = trouble(node.endpoint(tls));
        assert!(why.contains(&format!("no-{missing}")), "{why}");
    }
}
