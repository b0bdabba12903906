"""Which addresses may be told: http(s) with a host; inside one's own network only when an administrator asks.

Checked when a webhook is made and again at each delivery, on every address the name has then, because a name may
point elsewhere later. A delivery then connects to an address that was checked, never to the name again: it might
have changed its mind in between.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from mlxplatform.inference.contract import Refusal

URL_LIMIT = 2000
#: Under which a network without IPv4 reaches every IPv4 address, a private one too: the address is in the last 32 bits.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: Other IPv6 networks whose addresses hold an IPv4 one: compatible, mapped, translated, local NAT64 and 6to4. Python calls
#: most of them public. Nobody who has another address needs them.
_CARRYING_IPV4 = [
    ipaddress.IPv6Network(name) for name in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2002::/16")
]


def check(url: object, *, private_allowed: bool) -> str:
    """Raises:
    Refusal: naming ``url`` and what is allowed.
    """
    if not isinstance(url, str) or len(url) > URL_LIMIT:
        raise Refusal(400, "invalid_value", f"url must be a string of at most {URL_LIMIT} characters", param="url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refusal(400, "invalid_value", "url is not a valid URL", param="url") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
        raise Refusal(
            400, "invalid_value", "url must begin with http:// or https:// and name a host, without a password", param="url"
        )
    if not private_allowed and not is_public(parts.hostname, port or 0):
        raise Refusal(400, "address_not_allowed", "url must lead to a public address", param="url")
    return url


def is_public(host: str, port: int) -> bool:
    """Whether every address of the host is a public one. An unknown name is not."""
    return bool(resolve(host, port, private_allowed=False))


def resolve(host: str, port: int, *, private_allowed: bool) -> list[str]:
    """The host's addresses; none if it has none, or if any of them is one that may not be told."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return []
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    allowed = private_allowed or all(_is_told(ipaddress.ip_address(address)) for address in addresses)
    return addresses if allowed else []


def _is_told(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether this is one machine of the public internet, and no way of writing, or of reaching, another kind of address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return _is_told(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(address in network for network in _CARRYING_IPV4):
            return False
    return address.is_global and not address.is_multicast
