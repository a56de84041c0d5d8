"""Secrets in texts: what a link or a message carries to open a door is never written down.

A signed link (Azure's ``sig``, Amazon's ``X-Amz-Signature``, Google's ``X-Goog-Signature``) is a
password for whoever reads it, and so is ``user:password@`` before a host.
"""

import re

REDACTED = "[redacted]"

_SECRET = (
    r"(?:sig|signature|token|access[_-]?token|refresh[_-]?token|api[_-]?key|key|password|passwd|"
    r"secret|credential|awsaccesskeyid|x-amz-[\w-]+|x-goog-[\w-]+|skoid|sktid|key-pair-id|policy)"
)
# A text may be redacted again, as by the log that a message ends in.
_PARAMETER = re.compile(
    rf"([?&;](?:amp;)?{_SECRET}=)(?!{re.escape(REDACTED)})([^&\s'\"<>)\]]+)", re.IGNORECASE
)
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)([^/\s'\"@]+)@", re.IGNORECASE)
_HEADER = re.compile(r"(\bauthorization['\"]?\s*[:=]\s*['\"]?)(\w+\s+)?[^\s'\"]+", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return a text without the secrets of the links and headers in it."""
    text = _USER.sub(rf"\1{REDACTED}@", text)
    text = _PARAMETER.sub(rf"\1{REDACTED}", text)
    return _HEADER.sub(rf"\1{REDACTED}", text)


def holds_secret(url: str) -> bool:
    """Return whether a link carries a user, a password or a signature."""
    return redacted(url) != url
