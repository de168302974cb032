# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Command lines and configuration out of README and the guides. A comment above a fence names it:
#
#   <!-- test: NAME [as USER] [with CONDITION] -->
#
# USER is root if none is named. A fence with a CONDITION counts in walks of that kind only: systemd,
# no-systemd, debian12 or debian13. `<!-- no-test: REASON -->` excuses a fence from the walk; `cargo xtask
# tidy` refuses an sh fence with neither.

GUIDES=(README.md docs/guide/*.md)

# Prints each mark: "NAME USER CONDITION PAGE:LINE", with "-" for no condition.
guide_marks() {
    awk '
        $1 == "<!--" && $2 == "test:" {
            user = "root"; condition = "-"
            for (i = 4; i < NF; i++) {
                if ($i == "as") user = $(i + 1)
                if ($i == "with") condition = $(i + 1)
            }
            print $3, user, condition, FILENAME ":" FNR
        }
    ' "${GUIDES[@]}"
}

# Prints the text of the fence with this name.
guide_text() {
    awk -v name="$1" '
        inside && /^```/ { exit }
        inside { print; next }
        named && /^```/ { inside = 1; next }
        { named = ($1 == "<!--" && $2 == "test:" && $3 == name) }
    ' "${GUIDES[@]}"
}

# Prints the user of the fence with this name.
guide_user() { guide_marks | awk -v name="$1" '$1 == name { print $2 }'; }

# Prints the marks that a walk of these conditions has to use: guide_due systemd debian12
guide_due() {
    guide_marks | awk -v conditions=" $* " '$3 == "-" || index(conditions, " " $3 " ") { print $1 }' | sort
}
