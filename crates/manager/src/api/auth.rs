// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Authentication and authorization of callers of the API.
//!
//! A bearer token names a principal. Without one, the client certificate does, or it is a gateway's, which may only
//! read the grants of its own tenant. A principal with the role `node` speaks for the node of its own name alone.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand;
use axum::http::{HeaderMap, header};
use millrace_service::admission::PlaceSource;
use millrace_service::overview::now_ms;
use zeroize::Zeroizing;

use super::Peer;
use super::problem::{Code, Problem};
use super::standing::Standing;
use crate::Manager;
use crate::model::principal::{Credential, Principal, Role};
use crate::model::view::Versioned;

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// Begin of a token, by which scanners of repositories know it.
pub(super) const TOKEN_PREFIX: &str = "mrt_";

/// Access rule of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone.
    Open,
    /// Everyone with a certificate or a token.
    Authenticated,
    /// A principal with this role, or one that includes it.
    Role(Role),
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub(super) enum Caller {
    /// A user or program with a role, by a record of this revision.
    Principal(Versioned<Principal>),
    /// A client certificate without a role.
    Certificate(Arc<str>),
    /// Neither.
    Anonymous,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Principal(principal) => write!(f, "{}", principal.value.name),
            Self::Certificate(identity) => f.write_str(identity),
            Self::Anonymous => f.write_str("-"),
        }
    }
}

/// The token of a request.
///
/// # Errors
/// The authorization is not one bearer token: the caller meant other rights than those of its certificate.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<Zeroizing<String>>, Problem> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let Some(first) = sent.next() else {
        return Ok(None);
    };
    let text = first.to_str().ok().filter(|_| sent.next().is_none());
    let parts = text.and_then(|text| text.split_once(' '));
    match parts {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Ok(Some(Zeroizing::new(token.trim().to_owned())))
        }
        _ => {
            let detail = "the authorization is not one bearer token (authorization: Bearer …)";
            Err(Problem::new(Code::Unauthenticated, detail))
        }
    }
}

impl Caller {
    /// The caller of a request. It is found in the manager's view, without a question to the store.
    ///
    /// # Errors
    /// A token that is not valid: a caller with a wrong token gets no other rights instead.
    pub(super) fn of(manager: &Manager, peer: &Peer, token: Option<&str>) -> Result<Self, Problem> {
        if let Some(token) = token {
            let known = |credential: &Credential| match credential {
                Credential::Token(hash) => hash.matches(token),
                Credential::Identity(_) => false,
            };
            let unknown =
                || Problem::new(Code::Unauthenticated, "the token is not known, or has expired");
            return find(manager, known)?.map(Self::Principal).ok_or_else(unknown);
        }
        let Some(identity) = peer.identity() else {
            return Ok(Self::Anonymous);
        };
        let known = |credential: &Credential| match credential {
            Credential::Identity(named) => named.as_str() == &**identity,
            Credential::Token(_) => false,
        };
        Ok(match find(manager, known)? {
            Some(principal) => Self::Principal(principal),
            None => Self::Certificate(Arc::clone(identity)),
        })
    }

    /// The class of its connections, bodies and requests.
    pub(super) fn standing(&self) -> Standing {
        match self {
            Self::Anonymous => Standing::Stranger,
            Self::Certificate(_) => Standing::Certificate,
            Self::Principal(principal) => match principal.value.role {
                Role::Viewer => Standing::Viewer,
                Role::Operator | Role::Admin => Standing::Administrator,
                Role::Node => Standing::Node,
            },
        }
    }

    /// The identity whose connections count together with this caller's; `None`: that of its address.
    pub(super) fn source(&self) -> Option<PlaceSource> {
        match self {
            Self::Anonymous => None,
            Self::Certificate(identity) => Some(PlaceSource::Identity(Arc::clone(identity))),
            Self::Principal(principal) => {
                Some(PlaceSource::Identity(principal.value.name.as_str().into()))
            }
        }
    }

