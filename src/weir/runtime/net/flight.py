"""Connections over Arrow Flight: one DoExchange call each, every frame an app_metadata.

Comes in: a host to listen on or an address to connect to, the job's token, and a
hello that says who calls. Goes out: `Connection`s. Never looks into application
frames. Every call, of any kind, must carry the token; it is never logged. With an identity
(certificates.py) both sides prove who they are first: nobody else gets as far as a call.
"""

from __future__ import annotations

import atexit
import hmac
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from weir.errors import TaskLost, Unavailable
from weir.runtime.net.certificates import Identity, Role
from weir.runtime.net.connection import LEAVE_TIMEOUT_S, Connection, describe
from weir.runtime.net.lines import Lines
from weir.runtime.net.sockets import cut_sockets, is_free, resolved
from weir.runtime.secret import Secret

_LOG = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
"""How long the first answer of a server may take."""

_CLIENT_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
"""Tasks talk to each other, never through a proxy; and each connection has a socket of its own."""


class Refused(Exception):
    """Raised by `on_connect` to turn a caller away; the text reaches the caller."""


@dataclass(frozen=True)
class Handlers:
    """What to do with the frames of a connection, and at its end (see Connection). Called by its reading thread."""

    on_frame: Callable[[pa.Buffer], None]
    on_close: Callable[[str | None], None]


def call_options(token: Secret, timeout_s: float | None = None) -> Any:
    """The options that every call must carry."""
    return flight.FlightCallOptions(
        timeout=timeout_s, headers=[(b"authorization", f"Bearer {token.reveal()}".encode())]
    )


def client_of(
    address: str,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    *,
    identity: Identity | None = None,
    to: Role = Role.DRIVER,
) -> Any:
    """A Flight client. With an identity, only a server of the role `to` is believed."""
    # By this name gRPC knows how long one attempt to connect may take; it bears 20 s by itself.
    options = [*_CLIENT_OPTIONS, ("grpc.min_reconnect_backoff_ms", round(connect_timeout_s * 1_000))]
    if identity is None:
        return flight.FlightClient(address, generic_options=options)
    return flight.FlightClient(
        address,
        generic_options=options,
        tls_root_certs=identity.authority.encode(),
        cert_chain=identity.certificate.encode(),
        private_key=identity.key.reveal().encode(),
        override_hostname=to.value,
    )


# --- the listening side ---------------------------------------------------------------------------------


