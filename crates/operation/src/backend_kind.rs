// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Kinds of backends: `served_by` of a completion, on the wire and in metrics.

use std::fmt;

use crate::coded_enum;

coded_enum! {
    /// Implementation that served a job (`served_by`).
    pub enum BackendKind {
        /// AWS-LC on the CPU, one operation at a time.
        Software = 0x01 "software",
        /// Several operations at once in the lanes of vector registers.
        Simd = 0x02 "simd",
        /// An NVIDIA GPU.
        Cuda = 0x03 "cuda",
        /// Linux kernel crypto.
        Kernel = 0x04 "kernel",
        /// An Intel QAT device.
        Qat = 0x05 "qat",
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
