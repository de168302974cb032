// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The TLS groups of key shares that this OpenSSL does not have. The others are announced by the `default` provider,
//! whose announcement the provider forwards: libssl takes a group from the provider whose key manager it fetches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{Chosen, offers};
use crate::algorithms::Share;
use crate::error::Result;
use crate::ffi::inner;
use crate::ffi::types::{Callback, Param};

/// TLS 1.3
const TLS_1_3: c_int = 0x0304;
/// No upper bound
const ANY: c_int = 0;
/// No DTLS version
const NEVER: c_int = -1;

/// Announces them. 0 if `callback` has had enough.
///
/// # Safety
/// `capability` is null or a C string, and `callback` may be called with `argument` now.
pub(in crate::ffi) unsafe fn announce(
    chosen: &Chosen,
    capability: *const c_char,
    callback: Callback,
    argument: *mut c_void,
) -> Result<c_int> {
    // SAFETY: by this function's contract.
    if capability.is_null() || unsafe { CStr::from_ptr(capability) } != c"TLS-GROUP" {
        return Ok(1);
    }
    for &share in Share::ALL {
        let row = share.row();
        let Some(group) = &row.group else { continue };
        if inner::context()?.shares[share as usize].is_some() || !offers(chosen, share)? {
            continue;
        }
        let mut id = group.id;
        let mut is_kem = c_uint::from(!share.is_agreement());
        let mut bits = row.security_bits.unsigned_abs();
        let [mut min_tls, mut max_tls, mut min_dtls, mut max_dtls] = [TLS_1_3, ANY, NEVER, NEVER];
        let params = [
            Param::text(c"tls-group-name", group.name),
            Param::text(c"tls-group-name-internal", row.name),
            Param::text(c"tls-group-alg", row.name),
            Param::uint(c"tls-group-id", &mut id),
            Param::uint(c"tls-group-sec-bits", &mut bits),
            Param::uint(c"tls-group-is-kem", &mut is_kem),
            Param::int(c"tls-min-tls", &mut min_tls),
            Param::int(c"tls-max-tls", &mut max_tls),
            Param::int(c"tls-min-dtls", &mut min_dtls),
            Param::int(c"tls-max-dtls", &mut max_dtls),
            Param::END,
        ];
        // SAFETY: by this function's contract; the array has its end, and its entries lie over numbers and
        // strings that live until the callback returns.
        if unsafe { callback(params.as_ptr(), argument) } != 1 {
            return Ok(0);
        }
    }
    Ok(1)
}
