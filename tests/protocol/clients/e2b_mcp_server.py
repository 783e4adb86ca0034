import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    program = "import e2b_mcp_server; e2b_mcp_server.main()"
    server = StdioServerParameters(command=sys.executable, args=["-c", program], env=dict(os.environ))
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        assert [tool.name for tool in (await session.list_tools()).tools] == ["run_code"]
        answer = await session.call_tool("run_code", {"code": "print(6 * 7)"})
        assert json.loads(answer.content[0].text)["stdout"] == ["42\n"], answer


asyncio.run(main())
