// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The private operation of an RSA key on AWS-LC, below the loading of keys, which tries it, and the operations.

use millrace_engine::BackendError;
use zeroize::Zeroizing;

use super::sys::Rsa;

/// An RSA key with values that are computed once per key.
pub(crate) struct RsaSecret {
    pub(crate) key: Rsa,
    /// The modulus, big-endian.
    pub(crate) modulus: Vec<u8>,
    /// SHA-256 of the private exponent, the key for implicit rejection.
    pub(crate) rejection_key: Zeroizing<[u8; 32]>,
}

/// Computes `input^d mod n`; AWS-LC verifies it before unblinding. Both slices are as long as the modulus.
/// The caller knows the input, so comparisons of it may take a varying time.
///
/// # Errors
/// `BadInput` for a number that is not below n; `Fault`, with `output` zeroised, for a result that
/// does not verify.
pub(crate) fn rsa_private(
    rsa: &RsaSecret,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), BackendError> {
    if input >= rsa.modulus.as_slice() {
        return Err(BackendError::BadInput);
    }
    if is_own_root(&rsa.modulus, input) {
        output.copy_from_slice(input);
        return Ok(());
    }
    rsa.key.private(input, output)
}

/// Whether a number below n is 0, 1 or n-1. Each is its own d-th power, because d is odd, and AWS-LC refuses
/// to compute it.
pub(crate) fn is_own_root(modulus: &[u8], input: &[u8]) -> bool {
    let (Some((last, head)), Some((modulus_last, modulus_head))) =
        (input.split_last(), modulus.split_last())
    else {
        return false;
    };
    (*last <= 1 && head.iter().all(|byte| *byte == 0))
        // n is odd, so n-1 differs only in the last byte.
        || (*last == modulus_last - 1 && head == modulus_head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rsa_private_of_zero_one_and_minus_one_returns_the_input() {
        let modulus = [0xc5, 0x00, 0x01];
        for root in [[0, 0, 0], [0, 0, 1], [0xc5, 0, 0]] {
            assert!(is_own_root(&modulus, &root));
        }
        for other in [[0, 0, 2], [0, 1, 0], [0xc4, 0, 0], [0xc5, 0, 1]] {
            assert!(!is_own_root(&modulus, &other));
        }
    }
}
