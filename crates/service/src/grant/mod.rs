// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Grants: signed statements that a node may serve a slice of a tenant's quota for a while. A manager signs them; a
//! node verifies them without asking anyone. Pure: the caller passes the time and the keys.
//!
//! ```text
//!  8  magic "MILLGRNT"                                ┐
//!  1  version (1)                                     │
//! 16  id of the grant                                 │
//!  8  revision: grows with each grant for the node    │
//!  8  not before, ms since 1970                       │
//!  8  expires, ms since 1970                          │ signed, after the domain
//!  …  tenant                                          │ "millrace grant v1\0"
//!  4  weight                                          │
//!  1  priority (1 high, 2 normal, 3 low)              │
//!  …  name of the node                                │
//!  8  fence of the node                               │
//!  …  rates: ops, bytes (rate, burst: 8 + 8 each),    │
//!     a count, then by job class its text and a rate  │
//!  …  identities: a count, then one text each         │
//!  …  endpoints: a count, then one text each          │
//!  8  id of the key that signs                        ┘
//! 64  Ed25519 signature (RFC 8032)
//! ```
//!
//! Numbers are big-endian, texts carry their length as 16 bits, lists ascend without repetition. Every grant has
//! exactly one encoding: a reader refuses all others.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_engine::Owner;
use millrace_wire::MAX_NAME_LEN;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::fields::{Damaged, RecordReader, push_len, push_short};
use crate::rates::{JobClass, MAX_CLASSES, Rate, Rates};
use crate::tenants::{IdentityPattern, MAX_TENANT_IDENTITIES, Priority, valid_tenant};

const MAGIC: &[u8; 8] = b"MILLGRNT";
const VERSION: u8 = 1;

/// Separates these signatures from all others of the same key.
const DOMAIN: &[u8] = b"millrace grant v1\0";

const KEY_ID_LEN: usize = 8;
const SIGNATURE_LEN: usize = 64;

/// Bound on a signed grant, in bytes: the identities dominate.
pub const MAX_GRANT_LEN: usize = 64 * 1024;

/// Bound on [`Grant::endpoints`]: a node listens on few addresses.
pub const MAX_ENDPOINTS: usize = 8;

/// Bound on one endpoint, in bytes: a scheme, a DNS name and a port.
pub const MAX_ENDPOINT_LEN: usize = 280;

/// Bound on the keys of a [`GrantKeys`]: rotation needs two, and two managers may have their own.
pub const MAX_GRANT_KEYS: usize = 8;

/// Bound on the lifetime of a grant: it cannot be revoked, so an operator waits this long at most.
pub const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The right of a tenant to a slice of its quota at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Grant {
    /// Unique; names the grant in logs and in the audit log. In JSON 32 hexadecimal digits.
    #[serde(with = "id_as_hex")]
    #[schemars(with = "String")]
    pub id: [u8; 16],
    /// Number of this grant among those for the same tenant and node. A node takes none with a lower revision than
    /// one that it has seen.
    pub revision: u64,
    /// Start, in milliseconds since 1970.
    pub not_before_ms: u64,
    /// End, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Name of the tenant.
    pub tenant: String,
    /// The tenant's share of a busy node relative to others, 1 to [`Owner::MAX_WEIGHT`].
    pub weight: u32,
    /// The tenant's priority.
    pub priority: Priority,
    /// Name of the node for which the grant is valid.
    pub node: String,
    /// Registration of the node for which the grant is valid: a node that registers again gets a higher one.
    pub fence: u64,
    /// Operations and bytes that this node may serve for the tenant.
    pub rates: Rates,
    /// The identities of the tenant.
    pub identities: BTreeSet<IdentityPattern>,
    /// Addresses of the node, for gateways: `tcp://HOST:PORT`.
    pub endpoints: BTreeSet<String>,
}

