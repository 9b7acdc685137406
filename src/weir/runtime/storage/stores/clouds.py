"""Object stores by URI: S3, Google Cloud Storage and Azure, as obstore's stores.

Comes in: a URI with options at its end. Goes out: the store of its bucket, the directory in it,
and the secrets that must show up in no text. Never sends a request.

    s3://bucket/directory?region=eu-west-1&endpoint=https://host:9000
    gs://bucket/directory                            gcs:// means the same
    abfss://container@account.dfs.core.windows.net/directory
    az://container/directory?account_name=account

Options are the store's configuration keys, or settings of the connection (`timeout`, `proxy_url` …). What no option
says comes from the environment (AWS_ACCESS_KEY_ID, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_KEY …).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from weir.errors import ConfigError

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
"""Longest silence of a store in the middle of a request. A part of an upload must be through by then."""
REQUEST_TIMEOUT_S = 600

PART_RETRIES_MAX = 2
"""Times that a part of a large upload or copy is repeated below us, so that the whole need not begin again. No other
request is: how often a call is tried again is a setting."""
_RETRY_TIMEOUT_S = 120
_RETRY_INITIAL_MS = 100
_RETRY_MAX_MS = 1_000

_CLIENT_OPTIONS = (
    "allow_http allow_invalid_certificates connect_timeout pool_idle_timeout proxy_url proxy_ca_certificate"
    " proxy_excludes read_timeout timeout"
).split()
_PYARROW_NAMES = {"endpoint_override": "endpoint", "access_key": "access_key_id", "secret_key": "secret_access_key"}
"""What earlier versions took, when pyarrow opened these URIs."""
_NOT_SECRET = frozenset("region endpoint default_region account_name container_name bucket use_emulator".split())
_ENDPOINT_VARIABLES = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "azure": ("AZURE_ENDPOINT",)}
_HTTP_VARIABLES = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
_YES = ("true", "1", "yes")


@dataclass(frozen=True, repr=False)
class OpenedStore:
    """A bucket or container, and a directory in it."""

    store: ObjectStore
    repeating: ObjectStore
    """The same one, for uploads and copies in parts."""
    root: str
    secrets: tuple[str, ...]
    """Must be in no message: an error of the store may quote what was sent."""


def open_object_store(location: str, shown: str) -> OpenedStore:
    """The store of a URI. `shown` is how messages name it."""
    uri = urlsplit(location)
    kind = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}.get(uri.scheme.lower(), "azure")
    _check_place(kind, uri, shown)
    config, client = _options(uri, shown)
    if not uri.hostname:
        raise ConfigError(f"storage location {shown!r}: it names no bucket; write {uri.scheme}://bucket/directory")
    _check_encryption(kind, config, client, shown)
    secrets = tuple(value for key, value in config.items() if key not in _NOT_SECRET and len(value) > 3)
    try:
        store, repeating = (_store(kind, uri, config, client, retries_max=times) for times in (0, PART_RETRIES_MAX))
    except Exception as error:  # obstore's BaseError, or ValueError
        cause = str(error).split("\n", 1)[0]
        for secret in secrets:
            cause = cause.replace(secret, "***")
        raise ConfigError(
            f"storage location {shown!r}: {cause} Options at the end of the URI are settings of the store, such as "
            f"region and endpoint, or of the connection: {', '.join(_CLIENT_OPTIONS)}."
        ) from None
    return OpenedStore(store, repeating, unquote(uri.path).strip("/"), secrets)


def _store(
    kind: str, uri: SplitResult, config: dict[str, str], client: dict[str, Any], *, retries_max: int
) -> ObjectStore:
    options: dict[str, Any] = {
        "client_options": client,
        "retry_config": {
            "max_retries": retries_max,
            "retry_timeout": timedelta(seconds=_RETRY_TIMEOUT_S),
            "backoff": {
                "init_backoff": timedelta(milliseconds=_RETRY_INITIAL_MS),
                "max_backoff": timedelta(milliseconds=_RETRY_MAX_MS),
                "base": 2,
            },
        },
    }
    place = uri.netloc.rpartition("@")[2]
    if kind == "s3":
        # S3 copies without replacing only as a multipart upload that is completed on a condition.
        return S3Store(place, config={"copy_if_not_exists": "multipart", **config}, **options)  # type: ignore[arg-type]
    if kind == "gcs":
        return GCSStore(place, config=config, **options)  # type: ignore[arg-type]
    return AzureStore.from_url(f"{uri.scheme}://{uri.netloc}", config=config, **options)  # type: ignore[arg-type]


def _options(uri: SplitResult, shown: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The options of a URI: for the store, and for its connections."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {
        "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
        "read_timeout": f"{READ_TIMEOUT_S}s",
        "timeout": f"{REQUEST_TIMEOUT_S}s",
    }
    for key, value in parse_qsl(uri.query, keep_blank_values=True):
        name = _PYARROW_NAMES.get(key.lower(), key.lower())
        if name in _CLIENT_OPTIONS:
            client[name] = value
        elif name in config:
            raise ConfigError(f"storage location {shown!r}: the option {name!r} is given twice")
        else:
            config[name] = value
    if uri.scheme.lower() == "s3":
        if "@" in uri.netloc:
            key, _, secret = uri.netloc.rpartition("@")[0].partition(":")
            config |= {"access_key_id": unquote(key), "secret_access_key": unquote(secret)}
        if (scheme := config.pop("scheme", None)) and "://" not in config.get("endpoint", "://"):
            config["endpoint"] = f"{scheme}://{config['endpoint']}"
        if "endpoint" in config and "://" not in config["endpoint"]:
            config["endpoint"] = f"https://{config['endpoint']}"
    client["allow_http"] = str(client.get("allow_http", "")).lower() in _YES or any(
        os.environ.get(variable, "").lower() in _YES for variable in _HTTP_VARIABLES
    )
    return config, client


def _check_place(kind: str, uri: SplitResult, shown: str) -> None:
    """Refuse what would be read otherwise than it was meant: as a bucket and a path, and sent, when it is a secret."""
    user = f"{uri.netloc}{uri.path}".rpartition("@")[0]
    is_cut = kind != "azure" and ":" in user and "/" in user
    if uri.fragment or is_cut or (":" in uri.netloc and "@" not in uri.netloc):  # a bucket has no port
        raise ConfigError(
            f"storage location {shown!r}: a name or a secret in it holds characters that mean something in a URI; "
            f"write / as %2F, @ as %40, : as %3A, # as %23 and ? as %3F, or leave the secret to the environment"
        )


def _check_encryption(kind: str, config: dict[str, str], client: dict[str, Any], shown: str) -> None:
    variables = _ENDPOINT_VARIABLES.get(kind, ())
    endpoint = config.get("endpoint") or next(filter(None, map(os.environ.get, variables)), "")
    if endpoint.lower().startswith("http://") and not client["allow_http"]:
        raise ConfigError(
            f"storage location {shown!r}: the endpoint {endpoint.partition('?')[0]} is not encrypted; use https://, or "
            f"say allow_http=true among the options of the URI where the network can be trusted"
        )
