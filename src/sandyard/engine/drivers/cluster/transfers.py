"""Transfers of layers between hosts, through the engine: each host fetches a layer once, and all who need it wait for that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from sandyard.engine.contract import Layers
from sandyard.engine.drivers.cluster.connections import explain_failure, read_message
from sandyard.engine.drivers.cluster.layers import CHUNK_BYTES, LayerCopies, LayerPackage
from sandyard.engine.drivers.cluster.link import HostLink
from sandyard.engine.drivers.cluster.model import HostState, Origins
from sandyard.engine.drivers.layer_names import SNAPSHOT, make_layer_name
from sandyard.kit.errors import NotFoundError, SandyardError, UnreachableError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

CHUNK_S = 60.0
"""How long a host may send or accept nothing during a transfer."""
SLOWEST_BYTES_PER_SECOND = 64 * 1024
UNPACK_S = 1800.0
"""How long a host may take to check and unpack a layer that it has received."""


class LayerTransfers:
    """Copies layers. `copies` are the layers of this machine, `links` the other hosts. None stands for this machine.

    A layer is fetched from this machine or from the host that made it. Others only give what that host would: another one
    cannot put its files under a sandbox that does not run there."""

    def __init__(self, copies: LayerCopies, links: Mapping[str, HostLink], origins: Origins) -> None:
        self._copies = copies
        self._links = links
        self._origins = origins
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._started_at: dict[tuple[str, str], float] = {}
        self._tasks = TaskSet("layers")

    async def close(self) -> None:
        await self._tasks.cancel()

    async def copy(self, layer: str, target: HostLink | None) -> None:
        """Copy a layer to a host. The transfer goes on if the caller is cancelled. Raises NotFoundError, UnreachableError,
        NoSpaceError, or InvalidInputError if it is damaged."""
        key = _make_key(layer, target)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = self._tasks.spawn(self._copy(layer, target))
            self._started_at[key] = time.monotonic()
            task.add_done_callback(lambda _: (self._running.pop(key, None), self._started_at.pop(key, None)))
        await asyncio.shield(task)

    def get_age(self, layer: str, target: HostLink | None) -> float:
        """Return for how many seconds the layer is being copied to this host; 0 if it is not."""
        started_at = self._started_at.get(_make_key(layer, target))
        return 0.0 if started_at is None else time.monotonic() - started_at

    def prefetch(self, layers: Layers, target: HostLink) -> None:
        """Copy layers to a host in the background, lowest first, so that it can have sandboxes that need them."""

        async def copy_all() -> None:
            for layer in reversed(layers):
                if layer not in target.layers:
                    await self.copy(layer, target)

        key = (",".join(layers), target.record.id)
        if key not in self._running:
            task = self._running[key] = self._tasks.spawn(copy_all())
            task.add_done_callback(lambda _: self._running.pop(key, None))

    def forget_snapshot(self, link: HostLink, snapshot_id: str) -> None:
        """Forget that a host has a snapshot."""
        link.layers.discard(make_layer_name(SNAPSHOT, snapshot_id))

    async def _copy(self, layer: str, target: HostLink | None) -> None:
        if self._copies.has(layer):
            package = await self._copies.pack(layer)
            self._origins.record_content(layer, package.diff_id)
            async with self._copies.open(layer) as chunks:
                await self._send(layer, package, chunks, target)
            return
        source = await self._find_source(layer, target)
        answer = await source.call("pack_layer", layer=layer)
        with source.translate_parse_errors():
            package = LayerPackage.from_dict(answer)
            if self._origins.find_content(layer) not in (None, package.diff_id):
                raise ValueError(f"the layer {layer} has other files than it had before")
        self._origins.record_content(layer, package.diff_id)
        async with _read_layer(layer, package, source) as chunks:
            await self._send(layer, package, chunks, target)

    async def _send(
        self, layer: str, package: LayerPackage, chunks: AsyncIterator[bytes], target: HostLink | None
    ) -> None:
        if target is None:
            await self._copies.add(layer, package, chunks)
            return
        connection, _ = await target.open_stream("receive_layer", layer=layer, package=package.to_dict())
        reader, writer = connection.make_streams()
        try:
            with contextlib.suppress(ConnectionError):  # the host has found an error and says which
                async for chunk in chunks:
                    writer.write(chunk)
                    async with asyncio.timeout(CHUNK_S):
                        await writer.drain()
            async with asyncio.timeout(UNPACK_S):
                await read_message(reader)
        except TimeoutError:
            raise UnreachableError(f"The host {target.record.name} has not stored the layer {layer}.") from None
        finally:
            writer.close()
        target.layers.add(layer)
        log.info("layer_sent", layer=layer, host=target.record.id, bytes=package.size)

    async def _find_source(self, layer: str, target: HostLink | None) -> HostLink:
        """Return a host that has the layer."""
        made_by = self._origins.find_host(layer)
        is_known = self._origins.find_content(layer) is not None
        possible = [
            link for link in self._links.values() if link is not target and (is_known or link.record.id == made_by)
        ]
        possible.sort(key=lambda link: link.record.id != made_by)
        ready = [link for link in possible if link.state is HostState.READY]
        for link in ready:
            if layer in link.layers:
                return link
        for link in ready:
            with contextlib.suppress(SandyardError, TimeoutError):
                async with asyncio.timeout(CHUNK_S):
                    found = await link.call("has_layers", layers=[layer])
                if found:
                    link.layers.add(layer)
                    return link
        away = [link.record.name for link in possible if link.state is not HostState.READY and not link.record.lost]
        if away:
            raise UnreachableError(
                f"The layer {layer} is on none of the hosts that can be reached. Away: {', '.join(away[:10])}."
            )
        lost = [link.record.name for link in possible if link.state is not HostState.READY]
        if lost:
            raise NotFoundError(f"The layer {layer} was only on hosts that are lost: {', '.join(lost[:10])}.")
        raise NotFoundError(f"The layer {layer} is on no host.")


def _make_key(layer: str, target: HostLink | None) -> tuple[str, str]:
    return layer, target.record.id if target is not None else ""


@asynccontextmanager
async def _read_layer(layer: str, package: LayerPackage, source: HostLink) -> AsyncIterator[AsyncIterator[bytes]]:
    """Provide the bytes of a layer that a host has packed."""
    connection, _ = await source.open_stream("send_layer", layer=layer)
    reader, writer = connection.make_streams()

    async def read() -> AsyncIterator[bytes]:
        left, loop = package.size, asyncio.get_running_loop()
        started_at = loop.time()
        while left:
            due_at = started_at + CHUNK_S + (package.size - left) / SLOWEST_BYTES_PER_SECOND
            try:
                async with asyncio.timeout_at(min(due_at, loop.time() + CHUNK_S)):
                    chunk = await reader.read(min(left, CHUNK_BYTES))
            except OSError as error:  # also if it takes too long
                raise UnreachableError(f"The host {source.record.name}: {explain_failure(error)}.") from error
            if not chunk:
                raise UnreachableError(f"The host {source.record.name} ended the transfer of the layer {layer}.")
            left -= len(chunk)
            yield chunk

    try:
        yield read()
    finally:
        writer.close()
