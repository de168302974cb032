// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Certificates and revocation lists, as files.

use std::path::Path;

use millrace_hostfs::ordinary::{self, Links};
use millrace_operation::stub;
use x509_parser::pem::Pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::{Certificate, Revocations};

/// Bound on a certificate, key or revocation list, in bytes: the longest lists of public authorities have 20 MB.
const MAX_FILE: usize = 64 << 20;

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    ordinary::read(path, Links::Follow, MAX_FILE)
}

/// End of a certificate's validity, seconds since 1970; `None` if it cannot be read.
pub(crate) fn valid_until(path: &Path) -> Option<i64> {
    match certificate(path) {
        Certificate::Certificate { until, .. } => Some(until),
        Certificate::Unreadable(_) | Certificate::Key | Certificate::Stub => None,
    }
}

pub(super) fn certificate(path: &Path) -> Certificate {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) => return Certificate::Unreadable(error.to_string()),
    };
    if path.ends_with("key.pem") {
        // The members themselves read it.
        let begin = stub::BEGIN.as_bytes();
        return if text.windows(begin.len()).any(|part| part == begin) {
            Certificate::Stub
        } else {
            Certificate::Key
        };
    }
    let Some(Ok(pem)) = Pem::iter_from_buffer(&text).next() else {
        return Certificate::Unreadable("is not a PEM file".to_owned());
    };
    match pem.parse_x509() {
        Ok(certificate) => Certificate::Certificate {
            from: certificate.validity().not_before.timestamp(),
            until: certificate.validity().not_after.timestamp(),
            name: certificate
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok())
                .unwrap_or_default()
                .to_owned(),
        },
        Err(_) => Certificate::Unreadable("holds no certificate".to_owned()),
    }
}

pub(super) fn revocations(path: &Path) -> Option<Revocations> {
    let unreadable = |why: String| Some(Revocations::Unreadable(why));
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return unreadable(error.to_string()),
    };
    let Some(Ok(pem)) = Pem::iter_from_buffer(&text).next() else {
        return unreadable("is not a PEM file".to_owned());
    };
    match CertificateRevocationList::from_der(&pem.contents) {
        Ok((_, list)) => {
            Some(Revocations::List { until: list.next_update().map(|time| time.timestamp()) })
        }
        Err(_) => unreadable("holds no revocation list".to_owned()),
    }
}
