"""Where a request really comes from, and whether it travelled encrypted.

A proxy's word (``X-Forwarded-For``, ``X-Forwarded-Proto``) counts only when the socket's peer is one of the addresses in
MLXPLATFORM_PROXIES; from anybody else these headers are a client's own invention.
"""

from __future__ import annotations

import ipaddress

from django.conf import settings
from django.http import HttpRequest

#: Bits of an IPv6 address that one customer of a provider gets; the rest they choose as they like.
_IPV6_PREFIX = 64


def address_of(request: HttpRequest) -> str:
    """The client's address; the nearest one no known proxy vouches for."""
    address = request.META.get("REMOTE_ADDR", "")
    if not _is_proxy(address):
        return address
    hops = [hop.strip() for hop in request.headers.get("X-Forwarded-For", "").split(",") if hop.strip()]
    for hop in reversed(hops):
        if not _is_proxy(hop):
            return hop if _parsed(hop) is not None else address
    return address


def neighbourhood(address: str) -> str:
    """What limits count by: an IPv4 address, or the network of an IPv6 one."""
    parsed = _parsed(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address[:45]


def is_encrypted(request: HttpRequest) -> bool:
    """Whether the client's own connection was TLS, as far as a known proxy says."""
    if request.scheme == "https":
        return True
    return _is_proxy(request.META.get("REMOTE_ADDR", "")) and request.headers.get("X-Forwarded-Proto", "").lower() == "https"


def _is_proxy(address: str) -> bool:
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in settings.ENV.proxies)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
