// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key shares of TLS 1.3 groups: X25519, ML-KEM-768, and the hybrids of ML-KEM-768 with X25519 and P-256
//! (draft-ietf-tls-ecdhe-mlkem).
//!
//! A share of a hybrid is the shares of its halves one behind the other, in the order that its row gives; so are
//! its ciphertext and its secret.

use std::fmt;

use aws_lc_rs::agreement::{self, ECDH_P256, UnparsedPublicKey};
use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use aws_lc_rs::kem::{DecapsulationKey, EncapsulationKey, ML_KEM_768};
use zeroize::Zeroizing;

use super::LocalError;
use super::precomputed::PairMaker;
use super::sys::{self, Secret, X25519_LEN};
use crate::algorithms::{Parts, Share, ShareCurve};

/// Bytes of an encapsulation key of ML-KEM-768.
const ML_KEM_PUBLIC: usize = 1184;
/// Bytes of a decapsulation key of ML-KEM-768, expanded.
const ML_KEM_PRIVATE: usize = 2400;
/// Place of the encapsulation key in the expanded decapsulation key (FIPS 203, algorithm 16).
const PUBLIC_IN_PRIVATE: std::ops::Range<usize> = 1152..1152 + ML_KEM_PUBLIC;
/// Bytes of a ciphertext of ML-KEM-768.
const ML_KEM_CIPHERTEXT: usize = 1088;
/// Bytes of a secret, and of the private half of a curve.
const SECRET: usize = 32;
/// Bytes of an uncompressed point on P-256.
const P256_POINT: usize = 65;

impl ShareCurve {
    const fn public_len(self) -> usize {
        match self {
            Self::X25519 => X25519_LEN,
            Self::P256 => P256_POINT,
        }
    }
}

impl Share {
    fn parts(self) -> Parts {
        self.row().parts
    }

    /// Curve of the share, if it has one.
    fn curve(self) -> Option<ShareCurve> {
        match self.parts() {
            Parts::Curve(curve) | Parts::MlKemThen(curve) | Parts::ThenMlKem(curve) => Some(curve),
            Parts::MlKem => None,
        }
    }

    fn has_ml_kem(self) -> bool {
        !matches!(self.parts(), Parts::Curve(_))
    }

    /// Whether two parties of equal rank agree with it; otherwise one encapsulates to the other.
    #[must_use]
    pub fn is_agreement(self) -> bool {
        !self.has_ml_kem()
    }

    fn len(self, curve: impl Fn(ShareCurve) -> usize, ml_kem: usize) -> usize {
        self.curve().map_or(0, curve) + if self.has_ml_kem() { ml_kem } else { 0 }
    }

    /// Bytes of a public share.
    #[must_use]
    pub fn public_len(self) -> usize {
        self.len(ShareCurve::public_len, ML_KEM_PUBLIC)
    }

    /// Bytes of a private share.
    #[must_use]
    pub fn private_len(self) -> usize {
        self.len(|_| SECRET, ML_KEM_PRIVATE)
    }

    /// Bytes of a ciphertext.
    #[must_use]
    pub fn ciphertext_len(self) -> usize {
        self.len(ShareCurve::public_len, ML_KEM_CIPHERTEXT)
    }

    /// Bytes of a secret.
    #[must_use]
    pub fn secret_len(self) -> usize {
        self.len(|_| SECRET, SECRET)
    }

    /// Bytes of the largest result: what OpenSSL calls the size of a key.
    #[must_use]
    pub fn max_len(self) -> usize {
        if self.is_agreement() { self.secret_len() } else { self.ciphertext_len() }
    }

    /// The halves of `bytes` in the order curve, ML-KEM; `curve_len` is that of the curve's half.
    fn split(self, bytes: &[u8], curve_len: usize) -> (&[u8], &[u8]) {
        match self.parts() {
            Parts::Curve(_) => (bytes, &[]),
            Parts::MlKem => (&[], bytes),
            Parts::ThenMlKem(_) => bytes.split_at(curve_len),
            Parts::MlKemThen(_) => {
                let (ml_kem, curve) = bytes.split_at(bytes.len() - curve_len);
                (curve, ml_kem)
            }
        }
    }

    /// The halves one behind the other.
    fn join(self, curve: &[u8], ml_kem: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self.parts() {
            Parts::Curve(_) | Parts::ThenMlKem(_) => [curve, ml_kem].concat(),
            Parts::MlKem | Parts::MlKemThen(_) => [ml_kem, curve].concat(),
        })
    }
}

