from camel.interpreters import E2BInterpreter

interpreter = E2BInterpreter(require_confirm=False)
assert "42" in interpreter.run("x = 6 * 7\nx", "python")
assert "43" in interpreter.run("print(x + 1)", "python"), "variables must be kept between calls"
assert "hello" in interpreter.run("echo hello", "bash")
interpreter._sandbox.kill()
