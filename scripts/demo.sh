#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The walking tour behind `make demo`: first what an nginx gains without any pool, by local primitives; then a node,
# HAProxy and nginx with pooled keys, full handshakes, tables; what a node signs with, beside the libraries called
# directly; in a few sentences what was gained; and at the end one table of compressed responses, with stock nginx
# beside nginx with Millrace's library.
# The binary does everything, in a temporary folder, and cleans up after itself.
set -euo pipefail
cd "$(dirname "$0")/.."
target/release/millrace bench tls --local --demo
target/release/millrace bench tls --demo "$@"
exec target/release/millrace bench compression --demo
