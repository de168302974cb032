// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the kernel backend offers: all of those with an RSA private key of 2048, 3072 or 4096 bits. The
//! kernel says of each key whether the driver takes it.

use millrace_engine::backend::Capability;

use crate::raw_rsa;

/// Sizes of a modulus that drivers take, in bits: `qat-rsa` and `hpre-rsa` of Linux 6.18, virtio-crypto. The kernel's
/// own code has no others from 2048 bits, either.
pub(super) const SIZES: [u16; 3] = [2048, 3072, 4096];

/// One row per size and operation.
pub(super) const CAPABILITIES: &[Capability] = &raw_rsa::capabilities_of::<18>(&SIZES);
