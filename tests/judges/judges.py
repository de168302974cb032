# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT

"""Runs other people's test suites without and with Millrace, and compares what each of their tests said.

Called by scripts/judges.sh, which says how. A suite runs inside an unpacked Debian release, in a network of its own,
once for each mode:

none    stock: no OPENSSL_CONF
local   every primitive that the provider has is computed in the process (`local = all`)
pool    the private operations of each key that the suite loads go to a node (`--plain-keys`)
stubs   key files of the suite are replaced by stubs, whose keys only the node has; where a suite reads key files
both    all of this at once
async   the same, and the server suspends handshakes that wait: ssl-mode-async, and the preload library

The configuration is the one that `millrace gateway openssl` prints. A mode's counters have to show that Millrace took
part, else the run fails: a suite that passes without it says nothing. A test that ends in another way than in mode none
is a difference; differences.tsv lists those that are right, with the reason. Any other fails the run, and so does a row
of the table that nothing matched.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import fnmatch
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import suites

WORKSPACE = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path(__file__).with_name("differences.tsv")
PAGE = WORKSPACE / "docs/judges.md"
# What follows this line on the page is written by a run.
MARK = "<!-- written by `make judges` -->\n"
MODES = ["none", "local", "pool", "stubs", "both", "async"]
LOCAL = {"local", "both", "async"}
PLAIN_KEYS = {"pool", "both", "async"}
STUBS = {"stubs", "both", "async"}
RELEASES = ["bookworm", "trixie", "3.0.2", "4.0.3"]
# Reasons that begin so are of tests that end now in one way, now in another: they may be equal, too.
SOMETIMES = "sometimes: "
PRIVATE_KEY = re.compile(
    r"-----BEGIN ((?:RSA |EC |DSA )?PRIVATE KEY)-----\n(?!Proc-Type).*?-----END \1-----\n?", re.DOTALL
)


def say(text):
    print(f"judges: {text}", file=sys.stderr, flush=True)


@dataclass
class Outcome:
    """What one run of a suite showed."""

    suite: str
    release: str
    mode: str
    tests: dict
    pooled: int = 0
    local: int = 0
    stubs: int = 0
    seconds: int = 0
    differences: list = field(default_factory=list)
    faults: list = field(default_factory=list)

    def count(self, status):
        return sum(1 for found in self.tests.values() if found == status)


class Node:
    """A node that holds what it is given, and whatever keys clients bring."""

    def __init__(self, millrace, folder):
        self.millrace, self.folder = millrace, folder
        self.socket = folder / "run/node.sock"
        self.keys = {}
        self.log = open(folder / "node.log", "wb")
        self.process = None

    def command(self, *words, **options):
        return subprocess.run([self.millrace, *words], capture_output=True, text=True, timeout=120, **options)

    def status(self):
        return self.command("status", "--json", "--socket", self.socket)

    def start(self):
        words = [self.millrace, "up", "--state", self.folder / "state", "--socket", self.socket]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        until = time.monotonic() + 60
        while self.status().returncode != 0:
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError(f"no node: {(self.folder / 'node.log').read_text()}")
            time.sleep(0.1)

    def stub(self, pem):
        """The stub of a key; none if the pool does not take it."""
        if pem not in self.keys:
            name = f"judge-{len(self.keys)}"
            state = ["--state", self.folder / "state"]
            words = ["key", "import", name, "-", "--allow-all", *state]
            taken = self.command(*words, "--allow-tls-premaster", input=pem)
            # Only a key that can decrypt takes the last option.
            if taken.returncode != 0:
                taken = self.command(*words, input=pem)
            made = self.command("key", "stub", name, *state)
            self.keys[pem] = made.stdout if taken.returncode == 0 and made.returncode == 0 else None
        return self.keys[pem]

    def served(self):
        status = json.loads(self.status().stdout)
        return sum(row["completed"] for row in status["operations"])

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=60)
        self.log.close()


def replace_keys(folder, node):
    """Puts stubs in the place of the private keys in the PEM files below a folder. Returns how many files changed."""
    changed = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        new = PRIVATE_KEY.sub(lambda found: node.stub(found[0]) or found[0], text)
        if new != text:
            # The copy of the suite shares its files with the source.
            path.unlink()
            path.write_text(new)
            changed += 1
    return changed


def local_operations(folder):
    """Operations that the processes of a run computed by local primitives."""
    total = 0
    for path in folder.iterdir():
        memory = path.read_bytes()
        cells = int.from_bytes(memory[8:16], sys.byteorder)
        for cell in range(cells):
            start = 16 + 32 * cell
            name = memory[start : start + 24].rstrip(b"\0").decode()
            if re.match(r"[A-Z]", name):
                total += int.from_bytes(memory[start + 24 : start + 32], sys.byteorder)
    return total


class Judge:
    def __init__(self, arguments):
        self.arguments = arguments
        artifacts = pathlib.Path(os.environ.get("MILLRACE_ARTIFACTS", WORKSPACE / "target/debug")).resolve()
        self.millrace = artifacts / "millrace"
        self.work = WORKSPACE / "target/judges"
        self.work.mkdir(parents=True, exist_ok=True)
        # Copies: a build or a run beside this one may replace the originals, which programs have mapped.
        self.copies = tempfile.TemporaryDirectory(prefix="judges-")
        copies = pathlib.Path(self.copies.name)
        self.provider = copies / "libmillrace_provider.so"
        shutil.copy2(artifacts / "libmillrace_provider.so", self.provider)
        self.preload = copies / "libmillrace_preload.so"
        shutil.copy2(artifacts / "libmillrace_preload.so", self.preload)
        self.counters = copies / "counters.so"
        source = WORKSPACE / "tests/clients/evp_counters.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.counters, source], check=True)

    def configuration(self, mode, node, below):
        words = [self.millrace, "gateway", "openssl", "--provider", self.provider]
        if mode != "local":
            words += ["--pool", f"unix:{node.socket}"]
        if mode in PLAIN_KEYS:
            words.append("--plain-keys")
        if mode in LOCAL:
            words.append("--local")
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        text = text.replace("\n.include = /etc/ssl/openssl.cnf\n", f"\n.include = {below}\n")
        return text.replace("\nlocal = on\n", "\nlocal = all\n")

    def root(self, release):
        """The folder of a Debian release, or of one of OpenSSL."""
        return WORKSPACE / "target" / (f"openssl-{release}" if release[0].isdigit() else f"judges-{release}")

    def inside(self, root, words):
        # The quick part runs programs of this machine.
        command = [WORKSPACE / "scripts/in-root.sh", root, *words] if root.name != "judges-machine" else words
        if os.geteuid() == 0:
            # Suites have fixed ports, and ask for names and addresses of others.
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
        return command

    def version(self, name, release):
        said = subprocess.run(
            self.inside(self.root(release), suites.ALL[name].version), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={"PATH": "/usr/sbin:/usr/bin"},
        )
        found = re.search(r"\d+(\.\d+)+", said.stdout)
        return found[0] if found else "?"

    def attempt(self, suite, release, mode):
        """One run of a suite; a fault of its own, if it cannot be made."""
        try:
            return self.run(suite, release, mode)
        except Exception as error:  # The other runs go on.
            return Outcome(suite.__name__.lower(), release, mode, {}, faults=[f"it could not be run: {error}"])

    def run(self, suite, release, mode):
        root = self.root(release)
        name = suite.__name__.lower()
        work = self.work / release / name / mode
        shutil.rmtree(work, ignore_errors=True)
        (work / "home").mkdir(parents=True)
        (work / "counters").mkdir()
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            short = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="judges-")))
            (short / "tmp").mkdir()
            environment = {
                "PATH": "/usr/sbin:/usr/bin", "HOME": str(work / "home"), "TMPDIR": str(short / "tmp"),
                "LC_ALL": "C.UTF-8", "LD_PRELOAD": str(self.counters), "MILLRACE_COUNTERS": f"{work}/counters/",
            }
            if mode == "async":
                environment["LD_PRELOAD"] += f":{self.preload}"
            run = suite(WORKSPACE, root, work, mode, self.arguments.only)
            outcome = Outcome(name, release, mode, {})
            node = None
            if mode not in ("none", "local"):
                node = Node(self.millrace, short)
                stack.callback(node.stop)
                if mode in STUBS and run.keys:
                    outcome.stubs = sum(replace_keys(folder, node) for folder in run.keys)
                node.start()
            if mode != "none":
                (work / "openssl.cnf").write_text(self.configuration(mode, node, run.below))
                environment["OPENSSL_CONF"] = str(work / "openssl.cnf")
            environment.update(run.environment)
            log = work / "log"
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    self.inside(root, run.command), cwd=run.folder, env=environment, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )
                try:
                    process.wait(timeout=run.patience)
                except subprocess.TimeoutExpired:
                    outcome.faults.append(f"it did not end within {run.patience} s")
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            outcome.tests = run.parse(log.read_text("utf-8", errors="replace"))
            outcome.local = local_operations(work / "counters")
            if node:
                outcome.pooled = node.served()
        if not outcome.tests:
            outcome.faults.append(f"no test ran: {log}")
        if mode in STUBS and run.keys and outcome.stubs == 0:
            outcome.faults.append("no key file was replaced by a stub")
        if mode in LOCAL and outcome.local == 0 and "local" in run.proves:
            outcome.faults.append("nothing was computed by local primitives")
        if node and outcome.pooled == 0 and "pool" in run.proves:
            outcome.faults.append("the node served nothing")
        outcome.seconds = round(time.monotonic() - started)
        say(
            f"{name} on {release}, {mode}: {outcome.count('passed')} passed, {outcome.count('failed')} failed,"
            f" {outcome.count('skipped')} skipped; {outcome.pooled} pooled, {outcome.local} local operations;"
            f" {outcome.seconds} s"
        )
        return outcome

    def modes(self, suite):
        modes = [mode for mode in MODES if mode in suite.modes]
        if self.arguments.modes:
            modes = [mode for mode in modes if mode == "none" or mode in self.arguments.modes]
        return modes


class Differences:
    """The table of differences that are right."""

    def __init__(self, text):
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.rows = [line.split("\t") for line in lines]
        for row in self.rows:
            if len(row) != 5 or not row[4].strip():
                raise SystemExit(f"{TABLE}: not five fields with a reason: {row}")
        self.seen = set()

    def reason(self, suite, release, mode, test):
        for at, row in enumerate(self.rows):
            if all(fnmatch.fnmatchcase(value, pattern) for value, pattern in zip((suite, release, mode, test), row)):
                self.seen.add(at)
                return row[4]
        return None

    def unseen(self, done):
        """Rows about runs that were made, which nothing matched."""
        for at, row in enumerate(self.rows):
            made = any(all(fnmatch.fnmatchcase(*pair) for pair in zip(run, row)) for run in done)
            if made and at not in self.seen and not row[4].startswith(SOMETIMES):
                yield "\t".join(row)


def compare(outcome, stock, table):
    for test in sorted(stock.tests.keys() | outcome.tests.keys()):
        without, present = stock.tests.get(test, "absent"), outcome.tests.get(test, "absent")
        if without != present:
            reason = table.reason(outcome.suite, outcome.release, outcome.mode, test)
            outcome.differences.append({"test": test, "without": without, "with": present, "reason": reason})


HEAD = """\
| suite | version | release | mode | passed | failed | skipped | pooled | local | listed | faults | run |
|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|
"""


def result_rows(outcomes, versions, run):
    for row in outcomes:
        listed = sum(1 for found in row.differences if found["reason"])
        yield (
            f"| {row.suite} | {versions[row.suite, row.release]} | {row.release} | {row.mode} | {row.count('passed')} |"
            f" {row.count('failed')} | {row.count('skipped')} | {row.pooled} | {row.local} | {listed} |"
            f" {len(row.faults) + len(row.differences) - listed} | {run} |\n"
        )


def merged(page, rows):
    """The page with these rows in the place of the former ones of the same runs."""
    key = lambda line: tuple(line.split(" | ")[place].strip("| ") for place in (0, 2, 3))
    place = lambda line: ([*suites.ALL, key(line)[0]].index(key(line)[0]), key(line)[1], MODES.index(key(line)[2]))
    head, mark, former = page.partition(MARK)
    table = {key(line): line for line in former.splitlines(True) if re.match(r"\| (?!suite )", line)}
    table |= {key(line): line for line in rows}
    return f"{head}{mark}\n{HEAD}{''.join(sorted(table.values(), key=place))}"


def main():
    parser = argparse.ArgumentParser(prog="judges.sh", description=__doc__.split("\n", 1)[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(suites.ALL)} [default: all]")
    parser.add_argument("--release", choices=[*RELEASES, "machine"], action="append", help="default: both")
    parser.add_argument("--modes", type=lambda text: text.split(","), help="besides none, separated by commas")
    parser.add_argument("--only", default="", help="tests of the suite, as it names them (python: patterns)")
    parser.add_argument("--json", type=pathlib.Path, default=WORKSPACE / "target/judges/result.json")
    parser.add_argument("--write", action="store_true", help="write the table to docs/judges.md")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [default: 2]")
    arguments = parser.parse_args()
    for name in arguments.suites:
        if name not in suites.ALL:
            parser.error(f"no suite {name}; there are: {' '.join(suites.ALL)}")
    judge = Judge(arguments)
    describe = ["git", "describe", "--always", "--exclude=*", "--dirty"]
    commit = subprocess.run(describe, cwd=WORKSPACE, check=True, capture_output=True, text=True).stdout.strip()
    plan = [
        (suites.ALL[name], release, mode)
        for name in arguments.suites or suites.ALL
        for release in arguments.release or suites.ALL[name].releases
        if release in (*suites.ALL[name].releases, "machine")
        for mode in judge.modes(suites.ALL[name])
    ]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    table = Differences(TABLE.read_text())
    outcomes, versions, rows = [], {}, []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        done = pool.map(lambda one: judge.attempt(*one), plan)
        # Each suite's rows are on the page as soon as it has ended: a later one may fail, or the run be ended.
        for key, group in itertools.groupby(done, lambda row: (row.suite, row.release)):
            group = list(group)
            versions[key] = judge.version(*key)
            for row in group:
                compare(row, group[0], table)
            outcomes += group
            new = list(result_rows(group, versions, f"{today} {commit}"))
            rows += new
            if arguments.write:
                PAGE.write_text(merged(PAGE.read_text(), new))
    faults = []
    for row in outcomes:
        where = f"{row.suite} on {row.release}, {row.mode}"
        faults += [f"{where}: {fault}" for fault in row.faults]
        for found in row.differences:
            line = f"{where}: {found['test']}: {found['without']} without, {found['with']} with Millrace"
            if found["reason"]:
                print(f"listed: {line}: {found['reason']}")
            else:
                faults.append(line)
    if not arguments.only:
        done = [(row.suite, row.release, row.mode) for row in outcomes]
        faults += [f"{TABLE.name} lists what is no longer so: {row}" for row in table.unseen(done)]
    report = {
        "date": today,
        "commit": commit,
        "faults": faults,
        "runs": [
            {
                "suite": row.suite, "version": versions[row.suite, row.release], "release": row.release,
                "mode": row.mode, "passed": row.count("passed"), "failed": row.count("failed"),
                "skipped": row.count("skipped"), "pooled": row.pooled, "local": row.local, "stubs": row.stubs,
                "seconds": row.seconds, "differences": row.differences,
            }
            for row in outcomes
        ],
    }
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(HEAD + "".join(rows))
    for fault in faults:
        print(f"FAULT: {fault}")
    passed = sum(row.count("passed") for row in outcomes if row.mode != "none")
    runs = sum(1 for row in outcomes if row.mode != "none")
    print(f"judges: {passed} tests passed with Millrace in {runs} runs, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
