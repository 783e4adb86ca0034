"""A card until the first command of each real agent, with a scripted model: when all is prepared, and on a new base commit.
Beside the demo agent, which needs no model and no time to start."""

from __future__ import annotations

import asyncio
import time

import httpx
from tests.forge.gitserver import GitServer
from tests.forge.repositories import Repository
from tests.models import ModelServer, Say, Shell

from bench.platform import client_of, platform
from bench.processes import engine
from bench.report import Row, median
from bench.tasks import first_command

MODELS = {"codex": "gpt-5.5", "opencode": "scripted", "claude": "claude-scripted", "gemini": "gemini-scripted"}
KINDS = {"codex": "openai", "opencode": "openai_chat", "claude": "anthropic", "gemini": "gemini"}
KEY = "sk-bench"
SETTINGS = {"git": {"commitMessages": "any"}}
WARM_LIMIT_S, NEW_COMMIT_LIMIT_S = 5, 10


def measure(rounds: int) -> list[Row]:
    return asyncio.run(_measure(max(3, rounds // 40)))


async def _measure(rounds: int) -> list[Row]:
    rows: list[Row] = []
    with (
        GitServer() as server,
        ModelServer(keys=[KEY]) as models,
        engine("--pool-size", "4", DEFAULT_MEMORY_MB="2048") as endpoint,
        platform(endpoint) as served,
    ):
        token = server.tokens.make("bench").text
        async with client_of(f"{served.url}/api/v1", served.token) as client:
            for agent, model in MODELS.items():
                provider = {"name": KINDS[agent], "kind": KINDS[agent], "baseUrl": models.url, "key": KEY}
                (await client.post("/model-providers", json={**provider, "models": [model]})).raise_for_status()
            floors: dict[str, float] = {}
            for agent in ("demo", *MODELS):
                site = server.repository(f"acme/{agent}", files={f"src/{n}.py": f"print({n})\n" for n in range(200)})
                body = {"name": agent, "repository": site.url, "token": token, "settings": SETTINGS}
                project = (await client.post("/projects", json=body)).raise_for_status().json()["id"]
                run = Bench(client, project, site, agent, models)
                installed = await run.first_command()
                warm = median([await run.first_command() for _ in range(rounds)])
                new = median([await run.first_command_on_new_commit() for _ in range(rounds)])
                if agent == "demo":
                    floors = {"warm": warm, "new": new}
                    continue
                rows.append(Row(f"{agent}: card → first command, p50", warm, "s", floors["warm"], WARM_LIMIT_S))
                rows.append(Row("  on a new base commit, p50", new, "s", floors["new"], NEW_COMMIT_LIMIT_S))
                rows.append(Row("  the first time, which installs it", installed, "s", None, None))
    return rows


class Bench:
    """One agent in a project of its own."""

    def __init__(
        self, client: httpx.AsyncClient, project: str, site: Repository, agent: str, models: ModelServer
    ) -> None:
        self._client = client
        self._project = project
        self._site = site
        self._agent = agent
        self._models = models

    async def first_command(self) -> float:
        word = f"{self._agent}-{time.time_ns()}"
        self._models.script(word, [Shell("date +%s.%N"), Shell(f"echo {word} >{word}.txt"), Say("Done.")])
        return await first_command(self._client, self._project, self._agent, MODELS.get(self._agent), word)

    async def first_command_on_new_commit(self) -> float:
        self._site.commit({"news.txt": f"{time.time_ns()}\n"})
        return await self.first_command()
