# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT

"""The suites: where each is in an unpacked release, how it is started, and how to read what it says.

`modes` are those that say something about a suite, `proves` what has to have a share in it, by the counters. `keys` are
the folders of the copy whose keys may be replaced by stubs. `parse` turns the output into the verdict for each test:
passed, failed or skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml

# Runs each line of a file as the arguments of a command, with the name of a test last.
EACH = r"""
list=$1 limit=$2
shift 2
while read -r -a words; do
    printf '\n### file %s\n' "${words[-1]}"
    timeout -k 5 "$limit" "$@" "${words[@]}" </dev/null 2>&1
    printf '\n### ends %s\n' "$?"
done <"$list"
"""
FILE = re.compile(r"^### file (.*?)$(.*?)^### ends (\d+)$", re.MULTILINE | re.DOTALL)
ALL_MODES = ("none", "local", "pool", "stubs", "both")
WITHOUT_FILES = ("none", "local", "pool", "both")


class Suite:
    releases = ("bookworm", "trixie")
    modes = ALL_MODES
    proves = ("local", "pool")
    # Seconds for one file of tests.
    limit = 120
    # Seconds in which the suite ends on a busy machine, several times over.
    patience = 2400

    def __init__(self, workspace, root, work, mode, only):
        self.workspace, self.root, self.work, self.mode, self.only = workspace, root, work, mode, only
        self.source = root / "usr/src"
        self.folder = work
        self.keys = []
        self.environment = {}
        # The configuration that Millrace's one includes.
        self.below = "/etc/ssl/openssl.cnf"
        self.prepare()

    def copy(self, source, name):
        """A copy whose files are those of the source until they are replaced."""
        to = self.work / name
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-al", source, to], check=True)
        return to

    def each(self, lines, *command):
        """The command that runs these lines one after another."""
        listed = [line for line in map(str, lines) if self.only in line]
        (self.work / "list").write_text("".join(f"{line}\n" for line in listed))
        return ["bash", "-c", EACH, "each", self.work / "list", str(self.limit), *command]

    def parse(self, output):
        """For a suite of programs whose status says whether they passed."""
        verdict = lambda text, status: "failed" if status != "0" else "passed"
        return {name: verdict(text, status) for name, text, status in FILE.findall(output)}


class Python(Suite):
    """CPython's test_ssl, test_hashlib and test_hmac."""

    version = ["python3", "-V"]

    def prepare(self):
        package = next((self.root / "usr/lib").glob("python3.*/test"))
        tests = self.copy(package, "test")
        data = tests / "certdata"
        if not data.is_dir():
            # Among the tests themselves, whose expected values are no key files.
            data = self.work / "pem"
            data.mkdir()
            for file in tests.glob("*.pem"):
                file.rename(data / file.name)
                file.symlink_to(data / file.name)
        self.keys = [data]
        self.environment = {"PYTHONPATH": str(self.work)}
        self.report = self.work / "report.xml"
        self.command = ["python3", "-m", "test", "--junit-xml", self.report]
        for pattern in self.only.split(",") if self.only else []:
            self.command += ["-m", pattern]
        self.command += ["test_ssl", "test_hashlib", "test_hmac"]

    def parse(self, output):
        if not self.report.is_file():
            return {}
        tests = {}
        for case in xml.parse(self.report).iter("testcase"):
            words = {child.tag for child in case}
            failed = words & {"failure", "error"}
            tests[case.get("name")] = "failed" if failed else "skipped" if "skipped" in words else "passed"
        return tests


class Tap(Suite):
    """Perl's way to say what each of a file's tests gave."""

    indent = ""

    def parse(self, output):
        tests = {}
        for name, text, status in FILE.findall(output):
            if re.search(r"^1\.\.0", text, re.MULTILINE):
                tests[name] = "skipped"
                continue
            tests[name] = "passed" if status == "0" else "failed"
            # Processes of a test write in no certain order, and count for themselves: what is the same is how many
            # tests had which end.
            numbers = {"passed": 0, "failed": 0, "skipped": 0}
            for verdict, rest in re.findall(rf"^{self.indent}(ok|not ok)\b(.*)$", text, re.MULTILINE):
                skipped = re.search(r"#\s*(skip|todo)\b", rest, re.IGNORECASE)
                end = "skipped" if skipped else "passed" if verdict == "ok" else "failed"
                numbers[end] += 1
                tests[f"{name}: {end} {numbers[end]}"] = end
        return tests


