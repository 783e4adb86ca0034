"""Test the unmodified SDK of the code interpreter with real kernels. Most tests share a sandbox, so state of one test may be visible
in the next, as in a notebook."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Context, Sandbox
from e2b_code_interpreter.charts import (
    BarChart,
    BoxAndWhiskerChart,
    ChartType,
    LineChart,
    PieChart,
    ScatterChart,
    SuperChart,
)

from sandyard.engine.settings import EngineSettings
from tests.harness.engine import Engine
from tests.harness.sdk import get_access_token

PORT = 49999
PLOT = "import matplotlib.pyplot as plt, numpy as np, datetime\n"


@pytest.fixture(scope="module")
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    created = Sandbox.create(timeout=600, envs={"GIVEN": "at the start"})
    yield created
    created.kill()


@pytest.fixture
def context(sandbox: Sandbox) -> Iterator[Context]:
    created = sandbox.create_code_context()
    yield created
    sandbox.remove_code_context(created)


def test_quick_start(sandbox: Sandbox) -> None:
    assert sandbox.get_info().name == "code-interpreter-v1"
    sandbox.files.write("data.csv", "a,b\n1,2\n")
    sandbox.run_code("x = 1")
    execution = sandbox.run_code("x += 1; x")
    assert execution.text == "2"
    assert execution.error is None
    table = sandbox.run_code("import pandas as pd; pd.read_csv('data.csv')").results[0]
    assert table.data == {"a": [1], "b": [2]}
    assert table.html is not None
    assert "<table" in table.html
    assert Sandbox.connect(sandbox.sandbox_id).run_code("x").text == "2"


def test_output_is_streamed(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    results: list[object] = []
    execution = sandbox.run_code(
        "import sys, time; print('a'); time.sleep(0.5); print('b'); print('ü', file=sys.stderr); 'end'",
        on_stdout=lambda message: out.append(message.line),
        on_stderr=lambda message: err.append(message.line),
        on_result=results.append,
    )
    assert out == ["a\n", "b\n"] == execution.logs.stdout
    assert err == ["ü\n"] == execution.logs.stderr
    assert [execution.text, len(results)] == ["end", 1]


def test_no_output_is_lost(sandbox: Sandbox) -> None:
    for round_ in range(30):
        assert "".join(sandbox.run_code(f"print({round_})").logs.stdout) == f"{round_}\n"
    big = sandbox.run_code("print('x' * 3_000_000); print('y' * 100)\nlen('€' * 10)")
    assert "".join(big.logs.stdout) == "x" * 3_000_000 + "\n" + "y" * 100 + "\n"
    assert big.text == "10"
    many_lines = sandbox.run_code("for i in range(3000): print(i, flush=True)")
    assert "".join(many_lines.logs.stdout).split() == [str(i) for i in range(3000)]
    limit = "import zmq; get_ipython().kernel.iopub_thread.socket.get(zmq.SNDHWM)"
    assert sandbox.run_code(limit).text == "0", "with a limit, ZeroMQ drops what a slow reader has not taken"


def test_errors_have_name_value_and_traceback(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("def f():\n    return nothing\nf()")
    assert execution.error is not None
    assert execution.error.name == "NameError"
    assert execution.error.value == "name 'nothing' is not defined"
    assert "return nothing" in execution.error.traceback
    assert "\x1b[" not in execution.error.traceback
    assert sandbox.run_code("1 +").error.name == "SyntaxError"  # type: ignore[union-attr]
    assert sandbox.run_code("input()").error.name == "StdinNotImplementedError"  # type: ignore[union-attr]
    assert sandbox.run_code("2").text == "2"


def test_shell_commands_and_magics(sandbox: Sandbox, context: Context) -> None:
    assert "".join(sandbox.run_code("!pwd", context=context).logs.stdout).strip() == "/home/user"
    assert sandbox.run_code("%cd /tmp", context=context).error is None
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert "hi" in "".join(sandbox.run_code("%%bash\necho hi", context=context).logs.stdout)
    assert sandbox.run_code("1", context=context).execution_count == 5


def test_displayed_objects_are_results(sandbox: Sandbox) -> None:
    code = """
    from IPython.display import display, HTML, Markdown, Latex, SVG, JSON, Javascript, clear_output
    display({'text/latex': r'\\text{x}'}, raw=True)
    display(Markdown('*m*')); display(Javascript('1')); display(JSON({'a': 1}))
    handle = display(HTML('<b>1</b>'), display_id=True); handle.update(HTML('<b>2</b>'))
    clear_output()
    HTML('<i>last</i>')
    """
    results = sandbox.run_code(code).results
    assert list(results[0].formats()) == ["latex"]
    assert results[1].markdown == "*m*"
    assert results[2].javascript == "1"
    assert results[3].json == {"a": 1}
    assert [results[4].html, results[5].html] == ["<b>1</b>", "<b>2</b>"]
    assert results[6].html == "<i>last</i>"
    assert [result.is_main_result for result in results] == [False] * 6 + [True]
    assert sandbox.run_code("{'a': [1, float('nan')]}").results[0].json == {"a": [1, None]}


def test_images_are_results(sandbox: Sandbox) -> None:
    new_image = "from PIL import Image\nimage = Image.new('RGB', (4, 4))\n"
    for code in ("image.show()", "image", "image.save('/tmp/it.png')"):
        assert sandbox.run_code(new_image + code).results[0].png, code
    assert sandbox.files.exists("/tmp/it.png")


@pytest.mark.parametrize(
    ("code", "chart_type"),
    [
        ("plt.plot([1, 2], [3, 4], label='a'); plt.xlabel('time (s)'); plt.title('T'); plt.show()", LineChart),
        ("plt.scatter([1, 2], [3, 4]); plt.show()", ScatterChart),
        ("plt.bar(['a', 'b'], [1, 2]); plt.show()", BarChart),
        ("plt.pie([1, 3], labels=['a', 'b']); plt.show()", PieChart),
        ("plt.boxplot([[1, 2, 3], [4, 6, 9]], labels=['a', 'b'], patch_artist=True); plt.show()", BoxAndWhiskerChart),
        ("f, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.bar(['x'], [1]); plt.show()", SuperChart),
    ],
)
def test_charts_have_their_type(sandbox: Sandbox, code: str, chart_type: type) -> None:
    result = sandbox.run_code(PLOT + code).results[0]
    assert result.png
    assert type(result.chart) is chart_type
    assert result.extra is None


def test_a_chart_has_labels_units_and_points(sandbox: Sandbox) -> None:
    days = "[datetime.date(2026, 1, day) for day in (1, 2, 3)]"
    chart = (
        sandbox.run_code(
            f"{PLOT}plt.figure(); plt.plot({days}, [1, 2, 4], label='visits'); plt.ylabel('n [k]'); plt.title('T'); plt.show()"
        )
        .results[0]
        .chart
    )
    assert isinstance(chart, LineChart)
    assert [chart.type, chart.title, chart.y_label, chart.y_unit] == [ChartType.LINE, "T", "n [k]", "k"]
    assert chart.x_scale.value == "datetime"
    assert chart.elements[0].label == "visits"
    assert [y for _, y in chart.elements[0].points] == [1, 2, 4]


def test_variables_of_the_sandbox_and_of_one_execution(sandbox: Sandbox) -> None:
    read_code = {
        "python": "import os; os.getenv({!r})",
        "javascript": "process.env[{!r}]",
        "typescript": "process.env[{!r}]",
    }
    for language, code in read_code.items():
        assert sandbox.run_code(code.format("GIVEN"), language=language).text == "at the start", language
        overridden = sandbox.run_code(code.format("GIVEN"), language=language, envs={"GIVEN": 'it\'s "other"\n'})
        assert overridden.text is not None
        assert "other" in overridden.text
        assert sandbox.run_code(code.format("GIVEN"), language=language).text == "at the start", language
        assert sandbox.run_code(code.format("ONCE"), language=language, envs={"ONCE": "1"}).text == "1"
        assert sandbox.run_code(code.format("ONCE"), language=language).text is None
    bash = [
        sandbox.run_code("echo $GIVEN ${ONCE:-none}", language="bash", envs=envs).logs.stdout
        for envs in ({}, {"GIVEN": "o'ther", "ONCE": "1"}, {})
    ]
    assert bash == [["at the start none\n"], ["o'ther 1\n"], ["at the start none\n"]]


@pytest.mark.parametrize(
    ("language", "change", "read"),
    [
        ("python", "import os; os.environ['GIVEN'] = 'changed'", "print(os.environ['GIVEN'])"),
        ("javascript", "process.env.GIVEN = 'changed'", "console.log(process.env.GIVEN)"),
        ("bash", "export GIVEN=changed", "echo $GIVEN"),
    ],
)
def test_a_changed_sandbox_variable_is_reset_by_an_override(
    sandbox: Sandbox, language: str, change: str, read: str
) -> None:
    sandbox.run_code(change, language=language)
    for envs, expected in (({}, "changed"), ({"GIVEN": "once"}, "once"), ({}, "at the start")):
        assert sandbox.run_code(read, language=language, envs=envs).logs.stdout == [f"{expected}\n"]


@pytest.mark.parametrize("language", ["js", "javascript"])
def test_javascript(sandbox: Sandbox, language: str) -> None:
    assert sandbox.run_code("console.log('Hello, World!')", language=language).logs.stdout == ["Hello, World!\n"]
    code = "import { readFileSync } from 'fs'\nconsole.log(typeof readFileSync)"
    assert sandbox.run_code(code, language=language).logs.stdout == ["function\n"]
    assert sandbox.run_code("await Promise.resolve('Hello')", language=language).text == "Hello"
    assert sandbox.run_code("require('os').EOL.length", language=language).text == "1"
    sandbox.run_code("var kept = 3", language=language)
    assert sandbox.run_code("kept", language=language).text == "3"
    assert sandbox.run_code("process.cwd()", language=language).text == "/home/user"
    failed = sandbox.run_code("console.error('e'); throw new TypeError('no')", language=language)
    assert failed.logs.stderr == ["e\n"]
    assert failed.error is not None
    assert [failed.error.name, failed.error.value] == ["TypeError", "no"]


def test_typescript_and_bash(sandbox: Sandbox) -> None:
    code = "const message: string = 'Hello'; enum A { B = 7 }; console.log(message); A.B as number"
    execution = sandbox.run_code(code, language="ts")
    assert execution.logs.stdout == ["Hello\n"]
    assert execution.text == "7"
    assert sandbox.run_code("cd /tmp; echo 'Hello'", language="bash").logs.stdout == ["Hello\n"]
    assert sandbox.run_code("pwd", language="bash").logs.stdout == ["/tmp\n"]
    assert sandbox.run_code("false", language="bash").error is not None


@pytest.mark.slow
def test_deno(sandbox: Sandbox) -> None:
    assert sandbox.run_code("console.log('Hello')", language="deno").logs.stdout == ["Hello\n"]
    assert sandbox.run_code("const add = (x: number) => x + 1; await add(1)", language="deno").text == "2"
    assert [sandbox.run_code(code, language="deno").text for code in ("Deno.cwd()", "add(2)")] == ["/home/user", "3"]
    for envs, expected in (({}, "at the start"), ({"GIVEN": "once"}, "once"), ({}, "at the start")):
        assert sandbox.run_code("Deno.env.get('GIVEN')", language="deno", envs=envs).text == expected
    shown = sandbox.run_code("({[Symbol.for('Jupyter.display')]: () => ({'text/html': '<b>1</b>'})})", language="deno")
    assert shown.results[0].html == "<b>1</b>"
    assert sandbox.run_code("throw new TypeError('no')", language="deno").error.name == "TypeError"  # type: ignore[union-attr]
    with pytest.raises(TimeoutException):
        sandbox.run_code("while (true) {}", language="deno", timeout=1.5)
    assert sandbox.run_code("1 + 1", language="deno", timeout=60).text == "2"
    context = sandbox.create_code_context(cwd="/home", language="deno")
    assert sandbox.run_code("process.cwd()", context=context).text == "/home"
    sandbox.remove_code_context(context)


def check_r(sandbox: Sandbox) -> None:
    assert sandbox.run_code('print("Hello, World!")', language="r").logs.stdout == ['[1] "Hello, World!"\n']
    assert sandbox.run_code("getwd()", language="r").results[0].text == '[1] "/home/user"'
    for envs, expected in (({}, "at the start"), ({"GIVEN": "once"}, "once"), ({}, "at the start")):
        result = sandbox.run_code('Sys.getenv("GIVEN")', language="r", envs=envs).results[0]
        assert result.text == f'[1] "{expected}"'
    assert sandbox.run_code("stop('no')", language="r").error is not None
    with pytest.raises(TimeoutException):
        sandbox.run_code("Sys.sleep(60)", language="r", timeout=1.5)
    assert sandbox.run_code("1 + 1", language="r", timeout=20).results[0].text == "[1] 2"


def check_java(sandbox: Sandbox) -> None:
    assert (
        sandbox.run_code('System.out.println("Hello, World!")', language="java").logs.stdout[0].strip()
        == "Hello, World!"
    )
    assert sandbox.run_code('System.getProperty("user.dir")', language="java").text == "/home/user"
    for envs, expected in (({}, "at the start"), ({"GIVEN": "once"}, "once"), ({}, "at the start")):
        assert sandbox.run_code('System.getProperty("GIVEN")', language="java", envs=envs).text == expected
    assert sandbox.run_code('throw new RuntimeException("no");', language="java").error is not None
    with pytest.raises(TimeoutException):
        sandbox.run_code("Thread.sleep(60000);", language="java", timeout=1.5)
    assert sandbox.run_code("1 + 1", language="java", timeout=20).text == "2"


@pytest.fixture
def fresh_templates(tmp_path: Path) -> Path:
    """A template directory with links to the machine's `base` and `code-interpreter`, which tests can extend."""
    machine = EngineSettings.load().templates_dir
    for name in ("base", "code-interpreter", "interpreter-program"):
        (tmp_path / name).mkdir()
        for version in (machine / name).iterdir():
            (tmp_path / name / version.name).symlink_to(version)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_r_and_java_are_installed_when_first_requested(fresh_templates: Path) -> None:
    """Downloads almost a gigabyte of packages."""
    engine = Engine({"TEMPLATES_DIR": str(fresh_templates), "POOL_SIZE": "0", "POOL_STARTED_SIZE": "0"})
    engine.start()
    options = {"api_key": engine.key, "api_url": engine.url, "sandbox_url": engine.url}
    created: list[Sandbox] = []

    def create_sandbox() -> Sandbox:
        created.append(Sandbox.create(timeout=1800, envs={"GIVEN": "at the start"}, **options))
        return created[-1]

    try:
        first = create_sandbox()
        with pytest.raises(SandboxException, match=r"R is not installed yet.*--with r"):
            first.run_code("1 + 1", language="r")
        with pytest.raises(SandboxException, match="Java is not installed yet"):
            first.create_code_context(language="java")
        deadline = time.monotonic() + 1500
        while "New sandboxes have it" not in (message := _get_refusal(first, "java")) or "New" not in _get_refusal(
            first, "r"
        ):
            assert "failed" not in message, message
            assert time.monotonic() < deadline, message
            time.sleep(5)
        second = create_sandbox()
        check_r(second)
        check_java(second)
    finally:
        for sandbox in created:
            sandbox.kill()
        assert not engine.stop()


