import { expect, it } from "vitest";
import { toolCallOf, withoutRepeats } from "./message-parts";

const command = "cat app.py; python3 -m unittest -q";
const codex = toolCallOf({
  toolCallId: "1",
  title: command,
  kind: "execute",
  rawInput: { command, cwd: "/home/user/workspace" },
  content: [
    {
      type: "content",
      content: {
        type: "text",
        text: `\`/bin/bash -lc '${command}'\` requires approval by policy\nAvailable Decisions: Approved\nAbort`,
      },
    },
  ],
});

it("shows a command once, without the text of the buttons", () => {
  expect(withoutRepeats(codex, command)).toMatchObject({ input: {}, content: [] });
});

it("keeps details that the title does not contain", () => {
  const other = { ...codex, input: { command, cwd: "/tmp" }, content: [{ type: "text" as const, text: "Because." }] };
  expect(withoutRepeats(other, "Run the tests")).toMatchObject({
    input: { command, cwd: "/tmp" },
    content: [{ type: "text", text: "Because." }],
  });
});
