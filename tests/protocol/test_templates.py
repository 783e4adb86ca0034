"""Test templates with the unmodified Python SDK: build, cache, tags, failures, and the resulting sandboxes."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import (
    AsyncTemplate,
    BuildException,
    CopyItem,
    Sandbox,
    Template,
    wait_for_file,
    wait_for_port,
    wait_for_timeout,
)
from e2b.exceptions import TemplateException

from tests.harness.engine import Engine

from .conftest import NewAsyncSandbox, NewSandbox
from .waiting import until


@pytest.fixture
def name(api: httpx.Client) -> Any:
    template_name = f"test-{uuid.uuid4().hex[:12]}"
    yield template_name
    api.delete(f"/templates/{template_name}")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Files to copy."""
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "test.txt").write_text("This is a test file.")
    (folder / ".hidden").write_text("hidden")
    (folder / "deep" / "code.py").write_text("print('deep')")
    (folder / "link.txt").symlink_to("test.txt")
    (folder / "nowhere").symlink_to("nothing-here")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    return tmp_path


def build(template: Any, name: str, **options: Any) -> list[str]:
    """Build the template and return its log lines."""
    logs: list[str] = []
    Template.build(template, name, on_build_logs=lambda entry: logs.append(entry.message), **options)
    return logs


def build_and_fail(template: Any, name: str, **options: Any) -> tuple[str, list[str]]:
    logs: list[str] = []
    with pytest.raises(BuildException) as caught:
        Template.build(template, name, on_build_logs=lambda entry: logs.append(entry.message), **options)
    return str(caught.value), logs


def test_user_directory_and_variables_apply_to_later_steps_and_sandboxes(name: str, new_sandbox: NewSandbox) -> None:
    template = (
        Template()
        .from_base_image()
        .set_envs({"GREETING": "hello world"})
        .set_envs({"BOTH": "$GREETING and ${GREETING}", "PLAIN": '"quoted" `not run` $(nor this)'})
        .run_cmd('echo "$BOTH" > both.txt; echo "$PLAIN" > plain.txt; id -un; pwd')
        .set_workdir("/app/inner")
        .run_cmd("pwd; touch here")
        .run_cmd("id -un; pwd", user="root")
        .set_workdir("below")
        .set_user("builder")
    )
    logs = build(template, name, cpu_count=1, memory_mb=256)
    for line in (
        "[builder 3/8] [stdout]: user",
        "[builder 3/8] [stdout]: /home/user",
        "[builder 5/8] [stdout]: /app/inner",
    ):
        assert line in logs
    assert "[builder 6/8] [stdout]: root" in logs
    sandbox = new_sandbox(name)
    out = sandbox.commands.run(
        "id -un; pwd; cat ~user/both.txt ~user/plain.txt; stat -c %U /app /app/inner/below; echo $BOTH"
    )
    assert out.stdout.splitlines() == [
        "builder",
        "/app/inner/below",
        "hello world and hello world",
        '"quoted" `not run` $(nor this)',
        "user",
        "user",
        "hello world and hello world",
    ]
    info = sandbox.get_info()
    assert (info.cpu_count, info.memory_mb, info.name) == (1, 256, name)


def test_path_applies_in_login_shells(name: str, new_sandbox: NewSandbox) -> None:
    template = Template().from_dockerfile(
        "FROM e2bdev/base:latest\n"
        "ENV PATH=/opt/mine:$PATH\n"
        "RUN mkdir /opt/mine && printf '#!/bin/sh\\necho mine' > /opt/mine/tool && chmod +x /opt/mine/tool\n"
        "RUN tool\n"
        "WORKDIR /work\n"
    )
    assert "[builder 5/7] [stdout]: mine" in build(template, name)
    assert new_sandbox(name).commands.run("tool; pwd; id -un").stdout == "mine\n/work\nuser\n"