def _get_refusal(sandbox: Sandbox, language: str) -> str:
    with pytest.raises(SandboxException) as error:
        sandbox.run_code("1 + 1", language=language)
    return str(error.value)


def test_contexts(sandbox: Sandbox) -> None:
    assert {"python", "javascript"} <= {context.language for context in sandbox.list_code_contexts()}
    created = sandbox.create_code_context(cwd="/root", language="python")
    last = sandbox.list_code_contexts()[-1]
    assert (last.id, last.language, last.cwd) == (created.id, "python", "/root")
    assert sandbox.run_code("import os; os.getcwd()", context=created).text == "/root"
    sandbox.run_code("only_here = 1", context=created)
    assert sandbox.run_code("only_here").error is not None
    sandbox.restart_code_context(created)
    execution = sandbox.run_code("only_here", context=created)
    assert execution.error is not None
    assert execution.error.value == "name 'only_here' is not defined"
    sandbox.remove_code_context(created.id)
    assert created.id not in [context.id for context in sandbox.list_code_contexts()]
    script = sandbox.create_code_context(cwd="/tmp", language="js")
    assert script.language == "javascript"
    assert sandbox.run_code("process.cwd()", context=script).text == "/tmp"
    sandbox.remove_code_context(script)


def test_invalid_requests_are_refused(engine: Engine, sandbox: Sandbox, context: Context) -> None:
    with httpx.Client(base_url=engine.url, headers=_routing_headers(sandbox)) as client:
        both = client.post("/execute", json={"code": "1", "context_id": context.id, "language": "js"})
        assert (both.status_code, "Only one of context_id or language" in both.text) == (400, True)
        assert client.post("/execute", json={"code": 1}).status_code == 400
        assert client.post("/execute", content=b"{").status_code == 400
        assert client.get("/nothing").status_code == 404
        health = client.get("/health")
        assert (health.status_code, health.json()) == (200, "OK")
    for call in (
        lambda: sandbox.run_code("1", context=Context("gone", "python", "/")),
        lambda: sandbox.restart_code_context("gone"),
        lambda: sandbox.remove_code_context("gone"),
    ):
        with pytest.raises(NotFoundException, match="gone"):
            call()
    with pytest.raises(SandboxException, match="No kernel for 'cobol'"):
        sandbox.run_code("DISPLAY 1", language="cobol")
    with pytest.raises(SandboxException, match="does not exist"):
        sandbox.create_code_context(cwd="/nowhere")