class FrameServer:
    """Listens on one host, at the first free port of those that it may take.

    on_connect: is given the caller's hello and the new connection, and returns its handlers or raises
                Refused. It may send at once. It is called by a thread of the server's.

    Nothing but such streams is taken: gRPC would take the message of any other call in as a whole, however large,
    before its token can be checked.
    """

    def __init__(
        self,
        host: str,
        lines: Lines,
        on_connect: Callable[[Mapping[str, Any], Connection], Handlers],
        *,
        frames_max: int | None = None,
    ) -> None:
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._lines = lines
        self._on_connect = on_connect
        self._frames_max = frames_max
        self._closed = False
        self._server = _listening(host, lines, self._serve)
        self.port: int = self._server.port
        self.address = _location(host, self.port, lines)
        # A server that still has calls when the interpreter takes it down would wait for them without a limit.
        self._process_id = os.getpid()
        atexit.register(self._close_at_exit)

    def close(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Say goodbye to all, stop listening, and wait for the end; who does not answer in time is cut off."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = list(self._connections)
        atexit.unregister(self._close_at_exit)
        for connection in connections:
            connection.leave()
        # Flight's shutdown waits without a limit for running calls: hence its own thread, and the cut.
        stopping = threading.Thread(target=self._server.shutdown, name=f"weir-stop-{self.port}", daemon=True)
        stopping.start()
        stopping.join(timeout_s)
        if stopping.is_alive():
            cut_sockets(local_port=self.port)
            stopping.join(timeout_s)
        if stopping.is_alive():
            _LOG.warning("the server at %s still has calls that do not end", self.address)

    def _close_at_exit(self) -> None:
        if os.getpid() == self._process_id:  # a forked child has inherited the handler, but not the server's threads
            self.close(0.2)

    def _serve(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One connection, from hello to end, in a thread of the server's."""
        peer_port = int(unquote(context.peer()).rsplit(":", 1)[-1])
        connection = Connection(
            f"{self.port}-{peer_port}",
            write=writer.write_metadata,
            cut=partial(cut_sockets, local_port=self.port, remote_port=peer_port),
            frames_max=self._frames_max,
            ping_interval_s=self._lines.ping_interval_s,
            timeout_s=self._lines.timeout_s,
        )
        handlers = Handlers(on_frame=_nothing_with, on_close=_nothing_with)
        refusal: str | None = None
        with self._lock:
            if self._closed:
                refusal = "the server is closing"
            self._connections.add(connection)
        try:
            if refusal is None:
                handlers = self._on_connect(json.loads(descriptor.command), connection)
                connection.welcome(peer_port)
        except Refused as error:
            refusal = str(error)
        except Exception as error:
            _LOG.exception("a caller's hello could not be handled")
            refusal = f"the hello was not understood: {describe(error)}"

        def read() -> pa.Buffer | None:
            # A caller ends its side by its goodbye alone. Flight's own way, done_writing, is also called by the thread
            # that reads, when the stream breaks; and gRPC aborts the process when both happen at once.
            return None if refusal is not None or connection.parted else _next_frame(reader)

        try:
            connection.run(read, on_frame=handlers.on_frame, on_close=handlers.on_close)
        finally:
            with self._lock:
                self._connections.discard(connection)
        if refusal is not None:
            raise flight.FlightUnauthorizedError(f"refused: {refusal}")


def _listening(host: str, lines: Lines, serve: Callable[[Any, Any, Any, Any], None]) -> _Server:
    for port in lines.ports:
        if port == 0 or is_free(host, port):
            try:
                return _Server(_location(host, port, lines), lines, serve)
            except pa.ArrowException:
                if port == 0:
                    raise  # otherwise somebody was faster
    raise Unavailable(
        f"none of the ports {lines.ports[0]} to {lines.ports[-1]} of {host} is free; give a wider range "
        "(Settings.driver_ports, Settings.task_ports)"
    )


def _location(host: str, port: int, lines: Lines) -> str:
    scheme = "grpc" if lines.identity is None else "grpc+tls"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, lines: Lines, serve: Callable[[Any, Any, Any, Any], None]) -> None:
        self._serve_connection = serve
        self._identity = lines.identity
        security: dict[str, Any] = {}
        if lines.identity is not None:
            security = {
                "tls_certificates": [(lines.identity.certificate, lines.identity.key.reveal())],
                "root_certificates": lines.identity.authority,
                "verify_client": True,
            }
        super().__init__(location, middleware={"token": _TokenCheck(lines.token)}, **security)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        # Only tasks call; the driver waits to be called.
        if self._identity is not None and context.peer_identity() != Role.TASK.value.encode():
            raise flight.FlightUnauthorizedError(f"refused: {context.peer_identity()!r} is not {Role.TASK.value}")
        self._serve_connection(context, descriptor, reader, writer)


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Turns away every call, of whatever kind, that does not carry the job's token."""

    def __init__(self, token: Secret) -> None:
        super().__init__()
        self._expected = f"Bearer {token.reveal()}".encode()

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> None:
        found = [
            value.encode() for name, values in headers.items() if name.lower() == "authorization" for value in values
        ]
        if len(found) != 1 or not hmac.compare_digest(found[0], self._expected):
            _LOG.warning("a call was refused: its token is %s (%s)", "wrong" if found else "missing", info.method)
            raise flight.FlightUnauthenticatedError("this call does not carry the token of the job")


# --- the calling side -----------------------------------------------------------------------------------


def connect(
    address: str,
    lines: Lines,
    hello: Mapping[str, Any],
    *,
    to: Role = Role.DRIVER,
    on_frame: Callable[[pa.Buffer], None],
    on_close: Callable[[str | None], None],
    frames_max: int | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Connection:
    """Connect to a process of the role `to` and wait until it has accepted. TaskLost when it refuses, or is not there;
    then `on_close` is not called."""
    client = client_of(address, timeout_s, identity=lines.identity, to=to)
    try:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(hello).encode())
        writer, reader = client.do_exchange(descriptor, call_options(lines.token))
    except Exception as error:
        client.close()
        raise TaskLost(f"cannot connect to {address}: {describe(error)}") from None

    cut_socket = _cutter(address)

    def cut() -> None:
        reader.cancel()
        if connection.own_port is not None:  # otherwise too little was written for a writer to be stuck
            cut_socket(connection.own_port)

    connection = Connection(
        address.rsplit(":", 1)[-1],
        write=writer.write_metadata,
        cut=cut,
        frames_max=frames_max,
        ping_interval_s=lines.ping_interval_s,
        timeout_s=lines.timeout_s,
    )
    refusals: list[str | None] = []

    def end(reason: str | None) -> None:
        _let_go(address, reader.cancel, writer.close, client.close)
        if connection.welcomed.is_set():
            on_close(reason)
        else:
            refusals.append(reason)
            connection.welcomed.set()

    threading.Thread(
        target=connection.run,
        args=(lambda: _next_frame(reader),),
        kwargs={"on_frame": on_frame, "on_close": end},
        name=f"weir-read-{connection.name}",
        daemon=True,
    ).start()
    if not connection.welcomed.wait(timeout_s):
        connection.close(0.1)
        raise TaskLost(f"cannot connect to {address}: no answer within {timeout_s:g} s")
    if refusals:
        connection.ended.wait(LEAVE_TIMEOUT_S)
        raise TaskLost(f"cannot connect to {address}: {refusals[0] or 'it left at once'}")
    return connection


def _cutter(address: str) -> Callable[[int], None]:
    """What cuts this process's socket to an address. The host is looked up now."""
    place = urlsplit(address)
    there: dict[str, Any] = {"remote_port": place.port, "remote_address": resolved(place.hostname)}

    def cut(own_port: int) -> None:
        # Its own socket only, of those that this process has to the same server; behind a proxy nobody knows which.
        if not cut_sockets(local_port=own_port, **there):
            cut_sockets(**there)

    return cut


def _let_go(address: str, *steps: Callable[[], None]) -> None:
    for step in steps:
        try:
            step()
        except Exception as error:  # the stream is over; why, the reader has said
            _LOG.debug("while leaving %s: %s", address, describe(error))


def _next_frame(reader: Any) -> pa.Buffer | None:
    try:
        return reader.read_chunk().app_metadata
    except StopIteration:
        return None


def _nothing_with(_: Any) -> None:
    return None