/// The private half of a curve.
enum CurveKey {
    X25519(Secret),
    P256(agreement::PrivateKey),
}

impl CurveKey {
    /// A fresh pair: public half and private half.
    fn generate(curve: ShareCurve, pairs: PairMaker<'_>) -> Result<(Vec<u8>, Self), LocalError> {
        match curve {
            ShareCurve::X25519 => {
                let (public, scalar) = pairs.x25519();
                Ok((public.to_vec(), Self::X25519(scalar)))
            }
            ShareCurve::P256 => {
                let key = agreement::PrivateKey::generate(&ECDH_P256).map_err(failed)?;
                Self::p256(key)
            }
        }
    }

    fn from_bytes(curve: ShareCurve, bytes: &[u8]) -> Result<(Vec<u8>, Self), LocalError> {
        match curve {
            ShareCurve::X25519 => {
                let scalar = Secret::new(exact(bytes)?);
                Ok((sys::x25519_public(&scalar).to_vec(), Self::X25519(scalar)))
            }
            ShareCurve::P256 => {
                let key = agreement::PrivateKey::from_private_key(&ECDH_P256, bytes);
                Self::p256(key.map_err(|_| LocalError::Refused("not a private key on P-256"))?)
            }
        }
    }

    fn p256(key: agreement::PrivateKey) -> Result<(Vec<u8>, Self), LocalError> {
        let public = key.compute_public_key().map_err(failed)?;
        Ok((public.as_ref().to_vec(), Self::P256(key)))
    }

    fn bytes(&self) -> Result<Zeroizing<Vec<u8>>, LocalError> {
        match self {
            Self::X25519(scalar) => Ok(Zeroizing::new(scalar.to_vec())),
            Self::P256(key) => {
                let bytes: EcPrivateKeyBin<'_> = key.as_be_bytes().map_err(failed)?;
                Ok(Zeroizing::new(bytes.as_ref().to_vec()))
            }
        }
    }

    fn agree(&self, peer: &[u8]) -> Result<Secret, LocalError> {
        match self {
            Self::X25519(scalar) => sys::x25519(scalar, &exact(peer)?),
            Self::P256(key) => {
                const REFUSED: LocalError = LocalError::Refused("the peer's share is not on P-256");
                // AWS-LC takes other encodings of a point as well; TLS has this one.
                if peer.len() != P256_POINT || peer.first() != Some(&4) {
                    return Err(REFUSED);
                }
                let peer = UnparsedPublicKey::new(&ECDH_P256, peer);
                agreement::agree(key, peer, REFUSED, |secret| Ok(Secret::new(exact(secret)?)))
            }
        }
    }
}

fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N], LocalError> {
    let refused = |_| LocalError::Refused("a key share has another length");
    bytes.try_into().map_err(refused)
}

fn failed(_: aws_lc_rs::error::Unspecified) -> LocalError {
    LocalError::Failed
}

/// A key share: public half, private half, both, or nothing yet.
pub struct ShareKey {
    share: Share,
    public: Option<Vec<u8>>,
    curve: Option<CurveKey>,
    ml_kem: Option<DecapsulationKey>,
}

/// Never shows a key.
impl fmt::Debug for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let public = self.public.is_some();
        let private = self.has_private();
        write!(f, "{:?} (public: {public}, private: {private})", self.share)
    }
}

impl ShareKey {
    /// A share without any half.
    #[must_use]
    pub fn empty(share: Share) -> Self {
        Self { share, public: None, curve: None, ml_kem: None }
    }

    /// A fresh pair.
    ///
    /// # Errors
    /// AWS-LC has no random bytes, or made a pair that is wrong.
    pub fn generate(share: Share, pairs: PairMaker<'_>) -> Result<Self, LocalError> {
        let curve = share.curve().map(|curve| CurveKey::generate(curve, pairs)).transpose()?;
        let ml_kem = share
            .has_ml_kem()
            .then(|| DecapsulationKey::generate(&ML_KEM_768).map_err(failed))
            .transpose()?;
        Self::of_halves(share, curve, ml_kem)
    }

    fn of_halves(
        share: Share,
        curve: Option<(Vec<u8>, CurveKey)>,
        ml_kem: Option<DecapsulationKey>,
    ) -> Result<Self, LocalError> {
        let (curve_public, curve) = match curve {
            Some((public, key)) => (public, Some(key)),
            None => (Vec::new(), None),
        };
        let public = match &ml_kem {
            None => curve_public,
            Some(key) => {
                let bytes =
                    key.encapsulation_key().and_then(|key| key.key_bytes()).map_err(failed)?;
                share.join(&curve_public, bytes.as_ref()).to_vec()
            }
        };
        Ok(Self { share, public: Some(public), curve, ml_kem })
    }

