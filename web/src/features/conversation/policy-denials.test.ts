import { expect, it } from "vitest";
import type { Ask } from "@/api/types";
import { lastDenied } from "./policy-denials";

const ask = (id: string, turnId: string, pattern: string | undefined, decidedBy = "policy") =>
  ({ id, turnId, decidedBy, detail: pattern === undefined ? {} : { pattern } }) as unknown as Ask;

it("finds what a pattern denied in the newest turn that had any, once per pattern", () => {
  const asks = [
    ask("4", "t3", undefined),
    ask("1", "t1", "rm"),
    ask("2", "t2", "rm"),
    ask("3", "t2", "rm"),
    ask("5", "t2", "dd"),
    ask("6", "t3", "dd", "overruled"),
  ];
  expect(lastDenied(asks).map((item) => item.detail.pattern)).toEqual(["dd", "rm"]);
  expect(lastDenied([])).toEqual([]);
});