def test_copy(name: str, context: Path, new_sandbox: NewSandbox) -> None:
    template = (
        Template(file_context_path=str(context))
        .from_base_image()
        .copy("folder/*", "folder")
        .copy("run.sh", "/usr/local/bin/runit", mode=0o755, user="root")
        .copy(["run.sh", "folder/test.txt"], ".")
        .copy("folder", "/opt/made/new/")
        .copy_items([CopyItem(src="folder/**/*.py", dest="py/"), CopyItem(src="run.sh", dest="sub/renamed.sh")])
        .copy("folder/link.txt", "resolved.txt", resolve_symlinks=True)
        .copy("folder", "folder")
        .run_cmd("runit && cat folder/link.txt")
    )
    build(template, name)
    sandbox = new_sandbox(name)
    found = sandbox.commands.run(
        "cd ~; find folder py sub run.sh test.txt resolved.txt | sort; readlink folder/link.txt folder/nowhere;"
        " stat -c '%U:%G %a %n' /usr/local/bin/runit folder folder/test.txt /opt/made /opt/made/new/deep resolved.txt;"
        " ls -A /tmp | grep copy || true"
    ).stdout.splitlines()
    listed = "folder folder/.hidden folder/deep folder/deep/code.py folder/link.txt folder/nowhere folder/test.txt"
    listed += " py py/deep py/deep/code.py resolved.txt run.sh sub sub/renamed.sh test.txt"
    assert sorted(found[:15]) == sorted(listed.split())
    assert found[15:] == [
        "test.txt",
        "nothing-here",
        "root:root 755 /usr/local/bin/runit",
        "user:user 755 folder",
        "user:user 644 folder/test.txt",
        "user:user 755 /opt/made",
        "user:user 755 /opt/made/new/deep",
        "user:user 644 resolved.txt",
    ]


def test_steps_are_cached_by_content(name: str, context: Path) -> None:
    def recipe(last: str) -> Any:
        base = Template(file_context_path=str(context)).from_base_image().set_envs({"KEY": name})
        return base.copy("folder", "folder").run_cmd("date +%s%N > when").run_cmd(last)

    first = build(recipe("cat when"), name)
    assert not [line for line in first if line.startswith("CACHED")]
    cached = build(recipe("cat when"), f"{name}:other")
    assert len([line for line in cached if line.startswith("CACHED [builder ")]) == 4
    partly_cached = build(recipe("cat when; true"), name)
    assert [line[:20] for line in partly_cached if "[builder 3/4]" in line] == ["CACHED [builder 3/4]"]
    stamp = next(line for line in first if "[builder 4/4] [stdout]" in line)
    assert stamp in partly_cached, "a step after a cached step must see the same files"

    (context / "folder" / "test.txt").write_text("something else")
    changed = build(recipe("cat when"), name)
    assert [line[:6] for line in changed if line.startswith("CACHED")] == ["CACHED"], (
        "all steps from the COPY on must run again"
    )

    forced = build(recipe("cat when"), name, skip_cache=True)
    assert not [line for line in forced if line.startswith("CACHED")]
    skipped = (
        Template(file_context_path=str(context)).from_base_image().set_envs({"KEY": name}).skip_cache().run_cmd("date")
    )
    assert [line[:20] for line in build(skipped, name) if "CACHED" in line] == ["CACHED [builder 1/2]"]


def test_a_new_build_does_not_affect_existing_sandboxes(name: str, new_sandbox: NewSandbox) -> None:
    build(Template().from_base_image().run_cmd(f"echo one-{name} > version"), name)
    old = new_sandbox(name)
    message, _ = build_and_fail(Template().from_base_image().run_cmd("echo broken > version && false"), name)
    assert message == "failed to run command 'echo broken > version && false': exit status 1"
    assert new_sandbox(name).files.read("version") == f"one-{name}\n", "a failed build must not change the template"
    build(Template().from_base_image().run_cmd(f"echo two-{name} > version"), name)
    assert new_sandbox(name).files.read("version") == f"two-{name}\n"
    assert old.files.read("version") == f"one-{name}\n"


def test_start_command_runs_in_every_sandbox(name: str, new_sandbox: NewSandbox) -> None:
    template = Template().from_base_image().set_workdir("/srv/site").run_cmd("echo served > index.html")
    logs = build(template.set_start_cmd("echo starting; python3 -m http.server 8000", wait_for_port(8000)), name)
    order = [
        logs.index(next(line for line in logs if text in line))
        for text in ("Running start", "Waiting for template", "is ready")
    ]
    assert order == sorted(order)
    assert "[start] [stdout]: starting" in logs
    for _ in range(2):
        sandbox = new_sandbox(name)
        assert sandbox.commands.run("curl -s localhost:8000").stdout == "served\n"
    snapshot = sandbox.create_snapshot()
    assert new_sandbox(snapshot.snapshot_id).commands.run("curl -s localhost:8000").stdout == "served\n"


