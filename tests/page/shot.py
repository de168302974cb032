# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A picture of a pool's page: tests/page/shot.py URL ACCESS FILE. ACCESS is an access file with a viewer's rights."""

import json
import sys

from browser import Browser


def main():
    url, access, file = sys.argv[1:4]
    browser = Browser()
    try:
        browser.size(1280, 1300)
        browser.open(url)
        browser.wait("the form", "!document.getElementById('login').hidden")
        with open(access, encoding="utf-8") as document:
            token = json.dumps(json.load(document)["token"])
        browser.value(f"sessionStorage.setItem('token', {token}); location.reload()")
        browser.wait("the tenants", "document.querySelectorAll('#tenants tbody th').length > 1")
        # A few points for the sparklines.
        browser.listen(6)
        browser.screenshot(file)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
