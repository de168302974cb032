// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Seen`]: what a manager saw change in its pool: nodes and tenants that fell short, and that are well again. Each is
//! an event of the page and a line of the log. They are one manager's own, and end with it; the alerts have the same
//! conditions.

use std::collections::{BTreeMap, VecDeque};

use millrace_service::overview::{Event, MAX_ROWS, OverviewFinding, VerdictLevel};
use tracing::{error, info, warn};

/// Bound on the changes that are events of their own; more at once, as when a room loses its power, are one.
const MAX_AT_ONCE: usize = 10;

/// The present conditions of a pool, and the latest changes of them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The present problems, by node, tenant or record.
    present: BTreeMap<String, OverviewFinding>,
    /// The latest changes, the newest last, at most [`MAX_ROWS`].
    pub(super) events: VecDeque<Event>,
    /// Number of all changes.
    pub(super) count: usize,
}

impl Seen {
    /// Notes what has changed since the call before.
    pub(super) fn take(&mut self, now: BTreeMap<String, OverviewFinding>, at_ms: u64) {
        let new = now.iter().filter(|(about, found)| self.present.get(*about) != Some(*found));
        let mut changes: Vec<Event> = new
            .map(|(about, (level, text))| Event {
                at_ms,
                level: *level,
                origin: about.clone(),
                text: text.clone(),
            })
            .collect();
        let over = self.present.iter().filter(|(about, _)| !now.contains_key(*about));
        changes.extend(over.map(|(about, (_, text))| Event {
            at_ms,
            level: VerdictLevel::Good,
            origin: about.clone(),
            text: format!("no longer: {text}"),
        }));
        if changes.len() > MAX_AT_ONCE {
            let more = changes.len() - MAX_AT_ONCE;
            let level = changes.iter().map(|event| event.level).max().unwrap_or_default();
            changes.truncate(MAX_AT_ONCE);
            let text = format!("{more} more nodes and tenants have changed at the same time");
            changes.push(Event { at_ms, level, origin: "pool".to_owned(), text });
        }
        for event in changes {
            match event.level {
                VerdictLevel::Good => info!("{}", event.text),
                VerdictLevel::Warning => warn!("{}", event.text),
                VerdictLevel::Critical => error!("{}", event.text),
            }
            self.count += 1;
            self.events.push_back(event);
            if self.events.len() > MAX_ROWS {
                self.events.pop_front();
            }
        }
        self.present = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(rows: &[(&str, VerdictLevel, &str)]) -> BTreeMap<String, OverviewFinding> {
        let rows = rows
            .iter()
            .map(|(about, level, text)| ((*about).to_owned(), (*level, (*text).to_owned())));
        rows.collect()
    }

    fn texts(seen: &Seen) -> Vec<&str> {
        seen.events.iter().map(|event| &*event.text).collect()
    }

    #[test]
    fn each_change_is_one_event_and_what_stays_is_none() {
        let mut seen = Seen::default();
        let away = conditions(&[("a", VerdictLevel::Warning, "node a is away")]);
        for at in 0..3 {
            seen.take(away.clone(), at);
        }
        seen.take(BTreeMap::new(), 4);
        assert_eq!(texts(&seen), ["node a is away", "no longer: node a is away"]);
        assert_eq!(seen.events[1].level, VerdictLevel::Good);
    }

    #[test]
    fn changes_at_once_and_in_all_are_bounded() {
        let mut seen = Seen::default();
        let many: Vec<String> = (0..=MAX_AT_ONCE).map(|number| format!("t{number}")).collect();
        let rows: Vec<_> = many
            .iter()
            .map(|name| (&**name, VerdictLevel::Critical, "no node serves it"))
            .collect();
        seen.take(conditions(&rows[..MAX_AT_ONCE]), 0);
        assert_eq!(seen.events.len(), MAX_AT_ONCE);
        seen = Seen::default();
        seen.take(conditions(&rows), 0);
        assert_eq!(seen.events.len(), MAX_AT_ONCE + 1);
        assert!(seen.events[MAX_AT_ONCE].text.starts_with("1 more nodes and tenants"));
        for at in 0..MAX_ROWS as u64 {
            seen.take(if at % 2 == 0 { BTreeMap::new() } else { conditions(&rows[..1]) }, at);
        }
        assert_eq!(seen.events.len(), MAX_ROWS);
        assert!(seen.count > MAX_ROWS);
    }
}
