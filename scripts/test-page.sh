#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The page of a pool and of a node in Debian's Chromium, headless: what it shows, how changes arrive, that it loads
# nothing from another host, and its accessibility. MILLRACE names another binary.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh "chromium chromium" "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf fonts-dejavu-core"
exec python3 -B tests/page/test_page.py "${MILLRACE:-target/debug/millrace}" chromium
