// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Choices written as configuration, each with its reason as a comment. What only the owner knows
//! (addresses, names, certificates) is left to be added.
//!
//! Each format is a template. Its lines are written with their indentation and with `{name}` replaced by the
//! value of that name, except for those that begin with a mark:
//!
//! ```text
//! % TOPIC         a comment: the reason for the choice of this topic, if there is one
//! ! WORDS         a comment, wrapped
//! ?NAME LINE      LINE if NAME holds, ?!NAME LINE if it does not
//! ```

use super::algorithm::{Cipher, ExchangeGroup};
use super::rules::{AdvicePlan, Decided, IpsecAdvice, OpenvpnAdvice, REKEY_PACKETS, TlsAdvice};
use super::{AdviceChoice, AdviceFormat};

/// strongSwan's `swanctl.conf`.
const SWANCTL: &str = include_str!("../../templates/swanctl.conf");
/// OpenVPN 2.6 and later.
const OPENVPN: &str = include_str!("../../templates/openvpn.conf");
/// nginx, inside `http` or `server`.
const NGINX: &str = include_str!("../../templates/nginx.conf");
/// HAProxy, the section `global`.
const HAPROXY: &str = include_str!("../../templates/haproxy.cfg");
/// The `set` commands of VyOS 1.4 and later.
const VYOS_IPSEC: &str = include_str!("../../templates/vyos-ipsec.conf");
const VYOS_OPENVPN: &str = include_str!("../../templates/vyos-openvpn.conf");

/// Width of comments.
const COLUMNS: usize = 96;

/// TLS sessions that HAProxy keeps: about 4 MB.
const CACHED_SESSIONS: u32 = 20_000;

/// Writes a configuration.
pub(crate) fn write(decided: &Decided, format: AdviceFormat) -> String {
    let (template, values) = match (&decided.plan, format) {
        (AdvicePlan::Ipsec(plan), AdviceFormat::Vyos) => (VYOS_IPSEC, ipsec(plan)),
        (AdvicePlan::Ipsec(plan), _) => (SWANCTL, ipsec(plan)),
        (AdvicePlan::Openvpn(plan), AdviceFormat::Vyos) => (VYOS_OPENVPN, openvpn(plan)),
        (AdvicePlan::Openvpn(plan), _) => (OPENVPN, openvpn(plan)),
        (AdvicePlan::Tls(plan), AdviceFormat::Haproxy) => (HAPROXY, tls(plan)),
        (AdvicePlan::Tls(plan), _) => (NGINX, tls(plan)),
    };
    let mut writer = Writer { choices: &decided.choices, values, text: String::new() };
    writer.remark(0, "Advised by `millrace advise`; try it before you rely on it.");
    for line in template.lines() {
        let rest = line.trim_start();
        writer.template_line(line.len() - rest.len(), rest);
    }
    writer.text
}

