"""Texts for others to read: without credentials, and never longer than somebody reads.

Comes in: a location, or any text with locations in it. Goes out: the same without who opens them and without the values
of secret options; cut where it is too long. Takes time in proportion to the length of the text, whatever it holds:
messages quote what users, files and servers send.
"""

from __future__ import annotations

import os
import re

MESSAGE_CHARACTERS_MAX = 10_000
"""Most characters of an error message that are kept: of its beginning and of its end."""
_END_CHARACTERS = 4_000

QUOTED_CHARACTERS_MAX = 2_000
"""Most characters of what somebody else said that are quoted in a message."""

_NOTE = " [… {:,} characters left out …] "
_NOTE_CHARACTERS = 60

_LOCATION = re.compile(r"://(\S*)")
_SCHEME_BACKWARDS = re.compile(r"[A-Za-z0-9+.-]*")
_SCHEME_CHARACTERS_MAX = 32
"""How far back a scheme is looked for. Those that mean anything here are shorter."""
_PORT = re.compile(r"[^/@]*:\d+/")
_HAVE_PORTS = ("hdfs", "viewfs", "http", "https")
_HAVE_NO_PORTS = ("s3", "s3a", "s3n", "gs", "gcs", "az", "adl", "abfs", "abfss", "wasb", "wasbs", "file")
_HAVE_CONTAINERS = ("abfs", "abfss")

_INNER = re.compile(r"([?&;#][^\s=&?;#]*=)([^\s&]*)")
"""An option, which may be a URI itself, such as a proxy."""
_INNER_MARK = re.compile(r"(?::|%3A)(?:/|%2F){2}", re.IGNORECASE)

_SECRET = re.compile("secret|pass|pwd|token|session|credential|key|sig|auth|sas|bearer|service_account", re.IGNORECASE)
"""Options whose names look as if nobody should see their values."""
_NAME_END = re.compile(r"[\s'\"=&]")
_NAME_BACKWARDS = re.compile(r"[^\s'\"=&]*")
_OPTION_MARK = re.compile(r"[?;#]")
_VALUE = re.compile(r"[^\s&]+")
_PUNCTUATION = "'\")],.:"

_BRACES_MAX = 1_000
"""How many options that are documents are looked at in what is left out; where there are more, one is a secret."""
_NAME_CHARACTERS_MAX = 100

_MARK = re.compile(r"://|[?&;#]")
"""Whatever is hidden stands behind one of these."""
_BLANK = re.compile(r"\s")


def shown(text: str | os.PathLike[str]) -> str:
    """A location, or a text with locations in it, for others to read: without credentials.

    >>> shown("s3://AKIA:secret@bucket/out?region=eu-west-1&secret_key=abc")
    's3://…@bucket/out?region=eu-west-1&secret_key=…'
    """
    return _redacted(os.fspath(text))[0]


def told(text: str) -> str:
    """A text of any length for a message, a log or a status: its beginning and its end, without credentials.

    >>> len(told("x" * 1_000_000)) <= MESSAGE_CHARACTERS_MAX
    True
    """
    if len(text) <= MESSAGE_CHARACTERS_MAX:
        return shown(text)
    start = len(text) - _END_CHARACTERS
    head = _whole_words(text, MESSAGE_CHARACTERS_MAX - _END_CHARACTERS - _NOTE_CHARACTERS)
    if _MARK.search(text, _word_start(text, start), start + 2):
        blank = _BLANK.search(text, start)  # a part of a location may be a part of a secret
        start = len(text) if blank is None else blank.end()
    beginning, is_open = _redacted(text[:head], closes_later=text.find("}", head) >= 0)
    if is_open or _opens_brace(text, head, start):
        start = max(start, text.rfind("}", head) + 1)
    return f"{beginning}{_NOTE.format(start - head)}{shown(text[start:])}"


def quoted(text: str, characters_max: int = QUOTED_CHARACTERS_MAX) -> str:
    """The beginning of what somebody else said, without credentials.

    >>> quoted("a very long story", 6)
    'a very…'
    """
    if len(text) <= characters_max:
        return shown(text)
    head = _whole_words(text, characters_max)
    return f"{_redacted(text[:head], closes_later=text.find('}', head) >= 0)[0]}…"


