// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The verdict: the worst findings of an overview in one sentence.

use super::{
    BackendState, KeyLine, NodeRow, NodeState, Overview, Scope, TenantLine, Verdict, VerdictLevel,
};

/// Share of fallbacks from which on the verdict is a warning.
const FALLBACK_WARNING: f64 = 0.01;

/// Share of failed operations from which on the verdict is critical.
const FAILED_CRITICAL: f64 = 0.01;

/// Share of the capacity that must be left.
const CAPACITY_WARNING: f64 = 0.1;

/// Days before the end of a certificate from which on the verdict names it.
const EXPIRY_WARNING_DAYS: i64 = 7;

/// One sentence for the verdict.
pub type OverviewFinding = (VerdictLevel, String);

impl TenantLine {
    /// The lack of a tenant. Its quota may be used up: that is another finding. The text has no number that changes all
    /// the time: each change is an event.
    #[must_use]
    pub fn condition(&self) -> Option<OverviewFinding> {
        let Self { name, serving, granted_ops, quota_ops, short, refused_per_s, .. } = self;
        if *serving == 0 {
            return Some((VerdictLevel::Critical, format!("no node serves tenant {name}")));
        }
        if *refused_per_s > 0.0 {
            let text = format!("operations of tenant {name} are refused for want of capacity");
            return Some((VerdictLevel::Warning, text));
        }
        let below = *quota_ops > 0.0 && granted_ops + 0.5 < *quota_ops;
        let text = if below {
            format!("tenant {name} is granted {granted_ops:.0} of {quota_ops:.0} per second")
        } else {
            format!("the nodes of tenant {name} have not the capacity for its quota")
        };
        (below || *short).then_some((VerdictLevel::Warning, text))
    }
}

impl NodeRow {
    /// The problem of a pool's node: no report of it arrives.
    #[must_use]
    pub fn condition(&self) -> Option<OverviewFinding> {
        match self.state {
            NodeState::Away => Some((VerdictLevel::Warning, format!("node {} is away", self.name))),
            NodeState::Ready | NodeState::Draining if self.silent => {
                Some((VerdictLevel::Warning, format!("node {} is silent", self.name)))
            }
            NodeState::Ready | NodeState::Draining | NodeState::Removed => None,
        }
    }
}

impl Overview {
    /// The verdict by the rules that the alerts of `deploy/prometheus` have, too.
    #[must_use]
    pub fn judge(&self) -> Verdict {
        self.judge_with(Vec::new())
    }

    /// The verdict with findings that no row shows.
    #[must_use]
    pub fn judge_with(&self, mut findings: Vec<OverviewFinding>) -> Verdict {
        findings.extend(self.findings_of_nodes());
        findings.extend(self.findings_of_tenants());
        findings.extend(self.findings_of_load());
        findings.extend(self.findings_of_parts());
        findings.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
        let Some((level, _)) = findings.first() else {
            return Verdict {
                level: VerdictLevel::Good,
                text: match (self.scope, self.nodes_in(NodeState::Ready).len()) {
                    (Scope::Node, _) => format!("Node {} serves", self.name),
                    (Scope::Pool, 1) => "The only node serves".to_owned(),
                    (Scope::Pool, all) => format!("All {all} nodes serve"),
                },
            };
        };
        let texts: Vec<&str> = findings.iter().map(|(_, text)| text.as_str()).collect();
        Verdict { level: *level, text: texts.join("; ") }
    }

    fn nodes_in(&self, state: NodeState) -> Vec<&str> {
        let rows = self.nodes.iter().filter(|node| node.state == state);
        rows.map(|node| node.name.as_str()).collect()
    }

    fn findings_of_nodes(&self) -> Vec<OverviewFinding> {
        let mut findings = Vec::new();
        if self.nodes_in(NodeState::Ready).is_empty() {
            findings.push((VerdictLevel::Critical, "no node serves".to_owned()));
        }
        for state in [NodeState::Away, NodeState::Draining] {
            let rows = self.nodes_in(state);
            if !rows.is_empty() {
                let verb = if rows.len() == 1 { "is" } else { "are" };
                let text = format!("{} {verb} {state}", list(&rows));
                findings.push((VerdictLevel::Warning, text));
            }
        }
        let silent = self.nodes.iter().filter(|node| node.silent && node.condition().is_some());
        let silent = silent.filter(|node| node.state != NodeState::Away);
        let silent: Vec<&str> = silent.map(|node| node.name.as_str()).collect();
        if !silent.is_empty() {
            let verb = if silent.len() == 1 { "is" } else { "are" };
            findings.push((VerdictLevel::Warning, format!("{} {verb} silent", list(&silent))));
        }
        findings
    }

