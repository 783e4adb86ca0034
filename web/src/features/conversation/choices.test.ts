import { expect, it } from "vitest";
import type { Schemas } from "@/api/client";
import type { Agent } from "@/api/types";
import { modelsOf, modesOf, suggestCommands, withCurrent } from "./choices";

const state = (options: Record<string, unknown>) => ({ options }) as Schemas["AgentStateView"];
const agent = { models: ["m1"], modes: ["work"] } as unknown as Agent;

it("prefers what the agent reports over its static definition", () => {
  const groups = [{ name: "A", options: [{ value: "a/1", name: "One" }] }, { value: "b/2" }];
  const said = state({
    configOptions: [{ id: "model", category: "model", options: groups }],
    modes: [{ id: "ask", name: "Ask" }],
  });
  expect(modelsOf(said, agent)).toEqual([
    { value: "a/1", label: "One" },
    { value: "b/2", label: "b/2" },
  ]);
  expect(modesOf(said, agent)).toEqual([{ value: "ask", label: "Ask" }]);
  expect(modelsOf(undefined, agent)).toEqual([{ value: "m1", label: "m1" }]);
  expect(modesOf(state({ modes: "rubbish" }), agent)).toEqual([{ value: "work", label: "work" }]);
});

it("lists the current model once, with or without its provider", () => {
  const options = [{ value: "sandyard/sonnet", label: "Sandyard/sonnet" }];
  expect(withCurrent(options, "sonnet")).toEqual({ options, value: "sandyard/sonnet" });
  expect(withCurrent(options, "sandyard/sonnet")).toEqual({ options, value: "sandyard/sonnet" });
  expect(withCurrent(options, "net").options.map((one) => one.value)).toEqual(["net", "sandyard/sonnet"]);
});

it("suggests commands only while one is being typed", () => {
  const said = state({ commands: [{ name: "review", description: "Looks" }, { name: "test" }] });
  expect(suggestCommands(said, "/re")).toEqual([{ name: "review", description: "Looks" }]);
  expect(suggestCommands(said, "/")).toHaveLength(2);
  expect(suggestCommands(said, "/review now")).toEqual([]);
  expect(suggestCommands(said, "see /re")).toEqual([]);
});
