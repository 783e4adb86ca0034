"""Exchange files with the program `age`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sandyard.kit.age import PrivateKey
from tests.harness.age import CHUNK, decrypt, encrypt


@pytest.mark.skipif(shutil.which("age") is None, reason="the program age is not installed")
def test_the_program_age_reads_and_writes_the_same_format(tmp_path: Path) -> None:
    identity, data = tmp_path / "key.txt", b"y" * (CHUNK + 5)
    subprocess.run(["age-keygen", "-o", identity], check=True, capture_output=True)
    key = PrivateKey.parse(identity.read_text().splitlines()[-1])
    command = ["age", "--decrypt", "--identity", str(identity)]
    assert subprocess.run(command, input=encrypt(data, key.public_key), capture_output=True, check=True).stdout == data
    command = ["age", "--recipient", str(key.public_key)]
    assert decrypt(subprocess.run(command, input=data, capture_output=True, check=True).stdout, key) == data