def test_a_template_inherits_from_its_base_template(name: str, new_sandbox: NewSandbox) -> None:
    base = Template().from_base_image().set_envs({"BASE": "base", "LEVEL": "1"}).set_workdir("/srv/base")
    build(base.set_start_cmd("pwd > /tmp/where; sleep 1000", wait_for_file("/tmp/where")), f"{name}:base")
    derived = (
        Template()
        .from_template(f"{name}:base")
        .set_envs({"LEVEL": "2"})
        .run_cmd('test "$BASE $LEVEL $PWD" = "base 2 /srv/base"')
    )
    build(derived.set_workdir("/srv/derived"), f"{name}:derived")
    sandbox = new_sandbox(f"{name}:derived")
    assert sandbox.commands.run("echo $BASE $LEVEL; pwd; cat /tmp/where").stdout == "base 2\n/srv/derived\n/srv/base\n"
    sandbox.files.write("/srv/derived/kept.txt", "kept")
    snapshot = sandbox.create_snapshot()
    build(Template().from_template(snapshot.snapshot_id).run_cmd("cat kept.txt"), name)
    assert new_sandbox(name).files.read("/srv/derived/kept.txt") == "kept"


@pytest.mark.slow
def test_a_ready_command_that_only_sleeps_does_not_delay_sandboxes(name: str, new_sandbox: NewSandbox) -> None:
    template = (
        Template().from_base_image().set_start_cmd("sleep 1; exec python3 -m http.server 8000", wait_for_timeout(6_000))
    )
    build(template, name)
    started = time.monotonic()
    sandbox = new_sandbox(name)
    assert time.monotonic() - started < 6
    assert sandbox.commands.run("curl -s -o /dev/null -w '%{http_code}' localhost:8000").stdout == "200"


@pytest.mark.parametrize(
    ("change", "message", "step"),
    [
        (lambda t: t.run_cmd("true").run_cmd("cat nothing/there"), "failed to run command 'cat nothing/there': exit status 1", "2"),
        (
            lambda t: t.run_cmd("whoami", user="root123"),
            "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
            "1",
        ),
        (lambda t: t.set_user("; exit 1"), "failed to create user: '; exit 1' is not a valid user name", "1"),
        (lambda t: t.set_user("root").set_workdir("/root/.bashrc"), "failed to create workdir '/root/.bashrc'", "2"),
        (lambda t: t.make_symlink(".bashrc", ".bashrc"), "failed to run command 'ln -s .bashrc .bashrc': exit status 1", "1"),
        (
            lambda t: t.set_start_cmd("./nothing", wait_for_timeout(10_000)),
            "failed to run start command './nothing': exit status 127",
            "finalize",
        ),
    ],
)  # fmt: skip
def test_a_failed_build_names_the_step(name: str, api: httpx.Client, change: Any, message: str, step: str) -> None:
    template = change(Template().from_base_image())
    info = Template.build_in_background(template, name)
    until(lambda: Template.get_build_status(info).status.value in ("ready", "error"))
    status = Template.get_build_status(info)
    assert status.status.value == "error"
    assert status.reason is not None
    assert (status.reason.message, status.reason.step) == (message, step)
    assert status.log_entries[-1].message == f"Build failed: {message}"
    assert build_and_fail(template, name)[0] == message
    assert Template.exists(name)
    with pytest.raises(Exception, match="not found: none of its builds has succeeded"):
        Sandbox.create(name)


def test_an_unknown_base_template_fails_the_build(name: str) -> None:
    assert (
        build_and_fail(Template().from_template("this-template-does-not-exist"), name)[0]
        == "template 'this-template-does-not-exist' not found"
    )


def test_builds_have_a_memory_limit(name: str) -> None:
    hungry = Template().from_base_image().run_cmd("python3 -c 'len(bytearray(800 << 20))'")
    assert "needed more than 256 MiB of memory" in build_and_fail(hungry, name, memory_mb=256)[0]


def test_a_long_log_arrives_complete(name: str) -> None:
    logs = build(Template().from_base_image().skip_cache().run_cmd("seq 1 450; echo oops >&2"), name)
    assert [line for line in logs if re.fullmatch(r"\[builder 1/1\] \[stdout\]: \d+", line)] == [
        f"[builder 1/1] [stdout]: {number}" for number in range(1, 451)
    ]
    assert "[builder 1/1] [stderr]: oops" in logs


