# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Judges what the guest of run.sh printed: judge.py SUITE FILE CASE..."""

import sys

# Primitives of records, and an algorithm that each decides on.
BULK = {
    "AES-GCM": "aes-256-gcm",
    "ChaCha20-Poly1305": "chacha20-poly1305",
    "SHA2-256": "sha2-256",
    "SHA2-512": "sha2-512",
}
# How many times as much the installed libcrypto has to cost before one of them is taken.
LEAST_GAIN = {"slow": 1.5, "fast": 3}
# What no slow build keeps.
SURE = ("AES-GCM", "ChaCha20-Poly1305")


def runs(lines):
    """For each case and build: what is listed as ours, and the costs here and there by primitive."""
    current = None
    for line in lines:
        words = line.rstrip("\n").split("\t")
        if line.startswith("CASE "):
            _, number, build = line.split()
            current = int(number), build, [], {}
        elif line.startswith("END") and current:
            yield current
            current = None
        elif current and "@ millrace" in line:
            current[2].append(line.lower())
        elif current and len(words) == 4:
            there = None if words[3] == "-" else int(words[3])
            current[3][words[1]] = int(words[2]), there


def main(suite, file, cases):
    failures = []
    found = list(runs(open(file, encoding="utf-8", errors="replace")))
    if len(found) != 2 * len(cases):
        failures.append(f"{len(found)} of {2 * len(cases)} runs ended")
    for number, build, listed, costs in found:
        for primitive, (here, there) in costs.items():
            ratio = "-" if there is None else f"{there / here:.2f}"
            taken = ""
            if primitive in BULK:
                is_taken = any(BULK[primitive] in line for line in listed)
                taken = "taken" if is_taken else "left"
                where = f"{suite}, {cases[number]}, {build}: {primitive} is {taken}: {here} here, {there} there"
                if is_taken != (there > LEAST_GAIN[build] * here):
                    failures.append(where)
                if build == "fast" and is_taken:
                    failures.append(f"{where}: the release's libcrypto keeps its records")
                if build == "slow" and primitive in SURE and not is_taken:
                    failures.append(f"{where}: a slow libcrypto is relieved of it")
            print(f"{suite}\t{cases[number]}\t{build}\t{primitive}\t{here}\t{there or '-'}\t{ratio}\t{taken}")
        for primitive in BULK.keys() - costs.keys():
            failures.append(f"{suite}, {cases[number]}, {build}: {primitive} was not measured")
    for failure in failures:
        print(f"arm: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
