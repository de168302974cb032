// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Licences that a dependency may have, and whether an SPDX expression can be met with them.

/// Licences compatible with shipping Millrace under Apache-2.0 OR MIT. No copyleft: everything is
/// linked into one binary and into other people's processes.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether the expression can be met with allowed licences only. The old `A/B` means `A OR B`.
pub(crate) fn acceptable(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, at: 0, broken: false };
    let met = parser.either();
    met && !parser.broken && parser.at == words.len()
}

/// Recursive descent over `either := both (OR both)*`, `both := one (AND one)*`,
/// `one := '(' either ')' | licence [WITH exception]`.
struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
    /// A licence was expected where there is none.
    broken: bool,
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn either(&mut self) -> bool {
        let mut met = self.both();
        while self.take("OR") {
            // Both sides are parsed in any case: the position must move.
            let other = self.both();
            met = met || other;
        }
        met
    }

    fn both(&mut self) -> bool {
        let mut met = self.one();
        while self.take("AND") {
            let other = self.one();
            met = met && other;
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.take("(") {
            let met = self.either();
            return self.take(")") && met;
        }
        let Some(licence) = self.words.get(self.at).copied() else {
            self.broken = true;
            return false;
        };
        self.at += 1;
        if self.take("WITH") {
            let exception = self.words.get(self.at).copied().unwrap_or_default();
            self.at += 1;
            return ALLOWED.contains(&format!("{licence} WITH {exception}").as_str())
                || ALLOWED.contains(&licence);
        }
        ALLOWED.contains(&licence)
    }
}

#[cfg(test)]
mod tests {
    use super::acceptable;

    #[test]
    fn expressions_are_understood() {
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "ISC AND (Apache-2.0 OR ISC) AND OpenSSL",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(acceptable(good), "{good}");
        }
        for bad in
            ["GPL-3.0", "MIT AND GPL-2.0", "", "(MIT", "MIT)", "MIT OR", "GPL-2.0 OR LGPL-3.0"]
        {
            assert!(!acceptable(bad), "{bad}");
        }
    }
}