    /// A public share of the peer.
    pub fn from_public(share: Share, public: &[u8]) -> Result<Self, LocalError> {
        if public.len() != share.public_len() {
            return Err(LocalError::Refused("a public key share has another length"));
        }
        Ok(Self { public: Some(public.to_vec()), ..Self::empty(share) })
    }

    /// A pair from its private half.
    pub fn from_private(share: Share, private: &[u8]) -> Result<Self, LocalError> {
        if private.len() != share.private_len() {
            return Err(LocalError::Refused("a private key share has another length"));
        }
        let (curve_bytes, ml_kem_bytes) = share.split(private, SECRET);
        let curve =
            share.curve().map(|curve| CurveKey::from_bytes(curve, curve_bytes)).transpose()?;
        if !share.has_ml_kem() {
            return Self::of_halves(share, curve, None);
        }
        let refused = |_| LocalError::Refused("not a decapsulation key of ML-KEM-768");
        let key = DecapsulationKey::new(&ML_KEM_768, ml_kem_bytes).map_err(refused)?;
        let (curve_public, curve) =
            curve.map_or((Vec::new(), None), |(public, key)| (public, Some(key)));
        Ok(Self {
            share,
            public: Some(share.join(&curve_public, &ml_kem_bytes[PUBLIC_IN_PRIVATE]).to_vec()),
            curve,
            ml_kem: Some(key),
        })
    }

