// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parameters and error texts of every provider, usable or not.

use std::ffi::CStr;
use std::sync::OnceLock;

use super::libcrypto::Ptr;
use super::params::{self, set_string_ptr, set_unsigned};
use super::types::{Item, Param, StaticTable};
use super::{core, ids};
use crate::error::Reason;

/// Frees nothing: at exit libcrypto is half gone, and elsewhere a late completion may be under way.
pub(crate) unsafe extern "C" fn teardown<const ID: i32>(_provctx: Ptr) {}

/// The version of this crate, for C.
pub(crate) const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!(),
    };

/// The parameter `status` of a provider.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProviderStatus {
    Unusable = 0,
    Usable = 1,
}

/// The parameters of every provider. A usable one has counters, too.
pub(crate) const PARAMS: [Param; 5] = [
    Param::listed(c"name", ids::param::UTF8_PTR),
    Param::listed(c"version", ids::param::UTF8_PTR),
    Param::listed(c"buildinfo", ids::param::UTF8_PTR),
    Param::listed(c"status", ids::param::UNSIGNED_INTEGER),
    Param::END,
];

/// Fills the entries of a request that are in [`PARAMS`] or have a counter. Returns `false` at the first entry of
/// an unexpected type.
///
/// # Safety
/// `request` is null or an array that a null key ends, and each entry describes writable memory.
pub(crate) unsafe fn answer(
    request: *mut Param,
    name: &'static CStr,
    status: ProviderStatus,
    counter: impl Fn(&CStr) -> Option<u64>,
) -> bool {
    // SAFETY: by this function's contract.
    let count = unsafe { params::entries(request) }.count();
    (0..count).all(|index| {
        // SAFETY: one of the entries counted above, which may be written by this function's contract.
        let param = unsafe { &mut *request.add(index) };
        // SAFETY: the key of a counted entry is not null, and so a C string.
        let key = unsafe { CStr::from_ptr(param.key) };
        // SAFETY: by this function's contract each entry describes writable memory.
        unsafe {
            match key.to_bytes() {
                b"name" => set_string_ptr(param, name),
                b"version" | b"buildinfo" => set_string_ptr(param, VERSION),
                b"status" => {
                    // Some callers ask for a signed integer: 0 and 1 are the same in both types.
                    param.data_type = ids::param::UNSIGNED_INTEGER.unsigned_abs();
                    set_unsigned(param, status as u64)
                }
                _ => counter(key).is_none_or(|value| set_unsigned(param, value)),
            }
        }
    })
}

pub(crate) unsafe extern "C" fn reason_strings<const ID: i32>(_provctx: Ptr) -> *const Item {
    static LIST: OnceLock<StaticTable<Item>> = OnceLock::new();
    core::guard_bare(std::ptr::null(), || {
        let list = LIST.get_or_init(|| {
            let mut entries: Vec<Item> = Reason::TEXTS
                .iter()
                .map(|(reason, text)| Item { id: *reason as u32, pointer: text.as_ptr().cast() })
                .collect();
            entries.push(Item { id: 0, pointer: std::ptr::null() });
            StaticTable::leak(entries)
        });
        Some(list.as_ptr())
    })
}