def test_running_code_needs_the_token(engine: Engine, sandbox: Sandbox) -> None:
    headers = _routing_headers(sandbox)
    token = headers.pop("X-Access-Token")
    with httpx.Client(base_url=engine.url, headers=headers) as client:
        assert client.post("/execute", json={"code": "1"}).status_code == 401
        assert client.post("/execute", json={"code": "1"}, headers={"X-Access-Token": "wrong"}).status_code == 401
        assert client.get("/contexts", headers={"X-Access-Token": "wrong"}).status_code == 401
        assert client.get("/health").status_code == 200
        events = client.post("/execute", json={"code": "print('a'); 1"}, headers={"X-Access-Token": token}).text
    kinds = [json.loads(line)["type"] for line in events.splitlines()]
    assert kinds == ["number_of_executions", "stdout", "result", "end_of_execution"]


def test_a_client_timeout_interrupts_the_execution(sandbox: Sandbox, context: Context) -> None:
    codes = {
        "python": ("import time; time.sleep(60)", "!sleep 60"),
        "javascript": ("while (true) {}", "await new Promise(() => setInterval(() => {}, 1000))"),
        "bash": ("sleep 60",),
    }

    def abandon_execution(language: str) -> None:
        for code in codes[language]:
            with pytest.raises(TimeoutException):
                sandbox.run_code(code, language=language, timeout=1.5)
            simple = {"bash": "echo 2"}.get(language, "1+1")
            execution = sandbox.run_code(simple, language=language, timeout=60)
            assert execution.text == "2" or execution.logs.stdout == ["2\n"], (language, code)

    with ThreadPoolExecutor() as executor:
        list(executor.map(abandon_execution, codes))


