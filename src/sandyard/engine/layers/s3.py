"""A layer store in S3, or in any server with its protocol. Needs boto3: `pip install sandyard[s3]`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from sandyard.engine.layers.store import (
    MAX_DOCUMENT_BYTES,
    S3_PREFIX,
    AccessDeniedError,
    S3Options,
    StoredObject,
    StoreFullError,
    check_size,
)
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError, UnreachableError, UnsupportedError
from sandyard.kit.tasks import run_uninterrupted

try:
    import boto3
    from boto3.exceptions import Boto3Error
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
except ImportError as error:  # pragma: no cover - the development environment has it
    raise UnsupportedError(
        "A layer store in S3 needs the package boto3, which is not installed. Run `pip install 'sandyard[s3]'` in the "
        "engine's environment (hashes are in requirements/s3.txt), or use a directory."
    ) from error

T = TypeVar("T")

_LOCATION = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9!_.*'()/-]{0,500}))?"
)
_PART_BYTES = 32 << 20
_MAX_PARTS = 10_000
_CHUNK = 1 << 20
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 5, 30
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_DENIED = frozenset(
    {"AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507", "EntityTooLarge"})


class S3Store:
    """A prefix in a bucket. The client is used in threads; parts of large objects are sent one at a time, so that little
    memory is needed and an upload can be cancelled."""

    def __init__(self, bucket: str, prefix: str, options: S3Options) -> None:
        self.location = f"{S3_PREFIX}{bucket}/{prefix}".rstrip("/")
        self._bucket, self._prefix, self._options = bucket, prefix, options
        self._made: Any = None

    @classmethod
    def from_location(cls, location: str, options: S3Options) -> S3Store:
        """Return the store at `s3://bucket/prefix`. Raises InvalidInputError."""
        match = _LOCATION.fullmatch(location)
        if match is None:
            raise InvalidInputError(
                f"The layer store {location!r} is not valid: use s3://bucket or s3://bucket/prefix."
            )
        prefix = (match["prefix"] or "").strip("/")
        return cls(match["bucket"], f"{prefix}/" if prefix else "", options)

    async def put_file(self, key: str, source: Path) -> None:
        if await self.find(key) is not None:
            return
        size = (await asyncio.to_thread(source.stat)).st_size
        if size > _PART_BYTES:
            await self._put_parts(key, source, size)
        else:
            await self.put_document(key, await asyncio.to_thread(source.read_bytes))

    async def put_document(self, key: str, content: bytes) -> None:
        await self._run(lambda client: client.put_object(**self._name(key), Body=content))

    async def _put_parts(self, key: str, source: Path, size: int) -> None:
        name = self._name(key)
        part_bytes = max(_PART_BYTES, -(-size // _MAX_PARTS))
        upload = (await self._run(lambda client: client.create_multipart_upload(**name)))["UploadId"]
        parts: list[dict[str, Any]] = []
        try:
            for number, offset in enumerate(range(0, size, part_bytes), start=1):

                def send(client: Any, number: int = number, offset: int = offset) -> Any:
                    with source.open("rb") as file:
                        content = os.pread(file.fileno(), part_bytes, offset)
                    return client.upload_part(**name, UploadId=upload, PartNumber=number, Body=content)

                parts.append({"PartNumber": number, "ETag": (await self._run(send))["ETag"]})
            done = {"Parts": parts}
            await self._run(
                lambda client: client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload=done)
            )
        except BaseException:
            with contextlib.suppress(SandyardError):
                await self._run(lambda client: client.abort_multipart_upload(**name, UploadId=upload))
            raise

    async def get_document(self, key: str) -> bytes:
        def read(client: Any) -> bytes:
            body = client.get_object(**self._name(key))["Body"]
            with contextlib.closing(body):
                return bytes(body.read(MAX_DOCUMENT_BYTES))

        return await self._run(read)

    @asynccontextmanager
    async def open_file(self, key: str, spool: Path, size: int) -> AsyncIterator[int]:
        path = spool / uuid.uuid4().hex
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        path.unlink()
        try:
            found = await self._run(lambda client: client.get_object(**self._name(key)))
            with contextlib.closing(body := found["Body"]):
                check_size(key, int(found["ContentLength"]), size)  # the body has no more than that
                while data := await self._run(lambda _: body.read(_CHUNK)):
                    await run_uninterrupted(asyncio.to_thread(_write, fd, data))
            yield fd
        finally:
            os.close(fd)

    async def find(self, key: str) -> StoredObject | None:
        try:
            head = await self._run(lambda client: client.head_object(**self._name(key)))
        except NotFoundError:
            return None
        return StoredObject(key, int(head["ContentLength"]), head["LastModified"].timestamp())

    async def refresh(self, key: str) -> None:
        """Copy the object onto itself, which S3 allows only if something changes: its metadata."""
        name = self._name(key)
        changed = {"MetadataDirective": "REPLACE", "Metadata": {"refreshed": uuid.uuid4().hex}}
        await self._run(lambda client: client.copy(name, self._bucket, name["Key"], ExtraArgs=changed))

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        token: dict[str, str] = {}
        while True:
            arguments = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, **token}
            page = await self._run(functools.partial(_list_page, arguments=arguments))
            for entry in page.get("Contents", ()):
                key = str(entry["Key"]).removeprefix(self._prefix)
                yield StoredObject(key, int(entry["Size"]), entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, key: str) -> None:
        await self._run(lambda client: client.delete_object(**self._name(key)))

    async def close(self) -> None:
        if self._made is not None:
            await asyncio.to_thread(self._made.close)

    def _name(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _get_client(self) -> Any:
        if self._made is None:
            options = self._options
            self._made = boto3.session.Session().client(
                "s3",
                endpoint_url=options.endpoint,
                region_name=options.region,
                aws_access_key_id=options.access_key,
                aws_secret_access_key=options.secret_key,
                config=Config(
                    connect_timeout=_CONNECT_TIMEOUT_S,
                    read_timeout=_READ_TIMEOUT_S,
                    retries={"mode": "standard", "max_attempts": 2},
                    s3={"addressing_style": "path" if options.endpoint else "auto"},
                    # digests are checked anyway, and older servers of other makers reject these
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        return self._made

    async def _run(self, work: Callable[[Any], T]) -> T:
        def call() -> T:
            return work(self._get_client())

        try:
            return await _run_in_thread(call)
        except (ClientError, BotoCoreError, Boto3Error, OSError) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> SandyardError:
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            return AccessDeniedError(
                f"There are no credentials for the layer store {self.location}. Set SANDYARD_LAYER_STORE_ACCESS_KEY and "
                "SANDYARD_LAYER_STORE_SECRET_KEY, or what boto3 reads (AWS_ACCESS_KEY_ID, a profile, a role)."
            )
        if not isinstance(error, ClientError):
            return UnreachableError(f"The layer store {self.location} does not answer: {error}.")
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        store = f"The layer store {self.location}"
        translated: SandyardError
        if code in _MISSING:
            translated = NotFoundError(f"{store} does not have this object.")
        elif code == "NoSuchBucket":
            translated = UnreachableError(f"{store} does not exist. Create the bucket {self._bucket}.")
        elif code in _DENIED or status in (401, 403):
            translated = AccessDeniedError(f"{store} refuses access ({code}). Check the credentials.")
        elif code in _FULL or status == 507:
            translated = StoreFullError(f"{store} is full ({code}). Free some space in it.")
        else:
            translated = UnreachableError(f"{store} failed ({code or status}). It is tried again.")
        return translated


async def _run_in_thread(work: Callable[[], T]) -> T:
    """Run in a thread of its own. If cancelled, the thread is left behind: a server that does not answer must not keep the
    engine from stopping."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # raised in the loop's thread
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=run, name="layer-store", daemon=True).start()
    return await done


def _list_page(client: Any, arguments: Mapping[str, str]) -> Any:
    return client.list_objects_v2(**arguments)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
