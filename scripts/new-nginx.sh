#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Unpacks the nginx of Debian sid, 1.29 or newer, with its OpenSSL, for the tests of what no release of Debian has yet:
# prints the folder. unpack-debian.sh says how.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/unpack-debian.sh sid target/nginx-sid nginx openssl coreutils
realpath target/nginx-sid