def test_a_background_build_can_be_cancelled(name: str, api: httpx.Client) -> None:
    info = Template.build_in_background(
        Template().from_base_image().skip_cache().run_cmd("echo begun; sleep 600"), name
    )
    assert Template.get_build_status(info).status.value == "building"
    until(lambda: any("begun" in entry.message for entry in Template.get_build_status(info).log_entries))
    address = f"/templates/{info.template_id}/builds/{info.build_id}"
    assert api.delete(address).status_code == 204
    status = Template.get_build_status(info)
    assert (status.status.value, status.reason and status.reason.message) == ("error", "The build was cancelled.")
    assert api.delete(address).status_code == 409
    assert api.post(f"/v2{address}", json={"fromTemplate": "base"}).status_code == 409


def test_a_queued_build_has_the_status_building(name: str, api: httpx.Client) -> None:
    slow = Template().from_base_image().skip_cache().run_cmd("sleep 600")
    started = [Template.build_in_background(slow, f"{name}:{number}") for number in range(6)]
    assert {Template.get_build_status(info).status.value for info in started} == {"building"}
    last = api.get(f"/templates/{name}").json()["builds"][0]
    assert (last["buildID"], last["status"]) == (started[-1].build_id, "building")
    has_started = [bool(Template.get_build_status(info).log_entries) for info in started]
    assert has_started == [True] * 4 + [False] * 2, "no more than build_concurrency builds may run at a time"


def test_deleting_a_template_cancels_its_build_and_frees_the_name(
    name: str, api: httpx.Client, new_sandbox: NewSandbox
) -> None:
    build(Template().from_base_image().run_cmd("echo kept > kept"), name)
    sandbox = new_sandbox(name)
    info = Template.build_in_background(Template().from_base_image().skip_cache().run_cmd("sleep 600"), name)
    assert api.delete(f"/templates/{name}").status_code == 204
    assert api.get(f"/templates/{info.template_id}/builds/{info.build_id}/status").status_code == 404
    assert api.delete(f"/templates/{name}").status_code == 404
    assert not Template.exists(name)
    assert sandbox.files.read("kept") == "kept\n", "sandboxes of a deleted template must keep running"
    with pytest.raises(Exception, match="not found"):
        Sandbox.create(name)
    build(Template().from_base_image(), name)
    assert Template.exists(name)


def test_a_newer_build_of_the_same_tag_cancels_the_older(name: str) -> None:
    slow = Template.build_in_background(Template().from_base_image().skip_cache().run_cmd("sleep 600"), name)
    other = Template.build_in_background(Template().from_base_image().skip_cache().run_cmd("sleep 600"), f"{name}:else")
    build(Template().from_base_image(), name)
    status = Template.get_build_status(slow)
    assert status.reason is not None
    assert status.reason.message == f"A newer build of '{name}' was started."
    assert Template.get_build_status(other).status.value == "building"


def test_tags(name: str, api: httpx.Client, new_sandbox: NewSandbox) -> None:
    first = Template.build(Template().from_base_image().run_cmd("echo 1 > version"), f"{name}:v1", tags=["stable"])
    assert sorted(first.tags) == ["stable", "v1"]
    with pytest.raises(Exception, match="not found: it has no tag 'default'; its tags are stable, v1"):
        Sandbox.create(name)
    second = Template.build(Template().from_base_image().run_cmd("echo 2 > version"), name)
    assert second.template_id == first.template_id
    assert new_sandbox(f"{name}:stable").files.read("version") == "1\n"
    assert new_sandbox(name).files.read("version") == "2\n"
    moved = Template.assign_tags(name, ["stable", f"{name}:next"])
    assert (moved.build_id, sorted(moved.tags)) == (second.build_id, ["next", "stable"])
    assert new_sandbox(f"{name}:stable").files.read("version") == "2\n"
    assert {tag.tag: tag.build_id for tag in Template.get_tags(name)} == {
        "v1": first.build_id,
        "stable": second.build_id,
        "default": second.build_id,
        "next": second.build_id,
    }
    Template.remove_tags(name, "next")
    for wrong in ("next", "default"):
        with pytest.raises(TemplateException):
            Template.remove_tags(name, wrong)
    with pytest.raises(TemplateException, match="404"):
        Template.assign_tags("nothing-of-this-name", "v1")
    with pytest.raises(TemplateException, match="400"):
        Template.assign_tags(name, "no tag")
    address = f"/templates/{first.template_id}/tags"
    assert api.get(f"{address}/count").json() == {"total": 3}
    assert api.get(f"{address}/exists", params={"tag": "STABLE"}).json() == {"exists": True, "normalizedTag": "stable"}
    history = api.get(f"{address}/stable/assignments").json()["data"]
    assert [item["buildId"] for item in history] == [second.build_id, first.build_id]
    groups = api.get(f"{address}/groups", params={"sort": "name_asc", "tagsLimit": 2}).json()
    assert ([group["tag"] for group in groups["tags"]], groups["nextCursor"]) == (["default", "stable"], "2")