/// Why a grant is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The grant is truncated, has extra bytes, or a field is out of its bounds or order.
    #[error("the grant is damaged ({0})")]
    Damaged(&'static str),
    /// A newer manager has written it.
    #[error("version {0} of the grant is not known here: upgrade millrace")]
    Version(u8),
    /// A job class or priority that this version does not know.
    #[error("the grant has a {0} that is not known here: upgrade millrace")]
    Unknown(&'static str),
    /// None of the keys has the id in the grant.
    #[error(
        "the grant is signed with key {0}, which this node does not trust: give it the manager's current keys"
    )]
    UntrustedKey(String),
    /// The signature does not verify.
    #[error("the signature of the grant does not verify")]
    Signature,
    /// The grant is for another node.
    #[error("the grant is for node {0:?}, not for this one")]
    OtherNode(String),
    /// The grant is for an earlier or later registration of this node.
    #[error("the grant is for registration {granted} of this node, which has registration {own}")]
    OtherFence {
        /// Fence that the grant names.
        granted: u64,
        /// Fence of this node.
        own: u64,
    },
    /// A grant with a higher revision has been seen.
    #[error("the grant has revision {revision}, and {seen} was seen: it is out of date")]
    OutOfDate {
        /// Revision of this grant.
        revision: u64,
        /// Highest revision that this node has seen from its managers.
        seen: u64,
    },
    /// Its time has not come, by more than the allowance for clocks.
    #[error("the grant begins {0:?} from now: check the clocks of node and manager")]
    NotYet(Duration),
    /// Its time is over.
    #[error("the grant expired {0:?} ago")]
    Expired(Duration),
    /// The node has no manager.
    #[error("the node has no manager, so it takes no grants")]
    NoManager,
    /// The node holds as many grants as it can.
    #[error("the node holds {0} grants, its bound")]
    TooMany(usize),
}

impl From<Damaged> for GrantError {
    fn from(Damaged(what): Damaged) -> Self {
        Self::Damaged(what)
    }
}

impl Grant {
    /// Length of the time between [`Self::not_before_ms`] and [`Self::expires_ms`].
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        Duration::from_millis(self.expires_ms.saturating_sub(self.not_before_ms))
    }

    /// The encoding before the id of the key.
    ///
    /// # Errors
    /// [`GrantError::Damaged`] with a field that is out of its bounds.
    fn encode(&self) -> Result<Vec<u8>, GrantError> {
        let Self {
            id,
            revision,
            not_before_ms,
            expires_ms,
            tenant,
            weight,
            priority,
            node,
            fence,
            rates,
            identities,
            endpoints,
        } = self;
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.extend_from_slice(id);
        for number in [revision, not_before_ms, expires_ms] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        push_short(&mut out, tenant.as_bytes(), "tenant")?;
        out.extend_from_slice(&weight.to_be_bytes());
        out.push(priority.code());
        push_short(&mut out, node.as_bytes(), "node")?;
        out.extend_from_slice(&fence.to_be_bytes());
        push_rates(&mut out, rates)?;
        push_len(&mut out, identities.len(), "identities")?;
        for identity in identities {
            push_short(&mut out, identity.as_str().as_bytes(), "identity")?;
        }
        push_len(&mut out, endpoints.len(), "endpoints")?;
        for endpoint in endpoints {
            push_short(&mut out, endpoint.as_bytes(), "endpoint")?;
        }
        // Only the reader checks the bounds, so that every grant that is signed can be read.
        let mut reader = RecordReader::new(&out);
        Self::read(&mut reader)?;
        Ok(out)
    }

    fn read(reader: &mut RecordReader<'_>) -> Result<Self, GrantError> {
        if reader.array("magic")? != *MAGIC {
            return Err(GrantError::Damaged("magic"));
        }
        match reader.u8("version")? {
            VERSION => {}
            version => return Err(GrantError::Version(version)),
        }
        let id = reader.array("id")?;
        let revision = reader.u64("revision")?;
        let not_before_ms = reader.u64("not before")?;
        let expires_ms = reader.u64("expires")?;
        let lifetime = Duration::from_millis(expires_ms.saturating_sub(not_before_ms));
        if lifetime.is_zero() || lifetime > MAX_LIFETIME {
            return Err(GrantError::Damaged("lifetime"));
        }
        let tenant = reader.text("tenant")?;
        if !valid_tenant(tenant) {
            return Err(GrantError::Damaged("tenant"));
        }
        let weight = reader.u32("weight")?;
        if !(1..=Owner::MAX_WEIGHT).contains(&weight) {
            return Err(GrantError::Damaged("weight"));
        }
        let priority =
            Priority::from_code(reader.u8("priority")?).ok_or(GrantError::Unknown("priority"))?;
        let node = reader.text("node")?;
        if !valid_node(node) {
            return Err(GrantError::Damaged("node"));
        }
        let fence = reader.u64("fence")?;
        let rates = read_rates(reader)?;
        let identities = read_identities(reader)?;
        let endpoints = read_endpoints(reader)?;
        Ok(Self {
            id,
            revision,
            not_before_ms,
            expires_ms,
            tenant: tenant.to_owned(),
            weight,
            priority,
            node: node.to_owned(),
            fence,
            rates,
            identities,
            endpoints,
        })
    }
}

