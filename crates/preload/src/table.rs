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
    /// Add the eventfd `fd` with this data, or re-arm it if it is there.
    Arm { epoll: i32, fd: i32, data: u64 },
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
}

impl Table {
    /// The socket was added to an epoll instance, or its registration changed.
    pub(crate) fn registered(&mut self, socket: i32, epoll: i32, data: u64) -> Vec<Action> {
        let entry = self.entries.entry(socket).or_default();
        let registration = Registration { epoll, data };
        let moved = entry.registration != Some(registration);
        entry.registration = Some(registration);
        if moved { arm(entry) } else { Vec::new() }
    }

    /// The socket was taken out of its epoll instance; its job may still be paused.
    pub(crate) fn deregistered(&mut self, socket: i32) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&socket) else {
            return Vec::new();
        };
        let actions = disarm(entry);
        entry.registration = None;
        if entry.twins.is_empty() {
            self.entries.remove(&socket);
        }
        actions
    }

    /// The socket is about to be closed: its number may be somebody else's next.
    pub(crate) fn closed(&mut self, socket: i32) -> Vec<Action> {
        self.entries
            .remove(&socket)
            .map_or_else(Vec::new, |entry| disarm(&entry))
    }

    /// The handshake on this socket waits for these eventfds.
    pub(crate) fn paused(&mut self, socket: i32, wait_fds: &[i32]) -> Vec<Action> {
        let entry = self.entries.entry(socket).or_default();
        let gone = Entry {
            registration: entry.registration,
            twins: entry
                .twins
                .iter()
                .copied()
                .filter(|fd| !wait_fds.contains(fd))
                .collect(),
        };
        let mut actions = disarm(&gone);
        entry.twins = wait_fds.to_vec();
        actions.extend(arm(entry));
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
        let actions = disarm(entry);
        entry.twins.clear();
        if entry.registration.is_none() {
            self.entries.remove(&socket);
        }
        actions
    }
}

fn arm(entry: &Entry) -> Vec<Action> {
    let Some(Registration { epoll, data }) = entry.registration else {
        return Vec::new();
    };
    entry
        .twins
        .iter()
        .map(|&fd| Action::Arm { epoll, fd, data })
        .collect()
}

fn disarm(entry: &Entry) -> Vec<Action> {
    let Some(Registration { epoll, .. }) = entry.registration else {
        return Vec::new();
    };
    entry
        .twins
        .iter()
        .map(|&fd| Action::Disarm { epoll, fd })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL: i32 = 3;
    const SOCKET: i32 = 10;
    const EVENT: i32 = 20;

    #[test]
    fn a_twin_is_armed_with_the_data_of_its_socket() {
        let mut table = Table::default();
        assert_eq!(table.registered(SOCKET, EPOLL, 77), []);
        let arm = Action::Arm {
            epoll: EPOLL,
            fd: EVENT,
            data: 77,
        };
        assert_eq!(table.paused(SOCKET, &[EVENT]), [arm]);
        // Each further pause re-arms the edge.
        assert_eq!(table.paused(SOCKET, &[EVENT]), [arm]);
        let disarm = Action::Disarm {
            epoll: EPOLL,
            fd: EVENT,
        };
        assert_eq!(table.resumed(SOCKET), [disarm]);
        assert_eq!(table.resumed(SOCKET), []);
    }

    #[test]
    fn a_socket_registered_after_the_pause_gets_its_twin_then() {
        let mut table = Table::default();
        assert_eq!(table.paused(SOCKET, &[EVENT]), []);
        let arm = Action::Arm {
            epoll: EPOLL,
            fd: EVENT,
            data: 5,
        };
        assert_eq!(table.registered(SOCKET, EPOLL, 5), [arm]);
    }

    #[test]
    fn a_reused_descriptor_starts_without_history() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(
            table.closed(SOCKET),
            [Action::Disarm {
                epoll: EPOLL,
                fd: EVENT
            }]
        );
        assert_eq!(table.paused(SOCKET, &[21]), []);
        let arm = Action::Arm {
            epoll: EPOLL,
            fd: 21,
            data: 2,
        };
        assert_eq!(table.registered(SOCKET, EPOLL, 2), [arm]);
    }

    #[test]
    fn changed_data_re_arms_and_unchanged_data_does_not() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        assert_eq!(table.registered(SOCKET, EPOLL, 1), []);
        assert_eq!(table.registered(SOCKET, EPOLL, 2).len(), 1);
    }

    #[test]
    fn an_eventfd_that_is_no_longer_waited_for_is_disarmed() {
        let mut table = Table::default();
        table.registered(SOCKET, EPOLL, 1);
        table.paused(SOCKET, &[EVENT]);
        let expected = [
            Action::Disarm {
                epoll: EPOLL,
                fd: EVENT,
            },
            Action::Arm {
                epoll: EPOLL,
                fd: 21,
                data: 1,
            },
        ];
        assert_eq!(table.paused(SOCKET, &[21]), expected);
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
