import asyncio
import tempfile
from pathlib import Path

from harbor.environments.e2b import E2BEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


async def main(folder: Path) -> None:
    (folder / "environment").mkdir()
    dockerfile = "FROM e2bdev/base\nWORKDIR /app\nRUN echo built > /app/built\n"
    (folder / "environment/Dockerfile").write_text(dockerfile)
    paths = TrialPaths(trial_dir=folder / "trial")
    paths.mkdir()
    environment = E2BEnvironment(
        environment_dir=folder / "environment",
        environment_name="sandyard-test",
        session_id="session-1",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(),
    )
    await environment.start(force_build=True)
    try:
        ran = await environment.exec("cat built; echo $((6 * 7)) >&2; exit 3")
        assert (ran.return_code, ran.stdout, ran.stderr) == (3, "built\n", "42\n"), ran
        (folder / "up").mkdir()
        (folder / "up/plan.md").write_text("a plan")
        await environment.upload_dir(folder / "up", "/app/notes")
        await environment.upload_file(folder / "up/plan.md", "/app/again.md")
        await environment.download_dir("/app", folder / "down")
        assert (folder / "down/notes/plan.md").read_text() == (folder / "down/again.md").read_text() == "a plan"
    finally:
        await environment.stop(delete=True)


with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))