def test_list_and_get_templates(name: str, api: httpx.Client) -> None:
    info = Template.build(Template().from_base_image(), name, cpu_count=1, memory_mb=256)
    listed = next(
        candidate for candidate in api.get("/v2/templates").json() if candidate["templateID"] == info.template_id
    )
    expected = {
        "names": [name],
        "buildID": info.build_id,
        "buildStatus": "ready",
        "cpuCount": 1,
        "memoryMB": 256,
        "public": False,
    }
    assert listed | expected == listed
    listed_ids, token = [], None
    while True:
        page = api.get("/v2/templates", params={"limit": 1, **({"nextToken": token} if token else {})})
        listed_ids += [item["templateID"] for item in page.json()]
        if (token := page.headers.get("X-Next-Token")) is None:
            break
    assert listed_ids == sorted(item["templateID"] for item in api.get("/templates").json())
    Template.build(Template().from_base_image(), name)
    detail = api.get(f"/templates/{name}").json()
    assert (detail["buildCount"], [item["status"] for item in detail["builds"]]) == (2, ["ready", "ready"])
    assert api.patch(f"/v2/templates/{info.template_id}", json={"public": True}).json() == {"names": [name]}
    assert api.get(f"/templates/aliases/{name}").json() == {"templateID": info.template_id, "public": True}
    assert {"base", "host"} & {name for item in api.get("/default-templates").json() for name in item["names"]}


def test_invalid_requests_are_refused(name: str, api: httpx.Client, sandbox: Sandbox) -> None:
    def create_template(**body: Any) -> tuple[int, str]:
        response = api.post("/v3/templates", json=body)
        return response.status_code, response.json().get("message", "")

    assert create_template(name="base")[0] == 403
    assert create_template(name="code-interpreter-v1:mine")[0] == 403
    assert create_template(name="No Name!")[0] == 400
    assert create_template(name=name, tags=["a b"])[0] == 400
    assert create_template(name=name, cpuCount=0) == (400, "CPU count must be at least 1")
    assert create_template(name=name, cpuCount=1024)[1].startswith("CPU count can't be higher than")
    assert create_template(name=name, memoryMB=32)[0] == 400
    assert create_template(name=name, memoryMB=1024 * 1024)[1].startswith("Memory can't be higher than")
    assert create_template(name=name, memoryMB=1001) == (400, "Memory must be divisible by 2")
    assert create_template()[0] == 400
    snapshot = sandbox.create_snapshot(name=f"{name}-snapshot")
    assert create_template(name=f"{name}-snapshot")[0] == 409
    sandbox.delete_snapshot(snapshot.snapshot_id)
    made = api.post("/v2/templates", json={"alias": name}).json()
    address = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    assert api.post(address, json={}).status_code == 400
    assert api.post(address, json={"fromImage": "a", "fromTemplate": "b"}).status_code == 400
    assert api.post(address, json={"fromTemplate": "base", "steps": [{"type": "FROM"}]}).status_code == 400
    assert (
        api.post(f"/v2/templates/{made['templateID']}/builds/{uuid.uuid4()}", json={"fromTemplate": "base"}).status_code
        == 404
    )
    assert api.post("/templates", json={"dockerfile": "FROM x"}).status_code == 501
    assert api.patch("/v2/templates/base", json={"public": True}).status_code == 403
    assert api.delete("/templates/base").status_code == 403


