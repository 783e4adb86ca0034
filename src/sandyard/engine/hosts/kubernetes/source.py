"""The nodes of a Kubernetes cluster as machines for hosts: those on which a DaemonSet runs a pod with the host service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.kubernetes.api_server import ApiServer, ExpiredVersionError
from sandyard.engine.hosts.kubernetes.pods import LABEL, HostPod, parse_pod
from sandyard.engine.hosts.machines import (
    EFFECT_OF_AWAY_CLUSTER,
    Claim,
    ListedSource,
    Machine,
    NotJoinedError,
    TokenOffer,
)
from sandyard.kit.errors import BusyError, SandyardError, UnauthenticatedError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

NAME = "kubernetes"
AUDIENCE = "sandyard"
"""The audience of the pods' tokens, so that the API server does not accept these, and the engine no others."""
ACCOUNT = "sandyard-host"
"""The service account of the pods, in deploy/kubernetes."""
CONFIG_MAP = "sandyard-engine"
"""Where pods read the address and the fingerprint of the engine, in deploy/kubernetes."""
POD_UID = "authentication.kubernetes.io/pod-uid"
CLAIM_S = 10.0
"""How long a running pod may take to ask for its join token before that is shown as a problem."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 15.0


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """`address` is the ADDRESS:PORT at which hosts join, and `fingerprint` that of the engine's authority for hosts."""

    url: str
    credentials: Path
    address: str
    fingerprint: str


class KubernetesMachines(ListedSource):
    """Implements `ClaimedSource`. Call `open` first, and `close` at the end."""

    name = NAME

    def __init__(self, options: KubernetesOptions, is_host: Callable[[str, Machine], bool]) -> None:
        """`is_host` returns whether the host with this id is registered for a machine. Raises InvalidInputError if the
        credentials are incomplete. Blocks."""
        super().__init__("The API server has not answered yet.")
        self._options = options
        self._is_host = is_host
        self._server = ApiServer(options.url, options.credentials)
        self._pods: dict[str, HostPod] = {}
        self._offers: dict[str, JoinToken] = {}  # by the pod that may join with it
        self._claimed: dict[str, asyncio.Event] = {}  # set when the pod has got its offer
        self._unknown: set[str] = set()  # pods that have asked for a token and are no host yet
        self._reports: dict[str, str] = {}  # why a pod could not join
        self._tasks = TaskSet("kubernetes")

    def open(self) -> None:
        """Begin to follow the pods."""
        self._tasks.spawn(self._stay_connected())

    async def close(self) -> None:
        """Stop following the pods, which keep running."""
        await self._tasks.cancel()
        await self._server.close()

    async def start(self, machine: Machine, token: JoinToken | None) -> None:
        """Offer the token to the pod, whose node runs it. If the pod has ended, delete it: the DaemonSet then creates another one."""
        pod = self._pods.get(machine.id)
        if pod is None:
            raise BusyError("The pod no longer exists.")
        if pod.has_ended:
            await self._server.delete_pod(pod.name, machine.id)
            raise SandyardError(f"{pod.problem} It was deleted, so that the DaemonSet creates another one.")
        if token is not None and self._offers.get(machine.id) != token:
            self._offers[machine.id], self._claimed[machine.id] = token, asyncio.Event()
        if pod.problem is not None:
            raise SandyardError(pod.problem)
        if token is None:
            if machine.id in self._unknown:
                raise NotJoinedError
            return
        try:
            async with asyncio.timeout(CLAIM_S):
                await self._claimed[machine.id].wait()
        except TimeoutError:
            raise SandyardError(
                f"The pod {pod.name} runs, but has not asked for its join token: see `kubectl logs {pod.name}`."
            ) from None
        if machine.id in self._reports:
            raise SandyardError(f"The pod {pod.name} could not join: {self._reports[machine.id]}")

    async def claim(self, claim: Claim) -> TokenOffer:
        user = await self._server.review_token(claim.credential.reveal(), AUDIENCE)
        uid = _find_pod(user, self._server.namespace)
        if uid is None:
            log.warning("claim_refused", source=NAME)
            raise UnauthenticatedError("This is not the token of a pod of the host service.")
        pod = self._pods.get(uid)
        if pod is None:
            raise BusyError("The engine does not know this pod yet. Try again.")
        machine = pod.machine
        if claim.host_id is not None and self._is_host(claim.host_id, machine):
            self._forget_claim(uid)
            return TokenOffer(machine.name, machine.address)
        self._unknown.add(uid)
        if claim.problem is not None:
            self._reports[uid] = claim.problem
        offer = self._offers.get(uid)
        if offer is None:
            raise BusyError("The engine has no join token for this pod yet. Try again.")
        self._claimed[uid].set()
        return TokenOffer(machine.name, machine.address, offer)

    def _forget_claim(self, uid: str) -> None:
        self._unknown.discard(uid)
        for kept in (self._offers, self._claimed, self._reports):
            kept.pop(uid, None)

    async def _stay_connected(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._server.set_config_map(
                    CONFIG_MAP, {"address": self._options.address, "fingerprint": self._options.fingerprint}
                )
                version = await self._list_pods()
                if self._set_problem(None):
                    log.info("kubernetes_connected", url=self._options.url)
                retry_s = FIRST_RETRY_S
                await self._watch_pods(version)
            except ExpiredVersionError:
                continue
            except SandyardError as error:
                problem = f"Kubernetes at {self._options.url} cannot be used: {error.message} {EFFECT_OF_AWAY_CLUSTER}"
                if self._set_problem(problem):
                    log.warning("kubernetes_unreachable", url=self._options.url, reason=problem)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _list_pods(self) -> str:
        """Replace the pods by those that exist now, and return the version of the list."""
        found, version = await self._server.list_pods(LABEL)
        self._pods = {pod.machine.id: pod for pod in map(parse_pod, found) if pod is not None}
        self._update()
        return version

    async def _watch_pods(self, version: str) -> None:
        """Follow the changes since a version. Raises ExpiredVersionError if the pods have to be listed again."""
        while True:
            async for kind, pod in self._server.watch_pods(LABEL, version):
                metadata = pod.get("metadata") or {}
                version = str(metadata.get("resourceVersion") or version)
                if kind == "BOOKMARK":
                    continue
                parsed = parse_pod(pod) if kind != "DELETED" else None
                if parsed is not None:
                    self._pods[parsed.machine.id] = parsed
                else:
                    self._pods.pop(str(metadata.get("uid")), None)
                self._update()

    def _update(self) -> None:
        for uid in {*self._offers, *self._unknown} - set(self._pods):
            self._forget_claim(uid)
        self._machines.replace([pod.machine for pod in self._pods.values()])


def _find_pod(user: Mapping[str, Any] | None, namespace: str) -> str | None:
    """Return the id of the pod that a token is bound to, if it is one of the host service."""
    if user is None or user.get("username") != f"system:serviceaccount:{namespace}:{ACCOUNT}":
        return None
    found = (user.get("extra") or {}).get(POD_UID) or []
    return str(found[0]) if len(found) == 1 else None
