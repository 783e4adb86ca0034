"""Handle one prompt of the demo agent."""

# This code runs on old versions of Python and uses plain os calls.
# ruff: noqa: UP037

import os
import shutil
import threading
from typing import Any, Callable, NamedTuple  # noqa: UP035

from . import files
from .calls import Call
from .conversation import ASK, Conversation
from .files import WorkError
from .instructions import HELP, Step, parse_prompt
from .peer import INTERNAL_ERROR, RpcError

MARK = "[demo] "
NOTE = "DEMO.md"
SHOWN = 64 << 10
QUOTED = 4000
_OPTIONS = [
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
    {"optionId": "never", "name": "Always reject", "kind": "reject_always"},
]
_QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "PAGER": "cat", "GIT_PAGER": "cat"}


class Cancelled(Exception):  # noqa: N818 - not a failure
    pass


class PermissionDenied(Exception):  # noqa: N818 - not a failure
    """Permission was denied: the remaining steps are skipped."""


class TurnEnded(Exception):  # noqa: N818 - not a failure
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NothingToCommit(Exception):  # noqa: N818 - not a failure
    """There is nothing to commit."""


class StepFailed(Exception):  # noqa: N818 - the tool call has already ended
    pass


class Text(NamedTuple):
    """A text of a prompt. `personal`: a person wrote it, so it may contain instructions. `failure`: it describes what
    to fix. `resume`: it asks to continue after an interruption."""

    text: str
    personal: bool = True
    failure: bool = False
    resume: bool = False


