"""Secrets through the SDKs: written, told of, used by requests that leave a sandbox, and found nowhere."""

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

from .engine import Engine
from .outside import API, OTHER, Outside

ALL = "0.0.0.0/0"
ask = "curl -sS --max-time 20 -o /tmp/body -w '%{http_code}'"


class TestKeeping:
    def test_the_life_of_a_secret(self, unique: str) -> None:
        made = Secret.create(f"Key-{unique}", "one", metadata={"team": "red"})
        assert made.secret_id.startswith("sec_")
        assert (made.name, made.version, made.metadata) == (f"key-{unique}", 1, {"team": "red"})
        assert Secret.get_info(made.secret_id) == Secret.get_info(f"KEY-{unique}") == made
        updated = Secret.update(made.name, "two")
        assert (updated.version, updated.metadata, updated.secret_id) == (2, {"team": "red"}, made.secret_id)
        assert Secret.update(made.secret_id, "three", metadata={}).metadata == {}
        assert updated.updated_at > made.updated_at
        assert updated.created_at == made.created_at
        assert Secret.exists(made.name)
        assert Secret.destroy(made.name)
        assert not Secret.destroy(made.name)
        assert not Secret.exists(made.secret_id)
        for verb in (Secret.get_info, lambda name: Secret.update(name, "x")):
            with pytest.raises(SecretNotFoundException):
                verb(made.name)

    async def test_the_same_without_blocking(self, unique: str) -> None:
        made = await AsyncSecret.create(f"key-{unique}", "one")
        assert (await AsyncSecret.update(made.secret_id, "two")).version == 2
        assert (await AsyncSecret.get_info(made.name)).version == 2
        pages = AsyncSecret.list(limit=1)
        assert made.secret_id in [info.secret_id for info in await pages.next_items()]
        assert await AsyncSecret.destroy(made.secret_id)
        with pytest.raises(SecretNotFoundException):
            await AsyncSecret.get_info(made.secret_id)

    def test_pages(self, unique: str) -> None:
        names = [f"{unique}-{number}" for number in range(5)]
        for name in names:
            Secret.create(name, "value")
        found = []
        pages = Secret.list(limit=2)
        while pages.has_next:
            found += [info.name for info in pages.next_items() if info.name.startswith(unique)]
        assert found == list(reversed(names))
        for name in names:
            Secret.destroy(name)

    def test_a_name_is_taken_once(self, unique: str, api: httpx.Client) -> None:
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
    def test_what_is_refused(self, api: httpx.Client, body: object) -> None:
        answer = api.post("/secrets", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["message"]

    def test_rules_are_shown_as_they_were_given(self, unique: str) -> None:
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


class Yard:
    """An engine of its own, with an outside that it can reach."""

    def __init__(self, engine: Engine, outside: Outside) -> None:
        self.engine = engine
        self.outside = outside
        self.api: dict[str, Any] = {"api_key": engine.key, "api_url": engine.url}
        self.options: dict[str, Any] = {**self.api, "sandbox_url": engine.url}
        self.value = f"planted-{random.token_hex(8)}"

    def network(self, *hosts: str, **more: Any) -> dict[str, Any]:
        header = {"Authorization": f"Bearer {Secret.fill('api-key')}", "X-Team": "red"}
        rules = {host: [{"transform": {"headers": header}}] for host in hosts}
        return {"allow_out": [self.outside.address], "rules": rules, **more}

    def told(self) -> dict[str, str]:
        """The headers of the last request that came out."""
        return self.outside.seen[-1][2]


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    if os.geteuid() != 0:
        pytest.skip("needs root for a network of its own")
    outside = Outside(tmp_path_factory.mktemp("outside"))
    engine = Engine({**outside.settings, "POOL_SIZE": "1"})
    try:
        engine.start()
        made = Yard(engine, outside)
        Secret.create("api-key", made.value, **made.api)
        yield made
        left = engine.stop()
        assert not left, f"the engine left behind: {left}"
    finally:
        outside.close()


@pytest.fixture
def sandbox(yard: Yard) -> Iterator[Sandbox]:
    made = Sandbox.create(network=yard.network(API), **yard.options)
    yield made
    made.kill()


def run(sandbox: Sandbox, command: str) -> str:
    return sandbox.commands.run(command, timeout=60).stdout.strip()


class TestUsing:
    def test_requests_get_it_on_their_way_out(self, yard: Yard, sandbox: Sandbox) -> None:
        assert run(sandbox, f"{ask} -H 'Authorization: mine' -d hello https://{API}/path?q=1") == "200"
        assert yard.outside.seen[-1][:2] == (API, "/path?q=1")
        assert yard.told()["authorization"] == f"Bearer {yard.value}"
        assert yard.told()["x-team"] == "red"
        assert "authorization" in json.loads(run(sandbox, "cat /tmp/body"))["names"]

    @pytest.mark.parametrize(
        "program",
        [
            f"python3 -c \"import urllib.request; print(urllib.request.urlopen('https://{API}/').status)\"",
            f"node -e \"fetch('https://{API}/').then((answer) => console.log(answer.status))\"",
            f"sudo -i {ask} https://{API}/",
            f"git ls-remote https://{API}/x.git >/dev/null 2>&1; echo 200",
        ],
        ids=["python", "node", "root", "git"],
    )
    def test_programs_trust_the_way(self, yard: Yard, sandbox: Sandbox, program: str) -> None:
        yard.outside.seen.clear()
        assert run(sandbox, program) == "200"
        assert yard.told()["authorization"] == f"Bearer {yard.value}"

    def test_other_hosts_get_nothing(self, yard: Yard, sandbox: Sandbox) -> None:
        sandbox.files.write("/tmp/ca.pem", yard.outside.certificate.read_text())
        assert run(sandbox, f"{ask} --cacert /tmp/ca.pem https://{OTHER}/") == "200", "its own certificate is seen"
        assert "authorization" not in yard.told()
        assert run(sandbox, f"{ask} http://{OTHER}/") == "200"
        assert "authorization" not in yard.told()

    def test_a_new_version_counts_at_once(self, yard: Yard, sandbox: Sandbox) -> None:
        Secret.update("api-key", "rotated", **yard.api)
        assert run(sandbox, f"{ask} https://{API}/") == "200"
        assert yard.told()["authorization"] == "Bearer rotated"
        Secret.update("api-key", yard.value, **yard.api)

    def test_without_the_secret_nothing_goes_out(self, yard: Yard) -> None:
        header = {"Authorization": Secret.fill("nobody")}
        network = yard.network(rules={API: [{"transform": {"headers": header}}]})
        sandbox = Sandbox.create(network=network, **yard.options)
        yard.outside.seen.clear()
        assert run(sandbox, f"{ask} https://{API}/") == "502"
        assert "secret 'nobody' not found" in run(sandbox, "cat /tmp/body")
        assert not yard.outside.seen
        sandbox.kill()

    def test_plain_http_gets_no_secret(self, yard: Yard, sandbox: Sandbox) -> None:
        yard.outside.seen.clear()
        assert run(sandbox, f"{ask} http://{API}/") == "502"
        assert "Use https" in run(sandbox, "cat /tmp/body")
        assert not yard.outside.seen

    def test_rules_come_and_go(self, yard: Yard) -> None:
        sandbox = Sandbox.create(network={"allow_out": [yard.outside.address]}, **yard.options)
        assert run(sandbox, f"{ask} -k https://{API}/") == "200"
        assert "authorization" not in yard.told()
        sandbox.update_network(yard.network(API))
        assert run(sandbox, f"{ask} https://{API}/") == "200"
        assert yard.told()["authorization"] == f"Bearer {yard.value}"
        sandbox.update_network({"allow_out": [yard.outside.address]})
        assert run(sandbox, f"{ask} -k https://{API}/") == "200"
        assert "authorization" not in yard.told()
        sandbox.kill()

    def test_names_alone_open_the_way(self, yard: Yard, sandbox: Sandbox) -> None:
        """A rule opens nothing; the address that a name leads to is a neighbour's, which names never open."""
        sandbox.update_network(yard.network(API, allow_out=[API], deny_out=[ALL]))
        yard.outside.seen.clear()
        assert sandbox.commands.run(f"{ask} https://{API}/ || true").stdout in ("000", "502")
        assert not yard.outside.seen

    def test_pause_fork_snapshot_and_a_dead_engine(self, yard: Yard, sandbox: Sandbox) -> None:
        def goes(one: Sandbox) -> None:
            yard.outside.seen.clear()
            assert run(one, f"{ask} https://{API}/") == "200"
            assert yard.told()["authorization"] == f"Bearer {yard.value}"

        sandbox.pause()
        sandbox.connect()
        goes(sandbox)
        with yard.engine.client() as client:
            client.post(f"/sandboxes/{sandbox.sandbox_id}/pause", json={"memory": False}).raise_for_status()
        sandbox.connect()
        goes(sandbox)
        (forked,) = sandbox.fork()
        goes(forked)
        forked.kill()
        snapshot = sandbox.create_snapshot()
        copy = Sandbox.create(snapshot.snapshot_id, network=yard.network(API), **yard.options)
        goes(copy)
        copy.kill()
        yard.engine.kill()
        yard.engine.start()
        goes(sandbox)

    async def test_without_blocking(self, yard: Yard) -> None:
        sandbox = await AsyncSandbox.create(network=yard.network(API), **yard.options)
        ran = await sandbox.commands.run(f"{ask} https://{API}/")
        assert ran.stdout == "200"
        assert yard.told()["authorization"] == f"Bearer {yard.value}"
        await sandbox.kill()


class TestHiding:
    def test_it_is_in_no_file_log_or_answer(self, yard: Yard, sandbox: Sandbox) -> None:
        """After everything above: the engine's files and words, the sandbox's files, variables and processes."""
        run(sandbox, f"{ask} https://{API}/")
        assert yard.told()["authorization"] == f"Bearer {yard.value}"
        for path in [yard.engine.log, *_small_files(yard.engine.data)]:
            assert yard.value.encode() not in path.read_bytes(), path
        with yard.engine.client() as client:
            for route in ("/secrets", "/secrets/api-key", "/v2/sandboxes", f"/sandboxes/{sandbox.sandbox_id}"):
                assert yard.value not in client.get(route).text, route
            assert yard.value not in client.post("/secrets", json={"name": "api-key", "value": yard.value}).text
            assert yard.value not in client.post("/secrets", json={"name": "{", "value": yard.value}).text
            assert yard.value not in client.get(f"/sandboxes/{sandbox.sandbox_id}/logs").text
        places = "/home /etc /tmp /usr/local /root /var /run"
        look = (
            f"sudo grep -rlI 'plante[d]-' {places} 2>/dev/null; sudo cat /proc/[0-9]*/environ | grep -ac 'plante[d]-'"
        )
        assert sandbox.commands.run(f"{look} || true").stdout.strip() == "0"


def _small_files(folder: Path) -> list[Path]:
    """All but the sandboxes' own file systems, which are looked at from inside, and what is no file."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {"store", "netns"}]
        found += [Path(parent) / name for name in files if name != "store.img"]
    return [path for path in found if path.is_file()]
