"""Say which callers of a server count as one, since a caller may have many addresses."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address_of(host: str) -> Address:
    """Return the address of a caller; one that a socket for IPv6 shows as IPv4 is the IPv4 address."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def origin_of(host: str) -> str:
    """Return the address under which to count a caller, who may have 2**64 IPv6 addresses."""
    return _within(host, 32, 64)


def network_of(host: str) -> str:
    """Return the network of a caller: addresses that one organization can easily have."""
    return _within(host, 24, 48)


def _within(host: str, bits: int, bits6: int) -> str:
    address = address_of(host)
    if address.version == 4 and bits == 32:
        return str(address)
    length = bits if address.version == 4 else bits6
    return str(ipaddress.ip_network((str(address), length), strict=False))
