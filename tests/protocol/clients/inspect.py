import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import accuracy, includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox


@solver
def work():  # type: ignore[no-untyped-def]
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("notes/plan.md", "a plan")
        read = await sandbox().read_file("notes/plan.md")
        ran = await sandbox().exec(["python3", "-c", "import sys; print(int(sys.stdin.read()) * 7)"], input="6")
        state.output.completion = f"{read} {ran.stdout.strip()} {ran.returncode}"
        return state

    return solve


samples = [Sample("first", target="a plan 42 0"), Sample("second", target="a plan 42 0")]
task = Task(dataset=samples, solver=work(), scorer=includes(), sandbox="e2b", metrics=[accuracy()])
with tempfile.TemporaryDirectory() as logs:
    (log,) = eval(task, model="mockllm/model", log_dir=logs, display="none")
assert log.status == "success", log.error
assert log.results is not None
assert [metric.value for score in log.results.scores for metric in score.metrics.values()] == [1.0], log.results
