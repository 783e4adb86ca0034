import { describe, expect, it } from "vitest";
import type { Message, PlatformEvent } from "@/api/types";
import { Transcript } from "./transcript";

let seq = 0;
function event(kind: string, data: Record<string, unknown>): PlatformEvent {
  seq += 1;
  return {
    seq,
    at: "2026-01-01T00:00:00Z",
    kind,
    ownerId: null,
    projectId: null,
    taskId: null,
    sessionId: "ses_1",
    sandboxId: null,
    data,
  };
}
const created = (id: string, text: string, role = "agent") =>
  event("message.created", { messageId: id, role, turnId: "trn_1", part: { type: "text", text } });
const delta = (id: string, text: string) => event("message.delta", { messageId: id, turnId: "trn_1", text });
const updated = (id: string, part: Record<string, unknown>) =>
  event("message.updated", { messageId: id, turnId: "trn_1", part });
const read = (id: string, part: Record<string, unknown> | string, role: Message["role"] = "agent"): Message => ({
  id,
  sessionId: "ses_1",
  turnId: "trn_1",
  authorId: null,
  role,
  parts: [typeof part === "string" ? { type: "text", text: part } : part],
  createdAt: "2026-01-01T00:00:00Z",
});
const texts = (transcript: Transcript) => transcript.messages.map((message) => message.parts[0]?.text);

describe("a text whose events were received from the beginning", () => {
  it("grows with each delta", () => {
    const transcript = new Transcript();
    expect(transcript.applyEvent(created("msg_1", "Hel"))).toEqual([]);
    transcript.applyEvent(delta("msg_1", "lo"));
    expect(texts(transcript)).toEqual(["Hello"]);
  });

  it("is not duplicated by a page that was read meanwhile, however far the page reaches", () => {
    for (const upTo of ["ha", "haha", "hahaha", "hahahaha"]) {
      const transcript = new Transcript();
      transcript.applyEvent(created("msg_1", "ha"));
      const request = transcript.startRequest();
      transcript.applyEvent(delta("msg_1", "ha"));
      transcript.mergeResponse(request, [read("msg_1", upTo)]);
      transcript.applyEvent(delta("msg_1", "ha"));
      transcript.applyEvent(delta("msg_1", "ha"));
      expect(texts(transcript)).toEqual(["hahahaha"]);
    }
  });

  it("is exact when its first event arrives after the page that contains it", () => {
    const transcript = new Transcript();
    transcript.mergeResponse(transcript.startRequest(), [read("msg_1", "one two")]);
    expect(transcript.applyEvent(created("msg_1", "one"))).toEqual([]);
    transcript.applyEvent(delta("msg_1", " two"));
    transcript.applyEvent(delta("msg_1", " three"));
    expect(texts(transcript)).toEqual(["one two three"]);
    expect(transcript.applyEvent(event("turn.completed", { turnId: "trn_1" }))).toEqual([]);
  });
});

describe("a text that was read while it was being written", () => {
  it("ignores deltas that the page already contains", () => {
    const transcript = new Transcript();
    const request = transcript.startRequest();
    transcript.applyEvent(delta("msg_1", "brown "));
    transcript.mergeResponse(request, [read("msg_1", "The quick brown fox ")]);
    transcript.applyEvent(delta("msg_1", "fox "));
    transcript.applyEvent(delta("msg_1", "jumps."));
    expect(texts(transcript)).toEqual(["The quick brown fox jumps."]);
  });

  it("appends deltas that the page does not contain", () => {
    const transcript = new Transcript();
    transcript.mergeResponse(transcript.startRequest(), [read("msg_1", "The quick ")]);
    transcript.applyEvent(delta("msg_1", "brown"));
    expect(texts(transcript)).toEqual(["The quick brown"]);
  });

  it("is read again when it ends, because the overlap may be ambiguous", () => {
    const transcript = new Transcript();
    transcript.mergeResponse(transcript.startRequest(), [read("msg_1", "haha")]);
    transcript.applyEvent(delta("msg_1", "ha"));
    expect(transcript.applyEvent(created("msg_2", "next"))).toEqual(["msg_1"]);
    transcript.mergeResponse(transcript.startRequest(), [read("msg_1", "hahaha")]);
    expect(texts(transcript)).toEqual(["hahaha", "next"]);
    expect(transcript.applyEvent(event("turn.completed", { turnId: "trn_1" }))).toEqual([]);
  });

  it("handles a feed that replays known deltas", () => {
    const transcript = new Transcript();
    transcript.mergeResponse(transcript.startRequest(), [read("msg_1", "a b c d e f ")]);
    for (const piece of ["c ", "d ", "e ", "f ", "g "]) transcript.applyEvent(delta("msg_1", piece));
    expect(texts(transcript)).toEqual(["a b c d e f g "]);
  });
});

