import { expect, it } from "vitest";
import type { Schemas } from "@/api/client";
import type { Agent, Project } from "@/api/types";
import { modelsOf, modesOf, suggestCommands, withCurrent } from "./choices";

const state = (options: Record<string, unknown>) => ({ options }) as Schemas["AgentStateView"];
const agent = { models: ["m1"], modes: ["work"], unaskedModes: [] } as unknown as Agent;
const claude = { modes: ["default", "plan", "auto"], unaskedModes: ["auto"] } as unknown as Agent;
const projectWith = (permissions: object) => ({ settings: { agent: { permissions } } }) as unknown as Project;
const said = (options: Record<string, unknown>) => ({ options }) as Schemas["AgentStateView"];

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
  expect(modesOf(said, agent, undefined)).toEqual([{ value: "ask", label: "Ask" }]);
  expect(modelsOf(undefined, agent)).toEqual([{ value: "m1", label: "m1" }]);
  expect(modesOf(state({ modes: "rubbish" }), agent, undefined)).toEqual([{ value: "work", label: "work" }]);
});

it("names the default mode after the project's policy, which answers the agent's requests", () => {
  const modes = [{ id: "default", name: "Always Ask" }, { id: "plan", name: "Plan" }, { id: "auto", name: "Auto" }]; // biome-ignore format: one line
  const labels = (project: Project | undefined) => modesOf(said({ modes }), claude, project).map((mode) => mode.label);
  expect(labels(undefined)).toEqual(["Allow everything", "Plan", "Auto"]);
  expect(labels(projectWith({ mode: "allow_all" }))).toEqual(["Allow everything", "Plan", "Auto"]);
  // the platform does not start a mode that acts without asking
  expect(labels(projectWith({ mode: "allow_reads" }))).toEqual(["Allow reading", "Plan"]);
  expect(labels(projectWith({ mode: "allow_all", deny: ["rm"] }))).toEqual(["Allow everything", "Plan"]);
});

it("shows a model without the provider's name, which would read as a path", () => {
  const options = [{ id: "model", category: "model", options: [{ value: "sandyard/model", name: "Sandyard/sonnet" }] }];
  expect(modelsOf(said({ configOptions: options }), agent)).toEqual([{ value: "sandyard/model", label: "sonnet" }]);
});

it("lists the current model once, with or without its provider", () => {
  const options = [{ value: "sandyard/sonnet", label: "Sandyard/sonnet" }];
  expect(withCurrent(options, "sonnet")).toEqual({ options, value: "sandyard/sonnet" });
  expect(withCurrent(options, "sandyard/sonnet")).toEqual({ options, value: "sandyard/sonnet" });
  expect(withCurrent(options, "net").options.map((option) => option.value)).toEqual(["net", "sandyard/sonnet"]);
});

it("suggests commands only while one is being typed", () => {
  const said = state({ commands: [{ name: "review", description: "Looks" }, { name: "test" }] });
  expect(suggestCommands(said, "/re")).toEqual([{ name: "review", description: "Looks" }]);
  expect(suggestCommands(said, "/")).toHaveLength(2);
  expect(suggestCommands(said, "/review now")).toEqual([]);
  expect(suggestCommands(said, "see /re")).toEqual([]);
});