/// Whether `name` may name a node in a grant.
#[must_use]
pub fn valid_node(name: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&name.len()) && !name.contains(char::is_control)
}

fn push_rates(out: &mut Vec<u8>, rates: &Rates) -> Result<(), GrantError> {
    let Rates { ops, bytes, classes } = rates;
    let push = |out: &mut Vec<u8>, Rate { per_second, burst }: Rate| {
        out.extend_from_slice(&per_second.to_be_bytes());
        out.extend_from_slice(&burst.to_be_bytes());
    };
    push(out, *ops);
    push(out, *bytes);
    push_len(out, classes.len(), "job classes")?;
    // By text, not in the order of the map, so that a new kind of job class cannot change the encoding of old ones.
    let mut rows: Vec<_> = classes.iter().map(|(class, rate)| (class.to_string(), *rate)).collect();
    rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (class, rate) in rows {
        push_short(out, class.as_bytes(), "job class")?;
        push(out, rate);
    }
    Ok(())
}

fn read_rates(reader: &mut RecordReader<'_>) -> Result<Rates, GrantError> {
    let rate = |reader: &mut RecordReader<'_>| -> Result<Rate, GrantError> {
        Ok(Rate { per_second: reader.u64("rate")?, burst: reader.u64("burst")? })
    };
    let mut rates = Rates { ops: rate(reader)?, bytes: rate(reader)?, ..Rates::default() };
    let count = usize::from(reader.u16("job classes")?);
    if count > MAX_CLASSES {
        return Err(GrantError::Damaged("job classes"));
    }
    let mut before = None;
    for _ in 0..count {
        let text = reader.text("job class")?;
        ascending(&mut before, text, "job class")?;
        let class: JobClass = text.parse().map_err(|_| GrantError::Unknown("job class"))?;
        if class.to_string() != text {
            return Err(GrantError::Damaged("job class"));
        }
        rates.classes.insert(class, rate(reader)?);
    }
    if rates.problems().is_empty() { Ok(rates) } else { Err(GrantError::Damaged("rates")) }
}

fn read_identities(reader: &mut RecordReader<'_>) -> Result<BTreeSet<IdentityPattern>, GrantError> {
    let count = usize::from(reader.u16("identities")?);
    if count > MAX_TENANT_IDENTITIES {
        return Err(GrantError::Damaged("identities"));
    }
    let mut identities = BTreeSet::new();
    let mut before = None;
    for _ in 0..count {
        let text = reader.text("identity")?;
        ascending(&mut before, text, "identity")?;
        identities.insert(text.parse().map_err(|_| GrantError::Damaged("identity"))?);
    }
    Ok(identities)
}

