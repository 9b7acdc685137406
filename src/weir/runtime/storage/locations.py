"""Locations: where storage is, as users write it: a local path or a URI.

Comes in: the text of a location. Goes out: the same place as an absolute one, one below it, its parts, or what
messages may show of it. Opens nothing (opening.py does), and asks the file system only for links.
"""

from __future__ import annotations

import os
import posixpath
import re
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from weir.errors import ConfigError, shown

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_COLON = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/?)")
"""What begins like a URI, and is none. One letter may be a drive."""
_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss", "az")
HADOOP = ("hdfs", "viewfs")
KNOWN_SCHEMES = ("file", *_OBJECT_STORES, *HADOOP)


def absolute_location(location: str | os.PathLike[str]) -> str:
    """The same place, whatever the working directory of the process that opens it. ConfigError when it is none.

    >>> absolute_location("s3://bucket/out/")
    's3://bucket/out'
    """
    text = os.fspath(location)
    if not text.strip():
        raise ConfigError("an empty string is not a location; give a path or a URI such as s3://bucket/directory")
    if text != text.strip() and not text.startswith(os.sep):  # in which the name of a job may be the last part
        raise ConfigError(
            f"storage location {shown(text)!r} begins or ends with white space: take it away, or write the whole "
            f"path of a directory that is called so"
        )
    if scheme_of(text) is None:
        return os.path.abspath(os.path.expanduser(_path_in(text)))
    if not text.partition("://")[2].partition("?")[0].strip("/"):
        raise ConfigError(f"storage location {shown(text)!r} names no place; write what follows the ://, too")
    return text.rstrip("/") if "?" not in text else text


def _path_in(text: str) -> str:
    """The path in what is no URI. Hadoop writes file:/path; anything else that nearly is one would land in a directory
    of such a name, on this machine, and nobody would look for it there."""
    match = _COLON.match(text)
    scheme = match[1].lower() if match else ""
    if match is None or not (match[2] or scheme in KNOWN_SCHEMES):
        return text
    if scheme == "file" and match[2]:
        return text[len("file:") :]
    meant = f"{match[1]}:{'///' if scheme in ('file', *HADOOP) else '//'}{text[match.end() :]}"
    raise ConfigError(
        f"a storage location begins with {match[1]}:{match[2]} and is neither a URI nor a path: did you mean "
        f"{shown(meant)!r}? A local directory of such a name is ./{match[1]}:{match[2]}…"
    )


def location_below(location: str | os.PathLike[str], name: str) -> str:
    """The place `name` below a location, absolute too; options at the end of a URI stay there.

    >>> location_below("s3://bucket/checkpoints/?region=eu-west-1", "my job")
    's3://bucket/checkpoints/my%20job?region=eu-west-1'
    """
    text = absolute_location(location)
    if scheme_of(text) is None:
        return os.path.join(text, name)
    place, mark, options = text.partition("?")
    return f"{place.rstrip('/')}/{quote(name)}{mark}{options}"


def split_location(location: str) -> tuple[str, str]:
    """The directory that a location lies in, as a location, and its name there.

    >>> split_location("s3://bucket/in/a%20file?endpoint=https://host")
    ('s3://bucket/in?endpoint=https://host', 'a file')
    """
    if scheme_of(location) is None:
        return os.path.split(location)
    place, mark, options = location.partition("?")
    directory, _, name = place.rstrip("/").rpartition("/")
    return f"{directory}{mark}{options}", unquote(name)


def shown_location(location: str | os.PathLike[str]) -> str:
    """A location as messages name it: without the options of a URI, and without credentials.

    >>> shown_location("s3://key:secret@bucket/out?secret_access_key=x")
    's3://…@bucket/out'
    """
    text = os.fspath(location)
    return text if scheme_of(text) is None else shown(text).partition("?")[0].rstrip("/")


def place_of(location: str | os.PathLike[str]) -> tuple[str, ...]:
    """A location as the parts that lead to it: two that mean the same place have the same, however they are written.

    >>> place_of("gcs://bucket/a//b/../c?endpoint=x") == place_of("gs://bucket/a/c/")
    True
    """
    text = absolute_location(location)
    scheme = scheme_of(text)
    if scheme is None or scheme == "file":
        return ("file", *filter(None, os.path.realpath(local_path(text)).split(os.sep)))
    parts = urlsplit(text)
    path = posixpath.normpath(unquote(parts.path) or "/")
    user, _, host = parts.netloc.rpartition("@")
    kind = {"gcs": "gs", "abfss": "abfs"}.get(scheme, scheme)
    bucket = (user.partition(":")[0], host) if kind == "abfs" else (host,)
    return (kind, *bucket, *filter(None, path.split("/")))


def scheme_of(location: str) -> str | None:
    """The scheme of a URI; None for a local path.

    >>> scheme_of("s3://bucket/x"), scheme_of("/tmp/x")
    ('s3', None)
    """
    match = _SCHEME.match(location)
    return match[1].lower() if match else None


def local_path(text: str) -> str:
    """The path that a location of local files means."""
    if scheme_of(text) is None:
        return text
    uri = urlsplit(text)
    if uri.netloc not in ("", "localhost"):
        raise ConfigError(
            f"storage location {shown(text)!r}: {_host(uri.netloc)!r} would be a host, and files are local; write "
            f"file:///directory, or a path"
        )
    return url2pathname(uri.path)


def _host(authority: str) -> str:
    return authority.rpartition("@")[2].partition(":")[0]