/// Values and conditions that a template may name.
#[derive(Default)]
struct Values {
    texts: Vec<(&'static str, String)>,
    holds: Vec<(&'static str, bool)>,
}

impl Values {
    fn text(mut self, name: &'static str, value: impl ToString) -> Self {
        self.texts.push((name, value.to_string()));
        self
    }

    fn holds(mut self, name: &'static str, holds: bool) -> Self {
        self.holds.push((name, holds));
        self
    }
}

fn ipsec(plan: &IpsecAdvice) -> Values {
    let vyos_group = plan.groups.iter().find_map(|group| group.names().vyos).unwrap_or(19);
    let hybrid = plan.groups.iter().any(|group| group.names().vyos.is_none());
    let sets = sets(&plan.groups);
    let prf = plan.prf.word();
    let ike = proposals(&sets, &plan.ike, |cipher, groups| format!("{cipher}-prf{prf}-{groups}"));
    let esp = proposals(&sets, &plan.esp, |cipher, groups| format!("{cipher}-{groups}-esn-noesn"));
    let vyos_ike = numbered("set vpn ipsec ike-group MILLRACE", &plan.ike, |line, cipher| {
        format!(
            "{line} dh-group {vyos_group}\n{line} encryption {cipher}\n{line} hash {prf}\n{line} prf prf{prf}"
        )
    });
    let vyos_esp = numbered("set vpn ipsec esp-group MILLRACE", &plan.esp, |line, cipher| {
        format!("{line} encryption {cipher}\n{line} hash sha256")
    });
    let remark =
        "\n# VyOS silently ignores a proposal without hash, although AES-GCM does not use it.\n";
    Values::default()
        .text("ike", ike)
        .text("esp", esp)
        .text("vyos_ike", vyos_ike)
        .text("vyos_esp", vyos_esp.replacen('\n', remark, 1))
        .text("group", vyos_group)
        .text("ike_rekey_s", plan.ike_rekey_s)
        .text("esp_rekey_s", plan.esp_rekey_s)
        .text("rekey_packets", REKEY_PACKETS)
        .text("dpd_delay_s", plan.dpd_delay_s)
        .text("replay_window", plan.replay_window)
        .text("mtu", plan.mtu)
        .text("mss", plan.mss)
        .holds("per_cpu", plan.per_cpu)
        .holds("card", plan.card)
        .holds("not_in_vyos", hybrid || plan.per_cpu || plan.card)
}

/// strongSwan's proposals: each set of groups with each cipher.
fn proposals(
    sets: &[String],
    ciphers: &[Cipher],
    proposal: impl Fn(&str, &str) -> String,
) -> String {
    let with = |groups| ciphers.iter().map(move |cipher| (cipher.names().strongswan, groups));
    let pairs = sets.iter().flat_map(with);
    let all: Vec<String> = pairs.map(|(cipher, groups)| proposal(cipher, groups)).collect();
    all.join(", ")
}

/// VyOS's lines of each proposal.
fn numbered(group: &str, ciphers: &[Cipher], lines: impl Fn(&str, &str) -> String) -> String {
    let of = |(number, cipher): (usize, &Cipher)| {
        lines(&format!("{group} proposal {}", number + 1), cipher.names().vyos)
    };
    ciphers.iter().enumerate().map(of).collect::<Vec<_>>().join("\n")
}

/// Groups offered in one proposal; the hybrid group gets a separate proposal.
fn sets(groups: &[ExchangeGroup]) -> Vec<String> {
    let hybrid = |group: &&ExchangeGroup| **group == ExchangeGroup::Curve25519MlKem768;
    let (with, without): (Vec<_>, Vec<_>) = groups.iter().partition(hybrid);
    let names = |groups: Vec<&ExchangeGroup>| {
        let names: Vec<&str> = groups.iter().map(|group| group.names().strongswan).collect();
        names.join("-")
    };
    let mut sets = vec![names(with), names(without)];
    sets.retain(|set| !set.is_empty());
    sets
}

fn openvpn(plan: &OpenvpnAdvice) -> Values {
    let aead = plan.ciphers.iter().filter(|cipher| cipher.is_aead());
    let names: Vec<String> = aead.map(|cipher| cipher.names().name.to_ascii_uppercase()).collect();
    let vyos = plan
        .ciphers
        .iter()
        .filter_map(|cipher| match cipher {
            Cipher::Aes128Gcm => Some("aes128gcm"),
            Cipher::Aes256Gcm => Some("aes256gcm"),
            Cipher::ChaCha20Poly1305 | Cipher::Aes256CbcSha256 => None,
        })
        .map(|name| format!("set interfaces openvpn vtun0 encryption data-ciphers {name}"));
    let mssfix = match plan.mssfix {
        0 => "0".to_owned(),
        bytes => format!("{bytes} mtu"),
    };
    Values::default()
        .text("ciphers", names.join(":"))
        .text("vyos_ciphers", vyos.collect::<Vec<_>>().join("\n"))
        .text("groups", openssl_groups(&plan.groups))
        .text("least", if plan.tls13_only { "1.3" } else { "1.2" })
        .text("tun_mtu", plan.tun_mtu)
        .text("mssfix", mssfix)
        .text("rekey_s", plan.rekey_s)
        .text("ping_s", plan.ping_s)
        .text("restart_s", plan.restart_s)
        .text("failures", plan.restart_s / plan.ping_s.max(1))
        .holds("dco", plan.dco)
        .holds("chacha_first", plan.ciphers.first() == Some(&Cipher::ChaCha20Poly1305))
}

fn tls(plan: &TlsAdvice) -> Values {
    let suites = || plan.ciphers.iter().filter_map(|cipher| cipher.names().tls);
    // All of them with forward secrecy.
    let tls12 =
        suites().flat_map(|(end, _)| [format!("ECDHE-ECDSA-{end}"), format!("ECDHE-RSA-{end}")]);
    let tls13: Vec<&str> = suites().map(|(_, suite)| suite).collect();
    Values::default()
        .text("tls12", tls12.collect::<Vec<_>>().join(":"))
        .text("tls13", tls13.join(":"))
        .text("groups", openssl_groups(&plan.groups))
        .text("least", if plan.tls13_only { "1.3" } else { "1.2" })
        .text("lifetime_s", plan.lifetime_s)
        .text("record_bytes", plan.record_bytes)
        .text("cached_sessions", CACHED_SESSIONS)
        .holds("tls13_only", plan.tls13_only)
        .holds("server_order", plan.server_order)
        .holds("tickets", plan.tickets)
        .holds("conf_command", plan.conf_command)
        .holds("kernel_tls", plan.kernel_tls)
}

/// Groups of TLS in OpenSSL's words.
fn openssl_groups(groups: &[ExchangeGroup]) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.names().openssl).collect();
    names.join(":")
}

