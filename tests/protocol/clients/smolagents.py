from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor

executor = E2BExecutor([], AgentLogger(level=LogLevel.ERROR))
try:
    executor.send_variables({"numbers": [6, 7]})
    answer = executor("print('working')\nproduct = numbers[0] * numbers[1]\nproduct")
    assert (answer.output, "working" in answer.logs) == ("42", True), answer
    assert executor("product + 1").output == "43"
finally:
    executor.cleanup()
