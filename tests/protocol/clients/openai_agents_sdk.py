import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions


async def main() -> None:
    client = E2BSandboxClient()
    session = await client.create(
        options=E2BSandboxClientOptions(sandbox_type="e2b", timeout=300, exposed_ports=(8000,))
    )
    async with session:
        ran = await session.exec("echo $((6 * 7))", shell=True)
        assert ran.stdout == b"42\n", ran
        await session.write(Path("plan.md"), io.BytesIO(b"a plan"))
        assert (await session.read(Path("plan.md"))).read() == b"a plan"
        kept = await session.persist_workspace()
        assert kept.read(1)
        endpoint = await session.resolve_exposed_port(8000)
        assert endpoint.host.startswith("8000-"), endpoint
        assert await session.running()


asyncio.run(main())