    /// Kind of the share.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> Option<&[u8]> {
        self.public.as_deref()
    }

    /// Whether the private half is there.
    #[must_use]
    pub fn has_private(&self) -> bool {
        self.curve.is_some() || self.ml_kem.is_some()
    }

    /// The private half.
    pub fn private(&self) -> Result<Zeroizing<Vec<u8>>, LocalError> {
        if !self.has_private() {
            return Err(LocalError::Refused("the key share has no private half"));
        }
        let curve = self.curve.as_ref().map(CurveKey::bytes).transpose()?;
        let ml_kem =
            self.ml_kem.as_ref().map(DecapsulationKey::key_bytes).transpose().map_err(failed)?;
        Ok(self.share.join(
            curve.as_ref().map_or(&[][..], |bytes| bytes),
            ml_kem.as_ref().map_or(&[][..], |bytes| bytes.as_ref()),
        ))
    }

    /// The secret that this private half has in common with the peer's public half.
    ///
    /// # Errors
    /// If a half is missing, or the peer's is refused.
    pub fn agree(&self, peer: &Self) -> Result<Secret, LocalError> {
        let (Some(curve), Some(public)) = (&self.curve, &peer.public) else {
            return Err(LocalError::Refused("a half of the key exchange is missing"));
        };
        curve.agree(public)
    }

    /// A fresh secret for the holder of the private half: ciphertext and secret.
    pub fn encapsulate(
        &self,
        pairs: PairMaker<'_>,
    ) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), LocalError> {
        let Some(public) = &self.public else {
            return Err(LocalError::Refused("there is no public key share"));
        };
        let share = self.share;
        let curve_len = share.curve().map_or(0, ShareCurve::public_len);
        let (curve_public, ml_kem_public) = share.split(public, curve_len);
        let refused = LocalError::Refused("the peer's ML-KEM-768 share is not canonical");
        let key = EncapsulationKey::new(&ML_KEM_768, ml_kem_public).map_err(|_| refused)?;
        let (ml_kem_ciphertext, ml_kem_secret) = key.encapsulate().map_err(|_| refused)?;
        let mut curve_share = Vec::new();
        let mut curve_secret = Secret::default();
        let mut curve_secret_len = 0;
        if let Some(curve) = share.curve() {
            let (own, key) = CurveKey::generate(curve, pairs)?;
            (curve_share, curve_secret) = (own, key.agree(curve_public)?);
            curve_secret_len = SECRET;
        }
        let ciphertext = share.join(&curve_share, ml_kem_ciphertext.as_ref());
        let secret = share.join(&curve_secret[..curve_secret_len], ml_kem_secret.as_ref());
        Ok((ciphertext.to_vec(), secret))
    }

    /// The secret in a ciphertext. One that was not made for this key gives a secret that its sender does not
    /// have (FIPS 203: implicit rejection).
    ///
    /// # Errors
    /// If there is no private half, the length is another, or the curve's half is refused.
    pub fn decapsulate(&self, ciphertext: &[u8]) -> Result<Zeroizing<Vec<u8>>, LocalError> {
        let share = self.share;
        let Some(ml_kem) = &self.ml_kem else {
            return Err(LocalError::Refused("the key share has no private half"));
        };
        if ciphertext.len() != share.ciphertext_len() {
            return Err(LocalError::Refused("a ciphertext has another length"));
        }
        let curve_len = share.curve().map_or(0, ShareCurve::public_len);
        let (curve_share, ml_kem_ciphertext) = share.split(ciphertext, curve_len);
        let ml_kem_secret = ml_kem.decapsulate(ml_kem_ciphertext.into()).map_err(failed)?;
        let curve_secret = self.curve.as_ref().map(|key| key.agree(curve_share)).transpose()?;
        let curve_secret_bytes = curve_secret.as_ref().map_or(&[][..], |secret| &secret[..]);
        Ok(share.join(curve_secret_bytes, ml_kem_secret.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_every_share_get_the_same_secret() {
        for &share in Share::ALL {
            let one = ShareKey::generate(share, PairMaker::FRESH).expect("a pair");
            let public = one.public().expect("public half");
            assert_eq!(public.len(), share.public_len(), "{share:?}");
            let peer = ShareKey::from_public(share, public).expect("public half alone");
            if share.is_agreement() {
                let other = ShareKey::generate(share, PairMaker::FRESH).expect("a pair");
                let secret = one.agree(&other).expect("secret");
                assert_eq!(*secret, *other.agree(&peer).expect("secret"));
                assert_eq!(secret.len(), share.secret_len());
                continue;
            }
            let (ciphertext, secret) = peer.encapsulate(PairMaker::FRESH).expect("ciphertext");
            assert_eq!(ciphertext.len(), share.ciphertext_len(), "{share:?}");
            assert_eq!(secret.len(), share.secret_len(), "{share:?}");
            assert_eq!(one.decapsulate(&ciphertext).expect("secret"), secret);
            let private = one.private().expect("private half");
            assert_eq!(private.len(), share.private_len(), "{share:?}");
            let again = ShareKey::from_private(share, &private).expect("the same pair");
            assert_eq!(again.public(), one.public(), "{share:?}");
            assert_eq!(again.decapsulate(&ciphertext).expect("secret"), secret);
        }
    }

    #[test]
    fn changed_ciphertext_gives_another_secret_or_an_error() {
        for &share in Share::ALL.iter().filter(|share| !share.is_agreement()) {
            let one = ShareKey::generate(share, PairMaker::FRESH).expect("a pair");
            let (ciphertext, secret) = one.encapsulate(PairMaker::FRESH).expect("ciphertext");
            for at in [0, ciphertext.len() / 2, ciphertext.len() - 1] {
                let mut changed = ciphertext.clone();
                changed[at] ^= 1;
                let result = one.decapsulate(&changed);
                assert!(result.is_err() || result.is_ok_and(|other| other != secret));
            }
            assert!(one.decapsulate(&ciphertext[1..]).is_err());
        }
    }

    #[test]
    fn shares_of_small_order_or_of_another_length_are_refused() {
        for &share in Share::ALL {
            for len in [0, share.public_len() - 1, share.public_len() + 1] {
                assert!(ShareKey::from_public(share, &vec![4; len]).is_err(), "{share:?}");
            }
        }
        let zero = ShareKey::from_public(Share::X25519, &[0; 32]).expect("32 bytes");
        let one = ShareKey::generate(Share::X25519, PairMaker::FRESH).expect("a pair");
        assert!(one.agree(&zero).is_err(), "a point of small order");
        for &share in Share::ALL.iter().filter(|share| !share.is_agreement()) {
            let key = ShareKey::generate(share, PairMaker::FRESH).expect("a pair");
            let public = key.public().expect("public half");
            let curve_len = share.curve().map_or(0, ShareCurve::public_len);
            let (curve, ml_kem) = share.split(public, curve_len);
            let small = share.join(&vec![0; curve.len()], ml_kem);
            let small = ShareKey::from_public(share, &small).expect("the right length");
            assert_eq!(
                small.encapsulate(PairMaker::FRESH).is_err(),
                !curve.is_empty(),
                "{share:?}"
            );
            // All coefficients are 4095, above the modulus.
            let large = share.join(curve, &[0xff; ML_KEM_PUBLIC]);
            let large = ShareKey::from_public(share, &large).expect("the right length");
            assert!(large.encapsulate(PairMaker::FRESH).is_err(), "{share:?}");
        }
    }
}
