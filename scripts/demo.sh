#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The walking tour behind `make demo`: a node, HAProxy and nginx with pooled keys, full handshakes,
# a table; then what the node computes with, beside the libraries called directly. The binary does
# everything, in a temporary folder, and cleans up after itself.
set -euo pipefail
cd "$(dirname "$0")/.."
target/release/millrace bench tls --demo "$@"
printf '\nWhat a node signs with, on one core, beside AWS-LC and OpenSSL called directly:\n\n'
exec target/release/millrace bench crypto --operation rsa-pkcs1-sign --key rsa-2048 --part rates --rounds 2 --seconds 0.1