    /// The caller, apart from all others: a principal that was removed and made again, or replaced, is another one.
    pub(super) fn generation(&self) -> String {
        match self {
            Self::Principal(principal) => format!("{self} {}", principal.revision),
            Self::Certificate(_) | Self::Anonymous => self.to_string(),
        }
    }

    /// Checks the right to a request.
    ///
    /// # Errors
    /// The caller has to authenticate, or lacks the role.
    pub(super) fn require(&self, access: Access) -> Result<(), Problem> {
        let allowed = match (access, self) {
            (Access::Open, _)
            | (Access::Authenticated, Self::Principal(_) | Self::Certificate(_)) => true,
            (_, Self::Anonymous) => {
                let detail = "send a token (authorization: Bearer …) or a client certificate";
                return Err(Problem::new(Code::Unauthenticated, detail));
            }
            (Access::Role(needed), Self::Principal(principal)) => {
                allows(principal.value.role, needed)
            }
            (Access::Role(_), Self::Certificate(_)) => false,
        };
        if allowed {
            return Ok(());
        }
        let Access::Role(needed) = access else {
            return Ok(());
        };
        let detail = format!("{self} has not the role {}", role_name(needed));
        Err(Problem::new(Code::Forbidden, detail))
    }

    /// Checks that a node speaks for itself.
    ///
    /// # Errors
    /// The caller is another node.
    pub(super) fn require_node(&self, name: &str) -> Result<(), Problem> {
        match self {
            Self::Principal(principal) if principal.value.name.as_str() == name => Ok(()),
            Self::Principal(_) | Self::Certificate(_) | Self::Anonymous => {
                let detail =
                    format!("{self} speaks only for the node of that name, not for {name}");
                Err(Problem::new(Code::Forbidden, detail))
            }
        }
    }
}

/// The principal with this credential, unless it has expired. Every hash is compared, so that the time does not tell
/// which one fits.
///
/// # Errors
/// The record of an administrator is not what a manager wrote: a writer to the store is not to become one.
fn find(
    manager: &Manager,
    known: impl Fn(&Credential) -> bool,
) -> Result<Option<Versioned<Principal>>, Problem> {
    let now = now_ms();
    let found = manager.view(|view| {
        let fitting =
            view.principals.values().filter(|principal| known(&principal.value.credential));
        fitting.last().cloned()
    });
    let found = found.filter(|found| found.value.expires_ms.is_none_or(|end| now < end));
    if let Some(Versioned { value: Principal { name, role: Role::Admin, .. }, revision }) = &found
        && !manager.vouches(name, *revision)?
    {
        let detail = format!(
            "the record of administrator {name} was changed outside of the manager: another administrator makes it \
             anew (millrace token), or a manager is started once with --accept-records"
        );
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(found)
}

/// A new token.
///
/// # Errors
/// The system gives no random numbers.
pub fn fresh_token() -> Result<Zeroizing<String>, Problem> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    rand::fill(&mut *bytes)
        .map_err(|_| Problem::new(Code::Internal, "the system gives no random numbers"))?;
    Ok(Zeroizing::new(format!("{TOKEN_PREFIX}{}", hex::encode(*bytes))))
}

/// Whether a role includes another: administrator, operator and viewer form a ladder; a node stands beside it.
fn allows(role: Role, needed: Role) -> bool {
    match (role, needed) {
        (Role::Node, _) | (_, Role::Node) => role == needed,
        (Role::Admin | Role::Operator | Role::Viewer, _) => role <= needed,
    }
}

/// The name of a role in messages and on the command line.
pub(super) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Admin => "admin",
        Role::Operator => "operator",
        Role::Viewer => "viewer",
        Role::Node => "node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_form_a_ladder_with_the_node_beside_it() {
        let ladder = [Role::Admin, Role::Operator, Role::Viewer];
        for (rank, role) in ladder.into_iter().enumerate() {
            for (other, needed) in ladder.into_iter().enumerate() {
                assert_eq!(allows(role, needed), rank <= other, "{role:?} {needed:?}");
            }
            assert!(!allows(role, Role::Node) && !allows(Role::Node, role));
        }
        assert!(allows(Role::Node, Role::Node));
    }
}
