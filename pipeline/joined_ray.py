"""A Ray cluster that runs already, joined."""

from __future__ import annotations

import re
import socket

import ray

from configs.errors import ConfigError

CONNECT_S = 10.0
_HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>[^/:]+|\[[^]]+\]):(?P<port>\d+)")


def join(address: str) -> None:
    """Connect to a cluster: `auto`, `host:port`, `ray://host:port`; `ray.shutdown` leaves it.

    Raises:
        ConfigError: there is none, or it does not take us.
    """
    _refuse_silence(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"cluster.address {address}: {error}; correct it, or set it to local; a cluster that asks for a token "
            "wants RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from error


def _refuse_silence(address: str) -> None:
    """Ray itself would try for minutes."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        return
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"cluster.address {address}: nobody answers there ({error}); start the cluster, correct the address, "
            "or set it to local"
        ) from error
