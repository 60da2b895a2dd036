"""The providers in their order, and the one place that decides.

    Login ──▶ room for one more? ──▶ basic ──SKIPPED──▶ x509 ──SKIPPED──▶ ... ──▶ nobody knew it: Denied
                     │ no               │ Granted or Denied: that is the answer
                     ▼                  ▼
               Denied SERVER_BUSY    type DEVICE if neither Basic nor X.509 is on

Whatever goes wrong denies: a time-out, a provider that raises, too many at once. With no provider authentication is off
and everybody is let in as a device; `try_now` answers that without waiting, so CONNECT of an open broker never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tbmq.auth.model import ALLOW_ALL, ClientType, Denied, Granted, Login, Principal, Provider, Skipped
from tbmq.protocol import ReasonCode

log = logging.getLogger(__name__)

ANONYMOUS = Granted(Principal("anonymous", ClientType.DEVICE, ALLOW_ALL))
_BUSY = Denied("too many logins are under way", ReasonCode.SERVER_BUSY, is_fault=True)
_UNKNOWN = Denied("no provider knows this client")


class Chain:
    """`max_under_way` and `timeout_s` bound what logins hold, whatever the providers do."""

    def __init__(self, providers: Sequence[Provider], max_under_way: int = 2_000, timeout_s: float = 10.0) -> None:
        self._providers = tuple(providers)
        self._max_under_way = max_under_way
        self._timeout_s = timeout_s
        self._under_way = 0
        self._answers: Counter[tuple[str, str]] = Counter()  # (provider, answer) -> times
        self._open = None if self._providers else ANONYMOUS
        # Only credentials that we keep ourselves make an application: it costs a topic of its own.
        self._may_be_application = any(provider.name in ("basic", "x509") for provider in self._providers)

    @property
    def names(self) -> set[str]:
        return {provider.name for provider in self._providers}

    def try_now(self, login: Login) -> Granted | None:
        """The answer if it needs no waiting, else None: call `authenticate` then."""
        return self._open

    async def authenticate(self, login: Login) -> Granted | Denied:
        """Never raises, but CancelledError."""
        if self._open is not None:
            return self._open
        if self._under_way >= self._max_under_way:
            self._answers["chain", "busy"] += 1
            return _BUSY
        self._under_way += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(login)
        except TimeoutError:
            self._answers["chain", "timeout"] += 1
            reason = f"the providers did not answer within {self._timeout_s:g} s"
            return Denied(reason, ReasonCode.SERVER_UNAVAILABLE, is_fault=True)
        finally:
            self._under_way -= 1

    async def _ask(self, login: Login) -> Granted | Denied:
        for provider in self._providers:
            try:
                answer = await provider.authenticate(login)
            except Exception as error:
                # The text of a foreign error may quote what the client sent; its kind and place cannot.
                log.error(
                    "client %r: the provider %s failed with %s at %s; the client is refused",
                    login.client_id,
                    provider.name,
                    type(error).__name__,
                    _place(error),
                )
                self._answers[provider.name, "error"] += 1
                reason = f"{provider.name} failed unexpectedly"
                return Denied(reason, ReasonCode.SERVER_UNAVAILABLE, is_fault=True)
            if isinstance(answer, Skipped):
                self._answers[provider.name, "skipped"] += 1
            elif isinstance(answer, Denied):
                self._answers[provider.name, "fault" if answer.is_fault else "denied"] += 1
                return answer
            else:
                self._answers[provider.name, "granted"] += 1
                return self._limited(answer)
        self._answers["chain", "unknown"] += 1
        return _UNKNOWN

    def _limited(self, answer: Granted) -> Granted:
        if self._may_be_application or answer.principal.client_type is ClientType.DEVICE:
            return answer
        return replace(answer, principal=replace(answer.principal, client_type=ClientType.DEVICE))

    def statistics(self) -> dict[str, dict[str, int]]:
        """Answers by provider: granted, denied, fault, skipped, error; those of `chain` were given without one."""
        by_provider: dict[str, dict[str, int]] = {"chain": {"under_way": self._under_way}}
        for (provider, answer), times in self._answers.items():
            by_provider.setdefault(provider, {})[answer] = times
        return by_provider

    async def close(self) -> None:
        """Closes all providers; what one of them raises is raised after the last."""
        results = await asyncio.gather(*(provider.close() for provider in self._providers), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _place(error: BaseException) -> str:
    """File and line where it was raised."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last is not None else "an unknown place"
