"""The network of a client, as a key of limits."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address

#: Bits of an IPv6 address that count. Providers usually give a client a network of 56 to 64 bits.
IPV6_PREFIX = 56


def network_of(address: str, ipv6_prefix: int = IPV6_PREFIX) -> str:
    """Returns the key of a client: its IPv4 address, or the network of its IPv6 address, such as ``2001:db8::/56``.

    A client usually has all addresses of its IPv6 network, so each of them must not have a limit of its own. A text
    that is no address, such as the path of a Unix socket, is returned as it is.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Network((int(parsed), ipv6_prefix), strict=False))
    return str(parsed)
