// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Administrative changes: each is one transaction with its entry in the audit log.

use std::collections::BTreeSet;

use super::{Actor, Core, MAX_PRINCIPALS, MAX_TENANTS, check_limit, check_problems, json};
use crate::model::audit::{AuditEntry, MAX_DETAIL_LEN};
use crate::model::command::{Command, RecordKind, Refusal};
use crate::model::keys::{MAX_POOL_KEYS, PoolKey};
use crate::model::name::{NodeName, TenantName};
use crate::model::node::Node;
use crate::model::principal::Role;
use crate::model::tenant::Tenant;
use crate::model::view::{AUDIT_HEAD, Table, Versioned, audit_key};
use crate::store::Transaction;

impl Core {
    /// The transaction of an administrative change. `if_match` is the revision that the caller has seen.
    pub fn command(
        &self,
        actor: Actor<'_>,
        command: &Command,
        if_match: Option<u64>,
        time_ms: u64,
    ) -> Result<Transaction, Refusal> {
        self.check_role(actor.role, command)?;
        let mut transaction = self.transaction()?;
        self.change(command, if_match, &mut transaction)?;
        let head = &self.view.audit_head;
        let detail = command.detail();
        if detail.to_string().len() > MAX_DETAIL_LEN {
            return Err(Refusal::Invalid(vec![
                "the values are too long for the audit log".to_owned(),
            ]));
        }
        let entry = AuditEntry::after(
            &head.value,
            time_ms,
            actor.name,
            command.action(),
            command.subject(),
            detail,
        );
        transaction.require(AUDIT_HEAD, head.revision);
        transaction.put(AUDIT_HEAD, json(&entry.head()));
        transaction.put(audit_key(entry.seq), json(&entry));
        Ok(transaction)
    }

    /// Least role that may execute a command on the present records. The identities of a tenant may use its keys, at
    /// the nodes also keys that the manager does not know: a command that changes them, or the tenant that they belong
    /// to by the longest pattern, gives a right to use a key. That is the administrator's, by whatever command.
    #[must_use]
    pub fn required_role(&self, command: &Command) -> Role {
        if self.changes_identities(command) { Role::Admin } else { command.role() }
    }

    fn changes_identities(&self, command: &Command) -> bool {
        let present = |name: &TenantName| {
            let tenant = self.view.tenants.get(name);
            tenant.map(|tenant| &tenant.value.identities).filter(|all| !all.is_empty())
        };
        match command {
            Command::CreateTenant(tenant) => !tenant.identities.is_empty(),
            Command::SetTenant(tenant) => {
                present(&tenant.name).unwrap_or(&BTreeSet::new()) != &tenant.identities
            }
            Command::RemoveTenant { tenant } => present(tenant).is_some(),
            Command::SetQuota { .. }
            | Command::Place { .. }
            | Command::DrainNode { .. }
            | Command::RemoveNode { .. }
            | Command::ReadmitNode { .. }
            | Command::SetPrincipal(_)
            | Command::RemovePrincipal { .. }
            | Command::SetKey(_)
            | Command::RemoveKey { .. } => false,
        }
    }

