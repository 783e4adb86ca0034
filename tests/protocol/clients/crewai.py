from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool

command = E2BExecTool()
assert command.run(command="echo hello; exit 0")["stdout"] == "hello\n"
python = E2BPythonTool(persistent=True)
assert python.run(code="x = 6 * 7")["error"] is None
assert python.run(code="x")["text"] == "42"
files = E2BFileTool(persistent=True)
files.run(action="write", path="/home/user/plan.md", content="a plan")
assert "a plan" in str(files.run(action="read", path="/home/user/plan.md"))
for tool in (python, files):
    tool.close()