def test_uploads_need_only_the_signed_link(name: str, api: httpx.Client) -> None:
    made = api.post("/v3/templates", json={"name": name}).json()
    files = uuid.uuid4().hex * 2
    link = api.get(f"/templates/{made['templateID']}/files/{files}")
    assert (link.status_code, link.json()["present"]) == (201, False)
    url = httpx.URL(link.json()["url"])
    other = str(url).replace(files, uuid.uuid4().hex * 2)
    archive = b"\x1f\x8b" + b"x" * 100
    assert httpx.put(other, content=archive).status_code == 403
    assert httpx.put(url.copy_with(query=b""), content=archive).status_code == 403
    assert httpx.put(url, content=b"not an archive at all").status_code == 400
    assert httpx.get(url).status_code == 405
    assert not api.get(f"/templates/{made['templateID']}/files/{files}").json()["present"]
    assert httpx.put(url, content=archive).status_code == 200
    assert api.get(f"/templates/{made['templateID']}/files/{files}").json()["present"]
    assert api.get(f"/templates/{made['templateID']}/files/{'Z' * 64}").status_code == 400
    assert api.get(f"/templates/nothing-here/files/{files}").status_code == 404
    broken = {"fromTemplate": "base", "steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": files}]}
    api.post(f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", json=broken)
    address = f"/templates/{made['templateID']}/builds/{made['buildID']}/status"
    until(lambda: api.get(address).json()["status"] == "error")
    status = api.get(address).json()
    assert status["reason"]["step"] == "1"
    assert "failed to copy 'a' to 'b'" in status["reason"]["message"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_package_managers_and_git(name: str, tmp_path: Path) -> None:
    template = (
        Template()
        .from_base_image()
        .pip_install("idna")
        .pip_install(["certifi"], g=False)
        .npm_install("is-odd", g=True)
        .make_dir("made/deep", mode=0o700)
        .run_cmd(
            [
                "git init -q made/repo",
                "git -C made/repo -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m one",
            ]
        )
        .git_clone("made/repo", "cloned")
        .rename("cloned", "renamed")
        .make_symlink("renamed", "linked")
        .remove("made", recursive=True)
        .run_cmd(
            "python3 -c 'import idna, certifi' && npm ls -g is-odd && git -C linked log --oneline && test ! -e made"
        )
    )
    build(template, name)


async def test_async_client(name: str, new_async_sandbox: NewAsyncSandbox) -> None:
    logs: list[str] = []
    template = AsyncTemplate().from_base_image().run_cmd("echo async > made")
    info = await AsyncTemplate.build(template, name, on_build_logs=lambda entry: logs.append(entry.message))
    assert any("RUN echo async" in line for line in logs)
    sandbox = await new_async_sandbox(name)
    assert await sandbox.files.read("made") == "async\n"
    assert await AsyncTemplate.exists(name)
    assert (await AsyncTemplate.assign_tags(name, "v1")).build_id == info.build_id
    assert sorted(tag.tag for tag in await AsyncTemplate.get_tags(name)) == ["default", "v1"]
    await AsyncTemplate.remove_tags(name, "v1")
    background = await AsyncTemplate.build_in_background(template, name)
    assert (await AsyncTemplate.get_build_status(background)).status.value == "ready"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_engine_crash_during_a_build(name: str) -> None:
    """After kill -9, finished templates are kept, running builds are reported as failed, and no build sandbox is left."""
    engine = Engine({"POOL_SIZE": "0"})
    engine.start()
    options = {"api_url": engine.url, "sandbox_url": engine.url, "api_key": engine.key}
    try:
        ready = Template().from_base_image().run_cmd("echo ready > state").set_start_cmd("sleep 1000", "true")
        Template.build(ready, f"{name}-ready", **options)
        slow = Template().from_base_image().run_cmd("date +%N > done").run_cmd("echo begun; sleep 600")
        info = Template.build_in_background(slow, name, **options)
        until(lambda: any("begun" in line.message for line in Template.get_build_status(info, **options).log_entries))
        engine.kill()
        engine.start()
        status = Template.get_build_status(info, **options)
        assert status.status.value == "error"
        assert status.reason is not None
        assert status.reason.message.startswith("The engine ended during the build.")
        assert any(line.message.startswith("[builder 1/2] RUN date") for line in status.log_entries)
        assert status.log_entries[-1].message.startswith("Build failed: The engine ended")
        assert Sandbox.list(**options).next_items() == []
        sandbox = Sandbox.create(f"{name}-ready", **options)
        assert sandbox.files.read("state") == "ready\n"
        assert "sleep 1000" in sandbox.commands.run("ps ax").stdout
        logs: list[str] = []
        rebuilt = Template().from_base_image().run_cmd("date +%N > done").run_cmd("cat done")
        Template.build(rebuilt, name, on_build_logs=lambda entry: logs.append(entry.message), **options)
        assert any(line.startswith("CACHED [builder 1/2]") for line in logs), "a completed step must not run again"
    finally:
        leftovers = engine.stop()
    assert not leftovers
