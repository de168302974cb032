#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Unpacks Intel's library for QAT cards in two versions, with its headers and programs, for the tests of
# the backend qat and of compression: that of Debian 13 into target/qat/trixie, that of unstable into target/qat/sid.
set -euo pipefail
cd "$(dirname "$0")/.."

COMMON=(libqat4 libusdm0 libqat-dev libusdm-dev qatlib-examples qatlib-service coreutils zlib1g)

scripts/unpack-debian.sh trixie target/qat/trixie "${COMMON[@]}" qatengine openssl
exec scripts/unpack-debian.sh sid target/qat/sid "${COMMON[@]}" openssl-provider-qat openssl
