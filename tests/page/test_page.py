# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The page of a pool and of a lone node in a real browser: tests/page/test_page.py MILLRACE [CHROMIUM]."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from browser import Browser, PATIENCE_S

# The bound of crates/server/src/web.rs, with the headers of three answers.
MAX_PAGE_BYTES = 64 * 1024

# Contrast of each text against what is behind it (WCAG 2.1, 1.4.3).
CONTRAST = """(() => {
  const channels = text => text.match(/[0-9.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.offsetParent) continue;
    const [a, b] = [luminance(channels(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(element.tagName + ' ' + element.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
  }
  return low;
})()"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Pool:
    """A manager and its node in one process, with two tenants."""

    def __init__(self, millrace):
        self.millrace = millrace
        self.folder = tempfile.mkdtemp(prefix="millrace-page-pool-")
        self.port, self.metrics = free_port(), free_port()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        self.environment["MILLRACE_STATE"] = os.path.join(self.folder, "state")
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen(
            [millrace, "up", "--with-manager", "--manager-listen", f"127.0.0.1:{self.port}",
             "--socket", os.path.join(self.folder, "socket"), "--listen-metrics", f"127.0.0.1:{self.metrics}",
             "--name", "only", "--grant-lifetime", "3s"],
            env=self.environment, stdout=self.log, stderr=self.log)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    self.log.seek(0)
                    raise AssertionError("no manager:\n" + self.log.read())
                time.sleep(0.1)

    def run(self, *arguments):
        access = os.path.join(self.folder, "state", "manager", "access")
        done = subprocess.run([self.millrace, *arguments, "--access", access], env=self.environment, capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def names(browser, table):
    """The first cells of a table's rows."""
    return browser.value(f"[...document.querySelectorAll('#{table} tbody th')].map(cell => cell.textContent)")


def check_own_host(browser, origin):
    foreign = [url for url in browser.requests if not url.startswith((origin, "data:", "about:"))]
    assert not foreign, foreign


def check_accessible(browser):
    tree = browser.accessible()
    for role in ("button", "textbox", "searchbox", "table", "image", "meter", "heading"):
        nameless = [name for found, name in tree if found == role and not name.strip()]
        assert not nameless, f"a {role} without a name"
    roles = {role for role, _ in tree}
    for role in ("main", "status", "heading", "table", "columnheader", "rowheader", "searchbox"):
        assert role in roles, (role, sorted(roles))
    assert browser.value("document.documentElement.lang") == "en"
    assert browser.value("document.querySelectorAll('[aria-live]').length") == 1, "only the verdict is announced"
    for dark in (False, True):
        browser.size(1280, 900, dark)
        assert browser.value(CONTRAST) == [], ("dark" if dark else "light")
    browser.size(360, 800)
    wide = browser.value("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], f"a narrow window scrolls sideways: {wide}"
    browser.size(1280, 900)


def check_pool(browser, pool, token):
    origin = f"https://127.0.0.1:{pool.port}/"
    browser.open(origin)
    # Without a token: a form, and nothing of the pool.
    browser.wait("the form", "!document.getElementById('login').hidden")
    assert browser.value("document.getElementById('main').hidden")
    refused = [error for error in browser.errors if "401" in error]
    assert len(refused) == len(browser.errors), browser.errors
    browser.errors.clear()
    fill = "document.getElementById('token').value = %s; document.querySelector('#login button').click(); true"
    browser.value(fill % json.dumps(token))
    browser.wait("the pool", "!document.getElementById('main').hidden")
    assert browser.value("document.getElementById('token').value") == "", "the token stays in the form"
    assert browser.value("getComputedStyle(document.getElementById('login')).display") == "none", "the form stays"
    assert token not in browser.value("location.href + document.cookie + JSON.stringify({...localStorage})")

    # Verdict, figures and tables say what the API says.
    browser.wait("the verdict", "document.getElementById('verdict').dataset.level === 'good'")
    verdict = browser.value("document.getElementById('verdict').textContent")
    assert verdict == "✔ The only node serves", verdict
    assert browser.value("document.querySelectorAll('#figures dd').length") == 6
    assert set(names(browser, "nodes")) == {"only"}
    assert names(browser, "tenants") == ["acme", "batch"]
    state = json.loads(pool.run("pool", "status", "--json"))
    assert state["verdict"]["level"] == "good" and len(state["tenants"]) == 2

    # A change arrives as an event, without a reload.
    browser.value("window.unchanged = true")
    pool.run("tenant", "set", "acme", "--ops", "7777")
    browser.wait("the new quota", "document.getElementById('tenants').innerText.includes('7,777')")
    browser.wait("the change in the log", "document.getElementById('events').innerText.includes('acme')")
    assert browser.value("window.unchanged"), "the page was loaded anew"
    assert sum(url.endswith("/v1/events") for url in browser.requests) == 2, "one stream, after the refused one"

    # By keyboard: a column sorts, and says so.
    browser.value("document.querySelector('#tenants th button').focus()")
    for expected in ("ascending", "descending"):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13,
                         text="\r" if kind == "keyDown" else "")
        assert browser.value("document.querySelector('#tenants th').getAttribute('aria-sort')") == expected
    assert names(browser, "tenants") == ["batch", "acme"]
    browser.value("const f = document.getElementById('filter'); f.value = 'nothing'; "
                  "f.dispatchEvent(new Event('input')); true")
    assert "none fits" in browser.value("document.getElementById('nodes').innerText")
    browser.value("f.value = ''; f.dispatchEvent(new Event('input')); true")

    check_accessible(browser)
    check_own_host(browser, origin)
    assert browser.errors == [], browser.errors
    page = [f"https://127.0.0.1:{pool.port}/" + name for name in ("", "page.css", "page.js")]
    assert set(page) <= set(browser.requests)