    /// Findings about tenants that lack nodes or capacity. Without nodes, that alone is said.
    fn findings_of_tenants(&self) -> Vec<OverviewFinding> {
        if self.nodes_in(NodeState::Ready).is_empty() {
            return Vec::new();
        }
        let with = |level| {
            let rows = self.tenants.iter().filter_map(TenantLine::condition);
            rows.filter(move |(found, _)| *found == level)
        };
        let mut findings = Vec::new();
        for level in [VerdictLevel::Critical, VerdictLevel::Warning] {
            findings.extend(with(level).next().map(|(level, text)| match with(level).count() {
                1 => (level, text),
                all => (level, format!("{text} (and {} more tenants likewise)", all - 1)),
            }));
        }
        findings
    }

    fn findings_of_load(&self) -> Vec<OverviewFinding> {
        let mut findings = Vec::new();
        let figures = &self.figures;
        let offered = figures.ops_per_s + figures.failed_per_s;
        if figures.failed_per_s > FAILED_CRITICAL * offered && figures.failed_per_s > 0.0 {
            let text = format!("{:.1} operations per second fail", figures.failed_per_s);
            findings.push((VerdictLevel::Critical, text));
        }
        if figures.fallback_share >= FALLBACK_WARNING {
            let share = figures.fallback_share * 100.0;
            let text = format!("gateways fell back for {share:.1} %");
            findings.push((VerdictLevel::Warning, text));
        }
        if let Some(left) = figures.capacity_left.filter(|left| *left < CAPACITY_WARNING) {
            let text = format!("{:.0} % of the capacity is left", left * 100.0);
            findings.push((VerdictLevel::Warning, text));
        }
        findings
    }

    /// Advice about the end of a certificate's validity, if it is near.
    fn finding_of_expiry(&self, key: &KeyLine) -> Option<String> {
        let now = i64::try_from(self.at_ms / 1000).unwrap_or(i64::MAX);
        let left = key.expires?.saturating_sub(now);
        let KeyLine { name, node, .. } = key;
        if left <= 0 {
            Some(format!("{name} of {node} has expired"))
        } else if left < EXPIRY_WARNING_DAYS * 86_400 {
            Some(format!("{name} of {node} expires within {EXPIRY_WARNING_DAYS} days"))
        } else {
            None
        }
    }

    /// Findings about backends, keys and tenants.
    fn findings_of_parts(&self) -> Vec<OverviewFinding> {
        let mut texts = Vec::new();
        for node in &self.nodes {
            let out = node.backends.iter().filter(|row| row.state == BackendState::Quarantined);
            texts.extend(out.map(|row| format!("{} of {} is quarantined", row.backend, node.name)));
        }
        let broken = self.counted().broken_keys;
        if broken > 0 {
            texts.push(format!("{broken} keys cannot be used"));
        }
        texts.extend(self.keys.iter().filter_map(|key| self.finding_of_expiry(key)));
        let throttled = self.tenants.iter().filter(|row| row.throttled_per_s > 0.0);
        let throttled: Vec<&str> = throttled.map(|row| row.name.as_str()).collect();
        if !throttled.is_empty() {
            texts.push(format!("{} reached the quota", list(&throttled)));
        }
        texts.into_iter().map(|text| (VerdictLevel::Warning, text)).collect()
    }
}

