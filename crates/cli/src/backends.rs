// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which backends there are, in order of preference. They are values handed in, not features.

use std::sync::Arc;

use millrace_backends::{Simd, Software};
use millrace_engine::Backend;

/// Every backend that is built in, whether or not this machine can use it.
pub(crate) fn all() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Simd::new()), Arc::new(Software::new())]
}
