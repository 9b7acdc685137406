"""Sockets under gRPC's hands: whether a port is free, and the last resort against a peer that is frozen or gone.

Comes in: the ends of a connection. Goes out: nothing; whoever uses a connection that was cut
finds it over. Flight gives a server no way to end one call, and a writer that waits for room
in the socket is not freed by cancelling its call.
"""

from __future__ import annotations

import os
import socket


def resolved(host: str | None) -> str | None:
    """A host's address, while names can be resolved: a network that swallows everything swallows that, too."""
    try:
        return socket.gethostbyname(host) if host else None
    except OSError:
        return None


def is_free(host: str, port: int) -> bool:
    """Whether one could listen there now: gRPC complains loudly when it tries in vain."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def cut_sockets(
    *, local_port: int | None = None, remote_port: int | None = None, remote_address: str | None = None
) -> int:
    """Shut down this process's sockets with these ends; how many there were."""
    cut = 0
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        try:
            copy = os.dup(int(name))  # the copy cannot change under our hands, whatever gRPC does to its own
        except OSError:
            continue
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with found:
            try:
                here, there = found.getsockname(), found.getpeername()
                matches = (
                    (local_port is None or here[1] == local_port)
                    and (remote_port is None or there[1] == remote_port)
                    and (remote_address is None or there[0].endswith(remote_address))
                )
                if matches:
                    found.shutdown(socket.SHUT_RDWR)
                    cut += 1
            except (OSError, TypeError, IndexError):
                continue
    return cut
