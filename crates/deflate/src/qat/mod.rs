// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel QAT cards of generation 4 and later, through Intel's user-space library, which is loaded at run time.
//! *Unproven on a card*: tested on a stand-in for it under the unmodified library.
//!
//! A server that calls zlib cannot be told "later", so that a chunk's thread waits for the card: first it polls, then
//! it sleeps between two polls. What the card compressed is always verified by the caller.
//!
//! | file | contents |
//! |---|---|
//! | `card.rs` | one process and its cards: start, one request at a time per instance, events, restart |
//! | `sys.rs` | Intel's functions for compression |

use std::sync::Arc;

use millrace_edge::compression::EngineKind;

use crate::engine::{Chunk, Engine, EngineError};

mod card;
#[expect(unsafe_code, reason = "calls Intel's library")]
mod sys;

use card::Declined;
pub use card::{Card, CardFiles};

/// The cards as an engine; each thread has one of these.
#[derive(Clone, Debug)]
pub struct QatEngine(Arc<Card>);

impl QatEngine {
    /// An engine on the cards of this process.
    #[must_use]
    pub fn on(card: &Arc<Card>) -> Self {
        Self(Arc::clone(card))
    }
}

impl Engine for QatEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Qat
    }

    /// The card keeps nothing between two requests and takes no text before the input.
    fn uses_history(&self) -> bool {
        false
    }

    fn compress(&mut self, chunk: &Chunk<'_>, output: &mut [u8]) -> Result<usize, EngineError> {
        let done = self.0.compress(chunk.level, chunk.input, chunk.end, output);
        done.map_err(|declined| match declined {
            Declined::Away => EngineError::Away,
            Declined::Busy => EngineError::Busy,
            Declined::Late => EngineError::Late,
            Declined::Overflow => EngineError::NoRoom,
            Declined::Failed(status) => EngineError::Failed(status),
        })
    }
}