class NetSSLeay(Tap):
    """Perl's Net::SSLeay."""

    version = ["perl", "-MNet::SSLeay", "-e", "print $Net::SSLeay::VERSION"]

    def prepare(self):
        self.folder = self.copy(self.source / "libnet-ssleay-perl", "source")
        self.keys = [self.folder / "t/data"]
        found = sorted(path.relative_to(self.folder) for path in (self.folder / "t").rglob("*.t"))
        # Of the distribution itself: its manual, its packaging. And what asks servers of the internet.
        found = [path for path in found if "external" not in path.parts and "pod" not in path.name]
        self.command = self.each(found, "perl", "-It/lib", "-Iinc")


class IoSocketSsl(Tap):
    """Perl's IO::Socket::SSL."""

    version = ["perl", "-MIO::Socket::SSL", "-e", "print $IO::Socket::SSL::VERSION"]

    def prepare(self):
        self.folder = self.copy(self.source / "libio-socket-ssl-perl", "source")
        self.keys = [self.folder / "t/certs"]
        found = sorted(path.relative_to(self.folder) for path in (self.folder / "t").glob("*.t"))
        self.command = self.each([path for path in found if "external" not in path.parts], "perl")


class Ruby(Suite):
    """Ruby's openssl. It reads its keys as text, to compare what comes out of them: no stubs."""

    modes = WITHOUT_FILES
    version = ["ruby", "-v"]

    def prepare(self):
        source = next(self.source.glob("ruby3.*"))
        self.copy(source / "test/openssl", "openssl")
        self.copy(source / "tool/lib", "lib")
        start = (
            'require "test/unit"; require "core_assertions"; Test::Unit::TestCase.include(Test::Unit::CoreAssertions); '
            'Dir["./openssl/test_*.rb"].sort.each { |file| require file }'
        )
        self.command = ["ruby", "-Ilib", "-Iopenssl", "-I.", "-e", start, "--", "-v"]
        self.command += ["--show-skip", "--seed=1"]
        if self.only:
            self.command += ["-n", f"/{self.only}/"]

    def parse(self, output):
        tests = dict.fromkeys(re.findall(r"^\[ *\d+/\d+\] (\S+#test_\S+)", output, re.MULTILINE), "passed")
        for end, name in re.findall(r"^ +\d+\) (\w+):\n(\S+?#test_\w+)", output, re.MULTILINE):
            tests[name] = "skipped" if end == "Skipped" else "failed"
        if not re.search(r"^\d+ tests, ", output, re.MULTILINE):
            tests["the end of the run"] = "failed"
        return tests


class Node(Suite):
    """The tests of Node.js whose names begin with test-tls-."""

    version = ["node", "-v"]
    names = ("test-tls-*.*js",)
    # What a file has to contain.
    needs = ""

    def prepare(self):
        self.folder = self.copy(self.source / "nodejs/test", "source/test").parent
        self.copy(self.source / "nodejs/lib", "source/lib")
        self.keys = [self.folder / "test/fixtures"]
        lines = []
        for path in sorted(path for name in self.names for path in (self.folder / "test/parallel").glob(name)):
            text = path.read_text()
            if not re.search(self.needs, text):
                continue
            flags = re.search(r"^// Flags: (.*)$", text, re.MULTILINE)
            lines.append(f"{flags[1] if flags else ''} {path.relative_to(self.folder)}")
        self.command = self.each(lines, "node")

    def parse(self, output):
        tests = super().parse(output)
        for name, text, status in FILE.findall(output):
            if status == "0" and re.search(r"^1\.\.0 # Skipped", text, re.MULTILINE):
                tests[name] = "skipped"
        return tests


class NodeHttps(Node):
    """Node's tests of HTTPS, and those of HTTP/2 that do it over TLS."""

    names = ("test-https-*.*js", "test-http2-*.*js")
    needs = r"createSecureServer|readKey|\btls\b|require\('https'\)"


