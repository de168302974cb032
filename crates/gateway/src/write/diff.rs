// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which lines of a file go and which come. Generated files are short, so the plain quadratic way does.

/// Lines that are compared; more are shown as replaced as a whole. The table below has the square of it.
const MAX_LINES: usize = 1000;

/// The differing lines, `- ` for those that go and `+ ` for those that come, in the order of the file.
pub(super) fn lines(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    if old.len() > MAX_LINES || new.len() > MAX_LINES {
        return vec![
            format!("- {} lines", old.len()),
            format!("+ {} lines", new.len()),
        ];
    }
    let common = common_suffixes(&old, &new);
    let mut changes = Vec::new();
    let (mut at_old, mut at_new) = (0, 0);
    while at_old < old.len() || at_new < new.len() {
        match (old.get(at_old), new.get(at_new)) {
            (Some(one), Some(other)) if one == other => {
                at_old += 1;
                at_new += 1;
            }
            (Some(gone), other)
                if other.is_none() || common[at_old + 1][at_new] >= common[at_old][at_new + 1] =>
            {
                changes.push(format!("- {gone}"));
                at_old += 1;
            }
            (_, Some(come)) => {
                changes.push(format!("+ {come}"));
                at_new += 1;
            }
            (_, None) => break,
        }
    }
    changes
}

/// How many lines the rests of both have in common, from each pair of places on.
fn common_suffixes(old: &[&str], new: &[&str]) -> Vec<Vec<usize>> {
    let mut table = vec![vec![0; new.len() + 1]; old.len() + 1];
    for at_old in (0..old.len()).rev() {
        for at_new in (0..new.len()).rev() {
            table[at_old][at_new] = if old[at_old] == new[at_new] {
                table[at_old + 1][at_new + 1] + 1
            } else {
                table[at_old + 1][at_new].max(table[at_old][at_new + 1])
            };
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn only_what_differs_is_shown() {
        assert_eq!(lines("a\nb\nc\n", "a\nb\nc\n"), Vec::<String>::new());
        assert_eq!(lines("a\nb\nc\n", "a\nx\nc\n"), ["- b", "+ x"]);
        assert_eq!(lines("", "a\n"), ["+ a"]);
        assert_eq!(lines("a\nb\n", ""), ["- a", "- b"]);
        assert_eq!(lines("a\nc\n", "a\nb\nc\nd\n"), ["+ b", "+ d"]);
    }
}
