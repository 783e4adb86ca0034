import e2b
from langchain_e2b import E2BSandbox

inner = e2b.Sandbox.create()
try:
    sandbox = E2BSandbox(sandbox=inner)
    assert sandbox.execute("echo $((6 * 7))").output == "42\n"
    failed = sandbox.execute("echo no >&2; exit 3")
    assert (failed.exit_code, failed.output) == (3, "no\n")
    assert sandbox.write("/home/user/notes/plan.md", "a plan\nof two lines\n").error is None
    assert "a plan" in str(sandbox.read("/home/user/notes/plan.md"))
    assert sandbox.edit("/home/user/notes/plan.md", "a plan", "a better plan").error is None
    assert inner.files.read("/home/user/notes/plan.md") == "a better plan\nof two lines\n"
    assert "better" in str(sandbox.grep("better", "/home/user/notes"))
    assert "plan.md" in str(sandbox.glob("**/*.md", "/home/user"))
    assert "plan.md" in str(sandbox.ls("/home/user/notes"))
    assert sandbox.upload_files([("/home/user/up.bin", b"\0\1")])[0].error is None
    assert sandbox.download_files(["/home/user/up.bin"])[0].content == b"\0\1"
finally:
    inner.kill()
