// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Numbers and names from `openssl/core_dispatch.h`, `core_object.h` and `core.h`.
//!
//! The numbers are part of OpenSSL's stable interface: a number never changes its meaning. A test compares each with
//! the installed header. The header's name is the module's prefix and the constant's name.

macro_rules! ids {
    ($($module:ident $prefix:literal { $($name:ident = $value:literal;)* })*) => {
        $(pub(crate) mod $module {
            $(pub(crate) const $name: i32 = $value;)*
        })*

        #[cfg(test)]
        const ALL: &[(&str, i32)] = &[$($((concat!($prefix, stringify!($name)), $value)),*),*];
    };
}

#[rustfmt::skip]
ids! {
    upcall "OSSL_FUNC_CORE_" {
        GET_PARAMS = 2;
        GET_LIBCTX = 4;
        NEW_ERROR = 5;
        SET_ERROR_DEBUG = 6;
        VSET_ERROR = 7;
        SET_ERROR_MARK = 8;
        POP_ERROR_TO_MARK = 10;
    }
    bio "OSSL_FUNC_BIO_" {
        READ_EX = 42;
        GETS = 49;
    }
    provider "OSSL_FUNC_PROVIDER_" {
        TEARDOWN = 1024;
        GETTABLE_PARAMS = 1025;
        GET_PARAMS = 1026;
        QUERY_OPERATION = 1027;
        GET_REASON_STRINGS = 1029;
        GET_CAPABILITIES = 1030;
    }
    op "OSSL_OP_" {
        DIGEST = 1;
        CIPHER = 2;
        MAC = 3;
        KDF = 4;
        KEYMGMT = 10;
        KEYEXCH = 11;
        SIGNATURE = 12;
        ASYM_CIPHER = 13;
        KEM = 14;
        DECODER = 21;
        STORE = 22;
    }
    select "OSSL_KEYMGMT_SELECT_" {
        PRIVATE_KEY = 0x01;
        PUBLIC_KEY = 0x02;
        DOMAIN_PARAMETERS = 0x04;
        OTHER_PARAMETERS = 0x80;
    }
    keymgmt "OSSL_FUNC_KEYMGMT_" {
        NEW = 1;
        GEN_INIT = 2;
        GEN_SET_TEMPLATE = 3;
        GEN_SET_PARAMS = 4;
        GEN_SETTABLE_PARAMS = 5;
        GEN = 6;
        GEN_CLEANUP = 7;
        LOAD = 8;
        FREE = 10;
        GET_PARAMS = 11;
        GETTABLE_PARAMS = 12;
        SET_PARAMS = 13;
        SETTABLE_PARAMS = 14;
        QUERY_OPERATION_NAME = 20;
        HAS = 21;
        VALIDATE = 22;
        MATCH = 23;
        IMPORT = 40;
        IMPORT_TYPES = 41;
        EXPORT = 42;
        EXPORT_TYPES = 43;
        DUP = 44;
    }
    digest "OSSL_FUNC_DIGEST_" {
        NEWCTX = 1;
        INIT = 2;
        UPDATE = 3;
        FINAL = 4;
        FREECTX = 6;
        DUPCTX = 7;
        GET_PARAMS = 8;
        GETTABLE_PARAMS = 11;
        COPYCTX = 15;
    }
    aead "OSSL_FUNC_CIPHER_" {
        NEWCTX = 1;
        ENCRYPT_INIT = 2;
        DECRYPT_INIT = 3;
        UPDATE = 4;
        FINAL = 5;
        CIPHER = 6;
        FREECTX = 7;
        DUPCTX = 8;
        GET_PARAMS = 9;
        GET_CTX_PARAMS = 10;
        SET_CTX_PARAMS = 11;
        GETTABLE_PARAMS = 12;
        GETTABLE_CTX_PARAMS = 13;
        SETTABLE_CTX_PARAMS = 14;
    }
    mac "OSSL_FUNC_MAC_" {
        NEWCTX = 1;
        DUPCTX = 2;
        FREECTX = 3;
        INIT = 4;
        UPDATE = 5;
        FINAL = 6;
        GET_PARAMS = 7;
        GET_CTX_PARAMS = 8;
        SET_CTX_PARAMS = 9;
        GETTABLE_PARAMS = 10;
        GETTABLE_CTX_PARAMS = 11;
        SETTABLE_CTX_PARAMS = 12;
    }
    keyexch "OSSL_FUNC_KEYEXCH_" {
        NEWCTX = 1;
        INIT = 2;
        DERIVE = 3;
        SET_PEER = 4;
        FREECTX = 5;
        DUPCTX = 6;
        SET_CTX_PARAMS = 7;
        SETTABLE_CTX_PARAMS = 8;
        GET_CTX_PARAMS = 9;
        GETTABLE_CTX_PARAMS = 10;
    }
    kem "OSSL_FUNC_KEM_" {
        NEWCTX = 1;
        ENCAPSULATE_INIT = 2;
        ENCAPSULATE = 3;
        DECAPSULATE_INIT = 4;
        DECAPSULATE = 5;
        FREECTX = 6;
        DUPCTX = 7;
    }
    kdf "OSSL_FUNC_KDF_" {
        NEWCTX = 1;
        DUPCTX = 2;
        FREECTX = 3;
        RESET = 4;
        DERIVE = 5;
        GETTABLE_CTX_PARAMS = 7;
        SETTABLE_CTX_PARAMS = 8;
        GET_CTX_PARAMS = 10;
        SET_CTX_PARAMS = 11;
    }
    signature "OSSL_FUNC_SIGNATURE_" {
        NEWCTX = 1;
        SIGN_INIT = 2;
        SIGN = 3;
        VERIFY_INIT = 4;
        VERIFY = 5;
        VERIFY_RECOVER_INIT = 6;
        VERIFY_RECOVER = 7;
        DIGEST_SIGN_INIT = 8;
        DIGEST_SIGN_UPDATE = 9;
        DIGEST_SIGN_FINAL = 10;
        DIGEST_SIGN = 11;
        DIGEST_VERIFY_INIT = 12;
        DIGEST_VERIFY_UPDATE = 13;
        DIGEST_VERIFY_FINAL = 14;
        DIGEST_VERIFY = 15;
        FREECTX = 16;
        DUPCTX = 17;
        GET_CTX_PARAMS = 18;
        GETTABLE_CTX_PARAMS = 19;
        SET_CTX_PARAMS = 20;
        SETTABLE_CTX_PARAMS = 21;
        GET_CTX_MD_PARAMS = 22;
        GETTABLE_CTX_MD_PARAMS = 23;
        SET_CTX_MD_PARAMS = 24;
        SETTABLE_CTX_MD_PARAMS = 25;
        QUERY_KEY_TYPES = 26;
        SIGN_MESSAGE_INIT = 27;
        SIGN_MESSAGE_UPDATE = 28;
        SIGN_MESSAGE_FINAL = 29;
        VERIFY_MESSAGE_INIT = 30;
        VERIFY_MESSAGE_UPDATE = 31;
        VERIFY_MESSAGE_FINAL = 32;
    }
    cipher "OSSL_FUNC_ASYM_CIPHER_" {
        NEWCTX = 1;
        ENCRYPT_INIT = 2;
        ENCRYPT = 3;
        DECRYPT_INIT = 4;
        DECRYPT = 5;
        FREECTX = 6;
        DUPCTX = 7;
        GET_CTX_PARAMS = 8;
        GETTABLE_CTX_PARAMS = 9;
        SET_CTX_PARAMS = 10;
        SETTABLE_CTX_PARAMS = 11;
    }
    decoder "OSSL_FUNC_DECODER_" {
        NEWCTX = 1;
        FREECTX = 2;
        DOES_SELECTION = 10;
        DECODE = 11;
    }
    store "OSSL_FUNC_STORE_" {
        OPEN = 1;
        SETTABLE_CTX_PARAMS = 3;
        SET_CTX_PARAMS = 4;
        LOAD = 5;
        EOF = 6;
        CLOSE = 7;
    }
    object "OSSL_OBJECT_" {
        PKEY = 2;
    }
    param "OSSL_PARAM_" {
        INTEGER = 1;
        UNSIGNED_INTEGER = 2;
        UTF8_STRING = 4;
        OCTET_STRING = 5;
        UTF8_PTR = 6;
        OCTET_PTR = 7;
    }
}

