from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.engine.templates import catalogue, commands, interpreter, interpreter_program
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion
from sandyard.engine.templates.trust import Trust
from sandyard.kit.errors import InvalidInputError
from tests.integration.engine.templates.test_catalogue import layers, machine_of_the_test, publish, templates

__all__ = ["machine_of_the_test", "templates"]  # fixtures


def with_python(version: TemplateVersion) -> TemplateVersion:
    (version.rootfs / "usr/bin").mkdir(parents=True)
    (version.rootfs / "usr/bin/python3").symlink_to("python3.11")
    return version


def built_on(folder: TemplateFolder, below: TemplateVersion, digest: str, extras: str = "") -> TemplateVersion:
    with folder.open_build_directory(interpreter.NAME) as work:
        (work / ROOTFS).mkdir()
        details = {"base": below.version, "with": extras}
        return folder.publish(work, folder.make_version(interpreter.NAME, digest, "a test", details))


def test_it_stands_on_its_own_base_with_our_program_above(folder: TemplateFolder, templates: Catalogue) -> None:
    below = with_python(publish(folder, "base", "b1"))
    templates.open()
    assert layers(templates, "code-interpreter-v1") == layers(templates, "base")
    built = built_on(folder, below, "i1")
    newer = with_python(publish(folder, "base", "b2"))
    templates.refresh()
    found = templates.resolve("code-interpreter-v1")
    assert found is not None
    assert found.layers[1:] == (str(built.rootfs), str(below.rootfs))
    assert (found.start, found.memory_mb) == (interpreter_program.START, interpreter.MEMORY_MB)
    assert layers(templates, "base") == (str(newer.rootfs),)
    base = templates.resolve("base")
    assert base is not None
    assert (base.aliases, base.start) == (("base",), None)
    program = Path(found.layers[0])
    assert (program / "opt/interpreter/start").stat().st_mode & 0o777 == 0o755
    assert (program / "opt/interpreter/sandyard/engine/interpreter/app.py").is_file()
    assert not (program / "opt/interpreter/sandyard/__init__.py").exists()
    spec = json.loads((program / "usr/local/share/jupyter/kernels/python3/kernel.json").read_text())
    assert spec["metadata"] == {"forked": "python"}
    templates.refresh()
    assert len(folder.list_versions(interpreter_program.NAME)) == 1


def test_trust_lies_above_all(folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "read_trust", lambda: Trust(pip=(("timeout", "5"),)))
    below = with_python(publish(folder, "base", "b1"))
    built_on(folder, below, "i1")
    templates.open()
    found = layers(templates, "code-interpreter")
    assert len(found) == 4
    assert (Path(found[0]) / "etc/pip.conf").is_file()


def test_what_is_out_of_date(folder: TemplateFolder) -> None:
    assert not interpreter.is_stale(folder), "without a base there is nothing to build on"
    below = publish(folder, "base", "b1")
    assert interpreter.is_stale(folder)
    built_on(folder, below, interpreter.Recipe(below, ("r",)).digest, "r")
    assert not interpreter.is_stale(folder), "the languages that were chosen are kept"
    publish(folder, "base", "b2")
    assert interpreter.is_stale(folder)
    assert interpreter.newest(folder) is not None


def test_languages_that_can_be_added() -> None:
    assert interpreter.parse_languages("") == ()
    assert interpreter.parse_languages(" R ,r") == ("r",)
    assert interpreter.parse_languages("r,java") == ("java", "r")
    with pytest.raises(InvalidInputError, match="Choose from java, r"):
        interpreter.parse_languages("cobol")


def test_commands(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "missing_for_base", list)
    place = ["--templates-dir", str(folder.directory), "build"]
    run = CliRunner().invoke
    done = run(commands.template, [*place, "code-interpreter"])
    assert (done.exit_code, "Build base first" in done.output) == (1, True)
    done = run(commands.template, [*place, "code-interpreter", "--if-possible"])
    assert (done.exit_code, "base instead" in done.output) == (0, True)
    done = run(commands.template, [*place, "base", "--with", "r"])
    assert (done.exit_code, "--with can only be used with code-interpreter" in done.output) == (1, True)
    below = publish(folder, "base", "b1")
    built_on(folder, below, interpreter.Recipe(below).digest)
    done = run(commands.template, [*place, "code-interpreter"])
    assert (done.exit_code, done.output) == (0, "")


def test_languages_are_added_to_those_it_has(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[tuple[str, ...] | None] = []

    def build(
        folder: TemplateFolder, report: object, extras: tuple[str, ...] | None, *, force: bool
    ) -> TemplateVersion:
        wanted.append(extras)
        return built_on(folder, below, f"i{len(wanted)}", ",".join(extras or ()))

    monkeypatch.setattr(commands, "missing_for_base", list)
    monkeypatch.setattr(interpreter, "build", build)
    monkeypatch.setattr(interpreter.base, "size_of", lambda _: "1 MB")
    below = publish(folder, "base", "b1")
    for extras in ("java", "r", ""):
        command = ["--templates-dir", str(folder.directory), "build", "code-interpreter", "--with", extras]
        CliRunner().invoke(commands.template, command)
    assert wanted == [("java",), ("java", "r"), ()]


async def test_a_language_is_added_when_it_is_first_asked_for(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = with_python(publish(folder, "base", "b1"))
    built_on(folder, below, interpreter.Recipe(below).digest)
    templates.open()
    builds: list[tuple[str, ...]] = []
    failure: str | None = "no route to the archive"

    async def build(*command: str) -> str | None:
        builds.append(command)
        if failure is None:
            built_on(folder, below, f"i{len(builds)}", command[2])
        return failure

    monkeypatch.setattr(templates, "_build", build)
    assert templates.add_language(interpreter.NAME, "cobol") is None
    assert templates.add_language("base", "r") is None
    told = templates.add_language(interpreter.NAME, "r")
    assert told is not None
    assert "being added" in told
    assert "`sandyard template build code-interpreter --with r`" in told
    assert templates.add_language(interpreter.NAME, "r") == told, "it is begun once"
    assert templates._adder is not None
    await templates._adder
    assert builds == [("code-interpreter", "--with", "r")]
    told = templates.add_language(interpreter.NAME, "r")
    assert told is not None
    assert "failed: no route to the archive." in told
    assert len(builds) == 1, "what has failed is not tried by every request"
    failure, before = None, layers(templates, "code-interpreter-v1")
    templates.add_language(interpreter.NAME, "java")
    await templates._adder
    assert layers(templates, "code-interpreter-v1") != before, "new sandboxes have it, without a restart"
    told = templates.add_language(interpreter.NAME, "java")
    assert told is not None
    assert "New sandboxes have it" in told


async def test_what_others_build_is_served_without_a_restart(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = with_python(publish(folder, "base", "b1"))
    built_on(folder, below, interpreter.Recipe(below).digest)
    templates.open()
    monkeypatch.setattr(catalogue, "WATCH_SECONDS", 0.01)
    before = layers(templates, "code-interpreter-v1")
    await templates.start()
    built = built_on(folder, below, "by-hand", "r")
    async with asyncio.timeout(20):
        while layers(templates, "code-interpreter-v1") == before:
            await asyncio.sleep(0.01)
    assert str(built.rootfs) in layers(templates, "code-interpreter-v1")
    await templates.close()


def test_the_locks_name_no_registry() -> None:
    lock = interpreter.LOCK.read_text() + interpreter.JAVA_LOCK.read_text()
    assert "://" not in lock
    assert lock.count("==") == sum(" \\" in line and "==" in line for line in lock.splitlines()), "each has its hashes"