def _opens_brace(text: str, start: int, end: int) -> bool:
    """Whether what is left out may begin a secret that is a document, and ends with the last brace of all."""
    for _ in range(_BRACES_MAX):
        start = text.find("={", start, end)
        if start < 0:
            return False
        if _SECRET.search(text, max(0, start - _NAME_CHARACTERS_MAX), start):
            return True
        start += 1
    return True


def _whole_words(text: str, end: int) -> int:
    """Where to cut, at `end` or before: not in what may be a location, since half of a secret is not known for one."""
    if _BLANK.match(text, end):
        return end
    mark = _MARK.search(text, _word_start(text, end), end + 2)
    return end if mark is None else min(end, mark.start())


def _word_start(text: str, end: int) -> int:
    backwards = _BLANK.search(text[:end][::-1])
    return 0 if backwards is None else end - backwards.start()


def _redacted(text: str, *, closes_later: bool = False) -> tuple[str, bool]:
    """`closes_later`: a brace behind the end of this text. Goes out: also whether a secret goes on up to that."""
    return _without_secrets(_INNER.sub(_without_inner_user, _LOCATION.sub(_without_user, text)), closes_later)


def _without_user(location: re.Match[str]) -> str:
    """All before the last @ is who opens it: a secret may hold what ought to be written %2F, %40 or %3F."""
    rest = location[1]
    start = location.start()
    backwards = location.string[max(0, start - _SCHEME_CHARACTERS_MAX) : start][::-1]
    found = _SCHEME_BACKWARDS.match(backwards)
    scheme = "" if found is None else found[0][::-1].lstrip("0123456789+.-").lower()
    place, question, options = rest.partition("?")
    if "@" not in place and ":" in place.partition("/")[0]:
        place, question, options = rest, "", ""
    if scheme in _HAVE_PORTS and _PORT.match(place):
        return location[0]
    user, at, host = place.rpartition("@")
    if not at and scheme in _HAVE_NO_PORTS:
        return f"://{_without_password(rest)}"
    if not user or (":" not in user and ("/" in user or scheme in _HAVE_CONTAINERS)):
        return location[0]
    return f"://…@{host}{question}{options}"


def _without_password(rest: str) -> str:
    """Without @ nobody knows where a password ends, and there is nothing else that a colon could begin."""
    name, colon, hidden = rest.partition(":")
    core = hidden.rstrip(_PUNCTUATION + ";")
    if "/" in name or hidden.startswith("//") or not core:  # a path, the scheme of the next location, or a message
        return rest
    return f"{name}{colon}…{hidden[len(core) :]}"


def _without_inner_user(option: re.Match[str]) -> str:
    name, value = option.groups()
    mark = _INNER_MARK.search(value)
    if mark is None:
        return option[0]
    start = mark.end()
    at = max(value.rfind("@", start), value.rfind("%40", start))
    return f"{name}{value[:start]}…{value[at:]}" if at > start else option[0]


def _without_secrets(text: str, closes_later: bool) -> tuple[str, bool]:
    """Each word that names a secret leads to the name around it; no character is looked at for two names."""
    parts: list[str] = []
    copied = looked = 0
    closing = text.rfind("}")
    for word in _SECRET.finditer(text):
        if word.start() < looked:
            continue
        end = _NAME_END.search(text, word.end())
        if end is None:
            break
        equals, before = end.start(), looked
        looked = equals
        if text[equals] != "=" or not _is_option(text, before, word.start(), equals):
            continue
        start = equals + 1
        if text.startswith("{", start) and closes_later:
            return f"{''.join(parts)}{text[copied:start]}…", True
        if text.startswith("{", start) and closing > start:
            stop = closing + 1
        elif value := _VALUE.match(text, start):
            stop = start + max(1, len(value[0].rstrip(_PUNCTUATION)))
        else:
            continue
        parts += (text[copied:start], "…")
        copied = looked = stop
    return "".join((*parts, text[copied:])), False


def _is_option(text: str, before: int, word: int, equals: int) -> bool:
    """Whether the name that ends at `equals` begins as an option does, and tells of a secret."""
    found = _NAME_BACKWARDS.match(text[before:word][::-1])
    start = word - (0 if found is None else len(found[0]))
    if start == 0 or text[start - 1] != "&":
        mark = _OPTION_MARK.search(text, start, equals)
        if mark is None:
            return False
        start = mark.end()
    return _SECRET.search(text, start, equals) is not None
