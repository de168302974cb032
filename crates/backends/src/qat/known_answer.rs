// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One RSA-2048 operation with a known answer. Each instance computes it after each start of the library, before a
//! queue may use it: an instance that an earlier session left in error refuses it.
//!
//! The key was generated for this test by OpenSSL and protects nothing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::sys::{Answer, KeyParts, Library, Ring, Submitted};

/// Pause between two polls: a card answers in less than a millisecond.
const PAUSE: Duration = Duration::from_micros(50);

/// Owner of the request: no queue has this seat.
const OWNER: (usize, u64) = (usize::MAX, 0);

/// Lets an instance compute it, within `limit`. A request that stays unanswered ends with the session.
///
/// # Errors
/// The fault of the instance.
pub(super) fn check(
    library: &Arc<Library>,
    ring: &mut Ring,
    limit: Duration,
) -> Result<(), String> {
    let parts = [P, Q, DP, DQ, Q_INVERSE].map(bytes);
    let key = KeyParts::copy(library, [0, 1, 2, 3, 4].map(|part| parts[part].as_slice()))
        .ok_or("no memory for a key: raise the limit of locked memory (memlock)")?;
    if ring.submit(&Arc::new(key), &bytes(INPUT), OWNER) != Submitted::Taken {
        return Err(format!("instance {} refuses requests", ring.name));
    }
    let (start, mut answers) = (Instant::now(), Vec::new());
    while answers.is_empty() {
        if start.elapsed() > limit {
            return Err(format!("instance {} gives no answers", ring.name));
        }
        thread::sleep(PAUSE);
        ring.poll(&mut answers);
    }
    let right = |answer: &Answer<_>| {
        answer
            .output
            .as_ref()
            .is_ok_and(|output| **output == bytes(ANSWER))
    };
    match answers.iter().all(right) {
        true => Ok(()),
        false => Err(format!("instance {} computes a wrong result", ring.name)),
    }
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digit = |byte: u8| {
        (byte as char)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
            .unwrap_or(0)
    };
    let digits = hexadecimal.as_bytes().chunks_exact(2);
    digits
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

const P: &str = "e025ab0ef5bbdb414a880d80da9df83666399c55e15fade1aad4a1e47ca948efe774bfc0cc86024702976569041af128\
     27f25f02288a346603be9b6ee3c22c28fcc24467c02d819f1e7e2ab86c452ad25e7ee66ac38f7b6d2e888adcf4567560\
     2e1d731aef93e7bad89fe3368de03c3dcfc6bd1d0c07f9c3f10202539a84fe21";
const Q: &str = "dc624c1325bd75400eeb8d813aa13d629a5119930d25c90579362408d7e72b973c82bed19ba83d32e81143b36ec12d66\
     c020907cf623010e9b96bf7aafca1b5c29ed5b47f42b0669717489526384dd211e5810fea310ed7a3e5b91d3568cc9b8\
     32f36177fe3a49d1750890a605e90dd9ba0b70d4ac4cfb9eb5782dbc7bedd1b5";
const DP: &str = "bcf7a4bde8f7660226668b13cdbb0dee36c26d058e0a8eda489e189a3b6ab05de8c0e9840e291034737fd573f28d1030\
     6d750d1a11b96a317308b79b8612460e8c00ef90945909056fbca82170cde32b1595608633b67c34f0dd164cef0510d1\
     742f49c234a679df710f628bb4928dd7029b27061d058050eb976904b8a95461";
const DQ: &str = "d054f7f76dc8d0cb328f88202ecd77dafb684915d2eaf2420358a3eddc3382e89fe23502aef3f68e6604d40c0e59fd52\
     51b337037a2692fc3d26df71da35e371578d32aa2d6e72cc40dd5a6710feeb8f40411e27a8fcfa9181db4c5a0d4a5ff2\
     89efbb2714a4035e471546b03b8c1974c643c470b744bae44846086e5274f9b5";
const Q_INVERSE: &str = "b4c721b8296366f572281c2b11536864922cf220c184a18b9029c56b34206e8e01ace368b3996b4710f6fa37441a8716\
     3c26fd7875b24da9c424234d11d3af3df8d124145d78895931bbd0b581f1751ec848920441ad5f514f9469e611fcb353\
     2ff61cab6cbf2cce577a99daf15a2fa69d1ade4a8a2211413f0554f8febdd6a5";
const INPUT: &str = "6d696c6c72616365206b6e6f776e20616e73776572206f6620612063617264206d696c6c72616365206b6e6f776e2061\
     6e73776572206f6620612063617264206d696c6c72616365206b6e6f776e20616e73776572206f662061206361726420\
     6d696c6c72616365206b6e6f776e20616e73776572206f6620612063617264206d696c6c72616365206b6e6f776e2061\
     6e73776572206f6620612063617264206d696c6c72616365206b6e6f776e20616e73776572206f662061206361726420\
     6d696c6c72616365206b6e6f776e20616e73776572206f6620612063617264206d696c6c72616365206b6e6f776e2061\
     6e73776572206f662061206361726420";
const ANSWER: &str = "33355c9a5190817e9cbfe8c62151843f88504e92cff5c3ca1adbfcc96255a6187f942b5dfa3bb1584b5ba037b66b30b5\
     954737df137e05d93de4fa0aff2eec219bc884c780e57440f223caf1e5f460b1a68a0ee573bd04bf3bf57c3d55140dc6\
     be0ef33127e8f48e010fa6a42678670703c0837dd6cc79c71c5bc19f57764903396f36426e965c406999447056ac4de8\
     6ded885f0ce56f602d22f77740f505304a64ba88a83a3a87d709be8a65e9b0b483f50ce7279867d09eb097ff22b4dac4\
     1a9df13583c0270398c038345d637813b32f5da22957d6bedac12126171f7b004eefd27750d19956e0cb4c09bfed7f98\
     390c03d941fc1d3d86553e4c3a833384";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::sys::{Modulus, Number};

    #[test]
    fn known_answer_is_the_root_of_its_input() {
        let number = |text| Number::from_bytes(&bytes(text)).expect("a number");
        let modulus = |text| Modulus::new(&number(text)).expect("an odd modulus");
        assert_eq!(
            [P, Q, DP, DQ, Q_INVERSE].map(|part| bytes(part).len()),
            [128; 5]
        );
        assert_eq!([INPUT, ANSWER].map(|number| bytes(number).len()), [256; 2]);
        // q · (1/q) = 1 mod p.
        let p = modulus(P);
        let inverse = p.inverse(&number(Q)).expect("an inverse");
        let mut written = vec![0; 128];
        assert!(inverse.write_padded(&mut written));
        assert_eq!(written, bytes(Q_INVERSE));
    }
}