fn read_endpoints(reader: &mut RecordReader<'_>) -> Result<BTreeSet<String>, GrantError> {
    let count = usize::from(reader.u16("endpoints")?);
    if count > MAX_ENDPOINTS {
        return Err(GrantError::Damaged("endpoints"));
    }
    let mut endpoints = BTreeSet::new();
    let mut before = None;
    for _ in 0..count {
        let text = reader.text("endpoint")?;
        ascending(&mut before, text, "endpoint")?;
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(1..=MAX_ENDPOINT_LEN).contains(&text.len()) || !printable {
            return Err(GrantError::Damaged("endpoint"));
        }
        endpoints.insert(text.to_owned());
    }
    Ok(endpoints)
}

/// Checks that a list ascends without repetition.
fn ascending<'a>(
    before: &mut Option<&'a str>,
    text: &'a str,
    what: &'static str,
) -> Result<(), GrantError> {
    if before.replace(text).is_some_and(|before| before >= text) {
        return Err(GrantError::Damaged(what));
    }
    Ok(())
}

/// The bytes of a grant with its signature: well-formed, but not verified. In JSON a text in base64.
#[derive(Clone, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct SignedGrant {
    bytes: Vec<u8>,
    grant: Grant,
    key: [u8; KEY_ID_LEN],
}

impl SignedGrant {
    /// Reads a signed grant, without verifying it.
    ///
    /// # Errors
    /// The first problem of the encoding.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GrantError> {
        if bytes.len() > MAX_GRANT_LEN {
            return Err(GrantError::Damaged("length"));
        }
        let mut reader = RecordReader::new(bytes);
        let grant = Grant::read(&mut reader)?;
        let key = reader.array("key id")?;
        if reader.rest().len() != SIGNATURE_LEN {
            return Err(GrantError::Damaged("signature"));
        }
        Ok(Self { bytes: bytes.to_vec(), grant, key })
    }

    /// The encoding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The grant, although anyone may have written it.
    #[must_use]
    pub fn dangerous_unverified(&self) -> &Grant {
        &self.grant
    }

    /// The grant, if one of `keys` has signed it. The caller checks node, time and revision.
    ///
    /// # Errors
    /// [`GrantError::UntrustedKey`] or [`GrantError::Signature`].
    pub fn verify(&self, keys: &GrantKeys) -> Result<&Grant, GrantError> {
        let mut named = keys.0.iter().filter(|key| key.id() == self.key).peekable();
        if named.peek().is_none() {
            return Err(GrantError::UntrustedKey(hex::encode(self.key)));
        }
        let (signed, signature) = self.bytes.split_at(self.bytes.len() - SIGNATURE_LEN);
        let message = [DOMAIN, signed].concat();
        let verified = named.any(|key| {
            let key = UnparsedPublicKey::new(&ED25519, key.0);
            key.verify(&message, signature).is_ok()
        });
        if verified { Ok(&self.grant) } else { Err(GrantError::Signature) }
    }
}

impl fmt::Debug for SignedGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedGrant")
            .field("grant", &self.grant)
            .field("key", &hex::encode(self.key))
            .finish_non_exhaustive()
    }
}

impl Serialize for SignedGrant {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.bytes))
    }
}

impl<'de> Deserialize<'de> for SignedGrant {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Self::from_bytes(&bytes).map_err(serde::de::Error::custom)
    }
}

/// The public half of a key that signs grants. As text: `ed25519:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct GrantKey([u8; 32]);

const KEY_PREFIX: &str = "ed25519:";

impl GrantKey {
    /// The key with these bytes (RFC 8032 section 5.1.5).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The id in the grants that it signs: the first 8 bytes of the SHA-256 of the key.
    #[must_use]
    pub fn id(&self) -> [u8; KEY_ID_LEN] {
        let mut id = [0; KEY_ID_LEN];
        id.copy_from_slice(&digest(&SHA256, &self.0).as_ref()[..KEY_ID_LEN]);
        id
    }
}

impl fmt::Display for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_PREFIX}{}", hex::encode(self.0))
    }
}