class Turn:
    def __init__(self, conversation: Conversation, client: "dict[str, Any]") -> None:
        self._conversation = conversation
        elicitation = client.get("elicitation")
        self._forms = isinstance(elicitation, dict) and elicitation.get("form") is not None
        self._entries: "list[str]" = []
        self._planned = 0
        self._did: "list[str]" = []

    def run(self, texts: "list[Text]") -> str:
        """Handle a prompt and return the stop reason. Raises RpcError if an instruction says so.

        Without instructions, only the first text of a person is answered; the others only explain it. A prompt that no person
        wrote is never answered.
        """
        conversation = self._conversation
        personal = [text.text for text in texts if text.personal]
        found = parse_prompt("\n".join(personal))
        if found.fixes:
            conversation.change_fixes(found.fixes)
        try:
            if any(text.resume for text in texts):
                self._resume(found.steps)
            elif found.steps:
                self._follow_steps(found.steps, "")
            elif any(text.failure for text in texts):
                self._follow_fixes()
            elif found.fixes:
                self.say(MARK + "Noted what to do when the verify command fails.\n")
            elif personal or not texts:
                self._answer_prose(personal[0] if personal else "")
            else:
                self._resume([])
        except Cancelled:
            return "cancelled"
        except TurnEnded as end:
            return end.reason
        return "end_turn"

    def _follow_steps(self, steps: "list[Step]", why: str) -> None:
        count = "1 instruction" if len(steps) == 1 else str(len(steps)) + " instructions"
        self.say(MARK + why + "Following " + count + ".\n")
        self._run_steps(steps)

    def _follow_fixes(self) -> None:
        """Follow the stored `fix:` instructions once."""
        steps = parse_prompt("\n".join(self._conversation.fixes)).steps
        if not steps:
            self.say(MARK + "Something failed, and I have no (further) `fix:` instruction. I changed nothing.\n")
            return
        self._conversation.change_fixes([])
        self._follow_steps(steps, "Something failed. ")

    def _resume(self, steps: "list[Step]") -> None:
        """Follow the instructions that an interruption has left, then these."""
        steps = self._conversation.remaining + steps
        if steps:
            self._follow_steps(steps, "Continuing. ")
        else:
            self.say(MARK + "I have no instructions left. I changed nothing.\n")

    def _run_steps(self, steps: "list[Step]") -> None:
        """Run the steps. If they are interrupted, the conversation keeps those that are left, and the interrupted one if it can be
        repeated."""
        keep = self._conversation.change_remaining
        for number, step in enumerate(steps):
            try:
                self._raise_if_cancelled()
                self._run_step(step)
            except PermissionDenied as refused:
                keep(steps[number:])
                left = len(steps) - number - 1
                rest = " The " + str(left) + " after it are skipped." if left else ""
                self.say("Refused: " + str(refused) + "." + rest + "\n")
                return
            except Cancelled:
                keep(steps[number:])
                raise
            except (TurnEnded, RpcError):
                keep(steps[number + 1 :])
                raise
            if step.verb != "plan":
                self._advance_plan()
        keep([])
        self._advance_plan(all_of_it=True)
        if self._did:
            self.say("Done: " + "; ".join(self._did) + ".\n")

    def _run_step(self, step: Step) -> None:
        answered = step._replace(**{name: self._fill_answer(getattr(step, name)) for name in ("text", "path", "old")})
        getattr(self, "_" + step.verb)(answered)

    def _fill_answer(self, text: str) -> str:
        return text.replace("{answer}", self._conversation.answer)

    # messages ------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self._send_chunks("agent_message_chunk", text)

    def _say(self, step: Step) -> None:
        self.say(step.text + "\n")

    def _think(self, step: Step) -> None:
        self._send_chunks("agent_thought_chunk", step.text)

    def _send_chunks(self, kind: str, text: str) -> None:
        for at in range(0, len(text), 2000):
            chunk = {"type": "text", "text": text[at : at + 2000]}
            self._conversation.update({"sessionUpdate": kind, "content": chunk})

    def _plan(self, step: Step) -> None:
        self._entries, self._planned = [entry.strip() for entry in step.text.split(";") if entry.strip()], 0
        self._send_plan()

    def _advance_plan(self, *, all_of_it: bool = False) -> None:
        """Complete one entry of the plan, or all of them at the end."""
        last = len(self._entries)
        now = last if all_of_it else min(self._planned + 1, max(last - 1, 0))
        if self._entries and now != self._planned:
            self._planned = now
            self._send_plan()

    def _send_plan(self) -> None:
        entries = []
        for number, text in enumerate(self._entries):
            ahead = "in_progress" if number == self._planned else "pending"
            status = "completed" if number < self._planned else ahead
            entries.append({"content": text, "priority": "medium", "status": status})
        self._conversation.update({"sessionUpdate": "plan", "entries": entries})

    def _answer_prose(self, prompt: str) -> None:
        self.say(
            MARK + "I am the demo agent: I have no model and cannot understand this. I can follow "
            "instructions, one per line:\n\n" + "".join("    " + line + "\n" for line in HELP.splitlines()) + "\n"
        )
        words = prompt.strip()
        words = words if len(words) <= QUOTED else words[:QUOTED] + " …"
        quoted = "".join("> " + line + "\n" if line.strip() else ">\n" for line in words.splitlines())
        note = Step("note", quoted or "> (nothing)\n")
        try:
            self._note(note)
        except PermissionDenied as refused:
            self._conversation.change_remaining([note])
            self.say("Refused: " + str(refused) + ".\n")
            return
        if self._did:
            self.say("As a demonstration, I wrote your prompt to " + NOTE + ".\n")

    def _note(self, step: Step) -> None:
        """Write the prompt of a person to a file. No instruction does this."""

        def change(before: "str | None") -> str:
            return (before.rstrip("\n") + "\n\n" if before else "# What the demo agent was asked\n\n") + step.text

        self._edit_file("Write into " + NOTE, NOTE, change, "wrote into " + NOTE)

    # files ---------------------------------------------------------------------------------------------------------

    def _create(self, step: Step) -> None:
        text = step.text if not step.text or step.text.endswith("\n") else step.text + "\n"
        self._edit_file("Create " + step.path, step.path, lambda before: text, "created " + step.path)

    def _append(self, step: Step) -> None:
        text = step.text if step.text.endswith("\n") else step.text + "\n"

        def change(before: "str | None") -> str:
            gap = "\n" if before and not before.endswith("\n") else ""
            return (before or "") + gap + text

        self._edit_file("Append to " + step.path, step.path, change, "appended to " + step.path)

    def _replace(self, step: Step) -> None:
        def change(before: "str | None") -> str:
            if before is None:
                raise WorkError("There is no file " + repr(step.path) + ".")
            if not step.old or step.old not in before:
                raise WorkError(repr(step.old[:200]) + " is not in " + repr(step.path) + ".")
            return before.replace(step.old, step.text, 1)

        self._edit_file("Replace in " + step.path, step.path, change, "changed " + step.path)

    def _delete(self, step: Step) -> None:
        def work(call: Call) -> None:
            path = files.inside(self._conversation.folder, step.path)
            files.remove(path)
            call.end(text="Deleted.")

        self._run_tool(
            self._make_call("Delete " + step.path, "delete", {"path": step.path}, step.path),
            work,
            "deleted " + step.path,
        )

    def _edit_file(self, title: str, path: str, change: "Callable[[str | None], str]", did: str) -> None:
        def work(call: Call) -> None:
            whole = files.inside(self._conversation.folder, path)
            before = files.content(whole)
            after = change(before)
            files.write(whole, after)
            if len(after) <= SHOWN and len(before or "") <= SHOWN:
                call.end(content=[{"type": "diff", "path": whole, "oldText": before, "newText": after}])
            else:
                call.end(text=str(len(after)) + " characters written.")

        self._run_tool(self._make_call(title, "edit", {"path": path}, path), work, did)

    # commands ------------------------------------------------------------------------------------------------------

    def _run(self, step: Step) -> None:
        shell = shutil.which("bash") or "/bin/sh"

        def work(call: Call) -> None:
            self._run_command(call, [shell, "-c", step.text])

        self._run_tool(self._make_call(step.text, "execute", {"command": step.text}), work, "ran `" + step.text + "`")

    def _commit(self, step: Step) -> None:
        message = step.text or "Work of the demo agent"

        def work(call: Call) -> None:
            self._run_command(call, ["git", "add", "-A"], last=False)
            if self._succeeds(["git", "diff", "--cached", "--quiet"]):
                call.end(text="There is nothing to commit.")
                raise NothingToCommit
            named = self._succeeds(["git", "config", "user.email"])
            who = [] if named else ["-c", "user.name=Demo agent", "-c", "user.email=demo@localhost"]
            self._run_command(call, ["git", *who, "commit", "-q", "-m", message])

        self._run_tool(
            self._make_call("Commit: " + message.splitlines()[0], "execute", {"message": message}), work, "committed"
        )

    def _run_command(self, call: Call, argv: "list[str]", *, last: bool = True) -> None:
        """Run a command. Ends the call if this is its last command, or if it failed."""
        conversation = self._conversation
        code, output = files.run(argv, conversation.folder, conversation.cancelled, call.progress, _QUIET)
        self._raise_if_cancelled()
        raw = {"exitCode": code}
        if code != 0:
            words = output.rstrip("\n")
            call.end("failed", text=words + ("\n" if words else "") + "Exit code " + str(code) + ".", raw=raw)
            raise StepFailed("`" + " ".join(argv[2:] if argv[1] == "-c" else argv) + "` ended with " + str(code))
        if last:
            call.end(text=output, raw=raw)

    def _succeeds(self, argv: "list[str]") -> bool:
        folder, cancelled = self._conversation.folder, self._conversation.cancelled
        return files.run(argv, folder, cancelled, lambda text: None, _QUIET)[0] == 0

    def _run_tool(self, call: Call, work: "Callable[[Call], None]", did: str) -> None:
        try:
            self._require_permission(call)
            call.begin()
            work(call)
        except NothingToCommit:
            self.say("There was nothing to commit.\n")
        except StepFailed as failed:
            self.say(str(failed) + ".\n")
        except WorkError as error:
            call.end("failed", text=str(error))
            self.say("Failed: " + str(error) + "\n")
        except (PermissionDenied, Cancelled):
            if not call.ended:
                call.end("failed", text="Not done.")
            raise
        else:
            self._did.append(did)

    def _make_call(self, title: str, kind: str, raw: "dict[str, Any]", path: "str | None" = None) -> Call:
        return Call(self._conversation, title, kind, raw, path)

    def _require_permission(self, call: Call) -> None:
        if self._conversation.mode == ASK and not self._is_allowed(call.describe(), call.kind):
            raise PermissionDenied(call.title)

    # requests to people --------------------------------------------------------------------------------------------

    def _ask(self, step: Step) -> None:
        answer = self._ask_by_form(step.text) if self._forms else self._ask_by_choice(step.text)
        self._conversation.answer = answer
        self._conversation.keep({"answer": answer})
        self.say("The answer to " + repr(step.text) + " is: " + answer + "\n")

    def _ask_by_form(self, question: str) -> str:
        field = {"type": "string", "title": question}
        schema = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
        response = self._send_request(
            "elicitation/create", {"mode": "form", "message": question, "requestedSchema": schema}
        )
        given = response.get("content")
        if response.get("action") == "accept" and isinstance(given, dict):
            return str(given.get("answer", ""))
        return "(declined)" if response.get("action") == "decline" else "(no answer)"

    def _ask_by_choice(self, question: str) -> str:
        options = [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        call = {"toolCallId": self._conversation.next_call(), "title": question, "kind": "other", "status": "pending"}
        return self._request_choice(call, options) or "(no answer)"

    def _permit(self, step: Step) -> None:
        call = self._make_call(step.text, "other", {})
        if not self._is_allowed(call.describe(), "permit " + step.text):
            call.end("failed", text="Refused.")
            raise PermissionDenied(step.text)
        call.end(text="Allowed.")
        self._did.append("was allowed: " + step.text)

    def _is_allowed(self, call: "dict[str, Any]", subject: str) -> bool:
        """Return whether this is allowed. A permanent decision is not asked for again."""
        decided = self._conversation.decided
        if subject not in decided:
            chosen = self._request_choice(call, _OPTIONS)
            if chosen not in ("always", "never"):
                return chosen == "allow"
            decided[subject] = chosen == "always"
        return decided[subject]

    def _request_choice(self, call: "dict[str, Any]", options: "list[dict[str, str]]") -> str:
        """Return the id of the chosen option, or an empty string."""
        response = self._send_request("session/request_permission", {"toolCall": call, "options": options})
        outcome = response.get("outcome")
        if not isinstance(outcome, dict) or outcome.get("outcome") != "selected":
            return ""
        return str(outcome.get("optionId", ""))

    def _send_request(self, method: str, params: "dict[str, Any]") -> "dict[str, Any]":
        conversation = self._conversation
        try:
            response = conversation.peer.request(
                method, dict(params, sessionId=conversation.name), conversation.cancelled
            )
        except RpcError as error:
            self._raise_if_cancelled()
            self.say("The request failed: " + error.message + "\n")
            return {}
        self._raise_if_cancelled()
        return response or {}

    # ending --------------------------------------------------------------------------------------------------------

    def _raise_if_cancelled(self) -> None:
        if self._conversation.cancelled.is_set():
            raise Cancelled

    def _sleep(self, step: Step) -> None:
        try:
            seconds = float(step.text.split()[0].rstrip("s"))
        except (ValueError, IndexError):
            self.say("Invalid number of seconds: " + repr(step.text) + ".\n")
            return
        self._conversation.cancelled.wait(min(max(seconds, 0.0), 86400.0))
        self._raise_if_cancelled()

    def _fail(self, step: Step) -> None:
        raise RpcError(INTERNAL_ERROR, step.text or "The demo agent was told to fail.")

    def _refuse(self, step: Step) -> None:
        raise TurnEnded("refusal")

    def _crash(self, step: Step) -> None:
        files.end_all()
        os._exit(3)

    def _hang(self, step: Step) -> None:
        self._conversation.peer.frozen.set()
        threading.Event().wait()
