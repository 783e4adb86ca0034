from haystack_integrations.tools.e2b import E2BToolset

toolset = E2BToolset()
toolset.warm_up()
try:
    tools = {tool.name: tool for tool in toolset}
    assert "42" in tools["run_bash_command"].invoke(command="echo $((6 * 7))")
    tools["write_file"].invoke(path="/home/user/notes/plan.md", content="a plan")
    assert "a plan" in tools["read_file"].invoke(path="/home/user/notes/plan.md")
    assert "plan.md" in tools["list_directory"].invoke(path="/home/user/notes")
finally:
    toolset.close()
