"""Test secrets through the SDKs: stored, listed, added to outgoing requests of a sandbox, and never disclosed."""

from __future__ import annotations

import json
import os
import secrets as random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox, AsyncSecret, Sandbox, Secret, SecretNotFoundException
from e2b.exceptions import SandboxException

from tests.harness.engine import Engine

from .fake_internet import API, OTHER, FakeInternet

ALL = "0.0.0.0/0"
CURL = "curl -sS --max-time 20 -o /tmp/body -w '%{http_code}'"


class TestStorage:
    def test_create_update_and_destroy(self, unique: str) -> None:
        created = Secret.create(f"Key-{unique}", "one", metadata={"team": "red"})
        assert created.secret_id.startswith("sec_")
        assert (created.name, created.version, created.metadata) == (f"key-{unique}", 1, {"team": "red"})
        assert Secret.get_info(created.secret_id) == Secret.get_info(f"KEY-{unique}") == created
        updated = Secret.update(created.name, "two")
        assert (updated.version, updated.metadata, updated.secret_id) == (2, {"team": "red"}, created.secret_id)
        assert Secret.update(created.secret_id, "three", metadata={}).metadata == {}
        assert updated.updated_at > created.updated_at
        assert updated.created_at == created.created_at
        assert Secret.exists(created.name)
        assert Secret.destroy(created.name)
        assert not Secret.destroy(created.name)
        assert not Secret.exists(created.secret_id)
        for verb in (Secret.get_info, lambda name: Secret.update(name, "x")):
            with pytest.raises(SecretNotFoundException):
                verb(created.name)

    async def test_create_update_and_destroy_async(self, unique: str) -> None:
        created = await AsyncSecret.create(f"key-{unique}", "one")
        assert (await AsyncSecret.update(created.secret_id, "two")).version == 2
        assert (await AsyncSecret.get_info(created.name)).version == 2
        pages = AsyncSecret.list(limit=1)
        assert created.secret_id in [info.secret_id for info in await pages.next_items()]
        assert await AsyncSecret.destroy(created.secret_id)
        with pytest.raises(SecretNotFoundException):
            await AsyncSecret.get_info(created.secret_id)

    def test_list_pages(self, unique: str) -> None:
        names = [f"{unique}-{number}" for number in range(5)]
        for name in names:
            Secret.create(name, "value")
        names_found = []
        pages = Secret.list(limit=2)
        while pages.has_next:
            names_found += [info.name for info in pages.next_items() if info.name.startswith(unique)]
        assert names_found == list(reversed(names))
        for name in names:
            Secret.destroy(name)

    def test_a_name_is_unique(self, unique: str, api: httpx.Client) -> None:
        Secret.create(unique, "one")
        with pytest.raises(Exception, match="already"):
            Secret.create(unique.upper(), "two")
        assert api.post("/secrets", json={"name": unique, "value": "two"}).status_code == 409
        Secret.destroy(unique)

    @pytest.mark.parametrize(
        "body",
        [
            {"name": "a{b}", "value": "x"},
            {"name": "", "value": "x"},
            {"name": "sec_a", "value": "x"},
            {"name": "a", "value": ""},
            {"name": "a", "value": 7},
            {"name": "a"},
            {"value": "x"},
            {"name": "a", "value": "x", "metadata": {"a": 1}},
            {"name": "a", "value": "x", "metadata": {str(n): "" for n in range(33)}},
            [],
        ],
        ids=str,
    )
    def test_invalid_secrets_are_refused(self, api: httpx.Client, body: object) -> None:
        response = api.post("/secrets", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["message"]

    def test_network_rules_are_returned_unchanged(self, unique: str) -> None:
        header = {"Authorization": f"Bearer {Secret.fill(unique)}"}
        sandbox = Sandbox.create(network={"rules": {API: [{"transform": {"headers": header}}]}})
        try:
            network = sandbox.get_info().network
            assert network is not None
            assert network["rules"] == {API: [{"transform": {"headers": header}}]}
            sandbox.update_network({"rules": {OTHER: [{"transform": {"headers": {"X-A": "1"}}}]}})
            assert list((sandbox.get_info().network or {})["rules"]) == [OTHER]
            sandbox.update_network({})
            assert not (sandbox.get_info().network or {}).get("rules")
            with pytest.raises(SandboxException, match="identity"):
                sandbox.update_network(
                    {"rules": {API: [{"transform": lambda ctx: {"headers": {"A": ctx.iam.tokens["x"]}}}]}}
                )
        finally:
            sandbox.kill()


class SecretsEnvironment:
    """An engine and a fake internet that it can reach."""

    def __init__(self, engine: Engine, internet: FakeInternet) -> None:
        self.engine = engine
        self.internet = internet
        self.api: dict[str, Any] = {"api_key": engine.key, "api_url": engine.url}
        self.options: dict[str, Any] = {**self.api, "sandbox_url": engine.url}
        self.value = f"planted-{random.token_hex(8)}"

    def network(self, *hosts: str, **more: Any) -> dict[str, Any]:
        header = {"Authorization": f"Bearer {Secret.fill('api-key')}", "X-Team": "red"}
        rules = {host: [{"transform": {"headers": header}}] for host in hosts}
        return {"allow_out": [self.internet.address], "rules": rules, **more}

    def last_headers(self) -> dict[str, str]:
        """Return the headers of the last request that reached the fake internet."""
        return self.internet.seen[-1][2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretsEnvironment]:
    if os.geteuid() != 0:
        pytest.skip("needs root to create a network namespace")
    internet = FakeInternet(tmp_path_factory.mktemp("internet"))
    engine = Engine({**internet.settings, "POOL_SIZE": "1"})
    try:
        engine.start()
        created = SecretsEnvironment(engine, internet)
        Secret.create("api-key", created.value, **created.api)
        yield created
        left = engine.stop()
        assert not left, f"the engine left behind: {left}"
    finally:
        internet.close()


@pytest.fixture
def sandbox(environment: SecretsEnvironment) -> Iterator[Sandbox]:
    created = Sandbox.create(network=environment.network(API), **environment.options)
    yield created
    created.kill()


def run(sandbox: Sandbox, command: str) -> str:
    return sandbox.commands.run(command, timeout=60).stdout.strip()


class TestUse:
    def test_the_secret_is_added_to_outgoing_requests(self, environment: SecretsEnvironment, sandbox: Sandbox) -> None:
        assert run(sandbox, f"{CURL} -H 'Authorization: mine' -d hello https://{API}/path?q=1") == "200"
        assert environment.internet.seen[-1][:2] == (API, "/path?q=1")
        assert environment.last_headers()["authorization"] == f"Bearer {environment.value}"
        assert environment.last_headers()["x-team"] == "red"
        assert "authorization" in json.loads(run(sandbox, "cat /tmp/body"))["names"]

    @pytest.mark.parametrize(
        "program",
        [
            f"python3 -c \"import urllib.request; print(urllib.request.urlopen('https://{API}/').status)\"",
            f"node -e \"fetch('https://{API}/').then((answer) => console.log(answer.status))\"",
            f"sudo -i {CURL} https://{API}/",
            f"git ls-remote https://{API}/x.git >/dev/null 2>&1; echo 200",
        ],
        ids=["python", "node", "root", "git"],
    )
    def test_programs_trust_the_certificate_of_the_proxy(
        self, environment: SecretsEnvironment, sandbox: Sandbox, program: str
    ) -> None:
        environment.internet.seen.clear()
        assert run(sandbox, program) == "200"
        assert environment.last_headers()["authorization"] == f"Bearer {environment.value}"

    def test_other_hosts_do_not_get_the_secret(self, environment: SecretsEnvironment, sandbox: Sandbox) -> None:
        sandbox.files.write("/tmp/ca.pem", environment.internet.certificate.read_text())
        assert run(sandbox, f"{CURL} --cacert /tmp/ca.pem https://{OTHER}/") == "200", (
            "the host must present its own certificate"
        )
        assert "authorization" not in environment.last_headers()
        assert run(sandbox, f"{CURL} http://{OTHER}/") == "200"
        assert "authorization" not in environment.last_headers()

    def test_a_new_version_is_used_immediately(self, environment: SecretsEnvironment, sandbox: Sandbox) -> None:
        Secret.update("api-key", "rotated", **environment.api)
        assert run(sandbox, f"{CURL} https://{API}/") == "200"
        assert environment.last_headers()["authorization"] == "Bearer rotated"
        Secret.update("api-key", environment.value, **environment.api)

    def test_requests_with_an_unknown_secret_are_blocked(self, environment: SecretsEnvironment) -> None:
        header = {"Authorization": Secret.fill("nobody")}
        network = environment.network(rules={API: [{"transform": {"headers": header}}]})
        sandbox = Sandbox.create(network=network, **environment.options)
        environment.internet.seen.clear()
        assert run(sandbox, f"{CURL} https://{API}/") == "502"
        assert "secret 'nobody' not found" in run(sandbox, "cat /tmp/body")
        assert not environment.internet.seen
        sandbox.kill()

    def test_plain_http_gets_no_secret(self, environment: SecretsEnvironment, sandbox: Sandbox) -> None:
        environment.internet.seen.clear()
        assert run(sandbox, f"{CURL} http://{API}/") == "502"
        assert "Use https" in run(sandbox, "cat /tmp/body")
        assert not environment.internet.seen

    def test_rules_can_be_added_and_removed(self, environment: SecretsEnvironment) -> None:
        sandbox = Sandbox.create(network={"allow_out": [environment.internet.address]}, **environment.options)
        assert run(sandbox, f"{CURL} -k https://{API}/") == "200"
        assert "authorization" not in environment.last_headers()
        sandbox.update_network(environment.network(API))
        assert run(sandbox, f"{CURL} https://{API}/") == "200"
        assert environment.last_headers()["authorization"] == f"Bearer {environment.value}"
        sandbox.update_network({"allow_out": [environment.internet.address]})
        assert run(sandbox, f"{CURL} -k https://{API}/") == "200"
        assert "authorization" not in environment.last_headers()
        sandbox.kill()

    def test_a_rule_does_not_allow_a_blocked_address(self, environment: SecretsEnvironment, sandbox: Sandbox) -> None:
        """A rule allows no traffic. The name resolves to an address next to the host, which an allowed name never opens."""
        sandbox.update_network(environment.network(API, allow_out=[API], deny_out=[ALL]))
        environment.internet.seen.clear()
        assert sandbox.commands.run(f"{CURL} https://{API}/ || true").stdout in ("000", "502")
        assert not environment.internet.seen

    def test_secrets_work_after_pause_fork_snapshot_and_engine_crash(
        self, environment: SecretsEnvironment, sandbox: Sandbox
    ) -> None:
        def assert_secret_is_sent(target: Sandbox) -> None:
            environment.internet.seen.clear()
            assert run(target, f"{CURL} https://{API}/") == "200"
            assert environment.last_headers()["authorization"] == f"Bearer {environment.value}"

        sandbox.pause()
        sandbox.connect()
        assert_secret_is_sent(sandbox)
        with environment.engine.client() as client:
            client.post(f"/sandboxes/{sandbox.sandbox_id}/pause", json={"memory": False}).raise_for_status()
        sandbox.connect()
        assert_secret_is_sent(sandbox)
        (forked,) = sandbox.fork()
        assert_secret_is_sent(forked)
        forked.kill()
        snapshot = sandbox.create_snapshot()
        copy = Sandbox.create(snapshot.snapshot_id, network=environment.network(API), **environment.options)
        assert_secret_is_sent(copy)
        copy.kill()
        environment.engine.kill()
        environment.engine.start()
        assert_secret_is_sent(sandbox)

    async def test_the_secret_is_added_for_the_async_client(self, environment: SecretsEnvironment) -> None:
        sandbox = await AsyncSandbox.create(network=environment.network(API), **environment.options)
        result = await sandbox.commands.run(f"{CURL} https://{API}/")
        assert result.stdout == "200"
        assert environment.last_headers()["authorization"] == f"Bearer {environment.value}"
        await sandbox.kill()


class TestConfidentiality:
    def test_the_value_is_in_no_file_log_or_response(self, environment: SecretsEnvironment, sandbox: Sandbox) -> None:
        """Runs after the tests above. Searches files, log and responses of the engine, and files, variables and processes of the sandbox."""
        run(sandbox, f"{CURL} https://{API}/")
        assert environment.last_headers()["authorization"] == f"Bearer {environment.value}"
        for path in [environment.engine.log, *_small_files(environment.engine.data)]:
            assert environment.value.encode() not in path.read_bytes(), path
        with environment.engine.client() as client:
            for route in ("/secrets", "/secrets/api-key", "/v2/sandboxes", f"/sandboxes/{sandbox.sandbox_id}"):
                assert environment.value not in client.get(route).text, route
            assert (
                environment.value
                not in client.post("/secrets", json={"name": "api-key", "value": environment.value}).text
            )
            assert environment.value not in client.post("/secrets", json={"name": "{", "value": environment.value}).text
            assert environment.value not in client.get(f"/sandboxes/{sandbox.sandbox_id}/logs").text
        directories = "/home /etc /tmp /usr/local /root /var /run"
        search = f"sudo grep -rlI 'plante[d]-' {directories} 2>/dev/null; sudo cat /proc/[0-9]*/environ | grep -ac 'plante[d]-'"
        assert sandbox.commands.run(f"{search} || true").stdout.strip() == "0"


def _small_files(folder: Path) -> list[Path]:
    """Return all regular files except those of sandbox file systems, which are searched from inside."""
    paths = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {"store", "netns"}]
        paths += [Path(parent) / name for name in files if name != "store.img"]
    return [path for path in paths if path.is_file() and not path.is_symlink()]
