"""The volumes of the cluster. Each is on one host, and sandboxes that mount it run there."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence

from sandyard.engine.contract import Driver, FileEntry, FileOwner, FileReader, VolumeFiles
from sandyard.engine.drivers.cluster.link import HostLink
from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostState, Origins, make_volume_name
from sandyard.engine.drivers.cluster.placement import MIB, Reserves
from sandyard.engine.drivers.cluster.volume_files import RemoteVolumeFiles
from sandyard.kit.errors import ConflictError, FullError, NotFoundError, SandyardError


class ClusterVolumes:
    """Creates, finds and deletes volumes. `origins` has the hosts of volumes; one that is not in it is on the engine's own
    machine. New volumes are created there as long as it has room, so that a sandbox can mount several of them."""

    def __init__(
        self, local: Driver, links: Mapping[str, HostLink], origins: Origins, reserves: Reserves, *, use_local: bool
    ) -> None:
        self._local = local
        self._links = links
        self._origins = origins
        self._reserves = reserves
        self._use_local = use_local

    async def create(self, volume_id: str, size_mb: int) -> None:
        link = self._find_link(volume_id)
        if link is None and self._use_local and not self._is_local_full():
            await self._local.create_volume(volume_id, size_mb)
            return
        if link is None:
            link = self._choose_link()
        self._origins.record(make_volume_name(volume_id), link.record.id)
        await link.call("create_volume", volume=volume_id, size_mb=size_mb)

    def _is_local_full(self) -> bool:
        """Return whether new volumes should be created on another host."""
        room = self._local.get_room()
        is_disk_low = room.disk_free is not None and room.disk_free < self._reserves.disk_mb * MIB
        return bool(self._links) and (room.full is not None or is_disk_low)

    def _choose_link(self) -> HostLink:
        ready = [
            link
            for link in self._links.values()
            if link.state is HostState.READY
            and link.room is not None
            and not link.record.draining
            and not link.room.full
        ]
        if not ready:
            raise FullError("Could not create the volume: no host has room for it. See `sandyard host list`.")
        return max(ready, key=lambda link: (link.room.disk_free or 0) if link.room is not None else 0)

    async def delete(self, volume_id: str) -> None:
        link = self._find_link(volume_id)
        if link is not None:
            await link.call("delete_volume", volume=volume_id)
        else:
            await self._local.delete_volume(volume_id)
        self._origins.forget(make_volume_name(volume_id))

    def get_files(self, volume_id: str) -> VolumeFiles:
        if not self._links:
            return self._local.get_volume_files(volume_id)
        return _LocatedFiles(self, volume_id)

    def locate(self, volume_id: str) -> VolumeFiles:
        """Return the files of a volume on its host."""
        link = self._find_link(volume_id)
        return self._local.get_volume_files(volume_id) if link is None else RemoteVolumeFiles(link, volume_id)

    async def find_host(self, volume_ids: Sequence[str]) -> str | None:
        """Return the host that has all of these volumes, or None for an empty list. Raises NotFoundError, and ConflictError if
        they are on different hosts."""
        hosts: dict[str, str] = {}
        for volume_id in volume_ids:
            link = self._find_link(volume_id)
            if link is None and not await self._is_local(volume_id):
                raise NotFoundError(f"Volume {volume_id} not found.")
            hosts[volume_id] = LOCAL_HOST_ID if link is None else link.record.id
        if len(set(hosts.values())) > 1:
            raise ConflictError(
                "The volumes of a sandbox must be on the same host, and these are on different ones. Copy the files of one of "
                "them to a new volume."
            )
        return next(iter(hosts.values()), None)

    def _find_link(self, volume_id: str) -> HostLink | None:
        """Return the host of a volume, None for this machine. A host that was removed has taken its volumes with it."""
        return self._links.get(self._origins.find_host(make_volume_name(volume_id)) or "")

    async def _is_local(self, volume_id: str) -> bool:
        try:
            await self._local.get_volume_files(volume_id).stat("/")
        except NotFoundError:
            return False
        except SandyardError:
            return True  # not known to be missing
        return True


class _LocatedFiles:
    """The files of a volume. Each operation looks up the volume's host."""

    def __init__(self, volumes: ClusterVolumes, volume_id: str) -> None:
        self._volumes = volumes
        self._volume_id = volume_id

    def _locate(self) -> VolumeFiles:
        return self._volumes.locate(self._volume_id)

    async def stat(self, path: str) -> FileEntry:
        return await self._locate().stat(path)

    async def list(self, path: str, depth: int = 1) -> Sequence[FileEntry]:
        return await self._locate().list(path, depth)

    async def make_dir(self, path: str, owner: FileOwner, *, force: bool) -> FileEntry:
        return await self._locate().make_dir(path, owner, force=force)

    async def change(self, path: str, owner: FileOwner) -> FileEntry:
        return await self._locate().change(path, owner)

    async def remove(self, path: str) -> None:
        await self._locate().remove(path)

    async def open(self, path: str) -> FileReader:
        return await self._locate().open(path)

    async def write(
        self, path: str, chunks: AsyncIterable[bytes], owner: FileOwner, *, force: bool, reserve: int = 0
    ) -> FileEntry:
        return await self._locate().write(path, chunks, owner, force=force, reserve=reserve)
