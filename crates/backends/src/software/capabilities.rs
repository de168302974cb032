// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the software backend offers: all of them.

use std::sync::LazyLock;

use millrace_engine::backend::Capability;
use millrace_operation::OperationKind;

/// One row per operation and kind of key, with all sizes of that kind.
pub(super) static CAPABILITIES: LazyLock<Vec<Capability>> = LazyLock::new(|| {
    let mut rows = Vec::new();
    for operation in OperationKind::ALL.iter().copied() {
        for kind in operation.key_kinds() {
            let [smallest, largest] = kind.extremes();
            rows.push(Capability { operation, smallest, largest });
        }
    }
    rows
});
