from agno.tools.e2b import E2BTools

tools = E2BTools()
try:
    assert "42" in tools.run_python_code("x = 6 * 7\nprint(x)")
    assert "plan" in tools.write_file_content("notes/plan.md", "a plan")
    assert "a plan" in tools.read_file_content("notes/plan.md")
    assert "plan.md" in tools.list_files("notes")
    assert "hello" in str(tools.run_command("echo hello"))
    url = tools.get_public_url(8000)
    assert tools.sandbox.sandbox_id in url, url
finally:
    tools.shutdown_sandbox()
