"""An agent for tests, which runs in a sandbox: it speaks ACP and does what each line of a prompt says.

say N            N pieces of text, one after the other, as `1 2 3 …`
slow N SECONDS   the same, with a pause before each
think WORDS, plan, tool, diff, image
begin            a tool call that does not end
leave            processes that outlive the turn: one that does nothing, one that does not end by itself, one that serves, one that is held
ask KIND TITLE   ask for permission, and say what was decided
vague PATH       the same for a path that was sent before, and is not in the question
form             ask a question
mcp              say which MCP servers it was given, and in which request
use NAME         start an MCP server, send it a line, and say what it answered
garbage          lines that are no messages
sleep SECONDS, die CODE, fail WORDS, deaf (does not stop when asked to), hold (until asked to stop), quit
"""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

OUT = threading.Lock()
ANSWERS = {}
NEWS = threading.Condition()
STOP = threading.Event()
MEMORY = pathlib.Path(__file__).with_name("memory")
counter = [0]
state = {"deaf": False, "mcp": None}


def send(message):
    with OUT:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def update(what, **fields):
    send({"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": what, **fields}}})


def text(words, kind="agent_message_chunk"):
    update(kind, content={"type": "text", "text": words})


def ask(method, params):
    with NEWS:
        counter[0] += 1
        number = f"q{counter[0]}"
    send({"id": number, "method": method, "params": params})
    with NEWS:
        while number not in ANSWERS:
            NEWS.wait()
        return ANSWERS.pop(number)


def permission(kind, title, known=None):
    options = [
        {"optionId": "ever-1", "name": "Always", "kind": "allow_always"},
        {"optionId": "yes-1", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no-1", "name": "No", "kind": "reject_once"},
    ]
    call = {"toolCallId": "t1", "title": title, "kind": kind, "rawInput": {"command": title}}
    if known is not None:
        call |= {"rawInput": {}, "locations": []}
    return ask("session/request_permission", {"sessionId": "s", "toolCall": call, "options": options})


def act(line):
    word, _, rest = line.partition(" ")
    if word in ("say", "slow"):
        count, _, pause = rest.partition(" ")
        for number in range(1, int(count) + 1):
            time.sleep(float(pause or 0))
            if STOP.is_set():
                return
            text(f"{number} ")
    elif word == "think":
        text(rest, "agent_thought_chunk")
    elif word == "plan":
        update("plan", entries=[{"content": "look", "priority": "high", "status": "pending"}])
    elif word == "tool":
        update("tool_call", toolCallId="t1", title="Run make", kind="execute", status="pending")
        update("tool_call_update", toolCallId="t1", status="completed", rawOutput={"code": 0})
    elif word == "begin":
        update("tool_call", toolCallId="t2", title="Run forever", kind="execute", status="in_progress")
    elif word == "leave":
        serve = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); time.sleep(600)"
        deaf = "trap '' TERM; while :; do sleep 0.2; done"
        script = 'sleep 601 & bash -c "$1" left-deaf & python3 -c "$2" left-serving & wait -n 2>/dev/null & exit 0'
        subprocess.run(["setsid", "bash", "-c", script, "left-shell", deaf, serve], check=True)
        state["held"] = subprocess.Popen(["sleep", "602"])
        time.sleep(1)  # until the server listens
    elif word == "ask":
        kind, _, title = rest.partition(" ")
        text("decided " + json.dumps(permission(kind, title)))
    elif word == "vague":
        update("tool_call", toolCallId="t1", title="read", kind="read", status="pending", rawInput={}, locations=[])
        known = {"rawInput": {"filePath": rest}, "locations": [{"path": rest}]}
        update("tool_call_update", toolCallId="t1", status="in_progress", **known)
        text("decided " + json.dumps(permission("read", "read", rest)))
    elif word == "form":
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"sessionId": "s", "mode": "form", "message": "Your name?", "requestedSchema": schema}
        text("answered " + json.dumps(ask("elicitation/create", params)))
    elif word == "mcp":
        text(json.dumps(state["mcp"]))
    elif word == "use":
        (server,) = (candidate for candidate in state["mcp"][1] if candidate["name"] == rest)
        env = {**os.environ, **{item["name"]: item["value"] for item in server["env"]}}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        running = subprocess.Popen([server["command"], *server["args"]], env=env, **streams)
        try:
            running.stdin.write(b"hello\n")
            running.stdin.flush()
        except BrokenPipeError:
            pass
        text(f"{rest}: {running.stdout.readline().decode()!r} ")
        state.setdefault("servers", []).append(running)  # it stays connected
    elif word == "garbage":
        sys.stdout.write(
            'hello\n{"half": \n[1]\n{"id": true, "method": "x"}\n\xff\n{"jsonrpc":"2.0","id":999,"result":{}}\n'
        )
        sys.stdout.flush()
        text("still here")
    elif word == "sleep":
        time.sleep(float(rest))
    elif word == "quit":
        STOP.set()
    elif word == "hold":
        STOP.wait()
    elif word == "deaf":
        state["deaf"] = True
        time.sleep(600)
    elif word == "die":
        sys.stderr.write("this is the end\n")
        sys.stderr.flush()
        os._exit(int(rest))
    elif word == "fail":
        raise ValueError(rest)
    elif word == "usage":
        update("usage_update", used=10, size=100)
    elif word == "recall":
        text(MEMORY.read_text())


def prompt(number, params):
    words = "\n".join(block["text"] for block in params["prompt"])
    with MEMORY.open("a") as file:
        file.write(words + "\n")
    try:
        for line in words.split("What is asked of you now:\n")[-1].splitlines():
            act(line)
    except ValueError as error:
        send({"id": number, "error": {"code": -32603, "message": "Internal error", "data": str(error)}})
        return
    reason = "cancelled" if STOP.is_set() else "end_turn"
    send(
        {
            "id": number,
            "result": {"stopReason": reason, "usage": {"totalTokens": 3, "inputTokens": 1, "outputTokens": 2}},
        }
    )


def main():
    loads = "--loads" in sys.argv
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method is None:
            with NEWS:
                ANSWERS[number] = message.get("result") or message.get("error")
                NEWS.notify_all()
        elif method == "initialize":
            capabilities = {"loadSession": loads, "mcpCapabilities": {"http": "--http" in sys.argv}}
            send({"id": number, "result": {"protocolVersion": 1, "agentCapabilities": capabilities}})
        elif method == "session/new":
            state["mcp"] = [method, message["params"]["mcpServers"]]
            model = {
                "id": "m",
                "name": "Model",
                "type": "select",
                "category": "model",
                "currentValue": "small",
                "options": [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}],
            }
            modes = {
                "currentModeId": "code",
                "availableModes": [{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan"}],
            }
            if "--noisy" in sys.argv:
                print("a warning at its start", file=sys.stderr, flush=True)
                text("Loaded cached credentials.")
            send({"id": number, "result": {"sessionId": f"s{os.getpid()}", "modes": modes, "configOptions": [model]}})
            if "--noisy" in sys.argv:
                text("Ready to serve.")
        elif method == "session/load":
            state["mcp"] = [method, message["params"]["mcpServers"]]
            text("earlier messages")
            send({"id": number, "result": {}})
        elif method in ("session/set_mode", "session/set_config_option"):
            text(json.dumps(message["params"]), "agent_thought_chunk")
            send({"id": number, "result": {}})
        elif method == "session/prompt":
            STOP.clear()
            threading.Thread(target=prompt, args=(number, message["params"]), daemon=True).start()
        elif method == "session/cancel" and not state["deaf"]:
            STOP.set()
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": "What?"}})


main()
