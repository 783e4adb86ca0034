"""A layer store in S3, or in any server with its protocol. Needs boto3: `pip install sandyard[s3]`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sandyard.engine.layers.store import (
    S3_PREFIX,
    AccessDeniedError,
    S3Options,
    StoredObject,
    StoreFullError,
    check_count,
    check_document,
    check_size,
    get_max_bytes,
    is_key,
)
from sandyard.engine.layers.threads import CALL_SECONDS, SLOWEST_BYTES_PER_SECOND, StoreThreads
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError, UnreachableError, UnsupportedError
from sandyard.kit.tasks import run_uninterrupted

try:
    import boto3
    from boto3.exceptions import Boto3Error
    from boto3.s3.transfer import TransferConfig
    from botocore.awsrequest import AWSResponse
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )
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
_MAX_RESPONSE_BYTES = 8 << 20  # of everything that is not the content of an object, such as a page of a list
_MAX_COPY_BYTES = 64 << 30
_LIST_SECONDS = 900.0
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
        self._client: Any = None
        self._threads = StoreThreads(self.location)

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
        await self._run(lambda client: client.put_object(**self._locate(key), Body=content), size=len(content))

    async def _put_parts(self, key: str, source: Path, size: int) -> None:
        target = self._locate(key)
        part_bytes = max(_PART_BYTES, -(-size // _MAX_PARTS))
        upload = (await self._run(lambda client: client.create_multipart_upload(**target)))["UploadId"]
        parts: list[dict[str, Any]] = []
        try:
            for number, offset in enumerate(range(0, size, part_bytes), start=1):

                def send(client: Any, number: int = number, offset: int = offset) -> Any:
                    with source.open("rb") as file:
                        content = os.pread(file.fileno(), part_bytes, offset)
                    return client.upload_part(**target, UploadId=upload, PartNumber=number, Body=content)

                parts.append({"PartNumber": number, "ETag": (await self._run(send, size=part_bytes))["ETag"]})
            done = {"Parts": parts}
            await self._run(
                lambda client: client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload=done)
            )
        except BaseException:
            with contextlib.suppress(SandyardError):
                await self._run(lambda client: client.abort_multipart_upload(**target, UploadId=upload))
            raise

    async def get_document(self, key: str) -> bytes:
        def read(client: Any) -> bytes:
            body = client.get_object(**self._locate(key))["Body"]
            with contextlib.closing(body):
                return check_document(key, bytes(body.read(get_max_bytes(key) + 1)))

        return await self._run(read)

    @asynccontextmanager
    async def open_file(self, key: str, spool: Path, size: int) -> AsyncIterator[int]:
        path = spool / uuid.uuid4().hex
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        path.unlink()
        try:
            response = await self._run(lambda client: client.get_object(**self._locate(key)))
            body, received = response["Body"], 0
            try:
                check_size(key, _get_size(response), size)
                async with self._limit_time(size):
                    while data := await self._run(lambda _: body.read(_CHUNK)):
                        received += len(data)
                        check_size(key, max(received, size), size)  # the server may send more than it has announced
                        await run_uninterrupted(asyncio.to_thread(_write, fd, data))
            finally:  # in a thread, because closing waits for a read that a timeout has abandoned
                threading.Thread(target=body.close, name="layer-store", daemon=True).start()
            check_size(key, received, size)
            yield fd
        finally:
            os.close(fd)

    async def find(self, key: str) -> StoredObject | None:
        try:
            head = await self._run(lambda client: client.head_object(**self._locate(key)))
        except NotFoundError:
            return None
        return _make_object(key, head, _get_size(head))

    async def refresh(self, key: str) -> None:
        """Copy the object onto itself, which S3 allows only if something changes: its metadata."""
        source = self._locate(key)
        changed = {"MetadataDirective": "REPLACE", "Metadata": {"refreshed": uuid.uuid4().hex}}
        serial = TransferConfig(use_threads=False)  # boto3's threads would keep the engine from ending
        await self._run(
            lambda client: client.copy(source, self._bucket, source["Key"], ExtraArgs=changed, Config=serial),
            size=_MAX_COPY_BYTES,
        )

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        token: dict[str, str] = {}
        count, deadline = 0, time.monotonic() + _LIST_SECONDS
        while True:
            arguments = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, **token}
            page = await self._run(functools.partial(_list_page, arguments))
            for entry in page.get("Contents", ()):
                check_count(self.location, count := count + 1)
                key = str(entry.get("Key")).removeprefix(self._prefix)
                if key.startswith(prefix) and is_key(key):
                    yield _make_object(key, entry, entry.get("Size"))
            if not page.get("IsTruncated"):
                return
            following = {"ContinuationToken": str(page.get("NextContinuationToken"))}
            if following == token or time.monotonic() > deadline:
                raise UnreachableError(f"The layer store {self.location} does not end its list of objects.")
            token = following

    async def delete(self, key: str) -> None:
        await self._run(lambda client: client.delete_object(**self._locate(key)))

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    def _locate(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _get_client(self) -> Any:
        if self._client is None:
            options = self._options
            client = boto3.session.Session().client(
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
                    # digests are checked anyway, and some servers other than Amazon's reject these
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
            endpoint = client._endpoint  # private: botocore has no setting for the size of responses
            endpoint.http_session = _BoundedSession(endpoint.http_session)
            self._client = client
        return self._client

    @asynccontextmanager
    async def _limit_time(self, size: int) -> AsyncIterator[None]:
        """Limit how long a file may take to arrive."""
        try:
            async with asyncio.timeout(CALL_SECONDS + size / SLOWEST_BYTES_PER_SECOND):
                yield
        except TimeoutError:
            raise UnreachableError(f"The layer store {self.location} is too slow: a file did not arrive.") from None

    async def _run(self, work: Callable[[Any], T], *, size: int = 0) -> T:
        """Call `work` with the client in a thread and return its result. `size` is the number of bytes that are sent, for which there is
        more time. Translates errors."""

        def call() -> T:
            return work(self._get_client())

        try:
            return await self._threads.run(call, size=size)
        except SandyardError:
            raise
        except (ClientError, BotoCoreError, Boto3Error, OSError) as error:
            raise self._translate(error) from error
        except Exception as error:  # libraries raise many types for invalid responses
            raise UnreachableError(
                f"The layer store {self.location} sent an invalid response ({type(error).__name__})."
            ) from error

    def _translate(self, error: Exception) -> SandyardError:
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            return AccessDeniedError(
                f"There are no credentials for the layer store {self.location}. Set SANDYARD_LAYER_STORE_ACCESS_KEY and "
                "SANDYARD_LAYER_STORE_SECRET_KEY, or another source of boto3 (AWS_ACCESS_KEY_ID, a profile, a role)."
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
            translated = UnreachableError(f"{store} failed ({code or status}). Retrying.")
        return translated


class _BoundedSession:
    """botocore's HTTP session, without responses that fill the memory. Only the content of objects is not read here."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        is_content, request.stream_output = request.stream_output, True
        response = self._session.send(request)
        if is_content and response.status_code < 300:
            return response
        deadline = time.monotonic() + CALL_SECONDS
        content = bytearray()
        with contextlib.closing(response.raw):
            while data := response.raw.read1(_CHUNK):
                content += data
                if len(content) > _MAX_RESPONSE_BYTES or time.monotonic() > deadline:
                    raise HTTPClientError(error="the response is too long")
        return AWSResponse(response.url, response.status_code, response.headers, _Content(bytes(content)))

    def close(self) -> None:
        self._session.close()


class _Content:
    """A response that has been read, in the form that botocore expects."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content


def _get_size(response: Mapping[str, Any]) -> int:
    """Return the announced size of an object; -1 if there is none."""
    return int(response.get("ContentLength", -1))


def _make_object(key: str, response: Mapping[str, Any], size: object) -> StoredObject:
    modified = response.get("LastModified")
    if not isinstance(modified, datetime) or not isinstance(size, int):
        raise UnreachableError("The layer store sent an invalid response: an object without a size or date.")
    return StoredObject(key, size, modified.timestamp())


def _list_page(arguments: Mapping[str, str], client: Any) -> Any:
    return client.list_objects_v2(**arguments)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
