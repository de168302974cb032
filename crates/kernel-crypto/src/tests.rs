// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;

#[test]
fn every_algorithm_has_a_name_of_its_own() {
    for algorithm in BulkAlgorithm::ALL {
        assert_eq!(BulkAlgorithm::from_name(algorithm.name()), Some(*algorithm));
        let (cipher, mac) = algorithm.numbers();
        assert!((cipher == 0) != (mac == 0), "{algorithm:?}: one of the two");
    }
}

#[test]
fn machine_without_an_interface_says_so_and_keeps_its_places() {
    for _ in 0..2 * MAX_SESSIONS {
        // A name that no kernel has; on some machines the whole family is missing.
        let missing = sys::algorithm(b"skcipher", b"millrace(none)");
        missing.expect_err("no such algorithm");
        if !std::path::Path::new("/dev/crypto").exists() {
            let opened =
                BulkSession::open(BulkInterface::DevCrypto, BulkAlgorithm::AesCbc, &[7; 16]);
            assert_eq!(opened.expect_err("no device").kind(), io::ErrorKind::NotFound);
        }
    }
    assert_eq!(SESSIONS.load(Ordering::Relaxed), 0, "nothing is left of what failed");
}

#[test]
fn name_that_does_not_fit_the_address_is_refused() {
    let refused = sys::algorithm(&[b'k'; 14], b"cbc(aes)").expect_err("no room for the end");
    let missing_family = refused.raw_os_error() == Some(libc::EAFNOSUPPORT);
    assert!(missing_family || refused.raw_os_error() == Some(libc::EINVAL), "{refused}");
}
