// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Set-up that the tests of OpenSSL's own programs share: a node with one key, `openssl` without the provider, and
//! `s_server` on a port of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::edge::{Edge, EdgeOptions};
use crate::node::Node;
use crate::pki::{Identity, KeyKind};
use crate::process::{Process, free_port, listens, run_with_input, succeed};
use crate::release;
use crate::world::World;

/// A node with one key, named `www`, and the key's stub in a file.
#[derive(Debug)]
pub struct Pooled {
    /// The folder and the authority of the test.
    pub world: World,
    /// The node.
    pub node: Node,
    /// The key with its certificate.
    pub identity: Identity,
    /// The file of the stub.
    pub stub: PathBuf,
}

impl Pooled {
    /// A node whose key may be used for everything but decryption.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(kind: KeyKind) -> Self {
        Self::with_policy(kind, &["--allow-all"])
    }

    /// A node whose key has the policy of these options of `millrace key import`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn with_policy(kind: KeyKind, policy: &[&str]) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(kind);
        let stub = world.dir().join("stub.pem");
        fs::write(&stub, node.import_with("www", &identity, policy)).expect("stub");
        Self { world, node, identity, stub }
    }

    /// The configuration of a process that uses the node.
    pub fn edge(&self, options: impl FnOnce(EdgeOptions) -> EdgeOptions) -> Edge {
        options(EdgeOptions::to(self.node.endpoint())).write(self.world.dir())
    }

    /// A file in the folder of the test.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.world.dir().join(name);
        fs::write(&path, contents).expect("a file");
        path
    }

    /// The public key. OpenSSL without the provider reads it from the certificate.
    ///
    /// # Panics
    /// If it cannot.
    #[must_use]
    pub fn public_key(&self) -> PathBuf {
        let path = self.world.dir().join("public.pem");
        let _ = succeed(
            plain(&["x509", "-noout", "-pubkey", "-in"])
                .arg(&self.identity.certificate_file)
                .arg("-out")
                .arg(&path),
        );
        path
    }

    /// An `s_server` with the certificate of the key.
    #[must_use]
    pub fn serve(&self, edge: &Edge, key: &Path, options: &[&str]) -> SServer {
        let certificate = &self.identity.certificate_file;
        SServer::start(edge, self.world.dir(), certificate, key, options)
    }
}

/// The release's `openssl` without the provider.
#[must_use]
pub fn plain(arguments: &[&str]) -> Command {
    let mut command = release::command("openssl");
    command.env_remove("OPENSSL_CONF").env_remove("OPENSSL_MODULES").args(arguments);
    command
}

/// Connects this `s_client` to a server on this machine and asks for a page.
pub fn get(client: &mut Command, port: u16) -> Output {
    client.arg("-connect").arg(format!("127.0.0.1:{port}"));
    run_with_input(client, b"GET / HTTP/1.0\r\n\r\n")
}

/// A key that the release's `openssl genpkey` makes with these options, and its certificate for `localhost`: two
/// files in this folder.
///
/// # Panics
/// If they cannot be made.
#[must_use]
pub fn self_signed(dir: &Path, name: &str, options: &[&str]) -> (PathBuf, PathBuf) {
    let path = |extension: &str| dir.join(format!("{name}.{extension}"));
    let (key, certificate) = (path("pem"), path("crt"));
    let _ = succeed(plain(&["genpkey", "-out", text(&key)]).args(options));
    let mut request = plain(&["req", "-x509", "-new", "-key", text(&key), "-days", "2"]);
    request.args(["-subj", "/CN=localhost"]);
    request.args(["-addext", "subjectAltName=DNS:localhost"]);
    let _ = succeed(request.arg("-out").arg(&certificate));
    (key, certificate)
}

/// A path as an argument.
///
/// # Panics
/// If it is not UTF-8.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A running `openssl s_server -async -www`.
#[derive(Debug)]
pub struct SServer {
    process: Process,
    port: u16,
}

