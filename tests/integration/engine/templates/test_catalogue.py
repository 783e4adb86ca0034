from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from sandyard.engine.templates import catalogue
from sandyard.engine.templates.catalogue import Catalogue, make_template_id
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.trust import Trust
from tests.integration.engine.templates.harness import find_layer_paths, get_layers, publish

pytestmark = pytest.mark.usefixtures("fake_machine")


def test_a_template_is_found_by_name_id_alias_and_tag(folder: TemplateFolder, templates: Catalogue) -> None:
    built = publish(folder, "base", "b1")
    templates.open()
    found = templates.resolve("base")
    assert found is not None
    assert found.layers == (folder.name_layer(built),)
    for name in ("code-interpreter-v1", found.id, "base:default", "base:latest", f"{found.id}:default"):
        assert templates.resolve(name) is found, name
    for name in ("", "Base", "base:v2", "base:", "nothing", ":default"):
        assert templates.resolve(name) is None, name


def test_ids_look_like_those_of_e2b_and_never_change() -> None:
    assert re.fullmatch(r"[a-z0-9]{20}", make_template_id("base"))
    assert make_template_id("base") == "fzdms7drass7qlxrvurt"
    assert make_template_id("base") != make_template_id("host")


def test_host_is_served_as_base_until_base_is_built(folder: TemplateFolder, templates: Catalogue) -> None:
    templates.open()
    stand_in = templates.resolve("base")
    assert stand_in is not None
    assert stand_in.layers == get_layers(templates, "host")
    assert stand_in.id == make_template_id("base")
    built = publish(folder, "base", "b1")
    templates.refresh()
    assert get_layers(templates, "base") == (folder.name_layer(built),)
    assert get_layers(templates, "host") == stand_in.layers
    assert {template.id for template in templates.list() if template.ready} == {
        make_template_id("base"),
        make_template_id("host"),
    }


def test_an_older_base_is_preferred_to_the_stand_in(folder: TemplateFolder, templates: Catalogue) -> None:
    old = publish(folder, "base", "b0")
    templates.open()
    assert get_layers(templates, "base") == (folder.name_layer(old),)


def test_trust_is_the_top_layer_and_is_written_once(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "read_trust", lambda: Trust(pip=(("timeout", "5"),), env={"SSL_CERT_FILE": "/x"}))
    built = publish(folder, "base", "b1")
    templates.open()
    top, below = get_layers(templates, "base")
    assert below == folder.name_layer(built)
    assert (find_layer_paths(folder, (top,))[0] / "etc/pip.conf").read_text() == "[global]\ntimeout = 5\n"
    found = templates.resolve("base")
    assert found is not None
    assert found.env["SSL_CERT_FILE"] == "/x"
    templates.refresh()
    assert get_layers(templates, "base") == (top, below)
    assert len(folder.list_versions("trust")) == 1

    plain = Catalogue(folder.directory, carry_host_trust=False)
    plain.open()
    assert get_layers(plain, "base") == (folder.name_layer(built),)


async def test_a_missing_base_is_built_in_the_background_and_then_used(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    finish = asyncio.Event()

    async def build(self: Catalogue, name: str) -> None:
        await finish.wait()
        publish(folder, name, "b1")

    monkeypatch.setattr(Catalogue, "build", build)
    templates.open()
    await templates.start()
    await asyncio.sleep(0)
    assert get_layers(templates, "base") == get_layers(templates, "host"), "the stand-in is served during the build"
    finish.set()
    await templates.wait_for_builds()
    assert get_layers(templates, "base") != get_layers(templates, "host")
    events = [record.getMessage() for record in caplog.records]
    assert events.index("template_standin") < events.index("template_ready")
    await templates.close()


async def test_a_base_that_cannot_be_built_is_logged_as_a_warning(
    templates: Catalogue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catalogue, "list_missing_requirements", lambda: ["install the package mmdebstrap"])
    templates.open()
    await templates.start()
    await templates.wait_for_builds()
    [record] = [record for record in caplog.records if record.getMessage() == "template_standin"]
    assert record.levelname == "WARNING"


async def test_a_failed_build_is_logged_and_the_stand_in_stays(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sandyard.kit.python.PYTHON", "/bin/false")
    templates.open()
    await templates.start()
    await templates.wait_for_builds()
    assert "template_build_failed" in [record.getMessage() for record in caplog.records]
    assert get_layers(templates, "base") == get_layers(templates, "host")


async def test_close_ends_a_running_build(
    templates: Catalogue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, pid = tmp_path / "python", tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ >{pid}.new && mv {pid}.new {pid}\nexec sleep 3600\n")
    script.chmod(0o755)
    monkeypatch.setattr("sandyard.kit.python.PYTHON", str(script))
    templates.open()
    await templates.start()
    while not pid.exists():
        await asyncio.sleep(0.01)
    await templates.close()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
