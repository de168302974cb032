// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! DH and DSA, which the library does not offer by its own interface: keys, expected secrets and the
//! verification of signatures come from the system's `openssl`, as a child.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zeroize::Zeroizing;

use crate::error::BenchError;
use crate::keys::write_private_bytes;
use crate::process::need;

/// The header of a DER INTEGER of 256 bytes, with or without a zero in front.
const INTEGER_256: [&[u8]; 2] = [b"\x02\x82\x01\x00", b"\x02\x82\x01\x01\x00"];

/// Length of an element of a group of 2048 bits.
const ELEMENT_LEN: usize = 256;

/// Tries until a public value has no leading zero byte: each succeeds 255 times out of 256.
const MAX_TRIES: usize = 8;

/// A key of the system's OpenSSL, in a file of its own.
pub(super) struct Foreign {
    openssl: PathBuf,
    dir: tempfile::TempDir,
    pub(super) pkcs8: Zeroizing<Vec<u8>>,
    /// For DH: another party's public value, and the secret with it.
    pub(super) agreed: Option<(Vec<u8>, Vec<u8>)>,
}

impl Foreign {
    /// A DH key of the group ffdhe2048, and somebody to agree with.
    pub(super) fn dh() -> Result<Self, BenchError> {
        let generate = ["genpkey", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048"];
        let mut own = Self::generate(&generate)?;
        for _ in 0..MAX_TRIES {
            let peer = Self::generate(&generate)?;
            let public = peer.run(&["pkey", "-inform", "DER", "-pubout", "-outform", "DER"])?;
            let Some(value) = last_integer(&public) else {
                continue;
            };
            let file = own.dir.path().join("peer");
            fs::write(&file, &public).map_err(BenchError::file("write", &file))?;
            let mut command = own.command(&["pkeyutl", "-derive", "-keyform", "DER", "-inkey"]);
            command.arg(own.file());
            command.args(["-peerform", "DER", "-peerkey"]).arg(&file);
            let secret = output(command)?;
            // What we compute has the length of the prime; OpenSSL leaves leading zeros out.
            let mut padded = vec![0; ELEMENT_LEN.saturating_sub(secret.len())];
            padded.extend_from_slice(&secret);
            own.agreed = Some((value, padded));
            return Ok(own);
        }
        Err(BenchError::Setup(
            "openssl makes no DH key of 2048 bits".to_owned(),
        ))
    }

    /// A DSA key with 2048 bits.
    pub(super) fn dsa() -> Result<Self, BenchError> {
        let generate = [
            "genpkey",
            "-genparam",
            "-algorithm",
            "DSA",
            "-pkeyopt",
            "dsa_paramgen_bits:2048",
            "-pkeyopt",
            "dsa_paramgen_q_bits:256",
        ];
        let parameters = Self::generate(&generate)?;
        let file = parameters.file().display().to_string();
        Self::generate(&["genpkey", "-paramfile", &file])
    }

    /// Whether this DSA signature is good.
    pub(super) fn verifies(&self, digest: &[u8], signature: &[u8]) -> Result<bool, BenchError> {
        let (hashed, signed) = (self.dir.path().join("digest"), self.dir.path().join("sig"));
        for (file, bytes) in [(&hashed, digest), (&signed, signature)] {
            fs::write(file, bytes).map_err(BenchError::file("write", file))?;
        }
        let mut command = self.command(&["pkeyutl", "-verify", "-keyform", "DER", "-inkey"]);
        command.arg(self.file()).arg("-in").arg(&hashed);
        command.arg("-sigfile").arg(&signed);
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(BenchError::system("run openssl"))?;
        Ok(status.success())
    }

    /// What `openssl` generates with these arguments, as DER unless it is parameters.
    fn generate(args: &[&str]) -> Result<Self, BenchError> {
        let dir = tempfile::Builder::new()
            .prefix("millrace-bench-")
            .tempdir()
            .map_err(BenchError::system("create a temporary folder"))?;
        let mut made = Self {
            openssl: need("openssl")?,
            dir,
            pkcs8: Zeroizing::default(),
            agreed: None,
        };
        let generated = Zeroizing::new(output(made.command(args))?);
        write_private_bytes(&made.file(), &generated)?;
        if !args.contains(&"-genparam") {
            made.pkcs8 =
                Zeroizing::new(made.run(&["pkcs8", "-topk8", "-nocrypt", "-outform", "DER"])?);
            write_private_bytes(&made.file(), &made.pkcs8)?;
        }
        Ok(made)
    }

    /// Runs `openssl` with the key as its input.
    fn run(&self, args: &[&str]) -> Result<Vec<u8>, BenchError> {
        let mut command = self.command(args);
        command.arg("-in").arg(self.file());
        output(command)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.openssl);
        command
            .args(args)
            .env_remove("OPENSSL_CONF")
            .stdin(Stdio::null());
        command
    }

    fn file(&self) -> PathBuf {
        Path::join(self.dir.path(), "key")
    }
}

fn output(mut command: Command) -> Result<Vec<u8>, BenchError> {
    let output = command
        .output()
        .map_err(BenchError::system("run openssl"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(BenchError::Child {
        name: "openssl".to_owned(),
        problem: format!("failed ({})", output.status),
        log: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The INTEGER of 256 bytes at the end, if there is one.
fn last_integer(der: &[u8]) -> Option<Vec<u8>> {
    let (before, value) = der.split_at_checked(der.len().checked_sub(ELEMENT_LEN)?)?;
    INTEGER_256
        .iter()
        .any(|header| before.ends_with(header))
        .then(|| value.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_is_found_at_the_end() {
        let value = [0x55; ELEMENT_LEN];
        for header in INTEGER_256 {
            let der = [b"whatever", header, &value].concat();
            assert_eq!(last_integer(&der).as_deref(), Some(&value[..]));
        }
        assert!(last_integer(&[b"\x02\x81\xff".as_slice(), &value].concat()).is_none());
        assert!(last_integer(b"short").is_none());
    }
}
