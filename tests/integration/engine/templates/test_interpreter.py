from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from sandyard.engine.templates import catalogue, commands, interpreter, interpreter_program
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion
from sandyard.engine.templates.trust import Trust
from sandyard.kit.errors import InvalidInputError
from tests.integration.engine.templates.harness import find_layer_paths, get_layers, publish

pytestmark = pytest.mark.usefixtures("fake_machine")


def add_python(version: TemplateVersion) -> TemplateVersion:
    (version.rootfs / "usr/bin").mkdir(parents=True)
    (version.rootfs / "usr/bin/python3").symlink_to("python3.11")
    return version


def publish_interpreter(
    folder: TemplateFolder, base_version: TemplateVersion, digest: str, extras: str = ""
) -> TemplateVersion:
    with folder.open_build_directory(interpreter.NAME) as work:
        (work / ROOTFS).mkdir()
        details = {"base": base_version.version, "with": extras}
        return folder.publish(work, folder.make_version(interpreter.NAME, digest, "a test", details))


def test_the_interpreter_stays_on_its_own_base_with_our_program_on_top(
    folder: TemplateFolder, templates: Catalogue
) -> None:
    base_version = add_python(publish(folder, "base", "b1"))
    templates.open()
    assert get_layers(templates, "code-interpreter-v1") == get_layers(templates, "base")
    built = publish_interpreter(folder, base_version, "i1")
    newer = add_python(publish(folder, "base", "b2"))
    templates.refresh()
    found = templates.resolve("code-interpreter-v1")
    assert found is not None
    assert found.layers[1:] == (folder.name_layer(built), folder.name_layer(base_version))
    assert (found.start, found.memory_mb) == (interpreter_program.START, interpreter.MEMORY_MB)
    assert get_layers(templates, "base") == (folder.name_layer(newer),)
    base = templates.resolve("base")
    assert base is not None
    assert (base.aliases, base.start) == (("base",), None)
    program = find_layer_paths(folder, found.layers)[0]
    assert (program / "opt/interpreter/start").stat().st_mode & 0o777 == 0o755
    assert (program / "opt/interpreter/sandyard/engine/interpreter/app.py").is_file()
    assert not (program / "opt/interpreter/sandyard/__init__.py").exists()
    spec = json.loads((program / "usr/local/share/jupyter/kernels/python3/kernel.json").read_text())
    assert spec["metadata"] == {"forked": "python"}
    templates.refresh()
    assert len(folder.list_versions(interpreter_program.NAME)) == 1


def test_trust_is_the_top_layer(folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "read_trust", lambda: Trust(pip=(("timeout", "5"),)))
    base_version = add_python(publish(folder, "base", "b1"))
    publish_interpreter(folder, base_version, "i1")
    templates.open()
    found = get_layers(templates, "code-interpreter")
    assert len(found) == 4
    assert (find_layer_paths(folder, found)[0] / "etc/pip.conf").is_file()


def test_the_interpreter_is_stale_when_the_base_changes(folder: TemplateFolder) -> None:
    assert not interpreter.is_stale(folder), "without a base there is nothing to build on"
    base_version = publish(folder, "base", "b1")
    assert interpreter.is_stale(folder)
    publish_interpreter(folder, base_version, interpreter.Recipe(base_version, ("r",)).digest, "r")
    assert not interpreter.is_stale(folder), "the languages that were chosen are kept"
    publish(folder, "base", "b2")
    assert interpreter.is_stale(folder)
    assert interpreter.find_newest(folder) is not None


def test_languages_are_parsed_and_unknown_ones_rejected() -> None:
    assert interpreter.parse_languages("") == ()
    assert interpreter.parse_languages(" R ,r") == ("r",)
    assert interpreter.parse_languages("r,java") == ("java", "r")
    with pytest.raises(InvalidInputError, match="Choose from java, r"):
        interpreter.parse_languages("cobol")