/// One more than the largest function number of any operation that is delegated; tables of an
/// inner algorithm are indexed by it.
pub(crate) const FUNCTIONS: usize = 48;

/// Public key, domain and other parameters: the public half with all that describes it.
pub(crate) const SELECT_PUBLIC: i32 =
    select::PUBLIC_KEY | select::DOMAIN_PARAMETERS | select::OTHER_PARAMETERS;

/// The public half, and the private key.
pub(crate) const SELECT_ALL: i32 = SELECT_PUBLIC | select::PRIVATE_KEY;

#[cfg(test)]
mod tests {
    use super::*;

    /// `OSSL_FUNC_SIGNATURE_QUERY_KEY_TYPES`, and what follows it, came with OpenSSL 3.4.
    const SINCE_3_4: i32 = signature::QUERY_KEY_TYPES;

    #[test]
    fn every_number_is_that_of_the_installed_headers() {
        let mut headers = String::new();
        for name in ["core_dispatch.h", "core_object.h", "core.h"] {
            let path = format!("/usr/include/openssl/{name}");
            match std::fs::read_to_string(&path) {
                Ok(text) => headers.push_str(&text),
                Err(_) => millrace_testkit::skip!("{path} is not installed"),
            }
        }
        // Older headers lack all of the newer ones, none lacks some of them.
        let newer = headers.contains("OSSL_FUNC_SIGNATURE_QUERY_KEY_TYPES");
        let copies = headers.contains("OSSL_FUNC_DIGEST_COPYCTX");
        let known = ALL.iter().filter(|(name, _)| copies || *name != "OSSL_FUNC_DIGEST_COPYCTX");
        let known = known.filter(|(name, value)| {
            newer || !name.starts_with("OSSL_FUNC_SIGNATURE_") || *value < SINCE_3_4
        });
        for (name, value) in known {
            let defined = headers.lines().find_map(|line| {
                let mut words = line.split_whitespace();
                let found = words.next() == Some("#define") && words.next() == Some(name);
                found.then(|| words.next().unwrap_or("").to_owned())
            });
            let defined = defined.unwrap_or_else(|| panic!("{name} is not in the headers"));
            let number = match defined.strip_prefix("0x") {
                Some(hex) => i32::from_str_radix(hex, 16),
                None => defined.parse(),
            };
            assert_eq!(number.ok(), Some(*value), "{name}");
        }
    }
}
