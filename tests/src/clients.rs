// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS clients of other projects. Each makes one full handshake, verifies it against the authority, sends
//! one request and checks the answer. Clients on OpenSSL come from the release under test.

use std::process::Output;

use crate::drive::Tls;
use crate::pki::Authority;
use crate::process::{program, run, run_with_input, text_of};
use crate::release::{command, python};

/// A program that is a TLS client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// curl, on OpenSSL.
    Curl,
    /// GnuTLS.
    Gnutls,
    /// The `ssl` module of the system's Python, on OpenSSL.
    Python,
    /// `openssl s_client`.
    Openssl,
}

impl Program {
    /// Every client, in the order of the tests.
    pub const ALL: [Self; 4] = [Self::Curl, Self::Gnutls, Self::Python, Self::Openssl];

    /// One handshake.
    ///
    /// # Panics
    /// If the program reports an error.
    pub fn handshake(self, port: u16, tls: Tls, authority: &Authority) {
        let output = self.run(port, tls, authority);
        let text = text_of(&output);
        let good = output.status.success() && text.contains("200 OK") && text.contains("ok");
        assert!(good, "{self:?} {tls:?}: {}\n{text}", output.status);
    }

    fn run(self, port: u16, tls: Tls, authority: &Authority) -> Output {
        let ca = authority.file.as_os_str();
        match self {
            Self::Curl => run(command("curl")
                .args(["--silent", "--show-error", "--include", "--http1.1", "--cacert"])
                .arg(ca)
                .args(match tls {
                    Tls::V12 => ["--tlsv1.2", "--tls-max", "1.2"],
                    Tls::V13 => ["--tlsv1.3", "--tls-max", "1.3"],
                })
                .args(["--resolve", &format!("localhost:{port}:127.0.0.1")])
                .arg(format!("https://localhost:{port}/"))),
            Self::Gnutls => {
                let version = match tls {
                    Tls::V12 => "NORMAL:-VERS-ALL:+VERS-TLS1.2",
                    Tls::V13 => "NORMAL:-VERS-ALL:+VERS-TLS1.3",
                };
                let mut command = std::process::Command::new(program("gnutls-cli"));
                command.arg("--x509cafile").arg(ca).args(["--priority", version]);
                command.args(["--verify-hostname=localhost", "--port", &port.to_string()]);
                run_with_input(command.arg("127.0.0.1"), REQUEST)
            }
            Self::Python => {
                run(python().args(["-c", PYTHON]).arg(ca).arg(port.to_string()).arg(match tls {
                    Tls::V12 => "TLSv1_2",
                    Tls::V13 => "TLSv1_3",
                }))
            }
            Self::Openssl => {
                let mut command = command("openssl");
                command.args(["s_client", "-quiet", "-verify_return_error", "-CAfile"]).arg(ca);
                command.args([
                    "-connect",
                    &format!("127.0.0.1:{port}"),
                    "-servername",
                    "localhost",
                ]);
                command.args(["-verify_hostname", "localhost"]);
                command.arg(match tls {
                    Tls::V12 => "-tls1_2",
                    Tls::V13 => "-tls1_3",
                });
                run_with_input(&mut command, REQUEST)
            }
        }
    }
}

/// HTTP/1.0: the server closes, and the clients end with it.
const REQUEST: &[u8] = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";

const PYTHON: &str = "
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.minimum_version = context.maximum_version = ssl.TLSVersion[sys.argv[3]]
with socket.create_connection(('127.0.0.1', int(sys.argv[2])), timeout=20) as plain:
    with context.wrap_socket(plain, server_hostname='localhost') as tls:
        tls.sendall(b'GET / HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n')
        answer = b''
        while True:
            try:
                more = tls.recv(4096)
            except ssl.SSLEOFError:
                break
            if not more:
                break
            answer += more
        print(tls.version(), answer.decode())
";