describe("after the feed was lost", () => {
  it("does not extend a text before it is read again", () => {
    const transcript = new Transcript();
    transcript.applyEvent(created("msg_1", "one "));
    transcript.forgetStreams();
    const request = transcript.startRequest();
    transcript.applyEvent(delta("msg_1", "three "));
    expect(texts(transcript)).toEqual(["one "]);
    transcript.mergeResponse(request, [read("msg_1", "one two three ")]);
    transcript.applyEvent(delta("msg_1", "four"));
    expect(texts(transcript)).toEqual(["one two three four"]);
  });

  it("knows the oldest message that may have changed", () => {
    const transcript = new Transcript();
    transcript.mergeResponse(transcript.startRequest(), [
      read("msg_1", "old"),
      read("msg_2", { type: "tool_call", toolCallId: "a", status: "in_progress" }),
      read("msg_3", "newer"),
    ]);
    expect(transcript.oldestUnsettled).toBe("msg_2");
    transcript.applyEvent(updated("msg_2", { type: "tool_call", toolCallId: "a", status: "completed" }));
    expect(transcript.oldestUnsettled).toBe("msg_3");
  });
});

describe("what an event does not carry in full", () => {
  it("is read: truncated parts, user messages, messages without a part", () => {
    const transcript = new Transcript();
    expect(
      transcript.applyEvent(event("message.created", { messageId: "msg_1", role: "system", by: "github" })),
    ).toEqual(["msg_1"]);
    expect(transcript.applyEvent(created("msg_2", "Do this", "user"))).toEqual(["msg_2"]);
    const call = {
      type: "tool_call",
      toolCallId: "a",
      title: "ls",
      status: "pending",
      output: null,
      input: { command: "ls" },
    };
    expect(
      transcript.applyEvent(event("message.created", { messageId: "msg_3", role: "agent", turnId: null, part: call })),
    ).toEqual([]);
    expect(transcript.applyEvent(updated("msg_3", { ...call, status: "completed", input: null, cut: true }))).toEqual([
      "msg_3",
    ]);
    expect(transcript.messages[1]?.parts[0]).toMatchObject({ status: "completed", input: { command: "ls" } });
    transcript.mergeResponse(transcript.startRequest(), [
      read("msg_3", { ...call, status: "completed", output: "x".repeat(5000) }),
    ]);
    expect(transcript.messages[1]?.parts[0]?.output).toHaveLength(5000);
  });

  it("is read again if it changed during the read", () => {
    const transcript = new Transcript();
    const call = { type: "tool_call", toolCallId: "a", status: "pending" };
    transcript.mergeResponse(transcript.startRequest(), [read("msg_1", call)]);
    const request = transcript.startRequest();
    transcript.applyEvent(updated("msg_1", { ...call, status: "completed" }));
    expect(transcript.mergeResponse(request, [read("msg_1", { ...call, status: "in_progress" })])).toEqual([]);
    expect(transcript.messages[0]?.parts[0]?.status).toBe("completed");
    const other = transcript.startRequest();
    transcript.applyEvent(updated("msg_1", { ...call, cut: true }));
    expect(transcript.mergeResponse(other, [read("msg_1", call)])).toEqual(["msg_1"]);
  });

  it("is ignored if it is older than the loaded messages", () => {
    const transcript = new Transcript();
    transcript.mergeResponse(transcript.startRequest(), [read("msg_5", "here")]);
    expect(transcript.applyEvent(updated("msg_2", { type: "plan", entries: [] }))).toEqual([]);
    expect(transcript.applyEvent(delta("msg_9", "there"))).toEqual(["msg_9"]);
  });
});

it("keeps messages ordered and reuses unchanged objects", () => {
  const transcript = new Transcript();
  transcript.mergeResponse(transcript.startRequest(), [read("msg_4", "four"), read("msg_2", "two")]);
  const two = transcript.messages[0];
  transcript.applyEvent(created("msg_3", "three"));
  expect(texts(transcript)).toEqual(["two", "three", "four"]);
  expect(transcript.messages[0]).toBe(two);
  expect(transcript.messages).toBe(transcript.messages);
});
