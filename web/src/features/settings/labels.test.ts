import { expect, it } from "vitest";
import { formatLabels, parseLabelChange } from "./labels";

it("formats labels as sorted lines", () => {
  expect(formatLabels({ zone: "a", disk: "fast" })).toEqual(["disk=fast", "zone=a"]);
});

it("removes labels without a line", () => {
  expect(parseLabelChange(["zone=b", "gpu = yes"], { zone: "a", disk: "fast" })).toEqual({
    zone: "b",
    gpu: "yes",
    disk: null,
  });
  expect(parseLabelChange([], {})).toEqual({});
});

it("says which line is wrong", () => {
  for (const line of ["gpu", "=yes", "gpu=", "a b=c"])
    expect(parseLabelChange(["zone=a", line], {})).toBe(`“${line}” is not a label. Write KEY=VALUE.`);
  expect(parseLabelChange(["zone=a", "zone=b"], {})).toBe("The label zone is given twice.");
});