/// The text is not a key that signs grants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantKeyError {
    /// Not `ed25519:` and 64 hexadecimal digits.
    #[error("{0:?} is not a grant key: it is {KEY_PREFIX} and 64 hexadecimal digits")]
    Syntax(String),
    /// More than [`MAX_GRANT_KEYS`].
    #[error("more than {MAX_GRANT_KEYS} grant keys")]
    TooMany,
}

impl FromStr for GrantKey {
    type Err = GrantKeyError;

    fn from_str(text: &str) -> Result<Self, GrantKeyError> {
        let wrong = || GrantKeyError::Syntax(text.chars().take(80).collect());
        let digits = text.strip_prefix(KEY_PREFIX).ok_or_else(wrong)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| wrong())?;
        Ok(Self(bytes))
    }
}

impl Serialize for GrantKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GrantKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The keys that a node trusts. Several, so that a manager can change its key. The file that pins them has one key
/// a line; blank lines and lines that begin with `#` are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GrantKeys(Vec<GrantKey>);

impl GrantKeys {
    /// A set of these keys, each once.
    ///
    /// # Errors
    /// [`GrantKeyError::TooMany`].
    pub fn new(keys: impl IntoIterator<Item = GrantKey>) -> Result<Self, GrantKeyError> {
        let mut list = Vec::new();
        for key in keys {
            if !list.contains(&key) {
                list.push(key);
            }
            if list.len() > MAX_GRANT_KEYS {
                return Err(GrantKeyError::TooMany);
            }
        }
        Ok(Self(list))
    }

    /// The keys, in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[GrantKey] {
        &self.0
    }
}

impl FromStr for GrantKeys {
    type Err = GrantKeyError;

    fn from_str(text: &str) -> Result<Self, GrantKeyError> {
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<GrantKey> = keys.map(str::parse).collect::<Result<_, _>>()?;
        Self::new(keys)
    }
}

impl fmt::Display for GrantKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|key| writeln!(f, "{key}"))
    }
}

/// The private key that signs grants. Only a manager has one.
pub struct GrantSigner {
    pair: Ed25519KeyPair,
}

/// The private key cannot be used, or the system gave no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key that signs grants cannot be used or made: it must be an Ed25519 key in PKCS#8")]
pub struct SignerError;

impl GrantSigner {
    /// A new key, and its PKCS#8 for [`Self::from_pkcs8`].
    ///
    /// # Errors
    /// The system gave no random numbers.
    pub fn generate() -> Result<(Self, Zeroizing<Vec<u8>>), SignerError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| SignerError)?;
        let document = pair.to_pkcs8().map_err(|_| SignerError)?;
        Ok((Self { pair }, Zeroizing::new(document.as_ref().to_vec())))
    }

    /// The key in this PKCS#8.
    ///
    /// # Errors
    /// The bytes are not an Ed25519 key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, SignerError> {
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8).map_err(|_| SignerError)?;
        Ok(Self { pair })
    }

    /// The public half, which nodes pin.
    #[must_use]
    pub fn key(&self) -> GrantKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        GrantKey(key)
    }

    /// Signs a grant.
    ///
    /// # Errors
    /// [`GrantError::Damaged`] with the field that is out of its bounds.
    pub fn sign(&self, grant: Grant) -> Result<SignedGrant, GrantError> {
        let key = self.key().id();
        let mut bytes = grant.encode()?;
        bytes.extend_from_slice(&key);
        let signature = self.pair.sign(&[DOMAIN, &bytes].concat());
        bytes.extend_from_slice(signature.as_ref());
        if bytes.len() > MAX_GRANT_LEN {
            return Err(GrantError::Damaged("length"));
        }
        Ok(SignedGrant { bytes, grant, key })
    }
}

impl fmt::Debug for GrantSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantSigner({})", self.key())
    }
}

mod id_as_hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(id))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
        let mut id = [0; 16];
        hex::decode_to_slice(String::deserialize(from)?, &mut id)
            .map_err(serde::de::Error::custom)?;
        Ok(id)
    }
}

#[cfg(test)]
mod tests;
