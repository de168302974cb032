// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the software backend offers: all of them.

use std::sync::LazyLock;

use millrace_engine::backend::Capability;
use millrace_operation::OperationKind;

/// One row per operation and kind of key, with all sizes of that kind.
pub(super) static CAPABILITIES: LazyLock<Vec<Capability>> = LazyLock::new(|| {
    let kinds = |operation: OperationKind| {
        operation.key_kinds().iter().map(move |kind| (operation, kind.extremes()))
    };
    let rows = OperationKind::ALL.iter().copied().flat_map(kinds);
    rows.map(|(operation, [smallest, largest])| Capability { operation, smallest, largest })
        .collect()
});
