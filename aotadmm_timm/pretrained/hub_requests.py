"""Requests to the Hub: what is said to them as errors of ours, and a limit to its silence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import URLError

import huggingface_hub.utils._http as http
from huggingface_hub import set_client_factory
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from aotadmm_timm.errors import ModelNotFound, Unreachable


class Silence(Exception):
    """No byte came, or could be sent, for as long as was allowed. Not among the errors that requests are retried on."""


@contextmanager
def limited_silence(seconds: float) -> Iterator[None]:
    """Requests of huggingface_hub end in `Silence` after so many seconds without a byte, instead of being retried."""
    make_client = http._GLOBAL_CLIENT_FACTORY  # whatever the user has set: it may know of a proxy or of certificates

    def factory() -> Any:
        client: Any = make_client()
        send, library = client.send, http.__dict__.get("httpx2") or http.__dict__["httpx"]

        def limited(request: Any, **options: Any) -> Any:
            given = request.extensions.get("timeout", {})
            phases = ("connect", "read", "write", "pool")
            request.extensions["timeout"] = {phase: min(given.get(phase) or seconds, seconds) for phase in phases}
            try:
                return send(request, **options)
            except library.TimeoutException as err:
                raise Silence(f"{request.url.host} was silent for {seconds:g} s") from err

        client.send = limited
        return client

    set_client_factory(factory)
    try:
        yield
    finally:
        set_client_factory(make_client)


@contextmanager
def hub_refusals(name: str) -> Iterator[None]:
    """What huggingface_hub and a server say to `name`, as ModelNotFound or Unreachable."""
    try:
        yield
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, ConnectionError, TimeoutError, URLError) as err:
        raise Unreachable(f"{name}: {_line(err)}") from err
    except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError) as err:
        raise ModelNotFound(f"{name}: {_line(err)}") from err
    except HfHubHTTPError as err:
        raise Unreachable(f"{name}: {_line(err)}") from err


def _line(err: BaseException) -> str:
    return next(iter(str(err).splitlines()), "") or type(err).__name__