class NodeCrypto(Node):
    """Node's tests of its module crypto. They compare keys with what comes out of them: no stubs."""

    modes = WITHOUT_FILES
    names = ("test-crypto-*.*js", "test-webcrypto-*.*js")

    def prepare(self):
        super().prepare()
        self.keys = []


class HaProxy(Suite):
    """HAProxy's reg-tests of TLS, by Varnish's test program."""

    modes = (*ALL_MODES, "async")
    version = ["haproxy", "-v"]

    def prepare(self):
        self.folder = self.copy(self.source / "haproxy", "source")
        self.keys = [self.folder / "reg-tests/ssl"]
        self.environment = {"HAPROXY_PROGRAM": "/usr/sbin/haproxy"}
        found = sorted((self.folder / "reg-tests/ssl").glob("*.vtc"))
        for path in found if self.mode == "async" else []:
            text = re.sub(r"^( *)global$", r"\g<0>\n\1    ssl-mode-async", path.read_text(), flags=re.MULTILINE)
            path.unlink()
            path.write_text(text)
        # As scripts/run-regtests.sh there starts it.
        command = ["varnishtest", "-b", str(2 << 20), "-k", "-t", "30"]
        self.command = self.each([path.relative_to(self.folder) for path in found], *command)

    def parse(self, output):
        ends = {"passed": "passed", "skipped": "skipped"}
        tests = {}
        for name, text, _ in FILE.findall(output):
            said = re.search(r"^#\s+top\s+TEST \S+ (\w+)", text, re.MULTILINE)
            tests[name] = ends.get(said[1] if said else "", "failed")
        return tests


class Nginx(Tap):
    """nginx's own tests of TLS, of a copy that NGINX_TESTS names. They make their keys themselves: no stubs."""

    modes = (*WITHOUT_FILES, "async")
    version = ["nginx", "-v"]
    topics = ("ssl", "h2", "h3", "stream", "mail", "proxy_ssl", "ocsp", "quic", "uwsgi", "grpc")

    def prepare(self):
        # It may be on another file system.
        self.folder = pathlib.Path(shutil.copytree(os.environ["NGINX_TESTS"], self.work / "source"))
        programs = self.work / "bin"
        programs.mkdir()
        # Debian's own is a link that the installation of a package makes.
        (programs / "which").write_text('#!/bin/sh\ncommand -v "$1"\n')
        (programs / "which").chmod(0o755)
        binary = programs / "nginx"
        # Modules that are loaded below are said to be in the program; others are hidden from the suite, which would look
        # for them beside this script.
        binary.write_text(
            "#!/bin/sh\n[ \"$1\" != -V ] || { /usr/sbin/nginx -V 2>&1 |"
            " sed -E 's/(--with-(stream|mail))=dynamic/\\1/g; s/--[a-z_-]+=dynamic//g'; exit; }\n"
            'exec /usr/sbin/nginx "$@"\n'
        )
        binary.chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:/usr/sbin:/usr/bin",
            "TEST_NGINX_BINARY": str(binary),
            "TEST_NGINX_GLOBALS": "user root root; " + "".join(
                f"load_module /usr/lib/nginx/modules/ngx_{module}_module.so; " for module in ("stream", "mail")
            ),
        }
        found = [path.name for path in sorted(self.folder.glob("*.t"))]
        found = [name for name in found if any(topic in name for topic in self.topics)]
        self.command = self.each(found, "perl", "-Ilib")


class OpenSsl(Suite):
    """The recipes of OpenSSL's evp_test. They have their keys in them: no stubs."""

    modes = WITHOUT_FILES
    version = ["openssl", "version"]
    limit = 600

    def prepare(self):
        script = [self.workspace / "scripts/evp-test.sh"]
        # Without a folder it is for this machine's release.
        if self.root.name != "judges-bookworm":
            script.append(self.root)
        built = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        config = f"{built}/default.cnf" if self.mode == "none" else self.work / "openssl.cnf"
        recipes = sorted(path for path in pathlib.Path(built, "recipes").iterdir() if path.suffix == ".txt")
        self.command = self.each(recipes, f"{built}/evp_test", "-config", config)

    def parse(self, output):
        tests = {}
        for path, text, status in FILE.findall(output):
            name = path.rpartition("/")[2]
            tests[name] = "passed" if status == "0" else "failed"
            completed = re.search(r"# Completed (\d+) tests with (\d+) errors and (\d+) skipped", text)
            numbers = [int(number) for number in completed.groups()] if completed else [0, 1, 0]
            # A line that was skipped is named alone, one that failed with what was expected of it.
            for line, failed in re.findall(rf"{re.escape(name)}:(\d+)(: )?", text):
                tests[f"{name}:{line}"] = "failed" if failed else "skipped"
            for number in range(numbers[0] - numbers[1] - numbers[2]):
                tests[f"{name}: passed {number + 1}"] = "passed"
        return tests


