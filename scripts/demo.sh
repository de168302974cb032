#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The walking tour behind `make demo`: a node, HAProxy and nginx with pooled keys, full handshakes, tables;
# then what a node signs with, beside the libraries called directly; and at the end, in a few sentences,
# what was gained. The binary does everything, in a temporary folder, and cleans up after itself.
set -euo pipefail
cd "$(dirname "$0")/.."
exec target/release/millrace bench tls --demo "$@"
