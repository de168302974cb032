# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/inspect.md, doctor.md and advise.md: this machine, a bundle of it, an unpacked system.

fresh_gateway gateway-1 21
look gateway-1 inspect-machine
# An unpacked system as small as one can be.
run gateway-1 'mkdir -p squashfs-root/usr/lib && cp /usr/lib/*/libcrypto.so.3 squashfs-root/usr/lib/'
on gateway-1 inspect-bundle
printed "gateway-7.tar.gz"
printed "usr/lib/libcrypto.so.3"
look gateway-1 doctor-pages
printed '"findings"'
on gateway-1 advise-pages
printed "esp_proposals"
printed "set vpn ipsec"
printed "ssl-default-bind"
machine_stop gateway-1
