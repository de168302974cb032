// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Exposes the certificate parser to the fuzz targets (feature `fuzzing`; no other build has this module).

/// Reads the identity from a client's certificate.
///
/// # Panics
/// If the identity is invalid in a policy, or is the wildcard.
pub fn certificate(der: &[u8]) {
    if let Some(identity) = crate::tls::identity(&der.into()) {
        let kinds = ["cert:", "spiffe://"];
        assert!(kinds.iter().any(|kind| identity.len() > kind.len() && identity.starts_with(kind)));
        assert!(!identity.contains('*') && millrace_service::store::valid_identity(&identity));
    }
}