def check_selection_stays(browser, pool):
    """A text that is selected stays so while figures arrive, and a row that changes is the same row."""
    browser.value("""(() => {
      const cell = document.querySelector('#tenants tbody th');
      getSelection().selectAllChildren(cell);
      window.cell = cell;
      window.arrived = 0;
      const before = show;
      show = state => { window.arrived += 1; before(state); };
      return true;
    })()""")
    pool.run("tenant", "set", "acme", "--ops", "6543")
    browser.wait("the new quota", "document.getElementById('tenants').innerText.includes('6,543')")
    browser.wait("further states", "window.arrived >= 3")
    assert browser.value("getSelection().toString()") == browser.value("window.cell.textContent") != ""
    assert browser.value("window.cell.isConnected"), "the row was made anew"
    # Many rows cost what changes in them, not what there is.
    times = browser.value("""(() => {
      const state = structuredClone(latest);
      const row = state.tenants[0];
      state.tenants = [...Array(1000).keys()].map(n => ({ ...row, name: 'tenant-' + n }));
      show(structuredClone(state));
      const made = document.querySelectorAll('#tenants tbody tr')[500];
      state.tenants[500].used_ops = 4711;
      const changes = [];
      const observer = new MutationObserver(found => changes.push(...found));
      observer.observe(document.getElementById('tenants'), { childList: true, characterData: true, subtree: true });
      show(structuredClone(state));
      changes.push(...observer.takeRecords());
      observer.disconnect();
      return { changes: changes.length, same: made === document.querySelectorAll('#tenants tbody tr')[500],
        text: made.innerText };
    })()""")
    assert times["same"] and "4,711" in times["text"], times
    assert times["changes"] <= 12, times


def check_long_list(browser, pool):
    """A list that is longer than a screen says so, and has all rows when asked."""
    for number in range(51):
        pool.run("tenant", "create", f"many-{number:02}", "--ops", "1")
    browser.wait("the number of all", "document.getElementById('rest-tenants').innerText.includes('50 of 53 shown')")
    assert len(names(browser, "tenants")) == 50
    browser.value("document.querySelector('#rest-tenants button').click(); true")
    browser.wait("all rows", "document.querySelectorAll('#tenants tbody tr').length === 53")
    assert "53 of 53 shown" in browser.value("document.getElementById('rest-tenants').innerText")
    assert len(json.loads(pool.run("pool", "status", "--json"))["tenants"]) == 53
    assert sum("many-" in line for line in pool.run("pool", "status").splitlines()) == 51


