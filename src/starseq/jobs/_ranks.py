"""Several processes that do one job, as torchrun or SLURM start them: each does its blocks of rows, the first joins them.

What they share are files. Besides, each has a connection to the first: it is closed when a process ends, however it ends.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import signal
import socket
import struct
from contextlib import suppress
from datetime import timedelta
from functools import cache
from itertools import count
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any

from starseq.data.errors import DataError

__all__ = ["PartDone", "Ranks", "start"]

_READY, _DONE, _JOINED, _TOLD = b"r", b"d", b"j", b"t"
_HELLO = struct.Struct(">16sII")
"""the secret of this job, rank, process id"""
_CONNECT_SECONDS = 3600.0


class PartDone(Exception):
    """This process has done its part, and the first one has joined all of them."""


class Ranks:
    """This process, `index` of `count`, from 0 on. The first one has a connection to each of the others.

    A context: in it a process that the launcher stops says which other one had ended before. Without an error the first one
    tells the others at its end that all is joined.
    """

    def __init__(
        self, index: int = 0, count: int = 1, peers: dict[int, tuple[socket.socket, str]] | None = None
    ) -> None:
        self.index, self.count, self._peers = index, count, peers or {}
        self._begun, self._ends, self._pid = count == 1, False, os.getpid()
        self._before: Any = signal.SIG_DFL

    @property
    def first(self) -> bool:
        return self.index == 0

    def mine(self, number: int) -> bool:
        """Whether a block is this process's: they are dealt out in turn."""
        return number % self.count == self.index

    def begin(self) -> None:
        """The first says that what all of them need is there; the others wait for that."""
        if self.first:
            self._tell(_READY)
        elif not self._begun and self._hear(0) != _READY:
            raise SystemExit(1)  # the first has said why
        self._begun = True

    def finish(self) -> None:
        """All parts are done. In the others `PartDone`, when the first has joined them; in the first a `DataError` where one of
        them has ended early."""
        if not self.first:
            self._tell(_DONE)
            if self._hear(0) != _JOINED:
                raise SystemExit(self._lost([0]) if self.index == 1 else 1)
            raise PartDone
        waiting = {peer: index for index, (peer, _) in self._peers.items()}
        while waiting:
            for peer in select.select(list(waiting), [], [])[0]:
                index = waiting.pop(peer)
                if self._hear(index) != _DONE:
                    raise DataError(self._lost([index]))

    def __enter__(self) -> Ranks:
        if self.count > 1 and current_thread() is main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminated)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count == 1:
            return
        if kind is None and self.first:
            self._tell(_JOINED)
        # What is wrong before all begin is wrong in all of them: the first says it.
        silent = isinstance(error, Exception) and not self._begun and not self.first and self._hear(0) != _READY
        if current_thread() is main_thread() and not self._ends:
            signal.signal(signal.SIGTERM, self._before)
        for peer, _ in self._peers.values():
            peer.close()
        if silent:
            raise SystemExit(1) from None

    def _tell(self, word: bytes) -> None:
        for peer, _ in self._peers.values():
            with suppress(OSError):  # it has ended, which is found out where it matters
                peer.sendall(word)

    def _hear(self, index: int) -> bytes:
        """The next word of a process; nothing where it has ended."""
        try:
            return self._peers[index][0].recv(1)
        except OSError:
            return b""

    def _lost(self, indices: list[int]) -> str:
        self._ends = True
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, which could come before this is said
        names = " and ".join(f"process {index} of {self.count} ({self._peers[index][1]})" for index in indices)
        have = "has" if len(indices) == 1 else "have"
        return f"{names} {have} ended, and says why unless killed; the same command goes on where they stopped"

    def _terminated(self, *_: Any) -> None:
        """SIGTERM: the launcher stops all, for one of them has ended."""
        if os.getpid() != self._pid:  # a worker of this process, which has its handlers
            os._exit(143)
        silent = [index for index, (peer, _) in self._peers.items() if select.select([peer], [], [], 0)[0]]
        lost = [index for index in silent if not self._hear(index)]
        self._tell(_TOLD)
        raise SystemExit(f"starseq: {self._lost(lost)}" if lost and self.index < 2 else 143)


def start() -> Ranks:
    """The processes of this job, if torchrun or srun has started several; else this one alone."""
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    rank, size = ("RANK", "WORLD_SIZE") if under_torchrun else ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    index, several = int(os.environ.get(rank) or 0), int(os.environ.get(size) or 1)
    if several == 1:
        return Ranks()
    host, store = _store(index)
    job = f"starseq-{next(_jobs)}"
    if index:
        secret, port = store.get(job)[:16], int(store.get(job)[16:])
        first = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
        first.settimeout(None)
        first.sendall(_HELLO.pack(secret, index, os.getpid()))
        return Ranks(index, several, {0: (first, f"on {first.getpeername()[0]}")})
    secret = secrets.token_bytes(16)
    with _listening(host) as server:
        store.set(job, secret + str(server.getsockname()[1]).encode())
        return Ranks(index, several, _met(server, secret, several))


_jobs = count()
"""of this process, one after the other"""


@cache
def _store(index: int) -> tuple[str, Any]:
    """The address of the first process, and the store through which torch's processes meet, as in training."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    else:
        from lightning_fabric.plugins.environments import SLURMEnvironment  # type: ignore[attr-defined]

        host, port = SLURMEnvironment().main_address, SLURMEnvironment().main_port
    is_master = index == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    patience = timedelta(seconds=_CONNECT_SECONDS)
    store = TCPStore(host, port, is_master=is_master, timeout=patience, wait_for_workers=False)
    return host, PrefixStore(f"attempt {environment.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _listening(host: str) -> socket.socket:
    """Where the others find this process: at the address that the launcher has given them, if that is one of this machine."""
    for address in (host, ""):
        with suppress(OSError):
            family = socket.getaddrinfo(address or "0.0.0.0", 0, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((address, 0), family=family)
    raise DataError("no port is free for the other processes of this job to connect to")


def _met(server: socket.socket, secret: bytes, count: int) -> dict[int, tuple[socket.socket, str]]:
    """The connections of all others. Whoever does not know the secret is none of them."""
    server.settimeout(_CONNECT_SECONDS)
    peers: dict[int, tuple[socket.socket, str]] = {}
    while len(peers) < count - 1:
        peer, (address, *_) = server.accept()
        hello = b""
        peer.settimeout(_CONNECT_SECONDS)
        with suppress(OSError):
            hello = peer.recv(_HELLO.size, socket.MSG_WAITALL)
        if len(hello) == _HELLO.size and hmac.compare_digest(hello[:16], secret):
            _, index, process = _HELLO.unpack(hello)
            peer.settimeout(None)
            peers[index] = (peer, f"process id {process} on {address}")
        else:
            peer.close()
    return dict(sorted(peers.items()))
