"""The demo agent as a program, driven by the official client."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandyard.platform.domain.agents import demo
from sandyard.platform.domain.agents.profiles.demo import DEMO, build_program
from tests.integration.platform.domain.agents.demo_client import connect_demo, write_program
from tests.later import Later

if TYPE_CHECKING:
    import acp
    from acp import schema
else:
    acp, schema = Later("acp"), Later("acp.schema")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    created = tmp_path / "work"
    created.mkdir()
    return created


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


async def test_files_are_changed_and_the_changes_are_reported(tmp_path: Path, folder: Path) -> None:
    (folder / "kept.txt").write_text("old words\n")
    async with connect_demo(tmp_path, folder) as demo:
        reason = await demo.prompt(
            "Please do this:",
            "1. Create src/a.txt: one\\ntwo",
            "- append `src/a.txt`: three",
            "* Replace kept.txt: old -> new",
            "create b.py",
            "```python",
            "print('run: nothing')",
            "```",
            "think: it goes well",
            "plan: first; second",
            "say: hello",
        )
        assert reason == "end_turn"
        assert (folder / "src/a.txt").read_text() == "one\ntwo\nthree\n"
        assert (folder / "kept.txt").read_text() == "new words\n"
        assert (folder / "b.py").read_text() == "print('run: nothing')\n"
        client = demo.client
        assert client.text.startswith("[demo] ")
        assert client.updates[0].session_update == "agent_message_chunk"
        assert "hello" in client.text
        assert client.thoughts == "it goes well"
        assert [call.kind for call in client.list_updates("tool_call")] == ["edit"] * 4
        ends = [update for update in client.list_updates("tool_call_update") if update.status == "completed"]
        assert [(end.content[0].old_text, end.content[0].new_text) for end in ends][:2] == [
            (None, "one\ntwo\n"),
            ("one\ntwo\n", "one\ntwo\nthree\n"),
        ]
        plans = [[entry.status for entry in plan.entries] for plan in client.list_updates("plan")]
        assert plans[0] == ["in_progress", "pending"]
        assert plans[-1] == ["completed", "completed"]


async def test_commands_and_commits_are_run(tmp_path: Path, folder: Path) -> None:
    git(folder, "init", "-q")
    async with connect_demo(tmp_path, folder) as demo:
        await demo.prompt("create a.txt: a", "run: cat; echo out; echo err >&2", "commit: feat: a", "run: exit 7")
        assert git(folder, "log", "--format=%s").strip() == "feat: a"
        calls = [
            update
            for update in demo.client.list_updates("tool_call_update")
            if update.status in {"completed", "failed"}
        ]
        assert [call.status for call in calls] == ["completed", "completed", "completed", "failed"]
        assert calls[1].content[0].content.text == "out\nerr\n"
        assert calls[3].raw_output == {"exitCode": 7}
        assert "ended with 7" in demo.client.text
        await demo.prompt("commit: again", "say: still here")
        assert "nothing to commit" in demo.client.text
        assert "still here" in demo.client.text


async def test_output_is_bounded_and_background_children_do_not_delay_the_turn(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        async with asyncio.timeout(40):
            await demo.prompt("run: sleep 60 & seq 1 100000")
        text = demo.client.list_updates("tool_call_update")[-1].content[0].content.text
        assert len(text) < 70_000
        assert text.startswith("1\n2\n")
        assert text.endswith("99999\n100000\n")
        assert "bytes left out" in text


async def test_paths_outside_the_folder_are_rejected(tmp_path: Path, folder: Path) -> None:
    (folder / "out").symlink_to(tmp_path)
    (folder / "link").symlink_to("/etc/passwd")
    wrong = ["../x", "/etc/x", "out/x", "link", ".git/config", "~/x", "a/../../x", "deep/"]
    async with connect_demo(tmp_path, folder) as demo:
        assert await demo.prompt(*(f"create {path}: no" for path in wrong), "delete ../work", "say: end") == "end_turn"
        failed = [update for update in demo.client.list_updates("tool_call_update") if update.status == "failed"]
        assert len(failed) == len(wrong) + 1
        assert demo.client.text.endswith("end\n")
    assert not (tmp_path / "x").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["link", "out"]


async def test_prose_is_explained_and_recorded_in_a_file(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        prompt = "Make the login work.\n\nIt should be nice, and create a page for it."
        blocks = [acp.text_block(prompt), acp.text_block("You work in a checkout.")]
        for _ in range(2):
            demo.client.updates.clear()
            assert (await demo.agent.prompt(session_id=demo.session, prompt=blocks)).stop_reason == "end_turn"
            assert demo.client.text.startswith(
                "[demo] I am the demo agent: I have no model and cannot understand this."
            )
            assert "replace PATH: OLD -> NEW" in demo.client.text
            assert "DEMO.md" in demo.client.text
    quoted = "> Make the login work.\n>\n> It should be nice, and create a page for it.\n"
    assert (folder / "DEMO.md").read_text() == f"# What the demo agent was asked\n\n{quoted}\n{quoted}"


async def test_only_instructions_from_people_are_followed_and_failures_are_fixed(tmp_path: Path, folder: Path) -> None:
    def create_platform_block(text: str, about: str = "failure") -> Any:
        block = acp.text_block(text)
        block.field_meta = {"sandyard": {"source": "platform", "about": about}}
        return block

    failure = create_platform_block("The check ended with exit code 1.\nfail: test_div\ncrash\ncreate wrong.txt: x")
    async with connect_demo(tmp_path, folder) as demo:
        await demo.prompt("create a.txt: 1", "fix: replace a.txt: 1 -> 2", "fix: append a.txt: 3")
        assert (folder / "a.txt").read_text() == "1\n"
    async with connect_demo(tmp_path, folder, load=demo.session) as demo:
        assert (await demo.agent.prompt(session_id=demo.session, prompt=[failure])).stop_reason == "end_turn"
        assert (folder / "a.txt").read_text() == "2\n3\n"
        demo.client.updates.clear()
        assert (await demo.agent.prompt(session_id=demo.session, prompt=[failure])).stop_reason == "end_turn"
        assert "no (further) `fix:` instruction" in demo.client.text
        await demo.agent.prompt(
            session_id=demo.session,
            prompt=[create_platform_block("run: touch b.txt", "task"), acp.text_block("create c.txt: x")],
        )
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "c.txt"]


async def test_questions_are_asked_by_form_or_by_choice(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder, forms=True) as demo:
        demo.client.replies = [
            schema.AcceptElicitationResponse(action="accept", content={"answer": "blue"}),
            schema.DeclineElicitationResponse(action="decline"),
        ]
        await demo.prompt("ask: Which colour?", "create colour.txt: {answer}", "ask: And why?")
        assert demo.client.requests == ["Which colour?", "And why?"]
        assert (folder / "colour.txt").read_text() == "blue\n"
        assert "(declined)" in demo.client.text
    async with connect_demo(tmp_path, folder) as demo:
        demo.client.choose = lambda title: "no"
        await demo.prompt("ask: Shall I?", "say: so {answer}")
        assert "so no\n" in demo.client.text


async def test_a_rejected_permission_skips_the_remaining_instructions(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        demo.client.choose = lambda title: "reject"
        assert await demo.prompt("permit: drop the database", "create a.txt: a", "say: never") == "end_turn"
        assert demo.client.requests == ["drop the database"]
        assert "2 after it are skipped" in demo.client.text
        assert "never" not in demo.client.text
        demo.client.choose = lambda title: "always"
        await demo.prompt("permit: sing", "permit: sing", "create a.txt: a")
        assert demo.client.requests == ["drop the database", "sing"]
    assert (folder / "a.txt").exists()


async def test_ask_mode_requests_permission_for_each_kind_of_work(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        await demo.agent.set_session_mode(session_id=demo.session, mode_id="ask")
        demo.client.choose = lambda title: "reject" if title == "touch b" else "allow"
        await demo.prompt("create a.txt: a", "run: touch b", "create c.txt: c")
        assert demo.client.requests == ["Create a.txt", "touch b"]
        assert [path.name for path in folder.iterdir()] == ["a.txt"]
        with pytest.raises(acp.RequestError) as caught:
            await demo.agent.set_session_mode(session_id=demo.session, mode_id="wild")
        assert caught.value.code == -32602


@pytest.mark.parametrize("work", ["sleep: 60", "run: trap '' TERM; sleep 60", "ask: anybody?"])
async def test_a_turn_can_be_cancelled(tmp_path: Path, folder: Path, work: str) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        demo.client.silent = True
        turn = asyncio.create_task(demo.prompt("say: begun", work, "create late.txt: x"))
        await demo.client.until(lambda: "begun" in demo.client.text)
        await demo.client.until(lambda: bool(demo.client.requests) or not work.startswith("ask"))
        await demo.agent.cancel(session_id=demo.session)
        async with asyncio.timeout(40):
            assert await turn == "cancelled"
        assert not (folder / "late.txt").exists()
        assert await demo.prompt("say: next") == "end_turn"


async def test_the_agent_fails_refuses_crashes_and_hangs_on_request(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        with pytest.raises(acp.RequestError, match="no more paper"):
            await demo.prompt("say: so", "fail: no more paper")
        assert await demo.prompt("refuse") == "refusal"
        other = (await demo.agent.new_session(str(folder), mcp_servers=[])).session_id
        waiting = asyncio.create_task(demo.agent.prompt(session_id=other, prompt=[acp.text_block("sleep: 60")]))
        assert await demo.prompt("say: two at once") == "end_turn"
        with pytest.raises(acp.RequestError, match="already running"):
            await demo.agent.prompt(session_id=other, prompt=[acp.text_block("say: x")])
        crash = asyncio.create_task(demo.prompt("crash"))
        async with asyncio.timeout(60):
            assert await demo.process.wait() == 3
        crash.cancel()
        waiting.cancel()
    async with connect_demo(tmp_path, folder) as demo:
        turn = asyncio.create_task(demo.prompt("say: begun", "hang"))
        await demo.client.until(lambda: "begun" in demo.client.text)
        await asyncio.sleep(0.2)
        await demo.agent.cancel(session_id=demo.session)
        demo.process.terminate()
        await asyncio.sleep(0.5)
        assert demo.process.returncode is None
        assert not turn.done()
        turn.cancel()
        demo.process.kill()


async def test_a_session_is_loaded_by_another_process(tmp_path: Path, folder: Path) -> None:
    async with connect_demo(tmp_path, folder) as demo:
        await demo.agent.set_session_mode(session_id=demo.session, mode_id="ask")
        await demo.prompt("create a.txt: a", "say: remember me", "ask: yes?")
        original = [
            update.model_dump() for update in demo.client.updates if update.session_update != "tool_call_update"
        ]
    async with connect_demo(tmp_path, folder, load=demo.session) as again:
        assert again.client.list_updates("user_message_chunk")[0].content.text.startswith("create a.txt: a")
        replayed = [update.model_dump() for update in again.client.updates]
        assert [
            candidate
            for candidate in replayed
            if candidate["session_update"] not in ("tool_call_update", "user_message_chunk")
        ] == original
        again.client.choose = lambda title: "allow"
        await again.prompt("create b.txt: {answer}")
        assert again.client.requests == ["Create b.txt"]
        with pytest.raises(acp.RequestError) as caught:
            await again.agent.load_session(cwd=str(folder), session_id="demo-" + "0" * 32, mcp_servers=[])
        assert caught.value.code == -32002


async def test_malformed_messages_are_answered_with_errors(tmp_path: Path, folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *write_program(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"HOME": str(tmp_path)}
    )
    lines = [
        b"nonsense",
        b"[1]",
        b'"\xff"',
        b'{"jsonrpc":"2.0","id":1,"method":"no/such"}',
        b'{"jsonrpc":"2.0","method":"no/such/notice"}',
        b'{"jsonrpc":"2.0","id":99,"result":{}}',
        b'{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"../../x"}}',
        b'{"jsonrpc":"2.0","id":3,"method":"session/new","params":{"cwd":"relative"}}',
        b'{"jsonrpc":"2.0","id":4,"method":"initialize","params":[]}',
        b"x" * (51 << 20),
        b'{"jsonrpc":"2.0","id":5,"method":"initialize","params":{"protocolVersion":1}}',
    ]
    out, _ = await process.communicate(b"\n".join(lines) + b"\n")
    responses = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0
    assert [response.get("error", {}).get("code") for response in responses] == [
        -32700,
        -32600,
        -32700,
        -32601,
        -32002,
        -32602,
        -32602,
        -32600,
        None,
    ]
    assert responses[-1]["result"]["agentInfo"]["title"] == "Demo agent (no model)"


def test_the_program_supports_old_pythons_and_is_built_reproducibly() -> None:
    for path in Path(demo.__file__).parent.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 6))
    build_program.cache_clear()
    first = build_program()
    build_program.cache_clear()
    assert build_program() == first
    assert DEMO.demo
    assert len(first) <= 64 << 10  # it is sent to a sandbox together with its check, in one run
