"""The code interpreter's SDK, as far as commands and files go: its template is known, its kernel is still to come."""

from __future__ import annotations

from e2b_code_interpreter import AsyncSandbox, Sandbox


def test_a_new_user_s_lines() -> None:
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
        assert sandbox.get_info().name == "code-interpreter-v1"
        sandbox.files.write("data.csv", "a,b\n1,2\n")
        assert [entry.name for entry in sandbox.files.list("/home/user") if entry.name == "data.csv"] == ["data.csv"]
        result = sandbox.commands.run("python3 -c 'import csv; print(list(csv.reader(open(\"data.csv\"))))'")
        assert result.stdout == "[['a', 'b'], ['1', '2']]\n"
        again = Sandbox.connect(sandbox.sandbox_id)
        assert again.files.read("data.csv") == "a,b\n1,2\n"
        assert sandbox.pause() is True
        assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo back").stdout == "back\n"


async def test_async() -> None:
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.files.write("hello.txt", "hello")
        assert (await sandbox.commands.run("cat hello.txt")).stdout == "hello"
