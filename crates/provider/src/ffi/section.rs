// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section in `openssl.cnf`, the unknown ones included.
//!
//! The core gives a provider the value of a key that it names, but no list of keys, so a misspelt key would
//! go unnoticed. Here libcrypto parses the file that it reads by default once more, and the section is found
//! in it by the provider's name. A section with other values than those that the core gave is not the one
//! that was loaded (an application may load another file), and nothing is said about it.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

use super::core::Core;
use super::libcrypto::{Lib, Ptr};

/// `CONF_VALUE` of `openssl/conf.h`.
#[repr(C)]
struct ConfValue {
    section: *const c_char,
    name: *const c_char,
    value: *const c_char,
}

/// Bound on the entries of a section: the providers of one process, or the keys of one provider.
const MAX_ENTRIES: c_int = 256;

type Pairs = Vec<(String, String)>;

/// A parsed configuration file, freed with this value.
struct Conf<'a> {
    lib: &'a Lib,
    conf: Ptr,
}

impl Drop for Conf<'_> {
    fn drop(&mut self) {
        if let Some(free) = self.lib.NCONF_free {
            // SAFETY: made by `NCONF_new`, and not used again.
            unsafe { free(self.conf) };
        }
    }
}

impl<'a> Conf<'a> {
    /// The file that libcrypto reads by default, if there is one that parses.
    fn default_file(lib: &'a Lib) -> Option<Self> {
        let (path_of, free) = (lib.CONF_get1_default_config_file?, lib.CRYPTO_free?);
        let (new, load) = (lib.NCONF_new?, lib.NCONF_load?);
        // SAFETY: takes nothing.
        let path = unsafe { path_of() };
        if path.is_null() {
            return None;
        }
        // SAFETY: takes null for the usual format.
        let conf = unsafe { new(std::ptr::null_mut()) };
        let conf = (!conf.is_null()).then_some(Self { lib, conf });
        let loaded = conf.filter(|conf| {
            let mut line: c_long = 0;
            // SAFETY: takes a configuration, a C string and a place for the number of a bad line.
            unsafe { load(conf.conf, path, &mut line) > 0 }
        });
        // SAFETY: a string of libcrypto, given to the caller and not used again.
        unsafe { free(path.cast(), c"millrace".as_ptr(), 0) };
        loaded
    }

    /// The entries of a section in order; none if there is no such section.
    fn section(&self, name: &str) -> Option<Pairs> {
        let (count_of, entry_of) = (self.lib.OPENSSL_sk_num?, self.lib.OPENSSL_sk_value?);
        let name = CString::new(name).ok()?;
        // SAFETY: takes a configuration and a C string. The stack belongs to the configuration.
        let entries = unsafe { self.lib.NCONF_get_section?(self.conf, name.as_ptr()) };
        if entries.is_null() {
            return None;
        }
        // SAFETY: takes a stack.
        let count = unsafe { count_of(entries) }.min(MAX_ENTRIES);
        let pair = |index| {
            // SAFETY: takes a stack and an index below its count; a section's stack has `CONF_VALUE`s.
            let entry = unsafe { entry_of(entries, index).cast::<ConfValue>().as_ref() }?;
            // SAFETY: an entry of a parsed file has C strings or null, which live as long as the file.
            Some(unsafe { (text(entry.name)?, text(entry.value)?) })
        };
        Some((0..count).filter_map(pair).collect())
    }

    /// The sections of providers with this name, in every application's part of the file.
    fn of_provider(&self, name: &str) -> Vec<Pairs> {
        let value = |pairs: &Pairs, key: &str| {
            let found = pairs.iter().rfind(|(name, _)| name == key);
            found.map(|(_, value)| value.clone())
        };
        // `openssl_conf = init`, `providers = list`, `millrace = section`.
        let applications = self.section("default").unwrap_or_default();
        let lists = applications.iter().filter_map(|(_, init)| {
            let init = self.section(init)?;
            self.section(&value(&init, "providers")?)
        });
        let named = |(key, section): &(String, String)| {
            let pairs = self.section(section)?;
            // OpenSSL ignores what stands before a dot: a name may be there twice.
            let key = key.rsplit('.').next().unwrap_or(key);
            let identity = value(&pairs, "identity").unwrap_or_else(|| key.to_owned());
            (identity == name).then_some(pairs)
        };
        lists.flat_map(|list| list.iter().filter_map(named).collect::<Vec<_>>()).collect()
    }
}

/// # Safety
/// `pointer` is null or a C string.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and by this function's contract a C string.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// The keys of the section whose known keys have the values of `known`, as the core gave them.
pub(crate) fn keys(core: &Core, lib: &Lib, known: &[(String, String)]) -> Vec<String> {
    let find = || {
        let conf = Conf::default_file(lib)?;
        let mut sections = conf.of_provider(&core.setting(c"provider-name")?).into_iter();
        let has = |pairs: &Pairs, (key, value): &(String, String)| {
            pairs.iter().any(|(name, found)| name == key && found == value)
        };
        sections.find(|pairs| known.iter().all(|setting| has(pairs, setting)))
    };
    let section = core.discarding_errors(find).unwrap_or_default();
    section.into_iter().map(|(key, _)| key).collect()
}

/// `CONF_get1_default_config_file`
pub(crate) type DefaultFile = unsafe extern "C" fn() -> *mut c_char;
/// `CRYPTO_free`
pub(crate) type ConfFree = unsafe extern "C" fn(*mut c_void, *const c_char, c_int);
/// `NCONF_load`
pub(crate) type ConfLoad = unsafe extern "C" fn(Ptr, *const c_char, *mut c_long) -> c_int;