/// A configuration under construction.
struct Writer<'a> {
    choices: &'a [AdviceChoice],
    values: Values,
    text: String,
}

impl Writer<'_> {
    /// Writes one line of a template.
    fn template_line(&mut self, indent: usize, line: &str) {
        let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (mark, mark.strip_prefix('?')) {
            ("%", _) => self.why(indent, rest),
            ("!", _) => self.remark(indent, &self.filled(rest)),
            (_, None) => self.line(indent, &self.filled(line)),
            (_, Some(condition)) => {
                let name = condition.trim_start_matches('!');
                let mut known = self.values.holds.iter();
                let holds =
                    known.find(|(known, _)| *known == name).is_some_and(|(_, holds)| *holds);
                if holds != condition.starts_with('!') {
                    self.template_line(indent, rest);
                }
            }
        }
    }

    fn filled(&self, line: &str) -> String {
        let texts = self.values.texts.iter();
        texts.fold(line.to_owned(), |line, (name, value)| {
            line.replace(&format!("{{{name}}}"), value)
        })
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

    /// Adds the reason for the choice of a topic as a comment.
    fn why(&mut self, indent: usize, topic: &str) {
        let choice = self.choices.iter().find(|choice| choice.topic.name() == topic);
        if let Some(choice) = choice {
            self.remark(indent, &format!("{topic}: {}.", choice.reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::*;
    use crate::advise::Topic;

    #[test]
    fn every_reason_in_a_template_has_a_topic() {
        for template in [SWANCTL, OPENVPN, NGINX, HAPROXY, VYOS_IPSEC, VYOS_OPENVPN] {
            let topics = template.lines().filter_map(|line| line.trim_start().strip_prefix("% "));
            let unknown: Vec<&str> =
                topics.filter(|topic| !Topic::VARIANTS.contains(topic)).collect();
            assert!(unknown.is_empty(), "{unknown:?}");
        }
    }
}
