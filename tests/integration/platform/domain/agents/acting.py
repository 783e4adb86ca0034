"""An agent for tests, which runs in a sandbox: it speaks ACP and does what each line of a prompt says.

say N            N pieces of text, one after the other, as `1 2 3 …`
slow N SECONDS   the same, with a pause before each
think WORDS, plan, tool, diff, image
ask KIND TITLE   ask for permission, and say what was decided
vague PATH       the same for a path that was told before, and not in the question
form             ask a question
garbage          lines that are no messages
sleep SECONDS, die CODE, fail WORDS, deaf (does not stop when it is told to), hold (until it is told to stop)
"""

import json
import os
import pathlib
import sys
import threading
import time

OUT = threading.Lock()
ANSWERS = {}
NEWS = threading.Condition()
STOP = threading.Event()
MEMORY = pathlib.Path(__file__).with_name("memory")
counter = [0]
state = {"deaf": False}


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
    elif word == "ask":
        kind, _, title = rest.partition(" ")
        text("decided " + json.dumps(permission(kind, title)))
    elif word == "vague":
        update("tool_call", toolCallId="t1", title="read", kind="read", status="pending", rawInput={}, locations=[])
        told = {"rawInput": {"filePath": rest}, "locations": [{"path": rest}]}
        update("tool_call_update", toolCallId="t1", status="in_progress", **told)
        text("decided " + json.dumps(permission("read", "read", rest)))
    elif word == "form":
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"sessionId": "s", "mode": "form", "message": "Your name?", "requestedSchema": schema}
        text("told " + json.dumps(ask("elicitation/create", params)))
    elif word == "garbage":
        sys.stdout.write(
            'hello\n{"half": \n[1]\n{"id": true, "method": "x"}\n\xff\n{"jsonrpc":"2.0","id":999,"result":{}}\n'
        )
        sys.stdout.flush()
        text("still here")
    elif word == "sleep":
        time.sleep(float(rest))
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
        told = json.loads(line)
        method, number = told.get("method"), told.get("id")
        if method is None:
            with NEWS:
                ANSWERS[number] = told.get("result") or told.get("error")
                NEWS.notify_all()
        elif method == "initialize":
            send({"id": number, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": loads}}})
        elif method == "session/new":
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
            send({"id": number, "result": {"sessionId": f"s{os.getpid()}", "modes": modes, "configOptions": [model]}})
        elif method == "session/load":
            text("what was said before")
            send({"id": number, "result": {}})
        elif method in ("session/set_mode", "session/set_config_option"):
            text(json.dumps(told["params"]), "agent_thought_chunk")
            send({"id": number, "result": {}})
        elif method == "session/prompt":
            STOP.clear()
            threading.Thread(target=prompt, args=(number, told["params"]), daemon=True).start()
        elif method == "session/cancel" and not state["deaf"]:
            STOP.set()
        elif number is not None:
            send({"id": number, "error": {"code": -32601, "message": "What?"}})


main()