def test_the_build_command_reports_errors_and_finished_builds(
    folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "list_missing_requirements", list)
    arguments = ["--templates-dir", str(folder.directory), "build"]
    run = CliRunner().invoke
    result = run(commands.template, [*arguments, "code-interpreter"])
    assert (result.exit_code, "Build base first" in result.output) == (1, True)
    result = run(commands.template, [*arguments, "code-interpreter", "--if-possible"])
    assert (result.exit_code, "base instead" in result.output) == (0, True)
    result = run(commands.template, [*arguments, "base", "--with", "r"])
    assert (result.exit_code, "--with can only be used with code-interpreter" in result.output) == (1, True)
    base_version = publish(folder, "base", "b1")
    publish_interpreter(folder, base_version, interpreter.Recipe(base_version).digest)
    result = run(commands.template, [*arguments, "code-interpreter"])
    assert (result.exit_code, result.output) == (0, "")


def test_new_languages_are_added_to_the_existing_ones(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[str, ...] | None] = []

    def build(
        folder: TemplateFolder, report: object, extras: tuple[str, ...] | None, *, force: bool
    ) -> TemplateVersion:
        requested.append(extras)
        return publish_interpreter(folder, base_version, f"i{len(requested)}", ",".join(extras or ()))

    monkeypatch.setattr(commands, "list_missing_requirements", list)
    monkeypatch.setattr(interpreter, "build", build)
    monkeypatch.setattr(interpreter.base, "measure_size", lambda _: "1 MiB")
    base_version = publish(folder, "base", "b1")
    for extras in ("java", "r", ""):
        command = ["--templates-dir", str(folder.directory), "build", "code-interpreter", "--with", extras]
        CliRunner().invoke(commands.template, command)
    assert requested == [("java",), ("java", "r"), ()]


async def test_a_language_is_added_on_the_first_request(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_version = add_python(publish(folder, "base", "b1"))
    publish_interpreter(folder, base_version, interpreter.Recipe(base_version).digest)
    templates.open()
    builds: list[tuple[str, ...]] = []
    failure: str | None = "no route to the archive"

    async def build(*command: str) -> str | None:
        builds.append(command)
        if failure is None:
            publish_interpreter(folder, base_version, f"i{len(builds)}", command[2])
        return failure

    monkeypatch.setattr(templates, "build", build)
    assert templates.add_language(interpreter.NAME, "cobol") is None
    assert templates.add_language("base", "r") is None
    message = templates.add_language(interpreter.NAME, "r")
    assert message is not None
    assert "being added" in message
    assert "`sandyard template build code-interpreter --with r`" in message
    assert templates.add_language(interpreter.NAME, "r") == message, "the build is started once"
    await templates.wait_for_builds()
    assert builds == [("code-interpreter", "--with", "r")]
    message = templates.add_language(interpreter.NAME, "r")
    assert message is not None
    assert "failed: no route to the archive." in message
    assert len(builds) == 1, "a failed build is not repeated by every request"
    failure, before = None, get_layers(templates, "code-interpreter-v1")
    templates.add_language(interpreter.NAME, "java")
    await templates.wait_for_builds()
    assert get_layers(templates, "code-interpreter-v1") != before, "new sandboxes have it, without a restart"
    message = templates.add_language(interpreter.NAME, "java")
    assert message is not None
    assert "New sandboxes have it" in message


async def test_versions_built_by_others_are_served_without_a_restart(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_version = add_python(publish(folder, "base", "b1"))
    publish_interpreter(folder, base_version, interpreter.Recipe(base_version).digest)
    templates.open()
    monkeypatch.setattr(catalogue, "WATCH_SECONDS", 0.01)
    before = get_layers(templates, "code-interpreter-v1")
    await templates.start()
    built = publish_interpreter(folder, base_version, "by-hand", "r")
    async with asyncio.timeout(20):
        while get_layers(templates, "code-interpreter-v1") == before:
            await asyncio.sleep(0.01)
    assert folder.name_layer(built) in get_layers(templates, "code-interpreter-v1")
    await templates.close()


def test_lock_files_name_no_registry() -> None:
    lock = interpreter.LOCK.read_text() + interpreter.JAVA_LOCK.read_text()
    assert "://" not in lock
    assert lock.count("==") == sum(" \\" in line and "==" in line for line in lock.splitlines()), (
        "every package has hashes"
    )