def test_executions_of_a_context_do_not_overlap(sandbox: Sandbox, context: Context) -> None:
    sandbox.run_code("seen = []", context=context)
    threads = []
    for number in range(4):
        code = f"import time; seen.append({number}); time.sleep(0.2); seen.append({number})"
        threads.append(threading.Thread(target=sandbox.run_code, args=(code,), kwargs={"context": context}))
        threads[-1].start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    order = sandbox.run_code("seen", context=context).results[0].json
    assert order[::2] == order[1::2], "executions must not overlap"
    assert sorted(order[::2]) == [0, 1, 2, 3]


def test_a_kernel_that_died_is_reported_and_restarted(sandbox: Sandbox, context: Context) -> None:
    execution = sandbox.run_code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", context=context)
    assert execution.error is not None
    assert execution.error.name == "KernelDied"
    assert sandbox.run_code("1+1", context=context).text == "2"


def test_the_server_restarts_after_it_was_killed(sandbox: Sandbox) -> None:
    for pattern in ("[j]upyter-server", "[u]vicorn main:app"):
        sandbox.commands.run(f"pkill -9 -f '{pattern}'", user="root")
        deadline = time.monotonic() + 30
        while True:
            try:
                assert sandbox.run_code("x = 1; x").text == "1"
                break
            except (SandboxException, httpx.HTTPError, AssertionError):
                assert time.monotonic() < deadline, f"the server must restart after {pattern} was killed"
                time.sleep(0.3)


