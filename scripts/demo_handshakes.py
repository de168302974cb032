# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Full TLS handshakes with a server on loopback, one after the other: demo_handshakes.py PORT PER_SECOND. At SIGTERM it
prints their number and how many failed, and the first of these with their second and their reason."""

import signal
import socket
import ssl
import sys
import time

port, rate = int(sys.argv[1]), float(sys.argv[2])
# The demo's certificate is its own; a session that is resumed would need no signature.
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
done = 0
failures = []
ended = False
began = time.monotonic()


def end(*_):
    global ended
    ended = True


signal.signal(signal.SIGTERM, end)
while not ended:
    start = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            with context.wrap_socket(plain):
                done += 1
    except (OSError, ssl.SSLError) as error:
        failures.append(f"after {start - began:.2f} s, for {time.monotonic() - start:.2f} s: {error!r}")
    time.sleep(max(0.0, 1 / rate - (time.monotonic() - start)))
for failure in failures[:10]:
    print(failure)
print(f"{done} handshakes, {len(failures)} failed", flush=True)