class Recipes(Tap):
    """OpenSSL's recipes of keys, signatures, digests and TLS, on releases that no Debian has. They look into the keys:
    no stubs."""

    releases = ("3.0.2", "4.0.3")
    modes = WITHOUT_FILES
    version = ["openssl", "version"]
    limit = 900
    patience = 7200
    indent = r"[ #]*"
    topics = (
        "15-test_(ecdsa|mp_rsa|rsa|rsapss)", "20-test_(dgst|kdf|mac|pkeyutl)",
        "30-test_(evp|evp_fetch_prov|evp_kdf|evp_pkey_provided)", "70-test_(clienthello|ssl.*|tls.*)",
        "80-test_(dtls|ssl_new|tsa)", "90-test_(sslapi|threads|tls13ccs)",
    )

    def prepare(self):
        release = self.root.name.rpartition("-")[2]
        subprocess.run([self.workspace / "scripts/openssl-release.sh", release], check=True, stdout=subprocess.DEVNULL)
        built = self.root.with_name(f"{self.root.name}-source") / "openssl"
        self.folder = self.work / "source"
        (self.folder / "test").mkdir(parents=True)
        for path in [*built.iterdir(), *(built / "test").iterdir()]:
            if path.name not in ("test", "test-runs", "default.cnf"):
                (self.folder / path.relative_to(built)).symlink_to(path)
        self.below = self.folder / "apps/openssl.cnf"
        self.environment = {
            "TOP": str(self.folder), "HARNESS_VERBOSE": "1", "OPENSSL_CONF": str(self.below),
            "OPENSSL_MODULES": f"{self.folder}/providers", "OPENSSL_ENGINES": f"{self.folder}/engines",
            # In the place of a script that looks for the libraries, which costs more than most of the programs.
            "EXE_SHELL": "/usr/bin/env",
        }
        # Tests with contexts of their own load this file.
        default = (built / "test/default.cnf").read_text()
        if self.mode != "none":
            del self.environment["OPENSSL_CONF"]
            default = f".include {self.work}/openssl.cnf\n{default[default.index('[provider_sect]'):]}"
        (self.folder / "test/default.cnf").write_text(default)
        found = sorted(path.relative_to(self.folder) for path in (self.folder / "test/recipes").glob("*.t"))
        found = [path for path in found if re.fullmatch("|".join(self.topics), path.stem)]
        self.command = self.each(found, "perl", "-Iutil/perl", "-Iexternal/perl/Text-Template-1.56/lib")


class RustOpenSsl(Suite):
    """The tests of the crate openssl, which are compiled with their keys: no stubs."""

    modes = WITHOUT_FILES
    crate = "0.10.82"
    version = ["echo", crate]

    def prepare(self):
        script = self.workspace / "scripts/rust-openssl.sh"
        built = subprocess.run([script, self.crate], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        self.folder = pathlib.Path(built)
        self.command = [self.folder / "tests", "--test-threads=2", *([self.only] if self.only else [])]

    def parse(self, output):
        ends = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
        found = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", output, re.MULTILINE)
        return {name: ends[end] for name, end in found}


SUITES = (
    Python, NetSSLeay, IoSocketSsl, Ruby, Node, HaProxy, OpenSsl, RustOpenSsl, NodeHttps, NodeCrypto, Recipes
)
ALL = {suite.__name__.lower(): suite for suite in SUITES}
if os.environ.get("NGINX_TESTS"):
    ALL["nginx"] = Nginx