def test_any_installed_kernel_can_be_used(sandbox: Sandbox) -> None:
    program = """
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
class Echo(Kernel):
    implementation = banner = "echo"
    implementation_version = "1"
    language_info = {"name": "echo"}
    async def do_execute(self, code, silent, *args, **options):
        if not silent:
            self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": code.upper()})
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}
IPKernelApp.launch_instance(kernel_class=Echo)
"""
    spec = {"argv": ["python3", "/opt/echo.py", "-f", "{connection_file}"], "display_name": "Echo", "language": "echo"}
    sandbox.files.write("/opt/echo.py", program, user="root")
    sandbox.files.write("/home/user/.local/share/jupyter/kernels/shout/kernel.json", json.dumps(spec))
    assert sandbox.run_code("hello", language="echo").logs.stdout == ["HELLO"]
    assert sandbox.run_code("by name", language="shout").logs.stdout == ["BY NAME"]
    created = sandbox.create_code_context(language="echo")
    assert sandbox.run_code("x", context=created).logs.stdout == ["X"]


def test_a_pause_keeps_the_memory_of_kernels(sandbox: Sandbox) -> None:
    sandbox.run_code("kept_over_pause = object(); place = id(kept_over_pause)")
    sandbox.pause()
    connected = Sandbox.connect(sandbox.sandbox_id)
    assert connected.run_code("id(kept_over_pause) == place").text == "True"


