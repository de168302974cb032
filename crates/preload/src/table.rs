// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which socket is registered where, and which eventfds stand beside it. Pure: events in, actions
//! out; the caller does the system calls.
//!
//! A socket may be registered before its handshake pauses (the usual case) or after (nginx starts a
//! handshake at once when data came with the connection, and registers the socket when it is told
//! to wait): twins are armed as soon as both are known.
//!
//! Where the program's event loop attends to the provider (see `ffi::host_loop`) no eventfd is needed: a
//! connection has a *ticket*, by which it is *rung* when its job can go on, and the loop is told that
//! its socket is readable. All such jobs name one eventfd, the *bell*, which nobody waits for in their
//! stead.

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
    /// What it is rung by, as long as this entry is there; 0 is none.
    ticket: u32,
    /// Whether it was rung, and the program was not told yet.
    rung: bool,
}

/// Everything known about the sockets of one process. Entries go when their socket is closed, so it
/// is never larger than the table of open files.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: HashMap<i32, Entry>,
    used: bool,
    bell: Option<i32>,
    /// The ticket that was given last.
    tickets: u32,
    /// Sockets that were rung, in their order. Some may be closed since, or not registered yet.
    rung: Vec<i32>,
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
        if entry.rung {
            self.rung.push(socket);
        }
        let mut actions = Vec::new();
        if before.is_some_and(|before| before.epoll != epoll) {
            actions = disarm(before, &entry.twins);
        }
        let there = before.is_some_and(|before| before.epoll == epoll);
        actions.extend(arm(now, &entry.twins, |_| there));
        self.without_bell(actions)
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
        self.without_bell(actions)
    }

    /// The socket is about to be closed: its number may be somebody else's next.
    pub(crate) fn closed(&mut self, socket: i32) -> Vec<Action> {
        let entry = self.entries.remove(&socket);
        let actions = entry.map(|entry| disarm(entry.registration, &entry.twins));
        self.without_bell(actions.unwrap_or_default())
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
        self.without_bell(actions)
    }

    /// The handshake on this socket does not wait any more.
    pub(crate) fn resumed(&mut self, socket: i32) -> Vec<Action> {
        let Some(entry) = self.entries.get_mut(&socket) else {
            return Vec::new();
        };
        entry.rung = false;
        let actions = disarm(entry.registration, &entry.twins);
        entry.twins.clear();
        if entry.registration.is_none() {
            self.entries.remove(&socket);
        }
        self.without_bell(actions)
    }

    /// From now on jobs that wait for this eventfd are rung.
    pub(crate) fn has_bell(&mut self, bell: i32) {
        self.bell = Some(bell);
    }

    /// What the connection on this socket is rung by, until its job does not wait any more.
    pub(crate) fn ticket(&mut self, socket: i32) -> u64 {
        let entry = self.entries.entry(socket).or_default();
        if entry.ticket == 0 {
            self.tickets = self.tickets.checked_add(1).unwrap_or(1);
            entry.ticket = self.tickets;
        }
        u64::from(entry.ticket) << 32 | u64::from(socket.cast_unsigned())
    }

    /// The job of a connection can go on. Nothing happens if the connection is gone.
    pub(crate) fn ring(&mut self, ticket: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the halves of a ticket")]
        let (socket, ticket) = ((ticket as u32).cast_signed(), (ticket >> 32) as u32);
        let entry = self.entries.get_mut(&socket);
        if let Some(entry) = entry.filter(|entry| entry.ticket == ticket && !entry.rung) {
            entry.rung = true;
            self.rung.push(socket);
        }
    }

    /// Whether [`Self::take_rung`] may give something.
    pub(crate) fn has_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// The data of up to `room` sockets in this epoll instance that were rung; the program is told now.
    pub(crate) fn take_rung(&mut self, epoll: i32, room: usize) -> Vec<u64> {
        let mut data = Vec::new();
        let mut rest = std::mem::take(&mut self.rung).into_iter();
        while data.len() < room
            && let Some(socket) = rest.next()
        {
            let entry = self.entries.get_mut(&socket).filter(|entry| entry.rung);
            // One that is not registered comes again when it is.
            if let Some(entry) = entry
                && let Some(at) = entry.registration.filter(|at| at.epoll == epoll)
            {
                entry.rung = false;
                data.push(at.data);
            }
        }
        self.rung = rest.collect();
        data
    }

    fn without_bell(&self, mut actions: Vec<Action>) -> Vec<Action> {
        actions.retain(|action| {
            let (Action::Arm { fd, .. } | Action::Disarm { fd, .. }) = action;
            Some(*fd) != self.bell
        });
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

    const BELL: i32 = 30;

    fn with_bell() -> Table {
        let mut table = Table::default();
        table.has_bell(BELL);
        table
    }

    #[test]
    fn a_connection_that_is_rung_is_readable_once() {
        let mut table = with_bell();
        table.registered(SOCKET, EPOLL, 77);
        let ticket = table.ticket(SOCKET);
        assert_eq!(
            table.paused(SOCKET, &[BELL]),
            [],
            "nobody waits for the bell"
        );
        assert!(!table.has_rung());
        table.ring(ticket);
        table.ring(ticket);
        assert!(table.has_rung());
        assert_eq!(table.take_rung(EPOLL, 0), []);
        assert_eq!(table.take_rung(EPOLL, 8), [77]);
        assert!(!table.has_rung());
        assert_eq!(table.resumed(SOCKET), []);
        // A second operation of the same connection.
        assert_eq!(table.ticket(SOCKET), ticket);
        table.ring(ticket);
        assert_eq!(table.take_rung(EPOLL, 8), [77]);
    }

    #[test]
    fn one_that_is_not_registered_is_told_when_it_is() {
        let mut table = with_bell();
        let ticket = table.ticket(SOCKET);
        table.ring(ticket);
        table.paused(SOCKET, &[BELL]);
        assert_eq!(table.take_rung(EPOLL, 8), []);
        table.registered(SOCKET, EPOLL, 5);
        assert_eq!(table.take_rung(EPOLL, 8), [5]);
        // Taken out and put back while it waits.
        table.deregistered(SOCKET);
        table.ring(ticket);
        assert_eq!(table.take_rung(EPOLL, 8), []);
        table.registered(SOCKET, EPOLL, 6);
        assert_eq!(table.take_rung(EPOLL, 8), [6]);
    }

    #[test]
    fn the_ring_of_one_that_is_gone_reaches_nobody() {
        let mut table = with_bell();
        table.registered(SOCKET, EPOLL, 1);
        let ticket = table.ticket(SOCKET);
        table.paused(SOCKET, &[BELL]);
        table.ring(ticket);
        assert_eq!(table.closed(SOCKET), []);
        // The number is another connection's.
        table.registered(SOCKET, EPOLL, 2);
        assert_ne!(table.ticket(SOCKET), ticket);
        table.paused(SOCKET, &[BELL]);
        table.ring(ticket);
        assert_eq!(table.take_rung(EPOLL, 8), []);
        // What was rung and went on by itself is not told.
        let ticket = table.ticket(SOCKET);
        table.ring(ticket);
        table.resumed(SOCKET);
        assert_eq!(table.take_rung(EPOLL, 8), []);
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
