# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads what the assembler says of the kernels, and their machine code, and complains about

- a stack or spilled registers: numbers that are secret would stay behind in local memory;
- loads and stores of local memory, which have the same reason;
- branches that threads of a warp may take differently (they come with a convergence barrier): every branch of
  ours depends on the position in the program or on the parameters of the launch alone;
- calls (but for the assembler's own form of a jump; the indirect branches are the switch over the steps);
- products that were not fused: one wide multiply-add per pair of a low and a high one.
"""

import argparse
import collections
import re
import sys

# What may not occur in a kernel of ours at all.
FORBIDDEN = {
    "LDL": "reads local memory",
    "STL": "writes local memory",
    "BSSY": "has a branch that may diverge",
    "BSYNC": "has a branch that may diverge",
    "CALL.ABS": "has a call",
    "RET": "has a call",
}

# name: digits per thread, from the table of variants
VARIANT = re.compile(r"^KERNEL\((\w+), (\w+), (\d+), (\d+), (\d+), (\d+), (\w+)\)", re.M)
VARIANTS = "crates/backends/src/cuda/kernels/variants.h"

# Products in the code of one kernel: multiplication stands in it four times for the half and the whole,
# and two rows of integers are written out.
INTEGER_SITES = 4
INTEGER_ROWS = 2


def registers(log):
    """Per kernel: registers, stack, spills, as the assembler reports them."""
    found = {}
    name = None
    for line in log:
        if match := re.search(r"entry function '(\w+)'", line):
            name = match[1]
            found[name] = {}
        if match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            found[name]["stack"] = sum(map(int, match.groups()))
        if match := re.search(r"Used (\d+) registers", line):
            found[name]["registers"] = int(match[1])
    return found


def instructions(sass):
    """Per kernel: how often each instruction occurs, with all and with fewer of its modifiers."""
    found = {}
    counts = None
    for line in sass:
        if match := re.search(r"Function : (\w+)", line):
            counts = found[match[1]] = collections.Counter()
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_.]+)", line):
            counts[match[1]] += 1
            parts = match[1].split(".")
            for length in range(1, len(parts)):
                counts[".".join(parts[:length])] += 1
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--stack", type=int, required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--sass", required=True)
    arguments = parser.parse_args()
    with open(arguments.log) as log, open(arguments.sass) as sass, open(VARIANTS) as variants:
        used, code = registers(log), instructions(sass)
        variants = {match[0]: match[1:] for match in VARIANT.findall(variants.read())}
    complaints = []
    for name, (arithmetic, digits, *_) in variants.items():
        if name not in used or name not in code:
            complaints.append(f"{name}: missing")
            continue
        counts = code[name]
        if used[name].get("stack", 1) > arguments.stack:
            complaints.append(f"{name}: {used[name].get('stack')} bytes of stack and spills")
        for forbidden, why in FORBIDDEN.items():
            if counts[forbidden]:
                complaints.append(f"{name}: {why} ({forbidden}, {counts[forbidden]} times)")
        wide = counts["IMAD.WIDE.U32"]
        fused = counts["DFMA"]
        low = counts["IMAD.HI"]
        least = INTEGER_SITES * INTEGER_ROWS * 2 * int(digits) if arithmetic == "Integer" else 0
        if wide < least:
            complaints.append(f"{name}: {wide} wide multiply-adds, and {least} products are in it")
        if arithmetic == "Integer" and low > int(digits):
            complaints.append(f"{name}: {low} high halves are computed apart")
        # Two per product of digits, two products per digit of a row.
        least = INTEGER_SITES * 4 * int(digits) if arithmetic == "Fp52" else 0
        if fused < least:
            complaints.append(f"{name}: {fused} fused multiply-adds instead of {least}")
        print(
            f"sm_{arguments.arch} {name:20} {used[name]['registers']:3} registers,"
            f" {sum(c for op, c in counts.items() if '.' not in op):6} instructions,"
            f" {wide:5} IMAD.WIDE, {fused:4} DFMA, {counts['SHFL']:3} SHFL"
        )
    for complaint in complaints:
        print(f"sm_{arguments.arch} {complaint}", file=sys.stderr)
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
