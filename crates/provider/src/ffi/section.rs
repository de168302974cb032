// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of the provider's section in `openssl.cnf`, the unknown ones included.
//!
//! The core gives a provider the value of a key that it names, but no list of keys, so nothing would notice a misspelt
//! key. So libcrypto parses its default file once more, and the provider finds its section by its name. If the values
//! of that section differ from those of the core, the application has loaded another file, and the section is
//! ignored.

use std::ffi::{CStr, CString, c_char, c_int, c_long};

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
        let path_of = lib.CONF_get1_default_config_file?;
        let free = lib.CRYPTO_free?;
        let new = lib.NCONF_new?;
        let load = lib.NCONF_load?;
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

    /// The entries of a section in order. `None` if the file has no such section.
    fn section(&self, name: &str) -> Option<Pairs> {
        let count_of = self.lib.OPENSSL_sk_num?;
        let entry_of = self.lib.OPENSSL_sk_value?;
        let name = CString::new(name).ok()?;
        // SAFETY: takes a configuration and a C string. The stack belongs to the configuration.
        let entries = unsafe { self.lib.NCONF_get_section?(self.conf, name.as_ptr()) };
        if entries.is_null() {
            return None;
        }
        // SAFETY: takes a stack.
        let count = unsafe { count_of(entries) }.min(MAX_ENTRIES);
        let mut pairs = Vec::new();
        for index in 0..count {
            // SAFETY: takes a stack and an index below its count; a section's stack has `CONF_VALUE`s.
            let Some(entry) = (unsafe { entry_of(entries, index).cast::<ConfValue>().as_ref() })
            else {
                continue;
            };
            // SAFETY: an entry of a parsed file has C strings or null, which live as long as the file.
            let (name, value) = unsafe { (text(entry.name), text(entry.value)) };
            pairs.extend(name.zip(value));
        }
        Some(pairs)
    }

    /// The sections of providers with this name, in every application's part of the file.
    fn of_provider(&self, name: &str) -> Vec<Pairs> {
        let mut found = Vec::new();
        // `openssl_conf = init`, `providers = list`, `millrace = section`.
        for (_, init) in self.section("default").unwrap_or_default() {
            let Some(init) = self.section(&init) else { continue };
            let Some(list) = value(&init, "providers").and_then(|list| self.section(list)) else {
                continue;
            };
            for (key, section) in list {
                let Some(pairs) = self.section(&section) else { continue };
                // OpenSSL ignores what stands before a dot: a name may be there twice.
                let key = key.rsplit('.').next().unwrap_or(&key);
                if value(&pairs, "identity").unwrap_or(key) == name {
                    found.push(pairs);
                }
            }
        }
        found
    }
}

/// The value of a key, the last one if the section repeats it.
fn value<'a>(pairs: &'a Pairs, key: &str) -> Option<&'a str> {
    pairs.iter().rfind(|(name, _)| name == key).map(|(_, value)| value.as_str())
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
    let section = core.discarding_errors(|| {
        let sections = Conf::default_file(lib)?.of_provider(&core.setting(c"provider-name")?);
        sections.into_iter().find(|pairs| known.iter().all(|setting| pairs.contains(setting)))
    });
    section.unwrap_or_default().into_iter().map(|(key, _)| key).collect()
}