fn list(names: &[&str]) -> String {
    /// Bound on the names in a sentence: more make it unreadable; the table has all.
    const SHOWN: usize = 3;
    match names.len() {
        0..=SHOWN => names.join(", "),
        all => format!("{} and {} more", names[..SHOWN].join(", "), all - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Figures, RowTotals};
    use super::*;
    use crate::tenants::Priority;

    fn pool(nodes: Vec<NodeRow>) -> Overview {
        let mut overview = Overview {
            scope: Scope::Pool,
            name: "pool".to_owned(),
            version: String::new(),
            at_ms: 0,
            verdict: Verdict::default(),
            figures: Figures::default(),
            nodes,
            clients: Vec::new(),
            tenants: Vec::new(),
            keys: Vec::new(),
            events: Vec::new(),
            totals: RowTotals::default(),
        };
        overview.verdict = overview.judge();
        overview
    }

    #[test]
    fn verdict_names_the_worst_finding_first() {
        let good =
            pool(vec![NodeRow::new("a", NodeState::Ready), NodeRow::new("b", NodeState::Ready)]);
        assert_eq!(good.verdict.level, VerdictLevel::Good);
        assert_eq!(good.verdict.text, "All 2 nodes serve");
        let away =
            pool(vec![NodeRow::new("a", NodeState::Ready), NodeRow::new("b", NodeState::Away)]);
        assert_eq!(away.verdict.level, VerdictLevel::Warning);
        assert_eq!(away.verdict.text, "b is away");
        let none =
            pool(vec![NodeRow::new("a", NodeState::Away), NodeRow::new("b", NodeState::Draining)]);
        assert_eq!(none.verdict.level, VerdictLevel::Critical);
        assert!(none.verdict.text.starts_with("no node serves; "), "{}", none.verdict.text);
    }

    #[test]
    fn verdict_warns_from_its_limits_on() {
        let mut overview = pool(vec![NodeRow::new("a", NodeState::Ready)]);
        overview.figures.fallback_share = 0.0099;
        assert_eq!(overview.judge().level, VerdictLevel::Good);
        overview.figures.fallback_share = 0.01;
        assert_eq!(overview.judge().level, VerdictLevel::Warning);
        overview.figures = Figures { ops_per_s: 990.0, failed_per_s: 20.0, ..Figures::default() };
        assert_eq!(overview.judge().level, VerdictLevel::Critical);
        overview.figures = Figures { capacity_left: Some(0.05), ..Figures::default() };
        assert_eq!(overview.judge().level, VerdictLevel::Warning);
    }

    #[test]
    fn verdict_is_not_good_while_a_tenant_lacks_a_node_or_a_part_of_its_quota() {
        let mut overview = pool(vec![NodeRow::new("a", NodeState::Ready)]);
        let mut judged = |serving: usize, granted_ops: f64, short: bool| {
            overview.tenants = vec![TenantLine {
                name: "acme".to_owned(),
                weight: 1,
                priority: Priority::default(),
                quota_ops: 900.0,
                used_ops: 0.0,
                throttled_per_s: 0.0,
                refused_per_s: 0.0,
                nodes: vec!["a".to_owned()],
                granted_ops,
                serving,
                short,
            }];
            overview.judge()
        };
        assert_eq!(judged(1, 900.0, false).level, VerdictLevel::Good);
        // Parts of a quota are whole numbers: less than half of one is a rounded one.
        assert_eq!(judged(1, 899.5, false).level, VerdictLevel::Good);
        assert_eq!(judged(1, 899.4, false).level, VerdictLevel::Warning);
        let below = judged(1, 97.0, false);
        assert_eq!(below.level, VerdictLevel::Warning);
        assert!(
            below.text.contains("tenant acme is granted 97 of 900 per second"),
            "{}",
            below.text
        );
        assert_eq!(judged(1, 900.0, true).level, VerdictLevel::Warning);
        let none = judged(0, 0.0, false);
        assert_eq!(none.level, VerdictLevel::Critical);
        assert!(none.text.contains("no node serves tenant acme"), "{}", none.text);
    }

    #[test]
    fn verdict_is_not_good_while_a_tenant_is_refused_for_want_of_capacity() {
        let refused = |refused_per_s| TenantLine {
            name: "acme".to_owned(),
            serving: 1,
            refused_per_s,
            ..TenantLine::default()
        };
        for scope in [Scope::Pool, Scope::Node] {
            let mut overview = pool(vec![NodeRow::new("a", NodeState::Ready)]);
            overview.scope = scope;
            // Far below the share of failures that is critical for the whole.
            overview.figures.ops_per_s = 10_000.0;
            overview.tenants = vec![refused(0.0)];
            assert_eq!(overview.judge().level, VerdictLevel::Good);
            overview.tenants.push(refused(0.2));
            let verdict = overview.judge();
            assert_eq!(verdict.level, VerdictLevel::Warning);
            assert_eq!(verdict.text, "operations of tenant acme are refused for want of capacity");
        }
    }

    #[test]
    fn verdict_names_a_certificate_from_seven_days_before_its_end() {
        const DAY: i64 = 86_400;
        let mut overview = pool(vec![NodeRow::new("a", NodeState::Ready)]);
        overview.at_ms = 1_000_000_000_000;
        let mut at = |end: i64| {
            overview.keys = vec![KeyLine {
                name: "certificate a".to_owned(),
                node: "a".to_owned(),
                fingerprint: String::new(),
                former: false,
                last_used: None,
                expires: Some(1_000_000_000 + end),
                problem: String::new(),
            }];
            overview.judge()
        };
        assert_eq!(at(7 * DAY).level, VerdictLevel::Good);
        let soon = at(7 * DAY - 1);
        assert_eq!(soon.level, VerdictLevel::Warning);
        assert_eq!(soon.text, "certificate a of a expires within 7 days");
        assert_eq!(at(0).text, "certificate a of a has expired");
    }
}
