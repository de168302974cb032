// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Numbers and names from `openssl/core_dispatch.h`, `core_object.h` and `core_names.h`.
//!
//! They are part of OpenSSL's stable interface: a number never changes its meaning. A test compares
//! each with the installed header.

macro_rules! ids {
    ($(#[$doc:meta])* $list:ident: $($name:ident = $value:literal;)*) => {
        $(pub(crate) const $name: i32 = $value;)*

        $(#[$doc])*
        #[cfg(test)]
        const $list: &[(&str, i32)] = &[$((stringify!($name), $value)),*];
    };
}

ids! {
    /// Every number with its name in the header.
    ALL:
    OSSL_FUNC_CORE_GET_PARAMS = 2;
    OSSL_FUNC_CORE_GET_LIBCTX = 4;
    OSSL_FUNC_CORE_NEW_ERROR = 5;
    OSSL_FUNC_CORE_SET_ERROR_DEBUG = 6;
    OSSL_FUNC_CORE_VSET_ERROR = 7;
    OSSL_FUNC_CORE_SET_ERROR_MARK = 8;
    OSSL_FUNC_CORE_POP_ERROR_TO_MARK = 10;
    OSSL_FUNC_BIO_READ_EX = 42;
    OSSL_FUNC_BIO_GETS = 49;

    OSSL_FUNC_PROVIDER_TEARDOWN = 1024;
    OSSL_FUNC_PROVIDER_GETTABLE_PARAMS = 1025;
    OSSL_FUNC_PROVIDER_GET_PARAMS = 1026;
    OSSL_FUNC_PROVIDER_QUERY_OPERATION = 1027;
    OSSL_FUNC_PROVIDER_GET_REASON_STRINGS = 1029;
    OSSL_FUNC_PROVIDER_GET_CAPABILITIES = 1030;

    OSSL_OP_KEYMGMT = 10;
    OSSL_OP_KEYEXCH = 11;
    OSSL_OP_SIGNATURE = 12;
    OSSL_OP_ASYM_CIPHER = 13;
    OSSL_OP_DECODER = 21;
    OSSL_OP_STORE = 22;

    OSSL_KEYMGMT_SELECT_PRIVATE_KEY = 0x01;
    OSSL_KEYMGMT_SELECT_PUBLIC_KEY = 0x02;
    OSSL_KEYMGMT_SELECT_DOMAIN_PARAMETERS = 0x04;
    OSSL_KEYMGMT_SELECT_OTHER_PARAMETERS = 0x80;

    OSSL_FUNC_KEYMGMT_NEW = 1;
    OSSL_FUNC_KEYMGMT_GEN_INIT = 2;
    OSSL_FUNC_KEYMGMT_GEN_SET_TEMPLATE = 3;
    OSSL_FUNC_KEYMGMT_GEN_SET_PARAMS = 4;
    OSSL_FUNC_KEYMGMT_GEN_SETTABLE_PARAMS = 5;
    OSSL_FUNC_KEYMGMT_GEN = 6;
    OSSL_FUNC_KEYMGMT_GEN_CLEANUP = 7;
    OSSL_FUNC_KEYMGMT_LOAD = 8;
    OSSL_FUNC_KEYMGMT_FREE = 10;
    OSSL_FUNC_KEYMGMT_GET_PARAMS = 11;
    OSSL_FUNC_KEYMGMT_GETTABLE_PARAMS = 12;
    OSSL_FUNC_KEYMGMT_SET_PARAMS = 13;
    OSSL_FUNC_KEYMGMT_SETTABLE_PARAMS = 14;
    OSSL_FUNC_KEYMGMT_QUERY_OPERATION_NAME = 20;
    OSSL_FUNC_KEYMGMT_HAS = 21;
    OSSL_FUNC_KEYMGMT_VALIDATE = 22;
    OSSL_FUNC_KEYMGMT_MATCH = 23;
    OSSL_FUNC_KEYMGMT_IMPORT = 40;
    OSSL_FUNC_KEYMGMT_IMPORT_TYPES = 41;
    OSSL_FUNC_KEYMGMT_EXPORT = 42;
    OSSL_FUNC_KEYMGMT_EXPORT_TYPES = 43;
    OSSL_FUNC_KEYMGMT_DUP = 44;

    OSSL_FUNC_KEYEXCH_NEWCTX = 1;
    OSSL_FUNC_KEYEXCH_INIT = 2;
    OSSL_FUNC_KEYEXCH_DERIVE = 3;
    OSSL_FUNC_KEYEXCH_SET_PEER = 4;
    OSSL_FUNC_KEYEXCH_FREECTX = 5;
    OSSL_FUNC_KEYEXCH_DUPCTX = 6;
    OSSL_FUNC_KEYEXCH_SET_CTX_PARAMS = 7;
    OSSL_FUNC_KEYEXCH_SETTABLE_CTX_PARAMS = 8;
    OSSL_FUNC_KEYEXCH_GET_CTX_PARAMS = 9;
    OSSL_FUNC_KEYEXCH_GETTABLE_CTX_PARAMS = 10;

    OSSL_FUNC_SIGNATURE_NEWCTX = 1;
    OSSL_FUNC_SIGNATURE_SIGN_INIT = 2;
    OSSL_FUNC_SIGNATURE_SIGN = 3;
    OSSL_FUNC_SIGNATURE_VERIFY_INIT = 4;
    OSSL_FUNC_SIGNATURE_VERIFY = 5;
    OSSL_FUNC_SIGNATURE_VERIFY_RECOVER_INIT = 6;
    OSSL_FUNC_SIGNATURE_VERIFY_RECOVER = 7;
    OSSL_FUNC_SIGNATURE_DIGEST_SIGN_INIT = 8;
    OSSL_FUNC_SIGNATURE_DIGEST_SIGN_UPDATE = 9;
    OSSL_FUNC_SIGNATURE_DIGEST_SIGN_FINAL = 10;
    OSSL_FUNC_SIGNATURE_DIGEST_SIGN = 11;
    OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_INIT = 12;
    OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_UPDATE = 13;
    OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_FINAL = 14;
    OSSL_FUNC_SIGNATURE_DIGEST_VERIFY = 15;
    OSSL_FUNC_SIGNATURE_FREECTX = 16;
    OSSL_FUNC_SIGNATURE_DUPCTX = 17;
    OSSL_FUNC_SIGNATURE_GET_CTX_PARAMS = 18;
    OSSL_FUNC_SIGNATURE_GETTABLE_CTX_PARAMS = 19;
    OSSL_FUNC_SIGNATURE_SET_CTX_PARAMS = 20;
    OSSL_FUNC_SIGNATURE_SETTABLE_CTX_PARAMS = 21;
    OSSL_FUNC_SIGNATURE_GET_CTX_MD_PARAMS = 22;
    OSSL_FUNC_SIGNATURE_GETTABLE_CTX_MD_PARAMS = 23;
    OSSL_FUNC_SIGNATURE_SET_CTX_MD_PARAMS = 24;
    OSSL_FUNC_SIGNATURE_SETTABLE_CTX_MD_PARAMS = 25;

    OSSL_FUNC_ASYM_CIPHER_NEWCTX = 1;
    OSSL_FUNC_ASYM_CIPHER_ENCRYPT_INIT = 2;
    OSSL_FUNC_ASYM_CIPHER_ENCRYPT = 3;
    OSSL_FUNC_ASYM_CIPHER_DECRYPT_INIT = 4;
    OSSL_FUNC_ASYM_CIPHER_DECRYPT = 5;
    OSSL_FUNC_ASYM_CIPHER_FREECTX = 6;
    OSSL_FUNC_ASYM_CIPHER_DUPCTX = 7;
    OSSL_FUNC_ASYM_CIPHER_GET_CTX_PARAMS = 8;
    OSSL_FUNC_ASYM_CIPHER_GETTABLE_CTX_PARAMS = 9;
    OSSL_FUNC_ASYM_CIPHER_SET_CTX_PARAMS = 10;
    OSSL_FUNC_ASYM_CIPHER_SETTABLE_CTX_PARAMS = 11;

    OSSL_FUNC_DECODER_NEWCTX = 1;
    OSSL_FUNC_DECODER_FREECTX = 2;
    OSSL_FUNC_DECODER_DOES_SELECTION = 10;
    OSSL_FUNC_DECODER_DECODE = 11;

    OSSL_FUNC_STORE_OPEN = 1;
    OSSL_FUNC_STORE_SETTABLE_CTX_PARAMS = 3;
    OSSL_FUNC_STORE_SET_CTX_PARAMS = 4;
    OSSL_FUNC_STORE_LOAD = 5;
    OSSL_FUNC_STORE_EOF = 6;
    OSSL_FUNC_STORE_CLOSE = 7;

    OSSL_OBJECT_PKEY = 2;

    OSSL_PARAM_INTEGER = 1;
    OSSL_PARAM_UNSIGNED_INTEGER = 2;
    OSSL_PARAM_UTF8_STRING = 4;
    OSSL_PARAM_OCTET_STRING = 5;
    OSSL_PARAM_UTF8_PTR = 6;
    OSSL_PARAM_OCTET_PTR = 7;
}

ids! {
    /// Those that came with OpenSSL 3.4.
    SINCE_3_4:
    OSSL_FUNC_SIGNATURE_QUERY_KEY_TYPES = 26;
    OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_INIT = 27;
    OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_UPDATE = 28;
    OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_FINAL = 29;
    OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_INIT = 30;
    OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_UPDATE = 31;
    OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_FINAL = 32;
}

/// One more than the largest function number of any operation that is delegated; tables of an
/// inner algorithm are indexed by it.
pub(crate) const FUNCTIONS: usize = 48;

/// Key, public and domain parameters: what an export of "everything public" asks for.
pub(crate) const SELECT_PUBLIC: i32 = OSSL_KEYMGMT_SELECT_PUBLIC_KEY
    | OSSL_KEYMGMT_SELECT_DOMAIN_PARAMETERS
    | OSSL_KEYMGMT_SELECT_OTHER_PARAMETERS;

/// Everything.
pub(crate) const SELECT_ALL: i32 = SELECT_PUBLIC | OSSL_KEYMGMT_SELECT_PRIVATE_KEY;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_that_of_the_installed_headers() {
        let mut headers = String::new();
        for name in ["core_dispatch.h", "core_object.h", "core.h"] {
            let path = format!("/usr/include/openssl/{name}");
            match std::fs::read_to_string(&path) {
                Ok(text) => headers.push_str(&text),
                Err(_) => return eprintln!("skipped: {path} is not installed"),
            }
        }
        // Older headers lack all of the newer ones, none lacks some of them.
        let newer = headers.contains(SINCE_3_4[0].0);
        let known = SINCE_3_4.iter().filter(|_| newer);
        for (name, value) in ALL.iter().chain(known) {
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