def check_names_stay_text(browser):
    """A name that is markup, in the document that the page shows."""
    browser.value("""(() => {
      const state = structuredClone(latest);
      state.tenants[0].name = '<img src=x onerror="window.broken = 1">';
      state.events = [{ at_ms: 1, level: 'good', origin: '<b>x</b>', text: '<script>window.broken = 1</script>' }];
      show(state);
    })()""")
    browser.listen(0.3)
    assert browser.value("document.querySelector('#tenants img, #events script, #events b')") is None
    assert browser.value("window.broken") is None
    assert browser.errors == [], browser.errors


def check_node(browser, pool):
    """The same page, served by the node itself, without a token on loopback."""
    origin = f"http://127.0.0.1:{pool.metrics}/"
    browser.requests.clear()
    browser.open(origin)
    browser.wait("the node", "document.getElementById('name') && document.getElementById('name').textContent === 'node only'")
    browser.wait("the verdict", "document.getElementById('verdict').textContent.includes('Node only serves')")
    check_own_host(browser, origin)
    assert browser.errors == [], browser.errors
    with urllib.request.urlopen(origin) as answer:
        policy = answer.headers["content-security-policy"]
    assert re.search("default-src 'none'", policy), policy
    text = b"".join(urllib.request.urlopen(origin + name).read() for name in ("", "page.css", "page.js"))
    assert len(text) < MAX_PAGE_BYTES, len(text)


def check_lost(browser, pool):
    """The page says that its data is old when the server has gone."""
    pool.close()
    browser.wait("that the data is old", "document.getElementById('age').textContent.includes('the connection is lost')")
    assert browser.value("document.getElementById('verdict').dataset.level") == "unknown"
    verdict = browser.value("document.getElementById('verdict').textContent")
    assert re.match(r"As of [0-9:]{8} UTC, node gone: ", verdict), verdict


def check_lost_manager(browser, pool, token):
    """The verdict of a pool is not shown as if it were true when the manager has gone."""
    browser.open(f"https://127.0.0.1:{pool.port}/")
    browser.wait("the pool", "!document.getElementById('main').hidden")
    os.kill(pool.process.pid, signal.SIGSTOP)
    try:
        browser.wait("that the manager is silent", "document.getElementById('verdict').textContent.includes('manager gone')")
        verdict = browser.value("document.getElementById('verdict').textContent")
        assert re.match(r"As of [0-9:]{8} UTC, manager gone: ", verdict) and "✔" not in verdict, verdict
    finally:
        os.kill(pool.process.pid, signal.SIGCONT)
    browser.wait("the pool again", "document.getElementById('verdict').dataset.level !== 'unknown'")
    assert token not in browser.value("document.body.innerText")


def main():
    millrace = os.path.abspath(sys.argv[1])
    program = sys.argv[2] if len(sys.argv) > 2 else "chromium"
    pool = Pool(millrace)
    browser = None
    try:
        pool.run("tenant", "create", "acme", "--ops", "90", "--weight", "2", "--identity", "cert:acme-*")
        pool.run("tenant", "create", "batch", "--ops", "30", "--priority", "low", "--identity", "cert:batch-*")
        token = json.loads(pool.run("token", "create", "browser", "--role", "viewer", "--json"))["token"]
        browser = Browser(program)
        steps = [
            ("the page of a pool", lambda: check_pool(browser, pool, token)),
            ("a selection and many rows", lambda: check_selection_stays(browser, pool)),
            ("a long list", lambda: check_long_list(browser, pool)),
            ("names stay text", lambda: check_names_stay_text(browser)),
            ("a manager that hangs", lambda: check_lost_manager(browser, pool, token)),
            ("the page of a node", lambda: check_node(browser, pool)),
            ("a server that has gone", lambda: check_lost(browser, pool)),
        ]
        for name, step in steps:
            step()
            print("ok:", name, flush=True)
    finally:
        if browser:
            browser.close()
        pool.close()


if __name__ == "__main__":
    main()