def test_a_sandbox_from_a_snapshot_has_new_kernels() -> None:
    with Sandbox.create(timeout=300) as created:
        created.run_code("x = 1; open('kept.txt', 'w').write('kept')")
        snapshot = created.create_snapshot()
        with Sandbox.create(snapshot.snapshot_id, timeout=300, envs={"NEW": "1"}) as copy:
            assert copy.run_code("open('kept.txt').read() + __import__('os').environ['NEW']").text == "kept1"
            assert copy.run_code("x").error is not None


def test_a_private_sandbox_runs_code_for_the_sdk_only(engine: Engine) -> None:
    with Sandbox.create(timeout=300, network={"allow_public_traffic": False}) as private:
        assert private.run_code("1+1").text == "2"
        created = private.create_code_context()
        private.restart_code_context(created)
        assert private.list_code_contexts()[-1].id == created.id
        headers = _routing_headers(private)
        assert httpx.get(f"{engine.url}/contexts", headers=headers).status_code == 403


def test_killing_the_sandbox_ends_the_execution_with_an_error() -> None:
    created = Sandbox.create(timeout=300)
    timer = threading.Timer(1.0, created.kill)
    timer.start()
    with pytest.raises(TimeoutException, match="sandbox was killed while the request was in progress"):
        created.run_code("import time; time.sleep(60)")
    timer.join()


def test_a_template_without_an_interpreter_is_refused() -> None:
    with Sandbox.create("base", timeout=60) as bare, pytest.raises(SandboxException, match="has no code interpreter"):
        bare.run_code("1")


async def test_async_client(sandbox: Sandbox) -> None:
    other = await AsyncSandbox.connect(sandbox.sandbox_id)
    lines: list[str] = []
    execution = await other.run_code("print('a'); 1", on_stdout=lambda message: lines.append(message.line))
    assert (execution.text, lines) == ("1", ["a\n"])
    created = [await other.create_code_context() for _ in range(2)]
    rendezvous = "import os, time; open({}, 'w')\nwhile not os.path.exists({}): time.sleep(0.01)\n'met'"
    executions = [
        other.run_code(rendezvous.format(repr(f"/tmp/{own_file}"), repr(f"/tmp/{other_file}")), context=context)
        for context, own_file, other_file in zip(created, ("one", "two"), ("two", "one"), strict=True)
    ]
    assert [execution.text for execution in await asyncio.gather(*executions)] == ["met", "met"], (
        "both contexts must run at the same time"
    )
    for context in created:
        await other.restart_code_context(context)
        await other.remove_code_context(context)
    with pytest.raises(TimeoutException):
        await other.run_code("import time; time.sleep(30)", timeout=1)
    assert (await other.run_code("1 + 1", timeout=60)).text == "2"


def _routing_headers(sandbox: Sandbox) -> dict[str, str]:
    token = get_access_token(sandbox) or ""
    return {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(PORT), "X-Access-Token": token}
