// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Choices written as configuration, each with its reason as a comment. What only the owner knows
//! (addresses, names, certificates) is left to be added.

mod haproxy;
mod nginx;
mod openvpn;
mod swanctl;
mod vyos;

use super::algorithm::{Cipher, Group};
use super::rules::{Decided, Plan};
use super::{Choice, Format, Topic};

/// Width of comments.
const COLUMNS: usize = 96;

/// Writes a configuration.
pub(crate) fn write(decided: &Decided, format: Format) -> String {
    let mut text = Text::new(&decided.choices);
    text.line(
        0,
        "# Advised by `millrace advise`; try it before you rely on it.",
    );
    match (&decided.plan, format) {
        (Plan::Ipsec(plan), Format::Vyos) => vyos::ipsec(&mut text, plan),
        (Plan::Ipsec(plan), _) => swanctl::write(&mut text, plan),
        (Plan::Openvpn(plan), Format::Vyos) => vyos::openvpn(&mut text, plan),
        (Plan::Openvpn(plan), _) => openvpn::write(&mut text, plan),
        (Plan::Tls(plan), Format::Haproxy) => haproxy::write(&mut text, plan),
        (Plan::Tls(plan), _) => nginx::write(&mut text, plan),
    }
    text.text
}

/// Groups of TLS in OpenSSL's words.
fn openssl_groups(groups: &[Group]) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.names().openssl).collect();
    names.join(":")
}

/// Ciphers in OpenVPN's words.
fn openvpn_ciphers(ciphers: &[Cipher]) -> String {
    let aead = ciphers.iter().filter(|cipher| cipher.is_aead());
    let names: Vec<String> = aead
        .map(|cipher| cipher.names().name.to_ascii_uppercase())
        .collect();
    names.join(":")
}

/// A configuration under construction.
struct Text<'a> {
    choices: &'a [Choice],
    text: String,
}

impl<'a> Text<'a> {
    fn new(choices: &'a [Choice]) -> Self {
        Self {
            choices,
            text: String::new(),
        }
    }

    /// Adds a line, indented by `indent` columns.
    fn line(&mut self, indent: usize, line: &str) {
        self.text.push_str(&" ".repeat(indent));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds a comment, wrapped.
    fn remark(&mut self, indent: usize, remark: &str) {
        let mut line = String::from("#");
        // Text from a file of the machine may contain anything and must not end the comment.
        for word in remark.split(|c: char| c.is_whitespace() || c.is_control()) {
            if word.is_empty() {
                continue;
            }
            let wide = line.chars().count() + 1 + word.chars().count() + indent;
            if wide > COLUMNS && line.len() > 1 {
                self.line(indent, &line);
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(indent, &line);
    }

    /// Adds the reason for a choice as a comment.
    fn why(&mut self, indent: usize, topic: Topic) {
        let choice = self.choices.iter().find(|choice| choice.topic == topic);
        if let Some(choice) = choice {
            let remark = format!("{}: {}.", topic.name(), choice.reason);
            self.remark(indent, &remark);
        }
    }
}
