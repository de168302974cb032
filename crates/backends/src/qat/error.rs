// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reasons for which the cards do not serve.

use millrace_operation::KeyError;
use millrace_qat::QatError;
use thiserror::Error;

/// Why the cards do not serve, for now or for good. An instance is named.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum CardError {
    #[error(transparent)]
    Library(#[from] QatError),
    /// The key of the known answer does not parse.
    #[error(transparent)]
    KnownKey(#[from] KeyError),
    #[error("not started yet")]
    NotStarted,
    #[error(
        "no virtual function of a card is bound to vfio-pci: see `millrace inspect` and the page on the qat backend"
    )]
    NoFunction,
    /// Of the functions that the library took, the settings admit only these, which are not among them.
    #[error(
        "none of the virtual functions that this process got is {0}: correct backend.qat.instances, or take more with \
         backend.qat.functions"
    )]
    NotAdmitted(String),
    #[error("a card reported a fatal error or a reset while it was started")]
    EventAtStart,
    #[error("instance {0} does not leave its error")]
    InError(String),
    #[error("instance {0} refuses requests")]
    Refuses(String),
    /// The known answer did not come.
    #[error("instance {0} gives no answers")]
    NoAnswer(String),
    /// The known answer was another.
    #[error("instance {0} computes a wrong result")]
    WrongAnswer(String),
    #[error("the program ends")]
    Closed,
    #[error("a card reported a fatal error or a reset; it is being started again")]
    Event,
    #[error("a card lost or refused requests; it is being started again")]
    Requests,
    #[error("instance {0} gives no answers; it is being started again")]
    Silent(String),
}