impl SServer {
    /// Starts it with the provider, and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(
        edge: &Edge,
        dir: &Path,
        certificate: &Path,
        key: &Path,
        options: &[&str],
    ) -> Self {
        let port = free_port();
        let mut command = edge.openssl(&["s_server", "-async", "-www", "-accept"]);
        command.arg(format!("127.0.0.1:{port}")).args(options);
        command.arg("-cert").arg(certificate).arg("-key").arg(key);
        let log = dir.join(format!("s_server-{port}.log"));
        let mut process = Process::start("s_server", command, &log);
        process.wait_ready(|| listens(port));
        Self { process, port }
    }

    /// Connects this `s_client` and asks for a page.
    pub fn get(&self, client: &mut Command) -> Output {
        get(client, self.port)
    }

    /// Process id of the server.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Output of the server.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Signs with the named algorithm: a message at once, a message in parts, and a digest. OpenSSL 3.5 signs
/// with ML-DSA only messages at once.
pub const SIGN_BY_NAME: &str = "
import ctypes, hashlib, sys
crypto = ctypes.CDLL('libcrypto.so.3')
for name in ['BIO_new_file', 'PEM_read_bio_PrivateKey', 'EVP_MD_CTX_new', 'EVP_SIGNATURE_fetch',
             'EVP_PKEY_CTX_new_from_pkey', 'EVP_PKEY_CTX_new']:
    getattr(crypto, name).restype = ctypes.c_void_p
pointer, size = ctypes.c_void_p, ctypes.c_size_t

def need(result):
    if not result or result < 0:
        crypto.ERR_print_errors_fp(pointer.in_dll(ctypes.CDLL(None), 'stderr'))
        sys.exit('libcrypto failed')
    return result

OPENSSL_INIT_LOAD_CONFIG = 0x40
need(crypto.OPENSSL_init_crypto(ctypes.c_uint64(OPENSSL_INIT_LOAD_CONFIG), None))
file = need(crypto.BIO_new_file(sys.argv[1].encode(), b'r'))
key = pointer(need(crypto.PEM_read_bio_PrivateKey(pointer(file), None, None, None)))
named = need(crypto.EVP_SIGNATURE_fetch(None, sys.argv[2].encode(), b'provider=millrace'))
algorithm = pointer(named)
message = b'to be signed, in parts or at once'
at_once_only = sys.argv[2].startswith('ML-DSA')
digest_name = None if at_once_only else b'SHA256'
digest = hashlib.sha256(message).digest()

def sign(init, produce):
    context = pointer(need(crypto.EVP_PKEY_CTX_new_from_pkey(None, key, None)))
    need(init(context, algorithm, None))
    length = size(0)
    need(produce(context, None, length))
    signature = ctypes.create_string_buffer(length.value)
    need(produce(context, signature, length))
    return signature.raw[:length.value]

def in_parts(context, signature, length):
    if signature is not None:
        for part in (message[:5], message[5:]):
            need(crypto.EVP_PKEY_sign_message_update(context, part, size(len(part))))
    room = length.value
    return crypto.EVP_PKEY_sign_message_final(context, signature, ctypes.byref(length))

def at_once(what):
    def produce(context, signature, length):
        return crypto.EVP_PKEY_sign(context, signature, ctypes.byref(length), what, size(len(what)))
    return produce

signatures = [sign(crypto.EVP_PKEY_sign_message_init, at_once(message))]
if not at_once_only:
    signatures.append(sign(crypto.EVP_PKEY_sign_message_init, in_parts))
    signatures.append(sign(crypto.EVP_PKEY_sign_init_ex2, at_once(digest)))
for signature in signatures:
    context = pointer(need(crypto.EVP_MD_CTX_new()))
    need(crypto.EVP_DigestVerifyInit_ex(context, None, digest_name, None, None, key, None))
    need(crypto.EVP_DigestVerify(context, signature, size(len(signature)), message, size(len(message))))
    verify = pointer(need(crypto.EVP_PKEY_CTX_new_from_pkey(None, key, None)))
    need(crypto.EVP_PKEY_verify_message_init(verify, algorithm, None))
    need(crypto.EVP_PKEY_verify(verify, signature, size(len(signature)), message, size(len(message))))
print(len(signatures), 'signatures verify')
";
