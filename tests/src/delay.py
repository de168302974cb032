# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A long way, in user space: what a router sends to the device `delay` comes back from there after MEAN ± SPREAD
milliseconds, in the order in which it was sent, and nothing is lost. Arguments: MEAN SPREAD.

The kernels of some machines have no netem. Needs root and /dev/net/tun."""

import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 1, 0x1000


def main():
    mean, spread = (float(word) / 1000 for word in sys.argv[1:3])
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"delay", IFF_TUN | IFF_NO_PI))
    print("made", flush=True)
    way = collections.deque()
    last = 0.0
    while True:
        wait = max(0.0, way[0][0] - time.monotonic()) if way else None
        ready, _, _ = select.select([device], [], [], wait)
        now = time.monotonic()
        while ready:
            try:
                packet = os.read(device, 65536)
            except BlockingIOError:
                break
            last = max(last, now + random.uniform(mean - spread, mean + spread))
            way.append((last, packet))
        while way and way[0][0] <= now:
            os.write(device, way.popleft()[1])


if __name__ == "__main__":
    main()
