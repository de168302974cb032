// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which socket is registered where, and which eventfds stand beside it. Pure: events in, actions
//! out; the caller does the system calls.
//!
//! A socket may be registered before its handshake pauses (the usual case) or after (nginx starts a
//! handshake at once when data came with the connection, and registers the socket when it is told
//! to wait): twins are armed as soon as both are known.

use std::collections::HashMap;

/// A change to an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Add the eventfd `fd` with this data, or (`again`) re-arm it, as it is there.
    Arm {
        epoll: i32,
        fd: i32,
        data: u64,
        again: bool,
    },
    /// Take the eventfd `fd` out.
    Disarm { epoll: i32, fd: i32 },
}

/// Where a socket is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registration {
    epoll: i32,
    data: u64,
}

#[derive(Debug, Default)]
struct Entry {
    registration: Option<Registration>,
    /// Eventfds of the paused job of the TLS connection on this socket.
    twins: Vec<i32>,
}

/// Everything known about the sockets of one process. Entries go when their socket is closed, so it
/// is never larger than the table of open files.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: HashMap<i32, Entry>,
    used: bool,
}

impl Table {
    /// Whether this process has ever registered anything: whether it waits by epoll at all.
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// The socket was added to an epoll instance, or its registration changed.
    pub(crate) fn registered(&mut self, socket: i32, epoll: i32, data: u64) -> Vec<Action> {
        self.used = true;
        let entry = self.entries.entry(socket).or_default();
        let now = Registration { epoll, data };
        let before = entry.registration.replace(now);
        if before == Some(now) {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if before.is_some_and(|before| before.epoll != epoll) {
            actions = disarm(before, &entry.twins);
        }
        let there = before.is_some_and(|before| before.epoll == epoll);
        actions.extend(arm(now, &entry.twins, |_| there));
        actions
    }

    /// The socket was taken out of its epoll instance; its job may still be paused.
    pub(crate) fn deregistered(&mut self, socket: i32) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&socket) else {
            return Vec::new();
        };
        let actions = disarm(entry.registration.take(), &entry.twins);
        if entry.twins.is_empty() {
            self.entries.remove(&socket);
        }
        actions
    }

    /// The socket is about to be closed: its number may be somebody else's next.
    pub(crate) fn closed(&mut self, socket: i32) -> Vec<Action> {
        self.entries
            .remove(&socket)
            .map_or_else(Vec::new, |entry| disarm(entry.registration, &entry.twins))
    }

    /// The handshake on this socket waits for these eventfds.
    pub(crate) fn paused(&mut self, socket: i32, wait_fds: &[i32]) -> Vec<Action> {
        let entry = self.entries.entry(socket).or_default();
        let before = std::mem::replace(&mut entry.twins, wait_fds.to_vec());
        let gone = before.iter().copied().filter(|fd| !wait_fds.contains(fd));
        let mut actions = disarm(entry.registration, &gone.collect::<Vec<_>>());
        if let Some(registration) = entry.registration {
            actions.extend(arm(registration, wait_fds, |fd| before.contains(&fd)));
        }
        actions
    }

    /// The handshake on this socket does not wait any more.
    pub(crate) fn resumed(&mut self, socket: i32) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&socket) else {
            return Vec::new();
        };
        if entry.twins.is_empty() {
            return Vec::new();
        }
        let actions = disarm(entry.registration, &entry.twins);
        entry.twins.clear();
        if entry.registration.is_none() {
            self.entries.remove(&socket);
        }
        actions
    }
}

fn arm(at: Registration, twins: &[i32], there: impl Fn(i32) -> bool) -> Vec<Action> {
    let Registration { epoll, data } = at;
    let arm = |&fd| Action::Arm {
        epoll,
        fd,
        data,
        again: there(fd),
    };
    twins.iter().map(arm).collect()
}

fn disarm(at: Option<Registration>, twins: &[i32]) -> Vec<Action> {
    let Some(Registration { epoll, .. }) = at else {
        return Vec::new();
    };
    let disarm = |&fd| Action::Disarm { epoll, fd };
    twins.iter().map(disarm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL: i32 = 3;
    const SOCKET: i32 = 10;
    const EVENT: i32 = 20;

    fn arm(fd: i32, data: u64, again: bool) -> Action {
        Action::Arm {
            epoll: EPOLL,
            fd,
            data,
            again,
        }
    }

    fn disarm(fd: i32) -> Action {
        Action::Disarm { epoll: EPOLL, fd }
    }

    #[test]
    fn a_twin_is_armed_with_the_data_of_its_socket() {
        let mut table = Table::default();
        assert_eq!(table.registered(SOCKET, EPOLL, 77), []);
        let added = arm(EVENT, 77, false);
        assert_eq!(table.paused(SOCKET, &[EVENT]), [added]);
        // Each further pause re-arms the edge.
        assert_eq!(table.paused(SOCKET, &[EVENT]), [arm(EVENT, 77, true)]);
        let removed = disarm(EVENT);
        assert_eq!(table.resumed(SOCKET), [removed]);
        assert_eq!(table.resumed(SOCKET), []);
    }

    #[test]
    fn a_socket_registered_after_the_pause_gets_its_twin_then() {
        let mut table = Table::default();
        assert_eq!(table.paused(SOCKET, &[EVENT]), []);
        let added = arm(EVENT, 5, false);
        assert_eq!(table.registered(SOCKET, EPOLL, 5), [added]);
    }

    #[test]
    fn a_reused_descriptor_starts_without_history() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.closed(SOCKET), [disarm(EVENT)]);
        assert_eq!(table.paused(SOCKET, &[21]), []);
        let added = arm(21, 2, false);
        assert_eq!(table.registered(SOCKET, EPOLL, 2), [added]);
    }

    #[test]
    fn changed_data_re_arms_and_unchanged_data_does_not() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.registered(SOCKET, EPOLL, 1), []);
        assert_eq!(table.registered(SOCKET, EPOLL, 2), [arm(EVENT, 2, true)]);
    }

    #[test]
    fn an_eventfd_that_is_no_longer_waited_for_is_disarmed() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        let expected = [disarm(EVENT), arm(21, 1, false)];
        assert_eq!(table.paused(SOCKET, &[21]), expected);
    }

    #[test]
    fn a_socket_that_moves_to_another_instance_takes_its_twin_along() {
        let mut table = Table::default();
        assert!(!table.is_used());
        table.registered(SOCKET, EPOLL, 1);
        assert!(table.is_used());
        table.paused(SOCKET, &[EVENT]);
        let other = Action::Arm {
            epoll: EPOLL + 1,
            fd: EVENT,
            data: 1,
            again: false,
        };
        assert_eq!(
            table.registered(SOCKET, EPOLL + 1, 1),
            [disarm(EVENT), other]
        );
    }

    #[test]
    fn a_socket_taken_out_and_put_back_gets_its_twin_back() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.deregistered(SOCKET), [disarm(EVENT)]);
        assert_eq!(table.registered(SOCKET, EPOLL, 1), [arm(EVENT, 1, false)]);
    }

    #[test]
    fn nothing_is_remembered_of_sockets_that_are_gone() {
        let mut table = Table::default();
        for socket in 0..1000 {
            table.registered(socket, EPOLL, 1);
            table.paused(socket, &[socket + 1000]);
            table.resumed(socket);
            if socket % 2 == 0 {
                table.closed(socket)
            } else {
                table.deregistered(socket)
            };
        }
        assert!(table.entries.is_empty());
    }
}
