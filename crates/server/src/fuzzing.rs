// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! For the fuzz targets only (feature `fuzzing`; no other build has this module): opens the door to the
//! reader of certificates.

/// Reads the identity out of a client's certificate.
///
/// # Panics
/// If it yields one that a policy must not hold, or means everybody.
pub fn certificate(der: &[u8]) {
    if let Some(identity) = crate::tls::identity(&der.into()) {
        assert!(identity.len() > "cert:".len() && identity.starts_with("cert:"));
        assert!(!identity.contains('*') && millrace_service::store::valid_identity(&identity));
    }
}