    fn check_role(&self, role: Role, command: &Command) -> Result<(), Refusal> {
        if role > command.role() {
            return Err(Refusal::Role(command.role()));
        }
        match command {
            Command::CreateTenant(Tenant { name, .. })
            | Command::SetTenant(Tenant { name, .. })
            | Command::RemoveTenant { tenant: name }
                if role > self.required_role(command) =>
            {
                Err(Refusal::Identities(name.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Adds the checks and writes of a command to a transaction.
    fn change(
        &self,
        command: &Command,
        if_match: Option<u64>,
        transaction: &mut Transaction,
    ) -> Result<(), Refusal> {
        match command {
            Command::CreateTenant(tenant) => {
                if self.view.tenants.contains_key(&tenant.name) {
                    return Err(Refusal::Exists(RecordKind::Tenant, tenant.name.to_string()));
                }
                check_limit(RecordKind::Tenant, self.view.tenants.len(), MAX_TENANTS)?;
                self.put_tenant(tenant, 0, transaction)
            }
            Command::SetTenant(tenant) => {
                let revision = self.tenant(&tenant.name, if_match)?.revision;
                self.put_tenant(tenant, revision, transaction)
            }
            Command::SetQuota { tenant, quota } => {
                self.change_tenant(tenant, if_match, transaction, |tenant| {
                    tenant.quota = quota.clone()
                })
            }
            Command::Place { tenant, placement } => {
                self.change_tenant(tenant, if_match, transaction, |tenant| {
                    tenant.placement = placement.clone();
                })
            }
            Command::RemoveTenant { tenant } => {
                let revision = self.tenant(tenant, if_match)?.revision;
                self.require_no_keys(tenant)?;
                self.remove(Table::Tenant, tenant.as_str(), revision, transaction)
            }
            Command::DrainNode { node, drain } => {
                self.change_node(node, if_match, transaction, |node| node.drain = *drain)
            }
            Command::RemoveNode { node } => {
                self.change_node(node, if_match, transaction, |node| node.removed = true)
            }
            Command::ReadmitNode { node } => self.readmit_node(node, if_match, transaction),
            Command::SetPrincipal(principal) => {
                let present = self.view.principals.get(&principal.name);
                if present.is_none() {
                    check_limit(RecordKind::Principal, self.view.principals.len(), MAX_PRINCIPALS)?;
                }
                let revision =
                    check_revision(present.map_or(0, |present| present.revision), if_match)?;
                self.put(
                    Table::Principal,
                    principal.name.as_str(),
                    revision,
                    principal,
                    transaction,
                )
            }
            Command::RemovePrincipal { principal } => {
                let present = self.view.principals.get(principal);
                let present =
                    self.present(RecordKind::Principal, present, principal.as_str(), if_match)?;
                self.remove(Table::Principal, principal.as_str(), present.revision, transaction)
            }
            Command::SetKey(key) => self.set_key(key, if_match, transaction),
            Command::RemoveKey { key } => {
                let present =
                    self.present(RecordKind::Key, self.view.keys.get(key), key.as_str(), if_match)?;
                self.remove(Table::Key, key.as_str(), present.revision, transaction)
            }
        }
    }

    fn set_key(
        &self,
        key: &PoolKey,
        if_match: Option<u64>,
        transaction: &mut Transaction,
    ) -> Result<(), Refusal> {
        check_problems(key.problems())?;
        let present = self.view.keys.get(&key.name);
        if present.is_none() {
            check_limit(RecordKind::Key, self.view.keys.len(), MAX_POOL_KEYS)?;
        }
        for tenant in &key.tenants {
            self.tenant(tenant, None)?;
        }
        if present.is_some_and(|present| present.value.version >= key.version) {
            return Err(Refusal::Invalid(vec!["version: higher than the present one".to_owned()]));
        }
        let revision = check_revision(present.map_or(0, |present| present.revision), if_match)?;
        self.put(Table::Key, key.name.as_str(), revision, key, transaction)
    }

    /// Keys stay when their tenant goes, so that none is lost by mistake.
    fn require_no_keys(&self, tenant: &TenantName) -> Result<(), Refusal> {
        let mut keys = self.view.keys.values().map(|key| &key.value);
        match keys.find(|key| key.tenants.contains(tenant)) {
            None => Ok(()),
            Some(key) => Err(Refusal::HasKeys { tenant: tenant.clone(), key: key.name.clone() }),
        }
    }

    fn present<'a, T>(
        &self,
        kind: RecordKind,
        present: Option<&'a Versioned<T>>,
        name: &str,
        if_match: Option<u64>,
    ) -> Result<&'a Versioned<T>, Refusal> {
        let present = present.ok_or_else(|| Refusal::NotFound(kind, name.to_owned()))?;
        check_revision(present.revision, if_match)?;
        Ok(present)
    }

    fn tenant(
        &self,
        name: &TenantName,
        if_match: Option<u64>,
    ) -> Result<&Versioned<Tenant>, Refusal> {
        self.present(RecordKind::Tenant, self.view.tenants.get(name), name.as_str(), if_match)
    }

    fn put_tenant(
        &self,
        tenant: &Tenant,
        revision: u64,
        transaction: &mut Transaction,
    ) -> Result<(), Refusal> {
        check_problems(tenant.problems())?;
        for identity in &tenant.identities {
            let other = self.view.tenant_of.get(identity);
            if let Some(name) = other.filter(|name| **name != tenant.name) {
                return Err(Refusal::IdentityTaken {
                    identity: identity.to_string(),
                    tenant: name.clone(),
                });
            }
        }
        self.put(Table::Tenant, tenant.name.as_str(), revision, tenant, transaction)
    }

    fn change_tenant(
        &self,
        name: &TenantName,
        if_match: Option<u64>,
        transaction: &mut Transaction,
        change: impl FnOnce(&mut Tenant),
    ) -> Result<(), Refusal> {
        let present = self.tenant(name, if_match)?;
        let mut changed = present.value.clone();
        change(&mut changed);
        self.put_tenant(&changed, present.revision, transaction)
    }

    fn readmit_node(
        &self,
        name: &NodeName,
        if_match: Option<u64>,
        transaction: &mut Transaction,
    ) -> Result<(), Refusal> {
        let present =
            self.present(RecordKind::Node, self.view.nodes.get(name), name.as_str(), if_match)?;
        if !present.value.removed {
            return Err(Refusal::Exists(RecordKind::Node, name.to_string()));
        }
        // The lease stays as it was: if the node was not reached, its grants may still be in force.
        let mut changed = present.value.clone();
        changed.removed = false;
        self.put(Table::Node, name.as_str(), present.revision, &changed, transaction)
    }

    fn change_node(
        &self,
        name: &NodeName,
        if_match: Option<u64>,
        transaction: &mut Transaction,
        change: impl FnOnce(&mut Node),
    ) -> Result<(), Refusal> {
        let present =
            self.present(RecordKind::Node, self.view.nodes.get(name), name.as_str(), if_match)?;
        if present.value.removed {
            return Err(Refusal::Removed(name.clone()));
        }
        let mut changed = present.value.clone();
        change(&mut changed);
        self.put(Table::Node, name.as_str(), present.revision, &changed, transaction)
    }
}

fn check_revision(found: u64, if_match: Option<u64>) -> Result<u64, Refusal> {
    match if_match {
        Some(expected) if expected != found => Err(Refusal::Changed { expected, found }),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::model::core::LeaseTimes;
    use crate::model::principal::{Credential, Principal};
    use crate::model::view::{SCHEMA_VERSION, Schema};
    use crate::store::Snapshot;

    #[test]
    fn principal_is_changed_at_the_limit_and_no_further_one_is_made() {
        let principal = |name: &str, role| Principal {
            name: name.parse().expect("a name"),
            role,
            credential: Credential::Identity(format!("cert:{name}")),
            expires_ms: None,
        };
        let mut core = Core::new(LeaseTimes::default(), &Snapshot::default(), Instant::now());
        core.view.schema =
            Some(Versioned { value: Schema { version: SCHEMA_VERSION }, revision: 1 });
        for number in 0..MAX_PRINCIPALS {
            let value = principal(&format!("user-{number}"), Role::Viewer);
            let record = Versioned { value, revision: 7 };
            core.view.principals.insert(record.value.name.clone(), record);
        }
        let admin = Actor { name: "admin:test", role: Role::Admin };
        let set = |name: &str| {
            let command = Command::SetPrincipal(principal(name, Role::Operator));
            core.command(admin, &command, None, 0).map(drop)
        };
        assert_eq!(set("user-0"), Ok(()));
        assert_eq!(set("one-more"), Err(Refusal::TooMany(RecordKind::Principal, MAX_PRINCIPALS)));
    }
}
